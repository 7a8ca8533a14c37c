//! `partita_slurm.so`: a SPANK plugin by which Slurm's jobs get SMs of a shared GPU.
//!
//! | module | subject |
//! | --- | --- |
//! | `spank` | the border to Slurm; the unsafe code |
//! | `hooks` | what happens at a job's prolog, at each task, and at the epilog |
//! | `options` | `--partita-sms`, `--partita-priority`, `--partita-memory` |
//! | `settings` | the plugin's arguments in `plugstack.conf` |
//! | `environment` | what a task's environment gets |
//! | `account` | what a job has had, for its `AdminComment` |
//! | `api` | questions to `partitad`, each with a time limit |
//!
//! A job that gives one of the options gets a reservation of its SMs and memory from the prolog to
//! the epilog, and its processes on a node are one application. A job without these options is
//! left alone.
//!
//! The library decides nothing about SMs: it writes down what the job asks for, and the daemon does
//! the rest. It starts no thread. `docs/guide/slurm.md` is the administrator's page.

mod account;
mod api;
mod environment;
mod hooks;
mod options;
mod settings;
mod spank;
