//! Handles: the values that C holds instead of pointers.
//!
//! A handle is a number below 2⁴⁷ and a multiple of 16. It looks like a pointer to programs that
//! tag or compare handles, but no code follows it. A handle holds its kind, its device, a slot and
//! the slot's generation. A stale, foreign or invented handle is detected and answered with
//! `CUDA_ERROR_INVALID_HANDLE`. Generations wrap after 2¹⁴ uses of one slot.

use crate::error::{CuError, CuResult};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

const SLOT_BITS: u32 = 20;
const GENERATION_BITS: u32 = 14;
const DEVICE_BITS: u32 = 4;
const LOW_BITS: u32 = 4;
const DEVICE_SHIFT: u32 = LOW_BITS + SLOT_BITS + GENERATION_BITS;

const _: () = assert!(partita_client::MAX_GPUS <= 1 << DEVICE_BITS);

/// A device as this process counts them: `CUdevice`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceIndex(pub u8);

impl DeviceIndex {
    /// `CUdevice`.
    pub fn ordinal(self) -> i32 {
        i32::from(self.0)
    }
}

/// The device whose a handle would be.
pub fn device_of(handle: u64) -> DeviceIndex {
    let index = handle >> DEVICE_SHIFT & ((1 << DEVICE_BITS) - 1);
    DeviceIndex(u8::try_from(index).expect("masked to four bits"))
}

/// The kind of a handle's object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum Kind {
    /// `CUcontext`.
    Context = 1,
    /// `CUmodule`.
    Module,
    /// `CUlibrary`.
    Library,
    /// `CUfunction` and `CUkernel`: CUDA lets one be passed for the other.
    Function,
    /// `CUstream`.
    Stream,
    /// `CUevent`.
    Event,
    /// `CUlinkState`.
    Link,
    /// `CUmemoryPool`.
    MemoryPool,
    /// `CUarray`.
    Array,
    /// `CUmipmappedArray`.
    MipmappedArray,
    /// `CUgraph`.
    Graph,
    /// `CUgraphNode`.
    GraphNode,
    /// `CUgraphExec`.
    GraphExec,
    /// `CUuserObject`.
    UserObject,
    /// `CUmemGenericAllocationHandle`.
    Physical,
}

/// The handle of the first object that a device gets of a kind.
pub fn first_handle(kind: Kind, device: DeviceIndex) -> u64 {
    head(kind, device) << DEVICE_SHIFT
}

/// The upper bits of all handles of a kind and a device.
fn head(kind: Kind, device: DeviceIndex) -> u64 {
    (kind as u64) << DEVICE_BITS | u64::from(device.0)
}

/// All living objects of one kind.
pub struct Handles<T> {
    kind: Kind,
    device: DeviceIndex,
    slots: RwLock<Slots<T>>,
}

struct Slots<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

struct Slot<T> {
    generation: u32,
    value: Option<Arc<T>>,
}

impl<T> Handles<T> {
    /// A table without objects, for those of a device.
    pub const fn new(kind: Kind, device: DeviceIndex) -> Self {
        Handles { kind, device, slots: RwLock::new(Slots { slots: Vec::new(), free: Vec::new() }) }
    }

    /// Adds an object.
    pub fn insert(&self, value: T) -> CuResult<u64> {
        self.insert_with(|_| Ok(value))
    }

    /// Adds an object that knows its own handle.
    pub fn insert_with(&self, make: impl FnOnce(u64) -> CuResult<T>) -> CuResult<u64> {
        let mut slots = self.write();
        let slot = match slots.free.pop() {
            Some(slot) => slot,
            None => {
                let slot = u32::try_from(slots.slots.len()).map_err(|_| CuError::OUT_OF_MEMORY)?;
                if slot >> SLOT_BITS != 0 {
                    return Err(CuError::OUT_OF_MEMORY);
                }
                slots.slots.push(Slot { generation: 0, value: None });
                slot
            }
        };
        let entry = &mut slots.slots[slot as usize];
        let handle = self.encode(entry.generation, slot);
        match make(handle) {
            Ok(value) => {
                entry.value = Some(Arc::new(value));
                Ok(handle)
            }
            Err(error) => {
                slots.free.push(slot);
                Err(error)
            }
        }
    }

    /// The object of a handle.
    pub fn get(&self, handle: u64) -> CuResult<Arc<T>> {
        let (generation, slot) = self.decode(handle)?;
        let slots = self.read();
        let entry = slots.slots.get(slot as usize).filter(|entry| entry.generation == generation);
        entry.and_then(|entry| entry.value.clone()).ok_or(CuError::INVALID_HANDLE)
    }

    /// Removes an object.
    pub fn remove(&self, handle: u64) -> CuResult<Arc<T>> {
        let (generation, slot) = self.decode(handle)?;
        let mut slots = self.write();
        let entry =
            slots.slots.get_mut(slot as usize).filter(|entry| entry.generation == generation);
        let entry = entry.ok_or(CuError::INVALID_HANDLE)?;
        let value = entry.value.take().ok_or(CuError::INVALID_HANDLE)?;
        entry.generation = (entry.generation + 1) & ((1 << GENERATION_BITS) - 1);
        slots.free.push(slot);
        Ok(value)
    }

    /// All living objects, in order of slot.
    pub fn all(&self) -> Vec<Arc<T>> {
        self.read().slots.iter().filter_map(|entry| entry.value.clone()).collect()
    }

    /// The handle of the first living object for which `which` holds.
    pub fn find(&self, which: impl Fn(&T) -> bool) -> Option<u64> {
        let slots = self.read();
        let (entry, slot) = slots
            .slots
            .iter()
            .zip(0u32..)
            .find(|(entry, _)| entry.value.as_deref().is_some_and(&which))?;
        Some(self.encode(entry.generation, slot))
    }

    /// Removes all objects for which `which` holds, in order of slot.
    pub fn remove_where(&self, which: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let handles: Vec<u64> = {
            let slots = self.read();
            let living = slots
                .slots
                .iter()
                .zip(0u32..)
                .filter(|(entry, _)| entry.value.as_deref().is_some_and(&which));
            living.map(|(entry, slot)| self.encode(entry.generation, slot)).collect()
        };
        handles.into_iter().filter_map(|handle| self.remove(handle).ok()).collect()
    }

    fn decode(&self, handle: u64) -> CuResult<(u32, u32)> {
        let field = |shift: u32, bits: u32| handle >> shift & ((1 << bits) - 1);
        if handle >> DEVICE_SHIFT != head(self.kind, self.device) || field(0, LOW_BITS) != 0 {
            return Err(CuError::INVALID_HANDLE);
        }
        let number = |value: u64| u32::try_from(value).map_err(|_| CuError::INVALID_HANDLE);
        Ok((
            number(field(LOW_BITS + SLOT_BITS, GENERATION_BITS))?,
            number(field(LOW_BITS, SLOT_BITS))?,
        ))
    }

    fn encode(&self, generation: u32, slot: u32) -> u64 {
        head(self.kind, self.device) << DEVICE_SHIFT
            | u64::from(generation) << (LOW_BITS + SLOT_BITS)
            | u64::from(slot) << LOW_BITS
    }

    // Each change of the table is complete in itself, so the table stays usable after a panic under
    // the lock.
    fn read(&self) -> RwLockReadGuard<'_, Slots<T>> {
        self.slots.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Slots<T>> {
        self.slots.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: DeviceIndex = DeviceIndex(0);

    #[test]
    fn a_handle_is_its_devices() {
        let tables = [0, 7, 15].map(|index| Handles::new(Kind::Event, DeviceIndex(index)));
        let handles = tables.each_ref().map(|table| table.insert(()).unwrap());
        for (index, handle) in handles.into_iter().enumerate() {
            let found = tables.each_ref().map(|table| table.get(handle).is_ok());
            assert_eq!(found, [index == 0, index == 1, index == 2], "{handle:#x}");
            assert_eq!(device_of(handle), tables[index].device);
        }
    }

    #[test]
    fn a_handle_finds_its_object_until_it_is_removed() {
        let table = Handles::new(Kind::Event, FIRST);
        let first = table.insert("first").unwrap();
        assert_eq!(first, first_handle(Kind::Event, FIRST));
        let second = table.insert("second").unwrap();
        assert_eq!(*table.get(first).unwrap(), "first");
        assert_eq!(*table.remove(first).unwrap(), "first");
        assert_eq!(table.get(first), Err(CuError::INVALID_HANDLE));
        assert_eq!(table.remove(first), Err(CuError::INVALID_HANDLE));
        let third = table.insert("third").unwrap();
        assert_ne!(third, first, "the slot is used again, the handle is not");
        assert_eq!(*table.get(second).unwrap(), "second");
        assert_eq!(*table.get(third).unwrap(), "third");
    }

    #[test]
    fn made_up_handles_are_refused() {
        let table = Handles::new(Kind::Event, FIRST);
        let handle = table.insert(()).unwrap();
        let other = Handles::new(Kind::Stream, FIRST).insert(()).unwrap();
        for bad in
            [0, 1, 2, u64::MAX, handle + 1, handle + 16, handle << 1, other, 0x7fff_1234_5678]
        {
            assert_eq!(table.get(bad), Err(CuError::INVALID_HANDLE), "{bad:#x}");
        }
    }

    #[test]
    fn handles_look_like_aligned_pointers() {
        let table = Handles::<()>::new(Kind::Physical, DeviceIndex(15));
        let handle = table.encode((1 << GENERATION_BITS) - 1, (1 << SLOT_BITS) - 1);
        assert!(handle < 1 << 47 && handle.is_multiple_of(16));
    }

    #[test]
    fn remove_where_takes_what_matches() {
        let table = Handles::new(Kind::Stream, FIRST);
        for i in 0..5 {
            table.insert(i).unwrap();
        }
        assert_eq!(table.find(|i| *i == 7), None);
        assert_eq!(table.find(|i| *i > 1).map(|handle| *table.get(handle).unwrap()), Some(2));
        let odd: Vec<i32> = table.remove_where(|i| i % 2 == 1).iter().map(|i| **i).collect();
        assert_eq!(odd, [1, 3]);
        assert_eq!(table.remove_where(|_| true).len(), 3);
    }
}
