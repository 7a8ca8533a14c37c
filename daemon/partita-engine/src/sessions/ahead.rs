//! How far the launches of a stream are ahead of the device.
//!
//! A main grid has one CTA for every place on its application's SMs, and some for places on SMs of
//! others, where a CTA may start and leaves again. Both numbers hold for the moment of submission.
//! A CTA that is too many when the grid begins finds no room. Until some launch ends, the
//! hardware's block scheduler then places no CTA of any grid. So launches are submitted late: one
//! behind the running launch, which must be there when that ends, and further ones only while their
//! expected duration is short.

use partita_model::{Nanos, OperationId};
use std::collections::VecDeque;

/// The launches of one stream that are on the device, and the expected duration of each.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    launches: VecDeque<(OperationId, Nanos)>,
    /// Expected duration of all launches behind the first.
    behind: Nanos,
}

impl Ahead {
    /// Adds a launch that was submitted.
    pub(crate) fn push(&mut self, launch: OperationId, expected: Nanos) {
        if !self.launches.is_empty() {
            self.behind.0 = self.behind.0.saturating_add(expected.0);
        }
        self.launches.push_back((launch, expected));
    }

    /// Strikes a launch out, if the stream has it.
    pub(crate) fn remove(&mut self, launch: OperationId) {
        if let Some(index) = self.launches.iter().position(|(id, _)| *id == launch) {
            self.launches.remove(index);
            self.behind = Nanos(
                self.launches.iter().skip(1).fold(0, |sum, (_, time)| sum.saturating_add(time.0)),
            );
        }
    }

    /// Whether the launches behind the first take at least `enough` time.
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
