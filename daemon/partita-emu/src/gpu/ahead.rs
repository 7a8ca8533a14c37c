//! Threads of the host that run CTAs ahead of their turn, where no time is kept.
//!
//! When a CTA of a suitable grid ([`independent`]) begins, the host's threads execute it and the
//! CTAs after it, each on an SM of its own. They only read global memory. What they did goes to
//! tapes ([`Tape`]), which SMs play when the CTAs' turns come. So simulated times are those of one
//! thread, and the results are the same where CTAs of a launch do not race.
//!
//! A CTA that faults, prints, is too long, or reaches memory of the host is forgotten: it runs in
//! its turn.

use super::grid::Grid;
use super::hardware::Hardware;
use super::sm::replay::Tape;
use super::sm::{AheadOf, Sm, Surroundings};
use super::{EmulatedGpu, MemoryOrder, Options, Timing};
use crate::exec::independent;
use crate::exec::scratch::Scratch;
use crate::exec::team::MAX_WARPS;
use crate::memory::{Memory, MemoryCheck};
use crate::spec::Spec;
use crate::timing::memory::SharedMemorySystem;
use partita_model::OperationId;
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
/// Most lines that a CTA stores, and all CTAs of a batch (128 bytes each).
const MOST_LINES: usize = 1 << 16;
const BATCH_LINES: u64 = 1 << 19;
/// Instructions by warps in all that are worth waking threads.
const WORTH_THREADS: u64 = 1 << 16;
/// Instructions by warps of a CTA that take as long as its tape, and as long as a line on the tape.
const COST_OF_TAPE: u64 = 100;
const COST_OF_LINE: u64 = 20;
/// For how long a batch may hold up a device that serves programs.
const PATIENCE: Duration = Duration::from_micros(500);
/// Kernels whose CTAs' lengths are remembered.
const REMEMBERED: usize = 1024;

/// What is known of a grid's CTAs that may run ahead.
#[derive(Debug, Default)]
pub enum Lookahead {
    /// Nothing yet.
    #[default]
    Unknown,
    /// Its CTAs run in their turns.
    Off,
    /// The tapes of the next CTAs; before `until` all have run ahead that do.
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
            lines: mean(|tape| tape.lines.len() as u64),
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
        let by_lines = BATCH_LINES / self.lines.max(1);
        by_length.min(by_lines).clamp(1, MOST_CTAS)
    }
}

/// What the CTAs of a batch have in common.
struct Batch<'a> {
    memory: &'a Memory,
    spec: &'a Spec,
    /// The number of the first CTA after it.
    until: u64,
    deadline: Option<Instant>,
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
    /// What is known of a kernel's CTAs, by program and threads of a CTA; `None` where they cannot
    /// run ahead. A program that takes the place of an unloaded one is measured by its first batch.
    known: HashMap<(usize, u32), Option<Means>>,
    /// Tapes to be used again.
    spare: Vec<Tape>,
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
        })
    }

    /// A tape that has been played.
    pub(super) fn keep(&mut self, tape: Tape) {
        self.spare.push(tape);
    }

    /// Sees to it that the next CTA of a grid has run ahead, if it may and that gains.
    pub(super) fn prepare(
        &mut self,
        grid: &mut Grid,
        memory: &Memory,
        spec: &Spec,
        hardware: &Arc<Hardware>,
    ) {
        match grid.lookahead {
            Lookahead::Off => return,
            Lookahead::On { until, .. } if grid.next < until => return,
            Lookahead::Unknown | Lookahead::On { .. } => {}
        }
        let left = grid.total - grid.next;
        let key = (Arc::as_ptr(&grid.program).addr(), grid.threads());
        let means = match self.known.get(&key) {
            Some(known) => *known,
            None => self.probe(grid, memory, spec, hardware),
        };
        let Some(means) = means.filter(|means| means.gain(left)) else {
            self.remember(key, means);
            grid.lookahead = Lookahead::Off;
            return;
        };
        let threads = self.helpers.len();
        let count = means.batch().max(FEWEST_CTAS * threads as u64).min(left);
        let tapes = self.run(grid, memory, spec, (hardware, threads, count));
        self.remember(key, Means::of(&tapes));
        let until = grid.next + tapes.len() as u64;
        grid.lookahead = Lookahead::On { tapes, until };
    }

    fn remember(&mut self, key: (usize, u32), means: Option<Means>) {
        if self.known.len() >= REMEMBERED {
            self.known.clear();
        }
        self.known.insert(key, means);
    }

    /// Runs one CTA ahead, to know what it does.
    fn probe(
        &mut self,
        grid: &Grid,
        memory: &Memory,
        spec: &Spec,
        hardware: &Arc<Hardware>,
    ) -> Option<Means> {
        let warps = grid.threads().div_ceil(32) as usize;
        // A single CTA gains nothing.
        let may = grid.total - grid.next > 1
            && !grid.has_clusters()
            && independent::may_run_ahead(&grid.program, warps, MAX_WARPS);
        let tapes = may.then(|| self.run(grid, memory, spec, (hardware, 1, 1)));
        tapes.and_then(|tapes| Means::of(&tapes))
    }

    /// Runs the next `count` CTAs of a grid on `threads` threads, or as many as the time allows.
    fn run(
        &mut self,
        grid: &Grid,
        memory: &Memory,
        spec: &Spec,
        (hardware, threads, count): (&Arc<Hardware>, usize, u64),
    ) -> VecDeque<Option<Tape>> {
        let deadline = self.hurries.then(|| Instant::now() + PATIENCE);
        let longest = if self.hurries { LONGEST_SERVED } else { LONGEST_CTA };
        let batch = Batch { memory, spec, until: grid.next + count, deadline, longest };
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
        for (number, tape) in ran.drain(..) {
            tapes[(number - grid.next) as usize] = Some(tape);
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
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= batch.until {
                return tapes;
            }
            match self.run(&mut grids, batch, number) {
                Some(tape) => tapes.push((number, tape)),
                None => self.start_over(&mut grids, batch.spec),
            }
            if batch.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return tapes;
            }
        }
    }

    /// Forgets a CTA that could not run ahead. Its buffers are lost with it.
    fn start_over(&mut self, grids: &mut BTreeMap<OperationId, Grid>, spec: &Spec) {
        let hardware = self.sm.hardware.clone();
        self.sm = Sm::new(0, spec, false);
        self.sm.hardware = hardware;
        self.scratch.take(&mut Vec::new());
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
        let longest = batch.longest * spec.cycle_ps() / spec.issue_per_cycle;
        self.sm.run(now, now + longest, &mut around);
        if !news.is_empty() || !tape.is_whole() || self.scratch.len() > MOST_LINES {
            return None;
        }
        tape.rewind();
        self.scratch.take(&mut tape.lines);
        Some(tape)
    }
}
