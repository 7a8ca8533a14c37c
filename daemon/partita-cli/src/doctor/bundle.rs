//! `partita doctor --bundle FILE`: one archive for a bug report.
//!
//! The archive has nothing of other users, whoever makes it: the daemon is asked with the sight of
//! an ordinary user, and of its log only what [`super::log`] lets through. It has no environment
//! and no secret. What cannot be had is listed with the reason: a dead daemon is what such archives
//! are for.

use super::log;
use crate::api::Target;
use crate::clock;
use crate::failure::{Failure, complain};
use crate::table::{Table, bytes};
use flate2::Compression;
use flate2::write::GzEncoder;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

/// The folder in the archive.
const FOLDER: &str = "partita-bundle";
/// The list of the contents, in the archive.
const CONTENTS: &str = "CONTENTS.txt";
/// The longest time for a program that is asked.
const PATIENCE: Duration = Duration::from_secs(20);
/// The longest part, in bytes.
const PART_BYTES: usize = 32 << 20;

/// What the daemon is asked: file, path, meaning.
const QUESTIONS: [(&str, &str, &str); 9] = [
    ("build.json", "/v1/build", "the daemon's version"),
    ("healthy.txt", "/-/healthy", "whether the daemon answers"),
    ("ready.txt", "/-/ready", "whether every GPU is served"),
    ("status.json", "/v1/status", "GPUs, your applications, others in sum"),
    ("config.json", "/v1/config", "the configuration in force, without entries about others"),
    ("decisions.json", "/v1/decisions", "decisions about your applications"),
    ("kernels.json", "/v1/kernels", "your kernels, their forms, and why not another"),
    ("reservations.json", "/v1/reservations", "your reservations"),
    ("metrics.txt", "/metrics", "metrics of the GPUs and of your applications"),
];

/// Units of systemd, and the properties that are asked; `Environment` is not among them.
const UNITS: [&str; 5] = [
    "partitad.service",
    "partitad.socket",
    "partitad-api.socket",
    "partita-gpu@*.service",
    "partita-gpu@*.socket",
];
const PROPERTIES: &str = "Id,LoadState,ActiveState,SubState,Result,NRestarts,MainPID,\
    ExecMainCode,ExecMainStatus,ActiveEnterTimestamp,MemoryCurrent,TasksCurrent";

/// A file of the archive, or why there is none.
struct Part {
    name: &'static str,
    meaning: &'static str,
    contents: Result<Vec<u8>, String>,
}

/// Makes the archive, and says what is in it. `found` are the doctor's findings.
pub fn make(file: &Path, found: Vec<u8>, target: &Target) -> Result<Vec<u8>, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut parts = vec![
        part("versions.txt", "versions of partita, system and driver", Ok(versions())),
        part("doctor.json", "what `partita doctor` finds", Ok(found)),
    ];
    parts.extend(asked(target));
    let (units, log) = runtime.block_on(async { (units().await, log().await) });
    parts.push(part("units.txt", "state of the units", units));
    parts.push(part("log.txt", "last lines of the log, without those about others", log));
    let contents = contents(&mut parts);
    let archive = archive(&contents, &parts)?;
    if file == Path::new("-") {
        complain(&contents);
        return Ok(archive);
    }
    write(file, &archive).map_err(|error| {
        Failure::new(format!("cannot write {}: {error}; name another file", file.display()))
    })?;
    let size = bytes(archive.len() as u64);
    let text =
        format!("{contents}\n{} has {size}: look through it before you send it.\n", file.display());
    Ok(text.into_bytes())
}

fn part(name: &'static str, meaning: &'static str, contents: Result<Vec<u8>, String>) -> Part {
    let contents = contents.and_then(|contents| match contents.len() {
        0 => Err("there is none".to_owned()),
        length if length > PART_BYTES => Err(format!("it is over {PART_BYTES} bytes long")),
        _ => Ok(contents),
    });
    Part { name, meaning, contents }
}

/// The answers of the daemon. One that has not answered once is not waited for again.
fn asked(target: &Target) -> Vec<Part> {
    let mut dead = None;
    let ask = |(name, path, meaning)| {
        let contents = match &dead {
            Some(reason) => Err(String::clone(reason)),
            None => target.get_own(path).map_err(|error| {
                if !error.is_refusal() {
                    dead = Some(error.to_string());
                }
                error.to_string()
            }),
        };
        part(name, meaning, contents)
    };
    QUESTIONS.into_iter().map(ask).collect()
}

fn versions() -> Vec<u8> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let release = read("/etc/os-release");
    let name = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    let driver = read("/proc/driver/nvidia/version");
    let lines = [
        ("partita", env!("CARGO_PKG_VERSION").to_owned()),
        ("built for", format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS)),
        ("system", name.unwrap_or("not known").trim_matches('"').to_owned()),
        ("kernel", read("/proc/sys/kernel/osrelease").trim().to_owned()),
        ("driver", driver.lines().next().unwrap_or("none is loaded").to_owned()),
        ("made at", format!("{} seconds since 1970", clock::now())),
    ];
    let lines = lines.iter().map(|(name, value)| format!("{name:<10} {value}\n"));
    lines.collect::<String>().into_bytes()
}

async fn units() -> Result<Vec<u8>, String> {
    let mut command = Command::new("systemctl");
    command.args(["show", "--no-pager", "--property", PROPERTIES]).args(UNITS);
    output(command).await
}

async fn log() -> Result<Vec<u8>, String> {
    let mut command = Command::new("journalctl");
    command.args(["--no-pager", "--output", "json", "--lines", "2000"]);
    command.args(["--unit", "partitad.service", "--unit", "partita-gpu@*.service"]);
    let lines = output(command).await?;
    let own = rustix::process::geteuid().as_raw();
    log::own_lines(&lines, own)
}

/// What a program prints.
async fn output(mut command: Command) -> Result<Vec<u8>, String> {
    let program = command.as_std().get_program().to_string_lossy().into_owned();
    command.env("LC_ALL", "C").stdin(Stdio::null()).kill_on_drop(true);
    let output = match tokio::time::timeout(PATIENCE, command.output()).await {
        Ok(Ok(output)) => output,
        Ok(Err(error)) => return Err(format!("{program}: {error}")),
        Err(_) => return Err(format!("{program} took over {} s", PATIENCE.as_secs())),
    };
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{program}: {}", said.lines().next().unwrap_or("it failed and said nothing")))
}

/// The list of the contents; files that are not there have the reason.
fn contents(parts: &mut [Part]) -> String {
    let mut table = Table::new(&["FILE", "SIZE", "WHAT"]);
    for Part { name, meaning, contents } in parts {
        let (size, what) = match contents {
            Ok(contents) => (bytes(contents.len() as u64), (*meaning).to_owned()),
            Err(reason) => ("none".to_owned(), format!("{meaning}: {reason}")),
        };
        table.row([(*name).to_owned(), size, what]);
    }
    table.render()
}

fn archive(contents: &str, parts: &[Part]) -> io::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
    let mut add = |name: &str, bytes: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(clock::now());
        archive.append_data(&mut header, format!("{FOLDER}/{name}"), bytes)
    };
    add(CONTENTS, contents.as_bytes())?;
    for Part { name, contents, .. } in parts {
        if let Ok(contents) = contents {
            add(name, contents)?;
        }
    }
    archive.into_inner()?.finish()
}

/// Writes a file that only its user reads. What was there before, a link perhaps, is replaced, but
/// no device and no pipe.
fn write(path: &Path, contents: &[u8]) -> io::Result<()> {
    crate::files::refuse_special(path)?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let new = path.with_file_name(name);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    let written = file.write_all(contents).and_then(|()| fs::rename(&new, path));
    if written.is_err() {
        drop(fs::remove_file(&new));
    }
    written
}
