//! Barriers of a CTA in every form: named, counted, arriving without waiting, voting (PTX ISA,
//! "bar", "barrier").
//!
//! Warps reach a barrier at very different times, so a barrier that lets one through too early
//! shows what was in shared memory before.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up fails")]
#![expect(clippy::cast_possible_truncation, reason = "there are few threads")]

use partita_emu::direct::{Argument, DirectError, Form, Run, run};
use partita_emu::{Options, Spec, Timing};
use partita_model::Dim3;

const THREADS: u32 = 128;

/// A kernel of one CTA: `%t` the thread, `%w` its warp, `%mine` its word in shared memory, %x1 its
/// word of the result; `late` makes the lower warps late.
fn kernel(body: &str) -> String {
    let late = "mov.u32 %n, %w;\nsub.u32 %n, 4, %n;\nmul.lo.u32 %n, %n, 100;\n$late:\nsub.u32 %n, \
        %n, 1;\n\
                setp.ne.u32 %p0, %n, 0;\n@%p0 bra $late;\n";
    let body = body.replace("LATE", late);
    format!(
        ".version 8.6\n.target sm_90\n.address_size 64\n.visible .entry test(.param .u64 out)\n{{\n\
         .reg .pred %p<8>; .reg .b32 %r<16>, %t, %w, %n, %mine; .reg .b64 %x<4>;\n\
         .shared .align 8 .b8 words[1024];\n\
         ld.param.u64 %x0, [out]; mov.u32 %t, %tid.x; shr.u32 %w, %t, 5; mul.wide.u32 %x1, %t, 4;\n\
         add.u64 %x1, %x0, %x1; mov.u32 %r0, words; mad.lo.u32 %mine, %t, 4, \
         %r0;\n{body}\nret;\n}}\n"
    )
}

/// What `contain` makes of a text, and the bytes of hidden shared memory of its kernel.
fn contained(written: &str) -> (String, u32) {
    let contained = partita_ptx::contain(&partita_ptx::parse(written).unwrap());
    (partita_ptx::print(&contained.module), contained.reports[0].hidden_shared)
}

/// Checks the kernel as it is written, and with what `contain` makes of its barriers.
fn check(body: &str, wanted: impl Fn(u32) -> u32) {
    check_text(&kernel(body), wanted);
}

fn check_text(written: &str, wanted: impl Fn(u32) -> u32) {
    check_run((written, 0), &wanted);
    let (text, hidden) = contained(written);
    check_run((&text, hidden), &wanted);
}

fn check_run((ptx, hidden): (&str, u32), wanted: &impl Fn(u32) -> u32) {
    for timing in [Timing::On, Timing::Off] {
        for form in [Form::Original, Form::Worker { task: 1 }, Form::Ticket] {
            let job = Run {
                ptx: ptx.into(),
                kernel: "test".to_owned(),
                grid: Dim3::linear(1),
                block: Dim3::linear(THREADS),
                dynamic_shared: hidden,
                arguments: vec![Argument::Buffer(vec![0; 4 * THREADS as usize])],
                form,
                spec: Spec::named("cd-search-24").unwrap(),
                options: Options { timing, seed: 1, ..Options::default() },
            };
            let ran = match run(&job) {
                Ok(ran) => ran,
                // Not every kernel has one.
                Err(DirectError::NoForm { .. }) if form != Form::Original => continue,
                Err(error) => panic!("{timing:?} {form:?}: {error}\n{ptx}"),
            };
            let found: Vec<u32> = ran.buffers[0]
                .as_chunks::<4>()
                .0
                .iter()
                .map(|word| u32::from_le_bytes(*word))
                .collect();
            let wanted: Vec<u32> = (0..THREADS).map(wanted).collect();
            assert_eq!(found, wanted, "{timing:?} {form:?}\n{ptx}");
        }
    }
}

/// Each thread writes its word, waits, and reads the word of the opposite thread.
fn exchange(wait: &str, from: &str) -> String {
    format!(
        "LATE st.shared.u32 [%mine], %t;\n{wait}\nxor.b32 %r1, %t, {from};\nmov.u32 %r2, words;\n\
         mad.lo.u32 %r2, %r1, 4, %r2;\nld.shared.u32 %r3, [%r2];\nst.global.u32 [%x1], %r3;"
    )
}

#[test]
fn all_threads_wait() {
    for wait in [
        "bar.sync 0;",
        "bar.cta.sync 3;",
        "barrier.sync 0;",
        "barrier.sync.aligned 15;",
        "barrier.cta.sync 1;",
        "barrier.cta.sync.aligned 2;",
        "bar.sync 4, 128;",
        "barrier.sync 5, 128;",
        "mov.u32 %r4, 6;\nbar.sync %r4;",
        "mov.u32 %r4, 7; mov.u32 %r5, 128;\nbarrier.sync %r4, %r5;",
        "mov.u32 %r4, 8;\nbar.sync %r4, 128;",
        "bar.red.popc.u32 %r6, 9, 0;",
    ] {
        // The last spelling needs a predicate.
        let wait = wait.replace("9, 0;", "9, %p1;");
        check(&exchange(&format!("setp.eq.u32 %p1, %t, 0;\n{wait}"), "127"), |thread| thread ^ 127);
    }
}

#[test]
fn pairs_of_warps_wait_for_one_another() {
    for wait in [
        // A barrier for each pair, by a number in a register.
        "shr.u32 %r4, %w, 1;\nadd.u32 %r4, %r4, 1;\nbar.sync %r4, 64;",
        "shr.u32 %r4, %w, 1;\nadd.u32 %r4, %r4, 1;\nmov.u32 %r5, 64;\nbarrier.sync %r4, %r5;",
        // The same by a branch.
        "setp.lt.u32 %p1, %w, 2;\n@%p1 bar.sync 1, 64;\n@!%p1 bar.sync 2, 64;",
        "setp.lt.u32 %p1, %w, 2;\n@!%p1 bra $high;\nbarrier.sync 1, 64;\nbra \
         $meet;\n$high:\nbarrier.sync 2, 64;\n$meet:",
    ] {
        check(&exchange(wait, "32"), |thread| thread ^ 32);
    }
}

#[test]
fn some_arrive_and_others_wait() {
    for (arrive, wait) in [
        ("bar.arrive 1, 128;", "bar.sync 1, 128;"),
        ("barrier.arrive 1, 128;", "barrier.sync 1, 128;"),
        ("barrier.arrive.aligned 1, 128;", "barrier.sync.aligned 1, 128;"),
        ("barrier.cta.arrive 1, 128;", "barrier.cta.sync 1, 128;"),
    ] {
        // The first two warps produce late and go on; the others wait and read.
        let body = format!(
            "setp.ge.u32 %p1, %w, 2;\n@%p1 bra $consume;\nLATE st.shared.u32 [%mine], \
             %t;\n{arrive}\n\
             st.global.u32 [%x1], 1000;\nbra $end;\n$consume:\n{wait}\nld.shared.u32 %r3, \
             [%mine+-256];\n\
             st.global.u32 [%x1], %r3;\n$end:"
        );
        check(&body, |thread| if thread < 64 { 1000 } else { thread - 64 });
    }
}

#[test]
fn threads_vote() {
    for base in ["bar", "bar.cta", "barrier", "barrier.cta"] {
        for aligned in ["", ".aligned"] {
            if base.starts_with("bar.") && !aligned.is_empty()
                || base == "bar" && !aligned.is_empty()
            {
                continue;
            }
            for (count, not) in [("", ""), (", 128", ""), ("", "!"), (", 128", "!")] {
                for limit in [0_u32, 1, 37, 127, 128] {
                    let holds = |thread: u32| (thread < limit) == not.is_empty();
                    let yes = (0..THREADS).filter(|&thread| holds(thread)).count() as u32;
                    let vote = format!("LATE setp.lt.u32 %p1, %t, {limit};\n");
                    let popc = format!(
                        "{vote}{base}.red.popc{aligned}.u32 %r3, 1{count}, \
                         {not}%p1;\nst.global.u32 [%x1], %r3;"
                    );
                    check(&popc, |_| yes);
                    for (mode, all) in [("and", yes == THREADS), ("or", yes > 0)] {
                        let text = format!(
                            "{vote}{base}.red.{mode}{aligned}.pred %p2, 1{count}, \
                             {not}%p1;\nselp.u32 %r3, 1, 0, %p2;\n\
                             st.global.u32 [%x1], %r3;"
                        );
                        check(&text, |_| u32::from(all));
                    }
                }
            }
        }
    }
}

#[test]
fn a_barrier_serves_again_and_the_exited_are_not_awaited() {
    // Rounds on one barrier: each thread adds what its neighbour had in the round before.
    let body = "mov.u32 %r4, 0;\nst.shared.u32 [%mine], %t;\n$round:\nbar.sync 0;\nadd.u32 %r1, \
        %t, 1;\n\
                and.b32 %r1, %r1, 127;\nmov.u32 %r2, words;\nmad.lo.u32 %r2, %r1, 4, \
                %r2;\nld.shared.u32 %r3, [%r2];\n\
                bar.sync 0;\nst.shared.u32 [%mine], %r3;\nadd.u32 %r4, %r4, 1;\nsetp.lt.u32 %p1, \
                %r4, 10;\n\
                @%p1 bra $round;\nst.global.u32 [%x1], %r3;";
    check(body, |thread| (thread + 10) % THREADS);
    // The last warp leaves at once.
    let body = "setp.eq.u32 %p1, %w, 3;\n@%p1 exit;\nLATE st.shared.u32 [%mine], \
        %t;\nbarrier.sync 0;\n\
                sub.u32 %r1, 95, %t;\nmov.u32 %r2, words;\nmad.lo.u32 %r2, %r1, 4, \
                %r2;\nld.shared.u32 %r3, [%r2];\n\
                st.global.u32 [%x1], %r3;";
    check(body, |thread| if thread < 96 { 95 - thread } else { 0 });
}

/// `contain` adds up the votes itself where threads could wait for each other at two reductions.
#[test]
fn votes_of_several_barriers_in_rounds() {
    // The last warp leaves before the sixth round.
    let body = [
        "mov.u32 %r4, 0;\nmov.u32 %r5, 0;\n$round:",
        "setp.ge.u32 %p1, %r4, 5;\nsetp.eq.and.u32 %p1, %w, 3, %p1;\n@%p1 exit;",
        "LATE mul.lo.u32 %r6, %r4, 13;\nsetp.lt.u32 %p1, %t, %r6;",
        "bar.red.popc.u32 %r7, 0, %p1;\nadd.u32 %r5, %r5, %r7;",
        "setp.eq.u32 %p1, %t, %r4;\nmov.u32 %r8, 1;",
        "bar.red.or.pred %p2, %r8, %p1;\n@%p2 add.u32 %r5, %r5, 1;",
        "sub.u32 %r6, 128, %r4;\nsetp.ge.u32 %p1, %t, %r6;",
        "barrier.red.and.aligned.pred %p3, 2, !%p1;\n@%p3 add.u32 %r5, %r5, 1;",
        "add.u32 %r4, %r4, 1;\nsetp.lt.u32 %p1, %r4, 10;\n@%p1 bra $round;",
        "st.global.u32 [%x1], %r5;",
    ]
    .join("\n");
    let counted: u32 = (0..10).map(|k| (13 * k).min(if k < 5 { 128 } else { 96 })).sum();
    check(&body, |thread| if thread < 96 { counted + 10 + 6 } else { 0 });
    assert!(!contained(&kernel(&body)).0.contains(".red.and"));
}

/// Barriers without a count at which threads could wait for each other: `contain` makes loops of
/// them.
#[test]
fn several_barriers_without_a_count_await_whoever_has_not_exited() {
    // Rounds on two barriers in turns.
    let body = "mov.u32 %r4, 0;\nst.shared.u32 [%mine], %t;\n$round:\nbar.sync 0;\nadd.u32 %r1, \
        %t, 1;\n\
                and.b32 %r1, %r1, 127;\nmov.u32 %r2, words;\nmad.lo.u32 %r2, %r1, 4, \
                %r2;\nld.shared.u32 %r3, [%r2];\n\
                bar.sync 1;\nst.shared.u32 [%mine], %r3;\nadd.u32 %r4, %r4, 1;\nsetp.lt.u32 %p1, \
                %r4, 10;\n\
                @%p1 bra $round;\nst.global.u32 [%x1], %r3;";
    check(body, |thread| (thread + 10) % THREADS);
    // One warp and half of another one leave at once, or when the other threads wait.
    for late in ["", "LATE"] {
        let body = format!(
            "setp.ge.u32 %p1, %t, 80;\n@!%p1 bra $stay;\n{}exit;\n$stay:\nst.shared.u32 [%mine], \
             %t;\nbar.sync 0;\nsub.u32 %r1, 79, %t;\nmov.u32 %r2, words;\nmad.lo.u32 %r2, %r1, 4, \
             %r2;\nld.shared.u32 %r3, [%r2];\nbar.sync 1;\nst.shared.u32 [%mine], %r3;\nbar.sync \
             0;\nld.shared.u32 %r3, [%r2];\nst.global.u32 [%x1], %r3;",
            late
        );
        check(&body, |thread| if thread < 80 { thread } else { 0 });
    }
}

/// Pairs of warps vote at barriers of their own, in rounds and at different times: `contain` adds
/// up their votes.
#[test]
fn pairs_of_warps_vote() {
    for vote in [
        "bar.red.popc.u32 %r7, %r4, 64, %p1;",
        "barrier.red.popc.aligned.u32 %r7, %r4, 64, %p1;",
        "barrier.red.popc.u32 %r7, %r4, 64, %p1;",
        "bar.red.and.pred %p2, %r4, 64, %p1;\nselp.u32 %r7, 64, 0, %p2;",
        "barrier.red.or.pred %p2, %r4, 64, !%p1;\nselp.u32 %r7, 0, 64, %p2;",
    ] {
        // In round k of its pair a thread votes yes if its number in the pair is below 7 k.
        let body = format!(
            "shr.u32 %r4, %w, 1;\nadd.u32 %r4, %r4, 1;\nand.b32 %r8, %t, 63;\nmov.u32 %r5, \
             0;\nmov.u32 %r6, 0;\n$round:\nLATE mul.lo.u32 %r9, %r6, 7;\nadd.u32 %r9, %r9, \
             %r4;\nsetp.lt.u32 %p1, %r8, %r9;\n{vote}\nadd.u32 %r5, %r5, %r7;\nadd.u32 %r6, \
             %r6, 1;\nsetp.lt.u32 %p3, %r6, 12;\n@%p3 bra $round;\nst.global.u32 [%x1], %r5;"
        );
        check(&body, |thread| {
            let pair = thread / 64 + 1;
            let yes = (0..12).map(|round| (7 * round + pair).min(64));
            if vote.contains("popc") { yes.sum() } else { yes.filter(|yes| *yes == 64).sum() }
        });
    }
}

/// Barriers in a function, for which its kernel clears the words.
#[test]
fn a_function_has_barriers() {
    let function = ".func meet(.reg .b32 %of, .reg .b32 %at)\n{\nbar.sync %at, 64;\nbarrier.sync \
        %at, 64;\nret;\n}\n.visible .entry test";
    let body = exchange("shr.u32 %r4, %w, 1;\ncall meet, (%w, %r4);", "32");
    let written = kernel(&body).replace(".visible .entry test", function);
    check_text(&written, |thread| thread ^ 32);
}

/// Some threads exit in a function. The other threads do not wait for them.
#[test]
fn threads_exit_in_a_function() {
    let function = ".func leave(.reg .b32 %of, .reg .b32 %from)\n{\n.reg .pred %go;\nsetp.ge.u32 \
        %go, %of, %from;\n@%go exit;\nsetp.eq.u32 %go, %of, 7;\n@%go bra \
        $out;\nret;\n$out:\nexit;\n}\n.visible .entry test";
    let body = "call leave, (%t, 80);\nst.shared.u32 [%mine], %t;\nbar.sync 0;\nbarrier.sync \
        1;\nmov.u32 %r2, words;\nsub.u32 %r1, 79, %t;\nmad.lo.u32 %r2, %r1, 4, %r2;\nld.shared.u32 \
        %r3, [%r2];\nsetp.eq.u32 %p4, %r1, 7;\n@%p4 mov.u32 %r3, 7;\nbar.red.popc.u32 %r4, 2, \
        %p4;\nadd.u32 %r3, %r3, %r4;\nst.global.u32 [%x1], %r3;";
    let written = kernel(body).replace(".visible .entry test", function);
    check_text(&written, |thread| if thread < 80 && thread != 7 { 80 - thread } else { 0 });
}

/// A constant may be the vote.
#[test]
fn constants_are_votes() {
    for (vote, yes) in [("1", THREADS), ("0", 0), ("1U", THREADS)] {
        for wait in ["bar.red.popc.u32", "barrier.red.popc.u32"] {
            let body = format!("{wait} %r3, 2, 128, {vote};\nst.global.u32 [%x1], %r3;");
            check(&body, |_| yes);
        }
    }
}

/// Threads of a warp come to a barrier at different times and from different places, and some
/// leave without coming.
#[test]
fn threads_of_a_warp_come_apart() {
    // Odd threads are late, and come from elsewhere; every third one has left.
    let places = "rem.u32 %r1, %t, 3;\nsetp.eq.u32 %p1, %r1, 0;\n@%p1 exit;\nst.shared.u32 \
        [%mine], %t;\nand.b32 %r1, %t, 1;\nsetp.eq.u32 %p2, %r1, 1;\n@%p2 bra $odd;\nFIRST\nbra \
        $met;\n$odd:\nLATE SECOND\n$met:\nxor.b32 %r1, %t, 64;\nmov.u32 %r2, \
        words;\nmad.lo.u32 %r2, %r1, 4, %r2;\nld.shared.u32 %r3, [%r2];\nxor.b32 %r1, %t, \
        64;\nrem.u32 %r1, %r1, 3;\nsetp.ne.u32 %p4, %r1, 0;\n@%p4 st.global.u32 [%x1], %r3;";
    // A thread whose opposite has left has nothing to read.
    let wanted = |thread: u32| match thread % 3 {
        0 => None,
        _ if (thread ^ 64).is_multiple_of(3) => None,
        _ => Some(thread ^ 64),
    };
    for wait in ["barrier.sync 3;", "barrier.sync 3, 128;", "barrier.red.popc.u32 %r5, 3, %p2;"] {
        let body = places.replace("FIRST", wait).replace("SECOND", wait);
        // Another barrier, so that `contain` polls those without a count.
        let body = format!("barrier.sync 1;\n{body}");
        check(&body, |thread| wanted(thread).unwrap_or(0));
        assert!(!contained(&kernel(&body)).0.contains(wait));
    }
}
