//! A grid on the device: its launch, its progress, its outcome.

use super::ahead::Lookahead;
use crate::exec::cluster::Cluster;
use crate::exec::cta::{Cta, Room};
use crate::exec::program::{LaunchShape, Program};
use crate::exec::rows::lanes;
use crate::exec::step::Trouble;
use crate::exec::system::FailedAssertion;
use crate::memory::Grants;
use crate::spec::Spec;
use crate::timing::memory::MemoryCounts;
use partita_device::{Assertion, Fault, FaultKind, ThreadPosition};
use partita_model::occupancy::warp_registers;
use partita_model::{DeviceAddress, Dim3, GridCounters, OperationId, SmSet, WindowId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A CTA's share of an SM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Footprint {
    /// Threads, in whole warps.
    pub threads: u32,
    /// 32-bit registers ([`partita_model::occupancy`]).
    pub registers: u32,
    /// Bytes of shared memory; the GPU's reserve for each CTA is among them.
    pub shared: u64,
}

impl Footprint {
    /// Of a CTA of `threads` threads. Registers per thread are the estimate of
    /// [`crate::exec::decode`], which stands in for ptxas, and no more than the SM can give one
    /// CTA.
    #[must_use]
    pub fn of(program: &Program, threads: u32, dynamic_shared: u32, spec: &Spec) -> Self {
        let warps = threads.div_ceil(32);
        let per_thread = program.registers_per_thread;
        let per_warp = warp_registers(spec.registers_per_sm, spec.register_parts, per_thread);
        let shared = u64::from(program.static_shared)
            + u64::from(dynamic_shared)
            + spec.shared_reserved_bytes;
        Footprint {
            threads: warps * 32,
            // ptxas spills registers so that the kernel can be launched.
            registers: (warps * per_warp).min(spec.registers_per_sm),
            shared: shared.next_multiple_of(spec.shared_granularity_bytes),
        }
    }
}

impl Footprint {
    /// How many CTAs of this size an SM holds.
    #[must_use]
    pub fn per_sm(&self, spec: &Spec) -> u32 {
        let by_shared = match self.shared {
            0 => u64::from(spec.ctas_per_sm),
            bytes => spec.shared_per_sm_bytes / bytes,
        };
        let by_shared = u32::try_from(by_shared).unwrap_or(spec.ctas_per_sm);
        spec.ctas_per_sm
            .min(spec.threads_per_sm / self.threads.max(1))
            .min(spec.registers_per_sm / self.registers.max(1))
            .min(by_shared)
    }
}

/// How long a grid has occupied SMs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stays {
    /// Picoseconds that SMs had at least one of its CTAs.
    pub sm_ps: u64,
    /// Picoseconds of its warps' residence.
    pub warp_ps: u64,
}

/// A grid in flight.
pub struct Grid {
    /// Its operation.
    pub operation: OperationId,
    /// The kernel.
    pub program: Arc<Program>,
    /// Its extent.
    pub grid: Dim3,
    /// Extent of a CTA.
    pub block: Dim3,
    /// Extent of a cluster in CTAs.
    pub cluster: Dim3,
    /// Its clusters with resident CTAs, where it has clusters.
    pub clusters: BTreeMap<u64, Cluster>,
    /// Shared memory of clusters that have left, for the next.
    pub spare_shared: Vec<Vec<u8>>,
    /// Dynamic shared memory.
    pub dynamic_shared: u32,
    /// Parameters.
    pub params: Arc<[u8]>,
    /// The memory that it may access.
    pub grants: Grants,
    /// What each CTA takes.
    pub footprint: Footprint,
    /// CTAs in all.
    pub total: u64,
    /// The next CTA to be placed.
    pub next: u64,
    /// CTAs that are resident.
    pub resident: u64,
    /// When its first CTA may start.
    pub start: u64,
    /// When the last CTA so far has left.
    pub end: u64,
    /// Its counters.
    pub counters: GridCounters,
    /// The counts of the memory system.
    pub memory_counts: MemoryCounts,
    /// The stays of CTAs that have left.
    pub stays: Stays,
    /// The SMs that its CTAs may go to.
    pub sms: SmSet,
    /// The priority of its stream: CTAs of lower numbers are placed first.
    pub priority: i32,
    /// The window in which it allocates.
    pub window: WindowId,
    /// Its output.
    pub output: Vec<u8>,
    /// The assertion that failed last.
    pub assertion: Option<FailedAssertion>,
    /// CTAs that have left, to be used again.
    pub spare: Vec<Cta>,
    /// Their rooms.
    pub rooms: Vec<Room>,
    /// A number for `%gridid`.
    pub id: u64,
    /// Its CTAs that have run ahead of their turn.
    pub lookahead: Lookahead,
}

impl Grid {
    /// Threads of a CTA.
    #[must_use]
    pub fn threads(&self) -> u32 {
        self.block.count() as u32
    }

    /// A CTA, started. It has no room yet.
    pub fn take_cta(&mut self, warps_per_team: usize) -> Cta {
        let number = self.next;
        let (linear, rank) = self.in_order(number);
        self.next += 1;
        self.resident += 1;
        let mut cta = self.spare.pop().unwrap_or_else(|| Cta::new(self.threads(), warps_per_team));
        cta.start(linear, self.grid, self.threads());
        (cta.cluster, cta.rank) = (number / u64::from(self.cluster_ctas()), rank);
        self.join_cluster(&cta);
        cta.tape = self.lookahead.take();
        cta
    }

    /// The same launch, of which nothing has begun, for a thread that runs CTAs ahead.
    #[must_use]
    pub fn twin(&self) -> Grid {
        Grid {
            operation: self.operation,
            program: self.program.clone(),
            grid: self.grid,
            block: self.block,
            cluster: self.cluster,
            clusters: BTreeMap::new(),
            spare_shared: Vec::new(),
            dynamic_shared: self.dynamic_shared,
            params: self.params.clone(),
            grants: self.grants.clone(),
            footprint: self.footprint,
            // Buffers are kept as long as CTAs are left.
            total: u64::MAX,
            next: 0,
            resident: 0,
            start: 0,
            end: 0,
            counters: GridCounters::default(),
            memory_counts: MemoryCounts::default(),
            stays: Stays::default(),
            sms: self.sms,
            priority: 0,
            window: self.window,
            output: Vec::new(),
            assertion: None,
            spare: Vec::new(),
            rooms: Vec::new(),
            id: self.id,
            lookahead: Lookahead::Off,
        }
    }

    /// A room for a CTA.
    pub fn take_room(&mut self, warps_per_team: usize, sm_count: u32) -> Room {
        let clusters = self.has_clusters();
        self.rooms.pop().unwrap_or_else(|| {
            let shape = LaunchShape {
                params: &self.params,
                block: self.block,
                grid: self.grid,
                cluster: self.cluster,
                sm_count,
                grid_id: self.id,
                dynamic_shared: self.dynamic_shared,
                static_shared: self.program.static_shared,
            };
            let mut room = Room::new(&self.program, &shape, warps_per_team);
            if clusters {
                // The cluster has the CTA's shared memory.
                room.shared = Vec::new();
            }
            room
        })
    }

    /// Keeps the buffers of a CTA that has left, for the next CTA.
    pub fn keep(&mut self, mut cta: Cta) {
        if self.next == self.total && self.resident == 0 {
            return;
        }
        self.rooms.extend(cta.room.take());
        self.spare.push(cta);
    }

    fn thread(&self, warp: usize, lane: usize) -> Dim3 {
        let linear = (warp * 32 + lane) as u32;
        let block = self.block;
        Dim3::new(linear % block.x, linear / block.x % block.y, linear / block.x / block.y)
    }

    fn assertion(&self, trouble: &Trouble) -> Option<Assertion> {
        let failed = self.assertion.as_ref().filter(|_| trouble.kind == FaultKind::Assert)?;
        let threads = lanes(failed.lanes).map(|lane| self.thread(trouble.warp, lane)).collect();
        let FailedAssertion { file, line, function, expression, .. } = failed.clone();
        Some(Assertion { file, line, function, expression, threads })
    }

    /// The fault of a thread.
    #[must_use]
    pub fn fault(&self, cta: &Cta, trouble: &Trouble) -> Fault {
        let thread = self.thread(trouble.warp, trouble.lane);
        let room = cta.room.as_ref();
        let registers = room.into_iter().flat_map(|room| {
            self.program.registers.iter().map(|register| {
                let value = if register.wide {
                    room.registers.own64(register.row, trouble.warp).lane(trouble.lane)
                } else {
                    u64::from(room.registers.own32(register.row, trouble.warp).lane(trouble.lane))
                };
                (register.name.clone(), value)
            })
        });
        let in_cluster = self.clusters.get(&cta.cluster).map(|c| c.shared(cta.rank as usize));
        let memory = in_cluster.or_else(|| room.map(|room| room.shared.as_slice()));
        let shared = memory.into_iter().flat_map(|memory| {
            self.program.shared_variables.iter().flat_map(|variable| variable.words(memory))
        });
        Fault {
            kind: trouble.kind,
            kernel: self.program.name.clone(),
            position: Some(ThreadPosition { cta: cta.index, thread }),
            line: self.program.lines.get(trouble.pc).copied(),
            address: trouble.address.map(DeviceAddress),
            detail: trouble.detail.clone(),
            assertion: self.assertion(trouble),
            values: registers.chain(shared).collect(),
        }
    }

    /// The fault of a CTA whose threads all wait for something that cannot come.
    #[must_use]
    pub fn stuck(&self, cta: &Cta, pc: usize, warp: usize, lane: usize, what: &str) -> Fault {
        let trouble = Trouble {
            kind: FaultKind::LaunchFailed,
            warp,
            lane,
            pc,
            address: None,
            detail: what.to_owned(),
        };
        self.fault(cta, &trouble)
    }
}
