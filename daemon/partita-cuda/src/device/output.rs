//! What kernels print ([`mod@partita_ptx::output`]): read when a launch that may print has ended,
//! and told before its end.

use super::{CudaDevice, refused};
use crate::driver::Place;
use crate::streams::Ended;
use partita_device::{DeviceError, Event, VariableFacts};
use partita_model::{ModuleId, OperationId, printf};
use partita_ptx::output::{RING, Record, Records, STATE};
use std::collections::BTreeSet;
use std::sync::Arc;

/// What is told of records that found no room.
const LOST: &str = "some of what kernels printed is lost: there is room for 1 MiB of records, \
                    or 8 MiB of text, until a launch of the module ends";

/// The most bytes of output from one look at a ring. A kernel can write the ring itself, with
/// widths that make much of little.
const MOST_TEXT: usize = 8 << 20;

/// A module whose kernels print.
pub(crate) struct Printing {
    /// The kernels.
    kernels: BTreeSet<Arc<str>>,
    /// Addresses of the state and of the ring.
    state: u64,
    ring: u64,
    records: Records,
}

impl Printing {
    /// `None` where no kernel prints.
    pub(super) fn of(kernels: &BTreeSet<String>, variables: &[VariableFacts]) -> Option<Printing> {
        let address = |name: &str| {
            let found = variables.iter().find(|variable| variable.name == name);
            found.map(|variable| variable.address.0)
        };
        let kernels: BTreeSet<Arc<str>> = kernels.iter().map(|name| name.as_str().into()).collect();
        let (state, ring) = (address(STATE)?, address(RING)?);
        let records = Records::default();
        (!kernels.is_empty()).then_some(Printing { kernels, state, ring, records })
    }

    /// The address of the count of what was printed, where a kernel may print.
    pub(super) fn count_for(&self, kernel: &str) -> Option<u64> {
        self.kernels.contains(kernel).then_some(self.state)
    }
}

impl CudaDevice {
    /// What the kernels of ended operations have printed.
    pub(super) fn outputs(&mut self, ended: &[Ended]) -> Vec<Event> {
        let mut events = Vec::new();
        for Ended { operation, kernel, count, .. } in ended {
            let Some((module, kernel)) = kernel else { continue };
            // Most kernels that may print say nothing, and the owner would wait for a copy.
            let prints = |printing: &Printing| {
                printing.kernels.contains(kernel)
                    && !count.is_some_and(|count| printing.records.are_read(count))
            };
            if !self.printing.get(module).is_some_and(prints) {
                continue;
            }
            if let Err(error) = self.read_output(*module, *operation, &mut events) {
                tracing::warn!(%error, "what a kernel has printed cannot be read");
            }
        }
        events
    }

    fn read_output(
        &mut self,
        module: ModuleId,
        operation: OperationId,
        events: &mut Vec<Event>,
    ) -> Result<(), DeviceError> {
        let is_idle = !self.streams.suspects().iter().any(|(_, other, _)| *other == module);
        let Some(printing) = self.printing.get_mut(&module) else { return Ok(()) };
        let mut word = [0; 4];
        self.signals.peek(Place::Device, printing.state, &mut word).map_err(refused)?;
        let next = u32::from_le_bytes(word);
        let mut slots = Vec::new();
        for part in printing.records.unread(next) {
            let mut bytes = vec![0; part.len()];
            let at = printing.ring + part.start as u64;
            self.signals.peek(Place::Device, at, &mut bytes).map_err(refused)?;
            slots.append(&mut bytes);
        }
        if slots.is_empty() {
            return Ok(());
        }
        let taken = printing.records.take(next, &slots, is_idle);
        let limit = printing.records.limit().to_le_bytes();
        self.signals.poke(Place::Device, printing.state + 4, &limit).map_err(refused)?;
        let mut text = Vec::new();
        let mut is_some_lost = taken.is_some_lost;
        for record in taken.records {
            if text.len() >= MOST_TEXT {
                is_some_lost = true;
                break;
            }
            text.append(&mut formatted(record));
        }
        if !text.is_empty() {
            events.push(Event::Output { operation, text });
        }
        if is_some_lost {
            events.push(Event::Notice { operation, text: LOST.to_owned() });
        }
        Ok(())
    }
}

/// A record as text. Arguments that are missing end it.
fn formatted(record: Record) -> Vec<u8> {
    let mut texts = record.texts.split(|byte| *byte == 0);
    let format = texts.next().unwrap_or_default();
    let mut arguments = Arguments { words: &record.arguments, at: 0, texts };
    printf::format(format, &mut arguments).map_or_else(|Missing| Vec::new(), |(text, _)| text)
}

/// A record's arguments. The texts that they point to follow one another.
struct Arguments<'a, T> {
    words: &'a [u8],
    at: usize,
    texts: T,
}

/// A record has fewer arguments than its format takes.
struct Missing;

impl<'a, T: Iterator<Item = &'a [u8]>> printf::Arguments for Arguments<'a, T> {
    type Error = Missing;

    fn word(&mut self, bytes: usize) -> Result<u64, Missing> {
        let start = self.at.next_multiple_of(bytes);
        let found = self.words.get(start..start + bytes).ok_or(Missing)?;
        self.at = start + bytes;
        let mut word = [0; 8];
        word[..bytes].copy_from_slice(found);
        Ok(u64::from_le_bytes(word))
    }

    fn text(&mut self, _address: u64) -> Result<Vec<u8>, Missing> {
        self.texts.next().map(<[u8]>::to_vec).ok_or(Missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_becomes_text() {
        let arguments = [7_u32.to_le_bytes(), [0; 4], [1; 4], [1; 4], 9_u32.to_le_bytes()].concat();
        let texts = b"%d of %s, %d\n\0name\0rest".to_vec();
        let record = Record { arguments, texts };
        assert_eq!(formatted(record.clone()), b"7 of name, 9\n");
        assert_eq!(formatted(Record { arguments: vec![7, 0, 0, 0], ..record }), b"");
        assert_eq!(formatted(Record { arguments: Vec::new(), texts: Vec::new() }), b"");
    }
}
