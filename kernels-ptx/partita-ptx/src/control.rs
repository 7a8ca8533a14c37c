//! The control block of a launch, as the code of [`crate::worker()`] and [`crate::ticket()`] reads
//! and writes it.
//!
//! The rewritten kernel and its launcher share the block; this module is the kernel's side of that
//! contract. Each part starts on a 128-byte line of its own:
//!
//! - the *queue*: device atomics, and the host before the launch and to abort it;
//! - the *shape*: constant;
//! - the *signal*: the host, while the kernel runs;
//! - *completed*: device atomics;
//! - the *slots*, one per SM: the device, and the host for the gate;
//! - the *counts* behind them, a `u32` per SM: workers that were let in by a gate of 3, device
//!   atomics.
//!
//! All fields are little-endian.
//!
//! The pointer in the extra parameter is the block's address. Its lowest five bits are the number
//! of a **helper** grid, or 0 for the launch's **main** grid. A CTA of the main grid that knows
//! that others may still work for the launch stays until `completed` equals `total`. No ticket
//! waits, so tickets ignore the number, `retired`, tasks by place, `main_ctas` and `departed`.

/// The bits of the pointer that hold the grid's number and not the address.
pub const NUMBER: u64 = 31;

/// `u64`: the linear index of the next unclaimed CTA, in the bits below `EXHAUSTED`. The value may
/// pass `total`.
pub const NEXT: u64 = 0;
/// At `NEXT`: a worker of a helper grid has come.
pub const HELPED: u64 = 1 << 63;
/// At `NEXT`: nothing is left to claim, because the launch is aborted.
pub const EXHAUSTED: u64 = 1 << 62;
/// `u32`: CTAs of the main grid that have left while others may still work for the launch.
pub const DEPARTED: u64 = 16;
/// `u32`: CTAs of the main grid that found no task by place.
pub const IDLE: u64 = 20;
/// `u32`: the first fault of a kernel that can be stopped; 0 is none. `ABORT` is set after it.
pub const FAULT: u64 = 24;
/// At `FAULT`: a thread executed `trap`.
pub const FAULT_TRAP: u32 = 1;
/// At `FAULT`: an assertion failed.
pub const FAULT_ASSERT: u32 = 2;
/// At `FAULT`: an address was no multiple of its access's size.
pub const FAULT_MISALIGNED: u32 = 3;
/// At `FAULT`: an address lay beyond shared, local or constant memory, or the parameters.
pub const FAULT_BEYOND: u32 = 4;
/// At `FAULT`: a barrier does not exist, or waits for threads that are not there.
pub const FAULT_ILLEGAL: u32 = 5;

/// `u64`: the linear index behind the launch's last CTA.
pub const TOTAL: u64 = 128;
/// `u32`: CTAs of the main grid as launched, to compare `departed` with.
pub const MAIN_CTAS: u64 = 136;
/// `u32`: CTAs that are tasks by place.
pub const STATIC: u64 = 140;
/// `u32`: the original `%nctaid.x`.
pub const GRID_X: u64 = 144;
/// `u32`: the original `%nctaid.y`.
pub const GRID_Y: u64 = 148;
/// `u32`: the original `%nctaid.z`.
pub const GRID_Z: u64 = 152;
/// `u32`: a task has at most the CTAs left to claim ÷ 2^`SHIFT`, and at least one.
pub const SHIFT: u64 = 156;
/// `u64`: the linear index of the launch's first CTA.
pub const FIRST: u64 = 160;
/// `u32`: from one task by place of an SM to the next.
pub const STRIDE: u64 = 168;
/// `u32`: where the counts of workers by SM begin, from the block's address.
pub const COUNTS: u64 = 172;
/// `u32`: the original `%cluster_nctaid.x`.
pub const CLUSTER_X: u64 = 176;
/// `u32`: the original `%cluster_nctaid.y`.
pub const CLUSTER_Y: u64 = 180;
/// `u32`: the original `%cluster_nctaid.z`.
pub const CLUSTER_Z: u64 = 184;
/// `u64`: the address of a `u32` in host memory, to which the first fault goes too; 0 for none.
pub const FAULT_TO: u64 = 192;

/// `u32`: 1 tells every worker, the parked one too, to leave at the next task border; else 0. The
/// device writes it too, when it sets `FAULT`. `EXHAUSTED` is set with it.
pub const ABORT: u64 = 256;
/// `u32`: bit `n` tells the workers of helper grid `n` to leave at the next task border.
pub const RETIRED: u64 = 260;
/// `u32`: workers or tickets of the launch on an SM whose gate is 3, at most.
pub const QUOTA: u64 = 264;

/// `u64`: the linear index of the first CTA, and the CTAs that are complete.
pub const COMPLETED: u64 = 384;

/// The first slot; SM `i` has the slot at `SLOTS + i * SLOT_BYTES`.
pub const SLOTS: u64 = 512;
/// Size of a slot.
pub const SLOT_BYTES: u64 = 16;
/// In a slot, `u32`: workers that have registered on this SM.
pub const SLOT_REGISTERED: u64 = 0;
/// In a slot, `u32`: the gate. Bits 0 and 1: 1 open, 2 stalled, 0 shut, 3 open to as many as
/// [`QUOTA`] says; from bit 2 the tasks by place, from bit 8 the CTAs of a task at most, from bit
/// 16 the first task by place.
pub const SLOT_GATE: u64 = 4;
/// In a slot, `u32`: registered workers that have left this SM.
pub const SLOT_LEFT: u64 = 8;
/// In a slot, `u32`: bit `k` marks the `k`-th task by place as given back.
pub const SLOT_RETURNED: u64 = 12;
