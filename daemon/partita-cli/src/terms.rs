//! `partita terms`: what an application may have of the GPU, changed while its kernels run; and the
//! same words as options of `partita run`.
//!
//! The command parses. The daemon decides whether the terms can hold and who may set them.

use crate::api::{OfGpu, Target};
use crate::failure::Failure;
use clap::Args;
use partita_model::{
    ApplicationReport, Entitlement, LatencyTarget, MemoryAmount, Priority, SmRange, TargetReport,
    Terms, Weight,
};

const EXAMPLES: &str = "\
Examples:
  partita terms 3 --sms 8..24
      application 3 has 8 SMs whenever it has work, and 24 at most
  partita terms 3 --sms 25%.. --weight 2
      a quarter of the SMs at least, and twice as much of the rest as an application of weight 1
  partita terms 3 --priority latency
      while application 3 has work, batch applications leave their SMs to it
  partita terms 3 --priority latency --target 5ms
      the same, with the fewest SMs that keep its requests within 5 ms
  partita terms 3 --reset
      what the configuration and the program say holds again

The options replace what was set before: give all that is to hold.

`partita status` shows the applications and their terms, `partita why` what each has of them.
Users may ask for less than the configuration grants them, administrators for everything.";

/// Set minimum, maximum, weight, priority, memory and target of an application; its running kernels
/// follow.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct TermsArgs {
    /// The application's id.
    application: u32,

    #[command(flatten)]
    asked: Asked,

    /// Withdraw what was set.
    #[arg(long, conflicts_with_all = ["sms", "weight", "priority", "memory", "latency"])]
    reset: bool,

    #[command(flatten)]
    gpu: OfGpu,

    #[command(flatten)]
    target: Target,
}

/// Terms on a command line.
#[derive(Args, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Asked {
    /// SMs: a minimum and a maximum as in `8..24`, `8..`, `..24` or `20%..50%`; one number is both.
    #[arg(long, value_name = "MIN..MAX")]
    sms: Option<SmRange>,

    /// The part in the SMs that minima leave, 0 to 1,000, relative to other applications' [default:
    /// 1].
    #[arg(long, value_name = "N")]
    weight: Option<Weight>,

    /// `latency`: batch applications leave their SMs to it while it has work; `normal`; `batch`.
    #[arg(long, value_name = "PRIORITY")]
    priority: Option<Priority>,

    /// Device memory at most, as in `8G`.
    #[arg(long, value_name = "BYTES")]
    memory: Option<MemoryAmount>,

    /// The time that a request may take, as in `5ms`: with the priority `latency` the program gets
    /// the fewest SMs that meet it.
    #[arg(long = "target", value_name = "TIME")]
    latency: Option<LatencyTarget>,
}

impl Asked {
    /// The terms.
    pub fn terms(self) -> Terms {
        let SmRange { min, max } = self.sms.unwrap_or_default();
        let Asked { weight, priority, memory, latency: target, .. } = self;
        Terms { min, max, weight, priority, memory, target }
    }

    /// The environment variables by which a program asks for the same.
    pub fn variables(self) -> impl Iterator<Item = (&'static str, String)> {
        let sms = self.sms.map(|SmRange { min, max }| {
            let text = |amount: Option<partita_model::SmAmount>| {
                amount.map(|amount| amount.to_string()).unwrap_or_default()
            };
            ("PARTITA_SMS", format!("{}..{}", text(min), text(max)))
        });
        let weight = self.weight.map(|weight| ("PARTITA_WEIGHT", weight.get().to_string()));
        let priority =
            self.priority.map(|priority| ("PARTITA_PRIORITY", priority.name().to_owned()));
        let memory = self.memory.map(|memory| ("PARTITA_MEMORY", memory.to_string()));
        let target = self.latency.map(|target| ("PARTITA_TARGET", target.to_string()));
        sms.into_iter().chain(weight).chain(priority).chain(memory).chain(target)
    }
}

impl TermsArgs {
    /// Sends them.
    pub fn execute(self) -> Result<Vec<u8>, Failure> {
        let terms = self.asked.terms();
        if terms.is_empty() && !self.reset {
            let text = "nothing to set: give --sms, --weight, --priority, --memory or --target, or \
                        --reset";
            return Err(Failure::new(text.to_owned()).with_code(2));
        }
        let path = self.gpu.path(&format!("/v1/applications/{}/terms", self.application));
        let body = serde_json::to_value(terms).map_err(|error| Failure::new(error.to_string()))?;
        self.target.put(&path, &body)?;
        Ok(Vec::new())
    }
}

/// What was said of an application, in a table: `8-24 SMs, weight 2, latency`; and what became of
/// its target: `target 5ms (kept 998 of 1000)`.
pub fn of_application(application: &ApplicationReport) -> Option<String> {
    let mut said = in_short(application.entitlement.as_ref()?);
    if let Some(TargetReport { seen, missed, .. }) = application.target
        && seen > 0
    {
        said += &format!(" (kept {} of {seen})", seen.saturating_sub(missed));
    }
    Some(said)
}

fn in_short(entitlement: &Entitlement) -> String {
    let neutral = Entitlement::default();
    let Entitlement { min, weight, priority, .. } = *entitlement;
    let mut words = Vec::new();
    match (min, entitlement.limit()) {
        (0, Some(max)) => words.push(format!("≤ {max} SMs")),
        (0, None) => {}
        (min, Some(max)) => words.push(format!("{min}-{max} SMs")),
        (min, None) => words.push(format!("{min}+ SMs")),
    }
    if weight != neutral.weight {
        words.push(format!("weight {}", weight.get()));
    }
    if priority != neutral.priority {
        words.push(priority.name().to_owned());
    }
    if let Some(memory) = entitlement.memory {
        words.push(format!("≤ {memory}"));
    }
    if let Some(target) = entitlement.target {
        words.push(format!("target {target}"));
    }
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: TermsArgs,
    }

    fn parse(line: &str) -> Result<Asked, String> {
        let words = std::iter::once("terms").chain(line.split_whitespace());
        let cli = Cli::try_parse_from(words).map_err(|error| error.to_string())?;
        Ok(cli.args.asked)
    }

    #[test]
    fn options_say_the_same_as_variables() {
        let asked = parse("3 --sms 8..50% --weight 2 --priority latency --memory 8G --target 2ms");
        let asked = asked.unwrap();
        let variables: Vec<_> = asked.variables().collect();
        assert_eq!(
            variables,
            [
                ("PARTITA_SMS", "8..50%".to_owned()),
                ("PARTITA_WEIGHT", "2".to_owned()),
                ("PARTITA_PRIORITY", "latency".to_owned()),
                ("PARTITA_MEMORY", "8GiB".to_owned()),
                ("PARTITA_TARGET", "2ms".to_owned()),
            ]
        );
        assert_eq!("8..50%".parse(), Ok(asked.sms.unwrap()));
        assert_eq!(parse("3").unwrap().variables().count(), 0);
        let short = in_short(&Entitlement::of(&asked.terms(), 24));
        assert_eq!(short, "8-12 SMs, weight 2, latency, ≤ 8GiB, target 2ms");
    }

    #[test]
    fn bad_words_name_the_remedy() {
        for (line, words) in [
            ("3 --sms 8-24", "write SMs as in `24`"),
            ("3 --weight 1001", "give 0 to 1000"),
            ("3 --priority high", "it is `latency`, `normal` or `batch`"),
            ("3 --memory 8", "write it as in `8G`"),
            ("3 --memory much", "write it as in `8G`"),
            ("3 --target 5", "a time from 10us to 60s"),
            ("x --weight 1", "invalid digit"),
            ("3 --reset --weight 1", "cannot be used with"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(words), "{line}: {error}");
        }
    }
}
