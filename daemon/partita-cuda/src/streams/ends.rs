//! The ends of operations.

use super::parts::SMALL;
use super::{COUNT_BYTES, Ended, Logical, Streams};
use crate::clock::Clock;
use crate::driver::Failure;
use partita_device::Outcome;
use partita_model::{Nanos, OperationId, StreamId};
use std::sync::Arc;

/// The most rounds of searching for ended operations. Only work that ends faster than the search
/// needs more.
const MOST_ROUNDS: u32 = 64;

impl Streams {
    /// Takes all operations that have ended. Repeats until a round finds none, so that whatever
    /// ended before a taken operation is taken too. After a sticky error the state of operations on
    /// the device is unknown.
    pub(crate) fn take_ended(
        &mut self,
        clock: &Clock,
        ended: &mut Vec<Ended>,
    ) -> Result<(), Failure> {
        for _ in 0..MOST_ROUNDS {
            let before = ended.len();
            self.look_around(clock, ended)?;
            if ended.len() == before {
                break;
            }
        }
        Ok(())
    }

    pub(super) fn look_around(
        &mut self,
        clock: &Clock,
        ended: &mut Vec<Ended>,
    ) -> Result<(), Failure> {
        let ids: Vec<StreamId> = self
            .streams
            .iter()
            .filter(|(_, stream)| !stream.flight.is_empty())
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            while let Some(flight) = self.streams.get(&id).and_then(|stream| stream.flight.front())
            {
                if !flight.event.is_reached()? {
                    break;
                }
                let Some(flight) = self.streams.get_mut(&id).and_then(Logical::end) else { break };
                let time = clock.time_of(&flight.event);
                let last = self.on_device.get(&flight.operation);
                if last.is_some_and(|last| Arc::ptr_eq(last, &flight.event)) {
                    self.on_device.remove(&flight.operation);
                }
                if let Some(staging) = flight.staging {
                    let small = staging.bytes() <= SMALL.0;
                    if small { self.small.push(staging) } else { self.large.push(staging) }
                }
                // A waiting thread may still hold the event.
                if Arc::strong_count(&flight.event) == 1 {
                    self.events.push(flight.event);
                }
                let (operation, outcome) = (flight.operation, flight.outcome);
                let count = flight.count.map(|place| {
                    let mut bytes = [0; COUNT_BYTES];
                    self.counts.read(place, &mut bytes);
                    self.free_counts.push(place);
                    u32::from_le_bytes(bytes)
                });
                if !flight.is_part {
                    ended.push(Ended { operation, time, outcome, kernel: flight.kernel, count });
                } else if outcome != Outcome::Complete {
                    self.fail_rest(id, operation, outcome, time, ended);
                }
            }
            self.release_lane(id);
            self.drop_if_done(id);
        }
        Ok(())
    }

    /// A part of an operation has failed, and its other parts are not begun.
    pub(super) fn fail_rest(
        &mut self,
        id: StreamId,
        operation: OperationId,
        outcome: Outcome,
        time: Nanos,
        ended: &mut Vec<Ended>,
    ) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if let Some(rest) = stream.flight.iter_mut().find(|rest| rest.operation == operation) {
            rest.outcome = outcome;
        } else if stream.queue.front().is_some_and(|head| head.operation == operation) {
            self.take_head(id);
            ended.push(Ended { operation, time, outcome, kernel: None, count: None });
        }
    }
}
