//! Pointers into local memory of callers, in functions that `contain` guards: right ones go
//! through, and wrong ones end the launch.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use partita_emu::direct::{Argument, Form, Run, run};
use partita_emu::{Options, Spec, Timing};
use partita_model::Dim3;

const THREADS: u32 = 64;

/// A kernel that calls two functions, one through the other, with `pointer` made of its array
/// `%own`, of 64 bytes. Each function adds what it reads at its pointer to what its own array has.
fn program(pointer: &str) -> String {
    format!(
        ".version 8.0
.target sm_80
.address_size 64
.func (.reg .b32 %s) inner(.reg .b64 %mine, .reg .b64 %outers)
{{
.local .align 8 .b8 words[16];
.reg .b32 %r<4>; .reg .b64 %d<4>;
ld.u32 %r1, [%mine+60];
ld.u32 %r2, [%outers+4];
mov.u64 %d1, words;
cvta.local.u64 %d1, %d1;
st.u32 [%d1+12], %r1;
st.u32 [%mine], %r2;
ld.u32 %r3, [%d1+12];
add.u32 %s, %r3, %r2;
ret;
}}
.func (.reg .b32 %s) outer(.reg .b64 %mine, .param .align 8 .b8 block[16])
{{
.local .align 8 .b8 words[400];
.reg .b32 %r<4>; .reg .b64 %d<4>;
ld.param.u32 %r1, [block+4];
mov.u64 %d1, words;
add.s64 %d1, %d1, 392;
st.local.u32 [%d1+4], %r1;
cvta.local.u64 %d1, %d1;
call (%s), inner, (%mine, %d1);
mov.b64 %d2, block;
cvta.local.u64 %d2, %d2;
ld.u32 %r2, [%d2+12];
add.u32 %s, %s, %r2;
ret;
}}
.visible .entry test(.param .u64 out)
{{
.local .align 8 .b8 words[64];
.reg .b32 %r<9>, %t; .reg .b64 %d<9>, %own;
ld.param.u64 %d1, [out];
mov.u32 %t, %tid.x;
mul.wide.u32 %d2, %t, 4;
add.u64 %d1, %d1, %d2;
mov.u64 %own, words;
st.local.u32 [%own+60], %t;
cvta.local.u64 %own, %own;
{pointer}
mul.wide.u32 %d4, %t, 1000;
shl.b64 %d4, %d4, 32;
{{
.param .align 8 .b8 b[16];
st.param.b64 [b], %d4;
st.param.b64 [b+8], %d4;
call (%r1), outer, (%own, b);
}}
ld.u32 %r2, [%own];
add.u32 %r1, %r1, %r2;
st.global.u32 [%d1], %r1;
ret;
}}
"
    )
}

fn launch(ptx: &str, form: Form) -> Result<Vec<u32>, String> {
    let job = Run {
        ptx: ptx.into(),
        kernel: "test".to_owned(),
        grid: Dim3::linear(2),
        block: Dim3::linear(THREADS),
        dynamic_shared: 0,
        arguments: vec![Argument::Buffer(vec![0; 4 * THREADS as usize])],
        form,
        spec: Spec::named("cd-search-24").unwrap(),
        options: Options { timing: Timing::Off, seed: 1, ..Options::default() },
    };
    let ran = run(&job).map_err(|error| error.to_string())?;
    let words = ran.buffers[0].as_chunks::<4>().0.iter();
    Ok(words.map(|word| u32::from_le_bytes(*word)).collect())
}

fn contained(ptx: &str) -> String {
    let module = partita_ptx::parse(ptx).unwrap();
    let text = partita_ptx::print(&partita_ptx::contain(&module).module);
    assert!(text.contains("pw_lowest"), "{text}");
    text
}

#[test]
fn pointers_to_arrays_of_all_callers_go_through() {
    let written = program("");
    let wanted: Vec<u32> = (0..THREADS).map(|thread| thread + 3000 * thread).collect();
    for ptx in [written.clone(), contained(&written)] {
        for form in [Form::Original, Form::Worker { task: 1 }, Form::Ticket] {
            assert_eq!(launch(&ptx, form), Ok(wanted.clone()), "{form:?}\n{ptx}");
        }
    }
}

#[test]
fn pointers_beyond_end_the_launch() {
    for far in ["1000000", "0x7fffff00"] {
        let ptx = contained(&program(&format!("add.s64 %own, %own, {far};")));
        let error = launch(&ptx, Form::Original).unwrap_err();
        assert!(error.contains("trap"), "{far}: {error}");
    }
}

/// A kernel with this many arrays that uses one of the last two by a pointer of the space, itself
/// or in a function that gets the pointer.
fn chooser(arrays: usize, way: &str, offset: &str) -> String {
    let declarations: String =
        (0..arrays).map(|index| format!(".local .align 8 .b8 a{index}[16];\n")).collect();
    let (one, other) = (arrays - 2, arrays - 1);
    format!(
        ".version 8.0
.target sm_80
.address_size 64
.func (.reg .b32 %s) add(.reg .b64 %at, .reg .b32 %more)
{{
.reg .b32 %r<4>;
ld.local.u32 %r1, [%at+12];
add.u32 %s, %r1, %more;
st.local.u32 [%at+12], %s;
ret;
}}
.visible .entry test(.param .u64 out)
{{
{declarations}
.reg .b32 %r<9>, %t; .reg .b64 %d<9>, %at; .reg .pred %p;
ld.param.u64 %d1, [out];
mov.u32 %t, %tid.x;
mul.wide.u32 %d2, %t, 4;
add.u64 %d1, %d1, %d2;
and.b32 %r1, %t, 1;
setp.eq.u32 %p, %r1, 0;
mov.u64 %d3, a{one};
mov.u64 %d4, a{other};
selp.b64 %at, %d3, %d4, %p;
add.s64 %at, %at, {offset};
st.local.u32 [%at+12], %t;
{way}
ld.local.u32 %r2, [%at+12];
st.global.u32 [%d1], %r2;
ret;
}}
"
    )
}

const WAYS: [&str; 2] =
    ["call (%r3), add, (%at, 7);", "add.u32 %r3, %t, 7; st.local.u32 [%at+12], %r3;"];

#[test]
fn pointers_to_one_of_several_arrays_go_through() {
    let wanted: Vec<u32> = (0..THREADS).map(|thread| thread + 7).collect();
    for (arrays, way) in [2, 7].into_iter().flat_map(|arrays| WAYS.map(|way| (arrays, way))) {
        let module = partita_ptx::parse(&chooser(arrays, way, "0")).unwrap();
        let ptx = partita_ptx::print(&partita_ptx::contain(&module).module);
        for form in [Form::Original, Form::Worker { task: 1 }, Form::Ticket] {
            assert_eq!(launch(&ptx, form), Ok(wanted.clone()), "{form:?}\n{ptx}");
        }
    }
}

#[test]
fn pointers_of_local_memory_beyond_all_arrays_end_the_launch() {
    for (arrays, way) in [2, 7].into_iter().flat_map(|arrays| WAYS.map(|way| (arrays, way))) {
        for far in ["112", "-128", "1000000", "0x7fffff00", "0x100000000"] {
            let module = partita_ptx::parse(&chooser(arrays, way, far)).unwrap();
            let ptx = partita_ptx::print(&partita_ptx::contain(&module).module);
            let error = launch(&ptx, Form::Original).unwrap_err();
            assert!(error.contains("trap"), "{far}: {error}\n{ptx}");
        }
    }
}
