//! Writes the manual pages of `partita` and `partitad`, and the completions of `partita` for bash,
//! zsh and fish.
//!
//! `partita-pages FOLDER` makes `man/` and `completions/` in the folder. The pages come from the
//! command lines themselves, so they cannot differ from `--help`. The page of the configuration
//! file is written by hand: `docs/man/partitad.toml.5`.

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(folder) = std::env::args_os().nth(1) else {
        eprintln!("usage: partita-pages FOLDER");
        return ExitCode::from(2);
    };
    match write_all(Path::new(&folder)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("partita-pages: {}: {error}", Path::new(&folder).display());
            ExitCode::FAILURE
        }
    }
}

fn write_all(folder: &Path) -> io::Result<()> {
    let (man, completions) = (folder.join("man"), folder.join("completions"));
    fs::create_dir_all(&man)?;
    fs::create_dir_all(&completions)?;
    write_page(&man, partitad::options::Options::command(), "partitad.8")?;
    let mut partita = partita_cli::command();
    partita.build();
    write_pages(&man, &partita)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut partita_cli::command(), "partita", &completions)?;
    }
    Ok(())
}

/// The page of a command, and those of the commands below it that are shown to users.
fn write_pages(folder: &Path, command: &Command) -> io::Result<()> {
    let name = command.get_display_name().unwrap_or(command.get_name());
    write_page(folder, command.clone(), &format!("{name}.1"))?;
    let shown = |below: &&Command| !below.is_hide_set() && below.get_name() != "help";
    command.get_subcommands().filter(shown).try_for_each(|below| write_pages(folder, below))
}

/// Writes a page into the file of this name, which ends with the section.
fn write_page(folder: &Path, command: Command, file: &str) -> io::Result<()> {
    let (title, section) = file.rsplit_once('.').unwrap_or((file, "1"));
    let mut page = Vec::new();
    clap_mangen::Man::new(command).title(title).section(section).render(&mut page)?;
    fs::write(folder.join(file), page)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parser itself says which keys there are.
    #[test]
    fn the_page_of_the_configuration_names_every_key() {
        let page = include_str!("../../../docs/man/partitad.toml.5").replace("\\-", "-");
        let error =
            partitad::configuration::check_form("f", "[policy]\nunknown = 1\n").unwrap_err();
        let keys: Vec<&str> = error.reason.split('`').skip(3).step_by(2).collect();
        assert!(keys.len() > 12, "{}", error.reason);
        for key in keys {
            let list = format!(".B [[policy.{key}]]");
            let value = format!(".B {key}");
            let named = page.lines().any(|line| {
                line == list || line == value || line.starts_with(&format!("{value} = "))
            });
            assert!(named, "`{key}` is not in the page");
        }
    }

    #[test]
    fn every_command_has_a_page_and_every_shell_its_completions() {
        let folder = tempfile::tempdir().unwrap();
        write_all(folder.path()).unwrap();
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        assert!(read("man/partitad.8").contains("check\\-config"));
        assert!(read("man/partita.1").contains("doctor"));
        assert!(read("man/partita-status.1").contains("partita status"));
        for page in ["config", "events", "reservation-make", "reservation-release"] {
            assert!(read(&format!("man/partita-{page}.1")).contains("Examples:"), "{page}");
        }
        assert!(read("man/partita-reservation.1").contains("reservation\\-list"));
        assert!(read("man/partita-doctor.1").contains("bundle"));
        assert!(!folder.path().join("man/partita-keep-private-daemon.1").exists());
        for name in ["partita.bash", "_partita", "partita.fish"] {
            let text = read(&format!("completions/{name}"));
            for word in ["doctor", "bundle", "config", "reservation", "release", "events", "follow"]
            {
                assert!(text.contains(word), "{name} lacks `{word}`");
            }
        }
    }
}
