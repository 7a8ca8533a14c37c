//! Instantiated graphs: steps in an order that respects the edges, spread over tracks
//! ([`super::tracks`]).
//!
//! A graph inside a graph becomes steps of the same list, between two empty steps that mark its
//! beginning and its end. A launch submits the steps one after the other. Where a step waits for a
//! step of another track, an event lies in between. Launches of one instantiated graph follow one
//! another, whatever their streams are, as CUDA specifies.

use crate::error::{CuError, CuResult};
use crate::graph::action::Action;
use crate::graph::conditional::Branches;
use crate::graph::tracks::{Layout, lay_out};
use crate::graph::{Graph, Graphs, MAX_DEPTH, next_id};
use crate::runtime::Runtime;
use partita_client::{EventHandle, Session, StreamHandle};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The most steps of one instantiated graph.
const MAX_STEPS: usize = 1 << 18;
/// The number of no node: the beginning of a graph inside a graph.
const BEGIN: u32 = u32::MAX;

/// One instantiated graph.
pub struct Executable {
    /// `cuGraphExecGetId`.
    pub id: u32,
    /// `cuGraphExecGetFlags`.
    pub flags: u64,
    /// Number of conditional nodes that it is inside of.
    depth: usize,
    plan: Mutex<Plan>,
}

struct Plan {
    steps: Vec<Step>,
    layout: Layout,
    /// The objects of a launch; the first launch creates them.
    means: Option<Means>,
    /// The stream of the last launch.
    last: Option<StreamHandle>,
    /// Conditional nodes, by step.
    branches: BTreeMap<usize, Branches>,
}

struct Step {
    /// Id of the graph, and the node's number there.
    node: (u32, u32),
    action: Action,
    dependencies: Vec<usize>,
    enabled: bool,
}

/// The session's objects that a launch needs.
struct Means {
    /// Streams of the tracks from the second on.
    tracks: Vec<StreamHandle>,
    /// Events of the steps that other tracks wait for.
    events: BTreeMap<usize, EventHandle>,
    start: EventHandle,
    done: EventHandle,
}

/// Why an instantiated graph cannot take another graph's parameters (`CUgraphExecUpdateResult`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mismatch {
    /// `CUgraphExecUpdateResult`.
    pub result: i32,
    /// Handle of the other graph's node, 0 where it is none in particular.
    pub node: u64,
}

impl Mismatch {
    const TOPOLOGY: i32 = 2;
    const NODE_TYPE: i32 = 3;
}

impl Executable {
    /// `cuGraphInstantiate`.
    ///
    /// # Errors
    /// `INVALID_VALUE` where the graph has a cycle.
    pub fn new(graph: &Graph, flags: u64) -> CuResult<Self> {
        Executable::at_depth(graph, flags, 0)
    }

    /// A graph inside of so many conditional nodes.
    ///
    /// # Errors
    /// As [`Executable::new`].
    pub fn at_depth(graph: &Graph, flags: u64, depth: usize) -> CuResult<Self> {
        if depth > MAX_DEPTH {
            return Err(CuError::INVALID_VALUE);
        }
        let steps = flatten(graph)?;
        let conditional = steps.iter().enumerate().filter_map(|(index, step)| match &step.action {
            Action::Conditional(node) => Some((index, node)),
            _ => None,
        });
        let branches = conditional
            .map(|(index, node)| Ok((index, Branches::new(node, depth)?)))
            .collect::<CuResult<BTreeMap<usize, Branches>>>()?;
        let dependencies: Vec<Vec<usize>> =
            steps.iter().map(|step| step.dependencies.clone()).collect();
        let layout = lay_out(&dependencies);
        let plan = Plan { layout, steps, means: None, last: None, branches };
        Ok(Executable { id: next_id(), flags, depth, plan: Mutex::new(plan) })
    }

    fn lock(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `cuGraphLaunch`.
    pub fn launch(&self, runtime: &'static Runtime, stream: StreamHandle) -> CuResult {
        let mut plan = self.lock();
        if plan.means.is_none() {
            plan.means = Some(Means::new(&runtime.session, &plan.layout)?);
        }
        let last = plan.last.replace(stream);
        let Plan { steps, layout, means: Some(means), branches, .. } = &*plan else {
            return Err(CuError::UNKNOWN);
        };
        let session = &runtime.session;
        if last.is_some_and(|last| last != stream) {
            session.wait_event(stream, means.done)?;
        }
        for branches in branches.values() {
            branches.set_default(session, stream)?;
        }
        if layout.tracks > 1 {
            session.record_event(means.start, stream)?;
        }
        let submitted =
            steps.iter().zip(&layout.places).enumerate().try_for_each(|(index, (step, place))| {
                let track = place.track.checked_sub(1).map_or(stream, |track| means.tracks[track]);
                if place.waits_for_start {
                    session.wait_event(track, means.start)?;
                }
                for other in &place.waits {
                    session.wait_event(track, means.events[other])?;
                }
                if let Some(branches) = branches.get(&index) {
                    branches.submit(runtime, track)?;
                } else if step.enabled {
                    step.action.perform(runtime, track)?;
                }
                if place.is_waited_for {
                    session.record_event(means.events[&index], track)?;
                }
                Ok(())
            });
        for step in &layout.ends {
            session.wait_event(stream, means.events[step])?;
        }
        session.record_event(means.done, stream)?;
        submitted
    }

    /// `cuGraphExecDestroy`: what was launched still runs.
    pub fn release(&self, session: &Session) {
        let mut plan = self.lock();
        if let Some(means) = plan.means.take() {
            means.release(session);
        }
        // The graphs inside end when the launches before have gone through them.
        plan.branches.clear();
    }

    /// Changes what the step of a node does.
    pub fn set_action(&self, node: (u32, u32), action: Action) -> CuResult {
        let mut plan = self.lock();
        let step = plan.find(node)?;
        if step.action.kind() != action.kind() {
            return Err(CuError::INVALID_VALUE);
        }
        step.action = action;
        Ok(())
    }

    /// The action of a node's step.
    pub fn action(&self, node: (u32, u32)) -> CuResult<Action> {
        Ok(self.lock().find(node)?.action.clone())
    }

    /// `cuGraphNodeSetEnabled`: for kernels, copies and fills.
    pub fn set_enabled(&self, node: (u32, u32), enabled: bool) -> CuResult {
        let mut plan = self.lock();
        let step = plan.find(node)?;
        if !matches!(step.action, Action::Kernel(_) | Action::Copy(_) | Action::Fill(_)) {
            return Err(CuError::INVALID_VALUE);
        }
        step.enabled = enabled;
        Ok(())
    }

    /// `cuGraphNodeGetEnabled`.
    pub fn is_enabled(&self, node: (u32, u32)) -> CuResult<bool> {
        Ok(self.lock().find(node)?.enabled)
    }

    /// `cuGraphExecUpdate`: takes another graph's parameters where it has the same nodes and edges.
    pub fn update(&self, graph: &Graph) -> CuResult<Result<(), Mismatch>> {
        let steps = flatten(graph)?;
        let mut plan = self.lock();
        if let Err(mismatch) = compare(&plan.steps, &steps, graph) {
            return Ok(Err(mismatch));
        }
        if let Err(node) = plan.fits_inside(&steps)? {
            let node = if node.0 == graph.id { graph.handle_of(node.1).unwrap_or(0) } else { 0 };
            return Ok(Err(Mismatch { result: Mismatch::TOPOLOGY, node }));
        }
        let Plan { steps: own, branches, .. } = &mut *plan;
        for (index, branches) in branches {
            if let Some(Step { action: Action::Conditional(node), .. }) = steps.get(*index) {
                branches.update(node, self.depth)?;
            }
        }
        for (own, new) in own.iter_mut().zip(steps) {
            own.action = new.action;
        }
        Ok(Ok(()))
    }

    /// Whether a graph inside a conditional node could be updated.
    fn fits(&self, graph: &Graph) -> CuResult<bool> {
        let steps = flatten(graph)?;
        let plan = self.lock();
        Ok(compare(&plan.steps, &steps, graph).is_ok() && plan.fits_inside(&steps)?.is_ok())
    }

    /// `cuGraphExecChildGraphNodeSetParams`: the same for the graph inside a node.
    pub fn update_child(&self, own: &Graph, new: &Graph) -> CuResult {
        let steps = flatten(new)?;
        let old = flatten(own)?;
        compare(&old, &steps, new).map_err(|_| CuError::GRAPH_EXEC_UPDATE_FAILURE)?;
        let mut plan = self.lock();
        for (old, new) in old.iter().zip(steps) {
            plan.find(old.node)?.action = new.action;
        }
        Ok(())
    }

    /// A graph with the same steps: what a stream that captures writes down for a launch.
    pub fn as_graph(&self, graphs: &Graphs) -> CuResult<Arc<Graph>> {
        let graph = graphs.create()?;
        let mut nodes: Vec<u64> = Vec::new();
        for step in &self.lock().steps {
            let before: Vec<u64> = step.dependencies.iter().map(|other| nodes[*other]).collect();
            // As CUDA refuses graphs inside graphs that have such nodes.
            if matches!(step.action, Action::Conditional(_)) {
                graphs.destroy(graph.handle)?;
                return Err(CuError::NOT_SUPPORTED);
            }
            let action = if step.enabled { step.action.clone() } else { Action::Empty };
            nodes.push(graphs.add(&graph, &before, action)?);
        }
        Ok(graph)
    }
}

impl Plan {
    /// Whether conditional nodes have the same words and graphs; otherwise the first that has not.
    fn fits_inside(&self, steps: &[Step]) -> CuResult<Result<(), (u32, u32)>> {
        for (index, branches) in &self.branches {
            let Some(Step { action: Action::Conditional(other), node, .. }) = steps.get(*index)
            else {
                continue;
            };
            let mut graphs = branches.graphs().iter().zip(&other.graphs);
            let fits = branches.is_like(other)
                && graphs.try_fold(true, |all, (own, new)| CuResult::Ok(all && own.fits(new)?))?;
            if !fits {
                return Ok(Err(*node));
            }
        }
        Ok(Ok(()))
    }

    fn find(&mut self, node: (u32, u32)) -> CuResult<&mut Step> {
        self.steps.iter_mut().find(|step| step.node == node).ok_or(CuError::INVALID_VALUE)
    }
}

impl Means {
    fn new(session: &Session, layout: &Layout) -> CuResult<Self> {
        let tracks =
            (1..layout.tracks).map(|_| session.create_stream(true, 0)).collect::<Result<_, _>>()?;
        let waited = layout.places.iter().enumerate().filter(|(_, place)| place.is_waited_for);
        let events = waited
            .map(|(step, _)| Ok((step, session.create_event()?)))
            .collect::<CuResult<BTreeMap<usize, EventHandle>>>()?;
        Ok(Means { tracks, events, start: session.create_event()?, done: session.create_event()? })
    }

    fn release(self, session: &Session) {
        // An event that cannot be destroyed any more ends with the session.
        for event in self.events.into_values().chain([self.start, self.done]) {
            let _ = session.destroy_event(event);
        }
        for track in self.tracks {
            let _ = session.destroy_stream(track);
        }
    }
}

fn compare(own: &[Step], new: &[Step], graph: &Graph) -> Result<(), Mismatch> {
    // A node of an inner graph is reported without a handle.
    let node = |step: &Step| {
        if step.node.0 == graph.id { graph.handle_of(step.node.1).unwrap_or(0) } else { 0 }
    };
    for (own, new) in own.iter().zip(new) {
        if own.action.kind() != new.action.kind() {
            return Err(Mismatch { result: Mismatch::NODE_TYPE, node: node(new) });
        }
        if own.dependencies != new.dependencies {
            return Err(Mismatch { result: Mismatch::TOPOLOGY, node: node(new) });
        }
    }
    if own.len() == new.len() {
        return Ok(());
    }
    Err(Mismatch { result: Mismatch::TOPOLOGY, node: new.get(own.len()).map_or(0, node) })
}

fn flatten(graph: &Graph) -> CuResult<Vec<Step>> {
    let mut steps = Vec::new();
    add_steps(graph, None, &mut steps, 0)?;
    Ok(steps)
}

/// Appends the steps of a graph, all of which come after `begin`, and returns those that end it.
fn add_steps(
    graph: &Graph,
    begin: Option<usize>,
    steps: &mut Vec<Step>,
    depth: usize,
) -> CuResult<Vec<usize>> {
    if depth > MAX_DEPTH {
        return Err(CuError::INVALID_VALUE);
    }
    let mut step_of: BTreeMap<u32, usize> = BTreeMap::new();
    let mut is_end: BTreeMap<usize, bool> = BTreeMap::new();
    for (local, action, before) in graph.in_order()? {
        let mut dependencies: Vec<usize> =
            before.iter().filter_map(|other| step_of.get(other).copied()).collect();
        dependencies.sort_unstable();
        for other in &dependencies {
            is_end.insert(*other, false);
        }
        if dependencies.is_empty() {
            dependencies.extend(begin);
        }
        if let Action::Child(inner) = &action {
            let first = push(steps, (inner.id, BEGIN), Action::Empty, dependencies)?;
            let mut ends = add_steps(inner, Some(first), steps, depth + 1)?;
            if ends.is_empty() {
                ends.push(first);
            }
            dependencies = ends;
        }
        let step = push(steps, (graph.id, local), action, dependencies)?;
        step_of.insert(local, step);
        is_end.insert(step, true);
    }
    Ok(is_end.into_iter().filter(|(_, is_end)| *is_end).map(|(step, _)| step).collect())
}

fn push(
    steps: &mut Vec<Step>,
    node: (u32, u32),
    action: Action,
    dependencies: Vec<usize>,
) -> CuResult<usize> {
    if steps.len() >= MAX_STEPS {
        return Err(CuError::OUT_OF_MEMORY);
    }
    steps.push(Step { node, action, dependencies, enabled: true });
    Ok(steps.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handles::DeviceIndex;

    fn dependencies(graph: &Graph) -> Vec<Vec<usize>> {
        flatten(graph).unwrap().into_iter().map(|step| step.dependencies).collect()
    }

    #[test]
    fn a_graph_inside_stands_between_its_beginning_and_its_end() {
        let graphs = Graphs::new(DeviceIndex(0));
        let inner = graphs.create().unwrap();
        graphs.add(&inner, &[], Action::Empty).unwrap();
        graphs.add(&inner, &[], Action::Empty).unwrap();
        let graph = graphs.create().unwrap();
        let first = graphs.add(&graph, &[], Action::Empty).unwrap();
        let child = graphs.add(&graph, &[first], Action::Child(inner)).unwrap();
        graphs.add(&graph, &[child], Action::Empty).unwrap();
        // first, beginning, two inside, end, last
        assert_eq!(dependencies(&graph), [vec![], vec![0], vec![1], vec![1], vec![2, 3], vec![4]]);
    }

    #[test]
    fn an_update_needs_the_same_nodes_and_edges() {
        let graphs = Graphs::new(DeviceIndex(0));
        let make = |joined: bool, last: Action| {
            let graph = graphs.create().unwrap();
            let a = graphs.add(&graph, &[], Action::Empty).unwrap();
            let b = graphs.add(&graph, &[a], Action::Empty).unwrap();
            let before = [if joined { b } else { a }];
            let node = graphs.add(&graph, &before, last).unwrap();
            (graph, node)
        };
        let (graph, _) = make(true, Action::Free(1));
        let executable = Executable::new(&graph, 0).unwrap();
        let (same, _) = make(true, Action::Free(2));
        assert_eq!(executable.update(&same), Ok(Ok(())));
        let (other_edge, node) = make(false, Action::Free(2));
        assert_eq!(executable.update(&other_edge), Ok(Err(Mismatch { result: 2, node })));
        let (other_kind, node) = make(true, Action::Empty);
        assert_eq!(executable.update(&other_kind), Ok(Err(Mismatch { result: 3, node })));
        let more = graphs.add(&same, &[], Action::Empty).unwrap();
        let result = executable.update(&same).unwrap().unwrap_err();
        assert!(result.result == 2 || result.node == more, "{result:?}");
    }
}
