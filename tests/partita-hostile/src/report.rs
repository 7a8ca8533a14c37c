//! A seed as a table.

use crate::seed::{Healthy, Played};
use comfy_table::{CellAlignment, Table, presets};

/// The seed's programs and acts, and what was lost.
pub fn tables(played: &Played) -> String {
    let verdict = if played.losses.is_empty() { "ok" } else { "LOST" };
    let newcomer =
        played.newcomer_s.map_or("had no result".to_owned(), |s| format!("waited {s:.1} s"));
    let mut text = format!(
        "seed {}: {verdict}; a newcomer {newcomer}; partita-gpu had {} MiB, the log {} KiB\n",
        played.seed,
        played.peak_mib,
        played.log_bytes / 1024
    );
    let mut programs =
        table(&["program", "rounds", "speed", "host speed", "longest round", "wrong", "failure"]);
    for (number, healthy) in played.healthy.iter().enumerate() {
        programs.add_row(row(number, healthy));
    }
    let mut acts = table(&["act", "processes", "requests", "refused", "last refusal"]);
    for acted in &played.acts {
        let last = acted.last_refusal.clone().unwrap_or_default();
        let last: String = last.chars().filter(|c| !c.is_control()).take(60).collect();
        acts.add_row([
            acted.act.name(),
            acted.processes.to_string(),
            acted.done.to_string(),
            acted.refused.to_string(),
            last,
        ]);
    }
    text.push_str(&format!("{programs}\n{acts}\n"));
    for loss in &played.losses {
        text.push_str(&format!("  LOST: {loss}\n"));
    }
    text
}

fn row(number: usize, healthy: &Healthy) -> [String; 7] {
    let percent = |ratio: Option<f64>| {
        ratio.map_or("-".to_owned(), |ratio| format!("{:.0} %", ratio * 100.0))
    };
    let beside = healthy.beside.clone().unwrap_or_default();
    [
        number.to_string(),
        beside.rounds.to_string(),
        percent(healthy.ratio()),
        percent(healthy.host_ratio),
        format!("{:.2} s", beside.longest_s),
        beside.wrong.to_string(),
        healthy.failure.clone().unwrap_or_default(),
    ]
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header);
    for column in table.column_iter_mut().take(5).skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
