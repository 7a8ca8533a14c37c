//! The video instructions on pairs of 16-bit and quads of 8-bit numbers (PTX ISA, "Video
//! Instructions").

/// The operation on two numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "each is the PTX operation of that name")]
pub enum Kind {
    Add,
    Sub,
    Avrg,
    Absdiff,
    Min,
    Max,
    /// A comparison gives 1 where it holds. The number is in the order of [`super::compare`], `eq`
    /// to `ge`.
    Set(u32),
}

/// An instruction, packed into a lane function's parameter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Video {
    /// The operation.
    pub kind: Kind,
    /// Whether the numbers have 8 bits, else 16.
    pub quads: bool,
    /// Whether result, a and b are signed.
    pub signed: [bool; 3],
    /// Results are clamped to their width.
    pub saturate: bool,
    /// Results are added up with c.
    pub accumulate: bool,
    /// The numbers that count, from bit 0; in place of the others the result has those of c.
    pub mask: u32,
}

impl Video {
    /// As a lane function's parameter.
    #[must_use]
    pub fn pack(self) -> u32 {
        let kind = match self.kind {
            Kind::Add => 0,
            Kind::Sub => 1,
            Kind::Avrg => 2,
            Kind::Absdiff => 3,
            Kind::Min => 4,
            Kind::Max => 5,
            Kind::Set(comparison) => 8 + comparison,
        };
        let flags = [
            self.quads,
            self.signed[0],
            self.signed[1],
            self.signed[2],
            self.saturate,
            self.accumulate,
        ];
        let kind = kind | (self.mask & 15) << 12;
        flags
            .iter()
            .enumerate()
            .fold(kind, |all, (index, &flag)| all | u32::from(flag) << (4 + index))
    }
}

/// The instruction on a, b, c; the parameter is a packed [`Video`].
pub fn video(x: [u64; 3], how: u32) -> u64 {
    let flag = |index: u32| how >> (4 + index) & 1 == 1;
    let bits = if flag(0) { 8 } else { 16 };
    let number = |value: u64, at: u32, signed: bool| -> i64 {
        if signed {
            super::sign_extend(value >> at, bits) as i64
        } else {
            super::zero_extend(value >> at, bits) as i64
        }
    };
    let (low, high) =
        if flag(1) { (-1 << (bits - 1), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) };
    let (mut sum, mut joined) = (x[2], 0);
    for (index, at) in (0..32).step_by(bits as usize).enumerate() {
        if how >> 12 >> index & 1 == 0 {
            joined |= super::zero_extend(x[2] >> at, bits) << at;
            continue;
        }
        let (a, b) = (number(x[0], at, flag(2)), number(x[1], at, flag(3)));
        let result = match how & 15 {
            0 => a + b,
            1 => a - b,
            2 => (a + b + i64::from(a + b >= 0)) >> 1,
            3 => (a - b).abs(),
            4 => a.min(b),
            5 => a.max(b),
            8 => i64::from(a == b),
            9 => i64::from(a != b),
            10 => i64::from(a < b),
            11 => i64::from(a <= b),
            12 => i64::from(a > b),
            _ => i64::from(a >= b),
        };
        let result = if flag(4) { result.clamp(low, high) } else { result };
        sum = sum.wrapping_add(result as u64);
        joined |= super::zero_extend(result as u64, bits) << at;
    }
    if flag(5) { sum } else { joined }
}
