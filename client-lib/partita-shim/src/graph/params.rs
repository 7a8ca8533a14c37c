//! Nodes as the structures of CUDA's C interface (`CUDA_…_NODE_PARAMS`, `CUgraphNodeParams`).

use crate::abi::{Array, Memory, Plain};
use crate::copy_calls::Copy3D;
use crate::error::{CuError, CuResult};
use crate::fill_calls::Fill;
use crate::graph::action::{Action, HostCall, HostFunction, Kernel};
use crate::graph::conditional::Conditional;
use crate::launch::{Arguments, LaunchCall, prepare};
use crate::runtime::Runtime;
use crate::stream::DefaultStream;
use crate::stream_memory_calls::{self, Batch};
use partita_model::Dim3;
use std::sync::Arc;

/// `CUDA_KERNEL_NODE_PARAMS_v1`, which the later versions begin with.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct KernelParams {
    function: u64,
    grid: [u32; 3],
    block: [u32; 3],
    dynamic_shared: u32,
    each: Memory,
    extra: Memory,
}

/// `CUDA_KERNEL_NODE_PARAMS_v2` and `_v3`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct KernelParams2 {
    first: KernelParams,
    kernel: u64,
    context: u64,
}

/// `CUDA_MEMSET_NODE_PARAMS`; version 2 has a context behind it.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct FillParams {
    to: u64,
    pitch: usize,
    value: u32,
    element: u32,
    width: usize,
    height: usize,
}

/// `CUDA_HOST_NODE_PARAMS`; version 2 has more behind it.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct HostParams {
    function: Option<HostFunction>,
    data: Memory,
}

/// `CUDA_MEM_ALLOC_NODE_PARAMS`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct AllocParams {
    /// `CUmemPoolProps`: kind of memory, handles to share it, where it lies, and what is reserved.
    allocation: i32,
    shared_handles: i32,
    location: [i32; 2],
    others: [u64; 9],
    accesses: Memory,
    access_count: usize,
    /// The size in bytes.
    pub bytes: usize,
    /// The output: the address.
    pub address: u64,
}

/// `CUDA_CONDITIONAL_NODE_PARAMS`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ConditionalParams {
    handle: u64,
    rule: i32,
    count: u32,
    graphs: Memory,
    context: u64,
}

/// `CUDA_BATCH_MEM_OP_NODE_PARAMS`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct WordsParams {
    context: u64,
    count: u32,
    operations: Memory,
    flags: u32,
}

// SAFETY: integers and a pointer.
unsafe impl Plain for ConditionalParams {}
// SAFETY: integers and a pointer.
unsafe impl Plain for WordsParams {}
// SAFETY: integers and pointers, none of which has a niche but `HostParams::function`, for which
// null is `None`.
unsafe impl Plain for KernelParams {}
// SAFETY: as above.
unsafe impl Plain for KernelParams2 {}
// SAFETY: as above.
unsafe impl Plain for FillParams {}
// SAFETY: as above.
unsafe impl Plain for HostParams {}
// SAFETY: as above.
unsafe impl Plain for AllocParams {}

const _: () = assert!(size_of::<KernelParams>() == 56 && size_of::<KernelParams2>() == 72);
const _: () = assert!(size_of::<ConditionalParams>() == 32);
const _: () = assert!(size_of::<WordsParams>() == 32 && align_of::<WordsParams>() == 8);
const _: () = assert!(size_of::<FillParams>() == 40 && size_of::<AllocParams>() == 120);

/// Offset of a node's own structure in `CUgraphNodeParams`.
const UNION: u64 = 16;
/// Offset of the copy in `CUDA_MEMCPY_NODE_PARAMS`.
const COPY: u64 = 16;

impl KernelParams {
    /// The node that it describes.
    pub fn action(&self, runtime: &Runtime) -> CuResult<Action> {
        self.action_with(runtime, 0)
    }

    /// The same with a shared memory mode, which is an attribute of the node.
    pub fn action_with(&self, runtime: &Runtime, shared_mode: i32) -> CuResult<Action> {
        let ([gx, gy, gz], [bx, by, bz]) = (self.grid, self.block);
        let launch = LaunchCall {
            function: self.function,
            grid: Dim3::new(gx, gy, gz),
            block: Dim3::new(bx, by, bz),
            dynamic_shared: self.dynamic_shared,
            stream: 0,
            default: DefaultStream::Legacy,
            cooperative: false,
            shared_mode,
            cluster: Dim3::linear(1),
        };
        let list = |memory: Memory| Array::<Memory>::at(memory.pointer().cast_const().cast());
        let arguments = Arguments { each: list(self.each), extra: list(self.extra) };
        let prepared = prepare(runtime, &launch, arguments)?;
        Ok(Action::Kernel(Arc::new(Kernel::new(prepared, Vec::new()))))
    }

    /// The description of a node. The arguments' addresses are valid until the node changes or is
    /// destroyed.
    pub fn of(kernel: &Kernel) -> Self {
        let call = &kernel.call;
        KernelParams {
            function: call.function,
            grid: [call.grid.x, call.grid.y, call.grid.z],
            block: [call.block.x, call.block.y, call.block.z],
            dynamic_shared: call.dynamic_shared,
            each: Memory::at(if kernel.pointers.is_empty() {
                0
            } else {
                kernel.pointers.as_ptr() as u64
            }),
            extra: Memory::at(0),
        }
    }
}

impl KernelParams2 {
    /// As the first version, which alone names functions.
    pub fn first(&self) -> KernelParams {
        let function = if self.first.function == 0 { self.kernel } else { self.first.function };
        KernelParams { function, ..self.first }
    }

    /// The description of a node.
    pub fn of(runtime: &Runtime, kernel: &Kernel) -> Self {
        let first = KernelParams::of(kernel);
        KernelParams2 { first, kernel: first.function, context: runtime.contexts.primary() }
    }
}

impl FillParams {
    /// The node that it describes.
    pub fn action(&self) -> CuResult<Action> {
        let element = u8::try_from(self.element).ok().filter(|bytes| matches!(bytes, 1 | 2 | 4));
        let fill = Fill {
            to: self.to,
            pitch: self.pitch,
            value: self.value,
            element: element.ok_or(CuError::INVALID_VALUE)?,
            width: self.width,
            height: self.height,
        };
        fill.check()?;
        Ok(Action::Fill(fill))
    }

    /// The description of a node.
    pub fn of(fill: &Fill) -> Self {
        let Fill { to, pitch, value, element, width, height } = *fill;
        FillParams { to, pitch, value, element: u32::from(element), width, height }
    }
}

impl ConditionalParams {
    /// The node that it describes.
    fn action(&self, runtime: &Runtime) -> CuResult<Action> {
        runtime.graphs.conditional(self.handle, self.rule, self.count)
    }

    /// The description of a node. The graphs' address is valid as long as the node is.
    fn of(runtime: &Runtime, node: &Conditional) -> Self {
        ConditionalParams {
            handle: node.condition.address,
            rule: node.rule.to_raw(),
            count: u32::try_from(node.graphs.len()).unwrap_or(u32::MAX),
            graphs: Memory::at(node.handles.as_ptr() as u64),
            context: runtime.contexts.primary(),
        }
    }
}

impl WordsParams {
    /// The node that it describes.
    pub fn action(&self, runtime: &Runtime) -> CuResult<Action> {
        if self.flags != 0 {
            return Err(CuError::INVALID_VALUE);
        }
        let operations = Array::at(self.operations.pointer().cast_const().cast());
        let raw = stream_memory_calls::read(operations, self.count)?;
        Ok(Action::Words(Arc::new(Batch::new(runtime, &raw)?)))
    }

    /// The description of a node. The operations' address is valid until the node changes or is
    /// destroyed.
    pub fn of(runtime: &Runtime, batch: &Batch) -> Self {
        WordsParams {
            context: runtime.contexts.primary(),
            count: u32::try_from(batch.raw.len()).unwrap_or(u32::MAX),
            operations: Memory::at(batch.raw.as_ptr() as u64),
            flags: 0,
        }
    }
}

impl HostParams {
    /// The node that it describes.
    pub fn action(&self) -> CuResult<Action> {
        let function = self.function.ok_or(CuError::INVALID_VALUE)?;
        Ok(Action::Host(HostCall { function, data: self.data.address() }))
    }

    /// The description of a node.
    pub fn of(call: &HostCall) -> Self {
        HostParams { function: Some(call.function), data: Memory::at(call.data) }
    }
}

impl AllocParams {
    /// The node that it describes, whose address it gets.
    pub fn action(&mut self, runtime: &Runtime) -> CuResult<Action> {
        const PINNED: i32 = 1;
        const ON_DEVICE: i32 = 1;
        if self.allocation != PINNED || self.location != [ON_DEVICE, 0] {
            return Err(CuError::INVALID_VALUE);
        }
        if self.shared_handles != 0 {
            return Err(CuError::NOT_SUPPORTED);
        }
        let memory = runtime.graphs.allocate(runtime, self.bytes as u64)?;
        self.address = memory.address;
        Ok(Action::Alloc(memory))
    }

    /// The description of a node.
    pub fn of(bytes: u64, address: u64) -> CuResult<Self> {
        let bytes = usize::try_from(bytes).map_err(|_| CuError::UNKNOWN)?;
        let (allocation, shared_handles, location, others) = (1, 0, [1, 0], [0; 9]);
        let (accesses, access_count) = (Memory::at(0), 0);
        Ok(AllocParams {
            allocation,
            shared_handles,
            location,
            others,
            accesses,
            access_count,
            bytes,
            address,
        })
    }
}

/// The node that a `CUgraphNodeParams` describes. An allocation's address is written there.
pub fn read_any(runtime: &Runtime, params: Memory) -> CuResult<Action> {
    let own = params.offset(UNION);
    match params.read::<i32>()? {
        0 => own.read::<KernelParams2>()?.first().action(runtime),
        1 => {
            let request: Copy3D = own.offset(COPY).read()?;
            request.check(runtime)?;
            Ok(Action::Copy(request))
        }
        2 => own.read::<FillParams>()?.action(),
        3 => own.read::<HostParams>()?.action(),
        4 => {
            let inner = runtime.graphs.get(own.read()?).map_err(|_| CuError::INVALID_VALUE)?;
            let clone = runtime.graphs.clone_of(&inner)?;
            own.write(clone.handle)?;
            Ok(Action::Child(clone))
        }
        5 => Ok(Action::Empty),
        6 => {
            let handle = own.read()?;
            Ok(Action::EventWait(handle, runtime.events.get(handle)?))
        }
        7 => {
            let handle = own.read()?;
            Ok(Action::EventRecord(handle, runtime.events.get(handle)?))
        }
        10 => {
            let mut alloc: AllocParams = own.read()?;
            let action = alloc.action(runtime)?;
            own.write(alloc)?;
            Ok(action)
        }
        11 => Ok(Action::Free(own.read()?)),
        12 => own.read::<WordsParams>()?.action(runtime),
        13 => own.read::<ConditionalParams>()?.action(runtime),
        // External semaphores, batched copies.
        8 | 9 | 17 | 18 => Err(CuError::NOT_SUPPORTED),
        _ => Err(CuError::INVALID_VALUE),
    }
}

/// Writes into a `CUgraphNodeParams` where a new node's graphs are; they last as long as the node.
pub fn write_graphs(node: &Conditional, params: Memory) -> CuResult {
    let own = params.offset(UNION);
    let graphs = Memory::at(node.handles.as_ptr() as u64);
    own.write(ConditionalParams { graphs, ..own.read()? })
}

/// Writes the `CUgraphNodeParams` that describes a node.
pub fn write_any(runtime: &Runtime, action: &Action, params: Memory) -> CuResult {
    for word in 0..32 {
        params.offset(8 * word).write(0u64)?;
    }
    params.write(action.kind())?;
    let own = params.offset(UNION);
    match action {
        Action::Empty => Ok(()),
        Action::Kernel(kernel) => own.write(KernelParams2::of(runtime, kernel)),
        Action::Copy(request) => own.offset(COPY).write(*request),
        Action::Fill(fill) => own.write(FillParams::of(fill)),
        Action::Host(call) => own.write(HostParams::of(call)),
        Action::Child(inner) => own.write(inner.handle),
        Action::EventWait(handle, _) | Action::EventRecord(handle, _) => own.write(*handle),
        Action::Alloc(memory) => own.write(AllocParams::of(memory.bytes, memory.address)?),
        Action::Free(address) => own.write(*address),
        Action::Words(batch) => own.write(WordsParams::of(runtime, batch)),
        Action::Conditional(node) => own.write(ConditionalParams::of(runtime, node)),
    }
}
