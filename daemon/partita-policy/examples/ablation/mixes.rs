//! Random mixes on the fluid GPU, and what a policy makes of them.

use crate::simulator::{Program, Random, Simulator, gpu, speeds, stp};
use partita_model::Calibration;
use partita_policy::{CdSearch, CdSearchSettings, Everyone, Policy, PolicySettings};

/// How long a mix runs, in cycles.
const CYCLES: u64 = 4_000_000;
/// Seeds of the tests are small: no mix here is one of theirs.
const FIRST_SEED: u64 = 1 << 40;

/// A kind of mix.
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    hardware: fn() -> Calibration,
    programs: fn(&mut Random) -> Vec<Program>,
    /// What is special about it.
    twist: Twist,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Twist {
    None,
    /// The second program is a third slower in its first 45,000 cycles.
    SlowBegin,
    /// CTAs of an SM complete eight at a time.
    Bursts,
    /// The second program comes when the first has been measured alone.
    Later,
    /// The two change roles in the middle.
    Phases,
}

pub(crate) const KINDS: &[Kind] = &[
    kind("memory and compute", fermi, memory_and_compute, Twist::None),
    kind("any two", fermi, any_two, Twist::None),
    kind("any two, not counted", fermi, not_counted, Twist::None),
    kind("one of two not counted", fermi, one_not_counted, Twist::None),
    kind("few rounds of CTAs", fermi, few_rounds, Twist::None),
    kind("few rounds, not counted", fermi, few_rounds_not_counted, Twist::None),
    kind("one begins slowly", fermi, memory_and_compute, Twist::SlowBegin),
    kind("bursts", fermi, short_ctas, Twist::Bursts),
    kind("one comes later", fermi, not_counted, Twist::Later),
    kind("roles change", fermi, memory_and_compute, Twist::Phases),
    kind("four programs", fermi, any_four, Twist::None),
    kind("28 SMs", ampere, any_two, Twist::None),
    kind("28 SMs, not counted", ampere, not_counted, Twist::None),
    kind("132 SMs, four programs", hopper, any_four, Twist::None),
];

const fn kind(
    name: &'static str,
    hardware: fn() -> Calibration,
    programs: fn(&mut Random) -> Vec<Program>,
    twist: Twist,
) -> Kind {
    Kind { name, hardware, programs, twist }
}

fn fermi() -> Calibration {
    gpu(24)
}

/// 28 SMs with the ratios of a small GPU of today: accesses of a sector, DRAM a third of the LLC.
fn ampere() -> Calibration {
    Calibration {
        sms: 28,
        sm_clock_khz: 1_777_000,
        warp_instructions_per_cycle: 4.0,
        access_bytes: 32,
        noc_bytes_per_second: 1.6e12,
        llc_bytes_per_second: 1.1e12,
        dram_bytes_per_second: 360e9,
        dram_utilisation: 0.5,
    }
}

/// 132 SMs with the ratios of a large one.
fn hopper() -> Calibration {
    Calibration {
        sms: 132,
        sm_clock_khz: 1_755_000,
        noc_bytes_per_second: 7.4e12,
        llc_bytes_per_second: 5.5e12,
        dram_bytes_per_second: 3.35e12,
        ..ampere()
    }
}

fn memory_and_compute(random: &mut Random) -> Vec<Program> {
    vec![Program::memory(random), Program::compute(random)]
}

fn any_two(random: &mut Random) -> Vec<Program> {
    (0..2).map(|_| Program::any(random)).collect()
}

fn any_four(random: &mut Random) -> Vec<Program> {
    (0..4).map(|_| Program::any(random)).collect()
}

fn not_counted(random: &mut Random) -> Vec<Program> {
    any_two(random).into_iter().map(|program| Program { counted: false, ..program }).collect()
}

/// One that nobody counts beside one that asks for little.
fn one_not_counted(random: &mut Random) -> Vec<Program> {
    let unknown = Program { counted: false, ..Program::any(random) };
    vec![unknown, Program { apki: random.scale(0.1, 10.0), ..Program::compute(random) }]
}

/// Launches of a few rounds: the last round takes as long as a full one.
fn few_rounds(random: &mut Random) -> Vec<Program> {
    let slots = u32::try_from(random.below(50)).map(|more| more + 26).ok();
    vec![Program::memory(random), Program { slots, ..Program::compute(random) }]
}

fn few_rounds_not_counted(random: &mut Random) -> Vec<Program> {
    let programs = few_rounds(random).into_iter();
    programs.map(|program| Program { counted: false, ..program }).collect()
}

fn short_ctas(random: &mut Random) -> Vec<Program> {
    let short = |p: Program| Program { instructions_per_cta: p.instructions_per_cta.min(2e3), ..p };
    memory_and_compute(random).into_iter().map(short).collect()
}

/// What a policy made of a mix.
#[derive(Clone, Copy)]
pub(crate) struct Outcome {
    /// Whether every program is memory-intensive by its own curve.
    pub(crate) power: bool,
    /// STP of the last split against the even one.
    pub(crate) found: f64,
    /// STP of the whole run against the even split.
    pub(crate) whole: f64,
    pub(crate) kilocycles: f64,
    /// Mean and least speed of the last split against the even one.
    pub(crate) kept: f64,
    pub(crate) least: f64,
    /// Part of the SMs that stay empty.
    pub(crate) freed: f64,
}

impl Kind {
    /// Runs the mix of a number.
    pub(crate) fn run(&self, seed: u64, mix: u64, settings: CdSearchSettings) -> Outcome {
        let gpu = (self.hardware)();
        let kind = self.name.bytes().fold(0, |hash: u64, byte| hash * 31 % 4093 + u64::from(byte));
        let mut random = Random(FIRST_SEED + (seed << 20) + (kind << 8) + mix);
        let mut programs = (self.programs)(&mut random);
        if gpu.access_bytes == 32 {
            // As many bytes in flight, and four times as many accesses.
            for program in &mut programs {
                program.parallelism *= 4.0;
                program.apki *= 2.0;
            }
        }
        let partitioner = CdSearch::new(settings, gpu).expect("it is a GPU");
        let policy = Policy::new(
            PolicySettings::new(gpu.sm_clock_khz),
            Box::new(Everyone::default()),
            Box::new(partitioner),
        );
        let mut simulator = Simulator::new(gpu, policy, random.next());
        let kilocycles = self.arrive(&mut simulator, &programs);
        let split = |simulator: &Simulator, programs: &[Program]| -> Vec<(Program, u16)> {
            let sms = simulator.running.iter().map(|running| simulator.active(running.id));
            programs.iter().copied().zip(sms).collect()
        };
        if self.twist == Twist::Phases {
            simulator.advance(CYCLES / 2);
            programs.rotate_left(1);
            for (running, program) in simulator.running.iter_mut().zip(&programs) {
                running.program = *program;
            }
            simulator.advance(CYCLES);
        }
        let last = split(&simulator, &programs);
        let even = even(&programs, gpu.sms);
        let now = speeds(&gpu, &last);
        let relative: Vec<f64> =
            now.iter().zip(speeds(&gpu, &even)).map(|(now, even)| now / even).collect();
        Outcome {
            power: programs.iter().all(|program| is_memory(&gpu, program)),
            found: stp(&gpu, &last) / stp(&gpu, &even),
            whole: self.whole(&mut simulator, &programs, &even),
            kilocycles,
            kept: crate::mean(relative.iter().copied()),
            least: relative.iter().copied().fold(f64::INFINITY, f64::min),
            freed: 1.0
                - f64::from(last.iter().map(|(_, sms)| sms).sum::<u16>()) / f64::from(gpu.sms),
        }
    }

    /// Lets the programs come; answers the kilocycles until the search has ended.
    fn arrive(&self, simulator: &mut Simulator, programs: &[Program]) -> f64 {
        if self.twist == Twist::Bursts {
            simulator.burst = 8;
        }
        for (index, program) in programs.iter().enumerate() {
            simulator.arrive(*program);
            if index == 0 && self.twist == Twist::Later {
                simulator.converge();
            }
        }
        if self.twist == Twist::SlowBegin
            && let Some(running) = simulator.running.get_mut(1)
        {
            running.slow = (45_000, 0.7);
        }
        float(simulator.converge()) / 1e3
    }

    /// What the programs have done until [`CYCLES`], against the even split.
    fn whole(
        &self,
        simulator: &mut Simulator,
        programs: &[Program],
        even: &[(Program, u16)],
    ) -> f64 {
        if matches!(self.twist, Twist::Later | Twist::Phases) {
            // They were not together all the time.
            simulator.advance(0);
        } else if simulator.now < CYCLES {
            simulator.advance(CYCLES - simulator.now);
        }
        let gpu = simulator.gpu;
        if matches!(self.twist, Twist::Later | Twist::Phases) {
            let sms = simulator.running.iter().map(|running| simulator.active(running.id));
            let last: Vec<(Program, u16)> = programs.iter().copied().zip(sms).collect();
            return stp(&gpu, &last) / stp(&gpu, even);
        }
        let alone = |program: &Program| speeds(&gpu, &[(*program, gpu.sms)]).iter().sum::<f64>();
        let done = simulator.running.iter().map(|running| running.done / alone(&running.program));
        done.sum::<f64>() / float(simulator.now) / stp(&gpu, even)
    }
}

/// Whether all SMs make it less than 1.5 times as fast as half of them.
fn is_memory(gpu: &Calibration, program: &Program) -> bool {
    let alone = |sms: u16| speeds(gpu, &[(*program, sms)]).iter().sum::<f64>();
    alone(gpu.sms) / alone(gpu.sms / 2) < 1.5
}

fn even(programs: &[Program], sms: u16) -> Vec<(Program, u16)> {
    let count = u16::try_from(programs.len()).expect("a few");
    let share = |index: u16| sms / count + u16::from(index < sms % count);
    (0..).zip(programs).map(|(index, program)| (*program, share(index))).collect()
}

fn float(count: u64) -> f64 {
    f64::from(u32::try_from(count).expect("a few million"))
}
