//! Exports: nodes of graphs, by kind (CUDA Driver API, "Graph Management").

use crate::abi::{Array, In, Memory, Out};
use crate::copy_calls::Copy3D;
use crate::entry::exports;
use crate::error::{CuError, CuResult};
use crate::graph::action::{Action, Kernel};
use crate::graph::graph_calls::add;
use crate::graph::params::{
    AllocParams, FillParams, HostParams, KernelParams, KernelParams2, WordsParams, read_any,
    write_any, write_graphs,
};
use crate::launch::checked_mode;
use crate::runtime::{self, Runtime};
use partita_model::{Dim3, cluster};
use std::sync::Arc;

exports! {
    fn cuGraphAddEmptyNode(node: Out<u64>, graph: u64, dependencies: Array<u64>, count: usize) {
        add(runtime::of(graph)?, &node, graph, dependencies, count, Action::Empty)
    }

    fn cuGraphAddKernelNode(
        node: Out<u64>, graph: u64, dependencies: Array<u64>, count: usize,
        params: In<KernelParams>,
    ) {
        let runtime = runtime::of(graph)?;
        add(runtime, &node, graph, dependencies, count, params.get().action(runtime)?)
    }

    fn cuGraphAddKernelNode_v2(
        node: Out<u64>, graph: u64, dependencies: Array<u64>, count: usize,
        params: In<KernelParams2>,
    ) {
        let runtime = runtime::of(graph)?;
        add(runtime, &node, graph, dependencies, count, params.get().first().action(runtime)?)
    }

    fn cuGraphKernelNodeGetParams(node: u64, params: Out<KernelParams>) {
        params.set(KernelParams::of(&*kernel(node)?));
        Ok(())
    }

    fn cuGraphKernelNodeGetParams_v2(node: u64, params: Out<KernelParams2>) {
        params.set(KernelParams2::of(runtime::of(node)?, &*kernel(node)?));
        Ok(())
    }

    fn cuGraphKernelNodeSetParams(node: u64, params: In<KernelParams>) {
        set_kernel(node, params.get())
    }

    fn cuGraphKernelNodeSetParams_v2(node: u64, params: In<KernelParams2>) {
        set_kernel(node, params.get().first())
    }

    fn cuGraphKernelNodeSetAttribute(node: u64, attribute: u32, value: Memory) {
        let mut bytes = [0; 64];
        bytes.copy_from_slice(value.bytes(64)?);
        change_attributes(node, |attributes| {
            attributes.retain(|(id, _)| *id != attribute);
            attributes.push((attribute, bytes));
        })
    }

    fn cuGraphKernelNodeGetAttribute(node: u64, attribute: u32, value: Memory) {
        let kernel = kernel(node)?;
        let found = kernel.attributes.iter().find(|(id, _)| *id == attribute);
        let mut bytes = found.map_or([0; 64], |(_, bytes)| *bytes);
        match attribute {
            COOPERATIVE => bytes[0] = u8::from(kernel.call.cooperative),
            CLUSTER => bytes = cluster_value(kernel.call.cluster),
            SHARED_MODE => bytes[..4].copy_from_slice(&kernel.call.shared_mode.to_le_bytes()),
            _ => {}
        }
        value.bytes_mut(64)?.copy_from_slice(&bytes);
        Ok(())
    }

    fn cuGraphKernelNodeCopyAttributes(to: u64, from: u64) {
        let source = kernel(from)?;
        let (cooperative, cluster) = (source.call.cooperative, source.call.cluster);
        let shared_mode = source.call.shared_mode;
        let copied = source.attributes.clone();
        change_attributes(to, |attributes| {
            *attributes = copied;
            attributes.retain(|(id, _)| ![COOPERATIVE, CLUSTER, SHARED_MODE].contains(id));
            let (mut value, mut mode) = ([0; 64], [0; 64]);
            value[0] = u8::from(cooperative);
            mode[..4].copy_from_slice(&shared_mode.to_le_bytes());
            attributes.extend([
                (COOPERATIVE, value),
                (CLUSTER, cluster_value(cluster)),
                (SHARED_MODE, mode),
            ]);
        })
    }

    fn cuGraphAddMemcpyNode(
        node: Out<u64>, graph: u64, dependencies: Array<u64>, count: usize, params: In<Copy3D>,
        _context: u64,
    ) {
        let runtime = runtime::of(graph)?;
        add(runtime, &node, graph, dependencies, count, copy(runtime, &params)?)
    }

    fn cuGraphMemcpyNodeGetParams(node: u64, params: Out<Copy3D>) {
        let Action::Copy(request) = action(node)? else { return Err(CuError::INVALID_VALUE) };
        params.set(request);
        Ok(())
    }

    fn cuGraphMemcpyNodeSetParams(node: u64, params: In<Copy3D>) {
        set(node, copy(runtime::of(node)?, &params)?)
    }

    fn cuGraphAddMemsetNode(
        node: Out<u64>, graph: u64, dependencies: Array<u64>, count: usize, params: In<FillParams>,
        _context: u64,
    ) {
        add(runtime::of(graph)?, &node, graph, dependencies, count, params.get().action()?)
    }

    fn cuGraphMemsetNodeGetParams(node: u64, params: Out<FillParams>) {
        let Action::Fill(fill) = action(node)? else { return Err(CuError::INVALID_VALUE) };
        params.set(FillParams::of(&fill));
        Ok(())
    }

    fn cuGraphMemsetNodeSetParams(node: u64, params: In<FillParams>) {
        set(node, params.get().action()?)
    }

    fn cuGraphAddBatchMemOpNode(
        node: Out<u64>, graph: u64, dependencies: Array<u64>, count: usize, params: In<WordsParams>,
    ) {
        let runtime = runtime::current()?;
        add(runtime, &node, graph, dependencies, count, params.get().action(runtime)?)
    }

    fn cuGraphBatchMemOpNodeGetParams(node: u64, params: Out<WordsParams>) {
        let Action::Words(batch) = action(node)? else { return Err(CuError::INVALID_VALUE) };
        params.set(WordsParams::of(runtime::get()?, &batch));
        Ok(())
    }

    fn cuGraphBatchMemOpNodeSetParams(node: u64, params: In<WordsParams>) {
        set(node, params.get().action(runtime::current()?)?)
    }

    fn cuGraphAddHostNode(
        node: Out<u64>, graph: u64, dependencies: Array<u64>, count: usize, params: In<HostParams>,
    ) {
        add(runtime::of(graph)?, &node, graph, dependencies, count, params.get().action()?)
    }

    fn cuGraphHostNodeGetParams(node: u64, params: Out<HostParams>) {
        let Action::Host(call) = action(node)? else { return Err(CuError::INVALID_VALUE) };
        params.set(HostParams::of(&call));
        Ok(())
    }

    fn cuGraphHostNodeSetParams(node: u64, params: In<HostParams>) {
        set(node, params.get().action()?)
    }

    fn cuGraphAddChildGraphNode(
        node: Out<u64>, graph: u64, dependencies: Array<u64>, count: usize, child: u64,
    ) {
        let runtime = runtime::of(graph)?;
        let inner = runtime.graphs.clone_of(&*runtime.graphs.get(child)?)?;
        add(runtime, &node, graph, dependencies, count, Action::Child(inner))
    }

    fn cuGraphChildGraphNodeGetGraph(node: u64, graph: Out<u64>) {
        let Action::Child(inner) = action(node)? else { return Err(CuError::INVALID_VALUE) };
        graph.set(inner.handle);
        Ok(())
    }

    fn cuGraphAddEventRecordNode(
        node: Out<u64>, graph: u64, dependencies: Array<u64>, count: usize, event: u64,
    ) {
        let runtime = runtime::of(graph)?;
        let action = Action::EventRecord(event, runtime.events.get(event)?);
        add(runtime, &node, graph, dependencies, count, action)
    }

    fn cuGraphEventRecordNodeGetEvent(node: u64, event: Out<u64>) {
        let Action::EventRecord(handle,
            _) = action(node)? else { return Err(CuError::INVALID_VALUE) };
        event.set(handle);
        Ok(())
    }

    fn cuGraphEventRecordNodeSetEvent(node: u64, event: u64) {
        set(node, Action::EventRecord(event, runtime::of(node)?.events.get(event)?))
    }

    fn cuGraphAddEventWaitNode(
        node: Out<u64>, graph: u64, dependencies: Array<u64>, count: usize, event: u64,
    ) {
        let runtime = runtime::of(graph)?;
        let action = Action::EventWait(event, runtime.events.get(event)?);
        add(runtime, &node, graph, dependencies, count, action)
    }

    fn cuGraphEventWaitNodeGetEvent(node: u64, event: Out<u64>) {
        let Action::EventWait(handle,
            _) = action(node)? else { return Err(CuError::INVALID_VALUE) };
        event.set(handle);
        Ok(())
    }

    fn cuGraphEventWaitNodeSetEvent(node: u64, event: u64) {
        set(node, Action::EventWait(event, runtime::of(node)?.events.get(event)?))
    }

    fn cuGraphAddMemAllocNode(
        node: Out<u64>, graph: u64, dependencies: Array<u64>, count: usize,
        params: Out<AllocParams>,
    ) {
        let runtime = runtime::of(graph)?;
        let mut wanted = params.read();
        let action = wanted.action(runtime)?;
        add(runtime, &node, graph, dependencies, count, action)?;
        params.set(wanted);
        Ok(())
    }

    fn cuGraphMemAllocNodeGetParams(node: u64, params: Out<AllocParams>) {
        let Action::Alloc(memory) = action(node)? else { return Err(CuError::INVALID_VALUE) };
        params.set(AllocParams::of(memory.bytes, memory.address)?);
        Ok(())
    }

    fn cuGraphAddMemFreeNode(
        node: Out<u64>, graph: u64, dependencies: Array<u64>, count: usize, address: u64,
    ) {
        add(runtime::of(graph)?, &node, graph, dependencies, count, Action::Free(address))
    }

    fn cuGraphMemFreeNodeGetParams(node: u64, address: Out<u64>) {
        let Action::Free(freed) = action(node)? else { return Err(CuError::INVALID_VALUE) };
        address.set(freed);
        Ok(())
    }

    fn cuGraphAddNode(
        node: Out<u64>, graph: u64, dependencies: Array<u64>, count: usize, params: Memory,
    ) {
        add_any(&node, graph, dependencies, count, params)
    }

    fn cuGraphAddNode_v2(
        node: Out<u64>, graph: u64, dependencies: Array<u64>, _data: Array<u64>, count: usize,
        params: Memory,
    ) {
        add_any(&node, graph, dependencies, count, params)
    }

    fn cuGraphAddNode_v3(
        node: Out<u64>, graph: u64, dependencies: Array<u64>, _data: Array<u64>, count: usize,
        params: Memory,
    ) {
        add_any(&node, graph, dependencies, count, params)
    }

    fn cuGraphNodeSetParams(node: u64, params: Memory) { set_any(node, params) }

    fn cuGraphNodeSetParams_v2(node: u64, params: Memory) { set_any(node, params) }

    fn cuGraphNodeGetParams(node: u64, params: Memory) {
        write_any(runtime::of(node)?, &action(node)?, params)
    }
}

// The attributes of nodes that are more than advice.
/// `CU_LAUNCH_ATTRIBUTE_COOPERATIVE`
const COOPERATIVE: u32 = 2;
/// `CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION`
const CLUSTER: u32 = 4;
/// `CU_LAUNCH_ATTRIBUTE_SHARED_MEMORY_MODE`
const SHARED_MODE: u32 = 18;

fn add_any(
    node: &Out<u64>,
    graph: u64,
    dependencies: Array<u64>,
    count: usize,
    params: Memory,
) -> CuResult {
    let runtime = runtime::of(graph)?;
    let action = read_any(runtime, params)?;
    add(runtime, node, graph, dependencies, count, action.clone())?;
    match action {
        Action::Conditional(made) => write_graphs(&made, params),
        _ => Ok(()),
    }
}

/// The action of a node.
fn action(node: u64) -> CuResult<Action> {
    let node = runtime::of(node)?.graphs.node(node)?;
    node.graph()?.action(node.local)
}

fn set(node: u64, action: Action) -> CuResult {
    let node = runtime::of(node)?.graphs.node(node)?;
    node.graph()?.set_action(node.local, action)
}

fn set_any(node: u64, params: Memory) -> CuResult {
    let runtime = runtime::of(node)?;
    match read_any(runtime, params)? {
        // Graphs inside and memory stay as they were made.
        action @ (Action::Child(_) | Action::Alloc(_) | Action::Conditional(_)) => {
            runtime.graphs.discard(&action);
            Err(CuError::INVALID_VALUE)
        }
        other => set(node, other),
    }
}

fn kernel(node: u64) -> CuResult<Arc<Kernel>> {
    match action(node)? {
        Action::Kernel(kernel) => Ok(kernel),
        _ => Err(CuError::INVALID_VALUE),
    }
}

fn set_kernel(node: u64, params: KernelParams) -> CuResult {
    let runtime = runtime::of(node)?;
    let old = kernel(node)?;
    let Action::Kernel(new) = params.action_with(runtime, old.call.shared_mode)? else {
        return Err(CuError::UNKNOWN);
    };
    let mut call = new.call.clone();
    (call.cooperative, call.cluster) = (old.call.cooperative, old.call.cluster);
    set(node, Action::Kernel(Arc::new(Kernel::new(call, old.attributes.clone()))))
}

fn change_attributes(node: u64, change: impl FnOnce(&mut Vec<(u32, [u8; 64])>)) -> CuResult {
    let old = kernel(node)?;
    let (mut attributes, mut call) = (old.attributes.clone(), old.call.clone());
    change(&mut attributes);
    if let Some(index) = attributes.iter().position(|(id, _)| *id == COOPERATIVE) {
        let (_, value) = attributes.swap_remove(index);
        call.cooperative = value[..4] != [0; 4];
    }
    if let Some(index) = attributes.iter().position(|(id, _)| *id == CLUSTER) {
        let (_, value) = attributes.swap_remove(index);
        call.cluster = cluster_of(&value)?;
    }
    if let Some(index) = attributes.iter().position(|(id, _)| *id == SHARED_MODE) {
        let (_, [a, b, c, d, ..]) = attributes.swap_remove(index);
        call.shared_mode = checked_mode(i32::from_le_bytes([a, b, c, d]))?;
    }
    set(node, Action::Kernel(Arc::new(Kernel::new(call, attributes))))
}

/// `CUlaunchAttributeValue` of clusters.
fn cluster_value(cluster: Dim3) -> [u8; 64] {
    let mut value = [0; 64];
    for (into, axis) in value.chunks_exact_mut(4).zip([cluster.x, cluster.y, cluster.z]) {
        into.copy_from_slice(&axis.to_le_bytes());
    }
    value
}

/// The clusters of an attribute. Whether they fill the node's grid is checked when the graph is
/// instantiated, because the program may change the grid after them.
fn cluster_of(value: &[u8; 64]) -> CuResult<Dim3> {
    let [x, y, z] = [0, 4, 8].map(|at| {
        let bytes = value.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        u32::from_le_bytes(bytes.unwrap_or_default()).max(1)
    });
    let cluster = Dim3::new(x, y, z);
    let is_possible = cluster.count() <= u128::from(cluster::MOST_CTAS);
    if is_possible { Ok(cluster) } else { Err(CuError::INVALID_VALUE) }
}

fn copy(runtime: &Runtime, params: &In<Copy3D>) -> CuResult<Action> {
    let request = params.get();
    request.check(runtime)?;
    Ok(Action::Copy(request))
}
