//! Requests of sessions: checked, answered at once or put into a stream.

use crate::effects::Effect;
use crate::state::{Load, Module, Queued, Session, SessionState, Stream, Then, Waiter, WaiterThen};
use crate::window::Window;
use crate::{
    ArenaRange, Engine, EventHandle, ModuleHandle, Payload, Purpose, Request, Sequence,
    StreamHandle, StreamKind,
};
use partita_device::{Device, DeviceError, HostSpan, Work};
use partita_model::{
    AwaitedWord, CudaResult, DeviceAddress, MemoryAccess, MemoryQuota, OperationId, SessionId,
    StreamId,
};

/// Streams, events, modules, arrays and textures that one session may have at once.
const MAX_OBJECTS: usize = 1 << 16;

/// How a request that is answered at once ends.
pub(crate) type Answer = Result<Payload, Refusal>;

/// Why a request is not done.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Refusal {
    /// The program asked for something that cannot be.
    Code(CudaResult),
    /// The same, with words.
    Explained(CudaResult, String),
    /// The client broke the protocol.
    Violation(String),
}

impl From<CudaResult> for Refusal {
    fn from(code: CudaResult) -> Self {
        Refusal::Code(code)
    }
}

impl Engine {
    /// Takes a request. `sequence` is the session's number of it; replies carry it. Requests of
    /// unknown sessions are dropped.
    pub fn handle_request(
        &mut self,
        device: &mut dyn Device,
        session: SessionId,
        sequence: u64,
        request: Request,
    ) {
        let Some(record) = self.sessions.get(&session) else { return };
        match record.state {
            SessionState::Open => {}
            SessionState::Failed(code) => {
                return self.reply(session, sequence, code, Payload::None);
            }
            SessionState::Closing => return,
        }
        if record.operations >= self.config.session_operations {
            let limit = self.config.session_operations;
            return self.end_session(
                device,
                session,
                format!("more than {limit} operations are waiting"),
            );
        }
        match self.take(device, session, sequence, request) {
            None => {}
            Some(Ok(payload)) => self.reply(session, sequence, CudaResult::SUCCESS, payload),
            Some(Err(Refusal::Code(code))) => self.reply(session, sequence, code, Payload::None),
            Some(Err(Refusal::Explained(code, text))) => {
                self.reply(session, sequence, code, Payload::Explanation(text));
            }
            Some(Err(Refusal::Violation(reason))) => self.end_session(device, session, reason),
        }
        self.settle(device);
    }

    /// `None`: the answer comes later.
    fn take(
        &mut self,
        device: &mut dyn Device,
        id: SessionId,
        sequence: u64,
        request: Request,
    ) -> Option<Answer> {
        let deferred = match request {
            Request::MemAlloc { bytes } => return Some(self.mem_alloc(device, id, bytes)),
            Request::Reserve { bytes, alignment } => {
                return Some(self.reserve(id, bytes, alignment));
            }
            Request::Unreserve { address } => return Some(self.unreserve(id, address)),
            Request::Map { home, range } => return Some(self.map(device, id, home, range)),
            Request::Unmap { address } => self.unmap(device, id, sequence, address),
            Request::SetAccess { range, access } => {
                self.set_access(device, id, sequence, range, access)
            }
            Request::MemInfo => return Some(Ok(self.mem_info(id))),
            Request::ArrayCreate { shape } => return Some(self.array_create(device, id, &shape)),
            Request::ArrayDestroy { array } => self.array_destroy(device, id, sequence, array),
            Request::TextureCreate { spec } => return Some(self.texture_create(device, id, &spec)),
            Request::TextureDestroy { texture } => {
                self.texture_destroy(device, id, sequence, texture)
            }
            // The device has no priorities.
            Request::StreamCreate { stream, kind, priority: _ } => {
                return Some(self.stream_create(device, id, stream, kind));
            }
            Request::StreamDestroy { stream } => {
                return Some(self.stream_destroy(device, id, stream));
            }
            Request::StreamQuery { stream } => return Some(self.stream_query(id, stream)),
            // The slot is between the shell and the client.
            Request::EventCreate { event, slot: _ } => return Some(self.event_create(id, event)),
            Request::EventDestroy { event } => return Some(self.event_destroy(id, event)),
            Request::EventRecord { event, stream } => {
                return Some(self.event_record(id, sequence, event, stream));
            }
            Request::StreamWait { stream, event } => {
                return Some(self.stream_wait(id, stream, event));
            }
            Request::Launch(launch) => return Some(self.launch(device, id, launch)),
            Request::MemFree { address } => self.mem_free(device, id, sequence, address),
            Request::ModuleLoad { module, image } => self.load_module(id, sequence, module, image),
            Request::ModuleUnload { module } => self.unload_module(device, id, sequence, module),
            Request::Synchronize { stream } => self.synchronize(device, id, sequence, stream),
            Request::Gate { stream } => self.gate(id, sequence, stream),
            Request::OpenGate { gate } => return Some(self.open_gate(id, gate)),
            Request::CopyToDevice { stream, to, from } => {
                self.host_span(id, from).and_then(|from| {
                    let touched = [(to, from.bytes(), MemoryAccess::ReadWrite)];
                    let work = Work::CopyToDevice { to, from };
                    self.transfer(id, sequence, stream, &touched, work)
                })
            }
            Request::CopyToHost { stream, to, from } => self.host_span(id, to).and_then(|to| {
                let touched = [(from, to.bytes(), MemoryAccess::Read)];
                let work = Work::CopyToHost { to, from };
                self.transfer(id, sequence, stream, &touched, work)
            }),
            Request::CopyOnDevice { stream, to, from, bytes } => {
                let touched =
                    [(to, bytes, MemoryAccess::ReadWrite), (from, bytes, MemoryAccess::Read)];
                self.transfer(
                    id,
                    sequence,
                    stream,
                    &touched,
                    Work::CopyOnDevice { to, from, bytes },
                )
            }
            Request::WaitWord { stream, address, word } => {
                self.wait_word(id, sequence, stream, (address, word))
            }
            Request::Fill { stream, to, value, width, count } => match u64::from(width)
                .checked_mul(count)
            {
                Some(bytes) if matches!(width, 1 | 2 | 4) && to.0.is_multiple_of(width.into()) => {
                    let work = Work::Fill { to, value, width, count };
                    let touched = [(to, bytes, MemoryAccess::ReadWrite)];
                    self.transfer(id, sequence, stream, &touched, work)
                }
                _ => Err(CudaResult::ERROR_INVALID_VALUE.into()),
            },
        };
        deferred.err().map(Err)
    }

    pub(crate) fn session_mut(&mut self, id: SessionId) -> &mut Session {
        self.sessions.get_mut(&id).expect("the session was looked up when its request came")
    }

    pub(crate) fn stream_of(
        &self,
        id: SessionId,
        stream: StreamHandle,
    ) -> Result<StreamId, Refusal> {
        let session = self.sessions.get(&id).ok_or(CudaResult::ERROR_INVALID_HANDLE)?;
        session.handles.get(&stream).copied().ok_or(Refusal::Code(CudaResult::ERROR_INVALID_HANDLE))
    }

    // Memory.

    fn mem_alloc(&mut self, device: &mut dyn Device, id: SessionId, bytes: u64) -> Answer {
        if bytes == 0 {
            return Err(CudaResult::ERROR_INVALID_VALUE.into());
        }
        let out_of_memory = Refusal::Code(CudaResult::ERROR_OUT_OF_MEMORY);
        let (available, _) = self.memory_of(id);
        let footprint = Window::footprint(bytes).filter(|footprint| *footprint <= available);
        let footprint = footprint.ok_or(out_of_memory.clone())?;
        let session = self.session_mut(id);
        let range = session.window.allocate(bytes).ok_or(out_of_memory.clone())?;
        if let Err(error) = device.allocate(session.window_id, range) {
            session.window.free(range.start);
            return Err(match error {
                DeviceError::OutOfMemory { .. } => out_of_memory,
                other => Refusal::Explained(CudaResult::ERROR_OUT_OF_MEMORY, other.to_string()),
            });
        }
        session.memory_used += footprint;
        Ok(Payload::Address(range.start))
    }

    fn mem_info(&self, id: SessionId) -> Payload {
        let (free, total) = self.memory_of(id);
        Payload::Memory { free, total }
    }

    /// Bytes that a session can still have, and that its tenant may have in all.
    pub(crate) fn memory_of(&self, id: SessionId) -> (u64, u64) {
        let device = self.facts.memory.0;
        let free = device.saturating_sub(self.memory_used());
        let tenant = self.sessions.get(&id).map(|session| session.identity.tenant);
        let entry = |tenant| self.quotas.iter().find(|quota| quota.tenant == tenant);
        let Some(quota) = entry(tenant).or_else(|| entry(None)) else { return (free, device) };
        let theirs =
            self.sessions.values().filter(|session| Some(session.identity.tenant) == tenant);
        let used: u64 = theirs.map(|session| session.memory_used).sum();
        (quota.bytes.saturating_sub(used).min(free), quota.bytes.min(device))
    }

    /// Changes how much memory tenants may have. Who has more keeps it.
    pub fn set_quotas(&mut self, quotas: &[MemoryQuota]) {
        self.quotas = quotas.to_vec();
    }

    fn mem_free(
        &mut self,
        device: &mut dyn Device,
        id: SessionId,
        sequence: u64,
        address: DeviceAddress,
    ) -> Result<(), Refusal> {
        if !self.session_mut(id).window.begin_free(address) {
            return Err(CudaResult::ERROR_INVALID_VALUE.into());
        }
        let pending = self.last_operations(id);
        self.wait_for(device, id, Waiter { sequence, pending, then: WaiterThen::Free(address) });
        Ok(())
    }

    /// A range of the session's arena.
    fn host_span(&self, id: SessionId, range: ArenaRange) -> Result<HostSpan, Refusal> {
        let arena = self.sessions.get(&id).and_then(|session| session.arena.clone());
        let span = arena.and_then(|arena| HostSpan::new(arena, range.offset, range.bytes));
        span.ok_or(Refusal::Code(CudaResult::ERROR_INVALID_VALUE))
    }

    /// Appends a copy or a fill. What it touches must be live memory of the session.
    fn transfer(
        &mut self,
        id: SessionId,
        sequence: u64,
        stream: StreamHandle,
        touched: &[(DeviceAddress, u64, MemoryAccess)],
        work: Work,
    ) -> Result<(), Refusal> {
        let stream = self.stream_of(id, stream)?;
        let nothing = touched.iter().all(|(_, bytes, _)| *bytes == 0);
        let may = |(address, bytes, access)| match work {
            Work::Fill { .. } => self
                .sessions
                .get(&id)
                .is_some_and(|session| session.window.covers(address, bytes, access)),
            _ => self.may_copy(id, address, bytes, access),
        };
        if !nothing && !touched.iter().all(|&place| may(place)) {
            return Err(CudaResult::ERROR_INVALID_VALUE.into());
        }
        let work = if nothing { Work::Marker } else { work };
        self.append(id, stream, Queued::Plain(work), Then::Reply { sequence }, None);
        Ok(())
    }

    /// Appends a wait for a word of live memory.
    fn wait_word(
        &mut self,
        id: SessionId,
        sequence: u64,
        stream: StreamHandle,
        (address, word): (DeviceAddress, AwaitedWord),
    ) -> Result<(), Refusal> {
        let stream = self.stream_of(id, stream)?;
        let width = u64::from(word.width);
        let covered = self.session_mut(id).window.covers(address, width, MemoryAccess::Read);
        if !matches!(width, 4 | 8) || !address.0.is_multiple_of(width) || !covered {
            return Err(CudaResult::ERROR_INVALID_VALUE.into());
        }
        let work = Queued::Plain(Work::WaitValue { address, word });
        let operation = self.append(id, stream, work, Then::Reply { sequence }, None);
        self.session_mut(id).word_waits.insert(operation, (address, word));
        Ok(())
    }

    // Streams.

    pub(crate) fn check_room_for_object(&self, id: SessionId) -> Result<(), Refusal> {
        let count = self.sessions.get(&id).map_or(0, |session| {
            let textures = session.arrays.len() + session.textures.len();
            session.streams.len() + session.events.len() + session.modules.len() + textures
        });
        if count < MAX_OBJECTS {
            return Ok(());
        }
        Err(Refusal::Violation(format!(
            "more than {MAX_OBJECTS} streams, events, modules, arrays and textures"
        )))
    }

    fn stream_create(
        &mut self,
        device: &mut dyn Device,
        id: SessionId,
        stream: StreamHandle,
        kind: StreamKind,
    ) -> Answer {
        self.check_room_for_object(id)?;
        let new = StreamId(self.next_id());
        let session = self.session_mut(id);
        if session.handles.contains_key(&stream) {
            return Err(Refusal::Violation(format!("{stream} exists already")));
        }
        device.create_stream(new).map_err(|error| {
            Refusal::Explained(CudaResult::ERROR_OUT_OF_MEMORY, error.to_string())
        })?;
        session.streams.insert(new, Stream::new(kind));
        session.handles.insert(stream, new);
        Ok(Payload::None)
    }

    fn stream_destroy(
        &mut self,
        device: &mut dyn Device,
        id: SessionId,
        stream: StreamHandle,
    ) -> Answer {
        if stream == StreamHandle::LEGACY {
            return Err(CudaResult::ERROR_INVALID_HANDLE.into());
        }
        let stream_id = self.stream_of(id, stream)?;
        let session = self.session_mut(id);
        session.handles.remove(&stream);
        if let Some(record) = session.streams.get_mut(&stream_id) {
            record.destroyed = true;
        }
        self.drop_stream_if_done(device, id, stream_id);
        Ok(Payload::None)
    }

    pub(crate) fn drop_stream_if_done(
        &mut self,
        device: &mut dyn Device,
        id: SessionId,
        stream: StreamId,
    ) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        if session.streams.get(&stream).is_some_and(|record| record.destroyed && record.is_empty())
        {
            session.streams.remove(&stream);
            if let Err(error) = device.destroy_stream(stream) {
                self.log(
                    crate::LogLevel::Error,
                    Some(id),
                    format!("{stream} could not be destroyed: {error}"),
                );
            }
        }
    }

    fn stream_query(&mut self, id: SessionId, stream: StreamHandle) -> Answer {
        let pending = self.pending_of(id, Some(stream))?;
        if pending.is_empty() { Ok(Payload::None) } else { Err(CudaResult::ERROR_NOT_READY.into()) }
    }

    fn synchronize(
        &mut self,
        device: &mut dyn Device,
        id: SessionId,
        sequence: u64,
        stream: Option<StreamHandle>,
    ) -> Result<(), Refusal> {
        let pending = self.pending_of(id, stream)?;
        self.wait_for(device, id, Waiter { sequence, pending, then: WaiterThen::Reply });
        Ok(())
    }

    fn gate(&mut self, id: SessionId, sequence: u64, stream: StreamHandle) -> Result<(), Refusal> {
        let stream = self.stream_of(id, stream)?;
        self.append(id, stream, Queued::Plain(Work::Marker), Then::Reply { sequence }, None);
        let gate = self.append(id, stream, Queued::Gate, Then::Nothing, None);
        self.session_mut(id).gates.insert(sequence, gate);
        Ok(())
    }

    fn open_gate(&mut self, id: SessionId, gate: Sequence) -> Answer {
        let Some(operation) = self.session_mut(id).gates.remove(&gate.0) else {
            return Err(Refusal::Violation(format!("{gate} is no closed gate")));
        };
        if let Some(record) = self.operations.get_mut(&operation) {
            record.queued = Some(Queued::Plain(Work::Marker));
        }
        self.effects.push(Effect::PumpSession(id));
        Ok(Payload::None)
    }

    /// The last operations, as far as they are not done, of a stream or of all. The legacy stream
    /// stands for every blocking stream, because whatever is appended to it comes after all of
    /// them.
    fn pending_of(
        &self,
        id: SessionId,
        stream: Option<StreamHandle>,
    ) -> Result<Vec<OperationId>, Refusal> {
        let Some(stream) = stream else { return Ok(self.last_operations(id)) };
        let stream_id = self.stream_of(id, stream)?;
        let Some(session) = self.sessions.get(&id) else { return Ok(Vec::new()) };
        let concerned = session.streams.iter().filter(|(other, record)| {
            **other == stream_id
                || (stream_id == session.legacy && record.kind == StreamKind::Blocking)
        });
        Ok(self.live(concerned.filter_map(|(_, record)| record.last)))
    }

    pub(crate) fn last_operations(&self, id: SessionId) -> Vec<OperationId> {
        match self.sessions.get(&id) {
            Some(session) => self.live(session.streams.values().filter_map(|stream| stream.last)),
            None => Vec::new(),
        }
    }

    fn live(&self, operations: impl Iterator<Item = OperationId>) -> Vec<OperationId> {
        operations.filter(|operation| self.operations.contains_key(operation)).collect()
    }

    // Events.

    fn event_create(&mut self, id: SessionId, event: EventHandle) -> Answer {
        self.check_room_for_object(id)?;
        let session = self.session_mut(id);
        if session.events.contains_key(&event) {
            return Err(Refusal::Violation(format!("{event} exists already")));
        }
        session.events.insert(event, None);
        Ok(Payload::None)
    }

    fn event_destroy(&mut self, id: SessionId, event: EventHandle) -> Answer {
        match self.session_mut(id).events.remove(&event) {
            Some(_) => Ok(Payload::None),
            None => Err(CudaResult::ERROR_INVALID_HANDLE.into()),
        }
    }

    fn event_record(
        &mut self,
        id: SessionId,
        sequence: u64,
        event: EventHandle,
        stream: StreamHandle,
    ) -> Answer {
        let stream = self.stream_of(id, stream)?;
        if !self.session_mut(id).events.contains_key(&event) {
            return Err(CudaResult::ERROR_INVALID_HANDLE.into());
        }
        let then = Then::Record { event, sequence };
        let operation = self.append(id, stream, Queued::Plain(Work::Marker), then, None);
        if let Some(latest) = self.session_mut(id).events.get_mut(&event) {
            *latest = Some(operation);
        }
        Ok(Payload::None)
    }

    fn stream_wait(&mut self, id: SessionId, stream: StreamHandle, event: EventHandle) -> Answer {
        let stream = self.stream_of(id, stream)?;
        let latest = self.session_mut(id).events.get(&event);
        let Some(on) = *latest.ok_or(CudaResult::ERROR_INVALID_HANDLE)? else {
            return Ok(Payload::None);
        };
        if self.operations.contains_key(&on) {
            self.append(id, stream, Queued::Plain(Work::Wait { on }), Then::Nothing, Some(on));
        }
        Ok(Payload::None)
    }

    // Waiting.

    pub(crate) fn wait_for(&mut self, device: &mut dyn Device, id: SessionId, waiter: Waiter) {
        if waiter.pending.is_empty() {
            self.finish_waiter(device, id, waiter);
        } else {
            self.session_mut(id).waiters.push(waiter);
        }
    }

    /// Tells the waiters of a session that an operation is done.
    pub(crate) fn notify_waiters(
        &mut self,
        device: &mut dyn Device,
        id: SessionId,
        operation: OperationId,
    ) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        if session.waiters.is_empty() {
            return;
        }
        for waiter in &mut session.waiters {
            waiter.pending.retain(|pending| *pending != operation);
        }
        let ready: Vec<Waiter> =
            session.waiters.extract_if(.., |waiter| waiter.pending.is_empty()).collect();
        for waiter in ready {
            self.finish_waiter(device, id, waiter);
        }
    }

    fn finish_waiter(&mut self, device: &mut dyn Device, id: SessionId, waiter: Waiter) {
        match waiter.then {
            WaiterThen::Reply => {}
            WaiterThen::Free(address) => {
                let session = self.session_mut(id);
                let bytes = session.window.free(address).and_then(Window::footprint).unwrap_or(0);
                session.memory_used -= bytes;
                if let Err(error) = device.free(address) {
                    self.log(
                        crate::LogLevel::Error,
                        Some(id),
                        format!("memory could not be freed: {error}"),
                    );
                }
            }
            WaiterThen::Unmap(address) => self.finish_unmap(device, id, address),
            WaiterThen::Protect(range, access) => self.finish_set_access(device, id, range, access),
            WaiterThen::Unload(instance) => self.unload_instance(device, id, &instance),
            WaiterThen::DestroyArray(array) => self.finish_array(device, id, array),
            WaiterThen::DestroyTexture(texture) => self.finish_texture(device, id, texture),
        }
        self.reply(id, waiter.sequence, CudaResult::SUCCESS, Payload::None);
    }

    // Modules.

    fn load_module(
        &mut self,
        id: SessionId,
        sequence: u64,
        module: ModuleHandle,
        image: crate::ImageId,
    ) -> Result<(), Refusal> {
        self.check_room_for_object(id)?;
        if self.session_mut(id).modules.contains_key(&module) {
            return Err(Refusal::Violation(format!("{module} exists already")));
        }
        self.prepare_module(id, module, Load { sequence, image, purpose: Purpose::Run });
        Ok(())
    }

    fn unload_module(
        &mut self,
        device: &mut dyn Device,
        id: SessionId,
        sequence: u64,
        module: ModuleHandle,
    ) -> Result<(), Refusal> {
        let session = self.session_mut(id);
        match session.modules.remove(&module) {
            Some(Module::Loaded(instance)) => {
                let pending = self.last_operations(id);
                self.wait_for(
                    device,
                    id,
                    Waiter { sequence, pending, then: WaiterThen::Unload(instance) },
                );
                Ok(())
            }
            other => {
                session.modules.extend(other.map(|unfinished| (module, unfinished)));
                Err(CudaResult::ERROR_INVALID_HANDLE.into())
            }
        }
    }
}
