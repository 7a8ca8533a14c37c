//! What no guard contains. A kernel that reaches it needs a right where the device wants every
//! fault contained.

use super::barriers::{are_loops_possible, endless_barriers};
use super::frames::{needing, unbounded_frames};
use super::names::Outside;
use super::shared::foreign;
use super::stack::unbounded_stack;
use super::warps::{Parting, crowd};
use crate::ir::{Form, FuncId, Mod, Module, Op, Space};
use crate::report::Reason;
use std::collections::BTreeSet;

/// Looks for what no guard contains in the kernels of a module.
pub struct Rights<'m> {
    module: &'m Module,
    parting: Parting<'m>,
    /// The functions whose pointers into local memory need bounds from their callers.
    needing: BTreeSet<FuncId>,
    /// The functions of kernels that name other CTAs' shared memory.
    foreign: BTreeSet<FuncId>,
    /// The names of the module's variables, which checks use.
    outside: Outside<'m>,
    /// Why no guard lets lanes wait in loops.
    endless: Option<Reason>,
}

impl<'m> Rights<'m> {
    /// Nothing is looked for yet.
    #[must_use]
    pub fn new(module: &'m Module) -> Self {
        let endless = match crowd(module) {
            _ if !are_loops_possible(module) => Some(Reason::EndlessWaits),
            Some(instruction) => {
                Some(Reason::Uncontained { instruction, why: "waits for lanes, as too many do" })
            }
            None => None,
        };
        let (parting, needing, foreign) = (Parting::new(module), needing(module), foreign(module));
        Self { module, parting, needing, foreign, outside: Outside::new(module), endless }
    }

    /// Why faults of a kernel that reaches these functions may end the GPU's context or occupy the
    /// GPU.
    #[must_use]
    pub fn uncontained(&mut self, functions: &BTreeSet<FuncId>) -> Option<Reason> {
        let module = self.module;
        let bodies = functions.iter().filter_map(|&id| module.func(id).body.as_ref());
        let mut forms = bodies.flat_map(|body| body.insts()).map(|(_, inst)| module.form(inst));
        let instruction = |form: &Form| {
            let instruction = module.text(form.text).to_owned();
            why(form, &instruction).map(|why| Reason::Uncontained { instruction, why })
        };
        let hidden = functions.iter().find_map(|&id| self.outside.hidden_in(id));
        let hidden =
            hidden.map(|name| Reason::DeclaredAgain { register: module.text(name).to_owned() });
        unbounded_stack(module, functions)
            .or(hidden)
            .or_else(|| unbounded_frames(module, functions, &self.needing))
            .or_else(|| endless_barriers(module, functions))
            .or_else(|| self.endless.clone().filter(|_| self.parting.is_among(functions)))
            .or_else(|| self.several_places(functions))
            .or_else(|| forms.find_map(instruction))
            .or_else(|| self.shared_function(functions))
    }

    /// Lanes that come to a function from different places are told apart by nothing, and wait for
    /// each other at one instruction, of which the assembler may make several.
    fn several_places(&mut self, functions: &BTreeSet<FuncId>) -> Option<Reason> {
        let function = self.parting.met_from_several_places(functions)?;
        let why = "waits for lanes, and is called from several places where these may part";
        Some(Reason::Uncontained { instruction: self.name(function), why })
    }

    /// A function that kernels with names of other CTAs' shared memory call has no bounds there.
    fn shared_function(&self, functions: &BTreeSet<FuncId>) -> Option<Reason> {
        let &function = functions.intersection(&self.foreign).next()?;
        let why = "is called, too, by kernels that name other CTAs' shared memory";
        Some(Reason::Uncontained { instruction: self.name(function), why })
    }

    fn name(&self, function: FuncId) -> String {
        self.module.text(self.module.func(function).name).to_owned()
    }
}

/// What an instruction does that no guard bounds.
fn why(form: &Form, text: &str) -> Option<&'static str> {
    // These wait for copies.
    let is_bulk = form.has(Mod::Bulk) && !form.has(Mod::CommitGroup) && !form.has(Mod::WaitGroup);
    Some(match form.op {
        Op::Mbarrier => "uses an mbarrier, and nothing tells whether it was initialised",
        Op::Cp if form.has(Mod::Mbarrier) => {
            "tells an mbarrier, and nothing tells whether it was initialised"
        }
        Op::St | Op::Red if form.has(Mod::Async) => "reaches another CTA's shared memory",
        Op::St if is_bulk => "clears as much shared memory as a register says",
        Op::Cp if form.has(Mod::Prefetch) => "prefetches as much as a register says",
        Op::Prefetch if form.has(Mod::Tensormap) => {
            "takes what lies at an address for a tensor map"
        }
        Op::Discard | Op::Applypriority if form.space().is_none() => "may name no global memory",
        Op::Cp if is_bulk => "copies as much shared memory as a register says",
        Op::Ld | Op::St | Op::Atom | Op::Red if form.space() == Some(Space::SharedCluster) => {
            "reaches another CTA's shared memory"
        }
        Op::Mapa => "names another CTA's shared memory",
        Op::Bar | Op::Barrier if form.has(Mod::Cluster) => "waits for CTAs that may never come",
        Op::Wgmma if text.starts_with("wgmma.mma") => "reads shared memory by a descriptor",
        Op::Suld | Op::Sust | Op::Sured if !form.has(Mod::Clamp) && !form.has(Mod::Zero) => {
            "traps beyond its surface"
        }
        Op::Setmaxnreg => "waits for registers that other warps may never give back",
        Op::Tcgen05 => "reaches shared and tensor memory by descriptors",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::Rights;
    use std::collections::BTreeSet;

    fn of(body: &str) -> Option<String> {
        let source = format!(
            ".version 8.6\n.target sm_90a\n.address_size 64\n.global .surfref s;\n.visible .entry \
             k()\n{{\n.reg .b32 %r<4>;\n.reg .b64 %d<4>;\n{body}\nret;\n}}\n"
        );
        let module = crate::parse(&source).unwrap();
        let reached: BTreeSet<_> = module.kernels().iter().map(|kernel| kernel.func).collect();
        Rights::new(&module).uncontained(&reached).map(|reason| reason.to_string())
    }

    #[test]
    fn what_no_guard_bounds_is_named() {
        for (body, instruction) in [
            ("mbarrier.init.shared.b64 [%r1], 1;", "mbarrier.init.shared.b64"),
            ("cp.async.mbarrier.arrive.shared.b64 [%r1];", "cp.async.mbarrier.arrive.shared.b64"),
            (
                "cp.async.bulk.global.shared::cta.bulk_group [%d1], [%r1], %r2;",
                "cp.async.bulk.global.shared::cta.bulk_group",
            ),
            ("mapa.u64 %d1, %d2, 1;", "mapa.u64"),
            ("ld.shared::cluster.u32 %r1, [%r2];", "ld.shared::cluster.u32"),
            ("sust.b.1d.b32.trap [s, {%r1}], {%r2};", "sust.b.1d.b32.trap"),
            ("cp.async.bulk.prefetch.L2.global [%d1], %r2;", "cp.async.bulk.prefetch.L2.global"),
            ("prefetch.tensormap [%d1];", "prefetch.tensormap"),
            ("discard.L2 [%d1], 128;", "discard.L2"),
            ("setmaxnreg.inc.sync.aligned.u32 64;", "setmaxnreg.inc.sync.aligned.u32"),
            ("barrier.cluster.arrive;\nbarrier.cluster.wait;", "barrier.cluster.arrive"),
        ] {
            let reason = of(body).unwrap_or_else(|| panic!("{body}"));
            assert!(reason.starts_with(&format!("`{instruction}` ")), "{reason}");
        }
        for body in [
            "cp.async.ca.shared.global [%r1], [%d1], 16;\ncp.async.wait_all;",
            "bar.sync 0;\nbar.warp.sync 0xffffffff;",
            "prefetch.global.L2 [%d1];\ndiscard.global.L2 [%d1], 128;",
            "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;",
            "ld.acquire.cluster.global.u32 %r1, [%d1];",
            "wgmma.fence.sync.aligned;\nwgmma.commit_group.sync.aligned;",
            "sust.b.1d.b32.zero [s, {%r1}], {%r2};",
            "getctarank.shared::cluster.u32 %r1, %r2;\nfence.acq_rel.cluster;",
        ] {
            assert_eq!(of(body), None, "{body}");
        }
    }

    /// Whether each kernel of a module needs a right, by name.
    fn reasons(functions: &str) -> Vec<(String, Option<String>)> {
        let head = ".version 8.6\n.target sm_90\n.address_size 64\n";
        let module = crate::parse(&format!("{head}{functions}")).unwrap();
        let (mut rights, mut calls) = (Rights::new(&module), crate::Calls::new(&module));
        let kernels = module.kernels().into_iter();
        let of = |kernel: crate::Kernel| {
            let reason = rights.uncontained(&calls.reach(kernel.func).funcs);
            (kernel.name.clone(), reason.map(|reason| reason.to_string()))
        };
        kernels.map(of).collect()
    }

    #[test]
    fn lanes_of_several_calls_are_not_told_apart() {
        let function = ".func (.reg .b32 %s) f(.reg .b32 %a) { redux.sync.add.u32 %s, %a, -1; ret; \
                        }\n";
        let kernel = |calls: &str| {
            format!(
                "{function}.entry k() {{ .reg .pred %p; .reg .b32 %r<3>; mov.u32 %r1, %laneid;\n\
                 setp.lt.u32 %p, %r1, 3;\n@%p bra A;\n{calls}\nbra B;\nA: bar.warp.sync -1;\n\
                 B: ret; }}"
            )
        };
        let call = "call (%r2), f, (%r1);\n";
        assert_eq!(reasons(&kernel(call))[0].1, None);
        let reason = reasons(&kernel(&call.repeat(2)))[0].1.clone().unwrap();
        assert!(reason.starts_with("`f` waits for lanes"), "{reason}");
    }

    #[test]
    fn a_function_of_kernels_with_clusters_has_no_bounds() {
        let functions = ".func f(.reg .b64 %d) { .reg .b32 %r; ld.u32 %r, [%d]; ret; }\n\
                         .entry k() { .reg .b64 %d; mov.u64 %d, 0; call f, (%d); ret; }\n\
                         .entry m() { .reg .b64 %d; mov.u64 %d, 0; mapa.u64 %d, %d, 1; call f, \
                         (%d); ret; }\n.entry n() { .reg .b32 %r; .reg .b64 %d; mov.u64 %d, 0; \
                         ld.u32 %r, [%d]; ret; }";
        let found = reasons(functions);
        let starts = |at: usize, with: &str| {
            let reason = found[at].1.as_ref();
            reason.is_some_and(|reason| reason.starts_with(with))
        };
        assert!(starts(0, "`f` is called, too") && starts(1, "`mapa.u64` "), "{found:?}");
        assert_eq!(found[2].1, None);
    }
}
