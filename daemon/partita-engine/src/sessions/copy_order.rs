//! The order of the copies of one direction: Kernelet's memory command scheduler (TPDS '14 §3.2).
//!
//! [`CopyOrder`] is pure: copies come, one after the other is named as the next, and what the
//! device carries of it is entered. Lengths are bytes, with the fixed cost of a copy included.
//!
//! # Between users
//!
//! Each user is to have the same part of the link. Turns after each piece would give that, but all
//! copies of the same length would then end together, late, and no kernel would run meanwhile. So
//! the order between users is that in which their next copies *would end* if users took turns byte
//! by byte, and a copy keeps the link until it ends or one comes that would end earlier (Friedman
//! and Henderson, Fair Sojourn Protocol, SIGMETRICS '03; the ends are those of weighted fair
//! queueing, Parekh and Gallager '93, for equal weights). No copy ends later than with turns, but
//! for one piece.
//!
//! The order does not ask whether the GPU has something to run. A user whose kernels are short
//! would leave the GPU idle again and again, and that user would go before the others for ever.
//! The order serves the short copy of a waiting kernel first anyway, unless its user has had more
//! than the others.
//!
//! Copies of applications of priority `latency` go before those of all others, but for copies that
//! would have ended [`LEAD`] bytes ago with turns. So these end later by that much at most.
//!
//! # Among the copies of a user
//!
//! Copies that something waits for go first ([`Rank`]), and among them the one whose stream has the
//! fewest bytes of copies before its next launch. A copy for which its user's other copies have
//! carried [`CopyOrder::patience`] bytes is *due*: due copies go before all others, in order of
//! their ids, which is the order of the program's requests. Copies that were asked for later carry
//! at most the patience and one piece while a copy waits.

use partita_model::{OperationId, TenantId};
use std::collections::{BTreeMap, BTreeSet};

/// Bytes that may overtake any copy.
const PATIENCE: u64 = 16 << 20;
/// And so many times its own length, so that long copies wait for short ones.
const PATIENCE_FACTOR: u64 = 4;

/// Bytes of virtual time for which copies of priority `latency` may make another copy late.
const LEAD: u64 = 16 << 20;

/// As whose a copy counts: its user's, or that of the user's applications of priority `latency`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Copier {
    pub(super) tenant: TenantId,
    pub(super) is_urgent: bool,
}

/// What a user's copies are ordered by: the lowest goes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Rank {
    /// Nothing is known that waits for the copy.
    pub(super) is_last: bool,
    /// Bytes of copies, of both directions, before the next launch of its stream.
    pub(super) before: u64,
}

/// A copy at the head of its stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Standing {
    pub(super) rank: Rank,
    /// Bytes of copies of its own direction before the next launch of its stream.
    pub(super) own: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    user: Copier,
    standing: Standing,
    /// What its user's copies have carried when it is due.
    deadline: u64,
}

/// One user.
#[derive(Debug, Default)]
struct Share {
    /// Virtual time up to which the user was served.
    served_to: u64,
    /// Bytes of all that is known of the user.
    backlog: u64,
    /// Bytes that the user's copies have carried.
    carried: u64,
    by_rank: BTreeSet<(Rank, OperationId)>,
    by_deadline: BTreeSet<(u64, OperationId)>,
    due: BTreeSet<OperationId>,
}

impl Share {
    /// The user's next copy.
    fn next(&self) -> Option<OperationId> {
        self.due.first().copied().or_else(|| self.by_rank.first().map(|(_, id)| *id))
    }

    fn insert(&mut self, id: OperationId, entry: &Entry) {
        self.backlog += entry.standing.own;
        self.by_rank.insert((entry.standing.rank, id));
        if entry.deadline <= self.carried {
            self.due.insert(id);
        } else {
            self.by_deadline.insert((entry.deadline, id));
        }
    }

    fn remove(&mut self, id: OperationId, entry: &Entry) {
        self.backlog -= entry.standing.own;
        self.by_rank.remove(&(entry.standing.rank, id));
        self.by_deadline.remove(&(entry.deadline, id));
        self.due.remove(&id);
    }

    /// The user's copies have carried `bytes` more: some others are due.
    fn carry(&mut self, bytes: u64) {
        self.carried += bytes;
        while let Some(&(deadline, id)) = self.by_deadline.first()
            && deadline <= self.carried
        {
            self.by_deadline.pop_first();
            self.due.insert(id);
        }
    }
}

/// The copies of one direction that wait, and what users have had.
#[derive(Debug, Default)]
pub(super) struct CopyOrder {
    /// Bytes that a user with copies would have had since the link was idle, if users took turns
    /// byte by byte.
    virtual_time: u64,
    shares: BTreeMap<Copier, Share>,
    waiting: BTreeMap<OperationId, Entry>,
}

impl CopyOrder {
    /// What may overtake a copy: bytes of copies of its user that were asked for later.
    fn patience(own: u64) -> u64 {
        PATIENCE.saturating_add(PATIENCE_FACTOR.saturating_mul(own))
    }

    /// A copy waits from now on, or something else is known of it.
    pub(super) fn enter(&mut self, id: OperationId, user: Copier, standing: Standing) {
        let share = self.shares.entry(user).or_default();
        if share.backlog == 0 {
            share.served_to = share.served_to.max(self.virtual_time);
        }
        let patience = Self::patience(standing.own);
        let before = self.waiting.get(&id);
        let deadline =
            before.map_or(share.carried.saturating_add(patience), |before| before.deadline);
        if let Some(before) = before {
            share.remove(id, before);
        }
        let entry = Entry { user, standing, deadline };
        share.insert(id, &entry);
        self.waiting.insert(id, entry);
    }

    /// The copy that is to begin next.
    pub(super) fn next(&self) -> Option<OperationId> {
        let of_user = |(user, share): (&Copier, &Share)| {
            let id = share.next()?;
            let own = self.waiting.get(&id)?.standing.own;
            let end = share.served_to.saturating_add(own);
            let is_late = end.saturating_add(LEAD) <= self.virtual_time;
            Some((!user.is_urgent && !is_late, end, id))
        };
        self.shares.iter().filter_map(of_user).min().map(|(_, _, id)| id)
    }

    /// The device carries `bytes` of a copy, or all of it: then it waits no longer.
    pub(super) fn carry(&mut self, id: OperationId, bytes: u64, is_all: bool) {
        let Some(entry) = self.waiting.get(&id).copied() else { return };
        self.advance(bytes);
        let Some(share) = self.shares.get_mut(&entry.user) else { return };
        share.remove(id, &entry);
        share.served_to = share.served_to.saturating_add(bytes);
        share.carry(bytes);
        if is_all {
            self.waiting.remove(&id);
            return;
        }
        let less = |length: u64| length.saturating_sub(bytes);
        let Standing { rank, own } = entry.standing;
        let rank = Rank { before: less(rank.before), ..rank };
        let entry = Entry { standing: Standing { rank, own: less(own) }, ..entry };
        share.insert(id, &entry);
        self.waiting.insert(id, entry);
    }

    /// Lets virtual time pass in which the link carries `bytes`: users with a backlog in turns that
    /// are taken byte by byte have the same part of it.
    fn advance(&mut self, mut bytes: u64) {
        while bytes > 0 {
            let end = |share: &Share| share.served_to.saturating_add(share.backlog);
            let ends = self.shares.values().map(end).filter(|end| *end > self.virtual_time);
            let (users, first) =
                ends.fold((0, u64::MAX), |(n, first), end| (n + 1, first.min(end)));
            if users == 0 {
                return;
            }
            let step = (first - self.virtual_time).min(bytes.div_ceil(users));
            self.virtual_time += step;
            bytes = bytes.saturating_sub(step.saturating_mul(users));
        }
    }

    /// A copy waits no longer, because its session ends.
    pub(super) fn remove(&mut self, id: OperationId) {
        if let Some(entry) = self.waiting.remove(&id)
            && let Some(share) = self.shares.get_mut(&entry.user)
        {
            share.remove(id, &entry);
        }
    }

    /// The link is idle: what users have had before is forgotten.
    pub(super) fn rest(&mut self) {
        if self.waiting.is_empty() {
            self.shares.clear();
            self.virtual_time = 0;
        }
    }

    pub(super) fn is_waiting(&self, id: OperationId) -> bool {
        self.waiting.contains_key(&id)
    }

    /// Copies that wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::random::Random;
    use std::collections::VecDeque;

    const PIECE: u64 = 128 << 10;

    /// As many long as short ones by order of magnitude.
    fn length(random: &mut Random) -> u64 {
        (1 + random.below(255)) << (8 + random.below(9))
    }

    fn standing(own: u64, is_last: bool) -> Standing {
        Standing { rank: Rank { is_last, before: own }, own }
    }

    fn user(tenant: u32) -> Copier {
        Copier { tenant: TenantId(tenant), is_urgent: false }
    }

    fn enter(order: &mut CopyOrder, id: u64, tenant: u32, own: u64) {
        order.enter(OperationId(id), user(tenant), standing(own, false));
    }

    /// The order in which copies end that are carried whole.
    fn all(order: &mut CopyOrder) -> Vec<u64> {
        let mut ids = Vec::new();
        while let Some(id) = order.next() {
            order.carry(id, order.waiting[&id].standing.own, true);
            ids.push(id.0);
        }
        ids
    }

    #[test]
    fn the_fewest_bytes_before_a_launch_go_first() {
        let mut order = CopyOrder::default();
        for (id, own) in [(1, 400), (2, 100), (3, 300)] {
            enter(&mut order, id, 1, own);
        }
        order.enter(OperationId(4), user(1), standing(10, true));
        // A second copy stands before the launch behind the first.
        order.enter(OperationId(2), user(1), standing(350, false));
        assert_eq!(all(&mut order), [3, 2, 1, 4]);
    }

    #[test]
    fn what_would_end_first_with_turns_goes_first() {
        let mut order = CopyOrder::default();
        enter(&mut order, 1, 1, 1000);
        enter(&mut order, 2, 2, 400);
        assert_eq!(order.next(), Some(OperationId(2)));
        order.carry(OperationId(2), 400, true);
        // With turns, user 1 would have had 200 by now.
        enter(&mut order, 3, 2, 500);
        enter(&mut order, 4, 3, 700);
        assert_eq!(all(&mut order), [3, 4, 1]);
    }

    /// A user's server copies again and again, and its batch program once.
    #[test]
    fn urgent_copies_go_first_but_starve_nobody() {
        let mut order = CopyOrder::default();
        let urgent = Copier { is_urgent: true, ..user(1) };
        enter(&mut order, 1, 1, 1 << 20);
        let mut carried = 0;
        for id in 2..1_000 {
            order.enter(OperationId(id), urgent, standing(1 << 20, false));
            if order.next() == Some(OperationId(1)) {
                break;
            }
            order.carry(OperationId(id), 1 << 20, true);
            carried += 1 << 20;
        }
        // Both have their part until the batch program's copy would have ended.
        assert!((LEAD..=LEAD + (4 << 20)).contains(&carried), "{carried}");
    }

    #[test]
    fn equal_copies_of_two_users_end_one_after_the_other() {
        let mut order = CopyOrder::default();
        enter(&mut order, 1, 1, 1000);
        enter(&mut order, 2, 2, 1000);
        for _ in 0..9 {
            order.carry(OperationId(1), 100, false);
            assert_eq!(order.next(), Some(OperationId(1)));
        }
    }

    #[test]
    fn a_copy_that_is_gone_is_never_next() {
        let mut order = CopyOrder::default();
        enter(&mut order, 1, 1, 100);
        enter(&mut order, 2, 1, 200);
        order.remove(OperationId(1));
        assert_eq!(order.next(), Some(OperationId(2)));
        order.remove(OperationId(2));
        assert_eq!((order.next(), order.len()), (None, 0));
        order.rest();
        assert!(order.shares.is_empty());
    }

    /// A copy of the random runs.
    struct Copy {
        user: u32,
        length: u64,
        rest: u64,
        /// What later copies of its user have carried while it waited.
        overtaken: u64,
    }

    /// Copies of three users come in random order, faster than the link carries them: each ends
    /// once, and none is overtaken by more than the patience and a piece.
    #[test]
    fn nothing_is_lost_and_nobody_starves() {
        for seed in 0..50 {
            let (mut random, mut order) = (Random(seed), CopyOrder::default());
            let mut copies: BTreeMap<OperationId, Copy> = BTreeMap::new();
            let (mut next_id, mut ended) = (1, 0);
            let end_of_arrivals = 300;
            loop {
                while next_id < end_of_arrivals && (copies.is_empty() || random.below(3) == 0) {
                    let tenant = u32::try_from(random.below(3)).expect("below three");
                    let length = length(&mut random);
                    let id = OperationId(next_id);
                    next_id += 1;
                    order.enter(id, user(tenant), standing(length, random.below(4) == 0));
                    let copy = Copy { user: tenant, length, rest: length, overtaken: 0 };
                    copies.insert(id, copy);
                }
                assert_eq!(order.len(), copies.len(), "seed {seed}");
                let Some(id) = order.next() else { break };
                let copy = copies.get_mut(&id).expect("what is next waits");
                let (user, piece) = (copy.user, copy.rest.min(PIECE));
                copy.rest -= piece;
                let is_all = copy.rest == 0;
                order.carry(id, piece, is_all);
                for (_, other) in copies.range_mut(..id).filter(|(_, other)| other.user == user) {
                    other.overtaken += piece;
                }
                if is_all {
                    let copy = copies.remove(&id).expect("it was there");
                    let most = CopyOrder::patience(copy.length) + PIECE;
                    assert!(copy.overtaken <= most, "seed {seed}: {id} by {}", copy.overtaken);
                    ended += 1;
                }
            }
            assert_eq!(ended, end_of_arrivals - 1, "seed {seed}");
        }
    }

    /// Users that take turns byte by byte, as a reference.
    #[derive(Default)]
    struct Turns {
        now: f64,
        /// Each user's copies: the copy and what is left of it.
        queues: BTreeMap<u32, VecDeque<(u64, f64)>>,
        ends: BTreeMap<u64, f64>,
    }

    impl Turns {
        fn advance(&mut self, to: f64) {
            while self.now < to {
                let users = self.queues.values().filter(|queue| !queue.is_empty()).count() as f64;
                let fronts = self.queues.values().filter_map(|queue| queue.front());
                let least = fronts.map(|(_, left)| *left).fold(f64::INFINITY, f64::min);
                let step = (least * users).min(to - self.now);
                if users == 0.0 {
                    self.now = to;
                    return;
                }
                self.now += step;
                for queue in self.queues.values_mut() {
                    let Some((id, left)) = queue.front_mut() else { continue };
                    *left -= step / users;
                    if *left < 1e-6 {
                        self.ends.insert(*id, self.now);
                        queue.pop_front();
                    }
                }
            }
        }
    }

    /// Each of five users asks for a copy when its last one has ended: no copy ends later than with
    /// turns, but for the pieces that are on the link.
    #[test]
    fn no_copy_ends_later_than_with_turns() {
        for seed in 0..50 {
            let (mut random, mut order) = (Random(seed), CopyOrder::default());
            let (mut turns, mut now, mut next_id) = (Turns::default(), 0, 1);
            let mut asks_at: BTreeMap<u32, u64> =
                (0..5).map(|user| (user, random.below(1 << 20))).collect();
            let mut copies: BTreeMap<OperationId, (u32, u64)> = BTreeMap::new();
            let mut ends: Vec<(u64, u64)> = Vec::new();
            while ends.len() < 300 {
                for (&user, at) in asks_at.iter_mut().filter(|(_, at)| **at <= now) {
                    let length = length(&mut random);
                    enter(&mut order, next_id, user, length);
                    copies.insert(OperationId(next_id), (user, length));
                    turns.advance(now as f64);
                    let queue = turns.queues.entry(user).or_default();
                    queue.push_back((next_id, length as f64));
                    (next_id, *at) = (next_id + 1, u64::MAX);
                }
                let Some(id) = order.next() else {
                    order.rest();
                    now = *asks_at.values().min().expect("there are five");
                    continue;
                };
                let (user, rest) = copies.get_mut(&id).expect("what is next waits");
                let piece = PIECE.min(*rest);
                *rest -= piece;
                now += piece;
                order.carry(id, piece, *rest == 0);
                if *rest == 0 {
                    asks_at.insert(*user, now + random.below(1 << 22));
                    ends.push((id.0, now));
                    copies.remove(&id);
                }
            }
            turns.advance(1e15);
            for (id, end) in ends {
                let late = end as f64 - turns.ends[&id];
                assert!(late <= 2.0 * PIECE as f64, "seed {seed}: {id} is {late} late");
            }
        }
    }
}
