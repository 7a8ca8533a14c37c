//! The block scheduler, and CTAs of kernels in their original form.

use super::{Cta, FakeDevice, STEP, State};
use partita_device::{Fault, FaultKind, Outcome, ThreadPosition};
use partita_model::control::ABORT;
use partita_model::{DeviceAddress, Dim3, ResidencyKind, SmId};

impl FakeDevice {
    /// Places CTAs: grids in order of their start, each on the SM with most room; the first that
    /// finds none blocks all behind it.
    fn place(&mut self) {
        if self.grids.iter().all(|grid| u128::from(grid.next_cta) == grid.launch.grid.count()) {
            return;
        }
        let mut used = vec![(0_u32, 0_u32); self.facts.sm_count.into()];
        for grid in &self.grids {
            let threads = u32::try_from(grid.launch.block.count()).unwrap();
            for cta in &grid.ctas {
                let (slots, sum) = &mut used[usize::from(cta.sm)];
                (*slots, *sum) = (*slots + 1, *sum + threads);
            }
        }
        for i in 0..self.grids.len() {
            let threads = u32::try_from(self.grids[i].launch.block.count()).unwrap();
            while u128::from(self.grids[i].next_cta) < self.grids[i].launch.grid.count() {
                let sms = self.grids[i].sms;
                let free = |sm: u16| {
                    if sms.is_some_and(|sms| !sms.contains(SmId(sm))) {
                        return None;
                    }
                    let (slots, sum) = used[usize::from(sm)];
                    let fits = slots < self.facts.ctas_per_sm
                        && sum + threads <= self.facts.threads_per_sm;
                    fits.then_some((self.facts.threads_per_sm - sum, std::cmp::Reverse(sm)))
                };
                let found = (0..self.facts.sm_count).filter_map(free).max();
                let Some((_, std::cmp::Reverse(sm))) = found else {
                    // Grids of other contexts go past one that finds no room on its own SMs.
                    match sms {
                        Some(_) => break,
                        None => return,
                    }
                };
                if sms.is_some() {
                    self.assert_own(i, sm);
                }
                let (slots, sum) = &mut used[usize::from(sm)];
                (*slots, *sum) = (*slots + 1, *sum + threads);
                let grid = &mut self.grids[i];
                let index = grid.next_cta;
                grid.next_cta += 1;
                grid.ctas.push(Cta { index, sm, state: State::Starting, stays: false });
                let operation = grid.operation;
                self.residency(operation, index, sm, ResidencyKind::Start);
            }
        }
    }

    /// Nobody else's workers are where a grid was kept to.
    fn assert_own(&self, i: usize, sm: u16) {
        let window = self.grids[i].launch.access[0].start.0;
        let own = self.applications[&window];
        let others = self.registered[usize::from(sm)].keys().filter(|id| **id != own);
        assert_eq!(others.count(), 0, "machine code among workers on SM {sm}");
    }

    fn step_ctas(&mut self) {
        for i in 0..self.grids.len() {
            for j in 0..self.grids[i].ctas.len() {
                self.step_cta(i, j);
            }
        }
        for grid in &mut self.grids {
            grid.ctas.retain(|cta| cta.state != State::Gone);
        }
        let ended: Vec<usize> = (0..self.grids.len())
            .filter(|&i| {
                let grid = &self.grids[i];
                let all = !grid.cancelled && u128::from(grid.next_cta) == grid.launch.grid.count();
                all && grid.ctas.is_empty()
            })
            .collect();
        for i in ended.into_iter().rev() {
            let grid = self.grids.remove(i);
            self.pop(grid.stream);
            self.done(grid.operation, Outcome::Complete);
        }
    }

    fn step_cta(&mut self, i: usize, j: usize) {
        let state = self.grids[i].ctas[j].state;
        if state == State::Gone {
            return;
        }
        let next = match self.grids[i].block {
            None => self.step_original((i, j), state),
            Some((block, _)) if self.grids[i].traits.is_ticket => {
                self.step_ticket(i, j, state, block.0)
            }
            Some((block, number)) => self.step_worker(i, j, state, block.0, number),
        };
        let Some(next) = next else { return };
        let grid = &mut self.grids[i];
        grid.ctas[j].state = next;
        if next == State::Gone {
            let (operation, index, sm) = (grid.operation, grid.ctas[j].index, grid.ctas[j].sm);
            self.residency(operation, index, sm, ResidencyKind::Exit);
        }
    }

    fn step_original(&mut self, (i, j): (usize, usize), state: State) -> Option<State> {
        match state {
            State::Starting if self.grids[i].traits.faults => {
                self.fault(i);
                None
            }
            State::Starting => Some(State::Busy {
                until: self.now + self.cta_nanos(i, self.grids[i].ctas[j].sm),
                first: 0,
                count: 1,
            }),
            State::Busy { until, .. } if until > self.now => {
                let aborted =
                    self.grids[i].abort.is_some_and(|block| self.get(block + ABORT, 4) != 0);
                aborted.then_some(State::Gone)
            }
            _ => Some(State::Gone),
        }
    }

    pub(super) fn fault(&mut self, i: usize) {
        let fault = Fault {
            kind: FaultKind::IllegalAddress,
            kernel: self.grids[i].launch.kernel.to_string(),
            position: Some(ThreadPosition { cta: Dim3::new(1, 0, 0), thread: Dim3::new(3, 0, 0) }),
            line: Some(2),
            address: Some(DeviceAddress(0xdead_0000)),
            detail: String::new(),
            assertion: None,
            values: vec![("%x".to_owned(), 41), ("%y".to_owned(), 5), ("%z".to_owned(), 0)],
        };
        self.end_grid(i, Outcome::Fault(Box::new(fault)));
    }

    /// Takes a grid away with all its CTAs.
    pub(super) fn end_grid(&mut self, i: usize, outcome: Outcome) {
        let block = self.grids[i].block;
        let gone: Vec<(u64, u16, State)> = self.grids[i]
            .ctas
            .iter_mut()
            .map(|cta| (cta.index, cta.sm, std::mem::replace(&mut cta.state, State::Gone)))
            .filter(|(_, _, state)| *state != State::Gone)
            .collect();
        let operation = self.grids[i].operation;
        for (index, sm, state) in gone {
            if block.is_some() && matches!(state, State::Border | State::Busy { .. }) {
                self.unregister(sm, i);
            }
            self.residency(operation, index, sm, ResidencyKind::Exit);
        }
        let grid = &mut self.grids[i];
        grid.next_cta = u64::try_from(grid.launch.grid.count()).unwrap();
        grid.cancelled = true;
        let stream = grid.stream;
        self.pop(stream);
        self.done(operation, outcome);
    }

    pub(super) fn advance(&mut self) {
        self.now += STEP;
        self.start_heads();
        self.place();
        self.step_ctas();
        self.grids.retain(|grid| !grid.cancelled);
    }
}
