//! The only place that touches shared memory, and the only unsafe code of this crate.
//!
//! A [`Mapping`] hands out copies and never a reference. Its peer may change any byte at any time,
//! so bulk reads and writes are volatile (the compiler must neither repeat nor drop nor merge
//! them), and words that order other data are atomic. Every access is bounds-checked against the
//! mapping's length, which the memfd's seals keep true.
#![expect(unsafe_code, reason = "mapping memory and accessing it by address is unsafe")]

use crate::ring::Memory;
use rustix::fs::SealFlags;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
#[cfg(target_arch = "x86_64")]
use std::arch::asm;
use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

/// Why a descriptor cannot serve as a session's memory.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// The system refused.
    #[error("cannot {step} the session's memory: {source}")]
    System {
        /// The attempted operation.
        step: &'static str,
        /// The system's reason.
        source: rustix::io::Errno,
    },
    /// The file's size differs from the announced size.
    #[error("the session's memory has {found} bytes instead of the announced {announced}")]
    Size {
        /// Announced.
        announced: u64,
        /// The value found.
        found: u64,
    },
    /// The creator could shrink the file while it is mapped.
    #[error("the session's memory is not sealed against changes of its size")]
    Unsealed,
}

fn system(step: &'static str) -> impl Fn(rustix::io::Errno) -> MapError {
    move |source| MapError::System { step, source }
}

/// Memory that another process has mapped too.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<c_void>,
    length: usize,
    guard: ForkGuard,
}

// SAFETY: the mapping belongs to the process and not to a thread; all accesses are atomic or
// volatile copies, which any thread may make.
unsafe impl Send for Mapping {}
// SAFETY: as above. Threads of this process that write the same bytes at once are kept apart by the
// rings' and the arena's owners; where they are not, the bytes are garbage, as the peer could make
// them anyway.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a sealed memfd of exactly `bytes` bytes. A child of a fork does not get the mapping.
    ///
    /// # Errors
    /// Where it has another size, is not sealed, or the system refuses.
    pub fn new(fd: BorrowedFd<'_>, bytes: u64) -> Result<Mapping, MapError> {
        let seals = rustix::fs::fcntl_get_seals(fd).map_err(system("read the seals of"))?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return Err(MapError::Unsealed);
        }
        let found =
            rustix::fs::fstat(fd).map_err(system("read the size of"))?.st_size.cast_unsigned();
        let length = usize::try_from(bytes).ok().filter(|_| found == bytes && bytes > 0);
        let length = length.ok_or(MapError::Size { announced: bytes, found })?;
        let guard = ForkGuard::new().map_err(system("guard"))?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: without MAP_FIXED the kernel chooses a free range, so no memory of anybody is
        // replaced.
        let base = unsafe { mmap(std::ptr::null_mut(), length, access, MapFlags::SHARED, fd, 0) };
        let base = base.map_err(system("map"))?;
        let base = NonNull::new(base).expect("the kernel maps nothing at address 0 unasked");
        let mapping = Mapping { base, length, guard };
        // SAFETY: the range is the mapping just made; the advice keeps it out of forked children
        // only.
        unsafe { madvise(base.as_ptr(), length, Advice::LinuxDontFork) }
            .map_err(system("advise on"))?;
        Ok(mapping)
    }

    /// Whether this process made the mapping. A forked child has the value but not the memory: it
    /// must not touch it.
    #[must_use]
    pub fn is_owner(&self) -> bool {
        self.guard.is_owner()
    }

    /// Maps the memory from `at` on a second time, at an address of the caller's choice, where
    /// nothing else is. The first mapping's part stays.
    ///
    /// # Errors
    /// Where something is there already, or the system refuses.
    ///
    /// # Panics
    /// Where `at` is no page's border inside.
    pub fn map_again(
        &self,
        fd: BorrowedFd<'_>,
        at: usize,
        address: u64,
    ) -> rustix::io::Result<Twin> {
        self.check(at, 0);
        assert!(at.is_multiple_of(4096), "{at} is no page's border");
        let wanted = usize::try_from(address).map_err(|_| rustix::io::Errno::NOMEM)?;
        let length = self.length - at;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::FIXED_NOREPLACE;
        let target = std::ptr::without_provenance_mut(wanted);
        // SAFETY: MAP_FIXED_NOREPLACE maps where nothing is or not at all, so no memory of anybody
        // is replaced.
        let base = unsafe { mmap(target, length, access, flags, fd, at as u64) }?;
        let base = NonNull::new(base).expect("the kernel maps nothing at address 0 unasked");
        let twin = Twin { base, length };
        // Kernels that do not know the flag take the address for a wish.
        if base.as_ptr().addr() == wanted { Ok(twin) } else { Err(rustix::io::Errno::EXIST) }
    }

    /// Lets forked children have the memory from `at` on: what a program allocated, its children
    /// may read.
    ///
    /// # Errors
    /// Where the system refuses.
    ///
    /// # Panics
    /// Where that is no page's border inside.
    pub fn let_children_inherit(&self, at: usize) -> rustix::io::Result<()> {
        self.check(at, 0);
        assert!(at.is_multiple_of(4096), "{at} is no page's border");
        // SAFETY: the range is a part of this mapping; the advice changes what children get only.
        unsafe { madvise(self.address(at).cast(), self.length - at, Advice::LinuxDoFork) }
    }

    /// The address of a byte.
    ///
    /// # Panics
    /// The byte is outside the mapping.
    pub(crate) fn address(&self, at: usize) -> *mut u8 {
        self.check(at, 0);
        self.byte(at)
    }

    /// Gives whole pages back to the system.
    pub(crate) fn discard(&self, at: usize, bytes: usize) -> rustix::io::Result<()> {
        self.check(at, bytes);
        assert!(
            at.is_multiple_of(4096) && bytes.is_multiple_of(4096),
            "{bytes} bytes at {at} are no pages"
        );
        // SAFETY: the range is a part of this mapping, whose bytes may become zero as the peer
        // could make them.
        unsafe { madvise(self.byte(at).cast(), bytes, Advice::LinuxRemove) }
    }

    /// Atomically replaces `old` at `at` by `new`. False where the memory holds another value.
    ///
    /// # Panics
    /// Both values must have 2, 4 or 8 bytes, or 16 where [`can_exchange`] says so. `at` must be
    /// inside, and a multiple of that size.
    pub(crate) fn compare_exchange(&self, at: usize, old: &[u8], new: &[u8]) -> bool {
        self.check(at, old.len());
        assert!(
            at.is_multiple_of(old.len()) && old.len() == new.len(),
            "no value of {} bytes at {at}",
            old.len()
        );
        let order = (Ordering::SeqCst, Ordering::Relaxed);
        let place = self.byte(at);
        if let (Ok(old), Ok(new)) = (old.try_into(), new.try_into()) {
            let (old, new) = (u16::from_ne_bytes(old), u16::from_ne_bytes(new));
            // SAFETY: aligned and inside, as checked above; the bytes are only accessed atomically
            // or volatilely.
            let word = unsafe { AtomicU16::from_ptr(place.cast()) };
            return word.compare_exchange(old, new, order.0, order.1).is_ok();
        }
        if let (Ok(old), Ok(new)) = (old.try_into(), new.try_into()) {
            let (old, new) = (u32::from_ne_bytes(old), u32::from_ne_bytes(new));
            // SAFETY: as above.
            let word = unsafe { AtomicU32::from_ptr(place.cast()) };
            return word.compare_exchange(old, new, order.0, order.1).is_ok();
        }
        #[cfg(target_arch = "x86_64")]
        if let (Ok(old), Ok(new)) = (old.try_into(), new.try_into()) {
            assert!(can_exchange(16), "this processor has no atomics of 16 bytes");
            // SAFETY: as above; the processor has the instruction.
            return unsafe { exchange_16(place, old, new) };
        }
        let whole = |bytes: &[u8]| {
            u64::from_ne_bytes(bytes.try_into().expect("values have 2, 4 or 8 bytes"))
        };
        // SAFETY: as above.
        let word = unsafe { AtomicU64::from_ptr(place.cast()) };
        word.compare_exchange(whole(old), whole(new), order.0, order.1).is_ok()
    }

    fn word(&self, at: usize) -> *mut u64 {
        assert!(
            at.is_multiple_of(8) && at < self.length && self.length - at >= 8,
            "no word at {at}"
        );
        self.byte(at).cast()
    }

    /// An address inside; offsets of bulk accesses are checked by their callers.
    fn byte(&self, at: usize) -> *mut u8 {
        self.base.as_ptr().cast::<u8>().wrapping_add(at)
    }

    fn check(&self, at: usize, bytes: usize) {
        assert!(
            at <= self.length && bytes <= self.length - at,
            "{bytes} bytes at {at} are outside a mapping of {} bytes",
            self.length
        );
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // In a forked child the range is free, or belongs to another mapping by now.
        if !self.is_owner() {
            return;
        }
        // SAFETY: `base` and `length` are those of the mapping that `new` made, and nobody else has
        // the address.
        let result = unsafe { munmap(self.base.as_ptr(), self.length) };
        debug_assert!(result.is_ok(), "unmapping a mapping of ours failed");
    }
}

/// A part of a mapping that is mapped a second time. Nobody here looks at the bytes by it: it lends
/// the program addresses. Children of a fork keep it.
#[derive(Debug)]
pub struct Twin {
    base: NonNull<c_void>,
    length: usize,
}

// SAFETY: addresses; nothing is accessed by them here.
unsafe impl Send for Twin {}
// SAFETY: as above.
unsafe impl Sync for Twin {}

impl Twin {
    /// The address of a byte.
    ///
    /// # Panics
    /// The byte is outside the mapping.
    pub(crate) fn address(&self, at: usize) -> *mut u8 {
        assert!(at <= self.length, "{at} is outside {} bytes", self.length);
        self.base.as_ptr().cast::<u8>().wrapping_add(at)
    }
}

impl Drop for Twin {
    fn drop(&mut self) {
        // SAFETY: `base` and `length` are those of the mapping that `map_again` made, which
        // children have as well.
        let result = unsafe { munmap(self.base.as_ptr(), self.length) };
        debug_assert!(result.is_ok(), "unmapping a mapping of ours failed");
    }
}

/// A word's bytes before the first word border at or after `at`, at most `bytes`.
fn unaligned_head(at: usize, bytes: usize) -> usize {
    (at.next_multiple_of(8) - at).min(bytes)
}

impl Memory for Arc<Mapping> {
    fn load(&self, at: usize, order: Ordering) -> u64 {
        // SAFETY: `word` returns an aligned address of 8 mapped bytes, which are only accessed
        // atomically or volatilely.
        unsafe { AtomicU64::from_ptr(self.word(at)) }.load(order)
    }

    fn store(&self, at: usize, value: u64, order: Ordering) {
        // SAFETY: as in `load`.
        unsafe { AtomicU64::from_ptr(self.word(at)) }.store(value, order);
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    fn read(&self, at: usize, into: &mut [u8]) {
        self.check(at, into.len());
        let from = self.byte(at);
        // A number that the peer may be writing is read at once, not byte after byte.
        if let [a, b, c, d] = into
            && at.is_multiple_of(4)
        {
            // SAFETY: inside the mapping, as checked above, and aligned.
            let number = unsafe { from.cast::<u32>().read_volatile() };
            [*a, *b, *c, *d] = number.to_ne_bytes();
            return;
        }
        if let [a, b] = into
            && at.is_multiple_of(2)
        {
            // SAFETY: as above.
            let number = unsafe { from.cast::<u16>().read_volatile() };
            [*a, *b] = number.to_ne_bytes();
            return;
        }
        if is_string(into.as_ptr(), from, into.len()) {
            // SAFETY: the source is inside the mapping, as checked above; the target is private
            // memory of that length.
            unsafe { copy_string(into.as_mut_ptr(), from, into.len()) };
            return;
        }
        let (head, rest) = into.split_at_mut(unaligned_head(at, into.len()));
        let middle_at = head.len();
        let (middle, tail) = rest.as_chunks_mut::<8>();
        let tail_at = middle_at + 8 * middle.len();
        for (start, bytes) in [(0, head), (tail_at, tail)] {
            for (i, byte) in bytes.iter_mut().enumerate() {
                // SAFETY: inside the mapping, as checked above.
                *byte = unsafe { from.wrapping_add(start + i).read_volatile() };
            }
        }
        for (i, chunk) in middle.iter_mut().enumerate() {
            let from = from.wrapping_add(middle_at + 8 * i).cast::<u64>();
            // SAFETY: inside the mapping, as checked above, and aligned, because the head ends on a
            // word's border.
            *chunk = unsafe { from.read_volatile() }.to_ne_bytes();
        }
    }

    fn write(&self, at: usize, from: &[u8]) {
        self.check(at, from.len());
        let to = self.byte(at);
        // A number that the peer may be waiting for appears at once.
        if let &[a, b, c, d] = from
            && at.is_multiple_of(4)
        {
            // SAFETY: inside the mapping, as checked above, and aligned.
            unsafe { to.cast::<u32>().write_volatile(u32::from_ne_bytes([a, b, c, d])) };
            return;
        }
        if let &[a, b] = from
            && at.is_multiple_of(2)
        {
            // SAFETY: as above.
            unsafe { to.cast::<u16>().write_volatile(u16::from_ne_bytes([a, b])) };
            return;
        }
        if is_string(to, from.as_ptr(), from.len()) {
            // SAFETY: the target is inside the mapping, as checked above; the source is private
            // memory of that length.
            unsafe { copy_string(to, from.as_ptr(), from.len()) };
            return;
        }
        let (head, rest) = from.split_at(unaligned_head(at, from.len()));
        let middle_at = head.len();
        let (middle, tail) = rest.as_chunks::<8>();
        let tail_at = middle_at + 8 * middle.len();
        for (start, bytes) in [(0, head), (tail_at, tail)] {
            for (i, byte) in bytes.iter().enumerate() {
                // SAFETY: inside the mapping, as checked above.
                unsafe { to.wrapping_add(start + i).write_volatile(*byte) };
            }
        }
        for (i, chunk) in middle.iter().enumerate() {
            let to = to.wrapping_add(middle_at + 8 * i).cast::<u64>();
            // SAFETY: inside the mapping, as checked above, and aligned, because the head ends on a
            // word's border.
            unsafe { to.write_volatile(u64::from_ne_bytes(*chunk)) };
        }
    }
}

/// Whether the processor's string copy is faster. From 2 KiB on it is (20 % at 512 KiB), because it
/// does not read the bytes that it overwrites. The exception is a target less than a line behind
/// the source, modulo a page. Zen processors take that for an overlap and become five times slower
/// (measured on an EPYC).
fn is_string(to: *const u8, from: *const u8, bytes: usize) -> bool {
    let behind = to.addr().wrapping_sub(from.addr()) % 4096;
    cfg!(target_arch = "x86_64") && bytes >= 2048 && (behind == 0 || behind >= 64)
}

/// Copies by the processor's string copy. The compiler cannot see into the copy, so it may race
/// with the peer as volatile accesses may. The processor orders the copy before later stores (Intel
/// SDM 3A, "String Operations").
///
/// # Safety
/// `bytes` bytes must be readable from `from` on and writable from `to` on. The two ranges must not
/// overlap.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_string(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: the caller vouches for both ranges, and the direction flag is clear at function
    // borders by the ABI.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") bytes => _,
            inout("rdi") to => _,
            inout("rsi") from => _,
            options(nostack, preserves_flags),
        );
    }
}

/// Never called: [`is_string`] is false here.
///
/// # Safety
/// None is needed.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_string(_to: *mut u8, _from: *const u8, _bytes: usize) {
    unreachable!("there is no string copy");
}

const OWNED: u64 = 0x6f77_6e65_6421;

/// Tells a process from its forked children without a system call: a private page that the kernel
/// wipes in a child.
#[derive(Debug)]
struct ForkGuard {
    page: NonNull<c_void>,
}

const GUARD_BYTES: usize = 4096;

// SAFETY: the page is only read, atomically, after `new`.
unsafe impl Send for ForkGuard {}
// SAFETY: as above.
unsafe impl Sync for ForkGuard {}

impl ForkGuard {
    /// A guard that belongs to the calling process.
    ///
    /// # Errors
    /// Where the system has no page, or no `MADV_WIPEONFORK` (Linux before 4.14).
    fn new() -> rustix::io::Result<ForkGuard> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: without MAP_FIXED the kernel chooses a free range, so no memory of anybody is
        // replaced.
        let page = unsafe {
            mmap_anonymous(std::ptr::null_mut(), GUARD_BYTES, access, MapFlags::PRIVATE)
        }?;
        let page = NonNull::new(page).expect("the kernel maps nothing at address 0 unasked");
        let guard = ForkGuard { page };
        // SAFETY: the range is the page just mapped.
        unsafe { madvise(page.as_ptr(), GUARD_BYTES, Advice::LinuxWipeOnFork) }?;
        guard.mark().store(OWNED, Ordering::Relaxed);
        Ok(guard)
    }

    /// Whether this is the process that made the guard, and not a child.
    fn is_owner(&self) -> bool {
        self.mark().load(Ordering::Relaxed) == OWNED
    }

    fn mark(&self) -> &AtomicU64 {
        // SAFETY: the page is mapped while `self` lives, aligned, private to this process, and only
        // used as this atomic.
        unsafe { AtomicU64::from_ptr(self.page.as_ptr().cast()) }
    }
}

impl Drop for ForkGuard {
    fn drop(&mut self) {
        // SAFETY: the page is the one that `new` mapped, and no reference to it outlives `self`.
        let result = unsafe { munmap(self.page.as_ptr(), GUARD_BYTES) };
        debug_assert!(result.is_ok(), "unmapping a page of ours failed");
    }
}

/// Memory of `bytes` bytes, sealed so that its size can never change again and nobody can lift the
/// seals.
///
/// # Errors
/// Where the system refuses.
pub fn sealed_memory(bytes: u64) -> rustix::io::Result<std::os::fd::OwnedFd> {
    use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};
    let fd = memfd_create("partita-session", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&fd, bytes)?;
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}

/// Puts `new` at `place` if `old` is there; whether it did. The library's own function needs
/// another library where it is not inlined.
///
/// # Safety
/// `place` is aligned to 16 and valid for 16 bytes that are only accessed atomically or volatilely;
/// the processor has `cmpxchg16b`.
#[cfg(target_arch = "x86_64")]
unsafe fn exchange_16(place: *mut u8, old: [u8; 16], new: [u8; 16]) -> bool {
    let halves = |bytes: &[u8; 16]| {
        let (words, _) = bytes.as_chunks::<8>();
        (u64::from_ne_bytes(words[0]), u64::from_ne_bytes(words[1]))
    };
    let ((old_low, old_high), (new_low, new_high)) = (halves(&old), halves(&new));
    let (seen_low, seen_high): (u64, u64);
    // SAFETY: the caller vouches for the place and the instruction; rbx, which the compiler keeps
    // to itself, is as it was.
    unsafe {
        asm!(
            "xchg rbx, {low}",
            "lock cmpxchg16b [rdi]",
            "mov rbx, {low}",
            low = inout(reg) new_low => _,
            in("rdi") place,
            in("rcx") new_high,
            inout("rax") old_low => seen_low,
            inout("rdx") old_high => seen_high,
            options(nostack),
        );
    }
    (seen_low, seen_high) == (old_low, old_high)
}

/// Whether this processor has atomics of this many bytes.
pub(crate) fn can_exchange(bytes: usize) -> bool {
    match bytes {
        2 | 4 | 8 => true,
        #[cfg(target_arch = "x86_64")]
        16 => std::arch::is_x86_feature_detected!("cmpxchg16b"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    fn mapping(bytes: u64) -> (std::os::fd::OwnedFd, Arc<Mapping>) {
        let fd = sealed_memory(bytes).unwrap();
        let mapping = Arc::new(Mapping::new(fd.as_fd(), bytes).unwrap());
        (fd, mapping)
    }

    #[test]
    fn values_are_exchanged_whole() {
        const ROUNDS: u64 = 20_000;
        let (_fd, memory) = mapping(4096);
        for bytes in [2, 4, 8, 16].into_iter().filter(|bytes| can_exchange(*bytes)) {
            // All bytes of a value are equal, so that a torn value is detected.
            let count = |memory: &Arc<Mapping>| {
                let mut seen = 0;
                for round in 0..ROUNDS {
                    loop {
                        let mut old = [0_u8; 16];
                        memory.read(64, &mut old[..bytes]);
                        let new = [old[0].wrapping_add(1); 16];
                        if old[..bytes].iter().all(|byte| *byte == old[0])
                            && memory.compare_exchange(64, &old[..bytes], &new[..bytes])
                        {
                            seen = round;
                            break;
                        }
                    }
                }
                seen
            };
            memory.write(64, &[0; 16]);
            std::thread::scope(|scope| {
                let other = scope.spawn(|| count(&memory));
                assert_eq!((count(&memory), other.join().unwrap()), (ROUNDS - 1, ROUNDS - 1));
            });
            let mut last = [0; 16];
            memory.read(64, &mut last[..bytes]);
            let expected = u8::try_from(2 * ROUNDS % 256).unwrap();
            assert!(last[..bytes].iter().all(|byte| *byte == expected), "{bytes}: {last:?}");
        }
    }

    #[test]
    fn bytes_survive_at_every_alignment() {
        let (_fd, memory) = mapping(4096);
        for at in 0..17 {
            for length in (0..40).chain(2040..2060) {
                let bytes: Vec<u8> =
                    (0..length).map(|i| u8::try_from((i + at) % 255 + 1).unwrap()).collect();
                memory.write(0, &[0; 2200]);
                memory.write(at, &bytes);
                let mut back = vec![0; length];
                memory.read(at, &mut back);
                assert_eq!(back, bytes, "{length} bytes at {at}");
                let mut all = [0; 2200];
                memory.read(0, &mut all);
                let outside = all[..at].iter().chain(&all[at + length..]).all(|byte| *byte == 0);
                assert!(outside, "{length} bytes at {at} reached further");
            }
        }
    }

    #[test]
    #[should_panic(expected = "outside a mapping")]
    fn reading_past_the_end_panics() {
        let (_fd, memory) = mapping(4096);
        memory.read(4090, &mut [0; 8]);
    }

    #[test]
    fn memory_is_seen_at_a_second_address_until_that_is_given_up() {
        let (fd, memory) = mapping(16384);
        // Far from what the system gives unasked.
        let address = 1 << 45;
        for round in [1, 2] {
            let twin = memory.map_again(fd.as_fd(), 4096, address).unwrap();
            memory.write(4096 + 8, &[round; 8]);
            // SAFETY: the twin maps 12,288 bytes there, and nobody writes them now.
            assert_eq!(unsafe { twin.address(8).read_volatile() }, round);
            assert_eq!(twin.address(12_288).addr() as u64, address + 12_288, "its end");
            let beyond = std::panic::AssertUnwindSafe(|| twin.address(12_289));
            assert!(std::panic::catch_unwind(beyond).is_err());
            let taken = memory.map_again(fd.as_fd(), 4096, address).map(|_| ());
            assert_eq!(taken, Err(rustix::io::Errno::EXIST));
        }
    }

    #[test]
    fn the_size_is_final() {
        let (fd, _memory) = mapping(8192);
        assert_eq!(rustix::fs::ftruncate(&fd, 4096), Err(rustix::io::Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(&fd, 1 << 20), Err(rustix::io::Errno::PERM));
        let more = rustix::fs::fcntl_add_seals(&fd, SealFlags::WRITE);
        assert_eq!(more, Err(rustix::io::Errno::PERM));
    }

    #[test]
    fn memory_that_could_shrink_or_lies_is_refused() {
        use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
        let fd = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, 4096).unwrap();
        assert!(matches!(Mapping::new(fd.as_fd(), 4096), Err(MapError::Unsealed)));
        let fd = sealed_memory(4096).unwrap();
        let error = Mapping::new(fd.as_fd(), 8192).unwrap_err();
        assert!(matches!(error, MapError::Size { announced: 8192, found: 4096 }));
        let fd = sealed_memory(0).unwrap();
        let error = Mapping::new(fd.as_fd(), 0).unwrap_err();
        assert!(matches!(error, MapError::Size { announced: 0, found: 0 }));
    }
}
