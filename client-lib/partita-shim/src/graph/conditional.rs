//! Conditional nodes: graphs that run as often as a word of device memory says (CUDA C++
//! Programming Guide, "Conditional Graph Nodes").
//!
//! A handle is the address of the word, and `cudaGraphSetConditional` stores there. The stream of a
//! node calls a function of the host, and then waits at a gate. The function wakes a thread of the
//! instantiated graph. The thread reads the word, launches the graph inside on a stream of its own,
//! and opens the gate in the end. It is not the thread that calls functions of the host, because a
//! graph inside may run long, or call such functions. Nor does the device's time stand still
//! meanwhile, as it does for a function.

use crate::error::{CuError, CuResult};
use crate::graph::Graph;
use crate::graph::executable::Executable;
use crate::host_calls::without_signals;
use crate::runtime::{self, Runtime};
use partita_client::{ClosedGate, Session, StreamHandle};
use partita_model::DeviceAddress;
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The most graphs of one node.
pub const MAX_GRAPHS: usize = 1 << 12;

/// The word by which nodes decide.
pub struct Condition {
    /// Its address, which is its handle.
    pub address: u64,
    /// Its value when a graph with such a node begins; `None` leaves it as it is.
    default: Option<u32>,
}

impl Condition {
    /// `cuGraphConditionalHandleCreate`.
    pub fn new(runtime: &Runtime, default: Option<u32>) -> CuResult<Self> {
        let free = lock(&runtime.graphs.words).pop();
        let address = match free {
            Some(address) => address,
            None => runtime.session.mem_alloc(4)?.0,
        };
        Ok(Condition { address, default })
    }

    fn read(&self, session: &Session, stream: StreamHandle) -> CuResult<u32> {
        let mut word = [0; 4];
        session.copy_to_host(stream, &mut word, DeviceAddress(self.address))?;
        Ok(u32::from_le_bytes(word))
    }
}

impl Drop for Condition {
    fn drop(&mut self) {
        let Ok(runtime) = runtime::of_address(self.address) else { return };
        // A free would wait for all work of the session. The next handle takes the word.
        lock(&runtime.graphs.words).push(self.address);
    }
}

/// `CUgraphConditionalNodeType`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// The first graph where the word is not 0; the second, if any, where it is.
    If,
    /// The graph, again and again while the word is not 0.
    While,
    /// The graph of this number, if any.
    Switch,
}

impl Rule {
    /// From its number, with a number of graphs that it can have.
    pub fn from_raw(raw: i32, graphs: u32) -> CuResult<Rule> {
        match (raw, graphs) {
            (0, 1 | 2) => Ok(Rule::If),
            (1, 1) => Ok(Rule::While),
            (2, 1..) => Ok(Rule::Switch),
            _ => Err(CuError::INVALID_VALUE),
        }
    }

    /// Its number.
    pub fn to_raw(self) -> i32 {
        match self {
            Rule::If => 0,
            Rule::While => 1,
            Rule::Switch => 2,
        }
    }

    /// The graph that a word chooses.
    fn choice(self, word: u32) -> usize {
        match self {
            Rule::If | Rule::While => usize::from(word == 0),
            Rule::Switch => usize::try_from(word).unwrap_or(usize::MAX),
        }
    }
}

/// A conditional node.
pub struct Conditional {
    /// What it decides by.
    pub condition: Arc<Condition>,
    /// How it decides.
    pub rule: Rule,
    /// The graphs inside. They belong to the node.
    pub graphs: Vec<Arc<Graph>>,
    /// Their handles, which the program reads there.
    pub handles: Box<[u64]>,
}

impl Conditional {
    /// A node with empty graphs.
    pub fn new(condition: Arc<Condition>, rule: Rule, graphs: Vec<Arc<Graph>>) -> Self {
        let handles = graphs.iter().map(|graph| graph.handle).collect();
        Conditional { condition, rule, graphs, handles }
    }
}

/// A conditional node of an instantiated graph.
pub struct Branches {
    /// What the next launch runs.
    inside: Arc<Inside>,
    line: Arc<Line>,
    /// Tells the thread that a stream is there; there is one from the first launch on.
    arrived: Mutex<Option<Sender<()>>>,
}

/// What a launch decides by, and the graphs inside. Updates leave the launches before them alone.
struct Inside {
    condition: Arc<Condition>,
    rule: Rule,
    graphs: Vec<Executable>,
    /// Where it was launched.
    runtime: OnceLock<&'static Runtime>,
}

/// The launches that wait at gates, in their order.
#[derive(Default)]
struct Line {
    launches: Mutex<VecDeque<(ClosedGate, Arc<Inside>)>>,
}

impl Branches {
    /// Instantiates the graphs inside.
    pub fn new(node: &Conditional, depth: usize) -> CuResult<Self> {
        let inside = Arc::new(Inside::new(node, depth)?);
        Ok(Branches { inside, line: Arc::default(), arrived: Mutex::new(None) })
    }

    /// The instantiated graphs inside.
    pub fn graphs(&self) -> &[Executable] {
        &self.inside.graphs
    }

    /// Whether another node decides in the same way.
    pub fn is_like(&self, node: &Conditional) -> bool {
        self.inside.rule == node.rule && self.inside.graphs.len() == node.graphs.len()
    }

    /// Takes another node's word and graphs for later launches.
    pub fn update(&mut self, node: &Conditional, depth: usize) -> CuResult {
        self.inside = Arc::new(Inside::new(node, depth)?);
        Ok(())
    }

    /// Gives the word its first value in a launch.
    pub fn set_default(&self, session: &Session, stream: StreamHandle) -> CuResult {
        let Condition { address, default } = *self.inside.condition;
        match default {
            Some(value) => Ok(session.fill(stream, DeviceAddress(address), value, 4, 1)?),
            None => Ok(()),
        }
    }

    /// Makes a stream wait until the graphs inside have run.
    pub fn submit(&self, runtime: &'static Runtime, stream: StreamHandle) -> CuResult {
        let mut arrived = lock(&self.arrived);
        let told = match &*arrived {
            Some(told) => told.clone(),
            None => arrived.insert(self.line.start(runtime)?).clone(),
        };
        let _ = self.inside.runtime.set(runtime);
        // The thread finds the gate, however soon it is told.
        let mut launches = lock(&self.line.launches);
        runtime.host_calls.add(&runtime.session, stream, move |outcome| {
            // A session whose work has failed has none behind the gate.
            if outcome.is_ok() {
                let _ = told.send(());
            }
        })?;
        launches.push_back((runtime.session.close_gate(stream)?, Arc::clone(&self.inside)));
        Ok(())
    }
}

impl Line {
    fn start(self: &Arc<Line>, runtime: &'static Runtime) -> CuResult<Sender<()>> {
        let (told, arrived) = channel();
        let line = Arc::clone(self);
        let spawned = without_signals(|| {
            let thread = std::thread::Builder::new().name("partita-graph".to_owned());
            thread.spawn(move || line.serve(runtime, &arrived)).map(drop)
        });
        spawned.map_err(|_| CuError::OPERATING_SYSTEM)?;
        Ok(told)
    }

    /// Runs the graphs inside for each launch, until the instantiated graph has gone.
    fn serve(&self, runtime: &'static Runtime, arrived: &Receiver<()>) {
        let session = &runtime.session;
        let stream = session.create_stream(true, 0);
        while arrived.recv().is_ok() {
            let Some((gate, inside)) = lock(&self.launches).pop_front() else { continue };
            let ran = stream.clone().map_err(CuError::from);
            if let Err(error) = ran.and_then(|stream| inside.run(runtime, stream)) {
                runtime.fail_later("a graph in a conditional node was not launched", error);
            }
            // A session that has failed has no work behind the gate.
            let _ = session.open_gate(gate);
        }
        if let Ok(stream) = stream {
            let _ = session.destroy_stream(stream);
        }
    }
}

impl Inside {
    fn new(node: &Conditional, depth: usize) -> CuResult<Self> {
        let graphs = node.graphs.iter().map(|graph| Executable::at_depth(graph, 0, depth + 1));
        let graphs = graphs.collect::<CuResult<_>>()?;
        let (condition, runtime) = (Arc::clone(&node.condition), OnceLock::new());
        Ok(Inside { condition, rule: node.rule, graphs, runtime })
    }

    /// Returns when the graphs that the word chooses have run.
    fn run(&self, runtime: &'static Runtime, stream: StreamHandle) -> CuResult {
        let session = &runtime.session;
        let mut word = self.condition.read(session, stream)?;
        while let Some(graph) = self.graphs.get(self.rule.choice(word)) {
            graph.launch(runtime, stream)?;
            // The read comes behind the graph.
            word = self.condition.read(session, stream)?;
            if self.rule != Rule::While {
                break;
            }
        }
        Ok(())
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.get() {
            self.graphs.iter().for_each(|graph| graph.release(&runtime.session));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_choose_graphs() {
        for (rule, word, chosen) in [
            (Rule::If, 0, 1),
            (Rule::If, 7, 0),
            (Rule::While, 1, 0),
            (Rule::While, 0, 1),
            (Rule::Switch, 0, 0),
            (Rule::Switch, 3, 3),
        ] {
            assert_eq!(rule.choice(word), chosen, "{rule:?} {word}");
        }
    }

    #[test]
    fn rules_have_a_number_of_graphs() {
        for (raw, graphs, is_good) in [
            (0, 1, true),
            (0, 2, true),
            (0, 3, false),
            (0, 0, false),
            (1, 1, true),
            (1, 2, false),
            (2, 5, true),
            (2, 0, false),
            (3, 1, false),
        ] {
            let rule = Rule::from_raw(raw, graphs);
            assert_eq!(rule.is_ok(), is_good, "{raw} {graphs}");
            assert!(rule.is_err() || rule.map(Rule::to_raw) == Ok(raw));
        }
    }
}
