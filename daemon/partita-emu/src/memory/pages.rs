//! The host's memory behind an allocation.
//!
//! A large allocation is a mapping of its own and asks for the host's large pages. A kernel that
//! streams through it then waits less for address translation. The host gives a page when it is
//! first touched.

use memmap2::{Advice, MmapMut};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
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

    /// Bytes that the host has given. A host that does not tell has given everything.
    pub(super) fn resident(&self) -> u64 {
        let all = self.len() as u64;
        match self {
            Pages::Small(_) => all,
            Pages::Large(mapping) => given(mapping).unwrap_or(all),
        }
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

/// Bytes of a range that the host has given, in memory or on its disk (Linux,
/// `Documentation/admin-guide/mm/pagemap.rst`: a word for each page, its top two bits).
fn given(range: &[u8]) -> io::Result<u64> {
    let page = rustix::param::page_size() as u64;
    let first = range.as_ptr().addr() as u64 / page;
    let pages = (range.len() as u64).div_ceil(page);
    let mut file = File::open("/proc/self/pagemap")?;
    file.seek(SeekFrom::Start(first * 8))?;
    let mut file = file.take(pages * 8);
    let (mut buffer, mut given) = (vec![0; 64 << 10], 0);
    loop {
        let bytes = file.read(&mut buffer)?;
        if bytes == 0 {
            return Ok(given * page);
        }
        // The kernel gives whole words.
        let tops = buffer[..bytes].chunks_exact(8).map(|word| word[7]);
        given += tops.filter(|top| top & 0xC0 != 0).count() as u64;
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

    #[test]
    fn what_was_never_touched_takes_nothing() {
        let mut pages = Pages::zeroed(64 << 20).unwrap();
        assert_eq!(pages.resident(), 0);
        pages[0] = 1;
        let touched = pages.resident();
        assert!(touched > 0 && touched <= 4 << 20, "{touched}");
        assert_eq!(Pages::zeroed(100).unwrap().resident(), 100);
    }
}
