//! Which device addresses a GPU uses where a daemon serves several.
//!
//! A program may hold windows of several GPUs at once and tells by an address whose memory it is,
//! so windows of different GPUs must not overlap, although a process of its own places those of
//! each.

use serde::{Deserialize, Serialize};
use std::ops::Range;

/// One of several equal parts of the device addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AddressPart {
    index: u16,
    count: u16,
}

impl Default for AddressPart {
    fn default() -> Self {
        AddressPart::WHOLE
    }
}

impl AddressPart {
    /// All addresses: of the only GPU.
    pub const WHOLE: AddressPart = AddressPart { index: 0, count: 1 };

    /// Reads `INDEX/COUNT`, counted from 0.
    #[must_use]
    pub fn parse(text: &str) -> Option<AddressPart> {
        let (index, count) = text.split_once('/')?;
        let (index, count): (u16, u16) = (index.parse().ok()?, count.parse().ok()?);
        (index < count).then_some(AddressPart { index, count })
    }

    /// The number of the part, from 0.
    #[must_use]
    pub fn index(self) -> u16 {
        self.index
    }

    /// Whether it is all there is.
    #[must_use]
    pub fn is_whole(self) -> bool {
        self.count == 1
    }

    /// The share of this part in a range of addresses.
    #[must_use]
    pub fn of(self, all: Range<u64>) -> Range<u64> {
        let bytes = all.end.saturating_sub(all.start) / u64::from(self.count);
        let start = all.start + u64::from(self.index) * bytes;
        if self.index + 1 == self.count { start..all.end } else { start..start + bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_disjoint_and_make_the_whole() {
        assert_eq!(AddressPart::WHOLE.of(5..105), 5..105);
        let mut end = 10;
        for index in 0..3 {
            let part = AddressPart::parse(&format!("{index}/3")).expect("a part").of(10..110);
            assert_eq!(part.start, end);
            end = part.end;
        }
        assert_eq!(end, 110);
    }

    #[test]
    fn texts() {
        assert_eq!(AddressPart::parse("0/1"), Some(AddressPart::WHOLE));
        for text in ["", "1", "1/1", "2/1", "0/0", "-1/2", "1/2/3", "a/b", "0/65536"] {
            assert_eq!(AddressPart::parse(text), None, "{text}");
        }
    }
}
