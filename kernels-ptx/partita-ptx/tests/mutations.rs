//! No input makes the front end panic, however damaged. A source that parses passes through every
//! later step.

use std::path::Path;
use std::sync::OnceLock;

use partita_ptx::{Pass, WorkerOptions, parse, passes, print, verify};
use proptest::prelude::*;

fn seeds() -> &'static [String] {
    static SEEDS: OnceLock<Vec<String>> = OnceLock::new();
    SEEDS.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpus");
        let mut seeds = Vec::new();
        for folder in ["parse", "verify", "worker"] {
            let mut files: Vec<_> = std::fs::read_dir(root.join(folder))
                .expect("the corpus is beside the crate")
                .map(|entry| entry.expect("the folder can be read").path())
                .collect();
            files.sort();
            seeds.extend(
                files.iter().map(|file| std::fs::read_to_string(file).expect("a case is text")),
            );
        }
        seeds
    })
}

/// One piece of damage; positions are fractions of the text.
#[derive(Clone, Debug)]
enum Damage {
    Cut(f64, usize),
    Put(f64, &'static str),
    Double(f64, usize),
    Swap(f64, f64, usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    let piece = prop::sample::select(vec![
        "{",
        "}",
        "(",
        ")",
        "[",
        "]",
        ";",
        ",",
        ":",
        "@",
        "!",
        "%",
        "|",
        "-",
        "_",
        ".",
        "\"",
        "/*",
        "//",
        "0x",
        "0f",
        "1e",
        "<",
        ">",
        "=",
        "+",
        "\n",
        "\0",
        "é",
        ".reg .b32 %r<4000000000>;",
        ".param",
        ".entry",
        "bra L;",
        "%tid.x",
        "{{",
        "ret;",
        "18446744073709551616",
        "-9223372036854775808",
        ".align 0",
        "generic(",
        ".branchtargets A;",
        "call (a), f, (b);",
        "bar.sync 0;",
        "@%p1 ret;",
        ".shared .b8 x[18446744073709551615][3];",
    ]);
    prop_oneof![
        (0.0..1.0, 1_usize..40).prop_map(|(at, len)| Damage::Cut(at, len)),
        (0.0..1.0, piece).prop_map(|(at, text)| Damage::Put(at, text)),
        (0.0..1.0, 1_usize..80).prop_map(|(at, len)| Damage::Double(at, len)),
        (0.0..1.0, 0.0..1.0, 1_usize..20).prop_map(|(a, b, len)| Damage::Swap(a, b, len)),
    ]
}

fn apply(text: &str, damage: &Damage) -> String {
    let chars: Vec<char> = text.chars().collect();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a fraction of a short text"
    )]
    let place = |at: f64| (at * chars.len() as f64) as usize;
    let run = |start: usize, len: usize| &chars[start..(start + len).min(chars.len())];
    let joined = |parts: &[&[char]]| parts.iter().flat_map(|part| part.iter()).collect::<String>();
    match *damage {
        Damage::Cut(at, len) => {
            joined(&[run(0, place(at)), run((place(at) + len).min(chars.len()), usize::MAX / 2)])
        }
        Damage::Put(at, piece) => {
            let piece: Vec<char> = piece.chars().collect();
            joined(&[run(0, place(at)), &piece, run(place(at), usize::MAX / 2)])
        }
        Damage::Double(at, len) => {
            joined(&[run(0, place(at)), run(place(at), len), run(place(at), usize::MAX / 2)])
        }
        Damage::Swap(a, b, len) => {
            let mut swapped = chars.clone();
            for offset in 0..len {
                let (a, b) = (place(a) + offset, place(b) + offset);
                if a < chars.len() && b < chars.len() {
                    swapped.swap(a, b);
                }
            }
            swapped.into_iter().collect()
        }
    }
}

/// Whatever the text, no panic; and what verifies can be rewritten, and verifies then.
fn survive(text: &str) {
    let module = match parse(text) {
        Ok(module) => module,
        Err(errors) => {
            assert!(!errors.in_file("case.ptx").to_string().is_empty());
            return;
        }
    };
    let printed = print(&module);
    let again = parse(&printed)
        .unwrap_or_else(|errors| panic!("printed text does not parse: {errors}\n{printed}"));
    assert_eq!(print(&again), printed);
    let _ = module.kernels();
    if verify(&module).is_ok() {
        let options = WorkerOptions {
            keep_originals: true,
            grid_workspace: true,
            ..WorkerOptions::default()
        };
        let combined = [Pass::ALL.as_slice()];
        for wanted in Pass::ALL.chunks(1).chain(combined) {
            let printed = print(&passes::apply(&module, wanted, &options).module);
            parse(&printed).and_then(|again| verify(&again)).unwrap_or_else(|errors| {
                panic!("{wanted:?} broke the module: {errors}\n{text}\n{printed}")
            });
        }
    }
}

/// Eight times `PROPTEST_CASES`, which is 256 where it is not set.
fn cases() -> u32 {
    8 * ProptestConfig::default().cases
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None,
        ..ProptestConfig::default() })]

    #[test]
    fn damaged_cases_are_survived(seed in any::<prop::sample::Index>(),
        damages in prop::collection::vec(damage(), 1..4)) {
        let mut text = seed.get(seeds()).clone();
        for damage in &damages {
            text = apply(&text, damage);
        }
        survive(&text);
    }

    #[test]
    fn noise_is_survived(text in "\\PC{0,200}") {
        survive(&text);
        survive(&format!(".version 8.4 .target sm_90 .address_size 64 .entry k() {{ {text} }}"));
    }
}

#[test]
fn depth_and_size_are_bounded() {
    let frame = |body: &str| {
        format!(
            ".version 8.4\n.target sm_90\n.address_size 64\n.entry k() {{ .reg .b32 \
             %r<4000000000>; {body} }}"
        )
    };
    survive(&frame(&"{".repeat(100_000)));
    survive(&frame(&format!("add.s32 %r1, %r2, {}1;", "(".repeat(100_000))));
    survive(&frame(&format!("mov.b64 {}%r1;", "{".repeat(100_000))));
    survive(&frame("mov.u32 %r3999999999, 1;"));
    survive(&format!(".version 8.4\n.target sm_90\n.global .u32 x = {};", "{".repeat(100_000)));
    survive(&frame(&"L: ".repeat(100_000)));
    survive(&frame(&(0..20_000).map(|i| format!("L{i}: bra L{};", i + 1)).collect::<String>()));
}
