//! Exact numbers: an integer of any size times a power of two, and rounding it once to a
//! floating-point format.

use std::cmp::Ordering;

/// A binary floating-point format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Format {
    /// Bits of the significand, the leading one included.
    pub precision: u32,
    /// Bits of the whole.
    pub bits: u32,
}

pub const F16: Format = Format { precision: 11, bits: 16 };
pub const BF16: Format = Format { precision: 8, bits: 16 };
pub const F32: Format = Format { precision: 24, bits: 32 };
pub const F64: Format = Format { precision: 53, bits: 64 };

impl Format {
    pub fn sign(self) -> u64 {
        1 << (self.bits - 1)
    }

    pub fn infinity(self) -> u64 {
        (self.sign() - 1) >> (self.precision - 1) << (self.precision - 1)
    }

    /// The NaN that PTX gives; for `f64` any will do.
    pub fn nan(self) -> u64 {
        self.sign() - 1
    }

    /// Exponent of the smallest normal number.
    fn lowest(self) -> i64 {
        2 - (1 << (self.bits - self.precision - 1))
    }

    pub fn is_nan(self, bits: u64) -> bool {
        bits & !self.sign() > self.infinity()
    }

    pub fn is_infinite(self, bits: u64) -> bool {
        bits & !self.sign() == self.infinity()
    }

    pub fn is_subnormal(self, bits: u64) -> bool {
        let magnitude = bits & !self.sign();
        magnitude != 0 && magnitude < 1 << (self.precision - 1)
    }

    pub fn flush(self, bits: u64) -> u64 {
        if self.is_subnormal(bits) { bits & self.sign() } else { bits }
    }

    /// Numbers at which things change.
    pub fn edges(self) -> Vec<u64> {
        let one = self.round(&Exact::from_integer(1), Mode::Nearest);
        let unit = 1_u64 << (self.precision - 1);
        let positive = [
            0,
            1,
            2,
            unit - 1,
            unit,
            unit + 1,
            one - 1,
            one,
            one + 1,
            one + unit / 2,
            one + unit,
            one - unit,
            self.infinity() - 1,
            self.infinity(),
            self.nan(),
            one + (self.precision as u64) * unit,
            one - (self.precision as u64) * unit,
        ];
        positive.iter().flat_map(|&bits| [bits, bits | self.sign()]).collect()
    }

    /// The exact value of a finite number.
    pub fn exact(self, bits: u64) -> Exact {
        let field = (bits & !self.sign()) >> (self.precision - 1);
        let fraction = bits & ((1 << (self.precision - 1)) - 1);
        let (integer, exponent) = if field == 0 {
            (fraction, 0)
        } else {
            (fraction | 1 << (self.precision - 1), field as i64 - 1)
        };
        let exponent = exponent + self.lowest() - i64::from(self.precision) + 1;
        Exact { negative: bits & self.sign() != 0, limbs: vec![integer], exponent }.trimmed()
    }

    /// Rounds once.
    pub fn round(self, value: &Exact, mode: Mode) -> u64 {
        let sign = if value.negative { self.sign() } else { 0 };
        if value.is_zero() {
            return sign;
        }
        let top = value.length() - 1 + value.exponent;
        let held = top.max(self.lowest());
        let shift = held - i64::from(self.precision) + 1 - value.exponent;
        let (mut quotient, rest) = value.shifted_right(shift);
        let up = match mode {
            Mode::Nearest => {
                rest == Some(Ordering::Greater)
                    || rest == Some(Ordering::Equal) && quotient & 1 == 1
            }
            Mode::Zero => false,
            Mode::Down => value.negative && rest.is_some(),
            Mode::Up => !value.negative && rest.is_some(),
        };
        quotient += u64::from(up);
        let too_large = held - self.lowest() > 1 << 16;
        let magnitude = if too_large {
            self.infinity()
        } else {
            ((((held - self.lowest()) as u128) << (self.precision - 1)) + u128::from(quotient))
                .min(u128::from(self.infinity())) as u64
        };
        let stays = match mode {
            Mode::Nearest => false,
            Mode::Zero => true,
            Mode::Down => !value.negative,
            Mode::Up => value.negative,
        };
        sign | if magnitude == self.infinity() && stays { magnitude - 1 } else { magnitude }
    }
}

/// How a result is rounded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    Nearest,
    Zero,
    Down,
    Up,
}

pub const MODES: [(&str, Mode); 4] =
    [("rn", Mode::Nearest), ("rz", Mode::Zero), ("rm", Mode::Down), ("rp", Mode::Up)];

/// `±limbs · 2^exponent`.
#[derive(Clone, Debug)]
pub struct Exact {
    pub negative: bool,
    limbs: Vec<u64>,
    exponent: i64,
}

impl Exact {
    pub fn from_integer(value: i128) -> Self {
        let size = value.unsigned_abs();
        Exact { negative: value < 0, limbs: vec![size as u64, (size >> 64) as u64], exponent: 0 }
            .trimmed()
    }

    fn from_parts(negative: bool, integer: u128, exponent: i64) -> Self {
        Exact { negative, limbs: vec![integer as u64, (integer >> 64) as u64], exponent }.trimmed()
    }

    fn trimmed(mut self) -> Self {
        while self.limbs.last() == Some(&0) {
            self.limbs.pop();
        }
        self
    }

    pub fn is_zero(&self) -> bool {
        self.limbs.is_empty()
    }

    pub fn negated(mut self) -> Self {
        self.negative = !self.negative;
        self
    }

    /// Bits of the integer.
    fn length(&self) -> i64 {
        match self.limbs.last() {
            Some(top) => 64 * self.limbs.len() as i64 - i64::from(top.leading_zeros()),
            None => 0,
        }
    }

    fn bit(&self, index: i64) -> bool {
        index >= 0
            && self.limbs.get(index as usize / 64).is_some_and(|limb| limb >> (index % 64) & 1 == 1)
    }

    /// The integer part of the value over `2^shift` steps of its own unit, below 2⁶⁴, and the rest
    /// against one half.
    fn shifted_right(&self, shift: i64) -> (u64, Option<Ordering>) {
        let quotient =
            (0..64).fold(0, |all, index| all | u64::from(self.bit(shift + index)) << index);
        let half = self.bit(shift - 1);
        let below = (0..(shift - 1).clamp(0, self.length())).any(|index| self.bit(index));
        let rest = match (half, below) {
            (false, false) => None,
            (false, true) => Some(Ordering::Less),
            (true, false) => Some(Ordering::Equal),
            (true, true) => Some(Ordering::Greater),
        };
        (quotient, rest)
    }

    fn aligned(&self, exponent: i64) -> Vec<u64> {
        let shift = (self.exponent - exponent) as usize;
        let mut limbs = vec![0; shift / 64];
        let mut carry = 0;
        for &limb in &self.limbs {
            let wide = u128::from(limb) << (shift % 64);
            limbs.push(wide as u64 | carry);
            carry = (wide >> 64) as u64;
        }
        limbs.push(carry);
        limbs
    }

    pub fn plus(&self, other: &Exact) -> Exact {
        let exponent = self.exponent.min(other.exponent);
        let (mut a, mut b) = (self.aligned(exponent), other.aligned(exponent));
        let length = a.len().max(b.len()) + 1;
        a.resize(length, 0);
        b.resize(length, 0);
        if self.negative == other.negative {
            let mut carry = 0;
            for (x, y) in a.iter_mut().zip(&b) {
                let sum = u128::from(*x) + u128::from(*y) + carry;
                *x = sum as u64;
                carry = sum >> 64;
            }
            return Exact { negative: self.negative, limbs: a, exponent }.trimmed();
        }
        let (larger, smaller, negative) = match a.iter().rev().cmp(b.iter().rev()) {
            Ordering::Less => (b, a, other.negative),
            _ => (a, b, self.negative),
        };
        let mut limbs = larger;
        let mut borrow = false;
        for (x, y) in limbs.iter_mut().zip(&smaller) {
            let (part, first) = x.overflowing_sub(*y);
            let (part, second) = part.overflowing_sub(u64::from(borrow));
            *x = part;
            borrow = first || second;
        }
        Exact { negative, limbs, exponent }.trimmed()
    }

    pub fn times(&self, other: &Exact) -> Exact {
        let mut limbs = vec![0_u64; self.limbs.len() + other.limbs.len()];
        for (i, &x) in self.limbs.iter().enumerate() {
            let mut carry = 0;
            for (j, &y) in other.limbs.iter().enumerate() {
                let sum = u128::from(x) * u128::from(y) + u128::from(limbs[i + j]) + carry;
                limbs[i + j] = sum as u64;
                carry = sum >> 64;
            }
            limbs[i + other.limbs.len()] = carry as u64;
        }
        Exact {
            negative: self.negative != other.negative,
            limbs,
            exponent: self.exponent + other.exponent,
        }
        .trimmed()
    }

    fn single(&self) -> u128 {
        u128::from(self.limbs.first().copied().unwrap_or(0))
    }

    /// The integer shifted left until its highest bit is `top`, and the exponent that goes with it.
    fn scaled(&self, top: i64) -> (u128, i64) {
        let shift = top + 1 - self.length();
        (self.single() << shift, self.exponent - shift)
    }

    /// The quotient of two numbers of at most 53 bits, to 60 bits or more; the lowest bit says that
    /// it is not exact.
    pub fn over(&self, other: &Exact) -> Exact {
        let ((a, exponent), b) = (self.scaled(120), other.single());
        let quotient = (a / b) << 1 | u128::from(!a.is_multiple_of(b));
        Exact::from_parts(self.negative != other.negative, quotient, exponent - other.exponent - 1)
    }

    /// The square root of a number of at most 53 bits, as [`Exact::over`].
    pub fn root(&self) -> Exact {
        let (mut a, mut exponent) = self.scaled(125);
        if exponent.rem_euclid(2) == 1 {
            (a, exponent) = (a << 1, exponent - 1);
        }
        let root = a.isqrt();
        let inexact = u128::from(root * root != a);
        Exact::from_parts(false, root << 1 | inexact, exponent / 2 - 1)
    }

    /// The nearest integer in a direction.
    pub fn to_integer(&self, mode: Mode) -> i128 {
        if self.is_zero() {
            return 0;
        }
        if self.length() + self.exponent > 100 {
            return if self.negative { i128::MIN } else { i128::MAX };
        }
        let (low, rest) = if self.exponent >= 0 {
            ((self.single() << self.exponent.min(100)) as i128, None)
        } else {
            let (quotient, rest) = self.shifted_right(-self.exponent);
            (i128::from(quotient), rest)
        };
        let up = match mode {
            Mode::Nearest => {
                rest == Some(Ordering::Greater) || rest == Some(Ordering::Equal) && low & 1 == 1
            }
            Mode::Zero => false,
            Mode::Down => self.negative && rest.is_some(),
            Mode::Up => !self.negative && rest.is_some(),
        };
        let size = low + i128::from(up);
        if self.negative { -size } else { size }
    }
}

#[test]
fn rounding_agrees_with_the_host() {
    for (a, b) in [
        (1.0_f64, 3.0_f64),
        (2.0, 1e-300),
        (5e-324, 0.7),
        (1.1, -1e17),
        (1e308, 3.5),
        (5e-324, 2.5e-308),
    ] {
        let (x, y) = (F64.exact(a.to_bits()), F64.exact(b.to_bits()));
        assert_eq!(F64.round(&x.plus(&y), Mode::Nearest), (a + b).to_bits(), "{a} + {b}");
        assert_eq!(F64.round(&x.times(&y), Mode::Nearest), (a * b).to_bits(), "{a} * {b}");
        assert_eq!(F64.round(&x.over(&y), Mode::Nearest), (a / b).to_bits(), "{a} / {b}");
        assert_eq!(F64.round(&x.root(), Mode::Nearest), a.sqrt().to_bits(), "root of {a}");
        assert_eq!(F32.round(&x, Mode::Nearest), u64::from((a as f32).to_bits()), "{a}");
        assert_eq!(
            F16.round(&x, Mode::Nearest),
            u64::from(half::f16::from_f64(a).to_bits()),
            "{a}"
        );
    }
    assert_eq!(F16.infinity(), 0x7c00);
    assert_eq!(BF16.infinity(), 0x7f80);
    assert_eq!(F64.exact((-2.5_f64).to_bits()).to_integer(Mode::Nearest), -2);
    assert_eq!(F64.exact((-2.5_f64).to_bits()).to_integer(Mode::Down), -3);
}
