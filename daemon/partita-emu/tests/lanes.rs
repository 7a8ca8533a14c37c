//! Lanes of a warp that come apart to an instruction that waits for them, as it is written and with
//! the loops that `contain` adds: the results are the same.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use partita_emu::direct::{Argument, DirectError, Form, Run, run};
use partita_emu::{Options, Spec, Timing};
use partita_model::Dim3;

/// A kernel: `%t` the thread, `%lane` its lane, `%n` how often it is to go round, 0 to 7 times,
/// `%v` what it stores in the end.
fn kernel(body: &str) -> String {
    format!(
        ".version 8.6\n.target sm_90\n.address_size 64\n.visible .entry test(.param .u64 out)\n{{\n\
         .reg .pred %p<8>; .reg .b32 %r<16>, %t, %n, %v, %lane, %mask; .reg .b64 %x<4>;\n\
         ld.param.u64 %x0, [out]; mov.u32 %t, %tid.x; mul.wide.u32 %x1, %t, 4;\n\
         add.u64 %x1, %x0, %x1; mov.u32 %lane, %laneid; mov.u32 %v, %t; \
         mul.lo.u32 %n, %t, 0x9e3779b1; shr.u32 %n, %n, 29;\n{body}\n\
         st.global.u32 [%x1], %v;\nEND:\nret;\n}}\n"
    )
}

/// What `contain` makes of a text, and the bytes of hidden shared memory of its kernel.
fn contained(written: &str) -> (String, u32) {
    let contained = partita_ptx::contain(&partita_ptx::parse(written).unwrap());
    let text = partita_ptx::print(&contained.module);
    assert!(text.contains("pw_lanes"), "{text}");
    (text, contained.reports[0].hidden_shared)
}

/// A launch of the kernel `test` of a text, with its bytes of dynamic shared memory.
fn job((ptx, dynamic_shared): (&str, u32), threads: u32, timing: Timing, form: Form) -> Run {
    Run {
        ptx: ptx.into(),
        kernel: "test".to_owned(),
        grid: Dim3::linear(3),
        block: Dim3::linear(threads),
        dynamic_shared,
        arguments: vec![Argument::Buffer(vec![0; 4 * threads as usize])],
        form,
        spec: Spec::named("cd-search-24").unwrap(),
        options: Options { timing, seed: 1, ..Options::default() },
    }
}

fn results(text: (&str, u32), threads: u32, timing: Timing, form: Form) -> Option<Vec<u8>> {
    match run(&job(text, threads, timing, form)) {
        Ok(ran) => Some(ran.buffers[0].to_vec()),
        // Not every kernel has one.
        Err(DirectError::NoForm { .. }) if form != Form::Original => None,
        Err(error) => panic!("{timing:?} {form:?}: {error}\n{}", text.0),
    }
}

/// Runs the kernel as it is written and contained, with whole warps and without.
fn check(body: &str) {
    let written = kernel(body);
    let (contained, hidden) = contained(&written);
    for threads in [96, 77, 1024] {
        let wanted = results((&written, 0), threads, Timing::Off, Form::Original).unwrap();
        assert!(wanted.iter().any(|byte| *byte != 0));
        for timing in [Timing::On, Timing::Off] {
            for form in [Form::Original, Form::Worker { task: 1 }, Form::Ticket] {
                let found = results((&contained, hidden), threads, timing, form);
                let is_same = found.is_none_or(|found| found == wanted);
                assert!(is_same, "{threads} {timing:?} {form:?}\n{contained}");
            }
        }
    }
}

/// Every lane goes round as often as it likes before it comes.
const LATE: &str = "mov.u32 %r1, 0;\nROUND:\nsetp.ge.u32 %p1, %r1, %n;\n@%p1 bra CAME;\n\
                    add.u32 %r1, %r1, 1;\nbra ROUND;\nCAME:\n";

#[test]
fn lanes_shuffle_in_one_of_two_branches() {
    check(
        "setp.lt.u32 %p1, %lane, 11;\n@%p1 bra LOW;\n\
         shfl.sync.idx.b32 %v, %t, 20, 0x1f, 0xfffff800;\nbra JOIN;\n\
         LOW:\nshfl.sync.down.b32 %v, %t, 3, 0x1f, 0x7ff;\nJOIN:\n\
         shfl.sync.bfly.b32 %r2, %v, 1, 0x1f, 0xffffffff;\nadd.u32 %v, %v, %r2;",
    );
}

#[test]
fn lanes_meet_at_different_barriers_of_the_warp() {
    check(
        "setp.lt.u32 %p1, %lane, 9;\n@%p1 bra LOW;\nbar.warp.sync 0xffffffff;\nadd.u32 %v, %v, 1;\n\
         bra JOIN;\nLOW:\nadd.u32 %v, %v, 2;\nbar.warp.sync 0xffffffff;\nJOIN:\n\
         redux.sync.add.s32 %v, %v, 0xffffffff;",
    );
}

#[test]
fn lanes_vote_in_each_round_while_they_have_rounds() {
    // Lanes vote on the mask of the next round before they part.
    check(
        "mov.u32 %r1, 0;\nmov.u32 %mask, 0xffffffff;\nROUND:\nsetp.lt.u32 %p1, %r1, %n;\n\
         vote.sync.ballot.b32 %mask, %p1, %mask;\n@!%p1 bra DONE;\n\
         match.any.sync.b32 %r2, %n, %mask;\npopc.b32 %r2, %r2;\nadd.u32 %v, %v, %r2;\n\
         add.u32 %r1, %r1, 1;\nbra ROUND;\nDONE:\n",
    );
}

#[test]
fn tiles_of_lanes_go_rounds_of_their_own() {
    // Tiles of four lanes, whose rounds are told by the tile; in each they sum up.
    check(
        "and.b32 %r3, %lane, 28;\nmov.u32 %mask, 15;\nshl.b32 %mask, %mask, %r3;\n\
         shfl.sync.idx.b32 %n, %n, 0, 0x1c1f, %mask;\nmov.u32 %r1, 0;\nROUND:\n\
         setp.ge.u32 %p1, %r1, %n;\n@%p1 bra DONE;\n\
         shfl.sync.bfly.b32 %r2, %v, 1, 0x1f, %mask;\nadd.u32 %v, %v, %r2;\n\
         bar.warp.sync %mask;\nshfl.sync.bfly.b32 %r2, %v, 2, 0x1f, %mask;\nadd.u32 %v, %v, %r2;\n\
         add.u32 %r1, %r1, 1;\nbra ROUND;\nDONE:\n",
    );
}

#[test]
fn nobody_waits_for_lanes_that_have_exited() {
    check(
        "setp.eq.u32 %p1, %n, 3;\nmul.lo.u32 %r2, %t, 3;\nst.global.u32 [%x1], %r2;\n@%p1 bra \
         END;\nsetp.lt.u32 %p2, %lane, 16;\n@%p2 bra LOW;\nbar.warp.sync 0xffff0000;\nLOW:\n\
         vote.sync.ballot.b32 %v, %p2, 0xffffffff;\npopc.b32 %v, %v;",
    );
}

#[test]
fn a_predicate_says_which_lanes_wait() {
    check(&format!(
        "{LATE}setp.lt.u32 %p1, %lane, 7;\n@%p1 shfl.sync.idx.b32 %v, %t, 5, 0x1f, 0x7f;\n@!%p1 \
         redux.sync.max.u32 %v, %t, 0xffffff80;\nadd.u32 %v, %v, %r1;"
    ));
}

#[test]
fn lanes_wait_in_a_function() {
    let body = "setp.lt.u32 %p1, %lane, 16;\n@%p1 bra LOW;\ncall (%v), sum, (%n, \
                0xffff0000);\nbra JOIN;\nLOW:\ncall (%v), sum, (%t, 0xffff);\nJOIN:\n";
    let function = ".func (.reg .b32 %s) sum(.reg .b32 %a, .reg .b32 %m)\n{\n\
                    .reg .b32 %r<4>;\nshfl.sync.bfly.b32 %r1, %a, 4, 0x1f, %m;\n\
                    add.u32 %s, %r1, %a;\nret;\n}\n.visible .entry test";
    let text = kernel(body).replacen(".visible .entry test", function, 1);
    let [written, contained] = [(text.clone(), 0), contained(&text)]
        .map(|(text, hidden)| results((&text, hidden), 96, Timing::On, Form::Original).unwrap());
    assert_eq!(written, contained);
}

/// The words of the lanes lie behind what the launch asked for: a program fills all of its shared
/// memory, static and dynamic, finds the sizes that it asked for, and does not reach the words.
#[test]
fn words_lie_behind_the_shared_memory_of_the_program() {
    const DYNAMIC: u32 = 300;
    // Threads fill what comes from `all` on, up to `past` bytes behind the dynamic memory.
    let body = |past: u32| {
        let fill = "FILL: st.shared.u32 [%r4], %r4; add.u32 %r4, %r4, 384; setp.lt.u32 %p2, %r4, \
                    %r3; @%p2 bra FILL;";
        let meet = "setp.lt.u32 %p1, %lane, 11; @%p1 bra LOW; shfl.sync.idx.b32 %r5, %t, 20, \
                    0x1f, 0xfffff800; bra JOIN; LOW: redux.sync.max.u32 %r5, %t, 0x7ff; JOIN:";
        format!(
            ".shared .align 4 .b8 all[47008]; mov.u32 %r1, %dynamic_smem_size; mov.u32 %r2, \
             %total_smem_size; shl.b32 %r2, %r2, 16; or.b32 %v, %r1, %r2; mov.u32 %r3, words; \
             add.u32 %r3, %r3, %r1; add.u32 %r3, %r3, {past}; mov.u32 %r4, all; mad.lo.u32 %r4, \
             %t, 4, %r4;\n{fill}\n{meet}\n"
        )
    };
    let text = |past| {
        let extern_array = ".extern .shared .align 4 .b8 words[];\n.visible .entry test";
        kernel(&body(past)).replacen(".visible .entry test", extern_array, 1)
    };
    let launched = |past, form| {
        let mut job = job((&text(past), DYNAMIC), 96, Timing::Off, form);
        job.grid = Dim3::linear(1);
        job.spec = Spec::named("h200").unwrap();
        run(&job)
    };
    let wanted = launched(0, Form::Original).unwrap().buffers;
    assert_eq!(wanted[0][..4], (DYNAMIC | (47008 + DYNAMIC) << 16).to_le_bytes());
    assert_eq!(launched(0, Form::Contained).unwrap().buffers, wanted);
    let error = launched(384, Form::Contained).unwrap_err();
    assert!(matches!(error, DirectError::Ended { .. }), "{error}");
}
