//! Memory of other processes that this process has open, and the handles by which processes open
//! it.
//!
//! A handle is bytes that programs pass on by any way. It names a secret of the daemon
//! ([`Secret`]), which opens memory or an event for processes of the same user.

use crate::abi;
use crate::device_memory::Range;
use crate::error::{CuError, CuResult};
use crate::memory_pool::PoolName;
use partita_client::{Secret, Session};
use partita_model::DeviceAddress;
use rustix::fs::{MemfdFlags, memfd_create};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::IntoRawFd;
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
    /// What a file of `cuMemPoolExportToShareableHandle` holds; it names a pool.
    Pool,
    /// `CUmemPoolPtrExportData`, with the pool's name behind the secret.
    Block,
}

impl Shared {
    fn magic(self) -> [u8; 8] {
        match self {
            Shared::Memory => *b"PartiMem",
            Shared::Event => *b"PartiEvt",
            Shared::Physical => *b"PartiPhy",
            Shared::Pool => *b"PartiPol",
            Shared::Block => *b"PartiBlk",
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

/// The data by which another process opens a block of a pool.
pub fn block(secret: Secret, pool: PoolName) -> [u8; HANDLE_BYTES] {
    let mut data = Shared::Block.handle(secret);
    data[24..40].copy_from_slice(&pool.to_le_bytes());
    data
}

/// The secret and the pool of such data; `None` where the bytes are none.
pub fn block_of(mut data: [u8; HANDLE_BYTES]) -> Option<(Secret, PoolName)> {
    let mut pool = [0; 16];
    pool.copy_from_slice(&data[24..40]);
    data[24..40].fill(0);
    Some((Shared::Block.secret(&data)?, PoolName::from_le_bytes(pool)))
}

/// A new file with a handle, which the program closes.
pub fn file_of(handle: &[u8; HANDLE_BYTES]) -> io::Result<i32> {
    let file = memfd_create(c"memory of the GPU", MemfdFlags::CLOEXEC)?;
    let mut file = File::from(file);
    file.write_all(handle)?;
    Ok(file.into_raw_fd())
}

/// What a file of [`file_of`] names; `None` for any other file.
pub fn secret_in(file: i32, kind: Shared) -> Option<Secret> {
    let file = abi::file(file)?;
    let mut bytes = [0; HANDLE_BYTES];
    let read = rustix::io::pread(file, &mut bytes, 0).ok()?;
    kind.secret(bytes.get(..read).filter(|bytes| bytes.len() == HANDLE_BYTES)?)
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
    fn blocks_name_their_pool() {
        let (secret, pool) = (Secret(7 << 100), 3 << 64 | 5);
        let data = block(secret, pool);
        assert_eq!(block_of(data), Some((secret, pool)));
        assert_eq!(Shared::Block.secret(&data), None, "no handle of memory alone");
        let mut damaged = data;
        damaged[40] = 1;
        assert_eq!((block_of(damaged), block_of([0; 64])), (None, None));
    }

    #[test]
    fn handles_name_secrets_of_their_kind() {
        let secret = Secret(u128::MAX / 7);
        let kinds = [Shared::Memory, Shared::Event, Shared::Physical, Shared::Pool, Shared::Block];
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
