//! Tensor maps, which the GPU's driver makes.

use crate::session::Session;
use partita_model::DeviceAddress;
use partita_model::request::Request;
use partita_model::tensor_map::{TensorMap, TensorMapSpec};
use partita_wire::{CallError, Reply, TENSOR_MAPS, code};

type Plain = Request<&'static [u8]>;

impl Session {
    /// `cuTensorMapEncodeTiled` and its like.
    ///
    /// # Errors
    /// `INVALID_VALUE` where the parameters do not fit each other, `NOT_SUPPORTED` where the device
    /// or the daemon makes none; the session's own errors.
    pub fn tensor_map(&self, spec: &TensorMapSpec) -> Result<Box<TensorMap>, CallError> {
        self.ask_for_map(&Plain::TensorMap { spec: Box::new(*spec) })
    }

    /// `cuTensorMapReplaceAddress`
    ///
    /// # Errors
    /// As [`Session::tensor_map`].
    pub fn moved_tensor_map(
        &self,
        map: &TensorMap,
        address: DeviceAddress,
    ) -> Result<Box<TensorMap>, CallError> {
        self.ask_for_map(&Plain::TensorMapMove { map: Box::new(*map), address })
    }

    fn ask_for_map(&self, request: &Plain) -> Result<Box<TensorMap>, CallError> {
        if !self.has_feature(TENSOR_MAPS) {
            let text = "the daemon is older than this library and has no tensor maps: restart it";
            return Err(CallError::new(code::NOT_SUPPORTED, text));
        }
        match self.call(request)? {
            Reply::TensorMap(map) => Ok(map),
            other => Err(self.unexpected(&other)),
        }
    }
}
