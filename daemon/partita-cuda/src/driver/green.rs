//! Green contexts: sets of a GPU's SMs as contexts of their own, beside the primary context and
//! with its memory (CUDA Driver API, "Green Contexts").
//!
//! A green context is never made current to a thread: its work is submitted to its streams. The
//! documentation does not say whether creating or destroying one waits for the device. This module
//! assumes that both wait.

use super::table::{Handle, Table, check};
use super::{Context, Driver, Failure, Stream};
use cudarc::driver::sys::CUdevResource;
use std::ffi::c_uint;
use std::fmt;
use std::sync::Arc;

/// `CU_DEV_RESOURCE_TYPE_SM`
const SM_RESOURCE: c_uint = 1;
/// `CU_GREEN_CTX_DEFAULT_STREAM`
const DEFAULT_STREAM: c_uint = 1;
/// `CU_STREAM_NON_BLOCKING`
const NON_BLOCKING: c_uint = 1;
/// More groups than any GPU has.
const MOST_GROUPS: usize = 256;

/// A group of SMs, the least that the driver parts from the others.
#[derive(Clone, Copy)]
pub struct SmGroup {
    resource: CUdevResource,
    /// The number of SMs.
    pub sms: u32,
}

impl fmt::Debug for SmGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a group of {} SMs", self.sms)
    }
}

fn sms_of(resource: &CUdevResource) -> u32 {
    // SAFETY: the resource is one of SMs: no other kind is asked for.
    unsafe { resource.__bindgen_anon_1.sm }.smCount
}

impl Context {
    fn table(&self) -> &Table {
        &self.driver.table
    }

    /// Groups of at least so many SMs, as many as there are but no more than `most`. What remains
    /// of the GPU is in none. The driver rounds up to what it can part.
    ///
    /// # Errors
    /// The driver's; `CUDA_ERROR_NOT_SUPPORTED` where it knows no green contexts.
    pub fn sm_groups(&self, sms: u32, most: usize) -> Result<Vec<SmGroup>, Failure> {
        let table = self.table();
        let missing = || Failure::unsupported("cuGreenCtxCreate");
        let resource = table.cuDeviceGetDevResource.ok_or_else(missing)?;
        let split = table.cuDevSmResourceSplitByCount.ok_or_else(missing)?;
        // SAFETY: a structure of numbers, which the driver fills.
        let mut all: CUdevResource = unsafe { std::mem::zeroed() };
        // SAFETY: pointers to locals.
        let status = unsafe { resource(self.device, &raw mut all, SM_RESOURCE) };
        check(table, "cuDeviceGetDevResource", status)?;
        let mut parts = vec![all; most.clamp(1, MOST_GROUPS)];
        let mut rest = all;
        let mut count = c_uint::try_from(parts.len()).unwrap_or(1);
        // SAFETY: pointers to locals; room for as many groups as the count says.
        let status = unsafe {
            split(parts.as_mut_ptr(), &raw mut count, &raw const all, &raw mut rest, 0, sms)
        };
        check(table, "cuDevSmResourceSplitByCount", status)?;
        parts.truncate(count as usize);
        Ok(parts.into_iter().map(|resource| SmGroup { sms: sms_of(&resource), resource }).collect())
    }

    /// A green context of these groups, all from one call of [`Context::sm_groups`], with so many
    /// streams.
    ///
    /// # Errors
    /// The driver's.
    pub fn green_of(
        self: &Arc<Self>,
        groups: &[SmGroup],
        streams: usize,
    ) -> Result<Green, Failure> {
        let table = self.table();
        let missing = || Failure::unsupported("cuGreenCtxCreate");
        let describe = table.cuDevResourceGenerateDesc.ok_or_else(missing)?;
        let create = table.cuGreenCtxCreate.ok_or_else(missing)?;
        let mut resources: Vec<CUdevResource> = groups.iter().map(|group| group.resource).collect();
        let count = c_uint::try_from(resources.len()).unwrap_or(c_uint::MAX);
        let mut description = 0;
        // SAFETY: pointers to locals, and as many resources as are counted.
        let status = unsafe { describe(&raw mut description, resources.as_mut_ptr(), count) };
        check(table, "cuDevResourceGenerateDesc", status)?;
        let mut raw = 0;
        // SAFETY: a pointer to a local.
        let status = unsafe { create(&raw mut raw, description, self.device, DEFAULT_STREAM) };
        check(table, "cuGreenCtxCreate", status)?;
        let mut green = Green {
            driver: Arc::clone(&self.driver),
            streams: Vec::new(),
            raw,
            sms: groups.iter().map(|group| group.sms).sum(),
        };
        for _ in 0..streams {
            match green.stream(self) {
                Ok(stream) => green.streams.push(stream),
                Err(failure) => {
                    green.destroy()?;
                    return Err(failure);
                }
            }
        }
        Ok(green)
    }

    /// A green context of at least so many SMs, with one stream.
    ///
    /// # Errors
    /// The driver's; `CUDA_ERROR_NOT_SUPPORTED` where it knows none.
    pub fn green(self: &Arc<Self>, sms: u32) -> Result<Green, Failure> {
        self.green_of(&self.sm_groups(sms, 1)?, 1)
    }
}

/// SMs of a GPU as a context of their own. It is kept until [`Green::destroy`].
#[derive(Debug)]
pub struct Green {
    driver: Arc<Driver>,
    /// Its streams.
    pub streams: Vec<Stream>,
    raw: Handle,
    /// The number of SMs.
    pub sms: u32,
}

impl Green {
    fn stream(&self, context: &Arc<Context>) -> Result<Stream, Failure> {
        let table = &self.driver.table;
        let make = table
            .cuGreenCtxStreamCreate
            .ok_or_else(|| Failure::unsupported("cuGreenCtxStreamCreate"))?;
        let mut made = 0;
        // SAFETY: a pointer to a local; the context is live.
        let status = unsafe { make(&raw mut made, self.raw, NON_BLOCKING, 0) };
        check(table, "cuGreenCtxStreamCreate", status)?;
        Ok(Stream::of(Arc::clone(context), made))
    }

    /// Ends it, and its streams that it still has. Waits for everything on the device.
    ///
    /// # Errors
    /// The driver's.
    pub fn destroy(mut self) -> Result<(), Failure> {
        self.streams.clear();
        let table = &self.driver.table;
        let destroy =
            table.cuGreenCtxDestroy.ok_or_else(|| Failure::unsupported("cuGreenCtxDestroy"))?;
        // SAFETY: the context is live, and its streams are gone.
        let status = unsafe { destroy(self.raw) };
        check(table, "cuGreenCtxDestroy", status)
    }
}
