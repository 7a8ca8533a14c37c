//! Numbers of the types that tensor cores know, and layouts of matrices in shared memory, as the
//! PTX ISA describes them.

use half::{bf16, f16};

/// A type: its name, and what its bits mean.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Kind {
    pub name: &'static str,
    pub bits: usize,
    /// The code in an instruction descriptor.
    pub code: u32,
    /// Bits in shared memory from one element to the next within 16 bytes, where it is packed.
    pub pitch: usize,
}

const fn kind(name: &'static str, bits: usize, code: u32) -> Kind {
    Kind { name, bits, code, pitch: bits }
}

pub const F16: Kind = kind("f16", 16, 0);
pub const BF16: Kind = kind("bf16", 16, 1);
pub const TF32: Kind = kind("tf32", 32, 2);
pub const F32: Kind = kind("f32", 32, 1);
pub const S32: Kind = kind("s32", 32, 2);
pub const U8: Kind = kind("u8", 8, 0);
pub const S8: Kind = kind("s8", 8, 1);
pub const E4M3: Kind = kind("e4m3", 8, 0);
pub const E5M2: Kind = kind("e5m2", 8, 1);
pub const E2M3: Kind = kind("e2m3", 6, 3);
pub const E3M2: Kind = kind("e3m2", 6, 4);
/// Sixteen in 16 bytes, the upper half of which is padding.
pub const E2M1: Kind = kind("e2m1", 4, 5);
/// Thirty-two in 16 bytes.
pub const DENSE: Kind = kind("e2m1", 4, 1);

impl Kind {
    /// Elements of 16 bytes.
    pub fn per(self) -> usize {
        match self.bits {
            4 if self == DENSE => 32,
            4 | 6 => 16,
            bits => 128 / bits,
        }
    }

    /// Bits of exponent and mantissa of a small type.
    fn fields(self) -> Option<(u32, u32)> {
        Some(match self.name {
            "e4m3" => (4, 3),
            "e5m2" => (5, 2),
            "e2m3" => (2, 3),
            "e3m2" => (3, 2),
            "e2m1" => (2, 1),
            _ => return None,
        })
    }

    pub fn decode(self, bits: u32) -> f64 {
        match self.name {
            "f16" => f16::from_bits(bits as u16).to_f64(),
            "bf16" => bf16::from_bits(bits as u16).to_f64(),
            "f32" | "tf32" => f64::from(f32::from_bits(bits)),
            "s32" => f64::from(bits as i32),
            "u8" => f64::from(bits),
            "s8" => f64::from(bits as u8 as i8),
            _ => {
                let (exponent, mantissa) = self.fields().unwrap();
                let bias = (1 << (exponent - 1)) - 1;
                let field = (bits >> mantissa & ((1 << exponent) - 1)) as i32;
                let fraction = f64::from(bits & ((1 << mantissa) - 1)) / f64::from(1 << mantissa);
                let size = if field == 0 {
                    fraction * f64::exp2(f64::from(1 - bias))
                } else {
                    (1.0 + fraction) * f64::exp2(f64::from(field - bias))
                };
                if bits >> (exponent + mantissa) & 1 == 1 { -size } else { size }
            }
        }
    }

    pub fn encode(self, value: f64) -> u32 {
        match self.name {
            "f16" => u32::from(f16::from_f64(value).to_bits()),
            "bf16" => u32::from(bf16::from_f64(value).to_bits()),
            "f32" | "tf32" => (value as f32).to_bits(),
            // Sums wrap around.
            "s32" => value as i64 as u32,
            "u8" => value as u32,
            "s8" => u32::from(value as i8 as u8),
            _ => (0..1 << self.bits).find(|&bits| self.decode(bits) == value).unwrap(),
        }
    }

    /// Numbers whose products and sums are exact in every type.
    pub fn numbers(self, count: usize, seed: u64) -> Vec<f64> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let choices: &[f64] = match self.name {
            "u8" => &[0.0, 1.0, 2.0, 3.0, 250.0],
            "s8" => &[-2.0, -1.0, 0.0, 1.0, 2.0, -100.0],
            "s32" => &[-2.0, -1.0, 0.0, 1.0, 2_147_483_647.0, -2_147_483_000.0],
            _ => &[-2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0],
        };
        let draw = |_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            choices[(state % choices.len() as u64) as usize]
        };
        (0..count).map(draw).collect()
    }
}

/// A layout of shared memory: pieces of 16 bytes in a row of the pattern, and whether M or N, not
/// K, is contiguous.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Layout {
    pub width: usize,
    pub by_mn: bool,
    /// Bytes that swizzling keeps together: 16 or 32.
    pub atom: usize,
}

impl Layout {
    pub const fn new(width: usize, by_mn: bool) -> Self {
        Layout { width, by_mn, atom: 16 }
    }

    /// Rows of K in a pattern whose M or N is contiguous.
    fn rows(self) -> usize {
        if self.atom == 32 { 4 } else { 8 }
    }

    /// Offsets `leading` and `stride` in bytes for a matrix of `lines` by `k` elements.
    fn offsets(self, lines: usize, k: usize) -> [usize; 2] {
        let (pattern, groups) = (self.width * 16 * self.rows(), k / self.rows());
        match (self.by_mn, self.width) {
            (false, 1) => [lines * 16, 128],
            (false, _) => [16, self.width * 128],
            (true, 1) => [128, 128 * groups],
            (true, _) => [groups * pattern, pattern],
        }
    }

    /// The byte of the piece of an element, and the element's place in it.
    pub fn place(
        self,
        kind: Kind,
        (lines, k): (usize, usize),
        start: usize,
        (mn, at): (usize, usize),
    ) -> (usize, usize) {
        let [leading, stride] = self.offsets(lines, k);
        let per = kind.per();
        let (bytes, inner) = if self.by_mn {
            let (inner, piece) = (mn % per, mn / per);
            let (row, group) = (at % self.rows(), at / self.rows());
            let bytes = if self.width == 1 {
                row * 16 + group * leading + piece * stride
            } else {
                let (across, block) = (piece % self.width, piece / self.width);
                across * 16 + block * leading + row * 16 * self.width + group * stride
            };
            (bytes, inner)
        } else {
            let (inner, piece) = (at % per, at / per);
            let (row, group) = (mn % 8, mn / 8);
            let pitch = if self.width == 1 { leading } else { 16 };
            (row * 16 * self.width + group * stride + piece * pitch, inner)
        };
        let byte = start + bytes;
        // Swizzle<B, 4, 3>, or Swizzle<2, 5, 2>.
        let mixed = if self.atom == 32 {
            byte ^ (byte >> 7 & 3) << 5
        } else {
            byte ^ (byte >> 7 & (self.width - 1)) << 4
        };
        (mixed, inner)
    }

    pub fn descriptor(self, (lines, k): (usize, usize)) -> u64 {
        let [leading, stride] = self.offsets(lines, k);
        let mode: u64 = match (self.width, self.atom) {
            (_, 32) => 1,
            (1, _) => 0,
            (8, _) => 2,
            (4, _) => 4,
            _ => 6,
        };
        let field = |bytes: usize| (bytes as u64 >> 4) & 0x3fff;
        field(leading) << 16 | field(stride) << 32 | 1 << 46 | mode << 61
    }

    /// Puts a matrix into an image of shared memory: `value(mn, k)`.
    pub fn fill(
        self,
        image: &mut [u8],
        kind: Kind,
        (lines, k): (usize, usize),
        start: usize,
        value: impl Fn(usize, usize) -> f64,
    ) {
        for at in 0..k {
            for mn in 0..lines {
                let (byte, inner) = self.place(kind, (lines, k), start, (mn, at));
                let code = kind.encode(value(mn, at));
                for bit in 0..kind.bits {
                    let place = byte * 8 + inner * kind.pitch + bit;
                    let mask = 1 << (place % 8);
                    image[place / 8] &= !mask;
                    if code >> bit & 1 == 1 {
                        image[place / 8] |= mask;
                    }
                }
            }
        }
    }
}
