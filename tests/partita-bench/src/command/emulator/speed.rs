//! How fast the emulator is: thread instructions per second of five workloads, beside a calibration
//! loop.
//!
//! The workloads are those for which issue 3's figures are stated: a chain of dependent `fma`,
//! SAXPY over 32 MB with all checks, a tiled matrix product with shared memory and barriers,
//! Collatz (divergent), and a random gather. Each result is checked before its time counts.

use partita_emu::Spec;
use partita_emu::direct::{Argument, DirectError, Run, processor_time};
use partita_emu::{Options, Timing};
use partita_model::Dim3;
use serde::Serialize;
use std::time::Duration;

/// One workload's figure.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Speed {
    /// Its name.
    pub name: &'static str,
    /// Thread instructions of active lanes.
    pub thread_instructions: u64,
    /// Seconds of the host's processor.
    pub seconds: f64,
    /// Simulated cycles.
    pub cycles: u64,
    /// Million thread instructions per second that are asked for without timing. With timing 1,000
    /// are asked for in the geometric mean.
    pub goal: Option<f64>,
}

impl Speed {
    /// Million thread instructions per second.
    #[must_use]
    pub fn millions_per_second(&self) -> f64 {
        self.thread_instructions as f64 / self.seconds / 1e6
    }
}

pub const PTX: &str = include_str!("speed.ptx");

fn floats(count: u32, modulus: u32) -> Vec<u8> {
    (0..count).flat_map(|i| ((i % modulus) as f32).to_le_bytes()).collect()
}

fn word(value: u32) -> Argument {
    Argument::Value(value.to_le_bytes().to_vec())
}

struct Workload {
    name: &'static str,
    kernel: &'static str,
    grid: Dim3,
    block: Dim3,
    arguments: Vec<Argument>,
    goal: f64,
}

fn workloads(scale: u32) -> Vec<Workload> {
    let n = (4 << 20) / scale;
    let side = if scale == 1 { 256 } else { 64 };
    let rounds = 4000 / scale;
    let collatz = 65_536 / scale;
    let gather = (1 << 18) / scale;
    vec![
        Workload {
            name: "chain",
            kernel: "chain",
            grid: Dim3::linear(48),
            block: Dim3::linear(256),
            arguments: vec![Argument::Buffer(vec![0; 48 * 256 * 4]), word(rounds)],
            goal: 16000.0,
        },
        Workload {
            name: "saxpy",
            kernel: "saxpy",
            grid: Dim3::linear(n / 256),
            block: Dim3::linear(256),
            arguments: vec![
                Argument::Value(1.5_f32.to_le_bytes().to_vec()),
                Argument::Buffer(floats(n, 97)),
                Argument::Buffer(floats(n, 89)),
                word(n),
            ],
            goal: 8000.0,
        },
        Workload {
            name: "matmul",
            kernel: "matmul",
            grid: Dim3::new(side / 16, side / 16, 1),
            block: Dim3::new(16, 16, 1),
            arguments: vec![
                Argument::Buffer(floats(side * side, 97)),
                Argument::Buffer(floats(side * side, 89)),
                Argument::Buffer(vec![0; (side * side * 4) as usize]),
                word(side),
            ],
            goal: 7000.0,
        },
        Workload {
            name: "collatz",
            kernel: "collatz",
            grid: Dim3::linear(collatz / 256),
            block: Dim3::linear(256),
            arguments: vec![Argument::Buffer(vec![0; (collatz * 4) as usize]), word(collatz)],
            goal: 5500.0,
        },
        Workload {
            name: "gather",
            kernel: "gather",
            grid: Dim3::linear(gather / 256),
            block: Dim3::linear(256),
            arguments: vec![
                Argument::Buffer((0..1_u32 << 18).flat_map(u32::to_le_bytes).collect()),
                Argument::Buffer(vec![0; (gather * 4) as usize]),
                word((1 << 18) - 1),
            ],
            goal: 4000.0,
        },
    ]
}

fn check(name: &str, buffers: &[Vec<u8>]) -> bool {
    let word = |buffer: &[u8], index: usize| {
        buffer
            .get(index * 4..)
            .and_then(|rest| rest.first_chunk())
            .map_or(0, |word| u32::from_le_bytes(*word))
    };
    match name {
        "saxpy" => {
            let i = 31_000_usize;
            word(&buffers[1], i) == 1.5_f32.mul_add((i % 97) as f32, (i % 89) as f32).to_bits()
        }
        "matmul" => {
            let side = (buffers[2].len() / 4).isqrt();
            let (row, column) = (side - 3, 5);
            let sum = (0..side).fold(0.0_f32, |sum, k| {
                let a = f32::from_bits(word(&buffers[0], row * side + k));
                let b = f32::from_bits(word(&buffers[1], k * side + column));
                a.mul_add(b, sum)
            });
            word(&buffers[2], row * side + column) == sum.to_bits()
        }
        "collatz" => word(&buffers[0], 26) == 111,
        "gather" => {
            let hash = 777_u32.wrapping_mul(2_654_435_761).wrapping_add(12_345);
            let sum =
                (0..4).fold(0_u32, |sum, k| sum.wrapping_add((hash >> (7 + k)) & ((1 << 18) - 1)));
            word(&buffers[1], 777) == sum
        }
        _ => true,
    }
}

/// Runs the workloads; with `only`, the one of that name.
///
/// Each is run until it has been measured [`MOST_RUNS`] times or for [`LONG_ENOUGH`], and at least
/// [`FEWEST_RUNS`] times; the best run counts, because a run can only be disturbed, never helped.
/// What is measured is the processor time from the launch to its completion, without loading the
/// module and without copies from and to the host.
///
/// # Errors
/// Where one does not run, or gives a wrong result.
pub fn measure(
    spec: &Spec,
    timing: Timing,
    scale: u32,
    only: Option<&str>,
) -> Result<Vec<Speed>, DirectError> {
    let wanted = |workload: &Workload| only.is_none_or(|name| name == workload.name);
    workloads(scale.max(1))
        .into_iter()
        .filter(wanted)
        .map(|workload| best(&workload, spec, timing, 1))
        .collect()
}

/// Runs each workload on one thread and then on `threads`, without timing. The clock on the wall
/// counts where there is more than one thread.
///
/// # Errors
/// As [`measure`].
pub fn pairs(spec: &Spec, threads: u16, scale: u32) -> Result<Vec<(Speed, Speed)>, DirectError> {
    let pair = |workload: Workload| {
        let one = best(&workload, spec, Timing::Off, 1)?;
        Ok((one, best(&workload, spec, Timing::Off, threads)?))
    };
    workloads(scale.max(1)).into_iter().map(pair).collect()
}

const FEWEST_RUNS: u32 = 3;
const MOST_RUNS: u32 = 30;
const LONG_ENOUGH: Duration = Duration::from_millis(300);

fn best(
    workload: &Workload,
    spec: &Spec,
    timing: Timing,
    threads: u16,
) -> Result<Speed, DirectError> {
    let job = Run {
        ptx: PTX.into(),
        kernel: workload.kernel.to_owned(),
        grid: workload.grid,
        block: workload.block,
        dynamic_shared: 0,
        arguments: workload.arguments.clone(),
        form: partita_emu::direct::Form::Original,
        spec: spec.clone(),
        options: Options { seed: 0, timing, helpers: threads - 1, ..Options::default() },
    };
    let (mut best, mut spent, mut runs) = (Duration::MAX, Duration::ZERO, 0);
    loop {
        let (ran, took) = partita_emu::direct::prepare(&job)?.run_timed()?;
        if !check(workload.name, &ran.buffers) {
            return Err(DirectError::Module(format!(
                "workload {} gave a wrong result",
                workload.name
            )));
        }
        best = best.min(took);
        spent += took;
        runs += 1;
        if runs >= MOST_RUNS || runs >= FEWEST_RUNS && spent >= LONG_ENOUGH {
            return Ok(Speed {
                name: workload.name,
                thread_instructions: ran.counters.thread_instructions,
                seconds: best.as_secs_f64(),
                cycles: ran.counters.cycles,
                goal: (timing == Timing::Off).then_some(workload.goal),
            });
        }
    }
}

/// Million steps per second of a fixed loop of dependent integer operations: how fast this host is,
/// to compare figures of different hosts by.
#[must_use]
pub fn calibration() -> f64 {
    const STEPS: u64 = 50_000_000;
    let start = processor_time();
    let mut state = std::hint::black_box(0x9e37_79b9_7f4a_7c15_u64);
    for _ in 0..STEPS {
        state = (state ^ (state >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    }
    std::hint::black_box(state);
    STEPS as f64 / processor_time().saturating_sub(start).as_secs_f64() / 1e6
}
