//! The off-SM bandwidth model of CD-search (§4.1.2): is an application limited by its SMs or by
//! what is outside them?
//!
//! Demand is what all SMs would ask of interconnect, LLC and DRAM if no instruction ever waited
//! (Eq. 1); supply is what these can deliver at the application's hit rate (Eq. 2). Demand above
//! supply makes it memory-intensive.
//!
//! | symbol in the paper | here |
//! | --- | --- |
//! | IPC_max | [`Calibration::warp_instructions_per_cycle`], of one SM |
//! | APKI_LLC | [`Traffic`]'s LLC accesses per kilo warp instruction |
//! | Size_CacheLine | [`Calibration::access_bytes`]: of what the counter counts, a line or a sector |
//! | Freq_SM | [`Calibration::sm_clock_khz`] |
//! | #SMs | [`Calibration::sms`]: all of the GPU's; the paper leaves open which it means |
//! | BW_NoC, BW_LLC, BW_MEM | the calibration's `noc_`, `llc_`, `dram_bytes_per_second` |
//! | BW_Util | [`Calibration::dram_utilisation`], 0.5 in the paper |

use partita_model::{Calibration, Class, Evidence, Measurements, SupplyModel, Traffic};

/// A calibration that describes no GPU.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("calibration: {field} must be a positive number{limit}")]
pub struct CalibrationError {
    field: &'static str,
    limit: &'static str,
}

/// Whether every number of a calibration makes sense.
///
/// # Errors
/// Names the first that does not.
pub fn check_calibration(hardware: &Calibration) -> Result<(), CalibrationError> {
    let fields = [
        ("sms", f64::from(hardware.sms)),
        ("sm_clock_khz", f64::from(hardware.sm_clock_khz)),
        ("warp_instructions_per_cycle", hardware.warp_instructions_per_cycle),
        ("access_bytes", f64::from(hardware.access_bytes)),
        ("noc_bytes_per_second", hardware.noc_bytes_per_second),
        ("llc_bytes_per_second", hardware.llc_bytes_per_second),
        ("dram_bytes_per_second", hardware.dram_bytes_per_second),
        ("dram_utilisation", hardware.dram_utilisation),
    ];
    let bad = |value: f64| !(value.is_finite() && value > 0.0);
    if let Some(&(field, _)) = fields.iter().find(|(_, value)| bad(*value)) {
        return Err(CalibrationError { field, limit: "" });
    }
    if hardware.dram_utilisation > 1.0 {
        return Err(CalibrationError { field: "dram_utilisation", limit: " of at most 1" });
    }
    Ok(())
}

/// A calibration with what was measured in the place of what was specified; `None` where that
/// describes no GPU.
///
/// The interconnect is taken to carry what one SM gets, for all of them. CD-search's
/// [`Calibration::dram_utilisation`] is a part of the peak, of which the stream that was measured
/// gets a part, too: what counts of DRAM stays the same part of the peak.
#[must_use]
pub fn calibrated(specified: &Calibration, measured: &Measurements) -> Option<Calibration> {
    let calibration = Calibration {
        warp_instructions_per_cycle: measured.warp_instructions_per_cycle,
        noc_bytes_per_second: measured.sm_bytes_per_second * f64::from(specified.sms),
        llc_bytes_per_second: measured.llc_bytes_per_second,
        dram_bytes_per_second: measured.dram_bytes_per_second,
        dram_utilisation: (specified.dram_utilisation * specified.dram_bytes_per_second
            / measured.dram_bytes_per_second)
            .min(1.0),
        ..*specified
    };
    check_calibration(&calibration).is_ok().then_some(calibration)
}

/// LLC accesses per kilo warp instruction; absent where nothing was executed.
#[must_use]
pub fn apki(traffic: &Traffic) -> Option<f64> {
    (traffic.warp_instructions > 0)
        .then(|| float(traffic.llc_accesses) / float(traffic.warp_instructions) * 1000.0)
}

/// Part of the LLC accesses that hit; 1 where there were none.
#[must_use]
pub fn hit_rate(traffic: &Traffic) -> f64 {
    if traffic.llc_accesses == 0 {
        return 1.0;
    }
    (float(traffic.llc_hits) / float(traffic.llc_accesses)).min(1.0)
}

/// BW_Total_SMs (CD-search Eq. 1) in bytes per second; `apki` per kilo warp instruction.
#[must_use]
pub fn demand(hardware: &Calibration, apki: f64) -> f64 {
    let per_sm = hardware.warp_instructions_per_cycle
        * (apki / 1000.0)
        * f64::from(hardware.access_bytes)
        * (f64::from(hardware.sm_clock_khz) * 1000.0);
    per_sm * f64::from(hardware.sms)
}

/// BW_Off_SM (CD-search Eq. 2) in bytes per second.
#[must_use]
pub fn supply(hardware: &Calibration, hit_rate: f64, model: SupplyModel) -> f64 {
    let miss_rate = 1.0 - hit_rate;
    let dram = hardware.dram_bytes_per_second * hardware.dram_utilisation;
    let behind_noc = match model {
        SupplyModel::Printed => hardware.llc_bytes_per_second * hit_rate + dram * miss_rate,
        SupplyModel::Bottleneck if miss_rate > 0.0 => {
            hardware.llc_bytes_per_second.min(dram / miss_rate)
        }
        SupplyModel::Bottleneck => hardware.llc_bytes_per_second,
    };
    hardware.noc_bytes_per_second.min(behind_noc)
}

/// The class that traffic shows; absent where nothing was executed.
///
/// It is certain where the bounds of accesses and hits lead to the same class: the fewest accesses
/// against the greatest supply, and the most against the least.
#[must_use]
pub fn classify(
    hardware: &Calibration,
    traffic: &Traffic,
    model: SupplyModel,
) -> Option<(Class, Evidence)> {
    let apki = apki(traffic)?;
    let hit_rate = hit_rate(traffic);
    let with = |accesses, hits| Traffic { llc_accesses: accesses, llc_hits: hits, ..*traffic };
    let accesses = |accesses| self::apki(&with(accesses, 0)).unwrap_or(apki);
    let hits = |hits| self::hit_rate(&with(traffic.llc_accesses, hits));
    let apki_bounds = (accesses(traffic.llc_least).min(apki), accesses(traffic.llc_most).max(apki));
    let hit_rate_bounds =
        (hits(traffic.hits_least).min(hit_rate), hits(traffic.hits_most).max(hit_rate));
    let is_memory = |apki, hit_rate| demand(hardware, apki) > supply(hardware, hit_rate, model);
    let class = if is_memory(apki, hit_rate) { Class::Memory } else { Class::Compute };
    // Supply grows with the hit rate in one direction, whichever that is on this GPU.
    let (low, high) = hit_rate_bounds;
    let rates = [low, high];
    let least = rates.iter().all(|&rate| is_memory(apki_bounds.0, rate));
    let most = rates.iter().any(|&rate| is_memory(apki_bounds.1, rate));
    let evidence = Evidence::Bandwidth {
        demand: demand(hardware, apki),
        supply: supply(hardware, hit_rate, model),
        apki,
        hit_rate,
        apki_bounds,
        hit_rate_bounds,
        certain: least == most,
    };
    Some((class, evidence))
}

/// What traffic in so many cycles took of LLC and DRAM, as parts of their bandwidths: the most that
/// the profile's bounds leave open. DRAM moves what misses, and what was there and is written to it
/// later.
#[must_use]
pub(crate) fn taken(hardware: &Calibration, traffic: &Traffic, cycles: u64) -> [f64; 2] {
    let seconds = float(cycles.max(1)) / (f64::from(hardware.sm_clock_khz) * 1000.0);
    let accesses = traffic.llc_most.max(traffic.llc_accesses);
    let misses = accesses.saturating_sub(traffic.hits_least.min(traffic.llc_hits));
    let part = |count: u64, bandwidth: f64| {
        float(count) * f64::from(hardware.access_bytes) / seconds / bandwidth
    };
    let llc = hardware.llc_bytes_per_second.min(hardware.noc_bytes_per_second);
    [
        part(accesses, llc),
        part(misses.saturating_add(traffic.llc_dirtied), hardware.dram_bytes_per_second),
    ]
}

/// Counters are far below 2^53 in any interval; beyond that a ratio loses digits and nothing else.
#[expect(clippy::cast_precision_loss, reason = "only ratios are formed")]
pub(crate) fn float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The GPU of CD-search §6 with GPGPU-Sim's GTX 480 where the paper is silent.
    fn gpu() -> Calibration {
        Calibration {
            sms: 24,
            sm_clock_khz: 700_000,
            warp_instructions_per_cycle: 2.0,
            access_bytes: 32,
            noc_bytes_per_second: 268.8e9,
            llc_bytes_per_second: 268.8e9,
            dram_bytes_per_second: 177.4e9,
            dram_utilisation: 0.5,
        }
    }

    #[track_caller]
    fn close(actual: f64, expected: f64) {
        assert!((actual - expected).abs() <= 1e-9 * expected.abs(), "{actual} is not {expected}");
    }

    #[test]
    fn demand_is_per_kilo_instruction() {
        // 24 SMs x 2 instructions x 1 access each x 32 bytes x 0.7 GHz.
        close(demand(&gpu(), 1000.0), 24.0 * 2.0 * 32.0 * 0.7e9);
        close(demand(&gpu(), 0.0), 0.0);
    }

    #[test]
    fn the_printed_supply_is_an_arithmetic_mean() {
        let gpu = Calibration {
            noc_bytes_per_second: 1e12,
            llc_bytes_per_second: 400e9,
            dram_bytes_per_second: 100e9,
            ..gpu()
        };
        close(supply(&gpu, 0.5, SupplyModel::Printed), 225e9);
        close(supply(&gpu, 0.5, SupplyModel::Bottleneck), 100e9);
        for model in [SupplyModel::Printed, SupplyModel::Bottleneck] {
            close(supply(&gpu, 1.0, model), 400e9);
            close(supply(&gpu, 0.0, model), 50e9);
            close(supply(&Calibration { noc_bytes_per_second: 20e9, ..gpu }, 0.3, model), 20e9);
        }
    }

    #[test]
    fn classes() {
        let traffic = |accesses, hits| Traffic::exact(1, 100_000, accesses, hits);
        let class =
            |accesses, hits, model| classify(&gpu(), &traffic(accesses, hits), model).unwrap().0;
        // LAVAMD in the paper: nearly no DRAM traffic, yet more accesses than the LLC can serve.
        assert_eq!(class(40_000, 40_000, SupplyModel::Printed), Class::Memory);
        // MERGE: some DRAM traffic, few accesses.
        assert_eq!(class(4_000, 2_000, SupplyModel::Printed), Class::Compute);
        // Where the two disagree: 177.9 GB/s are wanted; the mean says 178.75, the bottleneck
        // 177.4.
        assert_eq!(class(16_550, 8_275, SupplyModel::Printed), Class::Compute);
        assert_eq!(class(16_550, 8_275, SupplyModel::Bottleneck), Class::Memory);
        assert_eq!(classify(&gpu(), &Traffic::default(), SupplyModel::Printed), None);
        assert_eq!(class(0, 0, SupplyModel::Printed), Class::Compute);
        // Damaged counters: more hits than accesses.
        assert_eq!(class(1_000, 9_000, SupplyModel::Printed), Class::Compute);
    }

    #[test]
    fn parts_of_bandwidths_are_the_most_that_may_be() {
        let exact = Traffic::exact(1, 100_000, 16_000, 8_000);
        let traffic = Traffic { llc_most: 20_000, hits_least: 4_000, ..exact };
        // A thousandth of a second.
        let [llc, dram] = taken(&gpu(), &traffic, 700_000);
        close(llc, 20_000.0 * 32.0 * 1000.0 / 268.8e9);
        close(dram, 16_000.0 * 32.0 * 1000.0 / 177.4e9);
        let [_, dram] = taken(&gpu(), &Traffic { llc_dirtied: 3_000, ..traffic }, 700_000);
        close(dram, 19_000.0 * 32.0 * 1000.0 / 177.4e9);
        assert!(taken(&gpu(), &Traffic::default(), 0).iter().all(|part| *part == 0.0));
    }

    #[test]
    fn a_class_is_certain_where_the_bounds_agree() {
        // 24 x 2 x 32 bytes x 0.7 GHz = 1075.2 GB/s at 1000 accesses per kilo instruction. At a hit
        // rate of 50 % the supply is 178.75 GB/s, so the border lies at an APKI of 166.2; without
        // hits at 82.5, with hits only at 250.
        let certain = |least, most, hits_least, hits_most| {
            let exact = Traffic::exact(1, 100_000, 16_000, 8_000);
            let traffic =
                Traffic { llc_least: least, llc_most: most, hits_least, hits_most, ..exact };
            match classify(&gpu(), &traffic, SupplyModel::Printed) {
                Some((Class::Compute, Evidence::Bandwidth { certain, .. })) => certain,
                other => panic!("{other:?}"),
            }
        };
        assert!(certain(16_000, 16_000, 8_000, 8_000));
        assert!(certain(10_000, 16_500, 8_000, 8_000));
        assert!(!certain(16_000, 17_000, 8_000, 8_000), "more accesses than are served");
        assert!(!certain(16_000, 16_000, 6_000, 8_000), "fewer hits");
        assert!(certain(16_000, 16_000, 8_000, 16_000));
        assert!(certain(0, 8_000, 16_000, 0), "the bounds lie about the value, whatever they say");
    }

    #[test]
    fn measurements_go_before_the_specification() {
        let measured = Measurements {
            warp_instructions_per_cycle: 1.9,
            sm_bytes_per_second: 20e9,
            llc_bytes_per_second: 260e9,
            dram_bytes_per_second: 150e9,
            launch_nanos: 2500.0,
            sms_seen: 24,
        };
        let found = calibrated(&gpu(), &measured).unwrap();
        close(found.noc_bytes_per_second, 480e9);
        // 1.9 x 24 x 32 bytes x 0.7 GHz against half of the peak of 177.4 GB/s, of which a stream
        // got 150.
        close(demand(&found, 1000.0), 1.9 * 24.0 * 32.0 * 0.7e9);
        close(found.dram_bytes_per_second, 150e9);
        close(supply(&found, 0.0, SupplyModel::Printed), 88.7e9);
        let broken = Measurements { llc_bytes_per_second: f64::INFINITY, ..measured };
        assert_eq!(calibrated(&gpu(), &broken), None);
    }

    #[test]
    fn calibrations_are_checked() {
        assert_eq!(check_calibration(&gpu()), Ok(()));
        let text =
            |calibration: Calibration| check_calibration(&calibration).unwrap_err().to_string();
        assert_eq!(
            text(Calibration { sms: 0, ..gpu() }),
            "calibration: sms must be a positive number"
        );
        assert_eq!(
            text(Calibration { llc_bytes_per_second: f64::NAN, ..gpu() }),
            "calibration: llc_bytes_per_second must be a positive number"
        );
        assert_eq!(
            text(Calibration { dram_utilisation: 1.5, ..gpu() }),
            "calibration: dram_utilisation must be a positive number of at most 1"
        );
    }

    #[test]
    fn borders_belong_to_what_is_within() {
        let all = Calibration { dram_utilisation: 1.0, ..gpu() };
        assert_eq!(check_calibration(&all), Ok(()));
        // The interconnect carries just what is asked for.
        let just = Calibration {
            noc_bytes_per_second: demand(&gpu(), 1000.0),
            llc_bytes_per_second: 1e15,
            dram_bytes_per_second: 1e15,
            ..gpu()
        };
        let traffic = Traffic::exact(1, 1000, 1000, 500);
        let (class, _) = classify(&just, &traffic, SupplyModel::Bottleneck).unwrap();
        assert_eq!(class, Class::Compute, "demand above supply is memory-intensive");
    }
}
