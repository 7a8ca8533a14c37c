//! `libpartita_cuda.so`, which programs load in place of NVIDIA's `libcuda.so.1`: the C ABI of the
//! CUDA driver API on top of a [`partita_client::Session`], and nothing else.
//!
//! # The path of a call
//!
//! A program (or the CUDA runtime in it) finds a function by name, through the dynamic linker or
//! through `cuGetProcAddress` (`names`). One macro makes every function (`entry`). The macro checks
//! the parameters (`abi`), keeps panics inside, and turns the body's result into a `CUresult`
//! (`error`). The body finds the process's state (`runtime`) and the objects behind handles
//! (`handles`), and asks the session. `api.table` states for every name of CUDA 13.5's driver API
//! whether the daemon answers it, this process answers it, or it is refused with
//! `CUDA_ERROR_NOT_SUPPORTED`. `build.rs` generates the refused exports and the table of names from
//! it. Two of NVRTC's functions stand beside them (`nvrtc`).
//!
//! # Invariants
//!
//! - Loading the library does nothing, and unloading it takes nothing down: it has no constructors,
//!   no destructors, no thread-locals with drop glue. It connects in `cuInit`.
//! - Handles are numbers that are looked up, never pointers that are followed. The library follows
//!   only pointers whose targets CUDA says the program provides, as far as CUDA says they reach.
//! - Every entry point may be called from any thread. No lock is held during a wait for the daemon,
//!   with three exceptions: one `cuInit` waits for another, a call that uses a library after a
//!   reset waits for the call that is loading the library again, and a call that shares memory
//!   with another process waits for another such call.
//! - In a forked child of an initialised process every call answers `CUDA_ERROR_NOT_INITIALIZED`.
//! - When the daemon goes away, calls that need it answer `CUDA_ERROR_MPS_RPC_FAILURE` (806) at
//!   once: the code of NVIDIA's own sharing service when its server is gone.
//!
//! # What this crate leaves alone
//!
//! Graphs are kept here and replayed call by call ([`graph`]). The daemon decides what code means,
//! whether an address is live, the order between streams, and which SMs run a kernel.

#![expect(
    unsafe_code,
    reason = "this crate is a C ABI: it exports functions and reads what C points to"
)]
#![allow(non_snake_case, reason = "exports have the names that CUDA gave them")]

mod abi;
mod across;
mod array;
mod array_calls;
mod attributes;
mod batch_copy_calls;
mod context;
mod context_calls;
mod copy;
mod copy_calls;
mod coverage;
mod device_calls;
mod device_memory;
mod devices;
mod entry;
mod error;
mod event;
mod event_calls;
mod export_tables;
mod fill_calls;
mod graph;
mod handles;
mod host_calls;
mod host_memory;
mod image;
mod integrity;
mod jit;
mod launch;
mod launch_calls;
mod library;
mod link;
mod log;
mod managed;
mod managed_calls;
mod memory_calls;
mod memory_pool;
mod memory_pool_calls;
mod module;
mod module_calls;
mod names;
mod nested;
mod nvrtc;
mod occupancy;
mod output;
mod page_exchange;
mod pointer_calls;
mod proc_address;
mod process_calls;
mod processes;
mod refused;
mod runtime;
mod storage;
mod stream;
mod stream_attributes;
mod stream_calls;
mod stream_memory_calls;
mod tensor_map_calls;
mod texture;
mod texture_calls;
mod visible;
mod vmm;
mod vmm_calls;
