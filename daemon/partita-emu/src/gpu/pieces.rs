//! Long copies and fills where time is not kept: piece by piece, so that other work goes on between
//! two pieces. A poll does one piece, because the host may clear memory for it. With time a long
//! operation takes long on the device, and the host's time says nothing.

use partita_device::Work;
use partita_model::DeviceAddress;

/// Bytes of a piece. The host writes them in about the time of a turn of all SMs.
const PIECE: u64 = 256 << 10;

/// Operations on fewer bytes take so little of the host's time that nobody pays for it.
const FREE: u64 = 16 << 10;

/// An address of the device memory that a copy or fill of many bytes uses.
pub(super) fn memory_of(work: &Work) -> Option<DeviceAddress> {
    let (address, bytes) = match work {
        Work::Fill { to, width, count, .. } => (*to, count.saturating_mul(u64::from(*width))),
        Work::CopyOnDevice { to, bytes, .. } => (*to, *bytes),
        Work::CopyToDevice { to, from } => (*to, from.bytes()),
        Work::CopyToHost { to, from } => (*from, to.bytes()),
        Work::Launch(_)
        | Work::LaunchOn { .. }
        | Work::Marker
        | Work::Wait { .. }
        | Work::WaitValue { .. } => return None,
    };
    (bytes > FREE).then_some(address)
}

/// The first piece of an operation on memory, and what is left of it.
pub(super) fn first(work: Work) -> (Work, Option<Work>) {
    let after = |at: DeviceAddress| DeviceAddress(at.0 + PIECE);
    match work {
        Work::Fill { to, value, width, count }
            if count.saturating_mul(u64::from(width)) > PIECE =>
        {
            let elements = PIECE / u64::from(width);
            let rest = Work::Fill { to: after(to), value, width, count: count - elements };
            (Work::Fill { to, value, width, count: elements }, Some(rest))
        }
        // Ranges that overlap are copied as a whole, because a piece may change the next one.
        Work::CopyOnDevice { to, from, bytes }
            if bytes > PIECE && to.0.abs_diff(from.0) >= bytes =>
        {
            let (rest_to, rest_from) = (after(to), after(from));
            let rest = Work::CopyOnDevice { to: rest_to, from: rest_from, bytes: bytes - PIECE };
            (Work::CopyOnDevice { to, from, bytes: PIECE }, Some(rest))
        }
        Work::CopyToDevice { to, from } if from.bytes() > PIECE => {
            let parts = (from.part(0, PIECE), from.part(PIECE, from.bytes() - PIECE));
            let (Some(head), Some(tail)) = parts else {
                return (Work::CopyToDevice { to, from }, None);
            };
            let rest = Work::CopyToDevice { to: after(to), from: tail };
            (Work::CopyToDevice { to, from: head }, Some(rest))
        }
        Work::CopyToHost { to, from } if to.bytes() > PIECE => {
            let parts = (to.part(0, PIECE), to.part(PIECE, to.bytes() - PIECE));
            let (Some(head), Some(tail)) = parts else {
                return (Work::CopyToHost { to, from }, None);
            };
            let rest = Work::CopyToHost { to: tail, from: after(from) };
            (Work::CopyToHost { to: head, from }, Some(rest))
        }
        work => (work, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_the_whole() {
        let to = DeviceAddress(1 << 30);
        let mut left = Some(Work::Fill { to, value: 7, width: 4, count: (3 << 20) / 4 + 1 });
        let mut at = to.0;
        while let Some(work) = left.take() {
            let (piece, rest) = first(work);
            let Work::Fill { to, value: 7, width: 4, count } = piece else { panic!("no fill") };
            assert_eq!(to.0, at);
            assert!(count > 0 && count * 4 <= PIECE);
            at += count * 4;
            left = rest;
        }
        assert_eq!(at, to.0 + (3 << 20) + 4);
    }

    #[test]
    fn ranges_that_overlap_stay_whole() {
        let copy = |from| {
            let (to, from) = (DeviceAddress(1 << 30), DeviceAddress(from));
            first(Work::CopyOnDevice { to, from, bytes: 4 << 20 }).1.is_some()
        };
        assert!(!copy((1 << 30) + (4 << 20) - 1));
        assert!(copy((1 << 30) + (4 << 20)));
    }
}
