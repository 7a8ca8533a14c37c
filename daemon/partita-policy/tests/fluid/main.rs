//! Policies against a GPU in closed form: they must find what an offline oracle finds, and hold
//! what they promise whatever happens.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on shall say where")]

mod cd_search;
mod cd_search_paper;
mod life;
mod simulator;
mod smra;
mod terms;
