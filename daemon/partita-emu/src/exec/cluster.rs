//! A cluster of CTAs: the shared memory that its CTAs reach in each other, and its barrier.
//!
//! PTX ISA, "Cooperative Thread Arrays: Cluster", "mapa", "barrier.cluster". An address of shared
//! memory has the CTA's rank from bit [`RANK_SHIFT`] on, and the offset in that CTA's shared memory
//! below, as on Hopper and Blackwell: a CTA's own addresses have its own rank, and CUTLASS clears a
//! bit of them to reach the even CTA of a pair.
//!
//! A CTA that has exited has no shared memory any more: an access to it is a fault, as on a GPU
//! (CUDA-GDB, "Cluster target block not present"). Threads of an exited CTA count as arrived at
//! the barrier.

use super::step::Env;
use super::tcgen05::memory::TensorMemory;
use super::team::{MAX_WARPS, Masks};

/// The first bit of an address that names a CTA of the cluster.
pub const RANK_SHIFT: u32 = 24;

/// A CTA of a cluster, as far as other CTAs are concerned.
#[derive(Clone, Debug, Default)]
struct Member {
    /// Its shared memory, but while it runs.
    shared: Vec<u8>,
    /// Its tensor memory, but while it runs.
    tensor: TensorMemory,
    /// Whether it has not left.
    present: bool,
    /// Threads that have not exited, by warp.
    alive: Vec<u32>,
    /// Threads that have arrived in this phase, by warp.
    arrived: Vec<u32>,
    /// Threads whose phase is over and that have not waited for it yet, by warp.
    released: Vec<u32>,
}

/// A cluster whose CTAs are resident.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    members: Vec<Member>,
    /// When the last phase of the barrier ended, in picoseconds.
    opened: u64,
    /// Arrivals at mbarriers that tensor cores will make.
    later: Vec<Later>,
}

/// An arrival at an mbarrier at a later time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Later {
    /// When, in picoseconds.
    pub time: u64,
    /// Warp, lane and instruction that asked for it.
    pub site: (usize, usize, usize),
    /// The mbarrier, in the CTA that the address names.
    pub address: u64,
}

/// The most arrivals under way in a cluster, beside those of one instruction.
const MOST_LATER: usize = 1024;

/// What a wait at the barrier finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// These threads pass, and the other threads of the fragment wait.
    Pass(Masks),
    /// The phase is over, and this is the time, in picoseconds, at which the threads know it.
    Until(u64),
    /// This lane of this warp waits without having arrived.
    Stray(usize, usize),
}

/// The cluster of a running CTA, and the CTA's rank in it.
#[derive(Debug)]
pub struct Peers<'a> {
    /// The cluster.
    pub cluster: &'a mut Cluster,
    /// The rank.
    pub rank: usize,
}

impl Cluster {
    /// A cluster of `ctas` CTAs with the threads `alive` each, by warp. `memory` gives each its
    /// shared memory.
    pub fn new(ctas: u32, alive: &[u32], mut memory: impl FnMut() -> Vec<u8>) -> Self {
        let member = |_| Member {
            shared: memory(),
            tensor: TensorMemory::default(),
            present: true,
            alive: alive.to_vec(),
            arrived: vec![0; alive.len()],
            released: vec![0; alive.len()],
        };
        Cluster { members: (0..ctas).map(member).collect(), opened: 0, later: Vec::new() }
    }

    /// Exchanges a CTA's shared memory with `other`, before and after the CTA runs.
    pub fn exchange(&mut self, rank: usize, other: &mut Vec<u8>) {
        if let Some(member) = self.members.get_mut(rank) {
            std::mem::swap(&mut member.shared, other);
        }
    }

    /// Exchanges a CTA's tensor memory with `other`, before and after the CTA runs.
    pub fn exchange_tensor(&mut self, rank: usize, other: &mut TensorMemory) {
        if let Some(member) = self.members.get_mut(rank) {
            std::mem::swap(&mut member.tensor, other);
        }
    }

    /// Whether `arrivals` more may be under way. One instruction has at most 512 a warp, and never
    /// waits for its own.
    #[must_use]
    pub fn has_room(&self, arrivals: usize) -> bool {
        self.later.is_empty() || self.later.len() + arrivals <= MOST_LATER
    }

    /// Lets an arrival come later. The caller has asked whether there is room.
    pub fn arrive_later(&mut self, later: Later) {
        self.later.push(later);
    }

    /// The next arrival whose time has come.
    pub fn take_due(&mut self, now: u64) -> Option<Later> {
        let index = self.later.iter().position(|later| later.time <= now)?;
        Some(self.later.remove(index))
    }

    /// Whether a CTA of this rank is there.
    #[must_use]
    pub fn has(&self, rank: usize) -> bool {
        self.members.get(rank).is_some_and(|member| member.present)
    }

    /// The tensor memory of a CTA that does not run.
    pub fn tensor_mut(&mut self, rank: usize) -> Option<&mut TensorMemory> {
        let member = self.members.get_mut(rank).filter(|member| member.present)?;
        Some(&mut member.tensor)
    }

    /// The shared memory of a CTA that does not run.
    #[must_use]
    pub fn shared(&self, rank: usize) -> &[u8] {
        self.members.get(rank).map_or(&[], |member| &member.shared)
    }

    /// A CTA has left the SM. Returns the shared memory of all where it was the last.
    pub fn leave(&mut self, rank: usize) -> Option<Vec<Vec<u8>>> {
        if let Some(member) = self.members.get_mut(rank) {
            member.present = false;
        }
        let gone = self.members.iter().all(|member| !member.present);
        gone.then(|| self.members.iter_mut().map(|m| std::mem::take(&mut m.shared)).collect())
    }

    /// Notes which threads of a CTA live. Exits may end the barrier's phase.
    pub fn note_alive(&mut self, rank: usize, alive: &[u32], now: u64) {
        let Some(member) = self.members.get_mut(rank) else { return };
        if member.alive != alive {
            member.alive.copy_from_slice(alive);
            self.settle(now);
        }
    }

    /// Threads arrive at the barrier.
    ///
    /// # Errors
    /// The warp and lane of a thread that has arrived before, and has not waited since.
    pub fn arrive(
        &mut self,
        rank: usize,
        first_warp: usize,
        masks: &Masks,
        now: u64,
    ) -> Result<(), (usize, usize)> {
        let Some(member) = self.members.get_mut(rank) else { return Ok(()) };
        let warps = member.arrived[first_warp..].iter_mut().zip(&member.released[first_warp..]);
        for (warp, ((arrived, released), mask)) in warps.zip(masks).enumerate() {
            let again = mask & (*arrived | released);
            if again != 0 {
                return Err((first_warp + warp, again.trailing_zeros() as usize));
            }
            *arrived |= mask;
        }
        self.settle(now);
        Ok(())
    }

    /// Ends the phase where all threads of the cluster have arrived or exited.
    fn settle(&mut self, now: u64) {
        let has_arrived = |member: &Member| {
            let mut warps = member.alive.iter().zip(&member.arrived);
            warps.all(|(alive, arrived)| alive & !arrived == 0)
        };
        let any = self.members.iter().any(|member| member.arrived.iter().any(|&mask| mask != 0));
        if !any || !self.members.iter().all(has_arrived) {
            return;
        }
        for member in &mut self.members {
            for (released, arrived) in member.released.iter_mut().zip(&mut member.arrived) {
                *released |= std::mem::take(arrived);
            }
        }
        self.opened = self.opened.max(now);
    }

    /// Threads wait at the barrier at `now`; the end of a phase is known `latency` picoseconds
    /// after the last arrival. Threads that pass have waited.
    pub fn wait(
        &mut self,
        (rank, first_warp): (usize, usize),
        masks: &Masks,
        (now, latency): (u64, u64),
    ) -> Wait {
        let Some(member) = self.members.get_mut(rank) else { return Wait::Pass(*masks) };
        let mut pass: Masks = [0; MAX_WARPS];
        let warps = member.released[first_warp..].iter_mut().zip(&member.arrived[first_warp..]);
        for (warp, ((released, arrived), mask)) in warps.zip(masks).enumerate() {
            let stray = mask & !(*released | arrived);
            if stray != 0 {
                return Wait::Stray(first_warp + warp, stray.trailing_zeros() as usize);
            }
            pass[warp] = *released & mask;
        }
        let known = self.opened + latency;
        if known > now && pass.iter().any(|&mask| mask != 0) {
            return Wait::Until(known);
        }
        for (released, passed) in member.released[first_warp..].iter_mut().zip(&pass) {
            *released &= !passed;
        }
        Wait::Pass(pass)
    }
}

/// What the rank of a CTA adds to an address of its shared memory.
#[must_use]
pub const fn window_of(rank: usize) -> u64 {
    (rank as u64) << RANK_SHIFT
}

/// Memory at an address outside the CTA's own shared memory: that of a CTA of its cluster.
pub fn memory_at<'e>(env: &'e mut Env<'_>, address: u64, length: usize) -> Option<&'e mut [u8]> {
    let peers = env.cluster.as_mut()?;
    let rank = usize::try_from(address >> RANK_SHIFT).ok().filter(|&rank| rank != peers.rank)?;
    let at = usize::try_from(address & ((1 << RANK_SHIFT) - 1)).ok()?;
    let member = peers.cluster.members.get_mut(rank).filter(|member| member.present)?;
    env.trace.cluster_bytes += length as u64;
    member.shared.get_mut(at..)?.get_mut(..length)
}

/// Why there is no memory at an address in the window of another CTA; `None` for other addresses.
#[must_use]
pub fn why_not(env: &Env<'_>, address: u64) -> Option<String> {
    let rank = address >> RANK_SHIFT;
    if rank == env.own_window >> RANK_SHIFT {
        return None;
    }
    let Some(peers) = &env.cluster else {
        return Some("of another CTA, by a kernel without clusters".to_owned());
    };
    let members = &peers.cluster.members;
    Some(match usize::try_from(rank).ok().and_then(|rank| members.get(rank)) {
        None => format!("of CTA {rank} of a cluster of {}", members.len()),
        Some(member) if !member.present => {
            format!("of CTA {rank} of the cluster, which has exited")
        }
        Some(_) => {
            let size = env.shared.len();
            format!("beyond the {size} bytes of shared memory of CTA {rank} of the cluster")
        }
    })
}

/// `mapa`: the address in CTA `x[1]` of the cluster, as a lane function. Higher bits, those of a
/// generic address, stay.
pub fn mapa(x: [u64; 3], _how: u32) -> u64 {
    let ranks = 0xff << RANK_SHIFT;
    x[0] & !ranks | x[1] << RANK_SHIFT & ranks
}

/// `getctarank`: the rank of the CTA that an address lies in, as a lane function.
pub fn rank_of(x: [u64; 3], _how: u32) -> u64 {
    x[0] >> RANK_SHIFT & 0xff
}

/// `isspacep.shared::cta`: whether a generic address lies in the CTA's own shared memory, as a lane
/// function; `x[1]` is the CTA's own window, `x[2]` the beginning of shared memory.
pub fn is_own(x: [u64; 3], _how: u32) -> u64 {
    let inside = x[0].wrapping_sub(x[2]);
    u64::from(inside.wrapping_sub(x[1]) < 1 << RANK_SHIFT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(ctas: u32) -> Cluster {
        Cluster::new(ctas, &[ALL; 2], || vec![0; 64])
    }

    fn both(first: u32, second: u32) -> Masks {
        let mut masks = [0; MAX_WARPS];
        masks[..2].copy_from_slice(&[first, second]);
        masks
    }

    const ALL: u32 = u32::MAX;

    #[test]
    fn a_phase_ends_when_all_threads_of_all_ctas_have_arrived() {
        let mut cluster = cluster(2);
        cluster.arrive(0, 0, &both(ALL, ALL), 10).unwrap();
        assert_eq!(cluster.wait((0, 0), &both(ALL, ALL), (11, 5)), Wait::Pass(both(0, 0)));
        cluster.arrive(1, 0, &both(ALL, 0), 20).unwrap();
        assert_eq!(cluster.wait((0, 0), &both(ALL, ALL), (21, 5)), Wait::Pass(both(0, 0)));
        cluster.arrive(1, 1, &both(ALL, 0), 30).unwrap();
        assert_eq!(cluster.wait((0, 0), &both(ALL, ALL), (31, 5)), Wait::Until(35));
        assert_eq!(cluster.wait((0, 0), &both(ALL, ALL), (35, 5)), Wait::Pass(both(ALL, ALL)));
        // CTA 0 is in the next phase while CTA 1 has not waited for the last.
        cluster.arrive(0, 0, &both(ALL, ALL), 36).unwrap();
        assert_eq!(cluster.wait((0, 0), &both(ALL, ALL), (99, 5)), Wait::Pass(both(0, 0)));
        assert_eq!(cluster.wait((1, 0), &both(ALL, ALL), (99, 5)), Wait::Pass(both(ALL, ALL)));
    }

    #[test]
    fn exits_count_as_arrivals() {
        let mut cluster = cluster(2);
        cluster.arrive(0, 0, &both(ALL, ALL), 10).unwrap();
        cluster.note_alive(1, &[0, 7], 20);
        assert_eq!(cluster.wait((0, 0), &both(ALL, 0), (90, 5)), Wait::Pass(both(0, 0)));
        cluster.note_alive(1, &[0, 0], 30);
        assert_eq!(cluster.wait((0, 0), &both(ALL, 0), (90, 5)), Wait::Pass(both(ALL, 0)));
        assert_eq!(cluster.leave(1), None);
        assert_eq!(cluster.leave(0).map(|all| all.len()), Some(2));
    }

    #[test]
    fn misuse_is_told() {
        let mut cluster = cluster(1);
        assert_eq!(cluster.wait((0, 0), &both(8, 0), (0, 5)), Wait::Stray(0, 3));
        cluster.arrive(0, 1, &both(6, 0), 0).unwrap();
        assert_eq!(cluster.arrive(0, 1, &both(4, 0), 0), Err((1, 2)));
    }

    #[test]
    fn addresses_name_ctas() {
        assert_eq!(mapa([0x40, 3, 0], 0), 0x0300_0040);
        assert_eq!(mapa([0x0100_0400_0040, 0, 0], 0), 0x0100_0000_0040);
        assert_eq!(rank_of([0x40, 0, 0], 0), 0);
        assert_eq!(rank_of([0x0100_0400_0040, 0, 0], 0), 4);
        let (base, own) = (0x0100_0000_0000, window_of(2));
        assert_eq!(is_own([base + own + 8, own, base], 0), 1);
        assert_eq!(is_own([mapa([base + 8, 2, 0], 0), own, base], 0), 1);
        assert_eq!(is_own([mapa([base + 8, 1, 0], 0), own, base], 0), 0);
        assert_eq!(is_own([mapa([base + 8, 3, 0], 0), own, base], 0), 0);
        assert_eq!(is_own([base - 1, own, base], 0), 0);
    }
}
