//! What surrounds an SM in its turn, and what it reports.

use super::tape::Tape;
use crate::exec::scratch::Scratch;
use crate::gpu::ahead::Helpers;
use crate::gpu::grid::Grid;
use crate::gpu::host_shares::Pace;
use crate::memory::Memory;
use crate::memory::weak::Weak;
use crate::spec::Spec;
use crate::timing::memory::SharedMemorySystem;
use partita_device::Fault;
use partita_model::OperationId;
use std::collections::BTreeMap;
use std::time::Duration;

/// What all SMs work with.
pub struct Surroundings<'a> {
    /// The modelled GPU.
    pub spec: &'a Spec,
    /// Whether time is kept.
    pub timed: bool,
    /// Global memory.
    pub memory: &'a mut Memory,
    /// Weak memory, where it is on.
    pub weak: &'a mut Option<Weak>,
    /// The memory system's time.
    pub system: &'a mut SharedMemorySystem,
    /// Grids in flight.
    pub grids: &'a mut BTreeMap<OperationId, Grid>,
    /// Grids with CTAs left to place, in order of priority and then of arrival.
    pub order: &'a [OperationId],
    /// The next sequence number.
    pub sequence: &'a mut u64,
    /// What happened.
    pub news: &'a mut Vec<News>,
    /// Whether the coming and going of CTAs is wanted among it.
    pub residency: bool,
    /// Warp instructions executed.
    pub executed: &'a mut u64,
    /// How the SM runs, where windows have shares of the host's time.
    pub pace: Option<Pace>,
    /// The host's threads that run CTAs ahead of their turn.
    pub helpers: Option<&'a mut Helpers>,
    /// What a CTA has that runs ahead.
    pub ahead: Option<AheadOf<'a>>,
}

impl Surroundings<'_> {
    /// For how long CTAs have run ahead, as far as nobody has paid for it.
    pub fn owed(&self) -> Duration {
        self.helpers.as_ref().map_or(Duration::ZERO, |helpers| helpers.owed())
    }
}

/// What a CTA has that runs ahead of its turn.
pub struct AheadOf<'a> {
    /// Global memory, which it only reads.
    pub memory: &'a Memory,
    /// What it stores.
    pub scratch: &'a mut Scratch,
    /// What it does.
    pub tape: &'a mut Tape,
}

/// A report of an SM.
#[derive(Debug)]
pub enum News {
    /// A CTA started.
    Started { time: u64, sm: u32, grid: OperationId, cta: u64 },
    /// A CTA left.
    Left { time: u64, sm: u32, grid: OperationId, cta: u64 },
    /// A grid faulted.
    Faulted { time: u64, grid: OperationId, fault: Box<Fault> },
}
