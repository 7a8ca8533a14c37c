//! `partita trace`: the application on each SM over time, and the moments at which borders moved.

use crate::api::{OfGpu, Target};
use crate::failure::Failure;
use crate::gantt;
use clap::Args;

const EXAMPLES: &str = "\
Examples:
  partita trace
      one line per SM, time from left to right, a letter per application; borders that moved are \
      marked above
  partita trace --width 200 --from 1000000 --to 5000000
      only the milliseconds 1 to 5 of device time, in more detail
  partita trace --json | jq '.entries[] | select(.event == \"resize\")'
      every entry as JSON, as GET /v1/trace returns it";

/// Show which application's CTAs were on which SM over time.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct TraceArgs {
    /// Print the API's answer as it is.
    #[arg(long)]
    json: bool,

    /// Columns of time.
    #[arg(long, value_name = "COLUMNS", default_value_t = 100,
        value_parser = clap::value_parser!(u16).range(10..=2000))]
    width: u16,

    /// Begin at this device time, in nanoseconds.
    #[arg(long, value_name = "NS")]
    from: Option<u64>,

    /// End at this device time, in nanoseconds.
    #[arg(long, value_name = "NS")]
    to: Option<u64>,

    #[command(flatten)]
    gpu: OfGpu,

    #[command(flatten)]
    target: Target,
}

impl TraceArgs {
    /// Asks and draws.
    pub fn execute(self) -> Result<Vec<u8>, Failure> {
        if self.json {
            let mut answer = self.target.get_raw(&self.gpu.path("/v1/trace"))?;
            answer.push(b'\n');
            return Ok(answer);
        }
        if let (Some(from), Some(to)) = (self.from, self.to)
            && from >= to
        {
            return Err(Failure::new(format!("--from {from} is not before --to {to}")).with_code(2));
        }
        let report = self.target.get(&self.gpu.path("/v1/trace"))?;
        Ok(gantt::render(
            &report,
            gantt::Frame { columns: self.width, from: self.from, to: self.to },
        )
        .into_bytes())
    }
}
