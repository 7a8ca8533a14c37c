//! Exports: instantiated graphs (CUDA Driver API, "Graph Management").

use crate::abi::{In, Memory, OptionalOut, Out, Plain};
use crate::copy_calls::Copy3D;
use crate::entry::{exports, exports_by_default_stream};
use crate::error::{CuError, CuResult};
use crate::graph::Graph;
use crate::graph::action::{Action, Kernel};
use crate::graph::capture::Target;
use crate::graph::executable::Executable;
use crate::graph::params::{
    FillParams, HostParams, KernelParams, KernelParams2, WordsParams, read_any,
};
use crate::runtime::{self, Runtime};
use crate::stream::DefaultStream;
use std::sync::Arc;

/// `CUDA_GRAPH_INSTANTIATE_PARAMS`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct InstantiateParams {
    flags: u64,
    upload_stream: u64,
    error_node: u64,
    result: i32,
    padding: u32,
}

/// `CUgraphExecUpdateResultInfo`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct UpdateResult {
    result: i32,
    padding: u32,
    error_node: u64,
    error_from_node: u64,
}

// SAFETY: integers.
unsafe impl Plain for InstantiateParams {}
// SAFETY: integers.
unsafe impl Plain for UpdateResult {}

exports! {
    fn cuGraphInstantiate(
        executable: Out<u64>, graph: u64, error_node: OptionalOut<u64>, log: Memory,
        log_bytes: usize,
    ) {
        instantiate_with_log(&executable, graph, &error_node, log, log_bytes)
    }

    fn cuGraphInstantiate_v2(
        executable: Out<u64>, graph: u64, error_node: OptionalOut<u64>, log: Memory,
        log_bytes: usize,
    ) {
        instantiate_with_log(&executable, graph, &error_node, log, log_bytes)
    }

    fn cuGraphInstantiateWithFlags(executable: Out<u64>, graph: u64, flags: u64) {
        executable.set(instantiate(graph, flags)?);
        Ok(())
    }

    fn cuGraphExecDestroy(executable: u64) {
        let runtime = runtime::of(executable)?;
        runtime.graphs.executables.remove(executable)?.release(&runtime.session);
        Ok(())
    }

    fn cuGraphExecGetFlags(executable: u64, flags: Out<u64>) {
        flags.set(find(executable)?.flags);
        Ok(())
    }

    fn cuGraphExecGetId(executable: u64, id: Out<u32>) {
        id.set(find(executable)?.id);
        Ok(())
    }

    fn cuGraphExecUpdate(
        executable: u64, graph: u64, error_node: OptionalOut<u64>, result: OptionalOut<i32>,
    ) {
        let (outcome, told) = update(executable, graph)?;
        error_node.set(told.error_node);
        result.set(told.result);
        outcome
    }

    fn cuGraphExecUpdate_v2(executable: u64, graph: u64, result: Out<UpdateResult>) {
        let (outcome, told) = update(executable, graph)?;
        result.set(told);
        outcome
    }

    fn cuGraphExecKernelNodeSetParams(executable: u64, node: u64, params: In<KernelParams>) {
        set_kernel(executable, node, params.get())
    }

    fn cuGraphExecKernelNodeSetParams_v2(executable: u64, node: u64, params: In<KernelParams2>) {
        set_kernel(executable, node, params.get().first())
    }

    fn cuGraphExecMemcpyNodeSetParams(
        executable: u64, node: u64, params: In<Copy3D>, _context: u64,
    ) {
        let request = params.get();
        request.check(runtime::of(executable)?)?;
        set(executable, node, Action::Copy(request))
    }

    fn cuGraphExecMemsetNodeSetParams(
        executable: u64, node: u64, params: In<FillParams>, _context: u64,
    ) {
        set(executable, node, params.get().action()?)
    }

    fn cuGraphExecHostNodeSetParams(executable: u64, node: u64, params: In<HostParams>) {
        set(executable, node, params.get().action()?)
    }

    fn cuGraphExecBatchMemOpNodeSetParams(executable: u64, node: u64, params: In<WordsParams>) {
        set(executable, node, params.get().action(runtime::current()?)?)
    }

    fn cuGraphExecChildGraphNodeSetParams(executable: u64, node: u64, child: u64) {
        let graphs = &runtime::of(executable)?.graphs;
        let executable = find(executable)?;
        let node = graphs.node(node)?;
        let Action::Child(own) = node.graph()?.action(node.local)? else {
            return Err(CuError::INVALID_VALUE);
        };
        executable.update_child(&own, &*graphs.get(child)?)
    }

    fn cuGraphExecEventRecordNodeSetEvent(executable: u64, node: u64, event: u64) {
        let runtime = runtime::of(executable)?;
        set(executable, node, Action::EventRecord(event, runtime.events.get(event)?))
    }

    fn cuGraphExecEventWaitNodeSetEvent(executable: u64, node: u64, event: u64) {
        let runtime = runtime::of(executable)?;
        set(executable, node, Action::EventWait(event, runtime.events.get(event)?))
    }

    fn cuGraphExecNodeSetParams(executable: u64, node: u64, params: Memory) {
        let runtime = runtime::of(executable)?;
        match read_any(runtime, params)? {
            action @ (Action::Child(_) | Action::Alloc(_) | Action::Conditional(_)) => {
                runtime.graphs.discard(&action);
                Err(CuError::INVALID_VALUE)
            }
            other => set(executable, node, other),
        }
    }

    fn cuGraphNodeSetEnabled(executable: u64, node: u64, enabled: u32) {
        find(executable)?.set_enabled(step(node)?, enabled != 0)
    }

    fn cuGraphNodeGetEnabled(executable: u64, node: u64, enabled: Out<u32>) {
        enabled.set(u32::from(find(executable)?.is_enabled(step(node)?)?));
        Ok(())
    }
}

exports_by_default_stream! {
    fn cuGraphInstantiateWithParams | cuGraphInstantiateWithParams_ptsz(
        _default; executable: Out<u64>, graph: u64, params: Out<InstantiateParams>,
    ) {
        /// `CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE`
        const INVALID_STRUCTURE: i32 = 2;
        let wanted = params.read();
        let made = instantiate(graph, wanted.flags);
        let result = if made.is_ok() { 0 } else { INVALID_STRUCTURE };
        params.set(InstantiateParams { error_node: 0, result, ..wanted });
        executable.set(made?);
        Ok(())
    }

    /// There is nothing to upload: every launch sends what it needs.
    fn cuGraphUpload | cuGraphUpload_ptsz(default; executable: u64, stream: u64) {
        find(executable)?;
        runtime::of(executable)?.outside_capture(stream, default).map(drop)
    }

    fn cuGraphLaunch | cuGraphLaunch_ptsz(default; executable: u64, stream: u64) {
        launch(executable, stream, default)
    }
}

fn launch(executable: u64, stream: u64, default: DefaultStream) -> CuResult {
    runtime::current()?;
    let runtime = runtime::of(executable)?;
    let executable = find(executable)?;
    match runtime.target(stream, default)? {
        Target::Stream(stream) => executable.launch(runtime, stream),
        Target::Capture(stream) => {
            let inner = executable.as_graph(&runtime.graphs)?;
            runtime.captures.add(&runtime.graphs, stream, Action::Child(inner))
        }
    }
}

fn find(executable: u64) -> CuResult<Arc<Executable>> {
    runtime::of(executable)?.graphs.executables.get(executable)
}

fn instantiate(graph: u64, flags: u64) -> CuResult<u64> {
    /// `CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH`
    const DEVICE_LAUNCH: u64 = 4;
    const KNOWN_FLAGS: u64 = 15;
    if flags & !KNOWN_FLAGS != 0 {
        return Err(CuError::INVALID_VALUE);
    }
    if flags & DEVICE_LAUNCH != 0 {
        return Err(CuError::NOT_SUPPORTED);
    }
    let runtime = runtime::of(graph)?;
    let graph = runtime.graphs.get(graph)?;
    let executable = Executable::new(&graph, flags)?;
    check_clusters(runtime, &graph)?;
    runtime.graphs.executables.insert(executable)
}

/// Whether the clusters of all kernels fill their grids. The graphs inside nest no deeper than
/// [`Executable::new`] takes.
fn check_clusters(runtime: &Runtime, graph: &Graph) -> CuResult {
    for (_, action, _) in graph.in_order()? {
        match action {
            Action::Kernel(kernel) => kernel.call.check_cluster(runtime.facts())?,
            Action::Child(inner) => check_clusters(runtime, &inner)?,
            Action::Conditional(node) => {
                node.graphs.iter().try_for_each(|graph| check_clusters(runtime, graph))?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn instantiate_with_log(
    executable: &Out<u64>,
    graph: u64,
    error_node: &OptionalOut<u64>,
    log: Memory,
    log_bytes: usize,
) -> CuResult {
    error_node.set(0);
    if !log.is_null() && log_bytes > 0 {
        log.write(0u8)?;
    }
    executable.set(instantiate(graph, 0)?);
    Ok(())
}

fn update(executable: u64, graph: u64) -> CuResult<(CuResult, UpdateResult)> {
    let runtime = runtime::of(graph)?;
    let graph = runtime.graphs.get(graph)?;
    check_clusters(runtime, &graph)?;
    let outcome = find(executable)?.update(&graph)?;
    let (result, error_node) =
        outcome.err().map_or((0, 0), |mismatch| (mismatch.result, mismatch.node));
    let told = UpdateResult { result, padding: 0, error_node, error_from_node: 0 };
    Ok((outcome.map_err(|_| CuError::GRAPH_EXEC_UPDATE_FAILURE), told))
}

/// Which step of an instantiated graph a node is.
fn step(node: u64) -> CuResult<(u32, u32)> {
    let node = runtime::of(node)?.graphs.node(node)?;
    Ok((node.graph()?.id, node.local))
}

fn set(executable: u64, node: u64, action: Action) -> CuResult {
    find(executable)?.set_action(step(node)?, action)
}

fn set_kernel(executable: u64, node: u64, params: KernelParams) -> CuResult {
    let runtime = runtime::of(executable)?;
    let executable = find(executable)?;
    let step = step(node)?;
    let Action::Kernel(old) = executable.action(step)? else { return Err(CuError::INVALID_VALUE) };
    let Action::Kernel(new) = params.action_with(runtime, old.call.shared_mode)? else {
        return Err(CuError::UNKNOWN);
    };
    let mut call = new.call.clone();
    (call.cooperative, call.cluster) = (old.call.cooperative, old.call.cluster);
    call.check_cluster(runtime.facts())?;
    let kernel = Kernel::new(call, old.attributes.clone());
    executable.set_action(step, Action::Kernel(Arc::new(kernel)))
}
