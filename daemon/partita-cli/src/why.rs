//! `partita why`: the reasons of the present partitions, in sentences with numbers.

use crate::failure::Failure;
use crate::table::printable;
use crate::view::View;
use clap::Args;
use partita_model::{GpuNumber, GpuStatus, PolicyReport, StatusReport};
use partita_policy::explain;
use serde::Serialize;

const EXAMPLES: &str = "\
Examples:
  partita why
      explain why each application has its SMs
  partita why --all
      explain every decision that the daemon remembers
  partita why --watch
      again every two seconds
  partita why --json | jq -r '.gpus[].paragraphs[][]'
      the sentences as JSON: {gpus: [{number, selector, partitioner, stage, paragraphs}]}
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
    view: View,
}

impl WhyArgs {
    /// Asks and explains.
    pub fn execute(self) -> Result<Vec<u8>, Failure> {
        self.view.run(|| self.once())
    }

    fn once(&self) -> Result<Vec<u8>, Failure> {
        let report: StatusReport = self.view.get("/v1/status")?;
        if self.view.json {
            let mut answer = serde_json::to_vec(&Reasons::of(report, self.all))?;
            answer.push(b'\n');
            return Ok(answer);
        }
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

/// The answer with `--json`.
#[derive(Serialize)]
struct Reasons {
    gpus: Vec<GpuReasons>,
}

/// The reasons on one GPU.
#[derive(Serialize)]
struct GpuReasons {
    number: GpuNumber,
    selector: String,
    partitioner: String,
    stage: String,
    /// The sentences, one list for each decision, oldest first.
    paragraphs: Vec<Vec<String>>,
}

impl Reasons {
    fn of(mut report: StatusReport, all: bool) -> Reasons {
        let others = std::mem::take(&mut report.others);
        let gpus = std::iter::once(GpuStatus::from(report)).chain(others);
        let gpus = gpus.map(|GpuStatus { gpu, policy, .. }| GpuReasons {
            number: gpu.number,
            paragraphs: paragraphs(&policy, all),
            selector: policy.selector,
            partitioner: policy.partitioner,
            stage: policy.stage,
        });
        Reasons { gpus: gpus.collect() }
    }
}

fn paragraphs(policy: &PolicyReport, all: bool) -> Vec<Vec<String>> {
    let mut paragraphs: Vec<Vec<String>> =
        if all { policy.decisions.iter().map(explain).collect() } else { vec![policy.why.clone()] };
    paragraphs.retain(|sentences| !sentences.is_empty());
    paragraphs
}

fn render(policy: &PolicyReport, all: bool) -> String {
    let text: Vec<String> = paragraphs(policy, all)
        .iter()
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
        let mut report = crate::watch::samples::report();
        report.policy = policy;
        let json = serde_json::to_value(Reasons::of(report, false)).unwrap();
        let expected = serde_json::json!({"gpus": [{"number": 0, "selector": "everyone",
            "partitioner": "even", "stage": "", "paragraphs": [["One.", "Two \u{1b}."]]}]});
        assert_eq!(json, expected);
    }
}
