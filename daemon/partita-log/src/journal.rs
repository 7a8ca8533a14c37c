//! The log in systemd's journal: one entry for each line, with fields that can be searched.
//!
//! `journalctl PARTITA_TENANT=1000` finds what one user did. Each field of a line becomes
//! `PARTITA_NAME`. The text has them, too, so that it reads as on stderr. Lines of one kind are
//! limited ([`crate::limit`]).
//!
//! A thread of its own sends the entries: a journal that stalls or goes away costs lines, never
//! time and never the process. The crates that speak the journal's protocol send on the caller's
//! thread and wait there, so the protocol is here.
//!
//! Invariant: values are sent with their length, so no value can look like another field.

use crate::limit::{Kind, LeftOut, Limiter};
use std::fmt::{Debug, Write as _};
use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// The journal's socket.
pub const SOCKET: &str = "/run/systemd/journal/socket";

/// The variable by which systemd says which stream leads to the journal.
const STREAM: &str = "JOURNAL_STREAM";
/// The longest text, and the longest value of a field, in bytes.
const TEXT_BYTES: usize = 32 << 10;
const VALUE_BYTES: usize = 4 << 10;
/// The longest text in a line about lines that were left out, in bytes.
const EXCERPT_BYTES: usize = 200;
/// The fields of a line.
const FIELDS: usize = 24;
/// How long the end of the process waits for entries.
const LAST_WAIT: Duration = Duration::from_secs(1);
/// The longest sleep of the sending thread.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);

/// Whether this process's stderr leads to the journal.
pub fn is_stderr() -> bool {
    let Ok(stream) = std::env::var(STREAM) else { return false };
    rustix::fs::fstat(io::stderr())
        .is_ok_and(|found| stream == format!("{}:{}", found.st_dev, found.st_ino))
}

/// Where lines go.
pub struct Journal {
    entries: SyncSender<Order>,
    shared: Arc<Shared>,
    /// The name of the program.
    program: String,
}

/// What the end of the process waits for.
pub struct Sending {
    entries: SyncSender<Order>,
    shared: Arc<Shared>,
    ended: Receiver<()>,
}

#[derive(Default)]
struct Shared {
    limiter: Mutex<Limiter>,
    /// Entries that were lost, and not told yet.
    lost: AtomicUsize,
    ending: AtomicBool,
    /// The GPU that the process serves.
    gpu: OnceLock<u16>,
}

enum Order {
    Entry(Vec<u8>),
    /// Look at the limits, or at the end.
    Look,
}

impl Journal {
    /// A journal behind this socket, for a program of this name; at most `most` entries wait.
    ///
    /// # Errors
    /// Where there is no socket to send by, or no thread.
    pub fn new(socket: &Path, program: &str, most: usize) -> io::Result<(Journal, Sending)> {
        let (entries, orders) = sync_channel(most);
        let (end, ended) = sync_channel(1);
        let shared = Arc::<Shared>::default();
        let sender = Sender {
            socket: UnixDatagram::unbound()?,
            path: socket.to_owned(),
            program: program.to_owned(),
            shared: Arc::clone(&shared),
        };
        std::thread::Builder::new().name("log".into()).spawn(move || {
            sender.run(&orders);
            drop(end);
        })?;
        let sending = Sending { entries: entries.clone(), shared: Arc::clone(&shared), ended };
        Ok((Journal { entries, shared, program: program.to_owned() }, sending))
    }

    fn send(&self, entry: Vec<u8>) {
        if self.entries.try_send(Order::Entry(entry)).is_err() {
            self.shared.lost.fetch_add(1, Relaxed);
        }
    }
}

impl<S: Subscriber> Layer<S> for Journal {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut line = Line::default();
        event.record(&mut line);
        let metadata = event.metadata();
        let kind = Kind {
            place: metadata.callsite(),
            tenant: line.value("TENANT"),
            error: line.value("ERROR"),
            at: line.value("AT"),
        };
        let level = *metadata.level();
        let mut limiter = self.shared.limiter();
        let was_open = limiter.next_end().is_none();
        let admitted = limiter.admits(kind, level, Instant::now(), || line.shown());
        let is_first_left_out = was_open && limiter.next_end().is_some();
        drop(limiter);
        if admitted {
            self.send(line.entry(metadata, &self.program, self.shared.gpu.get()));
        } else if is_first_left_out {
            // Where the queue is full, the thread looks after the next entry.
            drop(self.entries.try_send(Order::Look));
        }
    }
}

impl Sending {
    /// Every entry from now on names this GPU.
    pub fn serves(&self, gpu: u16) {
        // The first one stays: a process serves one GPU.
        let _ = self.shared.gpu.set(gpu);
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.shared.ending.store(true, Relaxed);
        // A full queue: the thread looks when it has emptied it.
        drop(self.entries.try_send(Order::Look));
        // Nobody sends: the other end goes away, or time passes.
        let _ = self.ended.recv_timeout(LAST_WAIT);
    }
}

impl Shared {
    fn limiter(&self) -> MutexGuard<'_, Limiter> {
        self.limiter.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread that sends.
struct Sender {
    socket: UnixDatagram,
    path: PathBuf,
    program: String,
    shared: Arc<Shared>,
}

impl Sender {
    fn run(&self, orders: &Receiver<Order>) {
        loop {
            let end = self.shared.limiter().next_end();
            let sleep = end.map_or(LONGEST_SLEEP, |end| {
                end.saturating_duration_since(Instant::now()).min(LONGEST_SLEEP)
            });
            let order = match self.shared.ending.load(Relaxed) {
                true => orders.try_recv().map_err(|_| true),
                false => orders
                    .recv_timeout(sleep)
                    .map_err(|error| error == RecvTimeoutError::Disconnected),
            };
            match order {
                Ok(Order::Entry(entry)) => self.send(&entry),
                // Time has passed.
                Ok(Order::Look) | Err(false) => {}
                Err(true) => break,
            }
            self.tell_left_out(Some(Instant::now()));
        }
        self.tell_left_out(None);
    }

    fn tell_left_out(&self, now: Option<Instant>) {
        let left_out = self.shared.limiter().take_left_out(now);
        for LeftOut { kind, level, lines, text } in left_out {
            let mut line = Line {
                text: format!("{lines} further lines of this kind were left out: {text}"),
                ..Line::default()
            };
            for (name, value) in [("TENANT", kind.tenant), ("ERROR", kind.error), ("AT", kind.at)] {
                line.fields.extend(value.map(|value| (name.to_owned(), value)));
            }
            line.fields.push(("SUPPRESSED".into(), lines.to_string()));
            line.text_has_fields = true;
            self.send(&line.entry_of(level, None, &self.program, self.shared.gpu.get()));
        }
    }

    /// Sends an entry, after a word about entries that were lost.
    fn send(&self, entry: &[u8]) {
        let lost = self.shared.lost.swap(0, Relaxed);
        if lost > 0 {
            let text = format!("{lost} lines of this log were dropped: the journal took none");
            let mut line = Line { text, text_has_fields: true, ..Line::default() };
            line.fields.push(("SUPPRESSED".into(), lost.to_string()));
            let note = line.entry_of(Level::WARN, None, &self.program, self.shared.gpu.get());
            if self.socket.send_to(&note, &self.path).is_err() {
                self.shared.lost.fetch_add(lost, Relaxed);
            }
        }
        if self.socket.send_to(entry, &self.path).is_err() {
            self.shared.lost.fetch_add(1, Relaxed);
        }
    }
}

/// A line: its text, and its fields by their names in the journal.
#[derive(Default)]
struct Line {
    text: String,
    fields: Vec<(String, String)>,
    /// Whether the text has all that the fields say.
    text_has_fields: bool,
}

impl Line {
    fn value(&self, name: &str) -> Option<String> {
        let found = self.fields.iter().find(|(field, _)| field == name);
        found.map(|(_, value)| cut(value, VALUE_BYTES).to_owned())
    }

    /// The beginning of the text, for a line about others of its kind.
    fn shown(&self) -> String {
        cut(&self.text, EXCERPT_BYTES).to_owned()
    }

    fn entry(&self, metadata: &Metadata<'_>, program: &str, gpu: Option<&u16>) -> Vec<u8> {
        self.entry_of(*metadata.level(), Some(metadata), program, gpu)
    }

    fn entry_of(
        &self,
        level: Level,
        metadata: Option<&Metadata<'_>>,
        program: &str,
        gpu: Option<&u16>,
    ) -> Vec<u8> {
        let mut entry = Vec::with_capacity(512);
        let mut text = self.text.clone();
        if !self.text_has_fields {
            for (name, value) in &self.fields {
                // Writing to a string cannot fail.
                let _ = write!(text, " {}={value}", name.to_ascii_lowercase());
            }
        }
        put(&mut entry, "MESSAGE", cut(&text, TEXT_BYTES));
        put(&mut entry, "PRIORITY", priority(level));
        put(&mut entry, "SYSLOG_IDENTIFIER", program);
        if let Some(metadata) = metadata {
            put(&mut entry, "TARGET", metadata.target());
            let line = metadata.line().map(|line| line.to_string());
            let place = metadata.file().zip(line);
            if let Some((file, line)) = place {
                put(&mut entry, "CODE_FILE", file);
                put(&mut entry, "CODE_LINE", &line);
            }
        }
        let has_gpu = self.fields.iter().any(|(name, _)| name == "GPU");
        if let Some(gpu) = gpu.filter(|_| !has_gpu) {
            put(&mut entry, "PARTITA_GPU", &gpu.to_string());
        }
        for (name, value) in self.fields.iter().take(FIELDS) {
            put(&mut entry, &format!("PARTITA_{name}"), cut(value, VALUE_BYTES));
        }
        entry
    }

    fn add(&mut self, field: &Field, value: String) {
        if field.name() == "message" {
            self.text = value;
        } else {
            self.fields.push((name_of(field.name()), value));
        }
    }
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.add(field, format!("{value:?}"));
    }
}

/// The name of a field: the journal takes capitals, digits and underscores.
fn name_of(name: &str) -> String {
    let letter = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    name.chars().map(letter).collect()
}

/// The levels of syslog(3).
fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "3",
        Level::WARN => "4",
        Level::INFO => "6",
        Level::DEBUG | Level::TRACE => "7",
    }
}

/// The beginning of a text, in whole characters.
fn cut(text: &str, most: usize) -> &str {
    let is_end = |end: &usize| text.is_char_boundary(*end);
    &text[..(0..=most.min(text.len())).rev().find(is_end).unwrap_or(0)]
}

/// Appends a field in the form that allows every byte.
fn put(entry: &mut Vec<u8>, name: &str, value: &str) {
    entry.extend(name.as_bytes());
    entry.push(b'\n');
    entry.extend((value.len() as u64).to_le_bytes());
    entry.extend(value.as_bytes());
    entry.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::MOST;
    use std::collections::BTreeMap;
    use tempfile::TempDir;
    use tracing_subscriber::layer::SubscriberExt as _;

    /// The place of the journal's socket, and what reads it.
    fn reader() -> (TempDir, PathBuf, UnixDatagram) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        (folder, path, socket)
    }

    fn entry(socket: &UnixDatagram) -> BTreeMap<String, String> {
        let mut buffer = vec![0; 1 << 18];
        let bytes = socket.recv(&mut buffer).unwrap();
        let (mut rest, mut fields) = (&buffer[..bytes], BTreeMap::new());
        while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
            let name = String::from_utf8(rest[..end].to_vec()).unwrap();
            let (length, after) = rest[end + 1..].split_at(8);
            let length = usize::try_from(u64::from_le_bytes(length.try_into().unwrap())).unwrap();
            let value = String::from_utf8(after[..length].to_vec()).unwrap();
            assert!(fields.insert(name, value).is_none(), "a field comes twice");
            assert_eq!(after[length], b'\n');
            rest = &after[length + 1..];
        }
        fields
    }

    /// Does something whose lines go to the journal at this place.
    fn logging(path: &Path, most: usize, act: impl FnOnce(&Sending)) {
        let (journal, sending) = Journal::new(path, "partita-test", most).unwrap();
        let subscriber = tracing_subscriber::registry().with(journal);
        tracing::subscriber::with_default(subscriber, || act(&sending));
    }

    #[test]
    fn an_entry_has_fields_and_a_text_that_reads_alone() {
        let (_folder, path, socket) = reader();
        logging(&path, 10, |sending| {
            sending.serves(3);
            let kernel = "a\nPARTITA_TENANT=0";
            tracing::warn!(session = 7, tenant = 1000, error = "CUDA_ERROR_X", kernel, "failed");
        });
        let found = entry(&socket);
        for (name, value) in [
            ("PRIORITY", "4"),
            ("SYSLOG_IDENTIFIER", "partita-test"),
            ("PARTITA_SESSION", "7"),
            ("PARTITA_TENANT", "1000"),
            ("PARTITA_ERROR", "CUDA_ERROR_X"),
            ("PARTITA_KERNEL", "a\nPARTITA_TENANT=0"),
            ("PARTITA_GPU", "3"),
        ] {
            assert_eq!(found[name], value, "{name}");
        }
        assert!(found["MESSAGE"].starts_with("failed session=7 tenant=1000"), "{found:?}");
        assert!(found["CODE_FILE"].ends_with("journal.rs") && found.contains_key("CODE_LINE"));
        assert!(found["TARGET"].starts_with("partita_log"));
    }

    #[test]
    fn ten_thousand_errors_of_one_user_are_a_few_lines_and_a_number() {
        let (_folder, path, socket) = reader();
        let reading = std::thread::spawn(move || {
            let mut found = Vec::new();
            while found.last().is_none_or(|last: &BTreeMap<_, _>| last["MESSAGE"] != "end") {
                found.push(entry(&socket));
            }
            // What was left out is told at the end.
            found.push(entry(&socket));
            found
        });
        logging(&path, 1000, |_| {
            let fault = |tenant: u32, at: &str| tracing::error!(tenant, at, "a fault");
            for _ in 0..10_000 {
                fault(1000, "engine.rs:1");
            }
            fault(1001, "engine.rs:1");
            fault(1000, "engine.rs:2");
            tracing::info!("end");
        });
        let found = reading.join().unwrap();
        let of = |tenant: &str| {
            let is_of =
                |one: &&BTreeMap<_, _>| one.get("PARTITA_TENANT").is_some_and(|t| t == tenant);
            found.iter().filter(is_of).collect::<Vec<_>>()
        };
        // Beside the limited kind there is a fault at another place. The last line is the number.
        assert_eq!(of("1000").len(), MOST as usize + 2);
        assert_eq!(of("1001").len(), 1);
        let number = found.last().unwrap();
        assert_eq!(number["PARTITA_SUPPRESSED"], (10_000 - MOST).to_string());
        assert_eq!(number["PRIORITY"], "3");
        assert!(number["MESSAGE"].contains("further lines of this kind"), "{number:?}");
    }

    #[test]
    fn a_journal_that_stalls_costs_lines_and_they_are_counted() {
        let (_folder, path, socket) = reader();
        // More than the queues of the system and of the log hold.
        let lines = 900;
        logging(&path, 16, |_| {
            // Each user's line is of another kind: no limit holds.
            for tenant in 0..lines {
                tracing::info!(tenant, "line");
            }
            let reading = std::thread::spawn(move || {
                let (mut written, mut told) = (0, 0);
                while written + told < lines {
                    let found = entry(&socket);
                    match found.get("PARTITA_SUPPRESSED") {
                        Some(lost) if found["MESSAGE"].contains("were dropped") => {
                            told += lost.parse::<usize>().unwrap();
                        }
                        _ => written += usize::from(found["MESSAGE"].starts_with("line")),
                    }
                }
                told
            });
            // The next line that goes out tells what was lost.
            while !reading.is_finished() {
                tracing::info!("again");
                std::thread::sleep(Duration::from_millis(5));
            }
            assert!(reading.join().unwrap() > 0, "nothing was lost");
        });
    }

    #[test]
    fn a_journal_that_is_not_there_ends_nothing() {
        let folder = tempfile::tempdir().unwrap();
        logging(&folder.path().join("nothing"), 4, |_| {
            for _ in 0..100 {
                tracing::info!("line");
            }
        });
    }
}
