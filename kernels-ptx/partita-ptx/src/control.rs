//! The control block of a launch, as the code of [`crate::worker()`] and [`crate::ticket()`] reads
//! and writes it.
//!
//! The rewritten kernel and its launcher share the block; this module is the kernel's side of that
//! contract. The block has three parts by who writes them, each on a 128-byte line of its own:
//!
//! - the *queue*: device atomics, and the host only before the launch;
//! - the *signal*: the host, while the kernel runs;
//! - the *telemetry*: the device, one slot per SM.
//!
//! The launch's shape follows the queue and is constant. All fields are little-endian.
//!
//! The pointer in the extra parameter is the block's address. Its lowest five bits are the number
//! of a **helper** grid, or 0 for the launch's **main** grid. The last CTA to leave the main grid
//! stays until `completed` equals `total`. No ticket waits, so tickets ignore the number,
//! `retired`, `task`, `main_ctas` and `departed`.

/// The bits of the pointer that hold the grid's number and not the address.
pub const NUMBER: u64 = 31;

/// `u64`: the linear index of the next unclaimed CTA. The value may pass `total`.
pub const NEXT: u64 = 0;
/// `u64`: CTAs whose effects are complete and visible.
pub const COMPLETED: u64 = 8;
/// `u32`: CTAs of the main grid that have left. The CTA that completes the launch's last CTA leaves
/// without being counted.
pub const DEPARTED: u64 = 16;
/// `u32`: the first fault of a kernel that can be stopped; 0 is none. `ABORT` is set after it.
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
