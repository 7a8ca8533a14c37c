//! `partita config`: the daemon's configuration in force, and where each key comes from.

use crate::api::Target;
use crate::clock;
use crate::failure::Failure;
use crate::table::{Table, printable};
use clap::Args;
use partita_model::{ConfigKey, ConfigReport, RefusedReload};
use std::fmt::Write as _;

const EXAMPLES: &str = "\
Examples:
  partita config
      every key, its value, and the file, option or variable that sets it
  partita config --set
      only keys that somebody has set
  partita config --json | jq -r '.keys[] | select(.key == \"policy.partitioner\") | .value'
      one value; the shape is {files, read_at, refused?, keys: [{key, gpu?, value, from: {kind, \
      name?, line?}}], left_out}, as GET /v1/config answers
  partitad --check-config --config /etc/partita/partitad.toml
      check a file before `systemctl reload partitad` puts it in force

`kind` is `default`, `file`, `drop-in`, `command-line` or `environment`.";

/// Show the daemon's configuration in force, and where each key comes from.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ConfigArgs {
    /// Show only keys that somebody has set, and no defaults.
    #[arg(long, conflicts_with = "json")]
    set: bool,

    /// Print the API's answer as it is.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    target: Target,
}

impl ConfigArgs {
    /// Asks and shows.
    pub fn execute(self) -> Result<Vec<u8>, Failure> {
        if self.json {
            return Ok(self.target.get_line("/v1/config")?);
        }
        let report: ConfigReport = self.target.get("/v1/config")?;
        Ok(render(&report, self.set, clock::now()).into_bytes())
    }
}

fn render(report: &ConfigReport, only_set: bool, now: u64) -> String {
    let mut table = Table::new(&["KEY", "VALUE", "FROM"]);
    let is_shown = |key: &&ConfigKey| !only_set || key.from.name.is_some();
    for ConfigKey { key, gpu, value, from } in report.keys.iter().filter(is_shown) {
        let gpu = gpu.map(|gpu| format!(" ({gpu})")).unwrap_or_default();
        let value = value.as_ref().map_or_else(|| "not set".into(), ToString::to_string);
        table.row([format!("{key}{gpu}"), value, from.to_string()]);
    }
    let mut text = table.render();
    let ago = |at: u64| clock::span(now.saturating_sub(at));
    // Writing to a string cannot fail.
    let _ = writeln!(text, "\nRead {} ago.", ago(report.read_at));
    if let Some(RefusedReload { at, why }) = &report.refused {
        let why = why.as_deref().map_or("root and administrators see why".into(), printable);
        let ago = ago(*at);
        let _ = writeln!(
            text,
            "The reload {ago} ago was refused, and what is shown stays in force: {why}"
        );
    }
    if report.left_out > 0 {
        let _ = writeln!(text, "Entries about other users that are not shown: {}", report.left_out);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_has_its_place_and_a_refusal_is_told() {
        let report = r#"{"files": ["/p.toml"], "read_at": 100, "left_out": 2,
            "refused": {"at": 160, "why": "/p.toml:3: no user is named `bob`"},
            "keys": [
                {"key": "device", "value": ["emu"], "from": {"kind": "command-line",
                    "name": "--device"}},
                {"key": "sharing", "value": null, "from": {"kind": "default"}},
                {"key": "policy.partitioner", "gpu": 1, "value": "even",
                    "from": {"kind": "file", "name": "/p.toml", "line": 2}}
            ]}"#;
        let mut report: ConfigReport = serde_json::from_str(report).unwrap();
        let expected = "\
KEY                         VALUE    FROM
device                      emu      --device
sharing                     not set  default
policy.partitioner (GPU 1)  even     /p.toml:2

Read 1 min 40 s ago.
The reload 40 s ago was refused, and what is shown stays in force: /p.toml:3: no user is named `bob`
Entries about other users that are not shown: 2
";
        assert_eq!(render(&report, false, 200), expected);
        assert!(!render(&report, true, 200).contains("sharing"));
        report.refused = Some(RefusedReload { at: 160, why: None });
        assert!(render(&report, false, 200).contains("administrators see why\n"));
    }
}
