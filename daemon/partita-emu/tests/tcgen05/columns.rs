//! Allocation of tensor memory by CTAs that share an SM.

use super::Case;
use partita_emu::direct::{Argument, Form, Run, run};
use partita_emu::{Options, Spec, Timing};
use partita_model::Dim3;

/// Each CTA allocates, counts itself among the CTAs of its SM that have columns, notes the count,
/// and goes, with `dealloc` or without.
fn kernel(columns: u32, with_dealloc: bool, group: u32) -> String {
    let dealloc = if with_dealloc {
        format!("tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 %r3, {columns};")
    } else {
        String::new()
    };
    format!(
        ".version 8.7\n.target sm_100a\n.address_size 64\n\
         .visible .entry test(.param .u64 counts, .param .u64 found)\n\
         .explicitcluster .reqnctapercluster {group}\n{{\n\
         .reg .b32 %r<12>; .reg .b64 %d<8>; .reg .pred %p<2>; .shared .align 4 .b32 place;\n\
         ld.param.u64 %d0, [counts]; ld.param.u64 %d1, [found];\n\
         mov.u32 %r0, place;\n\
         tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 [%r0], {columns};\n\
         ld.shared.b32 %r3, [place];\n\
         mov.u32 %r4, %smid; mul.wide.u32 %d2, %r4, 4; add.u64 %d0, %d0, %d2;\n\
         mov.u32 %r5, %tid.x; setp.eq.u32 %p0, %r5, 0; mov.u32 %r6, 0;\n\
         @%p0 atom.global.add.u32 %r6, [%d0], 1;\n\
         nanosleep.u32 500;\n\
         mov.u32 %r7, %ctaid.x; mul.wide.u32 %d2, %r7, 8; add.u64 %d1, %d1, %d2;\n\
         @%p0 st.global.v2.b32 [%d1], {{%r6, %r3}};\n\
         @%p0 red.global.add.u32 [%d0], -1;\n\
         bar.warp.sync -1;\n\
         barrier.cluster.arrive; barrier.cluster.wait;\n{dealloc}\nret;\n}}\n"
    )
}

fn counts_and_places(columns: u32, with_dealloc: bool, timing: Timing) -> Vec<[u32; 2]> {
    let buffers = play(kernel(columns, with_dealloc, 1), timing).unwrap();
    let words: Vec<u32> =
        buffers[1].as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    words.as_chunks::<2>().0.to_vec()
}

/// Runs three times as many CTAs as there are SMs: the buffers, or what went wrong.
fn play(ptx: String, timing: Timing) -> Result<Vec<Vec<u8>>, String> {
    let ctas = 3 * 148;
    let job = Run {
        ptx: ptx.into(),
        kernel: "test".to_owned(),
        grid: Dim3::linear(ctas),
        block: Dim3::linear(32),
        dynamic_shared: 0,
        arguments: vec![
            Argument::Buffer(vec![0; 4 * 256]),
            Argument::Buffer(vec![0xff; 8 * ctas as usize]),
        ],
        form: Form::Original,
        spec: Spec::named("b200").unwrap(),
        options: Options { timing, seed: 1, ..Options::default() },
    };
    run(&job).map(|done| done.buffers).map_err(|error| error.to_string())
}

#[test]
fn ctas_of_an_sm_wait_for_columns() {
    for timing in [Timing::Off, Timing::On] {
        for with_dealloc in [true, false] {
            let all = counts_and_places(512, with_dealloc, timing);
            assert!(all.iter().all(|&[others, place]| others == 0 && place == 0), "{all:?}");
            let halves = counts_and_places(256, with_dealloc, timing);
            assert!(halves.iter().all(|[others, place]| *others < 2 && matches!(place, 0 | 256)));
            assert!(halves.iter().any(|&[others, place]| others == 1 && place == 256));
        }
    }
}

/// Of one pair the CTA of even rank asks first, of the next pair the CTA of odd rank. Pairs that
/// each had the columns of one of their CTAs would wait for each other without end.
#[test]
fn pairs_of_ctas_wait_for_whole_pairs() {
    let late = "mov.u32 %r8, %clusterid.x; mov.u32 %r9, %cluster_ctarank; xor.b32 %r8, %r8, %r9; \
                and.b32 %r8, %r8, 1; setp.eq.u32 %p1, %r8, 1;\n@%p1 nanosleep.u32 2000;\n";
    for timing in [Timing::Off, Timing::On] {
        for columns in [512, 256] {
            let ptx = kernel(columns, true, 2);
            let ptx = ptx.replacen("tcgen05.alloc", &format!("{late}tcgen05.alloc"), 1);
            let buffers = play(ptx, timing).unwrap();
            let done = buffers[1].as_chunks::<8>().0.iter().filter(|found| **found != [0xff; 8]);
            assert_eq!(done.count(), 3 * 148);
        }
    }
}

/// Products of a pair use the tensor memory of both CTAs, and either CTA may issue them.
#[test]
fn an_allocation_of_a_pair_ends_when_both_ctas_have_columns() {
    for first in [0, 1] {
        let before = format!(
            "mov.u32 %r8, %cluster_ctarank; setp.eq.u32 %p1, %r8, {first};\n\
             st.shared.u32 [flag], 0;\n\
             barrier.cluster.arrive; barrier.cluster.wait;\n\
             mov.u32 %r9, {first}; mapa.shared::cluster.u32 %r9, flag, %r9;\n\
             @!%p1 nanosleep.u32 5000;\n@!%p1 st.shared::cluster.u32 [%r9], 1;\n"
        );
        let after = "@!%p1 st.shared.u32 [flag], 1;\nld.volatile.shared.u32 %r8, [flag];\n\
                     setp.eq.u32 %p1, %r8, 0;\n@%p1 trap;\n";
        let ptx = kernel(128, true, 2)
            .replacen(".shared .align", ".shared .b32 flag; .shared .align", 1)
            .replacen("tcgen05.alloc", &format!("{before}tcgen05.alloc"), 1)
            .replacen("ld.shared.b32 %r3", &format!("{after}ld.shared.b32 %r3"), 1);
        for timing in [Timing::Off, Timing::On] {
            play(ptx.clone(), timing).unwrap();
        }
    }
}

/// What a CTA of odd rank has alone would never be given back.
#[test]
fn a_cta_allocates_alone_or_with_its_pair() {
    let alone = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r0], 32;\n";
    let ptx = kernel(32, true, 2).replacen("tcgen05.alloc", &format!("{alone}tcgen05.alloc"), 1);
    let error = play(ptx, Timing::Off).unwrap_err();
    assert!(error.contains("another `.cta_group`"), "{error}");
}

#[test]
fn misuse_faults() {
    let alloc = |columns: u32| {
        format!("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r3], {columns};\n")
    };
    let dealloc = |at: &str, columns: u32| {
        format!("tcgen05.dealloc.cta_group::1.sync.aligned.b32 {at}, {columns};\n")
    };
    for (body, expected) in [
        (alloc(32), "after the CTA gave up its permit"),
        (alloc(48), "of 48 columns; 32, 64, 128, 256 and 512"),
        (dealloc("%r5", 31), "of 31 columns"),
        (dealloc("%r11", 512), "has not allocated"),
        (format!("{}{}", dealloc("%r5", 32), dealloc("%r5", 32)), "has not allocated"),
    ] {
        let error = Case { by_all: true, ..Case::new(1, body) }.error();
        assert!(error.contains(expected), "{expected}: {error}");
    }
}

#[test]
fn what_is_not_known_is_refused_by_name() {
    for body in [
        "tcgen05.cp.cta_group::1.128x128b.b8x16.b4x16_p64 [%r5], %d9;",
        "tcgen05.mma.sp.cta_group::1.kind::f16 [%r5], %d9, %d9, [%r5+64], %r5, %p0;",
        "tcgen05.mma.ws.cta_group::1.kind::f16 [%r5], %d9, %d9, %r5, %p0, %d9;",
        "tcgen05.mma.cta_group::1.kind::f16.ashift [%r5], [%r5], %d9, %r5, %p0;",
    ] {
        let error = Case::new(1, format!("{body}\n")).error();
        let name = body.split(' ').next().unwrap();
        assert!(error.contains(name) && error.contains("is not supported"), "{error}");
    }
}
