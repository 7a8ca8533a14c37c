//! Workers and tickets where memory is weak. They do what they must whatever the moment of a
//! disturbance; and every fence, barrier and `volatile` of the generated code is missed somewhere
//! once it is taken out, or it says why not.

use crate::parts::parts;
use crate::places::{helpers_end_last, shut_before_the_start, uneven_places};
use crate::trial::{
    ALL, Form, GRACE_NANOS, Outcome, PATIENCE_NANOS, SMS, THREADS, Trial, WORK, expect,
};
use crate::world::{World, rewritten};
use partita_device::{Activity, Device};
use partita_emu::{MemoryOrder, Options, Timing};
use partita_model::{Dim3, control};
use partita_ptx::Pass;
use std::collections::BTreeMap;

/// Odd ones never renew what a weak load has seen.
const SEEDS: std::ops::Range<u64> = 0..4;
/// A ticket's fences matter for moments only: four seeds could miss one of them.
const TICKET_SEEDS: std::ops::Range<u64> = 0..8;

/// Launches of one CTA by which the moment of its completion is looked at.
const QUICK_LAUNCHES: u32 = 12;

type Scenario = fn(&mut Trial) -> Outcome;

fn scenarios(form: Form) -> &'static [(&'static str, Scenario)] {
    match form {
        Form::Worker | Form::Together => &[
            ("undisturbed", undisturbed),
            ("borders move", borders_move),
            ("aborted", aborted),
            ("SMs handed over", handed_over),
            ("stalled and resumed", stalled_and_resumed),
            ("stalled to the end", stalled_to_the_end),
            ("away and back", away_and_back),
            ("aborted while nobody works", aborted_while_away),
            ("aborted while stalled", aborted_while_stalled),
            ("helpers retired", helpers_retired),
            ("uneven places", uneven_places),
            ("shut before the start", shut_before_the_start),
            ("helpers end last", helpers_end_last),
            ("parts of SMs", parts),
        ],
        Form::Ticket => &[
            ("undisturbed", undisturbed),
            ("borders move", borders_move),
            ("aborted", aborted),
            ("SMs handed over", handed_over),
            ("stalled and resumed", stalled_and_resumed),
            ("claims are registered", claims_are_registered),
            ("complete is done", complete_is_done),
            ("parts of SMs", parts),
        ],
    }
}

fn undisturbed(trial: &mut Trial) -> Outcome {
    trial.begin(200, 20);
    if trial.form != Form::Ticket {
        trial.more(30);
    }
    trial.finish()
}

/// Who looks at once finds all that a complete CTA has done, whichever thread was the last one: one
/// of many of its warp, or one that is alone in its warp. Launches are small, so that nothing has
/// time to drain.
fn complete_is_done(trial: &mut Trial) -> Outcome {
    trial.pause = 0;
    for _ in 0..QUICK_LAUNCHES {
        trial.late = 1 + trial.below(30);
        trial.threads = THREADS + trial.below(2) as u32;
        let delay = 1 + trial.below(20);
        trial.begin(1, delay);
        trial.finish()?;
    }
    Ok(())
}

fn borders_move(trial: &mut Trial) -> Outcome {
    trial.begin(300, 40);
    for _ in 0..12 {
        let allowed = trial.below(1 << SMS) as u32;
        let stalled = (trial.below(1 << SMS) & trial.below(1 << SMS)) as u32;
        trial.permit(allowed, stalled);
        trial.more(16);
        let pause = trial.below(4000);
        trial.world.advance(pause);
    }
    trial.permit(ALL, 0);
    trial.more(300);
    trial.finish()
}

fn aborted(trial: &mut Trial) -> Outcome {
    trial.begin(900, 150);
    let pause = 4000 + trial.below(6000);
    trial.world.advance(pause);
    let claimed = trial.next();
    trial.abort();
    // What was under way ends, and nothing else begins.
    trial.finish_stopped()?;
    let completed = trial.completed();
    expect(claimed == completed, || format!("{claimed} claimed, {completed} done"))
}

/// SMs are taken away. Once nobody is registered there nobody claims there any more, and that is
/// soon.
fn handed_over(trial: &mut Trial) -> Outcome {
    trial.begin(2400, 900);
    let pause = 200 + trial.below(5000);
    trial.world.advance(pause);
    let kept = trial.below(1 << SMS) as u32;
    trial.permit(kept, 0);
    let mut vacant = BTreeMap::new();
    for _ in 0..600 {
        let now = trial.world.gpu.now().0;
        let worked = trial.worked();
        for (sm, [registered, left]) in trial.telemetry().into_iter().enumerate() {
            let done = worked[sm];
            if kept >> sm & 1 == 0 && (registered == left || vacant.contains_key(&sm)) {
                let (since, before) = vacant.entry(sm).or_insert((now, done));
                // What was done may be told later than that nobody is there any more.
                if now - *since < GRACE_NANOS {
                    *before = done;
                }
                expect(*before == done, || format!("SM {sm} works after it was found empty"))?;
            }
        }
        trial.world.advance(300);
    }
    expect(vacant.len() as u32 == SMS - kept.count_ones(), || {
        format!("only {vacant:?} are empty")
    })?;
    trial.abort();
    trial.finish_stopped()
}

fn stalled_and_resumed(trial: &mut Trial) -> Outcome {
    let ctas = if trial.form != Form::Ticket { 400 } else { 1500 };
    trial.begin(ctas, 100);
    let pause = 3000 + trial.below(3000);
    trial.world.advance(pause);
    trial.permit(ALL, ALL);
    trial.world.advance(GRACE_NANOS);
    let before = trial.next();
    trial.world.advance(40_000);
    let after = trial.next();
    expect(before == after && after < u64::from(ctas), || {
        format!("{before} claimed, then {after}")
    })?;
    trial.permit(ALL, 0);
    if trial.form == Form::Ticket {
        trial.more(ctas);
    }
    trial.finish()
}

/// Workers of stalled SMs leave once no task is left.
fn stalled_to_the_end(trial: &mut Trial) -> Outcome {
    trial.begin(400, 100);
    trial.world.advance(5000);
    trial.permit(ALL, 0xff);
    trial.finish()
}

/// All SMs are taken away, then given back, stalled at first. The CTA that stayed does all the
/// work.
fn away_and_back(trial: &mut Trial) -> Outcome {
    trial.begin(60, 100);
    trial.world.advance(2500);
    trial.permit(ALL, ALL);
    trial.world.advance(20_000);
    trial.permit(0, ALL);
    trial.until("empty", |trial| trial.telemetry().iter().all(|slot| slot[0] == slot[1]))?;
    trial.world.advance(20_000);
    trial.permit(ALL, ALL);
    trial.world.advance(20_000);
    let completed = trial.completed();
    expect(completed < 60, || "done too early to show anything".to_owned())?;
    trial.permit(ALL, 0);
    trial.finish()
}

fn aborted_while_away(trial: &mut Trial) -> Outcome {
    trial.begin(400, 100);
    trial.world.advance(5000);
    trial.permit(0, 0);
    trial.until("empty", |trial| trial.telemetry().iter().all(|slot| slot[0] == slot[1]))?;
    trial.world.advance(20_000);
    trial.abort();
    trial.finish_stopped()
}

fn aborted_while_stalled(trial: &mut Trial) -> Outcome {
    trial.begin(400, 100);
    trial.world.advance(5000);
    trial.permit(ALL, ALL);
    trial.world.advance(3 * GRACE_NANOS);
    trial.abort();
    trial.finish_stopped()
}

/// The workers of a helper grid leave when it is retired, even those that are stalled, and nobody
/// else does.
fn helpers_retired(trial: &mut Trial) -> Outcome {
    const TOTAL: u32 = 3000;
    trial.begin(TOTAL, 200);
    for number in 1..=2 {
        trial.start(8, number);
    }
    let live =
        |trial: &mut Trial| trial.telemetry().iter().map(|slot| slot[0] - slot[1]).sum::<u32>();
    trial.until("all there", |trial| live(trial) == SMS + 16)?;
    let pause = trial.below(4000);
    trial.world.advance(pause);
    trial.retire(1 << 2);
    trial.until("retired", |trial| live(trial) == SMS + 8)?;
    trial.permit(ALL, ALL);
    trial.world.advance(3 * GRACE_NANOS);
    trial.retire(1 << 2 | 1 << 1);
    trial.until("retired while stalled", |trial| live(trial) == SMS)?;
    trial.permit(ALL, 0);
    trial.world.advance(20_000);
    let (left, completed) = (live(trial), trial.completed());
    expect(left == SMS && completed < TOTAL.into(), || {
        format!("{left} are left, {completed} complete")
    })?;
    trial.finish()
}

/// Who sees a claim sees where it runs.
fn claims_are_registered(trial: &mut Trial) -> Outcome {
    trial.begin(400, 20);
    for _ in 0..300 {
        let claimed = trial.next();
        let registered: u32 = trial.telemetry().iter().map(|slot| slot[0]).sum();
        expect(claimed <= u64::from(registered), || {
            format!("{claimed} claimed, {registered} registered")
        })?;
        trial.world.advance(100);
    }
    trial.finish()
}

fn run_all(form: Form, text: &str, seeds: std::ops::Range<u64>) -> Outcome {
    for seed in seeds {
        for (name, scenario) in scenarios(form) {
            let mut trial = Trial::new(form, text, seed);
            scenario(&mut trial).map_err(|error| format!("{name}, seed {seed}: {error}"))?;
        }
    }
    Ok(())
}

/// What may be taken out of a text, each by a name and with the text without it.
fn mutants(text: &str) -> Vec<(String, String)> {
    let mut seen = BTreeMap::<String, u32>::new();
    let mut mutants = Vec::new();
    let lines: Vec<&str> = text.lines().collect();
    for (index, line) in lines.iter().enumerate() {
        let words = line.trim_start();
        let removed =
            ["fence.", "membar.", "bar.", "barrier."].iter().any(|what| words.starts_with(what));
        if !removed && !line.contains(".volatile") {
            continue;
        }
        let opcode = words.split([' ', '\t', ';']).next().unwrap_or_default();
        let offset =
            line.split_once('+').and_then(|(_, rest)| rest.split(']').next()).unwrap_or("0");
        let name = if removed { opcode.to_owned() } else { format!("{opcode} +{offset}") };
        let count = seen.entry(name.clone()).or_default();
        *count += 1;
        let name = format!("{name} #{count}");
        let changed = if removed { String::new() } else { line.replace(".volatile", "") };
        let mut lines = lines.clone();
        lines[index] = &changed;
        mutants.push((name, lines.join("\n")));
    }
    mutants
}

#[test]
fn workers_do_right_in_weak_memory() {
    for form in [Form::Worker, Form::Together] {
        run_all(form, &form.text(), SEEDS).unwrap_or_else(|error| panic!("{form:?}: {error}"));
    }
}

#[test]
fn tickets_do_right_in_weak_memory() {
    run_all(Form::Ticket, &Form::Ticket.text(), SEEDS).unwrap_or_else(|error| panic!("{error}"));
}

fn check_mutants(form: Form, harmless: &[(&str, &str)], wanted: &str) {
    let text = form.text();
    let mut survivors = Vec::new();
    let seeds = if form == Form::Ticket { TICKET_SEEDS } else { SEEDS };
    for (name, mutant) in mutants(&text).into_iter().filter(|(name, _)| name.starts_with(wanted)) {
        match run_all(form, &mutant, seeds.clone()) {
            Ok(()) => survivors.push(name),
            Err(error) => println!("{name}: {error}"),
        }
    }
    let known: Vec<&str> = harmless.iter().map(|(name, _)| *name).collect();
    assert_eq!(survivors, known, "nothing misses these in\n{text}");
}

/// Of the order between what a helper's CTAs leave and the end of the main grid.
const HELPERS: &str =
    "the parked CTA sleeps between two looks, so effects have arrived; by PTX they need the order";
/// Of the search for tasks by place that nobody has.
const SWEEP: &str =
    "who overlooks a task leaves it to the next; by PTX it races with the CTA that gives it back";

/// Of the room in a part of an SM.
const PART: &str =
    "a CTA looks once, when it comes; by PTX the look races with other CTAs and the host";
/// The same of the CTA that stays until the launch is complete.
const PARKED: &str =
    "by an old value the parked CTA registers, and looks again then, or stays idle";

#[test]
fn a_worker_misses_whatever_is_taken_out() {
    let harmless = [
        ("fence.acq_rel.gpu #1", HELPERS),
        ("fence.acq_rel.gpu #2", PART),
        ("ld.volatile.global.u32 +264 #1", PART),
        ("fence.acq_rel.gpu #3", SWEEP),
        ("ld.volatile.global.u32 +20 #1", SWEEP),
        ("fence.acq_rel.gpu #4", SWEEP),
        ("ld.volatile.global.v4.u32 +512 #1", SWEEP),
        (
            "ld.volatile.global.u64 +0 #2",
            "the counter only rises: by an old value the parked CTA claims in vain",
        ),
        ("ld.volatile.global.u32 +0 #1", PARKED),
        ("ld.volatile.global.u32 +264 #2", PARKED),
        ("fence.acq_rel.gpu #5", HELPERS),
    ];
    check_mutants(Form::Worker, &harmless, "");
    // What differs.
    let own = [("bar.sync #2", "the program's own: who reads comes late")];
    check_mutants(Form::Together, &own, "bar");
}

#[test]
fn a_ticket_misses_whatever_is_taken_out() {
    let harmless = [
        ("fence.acq_rel.gpu #1", PART),
        ("ld.volatile.global.u32 +520 #1", PART),
        ("ld.volatile.global.u32 +264 #1", PART),
    ];
    check_mutants(Form::Ticket, &harmless, "");
}

/// Waits for ever, or for its first thread to give up.
const WAITS: &str = "\
.version 8.0
.target sm_80
.address_size 64
.visible .entry waits(.param .u64 never, .param .u64 gives_up)
{
    .reg .pred %p<3>;
    .reg .b32 %r<4>;
    .reg .b64 %d<3>;
    ld.param.u64 %d1, [never];
    ld.param.u64 %d2, [gives_up];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    or.b32 %r1, %r1, %r2;
    setp.eq.u32 %p1, %r1, 0;
    setp.ne.and.u64 %p1, %d2, 0, %p1;
    @%p1 trap;
$WAIT:
    ld.relaxed.gpu.global.u32 %r3, [%d1];
    setp.eq.u32 %p2, %r3, 0;
    @%p2 bra $WAIT;
    ret;
}
";

fn is_stopped(text: &str, seed: u64, gives_up: bool) -> Outcome {
    let options =
        Options { seed, timing: Timing::On, memory: MemoryOrder::Weak, ..Options::default() };
    let mut world = World::of(text, options);
    let never = world.buffer(&[0; 4]);
    let block = world.control(Dim3::linear(2 * SMS), 1, SMS);
    let told = world.buffer(&[0; 4]);
    for (offset, half) in [(0, told & 0xffff_ffff), (4, told >> 32)] {
        let half = u32::try_from(half).expect("half of an address");
        world.poke(block + control::FAULT_TO + offset, half);
    }
    world.launch(0, "waits", Dim3::linear(2 * SMS), THREADS, &[never, u64::from(gives_up), block]);
    if !gives_up {
        world.advance(20_000);
        expect(world.done.is_empty(), || "it ends by itself".to_owned())?;
        world.poke(block + control::ABORT, 1);
    }
    let patience = world.gpu.now().0 + PATIENCE_NANOS;
    while world.advance(20_000) != Activity::Idle {
        expect(world.gpu.now().0 < patience, || "it never ends".to_owned())?;
    }
    let faults = [block + control::FAULT, told].map(|at| world.words(at, 1)[0]);
    expect(faults == [u32::from(gives_up) * control::FAULT_TRAP; 2], || format!("{faults:?}"))
}

/// Who sleeps between two looks at memory looks at the flag in some rounds only.
#[test]
fn a_kernel_that_sleeps_while_it_waits_is_stopped() {
    let load = "    ld.relaxed.gpu.global.u32 %r3, [%d1];";
    let sleeps = WAITS.replace(load, &format!("    nanosleep.u32 1000;\n{load}"));
    assert_ne!(sleeps, WAITS);
    let text = partita_ptx::print(&rewritten(&sleeps, &[Pass::Cancel]).module);
    let rounds = partita_ptx::cancel::PERIOD / partita_ptx::cancel::SLEEPS;
    assert!(text.contains(&format!(", {rounds};")), "a round counts for {rounds} in\n{text}");
    for seed in SEEDS {
        is_stopped(&text, seed, false).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

/// The other passes order nothing: `slice` and `fence` touch no memory of their own, and counts are
/// read behind the end of a grid.
#[test]
fn a_kernel_that_can_be_stopped_misses_what_is_taken_out() {
    let text = partita_ptx::print(&rewritten(WAITS, &[Pass::Cancel]).module);
    let run = |text: &str| {
        SEEDS.into_iter().try_for_each(|seed| {
            is_stopped(text, seed, false)?;
            is_stopped(text, seed, true)
        })
    };
    run(&text).unwrap_or_else(|error| panic!("{error}"));
    let survivors: Vec<_> = mutants(&text)
        .into_iter()
        .filter(|(_, text)| run(text).is_ok())
        .map(|(name, _)| name)
        .collect();
    // A weak store is seen in the end here; PTX promises that of no weak one. The fence is for a
    // main grid that ends while a helper grid runs, and this is one grid.
    let harmless = ["@%pw_go +0 #1", "membar.sys #1", "st.volatile.global.u32 +256 #1"];
    assert_eq!(survivors, harmless, "nothing misses these in\n{text}");
    for pass in [Pass::Slice, Pass::Fence, Pass::Count] {
        let text = partita_ptx::print(&rewritten(WORK, &[pass]).module);
        assert!(mutants(&text).is_empty(), "{pass:?} orders something that no test misses");
    }
}
