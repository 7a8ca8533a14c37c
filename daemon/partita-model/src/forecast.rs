//! Bodies of `/v1/predict` and `/v1/advice`: what is asked of the latency models, and what they
//! answer. Times are nanoseconds of device time.

use crate::ApplicationId;
use serde::{Deserialize, Serialize};

/// `POST /v1/predict`: applications that run together, each on so many SMs of its own.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForecastRequest {
    /// The applications.
    pub members: Vec<ForecastMember>,
}

/// One of them.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForecastMember {
    /// The application: its id, or its program's name where only one has it.
    pub application: String,
    /// The kernel; absent: the one that takes the most time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// Its SMs.
    pub sms: u16,
}

/// The answer: one forecast for each member, in the same order.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ForecastReport {
    /// The forecasts.
    pub forecasts: Vec<Forecast>,
    /// Applications that are left out, each with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
}

/// What is expected of a launch of one application.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Forecast {
    /// The application.
    pub application: ApplicationId,
    /// Its program.
    pub program: String,
    /// The kernel.
    pub kernel: String,
    /// Its SMs.
    pub sms: u16,
    /// The time of a launch on all SMs, alone.
    pub whole_ns: f64,
    /// The time on its SMs, alone.
    pub alone_ns: f64,
    /// The likeliest time on its SMs beside the other applications.
    pub likely_ns: f64,
    /// The least.
    pub lower_ns: f64,
    /// The most.
    pub upper_ns: f64,
    /// `whole_ns` ÷ `likely_ns`: its speed as a part of the speed that it has alone.
    pub speed: f64,
    /// The bandwidth of DRAM that it takes alone on its SMs, in GB/s.
    pub dram_gbps: f64,
    /// Why, in sentences.
    pub reason: String,
}

/// `POST /v1/advice`: how many SMs does a launch need to take no longer than this?
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdviceRequest {
    /// The application: its id, or its program's name where only one has it.
    pub application: String,
    /// The kernel; absent: the one that takes the most time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// The longest time of a launch.
    pub target_ns: f64,
    /// Whether all other applications with forecasts go on, on equal parts of the other SMs.
    #[serde(default)]
    pub beside_others: bool,
}

/// The answer: the forecast with the fewest SMs that meet the target, or with all SMs.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct AdviceReport {
    /// Whether the target is met, by the likeliest time.
    pub met: bool,
    /// Whether it is met by the greatest time that the models leave open, too.
    #[serde(default)]
    pub is_certain: bool,
    /// What is expected.
    pub forecast: Forecast,
    /// What is expected of the other applications meanwhile, where these go on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<Forecast>,
    /// Other applications without forecasts, each with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
}

/// `GET /v1/advice`: pairs of applications, the best first.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PairsReport {
    /// The pairs.
    pub pairs: Vec<PairAdvice>,
    /// Applications that are left out, each with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
}

/// Two applications side by side, with the split of the SMs that is expected to do the most.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PairAdvice {
    /// The applications.
    pub applications: [ApplicationId; 2],
    /// Their programs.
    pub programs: [String; 2],
    /// The SMs of each.
    pub sms: [u16; 2],
    /// The speed of each, as a part of the speed that it has alone.
    pub speeds: [f64; 2],
    /// The sum of the speeds; in turns it is 1.
    pub throughput: f64,
}
