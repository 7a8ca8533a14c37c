//! The `count` pass: a launch counts its own instructions and global memory accesses, and keeps a
//! sample of the sectors.
//!
//! The pass serves hardware whose counters need privileges. One more, last parameter is the address
//! of a **count block** in zeroed device memory. The host writes [`PERIOD`] and [`CAPACITY`]; the
//! threads add to everything else as they leave. Each body counts in registers:
//!
//! - at the beginning of a basic block, its instructions once for each thread, and once for each
//!   warp that executes it: the lowest of the lanes that `activemask` shows counts for all;
//! - at a global access, one for the lanes that execute it together, and one for each distinct
//!   sector of 32 bytes among theirs (`match.any.sync`). An access is aligned to its size, so no
//!   lane's access reaches over two sectors;
//! - in sampled CTAs, a [record](Access) of each such sector, in order. A replay of the records
//!   through a model of the L1 says how many sectors would have gone to the LLC; the counted
//!   sectors are the upper bound.
//!
//! The pass adds no branch except around the records, which all threads of a CTA take alike. The
//! code's joint execution, and the places where threads meet again, stay as they were.
//!
//! The pass comes before those that surround the body, and after `fence`; code of neither is
//! counted, because only instructions with a place in the program's text count. A CTA that a worker
//! runs reports at its end.
//!
//! # What it leaves alone
//!
//! Textures, surfaces, bulk and tensor copies and matrix loads count as instructions only. A thread
//! that ends by `trap` or by the abort flag reports nothing.

mod body;

use std::collections::BTreeSet;

use crate::carry::{self, Carry};
use crate::ir::{FuncId, Module, Name, Op, Type, Version};
use crate::kernels::{Calls, Kernel, Param};
use crate::params;
use crate::report::{KernelReport, Outcome, Reason, Refusal};
use crate::worker::Rewritten;
use crate::worker::checks::{has_parameter_room, parameter_limit};
use crate::worker::copies::Additions;

use body::Registers;

/// `u64`: instructions by warps.
pub const WARP_INSTRUCTIONS: u64 = 0;
/// `u64`: instructions by threads.
pub const THREAD_INSTRUCTIONS: u64 = 8;
/// `u64`: loads of global memory by warps, and asynchronous copies from it.
pub const GLOBAL_LOADS: u64 = 16;
/// `u64`: stores to global memory by warps.
pub const GLOBAL_STORES: u64 = 24;
/// `u64`: atomics and reductions on global memory by warps.
pub const ATOMICS: u64 = 32;
/// `u64`: sectors that these accesses touched; the sectors of one instruction of one warp count
/// once each.
pub const GLOBAL_SECTORS: u64 = 40;
/// `u64`: sectors of accesses that cannot hit in L1: all but [`Access::Load`].
pub const PAST_SECTORS: u64 = 48;
/// `u64`: records that needed a place; more than [`CAPACITY`] where the room did not suffice.
pub const RECORDED: u64 = 64;
/// `u64`, the host's: places for records; 0 samples nothing.
pub const CAPACITY: u64 = 72;
/// `u32`, the host's: a power of two less one. A CTA is sampled where its linear index has none of
/// these bits.
pub const PERIOD: u64 = 80;
/// The first record, a `u64`.
pub const RECORDS: u64 = 128;

/// The kind of access, in a record's lowest two bits. The next three bits are zero; then follow the
/// address up to bit 48, and the SM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A load that may hit in L1.
    Load = 0,
    /// A load that must not hit in L1.
    LoadPastL1 = 1,
    /// A store.
    Store = 2,
    /// An atomic or reduction.
    Atomic = 3,
}

/// Makes every kernel count that can.
#[must_use]
pub fn count(module: &Module) -> Rewritten {
    let mut out = module.clone();
    let mut reports = Vec::new();
    let mut state: Option<Count> = None;
    let mut calls = Calls::new(module);
    for kernel in module.kernels() {
        let report = match check(module, &mut calls, &kernel) {
            Ok(functions) => {
                let state = state.get_or_insert_with(|| Count::new(&mut out));
                let added = state.kernel(&mut out, &kernel, &functions);
                KernelReport { added, ..KernelReport::new(&kernel, Outcome::Applied) }
            }
            Err(refusals) => KernelReport::new(&kernel, Outcome::Refused(refusals)),
        };
        reports.push(report);
    }
    if let Some(state) = state {
        state.carry.place(&mut out);
    }
    crate::verify::check_pass(&out, || crate::verify(module).is_ok());
    Rewritten { module: out, reports }
}

/// A module with counting kernels beside the others.
#[derive(Clone, Debug)]
pub struct Beside {
    /// The module. Every kernel of the original is there as it was.
    pub module: Module,
    /// For each kernel of the original, in order, the name of the counting kernel; `None` where the
    /// kernel cannot count or is not wanted. The counting kernel takes the address of the count
    /// block after the kernel's own parameters, as after [`count`].
    pub counting: Vec<Option<String>>,
}

/// Adds a counting kernel beside each wanted kernel that can count.
#[must_use]
pub fn beside(module: &Module, wanted: &dyn Fn(&Kernel) -> bool) -> Beside {
    let mut out = module.clone();
    let mut additions = Additions::default();
    let mut state: Option<Count> = None;
    let mut counting = Vec::new();
    let mut calls = Calls::new(module);
    for kernel in module.kernels() {
        let functions =
            if wanted(&kernel) { check(module, &mut calls, &kernel).ok() } else { None };
        counting.push(functions.map(|functions| {
            let func = additions.kernel(&mut out, kernel.func, "pw_counting");
            let state = state.get_or_insert_with(|| Count::new(&mut out));
            state.kernel(&mut out, &Kernel { func, ..kernel }, &functions);
            out.text(out.func(func).name).to_owned()
        }));
    }
    additions.place(&mut out);
    if let Some(state) = state {
        state.carry.place(&mut out);
    }
    crate::verify::check_pass(&out, || crate::verify(module).is_ok());
    Beside { module: out, counting }
}

/// The functions that count with the kernel, or the reasons why it cannot count.
fn check(
    module: &Module,
    calls: &mut Calls<'_>,
    kernel: &Kernel,
) -> Result<BTreeSet<FuncId>, Vec<Refusal>> {
    let pos = module.func(kernel.func).pos;
    if module.stop.is_asked() {
        return Err(vec![Refusal { pos, reason: Reason::Stopped }]);
    }
    let mut refusals = Vec::new();
    if module.address_size != Some(64) || module.sm().is_none() {
        refusals.push(Refusal { pos, reason: Reason::Target });
    } else if module.sm() < Some(70) || module.version < (Version { major: 6, minor: 2 }) {
        refusals.push(Refusal { pos, reason: Reason::NoMatch });
    }
    if !has_parameter_room(module, kernel, 8) {
        let (bytes, limit) = (kernel.param_bytes, parameter_limit(module));
        refusals.push(Refusal { pos, reason: Reason::ParametersFull { bytes, limit } });
    }
    let reach = calls.reach(kernel.func);
    let with_code = reach.funcs.iter().copied().filter(|&id| module.func(id).body.is_some());
    match carry::wanted(module, calls, &reach, &with_code.collect()) {
        Ok(functions) if refusals.is_empty() => return Ok(functions),
        Ok(_) => {}
        Err(refusal) => refusals.push(refusal),
    }
    Err(refusals)
}

/// The pass on one module.
struct Count {
    carry: Carry,
    param: Name,
    registers: Registers,
    /// Functions of the module that may end a thread.
    ending: BTreeSet<FuncId>,
}

impl Count {
    fn new(module: &mut Module) -> Self {
        let all = (0..module.funcs.len())
            .map(|index| FuncId(u32::try_from(index).expect("counted by u32")));
        let all: BTreeSet<FuncId> = all.collect();
        let exits = |id: &FuncId| {
            let body = module.func(*id).body.as_ref();
            body.is_some_and(|body| body.insts().any(|(_, inst)| module.form(inst).op == Op::Exit))
        };
        let exiting = all.iter().copied().filter(exits).collect();
        let ending = Calls::new(module).callers(&all, &exiting);
        let carry = Carry::new(module, &[("counts", Type::B64), ("sampled", Type::B32)]);
        Self {
            carry,
            param: module.names.fresh("pw_counts"),
            registers: Registers::new(module),
            ending,
        }
    }

    fn kernel(
        &mut self,
        module: &mut Module,
        kernel: &Kernel,
        functions: &BTreeSet<FuncId>,
    ) -> Vec<Param> {
        for (_, copy) in self.carry.copy(module, functions) {
            self.body(module, copy, None);
        }
        let offset = kernel.param_bytes.next_multiple_of(8);
        let param = params::append(module, kernel.func, self.param, Type::U64);
        self.body(module, kernel.func, Some(param));
        let name = module.text(self.param).to_owned();
        vec![Param { name, offset, size: 8, align: 8 }]
    }
}
