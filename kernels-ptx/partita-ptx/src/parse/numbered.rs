//! Finds registers of ranges by stem and number: `%rd12` is element 12 of `%rd`.
//!
//! Nearly every operand is such a register, so they are found without a hash of the whole text: a
//! function's ranges have a place by their stem, and each has a table by number. This is a shortcut
//! before [`super::scope`], never the truth: whatever could give a name another meaning makes the
//! shortcut forget it. All tables together have no more entries than the source lets them.

use super::scope::Range;
use crate::ir::Reg;

/// A stem with its `%`, of at most eight bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stem(u64);

impl Stem {
    /// The text without the digits at its end; `None` when it is too long or no register's.
    pub fn of(text: &str) -> Option<Self> {
        let stem = text.trim_end_matches(|c: char| c.is_ascii_digit()).as_bytes();
        if stem.first() != Some(&b'%') || stem.len() > 8 {
            return None;
        }
        Some(Self(stem.iter().fold(0, |key, &byte| key << 8 | u64::from(byte))))
    }

    /// Splits a name of a stem and a number as PTX counts: without leading zeros.
    #[inline]
    pub fn split(text: &[u8]) -> Option<(Self, u32)> {
        if text.first() != Some(&b'%') {
            return None;
        }
        let mut key = 0_u64;
        let mut at = 0;
        while let Some(&byte) = text.get(at)
            && !byte.is_ascii_digit()
        {
            key = key << 8 | u64::from(byte);
            at += 1;
        }
        let digits = &text[at..];
        // Nine digits fit 32 bits.
        let canonical = matches!(digits.len(), 1..=9) && (digits[0] != b'0' || digits.len() == 1);
        if at > 8 || !canonical {
            return None;
        }
        let mut number = 0_u32;
        for &byte in digits {
            if !byte.is_ascii_digit() {
                return None;
            }
            number = number * 10 + u32::from(byte - b'0');
        }
        Some((Self(key), number))
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "below `SLOTS`")]
    const fn slot(self) -> usize {
        (self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - SLOTS.trailing_zeros())) as usize
    }
}

const SLOTS: usize = 32;

#[derive(Debug, Default)]
struct Slot {
    stem: u64,
    /// The function that declares the range; 0 when none does.
    epoch: u32,
    range: Option<Range>,
    /// For each number, the function and the register there.
    regs: Vec<(u32, Reg)>,
}

/// The ranges of the function that is being parsed.
#[derive(Debug)]
pub(super) struct Numbered {
    slots: [Slot; SLOTS],
    /// The number of entries that the tables may still get.
    room: usize,
}

/// The meaning of a name.
#[derive(Clone, Copy, Debug)]
pub(super) enum Element {
    /// A register that occurred before.
    Known(Reg),
    /// An element of the range that is new.
    New(Range),
}

impl Numbered {
    pub fn new(room: usize) -> Self {
        Self { slots: Default::default(), room }
    }

    /// A function declares a range. One that shares its place with another is left to the scopes.
    pub fn declare(&mut self, epoch: u32, stem: Stem, range: Range) {
        let slot = &mut self.slots[stem.slot()];
        if slot.epoch != epoch {
            (slot.stem, slot.epoch, slot.range) = (stem.0, epoch, Some(range));
        }
    }

    /// Whether the function has declared a range of that stem.
    pub fn is_declared(&self, epoch: u32, stem: Stem) -> bool {
        let slot = &self.slots[stem.slot()];
        slot.epoch == epoch && slot.stem == stem.0
    }

    /// Leaves names of that stem to the scopes, for the rest of the function.
    pub fn forget(&mut self, stem: Stem) {
        let slot = &mut self.slots[stem.slot()];
        slot.range = None;
        slot.regs.clear();
    }

    #[inline]
    pub fn find(&self, epoch: u32, stem: Stem, number: u32) -> Option<Element> {
        let slot = &self.slots[stem.slot()];
        if slot.epoch != epoch || slot.stem != stem.0 {
            return None;
        }
        match slot.regs.get(number as usize) {
            Some(&(of, reg)) if of == epoch => Some(Element::Known(reg)),
            _ => slot.range.filter(|range| number < range.count).map(Element::New),
        }
    }

    /// Notes a register that [`Numbered::find`] reported as new.
    pub fn put(&mut self, epoch: u32, stem: Stem, number: u32, reg: Reg) {
        let slot = &mut self.slots[stem.slot()];
        let wanted = (number as usize + 1).saturating_sub(slot.regs.len());
        if wanted > self.room {
            return;
        }
        if wanted > 0 {
            self.room -= wanted;
            slot.regs.resize(number as usize + 1, (0, Reg(0)));
        }
        slot.regs[number as usize] = (epoch, reg);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_split_as_ptx_counts() {
        let split = |text: &str| Stem::split(text.as_bytes());
        assert_eq!(split("%rd12"), Some((Stem::of("%rd").unwrap(), 12)));
        assert_eq!(split("%r0"), Some((Stem::of("%r").unwrap(), 0)));
        assert_eq!(split("%r999999999"), Some((Stem::of("%r").unwrap(), 999_999_999)));
        for text in
            ["%r", "r1", "%r01", "%r1x", "%r1x2", "%longstem1", "%r9999999999", "%", "", "%tid.x"]
        {
            assert_eq!(split(text), None, "{text}");
        }
        assert_eq!(split("%longste1"), Some((Stem::of("%longste").unwrap(), 1)));
    }
}
