//! How long `partita-gpu` may take for an answer.
//!
//! The limit holds for the time in which `partita-gpu` could have answered: the time since the
//! question, without the waits of its answering threads for a processor. An overloaded host
//! therefore makes no answer late, but for waits in the first [`PROMPT`]. A process that is
//! stopped, sleeps or loops exceeds the limit as on an idle host, because it does not wait for a
//! processor.
//!
//! Linux counts the waits (`/proc/PID/task/TID/schedstat`, second number, in nanoseconds;
//! `Documentation/scheduler/sched-stats.rst`). On a host without this count the limit holds for the
//! whole time since the question.

use partita_wire::supervise::ANSWERING_THREAD;
use std::path::Path;
use std::time::Duration;
use tokio::time::Instant;

/// The limit of a question. `partita-gpu` answers within milliseconds, and within a second where it
/// measures the device for the answer.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// Nearly all answers come within this time, in which waits are not looked for: their counts are
/// files, and reading them takes longer than most answers.
const PROMPT: Duration = Duration::from_millis(20);

/// The shortest time between two looks at the count of waits.
const SHORTEST_LOOK: Duration = Duration::from_millis(100);

/// The outcome of `exchange` with the process `pid`; `None` where it exceeds the limit.
pub async fn in_time<T>(pid: u32, limit: Duration, exchange: impl Future<Output = T>) -> Option<T> {
    let mut exchange = std::pin::pin!(exchange);
    let start = Instant::now();
    if let Ok(outcome) = tokio::time::timeout(limit.min(PROMPT), &mut exchange).await {
        return Some(outcome);
    }
    let waited_before = waited(pid);
    let mut left = limit.saturating_sub(start.elapsed());
    while !left.is_zero() {
        let look = left.max(SHORTEST_LOOK);
        if let Ok(outcome) = tokio::time::timeout(look, &mut exchange).await {
            return Some(outcome);
        }
        left = left_of(limit, start.elapsed(), waited(pid).saturating_sub(waited_before));
    }
    None
}

/// What is left of the limit after `elapsed`, of which the process has waited `waits` for a
/// processor.
fn left_of(limit: Duration, elapsed: Duration, waits: Duration) -> Duration {
    limit.saturating_sub(elapsed.saturating_sub(waits))
}

/// The time for which the answering threads of the process have waited for a processor since they
/// began. Both threads of an answer count, because one answers after the other.
fn waited(pid: u32) -> Duration {
    waited_in(Path::new(&format!("/proc/{pid}/task")), pid)
}

fn waited_in(tasks: &Path, pid: u32) -> Duration {
    let main = waited_by(&tasks.join(pid.to_string()));
    let answering = std::fs::read_dir(tasks).into_iter().flatten().flatten().find(|task| {
        let name = std::fs::read_to_string(task.path().join("comm"));
        name.is_ok_and(|name| name.trim_end() == ANSWERING_THREAD)
    });
    main + answering.map_or(Duration::ZERO, |task| waited_by(&task.path()))
}

fn waited_by(task: &Path) -> Duration {
    let counts = std::fs::read_to_string(task.join("schedstat")).unwrap_or_default();
    let nanos = counts.split_ascii_whitespace().nth(1).and_then(|nanos| nanos.parse().ok());
    Duration::from_nanos(nanos.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_for_a_processor_do_not_count() {
        let check = |elapsed: u64, waits: u64, left: u64| {
            let [elapsed, waits, left] = [elapsed, waits, left].map(Duration::from_secs);
            assert_eq!(left_of(Duration::from_secs(10), elapsed, waits), left);
        };
        check(4, 0, 6);
        check(10, 0, 0);
        check(500, 0, 0);
        check(10, 7, 7);
        check(500, 495, 5);
        // Two threads waited at the same time.
        check(10, 18, 10);
    }

    #[test]
    fn the_waits_of_both_threads_count() {
        let folder = tempfile::tempdir().unwrap();
        for (task, name, counts) in [
            ("7", "partita-gpu\n", "100 2000 3\n"),
            ("8", "prepare\n", "1 50000 1\n"),
            ("9", "answers\n", "10 700 2\n"),
        ] {
            let task = folder.path().join(task);
            std::fs::create_dir(&task).unwrap();
            std::fs::write(task.join("comm"), name).unwrap();
            std::fs::write(task.join("schedstat"), counts).unwrap();
        }
        assert_eq!(waited_in(folder.path(), 7), Duration::from_nanos(2700));
        assert_eq!(waited_in(&folder.path().join("none"), 7), Duration::ZERO);
    }
}
