//! Accesses of host memory, lane by lane. An address outside of all device allocations may be one
//! of host memory.

use crate::exec::step::Env;

/// Reads, where the launch may and all of it is host memory.
#[cold]
#[inline(never)]
pub(super) fn read(env: &Env<'_>, address: u64, into: &mut [u8]) -> bool {
    env.grants.covers(address, into.len() as u64) && env.memory.read_host(address, into)
}

/// Writes where the old value is still there; whether it was. `None` under other conditions.
#[cold]
#[inline(never)]
pub(super) fn exchange(env: &Env<'_>, address: u64, old: &[u8], new: &[u8]) -> Option<bool> {
    let aligned = address.is_multiple_of(new.len() as u64);
    if !aligned || !env.grants.covers(address, new.len() as u64) {
        return None;
    }
    env.memory.exchange_host(address, old, new)
}

/// Writes, under the same conditions.
#[cold]
#[inline(never)]
pub(super) fn write(env: &Env<'_>, address: u64, from: &[u8]) -> bool {
    env.grants.covers(address, from.len() as u64) && env.memory.write_host(address, from)
}
