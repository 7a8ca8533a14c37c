//! Threads that wait for others of their CTA: at barriers, for the last exit, or in vain.

use super::{CLUSTER_LATENCY, DRAINED, News, Sm, Surroundings};
use crate::exec::barrier;
use crate::exec::cluster::Wait;
use crate::exec::rows::lanes;
use crate::exec::team::{State, Team, is_empty};
use crate::memory::weak::{Scope, Thread};

/// Cycles after which threads look again whether their cluster's barrier has opened.
const CLUSTER_LOOKS: u64 = 32;

impl Sm {
    /// Handles the arrival of the team's last fragment at a barrier.
    pub(super) fn arrive(
        &mut self,
        slot: usize,
        team_index: usize,
        time: u64,
        around: &mut Surroundings<'_>,
    ) {
        let resident = self.slots[slot].as_mut().expect("the caller has seen it");
        let Some(grid) = around.grids.get(&resident.operation) else { return };
        let program = &*grid.program;
        let cta = &mut resident.cta;
        let Some(room) = cta.room.as_ref() else { return };
        let team = &mut cta.teams[team_index];
        let mut fragment = *team.fragments.last().expect("it stands at a barrier");
        let others = barrier::elsewhere(&room.registers, team, &fragment, program);
        if !is_empty(&others) {
            let others = Team::split(&mut fragment, &others);
            let last = team.fragments.len() - 1;
            team.fragments[last] = others;
            team.fragments.push(fragment);
        }
        if let Some(weak) = around.weak {
            // The barrier makes earlier stores visible to the CTA.
            let who = Thread { grid: resident.operation.0, cta: cta.linear, index: 0 };
            let (first, masks) = (team.first_warp, fragment.masks);
            let arrives = |thread: u32| {
                let warp = (thread as usize / 32).checked_sub(first);
                warp.and_then(|warp| masks.get(warp))
                    .is_some_and(|mask| mask >> (thread % 32) & 1 == 1)
            };
            weak.release(who, arrives, Scope::Cta);
        }
        let arrival = barrier::arrival(&room.registers, &cta.teams[team_index], &fragment, program);
        let barriers = crate::exec::cta::BARRIERS as u64;
        if arrival.id >= barriers {
            let warp = cta.teams[team_index].first_warp;
            let what = format!("barrier {} does not exist, there are {barriers}", arrival.id);
            let fault = grid.stuck(cta, fragment.pc as usize, warp, 0, &what);
            around.news.push(News::Faulted {
                time,
                grid: resident.operation,
                fault: Box::new(fault),
            });
            return;
        }
        if let Some(ahead) = &mut around.ahead {
            let whole = fragment.masks == cta.teams[team_index].alive;
            let usual = whole && arrival.waits && arrival.threads.is_none();
            ahead.tape.broken |= !usual && !ahead.tape.has_one_team();
        }
        let id = arrival.id as u8;
        let last = cta.teams[team_index].fragments.last_mut().expect("as above");
        if arrival.waits {
            last.state = State::Barrier(id);
        } else {
            last.pc += 1;
        }
        let complete = cta.arrive(
            team_index,
            id,
            &fragment.masks,
            arrival.threads,
            arrival.votes,
            arrival.voters,
        );
        if complete {
            self.open(slot, id, time, around);
        }
        self.note_exits(slot, team_index, time, around);
        self.enqueue(slot, team_index, time, around.sequence);
    }

    fn open(&mut self, slot: usize, id: u8, time: u64, around: &mut Surroundings<'_>) {
        let resident = self.slots[slot].as_mut().expect("the caller has seen it");
        let Some(grid) = around.grids.get(&resident.operation) else { return };
        let cta = &mut resident.cta;
        let (votes, voters) = {
            let barrier = &cta.barriers[usize::from(id)];
            (barrier.votes, barrier.voters)
        };
        if let Some(room) = &cta.room {
            for team in &cta.teams {
                barrier::deliver_votes(&room.registers, team, &grid.program, id, votes, voters);
            }
        }
        for team in lanes(cta.open(id)) {
            self.enqueue(slot, team, time, around.sequence);
        }
    }

    /// Handles the team's last fragment at the barrier of its cluster. Threads whose phase is not
    /// over look again a little later, because the CTAs that they wait for are on other SMs.
    pub(super) fn wait_for_cluster(
        &mut self,
        slot: usize,
        team_index: usize,
        (start, ready): (u64, u64),
        around: &mut Surroundings<'_>,
    ) {
        let cycle = around.spec.cycle_ps();
        let latency = if around.timed { CLUSTER_LATENCY * cycle } else { 0 };
        let resident = self.slots[slot].as_mut().expect("the caller has seen it");
        let Some(grid) = around.grids.get_mut(&resident.operation) else { return };
        let team = &mut resident.cta.teams[team_index];
        let mut fragment = team.fragments.pop().expect("it stands at the barrier");
        let rank = resident.cta.rank as usize;
        let found = match grid.clusters.get_mut(&resident.cta.cluster) {
            Some(cluster) => {
                cluster.wait((rank, team.first_warp), &fragment.masks, (start, latency))
            }
            None => Wait::Pass(fragment.masks),
        };
        let again = start.max(ready) + CLUSTER_LOOKS * cycle;
        match found {
            Wait::Pass(pass) => {
                let mut passing = Team::split(&mut fragment, &pass);
                if !is_empty(&fragment.masks) {
                    fragment.state = State::Asleep(again);
                    team.fragments.insert(0, fragment);
                }
                if !is_empty(&pass) {
                    passing.pc += 1;
                    passing.state = State::Ready;
                    team.fragments.push(passing);
                }
            }
            Wait::Until(known) => {
                fragment.state = State::Asleep(known.max(ready));
                team.fragments.insert(0, fragment);
            }
            Wait::Stray(warp, lane) => {
                let pc = fragment.pc as usize;
                let what = "a wait at the cluster's barrier without an arrival before it";
                team.fragments.push(fragment);
                let fault = grid.stuck(&resident.cta, pc, warp, lane, what);
                let fault = Box::new(fault);
                around.news.push(News::Faulted { time: ready, grid: resident.operation, fault });
                return;
            }
        }
        let wake = team.next_ready(ready).map_or_else(|| team.first_wake(), |_| Some(ready));
        let at = wake.unwrap_or(ready).max(ready);
        self.note_exits(slot, team_index, ready, around);
        self.enqueue(slot, team_index, at, around.sequence);
    }

    /// Handles exits of a team's threads: barriers may open, and the CTA may be done.
    pub(super) fn note_exits(
        &mut self,
        slot: usize,
        team: usize,
        time: u64,
        around: &mut Surroundings<'_>,
    ) {
        let resident = self.slots[slot].as_mut().expect("the caller has seen it");
        let opened = resident.cta.note_exits(team);
        if let Some(grid) = around.grids.get_mut(&resident.operation)
            && let Some(cluster) = grid.clusters.get_mut(&resident.cta.cluster)
        {
            cluster.note_alive(resident.cta.rank as usize, &resident.cta.alive, time);
        }
        for id in opened {
            self.open(slot, id, time, around);
        }
        let resident = self.slots[slot].as_ref().expect("as above");
        if resident.cta.is_done() {
            let drained = resident.times.iter().map(|times| times.stored_until).max().unwrap_or(0);
            if drained > time {
                self.push(slot, DRAINED, drained, around.sequence);
            } else {
                self.leave(slot, time, around);
            }
        }
    }

    /// Handles a team without a fragment that can run. Sleepers wake later, and threads at joins
    /// continue alone. The CTA is stuck if nothing can wake a thread.
    pub(super) fn nothing_ready(
        &mut self,
        slot: usize,
        team_index: usize,
        time: u64,
        around: &mut Surroundings<'_>,
    ) {
        let resident = self.slots[slot].as_mut().expect("the caller has seen it");
        let team = &mut resident.cta.teams[team_index];
        if team.is_done() {
            return;
        }
        if let Some(wake) = team.first_wake() {
            self.enqueue(slot, team_index, wake.max(time + 1), around.sequence);
            return;
        }
        if team.release_waiting() {
            if let Some(ahead) = &mut around.ahead {
                ahead.tape.note_release(team_index);
            }
            self.enqueue(slot, team_index, time, around.sequence);
            return;
        }
        if resident.times.iter().any(|times| times.queued) {
            return;
        }
        let Some(grid) = around.grids.get(&resident.operation) else { return };
        let Some((team, fragment)) = resident
            .cta
            .teams
            .iter()
            .find_map(|team| team.fragments.first().map(|fragment| (team, *fragment)))
        else {
            return;
        };
        let warp = fragment.masks.iter().position(|&mask| mask != 0).unwrap_or(0);
        let lane = (fragment.masks[warp].trailing_zeros() & 31) as usize;
        let what = match fragment.state {
            State::Barrier(id) => {
                format!("every thread of the CTA waits, and barrier {id} can never be passed")
            }
            _ => "every thread of the CTA waits, at a warp instruction for threads that never come"
                .to_owned(),
        };
        let fault =
            grid.stuck(&resident.cta, fragment.pc as usize, team.first_warp + warp, lane, &what);
        around.news.push(News::Faulted { time, grid: resident.operation, fault: Box::new(fault) });
    }
}
