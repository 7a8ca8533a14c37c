//! What the engine wants done by its shell.

use crate::{EventHandle, ImageId, ModuleHandle, Payload, Purpose};
use partita_model::{Console, CudaResult, KernelProfile, LaunchShape, Nanos, SessionId};
use std::sync::Arc;

/// One thing to do. The shell takes actions by [`crate::Engine::poll_action`] until there is none.
#[derive(Clone, PartialEq, Debug)]
pub enum Action {
    /// Answer a request.
    Reply {
        /// Whom.
        session: SessionId,
        /// The request's sequence number.
        sequence: u64,
        /// The result.
        code: CudaResult,
        /// What goes with it.
        payload: Payload,
    },
    /// A session's work has failed: from now on every request of it is answered with `code`, and
    /// asynchronous work that the client does not wait for is lost.
    Sticky {
        /// Whose.
        session: SessionId,
        /// The error.
        code: CudaResult,
        /// What happened, for the program's user.
        text: String,
    },
    /// A stream has reached the record of an event.
    EventRecorded {
        /// Whose.
        session: SessionId,
        /// Which event.
        event: EventHandle,
        /// Sequence number of the request that recorded it.
        sequence: u64,
        /// Device time.
        time: Nanos,
    },
    /// Prepare a module's image and come back with [`crate::Engine::handle_prepared`].
    Prepare {
        /// Whose.
        session: SessionId,
        /// Sequence number of the request.
        sequence: u64,
        /// Which module it becomes.
        module: ModuleHandle,
        /// What to prepare. Asked for more than once where the device must tell something first.
        image: ImageId,
        /// For what.
        purpose: Purpose,
    },
    /// Keep what is known of a kernel, and give it back by [`crate::Engine::learn`] when a module
    /// has that kernel again.
    Profiled {
        /// The kernel, as [`crate::PreparedKernel::hash`] names it.
        hash: Arc<str>,
        /// Everything that is known of it.
        profiles: Vec<(LaunchShape, KernelProfile)>,
    },
    /// A kernel printed something.
    Output {
        /// Whose.
        session: SessionId,
        /// Where it belongs.
        console: Console,
        /// What it printed.
        text: Vec<u8>,
    },
    /// End this session: it broke the protocol. The engine has already treated it as closed.
    EndSession {
        /// Which.
        session: SessionId,
        /// Why.
        reason: String,
    },
    /// Nothing of a closed session is left: its memory, streams and launches are gone.
    Released {
        /// Which.
        session: SessionId,
    },
    /// The device has lost everything; the process that holds it must be restarted.
    DeviceLost {
        /// What it said.
        reason: String,
    },
    /// Write a line to the log.
    Log {
        /// How grave.
        level: LogLevel,
        /// Whose, where it is about one session.
        session: Option<SessionId>,
        /// The line.
        text: String,
    },
}

/// How grave a log line is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LogLevel {
    /// Of interest when looking for something.
    Debug,
    /// What happens.
    Info,
    /// Someone should look at it.
    Warning,
    /// Something broke.
    Error,
}
