//! Launches: admission, forms, grids, ends.
//!
//! | file | subject |
//! | --- | --- |
//! | `spec` | a launch and its forms, before and after it starts |
//! | `check` | what CUDA checks, and which form a launch takes |
//! | `params` | the layout of hidden parameters |
//! | `admission` | who may go |
//! | `layout` | how many workers, and on which SMs |
//! | `worker`, `ticket`, `slice`, `original` | one form each |
//! | `groups` | machine code and originals on groups of SMs |
//! | `confinement` | the SMs to which the device keeps a grid |
//! | `helpers` | helper grids and their side streams |
//! | `leaving` | long launches that leave for a phase of the device |
//! | `arrivals` | workers on their way |
//! | `control_block` | memory and content of control blocks |
//! | `waiting` | launches that wait for room or for their turn |
//! | `yielding` | kernels that run alone beside applications of priority `latency` |
//! | `watchdog` | launches that get nowhere |
//! | `endings` | ends, and faults in the program's terms |
//!
//! This machine enters its launches in the ledger of [`crate::handover`], which is an argument. It
//! decides neither who has which SMs nor what CTAs are taken to do.

mod admission;
mod arrivals;
mod check;
mod clusters;
mod confinement;
mod control_block;
mod endings;
mod groups;
mod helpers;
mod layout;
mod leaving;
mod original;
mod params;
mod slice;
mod spec;
mod ticket;
mod turns;
mod waiting;
mod watchdog;
mod worker;
mod yielding;

pub(crate) use check::{Checker, fence};
pub(crate) use clusters::Fit;
pub(crate) use endings::code_of;
pub(crate) use original::BARRIER;
pub(crate) use params::Hidden;
pub(crate) use slice::Part;
pub(crate) use spec::{Count, Form, FormKind, Launch, Outlook, Pending, Place, Spec, Start};
pub use watchdog::CancelError;
pub(crate) use watchdog::Patience;
pub(crate) use worker::{Measured, Staffing};

use crate::About;
use crate::handover::{Granted, Handover, Presence};
use crate::turn::{Bug, Turn, earliest};
use admission::InFlight;
use arrivals::Latency;
use confinement::Confinements;
use control_block::{
    BlockPool, signal_abort, signal_completed, signal_gates, signal_quota, signal_retired,
};
use helpers::SideStreams;
use partita_device::{AddressRange, Device, DeviceError};
use partita_model::control::{Gates, Telemetry};
use partita_model::{
    ApplicationId, LaunchId, Nanos, OperationId, SessionId, SmId, SmSet, WindowId,
};
use spec::{Claims, Run};
use std::collections::{BTreeMap, BTreeSet};
use turns::Turns;
use waiting::WaitingLaunches;
use yielding::Yielding;

/// The machine of launches.
pub(crate) struct Launches {
    // Boxed: entries come and go with each launch, and a map moves its neighbours each time.
    records: BTreeMap<LaunchId, Box<Launch>>,
    waiting: WaitingLaunches,
    /// Launches whose main grid is the first of its stream: those that may be running.
    front: BTreeSet<LaunchId>,
    /// Running launches with tasks left that have no place on any SM of their application.
    starved: BTreeMap<LaunchId, ApplicationId>,
    in_flight: InFlight,
    of: BTreeMap<ApplicationId, InFlight>,
    /// Applications that have launched machine code, which needs whole groups of SMs.
    grouped: BTreeSet<ApplicationId>,
    confinements: Confinements,
    blocks: BlockPool,
    /// Time from sending a helper grid until its workers are seen.
    latency: Latency,
    side_streams: BTreeMap<SessionId, SideStreams>,
    tick_at: Option<Nanos>,
    turns: Turns,
    yielding: Yielding,
}

impl Launches {
    pub(crate) fn new(turn: &mut Turn<'_>, window: WindowId) -> Result<Self, DeviceError> {
        Ok(Launches {
            records: BTreeMap::new(),
            waiting: WaitingLaunches::default(),
            front: BTreeSet::new(),
            starved: BTreeMap::new(),
            in_flight: InFlight::default(),
            of: BTreeMap::new(),
            grouped: BTreeSet::new(),
            confinements: Confinements::default(),
            blocks: BlockPool::new(turn.device, window)?,
            latency: Latency::new(turn.config().handover_tick, turn.config().unsettled_tick),
            side_streams: BTreeMap::new(),
            tick_at: None,
            turns: Turns::default(),
            yielding: Yielding::default(),
        })
    }

    /// When running launches are looked at next.
    pub(crate) fn tick_at(&self) -> Option<Nanos> {
        self.tick_at
    }

    /// Whether a launch runs, or waits at the head of its queue.
    pub(crate) fn awaits_timer(&self) -> bool {
        !self.front.is_empty() || !self.waiting.is_empty()
    }

    /// Has running launches looked at no later than `at`.
    pub(crate) fn look_by(&mut self, at: Nanos) {
        self.tick_at = earliest(self.tick_at, at);
    }

    /// Sets the next look, after one has ended: at `at` if launches run, or when a launch that
    /// waits has rested enough or is held back no longer.
    pub(crate) fn look_again(&mut self, at: Nanos, rested: Option<Nanos>) {
        self.tick_at = (!self.front.is_empty()).then_some(at).into_iter().chain(rested).min();
    }

    /// The window of control blocks.
    pub(crate) fn block_window(&self) -> AddressRange {
        self.blocks.window()
    }

    pub(crate) fn get(&self, id: LaunchId) -> Option<&Launch> {
        self.records.get(&id).map(Box::as_ref)
    }

    /// Launches that may be running, lowest id first.
    pub(crate) fn front_ids(&self) -> Vec<LaunchId> {
        self.front.iter().copied().collect()
    }

    fn known(&self, id: LaunchId) -> Result<&Launch, Bug> {
        self.get(id).ok_or(Bug::NoLaunch(id))
    }

    fn known_mut(&mut self, id: LaunchId) -> Result<&mut Launch, Bug> {
        self.records.get_mut(&id).map(Box::as_mut).ok_or(Bug::NoLaunch(id))
    }

    fn running(&self) -> impl Iterator<Item = &Launch> {
        self.front.iter().filter_map(|id| self.records.get(id).map(Box::as_ref))
    }

    /// Worker launches of an application. Those behind others count too: the device may be ahead
    /// of what it has told.
    pub(crate) fn claiming_of(&self, application: ApplicationId) -> Vec<LaunchId> {
        let own = |launch: &Launch| launch.place.application == application;
        let claiming = self.records.iter().filter(|(_, l)| own(l) && l.claims().is_some());
        claiming.map(|(&id, _)| id).collect()
    }

    /// Whether CTAs of an application may be on an SM, as far as is known.
    pub(crate) fn is_on(&self, application: ApplicationId, sm: SmId) -> bool {
        self.records.values().any(|l| l.place.application == application && l.may_be_on(sm))
    }

    /// What is known of an application's CTAs on an SM that it lost at a time.
    pub(crate) fn presence(
        &self,
        application: ApplicationId,
        sm: SmId,
        lost: Nanos,
        patience: Patience,
    ) -> Presence {
        let own = self.records.values().filter(|l| l.place.application == application);
        let mut there = own.filter(|launch| launch.may_be_on(sm)).peekable();
        if there.peek().is_none() {
            return Presence::Gone;
        }
        match there.all(|launch| launch.lingers_on(sm, lost, patience)) {
            true => Presence::Lingering,
            false => Presence::Leaving,
        }
    }

    /// Holds the ledger's room for workers that were on SMs when their application got these again.
    pub(crate) fn hold_regained(&self, handover: &mut Handover, gain: &Granted) -> Result<(), Bug> {
        self.hold_seen(handover, gain.application, gain.to.difference(&gain.from), u16::max)
    }

    /// Holds the ledger's room for workers that linger on others' SMs.
    pub(crate) fn hold_lingering(&self, handover: &mut Handover) -> Result<(), Bug> {
        for (application, sms) in handover.lingering().all() {
            self.hold_seen(handover, application, sms, |_, seen| seen)?;
        }
        Ok(())
    }

    /// Enters as many workers on these SMs as `choose` says, by those entered and those seen.
    fn hold_seen(
        &self,
        handover: &mut Handover,
        application: ApplicationId,
        sms: SmSet,
        choose: impl Fn(u16, u16) -> u16,
    ) -> Result<(), Bug> {
        for id in self.claiming_of(application) {
            let launch = self.known(id)?;
            let seen = &launch.claims().ok_or(Bug::WrongForm(id))?.seen;
            let stream = launch.place.stream;
            for sm in sms.iter() {
                let count = choose(handover.ledger().held(stream, id, sm), seen.live_at(sm));
                handover.ledger_mut().set(stream, id, sm, count)?;
            }
        }
        Ok(())
    }

    /// Whether a launch of a session that is on the device may wait for host memory.
    pub(crate) fn awaits_host(&self, session: SessionId) -> bool {
        self.records.values().any(|l| l.place.session == session && l.spec.awaits_host)
    }

    pub(crate) fn is_at_rest(&self) -> bool {
        self.records.is_empty()
            && self.waiting.is_empty()
            && self.front.is_empty()
            && self.in_flight.total() == 0
            && self.blocks.in_use() == 0
    }

    /// Grids of an application that the device has.
    pub(crate) fn grids_of(&self, id: ApplicationId) -> impl Iterator<Item = OperationId> {
        let own = self.records.values().filter(move |launch| launch.place.application == id);
        own.flat_map(|launch| {
            let main = Some(launch.place.main).filter(|_| !launch.main_done);
            let helpers = launch.claims().into_iter().flat_map(|claims| claims.helpers.grids());
            main.into_iter().chain(helpers)
        })
    }

    /// CTAs that an application's running launches have completed and its account does not have.
    pub(crate) fn untold(&self, device: &mut dyn Device, id: ApplicationId) -> u64 {
        let running = self.records.values().filter(|l| l.place.application == id && !l.main_done);
        running.map(|launch| launch.untold(device)).sum()
    }

    /// What the policy sees of an application's running launches: CTAs begun and not completed, and
    /// CTAs launched. Of a launch as written every place is taken to have a CTA.
    pub(crate) fn progress_of(&self, handover: &Handover, id: ApplicationId) -> (u64, u64) {
        let begun = |launch: &Launch| match (launch.claims(), launch.kept_to()) {
            // Some claim in vain at the end.
            (Some(claims), _) => {
                let claimed = claims.seen.next.min(launch.spec.total());
                claimed.saturating_sub(claims.seen.completed)
            }
            (None, Some(sms)) => {
                let places = handover.ledger().occupancy(launch.spec.cta);
                launch.spec.ctas().min(u64::from(places) * u64::from(sms.len()))
            }
            (None, None) => 0,
        };
        let seen = |launch: &Launch| (begun(launch), launch.spec.total());
        let own = self.running().filter(|launch| launch.place.application == id);
        let own = own.filter(|launch| launch.claims().is_some() || launch.is_original());
        own.map(seen).fold((0, 0), |sum: (u64, u64), launch| {
            (sum.0.saturating_add(launch.0), sum.1.saturating_add(launch.1))
        })
    }

    /// Whether CTAs of an application's running launches are being counted now.
    pub(crate) fn is_counted(&self, id: ApplicationId) -> bool {
        self.running().any(|launch| launch.place.application == id && launch.is_counting())
    }

    /// The same of all its launches that the device has.
    pub(crate) fn will_be_counted(&self, id: ApplicationId) -> bool {
        let mut own = self.records.values().filter(|launch| launch.place.application == id);
        own.any(|launch| launch.is_counting())
    }

    // Signals.

    /// Tells an application's launches where its workers may be.
    pub(crate) fn signal_granted(
        &mut self,
        turn: &mut Turn<'_>,
        handover: &Handover,
        change: &Granted,
    ) {
        let Granted { application, from, to } = *change;
        let stalled = handover.stalled();
        let (now, unsure) = (turn.now(), turn.config().unsettled_tick);
        let gained = !to.difference(&from).is_empty();
        let mut failed = None;
        for launch in self.records.values_mut().filter(|l| l.place.application == application) {
            let (lane, cta) = (launch.place.lane(), launch.spec.cta);
            let Some(claims) = launch.claims_mut() else { continue };
            // On fewer SMs of its own a launch of few CTAs needs more workers on each.
            let is_other = gained || handover.part(application).is_none();
            if is_other && claims.gates.set_quota(handover.quota(&to, lane, cta)) {
                let told = signal_quota(turn.device, claims.block, &claims.gates);
                failed = told.err().or(failed);
            }
            let changed = claims.gates.permit(&to, &stalled);
            claims.is_signalled |= !changed.is_empty();
            let told = signal_gates(turn.device, claims.block, &claims.gates, &changed);
            failed = told.err().or(failed);
            if gained {
                // What was sent before was not for these SMs.
                claims.unsure_until = claims.unsure_until.max(now + unsure);
            }
            match &mut launch.run {
                Run::Worker(worker) => worker.arrivals.forgive(),
                Run::Ticket(ticket) => ticket.forgive(gained.then_some(now)),
                Run::MachineCode(_) | Run::Original(_) => {}
            }
        }
        if let Some(error) = failed {
            turn.log_error(
                application,
                format!("a resize of {application} was not signalled: {error}"),
            );
        }
    }

    /// Tells a running launch how many workers it may have on an SM now, where its application
    /// shares SMs and its other launches have come or gone.
    pub(super) fn signal_room(
        &mut self,
        turn: &mut Turn<'_>,
        handover: &Handover,
        id: LaunchId,
    ) -> Result<(), Bug> {
        let launch = self.known_mut(id)?;
        let place = launch.place;
        let own = handover.granted(place.application);
        let quota = handover.quota(&own, place.lane(), launch.spec.cta);
        let Some(claims) = launch.claims_mut().filter(|_| quota.is_some()) else { return Ok(()) };
        if claims.gates.set_quota(quota)
            && let Err(error) = signal_quota(turn.device, claims.block, &claims.gates)
        {
            turn.log_error(Some(place.session), format!("{id} was not told its room: {error}"));
        }
        Ok(())
    }

    /// Tells all launches where workers wait. A launch that began while some waited was kept off
    /// their SMs, and may go there now.
    pub(crate) fn signal_stalled(&mut self, turn: &mut Turn<'_>, handover: &Handover) {
        let (mut failed, stalled) = (None, handover.stalled());
        for launch in self.records.values_mut() {
            let granted = handover.granted(launch.place.application);
            let Some(claims) = launch.claims_mut() else { continue };
            let changed = claims.gates.permit(&granted, &stalled);
            let told = signal_gates(turn.device, claims.block, &claims.gates, &changed);
            failed = told.err().or(failed);
        }
        if let Some(error) = failed {
            turn.log_error(About::default(), format!("a stall was not signalled: {error}"));
        }
    }

    /// Strikes an application's launches out of the ledger on SMs that it loses.
    pub(crate) fn shrink(
        &self,
        handover: &mut Handover,
        application: ApplicationId,
        lost: &SmSet,
    ) -> Result<(), Bug> {
        for launch in self.claiming_of(application) {
            let stream = self.known(launch)?.place.stream;
            for sm in lost.iter() {
                handover.ledger_mut().set(stream, launch, sm, 0)?;
            }
        }
        Ok(())
    }

    /// Whether a ticket or machine code is known to be on stalled SMs. Workers wait in their places
    /// and do not say so.
    pub(crate) fn is_anyone_on(&self, stalled: &SmSet) -> bool {
        self.running().any(|launch| match &launch.run {
            Run::Ticket(ticket) => ticket.claims.seen.live_on(stalled) > 0,
            Run::MachineCode(sms) => !sms.is_disjoint(stalled),
            Run::Original(original) => {
                original.keeps_to.is_some_and(|sms| !sms.is_disjoint(stalled))
            }
            Run::Worker(_) => false,
        })
    }

    /// Cancels what a session has on the device.
    pub(crate) fn cancel(&mut self, turn: &mut Turn<'_>, session: SessionId) {
        for launch in self.records.values().filter(|l| l.place.session == session) {
            // Devices that cannot cancel rely on the flag; those that can need no flag. Neither can
            // fail otherwise.
            let block = match &launch.run {
                Run::Original(original) => original.workspace,
                Run::Worker(_) | Run::Ticket(_) | Run::MachineCode(_) => {
                    launch.claims().map(|claims| claims.block)
                }
            };
            if let Some(block) = block {
                let _ = signal_abort(turn.device, block, launch.claims().is_some());
            }
            if !launch.main_done
                && turn.device.cancel(launch.place.main).is_err()
                && let Some(claims) = launch.claims().filter(|_| launch.can_leave())
            {
                let total = launch.spec.total();
                let _ = signal_completed(turn.device, claims.block, total);
            }
            for helper in launch.claims().into_iter().flat_map(|claims| claims.helpers.grids()) {
                let _ = turn.device.cancel(helper);
            }
        }
    }

    /// A launch does not wait for room or for its turn any more.
    pub(crate) fn forget_waiting(&mut self, ticket: OperationId) {
        self.waiting.remove(ticket);
    }

    /// Forgets launches of a session that were still queued.
    pub(crate) fn forget_queued(&mut self, session: SessionId) {
        self.waiting.forget(session);
    }

    /// Forgets a session. Its side streams, which it has no more use for.
    pub(crate) fn forget_session(
        &mut self,
        session: SessionId,
    ) -> BTreeSet<partita_model::StreamId> {
        self.blocks.forget_session(session);
        self.side_streams.remove(&session).map(SideStreams::into_all).unwrap_or_default()
    }

    /// Forgets an application.
    pub(crate) fn forget_application(&mut self, id: ApplicationId) {
        self.grouped.remove(&id);
        self.turns.forget(id);
        self.yielding.forget(id);
    }

    /// The device is gone, and everything on it.
    pub(crate) fn device_lost(&mut self) {
        self.records.clear();
        self.waiting.clear();
        self.front.clear();
        self.starved.clear();
        self.in_flight = InFlight::default();
        self.of.clear();
        self.confinements.clear();
        self.side_streams.clear();
        self.tick_at = None;
    }
}

impl Launch {
    /// CTAs that the launch has completed and that its application's account does not have yet.
    fn untold(&self, device: &mut dyn Device) -> u64 {
        let Some(claims) = self.claims() else {
            let counting = device.counting();
            let counters = counting.and_then(|counting| counting.grid_counters(self.place.main));
            return counters.map_or(0, |counters| counters.ctas);
        };
        match control_block::read_completed(device, claims.block) {
            Ok(completed) => completed.saturating_sub(claims.counted),
            // The device is lost: nothing counts any more.
            Err(_) => 0,
        }
    }

    /// Whether the launch counts, or others of the same program's launch will when it has ended.
    fn is_counting(&self) -> bool {
        self.worker().is_some_and(|worker| match worker.count {
            Some(count) => worker.count_block.is_some() || !count.counting,
            None => false,
        })
    }
}

impl Claims {
    fn new(
        block: partita_model::DeviceAddress,
        gates: Gates,
        first: u64,
        (own, is_kept): (SmSet, bool),
    ) -> Self {
        Claims {
            block,
            gates,
            own,
            is_kept,
            seen: Telemetry::default(),
            seen_at: Nanos::default(),
            looked_at: Nanos::default(),
            is_signalled: false,
            is_outdated: false,
            counted: first,
            helpers: helpers::Helpers::default(),
            unsure_until: Nanos::default(),
        }
    }
}
