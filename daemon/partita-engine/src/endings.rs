//! How launches end: what is accounted, when a launch is struck out, and what a fault means in the
//! program's own terms.
//!
//! A launch is over for its stream when its main grid is; its record stays until its helper grids
//! are gone, too, because these may still look at its control block.

use crate::effects::Effect;
use crate::modules::program_line;
use crate::state::{LaunchSpec, SessionState, Then};
use crate::window::Window;
use crate::{Action, Engine, LogLevel};
use partita_device::{Device, Fault, FaultKind};
use partita_model::control::FAULT_ASSERT;
use partita_model::{ApplicationId, Console, CudaResult, Dim3, LaunchId, SessionId};

impl Engine {
    /// The main grid is done, so every CTA of the launch is, unless it failed.
    pub(crate) fn main_grid_done(&mut self, device: &mut dyn Device, id: LaunchId, ok: bool) {
        let Some(launch) = self.launches.get_mut(&id) else { return };
        launch.main_done = true;
        self.front.remove(&id);
        self.starved.remove(&id);
        let (session, application) = (launch.session, launch.application);
        let (total, is_confined) = (launch.spec.total(), launch.spec.is_confined());
        let Some(worker) = &mut launch.worker else {
            let fault = launch.workspace.filter(|_| self.guards.ends);
            let fault = fault.and_then(|block| self.blocks.fault(device, block).ok()).unwrap_or(0);
            self.account(application, ok && fault == 0, total);
            if is_confined {
                self.demand_ended(application, device.now());
            }
            if fault != 0 {
                self.kernel_gave_up(id, fault);
            }
            return;
        };
        let block = worker.block;
        let counted = worker.counted;
        let seen = self.blocks.read(device, block);
        let completed = seen.as_ref().map_or(0, |seen| seen.completed);
        if let Ok(seen) = seen
            && let Some(worker) =
                self.launches.get_mut(&id).and_then(|launch| launch.worker.as_mut())
        {
            worker.seen = seen;
            worker.counted = completed;
        }
        self.count_traffic(id, counted, completed);
        if ok && completed == total {
            self.bound_cta_time(id, device.now());
        }
        let fault =
            self.launches.get(&id).and_then(|launch| Some(launch.worker.as_ref()?.seen.fault));
        let complete =
            ok && completed == total && self.launches.get(&id).is_some_and(|l| l.spec.is_last());
        self.account(application, complete, completed.saturating_sub(counted));
        self.demand_ended(application, device.now());
        if let Some(fault) = fault.filter(|fault| *fault != 0) {
            self.kernel_gave_up(id, fault);
        } else if ok && completed != total && self.is_open(session) {
            let text = format!("a launch ended with {completed} of {total} CTAs completed");
            self.log(LogLevel::Error, Some(session), text.clone());
            self.fail(session, CudaResult::ERROR_LAUNCH_FAILED, text);
        }
    }

    /// A kernel has ended its launch by itself ([`partita_model::control::FAULT`]).
    pub(crate) fn kernel_gave_up(&mut self, id: LaunchId, fault: u32) {
        let Some(launch) = self.launches.get(&id) else { return };
        let (session, kernel) = (launch.session, launch.spec.kernel.name.clone());
        let (code, what) = match fault {
            FAULT_ASSERT => (CudaResult::ERROR_ASSERT, "an assertion failed"),
            _ => (CudaResult::ERROR_LAUNCH_FAILED, "it executed `trap`"),
        };
        self.fail(session, code, format!("kernel `{kernel}`, {id}: {what}"));
    }

    fn is_open(&self, session: SessionId) -> bool {
        self.sessions.get(&session).is_some_and(|session| session.state == SessionState::Open)
    }

    fn account(&mut self, application: ApplicationId, complete: bool, ctas: u64) {
        let Some(application) = self.applications.get_mut(&application) else { return };
        if complete {
            application.launches_completed += 1;
        }
        application.ctas_completed += ctas;
    }

    /// Strikes a launch out when none of its grids is left.
    pub(crate) fn finish_launch_if_done(&mut self, device: &mut dyn Device, id: LaunchId) {
        if !self
            .launches
            .get(&id)
            .is_some_and(|launch| launch.main_done && launch.helpers.is_empty())
        {
            return;
        }
        let Some(launch) = self.launches.remove(&id) else { return };
        if let Some(application) = self.applications.get_mut(&launch.application) {
            match launch.spec.is_confined() {
                true => {
                    application.workers_in_flight -= 1;
                    self.workers_in_flight -= 1;
                }
                false => {
                    application.originals_in_flight -= 1;
                    self.originals_in_flight -= 1;
                }
            }
        }
        if let Some(block) = launch.workspace {
            self.blocks.give_back(block);
        }
        if let Some(address) = launch.barrier
            && let Some(session) = self.sessions.get_mut(&launch.session)
            && let Some(bytes) = session.window.free(address)
        {
            session.memory_used -= Window::footprint(bytes).unwrap_or(0);
            let _ = device.free(address);
        }
        self.counting_done(device, &launch);
        if let Some(worker) = launch.worker {
            self.ledger.leave(launch.stream, id);
            self.blocks.give_back(worker.block);
            self.effects.push(Effect::HandOver);
        } else if !launch.sms.is_empty() {
            self.effects.push(Effect::HandOver);
        }
        self.effects.push(Effect::PumpWaiting);
    }

    // Faults.

    /// A fault as CUDA's code, and in terms of the program's own kernel as far as known.
    pub(crate) fn describe_fault(&self, then: Then, mut fault: Fault) -> (CudaResult, Fault) {
        let code = match fault.kind {
            FaultKind::IllegalAddress => CudaResult::ERROR_ILLEGAL_ADDRESS,
            FaultKind::MisalignedAddress => CudaResult::ERROR_MISALIGNED_ADDRESS,
            FaultKind::InvalidAddressSpace => CudaResult::ERROR_INVALID_ADDRESS_SPACE,
            FaultKind::IllegalInstruction => CudaResult::ERROR_ILLEGAL_INSTRUCTION,
            FaultKind::InvalidPc => CudaResult::ERROR_INVALID_PC,
            FaultKind::StackOverflow => CudaResult::ERROR_HARDWARE_STACK_ERROR,
            FaultKind::Assert => CudaResult::ERROR_ASSERT,
            FaultKind::LaunchFailed => CudaResult::ERROR_LAUNCH_FAILED,
        };
        if let Then::Main(id) | Then::Helper(id) = then
            && let Some(launch) = self.launches.get(&id)
        {
            in_program_terms(&mut fault, &launch.spec);
        }
        (code, fault)
    }

    /// The program is told of a failed assertion on its standard error, as CUDA does it.
    pub(crate) fn print_assertion(&mut self, session: SessionId, fault: &Fault) {
        if let (Some(assertion), Some(position)) = (&fault.assertion, fault.position) {
            let text = assertion.message(position.cta).into_bytes();
            self.actions.push_back(Action::Output { session, console: Console::Error, text });
        }
    }
}

/// Replaces the worker by the CTA that it ran, and the rewritten text's line by the program's.
fn in_program_terms(fault: &mut Fault, spec: &LaunchSpec) {
    fault.kernel = spec.kernel.name.to_string();
    fault.line = fault.line.and_then(|line| program_line(line, spec.lines.as_deref()));
    if spec.is_confined()
        && let Some(position) = &mut fault.position
    {
        let value =
            |name: &String| fault.values.iter().find(|(other, _)| other == name).map(|(_, v)| *v);
        let axis = |name: &String| value(name).and_then(|value| u32::try_from(value).ok());
        match spec
            .kernel
            .form
            .cta_values()
            .and_then(|[x, y, z]| Some(Dim3::new(axis(x)?, axis(y)?, axis(z)?)))
        {
            Some(cta) => position.cta = cta,
            None => fault.detail.push_str(" (the CTA is a worker's)"),
        }
    }
}
