//! `tcgen05.mma` of all kinds against sums written out.

use super::numbers::*;
use super::{COLUMNS, Case, ROWS, compare};
use partita_emu::Timing;
use std::fmt::Write;

/// Where B begins in shared memory, and columns of tensor memory for A and the scale factors.
const B_AT: usize = 16 << 10;
const A_COLUMN: usize = 384;
const SCALE_COLUMNS: [usize; 2] = [400, 408];

/// Scale factors: how many of each row, the byte of the first, and whether they are `ue8m0`.
#[derive(Clone, Copy, Debug)]
struct Scale {
    blocks: usize,
    first: [usize; 2],
    powers: bool,
}

#[derive(Clone, Copy, Debug)]
struct Product {
    name: &'static str,
    kinds: [Kind; 3],
    m: usize,
    n: usize,
    pair: bool,
    stationary: bool,
    /// `None`: A in tensor memory.
    a: Option<Layout>,
    b: Layout,
    add: bool,
    negated: [bool; 2],
    shift: u32,
    saturates: bool,
    disabled: bool,
    scale: Option<Scale>,
    /// The first lane of D and A.
    lane: usize,
}

const BY_K: Layout = Layout::new(8, false);

fn product(name: &'static str, kinds: [Kind; 3], m: usize, n: usize) -> Product {
    Product {
        name,
        kinds,
        m,
        n,
        pair: false,
        stationary: false,
        a: Some(BY_K),
        b: BY_K,
        add: true,
        negated: [false; 2],
        shift: 0,
        saturates: false,
        disabled: false,
        scale: None,
        lane: 0,
    }
}

impl Product {
    fn k(&self) -> usize {
        match self.kinds[1].bits {
            16 => 16,
            32 => 8,
            _ if self.kinds[1] == DENSE => 64,
            _ => 32,
        }
    }

    fn ctas(&self) -> usize {
        if self.pair { 2 } else { 1 }
    }

    /// Lane and column of an element of D in its CTA (PTX ISA, "Data Path Layout Organization").
    fn place(&self, row: usize, column: usize) -> (usize, usize) {
        let half = self.n / 2;
        match (self.pair, self.stationary, self.m) {
            (false, false, 64) => (self.lane + 32 * (row / 16) + row % 16, column),
            (true, _, 128) | (_, true, 64) => (row + 64 * (column / half), column % half),
            (_, true, 32) => (row + 32 * (column / (self.n / 4)), column % (self.n / 4)),
            _ => (row, column),
        }
    }

    fn instruction(&self) -> u32 {
        let [d, a, b] = self.kinds;
        let mut bits = a.code << 7 | b.code << 10;
        bits |= (self.n as u32 / 8) << 17 | (self.m as u32 / 16) << 24;
        bits |= u32::from(self.negated[0]) << 13 | u32::from(self.negated[1]) << 14;
        bits |= u32::from(self.a.is_some_and(|a| a.by_mn)) << 15 | u32::from(self.b.by_mn) << 16;
        match self.scale {
            None => bits |= d.code << 4 | u32::from(self.saturates) << 3,
            Some(scale) => {
                bits |= (scale.first[0] as u32) << 29 | (scale.first[1] as u32) << 4;
                bits |= u32::from(scale.powers) << 23;
            }
        }
        bits
    }

    fn body(&self) -> String {
        let (k, group) = (self.k(), self.ctas());
        let mut text = String::new();
        let mut descriptor = |register: &str, layout: Layout, lines: usize, start: usize| {
            let bits = layout.descriptor((lines, k)).cast_signed();
            writeln!(text, "mov.b64 {register}, {bits}; mov.u32 %r20, rows;").unwrap();
            writeln!(text, "add.u32 %r20, %r20, {start}; shr.u32 %r20, %r20, 4;").unwrap();
            writeln!(text, "cvt.u64.u32 %d9, %r20; or.b64 {register}, {register}, %d9;").unwrap();
        };
        descriptor("%d6", self.b, self.n / group, B_AT);
        let left = match self.a {
            Some(layout) => {
                descriptor("%d5", layout, self.m / group, 0);
                "%d5".to_owned()
            }
            None => format!("[%r5+{}]", A_COLUMN + (self.lane << 16)),
        };
        writeln!(text, "mov.b32 %r12, {};", self.instruction().cast_signed()).unwrap();
        writeln!(text, "setp.eq.u32 %p4, 1, {};", u8::from(self.add)).unwrap();
        let ws = if self.stationary { ".ws" } else { "" };
        let d = self.lane << 16;
        write!(text, "tcgen05.mma{ws}.cta_group::{group}.kind::{}", self.name).unwrap();
        match self.scale {
            Some(scale) => {
                let [a, b] = SCALE_COLUMNS;
                let size = scale.blocks;
                write!(text, ".block_scale.scale_vec::{size}X [%r5+{d}], {left}, %d6, %r12")
                    .unwrap();
                write!(text, ", [%r5+{a}], [%r5+{b}], %p4").unwrap();
            }
            None => {
                write!(text, " [%r5+{d}], {left}, %d6, %r12").unwrap();
                if self.disabled {
                    let masks: Vec<String> = (0..4 * group).map(|at| format!("%c{at}")).collect();
                    write!(text, ", {{{}}}", masks.join(", ")).unwrap();
                }
                write!(text, ", %p4").unwrap();
                if self.shift > 0 {
                    write!(text, ", {}", self.shift).unwrap();
                }
            }
        }
        text += ";\n";
        if self.disabled {
            let masks =
                (0..8).map(|at| format!("mov.b32 %c{at}, {};\n", self.mask(at).cast_signed()));
            text = masks.collect::<String>() + &text;
        }
        text
    }

    /// The lanes of a register that are left alone.
    fn mask(&self, register: usize) -> u32 {
        if self.disabled { 0x8421_0f0f_u32.rotate_left(register as u32) } else { 0 }
    }

    /// Scale factors by row or column and block, as bytes.
    fn scale_byte(&self, side: usize, index: usize, block: usize) -> u8 {
        let scale = self.scale.unwrap();
        let pick = (index * 7 + block * 3 + side * 5 + index / 32) % 4;
        if scale.powers { 126 + pick as u8 } else { [0x38, 0x30, 0x3c, 0x44][pick] }
    }

    fn scale_value(&self, side: usize, index: usize, block: usize) -> f64 {
        let Some(scale) = self.scale else { return 1.0 };
        let byte = self.scale_byte(side, index, block);
        if scale.powers { f64::exp2(f64::from(byte) - 127.0) } else { E4M3.decode(u32::from(byte)) }
    }

    /// Executes, and returns the number of comparisons.
    fn check(&self) -> usize {
        self.check_with(Timing::Off)
    }

    fn check_with(&self, timing: Timing) -> usize {
        let [of_d, of_a, of_b] = self.kinds;
        let (m, n, k) = (self.m, self.n, self.k());
        let (rows, columns) = (m / self.ctas(), n / self.ctas());
        let (a, b) = (of_a.numbers(m * k, 1), of_b.numbers(n * k, 2));
        let c = of_d.numbers(m * n, 3);
        let mut case = Case::new(self.ctas(), self.body());
        for cta in 0..self.ctas() {
            let image = &mut case.images[cta];
            let of_b_at = |mn: usize, at: usize| b[(cta * columns + mn) * k + at];
            self.b.fill(image, of_b, (columns, k), B_AT, of_b_at);
            let before = &mut case.before[cta];
            let of_a_at = |mn: usize, at: usize| a[(cta * rows + mn) * k + at];
            match self.a {
                Some(layout) => layout.fill(image, of_a, (rows, k), 0, of_a_at),
                None => {
                    for (row, at) in (0..rows).flat_map(|row| (0..k).map(move |at| (row, at))) {
                        let lane = if self.m == 64 && !self.pair && !self.stationary {
                            self.place(row, 0).0
                        } else {
                            row
                        };
                        let bit = at * of_a.bits;
                        let word = &mut before[lane * COLUMNS + A_COLUMN + bit / 32];
                        let mask = (u64::MAX >> (64 - of_a.bits)) as u32;
                        *word &= !(mask << (bit % 32));
                        *word |= of_a.encode(of_a_at(row, at)) << (bit % 32);
                    }
                }
            }
            if let Some(scale) = self.scale {
                for (side, count) in [(0, rows), (1, n)] {
                    for (index, block) in
                        (0..count).flat_map(|index| (0..scale.blocks).map(move |at| (index, at)))
                    {
                        let global = if side == 0 { cta * rows + index } else { index };
                        let byte = u32::from(self.scale_byte(side, global, block));
                        let shift = 8 * (scale.first[side] + block);
                        for warp in 0..4 {
                            let lane = 32 * warp + index % 32;
                            let at = lane * COLUMNS + SCALE_COLUMNS[side] + index / 32;
                            before[at] = before[at] & !(0xff << shift) | byte << shift;
                        }
                    }
                }
            }
            for (row, column) in (0..rows).flat_map(|row| (0..n).map(move |at| (row, at))) {
                let (lane, at) = self.place(row, column);
                before[lane * COLUMNS + at] = of_d.encode(c[(cta * rows + row) * n + column]);
            }
        }
        let mut wanted = case.before.clone();
        let sign = if self.negated[0] != self.negated[1] { -1.0 } else { 1.0 };
        for (row, column) in (0..m).flat_map(|row| (0..n).map(move |at| (row, at))) {
            let (cta, within) = (row / rows, row % rows);
            let (lane, at) = self.place(within, column);
            if self.mask(4 * cta + lane / 32) >> (lane % 32) & 1 == 1 {
                continue;
            }
            let start = if self.add { c[row * n + column] } else { 0.0 };
            let blocks = self.scale.map_or(1, |scale| scale.blocks);
            let products = (0..k).map(|i| {
                let block = i * blocks / k;
                let scale = self.scale_value(0, row, block) * self.scale_value(1, column, block);
                a[row * k + i] * b[column * k + i] * sign * scale
            });
            let sum = start * f64::exp2(-f64::from(self.shift)) + products.sum::<f64>();
            let sum = if self.saturates {
                sum.clamp(f64::from(i32::MIN), f64::from(i32::MAX))
            } else {
                sum
            };
            wanted[cta][lane * COLUMNS + at] = of_d.encode(sum);
        }
        assert!(ROWS * COLUMNS == wanted[0].len());
        compare(self, &case.run_with(timing), &wanted)
    }
}

fn check_all(cases: impl IntoIterator<Item = Product>) {
    let compared: usize = cases.into_iter().map(|case| case.check()).sum();
    assert!(compared >= 2_000, "{compared} comparisons");
}

#[test]
fn halves() {
    let of = |kinds, m, n| product("f16", kinds, m, n);
    let base = of([F32, F16, F16], 128, 64);
    check_all([
        base,
        of([F32, BF16, BF16], 128, 256),
        of([F16, F16, F16], 128, 16),
        of([F32, F16, BF16], 64, 40),
        Product { add: false, ..of([F16, BF16, F16], 64, 256) },
        Product { lane: 16, ..of([F32, F16, F16], 64, 8) },
        Product { negated: [true, false], ..base },
        Product { negated: [true, true], shift: 3, ..base },
        Product { shift: 15, ..of([F16, F16, F16], 128, 32) },
        Product { disabled: true, ..base },
        Product { disabled: true, ..of([F32, F16, F16], 64, 24) },
    ]);
}

#[test]
fn words_and_bytes() {
    check_all([
        product("tf32", [F32, TF32, TF32], 128, 48),
        product("tf32", [F32, TF32, TF32], 64, 200),
        Product { shift: 2, ..product("tf32", [F32, TF32, TF32], 128, 256) },
        product("i8", [S32, S8, S8], 128, 64),
        product("i8", [S32, U8, S8], 64, 32),
        product("i8", [S32, S8, U8], 128, 256),
        Product { saturates: true, ..product("i8", [S32, U8, U8], 128, 16) },
    ]);
}

#[test]
fn small_reals() {
    let small = [E4M3, E5M2, E2M3, E3M2, E2M1];
    let all = small.into_iter().flat_map(|a| small.map(|b| (a, b)));
    check_all(all.enumerate().map(|(at, (a, b))| {
        let (m, n) = if at % 3 == 0 { (64, 24) } else { (128, 48) };
        let of_d = if at % 4 == 1 { F16 } else { F32 };
        product("f8f6f4", [of_d, a, b], m, n)
    }));
}

#[test]
fn layouts() {
    let by = |by_mn| [1, 2, 4, 8].map(|width| Layout::new(width, by_mn));
    let mut cases = Vec::new();
    for a in by(false).into_iter().chain(by(true)) {
        for b in by(false).into_iter().chain(by(true)) {
            let kinds = if a.width == b.width { [F32, F16, F16] } else { [F16, BF16, F16] };
            cases.push(Product { a: Some(a), b, ..product("f16", kinds, 128, 128) });
        }
    }
    for by_mn in [by(false), by(true)].concat() {
        let bytes = product("i8", [S32, S8, U8], 128, 64);
        cases.push(Product { a: Some(by_mn), b: by_mn, ..bytes });
        let bytes = product("f8f6f4", [F32, E5M2, E4M3], 64, 128);
        cases.push(Product { a: Some(by_mn), b: by_mn, ..bytes });
        if !by_mn.by_mn {
            let words = product("tf32", [F32, TF32, TF32], 128, 96);
            cases.push(Product { a: Some(by_mn), b: by_mn, ..words });
        }
    }
    let wide = Layout { width: 8, by_mn: true, atom: 32 };
    let words = product("tf32", [F32, TF32, TF32], 128, 64);
    cases.push(Product { a: Some(wide), b: wide, ..words });
    cases.push(Product { a: Some(wide), b: BY_K, ..words });
    check_all(cases);
}

#[test]
fn left_factors_in_tensor_memory() {
    let in_tensor = |product: Product| Product { a: None, ..product };
    check_all([
        in_tensor(product("f16", [F32, F16, F16], 128, 64)),
        in_tensor(product("f16", [F16, BF16, BF16], 64, 32)),
        Product { lane: 16, ..in_tensor(product("f16", [F32, F16, F16], 64, 32)) },
        in_tensor(product("tf32", [F32, TF32, TF32], 128, 64)),
        in_tensor(product("i8", [S32, S8, U8], 128, 64)),
        in_tensor(product("f8f6f4", [F32, E4M3, E2M1], 128, 64)),
        Product { pair: true, ..in_tensor(product("f16", [F32, F16, F16], 256, 64)) },
    ]);
}

#[test]
fn weights_stay() {
    let stay = |product: Product| Product { stationary: true, ..product };
    check_all([
        stay(product("f16", [F32, F16, F16], 32, 64)),
        stay(product("f16", [F32, F16, F16], 64, 128)),
        stay(product("f16", [F16, BF16, F16], 128, 256)),
        stay(product("i8", [S32, S8, S8], 32, 256)),
        stay(product("f8f6f4", [F32, E4M3, E3M2], 64, 64)),
        stay(product("tf32", [F32, TF32, TF32], 128, 64)),
    ]);
}

#[test]
fn pairs_of_ctas() {
    let pair = |product: Product| Product { pair: true, ..product };
    check_all([
        pair(product("f16", [F32, F16, F16], 256, 64)),
        pair(product("f16", [F16, F16, BF16], 128, 32)),
        pair(product("f16", [F32, F16, F16], 256, 256)),
        Product { disabled: true, ..pair(product("f16", [F32, F16, F16], 128, 64)) },
        pair(product("tf32", [F32, TF32, TF32], 128, 128)),
        pair(product("i8", [S32, S8, U8], 256, 96)),
        pair(product("f8f6f4", [F32, E4M3, E2M3], 128, 48)),
    ]);
}

#[test]
fn blocks_are_scaled() {
    let scaled = |name, kinds, n, blocks, first, powers| Product {
        scale: Some(Scale { blocks, first, powers }),
        ..product(name, kinds, 128, n)
    };
    let nvf4 = [F32, DENSE, DENSE];
    check_all([
        scaled("mxf8f6f4", [F32, E4M3, E5M2], 64, 1, [0, 0], true),
        scaled("mxf8f6f4", [F32, E2M1, E3M2], 256, 1, [3, 1], true),
        scaled("mxf8f6f4", [F32, E2M3, E4M3], 8, 1, [2, 3], true),
        scaled("mxf4", nvf4, 128, 2, [0, 2], true),
        scaled("mxf4nvf4", nvf4, 40, 2, [2, 0], true),
        scaled("mxf4nvf4", nvf4, 64, 4, [0, 0], true),
        scaled("mxf4nvf4", nvf4, 256, 4, [0, 0], false),
        Product { a: None, ..scaled("mxf4nvf4", nvf4, 64, 4, [0, 0], false) },
        Product { negated: [false, true], ..scaled("mxf4", nvf4, 64, 2, [2, 2], true) },
        Product {
            pair: true,
            m: 256,
            ..scaled("mxf8f6f4", [F32, E4M3, E4M3], 64, 1, [1, 2], true)
        },
        Product { pair: true, m: 256, ..scaled("mxf4nvf4", nvf4, 256, 4, [0, 0], false) },
    ]);
}

#[test]
fn time_changes_no_value() {
    let of = product("f16", [F32, F16, F16], 128, 64);
    assert!(of.check_with(Timing::On) >= 2_000);
    let pair = Product { pair: true, ..product("f16", [F32, F16, F16], 256, 64) };
    assert!(pair.check_with(Timing::On) >= 2_000);
}

#[test]
fn wrong_descriptors_fault() {
    let base = product("f16", [F32, F16, F16], 128, 64);
    let check = |from: &str, to: &str, expected: &str| {
        let body = base.body();
        let changed = body.replace(from, to);
        assert_ne!(changed, body, "{from} is there");
        let error = Case::new(1, changed).error();
        assert!(error.contains(expected), "{expected}: {error}");
    };
    let bits = base.instruction().cast_signed();
    let with =
        |more: u32| format!("mov.b32 %r12, {};", (bits.cast_unsigned() ^ more).cast_signed());
    let now = format!("mov.b32 %r12, {bits};");
    check(&now, &with(4), "a sparse A");
    check(&now, &with(2 << 7), "type 2 of A, which F16 does not have");
    check(&now, &with(3 << 4), "type 2 of D");
    check(&now, &with(4 << 24), "M of 192 and N of 64");
    check(&now, &with(1 << 17), "M of 128 and N of 72");
    check("[%r5+0]", "[%r5+480]", "lane 0, column 480 of tensor memory");
    check("[%r5+0]", "[%r5+1048576]", "begins in lane 16");
    let version = format!("xor.b64 %d6, %d6, {}; {now}", 1_u64 << 46);
    check(&now, &version, "bits 46 to 48 are 0, not 1");
    let mode = format!("xor.b64 %d6, %d6, {}; {now}", 1_u64 << 61);
    check(&now, &mode, "swizzling mode 3");
}
