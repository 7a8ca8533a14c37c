//! Every variant of every instruction family: it must decode, or be refused by name.
//!
//! The tables in `variants/` hold one instruction a line. `<a|b>` stands for each of its
//! alternatives; a lone letter among the operands is a register: `c h r d q` of 8, 16, 32, 64 and
//! 128 bits, `p` a predicate, `x` an address of 64 bits, `s` one of 32.

use partita_device::{Device, Event, Horizon, ModuleFacts};
use partita_emu::{EmulatedGpu, Options, Spec};
use partita_model::{ModuleId, WindowId};

const TABLES: [(&str, &str); 9] = [
    ("integer", include_str!("variants/integer.txt")),
    ("float", include_str!("variants/float.txt")),
    ("cluster", include_str!("variants/cluster.txt")),
    ("convert", include_str!("variants/convert.txt")),
    ("memory", include_str!("variants/memory.txt")),
    ("together", include_str!("variants/together.txt")),
    ("matrix", include_str!("variants/matrix.txt")),
    ("blackwell", include_str!("variants/blackwell.txt")),
    ("old", include_str!("variants/old.txt")),
];

const HEAD: &str = "\
.version 9.0
.target sm_90a
.address_size 64
.visible .global .align 128 .b8 gl[256];
.const .align 16 .b8 co[64];
.func (.param .b32 result) function(.param .b32 argument) { ret; }
.global .align 4 .b8 generic_target[64];
";

/// Lines of a kernel, and which of them is the instruction.
const LINES: usize = 8;
const PLACE: usize = 5;

fn kernel(name: usize, instruction: &str) -> String {
    format!(
        ".visible .entry k{name}(.param .align 8 .b8 arg[16]) {{\n\
         .reg .pred %p<8>; .reg .b8 %c<8>; .reg .b16 %h<32>; .reg .b32 %r<64>;\n\
         .reg .b64 %d<32>; .reg .b128 %q<4>; .reg .b64 %x<4>; .reg .b32 %s<4>;\n\
         .shared .align 128 .b8 sh[256]; .local .align 16 .b8 \
         lo[64];\n{instruction};\ndone:\nret;\n}}\n"
    )
}

/// A line with each of its alternatives.
fn expand(line: &str) -> Vec<String> {
    let Some((before, rest)) = line.split_once('<') else { return vec![line.to_owned()] };
    let (inside, after) = rest.split_once('>').expect("an alternative ends");
    inside
        .split('|')
        .flat_map(|choice| {
            expand(after).into_iter().map(move |rest| format!("{before}{choice}{rest}"))
        })
        .collect()
}

/// Names the registers of an instruction.
fn with_registers(text: &str) -> String {
    let (operation, operands) = text.split_once(' ').unwrap_or((text, ""));
    let mut counts = [0; 128];
    let mut out = operation.to_owned() + " ";
    let mut before = ' ';
    let mut rest = operands.chars().peekable();
    while let Some(letter) = rest.next() {
        let part_of_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '%' | ':' | '.');
        let alone =
            !part_of_name(before) && !rest.peek().is_some_and(|&c| part_of_name(c) && c != '.');
        if alone && "chrdqpxs".contains(letter) {
            let count = &mut counts[letter as usize];
            out += &format!("%{letter}{count}");
            *count += 1;
        } else {
            out.push(letter);
        }
        before = letter;
    }
    out.trim_end().to_owned()
}

fn instructions(table: &str) -> Vec<String> {
    let lines = table.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.flat_map(expand).map(|text| with_registers(&text)).collect()
}

fn load(instructions: &[String]) -> ModuleFacts {
    let mut text = HEAD.to_owned();
    for (index, instruction) in instructions.iter().enumerate() {
        text += &kernel(index, instruction);
    }
    let mut gpu =
        EmulatedGpu::new(Spec::named("h200").expect("it ships with the crate"), Options::default());
    gpu.reserve(WindowId(1), 1 << 30).expect("there is room");
    gpu.load_module(ModuleId(1), WindowId(1), text.into()).expect("the id is fresh");
    let mut events = Vec::new();
    gpu.poll(Horizon { until: None, warp_instructions: 1 }, &mut events);
    match events.pop() {
        Some(Event::ModuleLoaded { facts, .. }) => facts,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_variant_decodes() {
    let mut total = 0;
    for (name, table) in TABLES {
        let instructions = instructions(table);
        let facts = load(&instructions);
        println!("{name}: {} variants", instructions.len());
        let bad: Vec<String> = facts
            .refused
            .iter()
            .map(|refused| {
                let reason = refused.reason();
                let index: usize = refused.name[1..].parse().expect("kernels are numbered");
                format!("{}: {reason}", instructions[index])
            })
            .collect();
        assert!(
            bad.is_empty(),
            "{name}: {} of {}\n{}",
            bad.len(),
            instructions.len(),
            bad.join("\n")
        );
        assert_eq!(facts.kernels.len(), instructions.len());
        total += instructions.len();
    }
    println!("{total} variants decode");
    assert!(total >= 3400, "only {total} variants");
}

#[test]
fn what_cannot_run_is_refused_by_line_instruction_and_remedy() {
    let instructions = instructions(include_str!("variants/refused.txt"));
    let facts = load(&instructions);
    assert!(
        facts.kernels.is_empty(),
        "{:?}",
        facts.kernels.iter().map(|k| &k.name).collect::<Vec<_>>()
    );
    assert_eq!(facts.refused.len(), instructions.len());
    let first = HEAD.lines().count();
    for (refused, (index, instruction)) in facts.refused.iter().zip(instructions.iter().enumerate())
    {
        let reason = refused.reason();
        assert_eq!(refused.name, format!("k{index}"));
        let operation = instruction.split(' ').next().expect("there is a word");
        let line = first + LINES * index + PLACE;
        let start = format!("line {line}: `{operation}` ");
        assert!(reason.starts_with(&start), "{reason}, wanted {start}");
        let (_, remedy) =
            reason.split_once(';').unwrap_or_else(|| panic!("{reason} names no remedy"));
        assert!(remedy.len() > 20, "{reason}");
    }
}
