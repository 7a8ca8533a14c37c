//! Means, quantiles and the spread over seeds.

use std::collections::BTreeMap;

/// The mean; 0 of none.
pub(crate) fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0_u32), |(sum, count), value| (sum + value, count + 1));
    sum / f64::from(count.max(1))
}

/// Values with the seed that each comes from.
pub(crate) struct Column {
    sorted: Vec<f64>,
    by_seed: BTreeMap<u64, Vec<f64>>,
}

impl Column {
    pub(crate) fn new(values: impl Iterator<Item = (u64, f64)>) -> Self {
        let mut by_seed: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
        for (seed, value) in values {
            by_seed.entry(seed).or_default().push(value);
        }
        let mut sorted: Vec<f64> = by_seed.values().flatten().copied().collect();
        sorted.sort_by(f64::total_cmp);
        Column { sorted, by_seed }
    }

    pub(crate) fn mean(&self) -> f64 {
        mean(self.sorted.iter().copied())
    }

    /// The standard deviation of the mean over seeds.
    pub(crate) fn spread(&self) -> f64 {
        let means: Vec<f64> =
            self.by_seed.values().map(|values| mean(values.iter().copied())).collect();
        let all = mean(means.iter().copied());
        mean(means.iter().map(|one| (one - all).powi(2))).sqrt()
    }

    /// The value below which lies such a part of all; 0 of none.
    pub(crate) fn quantile(&self, part: f64) -> f64 {
        let last = u32::try_from(self.sorted.len().saturating_sub(1)).unwrap_or(u32::MAX);
        let at = usize::try_from(crate::simulator::count(f64::from(last) * part + 0.5));
        at.ok().and_then(|at| self.sorted.get(at)).copied().unwrap_or(0.0)
    }
}
