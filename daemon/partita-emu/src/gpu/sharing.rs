//! Time slicing and MPS: how a GPU shares itself between contexts where nobody assigns SMs.
//!
//! A context is a window: all grids of one session.
//!
//! Under *time slicing* one context has the whole GPU for
//! [`crate::spec::Spec::time_slice_nanoseconds`], or until it has nothing to run. Then its CTAs
//! leave the SMs, wherever they are, and the next context with work goes on where it was. A switch
//! takes the time in which registers and shared memory of all SMs travel to DRAM, once for the
//! context that leaves and once for the context that comes, where these have CTAs. L1 is empty
//! after a switch; the LLC is not. Copies do not take turns.
//!
//! Under *MPS* the CTAs of all contexts go where there is room. With a thread percentage a context
//! has that part of the SMs, counted on from the end of the context before it. GPUs do not say
//! which SMs they take.

use super::sm::News;
use super::sm::context::Context;
use super::{EmulatedGpu, Timing};
use partita_model::{OperationId, Sharing, SmId, SmSet, WindowId};
use std::collections::BTreeMap;

/// The context that has the GPU, and the suspended contexts.
#[derive(Default)]
pub struct Contexts {
    /// Contexts in order of their first grid. A freed place is used again.
    places: Vec<Option<WindowId>>,
    active: Option<WindowId>,
    /// The time since which the active context has the GPU, after the switch.
    since: u64,
    /// No grid runs before this time.
    ready_at: u64,
    /// For each suspended context, the contents of each SM.
    suspended: BTreeMap<WindowId, Vec<Context>>,
}

impl Contexts {
    /// The context is no more.
    pub fn forget(&mut self, window: WindowId) {
        for place in &mut self.places {
            if *place == Some(window) {
                *place = None;
            }
        }
        self.suspended.remove(&window);
        if self.active == Some(window) {
            self.active = None;
        }
    }
}

impl EmulatedGpu {
    fn slices(&self) -> bool {
        self.options.sharing == Sharing::TimeSlice
    }

    /// The SMs that a context's grids may use.
    pub(super) fn sms_of_context(&mut self, window: WindowId) -> SmSet {
        let all = SmSet::range(0, self.spec.sms);
        let Some(percentage) =
            self.options.thread_percentage.filter(|_| self.options.sharing == Sharing::Mps)
        else {
            return all;
        };
        let places = &mut self.contexts.places;
        let index = places.iter().position(|place| *place == Some(window)).unwrap_or_else(|| {
            let free = places.iter().position(Option::is_none).unwrap_or(places.len());
            if free == places.len() {
                places.push(None);
            }
            places[free] = Some(window);
            free
        });
        let sms = usize::from(self.spec.sms);
        let count = (sms * usize::from(percentage)).div_ceil(100).clamp(1, sms);
        (0..count).map(|sm| SmId(((index * count + sm) % sms) as u16)).collect()
    }

    /// Grids that have CTAs left and may place them now.
    pub(super) fn order_of_context(&self) -> Vec<OperationId> {
        let mut order = self.order.clone();
        if self.slices() {
            order.retain(|id| self.grids.get(id).map(|grid| grid.window) == self.contexts.active);
        }
        order
    }

    /// Whether CTAs may be placed at the present time.
    pub(super) fn may_place(&self) -> bool {
        !self.slices() || self.now >= self.contexts.ready_at
    }

    /// Contexts with grids that could run, in order.
    fn contenders(&self) -> Vec<WindowId> {
        let started = self.grids.values().filter(|grid| grid.start <= self.now);
        let mut windows: Vec<WindowId> = started.map(|grid| grid.window).collect();
        windows.sort_unstable();
        windows.dedup();
        windows
    }

    /// The end of the slice, or never where no other context waits for the GPU.
    pub(super) fn slice_end(&self) -> u64 {
        if !self.slices() || self.contenders().len() < 2 {
            return u64::MAX;
        }
        (self.contexts.since + self.spec.time_slice_nanoseconds * 1000).max(self.now + 1)
    }

    /// The time of the next switch between contexts.
    pub(super) fn next_switch(&self) -> Option<u64> {
        if !self.slices() {
            return None;
        }
        let ready = Some(self.contexts.ready_at).filter(|&ready| ready > self.now);
        let end = Some(self.slice_end()).filter(|&end| end != u64::MAX);
        ready.into_iter().chain(end).min()
    }

    /// Gives the GPU to the next context when the slice is over.
    pub(super) fn take_turns(&mut self, news: &mut Vec<News>) {
        if !self.slices() || self.now < self.contexts.ready_at {
            return;
        }
        let contenders = self.contenders();
        let active = self.contexts.active;
        let runs = active.is_some_and(|window| contenders.contains(&window));
        let over = self.now >= self.contexts.since + self.spec.time_slice_nanoseconds * 1000;
        if contenders.is_empty() || runs && (!over || contenders.len() < 2) {
            return;
        }
        let after = |window: &&WindowId| active.is_none_or(|active| **window > active);
        let next = contenders.iter().find(after).or(contenders.first()).copied();
        let Some(next) = next.filter(|next| active != Some(*next)) else { return };
        let now = self.now;
        let mut moved = 0;
        if let Some(active) = active {
            let suspend = |sm: &mut super::Sm| sm.suspend(now, &mut self.grids, news);
            let held: Vec<Context> = self.sms.iter_mut().map(suspend).collect();
            if !held.iter().all(Context::is_empty) {
                self.contexts.suspended.insert(active, held);
                moved += 1;
            }
        }
        let held = self.contexts.suspended.remove(&next);
        moved += u64::from(held.is_some());
        let ready_at = now + moved * self.switch_ps();
        for (sm, context) in self.sms.iter_mut().zip(held.into_iter().flatten()) {
            sm.resume(context, ready_at, news);
        }
        self.contexts.active = Some(next);
        self.contexts.since = ready_at;
        self.contexts.ready_at = ready_at;
    }

    /// The time in which the state of all SMs moves to DRAM or back.
    fn switch_ps(&self) -> u64 {
        if self.options.timing == Timing::Off {
            return 0;
        }
        let spec = &self.spec;
        let per_sm = u64::from(spec.registers_per_sm) * 4 + spec.shared_per_sm_bytes;
        let bytes = per_sm * u64::from(spec.sms);
        (bytes as f64 * 1000.0 / (spec.dram_gigabytes_per_second * spec.dram_efficiency)) as u64
    }

    /// Takes a grid's CTAs off the GPU, in every context.
    pub(super) fn evict(&mut self, operation: OperationId, time: u64, news: &mut Vec<News>) {
        for sm in &mut self.sms {
            sm.evict(operation, time, news, &mut self.grids);
        }
        for held in self.contexts.suspended.values_mut() {
            // The host has seen these CTAs leave already.
            let mut unseen = Vec::new();
            for (sm, context) in self.sms.iter_mut().zip(held) {
                sm.exchange(context);
                sm.evict(operation, time, &mut unseen, &mut self.grids);
                sm.exchange(context);
            }
        }
    }
}
