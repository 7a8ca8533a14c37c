//! Memory of other processes that this process has open, and the handles by which processes open
//! it.
//!
//! A handle is bytes that programs pass on by any way. It names a secret of the daemon
//! ([`Secret`]), which opens memory or an event for processes of the same user.

use crate::device_memory::Range;
use crate::error::{CuError, CuResult};
use partita_client::{Secret, Session};
use partita_model::DeviceAddress;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Size of a handle.
pub const HANDLE_BYTES: usize = 64;

/// What a handle opens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shared {
    /// `CUipcMemHandle`.
    Memory,
    /// `CUipcEventHandle`.
    Event,
    /// What a file of `cuMemExportToShareableHandle` holds.
    Physical,
}

impl Shared {
    fn magic(self) -> [u8; 8] {
        match self {
            Shared::Memory => *b"PartiMem",
            Shared::Event => *b"PartiEvt",
            Shared::Physical => *b"PartiPhy",
        }
    }

    /// The handle of a secret.
    pub fn handle(self, secret: Secret) -> [u8; HANDLE_BYTES] {
        let mut handle = [0; HANDLE_BYTES];
        handle[..8].copy_from_slice(&self.magic());
        handle[8..24].copy_from_slice(&secret.0.to_le_bytes());
        handle
    }

    /// The secret of a handle; `None` where the bytes are no handle of this kind.
    pub fn secret(self, handle: &[u8]) -> Option<Secret> {
        let (magic, rest) = handle.split_first_chunk::<8>()?;
        let (secret, rest) = rest.split_first_chunk::<16>()?;
        let is_handle = *magic == self.magic() && rest.iter().all(|byte| *byte == 0);
        is_handle.then_some(Secret(u128::from_le_bytes(*secret)))
    }
}

/// Memory of other processes.
pub struct OpenedMemory {
    /// Held while memory is opened, so that two threads do not open the same.
    opening: Mutex<()>,
    opened: Mutex<BTreeMap<Secret, Opened>>,
}

#[derive(Clone, Copy)]
struct Opened {
    range: Range,
    /// Openings that have not been closed: CUDA gives the same address to all of them.
    count: u32,
}

impl OpenedMemory {
    /// None.
    pub const fn new() -> Self {
        OpenedMemory { opening: Mutex::new(()), opened: Mutex::new(BTreeMap::new()) }
    }

    /// `cuIpcOpenMemHandle`.
    pub fn open(&self, session: &Session, secret: Secret) -> CuResult<u64> {
        let _opening = lock(&self.opening);
        if let Some(opened) = lock(&self.opened).get_mut(&secret) {
            opened.count += 1;
            return Ok(opened.range.start);
        }
        let range = session.open_memory(secret)?;
        let range = Range { start: range.start.0, bytes: range.bytes };
        lock(&self.opened).insert(secret, Opened { range, count: 1 });
        Ok(range.start)
    }

    /// `cuIpcCloseMemHandle`.
    pub fn close(&self, session: &Session, address: u64) -> CuResult {
        {
            let mut opened = lock(&self.opened);
            let found = opened.iter_mut().find(|(_, opened)| opened.range.start == address);
            let (&secret, found) = found.ok_or(CuError::INVALID_VALUE)?;
            found.count -= 1;
            if found.count > 0 {
                return Ok(());
            }
            opened.remove(&secret);
        }
        Ok(session.close_memory(DeviceAddress(address))?)
    }

    /// The memory that an address is inside of.
    pub fn find(&self, address: u64) -> Option<Range> {
        let opened = lock(&self.opened);
        let holds = |range: &Range| address.wrapping_sub(range.start) < range.bytes;
        opened.values().map(|opened| opened.range).find(holds)
    }

    /// Closes everything.
    pub fn clear(&self, session: &Session) {
        for opened in std::mem::take(&mut *lock(&self.opened)).into_values() {
            // What cannot be closed any more ends with the session.
            let _ = session.close_memory(DeviceAddress(opened.range.start));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_name_secrets_of_their_kind() {
        let secret = Secret(u128::MAX / 7);
        let kinds = [Shared::Memory, Shared::Event, Shared::Physical];
        for kind in kinds {
            let handle = kind.handle(secret);
            for other in kinds {
                assert_eq!(other.secret(&handle), (other == kind).then_some(secret));
            }
            for at in [0, 24, 63] {
                let mut damaged = handle;
                damaged[at] ^= 1;
                assert_eq!(kind.secret(&damaged), None, "byte {at}");
            }
            assert_eq!(kind.secret(&handle[..23]), None);
        }
    }
}
