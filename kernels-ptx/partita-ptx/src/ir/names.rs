//! The interner keeps every identifier and carried text of a module once.
//!
//! A [`Name`] is an index, so a comparison of two names compares two numbers. The hash is seeded
//! for each table, because programs may be hostile, and a fixed hash would let them choose
//! collisions.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};

/// An interned text of one [`crate::Module`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(pub u32);

impl Name {
    /// The name's position in its table.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The texts of one module. Open addressing over an arena; ids are dense and in order of first
/// appearance.
#[derive(Clone, Debug)]
pub struct Names {
    text: String,
    /// The offset of each name in `text`, and last, the end of the last name.
    bounds: Vec<u32>,
    /// Slots. The upper half is the hash's upper half, whose low bits choose the slot; the lower
    /// half is the id + 1. The value 0 is empty.
    slots: Vec<u64>,
    seed: u64,
    /// The last number after a stem that [`Names::fresh`] has returned, so that it does not count
    /// from 1 each time.
    numbers: BTreeMap<Name, u32>,
}

impl Default for Names {
    fn default() -> Self {
        Self {
            text: String::new(),
            bounds: vec![0],
            slots: vec![0; 1 << 8],
            seed: RandomState::new().build_hasher().finish(),
            numbers: BTreeMap::new(),
        }
    }
}

impl Names {
    /// The id of `text`, which is added when new.
    pub fn intern(&mut self, text: &str) -> Name {
        let hash = self.hash(text.as_bytes());
        match self.find(text, hash) {
            Ok(name) => name,
            Err(slot) => self.insert(text, hash, slot),
        }
    }

    /// The id of `text` if the module has it.
    #[must_use]
    pub fn get(&self, text: &str) -> Option<Name> {
        self.find(text, self.hash(text.as_bytes())).ok()
    }

    /// The text of a name.
    #[must_use]
    pub fn text(&self, name: Name) -> &str {
        &self.text[self.span(name)]
    }

    /// The text as bytes, without looking for characters' borders.
    #[inline]
    pub(crate) fn bytes(&self, name: Name) -> &[u8] {
        &self.text.as_bytes()[self.span(name)]
    }

    #[inline]
    fn span(&self, name: Name) -> std::ops::Range<usize> {
        let index = name.index();
        let [start, end] = self.bounds[index..index + 2] else { unreachable!("a slice of two") };
        start as usize..end as usize
    }

    /// The number of names.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bounds.len() - 1
    }

    /// Whether there is no name at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Interns a name that begins with `stem` and that the module does not use yet. A `%` may only
    /// begin a name (PTX ISA, "Identifiers"), and stands as `$` where it came from another name.
    pub fn fresh(&mut self, stem: &str) -> Name {
        let (first, rest) = stem.split_at(usize::from(stem.starts_with('%')));
        if rest.contains('%') {
            return self.fresh(&format!("{first}{}", rest.replace('%', "$")));
        }
        // An inner scope may declare a range of registers later: `%s<9>` is `%s1` there.
        let is_known = |text: &str| self.get(text).is_some();
        if !is_known(stem) && !range_stems(stem).any(is_known) {
            return self.intern(stem);
        }
        let known = self.intern(stem);
        let mut number = self.numbers.get(&known).copied().unwrap_or(0);
        loop {
            number += 1;
            let candidate = format!("{stem}_{number}x");
            if self.get(&candidate).is_none() {
                self.numbers.insert(known, number);
                return self.intern(&candidate);
            }
        }
    }

    fn hash(&self, bytes: &[u8]) -> u64 {
        const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
        let mix = |state: u64, word: u64| {
            let product = u128::from(state ^ word) * u128::from(MULTIPLIER | 1);
            #[expect(clippy::cast_possible_truncation, reason = "folds the halves of the product")]
            let folded = (product >> 64) as u64 ^ product as u64;
            folded
        };
        let mut state = self.seed ^ bytes.len() as u64;
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            state = mix(state, u64::from_le_bytes(*word)).rotate_left(23).wrapping_add(self.seed);
        }
        let mut last = [0_u8; 8];
        last[..rest.len()].copy_from_slice(rest);
        mix(state, u64::from_le_bytes(last).wrapping_add(MULTIPLIER))
    }

    fn find(&self, text: &str, hash: u64) -> Result<Name, usize> {
        let mask = self.slots.len() - 1;
        let mut slot = first_slot(hash, mask);
        loop {
            let entry = self.slots[slot];
            if entry == 0 {
                return Err(slot);
            }
            if entry >> 32 == hash >> 32 {
                let name = Name((entry & 0xffff_ffff) as u32 - 1);
                if self.bytes(name) == text.as_bytes() {
                    return Ok(name);
                }
            }
            slot = (slot + 1) & mask;
        }
    }

    fn insert(&mut self, text: &str, hash: u64, slot: usize) -> Name {
        self.text.push_str(text);
        let name = Name(u32::try_from(self.len()).expect("fewer names than source bytes"));
        self.bounds.push(u32::try_from(self.text.len()).expect("a source is below 4 GiB"));
        self.slots[slot] = (hash >> 32) << 32 | u64::from(name.0 + 1);
        if self.len() * 2 > self.slots.len() {
            self.grow();
        }
        name
    }

    fn grow(&mut self) {
        let mask = self.slots.len() * 2 - 1;
        let mut slots = vec![0_u64; mask + 1];
        for &entry in self.slots.iter().filter(|&&entry| entry != 0) {
            let mut slot = first_slot(entry, mask);
            while slots[slot] != 0 {
                slot = (slot + 1) & mask;
            }
            slots[slot] = entry;
        }
        self.slots = slots;
    }
}

/// The stems of the ranges of registers of which a text can spell an element: `%r<20>` has `%r12`,
/// and so has `%r1<9>`.
pub(crate) fn range_stems(text: &str) -> impl Iterator<Item = &str> {
    let stem = text.trim_end_matches(|last: char| last.is_ascii_digit());
    (stem.len()..text.len()).map(|at| &text[..at])
}

/// The slot at which the search for a hash, or for a slot's own name, begins.
#[inline]
const fn first_slot(hash: u64, mask: usize) -> usize {
    (hash >> 32) as usize & mask
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_dense_and_stable() {
        let mut names = Names::default();
        let all: Vec<Name> = (0..5000).map(|i| names.intern(&format!("%r{i}"))).collect();
        for (i, &name) in all.iter().enumerate() {
            assert_eq!(name.index(), i);
            assert_eq!(names.text(name), format!("%r{i}"));
            assert_eq!(names.get(&format!("%r{i}")), Some(name));
        }
        assert_eq!(names.get("%r5000"), None);
        assert_eq!(names.len(), 5000);
    }

    #[test]
    fn fresh_avoids_what_is_there() {
        let mut names = Names::default();
        names.intern("slot");
        names.intern("slot_1");
        let fresh = names.fresh("slot");
        assert_eq!(names.text(fresh), "slot_1x");
        let fresh = names.fresh("%pw_of_%k");
        assert_eq!(names.text(fresh), "%pw_of_$k");
        // An element of a range that is or will be declared.
        names.intern("%pw_b1");
        let fresh = ["%pw_b12", "%pw_b", "%pw_b3"].map(|stem| names.fresh(stem));
        assert_eq!(fresh.map(|name| names.text(name)), ["%pw_b12_1x", "%pw_b", "%pw_b3_1x"]);
    }
}
