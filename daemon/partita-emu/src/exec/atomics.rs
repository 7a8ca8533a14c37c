//! Atomics on more than one register: vectors and 128 bits (PTX ISA, "atom", "red"). Each element
//! of a vector is an atomic of its own.

use super::access::{combine, exchange_bytes, read_bytes, weak, write_bytes};
use super::float::flush;
use super::inst::{AtomicKind, AtomicOp, AtomicType, Inst, Source, Target};
use super::rows::{LANES, lanes};
use super::state::Core;
use super::step::{Env, Trouble};
use super::trace::AccessKind;
use partita_model::DeviceAddress;

/// Side table of [`super::inst::Op::AtomicWide`].
#[derive(Clone, Debug)]
pub struct WideAtomicOp {
    /// What is done to each element, and where the first lies; its own operands and target are not
    /// used.
    pub element: AtomicOp,
    /// Whether the elements are one value: `cas` compares all of it.
    pub whole: bool,
    /// Operands.
    pub b: Vec<Source>,
    /// Second operands of `cas`.
    pub c: Vec<Source>,
    /// Old values; empty for `red`.
    pub targets: Vec<Target>,
}

impl WideAtomicOp {
    /// Applies the atomic to the elements from `first` on, and returns their old values.
    fn replace(
        &self,
        first: usize,
        bytes: &mut [u8],
        operands: impl Fn(usize) -> (u64, u64),
        mut was: impl FnMut(usize, u64),
    ) {
        let size = self.element.ty.bytes() as usize;
        let word = |bytes: &[u8]| {
            let mut word = [0; 8];
            word[..size].copy_from_slice(bytes);
            u64::from_le_bytes(word)
        };
        let mut elements = bytes.chunks_exact(size).zip(first..);
        let equal = elements.all(|(bytes, index)| word(bytes) == operands(index).0);
        for (bytes, index) in bytes.chunks_exact_mut(size).zip(first..) {
            let (old, (b, c)) = (word(bytes), operands(index));
            was(index, old);
            let new = match (self.whole, self.element.kind) {
                (true, AtomicKind::Cas) if equal => c,
                (true, AtomicKind::Cas) => old,
                _ => one(&self.element, old, b, c),
            };
            bytes.copy_from_slice(&new.to_le_bytes()[..size]);
        }
    }
}

/// The most bytes of one access.
const MOST: usize = 32;

/// Executes the instruction, lane after lane.
#[inline(never)]
pub fn execute(
    core: &mut Core<'_>,
    i: &Inst,
    env: &mut Env<'_>,
    pc: usize,
) -> Result<(), Box<Trouble>> {
    let program = env.program;
    let op = &program.wide_atomics[i.imm as usize];
    let size = op.element.ty.bytes() as usize;
    let total = size * op.b.len();
    weak::begin(core, i, env);
    for w in 0..core.warps {
        let mask = core.mask(i, w);
        if mask == 0 {
            continue;
        }
        let mut old = vec![[0_u64; LANES]; op.b.len()];
        let mut addresses = [0_u64; LANES];
        for lane in lanes(mask) {
            let base = core.get(op.element.address, w, lane).wrapping_add(op.element.offset as u64);
            let address = op.element.space.generic(base);
            addresses[lane] = address;
            let site = (w + core.first_warp, lane, pc);
            let atomic = |mut trouble: Box<Trouble>| {
                for access in ["load", "store"] {
                    trouble.detail = trouble.detail.replacen(access, "atomic", 1);
                }
                trouble
            };
            let mut bytes = [0; MOST];
            read_bytes(env, site, address, &mut bytes[..total]).map_err(atomic)?;
            let operands = |index: usize| {
                let c = op.c.get(index).map_or(0, |&c| core.get(c, w, lane));
                (core.get(op.b[index], w, lane), c)
            };
            if env.memory.is_shared_with_host(DeviceAddress(address), total) {
                // The host sees either the whole value or the elements one by one.
                let step = if op.whole { op.b.len() } else { 1 };
                for first in (0..op.b.len()).step_by(step) {
                    let (place, length) = (address + (first * size) as u64, step * size);
                    loop {
                        read_bytes(env, site, place, &mut bytes[..length]).map_err(atomic)?;
                        let found = bytes;
                        op.replace(first, &mut bytes[..length], operands, |index, value| {
                            old[index][lane] = value
                        });
                        if exchange_bytes(env, site, place, &found[..length], &bytes[..length])? {
                            break;
                        }
                    }
                }
            } else {
                op.replace(0, &mut bytes[..total], operands, |index, value| {
                    old[index][lane] = value
                });
                write_bytes(env, site, address, &bytes[..total]).map_err(atomic)?;
            }
        }
        for (&target, old) in op.targets.iter().zip(&old) {
            core.put_all(target, w, mask, old);
        }
        if super::access::is_global(addresses[(mask.trailing_zeros() & 31) as usize]) {
            env.trace.counts.atomics += 1;
            env.trace.scattered(AccessKind::Atomic, &addresses, mask, total as u32, pc);
        } else {
            env.trace.counts.shared_accesses += 1;
            env.trace.shared_passes += u64::from(mask.count_ones()) / 8;
        }
    }
    weak::end(env);
    Ok(())
}

/// Applies the operation to one element. Vectors of `.f32` are only for global memory, where sums
/// flush subnormals.
fn one(element: &AtomicOp, old: u64, b: u64, c: u64) -> u64 {
    if element.ty != AtomicType::F32 {
        return combine(element, old, b, c);
    }
    let flushed = |bits: u64| u64::from(flush(f32::from_bits(bits as u32)).to_bits());
    flushed(combine(element, flushed(old), flushed(b), c))
}
