//! Tags of a set-associative cache with sectors: hits, and write-backs.

/// Bytes of a line.
const LINE_BYTES: u64 = 128;
/// Sectors of a line.
const SECTORS: u32 = 4;

/// The ways of a set from the most recently used on, four bits each.
#[derive(Clone, Copy, Debug)]
struct Order(u64);

impl Order {
    const fn of(ways: usize) -> Self {
        Order(0xfedc_ba98_7654_3210 & u64::MAX >> (64 - 4 * ways))
    }

    /// The bits before a way's place.
    #[inline]
    fn before(self, way: usize) -> u64 {
        const EACH: u64 = 0x1111_1111_1111_1111;
        let differ = self.0 ^ (EACH * way as u64);
        // The lowest place that is zero is found for certain, because borrows only go up.
        let zero = differ.wrapping_sub(EACH) & !differ & EACH << 3;
        (1 << (zero.trailing_zeros() & !3)) - 1
    }

    /// The way was used.
    #[inline]
    fn used(&mut self, way: usize) {
        let before = self.before(way);
        let behind = self.0 & !(before << 4 | 0xf);
        self.0 = behind | (self.0 & before) << 4 | way as u64;
    }

    /// The way is the next to be replaced.
    #[inline]
    fn emptied(&mut self, way: usize, ways: usize) {
        let before = self.before(way);
        self.0 = self.0 & before | self.0 >> 4 & !before | (way as u64) << (4 * (ways - 1));
    }

    /// The way to replace.
    #[inline]
    fn last(self, ways: usize) -> usize {
        (self.0 >> (4 * (ways - 1)) & 0xf) as usize
    }
}

/// The most ways of a set.
const MOST_WAYS: usize = 16;

/// What a look-up needs beside tags stands in one line of the host's cache. Of the tags it compares
/// only those whose digest is that of the line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Set<const WAYS: usize> {
    /// A byte for each way.
    digests: [u64; MOST_WAYS / 8],
    order: Order,
    /// Sectors that are here, and dirty ones in the upper half.
    sectors: [u8; WAYS],
    tags: [u64; WAYS],
}

impl<const WAYS: usize> Set<WAYS> {
    const EMPTY: Self = Set {
        digests: [0; MOST_WAYS / 8],
        order: Order::of(WAYS),
        sectors: [0; WAYS],
        tags: [u64::MAX; WAYS],
    };

    #[inline]
    fn digest(line: u64) -> u8 {
        (line.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
    }

    /// The way of a line.
    #[inline]
    fn find(&self, line: u64) -> Option<usize> {
        const EACH: u64 = 0x0101_0101_0101_0101;
        const LOWER: u64 = EACH * 0x7f;
        let wanted = EACH * u64::from(Self::digest(line));
        for (part, digests) in self.digests.iter().take(WAYS.div_ceil(8)).enumerate() {
            let differ = digests ^ wanted;
            let mut equal = !(((differ & LOWER) + LOWER) | differ | LOWER);
            while equal != 0 {
                let way = 8 * part + equal.trailing_zeros() as usize / 8;
                if self.tags.get(way) == Some(&line) {
                    return Some(way);
                }
                equal &= equal - 1;
            }
        }
        None
    }

    /// Puts a line into a way.
    #[inline]
    fn fill(&mut self, way: usize, line: u64, sectors: u8) {
        let shift = way % 8 * 8;
        let digests = &mut self.digests[way / 8];
        *digests = *digests & !(0xff << shift) | u64::from(Self::digest(line)) << shift;
        self.tags[way] = line;
        self.sectors[way] = sectors;
    }
}

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
pub struct Cache<const WAYS: usize> {
    /// Whether upper bits of a line's number help to choose its set.
    folded: bool,
    sets: Vec<Set<WAYS>>,
}

impl<const WAYS: usize> Cache<WAYS> {
    /// A cache of `bytes` with lines of 128 bytes. Less than a set counts as one.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        const { assert!(0 < WAYS && WAYS <= MOST_WAYS) }
        let sets = (bytes / LINE_BYTES / WAYS as u64).clamp(1, 1 << 28);
        Cache { folded: true, sets: vec![Set::EMPTY; sets as usize] }
    }

    /// The same with consecutive lines in consecutive sets: strides of a power of two meet few.
    #[must_use]
    pub fn in_order(bytes: u64) -> Self {
        Cache { folded: false, ..Cache::new(bytes) }
    }

    /// The set of a line. Folding in the upper bits spreads strides of a power of two over the
    /// sets.
    #[inline]
    fn set(&self, line: u64) -> usize {
        let sets = self.sets.len() as u32;
        let hash = if self.folded { line ^ (line >> 13) ^ (line >> 27) } else { line } as u32;
        (if sets.is_power_of_two() { hash & (sets - 1) } else { hash % sets }) as usize
    }

    /// Something of what a look-up of the line will compare.
    #[inline]
    pub fn touch(&self, line: u64) -> u64 {
        self.sets[self.set(line)].order.0
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

    /// Drops a line, without writing it back. The next line takes its way.
    #[inline]
    pub fn evict(&mut self, line: u64) {
        let index = self.set(line);
        let set = &mut self.sets[index];
        if let Some(way) = set.find(line) {
            set.fill(way, u64::MAX, 0);
            set.order.emptied(way, WAYS);
        }
    }

    #[inline]
    fn access(&mut self, line: u64, sectors: u8, dirty: u8) -> Found {
        let index = self.set(line);
        let set = &mut self.sets[index];
        let state = sectors | dirty << SECTORS;
        if let Some(way) = set.find(line) {
            let missed = sectors & !set.sectors[way];
            set.sectors[way] |= state;
            set.order.used(way);
            return Found { missed, written_back: 0 };
        }
        let way = set.order.last(WAYS);
        let written_back = (set.sectors[way] >> SECTORS).count_ones();
        set.fill(way, line, state);
        set.order.used(way);
        Found { missed: sectors, written_back }
    }

    /// Forgets everything, without writing anything back.
    pub fn clear(&mut self) {
        self.sets.fill(Set::EMPTY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_hits() {
        let mut cache = Cache::<4>::new(16 << 10);
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
        let mut cache = Cache::<4>::new(16 << 10);
        for line in 0..128 {
            cache.write(line, 0b1111);
        }
        let written: u32 = (1000..2000).map(|line| cache.read(line, 1).written_back).sum();
        assert_eq!(written, 128 * 4);
        let written: u32 = (2000..3000).map(|line| cache.read(line, 1).written_back).sum();
        assert_eq!(written, 0, "what is clean is dropped");
    }

    /// A cache of lists: each set's lines with their sectors and dirty sectors, the most recently
    /// used first.
    struct Lists<const WAYS: usize>(Vec<Vec<(u64, u8, u8)>>);

    impl<const WAYS: usize> Lists<WAYS> {
        fn access(&mut self, set: usize, line: u64, sectors: u8, dirty: u8) -> Found {
            let lines = &mut self.0[set];
            let here = lines.iter().position(|(tag, ..)| *tag == line);
            let (_, held, was_dirty) = here.map_or((line, 0, 0), |at| lines.remove(at));
            let gone = if lines.len() == WAYS { lines.pop() } else { None };
            lines.insert(0, (line, held | sectors, was_dirty | dirty));
            let written_back = gone.map_or(0, |(.., dirty)| dirty.count_ones());
            Found { missed: sectors & !held, written_back }
        }
    }

    fn does_as_lists<const WAYS: usize>() {
        let mut cache = Cache::<WAYS>::new((WAYS as u64 * LINE_BYTES) * 3);
        let mut lists = Lists::<WAYS>(vec![Vec::new(); 3]);
        let mut state = 1_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (state >> 33) % below
        };
        let (mut hits, mut written_back) = (0, 0);
        for _ in 0..100_000 {
            // Some lines differ in upper bits only.
            let line = random(WAYS as u64 * 4) | random(2) << 39;
            let sectors = 1 << random(4);
            let set = cache.set(line);
            let found = match random(8) {
                0 => {
                    cache.evict(line);
                    lists.0[set].retain(|(tag, ..)| *tag != line);
                    continue;
                }
                1 | 2 => (cache.write(line, sectors), lists.access(set, line, sectors, sectors)),
                _ => (cache.read(line, sectors), lists.access(set, line, sectors, 0)),
            };
            assert_eq!(found.0, found.1);
            hits += u32::from(found.0.missed == 0);
            written_back += found.0.written_back;
        }
        assert!(hits > 10_000 && written_back > 1_000, "{hits} {written_back}");
    }

    #[test]
    fn the_least_recently_used_line_makes_room() {
        does_as_lists::<4>();
        does_as_lists::<16>();
    }
}
