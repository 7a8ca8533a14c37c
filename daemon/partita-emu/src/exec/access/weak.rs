//! Global accesses under weak memory: each is reported to [`crate::memory::weak`].
//!
//! [`through_side_table`] prepares a program for weak memory. The usual accesses of other programs
//! pay nothing for it.

use super::{ACQUIRE, PAST_L1, RELEASE, SEQUENTIAL, STRONG_STORE, WITHIN_CTA};
use crate::exec::asynchronous::AsyncOp;
use crate::exec::inst::{AtomicOp, AtomicType, Inst, MemoryOp, Op, Source, Space, Target};
use crate::exec::mbarrier::MbarrierKind;
use crate::exec::program::Program;
use crate::exec::state::Core;
use crate::exec::step::Env;
use crate::memory::Memory;
use crate::memory::weak::{Load, Order, Scope, Thread, Weak};

/// The weak memory, as one run of a CTA has it.
#[derive(Debug)]
pub struct WeakAccess<'a> {
    /// The memory.
    pub weak: &'a mut Weak,
    /// The grid.
    pub grid: u64,
    /// The CTA's linear index.
    pub cta: u64,
    /// What the present instruction orders: its `aux`.
    pub how: u16,
    /// Whether it is an atomic.
    pub atomic: bool,
}

impl WeakAccess<'_> {
    fn thread(&self, (warp, lane, _): (usize, usize, usize)) -> Thread {
        Thread { grid: self.grid, cta: self.cta, index: (warp * 32 + lane) as u32 }
    }
}

/// Says what the accesses of an instruction order, and releases what it releases, wherever it
/// writes.
pub fn begin(core: &Core<'_>, i: &Inst, env: &mut Env<'_>) {
    let Some(access) = &mut env.weak else { return };
    let asynchronous = (i.op == Op::Async).then(|| env.program.async_ops[i.imm as usize]);
    let reduces = matches!(asynchronous, Some(AsyncOp::Bulk(op)) if op.reduce.is_some());
    access.how = i.aux;
    access.atomic = reduces || matches!(i.op, Op::Atomic | Op::AtomicWide);
    // PTX ISA, "mbarrier.arrive": the arrival releases in the CTA. A thread that waits for the
    // phase needs no acquire, because all threads of a CTA share one view.
    let arrives = matches!(asynchronous, Some(AsyncOp::Mbarrier(op)) if matches!(op.kind,
        MbarrierKind::Arrive { .. }));
    if arrives {
        release(core, env, |w| core.mask(i, w), Scope::Cta);
    } else if i.aux & RELEASE != 0 {
        let scope = scope(i.aux);
        release(core, env, |w| core.mask(i, w), scope);
    }
}

/// The accesses of the instruction are done.
pub fn end(env: &mut Env<'_>) {
    if let Some(access) = &mut env.weak {
        if access.how & ACQUIRE != 0 && scope(access.how) == Scope::Device {
            access.weak.forget(access.thread((0, 0, 0)));
        }
        (access.how, access.atomic) = (0, false);
    }
}

fn scope(how: u16) -> Scope {
    if how & WITHIN_CTA != 0 { Scope::Cta } else { Scope::Device }
}

/// Reads bytes that the launch may read. `into` holds the coherent bytes.
pub(super) fn read(env: &mut Env<'_>, site: (usize, usize, usize), address: u64, into: &mut [u8]) {
    let Some(access) = &mut env.weak else { return };
    let who = access.thread(site);
    if access.atomic {
        access.weak.settle(env.memory, who, address, into.len());
        let settled = env.grants.bytes(env.memory, site.2, address, address + into.len() as u64);
        into.copy_from_slice(settled.expect("could be read just now"));
    } else {
        let how = if access.how & PAST_L1 != 0 { Load::Strong } else { Load::Weak };
        access.weak.load(env.memory, who, how, address, into);
    }
}

/// Writes bytes that the launch may write.
pub(super) fn write(env: &mut Env<'_>, site: (usize, usize, usize), address: u64, from: &[u8]) {
    let Some(access) = &mut env.weak else { return };
    let who = access.thread(site);
    if access.atomic {
        access.weak.write(env.memory, who, address, from);
    } else if access.how & STRONG_STORE != 0 {
        access.weak.store_strong(env.memory, who, address, from);
    } else {
        access.weak.store(env.memory, who, address, from);
    }
}

/// Puts off a reduction. False where the reduction must take effect now.
pub(super) fn put_off(
    env: &mut Env<'_>,
    op: &AtomicOp,
    site: (usize, usize, usize),
    address: u64,
    by: u64,
) -> bool {
    use AtomicType::{S32, S64, U32, U64};
    let Some(access) = &mut env.weak else { return false };
    let bytes = u64::from(op.ty.bytes());
    if op.target != Target::None
        || !matches!(op.ty, S32 | S64 | U32 | U64)
        || !address.is_multiple_of(bytes)
        || env.grants.bytes_mut(env.memory, site.2, address, address.wrapping_add(bytes)).is_none()
    {
        return false;
    }
    let who = access.thread(site);
    access.weak.chance() && {
        access.weak.reduce(env.memory, who, address, (*op, by));
        true
    }
}

/// `fence`, `membar`: orders the accesses of a team's threads.
#[inline(never)]
pub fn fence(core: &Core<'_>, i: &Inst, env: &mut Env<'_>) {
    let order = if i.aux & SEQUENTIAL != 0 { Order::Sequential } else { Order::AcquireRelease };
    each_warp(
        core,
        env,
        |w| core.mask(i, w),
        |weak, memory, who, takes_part| {
            weak.fence(memory, who, takes_part, (order, scope(i.aux)));
        },
    );
}

/// `bar.warp.sync`: what the lanes have done, they have done for each other.
#[inline(never)]
pub fn meet(core: &Core<'_>, env: &mut Env<'_>) {
    release(core, env, |w| core.masks[w], Scope::Cta);
}

fn release(core: &Core<'_>, env: &mut Env<'_>, mask: impl Fn(usize) -> u32, scope: Scope) {
    each_warp(core, env, mask, |weak, _, who, takes_part| weak.release(who, takes_part, scope));
}

fn each_warp(
    core: &Core<'_>,
    env: &mut Env<'_>,
    mask: impl Fn(usize) -> u32,
    act: impl Fn(&mut Weak, &mut Memory, Thread, &dyn Fn(u32) -> bool),
) {
    let Some(access) = &mut env.weak else { return };
    for w in 0..core.warps {
        let lanes = mask(w);
        if lanes == 0 {
            continue;
        }
        let warp = (core.first_warp + w) as u32;
        let who = access.thread((warp as usize, 0, 0));
        let takes_part = |thread: u32| thread / 32 == warp && lanes >> (thread % 32) & 1 == 1;
        act(access.weak, env.memory, who, &takes_part);
    }
}

/// Sends the global accesses of a program through the side table, where weak memory hooks in.
pub fn through_side_table(program: &mut Program) {
    for inst in &mut program.code {
        let store = inst.op == Op::StGlobal;
        if !store && inst.op != Op::LdGlobal {
            continue;
        }
        let wide = inst.aux & 8 != 0;
        let value = if store { inst.b } else { inst.d };
        let element = if wide { Source::R64(value) } else { Source::R32(value) };
        program.memory_ops.push(MemoryOp {
            store,
            space: Space::Global,
            address: Source::R64(inst.a),
            offset: inst.imm,
            bytes: if wide { 8 } else { 4 },
            signed: false,
            elements: vec![Some(element)],
            read_only: false,
        });
        let index = program.memory_ops.len() as i64 - 1;
        let (guard, aux) = (inst.guard, inst.aux);
        *inst = Inst { op: Op::Memory, aux, guard, d: 0, a: 0, b: 0, c: 0, imm: index };
    }
}
