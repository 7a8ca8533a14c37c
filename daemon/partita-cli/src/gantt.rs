//! A trace as text: one line per SM, one column per slice of device time.
//!
//! A column shows the application whose CTAs were resident on the SM for the longest part of the
//! slice. A capital letter means that another application had a CTA there in the same slice; `.`
//! means that the SM was empty. A border that moved is a change of letters, and an SM that was
//! shared, if only at a border, stands out. Copies have a line for each kind, in the same letters.

use crate::table::nanos;
use crate::trace::time_of;
use partita_model::{
    ApplicationId, CopyKind, ResidencyKind, SmId, Timekeeping, TraceEntry, TraceReport,
};
use std::collections::{BTreeMap, BTreeSet};
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

/// A line of the picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Row {
    Sm(SmId),
    Copies(CopyKind),
}

impl Row {
    /// What stands before the line, in at most six letters.
    fn label(self) -> String {
        match self {
            Row::Sm(sm) => sm.to_string(),
            Row::Copies(CopyKind::HostToDevice) => "H->D".into(),
            Row::Copies(CopyKind::DeviceToHost) => "D->H".into(),
            Row::Copies(CopyKind::DeviceToDevice) => "D->D".into(),
            Row::Copies(CopyKind::Fill) => "fill".into(),
        }
    }
}

/// A stretch of time in which an application had at least one CTA resident on an SM, or a copy
/// under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stretch {
    row: Row,
    application: ApplicationId,
    start: u64,
    end: u64,
}

/// Draws a trace.
pub fn render(report: &TraceReport, frame: Frame) -> String {
    let Some((first, last)) = span_of(report) else {
        return "The trace is empty: no kernel has run yet.\n".into();
    };
    let from = frame.from.unwrap_or(first).min(u64::MAX - 1);
    let to = frame.to.unwrap_or(last.saturating_add(1)).max(from.saturating_add(1));
    // Slices of equal length, at least a nanosecond each, and no more of them than the time needs.
    let slice = (to - from).div_ceil(u64::from(frame.columns)).max(1);
    let columns =
        usize::try_from((to - from).div_ceil(slice)).unwrap_or(usize::from(frame.columns));
    let scale = Scale { from, to, slice, columns };

    let mut stretches = stretches(&report.entries, last.saturating_add(1));
    stretches.extend(report.copies.iter().map(|copy| Stretch {
        row: Row::Copies(copy.kind),
        application: copy.application,
        start: copy.start.0,
        end: copy.end.0,
    }));
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
    if report.dropped_copies > 0 {
        let _ = writeln!(text, "{} older copies were dropped", report.dropped_copies);
    }
    resizes(&mut text, &report.entries, &scale);
    rows(&mut text, &stretches, &applications, &scale);
    text
}

/// The first and the last moment of a trace. Copies from before the first of the CTAs that were
/// not dropped do not count: the lines of SMs would look idle there.
fn span_of(report: &TraceReport) -> Option<(u64, u64)> {
    let entries = report.entries.iter().map(time_of);
    let starts = report.copies.iter().map(|copy| copy.start.0);
    let first = match entries.clone().min() {
        Some(first) if report.dropped > 0 => first,
        first => first.into_iter().chain(starts).min()?,
    };
    let last = entries.chain(report.copies.iter().map(|copy| copy.end.0)).max()?;
    Some((first, last.max(first)))
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
                        row: Row::Sm(key.0),
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
        row: Row::Sm(sm),
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
    let rows: BTreeSet<Row> = stretches.iter().map(|stretch| stretch.row).collect();
    for row in rows {
        let mut cells: Vec<BTreeMap<ApplicationId, u64>> = vec![BTreeMap::new(); scale.columns];
        for stretch in stretches.iter().filter(|stretch| stretch.row == row) {
            fill(&mut cells, stretch, scale);
        }
        let line: String = cells.iter().map(|cell| cell_letter(cell, applications)).collect();
        let _ = writeln!(text, "{:>6} {line}", row.label());
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
    use partita_model::{
        LaunchId, Nanos, OperationId, ResidencyChange, SessionId, SmSet, StreamId, TracedCopy,
    };

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
        let report = TraceReport::new(Timekeeping::Simulated, entries);
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
    fn copies_have_lines_of_their_own() {
        let copy = |application, kind, start, end| TracedCopy {
            application: ApplicationId(application),
            session: SessionId(1),
            stream: StreamId(1),
            operation: OperationId(1),
            kind,
            bytes: 1,
            start: Nanos(start),
            end: Nanos(end),
        };
        let mut report = TraceReport::new(Timekeeping::Simulated, Vec::new());
        report.copies = vec![copy(2, CopyKind::HostToDevice, 10, 19)];
        let frame = Frame { columns: 10, from: None, to: None };
        let text = render(&report, frame);
        assert!(text.ends_with("a = application 2\n  H->D aaaaaaaaa.\n"), "{text}");
        report.entries = vec![start(20, 0, 1), exit(39, 0, 1)];
        report.copies.push(copy(2, CopyKind::Fill, 30, 34));
        report.copies.push(copy(1, CopyKind::DeviceToHost, 40, 49));
        let text = render(&report, Frame { columns: 20, ..frame });
        let rows = "\
  SM 0 .....aaaaaaaaaa.....
  H->D bbbbb...............
  D->H ...............aaaaa
  fill ..........bb........
";
        assert!(text.ends_with(rows), "{text}");
        // What was before the oldest CTA that is left is not known.
        (report.dropped, report.dropped_copies) = (7, 8);
        let text = render(&report, Frame { columns: 20, ..frame });
        assert!(text.starts_with("device time 20 ns to 50 ns"), "{text}");
        assert!(text.contains("7 older entries") && text.contains("8 older copies"), "{text}");
    }

    #[test]
    fn that_time_is_not_kept_is_said() {
        let entries = vec![start(5, 3, 1), exit(5, 3, 1)];
        let report = TraceReport::new(Timekeeping::Off, entries);
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
