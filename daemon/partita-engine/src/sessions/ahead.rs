//! How far the launches of a stream are ahead of the device.
//!
//! The CTAs of a main grid are as many as its application's SMs have room for, and some for the SMs
//! of others on which they may start, and leave again. Both are of the moment when it is submitted.
//! What is too many when it begins finds room nowhere, and the hardware's block scheduler places
//! nobody's CTAs before it, until somebody's launch ends. So launches are submitted late: one
//! behind the one that runs, which must be there when it ends, and further ones only as far as they
//! are short.

use partita_model::{Nanos, OperationId};
use std::collections::VecDeque;

/// Launches of one stream that are on the device, and the time that each is expected to take.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    launches: VecDeque<(OperationId, Nanos)>,
    /// Of those behind the first.
    behind: Nanos,
}

impl Ahead {
    /// Adds the one submitted last.
    pub(crate) fn push(&mut self, launch: OperationId, expected: Nanos) {
        if !self.launches.is_empty() {
            self.behind.0 = self.behind.0.saturating_add(expected.0);
        }
        self.launches.push_back((launch, expected));
    }

    /// Strikes one out, if it is among them.
    pub(crate) fn remove(&mut self, launch: OperationId) {
        if let Some(index) = self.launches.iter().position(|(id, _)| *id == launch) {
            self.launches.remove(index);
            self.behind = Nanos(
                self.launches.iter().skip(1).fold(0, |sum, (_, time)| sum.saturating_add(time.0)),
            );
        }
    }

    /// Whether those behind the first take `enough` time.
    pub(crate) fn is_enough(&self, enough: Nanos) -> bool {
        self.launches.len() > 1 && self.behind >= enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_behind_the_first_and_as_many_as_are_short() {
        let mut ahead = Ahead::default();
        for id in 0..2 {
            assert!(!ahead.is_enough(Nanos(100)), "{ahead:?}");
            ahead.push(OperationId(id), Nanos(1000));
        }
        assert!(ahead.is_enough(Nanos(100)), "{ahead:?}");
        ahead.remove(OperationId(7));
        assert!(ahead.is_enough(Nanos(100)), "{ahead:?}");
        ahead.remove(OperationId(0));
        for id in 2..7 {
            assert!(!ahead.is_enough(Nanos(100)), "{ahead:?}");
            ahead.push(OperationId(id), Nanos(20));
        }
        assert!(ahead.is_enough(Nanos(100)), "{ahead:?}");
        // A cancelled one ends before its turn.
        ahead.remove(OperationId(4));
        assert!(!ahead.is_enough(Nanos(100)), "{ahead:?}");
        for id in [1, 2, 3, 5, 6] {
            ahead.remove(OperationId(id));
            assert!(!ahead.is_enough(Nanos(100)), "{ahead:?}");
        }
        assert_eq!(ahead.behind, Nanos(0));
    }
}
