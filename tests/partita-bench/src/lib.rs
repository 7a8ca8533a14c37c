//! Applications for benchmarks, and their progress when they share a GPU.
//!
//! An [`Application`] is a program without its host side: PTX, memory, repeated launches. [`run()`]
//! gives one or several applications to the real engine, policy and emulated GPU in this process,
//! and reports the progress of each. There is no clock and no thread: the same applications,
//! arrangement and seed give the same result, to the bit.
//!
//! | module | subject |
//! | --- | --- |
//! | `application` | a program without its host side |
//! | `workloads` | fourteen programs of our own, after CD-search Table 1 |
//! | `samples` | five programs of our own, after Slate Table II |
//! | `eight` | eight programs of our own, after Kernelet Table 2 |
//! | `recorded` | kernels of other programs, from recordings |
//! | `slices` | applications whose launches are cut into slices |
//! | `arrivals` | launches that arrive while others run |
//! | `fixed_parts` | a selector whose applications share all SMs in fixed parts |
//! | `handover` | how long it takes until changed shares reach running kernels |
//! | `hardware` | calibration of the modelled GPU |
//! | `player` | which launch an application enqueues next |
//! | `arrangement` | the ways in which applications share the GPU |
//! | `run` | runs of applications, alone or together |
//! | `outcome` | what becomes of a run |
//! | `outputs` | what programs leave in their memory, alone and beside others |
//! | `history` | what the policy says in the course of a run |
//! | `track` | progress over time, and speeds |
//! | `cells` | runs whose results are kept on disk |
//! | `study` | the evaluation of CD-search: truth, mixes, oracle |
//! | `masola` | eight kernels of our own, after Masola Table 2 |
//! | `latencies` | the evaluation of Masola: launches on part of the SMs, groups |
//! | `coscheduling` | the evaluation of Kernelet: pairs that share SMs, plans, queues |
//! | `queues` | the evaluation of Punyala: queues by class, plans of pairs |
//! | `pairing` | pairs of applications that end, and how long they take together |
//! | `comparison` | all policies on the same mixes |
//! | `requests` | a server whose requests arrive while other programs run |
//! | `transformer` | another server, with the kernels of a transformer's layers |
//! | `percentiles` | percentiles of measured values, with intervals |
//! | `plot` | curves and sorted bars as SVG |
//! | `copying` | programs that copy between launches, and how much of that kernels hide |
//! | `random` | the numbers that follow from a seed |

mod application;
mod arrangement;
mod arrivals;
mod cells;
pub mod comparison;
pub mod copying;
pub mod coscheduling;
mod eight;
mod fixed_parts;
mod handover;
mod hardware;
mod history;
pub mod latencies;
mod masola;
mod outcome;
pub mod outputs;
pub mod pairing;
pub mod percentiles;
mod player;
pub mod plot;
pub mod queues;
mod random;
pub mod recorded;
pub mod requests;
mod run;
mod samples;
mod slices;
pub mod study;
mod track;
mod transformer;
mod workloads;

pub use application::{Application, Buffer, Param, Pointer, Restored, Step, Variable};
pub use arrangement::{Arrangement, percentage};
pub use arrivals::{in_one_stream, poisson};
pub use cells::{Cell, Cells, Progress};
pub use eight::{MIXES, PAPER_BANDWIDTH, PAPER_IPC, eight};
pub use handover::Handover;
pub use hardware::measured;
pub use masola::masola;
pub use outcome::{Profiles, RunError, Share, Shared};
pub use random::Random;
pub use run::{Run, run};
pub use samples::samples;
pub use slices::sliced;
pub use track::{Track, antt, stp};
pub use transformer::transformer;
pub use workloads::{Workload, workloads};
