//! What a job has had of the GPU, as a line for its `AdminComment`.
//!
//! Slurm takes a comment of a running job only, so the line is written when a step ends, by the
//! process that has started the step: the batch step of a job with a script, every step of a job
//! without one. The steps inside a script write nothing, because a script may have thousands.

use partita_model::JobUsage;
use std::io;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long `scontrol` may take; the job's end waits for it.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);

/// The line: `partita: 12.345 SM-seconds, 87.0 % of its speed alone`.
pub(crate) fn line(used: &JobUsage) -> String {
    let sm_seconds = seconds(used.sm_ns);
    let speed = match used.compared_ns {
        0 => "speed alone not known".to_owned(),
        compared => {
            let part = seconds(used.alone_ns) / seconds(compared);
            format!("{:.1} % of its speed alone", 100.0 * part)
        }
    };
    format!("partita: {sm_seconds:.3} SM-seconds, {speed}")
}

#[expect(clippy::cast_precision_loss, reason = "2^53 ns are a hundred days, and then 1 in 2^53")]
fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

/// Gives a job this comment.
pub(crate) fn comment(job: u32, line: &str) -> io::Result<()> {
    let mut command = Command::new("scontrol");
    command.args(["update", &format!("JobId={job}"), &format!("AdminComment={line}")]);
    wait(command)
}

/// Runs a command to its end, and no longer than [`PATIENCE`].
fn wait(mut command: Command) -> io::Result<()> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    let begun = Instant::now();
    loop {
        match child.try_wait()? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(io::Error::other(format!("scontrol ended with {status}"))),
            None if begun.elapsed() < PATIENCE => std::thread::sleep(PAUSE),
            None => {
                child.kill()?;
                child.wait()?;
                let text = format!("scontrol took longer than {} s", PATIENCE.as_secs());
                return Err(io::Error::other(text));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_is_known() {
        let used = JobUsage { sm_ns: 12_345_000_000, compared_ns: 0, alone_ns: 0 };
        assert_eq!(line(&used), "partita: 12.345 SM-seconds, speed alone not known");
        let used = JobUsage { compared_ns: 2_000, alone_ns: 1_500, ..used };
        assert_eq!(line(&used), "partita: 12.345 SM-seconds, 75.0 % of its speed alone");
    }

    #[test]
    fn a_command_is_waited_for_and_not_for_ever() {
        let of = |program: &str, arguments: &[&str]| {
            let mut command = Command::new(program);
            command.args(arguments);
            wait(command)
        };
        assert!(of("true", &[]).is_ok());
        assert!(of("false", &[]).unwrap_err().to_string().contains("exit status: 1"));
        assert!(of("/no/such/program", &[]).is_err());
        let begun = Instant::now();
        assert!(of("sleep", &["60"]).unwrap_err().to_string().contains("longer than 5 s"));
        assert!(begun.elapsed() < Duration::from_secs(30));
    }
}
