//! `partita doctor`: what this machine lacks for Partita, with the remedy for each finding; and one
//! archive with all that a bug report needs ([`bundle`]).

mod bundle;
mod log;

use crate::api::{ApiError, Target};
use crate::failure::Failure;
use crate::run::locate;
use crate::sockets::{self, Probe};
use crate::state_dir::state_dir;
use crate::table::Table;
use clap::Args;
use partita_cuda_device::doctor::{Finding, Places, Verdict, examine};
use partita_model::{GpuNumber, StatusReport};
use partita_wire::{Layout, Sizes};
use rustix::fs::{MemfdFlags, memfd_create};
use serde::Serialize;
use serde::de::IgnoredAny;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  partita doctor
      list all checks, and the remedy for each that fails
  partita doctor --json | jq '.findings[] | select(.verdict == \"trouble\")'
      only the checks that fail, as JSON
  partita doctor --bundle partita.tar.gz
      also write an archive for a bug report, and list what is in it; nothing of other users, no \
      environment, no secret; a daemon that is dead is no obstacle
  sudo partita doctor --bundle partita.tar.gz
      the same with the daemon's log, which only root and members of group systemd-journal read
  tar -xzOf partita.tar.gz partita-bundle/doctor.json
      look into it

Exit codes: 0 every check passes or is only a note, or the archive is written; 1 a check fails, or
the archive cannot be written.";

/// Addresses that a session reserves in the data plane, in bytes.
const ADDRESSES: u64 = 64 << 30;

/// Check what Partita needs on this machine, and name the remedies.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct DoctorArgs {
    /// Print JSON.
    #[arg(long)]
    json: bool,

    /// Write an archive for a bug report (tar, gzip), and list what is in it; `-` is stdout.
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    bundle: Option<PathBuf>,

    #[command(flatten)]
    target: Target,
}

/// Everything that was found.
#[derive(Serialize)]
struct Report {
    verdict: Verdict,
    findings: Vec<Finding>,
}

impl DoctorArgs {
    /// Looks.
    pub fn execute(self) -> Result<Vec<u8>, Failure> {
        let mut findings = examine(&Places::default());
        let daemon = daemon(&self.target);
        let answers = daemon.verdict == Verdict::Fine;
        findings.extend([shim(), daemon, shared_memory(), addresses(), state()]);
        // The archive has the daemon's own words.
        if answers && self.bundle.is_none() {
            findings.extend(limits(&self.target));
        }
        let verdict = findings.iter().map(|finding| finding.verdict).max().unwrap_or(Verdict::Fine);
        let report = Report { verdict, findings };
        if let Some(file) = &self.bundle {
            return bundle::make(file, serde_json::to_vec_pretty(&report)?, &self.target);
        }
        let text = if self.json { serde_json::to_string(&report)? + "\n" } else { shown(&report) };
        if verdict == Verdict::Trouble {
            return Err(Failure::new("a check fails; the remedies are listed above")
                .after(text.into_bytes()));
        }
        Ok(text.into_bytes())
    }
}

fn shown(report: &Report) -> String {
    let mut table = Table::new(&["CHECK", "", "FOUND"]);
    for finding in &report.findings {
        let verdict = match finding.verdict {
            Verdict::Fine => "ok",
            Verdict::Note => "note",
            Verdict::Trouble => "TROUBLE",
        };
        table.row([finding.check.clone(), verdict.to_owned(), finding.found.clone()]);
    }
    let mut text = table.render();
    for finding in &report.findings {
        if let Some(remedy) = &finding.remedy {
            text += &format!("\n{}: {remedy}\n", finding.check);
        }
    }
    text
}

/// The folders that may hold Partita's parts.
fn part_folders() -> Vec<PathBuf> {
    let own = std::env::current_exe().unwrap_or_default();
    locate::part_folders(&own, std::env::var_os(locate::LIB_DIR))
}

/// The library that programs load in place of the driver's.
fn shim() -> Finding {
    let folders = part_folders();
    match locate::part(locate::SHIM, &folders) {
        Ok(path) => Finding::fine("shim", path.display().to_string()),
        Err(_) => Finding::trouble(
            "shim",
            format!("no {} in {}", locate::SHIM, sockets::list(&folders)),
            locate::remedy(locate::SHIM),
        ),
    }
}

/// A daemon that serves, or can be started.
fn daemon(target: &Target) -> Finding {
    const CHECK: &str = "daemon";
    let served = target.folders();
    for folder in &served {
        match sockets::probe(folder) {
            Probe::Answers => {
                return match Target::folder(folder).get_soon::<IgnoredAny>("/v1/status") {
                    Err(error @ ApiError::Broken { .. }) => {
                        let remedy = "look at its log (`journalctl -u partitad`), and restart it \
                            if it hangs";
                        Finding::trouble(CHECK, error.to_string(), remedy)
                    }
                    _ => Finding::fine(CHECK, format!("serves in {}", folder.display())),
                };
            }
            Probe::Denied(error) => {
                return Finding::trouble(
                    CHECK,
                    format!("you may not connect in {}: {error}", folder.display()),
                    "join the group of its socket (Debian: `adduser USER partita`), log in again",
                );
            }
            Probe::Absent => {}
        }
    }
    let none = format!("none serves in {}", sockets::list(&served));
    let folders = part_folders();
    let Ok(partitad) = locate::part(locate::DAEMON, &folders) else {
        let found = format!("{none}, and no {} in {}", locate::DAEMON, sockets::list(&folders));
        return Finding::trouble(CHECK, found, locate::remedy(locate::DAEMON));
    };
    // partitad looks for it beside itself first, then in PATH.
    let beside = partitad.with_file_name(locate::DATA_PLANE);
    let path = std::env::var_os("PATH");
    let named = std::env::var_os("PARTITA_GPU").is_some_and(|name| !name.is_empty());
    if !named
        && !beside.is_file()
        && locate::program(locate::DATA_PLANE.as_ref(), path.as_deref()).is_err()
    {
        let found = format!("{none}, and neither {} nor PATH has it", beside.display());
        return Finding::trouble(CHECK, found, locate::remedy(locate::DATA_PLANE));
    }
    Finding::note(
        CHECK,
        format!("{none}; `partita run` starts a private one ({})", partitad.display()),
        "start one for all users with `systemctl enable --now partitad`",
    )
}

/// What the daemon has found out about the GPUs that it serves.
fn limits(target: &Target) -> Vec<Finding> {
    let Ok(report) = target.get_soon::<StatusReport>("/v1/status") else { return Vec::new() };
    let others = report.others.iter().map(|other| &other.gpu);
    let gpus = [&report.gpu].into_iter().chain(others);
    let named = gpus.flat_map(|gpu| gpu.limits.iter().map(|limit| (gpu.number, limit)));
    let note = |(number, limit): (GpuNumber, &String)| {
        let remedy = "another driver may lift it, and each new driver is tried; everything runs \
            without it";
        Finding::note(format!("limit of {number}"), limit, remedy)
    };
    named.map(note).collect()
}

/// The size of the largest session's memory file, in bytes. Little of it is ever memory.
fn session_bytes() -> u64 {
    Layout::new(Sizes::default()).map_or(0, |layout| layout.total())
}

/// Sessions live in sealed memory files.
fn shared_memory() -> Finding {
    const CHECK: &str = "shared memory";
    let bytes = session_bytes();
    let made = memfd_create("partita-doctor", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .and_then(|file| rustix::fs::ftruncate(&file, bytes).map(|()| file))
        .and_then(|file| rustix::io::pwrite(&file, &[1], bytes - 1));
    let mib = bytes >> 20;
    match made {
        Ok(_) => Finding::fine(CHECK, format!("sealed memory files of {mib} MiB can be made")),
        Err(error) => Finding::trouble(
            CHECK,
            format!("no memory file of {mib} MiB can be made: {error}"),
            "allow memfd_create (kernel, seccomp), and files of that size (`ulimit -f`, \
             `LimitFSIZE=` of partita-gpu's service); little of such a file takes memory",
        ),
    }
}

/// Sessions take addresses, not memory.
fn addresses() -> Finding {
    const CHECK: &str = "address space";
    match rustix::process::getrlimit(rustix::process::Resource::As).current {
        Some(bytes) if bytes < ADDRESSES => Finding::trouble(
            CHECK,
            format!("limited to {bytes} bytes"),
            "lift the limit for programs and the daemon: `ulimit -v unlimited`",
        ),
        _ => Finding::fine(CHECK, "not limited below what a session takes"),
    }
}

/// Where machine code and measurements are kept.
fn state() -> Finding {
    const CHECK: &str = "state folder";
    let remedy = "name one that can be written to with PARTITA_STATE_DIR; without it machine code \
        is compiled at every start";
    let Some(folder) = state_dir() else {
        return Finding::note(CHECK, "there is none", remedy);
    };
    let writable =
        std::fs::create_dir_all(&folder).and_then(|()| tempfile::NamedTempFile::new_in(&folder));
    match writable {
        Ok(_) => Finding::fine(CHECK, folder.display().to_string()),
        Err(error) => Finding::note(CHECK, format!("{}: {error}", folder.display()), remedy),
    }
}
