//! Launches that get nowhere, and launches that an administrator ends.
//!
//! Workers look at the signal between tasks only, so a CTA that never ends keeps its SM. A launch
//! whose workers have completed no CTA for [`crate::EngineConfig::no_progress`] counts as *stuck*
//! and is reported. It goes on: it may be slow, or wait for its host. But where it holds an SM that
//! another application was given, or keeps another's kernel that must be alone from running, its
//! session fails with `CUDA_ERROR_LAUNCH_TIMEOUT` and its grids are ended. Time does not count
//! while all its workers wait on stalled SMs.
//!
//! Of a kernel in its original form nothing is seen before its end, so its whole time counts,
//! against [`crate::EngineConfig::alone`], and it is in the way of every other application that
//! waits. The same is counted of machine code, which is in the way of whoever was given its SMs.

use crate::state::{Launch, SessionState};
use crate::{Engine, LogLevel};
use partita_device::Device;
use partita_model::{ApplicationId, CudaResult, LaunchId, Limits, Nanos, SessionId, SmId, SmSet};

/// Since when a launch gets nowhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Watch {
    since: Nanos,
    completed: u64,
    /// For how long, once that is longer than the limit.
    stuck: Option<Nanos>,
}

impl Watch {
    pub(crate) const fn new(now: Nanos) -> Self {
        Watch { since: now, completed: 0, stuck: None }
    }
}

/// Why a session's launches cannot be ended.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CancelError {
    /// There is no such session.
    #[error("{session} does not exist; those that do: {known}")]
    Unknown {
        /// Which.
        session: SessionId,
        /// The others, in words.
        known: String,
    },
    /// It has nothing that could be ended.
    #[error("{0} has no launch queued or running")]
    Nothing(SessionId),
}

impl Engine {
    /// Changes how long launches may get nowhere.
    pub fn set_limits(&mut self, limits: &Limits) {
        let nanos = |ms: u32| Nanos(u64::from(ms) * 1_000_000);
        (self.config.no_progress, self.config.alone) =
            (nanos(limits.no_progress_ms), nanos(limits.alone_ms));
    }

    /// Ends everything that a session has queued or running; the session fails with
    /// `CUDA_ERROR_LAUNCH_TIMEOUT`.
    ///
    /// # Errors
    /// Where there is no such session, or nothing of it to end; nothing has changed then.
    pub fn cancel_launches(
        &mut self,
        device: &mut dyn Device,
        session: SessionId,
    ) -> Result<(), CancelError> {
        let is_open = |state: SessionState| state == SessionState::Open;
        let Some(record) = self.sessions.get(&session).filter(|record| is_open(record.state))
        else {
            let known = self.sessions.iter().filter(|(_, record)| is_open(record.state));
            let known: Vec<String> = known.map(|(id, _)| id.0.to_string()).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Err(CancelError::Unknown { session, known });
        };
        if record.operations == 0 {
            return Err(CancelError::Nothing(session));
        }
        let text = "an administrator ended its launches".to_owned();
        self.fail(session, CudaResult::ERROR_LAUNCH_TIMEOUT, text);
        self.settle(device);
        Ok(())
    }

    /// Looks whether a launch gets anywhere.
    pub(crate) fn watch(&mut self, id: LaunchId, now: Nanos) {
        let Some(launch) = self.launches.get(&id) else { return };
        let (session, application) = (launch.session, launch.application);
        if !self.sessions.get(&session).is_some_and(|session| session.state == SessionState::Open) {
            return;
        }
        let (limit, completed, moves) = match &launch.worker {
            Some(worker) => {
                let seen = &worker.seen;
                let waits = seen.live_total() == seen.live_on(&self.stalled);
                (
                    self.config.no_progress,
                    seen.completed,
                    waits || seen.completed > launch.watch.completed,
                )
            }
            None => (self.config.alone, 0, false),
        };
        let time = now.saturating_sub(launch.watch.since);
        if !moves && time < limit {
            return;
        }
        let in_the_way = !moves && self.is_in_the_way(launch);
        let Some(launch) = self.launches.get_mut(&id) else { return };
        if moves {
            launch.watch = Watch { since: now, completed, stuck: None };
            return;
        }
        let is_new = launch.watch.stuck.replace(time).is_none();
        let what = what_is_stuck(launch, time);
        let name = self.applications.get(&application).map_or("", |application| &application.name);
        if in_the_way {
            let text = format!("{what}, and others wait for its SMs: it is ended");
            self.fail(session, CudaResult::ERROR_LAUNCH_TIMEOUT, text);
        } else if is_new {
            let text = format!("{application} ({name}): {what}");
            self.log(LogLevel::Warning, Some(session), text);
        }
    }

    /// Whether others have been given SMs that the launch holds, or wait until it is over.
    fn is_in_the_way(&self, launch: &Launch) -> bool {
        let own = launch.application;
        let alone = !launch.spec.is_confined();
        // Workers keep nobody waiting but kernels that must be alone, and these keep everyone
        // waiting.
        let mut others = self.waiting.values().filter(|waiting| waiting.application != own);
        if others.any(|waiting| alone || !waiting.is_confined) {
            return true;
        }
        let is_on = |sm: SmId| match &launch.worker {
            Some(worker) => worker.seen.live.get(usize::from(sm.0)).is_some_and(|&live| live > 0),
            None => launch.sms.contains(sm),
        };
        SmSet::range(0, self.facts.sm_count).iter().any(|sm| {
            let index = usize::from(sm.0);
            let given = self.owners[index].is_some_and(|owner| owner != own);
            given && self.draining[index] == Some(own) && is_on(sm)
        })
    }

    /// For how long the launch of an application that is stuck longest has been.
    pub(crate) fn stuck_for(&self, application: ApplicationId) -> Option<Nanos> {
        self.stuck_launches()
            .filter(|launch| launch.application == application)
            .filter_map(|l| l.watch.stuck)
            .max()
    }

    /// What is stuck, in sentences.
    pub(crate) fn stuck_sentences(&self) -> Vec<String> {
        let sentence = |launch: &Launch| {
            let what = what_is_stuck(launch, launch.watch.stuck.unwrap_or_default());
            format!(
                "{}: {what}; `partita cancel {}` ends it.",
                launch.application, launch.session.0
            )
        };
        self.stuck_launches().map(sentence).collect()
    }

    fn stuck_launches(&self) -> impl Iterator<Item = &Launch> {
        let front = self.front.iter().filter_map(|id| self.launches.get(id).map(Box::as_ref));
        front.filter(|launch| launch.watch.stuck.is_some())
    }
}

fn what_is_stuck(launch: &Launch, time: Nanos) -> String {
    let (name, millis) = (&launch.spec.kernel.name, time.0 / 1_000_000);
    match &launch.worker {
        Some(worker) => format!(
            "kernel `{name}` has completed no CTA for {millis} ms ({} of {} before, {} in flight)",
            worker.seen.completed,
            launch.spec.total(),
            worker.seen.next.saturating_sub(worker.seen.completed)
        ),
        None if launch.sms.is_empty() => format!("kernel `{name}` has run alone for {millis} ms"),
        None => format!("machine code `{name}` has run on SMs {} for {millis} ms", launch.sms),
    }
}
