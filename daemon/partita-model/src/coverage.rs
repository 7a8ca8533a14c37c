//! The file in which programs count their CUDA calls: a table with a row for each function of the
//! driver API.
//!
//! A row is [`ROW_BYTES`] long, little endian: how often the function was called (`u64`), how often
//! it answered with an error (`u64`), how it is answered (a byte, [`Answer`]), and its name, padded
//! with zeros. Several processes add to the same file, and may die at any moment; so rows have
//! fixed places and counters are all that changes.

use std::fmt;

/// The environment's name for the file.
pub const VARIABLE: &str = "PARTITA_COVERAGE";

/// Bytes of a row.
pub const ROW_BYTES: usize = 96;
/// Bytes from a row's start to its counter of calls, to that of errors, to how it is answered, and
/// to its name.
pub const PLACES: [usize; 4] = [0, 8, 16, 17];
/// The longest name, in bytes.
pub const LONGEST_NAME: usize = ROW_BYTES - PLACES[3];

/// The kind of answer of a function of the driver API.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// With the daemon.
    Daemon,
    /// In the program's process.
    Local,
    /// By `CUDA_ERROR_NOT_SUPPORTED`.
    Refused,
}

impl Answer {
    /// Its byte.
    #[must_use]
    pub fn byte(self) -> u8 {
        match self {
            Answer::Daemon => b'd',
            Answer::Local => b'l',
            Answer::Refused => b'r',
        }
    }

    fn from_byte(byte: u8) -> Option<Answer> {
        [Answer::Daemon, Answer::Local, Answer::Refused]
            .into_iter()
            .find(|answer| answer.byte() == byte)
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Answer::Daemon => "by the daemon",
            Answer::Local => "in the program",
            Answer::Refused => "refused",
        })
    }
}

/// A function and its counts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// The kind of answer.
    pub answer: Answer,
    /// Number of calls.
    pub calls: u64,
    /// Number of calls that returned an error.
    pub errors: u64,
}

/// The rows of a file. What is no row, in a file that a program has damaged, is left out.
#[must_use]
pub fn read(file: &[u8]) -> Vec<Row> {
    let row = |bytes: &[u8]| {
        let number = |at: usize| bytes[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        let name = bytes[PLACES[3]..].split(|byte| *byte == 0).next()?;
        let name = str::from_utf8(name).ok().filter(|name| !name.is_empty())?;
        Some(Row {
            name: name.to_owned(),
            answer: Answer::from_byte(bytes[PLACES[2]])?,
            calls: number(PLACES[0])?,
            errors: number(PLACES[1])?,
        })
    };
    file.chunks_exact(ROW_BYTES).filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &[u8], answer: u8, calls: u64, errors: u64) -> Vec<u8> {
        let mut row = vec![0; ROW_BYTES];
        row[..8].copy_from_slice(&calls.to_le_bytes());
        row[8..16].copy_from_slice(&errors.to_le_bytes());
        row[16] = answer;
        row[17..17 + name.len()].copy_from_slice(name);
        row
    }

    #[test]
    fn damaged_rows_are_left_out() {
        let rows = [
            row(b"cuInit", b'l', 1, 0),
            row(b"", b'l', 7, 0),
            row(b"\xff", b'l', 7, 0),
            row(b"cuX", b'?', 7, 0),
            row(&[b'n'; LONGEST_NAME], b'r', 2, 2),
            vec![b'd'; ROW_BYTES - 1],
        ];
        let found = read(&rows.concat());
        assert_eq!(found.len(), 2);
        assert_eq!(
            found[0],
            Row { name: "cuInit".into(), answer: Answer::Local, calls: 1, errors: 0 }
        );
        assert_eq!((found[1].name.len(), found[1].answer), (LONGEST_NAME, Answer::Refused));
    }
}
