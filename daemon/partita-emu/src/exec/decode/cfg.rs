//! The control-flow graph of a kernel in compact form, and its reconvergence points: immediate
//! post-dominators.
//!
//! The algorithm is that of Cooper, Harvey and Kennedy ("A Simple, Fast Dominance Algorithm", 2001)
//! on the reversed graph.

use crate::exec::inst::{Inst, NOWHERE, Op};
use crate::exec::program::Program;
use std::collections::BTreeSet;

/// First instruction of each block, in order.
fn leaders(code: &[Inst], tables: &[Vec<u32>]) -> Vec<usize> {
    let mut leaders = BTreeSet::from([0]);
    for (index, inst) in code.iter().enumerate() {
        match inst.op {
            Op::Bra => {
                leaders.insert(inst.imm as usize);
                leaders.insert(index + 1);
            }
            Op::Brx => {
                leaders.extend(tables[inst.imm as usize].iter().map(|&target| target as usize));
                leaders.insert(index + 1);
            }
            Op::Exit | Op::Call | Op::Return => {
                leaders.insert(index + 1);
            }
            _ => {}
        }
    }
    leaders.retain(|&leader| leader < code.len());
    leaders.into_iter().collect()
}

/// Blocks and their successors; the block after the last is the virtual exit.
pub struct Graph {
    /// First instruction of each block.
    pub leaders: Vec<usize>,
    /// By block.
    pub successors: Vec<Vec<usize>>,
}

impl Graph {
    /// Of code and the targets of its indexed branches.
    pub fn of(code: &[Inst], tables: &[Vec<u32>]) -> Self {
        let leaders = leaders(code, tables);
        let exit = leaders.len();
        let block_at = |at: usize| leaders.binary_search(&at).unwrap_or(exit);
        let mut successors = Vec::with_capacity(exit + 1);
        for (block, _) in leaders.iter().enumerate() {
            let end = leaders.get(block + 1).copied().unwrap_or(code.len());
            let last = &code[end - 1];
            let next = if block + 1 < exit { block + 1 } else { exit };
            let mut list = match last.op {
                Op::Bra if last.guard == 0 => vec![block_at(last.imm as usize)],
                Op::Bra => vec![next, block_at(last.imm as usize)],
                Op::Brx => tables[last.imm as usize]
                    .iter()
                    .map(|&target| block_at(target as usize))
                    .collect(),
                // A guarded exit is no way out: threads that exit leave the joins that wait for
                // them.
                Op::Exit if last.guard == 0 => vec![exit],
                Op::Return => vec![exit],
                _ => vec![next],
            };
            list.dedup();
            successors.push(list);
        }
        successors.push(Vec::new());
        Graph { leaders, successors }
    }

    /// The immediate post-dominator of each block. The exit's is the exit itself. A block without a
    /// way out has the exit.
    fn post_dominators(&self) -> Vec<usize> {
        let exit = self.leaders.len();
        let mut predecessors = vec![Vec::new(); exit + 1];
        for (block, list) in self.successors.iter().enumerate() {
            for &next in list {
                predecessors[next].push(block);
            }
        }
        // Post-order of the reversed graph from the exit.
        let mut number = vec![usize::MAX; exit + 1];
        let mut order = Vec::new();
        let mut visited = vec![false; exit + 1];
        let mut stack = vec![(exit, 0)];
        visited[exit] = true;
        while let Some((block, position)) = stack.pop() {
            match predecessors[block].get(position) {
                Some(&before) => {
                    stack.push((block, position + 1));
                    if !visited[before] {
                        visited[before] = true;
                        stack.push((before, 0));
                    }
                }
                None => {
                    number[block] = order.len();
                    order.push(block);
                }
            }
        }
        const NONE: usize = usize::MAX;
        let mut parent = vec![NONE; exit + 1];
        parent[exit] = exit;
        let mut changed = true;
        while changed {
            changed = false;
            for &block in order.iter().rev().filter(|&&block| block != exit) {
                let mut found = NONE;
                for &next in &self.successors[block] {
                    if number[next] == NONE || parent[next] == NONE {
                        continue;
                    }
                    found = if found == NONE { next } else { meet(found, next, &parent, &number) };
                }
                if parent[block] != found {
                    parent[block] = found;
                    changed = true;
                }
            }
        }
        parent.into_iter().map(|block| if block == NONE { exit } else { block }).collect()
    }
}

fn meet(mut a: usize, mut b: usize, parent: &[usize], number: &[usize]) -> usize {
    while a != b {
        while number[a] < number[b] {
            a = parent[a];
        }
        while number[b] < number[a] {
            b = parent[b];
        }
    }
    a
}

/// Puts a [`Op::Sync`] before every instruction at which ways of a parting branch meet, and notes
/// where each branch's ways do.
pub fn mark_reconvergence(program: &mut Program) {
    let graph = Graph::of(&program.code, &program.branch_tables);
    let parents = graph.post_dominators();
    let exit = graph.leaders.len();
    let mut meets = vec![None; program.code.len()];
    let mut places = BTreeSet::new();
    for block in 0..exit {
        let end = graph.leaders.get(block + 1).copied().unwrap_or(program.code.len());
        let last = &program.code[end - 1];
        let parts = matches!(last.op, Op::Bra) && last.guard != 0 || last.op == Op::Brx;
        if parts && parents[block] != exit {
            let at = graph.leaders[parents[block]];
            meets[end - 1] = Some(at);
            places.insert(at);
        }
    }
    for (index, inst) in program.code.iter().enumerate() {
        if inst.op == Op::Call {
            places.insert(index + 1);
        }
    }
    // `moved[i]` is the new place of instruction i, or of the mark before it.
    let mut moved = Vec::with_capacity(program.code.len() + 1);
    let (mut code, mut lines, mut weights, mut marks) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (index, inst) in program.code.iter().enumerate() {
        moved.push(code.len() as u32);
        if places.contains(&index) {
            code.push(Inst { op: Op::Sync, aux: 0, guard: 0, d: 0, a: 0, b: 0, c: 0, imm: 0 });
            lines.push(program.lines[index]);
            weights.push(program.weights[index]);
            marks.push(None);
        }
        code.push(*inst);
        lines.push(program.lines[index]);
        weights.push(program.weights[index]);
        marks.push(meets[index]);
    }
    moved.push(code.len() as u32);
    weights.push(*program.weights.last().unwrap_or(&0));
    for inst in &mut code {
        if inst.op == Op::Bra {
            inst.imm = i64::from(moved[inst.imm as usize]);
        }
    }
    for (index, inst) in program.code.iter().enumerate() {
        if inst.op == Op::Call {
            program.call_ops[inst.imm as usize].back = moved[index + 1];
        }
    }
    for function in &mut program.functions {
        function.entry = moved[function.entry as usize];
    }
    for table in &mut program.branch_tables {
        for target in table {
            *target = moved[*target as usize];
        }
    }
    program.meets = marks.into_iter().map(|at| at.map_or(NOWHERE, |at| moved[at])).collect();
    program.code = code;
    program.lines = lines;
    program.weights = weights;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inst(op: Op, guard: u32, imm: i64) -> Inst {
        Inst { op, aux: 0, guard, d: 0, a: 0, b: 0, c: 0, imm }
    }

    fn marked(code: Vec<Inst>) -> Program {
        let mut program = Program {
            lines: vec![0; code.len()],
            weights: (0..=code.len() as u32).collect(),
            code,
            ..Program::default()
        };
        mark_reconvergence(&mut program);
        program
    }

    #[test]
    fn if_else_meets_behind() {
        // 0: @p bra 3; 1: nop; 2: bra 4; 3: nop; 4: exit
        let program = marked(vec![
            inst(Op::Bra, 2, 3),
            inst(Op::Nop, 0, 0),
            inst(Op::Bra, 0, 4),
            inst(Op::Nop, 0, 0),
            inst(Op::Exit, 0, 0),
        ]);
        assert_eq!(program.code[4].op, Op::Sync);
        assert_eq!(program.meets[0], 4);
        assert_eq!(program.code[2].imm, 4);
        assert_eq!(program.meets[2], NOWHERE);
    }

    #[test]
    fn loop_meets_after_it() {
        // 0: nop; 1: nop; 2: @p bra 1; 3: exit
        let program = marked(vec![
            inst(Op::Nop, 0, 0),
            inst(Op::Nop, 0, 0),
            inst(Op::Bra, 2, 1),
            inst(Op::Exit, 0, 0),
        ]);
        assert_eq!(program.meets[2], 3);
        assert_eq!(program.code[3].op, Op::Sync);
    }

    #[test]
    fn ways_that_both_exit_never_meet() {
        let program = marked(vec![inst(Op::Bra, 2, 2), inst(Op::Exit, 0, 0), inst(Op::Exit, 0, 0)]);
        assert_eq!(program.meets[0], NOWHERE);
        assert_eq!(program.code.len(), 3);
    }

    #[test]
    fn an_endless_loop_is_no_problem() {
        let program = marked(vec![inst(Op::Bra, 2, 2), inst(Op::Bra, 0, 1), inst(Op::Exit, 0, 0)]);
        assert_eq!(program.code.iter().filter(|inst| inst.op == Op::Exit).count(), 1);
    }
}
