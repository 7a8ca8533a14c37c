//! Parts of the GPU, and green contexts on them (CUDA Driver API, "Green Contexts").
//!
//! On compute capability 9.0 a part has at least 8 SMs, in steps of 8. The driver does not say
//! which SMs a part has: here pairs of SMs from all over the GPU.

use crate::abi::{exports, get, put};
use crate::driver::{Driver, Tables};
use crate::status::{self, Status};
use cudarc::driver::sys::{CUdevResource, CUdevResourceType};
use partita_model::{SmId, SmSet};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint};

/// SMs of the smallest part, and the step of larger parts.
const STEP: u32 = 8;

/// Parts and contexts by handle.
#[derive(Default)]
pub struct GreenContexts {
    /// SMs of resources, by the number that a resource holds.
    resources: BTreeMap<u64, SmSet>,
    descriptions: BTreeMap<u64, SmSet>,
    contexts: BTreeMap<u64, SmSet>,
}

/// A resource of these SMs, whose number lies where the structure has room for the driver.
fn resource(number: u64, sms: u16) -> CUdevResource {
    // SAFETY: a structure of numbers.
    let mut made: CUdevResource = unsafe { std::mem::zeroed() };
    made.type_ = CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM;
    made._internal_padding[..8].copy_from_slice(&number.to_le_bytes());
    made.__bindgen_anon_1.sm.smCount = sms.into();
    made
}

impl Tables {
    fn sms_of(&self, resource: &CUdevResource) -> Result<SmSet, Status> {
        let number = resource._internal_padding.first_chunk().copied().map(u64::from_le_bytes);
        let found = number.and_then(|number| self.green.resources.get(&number));
        found.copied().ok_or(status::INVALID_VALUE)
    }
}

impl Driver {
    fn resource(&self, sms: SmSet) -> CUdevResource {
        let number = self.handle();
        self.tables().green.resources.insert(number, sms);
        resource(number, sms.len())
    }
}

/// Parts of `each` SMs, and the rest.
fn split(all: &SmSet, each: usize) -> (Vec<SmSet>, SmSet) {
    let sms: Vec<SmId> = all.iter().collect();
    let count = sms.len() / each;
    let part = |index: usize| -> SmSet {
        (0..each).map(|at| sms[2 * (index + count * (at / 2)) + at % 2]).collect()
    };
    ((0..count).map(part).collect(), sms[count * each..].iter().copied().collect())
}

exports! {
    cuDeviceGetDevResource(_device: c_int, into: *mut CUdevResource, kind: c_uint) |driver| {
        // CU_DEV_RESOURCE_TYPE_SM
        if kind != 1 {
            return Err(status::NOT_SUPPORTED);
        }
        put(into, driver.resource(SmSet::range(0, driver.facts.sm_count)));
        Ok(())
    }
    cuDevSmResourceSplitByCount(parts: *mut CUdevResource, count: *mut c_uint,
        input: *const CUdevResource, rest: *mut CUdevResource, flags: c_uint,
        least: c_uint) |driver| {
        if flags != 0 {
            return Err(status::NOT_SUPPORTED);
        }
        let all = driver.tables().sms_of(&get(input))?;
        let each = least.max(STEP).checked_next_multiple_of(STEP).ok_or(status::INVALID_VALUE)?;
        let (mut found, mut left) = split(&all, each as usize);
        if !parts.is_null() {
            for unwanted in found.drain(found.len().min(get(count) as usize)..) {
                left = left.union(&unwanted);
            }
            for (at, sms) in found.iter().enumerate() {
                put(parts.wrapping_add(at), driver.resource(*sms));
            }
        }
        put(rest, driver.resource(left));
        put(count, c_uint::try_from(found.len()).unwrap_or(c_uint::MAX));
        Ok(())
    }
    cuDevResourceGenerateDesc(description: *mut u64, resources: *const CUdevResource,
        count: c_uint) |driver| {
        let mut tables = driver.tables();
        let mut sms = SmSet::EMPTY;
        for at in 0..count as usize {
            sms = sms.union(&tables.sms_of(&get(resources.wrapping_add(at)))?);
        }
        let handle = driver.handle();
        tables.green.descriptions.insert(handle, sms);
        put(description, handle);
        Ok(())
    }
    cuGreenCtxCreate(context: *mut u64, description: u64, _device: c_int,
        _flags: c_uint) drains |driver| {
        let mut tables = driver.tables();
        let found = tables.green.descriptions.get(&description).copied();
        let sms = found.filter(|sms| !sms.is_empty()).ok_or(status::INVALID_VALUE)?;
        let handle = driver.handle();
        tables.green.contexts.insert(handle, sms);
        put(context, handle);
        Ok(())
    }
    cuGreenCtxDestroy(context: u64) drains |driver| {
        let found = driver.tables().green.contexts.remove(&context);
        found.map(|_| ()).ok_or(status::INVALID_HANDLE)
    }
    cuGreenCtxStreamCreate(stream: *mut u64, context: u64, _flags: c_uint,
        priority: c_int) |driver| {
        let found = driver.tables().green.contexts.get(&context).copied();
        let sms = found.ok_or(status::INVALID_HANDLE)?;
        put(stream, driver.create_stream(priority, Some(sms))?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_disjoint_and_leave_a_rest() {
        let all = SmSet::range(0, 132);
        let (parts, rest) = split(&all, 8);
        assert_eq!((parts.len(), rest.len()), (16, 4));
        let mut seen = rest;
        for part in &parts {
            assert!(part.len() == 8 && seen.is_disjoint(part), "{part}");
            seen = seen.union(part);
        }
        assert_eq!(seen, all);
        assert_eq!(split(&SmSet::range(0, 7), 8).0, []);
    }
}
