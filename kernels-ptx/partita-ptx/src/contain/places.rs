//! Where checks of registers stand.
//!
//! A check of a register that is defined once, outside of every loop, decides for every access that
//! depends on it. It stands as early as it can without ending a launch that would not have come to
//! the access: at the beginning of the first block from which every way comes to it. Calls,
//! loops without a way out, and ways that leave or trap are no ways to it. An access that is not
//! reached for sure has a check of its own, unless one stands before it on every way.

use std::collections::BTreeMap;

use crate::analysis::Cfg;
use crate::ir::{Body, Inst, Module, Op, Reg, Stmt};

use super::Check;
use super::values::Values;

/// A check and the register on which it depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub reg: Reg,
    pub check: Check,
}

/// Checks of one body that have places of their own, at most: one bit each.
const MOST: usize = 64;

/// The uses of each check.
#[derive(Default)]
pub(super) struct Keys {
    keys: Vec<Key>,
    uses: Vec<Vec<usize>>,
}

impl Keys {
    /// Notes that a statement needs a check. False where there are too many.
    pub(super) fn use_at(&mut self, stmt: usize, key: Key) -> bool {
        let at = self.keys.iter().position(|known| *known == key).unwrap_or(self.keys.len());
        if at == MOST {
            return false;
        }
        if at == self.keys.len() {
            self.keys.push(key);
            self.uses.push(Vec::new());
        }
        self.uses[at].push(stmt);
        true
    }
}

/// The places of the checks.
#[derive(Default)]
pub(super) struct Places {
    behind: BTreeMap<usize, Vec<Check>>,
    at_uses: Vec<(usize, Check)>,
}

/// For each block a set of checks.
struct Sets {
    /// From the block's beginning every way comes to the access, and the register is defined.
    ahead: Vec<u64>,
    /// The same right behind the definition of the register in this block.
    ahead_of_definition: Vec<u64>,
    /// The check has been made on every way to the block's beginning.
    made: Vec<u64>,
}

impl Places {
    pub(super) fn is_empty(&self) -> bool {
        self.behind.is_empty()
    }

    /// The checks behind a statement.
    pub(super) fn behind(&self, stmt: usize) -> impl Iterator<Item = Check> + '_ {
        self.behind.get(&stmt).into_iter().flatten().copied()
    }

    /// Checks right before the statements that need them.
    pub(super) fn at_uses(&self) -> impl Iterator<Item = (usize, Check)> + '_ {
        self.at_uses.iter().copied()
    }

    pub(super) fn new(
        module: &Module,
        body: &Body,
        cfg: &Cfg,
        values: &Values<'_>,
        keys: Keys,
    ) -> Places {
        let mut places = Places::default();
        if keys.keys.is_empty() {
            return places;
        }
        let sets = Sets::new(module, body, cfg, values, &keys);
        for (bit, (key, uses)) in keys.keys.iter().zip(&keys.uses).enumerate() {
            let bit = 1_u64 << bit;
            let definition = values.definition(key.reg);
            if let Some(stmt) = definition
                && sets.ahead_of_definition[cfg.block_of[stmt].index()] & bit != 0
            {
                places.behind.entry(stmt).or_default().push(key.check);
            }
            for (index, block) in cfg.blocks.iter().enumerate() {
                if sets.ahead[index] & !sets.made[index] & bit != 0 {
                    places.begin(body, block.stmts.clone(), key.check);
                }
            }
            places.add_uses(cfg, &sets, (bit, definition), key.check, uses);
        }
        // Of two checks at one place the wider one decides.
        places.behind.values_mut().for_each(drop_implied);
        places
    }

    /// A check at the beginning of a block, behind its labels.
    fn begin(&mut self, body: &Body, stmts: std::ops::Range<usize>, check: Check) {
        let leads = |stmt: &usize| !matches!(body.stmts[*stmt], Stmt::Inst(_));
        match stmts.clone().take_while(leads).last() {
            Some(stmt) if !matches!(body.stmts.get(stmt + 1), Some(Stmt::Table(_))) => {
                self.behind.entry(stmt).or_default().push(check);
            }
            _ => self.at_uses.push((stmts.start, check)),
        }
    }

    /// Checks at accesses that no other check decides.
    fn add_uses(
        &mut self,
        cfg: &Cfg,
        sets: &Sets,
        (bit, definition): (u64, Option<usize>),
        check: Check,
        uses: &[usize],
    ) {
        let mut last = None;
        for &stmt in uses {
            let block = cfg.block_of[stmt].index();
            let at_definition = definition.is_some_and(|at| cfg.block_of[at].index() == block)
                && sets.ahead_of_definition[block] & bit != 0;
            let is_made = (sets.made[block] | sets.ahead[block]) & bit != 0;
            if !is_made && !at_definition && last != Some(block) {
                self.at_uses.push((stmt, check));
            }
            last = Some(block);
        }
    }
}

impl Sets {
    fn new(module: &Module, body: &Body, cfg: &Cfg, values: &Values<'_>, keys: &Keys) -> Sets {
        let count = cfg.blocks.len();
        let all = u64::MAX >> (64 - keys.keys.len());
        // By block: accesses before the first call, any access, definitions, and calls.
        let (mut sure, mut used) = (vec![0_u64; count], vec![0_u64; count]);
        let mut defined = vec![0_u64; count];
        let is_call = |inst: &Inst| module.form(inst).op == Op::Call;
        let calls = |stmt: usize| matches!(&body.stmts[stmt], Stmt::Inst(inst) if is_call(inst));
        let first_call: Vec<Option<usize>> =
            cfg.blocks.iter().map(|block| block.stmts.clone().find(|&stmt| calls(stmt))).collect();
        let mut late = vec![0_u64; count];
        for (bit, (key, uses)) in keys.keys.iter().zip(&keys.uses).enumerate() {
            let bit = 1_u64 << bit;
            let definition = values.definition(key.reg);
            if let Some(stmt) = definition {
                let block = cfg.block_of[stmt].index();
                defined[block] |= bit;
                // A call before the definition does not matter behind it.
                if calls(stmt) || first_call[block].is_some_and(|call| call > stmt) {
                    late[block] |= bit;
                }
            }
            for &stmt in uses {
                let block = cfg.block_of[stmt].index();
                used[block] |= bit;
                if first_call[block].is_none_or(|call| stmt < call) {
                    sure[block] |= bit;
                }
            }
        }
        let mut ahead = vec![all; count];
        let mut ahead_of_definition = vec![0_u64; count];
        let mut changed = true;
        while changed {
            changed = false;
            for (index, block) in cfg.blocks.iter().enumerate().rev() {
                let ways = block.succs.iter();
                let behind = match block.succs.is_empty() || !cfg.ends[index] {
                    true => 0,
                    false => {
                        ways.fold(all, |all, succ| all & ahead.get(succ.index()).unwrap_or(&0))
                    }
                };
                let passes = if first_call[index].is_some() { 0 } else { behind };
                let begins = sure[index] | passes;
                ahead_of_definition[index] = begins & defined[index] & !late[index];
                let now = begins & !defined[index];
                changed |= now != ahead[index];
                ahead[index] = now;
            }
        }
        let mut made = vec![all; count];
        changed = true;
        while changed {
            changed = false;
            for index in 0..count {
                let before = |block: usize| {
                    made[block] | ahead[block] | ahead_of_definition[block] | used[block]
                };
                let preds = &cfg.preds[index];
                let now = match index == 0 || preds.is_empty() {
                    true => 0,
                    false => preds.iter().fold(all, |all, pred| all & before(pred.index())),
                };
                changed |= now != made[index];
                made[index] = now;
            }
        }
        Sets { ahead, ahead_of_definition, made }
    }
}

/// Removes checks of alignment that a wider one implies.
fn drop_implied(checks: &mut Vec<Check>) {
    let all = checks.clone();
    checks.retain(|check| {
        let Check::Aligned { reg, plus, bytes } = *check else { return true };
        !all.iter().any(|other| {
            matches!(*other, Check::Aligned { reg: of, plus: wider, bytes: more }
                if of == reg && more > bytes && (wider ^ plus) & (bytes - 1) == 0)
        })
    });
}

#[cfg(test)]
mod tests {
    /// Whatever stands behind an endless loop is never reached.
    #[test]
    fn no_check_stands_before_an_endless_loop_for_what_is_behind_it() {
        let source = ".version 8.0\n.target sm_80\n.address_size 64\n.entry k(.param .u64 p)\n{\n\
                      .reg .b32 %r; .reg .b64 %d<3>;\nld.param.u64 %d1, [p];\nmov.u32 %r, \
                      0;\n$EVER: add.u32 %r, %r, 1;\nbra.uni $EVER;\nadd.s64 %d2, %d1, 2;\n\
                      st.global.u32 [%d2], %r;\nret;\n}";
        let out = super::super::contain(&crate::parse(source).unwrap());
        let text = crate::print(&out.module);
        let (before, behind) = text.split_once("$EVER:").unwrap();
        assert!(!before.contains("and.b32") && behind.contains("and.b32"), "{text}");
    }
}
