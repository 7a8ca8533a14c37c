//! Clusters of CTAs: special registers, shared memory of other CTAs, the cluster's barrier, remote
//! mbarriers and copies, in both timing modes. What is expected is computed from the CTAs' places.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up fails")]
#![expect(clippy::cast_possible_truncation, reason = "small numbers")]

use partita_emu::direct::{Argument, DirectError, Form, Run, run};
use partita_emu::{MemoryCheck, Options, Spec, Timing};
use partita_model::Dim3;

const THREADS: u32 = 96;

/// The place of a thread.
#[derive(Clone, Copy, Debug)]
struct Place {
    cta: [u32; 3],
    thread: u32,
    grid: [u32; 3],
    cluster: [u32; 3],
}

impl Place {
    fn local(self) -> [u32; 3] {
        [0, 1, 2].map(|axis| self.cta[axis] % self.cluster[axis])
    }

    fn id(self) -> [u32; 3] {
        [0, 1, 2].map(|axis| self.cta[axis] / self.cluster[axis])
    }

    fn rank(self) -> u32 {
        let [x, y, z] = self.local();
        (z * self.cluster[1] + y) * self.cluster[0] + x
    }

    fn count(self) -> u32 {
        self.cluster.iter().product()
    }

    /// The linear index of the CTA of another rank of the same cluster.
    fn linear_of(self, rank: u32) -> u32 {
        let [cx, cy, _] = self.cluster;
        let local = [rank % cx, rank / cx % cy, rank / cx / cy];
        let at = |axis: usize| self.id()[axis] * self.cluster[axis] + local[axis];
        (at(2) * self.grid[1] + at(1)) * self.grid[0] + at(0)
    }

    fn next(self) -> u32 {
        (self.rank() + 1) % self.count()
    }
}

/// A kernel in which `%t` is the thread, `%g` the CTA's linear index, `%k` and `%n` its rank and
/// the CTAs of its cluster, `%next` the next rank, `%d0` the address of the thread's result,
/// `%x0` the input, `%r0` the address of the thread's word in `room`.
fn kernel(body: &str, cluster: [u32; 3]) -> String {
    let [x, y, z] = cluster;
    format!(
        ".version 8.6\n.target sm_90a\n.address_size 64\n\
         .visible .entry test(.param .u64 in, .param .u64 out)\n.reqnctapercluster {x}, {y}, {z}\n\
         {{\n.reg .pred %p<8>; .reg .b16 %h<4>; .reg .b32 %r<24>; .reg .b64 %d<16>, %x<4>; \
         .reg .b32 %t, %g, %k, %n, %next; .reg .f32 %f<4>;\n\
         .shared .align 8 .b64 barrier; .shared .align 128 .b8 room[4096];\n\
         ld.param.u64 %x0, [in]; ld.param.u64 %x1, [out]; mov.u32 %t, %tid.x;\n\
         mov.u32 %r1, %ctaid.z; mov.u32 %r2, %nctaid.y; mov.u32 %r3, %ctaid.y;\n\
         mad.lo.u32 %g, %r1, %r2, %r3; mov.u32 %r2, %nctaid.x; mov.u32 %r3, %ctaid.x;\n\
         mad.lo.u32 %g, %g, %r2, %r3; mov.u32 %k, %cluster_ctarank;\n\
         mov.u32 %n, %cluster_nctarank; add.u32 %next, %k, 1; rem.u32 %next, %next, %n;\n\
         mad.lo.u32 %r1, %g, {THREADS}, %t; mul.wide.u32 %d0, %r1, 4; add.u64 %d0, %d0, %x1;\n\
         mov.u32 %r0, room; mad.lo.u32 %r0, %t, 4, %r0; setp.eq.u32 %p0, %t, 0;\n\
         {body}\nret;\n}}\n"
    )
}

/// Arrives and waits.
const SYNC: &str = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;\n";
/// Stores %r10 as the result.
const STORE: &str = "st.global.u32 [%d0], %r10;\n";

fn attempt(
    body: &str,
    [grid, cluster]: [[u32; 3]; 2],
    (timing, form): (Timing, Form),
) -> Result<Vec<u32>, DirectError> {
    let extent = Dim3::new(grid[0], grid[1], grid[2]);
    let input: Vec<u8> = (0..1024_u32).flat_map(|word| (word * 7 + 1).to_le_bytes()).collect();
    let results = extent.count() as usize * THREADS as usize;
    let job = Run {
        ptx: kernel(body, cluster).into(),
        kernel: "test".to_owned(),
        grid: extent,
        block: Dim3::linear(THREADS),
        dynamic_shared: 0,
        arguments: vec![Argument::Buffer(input), Argument::Buffer(vec![0; 4 * results])],
        form,
        spec: Spec::named("h200").unwrap(),
        options: Options { timing, seed: 1, memcheck: MemoryCheck::Exact, ..Options::default() },
    };
    let ran = run(&job)?;
    Ok(ran.buffers[1].as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect())
}

/// Grids and clusters: one CTA, pairs, planes, boxes, the most CTAs.
const SHAPES: [[[u32; 3]; 2]; 6] = [
    [[5, 1, 1], [1, 1, 1]],
    [[10, 1, 1], [2, 1, 1]],
    [[6, 4, 1], [2, 2, 1]],
    [[2, 4, 6], [1, 2, 3]],
    [[16, 3, 1], [8, 1, 1]],
    [[16, 2, 1], [16, 1, 1]],
];

/// Runs a body on all shapes, and compares each thread's result. Returns the comparisons made.
fn check(body: &str, expect: impl Fn(Place) -> u32) -> usize {
    let mut compared = 0;
    let original = [(Timing::On, Form::Original), (Timing::Off, Form::Original)];
    // Tickets claim whole clusters.
    for how in original.into_iter().chain([(Timing::On, Form::Ticket), (Timing::Off, Form::Ticket)])
    {
        for [grid, cluster] in SHAPES {
            let found = attempt(body, [grid, cluster], how)
                .unwrap_or_else(|error| panic!("{how:?} {grid:?} {cluster:?}: {error}\n{body}"));
            for (index, found) in found.iter().enumerate() {
                let (linear, thread) = (index as u32 / THREADS, index as u32 % THREADS);
                let cta =
                    [linear % grid[0], linear / grid[0] % grid[1], linear / grid[0] / grid[1]];
                let place = Place { cta, thread, grid, cluster };
                assert_eq!(*found, expect(place), "{how:?} {place:?}\n{body}");
                compared += 1;
            }
        }
    }
    compared
}

fn fault(body: &str) -> String {
    let of = |timing| match attempt(body, [[4, 1, 1], [2, 1, 1]], (timing, Form::Original)) {
        Err(error) => error.to_string(),
        Ok(found) => panic!("{timing:?}: no fault in\n{body}\n{found:?}"),
    };
    let (on, off) = (of(Timing::On), of(Timing::Off));
    assert_eq!(on, off, "{body}");
    on
}

#[test]
fn special_registers_tell_the_place() {
    let mut compared = 0;
    let mut read = |name: &str, expect: &dyn Fn(Place) -> u32| {
        compared += check(&format!("mov.u32 %r10, %{name};\n{STORE}"), expect);
    };
    for (axis, letter) in ["x", "y", "z"].into_iter().enumerate() {
        read(&format!("clusterid.{letter}"), &|place| place.id()[axis]);
        read(&format!("nclusterid.{letter}"), &|place| place.grid[axis] / place.cluster[axis]);
        read(&format!("cluster_ctaid.{letter}"), &|place| place.local()[axis]);
        read(&format!("cluster_nctaid.{letter}"), &|place| place.cluster[axis]);
        read(&format!("ctaid.{letter}"), &|place| place.cta[axis]);
    }
    read("cluster_ctarank", &Place::rank);
    read("cluster_nctarank", &Place::count);
    let explicit = "mov.pred %p1, %is_explicit_cluster; selp.u32 %r10, 1, 0, %p1;\n";
    compared += check(&format!("{explicit}{STORE}"), |place| u32::from(place.count() > 1));
    assert!(compared >= 2_000, "{compared}");
}

/// Each CTA writes its linear index and the thread, and reads what another CTA wrote.
#[test]
fn loads_reach_other_ctas() {
    let write = "mad.lo.u32 %r4, %g, 1000, %t; st.shared.u32 [%r0], %r4;\n";
    let expect = |place: Place| place.linear_of(place.next()) * 1000 + place.thread;
    let mut compared = 0;
    for read in [
        "mapa.shared::cluster.u32 %r5, %r0, %next; ld.shared::cluster.u32 %r10, [%r5];\n",
        "mapa.shared::cluster.u32 %r5, room, %next; mad.lo.u32 %r5, %t, 4, %r5;\n\
         ld.relaxed.cluster.shared::cluster.u32 %r10, [%r5];\n",
        "cvt.u64.u32 %d1, %r0; cvta.shared.u64 %d1, %d1; mapa.u64 %d2, %d1, %next;\n\
         ld.u32 %r10, [%d2];\n",
        "mapa.shared::cluster.u32 %r5, %r0, %next; cvt.u64.u32 %d1, %r5;\n\
         cvta.shared::cluster.u64 %d1, %d1; ld.b8 %h0, [%d1]; ld.b8 %h1, [%d1+1];\n\
         ld.b16 %h2, [%d1+2]; shl.b16 %h1, %h1, 8; or.b16 %h0, %h0, %h1;\n\
         mov.b32 %r10, {%h0, %h2};\n",
    ] {
        // Nobody leaves while others read.
        compared += check(&format!("{write}{SYNC}{read}{SYNC}{STORE}"), expect);
    }
    // A CTA's own rank names its own memory.
    let own = "mapa.shared::cluster.u32 %r5, %r0, %k; ld.shared::cluster.u32 %r10, [%r5];\n";
    compared += check(&format!("{write}{own}{STORE}"), |place| {
        place.linear_of(place.rank()) * 1000 + place.thread
    });
    // A cleared bit of an own address names the CTA of the even rank, as CUTLASS has it.
    let even = "and.b32 %r5, %r0, 0xfeffffff; ld.shared::cluster.u32 %r10, [%r5];\n";
    compared += check(&format!("{write}{SYNC}{even}{SYNC}{STORE}"), |place| {
        place.linear_of(place.rank() & !1) * 1000 + place.thread
    });
    assert!(compared >= 2_000, "{compared}");
}

#[test]
fn stores_and_atomics_reach_other_ctas() {
    let mut compared = 0;
    let to = "mapa.shared::cluster.u32 %r5, %r0, %next; mad.lo.u32 %r4, %g, 1000, %t;\n";
    let from = |place: Place| {
        let before = (place.rank() + place.count() - 1) % place.count();
        place.linear_of(before) * 1000 + place.thread
    };
    let read = "ld.shared.u32 %r10, [%r0];\n";
    for store in [
        "st.shared::cluster.u32 [%r5], %r4;\n",
        "cvt.u64.u32 %d1, %r5; cvta.shared::cluster.u64 %d1, %d1; st.u32 [%d1], %r4;\n",
        "st.shared.u32 [%r0], 0;\nbarrier.cluster.arrive; barrier.cluster.wait;\n\
         atom.shared::cluster.exch.b32 %r6, [%r5], %r4;\n",
    ] {
        compared += check(&format!("{SYNC}{to}{store}{SYNC}{read}{STORE}"), from);
    }
    // All threads of the cluster add to words of CTA 0, and each reads its word there.
    let zero = "st.shared.u32 [%r0], 7;\n";
    let add = "mov.u32 %r7, 0; mapa.shared::cluster.u32 %r5, %r0, %r7;\n\
               red.relaxed.cluster.shared::cluster.add.u32 [%r5], %k;\n";
    let read = "ld.shared::cluster.u32 %r10, [%r5];\n";
    compared += check(&format!("{zero}{SYNC}{add}{SYNC}{read}{SYNC}{STORE}"), |place| {
        7 + (0..place.count()).sum::<u32>()
    });
    assert!(compared >= 2_000, "{compared}");
}

#[test]
fn addresses_tell_their_cta() {
    let mapped = "mapa.shared::cluster.u32 %r5, %r0, %next; cvt.u64.u32 %d1, %r5;\n\
                  cvta.shared::cluster.u64 %d1, %d1; cvt.u64.u32 %d2, %r0;\n\
                  cvta.shared::cta.u64 %d2, %d2;\n";
    let mut compared = 0;
    for (read, expect) in [
        ("getctarank.shared::cluster.u32 %r10, %r5;", Place::next as fn(Place) -> u32),
        ("getctarank.u64 %r10, %d1;", Place::next),
        ("getctarank.shared::cluster.u32 %r10, %r0;", Place::rank),
        ("shr.u32 %r10, %r0, 24;", Place::rank),
        ("mov.u64 %d3, room; shr.u64 %d3, %d3, 24; cvt.u32.u64 %r10, %d3;", Place::rank),
        ("cvta.to.shared.u64 %d3, %d2; shr.u64 %d3, %d3, 24; cvt.u32.u64 %r10, %d3;", Place::rank),
        ("isspacep.shared::cluster %p1, %d1; selp.u32 %r10, 1, 0, %p1;", |_| 1),
        ("isspacep.shared::cta %p1, %d2; selp.u32 %r10, 1, 0, %p1;", |_| 1),
        ("isspacep.shared %p1, %d1; selp.u32 %r10, 1, 0, %p1;", |place| {
            u32::from(place.count() == 1)
        }),
        ("isspacep.global %p1, %d1; selp.u32 %r10, 1, 0, %p1;", |_| 0),
        (
            "cvta.to.shared::cluster.u64 %d3, %d1; cvt.u32.u64 %r6, %d3; sub.u32 %r10, %r6, %r5;",
            |_| 0,
        ),
    ] {
        compared += check(&format!("{mapped}{read}\n{STORE}"), expect);
    }
    assert!(compared >= 2_000, "{compared}");
}

/// Twenty phases in which each CTA adds what its neighbour had, at different speeds; warps arrive
/// apart, and half of them leave at the end of phase 10.
#[test]
fn phases_of_the_barrier_follow_one_another() {
    let work = "mul.lo.u32 %r8, %k, 37; add.u32 %r8, %r8, %t; and.b32 %r8, %r8, 127;\n";
    let delay = "delay: setp.eq.u32 %p2, %r8, 0; @%p2 bra ready; sub.u32 %r8, %r8, 1; bra delay;\n\
                 ready:\n";
    let body = format!(
        "mov.u32 %r9, 0; mov.u32 %r10, %g; mapa.shared::cluster.u32 %r5, %r0, %next;\n{work}\
         round: st.shared.u32 [%r0], %r10;\n{delay}\
         barrier.cluster.arrive.release; barrier.cluster.wait.acquire;\n\
         ld.shared::cluster.u32 %r6, [%r5];\n\
         barrier.cluster.arrive.relaxed; barrier.cluster.wait;\n\
         add.u32 %r10, %r10, %r6; add.u32 %r9, %r9, 1; {work}\
         setp.lt.u32 %p1, %r9, 10; @%p1 bra round;\n\
         setp.lt.u32 %p3, %t, 48; @%p3 bra leave;\n\
         setp.lt.u32 %p1, %r9, 20; @%p1 bra round;\n\
         leave: {STORE}"
    );
    let compared = check(&body, |place| {
        let count = place.count() as usize;
        let mut values: Vec<u32> = (0..place.count()).map(|rank| place.linear_of(rank)).collect();
        let rounds = if place.thread < 48 { 10 } else { 20 };
        for _ in 0..rounds {
            values =
                (0..count).map(|at| values[at].wrapping_add(values[(at + 1) % count])).collect();
        }
        values[place.rank() as usize]
    });
    assert!(compared >= 2_000, "{compared}");
}

const INIT: &str = "@%p0 mbarrier.init.shared.b64 [barrier], 96;\n\
                    fence.mbarrier_init.release.cluster;\n";
const ONE: &str = "@%p0 mbarrier.init.shared.b64 [barrier], 1;\n\
                   fence.mbarrier_init.release.cluster;\n";
const AWAIT: &str = "again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p1, \
                     [barrier], 0;\n@!%p1 bra again;\n";

#[test]
fn mbarriers_of_other_ctas_are_reached() {
    let before = |place: Place| (place.rank() + place.count() - 1) % place.count();
    let to = "mapa.shared::cluster.u32 %r5, %r0, %next; mov.u32 %r6, barrier;\n\
              mapa.shared::cluster.u32 %r6, %r6, %next; mad.lo.u32 %r4, %g, 1000, %t;\n";
    let read = "ld.shared.u32 %r10, [%r0];\n";
    let word = |place: Place| place.linear_of(before(place)) * 1000 + place.thread;
    let mut compared = 0;
    let arrive = "st.shared::cluster.u32 [%r5], %r4;\n\
                  mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r6];\n";
    compared += check(&format!("{INIT}{SYNC}{to}{arrive}{AWAIT}{read}{SYNC}{STORE}"), word);
    // One thread announces the bytes, and the neighbour's stores bring them.
    let expect = |bytes: u32| {
        format!("@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [barrier], {};\n", bytes * THREADS)
    };
    let async_store = |kind: &str| {
        format!("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes{kind}, [%r6];\n")
    };
    let plain = async_store(".b32 [%r5], %r4");
    let all = format!("{ONE}{SYNC}{to}{}{plain}{AWAIT}{read}{SYNC}{STORE}", expect(4));
    compared += check(&all, word);
    let wide = "mapa.shared::cluster.u32 %r5, room, %next; mad.lo.u32 %r5, %t, 16, %r5;\n\
                add.u32 %r7, %r4, 1;\n";
    let four = async_store(".v4.b32 [%r5], {%r4, %r7, %r4, %r7}");
    let sum = "mov.u32 %r8, room; mad.lo.u32 %r8, %t, 16, %r8;\n\
               ld.shared.v4.u32 {%r11, %r12, %r13, %r14}, [%r8]; add.u32 %r10, %r11, %r12;\n\
               add.u32 %r10, %r10, %r13; add.u32 %r10, %r10, %r14;\n";
    let all = format!("{ONE}{SYNC}{to}{wide}{}{four}{AWAIT}{sum}{SYNC}{STORE}", expect(16));
    compared += check(&all, |place| word(place) * 4 + 2);
    let start = "st.shared.u32 [%r0], 5;\n";
    let red = "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 \
               [%r5], %r4, [%r6];\n";
    let all = format!("{ONE}{start}{SYNC}{to}{}{red}{AWAIT}{read}{SYNC}{STORE}", expect(4));
    compared += check(&all, |place| word(place) + 5);
    assert!(compared >= 2_000, "{compared}");
}

#[test]
fn bulk_copies_reach_other_ctas() {
    let before = |place: Place| (place.rank() + place.count() - 1) % place.count();
    let write = "mad.lo.u32 %r4, %g, 1000, %t; add.u32 %r1, %r0, 1024; st.shared.u32 [%r1], %r4;\n\
                 st.shared.u32 [%r0], 3; fence.proxy.async.shared::cta;\n";
    let to = "mapa.shared::cluster.u32 %r5, room, %next; mov.u32 %r6, barrier;\n\
              mapa.shared::cluster.u32 %r6, %r6, %next; mov.u32 %r7, room;\n\
              add.u32 %r7, %r7, 1024;\n";
    let expect =
        format!("@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [barrier], {};\n", 4 * THREADS);
    let read = "ld.shared.u32 %r10, [%r0];\n";
    let bytes = 4 * THREADS;
    let word = |place: Place| place.linear_of(before(place)) * 1000 + place.thread;
    let mut compared = 0;
    let copy = format!(
        "@%p0 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r5], \
         [%r7], {bytes}, [%r6];\n"
    );
    let all = format!("{ONE}{write}{SYNC}{to}{expect}{copy}{AWAIT}{read}{SYNC}{STORE}");
    compared += check(&all, word);
    let add = format!(
        "@%p0 cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.\
         add.u32 \
         [%r5], [%r7], {bytes}, [%r6];\n"
    );
    let all = format!("{ONE}{write}{SYNC}{to}{expect}{add}{AWAIT}{read}{SYNC}{STORE}");
    compared += check(&all, |place| word(place) + 3);
    // The last CTA sends a piece of the input to the CTAs of even rank.
    let many = format!(
        "add.u32 %r8, %k, 1; setp.eq.u32 %p2, %r8, %n; and.pred %p2, %p2, %p0;\n\
         mov.u16 %h0, 0x5555; mov.u32 %r9, barrier; mov.u32 %r7, room;\n\
         @%p2 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes\
         .multicast::cluster [%r7], [%x0], {bytes}, [%r9], %h1;\n"
    );
    // Bits of CTAs that the cluster has not are not set.
    let mask = "mov.u32 %r8, 1; shl.b32 %r8, %r8, %n; sub.u32 %r8, %r8, 1; cvt.u16.u32 %h1, %r8;\n\
                and.b16 %h1, %h1, 0x5555;\n";
    let odd = "and.b32 %r8, %k, 1; setp.eq.u32 %p3, %r8, 1; @%p3 bra last;\n";
    let body =
        format!("{ONE}{write}{SYNC}{expect}{mask}{many}{odd}{AWAIT}last: {SYNC}{read}{STORE}");
    compared += check(&body, |place| if place.rank() % 2 == 0 { place.thread * 7 + 1 } else { 3 });
    assert!(compared >= 2_000, "{compared}");
}

/// A kernel for clusters has one CTA in each where it is launched without.
#[test]
fn misuse_is_a_fault() {
    let told = |body: &str, what: &str| {
        let text = fault(body);
        assert!(text.contains(what), "{text}");
    };
    told("barrier.cluster.wait;\n", "a wait at the cluster's barrier without an arrival");
    told("barrier.cluster.arrive; barrier.cluster.arrive;\n", "a second arrival");
    let far = "mov.u32 %r5, 7; mapa.shared::cluster.u32 %r5, %r0, %r5;\n\
               ld.shared::cluster.u32 %r10, [%r5];\n";
    told(far, "load of 4 bytes of CTA 7 of a cluster of 2");
    let beyond =
        "mapa.shared::cluster.u32 %r5, %r0, %next;\nst.shared::cluster.u32 [%r5+8192], %t;\n";
    told(beyond, "of shared memory of CTA");
    // CTA 1 leaves at once, and CTA 0 looks long after.
    let late = "setp.eq.u32 %p1, %k, 1; @%p1 bra gone; mov.u32 %r8, 0;\n\
                wait: add.u32 %r8, %r8, 1; nanosleep.u32 1000; setp.lt.u32 %p2, %r8, 100;\n\
                @%p2 bra wait; mapa.shared::cluster.u32 %r5, %r0, %next;\n\
                ld.shared::cluster.u32 %r10, [%r5];\ngone:\n";
    told(late, "of CTA 1 of the cluster, which has exited");
}

#[test]
fn clusters_that_no_gpu_has_are_refused() {
    let refused = |grid: [u32; 3], cluster: [u32; 3]| {
        attempt(STORE, [grid, cluster], (Timing::Off, Form::Original)).unwrap_err().to_string()
    };
    let text = refused([34, 1, 1], [17, 1, 1]);
    assert!(text.contains("clusters of 17 CTAs; at most 16"), "{text}");
    let text = refused([5, 1, 1], [2, 1, 1]);
    assert!(text.contains("clusters of 2,1,1 do not fill a grid of 5,1,1"), "{text}");
}

/// All CTAs of a cluster are on one GPC, at the same time, and a load from another SM takes its
/// time.
#[test]
fn a_cluster_is_on_one_gpc() {
    let body = format!("mov.u32 %r10, %smid;\n{SYNC}{STORE}");
    let spec = Spec::named("h200").unwrap();
    let found = attempt(&body, [[64, 1, 1], [16, 1, 1]], (Timing::On, Form::Original)).unwrap();
    let ctas: Vec<u32> = found.chunks(THREADS as usize).map(|cta| cta[0]).collect();
    for cluster in ctas.chunks(16) {
        let gpcs = spec.gpcs();
        let on = |sm: &u32| {
            let id = partita_model::SmId(*sm as u16);
            gpcs.iter().position(|gpc| gpc.contains(id)).unwrap()
        };
        assert!(cluster.iter().all(|sm| on(sm) == on(&cluster[0])), "{cluster:?}");
    }
    // Ten loads one after the other, from its own memory and from the neighbour's.
    let time = |from: &str| {
        let body = format!(
            "mapa.shared::cluster.u32 %r5, %r0, {from};\n\
             st.shared.u32 [%r0], %r0;\n{SYNC}mov.u32 %r7, %clock;\n{}\
             mov.u32 %r8, %clock; sub.u32 %r10, %r8, %r7;\n{SYNC}{STORE}",
            "ld.shared::cluster.u32 %r5, [%r5];\n".repeat(10)
        );
        let found = attempt(&body, [[2, 1, 1], [2, 1, 1]], (Timing::On, Form::Original)).unwrap();
        u64::from(found[0])
    };
    let (own, other) = (time("%k"), time("%next"));
    let more = (other - own) / 10;
    assert!((150..=260).contains(&more), "{own} {other}");
}
