//! Each part of the benchmark in a process of its own, with a limit.
//!
//! A part may end the GPU's context, or hang. The next part begins in any case, each result is
//! printed when its part ends, and a part without a result is a line that says why.

use flate2::Compression;
use flate2::write::GzEncoder;
use partita_cli::failure::Failure;
use partita_cli::progress::Bar;
use partita_cli::report::Report;
use partita_cli::run::locate::SELF;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Serialize;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The pause between two looks at a part's process.
const PAUSE: Duration = Duration::from_millis(20);
/// How a process begins its last words where nothing can be measured at all.
const NO_GPU: &str = "no GPU: ";
/// Commands that tell what machine it is. What is missing stays out.
const MACHINE: [&[&str]; 4] =
    [&["uname", "-a"], &["nvidia-smi"], &["nvidia-smi", "-q"], &["lscpu"]];

/// What is measured, and what becomes of it.
pub(super) struct Each {
    /// The device's text.
    pub(super) device: String,
    /// Whether to measure less.
    pub(super) quick: bool,
    /// How long a part may take.
    pub(super) limit: Duration,
    /// The folder for reports.
    pub(super) out: Option<PathBuf>,
    /// The file for everything.
    pub(super) archive: Option<PathBuf>,
    /// Whether to print JSON.
    pub(super) json: bool,
}

/// A part without a result.
#[derive(Serialize)]
struct Failed<'a> {
    bench: String,
    device: &'a str,
    /// The last words, or what became of the process.
    failure: String,
    seconds: f64,
}

impl Each {
    /// Measures the parts of these names, and prints each result.
    pub(super) fn measure(&self, parts: &[String]) -> Result<Vec<u8>, Failure> {
        let kept = TempDir::new()?;
        let place = |file: &PathBuf| {
            let opened = File::create(file);
            opened.map_err(|error| Failure::new(format!("--archive {}: {error}", file.display())))
        };
        // A file that cannot be written is told before minutes of measuring.
        let packed = self.archive.as_ref().map(place).transpose()?;
        if packed.is_some() {
            tell_machine(kept.path())?;
        }
        let mut failed = Vec::new();
        let mut bar = Bar::new("gpu", "parts");
        for (index, part) in parts.iter().enumerate() {
            let start = Instant::now();
            let messages = kept.path().join(format!("{part}.stderr.txt"));
            let (bench, json, table) = match self.part(part, &messages)? {
                Ok(report) => {
                    (report.bench.clone(), serde_json::to_string(&report)?, report.table())
                }
                Err(reason) if reason.starts_with(NO_GPU) => return Err(Failure::new(reason)),
                Err(failure) => {
                    let seconds = start.elapsed().as_secs_f64();
                    let bench = format!("gpu-{part}");
                    let table = format!("{bench} FAILED after {seconds:.1} s: {failure}\n");
                    let row =
                        Failed { bench: bench.clone(), device: &self.device, failure, seconds };
                    failed.push(part.as_str());
                    (bench, serde_json::to_string(&row)?, table)
                }
            };
            self.print(if self.json { &json } else { &table })?;
            let folders = self.out.iter().map(PathBuf::as_path).chain([kept.path()]);
            for folder in folders {
                std::fs::create_dir_all(folder)?;
                std::fs::write(folder.join(format!("{bench}.json")), &json)?;
            }
            bar.step(index + 1, parts.len(), &bench);
        }
        bar.end();
        if let Some(file) = packed {
            archive(kept.path(), file)?;
        }
        if failed.is_empty() {
            return Ok(Vec::new());
        }
        let (count, of, names) = (failed.len(), parts.len(), failed.join(", "));
        Err(Failure::new(format!("{count} of {of} parts failed: {names}")))
    }

    fn print(&self, text: &str) -> Result<(), Failure> {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{text}")?;
        out.flush()?;
        Ok(())
    }

    /// Measures a part. The inner error says why there is no result.
    fn part(&self, name: &str, messages: &Path) -> Result<Result<Report, String>, Failure> {
        let answer = messages.with_extension("out");
        let mut command = Command::new(SELF);
        command.arg0("partita-bench");
        command.args(["gpu", "--here", "--part", name, "--device", &self.device]);
        if self.quick {
            command.arg("--quick");
        }
        // A group of its own: whatever the part has started ends with it.
        command.stdin(Stdio::null()).process_group(0);
        let mut child =
            command.stdout(File::create(&answer)?).stderr(File::create(messages)?).spawn()?;
        let ended = self.wait(&mut child)?;
        let text = std::fs::read_to_string(&answer)?;
        std::fs::remove_file(&answer)?;
        let words = String::from_utf8_lossy(&std::fs::read(messages)?).into_owned();
        let last = words.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
        let last = last.trim_start_matches("partita: ");
        Ok(match ended {
            None => Err(format!("it took more than {} s (--limit)", self.limit.as_secs())),
            Some(status) if status.success() => Ok(serde_json::from_str(&text)?),
            Some(_) if last.starts_with(NO_GPU) => Err(last.to_owned()),
            Some(status) => Err(format!("{status}; its last words: {last}")),
        })
    }

    /// Waits for a part's process. `None`: it was ended at its limit.
    fn wait(&self, child: &mut Child) -> Result<Option<ExitStatus>, Failure> {
        let start = Instant::now();
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(Some(status));
            }
            if start.elapsed() > self.limit {
                let group = Pid::from_child(child);
                // It may have ended by itself meanwhile.
                let _ = kill_process_group(group, Signal::KILL);
                child.wait()?;
                return Ok(None);
            }
            std::thread::sleep(PAUSE);
        }
    }
}

/// Writes what the machine says of itself.
fn tell_machine(folder: &Path) -> Result<(), Failure> {
    let mut text = String::new();
    for command in MACHINE {
        let output = Command::new(command[0]).args(&command[1..]).stdin(Stdio::null()).output();
        let Ok(output) = output else { continue };
        let said = String::from_utf8_lossy(&output.stdout);
        text += &format!("$ {}\n{said}\n", command.join(" "));
    }
    std::fs::write(folder.join("machine.txt"), text)?;
    Ok(())
}

/// Packs a folder.
fn archive(folder: &Path, file: File) -> std::io::Result<()> {
    let packed = GzEncoder::new(file, Compression::default());
    let mut builder = tar::Builder::new(packed);
    builder.append_dir_all("gpu", folder)?;
    builder.into_inner()?.finish()?.flush()
}
