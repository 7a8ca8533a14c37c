//! Atomics and reductions.

use super::{Outcome, Place, exchange, place, read, weak};
use crate::exec::float::{Bf16, F16, Half, flush, half_add2, half_max2, half_min2, min_max};
use crate::exec::inst::{AtomicKind, AtomicOp, AtomicType, Inst, Source};
use crate::exec::lane::{sign_extend, zero_extend};
use crate::exec::rows::{LANES, lanes};
use crate::exec::scratch;
use crate::exec::state::Core;
use crate::exec::step::Env;
use crate::exec::trace::AccessKind;

/// Atomics and reductions, lane after lane.
#[inline(never)]
pub fn atomic(core: &mut Core<'_>, i: &Inst, env: &mut Env<'_>, pc: usize) -> Outcome {
    let program = env.program;
    let op = program.atomic_ops[i.imm as usize];
    let bytes = op.ty.bytes() as usize;
    weak::begin(core, i, env);
    for w in 0..core.warps {
        let mask = core.mask(i, w);
        if mask == 0 {
            continue;
        }
        let mut old = [0_u64; LANES];
        let mut addresses = [0_u64; LANES];
        let mut global = false;
        for lane in lanes(mask) {
            let sum = core.get(op.address, w, lane).wrapping_add(op.offset as u64);
            let address =
                if matches!(op.address, Source::R32(_)) { sum & 0xffff_ffff } else { sum };
            addresses[lane] = address;
            let at = place(op.space, address);
            global |= matches!(at, Place::Global(_));
            let site = (w + core.first_warp, lane, pc);
            if let Place::Global(address) = at
                && weak::put_off(env, &op, site, address, core.get(op.b, w, lane))
            {
                continue;
            }
            if let Place::Global(address) = at
                && env.ahead.is_some()
                && scratch::reduce(env, pc, &op, address, core.get(op.b, w, lane))
            {
                continue;
            }
            // PTX ISA, "atom": `.add.f32` flushes subnormal inputs and results on global memory,
            // not on shared memory.
            let flushes = op.ty == AtomicType::F32
                && op.kind == AtomicKind::Add
                && matches!(at, Place::Global(_));
            let flushed = |bits: u64| u64::from(flush(f32::from_bits(bits as u32)).to_bits());
            loop {
                let mut word = [0_u8; 8];
                read(env, site, at, &mut word[..bytes]).map_err(|mut trouble| {
                    trouble.detail = trouble.detail.replacen("load", "atomic", 1);
                    trouble
                })?;
                old[lane] = u64::from_le_bytes(word);
                let mut operands = [old[lane], core.get(op.b, w, lane)];
                if flushes {
                    operands = operands.map(flushed);
                }
                let mut new = combine(&op, operands[0], operands[1], core.get(op.c, w, lane));
                if flushes {
                    new = flushed(new);
                }
                if exchange(env, site, at, &word[..bytes], &new.to_le_bytes()[..bytes])? {
                    break;
                }
            }
        }
        core.put_all(op.target, w, mask, &old);
        if global {
            env.trace.counts.atomics += 1;
            env.trace.scattered(AccessKind::Atomic, &addresses, mask, bytes as u32, pc);
        } else {
            env.trace.counts.shared_accesses += 1;
            env.trace.shared_passes += u64::from(mask.count_ones()) / 8;
        }
    }
    weak::end(env);
    Ok(())
}

/// The value that an atomic leaves in memory.
#[must_use]
pub fn combine(op: &AtomicOp, old: u64, b: u64, c: u64) -> u64 {
    use AtomicKind as K;
    use AtomicType as T;
    let bits = op.ty.bytes() * 8;
    let (old, b, c) = (zero_extend(old, bits), zero_extend(b, bits), zero_extend(c, bits));
    let signed = |value: u64| sign_extend(value, bits) as i64;
    match (op.kind, op.ty) {
        (K::Exch, _) => b,
        (K::Cas, _) => {
            if old == b {
                c
            } else {
                old
            }
        }
        (K::And, _) => old & b,
        (K::Or, _) => old | b,
        (K::Xor, _) => old ^ b,
        (K::Inc, _) => {
            if old >= b {
                0
            } else {
                old + 1
            }
        }
        (K::Dec, _) => {
            if old == 0 || old > b {
                b
            } else {
                old - 1
            }
        }
        (kind, T::F32) => {
            let (x, y) = (f32::from_bits(old as u32), f32::from_bits(b as u32));
            let result = match kind {
                K::Min => min_max(f64::from(x), f64::from(y), false, 0) as f32,
                K::Max => min_max(f64::from(x), f64::from(y), true, 0) as f32,
                _ => x + y,
            };
            u64::from(if result.is_nan() { crate::exec::float::NAN_F32 } else { result.to_bits() })
        }
        (kind, T::F64) => {
            let (x, y) = (f64::from_bits(old), f64::from_bits(b));
            match kind {
                K::Min => min_max(x, y, false, 0),
                K::Max => min_max(x, y, true, 0),
                _ => x + y,
            }
            .to_bits()
        }
        (kind, T::F16 | T::F16x2) => half_result::<F16>(kind, old, b),
        (kind, T::Bf16 | T::Bf16x2) => half_result::<Bf16>(kind, old, b),
        (K::Add, _) => old.wrapping_add(b),
        (K::Min, T::S32 | T::S64) => signed(old).min(signed(b)) as u64,
        (K::Max, T::S32 | T::S64) => signed(old).max(signed(b)) as u64,
        (K::Min, _) => old.min(b),
        (K::Max, _) => old.max(b),
    }
}

fn half_result<H: Half>(kind: AtomicKind, old: u64, b: u64) -> u64 {
    let operands = [old, b, 0];
    match kind {
        AtomicKind::Min => half_min2::<H>(operands, 0),
        AtomicKind::Max => half_max2::<H>(operands, 0),
        _ => half_add2::<H>(operands, 0),
    }
}
