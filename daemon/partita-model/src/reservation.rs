//! Reservations: SMs and memory that a scheduler asks for on behalf of a job.

use crate::{ApplicationId, GpuNumber, Priority, TenantId, Usage};
use serde::{Deserialize, Serialize};

/// `PUT /v1/reservations/ID`: what a job is to have.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReservationRequest {
    /// The user whose job it is.
    pub tenant: TenantId,
    /// The job: the tag of its application (`PARTITA_APP`).
    pub job: String,
    /// The GPU.
    #[serde(default = "first_gpu")]
    pub gpu: GpuNumber,
    /// The number of SMs, at least one.
    pub sms: u16,
    /// Device memory in bytes.
    #[serde(default)]
    pub memory_bytes: u64,
    /// The end of the reservation, in seconds since 1970 (UTC).
    pub expires: u64,
    /// SMs that the job has at most, even where others are idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_sms: Option<u16>,
    /// Who yields to whom.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
}

fn first_gpu() -> GpuNumber {
    GpuNumber(0)
}

/// A reservation.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Reservation {
    /// Its id, which the scheduler has chosen.
    pub id: String,
    /// The user whose job it is.
    pub tenant: TenantId,
    /// The job: the tag of its application.
    pub job: String,
    /// The GPU.
    pub gpu: GpuNumber,
    /// The number of SMs.
    pub sms: u16,
    /// Device memory in bytes.
    pub memory_bytes: u64,
    /// The end of the reservation, in seconds since 1970 (UTC).
    pub expires: u64,
    /// SMs that the job has at most; absent where the reservation bounds it by nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_sms: Option<u16>,
    /// Who yields to whom; absent where the reservation says nothing of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// The application that has the SMs; absent while the job has none, or while it cannot get
    /// them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub application: Option<ApplicationId>,
    /// Why the job's application does not have its SMs, where it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// What the job has had so far, over all its applications since the reservation was made or
    /// `partita-gpu` began; absent while no `partita-gpu` serves the GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<JobUsage>,
}

/// What a job has had of a GPU, in device time.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct JobUsage {
    /// SMs × nanoseconds for which it had them.
    pub sm_ns: u64,
    /// Nanoseconds of its launches whose speed alone on the whole GPU is known.
    pub compared_ns: u64,
    /// Nanoseconds that these would have taken alone.
    pub alone_ns: u64,
}

impl JobUsage {
    /// The part of an application's usage that is counted for its job.
    #[must_use]
    pub fn of(usage: &Usage) -> Self {
        let whole = |nanos: f64| {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "nanoseconds lie far below 2^64, and a part of one does not count"
            )]
            let nanos = nanos.max(0.0) as u64;
            nanos
        };
        let (compared_ns, alone_ns) = (whole(usage.compared_ns), whole(usage.alone_ns));
        JobUsage { sm_ns: usage.sm_ns, compared_ns, alone_ns }
    }

    /// Both together.
    #[must_use]
    pub fn plus(self, other: JobUsage) -> Self {
        JobUsage {
            sm_ns: self.sm_ns.saturating_add(other.sm_ns),
            compared_ns: self.compared_ns.saturating_add(other.compared_ns),
            alone_ns: self.alone_ns.saturating_add(other.alone_ns),
        }
    }
}

impl Reservation {
    /// The request for this reservation.
    #[must_use]
    pub fn request(&self) -> ReservationRequest {
        ReservationRequest {
            tenant: self.tenant,
            job: self.job.clone(),
            gpu: self.gpu,
            sms: self.sms,
            memory_bytes: self.memory_bytes,
            expires: self.expires,
            max_sms: self.max_sms,
            priority: self.priority,
        }
    }

    /// A reservation that no application has yet.
    #[must_use]
    pub fn new(id: String, request: ReservationRequest) -> Self {
        Reservation {
            id,
            tenant: request.tenant,
            job: request.job,
            gpu: request.gpu,
            sms: request.sms,
            memory_bytes: request.memory_bytes,
            expires: request.expires,
            max_sms: request.max_sms,
            priority: request.priority,
            application: None,
            why: None,
            used: None,
        }
    }
}
