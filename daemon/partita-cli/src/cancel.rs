//! `partita cancel`: an administrator ends what a session runs.

use crate::api::Target;
use crate::failure::Failure;
use clap::Args;

const EXAMPLES: &str = "\
Examples:
  partita cancel 3
      end what session 3 has queued or running; its program gets CUDA_ERROR_LAUNCH_TIMEOUT, \
      others do not notice

`partita status` shows each application's sessions, `partita why` which launches get nowhere.";

/// End what a session has queued or running.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct CancelArgs {
    /// The session's id.
    session: u64,

    #[command(flatten)]
    target: Target,
}

impl CancelArgs {
    /// Asks for it.
    pub fn execute(self) -> Result<Vec<u8>, Failure> {
        self.target.delete(&format!("/v1/sessions/{}/launches", self.session))?;
        Ok(Vec::new())
    }
}
