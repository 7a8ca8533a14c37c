//! The assumptions that most depends on. What contradicts the design shows as `NO` behind a figure.

use super::{CALIBRATE, Effort, KERNELS, holds};
use crate::rig::{Grid, Param, Rig, RigError, params};
use partita_cli::report::Metric;
use partita_device::Device;
use partita_model::control::{
    self, COMPLETED, DEPARTED, Gates, SLOT_BYTES, SLOT_LEFT, SLOT_REGISTERED, SLOTS, Shape,
};
use partita_model::{DeviceAddress, DeviceFacts, Dim3, Nanos, SmId, SmSet};
use std::collections::{BTreeMap, BTreeSet};

const WINDOW: u64 = 1 << 30;

/// Looks of the answering kernel in all: some seconds of a GPU.
const LOOKS: u32 = 1 << 23;

/// How far an emulated device goes between two looks of the host.
const STEP: Nanos = Nanos(500);

/// Everything.
pub fn metrics(device: &mut dyn Device, effort: Effort) -> Result<Vec<Metric>, RigError> {
    let mut metrics = placement(device)?;
    metrics.extend(confinement(device, effort)?);
    metrics.extend(signals(device, effort)?);
    metrics.extend(loading(device)?);
    Ok(metrics)
}

fn step(rig: &mut Rig<'_>) -> Result<(), RigError> {
    let until = rig.device().now() + STEP;
    rig.turn(Some(until))
}

/// Lets the device go on until the word is at least so much; whether it became that within the
/// bound on device time.
fn until(
    rig: &mut Rig<'_>,
    word: DeviceAddress,
    least: u64,
    bound: Nanos,
) -> Result<bool, RigError> {
    let end = rig.device().now() + bound;
    loop {
        if rig.word(word)? >= least {
            return Ok(true);
        }
        if rig.device().now() > end {
            return Ok(false);
        }
        step(rig)?;
    }
}

/// Which SMs there are, and how many CTAs come to each.
fn placement(device: &mut dyn Device) -> Result<Vec<Metric>, RigError> {
    let facts = device.facts().clone();
    let mut rig = Rig::new(device, WINDOW)?;
    let module = rig.load(CALIBRATE)?;
    let per_sm = facts.threads_per_sm / 256;
    let ctas = u32::from(facts.sm_count) * per_sm;
    let places = rig.memory(u64::from(ctas) * 16)?;
    let params = params(&[Param::Wide(places.0), Param::Word(200_000)]);
    rig.time(&Grid { module, kernel: "partita_probe", ctas, threads: 256, params })?;
    let mut found: BTreeMap<u64, u32> = BTreeMap::new();
    let mut first_round = BTreeMap::new();
    for cta in 0..u64::from(ctas) {
        let sm = rig.word(DeviceAddress(places.0 + cta * 16))? & 0xffff_ffff;
        *found.entry(sm).or_default() += 1;
        if cta < u64::from(facts.sm_count) {
            first_round.insert(sm, cta);
        }
    }
    rig.end()?;
    let most = found.values().max().copied().unwrap_or(0);
    let numbers: BTreeSet<u64> = facts.sms().iter().map(|sm| sm.0.into()).collect();
    Ok(vec![
        holds("SMs have the numbers that were found", found.keys().eq(&numbers)),
        Metric::plain("numbers without an SM", f64::from(facts.absent_sms.len()), "numbers"),
        Metric::plain("SMs that the first CTAs are spread over", first_round.len() as f64, "SMs"),
        Metric::at_most(
            "most CTAs of a full grid on one SM",
            f64::from(most),
            "CTAs",
            f64::from(per_sm),
        ),
    ])
}

/// A control block with these gates.
pub fn block(facts: &DeviceFacts, total: u32, main_ctas: u32, gates: &Gates) -> Vec<u8> {
    let mut block = vec![0; usize::try_from(control::block_bytes(facts.sm_numbers())).unwrap_or(0)];
    let (grid, end) = (Dim3::linear(total), u64::from(total));
    let cluster = Dim3::linear(1);
    control::initial(&Shape { grid, cluster, first: 0, end, main_ctas, gates }, &mut block);
    block
}

/// The first SMs, in the order of their numbers. Some numbers may have no SM.
pub fn first_sms(facts: &DeviceFacts, count: u16) -> SmSet {
    facts.sms().iter().take(count.into()).collect()
}

/// Gates that are open for the SMs `allowed`, without tasks by place. `task` is the largest task.
pub fn gates(facts: &DeviceFacts, task: u32, allowed: &SmSet) -> Gates {
    let mut gates = Gates::new(facts.sm_numbers(), task);
    gates.permit(allowed, &SmSet::EMPTY);
    gates
}

/// Workers that have registered, and that have left, of each SM.
fn telemetry(rig: &mut Rig<'_>, block: DeviceAddress, sms: u16) -> Result<Vec<[u32; 2]>, RigError> {
    let mut slots = vec![0; usize::from(sms) * usize::try_from(SLOT_BYTES).unwrap_or(0)];
    rig.device().peek(DeviceAddress(block.0 + SLOTS), &mut slots)?;
    let size = usize::try_from(SLOT_BYTES).unwrap_or(16);
    let word = |slot: &[u8], offset: u64| {
        let at = usize::try_from(offset).unwrap_or(0);
        u32::from_le_bytes([slot[at], slot[at + 1], slot[at + 2], slot[at + 3]])
    };
    Ok(slots
        .chunks(size)
        .map(|slot| [word(slot, SLOT_REGISTERED), word(slot, SLOT_LEFT)])
        .collect())
}

/// Workers keep to their SMs, leave them when they are told to, and helpers on another stream take
/// the rest.
fn confinement(device: &mut dyn Device, effort: Effort) -> Result<Vec<Metric>, RigError> {
    let facts = device.facts().clone();
    let broken = |error: partita_ptx::Errors| RigError::Module(error.to_string());
    let original = partita_ptx::parse(KERNELS).map_err(broken)?;
    let worker = partita_ptx::print(
        &partita_ptx::worker(&original, &partita_ptx::WorkerOptions::default()).module,
    );
    let low = first_sms(&facts, facts.sm_count / 2);
    let high = facts.sms().difference(&low);
    let total = u32::from(facts.sm_count) * if effort == Effort::Full { 2000 } else { 40 };
    let main = u32::from(facts.sm_count) * 2;
    let mut rig = Rig::new(device, WINDOW)?;
    let module = rig.load(&worker)?;
    let (sms, counts) = (rig.memory(u64::from(total) * 4)?, rig.memory(u64::from(total) * 4)?);
    let address = rig.signals(control::block_bytes(facts.sm_numbers()))?;
    let mut gates = gates(&facts, 1, &low);
    rig.device().poke(address, &block(&facts, total, main, &gates))?;
    let grid = |ctas, pointer| {
        let own =
            [Param::Wide(sms.0), Param::Wide(counts.0), Param::Word(10_000), Param::Wide(pointer)];
        Grid { module, kernel: "spot", ctas, threads: 64, params: params(&own) }
    };
    let launched = rig.launch(0, &grid(main, address.0))?;
    let completed = DeviceAddress(address.0 + COMPLETED);
    let began = until(&mut rig, completed, u64::from(total / 8), Nanos(10_000_000_000))?;
    let slots = telemetry(&mut rig, address, facts.sm_numbers())?;
    let registered: u32 = slots.iter().map(|[came, _]| *came).sum();
    // Who finds himself elsewhere may register, and leaves at once.
    let on_high = |sm: &usize| u16::try_from(*sm).is_ok_and(|sm| !low.contains(SmId(sm)));
    let elsewhere: Vec<[u32; 2]> =
        (0..).zip(&slots).filter(|(sm, _)| on_high(sm)).map(|(_, slot)| *slot).collect();
    let strangers: u32 = elsewhere.iter().map(|[came, left]| came.saturating_sub(*left)).sum();
    let burnt =
        main.saturating_sub(registered) + elsewhere.iter().map(|[_, left]| *left).sum::<u32>();

    // The border moves: all SMs are lost, and as many won.
    let before = rig.device().now();
    for sm in gates.permit(&high, &SmSet::EMPTY) {
        let gate = DeviceAddress(address.0 + control::gate_at(sm));
        rig.device().poke(gate, &gates.word(sm).to_le_bytes())?;
    }
    let end = before + Nanos(10_000_000_000);
    let mut resize = None;
    while resize.is_none() && rig.device().now() < end {
        step(&mut rig)?;
        let slots = telemetry(&mut rig, address, facts.sm_numbers())?;
        // One stays, idle, until the launch is complete; it has left its SM's count.
        let mut own = (0..).zip(&slots).filter(|(sm, _)| !on_high(sm)).map(|(_, slot)| slot);
        if own.all(|[came, left]| came == left) {
            resize = Some(rig.device().now().saturating_sub(before));
        }
    }
    let parked = !rig.has_ended(launched);
    let mut helpers = Vec::new();
    for _ in 0..64 {
        helpers.push(rig.launch(1, &grid(main, address.0 | 1))?);
        if until(&mut rig, completed, u64::from(total), Nanos(200_000_000))? {
            break;
        }
    }
    rig.wait(launched)?;
    let count = helpers.len();
    for helper in helpers {
        rig.wait(helper)?;
    }
    let Ran { once, inside, first_half } = ran(&mut rig, [sms, counts], total, &low)?;
    let mut departed = [0; 4];
    rig.device().peek(DeviceAddress(address.0 + DEPARTED), &mut departed)?;
    rig.end()?;
    Ok(vec![
        holds("a confined launch begins", began),
        holds("workers stay on their own SMs only", strangers == 0),
        Metric::plain("CTAs placed elsewhere, which leave", f64::from(burnt), "CTAs"),
        Metric::at_most(
            "from the signal until the last worker has left",
            resize.map_or(f64::INFINITY, |time| time.0 as f64 / 1e3),
            "us",
            // 50 us, and a task.
            60.0,
        ),
        holds("the last CTA of the main grid stays until all is done", parked),
        Metric::plain("helper grids on another stream", count as f64, "grids"),
        holds("every CTA ran once", once && inside),
        Metric::plain("CTAs before the border moved", f64::from(first_half), "CTAs"),
        holds("every CTA of the main grid has departed", u32::from_le_bytes(departed) == main),
    ])
}

/// What the CTAs of a launch recorded about themselves.
struct Ran {
    /// Whether each ran exactly once.
    once: bool,
    /// Whether each ran on an SM that exists.
    inside: bool,
    /// CTAs that ran on the SMs `low`.
    first_half: u32,
}

/// Reads the records of `total` CTAs: the SM of each, and how often it ran.
fn ran(
    rig: &mut Rig<'_>,
    [sms, counts]: [DeviceAddress; 2],
    total: u32,
    low: &SmSet,
) -> Result<Ran, RigError> {
    let known = rig.device().facts().sms();
    let mut ran = Ran { once: true, inside: true, first_half: 0 };
    let (mut where_, mut how_often) = (vec![0; total as usize * 4], vec![0; total as usize * 4]);
    rig.device().peek(sms, &mut where_)?;
    rig.device().peek(counts, &mut how_often)?;
    for (sm, times) in where_.chunks_exact(4).zip(how_often.chunks_exact(4)) {
        let sm =
            u16::try_from(u32::from_le_bytes([sm[0], sm[1], sm[2], sm[3]])).unwrap_or(u16::MAX);
        ran.once &= times == [1, 0, 0, 0];
        ran.inside &= known.contains(SmId(sm));
        ran.first_half += u32::from(low.contains(SmId(sm)));
    }
    Ok(ran)
}

/// How fast a running kernel sees the host's word, and the host its answer.
fn signals(device: &mut dyn Device, effort: Effort) -> Result<Vec<Metric>, RigError> {
    let rounds: u64 = if effort == Effort::Full { 1000 } else { 20 };
    let mut rig = Rig::new(device, WINDOW)?;
    let module = rig.load(KERNELS)?;
    let words = rig.signals(4096)?;
    let (signal, reply) = (words, DeviceAddress(words.0 + 256));
    let params = params(&[
        Param::Wide(signal.0),
        Param::Wide(reply.0),
        Param::Wide(rounds),
        Param::Word(LOOKS),
    ]);
    let launched =
        rig.launch(0, &Grid { module, kernel: "answer", ctas: 1, threads: 1, params })?;
    let mut trips = Vec::new();
    let mut seen = true;
    for round in 1..=rounds {
        let before = rig.device().now();
        rig.device().poke(signal, &round.to_le_bytes())?;
        seen &= until(&mut rig, reply, round, Nanos(1_000_000_000))?;
        trips.push(rig.device().now().saturating_sub(before).0);
        if !seen {
            break;
        }
    }
    rig.device().poke(signal, &u64::MAX.to_le_bytes())?;
    rig.wait(launched)?;
    rig.end()?;
    // The first one waits for the kernel to begin.
    let mut trips = trips.split_off(1.min(trips.len()));
    trips.sort_unstable();
    let at = |part: usize| {
        trips.get(trips.len() * part / 100).map_or(f64::INFINITY, |time| *time as f64 / 1e3)
    };
    Ok(vec![
        holds("a running kernel sees signals", seen),
        Metric::plain("signal and answer, median", at(50), "us"),
        Metric::plain("signal and answer, 99 %", at(99), "us"),
    ])
}

/// What waits while a kernel runs that waits for the host.
fn loading(device: &mut dyn Device) -> Result<Vec<Metric>, RigError> {
    let mut rig = Rig::new(device, WINDOW)?;
    let module = rig.load(KERNELS)?;
    let words = rig.signals(4096)?;
    let (signal, reply) = (words, DeviceAddress(words.0 + 256));
    let params =
        params(&[Param::Wide(signal.0), Param::Wide(reply.0), Param::Wide(2), Param::Word(LOOKS)]);
    let launched =
        rig.launch(0, &Grid { module, kernel: "answer", ctas: 1, threads: 1, params })?;
    rig.device().poke(signal, &1_u64.to_le_bytes())?;
    let began = until(&mut rig, reply, 1, Nanos(1_000_000_000))?;
    // Another text than any that is kept as machine code.
    let text = format!("{KERNELS}\n// {}\n", std::process::id());
    let late = rig.begin_load(&text)?;
    let end = rig.device().now() + Nanos(300_000_000);
    let mut beside = false;
    while !beside && rig.device().now() < end && !rig.has_ended(launched) {
        step(&mut rig)?;
        beside = rig.has_loaded(late)?;
    }
    let before = rig.device().now();
    let more = rig.memory(64 << 20)?;
    rig.device().free(more)?;
    let mapped = rig.device().now().saturating_sub(before);
    let empty = Grid { module, kernel: "empty", ctas: 1, threads: 32, params: Vec::new() };
    let other = rig.launch(1, &empty)?;
    let end = rig.device().now() + Nanos(300_000_000);
    while !rig.has_ended(other) && rig.device().now() < end && !rig.has_ended(launched) {
        step(&mut rig)?;
    }
    let launches = rig.has_ended(other) && !rig.has_ended(launched);
    rig.device().poke(signal, &u64::MAX.to_le_bytes())?;
    rig.wait(launched)?;
    while !rig.has_loaded(late)? {}
    rig.end()?;
    Ok(vec![
        holds("a kernel waits for the host", began),
        // The design does not count on it.
        Metric::plain("modules load beside it", if beside { 1.0 } else { 0.0 }, "of 1"),
        holds("other kernels run beside it", launches),
        Metric::plain("64 MiB mapped beside it", mapped.0 as f64 / 1e3, "us"),
    ])
}
