//! PTX in, PTX out: a front end, verifier, rewriter and printer for NVIDIA's virtual instruction
//! set.
//!
//! ```
//! let source = ".version 8.4\n.target sm_90\n.address_size 64\n.entry k(.param .u64 p) { ret; }";
//! let module = partita_ptx::parse(source)?;
//! partita_ptx::verify(&module).map_err(|errors| errors.with_source(source))?;
//! assert_eq!(module.kernels()[0].param_bytes, 8);
//! let rewritten = partita_ptx::worker(&module, &partita_ptx::WorkerOptions::default());
//! assert!(rewritten.reports[0].rewritten().is_some());
//! let text = partita_ptx::print(&rewritten.module);
//! assert!(text.contains("pw_control"));
//! # Ok::<(), partita_ptx::Errors>(())
//! ```
//!
//! - [`ir`] defines the parts of a module and their invariants.
//! - [`parse`](fn@parse) reads a text, [`verify`](fn@verify) checks a module, and
//!   [`print`](fn@print) writes it.
//! - [`analysis`] has control flow, post-dominance, divergence, and the search for threads that may
//!   leave while others wait for them.
//! - [`passes`] brings kernels into other forms: [`worker`](mod@worker) makes them persistent,
//!   [`ticket`](mod@ticket) lets each CTA claim one of the original's, and [`choose()`] takes the
//!   better form that a kernel permits.
//! - [`Excerpts`] has single kernels of a module as modules of their own.
//! - [`mod@nested`] links kernels that launch kernels with a device runtime of Partita's own.
//! - [`report`] has the outcome of a pass for each kernel.
//! - [`stop`] lets a caller give up on a module.
//! - [`control`] is the memory through which a rewritten kernel and its launcher talk.
//!
//! The crate depends on nothing else of Partita, and has no I/O, no clock, no threads and no unsafe
//! code. Input may be hostile: nothing panics on it, nothing recurses without bound, and memory is
//! a small multiple of its size. After `verify` has passed, a pass may refuse a kernel, with typed
//! reasons, but never panics.
//!
//! Case files in `kernels-ptx/corpus` say in their headers what must hold of them.

pub mod analysis;
pub mod cancel;
mod carry;
mod choose;
pub mod contain;
pub mod control;
pub mod count;
pub mod error;
mod excerpt;
mod exits;
pub mod fence;
mod graft;
pub mod ir;
mod kernels;
mod link;
pub mod lower;
pub mod nested;
pub mod output;
mod params;
mod parse;
pub mod passes;
mod print;
pub mod report;
pub mod settle;
pub mod slice;
pub mod stop;
pub mod ticket;
mod verify;
pub mod worker;

pub use cancel::{Ends, cancel, cancel_with};
pub use choose::choose;
pub use contain::contain;
pub use count::count;
pub use error::{Diagnostic, Errors};
pub use excerpt::{Bound, Excerpt, Excerpts};
pub use fence::fence;
pub use ir::*;
pub use kernels::{Calls, Kernel, Param, Reach};
pub use link::{LinkError, link, link_until};
pub use lower::{TooNew, lower};
pub use output::output;
pub use parse::{parse, parse_until};
pub use passes::Pass;
pub use print::{Printed, print, print_inst, print_kernel, print_with_lines};
pub use report::{Blocks, KernelForm, KernelReport, Outcome, Reason, Refusal, Rewrite};
pub use settle::settle;
pub use slice::slice;
pub use stop::Stop;
pub use ticket::ticket;
pub use verify::verify;
pub use worker::{Rewritten, WorkerOptions, originals, worker};
