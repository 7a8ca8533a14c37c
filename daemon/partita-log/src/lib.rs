//! The log of the daemon's processes: lines on stderr, for which nobody waits.
//!
//! A thread of its own writes the lines. A reader of stderr that stalls or goes away costs lines,
//! never time and never the process. Lines that find [`MOST_LINES`] before them are dropped and
//! counted. The next line that is written says how many were lost.
//!
//! Lines that the file behind stderr did not take (a full disk) are counted and told the same way.
//!
//! A filter that cannot be read is named in the log, and the default holds.
//!
//! Where stderr leads to systemd's journal, lines go there as entries with fields ([`journal`]),
//! and lines of one kind are limited.

pub mod file_limit;
mod filter;
mod journal;
mod limit;
mod unwritten;

use filter::Filter;
use journal::{Journal, Sending};
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use unwritten::Counting;

/// Lines that wait for the reader of stderr.
pub const MOST_LINES: usize = 8192;

/// The log. Dropped, it writes what waits, for a second at most.
#[must_use = "the log ends with this value"]
pub struct Log {
    thread: Thread,
}

/// What writes the lines.
enum Thread {
    Stderr(#[expect(dead_code, reason = "its end writes what waits")] WorkerGuard),
    Journal(Sending),
}

impl Log {
    /// Every line from now on is about this GPU; the journal has it as a field.
    pub fn serves(&self, gpu: u16) {
        if let Thread::Journal(sending) = &self.thread {
            sending.serves(gpu);
        }
    }
}

/// The filter, and the variable that it comes from; without one that can be read, the default.
#[must_use]
pub fn filter() -> (String, Option<&'static str>) {
    let Filter { text, variable, .. } = Filter::from_environment();
    (text, variable)
}

/// Begins the log of the program of this name, with the filter of `PARTITA_LOG` or `RUST_LOG`. From
/// now on a limit on the size of files ends no process ([`file_limit::survive`]).
///
/// # Panics
/// Where the process has a log already.
pub fn init(program: &str) -> Log {
    let survives = file_limit::survive();
    let Filter { text, complaint, .. } = Filter::from_environment();
    let log = begin(program, EnvFilter::new(text));
    if let Some(complaint) = complaint {
        tracing::warn!("{complaint}");
    }
    if let Err(error) = survives {
        tracing::warn!(%error, "a file that grows over its limit would end this process");
    }
    log
}

fn begin(program: &str, filter: EnvFilter) -> Log {
    // Without a thread or a socket, stderr leads to the journal all the same.
    if journal::is_stderr()
        && let Ok((layer, sending)) = Journal::new(Path::new(journal::SOCKET), program, MOST_LINES)
    {
        tracing_subscriber::registry().with(filter).with(layer).init();
        return Log { thread: Thread::Journal(sending) };
    }
    let (lines, thread) = Lines::new(io::stderr(), MOST_LINES);
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(lines)
        .with_ansi(io::stderr().is_terminal())
        // It would write to stderr, and panic where that fails.
        .log_internal_errors(false)
        .init();
    Log { thread: Thread::Stderr(thread) }
}

/// Writes the last words of a process, if anybody reads them.
pub fn last_words(text: &str) {
    // Nobody is left to be told of a failure.
    let _ = writeln!(io::stderr(), "{text}");
}

/// Where lines go.
#[derive(Clone)]
struct Lines {
    out: NonBlocking,
    /// Lines that were dropped, lost notes among them.
    dropped: ErrorCounter,
    /// Notes of dropped lines that were dropped themselves.
    lost_notes: Arc<AtomicUsize>,
    /// Dropped lines that a note has told.
    told: Arc<AtomicUsize>,
}

impl Lines {
    fn new(to: impl Write + Send + 'static, most: usize) -> (Lines, WorkerGuard) {
        let builder = NonBlockingBuilder::default().lossy(true).buffered_lines_limit(most);
        let (out, thread) = builder.thread_name("log").finish(Counting::new(to));
        let dropped = out.error_counter();
        let (lost_notes, told) = <(Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
        (Lines { out, dropped, lost_notes, told }, thread)
    }

    /// Says how many lines were dropped since the last note.
    fn note(&mut self) {
        let all = self.dropped.dropped_lines();
        let lines = all - self.lost_notes.load(Relaxed).min(all);
        let news = lines.saturating_sub(self.told.load(Relaxed));
        if news == 0 {
            return;
        }
        let text = format!("{news} lines of this log were dropped: its reader is too slow\n");
        // A lossy writer never fails.
        let _ = self.out.write(text.as_bytes());
        if self.dropped.dropped_lines() > all {
            self.lost_notes.fetch_add(1, Relaxed);
        } else {
            self.told.store(lines, Relaxed);
        }
    }
}

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.note();
        self.out.write(line)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Lines;

    fn make_writer(&'a self) -> Lines {
        self.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// A reader that takes a line for each permission.
    struct Slow {
        may: Receiver<()>,
        read: Sender<String>,
    }

    impl Write for Slow {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.may.recv().map_err(io::Error::other)?;
            self.read.send(String::from_utf8_lossy(line).into_owned()).map_err(io::Error::other)?;
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_slow_reader_loses_lines_and_is_told_how_many() {
        let (permit, may) = channel();
        let (read, lines) = channel();
        let (mut log, _thread) = Lines::new(Slow { may, read }, 4);
        for line in 0..100 {
            log.write_all(format!("{line}\n").as_bytes()).unwrap();
        }
        // The writer may have taken its first line at any moment, and left room for a note of what
        // was dropped up to then. Another note tells of the rest.
        let (mut written, mut told) = (0, 0);
        for round in 0..20 {
            if round >= 4 {
                log.write_all(b"again\n").unwrap();
            }
            permit.send(()).unwrap();
            let line = lines.recv().unwrap();
            match line.split_once(" lines of this log were dropped") {
                Some((count, _)) => told += count.parse::<usize>().unwrap(),
                None => written += usize::from(line != "again\n"),
            }
        }
        assert!(told > 0, "nothing was dropped");
        assert_eq!(told + written, 100);
    }

    #[test]
    fn a_reader_that_has_gone_ends_nothing() {
        let (permit, may) = channel();
        drop(permit);
        let (mut log, thread) = Lines::new(Slow { may, read: channel().0 }, 4);
        for _ in 0..100 {
            log.write_all(b"line\n").unwrap();
        }
        drop(thread);
    }
}
