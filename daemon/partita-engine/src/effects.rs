//! Effects: what one step of the engine makes necessary next.
//!
//! A step changes the fields of one machine and asks the device for something. What follows from
//! it, in this machine or another, is an [`Effect`]. Effects stand in one ordered queue. The
//! engine's turn carries out one after the other until none is left ([`crate::machines`]). No step
//! is interrupted by another, so no step finds its own session failed half-way.
//!
//! Failures go before all other effects: a session that is to fail submits nothing more. Effects
//! that say *look again* ([`Effect::Replan`], [`Effect::Stall`], [`Effect::HandOver`],
//! [`Effect::PumpWaiting`]) stand in the queue at most once.
//!
//! What the shell is to do, a reply or a line of the log, is an [`crate::Action`] and goes straight
//! to the shell's queue.

use crate::turn::Bug;
use partita_model::{ApplicationId, CudaResult, Nanos, OperationId, SessionId, StreamId};
use std::collections::VecDeque;

/// One thing that follows from a step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Effect {
    /// An error sticks to a session, and its work is cancelled.
    Fail { session: SessionId, code: CudaResult, text: String },
    /// The engine has lost track of something: the session that it concerns ends, if one is known.
    Bug { session: Option<SessionId>, bug: Bug },
    /// All sessions of an application are closing.
    Leave(ApplicationId),
    /// Nothing of a closing session may be left: look whether that is so.
    Release(SessionId),
    /// An application without work gets some.
    Join(ApplicationId),
    /// The policy looks at the applications.
    Replan,
    /// Workers are told where they wait.
    Stall,
    /// SMs whose last workers have left go to their owners.
    HandOver,
    /// A stream's queue has a new entry.
    PumpStream(SessionId, StreamId),
    /// What waited in a session's queues may go.
    PumpSession(SessionId),
    /// Launches that wait for room or for their turn may go.
    PumpWaiting,
    /// A wait of the host of an application with a latency target has ended.
    Waited(ApplicationId),
    /// An operation has failed. The failure of its session has gone before.
    Failed { operation: OperationId, time: Nanos },
    /// What waits for an operation goes on. A failure of its session has gone before.
    Retire { operation: OperationId, time: Nanos },
}

/// Effects that are not carried out yet, in order.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// Failures, which go first.
    failures: VecDeque<Effect>,
    queue: VecDeque<Effect>,
    replan: bool,
    stall: bool,
    hand_over: bool,
    pump_waiting: bool,
}

impl Effects {
    /// Adds one, unless the queue has it and once is enough.
    pub(crate) fn push(&mut self, effect: Effect) {
        if matches!(effect, Effect::Fail { .. } | Effect::Bug { .. }) {
            return self.failures.push_back(effect);
        }
        let once = self.once(&effect);
        if !once.is_some_and(|waits| std::mem::replace(waits, true)) {
            self.queue.push_back(effect);
        }
    }

    /// Whether none is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.failures.is_empty() && self.queue.is_empty()
    }

    /// Takes the first.
    pub(crate) fn pop(&mut self) -> Option<Effect> {
        if let Some(failure) = self.failures.pop_front() {
            return Some(failure);
        }
        let effect = self.queue.pop_front()?;
        if let Some(waits) = self.once(&effect) {
            *waits = false;
        }
        Some(effect)
    }

    fn once(&mut self, effect: &Effect) -> Option<&mut bool> {
        match effect {
            Effect::Replan => Some(&mut self.replan),
            Effect::Stall => Some(&mut self.stall),
            Effect::HandOver => Some(&mut self.hand_over),
            Effect::PumpWaiting => Some(&mut self.pump_waiting),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_stand_in_the_queue_once() {
        let mut effects = Effects::default();
        let release = Effect::Release(SessionId(1));
        for effect in [Effect::Replan, release.clone(), Effect::Replan, release.clone()] {
            effects.push(effect);
        }
        assert_eq!(effects.pop(), Some(Effect::Replan));
        effects.push(Effect::Replan);
        let rest: Vec<Effect> = std::iter::from_fn(|| effects.pop()).collect();
        assert_eq!(rest, [release.clone(), release, Effect::Replan]);
    }

    #[test]
    fn failures_go_first() {
        let mut effects = Effects::default();
        let bug =
            |id| Effect::Bug { session: Some(SessionId(id)), bug: Bug::NoSession(SessionId(id)) };
        for effect in [Effect::Replan, bug(1), Effect::HandOver, bug(2)] {
            effects.push(effect);
        }
        let order: Vec<Effect> = std::iter::from_fn(|| effects.pop()).collect();
        assert_eq!(order, [bug(1), bug(2), Effect::Replan, Effect::HandOver]);
    }
}
