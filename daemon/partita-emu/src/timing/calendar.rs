//! A server of limited bandwidth whose customers may arrive out of order.

/// Bandwidth in buckets of time. A customer takes what is left from its arrival on.
#[derive(Clone, Debug)]
pub struct Calendar {
    bucket_ps: u64,
    capacity: u64,
    first: u64,
    /// No bucket from here on has been used.
    end: u64,
    used: Vec<u64>,
    /// For a full bucket, how many to skip at least.
    skip: Vec<u32>,
}

const BUCKETS: usize = 1 << 14;

impl Calendar {
    /// `bytes_per_bucket` bytes in every `bucket_ps` picoseconds.
    #[must_use]
    pub fn new(bucket_ps: u64, bytes_per_bucket: u64) -> Self {
        Calendar {
            bucket_ps: bucket_ps.max(1),
            capacity: bytes_per_bucket.max(1),
            first: 0,
            end: 0,
            used: vec![0; BUCKETS],
            skip: vec![0; BUCKETS],
        }
    }

    /// Nobody arrives before `now` any more.
    pub fn advance(&mut self, now: u64) {
        let first = now / self.bucket_ps;
        if first <= self.first {
            return;
        }
        for bucket in self.first..first.min(self.end) {
            let index = (bucket % BUCKETS as u64) as usize;
            self.used[index] = 0;
            self.skip[index] = 0;
        }
        self.first = first;
    }

    /// Serves `bytes` from `time` on; returns when they are through.
    pub fn serve(&mut self, time: u64, bytes: u64) -> u64 {
        let last = self.first + BUCKETS as u64 - 1;
        let mut bucket = (time / self.bucket_ps).clamp(self.first, last);
        let start = bucket;
        let mut left = bytes;
        loop {
            let index = (bucket % BUCKETS as u64) as usize;
            let room = self.capacity - self.used[index].min(self.capacity);
            if room == 0 && bucket < last {
                bucket = (bucket + 1 + u64::from(self.skip[index])).min(last);
                continue;
            }
            let taken = if bucket == last { left } else { left.min(room) };
            self.used[index] += taken;
            left -= taken;
            if left == 0 {
                break;
            }
            bucket += 1;
        }
        self.end = self.end.max(bucket + 1);
        let first_index = (start % BUCKETS as u64) as usize;
        if self.used[first_index] >= self.capacity && bucket > start {
            // All buckets between are full.
            self.skip[first_index] = (bucket - start - 1).min(u64::from(u32::MAX)) as u32;
        }
        let share =
            self.used[(bucket % BUCKETS as u64) as usize].min(self.capacity) * self.bucket_ps / self.capacity;
        let time = time.max(self.first * self.bucket_ps);
        if bucket == start && self.used[first_index] < self.capacity {
            return time;
        }
        time.max(bucket * self.bucket_ps + share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidth_is_what_it_says() {
        let mut server = Calendar::new(1000, 100);
        let mut end = 0;
        for _ in 0..1000 {
            end = end.max(server.serve(0, 32));
        }
        assert_eq!(end, 320 * 1000);
        assert_eq!(server.serve(500_000, 32), 500_000, "later there is room");
        server.advance(400_000);
        assert!(server.serve(0, 1) >= 400_000, "the past is over");
    }

    #[test]
    fn those_who_come_late_in_the_turn_get_what_is_left() {
        let mut server = Calendar::new(1000, 100);
        for time in 0..10 {
            server.serve(time * 1000, 50);
        }
        assert!(server.serve(0, 50) <= 1000);
    }
}
