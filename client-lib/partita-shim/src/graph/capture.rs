//! Capture: streams that record their work instead of submitting it.
//!
//! A capture begins in one stream. Another stream joins it by waiting for an event that was
//! recorded in a stream of the capture. Each stream keeps the nodes that its next node comes after.
//! A call that needs the device's answer (a wait, a query) is an error and invalidates the capture.
//! So is work of the legacy default stream while a stream that is ordered with it captures (CUDA
//! C++ Programming Guide, "Creating a Graph Using Stream Capture").

use crate::error::{CuError, CuResult};
use crate::event::Event;
use crate::graph::action::Action;
use crate::graph::{Graph, Graphs};
use partita_client::StreamHandle;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

/// `CU_STREAM_CAPTURE_MODE_GLOBAL`: ending it elsewhere is an error, as with thread-local.
const RELAXED: i32 = 2;

/// All captures.
pub struct Captures {
    /// The number of capturing streams. At zero no call takes the lock.
    streams: AtomicUsize,
    state: Mutex<State>,
}

struct State {
    last_id: u64,
    captures: BTreeMap<u64, Capture>,
    members: BTreeMap<u64, Member>,
    /// By the event's name in the session: the capture, and the nodes that a waiting stream comes
    /// after.
    events: BTreeMap<u64, (u64, Vec<u64>)>,
}

struct Capture {
    graph: Arc<Graph>,
    /// The graph belongs to the program, so the capture's end does not destroy it.
    is_programs: bool,
    origin: u64,
    thread: ThreadId,
    mode: i32,
    invalid: bool,
    /// The last nodes of streams that were destroyed during the capture.
    left: Vec<u64>,
}

struct Member {
    capture: u64,
    dependencies: Vec<u64>,
    /// Whether the stream is ordered with the legacy default stream.
    blocking: bool,
}

/// The target of a call's work.
pub enum Target {
    /// To the device, in this stream.
    Stream(StreamHandle),
    /// Into the graph that this stream captures.
    Capture(StreamHandle),
}

/// The answers to a program's query about a stream's capture.
pub struct Info {
    /// `CUstreamCaptureStatus`.
    pub status: i32,
    /// The capture's number.
    pub id: u64,
    /// The graph's handle.
    pub graph: u64,
    /// The nodes that the stream's next node comes after; valid until the stream's next call.
    pub dependencies: *const u64,
    /// The number of these nodes.
    pub count: usize,
}

/// The arguments of a capture's begin.
pub struct Begin<'a> {
    /// The stream.
    pub stream: StreamHandle,
    /// Whether that is ordered with the legacy default stream.
    pub blocking: bool,
    /// `CUstreamCaptureMode`.
    pub mode: i32,
    /// The program's own graph, and the nodes in it to go on from.
    pub into: Option<(Arc<Graph>, &'a [u64])>,
}

impl Captures {
    /// None.
    pub const fn new() -> Self {
        Captures {
            streams: AtomicUsize::new(0),
            state: Mutex::new(State {
                last_id: 0,
                captures: BTreeMap::new(),
                members: BTreeMap::new(),
                events: BTreeMap::new(),
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether any stream captures.
    pub fn are_any(&self) -> bool {
        self.streams.load(Ordering::Relaxed) != 0
    }

    /// The target of a stream's work.
    pub fn target(&self, stream: StreamHandle) -> CuResult<Target> {
        if !self.are_any() {
            return Ok(Target::Stream(stream));
        }
        let mut state = self.lock();
        if let Some(member) = state.members.get(&stream.0) {
            let capture = state.captures.get(&member.capture).ok_or(CuError::UNKNOWN)?;
            return if capture.invalid {
                Err(CuError::STREAM_CAPTURE_INVALIDATED)
            } else {
                Ok(Target::Capture(stream))
            };
        }
        if stream == StreamHandle::LEGACY {
            state.refuse_legacy()?;
        }
        Ok(Target::Stream(stream))
    }

    /// For calls that no graph can hold: an error where the stream captures.
    pub fn outside(&self, stream: StreamHandle) -> CuResult<StreamHandle> {
        match self.target(stream)? {
            Target::Stream(stream) => Ok(stream),
            Target::Capture(stream) => {
                self.lock().invalidate(stream);
                Err(CuError::STREAM_CAPTURE_UNSUPPORTED)
            }
        }
    }

    /// For calls that wait for all work: an error while this thread captures, or any thread does in
    /// the global mode.
    pub fn outside_all(&self) -> CuResult {
        if !self.are_any() {
            return Ok(());
        }
        let mut state = self.lock();
        let own = thread::current().id();
        let mut forbidden = false;
        for capture in state.captures.values_mut() {
            if capture.mode == 0 || capture.mode != RELAXED && capture.thread == own {
                capture.invalid = true;
                forbidden = true;
            }
        }
        if forbidden { Err(CuError::STREAM_CAPTURE_UNSUPPORTED) } else { Ok(()) }
    }

    /// Writes a node down.
    pub fn add(&self, graphs: &Graphs, stream: StreamHandle, action: Action) -> CuResult {
        let mut state = self.lock();
        let State { captures, members, .. } = &mut *state;
        let member = members.get_mut(&stream.0).ok_or(CuError::ILLEGAL_STATE)?;
        let capture = captures.get(&member.capture).ok_or(CuError::UNKNOWN)?;
        let node = graphs.add(&capture.graph, &member.dependencies, action)?;
        member.dependencies = vec![node];
        Ok(())
    }

    /// `cuStreamBeginCapture`.
    pub fn begin(&self, graphs: &Graphs, begin: &Begin<'_>) -> CuResult {
        if begin.stream == StreamHandle::LEGACY {
            return Err(CuError::STREAM_CAPTURE_UNSUPPORTED);
        }
        if !(0..=RELAXED).contains(&begin.mode) {
            return Err(CuError::INVALID_VALUE);
        }
        let mut state = self.lock();
        if state.members.contains_key(&begin.stream.0) {
            return Err(CuError::ILLEGAL_STATE);
        }
        let (graph, dependencies) = match &begin.into {
            Some((graph, nodes)) => {
                graphs.locals(graph, nodes)?;
                (graph.clone(), nodes.to_vec())
            }
            None => (graphs.create()?, Vec::new()),
        };
        state.last_id += 1;
        let id = state.last_id;
        let capture = Capture {
            graph,
            is_programs: begin.into.is_some(),
            origin: begin.stream.0,
            thread: thread::current().id(),
            mode: begin.mode,
            invalid: false,
            left: Vec::new(),
        };
        state.captures.insert(id, capture);
        let member = Member { capture: id, dependencies, blocking: begin.blocking };
        state.members.insert(begin.stream.0, member);
        self.count(&state);
        Ok(())
    }

    /// `cuStreamEndCapture`: the graph's handle.
    pub fn end(&self, graphs: &Graphs, stream: StreamHandle) -> CuResult<u64> {
        let mut state = self.lock();
        let member = state.members.get(&stream.0).ok_or(CuError::ILLEGAL_STATE)?;
        let id = member.capture;
        let capture = state.captures.get(&id).ok_or(CuError::UNKNOWN)?;
        if capture.mode != RELAXED && capture.thread != thread::current().id() {
            return Err(CuError::STREAM_CAPTURE_WRONG_THREAD);
        }
        if capture.origin != stream.0 {
            return Err(CuError::STREAM_CAPTURE_UNMATCHED);
        }
        let open = state
            .members
            .iter()
            .filter(|(other, member)| **other != stream.0 && member.capture == id);
        let loose = open.flat_map(|(_, member)| &member.dependencies).chain(&capture.left);
        let loose: BTreeSet<u64> = loose.copied().collect();
        let joined: BTreeSet<u64> = member.dependencies.iter().copied().collect();
        let leaves: BTreeSet<u64> = capture.graph.leaves().into_iter().collect();
        let outcome = if capture.invalid {
            Err(CuError::STREAM_CAPTURE_INVALIDATED)
        } else if loose.iter().any(|node| leaves.contains(node) && !joined.contains(node)) {
            Err(CuError::STREAM_CAPTURE_UNJOINED)
        } else {
            Ok(capture.graph.handle)
        };
        self.finish(graphs, &mut state, id, outcome.is_ok());
        outcome
    }

    /// Ends a capture; its graph stays if it was finished or is the program's own.
    fn finish(&self, graphs: &Graphs, state: &mut State, id: u64, keep: bool) {
        state.members.retain(|_, member| member.capture != id);
        if let Some(capture) = state.captures.remove(&id)
            && !keep
            && !capture.is_programs
        {
            // No other handle of the graph exists.
            let _ = graphs.destroy(capture.graph.handle);
        }
        self.count(state);
    }

    fn count(&self, state: &State) {
        self.streams.store(state.members.len(), Ordering::Relaxed);
    }

    /// The capture in a stream; `None` where the stream does not capture.
    pub fn info(&self, stream: StreamHandle) -> CuResult<Option<Info>> {
        if !self.are_any() {
            return Ok(None);
        }
        let mut state = self.lock();
        if stream == StreamHandle::LEGACY {
            state.refuse_legacy()?;
        }
        let Some(member) = state.members.get(&stream.0) else { return Ok(None) };
        let capture = state.captures.get(&member.capture).ok_or(CuError::UNKNOWN)?;
        Ok(Some(Info {
            status: if capture.invalid { 2 } else { 1 },
            id: member.capture,
            graph: capture.graph.handle,
            dependencies: member.dependencies.as_ptr(),
            count: member.dependencies.len(),
        }))
    }

    /// `cuStreamUpdateCaptureDependencies`.
    pub fn set_dependencies(
        &self,
        graphs: &Graphs,
        stream: StreamHandle,
        nodes: &[u64],
        replace: bool,
    ) -> CuResult {
        let mut state = self.lock();
        let State { captures, members, .. } = &mut *state;
        let member = members.get_mut(&stream.0).ok_or(CuError::ILLEGAL_STATE)?;
        let capture = captures.get(&member.capture).ok_or(CuError::UNKNOWN)?;
        if capture.invalid {
            return Err(CuError::STREAM_CAPTURE_INVALIDATED);
        }
        graphs.locals(&capture.graph, nodes)?;
        if replace {
            member.dependencies.clear();
        }
        member.come_after(nodes);
        Ok(())
    }

    /// Records an event in a stream that captures.
    pub fn record(&self, stream: StreamHandle, event: &Event) -> CuResult {
        let mut state = self.lock();
        let member = state.members.get(&stream.0).ok_or(CuError::ILLEGAL_STATE)?;
        let mark = (member.capture, member.dependencies.clone());
        event.captured.store(true, Ordering::Relaxed);
        state.events.insert(event.client.0, mark);
        Ok(())
    }

    /// Forgets that an event was recorded in a capture: it was recorded again, or is destroyed.
    pub fn forget(&self, event: &Event) {
        if event.captured.swap(false, Ordering::Relaxed) {
            self.lock().events.remove(&event.client.0);
        }
    }

    /// Lets a stream wait for an event that was recorded in a capture: it joins.
    pub fn join(&self, stream: StreamHandle, blocking: bool, event: &Event) -> CuResult {
        let mut state = self.lock();
        let (id, nodes) =
            state.events.get(&event.client.0).cloned().ok_or(CuError::CAPTURED_EVENT)?;
        let capture = state.captures.get(&id).ok_or(CuError::CAPTURED_EVENT)?;
        if capture.invalid {
            return Err(CuError::STREAM_CAPTURE_INVALIDATED);
        }
        if stream == StreamHandle::LEGACY {
            state.captures.entry(id).and_modify(|capture| capture.invalid = true);
            return Err(CuError::STREAM_CAPTURE_IMPLICIT);
        }
        match state.members.get_mut(&stream.0) {
            Some(member) if member.capture == id => member.come_after(&nodes),
            Some(member) => {
                let other = member.capture;
                for id in [id, other] {
                    state.captures.entry(id).and_modify(|capture| capture.invalid = true);
                }
                return Err(CuError::STREAM_CAPTURE_MERGE);
            }
            None => {
                state
                    .members
                    .insert(stream.0, Member { capture: id, dependencies: nodes, blocking });
                self.count(&state);
            }
        }
        Ok(())
    }

    /// A capturing stream was to wait for what is outside its capture.
    pub fn isolate(&self, stream: StreamHandle) -> CuError {
        self.lock().invalidate(stream);
        CuError::STREAM_CAPTURE_ISOLATION
    }

    /// A stream goes. With the one in which it began a capture ends; another's nodes stay in the
    /// graph.
    pub fn stream_destroyed(&self, graphs: &Graphs, stream: StreamHandle) {
        if !self.are_any() {
            return;
        }
        let mut state = self.lock();
        let Some(member) = state.members.remove(&stream.0) else { return };
        let Some(capture) = state.captures.get_mut(&member.capture) else { return };
        capture.left.extend(member.dependencies);
        if capture.origin == stream.0 {
            self.finish(graphs, &mut state, member.capture, false);
        }
        self.count(&state);
    }

    /// Forgets everything.
    pub fn clear(&self) {
        let mut state = self.lock();
        state.captures.clear();
        state.members.clear();
        state.events.clear();
        self.count(&state);
    }
}

impl State {
    fn invalidate(&mut self, stream: StreamHandle) {
        let id = self.members.get(&stream.0).map(|member| member.capture);
        if let Some(capture) = id.and_then(|id| self.captures.get_mut(&id)) {
            capture.invalid = true;
        }
    }

    /// Refuses work of the legacy stream, which would have to wait for captured work.
    fn refuse_legacy(&mut self) -> CuResult {
        let ids: BTreeSet<u64> = self
            .members
            .values()
            .filter(|member| member.blocking)
            .map(|member| member.capture)
            .collect();
        for id in &ids {
            if let Some(capture) = self.captures.get_mut(id) {
                capture.invalid = true;
            }
        }
        if ids.is_empty() { Ok(()) } else { Err(CuError::STREAM_CAPTURE_IMPLICIT) }
    }
}

impl Member {
    fn come_after(&mut self, nodes: &[u64]) {
        for node in nodes {
            if !self.dependencies.contains(node) {
                self.dependencies.push(*node);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handles::DeviceIndex;
    use partita_client::EventHandle;

    const A: StreamHandle = StreamHandle(5);
    const B: StreamHandle = StreamHandle(6);

    fn event(number: u64) -> Event {
        Event::new(EventHandle(number), false)
    }

    fn begin(captures: &Captures, graphs: &Graphs, stream: StreamHandle) {
        captures.begin(graphs, &Begin { stream, blocking: true, mode: 0, into: None }).unwrap();
    }

    #[test]
    fn streams_join_by_events_and_the_graph_has_their_order() {
        let (captures, graphs) = (Captures::new(), Graphs::new(DeviceIndex(0)));
        assert!(matches!(captures.target(A), Ok(Target::Stream(A))));
        begin(&captures, &graphs, A);
        captures.add(&graphs, A, Action::Empty).unwrap();
        let (fork, join) = (event(1), event(2));
        captures.record(A, &fork).unwrap();
        captures.join(B, true, &fork).unwrap();
        for stream in [A, B] {
            assert!(matches!(captures.target(stream), Ok(Target::Capture(_))));
            captures.add(&graphs, stream, Action::Empty).unwrap();
        }
        captures.record(B, &join).unwrap();
        captures.join(A, true, &join).unwrap();
        captures.add(&graphs, A, Action::Empty).unwrap();
        let graph = graphs.get(captures.end(&graphs, A).unwrap()).unwrap();
        let nodes = graph.nodes();
        let edge = |from: usize, to: usize| (nodes[from], nodes[to]);
        assert_eq!(graph.edges(), [edge(0, 1), edge(0, 2), edge(1, 3), edge(2, 3)]);
        assert!(!captures.are_any());
        assert_eq!(captures.join(A, true, &fork), Err(CuError::CAPTURED_EVENT));
    }

    #[test]
    fn what_did_not_join_is_told_and_its_graph_is_gone() {
        let (captures, graphs) = (Captures::new(), Graphs::new(DeviceIndex(0)));
        begin(&captures, &graphs, A);
        captures.add(&graphs, A, Action::Empty).unwrap();
        let fork = event(1);
        captures.record(A, &fork).unwrap();
        captures.join(B, true, &fork).unwrap();
        captures.add(&graphs, B, Action::Empty).unwrap();
        let graph = captures.info(A).unwrap().unwrap().graph;
        assert_eq!(captures.end(&graphs, B), Err(CuError::STREAM_CAPTURE_UNMATCHED));
        assert_eq!(captures.end(&graphs, A), Err(CuError::STREAM_CAPTURE_UNJOINED));
        assert!(graphs.get(graph).is_err());
        assert_eq!(captures.end(&graphs, A), Err(CuError::ILLEGAL_STATE));
    }

    #[test]
    fn a_stream_that_has_joined_may_be_destroyed() {
        for joins in [true, false] {
            let (captures, graphs) = (Captures::new(), Graphs::new(DeviceIndex(0)));
            begin(&captures, &graphs, A);
            let (fork, join) = (event(1), event(2));
            captures.record(A, &fork).unwrap();
            captures.join(B, true, &fork).unwrap();
            captures.add(&graphs, B, Action::Empty).unwrap();
            captures.record(B, &join).unwrap();
            if joins {
                captures.join(A, true, &join).unwrap();
            }
            captures.stream_destroyed(&graphs, B);
            let graph = captures.end(&graphs, A);
            if joins {
                assert_eq!(graphs.get(graph.unwrap()).unwrap().nodes().len(), 1);
            } else {
                assert_eq!(graph, Err(CuError::STREAM_CAPTURE_UNJOINED));
            }
            assert!(!captures.are_any());
        }
    }

    #[test]
    fn waiting_and_the_legacy_stream_invalidate() {
        let (captures, graphs) = (Captures::new(), Graphs::new(DeviceIndex(0)));
        begin(&captures, &graphs, A);
        assert_eq!(captures.outside(B), Ok(B));
        assert_eq!(captures.outside(A), Err(CuError::STREAM_CAPTURE_UNSUPPORTED));
        assert_eq!(captures.info(A).unwrap().unwrap().status, 2);
        assert_eq!(captures.end(&graphs, A), Err(CuError::STREAM_CAPTURE_INVALIDATED));
        begin(&captures, &graphs, A);
        let legacy = captures.target(StreamHandle::LEGACY).err();
        assert_eq!(legacy, Some(CuError::STREAM_CAPTURE_IMPLICIT));
        assert_eq!(captures.end(&graphs, A), Err(CuError::STREAM_CAPTURE_INVALIDATED));
    }

    #[test]
    fn two_captures_do_not_merge() {
        let (captures, graphs) = (Captures::new(), Graphs::new(DeviceIndex(0)));
        begin(&captures, &graphs, A);
        begin(&captures, &graphs, B);
        let mark = event(1);
        captures.record(A, &mark).unwrap();
        assert_eq!(captures.join(B, true, &mark), Err(CuError::STREAM_CAPTURE_MERGE));
        for stream in [A, B] {
            assert_eq!(captures.end(&graphs, stream), Err(CuError::STREAM_CAPTURE_INVALIDATED));
        }
    }
}
