//! The message of an access that failed.

use crate::exec::cluster;
use crate::exec::step::{Env, Trouble};
use partita_device::FaultKind;
use partita_model::{DeviceAddress, MemoryAccess};

/// No allocation lies below this address. An access there usually means a member of a null object.
const NULL_PAGES: u64 = 1 << 16;

/// The kind of an access, for messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Access {
    Load,
    Store,
    Atomic,
}

impl Access {
    pub(super) fn text(self) -> &'static str {
        match self {
            Access::Load => "load",
            Access::Store => "store",
            Access::Atomic => "atomic",
        }
    }
}

#[cold]
#[inline(never)]
pub(super) fn global_trouble(
    env: &Env<'_>,
    warp: usize,
    lane: usize,
    pc: usize,
    address: u64,
    bytes: u32,
    access: Access,
) -> Box<Trouble> {
    let what = access.text();
    let near = match address {
        0 => "a null pointer".to_owned(),
        1..NULL_PAGES => format!("{address} bytes beyond a null pointer"),
        // The message does not reveal other sessions' allocations.
        _ => env.memory.describe_among(address, |start| env.grants.covers(start, 1)),
    };
    let (kind, detail) = if !address.is_multiple_of(u64::from(bytes)) {
        (
            FaultKind::MisalignedAddress,
            format!("{what} of {bytes} bytes at an address that is no multiple of it, {near}"),
        )
    } else if access != Access::Load
        && env.grants.is_read_only(address, address.saturating_add(u64::from(bytes)))
    {
        let memory = match env.memory.access_at(address) {
            Some(MemoryAccess::Read) => "memory that was mapped for reading only",
            _ => "constant memory",
        };
        (FaultKind::IllegalAddress, format!("{what} of {bytes} bytes to {memory}, {near}"))
    } else if env.memory.access_at(address) == Some(MemoryAccess::None)
        && env.grants.covers(address, u64::from(bytes))
    {
        let remedy = "mapped memory without access: call cuMemSetAccess after cuMemMap";
        (FaultKind::IllegalAddress, format!("{what} of {bytes} bytes in {remedy}, {near}"))
    } else if !env.grants.covers(address, u64::from(bytes)) {
        let place = if env.memory.is_live(DeviceAddress(address), 1) {
            "in memory of another session"
        } else {
            "outside what the launch may touch"
        };
        (FaultKind::IllegalAddress, format!("{what} of {bytes} bytes {place}, {near}"))
    } else {
        (FaultKind::IllegalAddress, format!("{what} of {bytes} bytes, {near}"))
    };
    Box::new(Trouble { kind, warp, lane, pc, address: Some(address), detail })
}

#[cold]
#[inline(never)]
pub(super) fn shared_trouble(
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
        let place = cluster::why_not(env, address)
            .unwrap_or_else(|| format!("beyond the CTA's {size} bytes of shared memory"));
        (FaultKind::IllegalAddress, format!("{what} of {bytes} bytes {place}"))
    } else {
        let text = format!(
            "{what} of {bytes} bytes of shared memory at an address that is no multiple of it"
        );
        (FaultKind::MisalignedAddress, text)
    };
    Box::new(Trouble { kind, warp, lane, pc, address: Some(address), detail })
}

#[cold]
#[inline(never)]
pub(super) fn local_trouble(
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
        let text = format!(
            "{what} of {bytes} bytes of local memory at an address that is no multiple of it"
        );
        (FaultKind::MisalignedAddress, text)
    };
    Box::new(Trouble { kind, warp, lane, pc, address: Some(address), detail })
}
