//! Reservations: SMs and memory that a scheduler asks for on behalf of a job.

use crate::{ApplicationId, GpuNumber, TenantId};
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
    /// The application that has the SMs; absent while the job has none, or while it cannot get
    /// them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub application: Option<ApplicationId>,
    /// Why the job's application does not have its SMs, where it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
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
        }
    }

    /// A reservation that no application has yet.
    #[must_use]
    pub fn new(id: String, request: ReservationRequest) -> Self {
        let ReservationRequest { tenant, job, gpu, sms, memory_bytes, expires } = request;
        let (application, why) = (None, None);
        Reservation { id, tenant, job, gpu, sms, memory_bytes, expires, application, why }
    }
}
