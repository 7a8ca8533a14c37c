//! Why the tool cannot do its work. What happens to a healthy program is no such error.

use std::path::PathBuf;

/// The reason why there is no verdict.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// The system refused.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A binary is missing.
    #[error(
        "{path} does not exist: build it (`cargo build -p partitad -p partita-gpu`), or name its \
         folder with --binaries"
    )]
    NoBinary {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// The daemon does not start.
    #[error("partitad did not start; the end of its log:\n{log}")]
    NoDaemon {
        /// The end of its log.
        log: String,
    },
    /// The daemon's API does not answer.
    #[error("the daemon's API gave no status: {reason}")]
    NoStatus {
        /// What came instead.
        reason: String,
    },
    /// A program fails before anything hostile happens.
    #[error("a healthy program does not start beside well-behaved ones: {reason}")]
    NoBaseline {
        /// What it said.
        reason: String,
    },
    /// No act is left.
    #[error("no act is left to choose from: those asked for need another user; run as root")]
    NoActs,
}

impl ToolError {
    /// The system refused something.
    pub fn io(what: &str, source: std::io::Error) -> ToolError {
        ToolError::Io { what: what.to_owned(), source }
    }
}
