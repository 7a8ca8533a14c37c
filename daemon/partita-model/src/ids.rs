//! Identifiers. Each is a newtype so that one cannot stand for another; none is ever reused within
//! a daemon's life.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$doc])*
        #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

id! {
    /// One streaming multiprocessor, as PTX's `%smid` numbers it.
    SmId(u16), "SM "
}
id! {
    /// One GPU of a daemon, from 0 in the order of its `--device`.
    GpuNumber(u16), "GPU "
}
id! {
    /// One connected client process.
    SessionId(u64), "session "
}
id! {
    /// The holder of a partition: one session, or several of one tenant with one application tag.
    ApplicationId(u32), "application "
}
id! {
    /// A tenant: a user id of the host.
    TenantId(u32), "tenant "
}
id! {
    /// A range of device addresses reserved for one session.
    WindowId(u64), "window "
}
id! {
    /// A module loaded on the device: one instance with its own globals.
    ModuleId(u64), "module "
}
id! {
    /// One `cuLaunchKernel` of a program.
    LaunchId(u64), "launch "
}
id! {
    /// One operation in a device stream: a grid, a copy, a fill, a marker. A launch is at least one
    /// grid; its helpers are further ones.
    OperationId(u64), "operation "
}
id! {
    /// A queue of operations on the device that run in order.
    StreamId(u64), "stream "
}
id! {
    /// A point in a stream that others can wait for.
    EventId(u64), "event "
}
