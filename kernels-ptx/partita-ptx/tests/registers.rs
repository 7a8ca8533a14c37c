//! No form takes a block size away from a kernel. With the registers of the original given, `ptxas`
//! gives the form at most as many as let every block of the original fit an SM. Without a `ptxas`
//! in `PARTITA_PTXAS` the tests measure nothing.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use partita_ptx::{Pass, WorkerOptions, parse, print};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::Command;

/// A kernel that holds so many words at once.
fn holding(words: u32) -> String {
    let mut text = format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry hold(.param .u64 p)\n{{\n\
         .reg .b32 %r<{words}>, %cta;\n.reg .b64 %d;\nld.param.u64 %d, [p];\n"
    );
    for word in 0..words {
        writeln!(text, "ld.volatile.global.u32 %r{word}, [%d+{}];", 4 * word).unwrap();
    }
    // The CTA's place is needed to the end.
    text += "bar.sync 0;\nmov.u32 %cta, %ctaid.x;\nadd.u32 %r0, %r0, %cta;\n";
    for word in (0..words).rev() {
        writeln!(text, "st.volatile.global.u32 [%d+{}], %r{word};", 4 * (words - word)).unwrap();
    }
    text + "ret;\n}\n"
}

/// Registers of a thread of the text's kernel.
fn registers(ptxas: &str, text: &str) -> u32 {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("in.ptx"), folder.path().join("out.cubin"));
    std::fs::write(&input, text).unwrap();
    let done = Command::new(ptxas)
        .args(["-v", "-arch=sm_80"])
        .arg(&input)
        .arg("-o")
        .arg(&output)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}\n{text}");
    let (_, rest) = said.split_once("Used ").unwrap();
    rest.split(' ').next().unwrap().parse().unwrap()
}

/// Warps of the largest block that fits an SM.
fn warps(registers: u32) -> u32 {
    (65_536 / (registers.next_multiple_of(8) * 32)).min(32)
}

/// Says that something is not tested. A passing test's `eprintln!` is kept from the reader.
fn skip(what: &str) {
    let line = format!("SKIPPED: {what}\n");
    std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes())
        .expect("standard error can be written");
}

#[test]
fn every_block_size_stays() {
    let Ok(ptxas) = std::env::var("PARTITA_PTXAS") else {
        skip("PARTITA_PTXAS names no ptxas, so no registers are counted");
        return;
    };
    let mut missed = 0;
    for words in 61..=70 {
        let text = holding(words);
        let module = parse(&text).unwrap();
        let before = registers(&ptxas, &text);
        for pass in [Pass::Worker, Pass::Ticket] {
            let with = |registers: BTreeMap<String, u32>| {
                let options = WorkerOptions { registers, ..WorkerOptions::default() };
                print(&pass.apply(&module, &options).module)
            };
            let bounded = registers(&ptxas, &with(BTreeMap::from([("hold".to_owned(), before)])));
            assert!(
                warps(bounded) >= warps(before),
                "{pass:?}, {words} words: {before}, then {bounded}"
            );
            missed += u32::from(warps(registers(&ptxas, &with(BTreeMap::new()))) < warps(before));
        }
    }
    assert!(missed > 0, "no kernel here would lose a block size, so the test shows nothing");
}

#[test]
fn the_original_stays_where_a_bound_may_not_hold() {
    let call = |how: &str| {
        format!(
            ".version 8.0\n.target sm_80\n.address_size 64\n.func f ()\n{{\nret;\n}}\n\
             .visible .entry hold()\n{{\n.reg .b64 %d;\nmov.b64 %d, f;\n{how}\nret;\n}}\n"
        )
    };
    let through_register = "p: .callprototype _ ();\ncall %d, (), p;";
    for (how, stays) in [("call f, ();", false), (through_register, true)] {
        let module = parse(&call(how)).unwrap();
        let registers = BTreeMap::from([("hold".to_owned(), 64)]);
        for (registers, stays) in [(BTreeMap::new(), false), (registers, stays)] {
            let options =
                WorkerOptions { keep_originals: true, registers, ..WorkerOptions::default() };
            let reports = partita_ptx::worker(&module, &options).reports;
            assert_eq!(reports[0].rewritten().unwrap().original.is_some(), stays, "{how}");
        }
    }
}
