//! From the figures of several seeds to their means and spreads.

use partita_cli::report::Metric;

/// One figure for all seeds: the mean, and the sample standard deviation. A goal is met where every
/// seed meets it. A figure that some seeds lack is that of the others.
pub fn combined<'a>(seeds: impl Iterator<Item = &'a [Metric]>) -> Vec<Metric> {
    let seeds: Vec<&[Metric]> = seeds.collect();
    if let [only] = seeds[..] {
        return only.to_vec();
    }
    let mut metrics: Vec<Metric> = Vec::new();
    for metric in seeds.iter().copied().flatten() {
        if metrics.iter().any(|known| known.name == metric.name) {
            continue;
        }
        let same: Vec<&Metric> =
            seeds.iter().copied().flatten().filter(|other| other.name == metric.name).collect();
        let count = same.len() as f64;
        let value = same.iter().map(|metric| metric.value).sum::<f64>() / count;
        let squares: f64 = same.iter().map(|metric| (metric.value - value).powi(2)).sum();
        metrics.push(Metric {
            value,
            spread: (same.len() > 1).then(|| (squares / (count - 1.0)).sqrt()),
            met: metric.met.map(|_| same.iter().all(|metric| metric.met == Some(true))),
            ..metric.clone()
        });
    }
    metrics
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_have_a_mean_and_a_spread() {
        let seeds = [1.0, 2.0, 6.0].map(|value| {
            let mut metrics = vec![Metric::at_least("gain", value, "%", 1.5)];
            if value > 1.0 {
                metrics.push(Metric::plain("in two of three", value, ""));
            }
            metrics
        });
        let found = combined(seeds.iter().map(Vec::as_slice));
        let figures = |metric: &Metric| (metric.value, metric.spread, metric.met);
        assert_eq!(figures(&found[0]), (3.0, Some(7.0_f64.sqrt()), Some(false)));
        assert_eq!(figures(&found[1]), (4.0, Some(8.0_f64.sqrt()), None));
        assert_eq!(found.len(), 2);
        assert_eq!(combined(seeds[..1].iter().map(Vec::as_slice)), seeds[0]);
    }
}
