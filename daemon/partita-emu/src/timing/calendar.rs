//! A server of limited bandwidth whose requests may arrive out of order.

/// Units a byte. Buckets count in units, so that rounding does not change bandwidths.
const UNITS_PER_BYTE: u64 = 64;
/// Buckets of a calendar. Later requests share the last bucket.
const BUCKETS: u64 = 1 << 11;

#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    used: u32,
    /// The least number of buckets to skip from a full bucket.
    skip: u32,
}

/// Bandwidth in buckets of time. A customer takes what is left from its arrival on.
#[derive(Clone, Debug)]
pub struct Calendar {
    /// A bucket has `1 << shift` picoseconds.
    shift: u32,
    capacity: u32,
    /// Picoseconds per unit, times 2³² and rounded up.
    inverse: u64,
    first: u64,
    /// No bucket from here on has been used.
    end: u64,
    buckets: Vec<Bucket>,
}

impl Calendar {
    /// A server of that bandwidth. Buckets have about `bucket_ps` picoseconds, rounded up to a
    /// power of two.
    #[must_use]
    pub fn new(bucket_ps: u64, gigabytes_per_second: f64) -> Self {
        let shift = bucket_ps.clamp(1, 1 << 31).next_power_of_two().trailing_zeros();
        let bytes = gigabytes_per_second * (1_u64 << shift) as f64 / 1000.0;
        let capacity = (bytes * UNITS_PER_BYTE as f64).clamp(1.0, f64::from(u32::MAX / 2)) as u32;
        let inverse = (1_u64 << (shift + 32)).div_ceil(u64::from(capacity));
        let buckets = vec![Bucket::default(); BUCKETS as usize];
        Calendar { shift, capacity, inverse, first: 0, end: 0, buckets }
    }

    #[inline]
    fn at(bucket: u64) -> usize {
        (bucket % BUCKETS) as usize
    }

    /// Nobody arrives before `now` any more.
    pub fn advance(&mut self, now: u64) {
        let first = now >> self.shift;
        if first <= self.first {
            return;
        }
        for bucket in self.first..first.min(self.end) {
            self.buckets[Self::at(bucket)] = Bucket::default();
        }
        self.first = first;
    }

    /// Something of what serving a request at `time` will look at.
    #[inline]
    pub fn touch(&self, time: u64) -> u32 {
        self.buckets[Self::at(time >> self.shift)].used
    }

    /// Serves `bytes` from `time` on; returns when they are through.
    #[inline]
    pub fn serve(&mut self, time: u64, bytes: u64) -> u64 {
        let last = self.first + BUCKETS - 1;
        let start = (time >> self.shift).clamp(self.first, last);
        let units = bytes * UNITS_PER_BYTE;
        let bucket = &mut self.buckets[Self::at(start)];
        if u64::from(bucket.used) + units < u64::from(self.capacity) {
            bucket.used += units as u32;
            self.end = self.end.max(start + 1);
            return time.max(self.first << self.shift);
        }
        self.serve_late(time, start, last, units)
    }

    /// [`Calendar::serve`] for a request that exceeds its first bucket.
    #[inline(never)]
    fn serve_late(&mut self, time: u64, start: u64, last: u64, units: u64) -> u64 {
        let mut bucket = start;
        let mut left = units;
        loop {
            let entry = &mut self.buckets[Self::at(bucket)];
            let room = u64::from(self.capacity.saturating_sub(entry.used));
            if room == 0 && bucket < last {
                bucket = (bucket + 1 + u64::from(entry.skip)).min(last);
                continue;
            }
            let taken = if bucket == last { left } else { left.min(room) };
            entry.used = entry.used.saturating_add(taken.min(u64::from(u32::MAX)) as u32);
            left -= taken;
            if left == 0 {
                break;
            }
            bucket += 1;
        }
        self.end = self.end.max(bucket + 1);
        let first = &mut self.buckets[Self::at(start)];
        if bucket > start && first.used >= self.capacity {
            // All buckets between are full.
            first.skip = (bucket - start - 1) as u32;
        }
        let used = u64::from(self.buckets[Self::at(bucket)].used.min(self.capacity));
        let share = (u128::from(used) * u128::from(self.inverse)) >> 32;
        time.max(self.first << self.shift).max((bucket << self.shift) + share as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidth_is_what_it_says() {
        // 100 bytes in 1024 ps.
        let mut server = Calendar::new(1000, 100.0 * 1000.0 / 1024.0);
        let mut end = 0;
        for _ in 0..1000 {
            end = end.max(server.serve(0, 32));
        }
        assert_eq!(end, 320 * 1024);
        assert_eq!(server.serve(500_000, 32), 500_000, "later there is room");
        server.advance(400_000);
        assert!(server.serve(0, 1) >= 400_000 - 1024, "the past is over");
    }

    #[test]
    fn those_who_come_late_in_the_turn_get_what_is_left() {
        let mut server = Calendar::new(1000, 100.0 * 1000.0 / 1024.0);
        for time in 0..10 {
            server.serve(time * 1024, 50);
        }
        assert!(server.serve(0, 50) <= 1024);
    }

    #[test]
    fn rounding_does_not_change_bandwidth() {
        let mut server = Calendar::new(20_000, 27.5);
        let end = (0..10_000).map(|_| server.serve(0, 128)).max().unwrap();
        let rate = 1_280_000.0 / (end as f64 / 1000.0);
        assert!((rate / 27.5 - 1.0).abs() < 0.001, "{rate}");
    }
}
