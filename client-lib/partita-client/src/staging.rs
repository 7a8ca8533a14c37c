//! Allocation of the arena: first fit over a map of free ranges.

use std::collections::BTreeMap;

/// An allocated range of the arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Range {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// The free ranges of a part of the arena.
#[derive(Debug)]
pub(crate) struct FreeRanges {
    /// Length by offset; neighbours are merged.
    free: BTreeMap<u64, u64>,
    /// Ranges begin at multiples of this.
    grain: u64,
}

impl FreeRanges {
    /// All of `bytes` bytes from `first` on, a multiple of `grain`.
    pub(crate) fn new(first: u64, bytes: u64, grain: u64) -> Self {
        let whole = bytes / grain * grain;
        FreeRanges { free: BTreeMap::from_iter((whole > 0).then_some((first, whole))), grain }
    }

    /// Takes a range of at least `bytes` bytes, or `None` where none is free.
    pub(crate) fn take(&mut self, bytes: u64) -> Option<Range> {
        let bytes = bytes.max(1).checked_next_multiple_of(self.grain)?;
        let (&offset, &length) = self.free.iter().find(|(_, length)| **length >= bytes)?;
        self.free.remove(&offset);
        if length > bytes {
            self.free.insert(offset + bytes, length - bytes);
        }
        Some(Range { offset, bytes })
    }

    /// Gives back what `take` returned.
    pub(crate) fn give(&mut self, range: Range) {
        let Range { mut offset, mut bytes } = range;
        if let Some((&before, &length)) = self.free.range(..offset).next_back() {
            debug_assert!(before + length <= offset, "{range:?} is free already");
            if before + length == offset {
                self.free.remove(&before);
                offset = before;
                bytes += length;
            }
        }
        if let Some(length) = self.free.remove(&(offset + bytes)) {
            bytes += length;
        }
        self.free.insert(offset, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_apart_and_merge_again() {
        let mut staging = FreeRanges::new(0, 4096 + 100, 256);
        let a = staging.take(1).unwrap();
        let b = staging.take(257).unwrap();
        let c = staging.take(4096 - 256 - 512).unwrap();
        assert_eq!(staging.take(1), None);
        assert_eq!((a.offset, b.offset, c.offset), (0, 256, 768));
        staging.give(a);
        staging.give(c);
        assert_eq!(staging.take(4096), None, "b is still held");
        staging.give(b);
        assert_eq!(staging.take(4096), Some(Range { offset: 0, bytes: 4096 }));
        assert_eq!(staging.take(u64::MAX), None);
    }
}
