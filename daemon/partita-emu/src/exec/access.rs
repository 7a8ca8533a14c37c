//! Loads, stores and atomics, every one of them checked.
//!
//! The addresses of a warp are looked at together first: consecutive ones take one check and one copy, scattered ones
//! one check of their span where a single allocation holds it; only then lane by lane.
//!
//! An access that fails names the first lane at fault, so no lane has stored anything by then.

use super::cta::P_TRUE;
use super::float::{Bf16, F16, Half, flush, half_add2, half_max2, half_min2, min_max};
use super::inst::{AtomicKind, AtomicOp, AtomicType, Inst, MemoryOp, Source, Space};
use super::lane::{sign_extend, zero_extend};
use super::rows::{LANES, lanes};
use super::step::{Core, Env, Trouble};
use super::trace::AccessKind;
use crate::memory::{GLOBAL_BASE, LOCAL_BASE, PARAM_BASE, SHARED_BASE, SPACE_BYTES};
use partita_device::FaultKind;

type Outcome = Result<(), Box<Trouble>>;

/// `aux` bit of a load that must not hit in L1.
pub const PAST_L1: u16 = 1 << 8;

/// Whether 32 addresses follow one another at a distance of `BYTES`, from the first lane's on.
#[inline(always)]
fn consecutive<const BYTES: u64>(addresses: &[u64; LANES]) -> bool {
    let first = addresses[0];
    let mut different = 0;
    for lane in 0..LANES {
        different |= addresses[lane] ^ first.wrapping_add(lane as u64 * BYTES);
    }
    different == 0
}

#[inline(always)]
fn consecutive32<const BYTES: u32>(addresses: &[u32; LANES]) -> bool {
    let first = addresses[0];
    let mut different = 0;
    for lane in 0..LANES {
        different |= addresses[lane] ^ first.wrapping_add(lane as u32 * BYTES);
    }
    different == 0
}

/// Lowest and highest address of the lanes in `mask`, and all their bits.
#[inline(always)]
fn span(addresses: &[u64; LANES], mask: u32) -> (u64, u64, u64) {
    let (mut low, mut high, mut bits) = (u64::MAX, 0, 0);
    if mask == u32::MAX {
        for &address in addresses {
            low = low.min(address);
            high = high.max(address);
            bits |= address;
        }
    } else {
        for lane in lanes(mask) {
            low = low.min(addresses[lane]);
            high = high.max(addresses[lane]);
            bits |= addresses[lane];
        }
    }
    (low, high, bits)
}

fn load_kind(i: &Inst) -> AccessKind {
    if i.aux & PAST_L1 != 0 { AccessKind::LoadPastL1 } else { AccessKind::Load }
}

/// `ld.global` of 32 or 64 bits into a row of that width.
#[inline(always)]
pub fn load_global(core: &mut Core<'_>, i: &Inst, env: &mut Env<'_>, pc: usize) -> Outcome {
    for w in 0..core.warps {
        let mask = core.mask(i, w);
        if mask == 0 {
            continue;
        }
        env.trace.counts.global_loads += 1;
        let base = core.row64(i.a, w);
        let offset = i.imm as u64;
        if i.aux & 8 != 0 {
            let mut out = [0_u64; LANES];
            let low = base[0].wrapping_add(offset);
            if consecutive::<8>(base)
                && low.is_multiple_of(8)
                && let Some(bytes) = env.grants.bytes(env.memory, pc, low, low.wrapping_add(256))
            {
                for (out, bytes) in out.iter_mut().zip(bytes.as_chunks::<8>().0) {
                    *out = u64::from_le_bytes(*bytes);
                }
                env.trace.range(load_kind(i), low, low + 256, pc);
            } else {
                let addresses = base.map(|address| address.wrapping_add(offset));
                gather::<8>(env, &addresses, mask, pc, w + core.first_warp, |lane, bytes| {
                    out[lane] = u64::from_le_bytes(*bytes);
                })?;
                env.trace.scattered(load_kind(i), &addresses, mask, 8, pc);
            }
            core.put64(i.d, w, mask, &out);
        } else {
            let mut out = [0_u32; LANES];
            let low = base[0].wrapping_add(offset);
            if consecutive::<4>(base)
                && low.is_multiple_of(4)
                && let Some(bytes) = env.grants.bytes(env.memory, pc, low, low.wrapping_add(128))
            {
                for (out, bytes) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                    *out = u32::from_le_bytes(*bytes);
                }
                env.trace.range(load_kind(i), low, low + 128, pc);
            } else {
                let addresses = base.map(|address| address.wrapping_add(offset));
                gather::<4>(env, &addresses, mask, pc, w + core.first_warp, |lane, bytes| {
                    out[lane] = u32::from_le_bytes(*bytes);
                })?;
                env.trace.scattered(load_kind(i), &addresses, mask, 4, pc);
            }
            core.put32(i.d, w, mask, &out);
        }
    }
    Ok(())
}

/// Reads `BYTES` bytes for each lane of `mask`.
#[inline(always)]
fn gather<const BYTES: usize>(
    env: &mut Env<'_>,
    addresses: &[u64; LANES],
    mask: u32,
    pc: usize,
    warp: usize,
    mut put: impl FnMut(usize, &[u8; BYTES]),
) -> Outcome {
    let (low, high, bits) = span(addresses, mask);
    let aligned = bits & (BYTES as u64 - 1) == 0;
    if aligned && let Some(bytes) = env.grants.bytes(env.memory, pc, low, high.wrapping_add(BYTES as u64)) {
        if mask == u32::MAX {
            for lane in 0..LANES {
                let at = (addresses[lane] - low) as usize;
                if let Some(bytes) = bytes.get(at..).and_then(|rest| rest.first_chunk::<BYTES>()) {
                    put(lane, bytes);
                }
            }
        } else {
            for lane in lanes(mask) {
                let at = (addresses[lane] - low) as usize;
                if let Some(bytes) = bytes.get(at..).and_then(|rest| rest.first_chunk::<BYTES>()) {
                    put(lane, bytes);
                }
            }
        }
        return Ok(());
    }
    for lane in lanes(mask) {
        let address = addresses[lane];
        let found = if address.is_multiple_of(BYTES as u64) {
            env.grants.bytes(env.memory, pc, address, address.wrapping_add(BYTES as u64))
        } else {
            None
        };
        match found.and_then(|bytes| bytes.first_chunk::<BYTES>()) {
            Some(bytes) => put(lane, bytes),
            None => return Err(global_trouble(env, warp, lane, pc, address, BYTES as u32, Access::Load)),
        }
    }
    Ok(())
}

/// `st.global` of 32 or 64 bits from a row of that width.
#[inline(always)]
pub fn store_global(core: &mut Core<'_>, i: &Inst, env: &mut Env<'_>, pc: usize) -> Outcome {
    for w in 0..core.warps {
        let mask = core.mask(i, w);
        if mask == 0 {
            continue;
        }
        env.trace.counts.global_stores += 1;
        let base = core.row64(i.a, w);
        let offset = i.imm as u64;
        let low = base[0].wrapping_add(offset);
        if i.aux & 8 != 0 {
            let values = core.row64(i.b, w);
            if mask == u32::MAX
                && consecutive::<8>(base)
                && low.is_multiple_of(8)
                && let Some(bytes) = env.grants.bytes_mut(env.memory, pc, low, low.wrapping_add(256))
            {
                for (bytes, value) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(values) {
                    *bytes = value.to_le_bytes();
                }
                env.trace.range(AccessKind::Store, low, low + 256, pc);
            } else {
                let addresses = base.map(|address| address.wrapping_add(offset));
                scatter::<8>(env, &addresses, mask, pc, w + core.first_warp, |lane| {
                    values[lane].to_le_bytes()
                })?;
                env.trace.scattered(AccessKind::Store, &addresses, mask, 8, pc);
            }
        } else {
            let values = core.row32(i.b, w);
            if mask == u32::MAX
                && consecutive::<4>(base)
                && low.is_multiple_of(4)
                && let Some(bytes) = env.grants.bytes_mut(env.memory, pc, low, low.wrapping_add(128))
            {
                for (bytes, value) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(values) {
                    *bytes = value.to_le_bytes();
                }
                env.trace.range(AccessKind::Store, low, low + 128, pc);
            } else {
                let addresses = base.map(|address| address.wrapping_add(offset));
                scatter::<4>(env, &addresses, mask, pc, w + core.first_warp, |lane| {
                    values[lane].to_le_bytes()
                })?;
                env.trace.scattered(AccessKind::Store, &addresses, mask, 4, pc);
            }
        }
    }
    Ok(())
}

/// Writes `BYTES` bytes for each lane of `mask`; where two lanes write one place, the higher lane wins.
#[inline(always)]
fn scatter<const BYTES: usize>(
    env: &mut Env<'_>,
    addresses: &[u64; LANES],
    mask: u32,
    pc: usize,
    warp: usize,
    value: impl Fn(usize) -> [u8; BYTES],
) -> Outcome {
    let (low, high, bits) = span(addresses, mask);
    let aligned = bits & (BYTES as u64 - 1) == 0;
    if aligned && let Some(bytes) = env.grants.bytes_mut(env.memory, pc, low, high.wrapping_add(BYTES as u64))
    {
        for lane in lanes(mask) {
            let at = (addresses[lane] - low) as usize;
            if let Some(place) = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<BYTES>()) {
                *place = value(lane);
            }
        }
        return Ok(());
    }
    for lane in lanes(mask) {
        let address = addresses[lane];
        let end = address.wrapping_add(BYTES as u64);
        if !address.is_multiple_of(BYTES as u64)
            || env.grants.bytes_mut(env.memory, pc, address, end).is_none()
        {
            return Err(global_trouble(env, warp, lane, pc, address, BYTES as u32, Access::Store));
        }
    }
    for lane in lanes(mask) {
        let address = addresses[lane];
        if let Some(bytes) = env.grants.bytes_mut(env.memory, pc, address, address + BYTES as u64) {
            bytes.copy_from_slice(&value(lane));
        }
    }
    Ok(())
}

/// `ld.shared` of 32 or 64 bits with a 32-bit address.
#[inline(always)]
pub fn load_shared(core: &mut Core<'_>, i: &Inst, env: &mut Env<'_>, pc: usize) -> Outcome {
    for w in 0..core.warps {
        let mask = core.mask(i, w);
        if mask == 0 {
            continue;
        }
        env.trace.counts.shared_accesses += 1;
        let base = core.row32(i.a, w);
        let offset = i.imm as u32;
        let low = base[0].wrapping_add(offset);
        if i.aux & 8 != 0 {
            let mut out = [0_u64; LANES];
            for lane in lanes(mask) {
                let at = base[lane].wrapping_add(offset);
                let bytes = env.shared.get(at as usize..).and_then(|rest| rest.first_chunk::<8>());
                let Some(bytes) = bytes.filter(|_| at.is_multiple_of(8)) else {
                    return Err(shared_trouble(
                        env,
                        w + core.first_warp,
                        lane,
                        pc,
                        u64::from(at),
                        8,
                        Access::Load,
                    ));
                };
                out[lane] = u64::from_le_bytes(*bytes);
            }
            trace_shared(env, base, offset, mask);
            core.put64(i.d, w, mask, &out);
            continue;
        }
        let mut out = [0_u32; LANES];
        if consecutive32::<4>(base)
            && low.is_multiple_of(4)
            && let Some(bytes) = env.shared.get(low as usize..).and_then(|rest| rest.first_chunk::<128>())
        {
            for (out, bytes) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *out = u32::from_le_bytes(*bytes);
            }
        } else if mask == u32::MAX && consecutive32::<0>(base) {
            let bytes = env.shared.get(low as usize..).and_then(|rest| rest.first_chunk::<4>());
            let Some(bytes) = bytes.filter(|_| low.is_multiple_of(4)) else {
                return Err(shared_trouble(env, w + core.first_warp, 0, pc, u64::from(low), 4, Access::Load));
            };
            out = [u32::from_le_bytes(*bytes); LANES];
        } else {
            for lane in lanes(mask) {
                let at = base[lane].wrapping_add(offset);
                let bytes = env.shared.get(at as usize..).and_then(|rest| rest.first_chunk::<4>());
                let Some(bytes) = bytes.filter(|_| at.is_multiple_of(4)) else {
                    return Err(shared_trouble(
                        env,
                        w + core.first_warp,
                        lane,
                        pc,
                        u64::from(at),
                        4,
                        Access::Load,
                    ));
                };
                out[lane] = u32::from_le_bytes(*bytes);
            }
            trace_shared(env, base, offset, mask);
        }
        core.put32(i.d, w, mask, &out);
    }
    Ok(())
}

/// `st.shared` of 32 or 64 bits with a 32-bit address.
#[inline(always)]
pub fn store_shared(core: &mut Core<'_>, i: &Inst, env: &mut Env<'_>, pc: usize) -> Outcome {
    for w in 0..core.warps {
        let mask = core.mask(i, w);
        if mask == 0 {
            continue;
        }
        env.trace.counts.shared_accesses += 1;
        let base = core.row32(i.a, w);
        let offset = i.imm as u32;
        let low = base[0].wrapping_add(offset);
        let bytes = u32::from(i.aux & 12);
        if bytes == 4
            && mask == u32::MAX
            && consecutive32::<4>(base)
            && low.is_multiple_of(4)
            && let Some(places) =
                env.shared.get_mut(low as usize..).and_then(|rest| rest.first_chunk_mut::<128>())
        {
            for (place, value) in places.as_chunks_mut::<4>().0.iter_mut().zip(core.row32(i.b, w)) {
                *place = value.to_le_bytes();
            }
            continue;
        }
        let size = env.shared.len() as u64;
        for lane in lanes(mask) {
            let at = base[lane].wrapping_add(offset);
            if !at.is_multiple_of(bytes) || u64::from(at) + u64::from(bytes) > size {
                let warp = w + core.first_warp;
                return Err(shared_trouble(env, warp, lane, pc, u64::from(at), bytes, Access::Store));
            }
        }
        for lane in lanes(mask) {
            let at = base[lane].wrapping_add(offset) as usize;
            if bytes == 8 {
                env.shared[at..at + 8].copy_from_slice(&core.row64(i.b, w)[lane].to_le_bytes());
            } else {
                env.shared[at..at + 4].copy_from_slice(&core.row32(i.b, w)[lane].to_le_bytes());
            }
        }
        trace_shared(env, base, offset, mask);
    }
    Ok(())
}

fn trace_shared(env: &mut Env<'_>, base: &[u32; LANES], offset: u32, mask: u32) {
    if env.trace.wanted {
        env.trace.shared(&base.map(|address| u64::from(address.wrapping_add(offset))), mask);
    }
}

/// What was tried, for messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Access {
    Load,
    Store,
    Atomic,
}

impl Access {
    fn text(self) -> &'static str {
        match self {
            Access::Load => "load",
            Access::Store => "store",
            Access::Atomic => "atomic",
        }
    }
}

#[cold]
#[inline(never)]
fn global_trouble(
    env: &Env<'_>,
    warp: usize,
    lane: usize,
    pc: usize,
    address: u64,
    bytes: u32,
    access: Access,
) -> Box<Trouble> {
    let what = access.text();
    let (kind, detail) = if !address.is_multiple_of(u64::from(bytes)) {
        (
            FaultKind::MisalignedAddress,
            format!("{what} of {bytes} bytes at an address that is no multiple of it"),
        )
    } else if access != Access::Load
        && env.grants.is_read_only(address, address.saturating_add(u64::from(bytes)))
    {
        (FaultKind::IllegalAddress, format!("{what} of {bytes} bytes to constant memory"))
    } else if !env.grants.covers(address, u64::from(bytes)) {
        let near = env.memory.describe(address);
        (
            FaultKind::IllegalAddress,
            format!("{what} of {bytes} bytes outside what the launch may touch, {near}"),
        )
    } else {
        (FaultKind::IllegalAddress, format!("{what} of {bytes} bytes, {}", env.memory.describe(address)))
    };
    Box::new(Trouble { kind, warp, lane, pc, address: Some(address), detail })
}

#[cold]
#[inline(never)]
fn shared_trouble(
    env: &Env<'_>,
    warp: usize,
    lane: usize,
    pc: usize,
    address: u64,
    bytes: u32,
    access: Access,
) -> Box<Trouble> {
    let what = access.text();
    let (kind, detail) = if address.is_multiple_of(u64::from(bytes)) {
        let size = env.shared.len();
        (
            FaultKind::IllegalAddress,
            format!("{what} of {bytes} bytes beyond the CTA's {size} bytes of shared memory"),
        )
    } else {
        let text =
            format!("{what} of {bytes} bytes of shared memory at an address that is no multiple of it");
        (FaultKind::MisalignedAddress, text)
    };
    Box::new(Trouble { kind, warp, lane, pc, address: Some(address), detail })
}

/// A place in one of the spaces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Global(u64),
    Shared(u64),
    Local(u64),
    Param(u64),
}

fn place(space: Space, address: u64) -> Place {
    match space {
        Space::Global => Place::Global(address),
        Space::Shared => Place::Shared(address),
        Space::Local => Place::Local(address),
        Space::Param => Place::Param(address),
        Space::Generic => {
            let inside = |base: u64| address >= base && address - base < SPACE_BYTES;
            if inside(SHARED_BASE) {
                Place::Shared(address - SHARED_BASE)
            } else if inside(LOCAL_BASE) {
                Place::Local(address - LOCAL_BASE)
            } else if inside(PARAM_BASE) {
                Place::Param(address - PARAM_BASE)
            } else {
                Place::Global(address)
            }
        }
    }
}

fn local_offset(env: &Env<'_>, warp: usize, lane: usize, offset: u64, bytes: u32) -> Option<usize> {
    let size = u64::from(env.program.local);
    (offset.checked_add(u64::from(bytes))? <= size)
        .then(|| (warp * LANES + lane) * size as usize + offset as usize)
}

/// Reads into `into` from wherever an address points.
fn read(env: &mut Env<'_>, (warp, lane, pc): (usize, usize, usize), at: Place, into: &mut [u8]) -> Outcome {
    let length = into.len();
    let bytes = length as u32;
    match at {
        Place::Global(address) => {
            let found = env.grants.bytes(env.memory, pc, address, address.wrapping_add(length as u64));
            match found.filter(|_| address.is_multiple_of(u64::from(bytes))) {
                Some(found) => into.copy_from_slice(found),
                None => return Err(global_trouble(env, warp, lane, pc, address, bytes, Access::Load)),
            }
        }
        Place::Shared(offset) => {
            let found = env.shared.get(offset as usize..).and_then(|rest| rest.get(..length));
            match found.filter(|_| offset.is_multiple_of(u64::from(bytes))) {
                Some(found) => into.copy_from_slice(found),
                None => return Err(shared_trouble(env, warp, lane, pc, offset, bytes, Access::Load)),
            }
        }
        Place::Local(offset) => match local_offset(env, warp, lane, offset, bytes) {
            Some(start) if offset.is_multiple_of(u64::from(bytes)) => {
                into.copy_from_slice(&env.local[start..start + length]);
            }
            _ => return Err(local_trouble(env, warp, lane, pc, offset, bytes, Access::Load)),
        },
        Place::Param(offset) => match env.params.get(offset as usize..).and_then(|rest| rest.get(..length)) {
            Some(found) => into.copy_from_slice(found),
            None => {
                let detail = format!(
                    "load of {bytes} bytes beyond the kernel's {} bytes of parameters",
                    env.params.len()
                );
                return Err(Box::new(Trouble {
                    kind: FaultKind::IllegalAddress,
                    warp,
                    lane,
                    pc,
                    address: Some(offset),
                    detail,
                }));
            }
        },
    }
    Ok(())
}

#[cold]
#[inline(never)]
fn local_trouble(
    env: &Env<'_>,
    warp: usize,
    lane: usize,
    pc: usize,
    address: u64,
    bytes: u32,
    access: Access,
) -> Box<Trouble> {
    let what = access.text();
    let (kind, detail) = if address.is_multiple_of(u64::from(bytes)) {
        let size = env.program.local;
        (
            FaultKind::IllegalAddress,
            format!("{what} of {bytes} bytes beyond the thread's {size} bytes of local memory"),
        )
    } else {
        let text = format!("{what} of {bytes} bytes of local memory at an address that is no multiple of it");
        (FaultKind::MisalignedAddress, text)
    };
    Box::new(Trouble { kind, warp, lane, pc, address: Some(address), detail })
}

/// Writes `from` to wherever an address points.
fn write(
    env: &mut Env<'_>,
    (warp, lane, pc): (usize, usize, usize),
    at: Place,
    from: &[u8],
    access: Access,
) -> Outcome {
    let length = from.len();
    let bytes = length as u32;
    match at {
        Place::Global(address) => {
            let end = address.wrapping_add(length as u64);
            if address.is_multiple_of(u64::from(bytes))
                && let Some(place) = env.grants.bytes_mut(env.memory, pc, address, end)
            {
                place.copy_from_slice(from);
                return Ok(());
            }
            Err(global_trouble(env, warp, lane, pc, address, bytes, access))
        }
        Place::Shared(offset) => {
            if offset.is_multiple_of(u64::from(bytes))
                && let Some(place) =
                    env.shared.get_mut(offset as usize..).and_then(|rest| rest.get_mut(..length))
            {
                place.copy_from_slice(from);
                return Ok(());
            }
            Err(shared_trouble(env, warp, lane, pc, offset, bytes, access))
        }
        Place::Local(offset) => match local_offset(env, warp, lane, offset, bytes) {
            Some(start) if offset.is_multiple_of(u64::from(bytes)) => {
                env.local[start..start + length].copy_from_slice(from);
                Ok(())
            }
            _ => Err(local_trouble(env, warp, lane, pc, offset, bytes, access)),
        },
        Place::Param(offset) => Err(Box::new(Trouble {
            kind: FaultKind::InvalidAddressSpace,
            warp,
            lane,
            pc,
            address: Some(offset),
            detail: format!("{} of {bytes} bytes to kernel parameters", access.text()),
        })),
    }
}

/// Any load or store.
#[inline(never)]
pub fn memory(core: &mut Core<'_>, i: &Inst, env: &mut Env<'_>, pc: usize) -> Outcome {
    let program = env.program;
    let op = &program.memory_ops[i.imm as usize];
    for w in 0..core.warps {
        let mask = core.mask(i, w);
        if mask == 0 {
            continue;
        }
        let addresses = core.get_all(op.address, w).map(|address| {
            let sum = address.wrapping_add(op.offset as u64);
            if matches!(op.address, Source::R32(_)) { sum & 0xffff_ffff } else { sum }
        });
        if op.store {
            store_elements(core, op, env, pc, w, mask, &addresses)?;
        } else {
            load_elements(core, op, env, pc, w, mask, &addresses)?;
        }
        note(core, i, op, env, pc, w, mask, &addresses);
    }
    Ok(())
}

#[expect(clippy::too_many_arguments, reason = "what one warp's access is made of")]
fn note(
    core: &Core<'_>,
    i: &Inst,
    op: &MemoryOp,
    env: &mut Env<'_>,
    pc: usize,
    _w: usize,
    mask: u32,
    addresses: &[u64; LANES],
) {
    let _ = core;
    let bytes = op.bytes * op.elements.len() as u32;
    match place(op.space, addresses[(mask.trailing_zeros() & 31) as usize]) {
        Place::Global(_) => {
            let kind = if op.store { AccessKind::Store } else { load_kind(i) };
            if op.store {
                env.trace.counts.global_stores += 1;
            } else {
                env.trace.counts.global_loads += 1;
            }
            env.trace.scattered(kind, addresses, mask, bytes, pc);
        }
        Place::Shared(_) => {
            env.trace.counts.shared_accesses += 1;
            env.trace.shared(addresses, mask);
        }
        Place::Local(_) | Place::Param(_) => {}
    }
}

fn load_elements(
    core: &mut Core<'_>,
    op: &MemoryOp,
    env: &mut Env<'_>,
    pc: usize,
    w: usize,
    mask: u32,
    addresses: &[u64; LANES],
) -> Outcome {
    let size = op.bytes as usize;
    let total = size * op.elements.len();
    let mut values = [[0_u64; LANES]; 8];
    for lane in lanes(mask) {
        let mut bytes = [0_u8; 64];
        read(env, (w + core.first_warp, lane, pc), place(op.space, addresses[lane]), &mut bytes[..total])?;
        for (element, value) in values[..op.elements.len()].iter_mut().enumerate() {
            let mut word = [0; 8];
            word[..size].copy_from_slice(&bytes[element * size..(element + 1) * size]);
            let word = u64::from_le_bytes(word);
            value[lane] =
                if op.signed { sign_extend(word, op.bytes * 8) } else { zero_extend(word, op.bytes * 8) };
        }
    }
    for (element, value) in op.elements.iter().zip(&values) {
        match element {
            Some(Source::R32(r)) => core.put32(*r, w, mask, &value.map(|v| v as u32)),
            Some(Source::R64(r)) => core.put64(*r, w, mask, value),
            Some(Source::P(_) | Source::None) | None => {}
        }
    }
    Ok(())
}

fn store_elements(
    core: &mut Core<'_>,
    op: &MemoryOp,
    env: &mut Env<'_>,
    pc: usize,
    w: usize,
    mask: u32,
    addresses: &[u64; LANES],
) -> Outcome {
    let size = op.bytes as usize;
    let total = size * op.elements.len();
    for lane in lanes(mask) {
        let mut bytes = [0_u8; 64];
        for (element, source) in op.elements.iter().enumerate() {
            let value = source.map_or(0, |source| core.get(source, w, lane));
            bytes[element * size..(element + 1) * size].copy_from_slice(&value.to_le_bytes()[..size]);
        }
        let at = place(op.space, addresses[lane]);
        write(env, (w + core.first_warp, lane, pc), at, &bytes[..total], Access::Store)?;
    }
    Ok(())
}

/// `cp.async`: copies at once. `c` holds the number of bytes that are copied; the rest is zero.
#[inline(never)]
pub fn async_copy(core: &mut Core<'_>, i: &Inst, env: &mut Env<'_>, pc: usize) -> Outcome {
    let program = env.program;
    let op = &program.memory_ops[i.imm as usize];
    let [target, source, length] = [op.elements[0], op.elements[1], op.elements[2]];
    for w in 0..core.warps {
        let mask = core.mask(i, w);
        let mut addresses = [0; LANES];
        for lane in lanes(mask) {
            let to = core.get(target.unwrap_or(Source::None), w, lane);
            let from = core.get(source.unwrap_or(Source::None), w, lane);
            let valid = length.map_or(u64::from(op.bytes), |length| core.get(length, w, lane));
            let mut bytes = [0_u8; 16];
            let valid = valid.min(u64::from(op.bytes)) as usize;
            let site = (w + core.first_warp, lane, pc);
            if valid == op.bytes as usize {
                read(env, site, Place::Global(from), &mut bytes[..valid])?;
            } else {
                for (index, byte) in bytes[..valid].iter_mut().enumerate() {
                    read(env, site, Place::Global(from + index as u64), std::slice::from_mut(byte))?;
                }
            }
            addresses[lane] = from;
            write(env, site, place(op.space, to), &bytes[..op.bytes as usize], Access::Store)?;
        }
        if mask != 0 {
            env.trace.counts.global_loads += 1;
            env.trace.scattered(AccessKind::LoadPastL1, &addresses, mask, op.bytes, pc);
        }
    }
    Ok(())
}

/// Atomics and reductions, lane after lane.
#[inline(never)]
pub fn atomic(core: &mut Core<'_>, i: &Inst, env: &mut Env<'_>, pc: usize) -> Outcome {
    let program = env.program;
    let op = program.atomic_ops[i.imm as usize];
    let bytes = op.ty.bytes() as usize;
    for w in 0..core.warps {
        let mask = core.mask(i, w);
        if mask == 0 {
            continue;
        }
        let mut old = [0_u64; LANES];
        let mut addresses = [0_u64; LANES];
        let mut global = false;
        for lane in lanes(mask) {
            let sum = core.get(op.address, w, lane).wrapping_add(op.offset as u64);
            let address = if matches!(op.address, Source::R32(_)) { sum & 0xffff_ffff } else { sum };
            addresses[lane] = address;
            let at = place(op.space, address);
            global |= matches!(at, Place::Global(_));
            let site = (w + core.first_warp, lane, pc);
            let mut word = [0_u8; 8];
            read(env, site, at, &mut word[..bytes]).map_err(|mut trouble| {
                trouble.detail = trouble.detail.replacen("load", "atomic", 1);
                trouble
            })?;
            old[lane] = u64::from_le_bytes(word);
            let mut operands = [old[lane], core.get(op.b, w, lane)];
            // PTX ISA, "atom": on global memory `.add.f32` flushes subnormal inputs and results, on shared not.
            let flushes =
                op.ty == AtomicType::F32 && op.kind == AtomicKind::Add && matches!(at, Place::Global(_));
            let flushed = |bits: u64| u64::from(flush(f32::from_bits(bits as u32)).to_bits());
            if flushes {
                operands = operands.map(flushed);
            }
            let mut new = combine(&op, operands[0], operands[1], core.get(op.c, w, lane));
            if flushes {
                new = flushed(new);
            }
            write(env, site, at, &new.to_le_bytes()[..bytes], Access::Atomic)?;
        }
        core.put_all(op.target, w, mask, &old);
        if global {
            env.trace.counts.atomics += 1;
            env.trace.scattered(AccessKind::Atomic, &addresses, mask, bytes as u32, pc);
        } else {
            env.trace.counts.shared_accesses += 1;
            env.trace.shared_passes += u64::from(mask.count_ones()) / 8;
        }
    }
    Ok(())
}

/// What an atomic leaves in memory.
#[must_use]
pub fn combine(op: &AtomicOp, old: u64, b: u64, c: u64) -> u64 {
    use AtomicKind as K;
    use AtomicType as T;
    let bits = op.ty.bytes() * 8;
    let (old, b, c) = (zero_extend(old, bits), zero_extend(b, bits), zero_extend(c, bits));
    let signed = |value: u64| sign_extend(value, bits) as i64;
    match (op.kind, op.ty) {
        (K::Exch, _) => b,
        (K::Cas, _) => {
            if old == b {
                c
            } else {
                old
            }
        }
        (K::And, _) => old & b,
        (K::Or, _) => old | b,
        (K::Xor, _) => old ^ b,
        (K::Inc, _) => {
            if old >= b {
                0
            } else {
                old + 1
            }
        }
        (K::Dec, _) => {
            if old == 0 || old > b {
                b
            } else {
                old - 1
            }
        }
        (kind, T::F32) => {
            let (x, y) = (f32::from_bits(old as u32), f32::from_bits(b as u32));
            let result = match kind {
                K::Min => min_max(f64::from(x), f64::from(y), false, 0) as f32,
                K::Max => min_max(f64::from(x), f64::from(y), true, 0) as f32,
                _ => x + y,
            };
            u64::from(if result.is_nan() { super::float::NAN_F32 } else { result.to_bits() })
        }
        (kind, T::F64) => {
            let (x, y) = (f64::from_bits(old), f64::from_bits(b));
            match kind {
                K::Min => min_max(x, y, false, 0),
                K::Max => min_max(x, y, true, 0),
                _ => x + y,
            }
            .to_bits()
        }
        (kind, T::F16 | T::F16x2) => half_result::<F16>(kind, old, b),
        (kind, T::Bf16 | T::Bf16x2) => half_result::<Bf16>(kind, old, b),
        (K::Add, _) => old.wrapping_add(b),
        (K::Min, T::S32 | T::S64) => signed(old).min(signed(b)) as u64,
        (K::Max, T::S32 | T::S64) => signed(old).max(signed(b)) as u64,
        (K::Min, _) => old.min(b),
        (K::Max, _) => old.max(b),
    }
}

fn half_result<H: Half>(kind: AtomicKind, old: u64, b: u64) -> u64 {
    let operands = [old, b, 0];
    match kind {
        AtomicKind::Min => half_min2::<H>(operands, 0),
        AtomicKind::Max => half_max2::<H>(operands, 0),
        _ => half_add2::<H>(operands, 0),
    }
}

/// Whether an address belongs to global memory when it is generic.
#[must_use]
pub fn is_global(address: u64) -> bool {
    address >= GLOBAL_BASE
}

/// Reads bytes up to a zero from global memory, at most `limit` of them, for messages of the system's calls.
pub fn read_text(
    env: &mut Env<'_>,
    site: (usize, usize, usize),
    address: u64,
    limit: usize,
) -> Result<Vec<u8>, Box<Trouble>> {
    let mut text = Vec::new();
    while text.len() < limit {
        let mut byte = [0];
        read(env, site, place(Space::Generic, address + text.len() as u64), &mut byte)?;
        if byte[0] == 0 {
            break;
        }
        text.push(byte[0]);
    }
    Ok(text)
}

/// Reads a little-endian word from a generic address.
pub fn read_word(
    env: &mut Env<'_>,
    site: (usize, usize, usize),
    address: u64,
    bytes: usize,
) -> Result<u64, Box<Trouble>> {
    let mut word = [0; 8];
    read(env, site, place(Space::Generic, address), &mut word[..bytes])?;
    Ok(u64::from_le_bytes(word))
}

/// Reads bytes from a generic address that is a multiple of their number.
pub fn read_bytes(
    env: &mut Env<'_>,
    site: (usize, usize, usize),
    address: u64,
    into: &mut [u8],
) -> Result<(), Box<Trouble>> {
    read(env, site, place(Space::Generic, address), into)
}

/// Writes bytes to a generic address that is a multiple of their number.
pub fn write_bytes(
    env: &mut Env<'_>,
    site: (usize, usize, usize),
    address: u64,
    from: &[u8],
) -> Result<(), Box<Trouble>> {
    write(env, site, place(Space::Generic, address), from, Access::Store)
}

const _: () = assert!(P_TRUE == 1);
