//! What the commands have in common that show an answer of the API: which GPU of which daemon, in
//! which form, once or again and again.

use crate::api::{ApiError, OfGpu, Target};
use crate::failure::Failure;
use crate::watch::repeat::Watch;
use clap::Args;
use serde::de::DeserializeOwned;

/// The common arguments.
#[derive(Args, Debug)]
pub struct View {
    /// Print JSON; the examples name its shape.
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    watch: Watch,

    #[command(flatten)]
    gpu: OfGpu,

    #[command(flatten)]
    target: Target,
}

impl View {
    /// The output, as often as it is wanted.
    pub fn run(&self, once: impl FnMut() -> Result<Vec<u8>, Failure>) -> Result<Vec<u8>, Failure> {
        self.watch.run(once)
    }

    /// `GET path` of the GPU that is meant.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ApiError> {
        self.target.get(&self.gpu.path(path))
    }

    /// `GET path` of the GPU that is meant: the answer as it comes, as one line.
    pub fn get_line(&self, path: &str) -> Result<Vec<u8>, ApiError> {
        self.target.get_line(&self.gpu.path(path))
    }
}
