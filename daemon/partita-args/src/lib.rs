//! Reads the command lines of Partita's programs, with errors that say which form is wanted.
//!
//! clap passes on what the standard library says of a number or an address that it cannot read
//! (`invalid digit found in string`), which names neither a form nor an example. [`parse`] replaces
//! these messages for every option of a program. Options whose parsers have messages of their own
//! keep them.

use clap::builder::ValueParser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgMatches, Command, Error, Parser};
use std::error::Error as _;
use std::ffi::OsString;
use std::net::AddrParseError;
use std::num::{IntErrorKind, ParseFloatError, ParseIntError};

/// Examples for options that have neither a default nor an example in their help.
const EXAMPLES: [&str; 8] =
    ["10", "1", "0.5", "100", "1000", "1000000", "127.0.0.1:9835", "127.0.0.1"];

/// Reads this process's command line. Wrong usage ends the process.
#[must_use]
pub fn parse<P: Parser>() -> P {
    let matches = matches(P::command());
    P::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

/// As [`parse`], for programs that look at what was given and what is a default.
#[must_use]
pub fn matches(command: Command) -> ArgMatches {
    try_matches(command, std::env::args_os().collect()).unwrap_or_else(|error| error.exit())
}

/// Reads a command line.
///
/// # Errors
/// Wrong usage, and requests for help.
pub fn try_matches(mut command: Command, line: Vec<OsString>) -> Result<ArgMatches, Error> {
    let read = command.try_get_matches_from_mut(&line);
    read.map_err(|error| explained(&mut command, &line, &error).unwrap_or(error))
}

/// What the standard library could not read; `None` for other errors.
fn wanted(source: &(dyn std::error::Error + 'static)) -> Option<&'static str> {
    let address = source.downcast_ref::<AddrParseError>().map(|error| {
        let with_port = error.to_string().contains("socket");
        if with_port { "an address and a port" } else { "an address" }
    });
    let whole = source.is::<ParseIntError>().then_some("a whole number");
    let number = source.is::<ParseFloatError>().then_some("a number");
    address.or(whole).or(number)
}

/// The error with the wanted form, where a number or an address is at fault.
fn explained(command: &mut Command, line: &[OsString], error: &Error) -> Option<Error> {
    let source = error.source()?;
    let kind = wanted(source)?;
    let whole = source.downcast_ref::<ParseIntError>().map(ParseIntError::kind);
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let (shown, value) = (text(ContextKind::InvalidArg)?, text(ContextKind::InvalidValue)?);
    let command = meant(command, line);
    let arg = command.get_arguments().find(|arg| arg.to_string() == shown)?;
    let example = example(command, arg).map(|text| format!(", for example {text}"));
    let wanted = match whole {
        Some(IntErrorKind::PosOverflow) => "the number is too large".to_owned(),
        _ => format!("give {kind}{}{}", unit(arg), example.unwrap_or_default()),
    };
    let message = format!("invalid value '{value}' for '{shown}': {wanted}");
    Some(command.error(ErrorKind::ValueValidation, message))
}

/// The subcommand that a line names.
fn meant<'a>(mut command: &'a mut Command, line: &[OsString]) -> &'a mut Command {
    for word in line.iter().skip(1) {
        if command.find_subcommand(word).is_some() {
            command = command.find_subcommand_mut(word).expect("it was found");
        }
    }
    command
}

/// ` of seconds`, where the option's value is a time.
fn unit(arg: &Arg) -> String {
    let name = arg.get_value_names().and_then(|names| names.first());
    let time = name.filter(|name| name.ends_with("SECONDS"));
    time.map(|name| format!(" of {}", name.to_lowercase())).unwrap_or_default()
}

/// A value that the option takes: its default, one of the command's examples, or some number.
fn example(command: &Command, arg: &Arg) -> Option<String> {
    let default = arg.get_default_values().first().map(|text| text.to_string_lossy().into_owned());
    let option = arg.get_long().map(|long| format!("--{long} "));
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let shown = option.and_then(|option| {
        let rest = &help[help.find(&option)? + option.len()..];
        rest.split_whitespace().next().map(str::to_owned)
    });
    let others = EXAMPLES.iter().map(|text| (*text).to_owned());
    let mut all = default.into_iter().chain(shown).chain(others);
    all.find(|text| is_taken(arg.get_value_parser(), text))
}

/// Whether an option with this parser takes the value.
fn is_taken(parser: &ValueParser, value: &str) -> bool {
    let arg = Arg::new("value").value_parser(parser.clone());
    Command::new("any").arg(arg).try_get_matches_from(["any", "--", value]).is_ok()
}

/// Whether every option of a program, and of its subcommands, that takes a number or an address
/// names the form and an example where it gets none; the options for which that fails. For tests of
/// programs.
#[must_use]
pub fn unexplained(command: &Command) -> Vec<String> {
    const WRONG: &str = "partita";
    let mut failures = Vec::new();
    let mut command = command.clone();
    command.build();
    for sub in command.get_subcommands() {
        failures.extend(unexplained(sub));
    }
    for arg in command.get_arguments().filter(|arg| arg.get_action().takes_values()) {
        let alone = Arg::new("value").value_parser(arg.get_value_parser().clone());
        let alone = Command::new("any").arg(alone).try_get_matches_from(["any", WRONG]);
        let Err(error) = alone else { continue };
        let says = error.to_string();
        let bare = ["invalid digit", "invalid float", "no number\n", "address syntax"];
        if !bare.iter().any(|text| says.contains(text)) {
            continue;
        }
        let is_std = error.source().is_some_and(|source| wanted(source).is_some());
        if !is_std || example(&command, arg).is_none() {
            failures.push(format!("{} {arg}: {says}", command.get_name()));
        }
    }
    failures
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command() -> Command {
        let bound = Arg::new("bound").long("bound").value_name("MILLISECONDS");
        let until = Arg::new("until").long("until").value_parser(clap::value_parser!(u64));
        let part = Arg::new("part").long("part").value_parser(clap::value_parser!(f64));
        let listen = Arg::new("listen").long("listen").value_name("ADDRESS:PORT");
        let listen = listen.value_parser(clap::value_parser!(std::net::SocketAddr));
        let host =
            Arg::new("host").long("host").value_parser(clap::value_parser!(std::net::IpAddr));
        let count = Arg::new("count").value_name("N");
        let small = clap::value_parser!(u16).range(100..=200);
        Command::new("partita")
            .subcommand(
                Command::new("bench")
                    .arg(bound.default_value("7").value_parser(clap::value_parser!(u32))),
            )
            .subcommand(Command::new("release").after_help("e.g. --until 1800000000 x").arg(until))
            .subcommand(Command::new("run").arg(part).arg(count.value_parser(small)))
            .subcommand(Command::new("serve").arg(listen).arg(host))
    }

    fn check(line: &[&str], expected: &str) {
        let line = line.iter().map(OsString::from).collect();
        let error = try_matches(command(), line).unwrap_err().to_string();
        assert_eq!(error.lines().next().unwrap(), format!("error: invalid value {expected}"));
        assert!(error.contains("--help"), "{error}");
    }

    #[test]
    fn errors_name_the_form_and_an_example() {
        check(
            &["partita", "bench", "--bound", "x"],
            "'x' for '--bound <MILLISECONDS>': give a whole number of milliseconds, for example 7",
        );
        check(
            &["partita", "bench", "--bound="],
            "'' for '--bound <MILLISECONDS>': give a whole number of milliseconds, for example 7",
        );
        check(
            &["partita", "release", "--until", "soon"],
            "'soon' for '--until <until>': give a whole number, for example 1800000000",
        );
        check(
            &["partita", "release", "--until", "99999999999999999999"],
            "'99999999999999999999' for '--until <until>': the number is too large",
        );
        check(
            &["partita", "run", "--part", "half"],
            "'half' for '--part <part>': give a number, for example 10",
        );
        check(&["partita", "run", "1.5"], "'1.5' for '[N]': give a whole number, for example 100");
        check(
            &["partita", "serve", "--listen", "x"],
            "'x' for '--listen <ADDRESS:PORT>': give an address and a port, for example \
             127.0.0.1:9835",
        );
        check(
            &["partita", "serve", "--host", "x"],
            "'x' for '--host <host>': give an address, for example 127.0.0.1",
        );
        // This one is clap's own, and good.
        check(&["partita", "run", "7"], "'7' for '[N]': 7 is not in 100..=200");
    }

    #[test]
    fn programs_can_be_held_to_it() {
        assert_eq!(unexplained(&command()), [""; 0]);
        let wrong = |_: &str| Err::<u32, String>("it is no number".to_owned());
        let with = command().arg(Arg::new("load").long("load").value_parser(wrong));
        assert_eq!(unexplained(&with).len(), 1);
    }
}
