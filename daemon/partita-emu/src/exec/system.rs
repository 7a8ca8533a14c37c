//! System calls of device code: `vprintf`, `__assertfail`, `malloc`, `free` (CUDA C++ Programming
//! Guide, "Formatted Output", "Assertion", "Dynamic Global Memory Allocation").

use super::access::{read_text, read_word};
use super::inst::{Inst, SystemKind};
use super::rows::lanes;
use super::state::Core;
use super::step::{Env, Trouble};
use crate::memory::Heap;
use partita_device::FaultKind;

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

/// Formats as C's `printf` does, and returns how many arguments it used. The arguments follow one
/// another at their natural alignment.
fn format_text(
    env: &mut Env<'_>,
    site: (usize, usize, usize),
    format: u64,
    arguments: u64,
) -> Result<(Vec<u8>, u64), Box<Trouble>> {
    let format = read_text(env, site, format, LONGEST_TEXT)?;
    let mut out = Vec::new();
    let (mut at, mut taken) = (arguments, 0);
    let mut take = |env: &mut Env<'_>, bytes: usize| {
        taken += 1;
        at = at.next_multiple_of(bytes as u64);
        let value = read_word(env, site, at, bytes);
        at += bytes as u64;
        value
    };
    let mut rest = format.iter().copied().peekable();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let mut spec = Spec::default();
        while let Some(&flag) = rest.peek() {
            match flag {
                b'-' => spec.left = true,
                b'+' => spec.plus = true,
                b' ' => spec.space = true,
                b'#' => spec.alternate = true,
                b'0' => spec.zero = true,
                _ => break,
            }
            rest.next();
        }
        let mut number = |rest: &mut std::iter::Peekable<_>,
                          env: &mut Env<'_>|
         -> Result<Option<usize>, Box<Trouble>> {
            let rest: &mut std::iter::Peekable<std::iter::Copied<std::slice::Iter<'_, u8>>> = rest;
            if rest.next_if_eq(&b'*').is_some() {
                return Ok(Some((take(env, 4)? as u32 as i32).unsigned_abs().min(4096) as usize));
            }
            let mut value = None;
            while let Some(digit) = rest.next_if(u8::is_ascii_digit) {
                value = Some((value.unwrap_or(0) * 10 + usize::from(digit - b'0')).min(4096));
            }
            Ok(value)
        };
        spec.width = number(&mut rest, env)?.unwrap_or(0);
        if rest.next_if_eq(&b'.').is_some() {
            spec.precision = Some(number(&mut rest, env)?.unwrap_or(0));
        }
        let mut bytes = 4;
        while let Some(length) = rest.next_if(|b| matches!(b, b'l' | b'h' | b'z' | b'j' | b't')) {
            if matches!(length, b'l' | b'z' | b'j' | b't') {
                bytes = 8;
            }
        }
        let Some(kind) = rest.next() else { break };
        let text = match kind {
            b'%' => "%".to_owned(),
            b'd' | b'i' => {
                let value = take(env, bytes)?;
                spec.signed(if bytes == 8 { value as i64 } else { i64::from(value as u32 as i32) })
            }
            b'u' => spec.integer(take(env, bytes)?.to_string(), ""),
            b'x' => spec.integer(
                format!("{:x}", take(env, bytes)?),
                if spec.alternate { "0x" } else { "" },
            ),
            b'X' => spec.integer(
                format!("{:X}", take(env, bytes)?),
                if spec.alternate { "0X" } else { "" },
            ),
            b'o' => spec.integer(format!("{:o}", take(env, bytes)?), ""),
            b'p' => spec.pad(format!("{:#x}", take(env, 8)?)),
            b'c' => spec.pad(char::from(take(env, 4)? as u8).to_string()),
            b's' => {
                let address = take(env, 8)?;
                let text = read_text(env, site, address, LONGEST_TEXT)?;
                let text = String::from_utf8_lossy(&text).into_owned();
                spec.pad(match spec.precision {
                    Some(precision) => text.chars().take(precision).collect(),
                    None => text,
                })
            }
            b'f' | b'F' | b'e' | b'E' | b'g' | b'G' => {
                spec.float(f64::from_bits(take(env, 8)?), kind)
            }
            other => format!("%{}", char::from(other)),
        };
        out.extend_from_slice(text.as_bytes());
    }
    Ok((out, taken))
}

#[derive(Clone, Copy, Default)]
struct Spec {
    left: bool,
    plus: bool,
    space: bool,
    alternate: bool,
    zero: bool,
    width: usize,
    precision: Option<usize>,
}

impl Spec {
    fn pad(&self, text: String) -> String {
        let missing = self.width.saturating_sub(text.chars().count());
        if self.left { text + &" ".repeat(missing) } else { " ".repeat(missing) + &text }
    }

    fn sign(&self, negative: bool) -> &'static str {
        match (negative, self.plus, self.space) {
            (true, ..) => "-",
            (false, true, _) => "+",
            (false, false, true) => " ",
            _ => "",
        }
    }

    fn with_prefix(&self, prefix: &str, digits: &str, zero: bool) -> String {
        let missing = self.width.saturating_sub(prefix.len() + digits.len());
        if zero && !self.left {
            return format!("{prefix}{}{digits}", "0".repeat(missing));
        }
        self.pad(format!("{prefix}{digits}"))
    }

    fn integer(&self, digits: String, prefix: &str) -> String {
        let digits = match self.precision {
            Some(precision) => format!("{digits:0>precision$}"),
            None => digits,
        };
        self.with_prefix(prefix, &digits, self.zero && self.precision.is_none())
    }

    fn signed(&self, value: i64) -> String {
        self.integer(value.unsigned_abs().to_string(), self.sign(value < 0))
    }

    fn float(&self, value: f64, kind: u8) -> String {
        let sign = self.sign(value.is_sign_negative() && !value.is_nan());
        let size = value.abs();
        if !value.is_finite() {
            let text = if value.is_nan() { "nan" } else { "inf" };
            return self.with_prefix(sign, text, false);
        }
        let precision = self.precision.unwrap_or(6);
        let digits = match kind.to_ascii_lowercase() {
            b'f' => format!("{size:.precision$}"),
            b'e' => exponential(size, precision),
            _ => general(size, precision.max(1), self.alternate),
        };
        let digits = if kind.is_ascii_uppercase() { digits.to_uppercase() } else { digits };
        self.with_prefix(sign, &digits, self.zero)
    }
}

fn exponential(size: f64, precision: usize) -> String {
    let text = format!("{size:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

fn general(size: f64, precision: usize, keep_zeros: bool) -> String {
    let scientific = exponential(size, precision - 1);
    let exponent: i32 = scientific.split_once('e').and_then(|(_, e)| e.parse().ok()).unwrap_or(0);
    let trim = |digits: &str| {
        if keep_zeros || !digits.contains('.') {
            return digits.to_owned();
        }
        digits.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    if exponent < -4 || exponent >= precision as i32 {
        let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "+00"));
        return format!("{}e{exponent}", trim(digits));
    }
    let decimals = (precision as i32 - 1 - exponent).max(0) as usize;
    trim(&format!("{size:.decimals$}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_print_as_in_c() {
        let spec = Spec::default();
        for (value, kind, expect) in [
            (1.5, b'f', "1.500000"),
            (1.5, b'e', "1.500000e+00"),
            (1e-5, b'g', "1e-05"),
            (123_456_789.0, b'g', "1.23457e+08"),
            (0.5, b'g', "0.5"),
            (100.0, b'g', "100"),
            (f64::INFINITY, b'F', "inf"),
        ] {
            assert_eq!(spec.float(value, kind), expect);
        }
        assert_eq!(Spec { width: 5, zero: true, ..spec }.signed(-42), "-0042");
        assert_eq!(Spec { width: 5, left: true, ..spec }.signed(42), "42   ");
        assert_eq!(Spec { precision: Some(4), plus: true, ..spec }.signed(42), "+0042");
    }
}
