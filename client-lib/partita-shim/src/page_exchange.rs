//! The exchange of the program's pages for pages of the session's host memory, and back. It lets
//! kernels reach memory that the program allocated by itself and registered.
//!
//! The contents move. The program's addresses stay the same, now as a second mapping of host
//! memory. In both directions each piece is copied first and then put in place by one `mremap`, so
//! no address is ever without a page. A store by another thread between copy and `mremap` is lost.
//! The first and the last page may hold the program's other data; each is a piece of its own, so
//! this interval lasts about a microsecond for them.
//!
//! Only private, writable memory is exchanged: memory shared with files or other processes must
//! stay shared. Stacks are not exchanged, because code runs on them.

use crate::error::{CuError, CuResult};
use std::ffi::c_void;
use std::fs;

/// The size of a page in bytes.
pub const PAGE: u64 = 4096;

/// Whole pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pages {
    /// The first byte.
    pub start: u64,
    /// The length in bytes.
    pub bytes: u64,
}

impl Pages {
    /// The pages that hold a range.
    pub fn around(start: u64, bytes: u64) -> CuResult<Pages> {
        let first = start - start % PAGE;
        let end = start.checked_add(bytes).and_then(|end| end.checked_next_multiple_of(PAGE));
        Ok(Pages { start: first, bytes: end.ok_or(CuError::INVALID_VALUE)? - first })
    }

    /// Whether they may change places; if not, why.
    pub fn check(self) -> Result<(), &'static str> {
        let here = 0u8;
        let maps =
            fs::read_to_string("/proc/self/maps").map_err(|_| "/proc/self/maps cannot be read")?;
        check_in(&maps, self, std::ptr::from_ref(&here) as u64)
    }

    /// First page, middle pages, last page: offset and length of each that exists.
    fn pieces(self) -> impl Iterator<Item = (u64, u64)> {
        let last = self.bytes - PAGE;
        let between = last.saturating_sub(PAGE);
        [(0, PAGE), (PAGE, between), (last, PAGE)]
            .into_iter()
            .enumerate()
            .filter(move |(index, (_, bytes))| *bytes > 0 && (*index != 2 || last > 0))
            .map(|(_, piece)| piece)
    }

    /// Puts pages of a shared mapping, as many from `shared` on, in their place, with the contents
    /// that these have.
    pub fn lend(self, shared: u64) -> CuResult {
        for (offset, bytes) in self.pieces() {
            let done = lend_piece(self.start + offset, shared + offset, bytes);
            if let Err(error) = done {
                let lent = Pages { start: self.start, bytes: offset };
                return if offset == 0 { Err(error) } else { lent.take_back().and(Err(error)) };
            }
        }
        Ok(())
    }

    /// Puts private pages in their place, with the contents that these have.
    pub fn take_back(self) -> CuResult {
        self.pieces().try_for_each(|(offset, bytes)| take_piece_back(self.start + offset, bytes))
    }
}

/// Finds a range in the text of `/proc/PID/maps` (proc(5)): `START-END PERMISSIONS OFFSET DEVICE
/// INODE NAME`.
fn check_in(maps: &str, pages: Pages, stack: u64) -> Result<(), &'static str> {
    let end = pages.start + pages.bytes;
    let mut at = pages.start;
    for line in maps.lines() {
        let mut fields = line.split_ascii_whitespace();
        let extent = fields.next().and_then(|extent| extent.split_once('-'));
        let Some((first, behind)) = extent else { continue };
        let hexadecimal = |text| u64::from_str_radix(text, 16).unwrap_or(0);
        let (first, behind) = (hexadecimal(first), hexadecimal(behind));
        if at < first || at >= behind {
            continue;
        }
        let permissions = fields.next().unwrap_or_default();
        let name = fields.nth(3).unwrap_or_default();
        if !permissions.starts_with("rw") {
            return Err("it cannot be written");
        }
        if !permissions.ends_with('p') {
            return Err("it is shared with files or other processes");
        }
        if name.starts_with("[stack") || (first..behind).contains(&stack) {
            return Err("it is a stack");
        }
        at = behind;
        if at >= end {
            return Ok(());
        }
    }
    Err("nothing is mapped there")
}

fn lend_piece(to: u64, shared: u64, bytes: u64) -> CuResult {
    let length = usize::try_from(bytes).map_err(|_| CuError::INVALID_VALUE)?;
    // SAFETY: pages of the program that can be read and written, and as many of the session's that
    // are nobody's yet.
    unsafe { std::ptr::copy_nonoverlapping(to as *const u8, shared as *mut u8, length) };
    // A length of 0 asks for a second mapping of shared pages (mremap(2)).
    // SAFETY: what is replaced has the same contents, and its owner has registered it.
    unsafe { put(shared, 0, to, length) }
}

fn take_piece_back(at: u64, bytes: u64) -> CuResult {
    let length = usize::try_from(bytes).map_err(|_| CuError::INVALID_VALUE)?;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new private mapping wherever the system likes.
    let private = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            length,
            access,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if private == libc::MAP_FAILED {
        return Err(CuError::OUT_OF_MEMORY);
    }
    // SAFETY: the pages that `lend` mapped there, and as many new ones.
    unsafe { std::ptr::copy_nonoverlapping(at as *const u8, private.cast(), length) };
    // SAFETY: what is replaced has the same contents.
    unsafe { put(private as u64, length, at, length) }
}

/// Moves a mapping to where another is.
///
/// # Safety
/// Nobody misses what is replaced.
unsafe fn put(from: u64, old_length: usize, to: u64, length: usize) -> CuResult {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: the caller vouches for the target; the source is a mapping of ours.
    let found =
        unsafe { libc::mremap(from as *mut c_void, old_length, length, flags, to as *mut c_void) };
    if found == libc::MAP_FAILED { Err(CuError::OPERATING_SYSTEM) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
1000-3000 rw-p 00000000 00:00 0 
3000-5000 rw-p 00000000 00:00 0                          [heap]
5000-6000 r--p 00001000 08:01 17                         /usr/lib/some lib.so
8000-9000 rw-s 00000000 00:05 18                         /dev/shm/x
a000-c000 rw-p 00000000 00:00 0                          [stack]
d000-f000 rw-p 00000000 00:00 0 
";

    #[test]
    fn only_private_memory_that_can_be_written_changes_places() {
        for (start, bytes, expect) in [
            (0x1000, 0x4000, Ok(())),
            (0x2000, 0x1000, Ok(())),
            (0x4000, 0x2000, Err("it cannot be written")),
            (0x8000, 0x1000, Err("it is shared with files or other processes")),
            (0x9000, 0x1000, Err("nothing is mapped there")),
            (0x0, 0x2000, Err("nothing is mapped there")),
            (0xa000, 0x1000, Err("it is a stack")),
            (0xd000, 0x1000, Err("it is a stack")),
            (0xe000, 0x2000, Err("it is a stack")),
        ] {
            assert_eq!(check_in(MAPS, Pages { start, bytes }, 0xe800), expect, "{start:#x}");
        }
        assert_eq!(
            check_in(MAPS, Pages { start: 0xe000, bytes: 0x2000 }, 0),
            Err("nothing is mapped there")
        );
    }

    #[test]
    fn pieces_cover_all_pages_once() {
        for (bytes, expect) in [
            (PAGE, vec![(0, PAGE)]),
            (2 * PAGE, vec![(0, PAGE), (PAGE, PAGE)]),
            (5 * PAGE, vec![(0, PAGE), (PAGE, 3 * PAGE), (4 * PAGE, PAGE)]),
        ] {
            assert_eq!(Pages { start: 0, bytes }.pieces().collect::<Vec<_>>(), expect);
        }
        assert_eq!(Pages::around(0x1fff, 2), Ok(Pages { start: 0x1000, bytes: 0x2000 }));
        assert_eq!(Pages::around(u64::MAX, 1), Err(CuError::INVALID_VALUE));
    }
}
