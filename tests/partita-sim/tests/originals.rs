//! What applications pay for being resizable, alone and on halves.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use partita_device::Device;
use partita_emu::{EmulatedGpu, Options, Spec};
use partita_engine::{EngineConfig, Payload, SessionIdentity};
use partita_model::request::{Launch, ModuleHandle, Request, StreamHandle};
use partita_model::{
    Dim3, Nanos, Originals, PartitionerKind, PolicyConfig, SessionId, Sharing, TenantId, Terms,
};
use partita_sim::images::GOOD_IMAGE;
use partita_sim::world::World;

const MODULE: ModuleHandle = ModuleHandle(1);
const BLOCK: u32 = 256;
/// `step` of the module.
const STEP: u32 = 0;

/// Programs on a GPU of 24 SMs.
struct Programs {
    world: World,
    /// Sessions, each with its memory.
    all: Vec<(SessionId, u64)>,
}

fn identity(session: SessionId) -> SessionIdentity {
    SessionIdentity {
        session,
        tenant: TenantId(1000),
        pid: 1,
        program: "alone".to_owned(),
        tag: None,
        asked: Terms::default(),
    }
}

impl Programs {
    fn new(count: usize, options: Options, originals: Originals) -> Self {
        let device = EmulatedGpu::new(Spec::named("cd-search-24").unwrap(), options);
        let config = EngineConfig { originals, profiling: false, ..EngineConfig::default() };
        let mut world = World::new(device, config, false).unwrap();
        world.with(|engine, device| {
            let even = PartitionerKind::Even;
            let policy = PolicyConfig { partitioner: even, ..PolicyConfig::default() };
            let deciders = partita_policy::build(&policy, &device.calibration()).unwrap();
            engine.set_policy(device, deciders);
        });
        let mut programs = Programs { world, all: Vec::new() };
        for _ in 0..count {
            let (session, _) = programs.world.open(identity).unwrap();
            programs.ask(session, Request::ModuleLoad { module: MODULE, image: GOOD_IMAGE });
            match programs.ask(session, Request::MemAlloc { bytes: 4 << 20 }) {
                Payload::Address(address) => programs.all.push((session, address.0)),
                other => panic!("{other:?}"),
            }
        }
        programs
    }

    fn alone(sharing: Sharing, originals: Originals) -> Self {
        Programs::new(1, Options { sharing, ..Options::default() }, originals)
    }

    fn ask(&mut self, session: SessionId, request: Request) -> Payload {
        let sequence = self.world.send(session, request);
        loop {
            if let Some((code, payload)) = self.world.take_reply(session, sequence) {
                assert_eq!(code.0, 0, "{payload:?}");
                return payload;
            }
            self.world.advance(Nanos(u64::MAX), u64::MAX);
        }
    }

    /// Every program launches, one after the other.
    fn launch(&mut self, ctas: u32) {
        for (session, data) in self.all.clone() {
            let words = [BLOCK * ctas, 1];
            let params = data.to_le_bytes().into_iter();
            let params = params.chain(words.into_iter().flat_map(u32::to_le_bytes)).collect();
            let launch = Launch {
                stream: StreamHandle(0),
                module: MODULE,
                kernel: STEP,
                grid: Dim3::linear(ctas),
                block: Dim3::linear(BLOCK),
                dynamic_shared: 0,
                cooperative: false,
                cluster: Dim3::linear(1),
                params,
            };
            self.ask(session, Request::Launch(launch));
        }
    }

    fn synchronize(&mut self) {
        for (session, _) in self.all.clone() {
            self.ask(session, Request::Synchronize { stream: None });
        }
    }

    /// Device time of launches in a row, after some others of the same shape.
    fn time(&mut self, ctas: u32, launches: u32) -> u64 {
        for _ in 0..4 {
            self.launch(ctas);
            self.synchronize();
        }
        let now = |programs: &mut Programs| programs.world.with(|_, device| device.now().0);
        let begin = now(self);
        for _ in 0..launches {
            self.launch(ctas);
        }
        self.synchronize();
        now(self) - begin
    }

    /// Launches that ran as they were written although their kernel has another form.
    fn as_written(&mut self) -> u64 {
        let reports = self.world.with(|engine, _| engine.application_reports());
        reports.iter().flat_map(|report| &report.kernels).map(|kernel| kernel.as_written).sum()
    }
}

#[test]
fn short_launches_alone_cost_what_they_cost_as_written() {
    for ctas in [1, 48, 192, 768, 3072] {
        let mut as_written = Programs::alone(Sharing::Mps, Originals::Never);
        let mut workers = Programs::alone(Sharing::Spatial, Originals::Never);
        let mut alone = Programs::alone(Sharing::Spatial, Originals::Alone);
        let times = [&mut as_written, &mut workers, &mut alone].map(|p| p.time(ctas, 40));
        let [as_written, workers, own] = times;
        assert!(alone.as_written() >= 40, "{ctas}: {}", alone.as_written());
        // The grids are the same; looks at running launches may move their borders.
        assert!(own * 100 <= as_written * 101, "{ctas}: {own} ns, {as_written} as written");
        assert!(workers > own, "{ctas}: {workers} ns as workers, {own} as written");
    }
}

#[test]
fn long_launches_beside_an_idle_program_run_as_workers() {
    // 45 us in 16 rounds of CTAs, beside another program that is connected.
    let mut alone = Programs::alone(Sharing::Spatial, Originals::Alone);
    alone.world.open(identity).unwrap();
    alone.time(3072, 4);
    assert_eq!(alone.as_written(), 0);
}

#[test]
fn short_launches_on_halves_cost_what_they_cost_as_written_there() {
    for ctas in [1, 48, 192, 384] {
        let mps =
            Options { sharing: Sharing::Mps, thread_percentage: Some(50), ..Options::default() };
        let mut as_written = Programs::new(2, mps, Originals::Never);
        let mut halves = Programs::new(2, Options::default(), Originals::Short);
        let times = [&mut as_written, &mut halves].map(|programs| programs.time(ctas, 40));
        let [written, both] = times;
        assert!(halves.as_written() >= 80, "{ctas}: {}", halves.as_written());
        // The programs meet at other moments, and share the bandwidth of the memory.
        assert!(both * 100 <= written * 102, "{ctas}: {both} ns, {written} as written");
    }
}
