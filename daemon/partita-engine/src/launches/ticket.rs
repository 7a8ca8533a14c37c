//! Launches of tickets: waves of CTAs that each run one CTA of the original and exit.
//!
//! Nothing stands in the program's stream but a wait until `completed` equals `total`. So the
//! stream's next operation is never early, and the wait takes no SM. The waves go to side streams.
//! Each wave is as large as the places that the ledger holds for the launch and that no ticket has.
//! So no ticket waits in the hardware's block scheduler, where it would keep other applications'
//! grids waiting too. Where no other application has work, more tickets are sent than there are
//! places: the scheduler fills these faster than the host.
//!
//! A ticket that finds its SM foreign or stalled, or nothing left, exits without a claim. A wave
//! may run fewer CTAs than it has, and waves follow as long as CTAs are left.
//!
//! Where whole clusters claim ([`super::clusters`]), a wave has whole clusters, and as many as the
//! places hold.

use super::clusters::{clusters, pools};
use super::helpers::Grid;
use super::spec::{Claims, Run};
use super::{Launches, Staffing};
use crate::handover::Handover;
use crate::turn::{Bug, Turn};
use partita_device::{AddressRange, Work};
use partita_model::control::COMPLETED;
use partita_model::{AwaitedWord, DeviceAddress, LaunchId, Nanos, SmId, SmSet};

/// Tickets per place where no other application has work.
const AHEAD: u64 = 4;
/// The wait between waves doubles at most this often.
const MAX_BACKOFF: u32 = 6;

/// What a launch of tickets has.
pub(super) struct Ticket {
    pub(super) claims: Claims,
    /// Waves sent without the missing tickets having come.
    attempts: u32,
    /// No wave is sent before that time.
    next_wave: Nanos,
}

/// What stands in the program's stream.
pub(super) fn wait(block: DeviceAddress, total: u64) -> Work {
    Work::WaitValue {
        address: DeviceAddress(block.0 + COMPLETED),
        word: AwaitedWord::at_least(total),
    }
}

impl Ticket {
    pub(super) fn new(claims: Claims) -> Self {
        Ticket { claims, attempts: 0, next_wave: Nanos::default() }
    }

    /// Sends the next wave at `time`.
    pub(super) fn send_at(&mut self, time: Nanos) {
        self.next_wave = time;
    }

    /// Tickets have come: the last wave has begun, so what is missing now is missing.
    pub(super) fn came(&mut self, soon: Nanos) {
        self.attempts = 0;
        self.next_wave = self.next_wave.min(soon);
    }

    /// Borders have moved: that waves had no effect does not make the next wait longer.
    pub(super) fn forgive(&mut self, gained: Option<Nanos>) {
        self.attempts = 0;
        self.next_wave = gained.map_or(self.next_wave, |now| self.next_wave.min(now));
    }

    /// A wave was sent.
    pub(super) fn sent(&mut self, now: Nanos, pause: Nanos) {
        self.attempts += 1;
        self.next_wave = now + Nanos(pause.0 << self.attempts.min(MAX_BACKOFF));
    }
}

impl Launches {
    /// The next wave of a launch, if one is due: where places are free and CTAs are left.
    /// `is_alone`: no other application has work.
    pub(super) fn next_wave(
        &mut self,
        turn: &Turn<'_>,
        handover: &mut Handover,
        id: LaunchId,
        (is_alone, is_kept): (bool, bool),
    ) -> Result<(Staffing, Option<u64>), Bug> {
        let launch = self.known(id)?;
        let Run::Ticket(Ticket { claims, .. }) = &launch.run else {
            return Err(Bug::WrongForm(id));
        };
        let left = launch.spec.total().saturating_sub(claims.seen.next);
        if left == 0 || launch.main_done {
            return Ok((Staffing::Complete, None));
        }
        let own = handover.granted(launch.place.application).difference(&handover.stalled());
        let (lane, cta, live) = (launch.place.lane(), launch.spec.cta, claims.seen.live_total());
        let together = u64::from(launch.spec.claimed_together());
        self.extend_entry(handover, id, &own, left.saturating_add(live))?;

        let Run::Ticket(ticket) = &self.known(id)?.run else { return Err(Bug::WrongForm(id)) };
        let missing = |sm: SmId| {
            let held = handover.ledger().held(lane.stream, id, sm);
            held.saturating_sub(ticket.claims.seen.live_at(sm))
        };
        let rounds = own.iter().map(missing).max().unwrap_or(0);
        let free = match together {
            1 => own.iter().map(|sm| u64::from(missing(sm))).sum(),
            ctas => {
                let room = |sm| u64::from(missing(sm));
                clusters(pools(turn.device), ctas, &own, room) * ctas
            }
        };
        if free == 0 || turn.now() < ticket.next_wave {
            return Ok((Staffing::Lacking, None));
        }
        let wanted = if is_alone { free * AHEAD } else { free };
        // Places that the ledger has given away may be free: tickets of others that come in step
        // would take the same SMs each time.
        let burn = match is_kept {
            true => 0,
            false => {
                let entered = handover.ledger().burn(&own, lane, cta, rounds);
                entered.max(self.vacant(handover, &own, cta, rounds))
            }
        };
        let ctas = wanted.min(left) + burn;
        Ok((Staffing::Lacking, Some(ctas - ctas % together)))
    }

    /// Sends a wave where one is due.
    pub(super) fn send_waves(
        &mut self,
        turn: &mut Turn<'_>,
        handover: &mut Handover,
        window: AddressRange,
        (id, is_alone, kept_to): (LaunchId, bool, Option<SmSet>),
    ) -> Result<(Staffing, Option<Grid>), Bug> {
        let (staffing, ctas) = self.next_wave(turn, handover, id, (is_alone, kept_to.is_some()))?;
        let Some(ctas) = ctas else { return Ok((staffing, None)) };
        // Tickets do not wait for a task to end.
        let sent = self.send_helper(turn, window, (id, ctas, kept_to), Nanos(0))?;
        Ok((staffing, sent.grid()))
    }
}
