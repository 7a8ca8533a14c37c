//! The one place with unsafe code: choosing the interpreter that was compiled for the host's vector units.
//!
//! The interpreter's loops over 32 lanes are plain Rust; compiled for AVX2 and FMA they run several times faster than
//! for the baseline of x86-64, and `mul_add` becomes an instruction instead of a call. A function with target features
//! may be called only where the processor has them; that is checked here, once, at run time.

#![expect(unsafe_code, reason = "calling a function that needs processor features which were checked before")]

use crate::exec::registers::Registers;
use crate::exec::step::{Env, Limits, Stop, run_here};
use crate::exec::team::{Fragment, Team};

/// Whether the fast interpreter can run on this processor.
#[cfg(target_arch = "x86_64")]
fn is_fast() -> bool {
    use std::sync::OnceLock;
    static FAST: OnceLock<bool> = OnceLock::new();
    *FAST.get_or_init(|| {
        is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("lzcnt")
            && is_x86_feature_detected!("popcnt")
    })
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
fn run_fast(
    registers: &Registers,
    team: &mut Team,
    fragment: &mut Fragment,
    env: &mut Env<'_>,
    limits: Limits,
) -> Stop {
    run_here(registers, team, fragment, env, limits)
}

fn run_plain(
    registers: &Registers,
    team: &mut Team,
    fragment: &mut Fragment,
    env: &mut Env<'_>,
    limits: Limits,
) -> Stop {
    run_here(registers, team, fragment, env, limits)
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
    if is_fast() {
        // SAFETY: `is_fast` has found every feature that `run_fast` is compiled for.
        return unsafe { run_fast(registers, team, fragment, env, limits) };
    }
    run_plain(registers, team, fragment, env, limits)
}

/// What the interpreter was chosen for, for reports.
#[must_use]
pub fn instruction_set() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    if is_fast() {
        return "AVX2 and FMA";
    }
    "the baseline of the target"
}
