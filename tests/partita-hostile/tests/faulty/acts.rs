//! What a kernel can do wrong, one function a fault.
//!
//! A text may use `%w %v %u %s` (32 bits), `%x %y %a %b` (64 bits), `%r20` to `%r31`, `%d20` to
//! `%d31`, `%p3` to `%p6`, and what the kernel has: `%data`, `%d2` (a right address), `%zero`.

use super::{Act, BYTES, Random};

type Make = fn(&mut Random, usize) -> String;

/// A fault: its name, how often it is chosen, CUDA's errors that its program may get, and its text.
/// One that is never chosen is played by its name: another choice would change what seeds mean.
type Fault = (&'static str, u64, &'static [u32], Make);

/// Every fault. A launch may always end well: the thread that is wrong need not be there, and a
/// wrong address may lead to the program's own memory.
const FAULTS: [Fault; 42] = [
    ("global, beyond", 8, &[716], |random, _| global(random, Random::beyond)),
    ("global, misaligned", 6, &[716], |random, _| global(random, Random::odd)),
    ("shared, beyond", 5, &[700, 716], |random, _| shared(random, Random::far)),
    ("shared, misaligned", 4, &[700, 716], |random, _| shared(random, Random::odd_small)),
    ("dynamic shared, beyond", 4, &[700, 716], |random, _| dynamic(random)),
    ("local, beyond", 4, &[700, 716], |random, _| local(random, Random::far)),
    ("local, misaligned", 3, &[700, 716], |random, _| local(random, Random::odd_small)),
    ("generic, wild", 4, &[700, 716], |random, _| generic(random)),
    ("constant, beyond", 3, &[700, 716], |random, _| constant(random)),
    ("constant, written", 1, &[], |_, _| written_constant()),
    ("parameter, beyond", 3, &[700, 716], |random, _| parameter(random)),
    ("copy, misaligned", 3, &[716], |random, _| copy(random, Random::odd)),
    ("copy, beyond", 2, &[716], |random, _| copy(random, Random::beyond)),
    ("copy to shared, beyond", 2, &[700, 716], |random, _| copy_to(random)),
    ("matrix, shared beyond", 2, &[700, 716], |random, _| matrix(random, Random::far)),
    ("matrix, shared misaligned", 2, &[700, 716], |random, _| matrix(random, Random::odd_small)),
    ("wmma, shared beyond", 2, &[700, 716], |random, _| wmma(random, Random::far)),
    ("wmma, shared misaligned", 2, &[700, 716], |random, _| wmma(random, Random::odd_small)),
    ("generic, local beyond", 2, &[700, 716], |random, _| generic_local(random)),
    ("atomic, local", 2, &[700], |random, _| atomic_local(random)),
    ("prefetch, wild", 1, &[], |random, _| prefetch(random)),
    ("trap", 2, &[719], |_, _| "\ttrap;\n".to_owned()),
    ("assertion", 2, &[710], |_, index| assertion(index)),
    ("recursion", 2, &[800], |_, index| recursion(index)),
    ("alloca", 2, &[800], |random, _| alloca(random)),
    ("endless loop", 3, &[702], endless),
    ("branch by table, beyond", 3, &[], table),
    ("call, bad pointer", 1, &[800], |_, index| bad_call(index)),
    ("barrier, number", 2, &[715], |random, _| barrier_number(random)),
    ("barrier, never full", 2, &[702], |random, _| barrier_never_full(random)),
    ("mbarrier, misaligned", 1, &[800], |random, _| mbarrier(random, Random::odd_small)),
    ("mbarrier, beyond", 1, &[800], |random, _| mbarrier(random, Random::far)),
    ("division", 1, &[], |_, _| division()),
    ("malloc", 1, &[800], |_, index| malloc(index)),
    ("reductions, apart", 0, &[702], reductions_apart),
    ("reductions, never full", 0, &[702], |random, _| reduction_never_full(random)),
    ("threads, apart", 0, &[702], threads_apart),
    ("lanes, apart", 0, &[700, 702], lanes_apart),
    ("lanes, words", 0, &[700, 702], lanes_words),
    ("callers' arrays, beyond", 0, &[700, 716], callers_arrays),
    ("matrix, generic", 0, &[700, 716], generic_matrix),
    ("breakpoint", 0, &[719], |_, _| "\tbrkpt;\n".to_owned()),
];

/// A fault, of this name if one is given.
pub fn act(random: &mut Random, index: usize, only: Option<&str>) -> Act {
    let all: u64 = FAULTS.iter().map(|(_, weight, ..)| weight).sum();
    let mut chosen = random.below(all);
    let by_chance = FAULTS.iter().find(|(_, weight, ..)| {
        let is_it = chosen < *weight;
        chosen = chosen.saturating_sub(*weight);
        is_it
    });
    let by_name = only.and_then(|only| FAULTS.iter().find(|(name, ..)| *name == only));
    let &(name, _, errors, make) = by_name.or(by_chance).expect("weights add up");
    let made = make(random, index);
    let (outside, text) = made.split_once("----\n").unwrap_or(("", &made));
    Act { name, errors, text: text.to_owned(), outside: outside.to_owned() }
}

/// An access: type, bytes, registers of its value.
#[derive(Clone, Copy)]
struct Access {
    ty: &'static str,
    bytes: u64,
    value: &'static str,
}

const ACCESSES: [Access; 9] = [
    Access { ty: "u8", bytes: 1, value: "%h1" },
    Access { ty: "b16", bytes: 2, value: "%h1" },
    Access { ty: "u32", bytes: 4, value: "%r20" },
    Access { ty: "f32", bytes: 4, value: "%f1" },
    Access { ty: "b64", bytes: 8, value: "%d20" },
    Access { ty: "v2.u32", bytes: 8, value: "{%r20, %r21}" },
    Access { ty: "v4.u32", bytes: 16, value: "{%r20, %r21, %r22, %r23}" },
    Access { ty: "v2.b64", bytes: 16, value: "{%d20, %d21}" },
    Access { ty: "v4.f32", bytes: 16, value: "{%f1, %f2, %f3, %f4}" },
];

impl Random {
    /// A distance that leaves the memory, some way or other.
    fn beyond(&mut self) -> u64 {
        match self.below(6) {
            0 => BYTES + self.below(64) * 16,
            1 => BYTES + self.below(4 << 20) / 16 * 16,
            2 => self.below(1 << 40) & !15,
            3 => self.below(1 << 40).wrapping_neg() & !15,
            4 => (1 << self.below(63)) & !15,
            _ => self.below(u64::MAX) & !15,
        }
    }

    /// A distance inside the memory that is no multiple of much.
    fn odd(&mut self) -> u64 {
        self.below(BYTES - 64) / 2 + self.one_of(&[1, 2, 4, 8, 3])
    }

    /// A distance that leaves arrays of shared or local memory.
    fn far(&mut self) -> u64 {
        match self.below(4) {
            0 => 1024 + self.below(64) * 16,
            1 => self.below(1 << 20) & !15,
            2 => self.below(1 << 32) & !15,
            _ => self.below(1 << 24).wrapping_neg() & !15,
        }
    }

    fn odd_small(&mut self) -> u64 {
        self.below(32) + self.one_of(&[1, 2, 4, 3])
    }

    /// Puts a 64-bit number into a register, in a way of several.
    fn number(&mut self, reg: &str, value: u64) -> String {
        let value = value.cast_signed();
        match self.below(4) {
            0 => format!("\tmov.u64 {reg}, {value};\n"),
            1 => format!("\tcvt.u64.u32 {reg}, %zero;\n\tadd.s64 {reg}, {reg}, {value};\n"),
            2 => format!("\tmul.wide.u32 {reg}, %zero, 16;\n\txor.b64 {reg}, {reg}, {value};\n"),
            _ => format!("\tmul.wide.u32 {reg}, %r2, 16;\n\tadd.s64 {reg}, {reg}, {value};\n"),
        }
    }
}

/// A load, a store, or an atomic in a space, "" for a generic one.
fn access(random: &mut Random, space: &str, address: &str) -> String {
    let Access { ty, bytes, value } = random.one_of(&ACCESSES);
    let offset = random.one_of(&["", "", "+16", "+4096", "-32"]);
    let at = format!("[{address}{offset}]");
    match random.below(5) {
        0 | 1 => format!("\tld{space}.{ty} {value}, {at};\n\tst.global.u32 [%d2], %r20;\n"),
        2 | 3 => format!("\tst{space}.{ty} {at}, {value};\n"),
        _ if bytes == 8 && space != ".local" => {
            format!("\tatom{space}.add.u64 %d21, {at}, 1;\n\tst.global.u32 [%d2], %r20;\n")
        }
        _ if space != ".local" => {
            let op = random.one_of(&["atom", "red"]);
            let result = if op == "atom" { "%r21, " } else { "" };
            format!("\t{op}{space}.add.u32 {result}{at}, 1;\n")
        }
        _ => format!("\tld{space}.{ty} {value}, {at};\n"),
    }
}

fn global(random: &mut Random, distance: fn(&mut Random) -> u64) -> String {
    let far = distance(random);
    let number = random.number("%x", far);
    let (cast, space) = match random.below(3) {
        0 => ("", ".global"),
        1 => ("\tcvta.to.global.u64 %y, %y;\n", ".global"),
        _ => ("", ""),
    };
    let base = random.one_of(&["%data", "%data", "%d2", "words"]);
    let base = if base == "words" {
        "\tmov.u64 %b, words;\n"
    } else {
        &format!("\tmov.u64 %b, {base};\n")
    };
    format!("{number}{base}\tadd.s64 %y, %b, %x;\n{cast}{}", access(random, space, "%y"))
}

fn shared(random: &mut Random, distance: fn(&mut Random) -> u64) -> String {
    let far = distance(random);
    let number = random.number("%x", far);
    match random.below(3) {
        0 => format!(
            "{number}\tcvt.u32.u64 %w, %x;\n\tmov.u32 %v, tile;\n\tadd.u32 %v, %v, %w;\n{}",
            access(random, ".shared", "%v")
        ),
        1 => format!(
            "{number}\tmov.u64 %y, tile;\n\tadd.s64 %y, %y, %x;\n{}",
            access(random, ".shared", "%y")
        ),
        _ => format!(
            "{number}\tmov.u64 %y, tile;\n\tcvta.shared.u64 %y, %y;\n\tadd.s64 %y, %y, %x;\n{}",
            access(random, "", "%y")
        ),
    }
}

fn dynamic(random: &mut Random) -> String {
    let far = random.far();
    let number = random.number("%x", far);
    format!(
        "{number}\tcvt.u32.u64 %w, %x;\n\tmov.u32 %v, dynamic;\n\tadd.u32 %v, %v, %w;\n{}",
        access(random, ".shared", "%v")
    )
}

fn local(random: &mut Random, distance: fn(&mut Random) -> u64) -> String {
    let far = distance(random);
    let number = random.number("%x", far);
    match random.below(3) {
        0 => format!(
            "{number}\tcvt.u32.u64 %w, %x;\n\tmov.u32 %v, stack;\n\tadd.u32 %v, %v, %w;\n{}",
            access(random, ".local", "%v")
        ),
        1 => format!(
            "{number}\tmov.u64 %y, stack;\n\tadd.s64 %y, %y, %x;\n{}",
            access(random, ".local", "%y")
        ),
        _ => format!(
            "{number}\tmov.u64 %y, stack;\n\tcvta.local.u64 %y, %y;\n\tadd.s64 %y, %y, %x;\n{}",
            access(random, "", "%y")
        ),
    }
}

/// A generic address from nowhere: null, small, huge.
fn generic(random: &mut Random) -> String {
    let address = match random.below(4) {
        0 => random.below(4096) & !15,
        1 => random.below(1 << 32) & !15,
        2 => random.below(1 << 47) & !15,
        _ => random.below(u64::MAX) & !15,
    };
    format!("{}{}", random.number("%y", address), access(random, "", "%y"))
}

/// A generic address of local memory that follows from no array.
fn generic_local(random: &mut Random) -> String {
    let far = (random.one_of(&[0, 64]) + random.far()) & 0xffff_ffff;
    let number = random.number("%y", far);
    // The kernel knows its local memory; a function may be handed a caller's.
    format!("\t// %own\n{number}\tcvta.local.u64 %y, %y;\n{}", access(random, "", "%y"))
}

/// Two functions get a pointer that may name no array of any caller, or one of these.
fn callers_arrays(random: &mut Random, index: usize) -> String {
    let far = random.one_of(&[0_u64, 64, 1 << 20]).wrapping_add(random.far()) & 0xffff_ffff;
    let number = random.number("%y", far);
    let (space, generic) = random.one_of(&[("", "cvta.local.u64 %y, %y;\n"), (".local", "\n")]);
    let near = "mov.u64 %a, stack;\n\tadd.s64 %y, %y, %a;\n\t";
    let pointer = random.one_of(&["", near]).to_owned() + generic;
    let registers = ".reg .b16 %h<8>; .reg .b32 %r<32>; .reg .f32 %f<8>; .reg .b64 %d<32>;";
    let access = access(random, space, "%y");
    format!(
        ".func inner{index}(.reg .b64 %y) {{ {registers} .local .align 8 .b8 own[24]; {access} \
         ret; }}\n.func outer{index}(.reg .b64 %p) {{ .local .align 8 .b8 own[40]; call \
         inner{index}, (%p); ret; }}\n----\n\t// %own\n{number}\t{pointer}\tcall \
         outer{index}, (%y);\n"
    )
}

fn constant(random: &mut Random) -> String {
    let far = random.far();
    let number = random.number("%x", far);
    let Access { ty, value, .. } = random.one_of(&ACCESSES);
    match random.below(2) {
        0 => format!(
            "{number}\tmov.u64 %y, table;\n\tadd.s64 %y, %y, %x;\n\tld.const.{ty} {value}, [%y];\n"
        ),
        _ => format!(
            "{number}\tmov.u64 %y, table;\n\tcvta.const.u64 %y, %y;\n\tadd.s64 %y, %y, %x;\n\
             \tld.{ty} {value}, [%y];\n"
        ),
    }
}

fn written_constant() -> String {
    "\tmov.u64 %y, table;\n\tcvta.const.u64 %y, %y;\n\tst.u32 [%y], %r2;\n".to_owned()
}

fn parameter(random: &mut Random) -> String {
    let far = random.far();
    let number = random.number("%x", far);
    // Only the kernel has such a parameter: `%own` keeps the text out of functions.
    format!(
        "\t// %own\n{number}\tmov.u64 %y, to;\n\tadd.s64 %y, %y, %x;\n\tld.param.u32 %r20, [%y];\n"
    )
}

fn copy(random: &mut Random, distance: fn(&mut Random) -> u64) -> String {
    let far = distance(random);
    let number = random.number("%x", far);
    let (way, bytes) = random.one_of(&[("ca", 4), ("ca", 8), ("ca", 16), ("cg", 16)]);
    format!(
        "{number}\tmov.u32 %v, tile;\n\tadd.s64 %y, %data, %x;\n\
         \tcp.async.{way}.shared.global [%v], [%y], {bytes};\n\
         \tcp.async.commit_group;\n\tcp.async.wait_group 0;\n"
    )
}

fn copy_to(random: &mut Random) -> String {
    let far = random.far() + random.one_of(&[0, 2]);
    let number = random.number("%x", far);
    format!(
        "{number}\tcvt.u32.u64 %w, %x;\n\tmov.u32 %v, tile;\n\tadd.u32 %v, %v, %w;\n\
         \tcp.async.ca.shared.global [%v], [%data], 4;\n\tcp.async.wait_all;\n"
    )
}

fn matrix(random: &mut Random, distance: fn(&mut Random) -> u64) -> String {
    let far = distance(random);
    let number = random.number("%x", far);
    format!(
        "{number}\tcvt.u32.u64 %w, %x;\n\tmov.u32 %v, tile;\n\tadd.u32 %v, %v, %w;\n\
         \tldmatrix.sync.aligned.m8n8.x1.shared.b16 {{%r20}}, [%v];\n"
    )
}

/// The hardware takes any generic address for one of shared memory.
fn generic_matrix(random: &mut Random, _: usize) -> String {
    let far = random.far();
    let number = random.number("%x", far);
    let base = random.one_of(&[
        "mov.u64 %y, %data;",
        "mov.u64 %y, table;\n\tcvta.const.u64 %y, %y;",
        "cvt.u64.u32 %y, %v;\n\tcvta.shared.u64 %y, %y;",
        "mov.u64 %y, 0;",
    ]);
    format!(
        "{number}\tmov.u32 %v, tile;\n\t{base}\n\tadd.s64 %y, %y, %x;\n\
         \tldmatrix.sync.aligned.m8n8.x1.b16 {{%r20}}, [%y];\n"
    )
}

/// A matrix whose address or whose lines are wrong. All lanes have one address and one distance.
fn wmma(random: &mut Random, distance: fn(&mut Random) -> u64) -> String {
    let far = distance(random);
    let (at, stride) = random.one_of(&[(far, 16), (0, far | 1 << 10), (far, far)]);
    let (at, stride) = (at & 0xffff_ffff, stride & 0xffff_ffff);
    let (role, shape, ty, count) = random.one_of(&[
        ("a", "m16n16k16", "f16", 8),
        ("b", "m16n16k16", "f16", 8),
        ("c", "m16n16k16", "f32", 8),
        ("a", "m32n8k16", "u8", 4),
    ]);
    let registers: Vec<String> = (0..count).map(|index| format!("%r{}", 20 + index)).collect();
    let registers = match ty {
        "f32" => "%f0, %f1, %f2, %f3, %f4, %f5, %f6, %f7".to_owned(),
        _ => registers.join(", "),
    };
    let order = random.one_of(&["row", "col"]);
    let place = random.one_of(&["%v", "%v", "%v+16"]);
    let (stride, set) = match random.below(2) {
        0 => (stride.to_string(), String::new()),
        _ => ("%w".to_owned(), format!("\tadd.u32 %w, %zero, {stride};\n")),
    };
    let access = match (role, random.below(2)) {
        ("c", 0) => format!(
            "wmma.store.d.sync.aligned.{order}.{shape}.shared.{ty} [{place}], {{{registers}}}, \
             {stride}"
        ),
        _ => format!(
            "wmma.load.{role}.sync.aligned.{order}.{shape}.shared.{ty} {{{registers}}}, \
             [{place}], {stride}"
        ),
    };
    format!("\tmov.u32 %v, tile;\n\tadd.u32 %v, %v, {at};\n{set}\t{access};\n")
}

fn atomic_local(random: &mut Random) -> String {
    let op = random.one_of(&["atom.add.u32 %r20, [%y], 1", "red.add.u32 [%y], 1"]);
    format!("\tmov.u64 %y, stack;\n\tcvta.local.u64 %y, %y;\n\t{op};\n")
}

fn prefetch(random: &mut Random) -> String {
    let far = random.beyond() + random.below(16);
    let number = random.number("%y", far);
    let level = random.one_of(&["global.L1", "global.L2", "L1"]);
    format!("{number}\tprefetch.{level} [%y];\n")
}

fn assertion(index: usize) -> String {
    format!(
        ".global .align 1 .b8 said{index}[8] = {{102, 97, 108, 115, 101, 0, 0, 0}};\n----\n\
         \tmov.u64 %y, said{index};\n\tcvta.global.u64 %y, %y;\n{{\n\
         .param .b64 a;\n.param .b64 b;\n.param .b32 c;\n.param .b64 d;\n.param .b64 e;\n\
         \tst.param.b64 [a], %y;\n\tst.param.b64 [b], %y;\n\tmov.u32 %w, 7;\n\
         \tst.param.b32 [c], %w;\n\tst.param.b64 [d], %y;\n\tmov.u64 %x, 1;\n\
         \tst.param.b64 [e], %x;\n\tcall.uni __assertfail, (a, b, c, d, e);\n}}\n"
    )
}

/// A function that calls itself for ever, with 4 KiB a call.
fn recursion(index: usize) -> String {
    format!(
        ".func deeper{index}(.reg .b32 %n)\n{{\n\t.reg .b32 %m;\n\t.reg .b64 %at;\n\
         \t.local .align 4 .b8 room[4096];\n\tmov.u64 %at, room;\n\tst.local.u32 [%at], %n;\n\
         \tadd.u32 %m, %n, 1;\n\tcall deeper{index}, (%m);\n\
         \tld.local.u32 %m, [%at];\n\tret;\n}}\n----\n\tcall deeper{index}, (%r1);\n"
    )
}

fn alloca(random: &mut Random) -> String {
    let bytes = random.one_of(&[1_u64 << 20, 1 << 31, u64::MAX / 2]);
    let number = random.number("%x", bytes);
    format!(
        "{number}\talloca.u64 %y, %x, 16;\n\tst.local.u32 [%y], %r1;\n\
         \tst.global.u32 [%d2], %r1;\n"
    )
}

fn endless(random: &mut Random, index: usize) -> String {
    let round = match random.below(8) {
        0 => format!("$EVER{index}:\n\tbra $EVER{index};\n"),
        1 => format!("$EVER{index}:\n\tadd.u32 %w, %w, 1;\n\tbra.uni $EVER{index};\n"),
        // The step is zero, which nothing but the launch knows.
        2 => format!(
            "\tmov.u32 %w, 0;\n$EVER{index}:\n\tadd.u32 %w, %w, %zero;\n\
             \tsetp.lt.u32 %p3, %w, 100;\n\t@%p3 bra $EVER{index};\n"
        ),
        // It wraps around and never hits its end.
        3 => format!(
            "\tmov.u32 %w, 1;\n$EVER{index}:\n\tadd.u32 %w, %w, 2;\n\
             \tsetp.ne.u32 %p3, %w, 100;\n\t@%p3 bra $EVER{index};\n"
        ),
        // A list that leads to itself, at an address of eight bytes.
        4 => format!(
            "\tand.b64 %x, %d2, -8;\n\tadd.s64 %x, %x, 32768;\n$EVER{index}:\n\
             \tst.global.u64 [%x], %x;\n\tld.global.u64 %x, [%x];\n\tsetp.ne.u64 %p3, %x, 0;\n\
             \t@%p3 bra $EVER{index};\n"
        ),
        // Two loops, of which the inner one ends.
        5 => format!(
            "\tmov.u32 %w, 1;\n$EVER{index}:\n\tmov.u32 %v, 0;\n$IN{index}:\n\
             \tadd.u32 %v, %v, 1;\n\tsetp.lt.u32 %p3, %v, 7;\n\t@%p3 bra $IN{index};\n\
             \tmul.lo.u32 %w, %w, %v;\n\tsetp.ne.u32 %p4, %w, %zero;\n\t@%p4 bra $EVER{index};\n"
        ),
        // 2^60 rounds by three loops that end.
        6 => format!(
            "\tmov.u32 %w, 0;\n$A{index}:\n\tmov.u32 %v, 0;\n$B{index}:\n\tmov.u32 %u, 0;\n\
             $C{index}:\n\tadd.u32 %u, %u, 1;\n\tsetp.lt.u32 %p3, %u, 1048576;\n\
             \t@%p3 bra $C{index};\n\tadd.u32 %v, %v, 1;\n\tsetp.lt.u32 %p3, %v, 1048576;\n\
             \t@%p3 bra $B{index};\n\tadd.u32 %w, %w, 1;\n\tsetp.lt.u32 %p3, %w, 1048576;\n\
             \t@%p3 bra $A{index};\n\tst.global.u32 [%d2], %u;\n"
        ),
        // A lock that nobody opens.
        _ => format!(
            "\tmov.u64 %y, words;\n\tatom.global.exch.b32 %w, [%y], 1;\n$EVER{index}:\n\
             \tatom.global.cas.b32 %w, [%y], 0, 1;\n\tsetp.ne.u32 %p3, %w, 0;\n\
             \t@%p3 bra $EVER{index};\n"
        ),
    };
    format!("\tmov.u32 %w, 0;\n{round}")
}

fn table(random: &mut Random, index: usize) -> String {
    let at = random.one_of(&[4, 100, 0x7fff_ffff, 0xffff_ffff_u32]);
    format!(
        "\tadd.u32 %w, %zero, {at};\nTABLE{index}: .branchtargets $T{index}A, $T{index}B, \
         $T{index}C;\n\tbrx.idx %w, TABLE{index};\n$T{index}A:\n\tst.global.u32 [%d2], %r1;\n\
         \tbra $T{index}C;\n$T{index}B:\n\tst.global.u32 [%d2], %r2;\n$T{index}C:\n"
    )
}

fn bad_call(index: usize) -> String {
    format!(
        "\tmov.u64 %y, 0x1234;\nPROTO{index}: .callprototype _ ();\n\tcall %y, (), PROTO{index};\n"
    )
}

fn barrier_number(random: &mut Random) -> String {
    let number = random.one_of(&[16, 17, 255, 0xffff_ffff_u32]);
    format!("\tadd.u32 %w, %zero, {number};\n\tbar.sync %w;\n")
}

/// Warps wait at barriers of their own for one warp more, which never comes. A CTA of one warp has
/// none to wait for.
fn barrier_never_full(random: &mut Random) -> String {
    let (first, wait) = (random.below(2), random.one_of(&["bar", "barrier"]));
    let wait = if wait == "bar" { "bar.sync" } else { "barrier.sync.aligned" };
    format!(
        "\tshr.u32 %w, %r2, 5;\n\tadd.u32 %w, %w, {first};\n\tmov.u32 %v, %ntid.x;\n\
         \tmin.u32 %v, %v, 64;\n\t{wait} %w, %v;\n"
    )
}

/// Every other warp waits at another reduction. A CTA of one warp has none to wait for.
fn reductions_apart(random: &mut Random, index: usize) -> String {
    let votes = "\tsetp.lt.u32 %p3, %r2, 3;\n\tand.b32 %w, %r2, 32;\n\tshr.u32 %w, %w, 5;\n";
    if random.is(2) {
        return format!("{votes}\tbar.red.popc.u32 %v, %w, %p3;\n");
    }
    let how = random.one_of(&["and", "or"]);
    format!(
        "{votes}\tsetp.eq.u32 %p4, %w, 0;\n\t@%p4 bra $OTHER{index};\n\tbar.red.{how}.pred %p5, 0, \
         %p3;\n\tbra $VOTED{index};\n$OTHER{index}:\n\tbarrier.red.popc.aligned.u32 %v, 1, \
         %p3;\n$VOTED{index}:\n"
    )
}

/// A reduction waits for one warp more than there is, in every warp or in every other one.
fn reduction_never_full(random: &mut Random) -> String {
    let how = random.one_of(&["bar.red.popc", "barrier.red.popc.aligned", "barrier.red.popc"]);
    let who = random.one_of(&["", "\tand.b32 %w, %r2, 32;\n\tsetp.eq.u32 %p4, %w, 0;\n"]);
    let guard = if who.is_empty() { "" } else { "@%p4 " };
    format!(
        "{who}\tshr.u32 %w, %r2, 5;\n\tand.b32 %w, %w, 7;\n\tmov.u32 %v, %ntid.x;\n\tmin.u32 \
         %v, %v, 64;\n\tsetp.lt.u32 %p3, %r2, 3;\n\t{guard}{how}.u32 %u, %w, %v, %p3;\n"
    )
}

/// Half of a warp waits at one barrier, and half at another one, or nowhere.
fn threads_apart(random: &mut Random, index: usize) -> String {
    let [one, other] = [(); 2].map(|()| {
        random.one_of(&[
            "barrier.sync 1;",
            "barrier.sync 2;",
            "barrier.sync 1, %v;",
            "barrier.red.or.pred %p5, 3, %p4;",
            "barrier.red.popc.u32 %u, 2, %v, %p4;",
            "mov.u32 %u, 1;",
        ])
    });
    let bit = random.one_of(&[1, 8, 16]);
    format!(
        "\tmov.u32 %v, %ntid.x;\n\tmin.u32 %v, %v, 64;\n\tand.b32 %w, %r2, {bit};\n\tsetp.eq.u32 \
         %p4, %w, 0;\n\t@%p4 bra $ONE{index};\n\t{other}\n\tbra $BOTH{index};\n$ONE{index}:\n\
         \t{one}\n$BOTH{index}:\n\tbarrier.sync 4;\n"
    )
}

/// Lanes of a warp wait for each other in different places, for different lanes.
fn lanes_apart(random: &mut Random, index: usize) -> String {
    let [one, other, last] = [(); 3].map(|()| {
        let mask = random.one_of(&[
            "0xffffffff",
            "0xffffffff",
            "0xffff",
            "0x0f0f0f0f",
            "0xfffffffe",
            "%u",
            "%r2",
        ]);
        let wait = random.one_of(&[
            "shfl.sync.bfly.b32 %r20, %r2, 1, 0x1f, MASK;",
            "shfl.sync.idx.b32 %r20|%p5, %r2, 0, 0x1f, MASK;",
            "vote.sync.ballot.b32 %r20, %p4, MASK;",
            "match.any.sync.b32 %r20, %r2, MASK;",
            "bar.warp.sync MASK;",
            "activemask.b32 %s; bar.warp.sync %s;",
            "bar.sync 0;",
            "bar.sync 1;",
            "bar.red.or.pred %p6, 2, %p4;",
            "@%p5 bar.warp.sync MASK;",
            "movmatrix.sync.aligned.m8n8.trans.b16 %r20, %r2;",
        ]);
        wait.replace("MASK", mask)
    });
    let bit = random.one_of(&[1, 8, 16, 24]);
    format!(
        "\tmov.u32 %u, 3;\n\tshl.b32 %u, %u, %r2;\n\tand.b32 %w, %r2, {bit};\n\tsetp.eq.u32 %p4, \
         %w, 0;\n\tsetp.gt.u32 %p5, %r2, 9;\n\t@%p4 bra $ONE{index};\n\t{other}\n\tbra \
         $BOTH{index};\n$ONE{index}:\n\t{one}\n$BOTH{index}:\n\t{last}\n"
    )
}

/// Writes all shared memory up to somewhere, and then lanes wait for each other.
fn lanes_words(random: &mut Random, index: usize) -> String {
    let (store, step) = random.one_of(&[
        ("st.shared.u32 [%v], %u;", 4),
        ("st.shared.u8 [%v+3], %u;", 1),
        ("red.shared.or.b32 [%v], %u;", 4),
        ("cvt.u64.u32 %y, %v; cvta.shared.u64 %y, %y; st.u32 [%y+8], %u;", 4),
        ("cvt.u64.u32 %y, %v; cvta.shared.u64 %y, %y; st.v2.b64 [%y], {%data, %data};", 16),
    ]);
    let most = random.one_of(&[512, 2048, 8192, 40_000]);
    let value = random.one_of(&[0, 1, 0xffff, 0xffff_ffff_u32]);
    let apart = lanes_apart(random, index);
    format!(
        "\tmov.u32 %u, {value};\n\tmov.u32 %v, 0;\n$WORD{index}:\n\t{store}\n\tadd.u32 %v, %v, \
         {step};\n\tsetp.lt.u32 %p4, %v, {most};\n\t@%p4 bra $WORD{index};\n{apart}"
    )
}

fn mbarrier(random: &mut Random, distance: fn(&mut Random) -> u64) -> String {
    let far = distance(random);
    let number = random.number("%x", far);
    format!(
        "{number}\tcvt.u32.u64 %w, %x;\n\tmov.u32 %v, tile;\n\tadd.u32 %v, %v, %w;\n\
         \tmbarrier.init.shared.b64 [%v], 64;\n"
    )
}

fn division() -> String {
    "\tdiv.u32 %w, %r1, %zero;\n\trem.s32 %v, %r1, %zero;\n\tst.global.u32 [%d2], %w;\n".to_owned()
}

fn malloc(_: usize) -> String {
    ".extern .func (.param .b64 r) malloc(.param .b64 s);\n----\n{\n.param .b64 s;\n.param .b64 \
     r;\n\tmov.u64 %x, 4096;\n\tst.param.b64 [s], %x;\n\tcall (r), malloc, (s);\n\tld.param.b64 \
     %y, [r];\n}\n"
        .to_owned()
}
