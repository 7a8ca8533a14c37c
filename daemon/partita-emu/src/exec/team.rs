//! Divergence: the threads of a team and their places in the program.
//!
//! A **team** is a run of consecutive warps of one CTA that execute together. With timing a team is
//! one warp. Each live thread of a team is in exactly one of these:
//!
//! - a **fragment**: threads at one place of the program;
//! - the waiting set of a **join**: threads that arrived early at a reconvergence point.
//!
//! A branch that parts a fragment opens a join at the branch's immediate post-dominator.
//!
//! Reconvergence is a matter of speed, never of meaning. When the running threads make no progress,
//! the waiting threads go on without them ([`Team::release_waiting`]). So a spin lock inside a warp
//! ends.

/// Largest number of warps that execute together.
pub const MAX_WARPS: usize = 8;

/// Threads of a team, one mask per warp.
pub type Masks = [u32; MAX_WARPS];

/// No join.
pub const NO_JOIN: u32 = u32::MAX;

/// Whether no thread is in the set.
#[must_use]
#[inline]
pub fn is_empty(masks: &Masks) -> bool {
    masks.iter().all(|&mask| mask == 0)
}

/// The number of threads in the set.
#[must_use]
#[inline]
pub fn count(masks: &Masks) -> u32 {
    masks.iter().map(|mask| mask.count_ones()).sum()
}

#[inline]
fn add(to: &mut Masks, other: &Masks) {
    for (a, b) in to.iter_mut().zip(other) {
        *a |= b;
    }
}

#[inline]
fn subtract(from: &mut Masks, other: &Masks) {
    for (a, b) in from.iter_mut().zip(other) {
        *a &= !b;
    }
}

/// What keeps a fragment from running.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// It waits for nothing.
    Ready,
    /// It waits at a CTA barrier.
    Barrier(u8),
    /// It waits at a warp's `.sync` instruction for other threads of the warp.
    Warp,
    /// It sleeps until a time in picoseconds.
    Asleep(u64),
}

/// Threads at one place.
#[derive(Clone, Copy, Debug)]
pub struct Fragment {
    /// The next instruction.
    pub pc: u32,
    /// The join that it goes to next.
    pub join: u32,
    /// Its threads.
    pub masks: Masks,
    /// Whether it can run.
    pub state: State,
}

#[derive(Clone, Copy, Debug)]
struct Join {
    pc: u32,
    parent: u32,
    expected: Masks,
    arrived: Masks,
    live: bool,
}

/// The threads of a team.
#[derive(Clone, Debug, Default)]
pub struct Team {
    /// Index of its first warp in the CTA.
    pub first_warp: usize,
    /// Its number of warps.
    pub warps: usize,
    /// Where its threads are. The last ready one runs next.
    pub fragments: Vec<Fragment>,
    /// Threads that have not exited.
    pub alive: Masks,
    joins: Vec<Join>,
    /// How often in a row a fragment has used up its turn, and no threads met.
    pub stale_turns: u32,
    waits: u32,
    answers: [u64; ANSWERS],
}

/// The consequence of a number of waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Due {
    /// No consequence.
    Nothing,
    /// Another fragment gets its turn.
    Turn,
    /// The threads that wait at joins are released.
    Release,
}

/// Waits after which another fragment gets a turn.
const WAITS_PER_TURN: u32 = 8;
/// Waits after which threads that wait for others of their warp continue alone.
const WAITS_BEFORE_RELEASE: u32 = 64;
/// Answers that a team remembers: a loop may poll several words.
const ANSWERS: usize = 8;

impl Team {
    /// Starts over, with all `masks` at the program's first instruction.
    pub fn start(&mut self, first_warp: usize, warps: usize, masks: Masks) {
        self.first_warp = first_warp;
        self.warps = warps;
        self.alive = masks;
        self.joins.clear();
        self.fragments.clear();
        self.stale_turns = 0;
        self.waits = 0;
        self.answers = [0; ANSWERS];
        self.fragments.push(Fragment { pc: 0, join: NO_JOIN, masks, state: State::Ready });
    }

    /// Whether every thread has exited.
    #[must_use]
    pub fn is_done(&self) -> bool {
        is_empty(&self.alive)
    }

    /// The fragment to run next: the last that is ready, or whose sleep has ended at `now`.
    #[must_use]
    pub fn next_ready(&self, now: u64) -> Option<usize> {
        self.fragments.iter().rposition(|fragment| match fragment.state {
            State::Ready => true,
            State::Asleep(until) => until <= now,
            _ => false,
        })
    }

    /// Takes the last fragment, if it is ready: what runs next in the turn of one that is no more.
    #[inline]
    pub fn take_ready(&mut self) -> Option<Fragment> {
        self.fragments.pop_if(|fragment| fragment.state == State::Ready)
    }

    /// When the first sleeper wakes.
    #[must_use]
    pub fn first_wake(&self) -> Option<u64> {
        self.fragments
            .iter()
            .filter_map(|fragment| match fragment.state {
                State::Asleep(until) => Some(until),
                _ => None,
            })
            .min()
    }

    /// Whether a poll is a wait: one of the last polls had the same `answer`, which tells the place
    /// in the program, the threads, their addresses and what they found. Threads of which each poll
    /// finds something else make progress, and nobody need go on without them.
    pub fn is_wait(&mut self, answer: u64) -> bool {
        let known = self.answers.contains(&answer);
        if !known {
            self.answers.rotate_right(1);
            self.answers[0] = answer;
        }
        known
    }

    /// Threads may wait for memory that another thread of their warp is to write. So fairness is
    /// paid in waits, whatever else the pollers do between them: they may part, meet, sleep.
    #[must_use]
    pub fn pay(&mut self, waits: u32) -> Due {
        let before = self.waits;
        self.waits += waits;
        if self.waits >= WAITS_BEFORE_RELEASE {
            self.waits = 0;
            Due::Release
        } else if self.waits / WAITS_PER_TURN != before / WAITS_PER_TURN {
            Due::Turn
        } else {
            Due::Nothing
        }
    }

    /// Gives the fragment's turn to the others: it becomes the last to be chosen.
    pub fn rotate(&mut self, index: usize) {
        let fragment = self.fragments.remove(index);
        self.fragments.insert(0, fragment);
    }

    /// Parts the running fragment at a branch: `taken` go to `target`, the rest to `next`; they
    /// meet again at `meet` (or nowhere). Returns where the running fragment goes on, and with
    /// whom.
    #[inline]
    pub fn part(
        &mut self,
        fragment: &mut Fragment,
        taken: Masks,
        target: u32,
        next: u32,
        meet: Option<u32>,
    ) {
        let mut others = fragment.masks;
        subtract(&mut others, &taken);
        if let Some(meet) = meet {
            if self.joins.get(fragment.join as usize).is_none_or(|join| join.pc != meet) {
                fragment.join = self.open(meet, fragment.join, fragment.masks);
            }
            let join = &mut self.joins[fragment.join as usize];
            if target == meet {
                add(&mut join.arrived, &taken);
                fragment.masks = others;
                fragment.pc = next;
                return;
            }
            if next == meet {
                add(&mut join.arrived, &others);
                fragment.masks = taken;
                fragment.pc = target;
                return;
            }
        }
        self.fragments.push(Fragment {
            pc: target,
            join: fragment.join,
            masks: taken,
            state: State::Ready,
        });
        fragment.masks = others;
        fragment.pc = next;
    }

    /// The threads of a fragment are about to enter functions; they meet again at `back`.
    pub fn expect_back(&mut self, fragment: &mut Fragment, back: u32) {
        fragment.join = self.open(back, fragment.join, fragment.masks);
    }

    #[inline]
    fn open(&mut self, pc: u32, parent: u32, expected: Masks) -> u32 {
        let join = Join { pc, parent, expected, arrived: [0; MAX_WARPS], live: true };
        if let Some(index) = self.joins.iter().position(|join| !join.live) {
            self.joins[index] = join;
            return index as u32;
        }
        self.joins.push(join);
        (self.joins.len() - 1) as u32
    }

    /// The fragment comes to the reconvergence point `pc`. True where it goes on (perhaps with more
    /// threads), false where its threads now wait and it is no more.
    #[inline]
    pub fn arrive(&mut self, fragment: &mut Fragment, pc: u32) -> bool {
        while let Some(join) = self.joins.get_mut(fragment.join as usize) {
            if join.pc != pc {
                return true;
            }
            add(&mut join.arrived, &fragment.masks);
            if join.arrived != join.expected {
                return false;
            }
            join.live = false;
            fragment.masks = join.arrived;
            fragment.join = join.parent;
            self.stale_turns = 0;
        }
        true
    }

    /// The threads `masks` of a fragment whose join is `join` have exited.
    pub fn exit(&mut self, join: u32, masks: &Masks) {
        subtract(&mut self.alive, masks);
        // Threads at a warp instruction may be waiting for the exited threads.
        for fragment in self.fragments.iter_mut().filter(|fragment| fragment.state == State::Warp) {
            fragment.state = State::Ready;
        }
        self.leave(join, masks);
    }

    /// Takes threads out of `join` and all enclosing joins. Threads that waited only for these
    /// continue.
    fn leave(&mut self, join: u32, masks: &Masks) {
        let mut at = join;
        while at != NO_JOIN {
            let join = &mut self.joins[at as usize];
            subtract(&mut join.expected, masks);
            let (parent, pc, arrived) = (join.parent, join.pc, join.arrived);
            if join.expected == arrived && join.live {
                join.live = false;
                if !is_empty(&arrived) {
                    self.fragments.push(Fragment {
                        pc,
                        join: parent,
                        masks: arrived,
                        state: State::Ready,
                    });
                }
            }
            at = parent;
        }
    }

    /// Lets all threads that wait at joins go on alone. True where any thread waited.
    pub fn release_waiting(&mut self) -> bool {
        let mut any = false;
        for index in 0..self.joins.len() {
            let join = self.joins[index];
            if !join.live || is_empty(&join.arrived) {
                continue;
            }
            any = true;
            let slot = &mut self.joins[index];
            slot.arrived = [0; MAX_WARPS];
            subtract(&mut slot.expected, &join.arrived);
            if is_empty(&slot.expected) {
                slot.live = false;
            }
            self.fragments.insert(
                0,
                Fragment {
                    pc: join.pc,
                    join: join.parent,
                    masks: join.arrived,
                    state: State::Ready,
                },
            );
        }
        any
    }

    /// Unites fragments that are ready at the same place on the way to the same join.
    pub fn merge(&mut self) {
        let mut index = 0;
        while index < self.fragments.len() {
            let mut other = index + 1;
            while other < self.fragments.len() {
                let (a, b) = (self.fragments[index], self.fragments[other]);
                if a.pc == b.pc && a.join == b.join && a.state == b.state {
                    add(&mut self.fragments[index].masks, &b.masks);
                    self.fragments.remove(other);
                } else {
                    other += 1;
                }
            }
            index += 1;
        }
    }

    /// Threads of warp `warp` that wait at the `.sync` instruction at `pc`, those of fragment
    /// `except` aside.
    #[must_use]
    pub fn waiting_at(&self, pc: u32, warp: usize) -> u32 {
        self.fragments
            .iter()
            .filter(|fragment| fragment.pc == pc && fragment.state == State::Warp)
            .fold(0, |all, fragment| all | fragment.masks[warp])
    }

    /// Takes the fragments that wait at `pc` into `fragment`. Threads on the way to different joins
    /// leave the inner ones, up to where their ways agree.
    pub fn absorb_waiting(&mut self, fragment: &mut Fragment, pc: u32) {
        let mut index = 0;
        while index < self.fragments.len() {
            let other = self.fragments[index];
            if other.pc != pc || other.state != State::Warp {
                index += 1;
                continue;
            }
            self.fragments.remove(index);
            let common = self.common(fragment.join, other.join);
            self.leave_up_to(fragment.join, common, &fragment.masks);
            self.leave_up_to(other.join, common, &other.masks);
            fragment.join = common;
            add(&mut fragment.masks, &other.masks);
            // `leave` may have appended fragments; removal kept the order of the rest.
        }
    }

    fn common(&self, a: u32, b: u32) -> u32 {
        let mut chain = Vec::new();
        let mut at = a;
        while at != NO_JOIN {
            chain.push(at);
            at = self.joins[at as usize].parent;
        }
        let mut at = b;
        while at != NO_JOIN && !chain.contains(&at) {
            at = self.joins[at as usize].parent;
        }
        at
    }

    fn leave_up_to(&mut self, from: u32, to: u32, masks: &Masks) {
        let mut at = from;
        while at != to {
            let join = &mut self.joins[at as usize];
            subtract(&mut join.expected, masks);
            let (parent, pc, arrived) = (join.parent, join.pc, join.arrived);
            if join.live && join.expected == arrived {
                join.live = false;
                if !is_empty(&arrived) {
                    self.fragments.push(Fragment {
                        pc,
                        join: parent,
                        masks: arrived,
                        state: State::Ready,
                    });
                }
            }
            at = parent;
        }
    }

    /// Splits the threads `off` off the fragment, on the way to the same join.
    #[must_use]
    pub fn split(fragment: &mut Fragment, off: &Masks) -> Fragment {
        let mut split = *fragment;
        split.masks = *off;
        subtract(&mut fragment.masks, off);
        split
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masks(first: u32) -> Masks {
        let mut masks = [0; MAX_WARPS];
        masks[0] = first;
        masks
    }

    fn team() -> (Team, Fragment) {
        let mut team = Team::default();
        team.start(0, 1, masks(0xff));
        let fragment = team.fragments.pop().unwrap();
        (team, fragment)
    }

    #[test]
    fn if_without_else_meets_again() {
        let (mut team, mut f) = team();
        team.part(&mut f, masks(0x0f), 10, 3, Some(10));
        assert_eq!((f.pc, f.masks[0]), (3, 0xf0));
        assert!(team.arrive(&mut f, 10));
        assert_eq!((f.masks[0], f.join), (0xff, NO_JOIN));
    }

    #[test]
    fn both_ways_meet_again() {
        let (mut team, mut f) = team();
        team.part(&mut f, masks(0x0f), 7, 3, Some(10));
        assert!(!team.arrive(&mut f, 10));
        let mut other = team.fragments.pop().unwrap();
        assert_eq!((other.pc, other.masks[0]), (7, 0x0f));
        assert!(team.arrive(&mut other, 10));
        assert_eq!(other.masks[0], 0xff);
    }

    #[test]
    fn exit_lets_the_waiting_go_on() {
        let (mut team, mut f) = team();
        team.part(&mut f, masks(0x0f), 10, 3, Some(10));
        team.exit(f.join, &f.masks);
        let rest = team.fragments.pop().unwrap();
        assert_eq!((rest.pc, rest.masks[0], rest.join), (10, 0x0f, NO_JOIN));
        assert_eq!(team.alive[0], 0x0f);
    }

    #[test]
    fn exit_lets_those_look_again_that_wait_at_a_warp_instruction() {
        let (mut team, mut f) = team();
        team.part(&mut f, masks(0x0f), 7, 3, None);
        team.fragments[0].state = State::Warp;
        team.exit(f.join, &f.masks);
        assert_eq!(team.fragments[0].state, State::Ready);
    }

    #[test]
    fn the_waiting_can_be_released() {
        let (mut team, mut f) = team();
        team.part(&mut f, masks(0x0f), 10, 3, Some(10));
        assert!(team.release_waiting());
        let rest = team.fragments.pop().unwrap();
        assert_eq!((rest.pc, rest.masks[0]), (10, 0x0f));
        assert!(team.arrive(&mut f, 10), "the others come later, alone");
        assert_eq!(f.masks[0], 0xf0);
    }

    #[test]
    fn waiting_fragments_unite_at_a_warp_instruction() {
        let (mut team, mut f) = team();
        team.part(&mut f, masks(0x0f), 7, 3, Some(10));
        let mut other = team.fragments.pop().unwrap();
        other.pc = 5;
        other.state = State::Warp;
        team.fragments.push(other);
        f.pc = 5;
        assert_eq!(team.waiting_at(5, 0), 0x0f);
        team.absorb_waiting(&mut f, 5);
        assert_eq!(f.masks[0], 0xff);
        assert!(team.arrive(&mut f, 10));
        assert_eq!(f.join, NO_JOIN);
    }
}
