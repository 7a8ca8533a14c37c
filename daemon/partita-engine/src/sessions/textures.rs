//! Arrays, texture and surface objects of sessions, and tensor maps.
//!
//! The device chooses an array's address, which means something to copies only. This module checks
//! copies from and to arrays as the window checks those of memory. An object needs one check: its
//! texels are the session's. The device finds objects by the window of the launch.

use super::record::{ArrayRecord, Call, WaiterThen};
use super::window::Window;
use super::{Answer, Refusal, Sessions};
use crate::Payload;
use crate::turn::Turn;
use partita_device::{AddressRange, DeviceError, TensorMaps};
use partita_model::tensor_map::TensorMap;
use partita_model::texture::{ArrayShape, FilterMode, TexelSource, TextureSpec};
use partita_model::{CudaResult, DeviceAddress, MemoryAccess, SessionId};

impl Sessions {
    pub(super) fn array_create(
        &mut self,
        turn: &mut Turn<'_>,
        id: SessionId,
        shape: &ArrayShape,
    ) -> Answer {
        self.check_room_for_object(id)?;
        let out_of_memory = Refusal::Code(CudaResult::ERROR_OUT_OF_MEMORY);
        let (available, _) = self.memory_of(turn, id);
        let footprint =
            Window::footprint(shape.bytes()).filter(|footprint| *footprint <= available);
        let footprint = footprint.ok_or(out_of_memory)?;
        let session = self.session_mut(id);
        let array = turn.device.create_array(session.window_id, shape)?;
        session.memory_used += footprint;
        session.arrays.insert(array.0, ArrayRecord { shape: *shape, ending: false });
        Ok(Payload::Address(array))
    }

    pub(super) fn array_destroy(
        &mut self,
        turn: &mut Turn<'_>,
        call: Call,
        array: DeviceAddress,
    ) -> Result<(), Refusal> {
        match self.session_mut(call.session).arrays.get_mut(&array.0) {
            Some(record) if !record.ending => record.ending = true,
            _ => return Err(CudaResult::ERROR_INVALID_HANDLE.into()),
        }
        self.wait_for_all(turn, call, WaiterThen::DestroyArray(array));
        Ok(())
    }

    pub(super) fn finish_array(
        &mut self,
        turn: &mut Turn<'_>,
        id: SessionId,
        array: DeviceAddress,
    ) {
        let session = self.session_mut(id);
        if let Some(record) = session.arrays.remove(&array.0) {
            session.memory_used -= Window::footprint(record.shape.bytes()).unwrap_or(0);
        }
        if let Err(error) = turn.device.destroy_array(array) {
            turn.log_error(Some(id), format!("an array could not be destroyed: {error}"));
        }
    }

    pub(super) fn texture_create(
        &mut self,
        turn: &mut Turn<'_>,
        id: SessionId,
        spec: &TextureSpec,
    ) -> Answer {
        self.check_room_for_object(id)?;
        let session = self.session_mut(id);
        let format = match spec.source {
            TexelSource::Array { array, first_level, levels } => {
                let found = session.arrays.get(&array.0).filter(|record| !record.ending);
                let shape = found.ok_or(CudaResult::ERROR_INVALID_HANDLE)?.shape;
                let end = first_level.checked_add(levels);
                if levels == 0 || end.is_none_or(|end| end > shape.levels) {
                    return Err(CudaResult::ERROR_INVALID_VALUE.into());
                }
                shape.format
            }
            TexelSource::Linear { format, .. } | TexelSource::Pitched { format, .. } => {
                let (address, bytes) = spec.source.range().expect("only arrays have none");
                let aligned = address.0.is_multiple_of(u64::from(format.bytes()));
                if bytes == 0
                    || !aligned
                    || !session.window.covers(address, bytes, MemoryAccess::Read)
                {
                    return Err(CudaResult::ERROR_INVALID_VALUE.into());
                }
                format
            }
        };
        // A mean needs numbers.
        let channel = format.channel();
        let numbers = |integers: bool| channel.is_float() || channel.bytes() < 4 && !integers;
        if spec.sampler.is_some_and(|s| s.filter == FilterMode::Linear && !numbers(s.integers)) {
            return Err(CudaResult::ERROR_INVALID_VALUE.into());
        }
        let texture = turn.device.create_texture(session.window_id, spec)?;
        session.textures.insert(texture);
        Ok(Payload::Texture(texture))
    }

    pub(super) fn texture_destroy(
        &mut self,
        turn: &mut Turn<'_>,
        call: Call,
        texture: u64,
    ) -> Result<(), Refusal> {
        if !self.session_mut(call.session).textures.remove(&texture) {
            return Err(CudaResult::ERROR_INVALID_HANDLE.into());
        }
        // Launches that were enqueued before may use it.
        self.wait_for_all(turn, call, WaiterThen::DestroyTexture(texture));
        Ok(())
    }

    pub(super) fn finish_texture(&mut self, turn: &mut Turn<'_>, id: SessionId, texture: u64) {
        let window = self.session_mut(id).window_id;
        if let Err(error) = turn.device.destroy_texture(window, texture) {
            turn.log_error(Some(id), format!("a texture could not be destroyed: {error}"));
        }
    }

    /// Whether a copy may touch the bytes: inside one live allocation or variable, or inside one
    /// array.
    pub(super) fn may_copy(
        &self,
        id: SessionId,
        address: DeviceAddress,
        bytes: u64,
        access: MemoryAccess,
    ) -> bool {
        let Some(session) = self.records.get(&id) else { return false };
        if session.window.covers(address, bytes, access) {
            return true;
        }
        let array = session.arrays.range(..=address.0).next_back();
        array.is_some_and(|(&start, record)| {
            let range = AddressRange { start: DeviceAddress(start), bytes: record.shape.bytes() };
            !record.ending && range.contains(address, bytes)
        })
    }
}

/// A tensor map of the device, where it makes any.
pub(super) fn tensor_map(
    turn: &Turn<'_>,
    make: impl FnOnce(&dyn TensorMaps) -> Result<TensorMap, DeviceError>,
) -> Answer {
    let none = || DeviceError::Unsupported("it makes no tensor maps".to_owned());
    let made = turn.device.tensor_maps().ok_or_else(none).and_then(make);
    made.map(|map| Payload::TensorMap(Box::new(map))).map_err(Refusal::from)
}
