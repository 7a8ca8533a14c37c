//! What `partita top` shows and what its keys do. No I/O: readings and keys come in, commands for
//! the daemon go out.

use crate::watch::speeds::{Pace, Row, Speeds};
use partita_model::{
    ApplicationId, DecisionRecord, GpuNumber, GpuStatus, PartitionReport, SessionId, SmId, SmSet,
    StatusReport,
};
use partita_policy::explain;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// Sentences of decisions that are kept.
const SENTENCES: usize = 200;

/// The columns that the table can be sorted by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Column {
    /// The id.
    Application,
    /// The program's name.
    Program,
    /// The user id.
    User,
    /// The number of SMs.
    Sms,
    /// The speed against alone.
    Speed,
    /// The share of SM time.
    Share,
    /// Completed launches.
    Launches,
    /// Device memory.
    Memory,
}

impl Column {
    const ALL: [Column; 8] = [
        Column::Application,
        Column::Program,
        Column::User,
        Column::Sms,
        Column::Speed,
        Column::Share,
        Column::Launches,
        Column::Memory,
    ];

    fn next(self) -> Column {
        let index = Column::ALL.iter().position(|column| *column == self).unwrap_or(0);
        Column::ALL[(index + 1) % Column::ALL.len()]
    }
}

/// What the last line of the screen is for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Mode {
    /// The keys act on the table.
    Table,
    /// The help covers the table.
    Help,
    /// A question: does the user want to cancel all work of this application?
    Cancel(ApplicationId),
    /// The user types SMs for this application.
    Resize(ApplicationId, String),
}

/// What a key asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// End.
    Quit,
    /// Pin partitions of a GPU; without any, withdraw the plan.
    Plan(GpuNumber, Vec<(ApplicationId, SmSet)>),
    /// End all work of these sessions.
    Cancel(Vec<SessionId>),
}

/// Everything that is shown.
#[derive(Clone, Debug)]
pub struct Top {
    gpus: Vec<GpuStatus>,
    speeds: BTreeMap<GpuNumber, Speeds>,
    decisions: BTreeMap<GpuNumber, (u64, Vec<String>)>,
    gpu: usize,
    selected: Option<ApplicationId>,
    sort: Column,
    reverse: bool,
    /// What the last line is for.
    pub mode: Mode,
    /// The answer to the last command, or why there was none.
    pub message: String,
    /// Why the last reading failed, where it failed.
    pub silence: Option<String>,
}

impl Top {
    /// Nothing is known yet.
    pub fn new() -> Top {
        Top {
            gpus: Vec::new(),
            speeds: BTreeMap::new(),
            decisions: BTreeMap::new(),
            gpu: 0,
            selected: None,
            sort: Column::Application,
            reverse: false,
            mode: Mode::Table,
            message: String::new(),
            silence: None,
        }
    }

    /// Takes a reading in. Where it failed, the last state stays on the screen.
    pub fn absorb(&mut self, reading: Result<StatusReport, String>) {
        let mut report = match reading {
            Ok(report) => report,
            Err(reason) => {
                self.silence = Some(reason);
                return;
            }
        };
        self.silence = None;
        let others = std::mem::take(&mut report.others);
        self.gpus = std::iter::once(report.into()).chain(others).collect();
        for status in &self.gpus {
            self.speeds.entry(status.gpu.number).or_default().add(status);
            let (seen, sentences) = self.decisions.entry(status.gpu.number).or_default();
            take_decisions(seen, sentences, &status.policy.decisions);
        }
        self.gpu = self.gpu.min(self.gpus.len() - 1);
        let is_here = |id| self.rows().iter().any(|row| row.application.id == id);
        if !self.selected.is_some_and(is_here) {
            self.selected = self.rows().first().map(|row| row.application.id);
        }
        if let Mode::Cancel(of) | Mode::Resize(of, _) = self.mode
            && !self.rows().iter().any(|row| row.application.id == of)
        {
            self.mode = Mode::Table;
            self.message = format!("{of} has ended");
        }
    }

    /// The GPU that is shown, and how many there are.
    pub fn gpu(&self) -> Option<(&GpuStatus, usize)> {
        Some((self.gpus.get(self.gpu)?, self.gpus.len()))
    }

    /// The sentences of the shown GPU's decisions, oldest first.
    pub fn sentences(&self) -> &[String] {
        let of = self.gpu().and_then(|(status, _)| self.decisions.get(&status.gpu.number));
        of.map_or(&[], |(_, sentences)| sentences)
    }

    /// The application under the cursor.
    pub fn selected(&self) -> Option<ApplicationId> {
        self.selected
    }

    /// The column that sorts the table, and whether from its end.
    pub fn sorting(&self) -> (Column, bool) {
        (self.sort, self.reverse)
    }

    /// The table in its order.
    pub fn rows(&self) -> Vec<Row<'_>> {
        let Some((status, _)) = self.gpu() else { return Vec::new() };
        let Some(speeds) = self.speeds.get(&status.gpu.number) else { return Vec::new() };
        let mut rows: Vec<Row<'_>> = speeds.rows(status).collect();
        rows.sort_by(|a, b| {
            let order = compare(self.sort, a, b).then(a.application.id.cmp(&b.application.id));
            if self.reverse { order.reverse() } else { order }
        });
        rows
    }

    /// What a key does.
    pub fn key(&mut self, key: KeyEvent) -> Option<Command> {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Some(Command::Quit);
        }
        match std::mem::replace(&mut self.mode, Mode::Table) {
            Mode::Table => self.table_key(key.code),
            Mode::Help => None,
            Mode::Cancel(id) => self.answer(id, key.code),
            Mode::Resize(id, text) => self.typed(id, text, key.code),
        }
    }

    fn table_key(&mut self, code: KeyCode) -> Option<Command> {
        self.message.clear();
        match code {
            KeyCode::Char('q') | KeyCode::Esc => return Some(Command::Quit),
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.mode = Mode::Help,
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Char('S') => self.reverse = !self.reverse,
            KeyCode::Up | KeyCode::Char('k') => self.step(-1),
            KeyCode::Down | KeyCode::Char('j') => self.step(1),
            KeyCode::Tab | KeyCode::Char('g') => self.next_gpu(),
            KeyCode::Char('p') => return self.pin(),
            KeyCode::Char('+') => return self.grow(),
            KeyCode::Char('-') => return self.shrink(),
            KeyCode::Char('r') => {
                if let Some(id) = self.selected {
                    self.mode = Mode::Resize(id, self.sms_of(id).to_string());
                }
            }
            KeyCode::Char('c') => {
                if let Some(id) = self.selected {
                    self.mode = Mode::Cancel(id);
                }
            }
            _ => {}
        }
        None
    }

    /// Shows the next GPU, after the last one the first.
    pub fn next_gpu(&mut self) {
        self.gpu = (self.gpu + 1) % self.gpus.len().max(1);
        self.selected = self.rows().first().map(|row| row.application.id);
    }

    fn step(&mut self, by: isize) {
        let rows = self.rows();
        let here = rows.iter().position(|row| Some(row.application.id) == self.selected);
        let next = here.unwrap_or(0).saturating_add_signed(by).min(rows.len().saturating_sub(1));
        self.selected = rows.get(next).map(|row| row.application.id);
    }

    fn answer(&mut self, id: ApplicationId, code: KeyCode) -> Option<Command> {
        if code != KeyCode::Char('y') {
            self.message = "nothing is cancelled".into();
            return None;
        }
        let sessions = self
            .rows()
            .iter()
            .find(|row| row.application.id == id)
            .map(|row| row.application.sessions.clone());
        sessions.map(Command::Cancel)
    }

    fn typed(&mut self, id: ApplicationId, mut text: String, code: KeyCode) -> Option<Command> {
        match code {
            KeyCode::Esc => return None,
            KeyCode::Enter => match text.parse::<SmSet>() {
                Ok(sms) => return self.plan_with(id, Some(sms)),
                Err(error) => self.message = format!("{error}; give SMs as in 0-17 or 0-3,8"),
            },
            KeyCode::Backspace => drop(text.pop()),
            // The longest list of SMs that makes sense is far shorter.
            KeyCode::Char(c) if !c.is_control() && text.len() < 500 => text.push(c),
            _ => {}
        }
        self.mode = Mode::Resize(id, text);
        None
    }

    fn partitions(&self) -> &[PartitionReport] {
        self.gpu().map_or(&[], |(status, _)| &status.partitions)
    }

    fn sms_of(&self, id: ApplicationId) -> SmSet {
        let found = self.partitions().iter().find(|partition| partition.application == id);
        found.map_or(SmSet::EMPTY, |partition| partition.sms)
    }

    /// The plan in force, with other SMs for one application or without it.
    fn plan_with(&self, id: ApplicationId, sms: Option<SmSet>) -> Option<Command> {
        let (status, _) = self.gpu()?;
        let pinned = self.partitions().iter().filter(|partition| partition.pinned);
        let others = pinned.filter(|partition| partition.application != id);
        let others = others.map(|partition| (partition.application, partition.sms));
        let mut plan: Vec<(ApplicationId, SmSet)> =
            others.chain(sms.map(|sms| (id, sms))).collect();
        plan.sort_by_key(|(id, _)| *id);
        Some(Command::Plan(status.gpu.number, plan))
    }

    fn pin(&mut self) -> Option<Command> {
        let id = self.selected?;
        let partition = self.partitions().iter().find(|partition| partition.application == id);
        let Some(partition) = partition else {
            self.message = format!("{id} has no SMs that could be pinned");
            return None;
        };
        self.plan_with(id, (!partition.pinned).then_some(partition.sms))
    }

    /// The application's SMs and one more beside them, which no other pinned partition has.
    fn grow(&mut self) -> Option<Command> {
        let id = self.selected?;
        let (status, _) = self.gpu()?;
        let own = self.sms_of(id);
        let kept = self.partitions().iter().filter(|other| other.pinned && other.application != id);
        let kept = kept.fold(own, |all, other| all.union(&other.sms));
        let free: Vec<SmId> = SmSet::range(0, status.gpu.sms).difference(&kept).iter().collect();
        let is_next = |sm: &&SmId| {
            own.contains(SmId(sm.0 + 1))
                || sm.0.checked_sub(1).is_some_and(|low| own.contains(SmId(low)))
        };
        let Some(sm) = free.iter().rfind(is_next).or(free.first()).copied() else {
            self.message = format!("all other SMs are pinned: unpin one before {id} can have more");
            return None;
        };
        let mut sms = own;
        sms.insert(sm);
        self.plan_with(id, Some(sms))
    }

    fn shrink(&mut self) -> Option<Command> {
        let id = self.selected?;
        let mut sms = self.sms_of(id);
        let last = sms.iter().last().filter(|_| sms.len() > 1);
        let Some(last) = last else {
            self.message = format!("{id} has no SM to spare; c cancels its work");
            return None;
        };
        sms.remove(last);
        self.plan_with(id, Some(sms))
    }
}

/// Appends the sentences of decisions that were not seen before. A lower number than the last one
/// seen comes from a new `partita-gpu`.
fn take_decisions(seen: &mut u64, sentences: &mut Vec<String>, decisions: &[DecisionRecord]) {
    let Some(last) = decisions.last() else { return };
    if last.sequence < *seen {
        *seen = 0;
    }
    let fresh = decisions.iter().filter(|record| record.sequence > *seen);
    sentences.extend(fresh.flat_map(explain));
    *seen = last.sequence;
    let excess = sentences.len().saturating_sub(SENTENCES);
    sentences.drain(..excess);
}

/// Names and ids rise, quantities fall.
fn compare(column: Column, a: &Row<'_>, b: &Row<'_>) -> Ordering {
    let pace = |row: &Row<'_>, of: fn(Pace) -> f64| row.pace.map_or(-1.0, of);
    let speed = |pace: Pace| pace.speed.unwrap_or(-1.0);
    let share = |pace: Pace| pace.share;
    let (x, y) = (a.application, b.application);
    match column {
        Column::Application => Ordering::Equal,
        Column::Program => x.name.cmp(&y.name),
        Column::User => x.tenant.cmp(&y.tenant),
        Column::Sms => b.sms().cmp(&a.sms()),
        Column::Speed => pace(b, speed).total_cmp(&pace(a, speed)),
        Column::Share => pace(b, share).total_cmp(&pace(a, share)),
        Column::Launches => y.launches_completed.cmp(&x.launches_completed),
        Column::Memory => y.memory_used_bytes.cmp(&x.memory_used_bytes),
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
