//! The next turns of an SM's teams, in order of time and then of arrival.
//!
//! Most turns of a team lead to its next turn. So the first entry keeps its place in the heap
//! during its turn, and the first arrival of that turn takes the place.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// A turn of a team, or the end of a CTA whose stores are on their way.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// When.
    pub time: u64,
    /// Rises from turn to turn over all SMs: no two are alike.
    pub sequence: u64,
    /// The CTA's slot.
    pub slot: u16,
    /// The team in the CTA, or [`super::DRAINED`].
    pub team: u16,
    /// How often the slot had been filled: an older entry means nothing any more.
    pub generation: u32,
}

impl Ord for Turn {
    /// The heap's greatest element is the first turn.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.time, other.sequence).cmp(&(self.time, self.sequence))
    }
}

impl PartialOrd for Turn {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Turn {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Turn {}

/// All turns to come.
#[derive(Debug, Default)]
pub struct Turns {
    heap: BinaryHeap<Turn>,
    /// Whether the first turn has begun.
    on: bool,
}

impl Turns {
    /// The first. Between turns.
    pub fn first(&self) -> Option<&Turn> {
        debug_assert!(!self.on, "its turn is on");
        self.heap.peek()
    }

    /// Begins the first.
    pub fn begin(&mut self) {
        self.on = true;
    }

    /// Ends it.
    pub fn end(&mut self) {
        if std::mem::take(&mut self.on) {
            self.heap.pop();
        }
    }

    /// One more.
    pub fn push(&mut self, turn: Turn) {
        if std::mem::take(&mut self.on)
            && let Some(mut first) = self.heap.peek_mut()
        {
            *first = turn;
            return;
        }
        self.heap.push(turn);
    }

    /// Nothing happens before `time`.
    pub fn put_off(&mut self, time: u64) {
        let turns = std::mem::take(&mut self.heap).into_iter();
        self.heap = turns.map(|turn| Turn { time: turn.time.max(time), ..turn }).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_come_in_order_whatever_takes_whose_place() {
        let turn = |time, sequence| Turn { time, sequence, slot: 0, team: 0, generation: 0 };
        let (mut turns, mut sequence, mut seen) = (Turns::default(), 0, Vec::new());
        for at in 0..50 {
            turns.push(turn(at * 37 % 19, at));
        }
        while let Some(&first) = turns.first() {
            seen.push((first.time, first.sequence));
            turns.begin();
            for more in 0..first.sequence % 3 {
                sequence += 1;
                turns.push(turn(first.time + 1 + more * 7, 1000 + sequence * 3));
            }
            turns.end();
            if seen.len() > 400 {
                break;
            }
        }
        assert!(seen.len() > 100 && seen.is_sorted(), "{seen:?}");
    }
}
