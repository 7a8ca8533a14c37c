//! The layout of a session's memory.
//!
//! | part | written by |
//! | --- | --- |
//! | header: magic, protocol, size | daemon, once |
//! | words: ring indices, flags, what is completed, the sticky error; each on a line of its own | see [`word`] |
//! | event slots, 16 bytes each: sequence of the last finished record, device time | daemon |
//! | command ring | client |
//! | reply ring | daemon |
//! | arena: staging, then host memory of the program (`cuMemHostAlloc`) | both |
//!
//! Parts begin on page borders. The memory is sparse: an untouched page costs nothing, so the arena
//! may be large. Rings are small because all their pages stay touched: an idle session keeps less
//! than 256 KiB outside the arena.

use crate::ring::RingSpec;

/// Offsets of the shared words. Lines are 128 bytes, because processors fetch pairs of 64-byte
/// lines.
pub(crate) mod word {
    /// Command ring: bytes written. Client.
    pub(crate) const COMMAND_TAIL: usize = 4096;
    /// Command ring: bytes read. Daemon.
    pub(crate) const COMMAND_HEAD: usize = 4096 + 128;
    /// Not 0: the data plane sleeps, ring its bell. Daemon.
    pub(crate) const DAEMON_SLEEPS: usize = 4096 + 256;
    /// Reply ring: bytes written. Daemon.
    pub(crate) const REPLY_TAIL: usize = 4096 + 384;
    /// Reply ring: bytes read. Client.
    pub(crate) const REPLY_HEAD: usize = 4096 + 512;
    /// Not 0: the client sleeps, ring its bell. Client.
    pub(crate) const CLIENT_SLEEPS: usize = 4096 + 640;
    /// Not 0: the client waits for room in the command ring, ring its bell. Client.
    pub(crate) const COMMAND_ROOM_WANTED: usize = 4096 + 648;
    /// How many news the client had seen when it announced its sleep. Client.
    pub(crate) const CLIENT_SAW: usize = 4096 + 656;
    /// Not 0: the daemon waits for room in the reply ring, ring its bell. Daemon.
    pub(crate) const REPLY_ROOM_WANTED: usize = 4096 + 264;
    /// Every record up to this one is finished. Daemon.
    pub(crate) const COMPLETED: usize = 4096 + 768;
    /// The sticky error as an `i32` in the lowest bits, 0 for none. Daemon.
    pub(crate) const STICKY_CODE: usize = 4096 + 776;
    /// The record that failed; written before the code. Daemon.
    pub(crate) const STICKY_SEQUENCE: usize = 4096 + 784;
    /// How many times something was published that a client may wait for. Daemon.
    pub(crate) const NEWS: usize = 4096 + 792;
}

/// First bytes of the memory.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"partita\0");
/// Offset of the protocol version, major in the lower half.
pub(crate) const VERSION: usize = 8;
/// Offset of the size of the whole memory.
pub(crate) const TOTAL: usize = 16;
const PAGE: u64 = 4096;
const FIRST_PART: u64 = 2 * PAGE;
/// Size of an event slot.
pub(crate) const SLOT_BYTES: u64 = 16;

/// Sizes of the parts of a session's memory, in bytes where nothing else is said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// Command ring, a power of two.
    pub command_bytes: u64,
    /// Reply ring, a power of two.
    pub reply_bytes: u64,
    /// Events that a session can have at a time.
    pub event_slots: u64,
    /// Staging part of the arena, in whole pages.
    pub staging_bytes: u64,
    /// Host memory that the program can have, in whole pages.
    pub host_bytes: u64,
}

impl Default for Sizes {
    fn default() -> Self {
        Sizes {
            command_bytes: 1 << 17,
            reply_bytes: 1 << 16,
            event_slots: 1 << 16,
            staging_bytes: 8 << 20,
            host_bytes: 16 << 30,
        }
    }
}

/// Places of the parts of a session's memory. Every value of this type describes parts that are
/// inside the memory, aligned, and do not overlap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    raw: RawLayout,
}

/// A layout as it crosses the border; [`Layout::try_from`] checks it.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Debug,
    zerocopy::FromBytes,
    zerocopy::IntoBytes,
    zerocopy::Immutable,
    zerocopy::KnownLayout,
)]
#[repr(C)]
pub(crate) struct RawLayout {
    pub(crate) total: u64,
    pub(crate) events: u64,
    pub(crate) event_slots: u64,
    pub(crate) command: u64,
    pub(crate) command_bytes: u64,
    pub(crate) reply: u64,
    pub(crate) reply_bytes: u64,
    pub(crate) staging: u64,
    pub(crate) staging_bytes: u64,
    pub(crate) host_bytes: u64,
}

const _: () = assert!(size_of::<RawLayout>() == 80);

/// The reason why a layout cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LayoutError {
    /// A ring's size.
    #[error("the {part} ring has {bytes} bytes; it must be a power of two from 64 KiB to 64 MiB")]
    Ring {
        /// Which ring.
        part: &'static str,
        /// Its size.
        bytes: u64,
    },
    /// The number of event slots, or the arena's size.
    #[error("{part} = {value} is beyond the bound of {limit}")]
    Large {
        /// The part of the memory.
        part: &'static str,
        /// The value found.
        value: u64,
        /// How much at most.
        limit: u64,
    },
    /// A part lies where it cannot.
    #[error("the {part} at {start} is not on a page of its own inside {total} bytes")]
    Place {
        /// Which part.
        part: &'static str,
        /// Its offset.
        start: u64,
        /// Size of the memory.
        total: u64,
    },
}

const RING_LIMITS: std::ops::RangeInclusive<u64> = 1 << 16..=1 << 26;
const SLOT_LIMIT: u64 = 1 << 20;
const ARENA_LIMIT: u64 = 1 << 40;

impl Layout {
    /// Lays out parts of these sizes.
    ///
    /// # Errors
    /// Where a size is out of bounds.
    pub fn new(sizes: Sizes) -> Result<Layout, LayoutError> {
        let events = FIRST_PART;
        let pages = |bytes: u64| bytes.saturating_add(PAGE - 1) / PAGE * PAGE;
        let command = events.saturating_add(pages(sizes.event_slots.saturating_mul(SLOT_BYTES)));
        let reply = command.saturating_add(pages(sizes.command_bytes));
        let staging = reply.saturating_add(pages(sizes.reply_bytes));
        Layout::try_from(RawLayout {
            total: staging
                .saturating_add(pages(sizes.staging_bytes.saturating_add(sizes.host_bytes))),
            events,
            event_slots: sizes.event_slots,
            command,
            command_bytes: sizes.command_bytes,
            reply,
            reply_bytes: sizes.reply_bytes,
            staging,
            staging_bytes: sizes.staging_bytes,
            host_bytes: sizes.host_bytes,
        })
    }

    /// Size of the whole memory.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.raw.total
    }

    /// How many events a session can have at a time.
    #[must_use]
    pub fn event_slots(&self) -> u64 {
        self.raw.event_slots
    }

    /// Size of the arena's staging part, which comes first.
    #[must_use]
    pub fn staging_bytes(&self) -> u64 {
        self.raw.staging_bytes
    }

    /// Size of the whole arena: staging, then host memory.
    #[must_use]
    pub fn arena_bytes(&self) -> u64 {
        self.raw.staging_bytes + self.raw.host_bytes
    }

    /// Size of host memory.
    #[must_use]
    pub fn host_bytes(&self) -> u64 {
        self.raw.host_bytes
    }

    /// How much at the end of host memory is the device's, for variables that modules declare
    /// managed.
    #[must_use]
    pub fn variable_bytes(&self) -> u64 {
        self.raw.host_bytes / 64 / PAGE * PAGE
    }

    pub(crate) fn raw(&self) -> RawLayout {
        self.raw
    }

    pub(crate) fn staging(&self) -> usize {
        offset(self.raw.staging)
    }

    /// Where host memory begins.
    pub(crate) fn host(&self) -> usize {
        offset(self.raw.staging + self.raw.staging_bytes)
    }

    pub(crate) fn event_slot(&self, slot: u32) -> usize {
        assert!(u64::from(slot) < self.raw.event_slots, "event slot {slot} does not exist");
        offset(self.raw.events + u64::from(slot) * SLOT_BYTES)
    }

    /// The command ring.
    #[must_use]
    pub fn command_ring(&self) -> RingSpec {
        RingSpec {
            tail: word::COMMAND_TAIL,
            head: word::COMMAND_HEAD,
            data: offset(self.raw.command),
            capacity: self.raw.command_bytes,
        }
    }

    /// The reply ring.
    #[must_use]
    pub fn reply_ring(&self) -> RingSpec {
        RingSpec {
            tail: word::REPLY_TAIL,
            head: word::REPLY_HEAD,
            data: offset(self.raw.reply),
            capacity: self.raw.reply_bytes,
        }
    }
}

fn offset(value: u64) -> usize {
    usize::try_from(value)
        .expect("offsets are inside a mapping, and so below the address space's size")
}

impl TryFrom<RawLayout> for Layout {
    type Error = LayoutError;

    fn try_from(raw: RawLayout) -> Result<Self, LayoutError> {
        for (part, bytes) in [("command", raw.command_bytes), ("reply", raw.reply_bytes)] {
            if !bytes.is_power_of_two() || !RING_LIMITS.contains(&bytes) {
                return Err(LayoutError::Ring { part, bytes });
            }
        }
        let bounds = [
            ("event slots", raw.event_slots, SLOT_LIMIT),
            ("staging bytes", raw.staging_bytes, ARENA_LIMIT),
            ("host bytes", raw.host_bytes, ARENA_LIMIT),
            ("total bytes", raw.total, 3 * ARENA_LIMIT),
        ];
        for (part, value, limit) in bounds {
            if value > limit {
                return Err(LayoutError::Large { part, value, limit });
            }
        }
        if !raw.staging_bytes.is_multiple_of(PAGE) {
            return Err(LayoutError::Place {
                part: "host memory",
                start: raw.staging_bytes,
                total: raw.total,
            });
        }
        let mut parts = [
            ("event slots", raw.events, raw.event_slots * SLOT_BYTES),
            ("command ring", raw.command, raw.command_bytes),
            ("reply ring", raw.reply, raw.reply_bytes),
            ("arena", raw.staging, raw.staging_bytes + raw.host_bytes),
        ];
        parts.sort_by_key(|part| part.1);
        let mut free = FIRST_PART;
        for (part, start, bytes) in parts {
            let end = start.saturating_add(bytes);
            if start < free || !start.is_multiple_of(PAGE) || end > raw.total {
                return Err(LayoutError::Place { part, start, total: raw.total });
            }
            free = end;
        }
        Ok(Layout { raw })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_sizes_make_a_layout() {
        let layout = Layout::new(Sizes::default()).unwrap();
        assert_eq!(Layout::try_from(layout.raw()), Ok(layout));
        assert_eq!(layout.total() % PAGE, 0);
        assert_eq!(layout.event_slots(), 65_536);
        assert_eq!((layout.staging_bytes(), layout.host_bytes()), (8 << 20, 16 << 30));
    }

    #[test]
    fn parts_follow_one_another_on_page_borders() {
        let layout = Layout::new(Sizes {
            command_bytes: 1 << 16,
            reply_bytes: 1 << 17,
            event_slots: 257,
            staging_bytes: 5 * 4096,
            host_bytes: 1_000_000,
        });
        let layout = layout.unwrap();
        // 257 slots of 16 bytes begin a second page, and 1,000,000 bytes the 245th.
        let (events, command) = (2 * 4096, 4 * 4096);
        let reply = command + (1 << 16);
        let staging = reply + (1 << 17);
        assert_eq!((layout.event_slot(0), layout.event_slot(256)), (events, events + 256 * 16));
        assert_eq!(
            (layout.command_ring().data, layout.command_ring().capacity),
            (command, 1 << 16)
        );
        assert_eq!((layout.reply_ring().data, layout.reply_ring().capacity), (reply, 1 << 17));
        assert_eq!((layout.staging(), layout.host()), (staging, staging + 5 * 4096));
        assert_eq!(layout.event_slots(), 257);
        assert_eq!((layout.staging_bytes(), layout.host_bytes()), (5 * 4096, 1_000_000));
        assert_eq!(layout.arena_bytes(), 5 * 4096 + 1_000_000);
        assert_eq!(layout.total(), (staging + (5 + 245) * 4096) as u64);
        // A 64th of host memory in whole pages.
        assert_eq!(layout.variable_bytes(), 3 * 4096);
    }

    #[test]
    fn words_lie_on_their_page_and_no_line_has_two_writers() {
        use word::*;
        let daemon = [
            COMMAND_HEAD,
            DAEMON_SLEEPS,
            REPLY_ROOM_WANTED,
            REPLY_TAIL,
            COMPLETED,
            STICKY_CODE,
            STICKY_SEQUENCE,
            NEWS,
        ];
        let client = [COMMAND_TAIL, REPLY_HEAD, CLIENT_SLEEPS, COMMAND_ROOM_WANTED, CLIENT_SAW];
        let mut words: Vec<usize> = daemon.into_iter().chain(client).collect();
        assert!(words.iter().all(|at| (4096..8192).contains(at) && at.is_multiple_of(8)));
        words.sort_unstable();
        assert!(words.is_sorted_by(|one, next| one < next), "no word twice: {words:?}");
        let line = |at: usize| at / 128;
        let shared = daemon.iter().find(|at| client.iter().any(|of| line(*of) == line(**at)));
        assert_eq!(shared, None);
    }

    #[test]
    #[should_panic = "event slot 7 does not exist"]
    fn slots_end() {
        Layout::new(Sizes { event_slots: 7, ..Sizes::default() }).unwrap().event_slot(7);
    }

    #[test]
    fn every_size_has_a_bound() {
        let check = |good: bool, change: &dyn Fn(&mut Sizes)| {
            let mut sizes = Sizes { host_bytes: 0, ..Sizes::default() };
            change(&mut sizes);
            let found = Layout::new(sizes);
            let bounded =
                matches!(found, Err(LayoutError::Ring { .. } | LayoutError::Large { .. }));
            assert_eq!((found.is_ok(), bounded), (good, !good), "{sizes:?}: {found:?}");
        };
        for (bytes, good) in [(1 << 16, true), (1 << 26, true), (1 << 15, false), (1 << 27, false)]
        {
            check(good, &|sizes| sizes.command_bytes = bytes);
            check(good, &|sizes| sizes.reply_bytes = bytes);
        }
        check(false, &|sizes| sizes.command_bytes = 3 << 16);
        for (above, good) in [(0, true), (4096, false), (u64::MAX - (1 << 40), false)] {
            check(good, &|sizes| sizes.staging_bytes = (1 << 40) + above);
            check(good, &|sizes| sizes.host_bytes = (1 << 40) + above);
        }
        check(true, &|sizes| sizes.event_slots = 1 << 20);
        check(false, &|sizes| sizes.event_slots = (1 << 20) + 1);
        check(false, &|sizes| sizes.event_slots = u64::MAX);
        // Both parts of the arena may have their bound, and the memory ends soon after.
        let mut raw = Layout::new(Sizes::default()).unwrap().raw();
        raw.total = 3 << 40;
        assert!(Layout::try_from(raw).is_ok());
        raw.total += 1;
        let expected = LayoutError::Large { part: "total bytes", value: raw.total, limit: 3 << 40 };
        assert_eq!(Layout::try_from(raw), Err(expected));
    }

    #[test]
    fn parts_that_lie_elsewhere_are_refused() {
        let good = Layout::new(Sizes::default()).unwrap().raw();
        let check = |part: &str, change: &dyn Fn(&mut RawLayout)| {
            let mut raw = good;
            change(&mut raw);
            match Layout::try_from(raw) {
                Err(LayoutError::Place { part: found, .. }) => assert_eq!(found, part, "{raw:?}"),
                other => panic!("{part}: {other:?}"),
            }
        };
        check("host memory", &|raw| raw.staging_bytes += 1);
        check("arena", &|raw| raw.staging_bytes += 4096);
        check("arena", &|raw| raw.host_bytes += 4096);
        check("arena", &|raw| raw.staging = u64::MAX - 4095);
        check("arena", &|raw| raw.staging += 8);
        check("arena", &|raw| raw.total -= 4096);
        check("reply ring", &|raw| raw.reply = raw.command);
        check("reply ring", &|raw| raw.reply -= 4096);
        check("arena", &|raw| raw.reply += 4096);
        check("command ring", &|raw| raw.command += 4);
        check("event slots", &|raw| raw.events = 4096);
        check("command ring", &|raw| raw.event_slots += 1);
    }
}
