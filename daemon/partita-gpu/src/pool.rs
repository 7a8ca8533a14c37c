//! Threads that prepare modules beside the owner thread, and what they have prepared before.
//!
//! Results come back over a channel; an eventfd wakes whoever sleeps for them. What was prepared is
//! kept by content, up to a bound, so that the second program with the same kernels does not wait.
//! An entry holds the whole image and is used only where every byte of it is equal: no tenant can
//! make another run its code by a collision of hashes.

use crate::prepare::{Prepared, Target, prepare};
use crate::store::Store;
use crate::uploads::Image;
use lru::LruCache;
use partita_engine::{PrepareError, Purpose, RegisterBound};
use partita_model::request::ModuleHandle;
use partita_model::{CudaResult, KernelProfile, LaunchShape, Originals, SessionId};
use rustix::event::{EventfdFlags, eventfd};
use std::hash::RandomState;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::{io, thread};

/// The most bytes of images and texts in the cache.
const CACHE_BYTES: usize = 128 << 20;

/// A module to prepare, and the session that asked.
struct Job {
    session: SessionId,
    module: ModuleHandle,
    image: Image,
    purpose: Purpose,
    originals: Originals,
}

/// What is kept of kernels, by the hashes of their code.
pub type Kept = Vec<(Arc<str>, Vec<(LaunchShape, KernelProfile)>)>;

/// What came of it.
pub struct Outcome {
    /// The session.
    pub session: SessionId,
    /// Which module.
    pub module: ModuleHandle,
    /// The module, or why there is none.
    pub result: Result<Arc<Prepared>, PrepareError>,
    /// What is kept of its kernels, by their hashes.
    pub kept: Kept,
}

/// The threads.
pub struct Pool {
    jobs: Sender<Job>,
    outcomes: Receiver<Outcome>,
    news: Arc<OwnedFd>,
}

impl Pool {
    /// Starts the threads, for a device of which so much is kept.
    ///
    /// # Errors
    /// Where the system has none, or no descriptor.
    pub fn start(threads: usize, target: Target, store: Option<&Arc<Store>>) -> io::Result<Pool> {
        let (jobs, waiting) = channel::<Job>();
        let (sender, outcomes) = channel();
        let waiting = Arc::new(Mutex::new(waiting));
        let cache = Arc::new(Mutex::new(Cache::new(CACHE_BYTES)));
        let news = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        for _ in 0..threads {
            let (waiting, cache, news) =
                (Arc::clone(&waiting), Arc::clone(&cache), Arc::clone(&news));
            let sender = sender.clone();
            let store = store.cloned();
            thread::Builder::new().name("prepare".into()).spawn(move || {
                loop {
                    // The thread holds the lock while it waits. The next thread takes the lock
                    // together with the next job.
                    let job = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(Job { session, module, image, purpose, originals }) = job else {
                        return;
                    };
                    let target = Target { originals, ..target };
                    let result = prepare_once(&cache, image, target, &purpose);
                    let kept = kept(store.as_deref(), result.as_deref().ok());
                    if sender.send(Outcome { session, module, result, kept }).is_err() {
                        return;
                    }
                    // A full counter has already woken the reader.
                    let _ = rustix::io::write(&news, &1_u64.to_ne_bytes());
                }
            })?;
        }
        Ok(Pool { jobs, outcomes, news })
    }

    /// Prepares an image when a thread is free. An image that was prepared before comes as it was
    /// prepared then, if it was prepared with the same `originals`.
    pub fn submit(
        &self,
        (session, module): (SessionId, ModuleHandle),
        image: Image,
        purpose: Purpose,
        originals: Originals,
    ) {
        let job = Job { session, module, image, purpose, originals };
        self.jobs.send(job).expect("the threads live as long as the pool");
    }

    /// Readable while there are outcomes.
    pub fn news(&self) -> BorrowedFd<'_> {
        self.news.as_fd()
    }

    /// Takes what is finished.
    pub fn take(&self) -> impl Iterator<Item = Outcome> + '_ {
        // The counter is cleared first, so that an outcome in the meantime sets it again.
        let _ = rustix::io::read(&self.news, &mut [0; 8]);
        self.outcomes.try_iter()
    }
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
) -> Result<Arc<Prepared>, PrepareError> {
    let lock = || cache.lock().unwrap_or_else(PoisonError::into_inner);
    let key = Key { image, originals: target.originals };
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
    let result = catch_unwind(AssertUnwindSafe(|| prepare(&key.image, target, purpose)))
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

/// What decides how a module is prepared to run on the pool's device.
#[derive(PartialEq, Eq, Hash)]
struct Key {
    image: Image,
    originals: Originals,
}

/// Prepared modules by their keys. Above `limit` bytes in total the least recently used module
/// goes first. The hasher is keyed, because clients choose the images.
struct Cache {
    entries: LruCache<Key, Arc<Prepared>, RandomState>,
    bytes: usize,
    limit: usize,
}

/// Bytes of an entry.
fn bytes(key: &Key, prepared: &Prepared) -> usize {
    let module = &prepared.module;
    key.image.bytes.len() + module.ptx.len() + module.code.as_ref().map_or(0, |code| code.len())
}

impl Cache {
    fn new(limit: usize) -> Self {
        Cache { entries: LruCache::unbounded_with_hasher(RandomState::new()), bytes: 0, limit }
    }

    fn get(&mut self, key: &Key) -> Option<Arc<Prepared>> {
        self.entries.get(key).map(Arc::clone)
    }

    fn insert(&mut self, key: Key, prepared: Arc<Prepared>) {
        let size = bytes(&key, &prepared);
        if size > self.limit {
            return;
        }
        self.bytes += size;
        if let Some((key, old)) = self.entries.push(key, prepared) {
            self.bytes -= bytes(&key, &old);
        }
        while self.bytes > self.limit {
            let Some((key, old)) = self.entries.pop_lru() else { return };
            self.bytes -= bytes(&key, &old);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_engine::PreparedModule;
    use partita_model::ImageKind;

    fn image(text: &str) -> Image {
        Image {
            kind: ImageKind::Ptx,
            unpacked_bytes: text.len() as u64,
            bytes: text.as_bytes().into(),
        }
    }

    fn key(text: &str) -> Key {
        Key { image: image(text), originals: Originals::Alone }
    }

    fn prepared(text: &str) -> Arc<Prepared> {
        let module =
            PreparedModule { ptx: text.into(), code: None, kernels: Vec::new(), lines: None };
        Arc::new(Prepared { module, shapes: Vec::new() })
    }

    #[test]
    fn the_least_recently_used_goes_first() {
        let mut cache = Cache::new(9);
        for text in ["a", "b", "c"] {
            cache.insert(key(text), prepared("xx"));
        }
        assert!(cache.get(&key("a")).is_some());
        cache.insert(key("d"), prepared("xx"));
        assert!(cache.get(&key("b")).is_none());
        for text in ["a", "c", "d"] {
            assert!(cache.get(&key(text)).is_some(), "{text}");
        }
        cache.insert(key("d"), prepared("xx"));
        assert_eq!(cache.bytes, 9);
        cache.insert(key("too large for it"), prepared("xx"));
        assert_eq!(cache.entries.len(), 3);
    }

    #[test]
    fn a_key_is_an_images_bytes_its_kind_and_its_originals() {
        let mut cache = Cache::new(100);
        cache.insert(key("a"), prepared("x"));
        let of = |image| Key { image, ..key("a") };
        assert!(cache.get(&of(image("a"))).is_some());
        assert!(cache.get(&of(Image { kind: ImageKind::PtxZstd, ..image("a") })).is_none());
        assert!(cache.get(&of(Image { unpacked_bytes: 2, ..image("a") })).is_none());
        assert!(cache.get(&Key { originals: Originals::Never, ..key("a") }).is_none());
    }

    #[test]
    fn outcomes_wake() {
        let pool = Pool::start(2, partita_model::Sharing::Spatial.into(), None).unwrap();
        let whose = (SessionId(4), ModuleHandle(5));
        pool.submit(whose, image("not PTX"), Purpose::Run, Originals::Never);
        let mut news = [rustix::event::PollFd::new(&pool.news, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut news, None).unwrap();
        let outcome = loop {
            if let Some(outcome) = pool.take().next() {
                break outcome;
            }
        };
        assert_eq!((outcome.session, outcome.module), (SessionId(4), ModuleHandle(5)));
        let error = outcome.result.unwrap_err();
        assert_eq!(error.code, CudaResult::ERROR_INVALID_PTX);
    }
}
