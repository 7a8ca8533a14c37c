//! The action of a graph's node, and carrying it out.

use crate::copy::Until;
use crate::copy_calls::{Copy3D, copy_3d};
use crate::error::CuResult;
use crate::event::Event;
use crate::fill_calls::{Fill, fill_rows};
use crate::graph::Graph;
use crate::graph::conditional::Conditional;
use crate::graph::objects::GraphMemory;
use crate::launch::Prepared;
use crate::runtime::Runtime;
use crate::stream_memory_calls::Batch;
use partita_client::StreamHandle;
use std::ffi::c_void;
use std::sync::Arc;

/// `CUhostFn`.
pub type HostFunction = unsafe extern "C" fn(*mut c_void);

/// The action of a node.
#[derive(Clone)]
pub enum Action {
    /// Does nothing.
    Empty,
    /// Launches a kernel.
    Kernel(Arc<Kernel>),
    /// Copies.
    Copy(Copy3D),
    /// Fills.
    Fill(Fill),
    /// Calls a function of the program.
    Host(HostCall),
    /// Contains another graph.
    Child(Arc<Graph>),
    /// Contains graphs that run as a word says.
    Conditional(Arc<Conditional>),
    /// Waits for an event.
    EventWait(u64, Arc<Event>),
    /// Records an event.
    EventRecord(u64, Arc<Event>),
    /// Owns memory, from the node's creation until no graph has the node.
    Alloc(Arc<GraphMemory>),
    /// Writes words of memory and waits for them.
    Words(Arc<Batch>),
    /// Frees memory of an allocation node, which only the program notices, or of a pool.
    Free(u64),
}

/// A launch with its arguments at addresses that last: getters show them to the program.
pub struct Kernel {
    /// The launch.
    pub call: Prepared,
    /// The address of each argument, for `kernelParams`.
    pub pointers: Box<[u64]>,
    /// Attributes that programs set; only advice is among them. By id, with 64 bytes of value.
    pub attributes: Vec<(u32, [u8; 64])>,
}

impl Kernel {
    /// A node for a launch.
    pub fn new(call: Prepared, attributes: Vec<(u32, [u8; 64])>) -> Self {
        let base = call.params.as_ptr() as u64;
        let params = &call.kernel.facts.params;
        let pointers = params.iter().map(|param| base + u64::from(param.offset)).collect();
        Kernel { call, pointers, attributes }
    }
}

/// A function of the program with its argument.
#[derive(Clone, Copy)]
pub struct HostCall {
    /// The function.
    pub function: HostFunction,
    /// Its argument.
    pub data: u64,
}

impl HostCall {
    /// Calls it.
    pub fn run(self) {
        // SAFETY: the program gave the function for such calls, with this argument.
        unsafe { (self.function)(self.data as *mut c_void) };
    }
}

impl Action {
    /// `CUgraphNodeType`.
    pub fn kind(&self) -> i32 {
        match self {
            Action::Kernel(_) => 0,
            Action::Copy(_) => 1,
            Action::Fill(_) => 2,
            Action::Host(_) => 3,
            Action::Child(_) => 4,
            Action::Empty => 5,
            Action::EventWait(..) => 6,
            Action::EventRecord(..) => 7,
            Action::Alloc(_) => 10,
            Action::Free(_) => 11,
            Action::Words(_) => 12,
            Action::Conditional(_) => 13,
        }
    }

    /// Submits it to a stream.
    pub fn perform(&self, runtime: &Runtime, stream: StreamHandle) -> CuResult {
        match self {
            // The inner graph has become steps of its own.
            // The graphs of a condition belong to the instantiated graph.
            Action::Empty | Action::Child(_) | Action::Alloc(_) | Action::Conditional(_) => Ok(()),
            Action::Kernel(kernel) => kernel.call.submit(runtime, stream),
            Action::Copy(request) => copy_3d(runtime, request, stream, Until::Submitted),
            Action::Fill(fill) => fill_rows(runtime, fill, stream),
            Action::Host(call) => {
                let call = *call;
                // CUDA calls no functions in streams whose work has failed.
                runtime.host_calls.add(&runtime.session, stream, move |outcome| {
                    if outcome.is_ok() {
                        call.run();
                    }
                })
            }
            Action::EventWait(_, event) => Ok(runtime.session.wait_event(stream, event.client)?),
            Action::EventRecord(_, event) => event.record(&runtime.session, stream),
            Action::Words(batch) => batch.perform(runtime, stream),
            Action::Free(address) => {
                if !runtime.graphs.owns(*address) {
                    runtime.pools.free(*address, stream);
                }
                Ok(())
            }
        }
    }
}
