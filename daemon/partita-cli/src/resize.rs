//! `partita resize`: an administrator's plan, the SMs of each application.
//!
//! The command parses a plan. The daemon decides whether the plan can hold.

use crate::api::{OfGpu, Target};
use crate::failure::Failure;
use clap::Args;
use partita_model::{ApplicationId, SmSet};
use serde_json::{Value, json};

const EXAMPLES: &str = "\
Examples:
  partita resize 1=0-17 2=18-23
      application 1 gets SMs 0 to 17, application 2 the rest of 24; running kernels move at their \
      next task border
  partita resize 1=0-3,8-11
      pin application 1; all others share the remaining SMs
  partita resize --reset
      withdraw the plan: the policy decides again
  partita resize --gpu 1 1=0-17
      where the daemon serves several GPUs: application 1 of GPU 1

`partita status` shows the applications, `partita trace` the SMs on which their CTAs ran.";

/// Move the borders between applications while their kernels run.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ResizeArgs {
    /// An application's id and its SMs, e.g. `1=0-17` or `2=0-3,8`.
    #[arg(value_name = "APP=SMS", required_unless_present = "reset", conflicts_with = "reset",
        value_parser = parse_share)]
    shares: Vec<Share>,

    /// Withdraw the plan and let the policy decide.
    #[arg(long)]
    reset: bool,

    #[command(flatten)]
    gpu: OfGpu,

    #[command(flatten)]
    target: Target,
}

/// The SMs for one application.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Share {
    application: ApplicationId,
    sms: SmSet,
}

impl ResizeArgs {
    /// Sends the plan.
    pub fn execute(self) -> Result<Vec<u8>, Failure> {
        if self.reset {
            self.target.delete(&self.gpu.path("/v1/plan"))?;
            return Ok(Vec::new());
        }
        if let Some(twice) = named_twice(&self.shares) {
            return Err(Failure::new(format!(
                "{twice} is named twice: give it all its SMs at once, as in {}=0-3,8",
                twice.0
            ))
            .with_code(2));
        }
        self.target.put(&self.gpu.path("/v1/plan"), &plan(&self.shares))?;
        Ok(Vec::new())
    }
}

fn named_twice(shares: &[Share]) -> Option<ApplicationId> {
    let mut ids: Vec<ApplicationId> = shares.iter().map(|share| share.application).collect();
    ids.sort_unstable();
    ids.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
}

fn plan(shares: &[Share]) -> Value {
    let partitions: Vec<Value> = shares
        .iter()
        .map(|share| json!({"application": share.application, "sms": share.sms}))
        .collect();
    json!({ "partitions": partitions })
}

fn parse_share(text: &str) -> Result<Share, String> {
    let (application, sms) = text.split_once('=').ok_or("expected APP=SMS, e.g. 1=0-17")?;
    let application = application.parse().map(ApplicationId).map_err(|_| {
        format!("`{application}` is not an application's id (`partita status` shows them)")
    })?;
    let sms = sms.parse().map_err(|error| format!("{error}"))?;
    Ok(Share { application, sms })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares() {
        let good = |text: &str, application: u32, sms: SmSet| {
            assert_eq!(
                parse_share(text),
                Ok(Share { application: ApplicationId(application), sms }),
                "{text}"
            );
        };
        good("1=0-17", 1, SmSet::range(0, 18));
        good("20=3,5", 20, SmSet::range(3, 1).union(&SmSet::range(5, 1)));
        good("1=none", 1, SmSet::EMPTY);
        let bad = |text: &str, part: &str| {
            let error = parse_share(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        };
        bad("1", "APP=SMS");
        bad("=0-3", "`` is not an application's id");
        bad("a=0-3", "`a` is not an application's id");
        bad("-1=0", "`-1` is not");
        bad("1=", "`` is not an SM id");
        bad("1=abc", "`abc` is not an SM id");
        bad("1=5-3", "`5-3` is not an SM id");
    }

    #[test]
    fn the_plan_is_what_the_api_reads() {
        let shares = ["1=0-17", "2=18-23"].map(|text| parse_share(text).unwrap());
        assert_eq!(
            plan(&shares).to_string(),
            r#"{"partitions":[{"application":1,"sms":"0-17"},{"application":2,"sms":"18-23"}]}"#
        );
        assert_eq!(named_twice(&shares), None);
        let shares = ["3=1", "1=0", "3=2"].map(|text| parse_share(text).unwrap());
        assert_eq!(named_twice(&shares), Some(ApplicationId(3)));
    }
}
