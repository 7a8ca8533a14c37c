//! What can be set about an engine.

use partita_model::{Bytes, Nanos};

/// The engine's settings. The defaults suit the emulated GPU and a real one alike.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EngineConfig {
    /// Addresses reserved per session. `None`: twice the device's memory, at least 64 GiB.
    pub window: Option<Bytes>,
    /// An application without work keeps its SMs for so long, then lends them.
    pub idle_grace: Nanos,
    /// How often running launches are looked at while SMs change hands: what a resize takes beyond
    /// the last task. The CTAs of a helper grid that land on SMs that nobody has seen to be free
    /// leave them again; so it is well below the latency of a launch.
    pub handover_tick: Nanos,
    /// How often running launches are looked at while workers are missing somewhere. 10 µs is about
    /// the latency of a launch, before which nothing new can be seen.
    pub unsettled_tick: Nanos,
    /// How often running launches are looked at otherwise.
    pub settled_tick: Nanos,
    /// How long an application must run alone before the LLC's hit rate is taken for its own.
    pub traffic_window: Nanos,
    /// Whether policies see what the device counts of running grids. No GPU tells that without
    /// privileges, and what workers execute while they wait is among it: for experiments with the
    /// emulated GPU.
    pub device_counters: bool,
    /// Whether first launches of kernels are counted.
    pub profiling: bool,
    /// Operations of one stream that are on the device at once; further ones wait in the engine.
    pub stream_depth: usize,
    /// Behind the launch that runs, further ones of its stream are on the device as far as they are
    /// expected to take so long together, but one at the least: as long as it may take until the
    /// daemon has seen that one has ended.
    pub ahead: Nanos,
    /// Operations of one session that may wait in the engine. One more ends the session.
    pub session_operations: usize,
    /// A launch that completes no CTA for so long counts as stuck, and is ended where it holds SMs
    /// that others were given.
    pub no_progress: Nanos,
    /// The same for kernels that run alone, whose progress cannot be seen, while others wait.
    pub alone: Nanos,
    /// Entries that the trace keeps.
    pub trace_entries: usize,
}

impl Default for EngineConfig {
    fn default() -> Self {
        EngineConfig {
            window: None,
            idle_grace: Nanos(1_000_000),
            handover_tick: Nanos(1_000),
            unsettled_tick: Nanos(10_000),
            settled_tick: Nanos(50_000),
            traffic_window: Nanos(200_000_000),
            device_counters: false,
            profiling: true,
            stream_depth: 64,
            ahead: Nanos(100_000),
            session_operations: 1 << 20,
            no_progress: Nanos(1_000_000_000),
            alone: Nanos(10_000_000_000),
            trace_entries: 1 << 18,
        }
    }
}
