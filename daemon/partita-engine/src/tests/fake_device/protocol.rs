//! What workers and tickets do with their control block.

use super::{FakeDevice, Grid, State};
use partita_model::control::{
    ABORT, COMPLETED, DEPARTED, FIRST, Gate, HELPED, IDLE, MAIN_CTAS, MAIN_GRID, NEXT, QUOTA,
    RETIRED, SHIFT, SLOT_BYTES, SLOT_GATE, SLOT_LEFT, SLOT_REGISTERED, SLOT_RETURNED, SLOTS,
    STATIC, STRIDE, TOTAL,
};
use partita_model::profile;

/// CTAs that share a bandwidth before they slow each other down.
pub(super) const SHARED_AT_ONCE: u64 = 48;

/// Tasks below that make a worker claim more.
const SHORT_TASK_NANOS: u64 = 2_000;

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
        let slot = block + SLOTS + u64::from(sm) * SLOT_BYTES;
        let helper = number != MAIN_GRID;
        match state {
            State::Gone => None,
            State::Starting => self.start_worker(i, j, block, helper),
            State::Border => {
                let retired = self.get(block + RETIRED, 4) >> number & 1 == 1;
                let gate = self.get(slot + SLOT_GATE, 4);
                if retired || gate & 3 == 0 {
                    return self.unregister_and_leave((i, j), block, true);
                }
                let (next, total) = (self.get(block + NEXT, 8), self.get(block + TOTAL, 8));
                let (helped, next) = (next & HELPED != 0, next & !HELPED);
                if next >= total {
                    let others = helper || helped || self.grids[i].ctas[j].stays;
                    let looks = gate & 1 == 1 && others && self.has_surplus(block);
                    return match looks.then(|| self.take_by_place(block)).flatten() {
                        Some(cta) => self.run((i, sm), cta, 1),
                        None => self.unregister_and_leave((i, j), block, helped),
                    };
                }
                if gate & 3 == 2 {
                    return None;
                }
                let most = (total - next) >> self.get(block + SHIFT, 4);
                // Workers claim more only behind tasks that are short by their clock.
                let is_short = self.cta_nanos(i, sm) < SHORT_TASK_NANOS;
                let task = if is_short { most.clamp(1, gate >> 8 & 0xff) } else { 1 };
                let first = self.add(block + NEXT, 8, task) & !HELPED;
                self.run((i, sm), first, task.min(total - first))
            }
            State::Busy { until, .. } if until > self.now => {
                let ends =
                    self.grids[i].traits.spins_from.is_some() && self.get(block + ABORT, 4) != 0;
                if ends { self.unregister_and_leave((i, j), block, false) } else { None }
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
                let gate = self.get(slot + SLOT_GATE, 4) & 3;
                let open = gate == 1 || gate == 3 && !self.is_full(block, slot);
                if open && self.get(block + NEXT, 8) & !HELPED < total {
                    return self.start_worker(i, j, block, helper);
                }
                None
            }
        }
    }

    /// A worker registers, and learns of its permission and its first task.
    fn start_worker(&mut self, i: usize, j: usize, block: u64, helper: bool) -> Option<State> {
        let sm = self.grids[i].ctas[j].sm;
        let window = self.grids[i].launch.access[0].start.0;
        let slot = block + SLOTS + u64::from(sm) * SLOT_BYTES;
        if helper {
            let next = self.get(block + NEXT, 8);
            self.put(block + NEXT, 8, next | HELPED);
        }
        let gate = self.get(slot + SLOT_GATE, 4);
        // On a foreign SM a worker is there for a moment only, between two looks of the engine.
        let is_foreign = gate & 3 == 0 || gate & 3 == 3 && self.is_full(block, slot);
        let place = match is_foreign {
            true => u64::MAX,
            false => self.add(slot + SLOT_REGISTERED, 4, 1),
        };
        let by_place = u64::from(Gate::by_place_in(u32::try_from(gate).unwrap()));
        if !is_foreign {
            self.register(sm, window);
        } else if self.get(block + MAIN_CTAS, 4) == 0 {
            // The engine counts them where no CTA has come by a main grid.
            self.add(slot + SLOT_REGISTERED, 4, 1);
            self.add(slot + SLOT_LEFT, 4, 1);
        }
        if gate & 1 == 1 && place < by_place && !self.grids[i].traits.faults {
            let first = self.task_by_place(block, gate, place);
            return self.run((i, sm), first, 1);
        }
        if place < by_place {
            let returned = self.get(slot + SLOT_RETURNED, 4);
            self.put(slot + SLOT_RETURNED, 4, returned | 1 << place);
        }
        if !helper && !self.grids[i].ctas[j].stays {
            let (idle, spare) = (self.add(block + IDLE, 4, 1), self.spare(block));
            if idle >= spare {
                let next = self.get(block + NEXT, 8);
                self.put(block + NEXT, 8, next | HELPED);
                let total = self.get(block + TOTAL, 8);
                self.grids[i].ctas[j].stays = idle == spare && next & !HELPED >= total;
            }
        }
        if is_foreign {
            return self.leave((i, j), block, true);
        }
        Some(State::Border)
    }

    /// Whether as many of the launch's CTAs are on an SM as its part of it may have.
    fn is_full(&mut self, block: u64, slot: u64) -> bool {
        let (came, left) = (self.get(slot + SLOT_REGISTERED, 4), self.get(slot + SLOT_LEFT, 4));
        came - left >= self.get(block + QUOTA, 4)
    }

    /// The CTA of the `place`-th worker of an SM with this gate.
    fn task_by_place(&mut self, block: u64, gate: u64, place: u64) -> u64 {
        self.get(block + FIRST, 8) + (gate >> 16) + place * self.get(block + STRIDE, 4)
    }

    /// CTAs of the main grid that need no task by place.
    fn spare(&mut self, block: u64) -> u64 {
        self.get(block + MAIN_CTAS, 4) - self.get(block + STATIC, 4)
    }

    fn has_surplus(&mut self, block: u64) -> bool {
        self.get(block + IDLE, 4) > self.spare(block)
    }

    /// A task by place that nobody has.
    fn take_by_place(&mut self, block: u64) -> Option<u64> {
        (0..u64::from(self.facts.sm_count)).find_map(|sm| {
            let slot = block + SLOTS + sm * SLOT_BYTES;
            let gate = self.get(slot + SLOT_GATE, 4);
            let by_place = u64::from(Gate::by_place_in(u32::try_from(gate).unwrap()));
            let came = self.get(slot + SLOT_REGISTERED, 4);
            let returned = self.get(slot + SLOT_RETURNED, 4);
            let place = if came < by_place {
                self.add(slot + SLOT_LEFT, 4, 1);
                self.add(slot + SLOT_REGISTERED, 4, 1)
            } else if returned != 0 {
                self.put(slot + SLOT_RETURNED, 4, returned & (returned - 1));
                returned.trailing_zeros().into()
            } else {
                return None;
            };
            Some(self.task_by_place(block, gate, place))
        })
    }

    fn run(&mut self, (i, sm): (usize, u16), first: u64, count: u64) -> Option<State> {
        if self.grids[i].traits.faults {
            self.fault(i);
            return None;
        }
        Some(State::Busy { until: self.now + count * self.cta_nanos(i, sm), first, count })
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
        let slot = block + SLOTS + u64::from(sm) * SLOT_BYTES;
        match state {
            State::Starting => {
                let gate = self.get(slot + SLOT_GATE, 4) & 3;
                let open = gate == 1 || gate == 3 && !self.is_full(block, slot);
                if !open || self.get(block + NEXT, 8) >= self.get(block + TOTAL, 8) {
                    return Some(State::Gone);
                }
                self.add(slot + SLOT_REGISTERED, 4, 1);
                let window = self.grids[i].launch.access[0].start.0;
                self.register(sm, window);
                let first = self.add(block + NEXT, 8, 1);
                if first >= self.get(block + TOTAL, 8) {
                    return self.ticket_leaves(i, sm, slot);
                }
                if self.grids[i].traits.faults {
                    // It has registered.
                    self.grids[i].ctas[j].state = State::Border;
                    self.fault(i);
                    return None;
                }
                Some(State::Busy { until: self.now + self.cta_nanos(i, sm), first, count: 1 })
            }
            State::Busy { until, .. } if until > self.now => {
                let ends =
                    self.grids[i].traits.spins_from.is_some() && self.get(block + ABORT, 4) != 0;
                if ends { self.unregister_and_leave((i, j), block, false) } else { None }
            }
            State::Busy { first, .. } => {
                assert!(
                    self.executed.entry(block).or_default().insert(first),
                    "CTA {first} ran twice"
                );
                self.add(block + COMPLETED, 8, 1);
                self.count(i, 1);
                self.ticket_leaves(i, sm, slot)
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

    /// What a CTA takes that starts now on an SM.
    pub(super) fn cta_nanos(&self, i: usize, sm: u16) -> u64 {
        let grid = &self.grids[i];
        if grid.traits.spins_from.is_some_and(|first| sm >= first) {
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
        cta: (usize, usize),
        block: u64,
        others_may_work: bool,
    ) -> Option<State> {
        let sm = self.grids[cta.0].ctas[cta.1].sm;
        self.add(block + SLOTS + u64::from(sm) * SLOT_BYTES + SLOT_LEFT, 4, 1);
        self.unregister(sm, cta.0);
        self.leave(cta, block, others_may_work)
    }

    fn ticket_leaves(&mut self, i: usize, sm: u16, slot: u64) -> Option<State> {
        self.add(slot + SLOT_LEFT, 4, 1);
        self.unregister(sm, i);
        Some(State::Gone)
    }

    fn leave(
        &mut self,
        (i, j): (usize, usize),
        block: u64,
        others_may_work: bool,
    ) -> Option<State> {
        let helper = self.grids[i].block.is_some_and(|(_, number)| number != MAIN_GRID);
        if helper {
            return Some(State::Gone);
        }
        if self.grids[i].ctas[j].stays {
            return Some(State::Parked);
        }
        if !others_may_work || self.add(block + DEPARTED, 4, 1) + 1 < self.get(block + MAIN_CTAS, 4)
        {
            return Some(State::Gone);
        }
        self.grids[i].ctas[j].stays = true;
        Some(State::Parked)
    }

    fn register(&mut self, sm: u16, window: u64) {
        let application = self.applications[&window];
        let here = &mut self.registered[usize::from(sm)];
        *here.entry(application).or_default() += 1;
        assert!(self.is_shared || here.len() == 1, "SM {sm}: workers of two applications at once");
    }
}
