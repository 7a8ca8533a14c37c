//! Processor time of a thread, as Linux counts it (`Documentation/scheduler/sched-stats.rst`,
//! `/proc/PID/schedstat`).

use std::time::Duration;

/// The processor time of the first thread of a process since its start in seconds; 0 where the
/// process has gone or the kernel does not count.
pub fn of_first_thread(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/schedstat"));
    text.ok().and_then(|text| parse(&text)).unwrap_or(0.0)
}

/// The first of three numbers, in nanoseconds.
fn parse(text: &str) -> Option<f64> {
    let nanos = text.split_whitespace().next()?.parse().ok()?;
    Some(Duration::from_nanos(nanos).as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_number_is_the_time() {
        assert_eq!(parse("1500000000 144985630 444\n"), Some(1.5));
        assert_eq!(parse(""), None);
    }
}
