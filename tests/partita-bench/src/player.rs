//! The program of an application in a run: which launch it enqueues next, and when.
//!
//! A player decides nothing that a program would not: it keeps the order of its launches, and
//! enqueues some ahead of the device.

use crate::application::Application;
use crate::outputs::Outputs;
use crate::track::Track;
use partita_engine::{LoadedModule, occupancy};
use partita_model::request::{Launch, ModuleHandle, StreamHandle};
use partita_model::{ApplicationId, DeviceFacts, Nanos, SessionId, TargetReport};
use std::sync::Arc;

/// The launches that a program enqueues at once.
pub(crate) const BATCH: usize = 8;
/// A program that enqueues few launches ahead has batches of this length, within a factor of 4.
const LENGTH: Nanos = Nanos(400_000);
/// A program enqueues a batch as long as fewer are left than this.
const BATCHES_AHEAD: usize = 2;
/// The same with several streams, where a batch ends with the slowest.
const BATCHES_AHEAD_IN_STREAMS: usize = 4;

/// One application and what it is doing.
pub(crate) struct Player<'a> {
    pub(crate) application: &'a Application,
    pub(crate) session: SessionId,
    pub(crate) id: ApplicationId,
    pub(crate) places: Vec<u64>,
    pub(crate) modules: Vec<Arc<LoadedModule>>,
    pub(crate) streams: Vec<StreamHandle>,
    pub(crate) next: usize,
    /// Launches that it has enqueued.
    pub(crate) enqueued: usize,
    /// When launches arrive, in nanoseconds from the start.
    pub(crate) arrivals: Vec<u64>,
    /// Sequence numbers of what ends the batches that are under way, and when these were enqueued.
    pub(crate) awaited: Vec<(u64, Nanos)>,
    /// When its passes were answered, where it waits for answers.
    pub(crate) answered: Vec<Nanos>,
    /// Launches of a batch.
    pub(crate) batch: usize,
    /// Whether the size of a batch follows the time that batches take.
    pub(crate) adapts: bool,
    /// What became of its latency target, when it was last looked at.
    pub(crate) target: Option<TargetReport>,
    /// What it left, once that is known.
    pub(crate) outputs: Option<Outputs>,
    /// Launches that it has left, where it has an end.
    pub(crate) left: Option<u64>,
    /// Its session is closed.
    pub(crate) has_left: bool,
    pub(crate) track: Track,
    /// SM-nanoseconds of its partition so far.
    pub(crate) sm_nanos: u64,
}

impl Player<'_> {
    /// Whether each of its launches has been completed so often.
    pub(crate) fn has_passed(&self, times: u64) -> bool {
        let sizes = self.application.pass.iter().map(|step| step.grid.count());
        let ctas: u64 = sizes.map(|size| u64::try_from(size).unwrap_or(u64::MAX)).sum();
        self.track.ctas() >= ctas.saturating_mul(times)
    }

    /// Whether everything that it had to do is done.
    pub(crate) fn has_ended(&self) -> bool {
        self.left == Some(0) && self.awaited.is_empty()
    }

    /// Lets it enqueue no more launches ahead than take about twice [`LENGTH`].
    pub(crate) fn enqueue_few(&mut self) {
        (self.batch, self.adapts) = (1, true);
    }

    /// Forgets the batches that have ended, as `has_ended` tells by their sequence numbers.
    pub(crate) fn await_batches(&mut self, now: Nanos, has_ended: impl FnMut(u64) -> bool) {
        let mut has_ended = has_ended;
        let Player { application, awaited, answered, batch, adapts, .. } = self;
        awaited.retain(|&(sequence, enqueued)| {
            let is_over = has_ended(sequence);
            if is_over && application.answer.is_some() {
                answered.push(now);
            }
            if is_over && *adapts {
                let took = now.saturating_sub(enqueued);
                *batch = match took {
                    _ if took > Nanos(2 * LENGTH.0) => (*batch / 2).max(1),
                    _ if took < Nanos(LENGTH.0 / 2) => (*batch * 2).min(BATCH),
                    _ => *batch,
                };
            }
            !is_over
        });
    }

    /// Whether a batch of it is a whole pass, after which it waits.
    pub(crate) fn waits_for_passes(&self) -> bool {
        !self.application.restored.is_empty() || self.application.answer.is_some()
    }

    /// Launches of its next batch, and the batches that it has under way at a time.
    pub(crate) fn ahead(&self) -> (usize, usize) {
        match () {
            () if self.waits_for_passes() => (self.application.pass.len(), 1),
            () if self.streams.len() > 1 => (self.batch, BATCHES_AHEAD_IN_STREAMS),
            () => (self.batch, BATCHES_AHEAD),
        }
    }

    /// CTAs of its first kernel that fit on an SM.
    pub(crate) fn ctas_per_sm(&self, facts: &DeviceFacts) -> u16 {
        let Some(step) = self.application.pass.first() else { return 0 };
        let kernels = self.modules.get(step.module).map_or(&[][..], |module| &module.kernels);
        let kernel = kernels.iter().find(|kernel| *kernel.name == *step.kernel);
        let Some(Ok(kernel)) = kernel.map(|kernel| &kernel.facts) else { return 0 };
        let threads = u32::try_from(step.block.count()).unwrap_or(u32::MAX);
        occupancy(facts, kernel, threads, step.dynamic_shared)
    }

    /// Launches that it may enqueue now, of so many that it would.
    pub(crate) fn arrived(&self, wanted: usize, now: u64) -> usize {
        // Launches behind one that has not arrived wait for it.
        let later = self.arrivals.iter().skip(self.enqueued);
        let next = { later }.position(|&arrival| arrival > now);
        next.map_or(wanted, |next| next.min(wanted))
    }

    /// The launch that comes next; it counts as enqueued.
    ///
    /// # Errors
    /// Where there is no such kernel.
    pub(crate) fn next_launch(&mut self) -> Result<Launch, String> {
        let step = &self.application.pass[self.next];
        self.next = (self.next + 1) % self.application.pass.len();
        let stream = self.streams[self.enqueued % self.streams.len()];
        self.enqueued += 1;
        self.left = self.left.map(|left| left.saturating_sub(1));
        let kernels = self.modules.get(step.module).map_or(&[][..], |module| &module.kernels);
        let kernel = kernels.iter().position(|kernel| *kernel.name == *step.kernel);
        let kernel = kernel.ok_or_else(|| format!("no kernel `{}`", step.kernel))?;
        Ok(Launch {
            stream,
            module: ModuleHandle(step.module as u64 + 1),
            kernel: u32::try_from(kernel).map_err(|error| error.to_string())?,
            grid: step.grid,
            block: step.block,
            dynamic_shared: step.dynamic_shared,
            cooperative: false,
            cluster: partita_model::Dim3::linear(1),
            params: step.placed(&self.places),
        })
    }
}
