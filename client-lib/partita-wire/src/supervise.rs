//! Messages between `partitad` and `partita-gpu`.
//!
//! Two sockets join them, which `partitad` makes and hands over in a [`crate::call`]:
//!
//! - **control** (`SOCK_STREAM`): frames of a little-endian `u32` length and that many bytes of
//!   JSON. `partita-gpu` first sends [`FromGpu::Ready`]; then every [`ToGpu`] gets one
//!   [`FromGpu::Answer`] with its id, in any order, and every [`HandOver`] one
//!   [`FromGpu::ClientAnswered`]: a client without it goes to the next `partita-gpu`. End of file
//!   on it means that the other side is gone. `partita-gpu` then waits for the next call, and
//!   `partitad` calls again or starts a new process.
//! - **sessions** (`SOCK_SEQPACKET`, one way): each packet is the JSON of a [`HandOver`] with the
//!   client's socket as its only file descriptor.
//!
//! The two may be of different versions while the package is upgraded: the call tells the versions,
//! and nothing here changes its meaning within one major version of [`crate::call::CONTROL`].
//! Every message is checked: a bug in one side must not become a hang of the other.
//!
//! There is no I/O in this module: [`encode`] makes bytes, [`FrameReader`] takes them apart.

use partita_model::{
    AccountsReport, ApplicationId, DeviceFacts, EventBatch, GpuConfig, SessionId, SmSet,
    StatusReport, TenantId, Terms, TermsRule, TraceReport,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The largest frame. A full trace is the largest message, some tens of megabytes.
pub const MAX_FRAME_BYTES: usize = 256 << 20;

/// The name of the thread of `partita-gpu` that writes answers. Requests are answered by the main
/// thread and by this one.
pub const ANSWERING_THREAD: &str = "answers";

/// The largest packet of the sessions socket.
pub const MAX_HAND_OVER_BYTES: usize = 8 << 10;

/// A request of `partitad`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ToGpu {
    /// The number of the request, which the answer repeats.
    pub id: u64,
    /// The request.
    pub ask: Ask,
}

/// A request of `partitad` to `partita-gpu`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    /// Whether the thread that owns engine and device still turns, answered by [`Answer::Done`].
    Heartbeat,
    /// The state of applications and partitions, answered by [`Answer::Status`].
    Status,
    /// The residency trace, answered by [`Answer::Trace`]: that of one tenant's applications, or of
    /// all.
    Trace(Option<TenantId>),
    /// What applications have had, answered by [`Answer::Accounts`].
    Accounts,
    /// The events after the one with this number, answered by [`Answer::Events`]. Where the answer
    /// holds all that there are, the next event is announced once, by [`FromGpu::News`].
    Events {
        /// The last event that was told; 0 for none.
        after: u64,
    },
    /// Pins partitions, all of them or none, answered by [`Answer::Done`] or [`Answer::Refused`].
    SetPlan(PlanRequest),
    /// Gives every partition back to the policy, answered by [`Answer::Done`].
    ClearPlan,
    /// Ends what a session has queued or running, answered by [`Answer::Done`] or
    /// [`Answer::Refused`].
    CancelLaunches {
        /// The session.
        session: SessionId,
        /// The tenant that asks, who may end only its own; `None` is an administrator.
        by: Option<TenantId>,
    },
    /// Puts this configuration in force, answered by [`Answer::Done`] or [`Answer::Refused`].
    Configure(GpuConfig),
    /// What an application may have from now on, answered by [`Answer::Done`] or
    /// [`Answer::Refused`].
    SetTerms {
        /// The application.
        application: ApplicationId,
        /// Its terms.
        terms: Terms,
        /// The tenant that asks, who may ask only for its own; `None` is an administrator.
        by: Option<TenantId>,
    },
    /// What schedulers have reserved: the terms of jobs. Answered by [`Answer::Done`].
    Reserve(Vec<TermsRule>),
    /// Ends the process once it has no session: it is of an older version. Answered by
    /// [`Answer::Done`].
    EndWhenIdle,
    /// Ends the process with all its sessions. The end of the process is the answer.
    End,
}

/// A plan as an administrator writes it: the body of `PUT /v1/plan`.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanRequest {
    /// The partitions to pin. Applications that are not named keep what they have.
    pub partitions: Vec<PlannedPartition>,
}

/// One partition of a plan.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedPartition {
    /// The application.
    pub application: ApplicationId,
    /// Which SMs.
    pub sms: SmSet,
}

/// A message of `partita-gpu`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromGpu {
    /// The device is there and sessions may come. Sent once on each line, first.
    Ready(Box<Ready>),
    /// The answer to one request.
    Answer {
        /// The request's id.
        id: u64,
        /// The answer.
        answer: Answer,
    },
    /// There are events after those of the last [`Answer::Events`]. Sent at most once for each
    /// answer: who asks no more is told no more.
    News,
    /// A client that was handed over has its answer, a welcome or a refusal.
    ClientAnswered {
        /// The session of its [`HandOver`].
        session: SessionId,
    },
}

/// What a `partitad` that has just begun has to know of a `partita-gpu` that may be older.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Ready {
    /// The device.
    pub facts: DeviceFacts,
    /// The process.
    pub pid: u32,
    /// The version of its package.
    pub version: String,
    /// No session of this id or a greater one has been here.
    pub next_session: SessionId,
    /// The configuration in force, where one was given.
    pub config: Option<GpuConfig>,
}

/// An answer of `partita-gpu`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The answer to [`Ask::Status`]. `partitad` fills in what only it knows: version, process id,
    /// restarts and the reason for the last.
    Status(Box<StatusReport>),
    /// The answer to [`Ask::Trace`].
    Trace(TraceReport),
    /// The answer to [`Ask::Accounts`].
    Accounts(Box<AccountsReport>),
    /// The answer to [`Ask::Events`].
    Events(EventBatch),
    /// The request is done.
    Done,
    /// Nothing was changed.
    Refused {
        /// The kind of refusal, for the status code of the API.
        kind: RefusalKind,
        /// The reason and its remedy for people.
        detail: String,
    },
}

/// The kind of a refusal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalKind {
    /// The request names something that does not exist.
    NotFound,
    /// The request contradicts what is in force, for example SMs that another application holds.
    Conflict,
    /// The one who asks has no right to it.
    Forbidden,
    /// The request can never be carried out, for example SMs that the device lacks.
    Invalid,
}

/// A client that has said hello and is welcome: `partita-gpu` makes its memory and answers it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HandOver {
    /// The id of its session, unique in the life of this `partitad`.
    pub session: SessionId,
    /// The credentials of the peer, from the kernel.
    pub peer: Peer,
    /// The client's own words. They are names only: nothing is granted because of them.
    pub greeting: Greeting,
}

/// The credentials of a connected process (`SO_PEERCRED`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Peer {
    /// Process id; 0 where the process is in a PID namespace that `partitad` does not see.
    pub pid: u32,
    /// User id, that of the owner for a subordinate id: the tenant.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// The names in a client's hello.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Greeting {
    /// Name of the program.
    pub program: String,
    /// Sessions of one tenant with the same tag are one application; without one, a session is its
    /// own.
    pub application: Option<String>,
    /// What the program asks for itself.
    #[serde(default)]
    pub terms: Terms,
    /// The client's optional features.
    #[serde(default)]
    pub features: u64,
}

/// The reason why a frame cannot be read. The connection is of no use afterwards.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The length is out of bounds.
    #[error("a frame of {bytes} bytes, at most {MAX_FRAME_BYTES} are possible")]
    TooLarge {
        /// The announced or needed length in bytes.
        bytes: usize,
    },
    /// The frame holds no message that this side knows.
    #[error("a frame that is no message of this version")]
    Malformed(#[from] serde_json::Error),
}

/// A message as a frame.
///
/// # Errors
/// [`FrameError::TooLarge`].
pub fn encode(message: &impl Serialize) -> Result<Vec<u8>, FrameError> {
    let mut frame = vec![0; LENGTH_BYTES];
    serde_json::to_writer(&mut frame, message)?;
    let bytes = frame.len() - LENGTH_BYTES;
    let length = u32::try_from(bytes)
        .ok()
        .filter(|_| bytes <= MAX_FRAME_BYTES)
        .ok_or(FrameError::TooLarge { bytes })?;
    frame[..LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
    Ok(frame)
}

const LENGTH_BYTES: usize = 4;

/// Takes a byte stream apart into frames.
#[derive(Default, Debug)]
pub struct FrameReader {
    bytes: Vec<u8>,
}

impl FrameReader {
    /// Appends received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next complete message, if there is one.
    ///
    /// # Errors
    /// [`FrameError`]; nothing that follows can be read then.
    pub fn next_message<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FrameError> {
        let Some((length, rest)) = self.bytes.split_first_chunk::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*length) as usize;
        if length > MAX_FRAME_BYTES {
            return Err(FrameError::TooLarge { bytes: length });
        }
        let Some(body) = rest.get(..length) else {
            return Ok(None);
        };
        let message = serde_json::from_slice(body)?;
        self.bytes.drain(..LENGTH_BYTES + length);
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_model::{
        ApplicationAccount, Bytes, ComputeCapability, CopyKind, DeviceKind, Entitlement, GpuEvent,
        GpuNumber, GpuReport, Happening, JobAccount, JobUsage, LaunchId, Nanos, OperationId,
        PartitionReport, PolicyConfig, PolicyReport, ResidencyChange, ResidencyKind, ResizeReason,
        Share, SmId, SmPart, StreamId, Timekeeping, Totals, TraceEntry, TracedCopy, Usage,
    };

    fn check<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(message: T) {
        let frame = encode(&message).unwrap();
        let mut reader = FrameReader::default();
        let (last, first) = frame.split_last().unwrap();
        for byte in first {
            reader.push(&[*byte]);
            assert!(reader.next_message::<T>().unwrap().is_none());
        }
        reader.push(&[*last, 1]);
        assert_eq!(reader.next_message::<T>().unwrap(), Some(message));
        assert_eq!(reader.bytes, [1], "bytes of the next frame are kept");
    }

    fn facts() -> DeviceFacts {
        DeviceFacts {
            kind: DeviceKind::Emulated,
            timekeeping: Timekeeping::Simulated,
            name: "small".into(),
            uuid: [7; 16],
            compute_capability: ComputeCapability { major: 9, minor: 0 },
            sm_count: 24,
            sm_clock_khz: 1_000_000,
            memory_clock_khz: 1_000_000,
            memory_bus_bits: 512,
            memory: Bytes(1 << 30),
            llc: Bytes(1 << 20),
            threads_per_sm: 2048,
            ctas_per_sm: 32,
            registers_per_sm: 65536,
            shared_per_sm: Bytes(65536),
            shared_per_cta: Bytes(49152),
            shared_per_cta_optin: Bytes(65536),
            threads_per_cta: 1024,
            register_parts: 4,
            shared_reserved: Bytes(1024),
            absent_sms: SmSet::EMPTY,
        }
    }

    #[test]
    fn messages_round_trip() {
        for ask in [
            Ask::Heartbeat,
            Ask::Status,
            Ask::Accounts,
            Ask::Events { after: 7 },
            Ask::Trace(None),
            Ask::Trace(Some(TenantId(7))),
            Ask::ClearPlan,
            Ask::End,
            Ask::EndWhenIdle,
            Ask::CancelLaunches { session: SessionId(4), by: Some(TenantId(7)) },
            Ask::Configure(GpuConfig {
                policy: PolicyConfig {
                    shares: vec![Share { tenant: None, tag: Some("a".into()), sms: 3 }],
                    ..PolicyConfig::default()
                },
                ..GpuConfig::default()
            }),
            Ask::SetPlan(PlanRequest {
                partitions: vec![PlannedPartition {
                    application: ApplicationId(1),
                    sms: "0-17,20".parse().unwrap(),
                }],
            }),
        ] {
            check(ToGpu { id: 9, ask });
        }
        check(FromGpu::News);
        check(FromGpu::Ready(Box::new(Ready {
            facts: facts(),
            pid: 4,
            version: "1".into(),
            next_session: SessionId(7),
            config: Some(GpuConfig::default()),
        })));
        check(FromGpu::ClientAnswered { session: SessionId(u64::MAX) });
        let residency = TraceEntry::Residency {
            change: ResidencyChange {
                time: Nanos(5),
                sm: SmId(3),
                grid: OperationId(8),
                cta: 1 << 40,
                kind: ResidencyKind::Exit,
            },
            application: ApplicationId(2),
            launch: LaunchId(4),
        };
        let resize = TraceEntry::Resize {
            time: Nanos(6),
            application: ApplicationId(2),
            from: SmSet::EMPTY,
            to: SmSet::range(0, 3),
        };
        let status = StatusReport {
            version: "1".into(),
            gpu: GpuReport {
                number: GpuNumber(1),
                name: "small".into(),
                kind: DeviceKind::Emulated,
                timekeeping: Timekeeping::Simulated,
                compute_capability: ComputeCapability { major: 9, minor: 0 },
                sms: 24,
                memory_bytes: 1,
                memory_used_bytes: 0,
                device_time_ns: 3,

                host_time: None,
                patience_exceeded: 0,
                stray_accesses: 0,
                limits: Vec::new(),
                energy_nj: Some(9),
                calibration: None,
                measured: None,
                pid: 4,
                restarts: 5,
                last_restart: Some("it ended".into()),
            },
            applications: Vec::new(),
            partitions: vec![PartitionReport {
                application: ApplicationId(1),
                sms: SmSet::range(0, 24),
                pinned: true,
                part: SmPart::new(3, 8),
            }],
            policy: PolicyReport { partitioner: "even".into(), ..PolicyReport::default() },
            other_users: None,
            others: Vec::new(),
        };
        let border = GpuEvent {
            sequence: 3,
            time: Nanos(9),
            tenant: Some(TenantId(7)),
            what: Happening::Border {
                application: ApplicationId(1),
                from: SmSet::EMPTY,
                to: SmSet::range(0, 3),
            },
        };
        let accounts = AccountsReport {
            time: Nanos(1),
            memory_used_bytes: 2,
            energy_nj: None,
            decisions: 3,
            applications: vec![ApplicationAccount {
                id: ApplicationId(1),
                name: "poly".into(),
                tag: None,
                tenant: TenantId(7),
                sessions: 1,
                sms: 12,
                memory_used_bytes: 2,
                launches: 3,
                ctas: 4,
                stuck: false,
                entitlement: Some(Entitlement { min: 4, ..Entitlement::default() }),
                target: None,
                usage: Usage { progress: Some(0.5), ..Usage::default() },
            }],
            totals: Totals { resizes: [(ResizeReason::Plan, 2)].into(), ..Totals::default() },
            jobs: vec![JobAccount {
                tenant: TenantId(7),
                tag: "job".into(),
                used: JobUsage { sm_ns: 9, compared_ns: 4, alone_ns: 3 },
            }],
        };
        for answer in [
            Answer::Done,
            Answer::Events(EventBatch { events: vec![border], lost: 2, more: true, last: 9 }),
            Answer::Accounts(Box::new(accounts)),
            Answer::Trace(TraceReport {
                timekeeping: Timekeeping::Off,
                entries: vec![residency, resize],
                dropped: 1,
                copies: vec![TracedCopy {
                    application: ApplicationId(2),
                    session: SessionId(3),
                    stream: StreamId(4),
                    operation: OperationId(5),
                    kind: CopyKind::DeviceToHost,
                    bytes: 1 << 40,
                    start: Nanos(6),
                    end: Nanos(7),
                }],
                dropped_copies: 2,
            }),
            Answer::Status(Box::new(status)),
            Answer::Refused {
                kind: RefusalKind::Conflict,
                detail: "SM 3 is application 2's".into(),
            },
        ] {
            check(FromGpu::Answer { id: u64::MAX, answer });
        }
        check(HandOver {
            session: SessionId(3),
            peer: Peer { pid: 1, uid: 2, gid: 3 },
            greeting: Greeting {
                program: "poly".into(),
                application: Some("a \"b\"".into()),
                terms: Terms::default(),
                features: 5,
            },
        });
    }

    /// A `partita-gpu` from before copies were traced tells none, and a `partitad` from before them
    /// leaves them out: both read the other's trace.
    #[test]
    fn traces_with_and_without_copies_are_read() {
        let old = r#"{"timekeeping":"off","entries":[],"dropped":3}"#;
        let read: TraceReport = serde_json::from_str(old).unwrap();
        let empty = TraceReport { dropped: 3, ..TraceReport::new(Timekeeping::Off, Vec::new()) };
        assert_eq!(read, empty);

        /// `TraceReport` as it was.
        #[derive(Deserialize)]
        struct Before {
            entries: Vec<TraceEntry>,
            dropped: u64,
        }
        let copy = TracedCopy {
            application: ApplicationId(2),
            session: SessionId(3),
            stream: StreamId(4),
            operation: OperationId(5),
            kind: CopyKind::Fill,
            bytes: 4,
            start: Nanos(6),
            end: Nanos(7),
        };
        let new = TraceReport { copies: vec![copy], ..empty };
        let Before { entries, dropped } =
            serde_json::from_str(&serde_json::to_string(&new).unwrap()).unwrap();
        assert_eq!((entries.len(), dropped), (0, 3));
    }

    #[test]
    fn bad_frames_are_refused() {
        let mut reader = FrameReader::default();
        reader.push(&u32::MAX.to_le_bytes());
        assert!(matches!(reader.next_message::<ToGpu>(), Err(FrameError::TooLarge { .. })));
        let told = |bytes: usize| {
            let mut reader = FrameReader::default();
            reader.push(&u32::try_from(bytes).unwrap().to_le_bytes());
            reader.next_message::<ToGpu>()
        };
        assert!(matches!(told(MAX_FRAME_BYTES), Ok(None)), "it may still come");
        let bytes = MAX_FRAME_BYTES + 1;
        assert!(
            matches!(told(bytes), Err(FrameError::TooLarge { bytes: found }) if found == bytes)
        );
        let mut reader = FrameReader::default();
        reader.push(&[2, 0, 0, 0, b'{', b'}']);
        assert!(matches!(reader.next_message::<ToGpu>(), Err(FrameError::Malformed(_))));
    }

    #[test]
    fn a_plan_with_unknown_members_is_refused() {
        let text = r#"{"partitions":[{"application":1,"sms":"0-3","share":2}]}"#;
        assert!(serde_json::from_str::<PlanRequest>(text).is_err());
    }
}
