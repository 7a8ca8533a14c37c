//! The link to one `partita-gpu`, and the handle that outlives the process.
//!
//! A [`Link`] belongs to one process and ends with it. Every open question then ends with
//! [`AskError::Gone`]; a client that the process had not answered may go to the next process. A
//! [`GpuHandle`] has the current link, if there is one. One task writes whole messages to the
//! control socket: a caller that goes away within a question, such as an HTTP client that hangs up,
//! harms no other.

use crate::patience::{ANSWER_LIMIT, in_time};
use crate::recent::{self, Recent};
use partita_model::{DeviceFacts, GpuConfig, SessionId};
use partita_wire::supervise::{
    Answer, Ask, FrameError, FrameReader, FromGpu, HandOver, Ready, ToGpu, encode,
};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, mpsc, oneshot, watch};

/// Requests that may wait for the socket.
const OUTBOX: usize = 64;

/// Why a `partita-gpu` could not be greeted.
#[derive(Debug, thiserror::Error)]
pub enum GreetError {
    /// It ended or closed its side before it was ready.
    #[error("partita-gpu ended before its device was ready")]
    Ended,
    /// It said something else than [`FromGpu::Ready`].
    #[error("partita-gpu did not say that it is ready, but {0}")]
    Unexpected(String),
    /// What it said cannot be read.
    #[error("partita-gpu is of another version: {0}; install both programs of one version")]
    Frame(#[from] FrameError),
    /// The system's word.
    #[error("the control socket failed: {0}")]
    Io(#[from] io::Error),
}

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// There is no `partita-gpu` at the moment, or it died while it was asked.
    #[error("partita-gpu is being restarted")]
    Gone,
    /// It did not answer in time ([`crate::patience`]).
    #[error("partita-gpu has not answered for {} s", ANSWER_LIMIT.as_secs())]
    Timeout,
    /// The question cannot be sent.
    #[error(transparent)]
    Frame(#[from] FrameError),
}

/// What the process has not answered yet.
#[derive(Debug, Default)]
struct Open {
    /// Questions, by id.
    questions: HashMap<u64, oneshot::Sender<Answer>>,
    /// Clients that were handed over, by session.
    clients: HashMap<SessionId, oneshot::Sender<()>>,
}

/// `None` once no answer can come any more.
type Waiting = Arc<Mutex<Option<Open>>>;

/// The line to one `partita-gpu`.
#[derive(Debug)]
pub struct Link {
    ready: Ready,
    outbox: mpsc::Sender<Vec<u8>>,
    waiting: Waiting,
    news: Arc<Notify>,
    recent: Arc<Recent>,
    next_id: AtomicU64,
    /// Closed with the control socket.
    open: watch::Receiver<()>,
    /// A `SEQPACKET` socket: only whole packets are sent on it, see [`Link::hand_over`].
    sessions: UnixStream,
}

impl Link {
    /// Waits until the process at the other end of `control` is ready.
    ///
    /// # Errors
    /// [`GreetError`].
    pub async fn greet(control: UnixStream, sessions: OwnedFd) -> Result<Arc<Link>, GreetError> {
        let (mut from_gpu, to_gpu) = control.into_split();
        let mut frames = FrameReader::default();
        let ready = match receive(&mut from_gpu, &mut frames).await? {
            Some(FromGpu::Ready(ready)) => *ready,
            Some(other) => return Err(GreetError::Unexpected(format!("{other:?}"))),
            None => return Err(GreetError::Ended),
        };
        let (outbox, messages) = mpsc::channel(OUTBOX);
        let waiting = Waiting::new(Mutex::new(Some(Open::default())));
        tokio::spawn(write_messages(to_gpu, messages));
        let news = Arc::new(Notify::new());
        let (end, open) = watch::channel(());
        let told = Arc::clone(&news);
        let recent = Arc::new(Recent::default());
        let reader = Reader { waiting: Arc::clone(&waiting), news: told, recent: recent.clone() };
        tokio::spawn(reader.read_answers(from_gpu, frames, end));
        let sessions = UnixStream::from_std(sessions.into())?;
        let next_id = AtomicU64::new(1);
        Ok(Arc::new(Link { ready, outbox, waiting, news, recent, next_id, open, sessions }))
    }

    /// The device that it serves.
    #[must_use]
    pub fn facts(&self) -> &DeviceFacts {
        &self.ready.facts
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.ready.pid
    }

    /// The version of its package.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.ready.version
    }

    /// No session of this id or a greater one was there when the link was made.
    #[must_use]
    pub fn next_session(&self) -> SessionId {
        self.ready.next_session
    }

    /// The configuration that was in force when the link was made.
    #[must_use]
    pub fn config_found(&self) -> Option<&GpuConfig> {
        self.ready.config.as_ref()
    }

    /// Waits until no answer can come any more: the process has ended, or the line was cut.
    pub async fn closed(&self) {
        let mut open = self.open.clone();
        while open.changed().await.is_ok() {}
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// [`AskError`].
    pub async fn ask(&self, ask: Ask) -> Result<Answer, AskError> {
        self.ask_within(ANSWER_LIMIT, ask).await
    }

    /// Waits for the answer to a heartbeat. The thread that owns engine and device gives it.
    ///
    /// # Errors
    /// As [`Link::ask`]; [`AskError::Timeout`] after `limit`.
    pub async fn beat(&self, limit: Duration) -> Result<(), AskError> {
        self.ask_within(limit, Ask::Heartbeat).await.map(drop)
    }

    /// Waits until the process announces events ([`FromGpu::News`]). One caller at a time.
    pub async fn news(&self) {
        self.news.notified().await;
    }

    /// The status that was told last, for [`Link::recent_status`].
    #[must_use]
    pub fn recent(&self) -> &Recent {
        &self.recent
    }

    /// A status that is not too old to be told ([`Recent`]).
    #[must_use]
    pub fn recent_status(&self) -> Option<recent::Found> {
        let is_nobody_coming =
            lock(&self.waiting).as_ref().is_some_and(|open| open.clients.is_empty());
        is_nobody_coming.then(|| self.recent.get(Instant::now())).flatten()
    }

    async fn ask_within(&self, limit: Duration, ask: Ask) -> Result<Answer, AskError> {
        let is_change = recent::is_change(&ask);
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let frame = encode(&ToGpu { id, ask })?;
        let (sender, answer) = oneshot::channel();
        lock(&self.waiting).as_mut().ok_or(AskError::Gone)?.questions.insert(id, sender);
        let forget = Forget { waiting: &self.waiting, what: What::Question(id) };
        let exchange = async {
            self.outbox.send(frame).await.map_err(|_| AskError::Gone)?;
            answer.await.map_err(|_| AskError::Gone)
        };
        let result = in_time(self.pid(), limit, exchange).await;
        drop(forget);
        let result = result.unwrap_or(Err(AskError::Timeout));
        if is_change || result.as_ref().is_ok_and(recent::tells_events) {
            self.recent.changed();
        }
        result
    }

    /// Gives a client to the process and waits until the process has answered it.
    ///
    /// # Errors
    /// [`AskError::Gone`] where the process died before: the client is as it was before.
    pub async fn hand_over(
        &self,
        session: &HandOver,
        client: BorrowedFd<'_>,
    ) -> Result<(), AskError> {
        let (sender, answered) = oneshot::channel();
        lock(&self.waiting).as_mut().ok_or(AskError::Gone)?.clients.insert(session.session, sender);
        let forget = Forget { waiting: &self.waiting, what: What::Client(session.session) };
        let exchange = async {
            self.send_client(session, client).await.map_err(|error| {
                tracing::debug!(%error, "the sessions socket ended");
                AskError::Gone
            })?;
            answered.await.map_err(|_| AskError::Gone)
        };
        let result = in_time(self.pid(), ANSWER_LIMIT, exchange).await;
        drop(forget);
        result.unwrap_or(Err(AskError::Timeout))
    }

    async fn send_client(&self, session: &HandOver, client: BorrowedFd<'_>) -> io::Result<()> {
        let packet = serde_json::to_vec(session)?;
        self.sessions
            .async_io(Interest::WRITABLE, || {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                let mut ancillary = SendAncillaryBuffer::new(&mut space);
                let descriptors = [client];
                // The space was measured for exactly one descriptor.
                assert!(
                    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)),
                    "one descriptor fits"
                );
                sendmsg(
                    &self.sessions,
                    &[IoSlice::new(&packet)],
                    &mut ancillary,
                    SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
                )?;
                Ok(())
            })
            .await
    }
}

/// Forgets what is open, however the one who waits for it ends.
struct Forget<'a> {
    waiting: &'a Waiting,
    what: What,
}

enum What {
    Question(u64),
    Client(SessionId),
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        if let Some(open) = lock(self.waiting).as_mut() {
            match self.what {
                What::Question(id) => drop(open.questions.remove(&id)),
                What::Client(session) => drop(open.clients.remove(&session)),
            }
        }
    }
}

fn lock(waiting: &Waiting) -> MutexGuard<'_, Option<Open>> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn write_messages(mut to_gpu: OwnedWriteHalf, mut messages: mpsc::Receiver<Vec<u8>>) {
    while let Some(message) = messages.recv().await {
        if let Err(error) = to_gpu.write_all(&message).await {
            tracing::debug!(%error, "the control socket ended");
            return;
        }
    }
}

/// What the reader of the control socket shares with its link.
struct Reader {
    waiting: Waiting,
    news: Arc<Notify>,
    recent: Arc<Recent>,
}

impl Reader {
    async fn read_answers(
        self,
        mut from_gpu: OwnedReadHalf,
        mut frames: FrameReader,
        end: watch::Sender<()>,
    ) {
        loop {
            match receive(&mut from_gpu, &mut frames).await {
                Ok(Some(FromGpu::Answer { id, answer })) => {
                    let mut open = lock(&self.waiting);
                    let asker = open.as_mut().and_then(|open| open.questions.remove(&id));
                    // An asker that has gone away needs no answer.
                    asker.map(|asker| asker.send(answer));
                }
                Ok(Some(FromGpu::ClientAnswered { session })) => {
                    // In this order: one of the two holds earlier statuses back at any moment.
                    self.recent.changed();
                    let mut open = lock(&self.waiting);
                    let desk = open.as_mut().and_then(|open| open.clients.remove(&session));
                    desk.map(|desk| desk.send(()));
                }
                Ok(Some(FromGpu::News)) => self.news.notify_one(),
                Ok(Some(other)) => {
                    tracing::error!(?other, "partita-gpu said something that is no answer")
                }
                Ok(None) => break,
                Err(error) => {
                    tracing::error!(%error, "what partita-gpu says cannot be read");
                    break;
                }
            }
        }
        *lock(&self.waiting) = None;
        drop(end);
    }
}

async fn receive(
    from_gpu: &mut OwnedReadHalf,
    frames: &mut FrameReader,
) -> Result<Option<FromGpu>, GreetError> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        if let Some(message) = frames.next_message()? {
            return Ok(Some(message));
        }
        match from_gpu.read(&mut buffer).await {
            Ok(0) => return Ok(None),
            Ok(bytes) => frames.push(&buffer[..bytes]),
            // A process that was killed with unread bytes in its socket resets it.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

/// What is known of the data plane.
#[derive(Clone, Default, Debug)]
pub struct GpuState {
    /// The current process, if one is ready.
    pub link: Option<Arc<Link>>,
    /// The device, once it was seen.
    pub facts: Option<DeviceFacts>,
    /// How often the process has been started again.
    pub restarts: u32,
    /// Why it was started again the last time.
    pub last_restart: Option<String>,
}

/// The data plane, whichever process it is at the moment.
#[derive(Clone, Debug)]
pub struct GpuHandle(watch::Receiver<GpuState>);

impl GpuHandle {
    /// A handle that follows what `state` says.
    #[must_use]
    pub fn new(state: watch::Receiver<GpuState>) -> Self {
        GpuHandle(state)
    }

    /// The state at this moment.
    #[must_use]
    pub fn state(&self) -> GpuState {
        self.0.borrow().clone()
    }

    /// The current link, waiting up to `patience` for one.
    pub async fn link(&self, patience: Duration) -> Option<Arc<Link>> {
        let mut state = self.0.clone();
        let state =
            tokio::time::timeout(patience, state.wait_for(|state| state.link.is_some())).await;
        state.ok()?.ok()?.link.clone()
    }

    /// A link other than `dead`, waiting up to `patience` for one.
    pub async fn link_after(&self, dead: &Arc<Link>, patience: Duration) -> Option<Arc<Link>> {
        let mut state = self.0.clone();
        let other =
            |state: &GpuState| state.link.as_ref().is_some_and(|link| !Arc::ptr_eq(link, dead));
        let state = tokio::time::timeout(patience, state.wait_for(other)).await;
        state.ok()?.ok()?.link.clone()
    }

    /// Waits until the current link is another one than `before`, or there is one where there
    /// was none. Waits for ever where nobody starts processes any more.
    pub async fn after(&self, before: Option<&Arc<Link>>) {
        let mut state = self.0.clone();
        let is_other = |state: &GpuState| match (&state.link, before) {
            (Some(now), Some(before)) => !Arc::ptr_eq(now, before),
            (now, before) => now.is_some() != before.is_some(),
        };
        if state.wait_for(is_other).await.is_err() {
            std::future::pending().await
        }
    }

    /// Waits until `link` is no longer the current one.
    pub async fn left(&self, link: &Arc<Link>) {
        let mut state = self.0.clone();
        let other =
            |state: &GpuState| state.link.as_ref().is_none_or(|now| !Arc::ptr_eq(now, link));
        drop(state.wait_for(other).await);
    }

    /// Asks the current process.
    ///
    /// # Errors
    /// [`AskError`].
    pub async fn ask(&self, ask: Ask) -> Result<Answer, AskError> {
        let link = self.state().link.ok_or(AskError::Gone)?;
        link.ask(ask).await
    }
}
