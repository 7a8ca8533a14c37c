//! What an application that has the GPU to itself pays for being resizable.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use partita_emu::{EmulatedGpu, Options, Spec};
use partita_engine::{EngineConfig, Payload, SessionIdentity};
use partita_model::request::{Launch, ModuleHandle, Request, StreamHandle};
use partita_model::{Dim3, Nanos, Originals, SessionId, Sharing, TenantId};
use partita_sim::world::{GOOD_IMAGE, World};

const MODULE: ModuleHandle = ModuleHandle(1);
const BLOCK: u32 = 256;
/// `step` of the module.
const STEP: u32 = 0;

/// One program alone on a GPU.
struct Alone {
    world: World,
    session: SessionId,
    data: u64,
}

fn identity(session: SessionId) -> SessionIdentity {
    SessionIdentity {
        session,
        tenant: TenantId(1000),
        pid: 1,
        program: "alone".to_owned(),
        tag: None,
    }
}

impl Alone {
    fn new(sharing: Sharing, originals: Originals) -> Self {
        let options = Options { sharing, ..Options::default() };
        let device = EmulatedGpu::new(Spec::named("cd-search-24").unwrap(), options);
        let config = EngineConfig { originals, profiling: false, ..EngineConfig::default() };
        let mut world = World::new(device, config, false).unwrap();
        let (session, _) = world.open(identity).unwrap();
        let mut alone = Alone { world, session, data: 0 };
        alone.ask(Request::ModuleLoad { module: MODULE, image: GOOD_IMAGE });
        match alone.ask(Request::MemAlloc { bytes: 4 << 20 }) {
            Payload::Address(address) => alone.data = address.0,
            other => panic!("{other:?}"),
        }
        alone
    }

    fn ask(&mut self, request: Request) -> Payload {
        let sequence = self.world.send(self.session, request);
        loop {
            if let Some((code, payload)) = self.world.take_reply(self.session, sequence) {
                assert_eq!(code.0, 0, "{payload:?}");
                return payload;
            }
            self.world.advance(Nanos(u64::MAX), u64::MAX);
        }
    }

    fn launch(&mut self, ctas: u32) {
        let words = [BLOCK * ctas, 1];
        let params = self.data.to_le_bytes().into_iter();
        let params = params.chain(words.into_iter().flat_map(u32::to_le_bytes)).collect();
        let launch = Launch {
            stream: StreamHandle(0),
            module: MODULE,
            kernel: STEP,
            grid: Dim3::linear(ctas),
            block: Dim3::linear(BLOCK),
            dynamic_shared: 0,
            cooperative: false,
            params,
        };
        self.ask(Request::Launch(launch));
    }

    /// Device time of launches in a row, after some others of the same shape.
    fn time(&mut self, ctas: u32, launches: u32) -> u64 {
        for _ in 0..4 {
            self.launch(ctas);
            self.ask(Request::Synchronize { stream: None });
        }
        let now =
            |alone: &mut Alone| alone.world.with(|_, device| partita_device::Device::now(device).0);
        let begin = now(self);
        for _ in 0..launches {
            self.launch(ctas);
        }
        self.ask(Request::Synchronize { stream: None });
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
        let mut as_written = Alone::new(Sharing::Mps, Originals::Never);
        let mut workers = Alone::new(Sharing::Spatial, Originals::Never);
        let mut alone = Alone::new(Sharing::Spatial, Originals::Alone);
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
    let mut alone = Alone::new(Sharing::Spatial, Originals::Alone);
    alone.world.open(identity).unwrap();
    alone.time(3072, 4);
    assert_eq!(alone.as_written(), 0);
}
