//! Requests that are answered when earlier operations are done.

use super::record::{Call, Waiter, WaiterThen};
use super::{Application, Sessions};
use crate::Payload;
use crate::effects::Effect;
use crate::turn::Turn;
use partita_model::{CudaResult, OperationId, SessionId};

impl Sessions {
    pub(super) fn wait_for(&mut self, turn: &mut Turn<'_>, id: SessionId, waiter: Waiter) {
        if waiter.pending.is_empty() {
            self.finish_waiter(turn, id, waiter);
        } else {
            self.session_mut(id).waiters.push(waiter);
        }
    }

    /// Tells the waiters of a session that an operation is done.
    pub(super) fn notify_waiters(
        &mut self,
        turn: &mut Turn<'_>,
        id: SessionId,
        operation: OperationId,
    ) {
        let session = self.session_mut(id);
        if session.waiters.is_empty() {
            return;
        }
        for waiter in &mut session.waiters {
            waiter.pending.retain(|pending| *pending != operation);
        }
        let ready: Vec<Waiter> =
            session.waiters.extract_if(.., |waiter| waiter.pending.is_empty()).collect();
        for waiter in ready {
            self.finish_waiter(turn, id, waiter);
        }
    }

    /// A wait of a session's host has ended. It tells requests apart where there is a latency
    /// target.
    pub(crate) fn host_waited(&self, turn: &mut Turn<'_>, id: SessionId) {
        let Some(application) = self.records.get(&id).map(|session| session.application) else {
            return;
        };
        let has_target = |own: &Application| own.entitlement.target.is_some();
        if self.applications.get(&application).is_some_and(has_target) {
            turn.push(Effect::Waited(application));
        }
    }

    fn finish_waiter(&mut self, turn: &mut Turn<'_>, id: SessionId, waiter: Waiter) {
        match waiter.then {
            WaiterThen::Reply => self.host_waited(turn, id),
            WaiterThen::Free(address) => self.finish_free(turn, id, address),
            WaiterThen::Close(address) => self.finish_close(turn, id, address),
            WaiterThen::Unmap(address) => self.finish_unmap(turn, id, address),
            WaiterThen::Protect(range, access) => self.finish_set_access(turn, id, range, access),
            WaiterThen::Unload(instance) => self.unload_instance(turn, id, &instance),
            WaiterThen::DestroyArray(array) => self.finish_array(turn, id, array),
            WaiterThen::DestroyTexture(texture) => self.finish_texture(turn, id, texture),
        }
        let call = Call { session: id, sequence: waiter.sequence };
        turn.reply(call, CudaResult::SUCCESS, Payload::None);
    }
}
