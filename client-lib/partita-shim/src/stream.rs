//! Streams: their handles, and the stream that a handle means.
//!
//! A stream handle may be 0 (the caller's default stream), `CU_STREAM_LEGACY`,
//! `CU_STREAM_PER_THREAD`, or the handle of a stream that a program created. A thread's own default
//! stream is made at its first use. It is not destroyed with the thread, because nothing may run
//! while a thread's storage is being destroyed.

use crate::error::{CuError, CuResult};
use crate::handles::{DeviceIndex, Handles, Kind};
use crate::runtime::Runtime;
use crate::stream_attributes::Attributes;
use partita_client::{MAX_GPUS, Session, StreamHandle};
use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// The best priority; lower numbers go first, 0 is the default and the worst.
pub const GREATEST_PRIORITY: i32 = -5;
/// `CU_STREAM_NON_BLOCKING`.
pub const NON_BLOCKING: u32 = 1;
const LEGACY: u64 = 1;
const PER_THREAD: u64 = 2;

thread_local! {
    /// This thread's default stream on each device: the generation of [`Streams`] that it belongs
    /// to, and its name.
    static OWN: [Cell<(u64, u64)>; MAX_GPUS] = const { [const { Cell::new((0, 0)) }; MAX_GPUS] };
}

/// Whether a handle means a default stream, of whichever device.
pub fn is_default(handle: u64) -> bool {
    handle <= PER_THREAD
}

/// Which default stream a program wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DefaultStream {
    /// One for all threads.
    Legacy,
    /// One for each thread.
    PerThread,
}

/// A stream that a program created.
pub struct Stream {
    /// Its name in the session.
    pub client: StreamHandle,
    /// `cuStreamGetFlags`.
    pub flags: u32,
    /// `cuStreamGetPriority`.
    pub priority: i32,
    /// The context that was current.
    pub context: u64,
}

/// All streams.
pub struct Streams {
    device: DeviceIndex,
    table: Handles<Stream>,
    /// The attributes that programs set.
    pub attributes: Attributes,
    /// Threads' default streams, which end with the context.
    own: Mutex<Vec<StreamHandle>>,
    /// Counts how often all streams were destroyed, from 1 on.
    generation: AtomicU64,
}

impl Streams {
    /// None.
    pub const fn new(device: DeviceIndex) -> Self {
        Streams {
            device,
            table: Handles::new(Kind::Stream, device),
            attributes: Attributes::new(),
            own: Mutex::new(Vec::new()),
            generation: AtomicU64::new(1),
        }
    }

    /// `cuStreamCreateWithPriority`.
    pub fn create(&self, runtime: &Runtime, flags: u32, priority: i32) -> CuResult<u64> {
        if flags & !NON_BLOCKING != 0 {
            return Err(CuError::INVALID_VALUE);
        }
        let context = runtime.contexts.current()?;
        let priority = priority.clamp(GREATEST_PRIORITY, 0);
        let client = runtime.session.create_stream(flags & NON_BLOCKING != 0, priority)?;
        self.table.insert(Stream { client, flags, priority, context })
    }

    /// `cuStreamDestroy`.
    pub fn destroy(&self, session: &Session, handle: u64) -> CuResult<StreamHandle> {
        let stream = self.table.remove(handle)?;
        self.attributes.forget(stream.client);
        session.destroy_stream(stream.client)?;
        Ok(stream.client)
    }

    /// Whether a stream is ordered with the legacy default stream.
    pub fn is_blocking(&self, handle: u64) -> CuResult<bool> {
        Ok(self.created(handle)?.is_none_or(|stream| stream.flags & NON_BLOCKING == 0))
    }

    /// A stream that a program created; `None` for the default streams.
    pub fn created(&self, handle: u64) -> CuResult<Option<std::sync::Arc<Stream>>> {
        match handle {
            0 | LEGACY | PER_THREAD => Ok(None),
            handle => self.table.get(handle).map(Some),
        }
    }

    /// The stream that a handle means.
    pub fn resolve(
        &self,
        session: &Session,
        handle: u64,
        default: DefaultStream,
    ) -> CuResult<StreamHandle> {
        match (handle, default) {
            (LEGACY, _) | (0, DefaultStream::Legacy) => Ok(StreamHandle::LEGACY),
            (PER_THREAD, _) | (0, DefaultStream::PerThread) => self.own(session),
            _ => Ok(self.table.get(handle)?.client),
        }
    }

    /// A number for a stream that no other has (`cuStreamGetId`).
    pub fn id(&self, session: &Session, handle: u64, default: DefaultStream) -> CuResult<u64> {
        Ok(self.resolve(session, handle, default)?.0)
    }

    /// Destroys all streams.
    pub fn clear(&self, session: &Session) {
        self.generation.fetch_add(1, Ordering::Relaxed);
        let own = std::mem::take(&mut *self.lock_own());
        let created = self.table.remove_where(|_| true);
        for stream in own.into_iter().chain(created.iter().map(|stream| stream.client)) {
            self.attributes.forget(stream);
            // A stream that cannot be destroyed any more ends with the session.
            let _ = session.destroy_stream(stream);
        }
    }

    /// The calling thread's default stream.
    fn own(&self, session: &Session) -> CuResult<StreamHandle> {
        let generation = self.generation.load(Ordering::Relaxed);
        let device = usize::from(self.device.0);
        let (made_in, name) = OWN.with(|own| own[device].get());
        if made_in == generation {
            return Ok(StreamHandle(name));
        }
        let stream = session.create_stream(false, 0)?;
        self.lock_own().push(stream);
        OWN.with(|own| own[device].set((generation, stream.0)));
        Ok(stream)
    }

    fn lock_own(&self) -> std::sync::MutexGuard<'_, Vec<StreamHandle>> {
        self.own.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
