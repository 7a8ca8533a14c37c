//! `partitad`, in the foreground. See the library's page.

use partitad::options::Options;
use partitad::readiness::Readiness;
use rustix::process::{Signal, set_parent_process_death_signal};
use std::process::ExitCode;

/// Answers of the API are many small pieces of memory, which glibc's allocator is slow to give.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let options = Options::read();
    if options.check_config {
        return match partitad::check_config(&options) {
            Ok(text) => {
                print!("{text}");
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("partitad: {error}");
                ExitCode::from(error.exit_code())
            }
        };
    }
    let _log = partita_log::init("partitad");
    if options.end_with_parent
        && let Err(error) = set_parent_process_death_signal(Some(Signal::TERM))
    {
        tracing::warn!(%error, "cannot end with the parent process");
    }
    let readiness = Readiness::new(options.ready_fd);
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            partita_log::last_words(&format!("partitad: cannot start: {error}"));
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(partitad::run(options, readiness)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            partita_log::last_words(&format!("partitad: {error}"));
            ExitCode::from(error.exit_code())
        }
    }
}
