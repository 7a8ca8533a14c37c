//! Finds threads that may leave while others wait for them.
//!
//! On a GPU an exited thread no longer counts at a barrier, and a warp's synchronising instruction
//! skips an exited lane. In a worker, threads do not exit: they are parked until the next CTA
//! starts, and a thread that waits for them would wait for ever. nvcc merges all returns into one
//! at the end, so the question is one of control flow.
//!
//! A branch B endangers a waiting instruction S when three things hold: threads may part at B, S
//! lies between B and the point where all ways meet again, and some way from B leaves the function
//! without waiting on it. If every way first waits somewhere for the whole group, a thread that is
//! missing at S has not exited in the original either, so the original does not count on its exit.

use crate::ir::{Body, FuncId, Inst, Module, Op, Operand, Pos, Stmt, Symbol, VarId};

use super::cfg::{BlockId, Cfg};
use super::divergence::{Divergence, Level, region};
use super::sync::{Masks, Sync, sync_of};

/// A waiting instruction that a branch endangers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hazard {
    /// Its statement.
    pub stmt: usize,
    /// Its place.
    pub pos: Pos,
    /// The place where threads part.
    pub branch: Pos,
    /// Whether the instruction waits for the CTA; otherwise it waits for lanes of the warp.
    pub cta: bool,
}

/// Result of [`hazards`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hazards {
    /// At most one per waiting instruction, in order.
    pub list: Vec<Hazard>,
    /// Whether the list is complete only for blocks whose rows fill warps ([`Level::Warp`]).
    pub full_rows: bool,
}

/// The body is too large for the analysis; the number of its basic blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge(pub usize);

/// The waiting instructions of the functions that a call may reach.
pub trait Callees {
    /// Whether the functions contain barriers of the CTA, and instructions that wait for lanes.
    fn waits(&self, callee: Option<FuncId>) -> Waits;
}

/// See [`Callees`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// Whether something waits for the CTA.
    pub cta: bool,
    /// Whether something waits for lanes of the warp.
    pub warp: bool,
}

struct Waiting {
    stmt: usize,
    pos: Pos,
    block: BlockId,
    waits: Waits,
}

/// Branch and block visits that the search may take.
const BUDGET: usize = 1 << 28;

/// Finds the endangered waiting instructions. `params` are parameters with one value for all
/// threads (a kernel's).
///
/// # Errors
///
/// When the body is too large.
pub fn hazards(
    module: &Module,
    body: &Body,
    params: &[VarId],
    callees: &dyn Callees,
) -> Result<Hazards, TooLarge> {
    let waits =
        |inst: &Inst| module.form(inst).op == Op::Call || sync_of(module, body, inst).is_some();
    if !body.insts().any(|(_, inst)| waits(inst)) {
        return Ok(Hazards::default());
    }
    let cfg = Cfg::new(module, body);
    let masks = Masks::new(module, body);
    let (waiting, stops) = waiting(module, body, &cfg, &masks, callees);
    let mut found = Hazards::default();
    let once = passed_once(&cfg);
    if waiting.iter().all(|wait| once[wait.block.index()]) {
        return Ok(found);
    }
    let too_large = TooLarge(cfg.blocks.len());
    let divergence = Divergence::new(module, body, params, &cfg, &masks).ok_or(too_large)?;
    let mut budget = BUDGET;
    let mut endangered = vec![None; waiting.len()];
    for index in 0..cfg.blocks.len() {
        let block = BlockId(u32::try_from(index).expect("counted by u32"));
        let level = divergence.decision(module, body, &cfg, block);
        if level == Level::Uniform {
            continue;
        }
        budget = budget.checked_sub(cfg.blocks.len() * 3).ok_or(too_large)?;
        if module.stop.is_asked() {
            return Err(too_large);
        }
        let inside = region(&cfg, block);
        let succs = &cfg.blocks[index].succs;
        let leaves = |stop: &dyn Fn(&Waits) -> bool| {
            let reached = cfg.reachable(succs, |block| stop(&stops[block.index()]));
            // The branch may itself be a guarded return.
            (cfg.leaves[index] && succs.contains(&cfg.exit()))
                || cfg.leaves.iter().zip(reached).any(|(&leaves, reached)| leaves && reached)
        };
        let (mut past_cta, mut past_warp) = (None, None);
        for (slot, wait) in endangered.iter_mut().zip(&waiting) {
            if !inside[wait.block.index()] || slot.is_some() {
                continue;
            }
            let cta = wait.waits.cta && *past_cta.get_or_insert_with(|| leaves(&|waits| waits.cta));
            let warp =
                wait.waits.warp && *past_warp.get_or_insert_with(|| leaves(&|waits| waits.warp));
            if cta || (warp && level == Level::Varying) {
                let branch = branch_pos(body, &cfg, block);
                *slot = Some(Hazard { stmt: wait.stmt, pos: wait.pos, branch, cta });
            } else if warp {
                found.full_rows = true;
            }
        }
    }
    found.list = endangered.into_iter().flatten().collect();
    Ok(found)
}

/// Blocks that every way passes exactly once: no branch decides about them. All ways from a branch
/// before such a block meet in it at the latest, and no way from a branch after it leads back.
fn passed_once(cfg: &Cfg) -> Vec<bool> {
    let mut once = vec![false; cfg.blocks.len() + 1];
    let mut at = BlockId(0);
    while at != cfg.exit() {
        once[at.index()] = true;
        at = cfg.ipdom[at.index()];
    }
    for (index, block) in cfg.blocks.iter().enumerate() {
        // A statement of a cycle lies, in the text, between a branch and its earlier target.
        for succ in block.succs.iter().filter(|succ| succ.index() <= index) {
            once[succ.index()..=index].fill(false);
        }
    }
    once
}

fn branch_pos(body: &Body, cfg: &Cfg, block: BlockId) -> Pos {
    let decision = cfg.blocks[block.index()].decisions.first();
    match decision.map(|decision| &body.stmts[decision.stmt]) {
        Some(Stmt::Inst(inst)) => inst.pos,
        _ => Pos::default(),
    }
}

/// The waiting instructions; and for each block (and last, the exit) the groups for which every
/// thread that passes the block has waited as a whole.
fn waiting(
    module: &Module,
    body: &Body,
    cfg: &Cfg,
    masks: &Masks,
    callees: &dyn Callees,
) -> (Vec<Waiting>, Vec<Waits>) {
    let mut list = Vec::new();
    let mut stops = vec![Waits::default(); cfg.blocks.len() + 1];
    for (stmt, inst) in body.insts() {
        let block = cfg.block_of[stmt];
        let waits = if module.form(inst).op == Op::Call {
            callees.waits(callee(body.operands(inst.operands)))
        } else {
            match masks.sync_of(module, body, inst) {
                Some(Sync::Cta) => Waits { cta: true, warp: false },
                Some(Sync::Counted | Sync::Warp | Sync::Lanes(_) | Sync::SomeLanes) => {
                    Waits { cta: false, warp: true }
                }
                _ => continue,
            }
        };
        match masks.sync_of(module, body, inst) {
            Some(Sync::Cta) => stops[block.index()] = Waits { cta: true, warp: true },
            Some(Sync::Warp) => stops[block.index()].warp = true,
            _ => {}
        }
        if waits != Waits::default() {
            list.push(Waiting { stmt, pos: inst.pos, block, waits });
        }
    }
    (list, stops)
}

/// The function that a call names; `None` for a call through a register.
#[must_use]
pub fn callee(operands: &[Operand]) -> Option<FuncId> {
    operands.iter().find_map(|operand| match operand {
        Operand::Symbol(Symbol::Func(func), _) => Some(*func),
        _ => None,
    })
}
