//! The data plane's shell: one process per GPU, which holds the device and every session with it.
//!
//! `partitad` or systemd starts the process with a listening socket. `partitad` calls on it, brings
//! two sockets ([`partita_wire::supervise`]), and hands over clients that have said hello. The
//! process and its sessions outlive a `partitad` that crashes or is upgraded. The shell decides
//! nothing: it carries out what [`partita_engine`] decides.
//!
//! | module | what |
//! | --- | --- |
//! | [`shell`] | the owner thread: its loop, its sessions, its device |
//! | [`session`] | between one client's records and the engine's requests |
//! | [`uploads`] | module images while they arrive |
//! | [`prepare`] | from an image to what the device loads: unpack, parse, rewrite |
//! | [`machine_code`] | the same for images without PTX: read the tables |
//! | [`pool`] | the threads that prepare, and what they have prepared before |
//! | [`door`] | calls of `partitad` |
//! | [`control`] | questions of `partitad` |
//! | [`systemd`] | signs of life for systemd |
//! | [`host_time`] | how far device time may go before the programs have called |
//! | [`calibration`] | measurements of the device |
//! | [`interference`] | how much classes of programs slow each other down |
//! | [`store`] | what is kept on disk |
//! | [`device`] | the device that `--device` names |
//!
//! Threads: the owner (the engine and the device live there; nothing is shared), the preparing
//! threads, and one that writes answers to `partitad`.

pub mod calibration;
pub mod control;
pub mod device;
pub mod door;
pub mod host_memory;
pub mod host_time;
pub mod interference;
pub mod machine_code;
pub mod pool;
pub mod prepare;
pub mod session;
pub mod shell;
pub mod store;
pub mod systemd;
pub mod uploads;
