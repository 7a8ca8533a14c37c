//! What a device tells.

use partita_model::{
    Bytes, DeviceAddress, Dim3, ModuleId, Nanos, OperationId, ResidencyChange, SmSet,
};
use std::fmt;

/// Something that happened on a device.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// A module is loaded.
    ModuleLoaded {
        /// Which.
        module: ModuleId,
        /// What is in it.
        facts: ModuleFacts,
    },
    /// A module could not be loaded.
    ModuleRefused {
        /// Which.
        module: ModuleId,
        /// What is wrong, with line and column where there is one.
        reason: String,
    },
    /// An operation has ended, and its effects can be seen by everyone.
    Done {
        /// Which.
        operation: OperationId,
        /// When.
        time: Nanos,
        /// How.
        outcome: Outcome,
    },
    /// SMs that [`crate::MachineCode::confine`] was asked for can be launched on, or cannot.
    Confined {
        /// Which.
        sms: SmSet,
        /// Why not, where they cannot.
        result: Result<(), String>,
    },
    /// A CTA came or left ([`crate::ResidencyTrace::trace_residency`]).
    Residency(ResidencyChange),
    /// A kernel printed something (`vprintf`).
    Output {
        /// The grid.
        operation: OperationId,
        /// What it printed.
        text: Vec<u8>,
    },
    /// Something about a grid that a person should know, and that is no outcome.
    Notice {
        /// The grid.
        operation: OperationId,
        /// What, in one line.
        text: String,
    },
    /// Everything on the device is gone; the process that holds it must be restarted.
    Lost {
        /// What the driver said.
        reason: String,
    },
}

/// How an operation ended.
#[derive(Clone, PartialEq, Debug)]
pub enum Outcome {
    /// As it should.
    Complete,
    /// By [`crate::Device::cancel`].
    Cancelled,
    /// By a fault. Boxed because it is rare and large.
    Fault(Box<Fault>),
}

/// What a loaded module holds.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ModuleFacts {
    /// Its kernels that can run.
    pub kernels: Vec<KernelFacts>,
    /// Its kernels that this device cannot run.
    pub refused: Vec<RefusedKernel>,
    /// Its global and constant variables.
    pub variables: Vec<VariableFacts>,
}

/// A kernel that a device cannot run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RefusedKernel {
    /// Its name.
    pub name: String,
    /// The line of the PTX text that was loaded, from 1, where one is known.
    pub line: Option<u32>,
    /// The instruction, what is the matter with it, and what to do instead.
    pub what: String,
}

impl RefusedKernel {
    /// Line and what, in words.
    #[must_use]
    pub fn reason(&self) -> String {
        match self.line {
            Some(line) => format!("line {line}: {}", self.what),
            None => self.what.clone(),
        }
    }
}

/// What the device knows of a kernel: `cuFuncGetAttribute`.
#[derive(Clone, PartialEq, Debug)]
pub struct KernelFacts {
    /// Its name.
    pub name: String,
    /// 32-bit registers per thread.
    pub registers: u32,
    /// Static shared memory per CTA.
    pub static_shared: Bytes,
    /// Local memory per thread.
    pub local: Bytes,
    /// The largest CTA that it can be launched with, in threads.
    pub max_threads: u32,
}

/// A variable of a module.
#[derive(Clone, PartialEq, Debug)]
pub struct VariableFacts {
    /// Its name.
    pub name: String,
    /// Where it lies.
    pub address: DeviceAddress,
    /// Its size.
    pub size: Bytes,
}

/// The kinds of fault that CUDA tells apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// `CUDA_ERROR_ILLEGAL_ADDRESS`.
    IllegalAddress,
    /// `CUDA_ERROR_MISALIGNED_ADDRESS`.
    MisalignedAddress,
    /// `CUDA_ERROR_INVALID_ADDRESS_SPACE`.
    InvalidAddressSpace,
    /// `CUDA_ERROR_ILLEGAL_INSTRUCTION`.
    IllegalInstruction,
    /// `CUDA_ERROR_INVALID_PC`.
    InvalidPc,
    /// `CUDA_ERROR_HARDWARE_STACK_ERROR`: too deep a call.
    StackOverflow,
    /// `CUDA_ERROR_ASSERT`.
    Assert,
    /// `CUDA_ERROR_LAUNCH_FAILED`: `trap`, or a barrier that can never be passed.
    LaunchFailed,
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FaultKind::IllegalAddress => "illegal address",
            FaultKind::MisalignedAddress => "misaligned address",
            FaultKind::InvalidAddressSpace => "invalid address space",
            FaultKind::IllegalInstruction => "illegal instruction",
            FaultKind::InvalidPc => "invalid program counter",
            FaultKind::StackOverflow => "stack overflow",
            FaultKind::Assert => "failed assertion",
            FaultKind::LaunchFailed => "launch failure",
        })
    }
}

/// An assertion that did not hold (CUDA C++ Programming Guide, "Assertion").
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Assertion {
    /// The file that it is in.
    pub file: String,
    /// Its line there.
    pub line: u32,
    /// The function that it is in, as the compiler writes it.
    pub function: String,
    /// What should have held.
    pub expression: String,
    /// `%tid` of the threads of the warp for which it did not hold.
    pub threads: Vec<Dim3>,
}

impl Assertion {
    /// What CUDA prints: one line for each thread.
    #[must_use]
    pub fn message(&self, cta: Dim3) -> String {
        let Assertion { file, line, function, expression, threads } = self;
        let one = |thread: &Dim3| {
            format!(
                "{file}:{line}: {function}: block: [{cta}], thread: [{thread}] Assertion \
                 `{expression}` failed.\n"
            )
        };
        threads.iter().map(one).collect()
    }
}

/// The thread at fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ThreadPosition {
    /// The hardware's `%ctaid`. In a worker this is the worker, not the CTA that it was running.
    pub cta: Dim3,
    /// `%tid`.
    pub thread: Dim3,
}

/// What went wrong in a grid, as exactly as the device can tell.
#[derive(Clone, PartialEq, Debug)]
pub struct Fault {
    /// The kind.
    pub kind: FaultKind,
    /// The kernel's name.
    pub kernel: String,
    /// The thread, where the device knows.
    pub position: Option<ThreadPosition>,
    /// The line of the PTX text that was loaded, from 1, where the device knows.
    pub line: Option<u32>,
    /// The address, where there is one.
    pub address: Option<DeviceAddress>,
    /// More in words: access size, the nearest allocation, the assertion's text.
    pub detail: String,
    /// The assertion, where the fault is one that failed.
    pub assertion: Option<Assertion>,
    /// Values at the time of the fault, where the device knows: the thread's integer registers by
    /// name, and the first 32-bit words of its CTA's static shared variables, named
    /// `variable+offset`. The original CTA's index of a worker is found here.
    pub values: Vec<(String, u64)>,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in kernel `{}`", self.kind, self.kernel)?;
        if let Some(position) = self.position {
            write!(f, ", CTA ({}), thread ({})", position.cta, position.thread)?;
        }
        if let Some(line) = self.line {
            write!(f, ", PTX line {line}")?;
        }
        if let Some(address) = self.address {
            write!(f, ", address {address}")?;
        }
        if !self.detail.is_empty() {
            write!(f, ": {}", self.detail)?;
        }
        Ok(())
    }
}
