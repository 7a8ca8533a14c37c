//! What a program waits for beside one whose kernel can be neither worker nor ticket.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use partita_device::Device;
use partita_emu::{EmulatedGpu, Options, Spec};
use partita_engine::{EngineConfig, Payload, Rests, SessionIdentity};
use partita_model::request::{Launch, ModuleHandle, Request, StreamHandle};
use partita_model::{Dim3, KernelReport, Nanos, SessionId, TenantId, Terms};
use partita_sim::images::{GOOD_IMAGE, KERNELS};
use partita_sim::world::World;

const MODULE: ModuleHandle = ModuleHandle(1);
/// CTAs of a warp each, of which an SM holds one, by their shared memory.
const BLOCK: u32 = 32;
const SHARED: u32 = 40 << 10;
/// SMs of the GPU.
const SMS: u32 = 24;
/// Steps of a chain in each thread: a round of CTAs takes about 16 us.
const STEPS: u32 = 1_500;

/// A program with a long launch, and a neighbour that adds vectors.
struct Pair {
    world: World,
    long: (SessionId, u64),
    neighbour: (SessionId, u64),
}

impl Pair {
    fn new() -> Self {
        let device = EmulatedGpu::new(Spec::named("cd-search-24").unwrap(), Options::default());
        let config =
            EngineConfig { rests: Rests::ByDevice, profiling: false, ..EngineConfig::default() };
        let world = World::new(device, config, false).unwrap();
        let mut pair = Pair { world, long: (SessionId(0), 0), neighbour: (SessionId(0), 0) };
        let identity = |session| SessionIdentity {
            session,
            tenant: TenantId(1000),
            pid: 1,
            program: "program".to_owned(),
            tag: None,
            asked: Terms::default(),
        };
        let mut connect = || {
            let (session, _) = pair.world.open(identity).unwrap();
            pair.ask(session, Request::ModuleLoad { module: MODULE, image: GOOD_IMAGE });
            match pair.ask(session, Request::MemAlloc { bytes: 4 << 20 }) {
                Payload::Address(address) => (session, address.0),
                other => panic!("{other:?}"),
            }
        };
        (pair.long, pair.neighbour) = (connect(), connect());
        pair
    }

    fn now(&mut self) -> u64 {
        self.world.with(|_, device| device.now().0)
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

    fn run_for(&mut self, nanos: u64) {
        let until = self.now() + nanos;
        while self.now() < until {
            self.world.advance(Nanos(until), u64::MAX);
        }
    }

    fn launch(&mut self, session: SessionId, kernel: &str, params: Vec<u8>, like: &Launch) {
        let mut entries = KERNELS.lines().filter_map(|line| line.strip_prefix(".visible .entry "));
        let kernel = entries.position(|entry| entry.split('(').next() == Some(kernel)).unwrap();
        let kernel = u32::try_from(kernel).unwrap();
        self.ask(session, Request::Launch(Launch { kernel, params, ..like.clone() }));
    }

    /// Launches the long kernel with so many rounds of CTAs. A cooperative launch runs whole, as
    /// any launch of such a kernel would without slices.
    fn start(&mut self, rounds: u32, cooperative: bool) {
        let (session, data) = self.long;
        let words = [BLOCK * SMS * rounds, STEPS].into_iter().flat_map(u32::to_le_bytes);
        let params = data.to_le_bytes().into_iter().chain(words).collect();
        let shape = Launch { dynamic_shared: SHARED, cooperative, ..shape(SMS * rounds, BLOCK) };
        self.launch(session, "leaving", params, &shape);
    }

    /// How long one launch of the neighbour takes from the call to its end, in nanoseconds.
    fn wait(&mut self) -> u64 {
        let (session, data) = self.neighbour;
        let asked = self.now();
        let count = 1_u64 << 16;
        let params = [data, count, data + (1 << 19)].map(u64::to_le_bytes).concat();
        self.launch(session, "gather", params, &shape(256, 256));
        self.ask(session, Request::Synchronize { stream: None });
        self.now() - asked
    }

    /// The time that the long launch takes beside a neighbour with one launch, and how long that
    /// waits.
    fn beside(cooperative: bool) -> (u64, u64) {
        let mut pair = Pair::new();
        pair.wait();
        let begun = pair.now();
        pair.start(500, cooperative);
        pair.run_for(1_000_000);
        let waited = pair.wait();
        pair.ask(pair.long.0, Request::Synchronize { stream: None });
        (pair.now() - begun, waited)
    }

    fn report(&mut self) -> KernelReport {
        let reports = self.world.with(|engine, _| engine.application_reports());
        reports[0].kernels[0].clone()
    }
}

fn shape(ctas: u32, block: u32) -> Launch {
    Launch {
        stream: StreamHandle(0),
        module: MODULE,
        kernel: 0,
        grid: Dim3::linear(ctas),
        block: Dim3::linear(block),
        dynamic_shared: 0,
        cooperative: false,
        cluster: Dim3::linear(1),
        params: Vec::new(),
    }
}

#[test]
fn a_neighbour_waits_for_a_slice_and_not_for_the_launch() {
    let (long_whole, whole) = Pair::beside(true);
    let (long_slices, slices) = Pair::beside(false);
    println!("the neighbour waits {whole} ns beside a whole launch of {long_whole} ns");
    println!("the neighbour waits {slices} ns beside slices; the launch takes {long_slices} ns");
    assert!(whole > 5_000_000, "{whole} ns of {long_whole}");
    assert!(slices < 2_100_000, "{slices} ns beside slices");
}

#[test]
fn slices_cost_at_most_two_percent_once_their_size_is_found() {
    let time = |cooperative| {
        let mut pair = Pair::new();
        let mut last = 0;
        for _ in 0..3 {
            let begun = pair.now();
            pair.start(100, cooperative);
            pair.ask(pair.long.0, Request::Synchronize { stream: None });
            last = pair.now() - begun;
        }
        (last, pair.report())
    };
    let ((whole, as_written), (slices, report)) = (time(true), time(false));
    println!("{whole} ns whole, {slices} ns in {} slices of three launches", report.slices);
    assert_eq!((&*as_written.form, as_written.slices), ("original", 0));
    assert!(report.form == "slice" && report.slices > 20, "{report:?}");
    assert!(slices * 100 <= whole * 102, "{slices} ns in slices, {whole} ns whole");
}
