//! Objects that live as long as a graph: user objects, and the memory of allocation nodes.
//!
//! An allocation node's address is fixed when the node is made (CUDA C++ Programming Guide, "Graph
//! Memory Nodes"). The memory is allocated at that moment. It is kept until no graph, clone or
//! instantiated graph has the node any more. Frees in between change only the program's
//! bookkeeping.

use crate::error::{CuError, CuResult};
use crate::graph::Graphs;
use crate::graph::action::HostCall;
use crate::runtime::{self, Runtime};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Memory of an allocation node.
pub struct GraphMemory {
    /// Where.
    pub address: u64,
    /// The size in bytes.
    pub bytes: u64,
}

impl Drop for GraphMemory {
    fn drop(&mut self) {
        let Ok(runtime) = runtime::of_address(self.address) else { return };
        lock(&runtime.graphs.memory).remove(&self.address);
        // Memory that cannot be freed any more ends with the session.
        let _ = runtime.allocations.free(&runtime.session, self.address);
    }
}

impl Graphs {
    /// Memory for an allocation node.
    pub fn allocate(&self, runtime: &Runtime, bytes: u64) -> CuResult<Arc<GraphMemory>> {
        if bytes == 0 {
            return Err(CuError::INVALID_VALUE);
        }
        let address = runtime.allocations.allocate(&runtime.session, bytes)?;
        let memory = Arc::new(GraphMemory { address, bytes });
        lock(&self.memory).insert(address, Arc::downgrade(&memory));
        Ok(memory)
    }

    /// Whether an address is that of an allocation node's memory.
    pub fn owns(&self, address: u64) -> bool {
        lock(&self.memory).contains_key(&address)
    }

    /// Bytes of all allocation nodes.
    pub fn memory_bytes(&self) -> u64 {
        let live: Vec<Arc<GraphMemory>> =
            lock(&self.memory).values().filter_map(std::sync::Weak::upgrade).collect();
        live.iter().map(|memory| memory.bytes).sum()
    }
}

/// An object of the program whose destructor runs when the last reference goes.
pub struct UserObject {
    /// The destructor.
    pub destroy: HostCall,
    /// References.
    pub count: Mutex<u64>,
}

impl Graphs {
    /// `cuUserObjectRetain`.
    pub fn retain_object(&self, handle: u64, count: u32) -> CuResult {
        let object = self.objects.get(handle)?;
        *lock(&object.count) += u64::from(positive(count)?);
        Ok(())
    }

    /// `cuUserObjectRelease`.
    pub fn release_object(&self, handle: u64, count: u32) -> CuResult {
        let object = self.objects.get(handle)?;
        let left = {
            let mut left = lock(&object.count);
            *left = left.checked_sub(u64::from(positive(count)?)).ok_or(CuError::INVALID_VALUE)?;
            *left
        };
        if left == 0 && self.objects.remove(handle).is_ok() {
            object.destroy.run();
        }
        Ok(())
    }
}

/// References that a graph holds, by handle.
#[derive(Default)]
pub struct Retained {
    counts: Mutex<BTreeMap<u64, u32>>,
}

impl Retained {
    /// Adds references that somebody has taken.
    pub fn add(&self, handle: u64, count: u32) {
        *lock(&self.counts).entry(handle).or_default() += count;
    }

    /// Gives references back.
    pub fn release(&self, graphs: &Graphs, handle: u64, count: u32) -> CuResult {
        {
            let mut counts = lock(&self.counts);
            let held = counts.get_mut(&handle).ok_or(CuError::INVALID_VALUE)?;
            *held = held.checked_sub(positive(count)?).ok_or(CuError::INVALID_VALUE)?;
        }
        graphs.release_object(handle, count)
    }

    /// Gives all references back.
    pub fn release_all(&self, graphs: &Graphs) {
        for (handle, count) in std::mem::take(&mut *lock(&self.counts)) {
            if count > 0 {
                // The program may have released all references, and the object with them.
                let _ = graphs.release_object(handle, count);
            }
        }
    }
}

fn positive(count: u32) -> CuResult<u32> {
    if count == 0 { Err(CuError::INVALID_VALUE) } else { Ok(count) }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handles::DeviceIndex;
    use std::ffi::c_void;
    use std::sync::atomic::{AtomicUsize, Ordering};

    unsafe extern "C" fn count_up(counter: *mut c_void) {
        let counter: *const AtomicUsize = counter.cast_const().cast();
        // SAFETY: the test passes a counter that outlives the call.
        unsafe { &*counter }.fetch_add(1, Ordering::Relaxed);
    }

    #[test]
    fn the_last_reference_destroys_and_a_graph_holds_its_own() {
        let graphs = Graphs::new(DeviceIndex(0));
        let ended = AtomicUsize::new(0);
        let destroy = HostCall { function: count_up, data: std::ptr::from_ref(&ended) as u64 };
        let object = graphs.objects.insert(UserObject { destroy, count: Mutex::new(1) }).unwrap();
        let graph = graphs.create().unwrap();
        graphs.retain_object(object, 2).unwrap();
        graph.retained.add(object, 2);
        graphs.release_object(object, 1).unwrap();
        assert_eq!(graphs.release_object(object, 3), Err(CuError::INVALID_VALUE));
        graph.retained.release(&graphs, object, 1).unwrap();
        assert_eq!(ended.load(Ordering::Relaxed), 0);
        graphs.destroy(graph.handle).unwrap();
        assert_eq!(ended.load(Ordering::Relaxed), 1);
        assert_eq!(graphs.retain_object(object, 1), Err(CuError::INVALID_HANDLE));
    }
}
