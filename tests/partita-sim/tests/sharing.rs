//! Two programs share each SM of an emulated GPU that keeps time.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use partita_device::Device;
use partita_emu::{EmulatedGpu, Options, Spec};
use partita_engine::{EngineConfig, Payload, Rests, SessionIdentity};
use partita_model::request::{Launch, ModuleHandle, Request, StreamHandle};
use partita_model::{
    ApplicationId, Dim3, Nanos, OperationId, Originals, ResidencyKind, SessionId, SmId, SmPart,
    TenantId, Terms, TraceEntry,
};
use partita_policy::{Even, Sample, Selected, Selector};
use partita_sim::images::{GOOD_IMAGE, KERNELS};
use partita_sim::residents::{GLANCE, longest_meeting, patience};
use partita_sim::world::World;
use std::collections::BTreeMap;

const MODULE: ModuleHandle = ModuleHandle(1);
const SMS: u16 = 24;
/// Threads of a CTA.
const BLOCK: u32 = 256;
/// CTAs that fit on an SM by their registers, and those of them that the first program has.
const FIT: u16 = 5;
const FIRST: u16 = 2;

/// Two share all SMs.
struct Couple;

impl Selector for Couple {
    fn name(&self) -> &'static str {
        "couple"
    }

    fn step(&mut self, sample: &Sample) -> Selected {
        let ids: Vec<ApplicationId> = sample.applications.iter().map(|a| a.application).collect();
        let parts = [SmPart::new(FIRST, FIT), SmPart::new(FIT - FIRST, FIT)].map(Option::unwrap);
        let parts =
            if ids.len() == 2 { ids.iter().copied().zip(parts).collect() } else { BTreeMap::new() };
        Selected { together: ids.into_iter().collect(), parts, ..Selected::default() }
    }
}

fn ask(world: &mut World, session: SessionId, request: Request) -> Payload {
    let sequence = world.send(session, request);
    loop {
        if let Some((code, payload)) = world.take_reply(session, sequence) {
            assert_eq!(code.0, 0, "{payload:?}");
            return payload;
        }
        world.advance(Nanos(u64::MAX), u64::MAX);
    }
}

/// A program with a launch of that many CTAs.
fn launch(world: &mut World, session: SessionId, kernel: &str, ctas: u32, steps: u32) {
    let bytes = u64::from(ctas * BLOCK) * 4;
    let Payload::Address(data) = ask(world, session, Request::MemAlloc { bytes }) else {
        panic!("no memory")
    };
    let mut entries = KERNELS.lines().filter_map(|line| line.strip_prefix(".visible .entry "));
    let kernel = entries.position(|entry| entry.split('(').next() == Some(kernel)).unwrap();
    let words = [ctas * BLOCK, steps].into_iter().flat_map(u32::to_le_bytes);
    let launch = Launch {
        stream: StreamHandle(0),
        module: MODULE,
        kernel: u32::try_from(kernel).unwrap(),
        grid: Dim3::linear(ctas),
        block: Dim3::linear(BLOCK),
        dynamic_shared: 0,
        cooperative: false,
        cluster: Dim3::linear(1),
        params: data.0.to_le_bytes().into_iter().chain(words).collect(),
    };
    ask(world, session, Request::Launch(launch));
}

/// The most CTAs of each application on one SM that stay longer than a glance, while both are
/// there.
fn most(entries: &[TraceEntry]) -> BTreeMap<ApplicationId, usize> {
    let mut stays: BTreeMap<(OperationId, u64), Nanos> = BTreeMap::new();
    for entry in entries {
        let TraceEntry::Residency { change, .. } = entry else { continue };
        let at = stays.entry((change.grid, change.cta)).or_default();
        *at = Nanos(change.time.0 - at.0);
    }
    let mut here: BTreeMap<SmId, BTreeMap<ApplicationId, usize>> = BTreeMap::new();
    let mut most: BTreeMap<ApplicationId, usize> = BTreeMap::new();
    for entry in entries {
        let TraceEntry::Residency { change, application, .. } = entry else { continue };
        if stays[&(change.grid, change.cta)] <= GLANCE {
            continue;
        }
        let sm = here.entry(change.sm).or_default();
        let count = sm.entry(*application).or_default();
        match change.kind {
            ResidencyKind::Start => *count += 1,
            ResidencyKind::Exit => *count -= 1,
        }
        if sm.values().all(|count| *count > 0) && sm.len() == 2 {
            for (id, count) in sm {
                let most = most.entry(*id).or_default();
                *most = (*most).max(*count);
            }
        }
    }
    most
}

#[test]
fn each_program_keeps_to_its_part_of_every_sm() {
    let device = EmulatedGpu::new(Spec::named("cd-search-24").unwrap(), Options::default());
    let config = EngineConfig {
        rests: Rests::ByDevice,
        originals: Originals::Never,
        profiling: false,
        trace_entries: 1 << 20,
        ..EngineConfig::default()
    };
    let mut world = World::new(device, config, false).unwrap();
    world.with(|engine, device| engine.set_policy(device, (Box::new(Couple), Box::new(Even))));
    let both = [(); 2].map(|()| {
        let identity = |session| SessionIdentity {
            session,
            tenant: TenantId(1000),
            pid: 1,
            program: "program".to_owned(),
            tag: None,
            asked: Terms::default(),
        };
        let (session, grant) = world.open(identity).unwrap();
        ask(&mut world, session, Request::ModuleLoad { module: MODULE, image: GOOD_IMAGE });
        (session, grant.application)
    });
    // The first has the GPU to itself when the second comes.
    launch(&mut world, both[0].0, "long", 4_000, 40);
    let until = Nanos(world.device.now().0 + 50_000);
    world.advance(until, u64::MAX);
    launch(&mut world, both[1].0, "long", 6_000, 40);
    let until = Nanos(world.device.now().0 + 200_000);
    while world.device.now() < until {
        world.advance(until, u64::MAX);
    }
    let reports = world.with(|engine, _| engine.partition_reports());
    assert_eq!(reports.len(), 2, "{reports:?}");
    assert!(reports.iter().all(|report| report.sms.len() == SMS && report.part.is_some()));
    for (session, _) in both {
        ask(&mut world, session, Request::Synchronize { stream: None });
    }
    let trace = world.with(|engine, _| engine.trace_report(None));
    assert_eq!(trace.dropped, 0);
    let most = most(&trace.entries);
    println!("CTAs on an SM while both are there, at most: {most:?}");
    let [first, second] = both.map(|(_, id)| most[&id]);
    assert_eq!((first, second), (FIRST.into(), (FIT - FIRST).into()));
    assert!(longest_meeting(&trace.entries, patience()).unwrap() <= GLANCE);
    assert_eq!(world.broken(), None);
}
