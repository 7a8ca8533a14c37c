//! Our own models, and what they are told, by hand: on a GPU and for launches of round numbers.

use super::bottleneck::{norm, rest};
use super::*;
use partita_model::{Counts, LlcUse};

/// An SM issues 4 instructions, looks up 2 lines and moves 40 bytes in a nanosecond.
fn gpu() -> Gpu {
    Gpu {
        sms: 10,
        nominal: 100.0,
        effective: 100.0,
        saturation: 0.5,
        missing_banks: 5.0,
        llc: 200.0,
        port: 40.0,
        issue: 4.0,
        clock: 2.0,
        launch: 1000.0,
    }
}

/// 1,000 CTAs of 100,000 ns together whose warps wait: DRAM is busy for 640 ns, the LLC for
/// 1,600 ns, and each SM for 10 ns a CTA.
fn waiting() -> Work {
    Work {
        ctas: 1000.0,
        resident: 2.0,
        warps: 5.0,
        warp_instructions: 40.0,
        thread_instructions: 1280.0,
        loads: 10.0,
        lines: 4.0,
        llc_bytes: 320.0,
        dram_bytes: [32.0, 64.0, 96.0],
        whole: 100_000.0,
    }
}

/// 125 CTAs of 1,280 bytes, a quarter of which miss the LLC.
fn few_rounds() -> Work {
    Work {
        ctas: 125.0,
        loads: 20.0,
        llc_bytes: 1280.0,
        dram_bytes: [320.0; 3],
        whole: 1300.0,
        ..waiting()
    }
}

#[track_caller]
fn close(actual: f64, expected: f64) {
    assert!((actual - expected).abs() <= 1e-9 * expected.abs(), "{actual} is not {expected}");
}

#[track_caller]
fn near(actual: f64, expected: f64) {
    assert!((actual - expected).abs() <= 1e-3 * expected.abs(), "{actual} is not near {expected}");
}

#[test]
fn norms_and_rests_are_of_order_two_and_a_half() {
    close(norm(&[5.0, 5.0]), 5.0 * 2.0_f64.powf(0.4));
    close(rest(norm(&[3.0, 4.0]), &[4.0]), 3.0);
    // Where others take all of it, a fiftieth is left.
    close(rest(1000.0, &[2000.0]), 20.0);
}

/// Each of an SM's three terms decides once. 125 CTAs on 10 SMs: one has 13.
#[test]
fn an_sm_is_busy_for_what_takes_it_longest() {
    for (warp_instructions, lines, llc_bytes) in
        [(120.0, 40.0, 400.0), (40.0, 60.0, 400.0), (40.0, 40.0, 1200.0)]
    {
        let work = Work { warp_instructions, lines, llc_bytes, ..few_rounds() };
        close(Fitted::new(&gpu(), &work).busy(10), 13.0 * 30.0);
    }
    // More than eight rounds: the mean counts. 1,280 bytes take 32 ns.
    let long = Work { ctas: 255.0, ..few_rounds() };
    close(Fitted::new(&gpu(), &long).busy(10), 25.5 * 32.0);
}

#[test]
fn the_time_grows_with_ctas_or_rounds_at_most() {
    // 4 SMs have 31.25 CTAs each in 15.6 rounds, 10 SMs at most 13 in 7.
    close(Fitted::new(&gpu(), &few_rounds()).steepest(4), 1300.0 * 31.25 / 13.0);
    // 9 SMs have at most 3 CTAs in two rounds, 10 SMs 2 in one.
    let steps = Work { ctas: 20.0, whole: 1000.0, ..waiting() };
    close(Fitted::new(&gpu(), &steps).steepest(9), 2000.0);
}

#[test]
fn the_bandwidth_is_bytes_by_time() {
    // Twice the time on half of the SMs: 64,000 bytes in 200,000 ns.
    near(Fitted::new(&gpu(), &waiting()).bandwidth(5), 0.32);
}

/// The SM with the most CTAs has 13 of them, two at a time: a warp lives 6.5 times.
#[test]
fn a_warp_waits_for_each_access_of_its_own() {
    let on = |loads| Fitted::new(&gpu(), &Work { loads, ..few_rounds() });
    // 1,280 bytes are 40 sectors, which 10 coalesced loads of 5 warps bring. One of four waits for
    // DRAM.
    close(on(20.0).waits(10, 6500.0), 10.0 / 5.0 * 0.25 * 6.5 / 6500.0);
    close(on(100.0).visits(10, 6500.0), 40.0 / 5.0 * 6.5 / 6500.0);
    // Fewer loads than that bring more at a time.
    close(on(5.0).waits(10, 6500.0), 5.0 / 5.0 * 0.25 * 6.5 / 6500.0);
    close(on(20.0).visits(10, 6500.0), 20.0 / 5.0 * 6.5 / 6500.0);
}

#[test]
fn bounds_of_one_launch_are_its_sms() {
    let only = |work| predict(&gpu(), &[(work, 5)], Beside::Once).unwrap().remove(0);
    let found = only(waiting());
    // A launch takes 1,000 ns before its first CTA.
    close(found.whole, 101_000.0);
    near(found.alone, 201_000.0);
    near(found.likely, 201_000.0);
    close(found.lower, 101_000.0);
    close(found.upper, 201_000.0);
    near(found.bandwidth, 0.32);
    assert_eq!(
        found.reason,
        "On 5 of 10 SMs its warps wait most of the time, so SMs count: 2.00 times its time on all \
         SMs."
    );
    // 3,600 instructions are 900 ns; each of 5 SMs has 200 CTAs of them.
    let busy = only(Work { warp_instructions: 3600.0, ..waiting() });
    close(busy.lower, 181_000.0);
    assert!(busy.reason.contains("its SMs' instructions and accesses limit it"), "{}", busy.reason);
}

#[test]
fn bounds_beside_others_add_what_these_and_lost_hits_need() {
    let other = Work { llc_bytes: 640.0, dram_bytes: [64.0, 128.0, 256.0], ..waiting() };
    let other = Work { whole: 50_000.0, ..other };
    let on = |beside| predict(&gpu(), &[(waiting(), 5), (other, 5)], beside).unwrap();
    // Twice the time on all SMs; its own hits, 256 bytes a CTA, at 100 bytes a nanosecond; and the
    // other's 256 bytes from DRAM and 640 from the LLC.
    let (grown, lost, theirs) = (200_000.0, 2_560.0, 2_560.0 + 3_200.0);
    let once = on(Beside::Once);
    close(once[0].upper, 1000.0 + grown + lost + theirs);
    close(once[1].upper, 1000.0 + 100_000.0 + 5_120.0 + (960.0 + 1_600.0));
    close(once[0].lower, 101_000.0);
    // Repeated, the other keeps them busy for 5,760 of its 100,000 ns.
    let repeated = on(Beside::Repeated);
    near(repeated[0].upper - 1000.0 - grown - lost, grown * 0.0576);
    near(repeated[0].likely, 201_000.0);
    // 64,000 bytes in 200,000 ns and 128,000 in 100,000 ns are 1.6 of 100.
    let said = " Together they ask for 2 % of DRAM's bandwidth; the others do not slow it.";
    assert!(once[0].reason.ends_with(said), "{}", once[0].reason);
}

/// The slowdown in words is that of the times, which have the launch in front.
#[test]
fn a_slowdown_is_told() {
    let moves = Work { dram_bytes: [10_000.0; 3], llc_bytes: 10_000.0, ..waiting() };
    let moves = Work { whole: 110_000.0, ..moves };
    for found in predict(&gpu(), &[(moves, 5), (moves, 5)], Beside::Repeated).unwrap() {
        let slowdown = (found.likely - 1000.0) / (found.alone - 1000.0);
        assert!(slowdown > 1.5, "{found:?}");
        let said = format!("the others make it {slowdown:.2} times as long.");
        assert!(found.reason.ends_with(&said), "{}", found.reason);
    }
}

#[test]
fn who_needs_nothing_of_others_takes_its_time_alone() {
    let launch = |whole| {
        let fitted = Fitted::new(&gpu(), &Work { whole, ..waiting() });
        (fitted, 3, fitted.alone(3))
    };
    let times = together(&[launch(30_000_000.0), launch(90_000_000.0), launch(60_000_000.0)]);
    for (time, expected) in times.into_iter().zip([1e8, 3e8, 2e8]) {
        near(time, expected);
    }
}

/// speed_k = 1 ÷ (1 + often_k × wait), of what it would be without LLC; what the launches get of
/// the LLC is the norm of what they ask for and what it serves.
#[test]
fn the_llc_s_wait_is_the_same_for_all() {
    let by_llc = Work { dram_bytes: [0.0; 3], llc_bytes: 12_000.0, ..waiting() };
    let launches = [40.0, 400.0].map(|loads| {
        let fitted = Fitted::new(&gpu(), &Work { loads, ..by_llc });
        (fitted, 5, fitted.alone(5))
    });
    let own = launches.map(|(fitted, _, alone)| rest(alone, &[fitted.llc()]));
    let speeds = side_by_side(&launches);
    assert!(speeds.iter().all(|speed| *speed < 0.999), "{speeds:?}");
    let waits = [0, 1].map(|of| {
        let (fitted, sms, alone) = launches[of];
        (alone / own[of] / speeds[of] - 1.0) / fitted.visits(sms, own[of])
    });
    near(waits[0], waits[1]);
    // 60,000 ns of each.
    let asked: f64 = own.iter().map(|own| 60_000.0 / own).sum();
    let got: f64 = [0, 1].iter().map(|&of| 60_000.0 / launches[of].2 * speeds[of]).sum();
    near(got, (asked.powf(-2.5) + 1.0).powf(-0.4));
}

#[test]
fn a_measured_gpu_has_its_rates_by_nanoseconds() {
    let hardware = Calibration {
        sms: 10,
        sm_clock_khz: 1_500_000,
        warp_instructions_per_cycle: 4.0,
        access_bytes: 32,
        noc_bytes_per_second: 2e12,
        llc_bytes_per_second: 1e12,
        dram_bytes_per_second: 5e11,
        dram_utilisation: 0.5,
    };
    let expected = Gpu {
        sms: 10,
        nominal: 500.0,
        effective: 500.0,
        saturation: 0.5,
        missing_banks: 5.0,
        llc: 1000.0,
        port: 200.0,
        issue: 6.0,
        clock: 1.5,
        launch: 2500.0,
    };
    assert_eq!(Gpu::of(&hardware, 2500.0), Ok(expected));
    // An LLC that serves more than all SMs can ask for: none of them misses a bank.
    let fast = Calibration { llc_bytes_per_second: 4e12, ..hardware };
    let expected = Gpu { saturation: 1.0, missing_banks: 0.0, llc: 2000.0, ..expected };
    assert_eq!(Gpu::of(&fast, 2500.0), Ok(expected));
}

#[test]
fn a_launch_does_what_its_counted_ctas_did() {
    let profile = KernelProfile {
        counts: Counts {
            ctas: 10,
            warp_instructions: 400,
            thread_instructions: 12_800,
            global_loads: 100,
            global_stores: 50,
            atomics: 10,
            sectors: 480,
            ..Counts::default()
        },
        llc: LlcUse {
            accesses: 300,
            hits: 200,
            hits_least: 100,
            hits_most: 250,
            dirtied: 20,
            ..LlcUse::default()
        },
        alone: Some(7.0),
        ..KernelProfile::default()
    };
    let launched = Launched { warps: 5, ctas_per_sm: 2, ctas: 1000 };
    // 30 sectors of a CTA reach the LLC, of which 10 miss, 5 at least and 20 at most; two are
    // written back. 48 sectors of 16 accesses are coalesced: a line each.
    let expected = Work {
        ctas: 1000.0,
        resident: 2.0,
        warps: 5.0,
        warp_instructions: 40.0,
        thread_instructions: 1280.0,
        loads: 10.0,
        lines: 16.0,
        llc_bytes: 30.0 * 32.0,
        dram_bytes: [7.0 * 32.0, 12.0 * 32.0, 22.0 * 32.0],
        whole: 7000.0,
    };
    assert_eq!(Work::of(&profile, launched, None), Ok(expected));
    let expected = Work { whole: 5.0, ..expected };
    assert_eq!(Work::of(&profile, launched, Some(5.0)), Ok(expected));
    for no_time in [0.0, -1.0, f64::INFINITY, f64::NAN] {
        let found = Work::of(&profile, launched, Some(no_time));
        assert_eq!(found, Err(LatencyError::NotTimed), "{no_time}");
    }
    // More than four sectors of an access: each is looked up by itself. Four are coalesced yet.
    for (sectors, lines) in [(640, 16.0), (1000, 100.0)] {
        let counts = Counts { sectors, ..profile.counts };
        let found = Work::of(&KernelProfile { counts, ..profile }, launched, None).unwrap();
        close(found.lines, lines);
    }
}

/// KAI = 20 and U = 0.5 of an unsaturated launch: Eq. 4 divides by N − 10.
#[test]
fn kai_by_utilisation_counts_as_sms() {
    let half = Work { llc_bytes: 3200.0, dram_bytes: [2500.0; 3], ..waiting() };
    let half = Work { whole: 50_000.0, thread_instructions: 100.0 * 20_000.0, ..half };
    let gpu = Gpu { sms: 30, saturation: 0.9, ..gpu() };
    close(kai(&half), 20.0);
    close(utilisation(&gpu, &half), 0.5);
    near(isolated(&gpu, &half, 15, Form::Printed), 50_000.0 * 30.0 / (30.0 - 10.0) * 2.0);
    // Eq. 17 says nothing of a launch without traffic.
    let none = Work { dram_bytes: [0.0; 3], ..half };
    close(isolated(&gpu, &none, 10, Form::Mended), 150_000.0);
}

/// Masola's GPU, and a launch on few SMs of it that lasts for two windows.
#[test]
fn penalties_count_the_part_of_a_launch_that_a_window_is() {
    let gpu = Gpu { sms: 30, nominal: 348.0, effective: 330.0, saturation: 0.8, ..gpu() };
    let pair = |sms, bandwidth: [f64; 2], accesses: [f64; 2]| {
        [(sms, 2e6, 0), (30 - sms, 1e6, 1)].map(|(sms, alone, at)| Resident {
            sms,
            alone,
            bandwidth: bandwidth[at],
            accesses: accesses[at],
        })
    };
    let interference = 370.0 / 278.4;
    // The first has 4 of 5 million accesses in the first window, which is half of it; in the second
    // it is alone. 30 ÷ 3 ÷ 2 × (0.8 × 0.5) × (170 ÷ 174) = 1.954.
    let group = pair(3, [170.0, 200.0], [8e6, 1e6]);
    for form in [Form::Printed, Form::Mended] {
        let product = 5.0 * 0.4 * 170.0 / 174.0;
        close(interfered(&gpu, &group, form)[0], 1e6 * interference * product + 1e6);
    }
    // 30 ÷ 1 ÷ 2 × (0.4 × 0.5) × (170 ÷ 174) = 2.9: Eq. 16. It has 8e6 × 0.5 ÷ 2e6 = 2 accesses a
    // nanosecond, the other 6.
    let group = pair(1, [170.0, 200.0], [8e6, 6e6]);
    for (form, penalty) in [(Form::Printed, 2.0 / 6.0), (Form::Mended, 1.0 + 2.0 / 6.0)] {
        close(interfered(&gpu, &group, form)[0], 1e6 * interference * penalty + 1e6);
    }
}
