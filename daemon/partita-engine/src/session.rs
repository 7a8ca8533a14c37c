//! The identity of a session, its grant, and the reasons for its end.

use crate::TermsError;
use partita_device::{AddressRange, DeviceError};
use partita_model::{ApplicationId, SessionId, TenantId, Terms, WindowId};

/// The identity of a session's client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionIdentity {
    /// The session's id, never used before.
    pub session: SessionId,
    /// The tenant that is accounted.
    pub tenant: TenantId,
    /// The client's process id.
    pub pid: u32,
    /// The program's name.
    pub program: String,
    /// Sessions of one tenant with the same tag are one application; one without a tag is its own.
    pub tag: Option<String>,
    /// What the program asks for itself.
    pub asked: Terms,
}

/// What a session gets when it opens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SessionGrant {
    /// Its window: every device address that it will ever be given lies inside.
    pub window: AddressRange,
    /// The application that it belongs to.
    pub application: ApplicationId,
}

/// What a session holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holding {
    /// The session.
    pub session: SessionId,
    /// Its tenant.
    pub tenant: TenantId,
    /// Its window.
    pub window: WindowId,
    /// Operations queued or in flight.
    pub operations: usize,
    /// Allocations of device memory, and variables of modules.
    pub allocations: usize,
    /// Whether it can be ended; otherwise it is being closed.
    pub can_end: bool,
}

/// Why a session could not be opened.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OpenError {
    /// Its id is taken.
    #[error("{0} exists already")]
    Taken(SessionId),
    /// Its tenant has as many as it may have.
    #[error(
        "uid {} has {most} sessions on this GPU, and no user may have more: end some of its \
         programs, or let an administrator raise sessions_per_user in [policy] of the daemon's \
         configuration", .tenant.0
    )]
    TooMany {
        /// The tenant.
        tenant: TenantId,
        /// The most sessions of one tenant.
        most: u32,
    },
    /// The device has no window for it.
    #[error("no device addresses are left for {session}: try again when a program has ended")]
    NoWindow {
        /// The session that asked for it.
        session: SessionId,
        /// What the device said.
        source: DeviceError,
    },
    /// It asks for SMs that there are not.
    #[error(transparent)]
    Terms(#[from] TermsError),
}

/// Why a session ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CloseReason {
    /// The program said goodbye.
    Goodbye,
    /// Its process is gone.
    Died,
}
