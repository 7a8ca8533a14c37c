//! Threads of the host that run CTAs ahead of their turn, where no time is kept.
//!
//! When a CTA of a suitable grid ([`independent`]) begins, the host's threads execute it and the
//! CTAs after it, each on an SM of its own. They only read global memory. What they did goes to
//! tapes ([`Tape`]), which SMs play when the CTAs' turns come. So simulated times are those of one
//! thread, and the results are the same where CTAs of a launch do not race.
//!
//! A CTA runs in its turn, and what it did ahead is forgotten, where it faults, is too long, stores
//! too much, reaches memory of the host or past an allocation, or meets others of its CTA in an
//! unusual way.
//!
//! A device that serves programs gives the threads a part of each poll. The window of the grid pays
//! for it.

use super::grid::Grid;
use super::hardware::Hardware;
use super::sm::tape::Tape;
use super::sm::{AheadOf, Sm, Surroundings};
use super::{EmulatedGpu, MemoryOrder, Options, Timing};
use crate::exec::independent;
use crate::exec::scratch::Scratch;
use crate::exec::team::MAX_WARPS;
use crate::memory::{Memory, MemoryCheck};
use crate::spec::Spec;
use crate::timing::memory::SharedMemorySystem;
use partita_model::{OperationId, WindowId};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Instructions by warps of all CTAs that run ahead together.
const BATCH_INSTRUCTIONS: u64 = 1 << 22;
/// Most CTAs of a batch.
const MOST_CTAS: u64 = 8192;
/// Fewest CTAs of a batch for each thread.
const FEWEST_CTAS: u64 = 4;
/// Instructions by warps after which a CTA is too long, and the same where programs wait.
const LONGEST_CTA: u64 = 1 << 22;
const LONGEST_SERVED: u64 = 1 << 17;
/// Instructions by warps after which a thread looks whether its CTA goes on.
const SLICE: u64 = 1 << 12;
/// Stored lines and reductions after which a CTA has stored too much.
const MOST_STORED: usize = 1 << 16;
/// Those of a batch, by what is known of its CTAs, and of all tapes: 168 MB of lines.
const BATCH_STORED: u64 = 1 << 18;
const MOST_ON_TAPES: u64 = 1 << 20;
/// Tapes that are kept to be used again, and the most lines that they have room for.
const SPARE_TAPES: usize = 8192;
const SPARE_LINES: usize = 64;
/// Instructions by warps in all that are worth waking threads.
const WORTH_THREADS: u64 = 1 << 16;
/// What a tape, and a line on it, is taken to cost, in instructions by warps. SAXPY, whose CTAs of
/// 96 instructions store eight lines, took nearly twice as long with tapes on two threads.
const COST_OF_TAPE: u64 = 100;
const COST_OF_LINE: u64 = 20;
/// A batch has half of what is left of a poll, and at least this.
const SHORTEST: Duration = Duration::from_micros(100);
/// A CTA that does not end within this time does not run ahead.
const ENOUGH_TIME: Duration = Duration::from_micros(200);
/// Kernels that are remembered, and the most launches of one that are not looked at.
const REMEMBERED: usize = 1024;
const LONGEST_PENANCE: u32 = 1023;

/// What is known of a grid's CTAs that may run ahead.
#[derive(Debug, Default)]
pub enum Lookahead {
    /// Nothing yet.
    #[default]
    Unknown,
    /// Its CTAs run in their turns.
    Off,
    /// The tapes of the next CTAs. CTAs before `until` have been tried.
    On { tapes: VecDeque<Option<Tape>>, until: u64 },
}

impl Lookahead {
    /// The tape of the CTA that begins now.
    pub fn take(&mut self) -> Option<Tape> {
        match self {
            Lookahead::On { tapes, .. } => tapes.pop_front().flatten(),
            Lookahead::Unknown | Lookahead::Off => None,
        }
    }
}

/// The means of CTAs that have run ahead.
#[derive(Clone, Copy, Debug)]
struct Means {
    /// Instructions by warps.
    instructions: u64,
    /// Lines with stored bytes.
    lines: u64,
}

impl Means {
    /// Of the CTAs that have run; `None` where half of them could not.
    fn of(tapes: &VecDeque<Option<Tape>>) -> Option<Self> {
        let whole = tapes.iter().flatten().count();
        if whole * 2 < tapes.len().max(1) {
            return None;
        }
        let mean =
            |of: fn(&Tape) -> u64| tapes.iter().flatten().map(of).sum::<u64>() / whole as u64;
        Some(Means {
            instructions: mean(|tape| tape.instructions),
            // A reduction of a word counts as a quarter of a line.
            lines: mean(|tape| tape.lines.len() as u64 + tape.reductions.len() as u64 / 4),
        })
    }

    /// Whether `ctas` of them gain by other threads.
    fn gain(&self, ctas: u64) -> bool {
        self.instructions > COST_OF_TAPE + COST_OF_LINE * self.lines
            && self.instructions.saturating_mul(ctas) >= WORTH_THREADS
    }

    /// The CTAs of a batch.
    fn batch(&self) -> u64 {
        let by_length = BATCH_INSTRUCTIONS / self.instructions.max(1);
        let by_lines = BATCH_STORED / self.lines.max(1);
        by_length.min(by_lines).clamp(1, MOST_CTAS)
    }
}

/// What is known of a kernel.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// `None` where its CTAs did not run ahead, or gained nothing.
    means: Option<Means>,
    /// The next launches, which are not looked at.
    skipped: u32,
    /// How many launches were not looked at last.
    penance: u32,
}

impl Known {
    /// The CTAs gain nothing. Twice as many launches as last time are not looked at.
    fn fail(&mut self) {
        let penance = (2 * self.penance + 1).min(LONGEST_PENANCE);
        *self = Known { means: None, skipped: penance, penance };
    }
}

/// What the CTAs of a batch have in common.
struct Batch<'a> {
    memory: &'a Memory,
    spec: &'a Spec,
    /// The number of the first CTA after it.
    until: u64,
    /// For how long a thread works.
    patience: Option<Duration>,
    /// Instructions by warps after which a CTA is too long.
    longest: u64,
}

/// One thread's SM, and what surrounds it.
struct Helper {
    sm: Sm,
    scratch: Scratch,
    /// Stands in the place of the device's memory: nothing is in it.
    nothing: Memory,
    system: SharedMemorySystem,
    /// Tapes to be used again.
    spare: Vec<Tape>,
}

/// The host's threads that run CTAs ahead.
pub struct Helpers {
    helpers: Vec<Helper>,
    /// Whether the device serves programs, which wait while a batch runs.
    hurries: bool,
    /// CTAs that have run ahead.
    ran: u64,
    /// Kernels by the address of their program and threads of a CTA. A program may take the place
    /// of an unloaded one, which its next batch corrects.
    known: HashMap<(usize, u32), Known>,
    /// Tapes to be used again.
    spare: Vec<Tape>,
    /// When the poll ends, on a device that serves programs.
    ends: Instant,
    /// The windows that owe time for batches, and how much.
    owed: Vec<(WindowId, Duration)>,
    /// Whether the last batch had the time that a CTA may take.
    had_time: bool,
    /// Stored lines and reductions on all tapes.
    on_tapes: Arc<AtomicU64>,
}

impl Helpers {
    /// The threads of a device, where it has more than one.
    #[must_use]
    pub fn of(spec: &Spec, options: &Options) -> Option<Self> {
        let in_any_order = options.timing == Timing::Off && options.memory == MemoryOrder::InOrder;
        (in_any_order && options.helpers > 0).then(|| Helpers {
            helpers: (0..=options.helpers).map(|_| Helper::new(spec)).collect(),
            hurries: super::shares_host_time(options),
            ran: 0,
            known: HashMap::new(),
            spare: Vec::new(),
            ends: Instant::now(),
            owed: Vec::new(),
            had_time: true,
            on_tapes: Arc::default(),
        })
    }

    /// When the present poll ends.
    pub fn end_at(&mut self, ends: Instant) {
        self.ends = ends;
    }

    /// Takes the windows that owe time for batches, and how much. Nobody owes anything then.
    pub fn take_owed(&mut self) -> Vec<(WindowId, Duration)> {
        std::mem::take(&mut self.owed)
    }

    /// The time that all windows owe.
    #[must_use]
    pub fn owed(&self) -> Duration {
        self.owed.iter().map(|(_, time)| *time).sum()
    }

    /// A tape that has been played.
    pub(super) fn keep(&mut self, mut tape: Tape) {
        tape.held = None;
        if self.spare.len() < SPARE_TAPES && tape.room() <= SPARE_LINES {
            self.spare.push(tape);
        }
    }

    /// Sees to it that the next CTA of a grid has run ahead, if it may and that gains.
    pub(super) fn prepare(
        &mut self,
        grid: &mut Grid,
        memory: &Memory,
        spec: &Spec,
        hardware: &Arc<Hardware>,
    ) {
        let is_first = match grid.lookahead {
            Lookahead::Off => return,
            Lookahead::On { until, .. } if grid.next < until => return,
            Lookahead::On { .. } => false,
            Lookahead::Unknown => true,
        };
        let is_over = self.hurries && Instant::now() >= self.ends;
        if is_over || self.on_tapes.load(Ordering::Relaxed) >= MOST_ON_TAPES {
            return;
        }
        let left = grid.total - grid.next;
        let around = (memory, spec, hardware);
        let Some(means) = self.means(grid, around, (is_first, left)) else {
            grid.lookahead = Lookahead::Off;
            return;
        };
        let threads = self.helpers.len();
        let count = means.batch().max(FEWEST_CTAS * threads as u64).min(left);
        let tapes = self.run(grid, around, (threads, count));
        let (found, had_time) = (Means::of(&tapes), self.had_time);
        let known = self.known(grid);
        match found {
            Some(_) => *known = Known { means: found, ..Known::default() },
            None if had_time => known.fail(),
            None => {}
        }
        let until = grid.next + tapes.len() as u64;
        grid.lookahead = Lookahead::On { tapes, until };
    }

    fn known(&mut self, grid: &Grid) -> &mut Known {
        if self.known.len() >= REMEMBERED {
            self.known.clear();
        }
        let key = (Arc::as_ptr(&grid.program).addr(), grid.threads());
        self.known.entry(key).or_default()
    }

    /// The means of a grid's CTAs, where `left` of them may run ahead and gain by that.
    fn means(
        &mut self,
        grid: &Grid,
        around: (&Memory, &Spec, &Arc<Hardware>),
        (is_first, left): (bool, u64),
    ) -> Option<Means> {
        let known = self.known(grid);
        if !is_first {
            return known.means.filter(|means| means.gain(left));
        }
        let warps = grid.threads().div_ceil(32) as usize;
        // A single CTA gains nothing.
        let may = left > 1
            && !grid.has_clusters()
            && independent::may_run_ahead(&grid.program, warps, MAX_WARPS);
        if !may {
            return None;
        }
        if known.skipped > 0 {
            known.skipped -= 1;
            return None;
        }
        let found = match known.means {
            Some(means) => Some(means),
            None => Means::of(&self.run(grid, around, (1, 1))),
        };
        let gains = found.filter(|means| means.gain(left));
        if gains.is_none() && (found.is_some() || self.had_time) {
            self.known(grid).fail();
        }
        gains
    }

    /// Runs the next `count` CTAs of a grid on `threads` threads, or as many as the time allows.
    fn run(
        &mut self,
        grid: &Grid,
        (memory, spec, hardware): (&Memory, &Spec, &Arc<Hardware>),
        (threads, count): (usize, u64),
    ) -> VecDeque<Option<Tape>> {
        let began = Instant::now();
        let rest = self.ends.saturating_duration_since(began) / 2;
        let patience = self.hurries.then_some(rest.max(SHORTEST));
        self.had_time = patience.is_none_or(|patience| patience >= ENOUGH_TIME);
        let longest = if self.hurries { LONGEST_SERVED } else { LONGEST_CTA };
        let batch = Batch { memory, spec, until: grid.next + count, patience, longest };
        let next = AtomicU64::new(grid.next);
        let helpers = &mut self.helpers[..threads];
        let each = self.spare.len() / threads;
        for helper in &mut *helpers {
            helper.sm.hardware = hardware.clone();
            helper.spare.extend(self.spare.drain(self.spare.len() - each..));
        }
        let mut ran = thread::scope(|scope| {
            let mut work = helpers.iter_mut().map(|helper| {
                let (twin, batch, next) = (grid.twin(), &batch, &next);
                move || helper.run_all(twin, batch, next)
            });
            let own = work.next();
            // A host that has no further thread does with fewer.
            let spawn = |work| thread::Builder::new().spawn_scoped(scope, work).ok();
            let others: Vec<_> = work.filter_map(spawn).collect();
            let mut ran = own.map(|work| work()).unwrap_or_default();
            for other in others {
                match other.join() {
                    Ok(more) => ran.extend(more),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            ran
        });
        let taken = next.into_inner().min(batch.until) - grid.next;
        let mut tapes: VecDeque<_> = std::iter::repeat_with(|| None).take(taken as usize).collect();
        self.ran += ran.len() as u64;
        for (number, mut tape) in ran.drain(..) {
            tape.hold(&self.on_tapes);
            tapes[(number - grid.next) as usize] = Some(tape);
        }
        if self.hurries {
            self.owed.push((grid.window, began.elapsed()));
        }
        tapes
    }
}

impl EmulatedGpu {
    /// CTAs that have run ahead of their turn.
    #[must_use]
    pub fn ctas_ahead(&self) -> u64 {
        self.helpers.as_ref().map_or(0, |helpers| helpers.ran)
    }
}

impl Helper {
    fn new(spec: &Spec) -> Self {
        let mut nothing = Memory::new(0);
        nothing.set_check(MemoryCheck::Exact);
        // Where no time is kept no access reaches the caches.
        let small = Spec { llc_bytes: 1 << 20, ..spec.clone() };
        Helper {
            sm: Sm::new(0, spec, false),
            scratch: Scratch::default(),
            nothing,
            system: SharedMemorySystem::new(&small),
            spare: Vec::new(),
        }
    }

    /// Runs CTAs until none is left of the batch.
    fn run_all(&mut self, twin: Grid, batch: &Batch<'_>, next: &AtomicU64) -> Vec<(u64, Tape)> {
        let mut grids = BTreeMap::from([(twin.operation, twin)]);
        let mut tapes = Vec::new();
        let began = Instant::now();
        let is_late = || batch.patience.is_some_and(|patience| began.elapsed() >= patience);
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= batch.until {
                return tapes;
            }
            match self.run(&mut grids, batch, number, &is_late) {
                Some(tape) => tapes.push((number, tape)),
                None => self.start_over(&mut grids, batch.spec),
            }
            if is_late() {
                return tapes;
            }
        }
    }

    /// Forgets a CTA that could not run ahead. Its buffers are lost with it.
    fn start_over(&mut self, grids: &mut BTreeMap<OperationId, Grid>, spec: &Spec) {
        let hardware = self.sm.hardware.clone();
        self.sm = Sm::new(0, spec, false);
        self.sm.hardware = hardware;
        self.scratch.take(&mut Vec::new(), &mut Vec::new());
        for grid in grids.values_mut() {
            grid.resident = 0;
        }
    }

    /// Runs the CTA that begins as number `number`.
    fn run(
        &mut self,
        grids: &mut BTreeMap<OperationId, Grid>,
        batch: &Batch<'_>,
        number: u64,
        is_late: &impl Fn() -> bool,
    ) -> Option<Tape> {
        let (&operation, grid) = grids.iter_mut().next()?;
        grid.next = number;
        let warps = grid.threads().div_ceil(32) as usize;
        let mut tape = self.spare.pop().unwrap_or_default();
        tape.start(warps.div_ceil(MAX_WARPS));
        let (mut sequence, mut executed, mut news) = (0, 0, Vec::new());
        let spec = batch.spec;
        let mut around = Surroundings {
            spec,
            timed: false,
            memory: &mut self.nothing,
            weak: &mut None,
            system: &mut self.system,
            grids,
            order: &[],
            sequence: &mut sequence,
            news: &mut news,
            residency: false,
            executed: &mut executed,
            pace: None,
            helpers: None,
            ahead: Some(AheadOf {
                memory: batch.memory,
                scratch: &mut self.scratch,
                tape: &mut tape,
            }),
        };
        let now = self.sm.time();
        self.sm.place(operation, now, &mut around);
        let time_of = |instructions: u64| instructions * spec.cycle_ps() / spec.issue_per_cycle;
        for end in (SLICE..=batch.longest).step_by(SLICE as usize) {
            self.sm.run(now, now + time_of(end), &mut around);
            let Some(ahead) = &around.ahead else { return None };
            let is_much = ahead.scratch.is_spoilt() || ahead.scratch.len() > MOST_STORED;
            if !around.news.is_empty() || ahead.tape.broken || is_much {
                return None;
            }
            if ahead.tape.is_whole() {
                break;
            }
            if is_late() {
                return None;
            }
        }
        if !tape.is_whole() {
            return None;
        }
        tape.rewind();
        self.scratch.take(&mut tape.lines, &mut tape.reductions);
        Some(tape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_that_gain_nothing_are_looked_at_less_and_less() {
        let mut known = Known::default();
        let skipped: Vec<u32> = (0..12)
            .map(|_| {
                known.fail();
                known.skipped
            })
            .collect();
        assert_eq!(skipped[..4], [1, 3, 7, 15]);
        assert_eq!(skipped[11], LONGEST_PENANCE);
    }

    #[test]
    fn long_ctas_gain_and_many_stores_do_not() {
        let means = |instructions, lines| Means { instructions, lines };
        assert!(means(1_000, 8).gain(1_000));
        assert!(!means(96, 8).gain(1_000_000), "SAXPY with 256 threads a CTA");
        assert!(!means(1_000, 8).gain(10), "too few");
        assert_eq!(means(1 << 30, 0).batch(), 1);
        assert_eq!(means(1, 0).batch(), MOST_CTAS);
        assert_eq!(means(1, 1 << 10).batch(), BATCH_STORED >> 10);
    }
}
