//! Threads that prepare modules beside the owner thread, and what they have prepared before.
//!
//! The threads take turns by tenant ([`queue`]). Results come back over a channel; an eventfd wakes
//! the thread that sleeps for them. What was prepared is kept by content ([`cache`]), so that the
//! second program with the same kernels does not wait.
//!
//! A module that takes too long, or whose session has ended, is given up: the long loops of its
//! preparation ask for that ([`partita_ptx::Stop`]).

use crate::prepare::later::{alone, placed};
use crate::prepare::{Bounds, Prepared, Target, prepare_within};
use crate::store::Store;
use crate::uploads::Image;
use partita_device::{Guards, Reading};
use partita_engine::{FormsOf, LoadedModule, PrepareError, Purpose, RegisterBound, Source};
use partita_model::request::ModuleHandle;
use partita_model::{CudaResult, KernelProfile, LaunchShape, Limits, Originals, SessionId};
use partita_ptx::Stop;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{io, thread};

mod cache;
mod queue;

use cache::{Cache, Key};
pub use queue::Owner;
use queue::{Begun, Queue};

/// The most bytes of images and texts in the cache.
const CACHE_BYTES: usize = 128 << 20;

/// What is to be prepared.
#[derive(Clone, Debug)]
pub enum Wanted {
    /// A module, from its image.
    Module(ModuleHandle, Image),
    /// The forms of a kernel of a loaded module.
    Forms(FormsOf, Source, Arc<LoadedModule>),
}

/// What was prepared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Of {
    /// A module.
    Module(ModuleHandle),
    /// The forms of a kernel.
    Forms(FormsOf),
}

/// A module to prepare.
struct Job {
    session: SessionId,
    wanted: Wanted,
    purpose: Purpose,
    how: How,
    limits: Limits,
}

/// How modules are prepared for a session.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct How {
    /// When kernels run as written.
    pub originals: Originals,
    /// What kernels must carry in the session's window.
    pub guards: Guards,
}

/// What is kept of kernels, by the hashes of their code.
pub type Kept = Vec<(Arc<str>, Vec<(LaunchShape, KernelProfile)>)>;

/// What came of it.
pub struct Outcome {
    /// The session.
    pub session: SessionId,
    /// What was asked for.
    pub of: Of,
    /// The module, or why there is none.
    pub result: Result<Arc<Prepared>, PrepareError>,
    /// What is kept of its kernels, by their hashes.
    pub kept: Kept,
}

/// The threads.
pub struct Pool {
    shared: Arc<Shared>,
    outcomes: Receiver<Outcome>,
    limits: Limits,
}

/// What the threads share.
struct Shared {
    jobs: Mutex<Jobs>,
    /// A job has come or ended, or the pool ends.
    changed: Condvar,
    cache: Mutex<Cache>,
    news: OwnedFd,
    target: Target,
    store: Option<Arc<Store>>,
    /// Reads for the device what was prepared for it.
    reader: Option<Arc<dyn Reading>>,
}

struct Jobs {
    queue: Queue<Job>,
    is_closed: bool,
}

impl Pool {
    /// Starts the threads, for a device of which so much is kept.
    ///
    /// # Errors
    /// Where the system has none, or no descriptor.
    pub fn start(
        threads: usize,
        target: Target,
        store: Option<&Arc<Store>>,
        reader: Option<Arc<dyn Reading>>,
    ) -> io::Result<Pool> {
        let (sender, outcomes) = channel();
        let shared = Arc::new(Shared {
            jobs: Mutex::new(Jobs { queue: Queue::new(threads), is_closed: false }),
            changed: Condvar::new(),
            cache: Mutex::new(Cache::new(CACHE_BYTES)),
            news: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            target,
            store: store.cloned(),
            reader,
        });
        for _ in 0..threads {
            let (shared, sender) = (Arc::clone(&shared), sender.clone());
            thread::Builder::new().name("prepare".into()).spawn(move || shared.work(&sender))?;
        }
        Ok(Pool { shared, outcomes, limits: Limits::default() })
    }

    /// Bounds the preparation of modules that are submitted from now on.
    pub fn set_limits(&mut self, limits: &Limits) {
        self.limits = *limits;
    }

    /// Prepares something when it is its owner's turn. What was prepared before comes as it was
    /// prepared then, if it was prepared in the same way.
    pub fn submit(&self, owner: Owner, wanted: Wanted, purpose: Purpose, how: How) {
        let (session, limits) = (owner.session, self.limits);
        let job = Job { session, wanted, purpose, how, limits };
        self.shared.jobs().queue.push(owner, job);
        self.shared.changed.notify_all();
    }

    /// Gives up what a session has submitted.
    pub fn forget(&self, session: SessionId) {
        self.shared.jobs().queue.forget(session);
    }

    /// Readable while there are outcomes.
    pub fn news(&self) -> BorrowedFd<'_> {
        self.shared.news.as_fd()
    }

    /// Takes what is finished.
    pub fn take(&self) -> impl Iterator<Item = Outcome> + '_ {
        // The counter is cleared first, so that an outcome in the meantime sets it again.
        let _ = rustix::io::read(&self.shared.news, &mut [0; 8]);
        self.outcomes.try_iter()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.jobs().is_closed = true;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next job of a thread; `None` where the pool ends.
    fn next(&self) -> Option<Begun<Job>> {
        let mut jobs = self.jobs();
        loop {
            if jobs.is_closed {
                return None;
            }
            if let Some(begun) = jobs.queue.begin(Instant::now()) {
                return Some(begun);
            }
            jobs = self.changed.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// One thread's work.
    fn work(&self, outcomes: &Sender<Outcome>) {
        while let Some(Begun { ticket, job, cancelled }) = self.next() {
            let Job { session, wanted, purpose, how, limits } = job;
            let target = Target { originals: how.originals, guards: how.guards, ..self.target };
            let end = Instant::now() + Duration::from_millis(limits.prepare_ms.into());
            let asked = Arc::clone(&cancelled);
            let is_over = move || asked.load(Ordering::Relaxed) || Instant::now() >= end;
            let bounds = Bounds { stop: Stop::when(is_over), limits };
            // Memory that a thread has freed becomes other threads' when it ends, and a preparation
            // frees many times what it leaves.
            let of = wanted.of();
            let result = thread::scope(|scope| {
                let prepare = || {
                    let prepared = wanted.prepare(&self.cache, target, &purpose, &bounds)?;
                    self.read(&prepared);
                    Ok(prepared)
                };
                let own = thread::Builder::new().name("prepare one".into());
                own.spawn_scoped(scope, prepare).map_or_else(
                    |error| Err(no_thread(&error.to_string())),
                    |thread| thread.join().unwrap_or_else(|_| Err(no_thread("it ended"))),
                )
            });
            let kept = kept(self.store.as_deref(), result.as_deref().ok());
            self.jobs().queue.end(ticket, Instant::now());
            self.changed.notify_all();
            // Nobody waits for what was cancelled.
            if cancelled.load(Ordering::Relaxed) {
                continue;
            }
            if outcomes.send(Outcome { session, of, result, kept }).is_err() {
                return;
            }
            // A full counter has already woken the reader.
            let _ = rustix::io::write(&self.news, &1_u64.to_ne_bytes());
        }
    }
}

impl Shared {
    /// Reads a text for the device, which then loads it in less of the owner's time.
    fn read(&self, prepared: &Prepared) {
        let Some(reader) = self.reader.as_ref().filter(|_| prepared.module.code.is_none()) else {
            return;
        };
        // A panic is a bug of Partita, which shows when the device loads the text.
        let _ = catch_unwind(AssertUnwindSafe(|| reader.read(&prepared.module.ptx)));
    }
}

impl Wanted {
    fn of(&self) -> Of {
        match self {
            Wanted::Module(module, _) => Of::Module(*module),
            Wanted::Forms(of, ..) => Of::Forms(*of),
        }
    }

    fn prepare(
        self,
        cache: &Mutex<Cache>,
        target: Target,
        purpose: &Purpose,
        bounds: &Bounds,
    ) -> Result<Arc<Prepared>, PrepareError> {
        match self {
            Wanted::Module(_, image) => prepare_once(cache, image, target, purpose, bounds),
            Wanted::Forms(of, source, loaded) => {
                let (image, excerpt) = alone(&source, of.kernel, &loaded)?;
                let prepared = prepare_once(cache, image, target, purpose, bounds)?;
                Ok(Arc::new(placed(&excerpt, &prepared)))
            }
        }
    }
}

fn no_thread(why: &str) -> PrepareError {
    let text = format!("no thread to prepare the module: {why}; try again");
    PrepareError { code: CudaResult::ERROR_OUT_OF_MEMORY, text }
}

/// The stored profiles of a module's kernels.
fn kept(store: Option<&Store>, prepared: Option<&Prepared>) -> Kept {
    let (Some(store), Some(prepared)) = (store, prepared) else { return Vec::new() };
    let counting = prepared.module.kernels.iter().filter(|kernel| kernel.counting.is_some());
    let hashes = counting.filter_map(|kernel| kernel.hash.clone());
    hashes
        .map(|hash| (hash.clone(), store.kernel(&hash)))
        .filter(|(_, shapes)| !shapes.is_empty())
        .collect()
}

fn settled(prepared: Arc<Prepared>) -> Arc<Prepared> {
    let mut prepared = Arc::unwrap_or_clone(prepared);
    for kernel in &mut prepared.module.kernels {
        kernel.registers = RegisterBound::Settled;
    }
    Arc::new(prepared)
}

/// What is prepared to run is kept. What the device had to tell first is known of an image from
/// then on: the pool serves one device.
fn prepare_once(
    cache: &Mutex<Cache>,
    image: Image,
    target: Target,
    purpose: &Purpose,
    bounds: &Bounds,
) -> Result<Arc<Prepared>, PrepareError> {
    let lock = || cache.lock().unwrap_or_else(PoisonError::into_inner);
    let how = How { originals: target.originals, guards: target.guards };
    let key = Key { image, how };
    let unbounded = match purpose {
        Purpose::Run => lock().get(&key),
        // As it was, and now that is known.
        Purpose::RunWithin(of) if of.is_empty() => lock().get(&key).map(settled),
        _ => None,
    };
    if let Some(prepared) = unbounded {
        if *purpose != Purpose::Run {
            lock().insert(key, Arc::clone(&prepared));
        }
        return Ok(prepared);
    }
    // A panic is a bug of Partita. It must cost only this module, not the data plane.
    let result =
        catch_unwind(AssertUnwindSafe(|| prepare_within(&key.image, target, purpose, bounds)))
            .unwrap_or_else(|_| {
                let Image { bytes, kind, .. } = &key.image;
                tracing::error!(bytes = bytes.len(), ?kind, "preparing a module panicked");
                let text = "Partita's compiler failed on this module: please report it with the \
                            program"
                    .to_owned();
                Err(PrepareError { code: CudaResult::ERROR_INVALID_IMAGE, text })
            });
    let prepared = Arc::new(result?);
    if !matches!(purpose, Purpose::Registers(_)) {
        lock().insert(key, Arc::clone(&prepared));
    }
    Ok(prepared)
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_model::{ImageKind, ModuleId, TenantId};
    use std::fmt::Write;

    const HOW: How = How {
        originals: Originals::Never,
        guards: Guards { cell_bits: None, ends: false, prints: false, contains: false },
    };
    const OWNER: Owner = Owner { tenant: TenantId(1), session: SessionId(4) };

    fn image(text: &str) -> Image {
        let bytes = text.as_bytes();
        Image { kind: ImageKind::Ptx, unpacked_bytes: bytes.len() as u64, bytes: bytes.into() }
    }

    /// The outcome of one image.
    fn outcome(pool: &Pool, image: Image) -> Outcome {
        outcome_of(pool, Wanted::Module(ModuleHandle(5), image))
    }

    fn outcome_of(pool: &Pool, wanted: Wanted) -> Outcome {
        pool.submit(OWNER, wanted, Purpose::Run, HOW);
        let news = pool.news();
        let mut news = [rustix::event::PollFd::new(&news, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut news, None).unwrap();
        loop {
            if let Some(outcome) = pool.take().next() {
                return outcome;
            }
        }
    }

    #[test]
    fn outcomes_wake() {
        let pool = Pool::start(2, partita_model::Sharing::Spatial.into(), None, None).unwrap();
        let outcome = outcome(&pool, image("not PTX"));
        assert_eq!((outcome.session, outcome.of), (SessionId(4), Of::Module(ModuleHandle(5))));
        let error = outcome.result.unwrap_err();
        assert_eq!(error.code, CudaResult::ERROR_INVALID_PTX);
    }

    #[test]
    fn forms_of_a_kernel_are_kept_by_content_and_bounded() {
        let mut pool = Pool::start(1, partita_model::Sharing::Spatial.into(), None, None).unwrap();
        let mut text = ".version 8.0\n.target sm_75\n.address_size 64\n".to_owned();
        for kernel in 0..30 {
            writeln!(text, ".visible .entry k{kernel}() {{ ret; }}").unwrap();
        }
        pool.set_limits(&Limits { prepare_mib: 2, ..Limits::default() });
        let module = outcome(&pool, image(&text)).result.unwrap().module.clone();
        let source = module.later.expect("the forms of 30 kernels take more").source;
        let forms = |pool: &Pool, kernel| {
            let of = FormsOf { module: ModuleId(7), kernel };
            let loaded = LoadedModule { kernels: Vec::new(), variables: Vec::new() };
            let outcome = outcome_of(pool, Wanted::Forms(of, source.clone(), Arc::new(loaded)));
            assert_eq!(outcome.of, Of::Forms(of));
            outcome.result.map(|prepared| prepared.module.ptx.to_string())
        };
        let first = forms(&pool, 3).unwrap();
        pool.set_limits(&Limits { prepare_ms: 0, ..Limits::default() });
        assert_eq!(forms(&pool, 3).unwrap(), first, "kept");
        let error = forms(&pool, 4).unwrap_err();
        assert!(error.text.contains("prepare_ms"), "{error}");
    }

    #[test]
    fn what_exceeds_a_limit_is_refused_by_its_key() {
        let mut pool = Pool::start(1, partita_model::Sharing::Spatial.into(), None, None).unwrap();
        let mut text = ".version 8.0\n.target sm_75\n.address_size 64\n".to_owned();
        for kernel in 0..20_000 {
            writeln!(text, ".visible .entry k{kernel}() {{ ret; }}").unwrap();
        }
        let limits = Limits { prepare_ms: 1, ..Limits::default() };
        pool.set_limits(&limits);
        let error = outcome(&pool, image(&text)).result.unwrap_err();
        assert!(error.text.contains("prepare_ms"), "{error}");
        pool.set_limits(&Limits { prepare_mib: 8, ..Limits::default() });
        let error = outcome(&pool, image(&text)).result.unwrap_err();
        assert!(error.text.contains("prepare_mib"), "{error}");
        pool.set_limits(&Limits::default());
        let few = &text[..text.find(".visible .entry k3(").unwrap()];
        assert!(outcome(&pool, image(few)).result.is_ok());
    }
}
