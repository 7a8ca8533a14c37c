//! Runs one instruction on many operands and compares what it gives with what is wanted.

use partita_emu::direct::{Argument, DirectError, Form, Ran, Run, prepare, run};
use partita_emu::dispatch::{Units, use_at_most};
use partita_emu::{Options, Spec, Timing};
use partita_model::Dim3;
use std::sync::Once;

/// The variable that names the widest vector units to use.
pub const UNITS: &str = "PARTITA_TEST_UNITS";

fn use_asked_units() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| match std::env::var(UNITS).as_deref() {
        Ok("baseline") => use_at_most(Units::Baseline),
        Ok("avx2") => use_at_most(Units::Avx2),
        Ok(other) => panic!("{UNITS}={other} names no vector units"),
        Err(_) => {}
    });
}

/// What a result must be.
#[derive(Clone, Copy, Debug)]
pub enum Want {
    /// These bits.
    Bits(u64),
    /// Any NaN of the result's format.
    Nan,
    /// A number of the result's format between these.
    Between(f64, f64),
}

/// A seeded source of operands (xorshift, Marsaglia 2003).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn pick(&mut self, from: &[u64]) -> u64 {
        from[(self.next() >> 33) as usize % from.len()]
    }
}

/// `count` triples of operands: half of them from `edges`, half of them what `random` makes.
pub fn triples(
    count: usize,
    seed: u64,
    edges: &[u64],
    random: impl Fn(&mut Random) -> u64,
) -> Vec<[u64; 3]> {
    let mut source = Random::new(seed);
    let mut all: Vec<[u64; 3]> = edges.iter().map(|&edge| [edge; 3]).collect();
    while all.len() < count {
        all.push(std::array::from_fn(|_| {
            if source.next() >> 63 == 0 { source.pick(edges) } else { random(&mut source) }
        }));
    }
    all
}

/// Checks that every family must have.
const LEAST: usize = 2000;
/// Warp instructions after which a kernel hangs.
const MOST: u64 = 10_000_000;

/// The forms in which a kernel must give the same results.
const FORMS: [Form; 4] = [Form::Worker { task: 3 }, Form::Ticket, Form::Fenced, Form::Contained];

/// Results of one family of instructions.
pub struct Table {
    family: &'static str,
    checks: usize,
    spellings: usize,
    wrong: Vec<String>,
    forms: &'static [Form],
}

impl Table {
    pub fn new(family: &'static str) -> Self {
        Table { family, checks: 0, spellings: 0, wrong: Vec::new(), forms: &FORMS }
    }

    /// For masks that lack their own lane, which PTX does not define: in the contained form such a
    /// lane may wait until its launch is ended.
    pub fn of_outsiders(family: &'static str) -> Self {
        Table { forms: &FORMS[..3], ..Table::new(family) }
    }

    /// Runs `text` on all `inputs`: `want` tells the result from one thread's operands. `shape` is
    /// the kind of the result, then those of the operands: `h`, `r`, `d` for 16, 32 and 64 bits,
    /// `p` for a predicate; `text` names them `{d}`, `{a}`, `{b}`, `{c}`. What stands before a line
    /// `@@` in it belongs to the module.
    pub fn check(
        &mut self,
        text: &str,
        shape: &str,
        inputs: &[[u64; 3]],
        want: impl Fn([u64; 3]) -> Want,
    ) {
        self.check_warps(text, shape, inputs, |warp, lane| want(warp[lane]));
    }

    /// As [`Table::check`], where a result depends on the operands of all lanes of its warp.
    pub fn check_warps(
        &mut self,
        text: &str,
        shape: &str,
        inputs: &[[u64; 3]],
        want: impl Fn(&[[u64; 3]], usize) -> Want,
    ) {
        // The form and the timing are the kernel's, not the instruction's: some spellings of each
        // family tell.
        let forms = if self.spellings.is_multiple_of(8) { self.forms } else { &[] };
        self.spellings += 1;
        let results = match execute(&kernel(text, shape), inputs, forms) {
            Ok(results) => results,
            Err(error) => return self.wrong.push(format!("{text}: {error}")),
        };
        let mut kinds = shape.bytes().filter(|&kind| kind != b' ');
        let result = kinds.next().unwrap();
        let kinds: Vec<u8> = kinds.collect();
        let operands: Vec<[u64; 3]> = inputs
            .iter()
            .map(|slots| {
                std::array::from_fn(|i| kinds.get(i).map_or(0, |&kind| cut(slots[i], kind)))
            })
            .collect();
        let mut bad = 0;
        for (index, &got) in results.iter().enumerate() {
            let warp = &operands[index / 32 * 32..operands.len().min(index / 32 * 32 + 32)];
            let wanted = want(warp, index % 32);
            self.checks += 1;
            if !agrees(got, wanted, result) {
                bad += 1;
                if bad <= 3 {
                    let shown = &operands[index][..kinds.len()];
                    self.wrong.push(format!("{text} of {shown:x?}: {got:#x}, wanted {wanted:x?}"));
                }
            }
        }
        if bad > 3 {
            self.wrong.push(format!("{text}: {bad} of {} wrong", inputs.len()));
        }
    }

    /// Fails where anything was wrong, or where fewer than [`LEAST`] results were compared.
    pub fn finish(self) {
        println!("{}: {} checks of {} spellings", self.family, self.checks, self.spellings);
        assert!(self.wrong.is_empty(), "{}:\n{}", self.family, self.wrong.join("\n"));
        assert!(self.checks >= LEAST, "{}: only {} checks", self.family, self.checks);
    }
}

/// The part of a slot that an operand of this kind holds.
fn cut(value: u64, kind: u8) -> u64 {
    match kind {
        b'h' => value & 0xffff,
        b'r' => value & 0xffff_ffff,
        b'p' => value & 1,
        _ => value,
    }
}

fn agrees(got: u64, want: Want, kind: u8) -> bool {
    let number =
        || if kind == b'r' { f64::from(f32::from_bits(got as u32)) } else { f64::from_bits(got) };
    match want {
        Want::Bits(bits) => got == cut(bits, kind),
        Want::Nan => number().is_nan(),
        Want::Between(low, high) => low <= number() && number() <= high,
    }
}

fn kernel(text: &str, shape: &str) -> String {
    let kinds: Vec<u8> = shape.bytes().filter(|&kind| kind != b' ').collect();
    let mut body = String::new();
    let (module, text) = text.split_once("\n@@\n").unwrap_or(("", text));
    let mut text = text.to_owned();
    for (index, (name, &kind)) in ["d", "a", "b", "c"].iter().zip(&kinds).enumerate() {
        text = text.replace(&format!("{{{name}}}"), &format!("%{}{name}", char::from(kind)));
        if index == 0 {
            continue;
        }
        let at = 8 * (index - 1);
        body += &match kind {
            b'h' => format!("\tld.global.b16 %h{name}, [%x+{at}];\n"),
            b'r' => format!("\tld.global.b32 %r{name}, [%x+{at}];\n"),
            b'd' => format!("\tld.global.b64 %d{name}, [%x+{at}];\n"),
            _ => format!(
                "\tld.global.b32 %i, [%x+{at}];\n\tand.b32 %i, %i, 1;\n\tsetp.ne.s32 %p{name}, \
                 %i, 0;\n"
            ),
        };
    }
    body += &format!("\t{text};\n");
    body += match kinds[0] {
        b'h' => "\tst.global.b16 [%y], %hd;\n",
        b'r' => "\tst.global.b32 [%y], %rd;\n",
        b'd' => "\tst.global.b64 [%y], %dd;\n",
        _ => "\tselp.b32 %i, 1, 0, %pd;\n\tst.global.b32 [%y], %i;\n",
    };
    format!(
        ".version 8.3\n.target sm_90\n.address_size 64\n{module}\n\
         .visible .entry k(.param .u64 in, .param .u64 out, .param .u32 n)\n{{\n\
         \t.reg .pred %pa, %pb, %pc, %pd, %q<4>;\n\t.reg .b16 %ha, %hb, %hc, %hd, %s<4>;\n\
         \t.reg .b32 %ra, %rb, %rc, %rd, %i, %j, %k, %t<8>;\n\t.reg .b64 %da, %db, %dc, %dd, %x, \
         %y, %u<8>;\n\
         \tld.param.u64 %x, [in];\n\tld.param.u64 %y, [out];\n\tld.param.u32 %k, [n];\n\
         \tmov.u32 %i, %ctaid.x;\n\tmov.u32 %j, %ntid.x;\n\tmov.u32 %t0, %tid.x;\n\tmad.lo.u32 \
         %i, %i, %j, %t0;\n\
         \tsetp.ge.u32 %q0, %i, %k;\n\t@%q0 ret;\n\
         \tmul.wide.u32 %u0, %i, 24;\n\tadd.u64 %x, %x, %u0;\n\tmul.wide.u32 %u0, %i, \
         8;\n\tadd.u64 %y, %y, %u0;\n\
         {body}\tret;\n}}\n"
    )
}

/// The results of the kernel as it stands; they must be those of its other forms in the other
/// timing mode, too.
fn execute(ptx: &str, inputs: &[[u64; 3]], forms: &[Form]) -> Result<Vec<u64>, String> {
    let count = inputs.len() as u32;
    use_asked_units();
    let job = Run {
        ptx: ptx.into(),
        kernel: "k".to_owned(),
        grid: Dim3::linear(count.div_ceil(64)),
        block: Dim3::linear(64),
        dynamic_shared: 0,
        arguments: vec![
            Argument::Buffer(inputs.iter().flatten().flat_map(|slot| slot.to_le_bytes()).collect()),
            Argument::Buffer(vec![0; 8 * inputs.len()]),
            Argument::Value(count.to_le_bytes().to_vec()),
        ],
        form: Form::Original,
        spec: Spec::named("cd-search-24").unwrap(),
        options: Options { timing: Timing::Off, seed: 1, ..Options::default() },
    };
    let ran = run(&job).map_err(|error| error.to_string())?;
    for &form in forms {
        let other = Run {
            form,
            options: Options { timing: Timing::On, seed: 1, ..Options::default() },
            ..job.clone()
        };
        match prepare(&other).and_then(|prepared| prepared.run_within(MOST)) {
            Ok(other) if other.buffers != ran.buffers => {
                return Err(format!("{form:?} gives other results"));
            }
            // Not every kernel has one.
            Ok(_) | Err(DirectError::NoForm { .. }) => {}
            Err(error) => return Err(format!("{form:?}: {error}")),
        }
    }
    Ok(results(&ran))
}

fn results(ran: &Ran) -> Vec<u64> {
    ran.buffers[1].as_chunks::<8>().0.iter().map(|slot| u64::from_le_bytes(*slot)).collect()
}

#[test]
fn a_wrong_result_is_seen() {
    let mut table = Table::new("harness");
    table.check("add.u32 {d}, {a}, {b}", "r rr", &[[1, 2, 0], [3, 4, 0]], |[a, b, _]| {
        Want::Bits(a + b)
    });
    assert!(table.wrong.is_empty(), "{:?}", table.wrong);
    table.check("add.u32 {d}, {a}, {b}", "r rr", &[[1, 2, 0]], |[a, b, _]| Want::Bits(a + b + 1));
    assert_eq!(table.wrong, ["add.u32 {d}, {a}, {b} of [1, 2]: 0x3, wanted Bits(4)"]);
    assert_eq!(table.checks, 3);
}
