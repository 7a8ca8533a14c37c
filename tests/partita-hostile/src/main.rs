//! `partita-hostile`: hostile clients beside healthy programs, on a running daemon, by seeds.
//!
//! A seed starts a `partitad` with an emulated GPU in a temporary folder, and healthy programs,
//! each a process ([`healthy`]). First the healthy programs run beside as many well-behaved busy
//! tenants as there will be hostile clients: the *baseline*, the speed of their share. Then hostile
//! clients take the place of the busy tenants ([`acts`]). No healthy program may lose a result, get
//! an error, or fall below 80 % of its speed in the baseline.
//!
//! # The clock of the speed
//!
//! Where the emulated GPU keeps time, the speed is rounds per second of *device time*, which is the
//! time that a program on a GPU would see. The host time of an emulated kernel depends on the cost
//! of emulating it: a kernel that is cheap for a GPU and dear for the emulator takes host time from
//! every program, and proves nothing about the shares. A slow call holds up the emulated clock for
//! a budget (`docs/architecture/time.md`), which device time does not show. The speed in host time
//! and the longest round are therefore printed beside it, and a round longer than a minute of host
//! time is a loss.
//!
//! With `timing=off` the device has no time. The speed is rounds per second of processor time of
//! the data plane's first thread, which serves every program and executes every kernel: the part of
//! its work that the healthy programs get together. Host time would also count what other processes
//! take of the processors, hostile ones included, and that is the operating system's to share. A
//! wait that burns no processor shows in the longest round and in the speed of host time.
//!
//! Hostile clients and busy tenants alike run at the lowest priority (`nice 19`).

mod acts;
mod daemon;
mod healthy;
mod hostile;
mod options;
mod process;
mod processor;
mod random;
mod report;
mod seed;
mod tool_error;

use clap::ValueEnum as _;
use indicatif::{ProgressBar, ProgressStyle};
use options::{Cli, Part, Play};
use std::io::Write as _;
use std::process::ExitCode;
use tool_error::ToolError;

/// The exit code where there is no verdict.
const NO_VERDICT: u8 = 2;

fn main() -> ExitCode {
    let cli = partita_args::parse::<Cli>();
    let done = match cli.part {
        Some(Part::Healthy(process)) => process::become_what_was_said(&process)
            .map(|()| healthy::serve(&process.sockets, process.seed)),
        Some(Part::Busy(process)) => process::become_what_was_said(&process)
            .map(|()| acts::busy_for_ever(process.sockets, process.seed)),
        Some(Part::Act { act, process }) => process::become_what_was_said(&process)
            .map(|()| acts::act_for_ever(act, process.sockets, process.seed)),
        None if cli.play.list => {
            list();
            Ok(true)
        }
        None => play(&cli.play),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("partita-hostile: {error}");
            ExitCode::from(NO_VERDICT)
        }
    }
}

/// Plays the seeds and prints what became of them. Whether nothing was lost.
fn play(play: &Play) -> Result<bool, ToolError> {
    if !rustix::process::geteuid().is_root() {
        eprintln!(
            "partita-hostile: not root, so all programs are one user's, and acts that use up the \
             limits of a user are left out"
        );
    }
    let style = ProgressStyle::with_template("seeds [{bar:24.}] {pos}/{len}, {eta} left {msg}");
    let style = style.expect("the template is well formed").progress_chars("##.");
    let seeds = play.seeds.clone();
    let count = seeds.end() - seeds.start() + 1;
    let bar = ProgressBar::new(count).with_style(style);
    bar.tick();
    let (mut all, mut lost) = (Vec::new(), 0_u64);
    for seed in seeds {
        let played = seed::play(play, seed)?;
        lost += u64::from(!played.losses.is_empty());
        if !play.json {
            bar.suspend(|| say(&report::tables(&played)));
        }
        all.push(played);
        bar.inc(1);
        if lost > 0 {
            bar.set_message(format!("({lost} lost)"));
        }
    }
    bar.finish_and_clear();
    if play.json {
        say(&serde_json::to_string_pretty(&all).expect("a report is plain data"));
    } else {
        say(&format!("{count} seeds, {lost} lost"));
    }
    Ok(lost == 0)
}

/// Prints to stdout, whose reader may have gone.
fn say(text: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{text}");
}

fn list() {
    for act in acts::Act::value_variants() {
        let value = act.to_possible_value().expect("no act is skipped");
        say(&format!("{:20}{}", value.get_name(), value.get_help().cloned().unwrap_or_default()));
    }
}
