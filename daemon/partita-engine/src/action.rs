//! What the engine wants done by its shell.

use crate::{EventHandle, FormsOf, ImageId, LoadedModule, ModuleHandle, Payload, Purpose, Source};
use partita_device::Guards;
use partita_model::{
    ApplicationId, Console, CudaResult, KernelProfile, LaunchShape, Nanos, SessionId, TenantId,
};
use std::panic::Location;
use std::sync::Arc;

/// One thing to do. The shell takes actions by [`crate::Engine::poll_action`] until there is none.
#[derive(Clone, PartialEq, Debug)]
pub enum Action {
    /// Answer a request.
    Reply {
        /// The session that asked.
        session: SessionId,
        /// The request's sequence number.
        sequence: u64,
        /// The result.
        code: CudaResult,
        /// What the reply carries.
        payload: Payload,
    },
    /// A session's work has failed: from now on every request of it is answered with `code`, and
    /// asynchronous work that the client does not wait for is lost.
    Sticky {
        /// The session.
        session: SessionId,
        /// The error.
        code: CudaResult,
        /// What happened, for the program's user.
        text: String,
    },
    /// A stream has reached the record of an event.
    EventRecorded {
        /// The event's session.
        session: SessionId,
        /// The event.
        event: EventHandle,
        /// Sequence number of the request that recorded it.
        sequence: u64,
        /// Device time at which the stream got there.
        time: Nanos,
    },
    /// Prepare a module's image and come back with [`crate::Engine::handle_prepared`].
    Prepare {
        /// The module's session.
        session: SessionId,
        /// Sequence number of the request.
        sequence: u64,
        /// The module that the image becomes.
        module: ModuleHandle,
        /// The image. The engine asks more than once where the device must tell something first.
        image: ImageId,
        /// What the module is prepared for.
        purpose: Purpose,
        /// What its kernels must carry.
        guards: Guards,
    },
    /// Prepare the forms of one kernel of a loaded module, as a module of its own, and come back
    /// with [`crate::Engine::handle_forms`].
    PrepareForms {
        /// The module's session.
        session: SessionId,
        /// The kernel.
        of: FormsOf,
        /// What the shell has kept of the module.
        source: Source,
        /// The module as it is loaded, with the addresses of its variables.
        loaded: Arc<LoadedModule>,
        /// What the forms are prepared for.
        purpose: Purpose,
        /// What the forms must carry.
        guards: Guards,
    },
    /// Keep what is known of a kernel, and give it back by [`crate::Engine::learn`] when a module
    /// has that kernel again.
    Profiled {
        /// The kernel, as [`crate::PreparedKernel::hash`] names it.
        hash: Arc<str>,
        /// Everything that is known of the kernel.
        profiles: Vec<(LaunchShape, KernelProfile)>,
    },
    /// A kernel printed something.
    Output {
        /// The kernel's session.
        session: SessionId,
        /// The program's console that gets the text.
        console: Console,
        /// The text.
        text: Vec<u8>,
    },
    /// End a session that broke the protocol, or of which the engine has lost track. The engine
    /// already treats it as closed.
    EndSession {
        /// The session.
        session: SessionId,
        /// The reason.
        reason: String,
    },
    /// Nothing of a closed session is left: its memory, streams and launches are gone.
    Released {
        /// The session.
        session: SessionId,
    },
    /// The device has lost everything. The process that holds it must be restarted.
    DeviceLost {
        /// What the device said.
        reason: String,
    },
    /// Write a line to the log.
    Log {
        /// The line's weight.
        level: LogLevel,
        /// What the line is about.
        about: About,
        /// The line.
        text: String,
        /// The place in the engine that writes it: lines of one place are of one kind.
        at: &'static Location<'static>,
    },
}

/// What a log line is about.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct About {
    /// The tenant; the engine fills it in where it knows the session or the application.
    pub tenant: Option<TenantId>,
    /// The session.
    pub session: Option<SessionId>,
    /// The application.
    pub application: Option<ApplicationId>,
    /// The kernel.
    pub kernel: Option<String>,
    /// The error that the session's program gets.
    pub error: Option<CudaResult>,
}

impl About {
    /// The same, and about a kernel.
    #[must_use]
    pub fn kernel(self, name: &str) -> About {
        About { kernel: Some(name.to_owned()), ..self }
    }

    /// The same, and about an error.
    #[must_use]
    pub fn error(self, error: CudaResult) -> About {
        About { error: Some(error), ..self }
    }
}

impl From<SessionId> for About {
    fn from(session: SessionId) -> About {
        About { session: Some(session), ..About::default() }
    }
}

impl From<Option<SessionId>> for About {
    fn from(session: Option<SessionId>) -> About {
        About { session, ..About::default() }
    }
}

impl From<ApplicationId> for About {
    fn from(application: ApplicationId) -> About {
        About { application: Some(application), ..About::default() }
    }
}

/// The weight of a log line.
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
