//! Reads of device memory for which the owner does not wait.
//!
//! A look is a copy to page-locked memory on the signals' stream. The first call for an address
//! submits it; a later call takes what has come, and ends the look. Pokes go through the same
//! stream, so a look that was submitted after a poke sees it. A poke to memory that is being looked
//! at makes the look stale: it is submitted again.

use crate::driver::{Context, Event, Failure, Pinned, Stream};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of the longest look. A control block of 256 SMs fits.
const SLOT: usize = 8 << 10;
/// Looks in flight.
const SLOTS: usize = 128;

/// A copy that is on its way, or has come.
struct Look {
    bytes: usize,
    /// The place in the page-locked memory.
    slot: usize,
    event: Event,
    /// Whether a poke came after its submission.
    is_stale: bool,
}

/// All looks.
pub(crate) struct Looks {
    memory: Pinned,
    by_address: BTreeMap<u64, Look>,
    free: Vec<(usize, Event)>,
}

impl Looks {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Looks, Failure> {
        let slot = |number: usize| Ok((number * SLOT, Event::new(context)?));
        Ok(Looks {
            memory: Pinned::new(context, SLOT * SLOTS)?,
            by_address: BTreeMap::new(),
            free: (0..SLOTS).map(slot).collect::<Result<_, Failure>>()?,
        })
    }

    /// Whether a look has room for a number of bytes.
    pub(crate) const fn has_room(bytes: usize) -> bool {
        bytes <= SLOT
    }

    /// Takes what has come from an address, or looks at it. Whether something has come.
    pub(crate) fn look(
        &mut self,
        stream: &Stream,
        address: u64,
        into: &mut [u8],
    ) -> Result<bool, Failure> {
        let Some(look) = self.by_address.remove(&address) else {
            self.begin(stream, address, into.len())?;
            return Ok(false);
        };
        if !look.event.is_reached()? {
            self.by_address.insert(address, look);
            return Ok(false);
        }
        let Look { bytes, slot, event, is_stale } = look;
        self.free.push((slot, event));
        if is_stale || bytes != into.len() {
            self.begin(stream, address, into.len())?;
            return Ok(false);
        }
        self.memory.read(slot, into);
        Ok(true)
    }

    fn begin(&mut self, stream: &Stream, address: u64, bytes: usize) -> Result<(), Failure> {
        if self.free.is_empty() {
            self.forget_arrived()?;
        }
        // Without a slot, a later call begins the look.
        let Some((slot, event)) = self.free.pop() else { return Ok(()) };
        let submitted = stream
            .copy_to_host(&self.memory, slot, address, bytes)
            .and_then(|()| stream.record(&event));
        if let Err(failure) = submitted {
            self.free.push((slot, event));
            return Err(failure);
        }
        self.by_address.insert(address, Look { bytes, slot, event, is_stale: false });
        Ok(())
    }

    /// Ends the looks whose answers nobody has taken.
    fn forget_arrived(&mut self) -> Result<(), Failure> {
        let mut arrived = Vec::new();
        for (&address, look) in &self.by_address {
            if look.event.is_reached()? {
                arrived.push(address);
            }
        }
        let looks = arrived.iter().filter_map(|address| self.by_address.remove(address));
        self.free.extend(looks.map(|look| (look.slot, look.event)));
        Ok(())
    }

    /// A poke to this memory has been submitted, or the memory is another's now.
    pub(crate) fn outdate(&mut self, address: u64, bytes: u64) {
        let near = address.saturating_sub(SLOT as u64)..address.saturating_add(bytes);
        for (&at, look) in self.by_address.range_mut(near) {
            look.is_stale |= at + look.bytes as u64 > address;
        }
    }
}
