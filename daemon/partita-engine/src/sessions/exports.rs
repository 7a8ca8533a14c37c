//! Memory that sessions of one tenant share (CUDA Driver API, "Interprocess communication").
//!
//! The owner of an allocation exports it and gets a secret. A session of the same tenant that shows
//! the secret has the allocation in its own window, too ([`partita_device::Lending`]).
//!
//! # Invariants
//!
//! - A secret opens memory for its tenant only.
//! - Memory stays until the last address goes. What the owner frees keeps its place in the owner's
//!   window until no session has it open: no later allocation comes to lie in it.
//! - The memory counts once, for its *payer*: the owner, and once the owner's session has gone, one
//!   of the sessions that have it open. This session pays for all pages that the device keeps.

use super::record::{Call, WaiterThen};
use super::window::Window;
use super::{Answer, Refusal, Sessions};
use crate::turn::Turn;
use crate::{LogLevel, Payload};
use partita_device::DeviceError;
use partita_model::request::Secret;
use partita_model::{CudaResult, DeviceAddress, SessionId, TenantId};
use std::collections::BTreeMap;

/// All exported memory.
#[derive(Default)]
pub(super) struct Exports {
    by_secret: BTreeMap<Secret, Export>,
    by_home: BTreeMap<DeviceAddress, Secret>,
    /// By the address in the window of the session that has opened it.
    opened: BTreeMap<DeviceAddress, Secret>,
}

struct Export {
    tenant: TenantId,
    home: DeviceAddress,
    bytes: u64,
    /// Bytes that stay for sessions that have it open, with what shares its pages.
    kept_bytes: u64,
    /// `None` once its session has gone.
    owner: Option<SessionId>,
    /// The owner has freed it.
    is_freed: bool,
    payer: SessionId,
    /// The sessions that have it open, by address.
    openings: BTreeMap<DeviceAddress, SessionId>,
}

/// What follows when a session has nothing more to do with exported memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Left {
    Nothing,
    /// The owner's memory can be freed.
    Free(SessionId, DeviceAddress),
    /// The bytes were the first session's, and are the second's from now on, if there is one.
    Pays(SessionId, Option<SessionId>, u64),
}

impl Exports {
    fn export(&mut self, home: DeviceAddress, secret: Secret, export: Export) {
        self.by_home.insert(home, secret);
        self.by_secret.insert(secret, export);
    }

    /// What a session may open.
    fn find(&self, secret: Secret) -> Option<&Export> {
        self.by_secret.get(&secret).filter(|export| !export.is_freed && export.owner.is_some())
    }

    fn open(&mut self, secret: Secret, at: DeviceAddress, by: SessionId) {
        if let Some(export) = self.by_secret.get_mut(&secret) {
            export.openings.insert(at, by);
            self.opened.insert(at, secret);
        }
    }

    /// The owner gives an allocation up. Whether others have it open, so that it stays.
    pub(super) fn is_given_up(&mut self, home: DeviceAddress) -> bool {
        let Some(secret) = self.by_home.remove(&home) else { return false };
        match self.by_secret.get_mut(&secret) {
            Some(export) if !export.openings.is_empty() => {
                export.is_freed = true;
                true
            }
            _ => {
                self.by_secret.remove(&secret);
                false
            }
        }
    }

    /// Ends an opening.
    fn close(&mut self, at: DeviceAddress) -> Left {
        let Some(secret) = self.opened.remove(&at) else { return Left::Nothing };
        let Some(export) = self.by_secret.get_mut(&secret) else { return Left::Nothing };
        export.openings.remove(&at);
        let next = export.openings.values().next().copied();
        let (home, bytes, payer) = (export.home, export.kept_bytes, export.payer);
        match export.owner {
            Some(owner) if export.is_freed && next.is_none() => {
                self.by_secret.remove(&secret);
                Left::Free(owner, home)
            }
            Some(_) => Left::Nothing,
            None if export.openings.values().any(|by| *by == payer) => Left::Nothing,
            None => {
                match next {
                    Some(next) => export.payer = next,
                    None => {
                        self.by_secret.remove(&secret);
                    }
                }
                Left::Pays(payer, next, bytes)
            }
        }
    }

    /// The owner's session has gone. The sessions that pay instead, and bytes.
    fn owner_left(&mut self, owner: SessionId) -> Vec<(SessionId, u64)> {
        let mut paying = Vec::new();
        let by_home = &mut self.by_home;
        self.by_secret.retain(|_, export| {
            if export.owner != Some(owner) {
                return true;
            }
            by_home.remove(&export.home);
            export.owner = None;
            let Some(&next) = export.openings.values().next() else { return false };
            export.payer = next;
            paying.push((next, export.kept_bytes));
            true
        });
        paying
    }

    fn opened_by(&self, session: SessionId) -> Vec<DeviceAddress> {
        let openings = self.by_secret.values().flat_map(|export| &export.openings);
        openings.filter(|(_, by)| **by == session).map(|(at, _)| *at).collect()
    }
}

impl Sessions {
    pub(super) fn export_memory(
        &mut self,
        turn: &mut Turn<'_>,
        id: SessionId,
        address: DeviceAddress,
    ) -> Answer {
        if let Some(secret) = self.exports.by_home.get(&address)
            && self.exports.find(*secret).is_some_and(|export| export.owner == Some(id))
        {
            return Ok(Payload::Secret(*secret));
        }
        let session = self.session_mut(id);
        let bytes = session.window.exportable(address).ok_or(CudaResult::ERROR_INVALID_VALUE)?;
        let tenant = session.identity.tenant;
        let lending = turn.device.lending().ok_or_else(unsupported)?;
        let kept_bytes = lending.lent_shape(address)?.bytes;
        let secret = turn.secret().ok_or_else(unsupported)?;
        let export = Export {
            tenant,
            home: address,
            bytes,
            kept_bytes,
            owner: Some(id),
            is_freed: false,
            payer: id,
            openings: BTreeMap::new(),
        };
        self.exports.export(address, secret, export);
        Ok(Payload::Secret(secret))
    }

    pub(super) fn open_memory(
        &mut self,
        turn: &mut Turn<'_>,
        id: SessionId,
        secret: Secret,
    ) -> Answer {
        let tenant = self.session_mut(id).identity.tenant;
        let invalid = Refusal::Code(CudaResult::ERROR_INVALID_VALUE);
        let Some(export) = self.exports.find(secret) else { return Err(invalid) };
        let (home, bytes, owner) = (export.home, export.bytes, export.owner);
        if export.tenant != tenant {
            let text = "it tried to open memory of another user".to_owned();
            turn.log(LogLevel::Warning, Some(id), text);
            return Err(invalid);
        }
        if owner == Some(id) {
            let text = "a process cannot open memory that it has exported itself".to_owned();
            return Err(Refusal::Explained(CudaResult::ERROR_INVALID_CONTEXT, text));
        }
        // An owner that fails or leaves may lose the memory at any moment.
        if !owner.and_then(|owner| self.records.get(&owner)).is_some_and(|owner| owner.is_open()) {
            return Err(invalid);
        }
        self.check_room_for_allocation(turn, id)?;
        let lending = turn.device.lending().ok_or_else(unsupported)?;
        let shape = lending.lent_shape(home)?;
        let window = &mut self.session_mut(id).window;
        let range = window.open(bytes, shape).ok_or(CudaResult::ERROR_OUT_OF_MEMORY)?;
        let lending = turn.device.lending().ok_or_else(unsupported)?;
        if let Err(error) = lending.lend(home, range.start) {
            let window = &mut self.session_mut(id).window;
            match error {
                // The device makes room there.
                DeviceError::Busy => window.postpone_open(range.start),
                _ => window.close(range.start),
            }
            return Err(error.into());
        }
        self.exports.open(secret, range.start, id);
        Ok(Payload::Opened(range))
    }

    pub(super) fn close_memory(
        &mut self,
        turn: &mut Turn<'_>,
        call: Call,
        address: DeviceAddress,
    ) -> Result<(), Refusal> {
        if !self.session_mut(call.session).window.begin_close(address) {
            return Err(CudaResult::ERROR_INVALID_VALUE.into());
        }
        self.wait_for_all(turn, call, WaiterThen::Close(address));
        Ok(())
    }

    pub(super) fn finish_close(
        &mut self,
        turn: &mut Turn<'_>,
        id: SessionId,
        address: DeviceAddress,
    ) {
        self.session_mut(id).window.close(address);
        if let Err(error) = turn.device.free(address) {
            turn.log_error(Some(id), format!("memory could not be closed: {error}"));
        }
        let left = self.exports.close(address);
        self.carry_over(turn, left);
    }

    /// A session has gone, and its addresses with it.
    pub(super) fn leave_exports(&mut self, turn: &mut Turn<'_>, id: SessionId) {
        for (payer, bytes) in self.exports.owner_left(id) {
            self.pay(payer, bytes);
        }
        for address in self.exports.opened_by(id) {
            let left = self.exports.close(address);
            self.carry_over(turn, left);
        }
    }

    fn carry_over(&mut self, turn: &mut Turn<'_>, left: Left) {
        match left {
            Left::Nothing => {}
            Left::Free(owner, home) => {
                if self.records.contains_key(&owner) {
                    self.free_now(turn, owner, home);
                }
            }
            Left::Pays(before, next, bytes) => {
                if let Some(record) = self.records.get_mut(&before) {
                    record.memory_used -= Window::footprint(bytes).unwrap_or(0);
                }
                if let Some(next) = next {
                    self.pay(next, bytes);
                }
            }
        }
    }

    fn pay(&mut self, session: SessionId, bytes: u64) {
        if let Some(record) = self.records.get_mut(&session) {
            record.memory_used += Window::footprint(bytes).unwrap_or(0);
        }
    }
}

fn unsupported() -> Refusal {
    let text = "memory shared between processes: not supported by this device".to_owned();
    Refusal::Explained(CudaResult::ERROR_NOT_SUPPORTED, text)
}
