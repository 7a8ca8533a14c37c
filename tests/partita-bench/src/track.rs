//! The progress of an application over time, and speeds.

use serde::{Deserialize, Serialize};

/// CTAs of original work that an application had completed at moments of device time, from its
/// first launch on.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Track {
    /// Time in nanoseconds and count of CTAs, where the count has grown.
    points: Vec<(u64, u64)>,
    /// Time of the last observation, in nanoseconds.
    end: u64,
}

impl Track {
    /// Adds an observation, later than all before.
    pub fn see(&mut self, nanos: u64, ctas: u64) {
        self.end = nanos;
        if self.points.last().map_or(0, |(_, before)| *before) < ctas {
            self.points.push((nanos, ctas));
        }
    }

    /// When it was seen last, in nanoseconds.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.end
    }

    /// CTAs at the end.
    #[must_use]
    pub fn ctas(&self) -> u64 {
        self.points.last().map_or(0, |(_, ctas)| *ctas)
    }

    /// When it was last seen to grow: between such moments lie whole CTAs.
    #[must_use]
    pub fn last_growth(&self) -> u64 {
        self.points.last().map_or(0, |(time, _)| *time)
    }

    /// CTAs at a moment, fractions of them between two moments at which it grew; none are added
    /// beyond the last of those.
    #[must_use]
    pub fn ctas_at(&self, nanos: f64) -> f64 {
        let index = self.points.partition_point(|(time, _)| float(*time) <= nanos);
        let (before, after) = self.around(index);
        along(before, after, nanos)
    }

    /// Nanoseconds after which so many CTAs were completed; beyond its end at its mean pace.
    #[must_use]
    pub fn time_of(&self, ctas: f64) -> f64 {
        let index = self.points.partition_point(|(_, count)| float(*count) <= ctas);
        if index == self.points.len() {
            let (time, count) = self.points.last().copied().unwrap_or((self.end, 0));
            let pace = if count == 0 { 0.0 } else { float(time) / float(count) };
            return float(time) + (ctas - float(count)) * pace;
        }
        let swapped = |(time, count): (f64, f64)| (count, time);
        let (before, after) = self.around(index);
        along(swapped(before), swapped(after), ctas)
    }

    /// When it was first seen to have completed so many CTAs, in nanoseconds; the end where it was
    /// not.
    #[must_use]
    pub fn reached(&self, ctas: f64) -> f64 {
        let index = self.points.partition_point(|(_, count)| float(*count) < ctas);
        float(self.points.get(index).map_or(self.end, |(time, _)| *time))
    }

    fn around(&self, index: usize) -> ((f64, f64), (f64, f64)) {
        let point = |(time, count): (u64, u64)| (float(time), float(count));
        let before = index.checked_sub(1).map_or((0.0, 0.0), |index| point(self.points[index]));
        (before, self.points.get(index).map_or(before, |after| point(*after)))
    }

    /// Work between two moments in the time that `alone` took for the same CTAs, by the time that
    /// it took here: speed against alone. Work is what the original did alone, so that launches of
    /// different kernels count as what they are.
    #[must_use]
    pub fn speed_against(&self, alone: &Track, from: u64, to: u64) -> f64 {
        let (from, to) = (float(from), float(to));
        let done = alone.time_of(self.ctas_at(to)) - alone.time_of(self.ctas_at(from));
        if to > from { done / (to - from) } else { 0.0 }
    }
}

/// System throughput: the sum of speeds against alone (Eyerman and Eeckhout 2008).
#[must_use]
pub fn stp(speeds: &[f64]) -> f64 {
    speeds.iter().sum()
}

/// Average normalised turnaround time: the mean of the slowdowns (Eyerman and Eeckhout 2008).
#[must_use]
pub fn antt(speeds: &[f64]) -> f64 {
    let slowdowns: f64 = speeds.iter().map(|speed| 1.0 / speed.max(1e-9)).sum();
    slowdowns / float(speeds.len().max(1) as u64)
}

fn along((x0, y0): (f64, f64), (x1, y1): (f64, f64), x: f64) -> f64 {
    if x1 > x0 { y0 + (y1 - y0) * (x - x0) / (x1 - x0) } else { y0 }
}

#[expect(clippy::cast_precision_loss, reason = "nanoseconds and CTAs of a run are far below 2^52")]
pub(crate) fn float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn track(points: &[(u64, u64)]) -> Track {
        let mut track = Track::default();
        for (time, ctas) in points {
            track.see(*time, *ctas);
        }
        track
    }

    #[track_caller]
    fn close(actual: f64, expected: f64) {
        assert!((actual - expected).abs() < 1e-9, "{actual} is not {expected}");
    }

    #[test]
    fn work_is_what_it_took_alone() {
        // A kernel of 10 CTAs of 10 ns each, then one of 10 CTAs of 100 ns.
        let alone = track(&[(100, 10), (1100, 20)]);
        close(alone.time_of(5.0), 50.0);
        close(alone.time_of(15.0), 600.0);
        close(alone.time_of(30.0), 1100.0 + 10.0 * 55.0);
        // Half as fast.
        let shared = track(&[(200, 10), (2200, 20)]);
        close(shared.speed_against(&alone, 0, 2200), 0.5);
        close(shared.speed_against(&alone, 100, 1200), 0.5);
        close(alone.speed_against(&alone, 0, 1100), 1.0);
        close(Track::default().speed_against(&alone, 0, 100), 0.0);
    }

    #[test]
    fn throughput_and_turnaround() {
        close(stp(&[0.5, 0.75]), 1.25);
        close(antt(&[0.5, 0.25]), 3.0);
    }
}
