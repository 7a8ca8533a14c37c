//! Who may change things: root, the daemon's own user, and the members of one group.
//!
//! Everyone who may connect reads: its own applications in full, those of others in sum. Who may
//! connect is the business of the socket's permissions. The kernel reports uid and gid of a
//! connection; further groups come from the user database. A user of a container is accounted to
//! its owner ([`crate::owners`]), sees what the owner sees, and changes nothing of others.
//!
//! Looking a user up may ask a directory server, so it happens on a thread of its own, at most once
//! in [`REMEMBERED`] for each user, and no answer within [`LOOK_UP_LIMIT`] gives no right.

use crate::api::Caller;
use crate::owners::Owners;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// How long a look-up holds.
const REMEMBERED: Duration = Duration::from_secs(10);
/// The longest look-up.
const LOOK_UP_LIMIT: Duration = Duration::from_secs(2);
/// Users whose look-up is remembered.
const MOST_USERS: usize = 4096;

/// Uid and gid of a connection.
type Peer = (u32, u32);

/// Who may change things.
#[derive(Clone, Debug)]
pub struct Rights {
    own: u32,
    group: Option<Arc<str>>,
    owners: Owners,
    known: Arc<Mutex<HashMap<Peer, (bool, Instant)>>>,
}

impl Rights {
    /// Root, the daemon's user `own`, and the members of `group`, where one is named.
    #[must_use]
    pub fn new(own: u32, group: Option<&str>, owners: Owners) -> Rights {
        Rights { own, group: group.map(Into::into), owners, known: Arc::default() }
    }

    /// The daemon's user.
    #[must_use]
    pub fn own(&self) -> u32 {
        self.own
    }

    /// The user that is accounted for this one.
    #[must_use]
    pub fn owner(&self, uid: u32) -> u32 {
        self.owners.of(uid)
    }

    /// What a connection of this user and group may do; `None` where the system does not say who.
    pub async fn caller(&self, peer: Option<Peer>) -> Caller {
        let uid = peer.map(|(uid, _)| self.owner(uid));
        let is_admin = match (peer, &self.group) {
            (Some((own, _)), _) if uid != Some(own) => false,
            (Some((uid, _)), _) if uid == 0 || uid == self.own => true,
            (Some(peer), Some(group)) => self.is_member(peer, group).await,
            _ => false,
        };
        Caller { uid, is_admin }
    }

    async fn is_member(&self, peer: Peer, group: &Arc<str>) -> bool {
        let now = Instant::now();
        let known = self.lock().get(&peer).copied();
        if let Some((answer, at)) = known
            && now.duration_since(at) < REMEMBERED
        {
            return answer;
        }
        let name = Arc::clone(group);
        let look_up = tokio::task::spawn_blocking(move || is_member(peer, &name));
        let answer = matches!(timeout(LOOK_UP_LIMIT, look_up).await, Ok(Ok(true)));
        let mut known = self.lock();
        if known.len() >= MOST_USERS {
            known.clear();
        }
        known.insert(peer, (answer, now));
        answer
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Peer, (bool, Instant)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those who may change things, in words.
    #[must_use]
    pub fn in_words(&self) -> String {
        let own = self.own;
        match &self.group {
            None => format!("root and the daemon's user (uid {own})"),
            Some(group) => {
                format!("root, the daemon's user (uid {own}) and members of group `{group}`")
            }
        }
    }
}

fn is_member((uid, gid): Peer, group: &str) -> bool {
    let Some(group) = uzers::get_group_by_name(group) else { return false };
    let has = |user: uzers::User| {
        let groups = uzers::get_user_groups(user.name(), user.primary_group_id());
        groups.is_some_and(|groups| groups.iter().any(|one| one.gid() == group.gid()))
    };
    gid == group.gid() || uzers::get_user_by_uid(uid).is_some_and(has)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn root_the_own_user_and_members_may() {
        let rights = Rights::new(990, Some("root"), Owners::system());
        for (peer, is_admin) in [
            (Some((0, 65534)), true),
            (Some((990, 65534)), true),
            (Some((4_000_000, 65534)), false),
            // The kernel says the group of the connection.
            (Some((4_000_000, 0)), true),
            (None, false),
        ] {
            assert_eq!(rights.caller(peer).await.is_admin, is_admin, "{peer:?}");
        }
        let nobody = Rights::new(990, Some("no group has this name"), Owners::system());
        assert!(!nobody.caller(Some((4_000_000, 0))).await.is_admin);
        assert!(
            !Rights::new(990, None, Owners::system()).caller(Some((4_000_000, 0))).await.is_admin
        );
    }

    #[tokio::test]
    async fn a_subordinate_id_is_its_owner_without_the_owners_rights() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("subuid");
        std::fs::write(&file, "990:5000000:10\n0:6000000:10\n").unwrap();
        let owners = Owners::from_file(file);
        owners.read_first().await;
        let rights = Rights::new(990, Some("root"), owners);
        // Not even by the group that the kernel reports.
        let caller = rights.caller(Some((5_000_003, 0))).await;
        assert_eq!(caller, Caller { uid: Some(990), is_admin: false });
        let caller = rights.caller(Some((6_000_003, 65534))).await;
        assert_eq!(caller, Caller { uid: Some(6_000_003), is_admin: false });
    }
}
