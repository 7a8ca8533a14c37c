//! Graphs: work that is recorded once and submitted many times (CUDA Driver API, "Graph
//! Management").
//!
//! A graph concerns this process alone. A launch submits the graph's nodes as the calls that they
//! stand for, in an order that respects the edges ([`executable`]). Each kernel is therefore
//! partitioned as if the program had launched it. Nodes come from `cuGraphAdd…` or from a stream
//! that captures ([`capture`]).
//!
//! | module | subject |
//! | --- | --- |
//! | `action` | what a node does |
//! | `params` | nodes as C's structures |
//! | `executable` | instantiated graphs: order, tracks, updates |
//! | `tracks` | which steps may run beside each other |
//! | `conditional` | graphs that run as a word of memory says |
//! | `capture` | streams that record instead of submitting |
//! | `objects` | what lives as long as a graph: user objects, memory of allocation nodes |
//! | `…_calls` | exports |
//!
//! External semaphores and batched copies are refused by name.

pub mod action;
pub mod capture;
pub mod capture_calls;
pub mod conditional;
pub mod exec_calls;
pub mod executable;
pub mod graph_calls;
pub mod node_calls;
pub mod objects;
mod params;
mod tracks;

use crate::error::{CuError, CuResult};
use crate::handles::{DeviceIndex, Handles, Kind};
use action::Action;
use conditional::{Condition, Conditional, MAX_GRAPHS, Rule};
use executable::Executable;
use objects::{GraphMemory, UserObject};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The most nodes of one graph.
const MAX_NODES: usize = 1 << 18;
/// Graphs inside graphs.
pub const MAX_DEPTH: usize = 32;

/// All graphs.
pub struct Graphs {
    table: Handles<Graph>,
    nodes: Handles<NodeRef>,
    /// Instantiated graphs.
    pub executables: Handles<Executable>,
    /// User objects.
    pub objects: Handles<UserObject>,
    /// The memory of allocation nodes.
    pub memory: Mutex<BTreeMap<u64, Weak<GraphMemory>>>,
    /// What conditional nodes decide by, by handle.
    conditions: Mutex<BTreeMap<u64, Weak<Condition>>>,
    /// Words of device memory for what comes to decide next.
    pub words: Mutex<Vec<u64>>,
}

/// One graph.
pub struct Graph {
    /// Its handle.
    pub handle: u64,
    /// A number that no other graph has (`cuGraphGetId`).
    pub id: u32,
    state: Mutex<State>,
    /// References to user objects, which end with the graph.
    pub retained: objects::Retained,
    /// What it has for conditional nodes.
    conditions: Mutex<Vec<Arc<Condition>>>,
}

#[derive(Default)]
struct State {
    /// Nodes by number. A node has the same number in the graph's clones.
    nodes: BTreeMap<u32, Node>,
    next: u32,
}

struct Node {
    handle: u64,
    action: Action,
    dependencies: BTreeSet<u32>,
}

/// The place of a node.
pub struct NodeRef {
    graph: Weak<Graph>,
    /// Its number there.
    pub local: u32,
}

impl NodeRef {
    /// Its graph.
    pub fn graph(&self) -> CuResult<Arc<Graph>> {
        self.graph.upgrade().ok_or(CuError::INVALID_HANDLE)
    }
}

/// A number for graphs and instantiated graphs.
pub fn next_id() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Graphs {
    /// None.
    pub const fn new(device: DeviceIndex) -> Self {
        Graphs {
            table: Handles::new(Kind::Graph, device),
            nodes: Handles::new(Kind::GraphNode, device),
            executables: Handles::new(Kind::GraphExec, device),
            objects: Handles::new(Kind::UserObject, device),
            memory: Mutex::new(BTreeMap::new()),
            conditions: Mutex::new(BTreeMap::new()),
            words: Mutex::new(Vec::new()),
        }
    }

    /// `cuGraphCreate`.
    pub fn create(&self) -> CuResult<Arc<Graph>> {
        let handle = self.table.insert_with(|handle| {
            let (state, retained) = (Mutex::default(), objects::Retained::default());
            Ok(Graph { handle, id: next_id(), state, retained, conditions: Mutex::default() })
        })?;
        self.table.get(handle)
    }

    /// The graph of a handle.
    pub fn get(&self, handle: u64) -> CuResult<Arc<Graph>> {
        self.table.get(handle)
    }

    /// The node of a handle.
    pub fn node(&self, handle: u64) -> CuResult<Arc<NodeRef>> {
        self.nodes.get(handle)
    }

    /// `cuGraphDestroy`, with the graphs inside.
    pub fn destroy(&self, handle: u64) -> CuResult {
        let graph = self.table.remove(handle)?;
        let nodes = std::mem::take(&mut graph.lock().nodes);
        for node in nodes.into_values() {
            self.forget(&node);
        }
        graph.retained.release_all(self);
        Ok(())
    }

    /// Releases the handles of a node that no graph has any more.
    fn forget(&self, node: &Node) {
        // A node's handle lives as long as the node; both go here and nowhere else.
        let _ = self.nodes.remove(node.handle);
        self.discard(&node.action);
    }

    /// Destroys the graphs inside a node.
    pub fn discard(&self, action: &Action) {
        let inside = match action {
            Action::Child(inner) => std::slice::from_ref(inner),
            Action::Conditional(node) => &node.graphs,
            _ => &[],
        };
        for graph in inside {
            let _ = self.destroy(graph.handle);
        }
    }

    /// Enters what conditional nodes of a graph decide by.
    pub fn add_condition(&self, graph: &Graph, condition: Condition) -> u64 {
        let (handle, condition) = (condition.address, Arc::new(condition));
        let mut all = self.conditions.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, known| known.strong_count() > 0);
        all.insert(handle, Arc::downgrade(&condition));
        graph.conditions.lock().unwrap_or_else(PoisonError::into_inner).push(condition);
        handle
    }

    /// A conditional node, with empty graphs.
    ///
    /// # Errors
    /// `INVALID_VALUE` where nobody knows the handle, or the rule has another number of graphs.
    pub fn conditional(&self, handle: u64, rule: i32, count: u32) -> CuResult<Action> {
        let rule = Rule::from_raw(rule, count)?;
        let count = usize::try_from(count).ok().filter(|count| *count <= MAX_GRAPHS);
        let count = count.ok_or(CuError::INVALID_VALUE)?;
        let all = self.conditions.lock().unwrap_or_else(PoisonError::into_inner);
        let condition = all.get(&handle).and_then(Weak::upgrade).ok_or(CuError::INVALID_VALUE)?;
        drop(all);
        let mut graphs = Vec::new();
        let made = (0..count).try_for_each(|_| {
            graphs.push(self.create()?);
            Ok(())
        });
        let action = Action::Conditional(Arc::new(Conditional::new(condition, rule, graphs)));
        if made.is_err() {
            self.discard(&action);
        }
        made.map(|()| action)
    }

    /// Ends everything; instantiated graphs are given to their owner.
    pub fn clear(&self) -> Vec<Arc<Executable>> {
        for graph in self.table.all() {
            let _ = self.destroy(graph.handle);
        }
        self.executables.remove_where(|_| true)
    }

    /// Adds a node that comes after others of the same graph, and returns its handle.
    pub fn add(&self, graph: &Arc<Graph>, dependencies: &[u64], action: Action) -> CuResult<u64> {
        let dependencies = self.locals(graph, dependencies)?;
        let mut state = graph.lock();
        if state.nodes.len() >= MAX_NODES {
            return Err(CuError::OUT_OF_MEMORY);
        }
        let local = state.next;
        let handle = self.nodes.insert(NodeRef { graph: Arc::downgrade(graph), local })?;
        state.next += 1;
        state.nodes.insert(local, Node { handle, action, dependencies });
        Ok(handle)
    }

    /// `cuGraphDestroyNode`, with its edges.
    pub fn remove_node(&self, handle: u64) -> CuResult {
        let node = self.node(handle)?;
        let graph = node.graph()?;
        let mut state = graph.lock();
        let removed = state.nodes.remove(&node.local).ok_or(CuError::INVALID_HANDLE)?;
        for other in state.nodes.values_mut() {
            other.dependencies.remove(&node.local);
        }
        drop(state);
        self.forget(&removed);
        Ok(())
    }

    /// The numbers of nodes, all of which must be in the graph.
    pub fn locals(&self, graph: &Graph, handles: &[u64]) -> CuResult<BTreeSet<u32>> {
        let state = graph.lock();
        let local = |handle: &u64| {
            let node = self.node(*handle).map_err(|_| CuError::INVALID_VALUE)?;
            let here = state.nodes.get(&node.local).is_some_and(|found| found.handle == *handle);
            if here { Ok(node.local) } else { Err(CuError::INVALID_VALUE) }
        };
        handles.iter().map(local).collect()
    }

    /// `cuGraphClone`: nodes keep their numbers.
    pub fn clone_of(&self, graph: &Graph) -> CuResult<Arc<Graph>> {
        self.clone_at(graph, 0)
    }

    fn clone_at(&self, graph: &Graph, depth: usize) -> CuResult<Arc<Graph>> {
        if depth > MAX_DEPTH {
            return Err(CuError::INVALID_VALUE);
        }
        let (parts, next) = graph.parts();
        let clone = self.create()?;
        let copied = parts.into_iter().try_for_each(|(local, action, dependencies)| {
            let action = match action {
                Action::Child(inner) => Action::Child(self.clone_at(&inner, depth + 1)?),
                // As CUDA refuses it (CUDA Driver API, `cuGraphClone`).
                Action::Conditional(_) => return Err(CuError::NOT_SUPPORTED),
                other => other,
            };
            let handle = self.nodes.insert(NodeRef { graph: Arc::downgrade(&clone), local })?;
            clone.lock().nodes.insert(local, Node { handle, action, dependencies });
            Ok(())
        });
        if let Err(error) = copied {
            self.destroy(clone.handle)?;
            return Err(error);
        }
        clone.lock().next = next;
        Ok(clone)
    }

    /// Adds edges, or takes them away: all of them or none.
    pub fn change_edges(
        &self,
        graph: &Graph,
        from: &[u64],
        to: &[u64],
        change: EdgeChange,
    ) -> CuResult {
        let ends = |handles: &[u64]| -> CuResult<Vec<u32>> {
            handles
                .iter()
                .map(|handle| {
                    let local = self.locals(graph, &[*handle])?;
                    local.into_iter().next().ok_or(CuError::INVALID_VALUE)
                })
                .collect()
        };
        let edges: Vec<(u32, u32)> = ends(from)?.into_iter().zip(ends(to)?).collect();
        let mut state = graph.lock();
        let fits = |(from, to): &(u32, u32)| {
            let there = state.nodes.get(to).is_some_and(|node| node.dependencies.contains(from));
            from != to && there == (change == EdgeChange::Remove)
        };
        if !edges.iter().all(fits) {
            return Err(CuError::INVALID_VALUE);
        }
        for (from, to) in edges {
            let Some(node) = state.nodes.get_mut(&to) else { continue };
            match change {
                EdgeChange::Add => node.dependencies.insert(from),
                EdgeChange::Remove => node.dependencies.remove(&from),
            };
        }
        Ok(())
    }
}

/// A change of edges.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum EdgeChange {
    /// Edges are added.
    Add,
    /// Edges are removed.
    Remove,
}

impl Graph {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The graph's nodes with their actions and predecessors, and the next node's number.
    fn parts(&self) -> (Vec<(u32, Action, BTreeSet<u32>)>, u32) {
        let state = self.lock();
        let part =
            |(local, node): (&u32, &Node)| (*local, node.action.clone(), node.dependencies.clone());
        (state.nodes.iter().map(part).collect(), state.next)
    }

    /// Handles of its nodes, in the order in which they came.
    pub fn nodes(&self) -> Vec<u64> {
        self.lock().nodes.values().map(|node| node.handle).collect()
    }

    /// Handles of its nodes that come after no other.
    pub fn roots(&self) -> Vec<u64> {
        let state = self.lock();
        let roots = state.nodes.values().filter(|node| node.dependencies.is_empty());
        roots.map(|node| node.handle).collect()
    }

    /// Handles of its nodes that come before no other.
    pub fn leaves(&self) -> Vec<u64> {
        let state = self.lock();
        let inner: BTreeSet<u32> =
            state.nodes.values().flat_map(|node| node.dependencies.clone()).collect();
        state
            .nodes
            .iter()
            .filter(|(local, _)| !inner.contains(local))
            .map(|(_, node)| node.handle)
            .collect()
    }

    /// Its edges as pairs of handles.
    pub fn edges(&self) -> Vec<(u64, u64)> {
        let state = self.lock();
        let mut edges = Vec::new();
        for node in state.nodes.values() {
            for from in node.dependencies.iter().filter_map(|from| state.nodes.get(from)) {
                edges.push((from.handle, node.handle));
            }
        }
        edges
    }

    /// The action of a node.
    pub fn action(&self, local: u32) -> CuResult<Action> {
        self.lock().nodes.get(&local).map(|node| node.action.clone()).ok_or(CuError::INVALID_HANDLE)
    }

    /// Changes what a node does; its kind stays.
    pub fn set_action(&self, local: u32, action: Action) -> CuResult {
        let mut state = self.lock();
        let node = state.nodes.get_mut(&local).ok_or(CuError::INVALID_HANDLE)?;
        if node.action.kind() != action.kind() {
            return Err(CuError::INVALID_VALUE);
        }
        node.action = action;
        Ok(())
    }

    /// The handle of the node with a number.
    pub fn handle_of(&self, local: u32) -> CuResult<u64> {
        self.lock().nodes.get(&local).map(|node| node.handle).ok_or(CuError::INVALID_VALUE)
    }

    /// The graph's nodes in topological order. Of several candidates the oldest comes first.
    ///
    /// # Errors
    /// `INVALID_VALUE` where the graph has a cycle.
    fn in_order(&self) -> CuResult<Vec<(u32, Action, BTreeSet<u32>)>> {
        let (parts, _) = self.parts();
        let mut missing: BTreeMap<u32, usize> = BTreeMap::new();
        let mut dependents: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        let mut ready = BTreeSet::new();
        for (local, _, dependencies) in &parts {
            missing.insert(*local, dependencies.len());
            if dependencies.is_empty() {
                ready.insert(*local);
            }
            for from in dependencies {
                dependents.entry(*from).or_default().push(*local);
            }
        }
        let mut waiting: BTreeMap<u32, (Action, BTreeSet<u32>)> = parts
            .into_iter()
            .map(|(local, action, dependencies)| (local, (action, dependencies)))
            .collect();
        let mut ordered = Vec::with_capacity(waiting.len());
        while let Some(local) = ready.pop_first() {
            let (action, dependencies) = waiting.remove(&local).expect("a node becomes ready once");
            ordered.push((local, action, dependencies));
            for next in dependents.get(&local).into_iter().flatten() {
                let count = missing.get_mut(next).expect("every node was entered");
                *count -= 1;
                if *count == 0 {
                    ready.insert(*next);
                }
            }
        }
        if waiting.is_empty() { Ok(ordered) } else { Err(CuError::INVALID_VALUE) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(graphs: &Graphs, count: usize) -> (Arc<Graph>, Vec<u64>) {
        let graph = graphs.create().unwrap();
        let mut nodes: Vec<u64> = Vec::new();
        for _ in 0..count {
            let before: Vec<u64> = nodes.last().copied().into_iter().collect();
            nodes.push(graphs.add(&graph, &before, Action::Empty).unwrap());
        }
        (graph, nodes)
    }

    #[test]
    fn edges_come_and_go_as_a_whole() {
        let graphs = Graphs::new(DeviceIndex(0));
        let (graph, nodes) = chain(&graphs, 3);
        let (a, b, c) = (nodes[0], nodes[1], nodes[2]);
        assert_eq!(graph.edges(), [(a, b), (b, c)]);
        graphs.change_edges(&graph, &[a], &[c], EdgeChange::Add).unwrap();
        let twice = graphs.change_edges(&graph, &[b, a], &[a, c], EdgeChange::Add);
        assert_eq!(twice, Err(CuError::INVALID_VALUE), "one is there already");
        assert_eq!(graph.edges(), [(a, b), (a, c), (b, c)]);
        graphs.change_edges(&graph, &[a, b], &[b, c], EdgeChange::Remove).unwrap();
        assert_eq!((graph.roots(), graph.leaves()), (vec![a, b], vec![b, c]));
    }

    #[test]
    fn a_cycle_has_no_order() {
        let graphs = Graphs::new(DeviceIndex(0));
        let (graph, nodes) = chain(&graphs, 3);
        assert!(graph.in_order().is_ok());
        graphs.change_edges(&graph, &[nodes[2]], &[nodes[0]], EdgeChange::Add).unwrap();
        assert!(graph.in_order().is_err());
    }

    #[test]
    fn a_clone_has_nodes_of_its_own_under_the_same_numbers() {
        let graphs = Graphs::new(DeviceIndex(0));
        let (inner, _) = chain(&graphs, 2);
        let (graph, nodes) = chain(&graphs, 2);
        let child = graphs.add(&graph, &[nodes[1]], Action::Child(inner)).unwrap();
        let clone = graphs.clone_of(&graph).unwrap();
        let local = graphs.node(child).unwrap().local;
        assert_ne!(clone.handle_of(local).unwrap(), child);
        let Action::Child(cloned) = clone.action(local).unwrap() else { panic!("its kind stays") };
        graphs.destroy(graph.handle).unwrap();
        assert!(graphs.node(child).is_err() && graphs.get(cloned.handle).is_ok());
        graphs.destroy(clone.handle).unwrap();
        assert!(graphs.get(cloned.handle).is_err(), "what is inside goes too");
    }

    #[test]
    fn nodes_of_other_graphs_are_no_dependencies() {
        let graphs = Graphs::new(DeviceIndex(0));
        let ((one, _), (_, others)) = (chain(&graphs, 1), chain(&graphs, 1));
        assert_eq!(graphs.add(&one, &others, Action::Empty), Err(CuError::INVALID_VALUE));
        assert_eq!(graphs.add(&one, &[17], Action::Empty), Err(CuError::INVALID_VALUE));
    }
}
