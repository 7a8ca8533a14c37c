//! `mma` on numbers of four, six and eight bits, with and without block scaling and zeros, against
//! plain sums; `ldmatrix` and `stmatrix` of bytes against the tables of the PTX ISA ("Matrix
//! Fragments for mma.m16n8k32", "mma.m16n8k64", "Block Scaling for mma.sync").

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up fails")]
#![expect(clippy::float_cmp, reason = "all sums are exact")]
#![expect(clippy::cast_possible_truncation, reason = "words of 32 bits")]

use partita_emu::direct::{Argument, DirectError, Form, Run, run};
use partita_emu::{Options, Spec, Timing};
use partita_model::Dim3;
use std::fmt::Write;

/// Numbers by chance.
struct Draw(u64);

impl Draw {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }
}

/// A format of factors: bits of exponent and mantissa.
#[derive(Clone, Copy, Debug)]
struct Narrow {
    name: &'static str,
    exponent: u32,
    mantissa: u32,
}

const E2M1: Narrow = Narrow { name: "e2m1", exponent: 2, mantissa: 1 };
const E2M3: Narrow = Narrow { name: "e2m3", exponent: 2, mantissa: 3 };
const E3M2: Narrow = Narrow { name: "e3m2", exponent: 3, mantissa: 2 };
const E4M3: Narrow = Narrow { name: "e4m3", exponent: 4, mantissa: 3 };
const E5M2: Narrow = Narrow { name: "e5m2", exponent: 5, mantissa: 2 };

impl Narrow {
    fn bits(self) -> u32 {
        1 + self.exponent + self.mantissa
    }

    /// The value of an encoding, by the definition of the format.
    fn value(self, code: u64) -> f64 {
        let fraction = code & ((1 << self.mantissa) - 1);
        let field = (code >> self.mantissa & ((1 << self.exponent) - 1)) as i32;
        let bias = (1 << (self.exponent - 1)) - 1;
        let lead = if field == 0 { 0.0 } else { 1.0 };
        let size = (lead + fraction as f64 / f64::from(1_u32 << self.mantissa))
            * 2_f64.powi(field.max(1) - bias);
        if code >> (self.bits() - 1) & 1 == 1 { -size } else { size }
    }

    /// An encoding whose products with others of its kind add up exactly.
    fn code(self, draw: &mut Draw) -> u64 {
        loop {
            let code = draw.below(1 << self.bits());
            let size = self.value(code).abs();
            if size == 0.0 || (0.25..=4.0).contains(&size) {
                return code;
            }
        }
    }
}

/// A lane's bytes or half bytes of a factor, in registers.
fn pack(codes: &[u64], packed: bool, four_bits: bool) -> Vec<u32> {
    let (width, shift) = if packed { (4, 0) } else { (8, if four_bits { 2 } else { 0 }) };
    codes
        .chunks(32 / width)
        .map(|part| part.iter().rev().fold(0, |word, code| word << width | code << shift) as u32)
        .collect()
}

#[derive(Clone, Copy, Debug)]
struct Case {
    kind: &'static str,
    /// A and B.
    formats: [Narrow; 2],
    packed: bool,
    sum: &'static str,
    sparse: bool,
    /// Factors of a row, whether they are powers of two, and the selectors of A and B.
    scales: Option<(usize, bool, [u64; 4])>,
    in_registers: bool,
}

impl Case {
    fn k(&self) -> usize {
        (if self.packed { 64 } else { 32 }) * if self.sparse { 2 } else { 1 }
    }

    fn scale(code: u64, powers: bool) -> f64 {
        if powers { 2_f64.powi(code as i32 - 127) } else { E4M3.value(code & 0x7f) }
    }

    fn check(&self) -> usize {
        let k = self.k();
        let stored = if self.sparse { k / 2 } else { k };
        let [of_a, of_b] = self.formats;
        let mut draw = Draw(0x1234_5678_9abc_def1 ^ (k * 31 + usize::from(self.packed)) as u64);
        let mut codes =
            |count: usize, of: Narrow| (0..count).map(|_| of.code(&mut draw)).collect::<Vec<_>>();
        let (a, b) = (codes(16 * stored, of_a), codes(8 * k, of_b));
        let c: Vec<f64> = (0..128).map(|_| draw.below(17) as f64 - 8.0).collect();
        // Where the stored elements of each row of A belong, and their metadata.
        let unit = if self.packed { 2 } else { 1 };
        let mut places = vec![Vec::new(); 16];
        let mut metadata = [0_u32; 32];
        for (row, places) in places.iter_mut().enumerate() {
            if !self.sparse {
                places.extend(0..k);
                continue;
            }
            for chunk in 0..k / (4 * unit) {
                let two = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)];
                let (first, second) = two[draw.below(6) as usize];
                for place in [first, second] {
                    places.extend((0..unit).map(|part| (4 * chunk + place) * unit + part));
                }
                // Threads 0 and 1 of a group have the first half of its two rows.
                let lane = 4 * (row % 8) + 2 * (chunk / 8) + row / 8;
                metadata[lane] |= ((first | second << 2) as u32) << (4 * (chunk % 8));
            }
        }
        let (count, powers, selectors) = self.scales.unwrap_or((1, true, [0; 4]));
        let mut words = |lines: usize| -> Vec<u64> {
            (0..lines * count)
                .map(|_| if powers { 125 + draw.below(5) } else { 0x30 + draw.below(16) })
                .collect()
        };
        let (scale_a, scale_b) = (words(16), words(8));
        // What each lane holds: A, B, C, metadata, scale factors of A and B. Bytes that no
        // selector names are NaNs.
        let per = if self.packed { 8 } else { 4 };
        let at_register = |i: usize| (i / per, i % per);
        let mut input = Vec::new();
        for (lane, metadata) in metadata.iter().enumerate() {
            let (g, t) = (lane / 4, lane % 4);
            let left: Vec<u64> = (0..16 * stored / 32)
                .map(|i| {
                    let (register, part) = at_register(i);
                    let column = per * t + part + 4 * per * (register / 2);
                    a[(g + 8 * (register % 2)) * stored + column]
                })
                .collect();
            let right: Vec<u64> = (0..8 * k / 32)
                .map(|i| {
                    let (register, part) = at_register(i);
                    b[(per * t + part + 4 * per * register) * 8 + g]
                })
                .collect();
            input.extend(pack(&left, self.packed, of_a.bits() == 4));
            input.extend(pack(&right, self.packed, of_b.bits() == 4));
            let own: Vec<f64> = (0..4).map(|i| c[(g + 8 * (i / 2)) * 8 + 2 * t + i % 2]).collect();
            if self.sum == "f32" {
                input.extend(own.iter().map(|&value| (value as f32).to_bits()));
            } else {
                let half = |value: f64| u32::from(half::f16::from_f64(value).to_bits());
                input.extend(own.chunks(2).map(|two| half(two[0]) | half(two[1]) << 16));
            }
            input.push(*metadata);
            let mut data = [0xffff_ffff_u32; 2];
            let [byte_a, thread_a, byte_b, thread_b] = selectors;
            let mut place = |which: usize, byte: u64, codes: &[u64]| {
                for (index, code) in codes.iter().enumerate() {
                    let shift = 8 * (byte as usize + index);
                    data[which] = data[which] & !(0xff << shift) | (*code as u32) << shift;
                }
            };
            if t / 2 == thread_a as usize {
                let row = g + 8 * (t % 2);
                place(0, byte_a, &scale_a[row * count..][..count]);
            }
            if t == thread_b as usize {
                place(1, byte_b, &scale_b[g * count..][..count]);
            }
            input.extend(data);
        }
        let found = self.run(&input).unwrap_or_else(|error| panic!("{error}\n{self:?}"));
        for lane in 0..32 {
            for i in 0..4 {
                let (row, column) = (lane / 4 + 8 * (i / 2), 2 * (lane % 4) + i % 2);
                let value = if self.sum == "f32" {
                    f64::from(f32::from_bits(found[4 * lane + i]))
                } else {
                    let word = found[4 * lane + i / 2] >> (16 * (i % 2));
                    half::f16::from_bits(word as u16).to_f64()
                };
                let mut sum = c[row * 8 + column];
                for (index, &place) in places[row].iter().enumerate() {
                    let mut product =
                        of_a.value(a[row * stored + index]) * of_b.value(b[place * 8 + column]);
                    if self.scales.is_some() {
                        let chunk = place / (k / count);
                        product *= Self::scale(scale_a[row * count + chunk], powers)
                            * Self::scale(scale_b[column * count + chunk], powers);
                    }
                    sum += product;
                }
                let rounded = if self.sum == "f32" {
                    f64::from(sum as f32)
                } else {
                    half::f16::from_f64(sum).to_f64()
                };
                assert_eq!(value, rounded, "{self:?} at ({row}, {column})");
            }
        }
        128
    }

    fn run(&self, input: &[u32]) -> Result<Vec<u32>, DirectError> {
        let bytes: Vec<u8> = input.iter().flat_map(|word| word.to_le_bytes()).collect();
        let job = Run {
            ptx: self.kernel(input.len() / 32).into(),
            kernel: "test".to_owned(),
            grid: Dim3::linear(1),
            block: Dim3::linear(32),
            dynamic_shared: 0,
            arguments: vec![Argument::Buffer(bytes), Argument::Buffer(vec![0; 32 * 16])],
            form: Form::Original,
            spec: Spec::named("h200").unwrap(),
            options: Options { timing: Timing::Off, seed: 1, ..Options::default() },
        };
        let found = run(&job)?.buffers.remove(1);
        Ok(found.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect())
    }

    fn kernel(&self, words: usize) -> String {
        let mut text = ".version 8.8\n.target sm_90\n.address_size 64\n.visible .entry \
             test(.param .u64 p0, .param .u64 p1)\n{\n.reg .b32 %r<40>; .reg .b64 %d<4>; .reg \
             .b16 %h<4>;\nld.param.u64 %d0, [p0]; ld.param.u64 %d1, [p1]; mov.u32 %r0, %tid.x;\n"
            .to_owned();
        writeln!(text, "mul.wide.u32 %d2, %r0, {}; add.u64 %d0, %d0, %d2;", 4 * words).unwrap();
        text += "mul.wide.u32 %d2, %r0, 16; add.u64 %d1, %d1, %d2;\n";
        for at in 0..words {
            writeln!(text, "ld.global.b32 %r{}, [%d0+{}];", at + 1, 4 * at).unwrap();
        }
        let mut next = 1;
        let mut list = |count: usize| {
            let names: Vec<String> = (next..next + count).map(|at| format!("%r{at}")).collect();
            next += count;
            names.join(", ")
        };
        let sums = if self.sum == "f32" { 4 } else { 2 };
        // A sparse A is stored as a whole one of half the length.
        let of_b = if self.sparse { 4 } else { 2 };
        let [a, b, c, e, scale_a, scale_b] = [4, of_b, sums, 1, 1, 1].map(&mut list);
        let to = list(sums);
        let [of_a, of_b] = self.formats.map(|format| format.name);
        let (k, sum) = (self.k(), self.sum);
        let sp = if self.sparse { ".sp::ordered_metadata" } else { "" };
        let mut form = format!("mma{sp}.sync.aligned.m16n8k{k}.row.col.kind::{}", self.kind);
        let mut tail = if self.sparse { format!(", {e}, 0") } else { String::new() };
        let mut scale_type = "";
        if let Some((count, powers, selectors)) = self.scales {
            write!(form, ".block_scale.scale_vec::{count}X").unwrap();
            scale_type = if powers { ".ue8m0" } else { ".ue4m3" };
            let names = if self.in_registers {
                for (at, selector) in selectors.iter().enumerate() {
                    writeln!(text, "mov.u16 %h{at}, {selector};").unwrap();
                }
                ["%h0", "%h1", "%h2", "%h3"].map(str::to_owned)
            } else {
                selectors.map(|selector| selector.to_string())
            };
            let [byte_a, thread_a, byte_b, thread_b] = names;
            write!(
                tail,
                ", {scale_a}, {{{byte_a}, {thread_a}}}, {scale_b}, {{{byte_b}, {thread_b}}}"
            )
            .unwrap();
        }
        writeln!(
            text,
            "{form}.{sum}.{of_a}.{of_b}.{sum}{scale_type} {{{to}}}, {{{a}}}, {{{b}}}, \
             {{{c}}}{tail};"
        )
        .unwrap();
        for (at, register) in to.split(", ").enumerate() {
            writeln!(text, "st.global.b32 [%d1+{}], {register};", 4 * at).unwrap();
        }
        text + "ret;\n}\n"
    }
}

const BYTES: [Narrow; 5] = [E2M1, E2M3, E3M2, E4M3, E5M2];

#[test]
fn products_of_bytes() {
    let mut compared = 0;
    for a in BYTES {
        for b in BYTES {
            for sum in ["f32", "f16"] {
                for sparse in [false, true] {
                    let case = Case {
                        kind: "f8f6f4",
                        formats: [a, b],
                        packed: false,
                        sum,
                        sparse,
                        scales: None,
                        in_registers: false,
                    };
                    compared += case.check();
                }
            }
        }
    }
    assert!(compared >= 2_000, "{compared} comparisons");
}

#[test]
fn products_with_scale_factors() {
    let mut compared = 0;
    let mut check = |kind, formats, packed, count, powers| {
        for sparse in [false, true] {
            for number in 0..4_u64 {
                let byte = |at: u64| at % 4 / count as u64 * count as u64;
                let selectors = [byte(number), number % 2, byte(number + 3), number];
                let case = Case {
                    kind,
                    formats,
                    packed,
                    sum: "f32",
                    sparse,
                    scales: Some((count, powers, selectors)),
                    in_registers: number > 1,
                };
                compared += case.check();
            }
        }
    };
    for a in BYTES {
        check("mxf8f6f4", [a, E4M3], false, 1, true);
        check("mxf8f6f4", [E3M2, a], false, 1, true);
    }
    check("mxf4", [E2M1, E2M1], true, 2, true);
    check("mxf4nvf4", [E2M1, E2M1], true, 2, true);
    check("mxf4nvf4", [E2M1, E2M1], true, 4, true);
    check("mxf4nvf4", [E2M1, E2M1], true, 4, false);
    assert!(compared >= 2_000, "{compared} comparisons");
}

#[test]
fn a_selector_out_of_range_is_a_fault() {
    for (selectors, wanted) in [
        ([4, 0, 0, 0], "scale factors of A from byte 4"),
        ([0, 2, 0, 0], "of thread 2"),
        ([0, 0, 0, 4], "scale factors of B"),
        ([0, 0, 65535, 0], "from byte 65535"),
    ] {
        let case = Case {
            kind: "mxf8f6f4",
            formats: [E4M3, E4M3],
            packed: false,
            sum: "f32",
            sparse: false,
            scales: Some((1, true, selectors)),
            in_registers: true,
        };
        let error = case.run(&[0; 32 * 13]).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
        let refused = Case { in_registers: false, ..case }.run(&[0; 32 * 13]).unwrap_err();
        assert!(refused.to_string().contains("block_scale"), "{refused}");
    }
}

/// Runs a kernel of one warp on 1024 bytes of shared memory that it gets from the first buffer.
/// The text loads from or stores to `%s`, the lane's address, with the registers `%r0` and on.
fn on_shared(text: &str, memory: &[u8], words: &[u32]) -> (Vec<u8>, Vec<u32>) {
    let mut kernel = ".version 8.8\n.target sm_90\n.address_size 64\n.visible .entry test(.param \
         .u64 p0, .param .u64 p1)\n{\n.shared .align 128 .b8 sh[1024];\n.reg .b32 %r<8>, %s, %t, \
         %a, %b; .reg .b64 %d<4>;\nld.param.u64 %d0, [p0]; ld.param.u64 %d1, [p1]; mov.u32 %t, \
         %tid.x;\nmul.wide.u32 %d2, %t, 32; add.u64 %d0, %d0, %d2; mul.wide.u32 %d2, %t, 16; \
         add.u64 %d1, %d1, %d2;\nmov.u32 %b, sh; mad.lo.u32 %a, %t, 32, %b;\n"
        .to_owned();
    for at in (0..32).step_by(4) {
        writeln!(kernel, "ld.global.b32 %s, [%d0+{at}]; st.shared.b32 [%a+{at}], %s;").unwrap();
    }
    for at in 0..4 {
        writeln!(kernel, "ld.global.b32 %r{at}, [%d1+{}];", 4 * at).unwrap();
    }
    // Lines lie apart and not in order.
    kernel += "bar.warp.sync -1; xor.b32 %s, %t, 5; mad.lo.u32 %s, %s, 32, %b;\n";
    kernel += text;
    kernel += "\nbar.warp.sync -1;\n";
    for at in (0..32).step_by(4) {
        writeln!(kernel, "ld.shared.b32 %s, [%a+{at}]; st.global.b32 [%d0+{at}], %s;").unwrap();
    }
    for at in 0..4 {
        writeln!(kernel, "st.global.b32 [%d1+{}], %r{at};", 4 * at).unwrap();
    }
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let job = Run {
        ptx: (kernel + "ret;\n}\n").into(),
        kernel: "test".to_owned(),
        grid: Dim3::linear(1),
        block: Dim3::linear(32),
        dynamic_shared: 0,
        arguments: vec![Argument::Buffer(memory.to_vec()), Argument::Buffer(bytes)],
        form: Form::Original,
        spec: Spec::named("h200").unwrap(),
        options: Options { timing: Timing::On, seed: 1, ..Options::default() },
    };
    let mut buffers = run(&job).unwrap_or_else(|error| panic!("{error}\n{text}")).buffers;
    let words = buffers.remove(1);
    let words = words.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    (buffers.remove(0), words)
}

/// The line at the address of a lane.
fn line(memory: &[u8], lane: usize) -> &[u8] {
    &memory[32 * (lane ^ 5)..][..16]
}

#[test]
fn matrices_of_bytes_are_loaded() {
    let mut draw = Draw(7);
    let mut compared = 0;
    for round in 0..4 {
        let memory: Vec<u8> = (0..1024).map(|_| draw.below(256) as u8).collect();
        for (format, bits) in [("b8", 8_u32), ("b8x16.b6x16_p32", 6), ("b8x16.b4x16_p64", 4)] {
            let element = |lane: usize, index: usize| {
                let bit = bits * index as u32;
                let line = u128::from_le_bytes(line(&memory, lane).try_into().unwrap());
                (line >> bit & ((1 << bits) - 1)) as u8
            };
            for count in [1, 2, 4] {
                let registers =
                    (0..count).map(|at| format!("%r{at}")).collect::<Vec<_>>().join(", ");
                let mut check = |text: String, wanted: &dyn Fn(usize, usize, usize) -> u8| {
                    let (_, found) = on_shared(&text, &memory, &[0; 128]);
                    for lane in 0..32 {
                        for register in 0..count {
                            let word: [u8; 4] =
                                std::array::from_fn(|part| wanted(lane, register, part));
                            let own = found[4 * lane + register];
                            assert_eq!(own, u32::from_le_bytes(word), "{round} {text} {lane}");
                            compared += 4;
                        }
                    }
                };
                if count > 1 {
                    let num = count / 2;
                    // Two registers a matrix: rows 0 to 7 and 8 to 15, where a line is a column.
                    check(
                        format!(
                            "ldmatrix.sync.aligned.m16n16.x{num}.trans.shared.{format} \
                             {{{registers}}}, [%s];"
                        ),
                        &|lane, register, part| {
                            let row = lane / 4 + 8 * (register % 2);
                            element(16 * (register / 2) + 4 * (lane % 4) + part, row)
                        },
                    );
                }
                if bits < 8 {
                    check(
                        format!(
                            "ldmatrix.sync.aligned.m8n16.x{count}.shared.{format} \
                             {{{registers}}}, [%s];"
                        ),
                        &|lane, register, part| {
                            element(8 * register + lane / 4, 4 * (lane % 4) + part)
                        },
                    );
                }
            }
        }
    }
    assert!(compared >= 2_000, "{compared} comparisons");
}

#[test]
fn matrices_of_bytes_are_stored() {
    let mut draw = Draw(9);
    let mut compared = 0;
    for _ in 0..6 {
        let words: Vec<u32> = (0..128).map(|_| draw.below(1 << 32) as u32).collect();
        for count in [1, 2, 4] {
            let registers = (0..count).map(|at| format!("%r{at}")).collect::<Vec<_>>().join(", ");
            let text = format!(
                "stmatrix.sync.aligned.m16n8.x{count}.trans.shared.b8 [%s], {{{registers}}};"
            );
            let (memory, _) = on_shared(&text, &[0xaa; 1024], &words);
            for lane in 0..32 {
                let (register, column) = (lane / 8, lane % 8);
                for (row, &byte) in line(&memory, lane).iter().enumerate() {
                    // A lane has rows g and g + 8 of columns 2t and 2t + 1.
                    let word = words[4 * (4 * (row % 8) + column / 2) + register.min(3)];
                    let own = word.to_le_bytes()[2 * (row / 8) + column % 2];
                    let wanted = if register < count { own } else { 0xaa };
                    assert_eq!(byte, wanted, "{text} line {lane} byte {row}");
                    compared += 1;
                }
            }
        }
    }
    assert!(compared >= 2_000, "{compared} comparisons");
}
