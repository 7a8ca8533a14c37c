//! `partitad`, in the foreground. See the library's page.

use clap::Parser;
use partitad::options::Options;
use partitad::readiness::Readiness;
use rustix::process::{Signal, set_parent_process_death_signal};
use std::io::IsTerminal;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let options = Options::parse();
    init_log();
    if options.end_with_parent
        && let Err(error) = set_parent_process_death_signal(Some(Signal::TERM))
    {
        tracing::warn!(%error, "cannot end with the parent process");
    }
    let readiness = Readiness::new(options.ready_fd);
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("partitad: cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(partitad::run(options, readiness)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("partitad: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

fn init_log() {
    let filter = ["PARTITA_LOG", "RUST_LOG"].iter().find_map(|name| std::env::var(name).ok());
    let filter = EnvFilter::new(filter.as_deref().unwrap_or("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
}
