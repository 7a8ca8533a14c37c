//! Launches that get nowhere.
//!
//! Workers look at the signal between tasks only, so a CTA that never ends keeps its SM. A launch
//! whose workers have completed no CTA for [`crate::EngineConfig::no_progress`] counts as *stuck*
//! and is reported. It goes on: it may be slow, or wait for its host. A stuck launch that keeps
//! another's kernel waiting that must be alone is ended: its session fails with
//! `CUDA_ERROR_LAUNCH_TIMEOUT`. Time does not count while all its workers wait on stalled SMs.
//!
//! A launch that has lost SMs has as much time to leave them. The time counts from the first loss
//! since something of the launch has completed. Where its other CTAs complete, those on lost SMs
//! have the time of a kernel that runs alone.
//!
//! An emulated GPU may take minutes of the host's time for a second of device time. So a launch
//! that is in the way is judged by host time too: by the time for which the device ran, no CTA was
//! seen to complete, and others waited ([`crate::EngineConfig::hold_up`]). The shell says how much
//! has passed. Where it says nothing, as in simulations and replays, device time alone counts.
//!
//! Long before either limit lost SMs go on to their new owners ([`crate::handover`]), who work
//! beside what stays there until it is ended.
//!
//! Nothing is seen of a kernel in its original form before its end. So its whole time counts,
//! against [`crate::EngineConfig::alone`], and it is in the way of every other application that
//! waits. The same time counts for machine code, which is in the way of the new owners of its SMs.

use super::Launches;
use super::original::Original;
use super::spec::{Claims, Launch, Run};
use super::waiting::Kind;
use crate::handover::Handover;
use crate::turn::{Bug, Turn};
use crate::{About, LogLevel};
use partita_model::{
    ApplicationId, CudaResult, Happening, LaunchId, Nanos, SessionId, SmId, SmSet,
};
use std::time::Duration;

/// The part of the limit of host time after which a launch is reported, as a divisor.
const WARNED_AT: u64 = 4;

/// Since when a launch gets nowhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Watch {
    since: Nanos,
    completed: u64,
    /// The time without progress, once that is longer than the limit.
    stuck: Option<Nanos>,
    /// When SMs were lost on which the launch was still seen, of the first time since then.
    lost: Option<Nanos>,
    held_up: HeldUp,
}

/// How long a launch has held others up without progress, in host time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct HeldUp {
    time: Nanos,
    completed: u64,
}

impl Watch {
    pub(crate) const fn new(now: Nanos) -> Self {
        Watch {
            since: now,
            completed: 0,
            stuck: None,
            lost: None,
            held_up: HeldUp { time: Nanos(0), completed: 0 },
        }
    }

    /// Counts no time before now.
    pub(super) fn begin_anew(&mut self, now: Nanos) {
        self.since = self.since.max(now);
    }
}

/// For how long workers may stay on SMs that they have lost until others work beside them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    device: Nanos,
    host: Nanos,
}

impl Patience {
    pub(crate) fn of(turn: &Turn<'_>) -> Self {
        let [device, host] = turn.config().lingers_after();
        Patience { device, host }
    }
}

/// Why a session's launches cannot be ended.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CancelError {
    /// There is no such session.
    #[error("{session} does not exist; those that do: {known}")]
    Unknown {
        /// The session that was named.
        session: SessionId,
        /// The others, in words.
        known: String,
    },
    /// The session is another tenant's.
    #[error("{0} is another user's: only that user, root and the daemon's user may cancel it")]
    Foreign(SessionId),
    /// The session has nothing that could be ended.
    #[error("{0} has no launch queued or running")]
    Nothing(SessionId),
}

impl Launches {
    /// Looks whether a launch of an open session gets anywhere. `name` is its application's.
    pub(crate) fn watch(
        &mut self,
        turn: &mut Turn<'_>,
        handover: &Handover,
        id: LaunchId,
        name: &str,
    ) -> Result<(), Bug> {
        let now = turn.now();
        let launch = self.known(id)?;
        let (limit, completed, moves) = match launch.claims() {
            Some(claims) => {
                let seen = &claims.seen;
                let waits = seen.live_total() == seen.live_on(&handover.stalled());
                let moves = waits || seen.completed > launch.watch.completed;
                (turn.config().no_progress, seen.completed, moves)
            }
            None => (turn.config().alone, 0, false),
        };
        let lost = self.lost_by(handover, launch);
        let first = launch.watch.lost.or(lost.iter().map(|(_, lost)| *lost).min());
        let first = first.filter(|_| !moves);
        let stays = launch.outstays(turn, &lost, first);
        self.known_mut(id)?.watch.lost = first;
        let launch = self.known(id)?;
        if !stays.is_empty() {
            let (session, kernel) = (launch.place.session, &launch.spec.kernel.name);
            let text = format!(
                "kernel `{kernel}` has not left SMs {stays}, which others were given, within the \
                 limit (`no_progress_ms` or `alone_ms` of the configuration), and others wait for \
                 its SMs: it is ended"
            );
            turn.fail(session, CudaResult::ERROR_LAUNCH_TIMEOUT, text);
            return Ok(());
        }
        let time = now.saturating_sub(launch.watch.since);
        if !moves && time < limit {
            return Ok(());
        }
        let in_the_way = !moves && self.is_in_others_way(launch);
        let launch = self.known_mut(id)?;
        if moves {
            let held_up = HeldUp { time: Nanos(0), completed };
            launch.watch = Watch { since: now, completed, stuck: None, lost: None, held_up };
            return Ok(());
        }
        let is_new = launch.watch.stuck.replace(time).is_none();
        let (session, application) = (launch.place.session, launch.place.application);
        let what = what_is_stuck(launch, time);
        if in_the_way {
            let text = format!("{what}, and others wait for its SMs: it is ended");
            turn.fail(session, CudaResult::ERROR_LAUNCH_TIMEOUT, text);
        } else if is_new {
            turn.happened(Happening::Stuck { session, application, text: what.clone() });
            let text = format!("{application} ({name}): {what}");
            let about = About { application: Some(application), ..session.into() };
            turn.log(LogLevel::Warning, about, text);
        }
        Ok(())
    }

    /// Looks whether a launch of an open session holds others up. The device has run for `spent`
    /// more of the host's time.
    pub(crate) fn watch_host_time(
        &mut self,
        turn: &mut Turn<'_>,
        handover: &Handover,
        (id, name): (LaunchId, &str),
        spent: Nanos,
    ) -> Result<(), Bug> {
        let launch = self.known(id)?;
        let (completed, waits) = match launch.claims() {
            Some(Claims { seen, .. }) => {
                (seen.completed, seen.live_total() == seen.live_on(&handover.stalled()))
            }
            // A device that counts tells the progress of originals.
            None => {
                let counting = turn.device.counting();
                let grid = counting.and_then(|counting| counting.grid_counters(launch.place.main));
                (grid.map_or(0, |counters| counters.ctas), false)
            }
        };
        let before = launch.watch.held_up;
        let moves = waits || completed > before.completed;
        let time = match moves || !self.is_in_the_way(handover, launch) {
            true => Nanos(0),
            false => before.time + spent,
        };
        let launch = self.known_mut(id)?;
        launch.watch.held_up = HeldUp { time, completed };
        let limit = turn.config().hold_up;
        let early = Nanos(limit.0 / WARNED_AT);
        let (session, application) = (launch.place.session, launch.place.application);
        let kernel = &launch.spec.kernel.name;
        let who = format!("{application} ({name}): kernel `{kernel}` has completed no CTA for");
        let seconds = |time: Nanos| Duration::from_millis(time.0 / 1_000_000).as_secs_f64();
        if time >= limit {
            let text = format!(
                "{who} {:.1} s of the host's time while others waited for it: it is ended; \
                 `hold_up_ms` of the configuration is the limit",
                seconds(time)
            );
            turn.fail(session, CudaResult::ERROR_LAUNCH_TIMEOUT, text);
        } else if before.time < early && time >= early {
            let text = format!(
                "{who} {:.1} s of the host's time while others wait for it; it is ended at {:.1} s",
                seconds(time),
                seconds(limit)
            );
            let about = About { application: Some(application), ..session.into() };
            turn.log(LogLevel::Warning, about, text);
        }
        Ok(())
    }

    /// The SMs that the launch was still seen on when they were others', and when it lost them.
    fn lost_by(&self, handover: &Handover, launch: &Launch) -> Vec<(SmId, Nanos)> {
        if !handover.is_pending() && handover.lingering().is_empty() {
            return Vec::new();
        }
        let lost = handover.given_away(launch.place.application);
        lost.filter(|(sm, _)| launch.was_seen_on(*sm)).collect()
    }

    /// Whether others have been given SMs that the launch holds, or wait until it is over.
    fn is_in_the_way(&self, handover: &Handover, launch: &Launch) -> bool {
        let mut lost = handover.given_away(launch.place.application);
        self.is_in_others_way(launch) || lost.any(|(sm, _)| launch.may_be_on(sm))
    }

    /// Whether others wait until the launch is over.
    fn is_in_others_way(&self, launch: &Launch) -> bool {
        let own = launch.place.application;
        let alone = !launch.is_confined();
        // Workers keep nobody waiting but kernels that must be alone, and these keep everyone
        // waiting.
        let is_other_alone = self.waiting.of_kind(Kind::Alone).any(|other| other != own);
        is_other_alone || alone && self.is_other_waiting(own)
    }

    /// The longest time for which a launch of an application has been stuck.
    pub(crate) fn stuck_for(&self, application: ApplicationId) -> Option<Nanos> {
        let own = self.running().filter(|launch| launch.place.application == application);
        own.filter_map(|launch| launch.watch.stuck).max()
    }

    /// What is stuck, in sentences.
    pub(crate) fn stuck_sentences(&self) -> impl Iterator<Item = String> {
        self.running().filter_map(|launch| {
            let what = what_is_stuck(launch, launch.watch.stuck?);
            let (application, session) = (launch.place.application, launch.place.session.0);
            Some(format!("{application}: {what}; `partita cancel {session}` ends it."))
        })
    }
}

impl Launch {
    /// Whether CTAs of the launch are on an SM. What a look has not told yet does not count.
    fn was_seen_on(&self, sm: SmId) -> bool {
        match self.claims() {
            Some(claims) => !claims.is_outdated && claims.seen.live_at(sm) > 0,
            None => self.may_be_on(sm),
        }
    }

    /// Those of its lost SMs that the launch should have left by now. `first` is its first loss
    /// since something of it has completed; `None` where something just has.
    fn outstays(&self, turn: &Turn<'_>, lost: &[(SmId, Nanos)], first: Option<Nanos>) -> SmSet {
        let config = turn.config();
        // What a look tells holds as of then.
        let now = self.claims().map_or(turn.now(), |claims| claims.seen_at);
        let is_past = |since: Nanos, limit| now.saturating_sub(since) >= limit;
        let began = self.begun.unwrap_or(turn.now());
        let is_stuck = self.is_claiming()
            && first.is_some_and(|first| is_past(first.max(self.watch.since), config.no_progress));
        let is_over = |lost: Nanos| is_stuck || is_past(lost.max(began), config.alone);
        lost.iter().filter(|(_, lost)| is_over(*lost)).map(|(sm, _)| *sm).collect()
    }

    /// Whether workers of the launch have stayed for long on an SM that it lost at a time. Of other
    /// forms the ledger holds no room.
    pub(super) fn lingers_on(&self, sm: SmId, lost: Nanos, patience: Patience) -> bool {
        let Some(claims) = self.claims().filter(|_| self.was_seen_on(sm)) else { return false };
        let first = self.watch.lost.map_or(lost, |first| first.min(lost));
        let stayed = claims.seen_at.saturating_sub(first);
        claims.seen_at >= lost
            && (stayed >= patience.device || self.watch.held_up.time >= patience.host)
    }
}

fn what_is_stuck(launch: &Launch, time: Nanos) -> String {
    let (name, millis) = (&launch.spec.kernel.name, time.0 / 1_000_000);
    match (&launch.run, launch.claims()) {
        (_, Some(claims)) => format!(
            "kernel `{name}` has completed no CTA for {millis} ms ({} of {} before, {} in flight)",
            claims.seen.completed,
            launch.spec.total(),
            claims.seen.next.saturating_sub(claims.seen.completed)
        ),
        (Run::MachineCode(sms), _) => {
            format!("machine code `{name}` has run on SMs {sms} for {millis} ms")
        }
        (Run::Original(Original { keeps_to: Some(sms), .. }), _) => {
            format!("kernel `{name}` has run as it was written on SMs {sms} for {millis} ms")
        }
        _ => format!("kernel `{name}` has run alone for {millis} ms"),
    }
}
