//! The mean wait of requests to DRAM while bandwidth is left.
//!
//! Calendars share bandwidth as a fluid, in which a request that finds room does not wait. Real
//! requests come irregularly and want rows of banks that other requests have just closed. So they
//! wait long before the channels are full, and the wait grows with the load. The mean wait is that
//! of a queue with irregular arrivals and equal services (Pollaczek and Khinchine): half a service
//! × load / (1 − load). The service time is the row cycle, after which a bank can open another row.

/// The load is measured over about this many picoseconds.
const SPAN: u64 = 1_000_000;
/// The wait grows no longer above this load, because queues are bounded. The calendars make later
/// requests wait.
const FULLEST: f64 = 0.97;

/// The load of DRAM, and the wait that follows from it.
#[derive(Clone, Debug)]
pub struct Crowd {
    row_ps: f64,
    bytes_per_ps: f64,
    /// Bytes requested since `since`.
    bytes: u64,
    since: u64,
    load: f64,
    wait: u64,
}

impl Crowd {
    /// Of a DRAM with that row cycle and bandwidth.
    #[must_use]
    pub fn new(row_nanoseconds: f64, gigabytes_per_second: f64) -> Self {
        let row_ps = row_nanoseconds * 1000.0;
        Crowd {
            row_ps,
            bytes_per_ps: gigabytes_per_second / 1000.0,
            bytes: 0,
            since: 0,
            load: 0.0,
            wait: 0,
        }
    }

    /// So much has been asked for.
    #[inline]
    pub fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    /// Picoseconds that a request waits.
    #[inline]
    #[must_use]
    pub fn wait(&self) -> u64 {
        self.wait
    }

    /// It is `now`.
    pub fn advance(&mut self, now: u64) {
        let elapsed = now.saturating_sub(self.since);
        if elapsed < SPAN / 16 {
            return;
        }
        let found = self.bytes as f64 / (elapsed as f64 * self.bytes_per_ps);
        let weight = elapsed as f64 / (elapsed + SPAN) as f64;
        self.load = (self.load + (found - self.load) * weight).clamp(0.0, FULLEST);
        self.wait = (self.row_ps * self.load / (2.0 * (1.0 - self.load))) as u64;
        self.bytes = 0;
        self.since = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The wait after a long time at a load of this share of 100 GB/s.
    fn wait(load: f64) -> u64 {
        let mut crowd = Crowd::new(20.0, 100.0);
        for step in 1..200 {
            crowd.add((load * 10_000.0) as u64);
            crowd.advance(step * 100_000);
        }
        crowd.wait()
    }

    #[test]
    fn waits_grow_with_load_as_in_a_queue() {
        assert_eq!(wait(0.0), 0);
        for (load, expected) in [(0.5, 10_000), (0.8, 40_000), (0.9, 90_000)] {
            assert!(wait(load).abs_diff(expected) < expected / 50, "{load}: {}", wait(load));
        }
        assert_eq!(wait(3.0), wait(0.97));
    }

    #[test]
    fn a_crowd_goes_when_nobody_comes() {
        let mut crowd = Crowd::new(20.0, 100.0);
        crowd.add(1_000_000);
        crowd.advance(1_000_000);
        assert!(crowd.wait() > 0);
        crowd.advance(1_000_000_000);
        assert!(crowd.wait() < 20, "{}", crowd.wait());
    }
}
