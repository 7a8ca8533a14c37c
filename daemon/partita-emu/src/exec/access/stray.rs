//! Accesses past an allocation that pass because their page is mapped
//! ([`crate::memory::MemoryCheck`]).
//!
//! This is the last resort of an access: allocations and host memory come before. So it costs
//! nothing on the path of a right program.

use super::trouble::{Access, global_trouble};
use crate::exec::step::Env;
use partita_model::MemoryAccess;

/// Reads a mapped page. False where the launch has no access.
#[cold]
#[inline(never)]
pub(super) fn read(
    env: &mut Env<'_>,
    site: (usize, usize, usize),
    address: u64,
    into: &mut [u8],
) -> bool {
    let bytes = into.len() as u64;
    let passed = env.grants.covers(address, bytes) && env.memory.read_mapped(address, into);
    if passed {
        count(env, site, address, bytes as u32, Access::Load);
    }
    passed
}

/// Whether [`write()`] would write.
#[cold]
#[inline(never)]
pub(super) fn may_write(env: &Env<'_>, address: u64, bytes: u64) -> bool {
    env.grants.covers(address, bytes)
        && !env.grants.is_read_only(address, address + bytes)
        && env.memory.is_mapped(address, bytes, MemoryAccess::ReadWrite)
}

/// Writes a mapped page. False where the launch has no access.
#[cold]
#[inline(never)]
pub(super) fn write(
    env: &mut Env<'_>,
    site: (usize, usize, usize),
    address: u64,
    from: &[u8],
    access: Access,
) -> bool {
    let bytes = from.len() as u64;
    let passed = may_write(env, address, bytes) && env.memory.write_mapped(address, from);
    // The atomic's load has been counted already.
    if passed && access != Access::Atomic {
        count(env, site, address, bytes as u32, access);
    }
    passed
}

fn count(
    env: &mut Env<'_>,
    (warp, lane, pc): (usize, usize, usize),
    address: u64,
    bytes: u32,
    access: Access,
) {
    let program = env.program;
    let window = env.window;
    let mut first = None;
    if !env.memory.has_strayed(window) {
        let detail = global_trouble(env, warp, lane, pc, address, bytes, access).detail;
        let line = program.lines.get(pc).copied().unwrap_or_default();
        first = Some(format!(
            "kernel `{}` goes past an allocation, as a GPU lets it because the page is mapped: PTX \
             line {line}, address {address:#x}: {detail}; memcheck=on in the device's text makes \
             it a fault",
            program.name
        ));
    }
    env.memory.count_stray(window, first);
}
