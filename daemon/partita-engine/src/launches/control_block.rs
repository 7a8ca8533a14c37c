//! Control blocks: their memory, the signals that go in, the telemetry that comes out.
//!
//! Blocks lie in a window of the daemon's own and are reused. [`partita_model::control`] has the
//! layout. Where the device has host memory that kernels write, each of the first [`WORDS`] blocks
//! has a word there for its launch's fault, so that ends need no copy from the device.

use partita_device::{AddressRange, Device, DeviceError};
use partita_model::control::{
    self, ABORT, COMPLETED, EXHAUSTED, FAULT, FAULT_TO, Gates, NEXT, QUOTA, RETIRED, Shape,
    Telemetry,
};
use partita_model::{DeviceAddress, SessionId, SmId, WindowId};
use std::collections::BTreeMap;

const BLOCKS_PER_SLAB: u64 = 64;
/// Addresses for blocks: enough for a million of them on the largest GPU.
const WINDOW_BYTES: u64 = 8 << 30;
/// Blocks with a word for faults.
const WORDS: u64 = 1 << 16;
const WORD_BYTES: u64 = 4;

/// The memory for control blocks.
#[derive(Debug)]
pub(crate) struct BlockPool {
    window: AddressRange,
    id: WindowId,
    block_bytes: u64,
    /// Numbers of the device's SMs.
    numbers: u16,
    used_slabs: u64,
    free: Vec<DeviceAddress>,
    /// Blocks that originals of a session have left as they got them. No other session gets one: a
    /// kernel may reach its launch's block.
    blank: BTreeMap<SessionId, Vec<DeviceAddress>>,
    in_use: u64,
    /// The words for faults.
    words: Option<DeviceAddress>,
    buffer: Vec<u8>,
}

impl BlockPool {
    pub(crate) fn new(device: &mut dyn Device, id: WindowId) -> Result<Self, DeviceError> {
        let start = device.reserve(id, WINDOW_BYTES)?;
        let numbers = device.facts().sm_numbers();
        let block_bytes = control::block_bytes(numbers);
        let window = AddressRange { start, bytes: WINDOW_BYTES };
        let bytes = WORDS * WORD_BYTES;
        let words = DeviceAddress(window.end() - bytes);
        let has_words = device.allocate_words(id, AddressRange { start: words, bytes })?;
        let buffer = vec![0; usize::try_from(block_bytes).expect("a block is a few kilobytes")];
        Ok(BlockPool {
            window,
            id,
            block_bytes,
            numbers,
            used_slabs: 0,
            free: Vec::new(),
            blank: BTreeMap::new(),
            in_use: 0,
            words: has_words.then_some(words),
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
        shape: &Shape<'_>,
    ) -> Result<DeviceAddress, DeviceError> {
        if self.free.is_empty() {
            self.add_slab(device)?;
        }
        let block = *self.free.last().expect("a slab was added");
        control::initial(shape, &mut self.buffer);
        if let Some(word) = self.word_of(block) {
            let at = usize::try_from(FAULT_TO).expect("offsets are small");
            self.buffer[at..at + 8].copy_from_slice(&word.0.to_le_bytes());
            device.poke(word, &[0; 4])?;
        }
        device.poke(block, &self.buffer)?;
        self.free.pop();
        self.in_use += 1;
        Ok(block)
    }

    /// Takes a block that the session has left blank, for a launch that needs only the abort flag.
    pub(crate) fn take_blank(&mut self, session: SessionId) -> Option<DeviceAddress> {
        let block = self.blank.get_mut(&session)?.pop()?;
        self.in_use += 1;
        Some(block)
    }

    /// Gives a block back that is as it was acquired.
    pub(crate) fn give_back_blank(&mut self, session: SessionId, block: DeviceAddress) {
        self.in_use -= 1;
        self.blank.entry(session).or_default().push(block);
    }

    /// Forgets which blocks a session has left blank.
    pub(crate) fn forget_session(&mut self, session: SessionId) {
        self.free.extend(self.blank.remove(&session).into_iter().flatten());
    }

    /// Gives a block back. No grid uses it any more.
    pub(crate) fn give_back(&mut self, block: DeviceAddress) {
        debug_assert!(!self.free.contains(&block) && self.in_use > 0);
        self.in_use -= 1;
        self.free.push(block);
    }

    /// Whether faults are told by words, because reads of blocks wait for the device.
    pub(crate) fn has_words(&self) -> bool {
        self.words.is_some()
    }

    /// The word for a block's fault.
    fn word_of(&self, block: DeviceAddress) -> Option<DeviceAddress> {
        let number = (block.0 - self.window.start.0) / self.block_bytes;
        let words = self.words.filter(|_| number < WORDS)?;
        Some(DeviceAddress(words.0 + number * WORD_BYTES))
    }

    /// The fault of a launch whose main grid has ended, as its word tells it; 0 for none. `None`
    /// where the block has no word.
    pub(crate) fn told(&self, device: &mut dyn Device, block: DeviceAddress) -> Option<u32> {
        let mut bytes = [0; 4];
        device.peek(self.word_of(block)?, &mut bytes).ok()?;
        Some(u32::from_le_bytes(bytes))
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

    /// Reads the telemetry of a launch that has ended.
    pub(crate) fn read(
        &mut self,
        device: &mut dyn Device,
        block: DeviceAddress,
    ) -> Result<Telemetry, DeviceError> {
        device.peek(block, &mut self.buffer)?;
        Ok(Telemetry::of(&self.buffer, self.numbers))
    }

    /// Reads the telemetry of a running launch. `None`: it has not come yet.
    pub(crate) fn read_lately(
        &mut self,
        device: &mut dyn Device,
        block: DeviceAddress,
    ) -> Result<Option<Telemetry>, DeviceError> {
        let came = device.peek_lately(block, &mut self.buffer)?;
        Ok(came.then(|| Telemetry::of(&self.buffer, self.numbers)))
    }

    /// The fault that a kernel in its original form has met, 0 for none.
    pub(crate) fn fault(
        &mut self,
        device: &mut dyn Device,
        block: DeviceAddress,
    ) -> Result<u32, DeviceError> {
        if let Some(fault) = self.told(device, block) {
            return Ok(fault);
        }
        let mut word = [0; 4];
        device.peek(DeviceAddress(block.0 + FAULT), &mut word)?;
        Ok(u32::from_le_bytes(word))
    }
}

/// Tells a running launch the gates of some SMs.
pub(crate) fn signal_gates(
    device: &mut dyn Device,
    block: DeviceAddress,
    gates: &Gates,
    changed: &[SmId],
) -> Result<(), DeviceError> {
    for &sm in changed {
        let at = DeviceAddress(block.0 + control::gate_at(sm));
        device.poke(at, &gates.word(sm).to_le_bytes())?;
    }
    Ok(())
}

/// Tells a running launch how many workers it may have on an SM that another application has a part
/// of.
pub(crate) fn signal_quota(
    device: &mut dyn Device,
    block: DeviceAddress,
    gates: &Gates,
) -> Result<(), DeviceError> {
    device.poke(DeviceAddress(block.0 + QUOTA), &gates.quota_word().to_le_bytes())
}

/// Tells a running launch the helper grids whose workers shall leave.
pub(crate) fn signal_retired(
    device: &mut dyn Device,
    block: DeviceAddress,
    retired: u32,
) -> Result<(), DeviceError> {
    device.poke(DeviceAddress(block.0 + RETIRED), &retired.to_le_bytes())
}

/// Tells a running launch to end. A launch that `claims` has nothing to claim any more.
pub(crate) fn signal_abort(
    device: &mut dyn Device,
    block: DeviceAddress,
    claims: bool,
) -> Result<(), DeviceError> {
    device.poke(DeviceAddress(block.0 + ABORT), &1_u32.to_le_bytes())?;
    if claims {
        device.poke(DeviceAddress(block.0 + NEXT), &EXHAUSTED.to_le_bytes())?;
    }
    Ok(())
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
