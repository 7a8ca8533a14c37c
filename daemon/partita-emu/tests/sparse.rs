//! `mma.sp` against plain matrix products. The host chooses where the elements of A are, and lays
//! fragments and metadata out by the formulas of the PTX ISA ("Matrix fragments for
//! multiply-accumulate operation with sparse matrix A").

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up fails")]
#![expect(clippy::float_cmp, reason = "all sums are exact")]
#![expect(clippy::cast_possible_truncation, reason = "small whole numbers in every type")]

use half::{bf16, f16};
use partita_emu::direct::{Argument, Form, Run, run};
use partita_emu::{Options, Spec, Timing};
use partita_model::Dim3;
use std::fmt::Write;

const M: usize = 16;
const N: usize = 8;

#[derive(Clone, Copy, PartialEq, Debug)]
struct Kind {
    name: &'static str,
    bits: usize,
    low: i64,
    high: i64,
}

const fn kind(name: &'static str, bits: usize, low: i64, high: i64) -> Kind {
    Kind { name, bits, low, high }
}

const F16: Kind = kind("f16", 16, -4, 4);
const BF16: Kind = kind("bf16", 16, -4, 4);
const TF32: Kind = kind("tf32", 32, -4, 4);
const F32: Kind = kind("f32", 32, -8, 8);
const S32: Kind = kind("s32", 32, -8, 8);
const S8: Kind = kind("s8", 8, -100, 100);
const U8: Kind = kind("u8", 8, 0, 200);
const S4: Kind = kind("s4", 4, -8, 7);
const U4: Kind = kind("u4", 4, 0, 15);
const E4M3: Kind = kind("e4m3", 8, -1, 1);
const E5M2: Kind = kind("e5m2", 8, -1, 1);

impl Kind {
    fn encode(self, value: f64) -> u32 {
        match self.name {
            "f16" => u32::from(f16::from_f64(value).to_bits()),
            "bf16" => u32::from(bf16::from_f64(value).to_bits()),
            "tf32" | "f32" => (value as f32).to_bits(),
            // One and its negative.
            "e4m3" => {
                if value == 0.0 {
                    0
                } else {
                    0x38 | u32::from(value < 0.0) << 7
                }
            }
            "e5m2" => {
                if value == 0.0 {
                    0
                } else {
                    0x3c | u32::from(value < 0.0) << 7
                }
            }
            _ => value as i32 as u32 & (u32::MAX >> (32 - self.bits)),
        }
    }

    fn decode(self, bits: u32) -> f64 {
        match self.name {
            "f16" => f16::from_bits(bits as u16).to_f64(),
            "f32" => f64::from(f32::from_bits(bits)),
            _ => f64::from(bits.cast_signed()),
        }
    }
}

/// Numbers by chance.
struct Draw(u64);

impl Draw {
    fn below(&mut self, most: u64) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % most) as usize
    }

    fn matrix(&mut self, count: usize, kind: Kind) -> Vec<f64> {
        let span = (kind.high - kind.low + 1).cast_unsigned();
        (0..count).map(|_| (kind.low + self.below(span) as i64) as f64).collect()
    }
}

#[derive(Clone, Copy, Debug)]
struct Case {
    /// D, A, B and C.
    kinds: [Kind; 4],
    k: usize,
    selector: usize,
    words: &'static str,
}

/// A row of A: its elements, where they are, and four bits for each chunk.
struct Row {
    stored: Vec<f64>,
    places: Vec<usize>,
    bits: Vec<u32>,
}

impl Case {
    fn row(&self, draw: &mut Draw) -> Row {
        let of_a = self.kinds[1];
        let mut row = Row { stored: draw.matrix(self.k / 2, of_a), places: vec![], bits: vec![] };
        let two = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)];
        match of_a.bits {
            // One of two elements.
            32 => {
                for chunk in (0..self.k).step_by(2) {
                    let place = draw.below(2);
                    row.places.push(chunk + place);
                    row.bits.push(if place == 0 { 0b0100 } else { 0b1110 });
                }
            }
            // Two pairs of four.
            4 => {
                for chunk in (0..self.k).step_by(8) {
                    let (first, second) = two[draw.below(6)];
                    for pair in [first, second] {
                        row.places.extend([chunk + 2 * pair, chunk + 2 * pair + 1]);
                    }
                    row.bits.push((first | second << 2) as u32);
                }
            }
            // Two elements of four.
            _ => {
                for chunk in (0..self.k).step_by(4) {
                    let (first, second) = two[draw.below(6)];
                    row.places.extend([chunk + first, chunk + second]);
                    row.bits.push((first | second << 2) as u32);
                }
            }
        }
        row
    }

    /// The metadata of each lane. Lanes that the selector leaves out have other bits.
    fn metadata(&self, rows: &[Row]) -> [u32; 32] {
        let mut words = [0x9999_9999; 32];
        let mut is_set = [false; 32];
        for (number, row) in rows.iter().enumerate() {
            let (group, lower) = (number % 8, number < 8);
            for (chunk, bits) in row.bits.iter().enumerate() {
                let (thread, shift) = match (self.kinds[1].bits, row.bits.len()) {
                    // A thread of four has both rows, the upper in the upper half.
                    (16 | 32, 4) => (self.selector, 4 * chunk + if lower { 0 } else { 16 }),
                    (16 | 32, _) => {
                        let thread = 2 * self.selector + chunk / 4;
                        (thread, 4 * (chunk % 4) + if lower { 0 } else { 16 })
                    }
                    // A pair of threads, one for each row.
                    (_, 8) => (2 * self.selector + usize::from(!lower), 4 * chunk),
                    // The second pair has the second half of both.
                    _ => (2 * (chunk / 8) + usize::from(!lower), 4 * (chunk % 8)),
                };
                let word = &mut words[4 * group + thread];
                if !std::mem::replace(&mut is_set[4 * group + thread], true) {
                    *word = 0;
                }
                *word |= bits << shift;
            }
        }
        words
    }

    /// Elements of a register.
    fn per(kind: Kind) -> usize {
        32 / kind.bits
    }

    /// Row and place of an element of A that a lane stores.
    fn place_of_a(kind: Kind, lane: usize, i: usize) -> (usize, usize) {
        let (g, t, per) = (lane / 4, lane % 4, Self::per(kind));
        let (register, part) = (i / per, i % per);
        (g + 8 * (register % 2), per * t + part + 4 * per * (register / 2))
    }

    fn place_of_b(kind: Kind, lane: usize, i: usize) -> (usize, usize) {
        let (g, t, per) = (lane / 4, lane % 4, Self::per(kind));
        (per * t + i % per + 4 * per * (i / per), g)
    }

    fn place_of_d(lane: usize, i: usize) -> (usize, usize) {
        (lane / 4 + 8 * (i / 2), 2 * (lane % 4) + i % 2)
    }

    fn check(&self) -> usize {
        let [of_d, of_a, of_b, of_c] = self.kinds;
        let (k, stored) = (self.k, self.k / 2);
        let mut draw = Draw(0x9e37_79b9_7f4a_7c15 ^ (k * 7 + self.selector) as u64);
        let rows: Vec<Row> = (0..M).map(|_| self.row(&mut draw)).collect();
        let (b, c) = (draw.matrix(k * N, of_b), draw.matrix(M * N, of_c));
        let metadata = self.metadata(&rows);
        let counts = [M * stored / 32, k * N / 32, 4];
        // The registers of a lane: A, B, C, metadata.
        let mut words: Vec<u32> = Vec::new();
        let mut pack = |kind: Kind, values: Vec<f64>| {
            for values in values.chunks(Self::per(kind)) {
                let word = values
                    .iter()
                    .rev()
                    .fold(0_u64, |word, value| word << kind.bits | u64::from(kind.encode(*value)));
                words.push(word as u32);
            }
        };
        for (lane, metadata) in metadata.into_iter().enumerate() {
            let of_lane =
                |count: usize, value: &dyn Fn(usize) -> f64| (0..count).map(value).collect();
            pack(
                of_a,
                of_lane(counts[0], &|i| {
                    let (row, place) = Self::place_of_a(of_a, lane, i);
                    rows[row].stored[place]
                }),
            );
            pack(
                of_b,
                of_lane(counts[1], &|i| {
                    let (row, column) = Self::place_of_b(of_b, lane, i);
                    b[row * N + column]
                }),
            );
            pack(
                of_c,
                of_lane(counts[2], &|i| {
                    let (row, column) = Self::place_of_d(lane, i);
                    c[row * N + column]
                }),
            );
            pack(S32, vec![f64::from(metadata.cast_signed())]);
        }
        let bytes: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
        let job = Run {
            ptx: self.kernel(counts).into(),
            kernel: "test".to_owned(),
            grid: Dim3::linear(1),
            block: Dim3::linear(32),
            dynamic_shared: 0,
            arguments: vec![Argument::Buffer(bytes), Argument::Buffer(vec![0; 32 * 16])],
            form: Form::Original,
            spec: Spec::named("h200").unwrap(),
            options: Options { timing: Timing::Off, seed: 1, ..Options::default() },
        };
        let found = run(&job).unwrap_or_else(|error| panic!("{error}\n{self:?}")).buffers.remove(1);
        let per = Self::per(of_d);
        for lane in 0..32 {
            for i in 0..4 {
                let (row, column) = Self::place_of_d(lane, i);
                let word = 16 * lane + 4 * (i / per);
                let word = u32::from_le_bytes(found[word..word + 4].try_into().unwrap());
                let value =
                    of_d.decode(word >> (of_d.bits * (i % per)) & (u32::MAX >> (32 - of_d.bits)));
                let Row { stored, places, .. } = &rows[row];
                let products = stored.iter().zip(places).map(|(a, at)| a * b[at * N + column]);
                let expect = c[row * N + column] + products.sum::<f64>();
                assert_eq!(value, expect, "{self:?} at ({row}, {column})");
            }
        }
        32 * 4
    }

    fn kernel(&self, counts: [usize; 3]) -> String {
        let [of_d, of_a, of_b, of_c] = self.kinds;
        let registers = [
            counts[0] / Self::per(of_a),
            counts[1] / Self::per(of_b),
            counts[2] / Self::per(of_c),
            1,
        ];
        let all: usize = registers.iter().sum();
        let mut text = ".version 8.5\n.target sm_90\n.address_size 64\n.visible .entry \
             test(.param .u64 p0, .param .u64 p1)\n{\n.reg .b32 %r<40>; .reg .b64 %d<4>;\n\
             ld.param.u64 %d0, [p0]; ld.param.u64 %d1, [p1]; mov.u32 %r0, %tid.x;\n"
            .to_owned();
        writeln!(text, "mul.wide.u32 %d2, %r0, {}; add.u64 %d0, %d0, %d2;", 4 * all).unwrap();
        text += "mul.wide.u32 %d2, %r0, 16; add.u64 %d1, %d1, %d2;\n";
        for at in 0..all {
            writeln!(text, "ld.global.b32 %r{}, [%d0+{}];", at + 1, 4 * at).unwrap();
        }
        let mut next = 1;
        let mut list = |count: usize| {
            let names: Vec<String> = (next..next + count).map(|at| format!("%r{at}")).collect();
            next += count;
            names.join(", ")
        };
        let [a, b, c, e] = registers.map(&mut list);
        let to = list(4 / Self::per(of_d));
        let (k, selector) = (self.k, self.selector);
        let types = [of_d, of_a, of_b, of_c].map(|kind| kind.name).join(".");
        let (kind, tail) = self.words.split_once('|').unwrap();
        writeln!(
            text,
            "mma.{kind}.sync.aligned.m16n8k{k}.row.col{tail}.{types} {{{to}}}, {{{a}}}, {{{b}}}, \
             {{{c}}}, {e}, {selector};"
        )
        .unwrap();
        for (at, register) in to.split(", ").enumerate() {
            writeln!(text, "st.global.b32 [%d1+{}], {register};", 4 * at).unwrap();
        }
        text + "ret;\n}\n"
    }
}

#[test]
fn sparse_products_are_those_of_whole_matrices() {
    let mut compared = 0;
    for (kinds, shapes) in [
        ([F32, F16, F16, F32], [(16, 4), (32, 2)]),
        ([F16, F16, F16, F16], [(16, 4), (32, 2)]),
        ([F32, BF16, BF16, F32], [(16, 4), (32, 2)]),
        ([F32, TF32, TF32, F32], [(8, 4), (16, 2)]),
        ([S32, S8, U8, S32], [(32, 2), (64, 1)]),
        ([S32, U8, S8, S32], [(32, 2), (64, 1)]),
        ([S32, S4, S4, S32], [(64, 2), (128, 1)]),
        ([S32, U4, S4, S32], [(64, 2), (128, 1)]),
        ([F32, E4M3, E5M2, F32], [(64, 1), (64, 1)]),
        ([F16, E5M2, E4M3, F16], [(64, 1), (64, 1)]),
    ] {
        for (k, selectors) in shapes {
            for selector in 0..selectors {
                let of_integers = kinds[0] == S32;
                for words in ["sp|", "sp::ordered_metadata|", "sp|.satfinite"] {
                    if of_integers || !words.ends_with("satfinite") {
                        compared += Case { kinds, k, selector, words }.check();
                    }
                }
            }
        }
    }
    assert!(compared >= 2_000, "{compared} comparisons");
}
