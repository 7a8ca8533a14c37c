//! A private daemon that waits for the next run of a shell session.
//!
//! When a program has ended, its keeper starts a daemon anew and hands it to the next `partita run`
//! of the same session that would start the same daemon. A run therefore gets a daemon of its own
//! that nobody has used, as without a spare, and need not wait for its start.
//!
//! Invariants: a spare serves one run. Its keeper listens on an abstract socket, whose name is that
//! of the user, the session and what makes the daemon what it is; both sides ask the system for the
//! other's user. The keeper would hold inherited descriptors open, so a process that has any beyond
//! the first three keeps no spare. A daemon that records is no spare, because it would empty the
//! recording of the run before. The spare ends with the session's leader, or when nobody wants
//! it for the time of [`KEEP`]. Whatever goes wrong, the run starts a daemon of its own.

use super::locate::{DATA_PLANE, SELF, SHIM};
use crate::failure::complain;
use partita_emu::Setup;
use partita_wire::message;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, OFlags, Stat, fstat, major, minor};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    socket_with,
};
use rustix::process::{Pid, PidfdFlags, geteuid, getpid, pidfd_open};
use std::ffi::OsString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The variable that says for how many seconds a spare waits; 0 for none.
pub const KEEP: &str = "PARTITA_KEEP";
/// The time where the variable is not set, in a session with a terminal.
const KEEP_SECONDS: u64 = 60;
/// The longest time that a run waits for its spare.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest time that a spare waits for the run to which it is promised.
const PROMISE: Duration = Duration::from_secs(60);
/// The longest time that a spare may be kept, in seconds.
const LONGEST: u64 = 7 * 24 * 3600;
/// The device number of `/dev/tty`: a process that opens this file gets its own terminal (tty(4)).
const DEV_TTY: (u32, u32) = (5, 0);
/// The longest folder of sockets, in bytes.
const MOST: usize = 4096;
/// Variables that shells change by themselves.
const OF_SHELLS: [&str; 6] = ["_", "PWD", "OLDPWD", "SHLVL", "LINES", "COLUMNS"];
/// What the system says of a process that its children inherit: files and links in `/proc/self`.
const INHERITED: [&str; 9] =
    ["cgroup", "limits", "cwd", "ns/mnt", "ns/user", "ns/pid", "ns/net", "ns/ipc", "ns/uts"];
/// Lines of `/proc/self/status` that children inherit.
const OF_STATUS: [&str; 9] = [
    "Umask:",
    "Uid:",
    "Gid:",
    "Groups:",
    "CapInh:",
    "CapEff:",
    "CapBnd:",
    "NoNewPrivs:",
    "Seccomp:",
];

/// The place in which a session keeps a spare.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// The session's leader.
    pub leader: Pid,
    /// What makes the daemon what it is.
    pub key: u64,
    /// How long the spare waits.
    pub seconds: u64,
}

impl Place {
    /// The place for `partitad` at `daemon` with `devices`; `None` where the session keeps none.
    pub fn find(daemon: &Path, devices: &[String]) -> Option<Self> {
        let seconds = match std::env::var(KEEP) {
            Ok(text) if !text.is_empty() => {
                Some(text.parse().map(|s: u64| s.min(LONGEST)).unwrap_or_else(|_| {
                    complain(&format!(
                        "{KEEP}={text} is no number of seconds: no daemon is kept; set a whole \
                         number, or 0 for none"
                    ));
                    0
                }))
            }
            _ => None,
        };
        let session = Session::own()?;
        let seconds = seconds.unwrap_or_else(|| {
            if session.shows(std::io::stderr().as_fd()) { KEEP_SECONDS } else { 0 }
        });
        let keeps = seconds > 0 && !has_more_descriptors() && !is_any_recording(devices);
        keeps.then(|| Place { leader: session.leader, key: key(daemon, devices), seconds })
    }

    fn name(&self) -> Option<SocketAddrUnix> {
        let (user, leader) = (geteuid().as_raw(), self.leader.as_raw_nonzero());
        let name = format!("partita-spare/{user}/{leader}/{:016x}", self.key);
        SocketAddrUnix::new_abstract_name(name.as_bytes()).ok()
    }

    /// Asks for the spare; returns the folder of its sockets.
    pub fn take(&self) -> Option<PathBuf> {
        // Another user may have the name, and a queue that is full.
        let socket = seqpacket(SocketFlags::NONBLOCK).ok()?;
        connect(&socket, &self.name()?).ok()?;
        if !is_own_user(&socket) {
            return None;
        }
        ioctl_fionbio(&socket, false).ok()?;
        bounded(&socket, PATIENCE).ok()?;
        let folder = message::receive(&socket, MOST).ok()?.bytes;
        let runner = pidfd_open(getpid(), PidfdFlags::empty()).ok()?;
        let stderr = std::io::stderr();
        message::send(&socket, b"run", &[runner.as_fd(), stderr.as_fd()]).ok()?;
        Some(OsString::from_vec(folder).into())
    }
}

/// The session of this process, as proc_pid_stat(5) tells it. rustix's `getsid` has no value for
/// the leader 0, which the kernel reports where the leader is outside this PID namespace.
struct Session {
    leader: Pid,
    /// The device number of the terminal; 0 for none.
    terminal: u32,
}

impl Session {
    fn own() -> Option<Self> {
        let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
        Session::parse(&stat, getpid())
    }

    /// `None` where the leader is in another PID namespace, or `/proc` is another namespace's.
    fn parse(stat: &str, own: Pid) -> Option<Self> {
        let (pid, rest) = stat.split_once(" (")?;
        let (_name, rest) = rest.rsplit_once(") ")?;
        // The fields after the name: state, ppid, pgrp, session, tty_nr.
        let mut fields = rest.split(' ').skip(3);
        let leader = Pid::from_raw(fields.next()?.parse().ok().filter(|&leader| leader >= 0)?)?;
        let terminal = fields.next()?.parse::<i32>().ok()?.cast_unsigned();
        (pid.parse() == Ok(own.as_raw_nonzero())).then_some(Session { leader, terminal })
    }

    /// Whether a user sees in the session's terminal what this process writes to `file`.
    fn shows(&self, file: BorrowedFd<'_>) -> bool {
        let (high, low) = (self.terminal >> 8 & 0xfff, self.terminal & 0xff);
        let low = low | self.terminal >> 12 & 0xf_ff00;
        let is_terminal = |stat: Stat| {
            let device = (major(stat.st_rdev), minor(stat.st_rdev));
            FileType::from_raw_mode(stat.st_mode).is_char_device()
                && [(high, low), DEV_TTY].contains(&device)
        };
        self.terminal != 0 && fstat(file).is_ok_and(is_terminal)
    }
}

/// Whether programs that this process starts inherit descriptors beyond the first three.
fn has_more_descriptors() -> bool {
    let Ok(all) = std::fs::read_dir("/proc/self/fdinfo") else { return true };
    let numbers = all.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    numbers.filter(|&number| number > 2).any(|number| {
        let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}"));
        // A descriptor without a file any more was that of the folder itself.
        let flags = text.ok().and_then(|text| {
            let line = text.lines().find_map(|line| line.strip_prefix("flags:"))?;
            u32::from_str_radix(line.trim(), 8).ok()
        });
        flags.is_some_and(|flags| flags & OFlags::CLOEXEC.bits() == 0)
    })
}

/// Whether one of the devices records what it is asked.
fn is_any_recording(devices: &[String]) -> bool {
    let records = |text: &String| Setup::parse(text).is_ok_and(|setup| setup.record.is_some());
    devices.iter().any(records)
}

/// Equal for runs that would start the same daemon; those of others are equal by chance only.
fn key(daemon: &Path, devices: &[String]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (daemon, devices).hash(&mut hasher);
    // A build or an upgrade may have replaced any of them.
    let beside = daemon.parent().unwrap_or(Path::new("/"));
    let named = std::env::var_os("PARTITA_GPU").map(PathBuf::from);
    let data_plane = named.unwrap_or_else(|| beside.join(DATA_PLANE));
    for part in [Path::new(SELF), daemon, &data_plane, &beside.join(SHIM)] {
        let file = std::fs::metadata(part).ok();
        let file = file.map(|file| (file.dev(), file.ino(), file.mtime(), file.mtime_nsec()));
        file.hash(&mut hasher);
    }
    let matters = |name: &OsString| OF_SHELLS.iter().all(|each| name != each);
    let mut variables: Vec<_> = std::env::vars_os().filter(|(name, _)| matters(name)).collect();
    variables.sort();
    variables.hash(&mut hasher);
    for name in INHERITED {
        let path = Path::new("/proc/self").join(name);
        std::fs::read(&path).ok().hash(&mut hasher);
        std::fs::read_link(&path).ok().hash(&mut hasher);
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let inherited = |line: &&str| OF_STATUS.iter().any(|name| line.starts_with(name));
    status.lines().filter(inherited).for_each(|line| line.hash(&mut hasher));
    let cpus = rustix::thread::sched_getaffinity(None).ok();
    format!("{cpus:?} {:?}", rustix::process::getpriority_process(None)).hash(&mut hasher);
    hasher.finish()
}

fn seqpacket(more: SocketFlags) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | more;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

fn bounded(socket: &OwnedFd, patience: Duration) -> Result<(), Errno> {
    set_socket_timeout(socket, Timeout::Recv, Some(patience))?;
    set_socket_timeout(socket, Timeout::Send, Some(patience))
}

/// Anybody may take an abstract name, and anybody may connect to one.
fn is_own_user(socket: &OwnedFd) -> bool {
    message::peer_user(socket).is_ok_and(|peer| peer == geteuid().as_raw())
}

/// A run that wants the spare.
#[derive(Debug)]
pub struct Caller {
    /// A pidfd of its process.
    pub runner: OwnedFd,
    /// Its stderr.
    pub stderr: OwnedFd,
}

/// A place that this process has taken.
#[derive(Debug)]
pub struct Spare {
    listener: OwnedFd,
    leader: OwnedFd,
    until: Instant,
}

impl Spare {
    /// Takes a place. `None` where the session has ended, or another process has the place.
    pub fn open(place: &Place) -> Option<Self> {
        let listener = seqpacket(SocketFlags::empty()).ok()?;
        bind(&listener, &place.name()?).ok()?;
        let leader = pidfd_open(place.leader, PidfdFlags::empty()).ok()?;
        Some(Spare { listener, leader, until: Instant::now() + Duration::from_secs(place.seconds) })
    }

    /// A descriptor that is readable when the session has ended.
    pub fn leader(&self) -> BorrowedFd<'_> {
        self.leader.as_fd()
    }

    /// Waits for a run that wants the daemon, and tells it the folder of the daemon's sockets.
    /// `None` where none has come in time, or the session or the daemon has ended.
    pub fn wait(self, daemon: BorrowedFd<'_>, folder: &Path) -> Option<Caller> {
        listen(&self.listener, 1).ok()?;
        loop {
            let left = self.until.saturating_duration_since(Instant::now());
            let mut polled = [
                PollFd::new(&self.listener, PollFlags::IN),
                PollFd::new(&self.leader, PollFlags::IN),
                PollFd::from_borrowed_fd(daemon, PollFlags::IN),
            ];
            let timeout = Timespec::try_from(left).ok()?;
            match poll(&mut polled, Some(&timeout)) {
                Err(Errno::INTR) => continue,
                Err(_) | Ok(0) => return None,
                Ok(_) => {}
            }
            if polled[1..].iter().any(|fd| !fd.revents().is_empty()) {
                return None;
            }
            if let Some(caller) = self.accept(folder) {
                return Some(caller);
            }
        }
    }

    fn accept(&self, folder: &Path) -> Option<Caller> {
        let connection = accept_with(&self.listener, SocketFlags::CLOEXEC).ok()?;
        bounded(&connection, PROMISE).ok()?;
        if !is_own_user(&connection) {
            return None;
        }
        message::send(&connection, folder.as_os_str().as_bytes(), &[]).ok()?;
        let mut message = message::receive(&connection, MOST).ok()?;
        let [runner, stderr] = message.take_fds().ok()?;
        Some(Caller { runner, stderr })
    }
}

/// The place that options of the keeper name.
pub fn place_of(options: &[u64]) -> Option<Place> {
    let &[leader, key, seconds] = options else { return None };
    let leader = Pid::from_raw(i32::try_from(leader).ok()?)?;
    Some(Place { leader, key, seconds })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_that_record_are_known() {
        let check = |devices: &[&str], expected: bool| {
            let devices: Vec<String> = devices.iter().map(|text| (*text).to_owned()).collect();
            assert_eq!(is_any_recording(&devices), expected, "{devices:?}");
        };
        check(&["emu", "emu:h200,timing=off,record=a.rec"], true);
        check(&["emu,record=a.rec,weak"], true);
        check(&["emu", "emu:./record=a,weak"], false);
    }

    #[test]
    fn a_session_is_known_where_its_leader_is_in_this_namespace() {
        let own = Pid::from_raw(71).unwrap();
        let parse =
            |stat| Session::parse(stat, own).map(|it| (it.leader.as_raw_pid(), it.terminal));
        assert_eq!(parse("71 (a) (b 1 2) S 70 71 40 34816 71 4194304 0"), Some((40, 34816)));
        assert_eq!(parse("71 (a) S 0 0 0 0 -1 4194304 0"), None, "the leader is elsewhere");
        assert_eq!(parse("9 (a) S 70 71 40 34816 71 0"), None, "another namespace's /proc");
        for broken in ["", "71", "71 (a) S 70 71", "71 (a) S 70 71 -4 0", "71 (a) S 1 1 x 0"] {
            assert_eq!(parse(broken), None, "{broken}");
        }
    }
}
