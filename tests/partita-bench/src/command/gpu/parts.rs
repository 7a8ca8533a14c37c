//! The parts that measure how fast something is.

use super::{CALIBRATE, Effort, KERNELS};
use crate::rig::{Grid, Param, Rig, RigError, params};
use partita_cli::report::Metric;
use partita_device::{Device, HostMemory, HostSpan, Work};
use partita_gpu::calibration::measure;
use partita_model::Nanos;
use partita_model::control::{self, block_bytes};
use partita_ptx::WorkerOptions;
use std::sync::{Arc, Mutex};

/// Room for a part's memory.
const WINDOW: u64 = 4 << 30;

/// The numbers that policies work with.
pub fn calibration(device: &mut dyn Device) -> Result<Vec<Metric>, RigError> {
    let found = measure(device).map_err(|error| RigError::Work(error.to_string()))?;
    let gigabytes = |rate: f64| rate / 1e9;
    Ok(vec![
        Metric::plain("warp instructions of an SM", found.warp_instructions_per_cycle, "per cycle"),
        Metric::plain("from the LLC to one SM", gigabytes(found.sm_bytes_per_second), "GB/s"),
        Metric::plain("from the LLC to all SMs", gigabytes(found.llc_bytes_per_second), "GB/s"),
        Metric::plain("from DRAM", gigabytes(found.dram_bytes_per_second), "GB/s"),
        Metric::plain("from one launch to the next", found.launch_nanos / 1e3, "us"),
        Metric::plain("SMs that were seen", f64::from(found.sms_seen), "SMs"),
    ])
}

fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1e3
}

/// Latency of launches.
pub fn launch(device: &mut dyn Device, effort: Effort) -> Result<Vec<Metric>, RigError> {
    let (rounds, chain) = match effort {
        Effort::Little => (20, 500),
        Effort::Full => (1000, 10_000),
    };
    let mut rig = Rig::new(device, WINDOW)?;
    let module = rig.load(KERNELS)?;
    let empty = Grid { module, kernel: "empty", ctas: 1, threads: 32, params: Vec::new() };
    let mut latencies = Vec::new();
    for _ in 0..rounds {
        let before = rig.device().now();
        let launched = rig.launch(0, &empty)?;
        rig.wait(launched)?;
        latencies.push(rig.device().now().saturating_sub(before).0);
    }
    latencies.sort_unstable();
    let at =
        |part: usize| micros(latencies[(latencies.len() * part / 100).min(latencies.len() - 1)]);
    let before = rig.enqueue(0, Work::Marker)?;
    let mut last = before;
    for _ in 0..chain {
        last = rig.launch(0, &empty)?;
    }
    let (start, end) = (rig.wait(before)?, rig.wait(last)?);
    rig.end()?;
    let each = micros(end.saturating_sub(start).0) / f64::from(chain);
    Ok(vec![
        Metric::plain("launch to its end, median", at(50), "us"),
        Metric::plain("launch to its end, 99 %", at(99), "us"),
        Metric::plain(format!("{chain} dependent empty kernels, each"), each, "us"),
    ])
}

/// Memory of this process.
struct Buffer(Mutex<Vec<u8>>);

impl Buffer {
    fn with<T>(&self, offset: u64, bytes: usize, act: impl FnOnce(&mut [u8]) -> T) -> T {
        let mut memory = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let at = usize::try_from(offset).unwrap_or(usize::MAX);
        act(&mut memory[at..at + bytes])
    }
}

impl HostMemory for Buffer {
    fn size(&self) -> u64 {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).len() as u64
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        self.with(offset, into.len(), |memory| into.copy_from_slice(memory));
    }

    fn write(&self, offset: u64, from: &[u8]) {
        self.with(offset, from.len(), |memory| memory.copy_from_slice(from));
    }
}

/// Bandwidth of copies.
pub fn copies(device: &mut dyn Device, effort: Effort) -> Result<Vec<Metric>, RigError> {
    let bytes = if effort == Effort::Full { 256 << 20 } else { 4 << 20 };
    let mut rig = Rig::new(device, WINDOW)?;
    let (first, second) = (rig.memory(bytes)?, rig.memory(bytes)?);
    let pattern: Vec<u8> = (0..bytes).map(|at| (at % 253).to_le_bytes()[0]).collect();
    let up = Arc::new(Buffer(Mutex::new(pattern.clone())));
    let down = Arc::new(Buffer(Mutex::new(vec![0; pattern.len()])));
    let span = |memory: &Arc<Buffer>| {
        let memory: Arc<dyn HostMemory> = memory.clone();
        HostSpan::new(memory, 0, bytes).ok_or_else(|| RigError::Work("no host memory".to_owned()))
    };
    let works = [
        ("to the device", Work::CopyToDevice { to: first, from: span(&up)? }),
        ("on the device", Work::CopyOnDevice { to: second, from: first, bytes }),
        ("to the host", Work::CopyToHost { to: span(&down)?, from: second }),
    ];
    let mut metrics = Vec::new();
    for (name, work) in works {
        let before = rig.enqueue(0, Work::Marker)?;
        let copied = rig.enqueue(0, work)?;
        let (start, end) = (rig.wait(before)?, rig.wait(copied)?);
        let rate = bytes as f64 / end.saturating_sub(start).0.max(1) as f64;
        metrics.push(Metric::plain(format!("copy {name}"), rate, "GB/s"));
    }
    rig.end()?;
    let same = down.with(0, pattern.len(), |found| *found == pattern[..]);
    metrics.push(super::holds("what comes back is what went", same));
    Ok(metrics)
}

/// What forms cost.
pub fn overhead(device: &mut dyn Device, effort: Effort) -> Result<Vec<Metric>, RigError> {
    let facts = device.facts().clone();
    let cell_bits = device.guards().cell_bits;
    let cell_bits = cell_bits.unwrap_or_else(|| partita_ptx::fence::cell_bits(WINDOW));
    let options = WorkerOptions { cell_bits, ..WorkerOptions::default() };
    let broken = |error: partita_ptx::Errors| RigError::Module(error.to_string());
    let original = partita_ptx::parse(CALIBRATE).map_err(broken)?;
    let fenced = partita_ptx::print(&partita_ptx::fence(&original, &options).module);
    let worker = partita_ptx::print(&partita_ptx::worker(&original, &options).module);
    let mut rig = Rig::new(device, WINDOW)?;
    let modules = [rig.load(CALIBRATE)?, rig.load(&fenced)?, rig.load(&worker)?];
    let sink = rig.memory(512)?;
    let bytes = if effort == Effort::Full { 1 << 30 } else { 8 << 20 };
    let stream = rig.memory(bytes)?;
    let block = rig.signals(block_bytes(facts.sm_numbers()))?;
    // The first window of a cell lies behind its margin.
    let cell = sink.0 >> cell_bits << cell_bits;
    let per_sm = facts.threads_per_sm / 256;
    let ctas = u32::from(facts.sm_count) * per_sm;
    let rounds = if effort == Effort::Full { 4000 } else { 8 };
    let kernels = [
        ("partita_arithmetic", vec![Param::Wide(sink.0), Param::Word(rounds)]),
        (
            "partita_stream",
            vec![Param::Wide(stream.0), Param::Wide(sink.0), Param::Wide(bytes / 16)],
        ),
    ];
    let mut metrics = Vec::new();
    for (kernel, own) in kernels {
        let total = 8 * ctas;
        let mut times = Vec::new();
        for (form, &module) in modules.iter().enumerate() {
            let mut all = own.clone();
            let mut launched = total;
            match form {
                0 => {}
                1 => all.push(Param::Wide(cell)),
                _ => {
                    all.push(Param::Wide(block.0));
                    launched = ctas;
                }
            }
            let grid = Grid { module, kernel, ctas: launched, threads: 256, params: params(&all) };
            let mut best = Nanos(u64::MAX);
            for _ in 0..3 {
                let everywhere = facts.sms();
                let gates = super::probe::gates(&facts, 4, &everywhere);
                let image = super::probe::block(&facts, total, ctas, &gates);
                rig.device().poke(block, &image)?;
                best = best.min(rig.time(&grid)?);
                if form == 2 {
                    let done =
                        rig.word(partita_model::DeviceAddress(block.0 + control::COMPLETED))?;
                    if done != u64::from(total) {
                        return Err(RigError::Work(format!(
                            "{done} of {total} CTAs of `{kernel}` completed"
                        )));
                    }
                }
            }
            times.push(best.0 as f64);
        }
        let [plain, fenced, worker] = times[..] else { continue };
        let name = kernel.trim_start_matches("partita_");
        metrics.push(Metric::plain(format!("{name}, original"), plain / 1e3, "us"));
        metrics.push(Metric::at_most(
            format!("{name}, fence"),
            (fenced / plain - 1.0) * 100.0,
            "% more",
            4.0,
        ));
        metrics.push(Metric::at_most(
            format!("{name}, worker"),
            (worker / plain - 1.0) * 100.0,
            "% more",
            3.0,
        ));
    }
    rig.end()?;
    Ok(metrics)
}
