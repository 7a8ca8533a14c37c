//! `clusterlaunchcontrol`: CTAs that take over others' work, with and without clusters. Each CTA of
//! the grid must be computed once, by itself or by a CTA that took it over.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use partita_emu::direct::{Argument, DirectError, Form, Run, run};
use partita_emu::{Options, Spec, Timing};
use partita_model::Dim3;

/// Counts in the first buffer how often each CTA of the grid is computed, and notes in the second
/// which have begun. The answers are for all CTAs of the cluster where `to_all`.
fn kernel(cluster: [u32; 3], to_all: bool) -> String {
    let [x, y, z] = cluster;
    let (directive, sync) = if to_all {
        let sync = "barrier.cluster.arrive;\nbarrier.cluster.wait;\n";
        (format!(".reqnctapercluster {x}, {y}, {z}\n"), sync)
    } else {
        (String::new(), "")
    };
    // A CTA without a cluster is the first of its own; rewritten forms have no cluster to name.
    let [ox, oy, oz, rank] = if to_all {
        ["%cluster_ctaid.x", "%cluster_ctaid.y", "%cluster_ctaid.z", "%cluster_ctarank"]
    } else {
        ["0"; 4]
    };
    let way = if to_all { ".multicast::cluster::all" } else { "" };
    format!(
        ".version 8.7\n.target sm_100a\n.address_size 64\n.visible .entry test(.param .u64 p0, \
         .param .u64 p1)\n{directive}{{\n.reg .pred %p<8>; .reg .b32 %r<32>; .reg .b64 %d<8>; \
         .reg .b128 %q;\n.shared .align 16 .b8 answer[16]; .shared .align 8 .b64 barrier; .shared \
         .align 16 .b8 room[40000];\n\
         mov.u32 %r0, %tid.x; setp.ne.u32 %p0, %r0, 0;\n@%p0 ret;\n\
         ld.param.u64 %d0, [p0]; ld.param.u64 %d1, [p1];\n\
         mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ctaid.y; mov.u32 %r3, %ctaid.z;\n\
         mov.u32 %r4, %nctaid.x; mov.u32 %r5, %nctaid.y;\n\
         mov.u32 %r11, {ox}; mov.u32 %r12, {oy}; mov.u32 %r13, {oz};\n\
         mad.lo.u32 %r6, %r3, %r5, %r2; mad.lo.u32 %r6, %r6, %r4, %r1;\n\
         mul.wide.u32 %d2, %r6, 4; add.u64 %d2, %d1, %d2; st.global.u32 [%d2], 1;\n\
         mbarrier.init.shared.b64 [barrier], 1; mov.u32 %r7, 0; mov.u32 %r8, {rank};\n\
         setp.eq.u32 %p1, %r8, 0; st.shared.u32 [room], %r0;\n{sync}\
         next:\nmbarrier.arrive.expect_tx.shared::cta.b64 _, [barrier], 16;\n\
         @%p1 clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes{way}\
         .b128 [answer], [barrier];\n\
         mad.lo.u32 %r6, %r3, %r5, %r2; mad.lo.u32 %r6, %r6, %r4, %r1;\n\
         mul.wide.u32 %d2, %r6, 4; add.u64 %d2, %d0, %d2; red.global.add.u32 [%d2], 1;\n\
         wait:\nmbarrier.try_wait.parity.shared.b64 %p2, [barrier], %r7;\n@!%p2 bra wait;\n\
         xor.b32 %r7, %r7, 1;\nld.shared.b128 %q, [answer];\n\
         clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p3, %q;\n@!%p3 bra done;\n\
         clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {{%r21, %r22, %r23, _}}, \
         %q;\nclusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r24, %q;\n\
         clusterlaunchcontrol.query_cancel.get_first_ctaid::y.b32.b128 %r25, %q;\n\
         clusterlaunchcontrol.query_cancel.get_first_ctaid::z.b32.b128 %r26, %q;\n\
         setp.ne.u32 %p4, %r21, %r24;\n@%p4 trap;\nsetp.ne.u32 %p4, %r22, %r25;\n@%p4 trap;\n\
         setp.ne.u32 %p4, %r23, %r26;\n@%p4 trap;\n\
         add.u32 %r1, %r21, %r11; add.u32 %r2, %r22, %r12; add.u32 %r3, %r23, %r13;\n\
         {sync}bra next;\ndone:\n{sync}ret;\n}}\n"
    )
}

fn attempt(
    [grid, cluster]: [[u32; 3]; 2],
    to_all: bool,
    (timing, form): (Timing, Form),
) -> Result<[Vec<u32>; 2], DirectError> {
    let extent = Dim3::new(grid[0], grid[1], grid[2]);
    let words = grid.iter().product::<u32>() as usize;
    let job = Run {
        ptx: kernel(cluster, to_all).into(),
        kernel: "test".to_owned(),
        grid: extent,
        block: Dim3::linear(32),
        dynamic_shared: 0,
        arguments: vec![Argument::Buffer(vec![0; 4 * words]), Argument::Buffer(vec![0; 4 * words])],
        form,
        spec: Spec { compute_capability: [10, 0], ..Spec::named("cd-search-24").unwrap() },
        options: Options { timing, seed: 1, ..Options::default() },
    };
    let mut buffers = run(&job)?.buffers;
    let words = |bytes: Vec<u8>| {
        bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
    };
    let began = words(buffers.remove(1));
    Ok([words(buffers.remove(0)), began])
}

const ONE: [u32; 3] = [1, 1, 1];

#[test]
fn each_cta_is_computed_once() {
    let mut compared = 0;
    for timing in [Timing::Off, Timing::On] {
        for (grid, cluster, to_all) in [
            ([1000, 1, 1], ONE, false),
            ([20, 15, 3], ONE, false),
            // Fewer than there is room for: the first CTAs may take over what is to be placed.
            ([3, 1, 1], ONE, false),
            ([600, 1, 1], [2, 1, 1], true),
            ([16, 12, 4], [2, 2, 2], true),
            ([40, 5, 2], ONE, true),
        ] {
            let [counts, began] =
                attempt([grid, cluster], to_all, (timing, Form::Original)).unwrap();
            assert!(counts.iter().all(|&count| count == 1), "{grid:?}: {counts:?}");
            let all = grid.iter().product::<u32>();
            let begun: u32 = began.iter().sum();
            assert!(begun >= 1 && begun <= all, "{begun} of {all}");
            if all > 300 {
                // More CTAs than the GPU holds at once, so the first CTAs took over the rest.
                assert!(begun < all, "{grid:?}: all {all} CTAs began");
            }
            compared += counts.len();
        }
    }
    assert!(compared >= 2_000, "{compared} comparisons");
}

#[test]
fn rewritten_forms_refuse_it_by_name() {
    let said = |form| {
        let error = attempt([[8, 1, 1], ONE], false, (Timing::Off, form)).unwrap_err();
        assert!(matches!(error, DirectError::NoForm { .. }), "{error}");
        error.to_string()
    };
    // A worker has no mbarriers either, and names them first.
    said(Form::Worker { task: 2 });
    let ticket = said(Form::Ticket);
    assert!(ticket.contains("clusterlaunchcontrol"), "{ticket}");
}
