//! `partita-dra`, in the foreground. See the library's page.

use partita_dra::options::{Command, Options};
use std::process::ExitCode;

fn main() -> ExitCode {
    let options = partita_args::parse::<Options>();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("partita-dra: cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    if let Some(Command::Check { driver_only }) = options.command {
        return match runtime.block_on(partita_dra::check::check(&options.places, driver_only)) {
            Ok(text) => {
                print!("{text}");
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("partita-dra: {error}");
                ExitCode::FAILURE
            }
        };
    }
    let _log = partita_log::init("partita-dra");
    match runtime.block_on(partita_dra::run(options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            partita_log::last_words(&format!("partita-dra: {error}"));
            ExitCode::from(error.exit_code())
        }
    }
}
