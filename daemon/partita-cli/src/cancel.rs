//! `partita cancel`: a user ends the work of its own session, an administrator that of any.

use crate::api::Target;
use crate::failure::Failure;
use clap::Args;

const EXAMPLES: &str = "\
Examples:
  partita cancel 3
      end all queued and running work of session 3; its program gets \
      CUDA_ERROR_LAUNCH_TIMEOUT, other programs go on

`partita status` shows the sessions of each application, `partita why` the stuck launches.";

/// End all queued and running work of a session.
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
