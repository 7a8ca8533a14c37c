//! What the timing model is held against: how kernels of known kinds behave on the first `n` SMs of
//! a modelled GPU.
//!
//! The kernels are ours (`curves.ptx`); the references' programs are not at hand, only their kind
//! and size. A launch is confined to SMs as a partition in hardware would
//! ([`partita_emu::EmulatedGpu::confine`]). Relative curves are compared, absolute cycles are not.

use partita_emu::Options;
use partita_emu::Spec;
use partita_emu::direct::{self, Argument, DirectError, Form, Prepared, Run};
use partita_model::{Dim3, SmSet};

pub const PTX: &str = include_str!("curves.ptx");
/// Bytes that a CTA of `copy` copies: 256 threads, two pieces of 16 bytes each.
const COPY_CTA_BYTES: u32 = 256 * 2 * 16;

/// Cycles on so many SMs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Point {
    /// SMs.
    pub sms: u16,
    /// Cycles of the SM clock from the first CTA's start to the end.
    pub cycles: u64,
}

fn word(value: u32) -> Argument {
    Argument::Value(value.to_le_bytes().to_vec())
}

fn zeros(bytes: u32) -> Argument {
    Argument::Buffer(vec![0; bytes as usize])
}

fn job(spec: &Spec, kernel: &str, ctas: u32, threads: u32, arguments: Vec<Argument>) -> Run {
    Run {
        ptx: PTX.into(),
        kernel: kernel.to_owned(),
        grid: Dim3::linear(ctas),
        block: Dim3::linear(threads),
        dynamic_shared: 0,
        arguments,
        form: Form::Original,
        spec: spec.clone(),
        options: Options::default(),
    }
}

/// Runs a kernel on each count of SMs, with cold caches.
fn cold(run: &Run, counts: &[u16]) -> Result<Vec<Point>, DirectError> {
    let point = |&sms: &u16| {
        let counters = direct::prepare(run)?.again(SmSet::range(0, sms))?;
        Ok(Point { sms, cycles: counters.cycles })
    };
    counts.iter().map(point).collect()
}

/// Addition of two vectors of 256 K floats, a thread an element: DRAM.
///
/// # Errors
/// Where it does not run.
pub fn vector_add(spec: &Spec, counts: &[u16]) -> Result<Vec<Point>, DirectError> {
    let n = 256 << 10;
    let arguments = vec![zeros(n * 4), zeros(n * 4), zeros(n * 4), word(n)];
    cold(&job(spec, "add", n / 256, 256, arguments), counts)
}

/// A chain of dependent fma in `ctas` CTAs of 192 threads, `rounds` rounds of eight: issue.
///
/// # Errors
/// Where it does not run.
pub fn compute(
    spec: &Spec,
    ctas: u32,
    rounds: u32,
    counts: &[u16],
) -> Result<Vec<Point>, DirectError> {
    let arguments = vec![zeros(ctas * 192 * 4), word(rounds)];
    cold(&job(spec, "chain", ctas, 192, arguments), counts)
}

/// Dependent reads of a set of 64 KB past L1: LLC.
///
/// # Errors
/// Where it does not run.
pub fn reread(spec: &Spec, counts: &[u16]) -> Result<Vec<Point>, DirectError> {
    let ctas = 480;
    let arguments = vec![zeros(64 << 10), zeros(ctas * 128 * 4), word(32)];
    cold(&job(spec, "reread", ctas, 128, arguments), counts)
}

/// Bandwidth in GB/s, bytes read and bytes written, of copies of about `bytes`, one after the other
/// on each count of SMs; the LLC is full of what an earlier copy wrote.
///
/// # Errors
/// Where it does not run.
pub fn copy(spec: &Spec, bytes: u32, counts: &[u16]) -> Result<Vec<(u16, f64)>, DirectError> {
    let ctas = (bytes / COPY_CTA_BYTES).max(1);
    let bytes = ctas * COPY_CTA_BYTES;
    let run = job(spec, "copy", ctas, 256, vec![zeros(bytes), zeros(bytes)]);
    let mut prepared = direct::prepare(&run)?;
    prepared.again(SmSet::range(0, spec.sms))?;
    let point = |&sms: &u16| {
        let counters = prepared.again(SmSet::range(0, sms))?;
        let picoseconds = counters.cycles * spec.cycle_ps();
        Ok((sms, f64::from(bytes) * 2.0 * 1000.0 / picoseconds.max(1) as f64))
    };
    counts.iter().map(point).collect()
}

/// Microseconds from the end of an empty launch to that of the next in the same stream.
///
/// # Errors
/// Where it does not run.
pub fn launch_gap(spec: &Spec) -> Result<f64, DirectError> {
    let run = job(spec, "empty", 1, 32, Vec::new());
    let mut prepared: Prepared<'_> = direct::prepare(&run)?;
    let launches = 16;
    let times = prepared.burst(launches)?;
    let (Some(first), Some(last)) = (times.first(), times.last()) else { return Ok(0.0) };
    Ok((last.0 - first.0) as f64 / 1000.0 / (launches - 1) as f64)
}
