//! The number of registers of a thread: the rule that stands in for ptxas.
//!
//! The number is the largest count of 32-bit words that are live at once, plus [`AHEAD`]. Liveness
//! runs backwards over the control-flow graph. Values that ptxas keeps elsewhere or gets again for
//! nothing do not count:
//!
//! - predicates, immediates and parameters (constant banks);
//! - results of arithmetic on these alone (uniform registers from compute capability 7.5 on, or
//!   folded);
//! - `%tid` and `%laneid` (read again).
//!
//! `docs/deviations.md` says how near the estimate is. Between blocks at most [`MOST_LIVE`] values
//! are followed, which bounds the work.

use super::cfg::Graph;
use crate::exec::inst::{FRAME, Inst, Op};
use crate::exec::program::Program;
use crate::timing::segment::roles;

/// Registers that ptxas uses beyond the text's live values. It hoists addresses and loads to
/// overlap latencies, and its own subroutines need room. The value is the median over 1,100 kernels
/// of nvcc, NVRTC, numba and Triton, original and as workers, for `sm_90`.
const AHEAD: u32 = 11;

/// A thread has no more (PTX ISA, "Performance-Tuning Directives: .maxnreg"; CUDA C++ Programming
/// Guide, "Technical Specifications per Compute Capability").
pub const MOST: u32 = 255;

/// 32-bit registers of an SM, in every architecture since compute capability 5.0 (the same table).
const OF_SM: u32 = 64 << 10;

/// Registers per thread with which `ctas` CTAs of `threads` threads fit an SM; a warp gets
/// multiples of 256.
pub fn that_fit(threads: u32, ctas: u32) -> u32 {
    let warps = threads.div_ceil(32).saturating_mul(ctas).max(1);
    (OF_SM / warps / 256 * 8).clamp(16, MOST)
}

/// The search for live rows stops at this many pairs of a block and a row that is live at its end.
const MOST_LIVE: usize = 1 << 24;

/// 32-bit registers per thread, at most `limit`.
pub fn registers_per_thread(program: &Program, limit: u32) -> u32 {
    (Liveness::of(program).most() + AHEAD).min(limit)
}

/// Numbers the rows of a warp's frame: first the 32-bit rows, then the 64-bit rows.
struct Rows<'a> {
    program: &'a Program,
    reads: Vec<u32>,
    writes: Vec<u32>,
}

impl<'a> Rows<'a> {
    fn of(program: &'a Program) -> Self {
        Rows { program, reads: Vec::new(), writes: Vec::new() }
    }

    fn count(program: &Program) -> usize {
        program.frame32 + program.frame64
    }

    fn words(program: &Program, row: u32) -> u32 {
        if (row as usize) < program.frame32 { 1 } else { 2 }
    }

    /// Notes the rows that an instruction reads and writes.
    fn look(&mut self, inst: &Inst) {
        let Rows { program, reads, writes } = self;
        reads.clear();
        writes.clear();
        roles(inst, program, |wide, row, written| {
            let row = if wide { row + program.frame32 as u32 } else { row };
            if written { writes.push(row) } else { reads.push(row) }
        });
    }
}

/// Rows that take no register; see the module's documentation.
fn free_rows(program: &Program) -> Vec<bool> {
    let mut rows = Rows::of(program);
    let mut times = vec![0_u32; Rows::count(program)];
    for inst in &program.code {
        rows.look(inst);
        rows.writes.iter().for_each(|&row| times[row as usize] += 1);
    }
    // A value's definition nearly always precedes its uses in the text. The exceptions are counted
    // as registers.
    let mut free = vec![false; times.len()];
    for inst in &program.code {
        rows.look(inst);
        if let [target] = rows.writes[..]
            && times[target as usize] == 1
            && inst.guard == 0
            && is_arithmetic(inst.op)
            && rows.reads.iter().all(|&row| free[row as usize])
        {
            free[target as usize] = true;
        }
    }
    for row in program.fixed.tid.iter().chain([&program.fixed.laneid]).flatten() {
        free[(row & !FRAME) as usize] = true;
    }
    free
}

/// Whether the result depends only on the sources.
fn is_arithmetic(op: Op) -> bool {
    op as u16 <= Op::Lane as u16
}

struct Liveness<'a> {
    program: &'a Program,
    free: Vec<bool>,
    graph: Graph,
    /// For each block, the rows that are live at its end.
    live_out: Vec<Vec<u32>>,
}

impl<'a> Liveness<'a> {
    fn of(program: &'a Program) -> Self {
        let graph = Graph::of(&program.code, &program.branch_tables);
        let live_out = vec![Vec::new(); graph.leaders.len() + 1];
        let mut liveness = Liveness { program, free: free_rows(program), graph, live_out };
        liveness.follow();
        liveness
    }

    fn block(&self, block: usize) -> &'a [Inst] {
        let end = self.graph.leaders.get(block + 1).copied().unwrap_or(self.program.code.len());
        &self.program.code[self.graph.leaders[block]..end]
    }

    /// Pairs of a row and a block: where the block reads the row before writing it, and where it
    /// certainly writes the row.
    fn exposed_and_killed(&self) -> [Vec<(u32, u32)>; 2] {
        let mut rows = Rows::of(self.program);
        let (mut exposed, mut killed) = (Vec::new(), Vec::new());
        let [mut exposed_in, mut killed_in] = [(); 2].map(|()| vec![u32::MAX; self.free.len()]);
        for block in 0..self.graph.leaders.len() {
            let here = block as u32;
            for inst in self.block(block) {
                rows.look(inst);
                for &row in &rows.reads {
                    let at = row as usize;
                    if !self.free[at] && killed_in[at] != here && exposed_in[at] != here {
                        exposed_in[at] = here;
                        exposed.push((row, here));
                    }
                }
                // A false guard keeps the old value.
                for &row in rows.writes.iter().filter(|_| inst.guard == 0) {
                    if killed_in[row as usize] != here {
                        killed_in[row as usize] = here;
                        killed.push((row, here));
                    }
                }
            }
        }
        exposed.sort_unstable();
        killed.sort_unstable();
        [exposed, killed]
    }

    /// Follows each row from its uses back to its definitions.
    fn follow(&mut self) {
        let blocks = self.live_out.len();
        let mut predecessors = vec![Vec::new(); blocks];
        for (block, list) in self.graph.successors.iter().enumerate() {
            list.iter().for_each(|&next| predecessors[next].push(block));
        }
        predecessors.iter_mut().for_each(Vec::dedup);
        let [exposed, killed] = self.exposed_and_killed();
        let mut killed = killed.into_iter().peekable();
        let [mut kills, mut entered, mut left] = [(); 3].map(|()| vec![u32::MAX; blocks]);
        let mut stack = Vec::new();
        let mut found = 0;
        for uses in exposed.chunk_by(|a, b| a.0 == b.0) {
            let row = uses[0].0;
            while let Some((of, block)) = killed.next_if(|&(of, _)| of <= row) {
                kills[block as usize] = of;
            }
            for &(_, block) in uses {
                entered[block as usize] = row;
                stack.push(block as usize);
            }
            while let Some(block) = stack.pop() {
                for &before in &predecessors[block] {
                    if left[before] == row {
                        continue;
                    }
                    left[before] = row;
                    self.live_out[before].push(row);
                    found += 1;
                    if kills[before] != row && entered[before] != row {
                        entered[before] = row;
                        stack.push(before);
                    }
                }
            }
            if found > MOST_LIVE {
                return;
            }
        }
    }

    /// The largest number of words that are live at once.
    fn most(&self) -> u32 {
        let mut rows = Rows::of(self.program);
        let words_of = |row: u32| Rows::words(self.program, row);
        let mut live = vec![u32::MAX; self.free.len()];
        let mut most = 0;
        for block in 0..self.graph.leaders.len() {
            let here = block as u32;
            let mut words = 0;
            for &row in &self.live_out[block] {
                live[row as usize] = here;
                words += words_of(row);
            }
            for inst in self.block(block).iter().rev() {
                rows.look(inst);
                // A result without a reader still takes a register.
                let unread = |&&row: &&u32| live[row as usize] != here && !self.free[row as usize];
                let dead: u32 = rows.writes.iter().filter(unread).map(|&row| words_of(row)).sum();
                most = most.max(words + dead);
                for &row in rows.writes.iter().filter(|_| inst.guard == 0) {
                    if live[row as usize] == here {
                        live[row as usize] = u32::MAX;
                        words -= words_of(row);
                    }
                }
                for &row in rows.reads.iter().filter(|&&row| !self.free[row as usize]) {
                    if live[row as usize] != here {
                        live[row as usize] = here;
                        words += words_of(row);
                    }
                }
            }
            most = most.max(words);
        }
        most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inst(op: Op, guard: u32, [d, a, b]: [u32; 3], imm: i64) -> Inst {
        Inst { op, aux: 0, guard, d, a, b, c: 0, imm }
    }

    fn program(frame32: usize, frame64: usize, code: Vec<Inst>) -> Program {
        Program { code, frame32, frame64, ..Program::default() }
    }

    fn most(frame32: usize, frame64: usize, code: Vec<Inst>) -> u32 {
        Liveness::of(&program(frame32, frame64, code)).most()
    }

    const R: [u32; 6] = [FRAME, FRAME | 1, FRAME | 2, FRAME | 3, FRAME | 4, FRAME | 5];

    /// Loads a row from the memory that a constant row points to.
    fn load(d: u32) -> Inst {
        inst(Op::LdGlobal, 0, [d, 0, 0], 0)
    }

    fn add(d: u32, a: u32, b: u32) -> Inst {
        inst(Op::Add32, 0, [d, a, b], 0)
    }

    fn exit() -> Inst {
        inst(Op::Exit, 0, [0; 3], 0)
    }

    #[test]
    fn a_result_takes_the_place_of_what_ends_with_it() {
        // Rows 0 and 1 are live at once; then their sum and the later results are live one at a
        // time.
        let code = vec![
            load(R[0]),
            load(R[1]),
            add(R[2], R[0], R[1]),
            add(R[3], R[2], R[2]),
            add(R[4], R[3], R[3]),
            exit(),
        ];
        assert_eq!(most(6, 0, code), 2);
    }

    #[test]
    fn wide_rows_count_twice_and_unread_ones_once_each() {
        let wide = Inst { aux: 8, ..load(R[0]) };
        assert_eq!(most(1, 1, vec![wide, load(R[0]), exit()]), 2);
    }

    #[test]
    fn what_a_loop_reads_lives_through_it() {
        // 0: r0; 1: r1; loop 2: r2 = r1 + r1; 3: r1 = r2 + r0; 4: @p bra 2.
        let code = vec![
            load(R[0]),
            load(R[1]),
            add(R[2], R[1], R[1]),
            add(R[1], R[2], R[0]),
            inst(Op::Bra, 2, [0; 3], 2),
            exit(),
        ];
        assert_eq!(most(3, 0, code), 2);
        // Without the loop, r0 and r1 are both dead after their only use.
        let code =
            vec![load(R[0]), load(R[1]), add(R[2], R[1], R[0]), add(R[1], R[2], R[2]), exit()];
        assert_eq!(most(3, 0, code), 2);
        // A value computed in the loop from dead values takes a register only for its own lifetime.
        let code = vec![
            load(R[0]),
            load(R[2]),
            add(R[3], R[2], R[2]),
            add(R[1], R[3], R[0]),
            inst(Op::Bra, 2, [0; 3], 1),
            exit(),
        ];
        assert_eq!(most(4, 0, code), 2);
    }

    #[test]
    fn a_guarded_write_keeps_the_old_value() {
        let guarded = |guard| {
            vec![
                load(R[0]),
                load(R[1]),
                inst(Op::Add32, guard, [R[0], R[1], R[1]], 0),
                add(R[2], R[0], R[0]),
                exit(),
            ]
        };
        // Unguarded, the first value of r0 is never read, and takes a register for one instruction.
        assert_eq!(most(3, 0, guarded(0)), 1);
        assert_eq!(most(3, 0, guarded(2)), 2);
    }

    #[test]
    fn ways_that_meet_keep_what_either_needs() {
        // 0: r0; 1: r1; 2: @p bra 5; 3: r2 = r0 + r0; 4: bra 6; 5: r2 = r1 + r1; 6: r3 = r2 + r2
        let code = vec![
            load(R[0]),
            load(R[1]),
            inst(Op::Bra, 2, [0; 3], 5),
            add(R[2], R[0], R[0]),
            inst(Op::Bra, 0, [0; 3], 6),
            add(R[2], R[1], R[1]),
            add(R[3], R[2], R[2]),
            exit(),
        ];
        assert_eq!(most(4, 0, code), 2);
    }

    #[test]
    fn arithmetic_on_constants_and_thread_numbers_take_none() {
        // r0 = c + c, r1 = r0 + c; r2 is %tid; all are read at the end.
        let code = vec![
            add(R[0], 0, 0),
            add(R[1], R[0], 0),
            add(R[3], R[0], R[1]),
            add(R[4], R[3], R[2]),
            exit(),
        ];
        let mut program = program(5, 0, code);
        program.fixed.tid[0] = Some(2);
        let liveness = Liveness::of(&program);
        assert_eq!(liveness.free, [true, true, true, true, false]);
        assert_eq!(liveness.most(), 1);
    }

    #[test]
    fn a_limit_holds() {
        let code: Vec<Inst> = (0..6).map(|row| load(R[row])).chain([exit()]).collect();
        let program = program(6, 0, code);
        assert_eq!(registers_per_thread(&program, MOST), 1 + AHEAD);
        assert_eq!(registers_per_thread(&program, 8), 8);
    }

    #[test]
    fn many_blocks_and_rows_are_no_problem() {
        // 20,000 rows that live through 20,000 blocks are 400 million pairs.
        let mut code: Vec<Inst> = (0..20_000).map(|row| load(FRAME | row)).collect();
        code.extend((20_000..40_000).map(|at| inst(Op::Bra, 2, [0; 3], at + 1)));
        code.extend((0..20_000).map(|row| inst(Op::StGlobal, 0, [0, 0, FRAME | row], 0)));
        code.push(exit());
        assert_eq!(registers_per_thread(&program(20_000, 0, code), MOST), MOST);
    }
}
