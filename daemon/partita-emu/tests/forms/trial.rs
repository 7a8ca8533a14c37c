//! A launch of workers or tickets where memory is weak, disturbed by a scenario, and what must hold
//! of it in the end.

use crate::world::{World, mix, rewritten};
use partita_device::{Activity, Device};
use partita_emu::{MemoryOrder, Options, Timing};
use partita_model::{Dim3, control};
use partita_ptx::Pass;

/// Each of the first 64 threads leaves a number of its own, and one thread, `counter`, counts its
/// CTA, and before `hits` those of its SM, and is `late` steps later. The second warp is the later
/// one by `delay` steps, the third by as many more. Nothing in here orders memory.
pub const WORK: &str = "\
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
    ld.acquire.gpu.global.u64 %d6, [%d3+384];
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

/// The same behind a launch in its stream: it need not wait.
fn behind() -> String {
    let (before, loop_) = WAITER.split_once("    ld.acquire").expect("it waits");
    let (_, after) = loop_.split_once("$LOOK:").expect("it looks");
    format!("{before}$LOOK:{after}").replace(" waiter(", " behind(")
}

pub const THREADS: u32 = 64;
pub const SMS: u32 = 24;
pub const ALL: u32 = (1 << SMS) - 1;
/// Device time in which a change of the signal is seen: the GPU here takes 6 us for 2^12
/// cycles. A worker may be in a task so long when the gate is shut, and run another of twice the
/// time. Weak memory hides the gate for some more.
pub const GRACE_NANOS: u64 = 60_000;
/// Device time in which anything ends that ends.
pub const PATIENCE_NANOS: u64 = 3_000_000;

pub type Outcome = Result<(), String>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    Worker,
    /// A worker whose threads need each other.
    Together,
    Ticket,
}

impl Form {
    pub fn text(self) -> String {
        let (work, pass) = match self {
            Form::Worker => (WORK.to_owned(), Pass::Worker),
            Form::Together => (together(), Pass::Worker),
            Form::Ticket => (WORK.to_owned(), Pass::Ticket),
        };
        partita_ptx::print(&rewritten(&work, &[pass]).module)
    }
}

/// A launch of `work` that a scenario disturbs.
pub struct Trial {
    pub form: Form,
    pub world: World,
    random: u64,
    pub ctas: u32,
    pub delay: u64,
    pub late: u64,
    /// Of a block.
    pub threads: u32,
    /// Nanoseconds between two looks of who waits for the launch.
    pub pause: u64,
    block: u64,
    data: u64,
    hits: u64,
    wrong: u64,
    launches: u64,
    /// Whether workers have their first tasks by place.
    by_place: bool,
}

impl Trial {
    pub fn new(form: Form, text: &str, seed: u64) -> Self {
        let options =
            Options { seed, timing: Timing::On, memory: MemoryOrder::Weak, ..Options::default() };
        let mut world = World::of(&format!("{text}{WAITER}{}", behind()), options);
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
            by_place: seed & 2 != 0,
        }
    }

    /// Begins a launch of so many CTAs that work for so many steps, and somebody who waits for it.
    /// Half of the seeds give workers their first tasks by place.
    pub fn begin(&mut self, ctas: u32, delay: u64) {
        let even = [u16::from(self.by_place); SMS as usize];
        self.begin_placed(ctas, delay, SMS, &even);
    }

    /// Begins one with so many CTAs in the main grid, and so many workers' tasks by place on each
    /// SM.
    pub fn begin_placed(&mut self, ctas: u32, delay: u64, main_ctas: u32, workers: &[u16]) {
        self.prepare(ctas, delay, main_ctas, workers);
        self.enqueue(main_ctas);
    }

    /// The control block of a launch, and its memory.
    pub fn prepare(&mut self, ctas: u32, delay: u64, main_ctas: u32, workers: &[u16]) {
        (self.ctas, self.delay) = (ctas, delay);
        self.data = self.world.buffer(&vec![0; (4 * ctas * THREADS) as usize]);
        self.hits = self.world.buffer(&vec![0; 4 * (SMS + ctas) as usize]) + u64::from(4 * SMS);
        let grid = Dim3::linear(ctas);
        self.block = match self.form {
            Form::Worker | Form::Together => self.world.by_place(grid, 2, main_ctas, workers),
            Form::Ticket => self.world.control(grid, 1, 0),
        };
    }

    /// The main grid, and somebody who waits for it.
    pub fn enqueue(&mut self, main_ctas: u32) {
        let params = [self.data, self.hits, self.block, self.wrong, self.pause];
        let wait = |world: &mut World, stream: u64, kernel: &str| {
            world.launch(stream, kernel, Dim3::linear(1), 32, &params)
        };
        match self.form {
            Form::Worker | Form::Together => {
                self.start(main_ctas, 0);
                wait(&mut self.world, 0, "behind");
            }
            // More than there are CTAs: the grid outlives the work, so its end orders nothing that
            // matters.
            Form::Ticket => {
                wait(&mut self.world, 3, "waiter");
                self.start(self.ctas + 1500, 0);
            }
        }
    }

    pub fn start(&mut self, ctas: u32, helper: u64) {
        let last = u64::from(self.threads) - 1;
        let counter = if self.random.is_multiple_of(2) { last } else { 0 };
        let work = self.delay | counter << 32 | self.late << 48;
        let params = [self.data, self.hits, work, self.block | helper];
        let stream = match self.form {
            Form::Ticket => self.launches % 3,
            Form::Worker | Form::Together if helper == 0 => 0,
            Form::Worker | Form::Together => 1 + self.launches % 3,
        };
        self.world.launch(stream, "work", Dim3::linear(ctas), self.threads, &params);
        self.launches += 1;
    }

    /// More CTAs: helpers, or another wave.
    pub fn more(&mut self, ctas: u32) {
        self.start(ctas, u64::from(self.form != Form::Ticket));
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        mix(&mut self.random) % bound
    }

    /// Where workers may claim, and where they wait.
    pub fn permit(&mut self, allowed: u32, stalled: u32) {
        self.world.permit(self.block, allowed, stalled);
    }

    /// Lets `quota` CTAs stay on an SM, or as many as fit, and opens all SMs.
    pub fn share(&mut self, quota: Option<u32>) {
        self.world.share(self.block, quota);
        self.permit(ALL, 0);
    }

    /// Tells helper grids to leave.
    pub fn retire(&mut self, helpers: u32) {
        self.world.poke(self.block + control::RETIRED, helpers);
    }

    pub fn abort(&mut self) {
        self.world.abort(self.block);
    }

    /// The next CTA to claim.
    pub fn next(&mut self) -> u64 {
        self.world.long(self.block + control::NEXT) & !control::HELPED
    }

    pub fn completed(&mut self) -> u64 {
        self.world.long(self.block + control::COMPLETED)
    }

    /// Registered and left of each SM.
    pub fn telemetry(&mut self) -> Vec<[u32; 2]> {
        self.world.slots(self.block)
    }

    /// CTAs that each SM has worked on.
    pub fn worked(&mut self) -> Vec<u32> {
        self.world.words(self.hits - u64::from(4 * SMS), SMS as usize)
    }

    /// Until nothing is left to do.
    pub fn settle(&mut self) -> Outcome {
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

    pub fn until(&mut self, what: &str, holds: impl Fn(&mut Self) -> bool) -> Outcome {
        for _ in 0..400 {
            if holds(self) {
                return Ok(());
            }
            self.world.advance(500);
        }
        Err(format!("never {what}"))
    }

    /// All of the launch is done, once.
    pub fn finish(&mut self) -> Outcome {
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
        let seen = self.world.telemetry(self.block);
        expect(seen.next >= total && seen.live_total() == 0, || format!("{seen:?}"))?;
        let wrong = self.world.words(self.wrong, 1)[0];
        expect(wrong == 0, || format!("who waited for it finds {wrong} places wrong"))
    }

    /// The launch was stopped: what was claimed is whole, and the rest untouched.
    pub fn finish_stopped(&mut self) -> Outcome {
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

pub fn expect(holds: bool, what: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(what()) }
}
