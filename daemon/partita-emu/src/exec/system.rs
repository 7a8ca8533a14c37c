//! System calls of device code: `vprintf`, `__assertfail`, `malloc`, `free` (CUDA C++ Programming
//! Guide, "Formatted Output", "Assertion", "Dynamic Global Memory Allocation").

use super::access::{read_text, read_word};
use super::inst::{Inst, SystemKind};
use super::rows::lanes;
use super::state::Core;
use super::step::{Env, Trouble};
use crate::memory::Heap;
use partita_device::FaultKind;
use partita_model::printf;

const LONGEST_TEXT: usize = 64 << 10;

/// Carries out a call, thread by thread.
#[inline(never)]
pub fn call(
    core: &mut Core<'_>,
    i: &Inst,
    env: &mut Env<'_>,
    pc: usize,
) -> Result<(), Box<Trouble>> {
    let program = env.program;
    let op = program.system_ops[i.imm as usize];
    for w in 0..core.warps {
        let mask = core.mask(i, w);
        let mut results = [0_u64; 32];
        for lane in lanes(mask) {
            let site = (w + core.first_warp, lane, pc);
            let arguments = op.arguments.map(|source| core.get(source, w, lane));
            match op.kind {
                SystemKind::Vprintf => {
                    // CUDA C++ Programming Guide, "Formatted Output": the result is −1 without a
                    // format, else the number of arguments.
                    results[lane] = u64::MAX;
                    if arguments[0] != 0 {
                        let (text, taken) = format_text(env, site, arguments[0], arguments[1])?;
                        results[lane] = taken;
                        env.output.extend_from_slice(&text);
                    }
                }
                SystemKind::AssertFail => {
                    return Err(failed_assertion(env, site, mask, arguments));
                }
                SystemKind::Malloc => {
                    let heap = env.memory.heap(env.window);
                    results[lane] = heap.and_then(|heap| heap.allocate(arguments[0])).unwrap_or(0);
                }
                SystemKind::Free => {
                    let freed = |heap: &mut Heap| heap.free(arguments[0]);
                    if arguments[0] != 0 && !env.memory.heap(env.window).is_some_and(freed) {
                        return Err(nothing_to_free(site, arguments[0]));
                    }
                }
                SystemKind::Alloca => {
                    results[lane] =
                        allot(arguments, program.local).ok_or_else(|| no_stack(site, arguments))?;
                }
            }
        }
        core.put_all(op.target, w, mask, &results);
    }
    Ok(())
}

/// `alloca`: the address of the new block on the stack.
fn allot([size, top, alignment, _]: [u64; 4], limit: u32) -> Option<u64> {
    let start = top.checked_next_multiple_of(alignment)?;
    (start.checked_add(size)? <= u64::from(limit)).then_some(start)
}

fn no_stack((warp, lane, pc): (usize, usize, usize), [size, ..]: [u64; 4]) -> Box<Trouble> {
    let limit = super::call::STACK_BYTES;
    let detail = format!("alloca of {size} bytes exceeds the thread's stack of {limit} bytes");
    Box::new(Trouble { kind: FaultKind::StackOverflow, warp, lane, pc, address: None, detail })
}

fn nothing_to_free((warp, lane, pc): (usize, usize, usize), address: u64) -> Box<Trouble> {
    let detail =
        "free of an address that `malloc` has not given, or that is free already".to_owned();
    Box::new(Trouble {
        kind: FaultKind::IllegalAddress,
        warp,
        lane,
        pc,
        address: Some(address),
        detail,
    })
}

/// An assertion that did not hold, for the threads of a warp.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FailedAssertion {
    /// The file that it is in.
    pub file: String,
    /// Its line there.
    pub line: u32,
    /// The function that it is in.
    pub function: String,
    /// What should have held.
    pub expression: String,
    /// The threads.
    pub lanes: u32,
}

fn failed_assertion(
    env: &mut Env<'_>,
    site: (usize, usize, usize),
    mask: u32,
    arguments: [u64; 4],
) -> Box<Trouble> {
    let mut text = |address: u64| match read_text(env, site, address, 4096) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(_) => "?".to_owned(),
    };
    let (expression, file, function) = (text(arguments[0]), text(arguments[1]), text(arguments[3]));
    let line = arguments[2] as u32;
    let detail = format!("{file}:{line}: {function}: assertion `{expression}` failed");
    *env.assertion = Some(FailedAssertion { file, line, function, expression, lanes: mask });
    Box::new(Trouble {
        kind: FaultKind::Assert,
        warp: site.0,
        lane: site.1,
        pc: site.2,
        address: None,
        detail,
    })
}

/// The arguments of a call of `vprintf`, which follow one another at their natural alignment.
struct Arguments<'a, 'e> {
    env: &'a mut Env<'e>,
    site: (usize, usize, usize),
    at: u64,
}

impl printf::Arguments for Arguments<'_, '_> {
    type Error = Box<Trouble>;

    fn word(&mut self, bytes: usize) -> Result<u64, Box<Trouble>> {
        let at = self.at.next_multiple_of(bytes as u64);
        self.at = at + bytes as u64;
        read_word(self.env, self.site, at, bytes)
    }

    fn text(&mut self, address: u64) -> Result<Vec<u8>, Box<Trouble>> {
        read_text(self.env, self.site, address, LONGEST_TEXT)
    }
}

fn format_text(
    env: &mut Env<'_>,
    site: (usize, usize, usize),
    format: u64,
    arguments: u64,
) -> Result<(Vec<u8>, u64), Box<Trouble>> {
    let format = read_text(env, site, format, LONGEST_TEXT)?;
    printf::format(&format, &mut Arguments { env, site, at: arguments })
}
