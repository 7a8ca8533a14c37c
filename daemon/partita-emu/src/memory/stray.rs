//! Accesses past an allocation, inside pages that the program has mapped.
//!
//! A GPU maps memory in pages of 2 MiB and checks nothing finer. A kernel that reads or writes past
//! an allocation goes on as long as the page is mapped. This memory does the same, unless
//! [`MemoryCheck::Exact`] asks for more.
//!
//! This file keeps the bytes between allocations. Bytes that nobody has written are zero. The
//! contents of a freed allocation stay as long as its page is mapped.
//!
//! A page is mapped while an allocation that kernels may access lies in it. Windows begin and end
//! at pages, so no page has allocations of two windows.

use super::{Memory, View, WINDOW_ALIGNMENT};
use partita_model::{MemoryAccess, WindowId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A page of device memory, in bytes. CUDA's driver maps memory in such pages.
const PAGE_BYTES: u64 = 2 << 20;
/// Bytes of a piece, the unit in which strayed data is kept.
const PIECE_BYTES: u64 = 64 << 10;

const _: () = assert!(WINDOW_ALIGNMENT.is_multiple_of(PAGE_BYTES));
const _: () = assert!(partita_ptx::fence::MARGIN_BYTES.is_multiple_of(PAGE_BYTES));

/// What accesses of global memory are held to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum MemoryCheck {
    /// The pages that the program has mapped, as on a GPU.
    #[default]
    Pages,
    /// The program's allocations, to the byte.
    Exact,
}

/// Contents of memory between allocations, and the number of accesses there.
#[derive(Debug, Default)]
pub(super) struct Strays {
    check: MemoryCheck,
    /// Pieces, by first address.
    pieces: BTreeMap<u64, Box<[u8]>>,
    /// Accesses so far.
    count: u64,
    /// Windows whose first stray access has been described.
    described: BTreeSet<WindowId>,
    /// Descriptions that await reporting.
    notices: BTreeMap<WindowId, String>,
}

/// The place of a byte, and the number of following bytes in the same place.
enum Spot {
    Allocation { view: View, offset: u64, rest: u64 },
    Gap { rest: u64 },
}

impl Memory {
    /// Sets what accesses are held to. To be called before the first window.
    pub fn set_check(&mut self, check: MemoryCheck) {
        self.strays.check = check;
    }

    /// Accesses of kernels past an allocation so far.
    #[must_use]
    pub fn strays(&self) -> u64 {
        self.strays.count
    }

    /// Whether an access past an allocation of this window has been described.
    #[must_use]
    pub fn has_strayed(&self, window: WindowId) -> bool {
        self.strays.described.contains(&window)
    }

    /// Counts an access past an allocation; a window's first one comes with its description.
    pub fn count_stray(&mut self, window: WindowId, first: Option<String>) {
        self.strays.count += 1;
        if let Some(text) = first {
            self.strays.described.insert(window);
            self.strays.notices.insert(window, text);
        }
    }

    /// The description of a window's first access past an allocation, once.
    pub fn take_notice(&mut self, window: WindowId) -> Option<String> {
        self.strays.notices.remove(&window)
    }

    /// Whether kernels may go to all of a range that is in no single allocation.
    #[must_use]
    pub fn is_mapped(&self, address: u64, bytes: u64, wanted: MemoryAccess) -> bool {
        self.strays.check == MemoryCheck::Pages
            && self.each_spot(address, bytes, wanted, |_, _, _| {})
    }

    /// Reads bytes that are in no single allocation. False where kernels may not.
    #[must_use]
    pub fn read_mapped(&self, address: u64, into: &mut [u8]) -> bool {
        let bytes = into.len() as u64;
        self.is_mapped(address, bytes, MemoryAccess::Read)
            && self.each_spot(address, bytes, MemoryAccess::Read, |at, length, spot| {
                let place = &mut into[(at - address) as usize..][..length as usize];
                match spot {
                    Spot::Allocation { view, offset, .. } => {
                        let data = &self.allocation(view.slot).data;
                        place.copy_from_slice(&data[offset as usize..][..length as usize]);
                    }
                    Spot::Gap { .. } => self.strays.read(at, place),
                }
            })
    }

    /// Writes bytes that are in no single allocation. False where kernels may not.
    #[must_use]
    pub fn write_mapped(&mut self, address: u64, from: &[u8]) -> bool {
        let bytes = from.len() as u64;
        let mut parts = Vec::new();
        let mapped = self.is_mapped(address, bytes, MemoryAccess::ReadWrite)
            && self.each_spot(address, bytes, MemoryAccess::ReadWrite, |at, length, spot| {
                parts.push((at, length, spot));
            });
        for (at, length, spot) in parts.into_iter().filter(|_| mapped) {
            let part = &from[(at - address) as usize..][..length as usize];
            match spot {
                Spot::Allocation { view, offset, .. } => {
                    let slot = self.slots[view.slot].as_mut().expect("a view has an allocation");
                    slot.data[offset as usize..][..length as usize].copy_from_slice(part);
                }
                Spot::Gap { .. } => self.strays.write(at, part),
            }
        }
        mapped
    }

    /// Calls `see` with first address, length and place, for each place in a range, in order. Stops
    /// and returns false at the first place out of reach.
    fn each_spot(
        &self,
        address: u64,
        bytes: u64,
        wanted: MemoryAccess,
        mut see: impl FnMut(u64, u64, Spot),
    ) -> bool {
        let Some(end) = address.checked_add(bytes) else { return false };
        let mut at = address;
        while at < end {
            let Some(spot) = self.spot(at, wanted) else { return false };
            let (Spot::Allocation { rest, .. } | Spot::Gap { rest }) = spot;
            let length = rest.min(end - at);
            see(at, length, spot);
            at += length;
        }
        true
    }

    fn spot(&self, at: u64, wanted: MemoryAccess) -> Option<Spot> {
        if let Some((start, view)) = self.find(at) {
            let allowed = view.access == MemoryAccess::ReadWrite
                || view.access == MemoryAccess::Read && wanted == MemoryAccess::Read;
            let (offset, rest) = (at - start, start + view.bytes - at);
            return allowed.then_some(Spot::Allocation { view, offset, rest });
        }
        if self.host_at(at).is_some() || !self.is_page_mapped(at) {
            return None;
        }
        let page_end = at / PAGE_BYTES * PAGE_BYTES + PAGE_BYTES;
        let next = self.views.range(at..page_end).next().map_or(page_end, |(&start, _)| start);
        Some(Spot::Gap { rest: next - at })
    }

    /// Whether the page around an address holds an allocation that kernels may access.
    fn is_page_mapped(&self, at: u64) -> bool {
        let page = at / PAGE_BYTES * PAGE_BYTES;
        let mut last = self.views.range(..page + PAGE_BYTES).rev();
        last.by_ref()
            .take_while(|(start, view)| *start + view.bytes > page)
            .any(|(_, view)| view.access != MemoryAccess::None)
    }

    /// Keeps the contents of a removed view where its page stays mapped. Forgets data between
    /// allocations on pages that are no longer mapped.
    pub(super) fn keep_freed(&mut self, start: u64, view: View) {
        if self.strays.check == MemoryCheck::Exact {
            return;
        }
        let end = start + view.bytes;
        let (first, last) = (start / PAGE_BYTES, (end - 1) / PAGE_BYTES);
        for page in [first, last].into_iter().take(1 + usize::from(last > first)) {
            let (low, high) = ((page * PAGE_BYTES).max(start), ((page + 1) * PAGE_BYTES).min(end));
            if self.is_page_mapped(low) {
                let data = &self.slots[view.slot].as_ref().expect("a view has an allocation").data;
                let held = &data[(low - start) as usize..(high - start) as usize];
                self.strays.write(low, held);
            }
        }
        let pages = first * PAGE_BYTES..(last + 1) * PAGE_BYTES;
        let pieces: Vec<u64> = self.strays.pieces.range(pages).map(|(&at, _)| at).collect();
        for at in pieces {
            if !self.is_page_mapped(at) {
                self.strays.pieces.remove(&at);
            }
        }
    }

    /// Forgets all data of a released window.
    pub(super) fn forget_strays(&mut self, window: WindowId, base: u64, bytes: u64) {
        self.strays.described.remove(&window);
        self.strays.notices.remove(&window);
        self.strays.pieces.retain(|at, _| !(base..base + bytes).contains(at));
    }
}

impl Strays {
    fn read(&self, address: u64, into: &mut [u8]) {
        let mut done = 0;
        while done < into.len() {
            let at = address + done as u64;
            let (piece, offset) = (at / PIECE_BYTES * PIECE_BYTES, (at % PIECE_BYTES) as usize);
            let length = (into.len() - done).min(PIECE_BYTES as usize - offset);
            let place = &mut into[done..done + length];
            match self.pieces.get(&piece) {
                Some(bytes) => place.copy_from_slice(&bytes[offset..offset + length]),
                None => place.fill(0),
            }
            done += length;
        }
    }

    fn write(&mut self, address: u64, from: &[u8]) {
        let mut done = 0;
        while done < from.len() {
            let at = address + done as u64;
            let (piece, offset) = (at / PIECE_BYTES * PIECE_BYTES, (at % PIECE_BYTES) as usize);
            let length = (from.len() - done).min(PIECE_BYTES as usize - offset);
            let part = &from[done..done + length];
            done += length;
            // An absent piece holds zeros.
            if !self.pieces.contains_key(&piece) && part.iter().all(|&byte| byte == 0) {
                continue;
            }
            let bytes = self.pieces.entry(piece);
            let bytes = bytes.or_insert_with(|| vec![0; PIECE_BYTES as usize].into_boxed_slice());
            bytes[offset..offset + length].copy_from_slice(part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_device::AddressRange;
    use partita_model::DeviceAddress;

    const WINDOW: WindowId = WindowId(1);

    fn range(start: u64, bytes: u64) -> AddressRange {
        AddressRange { start: DeviceAddress(start), bytes }
    }

    /// A window of 16 MiB with allocations of 256 bytes, at these offsets.
    fn memory(offsets: &[u64]) -> (Memory, u64) {
        let mut memory = Memory::new(1 << 30);
        let base = memory.reserve(WINDOW, 16 << 20).unwrap().0;
        for offset in offsets {
            memory.allocate(WINDOW, range(base + offset, 256)).unwrap();
        }
        (memory, base)
    }

    fn byte(memory: &Memory, address: u64) -> Option<u8> {
        let mut byte = [7];
        memory.read_mapped(address, &mut byte).then_some(byte[0])
    }

    #[test]
    fn pages_are_mapped_while_an_allocation_lies_in_them() {
        let (mut memory, base) = memory(&[0, 4096]);
        assert_eq!(byte(&memory, base + 256), Some(0));
        assert_eq!(byte(&memory, base + PAGE_BYTES - 1), Some(0));
        assert_eq!(byte(&memory, base + PAGE_BYTES), None);
        assert_eq!(byte(&memory, base - 1), None);
        assert!(memory.write_mapped(base + 300, &[1, 2, 3]));
        assert_eq!(byte(&memory, base + 301), Some(2));
        memory.free(DeviceAddress(base)).unwrap();
        assert_eq!(byte(&memory, base + 301), Some(2), "the other allocation maps the page");
        memory.free(DeviceAddress(base + 4096)).unwrap();
        assert_eq!(byte(&memory, base + 301), None);
        memory.allocate(WINDOW, range(base, 256)).unwrap();
        assert_eq!(byte(&memory, base + 301), Some(0), "a new page is zero");
    }

    #[test]
    fn an_access_may_straddle_allocations_and_what_lies_between() {
        let (mut memory, base) = memory(&[0, 260]);
        assert!(memory.write_mapped(base + 252, &[9; 12]));
        let mut back = [0; 4];
        memory.read(DeviceAddress(base + 252), &mut back).unwrap();
        assert_eq!(back, [9; 4]);
        memory.read(DeviceAddress(base + 260), &mut back).unwrap();
        assert_eq!(back, [9; 4]);
        let mut all = [0; 14];
        assert!(memory.read_mapped(base + 251, &mut all));
        assert_eq!(all, [0, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 0]);
        // A write with a part out of reach writes nothing.
        let end = base + PAGE_BYTES;
        assert!(!memory.write_mapped(end - 2, &[5; 4]));
        assert_eq!(byte(&memory, end - 1), Some(0));
    }

    #[test]
    fn a_freed_allocation_is_there_as_long_as_its_page() {
        let (mut memory, base) = memory(&[0, 4096]);
        memory.write(DeviceAddress(base), &[3; 256]).unwrap();
        memory.free(DeviceAddress(base)).unwrap();
        assert_eq!(byte(&memory, base + 255), Some(3));
        memory.allocate(WINDOW, range(base, 256)).unwrap();
        let mut back = [1];
        memory.read(DeviceAddress(base), &mut back).unwrap();
        assert_eq!(back, [0], "a new allocation is zero");
        // The next window at the same address does not see the data.
        assert!(memory.write_mapped(base + 300, &[4]));
        memory.release(WINDOW).unwrap();
        let again = memory.reserve(WindowId(2), 16 << 20).unwrap().0;
        assert_eq!(again, base);
        memory.allocate(WindowId(2), range(base, 256)).unwrap();
        assert_eq!(byte(&memory, base + 300), Some(0));
    }

    #[test]
    fn protected_memory_maps_no_page_and_stays_out_of_reach() {
        let (mut memory, base) = memory(&[0]);
        memory.protect(DeviceAddress(base), MemoryAccess::Read).unwrap();
        assert_eq!(byte(&memory, base + 256), Some(0));
        assert!(!memory.write_mapped(base + 255, &[1, 1]));
        memory.protect(DeviceAddress(base), MemoryAccess::None).unwrap();
        assert_eq!(byte(&memory, base + 256), None);
    }

    #[test]
    fn exact_checks_let_nothing_pass() {
        let (mut memory, base) = memory(&[0]);
        memory.set_check(MemoryCheck::Exact);
        assert_eq!(byte(&memory, base + 256), None);
        assert!(!memory.write_mapped(base + 256, &[1]));
    }

    #[test]
    fn the_first_access_of_a_window_is_described() {
        let (mut memory, _) = memory(&[0]);
        assert!(!memory.has_strayed(WINDOW));
        memory.count_stray(WINDOW, Some("first".to_owned()));
        memory.count_stray(WINDOW, None);
        memory.count_stray(WINDOW, None);
        assert!(memory.has_strayed(WINDOW));
        assert_eq!((memory.strays(), memory.take_notice(WINDOW)), (3, Some("first".to_owned())));
        assert_eq!(memory.take_notice(WINDOW), None);
    }
}
