//! Zeros for new memory, which may have been another tenant's, and the contents of allocations that
//! move to other addresses.
//!
//! The copy engine zeroes small pieces; it makes progress beside any kernel. The driver's fill,
//! which is a kernel, zeroes large pieces, and waits for room on an SM. The host waits for neither:
//! operations, peeks and pokes are ordered behind the zeroing of the memory that they may touch,
//! and behind no other.

use crate::arrays::Texels;
use crate::driver::{BoxEnd, Context, Event, Failure, Pinned, Place, Stream};
use crate::tasks::Task;
use partita_device::{AddressRange, Work};
use partita_model::DeviceAddress;
use partita_ptx::fence::MARGIN_BYTES;
use std::sync::Arc;

/// Bytes of the largest piece that copies zero.
pub(crate) const BY_COPIES: usize = 32 << 20;
const ZERO_BYTES: usize = 2 << 20;

/// An event that operations wait for, with an increasing number.
pub(crate) type Mark = (u64, Arc<Event>);

struct Piece {
    start: u64,
    end: u64,
    number: u64,
    mark: Arc<Event>,
}

/// The ranges that are being zeroed.
pub(crate) struct Zeros {
    context: Arc<Context>,
    zeros: Pinned,
    under_way: Vec<Piece>,
    numbers: u64,
}

impl Zeros {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self, Failure> {
        let zeros = Pinned::new(context, ZERO_BYTES)?;
        zeros.lend(0, ZERO_BYTES, |bytes| bytes.fill(0));
        Ok(Zeros { context: Arc::clone(context), zeros, under_way: Vec::new(), numbers: 0 })
    }

    /// Starts to zero a piece of device memory, or zeros host memory at once.
    pub(crate) fn zero(
        &mut self,
        stream: &Stream,
        place: Place,
        start: u64,
        bytes: u64,
    ) -> Result<(), Failure> {
        let end = start + bytes;
        let mut at = start;
        while at < end && (place == Place::Host || bytes <= BY_COPIES as u64) {
            let length = usize::try_from(end - at).map_or(ZERO_BYTES, |rest| rest.min(ZERO_BYTES));
            match place {
                Place::Host => self.context.write_mapped(at, &vec![0; length]),
                Place::Device => stream.copy_to_device(at, &self.zeros, 0, length)?,
            }
            at += length as u64;
        }
        if place == Place::Host {
            return Ok(());
        }
        if at < end {
            stream.fill(at, 0, 4, (end - at) / 4)?;
        }
        let mark = Arc::new(Event::new(&self.context)?);
        stream.record(&mark)?;
        self.numbers += 1;
        self.under_way.push(Piece { start, end, number: self.numbers, mark });
        Ok(())
    }

    /// Starts to zero an array, whose address stands for its bytes.
    pub(crate) fn zero_array(
        &mut self,
        stream: &Stream,
        start: u64,
        texels: &Texels,
    ) -> Result<(), Failure> {
        let bytes = texels.stored.shape.bytes();
        for at in (0..bytes).step_by(ZERO_BYTES) {
            for part in texels.boxes(at, (bytes - at).min(ZERO_BYTES as u64)) {
                stream.copy_box(
                    texels.end(part.place),
                    BoxEnd::Host(&self.zeros, 0),
                    part.extent,
                )?;
            }
        }
        let mark = Arc::new(Event::new(&self.context)?);
        stream.record(&mark)?;
        self.numbers += 1;
        self.under_way.push(Piece { start, end: start + bytes, number: self.numbers, mark });
        Ok(())
    }

    /// Starts to copy an allocation's contents into its new memory. Both memories stay untouched
    /// until the copy ends.
    pub(crate) fn move_there(
        &mut self,
        stream: &Stream,
        to: u64,
        from: u64,
        bytes: u64,
    ) -> Result<(), Failure> {
        stream.copy_on_device(to, from, bytes)?;
        let mark = Arc::new(Event::new(&self.context)?);
        stream.record(&mark)?;
        self.numbers += 1;
        for start in [from, to] {
            let (end, mark) = (start + bytes, Arc::clone(&mark));
            self.under_way.push(Piece { start, end, number: self.numbers, mark });
        }
        Ok(())
    }

    /// Registers pending work on memory at another of the memory's addresses.
    pub(crate) fn share(&mut self, from: u64, to: u64, bytes: u64) {
        let end = from.saturating_add(bytes);
        let over = |piece: &Piece| piece.start < end && from < piece.end;
        if let Some(at) = self.under_way.iter().rposition(over) {
            let Piece { number, ref mark, .. } = self.under_way[at];
            let piece = Piece { start: to, end: to + bytes, number, mark: Arc::clone(mark) };
            self.under_way.insert(at + 1, piece);
        }
    }

    /// Forgets pieces whose zeroing is complete.
    pub(crate) fn tick(&mut self) -> Result<(), Failure> {
        while let Some(first) = self.under_way.first() {
            if !first.mark.is_reached()? {
                break;
            }
            self.under_way.remove(0);
        }
        Ok(())
    }

    /// The event after which all new memory is zero, with an increasing number.
    pub(crate) fn barrier(&self) -> Option<Mark> {
        self.under_way.last().map(|piece| (piece.number, Arc::clone(&piece.mark)))
    }

    /// The event after which all that an operation may touch is zero, with an increasing number.
    /// Others' new memory does not concern it.
    pub(crate) fn before(&self, task: &Task) -> Option<Mark> {
        let concerns = |piece: &&Piece| match reached_by(task) {
            Reach::Everything => true,
            Reach::Ranges(ranges) => {
                ranges.iter().any(|range| piece.start < range.end() && range.start.0 < piece.end)
            }
        };
        let last = self.under_way.iter().rev().find(concerns);
        last.map(|piece| (piece.number, Arc::clone(&piece.mark)))
    }

    /// The event after which a range is zero.
    pub(crate) fn pending(&self, start: u64, bytes: u64) -> Option<&Event> {
        let end = start.saturating_add(bytes);
        let last = self.under_way.iter().rfind(|piece| piece.start < end && start < piece.end);
        last.map(|piece| &*piece.mark)
    }
}

/// The memory that an operation may touch.
enum Reach {
    Everything,
    Ranges(Vec<AddressRange>),
}

/// A range with the margin before it, which its kernels can reach.
fn with_margin(range: &AddressRange) -> AddressRange {
    let start = DeviceAddress(range.start.0.saturating_sub(MARGIN_BYTES));
    AddressRange { start, bytes: range.end() - start.0 }
}

fn reached_by(task: &Task) -> Reach {
    let range = |start: DeviceAddress, bytes: u64| AddressRange { start, bytes };
    let ranges = match task {
        Task::Work(Work::Launch(launch) | Work::LaunchOn { launch, .. }) => {
            if launch.access.is_empty() {
                return Reach::Everything;
            }
            // Nothing says which arrays it samples.
            let arrays = range(DeviceAddress(crate::arrays::FIRST), u64::MAX);
            launch.access.iter().map(with_margin).chain([arrays]).collect()
        }
        Task::Work(Work::CopyToDevice { to, from }) => vec![range(*to, from.bytes())],
        Task::Work(Work::CopyToHost { to, from }) => vec![range(*from, to.bytes())],
        Task::Work(Work::CopyOnDevice { to, from, bytes }) => {
            vec![range(*to, *bytes), range(*from, *bytes)]
        }
        Task::Work(Work::Fill { to, width, count, .. }) => {
            vec![range(*to, u64::from(*width).saturating_mul(*count))]
        }
        Task::ArrayCopy { .. } => return Reach::Everything,
        Task::Work(Work::Marker | Work::Wait { .. } | Work::WaitValue { .. })
        | Task::HostCopy { .. }
        | Task::HostFill { .. }
        | Task::HostWait { .. } => Vec::new(),
    };
    Reach::Ranges(ranges)
}
