//! Accesses of host memory, lane by lane. An address outside of all device allocations may be one
//! of host memory.

use crate::exec::step::Env;

/// Reads host memory. False where the launch has no access, or a byte is not host memory.
#[cold]
#[inline(never)]
pub(super) fn read(env: &Env<'_>, address: u64, into: &mut [u8]) -> bool {
    env.grants.covers(address, into.len() as u64) && env.memory.read_host(address, into)
}

/// Writes `new` if the memory still holds `old`, and returns whether it did. `None` where the
/// address is misaligned, the launch has no access, or the memory is not the host's.
#[cold]
#[inline(never)]
pub(super) fn exchange(env: &Env<'_>, address: u64, old: &[u8], new: &[u8]) -> Option<bool> {
    let aligned = address.is_multiple_of(new.len() as u64);
    if !aligned || !env.grants.covers(address, new.len() as u64) {
        return None;
    }
    env.memory.exchange_host(address, old, new)
}

/// Writes host memory under the conditions of [`read`].
#[cold]
#[inline(never)]
pub(super) fn write(env: &Env<'_>, address: u64, from: &[u8]) -> bool {
    env.grants.covers(address, from.len() as u64) && env.memory.write_host(address, from)
}
