//! Calls at run time: recursion and calls through pointers.
//!
//! Every thread has a stack in its local memory. A call puts a frame on the stack. The frame holds
//! the call's number, the caller's frame pointer and stack pointer, and the function's parameters,
//! results and variables. The frame of a function that may call itself also holds the former
//! contents of the function's registers.
//!
//! Frames are per thread: threads of one warp may be at different depths of different functions.
//! Their reconvergence after the call is a matter of speed only ([`super::team`]).
//!
//! PTX ISA, "Control Flow Instructions: call, ret"; "Abstracting the ABI".

use super::inst::{FRAME, Inst, Source};
use super::program::Program;
use super::rows::lanes;
use super::state::Core;
use super::step::{Env, Trouble};
use super::team::{Fragment, MAX_WARPS, Masks, State, Team};
use partita_device::FaultKind;
use std::ops::Range;

/// Bytes of a thread's stack. It is fixed: a program's `cudaLimitStackSize` does not reach the
/// device, whose limit is 128 times CUDA's default.
pub const STACK_BYTES: u32 = 128 << 10;

/// Bytes at the start of a frame: number of the call, frame pointer and stack pointer of the
/// caller.
pub const CONTROL_BYTES: u32 = 24;

/// A parameter or result in local memory or in a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Where.
    pub place: u32,
    /// How much.
    pub bytes: u32,
}

/// Rows of a function's registers that a frame keeps.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SavedRows {
    /// Of 32 bits.
    pub r32: Range<usize>,
    /// Of 64 bits.
    pub r64: Range<usize>,
    /// Predicates.
    pub predicates: Range<usize>,
    /// Where in the frame.
    pub place: u32,
}

impl SavedRows {
    /// The room that they take.
    #[must_use]
    pub fn bytes(&self) -> u32 {
        (4 * self.r32.len() + 8 * self.r64.len() + self.predicates.len()) as u32
    }
}

/// A function with code of its own.
#[derive(Clone, Debug)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// What its name's address is.
    pub address: u64,
    /// Its first instruction.
    pub entry: u32,
    /// Bytes of its frame.
    pub frame: u32,
    /// Rows that its frame keeps.
    pub saved: SavedRows,
    /// Parameters in the frame.
    pub arguments: Vec<Piece>,
    /// Results in the frame.
    pub results: Vec<Piece>,
}

/// Whom a call enters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Callee {
    /// A function by index.
    Direct(u32),
    /// A function by address.
    Pointer(Source),
}

/// Side table of [`super::inst::Op::Call`].
#[derive(Clone, Debug)]
pub struct CallOp {
    /// Whom.
    pub callee: Callee,
    /// The caller's arguments.
    pub arguments: Vec<Piece>,
    /// Where the caller wants the results.
    pub results: Vec<Piece>,
    /// Whether these places are in the caller's frame; else they are in the kernel's own local
    /// memory.
    pub in_frame: bool,
    /// Where the callers go on.
    pub back: u32,
}

type Outcome = Result<(), Box<Trouble>>;

fn trouble(kind: FaultKind, warp: usize, lane: usize, pc: usize, detail: String) -> Box<Trouble> {
    Box::new(Trouble { kind, warp, lane, pc, address: None, detail })
}

/// The local memory of one thread.
fn thread_memory<'a>(local: &'a mut [u8], program: &Program, thread: usize) -> &'a mut [u8] {
    let size = program.local as usize;
    &mut local[thread * size..(thread + 1) * size]
}

/// The operand of a register in the frame.
fn own(register: usize) -> u32 {
    register as u32 | FRAME
}

fn word(memory: &[u8], at: u64) -> Option<u64> {
    let at = usize::try_from(at).ok()?;
    Some(u64::from_le_bytes(*memory.get(at..)?.first_chunk()?))
}

/// The threads with the same value as the first thread.
fn first_group(
    core: &Core<'_>,
    mut value: impl FnMut(usize, usize) -> u64,
) -> (u64, usize, usize, Masks) {
    let mut group: Masks = [0; MAX_WARPS];
    let mut first = None;
    for w in 0..core.warps {
        for lane in lanes(core.masks[w]) {
            let own = value(w, lane);
            if first.get_or_insert((own, w, lane)).0 == own {
                group[w] |= 1 << lane;
            }
        }
    }
    let (value, w, lane) = first.expect("a running fragment has threads");
    (value, w, lane, group)
}

/// `call`: the first thread and all threads that call the same function enter it. The other threads
/// stay for a later turn.
#[inline(never)]
pub fn enter(
    core: &mut Core<'_>,
    i: &Inst,
    env: &mut Env<'_>,
    team: &mut Team,
    fragment: &mut Fragment,
    pc: usize,
) -> Outcome {
    let program = env.program;
    let op = &program.call_ops[i.imm as usize];
    let (function, group) = match op.callee {
        Callee::Direct(index) => (&program.functions[index as usize], core.masks),
        Callee::Pointer(source) => {
            let (address, w, lane, group) = first_group(core, |w, lane| core.get(source, w, lane));
            let found = program.functions.iter().find(|function| function.address == address);
            let warp = core.first_warp + w;
            let Some(function) = found else {
                let detail = format!(
                    "call of {address:#x}, which is the address of no function of the module"
                );
                return Err(trouble(FaultKind::InvalidPc, warp, lane, pc, detail));
            };
            let (given, takes) = (op.arguments.len(), function.arguments.len());
            if given != takes || op.results.len() != function.results.len() {
                let name = &function.name;
                let detail = format!(
                    "call of `{name}` through a pointer with {given} arguments and {} results; it \
                     has {takes} and {}",
                    op.results.len(),
                    function.results.len()
                );
                return Err(trouble(FaultKind::InvalidPc, warp, lane, pc, detail));
            }
            (function, group)
        }
    };
    let [frame_row, top_row] = program.stack_rows;
    for w in 0..core.warps {
        let mask = group[w];
        if mask == 0 {
            continue;
        }
        let (mut frames, mut tops) = (core.row64(frame_row, w).get(), core.row64(top_row, w).get());
        for lane in lanes(mask) {
            let warp = core.first_warp + w;
            let memory = thread_memory(env.local, program, warp * 32 + lane);
            let (caller, top) = (frames[lane], tops[lane]);
            let start = top.saturating_add(15) & !15;
            let end = start.saturating_add(u64::from(function.frame));
            if end > memory.len() as u64 {
                let name = &function.name;
                let detail = format!(
                    "the call of `{name}` needs {} bytes more than the thread's stack of \
                     {STACK_BYTES} bytes has left",
                    function.frame
                );
                return Err(trouble(FaultKind::StackOverflow, warp, lane, pc, detail));
            }
            let at = start as usize;
            for (place, value) in [(0, i.imm as u64), (8, caller), (16, top)] {
                memory[at + place..at + place + 8].copy_from_slice(&value.to_le_bytes());
            }
            let base = if op.in_frame { caller as usize } else { 0 };
            for (from, to) in op.arguments.iter().zip(&function.arguments) {
                let from = base + from.place as usize
                    ..base + (from.place + from.bytes.min(to.bytes)) as usize;
                if from.end > memory.len() {
                    return Err(lost(warp, lane, pc));
                }
                memory.copy_within(from, at + to.place as usize);
            }
            let mut save = at + function.saved.place as usize;
            for row in function.saved.r32.clone() {
                let value = core.row32(own(row), w).lane(lane);
                memory[save..save + 4].copy_from_slice(&value.to_le_bytes());
                save += 4;
            }
            for row in function.saved.r64.clone() {
                let value = core.row64(own(row), w).lane(lane);
                memory[save..save + 8].copy_from_slice(&value.to_le_bytes());
                save += 8;
            }
            for row in function.saved.predicates.clone() {
                memory[save] = (core.predicate(own(row), w) >> lane & 1) as u8;
                save += 1;
            }
            frames[lane] = start;
            tops[lane] = end;
        }
        core.row64(frame_row, w).put(mask, &frames);
        core.row64(top_row, w).put(mask, &tops);
    }
    team.expect_back(fragment, op.back);
    if group == fragment.masks {
        fragment.pc = function.entry;
    } else {
        team.part(fragment, group, function.entry, pc as u32, Some(op.back));
    }
    Ok(())
}

fn lost(warp: usize, lane: usize, pc: usize) -> Box<Trouble> {
    let detail =
        "the thread's stack was overwritten: a frame holds no call of this kernel".to_owned();
    trouble(FaultKind::InvalidPc, warp, lane, pc, detail)
}

/// `ret` of a function with code of its own: the first thread and all threads of the same call go
/// back. The other threads stay for a later turn.
#[inline(never)]
pub fn leave(
    core: &mut Core<'_>,
    i: &Inst,
    env: &mut Env<'_>,
    team: &mut Team,
    fragment: &mut Fragment,
    pc: usize,
) -> Outcome {
    let program = env.program;
    let function = &program.functions[i.imm as usize];
    let [frame_row, top_row] = program.stack_rows;
    let first_warp = core.first_warp;
    let local = &mut *env.local;
    let (call, w, lane, group) = first_group(core, |w, lane| {
        let memory = thread_memory(local, program, (first_warp + w) * 32 + lane);
        word(memory, core.row64(frame_row, w).lane(lane)).unwrap_or(u64::MAX)
    });
    let found = usize::try_from(call).ok().and_then(|call| program.call_ops.get(call));
    let Some(op) = found else { return Err(lost(first_warp + w, lane, pc)) };
    for w in 0..core.warps {
        let mask = group[w];
        if mask == 0 {
            continue;
        }
        let (mut frames, mut tops) = (core.row64(frame_row, w).get(), core.row64(top_row, w).get());
        for lane in lanes(mask) {
            let memory = thread_memory(local, program, (first_warp + w) * 32 + lane);
            let at = frames[lane] as usize;
            let size = memory.len() as u64;
            let caller = word(memory, frames[lane] + 8).filter(|&caller| caller < size);
            let top = word(memory, frames[lane] + 16).filter(|&top| top <= size);
            let whole = at + function.frame as usize <= memory.len();
            let (Some(caller), Some(top), true) = (caller, top, whole) else {
                return Err(lost(first_warp + w, lane, pc));
            };
            let base = if op.in_frame { caller as usize } else { 0 };
            for (to, from) in op.results.iter().zip(&function.results) {
                let bytes = from.bytes.min(to.bytes) as usize;
                let (from, to) = (at + from.place as usize, base + to.place as usize);
                if to + bytes > memory.len() {
                    return Err(lost(first_warp + w, lane, pc));
                }
                memory.copy_within(from..from + bytes, to);
            }
            let mut save = at + function.saved.place as usize;
            for row in function.saved.r32.clone() {
                let value =
                    memory[save..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
                core.row32(own(row), w).set_lane(lane, value);
                save += 4;
            }
            for row in function.saved.r64.clone() {
                let value =
                    memory[save..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
                core.row64(own(row), w).set_lane(lane, value);
                save += 8;
            }
            for row in function.saved.predicates.clone() {
                core.put_p(own(row), w, 1 << lane, u32::from(memory[save] & 1) << lane);
                save += 1;
            }
            frames[lane] = caller;
            tops[lane] = top;
        }
        core.row64(frame_row, w).put(mask, &frames);
        core.row64(top_row, w).put(mask, &tops);
    }
    if group == fragment.masks {
        fragment.pc = op.back;
        return Ok(());
    }
    team.fragments.push(Fragment {
        pc: op.back,
        join: fragment.join,
        masks: group,
        state: State::Ready,
    });
    for (rest, gone) in fragment.masks.iter_mut().zip(group) {
        *rest &= !gone;
    }
    fragment.pc = pc as u32;
    Ok(())
}
