//! Copies between host and device: which goes to the device, and when.
//!
//! A device carries out the copies of one direction one after the other, in the order of their
//! submission. What is on the device therefore keeps every other copy of its direction waiting. So
//! the device has few bytes of each direction, and fewer while several users copy ([`Bound`]).
//! Longer copies go to the device piece by piece. [`CopyOrder`] says which copy is the next. The
//! applications of priority `latency` of a user count as another user.
//!
//! A copy takes part in the order once nothing else is before it in its stream: a copy behind a
//! kernel would keep the copies of others waiting until the kernel has ended. Where no other user
//! copies, a short one may be *early*: it goes to the device behind the kernel, because the device
//! then need not wait for the host. What is early does not count in the bound.

use super::Sessions;
use super::copy_order::{Copier, CopyOrder, Rank, Standing};
use super::copy_times::CopyTimes;
use super::record::{Operation, Queued, Session, Stage, Stream, Then};
use crate::effects::Effect;
use crate::turn::{Bug, Turn};
use crate::{CopyPolicy, EngineConfig};
use partita_device::{HostSpan, Work};
use partita_model::{
    CudaResult, DeviceAddress, Nanos, OperationId, Priority, SessionId, StreamId, TenantId,
};
use std::collections::BTreeMap;

/// Bytes that a GPU copies in the time that a copy costs whatever its length (8 µs at the 12 GB/s
/// of PCI Express 3).
const FIXED_BYTES: u64 = 96 << 10;
/// Device time for which a user counts as copying after its last copy. Programs that alternate
/// copies and kernels copy again sooner.
const RECENT: Nanos = Nanos(10_000_000);
/// The shortest piece beside other users of which two are in flight. Before a copy of another user
/// that is shorter, one piece is enough to wait for: programs that copy little copy often. The
/// device then waits for the host after each piece.
const TWO_FROM: u64 = 512 << 10;
/// Operations of a stream in which the launch behind a copy is looked for.
const LOOKED_AT: usize = 64;
/// A launch behind copies of at most this many bytes, or a copy of that length behind a kernel, may
/// be on the device early. The device carries that in about 100 µs, so little waits for it.
const EARLY_BYTES: u64 = 1 << 20;
/// Bytes of copies of one direction that may be on the device early, [`FIXED_BYTES`] for each
/// included.
const EARLY_IN_FLIGHT: u64 = 4 << 20;

/// What may be in flight of one direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Bound {
    /// The longest piece in bytes.
    piece: u64,
    /// Bytes in flight, [`FIXED_BYTES`] for each copy included. One copy is always allowed.
    in_flight: u64,
}

impl Bound {
    /// No other user is connected, and no other stream copies.
    const ONLY: Bound = Bound { piece: u64::MAX, in_flight: 32 << 20 };
    /// No other user copies, and no other stream: a millisecond. The pieces cost at most 1 % of the
    /// rate.
    const AMONG: Bound = Bound { piece: 16 << 20, in_flight: 32 << 20 };
    /// No other user copies: a third of a millisecond. The pieces cost at most 3 % of the rate.
    const STREAMS: Bound = Bound::two_of(4 << 20);
    /// An application of priority `latency` may copy at any moment.
    const URGENT: Bound = Bound::two_of(1 << 20);

    /// While several users copy, pieces are no longer than the shortest copy that another user
    /// asked for lately. Half of the time goes to bytes where they have 128 KiB, their least. A
    /// user who has not copied lately waits for at most two pieces of 1 MiB.
    fn beside(shortest: u64) -> Bound {
        let piece = shortest.clamp(128 << 10, 1 << 20);
        if piece >= TWO_FROM {
            return Bound::two_of(piece);
        }
        Bound { piece, in_flight: piece + FIXED_BYTES }
    }

    /// Two pieces: the device has the next one when the first ends.
    const fn two_of(piece: u64) -> Bound {
        Bound { piece, in_flight: 2 * (piece + FIXED_BYTES) }
    }
}

/// The direction of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    ToDevice,
    ToHost,
}

/// The direction and the length in bytes of work that is a copy between host and device.
fn copy_of(work: &Work) -> Option<(Way, u64)> {
    match work {
        Work::CopyToDevice { from, .. } => Some((Way::ToDevice, from.bytes())),
        Work::CopyToHost { to, .. } => Some((Way::ToHost, to.bytes())),
        _ => None,
    }
}

/// What was seen of a user's copies of one direction.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// When a copy began, ended or came last.
    last: Nanos,
    /// The shortest of the latest copies in bytes, and when it came.
    shortest: (u64, Nanos),
}

/// A copy, or a piece of one, that the device has.
#[derive(Clone, Copy, Debug)]
struct Flight {
    copier: Copier,
    stream: StreamId,
    cost: u64,
    /// The device has it although a kernel is before it.
    is_early: bool,
}

/// One direction.
#[derive(Debug, Default)]
struct Link {
    order: CopyOrder,
    /// Where the copies are that wait.
    places: BTreeMap<OperationId, (SessionId, StreamId)>,
    in_flight: BTreeMap<OperationId, Flight>,
    /// What is in flight, without what is early, and what is early.
    cost: u64,
    early: u64,
    users: BTreeMap<Copier, Seen>,
}

impl Link {
    /// The shortest of the latest copies of other users, where others copy or did lately.
    fn shortest_of_others(&self, own: Copier, now: Nanos) -> Option<u64> {
        let others = self.users.iter().filter(|(user, _)| **user != own);
        let recent = others.filter(|(user, seen)| seen.last + RECENT > now || self.copies(**user));
        recent.map(|(_, seen)| seen.shortest.0).min()
    }

    /// Whether the device has copies of a user.
    fn copies(&self, user: Copier) -> bool {
        self.in_flight.values().any(|flight| flight.copier == user)
    }

    /// Whether copies of another stream wait or are in flight.
    fn has_company(&self, stream: StreamId) -> bool {
        self.in_flight.values().any(|flight| flight.stream != stream)
            || self.places.values().any(|(_, other)| *other != stream)
    }

    fn saw(&mut self, user: Copier, bytes: Option<u64>, now: Nanos) {
        let new = Seen { last: now, shortest: (u64::MAX, now) };
        let seen = self.users.entry(user).or_insert(new);
        seen.last = now;
        if let Some(bytes) = bytes
            && (bytes <= seen.shortest.0 || seen.shortest.1 + RECENT <= now)
        {
            seen.shortest = (bytes, now);
        }
    }

    /// Whether `cost` more bytes may be in flight.
    fn fits(&self, cost: u64, bound: Bound) -> bool {
        let is_idle = self.in_flight.values().all(|flight| flight.is_early);
        is_idle || self.cost.saturating_add(cost) <= bound.in_flight
    }

    fn begin(&mut self, id: OperationId, flight: Flight, now: Nanos) {
        if flight.is_early {
            self.early += flight.cost;
        } else {
            self.cost += flight.cost;
        }
        self.in_flight.insert(id, flight);
        self.saw(flight.copier, None, now);
    }

    /// An operation has ended. Whether it was a copy of this direction.
    fn end(&mut self, id: OperationId, now: Nanos) -> bool {
        let Some(flight) = self.in_flight.remove(&id) else { return false };
        if flight.is_early {
            self.early -= flight.cost;
        } else {
            self.cost -= flight.cost;
        }
        self.saw(flight.copier, None, now);
        if self.in_flight.is_empty() {
            self.order.rest();
            // One look for each pause keeps the users few.
            self.users.retain(|_, seen| seen.last + RECENT > now);
        }
        true
    }

    /// Where the copy is whose turn is next.
    fn next(&self) -> Option<(SessionId, StreamId)> {
        self.order.next().and_then(|id| self.places.get(&id)).copied()
    }

    /// A copy waits no longer.
    fn leave(&mut self, id: OperationId) {
        self.order.remove(id);
        self.places.remove(&id);
    }
}

/// The copies of all users.
#[derive(Debug, Default)]
pub(super) struct Copies {
    to_device: Link,
    to_host: Link,
}

/// What the head of a stream may submit now.
pub(crate) enum CopyTurn {
    /// All of it.
    Whole(Work),
    /// The first piece. The rest stays in the stream.
    Piece { piece: (OperationId, Work), rest: Work },
    /// Nothing before other copies have ended.
    Wait(Work),
}

impl Copies {
    fn link(&self, way: Way) -> &Link {
        match way {
            Way::ToDevice => &self.to_device,
            Way::ToHost => &self.to_host,
        }
    }

    fn link_mut(&mut self, way: Way) -> &mut Link {
        match way {
            Way::ToDevice => &mut self.to_device,
            Way::ToHost => &mut self.to_host,
        }
    }

    fn links(&self) -> [&Link; 2] {
        [&self.to_device, &self.to_host]
    }

    pub(super) fn is_at_rest(&self) -> bool {
        self.links().iter().all(|link| {
            link.order.len() == 0 && link.in_flight.is_empty() && link.cost + link.early == 0
        })
    }

    pub(super) fn device_lost(&mut self) {
        *self = Copies::default();
    }
}

impl Sessions {
    /// Copies of a session that wait for their turn.
    pub(crate) fn copies_waiting(&self, session: SessionId) -> u64 {
        let places = self.copies.links().into_iter().flat_map(|link| link.places.values());
        places.filter(|(of, _)| *of == session).count() as u64
    }

    /// What a stream's head may submit of `work`: all of it where it is no copy between host and
    /// device.
    pub(crate) fn copy_turn(
        &mut self,
        turn: &mut Turn<'_>,
        (session, stream): (SessionId, StreamId),
        id: OperationId,
        work: Work,
    ) -> CopyTurn {
        let Some((way, bytes)) = copy_of(&work) else { return CopyTurn::Whole(work) };
        if turn.config().copies == CopyPolicy::Arrival {
            return CopyTurn::Whole(work);
        }
        let Some(record) = self.records.get(&session) else { return CopyTurn::Whole(work) };
        let (copier, now) = (self.copier(record), turn.now());
        let target = record.streams.get(&stream);
        let is_ready = target.is_none_or(|target| self.is_copy_ready(target, way))
            && self.operations.get(&id).is_none_or(|head| !self.waits_for_another(head));
        let flight = |bytes: u64, is_early| Flight {
            copier,
            stream,
            cost: bytes.saturating_add(FIXED_BYTES),
            is_early,
        };
        if !is_ready {
            // [`Sessions::is_early`] has looked whether it may.
            self.copies.link_mut(way).begin(id, flight(bytes, true), now);
            return CopyTurn::Whole(work);
        }
        let standing = self.standing((session, stream), id, (way, bytes));
        let is_only = self.is_only_user(copier.tenant);
        let is_beside_urgent = !copier.is_urgent && self.urgent().next().is_some();
        let link = self.copies.link_mut(way);
        link.saw(copier, (!link.order.is_waiting(id)).then_some(bytes), now);
        link.order.enter(id, copier, standing);
        link.places.insert(id, (session, stream));
        let bound = match link.shortest_of_others(copier, now) {
            Some(shortest) => Bound::beside(shortest),
            None if is_beside_urgent => Bound::URGENT,
            None if link.has_company(stream) => Bound::STREAMS,
            None if is_only => Bound::ONLY,
            None => Bound::AMONG,
        };
        let flight = flight(bytes.min(bound.piece), false);
        if link.order.next() != Some(id) || !link.fits(flight.cost, bound) {
            // Nothing that ends would let it go.
            let next = link.next().filter(|_| link.in_flight.is_empty());
            next.into_iter().for_each(|place| pump(turn, place));
            return CopyTurn::Wait(work);
        }
        let cut = cut(&work, bound.piece);
        let submitted = if cut.is_some() { OperationId(turn.next_id()) } else { id };
        link.order.carry(id, flight.cost, cut.is_none());
        link.begin(submitted, flight, now);
        match cut {
            Some((piece, rest)) => CopyTurn::Piece { piece: (submitted, piece), rest },
            None => {
                link.leave(id);
                link.next().into_iter().for_each(|place| pump(turn, place));
                CopyTurn::Whole(work)
            }
        }
    }

    /// What a copy is ordered by that is at the head of its stream.
    fn standing(
        &self,
        (session, stream): (SessionId, StreamId),
        id: OperationId,
        (way, bytes): (Way, u64),
    ) -> Standing {
        let cost = bytes.saturating_add(FIXED_BYTES);
        let (mut own, mut before) = (cost, cost);
        let stream = self.records.get(&session).and_then(|record| record.streams.get(&stream));
        let is_awaited = stream.is_some_and(|stream| stream.is_awaited(id));
        let behind = stream.into_iter().flat_map(|stream| stream.queue.iter());
        for operation in behind.filter(|other| **other != id).take(LOOKED_AT) {
            match self.operations.get(operation).map(|operation| &operation.stage) {
                Some(Stage::Queued(Queued::Launch(_) | Queued::Forming(_))) => break,
                Some(Stage::Queued(Queued::Plain(work))) => {
                    let Some((other, bytes)) = copy_of(work) else { continue };
                    let cost = bytes.saturating_add(FIXED_BYTES);
                    before = before.saturating_add(cost);
                    if other == way {
                        own = own.saturating_add(cost);
                    }
                }
                _ => {}
            }
        }
        // The launch for which a program copies to the device may come later.
        let is_last = way == Way::ToHost && !is_awaited;
        Standing { rank: Rank { is_last, before }, own }
    }

    /// Something was appended to a stream, or waits for it: its head may have another place in the
    /// order of copies.
    pub(super) fn copy_stands_anew(&mut self, (session, stream): (SessionId, StreamId)) {
        let Some(record) = self.records.get(&session) else { return };
        let copier = self.copier(record);
        let Some(&id) = record.streams.get(&stream).and_then(|stream| stream.queue.front()) else {
            return;
        };
        let Some(Stage::Queued(Queued::Plain(work))) = self.operations.get(&id).map(|o| &o.stage)
        else {
            return;
        };
        let Some(copy) = copy_of(work) else { return };
        if self.copies.link(copy.0).order.is_waiting(id) {
            let standing = self.standing((session, stream), id, copy);
            self.copies.link_mut(copy.0).order.enter(id, copier, standing);
        }
    }

    /// Whether a copy can begin when the link is free: only copies of its own direction, and marks,
    /// are before it.
    fn is_copy_ready(&self, stream: &Stream, way: Way) -> bool {
        let link = self.copies.link(way);
        stream.in_flight.iter().all(|before| {
            let operation = self.operations.get(before);
            let is_mark = operation.is_none_or(|o| matches!(o.then, Then::Record { .. }));
            is_mark || link.in_flight.contains_key(before)
        })
    }

    /// Whether an operation waits for one of another stream that has not ended.
    fn waits_for_another(&self, operation: &Operation) -> bool {
        operation.after.iter().any(|on| self.operations.contains_key(on))
    }

    /// Whether the head of a stream is to wait because of copies: a copy that is not ready, or a
    /// launch whose copies are on the device while others have work.
    pub(super) fn is_early(
        &self,
        (config, now): (&EngineConfig, Nanos),
        (record, target): (&Session, &Stream),
        (id, operation): (OperationId, &Operation),
    ) -> bool {
        if config.copies == CopyPolicy::Arrival {
            return false;
        }
        match &operation.stage {
            Stage::Queued(Queued::Plain(work)) => {
                let Some((way, bytes)) = copy_of(work) else { return false };
                let link = self.copies.link(way);
                let is_ready =
                    !self.waits_for_another(operation) && self.is_copy_ready(target, way);
                if is_ready || link.order.is_waiting(id) {
                    return false;
                }
                let copier = self.copier(record);
                let may = bytes <= EARLY_BYTES
                    && link.early + bytes + FIXED_BYTES <= EARLY_IN_FLIGHT
                    && link.shortest_of_others(copier, now).is_none();
                !may
            }
            Stage::Queued(Queued::Launch(_) | Queued::Forming(_)) => {
                let links = self.copies.links();
                let of = |id| links.iter().find_map(|link| link.in_flight.get(id));
                let before: u64 =
                    target.in_flight.iter().filter_map(of).map(|flight| flight.cost).sum();
                let others = self.operations.len() > target.in_flight.len() + target.queue.len();
                before > EARLY_BYTES && others
            }
            Stage::Queued(Queued::Gate) | Stage::Starting | Stage::InFlight => false,
        }
    }

    /// As whose the copies of a session count.
    fn copier(&self, record: &Session) -> Copier {
        let application = self.applications.get(&record.application);
        let is_urgent = application.is_some_and(|a| a.entitlement.priority == Priority::Latency);
        Copier { tenant: record.identity.tenant, is_urgent }
    }

    fn is_only_user(&self, tenant: TenantId) -> bool {
        self.applications.values().all(|application| application.tenant == tenant)
    }

    /// Submits the first piece of a copy, which is an operation of its own. Whether the device has
    /// taken it.
    pub(crate) fn submit_piece(
        &mut self,
        turn: &mut Turn<'_>,
        id: OperationId,
        (piece, work): (OperationId, Work),
        rest: Work,
    ) -> Result<bool, Bug> {
        let operation = self.operations.get_mut(&id).ok_or(Bug::NoOperation(id))?;
        let (session, stream) = (operation.session, operation.stream);
        let after = std::mem::take(&mut operation.after);
        self.put_back(id, Queued::Plain(rest))?;
        self.submit_waits(turn, (session, stream), after, &work)?;
        let copy = CopyTimes::of(&work);
        if let Err(error) = turn.device.enqueue(stream, piece, work) {
            self.copy_ended(turn, piece);
            turn.fail(session, CudaResult::ERROR_UNKNOWN, error.to_string());
            return Ok(false);
        }
        if let Some(copy) = copy {
            self.copy_times.given(piece, id, copy, turn.now());
        }
        let (then, stage) = (Then::Nothing, Stage::InFlight);
        let operation = Operation { session, stream, after: Vec::new(), stage, then };
        self.operations.insert(piece, Box::new(operation));
        let record = self.records.get_mut(&session).ok_or(Bug::NoSession(session))?;
        record.operations += 1;
        let target = record.streams.get_mut(&stream).ok_or(Bug::NoStream(stream))?;
        target.in_flight.push_back(piece);
        Ok(true)
    }

    /// An operation has ended: if it was a copy, the next copy of its direction has its turn.
    pub(super) fn copy_ended(&mut self, turn: &mut Turn<'_>, id: OperationId) {
        for way in [Way::ToDevice, Way::ToHost] {
            let link = self.copies.link_mut(way);
            if link.end(id, turn.now()) {
                link.next().into_iter().for_each(|place| pump(turn, place));
            }
        }
    }

    /// Drops the copies that a session lets wait.
    pub(super) fn forget_copies(&mut self, turn: &mut Turn<'_>, session: SessionId) {
        for way in [Way::ToDevice, Way::ToHost] {
            let link = self.copies.link_mut(way);
            let own = link.places.iter().filter(|(_, place)| place.0 == session);
            let own: Vec<OperationId> = own.map(|(id, _)| *id).collect();
            for &id in &own {
                link.leave(id);
            }
            if !own.is_empty() {
                link.next().into_iter().for_each(|place| pump(turn, place));
            }
        }
    }
}

fn pump(turn: &mut Turn<'_>, (session, stream): (SessionId, StreamId)) {
    turn.push(Effect::PumpStream(session, stream));
}

/// A copy's first piece of at most `most` bytes, and the rest. `None` where the copy is no longer.
fn cut(work: &Work, most: u64) -> Option<(Work, Work)> {
    let halves = |span: &HostSpan| {
        let rest = span.bytes().checked_sub(most).filter(|rest| *rest > 0)?;
        Some((span.part(0, most)?, span.part(most, rest)?))
    };
    let behind = |address: &DeviceAddress| DeviceAddress(address.0 + most);
    match work {
        Work::CopyToDevice { to, from } => {
            let (first, rest) = halves(from)?;
            let rest = Work::CopyToDevice { to: behind(to), from: rest };
            Some((Work::CopyToDevice { to: *to, from: first }, rest))
        }
        Work::CopyToHost { to, from } => {
            let (first, rest) = halves(to)?;
            let rest = Work::CopyToHost { to: rest, from: behind(from) };
            Some((Work::CopyToHost { to: first, from: *from }, rest))
        }
        _ => None,
    }
}
