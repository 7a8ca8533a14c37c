//! Arrays, texture and surface objects.

use crate::inbox::lock;
use crate::session::Session;
use partita_model::DeviceAddress;
use partita_model::request::Request;
use partita_model::texture::{ArrayShape, TextureSpec};
use partita_wire::{CallError, Reply};
use std::collections::BTreeMap;
use std::sync::Mutex;

/// Sizes of the session's arrays in bytes, by address. They let a bad copy fail before it is sent.
#[derive(Debug, Default)]
pub(crate) struct Arrays(Mutex<BTreeMap<u64, u64>>);

impl Arrays {
    /// Whether the bytes lie in one array.
    pub(crate) fn contain(&self, address: DeviceAddress, bytes: u64) -> bool {
        let arrays = lock(&self.0);
        let found = arrays.range(..=address.0).next_back();
        found.is_some_and(|(start, size)| {
            let offset = address.0 - start;
            bytes <= size.saturating_sub(offset) && offset < *size
        })
    }
}

type Plain = Request<&'static [u8]>;

impl Session {
    /// `cuArray3DCreate`. Kernels cannot use the address. Copies take it as they take memory's, for
    /// the array's bytes in canonical order.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`; the session's own errors.
    pub fn create_array(&self, shape: &ArrayShape) -> Result<DeviceAddress, CallError> {
        match self.call(&Request::ArrayCreate { shape: *shape })? {
            Reply::Address(array) => {
                lock(&self.arrays().0).insert(array.0, shape.bytes());
                Ok(array)
            }
            other => Err(self.unexpected(&other)),
        }
    }

    /// `cuArrayDestroy`: waits for earlier work.
    ///
    /// # Errors
    /// `INVALID_HANDLE`; the session's own errors.
    pub fn destroy_array(&self, array: DeviceAddress) -> Result<(), CallError> {
        self.call_done(&Request::ArrayDestroy { array })?;
        lock(&self.arrays().0).remove(&array.0);
        Ok(())
    }

    /// `cuTexObjectCreate` and `cuSurfObjectCreate`: the number that kernels use.
    ///
    /// # Errors
    /// `INVALID_VALUE` where the texels are not the session's; the session's own errors.
    pub fn create_texture(&self, spec: &TextureSpec) -> Result<u64, CallError> {
        match self.call(&Request::TextureCreate { spec: *spec })? {
            Reply::Texture(texture) => Ok(texture),
            other => Err(self.unexpected(&other)),
        }
    }

    /// `cuTexObjectDestroy` and `cuSurfObjectDestroy`: returns at once. Earlier work may still
    /// use the object.
    ///
    /// # Errors
    /// The session's own errors.
    pub fn destroy_texture(&self, texture: u64) -> Result<(), CallError> {
        self.submit(&Plain::TextureDestroy { texture })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_lies_in_one_array() {
        let arrays = Arrays(Mutex::new(BTreeMap::from([(1000, 100), (1100, 8)])));
        for (address, bytes, expect) in [
            (1000, 100, true),
            (1050, 51, false),
            (1099, 1, true),
            (1108, 0, false),
            (999, 1, false),
        ] {
            assert_eq!(arrays.contain(DeviceAddress(address), bytes), expect, "{address} {bytes}");
        }
        assert!(!arrays.contain(DeviceAddress(1104), u64::MAX));
    }
}
