//! A session with the Partita daemon as a safe Rust API: what `libcuda.so.1` is made of.
//!
//! [`Session::connect`] finds the daemon and shakes hands; the methods of [`Session`] are the
//! driver API's calls with Rust's types. [`image`] finds in what a program was compiled to the PTX
//! that the device can run.
//!
//! # Invariants
//!
//! - A session may be used by any number of threads at once. Requests go out in the order in which
//!   [`Session`]'s methods take the request lock; a call that waits lets others pass.
//! - Launches, fills, copies on the device, event records and stream waits return when they are
//!   written down. They make no system call unless the data plane sleeps.
//! - No call hangs because the daemon died: the bell's end of file ends every wait.
//! - A forked child gets `NOT_INITIALIZED` from every call and touches neither the memory nor the
//!   bell.
//! - Nothing here raises or handles a signal, starts a thread, or needs to be torn down.
//!
//! # What this crate leaves alone
//!
//! Contexts, handles that programs see, CUDA's per-thread state and raw pointers are the shim's
//! business. Whether an address or a stream exists is the daemon's.

mod connect;
mod copy;
mod events;
mod gate;
mod host;
pub mod image;
mod inbox;
mod outside;
mod patience;
mod processes;
mod session;
mod staging;
mod tensor_map;
mod terms;
mod texture;

pub use connect::{ConnectError, find_socket_dir};
pub use gate::ClosedGate;
pub use host::HostRange;
pub use inbox::OutputSink;
pub use partita_model::Console;
pub use partita_model::ParamLayout;
pub use partita_model::request::{EventHandle, Launch, ModuleHandle, Secret, StreamHandle};
pub use partita_wire::{
    CallError, GpuOffer, KernelReply, MAX_GPUS, ModuleReply, VariableReply, Window, code,
};
pub use session::{Found, LoadedModule, Session};
