//! What the engine answers to a [`partita_model::request::Request`].
//!
//! Every request gets exactly one [`crate::Action::Reply`].

use partita_device::{AddressRange, KernelFacts, VariableFacts};
use partita_model::request::Secret;
use partita_model::tensor_map::TensorMap;
use partita_model::{DeviceAddress, ParamLayout};
use std::sync::Arc;

/// What a reply carries besides its code.
#[derive(Clone, PartialEq, Debug)]
pub enum Payload {
    /// Nothing.
    None,
    /// Of `MemAlloc` and `ArrayCreate`.
    Address(DeviceAddress),
    /// Of `ExportMemory` and `ExportEvent`.
    Secret(Secret),
    /// Of `OpenMemory`.
    Opened(AddressRange),
    /// Of `TextureCreate`: what kernels are given.
    Texture(u64),
    /// Of `TensorMap` and `TensorMapMove`.
    TensorMap(Box<TensorMap>),
    /// Of `MemInfo`.
    Memory {
        /// Bytes that can still be allocated.
        free: u64,
        /// Bytes that there are.
        total: u64,
    },
    /// Of `ModuleLoad`.
    Module(Arc<LoadedModule>),
    /// Of anything that failed for a reason worth telling: a text for the program's user.
    Explanation(String),
}

/// What a session learns of its loaded module.
#[derive(Clone, PartialEq, Debug)]
pub struct LoadedModule {
    /// Its kernels; launches name them by their index here.
    pub kernels: Vec<LoadedKernel>,
    /// Its global and constant variables.
    pub variables: Vec<VariableFacts>,
}

/// One kernel of a loaded module.
#[derive(Clone, PartialEq, Debug)]
pub struct LoadedKernel {
    /// Its name in the program's module.
    pub name: Arc<str>,
    /// Its parameters.
    pub params: Vec<ParamLayout>,
    /// Size of its parameter space.
    pub param_bytes: u32,
    /// What the device knows of it, or why the device cannot run it.
    pub facts: Result<KernelFacts, String>,
}
