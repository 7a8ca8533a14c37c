//! Attributes of streams (CUDA Driver API, `CUstreamAttrID`): hints, kept for the program's
//! queries. No device here obeys them.

use crate::error::{CuError, CuResult};
use partita_client::StreamHandle;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

const ACCESS_POLICY_WINDOW: i32 = 1;
const SYNCHRONIZATION_POLICY: i32 = 3;
const PRIORITY: i32 = 8;
const MEM_SYNC_DOMAIN_MAP: i32 = 9;
const MEM_SYNC_DOMAIN: i32 = 10;

/// The values that programs set, by stream and attribute.
pub struct Attributes {
    values: Mutex<BTreeMap<(u64, i32), Vec<u8>>>,
}

impl Attributes {
    /// None.
    pub const fn new() -> Self {
        Attributes { values: Mutex::new(BTreeMap::new()) }
    }

    /// Bytes of an attribute's value. The union that they lie in has grown with CUDA's versions.
    pub fn size(attribute: i32) -> CuResult<usize> {
        match attribute {
            ACCESS_POLICY_WINDOW => Ok(32),
            SYNCHRONIZATION_POLICY | PRIORITY | MEM_SYNC_DOMAIN => Ok(4),
            MEM_SYNC_DOMAIN_MAP => Ok(2),
            _ => Err(CuError::INVALID_VALUE),
        }
    }

    /// Keeps a value.
    pub fn set(&self, stream: StreamHandle, attribute: i32, value: &[u8]) -> CuResult {
        if attribute == SYNCHRONIZATION_POLICY && !matches!(value, [1..=4, 0, 0, 0]) {
            return Err(CuError::INVALID_VALUE);
        }
        self.lock().insert((stream.0, attribute), value.to_vec());
        Ok(())
    }

    /// The value, or CUDA's default; `priority` is what the stream was created with.
    pub fn get(
        &self,
        stream: StreamHandle,
        attribute: i32,
        priority: i32,
        into: &mut [u8],
    ) -> CuResult {
        /// `CU_SYNC_POLICY_AUTO`.
        const AUTO: i32 = 1;
        if let Some(value) = self.lock().get(&(stream.0, attribute)) {
            into.copy_from_slice(value);
            return Ok(());
        }
        into.fill(0);
        match attribute {
            PRIORITY => into.copy_from_slice(&priority.to_le_bytes()),
            SYNCHRONIZATION_POLICY => into.copy_from_slice(&AUTO.to_le_bytes()),
            MEM_SYNC_DOMAIN_MAP => into.copy_from_slice(&[0, 1]),
            _ => {}
        }
        Ok(())
    }

    /// The stream's priority, as it was set last.
    pub fn priority(&self, stream: StreamHandle, created_with: i32) -> i32 {
        let mut value = [0; 4];
        match self.get(stream, PRIORITY, created_with, &mut value) {
            Ok(()) => i32::from_le_bytes(value),
            Err(_) => created_with,
        }
    }

    /// Gives a stream the attributes of another.
    pub fn copy(&self, to: StreamHandle, from: StreamHandle) {
        let mut values = self.lock();
        let of = |stream: StreamHandle| (stream.0, i32::MIN)..=(stream.0, i32::MAX);
        let copied: Vec<((u64, i32), Vec<u8>)> = values
            .range(of(from))
            .map(|((_, attribute), value)| ((to.0, *attribute), value.clone()))
            .collect();
        values.retain(|(stream, _), _| *stream != to.0);
        values.extend(copied);
    }

    /// The stream has gone.
    pub fn forget(&self, stream: StreamHandle) {
        self.lock().retain(|(other, _), _| *other != stream.0);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(u64, i32), Vec<u8>>> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_kept_copied_and_forgotten() {
        let (one, other) = (StreamHandle(1), StreamHandle(2));
        let attributes = Attributes::new();
        assert_eq!(attributes.priority(one, -3), -3);
        let set = (-5_i32).to_le_bytes();
        attributes.set(one, PRIORITY, &set).unwrap();
        attributes.set(other, MEM_SYNC_DOMAIN, &[1, 0, 0, 0]).unwrap();
        attributes.copy(other, one);
        assert_eq!(attributes.priority(other, 0), -5);
        let mut domain = [9; 4];
        attributes.get(other, MEM_SYNC_DOMAIN, 0, &mut domain).unwrap();
        assert_eq!(domain, [0; 4], "what the other has not is the default again");
        attributes.forget(one);
        assert_eq!((attributes.priority(one, -3), attributes.priority(other, 0)), (-3, -5));
        assert_eq!(
            attributes.set(one, SYNCHRONIZATION_POLICY, &[5, 0, 0, 0]),
            Err(CuError::INVALID_VALUE)
        );
        assert_eq!(Attributes::size(2), Err(CuError::INVALID_VALUE));
    }
}
