//! The outcome of a pass for each kernel, and the reason in words where a kernel stayed as it was.

use std::fmt;

use crate::ir::{FuncId, Pos, VarId};
use crate::kernels::{Kernel, Param};

/// The outcome of a pass for one kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelReport {
    /// The kernel.
    pub func: FuncId,
    /// Its name.
    pub name: String,
    /// What happened.
    pub outcome: Outcome,
    /// Whether the kernel has one more, last parameter of 8 bytes. The parameter is the address of
    /// 8 zeroed bytes of device memory for the barrier of a cooperative launch, and 0 for other
    /// launches ([`crate::WorkerOptions::grid_workspace`]).
    pub workspace: bool,
    /// Parameters that the pass added after the kernel's own.
    pub added: Vec<Param>,
    /// Bytes from the first parameter on where 8 bytes must be 0 or the handle of a texture or
    /// surface object of the program, in ascending order ([`crate::fence()`]).
    pub handles: Vec<u64>,
    /// Bytes of dynamic shared memory that each launch must have beside what the program asks for
    /// ([`mod@crate::contain`]).
    pub hidden_shared: u32,
    /// The obstacles of a better form that was passed over ([`crate::choose()`]).
    pub passed_over: Vec<Refusal>,
}

impl KernelReport {
    /// The report of a kernel with this outcome and nothing else.
    #[must_use]
    pub fn new(kernel: &Kernel, outcome: Outcome) -> Self {
        let name = kernel.name.clone();
        Self {
            func: kernel.func,
            name,
            outcome,
            workspace: false,
            added: Vec::new(),
            handles: Vec::new(),
            hidden_shared: 0,
            passed_over: Vec::new(),
        }
    }

    /// The new form, when there is one.
    #[must_use]
    pub const fn rewritten(&self) -> Option<&Rewrite> {
        match &self.outcome {
            Outcome::Rewritten(rewrite) => Some(rewrite),
            Outcome::Applied | Outcome::Refused(_) => None,
        }
    }

    /// The reasons why the kernel stayed as it was; empty when it was rewritten.
    #[must_use]
    pub fn refusals(&self) -> &[Refusal] {
        match &self.outcome {
            Outcome::Rewritten(_) | Outcome::Applied => &[],
            Outcome::Refused(refusals) => refusals,
        }
    }
}

/// The outcome of a pass for a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The kernel is in its new form.
    Rewritten(Box<Rewrite>),
    /// The pass is applied; the kernel's form stays.
    Applied,
    /// The kernel stayed as it was, for at least one reason.
    Refused(Vec<Refusal>),
}

/// How a rewritten kernel gets the original's CTAs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelForm {
    /// A CTA claims one task after another ([`crate::worker()`]).
    Worker,
    /// A CTA claims one CTA ([`crate::ticket()`]).
    Ticket,
}

/// A kernel's new form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewrite {
    /// Which.
    pub form: KernelForm,
    /// The extra, last parameter.
    pub control: VarId,
    /// The variable in shared memory that the form adds.
    pub slot: VarId,
    /// Name of the extra parameter.
    pub control_param: String,
    /// Offset of the extra parameter in the parameter buffer; the parameter has 8 bytes.
    pub control_offset: u64,
    /// Static shared memory that the form adds, in bytes.
    pub shared_added: u64,
    /// Whether a ticket claims for a whole cluster: waves have clusters of one dimension with as
    /// many CTAs as the original's.
    pub clusters: bool,
    /// Blocks that the form is right for.
    pub blocks: Blocks,
    /// The original beside the form ([`crate::WorkerOptions::keep_originals`],
    /// [`crate::WorkerOptions::beside`]): an entry of the same module with the original's
    /// parameters. `None` where originals are not kept.
    pub original: Option<String>,
    /// Whether the form cannot serve every launch, and the original serves the others.
    pub needs_original: bool,
    /// The place of the original `%ctaid` (x, y, z) for a debugger while a CTA runs: a register, or
    /// a 32-bit word of a shared variable as `variable+offset`.
    pub cta_values: [String; 3],
}

/// Blocks that a form is right for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocks {
    /// All.
    Any,
    /// Blocks whose rows fill warps: one-dimensional blocks, and blocks whose x extent is a
    /// multiple of 32. Only for these holds the proof that no thread leaves early while its warp
    /// synchronises.
    FullRows,
}

impl Blocks {
    /// Whether the form may be launched with such a block.
    #[must_use]
    pub const fn fit(self, block: [u32; 3]) -> bool {
        match self {
            Self::Any => true,
            Self::FullRows => block[0].is_multiple_of(32) || (block[1] == 1 && block[2] == 1),
        }
    }
}

/// A reason with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The instruction or declaration; line 0 when the reason has no single place.
    pub pos: Pos,
    /// Why.
    pub reason: Reason,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.pos.line > 0 {
            write!(f, "line {}: ", self.pos.line)?;
        }
        write!(f, "{}", self.reason)
    }
}

/// Why a kernel cannot take a form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// Nobody asked for another form.
    #[error("the GPU is shared by its own scheduler, so every kernel runs as it is")]
    NotWanted,
    /// The caller has given up on the module.
    #[error("the analysis was stopped")]
    Stopped,
    /// A thread may leave while others wait for it at a CTA barrier.
    #[error(
        "threads may skip this barrier and leave (decided in line {branch}); a resident worker's \
         threads never leave, \
         so the others would wait for ever"
    )]
    ExitBeforeBarrier {
        /// Line of the branch by which threads part.
        branch: u32,
    },
    /// The same for an instruction that waits for lanes of the warp.
    #[error(
        "lanes may skip this `{instruction}` and leave (decided in line {branch}); a resident \
         worker's lanes never \
         leave, so their warp would wait for ever"
    )]
    ExitBeforeWarpSync {
        /// The instruction's opcode.
        instruction: String,
        /// Line of the branch by which lanes part.
        branch: u32,
    },
    /// `exit` in a device function.
    #[error(
        "`exit` inside the function `{function}` ends a thread that the rewritten kernel needs at \
         its end"
    )]
    ExitInFunction {
        /// The function.
        function: String,
    },
    /// A grid coordinate read in a device function that cannot be copied.
    #[error(
        "`{register}` is read inside the function `{function}`, where the original grid is not \
         known: there are calls \
         through registers, or variables that are not for a CTA are declared in the function"
    )]
    GridInFunction {
        /// The function.
        function: String,
        /// The special register.
        register: String,
    },
    /// `%gridid`.
    #[error("`%gridid` is read, and one launch may become several grids")]
    GridId,
    /// A grid register read as a vector.
    #[error("`{register}` is read as a vector; read its components")]
    GridVector {
        /// The special register.
        register: String,
    },
    /// `%envreg`: cooperative grids.
    #[error(
        "`%envreg` is read, as for grid-wide synchronisation: all CTAs would have to run at once"
    )]
    Cooperative,
    /// Clusters.
    #[error("`{what}` needs thread block clusters, and this form runs the CTAs one by one")]
    Cluster {
        /// The instruction, register or directive.
        what: String,
    },
    /// State of the hardware that outlives a CTA of the original.
    #[error("`{instruction}` leaves state behind that the next CTA of the worker would find")]
    StateOutlives {
        /// The instruction's opcode.
        instruction: String,
    },
    /// `bar.arrive`.
    #[error(
        "`{instruction}` may be pending when the CTA ends, and the next CTA of the worker would \
         find it"
    )]
    PendingBarrier {
        /// The instruction's opcode.
        instruction: String,
    },
    /// A barrier whose number is in a register.
    #[error(
        "the number of this barrier is in a register, so none is known to be free for the \
         worker's own"
    )]
    BarrierInRegister,
    /// All 16 barriers are taken by counted ones.
    #[error("all 16 barriers are in use, and the worker needs one")]
    NoBarrierLeft,
    /// A kernel that needs its original beside it declares a variable that outlives a CTA.
    #[error(
        "`{variable}` is declared inside the kernel; the worker does not serve every launch, and \
         the original beside it \
         would have a variable of its own"
    )]
    StateInKernel {
        /// The variable.
        variable: String,
    },
    /// `alloca` in the kernel itself.
    #[error(
        "`alloca` takes stack that only the kernel's end gives back, and a worker runs many CTAs"
    )]
    Alloca,
    /// Launch from the device.
    #[error(
        "the kernel launches grids from the device (`{function}`); their end would not be waited \
         for"
    )]
    DeviceLaunch {
        /// The function that does it.
        function: String,
    },
    /// A function whose body is elsewhere.
    #[error("the function `{function}` is defined elsewhere, so what it does is not known")]
    UnknownFunction {
        /// The function.
        function: String,
    },
    /// The parameter buffer has no room for one more.
    #[error("parameters take {bytes} bytes, and {limit} with the pass's are the limit")]
    ParametersFull {
        /// Bytes now.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// Static shared memory has no room for the slot.
    #[error(
        "static shared memory takes {bytes} bytes; with the worker's {added} it would pass the \
         limit of {limit}"
    )]
    SharedFull {
        /// Bytes now.
        bytes: u64,
        /// What the form adds.
        added: u64,
        /// The limit.
        limit: u64,
    },
    /// Not a 64-bit module for an `sm_` target.
    #[error("the module is not for 64-bit addresses of a known `sm_` target")]
    Target,
    /// Count: the target has no `match`.
    #[error("counting needs `match.any.sync` and `activemask`: PTX 6.2 for sm_70 or later")]
    NoMatch,
    /// Fence: an instruction that reaches memory by more than an address.
    #[error("`{instruction}` reaches memory by {by}, which cannot be forced into a window")]
    Unfenced {
        /// The instruction's opcode.
        instruction: String,
        /// What it goes by.
        by: &'static str,
    },
    /// Fence: a register whose name means another one in an inner scope. Contain: a variable of the
    /// module whose name means something else in a function.
    #[error(
        "`{register}` is declared again in a scope inside, where checks would name the wrong one"
    )]
    DeclaredAgain {
        /// The register, or the variable.
        register: String,
    },
    /// Fence: a call whose target is in a register.
    #[error("a call through a register may go anywhere, also behind an address check")]
    CallThroughRegister,
    /// Contain: a function that takes memory of the stack as it goes.
    #[error("the function `{function}` takes memory of the stack, and how much is not known")]
    UnboundedStack {
        /// The function.
        function: String,
    },
    /// Contain: generic pointers of a function may name local memory that lies nobody knows where.
    #[error("what local memory pointers of `{function}` may name is not known")]
    UnboundedFrame {
        /// The function.
        function: String,
    },
    /// Contain: a function that may call itself.
    #[error("the function `{function}` may call itself, and how deep it goes is not known")]
    Recursion {
        /// The function.
        function: String,
    },
    /// Contain: threads that may wait for each other at barriers, or lanes at instructions of the
    /// warp, in a module that can have no loops for them.
    #[error("its threads may wait for each other for ever: guards need PTX 6.3 for sm_70 or later")]
    EndlessWaits,
    /// Contain: an instruction whose faults no guard contains.
    #[error("`{instruction}` {why}: no guard bounds that")]
    Uncontained {
        /// The instruction's opcode.
        instruction: String,
        /// What it does.
        why: &'static str,
    },
    /// Fence: a function of the driver's that reads or writes memory by itself.
    #[error("`{function}` is the driver's, and what it reaches cannot be forced into a window")]
    DriverFunction {
        /// The function.
        function: String,
    },
    /// A function cannot be copied, so it cannot be given what the pass needs.
    #[error("the function `{function}` cannot be given what the pass needs: {why}")]
    Uncopied {
        /// The function.
        function: String,
        /// What stands in the way.
        why: &'static str,
    },
    /// Too many branches for the analysis.
    #[error("the kernel is too large to be analysed: {blocks} basic blocks")]
    TooLarge {
        /// Its basic blocks.
        blocks: usize,
    },
}
