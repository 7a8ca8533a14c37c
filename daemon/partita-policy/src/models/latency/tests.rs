//! Values computed by hand from the paper's equations, and what must hold of our own models.

use super::*;

/// Masola's GPU (Table 1, §5.1).
fn gpu() -> Gpu {
    Gpu {
        sms: 30,
        nominal: 348.0,
        effective: 330.0,
        saturation: 0.8,
        missing_banks: 6.0,
        llc: 1048.0,
        port: 43.7,
        issue: 5.46,
        clock: 1.365,
        launch: 2500.0,
    }
}

/// A launch of 1,000 CTAs that takes 100,000 ns and moves bytes at so many GB/s.
fn work(bandwidth: f64) -> Work {
    let bytes = bandwidth * 100_000.0 / 1000.0;
    Work {
        ctas: 1000.0,
        resident: 4.0,
        warps: 4.0,
        warp_instructions: 100.0,
        thread_instructions: 3200.0,
        loads: bytes / 128.0,
        lines: bytes / 128.0,
        llc_bytes: bytes,
        dram_bytes: [bytes; 3],
        whole: 100_000.0,
    }
}

#[track_caller]
fn close(actual: f64, expected: f64) {
    assert!((actual - expected).abs() <= 1e-3 * expected.abs(), "{actual} is not {expected}");
}

#[test]
fn utilisation_and_saturation_are_those_of_the_equations() {
    close(utilisation(&gpu(), &work(174.0)), 0.5);
    close(saturation(&gpu(), 0.8), 0.5);
    // 1 ÷ (1 + e^−10) and 1 ÷ (1 + e^10).
    close(saturation(&gpu(), 0.9), 0.999_955);
    close(saturation(&gpu(), 0.7), 4.539_8e-5);
}

/// VADD of Table 2 has 0.056: 19 instructions by 32 threads for 12 sectors are 0.0507.
#[test]
fn kai_is_in_thousands_of_thread_instructions() {
    let vadd =
        Work { thread_instructions: 4.0 * 19.0 * 32.0, llc_bytes: 4.0 * 12.0 * 32.0, ..work(0.0) };
    close(kai(&vadd), 0.050_667);
}

#[test]
fn the_time_alone_is_eq_4() {
    // Half of the bandwidth: U = 0.5, Sat = 0; KAI = 3,200 ÷ (17,400 ÷ 32) ÷ 1,000 = 0.005885.
    let half = work(174.0);
    close(isolated(&gpu(), &half, 30, Form::Printed), 100_000.0 * 30.0 / (30.0 - 0.002_943));
    close(isolated(&gpu(), &half, 10, Form::Printed), 300_029.4);
    close(isolated(&gpu(), &half, 10, Form::Mended), 300_000.0);
    // Saturated: Sat = 1 at U = 0.92, so the time on all SMs is half of the measured one.
    let full = work(0.92 * 348.0);
    assert!((isolated(&gpu(), &full, 30, Form::Printed) - 50_000.0).abs() < 100.0);
    close(isolated(&gpu(), &full, 30, Form::Mended), 100_000.0);
    // Mended by Eq. 17: (1 − e^−5) ÷ (1 − e^(−10 ÷ 6)).
    close(isolated(&gpu(), &full, 10, Form::Mended), 100_000.0 * 0.993_262 / 0.811_124);
}

#[test]
fn the_bandwidth_is_eq_17() {
    close(bandwidth(&gpu(), &work(150.0), 10), 50.0);
    // Threshold: 348 × 0.8 = 278.4. 330 × (1 − e^(−5 ÷ 6)).
    close(bandwidth(&gpu(), &work(278.0), 30), 278.0);
    close(bandwidth(&gpu(), &work(300.0), 5), 186.58);
    close(bandwidth(&gpu(), &work(300.0), 30), 327.78);
}

fn resident(sms: u16, alone: f64, bandwidth: f64, accesses: f64) -> Resident {
    Resident { sms, alone, bandwidth, accesses }
}

/// Experiment 3 of Table 3: 73 GB/s of 348.
#[test]
fn where_bandwidth_is_left_nobody_waits() {
    let group = [
        resident(10, 3e6, 13.39, 1e6),
        resident(10, 4e6, 0.09, 1e3),
        resident(10, 1e6, 59.55, 2e6),
    ];
    for form in [Form::Printed, Form::Mended] {
        let times = interfered(&gpu(), &group, form);
        for (time, launch) in times.iter().zip(&group) {
            close(*time, launch.alone);
        }
    }
}

/// COPY and SAXPY of experiment 4 (Table 3), with equal times: one window, 542.1 GB/s.
#[test]
fn an_overloaded_window_is_eq_7_to_15() {
    let group = [resident(15, 1e6, 250.33, 6e6), resident(15, 1e6, 291.77, 4e6)];
    // I = 542.1 ÷ 278.4. SAXPY is elected: min(291.77 ÷ 174, I).
    let interference = 1.947_2;
    for form in [Form::Printed, Form::Mended] {
        let times = interfered(&gpu(), &group, form);
        // COPY: 1 × 0.6 × 1 × 1.4387 = 0.863 is below 1, so 1.4387.
        close(times[0], 1e6 * interference * 1.438_7);
        close(times[1], 1e6 * interference * 1.676_8);
    }
    // After the shorter one has ended, the other takes no longer than alone.
    let group = [resident(15, 1e6, 250.33, 6e6), resident(15, 3e6, 291.77, 4e6)];
    let times = interfered(&gpu(), &group, Form::Printed);
    // The last window asks for 291.77 of 278.4, so I is 1.048 although nobody else runs.
    close(times[1], 1e6 * interference * 1.676_8 + 2e6 * 1.048_0);
}

/// Eq. 16 as printed is at most 1, though its case is that of the greatest penalties.
#[test]
fn the_greatest_penalty_is_mended() {
    // 30 ÷ 5 ÷ 2 × 0.9 × 200 ÷ 174 = 3.1 for the first; the second is elected.
    let group = [resident(5, 1e6, 200.0, 9e6), resident(25, 1e6, 210.0, 1e6)];
    let interference = 410.0 / 278.4;
    close(interfered(&gpu(), &group, Form::Printed)[0], 1e6 * interference);
    close(interfered(&gpu(), &group, Form::Mended)[0], 2e6 * interference);
}

#[test]
fn the_time_on_all_sms_is_what_was_measured() {
    for bandwidth in [1.0, 100.0, 250.0, 300.0] {
        let fitted = Fitted::new(&gpu(), &work(bandwidth));
        let found = fitted.alone(30) / 100_000.0;
        assert!((0.99..1.03).contains(&found), "{bandwidth}: {found}");
        let times: Vec<f64> = (1..=30).map(|sms| fitted.alone(sms)).collect();
        assert!(times.windows(2).all(|pair| pair[1] <= pair[0] * (1.0 + 1e-9)), "{times:?}");
    }
    // Without bandwidth all depends on SMs; with all of it nothing does, from some number on.
    close(Fitted::new(&gpu(), &work(0.1)).alone(15), 200_000.0);
    assert!(Fitted::new(&gpu(), &work(325.0)).alone(15) < 120_000.0);
}

/// 46 CTAs of which an SM holds two: 15 and 20 SMs take two rounds, 30 take one.
#[test]
fn launches_of_few_rounds_go_by_steps() {
    let steps = Work { ctas: 46.0, resident: 2.0, warp_instructions: 1.0, ..work(0.0) };
    let fitted = Fitted::new(&gpu(), &steps);
    for (sms, rounds) in [(30, 1.0), (23, 1.0), (20, 2.0), (15, 2.0), (10, 3.0)] {
        close(fitted.alone(sms), rounds * 100_000.0);
    }
}

#[test]
fn a_shared_dram_slows_who_waits_for_it() {
    let on = |bandwidth: f64, sms: u16| {
        let fitted = Fitted::new(&gpu(), &work(bandwidth));
        (fitted, sms, fitted.alone(sms))
    };
    let alone = |launch: (Fitted, u16, f64)| together(&[launch])[0] / launch.2;
    close(alone(on(300.0, 15)), 1.0);
    let group = [on(300.0, 15), on(300.0, 15)];
    let times = together(&group);
    close(times[0], times[1]);
    // Together they take what DRAM needs for both, and no more than one after the other.
    assert!(times[0] >= 2.0 * group[0].0.dram(), "{times:?}");
    assert!(times[0] <= 2.0 * group[0].2, "{times:?}");
    let speeds = side_by_side(&group);
    close(speeds[0], group[0].2 / times[0]);
    let beside_compute = together(&[on(300.0, 15), on(0.5, 15)]);
    assert!(beside_compute[0] < 1.02 * on(300.0, 15).2, "{beside_compute:?}");
    assert!(together(&[]).is_empty());
}

#[test]
fn a_prediction_lies_between_its_bounds() {
    for group in [vec![(work(300.0), 10), (work(300.0), 10), (work(1.0), 10)], vec![(work(9.0), 7)]]
    {
        let both = [Beside::Once, Beside::Repeated];
        for found in both.into_iter().flat_map(|how| predict(&gpu(), &group, how).unwrap()) {
            assert!(found.lower <= found.likely && found.likely <= found.upper, "{found:?}");
            assert!(found.alone <= found.likely + 1e-6, "{found:?}");
        }
    }
    let found = predict(&gpu(), &[(work(300.0), 15), (work(300.0), 15)], Beside::Once).unwrap();
    assert!(found[0].reason.starts_with("On 15 of 30 SMs DRAM's bandwidth limits it"));
    assert!(found[0].reason.contains("the others make it"), "{}", found[0].reason);
}

#[test]
fn bad_numbers_are_refused() {
    let text =
        |group: &[(Work, u16)]| predict(&gpu(), group, Beside::Once).unwrap_err().to_string();
    assert_eq!(
        text(&[(work(1.0), 20), (work(1.0), 11)]),
        "latency model: 31 SMs; the GPU has 30, and at least 1 is needed"
    );
    assert_eq!(
        text(&[(work(1.0), 0)]),
        "latency model: 0 SMs; the GPU has 30, and at least 1 is needed"
    );
    let launched = Launched { warps: 4, ctas_per_sm: 4, ctas: 10 };
    let found = Work::of(&KernelProfile::default(), launched, None);
    assert_eq!(found, Err(LatencyError::NotCounted));
    let counts = partita_model::Counts { ctas: 4, ..partita_model::Counts::default() };
    let counted = KernelProfile { counts, ..KernelProfile::default() };
    assert_eq!(Work::of(&counted, launched, None), Err(LatencyError::NotTimed));
    close(Work::of(&counted, launched, Some(5.0)).unwrap().whole, 5.0);
}
