//! Copies between host and device: users take turns.
//!
//! A device carries out the copies of one direction one after the other, in the order of their
//! submission. What a user has on the device therefore keeps every other user's next copy waiting,
//! whether one session has submitted it or a hundred have. So a user has few bytes of each
//! direction in flight, and fewer while another user copies ([`Bound`]). Longer copies go to the
//! device piece by piece. The streams of one user take turns after each piece.

use super::Sessions;
use super::record::{Operation, Queued, Stage, Then};
use crate::effects::Effect;
use crate::turn::{Bug, Turn};
use partita_device::{HostSpan, Work};
use partita_model::{CudaResult, DeviceAddress, Nanos, OperationId, SessionId, StreamId, TenantId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Bytes that a GPU copies in the time that a copy costs whatever its length (8 µs at the 12 GB/s
/// of PCI Express 3).
const FIXED_BYTES: u64 = 96 << 10;
/// Device time for which a user counts as copying after its last copy. Programs that alternate
/// copies and kernels copy again sooner.
const RECENT: Nanos = Nanos(10_000_000);

/// What a user may have in flight of one direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Bound {
    /// The longest piece in bytes.
    piece: u64,
    /// Bytes in flight, [`FIXED_BYTES`] for each copy included. One copy is always allowed.
    in_flight: u64,
}

impl Bound {
    /// Beside a user that copies: one piece, or two small copies. Half of the time goes to bytes.
    const BESIDE: Bound = Bound { piece: 128 << 10, in_flight: (128 << 10) + FIXED_BYTES };
    /// Beside users that do not copy: a millisecond. The pieces cost at most 3 % of the rate.
    const AMONG: Bound = Bound { piece: 16 << 20, in_flight: 32 << 20 };
    /// No other user is connected.
    const ONLY: Bound = Bound { piece: u64::MAX, in_flight: 32 << 20 };
}

/// The direction of a copy.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Way {
    ToDevice,
    ToHost,
}

/// One user's copies of one direction.
#[derive(Debug, Default)]
struct User {
    copies: usize,
    /// What they cost in bytes.
    cost: u64,
    /// When a copy began or ended last.
    last: Nanos,
    /// Copies at the head of their stream, in the order of their turns.
    waiting: VecDeque<Waiting>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Waiting {
    id: OperationId,
    session: SessionId,
    stream: StreamId,
}

impl User {
    fn copies_at(&self, now: Nanos) -> bool {
        self.copies > 0 || !self.waiting.is_empty() || self.last + RECENT > now
    }
}

/// The copies of all users.
#[derive(Debug, Default)]
pub(super) struct Copies {
    users: BTreeMap<(Way, TenantId), User>,
    in_flight: BTreeMap<OperationId, (Way, TenantId, u64)>,
    /// All that wait.
    waiting: BTreeSet<OperationId>,
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
    /// Whether another user copies, or did lately.
    fn is_beside(&self, (way, own): (Way, TenantId), now: Nanos) -> bool {
        let of_way = (way, TenantId(0))..=(way, TenantId(u32::MAX));
        self.users.range(of_way).any(|((_, user), of)| *user != own && of.copies_at(now))
    }

    /// Whether a copy may go before all others of its user.
    fn has_turn(&mut self, of: (Way, TenantId), waiting: Waiting, cost: u64, bound: Bound) -> bool {
        let user = self.users.entry(of).or_default();
        let is_next = user.waiting.front().is_none_or(|first| first.id == waiting.id);
        let fits = user.copies == 0 || user.cost.saturating_add(cost) <= bound.in_flight;
        if is_next && fits {
            user.waiting.pop_front();
            self.waiting.remove(&waiting.id);
            return true;
        }
        if self.waiting.insert(waiting.id) {
            user.waiting.push_back(waiting);
        }
        false
    }

    /// A copy begins. The copy whose turn is next, which may have room too.
    fn begin(
        &mut self,
        id: OperationId,
        (way, tenant): (Way, TenantId),
        cost: u64,
        now: Nanos,
    ) -> Option<Waiting> {
        self.in_flight.insert(id, (way, tenant, cost));
        let user = self.users.entry((way, tenant)).or_default();
        user.copies += 1;
        user.cost = user.cost.saturating_add(cost);
        user.last = now;
        user.waiting.front().copied()
    }

    /// An operation has ended. The copy whose turn is next, if the operation was a copy.
    fn end(&mut self, id: OperationId, now: Nanos) -> Option<Waiting> {
        let (way, tenant, cost) = self.in_flight.remove(&id)?;
        let user = self.users.get_mut(&(way, tenant))?;
        user.copies -= 1;
        user.cost -= cost;
        user.last = now;
        let next = user.waiting.front().copied();
        // One look for each copy keeps the users few.
        self.users.retain(|_, user| user.copies_at(now));
        next
    }

    /// Drops what a session lets wait. The copies whose turn may be next.
    fn forget(&mut self, session: SessionId) -> Vec<Waiting> {
        let mut next = Vec::new();
        for user in self.users.values_mut() {
            let waited = user.waiting.len();
            user.waiting.retain(|waiting| {
                let stays = waiting.session != session;
                if !stays {
                    self.waiting.remove(&waiting.id);
                }
                stays
            });
            if user.waiting.len() < waited {
                next.extend(user.waiting.front());
            }
        }
        next
    }

    pub(super) fn device_lost(&mut self) {
        *self = Copies::default();
    }
}

impl Sessions {
    /// What a stream's head may submit of `work`: all of it where it is no copy between host and
    /// device.
    pub(crate) fn copy_turn(
        &mut self,
        turn: &mut Turn<'_>,
        (session, stream): (SessionId, StreamId),
        id: OperationId,
        work: Work,
    ) -> CopyTurn {
        let (way, bytes) = match &work {
            Work::CopyToDevice { from, .. } => (Way::ToDevice, from.bytes()),
            Work::CopyToHost { to, .. } => (Way::ToHost, to.bytes()),
            _ => return CopyTurn::Whole(work),
        };
        let tenant = self.records.get(&session).map(|record| record.identity.tenant);
        let Some(tenant) = tenant else { return CopyTurn::Whole(work) };
        let of = (way, tenant);
        let bound = match self.copies.is_beside(of, turn.now()) {
            true => Bound::BESIDE,
            false if bytes <= Bound::AMONG.piece || self.is_only_user(tenant) => Bound::ONLY,
            false => Bound::AMONG,
        };
        let cost = bytes.min(bound.piece).saturating_add(FIXED_BYTES);
        let waiting = Waiting { id, session, stream };
        if !self.copies.has_turn(of, waiting, cost, bound) {
            return CopyTurn::Wait(work);
        }
        let cut = cut(&work, bound.piece);
        let submitted = if cut.is_some() { OperationId(turn.next_id()) } else { id };
        let next = self.copies.begin(submitted, of, cost, turn.now());
        next.into_iter().for_each(|waiting| pump(turn, waiting));
        match cut {
            Some((piece, rest)) => CopyTurn::Piece { piece: (submitted, piece), rest },
            None => CopyTurn::Whole(work),
        }
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
        if let Err(error) = turn.device.enqueue(stream, piece, work) {
            self.copy_ended(turn, piece);
            turn.fail(session, CudaResult::ERROR_UNKNOWN, error.to_string());
            return Ok(false);
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

    /// An operation has ended: if it was a copy, the next copy of its user has its turn.
    pub(super) fn copy_ended(&mut self, turn: &mut Turn<'_>, id: OperationId) {
        let next = self.copies.end(id, turn.now());
        next.into_iter().for_each(|waiting| pump(turn, waiting));
    }

    /// Drops the copies that a session lets wait.
    pub(super) fn forget_copies(&mut self, turn: &mut Turn<'_>, session: SessionId) {
        let next = self.copies.forget(session);
        next.into_iter().for_each(|waiting| pump(turn, waiting));
    }
}

fn pump(turn: &mut Turn<'_>, Waiting { session, stream, .. }: Waiting) {
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
