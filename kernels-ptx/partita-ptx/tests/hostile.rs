//! Sources that are made to cost much. Nothing here recurses without bound, and a large source
//! takes time and memory in proportion. The tests measure no time: work that grows with the square
//! of these sizes would not end within a test's patience.

use partita_ptx::{Pass, WorkerOptions, parse, passes, print, verify};
use std::fmt::Write;

const HEAD: &str = ".version 8.8\n.target sm_90\n.address_size 64\n";
/// Kernels, and functions that each of them reaches.
const COUNT: u32 = 1_500;
/// Bytes of the sources that are one thing over and over.
const MUCH: usize = 10 << 20;

fn refused(begin: &str, again: &str, what: &str) {
    let source = format!("{begin}{}", again.repeat(MUCH / again.len()));
    let errors = parse(&source).expect_err("it is no PTX").to_string();
    assert!(
        errors.contains(what),
        "{begin:?} {again:?}: {}",
        errors.lines().next().unwrap_or_default()
    );
    assert!(errors.len() < 1 << 16, "what is said of it is short: {}", errors.len());
}

#[test]
fn nesting_without_end_is_refused() {
    let kernel = format!("{HEAD}.visible .entry k()\n{{\n.reg .b32 %r;\n");
    refused("", "{", "expected `.version`");
    refused(&kernel, "{", "scopes are nested deeper than 256");
    refused(&format!("{HEAD}.global .u32 x = "), "(", "nested deeper than 64");
    refused(&format!("{HEAD}.global .u32 x = "), "-", "nested deeper than 64");
    refused(&format!("{HEAD}.global .u32 x[] = "), "{", "nested deeper");
    refused(&format!("{kernel}mov.u32 %r, "), "(", "nested deeper than 64");
    refused(&format!("{kernel}mov.b32 "), "{", "nested deeper than 4");
    refused(&format!("{kernel}ld.b32 %r, "), "[", "expected an address");
    refused(&format!("{HEAD}/*"), "x", "a comment that does not end");
    refused(&format!("{HEAD}.pragma \""), "x", "a string that does not end");
    refused(HEAD, "foo;\n", "expected a directive");
}

/// Through the parser, the verifier, the printer and every pass, alone and together.
fn through_all(source: &str) {
    let module = parse(source).unwrap_or_else(|errors| panic!("{errors}"));
    verify(&module).unwrap_or_else(|errors| panic!("{errors}"));
    assert!(print(&module).len() > source.len() / 8);
    let options = WorkerOptions::default();
    for pass in Pass::ALL {
        let rewritten = pass.apply(&module, &options);
        assert_eq!(rewritten.reports.len(), module.kernels().len(), "{pass:?}");
    }
    let _ = passes::apply(&module, &[Pass::Fence, Pass::Choose, Pass::Cancel], &options);
}

#[test]
fn a_line_of_a_megabyte() {
    let line = "add.u32 %r1, %r1, %r2;".repeat((1 << 20) / 22);
    through_all(&format!("{HEAD}.visible .entry k()\n{{\n.reg .b32 %r<3>;\n{line} ret; }}\n"));
    through_all(&format!("{HEAD}.visible .entry {}()\n{{\nret;\n}}\n", "k".repeat(1 << 20)));
}

#[test]
fn many_kernels() {
    let mut source = HEAD.to_owned();
    for index in 0..20_000 {
        write!(
            source,
            ".visible .entry k{index}(.param .u64 p);\n.visible .entry k{index}(.param .u64 \
             p)\n{{\n.reg .pred %q;\n\
             .reg .b32 %r;\n.reg .b64 %d;\nld.param.u64 %d, [p];\nAGAIN:\nld.volatile.global.u32 \
             %r, [%d];\n\
             setp.ne.u32 %q, %r, 0;\n@%q bra AGAIN;\nmov.u32 %r, %ctaid.x;\nst.global.u32 [%d], \
             %r;\nret;\n}}\n"
        )
        .expect("a string takes all");
    }
    through_all(&source);
}

#[test]
fn many_kernels_that_reach_many_functions() {
    let mut source = HEAD.to_owned();
    source.push_str(
        ".func f0(.param .u64 p)\n{\n.reg .b64 %d;\nld.param.u64 %d, \
        [p];\nst.global.u64 [%d], %d;\nret;\n}\n",
    );
    for index in 1..COUNT {
        write!(
            source,
            ".func f{index}(.param .u64 p)\n{{\n.reg .b64 %d<40>;\n.param .b64 a;\nld.param.u64 \
             %d0, [p];\n{}\
             st.param.b64 [a], %d0;\ncall f{}, (a);\nret;\n}}\n",
            "add.u64 %d1, %d0, 1;\n".repeat(20),
            index - 1
        )
        .expect("a string takes all");
    }
    for index in 0..COUNT {
        write!(
            source,
            ".visible .entry k{index}(.param .u64 p)\n{{\n.reg .b64 %d;\n.param .b64 \
             a;\nld.param.u64 %d, [p];\n\
             st.param.b64 [a], %d;\ncall f{}, (a);\nret;\n}}\n",
            COUNT - 1
        )
        .expect("a string takes all");
    }
    through_all(&source);
}

#[test]
fn a_kernel_of_many_instructions() {
    let mut source = format!(
        "{HEAD}.visible .entry k(.param .u64 p)\n{{\n.reg .pred %q;\n.reg .b32 %r<200>;\n.reg \
         .b64 %d;\n\
         ld.param.u64 %d, [p];\nmov.u32 %r1, %tid.x;\n"
    );
    for index in 0..200_000 {
        let [to, one, other] = [1, 7, 3].map(|step| 2 + index * step % 190);
        writeln!(source, "add.u32 %r{to}, %r{one}, %r{other};").expect("a string takes all");
    }
    for index in 0..2_000 {
        writeln!(
            source,
            "setp.eq.u32 %q, %r2, {index};\n@%q bra L{index};\nst.global.u32 [%d], %r1;\nL{index}:"
        )
        .expect("a string takes all");
    }
    through_all(&(source + "bar.sync 0;\nret;\n}\n"));
}
