//! A GPU and its primary context: properties, memory, and the green contexts beside it.

use super::table::Handle;
use super::{Driver, Failure, call};
use cudarc::driver::sys::{
    CUdevice_attribute as Number, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationHandleType,
    CUmemAllocationProp, CUmemAllocationType, CUmemLocation, CUmemLocationType,
};
use partita_model::MemoryAccess;
use std::ffi::{c_int, c_uint};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A device attribute, with the number that `cudarc`'s bindings give it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
#[expect(missing_docs, reason = "each is `CU_DEVICE_ATTRIBUTE_…` of that name")]
pub enum Attribute {
    MaxThreadsPerBlock = Number::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK as u32,
    MaxSharedMemoryPerBlock = Number::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK as u32,
    ClockRate = Number::CU_DEVICE_ATTRIBUTE_CLOCK_RATE as u32,
    KernelExecTimeout = Number::CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT as u32,
    MultiprocessorCount = Number::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT as u32,
    ComputeMode = Number::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE as u32,
    MemoryClockRate = Number::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE as u32,
    GlobalMemoryBusWidth = Number::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH as u32,
    L2CacheSize = Number::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE as u32,
    MaxThreadsPerMultiprocessor = Number::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR as u32,
    ComputeCapabilityMajor = Number::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as u32,
    ComputeCapabilityMinor = Number::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as u32,
    MaxSharedMemoryPerMultiprocessor =
        Number::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR as u32,
    MaxRegistersPerMultiprocessor =
        Number::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR as u32,
    PageableMemoryAccess = Number::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS as u32,
    CanUseHostPointerForRegisteredMem =
        Number::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM as u32,
    DeferredMappingCudaArray =
        Number::CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED as u32,
    MaxSharedMemoryPerBlockOptin =
        Number::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN as u32,
    VirtualMemoryManagement =
        Number::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED as u32,
    MaxBlocksPerMultiprocessor = Number::CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR as u32,
    ReservedSharedMemoryPerBlock =
        Number::CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK as u32,
}

/// The kind of a place in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// On the GPU.
    Device,
    /// On the host, page-locked.
    Host,
}

/// The host's first NUMA node.
const HOST: CUmemLocation =
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA, id: 0 };

/// The primary context of a GPU. It stays as long as this lives.
#[derive(Debug)]
pub struct Context {
    pub(super) driver: Arc<Driver>,
    pub(super) device: c_int,
    raw: Handle,
    /// Streams that were made, those of green contexts too.
    streams_made: AtomicU32,
    /// Streams that are made first, and hold up no other.
    connections: AtomicU32,
}

/// `CU_CTX_SCHED_BLOCKING_SYNC | CU_CTX_MAP_HOST`
const FLAGS: c_uint = 0x04 | 0x08;

impl Context {
    /// Says how many streams have a connection to the GPU for themselves, in the order in which
    /// they are made. Streams that are made later share one, and the first operation of a
    /// connection holds up all behind it. Whether connections of streams that have ended are used
    /// again, nobody says.
    pub fn set_connections(&self, count: u32) {
        self.connections.store(count, Ordering::Relaxed);
    }

    /// Counts a new stream. Whether it has a connection to the GPU for itself.
    pub(super) fn count_stream(&self) -> bool {
        let before = self.streams_made.fetch_add(1, Ordering::Relaxed);
        before < self.connections.load(Ordering::Relaxed)
    }

    /// Opens the GPU of this ordinal and makes its context the calling thread's.
    ///
    /// # Errors
    /// The driver's: `CUDA_ERROR_INVALID_DEVICE` where there is no such GPU,
    /// `CUDA_ERROR_DEVICE_UNAVAILABLE` where another process has it for itself.
    pub fn open(driver: Arc<Driver>, ordinal: u32) -> Result<Arc<Context>, Failure> {
        let mut device = 0;
        let number = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
        call!(driver, cuDeviceGet(&raw mut device, number))?;
        call!(driver, cuDevicePrimaryCtxSetFlags_v2(device, FLAGS))?;
        let mut raw = 0;
        call!(driver, cuDevicePrimaryCtxRetain(&raw mut raw, device))?;
        let (streams_made, connections) = (AtomicU32::new(0), AtomicU32::new(u32::MAX));
        let context = Arc::new(Context { driver, device, raw, streams_made, connections });
        context.make_current()?;
        Ok(context)
    }

    /// Makes the context the calling thread's; every thread that uses it does so first.
    ///
    /// # Errors
    /// The driver's.
    pub fn make_current(&self) -> Result<(), Failure> {
        call!(self.driver, cuCtxSetCurrent(self.raw))
    }

    /// The driver.
    #[must_use]
    pub fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }

    /// The GPU's UUID.
    ///
    /// # Errors
    /// The driver's.
    pub fn uuid(&self) -> Result<[u8; 16], Failure> {
        let mut uuid = [0; 16];
        call!(self.driver, cuDeviceGetUuid_v2(&raw mut uuid, self.device))?;
        Ok(uuid)
    }

    /// Bytes of device memory that are free, and all.
    ///
    /// # Errors
    /// The driver's.
    pub fn memory(&self) -> Result<(u64, u64), Failure> {
        let (mut free, mut total) = (0, 0);
        call!(self.driver, cuMemGetInfo_v2(&raw mut free, &raw mut total))?;
        Ok((free as u64, total as u64))
    }

    /// Whether kernels are loaded with their module, and not at their first launch, which would
    /// wait for the context.
    ///
    /// # Errors
    /// The driver's.
    pub fn loads_eagerly(&self) -> Result<bool, Failure> {
        let mut mode = 0;
        call!(self.driver, cuModuleGetLoadingMode(&raw mut mode))?;
        Ok(mode == 1)
    }

    /// The priority that runs before all others.
    ///
    /// # Errors
    /// The driver's.
    pub fn greatest_priority(&self) -> Result<c_int, Failure> {
        let (mut least, mut greatest) = (0, 0);
        call!(self.driver, cuCtxGetStreamPriorityRange(&raw mut least, &raw mut greatest))?;
        Ok(greatest)
    }

    /// The granularity of physical memory in bytes.
    ///
    /// # Errors
    /// The driver's.
    pub fn granularity(&self) -> Result<u64, Failure> {
        let mut bytes = 0;
        let prop = self.allocation();
        // CU_MEM_ALLOC_GRANULARITY_MINIMUM
        call!(self.driver, cuMemGetAllocationGranularity(&raw mut bytes, &raw const prop, 0))?;
        Ok(bytes as u64)
    }

    /// Takes addresses, from `near` on where they are free; 0 stands for anywhere.
    ///
    /// # Errors
    /// The driver's.
    pub fn reserve(&self, bytes: u64, alignment: u64, near: u64) -> Result<u64, Failure> {
        let mut start = 0;
        call!(
            self.driver,
            cuMemAddressReserve(&raw mut start, size(bytes), size(alignment), near, 0)
        )?;
        Ok(start)
    }

    /// Gives addresses back; nothing is mapped there.
    ///
    /// # Errors
    /// The driver's.
    pub fn unreserve(&self, start: u64, bytes: u64) -> Result<(), Failure> {
        call!(self.driver, cuMemAddressFree(start, size(bytes)))
    }

    /// Maps new physical memory at reserved addresses and lets the device use it; memory of the
    /// host is the host's at the same addresses, too.
    ///
    /// # Errors
    /// The driver's; then nothing is mapped.
    pub fn map(&self, start: u64, bytes: u64, place: Place) -> Result<(), Failure> {
        // The mapping keeps the memory alive after the handle's release.
        self.create(bytes, place)?.map(start)?;
        let given = self.give_access(start, bytes, place);
        if given.is_err() {
            self.unmap(start, bytes)?;
        }
        given
    }

    /// Takes physical memory.
    ///
    /// # Errors
    /// The driver's.
    pub fn create(&self, bytes: u64, place: Place) -> Result<Physical, Failure> {
        let mut prop = self.allocation();
        if place == Place::Host {
            prop.location = HOST;
        }
        self.create_as(bytes, &prop)
    }

    /// Allocates physical memory that only arrays can use.
    ///
    /// # Errors
    /// The driver's error.
    pub(super) fn create_for_arrays(&self, bytes: u64) -> Result<Physical, Failure> {
        let mut prop = self.allocation();
        // CU_MEM_CREATE_USAGE_TILE_POOL
        prop.allocFlags.usage = 1;
        self.create_as(bytes, &prop)
    }

    fn create_as(&self, bytes: u64, prop: &CUmemAllocationProp) -> Result<Physical, Failure> {
        let mut raw = 0;
        call!(self.driver, cuMemCreate(&raw mut raw, size(bytes), std::ptr::from_ref(prop), 0))?;
        Ok(Physical { driver: Arc::clone(&self.driver), raw, bytes })
    }

    /// Lets the device use what is mapped at these addresses, all of them, and the host what is its
    /// own.
    ///
    /// # Errors
    /// The driver's.
    pub fn give_access(&self, start: u64, bytes: u64, place: Place) -> Result<(), Failure> {
        let flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let access = [self.location(), HOST].map(|location| CUmemAccessDesc { location, flags });
        let users = if place == Place::Host { 2 } else { 1 };
        call!(self.driver, cuMemSetAccess(start, size(bytes), access.as_ptr(), users))
    }

    /// Says what the device may do to what is mapped at these addresses. Where the driver knows no
    /// memory that is only read (CUDA Driver API, `CU_MEM_ACCESS_FLAGS_PROT_READ`), it may be
    /// written, too.
    ///
    /// # Errors
    /// The driver's.
    pub fn set_access(&self, start: u64, bytes: u64, access: MemoryAccess) -> Result<(), Failure> {
        let set = |flags| {
            let access = CUmemAccessDesc { location: self.location(), flags };
            call!(self.driver, cuMemSetAccess(start, size(bytes), &raw const access, 1))
        };
        match access {
            MemoryAccess::None => set(CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE),
            MemoryAccess::ReadWrite => set(CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
            MemoryAccess::Read => {
                set(CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ).or_else(|failure| {
                    if !failure.means_never() {
                        return Err(failure);
                    }
                    set(CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
                })
            }
        }
    }

    /// The physical memory behind a mapping of `bytes` bytes, to be mapped elsewhere, too.
    ///
    /// # Errors
    /// The driver's.
    pub fn retain(&self, start: u64, bytes: u64) -> Result<Physical, Failure> {
        let mut raw = 0;
        let at = std::ptr::with_exposed_provenance_mut(size(start));
        call!(self.driver, cuMemRetainAllocationHandle(&raw mut raw, at))?;
        Ok(Physical { driver: Arc::clone(&self.driver), raw, bytes })
    }

    /// Ends a mapping as a whole; its physical memory goes.
    ///
    /// # Errors
    /// The driver's.
    pub fn unmap(&self, start: u64, bytes: u64) -> Result<(), Failure> {
        call!(self.driver, cuMemUnmap(start, size(bytes)))
    }

    /// Reads memory that was mapped with [`Place::Host`]. The whole range must be mapped. Words of
    /// 8 bytes are not torn.
    pub(crate) fn read_mapped(&self, address: u64, into: &mut [u8]) {
        let start = std::ptr::with_exposed_provenance::<u8>(size(address));
        let mut at = 0;
        while at < into.len() {
            let from = start.wrapping_add(at);
            if from.addr().is_multiple_of(8) && into.len() - at >= 8 {
                // SAFETY: mapped for the host, aligned; a kernel may write it at any time, so it is
                // volatile.
                let word = unsafe { from.cast::<u64>().read_volatile() };
                into[at..at + 8].copy_from_slice(&word.to_le_bytes());
                at += 8;
            } else {
                // SAFETY: as above.
                into[at] = unsafe { from.read_volatile() };
                at += 1;
            }
        }
    }

    /// Writes memory that was mapped with [`Place::Host`]. The whole range must be mapped.
    /// Naturally aligned words are not torn.
    pub(crate) fn write_mapped(&self, address: u64, from: &[u8]) {
        let start = std::ptr::with_exposed_provenance_mut::<u8>(size(address));
        let mut at = 0;
        while at < from.len() {
            let (to, rest) = (start.wrapping_add(at), &from[at..]);
            let aligned = |bytes: usize| to.addr().is_multiple_of(bytes);
            if let Some(word) = rest.first_chunk().filter(|_| aligned(8)) {
                // SAFETY: mapped for the host, aligned; a kernel may read it at any time, so it is
                // volatile.
                unsafe { to.cast::<u64>().write_volatile(u64::from_le_bytes(*word)) };
                at += 8;
            } else if let Some(word) = rest.first_chunk().filter(|_| aligned(4)) {
                // SAFETY: as above.
                unsafe { to.cast::<u32>().write_volatile(u32::from_le_bytes(*word)) };
                at += 4;
            } else {
                // SAFETY: as above.
                unsafe { to.write_volatile(rest[0]) };
                at += 1;
            }
        }
    }

    fn location(&self) -> CUmemLocation {
        CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: self.device }
    }

    fn allocation(&self) -> CUmemAllocationProp {
        // SAFETY: a structure of numbers and pointers, in which CUDA wants zeros.
        let mut prop: CUmemAllocationProp = unsafe { std::mem::zeroed() };
        prop.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        prop.requestedHandleTypes = CUmemAllocationHandleType(0);
        prop.location = self.location();
        prop
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // A context that a fault has destroyed needs no release.
        let _ = call!(self.driver, cuDevicePrimaryCtxRelease_v2(self.device));
    }
}

/// Physical memory. It stays as long as this lives, and as it is mapped anywhere.
#[derive(Debug)]
pub struct Physical {
    driver: Arc<Driver>,
    raw: u64,
    bytes: u64,
}

impl Physical {
    /// Maps all of it at reserved addresses where nothing is; nobody may use it there before
    /// [`Context::give_access`].
    ///
    /// # Errors
    /// The driver's.
    pub fn map(&self, start: u64) -> Result<(), Failure> {
        self.map_first(start, self.bytes)
    }

    /// As [`Physical::map`], its first bytes only.
    ///
    /// # Errors
    /// The driver's; it need not map parts.
    pub fn map_first(&self, start: u64, bytes: u64) -> Result<(), Failure> {
        call!(self.driver, cuMemMap(start, size(bytes), 0, self.raw, 0))
    }

    /// Its size.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn raw(&self) -> u64 {
        self.raw
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        // A destroyed context has released its memory already.
        let _ = call!(self.driver, cuMemRelease(self.raw));
    }
}

/// Converts a size of device memory. The crate is for 64-bit machines, so the size fits.
pub(super) fn size(bytes: u64) -> usize {
    usize::try_from(bytes).expect("a machine with a GPU has 64-bit addresses")
}
