//! `partita bench …`: becomes `partita-bench`, as git becomes its commands.
//!
//! The benchmarks are a program of their own, so that the shipped command depends on none of them.
//! Because this process *becomes* that program, arguments, exit code, signals and terminal are the
//! program's without being forwarded. A `--` right behind `bench` ends this command's own options
//! and is no argument.

use crate::failure::Failure;
use crate::run::locate::{self, ProgramError};
use clap::Args;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The program of the benchmarks.
const PROGRAM: &str = "partita-bench";

const EXAMPLES: &str = "\
Examples:
  partita bench --help
      list the benchmarks
  partita bench wire
      measure launches, copies and memory across the process border

The benchmarks are the program `partita-bench`. `partita` looks for it in its own folder, then in
PATH, then in ../libexec/partita.";

/// Measure Partita: every argument goes to the program `partita-bench`.
#[derive(Args, Debug, PartialEq, Eq)]
#[command(after_help = EXAMPLES, disable_help_flag = true,
    override_usage = "partita bench [BENCHMARK] [ARGS]...")]
pub struct BenchArgs {
    /// The benchmark and its arguments; `--help` lists the benchmarks.
    #[arg(value_name = "ARGS", trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

/// Why the benchmarks do not start.
#[derive(Debug, thiserror::Error)]
enum BenchError {
    #[error(
        "the benchmarks are not installed: no `{PROGRAM}` in {looked}, nor in PATH; in a checkout \
         of Partita `cargo install --path tests/partita-bench` installs it"
    )]
    Missing { looked: String },
    #[error("{}: cannot be executed: {reason}", .program.display())]
    Refused { program: PathBuf, reason: std::io::Error },
    #[error("cannot tell where this command lies: {0}; start `{PROGRAM}` itself instead")]
    Executable(std::io::Error),
}

impl BenchArgs {
    /// Becomes `partita-bench`. Returns only where that fails.
    pub fn execute(self) -> Result<Vec<u8>, Failure> {
        let own = std::env::current_exe().map_err(BenchError::Executable)?;
        let program = find(&own, std::env::var_os("PATH").as_deref())?;
        let reason = Command::new(&program).args(self.args).exec();
        Err(BenchError::Refused { program, reason }.into())
    }
}

/// `partita-bench` beside `partita`, in the folders of `path`, or in `../libexec/partita`.
fn find(partita: &Path, path: Option<&OsStr>) -> Result<PathBuf, BenchError> {
    let folder = partita.parent().unwrap_or(Path::new("/"));
    let libexec = folder.parent().unwrap_or(Path::new("/")).join("libexec/partita");
    let at = |folder: &Path| locate::program(folder.join(PROGRAM).as_os_str(), None);
    let in_path = |_: ProgramError| locate::program(OsStr::new(PROGRAM), path);
    at(folder).or_else(in_path).or_else(|_| at(&libexec)).map_err(|_| BenchError::Missing {
        looked: crate::sockets::list(&[folder.to_owned(), libexec]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cli, Command as Subcommand};
    use clap::Parser as _;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_nearest_program_wins() {
        let prefix = tempfile::tempdir().unwrap();
        let at = |name: &str| prefix.path().join(name);
        let partita = at("bin/partita");
        let path = std::env::join_paths([at("elsewhere")]).unwrap();
        let put = |folder: &str| {
            std::fs::create_dir_all(at(folder)).unwrap();
            let file = at(folder).join(PROGRAM);
            std::fs::write(&file, "").unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
            file
        };
        let missing = find(&partita, Some(&path)).unwrap_err().to_string();
        for part in [at("bin"), at("libexec/partita")] {
            assert!(missing.contains(&part.display().to_string()), "{missing}");
        }
        for folder in ["libexec/partita", "elsewhere", "bin"] {
            let file = put(folder);
            assert_eq!(find(&partita, Some(&path)).unwrap(), file);
        }
    }

    #[test]
    fn every_argument_goes_through() {
        for line in [
            &["--help"][..],
            &["-h"],
            &["help", "emu"],
            &["emu", "--speed", "--json"],
            &["cd-search", "--only", "lu", "--", "--x", ""],
            &[],
        ] {
            let cli = Cli::try_parse_from(["partita", "bench"].iter().chain(line)).unwrap();
            let Subcommand::Bench(bench) = cli.command else { panic!("{line:?}") };
            assert_eq!(bench.args, line.iter().map(OsString::from).collect::<Vec<_>>());
        }
    }
}
