//! Mbarriers and bulk copies in whole kernels, in both timing modes and both forms.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use partita_emu::direct::{Argument, DirectError, Form, Run, run};
use partita_emu::{MemoryCheck, Options, Spec, Timing};
use partita_model::Dim3;

const THREADS: u32 = 128;

/// A kernel of one CTA with pointers in %x0 and %x1, `%t` the thread, `barrier` and `room` in
/// shared memory.
fn kernel(body: &str) -> String {
    format!(
        ".version 8.6\n.target sm_90\n.address_size 64\n\
         .visible .entry test(.param .u64 in, .param .u64 out)\n{{\n\
         .reg .pred %p<8>; .reg .b32 %r<16>; .reg .b64 %d<16>, %x<4>; .reg .b32 %t;\n\
         .shared .align 8 .b64 barrier; .shared .align 128 .b8 room[4096];\n\
         ld.param.u64 %x0, [in]; ld.param.u64 %x1, [out]; mov.u32 %t, %tid.x; setp.eq.u32 %p0, \
         %t, 0;\n\
         mul.wide.u32 %d0, %t, 4; add.u64 %d0, %d0, %x1; mov.u32 %r0, room; mad.lo.u32 %r0, %t, \
         4, %r0;\n\
         {body}\nret;\n}}\n"
    )
}

fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn attempt(
    body: &str,
    input: &[u32],
    output: usize,
    timing: Timing,
    form: Form,
) -> Result<Vec<u32>, DirectError> {
    let job = Run {
        ptx: kernel(body).into(),
        kernel: "test".to_owned(),
        grid: Dim3::linear(1),
        block: Dim3::linear(THREADS),
        dynamic_shared: 0,
        arguments: vec![Argument::Buffer(words(input)), Argument::Buffer(vec![0; 4 * output])],
        form,
        spec: Spec::named("cd-search-24").unwrap(),
        options: Options { timing, seed: 1, memcheck: MemoryCheck::Exact, ..Options::default() },
    };
    let ran = run(&job)?;
    Ok(ran.buffers[1].as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect())
}

fn check(body: &str, input: &[u32], expect: &[u32]) {
    for timing in [Timing::On, Timing::Off] {
        for form in [Form::Original, Form::Worker { task: 1 }, Form::Ticket, Form::Contained] {
            match attempt(body, input, expect.len(), timing, form) {
                Ok(found) => assert_eq!(found, expect, "{timing:?} {form:?}\n{body}"),
                Err(DirectError::NoForm { .. }) if form != Form::Original => {}
                Err(error) => panic!("{timing:?} {form:?}: {error}\n{body}"),
            }
        }
    }
}

const INIT: &str = "@%p0 mbarrier.init.shared.b64 [barrier], 128;\nbar.sync 0;\n";

/// Each thread reads what its neighbour wrote before it arrived.
const NEIGHBOUR: &str = "add.u32 %r8, %t, 1; and.b32 %r8, %r8, 127; mov.u32 %r9, room; mad.lo.u32 \
    %r9, %r8, 4, %r9;\n\
                         ld.shared.u32 %r10, [%r9]; st.global.u32 [%d0], %r10;\n";

fn neighbours() -> Vec<u32> {
    (0..THREADS).map(|thread| (thread + 1) % THREADS * 3).collect()
}

#[test]
fn threads_wait_for_one_another() {
    let write = "mul.lo.u32 %r1, %t, 3; st.shared.u32 [%r0], %r1;\n";
    for (arrive, wait) in [
        (
            "mbarrier.arrive.shared.b64 %d1, [barrier];",
            "mbarrier.test_wait.shared.b64 %p1, [barrier], %d1;",
        ),
        (
            "mbarrier.arrive.release.cta.shared::cta.b64 %d1, [barrier];",
            "mbarrier.try_wait.acquire.cta.shared::cta.b64 %p1, [barrier], %d1;",
        ),
        (
            "mbarrier.arrive.shared.b64 _, [barrier];",
            "mbarrier.test_wait.parity.shared.b64 %p1, [barrier], 0;",
        ),
        (
            "mov.u64 %d3, barrier; cvta.shared.u64 %d3, %d3; mbarrier.arrive.b64 %d1, [%d3];",
            "mbarrier.try_wait.parity.b64 %p1, [%d3], 0, 1000;",
        ),
        // The last thread speaks for three more, which are silent.
        (
            "setp.gt.u32 %p2, %t, 123; setp.eq.u32 %p3, %t, 124;\n@!%p2 \
             mbarrier.arrive.shared.b64 %d1, [barrier];\n\
             @%p3 mbarrier.arrive.shared.b64 %d1, [barrier], 4;",
            "mbarrier.test_wait.parity.shared.b64 %p1, [barrier], 0;",
        ),
    ] {
        let body = format!("{INIT}{write}{arrive}\nagain: {wait}\n@!%p1 bra again;\n{NEIGHBOUR}");
        check(&body, &[0], &neighbours());
    }
}

/// Ten phases: in each the threads arrive and wait by parity, and one thread counts them.
#[test]
fn phases_follow_one_another() {
    let body = format!(
        "{INIT}mov.u32 %r1, 0; mov.u32 %r2, 0;\nst.shared.u32 [%r0], 0;\n\
         round: add.u32 %r3, %r1, %t; ld.shared.u32 %r4, [%r0]; add.u32 %r4, %r4, %r3; \
         st.shared.u32 [%r0], %r4;\n\
         mbarrier.arrive.shared.b64 _, [barrier];\nand.b32 %r5, %r1, 1;\n\
         again: mbarrier.try_wait.parity.shared.b64 %p1, [barrier], %r5;\n@!%p1 bra again;\n\
         {} add.u32 %r2, %r2, %r10;\nmbarrier.arrive.shared.b64 %d1, [barrier+0];\nadd.u32 %r1, \
         %r1, 1; and.b32 %r5, %r1, 1;\n\
         more: mbarrier.test_wait.shared.b64 %p1, [barrier], %d1;\n@!%p1 bra more;\n\
         add.u32 %r1, %r1, 1; setp.lt.u32 %p2, %r1, 20;\n@%p2 bra round;\nst.global.u32 [%d0], \
         %r2;",
        NEIGHBOUR.replace("st.global.u32 [%d0], %r10;", "")
    );
    // In round i the neighbour n has 0 + 2 + … + 2i + (i + 1) n.
    let expect: Vec<u32> = (0..THREADS)
        .map(|thread| {
            let n = (thread + 1) % THREADS;
            (0..10).map(|i| (0..=i).map(|j| 2 * j + n).sum::<u32>()).sum()
        })
        .collect();
    check(&body, &[0], &expect);
}

#[test]
fn threads_leave_for_good() {
    // Half of the threads drop out in the first phase; the others make the second one alone.
    let body = format!(
        "{INIT}st.shared.u32 [%r0], %t;\nsetp.lt.u32 %p2, %t, 64;\n@!%p2 \
         mbarrier.arrive_drop.shared.b64 _, [barrier];\n\
         @%p2 mbarrier.arrive.shared.b64 _, [barrier];\nagain: \
         mbarrier.test_wait.parity.shared.b64 %p1, [barrier], 0;\n\
         @!%p1 bra again;\n@!%p2 bra done;\nmbarrier.arrive.shared.b64 %d1, [barrier];\n\
         mbarrier.pending_count.b64 %r5, %d1;\nst.global.u32 [%d0], %r5;\n\
         more: mbarrier.test_wait.parity.shared.b64 %p1, [barrier], 1;\n@!%p1 bra more;\ndone:"
    );
    let mut found = attempt(&body, &[0], 64, Timing::Off, Form::Original).unwrap();
    found.sort_unstable();
    assert_eq!(
        found,
        (1..=64).collect::<Vec<u32>>(),
        "each of the 64 sees another count before its arrival"
    );
}

#[test]
fn copies_arrive() {
    let input: Vec<u32> = (0..THREADS).map(|index| index * 7 + 1).collect();
    let read = "ld.shared.u32 %r10, [%r0]; st.global.u32 [%d0], %r10;\n";
    let wait = "again: mbarrier.try_wait.parity.shared.b64 %p1, [barrier], 0;\n@!%p1 bra again;\n";
    // cp.async, counted among the arrivals or not.
    let from = "mul.wide.u32 %d4, %t, 4; add.u64 %d4, %d4, %x0; cp.async.ca.shared.global [%r0], \
        [%d4], 4;\n";
    let noinc = "cp.async.mbarrier.arrive.noinc.shared.b64 [barrier];\n";
    check(&format!("{INIT}{from}{noinc}{wait}{read}"), &input, &input);
    let extra = "cp.async.mbarrier.arrive.shared.b64 [barrier];\nmbarrier.arrive.shared.b64 _, \
        [barrier];\n";
    check(&format!("{INIT}{from}{extra}{wait}{read}"), &input, &input);
    // One thread copies in bulk; the others wait for the bytes.
    let one = "@%p0 mbarrier.init.shared.b64 [barrier], 1;\n@%p0 \
        fence.mbarrier_init.release.cluster;\nbar.sync 0;\n";
    let tell = "@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [barrier], 512;\n";
    let copy = |space: &str| {
        format!(
            "mov.u32 %r6, barrier;\n@%p0 \
             cp.async.bulk.{space}.global.mbarrier::complete_tx::bytes [room], [%x0], 512, [%r6];\n"
        )
    };
    for space in ["shared::cluster", "shared::cta"] {
        check(&format!("{one}{tell}{}{wait}{read}", copy(space)), &input, &input);
        check(&format!("{one}{}{tell}{wait}{read}", copy(space)), &input, &input);
    }
    // And back, plainly and with a reduction.
    let write = "mad.lo.u32 %r1, %t, 5, 9; st.shared.u32 [%r0], %r1; \
        fence.proxy.async.shared::cta; bar.sync 0;\n";
    let groups = "@%p0 cp.async.bulk.commit_group;\n@%p0 cp.async.bulk.wait_group.read 0;\n";
    let plain = "@%p0 cp.async.bulk.global.shared::cta.bulk_group [%x1], [room], 512;\n";
    let expect: Vec<u32> = (0..THREADS).map(|thread| 5 * thread + 9).collect();
    check(&format!("{write}{plain}{groups}"), &input, &expect);
    let reduce = "st.global.u32 [%d0], %t; bar.sync 0;\n\
                  @%p0 cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%x1], [room], \
                  512;\n";
    let expect: Vec<u32> = (0..THREADS).map(|thread| 6 * thread + 9).collect();
    check(&format!("{write}{reduce}{groups}"), &input, &expect);
}

#[test]
fn misuse_is_a_fault() {
    let fault = |body: &str, expect: &str| {
        let error =
            attempt(body, &[0; 64], 64, Timing::Off, Form::Original).unwrap_err().to_string();
        assert!(error.contains(expect), "{error}");
    };
    fault("mbarrier.arrive.shared.b64 _, [room];", "no mbarrier is initialised here");
    fault(
        "mbarrier.init.shared.b64 [room], 0;",
        "an mbarrier for 0 arrivals; 1 to 1048575 are allowed",
    );
    fault(
        "@%p0 mbarrier.init.shared.b64 [room], 2;\n@%p0 mbarrier.arrive.shared.b64 _, [room], 3;",
        "3 arrivals at an mbarrier that awaits 2 more",
    );
    fault("mbarrier.init.b64 [%x1], 1;", "invalid address space");
    fault("mbarrier.init.shared.b64 [room+4], 1;", "misaligned address");
    fault(
        "@%p0 mbarrier.init.shared.b64 [room], 2;\nmbarrier.inval.shared.b64 \
         [room];\nmbarrier.inval.shared.b64 [room];",
        "no mbarrier is initialised here",
    );
    fault(
        "cp.async.bulk.global.shared::cta.bulk_group [%x1], [room], 24;",
        "bulk copy whose size is no multiple of 16",
    );
    fault(
        "cp.async.bulk.global.shared::cta.bulk_group [%x1], [room], 512;",
        "store of 16 bytes, 0 bytes beyond",
    );
    // No byte is copied, so no access bounds the size.
    fault(
        ".reg .b16 %h; mov.b16 %h, 0;\n\
         cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%x1], [room], 0xfffffff0, %h;",
        "bulk copy of 4294967280 bytes, more than shared memory has",
    );
    fault(
        "mov.u64 %d0, 8; st.bulk.weak [%x1], %d0, 0;",
        "`st.bulk` whose address is not of shared memory",
    );
}

/// PTX ISA, "cp.async.bulk", `.cp_mask`: a bit for each byte of 16.
#[test]
fn a_mask_says_which_bytes_are_copied() {
    let value = |thread: u32| thread.wrapping_mul(0x9e37_79b1) | 0x0101_0101;
    for mask in [0xffff_u32, 0, 1, 0x8000, 0x00f0, 0x5555, 0xfffe, 0x7fff] {
        let body = format!(
            "mul.lo.u32 %r1, %t, 0x9e3779b1; or.b32 %r1, %r1, 0x01010101; st.shared.u32 [%r0], \
             %r1;\nfence.proxy.async; bar.sync 0;\n.reg .b16 %h; mov.b16 %h, {mask};\n\
             @%p0 cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%x1], [room], 512, %h;\n\
             cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"
        );
        let expect: Vec<u32> = (0..THREADS)
            .map(|thread| {
                let mut bytes = value(thread).to_le_bytes();
                for (byte, at) in bytes.iter_mut().zip(4 * (thread % 4)..) {
                    *byte *= u8::from(mask >> at & 1 == 1);
                }
                u32::from_le_bytes(bytes)
            })
            .collect();
        check(&body, &[0], &expect);
    }
}

/// `.ignore_oob`: the input ends before the copied bytes do, and every access is checked.
#[test]
fn bytes_beyond_a_buffer_are_left_out() {
    let input: Vec<u32> = (0..99).map(|at| 0x0403_0201 + at * 0x0101_0101).collect();
    let bytes: Vec<u8> = words(&input);
    for (left, right) in [(0, 4), (3, 5), (15, 15), (7, 4), (200, 300)] {
        let body = format!(
            "st.shared.u32 [%r0], 0xeeeeeeee; @%p0 mbarrier.init.shared.b64 [barrier], 1; \
             fence.proxy.async; bar.sync 0;\nmov.u32 %r4, {left}; mov.u32 %r5, {right};\n\
             @%p0 mbarrier.arrive.expect_tx.shared.b64 _, [barrier], 400;\n@%p0 \
             cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes.ignore_oob [room], \
             [%x0], 400, %r4, %r5, [barrier];\nbar.sync 0;\nwait: \
             mbarrier.try_wait.parity.shared.b64 %p1, [barrier], 0;\n@!%p1 bra wait;\n\
             ld.shared.u32 %r1, [%r0]; st.global.u32 [%d0], %r1;"
        );
        let mut room = vec![0xee; 4 * THREADS as usize];
        if left < 400 - right {
            room[left..400 - right].copy_from_slice(&bytes[left..400 - right]);
        }
        let expect: Vec<u32> =
            room.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
        check(&body, &input, &expect);
    }
}
