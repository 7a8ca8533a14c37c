//! How launches end, and what a fault means in the program's own terms.
//!
//! A launch is over for its stream when its main grid is done. Its record stays until its helper
//! grids are gone, too, because these may still look at its control block.

use super::Launches;
use super::spec::{Count, Launch, Run, Spec};
use crate::effects::Effect;
use crate::handover::Handover;
use crate::sessions::program_line;
use crate::turn::{Bug, Turn};
use partita_device::{Fault, FaultKind};
use partita_model::control::{FAULT_ASSERT, FAULT_BEYOND, FAULT_ILLEGAL, FAULT_MISALIGNED};
use partita_model::{ApplicationId, CudaResult, DeviceAddress, Dim3, LaunchId, Nanos, SessionId};

/// The verification of an end costs a copy on some devices: launches whose numbers are multiples of
/// this are verified there.
const VERIFIED_EVERY: u64 = 16;

/// What the end of a main grid has shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Over {
    pub(crate) application: ApplicationId,
    /// Completed CTAs that the account has, and completed CTAs now.
    pub(crate) before: u64,
    pub(crate) after: u64,
    /// Every CTA of this part of the launch is complete.
    pub(crate) part_complete: bool,
    /// The program's launch is complete.
    pub(crate) complete: bool,
    /// The launch kept to its application's partition.
    pub(crate) is_confined: bool,
}

/// A launch that is gone.
pub(crate) struct Gone {
    pub(crate) launch: Box<Launch>,
    /// The time for which its application had the device alone, if that ends with it.
    pub(crate) turn: Option<Nanos>,
}

impl Gone {
    /// A barrier in the session's window, which the session takes back.
    pub(crate) fn barrier(&self) -> Option<(SessionId, DeviceAddress)> {
        match &self.launch.run {
            Run::Original(original) => Some((self.launch.place.session, original.barrier?)),
            Run::Worker(_) | Run::Ticket(_) | Run::MachineCode(_) => None,
        }
    }
}

impl Gone {
    /// Which part of a counted launch it was, and whether all its CTAs are complete.
    pub(crate) fn count(&self) -> Option<(Count, bool)> {
        let worker = self.launch.worker()?;
        let complete = worker.claims.seen.completed >= self.launch.spec.total();
        Some((worker.count?, complete))
    }
}

impl Launches {
    /// The main grid is done, so every CTA of the launch is, unless it failed. `is_open`: the
    /// session has not failed before. The device is asked only where the end leaves something open
    /// ([`Launches::end_says_all`]).
    pub(crate) fn main_done(
        &mut self,
        turn: &mut Turn<'_>,
        id: LaunchId,
        ok: bool,
        is_open: bool,
    ) -> Result<Over, Bug> {
        self.front.remove(&id);
        self.starved.remove(&id);
        let launch = self.records.get_mut(&id).ok_or(Bug::NoLaunch(id))?;
        launch.main_done = true;
        let (session, application) = (launch.place.session, launch.place.application);
        let (total, is_last) = (launch.spec.total(), launch.spec.is_last());
        let is_confined = launch.is_confined();
        let stoppable = launch.claims().filter(|_| launch.spec.kernel.gives_up);
        let told = stoppable.and_then(|claims| self.blocks.told(turn.device, claims.block));
        let says_all = Launches::end_says_all(launch, (ok, told), is_open);
        // Where a read is a copy for which the owner waits, a sample is verified.
        let (has_words, sample) = (self.blocks.has_words(), id.0.is_multiple_of(VERIFIED_EVERY));
        let verifies = turn.config().verify_ends && (!has_words || sample);
        let Some(claims) = launch.claims_mut() else {
            let workspace = match &launch.run {
                Run::Original(original) => original.workspace,
                _ => None,
            };
            let may_tell = turn.common.guards.ends && launch.spec.kernel.gives_up;
            let fault = workspace.filter(|_| may_tell);
            let fault = fault.and_then(|block| self.blocks.fault(turn.device, block).ok());
            let fault = fault.unwrap_or(0);
            let complete = ok && fault == 0;
            let cannot_tell = launch.spec.kernel.gives_up && !may_tell;
            if let Run::Original(original) = &mut launch.run {
                original.is_blank = complete && is_open && !cannot_tell;
            }
            if fault != 0 {
                launch.gave_up(turn, fault);
            }
            let (before, part_complete) = (launch.spec.first, complete);
            let (after, complete) = (total, complete && is_last);
            return Ok(Over { application, before, after, part_complete, complete, is_confined });
        };
        let before = claims.counted;
        if says_all {
            claims.seen.next = total;
            claims.seen.completed = total;
            claims.counted = total;
        }
        let fault = told.filter(|&fault| fault != 0);
        claims.seen.fault = fault.unwrap_or(claims.seen.fault);
        // Of what has failed, or whose session has ended, no more need be known where the owner
        // would wait. A device that does not tell is lost, and with it the launch.
        let asks = !says_all && fault.is_none() && (is_open || !has_words);
        if (asks || verifies)
            && let Ok(seen) = self.blocks.read(turn.device, claims.block)
        {
            claims.counted = seen.completed;
            claims.seen = seen;
        }
        let (completed, fault) = (claims.seen.completed, claims.seen.fault);
        let part_complete = ok && completed == total;
        if fault != 0 {
            launch.gave_up(turn, fault);
        } else if ok && !part_complete && is_open {
            let text = format!("a launch ended with {completed} of {total} CTAs completed");
            turn.log_error(Some(session), text.clone());
            turn.fail(session, CudaResult::ERROR_LAUNCH_FAILED, text);
        }
        let (after, complete) = (completed.max(before), part_complete && is_last);
        Ok(Over { application, before, after, part_complete, complete, is_confined })
    }

    /// Strikes a launch out when none of its grids is left. `None`: some is.
    pub(crate) fn finish(
        &mut self,
        turn: &mut Turn<'_>,
        handover: &mut Handover,
        id: LaunchId,
    ) -> Result<Option<Gone>, Bug> {
        if !self.known(id)?.is_over() {
            return Ok(None);
        }
        let launch = self.records.remove(&id).ok_or(Bug::NoLaunch(id))?;
        let took = self.landed(turn, launch.place.application, launch.is_confined());
        match &launch.run {
            Run::Worker(_) | Run::Ticket(_) => {
                handover.ledger_mut().leave(launch.place.stream, id)?;
            }
            Run::MachineCode(_) | Run::Original(_) => {}
        }
        if handover.is_pending() && launch.is_confined() {
            turn.push(Effect::HandOver);
        }
        // Others may wait until nobody lingers on their SMs.
        self.hold_lingering(handover)?;
        handover.lingering_mut().see_off(|application, sm| self.is_on(application, sm));
        let (block, is_blank) = match &launch.run {
            Run::Original(original) => {
                let has_barrier = launch.spec.cooperative;
                (original.workspace, original.is_blank && !has_barrier)
            }
            _ => (launch.claims().map(|claims| claims.block), false),
        };
        match block {
            Some(block) if is_blank => self.blocks.give_back_blank(launch.place.session, block),
            Some(block) => self.blocks.give_back(block),
            None => {}
        }
        // An effect, even of nothing, would keep the end itself waiting.
        if self.is_anyone_waiting() {
            turn.push(Effect::PumpWaiting);
        }
        Ok(Some(Gone { launch, turn: took }))
    }

    /// A fault in terms of the program's own kernel, as far as known.
    pub(crate) fn in_program_terms(&self, launch: Option<LaunchId>, fault: &mut Fault) {
        if let Some(launch) = launch.and_then(|id| self.records.get(&id)) {
            launch.place_in_grid(fault);
            in_program_terms(fault, &launch.spec, !launch.is_original());
        }
    }
}

impl Launch {
    /// The kernel has ended its launch by itself ([`partita_model::control::FAULT`]).
    pub(super) fn gave_up(&self, turn: &mut Turn<'_>, fault: u32) {
        let (code, what) = match fault {
            FAULT_ASSERT => (CudaResult::ERROR_ASSERT, "an assertion failed"),
            FAULT_MISALIGNED => (
                CudaResult::ERROR_MISALIGNED_ADDRESS,
                "an address was no multiple of its access's size",
            ),
            FAULT_BEYOND => (
                CudaResult::ERROR_ILLEGAL_ADDRESS,
                "an address lay beyond shared, local or constant memory, or the parameters",
            ),
            FAULT_ILLEGAL => (
                CudaResult::ERROR_ILLEGAL_INSTRUCTION,
                "a barrier does not exist, or waits for threads that are not there",
            ),
            _ => (CudaResult::ERROR_LAUNCH_FAILED, "it executed `trap`"),
        };
        let (kernel, id) = (&self.spec.kernel.name, self.spec.id);
        turn.fail(self.place.session, code, format!("kernel `{kernel}`, {id}: {what}"));
    }
}

/// CUDA's code for a fault.
pub(crate) const fn code_of(kind: FaultKind) -> CudaResult {
    match kind {
        FaultKind::IllegalAddress => CudaResult::ERROR_ILLEGAL_ADDRESS,
        FaultKind::MisalignedAddress => CudaResult::ERROR_MISALIGNED_ADDRESS,
        FaultKind::InvalidAddressSpace => CudaResult::ERROR_INVALID_ADDRESS_SPACE,
        FaultKind::IllegalInstruction => CudaResult::ERROR_ILLEGAL_INSTRUCTION,
        FaultKind::InvalidPc => CudaResult::ERROR_INVALID_PC,
        FaultKind::StackOverflow => CudaResult::ERROR_HARDWARE_STACK_ERROR,
        FaultKind::Assert => CudaResult::ERROR_ASSERT,
        FaultKind::LaunchFailed => CudaResult::ERROR_LAUNCH_FAILED,
    }
}

/// Replaces the worker by the CTA that it ran, and the rewritten text's line by the program's.
fn in_program_terms(fault: &mut Fault, spec: &Spec, is_rewritten: bool) {
    fault.kernel = spec.kernel.name.to_string();
    fault.line = fault.line.and_then(|line| program_line(line, spec.lines.as_deref()));
    let Some(position) = fault.position.as_mut().filter(|_| is_rewritten) else { return };
    let value =
        |name: &String| fault.values.iter().find(|(other, _)| other == name).map(|(_, v)| *v);
    let axis = |name: &String| value(name).and_then(|value| u32::try_from(value).ok());
    let values = spec.kernel.form.cta_values();
    match values.and_then(|[x, y, z]| Some(Dim3::new(axis(x)?, axis(y)?, axis(z)?))) {
        Some(cta) => position.cta = cta,
        None => fault.detail.push_str(" (the CTA is a worker's)"),
    }
}
