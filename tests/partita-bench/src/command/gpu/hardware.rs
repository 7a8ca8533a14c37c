//! The part of the probe that only a real GPU has: green contexts and NVML, by the driver's own
//! functions beside the device that is open.

use super::{CALIBRATE, holds};
use crate::rig::{Param, RigError, params};
use partita_cli::report::Metric;
use partita_cuda_device::driver::{
    Context, Driver, Failure, GPM_INTERVAL, Library, Module, Monitor, Pinned, Stream,
};
use partita_model::{DeviceFacts, Dim3};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the LLC is read while NVML counts: longer than it needs between two samples.
const READING: Duration = Duration::from_millis(250);

fn failed(failure: Failure) -> RigError {
    RigError::Work(failure.to_string())
}

/// Everything of it.
pub fn metrics(facts: &DeviceFacts, ordinal: u32) -> Result<Vec<Metric>, RigError> {
    let driver = Driver::load(None).map_err(|error| RigError::Work(error.to_string()))?;
    let pci = driver.device_pci_bus_id(ordinal).map_err(failed)?;
    let context = Context::open(driver, ordinal).map_err(failed)?;
    let image = context.compile(CALIBRATE).map_err(|error| RigError::Module(error.to_string()))?;
    let module = Module::load(&context, &image).map_err(failed)?;
    let mut metrics = green(&context, &image, facts)?;
    metrics.extend(nvml(&context, &module, facts, &pci)?);
    module.unload().map_err(failed)?;
    Ok(metrics)
}

/// A grid of as many CTAs as the GPU holds, in a green context of half of its SMs: where they run.
fn green(
    context: &Arc<Context>,
    image: &[u8],
    facts: &DeviceFacts,
) -> Result<Vec<Metric>, RigError> {
    let wanted = u32::from(facts.sm_count) / 2;
    let green = match context.green(wanted) {
        Ok(green) => green,
        Err(failure) => {
            return Ok(vec![Metric::plain(format!("no green contexts: {failure}"), 0.0, "SMs")]);
        }
    };
    let ctas = u32::from(facts.sm_count) * (facts.threads_per_sm / 256);
    let places = Pinned::new(context, ctas as usize * 16).map_err(failed)?;
    // A function of a module is the primary context's. A library's kernels run in every context.
    let library = Library::load(context, image).map_err(failed)?;
    let function = library.kernel("partita_probe").map_err(failed)?;
    let mut own = params(&[Param::Wide(places.device_address()), Param::Word(100_000)]);
    let shape = [Dim3::linear(ctas), Dim3::linear(256)];
    green.streams[0].launch(function, shape, 0, &mut own).map_err(failed)?;
    green.streams[0].synchronize().map_err(failed)?;
    let mut found = vec![0; places.bytes()];
    places.read(0, &mut found);
    let sms: BTreeSet<&[u8]> = found.chunks_exact(16).map(|place| &place[..4]).collect();
    let granted = green.sms;
    green.destroy().map_err(failed)?;
    library.unload().map_err(failed)?;
    Ok(vec![
        Metric::plain(
            format!("SMs of a green context that asked for {wanted}"),
            f64::from(granted),
            "SMs",
        ),
        holds("kernels of a green context keep to its SMs", sms.len() <= granted as usize),
    ])
}

/// What NVML says while the LLC is read.
fn nvml(
    context: &Arc<Context>,
    module: &Module,
    facts: &DeviceFacts,
    pci: &str,
) -> Result<Vec<Metric>, RigError> {
    let monitor = match Monitor::open(None, pci) {
        Ok(monitor) => monitor,
        Err(error) => return Ok(vec![Metric::plain(format!("no NVML: {error}"), 0.0, "of 1")]),
    };
    let set: usize = 1 << 20;
    let memory = Pinned::new(context, set + 512).map_err(failed)?;
    let stream = Stream::new(context, 0).map_err(failed)?;
    let function = module.function("partita_arithmetic").map_err(failed)?;
    let shape = [Dim3::linear(u32::from(facts.sm_count) * 4), Dim3::linear(256)];
    let mut result = Ok(());
    let mut during = None;
    let mut busy = || {
        let end = Instant::now() + READING.max(2 * GPM_INTERVAL);
        while result.is_ok() && Instant::now() < end {
            let mut own = params(&[Param::Wide(memory.device_address()), Param::Word(2000)]);
            result =
                stream.launch(function, shape, 0, &mut own).and_then(|()| stream.synchronize());
        }
        during = Some(monitor.read());
    };
    let counts = monitor.counts_traffic();
    let traffic = if counts {
        monitor.traffic(&mut busy).ok()
    } else {
        busy();
        None
    };
    result.map_err(failed)?;
    let mut metrics =
        vec![Metric::plain("GPM counts traffic", if counts { 1.0 } else { 0.0 }, "of 1")];
    if let Some(traffic) = traffic {
        let percent = |rate: Option<f64>| rate.map_or(f64::NAN, |rate| rate * 100.0);
        metrics.push(Metric::plain(
            "GPM, LLC hits while computing",
            percent(traffic.llc_hit_rate),
            "%",
        ));
        metrics.push(Metric::plain(
            "GPM, DRAM while computing",
            traffic.dram_percent.unwrap_or(f64::NAN),
            "%",
        ));
    }
    let reading = during.unwrap_or_default();
    let known = [
        ("SM clock while computing", reading.sm_clock_mhz.map(f64::from), "MHz"),
        ("power while computing", reading.milliwatts.map(|power| f64::from(power) / 1e3), "W"),
    ];
    metrics.extend(
        known.into_iter().filter_map(|(name, value, unit)| Some(Metric::plain(name, value?, unit))),
    );
    Ok(metrics)
}
