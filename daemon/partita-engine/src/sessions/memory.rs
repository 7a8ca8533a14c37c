//! Device memory of sessions: allocation, limits by quotas, terms and reservations, copies and
//! fills.

use super::record::{Call, Queued, Session, Then, Waiter, WaiterThen};
use super::window::Window;
use super::{Answer, Application, Refusal, Sessions};
use crate::turn::Turn;
use crate::{ArenaRange, Payload, StreamHandle};
use partita_device::{DeviceError, HostSpan, Work};
use partita_model::{
    ApplicationId, AwaitedWord, CudaResult, DeviceAddress, MemoryAccess, SessionId,
};

impl Sessions {
    pub(super) fn session_mut(&mut self, id: SessionId) -> &mut Session {
        self.records.get_mut(&id).expect("the session was looked up when its step began")
    }

    pub(super) fn mem_alloc(&mut self, turn: &mut Turn<'_>, id: SessionId, bytes: u64) -> Answer {
        if bytes == 0 {
            return Err(CudaResult::ERROR_INVALID_VALUE.into());
        }
        let out_of_memory = Refusal::Code(CudaResult::ERROR_OUT_OF_MEMORY);
        self.check_room_for_allocation(turn, id)?;
        let (available, _) = self.memory_of(turn, id);
        let footprint = Window::footprint(bytes).ok_or(out_of_memory.clone())?;
        let session = self.session_mut(id);
        let range = session.window.allocate(bytes).ok_or(out_of_memory.clone())?;
        // It may lie in memory that the session keeps already.
        if turn.device.memory_needed(session.window_id, range) > available {
            session.window.free(range.start);
            return Err(out_of_memory);
        }
        if let Err(error) = turn.device.allocate(session.window_id, range) {
            session.window.free(range.start);
            return Err(match error {
                DeviceError::OutOfMemory { .. } => out_of_memory,
                DeviceError::Busy => Refusal::Busy,
                other => Refusal::Explained(CudaResult::ERROR_OUT_OF_MEMORY, other.to_string()),
            });
        }
        session.memory_used += footprint;
        session.settle_slack(turn);
        Ok(Payload::Address(range.start))
    }

    /// Whether a session may have one more allocation.
    pub(super) fn check_room_for_allocation(
        &self,
        turn: &Turn<'_>,
        id: SessionId,
    ) -> Result<(), Refusal> {
        let most = turn.config().session_allocations;
        if self.records.get(&id).is_none_or(|record| record.window.live_ranges() < most) {
            return Ok(());
        }
        let text = format!(
            "the program has {most} allocations of device memory, which is the limit: free some, \
             or allocate fewer and larger ones"
        );
        Err(Refusal::Explained(CudaResult::ERROR_OUT_OF_MEMORY, text))
    }

    pub(super) fn mem_info(&self, turn: &Turn<'_>, id: SessionId) -> Payload {
        let (free, total) = self.memory_of(turn, id);
        Payload::Memory { free, total }
    }

    /// Bytes that a session can still have, and that it, its application or its tenant may have in
    /// all.
    pub(super) fn memory_of(&self, turn: &Turn<'_>, id: SessionId) -> (u64, u64) {
        let (free, total) = self.memory_of_tenant(turn, id);
        match self.records.get(&id).filter(|session| session.is_small) {
            Some(session) => {
                let (room, all) = session.window.room();
                (free.min(room), total.min(all))
            }
            None => (free, total),
        }
    }

    fn memory_of_tenant(&self, turn: &Turn<'_>, id: SessionId) -> (u64, u64) {
        let device = turn.facts().memory.0;
        let free = device.saturating_sub(self.memory_used());
        let Some(own) = self.records.get(&id) else { return (free, device) };
        let (tenant, application) = (own.identity.tenant, own.application());
        let mut room = (free.saturating_sub(self.memory_kept_from(application)), device);
        let mut limit = |bytes: u64, holds: &dyn Fn(&Session) -> bool| {
            let theirs = self.records.values().filter(|session| holds(session));
            let used: u64 = theirs.map(Session::memory_used).sum();
            room = (room.0.min(bytes.saturating_sub(used)), room.1.min(bytes));
        };
        let entry = |tenant| self.quotas.iter().find(|quota| quota.tenant == tenant);
        if let Some(quota) = entry(Some(tenant)).or_else(|| entry(None)) {
            limit(quota.bytes, &|session| session.identity.tenant == tenant);
        }
        let own = self.applications.get(&application).and_then(|one| one.entitlement.memory);
        if let Some(memory) = own {
            limit(memory.bytes(), &|session| session.application() == application);
        }
        room
    }

    /// Bytes that reservations keep free for applications other than `id`.
    fn memory_kept_from(&self, id: ApplicationId) -> u64 {
        let kept = self.terms.reserved().iter().filter_map(|rule| {
            let reserved = rule.terms.memory?.bytes();
            let is_for = |one: &Application| rule.matches(one.tenant, one.tag.as_deref());
            if self.applications.get(&id).is_some_and(is_for) {
                return None;
            }
            let theirs = self.records.values().filter(|session| {
                self.applications.get(&session.application()).is_some_and(is_for)
            });
            let used: u64 = theirs.map(Session::memory_used).sum();
            Some(reserved.saturating_sub(used))
        });
        kept.sum()
    }

    pub(super) fn mem_free(
        &mut self,
        turn: &mut Turn<'_>,
        call: Call,
        address: DeviceAddress,
    ) -> Result<(), Refusal> {
        if !self.session_mut(call.session).window.begin_free(address) {
            return Err(CudaResult::ERROR_INVALID_VALUE.into());
        }
        self.wait_for_all(turn, call, WaiterThen::Free(address));
        Ok(())
    }

    /// Frees memory, or leaves it to the sessions that have opened it.
    pub(super) fn finish_free(
        &mut self,
        turn: &mut Turn<'_>,
        id: SessionId,
        address: DeviceAddress,
    ) {
        if self.exports.is_given_up(address) {
            // Only the emulated GPU can keep the owner's kernels out.
            if let Some(aliasing) = turn.device.aliasing() {
                let _ = aliasing.protect(address, MemoryAccess::None);
            }
            return;
        }
        self.free_now(turn, id, address);
    }

    pub(super) fn free_now(&mut self, turn: &mut Turn<'_>, id: SessionId, address: DeviceAddress) {
        let session = self.session_mut(id);
        let bytes = session.window.free(address).and_then(Window::footprint).unwrap_or(0);
        session.memory_used -= bytes;
        let freed = turn.device.free(address);
        session.settle_slack(turn);
        if let Err(error) = freed {
            turn.log_error(Some(id), format!("memory could not be freed: {error}"));
        }
    }

    /// Answers a request when everything that its session had enqueued before has ended.
    pub(super) fn wait_for_all(&mut self, turn: &mut Turn<'_>, call: Call, then: WaiterThen) {
        let pending = self.last_operations(call.session);
        self.wait_for(turn, call.session, Waiter { sequence: call.sequence, pending, then });
    }

    /// A range of the session's arena.
    pub(super) fn host_span(&self, id: SessionId, range: ArenaRange) -> Result<HostSpan, Refusal> {
        let arena = self.records.get(&id).and_then(|session| session.arena.clone());
        let span = arena.and_then(|arena| HostSpan::new(arena, range.offset, range.bytes));
        span.ok_or(Refusal::Code(CudaResult::ERROR_INVALID_VALUE))
    }

    /// Appends a copy or a fill. What it touches must be live memory of the session.
    pub(super) fn transfer(
        &mut self,
        turn: &mut Turn<'_>,
        call: Call,
        stream: StreamHandle,
        touched: &[(DeviceAddress, u64, MemoryAccess)],
        work: Work,
    ) -> Result<(), Refusal> {
        let Call { session: id, sequence } = call;
        let stream = self.stream_of(id, stream)?;
        let nothing = touched.iter().all(|(_, bytes, _)| *bytes == 0);
        let may = |(address, bytes, access)| match work {
            Work::Fill { .. } => self
                .records
                .get(&id)
                .is_some_and(|session| session.window.covers(address, bytes, access)),
            _ => self.may_copy(id, address, bytes, access),
        };
        if !nothing && !touched.iter().all(|&place| may(place)) {
            return Err(CudaResult::ERROR_INVALID_VALUE.into());
        }
        let work = Queued::Plain(if nothing { Work::Marker } else { work });
        let is_blocking = matches!(&work, Queued::Plain(Work::CopyToHost { to, .. })
            if self.records.get(&id).is_some_and(|record| to.memory().1 < record.staging_bytes));
        let then = Then::Reply { sequence, awaited: is_blocking };
        let copy = self.append(turn, (id, stream), work, then, None);
        if is_blocking {
            self.are_awaited(id, &[copy]);
        }
        Ok(())
    }

    /// Appends a wait for a word of live memory.
    pub(super) fn wait_word(
        &mut self,
        turn: &mut Turn<'_>,
        call: Call,
        stream: StreamHandle,
        (address, word): (DeviceAddress, AwaitedWord),
    ) -> Result<(), Refusal> {
        let Call { session: id, sequence } = call;
        let stream = self.stream_of(id, stream)?;
        let width = u64::from(word.width);
        let covered = self.session_mut(id).window.covers(address, width, MemoryAccess::Read);
        if !matches!(width, 4 | 8) || !address.0.is_multiple_of(width) || !covered {
            return Err(CudaResult::ERROR_INVALID_VALUE.into());
        }
        let work = Queued::Plain(Work::WaitValue { address, word });
        let then = Then::Reply { sequence, awaited: false };
        let operation = self.append(turn, (id, stream), work, then, None);
        self.session_mut(id).word_waits.insert(operation, (address, word));
        Ok(())
    }

    /// Zeroed memory of a session's window, for the engine's own use in a launch.
    pub(crate) fn allocate_zeroed(
        &mut self,
        turn: &mut Turn<'_>,
        id: SessionId,
        zeros: &[u8],
    ) -> Option<DeviceAddress> {
        let session = self.records.get_mut(&id)?;
        let bytes = u64::try_from(zeros.len()).ok()?;
        let range = session.window.allocate(bytes)?;
        let made = turn.device.allocate(session.window_id, range);
        if made.and_then(|()| turn.device.poke(range.start, zeros)).is_err() {
            session.window.free(range.start);
            let _ = turn.device.free(range.start);
            return None;
        }
        session.memory_used += Window::footprint(bytes).unwrap_or(0);
        session.settle_slack(turn);
        Some(range.start)
    }

    /// Gives back what [`Sessions::allocate_zeroed`] gave.
    pub(crate) fn free_zeroed(
        &mut self,
        turn: &mut Turn<'_>,
        id: SessionId,
        address: DeviceAddress,
    ) {
        // Memory of a session that has gone went with it.
        if let Some(session) = self.records.get_mut(&id)
            && let Some(bytes) = session.window.free(address)
        {
            session.memory_used -= Window::footprint(bytes).unwrap_or(0);
            let _ = turn.device.free(address);
            session.settle_slack(turn);
        }
    }
}
