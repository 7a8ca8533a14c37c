//! Asks a process of the self-test, and keeps what it finds.
//!
//! A process that says nothing for [`PATIENCE`] is ended; another one goes on after the check that
//! it was at. Findings are kept in a file for the GPU, its driver and the version of Partita; the
//! file may be deleted at any time.

use super::{Check, Finding, Habits, Told};
use crate::options::{Options, Tester};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How long a check may take, and the process to start.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long all checks may take. `partitad` waits for 60 s until a GPU is served.
const LIMIT: Duration = Duration::from_secs(25);

/// A file of findings.
#[derive(Serialize, Deserialize)]
struct Kept {
    target: String,
    findings: Vec<Finding>,
}

/// The habits of the GPU that `target` describes.
pub(crate) fn habits(options: &Options, target: &str) -> Habits {
    let Some(tester) = options.tester.as_ref().filter(|_| !options.without_self_test) else {
        return Habits::worst(options.signals);
    };
    let target = format!("{target}, partita {}", env!("CARGO_PKG_VERSION"));
    let file = options.cache.as_ref().map(|folder| path(folder, &target));
    if let Some(findings) = file.as_deref().and_then(|file| find(file, &target)) {
        return Habits::of(&findings, options.signals);
    }
    let findings = ask(tester);
    for finding in &findings {
        let Finding { check, holds, apart, micros, obstacle } = finding;
        let obstacle = obstacle.as_deref().unwrap_or("");
        tracing::info!(%check, holds, ?apart, ?micros, obstacle, "self-test");
    }
    // A check that failed by chance is tried again at the next start.
    let is_whole = findings.iter().all(|finding| finding.obstacle.is_none());
    if let Some(file) = file.filter(|_| is_whole)
        && let Err(error) = keep(&file, Kept { target, findings: findings.clone() })
    {
        tracing::warn!(%error, file = %file.display(), "findings of the self-test are not kept");
    }
    Habits::of(&findings, options.signals)
}

fn path(folder: &Path, target: &str) -> PathBuf {
    let digest = Sha256::digest(target);
    let name: String = digest[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    folder.join(format!("self-test-{name}.json"))
}

/// Findings on disk. A file that is damaged, or of another target, has none.
fn find(file: &Path, target: &str) -> Option<Vec<Finding>> {
    let kept: Kept = serde_json::from_slice(&std::fs::read(file).ok()?).ok()?;
    let answered = |check: &Check| kept.findings.iter().any(|finding| finding.check == *check);
    (kept.target == target && Check::ALL.iter().all(answered)).then_some(kept.findings)
}

fn keep(file: &Path, kept: Kept) -> std::io::Result<()> {
    let folder = file.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let mut new = tempfile::NamedTempFile::new_in(folder)?;
    new.write_all(&serde_json::to_vec(&kept)?)?;
    new.persist(file)?;
    Ok(())
}

/// Lets processes of the self-test make all checks. Each check has a finding.
fn ask(tester: &Tester) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    let begun = Instant::now();
    loop {
        let open = |check: &Check| findings.iter().all(|finding| finding.check != *check);
        let rest: Vec<Check> = Check::ALL.into_iter().filter(open).collect();
        if rest.is_empty() {
            return findings;
        }
        let obstacle = match begun.elapsed() < LIMIT {
            true => converse(tester, &rest, &mut findings),
            false => Obstacle { at: None, text: "no time was left".to_owned() },
        };
        // A process that began no check would not begin another one either.
        let lost = obstacle.at.map_or(rest, |at| vec![at]);
        for check in lost {
            if findings.iter().all(|finding| finding.check != check) {
                findings.push(Finding::failed(check, obstacle.text.clone()));
            }
        }
    }
}

/// How a process of the self-test ended.
struct Obstacle {
    /// The check that it began last.
    at: Option<Check>,
    text: String,
}

/// Runs a process for these checks.
fn converse(tester: &Tester, checks: &[Check], findings: &mut Vec<Finding>) -> Obstacle {
    let mut at = None;
    let Tester { program, arguments } = tester;
    let mut command = Command::new(program);
    command.args(arguments).arg(serde_json::to_string(checks).unwrap_or_default());
    let mut child = match command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn() {
        Ok(child) => child,
        Err(error) => {
            return Obstacle { at, text: format!("cannot start {}: {error}", program.display()) };
        }
    };
    let (tell, told) = channel();
    if let Some(output) = child.stdout.take() {
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if tell.send(line).is_err() {
                    return;
                }
            }
        });
    }
    let silence = loop {
        match told.recv_timeout(PATIENCE) {
            // Libraries may print lines of their own.
            Ok(line) => match serde_json::from_str(&line) {
                Ok(Told::Begins(check)) => at = Some(check),
                Ok(Told::Found(finding)) => findings.push(finding),
                Err(_) => {}
            },
            Err(RecvTimeoutError::Disconnected) => break None,
            Err(RecvTimeoutError::Timeout) => break Some(PATIENCE.as_secs()),
        }
    };
    let end = Instant::now() + PATIENCE;
    while silence.is_none() && matches!(child.try_wait(), Ok(None)) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    // It may have ended by itself.
    let _ = child.kill();
    let text = match (silence, child.wait()) {
        (Some(seconds), _) => format!("it did not end within {seconds} s"),
        (None, Ok(status)) if status.success() => "nothing was said of it".to_owned(),
        (None, Ok(status)) => format!("its process ended with {status}"),
        (None, Err(error)) => format!("nothing is known of its process: {error}"),
    };
    Obstacle { at, text }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that says these lines.
    fn said(script: &str) -> Vec<Finding> {
        let arguments = vec!["-c".to_owned(), script.to_owned(), "sh".to_owned()];
        ask(&Tester { program: "/bin/sh".into(), arguments })
    }

    #[test]
    fn a_process_that_dies_costs_one_check() {
        let script = "
            case $1 in
                *copies*) echo '{\"begins\":\"copies\"}'
                    echo 'a line of a library'
                    echo '{\"found\":{\"check\":\"copies\",\"holds\":true,\"micros\":7.5}}'
                    echo '{\"begins\":\"mapped\"}'
                    kill -9 $$;;
                *) for check in streams loading local-memory locking unmapping green-contexts \
                    arrays; do
                    echo \"{\\\"found\\\":{\\\"check\\\":\\\"$check\\\",\\\"holds\\\":false}}\"
                    done;;
            esac";
        let findings = said(script);
        let checks: Vec<Check> = findings.iter().map(|finding| finding.check).collect();
        assert_eq!(checks, Check::ALL);
        assert!(findings[0].holds && findings[0].micros == Some(7.5));
        let died = findings[1].obstacle.as_deref();
        assert!(died.is_some_and(|text| text.contains("signal: 9")), "{died:?}");
        assert!(findings[2..].iter().all(|found| !found.holds && found.obstacle.is_none()));
    }

    #[test]
    fn a_process_without_a_word_leaves_everything_unknown() {
        let check = |program: &str, words: &str| {
            let findings = ask(&Tester { program: program.into(), arguments: Vec::new() });
            assert_eq!(findings.len(), Check::ALL.len());
            for finding in findings {
                let obstacle = finding.obstacle.unwrap_or_default();
                assert!(obstacle.contains(words), "{program}: {obstacle}");
            }
        };
        check("/bin/true", "nothing was said of it");
        check("/bin/false", "exit status: 1");
        check("/nonexistent/partita-gpu", "cannot start /nonexistent/partita-gpu");
    }

    #[test]
    fn findings_are_kept_for_one_target() {
        let folder = tempfile::tempdir().unwrap();
        let file = path(folder.path(), "a GPU");
        assert_ne!(file, path(folder.path(), "another GPU"));
        assert_eq!(find(&file, "a GPU"), None);
        let findings: Vec<Finding> =
            Check::ALL.into_iter().map(|check| Finding::new(check, true)).collect();
        let kept = |findings| Kept { target: "a GPU".to_owned(), findings };
        keep(&file, kept(findings.clone())).unwrap();
        assert_eq!(find(&file, "a GPU"), Some(findings.clone()));
        assert_eq!(find(&file, "another GPU"), None);
        keep(&file, kept(findings[1..].to_vec())).unwrap();
        assert_eq!(find(&file, "a GPU"), None, "a check is missing");
        std::fs::write(&file, "{").unwrap();
        assert_eq!(find(&file, "a GPU"), None);
    }
}
