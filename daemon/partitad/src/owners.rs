//! Who is accounted for a subordinate user id: the owner of its range in `/etc/subuid`.
//!
//! The kernel reports the user of a connection as this user namespace knows it. Root of a user's
//! container is the user itself. Every other user of the container has one of the subordinate ids
//! that `/etc/subuid` gives its owner, as a rule 65,536. Each of these would be a tenant, with
//! limits of its own: the owner could have 65,536 times what one user may have, and a reservation
//! for the owner's job would not hold in the job's container. So the owner is the tenant.
//!
//! Invariants: the owner's *rights* do not follow. The kernel gives a subordinate id less than its
//! owner has, so [`crate::rights`] makes no administrator of one. A range of root stays as it is,
//! because no right and no limit of root must reach a container that was kept apart from root; so
//! does a range of a name that no user has, such as `containers`, whose parts belong to different
//! containers.
//!
//! Names come from the user database, which may ask a directory server, so the table is made on a
//! thread of its own and looked up in memory.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};
use tokio::time::{Instant, MissedTickBehavior, timeout};

const SYSTEM_FILE: &str = "/etc/subuid";
/// How often the file is looked at.
const LOOK: Duration = Duration::from_secs(10);
/// How often names are looked up again, though the file is the same.
const REMEMBERED: Duration = Duration::from_secs(300);
/// How long the daemon's start waits for the names.
const FIRST_LIMIT: Duration = Duration::from_secs(5);
/// The longest file that is read, in bytes: some 50,000 users.
const LONGEST_FILE: u64 = 4 << 20;

/// A range of subordinate ids with an owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Range {
    start: u32,
    count: u32,
    owner: u32,
}

/// When the file was changed, and its length.
type Stamp = (SystemTime, u64);

/// What the file was like when it was read.
struct Look {
    stamp: Option<Stamp>,
    at: Instant,
}

/// The table of owners; copies share it.
#[derive(Clone, Debug)]
pub struct Owners {
    file: Arc<Path>,
    ranges: Arc<RwLock<Vec<Range>>>,
}

impl Owners {
    /// The system's table, which is empty until it has been read.
    #[must_use]
    pub fn system() -> Owners {
        Owners::from_file(SYSTEM_FILE.into())
    }

    /// The table of another file.
    #[must_use]
    pub fn from_file(file: PathBuf) -> Owners {
        Owners { file: file.into(), ranges: Arc::default() }
    }

    /// The user that is accounted for this user: the owner of a subordinate id, else itself.
    #[must_use]
    pub fn of(&self, uid: u32) -> u32 {
        let ranges = self.ranges.read().unwrap_or_else(PoisonError::into_inner);
        let of = |range: &&Range| uid.checked_sub(range.start).is_some_and(|at| at < range.count);
        ranges.iter().find(of).map_or(uid, |range| range.owner)
    }

    /// Reads the file before the first connection. Where the names take too long, the table comes
    /// later.
    pub async fn read_first(&self) {
        if timeout(FIRST_LIMIT, self.read()).await.is_err() {
            tracing::warn!("the users of {} are looked up slowly", self.file.display());
        }
    }

    /// Reads the file again whenever it has changed, until it is dropped.
    pub async fn follow(&self) {
        let mut looks = tokio::time::interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last = Look { stamp: self.stamp(), at: Instant::now() };
        loop {
            looks.tick().await;
            self.look(&mut last).await;
        }
    }

    async fn look(&self, last: &mut Look) {
        let stamp = self.stamp();
        if stamp != last.stamp || last.at.elapsed() >= REMEMBERED {
            *last = Look { stamp, at: Instant::now() };
            self.read().await;
        }
    }

    fn stamp(&self) -> Option<Stamp> {
        let found = std::fs::metadata(&self.file).ok()?;
        Some((found.modified().ok()?, found.len()))
    }

    async fn read(&self) {
        let file = Arc::clone(&self.file);
        let ranges = Arc::clone(&self.ranges);
        let done = tokio::task::spawn_blocking(move || {
            let text = match read_text(&file) {
                Ok(text) => text,
                Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
                Err(error) => {
                    tracing::warn!(%error, "cannot read {}", file.display());
                    return;
                }
            };
            let found = parse(&text, |name| uzers::get_user_by_name(name).map(|user| user.uid()));
            *ranges.write().unwrap_or_else(PoisonError::into_inner) = found;
        });
        drop(done.await);
    }
}

fn read_text(file: &Path) -> io::Result<String> {
    let bytes = std::fs::metadata(file)?.len();
    if bytes > LONGEST_FILE {
        let text = format!("it has {bytes} bytes, and {LONGEST_FILE} at most are read");
        return Err(io::Error::other(text));
    }
    std::fs::read_to_string(file)
}

/// The ranges of a file in the form of subuid(5), lines of `OWNER:START:COUNT`. A line that has
/// another form means nothing to the system either.
fn parse(text: &str, uid_of: impl Fn(&str) -> Option<u32>) -> Vec<Range> {
    let range = |line: &str| {
        let [owner, start, count] = line.split(':').collect::<Vec<_>>()[..] else { return None };
        let owner = uid_of(owner).or_else(|| owner.parse().ok()).filter(|owner| *owner != 0)?;
        Some(Range { start: start.parse().ok()?, count: count.trim_end().parse().ok()?, owner })
    };
    text.lines().filter_map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owners(text: &str) -> Owners {
        let uid_of = |name: &str| match name {
            "root" => Some(0),
            "alice" => Some(1000),
            "bob" => Some(1001),
            _ => None,
        };
        let owners = Owners::from_file("/dev/null".into());
        *owners.ranges.write().unwrap() = parse(text, uid_of);
        owners
    }

    #[test]
    fn a_range_belongs_to_its_owner() {
        let owners = owners("alice:100000:65536\nbob:165536:65536\n1002:300000:10\n");
        for (uid, owner) in [
            (0, 0),
            (1000, 1000),
            (99_999, 99_999),
            (100_000, 1000),
            (165_535, 1000),
            (165_536, 1001),
            (231_072, 231_072),
            (300_009, 1002),
            (300_010, 300_010),
            (u32::MAX, u32::MAX),
        ] {
            assert_eq!(owners.of(uid), owner, "{uid}");
        }
    }

    #[test]
    fn roots_ranges_and_those_of_nobody_stay_as_they_are() {
        let owners = owners(
            "root:100000:65536\n0:200000:65536\ncontainers:300000:65536\n# alice:1:2\n\nalice:5\n\
             alice:400000:-1\nalice:x:10\nalice:4294967290:65536\n",
        );
        for uid in [100_000, 200_000, 300_000, 1, 5, 400_000] {
            assert_eq!(owners.of(uid), uid);
        }
        // The end of a range past the last id overflows nowhere.
        assert_eq!(owners.of(u32::MAX), 1000);
    }

    #[tokio::test]
    async fn a_changed_file_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("subuid");
        let owners = Owners::from_file(file.clone());
        owners.read_first().await;
        let mut last = Look { stamp: owners.stamp(), at: Instant::now() };
        for (text, owner) in [
            ("4000000:7000000:10\n", 4_000_000),
            ("4000000:7000001:10\n4000001:7000000:10\n", 4_000_001),
        ] {
            assert_ne!(owners.of(7_000_000), owner);
            std::fs::write(&file, text).unwrap();
            owners.look(&mut last).await;
            assert_eq!(owners.of(7_000_000), owner);
        }
        std::fs::remove_file(&file).unwrap();
        owners.look(&mut last).await;
        assert_eq!(owners.of(7_000_000), 7_000_000, "nobody owns it any more");
    }
}
