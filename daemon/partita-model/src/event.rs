//! Events: what happens to the applications of a GPU, as `GET /v1/events` tells it.

use crate::{ApplicationId, Cause, GpuNumber, Nanos, SessionId, SmSet, TenantId};
use serde::{Deserialize, Serialize};

/// One event of a GPU.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GpuEvent {
    /// Counts the events of one `partita-gpu` from 1.
    pub sequence: u64,
    /// Device time.
    pub time: Nanos,
    /// Whose application the event is about; absent where it is about the GPU as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<TenantId>,
    /// What has happened.
    #[serde(flatten)]
    pub what: Happening,
}

/// What has happened.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Happening {
    /// An application has come with its first session.
    ApplicationCame {
        /// The application.
        application: ApplicationId,
        /// The name of its program.
        name: String,
        /// Its tag, where it has one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tag: Option<String>,
    },
    /// Nothing of an application is left.
    ApplicationLeft {
        /// The application.
        application: ApplicationId,
    },
    /// A program has opened a session.
    SessionCame {
        /// The session.
        session: SessionId,
        /// Its application.
        application: ApplicationId,
        /// The process id of its client.
        pid: u32,
    },
    /// Nothing of a session is left.
    SessionLeft {
        /// The session.
        session: SessionId,
        /// Its application.
        application: ApplicationId,
    },
    /// The SMs on which an application's workers may be have changed.
    Border {
        /// The application.
        application: ApplicationId,
        /// The SMs before.
        from: SmSet,
        /// The SMs after.
        to: SmSet,
    },
    /// The policy has decided.
    Decision {
        /// The number of the decision, as in `/v1/decisions`.
        decision: u64,
        /// The event for which the policy was asked.
        cause: Cause,
        /// The reasons in sentences; empty where the decision is no longer remembered.
        why: Vec<String>,
    },
    /// A session has failed.
    Fault {
        /// The session.
        session: SessionId,
        /// Its application.
        application: ApplicationId,
        /// The error that its program gets, by CUDA's name.
        error: String,
        /// Why.
        text: String,
    },
    /// A launch makes no progress.
    Stuck {
        /// The session.
        session: SessionId,
        /// Its application.
        application: ApplicationId,
        /// What is stuck, and for how long.
        text: String,
    },
    /// `partita-gpu` serves the GPU anew: every application that was there is gone.
    Restarted {
        /// Why, where the daemon knows it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
}

impl Happening {
    /// The application that the event is about, where it is one.
    #[must_use]
    pub fn application(&self) -> Option<ApplicationId> {
        match self {
            Happening::ApplicationCame { application, .. }
            | Happening::ApplicationLeft { application }
            | Happening::SessionCame { application, .. }
            | Happening::SessionLeft { application, .. }
            | Happening::Border { application, .. }
            | Happening::Fault { application, .. }
            | Happening::Stuck { application, .. } => Some(*application),
            Happening::Decision { .. } | Happening::Restarted { .. } => None,
        }
    }

    /// The kind, as in the member `event`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Happening::ApplicationCame { .. } => "application_came",
            Happening::ApplicationLeft { .. } => "application_left",
            Happening::SessionCame { .. } => "session_came",
            Happening::SessionLeft { .. } => "session_left",
            Happening::Border { .. } => "border",
            Happening::Decision { .. } => "decision",
            Happening::Fault { .. } => "fault",
            Happening::Stuck { .. } => "stuck",
            Happening::Restarted { .. } => "restarted",
        }
    }
}

/// Events that `partita-gpu` remembers after one that was told before.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct EventBatch {
    /// The events, oldest first.
    pub events: Vec<GpuEvent>,
    /// Events before these that are forgotten.
    pub lost: u64,
    /// Whether more follow.
    pub more: bool,
    /// The number of the last event that there is.
    pub last: u64,
}

/// One event as `GET /v1/events` tells it.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EventItem {
    /// The GPU.
    pub gpu: GpuNumber,
    /// The event.
    #[serde(flatten)]
    pub event: GpuEvent,
}

/// The data of an event `others`: what the applications of other users have on a GPU, in sum.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OthersItem {
    /// The GPU.
    pub gpu: GpuNumber,
    /// Number of applications.
    pub applications: usize,
    /// Number of SMs that they have.
    pub sms: u32,
}
