//! The book of reservations: what schedulers have asked for, who may have what, and the file in
//! which the book survives.
//!
//! Invariants: the reservations of a GPU never sum up to more SMs or memory than the GPU has. A
//! change is in the file before it is answered, and changes that wait together share one write
//! ([`crate::ledger`]). A file that cannot be read is put aside with a warning and never ends the
//! daemon.
//!
//! [`crate::keeper`] gives the applications of jobs their SMs; which application that is, the API
//! asks the data plane.

use crate::gpus::Gpus;
use crate::ledger::{Effect, Ledger};
use crate::problem::{Holder, Problem};
use axum::http::StatusCode;
use partita_model::{GpuNumber, Reservation, ReservationRequest};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::Notify;

/// Reservations at a time.
const MOST: usize = 1024;
/// The longest id, and the longest name of a job, in bytes.
const ID_BYTES: usize = 64;
const JOB_BYTES: usize = 256;
/// The largest file.
const FILE_BYTES: u64 = 4 << 20;

/// Reservations by id.
type Known = BTreeMap<String, Reservation>;

/// The book.
#[derive(Debug)]
pub struct Book {
    gpus: Gpus,
    file: Option<PathBuf>,
    known: Arc<Ledger<Known>>,
}

/// What became of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Put {
    /// The reservation is new.
    New,
    /// It was there, perhaps with other numbers.
    Kept,
}

impl Book {
    /// The book of these GPUs, kept in `file`; without one it lasts as long as the daemon.
    #[must_use]
    pub fn open(gpus: Gpus, file: Option<PathBuf>) -> Arc<Book> {
        let known = file.as_deref().map(read).unwrap_or_default();
        let to = file.clone();
        let write = move |all: &Known| to.as_deref().map_or(Ok(()), |file| write(file, all));
        Arc::new(Book { gpus, file, known: Ledger::new(known, write) })
    }

    /// Told at every change.
    pub(crate) fn changed(&self) -> &Notify {
        &self.known.changed
    }

    /// Every reservation that has not expired, in order of id.
    #[must_use]
    pub fn all(&self) -> Vec<Reservation> {
        let now = now();
        let is_left = |one: &&Reservation| one.expires > now;
        self.known.look(|known| known.values().filter(is_left).cloned().collect())
    }

    /// When the next one expires, in seconds since 1970.
    #[must_use]
    pub fn next_expiry(&self) -> Option<u64> {
        self.known.look(|known| known.values().map(|one| one.expires).min())
    }

    /// Enters a reservation, or changes it.
    ///
    /// # Errors
    /// A problem, where the request cannot be, or where others have what it asks for; nothing has
    /// changed then.
    pub async fn put(&self, id: &str, request: ReservationRequest) -> Result<Put, Problem> {
        self.check(id, &request)?;
        let (gpus, id) = (self.gpus.clone(), id.to_owned());
        let change = move |known: &mut Known| match enter(&gpus, known, id, request) {
            Ok((put, effect)) => (Ok(put), effect),
            Err(problem) => (Err(problem), Effect::None),
        };
        self.known.change(change).await.map_err(|error| self.unwritten(&error))?
    }

    /// Ends a reservation: where `expires` is given, only one with this end. Whether there was one.
    ///
    /// # Errors
    /// Where it has another end, or the file cannot be written; the reservation stays then.
    pub async fn delete(&self, id: &str, expires: Option<u64>) -> Result<bool, Problem> {
        let id = id.to_owned();
        let change = move |known: &mut Known| {
            let Some(one) = known.get(&id) else { return (Ok(false), Effect::None) };
            if expires.is_some_and(|end| end != one.expires) {
                let detail = format!(
                    "the reservation `{id}` was made anew and ends at {}: read it again",
                    one.expires
                );
                return (Err(Problem::new(StatusCode::CONFLICT, detail)), Effect::None);
            }
            known.remove(&id);
            (Ok(true), Effect::Changed)
        };
        self.known.change(change).await.map_err(|error| self.unwritten(&error))?
    }

    /// Forgets what has expired.
    pub async fn expire(&self) {
        let now = now();
        let expired = self.known.look(|known| {
            let before = known.len();
            known.retain(|_, one| one.expires > now);
            known.len() < before
        });
        if expired && let Err(error) = self.known.change(|_| ((), Effect::Changed)).await {
            tracing::warn!("{}", self.unwritten(&error).detail);
        }
    }

    /// The answer where a change cannot be written.
    fn unwritten(&self, error: &io::Error) -> Problem {
        let file = self.file.as_deref().unwrap_or(Path::new("the book")).display();
        let remedy = partita_log::file_limit::remedy(error);
        let remedy = remedy.map(|text| format!("; {text}")).unwrap_or_default();
        let detail = format!("{file}: {error}: no reservation can be kept{remedy}");
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, detail)
    }

    fn check(&self, id: &str, request: &ReservationRequest) -> Result<(), Problem> {
        let invalid = |detail: String| Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail));
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        // Clients take `.` and `..` out of a path.
        let is_step = id.bytes().all(|byte| byte == b'.');
        if is_step || id.len() > ID_BYTES || !id.bytes().all(is_letter) {
            return invalid(format!(
                "the id of a reservation has 1 to {ID_BYTES} letters, digits, `.`, `_` and `-`, \
                 and not dots alone"
            ));
        }
        if request.job.is_empty() || request.job.len() > JOB_BYTES {
            return invalid(format!("`job` has 1 to {JOB_BYTES} bytes: the tag of the job"));
        }
        if request.sms == 0 {
            return invalid("`sms` is at least 1".into());
        }
        if request.max_sms.is_some_and(|most| most < request.sms) {
            return invalid("`max_sms` is at least `sms`".into());
        }
        if request.expires <= now() {
            return invalid(
                "`expires` is over: it is the end of the reservation, in seconds since 1970".into(),
            );
        }
        Ok(())
    }
}

/// Enters a reservation into the book of these GPUs, where it fits.
fn enter(
    gpus: &Gpus,
    known: &mut Known,
    id: String,
    request: ReservationRequest,
) -> Result<(Put, Effect), Problem> {
    let now = now();
    let left = |one: &&Reservation| one.expires > now;
    let before = known.get(&id).filter(left).map(Reservation::request);
    if before.as_ref() == Some(&request) {
        return Ok((Put::Kept, Effect::None));
    }
    if before.is_none() && known.values().filter(left).count() >= MOST {
        let detail = format!("there are {MOST} reservations, and no more can be: delete some");
        return Err(Problem::new(StatusCode::CONFLICT, detail));
    }
    let is_other = |one: &&Reservation| one.gpu == request.gpu && one.id != id;
    let others: Vec<&Reservation> = known.values().filter(left).filter(is_other).collect();
    let is_same_job =
        |one: &&&Reservation| (one.tenant, &one.job) == (request.tenant, &request.job);
    if let Some(one) = others.iter().find(is_same_job) {
        let detail = format!(
            "the job `{}` of {} already has the reservation `{}` on {}, where a job has one: \
             change or delete it",
            one.job, one.tenant, one.id, one.gpu
        );
        let problem = Problem::new(StatusCode::CONFLICT, detail);
        return Err(Problem { holders: vec![holder(one)], ..problem });
    }
    fits(gpus, &request, &others)?;
    known.retain(|_, one| one.expires > now);
    known.insert(id.clone(), Reservation::new(id, request));
    Ok((if before.is_some() { Put::Kept } else { Put::New }, Effect::Changed))
}

fn fits(gpus: &Gpus, request: &ReservationRequest, others: &[&Reservation]) -> Result<(), Problem> {
    let number = request.gpu;
    let gpu = gpus.get(number).ok_or_else(|| {
        let last = gpus.all().len() - 1;
        let detail = format!("there is no {number}: the last one is GPU {last}");
        Problem::new(StatusCode::NOT_FOUND, detail)
    })?;
    let facts = gpu.handle.state().facts.ok_or(crate::link::AskError::Gone)?;
    let (sms, memory) = (u64::from(facts.sm_count), facts.memory.0);
    if u64::from(request.sms) > sms || request.memory_bytes > memory {
        let detail = format!("{number} has {sms} SMs and {memory} bytes of memory");
        return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail));
    }
    let free_sms = sms - others.iter().map(|one| u64::from(one.sms)).sum::<u64>().min(sms);
    let taken = others.iter().fold(0_u64, |all, one| all.saturating_add(one.memory_bytes));
    let free_memory = memory.saturating_sub(taken);
    if u64::from(request.sms) <= free_sms && request.memory_bytes <= free_memory {
        return Ok(());
    }
    let detail = format!(
        "{number} has {free_sms} SMs and {free_memory} bytes left that nobody has reserved; \
         `holders` says who has the rest"
    );
    let mut problem = Problem::new(StatusCode::CONFLICT, detail);
    problem.holders = others.iter().map(|one| holder(one)).collect();
    Err(problem)
}

fn holder(one: &Reservation) -> Holder {
    Holder {
        reservation: one.id.clone(),
        tenant: one.tenant,
        job: one.job.clone(),
        sms: one.sms,
        memory_bytes: one.memory_bytes,
        expires: one.expires,
    }
}

fn write(file: &Path, all: &Known) -> io::Result<()> {
    let requests: BTreeMap<&str, ReservationRequest> =
        all.iter().map(|(id, one)| (id.as_str(), one.request())).collect();
    replace(file, &requests)
}

/// The time in seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The file of a daemon that serves in this folder. Daemons of one user share the state folder.
#[must_use]
pub fn file_in(state_dir: &Path, socket_dir: &Path) -> PathBuf {
    let name: String = socket_dir
        .to_string_lossy()
        .trim_matches('/')
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect();
    state_dir.join(format!("reservations-{name}.json"))
}

fn read(file: &Path) -> Known {
    match try_read(file) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
        Err(error) => {
            let aside = file.with_extension("json.bad");
            tracing::warn!(
                "{}: {error}: its reservations are lost, and it is put aside as {}",
                file.display(),
                aside.display()
            );
            drop(std::fs::rename(file, aside));
            BTreeMap::new()
        }
    }
}

fn try_read(file: &Path) -> io::Result<Known> {
    if std::fs::metadata(file)?.len() > FILE_BYTES {
        return Err(io::Error::other(format!("it is over {FILE_BYTES} bytes long")));
    }
    let found: BTreeMap<String, ReservationRequest> =
        serde_json::from_slice(&std::fs::read(file)?)?;
    let found = found.into_iter().take(MOST);
    Ok(found.map(|(id, request)| (id.clone(), Reservation::new(id, request))).collect())
}

/// Replaces the file by another: a crash leaves one of the two.
fn replace(file: &Path, contents: &impl serde::Serialize) -> io::Result<()> {
    let folder = file.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let new = file.with_extension("json.new");
    let text = serde_json::to_vec(contents)?;
    let mut written = std::fs::File::create(&new)?;
    written.write_all(&text)?;
    written.sync_all()?;
    std::fs::rename(new, file)
}

/// The reservations of one GPU.
pub(crate) fn on(all: &[Reservation], gpu: GpuNumber) -> Vec<&Reservation> {
    all.iter().filter(|one| one.gpu == gpu).collect()
}
