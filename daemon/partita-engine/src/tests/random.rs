//! Seeded random runs: faulty clients, resizes and stalls, with the invariants of the crate's page.

use super::world::{ALONE, FAULT, LONG, MEDIUM, SHORT, SLICED, TICKET, World};
use crate::{CloseReason, EngineConfig, EventHandle, Request, Rests, StreamHandle, StreamKind};
use partita_device::{Event, Phase};
use partita_model::{ApplicationId, Bytes, DeviceAddress, Nanos, SessionId, SmId, SmPart, SmSet};
use partita_policy::{Sample, Selected, Selector};
use std::collections::BTreeMap;

/// SplitMix64 (Steele et al., OOPSLA '14): enough for choosing test steps.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

struct Client {
    session: SessionId,
    application: ApplicationId,
    memory: Vec<DeviceAddress>,
    /// It will not fault, so its work must complete.
    healthy: bool,
    launches: u64,
}

fn connect(world: &mut World, healthy: bool) -> Client {
    let (session, application) = world.session();
    for stream in 1..4 {
        let kind = if stream == 3 { StreamKind::NonBlocking } else { StreamKind::Blocking };
        world.send(
            session,
            Request::StreamCreate { stream: StreamHandle(stream), kind, priority: 0 },
        );
        world.send(session, Request::EventCreate { event: EventHandle(stream), slot: 0 });
    }
    Client { session, application, memory: Vec::new(), healthy, launches: 0 }
}

fn step(world: &mut World, random: &mut Random, client: &mut Client) {
    let stream = StreamHandle(random.below(4));
    let event = EventHandle(1 + random.below(3));
    let request = match random.below(20) {
        0..8 => {
            let last = if client.healthy { SHORT } else { FAULT };
            let kernels = [SHORT, TICKET, MEDIUM, LONG, ALONE, SLICED, last];
            let kernel = kernels[usize::try_from(random.below(7)).unwrap()];
            let most = if kernel == SLICED { 4_000 } else { 400 };
            let ctas = u32::try_from(1 + random.below(most)).unwrap();
            client.launches += 1;
            Request::Launch(World::launch(stream.0, kernel, ctas))
        }
        8 | 9 => Request::EventRecord { event, stream },
        10 | 11 => Request::StreamWait { stream, event },
        12 | 13 => Request::Synchronize { stream: Some(stream) },
        14 => {
            let sequence =
                world.send(client.session, Request::MemAlloc { bytes: 1 + random.below(10_000) });
            if let (_, crate::Payload::Address(address)) =
                world.await_reply(client.session, sequence)
            {
                client.memory.push(address);
            }
            return;
        }
        15 => match client.memory.pop() {
            Some(address) => Request::MemFree { address },
            None => Request::MemInfo,
        },
        16 | 17 => match client.memory.last() {
            Some(&to) => Request::Fill { stream, to, value: 7, width: 1, count: 1 },
            None => Request::MemInfo,
        },
        _ => Request::StreamQuery { stream },
    };
    world.send(client.session, request);
}

fn resize(world: &mut World, random: &mut Random, clients: &[Client], sm_count: u16) {
    let mut plan: BTreeMap<ApplicationId, SmSet> = BTreeMap::new();
    for sm in 0..sm_count {
        let pick = usize::try_from(random.below(clients.len() as u64 + 1)).unwrap();
        if let Some(client) = clients.get(pick) {
            plan.entry(client.application).or_default().insert(SmId(sm));
        }
    }
    // Some of these plans starve somebody and are refused: that must leave everything as it is.
    let _ = world.engine.set_plan(&mut world.device, plan);
}

/// Now all run on SMs of their own, now two share all SMs, and the others wait.
struct Fickle(Random, Nanos);

impl Selector for Fickle {
    fn name(&self) -> &'static str {
        "fickle"
    }

    fn step(&mut self, sample: &Sample) -> Selected {
        self.1 = sample.now + Nanos(20_000 + self.0.below(80_000));
        let mut ids: Vec<ApplicationId> =
            sample.applications.iter().map(|a| a.application).collect();
        let cramped = sample.applications.iter().any(|a| a.cramped);
        if ids.len() < 2 || cramped || self.0.below(3) == 0 {
            return Selected { together: ids.into_iter().collect(), ..Selected::default() };
        }
        while ids.len() > 2 {
            let gone = usize::try_from(self.0.below(ids.len() as u64)).unwrap();
            ids.remove(gone);
        }
        let eighths = u16::try_from(1 + self.0.below(7)).unwrap();
        let parts = [eighths, 8 - eighths].map(|ctas| SmPart::new(ctas, 8).unwrap());
        let parts = ids.iter().copied().zip(parts).collect();
        Selected { together: ids.into_iter().collect(), parts, ..Selected::default() }
    }

    fn again_at(&self) -> Option<Nanos> {
        Some(self.1)
    }
}

/// `is_shared`: some share SMs now and then. `look_time`: how long a look at the device's memory
/// takes, in nanoseconds. `may_leave`: the device drains now and then, and launches leave it.
fn run(seed: u64, is_shared: bool, look_time: Option<u64>, may_leave: bool) {
    let mut random = Random(seed);
    let sm_count = u16::try_from(4 + random.below(12)).unwrap();
    // Where some wait for their turn, time goes on while the device has nothing to do.
    let rests = if is_shared { Rests::ByDevice } else { EngineConfig::default().rests };
    let window = Some(Bytes(1 << 26));
    let config = EngineConfig { window, rests, ..EngineConfig::default() };
    let mut world = World::with_config(sm_count, config);
    world.device.look_time = look_time;
    world.device.may_leave = may_leave;
    if is_shared {
        world.device.is_shared = true;
        world.select_by(Fickle(Random(seed), Nanos(0)));
    }
    let mut clients: Vec<Client> = Vec::new();
    for _ in 0..250 {
        match random.below(40) {
            0 if clients.len() < 5 => {
                let healthy = random.below(4) > 0;
                clients.push(connect(&mut world, healthy));
            }
            1 if clients.len() > 2 => {
                let pick = usize::try_from(random.below(clients.len() as u64)).unwrap();
                let client = clients.swap_remove(pick);
                world.close(client.session, CloseReason::Died);
            }
            2 if !clients.is_empty() => resize(&mut world, &mut random, &clients, sm_count),
            3 => world.engine.unpin(&mut world.device),
            35 if world.device.may_leave => match world.device.phase {
                Phase::Open => world.device.phase = Phase::Draining,
                Phase::Draining | Phase::Closed => reopen(&mut world),
            },
            4 => {
                let stalled = (0..sm_count).filter(|_| random.below(4) == 0).map(SmId).collect();
                world.engine.set_stalled(&mut world.device, stalled);
            }
            5..15 => world.run_for(random.below(60)),
            _ if clients.is_empty() => clients.push(connect(&mut world, true)),
            _ => {
                let pick = usize::try_from(random.below(clients.len() as u64)).unwrap();
                step(&mut world, &mut random, &mut clients[pick]);
            }
        }
    }
    // Faults stop: everything must end.
    reopen(&mut world);
    world.engine.set_stalled(&mut world.device, SmSet::EMPTY);
    world.engine.unpin(&mut world.device);
    for client in &clients {
        let code = world.synchronize(client.session);
        assert_eq!(code == 0, client.healthy || code == 0, "seed {seed}: {}", client.session);
    }
    world.run();
    assert!(world.engine.is_at_rest(), "seed {seed}");
    for client in clients.iter().filter(|client| client.healthy) {
        let reports = world.engine.application_reports();
        let report = reports.iter().find(|report| report.id == client.application).unwrap();
        assert_eq!(report.launches_completed, client.launches, "seed {seed}: {}", client.session);
    }
    world.finish();
}

fn reopen(world: &mut World) {
    world.device.phase = Phase::Open;
    world.engine.handle_event(&mut world.device, Event::Reopened);
}

#[test]
fn forty_seeds() {
    for seed in 0..40 {
        run(seed, false, None, false);
    }
}

#[test]
fn forty_seeds_with_shared_sms() {
    for seed in 0..40 {
        run(seed, true, None, false);
    }
}

#[test]
fn forty_seeds_with_looks_that_take_time() {
    for seed in 0..40 {
        run(seed, seed % 2 == 1, Some(500 + 700 * seed), false);
    }
}

#[test]
fn forty_seeds_with_phases() {
    for seed in 0..40 {
        run(seed, seed % 2 == 1, (seed % 3 == 0).then_some(5_000), true);
    }
}
