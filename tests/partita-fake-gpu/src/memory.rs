//! Memory. Addresses are reserved without access, and a mapping grants none either. Physical memory
//! is counted, and each mapping makes it anew; after `set shared on` it is the same at all of its
//! addresses.

use crate::state::{INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY, SUCCESS, State};
use libc::{
    MAP_ANONYMOUS, MAP_FAILED, MAP_FIXED, MAP_NORESERVE, MAP_PRIVATE, MAP_SHARED, PROT_NONE,
    PROT_READ, PROT_WRITE,
};

/// Memory of the GPU unless `set memory BYTES` says otherwise.
const MEMORY: u64 = 1 << 30;

/// All of it.
pub fn capacity(state: &State) -> u64 {
    state.setting("memory", MEMORY)
}

fn map(at: u64, bytes: u64, protection: i32, flags: i32) -> Option<u64> {
    let bytes = usize::try_from(bytes).ok()?;
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags;
    // SAFETY: anonymous memory; fixed addresses are only given where this module has reserved them.
    let found = unsafe { libc::mmap(at as *mut libc::c_void, bytes, protection, flags, -1, 0) };
    (found != MAP_FAILED).then_some(found as u64)
}

fn unmap(at: u64, bytes: u64) {
    let Ok(bytes) = usize::try_from(bytes) else { return };
    // SAFETY: what this module mapped, and nobody uses any more.
    let _ = unsafe { libc::munmap(at as *mut libc::c_void, bytes) };
}

/// `cuMemAddressReserve`. Addresses are whole pages of the GPU (`granularity`), as the driver's
/// are: the kernel aligns only most of its large mappings so.
pub fn reserve(
    state: &mut State,
    bytes: u64,
    alignment: u64,
    hint: u64,
    granularity: u64,
) -> Result<u64, u32> {
    let alignment = alignment.max(granularity);
    if hint != 0
        && hint.is_multiple_of(alignment)
        && let Some(found) = map(hint, bytes, PROT_NONE, 0)
    {
        if found == hint {
            state.reserved.insert(found, bytes);
            return Ok(found);
        }
        unmap(found, bytes);
    }
    let whole = bytes.checked_add(alignment).ok_or(INVALID_VALUE)?;
    let found = map(0, whole, PROT_NONE, 0).ok_or(OUT_OF_MEMORY)?;
    let start = found.next_multiple_of(alignment);
    let tail = found + whole - (start + bytes);
    if start > found {
        unmap(found, start - found);
    }
    if tail > 0 {
        unmap(start + bytes, tail);
    }
    state.reserved.insert(start, bytes);
    Ok(start)
}

/// `cuMemAddressFree`.
pub fn unreserve(state: &mut State, start: u64, bytes: u64) -> u32 {
    if state.reserved.get(&start) != Some(&bytes)
        || state.mapped.range(start..start + bytes).next().is_some()
    {
        return INVALID_VALUE;
    }
    state.reserved.remove(&start);
    unmap(start, bytes);
    SUCCESS
}

/// Physical memory.
pub struct Physical {
    pub bytes: u64,
    /// Handles and mappings.
    pub holders: u32,
    /// Its bytes, where all mappings have the same.
    file: Option<std::os::fd::OwnedFd>,
    /// Whether it is for arrays, and nothing else.
    pub for_arrays: bool,
}

/// A mapping.
#[derive(Clone, Copy)]
pub struct Mapping {
    pub bytes: u64,
    pub handle: u64,
    /// `CUmemAccess_flags` of the device.
    pub access: u32,
}

fn file(bytes: u64) -> Option<std::os::fd::OwnedFd> {
    // SAFETY: a string, and no flags.
    let file = unsafe { libc::memfd_create(c"memory of the GPU".as_ptr(), 0) };
    if file < 0 {
        return None;
    }
    // SAFETY: the descriptor was just made, and is nobody else's.
    let file = unsafe { <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(file) };
    std::fs::File::from(file.try_clone().ok()?).set_len(bytes).ok()?;
    Some(file)
}

/// `cuMemCreate`.
pub fn create(state: &mut State, bytes: u64, for_arrays: bool) -> Result<u64, u32> {
    if state.used + bytes > capacity(state) {
        return Err(OUT_OF_MEMORY);
    }
    state.used += bytes;
    let handle = state.handle();
    let file =
        if state.settings.get("shared").is_some_and(|on| on == "on") { file(bytes) } else { None };
    state.physical.insert(handle, Physical { bytes, holders: 1, file, for_arrays });
    Ok(handle)
}

/// `cuMemRetainAllocationHandle`.
pub fn retain(state: &mut State, address: u64) -> Result<u64, u32> {
    let mapping = state.mapped.range(..=address).next_back();
    let mapping = mapping.filter(|(start, mapping)| address - **start < mapping.bytes);
    let handle = mapping.ok_or(INVALID_VALUE)?.1.handle;
    state.physical.get_mut(&handle).ok_or(INVALID_VALUE)?.holders += 1;
    Ok(handle)
}

/// `cuMemRelease`, or the end of a mapping.
pub fn release(state: &mut State, handle: u64) -> u32 {
    let Some(physical) = state.physical.get_mut(&handle) else { return INVALID_VALUE };
    physical.holders -= 1;
    if physical.holders == 0 {
        state.used -= physical.bytes;
        state.physical.remove(&handle);
    }
    SUCCESS
}

/// `cuMemMap`.
pub fn map_physical(state: &mut State, start: u64, bytes: u64, handle: u64) -> u32 {
    let reserved = state.reserved.range(..=start).next_back();
    let inside = reserved.is_some_and(|(&first, &length)| start + bytes <= first + length);
    let free = state
        .mapped
        .range(..start + bytes)
        .next_back()
        .is_none_or(|(&at, mapping)| at + mapping.bytes <= start);
    let parts = state.setting("parts", 1) == 1;
    let file = match state.physical.get_mut(&handle) {
        Some(physical)
            if inside && free && (physical.bytes == bytes || parts && bytes < physical.bytes) =>
        {
            physical.holders += 1;
            physical.file.as_ref().map(std::os::fd::AsRawFd::as_raw_fd)
        }
        _ => return INVALID_VALUE,
    };
    // No access before cuMemSetAccess.
    let mapped = match file {
        Some(file) => {
            // SAFETY: addresses that this module has reserved, and a file of at least so many
            // bytes.
            let at = unsafe {
                libc::mmap(
                    start as *mut libc::c_void,
                    usize::try_from(bytes).unwrap_or(0),
                    PROT_NONE,
                    MAP_FIXED | MAP_SHARED,
                    file,
                    0,
                )
            };
            at != MAP_FAILED
        }
        None => map(start, bytes, PROT_NONE, MAP_FIXED).is_some(),
    };
    if !mapped {
        return OUT_OF_MEMORY;
    }
    state.mapped.insert(start, Mapping { bytes, handle, access: 0 });
    SUCCESS
}

/// `cuMemSetAccess`: `flags` are 0 for none, 1 for reading, 3 for both.
pub fn give_access(state: &mut State, start: u64, bytes: u64, flags: u32) -> u32 {
    let mut at = start;
    while at < start + bytes {
        let Some(mapping) = state.mapped.get(&at) else { return INVALID_VALUE };
        at += mapping.bytes;
    }
    let protection = match flags {
        0 => PROT_NONE,
        1 if state.setting("read-only", 0) == 1 => PROT_READ,
        // As drivers do that know no memory which is only read.
        1 => return NOT_SUPPORTED,
        3 => PROT_READ | PROT_WRITE,
        _ => return INVALID_VALUE,
    };
    if at != start + bytes {
        return INVALID_VALUE;
    }
    let Ok(length) = usize::try_from(bytes) else { return INVALID_VALUE };
    // SAFETY: the range is mapped by this module.
    let result = unsafe { libc::mprotect(start as *mut libc::c_void, length, protection) };
    if result != 0 {
        return INVALID_VALUE;
    }
    for (_, mapping) in state.mapped.range_mut(start..start + bytes) {
        mapping.access = flags;
    }
    SUCCESS
}

/// `cuMemUnmap`: whole mappings, one behind the other.
pub fn unmap_physical(state: &mut State, start: u64, bytes: u64) -> u32 {
    let mut found = Vec::new();
    let mut at = start;
    while at < start + bytes {
        let Some(&Mapping { bytes: length, handle, .. }) = state.mapped.get(&at) else {
            return INVALID_VALUE;
        };
        found.push((at, length, handle));
        at += length;
    }
    if at != start + bytes {
        return INVALID_VALUE;
    }
    for (at, length, handle) in found {
        state.mapped.remove(&at);
        map(at, length, PROT_NONE, MAP_FIXED);
        let released = release(state, handle);
        if released != SUCCESS {
            return released;
        }
    }
    SUCCESS
}

/// Memory of the host that the device reaches, or device memory that `cuMemAlloc` gives.
pub fn pin(state: &mut State, bytes: u64) -> Result<u64, u32> {
    let start = map(0, bytes.max(1), PROT_READ | PROT_WRITE, 0).ok_or(OUT_OF_MEMORY)?;
    state.pinned.insert(start, bytes.max(1));
    Ok(start)
}

/// Its end.
pub fn unpin(state: &mut State, start: u64) -> u32 {
    match state.pinned.remove(&start) {
        Some(bytes) => {
            unmap(start, bytes);
            SUCCESS
        }
        None => INVALID_VALUE,
    }
}

/// Whether all of a range is memory that the device may touch.
pub fn is_live(state: &State, start: u64, bytes: u64) -> bool {
    let Some(end) = start.checked_add(bytes) else { return false };
    let mut at = start;
    while at < end {
        let mapped = state.mapped.range(..=at).next_back();
        let mapped = mapped.filter(|(_, mapping)| mapping.access != 0);
        let mapped = mapped.map(|(&first, mapping)| first + mapping.bytes);
        let pinned = state.pinned.range(..=at).next_back().map(|(&first, &length)| first + length);
        match mapped.max(pinned) {
            Some(until) if until > at => at = until,
            _ => return false,
        }
    }
    true
}

/// Copies.
pub fn copy(to: u64, from: u64, bytes: u64) {
    let Ok(bytes) = usize::try_from(bytes) else { return };
    // SAFETY: both ranges were live when the copy was submitted, and what frees them waits for it.
    unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
}

/// Fills.
pub fn set(to: u64, value: u32, width: u64, count: u64) {
    let Ok(width) = usize::try_from(width) else { return };
    for index in 0..count {
        let at = to + index * width as u64;
        // SAFETY: as in `copy`.
        unsafe {
            std::ptr::copy_nonoverlapping(value.to_le_bytes().as_ptr(), at as *mut u8, width)
        };
    }
}
