//! The one place with unsafe code: choosing the interpreter and the products of matrices that were
//! compiled for the host's vector units, and the few questions about rows for which it uses their
//! intrinsics ([`vector`]).
//!
//! The interpreter's loops over 32 lanes are plain Rust; compiled for AVX2 and FMA they run several
//! times faster than for the baseline of x86-64, and `mul_add` becomes an instruction instead of a
//! call; AVX-512 adds up to a quarter. A function with target features may be called only where the
//! processor has them; that is checked once, at run time.

#![expect(
    unsafe_code,
    reason = "calling functions that need processor features which were checked before"
)]

pub mod vector;

use crate::exec::product::{Kind, multiply_here};
use crate::exec::registers::{AnyWidth, OneWarp, Registers, Width};
use crate::exec::step::{Env, Limits, Stop, run_here};
use crate::exec::team::{Fragment, Team};
use std::sync::atomic::{AtomicU8, Ordering};
use vector::Plain;

/// The vector units that the interpreter is compiled for, the narrowest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Units {
    /// Those of every processor of the architecture.
    Baseline,
    /// AVX2 and FMA.
    Avx2,
    /// AVX-512 with its forms for bytes, words and shorter vectors (x86-64-v4).
    Avx512,
}

static WIDEST: AtomicU8 = AtomicU8::new(Units::Avx512 as u8);

/// From now on this process uses no wider units than these, whatever the processor has. Results
/// stay the same.
pub fn use_at_most(units: Units) {
    WIDEST.store(units as u8, Ordering::Relaxed);
}

#[cfg(target_arch = "x86_64")]
fn may_use(units: Units) -> bool {
    WIDEST.load(Ordering::Relaxed) >= units as u8
}

#[cfg(target_arch = "x86_64")]
#[target_feature(
    enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt,avx512f,avx512bw,avx512cd,avx512dq,avx512vl"
)]
fn run_widest<W: Width>(
    registers: &Registers,
    team: &mut Team,
    fragment: &mut Fragment,
    env: &mut Env<'_>,
    limits: Limits,
    vector: vector::Avx2,
) -> Stop {
    run_here::<W>(registers, team, fragment, env, limits, vector)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
fn run_fast<W: Width>(
    registers: &Registers,
    team: &mut Team,
    fragment: &mut Fragment,
    env: &mut Env<'_>,
    limits: Limits,
    vector: vector::Avx2,
) -> Stop {
    run_here::<W>(registers, team, fragment, env, limits, vector)
}

/// Hosts without AVX2 have no form for teams of one warp, which would have to be compiled, too.
fn run_plain(
    registers: &Registers,
    team: &mut Team,
    fragment: &mut Fragment,
    env: &mut Env<'_>,
    limits: Limits,
) -> Stop {
    run_here::<AnyWidth>(registers, team, fragment, env, limits, Plain)
}

/// See [`crate::exec::step::run`].
pub fn run(
    registers: &Registers,
    team: &mut Team,
    fragment: &mut Fragment,
    env: &mut Env<'_>,
    limits: Limits,
) -> Stop {
    if registers.has_single_warps() {
        run_as::<OneWarp>(registers, team, fragment, env, limits)
    } else {
        run_as::<AnyWidth>(registers, team, fragment, env, limits)
    }
}

fn run_as<W: Width>(
    registers: &Registers,
    team: &mut Team,
    fragment: &mut Fragment,
    env: &mut Env<'_>,
    limits: Limits,
) -> Stop {
    #[cfg(target_arch = "x86_64")]
    if may_use(Units::Avx2)
        && let Some(vector) = vector::Avx2::detect()
    {
        return if may_use(Units::Avx512) && vector.has_avx512() {
            // SAFETY: `detect` and `has_avx512` have found every feature that `run_widest` is
            // compiled for.
            unsafe { run_widest::<W>(registers, team, fragment, env, limits, vector) }
        } else {
            // SAFETY: `detect` has found every feature that `run_fast` is compiled for.
            unsafe { run_fast::<W>(registers, team, fragment, env, limits, vector) }
        };
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
    if may_use(Units::Avx2) && vector::Avx2::detect().is_some() {
        // SAFETY: `detect` has found every feature that `multiply_fast` is compiled for.
        return unsafe { multiply_fast(factors, kind) };
    }
    multiply_here(factors, kind)
}
