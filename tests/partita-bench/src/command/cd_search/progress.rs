//! A bar on a terminal, a line now and then elsewhere.

use partita_bench::Progress;
use partita_cli::failure::say;
use std::io::{IsTerminal, Write};

const WIDTH: usize = 24;
/// Where there is no terminal, a line for each such part.
const LINES: usize = 5;

/// Shows how far something has got.
pub struct Bar {
    what: String,
    terminal: bool,
    said: usize,
    shown: bool,
}

impl Bar {
    /// Nothing is shown before the first thing is done.
    pub fn new(what: &str) -> Bar {
        Bar {
            what: what.to_owned(),
            terminal: std::io::stderr().is_terminal(),
            said: 0,
            shown: false,
        }
    }

    /// Something was done.
    pub fn show(&mut self, progress: &Progress) {
        let Progress { done, of, title, left } = progress;
        // Runs that others begin with are counted by themselves, ahead of those.
        if *done <= 1 {
            self.said = 0;
        }
        let left = left.map(|seconds| format!(", {} left", span(seconds))).unwrap_or_default();
        if self.terminal {
            let filled = WIDTH * done / (*of).max(1);
            let bar: String = (0..WIDTH).map(|at| if at < filled { '#' } else { '.' }).collect();
            // Nobody may be there to see it.
            let _ = write!(
                std::io::stderr(),
                "\r\x1b[K{} [{bar}] {done}/{of}{left}  {title}",
                self.what
            );
            self.shown = true;
        } else if done * LINES / (*of).max(1) > self.said {
            self.said = done * LINES / (*of).max(1);
            say(&format!("{}: {done} of {of} runs{left}", self.what));
        }
    }

    /// Leaves the terminal's line.
    pub fn end(self) {
        if self.shown {
            say("");
        }
    }
}

fn span(seconds: f64) -> String {
    if seconds < 90.0 {
        format!("about {seconds:.0} s")
    } else {
        format!("about {:.0} min", seconds / 60.0)
    }
}
