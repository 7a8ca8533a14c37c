//! The handshake with a client: its user, its protocol version, and the GPU that it gets.
//!
//! Each client has a task with a deadline: a slow or silent client keeps no other waiting. The
//! number of clients at the desk is bounded (`places`). The kernel reports the user; a
//! container's user is accounted to its owner (`owners`). Names from the client are for display
//! only. A client that is welcome goes to `partita-gpu` with its socket, which answers the client.

use crate::gpus::{Gpu, Gpus};
use crate::link::AskError;
use crate::owners::Owners;
use crate::places::{Full, Limits, Places};
use partita_model::{SessionId, TenantId};
use partita_wire::supervise::{Greeting, HandOver, Peer};
use partita_wire::{Answer, GpuOffer, GpuWish, Hello, Refusal, RefusalCode};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::io::Interest;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

/// The longest time from a client's connection to its hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest time that a client waits for a restarting data plane.
const GPU_PATIENCE: Duration = Duration::from_secs(60);

/// The most clients at the desk at a time.
const CLIENTS: Limits = Limits { all: 512, user: 128, admin: 128 };

/// Refused clients that may finish their hello at a time, and for how long.
const LINGERING: usize = 32;
const LINGER: Duration = Duration::from_secs(1);

/// The pause after a failed accept, which is usually a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// More than any hello has.
const HELLO_BYTES: usize = 4096;

/// Serves clients until it is dropped. The sockets are `SEQPACKET` sockets in spite of the types'
/// names: they receive and send whole packets.
pub async fn serve(listener: UnixListener, gpus: Gpus, owners: Owners) {
    // Sessions that were there before keep their ids.
    let links = gpus.all().iter().filter_map(|gpu| gpu.handle.state().link);
    let next_session = links.map(|link| link.next_session().0).max().unwrap_or(1);
    let desk = Arc::new(Desk {
        gpus,
        owners,
        places: Places::new(CLIENTS, rustix::process::geteuid().as_raw()),
        lingering: Semaphore::new(LINGERING),
        next_session: AtomicU64::new(next_session),
    });
    loop {
        match listener.accept().await {
            Ok((client, _)) => {
                let desk = Arc::clone(&desk);
                tokio::spawn(async move { desk.receive(client).await });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a client");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

struct Desk {
    gpus: Gpus,
    owners: Owners,
    places: Arc<Places>,
    /// Refused clients that may still say their hello.
    lingering: Semaphore,
    next_session: AtomicU64,
}

/// The answer to a client.
enum Choice<'a> {
    /// A session on this GPU.
    Gpu(&'a Gpu),
    /// The GPUs to choose from.
    Offer(Vec<GpuOffer>),
}

/// Why a client was not welcomed.
#[derive(Debug, thiserror::Error)]
enum Turned {
    #[error("it was refused: {}", .0.text)]
    Refused(Refusal),
    #[error("it said no hello within {} s", HELLO_TIMEOUT.as_secs())]
    Silent,
    #[error("it left before its hello")]
    Left,
    #[error("its socket failed: {0}")]
    Io(#[from] io::Error),
}

impl Desk {
    async fn receive(&self, client: UnixStream) {
        // rustix's `socket_peercred` has no value for the process id 0, which the kernel reports
        // for a process of a PID namespace that this one does not see.
        let peer = match client.peer_cred() {
            Ok(peer) => Peer {
                pid: peer.pid().unwrap_or(0).cast_unsigned(),
                uid: self.owners.of(peer.uid()),
                gid: peer.gid(),
            },
            Err(error) => {
                tracing::warn!(%error, "cannot tell who connected");
                return;
            }
        };
        let _place = match self.places.take(Some(peer.uid)) {
            Ok(place) => place,
            Err(full) => {
                let text = match full {
                    Full::User { most } => format!(
                        "uid {} has {most} connections that have not become sessions: try again \
                         in some seconds",
                        peer.uid
                    ),
                    Full::All { most } => format!(
                        "{most} connections have not become sessions: try again in some seconds"
                    ),
                };
                refuse(&client, Refusal { code: RefusalCode::Full, text });
                // A client that still writes its hello would see a broken pipe.
                if let Ok(_permit) = self.lingering.try_acquire() {
                    drop(tokio::time::timeout(LINGER, read_hello(&client)).await);
                }
                return;
            }
        };
        if let Err(reason) = self.welcome(&client, peer).await {
            tracing::info!(pid = peer.pid, tenant = peer.uid, "client turned away: {reason}");
            if let Turned::Refused(refusal) = reason {
                refuse(&client, refusal);
            }
        }
    }

    async fn welcome(&self, client: &UnixStream, peer: Peer) -> Result<(), Turned> {
        let hello = tokio::time::timeout(HELLO_TIMEOUT, read_hello(client))
            .await
            .map_err(|_| Turned::Silent)??;
        let unavailable = |text: &str| {
            Turned::Refused(Refusal { code: RefusalCode::Unavailable, text: text.into() })
        };
        let gpu = match self.choose(hello.gpu, TenantId(peer.uid)).map_err(Turned::Refused)? {
            Choice::Gpu(gpu) => &gpu.handle,
            Choice::Offer(offers) => {
                answer(client, &Answer::Offer(offers));
                return Ok(());
            }
        };
        let deadline = Instant::now() + GPU_PATIENCE;
        let mut link = gpu.link(GPU_PATIENCE).await;
        let greeting = Greeting {
            program: printable(&hello.program),
            application: Some(printable(&hello.application)).filter(|tag| !tag.is_empty()),
            terms: hello.terms,
            features: hello.features,
        };
        loop {
            let to = link.ok_or_else(|| {
                unavailable("partita-gpu is being restarted: try again in some seconds")
            })?;
            let session = SessionId(self.next_session.fetch_add(1, Ordering::Relaxed));
            let hand_over = HandOver { session, peer, greeting: greeting.clone() };
            match to.hand_over(&hand_over, client.as_fd()).await {
                Ok(()) => {
                    let program = greeting.program;
                    tracing::debug!(
                        session = session.0,
                        pid = peer.pid,
                        tenant = peer.uid,
                        program,
                        "handed over"
                    );
                    return Ok(());
                }
                Err(AskError::Gone) => {
                    tracing::info!(
                        session = session.0,
                        pid = peer.pid,
                        tenant = peer.uid,
                        "partita-gpu died first: the client waits for the next"
                    );
                    let patience = deadline.saturating_duration_since(Instant::now());
                    link = gpu.link_after(&to, patience).await;
                }
                Err(error) => {
                    let (session, tenant) = (session.0, peer.uid);
                    tracing::warn!(%error, session, tenant, "cannot hand a client to partita-gpu");
                    return Err(unavailable(
                        "partita-gpu does not answer: try again in some seconds",
                    ));
                }
            }
        }
    }

    /// The GPU of a client, or the offer where the client must choose.
    fn choose(&self, wish: GpuWish, tenant: TenantId) -> Result<Choice<'_>, Refusal> {
        let refused = |text: String| Refusal { code: RefusalCode::Forbidden, text };
        let admin =
            "an administrator can name the user in [[policy.gpu]] of the daemon's configuration";
        let mut admitting = self.gpus.admitting(tenant);
        let none = || refused(format!("uid {} may use no GPU of this daemon: {admin}", tenant.0));
        let first = admitting.next().ok_or_else(none)?;
        match wish {
            GpuWish::Number(number) => {
                let found = self
                    .gpus
                    .get(number)
                    .ok_or_else(|| refused(format!("there is no {number} here")))?;
                match found.admits(tenant) {
                    true => Ok(Choice::Gpu(found)),
                    false => {
                        Err(refused(format!("uid {} may not use {number}: {admin}", tenant.0)))
                    }
                }
            }
            GpuWish::Only if admitting.next().is_some() => {
                Ok(Choice::Offer(self.gpus.offers(tenant)))
            }
            GpuWish::First | GpuWish::Only => Ok(Choice::Gpu(first)),
        }
    }
}

async fn read_hello(client: &UnixStream) -> Result<Hello, Turned> {
    let mut buffer = [0; HELLO_BYTES];
    // Without room for ancillary data, the kernel closes descriptors that a client sends.
    let received = client
        .async_io(Interest::READABLE, || {
            Ok(recv(client, &mut buffer[..], RecvFlags::DONTWAIT | RecvFlags::TRUNC)?)
        })
        .await;
    let bytes = match received {
        Ok((_, 0)) => return Err(Turned::Left),
        Ok((_, bytes)) => bytes,
        Err(error) if error.raw_os_error() == Some(Errno::CONNRESET.raw_os_error()) => {
            return Err(Turned::Left);
        }
        Err(error) => return Err(error.into()),
    };
    let message = buffer.get(..bytes).ok_or_else(|| {
        let text =
            format!("the client's hello has {bytes} bytes, at most {HELLO_BYTES} are possible");
        Turned::Refused(Refusal { code: RefusalCode::Malformed, text })
    })?;
    Hello::decode(message).map_err(|error| Turned::Refused(error.into()))
}

fn refuse(client: &UnixStream, refusal: Refusal) {
    answer(client, &Answer::Refused(refusal));
}

fn answer(client: &UnixStream, answer: &Answer) {
    if let Err(error) = send(client, &answer.encode(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
        tracing::debug!(%error, "an answer was not delivered");
    }
}

/// A name without characters that could deceive a reader of logs and tables.
fn printable(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}
