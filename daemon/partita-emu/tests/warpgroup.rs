//! Products of warp groups against plain matrix products. The host lays the matrices out in shared
//! memory by the canonical layouts of the PTX ISA ("Asynchronous Warpgroup Level Matrix Shared
//! Memory Layout"), element by element, and D and A in registers by the ISA's figures.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up fails")]
#![expect(clippy::float_cmp, reason = "all sums are exact")]
#![expect(clippy::cast_possible_truncation, reason = "small whole numbers in every type")]

use half::{bf16, f16};
use partita_emu::direct::{Argument, Form, Run, run};
use partita_emu::{Options, Spec, Timing};
use partita_model::Dim3;
use std::fmt::Write;

/// Where A and B begin in the image of shared memory, and its size.
const B_AT: usize = 8 << 10;
const IMAGE: usize = 44 << 10;
const THREADS: usize = 128;

#[derive(Clone, Copy, PartialEq, Debug)]
struct Kind {
    name: &'static str,
    bits: usize,
    signed: bool,
}

const fn kind(name: &'static str, bits: usize, signed: bool) -> Kind {
    Kind { name, bits, signed }
}

const F16: Kind = kind("f16", 16, true);
const BF16: Kind = kind("bf16", 16, true);
const TF32: Kind = kind("tf32", 32, true);
const F32: Kind = kind("f32", 32, true);
const S32: Kind = kind("s32", 32, true);
const S8: Kind = kind("s8", 8, true);
const U8: Kind = kind("u8", 8, false);
const E4M3: Kind = kind("e4m3", 8, true);
const E5M2: Kind = kind("e5m2", 8, true);
const B1: Kind = kind("b1", 1, false);

impl Kind {
    fn encode(self, value: f64) -> u32 {
        match self.name {
            "f16" => u32::from(f16::from_f64(value).to_bits()),
            "bf16" => u32::from(bf16::from_f64(value).to_bits()),
            "tf32" | "f32" => (value as f32).to_bits(),
            "s32" => value as i32 as u32,
            "s8" => u32::from(value as i8 as u8),
            "u8" | "b1" => value as u32,
            tiny => {
                // -2 to 2: sign and exponent only.
                let (bias, mantissa) = if tiny == "e4m3" { (7, 3) } else { (15, 2) };
                let size = value.abs() as u32;
                let magnitude = if size == 0 { 0 } else { (size.ilog2() + bias) << mantissa };
                magnitude | if value < 0.0 { 0x80 } else { 0 }
            }
        }
    }

    fn decode(self, bits: u32) -> f64 {
        match self.name {
            "f16" => f16::from_bits(bits as u16).to_f64(),
            "f32" => f64::from(f32::from_bits(bits)),
            _ => f64::from(bits as i32),
        }
    }

    /// Whole numbers whose products and sums are exact in every type.
    fn numbers(self, count: usize, seed: u64) -> Vec<f64> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let (low, span) = match self.name {
            "b1" => (0, 2),
            "u8" => (0, 5),
            _ => (-2, 5),
        };
        let draw = |_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (low + (state % span) as i64) as f64
        };
        (0..count)
            .map(draw)
            .map(|value: f64| if value.abs() == 3.0 { 2.0 } else { value })
            .collect()
    }
}

/// A layout of shared memory: pieces of 16 bytes in a row of the pattern, and whether M or N, not
/// K, is contiguous.
#[derive(Clone, Copy, Debug)]
struct Layout {
    width: usize,
    by_mn: bool,
    /// Bytes from the pattern's start to the matrix, along a row of the pattern.
    inside: usize,
}

impl Layout {
    const fn new(width: usize, by_mn: bool) -> Self {
        Layout { width, by_mn, inside: 0 }
    }

    /// Offsets `leading` and `stride` in bytes for a matrix of `lines` by `k` elements of K.
    fn offsets(self, lines: usize, k: usize) -> [usize; 2] {
        let (atom, groups) = (self.width * 128, k / 8);
        match (self.by_mn, self.width) {
            (false, 1) => [lines * 16, 128],
            (false, _) => [16, atom],
            // Eight rows of K lie in an atom; all atoms along K, then the next along MN.
            (true, 1) => [128, 128 * groups],
            (true, _) => [groups * atom, atom],
        }
    }

    /// The address of an element of K at `at`, of row or column `mn`, in bits.
    fn bit(
        self,
        kind: Kind,
        (lines, k): (usize, usize),
        start: usize,
        (mn, at): (usize, usize),
    ) -> usize {
        let [leading, stride] = self.offsets(lines, k);
        let per = 128 / kind.bits;
        let bits = if self.by_mn {
            let (inner, piece) = (mn % per, mn / per);
            let (row, group) = (at % 8, at / 8);
            let bytes = if self.width == 1 {
                row * 16 + group * leading + piece * stride
            } else {
                let (across, block) = (piece % self.width, piece / self.width);
                across * 16 + block * leading + row * 16 * self.width + group * stride
            };
            bytes * 8 + inner * kind.bits
        } else {
            let (inner, piece) = (at % per, at / per);
            let (row, group) = (mn % 8, mn / 8);
            let pitch = if self.width == 1 { leading } else { 16 };
            (row * 16 * self.width + group * stride + piece * pitch) * 8 + inner * kind.bits
        };
        let address = (start + self.inside) * 8 + bits;
        // Swizzle<B, 4, 3> of byte addresses: bits 7 and up are mixed into bits 4 and up.
        let byte = address / 8;
        let mixed = byte ^ ((byte >> 7) & (self.width - 1)) << 4;
        mixed * 8 + address % 8
    }

    fn descriptor(self, (lines, k): (usize, usize), start: usize) -> u64 {
        let [leading, stride] = self.offsets(lines, k);
        let mode = match self.width {
            1 => 0,
            8 => 1,
            4 => 2,
            _ => 3_u64,
        };
        let field = |bytes: usize| (bytes as u64 >> 4) & 0x3fff;
        field(start + self.inside) | field(leading) << 16 | field(stride) << 32 | mode << 62
    }
}

#[derive(Clone, Copy, Debug)]
struct Case {
    kinds: [Kind; 3],
    n: usize,
    a: Option<Layout>,
    b: Layout,
    add: bool,
    signs: [i32; 2],
    /// The selector of a sparse product.
    sparse: Option<usize>,
}

impl Case {
    fn k(&self) -> usize {
        self.stored() * if self.sparse.is_some() { 2 } else { 1 }
    }

    /// Elements that are stored of each row of A.
    fn stored(&self) -> usize {
        256 / self.kinds[1].bits
    }

    /// The places in a row of A of the elements that are stored, which are all but of a sparse
    /// product, and the bits for each chunk of it.
    fn places_in_row(&self, row: usize) -> (Vec<usize>, Vec<u32>) {
        if self.sparse.is_none() {
            return ((0..self.k()).collect(), Vec::new());
        }
        let (mut places, mut bits) = (Vec::new(), Vec::new());
        let mut state = (row as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut draw = |most: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % most) as usize
        };
        let length = if self.kinds[1].bits == 32 { 2 } else { 4 };
        for chunk in (0..self.k()).step_by(length) {
            if length == 2 {
                let place = draw(2);
                places.push(chunk + place);
                bits.push([0b0100, 0b1110][place]);
            } else {
                let (first, second) = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)][draw(6)];
                places.extend([chunk + first, chunk + second]);
                bits.push((first | second << 2) as u32);
            }
        }
        (places, bits)
    }

    /// The metadata of each thread (PTX ISA, "Matrix Fragments for sparse wgmma.mma_async").
    /// Threads that do not count have something else.
    fn metadata(&self) -> Vec<u8> {
        let mut words = vec![0x6666_6666_u32; THREADS];
        let Some(selector) = self.sparse else { return vec![0; 4 * THREADS] };
        let own: Vec<usize> = match self.kinds[1].bits {
            8 => vec![0, 1, 2, 3],
            _ => vec![2 * selector, 2 * selector + 1],
        };
        (0..THREADS).filter(|thread| own.contains(&(thread % 4))).for_each(|at| words[at] = 0);
        for row in 0..64 {
            let first = 32 * (row / 16) + 4 * (row % 8);
            let lower = row % 16 < 8;
            for (chunk, bits) in self.places_in_row(row).1.into_iter().enumerate() {
                // Bytes: a thread for each row and half of it. Else a thread for each half of it,
                // with both rows.
                let (thread, shift) = if self.kinds[1].bits == 8 {
                    (2 * (chunk / 8) + usize::from(!lower), 4 * (chunk % 8))
                } else {
                    (2 * selector + chunk / 4, 4 * (chunk % 4) + if lower { 0 } else { 16 })
                };
                words[first + thread] |= bits << shift;
            }
        }
        words.into_iter().flat_map(u32::to_le_bytes).collect()
    }

    fn text(&self) -> String {
        let [d, a, b] = self.kinds;
        let tail = if a == B1 { ".and.popc" } else { "" };
        let (n, k) = (self.n, self.k());
        let words = format!("m64n{n}k{k}.{}.{}.{}{tail}", d.name, a.name, b.name);
        let sparse = if self.sparse.is_some() { ".sp" } else { "" };
        format!("wgmma.mma_async{sparse}.sync.aligned.{words}")
    }

    /// Registers of D in a thread.
    fn registers(&self) -> usize {
        self.n * self.kinds[0].bits / 64
    }

    fn kernel(&self) -> String {
        let mut text = ".version 8.4\n.target sm_90a\n.address_size 64\n.visible .entry \
            test(.param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3, .param .u64 p4)\n\
            {\n\
            .reg .b32 %r<8>; .reg .b32 %c<128>; .reg .b32 %a<4>; .reg .b64 %d<16>;\n\
            .reg .pred %p<3>;\n"
            .to_owned();
        writeln!(text, ".shared .align 1024 .b8 rows[{IMAGE}];\nmov.u32 %r0, %tid.x;").unwrap();
        for at in 0..4 {
            writeln!(text, "ld.param.u64 %d{at}, [p{at}];").unwrap();
        }
        // The image comes into shared memory, 16 bytes a thread and turn.
        text += "mul.wide.u32 %d4, %r0, 16; add.u64 %d0, %d0, %d4; mov.u32 %r1, rows;\n\
             shl.b32 %r2, %r0, 4; add.u32 %r1, %r1, %r2;\n";
        text += "more:\nld.global.v4.b32 {%a0, %a1, %a2, %a3}, [%d0];\n";
        text += "st.shared.v4.b32 [%r1], {%a0, %a1, %a2, %a3};\n";
        text += "add.u32 %r1, %r1, 2048; add.u64 %d0, %d0, 2048;\n";
        writeln!(text, "setp.lt.u32 %p0, %r1, {IMAGE}; @%p0 bra more;").unwrap();
        text += "fence.proxy.async; bar.sync 0;\n";
        let size = self.registers() * 4;
        writeln!(text, "mul.wide.u32 %d4, %r0, {size}; add.u64 %d1, %d1, %d4;").unwrap();
        writeln!(text, "add.u64 %d2, %d2, %d4;").unwrap();
        text += "mul.wide.u32 %d4, %r0, 16; add.u64 %d3, %d3, %d4;\n";
        text += "ld.global.v4.b32 {%a0, %a1, %a2, %a3}, [%d3];\n";
        text += "ld.param.u64 %d7, [p4]; mul.wide.u32 %d4, %r0, 4; add.u64 %d7, %d7, %d4;\n";
        text += "ld.global.b32 %r7, [%d7];\n";
        let d: Vec<String> = (0..self.registers()).map(|at| format!("%c{at}")).collect();
        for (at, register) in d.iter().enumerate() {
            writeln!(text, "ld.global.b32 {register}, [%d1+{}];", 4 * at).unwrap();
        }
        let descriptor =
            |layout: Layout, lines, start| layout.descriptor(lines, start).cast_signed();
        let b = descriptor(self.b, (self.n, self.k()), B_AT);
        writeln!(text, "mov.b64 %d6, {b};").unwrap();
        let mut left = "{%a0, %a1, %a2, %a3}".to_owned();
        if let Some(layout) = self.a {
            writeln!(text, "mov.b64 %d5, {};", descriptor(layout, (64, self.stored()), 0)).unwrap();
            left = "%d5".to_owned();
        }
        writeln!(text, "setp.eq.u32 %p1, 1, {};", u8::from(self.add)).unwrap();
        let mut numbers = String::new();
        if !matches!(self.kinds[1].name, "s8" | "u8" | "b1") {
            numbers = format!(", {}, {}", self.signs[0], self.signs[1]);
        }
        if self.kinds[1].bits == 16 {
            if let Some(layout) = self.a {
                write!(numbers, ", {}", u8::from(layout.by_mn)).unwrap();
            }
            write!(numbers, ", {}", u8::from(self.b.by_mn)).unwrap();
        }
        text += "wgmma.fence.sync.aligned;\n";
        let sparse = self.sparse.map(|selector| format!(", %r7, {selector}")).unwrap_or_default();
        let (name, d) = (self.text(), d.join(", "));
        writeln!(text, "{name} {{{d}}}, {left}, %d6{sparse}, %p1{numbers};").unwrap();
        let d: Vec<&str> = d.split(", ").collect();
        text += "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;\n";
        for (at, register) in d.iter().enumerate() {
            writeln!(text, "st.global.b32 [%d2+{}], {register};", 4 * at).unwrap();
        }
        text + "ret;\n}\n"
    }

    /// Row and column of element `i` of D that a thread holds (PTX ISA, "Register Fragments for
    /// wgmma.mma_async.m64nNk16").
    fn place(thread: usize, i: usize) -> (usize, usize) {
        let (warp, lane) = (thread / 32, thread % 32);
        let row = 16 * warp + lane / 4 + 8 * (i / 2 % 2);
        (row, 8 * (i / 4) + 2 * (lane % 4) + i % 2)
    }

    /// The same for A: registers of a row, of the row 8 below, and the two beside them.
    fn place_of_a(kind: Kind, thread: usize, i: usize) -> (usize, usize) {
        let (warp, lane, per) = (thread / 32, thread % 32, 32 / kind.bits);
        let (register, part) = (i / per, i % per);
        let row = 16 * warp + lane / 4 + 8 * (register % 2);
        (row, per * (lane % 4) + part + 4 * per * (register / 2))
    }

    /// Executes, and returns the number of comparisons.
    fn check(&self) -> usize {
        let [of_d, of_a, of_b] = self.kinds;
        let (n, k) = (self.n, self.k());
        let stored = self.stored();
        let compressed = of_a.numbers(64 * stored, 1);
        let mut a = vec![0.0; 64 * k];
        for row in 0..64 {
            for (at, place) in self.places_in_row(row).0.into_iter().enumerate() {
                a[row * k + place] = compressed[row * stored + at];
            }
        }
        let b = of_b.numbers(n * k, 2);
        let c = of_d.numbers(64 * n, 3);
        let mut image = vec![0_u8; IMAGE];
        let mut put = |bit: usize, kind: Kind, value: f64| {
            let code = kind.encode(value);
            for at in 0..kind.bits {
                image[(bit + at) / 8] |= ((code >> at & 1) as u8) << ((bit + at) % 8);
            }
        };
        for at in 0..k {
            for mn in 0..n {
                let bit = self.b.bit(of_b, (n, k), B_AT, (mn, at));
                assert!(bit / 8 < IMAGE, "{self:?}");
                put(bit, of_b, b[mn * k + at]);
            }
        }
        for at in 0..stored {
            for mn in 0..64 {
                if let Some(layout) = self.a {
                    let bit = layout.bit(of_a, (64, stored), 0, (mn, at));
                    assert!(bit / 8 < B_AT, "{self:?}");
                    put(bit, of_a, compressed[mn * stored + at]);
                }
            }
        }
        let packed = |kind: Kind, count: usize, value: &dyn Fn(usize, usize) -> f64| {
            let mut words = vec![0_u32; THREADS * count * kind.bits / 32];
            for index in 0..THREADS * count {
                let bit = index * kind.bits;
                words[bit / 32] |= kind.encode(value(index / count, index % count)) << (bit % 32);
            }
            words.into_iter().flat_map(u32::to_le_bytes).collect::<Vec<u8>>()
        };
        let of_thread = n / 2;
        let before = packed(of_d, of_thread, &|thread, i| {
            let (row, column) = Self::place(thread, i);
            c[row * n + column]
        });
        let registers = packed(of_a, 128 / of_a.bits, &|thread, i| {
            let (row, at) = Self::place_of_a(of_a, thread, i);
            compressed[row * stored + at]
        });
        let after = vec![0; before.len()];
        let job = Run {
            ptx: self.kernel().into(),
            kernel: "test".to_owned(),
            grid: Dim3::linear(1),
            block: Dim3::linear(THREADS as u32),
            dynamic_shared: 0,
            arguments: [image, before, after, registers, self.metadata()]
                .map(Argument::Buffer)
                .into(),
            form: Form::Original,
            spec: Spec::named("h200").unwrap(),
            options: Options { timing: Timing::Off, seed: 1, ..Options::default() },
        };
        let found = run(&job).unwrap_or_else(|error| panic!("{error}\n{self:?}")).buffers.remove(2);
        let sign = f64::from(self.signs[0] * self.signs[1]);
        for index in 0..THREADS * of_thread {
            let (row, column) = Self::place(index / of_thread, index % of_thread);
            let start = if self.add { c[row * n + column] } else { 0.0 };
            let products = (0..k).map(|at| a[row * k + at] * b[column * k + at] * sign);
            let bytes = of_d.bits / 8;
            let mut word = [0; 4];
            word[..bytes].copy_from_slice(&found[index * bytes..][..bytes]);
            let value = of_d.decode(u32::from_le_bytes(word));
            assert_eq!(value, start + products.sum::<f64>(), "{self:?} at ({row}, {column})");
        }
        THREADS * of_thread
    }
}

const BY_K: [Layout; 4] =
    [Layout::new(1, false), Layout::new(2, false), Layout::new(4, false), Layout::new(8, false)];
const BY_MN: [Layout; 4] =
    [Layout::new(1, true), Layout::new(2, true), Layout::new(4, true), Layout::new(8, true)];

fn check_all(cases: &[Case]) {
    let compared: usize = cases.iter().map(Case::check).sum();
    assert!(compared >= 2_000, "{compared} comparisons");
}

#[test]
fn all_types_and_widths() {
    let mut cases = Vec::new();
    for (kinds, all) in [
        ([F32, F16, F16], true),
        ([F16, F16, F16], true),
        ([F32, BF16, BF16], true),
        ([F32, TF32, TF32], true),
        ([F32, E4M3, E5M2], true),
        ([F16, E5M2, E4M3], true),
        ([F32, E5M2, E5M2], true),
        ([S32, S8, S8], false),
        ([S32, U8, S8], false),
        ([S32, S8, U8], false),
        ([S32, B1, B1], false),
    ] {
        for n in [8, 16, 24, 40, 64, 96, 136, 208, 256] {
            if all || n <= 24 || n % 16 == 0 {
                let base =
                    Case { kinds, n, a: None, b: BY_K[3], add: true, signs: [1, 1], sparse: None };
                cases.push(base);
                cases.push(Case { a: Some(BY_K[1]), b: BY_K[0], add: false, ..base });
            }
        }
    }
    check_all(&cases);
}

#[test]
fn all_layouts() {
    let mut cases = Vec::new();
    for of_a in BY_K.into_iter().chain(BY_MN) {
        for b in BY_K.into_iter().chain(BY_MN) {
            // A tile along M or N has 8 elements for each piece of the pattern's row.
            let n = 64;
            let kinds = if of_a.width == b.width { [F32, BF16, BF16] } else { [F16, F16, F16] };
            cases.push(Case { kinds, n, a: Some(of_a), b, add: true, signs: [1, 1], sparse: None });
        }
    }
    // The further 32 bytes of a row of the pattern, as a loop over K takes them.
    for width in [4, 8] {
        for inside in (0..16 * width).step_by(32) {
            let b = Layout { inside, ..Layout::new(width, false) };
            let base = Case {
                kinds: [F32, F16, F16],
                n: 128,
                a: Some(b),
                b,
                add: true,
                signs: [1; 2],
                sparse: None,
            };
            cases.push(base);
            cases.push(Case { kinds: [F32, TF32, TF32], ..base });
            cases.push(Case { kinds: [S32, S8, U8], ..base });
        }
    }
    check_all(&cases);
}

#[test]
fn signs_and_sums() {
    let mut cases = Vec::new();
    for signs in [[1, -1], [-1, 1], [-1, -1]] {
        for kinds in [[F32, F16, F16], [F16, F16, F16], [F32, TF32, TF32], [F32, E4M3, E4M3]] {
            for add in [true, false] {
                let base = Case { kinds, n: 32, a: None, b: BY_K[2], add, signs, sparse: None };
                cases.push(base);
                cases.push(Case { a: Some(BY_K[3]), ..base });
            }
        }
    }
    check_all(&cases);
}

#[test]
fn sparse_products() {
    let mut cases = Vec::new();
    for (kinds, selectors) in [
        ([F32, F16, F16], 2),
        ([F16, F16, F16], 2),
        ([F32, BF16, BF16], 2),
        ([F32, TF32, TF32], 2),
        ([F32, E4M3, E5M2], 1),
        ([F16, E5M2, E4M3], 1),
        ([S32, S8, U8], 1),
        ([S32, U8, U8], 1),
    ] {
        for n in [8, 32, 64, 192, 256] {
            for selector in 0..selectors {
                let sparse = Some(selector);
                let b = BY_K[3];
                let base = Case { kinds, n, a: None, b, add: true, signs: [1, 1], sparse };
                cases.push(base);
                cases.push(Case { a: Some(BY_K[3]), b: BY_K[0], ..base });
                cases.push(Case { a: Some(BY_K[0]), b: BY_K[2], add: false, ..base });
                // Elements of 16 bits may be contiguous along M and N.
                if n == 64 && kinds[1].bits == 16 {
                    cases.push(Case { a: Some(BY_MN[3]), b: BY_MN[3], ..base });
                    cases.push(Case { a: Some(BY_MN[0]), b: BY_MN[0], ..base });
                }
            }
        }
    }
    check_all(&cases);
}

/// An H100's SM makes 2,048 products of 16-bit elements a cycle: 64 * 256 * 16 in 128 cycles. A
/// sparse product of twice the length takes the same time.
#[test]
fn a_product_takes_the_time_of_the_tensor_cores() {
    for sparse in [None, Some(1)] {
        let (kinds, b) = ([F32, F16, F16], BY_K[3]);
        let cycles = hundred(&Case { kinds, n: 256, a: None, b, add: true, signs: [1; 2], sparse });
        assert!((12_800..14_100).contains(&cycles), "{cycles} cycles for 100 products, {sparse:?}");
    }
}

/// Cycles for 100 products.
fn hundred(case: &Case) -> u32 {
    let once = case.kernel();
    let (before, product) = once.split_once("wgmma.fence").unwrap();
    let (product, after) = product.split_once("wgmma.commit").unwrap();
    let text = format!(
        // The first products wait for the registers of all warps.
        "{before}wgmma.fence{product}bar.sync 0; mov.u32 %r3, %clock; mov.u32 %r4, 0;\n\
         again:\nwgmma.fence{product}wgmma.fence{product}\
         wgmma.fence{product}wgmma.fence{product}\
         add.u32 %r4, %r4, 1; setp.lt.u32 %p0, %r4, 25; @%p0 bra again;\n\
         mov.u32 %r5, %clock; sub.u32 %r5, %r5, %r3; mov.b32 %c0, %r5;\nwgmma.commit{after}"
    );
    let job = Run {
        ptx: text.into(),
        kernel: "test".to_owned(),
        grid: Dim3::linear(1),
        block: Dim3::linear(THREADS as u32),
        dynamic_shared: 0,
        arguments: [IMAGE, THREADS * 512, THREADS * 512, THREADS * 16, THREADS * 4]
            .map(|bytes| Argument::Buffer(vec![0; bytes]))
            .into(),
        form: Form::Original,
        spec: Spec::named("h200").unwrap(),
        options: Options { timing: Timing::On, seed: 1, ..Options::default() },
    };
    let found = run(&job).unwrap().buffers.remove(2);
    u32::from_le_bytes(found[..4].try_into().unwrap())
}
