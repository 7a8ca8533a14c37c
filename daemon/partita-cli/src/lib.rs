//! The command `partita`: starts programs on the daemon, asks and steers it, and works with PTX and
//! the emulated GPU.
//!
//! Each family of commands is a module with its own arguments and its own error. A command returns
//! its output, or a [`Failure`]. Only [`end`] writes to stdout: a reader that goes away is no error
//! there. The exceptions are `run` and `bench`, which become another program and have no output of
//! their own, and `demo`, `top`, `web`, `events` and whatever has `--watch`, which write while they
//! run.
//!
//! This is a library for `partita-bench` only, which prints and fails as `partita` does: the
//! modules that both use are public.
//!
//! Exit codes: 0 success, 1 the input is at fault or the operation failed, 2 wrong usage. `run`
//! ends with the program's exit code, or with a shell's code where the program cannot start.

pub mod api;
mod bench;
mod calibrate;
mod cancel;
mod cdi;
mod clock;
mod config;
pub mod demo;
mod doctor;
mod emu;
mod events;
pub mod failure;
pub mod files;
mod gantt;
mod names;
mod predict;
pub mod progress;
pub mod ptx;
pub mod report;
mod reservation;
mod resize;
pub mod run;
mod sockets;
mod state_dir;
mod status;
pub mod table;
mod terms;
mod top;
mod trace;
mod view;
mod watch;
mod web;
mod why;

use clap::{Parser, Subcommand};
use failure::Failure;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  partita demo
      watch two CUDA programs share an emulated GPU, and the border between them move
  partita run ./vecAdd 1000
      run a CUDA program on the system's daemon; without a daemon, on a private emulated GPU
  partita status
      show the GPU, the applications on it and their SMs
  partita top
      watch the GPU live, and steer applications by keys
  partita web
      the same in a browser, read only
  partita why
      explain why each application has its SMs
  partita predict 1=12 2=12
      predict what two applications would take side by side with 12 SMs each
  partita resize 1=0-17 2=18-23
      move the border between two applications while their kernels run
  partita terms 1 --sms 8..24 --priority latency
      what application 1 may have, while its kernels run
  partita config
      show the daemon's configuration in force, and where each key comes from

Exit codes: 0 success, 1 the input is at fault or the operation failed, 2 wrong usage.";

/// Share GPUs between processes: each process has its own SMs, and borders move while kernels run.
#[derive(Parser, Debug)]
#[command(name = "partita", version, about, after_help = EXAMPLES, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Demo(demo::DemoArgs),
    Run(run::RunArgs),
    Status(status::StatusArgs),
    Top(top::TopArgs),
    Web(web::WebArgs),
    Why(why::WhyArgs),
    Predict(predict::PredictArgs),
    Resize(resize::ResizeArgs),
    Terms(terms::TermsArgs),
    Cancel(cancel::CancelArgs),
    Reservation(reservation::ReservationArgs),
    Trace(trace::TraceArgs),
    Events(events::EventsArgs),
    Config(config::ConfigArgs),
    Ptx(ptx::PtxArgs),
    Emu(emu::EmuArgs),
    Bench(bench::BenchArgs),
    Calibrate(calibrate::CalibrateArgs),
    Cdi(cdi::CdiArgs),
    Doctor(doctor::DoctorArgs),
    #[command(name = run::KEEPER_COMMAND, hide = true)]
    Keeper(run::KeeperArgs),
}

/// The command line, for manual pages and completions.
#[must_use]
pub fn command() -> clap::Command {
    <Cli as clap::CommandFactory>::command()
}

/// Runs the command that this process's command line asks for.
#[must_use]
pub fn main() -> ExitCode {
    let called = std::env::args_os().next().map(PathBuf::from);
    let is_assembler =
        called.is_some_and(|name| name.file_name().is_some_and(|name| name == run::ASSEMBLER));
    if is_assembler {
        return end(ptx::assemble(std::env::args_os().skip(1)));
    }
    let command = partita_args::parse::<Cli>().command;
    // `run` becomes the user's program, which gets the signals as the caller left them.
    if !matches!(command, Command::Run(_))
        && let Err(error) = partita_log::file_limit::survive()
    {
        failure::complain(&format!("a file over the limit would end this process: {error}"));
    }
    end(match command {
        Command::Demo(args) => args.execute(),
        Command::Run(args) => args.execute(),
        Command::Status(args) => args.execute(),
        Command::Top(args) => args.execute(),
        Command::Web(args) => args.execute(),
        Command::Why(args) => args.execute(),
        Command::Predict(args) => args.execute(),
        Command::Resize(args) => args.execute(),
        Command::Terms(args) => args.execute(),
        Command::Cancel(args) => args.execute(),
        Command::Reservation(args) => args.execute(),
        Command::Trace(args) => args.execute(),
        Command::Events(args) => args.execute(),
        Command::Config(args) => args.execute(),
        Command::Ptx(args) => args.execute(),
        Command::Emu(args) => args.execute(),
        Command::Bench(args) => args.execute(),
        Command::Calibrate(args) => args.execute(),
        Command::Cdi(args) => args.execute(),
        Command::Doctor(args) => args.execute(),
        Command::Keeper(args) => args.execute(),
    })
}

/// Prints what a command returned, or says why it failed; what the process ends with.
#[must_use]
pub fn end(done: Result<Vec<u8>, Failure>) -> ExitCode {
    let ended = match done {
        Ok(output) => print(output),
        Err(mut failure) => print(failure.take_output()).and(Err(failure)),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure::say(&failure.text());
            failure.exit_code()
        }
    }
}

fn print(output: Vec<u8>) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(&output).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::unwritten(&error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_option_says_in_which_form_it_wants_a_number() {
        assert_eq!(partita_args::unexplained(&command()), [""; 0]);
    }

    #[test]
    fn every_visible_command_has_examples() {
        fn check(command: &clap::Command) {
            let shown = command
                .get_subcommands()
                .filter(|sub| !sub.is_hide_set() && sub.get_name() != "help");
            let mut is_family = false;
            for sub in shown {
                is_family = true;
                check(sub);
            }
            if !is_family {
                let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
                assert!(help.contains("Example"), "`{}` has no examples", command.get_name());
            }
        }
        check(&Cli::command());
    }
}
