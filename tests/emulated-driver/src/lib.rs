//! A driver that executes: `libcuda.so.1` and `libnvidia-ml.so.1` for the daemon, in one library,
//! on the emulated GPU.
//!
//! `partitad --device cuda` loads the library by `PARTITA_LIBCUDA` and `PARTITA_LIBNVIDIA_ML`. So
//! the real backend serves programs whose kernels really execute. `PARTITA_EMULATED_DRIVER` sets
//! the switches ([`settings`]).
//!
//! - One thread owns the emulated GPU and advances it ([`owner`]). Functions of the driver send it
//!   operations of streams, or ask it and wait for the answer.
//! - [`channels`] holds the operations that have not begun, in the order in which hardware takes
//!   them.
//! - [`context`] has the context's lock, and calls that wait for grids.
//! - [`waits`] finds calls of the owner of a device that wait for grids.
//! - [`memory`] holds addresses, physical memory and mappings; all of them lie in one window of the
//!   emulated GPU. Reserved addresses are reserved in this process, too.
//! - "Machine code" is a mark before the PTX text ([`modules`]).
//! - The other files are the exports, by subject.
//!
//! The library knows nothing of Partita. The CUDA Driver API's pages say what each export does.

#![expect(
    unsafe_code,
    reason = "this crate is a C ABI: it exports functions and reads what C points to"
)]
#![allow(non_snake_case, reason = "exports have the names that CUDA and NVML gave them")]
#![allow(
    clippy::missing_safety_doc,
    reason = "the exports' contracts are those of the CUDA Driver API and NVML"
)]

mod abi;
mod arrays;
mod channels;
mod context;
mod copies;
mod device;
mod driver;
mod events;
mod green;
mod hardware;
mod host;
mod launches;
mod memory;
mod modules;
mod nvml;
mod owner;
mod room;
pub mod settings;
mod status;
mod streams;
mod tensor_maps;
mod virtual_memory;
mod waits;
