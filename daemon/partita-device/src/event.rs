//! Events of a device.

use partita_model::{
    Bytes, DeviceAddress, Dim3, ModuleId, Nanos, OperationId, ResidencyChange, SmSet,
};
use std::fmt;

/// An event on a device.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// A module is loaded.
    ModuleLoaded {
        /// The module.
        module: ModuleId,
        /// Its contents.
        facts: ModuleFacts,
    },
    /// A module could not be loaded.
    ModuleRefused {
        /// The module.
        module: ModuleId,
        /// The reason, with line and column where there is one.
        reason: String,
    },
    /// An operation has ended, and its effects can be seen by everyone.
    Done {
        /// The operation.
        operation: OperationId,
        /// Device time of the end.
        time: Nanos,
        /// The way in which it ended.
        outcome: Outcome,
    },
    /// SMs that [`crate::Confining::confine`] was asked for can be launched on, or cannot.
    Confined {
        /// The SMs.
        sms: SmSet,
        /// The reason, where they cannot.
        result: Result<(), String>,
    },
    /// The device takes launches again ([`crate::Phase`]).
    Reopened,
    /// A CTA came or left ([`crate::ResidencyTrace::trace_residency`]).
    Residency(ResidencyChange),
    /// Output of a kernel (`vprintf`).
    Output {
        /// The grid.
        operation: OperationId,
        /// The output.
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
        /// The driver's reason.
        reason: String,
    },
}

/// The end of an operation.
#[derive(Clone, PartialEq, Debug)]
pub enum Outcome {
    /// The operation is complete.
    Complete,
    /// [`crate::Device::cancel`] ended it.
    Cancelled,
    /// A fault ended it. Boxed because it is rare and large.
    Fault(Box<Fault>),
}

/// The contents of a loaded module.
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
    /// The instruction, the reason and the remedy.
    pub what: String,
}

impl RefusedKernel {
    /// Line, reason and remedy in words.
    #[must_use]
    pub fn reason(&self) -> String {
        match self.line {
            Some(line) => format!("line {line}: {}", self.what),
            None => self.what.clone(),
        }
    }
}

/// Facts about a kernel (`cuFuncGetAttribute`).
#[derive(Clone, PartialEq, Debug)]
pub struct KernelFacts {
    /// Its name.
    pub name: String,
    /// 32-bit registers per thread.
    pub registers: u32,
    /// Static shared memory per CTA in bytes.
    pub static_shared: Bytes,
    /// Local memory per thread in bytes.
    pub local: Bytes,
    /// The largest CTA that it can be launched with, in threads.
    pub max_threads: u32,
    /// CTAs of a cluster along each axis, where its code fixes them.
    pub required_cluster: Option<Dim3>,
}

/// A variable of a module.
#[derive(Clone, PartialEq, Debug)]
pub struct VariableFacts {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: DeviceAddress,
    /// Its size in bytes.
    pub size: Bytes,
}

/// Kinds of fault, as CUDA distinguishes them.
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
    /// The source file.
    pub file: String,
    /// The line in the source file.
    pub line: u32,
    /// The function, as the compiler writes it.
    pub function: String,
    /// The asserted expression.
    pub expression: String,
    /// `%tid` of the threads of the warp for which the expression was false.
    pub threads: Vec<Dim3>,
}

impl Assertion {
    /// CUDA's message: one line for each thread.
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
    /// The hardware's `%ctaid`. In a worker it names the worker, not the CTA that it was running.
    pub cta: Dim3,
    /// `%tid`.
    pub thread: Dim3,
}

/// A fault in a grid, as exactly as the device knows it.
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
    /// Details in words: access size, the nearest allocation, the assertion's text.
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
