//! The state of one context on an SM. It leaves the SM and returns when contexts take turns.

use super::turns::Turns;
use super::{News, Resident, Sm};
use crate::exec::tcgen05::columns::Claims;
use crate::gpu::grid::Grid;
use crate::gpu::hardware::MOST_PARTS;
use partita_model::OperationId;
use std::collections::BTreeMap;

/// Resident CTAs with their registers, shared memory and times.
#[derive(Default)]
pub struct Context {
    slots: Vec<Option<Resident>>,
    generations: Vec<u32>,
    queue: Turns,
    threads: u32,
    registers: u32,
    shared: u64,
    parts: [u32; MOST_PARTS],
    carve_out: u64,
    ctas: u32,
    last_grid: Option<OperationId>,
    present: Vec<(OperationId, u32, u64)>,
    /// Columns of tensor memory stay with the CTAs that have them.
    claims: Claims,
}

impl Context {
    /// Whether it has no CTA.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ctas == 0
    }
}

impl Sm {
    /// Puts what `other` holds in the place of what the SM holds, and the other way round. Nothing
    /// is accounted.
    pub fn exchange(&mut self, other: &mut Context) {
        std::mem::swap(&mut self.slots, &mut other.slots);
        std::mem::swap(&mut self.generations, &mut other.generations);
        std::mem::swap(&mut self.queue, &mut other.queue);
        std::mem::swap(&mut self.threads, &mut other.threads);
        std::mem::swap(&mut self.registers, &mut other.registers);
        std::mem::swap(&mut self.shared, &mut other.shared);
        std::mem::swap(&mut self.parts, &mut other.parts);
        std::mem::swap(&mut self.carve_out, &mut other.carve_out);
        std::mem::swap(&mut self.ctas, &mut other.ctas);
        std::mem::swap(&mut self.last_grid, &mut other.last_grid);
        std::mem::swap(&mut self.present, &mut other.present);
        std::mem::swap(&mut self.claims, &mut other.claims);
    }

    /// Takes off what is here, at `time`. The CTAs go away as far as anybody sees.
    pub fn suspend(
        &mut self,
        time: u64,
        grids: &mut BTreeMap<OperationId, Grid>,
        news: &mut Vec<News>,
    ) -> Context {
        for resident in self.slots.iter_mut().flatten() {
            let (grid, cta) = (resident.operation, resident.cta.linear);
            news.push(News::Left { time, sm: self.id, grid, cta });
            if let Some(grid) = grids.get_mut(&grid) {
                let warps = u64::from(resident.footprint.threads / 32);
                grid.stays.warp_ps += time.saturating_sub(resident.since) * warps;
            }
            resident.since = u64::MAX;
        }
        for (grid, _, since) in &mut self.present {
            if let Some(grid) = grids.get_mut(grid) {
                grid.stays.sm_ps += time.saturating_sub(*since);
            }
            *since = u64::MAX;
        }
        let mut context = Context::default();
        self.exchange(&mut context);
        self.memory.forget();
        self.switch(time);
        context
    }

    /// Puts a context on the SM, which is empty; it goes on at `time`.
    pub fn resume(&mut self, mut context: Context, time: u64, news: &mut Vec<News>) {
        self.exchange(&mut context);
        for resident in self.slots.iter_mut().flatten() {
            resident.since = time;
            let (grid, cta) = (resident.operation, resident.cta.linear);
            news.push(News::Started { time, sm: self.id, grid, cta });
        }
        for (.., since) in &mut self.present {
            *since = time;
        }
        self.queue.put_off(time);
        self.switch(time);
    }
}
