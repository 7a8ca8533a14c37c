//! How far long work has got: a bar on a terminal, a line now and then elsewhere. Both are on
//! stderr.

use crate::failure::say;
use indicatif::{ProgressBar, ProgressStyle};

/// Of the bar itself, in characters.
const TEMPLATE: &str = "{prefix} [{bar:24.}] {pos}/{len}{msg}";
/// Where there is no terminal, this many lines report from the beginning to the end.
const LINES: usize = 5;

/// A bar for some work.
pub struct Bar {
    what: String,
    unit: &'static str,
    bar: ProgressBar,
    said: usize,
}

impl Bar {
    /// Nothing is shown before the first unit is done.
    ///
    /// # Panics
    /// Never: the template is a constant.
    #[must_use]
    pub fn new(what: &str, unit: &'static str) -> Bar {
        let style = ProgressStyle::with_template(TEMPLATE).expect("the template is well formed");
        let bar = ProgressBar::new(0)
            .with_style(style.progress_chars("##."))
            .with_prefix(what.to_owned());
        Bar { what: what.to_owned(), unit, bar, said: 0 }
    }

    /// Shows that another unit is done. `left` is about how many seconds the rest takes.
    pub fn show(&mut self, (done, of): (usize, usize), title: &str, left: Option<f64>) {
        // Runs that others need first are counted by themselves, and their count ends before the
        // others' begins.
        if done <= 1 {
            self.said = 0;
        }
        let left = left.map(|seconds| format!(", {} left", span(seconds))).unwrap_or_default();
        if !self.bar.is_hidden() {
            self.bar.set_length(of as u64);
            self.bar.set_position(done as u64);
            self.bar.set_message(format!("{left}  {title}"));
        } else if done * LINES / of.max(1) > self.said {
            self.said = done * LINES / of.max(1);
            say(&format!("{}: {done} of {of} {}{left}", self.what, self.unit));
        }
    }

    /// Shows that another unit is done, where nobody knows how long the rest takes.
    pub fn step(&mut self, done: usize, of: usize, title: &str) {
        self.show((done, of), title, None);
    }

    /// Leaves the terminal's line.
    pub fn end(self) {
        self.bar.abandon();
    }
}

fn span(seconds: f64) -> String {
    if seconds < 90.0 {
        format!("about {seconds:.0} s")
    } else {
        format!("about {:.0} min", seconds / 60.0)
    }
}
