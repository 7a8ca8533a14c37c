//! Finds the instructions that wait for other threads.
//!
//! Sources: PTX ISA, `bar`/`barrier`, `bar.warp.sync`, `shfl.sync`, `vote.sync`, `match.sync`,
//! `redux.sync`, `elect.sync`, and the `.sync.aligned` matrix instructions.

use crate::ir::{Body, Inst, Mod, Module, Op, Operand, Reg};

/// The threads for which an instruction waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// All threads of the CTA that have not exited.
    Cta,
    /// A number of threads of the CTA that the instruction names.
    Counted,
    /// All lanes of the warp that have not exited.
    Warp,
    /// The lanes of a mask in a register.
    Lanes(Reg),
    /// The lanes of a constant mask that is not full.
    SomeLanes,
    /// The lanes that `activemask` gave; none of them can have taken another way.
    Active,
    /// CTAs of a cluster.
    Cluster,
}

/// The knowledge of registers that serve as lane masks.
#[derive(Clone, Debug)]
pub struct Masks {
    known: Vec<Known>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// The register has no definition so far.
    Nothing,
    Constant(u32),
    Active,
    Unknown,
}

impl Masks {
    /// Collects all definitions of a body.
    #[must_use]
    pub fn new(module: &Module, body: &Body) -> Self {
        let mut known = vec![Known::Nothing; body.regs.len()];
        known[..body.formals as usize].fill(Known::Unknown);
        for (_, inst) in body.insts() {
            let form = module.form(inst);
            let operands = body.operands(inst.operands);
            let value = match (form.op, operands) {
                (Op::Mov, [Operand::Reg(_), Operand::Int(value) | Operand::Uint(value)])
                    if inst.guard.is_none() =>
                {
                    Known::Constant(u32::try_from(value & 0xffff_ffff).expect("masked"))
                }
                (Op::Activemask, _) => Known::Active,
                _ => Known::Unknown,
            };
            // The first operand may be a result. A source that counts as a result only loses
            // knowledge.
            let mut note = |reg: Reg| {
                let known = &mut known[reg.index()];
                *known = if *known == Known::Nothing || *known == value {
                    value
                } else {
                    Known::Unknown
                };
            };
            match operands.first() {
                Some(&(Operand::Reg(reg) | Operand::Part { reg, .. })) => note(reg),
                Some(&(Operand::Vector(slice) | Operand::Pair(slice) | Operand::List(slice))) => {
                    for operand in body.operands(slice) {
                        if let Operand::Reg(reg) | Operand::Part { reg, .. } = *operand {
                            note(reg);
                        }
                    }
                }
                _ => {}
            }
        }
        Self { known }
    }

    /// The threads for which the instruction waits, with masks in registers looked up.
    #[must_use]
    pub fn sync_of(&self, module: &Module, body: &Body, inst: &Inst) -> Option<Sync> {
        let sync = sync_of(module, body, inst)?;
        let Sync::Lanes(reg) = sync else { return Some(sync) };
        Some(match self.known[reg.index()] {
            Known::Constant(u32::MAX) => Sync::Warp,
            Known::Constant(_) => Sync::SomeLanes,
            Known::Active => Sync::Active,
            Known::Nothing | Known::Unknown => sync,
        })
    }
}

/// The threads for which the instruction waits; `None` when it does not wait.
#[must_use]
pub fn sync_of(module: &Module, body: &Body, inst: &Inst) -> Option<Sync> {
    let form = module.form(inst);
    let operands = body.operands(inst.operands);
    match form.op {
        Op::Bar | Op::Barrier => {
            if form.has(Mod::Warp) {
                return Some(lanes(operands.last()));
            }
            if form.has(Mod::Cluster) {
                return Some(Sync::Cluster);
            }
            // `bar.red` has a result and a predicate beside the barrier and the count.
            let plain = if form.has(Mod::Red) { 3 } else { 1 };
            Some(if operands.len() > plain { Sync::Counted } else { Sync::Cta })
        }
        Op::Shfl | Op::Vote | Op::Match | Op::Redux | Op::Elect => {
            form.has(Mod::Sync).then(|| lanes(operands.last()))
        }
        Op::Wmma | Op::Mma | Op::Ldmatrix | Op::Stmatrix | Op::Movmatrix | Op::Wgmma => {
            Some(Sync::Warp)
        }
        Op::Tcgen05 => form.has(Mod::Aligned).then_some(Sync::Warp),
        _ => None,
    }
}

fn lanes(mask: Option<&Operand>) -> Sync {
    match mask {
        Some(Operand::Reg(reg)) => Sync::Lanes(*reg),
        Some(Operand::Int(mask) | Operand::Uint(mask)) if mask & 0xffff_ffff != 0xffff_ffff => {
            Sync::SomeLanes
        }
        _ => Sync::Warp,
    }
}
