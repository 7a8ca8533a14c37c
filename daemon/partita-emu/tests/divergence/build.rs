//! Makes a program of a list of choices.
//!
//! Every choice is a number that is reduced to what is possible where it is needed; where the list
//! ends, all further choices are 0, which is always the simplest. So any list gives a program, and
//! a shorter list a simpler one.
//!
//! Programs are built so that what they leave behind depends on no order among threads: a thread
//! reads shared words of others only between barriers, accumulators know one operation each, and
//! instructions that lanes execute together name lanes of which the program has found out before
//! that they come there or exit.

use super::program::{
    ACCUMULATORS, Alu, Barrier, Compare, DATA, Function, LOCAL_WORDS, Line, Op, PARAMETERS,
    PREDICATES, Program, Reduction, Shuffle, Special, Together, Value, Vote,
};

struct Choices<'a> {
    list: &'a [u32],
    next: usize,
}

impl Choices<'_> {
    fn below(&mut self, count: usize) -> usize {
        let value = self.list.get(self.next).copied().unwrap_or(0);
        self.next += 1;
        value as usize % count
    }

    fn word(&mut self) -> u32 {
        let value = self.list.get(self.next).copied().unwrap_or(0);
        self.next += 1;
        // Small numbers meet each other more often.
        if value & 0x100 == 0 { value & 0xf } else { value }
    }

    fn flag(&mut self) -> bool {
        self.below(2) == 1
    }
}

/// Where a statement stands.
#[derive(Clone, Copy)]
struct Scope {
    /// Register with the lanes of the warp that are here and not gone, where the program keeps
    /// track of them.
    lanes: Option<usize>,
    /// How much deeper it may go.
    depth: u32,
    /// Labels behind and at the end of the innermost loop, where it may be left early.
    loop_labels: Option<(usize, usize)>,
    /// Whether the function may be left early.
    may_return: bool,
}

/// A function that calls may name.
#[derive(Clone, Copy)]
struct Callee {
    index: usize,
    /// Whether its lanes are kept track of.
    tracked: bool,
}

struct Builder<'a> {
    choices: Choices<'a>,
    function: Function,
    index: usize,
    callees: Vec<Callee>,
    labels: usize,
    exits: bool,
}

/// The program that a list of choices stands for.
pub fn build(block: [u32; 3], grid: [u32; 3], list: &[u32]) -> Program {
    let mut builder = Builder {
        choices: Choices { list, next: 0 },
        function: Function::default(),
        index: 0,
        callees: Vec::new(),
        labels: 0,
        exits: false,
    };
    builder.exits = builder.choices.flag();
    let count = builder.choices.below(4);
    let mut functions = Vec::new();
    // The last first: a function calls those behind it, and itself.
    for index in (1..=count).rev() {
        let tracked = builder.choices.flag();
        builder.begin(index);
        builder.function_body(tracked);
        functions.push(std::mem::take(&mut builder.function));
        builder.callees.push(Callee { index, tracked });
    }
    builder.begin(0);
    builder.kernel_body(block);
    functions.push(std::mem::take(&mut builder.function));
    functions.reverse();
    Program { functions, block, grid }
}

impl Builder<'_> {
    fn begin(&mut self, index: usize) {
        self.index = index;
        self.function = Function { lines: Vec::new(), registers: DATA, predicates: PREDICATES };
    }

    fn put(&mut self, op: Op) {
        self.function.lines.push(Line { guard: None, op });
    }

    fn put_if(&mut self, p: usize, negated: bool, op: Op) {
        self.function.lines.push(Line { guard: Some((p, negated)), op });
    }

    fn register(&mut self) -> usize {
        self.function.registers += 1;
        self.function.registers - 1
    }

    fn fresh_predicate(&mut self) -> usize {
        self.function.predicates += 1;
        self.function.predicates - 1
    }

    fn label(&mut self) -> usize {
        self.labels += 1;
        self.labels
    }

    fn data(&mut self) -> usize {
        self.choices.below(DATA)
    }

    fn predicate(&mut self) -> usize {
        self.choices.below(PREDICATES)
    }

    fn value(&mut self) -> Value {
        if self.choices.flag() {
            Value::Constant(self.choices.word())
        } else {
            Value::Register(self.data())
        }
    }

    fn set(&mut self, register: usize, bits: u32) {
        self.put(Op::Alu(Alu::Move, register, Value::Constant(bits), Value::Constant(0)));
    }

    fn copy(&mut self, to: usize, from: usize) {
        self.put(Op::Alu(Alu::Move, to, Value::Register(from), Value::Constant(0)));
    }

    /// A fresh register with the low bits of one of the thread's.
    fn low_bits(&mut self, mask: u32) -> usize {
        let (register, from) = (self.register(), self.data());
        self.put(Op::Alu(Alu::And, register, Value::Register(from), Value::Constant(mask)));
        register
    }

    fn ballot(&mut self, members: usize, p: usize, negated: bool) -> usize {
        let register = self.register();
        self.put(Op::Together(Together::Ballot(register, p, negated), members));
        register
    }

    fn fill_local(&mut self) {
        let at = self.register();
        for word in 0..LOCAL_WORDS {
            self.set(at, word);
            self.put(Op::LocalStore(word as usize, at));
        }
    }

    fn function_body(&mut self, tracked: bool) {
        for register in 0..2 {
            self.put(Op::Parameter(register, register));
        }
        for (register, special) in (2..).zip([
            Special::TidX,
            Special::Thread,
            Special::Lane,
            Special::TidY,
            Special::Cta,
            Special::TidZ,
        ]) {
            self.put(Op::Special(register, special));
        }
        for p in 0..PREDICATES {
            self.put(Op::Set(Compare::LessUnsigned, p, Value::Register(p), Value::Register(p + 1)));
        }
        self.fill_local();
        let (depth, lanes) = (self.register(), self.register());
        self.put(Op::Parameter(depth, PARAMETERS - 2));
        self.put(Op::Parameter(lanes, PARAMETERS - 1));
        let lanes = tracked.then_some(lanes);
        let scope = Scope { lanes, depth: 2, loop_labels: None, may_return: !tracked };
        self.block(scope);
        if self.choices.flag() {
            self.recurse(depth, lanes);
            self.block(scope);
        }
        let result = self.data();
        self.put(Op::Return(result));
    }

    fn recurse(&mut self, depth: usize, lanes: Option<usize>) {
        let (over, end, less) = (self.label(), self.fresh_predicate(), self.register());
        self.put(Op::Set(Compare::Equal, end, Value::Register(depth), Value::Constant(0)));
        let lanes = lanes.map(|lanes| self.ballot(lanes, end, true));
        self.put_if(end, false, Op::Jump(over));
        self.put(Op::Alu(Alu::Sub, less, Value::Register(depth), Value::Constant(1)));
        let arguments = [self.data(), self.data(), less, lanes.unwrap_or(0)];
        let result = self.data();
        self.put(Op::Call(self.index, arguments, result));
        self.put(Op::Label(over));
    }

    fn kernel_body(&mut self, block: [u32; 3]) {
        let specials = [
            Special::Thread,
            Special::Lane,
            Special::TidX,
            Special::Cta,
            Special::TidY,
            Special::TidZ,
        ];
        for (register, special) in specials.into_iter().enumerate() {
            self.put(Op::Special(register, special));
        }
        for register in specials.len()..DATA {
            let bits = self.choices.word();
            self.set(register, bits);
        }
        let thread = self.register();
        self.put(Op::Special(thread, Special::Thread));
        for p in 0..PREDICATES {
            let bits = Value::Constant(self.choices.word());
            self.put(Op::Set(Compare::LessUnsigned, p, Value::Register(p), bits));
        }
        self.fill_local();
        self.put(Op::SharedStore(1));
        let (first, truth, word) =
            (self.fresh_predicate(), self.fresh_predicate(), self.register());
        self.put(Op::Set(Compare::Equal, first, Value::Register(thread), Value::Constant(0)));
        for which in 0..ACCUMULATORS.len() {
            let bits = self.choices.word();
            self.set(word, bits);
            self.put_if(first, false, Op::SharedSet(which, word));
        }
        self.set(word, u32::MAX);
        self.put(Op::Set(Compare::Equal, truth, Value::Constant(0), Value::Constant(0)));
        let lanes = self.ballot(word, truth, false);
        self.put(Op::Barrier(Barrier::Whole));
        let scope = Scope { lanes: Some(lanes), depth: 3, loop_labels: None, may_return: false };
        for _ in 0..=self.choices.below(4) {
            self.block(scope);
            self.meet(scope, thread, block.iter().product());
        }
        self.block(scope);
        self.put(Op::Barrier(Barrier::Whole));
        let mut word = 0;
        let mut next = || {
            word += 1;
            word - 1
        };
        for register in 0..DATA {
            self.put(Op::Out(next(), register));
        }
        for p in 0..PREDICATES {
            self.put(Op::OutPredicate(next(), p));
        }
        for which in 0..ACCUMULATORS.len() {
            self.put(Op::OutShared(next(), which));
        }
        self.put(Op::OutPredicate(next(), truth));
        let plain = self.choices.flag();
        self.put(if plain { Op::Exit } else { Op::ExitByReturn });
    }

    /// Something for which all threads of the CTA come together.
    fn meet(&mut self, scope: Scope, thread: usize, threads: u32) {
        match self.choices.below(8) {
            0 => self.put(Op::Barrier(Barrier::Whole)),
            1 | 2 => self.exchange(threads),
            3 => {
                let barrier = Barrier::Count(self.data(), self.predicate());
                self.put(Op::Barrier(barrier));
            }
            4 => {
                let barrier = Barrier::And(self.predicate(), self.predicate());
                self.put(Op::Barrier(barrier));
            }
            5 => {
                let barrier = Barrier::Or(self.predicate(), self.predicate());
                self.put(Op::Barrier(barrier));
            }
            6 => {
                // A loop whose every turn meets.
                let (head, count, more) = (self.label(), self.register(), self.fresh_predicate());
                let turns = self.choices.below(3) as u32 + 1;
                self.set(count, turns);
                self.put(Op::Label(head));
                self.block(scope);
                self.exchange(threads);
                self.put(Op::Alu(Alu::Sub, count, Value::Register(count), Value::Constant(1)));
                self.put(Op::Set(
                    Compare::NotEqual,
                    more,
                    Value::Register(count),
                    Value::Constant(0),
                ));
                self.put_if(more, false, Op::Jump(head));
            }
            // Threads that exit are not counted in.
            _ if self.exits => self.put(Op::Barrier(Barrier::Whole)),
            _ => {
                if self.choices.flag() {
                    self.put(Op::Barrier(Barrier::Counted));
                    return;
                }
                let (id, count, alone) = (self.register(), self.register(), self.fresh_predicate());
                self.put(Op::Alu(Alu::ShiftRight, id, Value::Register(thread), Value::Constant(6)));
                // The last warp of an odd number has no partner.
                let last = if threads.div_ceil(32) % 2 == 1 { threads / 64 } else { u32::MAX };
                self.put(Op::Set(
                    Compare::Equal,
                    alone,
                    Value::Register(id),
                    Value::Constant(last),
                ));
                self.put(Op::Alu(Alu::Add, id, Value::Register(id), Value::Constant(2)));
                self.set(count, 64);
                let half = Op::Alu(Alu::Move, count, Value::Constant(32), Value::Constant(0));
                self.put_if(alone, false, half);
                self.put(Op::Barrier(Barrier::Pair(id, count)));
            }
        }
    }

    fn exchange(&mut self, threads: u32) {
        let (from, to, distance) = (self.data(), self.data(), self.choices.word() % threads);
        self.put(Op::SharedStore(from));
        self.put(Op::Barrier(Barrier::Whole));
        self.put(Op::SharedLoad(to, distance));
        self.put(Op::Barrier(Barrier::Whole));
    }

    fn block(&mut self, scope: Scope) {
        for _ in 0..self.choices.below(4) {
            self.statement(scope);
        }
    }

    fn statement(&mut self, scope: Scope) {
        let deeper = Scope { depth: scope.depth.saturating_sub(1), ..scope };
        let choice = self.choices.below(20);
        match choice {
            4..=12 if scope.depth == 0 => self.simple(),
            4..=6 => self.branch(deeper),
            7 | 8 => self.repeat(deeper),
            9 => self.switch(deeper),
            10 => self.spaghetti(),
            11 | 12 => self.call(scope),
            13 => self.leave(scope),
            14..=19 => match scope.lanes {
                Some(lanes) => self.together(lanes),
                None => self.simple(),
            },
            _ => self.simple(),
        }
    }

    fn simple(&mut self) {
        for _ in 0..=self.choices.below(4) {
            let op = self.simple_op();
            if self.choices.below(4) == 3 {
                let (p, negated) = (self.predicate(), self.choices.flag());
                self.put_if(p, negated, op);
            } else {
                self.put(op);
            }
        }
    }

    fn simple_op(&mut self) -> Op {
        const ALUS: [Alu; 11] = [
            Alu::Move,
            Alu::Add,
            Alu::Sub,
            Alu::Mul,
            Alu::And,
            Alu::Or,
            Alu::Xor,
            Alu::ShiftLeft,
            Alu::ShiftRight,
            Alu::MinSigned,
            Alu::MaxUnsigned,
        ];
        const COMPARES: [Compare; 4] =
            [Compare::Equal, Compare::NotEqual, Compare::LessUnsigned, Compare::GreaterSigned];
        let accumulator = |builder: &mut Self| builder.choices.below(ACCUMULATORS.len());
        match self.choices.below(24) {
            0..=8 => {
                let alu = ALUS[self.choices.below(ALUS.len())];
                Op::Alu(alu, self.data(), self.value(), self.value())
            }
            9..=13 => {
                let compare = COMPARES[self.choices.below(COMPARES.len())];
                Op::Set(compare, self.predicate(), self.value(), self.value())
            }
            14 => Op::Select(self.data(), self.data(), self.data(), self.predicate()),
            15 => Op::LocalLoad(self.data(), self.data()),
            16 => Op::LocalStore(self.data(), self.data()),
            17 => Op::SharedLoad(self.data(), 0),
            18 => Op::SharedStore(self.data()),
            19 | 20 => Op::SharedReduce(accumulator(self), self.data()),
            21 => Op::GlobalReduce(accumulator(self), self.data(), self.choices.flag()),
            22 => Op::SwapAdd(self.data()),
            _ => Op::LockedAdd(self.data()),
        }
    }

    fn branch(&mut self, scope: Scope) {
        let (p, negated) = (self.predicate(), self.choices.flag());
        let two = self.choices.flag();
        let (other, end) = (self.label(), self.label());
        let lanes = scope
            .lanes
            .map(|lanes| (self.ballot(lanes, p, negated), self.ballot(lanes, p, !negated)));
        self.put_if(p, !negated, Op::Jump(other));
        self.block(Scope { lanes: lanes.map(|(here, _)| here), ..scope });
        if two {
            self.put(Op::Jump(end));
        }
        self.put(Op::Label(other));
        if two {
            self.block(Scope { lanes: lanes.map(|(_, there)| there), ..scope });
        }
        self.put(Op::Label(end));
    }

    fn repeat(&mut self, scope: Scope) {
        let lanes = scope.lanes.filter(|_| !self.choices.flag());
        let first = self.choices.flag();
        let (head, next, end) = (self.label(), self.label(), self.label());
        let (count, more) = (self.low_bits(3), self.fresh_predicate());
        let inside = lanes.map(|lanes| {
            let inside = self.register();
            self.copy(inside, lanes);
            inside
        });
        let body =
            Scope { lanes: inside, loop_labels: inside.is_none().then_some((end, next)), ..scope };
        let check = |builder: &mut Self| {
            builder.put(Op::Set(
                Compare::GreaterSigned,
                more,
                Value::Register(count),
                Value::Constant(0),
            ));
            if let Some(inside) = inside {
                builder.put(Op::Together(Together::Ballot(inside, more, false), inside));
            }
        };
        let less = Op::Alu(Alu::Sub, count, Value::Register(count), Value::Constant(1));
        self.put(Op::Label(head));
        if first {
            check(self);
            self.put_if(more, true, Op::Jump(end));
            self.block(body);
            self.put(Op::Label(next));
            self.put(less);
            self.put(Op::Jump(head));
        } else {
            self.block(body);
            self.put(Op::Label(next));
            self.put(less);
            check(self);
            self.put_if(more, false, Op::Jump(head));
        }
        self.put(Op::Label(end));
    }

    fn switch(&mut self, scope: Scope) {
        let lanes = scope.lanes.filter(|_| !self.choices.flag());
        let index = self.low_bits(3);
        let cases: Vec<usize> = (0..4).map(|_| self.label()).collect();
        let end = self.label();
        let group = lanes.map(|lanes| {
            let group = self.register();
            self.put(Op::Together(Together::MatchAny(group, index), lanes));
            group
        });
        if lanes.is_none() && self.choices.flag() {
            let (p, negated) = (self.predicate(), self.choices.flag());
            let table = (0..4).map(|_| cases[self.choices.below(4)]).collect();
            self.put_if(p, negated, Op::Table(index, table));
            self.put(Op::Jump(end));
        } else {
            self.put(Op::Table(index, cases.clone()));
        }
        for case in cases {
            self.put(Op::Label(case));
            self.block(Scope { lanes: group, ..scope });
            if lanes.is_some() || self.choices.below(3) != 0 {
                self.put(Op::Jump(end));
            }
        }
        self.put(Op::Label(end));
    }

    /// Blocks with branches from anywhere to anywhere, entered at two places, left when the fuel is
    /// used up.
    fn spaghetti(&mut self) {
        let count = 2 + self.choices.below(4);
        let labels: Vec<usize> = (0..count).map(|_| self.label()).collect();
        let end = self.label();
        let (fuel, empty) = (self.low_bits(7), self.fresh_predicate());
        self.put(Op::Alu(Alu::Add, fuel, Value::Register(fuel), Value::Constant(2)));
        let (p, negated, to) = (self.predicate(), self.choices.flag(), self.choices.below(count));
        self.put_if(p, negated, Op::Jump(labels[to]));
        for &label in &labels {
            self.put(Op::Label(label));
            self.simple();
            self.put(Op::Alu(Alu::Sub, fuel, Value::Register(fuel), Value::Constant(1)));
            self.put(Op::Set(Compare::Equal, empty, Value::Register(fuel), Value::Constant(0)));
            self.put_if(empty, false, Op::Jump(end));
            match self.choices.below(4) {
                0 => {}
                1 => {
                    let (p, negated, to) =
                        (self.predicate(), self.choices.flag(), self.choices.below(count));
                    self.put_if(p, negated, Op::Jump(labels[to]));
                }
                2 => {
                    let index = self.low_bits(3);
                    let table = (0..4).map(|_| labels[self.choices.below(count)]).collect();
                    self.put(Op::Table(index, table));
                }
                _ => {
                    let to = self.choices.below(count);
                    self.put(Op::Jump(labels[to]));
                }
            }
        }
        self.put(Op::Label(end));
    }

    fn call(&mut self, scope: Scope) {
        let known: Vec<Callee> = self
            .callees
            .iter()
            .copied()
            .filter(|callee| scope.lanes.is_some() || !callee.tracked)
            .collect();
        if known.is_empty() {
            return self.simple();
        }
        let callee = known[self.choices.below(known.len())];
        let depth = self.low_bits(3);
        let (a, b, result) = (self.data(), self.data(), self.data());
        let lanes = scope.lanes.unwrap_or(0);
        match self.choices.below(3) {
            1 => {
                // Through a pointer that differs from lane to lane.
                let other = known[self.choices.below(known.len())];
                let index = self.low_bits(1);
                let mut group = lanes;
                if callee.tracked || other.tracked {
                    group = self.register();
                    self.put(Op::Together(Together::MatchAny(group, index), lanes));
                }
                let callees = vec![callee.index, other.index];
                self.put(Op::CallPointer(index, callees, [a, b, depth, group], result));
            }
            2 if !callee.tracked => {
                let (p, negated) = (self.predicate(), self.choices.flag());
                self.put_if(p, negated, Op::Call(callee.index, [a, b, depth, lanes], result));
            }
            _ => self.put(Op::Call(callee.index, [a, b, depth, lanes], result)),
        }
    }

    /// `exit`, a return, a way out of a loop: where it is possible.
    fn leave(&mut self, scope: Scope) {
        let (p, negated) = (self.predicate(), self.choices.flag());
        // Two conditions at once hold more rarely.
        let both = self.fresh_predicate();
        self.put(Op::Set(Compare::Equal, both, Value::Constant(0), Value::Constant(1)));
        let (value, bits) = (self.data(), self.choices.word() & 7);
        self.put_if(
            p,
            negated,
            Op::Set(Compare::Equal, both, Value::Register(value), Value::Constant(bits)),
        );
        match (self.choices.below(3), scope.loop_labels) {
            (0, Some((end, next))) => {
                let to = if self.choices.flag() { end } else { next };
                self.put_if(both, false, Op::Jump(to));
            }
            (1, _) if scope.may_return => {
                let value = self.data();
                self.put_if(both, false, Op::Return(value));
            }
            _ if self.exits => {
                if self.index == 0 {
                    let (a, b) = (self.data(), self.data());
                    self.put_if(both, false, Op::Out(20, a));
                    self.put_if(both, false, Op::Out(21, b));
                }
                let plain = self.index != 0 || self.choices.flag();
                self.put_if(both, false, if plain { Op::Exit } else { Op::ExitByReturn });
            }
            _ => {}
        }
    }

    fn together(&mut self, lanes: usize) {
        let op = match self.choices.below(10) {
            0 => Together::Barrier,
            1..=3 => {
                let kinds = [Shuffle::Up, Shuffle::Down, Shuffle::Butterfly, Shuffle::Index];
                let (kind, segments) =
                    (kinds[self.choices.below(4)], [0, 0x10, 0x18, 0x1c][self.choices.below(4)]);
                Together::Shuffle(
                    kind,
                    self.data(),
                    self.predicate(),
                    self.data(),
                    self.value(),
                    segments,
                )
            }
            4 => {
                let kinds = [Vote::All, Vote::Any, Vote::Uniform];
                Together::Vote(kinds[self.choices.below(3)], self.predicate(), self.predicate())
            }
            5 => Together::Ballot(self.data(), self.predicate(), self.choices.flag()),
            6 => Together::MatchAny(self.data(), self.data()),
            7 => Together::MatchAll(self.data(), self.predicate(), self.data()),
            _ => {
                let kinds = [Reduction::Add, Reduction::Min, Reduction::Max, Reduction::Xor];
                Together::Reduce(kinds[self.choices.below(4)], self.data(), self.data())
            }
        };
        match self.choices.below(4) {
            // Groups of lanes, each for itself, at one instruction. What `shfl` reads in another
            // group is undefined.
            1 if !matches!(op, Together::Shuffle(..)) => {
                let (group, index) = (self.register(), self.low_bits(3));
                self.put(Op::Together(Together::MatchAny(group, index), lanes));
                self.put(Op::Together(op, group));
            }
            // Only lanes whose predicate is true.
            2 => {
                let (p, negated) = (self.predicate(), self.choices.flag());
                let group = self.ballot(lanes, p, negated);
                self.put_if(p, negated, Op::Together(op, group));
            }
            _ => self.put(Op::Together(op, lanes)),
        }
    }
}
