//! How workloads speed up with SMs, and what pairs of them gain by sharing a GPU.

use super::probe::first_sms;
use super::{CALIBRATE, Effort};
use crate::rig::{Grid, Param, Rig, RigError, params};
use partita_cli::report::Metric;
use partita_device::{Device, Work};
use partita_model::control::{self, block_bytes};
use partita_model::{DeviceAddress, DeviceFacts, ModuleId, Nanos, SmSet};
use partita_ptx::WorkerOptions;

/// Room for a part's memory.
const WINDOW: u64 = 4 << 30;
const THREADS: u32 = 256;

/// Two workloads, as they were written and as workers.
struct Bench {
    facts: DeviceFacts,
    originals: ModuleId,
    workers: ModuleId,
    blocks: [DeviceAddress; 2],
    kernels: [Workload; 2],
}

struct Workload {
    name: &'static str,
    kernel: &'static str,
    params: Vec<Param>,
    ctas: u32,
}

impl Bench {
    fn new(rig: &mut Rig<'_>, effort: Effort) -> Result<Bench, RigError> {
        let facts = rig.device().facts().clone();
        let broken = |error: partita_ptx::Errors| RigError::Module(error.to_string());
        let original = partita_ptx::parse(CALIBRATE).map_err(broken)?;
        let worker = partita_ptx::worker(&original, &WorkerOptions::default()).module;
        let (originals, workers) = (rig.load(CALIBRATE)?, rig.load(&partita_ptx::print(&worker))?);
        let bytes = if effort == Effort::Full { 1 << 30 } else { 4 << 20 };
        let (sink, other, stream) = (rig.memory(512)?, rig.memory(512)?, rig.memory(bytes)?);
        let block = block_bytes(facts.sm_numbers());
        let blocks = [rig.signals(block)?, rig.signals(block)?];
        let rounds = if effort == Effort::Full { 4000 } else { 8 };
        let ctas = 8 * u32::from(facts.sm_count) * per_sm(&facts);
        let kernels = [
            Workload {
                name: "arithmetic",
                kernel: "partita_arithmetic",
                params: vec![Param::Wide(sink.0), Param::Word(rounds)],
                ctas,
            },
            Workload {
                name: "stream",
                kernel: "partita_stream",
                params: vec![Param::Wide(stream.0), Param::Wide(other.0), Param::Wide(bytes / 16)],
                ctas,
            },
        ];
        Ok(Bench { facts, originals, workers, blocks, kernels })
    }

    /// A workload as workers on some SMs, with its control block written.
    fn confined(
        &self,
        rig: &mut Rig<'_>,
        which: usize,
        sms: &SmSet,
    ) -> Result<Grid<'static>, RigError> {
        let workload = &self.kernels[which];
        // Those that start elsewhere leave at once, so there must be more.
        let launched = u32::from(self.facts.sm_count) * per_sm(&self.facts);
        let gates = super::probe::gates(&self.facts, 4, sms);
        let image = super::probe::block(&self.facts, workload.ctas, launched, &gates);
        rig.device().poke(self.blocks[which], &image)?;
        let mut all = workload.params.clone();
        all.push(Param::Wide(self.blocks[which].0));
        Ok(Grid {
            module: self.workers,
            kernel: workload.kernel,
            ctas: launched,
            threads: THREADS,
            params: params(&all),
        })
    }

    fn original(&self, which: usize) -> Grid<'static> {
        let Workload { kernel, params: own, ctas, .. } = &self.kernels[which];
        Grid { module: self.originals, kernel, ctas: *ctas, threads: THREADS, params: params(own) }
    }

    fn check(&self, rig: &mut Rig<'_>, which: usize) -> Result<(), RigError> {
        let done = rig.word(DeviceAddress(self.blocks[which].0 + control::COMPLETED))?;
        let Workload { kernel, ctas, .. } = &self.kernels[which];
        if done == u64::from(*ctas) {
            return Ok(());
        }
        Err(RigError::Work(format!("{done} of {ctas} CTAs of `{kernel}` completed")))
    }
}

/// CTAs of [`THREADS`] threads that an SM holds.
fn per_sm(facts: &DeviceFacts) -> u32 {
    facts.threads_per_sm / THREADS
}

/// How much faster workloads are with more SMs.
pub fn curves(device: &mut dyn Device, effort: Effort) -> Result<Vec<Metric>, RigError> {
    let mut rig = Rig::new(device, WINDOW)?;
    let bench = Bench::new(&mut rig, effort)?;
    let all = bench.facts.sm_count;
    let mut metrics = Vec::new();
    for (which, workload) in bench.kernels.iter().enumerate() {
        let mut whole = 0.0;
        let mut counts = [all, all / 2, all / 4, all / 8].to_vec();
        counts.retain(|sms| *sms > 0);
        for sms in counts {
            let grid = bench.confined(&mut rig, which, &first_sms(&bench.facts, sms))?;
            let time = rig.time(&grid)?.0 as f64;
            bench.check(&mut rig, which)?;
            if sms == all {
                whole = time;
                metrics.push(Metric::plain(
                    format!("{}, {all} SMs", workload.name),
                    time / 1e3,
                    "us",
                ));
            } else {
                let speed = whole / time * 100.0;
                metrics.push(Metric::plain(
                    format!("{}, {sms} SMs", workload.name),
                    speed,
                    "% of the speed",
                ));
            }
        }
    }
    rig.end()?;
    Ok(metrics)
}

/// What two workloads gain by running together: the sum of their speeds, as parts of those that
/// they have alone.
pub fn pairs(device: &mut dyn Device, effort: Effort) -> Result<Vec<Metric>, RigError> {
    let mut rig = Rig::new(device, WINDOW)?;
    let bench = Bench::new(&mut rig, effort)?;
    let alone = [rig.time(&bench.original(0))?, rig.time(&bench.original(1))?];
    let all = bench.facts.sm_count;
    let first = first_sms(&bench.facts, all / 2);
    let halves = [first, bench.facts.sms().difference(&first)];
    let even = {
        let grids =
            [bench.confined(&mut rig, 0, &halves[0])?, bench.confined(&mut rig, 1, &halves[1])?];
        let times = together(&mut rig, &grids, [0, 1])?;
        bench.check(&mut rig, 0)?;
        bench.check(&mut rig, 1)?;
        times
    };
    let grids = [bench.original(0), bench.original(1)];
    let left_over = together(&mut rig, &grids, [0, 1])?;
    let in_turn = together(&mut rig, &grids, [0, 0])?;
    rig.end()?;
    let mut metrics = Vec::new();
    for (name, times) in [
        ("workers on halves", even),
        ("originals at once, as MPS lets them", left_over),
        ("one after the other", in_turn),
    ] {
        let slowdowns = [0, 1].map(|which: usize| times[which].0 as f64 / alone[which].0 as f64);
        let throughput: f64 = slowdowns.iter().map(|slowdown| 1.0 / slowdown).sum();
        metrics.push(Metric::plain(format!("{name}: STP"), throughput, ""));
        metrics.push(Metric::plain(
            format!("{name}: ANTT"),
            slowdowns.iter().sum::<f64>() / 2.0,
            "",
        ));
    }
    Ok(metrics)
}

/// Starts two grids at once, in these streams; how long each took from then on.
fn together(
    rig: &mut Rig<'_>,
    grids: &[Grid<'_>; 2],
    streams: [u64; 2],
) -> Result<[Nanos; 2], RigError> {
    let before = rig.enqueue(3, Work::Marker)?;
    let start = rig.wait(before)?;
    let launched = [rig.launch(streams[0], &grids[0])?, rig.launch(streams[1], &grids[1])?];
    let mut times = [Nanos(0); 2];
    for (time, operation) in times.iter_mut().zip(launched) {
        *time = Nanos(rig.wait(operation)?.saturating_sub(start).0.max(1));
    }
    Ok(times)
}
