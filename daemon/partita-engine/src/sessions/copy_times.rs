//! From when to when the device works on each copy or fill, for the trace.
//!
//! A device tells ends only. A copy begins at the latest of three moments: the device gets it, the
//! operation before it in its stream ends, and the copy before it in its direction ends. Copies
//! inside the device and fills wait for no other copy.
//!
//! Nothing here decides what goes to the device, or when; [`super::copies`] does.

use partita_device::Work;
use partita_model::{CopyKind, Nanos, OperationId};
use std::collections::BTreeMap;

/// A copy, or a piece of one, that the device has.
#[derive(Clone, Copy, Debug)]
struct Given {
    /// The copy of which it is a piece; otherwise itself.
    whole: OperationId,
    kind: CopyKind,
    bytes: u64,
    at: Nanos,
}

/// A copy, or a piece of one, that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Took {
    pub(super) whole: OperationId,
    pub(super) kind: CopyKind,
    pub(super) bytes: u64,
    pub(super) start: Nanos,
    pub(super) end: Nanos,
}

/// The copies that the device has.
#[derive(Debug, Default)]
pub(super) struct CopyTimes {
    given: BTreeMap<OperationId, Given>,
    /// The last end of a copy to the device, and of one to the host.
    to_device: Nanos,
    to_host: Nanos,
}

impl CopyTimes {
    /// What is to be kept of work before it goes to the device: `None` where it is no copy.
    pub(super) fn of(work: &Work) -> Option<(CopyKind, u64)> {
        match work {
            Work::CopyToDevice { from, .. } => Some((CopyKind::HostToDevice, from.bytes())),
            Work::CopyToHost { to, .. } => Some((CopyKind::DeviceToHost, to.bytes())),
            Work::CopyOnDevice { bytes, .. } => Some((CopyKind::DeviceToDevice, *bytes)),
            Work::Fill { width, count, .. } => {
                Some((CopyKind::Fill, count.saturating_mul(u64::from(*width))))
            }
            Work::Launch(_)
            | Work::LaunchOn { .. }
            | Work::Marker
            | Work::Wait { .. }
            | Work::WaitValue { .. } => None,
        }
    }

    /// The device has taken an operation, which is `whole` or a piece of it.
    pub(super) fn given(
        &mut self,
        id: OperationId,
        whole: OperationId,
        (kind, bytes): (CopyKind, u64),
        at: Nanos,
    ) {
        self.given.insert(id, Given { whole, kind, bytes, at });
    }

    /// An operation has ended, and the one before it in its stream at `before`: the times, if it
    /// was a copy.
    pub(super) fn ended(&mut self, id: OperationId, before: Nanos, end: Nanos) -> Option<Took> {
        let Given { whole, kind, bytes, at } = self.given.remove(&id)?;
        let start = at.max(before);
        let link = match kind {
            CopyKind::HostToDevice => Some(&mut self.to_device),
            CopyKind::DeviceToHost => Some(&mut self.to_host),
            CopyKind::DeviceToDevice | CopyKind::Fill => None,
        };
        let start = match link {
            Some(last) => {
                let start = start.max(*last);
                *last = end.max(*last);
                start
            }
            None => start,
        };
        // Another copy of the direction may have ended first on a device that carries out several.
        Some(Took { whole, kind, bytes, start: start.min(end), end })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.given.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TO_DEVICE: (CopyKind, u64) = (CopyKind::HostToDevice, 8);

    /// Gives a copy at `at` and ends it: from when to when it took.
    fn times(times: &mut CopyTimes, id: u64, of: (CopyKind, u64), at: [u64; 3]) -> [u64; 2] {
        let [given, before, end] = at.map(Nanos);
        times.given(OperationId(id), OperationId(id), of, given);
        let took = times.ended(OperationId(id), before, end).expect("it is a copy");
        assert!(took.whole == OperationId(id) && (took.kind, took.bytes) == of, "{took:?}");
        [took.start.0, took.end.0]
    }

    #[test]
    fn a_copy_begins_when_nothing_is_before_it() {
        let mut all = CopyTimes::default();
        // An idle device; then the stream has something before it; then the direction.
        assert_eq!(times(&mut all, 1, TO_DEVICE, [10, 0, 20]), [10, 20]);
        assert_eq!(times(&mut all, 2, TO_DEVICE, [12, 30, 40]), [30, 40]);
        assert_eq!(times(&mut all, 3, TO_DEVICE, [13, 0, 50]), [40, 50]);
        // The other direction and the device's own copies do not wait for these.
        for (id, kind) in [CopyKind::DeviceToHost, CopyKind::DeviceToDevice, CopyKind::Fill]
            .into_iter()
            .enumerate()
        {
            assert_eq!(times(&mut all, id as u64, (kind, 8), [14, 0, 60]), [14, 60]);
        }
        assert_eq!(times(&mut all, 4, (CopyKind::Fill, 8), [14, 0, 70]), [14, 70]);
        assert_eq!(times(&mut all, 5, (CopyKind::DeviceToHost, 8), [14, 0, 70]), [60, 70]);
        assert!(all.is_empty() && all.ended(OperationId(1), Nanos(0), Nanos(80)).is_none());
    }

    #[test]
    fn no_copy_begins_after_its_end() {
        let mut all = CopyTimes::default();
        assert_eq!(times(&mut all, 1, TO_DEVICE, [0, 0, 90]), [0, 90]);
        assert_eq!(times(&mut all, 2, TO_DEVICE, [0, 0, 80]), [80, 80]);
        assert_eq!(times(&mut all, 3, TO_DEVICE, [0, 0, 95]), [90, 95]);
    }
}
