//! Exports: graphs as a whole, their nodes and edges, user objects (CUDA Driver API, "Graph
//! Management").

use crate::abi::{Array, Memory, Out, Text};
use crate::devices;
use crate::entry::exports;
use crate::error::{CuError, CuResult};
use crate::graph::action::{Action, HostCall, HostFunction};
use crate::graph::conditional::Condition;
use crate::graph::objects::UserObject;
use crate::graph::{EdgeChange, Graph};
use crate::runtime::{self, Runtime};
use std::ffi::OsStr;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex};

/// More nodes than a graph can have.
const MAX_COUNT: usize = 1 << 20;

exports! {
    fn cuGraphCreate(graph: Out<u64>, flags: u32) {
        if flags != 0 {
            return Err(CuError::INVALID_VALUE);
        }
        graph.set(runtime::get()?.graphs.create()?.handle);
        Ok(())
    }

    fn cuGraphConditionalHandleCreate(
        handle: Out<u64>, graph: u64, _context: u64, default: u32, flags: u32,
    ) {
        /// `CU_GRAPH_COND_ASSIGN_DEFAULT`
        const ASSIGN_DEFAULT: u32 = 1;
        if flags & !ASSIGN_DEFAULT != 0 {
            return Err(CuError::INVALID_VALUE);
        }
        let runtime = runtime::of(graph)?;
        let graph = runtime.graphs.get(graph)?;
        let default = (flags == ASSIGN_DEFAULT).then_some(default);
        let condition = Condition::new(runtime, default)?;
        handle.set(runtime.graphs.add_condition(&graph, condition));
        Ok(())
    }

    fn cuGraphDestroy(graph: u64) { runtime::of(graph)?.graphs.destroy(graph) }

    fn cuGraphClone(clone: Out<u64>, original: u64) {
        let graphs = &runtime::of(original)?.graphs;
        clone.set(graphs.clone_of(&*graphs.get(original)?)?.handle);
        Ok(())
    }

    fn cuGraphGetId(graph: u64, id: Out<u32>) {
        id.set(runtime::of(graph)?.graphs.get(graph)?.id);
        Ok(())
    }

    fn cuGraphGetNodes(graph: u64, nodes: Array<u64>, count: Out<usize>) {
        write_list(&runtime::of(graph)?.graphs.get(graph)?.nodes(), nodes, &count)
    }

    fn cuGraphGetRootNodes(graph: u64, nodes: Array<u64>, count: Out<usize>) {
        write_list(&runtime::of(graph)?.graphs.get(graph)?.roots(), nodes, &count)
    }

    fn cuGraphGetEdges(graph: u64, from: Array<u64>, to: Array<u64>, count: Out<usize>) {
        edges(graph, from, to, NO_DATA, &count)
    }

    fn cuGraphGetEdges_v2(
        graph: u64, from: Array<u64>, to: Array<u64>, data: Array<u64>, count: Out<usize>,
    ) {
        edges(graph, from, to, data, &count)
    }

    fn cuGraphNodeGetDependencies(node: u64, nodes: Array<u64>, count: Out<usize>) {
        neighbours(node, nodes, NO_DATA, &count, |(from, to)| (to == node).then_some(from))
    }

    fn cuGraphNodeGetDependencies_v2(
        node: u64, nodes: Array<u64>, data: Array<u64>, count: Out<usize>,
    ) {
        neighbours(node, nodes, data, &count, |(from, to)| (to == node).then_some(from))
    }

    fn cuGraphNodeGetDependentNodes(node: u64, nodes: Array<u64>, count: Out<usize>) {
        neighbours(node, nodes, NO_DATA, &count, |(from, to)| (from == node).then_some(to))
    }

    fn cuGraphNodeGetDependentNodes_v2(
        node: u64, nodes: Array<u64>, data: Array<u64>, count: Out<usize>,
    ) {
        neighbours(node, nodes, data, &count, |(from, to)| (from == node).then_some(to))
    }

    fn cuGraphAddDependencies(graph: u64, from: Array<u64>, to: Array<u64>, count: usize) {
        change(graph, from, to, count, EdgeChange::Add)
    }

    /// Edges that let a kernel begin earlier count as full ones: the order that they ask for holds.
    fn cuGraphAddDependencies_v2(
        graph: u64, from: Array<u64>, to: Array<u64>, _data: Array<u64>, count: usize,
    ) {
        change(graph, from, to, count, EdgeChange::Add)
    }

    fn cuGraphRemoveDependencies(graph: u64, from: Array<u64>, to: Array<u64>, count: usize) {
        change(graph, from, to, count, EdgeChange::Remove)
    }

    fn cuGraphRemoveDependencies_v2(
        graph: u64, from: Array<u64>, to: Array<u64>, _data: Array<u64>, count: usize,
    ) {
        change(graph, from, to, count, EdgeChange::Remove)
    }

    fn cuGraphDestroyNode(node: u64) { runtime::of(node)?.graphs.remove_node(node) }

    fn cuGraphNodeFindInClone(node: Out<u64>, original: u64, clone: u64) {
        let graphs = &runtime::of(clone)?.graphs;
        node.set(graphs.get(clone)?.handle_of(graphs.node(original)?.local)?);
        Ok(())
    }

    fn cuGraphNodeGetType(node: u64, kind: Out<i32>) {
        let node = runtime::of(node)?.graphs.node(node)?;
        kind.set(node.graph()?.action(node.local)?.kind());
        Ok(())
    }

    fn cuGraphNodeGetContainingGraph(node: u64, graph: Out<u64>) {
        graph.set(runtime::of(node)?.graphs.node(node)?.graph()?.handle);
        Ok(())
    }

    fn cuGraphNodeGetLocalId(node: u64, id: Out<u32>) {
        id.set(runtime::of(node)?.graphs.node(node)?.local);
        Ok(())
    }

    fn cuGraphNodeGetToolsId(node: u64, id: Out<u64>) {
        let node = runtime::of(node)?.graphs.node(node)?;
        id.set(u64::from(node.graph()?.id) << 32 | u64::from(node.local));
        Ok(())
    }

    fn cuGraphDebugDotPrint(graph: u64, path: Text, _flags: u32) {
        let text = describe(&*runtime::of(graph)?.graphs.get(graph)?);
        let path = OsStr::from_bytes(path.get().to_bytes());
        std::fs::write(path, text).map_err(|_| CuError::OPERATING_SYSTEM)
    }

    fn cuUserObjectCreate(
        object: Out<u64>, data: Memory, destroy: Option<HostFunction>, count: u32, flags: u32,
    ) {
        /// `CU_USER_OBJECT_NO_DESTRUCTOR_SYNC`, which programs must pass.
        const NO_DESTRUCTOR_SYNC: u32 = 1;
        let function = destroy.ok_or(CuError::INVALID_VALUE)?;
        if count == 0 || flags != NO_DESTRUCTOR_SYNC {
            return Err(CuError::INVALID_VALUE);
        }
        let destroy = HostCall { function, data: data.address() };
        let count = Mutex::new(u64::from(count));
        object.set(runtime::get()?.graphs.objects.insert(UserObject { destroy, count })?);
        Ok(())
    }

    fn cuUserObjectRetain(object: u64, count: u32) {
        runtime::of(object)?.graphs.retain_object(object, count)
    }

    fn cuUserObjectRelease(object: u64, count: u32) {
        runtime::of(object)?.graphs.release_object(object, count)
    }

    fn cuGraphRetainUserObject(graph: u64, object: u64, count: u32, flags: u32) {
        /// `CU_GRAPH_USER_OBJECT_MOVE`: the graph gets references that the program has.
        const MOVE: u32 = 1;
        let graphs = &runtime::of(graph)?.graphs;
        let graph = graphs.get(graph)?;
        if flags & MOVE == 0 {
            graphs.retain_object(object, count)?;
        } else if count == 0 {
            return Err(CuError::INVALID_VALUE);
        } else {
            graphs.objects.get(object)?;
        }
        graph.retained.add(object, count);
        Ok(())
    }

    fn cuGraphReleaseUserObject(graph: u64, object: u64, count: u32) {
        let graphs = &runtime::of(graph)?.graphs;
        graphs.get(graph)?.retained.release(graphs, object, count)
    }

    fn cuDeviceGetGraphMemAttribute(device: i32, attribute: i32, value: Memory) {
        if !(0..=3).contains(&attribute) {
            return Err(CuError::INVALID_VALUE);
        }
        value.write(devices::get(device)?.opened().map_or(0,
            |runtime| runtime.graphs.memory_bytes()))
    }

    /// High-water marks, which are not kept.
    fn cuDeviceSetGraphMemAttribute(device: i32, attribute: i32, value: Memory) {
        devices::get(device)?;
        if value.is_null() || !matches!(attribute, 1 | 3) {
            return Err(CuError::INVALID_VALUE);
        }
        Ok(())
    }

    /// Memory goes with the last graph that has it.
    fn cuDeviceGraphMemTrim(device: i32) { devices::get(device).map(drop) }
}

const NO_DATA: Array<u64> = Array::at(std::ptr::null());

/// A list of handles that a program passes.
pub fn read_list(list: Array<u64>, count: usize) -> CuResult<Vec<u64>> {
    if count > MAX_COUNT {
        return Err(CuError::INVALID_VALUE);
    }
    (0..count).map(|index| list.get(index).ok_or(CuError::INVALID_VALUE)).collect()
}

/// Adds a node after those that a program lists.
pub fn add(
    runtime: &Runtime,
    node: &Out<u64>,
    graph: u64,
    dependencies: Array<u64>,
    count: usize,
    action: Action,
) -> CuResult {
    let graph: Arc<Graph> = runtime.graphs.get(graph)?;
    let added = read_list(dependencies, count)
        .and_then(|dependencies| runtime.graphs.add(&graph, &dependencies, action.clone()));
    if added.is_err() {
        runtime.graphs.discard(&action);
    }
    node.set(added?);
    Ok(())
}

/// Answers with a list: the length where there is no room, otherwise as much as there is room for,
/// zeroes behind.
fn write_list(list: &[u64], room: Array<u64>, count: &Out<usize>) -> CuResult {
    if room.is_null() {
        count.set(list.len());
        return Ok(());
    }
    let places = count.exchange(list.len()).min(MAX_COUNT);
    for index in 0..places {
        room.slot(index).write(list.get(index).copied().unwrap_or(0))?;
    }
    count.set(list.len().min(places));
    Ok(())
}

fn edges(
    graph: u64,
    from: Array<u64>,
    to: Array<u64>,
    data: Array<u64>,
    count: &Out<usize>,
) -> CuResult {
    let edges = runtime::of(graph)?.graphs.get(graph)?.edges();
    let (starts, ends): (Vec<u64>, Vec<u64>) = edges.into_iter().unzip();
    if from.is_null() != to.is_null() {
        return Err(CuError::INVALID_VALUE);
    }
    if !from.is_null() {
        let places = count.read();
        write_list(&ends, to, count)?;
        count.set(places);
        write_data(data, starts.len().min(places))?;
    }
    write_list(&starts, from, count)
}

/// All edges are ordinary ones: `CUgraphEdgeData` of zeroes.
fn write_data(data: Array<u64>, count: usize) -> CuResult {
    if data.is_null() {
        return Ok(());
    }
    (0..count).try_for_each(|index| data.slot(index).write(0u64))
}

fn neighbours(
    node: u64,
    room: Array<u64>,
    data: Array<u64>,
    count: &Out<usize>,
    which: impl Fn((u64, u64)) -> Option<u64>,
) -> CuResult {
    let graph = runtime::of(node)?.graphs.node(node)?.graph()?;
    let found: Vec<u64> = graph.edges().into_iter().filter_map(which).collect();
    write_list(&found, room, count)?;
    if room.is_null() { Ok(()) } else { write_data(data, found.len()) }
}

fn change(
    graph: u64,
    from: Array<u64>,
    to: Array<u64>,
    count: usize,
    change: EdgeChange,
) -> CuResult {
    let graphs = &runtime::of(graph)?.graphs;
    let graph = graphs.get(graph)?;
    graphs.change_edges(&graph, &read_list(from, count)?, &read_list(to, count)?, change)
}

/// The graph in Graphviz's language.
fn describe(graph: &Graph) -> String {
    let mut text = format!("digraph graph_{} {{\n", graph.id);
    let mut line = |arguments: std::fmt::Arguments<'_>| {
        writeln!(text, "  {arguments}").expect("writing to a String cannot fail");
    };
    for handle in graph.nodes() {
        line(format_args!("node_{handle:x} [label=\"{}\"];", label(graph, handle)));
    }
    for (from, to) in graph.edges() {
        line(format_args!("node_{from:x} -> node_{to:x};"));
    }
    text + "}\n"
}

fn label(graph: &Graph, handle: u64) -> String {
    let node = runtime::of(handle).and_then(|runtime| runtime.graphs.node(handle));
    match node.and_then(|node| graph.action(node.local)) {
        Ok(Action::Kernel(kernel)) => {
            let call = &kernel.call;
            format!("{} <<<{}, {}>>>", call.kernel.facts.name, call.grid, call.block)
        }
        Ok(Action::Copy(_)) => "copy".to_owned(),
        Ok(Action::Fill(_)) => "fill".to_owned(),
        Ok(Action::Host(_)) => "host".to_owned(),
        Ok(Action::Child(inner)) => format!("graph_{}", inner.id),
        Ok(Action::EventWait(..)) => "wait".to_owned(),
        Ok(Action::EventRecord(..)) => "record".to_owned(),
        Ok(Action::Alloc(memory)) => format!("allocate {}", memory.bytes),
        Ok(Action::Conditional(node)) => {
            let inside = node.graphs.iter().map(|graph| format!(" graph_{}", graph.id));
            format!("{:?}{}", node.rule, inside.collect::<String>())
        }
        Ok(Action::Free(_)) => "free".to_owned(),
        Ok(Action::Words(batch)) => format!("{} words", batch.raw.len()),
        Ok(Action::Empty) | Err(_) => "empty".to_owned(),
    }
}
