//! How a barrier that is polled opens.
//!
//! | word | what it holds |
//! | --- | --- |
//! | cell of a barrier, 64 bits | which warps wait; how many threads have come, and their votes |
//! | turns | a bit for each warp, which changes when the barrier opens at which the warp waits |
//! | box of a warp | the votes at the last barrier of the warp |
//! | exits | how many threads have exited |
//!
//! One lane comes for its warp: it adds the warp's threads and votes to the cell. If the barrier is
//! full then, the lane empties the cell, writes the votes to the boxes of all warps that waited,
//! and turns their bits. A warp's bit and box change only while the warp waits, so no later opening
//! disturbs its reading.
//!
//! Threads of a warp may come apart (`barrier.sync`). Each of them then notes its lane in a word of
//! the warp. As soon as only exited lanes are missing, one of the waiting lanes clears the word and
//! comes for the warp. It is a single lane, because it clears the word by compare-and-swap.
//!
//! Stores before a barrier are visible behind it: fences stand before a warp comes, before bits
//! turn, and behind the wait (PTX ISA, "Causality Order").

use crate::ir::{Base, Form, Guard, Mod, Operand, Part, Pos, Reg, Special, Type};

use super::code::{Code, unless, when};
use super::words::Place;

/// Barriers of a CTA (PTX ISA, "bar, barrier"), with a cell each.
const BARRIERS: u32 = 16;
/// Warps of the largest CTA.
const WARPS: u32 = 32;
/// Where the number of threads that have exited stands among the words, in bytes.
const EXITS: u32 = 8 * BARRIERS;
/// Where the turns stand.
const TURNS: u32 = EXITS + 4;
/// Where the boxes begin.
const BOXES: u32 = EXITS + 16;
/// Where the lanes that have come apart begin.
const COME: u32 = BOXES + 4 * WARPS;
/// Where the lanes that have exited begin.
const GONE: u32 = COME + 4 * WARPS;
/// Where the votes of lanes that have come apart begin.
const VOTES: u32 = GONE + 4 * WARPS;
/// From this bit on a cell's upper half counts threads. Votes are below.
const COUNT: u64 = 16;
/// All lanes of a warp.
const ALL: Operand = Operand::Int(0xffff_ffff);

/// What a module's barriers need.
#[derive(Clone, Copy, Debug)]
pub(super) struct Needs {
    /// Threads vote.
    pub votes: bool,
    /// Threads of a warp may come apart.
    pub apart: bool,
}

impl Needs {
    /// The bytes of the words.
    pub(super) fn bytes(self) -> u32 {
        match self {
            Needs { apart: true, .. } => VOTES + 4 * WARPS,
            Needs { votes: true, .. } => COME,
            Needs { .. } => BOXES,
        }
    }
}

/// A barrier that may be polled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Barrier {
    pub number: Operand,
    /// Its threads, if it counts them.
    pub count: Option<Operand>,
    pub reduction: Option<Reduction>,
    /// Whether the warp's threads come together.
    pub is_aligned: bool,
    pub waits: bool,
}

/// What the threads of a barrier vote on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reduction {
    result: Operand,
    vote: Operand,
    how: How,
}

/// What becomes of the votes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    Count,
    Any,
    All,
}

impl Reduction {
    /// The reduction of an instruction (PTX ISA, "barrier.red").
    pub(super) fn of(form: &Form, operands: &[Operand]) -> Option<Reduction> {
        let (&[result, ..], &[.., vote]) = (operands, operands) else { return None };
        let how = match () {
            () if form.has(Mod::Popc) => How::Count,
            () if form.has(Mod::Or) => How::Any,
            () if form.has(Mod::And) => How::All,
            () => return None,
        };
        Some(Reduction { result, vote, how })
    }
}

/// Registers of one body.
pub(super) struct Regs {
    needs: Needs,
    place: Place,
    /// The address of the first word.
    words: Reg,
    /// The CTA's threads.
    threads: Reg,
    /// The thread's number in the CTA.
    thread: Reg,
    /// The address of the warp's words, less where the first of them begins.
    own: Reg,
    /// The warp's bit among the CTA's warps.
    warp: Reg,
    /// The thread's bit among the warp's lanes.
    lane: Reg,
    /// Lanes that the warp never had.
    absent: Reg,
    cell: Reg,
    /// The threads at which the barrier opens.
    limit: Reg,
    /// The threads that come with this one.
    share: Reg,
    votes: Reg,
    /// The turns when the thread came.
    turns: Reg,
    mask: Reg,
    count: Reg,
    old: Reg,
    new: Reg,
    seen: Reg,
    next: Reg,
    got: Reg,
    is: Reg,
    full: Reg,
}

fn int(value: u64) -> Operand {
    Operand::Int(value)
}

impl Regs {
    pub(super) fn new(code: &mut Code<'_>, place: Place, needs: Needs) -> Regs {
        let mut word = |stem: &str| code.reg(stem, Type::B32);
        let [words, own] = ["%pw_words", "%pw_own"].map(&mut word);
        let [threads, thread] = ["%pw_threads", "%pw_thread"].map(&mut word);
        let [warp, lane, absent] = ["%pw_warp", "%pw_lane", "%pw_absent"].map(&mut word);
        let [cell, limit, share] = ["%pw_cell", "%pw_limit", "%pw_share"].map(&mut word);
        let [votes, turns, mask] = ["%pw_votes", "%pw_turns", "%pw_mask"].map(&mut word);
        let [count, old, new] = ["%pw_count", "%pw_old", "%pw_new"].map(&mut word);
        let [seen, next, got] =
            ["%pw_seen", "%pw_next", "%pw_got"].map(|stem| code.reg(stem, Type::B64));
        let [is, full] = ["%pw_is", "%pw_full"].map(|stem| code.reg(stem, Type::Pred));
        #[rustfmt::skip]
        let regs = Regs {
            needs, place, words, threads, thread, own, warp, lane, absent, cell, limit, share,
            votes, turns, mask, count, old, new, seen, next, got, is, full,
        };
        regs
    }

    /// A word among those of the thread's warp.
    fn of_warp(&self, at: u32) -> Operand {
        Operand::Mem(Base::Reg(self.own), at.cast_signed())
    }

    fn first_word(&self) -> Operand {
        Operand::Reg(self.words)
    }

    /// A word of the whole CTA.
    fn of_cta(&self, at: u32) -> Operand {
        Operand::Mem(Base::Reg(self.words), at.cast_signed())
    }

    fn the_cell(&self) -> Operand {
        Operand::Mem(Base::Reg(self.cell), 0)
    }

    /// What a body begins with: who the thread is and, in a kernel, words of zero.
    pub(super) fn begin(&self, code: &mut Code<'_>, is_kernel: bool) {
        let [threads, thread, own] = [self.threads, self.thread, self.own].map(Operand::Reg);
        let [warp, lane, absent] = [self.warp, self.lane, self.absent].map(Operand::Reg);
        let [old, new, is] = [self.old, self.new, self.is].map(Operand::Reg);
        self.place.find(code, [self.first_word(), old]);
        code.number_threads([thread, threads, old]);
        code.say("shr.u32", &[new, thread, int(5)]);
        code.say("mov.u32", &[warp, int(1)]);
        code.say("shl.b32", &[warp, warp, new]);
        code.say("mov.u32", &[own, self.first_word()]);
        code.say("shl.b32", &[old, new, int(2)]);
        code.say("add.u32", &[own, own, old]);
        if self.needs.apart {
            code.say("mov.u32", &[old, Operand::Special(Special::Laneid, Part::Whole)]);
            code.say("mov.u32", &[lane, int(1)]);
            code.say("shl.b32", &[lane, lane, old]);
            // Only the last warp may lack lanes.
            code.say("and.b32", &[old, threads, int(31)]);
            code.say("mov.u32", &[absent, ALL]);
            code.say("shl.b32", &[absent, absent, old]);
            code.say("shr.u32", &[old, threads, int(5)]);
            code.say("setp.ne.u32", &[is, old, new]);
            code.say("mov.u32", &[absent, int(0)]);
            code.only(when(self.is));
        }
        if is_kernel {
            self.clear(code);
        }
    }

    /// The CTA's threads clear the words together, and wait for one another.
    fn clear(&self, code: &mut Code<'_>) {
        let [old, new, is] = [self.old, self.new, self.is].map(Operand::Reg);
        let words = u64::from(self.needs.bytes() / 4);
        let (again, done) = (code.label(), code.label());
        code.say("mov.u32", &[old, Operand::Reg(self.thread)]);
        code.place(again);
        code.say("setp.ge.u32", &[is, old, int(words)]);
        code.go_if(when(self.is), done);
        code.say("mov.u32", &[new, self.first_word()]);
        code.say("mad.lo.u32", &[new, old, int(4), new]);
        code.say("st.shared.u32", &[Operand::Mem(Base::Reg(self.new), 0), int(0)]);
        code.say("add.u32", &[old, old, Operand::Reg(self.threads)]);
        code.go(again);
        code.place(done);
        code.say("bar.sync", &[int(0)]);
    }

    /// What a thread does before it exits.
    pub(super) fn exit(&self, code: &mut Code<'_>) {
        code.say("red.shared.add.u32", &[self.of_cta(EXITS), int(1)]);
        if self.needs.apart {
            code.say("red.shared.or.b32", &[self.of_warp(GONE), Operand::Reg(self.lane)]);
        }
    }

    /// Passes a barrier. The loop in which threads wait has a place in the program's text, so
    /// [`mod@crate::cancel`] adds a look at the abort flag.
    pub(super) fn pass(&self, code: &mut Code<'_>, barrier: &Barrier, pos: Pos) {
        let [cell, turns, new] = [self.cell, self.turns, self.new].map(Operand::Reg);
        self.find_limit(code, barrier);
        code.say("mov.u32", &[cell, self.first_word()]);
        code.say("mov.u32", &[new, barrier.number]);
        code.say("and.b32", &[new, new, int(u64::from(BARRIERS) - 1)]);
        code.say("shl.b32", &[new, new, int(3)]);
        code.say("add.u32", &[cell, cell, new]);
        // Every thread has read the turns before its warp comes.
        code.say("ld.volatile.shared.u32", &[turns, self.of_cta(TURNS)]);
        match barrier.is_aligned {
            true => self.come_together(code, barrier),
            false => self.come_apart(code, barrier),
        }
        if barrier.waits || !barrier.is_aligned {
            self.wait(code, barrier, pos);
        }
        if let Some(Reduction { result, how, .. }) = barrier.reduction {
            let votes = Operand::Reg(self.votes);
            code.say("ld.volatile.shared.u32", &[votes, self.of_warp(BOXES)]);
            match how {
                How::Count => code.say("mov.u32", &[result, votes]),
                How::Any => code.say("setp.ne.u32", &[result, votes, int(0)]),
                How::All => code.say("setp.eq.u32", &[result, votes, int(0)]),
            }
        }
    }

    /// Waits until the warp's bit turns.
    fn wait(&self, code: &mut Code<'_>, barrier: &Barrier, pos: Pos) {
        let [turns, new, is] = [self.turns, self.new, self.is].map(Operand::Reg);
        let (again, done) = (code.label(), code.label());
        code.place(again);
        code.say("ld.volatile.shared.u32", &[new, self.of_cta(TURNS)]);
        code.say("xor.b32", &[new, new, turns]);
        code.say("and.b32", &[new, new, Operand::Reg(self.warp)]);
        code.say("setp.ne.u32", &[is, new, int(0)]);
        code.go_if(when(self.is), done);
        if !barrier.is_aligned {
            self.gather(code, barrier);
        }
        if barrier.count.is_none() {
            self.open_for_the_rest(code, barrier);
        }
        code.say("nanosleep.u32", &[int(20)]);
        code.go(again);
        code.at(pos);
        code.place(done);
        code.say("fence.acq_rel.cta", &[]);
        if barrier.is_aligned {
            code.say("bar.warp.sync", &[ALL]);
        }
    }

    fn find_limit(&self, code: &mut Code<'_>, barrier: &Barrier) {
        let limit = Operand::Reg(self.limit);
        match barrier.count {
            Some(count) => code.say("mov.u32", &[limit, count]),
            None => {
                code.say("ld.volatile.shared.u32", &[limit, self.of_cta(EXITS)]);
                code.say("sub.u32", &[limit, Operand::Reg(self.threads), limit]);
            }
        }
    }

    /// Where a thread votes for what is looked for: all agree where nobody votes against it.
    fn vote(&self, code: &mut Code<'_>, reduction: Reduction) -> Guard {
        let (reg, negated) = match reduction.vote {
            Operand::Reg(reg) => (reg, false),
            Operand::Not(reg) => (reg, true),
            constant => {
                let [old, full] = [self.old, self.full].map(Operand::Reg);
                code.say("mov.u32", &[old, constant]);
                code.say("setp.ne.u32", &[full, old, int(0)]);
                (self.full, false)
            }
        };
        Guard { reg, negated: negated != (reduction.how == How::All) }
    }

    /// One lane comes for the warp.
    fn come_together(&self, code: &mut Code<'_>, barrier: &Barrier) {
        let [old, new, is] = [self.old, self.new, self.is].map(Operand::Reg);
        let [share, votes] = [self.share, self.votes].map(Operand::Reg);
        let follow = code.label();
        match barrier.reduction {
            Some(reduction) => {
                let Guard { reg, negated } = self.vote(code, reduction);
                let vote = if negated { Operand::Not(reg) } else { Operand::Reg(reg) };
                code.say("vote.sync.ballot.b32", &[votes, vote, ALL]);
                code.say("popc.b32", &[votes, votes]);
            }
            None => code.say("mov.u32", &[votes, int(0)]),
        }
        code.say("mov.u32", &[old, Operand::Special(Special::Laneid, Part::Whole)]);
        code.say("setp.lt.u32", &[is, old, int(32)]);
        code.say("vote.sync.ballot.b32", &[new, is, ALL]);
        match barrier.count {
            Some(_) => code.say("mov.u32", &[share, int(32)]),
            None => code.say("popc.b32", &[share, new]),
        }
        code.say("bfind.u32", &[new, new]);
        code.say("setp.ne.u32", &[is, old, new]);
        code.say("bar.warp.sync", &[ALL]);
        code.say("fence.acq_rel.cta", &[]);
        code.go_if(when(self.is), follow);
        self.come(code, barrier);
        code.place(follow);
    }

    /// The thread notes its lane, and its vote before that.
    fn come_apart(&self, code: &mut Code<'_>, barrier: &Barrier) {
        if let Some(reduction) = barrier.reduction {
            let vote = self.vote(code, reduction);
            code.say("red.shared.add.u32", &[self.of_warp(VOTES), int(1)]);
            code.only(vote);
        }
        code.say("fence.acq_rel.cta", &[]);
        code.say("red.shared.or.b32", &[self.of_warp(COME), Operand::Reg(self.lane)]);
    }

    /// If no lane is missing, one of the waiting lanes comes for the warp.
    fn gather(&self, code: &mut Code<'_>, barrier: &Barrier) {
        let [old, new, is] = [self.old, self.new, self.is].map(Operand::Reg);
        let [share, votes] = [self.share, self.votes].map(Operand::Reg);
        let wait = code.label();
        code.say("ld.volatile.shared.u32", &[old, self.of_warp(COME)]);
        code.say("ld.volatile.shared.u32", &[new, self.of_warp(GONE)]);
        code.say("or.b32", &[new, new, old]);
        code.say("or.b32", &[new, new, Operand::Reg(self.absent)]);
        code.say("setp.ne.u32", &[is, old, int(0)]);
        code.say("setp.eq.and.u32", &[is, new, ALL, is]);
        code.go_if(unless(self.is), wait);
        code.say("atom.shared.cas.b32", &[new, self.of_warp(COME), old, int(0)]);
        code.say("setp.eq.u32", &[is, new, old]);
        code.go_if(unless(self.is), wait);
        match barrier.count {
            Some(_) => code.say("mov.u32", &[share, int(32)]),
            None => code.say("popc.b32", &[share, old]),
        }
        code.say("fence.acq_rel.cta", &[]);
        match barrier.reduction {
            Some(_) => {
                code.say("atom.shared.exch.b32", &[votes, self.of_warp(VOTES), int(0)]);
            }
            None => code.say("mov.u32", &[votes, int(0)]),
        }
        self.come(code, barrier);
        code.place(wait);
    }

    /// Adds the warp's threads and votes to the cell. The lane that fills the cell opens the
    /// barrier.
    fn come(&self, code: &mut Code<'_>, barrier: &Barrier) {
        let [share, votes, limit] = [self.share, self.votes, self.limit].map(Operand::Reg);
        let [mask, count, new] = [self.mask, self.count, self.new].map(Operand::Reg);
        let [seen, next, got] = [self.seen, self.next, self.got].map(Operand::Reg);
        let [is, full] = [self.is, self.full].map(Operand::Reg);
        let (again, done) = (code.label(), code.label());
        code.say("shl.b32", &[share, share, int(COUNT)]);
        code.say("add.u32", &[share, share, votes]);
        code.place(again);
        self.read_cell(code);
        if barrier.waits {
            code.say("or.b32", &[mask, mask, Operand::Reg(self.warp)]);
        }
        code.say("add.u32", &[count, count, share]);
        code.say("shr.u32", &[new, count, int(COUNT)]);
        code.say("setp.ge.u32", &[full, new, limit]);
        let halves = code.vector(&[mask, count]);
        code.say("mov.b64", &[next, halves]);
        code.say("mov.u64", &[next, int(0)]);
        code.only(when(self.full));
        code.say("atom.shared.cas.b64", &[got, self.the_cell(), seen, next]);
        code.say("setp.ne.u64", &[is, got, seen]);
        code.go_if(when(self.is), again);
        if !barrier.waits && !barrier.is_aligned {
            // The other lanes wait until the warp has come.
            code.say("red.shared.xor.b32", &[self.of_cta(TURNS), Operand::Reg(self.warp)]);
        }
        code.go_if(unless(self.full), done);
        self.open(code, barrier);
        code.place(done);
    }

    fn read_cell(&self, code: &mut Code<'_>) {
        let seen = Operand::Reg(self.seen);
        code.say("ld.volatile.shared.u64", &[seen, self.the_cell()]);
        let halves = code.vector(&[Operand::Reg(self.mask), Operand::Reg(self.count)]);
        code.say("mov.b64", &[halves, seen]);
    }

    /// The threads that have not come may have exited meanwhile: then one that waits opens the
    /// barrier.
    fn open_for_the_rest(&self, code: &mut Code<'_>, barrier: &Barrier) {
        let [limit, count, new] = [self.limit, self.count, self.new].map(Operand::Reg);
        let [seen, got, is] = [self.seen, self.got, self.is].map(Operand::Reg);
        let [mask, old] = [self.mask, self.old].map(Operand::Reg);
        let shut = code.label();
        code.say("ld.volatile.shared.u32", &[new, self.of_cta(EXITS)]);
        code.say("sub.u32", &[new, Operand::Reg(self.threads), new]);
        // Without a new exit, the lane that comes for the last warp opens the barrier.
        code.say("setp.eq.u32", &[is, new, limit]);
        code.go_if(when(self.is), shut);
        code.say("mov.u32", &[limit, new]);
        self.read_cell(code);
        code.say("shr.u32", &[new, count, int(COUNT)]);
        // The barrier may have opened meanwhile, and other warps may wait there now.
        code.say("and.b32", &[old, mask, Operand::Reg(self.warp)]);
        code.say("setp.ne.u32", &[is, old, int(0)]);
        code.say("setp.ge.and.u32", &[is, new, limit, is]);
        code.go_if(unless(self.is), shut);
        code.say("atom.shared.cas.b64", &[got, self.the_cell(), seen, int(0)]);
        code.say("setp.ne.u64", &[is, got, seen]);
        code.go_if(when(self.is), shut);
        self.open(code, barrier);
        code.place(shut);
    }

    /// Tells the warps that waited that the barrier has opened.
    fn open(&self, code: &mut Code<'_>, barrier: &Barrier) {
        let mask = Operand::Reg(self.mask);
        if barrier.reduction.is_some() {
            self.tell_votes(code);
        }
        code.say("fence.acq_rel.cta", &[]);
        code.say("red.shared.xor.b32", &[self.of_cta(TURNS), mask]);
    }

    /// Writes the votes to the boxes of the warps that waited.
    fn tell_votes(&self, code: &mut Code<'_>) {
        let [mask, count, rest] = [self.mask, self.count, self.share].map(Operand::Reg);
        let [old, new, is] = [self.old, self.new, self.is].map(Operand::Reg);
        let (again, done) = (code.label(), code.label());
        code.say("and.b32", &[count, count, int((1 << COUNT) - 1)]);
        code.say("mov.u32", &[rest, mask]);
        code.place(again);
        code.say("setp.eq.u32", &[is, rest, int(0)]);
        code.go_if(when(self.is), done);
        code.say("bfind.u32", &[new, rest]);
        code.say("mov.u32", &[old, int(1)]);
        code.say("shl.b32", &[old, old, new]);
        code.say("xor.b32", &[rest, rest, old]);
        code.say("shl.b32", &[new, new, int(2)]);
        code.say("mov.u32", &[old, self.first_word()]);
        code.say("add.u32", &[new, new, old]);
        let its_box = Operand::Mem(Base::Reg(self.new), BOXES.cast_signed());
        code.say("st.volatile.shared.u32", &[its_box, count]);
        code.go(again);
        code.place(done);
    }
}
