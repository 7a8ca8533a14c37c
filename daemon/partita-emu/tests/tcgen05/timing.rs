//! The time of products: tensor cores work beside the thread that issues, at the data sheet's rate.

use partita_emu::direct::{Argument, Form, Run, run};
use partita_emu::{Options, Spec, Timing};
use partita_model::Dim3;

/// A thread issues `count` products of 128 by 256 and commits: cycles until then, and until the
/// mbarrier says that they are done.
fn cycles(count: u32) -> [u64; 2] {
    // f32 from f16 and f16; both factors are the same rows of shared memory.
    let instruction = 1 << 4 | (256 / 8) << 17 | (128 / 16) << 24;
    let text = format!(
        ".version 8.7\n.target sm_100a\n.address_size 64\n\
         .visible .entry test(.param .u64 out)\n{{\n\
         .reg .b32 %r<12>; .reg .b64 %d<12>; .reg .pred %p<4>;\n\
         .shared .align 1024 .b8 rows[32768]; .shared .align 8 .b64 bar;\n\
         .shared .align 4 .b32 place;\n\
         mov.u32 %r0, place; mov.u32 %r1, bar; mov.u32 %r2, %tid.x;\n\
         tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r0], 256;\n\
         setp.ne.u32 %p0, %r2, 0; @%p0 bra wait;\n\
         mbarrier.init.shared.b64 [%r1], 1; ld.shared.b32 %r3, [place];\n\
         mov.u32 %r4, rows; shr.u32 %r4, %r4, 4; cvt.u64.u32 %d1, %r4;\n\
         or.b64 %d1, %d1, {}; mov.b32 %r5, {instruction}; setp.eq.u32 %p1, %r2, 0;\n\
         mov.u32 %r6, 0; mov.u64 %d2, %clock64;\n\
         more: tcgen05.mma.cta_group::1.kind::f16 [%r3], %d1, %d1, %r5, %p1;\n\
         add.u32 %r6, %r6, 1; setp.lt.u32 %p2, %r6, {count}; @%p2 bra more;\n\
         tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r1];\n\
         mov.u64 %d3, %clock64;\n\
         look: mbarrier.try_wait.parity.shared.b64 %p3, [%r1], 0; @!%p3 bra look;\n\
         mov.u64 %d4, %clock64; sub.u64 %d3, %d3, %d2; sub.u64 %d4, %d4, %d2;\n\
         ld.param.u64 %d0, [out]; st.global.v2.b64 [%d0], {{%d3, %d4}};\n\
         wait: bar.warp.sync -1; ld.shared.b32 %r3, [place];\n\
         tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r3, 256;\nret;\n}}\n",
        (128_u64 >> 4) << 32 | (1 << 16) | 1 << 46 | 2 << 61,
    );
    let job = Run {
        ptx: text.into(),
        kernel: "test".to_owned(),
        grid: Dim3::linear(1),
        block: Dim3::linear(32),
        dynamic_shared: 0,
        arguments: vec![Argument::Buffer(vec![0; 16])],
        form: Form::Original,
        spec: Spec::named("b200").unwrap(),
        options: Options { timing: Timing::On, seed: 1, ..Options::default() },
    };
    let found = run(&job).unwrap().buffers.remove(0);
    let words = found.as_chunks::<8>().0;
    [words[0], words[1]].map(u64::from_le_bytes)
}

#[test]
fn products_go_on_beside_the_thread() {
    // 128 x 256 x 16 products at 4,096 a cycle are 128 cycles.
    for (count, most) in [(1, 200), (8, 500), (24, 1500)] {
        let [issued, done] = cycles(count);
        let busy = 128 * u64::from(count);
        assert!(issued < most, "{count}: {issued}");
        assert!((busy..busy + 300).contains(&done), "{count}: {done}");
    }
}

#[test]
fn a_thread_waits_where_much_is_under_way() {
    let [issued, done] = cycles(100);
    assert!((12_800..13_100).contains(&done), "{done}");
    assert!((12_800 - 4_500..12_800).contains(&issued), "{issued}");
}
