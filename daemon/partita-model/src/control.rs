//! The control block of a worker launch: how the daemon and the rewritten kernel talk while it
//! runs.
//!
//! A block has three parts by who writes them. Each part starts on a 128-byte line of its own, so
//! that host and device never write the same line.
//!
//! | part | written by | read by |
//! | --- | --- | --- |
//! | *queue* | the device, by atomics; the host only before the launch | device, host |
//! | *signal* | the host, while the kernel runs | device |
//! | *telemetry* | the device, one slot per SM | host |
//!
//! The launch's shape follows the queue and is constant. All fields are little-endian. The layout
//! is the contract between the engine, which writes and reads blocks, and the `worker` pass, which
//! generates the code that does so; the pass knows it as `partita_ptx::control`, and a test of
//! `partita-gpu` holds the two equal.
//!
//! The pointer that a grid gets as its extra parameter is the block's address; its lowest five bits
//! are the number of a **helper** grid, or 0 for the launch's **main** grid: the last of its CTAs
//! to leave stays until `completed` equals `total`, so the operation after it in its stream is
//! never early.

use std::ops::RangeInclusive;

/// The number of a main grid.
pub const MAIN_GRID: u32 = 0;
/// The numbers of helper grids.
pub const HELPERS: RangeInclusive<u32> = 1..=31;

/// `u64`: the linear index of the next CTA that nobody has claimed. May pass `total`.
pub const NEXT: u64 = 0;
/// `u64`: CTAs whose effects are complete and visible.
pub const COMPLETED: u64 = 8;
/// `u32`: CTAs of the main grid that have left; whoever completes the launch's last CTA leaves
/// without being counted.
pub const DEPARTED: u64 = 16;
/// `u32`: what a kernel that can be stopped has met with, 0 nothing. The first fault stays; `ABORT`
/// is set behind it.
pub const FAULT: u64 = 20;
/// At `FAULT`: a thread executed `trap`.
pub const FAULT_TRAP: u32 = 1;
/// At `FAULT`: an assertion failed.
pub const FAULT_ASSERT: u32 = 2;

/// `u64`: CTAs of the original grid.
pub const TOTAL: u64 = 128;
/// `u32`: CTAs of the main grid as launched, to compare `departed` with.
pub const MAIN_CTAS: u64 = 136;
/// `u32`: the original `%nctaid.x`.
pub const GRID_X: u64 = 144;
/// `u32`: the original `%nctaid.y`.
pub const GRID_Y: u64 = 148;
/// `u32`: the original `%nctaid.z`.
pub const GRID_Z: u64 = 152;

/// `u32`: 1 tells every worker, the parked one too, to leave at the next task border; else 0. The
/// device writes it too, when it sets `FAULT`.
pub const ABORT: u64 = 256;
/// `u32`: bit `n` tells the workers of helper grid `n` to leave at the next task border.
pub const RETIRED: u64 = 260;
/// `u32`: CTAs per task, at least 1.
pub const TASK: u64 = 264;
/// Bitmap of the SMs on which workers may claim, SM `i` in bit `i % 32` of the `u32` at `ALLOWED +
/// i / 32 * 4`.
pub const ALLOWED: u64 = 272;
/// Bitmap of the SMs whose workers wait at the task border, in the same form.
pub const STALLED: u64 = 304;

/// The first telemetry slot; SM `i` has the slot at `TELEMETRY + i * SLOT_BYTES`.
pub const TELEMETRY: u64 = 384;
/// Size of a telemetry slot.
pub const SLOT_BYTES: u64 = 8;
/// In a slot, `u32`: workers that have registered on this SM. A worker registers when it starts; on
/// a foreign SM it leaves at once.
pub const SLOT_REGISTERED: u64 = 0;
/// In a slot, `u32`: registered workers that have left this SM.
pub const SLOT_LEFT: u64 = 4;

/// Size of a control block for a device of `sm_count` SMs, a multiple of 128.
#[must_use]
pub const fn block_bytes(sm_count: u16) -> u64 {
    (TELEMETRY + sm_count as u64 * SLOT_BYTES).next_multiple_of(128)
}
