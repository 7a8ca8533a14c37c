//! Matrix instructions of a warp against plain matrix products. For `mma` the host lays the
//! fragments out by the formulas of the PTX ISA, written out for each shape.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up fails")]
#![expect(clippy::float_cmp, reason = "all sums are exact")]
#![expect(clippy::cast_possible_truncation, reason = "small whole numbers in every type")]

use half::{bf16, f16};
use partita_emu::direct::{Argument, Form, Run, run};
use partita_emu::{Options, Spec, Timing};
use partita_model::Dim3;
use std::fmt::Write;

fn execute(ptx: &str, buffers: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let job = Run {
        ptx: ptx.into(),
        kernel: "test".to_owned(),
        grid: Dim3::linear(1),
        block: Dim3::linear(32),
        dynamic_shared: 0,
        arguments: buffers.into_iter().map(Argument::Buffer).collect(),
        form: Form::Original,
        spec: Spec::named("cd-search-24").unwrap(),
        options: Options { timing: Timing::Off, seed: 1, ..Options::default() },
    };
    run(&job).unwrap_or_else(|error| panic!("{error}\n{ptx}")).buffers
}

/// A kernel of four pointers in %d0 to %d3, with `%r0` the lane.
fn kernel(body: &str) -> String {
    let mut text =
        ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry test(".to_owned();
    text += ".param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3)\n{\n";
    text += ".reg .b32 %r<64>; .reg .b64 %d<64>; .shared .align 16 .b8 rows[1024];\n";
    text += "mov.u32 %r0, %laneid;\n";
    for index in 0..4 {
        writeln!(
            text,
            "ld.param.u64 %d{index}, [p{index}]; cvta.to.global.u64 %d{index}, %d{index};"
        )
        .unwrap();
    }
    text + body + "ret;\n}\n"
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    B1,
    S4,
    U4,
    E4m3,
    E5m2,
    F16,
    Bf16,
    F32,
    F64,
    S8,
    U8,
    S32,
}

impl Kind {
    fn bits(self) -> usize {
        match self {
            Kind::B1 => 1,
            Kind::S4 | Kind::U4 => 4,
            Kind::S8 | Kind::U8 | Kind::E4m3 | Kind::E5m2 => 8,
            Kind::F16 | Kind::Bf16 => 16,
            Kind::F32 | Kind::S32 => 32,
            Kind::F64 => 64,
        }
    }

    fn bytes(self) -> usize {
        self.bits() / 8
    }

    /// Whether it has no negative numbers.
    fn is_unsigned(self) -> bool {
        matches!(self, Kind::B1 | Kind::U4 | Kind::U8)
    }

    fn encode(self, value: f64) -> Vec<u8> {
        match self {
            Kind::B1 | Kind::U4 => vec![value as u8],
            Kind::S4 => vec![value as i8 as u8 & 15],
            // Whole numbers up to 4: sign, exponent, and the bit that makes 3 of 2.
            Kind::E4m3 | Kind::E5m2 => {
                let (bias, mantissa) = if self == Kind::E4m3 { (7, 3) } else { (15, 2) };
                let size = value.abs() as u32;
                let magnitude = match size {
                    0 => 0,
                    _ => {
                        let power = size.ilog2();
                        (power + bias) << mantissa
                            | (size - (1 << power)) << (mantissa - power.min(1))
                    }
                };
                vec![magnitude as u8 | if value < 0.0 { 0x80 } else { 0 }]
            }
            Kind::S8 => vec![value as i8 as u8],
            Kind::U8 => vec![value as u8],
            Kind::F16 => f16::from_f64(value).to_le_bytes().to_vec(),
            Kind::Bf16 => bf16::from_f64(value).to_le_bytes().to_vec(),
            Kind::F32 => (value as f32).to_le_bytes().to_vec(),
            Kind::S32 => (value as i32).to_le_bytes().to_vec(),
            Kind::F64 => value.to_le_bytes().to_vec(),
        }
    }

    fn decode(self, bytes: &[u8]) -> f64 {
        match self {
            Kind::B1 | Kind::S4 | Kind::U4 | Kind::E4m3 | Kind::E5m2 => {
                panic!("no result has this type")
            }
            Kind::S8 => f64::from(bytes[0] as i8),
            Kind::U8 => f64::from(bytes[0]),
            Kind::F16 => f16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
            Kind::Bf16 => bf16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
            Kind::F32 => f64::from(f32::from_le_bytes(bytes.try_into().unwrap())),
            Kind::S32 => f64::from(i32::from_le_bytes(bytes.try_into().unwrap())),
            Kind::F64 => f64::from_le_bytes(bytes.try_into().unwrap()),
        }
    }
}

/// Whole numbers of which all products and sums are exact in every type.
fn numbers(count: usize, seed: u64, low: i64, span: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (low + (state % span) as i64) as f64
        })
        .collect()
}

fn product([m, n, k]: [usize; 3], a: &[f64], b: &[f64], c: &[f64], xor: bool) -> Vec<f64> {
    let mut d = c.to_vec();
    for row in 0..m {
        for column in 0..n {
            for at in 0..k {
                let (a, b) = (a[row * k + at], b[at * n + column]);
                d[row * n + column] += if xor { f64::from(u8::from(a != b)) } else { a * b };
            }
        }
    }
    d
}

/// A fragment in registers: what the ISA says about element `i` of the lane with groupID `g` and
/// threadID_in_group `t`.
type Place = fn(usize, usize, usize) -> (usize, usize);

struct Mma {
    name: &'static str,
    mnk: [usize; 3],
    kinds: [Kind; 4],
    places: [Place; 3],
    /// Elements per lane of A, B and C.
    counts: [usize; 3],
}

const C16: Place = |i, g, t| (if i < 2 { g } else { g + 8 }, t * 2 + (i & 1));
const C8: Place = |i, g, t| (g, t * 2 + (i & 1));

fn spread(place: Place, count: usize, columns: usize, kind: Kind, matrix: &[f64]) -> Vec<u8> {
    let places = (0..32 * count).map(|at| place(at % count, at / count / 4, at / count % 4));
    packed(kind, places.map(|(row, column)| matrix[row * columns + column]))
}

/// Numbers one after the other, the first in the lowest bits.
fn packed(kind: Kind, numbers: impl Iterator<Item = f64>) -> Vec<u8> {
    if kind.bits() >= 8 {
        return numbers.flat_map(|number| kind.encode(number)).collect();
    }
    let numbers: Vec<u8> = numbers.map(|number| kind.encode(number)[0]).collect();
    numbers
        .chunks(8 / kind.bits())
        .map(|chunk| chunk.iter().rev().fold(0, |byte, number| byte << kind.bits() | number))
        .collect()
}

fn check_mma(mma: &Mma) {
    let Mma { name, mnk, kinds, places, counts } = *mma;
    let [m, n, k] = mnk;
    let span = |wide| if kinds[0] == Kind::B1 { 2 } else { wide };
    let a = numbers(m * k, 1, if kinds[0].is_unsigned() { 0 } else { -4 }, span(9));
    let b = numbers(k * n, 2, if kinds[1].is_unsigned() { 0 } else { -3 }, span(7));
    let c = numbers(m * n, 3, -8, 17);
    let columns = [k, n, n];
    let matrices = [&a, &b, &c];
    let mut buffers: Vec<Vec<u8>> = (0..3)
        .map(|index| {
            spread(places[index], counts[index], columns[index], kinds[index], matrices[index])
        })
        .collect();
    buffers.push(vec![0; 32 * counts[2] * kinds[3].bytes()]);
    let wide = kinds[0] == Kind::F64;
    let (letter, word, size) = if wide { ('d', "b64", 8) } else { ('r', "b32", 4) };
    let registers = [0, 1, 2, 3].map(|index| counts[index.min(2)] * kinds[index].bits() / 8 / size);
    let (mut body, mut lists) = (String::new(), Vec::new());
    let mut next = 10;
    for (index, &count) in registers.iter().enumerate() {
        writeln!(
            body,
            "mul.wide.u32 %d4, %r0, {}; add.u64 %d{index}, %d{index}, %d4;",
            count * size
        )
        .unwrap();
        let own: Vec<String> =
            (next..next + count).map(|register| format!("%{letter}{register}")).collect();
        next += count;
        if index < 3 {
            for (at, register) in own.iter().enumerate() {
                writeln!(body, "ld.global.{word} {register}, [%d{index}+{}];", at * size).unwrap();
            }
        }
        lists.push(own);
    }
    let list = |index: usize| lists[index].join(", ");
    writeln!(body, "{name} {{{}}}, {{{}}}, {{{}}}, {{{}}};", list(3), list(0), list(1), list(2))
        .unwrap();
    for (at, register) in lists[3].iter().enumerate() {
        writeln!(body, "st.global.{word} [%d3+{}], {register};", at * size).unwrap();
    }
    let found = execute(&kernel(&body), buffers).remove(3);
    let expect = product(mnk, &a, &b, &c, name.contains(".xor."));
    for (index, bytes) in found.chunks(kinds[3].bytes()).enumerate() {
        let (lane, i) = (index / counts[2], index % counts[2]);
        let (row, column) = places[2](i, lane / 4, lane % 4);
        assert_eq!(kinds[3].decode(bytes), expect[row * n + column], "{name} at ({row}, {column})");
    }
}

/// PTX ISA, "Matrix Fragments for mma.m16n8k8 / k16 / k32, mma.m8n8k4, mma.m8n8k16".
#[test]
fn mma_is_a_matrix_product() {
    use Kind::{B1, Bf16, E4m3, E5m2, F16, F32, F64, S4, S8, S32, U4, U8};
    let halves: [Place; 3] = [
        |i, g, t| {
            let row = if i < 2 || (4..6).contains(&i) { g } else { g + 8 };
            (row, if i < 4 { t * 2 + (i & 1) } else { t * 2 + (i & 1) + 8 })
        },
        |i, g, t| (if i < 2 { t * 2 + (i & 1) } else { t * 2 + (i & 1) + 8 }, g),
        C16,
    ];
    let short: [Place; 3] =
        [|i, g, t| (if i < 2 { g } else { g + 8 }, t * 2 + (i & 1)), |i, g, t| (t * 2 + i, g), C16];
    let words: [Place; 3] = [
        |i, g, t| (if i == 0 || i == 2 { g } else { g + 8 }, if i < 2 { t } else { t + 4 }),
        |i, g, t| (if i == 0 { t } else { t + 4 }, g),
        C16,
    ];
    let bytes16: [Place; 3] =
        [|i, g, t| (if i < 4 { g } else { g + 8 }, t * 4 + (i & 3)), |i, g, t| (t * 4 + i, g), C16];
    let bytes32: [Place; 3] = [
        |i, g, t| {
            let row = if i < 4 || (8..12).contains(&i) { g } else { g + 8 };
            (row, if i < 8 { t * 4 + (i & 3) } else { t * 4 + (i & 3) + 16 })
        },
        |i, g, t| (if i < 4 { t * 4 + (i & 3) } else { t * 4 + (i & 3) + 16 }, g),
        C16,
    ];
    let doubles: [Place; 3] = [|_, g, t| (g, t), |_, g, t| (t, g), C8];
    let bytes8: [Place; 3] = [|i, g, t| (g, t * 4 + i), |i, g, t| (t * 4 + i, g), C8];
    let all = [
        ("m16n8k16.row.col.f32.f16.f16.f32", [16, 8, 16], [F16, F16, F32, F32], halves, [8, 4, 4]),
        ("m16n8k16.row.col.f16.f16.f16.f16", [16, 8, 16], [F16, F16, F16, F16], halves, [8, 4, 4]),
        (
            "m16n8k16.row.col.f32.bf16.bf16.f32",
            [16, 8, 16],
            [Bf16, Bf16, F32, F32],
            halves,
            [8, 4, 4],
        ),
        ("m16n8k8.row.col.f32.f16.f16.f32", [16, 8, 8], [F16, F16, F32, F32], short, [4, 2, 4]),
        ("m16n8k8.row.col.f16.f16.f16.f16", [16, 8, 8], [F16, F16, F16, F16], short, [4, 2, 4]),
        ("m16n8k8.row.col.f32.bf16.bf16.f32", [16, 8, 8], [Bf16, Bf16, F32, F32], short, [4, 2, 4]),
        ("m16n8k8.row.col.f32.tf32.tf32.f32", [16, 8, 8], [F32, F32, F32, F32], words, [4, 2, 4]),
        ("m16n8k4.row.col.f32.tf32.tf32.f32", [16, 8, 4], [F32, F32, F32, F32], words, [2, 1, 4]),
        ("m8n8k4.row.col.f64.f64.f64.f64", [8, 8, 4], [F64, F64, F64, F64], doubles, [1, 1, 2]),
        ("m16n8k8.row.col.f64.f64.f64.f64", [16, 8, 8], [F64, F64, F64, F64], words, [4, 2, 4]),
        ("m8n8k16.row.col.s32.s8.s8.s32", [8, 8, 16], [S8, S8, S32, S32], bytes8, [4, 4, 2]),
        ("m16n8k16.row.col.s32.s8.s8.s32", [16, 8, 16], [S8, S8, S32, S32], bytes16, [8, 4, 4]),
        ("m16n8k32.row.col.s32.s8.s8.s32", [16, 8, 32], [S8, S8, S32, S32], bytes32, [16, 8, 4]),
        (
            "m16n8k32.row.col.satfinite.s32.u8.s8.s32",
            [16, 8, 32],
            [U8, S8, S32, S32],
            bytes32,
            [16, 8, 4],
        ),
    ];
    let nibbles8: [Place; 3] = [|i, g, t| (g, t * 8 + i), |i, g, t| (t * 8 + i, g), C8];
    let nibbles32: [Place; 3] =
        [|i, g, t| (if i < 8 { g } else { g + 8 }, t * 8 + (i & 7)), |i, g, t| (t * 8 + i, g), C16];
    let nibbles64: [Place; 3] = [
        |i, g, t| {
            let row = if i < 8 || (16..24).contains(&i) { g } else { g + 8 };
            (row, if i < 16 { t * 8 + (i & 7) } else { t * 8 + (i & 7) + 32 })
        },
        |i, g, t| (if i < 8 { t * 8 + (i & 7) } else { t * 8 + (i & 7) + 32 }, g),
        C16,
    ];
    let bits128: [Place; 3] = [|i, g, t| (g, t * 32 + i), |i, g, t| (t * 32 + i, g), C8];
    let tall128: [Place; 3] = [
        |i, g, t| (if i < 32 { g } else { g + 8 }, t * 32 + (i & 31)),
        |i, g, t| (t * 32 + i, g),
        C16,
    ];
    let bits256: [Place; 3] = [
        |i, g, t| {
            let row = if i < 32 || (64..96).contains(&i) { g } else { g + 8 };
            (row, if i < 64 { t * 32 + (i & 31) } else { t * 32 + (i & 31) + 128 })
        },
        |i, g, t| (if i < 32 { t * 32 + (i & 31) } else { t * 32 + (i & 31) + 128 }, g),
        C16,
    ];
    let small = [
        ("m8n8k32.row.col.s32.s4.s4.s32", [8, 8, 32], [S4, S4, S32, S32], nibbles8, [8, 8, 2]),
        ("m8n8k32.row.col.s32.u4.s4.s32", [8, 8, 32], [U4, S4, S32, S32], nibbles8, [8, 8, 2]),
        ("m16n8k32.row.col.s32.s4.u4.s32", [16, 8, 32], [S4, U4, S32, S32], nibbles32, [16, 8, 4]),
        (
            "m16n8k64.row.col.satfinite.s32.s4.s4.s32",
            [16, 8, 64],
            [S4, S4, S32, S32],
            nibbles64,
            [32, 16, 4],
        ),
        (
            "m8n8k128.row.col.s32.b1.b1.s32.xor.popc",
            [8, 8, 128],
            [B1, B1, S32, S32],
            bits128,
            [32, 32, 2],
        ),
        (
            "m8n8k128.row.col.s32.b1.b1.s32.and.popc",
            [8, 8, 128],
            [B1, B1, S32, S32],
            bits128,
            [32, 32, 2],
        ),
        (
            "m16n8k128.row.col.s32.b1.b1.s32.xor.popc",
            [16, 8, 128],
            [B1, B1, S32, S32],
            tall128,
            [64, 32, 4],
        ),
        (
            "m16n8k256.row.col.s32.b1.b1.s32.and.popc",
            [16, 8, 256],
            [B1, B1, S32, S32],
            bits256,
            [128, 64, 4],
        ),
        (
            "m16n8k16.row.col.f32.e4m3.e5m2.f32",
            [16, 8, 16],
            [E4m3, E5m2, F32, F32],
            bytes16,
            [8, 4, 4],
        ),
        (
            "m16n8k32.row.col.f32.e4m3.e4m3.f32",
            [16, 8, 32],
            [E4m3, E4m3, F32, F32],
            bytes32,
            [16, 8, 4],
        ),
        (
            "m16n8k32.row.col.f16.e5m2.e4m3.f16",
            [16, 8, 32],
            [E5m2, E4m3, F16, F16],
            bytes32,
            [16, 8, 4],
        ),
    ];
    for (spelling, mnk, kinds, places, counts) in all.into_iter().chain(small) {
        let name: &'static str = format!("mma.sync.aligned.{spelling}").leak();
        check_mma(&Mma { name, mnk, kinds, places, counts });
    }
}

/// Loads with `wmma`, multiplies, stores: rows and columns first, with a stride greater than
/// needed.
fn check_wmma(
    mnk: [usize; 3],
    kinds: [Kind; 3],
    names: [&str; 3],
    registers: [usize; 3],
    layouts: [bool; 3],
) {
    let [m, n, k] = mnk;
    let low = if kinds[0].is_unsigned() { 0 } else { -4 };
    let (a, b) = (numbers(m * k, 5, low, 9), numbers(k * n, 6, low, 7));
    let c = numbers(m * n, 7, -8, 17);
    let sizes = [(m, k), (k, n), (m, n)];
    let pad = 16;
    let stride = |index: usize| {
        let (rows, columns) = sizes[index];
        pad + if layouts[index] { rows } else { columns }
    };
    let at = |index: usize, row: usize, column: usize| {
        if layouts[index] { column * stride(index) + row } else { row * stride(index) + column }
    };
    let buffer = |index: usize, matrix: &[f64], kind: Kind| {
        let (rows, columns) = sizes[index];
        let mut bytes = vec![0; (rows.max(columns) + 1) * stride(index) * kind.bytes()];
        for row in 0..rows {
            for column in 0..columns {
                let start = at(index, row, column) * kind.bytes();
                let value = kind.encode(matrix[row * columns + column]);
                bytes[start..start + kind.bytes()].copy_from_slice(&value);
            }
        }
        bytes
    };
    let letter = if kinds[0] == Kind::F64 { 'd' } else { 'r' };
    let mut next = 10;
    let lists = [registers[0], registers[1], registers[2], registers[2]].map(|count| {
        next += count;
        let own: Vec<String> =
            (next - count..next).map(|index| format!("%{letter}{index}")).collect();
        own.join(", ")
    });
    let shape = format!("m{m}n{n}k{k}");
    let word = |index: usize| if layouts[index] { "col" } else { "row" };
    let mut body = String::new();
    for (index, role) in ["a", "b", "c"].iter().enumerate() {
        let (list, name) = (&lists[index], names[index]);
        let layout = word(index);
        writeln!(
            body,
            "wmma.load.{role}.sync.aligned.{layout}.{shape}.global.{name} {{{list}}}, \
             [%d{index}], {};",
            stride(index)
        )
        .unwrap();
    }
    let types = match (names[0], names[2]) {
        ("f16", sum) => format!("{sum}.{sum}"),
        (factor, sum) => format!("{sum}.{factor}.{factor}.{sum}"),
    };
    let (left, right) = (word(0), word(1));
    let [la, lb, lc, ld] = &lists;
    writeln!(
        body,
        "wmma.mma.sync.aligned.{left}.{right}.{shape}.{types} {{{ld}}}, {{{la}}}, {{{lb}}}, \
         {{{lc}}};"
    )
    .unwrap();
    let (layout, sum) = (word(2), names[2]);
    writeln!(
        body,
        "wmma.store.d.sync.aligned.{layout}.{shape}.global.{sum} [%d3], {{{ld}}}, {};",
        stride(2)
    )
    .unwrap();
    let (of_c, empty) = (buffer(2, &c, kinds[2]), buffer(2, &vec![0.0; m * n], kinds[2]));
    let buffers = vec![buffer(0, &a, kinds[0]), buffer(1, &b, kinds[1]), of_c, empty];
    let found = execute(&kernel(&body), buffers).remove(3);
    let expect = product(mnk, &a, &b, &c, false);
    for row in 0..m {
        for column in 0..n {
            let start = at(2, row, column) * kinds[2].bytes();
            let value = kinds[2].decode(&found[start..start + kinds[2].bytes()]);
            assert_eq!(
                value,
                expect[row * n + column],
                "{shape} {types} {layouts:?} at ({row}, {column})"
            );
        }
    }
}

#[test]
fn wmma_is_a_matrix_product() {
    use Kind::{Bf16, F16, F32, F64, S8, S32, U8};
    for bits in 0..8 {
        let layouts = [bits & 1 == 1, bits & 2 == 2, bits & 4 == 4];
        let wide = [([16, 16, 16], [4, 4]), ([32, 8, 16], [8, 2]), ([8, 32, 16], [2, 8])];
        for (mnk, [a, b]) in wide {
            check_wmma(mnk, [F16, F16, F32], ["f16", "f16", "f32"], [8, 8, 8], layouts);
            check_wmma(mnk, [F16, F16, F16], ["f16", "f16", "f16"], [8, 8, 4], layouts);
            check_wmma(mnk, [Bf16, Bf16, F32], ["bf16", "bf16", "f32"], [a, b, 8], layouts);
            check_wmma(mnk, [S8, S8, S32], ["s8", "s8", "s32"], [a / 2, b / 2, 8], layouts);
            check_wmma(mnk, [U8, U8, S32], ["u8", "u8", "s32"], [a / 2, b / 2, 8], layouts);
        }
        check_wmma([16, 16, 8], [F32, F32, F32], ["tf32", "tf32", "f32"], [4, 4, 8], layouts);
        check_wmma([8, 8, 4], [F64, F64, F64], ["f64", "f64", "f64"], [1, 1, 2], layouts);
    }
}

/// PTX ISA, "ldmatrix", "stmatrix", "movmatrix": a lane has elements 2 * (lane % 4) and the next of
/// row lane / 4.
#[test]
fn rows_of_eight_move() {
    let input: Vec<u16> = (0..256).map(|index| index * 257 % 0x7fff).collect();
    let bytes: Vec<u8> = input.iter().flat_map(|value| value.to_le_bytes()).collect();
    // Lane l puts row l at 16 * l; registers go out at [lane][register].
    let load = "shl.b32 %r1, %r0, 4; cvt.u64.u32 %d4, %r1; add.u64 %d5, %d0, %d4; add.u64 %d6, \
        %d1, %d4;\n\
        ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%d5]; mov.u32 %r6, rows; add.u32 %r7, %r6, %r1;\n\
        st.shared.v4.u32 [%r7], {%r2, %r3, %r4, %r5}; bar.warp.sync -1;\n";
    let out = "st.global.v4.u32 [%d6], {%r10, %r11, %r12, %r13};\n";
    let run = |middle: &str| {
        let text = kernel(&format!("{load}{middle}{out}"));
        let buffers = vec![bytes.clone(), vec![0; 512], vec![0; 4], vec![0; 4]];
        let found = execute(&text, buffers).remove(1);
        found.as_chunks::<2>().0.iter().map(|word| u16::from_le_bytes(*word)).collect::<Vec<u16>>()
    };
    // Element `part` of register `register` of a lane, by plain and by transposed order.
    let plain = |lane: usize, register: usize, part: usize| {
        input[64 * register + 8 * (lane / 4) + 2 * (lane % 4) + part]
    };
    let turned = |lane: usize, register: usize, part: usize| {
        input[64 * register + 8 * (2 * (lane % 4) + part) + lane / 4]
    };
    let check = |middle: &str, registers: usize, expect: &dyn Fn(usize, usize, usize) -> u16| {
        let found = run(middle);
        for lane in 0..32 {
            for register in 0..registers {
                for part in 0..2 {
                    let value = found[8 * lane + 2 * register + part];
                    assert_eq!(
                        value,
                        expect(lane, register, part),
                        "{middle}: lane {lane}, {register}.{part}"
                    );
                }
            }
        }
    };
    let four = "{%r10, %r11, %r12, %r13}, [%r7];\n";
    check(&format!("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {four}"), 4, &plain);
    check(&format!("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {four}"), 4, &turned);
    check("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r10, %r11}, [%r7];\n", 2, &plain);
    check("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%r10}, [%r7];\n", 1, &turned);
    check(
        "cvt.u64.u32 %d7, %r7; cvta.shared.u64 %d7, %d7; ldmatrix.sync.aligned.m8n8.x1.b16 \
         {%r10}, [%d7];\n",
        1,
        &plain,
    );
    let moved = "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r9}, \
        [%r7];\nmovmatrix.sync.aligned.m8n8.trans.b16 %r10, %r9;\n";
    check(moved, 1, &turned);
    // Stored and read back as rows: lane l reads row l.
    let store = |trans: &str| {
        format!(
            "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {four}\
             stmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 [%r7+512], {{%r10, %r11, %r12, \
             %r13}};\n\
             bar.warp.sync -1; ld.shared.v4.u32 {{%r10, %r11, %r12, %r13}}, [%r7+512];\n"
        )
    };
    check(&store(""), 4, &|lane, register, part| input[8 * lane + 2 * register + part]);
    check(&store(".trans"), 4, &|lane, register, part| {
        input[64 * (lane / 8) + 8 * (2 * register + part) + lane % 8]
    });
}

/// Elements smaller than a byte: A by rows, B by columns, as the ISA demands.
#[test]
fn wmma_of_small_elements_is_a_matrix_product() {
    for (kind, name, k, operation, seed) in [
        (Kind::S4, "s4", 32, "", 11),
        (Kind::U4, "u4", 32, "", 12),
        (Kind::B1, "b1", 128, ".xor.popc", 13),
        (Kind::B1, "b1", 128, ".and.popc", 14),
    ] {
        let low = if kind.is_unsigned() { 0 } else { -4 };
        let span = if kind == Kind::B1 { 2 } else { 8 };
        let (a, b) = (numbers(8 * k, seed, low, span), numbers(k * 8, seed + 50, low, span));
        let c = numbers(64, seed + 99, -8, 17);
        // Rows and columns are twice as far apart as they are long.
        let lines = |number: &dyn Fn(usize, usize) -> f64| {
            let at = (0..8 * 2 * k).map(|index| (index / (2 * k), index % (2 * k)));
            packed(kind, at.map(|(line, along)| if along < k { number(line, along) } else { 0.0 }))
        };
        let (by_rows, by_columns) =
            (lines(&|row, at| a[row * k + at]), lines(&|column, at| b[at * 8 + column]));
        let of_c = packed(Kind::S32, c.iter().copied());
        let shape = format!("m8n8k{k}");
        let types = if kind == Kind::B1 {
            "s32.b1.b1.s32".to_owned()
        } else {
            format!("s32.{name}.{name}.s32")
        };
        let body = format!(
            "wmma.load.a.sync.aligned.row.{shape}.global.{name} {{%r10}}, [%d0], {0};\n\
             wmma.load.b.sync.aligned.col.{shape}.global.{name} {{%r11}}, [%d1], {0};\n\
             wmma.load.c.sync.aligned.row.{shape}.global.s32 {{%r12, %r13}}, [%d2], 8;\n\
             wmma.mma{operation}.sync.aligned.row.col.{shape}.{types} {{%r14, %r15}}, {{%r10}}, \
             {{%r11}}, {{%r12, %r13}};\n\
             wmma.store.d.sync.aligned.row.{shape}.global.s32 [%d3], {{%r14, %r15}}, 8;\n",
            2 * k
        );
        let found =
            execute(&kernel(&body), vec![by_rows, by_columns, of_c, vec![0; 256]]).remove(3);
        let found: Vec<f64> = found.chunks(4).map(|word| Kind::S32.decode(word)).collect();
        assert_eq!(
            found,
            product([8, 8, k], &a, &b, &c, operation == ".xor.popc"),
            "{types}{operation}"
        );
    }
}

/// PTX ISA, "Matrix Fragments for mma.m8n8k4 with .f16 floating point type": four products at once,
/// of the lanes 0–3 and 16–19, 4–7 and 20–23, and so on.
#[test]
fn quad_pairs_multiply_apart() {
    for bits in 0..16 {
        let [a_row, b_row, wide_c, wide_d] = [1, 2, 4, 8].map(|bit| bits & bit != 0);
        let place_a = |lane: usize, i: usize| {
            let low = lane < 16;
            if a_row {
                (if low { lane % 4 } else { lane % 4 + 4 }, i)
            } else {
                (if low { i % 4 } else { i % 4 + 4 }, lane % 4)
            }
        };
        let place_b = |lane: usize, i: usize| {
            let low = lane < 16;
            if b_row {
                (lane % 4, if low { i } else { i + 4 })
            } else {
                (i, if low { lane % 4 } else { lane % 4 + 4 })
            }
        };
        let place_c = |lane: usize, i: usize, wide: bool| {
            if wide {
                let x = (lane & 1) + (i & 2);
                (if lane < 16 { x } else { x + 4 }, (i & 4) + (lane & 2) + (i & 1))
            } else {
                (if lane < 16 { lane % 4 } else { lane % 4 + 4 }, i)
            }
        };
        let pair = |lane: usize| lane % 16 / 4;
        let (a, b, c) =
            (numbers(128, 21, -4, 9), numbers(128, 22, -3, 7), numbers(256, 23, -8, 17));
        let kind = |wide: bool| if wide { Kind::F32 } else { Kind::F16 };
        let each = |count: usize, number: &dyn Fn(usize, usize) -> f64, kind: Kind| {
            packed(kind, (0..32 * count).map(|at| number(at / count, at % count)))
        };
        let at = |lane: usize, (row, column): (usize, usize), rows: usize, columns: usize| {
            pair(lane) * rows * columns + row * columns + column
        };
        let buffers = vec![
            each(4, &|lane, i| a[at(lane, place_a(lane, i), 8, 4)], Kind::F16),
            each(4, &|lane, i| b[at(lane, place_b(lane, i), 4, 8)], Kind::F16),
            each(8, &|lane, i| c[at(lane, place_c(lane, i, wide_c), 8, 8)], kind(wide_c)),
            vec![0; 32 * 8 * kind(wide_d).bytes()],
        ];
        let counts = [2, 2, 2 * kind(wide_c).bytes(), 2 * kind(wide_d).bytes()];
        let list = |start: usize, count: usize| {
            (start..start + count).map(|register| format!("%r{register}")).collect::<Vec<_>>()
        };
        let lists = [list(10, 2), list(14, 2), list(20, counts[2]), list(30, counts[3])];
        let mut body = String::new();
        for (index, list) in lists.iter().enumerate() {
            writeln!(
                body,
                "mul.wide.u32 %d4, %r0, {}; add.u64 %d{index}, %d{index}, %d4;",
                4 * counts[index]
            )
            .unwrap();
            for (at, register) in list.iter().enumerate().filter(|_| index < 3) {
                writeln!(body, "ld.global.b32 {register}, [%d{index}+{}];", 4 * at).unwrap();
            }
        }
        let name = |by_rows: bool| if by_rows { "row" } else { "col" };
        let number = |wide: bool| if wide { "f32" } else { "f16" };
        let [la, lb, lc, ld] = lists.each_ref().map(|list| list.join(", "));
        writeln!(
            body,
            "mma.sync.aligned.m8n8k4.{}.{}.{}.f16.f16.{} {{{ld}}}, {{{la}}}, {{{lb}}}, {{{lc}}};",
            name(a_row),
            name(b_row),
            number(wide_d),
            number(wide_c)
        )
        .unwrap();
        for (at, register) in lists[3].iter().enumerate() {
            writeln!(body, "st.global.b32 [%d3+{}], {register};", 4 * at).unwrap();
        }
        let found = execute(&kernel(&body), buffers).remove(3);
        for (index, bytes) in found.chunks(kind(wide_d).bytes()).enumerate() {
            let (lane, i) = (index / 8, index % 8);
            let own = |matrix: &[f64], size: usize| {
                matrix[pair(lane) * size..(pair(lane) + 1) * size].to_vec()
            };
            let expect = product([8, 8, 4], &own(&a, 32), &own(&b, 32), &own(&c, 64), false);
            let (row, column) = place_c(lane, i, wide_d);
            assert_eq!(
                kind(wide_d).decode(bytes),
                expect[row * 8 + column],
                "{bits:#x} at ({row}, {column})"
            );
        }
    }
}

#[test]
fn what_is_not_supported_is_refused_by_its_spelling() {
    for (instruction, expect) in [
        (
            "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%r1}, {%r2}, {%r3}, {%r4};",
            "mma.sync.aligned.m8n8k4",
        ),
        (
            "mma.sync.aligned.m8n8k32.row.col.s32.s4.s8.s32 {%r1, %r2}, {%r3}, {%r4}, {%r5, %r6};",
            "m8n8k32.row.col.s32.s4.s8.s32",
        ),
        ("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r1}, [%r2];", "ldmatrix.sync.aligned.m8n8.x2"),
    ] {
        let job = Run {
            ptx: kernel(&format!("{instruction}\n")).into(),
            kernel: "test".to_owned(),
            grid: Dim3::linear(1),
            block: Dim3::linear(32),
            dynamic_shared: 0,
            arguments: vec![Argument::Value(vec![0; 8]); 4],
            form: Form::Original,
            spec: Spec::named("cd-search-24").unwrap(),
            options: Options::default(),
        };
        let error = run(&job).unwrap_err().to_string();
        assert!(error.contains(expect) && error.contains("line "), "{error}");
    }
}
