//! `partita bench copies`: how much transfer time kernels hide (Kernelet, TPDS '14 §5.3).
//!
//! The same programs run twice: with copies in the order of arrival, as CUDA has them, and in
//! Partita's order.

use crate::shown;
use clap::Args;
use partita_bench::copying::{Company, Mix, Seen, play, programs};
use partita_cli::failure::Failure;
use partita_cli::report::{Metric, Report};
use partita_emu::Spec;
use partita_engine::{CopyPolicy, EngineConfig};
use partita_model::Nanos;

const EXAMPLES: &str = "\
Examples:
  partita bench copies
      measure one program, one user and four users whose kernels take 0.7 to 1.5 times as long \
      as their copies
  partita bench copies --loads 1.2 --seeds 10 --milliseconds 50
      another load, with more and shorter mixes
  partita bench copies --seeds 1 --json | jq '.metrics[] | {name, value, met}'
      one mix of each kind, as JSON

Times are simulated: a slow host changes no figure.";

/// Kernelet hides 95 to 99 % (§5.3).
const GOAL: f64 = 99.0;
const PAPER: f64 = 95.0;

/// Measure how much of the time of copies between host and device kernels hide.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct CopiesArgs {
    /// The time of the kernels, each alone on the GPU, divided by the transfer time of both
    /// directions.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [0.7, 1.0, 1.5])]
    loads: Vec<f64>,

    /// The number of random mixes of programs.
    #[arg(long, value_name = "N", default_value_t = 5,
        value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,

    /// The first seed.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,

    /// The length of each run, in milliseconds of device time.
    #[arg(long, value_name = "N", default_value_t = 200,
        value_parser = clap::value_parser!(u64).range(1..=100_000))]
    milliseconds: u64,

    /// The modelled GPU: a name that `partita emu specs` lists, or a file's path with a slash.
    #[arg(long, value_name = "NAME", default_value = "titan-xp")]
    spec: String,

    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl CopiesArgs {
    /// Measures.
    pub fn execute(&self) -> Result<Vec<u8>, Failure> {
        let spec = Spec::find(&self.spec)?;
        if let Some(load) = self.loads.iter().find(|load| !(0.01..=100.0).contains(*load)) {
            return Err(Failure::new(format!("load {load}: give a number from 0.01 to 100")));
        }
        let mut metrics = Vec::new();
        for company in Company::ALL {
            for &load in &self.loads {
                let arrival = self.play(&spec, company, load, CopyPolicy::Arrival)?;
                let ordered = self.play(&spec, company, load, CopyPolicy::Readiness)?;
                let name = format!("{}, load {load}", company.name());
                metrics.extend(figures(&name, load, [&arrival, &ordered]));
            }
        }
        let device = format!("{}, {} ms each, {} seeds", spec.name, self.milliseconds, self.seeds);
        shown(&Report { bench: "copies".into(), device, seed: self.seed, metrics }, self.json)
    }

    fn play(
        &self,
        spec: &Spec,
        company: Company,
        load: f64,
        copies: CopyPolicy,
    ) -> Result<Vec<Seen>, Failure> {
        let one = |seed| {
            let programs = programs(spec, &Mix { company, load, seed });
            let span = Nanos(self.milliseconds * 1_000_000);
            let config = EngineConfig { copies, ..EngineConfig::default() };
            Ok(play(spec, &programs, (seed, config), span)?)
        };
        (self.seed..self.seed + self.seeds).map(one).collect()
    }
}

/// The figures of one company and load over all seeds: in the order of arrival, and in Partita's.
fn figures(name: &str, load: f64, [arrival, ordered]: [&[Seen]; 2]) -> Vec<Metric> {
    let both = |what: &str, unit: &str, of: &dyn Fn(&Seen) -> f64| {
        let values = |seen: &[Seen]| seen.iter().map(of).collect::<Vec<f64>>();
        [
            over_seeds(&values(arrival), format!("{name}: {what}, by arrival"), unit),
            over_seeds(&values(ordered), format!("{name}: {what}"), unit),
        ]
    };
    let mut hidden = both("transfer time hidden", "%", &|seen| seen.hidden_part() * 100.0);
    let [_, own] = &mut hidden;
    if load >= 1.0 {
        own.goal = Some(GOAL);
        own.met = Some(own.value >= GOAL);
        own.paper = Some(PAPER);
    }
    let copied = |seen: &Seen| seen.bytes.iter().sum::<u64>() as f64 / 1e6;
    hidden
        .into_iter()
        .chain(both("until a launch is ready", "ms", &|seen| seen.mean_readiness() / 1e6))
        .chain(both("copied in rounds that ended", "MB", &copied))
        .collect()
}

/// The mean of a figure, and its spread.
fn over_seeds(values: &[f64], name: String, unit: &str) -> Metric {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let spread = (values.len() > 1).then(|| (squares / (count - 1.0)).sqrt());
    Metric { spread, ..Metric::plain(name, mean, unit) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A short run of the whole bench: both orders hide a part, and Partita's goal is told.
    #[test]
    fn both_orders_are_measured() {
        let args = CopiesArgs {
            loads: vec![1.0],
            seeds: 1,
            seed: 3,
            milliseconds: 10,
            spec: "titan-xp".to_owned(),
            json: false,
        };
        let text = String::from_utf8(args.execute().unwrap()).unwrap();
        for name in ["one program", "one user", "four users"] {
            assert!(text.contains(&format!("{name}, load 1: transfer time hidden, by arrival")));
        }
        assert_eq!(text.matches("99.00").count(), 3, "{text}");
    }
}
