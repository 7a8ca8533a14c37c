//! The one place with unsafe code: choosing the interpreter and the products of matrices that were
//! compiled for the host's vector units, and the few questions about rows for which it uses their
//! intrinsics ([`vector`]).
//!
//! The interpreter's loops over 32 lanes are plain Rust; compiled for AVX2 and FMA they run several
//! times faster than for the baseline of x86-64, and `mul_add` becomes an instruction instead of a
//! call. A function with target features may be called only where the processor has them; that is
//! checked once, at run time.

#![expect(
    unsafe_code,
    reason = "calling functions that need processor features which were checked before"
)]

pub mod vector;

use crate::exec::product::{Kind, multiply_here};
use crate::exec::registers::Registers;
use crate::exec::step::{Env, Limits, Stop, run_here};
use crate::exec::team::{Fragment, Team};
use vector::Plain;

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
fn run_fast(
    registers: &Registers,
    team: &mut Team,
    fragment: &mut Fragment,
    env: &mut Env<'_>,
    limits: Limits,
    vector: vector::Avx2,
) -> Stop {
    run_here(registers, team, fragment, env, limits, vector)
}

fn run_plain(
    registers: &Registers,
    team: &mut Team,
    fragment: &mut Fragment,
    env: &mut Env<'_>,
    limits: Limits,
) -> Stop {
    run_here(registers, team, fragment, env, limits, Plain)
}

/// See [`crate::exec::step::run`].
pub fn run(
    registers: &Registers,
    team: &mut Team,
    fragment: &mut Fragment,
    env: &mut Env<'_>,
    limits: Limits,
) -> Stop {
    #[cfg(target_arch = "x86_64")]
    if let Some(vector) = vector::Avx2::detect() {
        // SAFETY: `detect` has found every feature that `run_fast` is compiled for.
        return unsafe { run_fast(registers, team, fragment, env, limits, vector) };
    }
    run_plain(registers, team, fragment, env, limits)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
fn multiply_fast(factors: [&[u64]; 3], kind: &Kind) -> Vec<u64> {
    multiply_here(factors, kind)
}

/// See [`crate::exec::product::multiply`].
pub fn multiply(factors: [&[u64]; 3], kind: &Kind) -> Vec<u64> {
    #[cfg(target_arch = "x86_64")]
    if vector::Avx2::detect().is_some() {
        // SAFETY: `detect` has found every feature that `multiply_fast` is compiled for.
        return unsafe { multiply_fast(factors, kind) };
    }
    multiply_here(factors, kind)
}
