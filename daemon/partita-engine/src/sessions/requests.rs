//! Requests of sessions: checked, answered at once or put into a stream.

use super::Sessions;
use super::record::{Call, SessionState};
use super::textures::tensor_map;
use crate::turn::Turn;
use crate::{Payload, Request};
use partita_device::{DeviceError, Work};
use partita_model::{CudaResult, MemoryAccess, request};

/// How a request that is answered at once ends.
pub(crate) type Answer = Result<Payload, Refusal>;

/// Why a request is not done.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Refusal {
    /// The program asked for something that cannot be.
    Code(CudaResult),
    /// The same, with words.
    Explained(CudaResult, String),
    /// The device cannot do it while kernels run: it is tried again ([`Sessions::take_postponed`]).
    Busy,
    /// The client broke the protocol.
    Violation(String),
}

/// What becomes of a request.
pub(crate) enum Taken {
    /// It is answered now.
    Answer(Answer),
    /// It is answered when its effects can be seen.
    Later,
    /// It is a launch, which concerns other machines, too.
    Launch(request::Launch),
}

impl From<DeviceError> for Refusal {
    fn from(error: DeviceError) -> Self {
        let code = match error {
            DeviceError::Busy => return Refusal::Busy,
            DeviceError::OutOfMemory { .. } => CudaResult::ERROR_OUT_OF_MEMORY,
            DeviceError::Unsupported(_) => CudaResult::ERROR_NOT_SUPPORTED,
            _ => CudaResult::ERROR_INVALID_VALUE,
        };
        Refusal::Explained(code, error.to_string())
    }
}

impl From<CudaResult> for Refusal {
    fn from(code: CudaResult) -> Self {
        Refusal::Code(code)
    }
}

impl Sessions {
    /// Whether a request may be taken. A request of a failed session is answered here; one of a
    /// closing or unknown session is dropped.
    pub(crate) fn admit(&self, turn: &mut Turn<'_>, call: Call) -> Result<bool, Refusal> {
        let Some(record) = self.records.get(&call.session) else { return Ok(false) };
        let limit = turn.config().session_operations;
        match record.state {
            SessionState::Open if record.operations >= limit => {
                Err(Refusal::Violation(format!("more than {limit} operations are waiting")))
            }
            SessionState::Open => Ok(true),
            SessionState::Failed(code) => {
                turn.reply(call, code, Payload::None);
                Ok(false)
            }
            SessionState::Closing => Ok(false),
        }
    }

    fn answer_or_postpone(&mut self, call: Call, request: Request, answer: Answer) -> Taken {
        match answer {
            Err(Refusal::Busy) => {
                self.postponed.push((call, request));
                Taken::Later
            }
            answer => Taken::Answer(answer),
        }
    }

    /// Requests that are to be tried again, after the device was idle.
    pub(crate) fn take_postponed(&mut self) -> Vec<(Call, Request)> {
        std::mem::take(&mut self.postponed)
    }

    /// Takes a request.
    pub(crate) fn take(&mut self, turn: &mut Turn<'_>, call: Call, request: Request) -> Taken {
        use Request as R;
        let id = call.session;
        let now = |answer: Answer| Taken::Answer(answer);
        let later = |taken: Result<(), Refusal>| match taken {
            Ok(()) => Taken::Later,
            Err(refusal) => Taken::Answer(Err(refusal)),
        };
        match request {
            R::Launch(launch) => Taken::Launch(launch),
            R::MemAlloc { bytes } => {
                let answer = self.mem_alloc(turn, id, bytes);
                self.answer_or_postpone(call, request, answer)
            }
            R::Reserve { bytes, alignment } => now(self.reserve(id, bytes, alignment)),
            R::Unreserve { address } => now(self.unreserve(id, address)),
            R::Map { home, range } => {
                let answer = self.map(turn, id, home, range);
                self.answer_or_postpone(call, request, answer)
            }
            R::ExportMemory { address } => now(self.export_memory(turn, id, address)),
            R::OpenMemory { secret } => {
                let answer = self.open_memory(turn, id, secret);
                self.answer_or_postpone(call, request, answer)
            }
            R::MemInfo => now(Ok(self.mem_info(turn, id))),
            R::ArrayCreate { shape } => {
                let answer = self.array_create(turn, id, &shape);
                self.answer_or_postpone(call, request, answer)
            }
            R::TextureCreate { spec } => now(self.texture_create(turn, id, &spec)),
            R::TensorMap { spec } => now(tensor_map(turn, |maps| maps.tensor_map(&spec))),
            R::TensorMapMove { map, address } => {
                now(tensor_map(turn, |maps| maps.moved_tensor_map(&map, address)))
            }
            R::StreamCreate { stream, kind, priority } => {
                now(self.stream_create(turn, id, stream, (kind, priority)))
            }
            R::StreamDestroy { stream } => now(self.stream_destroy(turn, id, stream)),
            R::StreamQuery { stream } => now(self.stream_query(id, stream)),
            // The slot is between the shell and the client.
            R::EventCreate { event, slot: _ } => now(self.event_create(id, event)),
            R::EventDestroy { event } => now(self.event_destroy(id, event)),
            R::ExportEvent { event } => now(self.export_event(turn, id, event)),
            R::OpenEvent { event, secret } => now(self.open_event(turn, id, (event, secret))),
            R::EventQuery { event } => now(self.event_query(id, event)),
            R::EventRecord { event, stream } => now(self.event_record(turn, call, event, stream)),
            R::StreamWait { stream, event } => now(self.stream_wait(turn, id, stream, event)),
            R::OpenGate { gate } => now(self.open_gate(turn, id, gate)),
            R::EventSynchronize { event } => later(self.event_synchronize(turn, call, event)),
            R::CloseMemory { address } => later(self.close_memory(turn, call, address)),
            R::Unmap { address } => later(self.unmap(turn, call, address)),
            R::SetAccess { range, access } => later(self.set_access(turn, call, range, access)),
            R::ArrayDestroy { array } => later(self.array_destroy(turn, call, array)),
            R::TextureDestroy { texture } => later(self.texture_destroy(turn, call, texture)),
            R::MemFree { address } => later(self.mem_free(turn, call, address)),
            R::ModuleLoad { module, image } => later(self.load_module(turn, call, module, image)),
            R::ModuleUnload { module } => later(self.unload_module(turn, call, module)),
            R::Synchronize { stream } => later(self.synchronize(turn, call, stream)),
            R::Gate { stream } => later(self.gate(turn, call, stream)),
            R::CopyToDevice { stream, to, from } => {
                later(self.host_span(id, from).and_then(|from| {
                    let touched = [(to, from.bytes(), MemoryAccess::ReadWrite)];
                    let work = Work::CopyToDevice { to, from };
                    self.transfer(turn, call, stream, &touched, work)
                }))
            }
            R::CopyToHost { stream, to, from } => later(self.host_span(id, to).and_then(|to| {
                let touched = [(from, to.bytes(), MemoryAccess::Read)];
                let work = Work::CopyToHost { to, from };
                self.transfer(turn, call, stream, &touched, work)
            })),
            R::CopyOnDevice { stream, to, from, bytes } => {
                let touched =
                    [(to, bytes, MemoryAccess::ReadWrite), (from, bytes, MemoryAccess::Read)];
                let work = Work::CopyOnDevice { to, from, bytes };
                later(self.transfer(turn, call, stream, &touched, work))
            }
            R::WaitWord { stream, address, word } => {
                later(self.wait_word(turn, call, stream, (address, word)))
            }
            R::Fill { stream, to, value, width, count } => {
                let bytes = u64::from(width)
                    .checked_mul(count)
                    .filter(|_| matches!(width, 1 | 2 | 4) && to.0.is_multiple_of(width.into()));
                let Some(bytes) = bytes else {
                    return now(Err(CudaResult::ERROR_INVALID_VALUE.into()));
                };
                let touched = [(to, bytes, MemoryAccess::ReadWrite)];
                let work = Work::Fill { to, value, width, count };
                later(self.transfer(turn, call, stream, &touched, work))
            }
        }
    }
}
