//! What workers and tickets do with their control block.

use super::{FakeDevice, Grid, State};
use partita_model::control::{
    ABORT, ALLOWED, COMPLETED, DEPARTED, MAIN_CTAS, MAIN_GRID, NEXT, RETIRED, SLOT_BYTES,
    SLOT_LEFT, SLOT_REGISTERED, STALLED, TASK, TELEMETRY, TOTAL,
};
use partita_model::profile;

/// CTAs that share a bandwidth before they slow each other down.
pub(super) const SHARED_AT_ONCE: u64 = 48;

impl FakeDevice {
    /// The worker protocol.
    pub(super) fn step_worker(
        &mut self,
        i: usize,
        j: usize,
        state: State,
        block: u64,
        number: u32,
    ) -> Option<State> {
        let sm = self.grids[i].ctas[j].sm;
        let slot = block + TELEMETRY + u64::from(sm) * SLOT_BYTES;
        let window = self.grids[i].launch.access[0].start.0;
        let helper = number != MAIN_GRID;
        match state {
            State::Gone => None,
            State::Starting => {
                if self.get(block + ABORT, 4) != 0 || !self.bit(block + ALLOWED, sm) {
                    return self.leave(block, helper);
                }
                self.add(slot + SLOT_REGISTERED, 4, 1);
                self.register(sm, window);
                Some(State::Border)
            }
            State::Border => {
                let retired = self.get(block + RETIRED, 4) >> number & 1 == 1;
                if retired || self.get(block + ABORT, 4) != 0 || !self.bit(block + ALLOWED, sm) {
                    return self.unregister_and_leave(block, helper, sm, slot);
                }
                let empty = self.get(block + NEXT, 8) >= self.get(block + TOTAL, 8);
                if self.bit(block + STALLED, sm) && !empty {
                    return None;
                }
                let (task, total) = (self.get(block + TASK, 4), self.get(block + TOTAL, 8));
                let first = self.add(block + NEXT, 8, task);
                if first >= total {
                    return self.unregister_and_leave(block, helper, sm, slot);
                }
                if self.grids[i].traits.faults {
                    self.fault(i);
                    return None;
                }
                let count = task.min(total - first);
                Some(State::Busy { until: self.now + count * self.cta_nanos(i), first, count })
            }
            State::Busy { until, .. } if until > self.now => {
                let ends = self.grids[i].traits.spins && self.get(block + ABORT, 4) != 0;
                if ends { self.unregister_and_leave(block, true, sm, slot) } else { None }
            }
            State::Busy { first, count, .. } => {
                for cta in first..first + count {
                    assert!(
                        self.executed.entry(block).or_default().insert(cta),
                        "CTA {cta} ran twice"
                    );
                }
                self.add(block + COMPLETED, 8, count);
                self.count(i, count);
                if self.grids[i].launch.kernel.ends_with("-counting") {
                    self.count_itself(i, first, count, sm);
                }
                Some(State::Border)
            }
            State::Parked => {
                let (done, total) = (self.get(block + COMPLETED, 8), self.get(block + TOTAL, 8));
                if done == total || self.get(block + ABORT, 4) != 0 {
                    return Some(State::Gone);
                }
                let may = self.bit(block + ALLOWED, sm) && !self.bit(block + STALLED, sm);
                if may && self.get(block + NEXT, 8) < total {
                    self.add(slot + SLOT_REGISTERED, 4, 1);
                    self.register(sm, window);
                    return Some(State::Border);
                }
                None
            }
        }
    }

    /// The tickets' protocol.
    pub(super) fn step_ticket(
        &mut self,
        i: usize,
        j: usize,
        state: State,
        block: u64,
    ) -> Option<State> {
        let sm = self.grids[i].ctas[j].sm;
        let slot = block + TELEMETRY + u64::from(sm) * SLOT_BYTES;
        match state {
            State::Starting => {
                let may = self.get(block + ABORT, 4) == 0
                    && self.bit(block + ALLOWED, sm)
                    && !self.bit(block + STALLED, sm);
                if !may || self.get(block + NEXT, 8) >= self.get(block + TOTAL, 8) {
                    return Some(State::Gone);
                }
                self.add(slot + SLOT_REGISTERED, 4, 1);
                let window = self.grids[i].launch.access[0].start.0;
                self.register(sm, window);
                let first = self.add(block + NEXT, 8, 1);
                if first >= self.get(block + TOTAL, 8) {
                    return self.unregister_and_leave(block, true, sm, slot);
                }
                if self.grids[i].traits.faults {
                    self.fault(i);
                    return None;
                }
                Some(State::Busy { until: self.now + self.cta_nanos(i), first, count: 1 })
            }
            State::Busy { until, .. } if until > self.now => {
                let ends = self.grids[i].traits.spins && self.get(block + ABORT, 4) != 0;
                if ends { self.unregister_and_leave(block, true, sm, slot) } else { None }
            }
            State::Busy { first, .. } => {
                assert!(
                    self.executed.entry(block).or_default().insert(first),
                    "CTA {first} ran twice"
                );
                self.add(block + COMPLETED, 8, 1);
                self.count(i, 1);
                self.unregister_and_leave(block, true, sm, slot)
            }
            State::Border | State::Parked | State::Gone => None,
        }
    }

    fn count(&mut self, i: usize, ctas: u64) {
        let (operation, shares) = (self.grids[i].operation, self.grids[i].traits.shares);
        if let Some(counted) = &mut self.counted {
            let counters = counted.entry(operation).or_default();
            counters.warp_instructions += ctas * 10_000;
            counters.llc_accesses += ctas * if shares { 1_000 } else { 10 };
        }
    }

    /// What the counting form does: each CTA writes sectors of its own, past L1.
    fn count_itself(&mut self, i: usize, first: u64, ctas: u64, sm: u16) {
        let grid = &self.grids[i];
        let params = &grid.launch.params;
        let at = params.len() - 16;
        let block = u64::from_le_bytes(params[at..at + 8].try_into().unwrap());
        let sectors = if grid.traits.shares { 250 } else { 2 };
        self.add(block + profile::WARP_INSTRUCTIONS, 8, ctas * 1000);
        self.add(block + profile::THREAD_INSTRUCTIONS, 8, ctas * 32_000);
        self.add(block + profile::GLOBAL_SECTORS, 8, ctas * sectors);
        self.add(block + profile::PAST_SECTORS, 8, ctas * sectors);
        for sector in first * sectors..(first + ctas) * sectors {
            let place = self.add(block + profile::RECORDED, 8, 1);
            if place < self.get(block + profile::CAPACITY, 8) {
                let record = 2 | sector << 5 | u64::from(sm) << profile::RECORD_SM_SHIFT;
                let to = block + profile::RECORDS + 8 * place;
                self.span(to, 8).unwrap().copy_from_slice(&record.to_le_bytes());
            }
        }
    }

    /// What a CTA takes that starts now.
    pub(super) fn cta_nanos(&self, i: usize) -> u64 {
        let grid = &self.grids[i];
        if grid.traits.spins {
            return u64::MAX / 2;
        }
        if !grid.traits.shares {
            return grid.nanos;
        }
        let busy = |grid: &Grid| {
            grid.ctas.iter().filter(|cta| matches!(cta.state, State::Busy { .. })).count()
        };
        let busy: usize = self.grids.iter().filter(|grid| grid.traits.shares).map(busy).sum();
        grid.nanos * u64::try_from(busy + 1).unwrap().max(SHARED_AT_ONCE) / SHARED_AT_ONCE
    }

    fn unregister_and_leave(
        &mut self,
        block: u64,
        helper: bool,
        sm: u16,
        slot: u64,
    ) -> Option<State> {
        self.add(slot + SLOT_LEFT, 4, 1);
        self.registered[usize::from(sm)].1 -= 1;
        self.leave(block, helper)
    }

    fn leave(&mut self, block: u64, helper: bool) -> Option<State> {
        if helper {
            return Some(State::Gone);
        }
        // The last of the main grid departs once, however often it claims again.
        if self.get(block + DEPARTED, 4) == self.get(block + MAIN_CTAS, 4) {
            return Some(State::Parked);
        }
        let departed = self.add(block + DEPARTED, 4, 1) + 1;
        if departed < self.get(block + MAIN_CTAS, 4) {
            return Some(State::Gone);
        }
        Some(State::Parked)
    }

    fn register(&mut self, sm: u16, window: u64) {
        let application = self.applications[&window];
        let (owner, count) = &mut self.registered[usize::from(sm)];
        assert!(
            *count == 0 || *owner == application,
            "SM {sm}: workers of two applications at once"
        );
        *owner = application;
        *count += 1;
    }
}
