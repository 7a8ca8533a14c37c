//! Litmus tests of weak memory: what fences forbid never happens, and what a missing one allows
//! does.
//!
//! PTX ISA, "Memory Consistency Model". A test is a few roles, each in a CTA or a warp of its own,
//! which meet before every round and then work on places of that round. `x` and `y` stand for the
//! round's places, `%a` to `%d` for registers whose values the outcome is about.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use partita_emu::direct::{Argument, Form, Run, prepare};
use partita_emu::{MemoryOrder, Options, Spec, Timing};
use partita_model::Dim3;

const ROUNDS: usize = 40;
const SEEDS: u64 = 12;
/// Bytes that a round works on: three places in lines of their own, and where its roles meet.
const ROUND_BYTES: usize = 512;
const LIMIT: u64 = 20_000_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Roles {
    Ctas,
    Warps,
}

/// Values of `%a` to `%d` of a role.
type Registers = [u32; 4];

fn kernel(place: Roles, roles: &[&str]) -> String {
    let role = if place == Roles::Ctas { "%ctaid.x" } else { "%tid.x" };
    let shift = if place == Roles::Ctas { 0 } else { 5 };
    let count = roles.len();
    // Of a warp only the first lane takes part.
    let alone = "\tmov.u32 %r3, %laneid;\n\tsetp.ne.u32 %p3, %r3, 0;\n\t@%p3 ret;\n";
    let alone = if place == Roles::Warps { alone } else { "" };
    let mut text = format!(
        ".version 8.3\n.target sm_90\n.address_size 64\n\
         .visible .entry k(.param .u64 places, .param .u64 out)\n{{\n\
         \t.shared .align 4 .u32 flag;\n\t.reg .pred %p<5>;\n\t.reg .b32 %a, %b, %c, %d, \
         %r<8>;\n\t.reg .b64 %x, %y, %z, %s, %o;\n\
         \tld.param.u64 %x, [places];\n\tld.param.u64 %o, [out];\n\
         \tmov.u32 %r0, {role};\n\tshr.u32 %r0, %r0, {shift};\n\tmul.wide.u32 %s, %r0, \
         16;\n\tadd.u64 %o, %o, %s;\n\
         {alone}\tmov.u32 %r1, 0;\nround:\n\
         \tadd.u64 %y, %x, 128;\n\tadd.u64 %z, %x, 256;\n\tadd.u64 %s, %x, 384;\n\
         \tmov.u32 %a, 0;\n\tmov.u32 %b, 0;\n\tmov.u32 %c, 0;\n\tmov.u32 %d, 0;\n\
         \tred.relaxed.gpu.global.add.u32 [%s], 1;\nmeet:\n\tld.relaxed.gpu.global.u32 %r2, [%s];\n\
         \tsetp.ne.u32 %p0, %r2, {count};\n\t@%p0 bra meet;\n"
    );
    for index in 0..count {
        text += &format!("\tsetp.eq.u32 %p1, %r0, {index};\n\t@%p1 bra role{index};\n");
    }
    for (index, code) in roles.iter().enumerate() {
        let code = code.replace("[x]", "[%x]").replace("[y]", "[%y]").replace("[z]", "[%z]");
        text += &format!("role{index}:\n\t{code}\n\tbra done;\n");
    }
    text += &format!(
        "done:\n\tst.global.u32 [%o], %a;\n\tst.global.u32 [%o+4], %b;\n\tst.global.u32 [%o+8], \
         %c;\n\
         \tst.global.u32 [%o+12], %d;\n\tadd.u64 %x, %x, {ROUND_BYTES};\n\tadd.u64 %o, %o, {};\n\
         \tadd.u32 %r1, %r1, 1;\n\tsetp.lt.u32 %p2, %r1, {ROUNDS};\n\t@%p2 bra \
         round;\n\tret;\n}}\n",
        16 * count
    );
    text
}

/// What is left of a round.
struct Round<'a> {
    roles: &'a [Registers],
    /// `x`, `y` and `z` in the end.
    places: [u32; 3],
}

/// In how many rounds of all seeds an outcome shows.
fn count(place: Roles, roles: &[&str], outcome: impl Fn(&Round<'_>) -> bool) -> usize {
    let text = kernel(place, roles);
    let number = u32::try_from(roles.len()).unwrap();
    let (grid, block) = if place == Roles::Ctas { (number, 1) } else { (1, 32 * number) };
    let mut found = 0;
    for seed in 0..SEEDS {
        let job = Run {
            ptx: text.as_str().into(),
            kernel: "k".to_owned(),
            grid: Dim3::linear(grid),
            block: Dim3::linear(block),
            dynamic_shared: 0,
            arguments: vec![
                Argument::Buffer(vec![0; ROUNDS * ROUND_BYTES]),
                Argument::Buffer(vec![0; ROUNDS * 16 * roles.len()]),
            ],
            form: Form::Original,
            spec: Spec::named("cd-search-24").unwrap(),
            options: Options { seed, memory: MemoryOrder::Weak, ..Options::default() },
        };
        let ran = prepare(&job).and_then(|prepared| prepared.run_within(LIMIT));
        let ran = ran.unwrap_or_else(|error| panic!("seed {seed}: {error}\n{text}"));
        let registers: Vec<Registers> = to_words(&ran.buffers[1]).as_chunks::<4>().0.to_vec();
        let places = to_words(&ran.buffers[0]);
        for (index, roles) in registers.chunks(roles.len()).enumerate() {
            let places = [0, 128, 256].map(|at| places[(index * ROUND_BYTES + at) / 4]);
            found += usize::from(outcome(&Round { roles, places }));
        }
    }
    found
}

fn to_words(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

#[track_caller]
fn allowed(place: Roles, roles: &[&str], outcome: impl Fn(&Round<'_>) -> bool) {
    assert!(count(place, roles, outcome) > 0, "never seen: {roles:?}");
}

#[track_caller]
fn forbidden(place: Roles, roles: &[&str], outcome: impl Fn(&Round<'_>) -> bool) {
    assert_eq!(count(place, roles, outcome), 0, "seen: {roles:?}");
}

#[track_caller]
fn check(allow: bool, place: Roles, roles: &[String], outcome: impl Fn(&Round<'_>) -> bool) {
    let roles: Vec<&str> = roles.iter().map(String::as_str).collect();
    if allow { allowed(place, &roles, outcome) } else { forbidden(place, &roles, outcome) }
}

/// Two roles that do the same with `x` and `y` in each other's place.
fn mirrored(code: &str) -> [String; 2] {
    [code.to_owned(), code.replace("[x]", "[q]").replace("[y]", "[x]").replace("[q]", "[y]")]
}

/// The message is read before what it is about.
fn stale(round: &Round<'_>) -> bool {
    round.roles[1][0] == 1 && round.roles[1][1] == 0
}

/// `[producer, consumer]` with these between their two accesses, and the message by these
/// instructions.
fn message(produce: &str, fence: [&str; 2], consume: &str) -> [String; 2] {
    let [after_data, after_message] = fence;
    [
        format!("st.global.u32 [x], 1;\n\t{after_data}\n\t{produce}.u32 [y], 1;"),
        format!("{consume}.u32 %a, [y];\n\t{after_message}\n\tld.global.u32 %b, [x];"),
    ]
}

const RELAXED: (&str, &str) = ("st.relaxed.gpu.global", "ld.relaxed.gpu.global");
const VOLATILE: (&str, &str) = ("st.volatile.global", "ld.volatile.global");
const WEAK: (&str, &str) = ("st.global", "ld.global");

#[test]
fn messages_between_ctas() {
    let check = |allow: bool, (produce, consume): (&str, &str), fences: [&str; 2]| {
        check(allow, Roles::Ctas, &message(produce, fences, consume), stale);
    };
    for access in [RELAXED, VOLATILE, WEAK] {
        check(true, access, ["", ""]);
    }
    check(true, RELAXED, ["membar.gl;", ""]);
    check(true, RELAXED, ["", "membar.gl;"]);
    // Too narrow.
    check(true, RELAXED, ["fence.acq_rel.cta;", "fence.acq_rel.cta;"]);
    check(true, RELAXED, ["fence.sc.cta;", "fence.sc.cta;"]);
    check(true, ("st.release.cta.global", "ld.acquire.cta.global"), ["", ""]);
    check(false, RELAXED, ["membar.gl;", "membar.gl;"]);
    check(false, RELAXED, ["fence.acq_rel.gpu;", "fence.acq_rel.gpu;"]);
    check(false, RELAXED, ["fence.sc.sys;", "fence.acq_rel.gpu;"]);
    check(false, VOLATILE, ["membar.sys;", "membar.gl;"]);
    check(false, ("st.release.gpu.global", "ld.acquire.gpu.global"), ["", ""]);
    check(false, ("st.release.gpu.global", "ld.relaxed.gpu.global"), ["", "fence.acq_rel.gpu;"]);
    check(false, ("st.relaxed.gpu.global", "ld.acquire.sys.global"), ["fence.acq_rel.sys;", ""]);
}

/// Strong accesses alone order nothing either.
#[test]
fn messages_of_strong_accesses_only() {
    let roles = |fences: [&str; 2]| {
        message(RELAXED.0, fences, RELAXED.1)
            .map(|role| role.replace(".global.u32 [x]", ".relaxed.gpu.global.u32 [x]"))
    };
    let strong = roles(["", ""])
        .map(|role| role.replace("ld.global.u32 %b", "ld.relaxed.gpu.global.u32 %b"));
    check(true, Roles::Ctas, &strong, stale);
    let fenced = roles(["fence.acq_rel.gpu;"; 2])
        .map(|role| role.replace("ld.global.u32 %b", "ld.relaxed.gpu.global.u32 %b"));
    check(false, Roles::Ctas, &fenced, stale);
}

#[test]
fn messages_by_atomics() {
    let check = |allow: bool, produce: &str, consume: &str| {
        let producer = format!("st.global.u32 [x], 1;\n\t{produce} [y], 1;");
        let consumer = format!("{consume} %a, [y], 0;\n\tld.global.u32 %b, [x];");
        check(allow, Roles::Ctas, &[producer, consumer], stale);
    };
    check(true, "red.global.add.u32", "atom.global.or.b32");
    check(true, "red.release.gpu.global.add.u32", "atom.relaxed.gpu.global.or.b32");
    check(true, "red.relaxed.gpu.global.add.u32", "atom.acquire.gpu.global.or.b32");
    check(false, "red.release.gpu.global.add.u32", "atom.acquire.gpu.global.or.b32");
    check(false, "red.release.gpu.global.add.u32", "atom.acq_rel.sys.global.or.b32");
}

#[test]
fn messages_inside_a_cta() {
    let check = |allow: bool, (produce, consume): (&str, &str), fences: [&str; 2]| {
        check(allow, Roles::Warps, &message(produce, fences, consume), stale);
    };
    let relaxed = ("st.relaxed.cta.global", "ld.relaxed.cta.global");
    check(true, relaxed, ["", ""]);
    check(false, relaxed, ["fence.acq_rel.cta;", "fence.acq_rel.cta;"]);
    check(false, relaxed, ["membar.cta;", "membar.cta;"]);
    check(false, ("st.release.cta.global", "ld.acquire.cta.global"), ["", ""]);
    check(false, ("st.release.gpu.global", "ld.acquire.gpu.global"), ["", ""]);
}

/// A flag in shared memory tells of global memory, and a barrier does.
#[test]
fn messages_by_shared_memory_and_barriers() {
    let told = |release: &str, acquire: &str| {
        [
            format!("st.global.u32 [x], %r1;\n\tst{release}.shared.u32 [flag], %r1;"),
            format!(
                "ld{acquire}.shared.u32 %r4, [flag];\n\tld.global.u32 %r5, [x];\n\tsub.u32 %r4, \
                 %r4, %r1;\n\t\
                 sub.u32 %r5, %r5, %r1;\n\tsetp.eq.u32 %p4, %r4, 0;\n\tsetp.ne.and.u32 %p4, %r5, \
                 0, %p4;\n\t\
                 selp.u32 %a, 1, 0, %p4;"
            ),
        ]
    };
    let missed = |round: &Round<'_>| round.roles[1][0] == 1;
    check(true, Roles::Warps, &told(".relaxed.cta", ".relaxed.cta"), missed);
    check(false, Roles::Warps, &told(".release.cta", ".acquire.cta"), missed);
    let met = |barrier: &str| {
        [
            format!("st.global.u32 [x], 1;\n\t{barrier}"),
            format!("{barrier}\n\tmov.u32 %a, 1;\n\tld.global.u32 %b, [x];"),
        ]
    };
    check(true, Roles::Warps, &met(""), stale);
    check(false, Roles::Warps, &met("barrier.sync 1;"), stale);
}

#[test]
fn store_buffering() {
    let neither = |round: &Round<'_>| round.roles[0][0] == 0 && round.roles[1][0] == 0;
    let check = |allow: bool, (store, load): (&str, &str), fence: &str| {
        let roles = mirrored(&format!("{store}.u32 [x], 1;\n\t{fence}\n\t{load}.u32 %a, [y];"));
        check(allow, Roles::Ctas, &roles, neither);
    };
    check(true, WEAK, "");
    check(true, RELAXED, "");
    check(true, VOLATILE, "");
    check(true, ("st.release.gpu.global", "ld.acquire.gpu.global"), "");
    check(true, RELAXED, "fence.acq_rel.gpu;");
    check(true, RELAXED, "fence.sc.cta;");
    check(false, RELAXED, "fence.sc.gpu;");
    check(false, VOLATILE, "membar.gl;");
    check(false, WEAK, "fence.sc.sys;");
}

/// An addition does not wait, and a load behind it may look back all the same.
#[test]
fn store_buffering_by_atomics() {
    let neither = |round: &Round<'_>| round.roles[0][0] == 0 && round.roles[1][0] == 0;
    let check = |allow: bool, fence: &str| {
        let roles = mirrored(&format!(
            "red.global.add.u32 [x], 1;\n\t{fence}\n\tld.volatile.global.u32 %a, [y];"
        ));
        check(allow, Roles::Ctas, &roles, neither);
    };
    check(true, "");
    check(false, "membar.gl;");
}

/// PTX permits it without dependencies; here no load is later than its place, so only what is
/// forbidden is checked.
#[test]
fn no_value_out_of_thin_air() {
    let thin = |round: &Round<'_>| round.roles[0][0] == 1 || round.roles[1][0] == 1;
    let code = "ld.relaxed.gpu.global.u32 %a, [x];\n\tst.relaxed.gpu.global.u32 [y], %a;";
    check(false, Roles::Ctas, &mirrored(code), thin);
    let fenced = "ld.relaxed.gpu.global.u32 %a, \
        [x];\n\tfence.acq_rel.gpu;\n\tst.relaxed.gpu.global.u32 [y], 1;";
    let both = |round: &Round<'_>| round.roles[0][0] == 1 && round.roles[1][0] == 1;
    check(false, Roles::Ctas, &mirrored(fenced), both);
}

#[test]
fn two_places_written_in_opposite_order() {
    let firsts_win = |round: &Round<'_>| round.places[..2] == [1, 1];
    let check = |allow: bool, store: &str, fence: &str| {
        let roles = mirrored(&format!("{store}.u32 [x], 1;\n\t{fence}\n\t{store}.u32 [y], 2;"));
        check(allow, Roles::Ctas, &roles, firsts_win);
    };
    check(true, WEAK.0, "");
    check(true, RELAXED.0, "");
    check(false, RELAXED.0, "fence.sc.gpu;");
    check(false, RELAXED.0, "membar.gl;");
}

/// `R` of the litmus literature: a write is beaten, and its writer has not seen the other place.
#[test]
fn a_write_and_a_read_against_two_writes() {
    let check = |allow: bool, (store, load): (&str, &str), fence: &str| {
        let roles = [
            format!("{store}.u32 [x], 1;\n\t{fence}\n\t{store}.u32 [y], 1;"),
            format!("{store}.u32 [y], 2;\n\t{fence}\n\t{load}.u32 %a, [x];"),
        ];
        check(allow, Roles::Ctas, &roles, |round| round.places[1] == 2 && round.roles[1][0] == 0);
    };
    check(true, RELAXED, "");
    check(false, RELAXED, "fence.sc.gpu;");
}

#[test]
fn one_place_is_coherent() {
    let backwards =
        |round: &Round<'_>| round.roles[1][0] > round.roles[1][1] || round.places[0] != 2;
    for load in [RELAXED.1, VOLATILE.1, WEAK.1] {
        for store in [RELAXED.0, WEAK.0] {
            let writer = format!("{store}.u32 [x], 1;\n\t{store}.u32 [x], 2;");
            let reader = format!("{load}.u32 %a, [x];\n\t{load}.u32 %b, [x];");
            for place in [Roles::Ctas, Roles::Warps] {
                forbidden(place, &[&writer, &reader], backwards);
            }
        }
    }
    // What two readers see of two writers has one order.
    let writers = [1, 2].map(|value| format!("st.relaxed.gpu.global.u32 [x], {value};"));
    let reader =
        "ld.relaxed.gpu.global.u32 %a, [x];\n\tld.relaxed.gpu.global.u32 %b, [x];".to_owned();
    let [first, second] = writers;
    check(false, Roles::Ctas, &[first, second, reader.clone(), reader], |round| {
        round.roles[2][..2] == [1, 2] && round.roles[3][..2] == [2, 1]
    });
    // One's own store is seen, and one's own atomic.
    let own = "st.global.u32 [x], 1;\n\tld.global.u32 %a, [x];\n\tatom.global.add.u32 %b, [x], \
        1;\n\tld.global.u32 %c, [x];";
    let wrong = |round: &Round<'_>| round.roles[0][..3] != [1, 1, 2];
    forbidden(Roles::Ctas, &[own, "ld.global.u32 %a, [x];"], wrong);
}

/// No addition is lost, whatever waits around it.
#[test]
fn atomics_are_atomic() {
    let add = "st.global.u32 [y], 1;\n\tatom.relaxed.gpu.global.add.u32 %a, [x], \
        1;\n\tred.release.gpu.global.add.u32 [x], 1;";
    let lost = |round: &Round<'_>| round.places != [6, 1, 0];
    for place in [Roles::Ctas, Roles::Warps] {
        forbidden(place, &[add, add, add], lost);
    }
}

#[test]
fn independent_reads_of_independent_writes() {
    let apart = |round: &Round<'_>| round.roles[2][..2] == [1, 0] && round.roles[3][..2] == [1, 0];
    let check = |allow: bool, (store, load): (&str, &str), fence: &str, nanos: u32| {
        let roles = [
            format!("{store}.u32 [x], 1;"),
            format!("{store}.u32 [y], 1;"),
            format!(
                "nanosleep.u32 {nanos};\n\t{load}.u32 %a, [x];\n\t{fence}\n\t{load}.u32 %b, [y];"
            ),
            format!(
                "nanosleep.u32 {nanos};\n\t{load}.u32 %a, [y];\n\t{fence}\n\t{load}.u32 %b, [x];"
            ),
        ];
        check(allow, Roles::Ctas, &roles, apart);
    };
    check(true, WEAK, "", 20_000);
    check(true, RELAXED, "", 2000);
    check(false, RELAXED, "fence.sc.gpu;", 2000);
}

/// The second role passes on what it has seen; the third must see what the first did before.
#[test]
fn causality_reaches_further() {
    let check = |allow: bool, by: &str, second: &str| {
        let roles = [
            format!("st.global.u32 [x], 1;\n\tst.{by}.gpu.global.u32 [y], 1;"),
            format!("{second}\n\tst.release.gpu.global.u32 [z], %a;"),
            "ld.acquire.gpu.global.u32 %a, [z];\n\tld.global.u32 %b, [x];".to_owned(),
        ];
        let broken = |round: &Round<'_>| round.roles[2][..2] == [1, 0];
        check(allow, Roles::Ctas, &roles, broken);
    };
    check(true, "relaxed", "ld.acquire.gpu.global.u32 %a, [y];");
    check(false, "release", "ld.acquire.gpu.global.u32 %a, [y];");
    check(false, "release", "ld.relaxed.gpu.global.u32 %a, [y];\n\tfence.acq_rel.gpu;");
}

const SPIN: &str = include_str!("ptx/spin.ptx");
const SHARE: &str = include_str!("ptx/share.ptx");

fn words(job: &Run) -> Vec<u32> {
    let ran = prepare(job).and_then(|prepared| prepared.run_within(LIMIT));
    let ran = ran.unwrap_or_else(|error| panic!("{} {:?}: {error}", job.kernel, job.options));
    to_words(&ran.buffers[0])
}

fn job(ptx: &str, kernel: &str, [grid, block, words]: [u32; 3], seed: u64) -> Run {
    let timing = if seed.is_multiple_of(2) { Timing::On } else { Timing::Off };
    Run {
        ptx: ptx.into(),
        kernel: kernel.to_owned(),
        grid: Dim3::linear(grid),
        block: Dim3::linear(block),
        dynamic_shared: 0,
        arguments: vec![Argument::Buffer(vec![0; 4 * words as usize])],
        form: Form::Original,
        spec: Spec::named("cd-search-24").unwrap(),
        options: Options { seed, timing, memory: MemoryOrder::Weak, ..Options::default() },
    }
}

/// A volatile flag arrives without any fence. What it announces needs one in the reader, too.
#[test]
fn a_volatile_flag_arrives_and_its_message_may_not() {
    let mut values = Vec::new();
    for seed in 0..24 {
        values.push(words(&job(SPIN, "producer_consumer", [2, 32, 3], seed))[2]);
    }
    assert!(values.contains(&0) && values.contains(&42), "{values:?}");
}

#[test]
fn a_lock_that_acquires_and_releases_protects() {
    for seed in 0..8 {
        assert_eq!(words(&job(SPIN, "locked_count", [4, 64, 3], seed)), [0, 256, 0], "seed {seed}");
    }
}

/// A fence of one thread behind a barrier carries what its CTA has stored; without it the last CTA
/// adds up stale sums.
#[test]
fn one_fence_behind_a_barrier_is_enough_and_none_is_not() {
    let mut wrong = 0;
    let unfenced = SHARE.replace("membar.gl;", "");
    for seed in 0..16 {
        let sum = words(&job(SHARE, "share", [20, 64, 2000], seed))[0];
        assert_eq!(sum, 20 * 64 * 63 / 2, "seed {seed}");
        wrong += u32::from(words(&job(&unfenced, "share", [20, 64, 2000], seed))[0] != sum);
    }
    assert!(wrong > 0, "the missing fence was never noticed");
}

#[test]
fn runs_repeat() {
    for seed in [4, 5] {
        let job = job(&SHARE.replace("membar.gl;", ""), "share", [20, 64, 2000], seed);
        assert_eq!(words(&job), words(&job));
    }
}
