//! The residency ledger: the registers, shared memory, threads and CTA slots of every SM that are
//! promised to each stream.
//!
//! A worker stays until its launch is done. So a worker that finds no room keeps the hardware's
//! block scheduler from placing any other grid. The ledger prevents that: the engine launches only
//! as many workers as the ledger has room for.
//!
//! Launches of one stream never overlap in time, so a stream is charged, SM by SM, with the largest
//! of its launches per resource, not with their sum.
//!
//! Where applications share an SM, the launches of each have room in its part only.
//!
//! Registers and shared memory are counted as [`partita_model::occupancy`] says, and threads in
//! whole warps.

use super::holder::Holder;
use crate::turn::Bug;
use partita_device::KernelFacts;
use partita_model::{ApplicationId, DeviceFacts, LaunchId, SmId, SmPart, SmSet, StreamId};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) const WARP: u32 = partita_model::occupancy::WARP_THREADS;

/// Warps that an SM can hold, by its threads and by the registers of a thread.
pub(crate) fn warps_by_registers(facts: &DeviceFacts, registers: u32) -> u32 {
    (facts.registers_per_sm / facts.warp_registers(registers.max(1)))
        .min(facts.threads_per_sm / WARP)
}

/// Resources of an SM that CTAs take up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Usage {
    registers: u64,
    shared: u64,
    threads: u64,
    slots: u64,
}

impl Usage {
    /// The resources of one SM.
    pub(crate) fn capacity(facts: &DeviceFacts) -> Self {
        Usage {
            registers: facts.registers_per_sm.into(),
            shared: facts.shared_per_sm.0,
            threads: facts.threads_per_sm.into(),
            slots: facts.ctas_per_sm.into(),
        }
    }

    /// The resources of one CTA. A CTA of at most [`KernelFacts::max_threads`] threads never lacks
    /// registers: the compiler has spilled until it fits.
    pub(crate) fn of_cta(
        facts: &DeviceFacts,
        kernel: &KernelFacts,
        threads: u32,
        dynamic_shared: u32,
    ) -> Self {
        let warps = threads.div_ceil(WARP);
        let registers_per_warp = facts.warp_registers(kernel.registers.max(1));
        Usage {
            registers: (u64::from(registers_per_warp) * u64::from(warps))
                .min(facts.registers_per_sm.into()),
            shared: facts.cta_shared(kernel.static_shared.0 + u64::from(dynamic_shared)),
            threads: u64::from(warps) * u64::from(WARP),
            slots: 1,
        }
    }

    fn times(self, count: u16) -> Self {
        self.map(|amount| amount * u64::from(count))
    }

    fn map(self, f: impl Fn(u64) -> u64) -> Self {
        Usage {
            registers: f(self.registers),
            shared: f(self.shared),
            threads: f(self.threads),
            slots: f(self.slots),
        }
    }

    fn zip(self, other: Self, f: impl Fn(u64, u64) -> u64) -> Self {
        Usage {
            registers: f(self.registers, other.registers),
            shared: f(self.shared, other.shared),
            threads: f(self.threads, other.threads),
            slots: f(self.slots, other.slots),
        }
    }

    fn max(self, other: Self) -> Self {
        self.zip(other, u64::max)
    }

    fn plus(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }

    fn minus(self, other: Self) -> Self {
        self.zip(other, u64::saturating_sub)
    }

    /// Number of times that `cta` fits in.
    pub(crate) fn room_for(self, cta: Usage) -> u16 {
        let fits = |has: u64, takes: u64| has.checked_div(takes).unwrap_or(u64::MAX);
        let count = fits(self.registers, cta.registers)
            .min(fits(self.shared, cta.shared))
            .min(fits(self.threads, cta.threads))
            .min(fits(self.slots, cta.slots));
        u16::try_from(count).unwrap_or(u16::MAX)
    }
}

/// CTAs of a kernel that fit on an SM that has no others.
#[must_use]
pub fn occupancy(
    facts: &DeviceFacts,
    kernel: &KernelFacts,
    threads: u32,
    dynamic_shared: u32,
) -> u16 {
    let cta = Usage::of_cta(facts, kernel, threads, dynamic_shared);
    Usage::capacity(facts).room_for(cta)
}

#[derive(Debug)]
struct Entry {
    cta: Usage,
    workers: Vec<u16>,
}

/// A stream, and whose it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lane {
    pub(crate) application: ApplicationId,
    pub(crate) stream: StreamId,
}

#[derive(Debug)]
struct StreamUsage {
    application: ApplicationId,
    per_sm: Vec<Usage>,
    entries: BTreeMap<LaunchId, Entry>,
}

/// The ledger of all SMs.
#[derive(Debug)]
pub(crate) struct Ledger {
    capacity: Usage,
    /// By number, also of numbers without an SM.
    per_sm: Vec<Usage>,
    sms: SmSet,
    streams: BTreeMap<StreamId, StreamUsage>,
    /// The SMs that applications share, with the part of each application.
    shared: BTreeMap<SmId, Holder>,
    /// Gives every launch the room of an empty SM, so that a test shows the effect.
    #[cfg(test)]
    pub(crate) blind: bool,
}

impl Ledger {
    pub(crate) fn new(facts: &DeviceFacts) -> Self {
        Ledger {
            capacity: Usage::capacity(facts),
            per_sm: vec![Usage::default(); facts.sm_numbers().into()],
            sms: facts.sms(),
            streams: BTreeMap::new(),
            shared: BTreeMap::new(),
            #[cfg(test)]
            blind: false,
        }
    }

    /// Numbers of SMs, of which some may have no SM.
    pub(crate) fn numbers(&self) -> usize {
        self.per_sm.len()
    }

    /// All SMs.
    pub(crate) fn sms(&self) -> SmSet {
        self.sms
    }

    /// CTAs that an empty SM can hold.
    pub(crate) fn occupancy(&self, cta: Usage) -> u16 {
        self.capacity.room_for(cta)
    }

    /// An SM has gone to this holder, or is free.
    pub(crate) fn divide(&mut self, sm: SmId, holder: Option<Holder>) {
        match holder {
            Some(two @ Holder::Two(_)) => self.shared.insert(sm, two),
            Some(Holder::One(_)) | None => self.shared.remove(&sm),
        };
    }

    /// CTAs that fit into an application's part of an SM.
    pub(crate) fn occupancy_of_part(&self, part: SmPart, cta: Usage) -> u16 {
        self.capacity.map(|amount| part.of(amount)).room_for(cta)
    }

    /// CTAs of a launch in `lane` that its application's part of `sm` has room for, beside what
    /// `used` says of its other streams. Without bound where it has no part.
    fn room_in_part(
        &self,
        sm: SmId,
        lane: Lane,
        cta: Usage,
        used: impl Fn(&StreamUsage) -> Usage,
    ) -> u16 {
        let part = self.shared.get(&sm).and_then(|holder| holder.part(lane.application));
        let Some(part) = part else { return u16::MAX };
        let own = self.streams.iter().filter(|(stream, _)| **stream != lane.stream);
        let own = own.map(|(_, usage)| usage).filter(|usage| usage.application == lane.application);
        let taken = own.fold(Usage::default(), |sum, usage| sum.plus(used(usage)));
        self.capacity.map(|amount| part.of(amount)).minus(taken).room_for(cta)
    }

    /// CTAs of a launch in `lane` that have room on `sm` beside all other streams.
    pub(crate) fn room(&self, sm: SmId, lane: Lane, cta: Usage) -> u16 {
        #[cfg(test)]
        if self.blind {
            return self.occupancy(cta);
        }
        let index = usize::from(sm.0);
        let own = self.streams.get(&lane.stream).map(|usage| usage.per_sm.as_slice());
        let room = self.free_beside(index, own).room_for(cta);
        room.min(self.room_in_part(sm, lane, cta, |usage| usage.per_sm[index]))
    }

    /// What all streams but one leave of an SM. `own` is that stream's usage by SM.
    fn free_beside(&self, index: usize, own: Option<&[Usage]>) -> Usage {
        let total = self.per_sm[index];
        self.capacity.minus(own.map_or(total, |own| total.minus(own[index])))
    }

    /// Tells [`Ledger::room`] of each SM of a set. Every launch is laid out over all SMs, and most
    /// of them are used alike: the divisions are done once for SMs in a row that are.
    pub(crate) fn each_room(
        &self,
        sms: &SmSet,
        lane: Lane,
        cta: Usage,
        mut tell: impl FnMut(SmId, u16),
    ) {
        let own = self.streams.get(&lane.stream).map(|usage| usage.per_sm.as_slice());
        let mut known = (self.capacity, self.occupancy(cta));
        for (sm, index) in (0_u16..).map(SmId).zip(0..self.per_sm.len()) {
            if !sms.contains(sm) {
                continue;
            }
            let free = self.free_beside(index, own);
            if free != known.0 {
                known = (free, free.room_for(cta));
            }
            let mut room = known.1;
            if !self.shared.is_empty() {
                room = room.min(self.room_in_part(sm, lane, cta, |usage| usage.per_sm[index]));
            }
            #[cfg(test)]
            if self.blind {
                room = self.occupancy(cta);
            }
            tell(sm, room);
        }
    }

    /// The same, beside only those launches of other streams that may be running.
    pub(crate) fn room_beside(
        &self,
        sm: SmId,
        lane: Lane,
        cta: Usage,
        running: &BTreeSet<LaunchId>,
    ) -> u16 {
        let index = usize::from(sm.0);
        let of_running = |usage: &StreamUsage| {
            let entries = usage.entries.iter().filter(|(id, _)| running.contains(id));
            entries.fold(Usage::default(), |sum, (_, entry)| {
                sum.plus(entry.cta.times(entry.workers[index]))
            })
        };
        let others = self.streams.iter().filter(|(other, _)| **other != lane.stream);
        let used = others.fold(Usage::default(), |sum, (_, usage)| sum.plus(of_running(usage)));
        let room = self.capacity.minus(used).room_for(cta);
        room.min(self.room_in_part(sm, lane, cta, of_running))
    }

    /// CTAs that have room on an SM beside `taken` CTAs of others, whatever is entered.
    pub(crate) fn room_among(&self, taken: impl Iterator<Item = (Usage, u16)>, cta: Usage) -> u16 {
        let used = taken.fold(Usage::default(), |sum, (other, count)| sum.plus(other.times(count)));
        self.capacity.minus(used).room_for(cta)
    }

    /// Enters a launch with its workers per SM.
    pub(crate) fn enter(&mut self, lane: Lane, launch: LaunchId, cta: Usage, workers: Vec<u16>) {
        let usage = self.streams.entry(lane.stream).or_insert_with(|| StreamUsage {
            application: lane.application,
            per_sm: vec![Usage::default(); self.per_sm.len()],
            entries: BTreeMap::new(),
        });
        for (sm, &count) in workers.iter().enumerate() {
            if count > 0 {
                let grown = usage.per_sm[sm].max(cta.times(count));
                self.per_sm[sm] = self.per_sm[sm].minus(usage.per_sm[sm]).plus(grown);
                usage.per_sm[sm] = grown;
            }
        }
        usage.entries.insert(launch, Entry { cta, workers });
    }

    /// The workers that a launch is entered with on one SM.
    pub(crate) fn held(&self, stream: StreamId, launch: LaunchId, sm: SmId) -> u16 {
        self.workers(stream, launch).get(usize::from(sm.0)).copied().unwrap_or(0)
    }

    /// The workers that a launch is entered with on all SMs.
    pub(crate) fn entered(&self, stream: StreamId, launch: LaunchId) -> u64 {
        self.workers(stream, launch).iter().map(|&count| u64::from(count)).sum()
    }

    /// The workers that a launch is entered with, SM by SM; empty where it is not entered.
    fn workers(&self, stream: StreamId, launch: LaunchId) -> &[u16] {
        let entry = self.streams.get(&stream).and_then(|usage| usage.entries.get(&launch));
        entry.map_or(&[], |entry| &entry.workers)
    }

    /// Changes the number of workers of a launch on one SM.
    pub(crate) fn set(
        &mut self,
        stream: StreamId,
        launch: LaunchId,
        sm: SmId,
        count: u16,
    ) -> Result<(), Bug> {
        let index = usize::from(sm.0);
        let usage = self.streams.get_mut(&stream).ok_or(Bug::NotEntered(launch))?;
        let entry = usage.entries.get_mut(&launch).ok_or(Bug::NotEntered(launch))?;
        if entry.workers[index] != count {
            entry.workers[index] = count;
            usage.recompute(index, &mut self.per_sm[index]);
        }
        Ok(())
    }

    /// Strikes a launch out.
    pub(crate) fn leave(&mut self, stream: StreamId, launch: LaunchId) -> Result<(), Bug> {
        let usage = self.streams.get_mut(&stream).ok_or(Bug::NotEntered(launch))?;
        let gone = usage.entries.remove(&launch).ok_or(Bug::NotEntered(launch))?;
        let same = |entry: &Entry| entry.cta == gone.cta && entry.workers == gone.workers;
        if usage.entries.first_key_value().is_some_and(|(_, next)| same(next)) {
            return Ok(());
        }
        for (index, total) in self.per_sm.iter_mut().enumerate() {
            usage.recompute(index, total);
        }
        if usage.entries.is_empty() {
            self.streams.remove(&stream);
        }
        Ok(())
    }

    /// Whether no launch is entered.
    pub(crate) fn is_empty(&self) -> bool {
        self.streams.is_empty() && self.per_sm.iter().all(|usage| *usage == Usage::default())
    }
}

impl StreamUsage {
    fn recompute(&mut self, index: usize, total: &mut Usage) {
        let largest = self
            .entries
            .values()
            .fold(Usage::default(), |most, entry| most.max(entry.cta.times(entry.workers[index])));
        *total = total.minus(self.per_sm[index]).plus(largest);
        self.per_sm[index] = largest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::fake_device::facts;
    use partita_model::Bytes;

    fn kernel(registers: u32, static_shared: u64) -> KernelFacts {
        KernelFacts {
            name: "k".to_owned(),
            registers,
            static_shared: Bytes(static_shared),
            local: Bytes(0),
            max_threads: 1024,
            required_cluster: None,
        }
    }

    #[test]
    fn occupancy() {
        // facts(): 65,536 registers in four parts, 2,048 threads, 32 CTAs, 100 KiB of shared memory
        // per SM, of which each CTA takes 1 KiB beside its own.
        let ledger = Ledger::new(&facts(4));
        for (registers, shared, threads, dynamic, expected) in [
            (16, 0, 256, 0, 8),
            (16, 0, 32, 0, 32),
            (64, 0, 256, 0, 4),
            (255, 0, 1024, 0, 1),
            (33, 0, 1024, 0, 1),
            (16, 48 * 1024, 64, 0, 2),
            (16, 1, 64, 49 * 1024 - 128, 2),
            (16, 1, 64, 49 * 1024, 1),
            // A part holds five warps of 2,816 registers, and its rest is lost.
            (88, 0, 32, 0, 20),
            (16, 0, 33, 0, 32),
        ] {
            let cta = Usage::of_cta(&facts(4), &kernel(registers, shared), threads, dynamic);
            assert_eq!(ledger.occupancy(cta), expected, "{registers} {shared} {threads} {dynamic}");
        }
    }

    #[test]
    fn streams_add_up_and_launches_of_one_do_not() {
        let mut ledger = Ledger::new(&facts(2));
        let cta = Usage::of_cta(&facts(2), &kernel(16, 0), 256, 0);
        let [a, b] = [1, 2].map(StreamId);
        let lane = |stream| Lane { application: ApplicationId(1), stream };
        let room =
            |ledger: &Ledger, stream| [0, 1].map(|sm| ledger.room(SmId(sm), lane(stream), cta));
        ledger.enter(lane(a), LaunchId(1), cta, vec![6, 8]);
        ledger.enter(lane(a), LaunchId(2), cta, vec![3, 0]);
        assert_eq!(room(&ledger, a), [8, 8]);
        assert_eq!(room(&ledger, b), [2, 0]);
        ledger.enter(lane(b), LaunchId(3), cta, vec![2, 0]);
        assert_eq!(room(&ledger, a), [6, 8]);
        ledger.leave(a, LaunchId(1)).unwrap();
        assert_eq!(room(&ledger, b), [5, 8]);
        ledger.set(a, LaunchId(2), SmId(0), 1).unwrap();
        assert_eq!(room(&ledger, b), [7, 8]);
        assert_eq!(ledger.leave(a, LaunchId(3)), Err(Bug::NotEntered(LaunchId(3))));
        ledger.leave(a, LaunchId(2)).unwrap();
        ledger.leave(b, LaunchId(3)).unwrap();
        assert!(ledger.is_empty());
    }

    #[test]
    fn launches_have_room_in_the_part_of_their_application() {
        let mut ledger = Ledger::new(&facts(1));
        let (a, b) = (ApplicationId(1), ApplicationId(2));
        let lane = |application, stream| Lane { application, stream: StreamId(stream) };
        let part = |ctas| SmPart::new(ctas, 8).unwrap();
        ledger.divide(SmId(0), Some(Holder::Two([(a, part(3)), (b, part(5))])));
        // Eight of these fill an SM.
        let cta = Usage::of_cta(&facts(1), &kernel(16, 0), 256, 0);
        let wide = Usage::of_cta(&facts(1), &kernel(16, 0), 1024, 0);
        let room = |ledger: &Ledger, lane, cta| ledger.room(SmId(0), lane, cta);
        assert_eq!(room(&ledger, lane(a, 1), cta), 3);
        assert_eq!(room(&ledger, lane(b, 9), cta), 5);
        assert_eq!(room(&ledger, lane(ApplicationId(3), 8), cta), 8, "it has no part here");
        assert_eq!([a, b].map(|id| room(&ledger, lane(id, 7), wide)), [0, 1]);
        assert_eq!(ledger.occupancy_of_part(part(3), wide), 0);
        ledger.enter(lane(a, 1), LaunchId(1), cta, vec![2]);
        assert_eq!(room(&ledger, lane(a, 1), cta), 3, "launches of a stream do not overlap");
        assert_eq!(room(&ledger, lane(a, 2), cta), 1);
        assert_eq!(room(&ledger, lane(b, 9), cta), 5);
        let running = BTreeSet::from([LaunchId(1)]);
        assert_eq!(ledger.room_beside(SmId(0), lane(a, 2), cta, &running), 1);
        assert_eq!(ledger.room_beside(SmId(0), lane(a, 2), cta, &BTreeSet::new()), 3);
        ledger.divide(SmId(0), Some(Holder::One(a)));
        assert_eq!(room(&ledger, lane(a, 2), cta), 6);
    }
}
