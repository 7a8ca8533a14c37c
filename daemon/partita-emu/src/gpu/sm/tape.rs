//! The tape of a CTA that ran ahead of its turn ([`crate::gpu`], `ahead.rs`), and its turns.
//!
//! A tape has the CTA's turns and its stores. Playing it takes the same turns as executing the CTA,
//! so simulated times are the same. The stores take effect in the last turn. A tape is played as a
//! whole or not at all, and nothing here executes an instruction.

use super::{Sm, Surroundings};
use crate::counters::add_run;
use crate::exec::scratch::{Line, Reduction};
use crate::exec::step::Stop;
use crate::exec::team::Team;
use crate::exec::trace::RunCounts;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How a turn ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// The team goes on.
    More,
    /// Nobody could run, and threads that waited at joins were released.
    Released,
    /// The whole team waits at the CTA's barrier.
    Barrier,
    /// All its threads have exited.
    Done,
}

/// A turn of a team.
#[derive(Clone, Copy, Debug)]
struct Entry {
    end: End,
    polls: u32,
    counts: RunCounts,
}

/// The turns of a team.
#[derive(Clone, Debug, Default)]
struct Part {
    turns: Vec<Entry>,
    /// The next one.
    next: usize,
    /// Whether it waits at the barrier.
    waits: bool,
    done: bool,
}

/// What a tape holds, as long as it holds it.
#[derive(Debug)]
pub struct Held {
    count: u64,
    of: Arc<AtomicU64>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.of.fetch_sub(self.count, Ordering::Relaxed);
    }
}

/// What a CTA did that ran ahead.
#[derive(Debug, Default)]
pub struct Tape {
    parts: Vec<Part>,
    /// What it has stored.
    pub lines: Vec<Line>,
    /// What it has reduced.
    pub reductions: Vec<Reduction>,
    /// Instructions by warps.
    pub instructions: u64,
    /// Whether it did what no tape holds.
    pub broken: bool,
    /// Its part of what all tapes hold.
    pub held: Option<Held>,
}

impl Tape {
    /// Empties the tape for a CTA of that many teams.
    pub fn start(&mut self, teams: usize) {
        self.parts.resize(teams, Part::default());
        for part in &mut self.parts {
            part.turns.clear();
        }
        self.rewind();
        self.lines.clear();
        self.reductions.clear();
        (self.instructions, self.broken) = (0, false);
    }

    /// Counts what it holds among that of all tapes.
    pub fn hold(&mut self, of: &Arc<AtomicU64>) {
        let count = (self.lines.len() + self.reductions.len()) as u64;
        of.fetch_add(count, Ordering::Relaxed);
        self.held = Some(Held { count, of: of.clone() });
    }

    /// The lines and reductions for which it has room.
    #[must_use]
    pub fn room(&self) -> usize {
        self.lines.capacity().max(self.reductions.capacity())
    }

    /// Whether it holds a whole CTA.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        !self.broken && self.parts.iter().all(|part| part.done)
    }

    /// Writes a turn down.
    pub(super) fn note(
        &mut self,
        index: usize,
        team: &Team,
        stop: &Stop,
        counts: RunCounts,
        polls: u32,
    ) {
        let end = match stop {
            _ if team.is_done() => End::Done,
            Stop::Gone | Stop::Turn | Stop::Warp => End::More,
            Stop::Barrier => End::Barrier,
            Stop::End | Stop::Cluster | Stop::Sleep(_) | Stop::Fault(_) => {
                self.broken = true;
                return;
            }
        };
        self.instructions += counts.warp_instructions;
        let part = &mut self.parts[index];
        part.done = end == End::Done;
        part.turns.push(Entry { end, polls, counts });
    }

    /// Writes down that threads at joins were released.
    pub(super) fn note_release(&mut self, index: usize) {
        let counts = RunCounts::default();
        self.parts[index].turns.push(Entry { end: End::Released, polls: 0, counts });
    }

    /// Whether the CTA has one team. Several teams can wait for each other at barriers.
    pub(super) fn has_one_team(&self) -> bool {
        self.parts.len() == 1
    }

    /// To be played from the beginning.
    pub fn rewind(&mut self) {
        for part in &mut self.parts {
            (part.next, part.waits, part.done) = (0, false, false);
        }
    }

    /// The teams that go on where all that have not exited wait.
    fn open(&mut self) -> Vec<usize> {
        if self.parts.iter().any(|part| !part.done && !part.waits) {
            return Vec::new();
        }
        let waiting = self.parts.iter_mut().enumerate().filter(|(_, part)| part.waits);
        waiting
            .map(|(team, part)| {
                part.waits = false;
                team
            })
            .collect()
    }
}

impl Sm {
    /// The turn of a team whose CTA has run ahead.
    pub(super) fn replay(
        &mut self,
        slot: usize,
        team: usize,
        time: u64,
        around: &mut Surroundings<'_>,
    ) {
        let cycle = around.spec.cycle_ps();
        let Some(resident) = &mut self.slots[slot] else { return };
        let Some(tape) = &mut resident.cta.tape else { return };
        let Some(grid) = around.grids.get_mut(&resident.operation) else { return };
        let part = &mut tape.parts[team];
        if part.waits || part.done {
            return;
        }
        let Some(&entry) = part.turns.get(part.next) else { return };
        part.next += 1;
        if entry.end == End::Released {
            self.enqueue(slot, team, time, around.sequence);
            return;
        }
        self.trace.clear();
        self.trace.polls = entry.polls;
        add_run(&mut grid.counters, &entry.counts);
        *around.executed += entry.counts.warp_instructions;
        let instructions = entry.counts.warp_instructions.max(1);
        self.issue_free =
            self.issue_free.max(time) + instructions * cycle / around.spec.issue_per_cycle;
        let ready = self.issue_free;
        part.waits = entry.end == End::Barrier;
        part.done = entry.end == End::Done;
        let opened = if part.waits || part.done { tape.open() } else { Vec::new() };
        let all_done = tape.parts.iter().all(|part| part.done);
        if all_done {
            for line in &tape.lines {
                line.store(&mut grid.grants, around.memory);
            }
            for reduction in &tape.reductions {
                reduction.reduce(&mut grid.grants, around.memory);
            }
            if let (Some(helpers), Some(tape)) = (&mut around.helpers, resident.cta.tape.take()) {
                helpers.keep(tape);
            }
        }
        for team in opened {
            self.enqueue(slot, team, ready, around.sequence);
        }
        if all_done {
            self.leave(slot, ready, around);
        } else if entry.end != End::Done {
            self.enqueue(slot, team, ready, around.sequence);
        }
    }
}
