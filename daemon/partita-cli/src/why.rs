//! `partita why`: the reasons of the present partitions, in sentences with numbers.

use crate::api::{OfGpu, Target};
use crate::failure::Failure;
use crate::table::printable;
use clap::Args;
use partita_model::{PolicyReport, StatusReport};
use partita_policy::explain;

const EXAMPLES: &str = "\
Examples:
  partita why
      explain why each application has its SMs
  partita why --all
      explain every decision that the daemon remembers
  partita status --json | jq '.policy.decisions'
      the decisions with their evidence, as JSON";

/// Explain why each application has its SMs.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct WhyArgs {
    /// Explain every decision that the daemon remembers, oldest first.
    #[arg(long)]
    all: bool,

    #[command(flatten)]
    gpu: OfGpu,

    #[command(flatten)]
    target: Target,
}

impl WhyArgs {
    /// Asks and explains.
    pub fn execute(self) -> Result<Vec<u8>, Failure> {
        let report: StatusReport = self.target.get(&self.gpu.path("/v1/status"))?;
        Ok(render_all(&report, self.all).into_bytes())
    }
}

/// One section for each GPU, with its name where there are several.
fn render_all(report: &StatusReport, all: bool) -> String {
    let first = render(&report.policy, all);
    if report.others.is_empty() {
        return first;
    }
    let others = report.others.iter().map(|other| (&other.gpu, render(&other.policy, all)));
    let sections = std::iter::once((&report.gpu, first)).chain(others);
    let titled: Vec<String> = sections
        .map(|(gpu, text)| format!("{} ({}):\n{text}", gpu.number, printable(&gpu.name)))
        .collect();
    titled.join("\n")
}

fn render(policy: &PolicyReport, all: bool) -> String {
    let paragraphs: Vec<Vec<String>> =
        if all { policy.decisions.iter().map(explain).collect() } else { vec![policy.why.clone()] };
    let text: Vec<String> = paragraphs
        .iter()
        .filter(|sentences| !sentences.is_empty())
        .map(|sentences| sentences.iter().map(|sentence| printable(sentence) + "\n").collect())
        .collect();
    if text.is_empty() {
        return format!(
            "No application has had work yet; {} will decide (selector {}).\n",
            policy.partitioner, policy.selector
        );
    }
    text.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_are_lines_and_decisions_are_paragraphs() {
        let mut policy: PolicyReport = serde_json::from_str(
            r#"{"selector": "everyone", "partitioner": "even", "stage": "", "stalled": "none",
            "gated": "none", "why": [],
                "decisions": []}"#,
        )
        .unwrap();
        assert_eq!(
            render(&policy, true),
            "No application has had work yet; even will decide (selector everyone).\n"
        );
        policy.why = vec!["One.".into(), "Two \u{1b}.".into()];
        assert_eq!(render(&policy, false), "One.\nTwo \\u{1b}.\n");
    }
}
