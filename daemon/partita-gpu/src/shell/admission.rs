//! New sessions: what `partitad` hands over of a client becomes a seat here, or a refusal that says
//! why not.
//!
//! Whatever fails concerns that client alone. It gets its memory, its place in the engine and one
//! answer.

use super::{Attention, FIRST_SESSION, Seat, Shell, watch};
use crate::control::ControlError;
use crate::session::ClientSession;
use partita_engine::{CloseReason, SessionIdentity};
use partita_model::{SessionId, TenantId};
use partita_wire::message::{self, MessageError};
use partita_wire::supervise::{FromGpu, Greeting, HandOver, MAX_HAND_OVER_BYTES};
use partita_wire::{
    FEATURES, PROTOCOL, Refusal, RefusalCode, ServerSession, Sizes, Welcome, Window,
};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

/// The most sessions at a time. Each needs two descriptors and some address space in this process.
const SESSIONS: usize = 4096;

impl Shell {
    pub(super) fn receive_sessions(&mut self) {
        loop {
            let Some(line) = &self.line else { return };
            match self.next_hand_over(&line.sessions) {
                Ok(packet) => self.receive_session(packet),
                Err(MessageError::System { source: Errno::AGAIN, .. }) => return,
                Err(MessageError::Closed) => return self.lose_line(&ControlError::Closed),
                Err(error) => {
                    return self.lose_line(&ControlError::Io(io::Error::other(error)));
                }
            }
        }
    }

    /// The next client that `partitad` has handed over, and who it is.
    pub(super) fn next_hand_over(
        &self,
        sessions: &OwnedFd,
    ) -> Result<(OwnedFd, Vec<u8>), MessageError> {
        let mut packet = message::receive(sessions, MAX_HAND_OVER_BYTES)?;
        let [client] = packet.take_fds()?;
        Ok((client, packet.bytes))
    }

    pub(super) fn receive_session(&mut self, (client, packet): (OwnedFd, Vec<u8>)) {
        match serde_json::from_slice::<HandOver>(&packet) {
            Ok(hand_over) => {
                let session = hand_over.session;
                self.count_session(session);
                self.welcome(&client, hand_over);
                self.tell(FromGpu::ClientAnswered { session });
            }
            Err(error) => {
                tracing::error!(%error, "partitad hands over something that is no session")
            }
        }
    }

    fn welcome(&mut self, client: &OwnedFd, hand_over: HandOver) {
        let HandOver { session: id, peer, greeting } = hand_over;
        match self.open(client, id, &hand_over_identity(id, peer.uid, peer.pid, &greeting)) {
            Ok(session) => {
                let attention = Attention::Awake(Instant::now());
                let tenant = TenantId(peer.uid);
                let pace = self.pacer.arrives(tenant, self.device.now(), Instant::now());
                self.seats.insert(
                    id,
                    Seat {
                        tenant,
                        session: ClientSession::new(session, greeting.features),
                        attention,
                        pace,
                        prepared: VecDeque::new(),
                        died: false,
                    },
                );
                tracing::info!(
                    session = id.0,
                    tenant = peer.uid,
                    pid = peer.pid,
                    program = greeting.program,
                    "session"
                );
            }
            Err(text) => {
                tracing::warn!(
                    session = id.0,
                    tenant = peer.uid,
                    pid = peer.pid,
                    "no session: {text}"
                );
                let refusal = Refusal { code: RefusalCode::Full, text };
                let answer = partita_wire::Answer::Refused(refusal).encode();
                if let Err(error) = message::send(client, &answer, &[]) {
                    tracing::debug!(%error, "a refusal was not delivered");
                }
            }
        }
    }

    /// Makes a session's memory, opens it in the engine and tells the client.
    fn open(
        &mut self,
        client: &OwnedFd,
        id: SessionId,
        identity: &SessionIdentity,
    ) -> Result<ServerSession, String> {
        if self.seats.len() >= SESSIONS {
            return Err(format!(
                "all {SESSIONS} sessions are taken: try again when a program has ended"
            ));
        }
        self.engine.check_tenant(identity.tenant).map_err(|error| error.to_string())?;
        let grant = self
            .engine
            .open_session(self.device.as_mut(), identity.clone())
            .map_err(|error| error.to_string())?;
        let mut session = match self.memory_of(id, grant.window.bytes) {
            Ok(session) => session,
            Err(text) => {
                self.close(id, CloseReason::Died);
                return Err(text);
            }
        };
        let layout = session.layout();
        let arena = crate::session::arena_memory(&session);
        self.engine.set_arena(id, Arc::clone(&arena));
        let host =
            partita_device::HostSpan::new(arena, layout.staging_bytes(), layout.host_bytes());
        let host = host.filter(|memory| memory.bytes() > 0).and_then(|memory| {
            self.engine.map_host(self.device.as_mut(), id, memory, layout.variable_bytes())
        });
        let welcome = Welcome {
            protocol: PROTOCOL,
            features: FEATURES,
            session: id,
            facts: self.device.facts().clone(),
            window: Window { base: grant.window.start, bytes: grant.window.bytes },
            layout,
            host: host.map(|range| range.start),
        };
        let answer = partita_wire::Answer::Welcome(Box::new(welcome)).encode();
        let fds = session.client_fds().expect("they have not been sent yet");
        let sent = message::send(client, &answer, &fds);
        session.sent_fds();
        if let Err(error) = sent {
            self.close(id, CloseReason::Died);
            return Err(format!("the client cannot be told: {error}"));
        }
        Ok(session)
    }

    /// The memory that the daemon shares with a program. Its host memory fits into its window.
    fn memory_of(&mut self, id: SessionId, window_bytes: u64) -> Result<ServerSession, String> {
        let usual = Sizes::default();
        let most = self.device.host_mapping().map_or(u64::MAX, |mapping| mapping.most_bytes());
        let host_bytes = usual.host_bytes.min(window_bytes / 4).min(most);
        let sizes = Sizes { host_bytes, ..usual };
        let session = ServerSession::create(sizes).map_err(|error| error.to_string())?;
        watch(&self.epoll, session.bell(), FIRST_SESSION + id.0)
            .map_err(|error| error.to_string())?;
        Ok(session)
    }
}

fn hand_over_identity(
    session: SessionId,
    uid: u32,
    pid: u32,
    greeting: &Greeting,
) -> SessionIdentity {
    SessionIdentity {
        session,
        tenant: TenantId(uid),
        pid,
        program: greeting.program.clone(),
        tag: greeting.application.clone(),
        asked: greeting.terms,
    }
}
