//! Basic blocks, their edges, dominators and post-dominators.
//!
//! A block is a run of statements. A guarded instruction that calls, or that waits for other
//! threads ([`super::sync`]), has a block of its own with a way around it: "may skip the barrier"
//! is then an edge like any other. Leaving the function is an edge to the virtual block
//! [`Cfg::exit`].
//!
//! Dominators: Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm" (2001). A block
//! from which no way leads out (an endless loop, `trap`) gets an edge to the exit for
//! post-dominance only; [`Cfg::leaves`] does not count such edges.

use crate::ir::{Body, Guard, Inst, Mod, Module, Op, Operand, Stmt, Symbol, Table};

use super::sync::sync_of;

/// A block of one [`Cfg`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(pub u32);

impl BlockId {
    /// Index into [`Cfg::blocks`].
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A basic block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its statements.
    pub stmts: std::ops::Range<usize>,
    /// The blocks to which control may go next.
    pub succs: Vec<BlockId>,
    /// The decisions between the successors: none, a branch, a guarded instruction that may be
    /// skipped, or both.
    pub decisions: Vec<Decision>,
}

/// A decision at the end of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The statement.
    pub stmt: usize,
    /// Its guard; `None` for an indexed branch.
    pub guard: Option<Guard>,
}

/// A body's control flow graph.
#[derive(Clone, Debug)]
pub struct Cfg {
    /// Blocks in source order; the first is the entry.
    pub blocks: Vec<Block>,
    /// The predecessors of each block and, last, of the exit.
    pub preds: Vec<Vec<BlockId>>,
    /// Block of each statement.
    pub block_of: Vec<BlockId>,
    /// Immediate post-dominator of each block.
    pub ipdom: Vec<BlockId>,
    /// Whether some way from each block, and from the exit, comes to the exit.
    pub ends: Vec<bool>,
    /// Whether the block itself may leave the function.
    pub leaves: Vec<bool>,
}

/// The way in which a statement ends its block.
enum End {
    /// The statement does not end the block.
    No,
    /// Control goes to the next block only.
    Falls,
    /// Branches.
    To { labels: Vec<u32>, falls: bool },
    /// Control leaves the function.
    Leaves { falls: bool },
    /// Control never goes on.
    Stops { falls: bool },
}

impl Cfg {
    /// The virtual block after all ways out.
    #[must_use]
    pub fn exit(&self) -> BlockId {
        id(self.blocks.len())
    }

    /// Builds the graph.
    #[must_use]
    pub fn new(module: &Module, body: &Body) -> Self {
        let mut builder = Builder::new(module, body);
        builder.cut();
        builder.link();
        builder.finish()
    }

    /// Blocks reachable from `starts` without entering a block for which `stop` holds; the exit's
    /// flag comes last.
    #[must_use]
    pub fn reachable(&self, starts: &[BlockId], stop: impl Fn(BlockId) -> bool) -> Vec<bool> {
        let mut seen = vec![false; self.blocks.len() + 1];
        let mut todo: Vec<BlockId> = Vec::new();
        let visit = |block: BlockId, seen: &mut Vec<bool>, todo: &mut Vec<BlockId>| {
            if !seen[block.index()] && !stop(block) {
                seen[block.index()] = true;
                todo.push(block);
            }
        };
        for &start in starts {
            visit(start, &mut seen, &mut todo);
        }
        while let Some(block) = todo.pop() {
            if let Some(block) = self.blocks.get(block.index()) {
                for &succ in &block.succs {
                    visit(succ, &mut seen, &mut todo);
                }
            }
        }
        seen
    }
}

fn id(index: usize) -> BlockId {
    BlockId(u32::try_from(index).expect("fewer blocks than source bytes"))
}

struct Builder<'m> {
    module: &'m Module,
    body: &'m Body,
    starts: Vec<bool>,
    /// Statement of each label; `usize::MAX` when it has none.
    label_at: Vec<usize>,
    blocks: Vec<Block>,
    block_of: Vec<BlockId>,
    leaves: Vec<bool>,
}

impl<'m> Builder<'m> {
    fn new(module: &'m Module, body: &'m Body) -> Self {
        let mut label_at = vec![usize::MAX; body.labels.len()];
        for (index, stmt) in body.stmts.iter().enumerate() {
            if let Stmt::Label(label) = stmt {
                label_at[label.0 as usize] = index;
            }
        }
        Self {
            module,
            body,
            starts: vec![false; body.stmts.len() + 1],
            label_at,
            blocks: Vec::new(),
            block_of: Vec::new(),
            leaves: Vec::new(),
        }
    }

    fn cut(&mut self) {
        self.starts[0] = true;
        for (index, stmt) in self.body.stmts.iter().enumerate() {
            match stmt {
                Stmt::Label(_) => self.starts[index] = true,
                Stmt::Inst(inst) => {
                    if !matches!(self.end(inst), End::No) {
                        self.starts[index + 1] = true;
                    }
                    if self.is_skippable(inst) {
                        self.starts[index] = true;
                        self.starts[index + 1] = true;
                    }
                }
                _ => {}
            }
        }
    }

    /// A guarded instruction whose skipping matters.
    fn is_skippable(&self, inst: &Inst) -> bool {
        inst.guard.is_some()
            && (self.module.form(inst).op == Op::Call
                || sync_of(self.module, self.body, inst).is_some())
    }

    fn end(&self, inst: &Inst) -> End {
        let falls = inst.guard.is_some();
        match self.module.form(inst).op {
            Op::Bra => End::To { labels: self.labels(inst), falls },
            Op::Brx => End::To { labels: self.indexed(inst), falls },
            Op::Ret | Op::Exit => End::Leaves { falls },
            Op::Trap => End::Stops { falls },
            _ => End::No,
        }
    }

    fn labels(&self, inst: &Inst) -> Vec<u32> {
        let operands = self.body.operands(inst.operands).iter();
        operands
            .filter_map(|operand| match operand {
                Operand::Symbol(Symbol::Label(label), _) => Some(label.0),
                _ => None,
            })
            .collect()
    }

    /// The targets of `brx.idx`: those of the table after its label.
    fn indexed(&self, inst: &Inst) -> Vec<u32> {
        let mut targets = Vec::new();
        for label in self.labels(inst) {
            let at = self.label_at[label as usize];
            let table = self.body.stmts.get(at.wrapping_add(1));
            if let Some(Stmt::Table(table)) = table
                && let Table::Branch(symbols) = &self.body.tables[*table as usize]
            {
                targets.extend(symbols.iter().filter_map(|symbol| match symbol {
                    Symbol::Label(label) => Some(label.0),
                    _ => None,
                }));
            }
        }
        targets
    }

    fn link(&mut self) {
        let count = self.body.stmts.len();
        let mut begin = 0;
        for index in 1..=count {
            if index == count || self.starts[index] {
                let block = id(self.blocks.len());
                self.block_of.resize(index, block);
                self.blocks.push(Block {
                    stmts: begin..index,
                    succs: Vec::new(),
                    decisions: Vec::new(),
                });
                begin = index;
            }
        }
        let exit = id(self.blocks.len());
        self.leaves = vec![false; self.blocks.len()];
        for index in 0..self.blocks.len() {
            let last = self.blocks[index].stmts.end - 1;
            let next = id(index + 1);
            let (end, guard) = match &self.body.stmts[last] {
                Stmt::Inst(inst) => match self.end(inst) {
                    End::No => (End::Falls, None),
                    end => (end, Some(Decision { stmt: last, guard: inst.guard })),
                },
                _ => (End::Falls, None),
            };
            let mut succs = Vec::new();
            let mut falls = true;
            match end {
                End::No | End::Falls => {}
                End::To { labels, falls: guarded } => {
                    falls = guarded;
                    for label in labels {
                        // A label without a place is the verifier's business.
                        if let Some(&block) = self.block_of.get(self.label_at[label as usize]) {
                            succs.push(block);
                        }
                    }
                }
                End::Leaves { falls: guarded } => {
                    falls = guarded;
                    self.leaves[index] = true;
                    succs.push(exit);
                }
                End::Stops { falls: guarded } => {
                    falls = guarded;
                    // An edge for post-dominance that is no way out.
                    succs.push(exit);
                }
            }
            if falls {
                self.leaves[index] |= next == exit;
                succs.push(next);
            }
            succs.sort_unstable();
            succs.dedup();
            self.blocks[index].decisions = guard.filter(|_| succs.len() > 1).into_iter().collect();
            self.blocks[index].succs = succs;
        }
        self.add_skips();
    }

    /// Adds a way around each guarded instruction that waits or calls: from the block before it to
    /// the block after it.
    fn add_skips(&mut self) {
        for index in 0..self.blocks.len() {
            let stmts = self.blocks[index].stmts.clone();
            let Stmt::Inst(inst) = &self.body.stmts[stmts.start] else { continue };
            if stmts.len() != 1 || !self.is_skippable(inst) {
                continue;
            }
            let behind = self.blocks[index].succs.clone();
            let decision = Decision { stmt: stmts.start, guard: inst.guard };
            // A branch to a label enters the label's own block, so only the block before falls in.
            if let Some(before) = index.checked_sub(1)
                && self.blocks[before].succs.contains(&id(index))
            {
                let block = &mut self.blocks[before];
                block.succs.extend(behind);
                block.succs.sort_unstable();
                block.succs.dedup();
                block.decisions.push(decision);
            }
        }
    }

    fn finish(self) -> Cfg {
        let Self { mut blocks, block_of, leaves, .. } = self;
        let exit = id(blocks.len());
        if blocks.is_empty() {
            let (preds, ipdom) = (vec![Vec::new()], Vec::new());
            return Cfg { blocks, preds, block_of, ipdom, ends: vec![true], leaves };
        }
        let mut preds = predecessors(&blocks);
        let ends = backwards(exit, &preds);
        let endless: Vec<usize> = (0..blocks.len()).filter(|index| !ends[*index]).collect();
        for &index in &endless {
            blocks[index].succs.push(exit);
            preds[exit.index()].push(id(index));
        }
        let mut succs: Vec<Vec<BlockId>> =
            blocks.iter_mut().map(|block| std::mem::take(&mut block.succs)).collect();
        succs.push(Vec::new());
        let ipdom = immediate_dominators(exit, &preds, &succs);
        for (block, succs) in blocks.iter_mut().zip(succs) {
            block.succs = succs;
        }
        for &index in &endless {
            blocks[index].succs.pop();
        }
        // `trap` keeps its edge for post-dominance; `leaves` names the blocks that leave.
        preds[exit.index()].retain(|block| leaves[block.index()]);
        Cfg { blocks, preds, block_of, ipdom, ends, leaves }
    }
}

fn predecessors(blocks: &[Block]) -> Vec<Vec<BlockId>> {
    let mut preds = vec![Vec::new(); blocks.len() + 1];
    for (index, block) in blocks.iter().enumerate() {
        for succ in &block.succs {
            preds[succ.index()].push(id(index));
        }
    }
    preds
}

fn backwards(from: BlockId, preds: &[Vec<BlockId>]) -> Vec<bool> {
    let mut seen = vec![false; preds.len()];
    seen[from.index()] = true;
    let mut todo = vec![from];
    while let Some(block) = todo.pop() {
        for &pred in &preds[block.index()] {
            if !seen[pred.index()] {
                seen[pred.index()] = true;
                todo.push(pred);
            }
        }
    }
    seen
}

/// Immediate dominators of the graph with edges `forward` from `root`; `back` are the same edges
/// turned round. The root and what it does not reach get themselves and the root.
fn immediate_dominators(
    root: BlockId,
    forward: &[Vec<BlockId>],
    back: &[Vec<BlockId>],
) -> Vec<BlockId> {
    let order = postorder(root, forward);
    let mut rank = vec![usize::MAX; forward.len()];
    for (position, block) in order.iter().enumerate() {
        rank[block.index()] = position;
    }
    let mut idom: Vec<Option<BlockId>> = vec![None; forward.len()];
    idom[root.index()] = Some(root);
    let mut changed = true;
    while changed {
        changed = false;
        for &block in order.iter().rev().filter(|&&block| block != root) {
            let mut new: Option<BlockId> = None;
            for &pred in &back[block.index()] {
                if idom[pred.index()].is_none() {
                    continue;
                }
                new = Some(new.map_or(pred, |other| intersect(pred, other, &idom, &rank)));
            }
            if new != idom[block.index()] {
                idom[block.index()] = new;
                changed = true;
            }
        }
    }
    idom.into_iter().map(|block| block.unwrap_or(root)).collect()
}

fn intersect(mut a: BlockId, mut b: BlockId, idom: &[Option<BlockId>], rank: &[usize]) -> BlockId {
    while a != b {
        while rank[a.index()] < rank[b.index()] {
            a = idom[a.index()].expect("processed before");
        }
        while rank[b.index()] < rank[a.index()] {
            b = idom[b.index()].expect("processed before");
        }
    }
    a
}

fn postorder(root: BlockId, forward: &[Vec<BlockId>]) -> Vec<BlockId> {
    let mut order = Vec::with_capacity(forward.len());
    let mut seen = vec![false; forward.len()];
    let mut stack = vec![(root, 0_usize)];
    seen[root.index()] = true;
    while let Some((block, next)) = stack.last_mut() {
        match forward[block.index()].get(*next) {
            Some(&succ) => {
                *next += 1;
                if !seen[succ.index()] {
                    seen[succ.index()] = true;
                    stack.push((succ, 0));
                }
            }
            None => {
                order.push(*block);
                stack.pop();
            }
        }
    }
    order
}

/// Whether the branch says that all threads go the same way.
#[must_use]
pub fn is_uniform_by_word(module: &Module, inst: &Inst) -> bool {
    module.form(inst).has(Mod::Uni)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;

    fn cfg(body: &str) -> Cfg {
        let source = format!(
            ".version 8.4\n.target sm_90\n.address_size 64\n.entry k() {{ .reg .pred %p<9>; .reg \
             .b32 %r<9>;\n{body}\n}}"
        );
        let module = parse(&source).unwrap();
        Cfg::new(&module, module.funcs[0].body.as_ref().unwrap())
    }

    fn check(body: &str, succs: &[&[u32]], ipdom: &[u32]) {
        let cfg = cfg(body);
        let found: Vec<Vec<u32>> = cfg
            .blocks
            .iter()
            .map(|block| block.succs.iter().map(|block| block.0).collect())
            .collect();
        assert_eq!(found, succs, "{body}");
        let found: Vec<u32> = cfg.ipdom[..cfg.blocks.len()].iter().map(|block| block.0).collect();
        assert_eq!(found, ipdom, "{body}");
    }

    #[test]
    fn graphs() {
        check("ret;", &[&[1]], &[1]);
        check("@%p1 bra A; mov.u32 %r1, 0; A: ret;", &[&[1, 2], &[2], &[3]], &[2, 2, 3]);
        check("@%p1 ret; mov.u32 %r1, 0;", &[&[1, 2], &[2]], &[2, 2]);
        check("A: @%p1 bra B; bra A; B: ret;", &[&[1], &[2, 3], &[1], &[4]], &[1, 3, 1, 4]);
        check("mov.u32 %r1, 0; @%p1 bar.sync 0; ret;", &[&[1, 2], &[2], &[3]], &[2, 2, 3]);
        check("A: bra A;", &[&[1], &[1]], &[2, 2]);
        check(
            "brx.idx %r1, T; T: .branchtargets A, B; A: ret; B: ret;",
            &[&[2, 3], &[2], &[4], &[4]],
            &[4, 2, 4, 4],
        );
    }
}
