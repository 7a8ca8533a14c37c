//! Counts lines that the log's file did not take: a full disk, a limit on the size of files.
//!
//! The next line that the file takes follows a note of how many were lost, and why.

use std::io::{self, Write};

/// Writes lines. No line fails: a line that is not written is counted.
pub struct Counting<W> {
    to: W,
    lost: usize,
    /// Why the last one was lost.
    reason: String,
    /// Whether the file ends in the middle of a line.
    is_within_line: bool,
}

impl<W: Write> Counting<W> {
    /// Lines to there.
    pub fn new(to: W) -> Counting<W> {
        Counting { to, lost: 0, reason: String::new(), is_within_line: false }
    }

    fn try_line(&mut self, line: &[u8]) -> io::Result<()> {
        if self.lost > 0 {
            let end = if self.is_within_line { "\n" } else { "" };
            let (lost, reason) = (self.lost, &self.reason);
            let note = format!("{end}{lost} lines of this log were lost: {reason}\n");
            self.put(note.as_bytes())?;
            self.lost = 0;
        }
        self.put(line)
    }

    fn put(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.to.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    self.is_within_line = bytes[written - 1] != b'\n';
                    bytes = &bytes[written..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl<W: Write> Write for Counting<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if let Err(error) = self.try_line(line) {
            self.lost += 1;
            self.reason = error.to_string();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    /// A file with room for `room` bytes.
    #[derive(Clone, Default)]
    struct Disk {
        bytes: Arc<Mutex<Vec<u8>>>,
        room: Arc<Mutex<usize>>,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut room = self.room.lock().unwrap();
            let written = bytes.len().min(*room);
            if written == 0 {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            *room -= written;
            self.bytes.lock().unwrap().extend(&bytes[..written]);
            Ok(written)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_a_full_file_did_not_take_are_counted() {
        let disk = Disk::default();
        *disk.room.lock().unwrap() = 12;
        let mut log = Counting::new(disk.clone());
        for line in ["first\n", "second\n", "third\n", "fourth\n"] {
            log.write_all(line.as_bytes()).unwrap();
        }
        *disk.room.lock().unwrap() = 1000;
        log.write_all(b"fifth\n").unwrap();
        log.write_all(b"sixth\n").unwrap();
        let text = String::from_utf8(disk.bytes.lock().unwrap().clone()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let note = "3 lines of this log were lost: file too large";
        assert_eq!(lines, ["first", "second", note, "fifth", "sixth"]);
    }
}
