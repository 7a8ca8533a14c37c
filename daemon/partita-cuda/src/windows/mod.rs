//! Device memory: cells of reserved addresses, and physical memory mapped into them.
//!
//! A window lies in a cell of its own, an aligned power of two of addresses, and keeps
//! [`MARGIN_BYTES`] clear of both ends ([`mod@partita_ptx::fence`]). One piece of the window's own
//! memory is mapped over and over into the whole of both margins. A fenced kernel's access through
//! a null pointer, or far beyond its memory, hits this piece and does not end the GPU's context.
//! Inside the window, physical memory is mapped in whole pages of the driver's granularity, in
//! pieces as large as an allocation needs, [`PIECE_BYTES`] at most. A piece stays as long as any
//! allocation lies in it, so allocations may keep more memory than they have: the window's *slack*.
//!
//! # Invariants
//!
//! - An unused piece stays mapped, for the same tenant's next allocation there, until memory is
//!   short or its window goes: unmapping may wait for the device. A piece whose memory another
//!   window maps, too, gets no further allocation ([`lending`]).
//! - The owner's thread takes cells that another thread has made ([`pool`]): a cell takes thousands
//!   of mappings.
//! - The caller learns of new pieces and fills them with zeros before anyone can read them: they
//!   may have been another tenant's.

use crate::driver::{Context, Event, Failure, Physical, Place};
use crate::host::HostRange;
use crate::zeros::Zeros;
use aliases::Own;
use cells::{Cell, Cells};
use partita_device::{AddressRange, DeviceError, HostSpan};
use partita_model::{AddressPart, DeviceAddress, MemoryAccess, WindowId};
use partita_ptx::fence::{MARGIN_BYTES, cell_bits};
use pool::Pool;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

mod aliases;
mod cells;
mod filler;
mod lending;
mod pool;

pub(crate) use filler::Becomes;
pub(crate) use lending::Loan;

/// A range of addresses: start and bytes.
type Addresses = (u64, u64);

struct Piece {
    bytes: u64,
    /// Number of allocations in the piece, and their bytes there.
    users: u32,
    used: u64,
    place: Place,
    /// Kernels' access, where the piece maps an allocation's own memory.
    alias: Option<MemoryAccess>,
    /// Whether another window maps the same memory, or has mapped it.
    is_shared: bool,
    /// Whether it is another window's memory.
    is_borrowed: bool,
}

impl Piece {
    /// Bytes that its allocations keep beyond their own. Memory that other pieces map, too, counts
    /// where it was allocated.
    fn slack(&self) -> u64 {
        let counts = self.users > 0 && !self.is_borrowed && self.alias.is_none();
        if counts && self.place == Place::Device { self.bytes.saturating_sub(self.used) } else { 0 }
    }
}

struct Window {
    /// The address ranges reserved for the cell.
    addresses: Vec<Addresses>,
    base: u64,
    bytes: u64,
    /// The margin behind it begins here.
    end: u64,
    /// Allocations: start and length.
    live: BTreeMap<u64, u64>,
    pieces: BTreeMap<u64, Piece>,
    /// The sum of [`Piece::slack`].
    slack: u64,
    /// The margins' mappings.
    margins: Vec<(u64, u64)>,
    /// The memory behind the margins, and behind what has no memory of its own.
    scratch: Option<Physical>,
    /// Mappings of this memory inside the window.
    filler: BTreeMap<u64, u64>,
    /// Every address has memory.
    is_filled: bool,
    /// Modules' variables lie from this address on.
    variables_from: u64,
    host: Option<HostRange>,
    /// Memory with several addresses, by its allocation.
    own: BTreeMap<u64, Own>,
}

/// Allocations begin at multiples of this, in bytes.
const ALIGNMENT: u64 = 512;

/// The largest piece, in bytes: what a small allocation can keep of a large one that was freed.
const PIECE_BYTES: u64 = 64 << 20;

/// Bytes of physical memory behind a window's margins. Copies can zero it quickly, and few mappings
/// cover both margins, 64 GiB each.
const SCRATCH_BYTES: u64 = 32 << 20;

/// Addresses and mappings of a released window. A thread that may wait releases them.
#[derive(Default)]
pub(crate) struct Remains {
    addresses: Vec<Addresses>,
    pieces: Vec<(u64, u64)>,
    /// Host memory that stays mapped until no operation can be in flight.
    host: Option<HostRange>,
    /// The last event of the device's own work on these pieces.
    after: Option<Arc<Event>>,
}

impl Remains {
    /// Makes the release wait for an event.
    pub(crate) fn after(self, event: Option<Arc<Event>>) -> Remains {
        Remains { after: event, ..self }
    }

    /// Unmaps the pieces and releases the addresses.
    pub(crate) fn give_back(self, context: &Context) -> Result<(), Failure> {
        let mut result = self.after.as_ref().map_or(Ok(()), |after| after.wait());
        if let Some(host) = self.host.filter(|host| host.is_locked) {
            // The driver has refused to lock it where this fails.
            let unlocked = context.unregister(host.range().0);
            tracing::debug!(?unlocked, "the host memory of a session");
        }
        for run in runs(self.pieces, &self.addresses) {
            let bytes = run.iter().map(|(_, bytes)| bytes).sum();
            if run.len() > 1 && context.unmap(run[0].0, bytes).is_ok() {
                continue;
            }
            // A piece that stays mapped keeps its addresses; the others are released.
            for (start, bytes) in run {
                result = result.and(context.unmap(start, bytes));
            }
        }
        result?;
        self.addresses.into_iter().try_for_each(|(start, bytes)| context.unreserve(start, bytes))
    }
}

/// Mappings one behind the other in the same reserved range. One call of `cuMemUnmap` unmaps them,
/// as NVIDIA's sample `vectorAddMMAP` does; thousands of calls would each wait for the device.
fn runs(mut pieces: Vec<Addresses>, reserved: &[Addresses]) -> Vec<Vec<Addresses>> {
    pieces.sort_unstable();
    let starts: BTreeSet<u64> = reserved.iter().map(|(start, _)| *start).collect();
    let follows = |a: &Addresses, b: &Addresses| a.0 + a.1 == b.0 && !starts.contains(&b.0);
    pieces.chunk_by(follows).map(<[Addresses]>::to_vec).collect()
}

/// Every window.
pub(crate) struct Windows {
    context: Arc<Context>,
    granularity: u64,
    cells: Cells,
    /// Cells that are ready.
    pool: Option<Pool>,
    windows: BTreeMap<WindowId, Window>,
    by_base: BTreeMap<u64, WindowId>,
    /// Kernels reach memory that their program has made read-only or inaccessible: an access that
    /// the hardware refuses would end the context.
    ignores_rights: bool,
}

impl Windows {
    pub(crate) fn new(
        context: &Arc<Context>,
        (cell_bits, part): (u32, AddressPart),
        prepared: u8,
        ignores_rights: bool,
    ) -> Result<Self, crate::OpenError> {
        let granularity = context.granularity()?;
        let addresses = Arc::default();
        let cells = Cells { context: Arc::clone(context), granularity, cell_bits, part, addresses };
        let pool = match prepared {
            0 => None,
            count => Some(Pool::start(cells.clone(), count.into())?),
        };
        Ok(Windows {
            context: Arc::clone(context),
            granularity,
            cells,
            pool,
            windows: BTreeMap::new(),
            by_base: BTreeMap::new(),
            ignores_rights,
        })
    }

    pub(crate) fn reserve(
        &mut self,
        id: WindowId,
        bytes: u64,
    ) -> Result<DeviceAddress, DeviceError> {
        if self.windows.contains_key(&id) {
            return Err(DeviceError::BadId(id.to_string()));
        }
        let bytes = bytes.checked_next_multiple_of(self.granularity);
        let bytes = bytes.ok_or(DeviceError::OutOfMemory { wanted: u64::MAX, available: 0 })?;
        if cell_bits(bytes) > self.cells.cell_bits {
            let available = (1 << self.cells.cell_bits) - 2 * MARGIN_BYTES;
            return Err(DeviceError::OutOfMemory { wanted: bytes, available });
        }
        let cell = match self.pool.as_mut().and_then(Pool::take) {
            Some(cell) => cell,
            None => {
                let is_start =
                    |window: &Window, at| window.addresses.iter().any(|(start, _)| *start == at);
                let taken = |at: u64| self.windows.values().any(|window| is_start(window, at));
                let made = self.cells.make(&taken);
                made.map_err(|_| DeviceError::OutOfMemory { wanted: bytes, available: 0 })?
            }
        };
        let Cell { addresses, base, end, scratch, margins } = cell;
        let window = Window {
            addresses,
            base,
            bytes,
            end,
            live: BTreeMap::new(),
            pieces: BTreeMap::new(),
            slack: 0,
            margins,
            scratch,
            filler: BTreeMap::new(),
            is_filled: false,
            variables_from: base + bytes,
            host: None,
            own: BTreeMap::new(),
        };
        self.windows.insert(id, window);
        self.by_base.insert(base, id);
        Ok(DeviceAddress(base))
    }

    /// Maps host memory into an empty window.
    pub(crate) fn map_host(
        &mut self,
        id: WindowId,
        start: DeviceAddress,
        memory: HostSpan,
        variables: u64,
    ) -> Result<(), DeviceError> {
        let bytes = memory.bytes();
        let bad_range = DeviceError::BadRange { address: start, bytes };
        let window = self.windows.get(&id).ok_or_else(|| DeviceError::BadId(id.to_string()))?;
        let end = start.0.checked_add(bytes).filter(|end| *end <= window.base + window.bytes);
        let (Some(end), true) = (end, start.0 >= window.base && bytes > 0 && variables <= bytes)
        else {
            return Err(bad_range);
        };
        let whole = [start.0, end].iter().all(|at| at.is_multiple_of(self.granularity));
        if !whole || window.host.is_some() || !window.pieces.is_empty() {
            return Err(bad_range);
        }
        let middle = window.addresses.iter().copied().find(|part| part.0 == window.base);
        let Some(middle) = middle else {
            return Err(DeviceError::Unsupported(
                "memory of the host between the driver's addresses".to_owned(),
            ));
        };
        let sides = [(middle.0, start.0 - middle.0), (end, middle.0 + middle.1 - end)];
        let result = self.cells.take_anew(&[middle], &sides, || memory.map_again(start.0));
        let window = self.windows.get_mut(&id).ok_or(bad_range)?;
        window.addresses.retain(|part| *part != middle);
        match result {
            Ok((twin, taken)) => {
                window.addresses.extend(taken);
                window.host = Some(HostRange::new(start.0, memory, twin, variables));
                Ok(())
            }
            Err(taken) => {
                window.addresses.extend(taken);
                Err(DeviceError::Unsupported(
                    "memory of the host where its addresses are taken".to_owned(),
                ))
            }
        }
    }

    /// Host memory that kernels can access at an address; `None` unless the whole range is host
    /// memory.
    pub(crate) fn host_at(&self, address: DeviceAddress, bytes: u64) -> Option<HostSpan> {
        self.windows.get(&self.window_of(address.0)?)?.host.as_ref()?.part(address, bytes)
    }

    /// The host memory of a window.
    pub(crate) fn host_of(&mut self, id: WindowId) -> Option<&mut HostRange> {
        self.windows.get_mut(&id)?.host.as_mut()
    }

    /// The memory of a window's margins, which must still be zeroed.
    pub(crate) fn scratch(&self, id: WindowId) -> Option<(u64, u64)> {
        self.windows.get(&id)?.margins.first().copied()
    }

    /// Reserves memory for a module's variables at the top of a window, above the owner's
    /// allocations. Returns the address and the new pieces.
    pub(crate) fn allocate_variables(
        &mut self,
        id: WindowId,
        bytes: u64,
        alignment: u64,
        zeros: &Zeros,
    ) -> Result<(AddressRange, Vec<(u64, u64)>), DeviceError> {
        let window = self.windows.get(&id).ok_or_else(|| DeviceError::BadId(id.to_string()))?;
        let bytes = bytes.max(1);
        let out = DeviceError::OutOfMemory {
            wanted: bytes,
            available: window.variables_from - window.base,
        };
        let start = window.variables_from.checked_sub(bytes).ok_or_else(|| out.clone())?;
        let below = |end: u64| end - end % alignment.max(256);
        let mut start = below(start);
        // Pages that hold another process's memory would share the variables with it.
        while let Some(at) = window.shared_in(start, start + bytes) {
            start = below(at.checked_sub(bytes).ok_or_else(|| out.clone())?);
        }
        let start = DeviceAddress(start);
        let range = AddressRange { start, bytes };
        // Modules are loaded when nothing is on the device.
        self.clear(id, (range, Becomes::Memory), zeros)?;
        let made = self.allocate(id, range, Place::Device, zeros).map_err(|error| match error {
            DeviceError::BadRange { .. } => out,
            other => other,
        })?;
        if let Some(window) = self.windows.get_mut(&id) {
            window.variables_from = start.0;
        }
        Ok((range, made))
    }

    pub(crate) fn release(&mut self, id: WindowId) -> Result<Remains, DeviceError> {
        let window = self.windows.remove(&id).ok_or_else(|| DeviceError::BadId(id.to_string()))?;
        self.by_base.remove(&window.base);
        let pieces = window.pieces.iter().map(|(&start, piece)| (start, piece.bytes));
        let views: Vec<Addresses> = window.own.values().filter_map(Own::view).collect();
        let pieces = pieces.chain(window.margins).chain(window.filler);
        let pieces = pieces.chain(views.iter().copied()).collect();
        let addresses = window.addresses.into_iter().chain(views).collect();
        Ok(Remains { addresses, pieces, host: window.host, after: None })
    }

    /// Makes a range live. Returns the new pieces.
    pub(crate) fn allocate(
        &mut self,
        id: WindowId,
        range: AddressRange,
        place: Place,
        zeros: &Zeros,
    ) -> Result<Vec<(u64, u64)>, DeviceError> {
        let bad_range = DeviceError::BadRange { address: range.start, bytes: range.bytes };
        let granularity = self.granularity;
        let window = self.windows.get_mut(&id).ok_or_else(|| DeviceError::BadId(id.to_string()))?;
        let (start, end) = (range.start.0, range.end());
        let inside = range.bytes > 0 && start >= window.base && end <= window.base + window.bytes;
        let before = window.live.range(..end).next_back();
        let on_host = window.host.as_ref().is_some_and(|host| host.overlaps(range));
        if !inside || on_host || before.is_some_and(|(&at, &bytes)| at + bytes > start) {
            return Err(bad_range);
        }
        let (first, last) = (start - start % granularity, end.next_multiple_of(granularity));
        if window.pieces_over(start, end).any(|(_, piece)| piece.place != place) {
            return Err(bad_range);
        }
        // A used piece in the range belongs to a neighbour. An unused piece may map memory that
        // also has other addresses.
        let replaces = |piece: &Piece| Becomes::Memory.replaces(piece);
        let window = self.make_way(id, [first, last], zeros, replaces)?;
        let gaps = window.gaps(first, last);
        let mut made = Vec::new();
        for (at, bytes) in gaps {
            match self.map(at, bytes, place, (&(first, last - first), zeros)) {
                Ok(()) => made.push((at, bytes)),
                Err(failure) => {
                    for (at, bytes) in made {
                        let _ = self.context.unmap(at, bytes);
                    }
                    let available = self.context.memory().map_or(0, |(free, _)| free);
                    return Err(if failure.is_out_of_memory() {
                        DeviceError::OutOfMemory { wanted: range.bytes, available }
                    } else {
                        DeviceError::Unsupported(failure.to_string())
                    });
                }
            }
        }
        let Some(window) = self.windows.get_mut(&id) else { return Err(bad_range) };
        window.is_filled = false;
        for &(at, bytes) in &made {
            let piece = Piece {
                bytes,
                users: 0,
                used: 0,
                place,
                alias: None,
                is_shared: false,
                is_borrowed: false,
            };
            window.pieces.insert(at, piece);
        }
        window.enter(start, end);
        window.live.insert(start, range.bytes);
        Ok(made)
    }

    /// Maps a piece. If memory is short, unused pieces outside of `spared` are unmapped first.
    fn map(
        &mut self,
        at: u64,
        bytes: u64,
        place: Place,
        (spared, zeros): (&Addresses, &Zeros),
    ) -> Result<(), Failure> {
        match self.context.map(at, bytes, place) {
            Err(failure) if failure.is_out_of_memory() && self.unmap_unused(spared, zeros)? => {
                self.context.map(at, bytes, place)
            }
            result => result,
        }
    }

    /// Unmaps pieces that are unused, not being zeroed and outside of `spared`. False where there
    /// are none.
    fn unmap_unused(&mut self, spared: &Addresses, zeros: &Zeros) -> Result<bool, Failure> {
        let mut any = false;
        let is_spared = |at: u64, bytes| at < spared.0 + spared.1 && at + bytes > spared.0;
        for window in self.windows.values_mut() {
            let is_unused = |(at, piece): &(&u64, &Piece)| {
                piece.users == 0
                    && !is_spared(**at, piece.bytes)
                    && zeros.pending(**at, piece.bytes).is_none()
            };
            let unused = window.pieces.iter().filter(is_unused);
            let unused: Vec<Addresses> = unused.map(|(&at, piece)| (at, piece.bytes)).collect();
            for run in runs(unused, &window.addresses) {
                self.context.unmap(run[0].0, run.iter().map(|(_, bytes)| bytes).sum())?;
                for (at, _) in run {
                    window.pieces.remove(&at);
                }
                window.is_filled = false;
                any = true;
            }
        }
        Ok(any)
    }

    /// Ends an allocation. Returns the remains of its own memory, if any, for release.
    pub(crate) fn free(&mut self, address: DeviceAddress) -> Result<Option<Remains>, DeviceError> {
        let bad_range = DeviceError::BadRange { address, bytes: 0 };
        let window = self.window_of(address.0).and_then(|id| self.windows.get_mut(&id));
        let window = window.ok_or_else(|| bad_range.clone())?;
        let bytes = window.live.remove(&address.0).ok_or(bad_range)?;
        if let Some(own) = window.own.remove(&address.0) {
            return Ok(Some(own.remains()));
        }
        if address.0 == window.variables_from {
            let next = window.live.range(address.0..).next().map(|(&start, _)| start);
            window.variables_from = next.unwrap_or(window.base + window.bytes);
        }
        window.leave(address.0, address.0 + bytes);
        Ok(None)
    }

    /// Reverts an allocation whose new pieces could not be zeroed. No program may ever read these
    /// pieces.
    pub(crate) fn abandon(
        &mut self,
        id: WindowId,
        start: DeviceAddress,
        pieces: &[(u64, u64)],
    ) -> Result<(), DeviceError> {
        self.free(start)?;
        let window = self.windows.get_mut(&id).ok_or_else(|| DeviceError::BadId(id.to_string()))?;
        for &(at, bytes) in pieces {
            match self.context.unmap(at, bytes) {
                Ok(()) => {
                    window.pieces.remove(&at);
                    window.is_filled = false;
                }
                // The piece stays mapped, and no program reads it, until the window's release.
                Err(failure) => {
                    tracing::warn!(%failure, "memory that could not be zeroed stays mapped");
                    window.live.insert(at, bytes);
                }
            }
        }
        Ok(())
    }

    /// Bytes of memory that a window's allocations keep beyond their own.
    pub(crate) fn slack(&self, id: WindowId) -> u64 {
        self.windows.get(&id).map_or(0, |window| window.slack)
    }

    /// Bytes of pieces that nothing has kept and an allocation would keep.
    pub(crate) fn needed(&self, id: WindowId, range: AddressRange) -> u64 {
        let Some(window) = self.windows.get(&id) else { return range.bytes };
        let (start, end) = (range.start.0, range.end());
        let first = start - start % self.granularity;
        let last = end.next_multiple_of(self.granularity);
        let anew: u64 = window.gaps(first, last).iter().map(|(_, bytes)| bytes).sum();
        let unused = window.pieces_over(start, end).filter(|(_, piece)| piece.users == 0);
        anew + unused.map(|(_, piece)| piece.bytes).sum::<u64>()
    }

    /// The size of an allocation.
    pub(crate) fn size_of(&self, address: DeviceAddress) -> Option<u64> {
        self.windows.get(&self.window_of(address.0)?)?.live.get(&address.0).copied()
    }

    /// The window that an address lies in.
    pub(crate) fn window_of(&self, address: u64) -> Option<WindowId> {
        let (_, id) = self.by_base.range(..=address).next_back()?;
        let window = self.windows.get(id)?;
        (address < window.base + window.bytes).then_some(*id)
    }

    pub(crate) fn knows(&self, id: WindowId) -> bool {
        self.windows.contains_key(&id)
    }

    /// The place of a range, if all of it is mapped in pieces of one place.
    pub(crate) fn place_of(&self, address: DeviceAddress, bytes: u64) -> Option<Place> {
        let end = address.0.checked_add(bytes)?;
        let window = self.windows.get(&self.window_of(address.0)?)?;
        let mut at = address.0;
        let mut found = None;
        for (&start, piece) in window.pieces_over(address.0, end) {
            if start > at || found.is_some_and(|place| place != piece.place) {
                return None;
            }
            found = Some(piece.place);
            at = start + piece.bytes;
        }
        if at >= end { found } else { None }
    }
}

impl Window {
    fn pieces_over(&self, start: u64, end: u64) -> impl Iterator<Item = (&u64, &Piece)> {
        let first = self.pieces.range(..=start).next_back().map_or(start, |(&at, _)| at);
        self.pieces.range(first..end).filter(move |(at, piece)| **at + piece.bytes > start)
    }

    /// The unmapped ranges between two page borders, each no larger than a piece.
    fn gaps(&self, first: u64, last: u64) -> Vec<(u64, u64)> {
        let mut gaps = Vec::new();
        let mut gap = |mut at: u64, end: u64| {
            while at < end {
                let bytes = PIECE_BYTES.min(end - at);
                gaps.push((at, bytes));
                at += bytes;
            }
        };
        let mut at = first;
        for (&start, piece) in self.pieces_over(first, last) {
            gap(at, start);
            at = start + piece.bytes;
        }
        gap(at, last);
        gaps
    }

    /// Counts an allocation's range in the pieces that it lies in.
    fn enter(&mut self, start: u64, end: u64) {
        self.change(start, end, |piece, bytes| {
            piece.users += 1;
            piece.used += bytes;
        });
    }

    /// Undoes [`Window::enter`].
    fn leave(&mut self, start: u64, end: u64) {
        self.change(start, end, |piece, bytes| {
            piece.users = piece.users.saturating_sub(1);
            piece.used = piece.used.saturating_sub(bytes);
        });
    }

    /// Changes the pieces over a range. `how` is told how many bytes of the range lie in each, with
    /// those up to the next allocation's place.
    fn change(&mut self, start: u64, end: u64, how: impl Fn(&mut Piece, u64)) {
        let end = end.next_multiple_of(ALIGNMENT);
        let over: Vec<u64> = self.pieces_over(start, end).map(|(&at, _)| at).collect();
        for at in over {
            if let Some(piece) = self.pieces.get_mut(&at) {
                let before = piece.slack();
                how(piece, end.min(at + piece.bytes) - start.max(at));
                self.slack = (self.slack + piece.slack()).saturating_sub(before);
            }
        }
    }
}
