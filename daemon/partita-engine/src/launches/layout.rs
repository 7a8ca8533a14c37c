//! How many workers a launch gets, and where.
//!
//! A launch gets as many workers as the ledger has room for on the application's SMs, but no more
//! than there are tasks. The hardware places CTAs wherever there is room. So a grid also needs one
//! CTA for every place on foreign SMs that it may *burn*: a worker there leaves at once, unless
//! the device keeps the grid to the application's SMs ([`super::confinement`]). Helper
//! grids ([`super::helpers`]) make up for what is missing nonetheless.

use super::spec::Spec;
use super::{Launches, Pending};
use crate::handover::Handover;
use crate::handover::ledger::{Lane, Ledger, Usage};
use crate::observer::{TaskSize, task_size};
use partita_model::control::Gates;
use partita_model::{Nanos, SmId, SmSet};

/// How a launch of workers or tickets is laid out over the SMs.
pub(crate) struct Layout {
    /// Workers per SM that the ledger is to hold.
    pub(super) workers: Vec<u16>,
    /// CTAs of the main grid, those included that may burn.
    pub(super) ctas: u32,
    /// CTAs of a task.
    pub(super) task: TaskSize,
    /// Workers among them that the ledger holds.
    pub(super) placed: u64,
    /// The SMs.
    pub(super) own: SmSet,
    /// The device keeps the main grid to these.
    pub(super) is_kept: bool,
    /// Workers on each of them, at most, where another application has a part of it, or where the
    /// launch has few CTAs.
    quota: Option<u16>,
}

impl Layout {
    /// The gates of the launch. Workers have their first tasks by place, with two exceptions. CTAs
    /// that may wait for others start in order. Where CTAs may start on foreign SMs, or where
    /// others of the same SM leave little room, the tasks of their own SMs would wait for helpers.
    pub(super) fn gates(&self, spec: &Spec, is_worker: bool, stalled: &SmSet) -> Gates {
        let numbers = u16::try_from(self.workers.len()).unwrap_or(u16::MAX);
        let gates = Gates::new(numbers, self.task.most);
        let waits = !self.own.intersection(stalled).is_empty();
        let stays = (self.own.len() == numbers || self.is_kept) && self.quota.is_none();
        let mut gates = match is_worker && !spec.kernel.awaits && !waits && stays {
            true => gates.by_place_for(&self.workers, self.placed),
            false => gates,
        };
        gates.set_quota(self.quota);
        gates.permit(&self.own, stalled);
        gates
    }
}

impl Launches {
    /// Lays a launch out; `None` where there is no room for any worker. `cta_time` is what is known
    /// of its CTAs.
    pub(crate) fn lay_out(
        &self,
        handover: &Handover,
        lane: Lane,
        is_kept: bool,
        (pending, cta_time): (&Pending, Option<Nanos>),
    ) -> Option<Layout> {
        let (spec, left) = (&pending.spec, pending.spec.ctas());
        let own = handover.open_to(lane.application);
        let ledger = handover.ledger();
        let rooms = ledger.rooms(&own, lane, spec.cta);
        let room: u64 = rooms.iter().map(|(_, room)| u64::from(*room)).sum();
        if room == 0 {
            return None;
        }
        let task = match pending.is_worker() {
            false => TaskSize::ONE,
            true => task_size(spec, left, room.min(left), cta_time),
        };
        let tasks = left.div_ceil(task.expected.into());
        // One worker after the other over the SMs, as the hardware places them.
        let rounds = match spec.claimed_together() {
            1 => rounds_for(&rooms, tasks),
            // A GPC may have few SMs of the application's, and a cluster needs them all.
            _ => u16::MAX,
        };
        let most = rooms.iter().map(|(_, room)| *room).max().unwrap_or(0);
        let mut workers = vec![0; ledger.numbers()];
        let mut wanted = 0;
        for (sm, room) in rooms {
            let count = room.min(rounds);
            workers[usize::from(sm.0)] = count;
            wanted += u64::from(count);
        }
        let placed = wanted.min(tasks);
        let burn = match is_kept {
            true => 0,
            false => ledger.burn(&own.union(&self.taken_as_written()), lane, spec.cta, rounds),
        };
        let ctas = u32::try_from(placed + burn).unwrap_or(u32::MAX);
        // A grid with CTAs to spare may find no room on foreign SMs. Then its own SMs get more than
        // their share, and claim so unevenly that some run twice as many of few CTAs as others.
        let keeps_to_own = is_kept || own == ledger.sms();
        let is_few = pending.is_worker() && !keeps_to_own && rounds < most;
        let quota = handover.quota(&own, lane, spec.cta).or(is_few.then_some(rounds));
        Some(Layout { workers, ctas, task, placed, own, is_kept, quota })
    }
}

impl Handover {
    /// CTAs of a launch on one of these SMs, at most, where its application shares them.
    pub(super) fn quota(&self, sms: &SmSet, lane: Lane, cta: Usage) -> Option<u16> {
        self.part(lane.application)?;
        let mut most = 0;
        self.ledger().each_room(sms, lane, cta, |_, room| most = most.max(room));
        Some(most)
    }
}

impl Ledger {
    /// The SMs of a set that have room for CTAs of a launch in `lane`, and for how many.
    pub(crate) fn rooms(&self, sms: &SmSet, lane: Lane, cta: Usage) -> Vec<(SmId, u16)> {
        let mut rooms = Vec::with_capacity(sms.len().into());
        self.each_room(sms, lane, cta, |sm, room| {
            if room > 0 {
                rooms.push((sm, room));
            }
        });
        rooms
    }

    /// CTAs that may start on foreign SMs while every SM is given up to `rounds` of them.
    pub(super) fn burn(&self, own: &SmSet, lane: Lane, cta: Usage, rounds: u16) -> u64 {
        let foreign = self.sms().difference(own);
        let mut burn = 0;
        self.each_room(&foreign, lane, cta, |_, room| burn += u64::from(room.min(rounds)));
        burn
    }
}

/// The smallest number of rounds over the SMs in which `wanted` CTAs find a place, or all rounds
/// there are.
pub(super) fn rounds_for(rooms: &[(SmId, u16)], wanted: u64) -> u16 {
    let most = rooms.iter().map(|(_, room)| *room).max().unwrap_or(0);
    let placed =
        |rounds: u16| -> u64 { rooms.iter().map(|(_, room)| u64::from((*room).min(rounds))).sum() };
    (1..most).find(|&rounds| placed(rounds) >= wanted).unwrap_or(most)
}
