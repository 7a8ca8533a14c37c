//! The program `partita`.

use std::process::ExitCode;

fn main() -> ExitCode {
    partita_cli::main()
}
