//! What crosses the border between a client process and Partita's data plane, and nothing else
//! does.
//!
//! # The way of a session
//!
//! 1. The client connects to `partitad.sock` ([`SOCKET_NAME`], a Unix socket of kind `SEQPACKET`)
//!    and sends a [`Hello`]. The answer is a [`Welcome`] with two descriptors, or a [`Refusal`]
//!    that says what to do; a client that leaves open which GPU it wants is told first what there
//!    is where there are several ([`Answer::Offer`]).
//! 2. The first descriptor is the session's **memory**: a memfd that the data plane created and
//!    sealed, so that nobody can pull pages away under a reader. [`Layout`] says what lies where: a
//!    command ring, a reply ring, a page of words that each side publishes, event slots, and the
//!    staging arena for copies.
//! 3. The second descriptor is the **bell**: one end of a socket pair. A byte means "look at the
//!    memory again"; end of file means that the other side has died. It is a socket and not two
//!    pipes because a write to a pipe without a reader raises `SIGPIPE` in the *program's* process,
//!    and `MSG_NOSIGNAL` exists for sockets only.
//!
//! # Records
//!
//! A [`partita_model::request::Request`] is one record of the command ring, and so is a part of a
//! module's image. Records have consecutive sequence numbers from
//! 1 on; a gap ends the session. A record whose sender wants an answer gets exactly one [`Reply`]
//! or [`CallError`] with its sequence number, **when its work is done** (not when it was read), in
//! whatever order work gets done. A record that wants no answer gets none: if its work fails, the
//! failure becomes the session's *sticky* error ([`ServerSession::set_sticky`]), whose words come
//! as an answer with the number 0.
//!
//! # Doorbells
//!
//! Neither side makes a system call while the other is awake. Before a side sleeps it numbers this
//! sleep in a word of the memory that only it writes, then looks once more whether there is news; a
//! side that has published news then looks at the other's word, and sends one byte if it finds a
//! sleep that it has not rung for. Both put a sequentially consistent fence between their write and
//! their read, so at least one of the two sees the other's write: no wake-up is lost, and at most
//! one byte is sent per announced sleep. `tests/loom.rs` checks that with the code that runs
//! ([`ring`]).
//!
//! # Trust
//!
//! The peer may write anything into the memory at any time. Therefore: no reference to shared
//! memory exists outside [`mapping`], which copies; own indices are private and only published; the
//! peer's index is checked against the ring's capacity; a record is copied once and then parsed
//! from the private copy; and everything that it says (lengths, offsets, counts) has a bound. What
//! does not parse is a [`Violation`], which ends that session and no other.
//!
//! # What this crate leaves alone
//!
//! It knows neither what a request does nor whether an address is anybody's. It does not wait: how
//! a client's threads sleep is `partita-client`'s business, how the data plane serves many sessions
//! is `partita-gpu`'s.

mod arena;
mod bytes;
#[cfg(feature = "supervision")]
pub mod call;
mod call_error;
mod client_end;
mod facts;
mod handshake;
mod layout;
pub mod mapping;
pub mod message;
mod reply;
mod request;
pub mod ring;
mod server;
#[cfg(feature = "supervision")]
pub mod supervise;
mod tensor_map;
mod texture;

pub use arena::Arena;
pub use call_error::{CallError, code};
pub use client_end::{
    Answered, AttachError, ClientEnd, EventSlot, PeerFault, Printed, ReplyReader, RequestWriter,
    Rung, SharedEnd,
};
pub use facts::{GpuOffer, MAX_GPUS};
pub use handshake::{
    Answer, CLUSTERS, FEATURES, GpuWish, HIDDEN_SHARED, HandshakeError, Hello, MAX_MESSAGE, NESTED,
    PROCESSES, PROTOCOL, Protocol, Refusal, RefusalCode, SOCKET_NAME, TENSOR_MAPS, Welcome, Window,
};
pub use layout::{Layout, LayoutError, Sizes};
pub use partita_model::ParamLayout;
pub use reply::{KernelReply, MAX_REPLY, MalformedReply, ModuleReply, Reply, VariableReply};
pub use request::{
    MAX_CHUNK, MAX_MODULE, MAX_PARAMS, MAX_RECORD, Malformed, Received, Record, WANTS_REPLY,
};
pub use server::{BellState, CreateError, Incoming, ServerSession, Violation};
