//! What every thread of a program does, one thread after the other, by the letter of the PTX ISA.
//!
//! There are no warps that execute together here: each thread runs by itself until it exits or
//! waits for others.

use super::program::{
    ACCUMULATORS, Alu, Barrier, Compare, GLOBAL_WORDS, LOCAL_WORDS, LOCKED, OUT_WORDS, Op,
    PARAMETERS, Program, Reduction, SWAPPED, Shuffle, Special, Together, Value, Vote,
};

use std::collections::BTreeMap;

const STEPS: u32 = 200_000;

/// What a program leaves behind.
#[derive(Debug, PartialEq, Eq)]
pub struct Left {
    /// Words of all threads.
    pub out: Vec<u32>,
    /// Global accumulators.
    pub globals: Vec<u32>,
}

#[derive(Clone)]
struct Frame {
    function: usize,
    at: usize,
    registers: Vec<u32>,
    predicates: Vec<bool>,
    local: [u32; LOCAL_WORDS as usize],
    parameters: [u32; PARAMETERS],
    /// The caller's register for the result.
    result: usize,
}

impl Frame {
    fn new(
        program: &Program,
        function: usize,
        parameters: [u32; PARAMETERS],
        result: usize,
    ) -> Self {
        let shape = &program.functions[function];
        Frame {
            function,
            at: 0,
            registers: vec![0; shape.registers],
            predicates: vec![false; shape.predicates],
            local: [0; LOCAL_WORDS as usize],
            parameters,
            result,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Runs,
    /// The thread waits at a line that needs other threads.
    Waits,
    Gone,
}

struct Thread {
    number: u32,
    state: State,
    frames: Vec<Frame>,
    steps: u32,
}

struct Cta<'a> {
    program: &'a Program,
    number: u32,
    threads: Vec<Thread>,
    own: Vec<u32>,
    accumulators: Vec<u32>,
    /// Line of each label.
    labels: &'a BTreeMap<usize, usize>,
}

fn combine(which: usize, old: u32, value: u32) -> u32 {
    match ACCUMULATORS[which] {
        "add.u32" => old.wrapping_add(value),
        "max.u32" => old.max(value),
        "min.s32" => old.cast_signed().min(value.cast_signed()).cast_unsigned(),
        "xor.b32" => old ^ value,
        "or.b32" => old | value,
        _ => old & value,
    }
}

/// Runs all CTAs, one after the other: they touch nothing of each other's but accumulators.
///
/// # Errors
/// Where the program is no valid one.
pub fn run(program: &Program, globals: &[u32; GLOBAL_WORDS]) -> Result<Left, String> {
    let threads = program.threads();
    let mut left = Left {
        out: vec![0; (threads * program.ctas()) as usize * OUT_WORDS],
        globals: globals.to_vec(),
    };
    let mut labels = BTreeMap::new();
    for function in &program.functions {
        for (at, line) in function.lines.iter().enumerate() {
            if let Op::Label(label) = line.op {
                labels.insert(label, at);
            }
        }
    }
    for number in 0..program.ctas() {
        let mut cta = Cta {
            program,
            number,
            threads: (0..threads)
                .map(|number| Thread {
                    number,
                    state: State::Runs,
                    frames: vec![Frame::new(program, 0, [0; PARAMETERS], 0)],
                    steps: 0,
                })
                .collect(),
            own: vec![0; threads as usize],
            accumulators: vec![0; ACCUMULATORS.len()],
            labels: &labels,
        };
        while cta.threads.iter().any(|thread| thread.state != State::Gone) {
            let mut any = false;
            for index in 0..cta.threads.len() {
                while cta.threads[index].state == State::Runs {
                    cta.step(index, &mut left);
                    any = true;
                    if cta.threads[index].steps > STEPS {
                        return Err("the generated program is too long".to_owned());
                    }
                }
            }
            any |= cta.meet();
            if !any {
                return Err("the generated program hangs by itself".to_owned());
            }
        }
    }
    Ok(left)
}

impl Cta<'_> {
    fn line(&self, index: usize) -> &Op {
        let frame = self.threads[index].frames.last().unwrap();
        &self.program.functions[frame.function].lines[frame.at].op
    }

    fn step(&mut self, index: usize, left: &mut Left) {
        let program = self.program;
        let count = program.threads();
        let thread = &mut self.threads[index];
        thread.steps += 1;
        let base = (self.number * count + thread.number) as usize * OUT_WORDS;
        let frame = thread.frames.last_mut().unwrap();
        let line = &program.functions[frame.function].lines[frame.at];
        let taken = line.guard.is_none_or(|(p, negated)| frame.predicates[p] != negated);
        frame.at += 1;
        if !taken {
            return;
        }
        let get = |registers: &[u32], value: Value| match value {
            Value::Register(r) => registers[r],
            Value::Constant(bits) => bits,
        };
        let r = &mut frame.registers;
        match line.op {
            Op::Label(_) => {}
            Op::Alu(alu, d, a, b) => {
                let (a, b) = (get(r, a), get(r, b));
                r[d] = match alu {
                    Alu::Move => a,
                    Alu::Add => a.wrapping_add(b),
                    Alu::Sub => a.wrapping_sub(b),
                    Alu::Mul => a.wrapping_mul(b),
                    Alu::And => a & b,
                    Alu::Or => a | b,
                    Alu::Xor => a ^ b,
                    Alu::ShiftLeft => a.checked_shl(b).unwrap_or(0),
                    Alu::ShiftRight => a.checked_shr(b).unwrap_or(0),
                    Alu::MinSigned => a.cast_signed().min(b.cast_signed()).cast_unsigned(),
                    Alu::MaxUnsigned => a.max(b),
                };
            }
            Op::Set(compare, p, a, b) => {
                let (a, b) = (get(r, a), get(r, b));
                frame.predicates[p] = match compare {
                    Compare::Equal => a == b,
                    Compare::NotEqual => a != b,
                    Compare::LessUnsigned => a < b,
                    Compare::GreaterSigned => a.cast_signed() > b.cast_signed(),
                };
            }
            Op::Select(d, a, b, p) => r[d] = if frame.predicates[p] { r[a] } else { r[b] },
            Op::Special(d, special) => {
                let [x, y, _] = program.block;
                r[d] = match special {
                    Special::TidX => thread.number % x,
                    Special::TidY => thread.number / x % y,
                    Special::TidZ => thread.number / x / y,
                    Special::Thread => thread.number,
                    Special::Lane => thread.number % 32,
                    Special::Cta => self.number,
                };
            }
            Op::LocalLoad(d, at) => r[d] = frame.local[(r[at] % LOCAL_WORDS) as usize],
            Op::LocalStore(value, at) => frame.local[(r[at] % LOCAL_WORDS) as usize] = r[value],
            Op::SharedLoad(d, distance) => {
                r[d] = self.own[((thread.number + distance) % count) as usize]
            }
            Op::SharedStore(value) => self.own[thread.number as usize] = r[value],
            Op::SharedSet(which, value) => self.accumulators[which] = r[value],
            Op::SharedReduce(which, value) => {
                self.accumulators[which] = combine(which, self.accumulators[which], r[value]);
            }
            Op::GlobalReduce(which, value, _) => {
                left.globals[which] = combine(which, left.globals[which], r[value]);
            }
            Op::SwapAdd(value) => {
                left.globals[SWAPPED] = left.globals[SWAPPED].wrapping_add(r[value])
            }
            Op::LockedAdd(value) => {
                left.globals[LOCKED] = left.globals[LOCKED].wrapping_add(r[value])
            }
            Op::Parameter(d, which) => r[d] = frame.parameters[which],
            Op::Jump(label) => frame.at = self.labels[&label],
            Op::Table(value, ref labels) => frame.at = self.labels[&labels[r[value] as usize]],
            Op::Call(callee, arguments, result) => {
                let parameters = arguments.map(|argument| r[argument]);
                thread.frames.push(Frame::new(program, callee, parameters, result));
            }
            Op::CallPointer(value, ref callees, arguments, result) => {
                let callee = callees[r[value] as usize];
                let parameters = arguments.map(|argument| r[argument]);
                thread.frames.push(Frame::new(program, callee, parameters, result));
            }
            Op::Return(value) => {
                let (value, result) = (r[value], frame.result);
                thread.frames.pop();
                thread.frames.last_mut().unwrap().registers[result] = value;
            }
            Op::Together(..) | Op::Barrier(_) => {
                frame.at -= 1;
                thread.state = State::Waits;
            }
            Op::Out(word, value) => left.out[base + word as usize] = r[value],
            Op::OutPredicate(word, p) => {
                left.out[base + word as usize] = u32::from(frame.predicates[p])
            }
            Op::OutShared(word, which) => left.out[base + word as usize] = self.accumulators[which],
            Op::Exit | Op::ExitByReturn => thread.state = State::Gone,
        }
    }

    fn frame(&mut self, index: usize) -> &mut Frame {
        self.threads[index].frames.last_mut().unwrap()
    }

    fn register(&mut self, index: usize, register: usize) -> u32 {
        self.frame(index).registers[register]
    }

    /// All threads wait or have exited: releases those whose partners have all arrived.
    fn meet(&mut self) -> bool {
        let mut any = false;
        for index in 0..self.threads.len() {
            if self.threads[index].state != State::Waits {
                continue;
            }
            any |= match *self.line(index) {
                Op::Together(together, members) => self.lanes_meet(index, together, members),
                Op::Barrier(_) => self.threads_meet(index),
                _ => unreachable!("nobody waits elsewhere"),
            };
        }
        any
    }

    fn lanes_meet(&mut self, index: usize, together: Together, members: usize) -> bool {
        let first = index / 32 * 32;
        let named = self.register(index, members);
        let (function, at) = (self.frame(index).function, self.frame(index).at);
        let mut here = Vec::new();
        for lane in 0..32 {
            let other = first + lane;
            if named >> lane & 1 == 0
                || other >= self.threads.len()
                || self.threads[other].state == State::Gone
            {
                continue;
            }
            let frame = self.threads[other].frames.last().unwrap();
            // The same instruction with the same members.
            if self.threads[other].state != State::Waits
                || (frame.function, frame.at) != (function, at)
                || frame.registers[members] != named
            {
                return false;
            }
            here.push(other);
        }
        assert!(here.contains(&index), "the generated program names others only");
        let (mut results, mut truths) = (Vec::new(), Vec::new());
        for &thread in &here {
            let (result, truth) = self.result(together, thread, &here);
            results.push(result);
            truths.push(truth);
        }
        let (target, predicate) = match together {
            Together::Shuffle(_, d, p, ..) | Together::MatchAll(d, p, _) => (Some(d), Some(p)),
            Together::Vote(_, p, _) => (None, Some(p)),
            Together::Ballot(d, ..) | Together::MatchAny(d, _) | Together::Reduce(_, d, _) => {
                (Some(d), None)
            }
            Together::Barrier => (None, None),
        };
        for (&thread, (result, truth)) in here.iter().zip(results.into_iter().zip(truths)) {
            let frame = self.frame(thread);
            if let Some(target) = target {
                frame.registers[target] = result;
            }
            if let Some(predicate) = predicate {
                frame.predicates[predicate] = truth;
            }
            frame.at += 1;
            self.threads[thread].state = State::Runs;
        }
        true
    }

    /// The result of one of the threads `here`.
    fn result(&mut self, together: Together, thread: usize, here: &[usize]) -> (u32, bool) {
        let mask = |threads: &mut dyn Iterator<Item = usize>| {
            threads.fold(0_u32, |all, t| all | 1 << (t % 32))
        };
        match together {
            Together::Barrier => (0, false),
            Together::Vote(kind, _, p) => {
                let votes = here
                    .iter()
                    .filter(|&&other| self.threads[other].frames.last().unwrap().predicates[p]);
                let votes = votes.count();
                let truth = match kind {
                    Vote::All => votes == here.len(),
                    Vote::Any => votes > 0,
                    Vote::Uniform => votes == 0 || votes == here.len(),
                };
                (0, truth)
            }
            Together::Ballot(_, p, negated) => {
                let votes = |&other: &usize| {
                    self.threads[other].frames.last().unwrap().predicates[p] != negated
                };
                (mask(&mut here.iter().copied().filter(votes)), false)
            }
            Together::MatchAny(_, a) => {
                let own = self.register(thread, a);
                let equal: Vec<usize> =
                    here.iter().copied().filter(|&other| self.register(other, a) == own).collect();
                (mask(&mut equal.into_iter()), false)
            }
            Together::MatchAll(_, _, a) => {
                let own = self.register(thread, a);
                let all = here.iter().all(|&other| self.register(other, a) == own);
                (if all { mask(&mut here.iter().copied()) } else { 0 }, all)
            }
            Together::Reduce(kind, _, a) => {
                let values: Vec<u32> = here.iter().map(|&other| self.register(other, a)).collect();
                let result = values.into_iter().reduce(|a, b| match kind {
                    Reduction::Add => a.wrapping_add(b),
                    Reduction::Min => a.cast_signed().min(b.cast_signed()).cast_unsigned(),
                    Reduction::Max => a.max(b),
                    Reduction::Xor => a ^ b,
                });
                (result.unwrap(), false)
            }
            Together::Shuffle(kind, _, _, a, b, segments) => {
                let lane = thread % 32;
                let b = match b {
                    Value::Register(r) => self.register(thread, r),
                    Value::Constant(bits) => bits,
                } as usize
                    % 32;
                // A segment is the lanes that agree in the bits of its mask.
                let segments = segments as usize;
                let same = |other: usize| other < 32 && other & segments == lane & segments;
                let (from, inside) = match kind {
                    Shuffle::Up => (lane.wrapping_sub(b), b <= lane && same(lane - b)),
                    Shuffle::Down => (lane + b, same(lane + b)),
                    // Butterflies reach back into earlier segments, and never past the end of their
                    // own.
                    Shuffle::Butterfly => (lane ^ b, (lane ^ b) <= (lane | (31 & !segments))),
                    Shuffle::Index => (lane & segments | b & !segments, true),
                };
                // Where the other lane takes no part PTX leaves the value open, and the emulated
                // GPU gives 0.
                let from = if inside { thread - lane + from } else { thread };
                (if here.contains(&from) { self.register(from, a) } else { 0 }, inside)
            }
        }
    }

    fn threads_meet(&mut self, index: usize) -> bool {
        let number = |cta: &mut Self, index: usize| match *cta.line(index) {
            Op::Barrier(
                Barrier::Whole | Barrier::Count(..) | Barrier::And(..) | Barrier::Or(..),
            ) => Some(0),
            Op::Barrier(Barrier::Counted) => Some(1),
            Op::Barrier(Barrier::Pair(id, _)) => Some(cta.register(index, id)),
            _ => None,
        };
        let Some(own) = number(self, index) else { return false };
        let mut here = Vec::new();
        for other in 0..self.threads.len() {
            if self.threads[other].state == State::Waits && number(self, other) == Some(own) {
                here.push(other);
            }
        }
        let alive = self.threads.iter().filter(|thread| thread.state != State::Gone).count();
        let complete = match *self.line(index) {
            Op::Barrier(Barrier::Pair(_, count)) => {
                // Threads are counted by whole warps.
                let wanted = self.register(index, count) as usize / 32;
                let members = self.threads.len().min((index / 64 + 1) * 64) - index / 64 * 64;
                here.len() == members && members.div_ceil(32) == wanted
            }
            _ => here.len() == alive,
        };
        if !complete {
            return false;
        }
        let votes: Vec<bool> = here
            .iter()
            .map(|&other| match *self.line(other) {
                Op::Barrier(Barrier::Count(_, p) | Barrier::And(_, p) | Barrier::Or(_, p)) => {
                    self.threads[other].frames.last().unwrap().predicates[p]
                }
                _ => false,
            })
            .collect();
        let count = votes.iter().filter(|&&vote| vote).count();
        for &other in &here {
            let op = self.line(other).clone();
            let frame = self.frame(other);
            match op {
                Op::Barrier(Barrier::Count(d, _)) => {
                    frame.registers[d] = u32::try_from(count).unwrap()
                }
                Op::Barrier(Barrier::And(d, _)) => frame.predicates[d] = count == votes.len(),
                Op::Barrier(Barrier::Or(d, _)) => frame.predicates[d] = count > 0,
                _ => {}
            }
            frame.at += 1;
            self.threads[other].state = State::Runs;
        }
        true
    }
}
