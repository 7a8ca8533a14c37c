//! How much kernels on SMs of their own disturb one another through what they share: crossbar, LLC
//! and DRAM.
//!
//! As in Masola et al., section 7.1: each kernel runs alone on its SMs, then all run together on
//! the same ones.

use super::curves::PTX;
use partita_device::{Activity, AddressRange, Device, Event, GridSpec, Horizon, Outcome, Work};
use partita_emu::Spec;
use partita_emu::direct::DirectError;
use partita_emu::{EmulatedGpu, Options};
use partita_model::{
    DeviceAddress, Dim3, GridCounters, ModuleId, OperationId, SmSet, StreamId, WindowId,
};

/// What [`Kind::Shade`] reads.
const TABLE_BYTES: u64 = 16 << 10;
const WINDOW: WindowId = WindowId(1);
const MODULE: ModuleId = ModuleId(1);
const FAR: Horizon = Horizon { until: None, warp_instructions: u64::MAX };

/// What a kernel of the experiments does with its arrays of words, a thread a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Reads two, writes one.
    Add,
    /// Reads one, writes one.
    Copy,
    /// The same with so many rounds of eight fma in between.
    Mixed {
        /// Rounds.
        rounds: u32,
    },
    /// Reads a table that stays in the LLC sixteen times, with so many rounds of eight fma before
    /// each, and writes one.
    Shade {
        /// Rounds.
        rounds: u32,
    },
}

/// One kernel of an experiment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Job {
    /// What it does.
    pub kind: Kind,
    /// CTAs.
    pub ctas: u32,
    /// Threads of a CTA.
    pub threads: u32,
    /// SMs.
    pub sms: u16,
}

/// What became of it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Disturbed {
    /// Time together by time alone.
    pub slowdown: f64,
    /// Bytes between its SMs and the LLC by its time, alone: GB/s.
    pub gigabytes_per_second_alone: f64,
}

/// Runs each job alone on its SMs, then all together; SMs are dealt out in order.
///
/// # Errors
/// Where one does not run.
pub fn measure(spec: &Spec, jobs: &[Job]) -> Result<Vec<Disturbed>, DirectError> {
    let mut first = 0;
    let placed: Vec<(Job, SmSet)> = jobs
        .iter()
        .map(|job| {
            let sms = SmSet::range(first, job.sms);
            first += job.sms;
            (*job, sms)
        })
        .collect();
    let together = run(spec, &placed)?;
    let mut results = Vec::new();
    for (placed, together) in placed.iter().zip(&together) {
        let alone = run(spec, &[*placed])?;
        let alone = alone.first().copied().unwrap_or_default();
        let cycles = alone.cycles.max(1) as f64;
        results.push(Disturbed {
            slowdown: together.cycles as f64 / cycles,
            gigabytes_per_second_alone: alone.crossbar_bytes as f64 * 1000.0
                / (cycles * spec.cycle_ps() as f64),
        });
    }
    Ok(results)
}

/// Starts all at once on a device of their own.
fn run(spec: &Spec, jobs: &[(Job, SmSet)]) -> Result<Vec<GridCounters>, DirectError> {
    let mut gpu = EmulatedGpu::new(spec.clone(), Options::default());
    let bytes: u64 = jobs.iter().map(|(job, _)| 3 * array_bytes(job)).sum();
    let base = gpu.reserve(WINDOW, (bytes + (2 << 20)).next_multiple_of(2 << 20))?;
    let memory = AddressRange { start: base, bytes };
    gpu.allocate(WINDOW, memory)?;
    gpu.load_module(MODULE, WINDOW, PTX.into())?;
    let mut events = Vec::new();
    gpu.poll(FAR, &mut events);
    let mut next = base;
    for (index, (job, sms)) in jobs.iter().enumerate() {
        let stream = StreamId(1 + index as u64);
        gpu.create_stream(stream)?;
        gpu.confine_stream(stream, *sms);
        let launch = launch(job, next, memory);
        next = DeviceAddress(next.0 + 3 * array_bytes(job));
        gpu.enqueue(stream, OperationId(1 + index as u64), Work::Launch(launch))?;
    }
    loop {
        let activity = gpu.poll(FAR, &mut events);
        for event in events.drain(..) {
            if let Event::Done { outcome: Outcome::Fault(fault), .. } = event {
                return Err(DirectError::Fault(fault));
            }
        }
        if activity == Activity::Idle {
            break;
        }
    }
    let counters =
        (1..=jobs.len() as u64).map(|id| gpu.take_counters(OperationId(id)).unwrap_or_default());
    Ok(counters.collect())
}

/// An array has a word a thread, and room for the table of [`Kind::Shade`].
fn array_bytes(job: &Job) -> u64 {
    (u64::from(job.ctas) * u64::from(job.threads) * 4).max(TABLE_BYTES)
}

fn launch(job: &Job, base: DeviceAddress, memory: AddressRange) -> GridSpec {
    let arrays = |count: u64| (0..count).map(|array| base.0 + array * array_bytes(job));
    let (kernel, arrays, last) = match job.kind {
        Kind::Add => ("add", arrays(3), Some(job.ctas * job.threads)),
        Kind::Copy => ("copy_words", arrays(2), None),
        Kind::Mixed { rounds } => ("mixed", arrays(2), Some(rounds)),
        Kind::Shade { rounds } => ("shade", arrays(2), Some(rounds)),
    };
    let mut params: Vec<u8> = arrays.flat_map(u64::to_le_bytes).collect();
    params.extend(last.into_iter().flat_map(u32::to_le_bytes));
    GridSpec {
        cooperative: false,
        cluster: Dim3::linear(1),
        module: MODULE,
        kernel: kernel.into(),
        grid: Dim3::linear(job.ctas),
        block: Dim3::linear(job.threads),
        dynamic_shared: 0,
        params,
        access: vec![memory],
    }
}
