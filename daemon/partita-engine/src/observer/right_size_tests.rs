//! Requests of programs in a closed and in an open loop, and the SMs that they get.

use super::super::composition::{Size, UNKNOWN};
use super::*;
use partita_model::Dim3;
use partita_model::profile::LaunchShape;
use partita_policy::Launched;

const TARGET: u64 = 100_000;

/// A launch of a kernel that a prior may know.
fn known(ctas: u64) -> Part {
    let key = ("kernel".into(), LaunchShape::new(ctas, Dim3::linear(32), 0));
    let launched = Launched { warps: 1, ctas_per_sm: 1, ctas };
    Part::Own(Size { ctas, kernel: Some((key, launched)) })
}

fn own(ctas: u64) -> Part {
    Part::Own(Size { ctas, kernel: None })
}

/// An application whose requests are launches of these CTAs, and its clock.
struct Program {
    size: RightSize,
    now: u64,
    launches: Vec<u64>,
    prior: Prior<'static>,
}

impl Program {
    fn new(launches: &[u64]) -> Self {
        let mut size = RightSize::default();
        size.set_target(LatencyTarget::of(Nanos(TARGET)));
        Program { size, now: 0, launches: launches.to_vec(), prior: UNKNOWN }
    }

    /// SMs that it gets of `most`, its own part of which is the need.
    fn gets(&self, most: u16) -> u16 {
        most.min(self.size.sms().unwrap_or(u16::MAX))
    }

    /// A request on `sms` SMs that takes so long.
    fn request(&mut self, sms: u16, took: u64) {
        self.size.holds(sms);
        for ctas in self.launches.clone() {
            self.size.launched(Nanos(self.now), known(ctas), self.prior);
        }
        self.size.paused(Nanos(self.now + took), self.prior);
        self.now += 10 * TARGET;
    }

    /// Plays `count` requests whose time depends on the SMs, and returns the SMs after them.
    fn requests(&mut self, count: usize, time: impl Fn(u16) -> u64) -> u16 {
        for _ in 0..count {
            let sms = self.gets(24);
            self.request(sms, time(sms));
        }
        self.gets(24)
    }
}

#[test]
fn sms_fall_to_the_fewest_that_meet_the_target_and_stay() {
    // Time falls with the SMs: 24 SMs take 20 us, 6 take 80, 5 take 96.
    let work = |sms: u16| 480_000 / u64::from(sms);
    let mut program = Program::new(&[240; 8]);
    assert_eq!(program.requests(19, work), 24, "too early");
    assert_eq!(program.requests(1, work), 12, "half of them in a step");
    assert_eq!(program.requests(20, work), 6);
    assert_eq!(program.requests(800, work), 6, "5 SMs would take more than nine tenths");
    assert_eq!(program.size.report().unwrap().missed, 0);
}

#[test]
fn what_is_measured_corrects_the_expectation() {
    // No faster with more SMs than 4: a request has few CTAs at a time.
    let work = |sms: u16| 40_000 * 4 / u64::from(sms.min(4));
    let mut program = Program::new(&[24]);
    assert_eq!(program.requests(400, work), 2, "one SM would take 160 us");
}

#[test]
fn a_missed_target_brings_more_sms_at_once_and_is_not_tried_again_soon() {
    // The work grows: what 6 SMs did in 80 us takes them 160.
    let work = |sms: u16| 480_000 / u64::from(sms);
    let mut program = Program::new(&[240; 8]);
    assert_eq!(program.requests(60, work), 6);
    assert_eq!(program.requests(1, |_| 160_000), 12, "as before");
    let slower = |sms: u16| 960_000 / u64::from(sms);
    assert_eq!(program.requests(900, slower), 11, "87 us");
    assert_eq!(program.size.report().unwrap().missed, 1);
    // A rare miss is within the target's part.
    assert_eq!(program.requests(1, |_| 160_000), 11);
    let report = program.size.report().unwrap();
    assert_eq!((report.missed, report.sms), (2, Some(11)));
}

#[test]
fn fewer_sms_than_it_may_have_say_nothing() {
    let mut program = Program::new(&[240; 8]);
    let work = |sms: u16| 480_000 / u64::from(sms);
    assert_eq!(program.requests(60, work), 6);
    // Others' minima leave it 2.
    for _ in 0..10 {
        program.request(2, 240_000);
    }
    assert_eq!(program.gets(24), 6);
}

#[test]
fn work_without_a_pause_is_missed_and_asks_for_all() {
    let mut program = Program::new(&[240; 8]);
    assert_eq!(program.requests(60, |sms| 480_000 / u64::from(sms)), 6);
    program.size.holds(6);
    let mut grew = 0;
    for step in 0..100 {
        grew +=
            u32::from(program.size.launched(Nanos(program.now + step * 50_000), own(4), UNKNOWN));
        let sms = program.gets(24);
        program.size.holds(sms);
    }
    assert!(grew > 0);
    assert_eq!(program.size.sms(), None, "no number of SMs is enough");
}

#[test]
fn another_target_begins_anew_and_none_asks_nothing() {
    let mut program = Program::new(&[240; 8]);
    program.requests(60, |sms| 480_000 / u64::from(sms));
    program.size.set_target(LatencyTarget::of(Nanos(TARGET)));
    assert_eq!(program.gets(24), 6, "the same");
    program.size.set_target(None);
    assert_eq!((program.gets(24), program.size.report()), (24, None));
    assert_eq!(program.requests(100, |_| 1), 24);
}

#[test]
fn a_prediction_is_the_prior_until_it_was_wrong() {
    // Limited by DRAM: 12 SMs are as fast as 24, and fewer are slower in proportion.
    let work = |sms: u16| 80_000 * 12 / u64::from(sms.min(12));
    let rounds = || Program::new(&[240; 8]);
    assert_eq!(rounds().requests(20, work), 22, "rounds expect 88 us there");
    let flat: Prior<'static> = &|_, _, sms| Some(1.0 / f64::from(sms.min(12)));
    let mut program = Program { prior: flat, ..rounds() };
    assert_eq!(program.requests(20, work), 12, "half of them in a step");
    assert_eq!(program.requests(400, work), 11, "87 us");
    assert_eq!(program.size.report().unwrap().missed, 0);
    // A prediction that SMs do not matter at all is wrong, and has its say once.
    let wrong: Prior<'static> = &|_, _, _| Some(1.0);
    let mut program = Program { prior: wrong, ..rounds() };
    let slower = |sms: u16| 60_000 * 24 / u64::from(sms);
    assert_eq!(program.requests(20, slower), 12);
    assert_eq!(program.requests(400, slower), 16, "60 us on 24 are 90 on 16");
    assert_eq!(program.size.report().unwrap().missed, 1);
}

#[test]
fn waits_tell_requests_apart_that_leave_no_pause() {
    let mut program = Program::new(&[]);
    let size = &mut program.size;
    let mut now = 0;
    // Requests of three parts, each of 10 us with a wait behind it.
    let mut request = |size: &mut RightSize, pauses: bool| {
        for _ in 0..3 {
            size.launched(Nanos(now), own(4), UNKNOWN);
            now += 10_000;
            size.waited(Nanos(now), UNKNOWN);
            size.waited(Nanos(now), UNKNOWN);
        }
        if pauses {
            size.paused(Nanos(now), UNKNOWN);
            now += 200_000;
        }
    };
    request(size, true);
    assert_eq!(size.report().unwrap().seen, 3, "nothing is known: each wait ends one");
    (0..5).for_each(|_| request(size, true));
    assert_eq!(size.report().unwrap().seen, 8);
    // Twenty in a row take 600 us without a pause, which would be missed requests.
    (0..20).for_each(|_| request(size, false));
    let report = size.report().unwrap();
    assert_eq!((report.seen, report.missed), (28, 0));
    // Without waits they are.
    for step in 0..20 {
        size.launched(Nanos(10_000_000 + step * 30_000), own(4), UNKNOWN);
    }
    assert!(size.report().unwrap().missed > 1);
}

/// A server that takes `took` for a request, with a wait behind each. Every fourth request
/// comes before the request before it has ended; any other comes 90 us after that end.
fn serve(program: &mut Program, requests: usize, took: impl Fn(u16) -> u64) -> u16 {
    for number in 0..requests {
        let sms = program.gets(24);
        program.size.holds(sms);
        for ctas in program.launches.clone() {
            program.size.launched(Nanos(program.now), known(ctas), program.prior);
        }
        program.now += took(sms);
        program.size.waited(Nanos(program.now), program.prior);
        if number % 4 > 0 {
            program.size.paused(Nanos(program.now), program.prior);
            program.now += 90_000;
        }
    }
    program.gets(24)
}

#[test]
fn requests_that_wait_in_their_program_count_with_the_wait() {
    // Each would be in time on 6 SMs, where the program would not keep up.
    let work = |sms: u16| 480_000 / u64::from(sms);
    let mut program = Program::new(&[240; 8]);
    let sms = serve(&mut program, 400, work);
    assert!((18..=20).contains(&sms), "24 us and a wait of 52 on 20, and not on {sms}");
    assert_eq!(program.size.report().unwrap().missed, 0);
    // Requests become longer, and the program busier: all SMs.
    assert_eq!(serve(&mut program, 60, |sms| 800_000 / u64::from(sms)), 24);
}

#[test]
fn sms_that_nothing_takes_longer_without_are_given_up() {
    // Busy, and as fast on 4 SMs as on 24.
    let flat: Prior<'static> = &|_, _, sms| Some(1.0 / f64::from(sms.min(4)));
    let mut program = Program { prior: flat, ..Program::new(&[240; 8]) };
    assert_eq!(serve(&mut program, 200, |sms| 60_000 * 4 / u64::from(sms.min(4))), 4);
}

#[test]
fn requests_that_were_taken_for_one_are_forgotten() {
    let mut program = Program::new(&[240; 8]);
    let run = |program: &mut Program, requests| {
        for _ in 0..requests {
            program.size.holds(24);
            program.size.launched(Nanos(program.now), known(240), UNKNOWN);
            program.now += 40_000;
            program.size.waited(Nanos(program.now), UNKNOWN);
        }
        program.size.paused(Nanos(program.now), UNKNOWN);
        program.now += 10 * TARGET;
    };
    // Three at a time look like one of 120 us.
    (0..2).for_each(|_| run(&mut program, 3));
    assert_eq!(program.size.report().unwrap().missed, 1);
    (0..21).for_each(|_| run(&mut program, 1));
    assert_eq!(program.gets(24), 12, "the miss was none");
}

#[test]
fn launches_that_run_alone_are_part_of_a_request() {
    let mut program = Program::new(&[]);
    let mut seen = 0;
    for _ in 0..20 {
        program.size.holds(24);
        let began = Nanos(program.now);
        program.size.launched(began, own(240), UNKNOWN);
        program.size.launched(began, Part::Alone, UNKNOWN);
        program.size.took_alone(Nanos(60_000));
        program.size.paused(Nanos(program.now + 72_000), UNKNOWN);
        program.now += 10 * TARGET;
        seen += 1;
    }
    assert_eq!(program.size.report().map(|report| report.seen), Some(seen));
    // 12 us of the 72 depend on the SMs: they may take 30.
    assert_eq!(program.gets(24), 12);
    program.size.launched(Nanos(program.now), Part::Alone, UNKNOWN);
    program.size.paused(Nanos(program.now + 2 * TARGET), UNKNOWN);
    assert_eq!(program.size.report().unwrap().missed, 1, "it was only such a launch");
}

/// What became of requests in an open loop.
struct Answered {
    /// Requests answered within the target, in per cent.
    in_time: f64,
    /// The mean of SMs over requests.
    sms: f64,
}

/// A whole number below `bound`, by a generator's state (Steele, Lea and Flood, OOPSLA 2014,
/// SplitMix64).
fn below(state: &mut u64, bound: u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut word = *state;
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (word ^ word >> 31) % bound
}

/// When `count` requests arrive that come independently of each other, `mean` apart, from `start`
/// on.
fn arrivals(seed: u64, (start, mean): (f64, f64), count: usize) -> Vec<u64> {
    let (mut state, mut clock) = (seed, start);
    let mut random = || as_float(below(&mut state, 1 << 53)) / as_float(1 << 53);
    let next = || {
        clock -= mean * (1.0 - random()).ln();
        std::time::Duration::from_secs_f64(clock / 1e9).as_nanos().try_into().unwrap()
    };
    std::iter::repeat_with(next).take(count).collect()
}

/// Requests are served one after the other. `own`: the time that the program itself needs behind
/// each.
fn play(
    arrivals: &[u64],
    (own, target): (u64, u64),
    prior: Prior<'_>,
    took: impl Fn(u16) -> u64,
) -> Answered {
    const GRACE: u64 = 60_000;
    let mut size = RightSize::default();
    size.set_target(LatencyTarget::of(Nanos(target)));
    let (mut now, mut in_time, mut sum) = (0, 0_u64, 0_u64);
    for &arrival in arrivals {
        let begins = arrival.max(now + own);
        if begins > now + GRACE {
            size.paused(Nanos(now), prior);
        }
        now = begins;
        let sms = size.sms().unwrap_or(24).min(24);
        size.holds(sms);
        for _ in 0..8 {
            size.launched(Nanos(now), known(240), prior);
        }
        now += took(sms);
        size.waited(Nanos(now), prior);
        in_time += u64::from(now - arrival <= target);
        sum += u64::from(sms);
    }
    let of = |part: u64| as_float(part) / as_float(arrivals.len() as u64);
    Answered { in_time: 100.0 * of(in_time), sms: of(sum) }
}

/// 400 requests arrive independently of each other, at `load` of what 24 SMs can do; the target is
/// 1.5 times the 99th percentile on 24 SMs.
fn open_loop(
    (load, own, seed): (f64, u64, u64),
    prior: Prior<'_>,
    took: impl Fn(u16) -> u64,
) -> Answered {
    let requests = 400;
    let arrivals = arrivals(seed, (0.0, as_float(took(24) + own) / load), requests);
    let mut free = 0;
    let mut alone: Vec<u64> = arrivals
        .iter()
        .map(|&arrival| {
            free = free.max(arrival) + took(24) + own;
            free - own - arrival
        })
        .collect();
    alone.sort_unstable();
    play(&arrivals, (own, alone[requests * 99 / 100] * 3 / 2), prior, took)
}

#[test]
fn requests_that_come_more_often_bring_sms_back() {
    // 4 ms apart requests need few of the SMs on which they take 200 us, and 400 us apart most.
    let work = |sms: u16| 4_800_000 / u64::from(sms);
    let mut late = 0.0;
    for seed in 0..20 {
        let mut both = arrivals(seed, (0.0, 4_000_000.0), 600);
        let step = as_float(both[599]);
        both.extend(arrivals(seed + 100, (step, 400_000.0), 3_000));
        let Answered { in_time, .. } = play(&both, (0, 3_000_000), UNKNOWN, work);
        late += (100.0 - in_time) * 36.0;
        assert!(in_time >= 85.0, "seed {seed}: {in_time} %");
    }
    assert!(late / 20.0 <= 350.0, "{} of 3,600 late in the mean", late / 20.0);
}

#[test]
fn an_open_loop_keeps_its_target_whatever_the_first_requests_look_like() {
    // The time falls with the SMs, or half of it does.
    let works: [fn(u16) -> u64; 2] =
        [|sms| 1_848_000 / u64::from(sms), |sms| 38_500 + 924_000 / u64::from(sms)];
    for (load, work) in [0.5, 0.7, 0.9].into_iter().flat_map(|load| works.map(|work| (load, work)))
    {
        let mut sum = 0.0;
        for seed in 0..100 {
            let Answered { in_time, sms } = open_loop((load, 0, seed), UNKNOWN, work);
            assert!(in_time >= 95.0, "load {load}, seed {seed}: {in_time} % with {sms:.1} SMs");
            sum += in_time;
        }
        assert!(sum / 100.0 >= 99.5, "load {load}: {} % in the mean", sum / 100.0);
    }
}

#[test]
fn half_of_the_sms_that_are_not_needed_are_given_up() {
    // Predictions see no difference. On 24 SMs a request takes 77 us, of which six depend on their
    // number, or 77 at any.
    let flat: Prior<'static> = &|_, _, _| Some(1.0);
    let mean = |load: f64, divided: u64| {
        let work = |sms: u16| 77_000 - divided / 24 + divided / u64::from(sms);
        (0..50).map(|seed| open_loop((load, 10_000, seed), flat, work).sms).sum::<f64>() / 50.0
    };
    for (load, divided, most) in [(0.1, 144_000, 10.0), (0.3, 144_000, 12.0), (0.5, 144_000, 17.0)]
    {
        let sms = mean(load, divided);
        assert!(sms < most, "load {load}: {sms:.1}");
    }
    // What nothing depends on goes at higher loads, too.
    let sms = mean(0.7, 0);
    assert!(sms < 16.0, "{sms:.1}");
}

#[test]
fn a_busy_program_keeps_the_sms_that_a_prediction_takes_for_useless() {
    // On half of the SMs a request takes a twelfth longer than on all.
    let work = |sms: u16| 71_000 + 144_000 / u64::from(sms);
    let flat: Prior<'static> = &|_, _, _| Some(1.0);
    for seed in 0..100 {
        let Answered { in_time, sms } = open_loop((0.9, 0, seed), flat, work);
        assert!(in_time >= 99.0, "seed {seed}: {in_time} % with {sms:.1} SMs");
    }
    let at_half: Vec<f64> = (0..20).map(|seed| open_loop((0.5, 0, seed), flat, work).sms).collect();
    assert!(at_half.iter().any(|&sms| sms < 20.0), "{at_half:?}");
}

#[test]
fn sms_come_back_before_a_queue_has_grown() {
    // Predictions see no difference, where half of the SMs take a twelfth, a third, or twice as
    // long.
    let flat: Prior<'static> = &|_, _, _| Some(1.0);
    let works = [(71_000, 144_000), (45_000, 552_000), (0, 1_848_000)];
    let (mut late, mut runs) = (Vec::new(), 0);
    for (load, (fixed, divided)) in
        [0.1, 0.5, 0.7, 0.9].into_iter().flat_map(|load| works.map(|work| (load, work)))
    {
        for seed in 0..100 {
            let work = |sms: u16| fixed + divided / u64::from(sms);
            let Answered { in_time, .. } = open_loop((load, 10_000, seed), flat, work);
            assert!(in_time >= 95.0, "load {load}, seed {seed}: {in_time} %");
            runs += 1;
            if in_time < 98.5 {
                late.push((load, divided, seed, in_time));
            }
        }
    }
    // In a few runs the first requests come much more seldom than the later ones.
    assert!(late.len() * 100 <= runs, "{late:?}");
    // Where predictions are right SMs are given up all the same.
    let sms: f64 = (0..50).map(|seed| open_loop((0.5, 10_000, seed), flat, |_| 60_000).sms).sum();
    assert!(sms / 50.0 < 8.0, "{}", sms / 50.0);
}

#[test]
fn a_miss_never_takes_sms_away() {
    // The work grows once SMs were given up twice, and the number that follows misses, too.
    let mut program = Program::new(&[240; 8]);
    assert_eq!(program.requests(60, |sms| 480_000 / u64::from(sms)), 6);
    program.requests(40, |sms| 480_000 / u64::from(sms));
    let more = program.requests(1, |_| 300_000);
    assert_eq!(more, 20, "300 us on 6 are 90 on 20");
    assert!(program.requests(1, |_| 101_000) > more);
}

#[test]
fn requests_of_different_lengths_are_no_reason_to_take_sms_back() {
    // SMs make no difference, as the prior says.
    let flat: Prior<'static> = &|_, _, _| Some(1.0);
    let sms = (0..20).map(|seed| {
        let mut state = seed;
        let lengths = std::cell::RefCell::new(move || 30_000 + below(&mut state, 60_000));
        let mut size = Program { prior: flat, ..Program::new(&[240; 8]) };
        size.size.set_target(LatencyTarget::of(Nanos(500_000)));
        u32::from(serve(&mut size, 2_000, |_| (lengths.borrow_mut())()))
    });
    let mean = sms.sum::<u32>() / 20;
    assert!(mean <= 4, "{mean}");
}

#[test]
fn what_a_wait_finds_is_told_by_the_next_launch() {
    let mut program = Program::new(&[240; 8]);
    serve(&mut program, 400, |sms| 480_000 / u64::from(sms));
    let fewer = program.size.sms();
    assert!(fewer.is_some());
    // Nothing pauses any more, and a wait ends the request that is one too many.
    for _ in 0..1_000 {
        if program.size.sms() != fewer {
            break;
        }
        program.size.launched(Nanos(program.now), own(4), UNKNOWN);
        program.now += TARGET * 9 / 10;
        program.size.waited(Nanos(program.now), UNKNOWN);
    }
    assert_ne!(program.size.sms(), fewer);
    assert!(program.size.launched(Nanos(program.now), own(4), UNKNOWN));
    assert!(!program.size.launched(Nanos(program.now), own(4), UNKNOWN));
}
