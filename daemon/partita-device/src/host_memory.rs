//! Host memory that a device copies from and to.

use std::any::Any;
use std::sync::Arc;
use std::{fmt, io};

/// Memory of the host that outlives the operations that use it. Its bytes may change at any time
/// (another process may have it mapped), so they are only ever copied.
pub trait HostMemory: Send + Sync {
    /// Its size in bytes.
    fn size(&self) -> u64;

    /// Copies from `offset` on into `into`. The range was checked against [`HostMemory::size`].
    fn read(&self, offset: u64, into: &mut [u8]);

    /// Copies `from` to `offset` on. The range was checked against [`HostMemory::size`].
    fn write(&self, offset: u64, from: &[u8]);

    /// Replaces `old` at `offset` by `new`, atomically with the processor's atomics on the same
    /// bytes; false where `old` is not there. [`HostMemory::can_exchange`] allows their size,
    /// `offset` is a multiple of it, and the range was checked.
    ///
    /// The default serves memory that nobody else writes.
    fn compare_exchange(&self, offset: u64, old: &[u8], new: &[u8]) -> bool {
        let mut found = [0; 16];
        self.read(offset, &mut found[..old.len()]);
        let equal = found[..old.len()] == *old;
        if equal {
            self.write(offset, new);
        }
        equal
    }

    /// Whether [`HostMemory::compare_exchange`] takes this many bytes: 2, 4 and 8 always, 16 where
    /// the processor can.
    fn can_exchange(&self, bytes: usize) -> bool {
        matches!(bytes, 2 | 4 | 8 | 16)
    }

    /// The address in this process and the length, in bytes, of the first part whose pages stay as
    /// long as the memory lives. The part may be page-locked. `None` where there is none.
    fn kept(&self) -> Option<(usize, u64)> {
        None
    }

    /// Maps `bytes` from `offset` on a second time, at a free address of this process. The mapping
    /// lives as long as the returned value. The range was checked against [`HostMemory::size`].
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] where something is there; [`io::ErrorKind::Unsupported`]
    /// where it cannot be.
    fn map_again(
        &self,
        _offset: u64,
        _bytes: u64,
        _address: u64,
    ) -> io::Result<Box<dyn Any + Send + Sync>> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// A range of some host memory.
#[derive(Clone)]
pub struct HostSpan {
    memory: Arc<dyn HostMemory>,
    offset: u64,
    bytes: u64,
}

impl HostSpan {
    /// The range, or `None` where it is not inside the memory.
    pub fn new(memory: Arc<dyn HostMemory>, offset: u64, bytes: u64) -> Option<Self> {
        let end = offset.checked_add(bytes)?;
        (end <= memory.size()).then_some(HostSpan { memory, offset, bytes })
    }

    /// Its length in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Copies from `at`, counted from the span's start.
    ///
    /// # Panics
    /// Where that is not inside the span.
    pub fn read(&self, at: u64, into: &mut [u8]) {
        assert!(at + into.len() as u64 <= self.bytes, "read beyond the span");
        self.memory.read(self.offset + at, into);
    }

    /// Copies to `at`, counted from the span's start.
    ///
    /// # Panics
    /// Where that is not inside the span.
    pub fn write(&self, at: u64, from: &[u8]) {
        assert!(at + from.len() as u64 <= self.bytes, "write beyond the span");
        self.memory.write(self.offset + at, from);
    }

    /// A part of it, or `None` where that is not inside.
    #[must_use]
    pub fn part(&self, at: u64, bytes: u64) -> Option<HostSpan> {
        let end = at.checked_add(bytes)?;
        let inside = end <= self.bytes;
        inside.then(|| HostSpan {
            memory: Arc::clone(&self.memory),
            offset: self.offset + at,
            bytes,
        })
    }

    /// The memory that it is a range of, and where it begins there.
    #[must_use]
    pub fn memory(&self) -> (&Arc<dyn HostMemory>, u64) {
        (&self.memory, self.offset)
    }

    /// See [`HostMemory::map_again`].
    ///
    /// # Errors
    /// As there.
    pub fn map_again(&self, address: u64) -> io::Result<Box<dyn Any + Send + Sync>> {
        self.memory.map_again(self.offset, self.bytes, address)
    }

    /// See [`HostMemory::can_exchange`].
    #[must_use]
    pub fn can_exchange(&self, bytes: usize) -> bool {
        self.memory.can_exchange(bytes)
    }

    /// See [`HostMemory::compare_exchange`].
    ///
    /// # Panics
    /// Where that is not inside the span.
    #[must_use]
    pub fn compare_exchange(&self, at: u64, old: &[u8], new: &[u8]) -> bool {
        assert!(
            at + new.len() as u64 <= self.bytes && old.len() == new.len(),
            "exchange beyond the span"
        );
        self.memory.compare_exchange(self.offset + at, old, new)
    }
}

impl fmt::Debug for HostSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostSpan")
            .field("offset", &self.offset)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}
