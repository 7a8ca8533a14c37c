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
//! | `recorded` | kernels of other programs, from recordings |
//! | `hardware` | calibration of the modelled GPU |
//! | `run` | runs of applications, alone or together |
//! | `track` | progress over time, and speeds |
//! | `cells` | runs whose results are kept on disk |
//! | `study` | the evaluation of CD-search: truth, mixes, oracle |
//! | `pairing` | pairs of applications that end, and how long they take together |
//! | `plot` | curves and sorted bars as SVG |
//! | `random` | the numbers that follow from a seed |

mod application;
mod cells;
mod hardware;
pub mod pairing;
pub mod plot;
mod random;
pub mod recorded;
mod run;
mod samples;
pub mod study;
mod track;
mod workloads;

pub use application::{Application, Buffer, Param, Pointer, Restored, Step, Variable};
pub use cells::{Cell, Cells, Progress};
pub use random::Random;
pub use run::{Arrangement, Profiles, Run, RunError, Share, Shared, run};
pub use samples::samples;
pub use track::{Track, antt, stp};
pub use workloads::{Workload, workloads};
