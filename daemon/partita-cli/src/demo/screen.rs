//! The display while the demo runs: a table that redraws itself on a terminal, lines elsewhere.

use super::track::Track;
use crate::status::class;
use crate::table::{Table, nanos, printable};
use partita_model::{ApplicationReport, Class, DecisionRecord, SmId, SmSet, StatusReport};
use partita_policy::explain;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// The pause between two drawings; the eye sees no shorter one.
const REDRAW: Duration = Duration::from_millis(100);
/// The pause between two lines, where nothing redraws.
const LINE: Duration = Duration::from_secs(5);
/// Device time over which the present speed is measured, in nanoseconds.
const PRESENT_NANOS: u64 = 300_000;
/// Reasons that stay on a terminal.
const REASONS: usize = 10;
/// Background colours of applications, in the order of programs (ECMA-48 SGR 41 to 46).
const COLOURS: [u8; 6] = [44, 43, 42, 45, 46, 41];

/// The kind of output.
pub struct Screen {
    kind: Kind,
    title: String,
    alone: Vec<f64>,
    /// Lines that the next drawing replaces.
    drawn: usize,
    last: Option<Instant>,
    seen_decisions: u64,
    reasons: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Terminal,
    Lines,
    Silent,
}

type Members<'a> = [Option<&'a ApplicationReport>];

impl Screen {
    /// A screen on stdout, in the form that suits stdout.
    pub fn on_stdout() -> Screen {
        Screen::new(if std::io::stdout().is_terminal() { Kind::Terminal } else { Kind::Lines })
    }

    /// A screen that shows nothing.
    pub fn silent() -> Screen {
        Screen::new(Kind::Silent)
    }

    fn new(kind: Kind) -> Screen {
        Screen {
            kind,
            title: String::new(),
            alone: Vec::new(),
            drawn: 0,
            last: None,
            seen_decisions: 0,
            reasons: Vec::new(),
        }
    }

    /// Whether it shows nothing.
    pub fn is_silent(&self) -> bool {
        self.kind == Kind::Silent
    }

    /// A line that stays.
    pub fn say(&mut self, text: &str) {
        self.drawn = 0;
        self.put(&format!("{text}\n"));
    }

    /// Begins another stage, with the programs' speeds alone for comparison.
    pub fn begin(&mut self, title: &str, alone: &[f64]) {
        self.title = title.to_owned();
        self.alone = alone.to_vec();
        self.seen_decisions = 0;
        self.reasons.clear();
        self.last = None;
        let heading = if self.kind == Kind::Terminal {
            format!("\n\x1b[1m{title}\x1b[0m")
        } else {
            format!("\n== {title}")
        };
        self.say(&heading);
    }

    /// Shows the present state.
    pub fn show(&mut self, status: &StatusReport, members: &Members<'_>, track: &Track) {
        let fresh: Vec<DecisionRecord> = status
            .policy
            .decisions
            .iter()
            .filter(|d| d.sequence > self.seen_decisions)
            .cloned()
            .collect();
        if let Some(last) = fresh.last() {
            self.seen_decisions = last.sequence;
        }
        let mut reasons: Vec<String> = fresh.iter().flat_map(reasons).collect();
        match self.kind {
            Kind::Silent => {}
            Kind::Lines => {
                for reason in &reasons {
                    self.put(&format!("{reason}\n"));
                }
                if self.is_time(LINE) {
                    let text = self.lines(status, members, track).join("\n");
                    self.put(&format!("{text}\n"));
                }
            }
            Kind::Terminal => {
                self.reasons.append(&mut reasons);
                let excess = self.reasons.len().saturating_sub(REASONS);
                self.reasons.drain(..excess);
                if !fresh.is_empty() || self.is_time(REDRAW) {
                    self.redraw(status, members, track);
                }
            }
        }
    }

    fn is_time(&mut self, pause: Duration) -> bool {
        let due = self.last.is_none_or(|last| last.elapsed() >= pause);
        if due {
            self.last = Some(Instant::now());
        }
        due
    }

    fn redraw(&mut self, status: &StatusReport, members: &Members<'_>, track: &Track) {
        let mut lines = self.lines(status, members, track);
        lines.extend(self.reasons.iter().cloned());
        let mut text = String::new();
        if self.drawn > 0 {
            // Writing to a string cannot fail. Up, and clear from there to the end.
            let _ = write!(text, "\x1b[{}A\x1b[J", self.drawn);
        }
        for line in &lines {
            // Without line wrap, so that the number of lines is known.
            let _ = writeln!(text, "\x1b[?7l{line}\x1b[?7h");
        }
        self.drawn = lines.len();
        self.put(&text);
    }

    /// SM map and table.
    fn lines(&self, status: &StatusReport, members: &Members<'_>, track: &Track) -> Vec<String> {
        let policy = &status.policy;
        let mut lines = vec![format!(
            "device time {}, {} ({})",
            nanos(status.gpu.device_time_ns),
            printable(&policy.partitioner),
            printable(&policy.stage)
        )];
        lines.push(format!("SMs  {}", self.map(status, members)));
        let mut table =
            Table::new(&["", "APPLICATION", "PROGRAM", "CLASS", "SMS", "SPEED AGAINST ALONE"]);
        for (index, (letter, member)) in ('a'..).zip(members).enumerate() {
            let Some(member) = member else { continue };
            let sms = partition(status, member);
            let since = track.end().saturating_sub(PRESENT_NANOS);
            let speed = track.speed(index, since, track.end());
            let relative = speed.zip(self.alone.get(index)).map(|(speed, alone)| speed / alone);
            table.row([
                letter.to_string(),
                member.id.0.to_string(),
                member.name.clone(),
                class(member.class).to_owned(),
                format!("{} ({sms})", sms.len()),
                relative.map(bar).unwrap_or_default(),
            ]);
        }
        lines.extend(table.render().lines().map(str::to_owned));
        lines
    }

    /// One character per SM: the letter of its application, a capital where its workers wait; `-`
    /// where the SM is gated, `.` where it has no owner.
    fn map(&self, status: &StatusReport, members: &Members<'_>) -> String {
        let policy = &status.policy;
        let mut text = String::new();
        for sm in 0..status.gpu.sms {
            let sm = SmId(sm);
            let owner = members.iter().position(|member| {
                member.is_some_and(|member| partition(status, member).contains(sm))
            });
            let letter = match owner {
                Some(index) => {
                    let letter = ('a'..).nth(index).unwrap_or('?');
                    if policy.stalled.contains(sm) { letter.to_ascii_uppercase() } else { letter }
                }
                None if policy.gated.contains(sm) => '-',
                None => '.',
            };
            match owner.and_then(|index| COLOURS.get(index % COLOURS.len())) {
                Some(colour) if self.kind == Kind::Terminal => {
                    let _ = write!(text, "\x1b[30;{colour}m{letter}\x1b[0m");
                }
                _ => text.push(letter),
            }
        }
        text
    }

    fn put(&self, text: &str) {
        if self.kind == Kind::Silent {
            return;
        }
        let mut stdout = std::io::stdout().lock();
        // A closed stdout is no failure.
        drop(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()));
    }
}

fn partition(status: &StatusReport, member: &ApplicationReport) -> SmSet {
    let found = status.partitions.iter().find(|partition| partition.application == member.id);
    found.map_or(SmSet::EMPTY, |partition| partition.sms)
}

/// The reasons of a decision, without repetitions from the decision before.
fn reasons(record: &DecisionRecord) -> Vec<String> {
    let sentences = explain(record);
    let notes = sentences.iter().skip(1).take(record.notes.len()).zip(&record.notes);
    let repeats = |note: &partita_model::Note| {
        matches!(note, partita_model::Note::Classified { class, .. } if *class != Class::Unknown)
            && record.notes.iter().any(|note| matches!(note, partita_model::Note::Measured { .. }))
    };
    notes
        .filter(|(_, note)| !repeats(note))
        .map(|(sentence, _)| format!("{:>9}  {}", nanos(record.time.0), printable(sentence)))
        .collect()
}

/// A fraction as per cent and as a bar.
fn bar(part: f64) -> String {
    let filled = (1..=20).filter(|step| f64::from(*step) <= part * 20.0).count();
    format!("{:>5.1} % {}", part * 100.0, "#".repeat(filled))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars() {
        assert_eq!(bar(0.5), " 50.0 % ##########");
        assert_eq!(bar(1.5), "150.0 % ####################");
        assert_eq!(bar(0.0), "  0.0 % ");
    }
}
