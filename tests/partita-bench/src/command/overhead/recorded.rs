//! The launches of a program as a recording of the device has them.
//!
//! Other sessions of the recording are the neighbours': of them counts only how long they had work
//! on the device.

use crate::live::stage::image_of;
use partita_emu::record::{Entry, Recording, RecordingError, Seen, Step};
use partita_engine::{KernelForm, Purpose};
use partita_gpu::prepare::{Target, prepare};
use partita_model::{ModuleId, Nanos, OperationId, Sharing, StreamId, WindowId};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A span of device time in cycles.
pub type Interval = (f64, f64);

/// A grid as a recording has it.
#[derive(Clone, PartialEq, Debug)]
pub struct Launched {
    /// The kernel's entry.
    pub kernel: String,
    /// CTAs of the grid.
    pub ctas: u64,
    /// The parameter space.
    pub params: Vec<u8>,
    /// From the start to the end; nothing where the recording ends before.
    pub interval: Interval,
}

/// The launches of a recorded run, in the order of the program.
#[derive(Default)]
pub struct Launches {
    /// The grids.
    pub all: Vec<Launched>,
    /// The form that each kernel takes with partitions.
    pub forms: BTreeMap<String, &'static str>,
    /// From the first launch to the end of the last operation in a stream that has launches.
    pub span: Nanos,
    /// The part of the span in which a neighbour had a grid on the device, from 0 to 1.
    pub neighbour_busy: f64,
}

/// Who is whose in a recording.
#[derive(Default)]
struct Owners {
    windows: Vec<WindowId>,
    modules: BTreeMap<ModuleId, WindowId>,
    streams: BTreeSet<StreamId>,
    operations: BTreeMap<OperationId, StreamId>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    Partita,
    Neighbour,
    Program,
}

impl Owners {
    /// The owner of a module: the engine's window comes first, then those of the neighbours.
    fn owner(&self, module: ModuleId, neighbours: usize) -> Owner {
        let window = self.modules.get(&module);
        match self.windows.iter().position(|known| Some(known) == window) {
            Some(place) if place > neighbours => Owner::Program,
            Some(place) if place > 0 => Owner::Neighbour,
            _ => Owner::Partita,
        }
    }
}

/// Grids in flight.
#[derive(Default)]
struct Open {
    program: BTreeMap<OperationId, usize>,
    neighbours: BTreeSet<OperationId>,
    /// When the neighbours' grids ran.
    intervals: Vec<Interval>,
}

impl Launches {
    /// Reads the launches of the sessions behind the first `neighbours`. A recording without an end
    /// is taken as far as it goes: its daemon is killed once the program has ended.
    ///
    /// # Errors
    /// Where the file cannot be read, or is no recording.
    pub fn read(path: &Path, neighbours: usize) -> Result<Launches, RecordingError> {
        let mut recording = Recording::open(path)?;
        let cycle_ns = recording.spec.cycle_ps() as f64 / 1e3;
        let mut launches = Launches::default();
        let (mut open, mut owners) = (Open::default(), Owners::default());
        let (mut now, mut first) = (Nanos(0), None);
        loop {
            let step = match recording.step() {
                Ok(None) | Err(RecordingError::Truncated { .. }) => break,
                step => step?,
            };
            if let Some(Step::Entry { queued: Some((stream, operation)), .. }) = &step {
                owners.operations.insert(*operation, *stream);
            }
            match step {
                Some(Step::Entry { entry: Entry::Reserve { window, .. }, .. }) => {
                    owners.windows.push(window);
                }
                Some(Step::Entry { entry: Entry::Load { ptx, module, window }, .. }) => {
                    owners.modules.insert(module, window);
                    launches.learn_forms(&ptx);
                }
                Some(Step::Entry {
                    entry: Entry::Launch { module, kernel, grid, params, .. },
                    queued: Some((stream, operation)),
                }) => match owners.owner(module, neighbours) {
                    Owner::Partita => {}
                    Owner::Neighbour => {
                        open.neighbours.insert(operation);
                    }
                    Owner::Program => {
                        owners.streams.insert(stream);
                        first = first.or(Some(now));
                        open.program.insert(operation, launches.all.len());
                        let ctas = u64::try_from(grid.count()).unwrap_or(u64::MAX);
                        let interval = (0.0, 0.0);
                        launches.all.push(Launched { kernel, ctas, params, interval });
                    }
                },
                Some(Step::Advance { seen, now_ps, .. }) => {
                    now = Nanos(now_ps / 1000);
                    for seen in seen {
                        let Seen::Done { operation, counters, time, .. } = seen else { continue };
                        let stream = owners.operations.remove(&operation);
                        if stream.is_some_and(|stream| owners.streams.contains(&stream)) {
                            launches.span = time.saturating_sub(first.unwrap_or(time));
                        }
                        let end = time.0 as f64 / cycle_ns;
                        let cycles = counters.map_or(0.0, |counters| counters.cycles as f64);
                        if let Some(index) = open.program.remove(&operation) {
                            launches.all[index].interval = (end - cycles, end);
                        } else if open.neighbours.remove(&operation) {
                            open.intervals.push((end - cycles, end));
                        }
                    }
                }
                _ => {}
            }
        }
        let begin = first.unwrap_or_default().0 as f64 / cycle_ns;
        let whole = (begin, begin + launches.span.0 as f64 / cycle_ns);
        // A grid of the neighbour that outlives the program has no end in the recording: it has run
        // since the one before it ended.
        let before = open.intervals.iter().map(|interval| interval.1).fold(whole.0, f64::max);
        open.intervals.extend(open.neighbours.iter().map(|_| (before, whole.1)));
        launches.neighbour_busy = covered(whole, open.intervals);
        Ok(launches)
    }

    fn learn_forms(&mut self, ptx: &str) {
        let target = Target::from(Sharing::Spatial);
        let Ok(prepared) = prepare(&image_of(ptx), target, &Purpose::Run) else { return };
        for kernel in prepared.module.kernels {
            let form = match kernel.form {
                KernelForm::Worker { .. } => "worker",
                KernelForm::Ticket { .. } => "ticket",
                KernelForm::Original { .. } | KernelForm::MachineCode => "original",
            };
            self.forms.insert(kernel.name.to_string(), form);
        }
    }
}

/// The part of `whole` in which at least one interval lies, from 0 to 1.
fn covered(whole: Interval, mut intervals: Vec<Interval>) -> f64 {
    intervals.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut sum, mut at) = (0.0, whole.0);
    for (start, end) in intervals {
        let (start, end) = (start.max(at), end.min(whole.1));
        if end > start {
            sum += end - start;
            at = end;
        }
    }
    sum / (whole.1 - whole.0).max(1.0)
}

/// The cycles of each interval, where a cycle with several of them in flight counts in equal parts
/// for each: the sum is the time in which anything was in flight, and nothing counts twice that
/// waits behind another.
pub fn share_out(intervals: &[Interval]) -> Vec<f64> {
    let starts = intervals.iter().enumerate().map(|(index, interval)| (interval.0, 1, index));
    let ends = intervals.iter().enumerate().map(|(index, interval)| (interval.1, -1, index));
    let mut borders: Vec<(f64, i32, usize)> = starts.chain(ends).collect();
    borders.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
    let mut shares = vec![0.0; intervals.len()];
    // The share of an interval that is in flight from the beginning of time.
    let (mut share, mut in_flight, mut last) = (0.0, 0, 0.0);
    for (time, change, index) in borders {
        if in_flight > 0 {
            share += (time - last) / f64::from(in_flight);
        }
        shares[index] -= f64::from(change) * share;
        in_flight += change;
        last = time;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(intervals: &[Interval], expected: &[f64]) {
        let shares = share_out(intervals);
        assert_eq!(shares.len(), expected.len());
        for (share, expected) in shares.iter().zip(expected) {
            assert!((share - expected).abs() < 1e-9, "{shares:?}");
        }
    }

    #[test]
    fn time_in_flight_is_shared_out_and_nothing_counts_twice() {
        check(&[], &[]);
        check(&[(0.0, 10.0), (12.0, 15.0)], &[10.0, 3.0]);
        // The second waits behind the first for most of its time.
        check(&[(0.0, 10.0), (2.0, 12.0)], &[6.0, 6.0]);
        check(&[(0.0, 9.0), (0.0, 9.0), (0.0, 9.0)], &[3.0, 3.0, 3.0]);
        check(&[(5.0, 5.0), (0.0, 10.0)], &[0.0, 10.0]);
    }

    #[test]
    fn a_neighbours_time_counts_once_and_within_the_program() {
        let busy = |intervals: &[Interval]| covered((100.0, 200.0), intervals.to_vec());
        assert!(busy(&[]).abs() < 1e-9);
        assert!((busy(&[(0.0, 130.0), (120.0, 140.0), (190.0, 300.0)]) - 0.5).abs() < 1e-9);
        assert!((busy(&[(0.0, 300.0), (120.0, 140.0)]) - 1.0).abs() < 1e-9);
    }
}
