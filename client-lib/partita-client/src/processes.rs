//! Memory of other processes of the same user (CUDA Driver API, "Interprocess communication").
//! Events that processes share are in [`crate::events`].

use crate::session::{Plain, Session};
use partita_model::request::{Request, Secret};
use partita_model::{AddressRange, DeviceAddress};
use partita_wire::{CallError, PROCESSES, Reply, code};

impl Session {
    pub(crate) fn require_processes(&self) -> Result<(), CallError> {
        if self.has_feature(PROCESSES) {
            return Ok(());
        }
        let text = "the daemon is older than this library and shares nothing between processes: \
                    restart it";
        Err(CallError::new(code::NOT_SUPPORTED, text))
    }

    pub(crate) fn call_secret(&self, request: &Plain) -> Result<Secret, CallError> {
        match self.call(request)? {
            Reply::Secret(secret) => Ok(secret),
            other => Err(self.unexpected(&other)),
        }
    }

    /// `cuIpcGetMemHandle`: what another process shows to open the allocation that begins at
    /// `address`.
    ///
    /// # Errors
    /// `INVALID_VALUE` where none begins there; `NOT_SUPPORTED` by devices that cannot, or an older
    /// daemon; the session's own errors.
    pub fn export_memory(&self, address: DeviceAddress) -> Result<Secret, CallError> {
        self.require_processes()?;
        self.call_secret(&Request::ExportMemory { address })
    }

    /// `cuIpcOpenMemHandle`: the addresses of the other process's allocation in this one.
    ///
    /// # Errors
    /// `INVALID_VALUE` where the secret opens nothing, `INVALID_CONTEXT` for memory of this
    /// session, `OUT_OF_MEMORY`; `NOT_SUPPORTED` by an older daemon; the session's own errors.
    pub fn open_memory(&self, secret: Secret) -> Result<AddressRange, CallError> {
        self.require_processes()?;
        match self.call(&Request::OpenMemory { secret })? {
            Reply::Opened(range) => Ok(range),
            other => Err(self.unexpected(&other)),
        }
    }

    /// `cuIpcCloseMemHandle`: waits for earlier work.
    ///
    /// # Errors
    /// `INVALID_VALUE` where no memory of another process begins; the session's own errors.
    pub fn close_memory(&self, address: DeviceAddress) -> Result<(), CallError> {
        self.call_done(&Request::CloseMemory { address })
    }
}
