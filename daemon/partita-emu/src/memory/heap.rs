//! The heap of a window's kernels (`malloc`, `free`).
//!
//! CUDA C++ Programming Guide, "Dynamic Global Memory Allocation and Operations": one heap per
//! context, 8 MB by default, blocks aligned to 16 bytes. A block lives until a kernel frees it or
//! the context ends. A program's `cudaLimitMallocHeapSize` does not reach the device, so the size
//! is the default.
//!
//! The heap is one allocation of the window. An access from one block into another is not noticed.

use std::collections::{BTreeMap, BTreeSet};

/// Bytes of a window's heap.
pub const HEAP_BYTES: u64 = 8 << 20;

/// Blocks are multiples of this many bytes, and aligned to it.
const GRAIN: u64 = 16;

/// Which parts of a range are taken.
#[derive(Clone, Debug, Default)]
pub struct Heap {
    /// Allocated blocks: start and size.
    blocks: BTreeMap<u64, u64>,
    /// Free pieces, start and size. No two touch.
    free: BTreeMap<u64, u64>,
    /// Free pieces, ordered by size.
    by_size: BTreeSet<(u64, u64)>,
}

impl Heap {
    /// A heap of which all is free.
    #[must_use]
    pub fn new(start: u64, bytes: u64) -> Self {
        let mut heap = Heap::default();
        heap.add_free(start, bytes);
        heap
    }

    fn add_free(&mut self, start: u64, bytes: u64) {
        self.free.insert(start, bytes);
        self.by_size.insert((bytes, start));
    }

    fn remove_free(&mut self, start: u64, bytes: u64) {
        self.free.remove(&start);
        self.by_size.remove(&(bytes, start));
    }

    /// A block of at least `bytes` bytes, of the smallest piece that has them; `None` where none
    /// has.
    pub fn allocate(&mut self, bytes: u64) -> Option<u64> {
        let bytes = bytes.max(1).checked_next_multiple_of(GRAIN)?;
        let (piece, start) = *self.by_size.range((bytes, 0)..).next()?;
        self.remove_free(start, piece);
        if piece > bytes {
            self.add_free(start + bytes, piece - bytes);
        }
        self.blocks.insert(start, bytes);
        Some(start)
    }

    /// Gives a block back. False where `start` is the start of none.
    pub fn free(&mut self, start: u64) -> bool {
        let Some(bytes) = self.blocks.remove(&start) else { return false };
        let (mut low, mut high) = (start, start + bytes);
        if let Some((&before, &size)) = self.free.range(..start).next_back()
            && before + size == low
        {
            self.remove_free(before, size);
            low = before;
        }
        if let Some(&size) = self.free.get(&high) {
            self.remove_free(high, size);
            high += size;
        }
        self.add_free(low, high - low);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_neighbours_become_one_piece() {
        let mut heap = Heap::new(1024, 80);
        let blocks = [1, 16, 17, 32].map(|bytes| heap.allocate(bytes));
        assert_eq!(blocks, [Some(1024), Some(1040), Some(1056), None]);
        assert!(heap.free(1024) && heap.free(1056));
        assert!(!heap.free(1024), "freed already");
        assert!(!heap.free(1048), "inside a block");
        assert_eq!(heap.allocate(64), None, "the middle is taken");
        assert!(heap.free(1040));
        assert_eq!(heap.allocate(80), Some(1024));
        assert_eq!(heap.allocate(u64::MAX), None);
    }

    #[test]
    fn blocks_never_overlap() {
        let mut heap = Heap::new(0, 1 << 16);
        let (mut live, mut state) = (Vec::<(u64, u64)>::new(), 7_u64);
        for _ in 0..5000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let draw = state >> 33;
            if draw.is_multiple_of(3) && !live.is_empty() {
                let (start, _) = live.swap_remove(draw as usize / 3 % live.len());
                assert!(heap.free(start));
            } else if let Some(start) = heap.allocate(draw % 700) {
                let end = start + (draw % 700).max(1);
                assert!(end <= 1 << 16 && start % GRAIN == 0);
                assert!(live.iter().all(|&(low, high)| end <= low || start >= high));
                live.push((start, end));
            }
        }
        live.into_iter().for_each(|(start, _)| assert!(heap.free(start)));
        assert_eq!(heap.allocate(1 << 16), Some(0));
    }
}
