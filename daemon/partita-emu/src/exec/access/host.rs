//! Accesses of host memory, lane by lane: what no allocation of the device holds may be there.

use crate::exec::step::Env;

/// Reads, where the launch may and all of it is host memory.
#[cold]
#[inline(never)]
pub(super) fn read(env: &Env<'_>, address: u64, into: &mut [u8]) -> bool {
    env.grants.covers(address, into.len() as u64) && env.memory.read_host(address, into)
}

/// Writes, under the same conditions.
#[cold]
#[inline(never)]
pub(super) fn write(env: &Env<'_>, address: u64, from: &[u8]) -> bool {
    env.grants.covers(address, from.len() as u64) && env.memory.write_host(address, from)
}
