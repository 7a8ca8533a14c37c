//! Measures a device with the kernels of `kernels-ptx/device/calibrate.ptx`.
//!
//! | number | kernel | how |
//! | --- | --- | --- |
//! | peak instruction rate of an SM | `partita_arithmetic` | one CTA, more and fewer rounds |
//! | crossbar bandwidth of an SM | `partita_read_llc` | the same, 64 KB that the LLC holds |
//! | LLC bandwidth | `partita_read_llc` | a CTA on each SM, more and fewer rounds |
//! | DRAM bandwidth | `partita_stream` | all SMs, two regions that the LLC does not hold |
//! | time between launches | `partita_arithmetic` | short ones in a row |
//! | SMs | `partita_probe` | the numbers that CTAs find themselves on |
//!
//! Rates come from the difference of two launches of different length, so that the fixed cost of a
//! launch does not count. The difference takes about 100 µs of device time.
//!
//! [`measure`] needs only the contract of a device. The emulated GPU is measured on another one of
//! the same specification ([`obtain`]). The served device's time and caches are therefore the same
//! whether it was measured now or in an earlier start. The measurement comes before a policy needs
//! the numbers, so that no decision depends on the host's speed.

use crate::device::{self, sleep};
use crate::store::Store;
use partita_device::{
    Activity, AddressRange, Device, DeviceError, Event, GridSpec, Horizon, Outcome, Work,
};
use partita_model::{
    DeviceAddress, DeviceFacts, DeviceKind, Dim3, Measurements, ModuleId, Nanos, OperationId,
    StreamId, Timekeeping, WindowId,
};
use partita_policy::calibrated;
use std::collections::BTreeSet;

const PTX: &str = include_str!("../../../kernels-ptx/device/calibrate.ptx");
const WINDOW: WindowId = WindowId(1);
const MODULE: ModuleId = ModuleId(1);
const STREAM: StreamId = StreamId(1);
/// The file that keeps measurements.
const FILE: &str = "calibration";
/// Threads of the CTAs that fill an SM.
const WIDE: u32 = 1024;
/// Warp instructions of a round of `partita_arithmetic`: 64 additions, and three of the loop.
const ROUND: u64 = 67;
/// Bytes of one read by a thread.
const PIECE: u64 = 16;
/// Bytes of the two streams whose difference is measured, where the LLC holds nothing of them.
const STREAMS: [u64; 2] = [4 << 20, 12 << 20];
/// Bytes before the streams: sink and places, then the data that stays in the LLC.
const BEFORE_STREAMS: u64 = 8 << 20;
/// The largest LLC, in bytes, that the streams go round.
const LARGEST_LLC: u64 = 512 << 20;
/// The number of consecutive launches.
const LAUNCHES: u64 = 9;
/// The duration of the probe's CTAs, in nanoseconds.
const NAP: u32 = 5_000;

/// Why a device was not measured.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// The device refused a call.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A calibration kernel does not run on the device.
    #[error("the calibration kernels do not run: {0}")]
    Kernel(String),
}

/// A device that is being measured.
struct Bench<'d> {
    device: &'d mut dyn Device,
    window: AddressRange,
    operations: u64,
}

/// Measures a device that does nothing else meanwhile.
///
/// # Errors
/// [`MeasureError`].
pub fn measure(device: &mut dyn Device) -> Result<Measurements, MeasureError> {
    let facts = device.facts().clone();
    let lengths = streams(&facts);
    let bytes = BEFORE_STREAMS + lengths.iter().sum::<u64>();
    let base = device.reserve(WINDOW, bytes)?;
    device.allocate(WINDOW, AddressRange { start: base, bytes })?;
    device.create_stream(STREAM)?;
    device.load_module(MODULE, WINDOW, PTX.into())?;
    let mut bench = Bench { device, window: AddressRange { start: base, bytes }, operations: 0 };
    bench.settle()?;

    let sms = u32::from(facts.sm_count);
    let sink = base.0;
    let set = base.0 + (1 << 20);
    let set_bytes = (facts.llc.0 / 2).clamp(64 << 10, 1 << 20);
    let set_bytes = 1_u64 << set_bytes.ilog2();
    let cycles = |nanos: u64| as_float(nanos) * f64::from(facts.sm_clock_khz) / 1e6;

    let arithmetic = |bench: &mut Bench<'_>, rounds: u32| {
        bench.time("partita_arithmetic", 1, WIDE, &[word(sink), half(rounds)])
    };
    let (rounds, more) = (8, 40);
    let spent = difference(arithmetic(&mut bench, rounds)?, arithmetic(&mut bench, more)?);
    let instructions = u64::from(more - rounds) * ROUND * u64::from(WIDE / 32);
    let warp_instructions_per_cycle = as_float(instructions) / cycles(spent);

    let read = |bench: &mut Bench<'_>, ctas: u32, bytes: u64, rounds: u32| {
        let mask = u32::try_from(bytes - 1).unwrap_or(u32::MAX);
        let params = [word(set), word(sink), half(mask), half(rounds)];
        bench.time("partita_read_llc", ctas, WIDE, &params)
    };
    let rate = |bench: &mut Bench<'_>, ctas: u32, bytes: u64, (rounds, more): (u32, u32)| {
        let spent = difference(read(bench, ctas, bytes, rounds)?, read(bench, ctas, bytes, more)?);
        let read = u64::from(more - rounds) * PIECE * u64::from(ctas * WIDE);
        Ok::<f64, MeasureError>(as_float(read) / as_float(spent) * 1e9)
    };
    let sm_bytes_per_second = rate(&mut bench, 1, 64 << 10, (16, 48))?;
    let llc_bytes_per_second = rate(&mut bench, sms, set_bytes, (8, 24))?;

    let ctas = sms * (facts.threads_per_sm / 256).max(1);
    let mut times = [0; 2];
    let mut at = base.0 + BEFORE_STREAMS;
    for (time, bytes) in times.iter_mut().zip(lengths) {
        *time = bench.time(
            "partita_stream",
            ctas,
            256,
            &[word(at), word(sink), word(bytes / PIECE)],
        )?;
        at += bytes;
    }
    let dram_bytes_per_second =
        as_float(lengths[1] - lengths[0]) / as_float(difference(times[0], times[1])) * 1e9;

    let launch_nanos = bench.launches(&[word(sink), half(1)])?;
    let sms_seen = bench.probe(sms * 2)?;
    bench.device.destroy_stream(STREAM)?;
    bench.device.unload_module(MODULE)?;
    bench.device.release(WINDOW)?;
    Ok(Measurements {
        warp_instructions_per_cycle,
        sm_bytes_per_second,
        llc_bytes_per_second,
        dram_bytes_per_second,
        launch_nanos,
        sms_seen,
    })
}

/// Bytes of the two streams whose difference is measured. A real GPU zeroes memory when it is
/// given, which leaves the end of it in the LLC. The first stream takes the LLC's place of that,
/// and the second is four times as long.
fn streams(facts: &DeviceFacts) -> [u64; 2] {
    match facts.timekeeping {
        Timekeeping::Simulated | Timekeeping::Off => STREAMS,
        Timekeeping::Real => {
            let llc = facts.llc.0.clamp(STREAMS[0], LARGEST_LLC).next_multiple_of(PIECE);
            [llc, 4 * llc]
        }
    }
}

impl Bench<'_> {
    /// Polls the device until it is idle. Returns the end times of operations, in order.
    fn settle(&mut self) -> Result<Vec<Nanos>, MeasureError> {
        let mut events = Vec::new();
        let horizon = Horizon { until: None, warp_instructions: u64::MAX };
        loop {
            match self.device.poll(horizon, &mut events) {
                Activity::Idle => break,
                Activity::Busy => {}
                Activity::Waiting | Activity::Watching => sleep(self.device),
            }
        }
        let mut ends = Vec::new();
        for event in events {
            match event {
                Event::Done { time, outcome: Outcome::Complete, .. } => ends.push(time),
                Event::Done { outcome, .. } => {
                    return Err(MeasureError::Kernel(format!("{outcome:?}")));
                }
                Event::ModuleRefused { reason, .. } => return Err(MeasureError::Kernel(reason)),
                Event::Lost { reason } => return Err(MeasureError::Kernel(reason)),
                Event::ModuleLoaded { .. }
                | Event::Confined { .. }
                | Event::Reopened
                | Event::Residency(_)
                | Event::Notice { .. }
                | Event::Output { .. } => {}
            }
        }
        Ok(ends)
    }

    fn enqueue(
        &mut self,
        kernel: &str,
        ctas: u32,
        threads: u32,
        params: &[Vec<u8>],
    ) -> Result<(), DeviceError> {
        let access = vec![self.window];
        let launch = GridSpec {
            cooperative: false,
            cluster: Dim3::linear(1),
            module: MODULE,
            kernel: kernel.into(),
            grid: Dim3::linear(ctas),
            block: Dim3::linear(threads),
            dynamic_shared: 0,
            params: params.concat(),
            access,
        };
        self.operations += 1;
        self.device.enqueue(STREAM, OperationId(self.operations), Work::Launch(launch))
    }

    /// Nanoseconds from a launch on an idle device to its end.
    fn time(
        &mut self,
        kernel: &str,
        ctas: u32,
        threads: u32,
        params: &[Vec<u8>],
    ) -> Result<u64, MeasureError> {
        let start = self.device.now();
        self.enqueue(kernel, ctas, threads, params)?;
        let ends = self.settle()?;
        Ok(ends.last().map_or(0, |end| end.saturating_sub(start).0))
    }

    /// Nanoseconds from the end of a short launch to the end of the next one.
    fn launches(&mut self, params: &[Vec<u8>]) -> Result<f64, MeasureError> {
        for _ in 0..LAUNCHES {
            self.enqueue("partita_arithmetic", 1, 32, params)?;
        }
        let ends = self.settle()?;
        let span =
            ends.first().zip(ends.last()).map_or(0, |(first, last)| last.saturating_sub(*first).0);
        Ok(as_float(span) / as_float(LAUNCHES - 1))
    }

    /// The number of different SMs on which this many CTAs run.
    fn probe(&mut self, ctas: u32) -> Result<u16, MeasureError> {
        let places = DeviceAddress(self.window.start.0 + 4096);
        let bytes = vec![0xff; ctas as usize * 16];
        self.device.poke(places, &bytes)?;
        self.time("partita_probe", ctas, 32, &[word(places.0), half(NAP)])?;
        let mut found = bytes;
        self.device.peek(places, &mut found)?;
        let seen: BTreeSet<&[u8]> = found.chunks_exact(16).map(|place| &place[..4]).collect();
        Ok(u16::try_from(seen.len()).unwrap_or(u16::MAX))
    }
}

fn word(value: u64) -> Vec<u8> {
    value.to_le_bytes().to_vec()
}

fn half(value: u32) -> Vec<u8> {
    value.to_le_bytes().to_vec()
}

/// The difference, at least 1, because it is a divisor.
fn difference(shorter: u64, longer: u64) -> u64 {
    longer.saturating_sub(shorter).max(1)
}

#[expect(clippy::cast_precision_loss, reason = "times and sizes here are far below 2^53")]
fn as_float(value: u64) -> f64 {
    value as f64
}

/// The measurements of an earlier start, or new ones: on the served device itself where it is a
/// GPU, else on another one like the one that `text` names. `None` where that device keeps no time
/// or cannot be measured; the log has the reason.
#[must_use]
pub fn obtain(text: &str, served: &mut dyn Device, store: Option<&Store>) -> Option<Measurements> {
    if served.facts().timekeeping == Timekeeping::Off {
        return None;
    }
    let specified = served.calibration();
    let sane = |measured: &Measurements| calibrated(&specified, measured).is_some();
    if let Some(kept) = store.and_then(|store| store.read::<Measurements>(FILE)).filter(sane) {
        return Some(kept);
    }
    let measured = match served.facts().kind {
        DeviceKind::Cuda => measure(served).map_err(|error| error.to_string()),
        DeviceKind::Emulated => device::open_again(text)
            .map_err(|error| error.to_string())
            .and_then(|mut device| measure(device.as_mut()).map_err(|error| error.to_string())),
    };
    match measured {
        Ok(measured) if sane(&measured) => {
            if let Some(store) = store {
                store.write(FILE, &measured);
            }
            Some(measured)
        }
        Ok(measured) => {
            tracing::warn!(
                ?measured,
                "the device measures as none can be: its specification holds"
            );
            None
        }
        Err(error) => {
            tracing::warn!(error, "the device was not measured: its specification holds");
            None
        }
    }
}
