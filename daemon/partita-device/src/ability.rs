//! What a device may be able to do besides [`crate::Device`]'s calls.
//!
//! Each ability is a trait of its own. A device returns itself as the ability where it has it, and
//! `None` where it does not, so that nobody finds out by a failing call.

use crate::{AddressRange, Confinement, DeviceError, HostSpan};
use partita_model::tensor_map::{TensorMap, TensorMapSpec};
use partita_model::texture::{ArrayShape, TextureSpec};
use partita_model::{
    DeviceAddress, DeviceCounters, GridCounters, MemoryAccess, ModuleId, OperationId, SmSet,
    WindowId,
};
use std::sync::Arc;

/// Arrays, textures and surfaces. Every device has them; single kinds may be unsupported.
pub trait Textures {
    /// Makes an array. Copies may use its address, kernels may not. The contents are undefined.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`]; [`DeviceError::BadId`] for the window;
    /// [`DeviceError::Unsupported`] for a kind of array; [`DeviceError::Busy`] while kernels run.
    fn create_array(
        &mut self,
        window: WindowId,
        shape: &ArrayShape,
    ) -> Result<DeviceAddress, DeviceError>;

    /// Ends the life of an array. Textures and surfaces of it fault from now on.
    ///
    /// # Errors
    /// [`DeviceError::BadRange`] where there is no array.
    fn destroy_array(&mut self, array: DeviceAddress) -> Result<(), DeviceError>;

    /// Makes a texture or surface object and returns the number that kernels use, never 0.
    ///
    /// # Errors
    /// [`DeviceError::BadId`] for the window; [`DeviceError::BadRange`] where the window has no
    /// such array, or the array no such levels; [`DeviceError::Unsupported`] for a kind of texture.
    fn create_texture(&mut self, window: WindowId, spec: &TextureSpec) -> Result<u64, DeviceError>;

    /// Ends the life of a texture or surface object.
    ///
    /// # Errors
    /// [`DeviceError::BadId`] where the window has no object of that number.
    fn destroy_texture(&mut self, window: WindowId, texture: u64) -> Result<(), DeviceError>;
}

/// Moves allocations to other addresses.
pub trait Relocation {
    /// Moves an allocation with its contents to free addresses of the same window. Nothing in
    /// flight may use the allocation.
    ///
    /// # Errors
    /// [`DeviceError::BadRange`] where nothing was allocated at `from`, or `to` is not free;
    /// [`DeviceError::Unsupported`] where the allocation has several addresses.
    fn relocate(&mut self, from: DeviceAddress, to: DeviceAddress) -> Result<(), DeviceError>;
}

/// Reaches one allocation at several addresses, each with its own access.
pub trait Aliasing {
    /// Maps the first bytes of the allocation at `home` at `range`, too, where nothing is; the
    /// range lies in the same window. Both are equals from then on: each ends by
    /// [`crate::Device::free`], and the bytes end with the last of them. An alias is no further
    /// memory.
    ///
    /// # Errors
    /// [`DeviceError::BadRange`] where `home` has fewer bytes or `range` is not free;
    /// [`DeviceError::Unsupported`] for a part that the device cannot map.
    fn alias(&mut self, home: DeviceAddress, range: AddressRange) -> Result<(), DeviceError>;

    /// Sets what kernels may do to the allocation or alias that begins at `address`. Before,
    /// everything is allowed. A device whose kernels are guarded against faults
    /// ([`crate::Guards::contains`]) may allow more.
    ///
    /// # Errors
    /// [`DeviceError::BadRange`] where none begins there; [`DeviceError::Unsupported`] for an
    /// access that the device cannot enforce.
    fn protect(&mut self, address: DeviceAddress, access: MemoryAccess) -> Result<(), DeviceError>;
}

/// Lets a second window reach an allocation of the first, for processes that share memory.
pub trait Lending {
    /// The addresses that an allocation takes in another window.
    ///
    /// # Errors
    /// [`DeviceError::BadRange`] where nothing was allocated at `home`;
    /// [`DeviceError::Unsupported`] for memory that no other window can reach.
    fn lent_shape(&self, home: DeviceAddress) -> Result<LentShape, DeviceError>;

    /// Maps the allocation at `home` at `to`, too. `to` lies in another window, and nothing is in
    /// the addresses of [`Lending::lent_shape`]. Both addresses are equals from then on: each ends
    /// by [`crate::Device::free`] or with its window, and the bytes end with the last of them.
    ///
    /// # Errors
    /// As [`Lending::lent_shape`], and [`DeviceError::BadRange`] where the addresses are not free.
    fn lend(&mut self, home: DeviceAddress, to: DeviceAddress) -> Result<(), DeviceError>;
}

/// Addresses around an allocation that another window reaches. A device that maps whole pages maps
/// what shares the allocation's pages with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LentShape {
    /// Bytes before the allocation.
    pub before: u64,
    /// All bytes, those before and behind the allocation included.
    pub bytes: u64,
    /// The first of them lies at a multiple of this.
    pub alignment: u64,
}

/// Lets kernels reach host memory.
pub trait HostMapping {
    /// The most bytes of host memory that a window should have. A device that page-locks them takes
    /// as much of the machine's memory for each window.
    fn most_bytes(&self) -> u64 {
        u64::MAX
    }

    /// Maps host memory at `start`, inside the window, where nothing is allocated. Each side sees
    /// the other's writes when a grid begins and when it has ended, at the latest. The last
    /// `variables` bytes hold the variables that modules declare managed. The mapping ends with the
    /// window.
    ///
    /// # Errors
    /// [`DeviceError::BadId`], [`DeviceError::BadRange`].
    fn map_host(
        &mut self,
        window: WindowId,
        start: DeviceAddress,
        memory: HostSpan,
        variables: u64,
    ) -> Result<(), DeviceError>;
}

/// Runs machine code that nobody has rewritten.
pub trait MachineCode {
    /// Starts to load a module from an image of machine code, whose tables were checked
    /// (`partita_cubin::read`). Its variables may lie in no window; copies and fills reach them.
    /// The rest is as in [`crate::Device::load_module`].
    ///
    /// # Errors
    /// [`DeviceError::BadId`].
    fn load_code(
        &mut self,
        module: ModuleId,
        window: WindowId,
        image: Arc<[u8]>,
    ) -> Result<(), DeviceError>;
}

/// Makes tensor maps ([`partita_model::tensor_map`]).
pub trait TensorMaps {
    /// Makes one.
    ///
    /// # Errors
    /// [`DeviceError::BadValue`] where the parameters do not fit each other,
    /// [`DeviceError::Unsupported`] for a kind of map that the driver does not know.
    fn tensor_map(&self, spec: &TensorMapSpec) -> Result<TensorMap, DeviceError>;

    /// Gives one another address.
    ///
    /// # Errors
    /// As [`TensorMaps::tensor_map`].
    fn moved_tensor_map(
        &self,
        map: &TensorMap,
        address: DeviceAddress,
    ) -> Result<TensorMap, DeviceError>;
}

/// Keeps grids to SMs ([`crate::Work::LaunchOn`]), as the green contexts of CUDA do.
pub trait Confining {
    /// Makes ready for launches on these SMs, a union of groups ([`crate::Device::sm_groups`]).
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] where they are no union of groups, or where the device keeps
    /// grids to too many sets of SMs already.
    fn confine(&mut self, sms: SmSet) -> Result<Confinement, DeviceError>;

    /// Whether launches on these SMs are possible now.
    fn is_ready(&self, sms: &SmSet) -> bool;

    /// Streams that can have grids on one set of SMs at a time. Grids of further streams wait.
    fn streams(&self) -> usize;
}

/// Takes power from SMs.
pub trait Gating {
    /// Takes power from these SMs, from each when its last CTA has left, and gives power to all
    /// others. No new CTA comes to an SM without power: the caller leaves SMs to everything that is
    /// to run.
    ///
    /// # Errors
    /// Where the device fails.
    fn gate(&mut self, sms: SmSet) -> Result<(), DeviceError>;
}

/// Tells where each CTA is.
pub trait ResidencyTrace {
    /// Turns [`crate::Event::Residency`] on or off. It is off at the start.
    ///
    /// # Errors
    /// Where the device fails.
    fn trace_residency(&mut self, on: bool) -> Result<(), DeviceError>;
}

/// Counts what grids do. Counters only grow.
pub trait Counting {
    /// What a grid has done, so far or in all. Counters of an ended grid are kept until thousands
    /// more have ended. `None` where the grid has not begun, or is no longer known.
    fn grid_counters(&self, operation: OperationId) -> Option<GridCounters>;

    /// What the device has done since its start.
    fn counters(&self) -> DeviceCounters;
}

/// Samples the traffic of the whole device's LLC.
pub trait TrafficSampling {
    /// Begins a sample under this number. An open sample ends without a result.
    fn begin_traffic(&mut self, sample: u64);

    /// Ends an open sample. Its result comes later, or never.
    fn end_traffic(&mut self, sample: u64);

    /// The LLC's hit rates, from 0 to 1, of samples whose results have come: each once.
    fn hit_rates(&mut self) -> Vec<(u64, f64)>;
}

/// Reading modules beside the device's owner.
pub trait Reading: Send + Sync {
    /// Reads a text on the calling thread, so that [`crate::Device::load_module`] takes less of the
    /// owner's time for this very text. Nothing else depends on it.
    fn read(&self, ptx: &Arc<str>);
}
