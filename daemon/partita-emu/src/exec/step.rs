//! The interpreter's loop: one instruction at a time over all active threads of a team.
//!
//! [`run`] executes one fragment of a team until it ends, waits, spends its budget, or reaches a
//! place where the caller wants it back. `dispatch` compiles the loop for the host's vector units.

use super::access::{self, weak::WeakAccess};
use super::asynchronous;
use super::atomics;
use super::call;
use super::cluster::Peers;
use super::inst::{Inst, NOWHERE, Op, Source, Target, WarpKind};
use super::launch_control::Unbegun;
use super::program::Program;
use super::registers::{Registers, Width};
use super::rows::{LANES, lanes};
use super::scratch::Ahead;
use super::special;
use super::state::{Core, Hot};
use super::system::{self, FailedAssertion};
use super::tcgen05::{self, Tensor};
use super::team::{Fragment, MAX_WARPS, Masks, State, Team, is_empty};
use super::tensor;
use super::texture;
use super::trace::Trace;
use super::warp;
use crate::dispatch::vector::Vector;
use crate::memory::{Grants, Memory};
use partita_device::FaultKind;
use partita_model::WindowId;

/// What went wrong, and where in the warp.
#[derive(Clone, Debug, PartialEq)]
pub struct Trouble {
    /// The kind.
    pub kind: FaultKind,
    /// The warp in the CTA.
    pub warp: usize,
    /// The lane.
    pub lane: usize,
    /// The instruction.
    pub pc: usize,
    /// The address, where there is one.
    pub address: Option<u64>,
    /// More in words.
    pub detail: String,
}

/// Why a run came back.
#[derive(Clone, Debug, PartialEq)]
pub enum Stop {
    /// The fragment has ended: its threads exited or wait at a join.
    Gone,
    /// The budget is spent, or another fragment should have its turn.
    Turn,
    /// The fragment stands before the instruction at which the caller wants it back.
    End,
    /// The fragment stands at a barrier.
    Barrier,
    /// The fragment waits at the barrier of its cluster.
    Cluster,
    /// The fragment waits at a warp instruction for other threads of the warp.
    Warp,
    /// The fragment sleeps for this many nanoseconds.
    Sleep(u32),
    /// A thread faulted.
    Fault(Box<Trouble>),
}

/// What surrounds a run.
pub struct Env<'a> {
    /// The kernel.
    pub program: &'a Program,
    /// Global memory.
    pub memory: &'a mut Memory,
    /// Global memory, and the stores, of a CTA that runs ahead; `memory` is empty then.
    pub ahead: Option<Ahead<'a>>,
    /// The part of it that the launch may access.
    pub grants: &'a mut Grants,
    /// The CTA's shared memory.
    pub shared: &'a mut [u8],
    /// Where it begins among the addresses of shared memory: after the CTA's rank in a cluster.
    pub own_window: u64,
    /// The CTA's cluster, where the kernel uses clusters.
    pub cluster: Option<Peers<'a>>,
    /// The CTA's tensor memory, where the kernel uses it.
    pub tensor: Option<Tensor<'a>>,
    /// The clusters of the grid that have not begun.
    pub unbegun: Unbegun<'a>,
    /// The CTA's local memory.
    pub local: &'a mut [u8],
    /// The launch's parameters.
    pub params: &'a [u8],
    /// The costs of the run, for the timing model.
    pub trace: &'a mut Trace,
    /// What kernels print.
    pub output: &'a mut Vec<u8>,
    /// The assertion that failed, if one does.
    pub assertion: &'a mut Option<FailedAssertion>,
    /// The window in which kernels allocate.
    pub window: WindowId,
    /// The SM.
    pub sm: u32,
    /// Weak memory, where it is on.
    pub weak: Option<WeakAccess<'a>>,
    /// Device time at the run's start in picoseconds.
    pub now: u64,
    /// Picoseconds of a cycle.
    pub cycle: u64,
    /// Picoseconds from one instruction to the next: a cycle, or an issue slot where no time is
    /// kept.
    pub slot: u64,
}

#[inline(always)]
fn f32_of(bits: u32) -> f32 {
    f32::from_bits(bits)
}

#[inline(always)]
fn f64_of(bits: u64) -> f64 {
    f64::from_bits(bits)
}

/// PTX's single-precision operations produce only one NaN.
#[inline(always)]
fn bits_of(value: f32) -> u32 {
    if value.is_nan() { super::float::NAN_F32 } else { value.to_bits() }
}

#[inline(always)]
fn signed(value: u32) -> i64 {
    i64::from(value as i32)
}

#[inline(always)]
fn shift_right_signed(value: u32, count: u32) -> u32 {
    ((value as i32) >> count.min(31)) as u32
}

/// `-0` is less than `+0`. A number beats a NaN.
#[inline(always)]
fn min_f32(a: f32, b: f32) -> u32 {
    let less = a < b || (a == b && a.is_sign_negative()) || b.is_nan();
    bits_of(if less { a } else { b })
}

#[inline(always)]
fn max_f32(a: f32, b: f32) -> u32 {
    let greater = a > b || (a == b && a.is_sign_positive()) || b.is_nan();
    bits_of(if greater { a } else { b })
}

/// `aux` bit of a trap that is a breakpoint.
pub const BREAKPOINT: u16 = 1;

/// Budget that a possible poll costs, in instructions. The cost makes spinning threads soon give
/// way to others.
const POLL_COST: u32 = 32;

/// How long a run may be, and where it must come back.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The instruction before which it comes back; [`NOWHERE`] for none.
    pub end: u32,
    /// Instructions after which it comes back at the next branch.
    pub budget: u32,
}

/// Runs a fragment. It must not be among the team's fragments while it runs; unless it is
/// [`Stop::Gone`], the caller puts it back.
pub fn run(
    registers: &Registers,
    team: &mut Team,
    fragment: &mut Fragment,
    env: &mut Env<'_>,
    limits: Limits,
) -> Stop {
    crate::dispatch::run(registers, team, fragment, env, limits)
}

pub(super) fn team_state<'a>(registers: &'a Registers, team: &Team, masks: Masks) -> Core<'a> {
    Core {
        frame: registers.frame_of(team.first_warp),
        warps: team.warps,
        first_warp: team.first_warp,
        masks,
    }
}

/// The body of [`run`], to be compiled for several instruction sets.
#[inline(always)]
pub fn run_here<W: Width>(
    registers: &Registers,
    team: &mut Team,
    fragment: &mut Fragment,
    env: &mut Env<'_>,
    limits: Limits,
    vector: impl Vector,
) -> Stop {
    let mut core = Hot::<W>::of(team_state(registers, team, fragment.masks));
    let program = env.program;
    let code = program.code.as_slice();
    let mut pc = fragment.pc as usize;
    let end = limits.end as usize;
    let mut since = pc;
    let mut spent = 0_u32;

    // Counts the instructions executed since the last branch or change of threads.
    macro_rules! count_to {
        ($to:expr) => {{
            let instructions = u64::from(program.weights[$to].wrapping_sub(program.weights[since]));
            env.trace.counts.warp_instructions += instructions * core.warps_in() as u64;
            env.trace.counts.thread_instructions += instructions * u64::from(core.threads());
        }};
    }
    macro_rules! stop {
        ($counted:expr, $at:expr, $stop:expr) => {{
            count_to!($counted);
            fragment.pc = $at as u32;
            fragment.masks = core.masks;
            return $stop;
        }};
    }
    // The fragment is gone. If the run has no end, the next fragment of the team continues in the
    // same turn. A poll prevents this, because polls decide which fragment is next.
    macro_rules! gone {
        () => {{
            if end != NOWHERE as usize || env.trace.polls != 0 {
                return Stop::Gone;
            }
            let Some(next) = team.take_ready() else { return Stop::Gone };
            team.stale_turns = 0;
            *fragment = next;
            core.masks = fragment.masks;
            pc = fragment.pc as usize;
            since = pc;
            continue;
        }};
    }
    macro_rules! attempt {
        ($result:expr) => {
            if let Err(trouble) = $result {
                stop!(pc, pc, Stop::Fault(trouble));
            }
        };
    }

    // Counts a possible poll if any thread executes it.
    macro_rules! polls {
        ($i:expr) => {
            if first_active(&core, $i).is_some() {
                spent += POLL_COST;
                env.trace.polls += 1;
                env.trace.waits += u32::from(is_wait(&core, $i, program, pc, team));
            }
        };
    }

    loop {
        if pc == end {
            stop!(pc, pc, Stop::End);
        }
        let i = &code[pc];
        match i.op {
            Op::Mov32 => core.unary32(i, |a| a),
            Op::Add32 => core.binary32(i, u32::wrapping_add),
            Op::Sub32 => core.binary32(i, u32::wrapping_sub),
            Op::Mul32 => core.binary32(i, u32::wrapping_mul),
            Op::Mad32 => core.ternary32(i, |a, b, c| a.wrapping_mul(b).wrapping_add(c)),
            Op::And32 => core.binary32(i, |a, b| a & b),
            Op::Or32 => core.binary32(i, |a, b| a | b),
            Op::Xor32 => core.binary32(i, |a, b| a ^ b),
            Op::Not32 => core.unary32(i, |a| !a),
            Op::Shl32 => core.binary32(i, |a, b| if b > 31 { 0 } else { a << (b & 31) }),
            Op::ShrU32 => core.binary32(i, |a, b| if b > 31 { 0 } else { a >> (b & 31) }),
            Op::ShrS32 => core.binary32(i, shift_right_signed),
            Op::MinS32 => core.binary32(i, |a, b| (a as i32).min(b as i32) as u32),
            Op::MinU32 => core.binary32(i, u32::min),
            Op::MaxS32 => core.binary32(i, |a, b| (a as i32).max(b as i32) as u32),
            Op::MaxU32 => core.binary32(i, u32::max),
            Op::Neg32 => core.unary32(i, u32::wrapping_neg),
            Op::Abs32 => core.unary32(i, |a| (a as i32).wrapping_abs() as u32),
            Op::Zext8 => core.unary32(i, |a| a & 0xff),
            Op::Zext16 => core.unary32(i, |a| a & 0xffff),
            Op::Sext8 => core.unary32(i, |a| a as i8 as u32),
            Op::Sext16 => core.unary32(i, |a| a as i16 as u32),
            Op::MulHiU32 => core.binary32(i, |a, b| ((u64::from(a) * u64::from(b)) >> 32) as u32),
            Op::MulHiS32 => core.binary32(i, |a, b| ((signed(a) * signed(b)) >> 32) as u32),
            Op::Selp32 => core.select32(i),

            Op::Mov64 => core.unary64(i, |a| a),
            Op::Add64 => core.binary64(i, u64::wrapping_add),
            Op::Sub64 => core.binary64(i, u64::wrapping_sub),
            Op::Mul64 => core.binary64(i, u64::wrapping_mul),
            Op::Mad64 => core.ternary64(i, |a, b, c| a.wrapping_mul(b).wrapping_add(c)),
            Op::And64 => core.binary64(i, |a, b| a & b),
            Op::Or64 => core.binary64(i, |a, b| a | b),
            Op::Xor64 => core.binary64(i, |a, b| a ^ b),
            Op::Not64 => core.unary64(i, |a| !a),
            Op::Shl64 => core.shift64(i, |a, b| if b > 63 { 0 } else { a << (b & 63) }),
            Op::ShrU64 => core.shift64(i, |a, b| if b > 63 { 0 } else { a >> (b & 63) }),
            Op::ShrS64 => core.shift64(i, |a, b| ((a as i64) >> b.min(63)) as u64),
            Op::Neg64 => core.unary64(i, u64::wrapping_neg),
            Op::Selp64 => core.select64(i),
            Op::MulWideS32 => core.wide_product(i, |a, b| signed(a).wrapping_mul(signed(b)) as u64),
            Op::MulWideU32 => core.wide_product(i, |a, b| u64::from(a) * u64::from(b)),
            Op::MadWideS32 => {
                core.wide_sum(i, |a, b, c| {
                    (signed(a).wrapping_mul(signed(b)) as u64).wrapping_add(c)
                });
            }
            Op::MadWideU32 => {
                core.wide_sum(i, |a, b, c| (u64::from(a) * u64::from(b)).wrapping_add(c))
            }
            Op::S64FromS32 => core.widen(i, |a| signed(a) as u64),
            Op::U64FromU32 => core.widen(i, u64::from),
            Op::Low32 => core.narrow(i, |a| a as u32),

            Op::AddF32 => core.binary32(i, |a, b| bits_of(f32_of(a) + f32_of(b))),
            Op::SubF32 => core.binary32(i, |a, b| bits_of(f32_of(a) - f32_of(b))),
            Op::MulF32 => core.binary32(i, |a, b| bits_of(f32_of(a) * f32_of(b))),
            Op::FmaF32 => {
                core.ternary32(i, |a, b, c| bits_of(f32_of(a).mul_add(f32_of(b), f32_of(c))))
            }
            Op::DivF32 => core.binary32(i, |a, b| bits_of(f32_of(a) / f32_of(b))),
            Op::SqrtF32 => core.unary32(i, |a| bits_of(f32_of(a).sqrt())),
            Op::RcpF32 => core.unary32(i, |a| bits_of(1.0 / f32_of(a))),
            Op::MinF32 => core.binary32(i, |a, b| min_f32(f32_of(a), f32_of(b))),
            Op::MaxF32 => core.binary32(i, |a, b| max_f32(f32_of(a), f32_of(b))),
            Op::NegF32 => core.unary32(i, |a| a ^ 0x8000_0000),
            Op::AbsF32 => core.unary32(i, |a| a & 0x7fff_ffff),
            Op::F32FromS32 => core.unary32(i, |a| (a as i32 as f32).to_bits()),
            Op::F32FromU32 => core.unary32(i, |a| (a as f32).to_bits()),
            Op::S32FromF32Rz => core.unary32(i, |a| f32_of(a) as i32 as u32),

            Op::AddF64 => core.binary64(i, |a, b| (f64_of(a) + f64_of(b)).to_bits()),
            Op::SubF64 => core.binary64(i, |a, b| (f64_of(a) - f64_of(b)).to_bits()),
            Op::MulF64 => core.binary64(i, |a, b| (f64_of(a) * f64_of(b)).to_bits()),
            Op::FmaF64 => {
                core.ternary64(i, |a, b, c| f64_of(a).mul_add(f64_of(b), f64_of(c)).to_bits())
            }
            Op::DivF64 => core.binary64(i, |a, b| (f64_of(a) / f64_of(b)).to_bits()),
            Op::SqrtF64 => core.unary64(i, |a| f64_of(a).sqrt().to_bits()),
            Op::NegF64 => core.unary64(i, |a| a ^ 1 << 63),
            Op::AbsF64 => core.unary64(i, |a| a & !(1 << 63)),
            Op::F64FromF32 => core.widen(i, |a| f64::from(f32_of(a)).to_bits()),
            Op::F32FromF64 => core.narrow(i, |a| bits_of(f64_of(a) as f32)),
            Op::F64FromS32 => core.widen(i, |a| f64::from(a as i32).to_bits()),

            Op::EqB32 => core.compare32(i, |a, b| a == b),
            Op::NeB32 => core.compare32(i, |a, b| a != b),
            Op::LtS32 => core.compare32(i, |a, b| (a as i32) < (b as i32)),
            Op::LeS32 => core.compare32(i, |a, b| (a as i32) <= (b as i32)),
            Op::GtS32 => core.compare32(i, |a, b| (a as i32) > (b as i32)),
            Op::GeS32 => core.compare32(i, |a, b| (a as i32) >= (b as i32)),
            Op::LtU32 => core.compare32(i, |a, b| a < b),
            Op::LeU32 => core.compare32(i, |a, b| a <= b),
            Op::GtU32 => core.compare32(i, |a, b| a > b),
            Op::GeU32 => core.compare32(i, |a, b| a >= b),
            Op::EqB64 => core.compare64(i, |a, b| a == b),
            Op::NeB64 => core.compare64(i, |a, b| a != b),
            Op::LtS64 => core.compare64(i, |a, b| (a as i64) < (b as i64)),
            Op::LeS64 => core.compare64(i, |a, b| (a as i64) <= (b as i64)),
            Op::GtS64 => core.compare64(i, |a, b| (a as i64) > (b as i64)),
            Op::GeS64 => core.compare64(i, |a, b| (a as i64) >= (b as i64)),
            Op::LtU64 => core.compare64(i, |a, b| a < b),
            Op::LeU64 => core.compare64(i, |a, b| a <= b),
            Op::GtU64 => core.compare64(i, |a, b| a > b),
            Op::GeU64 => core.compare64(i, |a, b| a >= b),
            Op::EqF32 => core.compare32(i, |a, b| f32_of(a) == f32_of(b)),
            // Ordered and different.
            Op::NeF32 => core.compare32(i, |a, b| f32_of(a) < f32_of(b) || f32_of(a) > f32_of(b)),
            Op::LtF32 => core.compare32(i, |a, b| f32_of(a) < f32_of(b)),
            Op::LeF32 => core.compare32(i, |a, b| f32_of(a) <= f32_of(b)),
            Op::GtF32 => core.compare32(i, |a, b| f32_of(a) > f32_of(b)),
            Op::GeF32 => core.compare32(i, |a, b| f32_of(a) >= f32_of(b)),
            Op::NeuF32 => core.compare32(i, |a, b| f32_of(a) != f32_of(b)),
            Op::LtuF32 => core.compare32(
                i,
                |a, b| !matches!(f32_of(a).partial_cmp(&f32_of(b)), Some(o) if o.is_ge()),
            ),
            Op::LeuF32 => core.compare32(
                i,
                |a, b| !matches!(f32_of(a).partial_cmp(&f32_of(b)), Some(o) if o.is_gt()),
            ),
            Op::GtuF32 => core.compare32(
                i,
                |a, b| !matches!(f32_of(a).partial_cmp(&f32_of(b)), Some(o) if o.is_le()),
            ),
            Op::GeuF32 => core.compare32(
                i,
                |a, b| !matches!(f32_of(a).partial_cmp(&f32_of(b)), Some(o) if o.is_lt()),
            ),
            Op::LtF64 => core.compare64(i, |a, b| f64_of(a) < f64_of(b)),
            Op::LeF64 => core.compare64(i, |a, b| f64_of(a) <= f64_of(b)),
            Op::GtF64 => core.compare64(i, |a, b| f64_of(a) > f64_of(b)),
            Op::GeF64 => core.compare64(i, |a, b| f64_of(a) >= f64_of(b)),
            Op::PMov => core.combine(i, |_, b| b),
            Op::PAnd => core.combine(i, |a, b| a & b),
            Op::POr => core.combine(i, |a, b| a | b),
            Op::PXor => core.combine(i, |a, b| a ^ b),
            Op::PNot => core.combine(i, |_, b| !b),

            Op::Lane => core.lane_by_lane(i, program),
            Op::LdGlobal => {
                attempt!(access::load_global(&core, i, env, pc, vector));
                if i.aux & access::PAST_L1 != 0 {
                    polls!(i);
                }
            }
            Op::LdShared => {
                attempt!(access::load_shared(&core, i, env, pc, vector));
                if i.aux & access::PAST_L1 != 0 {
                    polls!(i);
                }
            }
            Op::StGlobal => attempt!(access::store_global(&core, i, env, pc, vector)),
            Op::StShared => attempt!(access::store_shared(&core, i, env, pc, vector)),
            Op::Memory => {
                attempt!(access::memory(&mut core, i, env, pc));
                if i.aux & access::PAST_L1 != 0 {
                    polls!(i);
                }
            }
            Op::Atomic => {
                attempt!(access::atomic(&mut core, i, env, pc));
                polls!(i);
            }
            Op::AtomicWide => {
                attempt!(atomics::execute(&mut core, i, env, pc));
                polls!(i);
            }
            Op::Async => {
                attempt!(asynchronous::execute(&mut core, i, env, pc));
                polls!(i);
            }
            Op::AsyncCopy => attempt!(access::async_copy(&mut core, i, env, pc)),
            Op::Special32 | Op::Special64 => {
                // A clock must include the instructions of this run.
                count_to!(pc);
                since = pc;
                special::read(&core, i, env);
            }
            Op::Nop => {}
            Op::Fence => access::weak::fence(&core, i, env),

            Op::Bra => {
                count_to!(pc + 1);
                spent += (pc + 1 - since) as u32;
                let target = i.imm as usize;
                if i.guard == 0 {
                    pc = target;
                } else {
                    let mut taken: Masks = [0; MAX_WARPS];
                    let mut stay = false;
                    for w in 0..core.warps() {
                        taken[w] = core.mask(i, w);
                        stay |= taken[w] != core.masks[w];
                    }
                    if !stay {
                        pc = target;
                    } else if is_empty(&taken) {
                        pc += 1;
                    } else {
                        let meet = program.meets[pc];
                        fragment.masks = core.masks;
                        let meet = (meet != NOWHERE).then_some(meet);
                        team.part(fragment, taken, target as u32, pc as u32 + 1, meet);
                        core.masks = fragment.masks;
                        pc = fragment.pc as usize;
                    }
                }
                since = pc;
                if spent >= limits.budget {
                    stop!(pc, pc, Stop::Turn);
                }
                continue;
            }
            Op::Brx => {
                count_to!(pc + 1);
                spent += (pc + 1 - since) as u32;
                fragment.masks = core.masks;
                indexed_branch(&mut core, i, team, fragment, program, pc);
                core.masks = fragment.masks;
                pc = fragment.pc as usize;
                since = pc;
                if spent >= limits.budget {
                    stop!(pc, pc, Stop::Turn);
                }
                continue;
            }
            Op::Call | Op::Return => {
                fragment.masks = core.masks;
                let step = if i.op == Op::Call { call::enter } else { call::leave };
                attempt!(step(&mut core, i, env, team, fragment, pc));
                count_to!(pc + 1);
                spent += (pc + 1 - since) as u32;
                core.masks = fragment.masks;
                pc = fragment.pc as usize;
                since = pc;
                if spent >= limits.budget {
                    stop!(pc, pc, Stop::Turn);
                }
                continue;
            }
            Op::Sync => {
                count_to!(pc);
                since = pc;
                fragment.masks = core.masks;
                if !team.arrive(fragment, pc as u32) {
                    gone!();
                }
                core.masks = fragment.masks;
            }
            Op::Exit => {
                count_to!(pc + 1);
                since = pc + 1;
                let mut gone: Masks = [0; MAX_WARPS];
                for w in 0..core.warps() {
                    gone[w] = core.mask(i, w);
                    core.masks[w] &= !gone[w];
                }
                team.exit(fragment.join, &gone);
                if is_empty(&core.masks) {
                    gone!();
                }
            }
            Op::Trap => {
                if let Some((warp, lane)) = first_active(&core, i) {
                    let trouble = Trouble {
                        kind: FaultKind::LaunchFailed,
                        warp: core.first_warp + warp,
                        lane,
                        pc,
                        address: None,
                        detail: trapped(i).to_owned(),
                    };
                    stop!(pc + 1, pc, Stop::Fault(Box::new(trouble)));
                }
            }
            Op::Texture => attempt!(texture::execute(&mut core, i, env, pc)),
            Op::Matrix => attempt!(tensor::execute(&mut core, i, env, pc)),
            Op::Tensor => match tcgen05::execute(&mut core, i, env, pc) {
                Ok(tcgen05::Step::Done) => {}
                Ok(tcgen05::Step::Again(nanos)) => stop!(pc, pc, Stop::Sleep(nanos)),
                Err(trouble) => stop!(pc, pc, Stop::Fault(trouble)),
            },
            Op::Barrier => {
                if split_guarded(&mut core, i, team, fragment, pc) {
                    stop!(pc + 1, pc, Stop::Barrier);
                }
            }
            Op::ClusterArrive => attempt!(arrive_at_cluster(&core, i, env, pc)),
            Op::ClusterWait => {
                if split_guarded(&mut core, i, team, fragment, pc) {
                    stop!(pc + 1, pc, Stop::Cluster);
                }
            }
            Op::Nanosleep => {
                if first_active(&core, i).is_some() {
                    let nanos = (0..core.warps)
                        .flat_map(|w| {
                            let mask = core.mask(i, w);
                            let row = core.row32(i.a, w);
                            (0..LANES)
                                .map(move |l| if mask >> l & 1 == 1 { row.lane(l) } else { 0 })
                        })
                        .max()
                        .unwrap_or(0);
                    stop!(pc + 1, pc + 1, Stop::Sleep(nanos));
                }
            }
            Op::Warp => {
                if split_guarded(&mut core, i, team, fragment, pc) {
                    fragment.masks = core.masks;
                    fragment.pc = pc as u32;
                    if env.weak.is_some()
                        && program.warp_ops[i.imm as usize].kind == WarpKind::BarWarp
                    {
                        access::weak::meet(&core, env);
                    }
                    let passed = warp::execute(&mut core, i, team, fragment, program, pc);
                    core.masks = fragment.masks;
                    if !passed {
                        stop!(pc, pc, Stop::Warp);
                    }
                }
            }
            Op::System => attempt!(system::call(&mut core, i, env, pc)),
        }
        pc += 1;
    }
}

/// The message for a trap.
fn trapped(i: &Inst) -> &'static str {
    if i.aux & BREAKPOINT == 0 {
        "the kernel executed `trap`"
    } else {
        "the kernel executed `brkpt`, and no debugger is there"
    }
}

/// The first thread that the guard lets execute.
/// Whether a possible poll waits: it found what it had found before. Asynchronous operations are
/// taken for waits, reductions find nothing.
#[inline(never)]
fn is_wait(core: &Core<'_>, i: &Inst, program: &Program, pc: usize, team: &mut Team) -> bool {
    let row = |row| if i.aux & 8 != 0 { Source::R64(row) } else { Source::R32(row) };
    let mut answer = Answer(pc as u64);
    match i.op {
        Op::LdGlobal => answer.add(core, i, &[Source::R64(i.a), row(i.d)]),
        Op::LdShared => answer.add(core, i, &[Source::R32(i.a), row(i.d)]),
        Op::Memory => {
            let op = &program.memory_ops[i.imm as usize];
            answer.add(core, i, &[op.address]);
            for element in op.elements.iter().flatten() {
                answer.add(core, i, &[*element]);
            }
        }
        Op::Atomic => {
            let op = &program.atomic_ops[i.imm as usize];
            if op.target == Target::None {
                return false;
            }
            answer.add(core, i, &[op.address, op.target.source()]);
        }
        _ => return true,
    }
    team.is_wait(answer.0)
}

/// A hash of what a poll asked and found.
struct Answer(u64);

impl Answer {
    /// Odd, with its bits spread: 2^64 divided by pi.
    const MIXER: u64 = 0x517c_c1b7_2722_0a95;

    fn add(&mut self, core: &Core<'_>, i: &Inst, sources: &[Source]) {
        let mut add = |word: u64| {
            self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(Self::MIXER);
        };
        for w in 0..core.warps {
            let mask = core.mask(i, w);
            add(u64::from(mask));
            for lane in lanes(mask) {
                for source in sources {
                    add(core.get(*source, w, lane));
                }
            }
        }
    }
}

fn first_active(core: &Core<'_>, i: &Inst) -> Option<(usize, usize)> {
    (0..core.warps).find_map(|w| {
        let mask = core.mask(i, w);
        (mask != 0).then(|| (w, mask.trailing_zeros() as usize))
    })
}

/// Threads arrive at the barrier of their cluster.
fn arrive_at_cluster(
    core: &Core<'_>,
    i: &Inst,
    env: &mut Env<'_>,
    pc: usize,
) -> Result<(), Box<Trouble>> {
    let now = env.now;
    let Some(peers) = &mut env.cluster else { return Ok(()) };
    let arrived = peers.cluster.arrive(peers.rank, core.first_warp, &core.active(i), now);
    arrived.map_err(|(warp, lane)| {
        let detail = "a second arrival at the cluster's barrier without a wait".to_owned();
        let kind = FaultKind::IllegalInstruction;
        Box::new(Trouble { kind, warp, lane, pc, address: None, detail })
    })
}

/// Prepares an instruction at which threads wait. Threads that its guard excludes become their own
/// fragment. False where the guard excludes all threads.
fn split_guarded(
    core: &mut Core<'_>,
    i: &Inst,
    team: &mut Team,
    fragment: &Fragment,
    pc: usize,
) -> bool {
    if i.guard == 0 {
        return true;
    }
    let mut stay: Masks = [0; MAX_WARPS];
    let mut pass: Masks = [0; MAX_WARPS];
    for w in 0..core.warps {
        stay[w] = core.mask(i, w);
        pass[w] = core.masks[w] & !stay[w];
    }
    if is_empty(&stay) {
        return false;
    }
    if !is_empty(&pass) {
        let other =
            Fragment { pc: pc as u32 + 1, join: fragment.join, masks: pass, state: State::Ready };
        team.fragments.push(other);
        core.masks = stay;
    }
    true
}

/// `brx.idx` divides the threads by target.
fn indexed_branch(
    core: &mut Core<'_>,
    i: &Inst,
    team: &mut Team,
    fragment: &mut Fragment,
    program: &Program,
    pc: usize,
) {
    let table = &program.branch_tables[i.imm as usize];
    let meet = program.meets[pc];
    let meet = (meet != NOWHERE).then_some(meet);
    loop {
        let mut taken: Masks = [0; MAX_WARPS];
        let mut target = None;
        for w in 0..core.warps {
            let row = core.row32(i.a, w);
            for l in lanes(fragment.masks[w]) {
                let to = table[(row.lane(l) as usize).min(table.len() - 1)];
                if *target.get_or_insert(to) == to {
                    taken[w] |= 1 << l;
                }
            }
        }
        let target = target.expect("a running fragment has threads");
        if taken == fragment.masks {
            fragment.pc = target;
            return;
        }
        team.part(fragment, taken, target, pc as u32, meet);
        if fragment.pc != pc as u32 {
            return;
        }
    }
}
