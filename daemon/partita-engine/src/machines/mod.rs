//! The machines together: what one effect means for which of them.
//!
//! Every function here is one step. It calls the machines one after the other and hands facts from
//! one to the next; what follows is an effect. Nothing here keeps state.
//!
//! | file | steps |
//! | --- | --- |
//! | `launching` | taking a launch, pumping queues, starting launches |
//! | `ending` | operations and launches that end, sessions that fail and close |
//! | `looking` | looks at running launches |
//! | `alone` | speeds of kernels that have the whole GPU |
//! | `planning` | the policy's orders, borders, stalls |
//! | `telling` | what goes into the journal and the meter |

mod alone;
mod as_written;
mod ending;
mod launching;
mod looking;
mod planning;
mod slicing;
mod telling;

use crate::effects::Effect;
use crate::handover::Handover;
use crate::launches::Launches;
use crate::observer::Observer;
use crate::sessions::Sessions;
use crate::trace::Trace;
use crate::turn::Turn;
use crate::{Action, LogLevel};
use partita_device::{DeviceError, Event};
use partita_model::{Console, TraceEntry, WindowId};

/// All machines.
pub(crate) struct Machines {
    pub(crate) sessions: Sessions,
    pub(crate) launches: Launches,
    pub(crate) handover: Handover,
    pub(crate) observer: Observer,
    pub(crate) trace: Trace,
}

impl Machines {
    pub(crate) fn new(turn: &mut Turn<'_>) -> Result<Self, DeviceError> {
        let window = WindowId(0);
        let launches = Launches::new(turn, window)?;
        Ok(Machines {
            sessions: Sessions::new(turn.facts().sm_count),
            handover: Handover::new(turn.facts()),
            observer: Observer::new(turn, window, launches.block_window()),
            trace: Trace::new(turn.config().trace_entries),
            launches,
        })
    }

    /// Carries out one effect.
    pub(crate) fn carry_out(&mut self, turn: &mut Turn<'_>, effect: Effect) {
        match effect {
            Effect::Fail { session, code, text } => self.fail(turn, session, code, text),
            Effect::Bug { session, bug } => self.report_bug(turn, session, bug),
            Effect::Leave(application) => self.leave(turn, application),
            Effect::Release(session) => self.release_if_done(turn, session),
            Effect::Join(application) => self.join(turn, application),
            Effect::Replan => self.replan(turn),
            Effect::Stall => self.stall(turn),
            Effect::HandOver => self.hand_over(turn),
            Effect::PumpStream(session, stream) => self.pump_appended(turn, session, stream),
            Effect::PumpSession(session) => self.pump_session(turn, session),
            Effect::PumpWaiting => self.pump_waiting(turn),
            Effect::Waited(application) => self.observer.waited(application),
            Effect::Failed { operation, time } => self.ended(turn, operation, time, false),
            Effect::Retire { operation, time } => self.retire(turn, operation, time),
        }
    }

    /// Takes what the device tells.
    pub(crate) fn event(&mut self, turn: &mut Turn<'_>, event: Event) {
        match event {
            Event::ModuleLoaded { module, facts } => {
                self.sessions.module_loaded(turn, module, facts);
            }
            Event::ModuleRefused { module, reason } => {
                self.sessions.module_refused(turn, module, reason);
            }
            Event::Confined { sms, result } => self.launches.confined(turn, sms, result),
            Event::Reopened => {
                // Before a launch occupies the device again.
                for (call, request) in self.sessions.take_postponed() {
                    self.request(turn, call, request);
                }
                turn.push(Effect::PumpWaiting);
                // Launches that have left come back.
                self.launches.come_back(turn.now());
            }
            Event::Done { operation, time, outcome } => {
                self.observer.look_at_hit_rates(turn);
                self.done(turn, operation, time, outcome);
            }
            Event::Residency(change) => {
                // The launch may be gone when the device tells of it.
                let launch = self.sessions.launch_of(change.grid);
                let launch = launch.and_then(|id| Some((id, self.launches.get(id)?)));
                if let Some((id, launch)) = launch {
                    let application = launch.place().application;
                    self.trace.push(TraceEntry::Residency { change, application, launch: id });
                }
            }
            Event::Output { operation, text } => {
                // A session that has gone prints nothing any more.
                if let Some((session, ..)) = self.sessions.operation(operation) {
                    turn.act(Action::Output { session, console: Console::Output, text });
                }
            }
            Event::Notice { operation, text } => {
                if let Some((session, ..)) = self.sessions.operation(operation) {
                    turn.log(LogLevel::Warning, Some(session), text);
                }
            }
            Event::Lost { reason } => self.device_lost(turn, reason),
        }
    }
}
