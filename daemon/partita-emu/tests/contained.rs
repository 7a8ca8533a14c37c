//! Kernels whose faults a proof once overlooked: each ends in a trap of `contain`, and the same
//! kernel without the fault ends well.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use partita_emu::direct::{Argument, DirectError, Form, Run, prepare, run};
use partita_emu::{Options, Spec, Timing};
use partita_model::Dim3;

const THREADS: u32 = 64;

/// Runs the kernel `test` with the guards of `contain` alone, whose traps the device tells.
fn launch(ptx: &str, number: u64) -> Result<Vec<u8>, String> {
    let module = partita_ptx::parse(ptx).unwrap();
    partita_ptx::verify(&module).unwrap();
    let contained = partita_ptx::contain(&module);
    let dynamic_shared = contained.reports[0].hidden_shared;
    let contained = partita_ptx::print(&contained.module);
    let ran = run(&Run { dynamic_shared, ..job(&contained, number, Form::Original) });
    ran.map(|ran| ran.buffers[0].clone()).map_err(|error| format!("{error}\n{contained}"))
}

/// A launch of the kernel `test` with a buffer and a number.
fn job(ptx: &str, number: u64, form: Form) -> Run {
    Run {
        ptx: ptx.into(),
        kernel: "test".to_owned(),
        grid: Dim3::linear(1),
        block: Dim3::linear(THREADS),
        dynamic_shared: 0,
        arguments: vec![
            Argument::Buffer(vec![0; 4 * THREADS as usize]),
            Argument::Value(number.to_le_bytes().to_vec()),
        ],
        form,
        spec: Spec::named("h200").unwrap(),
        options: Options { timing: Timing::Off, seed: 1, ..Options::default() },
    }
}

/// `%d0` is the buffer, `%d1` and `%r1` the number.
fn kernel(outside: &str, body: &str) -> String {
    format!(
        ".version 8.0\n.target sm_90\n.address_size 64\n{outside}\n.visible .entry test(.param \
         .u64 out, .param .u64 n)\n{{\n.reg .pred %p<8>; .reg .b32 %r<16>; .reg .b64 %d<8>;\n\
         ld.param.u64 %d0, [out]; ld.param.u64 %d1, [n]; cvt.u32.u64 %r1, %d1;\n{body}\nret;\n}}\n"
    )
}

/// The kernel ends in a trap of the pass with one number, and well with another.
fn check(name: &str, ptx: &str, wrong: u64, right: u64) {
    let error = launch(ptx, wrong).unwrap_err();
    assert!(error.contains("executed `trap`"), "{name}: {error}");
    launch(ptx, right).unwrap_or_else(|error| panic!("{name}: {error}"));
}

#[test]
fn a_name_is_no_more_aligned_than_its_variable() {
    // The first array moves the second one.
    for (kind, access) in [
        ("st.shared.u32 [b], %r1;", 1),
        ("atom.shared.add.u64 %d2, [b], %d1;", 4),
        ("ld.shared.v4.u32 {%r2, %r3, %r4, %r5}, [b+16];", 4),
        ("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r2}, [b];", 4),
    ] {
        let body = |align: u32| {
            let arrays = format!(
                ".shared .align 1 .b8 a[1]; .shared .align {align} .b8 b[64];\n\
                 st.shared.u8 [a], %r1;"
            );
            kernel("", &format!("{arrays} {kind} st.shared.u8 [b+63], %r1;"))
        };
        let error = launch(&body(access), 1).unwrap_err();
        assert!(error.contains("executed `trap`"), "{kind}: {error}");
        launch(&body(16), 1).unwrap_or_else(|error| panic!("{kind}: {error}"));
    }
}

#[test]
fn a_check_at_a_block_is_no_part_of_its_first_instruction() {
    let body = ".shared .align 16 .b8 sh[256];\nmov.u32 %r5, sh;\nst.shared.u32 [%r5], %r1;\n\
                setp.eq.u32 %p1, %r1, 5;\n@%p1 bra OUT;\n@%p1 mov.u32 %r2, 1;\n\
                st.shared.u32 [%r1], %r1;\nOUT:";
    check("guard", &kernel("", body), 1_000_000, 64);
}

#[test]
fn an_absolute_address_of_local_memory_is_wrong() {
    let body = "setp.eq.u32 %p1, %r1, 5;\n@%p1 st.local.u32 [0x7fffff0], %r1;";
    check("absolute", &kernel("", body), 5, 6);
}

#[test]
fn a_scope_says_nothing_of_other_ctas() {
    let other = ".visible .entry other(.param .u64 p) { .reg .b32 %r; .reg .b64 %d; ld.param.u64 \
                 %d, [p]; getctarank.u32 %r, %d; st.global.u32 [%d], %r; ret; }";
    for (outside, fence) in [("", "fence.acq_rel.cluster;"), (other, "")] {
        let body = format!(
            ".shared .align 16 .b8 sh[256];\n{fence}\nmov.u64 %d2, sh;\ncvta.shared.u64 %d2, \
             %d2;\nadd.s64 %d2, %d2, %d1;\nld.u32 %r2, [%d2];"
        );
        check(fence, &kernel(outside, &body), 0x100_0000, 128);
    }
}

#[test]
fn a_bound_from_below_changes_the_low_bits() {
    let body = ".shared .align 8 .b8 sh[4096];\nst.shared.u32 [sh], %r1;\nshl.b32 %r2, %r1, 3;\n\
                add.s32 %r3, %r2, 4;\nmax.s32.relu %r4, %r3, %r3;\nst.shared.u64 [%r4+4], %d1;";
    check("relu", &kernel("", body), 0xffff_fff0, 0);
}

#[test]
fn the_last_addresses_of_all_lie_in_no_frame() {
    let arrays: String = (0..5).map(|i| format!(".local .align 8 .b8 a{i}[16];\n")).collect();
    let body = format!(
        "{arrays}mov.u64 %d3, a1;\nsetp.eq.u64 %p1, %d1, 0;\nselp.b64 %d2, %d3, %d1, %p1;\n\
         ld.local.u32 %r2, [%d2];"
    );
    check("frame", &kernel("", &body), 0xffff_ffff_ffff_fffc, 0);
}

#[test]
fn an_address_of_32_bits_wraps_with_its_offset() {
    let body = ".local .align 8 .b8 a[16];\n.local .align 8 .b8 b[16];\nmov.u32 %r2, a;\n\
                mov.u32 %r3, b;\nsetp.eq.u32 %p1, %r1, 3;\nselp.b32 %r2, %r2, %r3, %p1;\n\
                sub.u32 %r2, %r2, 0x100000;\nadd.u32 %r2, %r2, %r1;\nsub.u32 %r2, %r2, %r1;\n\
                st.local.u32 [%r2+0x100004], %r1;";
    launch(&kernel("", body), 3).unwrap();
}

#[test]
fn an_atomic_reaches_no_local_memory_by_its_offset() {
    let body = ".local .align 8 .b8 a[64];\nmov.u64 %d2, a;\ncvta.local.u64 %d3, %d2;\n\
                setp.eq.u64 %p1, %d1, 0;\nsub.s64 %d3, %d3, 0x70000000;\n\
                add.s64 %d4, %d0, -0x70000000;\nselp.b64 %d5, %d4, %d3, %p1;\n\
                atom.add.u32 %r2, [%d5+0x70000000], 1;";
    check("atomic", &kernel("", body), 1, 0);
}

#[test]
fn a_known_distance_from_another_variable_may_be_local() {
    // The distance leads from shared memory to beyond local memory.
    let body = ".shared .align 8 .b8 sh[64];\n.local .align 8 .b8 a[64];\nmov.u64 %d2, sh;\n\
                cvta.shared.u64 %d3, %d2;\nsetp.eq.u64 %p1, %d1, 0;\n@%p1 bra OUT;\n\
                add.s64 %d4, %d3, 0x10000080000;\nst.u32 [%d4], %r1;\nOUT:";
    check("distance", &kernel("", body), 1, 0);
}

#[test]
fn lines_of_the_cache_are_aligned() {
    let body = "setp.eq.u64 %p1, %d1, 0;\n@%p1 bra OUT;\nadd.s64 %d2, %d0, %d1;\n\
                applypriority.global.L2::evict_normal [%d2], 128;\nOUT:";
    check("line", &kernel("", body), 4, 0);
}

/// What comes after the text of a function waits behind its call.
#[test]
fn lanes_that_leave_a_function_at_its_end_may_wait_apart() {
    let function = ".func (.reg .b32 %s) f(.reg .b32 %a)\n{\n.reg .pred %p; mov.u32 %s, %a;\n\
                    setp.lt.u32 %p, %a, 16;\n@%p bra E;\nshfl.sync.bfly.b32 %s, %a, 1, 31, -1;\n\
                    E:\n}";
    let body = "mov.u32 %r2, %laneid;\ncall (%r3), f, (%r2);\nredux.sync.add.u32 %r2, %r3, -1;";
    let module = partita_ptx::parse(&kernel(function, body)).unwrap();
    let text = partita_ptx::print(&partita_ptx::contain(&module).module);
    assert!(text.contains("pw_lanes"), "{text}");
}

#[test]
fn an_unsigned_size_of_a_copy_counts() {
    let body = ".shared .align 16 .b8 sh[1024];\nst.shared.u32 [sh], %r1;\n\
                cp.async.ca.shared.global [%r1], [%d0], 16U;\ncp.async.wait_all;";
    check("copy", &kernel("", body), 0x10_0000, 512);
    check("copy", &kernel("", body), 516, 512);
}

#[test]
fn a_distance_of_lines_may_be_a_component() {
    let body = ".shared .align 32 .b8 sh[4096];\n.reg .v2 .b32 %v;\nmov.u32 %r5, sh;\n\
                mov.v2.b32 %v, {%r1, %r1};\nwmma.load.a.sync.aligned.row.m16n16k16.shared.f16 \
                {%r6, %r7, %r8, %r9, %r10, %r11, %r12, %r13}, [%r5], %v.x;";
    check("lines", &kernel("", body), 0x10_0000, 16);
}

#[test]
fn a_name_means_the_same_array_at_every_place() {
    let inner = "{\n.local .align 8 .b8 a[1000];\nmov.u64 %d2, a;\n}\n.local .align 8 .b8 a[16];\n\
                 mov.u64 %d3, a;\nst.local.u32 [%d3], %r1;\nadd.s64 %d4, %d2, %d1;\n\
                 st.local.u32 [%d4], %r1;";
    check("inner", &kernel("", inner), 1024, 992);
    // The check of the later array must not change what the first name means.
    let outer = "mov.u32 %r2, a;\nst.shared.u32 [%r2+900], %r1;\n.local .align 8 .b8 a[16];\n\
                 mov.u64 %d3, a;\nadd.s64 %d4, %d3, %d1;\nst.local.u32 [%d4], %r1;";
    check("outer", &kernel(".shared .align 4 .b8 a[1000];", outer), 16, 8);
}

#[test]
fn a_declaration_behind_a_definition_hides_no_size() {
    let constants = ".visible .const .align 4 .b8 g[16] = {1};\n.extern .const .align 4 .b8 g[];";
    let body = "setp.eq.u64 %p1, %d1, 0;\n@%p1 bra OUT;\nld.const.u32 %r2, [g+60000];\nOUT:";
    check("constant", &kernel(constants, body), 1, 0);
}

#[test]
fn parameters_are_aligned_by_their_place() {
    let source = |align: u32| {
        format!(
            ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry test(.param .u64 out, \
             .param .b8 x, .param .align {align} .b8 q[7])\n{{\n.reg .b32 %r1;\nld.param.u32 %r1, \
             [q];\nret;\n}}\n"
        )
    };
    let text = |align: u32| {
        let module = partita_ptx::parse(&source(align)).unwrap();
        partita_ptx::print(&partita_ptx::contain(&module).module)
    };
    assert!(text(1).contains("$pw_misaligned") && !text(4).contains("$pw_"), "{}", text(1));
    // The second half of this one lies at a multiple of 8.
    let half =
        source(4).replace(".b8 x", ".b32 x").replace("u32 %r1, [q]", "v2.u32 {%r1, %r1}, [q+4]");
    let module = partita_ptx::parse(&half.replace("q[7]", "q[12]")).unwrap();
    let half = partita_ptx::print(&partita_ptx::contain(&module).module);
    assert!(!half.contains("$pw_"), "{half}");
}

#[test]
fn matrices_by_names_of_other_memory_are_wrong() {
    for array in [".local .align 16 .b8 a[128];", ".shared .align 16 .b8 a[128];"] {
        let body = format!("{array}\nldmatrix.sync.aligned.m8n8.x1.b16 {{%r2}}, [a];");
        let module = partita_ptx::parse(&kernel("", &body)).unwrap();
        let text = partita_ptx::print(&partita_ptx::contain(&module).module);
        assert_eq!(text.contains("$pw_beyond"), array.contains(".local"), "{text}");
    }
}

#[test]
fn right_accesses_by_rare_words_go_through() {
    let constants = ".const .align 4 .b32 c1[4] = {1, 2, 3, 4};\n.const .align 4 .b32 c2[4];";
    for body in [
        // Words for the space of a kernel's own parameters.
        "ld.param::entry.u64 %d2, [out];\nst.global.u64 [%d2], %d2;",
        // A pointer to one of two constants.
        "mov.u64 %d2, c1;\nmov.u64 %d3, c2;\nsetp.eq.u32 %p1, %r1, 1;\nselp.b64 %d4, %d2, %d3, \
         %p1;\nld.const.u32 %r2, [%d4+4];",
        // An address that is made of 16 bits.
        ".shared .align 4 .b8 sh[64];\n.reg .b16 %h;\nld.global.u16 %h, [%d0];\ncvt.u32.u16 %r2, \
         %h;\nmov.u32 %r3, sh;\nadd.s32 %r4, %r3, %r2;\nld.shared.f32 %f1, [%r4];",
        // An array of an inner scope, by its address.
        "{\n.local .align 8 .b8 a[16];\nmov.u64 %d2, a;\ncvta.local.u64 %d3, %d2;\n}\nst.u32 \
         [%d3+12], %r1;",
    ] {
        let ptx = kernel(constants, body)
            .replace(".reg .b64 %d<8>;", ".reg .b64 %d<8>; .reg .f32 %f<2>;");
        launch(&ptx, 1).unwrap_or_else(|error| panic!("{error}"));
    }
}

#[test]
fn a_constant_is_what_its_name_means_in_the_function() {
    // Body constants, and such as are declared behind the kernel.
    let body = ".const .align 4 .b32 c1[4] = {1, 2, 3, 4};\n{\n.const .align 4 .b32 c2[4] = {5};\n\
                mov.u64 %d2, c2;\n}\nmov.u64 %d3, c1;\nsetp.eq.u32 %p1, %r1, 1;\n\
                selp.b64 %d4, %d2, %d3, %p1;\nadd.s64 %d4, %d4, %d1;\n\
                add.s64 %d4, %d4, -1;\nld.const.u32 %r2, [%d4+4];";
    let ptx = kernel("", body) + ".const .align 4 .b8 later[16];\n";
    let text = partita_ptx::contain(&partita_ptx::parse(&ptx).unwrap()).module;
    let text = partita_ptx::print(&text);
    assert!(text.contains("%pw_wide, c1;") && text.contains("%pw_wide, c2;"), "{text}");
    assert!(!text.contains("later;"), "no check names what comes later: {text}");
}

#[test]
fn a_register_with_the_name_of_a_constant_needs_a_right() {
    let reason = |body: &str| {
        let outside = ".const .align 4 .b8 c0[4096];\n.const .align 4 .b8 c9[16];";
        let module = partita_ptx::parse(&kernel(outside, body)).unwrap();
        let reached = module.reach(module.kernels()[0].func).funcs;
        partita_ptx::contain::Rights::new(&module).uncontained(&reached).map(|r| r.to_string())
    };
    for body in [
        ".reg .b64 c0;\nmov.u64 c0, %d1;\nld.const.u32 %r2, [c0];",
        "{ .reg .b64 c<10>; mov.u64 c1, 0; }",
        "c0: mov.u32 %r2, 1;",
    ] {
        let reason = reason(body).unwrap_or_else(|| panic!("{body}"));
        assert!(reason.contains("is declared again"), "{reason}");
    }
    assert_eq!(reason("ld.const.u32 %r2, [c0];"), None);
}

#[test]
fn a_contained_kernel_ends_by_its_guards_or_when_it_is_asked_to() {
    let beyond = kernel(
        "",
        ".shared .align 4 .b8 sh[64];\nmov.u32 %r2, sh;\nadd.u32 %r2, %r2, \
                             %r1;\nst.shared.u32 [%r2], %r1;\nst.global.u32 [%d0], %r1;",
    );
    let contained = |ptx: &str, number: u64| run(&job(ptx, number, Form::Contained));
    assert_eq!(contained(&beyond, 4).unwrap().buffers[0][..4], [4, 0, 0, 0]);
    for (number, wanted) in [(2, "no multiple"), (1 << 20, "beyond")] {
        let error = contained(&beyond, number).unwrap_err();
        assert!(matches!(error, DirectError::Ended { reason, .. } if reason.contains(wanted)));
    }
    let endless = job(&kernel("", "L: add.u32 %r1, %r1, 1;\nbra L;"), 0, Form::Contained);
    const MOST: u64 = 1_000_000;
    let error = prepare(&endless).unwrap().run_within(MOST).unwrap_err();
    assert!(matches!(error, DirectError::TooLong { .. }), "{error}");
    let mut asked = prepare(&endless).unwrap();
    asked.ask_to_end().unwrap();
    asked.run_within(MOST).unwrap();
}

/// Names of passes are not those of ranges that the program declares in inner scopes.
#[test]
fn a_range_in_a_scope_hides_no_fenced_address() {
    let body = "{ .reg .b64 %pw_second<2>; st.global.u64 [%d0], %d0; st.global.u64 [%d0+8], %d1; }";
    let ran = run(&job(&kernel("", body), 7, Form::Contained)).unwrap();
    assert_eq!(ran.buffers[0][8..16], 7_u64.to_le_bytes());
}

/// A kernel that is run by itself has no objects, and its launch is held to that.
#[test]
fn objects_are_the_programs_own_or_none() {
    let body = "mov.u32 %r2, 0;\ntex.1d.v4.u32.s32 {%r3, %r4, %r5, %r6}, [%d1, {%r2}];\n\
                st.global.u32 [%d0], %r3;";
    let launched = |number| run(&job(&kernel("", body), number, Form::Contained));
    let refused = launched(5).unwrap_err().to_string();
    assert!(refused.contains("byte 8 of its parameters begins the handle"), "{refused}");
    let ended = launched(0).unwrap_err();
    assert!(matches!(ended, DirectError::Ended { .. }), "{ended}");
}
