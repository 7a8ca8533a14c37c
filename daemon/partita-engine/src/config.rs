//! What can be set about an engine.

use partita_model::{Bytes, Nanos, Originals};

/// The engine's settings. The defaults suit the emulated GPU and a real one alike.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EngineConfig {
    /// Addresses reserved per session. `None`: as many as the device has bytes of memory, at least
    /// 64 GiB.
    pub window: Option<Bytes>,
    /// Longest time for which an application without work keeps its SMs. The time follows its own
    /// gaps between launches.
    pub idle_grace: Nanos,
    /// The same for applications of priority `latency`, which have their SMs back within a task:
    /// the time that a loan costs, below which an owner that lends would lose.
    pub urgent_grace: Nanos,
    /// Whether applications whose kernels run alone give others their share of time, and by which
    /// clock.
    pub rests: Rests,
    /// Time between two looks at running launches while SMs change hands. A resize takes this time
    /// beyond the last task. It is well below the latency of a launch: CTAs of a helper grid that
    /// land on an SM before the engine has seen it free leave the SM again.
    pub handover_tick: Nanos,
    /// Time between two looks at running launches while workers are missing somewhere. 10 µs is
    /// about the latency of a launch, before which nothing new can be seen.
    pub unsettled_tick: Nanos,
    /// Time between two looks at running launches otherwise.
    pub settled_tick: Nanos,
    /// Time for which an application must run alone before the LLC's hit rate is attributed to it.
    pub traffic_window: Nanos,
    /// Whether policies see what the device counts of running grids. No GPU tells that without
    /// privileges, and the counters include what workers execute while they wait. For experiments
    /// with the emulated GPU.
    pub device_counters: bool,
    /// Whether first launches of kernels are counted.
    pub profiling: bool,
    /// Whether the control block is read at every end of workers, to find CTAs that were lost
    /// because of a bug in a form. The read is a message to the device and costs a launch's time.
    /// On devices with words for faults ([`partita_device::Device::allocate_words`]) each 16th.
    pub verify_ends: bool,
    /// When kernels run as they were written although they have another form.
    pub originals: Originals,
    /// Operations of one stream that are on the device at once. Further ones wait in the engine.
    pub stream_depth: usize,
    /// Queue depth behind the running launch of a stream: at least one launch, then more until
    /// their expected total duration reaches this time. It covers the time after which the daemon
    /// sees that a launch has ended.
    pub ahead: Nanos,
    /// The order of copies between host and device.
    pub copies: CopyPolicy,
    /// Operations of one session that may wait in the engine. One more ends the session.
    pub session_operations: usize,
    /// Allocations of device memory that one session may have at a time.
    pub session_allocations: usize,
    /// Time without a completed CTA after which a launch counts as stuck, and after which it is
    /// ended where it holds SMs that another application was given.
    pub no_progress: Nanos,
    /// The same for kernels that run alone, whose progress cannot be seen, while others wait. CTAs
    /// have as long to leave SMs that another application was given where others of their launch
    /// complete.
    pub alone: Nanos,
    /// Host time for which the device may run a launch that completes no CTA while others wait for
    /// it. Only [`crate::Engine::device_worked`] lets this time pass.
    pub hold_up: Nanos,
    /// Entries that the trace keeps.
    pub trace_entries: usize,
}

impl EngineConfig {
    /// How long CTAs may stay on SMs that they have lost until others work beside them: a tenth of
    /// [`EngineConfig::no_progress`] in device time, or without a completed CTA a quarter of
    /// [`EngineConfig::hold_up`] in host time.
    #[must_use]
    pub fn lingers_after(&self) -> [Nanos; 2] {
        [Nanos(self.no_progress.0 / 10), Nanos(self.hold_up.0 / 4)]
    }
}

/// The order in which copies between host and device go to the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CopyPolicy {
    /// As a program alone would have it: each goes as soon as its stream comes to it. For
    /// comparisons.
    Arrival,
    /// What makes kernels ready soonest, within each user's part of the link.
    #[default]
    Readiness,
}

/// The clock by which applications rest whose kernels run alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rests {
    /// They do not rest: the order of arrival decides.
    Never,
    /// Device time. A kernel may then wait on an idle device, and the caller has to let time pass
    /// ([`crate::Engine::awaits_timer`]).
    ByDevice,
    /// The host's time, for devices without time ([`crate::Engine::host_time_is`]).
    ByHost,
}

impl Default for EngineConfig {
    fn default() -> Self {
        EngineConfig {
            window: None,
            idle_grace: Nanos(1_000_000),
            urgent_grace: Nanos(60_000),
            rests: Rests::Never,
            handover_tick: Nanos(1_000),
            unsettled_tick: Nanos(10_000),
            settled_tick: Nanos(50_000),
            traffic_window: Nanos(200_000_000),
            device_counters: false,
            profiling: true,
            verify_ends: cfg!(debug_assertions),
            originals: Originals::default(),
            stream_depth: 64,
            ahead: Nanos(100_000),
            copies: CopyPolicy::default(),
            session_operations: 1 << 20,
            session_allocations: 1 << 20,
            no_progress: Nanos(1_000_000_000),
            alone: Nanos(10_000_000_000),
            hold_up: Nanos(30_000_000_000),
            trace_entries: 1 << 18,
        }
    }
}
