//! Control blocks: their memory, the signals that go in, the telemetry that comes out.
//!
//! Blocks lie in a window of the daemon's own and are reused. [`partita_model::control`] has the
//! layout.

use partita_device::{AddressRange, Device, DeviceError};
use partita_model::control::{
    self, ABORT, ALLOWED, COMPLETED, DEPARTED, FAULT, GRID_X, GRID_Y, GRID_Z, MAIN_CTAS, NEXT,
    RETIRED, SLOT_BYTES, SLOT_LEFT, SLOT_REGISTERED, STALLED, TASK, TELEMETRY, TOTAL,
};
use partita_model::{DeviceAddress, Dim3, SmId, SmSet, WindowId};

const BLOCKS_PER_SLAB: u64 = 64;
/// Addresses for blocks: enough for a million of them on the largest GPU.
const WINDOW_BYTES: u64 = 8 << 30;
const BITMAP_BYTES: usize = SmSet::CAPACITY as usize / 8;

/// The constant part of a block, and its signals at the start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// The original grid.
    pub(crate) grid: Dim3,
    /// CTAs per task.
    pub(crate) task: u32,
    /// CTAs of the main grid as launched.
    pub(crate) main_ctas: u32,
    /// Where workers may be.
    pub(crate) allowed: SmSet,
    /// Where workers wait.
    pub(crate) stalled: SmSet,
}

/// The telemetry of a running launch.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Telemetry {
    /// The next CTA to claim; at most the total.
    pub(crate) next: u64,
    /// CTAs completed.
    pub(crate) completed: u64,
    /// Workers of the main grid that have left.
    pub(crate) departed: u32,
    /// The fault that a CTA has met ([`control::FAULT`]), 0 for none.
    pub(crate) fault: u32,
    /// Workers that have ever registered.
    pub(crate) registered: u64,
    /// Live workers per SM.
    pub(crate) live: Vec<u16>,
}

impl Telemetry {
    pub(crate) fn live_total(&self) -> u64 {
        self.live.iter().map(|&count| u64::from(count)).sum()
    }

    /// Live workers on one SM.
    pub(crate) fn live_at(&self, sm: SmId) -> u16 {
        self.live.get(usize::from(sm.0)).copied().unwrap_or(0)
    }

    /// Live workers on some SMs.
    pub(crate) fn live_on(&self, sms: &SmSet) -> u64 {
        sms.iter().map(|sm| u64::from(self.live_at(sm))).sum()
    }

    /// Whether any CTA of a launch that begins at `first` is known to have started.
    pub(crate) fn has_started(&self, first: u64) -> bool {
        self.registered > 0 || self.departed > 0 || self.next > first
    }
}

/// The memory for control blocks.
#[derive(Debug)]
pub(crate) struct BlockPool {
    window: AddressRange,
    id: WindowId,
    block_bytes: u64,
    sm_count: u16,
    used_slabs: u64,
    free: Vec<DeviceAddress>,
    in_use: u64,
    buffer: Vec<u8>,
}

impl BlockPool {
    pub(crate) fn new(device: &mut dyn Device, id: WindowId) -> Result<Self, DeviceError> {
        let start = device.reserve(id, WINDOW_BYTES)?;
        let sm_count = device.facts().sm_count;
        let block_bytes = control::block_bytes(sm_count);
        let window = AddressRange { start, bytes: WINDOW_BYTES };
        let buffer = vec![0; usize::try_from(block_bytes).expect("a block is a few kilobytes")];
        Ok(BlockPool {
            window,
            id,
            block_bytes,
            sm_count,
            used_slabs: 0,
            free: Vec::new(),
            in_use: 0,
            buffer,
        })
    }

    /// The window. Blocks lie at its beginning.
    pub(crate) fn window(&self) -> AddressRange {
        self.window
    }

    /// The range of a block.
    pub(crate) fn range(&self, block: DeviceAddress) -> AddressRange {
        AddressRange { start: block, bytes: self.block_bytes }
    }

    /// Blocks in use.
    pub(crate) fn in_use(&self) -> u64 {
        self.in_use
    }

    /// A block with its initial content.
    pub(crate) fn acquire(
        &mut self,
        device: &mut dyn Device,
        shape: &Shape,
    ) -> Result<DeviceAddress, DeviceError> {
        if self.free.is_empty() {
            self.add_slab(device)?;
        }
        let block = *self.free.last().expect("a slab was added");
        self.write_initial(shape);
        device.poke(block, &self.buffer)?;
        self.free.pop();
        self.in_use += 1;
        Ok(block)
    }

    /// Gives a block back. No grid uses it any more.
    pub(crate) fn give_back(&mut self, block: DeviceAddress) {
        debug_assert!(!self.free.contains(&block) && self.in_use > 0);
        self.in_use -= 1;
        self.free.push(block);
    }

    fn add_slab(&mut self, device: &mut dyn Device) -> Result<(), DeviceError> {
        let bytes = BLOCKS_PER_SLAB * self.block_bytes;
        let start = DeviceAddress(self.window.start.0 + self.used_slabs * bytes);
        device.allocate_signals(self.id, AddressRange { start, bytes })?;
        self.used_slabs += 1;
        self.free.extend(
            (0..BLOCKS_PER_SLAB).rev().map(|i| DeviceAddress(start.0 + i * self.block_bytes)),
        );
        Ok(())
    }

    fn write_initial(&mut self, shape: &Shape) {
        self.buffer.fill(0);
        let total = u64::try_from(shape.grid.count()).expect("grid limits were checked");
        self.put(TOTAL, &total.to_le_bytes());
        self.put(TASK, &shape.task.to_le_bytes());
        self.put(MAIN_CTAS, &shape.main_ctas.to_le_bytes());
        self.put(GRID_X, &shape.grid.x.to_le_bytes());
        self.put(GRID_Y, &shape.grid.y.to_le_bytes());
        self.put(GRID_Z, &shape.grid.z.to_le_bytes());
        self.put(ALLOWED, &bitmap(&shape.allowed));
        self.put(STALLED, &bitmap(&shape.stalled));
    }

    fn put(&mut self, offset: u64, bytes: &[u8]) {
        let offset = usize::try_from(offset).expect("offsets are small");
        self.buffer[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// Reads the telemetry of a running launch.
    pub(crate) fn read(
        &mut self,
        device: &mut dyn Device,
        block: DeviceAddress,
    ) -> Result<Telemetry, DeviceError> {
        device.peek(block, &mut self.buffer)?;
        let mut registered = 0;
        let live = (0..u64::from(self.sm_count))
            .map(|sm| {
                let slot = TELEMETRY + sm * SLOT_BYTES;
                let came = self.u32_at(slot + SLOT_REGISTERED);
                registered += u64::from(came);
                // Both counters only grow; one that was read a moment later must not make a
                // negative number.
                u16::try_from(came.saturating_sub(self.u32_at(slot + SLOT_LEFT)))
                    .unwrap_or(u16::MAX)
            })
            .collect();
        Ok(Telemetry {
            next: self.u64_at(NEXT).min(self.u64_at(TOTAL)),
            completed: self.u64_at(COMPLETED),
            departed: self.u32_at(DEPARTED),
            fault: self.u32_at(FAULT),
            registered,
            live,
        })
    }

    /// The fault that a kernel in its original form has met, 0 for none.
    pub(crate) fn fault(
        &mut self,
        device: &mut dyn Device,
        block: DeviceAddress,
    ) -> Result<u32, DeviceError> {
        device.peek(block, &mut self.buffer)?;
        Ok(self.u32_at(FAULT))
    }

    fn u32_at(&self, offset: u64) -> u32 {
        let offset = usize::try_from(offset).expect("offsets are small");
        u32::from_le_bytes(self.buffer[offset..offset + 4].try_into().expect("four bytes"))
    }

    fn u64_at(&self, offset: u64) -> u64 {
        let offset = usize::try_from(offset).expect("offsets are small");
        u64::from_le_bytes(self.buffer[offset..offset + 8].try_into().expect("eight bytes"))
    }
}

/// Tells a running launch where its workers may be.
pub(crate) fn signal_allowed(
    device: &mut dyn Device,
    block: DeviceAddress,
    allowed: &SmSet,
) -> Result<(), DeviceError> {
    device.poke(DeviceAddress(block.0 + ALLOWED), &bitmap(allowed))
}

/// Tells a running launch where its workers wait.
pub(crate) fn signal_stalled(
    device: &mut dyn Device,
    block: DeviceAddress,
    stalled: &SmSet,
) -> Result<(), DeviceError> {
    device.poke(DeviceAddress(block.0 + STALLED), &bitmap(stalled))
}

/// Tells a running launch the helper grids whose workers shall leave.
pub(crate) fn signal_retired(
    device: &mut dyn Device,
    block: DeviceAddress,
    retired: u32,
) -> Result<(), DeviceError> {
    device.poke(DeviceAddress(block.0 + RETIRED), &retired.to_le_bytes())
}

/// Lets a launch that has not begun run only the CTAs from `first` to the one before `end`.
pub(crate) fn signal_range(
    device: &mut dyn Device,
    block: DeviceAddress,
    first: u64,
    end: u64,
) -> Result<(), DeviceError> {
    for (offset, value) in [(NEXT, first), (COMPLETED, first), (TOTAL, end)] {
        device.poke(DeviceAddress(block.0 + offset), &value.to_le_bytes())?;
    }
    Ok(())
}

/// Tells a running launch how many CTAs a task has.
pub(crate) fn signal_task(
    device: &mut dyn Device,
    block: DeviceAddress,
    ctas: u64,
) -> Result<(), DeviceError> {
    let ctas = u32::try_from(ctas).unwrap_or(u32::MAX);
    device.poke(DeviceAddress(block.0 + TASK), &ctas.to_le_bytes())
}

/// Tells a running launch to end.
pub(crate) fn signal_abort(
    device: &mut dyn Device,
    block: DeviceAddress,
) -> Result<(), DeviceError> {
    device.poke(DeviceAddress(block.0 + ABORT), &1_u32.to_le_bytes())
}

/// Ends a stream's wait for the CTAs of an aborted launch.
pub(crate) fn signal_completed(
    device: &mut dyn Device,
    block: DeviceAddress,
    total: u64,
) -> Result<(), DeviceError> {
    device.poke(DeviceAddress(block.0 + COMPLETED), &total.to_le_bytes())
}

/// CTAs that a running launch has completed.
pub(crate) fn read_completed(
    device: &mut dyn Device,
    block: DeviceAddress,
) -> Result<u64, DeviceError> {
    let mut word = [0; 8];
    device.peek(DeviceAddress(block.0 + COMPLETED), &mut word)?;
    Ok(u64::from_le_bytes(word))
}

/// SM `i` in bit `i % 32` of word `i / 32`; little-endian `u64`s have the same bytes.
fn bitmap(sms: &SmSet) -> [u8; BITMAP_BYTES] {
    let mut bytes = [0; BITMAP_BYTES];
    for (into, word) in bytes.chunks_exact_mut(8).zip(sms.words()) {
        into.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}
