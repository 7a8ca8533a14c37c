//! The part of a session's memory that holds staging and the program's host memory, as the data
//! plane sees it.
//!
//! Invariant: no byte outside the arena is reached, and none is referred to: bytes are copied.

use crate::layout::Layout;
use crate::mapping::{Mapping, Twin, can_exchange};
use crate::ring::Memory;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// The arena of a session: staging, then host memory of the program. The client can change its
/// bytes at any time; they are only copied.
#[derive(Clone, Debug)]
pub struct Arena {
    memory: Arc<Mapping>,
    base: usize,
    bytes: u64,
    /// Where host memory begins, and its second mapping, whose addresses the program gets.
    twin: Option<(u64, Arc<Twin>)>,
}

impl Arena {
    /// Its size in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.bytes
    }

    /// Copies out.
    ///
    /// # Panics
    /// Where the range is not inside: ranges in requests are checked when those are read.
    pub fn read(&self, offset: u64, into: &mut [u8]) {
        self.memory.read(self.place(offset, into.len()), into);
    }

    /// Copies in.
    ///
    /// # Panics
    /// Where the range is not inside.
    pub fn write(&self, offset: u64, from: &[u8]) {
        self.memory.write(self.place(offset, from.len()), from);
    }

    /// Puts `new` there if `old` is, in one step beside the other side's atomics; whether it did.
    ///
    /// # Panics
    /// Where the range is not inside, or [`Arena::can_exchange`] does not say so of its size, or it
    /// is at no multiple of that.
    #[must_use]
    pub fn compare_exchange(&self, offset: u64, old: &[u8], new: &[u8]) -> bool {
        assert_eq!(old.len(), new.len(), "one value for another of its size");
        self.memory.compare_exchange(self.place(offset, old.len()), old, new)
    }

    /// Whether this processor has atomics for values of `bytes` bytes.
    #[must_use]
    pub fn can_exchange(bytes: usize) -> bool {
        can_exchange(bytes)
    }

    fn place(&self, offset: u64, bytes: usize) -> usize {
        let end = offset.checked_add(bytes as u64);
        assert!(
            end.is_some_and(|end| end <= self.bytes),
            "{bytes} bytes at {offset} are outside the arena"
        );
        self.base + usize::try_from(offset).expect("inside a mapping")
    }

    pub(crate) fn new(memory: Arc<Mapping>, layout: &Layout) -> Arena {
        Arena { memory, base: layout.staging(), bytes: layout.arena_bytes(), twin: None }
    }

    /// The arena whose host memory has other addresses.
    pub(crate) fn with_twin(self, layout: &Layout, twin: Twin) -> Arena {
        Arena { twin: Some((layout.staging_bytes(), Arc::new(twin))), ..self }
    }

    /// Maps the arena from `offset` to its end a second time, at that address, where nothing is.
    /// `file` is the session's memory.
    ///
    /// # Errors
    /// Where something is there, or the system refuses.
    ///
    /// # Panics
    /// Where `offset` is not on a page's border inside.
    pub fn map_host_again(
        &self,
        file: BorrowedFd<'_>,
        offset: u64,
        address: u64,
    ) -> rustix::io::Result<Twin> {
        self.memory.map_again(file, self.place(offset, 0), address)
    }

    /// Whether host memory is where kernels reach it.
    #[must_use]
    pub fn is_mapped(&self) -> bool {
        self.twin.is_some()
    }

    /// Where a byte is in this process; valid while the session's memory is mapped.
    ///
    /// # Panics
    /// Where the offset is not inside.
    #[must_use]
    pub fn address(&self, offset: u64) -> *mut u8 {
        let place = self.place(offset, 0);
        match &self.twin {
            Some((first, twin)) if offset >= *first => {
                twin.address(usize::try_from(offset - first).expect("inside a mapping"))
            }
            _ => self.memory.address(place),
        }
    }

    /// The offset of `bytes` bytes at an address of this process, where they are inside.
    #[must_use]
    pub fn offset_of(&self, address: *const u8, bytes: u64) -> Option<u64> {
        if let Some((first, twin)) = &self.twin
            && let Some(at) = address.addr().checked_sub(twin.address(0).addr())
            && let Some(end) = (at as u64).checked_add(bytes)
            && end <= self.bytes - first
        {
            return Some(first + at as u64);
        }
        let offset = address.addr().checked_sub(self.memory.address(self.base).addr())? as u64;
        let end = offset.checked_add(bytes)?;
        (end <= self.bytes).then_some(offset)
    }

    /// Gives the pages of a range back to the system; they are zero when touched again.
    ///
    /// # Errors
    /// Where the system refuses.
    ///
    /// # Panics
    /// Where the range is not inside, or not of whole pages.
    pub fn discard(&self, offset: u64, bytes: u64) -> rustix::io::Result<()> {
        let length = usize::try_from(bytes).expect("inside a mapping");
        self.memory.discard(self.place(offset, length), length)
    }
}
