//! Special registers whose value depends on place and time of the read.

use super::inst::{Hardware, Inst, Op};
use super::rows::LANES;
use super::state::Core;
use super::step::Env;

/// Writes the value of a special register.
#[inline(never)]
pub fn read(core: &Core<'_>, i: &Inst, env: &Env<'_>) {
    let which = i.aux;
    let time = env.now + (env.trace.counts.warp_instructions + 1) * env.slot;
    let cycles = time / env.cycle;
    // Real GPUs update the timer about once a microsecond; this timer is exact.
    let nanos = time / 1000;
    for w in 0..core.warps {
        let mask = core.mask(i, w);
        let is = |kind: Hardware| which == kind as u16;
        let value = if is(Hardware::Smid) {
            u64::from(env.sm)
        } else if is(Hardware::Warpid) {
            (core.first_warp + w) as u64
        } else if is(Hardware::Clock) {
            cycles & 0xffff_ffff
        } else if is(Hardware::ClockHi) {
            cycles >> 32
        } else if is(Hardware::Clock64) {
            cycles
        } else if is(Hardware::Globaltimer) {
            nanos
        } else if is(Hardware::GlobaltimerLo) {
            nanos & 0xffff_ffff
        } else if is(Hardware::GlobaltimerHi) {
            nanos >> 32
        } else {
            u64::from(mask)
        };
        if i.op == Op::Special64 {
            core.row64(i.d, w).put(mask, &[value; LANES]);
        } else {
            core.row32(i.d, w).put(mask, &[value as u32; LANES]);
        }
    }
}
