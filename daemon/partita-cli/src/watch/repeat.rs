//! `--watch [SECONDS]`: a command's output again and again, until its reader goes or a signal
//! comes.
//!
//! On a terminal each output replaces the one before. Elsewhere outputs follow each other: JSON as
//! one document a line, text with an empty line between. A daemon that stops answering is no end:
//! the message takes the output's place, or goes to stderr, and the next reading tries again.

use crate::failure::{Failure, say};
use clap::Args;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// Clears the screen and puts the cursor into its corner (ECMA-48 ED and CUP).
const CLEAR: &str = "\x1b[H\x1b[2J";

/// The option.
#[derive(Args, Clone, Copy, Debug, PartialEq)]
pub struct Watch {
    /// Repeat the output every SECONDS seconds until Ctrl-C. [default without SECONDS: 2]
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2",
        value_parser = seconds)]
    watch: Option<Duration>,
}

/// An interval between readings: 0.1 s to an hour.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is no interval: give 0.1 to 3600 seconds, e.g. 0.5");
    let seconds: f64 = text.parse().map_err(|_| wrong())?;
    if (0.1..=3600.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err(wrong())
    }
}

impl Watch {
    /// The command's output, once; or again and again, until stdout has no reader.
    pub fn run(
        self,
        mut once: impl FnMut() -> Result<Vec<u8>, Failure>,
    ) -> Result<Vec<u8>, Failure> {
        let Some(interval) = self.watch else { return once() };
        let mut out = io::stdout();
        let clears = out.is_terminal();
        // The first failure is the user's: a wrong folder does not get better.
        let mut shown = once()?;
        loop {
            let next = Instant::now() + interval;
            match put(&mut out, &shown, clears) {
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(Vec::new()),
                other => other?,
            }
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
            shown = match once() {
                Ok(shown) => shown,
                Err(failure) if clears => (failure.text() + "\n").into_bytes(),
                Err(failure) => {
                    say(&failure.text());
                    Vec::new()
                }
            };
        }
    }
}

fn put(out: &mut impl Write, shown: &[u8], clears: bool) -> io::Result<()> {
    if clears {
        out.write_all(CLEAR.as_bytes())?;
    }
    out.write_all(shown)?;
    if shown.is_empty() {
        return out.flush();
    }
    let is_document = shown.starts_with(b"{") || shown.starts_with(b"[");
    if !clears && !is_document {
        out.write_all(b"\n")?;
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "-1", "x", "NaN", "inf", "3601", ""] {
            assert!(seconds(wrong).unwrap_err().contains("0.1 to 3600"), "{wrong}");
        }
    }

    #[test]
    fn outputs_follow_or_replace_each_other() {
        let after = |shown: &str, clears| {
            let mut out = Vec::new();
            put(&mut out, shown.as_bytes(), clears).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(after("One.\n", false), "One.\n\n");
        assert_eq!(after("{}\n", false), "{}\n");
        assert_eq!(after("One.\n", true), "\x1b[H\x1b[2JOne.\n");
    }
}
