//! The control block of a worker launch: how the daemon and the rewritten kernel talk while it
//! runs.
//!
//! | part | written by | read by |
//! | --- | --- | --- |
//! | *queue* | the device, by atomics; the host before the launch, and to abort | device, host |
//! | *shape* | the host before the launch | device |
//! | *signal* | the host, while the kernel runs | device |
//! | *completed* | the device, by atomics | device, host |
//! | *slots*, one per SM | the device, but [`SLOT_GATE`], which the host writes | device, host |
//! | *counts*, one per SM | the device, by atomics | device |
//!
//! Each part starts on a 128-byte line of its own. All fields are little-endian. The layout is the
//! contract between the engine, which writes and reads blocks, and the `worker` pass, which
//! generates the code that does so; the pass knows it as `partita_ptx::control`, and a test of
//! `partita-gpu` holds the two equal. [`initial`] writes a block and [`Telemetry`] reads one, for
//! everybody who launches workers.
//!
//! The pointer that a grid gets as its extra parameter is the block's address; its lowest five bits
//! are the number of a **helper** grid, or 0 for the launch's **main** grid. A CTA of the main grid
//! that knows that others may still work for the launch stays until `completed` equals `total`, so
//! the operation after the grid in its stream is never early.
//!
//! # Tasks by place
//!
//! The first [`STATIC`] CTAs of a launch need no claim. They go round the SMs, as the hardware
//! places a grid's CTAs: the `k`-th worker that registers on an SM takes the CTA `k` times
//! [`STRIDE`] behind the SM's first, which the SM's gate names. The worker learns of its task and
//! its permission by the one atomic that registers it. A worker that finds its gate shut gives
//! its task back ([`SLOT_RETURNED`]).

use std::ops::RangeInclusive;

use crate::{Dim3, SmId, SmSet};

/// The number of a main grid.
pub const MAIN_GRID: u32 = 0;
/// The numbers of helper grids.
pub const HELPERS: RangeInclusive<u32> = 1..=31;

/// `u64`: the linear index of the next CTA that nobody has claimed, in the bits below
/// [`EXHAUSTED`]. May pass `total`.
pub const NEXT: u64 = 0;
/// At `NEXT`: a worker of a helper grid has come. Until then the main grid's workers have claimed
/// everything that is claimed.
pub const HELPED: u64 = 1 << 63;
/// At `NEXT`: nothing is left to claim, because the launch is aborted.
pub const EXHAUSTED: u64 = 1 << 62;
/// `u32`: CTAs of the main grid that have left while others may still work for the launch.
pub const DEPARTED: u64 = 16;
/// `u32`: CTAs of the main grid that found no task by place. More than `MAIN_CTAS` less `STATIC`
/// where tasks by place are left to others.
pub const IDLE: u64 = 20;
/// `u32`: what a kernel that can be stopped has met with, 0 nothing. The first fault stays; `ABORT`
/// is set behind it.
pub const FAULT: u64 = 24;
/// At `FAULT`: a thread executed `trap`.
pub const FAULT_TRAP: u32 = 1;
/// At `FAULT`: an assertion failed.
pub const FAULT_ASSERT: u32 = 2;
/// At [`FAULT`]: an address was no multiple of its access's size.
pub const FAULT_MISALIGNED: u32 = 3;
/// At [`FAULT`]: an address lay beyond shared, local or constant memory, or the parameters.
pub const FAULT_BEYOND: u32 = 4;
/// At `FAULT`: a barrier does not exist, or waits for threads that are not there.
pub const FAULT_ILLEGAL: u32 = 5;

/// `u64`: the linear index behind the last CTA of the launch.
pub const TOTAL: u64 = 128;
/// `u32`: CTAs of the main grid as launched, to compare `departed` with.
pub const MAIN_CTAS: u64 = 136;
/// `u32`: CTAs that are tasks by place.
pub const STATIC: u64 = 140;
/// `u32`: the original `%nctaid.x`.
pub const GRID_X: u64 = 144;
/// `u32`: the original `%nctaid.y`.
pub const GRID_Y: u64 = 148;
/// `u32`: the original `%nctaid.z`.
pub const GRID_Z: u64 = 152;
/// `u32`: a task has at most the CTAs left to claim ÷ 2^`SHIFT`, and at least one.
pub const SHIFT: u64 = 156;
/// `u64`: the linear index of the launch's first CTA.
pub const FIRST: u64 = 160;
/// `u32`: from one task by place of an SM to the next.
pub const STRIDE: u64 = 168;
/// `u32`: where the counts of workers by SM begin, from the block's address.
pub const COUNTS: u64 = 172;
/// `u32`: CTAs of a cluster of the original along x, for tickets that claim whole clusters.
pub const CLUSTER_X: u64 = 176;
/// `u32`: the same along y.
pub const CLUSTER_Y: u64 = 180;
/// `u32`: the same along z.
pub const CLUSTER_Z: u64 = 184;
/// `u64`: the address of a `u32` in host memory, to which the first fault goes too; 0 for none. The
/// host then need not read the block of each launch that has ended.
pub const FAULT_TO: u64 = 192;

/// `u32`: 1 tells every worker, the parked one too, to leave at the next task border; else 0. The
/// device writes it too, when it sets `FAULT`. `EXHAUSTED` is set with it.
pub const ABORT: u64 = 256;
/// `u32`: bit `n` tells the workers of helper grid `n` to leave at the next task border.
pub const RETIRED: u64 = 260;

/// `u32`: workers of the launch on an SM whose gate says [`Permission::Part`], at most.
pub const QUOTA: u64 = 264;

/// `u64`: the linear index of the first CTA, and the CTAs that are complete. Their effects are
/// visible, but for those of the main grid's workers, which are when that grid ends.
pub const COMPLETED: u64 = 384;

/// The first slot; SM `i` has the slot at `SLOTS + i * SLOT_BYTES`.
pub const SLOTS: u64 = 512;
/// Size of a slot.
pub const SLOT_BYTES: u64 = 16;
/// In a slot, `u32`: workers that have registered on this SM. A worker registers when it starts; on
/// a foreign SM it leaves at once. A worker of another SM that takes a task by place here registers
/// and leaves, too.
pub const SLOT_REGISTERED: u64 = 0;
/// In a slot, `u32`: the SM's [`Gate`].
pub const SLOT_GATE: u64 = 4;
/// In a slot, `u32`: registered workers that have left this SM.
pub const SLOT_LEFT: u64 = 8;
/// In a slot, `u32`: bit `k` marks the `k`-th task by place as given back.
pub const SLOT_RETURNED: u64 = 12;

/// Size of a count.
const COUNT_BYTES: u64 = 4;

/// Tasks by place of one SM, at most.
pub const MOST_BY_PLACE: u16 = 32;
/// CTAs of a task, at most.
pub const LARGEST_TASK: u32 = 255;

/// What a launch may do on an SM.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Permission {
    /// Workers leave.
    #[default]
    Shut,
    /// Workers claim tasks.
    Open,
    /// Workers wait at the task border.
    Stalled,
    /// Workers claim tasks. One that comes while [`QUOTA`] others of the launch are there leaves:
    /// another application has a part of the SM, and the hardware's scheduler does not know how
    /// large.
    Part,
}

/// An SM's gate, as a launch's workers see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Gate {
    /// Whether they may claim.
    pub permission: Permission,
    /// Tasks by place, at most [`MOST_BY_PLACE`]. They stay the same while the launch runs.
    pub by_place: u16,
    /// The first task by place, from the launch's first CTA. Further tasks follow at [`STRIDE`].
    pub first: u16,
    /// CTAs of a task, at most; from 1 to [`LARGEST_TASK`].
    pub task: u32,
}

impl Gate {
    /// The gate's word: permission in bits 0 and 1, tasks by place from bit 2, CTAs of a task from
    /// bit 8, the first task by place from bit 16.
    #[must_use]
    pub fn word(self) -> u32 {
        let permission = match self.permission {
            Permission::Shut => 0,
            Permission::Open => 1,
            Permission::Stalled => 2,
            Permission::Part => 3,
        };
        permission
            | u32::from(self.by_place.min(MOST_BY_PLACE)) << 2
            | self.task.clamp(1, LARGEST_TASK) << 8
            | u32::from(self.first) << 16
    }

    /// The tasks by place in a gate's word.
    #[must_use]
    pub const fn by_place_in(word: u32) -> u32 {
        word >> 2 & 0x3f
    }
}

/// The gates of a launch.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Gates {
    gates: Vec<Gate>,
    /// Workers on an SM at most, where applications share SMs.
    quota: Option<u16>,
}

impl Gates {
    /// Shut gates for `sm_count` SMs, without tasks by place.
    #[must_use]
    pub fn new(sm_count: u16, task: u32) -> Self {
        Gates { gates: vec![Gate { task, ..Gate::default() }; usize::from(sm_count)], quota: None }
    }

    /// Gives all SMs with workers as many tasks by place as each has workers, in full rounds
    /// over the SMs. All tasks by place are at most `most`.
    #[must_use]
    pub fn by_place_for(mut self, workers: &[u16], most: u64) -> Self {
        let used: Vec<usize> = (0..workers.len()).filter(|&sm| workers[sm] > 0).collect();
        let fewest = used.iter().map(|&sm| workers[sm]).min().unwrap_or(0);
        let rounds = most / (used.len() as u64).max(1);
        let rounds = u16::try_from(rounds).unwrap_or(u16::MAX).min(fewest).min(MOST_BY_PLACE);
        for (first, sm) in (0..).zip(used) {
            if let Some(gate) = self.gates.get_mut(sm) {
                (gate.first, gate.by_place) = (first, rounds);
            }
        }
        self
    }

    /// The gates of a launch that has so many workers on an SM at most, or as many as fit. It holds
    /// from the next [`Gates::permit`] on. Whether that is a change.
    pub fn set_quota(&mut self, quota: Option<u16>) -> bool {
        std::mem::replace(&mut self.quota, quota) != quota
    }

    /// The word at [`QUOTA`].
    #[must_use]
    pub fn quota_word(&self) -> u32 {
        self.quota.map_or(0, u32::from)
    }

    /// Opens the gates of some SMs, stalls others, and shuts the rest. The SMs whose gates are
    /// others now.
    pub fn permit(&mut self, allowed: &SmSet, stalled: &SmSet) -> Vec<SmId> {
        let open = if self.quota.is_some() { Permission::Part } else { Permission::Open };
        self.change(|sm, gate| {
            gate.permission = match (allowed.contains(sm), stalled.contains(sm)) {
                (false, _) => Permission::Shut,
                (true, true) => Permission::Stalled,
                (true, false) => open,
            };
        })
    }

    /// Sets the largest task. The SMs whose gates are others now.
    pub fn set_task(&mut self, task: u32) -> Vec<SmId> {
        self.change(|_, gate| gate.task = task)
    }

    /// The word of an SM's gate.
    #[must_use]
    pub fn word(&self, sm: SmId) -> u32 {
        self.gates.get(usize::from(sm.0)).map_or(0, |gate| gate.word())
    }

    /// CTAs that are tasks by place.
    #[must_use]
    pub fn by_place(&self) -> u32 {
        self.gates.iter().map(|gate| u32::from(gate.by_place)).sum()
    }

    /// SMs with tasks by place: the distance from one task of an SM to the next.
    fn stride(&self) -> u32 {
        self.gates.iter().map(|gate| u32::from(gate.by_place > 0)).sum()
    }

    fn change(&mut self, mut change: impl FnMut(SmId, &mut Gate)) -> Vec<SmId> {
        let mut changed = Vec::new();
        for (sm, gate) in (0..).map(SmId).zip(&mut self.gates) {
            let before = *gate;
            change(sm, gate);
            if *gate != before {
                changed.push(sm);
            }
        }
        changed
    }
}

/// Where the gate of an SM lies in a block.
#[must_use]
pub fn gate_at(sm: SmId) -> u64 {
    SLOTS + u64::from(sm.0) * SLOT_BYTES + SLOT_GATE
}

/// A launch, as its control block tells it.
#[derive(Clone, Copy, Debug)]
pub struct Shape<'a> {
    /// The original grid.
    pub grid: Dim3,
    /// CTAs of one of its clusters.
    pub cluster: Dim3,
    /// The linear index of the first CTA.
    pub first: u64,
    /// The linear index behind the last.
    pub end: u64,
    /// CTAs of the main grid.
    pub main_ctas: u32,
    /// The gates, one an SM of the device.
    pub gates: &'a Gates,
}

/// Writes the initial content of a block, which has [`block_bytes`] bytes.
///
/// # Panics
/// Where `block` is shorter.
pub fn initial(shape: &Shape<'_>, block: &mut [u8]) {
    block.fill(0);
    let mut put = |offset: u64, bytes: &[u8]| {
        let offset = usize::try_from(offset).expect("offsets are small");
        block[offset..offset + bytes.len()].copy_from_slice(bytes);
    };
    let by_place = shape.gates.by_place();
    put(NEXT, &(shape.first + u64::from(by_place)).to_le_bytes());
    put(TOTAL, &shape.end.to_le_bytes());
    put(MAIN_CTAS, &shape.main_ctas.to_le_bytes());
    put(STATIC, &by_place.to_le_bytes());
    put(GRID_X, &shape.grid.x.to_le_bytes());
    put(GRID_Y, &shape.grid.y.to_le_bytes());
    put(GRID_Z, &shape.grid.z.to_le_bytes());
    let shift = shape.main_ctas.max(1).next_power_of_two().ilog2() + 1;
    put(SHIFT, &shift.to_le_bytes());
    put(FIRST, &shape.first.to_le_bytes());
    put(STRIDE, &shape.gates.stride().to_le_bytes());
    let counts = SLOTS + shape.gates.gates.len() as u64 * SLOT_BYTES;
    put(COUNTS, &u32::try_from(counts).expect("a block is a few kilobytes").to_le_bytes());
    for (at, extent) in
        [(CLUSTER_X, shape.cluster.x), (CLUSTER_Y, shape.cluster.y), (CLUSTER_Z, shape.cluster.z)]
    {
        put(at, &extent.to_le_bytes());
    }
    put(COMPLETED, &shape.first.to_le_bytes());
    put(QUOTA, &shape.gates.quota_word().to_le_bytes());
    for (sm, gate) in (0..).map(SmId).zip(&shape.gates.gates) {
        put(gate_at(sm), &gate.word().to_le_bytes());
    }
}

/// What a block says of a running launch.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Telemetry {
    /// The first CTA and the CTAs that workers have taken; at most the end.
    pub next: u64,
    /// The first CTA and the CTAs completed.
    pub completed: u64,
    /// Workers of the main grid that have left.
    pub departed: u32,
    /// The fault that a CTA has met ([`FAULT`]), 0 for none.
    pub fault: u32,
    /// Workers that have ever registered, per SM.
    pub registered: Vec<u32>,
    /// Live workers per SM.
    pub live: Vec<u16>,
}

impl Telemetry {
    /// Reads a block of a device with `sm_count` SMs.
    ///
    /// # Panics
    /// Where `block` is shorter than [`block_bytes`].
    #[must_use]
    pub fn of(block: &[u8], sm_count: u16) -> Self {
        let u32_at = |offset: u64| {
            let offset = usize::try_from(offset).expect("offsets are small");
            u32::from_le_bytes(block[offset..offset + 4].try_into().expect("four bytes"))
        };
        let u64_at = |offset: u64| u64::from(u32_at(offset)) | u64::from(u32_at(offset + 4)) << 32;
        let (mut registered, mut untaken) = (Vec::with_capacity(sm_count.into()), 0);
        let slot = |sm: u64| {
            let slot = SLOTS + sm * SLOT_BYTES;
            let came = u32_at(slot + SLOT_REGISTERED);
            let by_place = Gate::by_place_in(u32_at(slot + SLOT_GATE));
            let returned = u32_at(slot + SLOT_RETURNED).count_ones();
            registered.push(came);
            untaken += u64::from(by_place.saturating_sub(came) + returned);
            // Both counters only grow; one that was read a moment later must not make a negative
            // number.
            u16::try_from(came.saturating_sub(u32_at(slot + SLOT_LEFT))).unwrap_or(u16::MAX)
        };
        let live = (0..u64::from(sm_count)).map(slot).collect();
        let claimed = (u64_at(NEXT) & !HELPED).min(u64_at(TOTAL));
        // A launch that is aborted has no tasks left, whoever has given some back.
        let untaken = if u32_at(ABORT) == 0 { untaken } else { 0 };
        Telemetry {
            next: claimed.saturating_sub(untaken),
            completed: u64_at(COMPLETED),
            departed: u32_at(DEPARTED),
            fault: u32_at(FAULT),
            registered,
            live,
        }
    }

    /// Live workers on all SMs.
    #[must_use]
    pub fn live_total(&self) -> u64 {
        self.live.iter().map(|&count| u64::from(count)).sum()
    }

    /// Live workers on one SM.
    #[must_use]
    pub fn live_at(&self, sm: SmId) -> u16 {
        self.live.get(usize::from(sm.0)).copied().unwrap_or(0)
    }

    /// Live workers on some SMs.
    #[must_use]
    pub fn live_on(&self, sms: &SmSet) -> u64 {
        sms.iter().map(|sm| u64::from(self.live_at(sm))).sum()
    }

    /// Workers that have ever registered, on all SMs.
    #[must_use]
    pub fn registered_total(&self) -> u64 {
        self.registered.iter().map(|&count| u64::from(count)).sum()
    }

    /// Whether any CTA is known to have started.
    #[must_use]
    pub fn has_started(&self) -> bool {
        self.departed > 0 || self.registered.iter().any(|&count| count > 0)
    }
}

/// Size of a control block for a device of `sm_count` SMs, a multiple of 128.
#[must_use]
pub const fn block_bytes(sm_count: u16) -> u64 {
    (SLOTS + sm_count as u64 * (SLOT_BYTES + COUNT_BYTES)).next_multiple_of(128)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_by_place_come_in_full_rounds() {
        let places = |workers: &[u16], most| -> Vec<(u16, u16)> {
            let gates = Gates::new(4, 9).by_place_for(workers, most);
            gates.gates.iter().map(|gate| (gate.first, gate.by_place)).collect()
        };
        assert_eq!(places(&[2, 0, 40, 3], 37), [(0, 2), (0, 0), (1, 2), (2, 2)]);
        assert_eq!(places(&[40, 0, 40, 40], 98), [(0, 32), (0, 0), (1, 32), (2, 32)]);
        assert_eq!(places(&[2, 0, 40, 3], 5), [(0, 1), (0, 0), (1, 1), (2, 1)]);
        assert_eq!(places(&[2, 0, 40, 3], 2), [(0, 0), (0, 0), (1, 0), (2, 0)]);
    }

    #[test]
    fn gates_change_by_permission() {
        let mut gates = Gates::new(3, 9).by_place_for(&[2, 2, 2], 6);
        let changed = gates.permit(&SmSet::range(0, 2), &SmSet::range(1, 2));
        assert_eq!(changed, [SmId(0), SmId(1)]);
        assert_eq!(gates.word(SmId(0)), 1 | 2 << 2 | 9 << 8);
        assert_eq!(gates.word(SmId(1)), 2 | 2 << 2 | 9 << 8 | 1 << 16);
        assert_eq!(gates.word(SmId(2)) & 3, 0);
        assert_eq!(gates.by_place(), 6);
        assert!(gates.set_quota(Some(3)) && !gates.set_quota(Some(3)));
        assert_eq!(gates.permit(&SmSet::range(0, 2), &SmSet::range(1, 2)), [SmId(0)]);
        assert_eq!((gates.word(SmId(0)) & 3, gates.quota_word()), (3, 3));
        assert!(gates.set_quota(None));
        gates.permit(&SmSet::range(0, 2), &SmSet::EMPTY);
        assert_eq!((gates.word(SmId(0)) & 3, gates.quota_word()), (1, 0));
    }

    #[test]
    fn telemetry_counts_tasks_that_nobody_has() {
        let gates = Gates::new(2, 1).by_place_for(&[2, 2], 100);
        let mut block = vec![0; usize::try_from(block_bytes(2)).unwrap()];
        let grid = Dim3::new(100, 1, 1);
        let cluster = Dim3::linear(1);
        let shape = Shape { grid, cluster, first: 0, end: 100, main_ctas: 4, gates: &gates };
        initial(&shape, &mut block);
        assert_eq!(Telemetry::of(&block, 2).next, 0);
        let put = |block: &mut [u8], at: u64, value: u32| {
            let at = usize::try_from(at).unwrap();
            block[at..at + 4].copy_from_slice(&value.to_le_bytes());
        };
        // Three have come to the first SM, and one of them has given its task back.
        put(&mut block, SLOTS + SLOT_REGISTERED, 3);
        put(&mut block, SLOTS + SLOT_RETURNED, 1);
        let seen = Telemetry::of(&block, 2);
        assert_eq!((seen.next, seen.live.as_slice()), (1, &[3, 0][..]));
    }
}
