//! Threads of a test that are other users to the daemon.
//!
//! The kernel reports the user of the thread that connects. A thread of root can become any user;
//! without root such tests say so and check nothing.

use super::{DEVICE, Daemon};
use rustix::process::{Uid, geteuid};
use rustix::thread::set_thread_res_uid;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

/// A daemon that every user may connect to; `None` where this test cannot be other users.
pub(crate) fn open_daemon(more: &[&str]) -> Option<Daemon> {
    open_daemon_on(DEVICE, more)
}

/// As [`open_daemon`], on this device.
pub(crate) fn open_daemon_on(device: &str, more: &[&str]) -> Option<Daemon> {
    if !geteuid().is_root() {
        eprintln!("SKIPPED: only root can be other users; run this test as root");
        return None;
    }
    let mode = ["--policy", "even", "--socket-mode", "0666"];
    let daemon = Daemon::serving(device, &[], &[&mode[..], more].concat());
    std::fs::set_permissions(daemon.folder.path(), Permissions::from_mode(0o755)).unwrap();
    Some(daemon)
}

/// Acts as this user.
pub(crate) fn as_user<T: Send>(uid: u32, act: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let user = Uid::from_raw(uid);
            set_thread_res_uid(user, user, user).unwrap();
            act()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
