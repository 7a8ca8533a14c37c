//! How lanes of a warp come together before an instruction that waits for them.
//!
//! | word | what it holds |
//! | --- | --- |
//! | come, a word a warp | the lanes that wait in a loop |
//! | turns, a word a warp | a bit for each lane, which changes when the lane may go on |
//! | gone, a word a warp | the lanes that have exited |
//! | sites, 16 bits a lane | the place at which the lane waits |
//! | masks, a word a lane | the lanes for which it waits, where these may differ |
//!
//! A lane that does not find all others of its mask beside it writes down where it waits and for
//! whom, and then that it has come. A lane that finds that all have come, to the same place and
//! with the same mask, takes them out of the first word by compare-and-swap, and turns their bits.
//! What a lane has written down stays until its bit turns. A swap takes all lanes with the same
//! place and mask with it, also the one that makes another swap; so what a lane has read of others
//! before its own swap is still true at it. Only lanes inside their own masks make swaps.

use crate::ir::{Base, Operand, Pos, Reg, Type};

use super::code::{Code, when};
use super::words::Place;

/// Lanes of a warp.
const LANES: u32 = 32;
/// All lanes of a warp.
const ALL: Operand = Operand::Int(0xffff_ffff);
/// The site of all `bar.warp.sync`.
const BARRIERS: u32 = 0xffff;
/// The most sites of a module.
pub(super) const MOST_SITES: u32 = BARRIERS;

/// Where the words lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// Warps of the largest CTA.
    pub warps: u32,
    /// Whether lanes may wait for a part of the warp.
    pub has_masks: bool,
}

impl Layout {
    fn turns(self) -> u32 {
        4 * self.warps
    }

    fn gone(self) -> u32 {
        8 * self.warps
    }

    fn sites(self) -> u32 {
        12 * self.warps
    }

    fn masks(self) -> u32 {
        self.sites() + 2 * LANES * self.warps
    }

    /// The bytes of all words.
    pub(super) fn bytes(self) -> u32 {
        self.masks() + if self.has_masks { 4 * LANES * self.warps } else { 0 }
    }
}

/// Where lanes wait.
#[derive(Clone, Copy, Debug)]
pub(super) enum Site {
    /// At any `bar.warp.sync`.
    Barrier,
    /// At this place of the text.
    Place(u32),
}

/// What all bodies of a module share.
pub(super) struct Meeting {
    pub words: Place,
    pub layout: Layout,
    /// Places so far.
    pub sites: u32,
}

impl Meeting {
    pub(super) fn next_site(&mut self) -> Site {
        self.sites += 1;
        Site::Place(self.sites - 1)
    }
}

/// Registers of one body.
pub(super) struct Regs {
    words: Place,
    layout: Layout,
    /// The address of the first word.
    base: Reg,
    /// The lanes that are here, and those of them with the same mask.
    active: Reg,
    here: Reg,
    /// The address of the warp's word among the first.
    own: Reg,
    /// The addresses of what the warp's first lane, and this one, write down.
    first: Reg,
    place: Reg,
    /// The lane's bit.
    lane: Reg,
    /// Lanes that the warp never had.
    absent: Reg,
    /// The lanes for which the instruction waits, and those of them that have not exited.
    mask: Reg,
    need: Reg,
    turns: Reg,
    come: Reg,
    /// The lanes that wait here for the same.
    set: Reg,
    rest: Reg,
    old: Reg,
    bit: Reg,
    /// The address of a mask, less where masks begin, and the mask.
    far: Reg,
    its: Reg,
    is: Reg,
}

fn int(value: u32) -> Operand {
    Operand::Int(value.into())
}

impl Regs {
    pub(super) fn new(code: &mut Code<'_>, meeting: &Meeting) -> Regs {
        let &Meeting { words, layout, .. } = meeting;
        let mut word = |stem: &str| code.reg(stem, Type::B32);
        let [active, here] = ["%pw_lanes_active", "%pw_lanes_here"].map(&mut word);
        let [base, own, first] =
            ["%pw_lanes_base", "%pw_lanes_own", "%pw_lanes_first"].map(&mut word);
        let [place, lane, absent] =
            ["%pw_lanes_place", "%pw_lanes_lane", "%pw_lanes_absent"].map(&mut word);
        let [mask, need, turns] =
            ["%pw_lanes_mask", "%pw_lanes_need", "%pw_lanes_turns"].map(&mut word);
        let [come, set, rest] =
            ["%pw_lanes_come", "%pw_lanes_set", "%pw_lanes_rest"].map(&mut word);
        let [old, bit, far, its] =
            ["%pw_lanes_old", "%pw_lanes_bit", "%pw_lanes_far", "%pw_lanes_its"].map(&mut word);
        let is = code.reg("%pw_lanes_is", Type::Pred);
        #[rustfmt::skip]
        let regs = Regs {
            words, layout, base, active, here, own, first, place, lane, absent, mask, need, turns,
            come, set, rest, old, bit, far, its, is,
        };
        regs
    }

    /// A word of the thread's warp.
    fn of_warp(&self, at: u32) -> Operand {
        Operand::Mem(Base::Reg(self.own), at.cast_signed())
    }

    /// Who the thread is.
    fn find_self(&self, code: &mut Code<'_>) {
        let [base, own] = [self.base, self.own].map(Operand::Reg);
        let [first, place] = [self.first, self.place].map(Operand::Reg);
        let [lane, absent] = [self.lane, self.absent].map(Operand::Reg);
        let [old, rest, is] = [self.old, self.rest, self.is].map(Operand::Reg);
        let (thread, threads, warp) = (place, absent, rest);
        code.number_threads([thread, threads, old]);
        code.say("shr.u32", &[warp, thread, int(5)]);
        self.words.find(code, [base, old]);
        code.say("mad.lo.u32", &[first, warp, int(2 * LANES), base]);
        code.say("mad.lo.u32", &[own, warp, int(4), base]);
        // Only the last warp may lack lanes.
        code.say("shr.u32", &[old, threads, int(5)]);
        code.say("setp.ne.u32", &[is, old, warp]);
        code.say("and.b32", &[old, threads, int(31)]);
        code.say("mov.u32", &[absent, ALL]);
        code.say("shl.b32", &[absent, absent, old]);
        code.say("mov.u32", &[absent, int(0)]);
        code.only(when(self.is));
        code.say("and.b32", &[old, thread, int(31)]);
        code.say("mov.u32", &[lane, int(1)]);
        code.say("shl.b32", &[lane, lane, old]);
        code.say("mad.lo.u32", &[place, old, int(2), first]);
    }

    /// What a kernel begins with: the lanes of a warp clear its words.
    pub(super) fn begin(&self, code: &mut Code<'_>) {
        self.find_self(code);
        for at in [0, self.layout.turns(), self.layout.gone()] {
            code.say("st.shared.u32", &[self.of_warp(at), int(0)]);
        }
        code.say("bar.warp.sync", &[ALL]);
    }

    /// What a thread does before it exits.
    pub(super) fn exit(&self, code: &mut Code<'_>) {
        self.find_self(code);
        let gone = self.of_warp(self.layout.gone());
        code.say("red.shared.or.b32", &[gone, Operand::Reg(self.lane)]);
    }

    /// Waits until the lanes of the mask have come to the site. The loop in which lanes wait has a
    /// place in the program's text, so [`mod@crate::cancel`] adds a look at the abort flag.
    pub(super) fn meet(&self, code: &mut Code<'_>, (lanes, site): (Operand, Site), pos: Pos) {
        let [active, mask, need] = [self.active, self.mask, self.need].map(Operand::Reg);
        let [here, rest, is] = [self.here, self.rest, self.is].map(Operand::Reg);
        let past = code.label();
        code.say("activemask.b32", &[active]);
        let here = match lanes {
            // Of these lanes, the ones that name the same.
            Operand::Int(_) | Operand::Uint(_) => active,
            _ => {
                code.say("match.any.sync.b32", &[here, lanes, active]);
                here
            }
        };
        code.say("not.b32", &[rest, here]);
        if lanes != ALL {
            code.say("and.b32", &[rest, rest, lanes]);
        }
        code.say("setp.eq.u32", &[is, rest, int(0)]);
        code.go_if(when(self.is), past);
        code.say("mov.u32", &[mask, lanes]);
        self.find_self(code);
        self.find_need(code);
        code.say("not.b32", &[rest, here]);
        code.say("and.b32", &[rest, rest, need]);
        code.say("setp.eq.u32", &[is, rest, int(0)]);
        code.go_if(when(self.is), past);
        let site = match site {
            Site::Barrier => BARRIERS,
            Site::Place(site) => site,
        };
        self.wait(code, int(site), pos);
        code.place(past);
    }

    /// The lanes of the mask that have not exited.
    fn find_need(&self, code: &mut Code<'_>) {
        let [mask, need] = [self.mask, self.need].map(Operand::Reg);
        code.say("ld.volatile.shared.u32", &[need, self.of_warp(self.layout.gone())]);
        code.say("or.b32", &[need, need, Operand::Reg(self.absent)]);
        code.say("not.b32", &[need, need]);
        code.say("and.b32", &[need, need, mask]);
    }

    /// What the lane at this register's place has written down of its site.
    fn site_at(&self, place: Reg) -> Operand {
        Operand::Mem(Base::Reg(place), self.layout.sites().cast_signed())
    }

    fn wait(&self, code: &mut Code<'_>, site: Operand, pos: Pos) {
        let [turns, come, need] = [self.turns, self.come, self.need].map(Operand::Reg);
        let [set, rest, old, is] = [self.set, self.rest, self.old, self.is].map(Operand::Reg);
        let lane = Operand::Reg(self.lane);
        let turn = self.of_warp(self.layout.turns());
        let (again, sleep, done) = (code.label(), code.label(), code.label());
        code.say("ld.volatile.shared.u32", &[turns, turn]);
        code.say("mov.u32", &[old, site]);
        code.say("st.volatile.shared.u16", &[self.site_at(self.place), old]);
        if self.layout.has_masks {
            let its_mask = self.mask_at(code, self.place);
            code.say("st.volatile.shared.u32", &[its_mask, Operand::Reg(self.mask)]);
        }
        code.say("fence.acq_rel.cta", &[]);
        code.say("red.shared.or.b32", &[self.of_warp(0), lane]);
        code.place(again);
        code.say("ld.volatile.shared.u32", &[old, turn]);
        code.say("xor.b32", &[old, old, turns]);
        code.say("and.b32", &[old, old, lane]);
        code.say("setp.ne.u32", &[is, old, int(0)]);
        code.go_if(when(self.is), done);
        // A lane outside of its own mask waits for those inside to take it with them.
        code.say("and.b32", &[old, lane, Operand::Reg(self.mask)]);
        code.say("setp.eq.u32", &[is, old, int(0)]);
        code.go_if(when(self.is), sleep);
        code.say("ld.volatile.shared.u32", &[come, self.of_warp(0)]);
        self.find_need(code);
        code.say("not.b32", &[rest, come]);
        code.say("and.b32", &[rest, rest, need]);
        code.say("setp.ne.u32", &[is, rest, int(0)]);
        code.go_if(when(self.is), sleep);
        code.say("fence.acq_rel.cta", &[]);
        self.find_set(code, site);
        code.say("not.b32", &[rest, set]);
        code.say("and.b32", &[need, rest, need]);
        code.say("setp.ne.u32", &[is, need, int(0)]);
        code.go_if(when(self.is), sleep);
        code.say("and.b32", &[rest, rest, come]);
        code.say("atom.shared.cas.b32", &[old, self.of_warp(0), come, rest]);
        code.say("setp.ne.u32", &[is, old, come]);
        code.go_if(when(self.is), sleep);
        code.say("fence.acq_rel.cta", &[]);
        code.say("red.shared.xor.b32", &[turn, set]);
        code.place(sleep);
        code.say("nanosleep.u32", &[int(20)]);
        code.go(again);
        code.at(pos);
        code.place(done);
        code.say("fence.acq_rel.cta", &[]);
    }

    /// What the lane at this register's place has written down of its mask. Masks are twice as long
    /// as sites.
    fn mask_at(&self, code: &mut Code<'_>, place: Reg) -> Operand {
        let [far, place, base] = [self.far, place, self.base].map(Operand::Reg);
        code.say("sub.u32", &[far, place, base]);
        code.say("add.u32", &[far, place, far]);
        Operand::Mem(Base::Reg(self.far), self.layout.masks().cast_signed())
    }

    /// Finds the lanes that wait at this site with the same mask, among those that have come.
    fn find_set(&self, code: &mut Code<'_>, site: Operand) {
        let [set, rest, old, bit] = [self.set, self.rest, self.old, self.bit].map(Operand::Reg);
        let [its, is] = [self.its, self.is].map(Operand::Reg);
        let (again, done) = (code.label(), code.label());
        code.say("mov.u32", &[set, int(0)]);
        code.say("mov.u32", &[rest, Operand::Reg(self.come)]);
        code.place(again);
        code.say("setp.eq.u32", &[is, rest, int(0)]);
        code.go_if(when(self.is), done);
        code.say("bfind.u32", &[old, rest]);
        code.say("mov.u32", &[bit, int(1)]);
        code.say("shl.b32", &[bit, bit, old]);
        code.say("xor.b32", &[rest, rest, bit]);
        code.say("mad.lo.u32", &[old, old, int(2), Operand::Reg(self.first)]);
        code.say("ld.volatile.shared.u16", &[its, self.site_at(self.old)]);
        code.say("setp.eq.u32", &[is, its, site]);
        if self.layout.has_masks {
            let its_mask = self.mask_at(code, self.old);
            code.say("ld.volatile.shared.u32", &[its, its_mask]);
            code.say("setp.eq.and.u32", &[is, its, Operand::Reg(self.mask), is]);
        }
        code.say("or.b32", &[set, set, bit]);
        code.only(when(self.is));
        code.go(again);
        code.place(done);
    }
}
