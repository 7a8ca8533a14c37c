//! One seed from the first client to the last check.

use crate::Failure;
use crate::client::{Character, Client};
use crate::fickle::Fickle;
use crate::random::Random;
use crate::world::World;
use partita_device::{Activity, Device};
use partita_emu::{EmulatedGpu, Options, Spec, Timing};
use partita_engine::{CloseReason, EngineConfig, Rests};
use partita_model::{
    ApplicationId, Nanos, Originals, PartitionerKind, PolicyConfig, SelectorKind, Sharing, SmId,
    SmSet,
};
use partita_policy::Even;
use std::collections::BTreeMap;

/// Steps of a play before everyone is sent home.
const STEPS: u32 = 220;
/// Clients at a time.
const CLIENTS: usize = 6;
/// Rounds without an answer after which something is taken to be stuck. A round is some ten
/// thousand warp instructions.
const PATIENCE: u32 = 4_000;

/// The summary of a play.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// A number of all that the engine wanted, and when. Equal for equal seeds.
    pub digest: u64,
    /// Clients that came.
    pub clients: u64,
    /// Launches that they asked for.
    pub launches: u64,
    /// Slices in which launches of the clients ran that stayed to the end.
    pub slices: u64,
    /// Device time at the end.
    pub nanos: u64,
}

/// Plays a seed. With `log`, returns what happened line by line, too.
///
/// # Errors
/// The first thing that does not hold.
pub fn run(seed: u64, log: bool) -> (Result<Outcome, Failure>, Vec<String>) {
    let mut random = Random::new(seed);
    let (device, config) = match setup(&mut random) {
        Ok(setup) => setup,
        Err(what) => return (Err(Failure { seed, step: 0, nanos: 0, what }), Vec::new()),
    };
    let world = match World::new(device, config, log) {
        Ok(world) => world,
        Err(error) => {
            return (Err(Failure { seed, step: 0, nanos: 0, what: error.to_string() }), Vec::new());
        }
    };
    let mut play =
        Play { world, random, clients: Vec::new(), outcome: Outcome::default(), step: 0 };
    play.go();
    let broken = play.world.broken().map(str::to_owned);
    let nanos = play.world.device.now().0;
    let result = match broken {
        Some(what) => Err(Failure { seed, step: play.step, nanos, what }),
        None => Ok(Outcome { digest: play.world.digest(), nanos, ..play.outcome }),
    };
    (result, play.world.into_log())
}

/// The GPU of a seed: of 2 to 24 SMs, in groups of 1 to 8 to which grids can be kept, mostly shared
/// by SMs, with time kept or not.
fn setup(random: &mut Random) -> Result<(EmulatedGpu, EngineConfig), String> {
    let mut spec = Spec::named("cd-search-24").map_err(|error| error.to_string())?;
    spec.sms = u16::try_from(random.between(2, 24)).unwrap_or(2);
    spec.sm_group = 1 << random.below(4);
    let sharing = match random.below(8) {
        0 => Sharing::Mps,
        1 => Sharing::TimeSlice,
        _ => Sharing::Spatial,
    };
    let timing = if random.once_in(4) { Timing::Off } else { Timing::On };
    let options = Options { seed: random.next(), timing, sharing, ..Options::default() };
    let originals = match random.below(4) {
        0 => Originals::Never,
        1 => Originals::Alone,
        _ => Originals::Short,
    };
    // Rests end by timers.
    let rests = if timing == Timing::On { Rests::ByDevice } else { Rests::Never };
    let config =
        EngineConfig { trace_entries: 1 << 22, originals, rests, ..EngineConfig::default() };
    Ok((EmulatedGpu::new(spec, options), config))
}

struct Play {
    world: World,
    random: Random,
    clients: Vec<Client>,
    outcome: Outcome,
    step: u32,
}

impl Play {
    fn go(&mut self) {
        self.change_policy();
        while self.step < STEPS && self.world.broken().is_none() {
            self.take_step();
            self.step += 1;
        }
        if self.world.broken().is_none() {
            self.end();
        }
    }

    fn take_step(&mut self) {
        match self.random.below(40) {
            0..=2 if self.clients.len() < CLIENTS => self.arrive(),
            3 => self.plan(),
            4 => self.world.with(|engine, device| engine.unpin(device)),
            5 => {
                let sms = self.world.device.facts().sm_count;
                let random = &mut self.random;
                let stalled: SmSet = (0..sms).filter(|_| random.once_in(4)).map(SmId).collect();
                self.world.with(|engine, device| engine.set_stalled(device, stalled));
            }
            6 => self.world.with(|engine, device| engine.set_stalled(device, SmSet::EMPTY)),
            7 => self.change_policy(),
            _ if self.clients.is_empty() => self.arrive(),
            _ => {
                let pick =
                    usize::try_from(self.random.below(self.clients.len() as u64)).unwrap_or(0);
                let session = self.clients[pick].session;
                let others = self.clients.iter().filter(|client| client.session != session);
                let victims: Vec<_> = others.flat_map(Client::addresses).collect();
                let client = &mut self.clients[pick];
                if !client.act(&mut self.world, &mut self.random, &victims) {
                    let gone = self.clients.swap_remove(pick);
                    self.outcome.launches += gone.launches;
                    if gone.character == Character::Healthy {
                        self.world.breaks(format!("{} is healthy and was ended", gone.session));
                    }
                }
            }
        }
        let until = Nanos(self.world.device.now().0 + 1 + self.random.below(20_000));
        let instructions = 1 << self.random.between(4, 12);
        self.world.advance(until, instructions);
    }

    fn arrive(&mut self) {
        let healthy = self.random.below(2) == 0;
        let character =
            if healthy { Character::Healthy } else { *self.random.pick(&Character::FAULTY) };
        let tag = (healthy && self.random.once_in(4)).then_some("team");
        match Client::connect(&mut self.world, &mut self.random, character, tag) {
            Ok(client) => {
                self.outcome.clients += 1;
                self.clients.push(client);
            }
            Err(what) => self.world.breaks(format!("no session: {what}")),
        }
    }

    /// Moves borders by hand. Plans that starve somebody are refused, which must leave everything
    /// as it is.
    fn plan(&mut self) {
        let mut plan: BTreeMap<ApplicationId, SmSet> = BTreeMap::new();
        for sm in 0..self.world.device.facts().sm_count {
            let pick =
                usize::try_from(self.random.below(self.clients.len() as u64 + 1)).unwrap_or(0);
            if let Some(client) = self.clients.get(pick) {
                plan.entry(client.application).or_default().insert(SmId(sm));
            }
        }
        self.world.note(format!("plan {plan:?}"));
        let result = self.world.with(|engine, device| engine.set_plan(device, plan));
        if let Err(error) = result {
            self.world.note(format!("refused: {error}"));
        }
    }

    fn change_policy(&mut self) {
        let partitioners = [
            PartitionerKind::Even,
            PartitionerKind::CdSearch,
            PartitionerKind::Demand,
            PartitionerKind::Smra,
        ];
        if self.random.once_in(4) {
            let fickle = Fickle::new(self.random.next());
            let deciders: partita_policy::Deciders = (Box::new(fickle), Box::new(Even));
            return self.world.with(|engine, device| engine.set_policy(device, deciders));
        }
        let partitioner = *self.random.pick(&partitioners);
        let selector = *self.random.pick(&[
            SelectorKind::Everyone,
            SelectorKind::Slate,
            SelectorKind::Kernelet,
            SelectorKind::Matching,
        ]);
        let config = PolicyConfig { selector, partitioner, ..PolicyConfig::default() };
        match partita_policy::build(&config, &self.world.device.calibration()) {
            Ok(deciders) => self.world.with(|engine, device| engine.set_policy(device, deciders)),
            Err(error) => self.world.breaks(format!("no policy: {error}")),
        }
    }

    /// The faulty die; the healthy must get all that they asked for; then nothing may be left.
    fn end(&mut self) {
        let clients = std::mem::take(&mut self.clients);
        let (mut healthy, faulty): (Vec<_>, Vec<_>) =
            clients.into_iter().partition(|client| client.character == Character::Healthy);
        for client in faulty {
            self.outcome.launches += client.launches;
            self.world.close(client.session, CloseReason::Died);
        }
        self.world.with(|engine, device| {
            engine.set_stalled(device, SmSet::EMPTY);
            engine.unpin(device);
        });
        for client in &mut healthy {
            client.download_all(&mut self.world);
        }
        self.settle(&mut healthy);
        if self.world.broken().is_some() {
            return;
        }
        self.check_launches(&healthy);
        for client in healthy {
            self.outcome.launches += client.launches;
            self.world.close(client.session, CloseReason::Goodbye);
        }
        self.settle(&mut []);
        if self.world.broken().is_none() {
            self.world.check_end();
        }
    }

    /// Lets everything go on until the device is idle and these clients have every answer.
    fn settle(&mut self, clients: &mut [Client]) {
        let mut rounds = 0;
        loop {
            let before: usize = clients.iter().filter(|client| client.is_answered()).count();
            let until = Nanos(self.world.device.now().0 + 1_000_000_000);
            let activity = self.world.advance(until, 1 << 13);
            for client in clients.iter_mut() {
                client.collect(&mut self.world);
            }
            let after = clients.iter().filter(|client| client.is_answered()).count();
            rounds = if after > before { 0 } else { rounds + 1 };
            let done = after == clients.len();
            if self.world.broken().is_some() || (done && activity == Activity::Idle) {
                return;
            }
            if activity == Activity::Idle || rounds > PATIENCE {
                let open: Vec<String> = clients
                    .iter()
                    .filter(|client| !client.is_answered())
                    .map(Client::unanswered)
                    .collect();
                let state = if activity == Activity::Idle { "idle" } else { "busy" };
                let stage = self.world.engine.policy_report();
                let what = if open.is_empty() {
                    "no rest although nobody waits"
                } else {
                    "never answered"
                };
                self.world.breaks(format!(
                    "{what}: the device is {state}, {}; partitions {:?}; \
                     the policy {} ({}) says: {}",
                    open.join("; "),
                    self.world.engine.partition_reports(),
                    stage.partitioner,
                    stage.stage,
                    stage.why.join(" ")
                ));
                return;
            }
        }
    }

    fn check_launches(&mut self, healthy: &[Client]) {
        let reports = self.world.engine.application_reports();
        let kernels = reports.iter().flat_map(|report| &report.kernels);
        self.outcome.slices += kernels.map(|kernel| kernel.slices).sum::<u64>();
        for client in healthy.iter().filter(|client| client.alone) {
            let report = reports.iter().find(|report| report.id == client.application);
            let completed = report.map(|report| report.launches_completed);
            if completed != Some(client.launches) {
                let text = format!(
                    "{} launched {} times, and {completed:?} launches are counted",
                    client.session, client.launches
                );
                self.world.breaks(text);
            }
        }
    }
}
