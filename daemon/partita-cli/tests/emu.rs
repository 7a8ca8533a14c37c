//! `partita emu` as its user sees it.

mod common;
mod folder;

use common::{expect, partita, text};
use folder::Files;
use serde_json::Value;

/// Every thread scales one float; the last ones leave.
const SCALE: &str = "\
.version 8.0
.target sm_75
.address_size 64
.visible .entry scale(.param .u64 p_in, .param .u64 p_out, .param .f32 p_factor, .param .u32 p_n)
{
    .reg .pred %p;
    .reg .b64 %rd<6>;
    .reg .b32 %r<6>;
    .reg .f32 %f<4>;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.s32 %r4, %r1, %r2, %r3;
    ld.param.u32 %r5, [p_n];
    setp.ge.u32 %p, %r4, %r5;
    @%p bra $OUT;
    ld.param.u64 %rd1, [p_in];
    ld.param.u64 %rd2, [p_out];
    ld.param.f32 %f1, [p_factor];
    mul.wide.u32 %rd3, %r4, 4;
    add.s64 %rd4, %rd1, %rd3;
    add.s64 %rd5, %rd2, %rd3;
    ld.global.f32 %f2, [%rd4];
    mul.f32 %f3, %f2, %f1;
    st.global.f32 [%rd5], %f3;
$OUT:
    ret;
}
.visible .entry early()
{
    .reg .pred %p;
    .reg .b32 %r;
    mov.u32 %r, %tid.x;
    setp.gt.u32 %p, %r, 7;
    @%p bra $OUT;
    bar.sync 0;
$OUT:
    ret;
}
";

const COUNT: u16 = 1000;

fn floats(factor: f32) -> Vec<u8> {
    (0..COUNT).flat_map(|i| (f32::from(i) * factor).to_le_bytes()).collect()
}

fn files() -> Files {
    Files::new(&[("scale.ptx", SCALE.as_bytes().to_vec()), ("x.bin", floats(1.0))])
}

/// `partita emu run scale.ptx --kernel scale`, one thread per float, with these words after it.
fn scale(words: &[&str]) -> Vec<String> {
    let start = "emu run scale.ptx --kernel scale --grid 4,1,1 --block 256,1,1 --spec cd-search-24";
    start.split(' ').chain(words.iter().copied()).map(str::to_owned).collect()
}

const ARGUMENTS: [&str; 8] =
    ["--arg", "in:x.bin", "--arg", "out:4000:y.bin", "--arg", "f32:1.5", "--arg", "u32:1000"];

fn run(files: &Files, words: &[String]) -> std::process::Command {
    files.partita(&words.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn all_forms_give_the_same_file() {
    let files = files();
    for form in ["original", "worker", "ticket"] {
        let words = scale(&[&["--form", form, "--json"][..], &ARGUMENTS].concat());
        let output = expect(&mut run(&files, &words), 0, &[]);
        assert!(std::fs::read(files.path("y.bin")).unwrap() == floats(1.5), "{form}");
        std::fs::remove_file(files.path("y.bin")).unwrap();

        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(json["form"], form);
        assert_eq!(json["grid"], serde_json::json!([4, 1, 1]));
        for counter in
            ["cycles", "warp_instructions", "thread_instructions", "global_loads", "llc_accesses"]
        {
            assert!(json[counter].as_u64().unwrap() > 0, "{form}: {counter}");
        }
    }
}

#[test]
fn a_buffer_in_place() {
    let files = files();
    let words = scale(&[
        "--arg",
        "inout:x.bin:z.bin",
        "--arg",
        "in:x.bin",
        "--arg",
        "f32:2",
        "--arg",
        "u32:0",
    ]);
    let output = expect(&mut run(&files, &words), 0, &[]);
    assert!(text(&output.stdout).contains("\ncycles "), "{}", text(&output.stdout));
    assert!(std::fs::read(files.path("z.bin")).unwrap() == floats(1.0), "nothing was to be scaled");
}

#[test]
fn time_is_the_same_each_time() {
    let files = files();
    let words = scale(&[&["--json"][..], &ARGUMENTS].concat());
    let first = expect(&mut run(&files, &words), 0, &[]);
    let second = expect(&mut run(&files, &words), 0, &[]);
    assert_eq!(text(&first.stdout), text(&second.stdout));
}

#[test]
fn several_threads_tell_what_one_tells() {
    let files = files();
    let told = |threads: &[&str]| {
        let words = scale(&[&["--json", "--no-timing"][..], threads, &ARGUMENTS].concat());
        text(&expect(&mut run(&files, &words), 0, &[]).stdout)
    };
    assert_eq!(told(&["--threads", "3"]), told(&[]));
}

#[test]
fn bad_input_is_named() {
    let files = files();
    let check = |words: Vec<String>, parts: &[&str]| {
        expect(&mut run(&files, &words), 1, parts);
    };
    let swap = |from: &str, to: &str| {
        scale(&ARGUMENTS)
            .into_iter()
            .map(|word| if word == from { to.to_owned() } else { word })
            .collect()
    };
    check(swap("scale", "scala"), &["no kernel is named `scala`; there are", "scale", "early"]);
    check(swap("scale.ptx", "none.ptx"), &["cannot read none.ptx"]);
    check(swap("in:x.bin", "in:none.bin"), &["argument 1: cannot read none.bin"]);
    check(
        swap("u32:1000", "u64:1000"),
        &["argument 4 of kernel `scale` has 4 bytes, 8 were given"],
    );
    check(swap("cd-search-24", "gtx"), &["no spec is named `gtx`", "cd-search-24"]);
    check(
        swap("out:4000:y.bin", "out:0xffffffffffff:y.bin"),
        &["argument 2: 281474976710655 bytes are more than"],
    );
    check(swap("256,1,1", "2048,1,1"), &["2048"]);
    check(scale(&ARGUMENTS[..6]), &["kernel `scale` takes 4 arguments, 3 were given"]);

    let broken = SCALE.replace("mul.f32 %f3, %f2, %f1;", "mul.f32 %f3 %f2;");
    std::fs::write(files.path("scale.ptx"), broken).unwrap();
    check(scale(&ARGUMENTS), &["scale.ptx:24:17: error: expected", "mul.f32 %f3 %f2"]);
}

#[test]
fn a_kernel_that_faults_is_told_from_one_that_cannot_run() {
    let files = files();
    let words: Vec<String> = scale(&ARGUMENTS)
        .into_iter()
        .map(|word| match word.as_str() {
            "out:4000:y.bin" => "u64:64".to_owned(),
            "4,1,1" => "1".to_owned(),
            "256,1,1" => "32".to_owned(),
            _ => word,
        })
        .collect();
    let parts = [
        "illegal address in kernel `scale`",
        "CTA (0,0,0)",
        "thread (0,0,0)",
        "PTX line 25",
        "0x40",
    ];
    expect(&mut run(&files, &words), 1, &parts);

    let refused = "emu run scale.ptx --kernel early --grid 1 --block 8 --form worker"
        .split(' ')
        .map(str::to_owned);
    let parts = ["kernel `early` does not take the form", "threads may skip this barrier"];
    expect(&mut run(&files, &refused.collect::<Vec<_>>()), 1, &parts);
}

#[test]
fn guards_of_a_real_gpu() {
    let files = files();
    let words = "emu run scale.ptx --kernel early --grid 1 --block 8 --form contained";
    let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
    let output = expect(&mut run(&files, &words), 0, &[]);
    assert!(text(&output.stdout).contains("warp instructions"), "{}", text(&output.stdout));
}

#[test]
fn specs() {
    let output = expect(&mut partita(&["emu", "specs"]), 0, &[]);
    assert!(text(&output.stdout).contains("\ncd-search-24 "), "{}", text(&output.stdout));
    let output = expect(&mut partita(&["emu", "specs", "--json"]), 0, &[]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let sms = |name: &str| json[name]["sms"].as_u64();
    let expected = [
        ("a100", 108),
        ("b200", 148),
        ("cd-search-24", 24),
        ("h200", 132),
        ("kernelet-c2050", 14),
        ("kernelet-gtx680", 8),
        ("masola-rtx2060", 30),
        ("p100", 56),
        ("punyala-60", 60),
        ("titan-xp", 30),
    ];
    for (name, count) in expected {
        assert_eq!(sms(name), Some(count), "{name}");
        let output = expect(&mut partita(&["emu", "specs", name]), 0, &[]);
        let shown = text(&output.stdout);
        let numbers =
            shown.lines().filter(|line| line.contains(" = ") && !line.starts_with("name"));
        assert!(numbers.clone().count() > 30, "{shown}");
        for number in numbers {
            assert!(
                number.split_once('#').is_some_and(|(_, source)| source.len() > 3),
                "{name}: {number}"
            );
        }
    }
    expect(&mut partita(&["emu", "specs", "h300"]), 1, &["no spec is named `h300`", "titan-xp"]);
}

#[test]
fn bad_spec_file() {
    let files =
        Files::new(&[("scale.ptx", SCALE), ("bad.toml", "name = \"mine\"\nsms = \"many\"\n")]);
    let words = "emu run scale.ptx --kernel early --grid 1 --block 8 --spec ./bad.toml";
    let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
    expect(&mut run(&files, &words), 1, &["./bad.toml, line 2: invalid type: string \"many\""]);
}

#[test]
fn wrong_usage() {
    let check = |words: &str, part: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        expect(&mut partita(&words), 2, &[part]);
    };
    check("emu run a.ptx --kernel k --grid 1", "--block");
    check("emu run a.ptx --kernel k --grid 1 --block 0", "`0` is not a whole number above zero");
    check("emu run a.ptx --kernel k --grid 1 --block 1 --form fast", "original, worker");
    check("emu run a.ptx --kernel k --grid 1 --block 1 --arg i32:7", "`i32` is no type");
    check("emu run a.ptx --kernel k --grid 1 --block 1 --arg u8:256", "256 does not fit u8");
    check("emu run a.ptx --kernel k --grid 1 --block 1 --threads 2", "--no-timing");
    check("emu run a.ptx --kernel k --grid 1 --block 1 --no-timing --threads 0", "1..=256");
    check("emu run --kernel k --grid 1 --block 1", "FILE");
}
