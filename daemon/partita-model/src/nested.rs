//! Memory through which kernels launch kernels (CUDA C++ Programming Guide, "CUDA Dynamic
//! Parallelism").
//!
//! A launch of a kernel that may launch others has such memory of its own. The device runtime
//! (`partita_ptx::nested`) writes a record for each launch, copy, fill and event there. When the
//! launch is over, the program's side reads the records and submits what they ask for. The memory
//! belongs to the program, so its contents may be anything.

use crate::Dim3;

/// Bytes before the first record.
pub const HEADER_BYTES: usize = 1024;
/// Bytes of a unit. A record takes one, and as many as its parameters need.
pub const UNIT_BYTES: usize = 64;
/// Attributes of the device in the header, from the first on.
pub const ATTRIBUTES: i32 = 160;
/// How deep kernels may launch kernels.
pub const MOST_DEPTH: u32 = 24;

/// Words of the header, by their place among its words.
const TAKEN: usize = 2;
const FULL_AT: usize = 1;
/// Whether kernels have asked for more than the memory holds.
const LOST: usize = 6;
const DEVICE: usize = 8;
const FIRST_ATTRIBUTE: usize = 16;

/// `cudaStreamTailLaunch`.
const TAIL: u64 = 3;
/// `cudaStreamFireAndForget`.
const FIRE_AND_FORGET: u64 = 4;

/// What a launch's own kernels are to do, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Operation {
    /// What.
    pub work: Work,
    /// Where.
    pub line: Line,
}

/// The order in which an operation stands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Line {
    /// Behind earlier operations in the CTA's own default stream.
    Cta(u32),
    /// Behind earlier operations in a stream that a kernel has created.
    Stream(u64),
    /// Behind nothing: `cudaStreamFireAndForget`.
    Apart,
    /// Behind all other operations and earlier ones like it: `cudaStreamTailLaunch`.
    Tail,
}

/// One operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Work {
    /// A launch.
    Launch {
        /// The kernel's place in the program's module.
        kernel: u32,
        /// Extent of the grid.
        grid: Dim3,
        /// Extent of a CTA.
        block: Dim3,
        /// Dynamic shared memory per CTA in bytes.
        dynamic_shared: u32,
        /// The parameters.
        params: Vec<u8>,
    },
    /// A copy on the device.
    Copy {
        /// The destination.
        to: u64,
        /// The source.
        from: u64,
        /// Bytes.
        bytes: u64,
    },
    /// A fill.
    Fill {
        /// The destination.
        to: u64,
        /// What each byte becomes.
        value: u8,
        /// Bytes.
        bytes: u64,
    },
    /// Records an event.
    Record {
        /// The event.
        event: u64,
    },
    /// Waits for an event's last record before it, if any.
    Wait {
        /// The event.
        event: u64,
    },
}

/// Why records cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Damage {
    /// A record does not end where records end.
    #[error("the record at unit {0} has no end")]
    Endless(usize),
    /// A record asks for what there is not.
    #[error("the record at unit {0} is of no kind")]
    Kind(usize),
    /// A launch is of no kernel.
    #[error("the record at unit {0} launches no kernel")]
    Kernel(usize),
}

/// The header of new memory.
#[derive(Clone, Copy, Debug)]
pub struct Device {
    /// The device's number in the program.
    pub number: u32,
    /// The program's devices.
    pub count: u32,
    /// `cudaRuntimeGetVersion`.
    pub version: u32,
    /// The most dynamic shared memory of a launch, in bytes.
    pub dynamic_shared: u32,
}

impl Device {
    /// The header's bytes from the first word on that never changes.
    #[must_use]
    pub fn header(self, attribute: impl Fn(i32) -> i32) -> Vec<u8> {
        let mut words = vec![0; HEADER_BYTES / 4];
        let Device { number, count, version, dynamic_shared } = self;
        words[DEVICE..DEVICE + 4].copy_from_slice(&[number, count, version, dynamic_shared]);
        for (word, number) in words[FIRST_ATTRIBUTE..].iter_mut().zip(0..ATTRIBUTES) {
            *word = attribute(number).cast_unsigned();
        }
        words[DEVICE..].iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Where these bytes begin.
    pub const HEADER_AT: u64 = DEVICE as u64 * 4;
}

/// Fills that make the memory ready for a launch: offset in bytes, value, count of words. Records
/// may take `units`.
#[must_use]
pub fn clearing(units: u32) -> [(u64, u32, u64); 2] {
    [(0, units, 2), (8, 0, 5)]
}

/// The size in bytes of memory for `units` units of records.
#[must_use]
pub fn bytes(units: u32) -> u64 {
    HEADER_BYTES as u64 + u64::from(units) * UNIT_BYTES as u64
}

/// The number of units that the record of a launch with `param_bytes` bytes of parameters takes.
#[must_use]
pub fn units(param_bytes: u32) -> u32 {
    const UNIT: u32 = 64;
    1 + param_bytes.div_ceil(UNIT)
}

const _: () = assert!(UNIT_BYTES == 64);

/// The bytes of the first words, which [`used`] reads.
pub const COUNTS_BYTES: usize = 28;

/// Units that records take, of which at most `units` exist.
#[must_use]
pub fn used(counts: &[u8; COUNTS_BYTES], units: u32) -> u32 {
    let word = |at: usize| Reader(counts).word(at * 4);
    word(TAKEN).min(word(FULL_AT)).min(units)
}

/// Whether kernels have asked for more than the memory holds.
#[must_use]
pub fn is_over(counts: &[u8; COUNTS_BYTES]) -> bool {
    Reader(counts).word(LOST * 4) != 0
}

/// The operations that records ask for, in the order in which kernels have submitted them.
///
/// # Errors
/// [`Damage`]: a kernel has written over the records.
pub fn operations(records: &[u8]) -> Result<Vec<Operation>, Damage> {
    let mut found = Vec::new();
    let mut rest = records;
    while !rest.is_empty() {
        let at = (records.len() - rest.len()) / UNIT_BYTES;
        let record = Reader(rest);
        let bytes = record.word(56) as usize * UNIT_BYTES;
        if bytes == 0 || bytes > rest.len() {
            return Err(Damage::Endless(at));
        }
        let (own, after) = rest.split_at(bytes);
        rest = after;
        let ticket = record.word(0);
        // What was begun and never submitted does not happen.
        if ticket != 0 {
            found.push((ticket, Reader(own).operation(at)?));
        }
    }
    found.sort_by_key(|(ticket, _)| *ticket);
    Ok(found.into_iter().map(|(_, operation)| operation).collect())
}

/// Reads numbers; what is beyond the end is 0.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn word(&self, at: usize) -> u32 {
        let bytes = self.0.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        u32::from_le_bytes(bytes.unwrap_or_default())
    }

    fn long(&self, at: usize) -> u64 {
        u64::from(self.word(at + 4)) << 32 | u64::from(self.word(at))
    }

    fn extent(&self, at: usize) -> Dim3 {
        Dim3::new(self.word(at), self.word(at + 4), self.word(at + 8))
    }

    fn operation(&self, at: usize) -> Result<Operation, Damage> {
        let line = match self.long(48) {
            TAIL => Line::Tail,
            FIRE_AND_FORGET => Line::Apart,
            0..=2 => Line::Cta(self.word(44)),
            stream => Line::Stream(stream),
        };
        let (to, bytes) = (self.long(8), self.long(24));
        let work = match self.word(4) {
            0 => self.launch(at)?,
            1 => Work::Copy { to, from: self.long(16), bytes },
            2 => Work::Fill { to, value: self.word(16).to_le_bytes()[0], bytes },
            3 => Work::Record { event: to },
            4 => Work::Wait { event: to },
            _ => return Err(Damage::Kind(at)),
        };
        Ok(Operation { work, line })
    }

    fn launch(&self, at: usize) -> Result<Work, Damage> {
        const MARK: u64 = 0x5057;
        let number = self.long(8);
        let bytes = (number >> 32 & 0xffff) as usize;
        match self.0.get(UNIT_BYTES..UNIT_BYTES + bytes) {
            Some(params) if number >> 48 == MARK => Ok(Work::Launch {
                kernel: self.word(8),
                grid: self.extent(16),
                block: self.extent(28),
                dynamic_shared: self.word(40),
                params: params.to_vec(),
            }),
            _ => Err(Damage::Kernel(at)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record with its parameters.
    fn record(ticket: u32, kind: u32, words: &[(usize, u32)], params: &[u8]) -> Vec<u8> {
        let units = 1 + params.len().div_ceil(64);
        let mut bytes = vec![0; units * 64];
        let units = u32::try_from(units).unwrap();
        for &(at, word) in [(0, ticket), (4, kind), (56, units)].iter().chain(words) {
            bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        bytes[64..64 + params.len()].copy_from_slice(params);
        bytes
    }

    /// A launch of the second kernel with 70 bytes of parameters, 2 × 3 × 4 CTAs of 32 threads.
    fn launch(ticket: u32, stream: u32) -> Vec<u8> {
        let extents = [(16, 2), (20, 3), (24, 4), (28, 32), (32, 1), (36, 1), (40, 48)];
        let words = [&[(8, 1), (12, 0x5057_0046), (44, 9), (48, stream)][..], &extents].concat();
        record(ticket, 0, &words, &[7; 70])
    }

    #[test]
    fn records_are_operations_in_the_order_of_their_tickets() {
        let copy = record(2, 1, &[(8, 16), (16, 32), (24, 5), (48, 4096)], &[]);
        let begun = record(0, 9, &[], &[]);
        let parts = [launch(4, 3), begun, launch(3, 4), copy, launch(1, 0)].concat();
        let found = operations(&parts).unwrap();
        let lines: Vec<Line> = found.iter().map(|operation| operation.line).collect();
        assert_eq!(lines, [Line::Cta(9), Line::Stream(4096), Line::Apart, Line::Tail]);
        assert_eq!(found[1].work, Work::Copy { to: 16, from: 32, bytes: 5 });
        assert_eq!(
            found[3].work,
            Work::Launch {
                kernel: 1,
                grid: Dim3::new(2, 3, 4),
                block: Dim3::linear(32),
                dynamic_shared: 48,
                params: vec![7; 70],
            }
        );
    }

    #[test]
    fn damaged_records_are_refused() {
        let at = |at: usize, byte: u8| {
            let mut bytes = launch(1, 0);
            bytes[at] = byte;
            operations(&bytes)
        };
        assert_eq!(at(56, 0), Err(Damage::Endless(0)));
        assert_eq!(at(56, 4), Err(Damage::Endless(0)));
        assert_eq!(at(57, 1), Err(Damage::Endless(0)));
        assert_eq!(at(4, 5), Err(Damage::Kind(0)));
        assert_eq!(at(14, 0), Err(Damage::Kernel(0)));
        // Parameters beyond the record.
        assert_eq!(at(13, 9), Err(Damage::Kernel(0)));
        let second = [launch(1, 0), vec![0; 64]].concat();
        assert_eq!(operations(&second), Err(Damage::Endless(3)));
        assert_eq!(operations(&[]), Ok(Vec::new()));
    }

    #[test]
    fn counts_say_how_far_records_go() {
        let counts = |taken: u32, full_at: u32| {
            let words = [100, full_at, taken, 3, 0, 0, 69];
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            used(&bytes.try_into().unwrap(), 100)
        };
        assert_eq!([counts(7, 100), counts(101, 98), counts(u32::MAX, u32::MAX)], [7, 98, 100]);
        assert_eq!([0, 1, 64, 65].map(units), [1, 2, 2, 3]);
        let device = Device { number: 1, count: 2, version: 13050, dynamic_shared: 3 };
        let header = device.header(|number| number * 2);
        assert_eq!(header.len() as u64 + Device::HEADER_AT, HEADER_BYTES as u64);
        assert_eq!((header[0], header[4], header[12], header[32 + 3 * 4]), (1, 2, 3, 6));
    }
}
