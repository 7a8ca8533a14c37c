//! A resident CTA: its registers, its memory, its teams and its barriers.

use super::program::{LaunchShape, Program};
use super::registers::Registers;
use super::rows::LANES;
use super::tcgen05::memory::TensorMemory;
use super::team::{MAX_WARPS, Masks, State, Team};
use crate::gpu::Tape;
use partita_model::Dim3;

/// Barriers of a CTA.
pub const BARRIERS: usize = 16;

/// One of the CTA's barriers.
#[derive(Clone, Debug, Default)]
pub struct Barrier {
    /// Threads that have arrived, by warp.
    pub arrived: Vec<u32>,
    /// How many threads are awaited; `None` for all of the CTA. Set by the first to arrive.
    pub threads: Option<u32>,
    /// Arrived threads whose predicate was true.
    pub votes: u32,
    /// All arrived threads.
    pub voters: u32,
}

/// What a CTA computes in. The CTA that runs next gets the room of the last one to leave, which the
/// host's caches still hold.
#[derive(Clone, Debug)]
pub struct Room {
    /// Registers.
    pub registers: Registers,
    /// Shared memory.
    pub shared: Vec<u8>,
    /// Local memory of all threads, one after the other.
    pub local: Vec<u8>,
}

impl Room {
    /// A room for CTAs of a launch, with teams of at most `warps_per_team` warps.
    #[must_use]
    pub fn new(program: &Program, shape: &LaunchShape<'_>, warps_per_team: usize) -> Self {
        let warps = (shape.block.count() as usize).div_ceil(LANES);
        Room {
            registers: Registers::new(program, shape, warps, team_size(warps_per_team)),
            shared: vec![0; (shape.static_shared + shape.dynamic_shared) as usize],
            local: vec![0; program.local as usize * warps * LANES],
        }
    }
}

fn team_size(warps_per_team: usize) -> usize {
    warps_per_team.clamp(1, MAX_WARPS).next_power_of_two()
}

/// A CTA on an SM.
#[derive(Debug)]
pub struct Cta {
    /// Its room, from its first turn on. Shared memory holds what the CTA before left there, as on
    /// a GPU.
    pub room: Option<Room>,
    /// Its teams.
    pub teams: Vec<Team>,
    /// Its barriers.
    pub barriers: Vec<Barrier>,
    /// Its tensor memory, but for a CTA of a cluster that does not run.
    pub tensor: TensorMemory,
    /// The columns of its SM that it has: which of the SM's, and the units.
    pub columns: (usize, u16),
    /// Its index.
    pub index: Dim3,
    /// Its linear index.
    pub linear: u64,
    /// Its cluster, counted in the order in which clusters begin.
    pub cluster: u64,
    /// Its rank in the cluster.
    pub rank: u32,
    /// Threads that have not exited, by warp.
    pub alive: Vec<u32>,
    /// Barriers at which threads have arrived, one bit a barrier.
    reached: u16,
    warps_per_team: usize,
    /// What it did, where it has run ahead of its turn.
    pub tape: Option<Tape>,
}

impl Cta {
    /// A CTA of `threads` threads, in teams of at most `warps_per_team` warps. [`Cta::start`] comes
    /// next.
    #[must_use]
    pub fn new(threads: u32, warps_per_team: usize) -> Self {
        let warps = threads.div_ceil(LANES as u32) as usize;
        let warps_per_team = team_size(warps_per_team);
        Cta {
            room: None,
            teams: vec![Team::default(); warps.div_ceil(warps_per_team)],
            barriers: vec![Barrier::default(); BARRIERS],
            tensor: TensorMemory::default(),
            columns: (0, 0),
            index: Dim3::new(0, 0, 0),
            linear: 0,
            cluster: 0,
            rank: 0,
            alive: vec![0; warps],
            reached: 0,
            warps_per_team,
            tape: None,
        }
    }

    /// Starts the CTA of linear index `linear`.
    pub fn start(&mut self, linear: u64, grid: Dim3, threads: u32) {
        self.linear = linear;
        self.index = if linear < u64::from(grid.x) {
            Dim3::new(linear as u32, 0, 0)
        } else {
            let (x, y) = (u64::from(grid.x), u64::from(grid.y));
            Dim3::new((linear % x) as u32, (linear / x % y) as u32, (linear / x / y) as u32)
        };
        for (warp, alive) in self.alive.iter_mut().enumerate() {
            let rest = threads - (warp * LANES) as u32;
            *alive = if rest >= 32 { u32::MAX } else { (1 << rest) - 1 };
        }
        for (index, team) in self.teams.iter_mut().enumerate() {
            let first = index * self.warps_per_team;
            let warps = self.warps_per_team.min(self.alive.len() - first);
            let mut masks: Masks = [0; MAX_WARPS];
            masks[..warps].copy_from_slice(&self.alive[first..first + warps]);
            team.start(first, warps, masks);
        }
        self.reached = 0;
        self.tape = None;
        self.tensor.start();
        self.columns = (0, 0);
    }

    /// Whether all its threads have exited.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.teams.iter().all(Team::is_done)
    }

    /// Notes which threads of a team live, and lets those go on whose barrier waited for the exited
    /// only. Returns the barriers that opened.
    pub fn note_exits(&mut self, team: usize) -> Vec<u8> {
        let team = &self.teams[team];
        let noted = &mut self.alive[team.first_warp..team.first_warp + team.warps];
        if *noted == team.alive[..team.warps] {
            return Vec::new();
        }
        noted.copy_from_slice(&team.alive[..team.warps]);
        if self.reached == 0 {
            return Vec::new();
        }
        (0..BARRIERS as u8).filter(|&id| self.is_complete(id)).collect()
    }

    /// Threads `masks` of a team arrive at a barrier. True where that completes it.
    pub fn arrive(
        &mut self,
        team: usize,
        id: u8,
        masks: &Masks,
        threads: Option<u32>,
        votes: u32,
        voters: u32,
    ) -> bool {
        let first = self.teams[team].first_warp;
        let warps = self.teams[team].warps;
        let all = self.alive.len();
        let barrier = &mut self.barriers[usize::from(id)];
        if self.reached >> id & 1 == 0 {
            self.reached |= 1 << id;
            barrier.arrived.clear();
            barrier.arrived.resize(all, 0);
            (barrier.threads, barrier.votes, barrier.voters) = (threads, 0, 0);
        }
        for (arrived, mask) in barrier.arrived[first..first + warps].iter_mut().zip(masks) {
            *arrived |= mask;
        }
        barrier.votes += votes;
        barrier.voters += voters;
        self.is_complete(id)
    }

    /// Without a thread count, a barrier is complete when all live threads of every warp have
    /// arrived. With a thread count, each warp counts as 32 once all its live threads have arrived.
    fn is_complete(&self, id: u8) -> bool {
        let barrier = &self.barriers[usize::from(id)];
        if self.reached >> id & 1 == 0 {
            return false;
        }
        let mut whole =
            self.alive.iter().zip(&barrier.arrived).map(|(alive, arrived)| (alive & !arrived) == 0);
        match barrier.threads {
            None => whole.all(|whole| whole),
            Some(threads) => {
                let warps = whole
                    .zip(&barrier.arrived)
                    .filter(|&(whole, &arrived)| whole && arrived != 0)
                    .count();
                warps as u32 * 32 >= threads
            }
        }
    }

    /// Opens a barrier: its waiting threads become ready. Returns the teams that go on, one bit per
    /// team.
    pub fn open(&mut self, id: u8) -> u32 {
        self.reached &= !(1 << id);
        let mut woken = 0;
        for (index, team) in self.teams.iter_mut().enumerate() {
            let mut any = false;
            for fragment in &mut team.fragments {
                if fragment.state == State::Barrier(id) {
                    fragment.state = State::Ready;
                    fragment.pc += 1;
                    any = true;
                }
            }
            if any {
                team.merge();
                woken |= 1 << index;
            }
        }
        woken
    }
}
