//! Sets of SMs.
//!
//! A set holds SM ids below [`SmSet::CAPACITY`]. Iteration is in rising order, so whatever is
//! derived from a set is deterministic.

use crate::SmId;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// A set of SMs of one GPU.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SmSet {
    words: [u64; SmSet::WORDS],
}

impl SmSet {
    /// One more than the largest SM id that a set can hold. The largest GPUs of 2026 have fewer
    /// than 200 SMs.
    pub const CAPACITY: u16 = 256;
    const WORDS: usize = SmSet::CAPACITY as usize / 64;
    /// The set without a member.
    pub const EMPTY: SmSet = SmSet { words: [0; SmSet::WORDS] };

    /// The SMs `first .. first + count`.
    ///
    /// # Panics
    /// Where the range passes [`SmSet::CAPACITY`].
    #[must_use]
    pub fn range(first: u16, count: u16) -> Self {
        assert!(
            u32::from(first) + u32::from(count) <= u32::from(SmSet::CAPACITY),
            "SM range beyond capacity"
        );
        let below = |end: u16, word: u16| match end.saturating_sub(64 * word) {
            64.. => u64::MAX,
            bits => (1 << bits) - 1,
        };
        let mut words = [0; SmSet::WORDS];
        for (word, bits) in (0..).zip(&mut words) {
            *bits = below(first + count, word) & !below(first, word);
        }
        SmSet { words }
    }

    /// Adds one SM; true where it was not yet a member.
    ///
    /// # Panics
    /// Where the id is not below [`SmSet::CAPACITY`].
    pub fn insert(&mut self, sm: SmId) -> bool {
        assert!(sm.0 < SmSet::CAPACITY, "{sm} beyond capacity");
        let was = self.contains(sm);
        self.words[usize::from(sm.0 / 64)] |= 1 << (sm.0 % 64);
        !was
    }

    /// Removes one SM; true where it was a member.
    pub fn remove(&mut self, sm: SmId) -> bool {
        let was = self.contains(sm);
        if was {
            self.words[usize::from(sm.0 / 64)] &= !(1 << (sm.0 % 64));
        }
        was
    }

    /// Whether `sm` is a member.
    #[must_use]
    pub fn contains(&self, sm: SmId) -> bool {
        sm.0 < SmSet::CAPACITY && self.words[usize::from(sm.0 / 64)] >> (sm.0 % 64) & 1 == 1
    }

    /// The number of members.
    #[must_use]
    pub fn len(&self) -> u16 {
        let members: u32 = self.words.iter().map(|word| word.count_ones()).sum();
        u16::try_from(members).expect("a set has at most 256 members")
    }

    /// Whether there is no member.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words == [0; SmSet::WORDS]
    }

    /// The members of either set.
    #[must_use]
    pub fn union(&self, other: &SmSet) -> SmSet {
        self.zip(other, |a, b| a | b)
    }

    /// The members of both sets.
    #[must_use]
    pub fn intersection(&self, other: &SmSet) -> SmSet {
        self.zip(other, |a, b| a & b)
    }

    /// The members of this set that the other lacks.
    #[must_use]
    pub fn difference(&self, other: &SmSet) -> SmSet {
        self.zip(other, |a, b| a & !b)
    }

    /// Whether the sets share no member.
    #[must_use]
    pub fn is_disjoint(&self, other: &SmSet) -> bool {
        self.intersection(other).is_empty()
    }

    /// The members in rising order.
    pub fn iter(&self) -> impl Iterator<Item = SmId> + use<> {
        self.words.into_iter().zip((0_u16..).step_by(64)).flat_map(|(mut word, base)| {
            std::iter::from_fn(move || {
                let bit = u16::try_from(word.trailing_zeros()).expect("at most 64");
                word &= word.wrapping_sub(1);
                (bit < 64).then_some(SmId(base + bit))
            })
        })
    }

    /// The set as a bitmap, SM 0 in the lowest bit of the first word: what a control block's signal
    /// holds.
    #[must_use]
    pub fn words(&self) -> [u64; SmSet::CAPACITY as usize / 64] {
        self.words
    }

    fn zip(&self, other: &SmSet, f: impl Fn(u64, u64) -> u64) -> SmSet {
        SmSet { words: std::array::from_fn(|i| f(self.words[i], other.words[i])) }
    }
}

impl FromIterator<SmId> for SmSet {
    fn from_iter<I: IntoIterator<Item = SmId>>(iter: I) -> Self {
        let mut set = SmSet::EMPTY;
        for sm in iter {
            set.insert(sm);
        }
        set
    }
}

/// Prints runs: `0-11,14,20-23`; the empty set prints as `none`.
impl fmt::Display for SmSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut sms = self.iter().peekable();
        if sms.peek().is_none() {
            return f.write_str("none");
        }
        let mut separator = "";
        while let Some(first) = sms.next() {
            let mut last = first;
            while let Some(next) = sms.next_if(|next| next.0 == last.0 + 1) {
                last = next;
            }
            if first == last {
                write!(f, "{separator}{}", first.0)?;
            } else {
                write!(f, "{separator}{}-{}", first.0, last.0)?;
            }
            separator = ",";
        }
        Ok(())
    }
}

impl fmt::Debug for SmSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SmSet({self})")
    }
}

/// Why a text is not a set of SMs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParseSmSetError {
    part: String,
}

impl fmt::Display for ParseSmSetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let capacity = SmSet::CAPACITY;
        write!(
            f,
            "`{}` is not an SM id below {capacity} or a range of them (write for example \
             `0-11,14` or `none`)",
            self.part
        )
    }
}

impl std::error::Error for ParseSmSetError {}

/// Reads what [`SmSet`]'s `Display` prints.
impl FromStr for SmSet {
    type Err = ParseSmSetError;

    fn from_str(text: &str) -> Result<Self, ParseSmSetError> {
        let mut set = SmSet::EMPTY;
        if text == "none" {
            return Ok(set);
        }
        for part in text.split(',') {
            let error = || ParseSmSetError { part: part.to_owned() };
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let first: u16 = first.trim().parse().map_err(|_| error())?;
            let last: u16 = last.trim().parse().map_err(|_| error())?;
            if first > last || last >= SmSet::CAPACITY {
                return Err(error());
            }
            for id in first..=last {
                set.insert(SmId(id));
            }
        }
        Ok(set)
    }
}

#[cfg(feature = "schema")]
impl utoipa::PartialSchema for SmSet {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        utoipa::openapi::ObjectBuilder::new()
            .schema_type(utoipa::openapi::schema::Type::String)
            .description(Some("SMs as ranges and numbers, or `none`"))
            .examples(["0-17,20"])
            .into()
    }
}

#[cfg(feature = "schema")]
impl utoipa::ToSchema for SmSet {}

impl Serialize for SmSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SmSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_what_its_members_make() {
        for (first, count) in
            [(0, 0), (0, 1), (0, 64), (0, 132), (63, 2), (64, 64), (100, 0), (130, 126), (0, 256)]
        {
            let members: SmSet = (first..first + count).map(SmId).collect();
            assert_eq!(SmSet::range(first, count), members, "{first} {count}");
        }
    }

    #[test]
    fn text_round_trips() {
        for text in ["none", "0", "0-11", "0-11,14,20-23", "255", "63-64,127-128"] {
            assert_eq!(text.parse::<SmSet>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn bad_text_names_the_part() {
        for (text, part) in
            [("", ""), ("0-", "0-"), ("5-3", "5-3"), ("0,256", "256"), ("1,x", "x"), ("-1", "-1")]
        {
            let error = text.parse::<SmSet>().unwrap_err();
            assert_eq!(error.part, part, "{text}");
        }
    }

    #[test]
    fn arithmetic() {
        let a = SmSet::range(0, 12);
        let b = SmSet::range(8, 100);
        assert_eq!(a.union(&b), SmSet::range(0, 108));
        assert_eq!(a.intersection(&b), SmSet::range(8, 4));
        assert_eq!(a.difference(&b), SmSet::range(0, 8));
        assert!(!a.is_disjoint(&b));
        assert!(a.difference(&b).is_disjoint(&b));
        assert_eq!(b.len(), 100);
        assert_eq!(SmSet::range(64, 1).words(), [0, 1, 0, 0]);
    }
}
