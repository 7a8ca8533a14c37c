//! Global memory: windows of reserved addresses, and the live allocations in them.
//!
//! An allocation's bytes are zeroed memory of the host, which the operating system backs page by
//! page. So memory in use is about what the program touches. An allocation has one address as a
//! rule, and several where it is aliased. Each address is a *view*; the bytes go with the last
//! view.
//!
//! A grid sees memory through its [`Grants`]. Accesses past an allocation are the subject of
//! [`MemoryCheck`], and where windows lie that of [`Cells`].

mod cells;
mod for_drivers;
mod grants;
mod heap;
mod host;
mod pages;
mod stray;
mod textures;
pub mod weak;

use partita_device::{AddressRange, DeviceError, LentShape};
use partita_model::{AddressPart, DeviceAddress, MemoryAccess, WindowId};
use partita_ptx::fence::SMALL_WINDOW_BYTES;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Generic addresses of shared memory start here.
pub const SHARED_BASE: u64 = 0x0100_0000_0000;
/// Generic addresses of local memory start here.
pub const LOCAL_BASE: u64 = 0x0200_0000_0000;
/// Generic addresses of kernel parameters start here.
pub const PARAM_BASE: u64 = 0x0300_0000_0000;
/// Size of each of those three windows.
pub const SPACE_BYTES: u64 = 1 << 32;

pub use cells::GLOBAL_BASE;
pub use for_drivers::PageTables;
pub use grants::{Grants, Place};
pub use heap::{HEAP_BYTES, Heap};
pub use stray::MemoryCheck;
pub use textures::{Level, TextureObject};

use cells::{Cell, Cells};
use for_drivers::Process;
use host::HostRange;
use pages::Pages;
use stray::Strays;
use textures::Textures;

const WINDOW_ALIGNMENT: u64 = 2 << 20;
const REMEMBERED_FREES: usize = 64;
/// Bytes per step of a copy from or to host memory that kernels can access.
const HOST_PIECE: u64 = 1 << 20;

#[derive(Debug)]
struct Allocation {
    data: Pages,
    /// Number of addresses at which the allocation is mapped.
    views: u32,
}

/// The first bytes of an allocation at an address.
#[derive(Clone, Copy, Debug)]
struct View {
    slot: usize,
    bytes: u64,
    /// What kernels may do through this view.
    access: MemoryAccess,
}

#[derive(Debug)]
struct Window {
    /// `None` where the owner chose the addresses.
    cell: Option<Cell>,
    base: u64,
    bytes: u64,
    /// Module variables grow down from the window's end; this is the lowest address so far.
    variables_from: u64,
    /// The heap of kernels' `malloc`, once a module needs one.
    heap: Option<Heap>,
}

/// All global memory of the device.
#[derive(Debug)]
pub struct Memory {
    windows: BTreeMap<WindowId, Window>,
    slots: Vec<Option<Allocation>>,
    vacant: Vec<usize>,
    views: BTreeMap<u64, View>,
    /// Host memory that kernels can access, by first address.
    hosts: BTreeMap<u64, HostRange>,
    freed: VecDeque<(u64, u64)>,
    cells: Cells,
    used: u64,
    capacity: u64,
    epoch: u64,
    textures: Textures,
    strays: Strays,
    process: Process,
}

impl Memory {
    /// An empty memory of `capacity` bytes.
    #[must_use]
    pub fn new(capacity: u64) -> Self {
        Memory {
            windows: BTreeMap::new(),
            slots: Vec::new(),
            vacant: Vec::new(),
            views: BTreeMap::new(),
            hosts: BTreeMap::new(),
            freed: VecDeque::new(),
            cells: Cells::new(AddressPart::WHOLE, 0),
            used: 0,
            capacity,
            epoch: 1,
            textures: Textures::default(),
            strays: Strays::default(),
            process: Process::default(),
        }
    }

    /// Places windows in this part of the addresses only. Full cells have at least `least_bits`
    /// address bits. To be called before the first window.
    pub fn set_cells(&mut self, part: AddressPart, least_bits: u32) {
        self.cells = Cells::new(part, least_bits);
    }

    /// See [`partita_device::Device::full_windows`].
    #[must_use]
    pub fn full_windows(&self, bytes: u64) -> usize {
        self.cells.full_windows(bytes)
    }

    /// See [`partita_device::Device::reserve`].
    ///
    /// # Errors
    /// As there.
    pub fn reserve(&mut self, window: WindowId, bytes: u64) -> Result<DeviceAddress, DeviceError> {
        self.reserve_in(window, bytes, |cells| cells.full(bytes))
    }

    /// See [`partita_device::Device::reserve_small`]. Returns the base.
    ///
    /// # Errors
    /// As there.
    pub fn reserve_small(&mut self, window: WindowId) -> Result<DeviceAddress, DeviceError> {
        self.reserve_in(window, SMALL_WINDOW_BYTES, Cells::small)
    }

    fn reserve_in(
        &mut self,
        window: WindowId,
        bytes: u64,
        take: impl FnOnce(&mut Cells) -> Result<Cell, u64>,
    ) -> Result<DeviceAddress, DeviceError> {
        if self.windows.contains_key(&window) {
            return Err(DeviceError::BadId(window.to_string()));
        }
        let cell = take(&mut self.cells)
            .map_err(|available| DeviceError::OutOfMemory { wanted: bytes, available })?;
        let (base, bytes) = (cell.window_base(), bytes.next_multiple_of(WINDOW_ALIGNMENT));
        self.windows.insert(
            window,
            Window { cell: Some(cell), base, bytes, variables_from: base + bytes, heap: None },
        );
        Ok(DeviceAddress(base))
    }

    /// See [`partita_device::Device::release`].
    ///
    /// # Errors
    /// As there.
    pub fn release(&mut self, window: WindowId) -> Result<(), DeviceError> {
        let found =
            self.windows.remove(&window).ok_or_else(|| DeviceError::BadId(window.to_string()))?;
        let inside: Vec<u64> = self
            .views
            .range(found.base..found.base + found.bytes)
            .map(|(&start, _)| start)
            .collect();
        for start in inside {
            if let Some(view) = self.views.remove(&start) {
                self.let_go(start, view);
            }
        }
        self.forget_strays(window, found.base, found.bytes);
        self.unmap_host(window);
        self.release_textures(window);
        if let Some(cell) = found.cell {
            self.cells.give_back(cell);
        }
        Ok(())
    }

    /// See [`partita_device::Device::allocate`].
    ///
    /// # Errors
    /// As there.
    pub fn allocate(&mut self, window: WindowId, range: AddressRange) -> Result<(), DeviceError> {
        let bad = DeviceError::BadRange { address: range.start, bytes: range.bytes };
        let found =
            self.windows.get(&window).ok_or_else(|| DeviceError::BadId(window.to_string()))?;
        let inside = AddressRange { start: DeviceAddress(found.base), bytes: found.bytes };
        if range.bytes == 0 || !inside.contains(range.start, range.bytes) || self.overlaps(range) {
            return Err(bad);
        }
        self.insert(range)
    }

    /// Makes room for a module's variables of `bytes` bytes at the top of the window, and returns
    /// its address.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`] where they would meet the other allocations;
    /// [`DeviceError::BadId`].
    pub fn allocate_variables(
        &mut self,
        window: WindowId,
        bytes: u64,
        alignment: u64,
    ) -> Result<DeviceAddress, DeviceError> {
        let found =
            self.windows.get(&window).ok_or_else(|| DeviceError::BadId(window.to_string()))?;
        let available = found.variables_from - found.base;
        let error = DeviceError::OutOfMemory { wanted: bytes, available };
        let start = found.variables_from.checked_sub(bytes.max(1)).ok_or_else(|| error.clone())?;
        let start = start / alignment.max(256) * alignment.max(256);
        let range = AddressRange { start: DeviceAddress(start), bytes: bytes.max(1) };
        if start < found.base || self.overlaps(range) {
            return Err(error);
        }
        self.insert(range)?;
        self.windows.get_mut(&window).expect("found above").variables_from = start;
        Ok(DeviceAddress(start))
    }

    /// Gives a window a heap for its kernels, if it has none. Where there is no room it has an
    /// empty one.
    pub fn provide_heap(&mut self, window: WindowId) {
        if self.windows.get(&window).is_none_or(|found| found.heap.is_some()) {
            return;
        }
        let room = self.allocate_variables(window, HEAP_BYTES, 256);
        let heap = room.map_or_else(|_| Heap::default(), |start| Heap::new(start.0, HEAP_BYTES));
        self.windows.get_mut(&window).expect("found above").heap = Some(heap);
    }

    /// The heap of a window's kernels.
    pub fn heap(&mut self, window: WindowId) -> Option<&mut Heap> {
        self.windows.get_mut(&window)?.heap.as_mut()
    }

    /// Bytes of the host's memory behind a window's allocations; 0 for an unknown window.
    #[must_use]
    pub fn resident(&self, window: WindowId) -> u64 {
        let Some(found) = self.windows.get(&window) else { return 0 };
        let slots: BTreeSet<usize> = self
            .views
            .range(found.base..found.base + found.bytes)
            .map(|(_, view)| view.slot)
            .collect();
        slots
            .iter()
            .filter_map(|&slot| self.slots[slot].as_ref())
            .map(|it| it.data.resident())
            .sum()
    }

    fn insert(&mut self, range: AddressRange) -> Result<(), DeviceError> {
        let available = self.capacity - self.used;
        let out_of_memory = DeviceError::OutOfMemory { wanted: range.bytes, available };
        let Some(length) = usize::try_from(range.bytes).ok().filter(|_| range.bytes <= available)
        else {
            return Err(out_of_memory);
        };
        let Ok(data) = Pages::zeroed(length) else { return Err(out_of_memory) };
        let allocation = Allocation { data, views: 1 };
        let slot = match self.vacant.pop() {
            Some(slot) => {
                self.slots[slot] = Some(allocation);
                slot
            }
            None => {
                self.slots.push(Some(allocation));
                self.slots.len() - 1
            }
        };
        let view = View { slot, bytes: range.bytes, access: MemoryAccess::ReadWrite };
        self.views.insert(range.start.0, view);
        self.used += range.bytes;
        self.epoch += 1;
        Ok(())
    }

    /// See [`partita_device::Device::free`].
    ///
    /// # Errors
    /// As there.
    pub fn free(&mut self, address: DeviceAddress) -> Result<(), DeviceError> {
        if self.remove(address.0) {
            Ok(())
        } else {
            Err(DeviceError::BadRange { address, bytes: 0 })
        }
    }

    /// See [`partita_device::Relocation::relocate`].
    ///
    /// # Errors
    /// As there.
    pub fn relocate(&mut self, from: DeviceAddress, to: DeviceAddress) -> Result<(), DeviceError> {
        let bad = DeviceError::BadRange { address: from, bytes: 0 };
        let view = self.views.remove(&from.0).ok_or(bad)?;
        let result = self.check_room(from, AddressRange { start: to, bytes: view.bytes });
        self.views.insert(if result.is_ok() { to.0 } else { from.0 }, view);
        self.epoch += 1;
        result
    }

    /// See [`partita_device::Aliasing::alias`].
    ///
    /// # Errors
    /// As there.
    pub fn alias(&mut self, home: DeviceAddress, range: AddressRange) -> Result<(), DeviceError> {
        let bad = DeviceError::BadRange { address: home, bytes: range.bytes };
        let view = self.views.get(&home.0).filter(|view| (1..=view.bytes).contains(&range.bytes));
        let slot = view.ok_or(bad)?.slot;
        self.check_room(home, range)?;
        self.slots[slot].as_mut().expect("a view has an allocation").views += 1;
        let view = View { slot, bytes: range.bytes, access: MemoryAccess::ReadWrite };
        self.views.insert(range.start.0, view);
        self.epoch += 1;
        Ok(())
    }

    /// See [`partita_device::Lending::lent_shape`]. Nothing comes with an allocation.
    ///
    /// # Errors
    /// As there.
    pub fn lent_shape(&self, home: DeviceAddress) -> Result<LentShape, DeviceError> {
        let view = self.views.get(&home.0);
        let view = view.ok_or(DeviceError::BadRange { address: home, bytes: 0 })?;
        Ok(LentShape { before: 0, bytes: view.bytes, alignment: 512 })
    }

    /// See [`partita_device::Lending::lend`].
    ///
    /// # Errors
    /// As there.
    pub fn lend(&mut self, home: DeviceAddress, to: DeviceAddress) -> Result<(), DeviceError> {
        let LentShape { bytes, .. } = self.lent_shape(home)?;
        let bad = DeviceError::BadRange { address: to, bytes };
        if self.window_of(home) == self.window_of(to) {
            return Err(bad);
        }
        self.check_room(to, AddressRange { start: to, bytes })?;
        let view = View { access: MemoryAccess::ReadWrite, ..self.views[&home.0] };
        self.slots[view.slot].as_mut().expect("a view has an allocation").views += 1;
        self.views.insert(to.0, view);
        self.epoch += 1;
        Ok(())
    }

    /// See [`partita_device::Aliasing::protect`].
    ///
    /// # Errors
    /// As there.
    pub fn protect(
        &mut self,
        address: DeviceAddress,
        access: MemoryAccess,
    ) -> Result<(), DeviceError> {
        let view =
            self.views.get_mut(&address.0).ok_or(DeviceError::BadRange { address, bytes: 0 })?;
        view.access = access;
        self.epoch += 1;
        Ok(())
    }

    /// Whether a range in the window of `from` is free.
    fn check_room(&self, from: DeviceAddress, range: AddressRange) -> Result<(), DeviceError> {
        let inside = |window: &Window, address, bytes| {
            AddressRange { start: DeviceAddress(window.base), bytes: window.bytes }
                .contains(address, bytes)
        };
        let window = self.windows.values().find(|window| inside(window, from, 1));
        if window.is_some_and(|window| inside(window, range.start, range.bytes))
            && !self.overlaps(range)
        {
            return Ok(());
        }
        Err(DeviceError::BadRange { address: range.start, bytes: range.bytes })
    }

    fn remove(&mut self, start: u64) -> bool {
        let Some(view) = self.views.remove(&start) else { return false };
        self.keep_freed(start, view);
        self.let_go(start, view);
        true
    }

    /// Releases the allocation of a removed view.
    fn let_go(&mut self, start: u64, view: View) {
        let allocation = self.slots[view.slot].as_mut().expect("a view has an allocation");
        allocation.views -= 1;
        if allocation.views == 0 {
            self.used -= allocation.data.len() as u64;
            self.slots[view.slot] = None;
            self.vacant.push(view.slot);
        }
        if self.freed.len() == REMEMBERED_FREES {
            self.freed.pop_front();
        }
        self.freed.push_back((start, start + view.bytes));
        self.epoch += 1;
    }

    fn overlaps(&self, range: AddressRange) -> bool {
        self.views
            .range(..range.end())
            .next_back()
            .is_some_and(|(&start, view)| start + view.bytes > range.start.0)
            || self.hosts.values().any(|host| host.overlaps(range))
    }

    fn allocation(&self, slot: usize) -> &Allocation {
        self.slots[slot].as_ref().expect("a view has an allocation")
    }

    /// The live views of a window, or of all windows: first address and contents, in order.
    pub fn live(&self, window: Option<WindowId>) -> impl Iterator<Item = (u64, &[u8])> {
        let range = match window.map(|window| self.windows.get(&window)) {
            None => 0..u64::MAX,
            Some(None) => 0..0,
            Some(Some(window)) => window.base..window.base + window.bytes,
        };
        let bytes = |view: &View| &self.allocation(view.slot).data[..view.bytes as usize];
        self.views.range(range).map(move |(&start, view)| (start, bytes(view)))
    }

    /// Bytes in live allocations.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used
    }

    /// The window whose addresses include this one.
    #[must_use]
    pub fn window_of(&self, address: DeviceAddress) -> Option<WindowId> {
        let mut windows = self.windows.iter();
        windows.find_map(|(id, window)| {
            (address.0.wrapping_sub(window.base) < window.bytes).then_some(*id)
        })
    }

    /// The view around `address`, and the view's first address.
    fn find(&self, address: u64) -> Option<(u64, View)> {
        let (&start, &view) = self.views.range(..=address).next_back()?;
        (address - start < view.bytes).then_some((start, view))
    }

    /// Whether all of the range is live.
    #[must_use]
    pub fn is_live(&self, address: DeviceAddress, bytes: u64) -> bool {
        let Some(end) = address.0.checked_add(bytes) else { return false };
        let mut at = address.0;
        while at < end {
            let device = self.find(at).map(|(start, view)| start + view.bytes - at);
            match device.or_else(|| self.host_at(at).map(|(_, _, rest)| rest)) {
                Some(rest) => at += rest,
                None => return false,
            }
        }
        true
    }

    fn check(&self, address: DeviceAddress, bytes: u64) -> Result<(), DeviceError> {
        if self.is_live(address, bytes) {
            Ok(())
        } else {
            Err(DeviceError::BadRange { address, bytes })
        }
    }

    /// Copies out of live memory.
    ///
    /// # Errors
    /// [`DeviceError::BadRange`].
    pub fn read(&self, address: DeviceAddress, into: &mut [u8]) -> Result<(), DeviceError> {
        self.read_with(address, into.len() as u64, |at, piece| {
            into[at as usize..at as usize + piece.len()].copy_from_slice(piece);
        })
    }

    /// Shows live memory to `take`, piece by piece where it lies: how many bytes came before, and
    /// the piece.
    ///
    /// # Errors
    /// [`DeviceError::BadRange`].
    pub fn read_with(
        &self,
        address: DeviceAddress,
        bytes: u64,
        mut take: impl FnMut(u64, &[u8]),
    ) -> Result<(), DeviceError> {
        self.check(address, bytes)?;
        let mut done = 0;
        while done < bytes {
            let at = address.0 + done;
            let left = bytes - done;
            if let Some((start, view)) = self.find(at) {
                let allocation = self.allocation(view.slot);
                let offset = (at - start) as usize;
                let length = left.min(start + view.bytes - at);
                take(done, &allocation.data[offset..offset + length as usize]);
                done += length;
            } else {
                let (memory, offset, rest) = self.host_at(at).expect("checked above");
                let mut piece = vec![0; left.min(rest).min(HOST_PIECE) as usize];
                memory.read(offset, &mut piece);
                take(done, &piece);
                done += piece.len() as u64;
            }
        }
        Ok(())
    }

    /// Copies the live bytes of a range, and leaves the rest of `into` unchanged.
    fn read_live(&self, start: u64, into: &mut [u8]) {
        let mut done = 0;
        while done < into.len() {
            let at = start + done as u64;
            let Some((start, view)) = self.find(at) else {
                done += 1;
                continue;
            };
            let allocation = self.allocation(view.slot);
            let (offset, rest) = ((at - start) as usize, start + view.bytes - at);
            let length = (into.len() - done).min(usize::try_from(rest).unwrap_or(usize::MAX));
            into[done..done + length].copy_from_slice(&allocation.data[offset..offset + length]);
            done += length;
        }
    }

    /// Copies into live memory.
    ///
    /// # Errors
    /// [`DeviceError::BadRange`].
    pub fn write(&mut self, address: DeviceAddress, from: &[u8]) -> Result<(), DeviceError> {
        self.write_with(address, from.len() as u64, |at, piece| {
            piece.copy_from_slice(&from[at as usize..at as usize + piece.len()]);
        })
    }

    /// Lets `give` write live memory, piece by piece where it lies: how many bytes came before, and
    /// the piece.
    ///
    /// # Errors
    /// [`DeviceError::BadRange`].
    pub fn write_with(
        &mut self,
        address: DeviceAddress,
        bytes: u64,
        mut give: impl FnMut(u64, &mut [u8]),
    ) -> Result<(), DeviceError> {
        self.check(address, bytes)?;
        let mut done = 0;
        while done < bytes {
            let at = address.0 + done;
            let left = bytes - done;
            if let Some((start, view)) = self.find(at) {
                let allocation = self.slots[view.slot].as_mut().expect("a view has an allocation");
                let offset = (at - start) as usize;
                let length = left.min(start + view.bytes - at);
                give(done, &mut allocation.data[offset..offset + length as usize]);
                done += length;
            } else {
                let (memory, offset, rest) = self.host_at(at).expect("checked above");
                let mut piece = vec![0; left.min(rest).min(HOST_PIECE) as usize];
                give(done, &mut piece);
                memory.write(offset, &piece);
                done += piece.len() as u64;
            }
        }
        Ok(())
    }

    /// Fills live memory with copies of `pattern`.
    ///
    /// # Errors
    /// [`DeviceError::BadRange`].
    pub fn fill(
        &mut self,
        address: DeviceAddress,
        pattern: &[u8],
        count: u64,
    ) -> Result<(), DeviceError> {
        let bytes = count.saturating_mul(pattern.len() as u64);
        self.check(address, bytes)?;
        let chunk: Vec<u8> = pattern.iter().copied().cycle().take(pattern.len() << 12).collect();
        let mut done = 0;
        while done < bytes {
            let length = (bytes - done).min(chunk.len() as u64);
            self.write(DeviceAddress(address.0 + done), &chunk[..length as usize])?;
            done += length;
        }
        Ok(())
    }

    /// Copies inside live memory; the ranges may overlap.
    ///
    /// # Errors
    /// [`DeviceError::BadRange`].
    pub fn copy(
        &mut self,
        to: DeviceAddress,
        from: DeviceAddress,
        bytes: u64,
    ) -> Result<(), DeviceError> {
        self.check(from, bytes)?;
        self.check(to, bytes)?;
        const CHUNK: u64 = 1 << 20;
        let mut buffer = vec![0; bytes.min(CHUNK) as usize];
        let chunks = bytes.div_ceil(CHUNK);
        for index in 0..chunks {
            // A target behind the source is copied backwards, so that no source is overwritten
            // before it is read.
            let index = if to > from { chunks - 1 - index } else { index };
            let start = index * CHUNK;
            let length = (bytes - start).min(CHUNK) as usize;
            self.read(DeviceAddress(from.0 + start), &mut buffer[..length])?;
            self.write(DeviceAddress(to.0 + start), &buffer[..length])?;
        }
        Ok(())
    }

    /// In words: where `address` lies with respect to what is live.
    #[must_use]
    pub fn describe(&self, address: u64) -> String {
        self.describe_among(address, |_| true)
    }

    /// As [`Memory::describe`], where only some allocations may be told, by where they start.
    #[must_use]
    pub fn describe_among(&self, address: u64, visible: impl Fn(u64) -> bool) -> String {
        if let Some(&(start, end)) =
            self.freed.iter().rev().find(|&&(start, end)| start <= address && address < end)
            && visible(start)
            && self.find(address).is_none()
        {
            return format!("inside the freed allocation {start:#x}+{}", end - start);
        }
        // A program learns nothing of allocations that it may not access.
        let known =
            |(start, view): &(&u64, &View)| view.access != MemoryAccess::None && visible(**start);
        let range = |(&start, view): (&u64, &View)| AddressRange {
            start: DeviceAddress(start),
            bytes: view.bytes,
        };
        let before = self.views.range(..=address).rev().find(known).map(range);
        let after = self.views.range(address..).find(known).map(range);
        let near = match (before, after) {
            (Some(b), Some(a)) if address.saturating_sub(b.end()) > a.start.0 - address => Some(a),
            (Some(b), _) => Some(b),
            (None, a) => a,
        };
        let Some(near) = near else { return "no allocation is live".to_owned() };
        let (start, end, bytes) = (near.start.0, near.end(), near.bytes);
        if address < start {
            format!("{} bytes before the allocation {start:#x}+{bytes}", start - address)
        } else if address >= end {
            format!("{} bytes beyond the allocation {start:#x}+{bytes}", address - end)
        } else {
            format!("at byte {} of the allocation {start:#x}+{bytes}", address - start)
        }
    }

    /// What kernels may do at an address where something is live.
    #[must_use]
    pub fn access_at(&self, address: u64) -> Option<MemoryAccess> {
        self.find(address).map(|(_, view)| view.access)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, bytes: u64) -> AddressRange {
        AddressRange { start: DeviceAddress(start), bytes }
    }

    fn memory() -> (Memory, u64) {
        let mut memory = Memory::new(1 << 30);
        let base = memory.reserve(WindowId(1), 1 << 24).unwrap().0;
        (memory, base)
    }

    #[test]
    fn allocations_do_not_overlap_and_stay_inside() {
        let (mut memory, base) = memory();
        memory.allocate(WindowId(1), range(base + 256, 256)).unwrap();
        for (start, bytes) in [
            (base, 257),
            (base + 511, 1),
            (base + 300, 4),
            (base, 1 << 25),
            (base - 1, 4),
            (base, 0),
        ] {
            assert!(
                memory.allocate(WindowId(1), range(start, bytes)).is_err(),
                "{start:#x}+{bytes}"
            );
        }
        memory.allocate(WindowId(1), range(base, 256)).unwrap();
        memory.allocate(WindowId(1), range(base + 512, 16)).unwrap();
        assert_eq!(memory.used(), 528);
        memory.free(DeviceAddress(base)).unwrap();
        assert!(memory.free(DeviceAddress(base)).is_err());
        assert_eq!(memory.describe(base + 8), format!("inside the freed allocation {base:#x}+256"));
    }

    #[test]
    fn pieces_are_read_and_written_across_neighbours_only() {
        let (mut memory, base) = memory();
        memory.allocate(WindowId(1), range(base, 100)).unwrap();
        memory.allocate(WindowId(1), range(base + 100, 100)).unwrap();
        let bytes: Vec<u8> = (0..200).collect();
        memory.write(DeviceAddress(base), &bytes).unwrap();
        memory.copy(DeviceAddress(base + 10), DeviceAddress(base), 150).unwrap();
        let mut back = vec![0; 160];
        memory.read(DeviceAddress(base), &mut back).unwrap();
        assert_eq!(back[10..160], bytes[..150]);
        assert!(memory.read(DeviceAddress(base + 190), &mut [0; 11]).is_err());
        memory.fill(DeviceAddress(base), &[1, 2], 100).unwrap();
        assert!(memory.fill(DeviceAddress(base), &[1, 2], 101).is_err());
    }

    #[test]
    fn windows_never_run_out_as_long_as_they_are_given_back() {
        let mut memory = Memory::new(1 << 30);
        let kept = memory.reserve(WindowId(0), 1 << 40).unwrap();
        for id in 1..1000 {
            let base = memory.reserve(WindowId(id), 1 << 40).unwrap();
            assert_ne!(base, kept);
            memory.allocate(WindowId(id), range(base.0, 64)).unwrap();
            memory.release(WindowId(id)).unwrap();
        }
        assert!(memory.reserve(WindowId(1000), 1 << 47).is_err());
    }

    #[test]
    fn an_allocation_moves_with_its_contents() {
        let (mut memory, base) = memory();
        let other = memory.reserve(WindowId(2), 1 << 24).unwrap().0;
        memory.allocate(WindowId(1), range(base, 4096)).unwrap();
        memory.allocate(WindowId(1), range(base + 4096, 16)).unwrap();
        memory.write(DeviceAddress(base + 4000), &[1, 2, 3]).unwrap();
        for bad in [base + 4000, other, base + (1 << 24) - 4095, 0] {
            assert!(memory.relocate(DeviceAddress(base), DeviceAddress(bad)).is_err(), "{bad:#x}");
        }
        memory.relocate(DeviceAddress(base), DeviceAddress(base + 8192)).unwrap();
        let mut back = [0; 3];
        assert!(
            memory.read(DeviceAddress(base + 4000), &mut back).is_err(),
            "nothing is left behind"
        );
        memory.read(DeviceAddress(base + 8192 + 4000), &mut back).unwrap();
        assert_eq!(back, [1, 2, 3]);
        assert!(memory.relocate(DeviceAddress(base), DeviceAddress(base + 8192)).is_err());
    }

    #[test]
    fn aliases_are_the_same_bytes_until_the_last_goes() {
        let (mut memory, base) = memory();
        let at = |offset| DeviceAddress(base + offset);
        memory.allocate(WindowId(1), range(base, 4096)).unwrap();
        memory.alias(at(0), range(base + 8192, 4096)).unwrap();
        memory.alias(at(0), range(base + 16384, 1024)).unwrap();
        for (home, wrong) in [
            (0, range(base + 4095, 16)),
            (0, range(base + 12288, 4097)),
            (4, range(base + 20480, 4)),
        ] {
            assert!(memory.alias(at(home), wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(memory.used(), 4096, "it is there once");
        let mut grants = Grants::new(vec![range(base, 1 << 20)], Vec::new(), 1);
        grants.bytes_mut(&mut memory, 0, base + 8192, base + 8193).unwrap()[0] = 7;
        memory.write(at(16385), &[8]).unwrap();
        let mut back = [0; 2];
        memory.read(at(0), &mut back).unwrap();
        assert_eq!(back, [7, 8]);
        assert!(memory.read(at(16384 + 1023), &mut back).is_err(), "beyond the part");
        memory.free(at(0)).unwrap();
        memory.read(at(8192), &mut back).unwrap();
        assert_eq!(back, [7, 8]);
        memory.free(at(8192)).unwrap();
        memory.read(at(16384), &mut back).unwrap();
        memory.free(at(16384)).unwrap();
        assert_eq!((memory.used(), memory.read(at(16384), &mut back).is_err()), (0, true));
    }

    #[test]
    fn another_window_reaches_the_same_bytes_for_longer() {
        let (mut memory, base) = memory();
        let other = memory.reserve(WindowId(2), 1 << 24).unwrap().0;
        let (home, to) = (DeviceAddress(base), DeviceAddress(other + 512));
        memory.allocate(WindowId(1), range(base, 4096)).unwrap();
        memory.allocate(WindowId(2), range(other, 16)).unwrap();
        assert_eq!(memory.lent_shape(home).unwrap().bytes, 4096);
        for (from, bad) in [
            (home, base + 8192),
            (home, other),
            (home, other + (1 << 24) - 4095),
            (home, 0),
            (DeviceAddress(base + 8), other + 512),
        ] {
            assert!(memory.lend(from, DeviceAddress(bad)).is_err(), "{from} {bad:#x}");
        }
        memory.protect(home, MemoryAccess::Read).unwrap();
        memory.lend(home, to).unwrap();
        assert_eq!(memory.used(), 4096 + 16, "it is there once");
        assert_eq!(memory.access_at(to.0), Some(MemoryAccess::ReadWrite), "rights are a view's");
        let mut grants = Grants::new(vec![range(other, 1 << 24)], Vec::new(), 1);
        grants.bytes_mut(&mut memory, 0, to.0 + 5, to.0 + 6).unwrap()[0] = 7;
        let mut back = [0];
        memory.read(DeviceAddress(base + 5), &mut back).unwrap();
        assert_eq!(back, [7]);
        memory.release(WindowId(1)).unwrap();
        memory.read(DeviceAddress(to.0 + 5), &mut back).unwrap();
        assert_eq!((back, memory.used()), ([7], 4096 + 16));
        memory.free(to).unwrap();
        assert_eq!(memory.used(), 16);
    }

    #[test]
    fn variables_grow_down_from_the_top() {
        let (mut memory, base) = memory();
        let first = memory.allocate_variables(WindowId(1), 100, 4).unwrap().0;
        let second = memory.allocate_variables(WindowId(1), 100, 1024).unwrap().0;
        assert!(second < first && first + 100 <= base + (1 << 24) && second % 1024 == 0);
        assert!(memory.allocate_variables(WindowId(1), 1 << 24, 4).is_err());
    }
}
