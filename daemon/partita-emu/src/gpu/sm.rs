//! A streaming multiprocessor: its resident CTAs, an event queue of their teams, and its turn.

use super::grid::{Footprint, Grid};
use super::hardware::{Hardware, MOST_PARTS};
use crate::counters::add_run;
use crate::exec::access::weak::WeakAccess;
use crate::exec::cluster::{Peers, window_of};
use crate::exec::cta::Cta;
use crate::exec::inst::{NOWHERE, Op};
use crate::exec::launch_control::Unbegun;
use crate::exec::scratch::Ahead;
use crate::exec::step::{self, Env, Limits, Stop};
use crate::exec::tcgen05::columns::Claims;
use crate::exec::tcgen05::{self, Tensor};
use crate::exec::team::{Due, MAX_WARPS, State, Team};
use crate::exec::trace::{AccessKind, Trace};
use crate::exec::warp;
use crate::spec::Spec;
use crate::timing::memory::SmMemory;
use crate::timing::segment::{LONGEST, Segment};
use partita_model::{OperationId, WindowId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;
use turns::{Turn, Turns};

pub use around::{AheadOf, News, Surroundings};

mod around;
pub mod context;
mod leaving;
pub mod tape;
mod turns;
mod waits;

/// Segments after which another fragment of the team gets a turn.
const SEGMENTS_PER_TURN: u32 = 64;
/// A segment with polls counts as this many, so that spinning threads soon give way to others.
const POLL_SEGMENTS: u32 = 32;
/// Waits that a sleep counts for. A thread that sleeps repeatedly may wait for threads that wait
/// for it at a join.
const WAITS_OF_SLEEP: u32 = 4;
/// Turns after which threads that wait at a join continue alone, though no poll says that anybody
/// waits for them. A loop of some threads may be long, and the warp stays together behind it.
const TURNS_BEFORE_RELEASE: u32 = 4096;
/// Instructions after which a loop without global memory yields, where time is kept.
const LOOP_BUDGET: u32 = 64;
/// Instructions of a team's turn where time is not kept.
pub const UNTIMED_BUDGET: u32 = 512;

/// Consecutive turns of one team where time is not kept. The team's data stays in the host's
/// caches.
const TURNS_IN_A_ROW: u32 = 64;

/// The limits of a run of a segment. A branch ends the run, because its target begins another
/// segment.
fn limits_of(segment: &Segment) -> Limits {
    Limits { end: segment.end, budget: if segment.repeats { LOOP_BUDGET } else { 1 } }
}

/// Cycles from one SM to another of its GPC, and bytes a cycle between them (Luo et al.,
/// "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture via Microbenchmarking", 2024:
/// 180 cycles, and 3.27 TB/s among 132 SMs).
const CLUSTER_LATENCY: u64 = 180;
const CLUSTER_BYTES_PER_CYCLE: u64 = 14;

/// The cycles for which a warp waits for bytes of another SM.
fn cluster_cycles(bytes: u64) -> u64 {
    CLUSTER_LATENCY + bytes.div_ceil(CLUSTER_BYTES_PER_CYCLE)
}

/// From this number of transactions on, the cache lines of the targets are touched beforehand.
const MANY_TRANSACTIONS: usize = 4;

/// The times that a team waits for.
#[derive(Clone, Copy, Debug, Default)]
struct TeamTime {
    /// Classes of rows that loads in flight will fill.
    pending: u64,
    /// The time at which those loads are complete.
    pending_until: u64,
    /// The time at which the team's requests have left all queues. The team sends no further
    /// request before.
    accepted_until: u64,
    /// The time at which the team's stores are acknowledged. The CTA keeps its room until then.
    stored_until: u64,
    /// Segments in this turn.
    segments: u32,
    /// Whether the team is in the queue.
    queued: bool,
}

/// Tensor cores of an SM; the number of a warp in its CTA decides which is its own.
const TENSOR_CORES: usize = 4;

/// Stands for a team in the queue: the CTA is done and its stores are acknowledged.
const DRAINED: u16 = u16::MAX;

/// A resident CTA.
struct Resident {
    operation: OperationId,
    since: u64,
    cta: Cta,
    footprint: Footprint,
    /// Its registers in each part of the SM.
    parts: [u32; MOST_PARTS],
    times: Vec<TeamTime>,
}

/// A streaming multiprocessor.
pub struct Sm {
    /// Its number.
    pub id: u32,
    slots: Vec<Option<Resident>>,
    /// Buffers of CTAs that have left, for the next ones.
    spare_times: Vec<Vec<TeamTime>>,
    /// How often each slot has been filled. Older queue entries are recognised by this number.
    generations: Vec<u32>,
    queue: Turns,
    issue_free: u64,
    /// When the tensor core of each part is free.
    tensor_free: [u64; TENSOR_CORES],
    /// The columns of tensor memory that CTAs have.
    claims: Claims,
    /// When its tensor cores have made all products of matrices in tensor memory so far.
    products_until: u64,
    /// The slot and team that may have another turn at once.
    favoured: Option<(usize, usize)>,
    /// The beginning of that turn.
    again: Option<u64>,
    threads: u32,
    registers: u32,
    shared: u64,
    /// Registers in use in each part of the SM, where they are parted.
    parts: [u32; MOST_PARTS],
    /// Shared memory that the SM is set to, where it has settings.
    carve_out: u64,
    /// Habits of the hardware.
    pub hardware: Arc<Hardware>,
    ctas: u32,
    memory: SmMemory,
    trace: Trace,
    last_grid: Option<OperationId>,
    /// Grids with CTAs on this SM: how many CTAs, and since when.
    present: Vec<(OperationId, u32, u64)>,
    power: Power,
}

/// Whether an SM has power. A gated SM has power only while it has a CTA.
#[derive(Clone, Copy, Debug, Default)]
struct Power {
    gated: bool,
    /// Since when the SM has been without power; `None` while it has power.
    off_since: Option<u64>,
    /// Picoseconds without power before `off_since`.
    off_ps: u64,
}

/// Warps that execute together: one where time is kept, else up to all of a CTA.
fn warps_per_team(timed: bool) -> usize {
    if timed { 1 } else { MAX_WARPS }
}

impl Sm {
    /// An empty SM.
    #[must_use]
    pub fn new(id: u32, spec: &Spec, timed: bool) -> Self {
        Sm {
            id,
            slots: Vec::new(),
            spare_times: Vec::new(),
            generations: Vec::new(),
            queue: Turns::default(),
            issue_free: 0,
            tensor_free: [0; TENSOR_CORES],
            claims: Claims::default(),
            products_until: 0,
            favoured: None,
            again: None,
            threads: 0,
            registers: 0,
            shared: 0,
            parts: [0; MOST_PARTS],
            carve_out: 0,
            hardware: Arc::default(),
            ctas: 0,
            memory: SmMemory::new(spec),
            trace: Trace { wanted: timed, ..Trace::default() },
            last_grid: None,
            present: Vec::new(),
            power: Power::default(),
        }
    }

    /// Takes its power away once it is empty, or gives it back.
    pub fn gate(&mut self, gated: bool, time: u64) {
        self.power.gated = gated;
        self.switch(time);
    }

    fn switch(&mut self, time: u64) {
        let off = self.power.gated && self.ctas == 0;
        match self.power.off_since {
            None if off => self.power.off_since = Some(time),
            Some(since) if !off => {
                self.power.off_ps += time.saturating_sub(since);
                self.power.off_since = None;
            }
            _ => {}
        }
    }

    /// For how many picoseconds until `time` it has had power.
    #[must_use]
    pub fn powered_ps(&self, time: u64) -> u64 {
        let off = self.power.off_since.map_or(0, |since| time.saturating_sub(since));
        time.saturating_sub(self.power.off_ps + off)
    }

    /// The time up to which it has issued instructions.
    #[must_use]
    pub fn time(&self) -> u64 {
        self.issue_free
    }

    /// When it next has something to do.
    #[must_use]
    pub fn next_event(&self) -> Option<u64> {
        self.queue.first().map(|turn| turn.time)
    }

    /// Whether it has something to do before `until`.
    #[must_use]
    pub fn has_work(&self, until: u64) -> bool {
        self.next_event().is_some_and(|time| time < until)
    }

    /// The window of the grid whose CTAs came first.
    #[must_use]
    pub fn window(&self, grids: &BTreeMap<OperationId, Grid>) -> Option<WindowId> {
        let (operation, ..) = self.present.first()?;
        grids.get(operation).map(|grid| grid.window)
    }

    /// Whether a CTA of that size has room.
    #[must_use]
    pub fn has_room(&self, footprint: &Footprint, spec: &Spec) -> bool {
        self.ctas < spec.ctas_per_sm
            && self.threads + footprint.threads <= spec.threads_per_sm
            && self.registers + footprint.registers <= spec.registers_per_sm
            && self.shared + footprint.shared <= self.shared_limit(spec)
            && self.hardware.part(footprint, self.parts, spec).is_some()
    }

    /// Shared memory of the SM as it is set. An empty SM can be set anew.
    fn shared_limit(&self, spec: &Spec) -> u64 {
        let is_set = self.ctas > 0 && !self.hardware.carve_outs.is_empty();
        if is_set { self.carve_out } else { spec.shared_per_sm_bytes }
    }

    /// How many more CTAs of this size find room, by threads, registers and shared memory.
    #[must_use]
    pub fn room_for(&self, footprint: &Footprint, spec: &Spec) -> u32 {
        let threads = (spec.threads_per_sm - self.threads) / footprint.threads.max(1);
        let registers = (spec.registers_per_sm - self.registers) / footprint.registers.max(1);
        let shared = self.shared_limit(spec).saturating_sub(self.shared);
        let shared = shared / footprint.shared.max(1);
        let ctas = spec.ctas_per_sm - self.ctas;
        threads.min(registers).min(ctas).min(u32::try_from(shared).unwrap_or(u32::MAX))
    }

    /// How many of `room` CTAs find registers in the parts of the SM.
    pub(super) fn room_in_parts(&self, footprint: &Footprint, room: u32, spec: &Spec) -> u32 {
        let mut used = self.parts;
        let more = |_: &u32| {
            let more = self.hardware.part(footprint, used, spec);
            for (used, more) in used.iter_mut().zip(more.unwrap_or_default()) {
                *used += more;
            }
            more.is_some()
        };
        (0..room).take_while(more).count() as u32
    }

    /// Resident CTAs.
    #[must_use]
    pub fn resident(&self) -> u32 {
        self.ctas
    }

    /// Starts a CTA of a grid at `time`.
    pub fn place(&mut self, operation: OperationId, time: u64, around: &mut Surroundings<'_>) {
        let grid = around.grids.get_mut(&operation).expect("a grid that is placed is in flight");
        if let Some(helpers) = &mut around.helpers {
            helpers.prepare(grid, around.memory, around.spec, &self.hardware);
        }
        let cta = grid.take_cta(warps_per_team(around.timed));
        if self.last_grid != Some(operation) {
            self.last_grid = Some(operation);
            self.memory.forget();
        }
        if let Some(weak) = around.weak {
            weak.begin_grid(operation.0);
        }
        let footprint = grid.footprint;
        if self.ctas == 0 && !self.hardware.carve_outs.is_empty() {
            self.carve_out = self.hardware.carve_out(&footprint, around.spec);
        }
        let parts = self.hardware.part(&footprint, self.parts, around.spec).unwrap_or_default();
        self.ctas += 1;
        self.threads += footprint.threads;
        self.registers += footprint.registers;
        self.shared += footprint.shared;
        for (used, more) in self.parts.iter_mut().zip(parts) {
            *used += more;
        }
        if around.residency {
            around.news.push(News::Started { time, sm: self.id, grid: operation, cta: cta.linear });
        }
        match self.present.iter_mut().find(|(grid, ..)| *grid == operation) {
            Some((_, ctas, _)) => *ctas += 1,
            None => self.present.push((operation, 1, time)),
        }
        let teams = cta.teams.len();
        let mut times = self.spare_times.pop().unwrap_or_default();
        times.clear();
        times.resize(teams, TeamTime::default());
        let resident = Resident { operation, since: time, cta, footprint, parts, times };
        let slot = match self.slots.iter().position(Option::is_none) {
            Some(slot) => slot,
            None => {
                self.slots.push(None);
                self.generations.push(0);
                self.slots.len() - 1
            }
        };
        self.slots[slot] = Some(resident);
        self.generations[slot] = self.generations[slot].wrapping_add(1);
        let first =
            if around.timed { around.spec.cta_launch_cycles * around.spec.cycle_ps() } else { 0 };
        for team in 0..teams {
            self.enqueue(slot, team, time + first, around.sequence);
        }
    }

    fn enqueue(&mut self, slot: usize, team: usize, time: u64, sequence: &mut u64) {
        let Some(resident) = &mut self.slots[slot] else { return };
        if resident.times[team].queued {
            return;
        }
        // A team that polls or sleeps waits for other teams, so it gets no further turn at once.
        if self.favoured == Some((slot, team)) && self.trace.polls == 0 && time <= self.issue_free {
            self.again = Some(time);
            return;
        }
        resident.times[team].queued = true;
        self.push(slot, team as u16, time, sequence);
    }

    fn push(&mut self, slot: usize, team: u16, time: u64, sequence: &mut u64) {
        *sequence += 1;
        let (sequence, generation) = (*sequence, self.generations[slot]);
        self.queue.push(Turn { time, sequence, slot: slot as u16, team, generation });
    }

    /// Runs from `now` until `until`.
    pub fn run(&mut self, now: u64, until: u64, around: &mut Surroundings<'_>) {
        // The SM may have been idle for long.
        self.memory.advance(now);
        while let Some(&turn) = self.queue.first() {
            if turn.time >= until {
                break;
            }
            self.queue.begin();
            if self.generations[usize::from(turn.slot)] == turn.generation {
                self.take(turn, until, around);
            }
            self.queue.end();
            if around.pace.is_some_and(|pace| pace.is_over) {
                break;
            }
        }
    }

    /// Carries out a team's turn, or the end of a CTA.
    fn take(&mut self, turn: Turn, until: u64, around: &mut Surroundings<'_>) {
        let (slot, team) = (usize::from(turn.slot), usize::from(turn.team));
        if turn.team == DRAINED {
            self.leave(slot, turn.time, around);
            return;
        }
        let Some(resident) = &mut self.slots[slot] else { return };
        resident.times[team].queued = false;
        if around.timed || around.weak.is_some() {
            self.turn(slot, team, turn.time, until, around);
        } else {
            self.turns_in_a_row(slot, team, turn.time, until, around);
        }
    }

    /// Gives consecutive turns to one team, or to its successor in the same slot.
    fn turns_in_a_row(
        &mut self,
        slot: usize,
        team: usize,
        time: u64,
        until: u64,
        around: &mut Surroundings<'_>,
    ) {
        let mut next = Some(time);
        for _ in 0..TURNS_IN_A_ROW {
            let Some(time) = next.filter(|&time| time < until) else { break };
            self.favoured = Some((slot, team));
            let began = around.pace.map(|_| Instant::now());
            let owed = around.owed();
            self.turn(slot, team, time, until, around);
            next = self.again.take();
            let batches = around.owed() - owed;
            if let (Some(pace), Some(began)) = (&mut around.pace, began) {
                pace.turn_took(began + batches, Instant::now());
                if pace.is_over {
                    break;
                }
            }
        }
        self.favoured = None;
        if let Some(time) = next {
            self.enqueue(slot, team, time, around.sequence);
        }
    }

    /// Runs one turn of a team: a segment where time is kept, else a budget of instructions.
    fn turn(
        &mut self,
        slot: usize,
        team_index: usize,
        time: u64,
        until: u64,
        around: &mut Surroundings<'_>,
    ) {
        let cycle = around.spec.cycle_ps();
        let resident = self.slots[slot].as_mut().expect("the caller has seen it");
        if resident.cta.tape.is_some() {
            self.replay(slot, team_index, time, around);
            return;
        }
        let Some(grid) = around.grids.get_mut(&resident.operation) else { return };
        let team = &mut resident.cta.teams[team_index];
        let Some(index) = team.next_ready(time) else {
            self.nothing_ready(slot, team_index, time, around);
            return;
        };
        let pc = team.fragments[index].pc;
        let mut start = time;
        let budget = around.pace.map_or(UNTIMED_BUDGET, |pace| pace.budget);
        let mut limits = Limits { end: NOWHERE, budget };
        let mut segment = *grid.program.segments.at(pc);
        if around.timed {
            let times = &mut resident.times[team_index];
            if times.pending & segment.uses != 0 {
                start = start.max(times.pending_until);
            }
            if segment.memory {
                start = start.max(times.accepted_until);
            }
            start = start.max(self.issue_free);
            if start >= until || start > time && start > self.issue_free {
                self.enqueue(slot, team_index, start, around.sequence);
                return;
            }
            if times.pending_until <= start {
                times.pending = 0;
            }
            limits = limits_of(&segment);
        }
        if resident.cta.room.is_none() {
            let sms = self.hardware.nsmid(around.spec.sms.into());
            let warps = warps_per_team(around.timed);
            let room = grid.take_room(warps, sms);
            let place = (resident.cta.cluster, resident.cta.rank);
            let own = grid.own_values(resident.cta.index, place);
            room.registers.enter(&grid.program, &own);
            resident.cta.room = Some(room);
        }
        let room = resident.cta.room.as_mut().expect("it has one now");
        let mut fragment = team.fragments.remove(index);
        fragment.state = State::Ready;
        self.trace.clear();
        let (in_cluster, rank) = (resident.cta.cluster, resident.cta.rank as usize);
        let mut cluster = grid.clusters.get_mut(&in_cluster);
        if let Some(cluster) = &mut cluster {
            cluster.exchange(rank, &mut room.shared);
        }
        let uses_tensor = !grid.program.tensor_ops.is_empty();
        if let (true, Some(cluster)) = (uses_tensor, &mut cluster) {
            cluster.exchange_tensor(rank, &mut resident.cta.tensor);
        }
        let mut env = Env {
            program: &grid.program,
            memory: around.memory,
            ahead: around
                .ahead
                .as_mut()
                .map(|ahead| Ahead { memory: ahead.memory, scratch: ahead.scratch }),
            grants: &mut grid.grants,
            shared: &mut room.shared,
            own_window: window_of(rank),
            cluster: cluster.map(|cluster| Peers { cluster, rank }),
            tensor: uses_tensor.then_some(Tensor {
                memory: &mut resident.cta.tensor,
                claims: &mut self.claims,
                busy_until: &mut self.products_until,
            }),
            unbegun: Unbegun {
                next: &mut grid.next,
                total: grid.total,
                grid: grid.grid,
                cluster: grid.cluster,
            },
            local: &mut room.local,
            params: &grid.params,
            trace: &mut self.trace,
            output: &mut grid.output,
            assertion: &mut grid.assertion,
            window: grid.window,
            sm: self.hardware.smid(self.id),
            weak: around.weak.as_mut().map(|weak| WeakAccess {
                weak,
                grid: resident.operation.0,
                cta: resident.cta.linear,
                how: 0,
                atomic: false,
            }),
            now: start,
            cycle,
            slot: if around.timed { cycle } else { cycle / around.spec.issue_per_cycle },
        };
        let chains = around.timed && env.weak.is_none();
        let (mut counted, mut cycles) = (0, 0);
        let settled = if uses_tensor { tcgen05::settle(&mut env) } else { Ok(()) };
        let stop = loop {
            if let Err(trouble) = settled {
                break Stop::Fault(trouble);
            }
            let mut stop = step::run(&room.registers, team, &mut fragment, &mut env, limits);
            if !around.timed {
                break stop;
            }
            if stop == Stop::Turn {
                stop = Stop::End;
            }
            let instructions = env.trace.counts.warp_instructions - counted;
            counted += instructions;
            let rounds = instructions.max(1).div_ceil(u64::from(segment.weight).max(1));
            if segment.busy > 0 {
                // A warp's products are made by the tensor core of its part of the SM.
                let free = &mut self.tensor_free[team.first_warp % TENSOR_CORES];
                cycles += free.saturating_sub(start + cycles * cycle).div_ceil(cycle);
                *free = start + (cycles + rounds * u64::from(segment.busy)) * cycle;
            }
            cycles += (rounds * u64::from(segment.cycles)).max(instructions.max(1))
                + u64::from(segment.tail);
            // Short segments without memory run in one turn, up to the length of the longest
            // segment.
            if !chains || !segment.plain || env.trace.polls != 0 || counted >= LONGEST as u64 {
                break stop;
            }
            match stop {
                Stop::End => {}
                // Another fragment of the warp runs up to the reconvergence point. The end of the
                // turn handles exits.
                Stop::Gone if grid.program.code[segment.end as usize - 1].op != Op::Exit => {
                    let Some(next) = team.take_ready() else { break stop };
                    team.stale_turns = 0;
                    fragment = next;
                }
                _ => break stop,
            }
            let next = grid.program.segments.at(fragment.pc);
            let times = &resident.times[team_index];
            let waits = times.pending & next.uses != 0 && times.pending_until > start;
            if !next.plain || waits || start + cycles * cycle >= until {
                break Stop::End;
            }
            segment = *next;
            limits = limits_of(&segment);
        };
        let mut cluster = grid.clusters.get_mut(&in_cluster);
        if let Some(cluster) = &mut cluster {
            cluster.exchange(rank, &mut room.shared);
        }
        if uses_tensor {
            let tensor = &mut resident.cta.tensor;
            resident.cta.columns = (tensor.side, tensor.units);
            if let Some(cluster) = cluster {
                cluster.exchange_tensor(rank, tensor);
            }
        }
        let counts = self.trace.counts;
        add_run(&mut grid.counters, &counts);
        *around.executed += counts.warp_instructions;

        if let Some(ahead) = &mut around.ahead {
            ahead.tape.note(team_index, team, &stop, counts, self.trace.polls);
        }
        let instructions = counts.warp_instructions.max(1);
        self.issue_free =
            self.issue_free.max(start) + instructions * cycle / around.spec.issue_per_cycle;
        let mut ready = self.issue_free;
        if around.timed {
            ready = ready.max(start + (cycles + self.trace.shared_passes) * cycle);
            if self.trace.cluster_bytes > 0 {
                let cycles = cycles + cluster_cycles(self.trace.cluster_bytes);
                ready = ready.max(start + cycles * cycle);
            }
            let passes = counts.shared_accesses + self.trace.shared_passes;
            if passes > 0 {
                ready = ready.max(self.memory.pass(start, passes));
            }
            let times = &mut resident.times[team_index];
            if self.trace.transactions.len() >= MANY_TRANSACTIONS {
                self.memory.touch(around.system, &self.trace.transactions, start);
            }
            for transaction in &self.trace.transactions {
                let served =
                    self.memory.access(around.system, transaction, start, &mut grid.memory_counts);
                times.accepted_until = times.accepted_until.max(served.accepted);
                if transaction.kind == AccessKind::Store {
                    times.stored_until = times.stored_until.max(served.done);
                } else {
                    times.pending_until = times.pending_until.max(served.done);
                }
            }
            if !self.trace.transactions.is_empty() {
                times.pending |= segment.loads;
            }
            // The next segment is known, so the turn begins when that segment's operands are ready.
            if stop == Stop::End && team.fragments.is_empty() {
                let next = grid.program.segments.at(fragment.pc);
                if times.pending & next.uses != 0 {
                    ready = ready.max(times.pending_until);
                }
                if next.memory {
                    ready = ready.max(times.accepted_until);
                }
            }
        }
        self.after(slot, team_index, fragment, stop, (start, ready), around);
    }

    /// Acts on the reason why a run stopped.
    fn after(
        &mut self,
        slot: usize,
        team_index: usize,
        mut fragment: crate::exec::team::Fragment,
        stop: Stop,
        (start, ready): (u64, u64),
        around: &mut Surroundings<'_>,
    ) {
        let resident = self.slots[slot].as_mut().expect("the caller has seen it");
        let team = &mut resident.cta.teams[team_index];
        let sleeps = matches!(stop, Stop::Sleep(_) | Stop::Cluster);
        let waits = if sleeps { WAITS_OF_SLEEP } else { 0 };
        let due = team.pay(waits + self.trace.waits);
        if due == Due::Release {
            team.release_waiting();
        }
        match stop {
            Stop::End => {
                let times = &mut resident.times[team_index];
                times.segments += if self.trace.polls == 0 { 1 } else { POLL_SEGMENTS };
                let turn_over = times.segments >= SEGMENTS_PER_TURN;
                team.fragments.push(fragment);
                if turn_over {
                    times.segments = 0;
                    Self::end_turn(team);
                }
                self.enqueue(slot, team_index, ready, around.sequence);
            }
            Stop::Turn => {
                team.fragments.push(fragment);
                Self::end_turn(team);
                self.note_exits(slot, team_index, ready, around);
                self.enqueue(slot, team_index, ready, around.sequence);
            }
            Stop::Gone => {
                team.stale_turns = 0;
                if due != Due::Nothing && !team.fragments.is_empty() {
                    team.rotate(team.fragments.len() - 1);
                }
                let done = team.is_done();
                self.note_exits(slot, team_index, ready, around);
                if !done {
                    self.enqueue(slot, team_index, ready, around.sequence);
                }
            }
            Stop::Sleep(nanos) => {
                fragment.state = State::Asleep(start + u64::from(nanos.max(1)) * 1000);
                team.fragments.insert(0, fragment);
                let wake =
                    team.next_ready(ready).map_or_else(|| team.first_wake(), |_| Some(ready));
                let at = wake.unwrap_or(ready).max(ready);
                self.note_exits(slot, team_index, ready, around);
                self.enqueue(slot, team_index, at, around.sequence);
            }
            Stop::Warp => {
                fragment.state = State::Warp;
                team.fragments.insert(0, fragment);
                if let (Some(grid), Some(room)) =
                    (around.grids.get(&resident.operation), &resident.cta.room)
                {
                    warp::meet_apart(&room.registers, team, &grid.program);
                }
                self.note_exits(slot, team_index, ready, around);
                self.enqueue(slot, team_index, ready, around.sequence);
            }
            Stop::Barrier => {
                team.fragments.push(fragment);
                self.arrive(slot, team_index, ready, around);
            }
            Stop::Cluster => {
                team.fragments.push(fragment);
                self.wait_for_cluster(slot, team_index, (start, ready), around);
            }
            Stop::Fault(trouble) => {
                let Some(grid) = around.grids.get(&resident.operation) else { return };
                let fault = Box::new(grid.fault(&resident.cta, &trouble));
                around.news.push(News::Faulted { time: ready, grid: resident.operation, fault });
                // The faulted CTA stops entirely. Its other warps would otherwise be found stuck at
                // the next barrier.
                self.generations[slot] = self.generations[slot].wrapping_add(1);
            }
        }
    }

    /// Rotates the team after the turn of its last fragment.
    fn end_turn(team: &mut Team) {
        let last = team.fragments.len() - 1;
        team.rotate(last);
        team.stale_turns += 1;
        if team.stale_turns >= TURNS_BEFORE_RELEASE {
            team.stale_turns = 0;
            team.release_waiting();
        }
    }
}
