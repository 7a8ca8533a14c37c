//! Waits of a stream for a word of memory (CUDA Driver API, `CUstreamWaitValue_flags`).

use serde::{Deserialize, Serialize};

/// The comparison of a word with a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitCondition {
    /// The word is at or after the value, where numbers wrap: their difference is not negative as a
    /// signed number of the word's width.
    AtLeast,
    /// The word equals the value.
    Equal,
    /// The word has one of the value's bits.
    AnyBit,
    /// A bit is set in neither the word nor the value.
    AnyZero,
}

/// A word of 32 or 64 bits that is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AwaitedWord {
    /// Bytes of the word: 4 or 8. Its address is a multiple of them.
    pub width: u8,
    /// The value; only its lowest `width` bytes count.
    pub value: u64,
    /// The comparison.
    pub condition: WaitCondition,
}

impl AwaitedWord {
    /// A word of 64 bits that counts up to a value.
    #[must_use]
    pub const fn at_least(value: u64) -> Self {
        AwaitedWord { width: 8, value, condition: WaitCondition::AtLeast }
    }

    /// Whether the wait ends at this word, of which the lowest `width` bytes count.
    #[must_use]
    pub const fn holds(&self, word: u64) -> bool {
        let unused = 64 - 8 * self.width as u32;
        // The word's bits on top, so that its sign is the number's.
        let (word, value) = (word << unused, self.value << unused);
        match self.condition {
            WaitCondition::AtLeast => word.wrapping_sub(value).cast_signed() >= 0,
            WaitCondition::Equal => word == value,
            WaitCondition::AnyBit => word & value != 0,
            WaitCondition::AnyZero => !(word | value) >> unused << unused != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_cudas() {
        use WaitCondition::{AnyBit, AnyZero, AtLeast, Equal};
        const TOP: u64 = 1 << 63;
        for (width, condition, value, word, expected) in [
            (8, AtLeast, 5, 4, false),
            (8, AtLeast, 5, 5, true),
            (8, AtLeast, u64::MAX, 3, true),
            (8, AtLeast, 3, u64::MAX, false),
            (4, AtLeast, 0xffff_ffff, 0x7700_0000_0001, true),
            (4, AtLeast, 1, 0xffff_ffff, false),
            (4, Equal, 7, 0x1_0000_0007, true),
            (8, Equal, 7, 0x1_0000_0007, false),
            (4, AnyBit, 0x8000_0001, 0x8000_0000, true),
            (4, AnyBit, 1 << 32 | 2, 1 << 32 | 1, false),
            (8, AnyBit, TOP, TOP, true),
            (4, AnyZero, 0xffff_0000, 0x0000_ffff, false),
            (4, AnyZero, 0xffff_0000, 0x0000_fffe, true),
            (8, AnyZero, u64::MAX >> 1, TOP, false),
            (8, AnyZero, 0, 0, true),
        ] {
            let awaited = AwaitedWord { width, value, condition };
            assert_eq!(awaited.holds(word), expected, "{awaited:?} {word:#x}");
        }
    }
}
