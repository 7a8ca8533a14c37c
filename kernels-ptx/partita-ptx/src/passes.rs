//! The passes by name, and their composition.
//!
//! Passes compose in one order, whatever order is asked for: a pass on the program's own code comes
//! before a pass that surrounds that code.

use crate::ir::Module;
use crate::report::KernelReport;
use crate::worker::{Rewritten, WorkerOptions};
use crate::{cancel, choose, contain, count, fence, output, slice, ticket, worker};

/// A pass. The order is that in which they are applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Pass {
    /// [`crate::output()`]
    Output,
    /// [`crate::fence()`]
    Fence,
    /// [`crate::contain()`]
    Contain,
    /// [`crate::count()`]
    Count,
    /// [`crate::worker()`]
    Worker,
    /// [`crate::ticket()`]
    Ticket,
    /// [`crate::choose()`]: what `worker` and `ticket` together mean.
    Choose,
    /// [`crate::slice()`]; after `worker` or `ticket`, only for kernels that refuse them.
    Slice,
    /// [`crate::cancel()`]
    Cancel,
}

impl Pass {
    /// Every pass.
    pub const ALL: [Self; 9] = [
        Self::Output,
        Self::Fence,
        Self::Contain,
        Self::Count,
        Self::Worker,
        Self::Ticket,
        Self::Choose,
        Self::Slice,
        Self::Cancel,
    ];

    /// Its name in one word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Output => "output",
            Self::Fence => "fence",
            Self::Contain => "contain",
            Self::Count => "count",
            Self::Worker => "worker",
            Self::Ticket => "ticket",
            Self::Choose => "choose",
            Self::Slice => "slice",
            Self::Cancel => "cancel",
        }
    }

    /// The pass of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|pass| pass.name() == name)
    }

    /// Applies the pass to every kernel that can take it.
    #[must_use]
    pub fn apply(self, module: &Module, options: &WorkerOptions) -> Rewritten {
        match self {
            Self::Output => output(module),
            Self::Fence => fence(module, options),
            Self::Contain => contain(module),
            Self::Count => count(module),
            Self::Worker => worker(module, options),
            Self::Ticket => ticket(module, options),
            Self::Choose => choose(module, options),
            Self::Slice => slice(module, options),
            Self::Cancel => cancel(module, &[]),
        }
    }
}

/// Result of [`apply`].
#[derive(Clone, Debug)]
pub struct Applied {
    /// The module after the last pass.
    pub module: Module,
    /// Each pass in the order of application, with its reports.
    pub steps: Vec<(Pass, Vec<KernelReport>)>,
}

/// Applies passes in their order, each once. In debug builds the verifier runs after each.
#[must_use]
pub fn apply(module: &Module, passes: &[Pass], options: &WorkerOptions) -> Applied {
    let mut passes = passes.to_vec();
    passes.sort_unstable();
    passes.dedup();
    let forms = [Pass::Worker, Pass::Ticket];
    if passes.contains(&Pass::Choose) || forms.iter().all(|form| passes.contains(form)) {
        let at = passes.iter().position(|pass| *pass >= Pass::Worker).unwrap_or_default();
        passes.retain(|pass| !forms.contains(pass) && *pass != Pass::Choose);
        passes.insert(at, Pass::Choose);
    }
    let mut applied = Applied { module: module.clone(), steps: Vec::new() };
    for pass in passes {
        let form =
            applied.steps.iter().rfind(|(pass, _)| (Pass::Worker..=Pass::Choose).contains(pass));
        let Rewritten { module, reports } = match (pass, form) {
            (Pass::Cancel, Some((_, forms))) => cancel(&applied.module, forms),
            (Pass::Slice, Some((_, forms))) => slice::rewrite(&applied.module, options, &|func| {
                forms.iter().any(|form| form.func == func && form.rewritten().is_none())
            }),
            _ => pass.apply(&applied.module, options),
        };
        applied.module = module;
        applied.steps.push((pass, reports));
    }
    applied
}
