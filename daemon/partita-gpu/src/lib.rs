//! The data plane's shell: one process per GPU, which holds the device and every session with it.
//!
//! It is started by `partitad`, which hands it two sockets ([`partita_wire::supervise`]) and
//! clients that have said hello. Nothing is decided here: [`partita_engine`] says what to do, and
//! the shell does it.
//!
//! | module | what |
//! | --- | --- |
//! | [`shell`] | the owner thread: its loop, its sessions, its device |
//! | [`session`] | between one client's records and the engine's requests |
//! | [`uploads`] | module images while they arrive |
//! | [`prepare`] | from an image to what the device loads: unpack, parse, rewrite |
//! | [`machine_code`] | the same for images without PTX: read the tables |
//! | [`pool`] | the threads that do that, and what they have done before |
//! | [`control`] | questions of `partitad` |
//! | [`host_time`] | how far device time may go before the programs have called |
//! | [`calibration`] | what the device can do, measured |
//! | [`store`] | what is kept on disk |
//! | [`device`] | which device `--device` names |
//!
//! Threads: the owner (this is where the engine and the device live; nothing is shared), the
//! preparing ones, and one that writes answers to `partitad`.

pub mod calibration;
pub mod control;
pub mod device;
pub mod host_time;
pub mod machine_code;
pub mod pool;
pub mod prepare;
pub mod session;
pub mod shell;
pub mod store;
pub mod uploads;
