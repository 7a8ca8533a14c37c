//! The records that kernels have printed, as the host reads them from the ring.
//!
//! Kernels write the ring, so nothing in it is to be trusted: whatever it has, reading ends, and
//! stays inside what was read.

use super::{SLOT_BYTES, SLOTS};
use std::ops::Range;

/// Bytes before the arguments: the tag; the length of the arguments, and above it the record's
/// slots.
const HEADER_BYTES: usize = 8;
/// Bytes of arguments that `frame.ptx` writes at most.
const MOST_ARGUMENTS: usize = 256;

/// What one call of `vprintf` has written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// Its arguments, each at its natural alignment.
    pub arguments: Vec<u8>,
    /// The format and the texts that it names, each closed by a zero byte.
    pub texts: Vec<u8>,
}

/// What has been read of a module's ring.
#[derive(Clone, Copy, Debug, Default)]
pub struct Records {
    /// Slots that were read. Numbers of slots wrap.
    read: u32,
}

/// New records.
#[derive(Debug, Default)]
pub struct Taken {
    /// The records in order.
    pub records: Vec<Record>,
    /// Whether some found no room.
    pub is_some_lost: bool,
}

impl Records {
    /// The end of the slots that kernels may take now, for the second word of [`super::STATE`].
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.read.wrapping_add(SLOTS)
    }

    /// Whether all was read, where kernels have taken slots up to `next`.
    #[must_use]
    pub fn are_read(&self, next: u32) -> bool {
        self.read == next
    }

    /// The parts of the ring to read, in bytes, where kernels have taken slots up to `next`: the
    /// first word of [`super::STATE`].
    #[must_use]
    pub fn unread(&self, next: u32) -> [Range<usize>; 2] {
        let count = next.wrapping_sub(self.read).min(SLOTS);
        let first = self.read % SLOTS;
        let until_end = count.min(SLOTS - first);
        let bytes = |slots: Range<u32>| {
            let byte = |slot: u32| usize::try_from(slot).unwrap_or(0) * SLOT_BYTES;
            byte(slots.start)..byte(slots.end)
        };
        [bytes(first..first + until_end), bytes(0..count - until_end)]
    }

    /// Takes the records from what was read. A gap is a record that found no room or that is being
    /// written; it is skipped where nothing of the module runs (`is_idle`).
    pub fn take(&mut self, next: u32, slots: &[u8], is_idle: bool) -> Taken {
        let mut taken = Taken::default();
        let taken_slots = next.wrapping_sub(self.read);
        let mut rest = slots;
        while let Some(slot) = rest.get(..SLOT_BYTES) {
            match record(slot, rest, self.read) {
                Some((record, count)) => {
                    taken.records.push(record);
                    self.read = self.read.wrapping_add(count);
                    rest = rest
                        .get(usize::try_from(count).unwrap_or(0) * SLOT_BYTES..)
                        .unwrap_or_default();
                }
                None if is_idle => {
                    taken.is_some_lost = true;
                    self.read = self.read.wrapping_add(1);
                    rest = &rest[SLOT_BYTES..];
                }
                None => return taken,
            }
        }
        if taken_slots > SLOTS {
            taken.is_some_lost = true;
            self.read = next;
        }
        taken
    }
}

/// The record that begins with a slot of this number, and the number of its slots.
fn record(slot: &[u8], rest: &[u8], number: u32) -> Option<(Record, u32)> {
    let word = |at: usize| {
        let bytes = slot.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u32::from_le_bytes)
    };
    let (tag, lengths) = (word(0), word(4));
    let (arguments, count) = (usize::try_from(lengths & 0xffff).ok()?, lengths >> 16);
    let bytes = usize::try_from(count).ok()?.checked_mul(SLOT_BYTES)?;
    let is_whole = tag == number.wrapping_add(1) && arguments <= MOST_ARGUMENTS;
    let whole = rest.get(HEADER_BYTES..bytes).filter(|_| is_whole)?;
    let (arguments, texts) = whole.split_at_checked(arguments)?;
    Some((Record { arguments: arguments.to_vec(), texts: texts.to_vec() }, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ring with records of these numbers of slots, from a slot on; 0 is a gap of one slot.
    fn ring(first: u32, counts: &[u32]) -> (Vec<u8>, u32) {
        let mut ring = vec![0xaa; SLOT_BYTES * usize::try_from(SLOTS).unwrap()];
        let mut number = first;
        for &count in counts {
            let at = usize::try_from(number % SLOTS).unwrap() * SLOT_BYTES;
            if count > 0 {
                ring[at..at + 4].copy_from_slice(&number.wrapping_add(1).to_le_bytes());
                ring[at + 4..at + 8].copy_from_slice(&(count << 16 | 4).to_le_bytes());
                ring[at + 8..at + 12].copy_from_slice(&number.to_le_bytes());
            }
            number = number.wrapping_add(count.max(1));
        }
        (ring, number)
    }

    fn read(
        records: &mut Records,
        (ring, next): &(Vec<u8>, u32),
        is_idle: bool,
    ) -> (Vec<u32>, bool) {
        let slots: Vec<u8> =
            records.unread(*next).into_iter().flat_map(|part| ring[part].to_vec()).collect();
        let taken = records.take(*next, &slots, is_idle);
        let number = |record: Record| u32::from_le_bytes(record.arguments.try_into().unwrap());
        (taken.records.into_iter().map(number).collect(), taken.is_some_lost)
    }

    #[test]
    fn records_come_once_and_in_order() {
        // The numbers wrap, and so does the ring.
        let first = u32::MAX - 2;
        let mut records = Records { read: first };
        assert_eq!(records.limit(), first.wrapping_add(SLOTS));
        let written = ring(first, &[1, 1, 2, 1]);
        let numbers = vec![first, first + 1, first + 2, 1];
        assert_eq!(read(&mut records, &written, false), (numbers, false));
        assert_eq!(read(&mut records, &written, true), (Vec::new(), false));
    }

    #[test]
    fn a_gap_is_waited_for_while_kernels_run() {
        let mut records = Records::default();
        let written = ring(0, &[1, 0, 1]);
        assert_eq!(read(&mut records, &written, false), (vec![0], false));
        assert_eq!(read(&mut records, &written, false), (Vec::new(), false));
        assert_eq!(read(&mut records, &ring(0, &[1, 1, 1]), false), (vec![1, 2], false));
        let mut records = Records::default();
        assert_eq!(read(&mut records, &written, true), (vec![0, 2], true));
    }

    #[test]
    fn more_than_fits_is_lost() {
        let mut records = Records::default();
        let counts = vec![1; usize::try_from(SLOTS).unwrap()];
        let (ring, next) = ring(0, &counts);
        let (numbers, is_some_lost) = read(&mut records, &(ring, next + 7), false);
        assert_eq!((numbers.len(), is_some_lost), (counts.len(), true));
        assert_eq!(records.limit(), 2 * SLOTS + 7);
    }

    #[test]
    fn lengths_that_lie_are_gaps() {
        for lengths in [0, 4, u32::MAX, 300 << 16 | 4, 1 << 16 | 249, 2 << 16 | 257] {
            let (mut ring, next) = ring(0, &[1]);
            ring[4..8].copy_from_slice(&lengths.to_le_bytes());
            let mut records = Records::default();
            assert_eq!(read(&mut records, &(ring, next), true), (Vec::new(), true), "{lengths}");
        }
    }
}
