//! `partita run --coverage`: the CUDA calls of a program and its children, with counts and
//! refusals.
//!
//! The report counts accesses past an allocation, where the emulated GPU permits them as a GPU
//! does. Only the daemon counts these: this process asks before the program starts and after it
//! ended.
//!
//! This process waits for the program, because it prints the counts at the end. A terminal's
//! signals reach both processes; signals to this process are passed on. The shim counts in a file
//! ([`partita_model::coverage`]): the counts survive a killed program.

use crate::api::Target;
use crate::failure::complain;
use crate::table::Table;
use partita_model::StatusReport;
use partita_model::coverage::{self, Answer, Row, VARIABLE};
use rustix::process::{Pid, Signal, kill_process};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};
use tokio::signal::unix::{SignalKind, signal};

/// Runs a command to its end and prints its calls on stderr. Returns the exit code; after a signal,
/// 128 + the signal's number, as shells do.
///
/// # Errors
/// The outer error: the counts cannot be kept or waited for. The inner error: the program cannot be
/// started.
pub fn run(mut command: Command, daemon: &Path) -> io::Result<io::Result<i32>> {
    let before = stray_accesses(daemon);
    let counts = tempfile::Builder::new().prefix("partita-calls-").tempfile()?;
    command.env(VARIABLE, counts.path());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let status = match runtime.block_on(wait(command))? {
        Ok(status) => status,
        Err(error) => return Ok(Err(error)),
    };
    complain(&report(coverage::read(&std::fs::read(counts.path())?)));
    if let Some(sentence) = strayed(stray_accesses(daemon).saturating_sub(before)) {
        complain(&sentence);
    }
    Ok(Ok(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default())))
}

/// What the daemon in this folder has counted, on all its GPUs; 0 where it does not tell.
fn stray_accesses(daemon: &Path) -> u64 {
    let Ok(status) = Target::folder(daemon).get::<StatusReport>("/v1/status") else { return 0 };
    let others = status.others.iter().map(|other| other.gpu.stray_accesses);
    status.gpu.stray_accesses + others.sum::<u64>()
}

fn strayed(accesses: u64) -> Option<String> {
    let accesses = match accesses {
        0 => return None,
        1 => "1 access of a kernel".to_owned(),
        more => format!("{more} accesses of kernels"),
    };
    Some(format!(
        "{accesses} went past an allocation, in pages that the program has mapped; a GPU lets that \
         pass, `partita run --memcheck` makes it a fault"
    ))
}

async fn wait(command: Command) -> io::Result<io::Result<ExitStatus>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    let mut first = signal(SignalKind::user_defined1())?;
    let mut second = signal(SignalKind::user_defined2())?;
    // The terminal sends these to the program, too.
    let _interrupt = signal(SignalKind::interrupt())?;
    let _quit = signal(SignalKind::quit())?;
    let mut child = match tokio::process::Command::from(command).spawn() {
        Ok(child) => child,
        Err(error) => return Ok(Err(error)),
    };
    let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
    loop {
        let received = tokio::select! {
            status = child.wait() => return status.map(Ok),
            _ = terminate.recv() => Signal::TERM,
            _ = hang_up.recv() => Signal::HUP,
            _ = first.recv() => Signal::USR1,
            _ = second.recv() => Signal::USR2,
        };
        if let Some(pid) = pid {
            // It may have ended in the meantime.
            let _ = kill_process(pid, received);
        }
    }
}

/// The calls: refused calls first, then by count.
fn report(rows: Vec<Row>) -> String {
    let mut made: Vec<Row> = rows.into_iter().filter(|row| row.calls > 0).collect();
    if made.is_empty() {
        return "the program made no CUDA call".into();
    }
    made.sort_by(|a, b| {
        let refused = |row: &Row| row.answer != Answer::Refused;
        (refused(a), std::cmp::Reverse(a.calls), &a.name).cmp(&(
            refused(b),
            std::cmp::Reverse(b.calls),
            &b.name,
        ))
    });
    let calls: u64 = made.iter().map(|row| row.calls).sum();
    let refused = made.iter().filter(|row| row.answer == Answer::Refused).count();
    let mut table = Table::new(&["CALLS", "ERRORS", "FUNCTION", "ANSWERED"]);
    for row in &made {
        table.row([
            row.calls.to_string(),
            row.errors.to_string(),
            row.name.clone(),
            row.answer.to_string(),
        ]);
    }
    let functions = made.len();
    format!(
        "{calls} CUDA calls of {functions} functions, {refused} of them not supported\n{}",
        table.render().trim_end()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_past_an_allocation_are_told() {
        assert_eq!(strayed(0), None);
        assert!(strayed(1).is_some_and(|text| text.starts_with("1 access of a kernel went past")));
        assert!(strayed(12).is_some_and(|text| text.starts_with("12 accesses of kernels went")));
        assert_eq!(stray_accesses(Path::new("/no/such/folder")), 0);
    }

    #[test]
    fn refused_functions_come_first() {
        let row =
            |name: &str, answer, calls, errors| Row { name: name.into(), answer, calls, errors };
        let text = report(vec![
            row("cuCtxSynchronize", Answer::Daemon, 2, 0),
            row("cuDeviceGet", Answer::Local, 0, 0),
            row("cuGraphCreate", Answer::Refused, 1, 1),
            row("cuLaunchKernel", Answer::Daemon, 300, 4),
        ]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "303 CUDA calls of 3 functions, 1 of them not supported");
        assert_eq!(lines[1], "CALLS  ERRORS  FUNCTION          ANSWERED");
        assert_eq!(lines[2], "1      1       cuGraphCreate     refused");
        assert_eq!(lines[3], "300    4       cuLaunchKernel    by the daemon");
        assert_eq!(lines[4], "2      0       cuCtxSynchronize  by the daemon");
        assert_eq!(lines.len(), 5);
        assert_eq!(report(Vec::new()), "the program made no CUDA call");
    }
}
