//! What the shell makes of a module's image before the device loads it.
//!
//! Unpacking, parsing and rewriting take long and know PTX, so the shell does them beside the
//! engine.

use crate::ParamLayout;
use partita_model::{CudaResult, ModuleId};
use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// What a module is prepared for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Purpose {
    /// To run.
    #[default]
    Run,
    /// To ask the device for the registers of these kernels as they were written. The map holds the
    /// registers of their forms. Nothing of such a module is launched.
    Registers(Arc<BTreeMap<Arc<str>, u32>>),
    /// To run, with bounded registers. The map holds the registers of kernels as they were written,
    /// and their forms may have no more. Then every block that fits the original can be launched,
    /// and as many are resident. Kernels outside the map need no bound.
    RunWithin(Arc<BTreeMap<Arc<str>, u32>>),
}

/// What bounds the registers of a kernel's forms.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RegisterBound {
    /// Nothing: a form may have too many registers for a block to be launched.
    #[default]
    Nothing,
    /// The program says how large its blocks are, and so they can be launched.
    Blocks,
    /// The program bounds their number, or the device has been asked ([`Purpose::RunWithin`]).
    Settled,
}

/// A module ready for the device.
#[derive(Clone, PartialEq, Debug)]
pub struct PreparedModule {
    /// The PTX text to load.
    pub ptx: Arc<str>,
    /// The image of machine code to load in its place, where there is no text.
    pub code: Option<Arc<[u8]>>,
    /// The program's kernels.
    pub kernels: Vec<PreparedKernel>,
    /// For each line of [`PreparedModule::ptx`] (line 1 first) the line of the program's own PTX
    /// that it came from, 0 where it came from none. `None`: the texts are the same, or the lines
    /// are unknown.
    pub lines: Option<Arc<[u32]>>,
    /// What forms of its kernels are prepared from later, where some are
    /// ([`PreparedKernel::later`]).
    pub later: Option<Later>,
}

/// What forms of kernels are prepared from when a kernel is first launched.
#[derive(Clone, PartialEq, Debug)]
pub struct Later {
    /// The shell's own.
    pub source: Source,
    /// Bytes of text that these forms may have in all.
    pub room_bytes: u64,
}

/// Something of the shell that lives as long as the module. The engine does not look inside.
#[derive(Clone)]
pub struct Source(pub Arc<dyn Any + Send + Sync>);

impl PartialEq for Source {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Source")
    }
}

/// The kernel whose forms are prepared later: the module that the device has, and the kernel's
/// index in [`PreparedModule::kernels`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct FormsOf {
    /// The module.
    pub module: ModuleId,
    /// The kernel's index.
    pub kernel: u32,
}

/// One kernel of a prepared module.
#[derive(Clone, PartialEq, Debug)]
pub struct PreparedKernel {
    /// Its name in the program's module.
    pub name: Arc<str>,
    /// The name of the entry to launch in [`PreparedModule::ptx`].
    pub entry: Arc<str>,
    /// Its parameters as the program declared them.
    pub params: Vec<ParamLayout>,
    /// Size of its parameter space as the program declared it.
    pub param_bytes: u32,
    /// How it runs.
    pub form: KernelForm,
    /// What bounds the registers of its forms.
    pub registers: RegisterBound,
    /// How it keeps to its session's window.
    pub fence: Fence,
    /// A name for its code: equal for equal code, in whatever module.
    pub hash: Option<Arc<str>>,
    /// Whether the kernel may wait for what others write: it reads memory in a loop.
    pub awaits: bool,
    /// Whether its CTAs may wait for earlier CTAs. A worker that ran several CTAs one after the
    /// other would hold up all later ones.
    pub follows: bool,
    /// Whether a thread of the kernel may write a fault into its control block
    /// ([`partita_model::control::FAULT`]): `trap` and failed assertions do, where they would end
    /// everything on the device ([`partita_device::Guards::ends`]).
    pub gives_up: bool,
    /// Whether it may loop or recurse: the code of others ends after each instruction was executed
    /// once.
    pub loops: bool,
    /// The entry of its worker form that counts, if there is one: it takes one more parameter, a
    /// `u64` before that of the control block, the address of the count block
    /// ([`partita_model::profile`]).
    pub counting: Option<Arc<str>>,
    /// Its `slice` form, for launches that would run alone. `None`: such launches run whole.
    pub slice: Option<Slice>,
    /// Bytes of dynamic shared memory that each launch of its entries has beside what the program
    /// asks for, for words of its guards.
    pub hidden_shared: u32,
    /// Where 8 bytes of its parameters are the handle of a texture or surface object, in bytes from
    /// their beginning. Where the kernel is fenced by its code ([`Fence::Code`]), these bytes must
    /// be 0 or an object of its program.
    pub handles: Arc<[u32]>,
    /// Whether the kernel has a better form, which is prepared when the kernel is first launched
    /// ([`crate::Action::PrepareForms`]).
    pub later: bool,
}

/// How a kernel keeps to its session's window.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Fence {
    /// The device sees to it.
    #[default]
    Device,
    /// By its own code: every entry takes one more parameter, a `u64` behind the program's own at
    /// the next multiple of 8 and before all others, the first address of the window's cell
    /// ([`partita_device::Guards::cell_bits`]).
    Code,
    /// The same, but its faults may reach others: it may end the device's work, or occupy the
    /// device for ever. Why.
    Uncontained(String),
    /// It does not, and why.
    None(String),
}

/// The form in which a kernel runs.
#[derive(Clone, PartialEq, Debug)]
pub enum KernelForm {
    /// As workers: the entry takes one more parameter, a `u64` behind the others at the next
    /// multiple of 8, the address of the control block ([`partita_model::control`]).
    Worker {
        /// Where a fault's values tell the original `%ctaid`, x, y and z
        /// ([`partita_device::Fault::values`]).
        cta_values: Option<[String; 3]>,
        /// The original beside it, where some launches need it. `None`: the worker serves every
        /// launch.
        fallback: Option<Fallback>,
    },
    /// As tickets: the entry takes the same parameter, and each of its CTAs runs one CTA of the
    /// original or leaves at once.
    Ticket {
        /// As a worker's.
        cta_values: Option<[String; 3]>,
        /// As a worker's.
        fallback: Option<Fallback>,
        /// Why it cannot be a worker.
        reason: String,
        /// Whether a cluster of tickets claims a whole cluster of the original: waves have clusters
        /// of one dimension with as many CTAs.
        clusters: bool,
    },
    /// As unchanged machine code, on groups of SMs to which the device keeps it
    /// ([`partita_device::Work::LaunchOn`]). Where its application has no whole group, the kernel
    /// runs alone.
    MachineCode,
    /// As it was written. Such a kernel cannot be confined, so it runs alone.
    Original {
        /// Why it can be neither.
        reason: String,
        /// The entry takes one more parameter, a `u64` behind the others at the next multiple of 8:
        /// the address of 8 zeroed bytes for the barrier of a cooperative launch, 0 for other
        /// launches.
        workspace: bool,
        /// The entry takes one more parameter behind that: the address of a control block, whose
        /// abort flag it looks at where it waits.
        abort: bool,
    },
}

impl KernelForm {
    /// The original beside it, where some launches need it.
    #[must_use]
    pub const fn fallback(&self) -> Option<&Fallback> {
        match self {
            KernelForm::Worker { fallback, .. } | KernelForm::Ticket { fallback, .. } => {
                fallback.as_ref()
            }
            KernelForm::MachineCode | KernelForm::Original { .. } => None,
        }
    }

    /// Where a fault's values tell the original `%ctaid`.
    #[must_use]
    pub const fn cta_values(&self) -> Option<&[String; 3]> {
        match self {
            KernelForm::Worker { cta_values, .. } | KernelForm::Ticket { cta_values, .. } => {
                cta_values.as_ref()
            }
            KernelForm::MachineCode | KernelForm::Original { .. } => None,
        }
    }
}

/// The original form of a kernel beside its worker or ticket form. It serves CTAs that do not fit
/// an SM with what the form adds; such launches run alone. It also serves short launches of an
/// application that has the GPU to itself ([`crate::EngineConfig::originals`]).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fallback {
    /// The name of its entry in [`PreparedModule::ptx`].
    pub entry: Arc<str>,
    /// Whether it also serves cooperative launches: the program may want all CTAs at once.
    pub for_cooperative: bool,
    /// Whether it also serves blocks whose rows do not fill warps: those of more than one dimension
    /// whose x extent is no multiple of 32.
    pub for_broken_rows: bool,
    /// The entry takes one more parameter, a `u64` behind the others at the next multiple of 8: the
    /// address of a control block, whose abort flag it looks at where it waits.
    pub abort: bool,
}

/// The `slice` form of a kernel beside its other entries: a grid of one dimension that runs
/// consecutive CTAs of the original's grid. The entry takes more parameters behind the others: the
/// linear index of the first CTA (`u64`, at the next multiple of 8), then width, height and depth
/// of the original's grid (`u32`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Slice {
    /// The name of its entry in [`PreparedModule::ptx`].
    pub entry: Arc<str>,
    /// The entry takes one more parameter, a `u64` behind the others at the next multiple of 8: the
    /// address of a control block, whose abort flag it looks at where it waits.
    pub abort: bool,
}

/// Why an image could not be prepared.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{text}")]
pub struct PrepareError {
    /// What the program gets.
    pub code: CudaResult,
    /// What is wrong, where, and what helps.
    pub text: String,
}
