//! A GPU as a fluid, to drive policies with: an application's speed is the least of what its SMs
//! can issue, of what its outstanding accesses allow at the memory's latency, and of its part of
//! the shared bandwidth.
//!
//! ```text
//! wanted_i = min(n × issue, n × parallelism / latency ÷ accesses per instruction)
//! speed_i  = min(wanted_i, part of the LLC's bandwidth, part of DRAM's bandwidth ÷ miss rate)
//! ```
//!
//! Shared bandwidth is divided max-min fair with the outstanding accesses as weights. All in closed
//! form per step, so an offline oracle can ask the same formulas for every partition.

use partita_model::{
    ApplicationId, Calibration, Entitlement, Nanos, Progress, SmSet, TenantId, Traffic,
};
use partita_policy::{ApplicationObservation, Observation, Orders, Policy};

/// The GPU of CD-search §6 with GPGPU-Sim's GTX 480 where the paper is silent; `sms` SMs.
pub(crate) fn gpu(sms: u16) -> Calibration {
    Calibration {
        sms,
        sm_clock_khz: 700_000,
        warp_instructions_per_cycle: 2.0,
        access_bytes: 128,
        noc_bytes_per_second: 268.8e9,
        llc_bytes_per_second: 268.8e9,
        dram_bytes_per_second: 177.4e9,
        dram_utilisation: 0.5,
    }
}

/// For how long an application without work keeps its SMs.
const GRACE: Nanos = Nanos(1_000_000);

/// A seeded generator (SplitMix64, Steele et al. 2014).
#[derive(Clone)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in [0, 1).
    pub(crate) fn unit(&mut self) -> f64 {
        f64::from(u32::try_from(self.next() >> 32).expect("32 bits")) / 4_294_967_296.0
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    pub(crate) fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Between two positive numbers, evenly over their logarithm.
    pub(crate) fn scale(&mut self, low: f64, high: f64) -> f64 {
        (self.between(low.ln(), high.ln())).exp()
    }
}

/// What an application does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Program {
    /// Warp instructions per cycle and SM, at most.
    pub(crate) issue: f64,
    /// Outstanding accesses per SM.
    pub(crate) parallelism: f64,
    /// Cycles of an access without contention.
    pub(crate) latency: f64,
    /// LLC accesses per kilo warp instruction.
    pub(crate) apki: f64,
    pub(crate) hit_rate: f64,
    pub(crate) instructions_per_cta: f64,
    /// Whether anybody counts its instructions.
    pub(crate) counted: bool,
    /// The CTAs of one of its launches fill so many SMs once; `None`: they last for very many
    /// rounds.
    pub(crate) slots: Option<u32>,
}

impl Program {
    pub(crate) fn compute(random: &mut Random) -> Self {
        Program {
            issue: random.between(0.6, 2.0),
            parallelism: random.between(60.0, 200.0),
            latency: random.between(200.0, 500.0),
            apki: random.scale(1.0, 30.0),
            hit_rate: random.between(0.3, 0.95),
            instructions_per_cta: random.scale(500.0, 20_000.0),
            counted: true,
            slots: None,
        }
    }

    pub(crate) fn memory(random: &mut Random) -> Self {
        Program {
            apki: random.scale(150.0, 600.0),
            hit_rate: random.between(0.0, 0.8),
            ..Program::compute(random)
        }
    }

    pub(crate) fn any(random: &mut Random) -> Self {
        if random.below(2) == 0 { Program::compute(random) } else { Program::memory(random) }
    }

    fn accesses_per_instruction(&self) -> f64 {
        self.apki / 1000.0
    }

    /// What so many SMs would do if bandwidth were endless, in warp instructions per cycle.
    fn wanted(&self, sms: f64) -> f64 {
        let by_latency =
            self.parallelism / self.latency / self.accesses_per_instruction().max(1e-9);
        // The last round takes as long as the others.
        let in_rounds = |slots: u32| f64::from(slots) / (f64::from(slots) / sms.max(1.0)).ceil();
        self.slots.map_or(sms, in_rounds) * self.issue.min(by_latency)
    }
}

/// The speeds of programs on so many SMs each, in warp instructions per cycle.
pub(crate) fn speeds(gpu: &Calibration, running: &[(Program, u16)]) -> Vec<f64> {
    let per_cycle = |bytes_per_second: f64| {
        bytes_per_second / (f64::from(gpu.sm_clock_khz) * 1000.0) / f64::from(gpu.access_bytes)
    };
    // The real DRAM reaches 85 % of its peak; the model's 50 % is the classifier's assumption.
    let pools = [
        (per_cycle(gpu.llc_bytes_per_second.min(gpu.noc_bytes_per_second)), false),
        (per_cycle(gpu.dram_bytes_per_second) * 0.85, true),
    ];
    let mut speeds: Vec<f64> = running.iter().map(|(p, sms)| p.wanted(f64::from(*sms))).collect();
    for (capacity, misses) in pools {
        let cost = |p: &Program| {
            p.accesses_per_instruction() * if misses { 1.0 - p.hit_rate } else { 1.0 }
        };
        let asks: Vec<f64> =
            running.iter().zip(&speeds).map(|((p, _), speed)| speed * cost(p)).collect();
        let weights: Vec<f64> =
            running.iter().map(|(p, sms)| f64::from(*sms) * p.parallelism).collect();
        for ((speed, given), ask) in
            speeds.iter_mut().zip(fill(capacity, &asks, &weights)).zip(&asks)
        {
            if *ask > 0.0 {
                *speed *= given / ask;
            }
        }
    }
    speeds
}

/// Divides a capacity max-min fair by weight: nobody gets more than it asks.
fn fill(capacity: f64, asks: &[f64], weights: &[f64]) -> Vec<f64> {
    let mut given = vec![0.0; asks.len()];
    let mut open: Vec<usize> =
        (0..asks.len()).filter(|&i| asks[i] > 0.0 && weights[i] > 0.0).collect();
    let mut left = capacity;
    while !open.is_empty() {
        let level = left / open.iter().map(|&i| weights[i]).sum::<f64>();
        let (modest, greedy): (Vec<usize>, Vec<usize>) =
            open.iter().partition(|&&i| asks[i] <= weights[i] * level);
        for &i in &modest {
            given[i] = asks[i];
            left -= asks[i];
        }
        if modest.is_empty() {
            for &i in &greedy {
                given[i] = weights[i] * level;
            }
            break;
        }
        open = greedy;
    }
    given
}

/// One application in the simulation.
#[derive(Clone, Debug)]
pub(crate) struct Running {
    pub(crate) id: u32,
    pub(crate) program: Program,
    pub(crate) entitlement: Entitlement,
    pub(crate) has_work: bool,
    /// Whether its CTAs ever end.
    pub(crate) spins: bool,
    /// Cycles for which it has had work, and the last cycle at which it had.
    pub(crate) busy: u64,
    pub(crate) last_work: u64,
    /// Warp instructions done, since it came.
    pub(crate) done: f64,
    /// Until when it does only such a part of them.
    pub(crate) slow: (u64, f64),
}

/// The simulation.
pub(crate) struct Simulator {
    pub(crate) gpu: Calibration,
    pub(crate) policy: Policy,
    pub(crate) running: Vec<Running>,
    pub(crate) now: u64,
    /// Orders that workers follow, and those that they are about to follow and when.
    pub(crate) followed: Orders,
    pending: Option<(u64, Orders)>,
    /// Each step's speed deviates by up to so much.
    pub(crate) noise: f64,
    /// CTAs of an SM that complete together; 0 where each completes for itself.
    pub(crate) burst: u16,
    /// The longest that workers take to follow, in cycles.
    pub(crate) drain: u64,
    pub(crate) random: Random,
    next_id: u32,
}

impl Simulator {
    pub(crate) fn new(gpu: Calibration, policy: Policy, seed: u64) -> Self {
        Simulator {
            gpu,
            policy,
            running: Vec::new(),
            now: 0,
            followed: Orders::default(),
            pending: None,
            noise: 0.01,
            burst: 0,
            drain: 5_000,
            random: Random(seed),
            next_id: 1,
        }
    }

    pub(crate) fn arrive(&mut self, program: Program) -> u32 {
        let id = self.next_id;
        self.next_id += 1;
        self.running.push(Running {
            id,
            program,
            entitlement: Entitlement::default(),
            has_work: true,
            spins: false,
            busy: 0,
            last_work: self.now,
            done: 0.0,
            slow: (0, 1.0),
        });
        id
    }

    pub(crate) fn active(&self, id: u32) -> u16 {
        let own = self.followed.plan.sms(ApplicationId(id));
        own.difference(&self.followed.stalled).len()
    }

    pub(crate) fn sms(&self) -> SmSet {
        SmSet::range(0, self.gpu.sms)
    }

    pub(crate) fn observation(&self) -> Observation {
        Observation {
            now: self.nanos(self.now),
            sms: self.sms(),
            pinned: SmSet::EMPTY,
            settled: self.pending.is_none(),
            applications: self.running.iter().map(|running| self.seen(running)).collect(),
        }
    }

    /// Device time of a number of cycles.
    fn nanos(&self, cycles: u64) -> Nanos {
        Nanos(cycles * 1_000_000 / u64::from(self.gpu.sm_clock_khz))
    }

    fn seen(&self, running: &Running) -> ApplicationObservation {
        let ctas =
            if running.spins { 0.0 } else { running.done / running.program.instructions_per_cta };
        // Rounds are seen only where CTAs are.
        let per_sm = if running.program.slots.is_some() { self.burst.max(1) } else { self.burst };
        let together = u64::from(self.active(running.id) * per_sm);
        let burst = f64::from(self.active(running.id) * per_sm).max(1.0);
        let ctas = (ctas / burst).floor() * burst;
        let warp_instructions = ctas.floor() * running.program.instructions_per_cta;
        let llc_accesses = warp_instructions * running.program.accesses_per_instruction();
        ApplicationObservation {
            application: ApplicationId(running.id),
            tenant: TenantId(1000),
            tag: None,
            has_work: running.has_work,
            lends_at: self.nanos(running.last_work) + GRACE,
            busy: self.nanos(running.busy),
            in_flight: together,
            launched: u64::from(running.program.slots.unwrap_or(1_000_000)) * u64::from(per_sm),
            counting: false,
            stuck: running.spins,
            character: None,
            cramped: false,
            entitlement: running.entitlement,
            total: Progress {
                ctas: count(ctas),
                traffic: running.program.counted.then(|| {
                    let hits = count(llc_accesses * running.program.hit_rate);
                    Traffic::exact(count(ctas), count(warp_instructions), count(llc_accesses), hits)
                }),
            },
        }
    }

    /// Lets so many cycles pass.
    pub(crate) fn advance(&mut self, cycles: u64) {
        let end = self.now + cycles;
        loop {
            self.show();
            if self.now >= end {
                return;
            }
            let step = 1_000.min(end - self.now);
            let on: Vec<(Program, u16)> = self
                .running
                .iter()
                .map(|r| (r.program, if r.has_work { self.active(r.id) } else { 0 }))
                .collect();
            for (running, speed) in self.running.iter_mut().zip(speeds(&self.gpu, &on)) {
                let noise = 1.0 + self.noise * self.random.between(-1.0, 1.0);
                let (until, part) = running.slow;
                let speed = if self.now < until { speed * part } else { speed };
                running.done +=
                    speed * noise * f64::from(u32::try_from(step).expect("at most 1,000"));
            }
            self.now += step;
            for running in self.running.iter_mut().filter(|running| running.has_work) {
                running.busy += step;
                running.last_work = self.now;
            }
            if let Some((at, orders)) = self.pending.take() {
                if self.now >= at {
                    self.followed = orders;
                } else {
                    self.pending = Some((at, orders));
                }
            }
        }
    }

    /// Shows the policy what is.
    pub(crate) fn show(&mut self) {
        let seen = self.observation();
        if let Some(orders) = self.policy.observe(&seen) {
            let orders = orders.clone();
            let delay = self.random.below(self.drain + 1);
            self.pending = Some((self.now + delay, orders));
            if delay == 0 {
                self.followed = self.pending.take().expect("just set").1;
            }
        }
    }

    /// Runs until the policy only watches; panics where it does not come to that.
    pub(crate) fn converge(&mut self) -> u64 {
        let start = self.now;
        for _ in 0..4_000 {
            self.advance(5_000);
            let quiet = self
                .policy
                .current()
                .is_some_and(|r| ["watch", "found", "alone"].contains(&&*r.stage));
            if quiet && self.pending.is_none() {
                return self.now - start;
            }
        }
        panic!("still searching after {} cycles: {:?}", self.now - start, self.policy.current());
    }
}

/// Whole things.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts are small and not negative"
)]
pub(crate) fn count(x: f64) -> u64 {
    x as u64
}

/// System throughput: the sum over programs of speed shared ÷ speed alone (Eyerman and Eeckhout).
pub(crate) fn stp(gpu: &Calibration, mix: &[(Program, u16)]) -> f64 {
    let alone = |p: &Program| speeds(gpu, &[(*p, gpu.sms)])[0];
    mix.iter().zip(speeds(gpu, mix)).map(|((p, _), speed)| speed / alone(p)).sum()
}

/// What must hold of orders at all times.
pub(crate) fn check_orders(orders: &Orders, sms: SmSet, with_work: &[u32]) {
    let mut seen = SmSet::EMPTY;
    if let Some((first, part)) = orders.plan.parts().first_key_value() {
        let others: Vec<_> = orders.plan.parts().iter().skip(1).collect();
        let &[(second, other)] = &*others else { panic!("{others:?} share with {first}") };
        assert!(part.fits_beside(*other), "{part} and {other}");
        assert_eq!(orders.plan.sms(*first), orders.plan.sms(*second));
    }
    for (application, set) in orders.plan.iter() {
        let shares = orders.plan.part(application).is_some();
        assert!(shares || set.is_disjoint(&seen), "{application} shares SMs");
        assert!(set.difference(&sms).is_empty(), "{application} has SMs outside");
        seen = seen.union(&set);
    }
    assert!(orders.gated.is_disjoint(&seen), "gated SMs are in use");
    assert!(orders.stalled.difference(&seen).is_empty(), "SMs of nobody are stalled");
    if !with_work.is_empty() {
        assert_eq!(seen.union(&orders.gated), sms, "an SM is lost");
    }
    for &id in with_work.iter().take(sms.len().into()) {
        let own = orders.plan.sms(ApplicationId(id)).difference(&orders.stalled);
        assert!(!own.is_empty(), "application {id} has work and no SM: {orders:?}");
    }
}
