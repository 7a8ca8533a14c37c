//! Stand-ins for NVIDIA's `libcuda.so.1` and `libnvidia-ml.so.1`, in one library, for machines
//! without a GPU.
//!
//! Tests load the cdylib by its path in place of both libraries. Device memory is memory of this
//! process, so copies, fills and signals to running kernels are real. Kernels are not real: a
//! kernel's name decides its effect ([`kernels`]). Every call is recorded and can be told to fail.
//! A call waits where a real context waits in the worst case: loading and unloading of modules,
//! `cuMemAlloc`, `cuMemFree`, `cuMemFreeHost` and `cuCtxSynchronize` wait for every running kernel.
//! With `strict`, every other call waits behind these.
//!
//! Besides the exports of the two libraries there are [`control::fake_gpu_control`] and
//! [`control::fake_gpu_log`]. A copy of the file is a GPU of its own: each test loads one.
//!
//! The library knows nothing of Partita and does not interpret machine code.

#![expect(
    unsafe_code,
    reason = "this crate is a C ABI: it exports functions and reads what C points to"
)]
#![allow(non_snake_case, reason = "exports have the names that CUDA and NVML gave them")]
#![allow(
    clippy::missing_safety_doc,
    reason = "the exports' contracts are those of the CUDA Driver API and NVML"
)]

mod arrays;
pub mod control;
mod driver;
mod kernels;
mod memory;
mod modules;
mod nvml;
mod state;
mod stream;
