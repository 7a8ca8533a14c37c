//! The nouns and units that every room of Partita shares.
//!
//! A type lives here when two or more crates must agree on what it means: identifiers, sizes, sets
//! of SMs, requests of sessions, the memory layout of a launch's control block, textures, and what
//! a status report says.
//! There is no logic here beyond set arithmetic and parsing, no I/O, no clock, and no knowledge of
//! CUDA's entry points or of PTX.
//!
//! Words are used as `docs/glossary.md` fixes them.

mod account;
mod address_part;
mod amounts;
mod awaited;
pub mod cluster;
mod config_report;
mod console;
pub mod control;
mod counters;
pub mod coverage;
mod decision;
mod dim;
mod event;
mod facts;
mod forecast;
mod gpu_config;
mod ids;
mod image;
mod interference;
pub mod nested;
pub mod occupancy;
mod policy;
pub mod printf;
pub mod profile;
mod range;
mod report;
pub mod request;
mod reservation;
mod resource;
mod result;
mod sm_part;
mod sm_set;
pub mod tensor_map;
mod terms;
pub mod texture;
mod units;

pub use account::{
    AccountsReport, ApplicationAccount, Histogram, JobAccount, ResizeReason, TargetReport, Totals,
    Usage,
};
pub use address_part::AddressPart;
pub use amounts::{LatencyTarget, MemoryAmount, SmAmount, SmRange};
pub use awaited::{AwaitedWord, WaitCondition};
pub use config_report::{ConfigKey, ConfigReport, ConfigValue, Origin, OriginKind, RefusedReload};
pub use console::Console;
pub use counters::{DeviceCounters, GridCounters};
pub use decision::{
    ApplicationRecord, Cause, Class, DecisionRecord, EvenReason, Evidence, IntervalRecord, Level,
    Note, Notice, Progress, SmsOf, Traffic, Verdict,
};
pub use dim::Dim3;
pub use event::{EventBatch, EventItem, GpuEvent, Happening, OthersItem};
pub use facts::{ComputeCapability, DeviceFacts, DeviceKind, HostTime, Sharing, Timekeeping};
pub use forecast::{
    AdviceReport, AdviceRequest, Forecast, ForecastMember, ForecastReport, ForecastRequest,
    PairAdvice, PairsReport,
};
pub use gpu_config::{
    GpuConfig, HostMemoryLimits, HungAfter, Limits, MemoryQuota, Originals, SessionsPerUser,
};
pub use ids::{
    ApplicationId, EventId, GpuNumber, LaunchId, ModuleId, OperationId, SessionId, SmId, StreamId,
    TenantId, WindowId,
};
pub use image::{ImageKind, ImagePart};
pub use interference::{ContentionClass, Interference, InterferenceError, InterferenceMatrix};
pub use policy::{
    Calibration, GroupSize, Measurements, PartitionerKind, PolicyConfig, PolicyName, SelectorKind,
    Share, SupplyModel,
};
pub use profile::{CacheShape, Counts, KernelProfile, LaunchShape, LlcUse};
pub use range::AddressRange;
pub use report::{
    ApplicationReport, CopyKind, GpuReport, GpuStatus, KernelReport, LaunchSize, OtherUsers,
    PartitionReport, PolicyReport, ResidencyChange, ResidencyKind, StatusReport, TraceEntry,
    TraceReport, TracedCopy,
};
pub use request::ParamLayout;
pub use reservation::{JobUsage, Reservation, ReservationRequest};
pub use resource::{
    ApplicationItem, BuildReport, DecisionItem, GpuItem, KernelItem, PartitionItem, SessionItem,
};
pub use result::CudaResult;
pub use sm_part::SmPart;
pub use sm_set::{ParseSmSetError, SmSet};
pub use terms::{Entitlement, Priority, Terms, TermsRule, Weight};
pub use units::{Bytes, Cycles, DeviceAddress, MemoryAccess, Nanos};
