//! Special registers against what the launch says (PTX ISA, "Special Registers").

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up fails")]
#![expect(clippy::cast_possible_truncation, reason = "there are few threads")]

use partita_emu::direct::{Argument, Form, Run, run};
use partita_emu::{Options, Spec, Timing};
use partita_model::Dim3;
use std::fmt::Write;

const GRID: Dim3 = Dim3 { x: 3, y: 2, z: 2 };
const BLOCK: Dim3 = Dim3 { x: 8, y: 4, z: 3 };
const DYNAMIC: u32 = 48;
const STATIC: u32 = 64;

/// A thread's place.
struct Place {
    cta: [u32; 3],
    thread: [u32; 3],
    linear: u32,
    sms: u32,
}

type Wanted = fn(&Place) -> u32;

/// Registers whose value follows from the thread's place.
const FIXED: [(&str, Wanted); 46] = [
    ("tid.x", |p| p.thread[0]),
    ("tid.y", |p| p.thread[1]),
    ("tid.z", |p| p.thread[2]),
    ("tid.w", |_| 0),
    ("ntid.x", |_| BLOCK.x),
    ("ntid.y", |_| BLOCK.y),
    ("ntid.z", |_| BLOCK.z),
    ("ntid.w", |_| 0),
    ("ctaid.x", |p| p.cta[0]),
    ("ctaid.y", |p| p.cta[1]),
    ("ctaid.z", |p| p.cta[2]),
    ("ctaid.w", |_| 0),
    ("nctaid.x", |_| GRID.x),
    ("nctaid.y", |_| GRID.y),
    ("nctaid.z", |_| GRID.z),
    ("nctaid.w", |_| 0),
    ("laneid", |p| p.linear % 32),
    ("lanemask_eq", |p| 1 << (p.linear % 32)),
    ("lanemask_lt", |p| (1 << (p.linear % 32)) - 1),
    ("lanemask_le", |p| u32::MAX >> (31 - p.linear % 32)),
    ("lanemask_gt", |p| u32::MAX.checked_shl(p.linear % 32 + 1).unwrap_or(0)),
    ("lanemask_ge", |p| u32::MAX << (p.linear % 32)),
    ("nsmid", |p| p.sms),
    ("dynamic_smem_size", |_| DYNAMIC),
    ("total_smem_size", |_| STATIC + DYNAMIC),
    ("aggr_smem_size", |_| STATIC + DYNAMIC),
    // Each CTA is a cluster of its own.
    ("clusterid.x", |p| p.cta[0]),
    ("clusterid.y", |p| p.cta[1]),
    ("clusterid.z", |p| p.cta[2]),
    ("nclusterid.x", |_| GRID.x),
    ("nclusterid.y", |_| GRID.y),
    ("nclusterid.z", |_| GRID.z),
    ("cluster_ctaid.x", |_| 0),
    ("cluster_ctaid.y", |_| 0),
    ("cluster_ctaid.z", |_| 0),
    ("cluster_nctaid.x", |_| 1),
    ("cluster_nctaid.y", |_| 1),
    ("cluster_nctaid.z", |_| 1),
    ("cluster_ctarank", |_| 0),
    ("cluster_nctarank", |_| 1),
    // Counters of the hardware, and words that the driver sets for cooperative launches.
    ("pm0", |_| 0),
    ("pm7", |_| 0),
    ("envreg0", |_| 0),
    ("envreg31", |_| 0),
    ("reserved_smem_offset_begin", |_| 0),
    ("reserved_smem_offset_end", |_| 0),
];

/// Registers whose value is known within limits only, in the order in which the kernel reads them.
const READ: [&str; 12] = [
    "clock",
    "clock_hi",
    "globaltimer_lo",
    "globaltimer_hi",
    "warpid",
    "nwarpid",
    "smid",
    "clock64",
    "globaltimer",
    "gridid",
    "clock64",
    "globaltimer",
];

/// Whether a kernel in this form may read a register. A rewritten kernel does not know its
/// original's number of the grid, clusters and words of the driver, and reads no fourth coordinate.
fn may_read(form: Form, name: &str) -> bool {
    let is_hidden = name == "gridid"
        || name.contains("cluster")
        || name.starts_with("envreg")
        || matches!(name, "ctaid.w" | "nctaid.w");
    form == Form::Original || !is_hidden
}

fn kernel(fixed: &[(&str, Wanted)], read: &[&str]) -> String {
    let mut text = format!(
        ".version 8.6\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 out)\n{{\n\
         .reg .b32 %r<8>; .reg .b64 %d<4>; .reg .pred %p<1>; .shared .align 8 .b8 room[{STATIC}];\n\
         ld.param.u64 %d0, [out];\n\
         mov.u32 %r0, %ctaid.z; mov.u32 %r1, %nctaid.y; mov.u32 %r2, %ctaid.y; mad.lo.u32 %r0, \
         %r0, %r1, %r2;\n\
         mov.u32 %r1, %nctaid.x; mov.u32 %r2, %ctaid.x; mad.lo.u32 %r0, %r0, %r1, %r2;\n\
         mov.u32 %r1, %ntid.z; mov.u32 %r2, %tid.z; mad.lo.u32 %r0, %r0, %r1, %r2;\n\
         mov.u32 %r1, %ntid.y; mov.u32 %r2, %tid.y; mad.lo.u32 %r0, %r0, %r1, %r2;\n\
         mov.u32 %r1, %ntid.x; mov.u32 %r2, %tid.x; mad.lo.u32 %r0, %r0, %r1, %r2;\n\
         mul.wide.u32 %d1, %r0, {}; add.u64 %d0, %d0, %d1;\nst.shared.u32 [room], %r0;\n",
        8 * (fixed.len() + read.len())
    );
    let names = fixed.iter().map(|(name, _)| *name).chain(read.iter().copied());
    for (index, name) in names.enumerate() {
        let wide = matches!(name, "clock64" | "globaltimer" | "gridid");
        let at = 8 * index;
        if wide {
            writeln!(text, "mov.u64 %d2, %{name}; st.global.u64 [%d0+{at}], %d2;").unwrap();
        } else {
            writeln!(
                text,
                "mov.u32 %r3, %{name}; cvt.u64.u32 %d2, %r3; st.global.u64 [%d0+{at}], %d2;"
            )
            .unwrap();
        }
    }
    text + "ret;\n}\n"
}

#[test]
fn registers_say_where_a_thread_is() {
    let threads = BLOCK.count() as usize;
    let spec = Spec::named("cd-search-24").unwrap();
    let sms = 24;
    let mut checks = 0;
    for timing in [Timing::On, Timing::Off] {
        for form in [Form::Original, Form::Worker { task: 2 }, Form::Ticket, Form::Contained] {
            let fixed: Vec<_> =
                FIXED.into_iter().filter(|(name, _)| may_read(form, name)).collect();
            let names: Vec<_> = READ.into_iter().filter(|name| may_read(form, name)).collect();
            let each = fixed.len() + names.len();
            let job = Run {
                ptx: kernel(&fixed, &names).into(),
                kernel: "k".to_owned(),
                grid: GRID,
                block: BLOCK,
                dynamic_shared: DYNAMIC,
                arguments: vec![Argument::Buffer(vec![
                    0xff;
                    8 * each * threads * GRID.count() as usize
                ])],
                form,
                spec: spec.clone(),
                options: Options { timing, seed: 1, ..Options::default() },
            };
            let ran = run(&job).unwrap_or_else(|error| panic!("{timing:?} {form:?}: {error}"));
            let words: Vec<u64> = ran.buffers[0]
                .as_chunks::<8>()
                .0
                .iter()
                .map(|word| u64::from_le_bytes(*word))
                .collect();
            for (index, found) in words.chunks_exact(each).enumerate() {
                let (cta, linear) = ((index / threads) as u32, (index % threads) as u32);
                let place = Place {
                    cta: [cta % GRID.x, cta / GRID.x % GRID.y, cta / GRID.x / GRID.y],
                    thread: [
                        linear % BLOCK.x,
                        linear / BLOCK.x % BLOCK.y,
                        linear / BLOCK.x / BLOCK.y,
                    ],
                    linear,
                    sms,
                };
                for ((name, wanted), &found) in fixed.iter().zip(found) {
                    // A rewritten kernel has 48 bytes of shared memory more.
                    if form != Form::Original
                        && name.contains("smem_size")
                        && !name.starts_with("dynamic")
                    {
                        continue;
                    }
                    assert_eq!(
                        found,
                        u64::from(wanted(&place)),
                        "%{name} of thread {linear} of CTA {cta}, {form:?}"
                    );
                    checks += 1;
                }
                let read = |name: &str| {
                    found[fixed.len() + names.iter().position(|other| *other == name).unwrap()]
                };
                assert!(read("warpid") < read("nwarpid") && read("nwarpid") <= 64);
                assert!(read("smid") < u64::from(sms));
                let [clock, timer] = [found[each - 2], found[each - 1]];
                let before = (read("clock64"), read("globaltimer"));
                assert!(
                    clock > before.0 && timer >= before.1,
                    "clocks go forward: {clock}, {timer} after {before:?}, {timing:?} {form:?}"
                );
                let halves = |low: &str, high: &str| read(high) << 32 | read(low);
                assert!(halves("clock", "clock_hi") < read("clock64"));
                assert!(halves("globaltimer_lo", "globaltimer_hi") <= read("globaltimer"));
                checks += 6;
            }
        }
    }
    println!("special registers: {checks} checks of {} registers", FIXED.len() + READ.len() - 2);
}

/// Dynamic shared memory begins at the shared window's start where a kernel has no other, and
/// programs rely on that: swizzles go by the bits of an address, whatever alignment is declared.
#[test]
fn forms_keep_the_alignment_of_dynamic_shared_memory() {
    for (instruction, alignment) in [("", 128), ("wgmma.fence.sync.aligned;", 1024)] {
        let ptx = format!(
            ".version 8.0\n.target sm_90a\n.address_size 64\n\
             .extern .shared .align 16 .b8 dynamic[];\n\
             .visible .entry where(.param .u64 out) {{\n\
             .reg .b32 %r<2>;\n.reg .b64 %rd<2>;\n\
             ld.param.u64 %rd1, [out];\nmov.u32 %r1, dynamic;\n{instruction}\n\
             st.global.u32 [%rd1], %r1;\nret;\n}}\n"
        );
        for form in [Form::Original, Form::Worker { task: 2 }, Form::Ticket, Form::Contained] {
            let job = Run {
                ptx: ptx.clone().into(),
                kernel: "where".to_owned(),
                grid: Dim3::linear(1),
                block: Dim3::linear(128),
                dynamic_shared: 2048,
                arguments: vec![Argument::Buffer(vec![0xff; 4])],
                form,
                spec: Spec::named("h200").unwrap(),
                options: Options { timing: Timing::Off, seed: 1, ..Options::default() },
            };
            let ran = run(&job).unwrap_or_else(|error| panic!("{form:?}: {error}"));
            let at = u32::from_le_bytes(ran.buffers[0][..4].try_into().unwrap());
            assert_eq!(at % alignment, 0, "{form:?} {instruction}: at {at}");
        }
    }
}

/// Kernels that call a function with the grid's registers share the form's memory: a smaller kernel
/// behind a swizzled one leaves it as large.
#[test]
fn kernels_that_share_a_slot_keep_the_alignment_of_each() {
    let kernel = |name: &str, body: &str| {
        format!(
            ".visible .entry {name}(.param .u64 out) {{\n\
             .reg .b32 %r<3>;\n.reg .b64 %rd<2>;\n\
             ld.param.u64 %rd1, [out];\ncall (%r2), cta, ();\n{body}\n\
             st.global.u32 [%rd1], %r1;\nret;\n}}\n"
        )
    };
    let ptx = [
        ".version 8.0\n.target sm_90a\n.address_size 64\n\
         .extern .shared .align 16 .b8 dynamic[];\n\
         .func (.reg .b32 %cta) cta() {\nmov.u32 %cta, %ctaid.x;\nret;\n}\n",
        &kernel("where", "mov.u32 %r1, dynamic;\nwgmma.fence.sync.aligned;"),
        &kernel("small", "mov.u32 %r1, %r2;"),
    ]
    .concat();
    for form in [Form::Worker { task: 2 }, Form::Ticket, Form::Contained] {
        let job = Run {
            ptx: ptx.clone().into(),
            kernel: "where".to_owned(),
            grid: Dim3::linear(1),
            block: Dim3::linear(128),
            dynamic_shared: 2048,
            arguments: vec![Argument::Buffer(vec![0xff; 4])],
            form,
            spec: Spec::named("h200").unwrap(),
            options: Options { timing: Timing::Off, seed: 1, ..Options::default() },
        };
        let ran = run(&job).unwrap_or_else(|error| panic!("{form:?}: {error}"));
        let at = u32::from_le_bytes(ran.buffers[0][..4].try_into().unwrap());
        assert_eq!(at % 1024, 0, "{form:?}: at {at}");
    }
}
