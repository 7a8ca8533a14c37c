//! The copy engines: one for each direction, each with one copy at a time.
//!
//! A copy waits for the engine from the moment at which it is the first of its stream.

use super::EmulatedGpu;
use partita_model::Nanos;

/// The direction of a copy between host and device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// From the host to the device.
    ToDevice,
    /// From the device to the host.
    ToHost,
}

/// The time for which a copy had its engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transfer {
    /// The engine.
    pub way: Way,
    /// When the copy began, in device time.
    pub begin: Nanos,
    /// When it ended, or will end.
    pub end: Nanos,
}

impl EmulatedGpu {
    /// Writes transfers down from now on, for [`EmulatedGpu::take_transfers`].
    pub fn watch_transfers(&mut self) {
        self.transfers.get_or_insert_default();
    }

    /// The transfers that have got their engine since the last call.
    pub fn take_transfers(&mut self) -> Vec<Transfer> {
        self.transfers.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Enters a copy of `bytes` that is the first of its stream now. When it ends, in picoseconds.
    pub(super) fn transfer(&mut self, way: Way, bytes: u64) -> u64 {
        let rate = self.spec.copy_gigabytes_per_second;
        let duration = self.spec.copy_nanoseconds * 1000 + (bytes as f64 * 1000.0 / rate) as u64;
        let engine = &mut self.copy_engines[way as usize];
        let begin = self.now.max(*engine);
        *engine = begin + duration;
        let end = *engine;
        if let Some(transfers) = &mut self.transfers {
            transfers.push(Transfer { way, begin: Nanos(begin / 1000), end: Nanos(end / 1000) });
        }
        end
    }
}
