//! Which addresses of a session's window are in use.
//!
//! Memory that is mapped into reserved addresses has a *home*, the address of its allocation. A
//! home may be mapped at several addresses, and is out of reach while it is mapped anywhere.
//!
//! Allocation is first-fit from the bottom: the lowest gap that is large enough. Sizes are exact,
//! so that the device can catch an access one byte too far. Starts are multiples of [`ALIGNMENT`],
//! as CUDA's are. The device places variables of modules, and [`Window::occupy`] enters them.
//! Memory of other sessions is next-fit between one half and seven eighths of the window: addresses
//! that such memory has left may hold a mapping that only an idle device can end. Variables lie at
//! the top.
//!
//! This module keeps addresses only. [`super::memory`] accounts for device memory.

use partita_device::{AddressRange, LentShape};
use partita_model::{DeviceAddress, MemoryAccess};
use std::collections::BTreeMap;

/// Every allocation starts at a multiple of this. `cuMemAlloc` promises 256; drivers give 512.
pub(crate) const ALIGNMENT: u64 = 512;

/// What lies at an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// An allocation of the program.
    Allocation,
    /// An allocation whose end has been asked for.
    Ending,
    /// A variable of a module.
    Variable,
    /// Memory of another session.
    Opened,
}

/// How memory is mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mapped {
    /// All of it, and nowhere else.
    Alone,
    /// Also elsewhere, or only a part of it.
    Beside,
}

/// The addresses of one window.
#[derive(Debug)]
pub(crate) struct Window {
    range: AddressRange,
    live: BTreeMap<u64, (u64, Kind)>,
    /// Gaps by start, whole multiples of [`ALIGNMENT`], never adjacent.
    gaps: BTreeMap<u64, u64>,
    /// Host memory that kernels reach.
    host: Option<AddressRange>,
    /// Variables of modules that the device keeps outside: length by start.
    outside: BTreeMap<u64, u64>,
    /// Addresses that the program keeps for memory to come: length by start.
    reserved: BTreeMap<u64, u64>,
    /// Memory in reserved addresses, by its start.
    mappings: BTreeMap<u64, Mapping>,
    /// Number of mappings of each home.
    homes: BTreeMap<u64, u32>,
    /// The addresses that memory of other sessions takes, by its own address.
    opened: BTreeMap<u64, (u64, u64)>,
    /// The search for room for such memory begins here.
    next_opened: u64,
}

/// Memory in reserved addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapping {
    /// Where it was allocated.
    pub(crate) home: DeviceAddress,
    /// What may be done to it.
    pub(crate) access: MemoryAccess,
    /// Whether nothing is at home.
    pub(crate) moved: bool,
}

impl Window {
    pub(crate) fn new(range: AddressRange) -> Self {
        let bytes = range.bytes - range.bytes % ALIGNMENT;
        Window {
            range,
            live: BTreeMap::new(),
            gaps: BTreeMap::from([(range.start.0, bytes)]),
            host: None,
            outside: BTreeMap::new(),
            reserved: BTreeMap::new(),
            mappings: BTreeMap::new(),
            homes: BTreeMap::new(),
            opened: BTreeMap::new(),
            next_opened: range.start.0 + range.bytes / 2,
        }
    }

    fn middle(&self) -> u64 {
        self.range.start.0 + self.range.bytes / 2
    }

    pub(crate) fn range(&self) -> AddressRange {
        self.range
    }

    /// Device memory that `bytes` take up.
    pub(crate) fn footprint(bytes: u64) -> Option<u64> {
        bytes.checked_next_multiple_of(ALIGNMENT)
    }

    /// Bytes without an allocation, and bytes that are not the host's.
    pub(crate) fn room(&self) -> (u64, u64) {
        let host = self.host.map_or(0, |host| host.bytes);
        (self.gaps.values().sum(), self.range.bytes - host)
    }

    /// Finds room for `bytes`, at least 1, and takes it.
    pub(crate) fn allocate(&mut self, bytes: u64) -> Option<AddressRange> {
        let size = Window::footprint(bytes)?;
        let (&start, &gap) = self.gaps.iter().find(|(_, gap)| **gap >= size)?;
        self.gaps.remove(&start);
        if gap > size {
            self.gaps.insert(start + size, gap - size);
        }
        self.live.insert(start, (bytes, Kind::Allocation));
        Some(AddressRange { start: DeviceAddress(start), bytes })
    }

    /// Enters a variable that the device has placed. Where it shares a 512-byte block with others,
    /// the block is taken once and given back with the last of them.
    pub(crate) fn occupy(&mut self, range: AddressRange) {
        self.live.insert(range.start.0, (range.bytes, Kind::Variable));
        self.take(range);
    }

    /// As [`Window::occupy`], where the device keeps it outside of the window: copies and fills may
    /// touch it. False where it lies inside.
    pub(crate) fn occupy_outside(&mut self, range: AddressRange) -> bool {
        let outside = range.end() <= self.range.start.0 || range.start.0 >= self.range.end();
        if outside {
            self.outside.insert(range.start.0, range.bytes);
        }
        outside
    }

    /// Removes a variable that [`Window::occupy_outside`] entered. Whether there was one.
    pub(crate) fn free_outside(&mut self, start: DeviceAddress) -> bool {
        self.outside.remove(&start.0).is_some()
    }

    /// Where `bytes` of host memory may lie: in the middle, between allocations and variables.
    pub(crate) fn room_for_host(&self, bytes: u64) -> Option<AddressRange> {
        const PAGES: u64 = 2 << 20;
        let start = self
            .range
            .start
            .0
            .checked_add(self.range.bytes / 2)?
            .checked_next_multiple_of(PAGES)?;
        let range = AddressRange { start: DeviceAddress(start), bytes };
        self.range.contains(range.start, bytes.checked_add(PAGES)?).then_some(range)
    }

    /// Enters host memory, which stays as long as the window.
    pub(crate) fn set_host(&mut self, range: AddressRange) {
        self.take(range);
        self.host = Some(range);
    }

    /// Whether an address is in host memory.
    pub(crate) fn is_host(&self, address: DeviceAddress) -> bool {
        self.host.is_some_and(|host| host.contains(address, 1))
    }

    /// Whether one of the parameters of a kernel is an address in host memory.
    pub(crate) fn names_host(&self, params: &[u8]) -> bool {
        let (words, _) = params.as_chunks::<8>();
        words.iter().any(|word| self.is_host(DeviceAddress(u64::from_le_bytes(*word))))
    }

    fn take(&mut self, range: AddressRange) {
        let first = range.start.0 - range.start.0 % ALIGNMENT;
        let end = range.end().next_multiple_of(ALIGNMENT);
        let inside: Vec<(u64, u64)> = self
            .gaps
            .range(..end)
            .rev()
            .take_while(|(start, bytes)| **start + **bytes > first)
            .map(|(start, bytes)| (*start, *bytes))
            .collect();
        for (start, bytes) in inside {
            self.gaps.remove(&start);
            if start < first {
                self.gaps.insert(start, first - start);
            }
            if start + bytes > end {
                self.gaps.insert(end, start + bytes - end);
            }
        }
    }

    /// Takes addresses for memory to come; `alignment` is a power of two.
    pub(crate) fn reserve(&mut self, bytes: u64, alignment: u64) -> Option<AddressRange> {
        let range = self.take_aligned(bytes, alignment, self.range.start.0)?;
        self.reserved.insert(range.start.0, range.bytes);
        Some(range)
    }

    /// Enters `bytes` bytes of another session's memory, with room for what comes with them.
    pub(crate) fn open(&mut self, bytes: u64, shape: LentShape) -> Option<AddressRange> {
        let taken = self.take_aligned(shape.bytes, shape.alignment, self.next_opened)?;
        let (middle, last) = (self.middle(), self.range.end() - self.range.bytes / 8);
        self.next_opened = if taken.end() < last { taken.end() } else { middle };
        let start = DeviceAddress(taken.start.0 + shape.before);
        self.opened.insert(start.0, (taken.start.0, taken.end()));
        self.live.insert(start.0, (bytes, Kind::Opened));
        Some(AddressRange { start, bytes })
    }

    /// Marks another session's memory as ending; false where there is none, or it is mapped.
    pub(crate) fn begin_close(&mut self, address: DeviceAddress) -> bool {
        let is_mapped = self.homes.contains_key(&address.0);
        match self.live.get_mut(&address.0) {
            Some((_, kind @ Kind::Opened)) if !is_mapped => {
                *kind = Kind::Ending;
                true
            }
            _ => false,
        }
    }

    /// Removes another session's memory, and makes the next attempt at the same addresses.
    pub(crate) fn postpone_open(&mut self, address: DeviceAddress) {
        if let Some((first, _)) = self.opened.get(&address.0) {
            self.next_opened = *first;
        }
        self.close(address);
    }

    /// Removes another session's memory.
    pub(crate) fn close(&mut self, address: DeviceAddress) {
        if let Some((first, end)) = self.opened.remove(&address.0) {
            self.live.remove(&address.0);
            self.insert_gap(first, end);
        }
    }

    /// The size of an allocation that other sessions may open.
    pub(crate) fn exportable(&self, address: DeviceAddress) -> Option<u64> {
        let &(bytes, Kind::Allocation) = self.live.get(&address.0)? else { return None };
        let has_moved = |mapping: &Mapping| mapping.home == address && mapping.moved;
        let is_home =
            !self.mappings.contains_key(&address.0) && !self.mappings.values().any(has_moved);
        is_home.then_some(bytes)
    }

    /// Takes the first room from an address on, or else the first of all.
    fn take_aligned(&mut self, bytes: u64, alignment: u64, from: u64) -> Option<AddressRange> {
        let (bytes, alignment) = (Window::footprint(bytes)?, alignment.max(ALIGNMENT));
        let place = |from: u64| {
            let mut gaps = self.gaps.iter();
            gaps.find_map(|(start, gap)| {
                let first = (*start).max(from).checked_next_multiple_of(alignment)?;
                (first.checked_add(bytes)? <= start + gap).then_some(first)
            })
        };
        let start = place(from).or_else(|| place(self.range.start.0))?;
        let range = AddressRange { start: DeviceAddress(start), bytes };
        self.take(range);
        Some(range)
    }

    /// Number of allocations and variables.
    pub(crate) fn live_ranges(&self) -> usize {
        self.live.len()
    }

    /// Number of reserved ranges.
    pub(crate) fn reserved_ranges(&self) -> usize {
        self.reserved.len()
    }

    /// Gives reserved addresses back. False where none are reserved, or memory is mapped there.
    pub(crate) fn unreserve(&mut self, start: DeviceAddress) -> bool {
        let Some(&bytes) = self.reserved.get(&start.0) else { return false };
        if self.live.range(start.0..start.0 + bytes).next().is_some() {
            return false;
        }
        self.reserved.remove(&start.0);
        self.insert_gap(start.0, start.0 + bytes);
        true
    }

    /// Maps the first bytes of an allocation into reserved addresses, without any access; `None`
    /// where that cannot be, else whether it is all of the allocation and nowhere else.
    pub(crate) fn map(&mut self, home: DeviceAddress, range: AddressRange) -> Option<Mapped> {
        let Some(&(whole, Kind::Allocation | Kind::Opened)) = self.live.get(&home.0) else {
            return None;
        };
        let to = range.start;
        let around = self.reserved.range(..=to.0).next_back();
        let inside = around.is_some_and(|(&start, &bytes)| {
            AddressRange { start: DeviceAddress(start), bytes }.contains(to, range.bytes)
        });
        let last = inside.then(|| self.live.range(..range.end()).next_back()).flatten();
        let is_free = last.is_none_or(|(start, (bytes, _))| start + bytes <= to.0);
        let fits = (1..=whole).contains(&range.bytes) && to.0.is_multiple_of(ALIGNMENT);
        if !inside || !is_free || !fits || self.mappings.contains_key(&home.0) {
            return None;
        }
        let count = self.homes.entry(home.0).or_insert(0);
        *count += 1;
        self.live.insert(to.0, (range.bytes, Kind::Allocation));
        self.mappings.insert(to.0, Mapping { home, access: MemoryAccess::None, moved: false });
        Some(if *count == 1 && range.bytes == whole { Mapped::Alone } else { Mapped::Beside })
    }

    /// Marks a mapping as ending; false where there is none.
    pub(crate) fn begin_unmap(&mut self, address: DeviceAddress) -> bool {
        match self.live.get_mut(&address.0) {
            Some((_, kind @ Kind::Allocation)) if self.mappings.contains_key(&address.0) => {
                *kind = Kind::Ending;
                true
            }
            _ => false,
        }
    }

    /// Ends a mapping, and says what it was.
    pub(crate) fn unmap(&mut self, address: DeviceAddress) -> Option<Mapping> {
        let mapping = self.mappings.remove(&address.0)?;
        self.live.remove(&address.0);
        if let Some(count) = self.homes.get_mut(&mapping.home.0) {
            *count -= 1;
            if *count == 0 {
                self.homes.remove(&mapping.home.0);
            }
        }
        Some(mapping)
    }

    /// The mappings that a range is made of, without gaps. `None` where something else is in it.
    pub(crate) fn mappings_of(
        &mut self,
        range: AddressRange,
    ) -> Option<Vec<(DeviceAddress, &mut Mapping)>> {
        let mut at = range.start.0;
        let mut found = Vec::new();
        for (&start, mapping) in self.mappings.range_mut(range.start.0..range.end()) {
            let Some(&(bytes, Kind::Allocation)) = self.live.get(&start).filter(|_| start == at)
            else {
                return None;
            };
            found.push((DeviceAddress(start), mapping));
            at += bytes;
        }
        (at == range.end() && range.bytes > 0).then_some(found)
    }

    /// The mapping that begins at an address.
    pub(crate) fn mapping_mut(&mut self, address: DeviceAddress) -> Option<&mut Mapping> {
        self.mappings.get_mut(&address.0)
    }

    /// Marks an allocation as ending, so that it cannot be freed twice; false where there is none
    /// at `address`.
    pub(crate) fn begin_free(&mut self, address: DeviceAddress) -> bool {
        let is_mapped =
            self.homes.contains_key(&address.0) || self.mappings.contains_key(&address.0);
        match self.live.get_mut(&address.0) {
            Some((_, kind @ Kind::Allocation)) if !is_mapped => {
                *kind = Kind::Ending;
                true
            }
            _ => false,
        }
    }

    /// Gives back the allocation or variable at `address`. Its size in bytes.
    pub(crate) fn free(&mut self, address: DeviceAddress) -> Option<u64> {
        let (bytes, _) = self.live.remove(&address.0)?;
        let mut first = address.0 - address.0 % ALIGNMENT;
        let mut end = (address.0 + bytes).next_multiple_of(ALIGNMENT);
        // Small variables share blocks: keep those that somebody else is in.
        if let Some((&start, &(bytes, _))) = self.live.range(..address.0).next_back() {
            first = first.max((start + bytes).next_multiple_of(ALIGNMENT));
        }
        if let Some((&start, _)) = self.live.range(address.0..).next() {
            end = end.min(start - start % ALIGNMENT);
        }
        if first < end {
            self.insert_gap(first, end);
        }
        Some(bytes)
    }

    fn insert_gap(&mut self, mut first: u64, mut end: u64) {
        if let Some((&start, &bytes)) = self.gaps.range(..first).next_back()
            && start + bytes == first
        {
            self.gaps.remove(&start);
            first = start;
        }
        if let Some(bytes) = self.gaps.remove(&end) {
            end += bytes;
        }
        self.gaps.insert(first, end - first);
    }

    /// Whether `bytes` bytes at `address` lie inside one live allocation or variable, or in host
    /// memory, and this may be done to them.
    pub(crate) fn covers(&self, address: DeviceAddress, bytes: u64, access: MemoryAccess) -> bool {
        if self.host.is_some_and(|host| host.contains(address, bytes)) {
            return true;
        }
        let outside = self.outside.range(..=address.0).next_back();
        if outside.is_some_and(|(&start, &size)| {
            AddressRange { start: DeviceAddress(start), bytes: size }.contains(address, bytes)
        }) {
            return true;
        }
        let Some((&start, &(size, kind))) = self.live.range(..=address.0).next_back() else {
            return false;
        };
        let range = AddressRange { start: DeviceAddress(start), bytes: size };
        if kind == Kind::Ending || !range.contains(address, 0) || self.homes.contains_key(&start) {
            return false;
        }
        let Some(mapping) = self.mappings.get(&start) else {
            return range.contains(address, bytes);
        };
        if mapping.access < access {
            return false;
        }
        // In reserved addresses neighbours are one piece to the program.
        let wanted = address.0.saturating_add(bytes);
        let mut end = range.end();
        while end < wanted
            && let Some((bytes, Kind::Allocation)) = self.live.get(&end)
            && self.mappings.get(&end).is_some_and(|next| next.access >= access)
        {
            end += bytes;
        }
        AddressRange { bytes: end - start, ..range }.contains(address, bytes)
    }

    /// The program's allocations, each once: where it is, or its home.
    pub(crate) fn allocations(&self) -> impl Iterator<Item = (DeviceAddress, u64)> + '_ {
        let moved = self.mappings.iter().filter(|(_, mapping)| mapping.moved);
        let moved: BTreeMap<u64, u64> =
            moved.map(|(&start, mapping)| (mapping.home.0, start)).collect();
        let place = move |home: u64| DeviceAddress(moved.get(&home).copied().unwrap_or(home));
        self.live
            .iter()
            .filter(|(start, (_, kind))| {
                *kind != Kind::Variable && !self.mappings.contains_key(start)
            })
            .map(move |(start, (bytes, _))| (place(*start), *bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BASE: u64 = 0x2000_0000;

    fn window(bytes: u64) -> Window {
        Window::new(AddressRange { start: DeviceAddress(BASE), bytes })
    }

    fn covers(window: &Window, address: DeviceAddress, bytes: u64) -> bool {
        window.covers(address, bytes, MemoryAccess::ReadWrite)
    }

    fn at(offset: u64) -> DeviceAddress {
        DeviceAddress(BASE + offset)
    }

    #[test]
    fn fills_from_the_bottom_and_reuses() {
        let mut window = window(4096);
        let [a, b, c] = [1, 513, 512].map(|bytes| window.allocate(bytes).unwrap().start);
        assert_eq!([a, b, c], [at(0), at(512), at(1536)]);
        assert_eq!(window.free(b), Some(513));
        assert_eq!(window.allocate(1025), Some(AddressRange { start: at(2048), bytes: 1025 }));
        assert_eq!(window.allocate(1024).unwrap().start, at(512));
        assert_eq!(window.allocate(513), None, "512 bytes are left");
        assert_eq!(window.allocate(u64::MAX), None);
    }

    #[test]
    fn exact_sizes() {
        let mut window = window(4096);
        let a = window.allocate(100).unwrap().start;
        for (offset, bytes, live) in
            [(0, 100, true), (0, 101, false), (99, 1, true), (100, 1, false)]
        {
            assert_eq!(
                covers(&window, DeviceAddress(a.0 + offset), bytes),
                live,
                "{offset} {bytes}"
            );
        }
        assert!(!covers(&window, DeviceAddress(a.0 + 1), u64::MAX));
        assert!(window.begin_free(a));
        assert!(!window.begin_free(a), "twice");
        assert!(!covers(&window, a, 1), "its end has been asked for");
    }

    #[test]
    fn variables_share_blocks() {
        let mut window = window(2048);
        for (offset, bytes) in [(1536, 4), (1540, 600 - 88)] {
            window.occupy(AddressRange { start: at(offset), bytes });
        }
        assert!(covers(&window, at(1540), 4) && !window.begin_free(at(1540)));
        window.free(at(1540));
        assert_eq!(window.allocate(1537), None, "the block of the first variable is still taken");
        window.free(at(1536));
        assert_eq!(window.allocate(2048).unwrap().start, at(0));
    }

    #[test]
    fn memory_is_mapped_into_reserved_addresses_and_back() {
        let mut window = window(1 << 20);
        let [a, b] = [0x1000, 0x1000].map(|bytes| window.allocate(bytes).unwrap().start);
        let place = window.reserve(0x4000, 0x8000).unwrap().start;
        assert!(place.0.is_multiple_of(0x8000) && !covers(&window, place, 1));
        let next = DeviceAddress(place.0 + 0x1000);
        let of = |start, bytes| AddressRange { start, bytes };
        assert_eq!(window.map(a, of(place, 0x1000)), Some(Mapped::Alone));
        for (wrong, why) in [
            (of(DeviceAddress(place.0 + 0x800), 0x1000), "something is there"),
            (of(DeviceAddress(place.0 + 0x3200), 0x1000), "it would stick out"),
            (of(at(0x8000), 0x1000), "not reserved"),
            (of(next, 0x1001), "more than there is"),
            (of(next, 0), "nothing"),
        ] {
            assert_eq!(window.map(b, wrong), None, "{why}");
        }
        assert_eq!(window.map(b, of(next, 0x1000)), Some(Mapped::Alone));
        assert_eq!(
            window.map(place, of(DeviceAddress(place.0 + 0x2000), 0x1000)),
            None,
            "from a mapping"
        );
        let across = DeviceAddress(place.0 + 0xf00);
        assert!(!covers(&window, across, 0x200), "no access has been given");
        window.mapping_mut(place).unwrap().access = MemoryAccess::ReadWrite;
        window.mapping_mut(next).unwrap().access = MemoryAccess::Read;
        assert!(window.covers(across, 0x200, MemoryAccess::Read), "across neighbours");
        assert!(!covers(&window, across, 0x200) && covers(&window, across, 0x100));
        window.mapping_mut(next).unwrap().access = MemoryAccess::ReadWrite;
        assert!(covers(&window, across, 0x200));
        assert!(!covers(&window, DeviceAddress(next.0 + 0xf00), 0x200) && !covers(&window, a, 1));
        assert!(!window.begin_free(place) && !window.begin_free(a) && !window.unreserve(place));
        for (from, home) in [(place, a), (next, b)] {
            assert!(window.begin_unmap(from) && !window.begin_unmap(from));
            assert!(!covers(&window, from, 1));
            assert_eq!(window.unmap(from).map(|mapping| mapping.home), Some(home));
        }
        assert!(covers(&window, a, 0x1000) && window.unreserve(place) && !window.unreserve(place));
        assert!(window.begin_free(a) && window.begin_free(b));
        assert_eq!((window.free(a), window.free(b)), (Some(0x1000), Some(0x1000)));
        assert_eq!(
            window.allocate(1 << 20).map(|range| range.start),
            Some(at(0)),
            "all of it is back"
        );
    }

    #[test]
    fn memory_of_other_sessions_comes_behind_what_came_last() {
        let mut window = window(0x8000);
        let shape = LentShape { before: 512, bytes: 0x1000, alignment: 0x1000 };
        let next = |window: &mut Window| window.open(100, shape).unwrap().start;
        let first = next(&mut window);
        assert_eq!(first, at(0x4200), "from the middle");
        window.close(first);
        let starts: Vec<DeviceAddress> = (0..8).map(|_| next(&mut window)).collect();
        let all = [5, 6, 4, 7, 0, 1, 2, 3].map(|page| at(page * 0x1000 + 512));
        assert_eq!(starts, all);
        assert_eq!(window.open(100, shape), None);
        window.close(at(0x2200));
        assert_eq!(next(&mut window), at(0x2200));
        // What waits for the device comes to the same addresses again.
        for page in [5, 6] {
            window.close(at(page * 0x1000 + 512));
        }
        let postponed = next(&mut window);
        window.postpone_open(postponed);
        assert_eq!((postponed, next(&mut window)), (at(0x5200), at(0x5200)));
    }

    #[test]
    fn parameters_name_host_memory() {
        let mut window = window(1 << 20);
        let host = AddressRange { start: at(0x8000), bytes: 0x1000 };
        let words = |words: [u64; 3]| words.map(u64::to_le_bytes).concat();
        let params = words([7, BASE + 0x8fff, 0]);
        assert!(!window.names_host(&params), "there is none");
        window.set_host(host);
        assert!(window.names_host(&params));
        assert!(!window.names_host(&params[..12]), "half an address");
        assert!(!window.names_host(&words([BASE + 0x7fff, BASE + 0x9000, 0])));
    }

    #[test]
    fn memory_is_mapped_at_several_addresses() {
        let mut window = window(1 << 20);
        let home = window.allocate(0x2000).unwrap().start;
        let place = window.reserve(0x8000, 512).unwrap().start;
        let views = [(0, 0x2000), (0x2000, 0x1000), (0x4000, 0x2000)]
            .map(|(offset, bytes)| AddressRange { start: DeviceAddress(place.0 + offset), bytes });
        let mapped = views.map(|view| window.map(home, view));
        assert_eq!(mapped, [Some(Mapped::Alone), Some(Mapped::Beside), Some(Mapped::Beside)]);
        let first_two = AddressRange { start: place, bytes: 0x3000 };
        let found = window.mappings_of(first_two).unwrap();
        assert_eq!(
            found.iter().map(|(at, _)| *at).collect::<Vec<_>>(),
            [views[0].start, views[1].start]
        );
        for bytes in [0, 0x1000, 0x2800, 0x3001, 0x6000] {
            assert!(
                window.mappings_of(AddressRange { bytes, ..first_two }).is_none(),
                "{bytes:#x}"
            );
        }
        assert_eq!(window.allocations().count(), 1, "it is there once");
        for view in views {
            assert!(!window.begin_free(home), "mapped");
            assert!(window.begin_unmap(view.start));
            assert_eq!(window.unmap(view.start).map(|mapping| mapping.home), Some(home));
        }
        assert!(window.begin_free(home));
    }

    proptest! {
        #[test]
        fn allocations_never_overlap_and_nothing_is_lost(
            steps in prop::collection::vec((any::<bool>(), 1_u64..5000,
                any::<prop::sample::Index>()), 1..200),
        ) {
            let size = 64 * 1024;
            let mut window = window(size);
            let mut live: Vec<AddressRange> = Vec::new();
            for (allocate, bytes, pick) in steps {
                if allocate {
                    if let Some(range) = window.allocate(bytes) {
                        prop_assert_eq!(range.start.0 % ALIGNMENT, 0);
                        prop_assert!(range.end() <= BASE + size);
                        for other in &live {
                            let apart =
                                range.end() <= other.start.0 || other.end() <= range.start.0;
                            prop_assert!(apart);
                        }
                        live.push(range);
                    }
                } else if !live.is_empty() {
                    let range = live.swap_remove(pick.index(live.len()));
                    prop_assert_eq!(window.free(range.start), Some(range.bytes));
                }
            }
            for range in live {
                window.free(range.start);
            }
            prop_assert_eq!(window.allocate(size).map(|range| range.start), Some(at(0)));
        }
    }
}
