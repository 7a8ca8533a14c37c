//! A trace as text: one line per SM, one column per slice of device time.
//!
//! A column shows the application whose CTAs were resident on the SM for the longest part of the
//! slice. A capital letter means that another application had a CTA there in the same slice; `.`
//! means that the SM was empty. A border that moved is a change of letters, and an SM that was
//! shared, if only at a border, stands out.

use crate::table::nanos;
use crate::trace::time_of;
use partita_model::{
    ApplicationId, ResidencyKind, SmId, SmSet, Timekeeping, TraceEntry, TraceReport,
};
use std::collections::BTreeMap;
use std::fmt::Write;

const LETTERS: &str = "abcdefghijklmnopqrstuvwxyz";

/// The part of a trace to draw, and its resolution.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// Slices of time.
    pub columns: u16,
    /// First nanosecond, where not the trace's.
    pub from: Option<u64>,
    /// End, where not the trace's.
    pub to: Option<u64>,
}

/// A stretch of time in which an application had at least one CTA resident on an SM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stretch {
    sm: SmId,
    application: ApplicationId,
    start: u64,
    end: u64,
}

/// Draws a trace.
pub fn render(report: &TraceReport, frame: Frame) -> String {
    let times = report.entries.iter().map(time_of);
    let (Some(first), Some(last)) = (times.clone().min(), times.max()) else {
        return "The trace is empty: no kernel has run yet.\n".into();
    };
    let from = frame.from.unwrap_or(first).min(u64::MAX - 1);
    let to = frame.to.unwrap_or(last.saturating_add(1)).max(from.saturating_add(1));
    // Slices of equal length, at least a nanosecond each, and no more of them than the time needs.
    let slice = (to - from).div_ceil(u64::from(frame.columns)).max(1);
    let columns =
        usize::try_from((to - from).div_ceil(slice)).unwrap_or(usize::from(frame.columns));
    let scale = Scale { from, to, slice, columns };

    let stretches = stretches(&report.entries, last.saturating_add(1));
    let mut applications: Vec<ApplicationId> =
        stretches.iter().map(|stretch| stretch.application).collect();
    applications.sort_unstable();
    applications.dedup();

    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "device time {} ns to {} ns, {} a column; capitals: shared with another application; .: \
         idle",
        scale.from,
        scale.to,
        nanos(scale.slice)
    );
    if report.timekeeping == Timekeeping::Off {
        let _ = writeln!(
            text,
            "time is not kept (timing=off): what came before what, and not how long it took"
        );
    }
    for (index, application) in applications.iter().enumerate() {
        let _ = writeln!(text, "{} = {application}", letter(index));
    }
    if report.dropped > 0 {
        let _ = writeln!(text, "{} older entries were dropped", report.dropped);
    }
    resizes(&mut text, &report.entries, &scale);
    rows(&mut text, &stretches, &applications, &scale);
    text
}

struct Scale {
    from: u64,
    to: u64,
    slice: u64,
    columns: usize,
}

impl Scale {
    fn column(&self, time: u64) -> Option<usize> {
        if !(self.from..self.to).contains(&time) {
            return None;
        }
        usize::try_from((time - self.from) / self.slice).ok()
    }
}

/// The letter of the application at this place; letters repeat after `z`.
pub fn letter(index: usize) -> char {
    LETTERS.chars().nth(index % LETTERS.len()).unwrap_or('?')
}

/// Joins arrivals and departures of CTAs to stretches. A stretch that is open at `now` ends there.
/// A stretch that began before the trace is unknown and omitted.
fn stretches(entries: &[TraceEntry], now: u64) -> Vec<Stretch> {
    let mut residents: BTreeMap<(SmId, ApplicationId), (u64, u64)> = BTreeMap::new();
    let mut stretches = Vec::new();
    for entry in entries {
        let TraceEntry::Residency { change, application, .. } = entry else { continue };
        let key = (change.sm, *application);
        match change.kind {
            ResidencyKind::Start => {
                residents.entry(key).or_insert((0, change.time.0)).0 += 1;
            }
            ResidencyKind::Exit => {
                let Some((count, start)) = residents.get_mut(&key) else { continue };
                *count -= 1;
                if *count == 0 {
                    stretches.push(Stretch {
                        sm: key.0,
                        application: key.1,
                        start: *start,
                        end: change.time.0,
                    });
                    residents.remove(&key);
                }
            }
        }
    }
    let open = residents.into_iter();
    stretches.extend(open.map(|((sm, application), (_, start))| Stretch {
        sm,
        application,
        start,
        end: now,
    }));
    stretches
}

/// A line per resize inside the frame: a mark at its column, and its text on the side with more
/// room.
fn resizes(text: &mut String, entries: &[TraceEntry], scale: &Scale) {
    for entry in entries {
        let TraceEntry::Resize { time, application, from, to } = entry else { continue };
        let Some(column) = scale.column(time.0) else { continue };
        let label = format!("{application}: {from} -> {to} at {} ns", time.0);
        let _ = match column.checked_sub(label.len() + 1) {
            Some(before) => writeln!(text, "{:>6} {:before$}{label} v", "", ""),
            None => writeln!(text, "{:>6} {:column$}v {label}", "", ""),
        };
    }
}

fn rows(text: &mut String, stretches: &[Stretch], applications: &[ApplicationId], scale: &Scale) {
    let sms: SmSet = stretches.iter().map(|stretch| stretch.sm).collect();
    for sm in sms.iter() {
        let mut cells: Vec<BTreeMap<ApplicationId, u64>> = vec![BTreeMap::new(); scale.columns];
        for stretch in stretches.iter().filter(|stretch| stretch.sm == sm) {
            fill(&mut cells, stretch, scale);
        }
        let line: String = cells.iter().map(|cell| cell_letter(cell, applications)).collect();
        let _ = writeln!(text, "{:>6} {line}", sm.to_string());
    }
}

/// Adds the time that a stretch spends in each slice. A stretch of no length still shows.
fn fill(cells: &mut [BTreeMap<ApplicationId, u64>], stretch: &Stretch, scale: &Scale) {
    let start = stretch.start.max(scale.from);
    let end = stretch.end.max(start.saturating_add(1)).min(scale.to);
    if stretch.end < scale.from || start >= end {
        return;
    }
    let (Some(first), Some(last)) = (scale.column(start), scale.column(end - 1)) else { return };
    for (column, cell) in cells.iter_mut().enumerate().take(last + 1).skip(first) {
        let slice_start = scale.from + column as u64 * scale.slice;
        let inside = end.min(slice_start.saturating_add(scale.slice)) - start.max(slice_start);
        *cell.entry(stretch.application).or_insert(0) += inside;
    }
}

fn cell_letter(cell: &BTreeMap<ApplicationId, u64>, applications: &[ApplicationId]) -> char {
    // The lowest id wins a tie.
    let longest = cell.iter().max_by_key(|(id, time)| (**time, std::cmp::Reverse(**id)));
    let Some((application, _)) = longest else { return '.' };
    let small = letter(applications.binary_search(application).unwrap_or(0));
    if cell.len() > 1 { small.to_ascii_uppercase() } else { small }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_model::{LaunchId, Nanos, OperationId, ResidencyChange};

    fn residency(time: u64, sm: u16, application: u32, kind: ResidencyKind) -> TraceEntry {
        let change =
            ResidencyChange { time: Nanos(time), sm: SmId(sm), grid: OperationId(1), cta: 0, kind };
        TraceEntry::Residency {
            change,
            application: ApplicationId(application),
            launch: LaunchId(1),
        }
    }

    fn start(time: u64, sm: u16, application: u32) -> TraceEntry {
        residency(time, sm, application, ResidencyKind::Start)
    }

    fn exit(time: u64, sm: u16, application: u32) -> TraceEntry {
        residency(time, sm, application, ResidencyKind::Exit)
    }

    fn draw(entries: Vec<TraceEntry>, columns: u16, from: Option<u64>, to: Option<u64>) -> String {
        let report = TraceReport { timekeeping: Timekeeping::Simulated, entries, dropped: 0 };
        render(&report, Frame { columns, from, to })
    }

    #[test]
    fn a_border_that_moves() {
        let mut entries = vec![start(0, 0, 1), start(0, 1, 2), start(0, 1, 2)];
        entries.push(TraceEntry::Resize {
            time: Nanos(40),
            application: ApplicationId(1),
            from: SmSet::range(0, 1),
            to: SmSet::range(0, 2),
        });
        entries.extend([
            exit(45, 1, 2),
            exit(55, 1, 2),
            start(57, 1, 1),
            exit(80, 1, 1),
            exit(99, 0, 1),
        ]);
        let expected = "\
device time 0 ns to 100 ns, 10 ns a column; capitals: shared with another application; .: idle
a = application 1
b = application 2
           v application 1: 0 -> 0-1 at 40 ns
  SM 0 aaaaaaaaaa
  SM 1 bbbbbBaa..
";
        assert_eq!(draw(entries.clone(), 10, None, None), expected);

        let zoomed = draw(entries, 10, Some(50), Some(60));
        assert!(zoomed.ends_with("  SM 0 aaaaaaaaaa\n  SM 1 bbbbb..aaa\n"), "{zoomed}");
        assert!(!zoomed.contains("->"), "the resize is outside the frame: {zoomed}");
    }

    #[test]
    fn a_late_resize_is_named_before_its_mark() {
        let resize = TraceEntry::Resize {
            time: Nanos(60),
            application: ApplicationId(1),
            from: SmSet::range(0, 1),
            to: SmSet::EMPTY,
        };
        let text = draw(vec![start(0, 0, 1), resize, exit(99, 0, 1)], 100, None, None);
        let line = text.lines().find(|line| line.contains("->")).unwrap();
        assert_eq!(line.find('v'), Some(7 + 60), "{text}");
        assert!(line.ends_with("application 1: 0 -> none at 60 ns v"), "{text}");
    }

    #[test]
    fn that_time_is_not_kept_is_said() {
        let entries = vec![start(5, 3, 1), exit(5, 3, 1)];
        let report = TraceReport { timekeeping: Timekeeping::Off, entries, dropped: 0 };
        let text = render(&report, Frame { columns: 10, from: None, to: None });
        assert!(text.lines().nth(1).unwrap().contains("timing=off"), "{text}");
    }

    #[test]
    fn odd_traces_are_drawn_too() {
        assert!(draw(Vec::new(), 10, None, None).starts_with("The trace is empty"));
        let check = |entries: Vec<TraceEntry>, rows: &str| {
            let text = draw(entries, 10, None, None);
            assert!(text.ends_with(rows), "{text}");
        };
        check(vec![start(5, 3, 1)], "  SM 3 a\n");
        check(vec![start(5, 3, 1), exit(5, 3, 1)], "  SM 3 a\n");
        check(vec![exit(5, 3, 1), start(7, 3, 1)], "  SM 3 ..a\n");
        check(vec![start(u64::MAX, 3, 1)], "\n  SM 3 .\n");
    }
}
