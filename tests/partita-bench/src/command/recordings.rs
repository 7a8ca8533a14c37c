//! Recordings that a command line names.

use partita_cli::failure::Failure;
use partita_emu::record::{self, Entry, RecordingError};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a daemon may take to end after the program that it has recorded. `partita run` does not
/// wait for that.
const ENDING: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(50);

/// The entries of a recording, which must be whole.
///
/// # Errors
/// A failure that names the file and what is missing.
pub fn entries(path: &Path) -> Result<Vec<Entry>, Failure> {
    let start = Instant::now();
    loop {
        match record::entries(path) {
            Err(RecordingError::Unfinished) if start.elapsed() < ENDING => {
                std::thread::sleep(PAUSE);
            }
            read => {
                return read.map_err(|error| Failure::new(format!("{}: {error}", path.display())));
            }
        }
    }
}
