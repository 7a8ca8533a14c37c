//! Workers and tickets where memory is weak. They do what they must whatever the moment of a
//! disturbance; and every fence, barrier and `volatile` of the generated code is missed somewhere
//! once it is taken out, or it says why not.

use crate::world::{World, mix, rewritten};
use partita_device::{Activity, Device};
use partita_emu::{MemoryOrder, Options, Timing};
use partita_model::{Dim3, control};
use partita_ptx::Pass;
use std::collections::BTreeMap;

/// Each of the first 64 threads leaves a number of its own, and one thread, `counter`, counts its
/// CTA, and before `hits` those of its SM, and is `late` steps later. The second warp is the later
/// one by `delay` steps, the third by as many more. Nothing in here orders memory.
const WORK: &str = "\
.version 8.0
.target sm_80
.address_size 64
.visible .entry work(.param .u64 data, .param .u64 hits, .param .u32 delay, .param .u16 counter, \
.param .u16 late)
{
    .reg .pred %p<3>;
    .reg .b32 %r<8>;
    .reg .b64 %d<5>;
    ld.param.u64 %d1, [data];
    ld.param.u64 %d2, [hits];
    ld.param.u32 %r3, [delay];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    shr.u32 %r4, %r1, 5;
    add.u32 %r4, %r4, 1;
    mul.lo.u32 %r3, %r3, %r4;
$WAIT:
    sub.u32 %r3, %r3, 1;
    setp.ne.u32 %p1, %r3, 0;
    @%p1 bra $WAIT;
    mad.lo.u32 %r5, %r2, 64, %r1;
    mul.wide.u32 %d3, %r5, 4;
    add.u64 %d3, %d1, %d3;
    add.u32 %r5, %r5, 1;
    setp.lt.u32 %p2, %r1, 64;
    @%p2 st.global.u32 [%d3], %r5;
    ld.param.u16 %r6, [counter];
    setp.ne.u32 %p2, %r1, %r6;
    @%p2 bra $OUT;
    mul.wide.u32 %d4, %r2, 4;
    add.u64 %d4, %d2, %d4;
    red.global.add.u32 [%d4], 1;
    mov.u32 %r6, %smid;
    mul.wide.u32 %d4, %r6, 4;
    add.u64 %d4, %d2, %d4;
    red.global.add.u32 [%d4-96], 1;
    ld.param.u16 %r3, [late];
$LATE:
    sub.u32 %r3, %r3, 1;
    setp.ne.u32 %p1, %r3, 0;
    @%p1 bra $LATE;
$OUT:
    ret;
}
";

/// The same by threads that find their CTA in shared memory, where one of them puts it.
fn together() -> String {
    let shared = "    .shared .align 4 .b8 cell[4];\n    .reg .pred %p<3>;";
    let put = "    mov.u32 %r2, %ctaid.x;\n    setp.eq.u32 %p1, %r1, 0;\n    @%p1 st.shared.u32 \
        [cell], %r2;\n    \
               bar.sync 0;";
    let find = "    @%p1 bra $WAIT;\n    ld.shared.u32 %r2, [cell];";
    WORK.replacen("    .reg .pred %p<3>;", shared, 1)
        .replacen("    mov.u32 %r2, %ctaid.x;", put, 1)
        .replacen("    @%p1 bra $WAIT;", find, 1)
}

/// Waits until a launch is complete or aborted and counts what is wrong then, the last CTA first,
/// as the operation behind it would see it.
const WAITER: &str = "
.visible .entry waiter(.param .u64 data, .param .u64 hits, .param .u64 block, .param .u64 wrong, \
.param .u32 pause)
{
    .reg .pred %p<5>;
    .reg .b32 %r<8>;
    .reg .b64 %d<12>;
    ld.param.u64 %d1, [data];
    ld.param.u64 %d2, [hits];
    ld.param.u64 %d3, [block];
    ld.param.u64 %d4, [wrong];
    ld.param.u32 %r6, [pause];
    ld.global.u64 %d5, [%d3+128];
$POLL:
    ld.volatile.global.u32 %r1, [%d3+256];
    setp.ne.u32 %p1, %r1, 0;
    @%p1 ret;
    ld.acquire.gpu.global.u64 %d6, [%d3+8];
    setp.ge.u64 %p2, %d6, %d5;
    @%p2 bra $LOOK;
    nanosleep.u32 %r6;
    bra $POLL;
$LOOK:
    mov.u32 %r2, %tid.x;
    cvt.u64.u32 %d7, %r2;
    shl.b64 %d8, %d5, 6;
$NEXT:
    sub.u64 %d11, %d8, %d7;
    sub.u64 %d11, %d11, 1;
    shl.b64 %d9, %d11, 2;
    add.u64 %d9, %d9, %d1;
    ld.global.u32 %r3, [%d9];
    cvt.u32.u64 %r4, %d11;
    add.u32 %r4, %r4, 1;
    shr.u64 %d10, %d11, 6;
    shl.b64 %d10, %d10, 2;
    add.u64 %d10, %d10, %d2;
    ld.global.u32 %r5, [%d10];
    setp.ne.u32 %p3, %r3, %r4;
    setp.ne.or.u32 %p3, %r5, 1, %p3;
    @%p3 red.global.add.u32 [%d4], 1;
    add.u64 %d7, %d7, 32;
    setp.lt.u64 %p4, %d7, %d8;
    @%p4 bra $NEXT;
    ret;
}
";

const THREADS: u32 = 64;
const SMS: u32 = 24;
const ALL: u32 = (1 << SMS) - 1;
/// Device time in which a change of the signal is seen.
const GRACE_NANOS: u64 = 20_000;
/// Device time in which anything ends that ends.
const PATIENCE_NANOS: u64 = 3_000_000;

/// Odd ones never renew what a weak load has seen.
const SEEDS: std::ops::Range<u64> = 0..4;
/// A ticket's fences matter for moments only: four seeds could miss one of them.
const TICKET_SEEDS: std::ops::Range<u64> = 0..8;

/// Launches of one CTA by which the moment of its completion is looked at.
const QUICK_LAUNCHES: u32 = 12;

type Outcome = Result<(), String>;
type Scenario = fn(&mut Trial) -> Outcome;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    Worker,
    /// A worker whose threads need each other.
    Together,
    Ticket,
}

impl Form {
    fn text(self) -> String {
        let (work, pass) = match self {
            Form::Worker => (WORK.to_owned(), Pass::Worker),
            Form::Together => (together(), Pass::Worker),
            Form::Ticket => (WORK.to_owned(), Pass::Ticket),
        };
        partita_ptx::print(&rewritten(&work, &[pass]).module)
    }

    fn scenarios(self) -> &'static [(&'static str, Scenario)] {
        match self {
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
            ],
            Form::Ticket => &[
                ("undisturbed", undisturbed),
                ("borders move", borders_move),
                ("aborted", aborted),
                ("SMs handed over", handed_over),
                ("stalled and resumed", stalled_and_resumed),
                ("claims are registered", claims_are_registered),
                ("complete is done", complete_is_done),
            ],
        }
    }
}

/// A launch of `work` that a scenario disturbs.
struct Trial {
    form: Form,
    world: World,
    random: u64,
    ctas: u32,
    delay: u64,
    late: u64,
    /// Of a block.
    threads: u32,
    /// Nanoseconds between two looks of who waits for the launch.
    pause: u64,
    block: u64,
    data: u64,
    hits: u64,
    wrong: u64,
    launches: u64,
}

impl Trial {
    fn new(form: Form, text: &str, seed: u64) -> Self {
        let options =
            Options { seed, timing: Timing::On, memory: MemoryOrder::Weak, ..Options::default() };
        let mut world = World::of(&format!("{text}{WAITER}"), options);
        let wrong = world.buffer(&[0; 4]);
        let random = seed.wrapping_mul(77) + 1;
        let (late, threads, pause) = (20, THREADS, 300);
        let (ctas, delay, block, data, hits, launches) = (0, 0, 0, 0, 0, 0);
        Trial {
            form,
            world,
            random,
            ctas,
            delay,
            late,
            threads,
            pause,
            block,
            data,
            hits,
            wrong,
            launches,
        }
    }

    /// Begins a launch of so many CTAs that work for so many steps, and somebody who waits for it.
    fn begin(&mut self, ctas: u32, delay: u64) {
        (self.ctas, self.delay) = (ctas, delay);
        self.data = self.world.buffer(&vec![0; (4 * ctas * THREADS) as usize]);
        self.hits = self.world.buffer(&vec![0; 4 * (SMS + ctas) as usize]) + u64::from(4 * SMS);
        self.block = self.world.control(Dim3::linear(ctas), 2, SMS);
        let params = [self.data, self.hits, self.block, self.wrong, self.pause];
        self.world.launch(3, "waiter", Dim3::linear(1), 32, &params);
        match self.form {
            Form::Worker | Form::Together => self.start(SMS, 0),
            // More than there are CTAs: the grid outlives the work, so its end orders nothing that
            // matters.
            Form::Ticket => self.start(ctas + 1500, 0),
        }
    }

    fn start(&mut self, ctas: u32, helper: u64) {
        let last = u64::from(self.threads) - 1;
        let counter = if self.random.is_multiple_of(2) { last } else { 0 };
        let work = self.delay | counter << 32 | self.late << 48;
        let params = [self.data, self.hits, work, self.block | helper];
        let stream = if helper == 0 && self.form != Form::Ticket { 0 } else { self.launches % 3 };
        self.world.launch(stream, "work", Dim3::linear(ctas), self.threads, &params);
        self.launches += 1;
    }

    /// More CTAs: helpers, or another wave.
    fn more(&mut self, ctas: u32) {
        self.start(ctas, u64::from(self.form != Form::Ticket));
    }

    fn below(&mut self, bound: u64) -> u64 {
        mix(&mut self.random) % bound
    }

    fn signal(&mut self, field: u64, value: u32) {
        self.world.poke(self.block + field, value);
    }

    fn completed(&mut self) -> u64 {
        self.world.long(self.block + control::COMPLETED)
    }

    /// Registered and left of each SM.
    fn telemetry(&mut self) -> Vec<[u32; 2]> {
        let words = self.world.words(self.block + control::TELEMETRY, 2 * SMS as usize);
        words.as_chunks::<2>().0.to_vec()
    }

    /// CTAs that each SM has worked on.
    fn worked(&mut self) -> Vec<u32> {
        self.world.words(self.hits - u64::from(4 * SMS), SMS as usize)
    }

    /// Until nothing is left to do.
    fn settle(&mut self) -> Outcome {
        let patience = self.world.gpu.now().0 + PATIENCE_NANOS;
        while self.world.advance(20_000) != Activity::Idle {
            if self.world.gpu.now().0 > patience {
                return Err("it never ends".to_owned());
            }
        }
        match self.world.faults() {
            0 => Ok(()),
            faults => Err(format!("{faults} faults")),
        }
    }

    fn until(&mut self, what: &str, holds: impl Fn(&mut Self) -> bool) -> Outcome {
        for _ in 0..400 {
            if holds(self) {
                return Ok(());
            }
            self.world.advance(500);
        }
        Err(format!("never {what}"))
    }

    /// All of the launch is done, once.
    fn finish(&mut self) -> Outcome {
        self.settle()?;
        let (total, completed) = (u64::from(self.ctas), self.completed());
        expect(completed == total, || format!("{completed} of {total} complete"))?;
        let hits = self.world.words(self.hits, self.ctas as usize);
        expect(hits.iter().all(|&hits| hits == 1), || format!("hits {hits:?}"))?;
        let data = self.world.words(self.data, (self.ctas * THREADS) as usize);
        expect(data.iter().zip(1..).all(|(&word, number)| word == number), || {
            "wrong data".to_owned()
        })?;
        let telemetry = self.telemetry();
        expect(telemetry.iter().all(|slot| slot[0] == slot[1]), || format!("{telemetry:?}"))?;
        let wrong = self.world.words(self.wrong, 1)[0];
        expect(wrong == 0, || format!("who waited for it finds {wrong} places wrong"))
    }

    /// The launch was stopped: what was claimed is whole, and the rest untouched.
    fn finish_stopped(&mut self) -> Outcome {
        self.settle()?;
        let completed = self.completed();
        expect(completed < u64::from(self.ctas), || "it went on to the end".to_owned())?;
        let hits = self.world.words(self.hits, self.ctas as usize);
        let sum: u32 = hits.iter().sum();
        expect(hits.iter().all(|&hits| hits <= 1) && u64::from(sum) == completed, || {
            format!("{completed} complete, {sum} done")
        })
    }
}

fn expect(holds: bool, what: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(what()) }
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
        trial.signal(control::ALLOWED, allowed);
        trial.signal(control::STALLED, stalled);
        trial.more(16);
        let pause = trial.below(4000);
        trial.world.advance(pause);
    }
    trial.signal(control::ALLOWED, ALL);
    trial.signal(control::STALLED, 0);
    trial.more(300);
    trial.finish()
}

fn aborted(trial: &mut Trial) -> Outcome {
    trial.begin(900, 150);
    let pause = 4000 + trial.below(6000);
    trial.world.advance(pause);
    trial.signal(control::ABORT, 1);
    // What was under way ends, and nothing else begins.
    trial.world.advance(GRACE_NANOS);
    let before = trial.world.long(trial.block + control::NEXT);
    trial.finish_stopped()?;
    let after = trial.world.long(trial.block + control::NEXT);
    expect(before == after, || format!("{before} claimed, then {after}"))
}

/// SMs are taken away. Once nobody is registered there nobody claims there any more, and that is
/// soon.
fn handed_over(trial: &mut Trial) -> Outcome {
    trial.begin(2400, 900);
    let pause = 200 + trial.below(5000);
    trial.world.advance(pause);
    let kept = trial.below(1 << SMS) as u32;
    trial.signal(control::ALLOWED, kept);
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
    trial.signal(control::ABORT, 1);
    trial.finish_stopped()
}

fn stalled_and_resumed(trial: &mut Trial) -> Outcome {
    let ctas = if trial.form != Form::Ticket { 400 } else { 1500 };
    trial.begin(ctas, 100);
    let pause = 3000 + trial.below(3000);
    trial.world.advance(pause);
    trial.signal(control::STALLED, ALL);
    trial.world.advance(GRACE_NANOS);
    let before = trial.world.long(trial.block + control::NEXT);
    trial.world.advance(40_000);
    let after = trial.world.long(trial.block + control::NEXT);
    expect(before == after && after < u64::from(ctas), || {
        format!("{before} claimed, then {after}")
    })?;
    trial.signal(control::STALLED, 0);
    if trial.form == Form::Ticket {
        trial.more(ctas);
    }
    trial.finish()
}

/// Workers of stalled SMs leave once no task is left.
fn stalled_to_the_end(trial: &mut Trial) -> Outcome {
    trial.begin(400, 100);
    trial.world.advance(5000);
    trial.signal(control::STALLED, 0xff);
    trial.finish()
}

/// All SMs are taken away, then given back, stalled at first. The CTA that stayed does all the
/// work.
fn away_and_back(trial: &mut Trial) -> Outcome {
    trial.begin(60, 100);
    trial.world.advance(2500);
    trial.signal(control::STALLED, ALL);
    trial.world.advance(20_000);
    trial.signal(control::ALLOWED, 0);
    trial.until("empty", |trial| trial.telemetry().iter().all(|slot| slot[0] == slot[1]))?;
    trial.world.advance(20_000);
    trial.signal(control::ALLOWED, ALL);
    trial.world.advance(20_000);
    let completed = trial.completed();
    expect(completed < 60, || "done too early to show anything".to_owned())?;
    trial.signal(control::STALLED, 0);
    trial.finish()
}

fn aborted_while_away(trial: &mut Trial) -> Outcome {
    trial.begin(400, 100);
    trial.world.advance(5000);
    trial.signal(control::ALLOWED, 0);
    trial.until("empty", |trial| trial.telemetry().iter().all(|slot| slot[0] == slot[1]))?;
    trial.world.advance(20_000);
    trial.signal(control::ABORT, 1);
    trial.finish_stopped()
}

fn aborted_while_stalled(trial: &mut Trial) -> Outcome {
    trial.begin(400, 100);
    trial.world.advance(5000);
    trial.signal(control::STALLED, ALL);
    trial.world.advance(3 * GRACE_NANOS);
    trial.signal(control::ABORT, 1);
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
    trial.signal(control::RETIRED, 1 << 2);
    trial.until("retired", |trial| live(trial) == SMS + 8)?;
    trial.signal(control::STALLED, ALL);
    trial.world.advance(3 * GRACE_NANOS);
    trial.signal(control::RETIRED, 1 << 2 | 1 << 1);
    trial.until("retired while stalled", |trial| live(trial) == SMS)?;
    trial.signal(control::STALLED, 0);
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
        let claimed = trial.world.long(trial.block + control::NEXT);
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
        for (name, scenario) in form.scenarios() {
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

/// Of a worker's loads at the end of a task.
const BEHIND_THE_FENCE: &str =
    "the fence before it leaves no older value to be found; by PTX it races with the host";

#[test]
fn a_worker_misses_whatever_is_taken_out() {
    let harmless = [
        ("ld.volatile.global.v4.u32 +256 #2", BEHIND_THE_FENCE),
        ("ld.volatile.global.u32 +272 #2", BEHIND_THE_FENCE),
        ("ld.volatile.global.u32 +304 #2", BEHIND_THE_FENCE),
        (
            "ld.volatile.global.u64 +0 #2",
            "the counter only rises: by an old value a worker claims in vain",
        ),
        (
            "ld.volatile.global.u64 +0 #3",
            "the counter only rises: by an old value the parked CTA claims in vain",
        ),
        (
            "fence.acq_rel.gpu #2",
            "the ends of grids order all here; by PTX the helpers' effects need it",
        ),
    ];
    check_mutants(Form::Worker, &harmless, "");
    // What differs.
    let own = [("bar.sync #2", "the program's own: who reads comes late")];
    check_mutants(Form::Together, &own, "bar");
}

/// Of a ticket's loads.
const BEHIND_THE_REGISTRATION: &str =
    "the fence before it leaves no older value to be found; by PTX it races with the host";

#[test]
fn a_ticket_misses_whatever_is_taken_out() {
    let harmless = [
        ("ld.volatile.global.u32 +256 #1", BEHIND_THE_REGISTRATION),
        ("ld.volatile.global.u32 +272 #1", BEHIND_THE_REGISTRATION),
        ("ld.volatile.global.u32 +304 #1", BEHIND_THE_REGISTRATION),
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
    let fault = world.words(block + control::FAULT, 1)[0];
    expect(fault == u32::from(gives_up) * control::FAULT_TRAP, || format!("fault {fault}"))
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
    // A weak store is seen in the end here; PTX promises that of no weak one.
    assert_eq!(survivors, ["st.volatile.global.u32 +256 #1"], "nothing misses these in\n{text}");
    for pass in [Pass::Slice, Pass::Fence, Pass::Count] {
        let text = partita_ptx::print(&rewritten(WORK, &[pass]).module);
        assert!(mutants(&text).is_empty(), "{pass:?} orders something that no test misses");
    }
}
