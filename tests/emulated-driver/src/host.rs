//! Memory of this process that the GPU reaches: by copies, and by kernels where it is mapped.

use partita_device::{HostMemory, HostSpan};
use partita_emu::PageTables;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A range of this process's memory. Its callers keep it as the driver's contract says.
struct Range {
    start: usize,
    bytes: u64,
}

/// A range of memory that a caller gave or this library has mapped.
pub fn span(start: usize, bytes: u64) -> Option<HostSpan> {
    HostSpan::new(Arc::new(Range { start, bytes }), 0, bytes)
}

impl Range {
    fn at(&self, offset: u64) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.start + crate::abi::narrow(offset))
    }
}

/// Ranges of this process's memory that are page-locked for kernels: bytes by first address.
pub type Mapped = Arc<Mutex<BTreeMap<u64, u64>>>;

/// This process's memory, for kernels.
pub struct OwnPageTables {
    /// Whether kernels use the host's page tables.
    pub is_pageable: bool,
    /// What they reach in any case.
    pub mapped: Mapped,
}

/// The smallest page.
const PAGE: usize = 4096;

impl PageTables for OwnPageTables {
    fn find(&self, address: u64, bytes: u64) -> Option<HostSpan> {
        let (first, bytes) = (usize::try_from(address).ok()?, usize::try_from(bytes).ok()?);
        let last = first.checked_add(bytes.checked_sub(1)?)?;
        let mapped = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((start, length)) = mapped.range(..=address).next_back()
            && last as u64 - start < *length
        {
            return span(first, bytes as u64);
        }
        drop(mapped);
        if !self.is_pageable {
            return None;
        }
        let is_there = is_readable(first) && (first / PAGE == last / PAGE || is_readable(last));
        if is_there { span(first, bytes as u64) } else { None }
    }
}

/// Whether this process can read a byte. The kernel copies it, and refuses where it cannot.
fn is_readable(address: usize) -> bool {
    let mut byte = [0_u8];
    let into = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    let from = libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(address), iov_len: 1 };
    // SAFETY: takes nothing.
    let own = unsafe { libc::getpid() };
    // SAFETY: the target is a local; the kernel checks the source.
    unsafe { libc::process_vm_readv(own, &raw const into, 1, &raw const from, 1, 0) == 1 }
}

/// Copies word by word, because another thread may use the words at the same time.
fn copy_words(count: usize, address: usize, mut each: impl FnMut(usize, usize)) {
    let mut at = 0;
    while at < count {
        let fits = |bytes: usize| (address + at).is_multiple_of(bytes) && count - at >= bytes;
        let bytes = [8, 4].into_iter().find(|bytes| fits(*bytes)).unwrap_or(1);
        each(at, bytes);
        at += bytes;
    }
}

/// An atomic of an integer type at an address.
macro_rules! atomic {
    ($kind:ty, $at:expr) => {{
        // SAFETY: the range belongs to a caller who keeps it while the driver uses it, the address
        // is aligned, and every access in this file is atomic.
        unsafe { <$kind>::from_ptr($at.cast()) }
    }};
}

impl HostMemory for Range {
    fn size(&self) -> u64 {
        self.bytes
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        let start = self.at(offset);
        copy_words(into.len(), start.addr(), |at, bytes| {
            let from = start.wrapping_add(at);
            match bytes {
                8 => {
                    let word = atomic!(AtomicU64, from).load(Ordering::Relaxed);
                    into[at..at + 8].copy_from_slice(&word.to_le_bytes());
                }
                4 => {
                    let word = atomic!(AtomicU32, from).load(Ordering::Relaxed);
                    into[at..at + 4].copy_from_slice(&word.to_le_bytes());
                }
                _ => into[at] = atomic!(AtomicU8, from).load(Ordering::Relaxed),
            }
        });
        std::sync::atomic::fence(Ordering::Acquire);
    }

    fn write(&self, offset: u64, from: &[u8]) {
        std::sync::atomic::fence(Ordering::Release);
        let start = self.at(offset);
        copy_words(from.len(), start.addr(), |at, bytes| {
            let to = start.wrapping_add(at);
            let mut word = [0; 8];
            word[..bytes].copy_from_slice(&from[at..at + bytes]);
            let word = u64::from_le_bytes(word);
            let [low, ..] = word.to_le_bytes();
            match bytes {
                8 => atomic!(AtomicU64, to).store(word, Ordering::Relaxed),
                4 => atomic!(AtomicU32, to).store(lower(word), Ordering::Relaxed),
                _ => atomic!(AtomicU8, to).store(low, Ordering::Relaxed),
            }
        });
    }

    fn compare_exchange(&self, offset: u64, old: &[u8], new: &[u8]) -> bool {
        let word = |bytes: &[u8]| {
            let mut all = [0; 8];
            let count = bytes.len().min(8);
            all[..count].copy_from_slice(&bytes[..count]);
            u64::from_le_bytes(all)
        };
        let (at, old_word, new_word) = (self.at(offset), word(old), word(new));
        let both = Ordering::SeqCst;
        match new.len() {
            16 => exchange_16(at, old, new),
            8 => {
                let place = atomic!(AtomicU64, at);
                place.compare_exchange(old_word, new_word, both, both).is_ok()
            }
            4 => {
                let (old, new) = (lower(old_word), lower(new_word));
                atomic!(AtomicU32, at).compare_exchange(old, new, both, both).is_ok()
            }
            _ => {
                let [old, new] = [old_word, new_word].map(|word| {
                    let [low, high, ..] = word.to_le_bytes();
                    u16::from_le_bytes([low, high])
                });
                atomic!(AtomicU16, at).compare_exchange(old, new, both, both).is_ok()
            }
        }
    }

    fn can_exchange(&self, bytes: usize) -> bool {
        matches!(bytes, 2 | 4 | 8) || bytes == 16 && has_exchange_16()
    }
}

/// Whether the processor exchanges 16 bytes at once.
#[cfg(target_arch = "x86_64")]
fn has_exchange_16() -> bool {
    std::arch::is_x86_feature_detected!("cmpxchg16b")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_exchange_16() -> bool {
    false
}

/// Exchanges 16 bytes at an aligned address, where [`has_exchange_16`] says that it can be. The
/// library's own function needs another library where it is not inlined.
#[cfg(target_arch = "x86_64")]
fn exchange_16(at: *mut u8, old: &[u8], new: &[u8]) -> bool {
    let half = |bytes: &[u8], first: usize| {
        let half = bytes.get(first..).and_then(|rest| rest.first_chunk());
        half.copied().map_or(0, u64::from_le_bytes)
    };
    let (old_low, old_high) = (half(old, 0), half(old, 8));
    let (seen_low, seen_high): (u64, u64);
    // SAFETY: the range belongs to a caller who keeps it, the address is aligned, and the processor
    // has the instruction; rbx, which the compiler keeps to itself, is as it was.
    unsafe {
        std::arch::asm!(
            "xchg rbx, {low}",
            "lock cmpxchg16b [rdi]",
            "mov rbx, {low}",
            low = inout(reg) half(new, 0) => _,
            in("rdi") at,
            in("rcx") half(new, 8),
            inout("rax") old_low => seen_low,
            inout("rdx") old_high => seen_high,
            options(nostack),
        );
    }
    (seen_low, seen_high) == (old_low, old_high)
}

#[cfg(not(target_arch = "x86_64"))]
fn exchange_16(_at: *mut u8, _old: &[u8], _new: &[u8]) -> bool {
    false
}

/// The lower half of a word.
fn lower(word: u64) -> u32 {
    let [a, b, c, d, ..] = word.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// Writes to file descriptor 1, as drivers do with what kernels print.
pub fn write_to_stdout(text: &[u8]) {
    let mut rest = text;
    while !rest.is_empty() {
        // SAFETY: a slice that lives, and its length.
        let written = unsafe { libc::write(1, rest.as_ptr().cast(), rest.len()) };
        match usize::try_from(written) {
            Ok(written) if written > 0 => rest = &rest[written..],
            _ => return,
        }
    }
}

/// Reserves addresses of this process at `at`, or maps zeroed memory there where `usable`. False
/// where the addresses are not free.
pub fn map_at(at: u64, bytes: u64, usable: bool) -> bool {
    let protection = if usable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_NONE };
    let flags =
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    let hint = std::ptr::with_exposed_provenance_mut(crate::abi::narrow(at));
    // SAFETY: anonymous memory, at addresses where nothing is: the kernel refuses others.
    let found = unsafe { libc::mmap(hint, crate::abi::narrow(bytes), protection, flags, -1, 0) };
    if found == libc::MAP_FAILED {
        return false;
    }
    if found.expose_provenance() as u64 != at {
        // A kernel before 4.17 takes the flag for a hint.
        unmap(found.expose_provenance() as u64, bytes);
        return false;
    }
    true
}

/// Gives addresses back that [`map_at`] has taken.
pub fn unmap(at: u64, bytes: u64) {
    let start = std::ptr::with_exposed_provenance_mut(crate::abi::narrow(at));
    // SAFETY: this library has mapped the range, and nothing uses it any more.
    let _ = unsafe { libc::munmap(start, crate::abi::narrow(bytes)) };
}

/// Memory of the host that can be mapped at several addresses.
#[derive(Debug)]
pub struct SharedFile(std::os::fd::OwnedFd);

impl SharedFile {
    /// Makes some zeroed bytes.
    pub fn new(bytes: u64) -> Option<SharedFile> {
        // SAFETY: a string, and a flag.
        let file = unsafe { libc::memfd_create(c"memory of the host".as_ptr(), libc::MFD_CLOEXEC) };
        if file < 0 {
            return None;
        }
        // SAFETY: the descriptor was just made, and is nobody else's.
        let file = unsafe { <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(file) };
        std::fs::File::from(file.try_clone().ok()?).set_len(bytes).ok()?;
        Some(SharedFile(file))
    }

    /// Maps its first bytes at reserved addresses.
    pub fn map(&self, at: u64, bytes: u64) -> bool {
        use std::os::fd::AsRawFd as _;
        let start = std::ptr::with_exposed_provenance_mut(crate::abi::narrow(at));
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        let file = self.0.as_raw_fd();
        // SAFETY: this library has reserved the addresses, and the file has `bytes` bytes.
        let found =
            unsafe { libc::mmap(start, crate::abi::narrow(bytes), protection, flags, file, 0) };
        found != libc::MAP_FAILED
    }
}

/// Makes mapped addresses reserved ones again.
pub fn reserve_again(at: u64, bytes: u64) {
    let start = std::ptr::with_exposed_provenance_mut(crate::abi::narrow(at));
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: addresses that this library has reserved and mapped, and that nothing uses any more.
    let _ = unsafe { libc::mmap(start, crate::abi::narrow(bytes), libc::PROT_NONE, flags, -1, 0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_exchanged_where_the_old_one_is_there() {
        #[repr(align(16))]
        struct Words([u8; 16]);
        let mut words = Words(std::array::from_fn(|at| u8::try_from(at).unwrap_or(0)));
        let memory = span(words.0.as_mut_ptr().expose_provenance(), 16).expect("it is there");
        for bytes in [2, 4, 8, 16].into_iter().filter(|bytes| memory.can_exchange(*bytes)) {
            let mut old = vec![0; bytes];
            memory.read(0, &mut old);
            let new: Vec<u8> = old.iter().map(|byte| byte ^ 0xff).collect();
            assert!(!memory.compare_exchange(0, &new, &old), "{bytes}");
            assert!(memory.compare_exchange(0, &old, &new), "{bytes}");
            let mut now = vec![0; bytes];
            memory.read(0, &mut now);
            assert_eq!(now, new);
        }
    }

    #[test]
    fn page_tables_say_what_is_there() {
        let byte = Box::new(7_u8);
        let address = std::ptr::from_ref(&*byte).expose_provenance() as u64;
        let tables = OwnPageTables { is_pageable: true, mapped: Mapped::default() };
        let found = tables.find(address, 1).expect("it is there");
        let mut back = [0];
        found.read(0, &mut back);
        assert_eq!(back, [7]);
        assert!(tables.find(0, 1).is_none());
        assert!(tables.find(u64::MAX, 8).is_none());
        let locked = OwnPageTables { is_pageable: false, mapped: Mapped::default() };
        assert!(locked.find(address, 1).is_none());
        locked.mapped.lock().expect("nobody panics").insert(address, 1);
        assert!(locked.find(address, 1).is_some() && locked.find(address, 2).is_none());
    }
}
