//! Names that a client gives to its own objects, and the numbers of its records.
//!
//! The client counts them up itself, so that creating a stream or an event costs no round trip.
//! They mean something within one session only.

use std::fmt;

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

handle! {
    /// A module of a session.
    ModuleHandle, "module "
}
handle! {
    /// A CUDA stream of a session. [`StreamHandle::LEGACY`] exists without being created.
    StreamHandle, "stream "
}
handle! {
    /// A CUDA event of a session.
    EventHandle, "event "
}
handle! {
    /// The number of a record in its session, from 1 on without gaps.
    Sequence, "record "
}

impl StreamHandle {
    /// The legacy default stream, which waits for all blocking streams of its session and they for
    /// it.
    pub const LEGACY: StreamHandle = StreamHandle(0);
}
