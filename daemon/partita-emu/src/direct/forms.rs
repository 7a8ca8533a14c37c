//! The kernel of a run in another form, and the parameters that it has there.

use super::{DirectError, Form};
use partita_model::Dim3;
use partita_ptx::contain::{Rights, contain};
use partita_ptx::{Calls, Ends, KernelReport, Module, WorkerOptions, cancel_with, control, fence};
use std::sync::Arc;

/// A parameter that a form has after the kernel's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Added {
    /// The first address of the window's cell.
    Cell,
    /// The address of the control block.
    Control,
}

/// A module in another form.
pub(super) struct Rewritten {
    pub text: Arc<str>,
    /// The cluster for which the kernel claims: one CTA, or what its code requires.
    pub cluster: Dim3,
    pub added: Vec<Added>,
    /// Dynamic shared memory of its guards, in bytes.
    pub hidden_shared: u32,
    /// Where its parameters hold handles of objects ([`KernelReport::handles`]).
    pub handles: Vec<u64>,
}

impl Rewritten {
    pub(super) fn original(text: Arc<str>) -> Self {
        let (cluster, added) = (Dim3::linear(1), Vec::new());
        Self { text, cluster, added, hidden_shared: 0, handles: Vec::new() }
    }
}

pub(super) fn rewrite(
    ptx: &str,
    kernel: &str,
    form: Form,
    cell_bits: u32,
) -> Result<Rewritten, DirectError> {
    let module =
        partita_ptx::parse(ptx).map_err(|errors| DirectError::Module(errors.to_string()))?;
    let options = WorkerOptions { cell_bits, ..WorkerOptions::default() };
    let (pass, added): (fn(&_, &_) -> _, _) = match form {
        Form::Contained => return contained(&module, kernel, &options),
        Form::Fenced => (fence, Added::Cell),
        Form::Ticket => (partita_ptx::ticket, Added::Control),
        Form::Worker { .. } | Form::Original => (partita_ptx::worker, Added::Control),
    };
    let rewritten = pass(&module, &options);
    let report = of_kernel(kernel, &rewritten.reports)?;
    let claims = |report: &&KernelReport| report.rewritten().is_some_and(|form| form.clusters);
    let required = report.filter(claims).and_then(|report| {
        let kernels = module.kernels();
        kernels.iter().find(|known| known.func == report.func)?.required_cluster
    });
    let cluster = required.map_or(Dim3::linear(1), |[x, y, z]| Dim3 { x, y, z });
    let text = partita_ptx::print(&rewritten.module).into();
    let handles = report.map(|report| report.handles.clone()).unwrap_or_default();
    Ok(Rewritten { text, cluster, added: vec![added], hidden_shared: 0, handles })
}

/// The passes of a device with strict guards, in its order.
fn contained(
    module: &Module,
    kernel: &str,
    options: &WorkerOptions,
) -> Result<Rewritten, DirectError> {
    let adds = |reports: &[KernelReport]| {
        of_kernel(kernel, reports)
            .map(|report| report.is_some_and(|report| !report.added.is_empty()))
    };
    let fenced = fence(module, options);
    let has_cell = adds(&fenced.reports)?;
    let handles = of_kernel(kernel, &fenced.reports)?.map(|report| report.handles.clone());
    let kernels = fenced.module.kernels();
    if let Some(known) = kernels.iter().find(|known| known.name == kernel) {
        let reached = Calls::new(&fenced.module).reach(known.func).funcs;
        if let Some(reason) = Rights::new(&fenced.module).uncontained(&reached) {
            let reason = reason.to_string();
            return Err(DirectError::NoForm { name: kernel.to_owned(), reason });
        }
    }
    let contained = contain(&fenced.module);
    let hidden = of_kernel(kernel, &contained.reports)?.map_or(0, |report| report.hidden_shared);
    let ending = cancel_with(contained.module, &[], Ends::Always);
    let has_control = adds(&ending.reports)?;
    let added = [(has_cell, Added::Cell), (has_control, Added::Control)];
    Ok(Rewritten {
        added: added.into_iter().filter_map(|(has, added)| has.then_some(added)).collect(),
        hidden_shared: hidden,
        handles: handles.unwrap_or_default(),
        ..Rewritten::original(partita_ptx::print(&ending.module).into())
    })
}

/// What a pass says of the kernel, unless it refuses it.
fn of_kernel<'a>(
    kernel: &str,
    reports: &'a [KernelReport],
) -> Result<Option<&'a KernelReport>, DirectError> {
    let report = reports.iter().find(|report| report.name == kernel);
    match report.map(KernelReport::refusals) {
        Some([first, ..]) => {
            Err(DirectError::NoForm { name: kernel.to_owned(), reason: first.to_string() })
        }
        _ => Ok(report),
    }
}

/// What a kernel did that was ended for it; `None` where there was no fault.
pub(super) fn reason(fault: u32) -> Option<&'static str> {
    Some(match fault {
        0 => return None,
        control::FAULT_TRAP => "it executed `trap`",
        control::FAULT_ASSERT => "an assertion failed",
        control::FAULT_MISALIGNED => "an address was no multiple of its access's size",
        control::FAULT_BEYOND => {
            "an address lay beyond its shared, local or constant memory, or its parameters"
        }
        control::FAULT_ILLEGAL => {
            "a barrier does not exist, or waits for more threads than there are"
        }
        _ => "of a fault that has no name",
    })
}
