//! `partita bench emu --curves`: the timing model beside the figures of the references.

use super::curves::{self, Point};
use super::interference::{self, Disturbed, Job, Kind};
use partita_cli::failure::Failure;
use partita_cli::report::{Metric, Report};
use partita_emu::Spec;

/// Where a reference gives a curve, each point should be as near as this.
const NEAR: f64 = 0.10;
/// Where a bandwidth or a latency is a number of the spec's sources.
const CLOSE: f64 = 0.03;
/// SM counts of GPGPU-Sim's curves.
const COUNTS: [u16; 4] = [4, 8, 15, 30];
/// GPGPU-Sim's cycles of an RTX 2060 on those SMs: vector add of 256 K, chain of fma, reads of 64
/// KB past L1.
const VECTOR_ADD: [f64; 4] = [50_331.0, 25_701.0, 15_329.0, 9_851.0];
const CHAIN: [f64; 4] = [23_512.0, 12_590.0, 6_849.0, 3_588.0];
const REREAD: [f64; 4] = [139_070.0, 70_184.0, 35_779.0, 19_051.0];
/// Slate, figure 1: a stream reaches its peak on a Titan Xp with so many SMs.
const SLATE_SATURATION_SMS: f64 = 9.0;
/// A bandwidth counts as the peak from this part of it on.
const SATURATED: f64 = 0.98;
/// Masola, section 5.1.
const MASOLA_GIGABYTES_PER_SECOND: f64 = 330.0;
/// Copies on an H200, GB/s.
const H200_COPY: f64 = 4_300.0;
/// Between small launches, microseconds.
const LAUNCH_GAP: f64 = 2.5;
/// Masola, table 3: what a kernel asks of the L2 on so many SMs alone, GB/s.
const VADD_15: f64 = 296.03;
const COPY_15: f64 = 250.33;
/// Masola, figure 9 and section 9: the most that any kernel was slowed down, COPY of experiment 4.
const MASOLA_WORST: f64 = 1.73;
/// "Nearly undisturbed": ours.
const UNDISTURBED: f64 = 1.05;
/// Per cent by which a compute-bound kernel may miss linear speed-up.
const LINEAR: f64 = 3.0;

/// Measures, on the specs of the references' GPUs. `scale` divides the sizes of copies.
pub fn report(scale: u32) -> Result<Report, Failure> {
    let mut metrics = Vec::new();
    let rtx = Spec::named("masola-rtx2060")?;
    add_curve(&mut metrics, "vector add", &curves::vector_add(&rtx, &COUNTS)?, &VECTOR_ADD);
    add_curve(&mut metrics, "fma chain", &curves::compute(&rtx, 300, 17, &COUNTS)?, &CHAIN);
    add_curve(&mut metrics, "reads past L1", &curves::reread(&rtx, &COUNTS)?, &REREAD);
    let all = |copies: Vec<(u16, f64)>| copies.last().map_or(0.0, |(_, rate)| *rate);
    let rate = all(curves::copy(&rtx, (16 << 20) / scale, &[30])?);
    metrics.push(Metric::near("RTX 2060, copy", rate, "GB/s", MASOLA_GIGABYTES_PER_SECOND, CLOSE));
    metrics.extend(saturation(scale)?);
    metrics.push(linearity(scale)?);
    let h200 = Spec::named("h200")?;
    let rate = all(curves::copy(&h200, (64 << 20) / scale, &[h200.sms])?);
    metrics.push(Metric::near("H200, copy", rate, "GB/s", H200_COPY, CLOSE));
    let gap = curves::launch_gap(&h200)?;
    metrics.push(Metric::near("H200, between small launches", gap, "us", LAUNCH_GAP, CLOSE));
    metrics.extend(masola(&rtx, scale)?);
    Ok(Report {
        bench: "emu-curves".into(),
        device: "specs of the references' GPUs".into(),
        seed: 0,
        metrics,
    })
}

/// Speed-ups over the first count, so that absolute cycles do not matter.
fn add_curve(metrics: &mut Vec<Metric>, name: &str, points: &[Point], reference: &[f64]) {
    let Some((first, first_reference)) = points.first().zip(reference.first()) else { return };
    for (point, cycles) in points.iter().zip(reference).skip(1) {
        let value = first.cycles as f64 / point.cycles.max(1) as f64;
        let name = format!("{name}, {} SMs over {}", point.sms, first.sms);
        metrics.push(Metric::near(name, value, "x", first_reference / cycles, NEAR));
    }
}

fn saturation(scale: u32) -> Result<Vec<Metric>, Failure> {
    let titan = Spec::named("titan-xp")?;
    let counts: Vec<u16> = (1..=titan.sms).collect();
    let rates = curves::copy(&titan, (8 << 20) / scale, &counts)?;
    let peak = rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let reached =
        rates.iter().find(|(_, rate)| *rate >= peak * SATURATED).map_or(0, |(sms, _)| *sms);
    let name = "Titan Xp, copy: SMs at its peak";
    Ok(vec![
        Metric::near(name, f64::from(reached), "SMs", SLATE_SATURATION_SMS, NEAR),
        Metric::plain("Titan Xp, copy: peak", peak, "GB/s"),
    ])
}

fn linearity(scale: u32) -> Result<Metric, Failure> {
    let spec = Spec::named("cd-search-24")?;
    let counts: Vec<u16> = [1, 2, 4, 8, 12, 16, 20, 22, 23].into_iter().chain([spec.sms]).collect();
    let points = curves::compute(&spec, 5_760 / scale, 4, &counts)?;
    let one = points.first().map_or(0.0, |point| point.cycles as f64);
    let miss = |point: &Point| {
        let ideal = one / f64::from(point.sms);
        (point.cycles as f64 / ideal - 1.0).abs() * 100.0
    };
    let worst = points.iter().map(miss).fold(0.0, f64::max);
    Ok(Metric::at_most("compute-bound, 1 to 24 SMs: worst miss of linear", worst, "%", LINEAR))
}

/// Masola, table 3, experiments 1, 3, 4 and 5. VADD, SAXPY and COPY move the words that theirs
/// move, with arrays of a quarter of the size; the others stand for their kind: their arithmetic
/// between two accesses is such that they ask for the bandwidth of the table. That is the L2's, and
/// of what RAYTRACE asks little goes further: it has no input and writes 1.5 MiB in 2.6 ms (table
/// 2).
fn masola(spec: &Spec, scale: u32) -> Result<Vec<Metric>, Failure> {
    let ctas = 20_480 / scale;
    let job = |kind, ctas, sms| Job { kind, ctas, threads: 128, sms };
    let add = |sms| job(Kind::Add, ctas, sms);
    let mixed = |rounds, part: u32, sms| job(Kind::Mixed { rounds }, ctas / part, sms);
    let raytrace = |sms| job(Kind::Shade { rounds: 49 }, ctas / 64, sms);
    let worst = |jobs: &[Disturbed]| jobs.iter().map(|job| job.slowdown).fold(0.0, f64::max);
    let first = interference::measure(spec, &[add(15), raytrace(15)])?;
    let third =
        interference::measure(spec, &[raytrace(10), mixed(2_000, 64, 10), mixed(20, 2, 10)])?;
    let fourth = interference::measure(spec, &[job(Kind::Copy, ctas, 15), add(15)])?;
    let fifth = interference::measure(spec, &[add(15), mixed(12, 1, 15)])?;
    let alone = |jobs: &[Disturbed]| jobs.first().map_or(0.0, |job| job.gigabytes_per_second_alone);
    let others = worst(&first).max(worst(&third)).max(worst(&fifth));
    let above = worst(&fourth) - others;
    Ok(vec![
        Metric::near("Masola, VADD alone on 15 SMs", alone(&first), "GB/s", VADD_15, NEAR),
        Metric::near("Masola, COPY alone on 15 SMs", alone(&fourth), "GB/s", COPY_15, NEAR),
        Metric::at_most("Masola, experiment 1: worst slowdown", worst(&first), "x", UNDISTURBED),
        Metric::at_most("Masola, experiment 3: worst slowdown", worst(&third), "x", UNDISTURBED),
        Metric::near(
            "Masola, experiment 4: worst slowdown",
            worst(&fourth),
            "x",
            MASOLA_WORST,
            NEAR,
        ),
        Metric::plain("Masola, experiment 5: worst slowdown", worst(&fifth), "x"),
        Metric::at_least("Masola, experiment 4 over 1, 3 and 5", above, "x", 0.0),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_are_compared_by_their_shape() {
        let mut metrics = Vec::new();
        let points = [
            Point { sms: 4, cycles: 1000 },
            Point { sms: 8, cycles: 500 },
            Point { sms: 15, cycles: 400 },
        ];
        add_curve(&mut metrics, "x", &points, &[10.0, 5.2, 2.0]);
        let told: Vec<_> =
            metrics.iter().map(|metric| (metric.name.as_str(), metric.met)).collect();
        assert_eq!(told, [("x, 8 SMs over 4", Some(true)), ("x, 15 SMs over 4", Some(false))]);
        assert!((metrics[1].value - 2.5).abs() < 1e-9 && metrics[1].paper == Some(5.0));
    }
}
