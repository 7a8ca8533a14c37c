//! Call counts by function, where `PARTITA_COVERAGE` names a file, as `partita run --coverage`
//! does.
//!
//! The file is mapped and shared with every other process of the program, so no count is lost when
//! a process is killed. Where the file cannot be mapped, or the variable is unset, counting costs
//! each call one load.

use crate::names::{SYMBOLS, Symbol};
use partita_model::coverage::{LONGEST_NAME, PLACES, ROW_BYTES, VARIABLE};
use std::env;
use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The mapped file: a row for each symbol, in their order.
struct Table(*mut u8);

// SAFETY: the mapping stays for the life of the process, and what changes in it is changed
// atomically.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

/// Counts a call that begins.
pub fn called(name: &str) {
    count(name, PLACES[0]);
}

/// Counts a call that answers with an error.
pub fn failed(name: &str) {
    count(name, PLACES[1]);
}

fn count(name: &str, place: usize) {
    static TABLE: OnceLock<Option<Table>> = OnceLock::new();
    let table =
        TABLE.get_or_init(|| env::var_os(VARIABLE).and_then(|file| Table::map(Path::new(&file))));
    let Some(table) = table else { return };
    if let Ok(index) = SYMBOLS.binary_search_by_key(&name, |symbol| symbol.name) {
        table.counter(index, place).fetch_add(1, Ordering::Relaxed);
    }
}

impl Table {
    fn map(path: &Path) -> Option<Table> {
        let bytes = SYMBOLS.len() * ROW_BYTES;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_CLOEXEC)
            .open(path)
            .ok()?;
        // Every process sets the same length.
        file.set_len(bytes as u64).ok()?;
        // SAFETY: a new mapping wherever the system likes, of a file that is as long.
        let base = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if base == libc::MAP_FAILED {
            return None;
        }
        let table = Table(base.cast());
        for (index, symbol) in SYMBOLS.iter().enumerate() {
            table.label(index, symbol);
        }
        Some(table)
    }

    /// Writes what does not change: every process writes the same.
    fn label(&self, index: usize, symbol: &Symbol) {
        let name = symbol.name.as_bytes();
        let name = &name[..name.len().min(LONGEST_NAME)];
        let row = index * ROW_BYTES;
        self.put(row + PLACES[2], &[symbol.answer.byte()]);
        self.put(row + PLACES[3], name);
    }

    fn put(&self, at: usize, bytes: &[u8]) {
        let to = self.0.wrapping_add(at);
        // SAFETY: a row lies inside the mapping, and what is put lies inside its row.
        unsafe { to.copy_from(bytes.as_ptr(), bytes.len()) };
    }

    fn counter(&self, index: usize, place: usize) -> &AtomicU64 {
        let counter = self.0.wrapping_add(index * ROW_BYTES + place).cast();
        // SAFETY: inside the mapping, which starts at a page, and rows and places are multiples of
        // eight; it is only ever used as an atomic.
        unsafe { AtomicU64::from_ptr(counter) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_model::coverage::{self, Row};

    #[test]
    fn names_fit_and_counters_are_aligned() {
        assert!(SYMBOLS.iter().all(|symbol| symbol.name.len() <= LONGEST_NAME));
        assert!([ROW_BYTES, PLACES[0], PLACES[1]].iter().all(|place| place % 8 == 0));
    }

    #[test]
    fn two_processes_count_in_one_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("calls");
        assert!(Table::map(&path).is_none(), "who asks makes the file");
        std::fs::write(&path, "").unwrap();
        let index = SYMBOLS.iter().position(|symbol| symbol.name == "cuInit").unwrap();
        for _ in 0..2 {
            let table = Table::map(&path).unwrap();
            table.counter(index, PLACES[0]).fetch_add(2, Ordering::Relaxed);
            table.counter(index, PLACES[1]).fetch_add(1, Ordering::Relaxed);
        }
        let rows = coverage::read(&std::fs::read(&path).unwrap());
        assert_eq!(rows.len(), SYMBOLS.len());
        let expected =
            Row { name: "cuInit".into(), answer: SYMBOLS[index].answer, calls: 4, errors: 2 };
        assert_eq!(rows[index], expected);
    }
}
