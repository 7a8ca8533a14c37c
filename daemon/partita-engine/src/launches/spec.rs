//! What a program wants launched, and in which form it runs.

use super::params::Params;
use super::slice::Part;
use super::worker::Worker;
use super::{original, ticket};
use crate::KernelForm;
use crate::handover::ledger::{Lane, Usage};
use crate::kernel::Kernel;
use crate::launches::watchdog::Watch;
use crate::observer::{CountGroup, Expected, ProfileKey};
use partita_device::Work;
use partita_model::control::{Gates, Telemetry};
use partita_model::{
    ApplicationId, DeviceAddress, Dim3, LaunchId, ModuleId, Nanos, OperationId, SessionId, SmSet,
    StreamId,
};
use std::sync::Arc;

/// A launch, or a part of one, that has not started.
#[derive(Clone)]
pub(crate) struct Pending {
    pub(crate) spec: Spec,
    pub(crate) form: Form,
}

/// What is launched, whatever the form.
#[derive(Clone)]
pub(crate) struct Spec {
    pub(crate) id: LaunchId,
    /// Device time of the program's call.
    pub(crate) asked: Nanos,
    pub(crate) module: ModuleId,
    pub(crate) kernel: Arc<Kernel>,
    pub(crate) lines: Option<Arc<[u32]>>,
    pub(crate) grid: Dim3,
    /// The CTAs of the grid that the launch runs: from this one to the one before `end`.
    pub(crate) first: u64,
    pub(crate) end: u64,
    pub(crate) block: Dim3,
    pub(crate) dynamic_shared: u32,
    pub(crate) params: Params,
    /// All CTAs must be resident at once.
    pub(crate) cooperative: bool,
    /// CTAs of a cluster along each axis.
    pub(crate) cluster: Dim3,
    /// Whether the launch may wait for what its program writes into host memory without a call.
    pub(crate) awaits_host: bool,
    /// Where the kernel's profile is found.
    pub(crate) profile: Option<ProfileKey>,
    /// What one CTA takes up on an SM.
    pub(crate) cta: Usage,
}

impl Spec {
    /// CTAs that are complete when the launch is.
    pub(crate) fn total(&self) -> u64 {
        self.end
    }

    /// Whether CTAs of the launch need others of their cluster.
    pub(crate) fn has_clusters(&self) -> bool {
        let fixed = self.kernel.required_cluster();
        self.cluster.count() > 1 || fixed.is_some_and(|cluster| cluster.count() > 1)
    }

    /// CTAs that the launch runs.
    pub(crate) fn ctas(&self) -> u64 {
        self.end - self.first
    }

    /// CTAs of the program's launch.
    pub(crate) fn grid_ctas(&self) -> u64 {
        u64::try_from(self.grid.count()).expect("grid limits were checked")
    }

    /// Whether the program's launch is complete when this part is.
    pub(crate) fn is_last(&self) -> bool {
        self.end == self.grid_ctas()
    }
}

/// The form in which a launch is to run.
#[derive(Clone)]
pub(crate) enum Form {
    /// Workers that claim tasks. Some parts of a launch count what they do.
    Worker(Option<Count>),
    /// Waves of tickets.
    Ticket,
    /// The kernel as it is, on whole groups of SMs.
    MachineCode,
    /// Consecutive ranges of the CTAs that are left, each alone on the device.
    Slice(Sliced),
    /// The kernel as it was written, on whole groups of SMs.
    Grouped(AsWritten),
    /// The kernel as it is, alone on the device.
    Original(AsWritten),
}

/// A kernel in slices.
#[derive(Clone)]
pub(crate) struct Sliced {
    pub(crate) entry: Arc<str>,
    /// Whether the entry takes the address of a control block, for the abort flag.
    pub(crate) abort: bool,
    /// The original, in which a short launch runs whole.
    pub(crate) whole: AsWritten,
    /// The ticket of the next slice, where that is not its launch's own.
    pub(crate) ticket: Option<OperationId>,
}

/// A kernel in its original form.
#[derive(Clone)]
pub(crate) struct AsWritten {
    pub(crate) entry: Arc<str>,
    /// Why the kernel has no better form in this launch; `None` where that is the reason of the
    /// kernel's own form.
    pub(crate) reason: Option<String>,
    pub(crate) barrier: Barrier,
    /// Whether the entry takes the address of a control block, for the abort flag.
    pub(crate) abort: bool,
    /// The SMs that the launch keeps to: all that the device has, where its application holds them,
    /// or those to which the device keeps it. `None`: the launch runs alone on the device.
    pub(crate) keeps_to: Option<SmSet>,
}

/// The hidden parameter for the barrier of a cooperative launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Barrier {
    /// The entry takes none.
    None,
    /// The entry takes one, and this launch has no barrier.
    Unused,
    /// The launch is cooperative.
    Used,
}

/// A part of a launch of which some parts count ([`crate::observer`]).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Count {
    pub(crate) group: CountGroup,
    /// Whether this part counts, or is to count when it starts.
    pub(crate) counting: bool,
    /// Whether this part is the last that counts.
    pub(crate) last: bool,
}

/// The kind of a form, for reports.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum FormKind {
    Worker,
    Ticket,
    MachineCode,
    Slice,
    Grouped,
    Original,
}

impl FormKind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            FormKind::Worker => "worker",
            FormKind::Ticket => "ticket",
            FormKind::MachineCode => "machine code, green context",
            FormKind::Slice => "slice",
            FormKind::Grouped => "original, green context",
            FormKind::Original => "original",
        }
    }
}

impl Pending {
    pub(crate) fn kind(&self) -> FormKind {
        match &self.form {
            Form::Worker(_) => FormKind::Worker,
            Form::Ticket => FormKind::Ticket,
            Form::MachineCode => FormKind::MachineCode,
            Form::Slice(_) => FormKind::Slice,
            Form::Grouped(_) => FormKind::Grouped,
            Form::Original(_) => FormKind::Original,
        }
    }

    pub(crate) fn is_worker(&self) -> bool {
        matches!(self.form, Form::Worker(_))
    }

    /// Whether the launch keeps to its application's partition.
    pub(crate) fn is_confined(&self) -> bool {
        match &self.form {
            Form::Worker(_) | Form::Ticket | Form::MachineCode | Form::Grouped(_) => true,
            Form::Slice(_) => false,
            Form::Original(original) => original.keeps_to.is_some(),
        }
    }

    /// The operation by which the launch takes its turn; `id` is that of its place in its stream.
    pub(crate) fn ticket(&self, id: OperationId) -> OperationId {
        match &self.form {
            Form::Slice(sliced) => sliced.ticket.unwrap_or(id),
            Form::Worker(_)
            | Form::Ticket
            | Form::MachineCode
            | Form::Grouped(_)
            | Form::Original(_) => id,
        }
    }

    /// Whether nothing about the launch forbids that it runs as it was written, with all CTAs at
    /// once: it is neither counted nor cooperative, and waits for nothing that its program writes.
    pub(crate) fn is_free(&self) -> bool {
        let spec = &self.spec;
        matches!(self.form, Form::Worker(None) | Form::Ticket)
            && (spec.first == 0 && spec.is_last())
            && !(spec.cooperative || spec.awaits_host)
            && spec.kernel.form.fallback().is_some()
    }

    /// Has the launch run on these SMs as it was written, where the original stands beside it.
    pub(crate) fn set_as_written(&mut self, sms: SmSet) {
        self.set_original(None, Some(sms));
    }

    /// Has the launch run as its original beside the form, for this reason.
    pub(super) fn set_original(&mut self, reason: Option<String>, keeps_to: Option<SmSet>) {
        if let Some(fallback) = self.spec.kernel.form.fallback() {
            self.form = Form::Original(AsWritten {
                entry: fallback.entry.clone(),
                reason,
                barrier: Barrier::None,
                abort: fallback.abort,
                keeps_to,
            });
        }
    }

    /// Has an original that would run alone keep to its application's SMs. `places`: the CTAs that
    /// the device holds at once. With more CTAs the kernel cannot count on all of them being there
    /// at once, so it ends on fewer SMs, too.
    pub(crate) fn set_grouped(&mut self, places: u64) {
        if let Form::Original(as_written) = &self.form
            && as_written.keeps_to.is_none()
            && !self.spec.cooperative
            && !self.spec.has_clusters()
            && self.spec.ctas() > places
        {
            self.form = Form::Grouped(as_written.clone());
        }
    }

    /// Why the launch has no better form. Workers and machine code have none to give.
    pub(crate) fn reason(&self) -> Option<&String> {
        match (&self.form, &self.spec.kernel.form) {
            (
                Form::Original(AsWritten { reason: Some(reason), .. })
                | Form::Grouped(AsWritten { reason: Some(reason), .. })
                | Form::Slice(Sliced { whole: AsWritten { reason: Some(reason), .. }, .. }),
                _,
            )
            | (
                Form::Original(_) | Form::Grouped(_) | Form::Slice(_),
                KernelForm::Original { reason, .. },
            )
            | (Form::Ticket, KernelForm::Ticket { reason, .. }) => Some(reason),
            (
                Form::Worker(_)
                | Form::MachineCode
                | Form::Ticket
                | Form::Slice(_)
                | Form::Grouped(_)
                | Form::Original(_),
                _,
            ) => None,
        }
    }
}

/// Where a launch stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(crate) session: SessionId,
    pub(crate) application: ApplicationId,
    pub(crate) stream: StreamId,
    /// The operation of its main grid.
    pub(crate) main: OperationId,
    /// The priority of its stream, as CUDA has it: lower numbers go first.
    pub(crate) priority: i32,
}

impl Place {
    /// Its stream, as the ledger knows it.
    pub(crate) fn lane(self) -> Lane {
        Lane { application: self.application, stream: self.stream }
    }
}

/// What becomes of a launch at the head of its queue.
pub(crate) enum Start {
    /// This is submitted.
    Submit(Work),
    /// The launch has to wait.
    Wait(Box<Pending>),
    /// This part of it is submitted, and the rest of it waits.
    Part(Box<Part>),
    /// The launch starts when one is over that its session has on the device.
    Later(Box<Pending>),
    /// The launch cannot run on groups of SMs. It waits for its turn as an original.
    Demoted(Box<Pending>),
    /// The launch's session fails.
    Failed,
}

/// What is expected of a launch at its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Outlook {
    pub(crate) expected: Expected,
    /// The time for which a newcomer may wait, in addition to that of the longest CTA.
    pub(crate) limit: Nanos,
}

/// A launch whose main grid has been submitted.
pub(crate) struct Launch {
    pub(super) place: Place,
    pub(super) spec: Spec,
    pub(super) main_done: bool,
    /// Device time at which the launch became the first of its stream.
    pub(super) begun: Option<Nanos>,
    /// What was expected of it at its start.
    pub(super) outlook: Option<Outlook>,
    pub(super) watch: Watch,
    pub(super) run: Run,
}

/// What a launch has by its form.
pub(super) enum Run {
    Worker(Worker),
    Ticket(ticket::Ticket),
    /// The SMs that the device keeps the launch to.
    MachineCode(SmSet),
    Original(original::Original),
}

/// What workers and tickets have in common: CTAs are claimed from a control block.
pub(super) struct Claims {
    pub(super) block: DeviceAddress,
    /// What the launch may do on each SM.
    pub(super) gates: Gates,
    /// The SMs that were open to the launch when it was laid out.
    pub(super) own: SmSet,
    /// The device keeps the main grid to these.
    pub(super) is_kept: bool,
    pub(super) seen: Telemetry,
    /// When that held, at least: a look may tell what was asked for by the one before.
    pub(super) seen_at: Nanos,
    /// The last look.
    pub(super) looked_at: Nanos,
    /// Whether the gates have changed since then.
    pub(super) is_signalled: bool,
    /// Whether the device has been asked for what came of that, and has not told yet.
    pub(super) is_outdated: bool,
    /// CTAs that the application's account already has.
    pub(super) counted: u64,
    /// Helper grids, or waves, in flight.
    pub(super) helpers: super::helpers::Helpers,
    /// Until then workers that are seen may be leaving: they came to an SM before it was granted,
    /// or are retired.
    pub(super) unsure_until: Nanos,
}

impl Launch {
    /// Whether the launch runs as workers or tickets.
    pub(crate) fn is_claiming(&self) -> bool {
        self.claims().is_some()
    }

    pub(super) fn claims(&self) -> Option<&Claims> {
        match &self.run {
            Run::Worker(worker) => Some(&worker.claims),
            Run::Ticket(ticket) => Some(&ticket.claims),
            Run::MachineCode(_) | Run::Original(_) => None,
        }
    }

    pub(super) fn claims_mut(&mut self) -> Option<&mut Claims> {
        match &mut self.run {
            Run::Worker(worker) => Some(&mut worker.claims),
            Run::Ticket(ticket) => Some(&mut ticket.claims),
            Run::MachineCode(_) | Run::Original(_) => None,
        }
    }

    pub(super) fn worker(&self) -> Option<&Worker> {
        match &self.run {
            Run::Worker(worker) => Some(worker),
            Run::Ticket(_) | Run::MachineCode(_) | Run::Original(_) => None,
        }
    }

    pub(super) fn worker_mut(&mut self) -> Option<&mut Worker> {
        match &mut self.run {
            Run::Worker(worker) => Some(worker),
            Run::Ticket(_) | Run::MachineCode(_) | Run::Original(_) => None,
        }
    }

    pub(super) fn is_confined(&self) -> bool {
        !matches!(&self.run, Run::Original(original) if original.keeps_to.is_none())
    }

    /// Whether the launch is a slice of the program's launch.
    pub(crate) fn is_slice(&self) -> bool {
        matches!(&self.run, Run::Original(original) if original.is_slice)
    }

    /// Whether the launch runs in its original form, or is a slice in that.
    pub(crate) fn is_original(&self) -> bool {
        matches!(self.run, Run::Original(_))
    }

    /// Device time from the launch's turn in its stream to its end, where its kernel runs in slices
    /// and this is a slice, or a launch that ran whole in place of slices.
    pub(crate) fn slice_time(&self, end: Nanos) -> Option<Nanos> {
        let spec = &self.spec;
        let in_slices = self.is_original() && !spec.cooperative && spec.kernel.slice.is_some();
        let begun = self.begun.filter(|_| in_slices && !self.is_confined());
        Some(end.saturating_sub(begun?))
    }

    /// Whether CTAs of the launch may be on an SM, as far as is known.
    pub(super) fn may_be_on(&self, sm: partita_model::SmId) -> bool {
        match &self.run {
            Run::Worker(Worker { claims, .. }) | Run::Ticket(ticket::Ticket { claims, .. }) => {
                claims.is_outdated || claims.seen.live_at(sm) > 0
            }
            Run::MachineCode(sms) => sms.contains(sm),
            Run::Original(original) => original.keeps_to.is_some_and(|sms| sms.contains(sm)),
        }
    }

    /// The launch's specification.
    pub(crate) fn spec(&self) -> &Spec {
        &self.spec
    }

    pub(crate) fn place(&self) -> Place {
        self.place
    }

    /// Device time at which the launch became the first of its stream.
    pub(crate) fn begun(&self) -> Option<Nanos> {
        self.begun
    }

    /// What was expected of the launch at its start.
    pub(crate) fn outlook(&self) -> Option<Outlook> {
        self.outlook
    }
}
