//! The screen of `partita top`, drawn from its state. Letters tell what colours tell, so the screen
//! reads the same without colour.

use super::state::{Column, Mode, Top};
use crate::gantt::letter;
use crate::status::class;
use crate::table::{bytes, nanos, printable};
use crate::terms::of_application;
use crate::watch::speeds::Row;
use partita_model::{ApplicationId, GpuStatus, SmId};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Clear, Paragraph, Row as TableRow, Table, Wrap};

/// The smallest screen, in characters.
pub const SMALLEST: (u16, u16) = (70, 14);
/// Characters of a speed's bar.
const BAR: u16 = 5;
/// Colours of applications, in the order of ids.
const COLOURS: [Color; 6] =
    [Color::Blue, Color::Yellow, Color::Green, Color::Magenta, Color::Cyan, Color::Red];
/// Decisions get at most this many lines.
const DECISION_LINES: u16 = 8;
/// Terms get at most this many lines.
const TERMS_LINES: usize = 3;

const HELP: &str = "\
 up, down, k, j   choose an application
 s, S             sort by the next column, turn the order round
 p                pin the application's SMs, or give them back to the policy
 +, -             one SM more, one SM less (and pin)
 r                type the SMs, as in 0-17 or 0-3,8 (and pin)
 c                cancel all its queued and running work, after a question
 g, Tab           show the next GPU
 ?                this help
 q, Esc, Ctrl-C   quit

 SPEED is the part of the speed alone: completed CTAs x their time alone.
 SHARE is the part of the time of all SMs that the application held.
 Capitals in the SM map: shared SMs. ~ stalled, _ gated, . free.
 * behind SMS: pinned.

 Any key ends the help.";

const KEYS: &str = "s sort  p pin  +/- r resize  c cancel  g GPU  ? help  q quit";

/// Draws everything.
pub fn draw(frame: &mut Frame<'_>, top: &Top, colour: bool) {
    let area = frame.area();
    if area.width < SMALLEST.0 || area.height < SMALLEST.1 {
        let text = format!(
            "partita top needs {} x {} characters, and here are {} x {}: make the terminal larger, \
             or use `partita status --watch`. q quits.",
            SMALLEST.0, SMALLEST.1, area.width, area.height
        );
        frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), area);
        return;
    }
    let Some((status, gpus)) = top.gpu() else {
        let text = top.silence.clone().unwrap_or_else(|| "asking the daemon".into());
        frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), area);
        return;
    };
    let paint = Paint { colour };
    let map = map(status, area.width, &paint);
    let map_lines = u16::try_from(map.len()).unwrap_or(u16::MAX).min(area.height / 4);
    let decisions = (area.height / 3).min(DECISION_LINES);
    let head = head(status, gpus, top, (area.width, &paint));
    let parts = [
        Constraint::Length(u16::try_from(head.len()).unwrap_or(u16::MAX)),
        Constraint::Length(map_lines),
        Constraint::Min(3),
        Constraint::Length(decisions),
        Constraint::Length(1),
    ];
    let [head_area, map_area, table_area, decision_area, last_area] =
        Layout::vertical(parts).areas(area);
    frame.render_widget(Paragraph::new(head), head_area);
    frame.render_widget(Paragraph::new(map), map_area);
    if top.mode == Mode::Help {
        frame.render_widget(Clear, area);
        frame.render_widget(Paragraph::new(HELP), area);
        return;
    }
    table(frame, table_area, top, &paint);
    decided(frame, decision_area, top);
    frame.render_widget(last_line(top, &paint), last_area);
}

/// Styles, or none.
struct Paint {
    colour: bool,
}

impl Paint {
    fn of(&self, id: ApplicationId, status: &GpuStatus) -> Style {
        if !self.colour {
            return Style::new();
        }
        Style::new().fg(COLOURS[index(id, status) % COLOURS.len()])
    }

    fn fault(&self) -> Style {
        let style = Style::new().add_modifier(Modifier::BOLD);
        if self.colour { style.fg(Color::Red) } else { style }
    }

    fn heading() -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }
}

/// The place of an application among those of its GPU.
fn index(id: ApplicationId, status: &GpuStatus) -> usize {
    status.applications.iter().position(|application| application.id == id).unwrap_or(0)
}

/// The GPU, its memory, its faults, and terms where anything was said of anybody.
fn head(
    status: &GpuStatus,
    gpus: usize,
    top: &Top,
    (width, paint): (u16, &Paint),
) -> Vec<Line<'static>> {
    let gpu = &status.gpu;
    let which =
        if gpus > 1 { format!("{} (one of {gpus})", gpu.number) } else { gpu.number.to_string() };
    let policy = &status.policy;
    let first = format!(
        "{which}: {}, {} SMs, {} ({})",
        printable(&gpu.name),
        gpu.sms,
        printable(&policy.partitioner),
        printable(&policy.stage)
    );
    let mut memory = format!(
        "memory {} of {} in use {}, device time {}",
        bytes(gpu.memory_used_bytes),
        bytes(gpu.memory_bytes),
        bar(part(gpu.memory_used_bytes, gpu.memory_bytes), 20),
        nanos(gpu.device_time_ns)
    );
    if let Some(others) = &status.other_users {
        memory.push_str(&format!("  other users: {} SMs", others.sms));
    }
    let faults = faults(status, top);
    let faults = if faults.is_empty() {
        Line::from("faults none")
    } else {
        Line::styled(faults.join("; "), paint.fault())
    };
    let mut lines = vec![Line::styled(first, Paint::heading()), memory.into(), faults];
    lines.extend(terms(status, width.into()));
    lines
}

/// What each application may have of the SMs, and what it has where a part of its minimum is
/// missing. An application without SMs lends them or waits, which its state tells.
fn terms(status: &GpuStatus, width: usize) -> Vec<Line<'static>> {
    let said = status.applications.iter().filter_map(|application| {
        let entitlement = application.entitlement.as_ref()?;
        let own = status.partitions.iter().find(|one| one.application == application.id);
        let sms = own.map_or(0, |partition| partition.sms.len());
        let sign = letter(index(application.id, status));
        let is_short = (1..entitlement.min).contains(&sms);
        let has = if is_short { format!(" (has {sms})") } else { String::new() };
        Some(format!("{sign} {}{has}", of_application(application)?))
    });
    let said: Vec<String> = said.collect();
    if said.is_empty() {
        return Vec::new();
    }
    let mut lines = wrap(&format!("terms {}", said.join("; ")), width);
    if lines.len() > TERMS_LINES {
        lines.truncate(TERMS_LINES - 1);
        lines.push("more terms: partita status".into());
    }
    lines.into_iter().map(Line::from).collect()
}

fn faults(status: &GpuStatus, top: &Top) -> Vec<String> {
    let gpu = &status.gpu;
    let mut faults = Vec::new();
    if let Some(reason) = &top.silence {
        faults.push(format!("no answer: {}", printable(reason)));
    }
    for application in &status.applications {
        if let Some(time) = application.stuck_ns {
            faults.push(format!("{} has made no progress for {}", application.id, nanos(time)));
        }
    }
    if gpu.pid == 0 {
        faults.push("partita-gpu does not run".into());
    }
    if let Some(reason) = &gpu.last_restart {
        faults.push(format!("restarted {} times, last: {}", gpu.restarts, printable(reason)));
    }
    if gpu.stray_accesses > 0 {
        faults.push(format!("{} stray accesses", gpu.stray_accesses));
    }
    if gpu.patience_exceeded > 0 {
        faults.push(format!("patience exceeded {} times", gpu.patience_exceeded));
    }
    faults
}

/// A letter for each SM: whose it is.
fn map(status: &GpuStatus, width: u16, paint: &Paint) -> Vec<Line<'static>> {
    const LABEL: u16 = 7;
    // Groups of eight are easy to count.
    let columns = (width.saturating_sub(LABEL) / 9).max(1) * 8;
    let sms: Vec<u16> = (0..status.gpu.sms).collect();
    sms.chunks(usize::from(columns))
        .map(|row| {
            let mut spans = vec![Span::raw(format!("SM {:<4}", row[0]))];
            for (column, sm) in row.iter().enumerate() {
                if column > 0 && column % 8 == 0 {
                    spans.push(Span::raw(" "));
                }
                spans.push(map_cell(SmId(*sm), status, paint));
            }
            Line::from(spans)
        })
        .collect()
}

fn map_cell(sm: SmId, status: &GpuStatus, paint: &Paint) -> Span<'static> {
    let mut holders = status.partitions.iter().filter(|partition| partition.sms.contains(sm));
    let Some(first) = holders.next() else {
        let sign = if status.policy.gated.contains(sm) { "_" } else { "." };
        return Span::raw(sign);
    };
    let style = paint.of(first.application, status);
    if status.policy.stalled.contains(sm) {
        return Span::styled("~", style);
    }
    let sign = letter(index(first.application, status));
    let sign = if holders.next().is_some() { sign.to_ascii_uppercase() } else { sign };
    let style = if paint.colour { style.add_modifier(Modifier::REVERSED) } else { style };
    Span::styled(sign.to_string(), style)
}

/// `[|||   ]`, full at 1.
fn bar(part: f64, width: u16) -> String {
    let full = (part.clamp(0.0, 1.0) * f64::from(width)).round();
    let ticks = (0..width).map(|tick| if f64::from(tick) < full { '|' } else { ' ' });
    format!("[{}]", ticks.collect::<String>())
}

fn percent(part: f64) -> String {
    format!("{:.0}%", part * 100.0)
}

#[expect(clippy::cast_precision_loss, reason = "a bar of 20 characters")]
fn part(of: u64, whole: u64) -> f64 {
    of as f64 / whole.max(1) as f64
}

/// Heading, width and what sorts by the column.
const COLUMNS: [(&str, u16, Option<Column>); 10] = [
    ("APP", 6, Some(Column::Application)),
    ("PROGRAM", 0, Some(Column::Program)),
    ("USER", 5, Some(Column::User)),
    ("CLASS", 7, None),
    ("SMS", 4, Some(Column::Sms)),
    ("SPEED", BAR + 7, Some(Column::Speed)),
    ("SHARE", 5, Some(Column::Share)),
    ("LAUNCH", 7, Some(Column::Launches)),
    ("MEMORY", 9, Some(Column::Memory)),
    ("STATE", 6, None),
];

fn table(frame: &mut Frame<'_>, area: Rect, top: &Top, paint: &Paint) {
    let Some((status, _)) = top.gpu() else { return };
    let (sort, reverse) = top.sorting();
    let heading = COLUMNS.map(|(name, _, by)| {
        let mark = match by {
            Some(column) if column == sort && reverse => "^",
            Some(column) if column == sort => "v",
            _ => "",
        };
        Cell::from(format!("{name}{mark}"))
    });
    let rows = top.rows();
    let visible = usize::from(area.height.saturating_sub(1));
    let here = rows.iter().position(|row| Some(row.application.id) == top.selected());
    let first = here.unwrap_or(0).saturating_sub(visible.saturating_sub(1));
    let lines = rows.iter().skip(first).take(visible).map(|row| {
        let is_here = Some(row.application.id) == top.selected();
        let line = TableRow::new(cells(row, status, is_here, paint));
        let marked = if is_here { Modifier::BOLD } else { Modifier::empty() };
        line.style(Style::new().add_modifier(marked))
    });
    let widths = COLUMNS.map(|(_, width, _)| match width {
        0 => Constraint::Fill(1),
        width => Constraint::Length(width),
    });
    let table = Table::new(lines, widths)
        .header(TableRow::new(heading).style(Paint::heading()))
        .column_spacing(1);
    frame.render_widget(table, area);
    if rows.is_empty() {
        let note = Rect { y: area.y + 1, height: 1, ..area };
        let text = "No application is connected. Start one with: partita run PROGRAM";
        frame.render_widget(Paragraph::new(text), note);
    }
}

fn cells(row: &Row<'_>, status: &GpuStatus, is_here: bool, paint: &Paint) -> Vec<Cell<'static>> {
    let application = row.application;
    let style = paint.of(application.id, status);
    let cursor = if is_here { '>' } else { ' ' };
    let sign = letter(index(application.id, status));
    let pinned = row.partition.is_some_and(|partition| partition.pinned);
    let speed = match row.pace.and_then(|pace| pace.speed) {
        Some(speed) => format!("{} {:>4}", bar(speed, BAR), percent(speed)),
        None => "not known".into(),
    };
    vec![
        Cell::from(format!("{cursor}{sign} {}", application.id.0)).style(style),
        Cell::from(printable(&application.name)),
        Cell::from(application.tenant.0.to_string()),
        Cell::from(class(application.class)),
        Cell::from(format!("{}{}", row.sms(), if pinned { "*" } else { "" })),
        Cell::from(speed).style(style),
        Cell::from(row.pace.map_or_else(String::new, |pace| percent(pace.share))),
        Cell::from(application.launches_completed.to_string()),
        Cell::from(bytes(application.memory_used_bytes)),
        Cell::from(row.state()),
    ]
}

/// The last sentences that fit, wrapped: the newest at the bottom.
fn decided(frame: &mut Frame<'_>, area: Rect, top: &Top) {
    let width = usize::from(area.width.max(1));
    let room = usize::from(area.height.saturating_sub(1));
    let mut lines: Vec<String> = Vec::new();
    for sentence in top.sentences().iter().rev() {
        let wrapped = wrap(&printable(sentence), width);
        if lines.len() + wrapped.len() > room {
            break;
        }
        lines.splice(0..0, wrapped);
    }
    let mut text = vec![Line::styled("DECISIONS", Paint::heading())];
    text.extend(lines.into_iter().map(Line::from));
    frame.render_widget(Paragraph::new(text), area);
}

/// Breaks text at spaces. A word that is longer than the width has a line of its own.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

fn last_line(top: &Top, paint: &Paint) -> Line<'static> {
    match &top.mode {
        Mode::Cancel(id) => Line::styled(
            format!("Cancel all queued and running work of {id}? y: yes, any other key: no"),
            paint.fault(),
        ),
        Mode::Resize(id, text) => {
            let hint =
                if top.message.is_empty() { "Enter: do it, Esc: leave" } else { &top.message };
            Line::from(format!("SMs of {id}: {}_  ({hint})", printable(text)))
        }
        Mode::Table | Mode::Help if top.message.is_empty() => Line::from(KEYS),
        Mode::Table | Mode::Help => {
            Line::styled(printable(&top.message), Style::new().add_modifier(Modifier::BOLD))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::samples;
    use partita_model::{Entitlement, Priority};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent};

    fn screen(top: &Top, size: (u16, u16), colour: bool) -> Terminal<TestBackend> {
        let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).unwrap();
        terminal.draw(|frame| draw(frame, top, colour)).unwrap();
        terminal
    }

    fn text(top: &Top, size: (u16, u16)) -> Vec<String> {
        crate::top::lines(screen(top, size, false).backend().buffer())
    }

    fn top() -> Top {
        let mut top = Top::new();
        let mut report = samples::report();
        top.absorb(Ok(report.clone()));
        report.gpu.device_time_ns += 1000;
        report.applications[0].ctas_completed += 60;
        report.applications[0].kernels[0].profile =
            Some(partita_model::KernelProfile { alone: Some(10.0), ..Default::default() });
        top.absorb(Ok(report));
        top
    }

    #[track_caller]
    fn has(lines: &[String], words: &[&str]) {
        let found = lines.iter().any(|line| words.iter().all(|word| line.contains(word)));
        assert!(found, "no line with {words:?} in\n{}", lines.join("\n"));
    }

    #[test]
    fn eighty_columns_show_everything() {
        let lines = text(&top(), (80, 24));
        has(&lines, &["GPU 0: emu 24, 24 SMs, cd-search (watch)"]);
        has(&lines, &["memory 1.0 MiB of 4.0 GiB", "device time 1.5 ms"]);
        has(&lines, &["faults none"]);
        // SM 11 is stalled, 20 and 21 are gated, 22 and 23 free.
        has(&lines, &["SM 0   aaaaaaaa aaa~bbbb bbbb__.."]);
        has(&lines, &["APPv", "SPEED", "SHARE", "STATE"]);
        has(&lines, &[">a 1", "poly", "1000", "compute", "12*", "[|||  ]  60%", "50%", "runs"]);
        has(&lines, &[" b 2", "triad", "memory", "8 ", "not known", "4.0 KiB", "idle"]);
        has(&lines, &["Decision 8 of cd-search"]);
        has(&lines, &["q quit"]);
    }

    #[test]
    fn terms_have_a_line() {
        let mut report = samples::report();
        let mut top = Top::new();
        top.absorb(Ok(report.clone()));
        assert!(!text(&top, (80, 24)).iter().any(|line| line.starts_with("terms")));
        let latency = Entitlement { priority: Priority::Latency, ..Entitlement::default() };
        report.applications[0].entitlement = Some(Entitlement { min: 8, ..latency });
        report.applications[1].entitlement = Some(Entitlement { min: 9, max: 12, ..latency });
        top.absorb(Ok(report));
        let lines = text(&top, (80, 24));
        has(&lines, &["terms a 8+ SMs, latency; b 9-12 SMs, latency (has 8)"]);
        has(&lines, &["q quit"]);
    }

    #[test]
    fn lent_sms_are_not_missing_and_many_terms_are_cut() {
        let mut report = samples::report();
        report.applications[1].entitlement =
            Some(Entitlement { min: 9, max: 12, ..Entitlement::default() });
        report.partitions.truncate(1);
        let mut top = Top::new();
        top.absorb(Ok(report.clone()));
        let lines = text(&top, (80, 24));
        has(&lines, &["terms b 9-12 SMs"]);
        assert!(!lines.iter().any(|line| line.contains("(has")), "{lines:#?}");
        for id in 3..30 {
            let mut other = report.applications[1].clone();
            other.id = ApplicationId(id);
            report.applications.push(other);
        }
        top.absorb(Ok(report));
        let lines = text(&top, (80, 24));
        has(&lines, &["more terms: partita status"]);
        has(&lines, &["q quit"]);
    }

    #[test]
    fn colours_follow_applications() {
        let colours = |colour| {
            let terminal = screen(&top(), (80, 24), colour);
            let buffer = terminal.backend().buffer().clone();
            let cells = buffer.content().iter();
            cells.filter(|cell| cell.fg != Color::Reset).map(|cell| cell.fg).collect::<Vec<_>>()
        };
        assert!(colours(true).contains(&COLOURS[0]) && colours(true).contains(&COLOURS[1]));
        assert_eq!(colours(false), []);
    }

    #[test]
    fn what_is_wrong_is_told() {
        let mut top = Top::new();
        let mut report = samples::report();
        report.applications[1].stuck_ns = Some(2_000_000_000);
        report.gpu.last_restart = Some("signal: 9".into());
        report.gpu.restarts = 1;
        report.gpu.pid = 0;
        top.absorb(Ok(report));
        let lines = text(&top, (160, 24));
        has(
            &lines,
            &["application 2 has made no progress for 2.0 s", "restarted 1 times, last: signal: 9"],
        );
        has(&lines, &["triad", "stuck"]);
        top.absorb(Err("no daemon".into()));
        has(&text(&top, (80, 24)), &["no answer: no daemon"]);
    }

    #[test]
    fn small_and_empty_screens_say_why() {
        let lines = text(&top(), (60, 20)).join(" ");
        assert!(lines.contains("needs 70 x 14") && lines.contains("60 x 20"), "{lines}");
        for size in [(1, 1), (3, 2), (70, 14), (500, 200)] {
            text(&top(), size);
        }
        let mut empty = samples::report();
        (empty.applications, empty.partitions) = (Vec::new(), Vec::new());
        let mut top = Top::new();
        has(&text(&top, (80, 24)), &["asking the daemon"]);
        top.absorb(Ok(empty));
        has(&text(&top, (80, 24)), &["Start one with: partita run"]);
    }

    #[test]
    fn questions_and_help() {
        let mut top = top();
        let mut press = |code| {
            top.key(KeyEvent::from(code));
            text(&top, (80, 24))
        };
        has(&press(KeyCode::Char('c')), &["Cancel all", "application 1?", "y: yes"]);
        press(KeyCode::Char('n'));
        has(&press(KeyCode::Char('r')), &["SMs of application 1: 0-11_"]);
        press(KeyCode::Esc);
        has(&press(KeyCode::Char('?')), &["cancel all its queued"]);
    }

    #[test]
    fn more_applications_than_lines_scroll() {
        let mut report = samples::report();
        for id in 3..60 {
            let mut other = report.applications[1].clone();
            other.id = ApplicationId(id);
            report.applications.push(other);
        }
        let mut top = Top::new();
        top.absorb(Ok(report));
        for _ in 0..58 {
            top.key(KeyEvent::from(KeyCode::Down));
        }
        let lines = text(&top, (80, 24));
        assert!(
            lines.iter().any(|line| line.starts_with('>') && line.contains(" 59 ")),
            "{lines:?}"
        );
    }
}
