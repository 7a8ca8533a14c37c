//! The host's access to device memory beside all streams, while kernels run: in two ways, by the
//! place of the memory.
//!
//! `partita bench gpu --probe` measures which way is faster on a GPU, and its cost to the kernels
//! that poll.

use crate::driver::{Context, Event, Failure, Pinned, Place, Stream};
use crate::looks::Looks;
use std::sync::Arc;

/// Bytes of page-locked memory for pokes in flight.
const RING_BYTES: usize = 1 << 20;
/// Bytes of page-locked memory for peeks.
const PEEK_BYTES: usize = 256 << 10;
/// Pokes start at multiples of this many bytes, for the copy engine.
const ALIGNMENT: usize = 64;

/// Access to memory that kernels poll: by the host's stores and loads in host memory that is mapped
/// into the window, and by copies in other memory. Copies have their own stream, which has the
/// highest priority.
pub(crate) struct Signals {
    /// Where memory for signals lies.
    place: Place,
    context: Arc<Context>,
    stream: Stream,
    ring: Pinned,
    /// The slot of the next poke in the ring.
    next: usize,
    peeked: Pinned,
    looks: Looks,
    number: u64,
    last: Option<Arc<Event>>,
    /// Pokes since the last barrier.
    dirty: bool,
}

impl Signals {
    pub(crate) fn new(context: &Arc<Context>, place: Place) -> Result<Self, Failure> {
        Ok(Signals {
            place,
            context: Arc::clone(context),
            stream: Stream::new(context, context.greatest_priority()?)?,
            ring: Pinned::new(context, RING_BYTES)?,
            next: 0,
            peeked: Pinned::new(context, PEEK_BYTES)?,
            looks: Looks::new(context)?,
            number: 0,
            last: None,
            dirty: false,
        })
    }

    /// The place of memory for signals.
    pub(crate) fn place(&self) -> Place {
        self.place
    }

    /// Reads mapped memory at a place.
    pub(crate) fn peek(
        &mut self,
        from: Place,
        address: u64,
        into: &mut [u8],
    ) -> Result<(), Failure> {
        if from == Place::Host {
            self.context.read_mapped(address, into);
            return Ok(());
        }
        let mut at = address;
        for part in into.chunks_mut(PEEK_BYTES) {
            self.stream.copy_to_host(&self.peeked, 0, at, part.len())?;
            self.stream.synchronize()?;
            self.peeked.read(0, part);
            at += part.len() as u64;
        }
        Ok(())
    }

    /// As [`Signals::peek`], without a wait. Whether `into` was filled; a later call may succeed.
    pub(crate) fn look(
        &mut self,
        from: Place,
        address: u64,
        into: &mut [u8],
    ) -> Result<bool, Failure> {
        if from == Place::Device && Looks::has_room(into.len()) {
            return self.looks.look(&self.stream, address, into);
        }
        self.peek(from, address, into).map(|()| true)
    }

    /// Memory that was looked at is another's now.
    pub(crate) fn outdate(&mut self, address: u64, bytes: u64) {
        self.looks.outdate(address, bytes);
    }

    /// Writes mapped memory at a place. Naturally aligned words are never torn.
    pub(crate) fn poke(&mut self, to: Place, address: u64, bytes: &[u8]) -> Result<(), Failure> {
        if to == Place::Host {
            self.context.write_mapped(address, bytes);
            return Ok(());
        }
        self.looks.outdate(address, bytes.len() as u64);
        let mut at = address;
        for part in bytes.chunks(RING_BYTES) {
            if self.next + part.len() > RING_BYTES {
                // Afterwards all earlier pokes have been copied.
                self.stream.synchronize()?;
                self.next = 0;
            }
            self.ring.write(self.next, part);
            self.stream.copy_to_device(at, &self.ring, self.next, part.len())?;
            self.next = (self.next + part.len()).next_multiple_of(ALIGNMENT);
            at += part.len() as u64;
        }
        self.dirty = true;
        Ok(())
    }

    /// Makes later peeks and pokes of device memory wait for an event.
    pub(crate) fn wait_for(&mut self, event: &Event) -> Result<(), Failure> {
        self.stream.wait_event(event)
    }

    /// The event after which a stream sees every poke so far, with an increasing number. `None`
    /// where streams see pokes without waiting.
    pub(crate) fn barrier(&mut self) -> Result<Option<(u64, Arc<Event>)>, Failure> {
        if self.dirty {
            let event = Arc::new(Event::new(&self.context)?);
            self.stream.record(&event)?;
            self.number += 1;
            self.last = Some(event);
            self.dirty = false;
        }
        if self.last.as_ref().is_some_and(|event| matches!(event.is_reached(), Ok(true))) {
            self.last = None;
        }
        Ok(self.last.as_ref().map(|event| (self.number, Arc::clone(event))))
    }
}
