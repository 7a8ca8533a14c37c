//! Tags of a set-associative cache with sectors: hits, and write-backs.

/// Bytes of a line.
const LINE_BYTES: u64 = 128;

/// Tag, sectors and replacement state are adjacent, so that a look-up touches few lines of the
/// host's cache.
#[derive(Clone, Copy, Debug)]
struct Way {
    tag: u64,
    used: u32,
    sectors: u8,
    dirty: u8,
}

const EMPTY: Way = Way { tag: u64::MAX, used: 0, sectors: 0, dirty: 0 };

/// The result of a look-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Found {
    /// The sectors that were not there.
    pub missed: u8,
    /// How many dirty sectors had to make room.
    pub written_back: u32,
}

/// Tags only.
#[derive(Clone, Debug)]
pub struct Cache {
    ways: usize,
    sets: u32,
    /// Whether upper bits of a line's number help to choose its set.
    folded: bool,
    lines: Vec<Way>,
    clock: u32,
}

impl Cache {
    /// A cache of `bytes` with lines of 128 bytes and `ways` ways. Less than a set counts as one.
    #[must_use]
    pub fn new(bytes: u64, ways: usize) -> Self {
        let ways = ways.max(1);
        let sets = (bytes / LINE_BYTES / ways as u64).clamp(1, 1 << 28) as u32;
        Cache { ways, sets, folded: true, lines: vec![EMPTY; sets as usize * ways], clock: 0 }
    }

    /// The same with consecutive lines in consecutive sets: strides of a power of two meet few.
    #[must_use]
    pub fn in_order(bytes: u64, ways: usize) -> Self {
        Cache { folded: false, ..Cache::new(bytes, ways) }
    }

    /// The set of a line. Folding in the upper bits spreads strides of a power of two over the
    /// sets.
    #[inline]
    fn set(&self, line: u64) -> usize {
        let hash = if self.folded { line ^ (line >> 13) ^ (line >> 27) } else { line } as u32;
        let set =
            if self.sets.is_power_of_two() { hash & (self.sets - 1) } else { hash % self.sets };
        set as usize * self.ways
    }

    /// Something of all that a look-up of the line will compare.
    #[inline]
    pub fn touch(&self, line: u64) -> u64 {
        let set = self.set(line);
        // One line of the host's cache holds four ways.
        self.lines[set..set + self.ways].iter().step_by(4).fold(0, |seen, way| seen ^ way.tag)
    }

    /// Reads `sectors` of a line and brings in what misses.
    #[inline]
    pub fn read(&mut self, line: u64, sectors: u8) -> Found {
        self.access(line, sectors, 0)
    }

    /// Writes whole `sectors` of a line: they are here afterwards and dirty.
    #[inline]
    pub fn write(&mut self, line: u64, sectors: u8) -> Found {
        self.access(line, sectors, sectors)
    }

    /// Writes `sectors` of a line that is here. One that is not is brought in as it was: the store
    /// went past this cache.
    #[inline]
    pub fn write_found(&mut self, line: u64, sectors: u8) -> Found {
        let found = self.access(line, sectors, 0);
        if found.missed == 0 {
            self.access(line, sectors, sectors);
        }
        found
    }

    /// Drops a line, without writing it back.
    #[inline]
    pub fn evict(&mut self, line: u64) {
        let set = self.set(line);
        if let Some(way) = self.lines[set..set + self.ways].iter_mut().find(|way| way.tag == line) {
            // The way counts as least recently used, so the next line replaces it.
            *way = Way { used: self.clock.wrapping_sub(u32::MAX / 2), ..EMPTY };
        }
    }

    #[inline]
    fn access(&mut self, line: u64, sectors: u8, dirty: u8) -> Found {
        self.clock = self.clock.wrapping_add(1);
        let clock = self.clock;
        let set = self.set(line);
        let ways = &mut self.lines[set..set + self.ways];
        if let Some(way) = ways.iter_mut().find(|way| way.tag == line) {
            let missed = sectors & !way.sectors;
            way.sectors |= sectors;
            way.dirty |= dirty;
            way.used = clock;
            return Found { missed, written_back: 0 };
        }
        let mut written_back = 0;
        if let Some(way) = ways.iter_mut().max_by_key(|way| clock.wrapping_sub(way.used)) {
            written_back = way.dirty.count_ones();
            *way = Way { tag: line, used: clock, sectors, dirty };
        }
        Found { missed: sectors, written_back }
    }

    /// Forgets everything, without writing anything back.
    pub fn clear(&mut self) {
        self.lines.fill(EMPTY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_hits() {
        let mut cache = Cache::new(16 << 10, 4);
        for line in 0..128 {
            assert_eq!(cache.read(line, 0b0011).missed, 0b0011);
        }
        let missed: u32 = (0..128).map(|line| cache.read(line, 0b0111).missed.count_ones()).sum();
        assert_eq!(missed, 128, "one new sector each");
        for line in 1000..2000 {
            cache.read(line, 1);
        }
        assert_eq!(cache.read(3, 1).missed, 1, "evicted");
    }

    #[test]
    fn dirty_sectors_are_written_back_once() {
        let mut cache = Cache::new(16 << 10, 4);
        for line in 0..128 {
            cache.write(line, 0b1111);
        }
        let written: u32 = (1000..2000).map(|line| cache.read(line, 1).written_back).sum();
        assert_eq!(written, 128 * 4);
        let written: u32 = (2000..3000).map(|line| cache.read(line, 1).written_back).sum();
        assert_eq!(written, 0, "what is clean is dropped");
    }
}
