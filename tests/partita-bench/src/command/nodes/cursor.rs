//! Readers of events: how many they are told, and whether one that comes again with its cursor
//! misses any.

use super::{Api, ApiBenchError, Metric, WireError, io, push};
use partita_client::Session;
use std::io::{BufRead as _, BufReader};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Programs that come and go while a reader is away: each is some events.
const AWAY: usize = 5;
/// The time that the last events may take.
const SETTLE: Duration = Duration::from_millis(200);

/// The events that a stream tells until it ends.
pub(super) fn count(stream: UnixStream) -> Result<u64, ApiBenchError> {
    let mut events = 0;
    for line in BufReader::new(stream).lines() {
        events += u64::from(line.map_err(io("events"))?.starts_with("data:"));
    }
    Ok(events)
}

/// What a reader has read until it was up to date.
#[derive(Default)]
struct Read {
    /// The id of the last event.
    cursor: String,
    events: u64,
    /// Numbers that were left out, and events of the kind `lagged`.
    missed: u64,
}

/// The number in an id, which is `EPOCH-NUMBER`.
fn number(id: &str) -> Option<u64> {
    id.rsplit_once('-')?.1.parse().ok()
}

/// Comes with a cursor, and reads until the daemon has nothing older.
fn catch_up(api: &Api, cursor: &str) -> Result<Read, ApiBenchError> {
    let mut read = Read { cursor: cursor.to_owned(), ..Read::default() };
    let (mut kind, mut id) = (String::new(), String::new());
    for line in BufReader::new(api.stream(Some(cursor))?).lines() {
        let line = line.map_err(io("events"))?;
        if let Some(found) = line.strip_prefix("event: ") {
            kind = found.to_owned();
        } else if let Some(found) = line.strip_prefix("id: ") {
            id = found.to_owned();
        } else if line.is_empty() && !kind.is_empty() {
            match kind.as_str() {
                "up_to_date" => return Ok(read),
                "hello" => {}
                "lagged" => read.missed += 1,
                _ => {
                    read.events += 1;
                    if let (Some(last), Some(next)) = (number(&read.cursor), number(&id)) {
                        read.missed += next.saturating_sub(last + 1);
                    }
                    read.cursor.clone_from(&id);
                }
            }
            kind.clear();
        }
    }
    Err(ApiBenchError::Refused { request: "GET /v1/events".into(), answer: "its end".into() })
}

/// A reader that comes and goes, beside programs that do.
pub(super) fn measure(
    api: &Api,
    folder: &Path,
    rounds: usize,
    metrics: &mut Vec<Metric>,
) -> Result<(), ApiBenchError> {
    let mut cursor = catch_up(api, "0")?.cursor;
    let (mut times, mut events, mut missed) = (Vec::new(), 0, 0);
    for round in 0..rounds {
        for _ in 0..AWAY {
            drop(Session::connect(folder).map_err(WireError::from)?);
        }
        if round + 1 == rounds {
            std::thread::sleep(SETTLE);
        }
        let start = Instant::now();
        let read = catch_up(api, &cursor)?;
        times.push(start.elapsed());
        events += read.events;
        missed += read.missed;
        cursor = read.cursor;
    }
    push(metrics, "a reader comes again with its cursor", &times, None);
    metrics.push(Metric::plain("events that it is told", events as f64, ""));
    metrics.push(Metric::at_most("events that it misses", missed as f64, "", 0.0));
    let least = (rounds * AWAY * 2) as f64;
    metrics.push(Metric::at_least("events that programs made, at least", events as f64, "", least));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_numbers() {
        assert_eq!(number("64bd1f0a2c3e4-17"), Some(17));
        assert_eq!(number("0"), None);
        assert_eq!(number("64bd-x"), None);
    }
}
