//! Loads, stores and atomics. Every access is checked.
//!
//! The addresses of a warp are checked together where possible. Consecutive addresses take one
//! check and one copy. Scattered addresses take one check where a single allocation holds them all.
//! All other addresses are checked lane by lane.
//!
//! A failed access names the first lane at fault, before any lane has stored.

mod any;
mod atomic;
mod global;
mod host;
mod row;
mod shared;
mod stray;
mod trouble;
pub mod weak;

pub use any::{async_copy, memory};
pub use atomic::{atomic, combine};
pub use global::{load_global, store_global};
pub use shared::{load_shared, store_shared};

use super::cluster;
use super::inst::{Inst, Space};
use super::rows::LANES;
use super::scratch::{self, readable};
use super::step::{Env, Trouble};
use super::trace::AccessKind;
use crate::memory::{GLOBAL_BASE, LOCAL_BASE, PARAM_BASE, SHARED_BASE, SPACE_BYTES};
use partita_device::FaultKind;
use trouble::{Access, global_trouble, local_trouble, shared_trouble};

type Outcome = Result<(), Box<Trouble>>;

/// `aux` bit of a load that must not hit in L1.
pub const PAST_L1: u16 = 1 << 8;

/// `aux` bit of a store that is strong: volatile, relaxed, release.
pub const STRONG_STORE: u16 = 1 << 9;
/// `aux` bit of an access that acquires.
pub const ACQUIRE: u16 = 1 << 10;
/// `aux` bit of an access that releases.
pub const RELEASE: u16 = 1 << 11;
/// `aux` bit of an order that reaches no further than the CTA.
pub const WITHIN_CTA: u16 = 1 << 12;
/// `aux` bit of a fence that is sequentially consistent.
pub const SEQUENTIAL: u16 = 1 << 13;

fn load_kind(i: &Inst) -> AccessKind {
    if i.aux & PAST_L1 != 0 { AccessKind::LoadPastL1 } else { AccessKind::Load }
}

/// An address in one of the state spaces.
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

/// Reads memory of any state space into `into`.
fn read(
    env: &mut Env<'_>,
    (warp, lane, pc): (usize, usize, usize),
    at: Place,
    into: &mut [u8],
) -> Outcome {
    let length = into.len();
    let bytes = length as u32;
    match at {
        Place::Global(address) => {
            let memory = readable(&env.ahead, env.memory);
            let found = env.grants.bytes(memory, pc, address, address.wrapping_add(length as u64));
            match found.filter(|_| address.is_multiple_of(u64::from(bytes))) {
                Some(found) => {
                    into.copy_from_slice(found);
                    if env.ahead.is_some() {
                        scratch::overlay(env, pc, address, into);
                    }
                    if env.weak.is_some() {
                        weak::read(env, (warp, lane, pc), address, into);
                    }
                }
                None => {
                    let read = address.is_multiple_of(u64::from(bytes))
                        && (host::read(env, address, into)
                            || stray::read(env, (warp, lane, pc), address, into));
                    if !read {
                        let load = Access::Load;
                        return Err(global_trouble(env, warp, lane, pc, address, bytes, load));
                    }
                }
            }
        }
        Place::Shared(offset) => {
            let own = offset.wrapping_sub(env.own_window) as usize;
            let found = env.shared.get(own..).and_then(|rest| rest.get(..length));
            match found.filter(|_| offset.is_multiple_of(u64::from(bytes))) {
                Some(found) => into.copy_from_slice(found),
                None => {
                    let aligned = offset.is_multiple_of(u64::from(bytes));
                    let peer = cluster::memory_at(env, offset, length).filter(|_| aligned);
                    let Some(found) = peer else {
                        let load = Access::Load;
                        return Err(shared_trouble(env, warp, lane, pc, offset, bytes, load));
                    };
                    into.copy_from_slice(found);
                }
            }
        }
        Place::Local(offset) => match local_offset(env, warp, lane, offset, bytes) {
            Some(start) if offset.is_multiple_of(u64::from(bytes)) => {
                into.copy_from_slice(&env.local[start..start + length]);
            }
            _ => return Err(local_trouble(env, warp, lane, pc, offset, bytes, Access::Load)),
        },
        Place::Param(offset) => {
            match env.params.get(offset as usize..).and_then(|rest| rest.get(..length)) {
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
            }
        }
    }
    Ok(())
}

/// Writes `from` to memory of any state space.
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
            if env.ahead.is_some()
                && address.is_multiple_of(u64::from(bytes))
                && scratch::store(env, pc, address, from)
            {
                return Ok(());
            }
            if address.is_multiple_of(u64::from(bytes))
                && let Some(place) = env.grants.bytes_mut(env.memory, pc, address, end)
            {
                if env.weak.is_none() {
                    place.copy_from_slice(from);
                } else {
                    weak::write(env, (warp, lane, pc), address, from);
                }
                return Ok(());
            }
            // An atomic writes host memory in one step ([`exchange`]).
            let plain = !matches!(access, Access::Atomic);
            if plain && address.is_multiple_of(u64::from(bytes)) && host::write(env, address, from)
            {
                return Ok(());
            }
            if address.is_multiple_of(u64::from(bytes))
                && stray::write(env, (warp, lane, pc), address, from, access)
            {
                return Ok(());
            }
            Err(global_trouble(env, warp, lane, pc, address, bytes, access))
        }
        Place::Shared(offset) => {
            let own = offset.wrapping_sub(env.own_window) as usize;
            if offset.is_multiple_of(u64::from(bytes))
                && let Some(place) =
                    env.shared.get_mut(own..).and_then(|rest| rest.get_mut(..length))
            {
                place.copy_from_slice(from);
                return Ok(());
            }
            if offset.is_multiple_of(u64::from(bytes))
                && let Some(place) = cluster::memory_at(env, offset, length)
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

/// Completes an atomic that has read `old`. False where the host has changed the memory since, and
/// the atomic must read again.
fn exchange(
    env: &mut Env<'_>,
    site: (usize, usize, usize),
    at: Place,
    old: &[u8],
    new: &[u8],
) -> Result<bool, Box<Trouble>> {
    if let Place::Global(address) = at
        && env
            .grants
            .bytes(env.memory, site.2, address, address.wrapping_add(new.len() as u64))
            .is_none()
        && let Some(done) = host::exchange(env, address, old, new)
    {
        return Ok(done);
    }
    write(env, site, at, new, Access::Atomic).map(|()| true)
}

/// Ends an atomic on a generic address of host memory; false where it is to read again.
pub fn exchange_bytes(
    env: &mut Env<'_>,
    site: (usize, usize, usize),
    address: u64,
    old: &[u8],
    new: &[u8],
) -> Result<bool, Box<Trouble>> {
    exchange(env, site, place(Space::Generic, address), old, new)
}

/// Whether an address belongs to global memory when it is generic.
#[must_use]
pub fn is_global(address: u64) -> bool {
    address >= GLOBAL_BASE
}

/// Whether a generic address belongs to shared memory, of the CTA or of another of its cluster.
#[must_use]
pub const fn is_shared(address: u64) -> bool {
    address.wrapping_sub(SHARED_BASE) < SPACE_BYTES
}

/// Reads bytes up to a zero from global memory, at most `limit` of them, for messages of the
/// system's calls.
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
