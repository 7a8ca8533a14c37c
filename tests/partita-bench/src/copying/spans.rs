//! Spans of time: their union, and how much of a span it covers.

use partita_model::Nanos;

/// A union of spans that begin in order of time.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Spans {
    /// Disjoint, in order.
    spans: Vec<(u64, u64)>,
}

impl Spans {
    /// Adds a span that begins no earlier than all before it.
    pub(super) fn push(&mut self, begin: Nanos, end: Nanos) {
        match self.spans.last_mut() {
            Some(last) if begin.0 <= last.1 => last.1 = last.1.max(end.0),
            _ => self.spans.push((begin.0, end.0.max(begin.0))),
        }
    }

    /// The length of all spans.
    pub(super) fn length(&self) -> Nanos {
        Nanos(self.spans.iter().map(|(begin, end)| end - begin).sum())
    }

    /// How much of a span the union covers.
    pub(super) fn covered(&self, begin: Nanos, end: Nanos) -> Nanos {
        let first = self.spans.partition_point(|span| span.1 <= begin.0);
        let inside = self.spans[first..].iter().take_while(|span| span.0 < end.0);
        Nanos(inside.map(|span| span.1.min(end.0) - span.0.max(begin.0)).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_that_touch_are_one() {
        let mut spans = Spans::default();
        for (begin, end) in [(10, 20), (15, 18), (20, 25), (30, 40)] {
            spans.push(Nanos(begin), Nanos(end));
        }
        assert_eq!(spans.spans, [(10, 25), (30, 40)]);
        assert_eq!(spans.length(), Nanos(25));
    }

    #[test]
    fn only_the_union_covers() {
        let mut spans = Spans::default();
        for (begin, end) in [(10, 20), (30, 40), (50, 60)] {
            spans.push(Nanos(begin), Nanos(end));
        }
        let covered = |begin, end| spans.covered(Nanos(begin), Nanos(end)).0;
        assert_eq!(covered(0, 10), 0);
        assert_eq!(covered(0, 100), 30);
        assert_eq!(covered(15, 35), 10);
        assert_eq!(covered(20, 30), 0);
        assert_eq!(covered(32, 33), 1);
        assert_eq!(covered(60, 90), 0);
    }
}
