//! Stand-ins for NVIDIA's `libcuda.so.1` and `libnvidia-ml.so.1`, in one library, for machines
//! without a GPU.
//!
//! Tests load the cdylib by its path in the place of both. Device memory is memory of this process,
//! so copies, fills and signals to running kernels are real; kernels are not: what one does is in
//! its name ([`kernels`]). Every call is recorded, can be told to fail, and waits where a real
//! context waits at the worst: loading and unloading of modules, `cuMemAlloc`, `cuMemFree`,
//! `cuMemFreeHost` and `cuCtxSynchronize` for every kernel that runs, and with `strict` every other
//! call behind these.
//!
//! Besides the exports of the two libraries there are [`control::fake_gpu_control`] and
//! [`control::fake_gpu_log`]. A copy of the file is a GPU of its own: each test loads one.
//!
//! It knows nothing of Partita and leaves the meaning of machine code alone.

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
