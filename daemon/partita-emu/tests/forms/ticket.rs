//! Tickets and workers: CTAs exactly once under changes of the signal; early exits.

use crate::world::{World, mix, rewritten};
use partita_emu::Timing;
use partita_model::{Dim3, control};
use partita_ptx::Pass;

/// Threads beyond the first 40 leave before the barrier, lane 7 of the others before the shuffle.
/// The first thread counts its CTA; where another CTA of that number had been, the count would be
/// wrong.
const EARLY: &str = "\
.version 8.0
.target sm_75
.address_size 64
.visible .entry early(.param .u64 p_hits, .param .u64 p_sums)
{
    .shared .align 4 .b32 s[64];
    .reg .pred %p<5>;
    .reg .b32 %r<12>;
    .reg .b64 %d<8>;
    mov.u32 %r1, %tid.x;
    setp.gt.u32 %p1, %r1, 39;
    @%p1 bra $OUT;
    mul.lo.u32 %r2, %r1, 4;
    mov.u32 %r3, s;
    add.u32 %r3, %r3, %r2;
    st.shared.u32 [%r3], %r1;
    bar.sync 0;
    ld.shared.u32 %r4, [s+156];
    setp.eq.u32 %p2, %r1, 7;
    @%p2 ret;
    shfl.sync.down.b32 %r5, %r1, 1, 31, -1;
    setp.ne.u32 %p3, %r1, 0;
    @%p3 bra $OUT;
    mov.u32 %r6, %ctaid.x;
    mov.u32 %r7, %ctaid.y;
    mov.u32 %r8, %nctaid.x;
    mad.lo.u32 %r6, %r7, %r8, %r6;
    mul.wide.u32 %d1, %r6, 4;
    ld.param.u64 %d2, [p_hits];
    add.u64 %d2, %d2, %d1;
    red.global.add.u32 [%d2], 1;
    ld.param.u64 %d3, [p_sums];
    add.u64 %d3, %d3, %d1;
    add.u32 %r5, %r5, %r4;
    add.u32 %r5, %r5, %r6;
    st.global.u32 [%d3], %r5;
$OUT:
    ret;
}
";

const WIDTH: u32 = 31;
const CTAS: u32 = WIDTH * 29;

struct Early {
    world: World,
    /// Where its cell begins, where the kernel is fenced.
    window: Vec<u64>,
    block: u64,
    hits: u64,
    sums: u64,
    waves: u64,
}

impl Early {
    fn new(timing: Timing, seed: u64) -> Self {
        Self::after(&[Pass::Ticket], timing, seed)
    }

    fn after(passes: &[Pass], timing: Timing, seed: u64) -> Self {
        let mut world = World::new(&rewritten(EARLY, passes), timing, seed);
        let fenced = passes.contains(&Pass::Fence);
        let window = if fenced { vec![world.cell()] } else { Vec::new() };
        let hits = world.buffer(&[0; 4 * CTAS as usize]);
        let sums = world.buffer(&[0; 4 * CTAS as usize]);
        let block = world.control(Dim3 { x: WIDTH, y: CTAS / WIDTH, z: 1 }, 1, 0);
        Early { world, window, block, hits, sums, waves: 0 }
    }

    fn wave(&mut self, tickets: u32) {
        self.waves += 1;
        let params = [&[self.hits, self.sums], self.window.as_slice(), &[self.block]].concat();
        self.world.launch(self.waves % 4, "early", Dim3::linear(tickets), 96, &params);
    }

    fn completed(&mut self) -> u64 {
        self.world.long(self.block + control::COMPLETED)
    }

    /// Registered and left, summed over all SMs.
    fn telemetry(&mut self) -> (u32, u32) {
        let slots = self.world.slots(self.block);
        let sum = |at: usize| slots.iter().map(|slot| slot[at]).sum();
        (sum(0), sum(1))
    }

    fn check_all(&mut self) {
        self.world.check_outcomes();
        assert_eq!(self.completed(), u64::from(CTAS));
        assert!(
            self.world.words(self.hits, CTAS as usize).iter().all(|&hits| hits == 1),
            "each CTA once"
        );
        let sums = self.world.words(self.sums, CTAS as usize);
        assert!(sums.iter().enumerate().all(|(cta, &sum)| sum == 1 + 39 + cta as u32), "{sums:?}");
        let (registered, left) = self.telemetry();
        assert_eq!(registered, left);
        assert!(registered >= CTAS, "each CTA had a ticket");
    }
}

#[test]
fn waves_run_every_cta_once() {
    for timing in [Timing::On, Timing::Off] {
        let mut early = Early::new(timing, 1);
        // More tickets than CTAs in the end: those exit without one.
        for wave in [1, 100, 500, 400] {
            early.wave(wave);
        }
        early.world.settle();
        early.check_all();
    }
}

#[test]
fn a_fenced_ticket_does_the_same() {
    let mut early = Early::after(&[Pass::Fence, Pass::Ticket], Timing::On, 1);
    early.wave(CTAS);
    early.world.settle();
    early.check_all();
}

#[test]
fn no_ticket_is_lost_or_used_twice_while_the_partition_changes() {
    for seed in 0..12 {
        let mut random = seed;
        let mut early = Early::new(Timing::On, seed);
        for _ in 0..10_000 {
            if early.completed() == u64::from(CTAS) {
                break;
            }
            let allowed = mix(&mut random) as u32 & 0xff_ffff;
            let stalled = (mix(&mut random) & mix(&mut random)) as u32 & 0xff_ffff;
            early.world.permit(early.block, allowed, stalled);
            early.wave(1 + mix(&mut random) as u32 % 120);
            let pause = mix(&mut random) % 6000;
            early.world.advance(pause);
        }
        early.world.settle();
        early.check_all();
    }
}

#[test]
fn an_abort_keeps_what_was_claimed_whole() {
    for seed in 0..6 {
        let mut random = 100 + seed;
        let mut early = Early::new(Timing::On, seed);
        for _ in 0..4 {
            early.wave(150);
        }
        early.world.advance(1 + mix(&mut random) % 8000);
        early.world.abort(early.block);
        early.world.settle();
        early.world.check_outcomes();
        let completed = early.completed();
        assert!(completed < u64::from(CTAS), "the abort came too late to be seen");
        let hits = early.world.words(early.hits, CTAS as usize);
        assert!(hits.iter().all(|&hits| hits <= 1));
        assert_eq!(
            hits.iter().sum::<u32>(),
            completed as u32,
            "what was claimed is complete, nothing else is"
        );
        let (registered, left) = early.telemetry();
        assert_eq!(registered, left);
    }
}
