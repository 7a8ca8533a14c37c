//! Whether kernels mean the same on a device as on the emulated GPU, as they were written and in
//! every form.
//!
//! The kernels are cases of the corpus. Each runs on the emulated GPU first, three times with its
//! CTAs in other orders: one that does not end, faults, or does not leave the same memory each time
//! is no case. What it leaves there, every form must leave on the device.

use crate::rig::{Grid, Param, Rig, RigError, params};
use partita_cli::report::Metric;
use partita_device::Device;
use partita_emu::{EmulatedGpu, Options, Spec, Timing};
use partita_model::control::{self, block_bytes};
use partita_model::{DeviceAddress, ModuleId, OperationId, SmSet};
use partita_ptx::passes::{self, Applied};
use partita_ptx::{Kernel, KernelForm, Pass, WorkerOptions};

macro_rules! cases {
    ($($name:literal)*) => {
        [$(($name, include_str!(concat!("../../../../../kernels-ptx/corpus/", $name, ".ptx")))),*]
    };
}

const CASES: [(&str, &str); 28] = cases! {
    "worker/vector-add" "worker/barrier" "worker/barrier-in-function"
    "worker/barrier-in-uniform-loop"
    "worker/barrier-in-varying-loop" "worker/barrier-reduction" "worker/guarded-barrier"
    "worker/counted-barrier"
    "worker/switch" "worker/switch-varying" "worker/returns" "worker/two-kernels"
    "worker/grid-registers"
    "worker/grid-in-function" "worker/exit-before-barrier"
    "worker/exit-before-shuffle" "worker/exit-before-vote" "worker/uniform-exit-before-barrier"
    "worker/shuffle-of-some-lanes" "worker/flag-in-shared-memory" "worker/kept-full-rows"
    "worker/name-collision"
    "ticket/ways-out" "ticket/grid-in-function" "settle/variables" "fence/loop"
    "fence/in-functions" "fence/kinds"
};

/// Forms by name. Those that a kernel does not take are left out.
const FORMS: [(&str, &[Pass]); 6] = [
    ("original", &[]),
    ("fence", &[Pass::Fence]),
    ("worker", &[Pass::Worker]),
    ("ticket", &[Pass::Ticket]),
    ("cancel", &[Pass::Cancel]),
    ("all", &[Pass::Fence, Pass::Choose, Pass::Cancel]),
];

const CTAS: u32 = 6;
const THREADS: u32 = 64;
/// What each pointer that a kernel takes points to.
const BUFFER_BYTES: u64 = 64 << 10;
/// What a kernel gets for any other number.
const NUMBER: u32 = 97;
/// Looks at the emulated GPU, after which a kernel counts as one that does not end.
const LOOKS: usize = 400;
/// Waves of tickets.
const WAVES: usize = 100;
/// Room for a device's memory.
const WINDOW: u64 = 1 << 30;

/// Compares.
pub fn metrics(device: &mut dyn Device) -> Result<Vec<Metric>, RigError> {
    let mut runs = 0_u32;
    let mut kernels = 0_u32;
    let mut wrong = Vec::new();
    let cell_bits =
        device.guards().cell_bits.unwrap_or_else(|| partita_ptx::fence::cell_bits(WINDOW));
    for (case, text) in CASES {
        let module =
            partita_ptx::parse(text).map_err(|errors| RigError::Module(errors.to_string()))?;
        for kernel in module.kernels() {
            let Some(expected) = reference(text, &kernel)? else { continue };
            kernels += 1;
            for (form, wanted) in FORMS {
                let options = WorkerOptions { cell_bits, ..WorkerOptions::default() };
                let applied = passes::apply(&module, wanted, &options);
                if !takes(&applied, &kernel.name) {
                    continue;
                }
                runs += 1;
                let found = in_form(device, &applied, &kernel, cell_bits);
                match found {
                    Ok(found) if found == expected => {}
                    Ok(_) => {
                        wrong.push(format!("{case}, `{}` as {form}: other memory", kernel.name))
                    }
                    Err(error) => {
                        wrong.push(format!("{case}, `{}` as {form}: {error}", kernel.name))
                    }
                }
            }
        }
    }
    let mut metrics = vec![
        Metric::at_least(
            "kernels compared with the emulated GPU",
            f64::from(kernels),
            "kernels",
            20.0,
        ),
        Metric::plain("their forms", f64::from(runs), "runs"),
        Metric::at_most("runs that differ", wrong.len() as f64, "runs", 0.0),
    ];
    metrics.extend(wrong.into_iter().map(|what| Metric::at_most(what, 1.0, "runs", 0.0)));
    Ok(metrics)
}

/// Whether a kernel has taken every pass.
fn takes(applied: &Applied, kernel: &str) -> bool {
    let reports = applied.steps.iter().flat_map(|(_, reports)| reports);
    let mut own = reports.filter(|report| report.name == kernel);
    own.all(|report| report.refusals().is_empty())
}

/// The first contents of a pointer's memory.
fn contents() -> Vec<u8> {
    (0..BUFFER_BYTES / 4)
        .flat_map(|at| u32::try_from(at % 251).unwrap_or(0).to_le_bytes())
        .collect()
}

/// A kernel's parameters, and where its pointers point.
fn arguments(
    rig: &mut Rig<'_>,
    kernel: &Kernel,
) -> Result<(Vec<Param>, Vec<DeviceAddress>), RigError> {
    let (mut parts, mut buffers) = (Vec::new(), Vec::new());
    for param in &kernel.params {
        match param.size {
            8 => {
                let buffer = rig.memory(BUFFER_BYTES)?;
                rig.device().poke(buffer, &contents())?;
                buffers.push(buffer);
                parts.push(Param::Wide(buffer.0));
            }
            4 => parts.push(Param::Word(NUMBER)),
            other => return Err(RigError::Work(format!("a parameter of {other} bytes"))),
        }
    }
    Ok((parts, buffers))
}

fn left(rig: &mut Rig<'_>, buffers: &[DeviceAddress]) -> Result<Vec<u8>, RigError> {
    let mut all = Vec::new();
    for &buffer in buffers {
        let mut bytes = contents();
        rig.device().peek(buffer, &mut bytes)?;
        all.extend(bytes);
    }
    Ok(all)
}

/// What a kernel leaves on the emulated GPU; `None` where it is no case.
fn reference(text: &str, kernel: &Kernel) -> Result<Option<Vec<u8>>, RigError> {
    if kernel.dynamic_shared || !kernel.params.iter().all(|param| matches!(param.size, 4 | 8)) {
        return Ok(None);
    }
    let mut found = Vec::new();
    for (seed, timing) in [(1, Timing::Off), (2, Timing::Off), (3, Timing::On)] {
        let spec =
            Spec::named("cd-search-24").map_err(|error| RigError::Work(error.to_string()))?;
        let options = Options { seed, timing, ..Options::default() };
        let mut gpu = EmulatedGpu::new(spec, options);
        let mut rig = Rig::new(&mut gpu, WINDOW)?;
        let Ok(module) = rig.load(text) else { return Ok(None) };
        let (parts, buffers) = arguments(&mut rig, kernel)?;
        let grid = grid(module, kernel, CTAS, params(&parts));
        let Ok(launched) = rig.launch(0, &grid) else { return Ok(None) };
        if !ends_well(&mut rig, launched)? {
            return Ok(None);
        }
        found.push(left(&mut rig, &buffers)?);
    }
    let first = found.swap_remove(0);
    let is_case = found.iter().all(|other| *other == first) && !first.is_empty();
    Ok(is_case.then_some(first))
}

fn ends_well(rig: &mut Rig<'_>, launched: OperationId) -> Result<bool, RigError> {
    for _ in 0..LOOKS {
        if rig.has_ended(launched) {
            return Ok(rig.wait(launched).is_ok());
        }
        rig.turn(None)?;
    }
    Ok(false)
}

fn grid(module: ModuleId, kernel: &Kernel, ctas: u32, params: Vec<u8>) -> Grid<'_> {
    let threads = kernel.required_threads.map_or(THREADS, |[x, y, z]| x * y * z);
    Grid { module, kernel: &kernel.name, ctas, threads, params }
}

/// What a kernel in some form leaves on the device.
fn in_form(
    device: &mut dyn Device,
    applied: &Applied,
    kernel: &Kernel,
    cell_bits: u32,
) -> Result<Vec<u8>, RigError> {
    let facts = device.facts().clone();
    let mut rig = Rig::new(device, WINDOW)?;
    let result = (|| {
        let module = rig.load(&partita_ptx::print(&applied.module))?;
        let (mut parts, buffers) = arguments(&mut rig, kernel)?;
        // Aligned, and behind what is the program's own.
        let own = params(&parts).len().next_multiple_of(8);
        let mut extra = Vec::new();
        let reports = applied
            .steps
            .iter()
            .flat_map(|(pass, reports)| reports.iter().map(move |report| (pass, report)))
            .filter(|(_, report)| report.name == kernel.name);
        let block = rig.signals(block_bytes(facts.sm_count))?;
        let window = rig.memory(8)?;
        let mut as_form = None;
        for (pass, report) in reports {
            match report.rewritten().map(|rewrite| rewrite.form) {
                Some(form) => {
                    as_form = Some(form);
                    extra.push(block.0);
                }
                None if report.added.is_empty() => {}
                None if *pass == Pass::Fence => extra.push(window.0 >> cell_bits << cell_bits),
                None => extra.push(block.0),
            }
        }
        let mut bytes = params(&std::mem::take(&mut parts));
        bytes.resize(own, 0);
        bytes.extend(extra.iter().flat_map(|value| value.to_le_bytes()));
        if extra.is_empty() {
            bytes.truncate(usize::try_from(kernel.param_bytes).unwrap_or(0));
        }
        let everywhere = SmSet::range(0, facts.sm_count);
        let gates = super::probe::gates(&facts, 1, &everywhere);
        rig.device().poke(block, &super::probe::block(&facts, CTAS, CTAS, &gates))?;
        let grid = grid(module, kernel, CTAS, bytes);
        for _ in 0..WAVES {
            let launched = rig.launch(0, &grid)?;
            rig.wait(launched)?;
            if as_form != Some(KernelForm::Ticket) || completed(&mut rig, block)? >= u64::from(CTAS)
            {
                break;
            }
        }
        if as_form.is_some() && completed(&mut rig, block)? != u64::from(CTAS) {
            return Err(RigError::Work("CTAs were lost, or run twice".to_owned()));
        }
        left(&mut rig, &buffers)
    })();
    rig.end()?;
    result
}

fn completed(rig: &mut Rig<'_>, block: DeviceAddress) -> Result<u64, RigError> {
    rig.word(DeviceAddress(block.0 + control::COMPLETED))
}
