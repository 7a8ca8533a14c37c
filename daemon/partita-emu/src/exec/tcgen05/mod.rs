//! The fifth generation of tensor cores (PTX ISA, "TensorCore 5th Generation Family Instructions"):
//! tensor memory, products of matrices in shared and tensor memory, and their copies.
//!
//! A product or a copy is there at once, so `wait::ld`, `wait::st` and the fences order nothing.
//! With timing the SM's tensor cores are busy for the time of a product, and the arrival that
//! `commit` asks for comes when they have done everything before ([`settle`]). What lies in
//! [`memory`] belongs to a CTA; which columns of an SM are taken, to the SM ([`columns`]).

pub mod columns;
pub mod copies;
pub mod descriptor;
pub mod memory;
pub mod product;
pub mod scale;

use super::cluster::{Later, mapa, rank_of, window_of};
use super::inst::{Inst, Source, Space, Target};
use super::mbarrier;
use super::program::Program;
use super::rows::lanes;
use super::state::Core;
use super::step::{Env, Trouble};
use columns::Claims;
use copies::{CopyOp, MoveOp};
use memory::TensorMemory;
use partita_device::FaultKind;
use product::ProductOp;

/// A place in the program: warp, lane, instruction.
type Site = (usize, usize, usize);
type Outcome<T = ()> = Result<T, Box<Trouble>>;

/// Side table of [`super::inst::Op::Tensor`].
#[derive(Clone, Debug)]
pub enum TensorOp {
    /// `alloc`
    Alloc {
        /// Where the address of the columns goes.
        to: Source,
        /// Shared or generic.
        space: Space,
        /// How many columns.
        columns: Source,
        /// Whether both CTAs of a pair allocate.
        pair: bool,
    },
    /// `dealloc`
    Dealloc {
        /// The address of the columns.
        address: Source,
        /// How many columns.
        columns: Source,
    },
    /// `relinquish_alloc_permit`
    Relinquish,
    /// `ld` or `st`
    Move(Box<MoveOp>),
    /// `cp`
    Copy(CopyOp),
    /// `shift.down`
    Shift {
        /// The first row.
        address: Source,
        /// Whether both CTAs of a pair shift.
        pair: bool,
    },
    /// `mma`
    Product(Box<ProductOp>),
    /// `commit`
    Commit {
        /// The mbarrier.
        mbarrier: Source,
        /// Shared or generic.
        space: Space,
        /// The CTAs of the cluster whose mbarriers get the arrival, one bit a rank;
        /// [`Source::None`] for the CTA that the address names.
        ctas: Source,
    },
}

impl TensorOp {
    /// Tells the sources (`false`) and targets (`true`), for the timing model.
    pub fn rows(&self, mut tell: impl FnMut(Source, bool), of: impl Fn(Target) -> Source) {
        let mut read = |sources: &[Source]| sources.iter().for_each(|&row| tell(row, false));
        match self {
            TensorOp::Alloc { to, columns, .. } => read(&[*to, *columns]),
            TensorOp::Dealloc { address, columns } => read(&[*address, *columns]),
            TensorOp::Relinquish => {}
            TensorOp::Shift { address, .. } => read(&[*address]),
            TensorOp::Copy(op) => read(&[op.address, op.from]),
            TensorOp::Commit { mbarrier, ctas, .. } => read(&[*mbarrier, *ctas]),
            TensorOp::Product(op) => read(&op.sources()),
            TensorOp::Move(op) => {
                read(&[op.address]);
                read(&op.sources);
                op.targets.iter().for_each(|&target| tell(of(target), true));
            }
        }
    }
}

/// The tensor memory of a running CTA, and its SM's columns and tensor cores.
#[derive(Debug)]
pub struct Tensor<'a> {
    /// The CTA's part.
    pub memory: &'a mut TensorMemory,
    /// The columns that CTAs of the SM have.
    pub claims: &'a mut Claims,
    /// When the SM's tensor cores have made all products so far, in picoseconds.
    pub busy_until: &'a mut u64,
}

/// What an instruction found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// It is done.
    Done,
    /// It must be tried again in this many nanoseconds.
    Again(u32),
}

/// Nanoseconds after which a CTA looks again whether columns are free.
const LOOK_AGAIN: u32 = 100;

/// Cycles of products under way, beyond which a thread waits with its next product.
const MOST_BUSY: u64 = 4096;

/// Picoseconds in nanoseconds, rounded up.
fn nanos(picoseconds: u64) -> u32 {
    u32::try_from(picoseconds.div_ceil(1000)).unwrap_or(u32::MAX)
}

/// Carries out the arrivals whose time has come.
///
/// # Errors
/// A fault of the thread that asked for one.
pub fn settle(env: &mut Env<'_>) -> Outcome {
    let now = env.now;
    while let Some(later) = env.cluster.as_mut().and_then(|peers| peers.cluster.take_due(now)) {
        // The CTA may have gone, and its shared memory with it.
        let rank = rank_of([later.address, 0, 0], 0) as usize;
        if env.cluster.as_ref().is_some_and(|peers| peers.cluster.has(rank)) {
            mbarrier::arrive(env, later.site, later.address)?;
        }
    }
    Ok(())
}

/// Executes the instruction for every warp.
#[inline(never)]
pub fn execute(core: &mut Core<'_>, i: &Inst, env: &mut Env<'_>, pc: usize) -> Outcome<Step> {
    let program: &Program = env.program;
    let Some(op) = program.tensor_ops.get(i.imm as usize) else { return Ok(Step::Done) };
    // All warps execute, or all try again: what one has done would be done twice.
    let Some(first) = (0..core.warps).find(|&w| core.mask(i, w) != 0) else {
        return Ok(Step::Done);
    };
    let lane = (core.mask(i, first).trailing_zeros() & 31) as usize;
    let site = (first + core.first_warp, lane, pc);
    if let Some(again) = put_off(core, i, op, env, site)? {
        return Ok(again);
    }
    if let TensorOp::Alloc { to, space, columns, pair } = op {
        let request = |w: usize| {
            let lane = (core.mask(i, w) != 0).then(|| core.mask(i, w).trailing_zeros() as usize)?;
            Some(columns::Request {
                site: (w + core.first_warp, lane, pc),
                to: space.generic(core.get(*to, w, lane)),
                columns: core.get(*columns, w, lane),
            })
        };
        let requests: Vec<_> = (0..core.warps).filter_map(request).collect();
        let done = columns::alloc(env, &requests, *pair)?;
        return Ok(if done { Step::Done } else { Step::Again(LOOK_AGAIN) });
    }
    for w in 0..core.warps {
        let mask = core.mask(i, w);
        if mask == 0 {
            continue;
        }
        let first = (mask.trailing_zeros() & 31) as usize;
        let site = (w + core.first_warp, first, pc);
        match op {
            // All warps have had theirs above.
            TensorOp::Alloc { .. } => {}
            TensorOp::Dealloc { address, columns } => {
                let [address, columns] = [*address, *columns].map(|row| core.get(row, w, first));
                columns::dealloc(env, site, address, columns)?;
            }
            TensorOp::Relinquish => of_cta(env, site)?.memory.may_allocate = false,
            TensorOp::Move(op) => copies::transfer(core, op, env, (w, mask, pc))?,
            TensorOp::Copy(op) => {
                for lane in lanes(mask) {
                    let site = (site.0, lane, pc);
                    let [to, from] = [op.address, op.from].map(|row| core.get(row, w, lane));
                    copies::copy(op, env, site, (to, from))?;
                }
            }
            TensorOp::Shift { address, pair } => {
                for lane in lanes(mask) {
                    let address = core.get(*address, w, lane);
                    copies::shift(env, (site.0, lane, pc), address, *pair)?;
                }
            }
            TensorOp::Product(op) => {
                for lane in lanes(mask) {
                    product::execute(core, op, env, (w, lane, pc))?;
                }
            }
            TensorOp::Commit { mbarrier, space, ctas } => {
                let until = *of_cta(env, site)?.busy_until;
                let is_later = env.trace.wanted && until > env.now;
                for lane in lanes(mask) {
                    let site = (site.0, lane, pc);
                    let address = space.generic(core.get(*mbarrier, w, lane));
                    for rank in super::bulk::ranks(core, *ctas, w, lane) {
                        let at = rank.map_or(address, |rank| mapa([address, rank, 0], 0));
                        match &mut env.cluster {
                            Some(peers) if is_later => {
                                let later = Later { time: until, site, address: at };
                                peers.cluster.arrive_later(later);
                            }
                            _ => mbarrier::arrive(env, site, at)?,
                        }
                    }
                }
            }
        }
    }
    Ok(Step::Done)
}

/// Whether the instruction must wait: for room among products under way, for their end, or for room
/// among arrivals under way.
fn put_off(
    core: &Core<'_>,
    i: &Inst,
    op: &TensorOp,
    env: &mut Env<'_>,
    site: Site,
) -> Outcome<Option<Step>> {
    if !env.trace.wanted || !matches!(op, TensorOp::Product(_) | TensorOp::Commit { .. }) {
        return Ok(None);
    }
    let until = *of_cta(env, site)?.busy_until;
    let from = match op {
        TensorOp::Product(_) => env.now + MOST_BUSY * env.cycle,
        _ => env.now,
    };
    let wait = (until > from).then(|| Step::Again(nanos(until - from)));
    let TensorOp::Commit { ctas, .. } = op else { return Ok(wait) };
    let Some(peers) = &env.cluster else { return Ok(wait) };
    let of_warp = |w: usize| {
        let of_lane = |lane| super::bulk::ranks(core, *ctas, w, lane).count();
        lanes(core.mask(i, w)).map(of_lane).sum::<usize>()
    };
    let arrivals = (0..core.warps).map(of_warp).sum();
    Ok(wait.filter(|_| !peers.cluster.has_room(arrivals)))
}

/// The tensor memory of the running CTA.
fn of_cta<'e, 'a>(env: &'e mut Env<'a>, site: Site) -> Outcome<&'e mut Tensor<'a>> {
    match &mut env.tensor {
        Some(tensor) => Ok(tensor),
        None => Err(trouble(FaultKind::IllegalInstruction, site, None, "no tensor memory".into())),
    }
}

/// The tensor memory of the running CTA, or of the CTA of a rank of its cluster.
fn memory_of<'e>(
    env: &'e mut Env<'_>,
    site: Site,
    rank: Option<usize>,
) -> Outcome<&'e mut TensorMemory> {
    let own = env.cluster.as_ref().map(|peers| peers.rank);
    if let (Some(rank), true) = (rank, rank != own) {
        let found = env.cluster.as_mut().and_then(|peers| peers.cluster.tensor_mut(rank));
        return found.ok_or_else(|| {
            let detail = format!("tensor memory of CTA {rank} of the cluster, which is not there");
            trouble(FaultKind::IllegalAddress, site, None, detail)
        });
    }
    of_cta(env, site).map(|tensor| &mut *tensor.memory)
}

/// The ranks of the CTAs of the running CTA's pair, the even one first (PTX ISA, "tcgen05: CTA
/// Pair"); once `None` where an instruction concerns the CTA alone.
fn ranks_of(env: &Env<'_>, site: Site, pair: bool) -> Outcome<Vec<Option<usize>>> {
    if !pair {
        return Ok(vec![None]);
    }
    let peers = env.cluster.as_ref().filter(|peers| peers.cluster.has(peers.rank ^ 1));
    let Some(peers) = peers else {
        let detail = "`.cta_group::2` by a CTA that has no pair in its cluster".to_owned();
        return Err(trouble(FaultKind::IllegalInstruction, site, None, detail));
    };
    Ok(vec![Some(peers.rank & !1), Some(peers.rank | 1)])
}

/// Where the shared memory of a CTA of the cluster begins; `None` is the CTA itself.
fn window(env: &Env<'_>, rank: Option<usize>) -> u64 {
    rank.map_or(env.own_window, window_of)
}

fn trouble(
    kind: FaultKind,
    (warp, lane, pc): Site,
    address: Option<u64>,
    detail: String,
) -> Box<Trouble> {
    Box::new(Trouble { kind, warp, lane, pc, address, detail })
}
