//! The accounts of all applications, and which of them matter now.
//!
//! Most applications of a crowd are idle. The applications that have work, and those that take part
//! in sharing, stand in sets of their own: an idle application costs nothing at a launch.

use super::account::Account;
use partita_model::{ApplicationId, Nanos};
use std::collections::{BTreeMap, BTreeSet};

/// All accounts. The sets follow every change of an account's demand and activity.
#[derive(Default)]
pub(super) struct Accounts {
    all: BTreeMap<ApplicationId, Account>,
    /// Applications with launches that keep to their partition, queued or in flight.
    at_work: BTreeSet<ApplicationId>,
    /// Applications that take part in sharing.
    active: BTreeSet<ApplicationId>,
}

impl Accounts {
    pub(super) fn get(&self, id: ApplicationId) -> Option<&Account> {
        self.all.get(&id)
    }

    /// An account, for all that changes neither its demand nor its activity.
    pub(super) fn get_mut(&mut self, id: ApplicationId) -> Option<&mut Account> {
        self.all.get_mut(&id)
    }

    /// An application has come.
    pub(super) fn open(&mut self, id: ApplicationId, now: Nanos, longest_grace: Nanos) {
        self.all.entry(id).or_insert_with(|| Account::new(now, longest_grace));
    }

    /// An application has left.
    pub(super) fn close(&mut self, id: ApplicationId) {
        self.all.remove(&id);
        self.at_work.remove(&id);
        self.active.remove(&id);
    }

    pub(super) fn at_work(&self) -> impl Iterator<Item = ApplicationId> {
        self.at_work.iter().copied()
    }

    /// Applications that take part in sharing, with their accounts.
    pub(super) fn active(&self) -> impl Iterator<Item = (ApplicationId, &Account)> {
        self.active.iter().filter_map(|&id| Some((id, self.all.get(&id)?)))
    }

    /// An application has one more launch that keeps to its partition. Whether it has to join, and
    /// whether it had none.
    pub(super) fn demand_began(&mut self, id: ApplicationId, now: Nanos) -> (bool, bool) {
        let Some(account) = self.all.get_mut(&id) else { return (false, false) };
        let was_idle = !account.has_work();
        if was_idle {
            self.at_work.insert(id);
        }
        (account.demand_began(now), was_idle)
    }

    /// `launches` such launches have ended. Whether they were the last.
    pub(super) fn demand_ended(&mut self, id: ApplicationId, now: Nanos, launches: usize) -> bool {
        let Some(account) = self.all.get_mut(&id) else { return false };
        account.demand_ended(now, launches);
        !account.has_work() && self.at_work.remove(&id)
    }

    /// The application takes part in sharing from now on, or no longer.
    pub(super) fn set_active(&mut self, id: ApplicationId, active: bool) {
        let Some(account) = self.all.get_mut(&id) else { return };
        account.set_active(active);
        if active {
            self.active.insert(id);
        } else {
            self.active.remove(&id);
        }
    }

    /// All work is gone with the device, and so are the applications that do not stay.
    pub(super) fn forget_work(&mut self, stays: impl Fn(ApplicationId) -> bool) {
        self.all.retain(|id, _| stays(*id));
        self.at_work.clear();
        self.active.clear();
        for account in self.all.values_mut() {
            account.forget_work();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Nanos = Nanos(1_000_000);

    #[test]
    fn the_sets_follow_the_accounts() {
        let mut accounts = Accounts::default();
        let [a, b, unknown] = [1, 2, 3].map(ApplicationId);
        let who = |accounts: &Accounts| {
            let active: Vec<_> = accounts.active().map(|(id, _)| id).collect();
            (accounts.at_work().collect::<Vec<_>>(), active)
        };
        for id in [a, b] {
            accounts.open(id, Nanos(0), MOST);
            assert_eq!(accounts.demand_began(id, Nanos(1)), (true, true), "it has to join");
        }
        assert_eq!(accounts.demand_began(unknown, Nanos(1)), (false, false));
        accounts.set_active(unknown, true);
        accounts.set_active(b, true);
        assert_eq!(accounts.demand_began(b, Nanos(2)), (false, false), "it has joined");
        assert_eq!(who(&accounts), (vec![a, b], vec![b]));
        assert!(!accounts.demand_ended(b, Nanos(3), 1));
        assert_eq!(who(&accounts).0, [a, b]);
        assert!(accounts.demand_ended(b, Nanos(4), 1));
        assert!(!accounts.demand_ended(b, Nanos(4), 0), "it had none");
        assert_eq!(who(&accounts), (vec![a], vec![b]));
        accounts.set_active(a, true);
        accounts.set_active(b, false);
        assert_eq!(who(&accounts), (vec![a], vec![a]));
        accounts.forget_work(|id| id == a);
        assert_eq!(who(&accounts), (vec![], vec![]));
        assert!(accounts.get(b).is_none());
        accounts.demand_began(a, Nanos(5));
        accounts.set_active(a, true);
        accounts.close(a);
        assert_eq!(who(&accounts), (vec![], vec![]));
    }
}
