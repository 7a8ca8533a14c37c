//! Which lines the log has: the filter of `PARTITA_LOG` or `RUST_LOG`.

use tracing_subscriber::filter::{Directive, LevelFilter};

/// The filter where no variable has one that can be read.
const DEFAULT: &str = "info";

/// The variables, the first of them before the other.
const VARIABLES: [&str; 2] = ["PARTITA_LOG", "RUST_LOG"];

/// How targets of Partita begin.
const OWN: &str = "partita";

/// A filter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Filter {
    /// Its text.
    pub text: String,
    /// The variable that it comes from; `None` for the default.
    pub variable: Option<&'static str>,
    /// What is wrong with the variable's value, where the default stands in for it.
    pub complaint: Option<String>,
}

impl Filter {
    /// The filter of the environment. An empty variable counts as none.
    pub fn from_environment() -> Filter {
        let named = |name| {
            let text = std::env::var(name).ok().filter(|text| !text.trim().is_empty())?;
            Some((name, text))
        };
        match VARIABLES.into_iter().find_map(named) {
            Some((variable, text)) => Filter::read(variable, &text),
            None => Filter { text: DEFAULT.to_owned(), variable: None, complaint: None },
        }
    }

    fn read(variable: &'static str, text: &str) -> Filter {
        let parts: Vec<&str> =
            text.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
        let complaint = parts.iter().find_map(|part| {
            let fault = fault(part, variable == VARIABLES[0])?;
            Some(format!(
                "{variable}={text}: `{part}` cannot be used: {fault}; the filter is `{DEFAULT}`; \
                 write a level, or TARGET=LEVEL as in `info,partitad=debug`"
            ))
        });
        match complaint {
            None => Filter { text: parts.join(","), variable: Some(variable), complaint: None },
            complaint => Filter { text: DEFAULT.to_owned(), variable: None, complaint },
        }
    }
}

/// What is wrong with a part of a filter. Where the variable is Partita's `own`, so are targets.
/// Programs share the other.
fn fault(part: &str, own: bool) -> Option<String> {
    if let Err(error) = part.parse::<Directive>() {
        return Some(error.to_string());
    }
    // A word alone is a target, of which all lines are wanted. A misspelt level would be one.
    let is_word = !part.contains(['=', '[']);
    let is_fine = part.parse::<LevelFilter>().is_ok() || is_own_target(part);
    (own && is_word && !is_fine).then(|| {
        "it is no level (off, error, warn, info, debug, trace), and no target of Partita".to_owned()
    })
}

fn is_own_target(part: &str) -> bool {
    let is_name = |name: &str| {
        let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        !name.is_empty() && name.bytes().all(is_of_name)
    };
    part.starts_with(OWN) && part.split("::").all(is_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_that_can_be_read_are_used() {
        for (text, used) in [
            ("debug", "debug"),
            ("Trace", "Trace"),
            ("3", "3"),
            ("partitad=debug", "partitad=debug"),
            ("partita_gpu::shell, info,", "partita_gpu::shell,info"),
            ("hyper=off,[session{id=7}]=debug", "hyper=off,[session{id=7}]=debug"),
            ("my_app", "my_app"),
        ] {
            let expected =
                Filter { text: used.to_owned(), variable: Some("RUST_LOG"), complaint: None };
            assert_eq!(Filter::read("RUST_LOG", text), expected, "{text}");
        }
    }

    #[test]
    fn a_part_that_is_nonsense_is_named_and_the_default_holds() {
        for (text, part) in [
            ("loud", "`loud`"),
            ("infos,partitad=debug", "`infos`"),
            ("info,partitad=loud", "`partitad=loud`"),
            ("partitad:debug", "`partitad:debug`"),
            ("info;debug", "`info;debug`"),
            ("debug,!", "`!`"),
        ] {
            let Filter { text: used, variable, complaint } = Filter::read("PARTITA_LOG", text);
            assert_eq!((&*used, variable), ("info", None), "{text}");
            let complaint = complaint.expect(text);
            for word in [part, &format!("PARTITA_LOG={text}: "), "TARGET=LEVEL"] {
                assert!(complaint.contains(word), "`{word}` in {complaint}");
            }
        }
    }
}
