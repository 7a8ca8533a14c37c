//! Diagnostics: the finding, its place, and the source line with a caret under the place.
//!
//! [`Errors`] is never empty. It prints one `LINE:COL: error: …` per finding; [`Errors::in_file`]
//! puts the file's name in front, so that editors can follow it.

use std::fmt;

use crate::ir::Pos;

/// Findings beyond this many are not reported.
pub const MAX_ERRORS: usize = 20;

/// Longest part of a source line that an excerpt shows, in bytes.
const EXCERPT_BYTES: usize = 160;

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The place; line 0 when a pass made the item, so that it has no place in a source.
    pub pos: Pos,
    /// Bytes that the caret underlines, at least 1.
    pub len: u32,
    /// The error, and what was expected.
    pub message: String,
    /// The source line, shortened, and the caret's offset in it. Empty without a source.
    pub excerpt: Option<Excerpt>,
}

/// A source line as shown under a finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excerpt {
    /// The line, or the part of it around the place, tabs turned into blanks.
    pub text: String,
    /// Characters before the caret.
    pub caret: usize,
}

/// One or more findings, in source order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Errors {
    list: Vec<Diagnostic>,
}

impl Errors {
    /// `Err` when there are findings.
    ///
    /// # Errors
    ///
    /// The findings themselves.
    pub fn check(mut list: Vec<Diagnostic>) -> Result<(), Self> {
        if list.is_empty() {
            return Ok(());
        }
        list.sort_by_key(|diagnostic| diagnostic.pos);
        Err(Self { list })
    }

    /// The findings, at least one.
    #[must_use]
    pub fn list(&self) -> &[Diagnostic] {
        &self.list
    }

    /// Adds the excerpts.
    #[must_use]
    pub fn with_source(mut self, source: &str) -> Self {
        let mut lines = source.split('\n').enumerate();
        let mut current = lines.next();
        for diagnostic in &mut self.list {
            let wanted = diagnostic.pos.line as usize;
            while current.is_some_and(|(index, _)| index + 1 < wanted) {
                current = lines.next();
            }
            if let Some((index, line)) = current
                && index + 1 == wanted
            {
                diagnostic.excerpt = Some(excerpt(line, diagnostic.pos.col as usize));
            }
        }
        self
    }

    /// Prints as `FILE:LINE:COL: error: …`.
    #[must_use]
    pub const fn in_file<'a>(&'a self, file: &'a str) -> InFile<'a> {
        InFile { errors: self, file }
    }
}

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_all(f, "", self)
    }
}

impl std::error::Error for Errors {}

/// See [`Errors::in_file`].
#[derive(Clone, Copy, Debug)]
pub struct InFile<'a> {
    errors: &'a Errors,
    file: &'a str,
}

impl fmt::Display for InFile<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_all(f, self.file, self.errors)
    }
}

fn write_all(f: &mut fmt::Formatter<'_>, file: &str, errors: &Errors) -> fmt::Result {
    for (index, diagnostic) in errors.list.iter().enumerate() {
        if index > 0 {
            writeln!(f)?;
        }
        if !file.is_empty() {
            write!(f, "{file}:")?;
        }
        write!(f, "{}:{}: error: {}", diagnostic.pos.line, diagnostic.pos.col, diagnostic.message)?;
        if let Some(excerpt) = &diagnostic.excerpt {
            let room = excerpt.text.chars().count().saturating_sub(excerpt.caret).max(1);
            let carets = "^".repeat(room.min(diagnostic.len.max(1) as usize));
            write!(f, "\n    {}\n    {}{carets}", excerpt.text, " ".repeat(excerpt.caret))?;
        }
    }
    Ok(())
}

fn excerpt(line: &str, col: usize) -> Excerpt {
    let at = col.saturating_sub(1).min(line.len());
    let boundary = |mut index: usize| {
        while !line.is_char_boundary(index) {
            index -= 1;
        }
        index
    };
    let start = if at > EXCERPT_BYTES / 2 { boundary(at - EXCERPT_BYTES / 2) } else { 0 };
    let end = boundary((start + EXCERPT_BYTES).min(line.len()));
    let clean = |part: &str| part.replace(|c: char| c.is_control(), " ");
    let at = boundary(at).clamp(start, end);
    Excerpt {
        text: clean(&line[start..end]).trim_end().to_owned(),
        caret: line[start..at].chars().count(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(line: u32, col: u32, len: u32) -> Errors {
        let diagnostic =
            Diagnostic { pos: Pos { line, col }, len, message: "no".to_owned(), excerpt: None };
        Errors::check(vec![diagnostic]).unwrap_err()
    }

    #[test]
    fn shows_the_line_and_the_place() {
        let errors = one(2, 5, 3).with_source("a\n\tb, foo;\nc");
        assert_eq!(
            errors.in_file("x.ptx").to_string(),
            "x.ptx:2:5: error: no\n     b, foo;\n        ^^^"
        );
    }

    #[test]
    fn long_lines_and_foreign_letters_are_cut_between_characters() {
        let line = "ä".repeat(1000);
        let text = one(1, 1001, 5000).with_source(&line).to_string();
        assert!(text.lines().all(|line| line.chars().count() < 200), "{text}");
    }
}
