//! The driver's streams that carry work, and which stream has which.

use super::{Rest, Step, Streams};
use crate::driver::{Failure, Green, Stream};
use crate::news::{News, Waiter};
use crate::tasks::Task;
use partita_device::Work;
use partita_model::{SmSet, StreamId};
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

/// The driver's streams that carry work. Signals, upkeep and loading have three more, 32 in total.
pub(super) const LANES: usize = 29;

/// Lanes that streams with waits for other streams may not take.
pub(super) const RESERVED: usize = 8;

/// A stream of the driver.
pub(super) struct Lane {
    pub(super) stream: Stream,
    pub(super) waiter: Waiter,
    /// The SMs of the lane's green context; empty for the primary context.
    pub(super) on: SmSet,
}

/// A green context, and its free lanes.
pub(super) struct GreenLanes {
    green: Green,
    lanes: Vec<usize>,
    free: Vec<usize>,
    /// The turn in which the context was last used.
    used: u64,
}

impl Streams {
    /// Whether a green context with these SMs exists.
    pub(crate) fn has_context(&self, sms: &SmSet) -> bool {
        self.contexts.contains_key(sms)
    }

    /// The number of green contexts.
    pub(crate) fn contexts(&self) -> usize {
        self.contexts.len()
    }

    /// Takes a green context's streams as lanes.
    pub(crate) fn add_context(
        &mut self,
        sms: SmSet,
        mut green: Green,
        news: &Arc<News>,
    ) -> io::Result<()> {
        let mut lanes = Vec::new();
        for stream in std::mem::take(&mut green.streams) {
            let waiter = Waiter::start(&self.context, news)?;
            self.lanes.insert(self.next_lane, Lane { stream, waiter, on: sms });
            lanes.push(self.next_lane);
            self.next_lane += 1;
        }
        self.turns += 1;
        self.contexts
            .insert(sms, GreenLanes { green, free: lanes.clone(), lanes, used: self.turns });
        Ok(())
    }

    /// Removes the least recently used green context, among those without operations or waiting
    /// streams.
    pub(crate) fn take_idle_context(&mut self) -> Option<Green> {
        let wanted: BTreeSet<SmSet> = self
            .streams
            .values()
            .flat_map(|stream| &stream.queue)
            .filter_map(|queued| match &queued.task {
                Task::Work(Work::LaunchOn { sms, .. }) => Some(*sms),
                _ => None,
            })
            .collect();
        let idle = self
            .contexts
            .iter()
            .filter(|(sms, lanes)| lanes.free.len() == lanes.lanes.len() && !wanted.contains(sms));
        let sms = *idle.min_by_key(|(_, lanes)| lanes.used)?.0;
        let GreenLanes { mut green, lanes, .. } = self.contexts.remove(&sms)?;
        let lanes = lanes.into_iter().filter_map(|lane| self.lanes.remove(&lane));
        green.streams.extend(lanes.map(|lane| lane.stream));
        Some(green)
    }

    /// Releases the lane of a stream that has nothing on the device.
    pub(super) fn release_lane(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if stream.flight.is_empty()
            && let Some(lane) = stream.lane.take()
        {
            stream.submitted = 0;
            match self.lanes.get(&lane).and_then(|lane| self.contexts.get_mut(&lane.on)) {
                Some(context) => context.free.push(lane),
                None => self.free.push(lane),
            }
        }
    }

    /// Whether the stream's lane, if any, suits its next operation. A grid that is kept to SMs
    /// needs their context; other grids and waits for other streams need the primary context. Other
    /// operations run in either. A stream changes lanes only when all its operations on the device
    /// have ended. So nothing in a green context ever waits for another stream.
    pub(super) fn moves(&mut self, id: StreamId) -> Step {
        let Some(stream) = self.streams.get(&id) else { return Step::Held };
        let Some(lane) = stream.lane.and_then(|lane| self.lanes.get(&lane)) else {
            return Step::Gone;
        };
        let stays = match stream.queue.front().map(|head| &head.task) {
            Some(Task::Work(Work::LaunchOn { sms, .. })) => lane.on == *sms,
            Some(Task::Work(Work::Launch(_) | Work::Wait { .. } | Work::WaitValue { .. })) => {
                lane.on.is_empty()
            }
            _ => true,
        };
        if stays {
            return Step::Gone;
        }
        if !stream.flight.is_empty() {
            return Step::Held;
        }
        self.release_lane(id);
        Step::Gone
    }

    /// The stream's lane. A stream without a lane joins the queue for one.
    pub(super) fn lane_of(&mut self, id: StreamId) -> Option<usize> {
        let stream = self.streams.get_mut(&id)?;
        if stream.lane.is_none() {
            stream.lane = match stream.queue.front().map(|head| &head.task) {
                Some(Task::Work(Work::LaunchOn { sms, .. })) => {
                    self.contexts.get_mut(sms).and_then(|context| {
                        self.turns += 1;
                        context.used = self.turns;
                        context.free.pop()
                    })
                }
                _ => self.free.pop(),
            };
            stream.submitted = 0;
            // The lane's last owner may have been another stream, so this stream's earlier waits do
            // not count.
            stream.seen = [0; 2];
        }
        if stream.lane.is_none() && !self.starving.contains(&id) {
            self.starving.push_back(id);
        }
        stream.lane
    }

    /// Whether the stream's next operation could not begin at once on a lane that shares its
    /// connection. There it would hold up other lanes, and even signals.
    pub(super) fn waits_for_connection(
        &mut self,
        id: StreamId,
        lane: usize,
        rest: &mut Rest<'_>,
    ) -> Result<bool, Failure> {
        let Some(stream) = self.streams.get(&id) else { return Ok(false) };
        if self.lanes.get(&lane).is_none_or(|lane| lane.stream.has_connection()) {
            return Ok(false);
        }
        let zeroed = stream.queue.front().and_then(|head| (rest.zeroed)(&head.task));
        for (_, event) in [rest.signals.barrier()?, zeroed].into_iter().flatten() {
            if !event.is_reached()? {
                self.awaits_event = true;
                return Ok(true);
            }
        }
        Ok(!stream.flight.is_empty())
    }

    /// Makes the lane wait for earlier pokes and zeroing.
    pub(super) fn see(
        &mut self,
        id: StreamId,
        lane: usize,
        rest: &mut Rest<'_>,
    ) -> Result<(), Failure> {
        let Some(stream) = self.streams.get_mut(&id) else { return Ok(()) };
        let zeroed = stream.queue.front().and_then(|head| (rest.zeroed)(&head.task));
        let barriers = [rest.signals.barrier()?, zeroed];
        for (seen, barrier) in stream.seen.iter_mut().zip(barriers) {
            if let Some((number, event)) = barrier
                && number > *seen
            {
                self.lanes.get(&lane).map_or(Ok(()), |lane| lane.stream.wait_event(&event))?;
                *seen = number;
            }
        }
        Ok(())
    }

    /// Makes threads wait for the next event of each lane.
    pub(crate) fn arm(&self) {
        for stream in self.streams.values() {
            let lane = stream.lane.and_then(|lane| self.lanes.get(&lane));
            if let (Some(lane), Some(flight)) = (lane, stream.flight.front()) {
                lane.waiter.arm(&flight.event);
            }
        }
    }
}
