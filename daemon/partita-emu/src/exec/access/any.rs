//! Loads and stores of any kind, through the side table, and `cp.async`.

use super::trouble::Access;
use super::{Outcome, Place, load_kind, place, read, weak, write};
use crate::exec::inst::{Inst, MemoryOp, Source};
use crate::exec::lane::{sign_extend, zero_extend};
use crate::exec::rows::{LANES, lanes};
use crate::exec::state::Core;
use crate::exec::step::Env;
use crate::exec::trace::AccessKind;

/// Any load or store.
#[inline(never)]
pub fn memory(core: &mut Core<'_>, i: &Inst, env: &mut Env<'_>, pc: usize) -> Outcome {
    let program = env.program;
    let op = &program.memory_ops[i.imm as usize];
    weak::begin(core, i, env);
    for w in 0..core.warps {
        let mask = core.mask(i, w);
        if mask == 0 {
            continue;
        }
        let addresses = core.get_all(op.address, w).map(|address| {
            let sum = address.wrapping_add(op.offset as u64);
            if matches!(op.address, Source::R32(_)) { sum & 0xffff_ffff } else { sum }
        });
        if op.store {
            store_elements(core, op, env, pc, w, mask, &addresses)?;
        } else {
            load_elements(core, op, env, pc, w, mask, &addresses)?;
        }
        note(core, i, op, env, pc, w, mask, &addresses);
    }
    weak::end(env);
    Ok(())
}

#[expect(clippy::too_many_arguments, reason = "what one warp's access is made of")]
fn note(
    core: &Core<'_>,
    i: &Inst,
    op: &MemoryOp,
    env: &mut Env<'_>,
    pc: usize,
    _w: usize,
    mask: u32,
    addresses: &[u64; LANES],
) {
    let _ = core;
    let bytes = op.bytes * op.elements.len() as u32;
    match place(op.space, addresses[(mask.trailing_zeros() & 31) as usize]) {
        Place::Global(_) => {
            let kind = if op.store { AccessKind::Store } else { load_kind(i) };
            if op.store {
                env.trace.counts.global_stores += 1;
            } else {
                env.trace.counts.global_loads += 1;
            }
            env.trace.scattered(kind, addresses, mask, bytes, pc);
        }
        Place::Shared(_) => {
            env.trace.counts.shared_accesses += 1;
            env.trace.shared(addresses, mask);
        }
        Place::Local(_) | Place::Param(_) => {}
    }
}

fn load_elements(
    core: &mut Core<'_>,
    op: &MemoryOp,
    env: &mut Env<'_>,
    pc: usize,
    w: usize,
    mask: u32,
    addresses: &[u64; LANES],
) -> Outcome {
    let size = op.bytes as usize;
    let total = size * op.elements.len();
    let mut values = [[0_u64; LANES]; 8];
    for lane in lanes(mask) {
        let mut bytes = [0_u8; 64];
        read(
            env,
            (w + core.first_warp, lane, pc),
            place(op.space, addresses[lane]),
            &mut bytes[..total],
        )?;
        for (element, value) in values[..op.elements.len()].iter_mut().enumerate() {
            let mut word = [0; 8];
            word[..size].copy_from_slice(&bytes[element * size..(element + 1) * size]);
            let word = u64::from_le_bytes(word);
            value[lane] = if op.signed {
                sign_extend(word, op.bytes * 8)
            } else {
                zero_extend(word, op.bytes * 8)
            };
        }
    }
    for (element, value) in op.elements.iter().zip(&values) {
        match element {
            Some(Source::R32(r)) => core.row32(*r, w).put(mask, &value.map(|v| v as u32)),
            Some(Source::R64(r)) => core.row64(*r, w).put(mask, value),
            Some(Source::P(_) | Source::None) | None => {}
        }
    }
    Ok(())
}

fn store_elements(
    core: &mut Core<'_>,
    op: &MemoryOp,
    env: &mut Env<'_>,
    pc: usize,
    w: usize,
    mask: u32,
    addresses: &[u64; LANES],
) -> Outcome {
    let size = op.bytes as usize;
    let total = size * op.elements.len();
    let has_gaps = op.elements.contains(&None);
    for lane in lanes(mask) {
        let mut bytes = [0_u8; 64];
        for (element, source) in op.elements.iter().enumerate() {
            let value = source.map_or(0, |source| core.get(source, w, lane));
            bytes[element * size..(element + 1) * size]
                .copy_from_slice(&value.to_le_bytes()[..size]);
        }
        let (at, site) = (addresses[lane], (w + core.first_warp, lane, pc));
        // A part that is left out splits the access, which must lie on a multiple of all its bytes.
        let split = has_gaps && at.is_multiple_of(total as u64);
        if !split {
            write(env, site, place(op.space, at), &bytes[..total], Access::Store)?;
            continue;
        }
        let parts = op.elements.iter().zip(bytes.chunks_exact(size.max(1))).zip(0_u64..);
        for ((_, part), number) in parts.filter(|((element, _), _)| element.is_some()) {
            let at = at.wrapping_add(number * size as u64);
            write(env, site, place(op.space, at), part, Access::Store)?;
        }
    }
    Ok(())
}

/// `cp.async`: copies at once. `c` holds the number of bytes that are copied; the rest is zero.
#[inline(never)]
pub fn async_copy(core: &mut Core<'_>, i: &Inst, env: &mut Env<'_>, pc: usize) -> Outcome {
    let program = env.program;
    let op = &program.memory_ops[i.imm as usize];
    let [target, source, length] = [op.elements[0], op.elements[1], op.elements[2]];
    for w in 0..core.warps {
        let mask = core.mask(i, w);
        let mut addresses = [0; LANES];
        for lane in lanes(mask) {
            let to = core.get(target.unwrap_or(Source::None), w, lane);
            let from = core.get(source.unwrap_or(Source::None), w, lane);
            let valid = length.map_or(u64::from(op.bytes), |length| core.get(length, w, lane));
            let mut bytes = [0_u8; 16];
            let valid = valid.min(u64::from(op.bytes)) as usize;
            let site = (w + core.first_warp, lane, pc);
            if valid == op.bytes as usize {
                read(env, site, Place::Global(from), &mut bytes[..valid])?;
            } else {
                for (index, byte) in bytes[..valid].iter_mut().enumerate() {
                    read(
                        env,
                        site,
                        Place::Global(from + index as u64),
                        std::slice::from_mut(byte),
                    )?;
                }
            }
            addresses[lane] = from;
            write(env, site, place(op.space, to), &bytes[..op.bytes as usize], Access::Store)?;
        }
        if mask != 0 {
            env.trace.counts.global_loads += 1;
            env.trace.scattered(AccessKind::LoadPastL1, &addresses, mask, op.bytes, pc);
        }
    }
    Ok(())
}
