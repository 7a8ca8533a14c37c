//! The host's memory behind an allocation.
//!
//! A large allocation is a mapping of its own and asks for the host's large pages. A kernel that
//! streams through it then waits less for address translation. The host gives a page when it is
//! first touched.

use memmap2::{Advice, MmapMut};
use std::io;
use std::ops::{Deref, DerefMut};

/// Allocations of at least this many bytes are mappings. It is a large page of x86-64 and AArch64.
const LARGE: usize = 2 << 20;

/// Bytes that are initially zero.
#[derive(Debug)]
pub(super) enum Pages {
    /// On the heap.
    Small(Vec<u8>),
    /// A mapping of its own.
    Large(MmapMut),
}

impl Pages {
    /// Allocates `length` zeroed bytes.
    ///
    /// # Errors
    /// The host has not enough memory.
    pub(super) fn zeroed(length: usize) -> io::Result<Self> {
        if length < LARGE {
            return Ok(Pages::Small(vec![0; length]));
        }
        let mapping = MmapMut::map_anon(length)?;
        // A host without large pages is slower, not wrong.
        #[cfg(target_os = "linux")]
        let _ = mapping.advise(Advice::HugePage);
        Ok(Pages::Large(mapping))
    }
}

impl Deref for Pages {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        match self {
            Pages::Small(bytes) => bytes,
            Pages::Large(mapping) => mapping,
        }
    }
}

impl DerefMut for Pages {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Pages::Small(bytes) => bytes,
            Pages::Large(mapping) => mapping,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_begin_as_zeros_and_keep_what_is_written() {
        for length in [0, 1, LARGE - 1, LARGE, LARGE + 1] {
            let mut pages = Pages::zeroed(length).unwrap();
            assert_eq!(pages.len(), length);
            assert!(pages.iter().all(|&byte| byte == 0));
            if let Some(last) = pages.last_mut() {
                *last = 7;
                assert_eq!(pages[length - 1], 7);
            }
        }
    }
}
