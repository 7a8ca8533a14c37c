//! `partita ptx` as its user sees it.

mod common;
mod folder;

use common::{expect, partita, text};
use folder::Files;

const SCALE: &str = "\
.version 8.0
.target sm_75
.address_size 64
.visible .entry scale(.param .u64 scale_p, .param .f32 scale_f)
{
    .reg .b64 %rd<5>;
    .reg .b32 %r<2>;
    .reg .f32 %f<4>;
    ld.param.u64 %rd1, [scale_p];
    ld.param.f32 %f1, [scale_f];
    cvta.to.global.u64 %rd2, %rd1;
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd3, %r1, 4;
    add.s64 %rd4, %rd2, %rd3;
    ld.global.f32 %f2, [%rd4];
    mul.f32 %f3, %f2, %f1;
    st.global.f32 [%rd4], %f3;
    ret;
}
";

/// Threads above a bound leave, the others wait for each other.
const EARLY: &str = "\
.version 8.0
.target sm_75
.address_size 64
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

#[test]
fn right_files() {
    let files = Files::new(&[("a.ptx", SCALE), ("b.ptx", SCALE)]);
    let output = expect(&mut files.partita(&["ptx", "check", "a.ptx", "b.ptx"]), 0, &[]);
    let line = "ok, PTX 8.0 for sm_75, 1 kernel, 0 functions\n";
    assert_eq!(text(&output.stdout), format!("a.ptx: {line}b.ptx: {line}"));
}

#[test]
fn wrong_files_say_where_and_what() {
    let broken = SCALE.replace("mul.f32 %f3, %f2, %f1;", "mul.f32 %f3 %f2;");
    let files = Files::new(&[("a.ptx", SCALE), ("b.ptx", &broken)]);
    std::fs::write(files.path("binary"), b"\x7fELF\xff\xff").unwrap();
    let stderr = [
        "b.ptx:16:17: error: expected",
        "partita: cannot read none.ptx",
        "binary: not text: byte 4",
    ];
    let output = expect(
        &mut files.partita(&["ptx", "check", "b.ptx", "none.ptx", "binary", "a.ptx"]),
        1,
        &stderr,
    );
    assert!(text(&output.stdout).starts_with("a.ptx: ok"), "what is right is said all the same");
    expect(
        &mut files.partita(&["ptx", "print", "b.ptx", "-o", "out.ptx"]),
        1,
        &["b.ptx:16:17: error"],
    );
    assert!(!files.path("out.ptx").exists());
}

#[test]
fn printing() {
    let files = Files::new(&[("a.ptx", SCALE)]);
    expect(&mut files.partita(&["ptx", "print", "a.ptx", "-o", "out.ptx"]), 0, &[]);
    let once = std::fs::read_to_string(files.path("out.ptx")).unwrap();
    let twice = expect(&mut files.partita(&["ptx", "print", "out.ptx", "-o", "-"]), 0, &[]);
    assert_eq!(text(&twice.stdout), once);
    assert!(once.contains(".visible .entry scale"), "{once}");
    expect(
        &mut files.partita(&["ptx", "print", "a.ptx", "-o", "no/such/folder"]),
        1,
        &["cannot write no/such/folder"],
    );
}

#[test]
fn rewriting() {
    let files = Files::new(&[("a.ptx", SCALE)]);
    let args = ["ptx", "rewrite", "--pass", "worker", "--strict", "a.ptx", "-o", "out.ptx"];
    let output = expect(&mut files.partita(&args), 0, &[]);
    assert_eq!((text(&output.stdout), text(&output.stderr)), (String::new(), String::new()));
    let rewritten = std::fs::read_to_string(files.path("out.ptx")).unwrap();
    assert!(rewritten.contains("%smid") && rewritten.contains("mul.f32"), "{rewritten}");
    expect(&mut files.partita(&["ptx", "check", "out.ptx"]), 0, &[]);
}

#[test]
fn kernels_that_refuse_stay_and_are_named() {
    let files = Files::new(&[("a.ptx", EARLY)]);
    let named = "a.ptx:11:5: kernel `early` stays unchanged: threads may skip this barrier";
    expect(
        &mut files.partita(&["ptx", "rewrite", "--pass", "worker", "a.ptx", "-o", "out.ptx"]),
        0,
        &[named],
    );
    let original = expect(&mut files.partita(&["ptx", "print", "a.ptx", "-o", "-"]), 0, &[]);
    assert_eq!(std::fs::read(files.path("out.ptx")).unwrap(), original.stdout);
    let strict = ["ptx", "rewrite", "--pass", "worker", "--strict", "a.ptx", "-o", "-"];
    let output = expect(&mut files.partita(&strict), 1, &[named]);
    assert_eq!(output.stdout, original.stdout);
}

#[test]
fn explaining() {
    let body = |source: &str| source.split_once(".visible").unwrap().1.to_owned();
    let both = format!("{SCALE}.visible{}", body(EARLY));
    let files = Files::new(&[("a.ptx", &both)]);
    let output = expect(&mut files.partita(&["ptx", "explain", "a.ptx"]), 0, &[]);
    let shown = text(&output.stdout);
    assert!(
        shown.starts_with(
            "a.ptx: PTX 8.0 for sm_75, 2 kernels, 0 functions\n\nscale\n  form        worker\n"
        ),
        "{shown}"
    );
    assert!(shown.contains("early\n  form        ticket\n"), "{shown}");
    assert!(
        shown.contains("  worker      refused: line 27: threads may skip this barrier"),
        "{shown}"
    );
    assert!(shown.contains("  slice       applies: adds 20 bytes of parameters"), "{shown}");
    for place in ["before the body", "between tasks", "at the end"] {
        assert!(shown.contains(&format!("waits {place}: ")), "{shown}");
    }

    let output = expect(&mut files.partita(&["ptx", "explain", "--json", "a.ptx"]), 0, &[]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let [scale, early] = [&json["kernels"][0], &json["kernels"][1]];
    assert_eq!(scale["parameter_bytes"], 12);
    let pass = |kernel: &serde_json::Value, name: &str| {
        kernel["passes"]
            .as_array()
            .unwrap()
            .iter()
            .find(|pass| pass["pass"] == name)
            .unwrap()
            .clone()
    };
    let worker = pass(scale, "worker");
    assert_eq!((&worker["applies"], &worker["shared_added_bytes"]), (&true.into(), &48.into()));
    assert!(worker["registers_added"].as_i64().unwrap() < 40, "{worker}");
    assert!(scale["registers"].as_i64().unwrap() > 0, "{scale}");
    assert!(["ptxas", "estimate"].contains(&json["registers_by"].as_str().unwrap()), "{json}");
    assert_eq!(pass(scale, "fence")["parameters_added_bytes"], 8);
    assert_eq!(early["form"], "ticket");
    assert_eq!(pass(early, "worker")["refusals"][0]["line"], 27);
    assert_eq!(pass(early, "worker")["registers_added"], serde_json::Value::Null);
    assert!(worker["round_trips"]["between_tasks"]["round_trips"].is_u64(), "{worker}");
    let ticket = pass(early, "ticket");
    assert!(ticket["round_trips"]["before_body"]["fences"].is_u64(), "{ticket}");
    assert_eq!(ticket["round_trips"]["between_tasks"], serde_json::Value::Null);
    assert_eq!(pass(scale, "fence")["round_trips"], serde_json::Value::Null);
}

#[test]
fn explaining_which_kernels_need_a_right() {
    let risky = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry risky()\n{\n\
                 .reg .b32 %r;\nmov.u32 %r, 0;\nmbarrier.init.shared.b64 [%r], 1;\nret;\n}\n\
                 .visible .entry polled()\n{\nbar.sync 1, 64;\nret;\n}\n";
    let files = Files::new(&[("a.ptx", risky)]);
    let output = expect(&mut files.partita(&["ptx", "explain", "a.ptx"]), 0, &[]);
    let shown = text(&output.stdout);
    let why = "  contain     needs a right: `mbarrier.init.shared.b64` uses an mbarrier";
    assert!(shown.contains(why), "{shown}");

    let output = expect(&mut files.partita(&["ptx", "explain", "--json", "a.ptx"]), 0, &[]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let contain = |kernel: usize| {
        let passes = json["kernels"][kernel]["passes"].as_array().unwrap();
        passes.iter().find(|pass| pass["pass"] == "contain").unwrap()
    };
    assert_eq!(
        (&contain(0)["applies"], &contain(0)["registers_added"]),
        (&false.into(), &().into())
    );
    // The words of the barrier lie behind the program's shared memory.
    assert_eq!(contain(1)["applies"], true);
    assert!(contain(1)["shared_added_bytes"].as_u64() > Some(0), "{json}");
}

#[test]
fn an_older_version() {
    let newer =
        SCALE.replace("8.0", "8.7").replace("mul.f32 %f3, %f2, %f1;", "tanh.approx.f32 %f3, %f2;");
    let files = Files::new(&[("a.ptx", &newer)]);
    let output = expect(
        &mut files.partita(&["ptx", "rewrite", "--max-version", "7.5", "a.ptx", "-o", "-"]),
        0,
        &[],
    );
    assert!(text(&output.stdout).starts_with(".version 7.5\n"));
    let too_old =
        ["ptx", "rewrite", "--max-version", "6.5", "--pass", "worker", "a.ptx", "-o", "out.ptx"];
    let named = "a.ptx:16:5: error: `tanh.approx.f32` needs PTX 7.0, and 6.5 is the limit";
    expect(&mut files.partita(&too_old), 1, &[named]);
    assert!(!files.path("out.ptx").exists());
    expect(
        &mut files.partita(&["ptx", "rewrite", "--max-version", "new", "a.ptx", "-o", "-"]),
        2,
        &["8.4"],
    );
}

#[test]
fn wrong_usage() {
    for (args, part) in [
        (&["ptx"][..], "Usage"),
        (&["ptx", "check"], "FILE"),
        (&["ptx", "print", "a.ptx"], "--output"),
    ] {
        expect(&mut partita(args), 2, &[part]);
    }
}

#[test]
fn machine_code_is_explained_by_its_tables() {
    let with_state = include_bytes!("../../../kernels-ptx/partita-cubin/tests/one.cubin");
    let plain = include_bytes!("../../../kernels-ptx/partita-cubin/tests/plain.cubin");
    let files = Files::new(&[
        ("one.cubin", &with_state[..]),
        ("plain.cubin", &plain[..]),
        ("cut", &plain[..999]),
    ]);
    let output = expect(&mut files.partita(&["ptx", "explain", "plain.cubin"]), 0, &[]);
    let said = text(&output.stdout);
    assert!(said.starts_with("plain.cubin: machine code for sm_75, 1 kernel\n"), "{said}");
    assert!(
        said.contains("form        machine code, green context\n  parameters  2, 16 B"),
        "{said}"
    );
    let output = expect(&mut files.partita(&["ptx", "explain", "--json", "one.cubin"]), 0, &[]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["kernels"][0]["form"], "original");
    assert!(json["kernels"][0]["reason"].as_str().unwrap().contains("variables"), "{json}");
    expect(&mut files.partita(&["ptx", "explain", "cut"]), 1, &["cut: ", "outside of an image"]);
}
