//! Tags of a set-associative cache with sectors.

#[derive(Clone, Copy, Debug)]
struct Way {
    tag: u64,
    sectors: u8,
    used: u32,
}

/// Tags only: what would hit.
#[derive(Clone, Debug)]
pub struct Cache {
    ways: usize,
    sets: usize,
    lines: Vec<Way>,
    clock: u32,
}

impl Cache {
    /// A cache of `bytes` with lines of 128 bytes and `ways` ways.
    #[must_use]
    pub fn new(bytes: u64, ways: usize) -> Self {
        let ways = ways.max(1);
        let sets = ((bytes / 128) as usize / ways).max(1);
        Cache { ways, sets, lines: vec![Way { tag: u64::MAX, sectors: 0, used: 0 }; sets * ways], clock: 0 }
    }

    /// Looks `sectors` of a line up and brings in what misses. Returns the sectors that missed.
    pub fn access(&mut self, line: u64, sectors: u8) -> u8 {
        self.clock = self.clock.wrapping_add(1);
        // Upper bits are folded in, so that strides of a power of two spread over the sets.
        let hash = line ^ (line >> 13) ^ (line >> 27);
        let set = (hash % self.sets as u64) as usize * self.ways;
        let clock = self.clock;
        let ways = &mut self.lines[set..set + self.ways];
        if let Some(way) = ways.iter_mut().find(|way| way.tag == line) {
            let missed = sectors & !way.sectors;
            way.sectors |= sectors;
            way.used = clock;
            return missed;
        }
        if let Some(way) = ways.iter_mut().max_by_key(|way| clock.wrapping_sub(way.used)) {
            *way = Way { tag: line, sectors, used: clock };
        }
        sectors
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.lines.fill(Way { tag: u64::MAX, sectors: 0, used: 0 });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_hits() {
        let mut cache = Cache::new(16 << 10, 4);
        for line in 0..128 {
            assert_eq!(cache.access(line, 0b0011), 0b0011);
        }
        let missed: u32 = (0..128).map(|line| cache.access(line, 0b0111).count_ones()).sum();
        assert_eq!(missed, 128, "one new sector each");
        for line in 1000..2000 {
            cache.access(line, 1);
        }
        assert_eq!(cache.access(3, 1), 1, "evicted");
    }
}
