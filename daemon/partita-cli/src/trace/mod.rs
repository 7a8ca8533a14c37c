//! `partita trace`: the application on each SM over time, the moments at which borders moved, and
//! copies; as text, as a file for Perfetto ([`perfetto`]) or as a picture ([`svg`]).

mod perfetto;
mod segments;
mod svg;

pub use segments::time_of;

use crate::failure::Failure;
use crate::view::View;
use crate::{files, gantt, table};
use clap::Args;
use partita_model::{GpuStatus, StatusReport, TraceReport};
use std::path::PathBuf;

/// Columns of time where there is no terminal.
const COLUMNS: u16 = 100;
/// Columns before the time: the SM.
const LABEL: u16 = 7;

const EXAMPLES: &str = "\
Examples:
  partita trace
      one line per SM and one per kind of copy, time from left to right, a letter per application; \
      borders that moved are marked above
  partita trace --width 200 --from 1000000 --to 5000000
      only the milliseconds 1 to 5 of device time, in more detail
  partita trace --perfetto trace.json
      a file for https://ui.perfetto.dev: SMs, launches, copies, resizes and decisions over \
      device time
  partita trace --svg trace.svg --from 1000000 --to 5000000
      a picture for papers and slides
  partita trace --watch 5
      the same again every five seconds
  partita trace --json | jq '.entries[] | select(.event == \"resize\")'
      every entry as JSON, as GET /v1/trace returns it
  partita trace --json | jq '.copies[] | select(.kind == \"host_to_device\") | .bytes'
      the lengths of copies to the device, in bytes";

/// Show which application's CTAs were on which SM over time, and when it copied.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct TraceArgs {
    /// Write a file in the JSON trace event format, which Perfetto opens; `-` is stdout.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "svg", "from", "to", "watch"])]
    perfetto: Option<PathBuf>,

    /// Write a picture; `-` is stdout.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "watch"])]
    svg: Option<PathBuf>,

    /// Columns of time. [default: what fits the terminal, else 100]
    #[arg(long, value_name = "COLUMNS", value_parser = clap::value_parser!(u16).range(10..=2000))]
    width: Option<u16>,

    /// Begin at this device time, in nanoseconds.
    #[arg(long, value_name = "NS", conflicts_with = "json")]
    from: Option<u64>,

    /// End at this device time, in nanoseconds.
    #[arg(long, value_name = "NS", conflicts_with = "json")]
    to: Option<u64>,

    #[command(flatten)]
    view: View,
}

impl TraceArgs {
    /// Asks and draws.
    pub fn execute(self) -> Result<Vec<u8>, Failure> {
        if let (Some(from), Some(to)) = (self.from, self.to)
            && from >= to
        {
            return Err(Failure::new(format!("--from {from} is not before --to {to}")).with_code(2));
        }
        self.view.run(|| self.once())
    }

    fn once(&self) -> Result<Vec<u8>, Failure> {
        if self.view.json {
            return Ok(self.view.get_line("/v1/trace")?);
        }
        let report: TraceReport = self.view.get("/v1/trace")?;
        if let Some(file) = &self.perfetto {
            return Ok(files::write(file, perfetto::render(&report, &self.status()?))?);
        }
        if let Some(file) = &self.svg {
            let picture = svg::render(&report, &self.status()?, self.from, self.to);
            let empty = || {
                Failure::new(
                    "the trace has no CTA in this time: run a kernel, or widen --from and --to",
                )
            };
            return Ok(files::write(file, picture.ok_or_else(empty)?)?);
        }
        let fits = || table::terminal_width().map(|width| width.saturating_sub(LABEL).max(10));
        let columns = self.width.or_else(fits).unwrap_or(COLUMNS);
        Ok(gantt::render(&report, gantt::Frame { columns, from: self.from, to: self.to })
            .into_bytes())
    }

    /// The GPU of the trace, with its applications' names and its decisions.
    fn status(&self) -> Result<GpuStatus, Failure> {
        let report: StatusReport = self.view.get("/v1/status")?;
        Ok(report.into())
    }
}
