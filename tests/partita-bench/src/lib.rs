//! Benchmarks of sharing: applications, and what becomes of them when they share a GPU.
//!
//! An [`Application`] is a program without its host side: PTX, memory, launches that are repeated.
//! [`run()`] gives one or several of them to the real engine, policy and emulated GPU in this
//! process, and tells how far each of them got. There is no clock and no thread: the same
//! applications, arrangement and seed give the same answer, to the bit.
//!
//! | module | subject |
//! | --- | --- |
//! | `application` | what is run |
//! | `workloads` | fourteen programs of our own, after CD-search Table 1 |
//! | `recorded` | kernels of strangers, from recordings of their programs |
//! | `hardware` | what the modelled GPU was measured to do |
//! | `run` | running them, alone or together |
//! | `track` | how far they got, and speeds from that |
//! | `cells` | runs whose results are kept on disk |
//! | `study` | the evaluation of CD-search: truth, mixes, oracle |
//! | `plot` | curves and sorted bars as SVG |
//! | `random` | the numbers that follow from a seed |

mod application;
mod cells;
mod hardware;
pub mod plot;
mod random;
pub mod recorded;
mod run;
pub mod study;
mod track;
mod workloads;

pub use application::{Application, Buffer, Param, Pointer, Restored, Step, Variable};
pub use cells::{Cell, Cells, Progress};
pub use random::Random;
pub use run::{Arrangement, Profiles, Run, RunError, Share, Shared, run};
pub use track::{Track, antt, stp};
pub use workloads::{Workload, workloads};
