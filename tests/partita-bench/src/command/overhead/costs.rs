//! What each kernel of a program costs with partitions, from recordings of both runs: the n-th
//! launch of a kernel in one run is the n-th launch of that kernel in the other.

use super::recorded::{Interval, Launched, Launches, share_out};
use partita_cli::table::{Table, printable};
use serde::Serialize;
use std::collections::BTreeMap;

/// The bits of a control block's address that number a helper grid (`partita_model::control`).
const HELPER_BITS: u64 = 31;

/// How the entries that Partita puts beside a kernel begin; the kernel's name follows
/// (`partita_ptx::count`, `partita_ptx::WorkerOptions::keep_originals`).
const COUNTING: &str = "pw_counting_";
const ORIGINAL: &str = "pw_original_";

/// What a kernel costs in a form.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct KernelCost {
    /// Its name.
    pub kernel: String,
    /// Its form with partitions.
    pub form: String,
    /// Its launches.
    pub launches: usize,
    /// Cycles of all its launches as written. A cycle with several launches in flight counts in
    /// equal parts for each.
    pub original: u64,
    /// Cycles of all its launches with partitions, counting launches included.
    pub run: u64,
    /// Cycles of its counting launches.
    pub counting: u64,
    /// Cycles that a launch costs more, whatever its CTAs.
    pub fixed: Option<f64>,
    /// Cycles that each CTA costs more. Both are `None` where all launches have as many CTAs.
    pub per_cta: Option<f64>,
}

impl KernelCost {
    fn lost(&self) -> i64 {
        self.run.cast_signed() - self.original.cast_signed()
    }
}

/// Launches of one kernel with partitions.
#[derive(Default)]
struct Runs {
    /// Cycles of each grid.
    cycles: Vec<f64>,
    /// Whether a grid had the kernel's form, or counted ahead of the form.
    has_form: bool,
    /// Cycles of counting launches.
    counting: f64,
}

/// The costs by kernel, those with most lost time first.
pub fn costs(written: &Launches, shared: &Launches) -> Vec<KernelCost> {
    let intervals: Vec<Interval> = written.all.iter().map(|launch| launch.interval).collect();
    let mut kernels: BTreeMap<&str, Vec<(&Launched, f64)>> = BTreeMap::new();
    for (launch, cycles) in written.all.iter().zip(share_out(&intervals)) {
        kernels.entry(&launch.kernel).or_default().push((launch, cycles));
    }
    let runs = runs(&kernels, shared);
    let none = Runs::default();
    let mut costs: Vec<KernelCost> = kernels
        .iter()
        .map(|(name, launches)| {
            let Runs { cycles, has_form, counting } = runs.get(name).unwrap_or(&none);
            let pairs = launches
                .iter()
                .zip(cycles)
                .map(|((launch, original), cycles)| (launch.ctas as f64, cycles - original));
            let pairs: Vec<(f64, f64)> = pairs.collect();
            let line = Some(pairs).filter(|_| cycles.len() == launches.len());
            let line = line.and_then(|pairs| fit(&pairs));
            let form = written.forms.get(*name).copied().filter(|_| *has_form);
            KernelCost {
                kernel: (*name).to_owned(),
                form: form.unwrap_or("original").to_owned(),
                launches: launches.len(),
                original: whole(launches.iter().map(|(_, cycles)| cycles).sum()),
                run: whole(cycles.iter().sum::<f64>() + counting),
                counting: whole(*counting),
                fixed: line.map(|(fixed, _)| fixed),
                per_cta: line.map(|(_, slope)| slope),
            }
        })
        .collect();
    costs.sort_by_key(|cost| -cost.lost());
    costs
}

/// The grids with partitions by the program's kernel. A helper grid runs beside its main grid,
/// whose time has its time.
fn runs<'a>(
    kernels: &BTreeMap<&'a str, Vec<(&Launched, f64)>>,
    shared: &Launches,
) -> BTreeMap<&'a str, Runs> {
    // A name that the program has taken gets an ending.
    let owner = |entry: &str| {
        let own = [COUNTING, ORIGINAL].iter().find_map(|prefix| entry.strip_prefix(prefix));
        let own = own.unwrap_or(entry);
        let names = kernels.keys().filter(|name| own.starts_with(**name));
        names.max_by_key(|name| name.len()).copied()
    };
    let grids = shared.all.iter().filter_map(|grid| {
        let name = owner(&grid.kernel)?;
        let before = kernels[name].first()?.0.params.len().next_multiple_of(8);
        let control = grid.params.get(before..before + 8).and_then(|bytes| bytes.try_into().ok());
        let control = control.map(u64::from_le_bytes);
        let is_helper = control.is_some_and(|address| address & HELPER_BITS != 0);
        (!is_helper).then_some((name, grid))
    });
    let grids: Vec<(&str, &Launched)> = grids.collect();
    let intervals: Vec<Interval> = grids.iter().map(|(_, grid)| grid.interval).collect();
    let mut runs: BTreeMap<&str, Runs> = BTreeMap::new();
    for ((name, grid), cycles) in grids.into_iter().zip(share_out(&intervals)) {
        let run = runs.entry(name).or_default();
        if grid.kernel.starts_with(COUNTING) {
            // A counting launch of all CTAs leaves none to the form.
            run.counting += cycles;
            run.has_form = true;
        } else {
            run.cycles.push(cycles);
            run.has_form |= grid.kernel == name;
        }
    }
    runs
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "cycles are positive and far below 2^53"
)]
fn whole(cycles: f64) -> u64 {
    cycles.round().max(0.0) as u64
}

/// The line of least squares through points: its value at 0, and its slope. `None` where all
/// points have the same abscissa.
fn fit(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    let count = points.len() as f64;
    let mean = |of: &dyn Fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(&|point| point.0), mean(&|point| point.1));
    let spread: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    if points.len() < 2 || spread < 0.5 {
        return None;
    }
    let slope = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum::<f64>() / spread;
    Some((y - slope * x, slope))
}

/// Kernels as text.
pub fn table(kernels: &[KernelCost]) -> String {
    let mut table = Table::new(&[
        "KERNEL",
        "FORM",
        "LAUNCHES",
        "AS WRITTEN",
        "AS RUN",
        "COUNTING",
        "LOST",
        "A LAUNCH",
        "A CTA",
    ]);
    let lost: i64 = kernels.iter().map(|kernel| kernel.lost().max(0)).sum();
    for kernel in kernels {
        let share = 100.0 * kernel.lost().max(0) as f64 / lost.max(1) as f64;
        let part = |part: Option<f64>| part.map(|cycles| format!("{cycles:.1}"));
        table.row([
            printable(&kernel.kernel),
            kernel.form.clone(),
            kernel.launches.to_string(),
            kernel.original.to_string(),
            kernel.run.to_string(),
            kernel.counting.to_string(),
            format!("{} ({share:.0} %)", kernel.lost()),
            part(kernel.fixed).unwrap_or_default(),
            part(kernel.per_cta).unwrap_or_default(),
        ]);
    }
    format!("\nCycles by kernel, those with most lost time first:\n\n{}", table.render())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launched(kernel: &str, ctas: u64, interval: (u32, u32), params: &[u64]) -> Launched {
        let params = params.iter().flat_map(|word| word.to_le_bytes()).collect();
        let interval = (f64::from(interval.0), f64::from(interval.1));
        Launched { kernel: kernel.to_owned(), ctas, params, interval }
    }

    #[test]
    fn lost_time_is_told_by_kernel() {
        let written = Launches {
            all: vec![
                launched("a", 10, (0, 1_000), &[1]),
                launched("b", 5, (1_000, 1_100), &[]),
                launched("a", 30, (1_100, 3_100), &[1]),
            ],
            forms: [("a".to_owned(), "worker"), ("b".to_owned(), "ticket")].into(),
            ..Launches::default()
        };
        let shared = Launches {
            all: vec![
                launched("a", 4, (0, 1_120), &[1, 4096]),
                launched("a", 2, (200, 900), &[1, 4096 + 3]),
                launched("pw_original_b", 5, (1_120, 1_230), &[]),
                launched("pw_counting_a", 3, (1_230, 1_730), &[1, 8192]),
                launched("a", 4, (1_730, 3_890), &[1, 8192]),
            ],
            ..Launches::default()
        };
        let costs = costs(&written, &shared);
        let told: Vec<_> = costs
            .iter()
            .map(|cost| (cost.kernel.as_str(), cost.form.as_str(), cost.launches, cost.lost()))
            .collect();
        assert_eq!(told, [("a", "worker", 2, 780), ("b", "original", 1, 10)]);
        assert_eq!((costs[0].counting, costs[1].counting), (500, 0));
        // 100 cycles a launch, and 2 a CTA, without the counting launch.
        assert!((costs[0].fixed.unwrap() - 100.0).abs() < 1e-6);
        assert!((costs[0].per_cta.unwrap() - 2.0).abs() < 1e-6);
        assert_eq!(costs[1].fixed, None);
    }

    #[test]
    fn a_launch_that_waits_behind_another_is_not_slower_as_written() {
        // As written both are in flight at once, with partitions one after the other.
        let both = |second: (u32, u32)| Launches {
            all: vec![launched("a", 1, (0, 100), &[]), launched("b", 1, second, &[])],
            ..Launches::default()
        };
        let costs = costs(&both((0, 200)), &both((100, 200)));
        let sums = costs.iter().map(|cost| (cost.original, cost.run));
        assert_eq!(sums.fold((0, 0), |sum, cost| (sum.0 + cost.0, sum.1 + cost.1)), (200, 200));
    }
}
