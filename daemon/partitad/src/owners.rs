//! The tenant of a subordinate user id: the owner of its range in `/etc/subuid`, or in a directory
//! server where `/etc/nsswitch.conf` names one under `subid:`.
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
//! thread of its own and looked up in memory. A directory tells the ranges of one user at a time,
//! by `getsubids`; the members of the group `partita` are asked for.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};
use tokio::time::{Instant, MissedTickBehavior, timeout};
use uzers::os::unix::GroupExt as _;

/// Users of a directory that are asked for, at most.
const MOST_MEMBERS: usize = 1024;
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

/// Where ranges come from.
#[derive(Debug)]
struct Sources {
    /// `/etc/subuid`.
    file: PathBuf,
    /// `/etc/nsswitch.conf`, and the program that asks what it names.
    switch: PathBuf,
    program: PathBuf,
    /// Of whom a directory is asked.
    members: fn() -> Vec<String>,
}

/// The table of owners; copies share it.
#[derive(Clone, Debug)]
pub struct Owners {
    sources: Arc<Sources>,
    ranges: Arc<RwLock<Vec<Range>>>,
}

impl Owners {
    /// The system's table, which is empty until it has been read.
    #[must_use]
    pub fn system() -> Owners {
        Owners::from_sources(Sources {
            file: "/etc/subuid".into(),
            switch: "/etc/nsswitch.conf".into(),
            program: "/usr/bin/getsubids".into(),
            members: members_of_partita,
        })
    }

    /// The table of another file, without a directory.
    #[must_use]
    pub fn from_file(file: PathBuf) -> Owners {
        let (switch, program) = (PathBuf::new(), PathBuf::new());
        Owners::from_sources(Sources { file, switch, program, members: Vec::new })
    }

    fn from_sources(sources: Sources) -> Owners {
        Owners { sources: Arc::new(sources), ranges: Arc::default() }
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
            tracing::warn!("the users of {} are looked up slowly", self.sources.file.display());
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
        let found = std::fs::metadata(&self.sources.file).ok()?;
        Some((found.modified().ok()?, found.len()))
    }

    async fn read(&self) {
        let sources = Arc::clone(&self.sources);
        let ranges = Arc::clone(&self.ranges);
        let done = tokio::task::spawn_blocking(move || {
            let file = &sources.file;
            let text = match read_text(file) {
                Ok(text) => text,
                Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
                Err(error) => {
                    tracing::warn!(%error, "cannot read {}", file.display());
                    return;
                }
            };
            let uid_of = |name: &str| uzers::get_user_by_name(name).map(|user| user.uid());
            let mut found = sources.of_directory(uid_of);
            found.extend(parse(&text, uid_of));
            *ranges.write().unwrap_or_else(PoisonError::into_inner) = found;
        });
        drop(done.await);
    }
}

impl Sources {
    /// The ranges that a directory gives; none where the system asks none.
    fn of_directory(&self, uid_of: impl Fn(&str) -> Option<u32>) -> Vec<Range> {
        let switch = std::fs::read_to_string(&self.switch).unwrap_or_default();
        if !asks_directory(&switch) {
            return Vec::new();
        }
        let mut found = Vec::new();
        for member in (self.members)().into_iter().take(MOST_MEMBERS) {
            let mut command = Command::new(&self.program);
            command.arg(&member).stdin(Stdio::null()).stderr(Stdio::null());
            match command.output() {
                // A user without ranges is a failure to the program.
                Ok(output) => {
                    let text = String::from_utf8_lossy(&output.stdout);
                    found.extend(parse(&lines_of_subuid(&text), &uid_of));
                }
                Err(error) => {
                    tracing::warn!(
                        "{}: {error}: subordinate user ids of the directory stay tenants of their \
                         own; install the package uidmap",
                        self.program.display()
                    );
                    break;
                }
            }
        }
        found
    }
}

/// Whether `nsswitch.conf` leads subordinate ids anywhere but to the file. Only the first word of
/// its line counts to the system.
fn asks_directory(switch: &str) -> bool {
    let source = |line: &str| line.trim().strip_prefix("subid:").map(|rest| rest.trim().to_owned());
    let source = switch.lines().find_map(source).unwrap_or_default();
    !matches!(source.split_whitespace().next(), None | Some("files"))
}

/// What `getsubids` says, lines of `NUMBER: OWNER START COUNT`, in the form of subuid(5).
fn lines_of_subuid(said: &str) -> String {
    let line = |line: &str| {
        let [_, owner, start, count] = line.split_whitespace().collect::<Vec<_>>()[..] else {
            return None;
        };
        Some(format!("{owner}:{start}:{count}\n"))
    };
    said.lines().filter_map(line).collect()
}

fn members_of_partita() -> Vec<String> {
    let group = uzers::get_group_by_name("partita");
    let members = group.map(|group| group.members().to_vec()).unwrap_or_default();
    members.into_iter().filter_map(|name| name.into_string().ok()).collect()
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

    #[test]
    fn the_first_source_of_nsswitch_counts() {
        for (text, expected) in [
            ("", false),
            ("passwd: files sss\n", false),
            ("subid: files\n", false),
            ("subid:\n", false),
            ("# subid: sss\nsubid:  sss\n", true),
            ("subid: sss files\n", true),
            ("subid: files sss\n", false),
        ] {
            assert_eq!(asks_directory(text), expected, "{text}");
        }
    }

    #[tokio::test]
    async fn ranges_of_a_directory_are_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let script = "#!/bin/sh\n[ \"$1\" = 4000000 ] || { echo 'no ranges' >&2; exit 1; }\n\
                      echo '0: 4000000 7000000 10'\necho '1: 4000000 7100000 5'\n";
        std::fs::write(path("getsubids"), script).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(path("getsubids"), mode).unwrap();
        std::fs::write(path("subuid"), "4000009:7200000:10\n").unwrap();
        std::fs::write(path("switch"), "subid: sss\n").unwrap();
        let with = |program: &str, switch: &str| {
            Owners::from_sources(Sources {
                file: path("subuid"),
                switch: path(switch),
                program: path(program),
                members: || vec!["4000001".into(), "4000000".into()],
            })
        };
        let owners = with("getsubids", "switch");
        owners.read_first().await;
        for (uid, owner) in [(7_000_009, 4_000_000), (7_100_000, 4_000_000), (7_200_000, 4_000_009)]
        {
            assert_eq!(owners.of(uid), owner);
        }
        assert_eq!(owners.of(7_000_010), 7_000_010);
        // Without the program, or without a directory, the file counts alone.
        for owners in [with("none", "switch"), with("getsubids", "none")] {
            owners.read_first().await;
            assert_eq!((owners.of(7_000_000), owners.of(7_200_000)), (7_000_000, 4_000_009));
        }
    }
}
