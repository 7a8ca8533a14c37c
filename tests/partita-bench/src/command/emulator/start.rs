//! What the emulated GPU costs before a kernel runs: the time to make a device, the time to load a
//! module, and memory.

use super::speed::PTX;
use partita_device::{Device, Event, Horizon};
use partita_emu::Spec;
use partita_emu::direct::{DirectError, processor_time};
use partita_emu::{EmulatedGpu, Options};
use partita_model::{ModuleId, WindowId};
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of PTX for which issue 3's figure is stated.
pub const MODULE_BYTES: usize = 1_000_000;

/// What was measured.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Start {
    /// Processor time from a spec's text to a device.
    pub device: Duration,
    /// Processor time from a module's text to kernels that can be launched.
    pub load: Duration,
    /// Kernels of the module.
    pub kernels: usize,
    /// Bytes of this process in the host's memory with device and module, less the device's memory
    /// in use. `None` where the host does not tell.
    pub resident: Option<u64>,
}

/// A module of at least `bytes` of PTX: the kernels of the speed workloads again and again, each
/// time by other names.
#[must_use]
pub fn generated_module(bytes: usize) -> String {
    const ENTRY: &str = ".visible .entry ";
    let kernels = PTX.find(ENTRY).unwrap_or(PTX.len());
    let (header, kernels) = PTX.split_at(kernels);
    let mut text = String::with_capacity(bytes + kernels.len());
    text.push_str(header);
    for copy in 0.. {
        if text.len() >= bytes {
            break;
        }
        for kernel in kernels.split(ENTRY).filter(|kernel| !kernel.is_empty()) {
            let (name, rest) = kernel.split_once('(').unwrap_or((kernel, ""));
            let _ = write!(text, "{ENTRY}{name}_{copy}({rest}");
        }
    }
    text
}

const RUNS: u32 = 7;

/// Makes a device and loads a module, several times; the best run counts, because a run can only be
/// disturbed.
///
/// # Errors
/// Where the module does not load.
pub fn measure(spec: &str, options: Options, ptx: &str) -> Result<Start, DirectError> {
    let module = |error: &dyn std::fmt::Display| DirectError::Module(error.to_string());
    let mut best: Option<Start> = None;
    for _ in 0..RUNS {
        let start = processor_time();
        let spec = Spec::find(spec).map_err(|error| module(&error))?;
        let mut gpu = EmulatedGpu::new(spec, options);
        let device = processor_time().saturating_sub(start);

        gpu.reserve(WindowId(1), 256 << 20)?;
        let ptx: Arc<str> = ptx.into();
        let start = processor_time();
        gpu.load_module(ModuleId(1), WindowId(1), ptx)?;
        let mut events = Vec::new();
        gpu.poll(Horizon { until: None, warp_instructions: 0 }, &mut events);
        let load = processor_time().saturating_sub(start);

        let kernels = match events.into_iter().next() {
            Some(Event::ModuleLoaded { facts, .. }) => facts.kernels.len(),
            Some(Event::ModuleRefused { reason, .. }) => return Err(DirectError::Module(reason)),
            _ => 0,
        };
        let resident = resident().map(|bytes| bytes.saturating_sub(gpu.memory_used().0));
        let run = Start { device, load, kernels, resident };
        best = Some(match best {
            None => run,
            Some(best) => Start {
                device: best.device.min(device),
                load: best.load.min(load),
                resident: best.resident.max(resident),
                kernels,
            },
        });
    }
    best.ok_or_else(|| module(&"nothing was measured"))
}

/// Bytes of this process in the host's memory.
fn resident() -> Option<u64> {
    // proc_pid_status(5).
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kibibytes| kibibytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_emu::Timing;

    #[test]
    fn the_module_has_the_size_and_every_kernel_of_it_loads() {
        let text = generated_module(50_000);
        assert!((50_000..60_000).contains(&text.len()), "{}", text.len());
        let options = Options { timing: Timing::Off, ..Options::default() };
        let start = measure("cd-search-24", options, &text).unwrap();
        assert_eq!(start.kernels, text.matches(".entry").count());
        assert!(start.load > Duration::ZERO);
    }
}
