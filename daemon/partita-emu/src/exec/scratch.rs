//! What a CTA that runs ahead has stored. The CTA sees its own stores; memory takes them when the
//! CTA's turn has come.
//!
//! Stores are kept by line of an allocation, so a line that is stored many times is kept once.
//! Reductions come behind all stores; a CTA that reads or stores a line of which it has reduced a
//! word cannot run ahead.

use super::access::combine;
use super::inst::AtomicOp;
use super::step::Env;
use super::trace::LINE_BYTES;
use crate::memory::{Grants, Memory, Place};
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

const LINE: usize = LINE_BYTES as usize;

/// Words of the filter of lines.
const FILTER_WORDS: usize = 64;

/// What surrounds a CTA that runs ahead of its turn.
#[derive(Debug)]
pub struct Ahead<'a> {
    /// Global memory, which the CTA only reads.
    pub memory: &'a Memory,
    /// What the CTA has stored.
    pub scratch: &'a mut Scratch,
}

/// The global memory that a run reads.
#[inline(always)]
pub fn readable<'m>(ahead: &'m Option<Ahead<'_>>, memory: &'m Memory) -> &'m Memory {
    match ahead {
        None => memory,
        Some(ahead) => ahead.memory,
    }
}

/// Bytes of a line that were stored.
#[derive(Clone, Debug)]
pub struct Line {
    /// The address of the line's first byte.
    address: u64,
    /// Which of its bytes were stored.
    mask: u128,
    bytes: [u8; LINE],
}

impl Line {
    /// Stores what was stored. Memory that was freed in the meantime stays away.
    pub fn store(&self, grants: &mut Grants, memory: &mut Memory) {
        let mut rest = self.mask;
        while rest != 0 {
            let first = rest.trailing_zeros() as usize;
            let count =
                (!(rest >> first)).trailing_zeros().min(LINE as u32 - first as u32) as usize;
            let low = self.address + first as u64;
            if let Some(bytes) = grants.bytes_mut(memory, 0, low, low + count as u64) {
                bytes.copy_from_slice(&self.bytes[first..first + count]);
            }
            rest &= !bits(first, count);
        }
    }
}

/// `count` bits from bit `first` on.
fn bits(first: usize, count: usize) -> u128 {
    (u128::MAX >> (LINE - count)) << first
}

/// A reduction of a word of global memory.
#[derive(Clone, Copy, Debug)]
pub struct Reduction {
    op: AtomicOp,
    address: u64,
    by: u64,
}

impl Reduction {
    /// Carries it out. Memory that was freed in the meantime stays away.
    pub fn reduce(&self, grants: &mut Grants, memory: &mut Memory) {
        let length = self.op.ty.bytes();
        let end = self.address + u64::from(length);
        if let Some(bytes) = grants.bytes_mut(memory, 0, self.address, end) {
            let mut word = [0; 8];
            word[..length as usize].copy_from_slice(bytes);
            let new = combine(&self.op, u64::from_le_bytes(word), self.by, 0);
            bytes.copy_from_slice(&new.to_le_bytes()[..length as usize]);
        }
    }
}

/// Hashes the number of a line.
#[derive(Default)]
struct LineHasher(u64);

impl Hasher for LineHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(byte.into());
        }
    }

    fn write_u64(&mut self, word: u64) {
        // 2^64 divided by the golden ratio spreads consecutive lines.
        self.0 = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 ^= self.0 >> 32;
    }
}

/// All that a CTA has stored.
#[derive(Debug)]
pub struct Scratch {
    lines: Vec<Line>,
    /// Where a line of an allocation stands among them.
    places: HashMap<u64, u32, BuildHasherDefault<LineHasher>>,
    /// A bit for each line that may be among them, or of which a word was reduced.
    filter: [u64; FILTER_WORDS],
    reductions: Vec<Reduction>,
    /// Lines of which a word was reduced.
    reduced: HashSet<u64, BuildHasherDefault<LineHasher>>,
    /// A line was read or stored of which a word was reduced.
    is_spoilt: bool,
}

impl Default for Scratch {
    fn default() -> Self {
        Scratch {
            lines: Vec::new(),
            places: HashMap::default(),
            filter: [0; FILTER_WORDS],
            reductions: Vec::new(),
            reduced: HashSet::default(),
            is_spoilt: false,
        }
    }
}

/// The number of a line of an allocation.
fn line_of(place: Place, offset: u64) -> u64 {
    // A GPU's memory has fewer than 2^40 lines.
    (place.slot as u64) << 40 | (offset / LINE_BYTES)
}

/// The line's bit in the filter: word and mask. Consecutive lines have bits of their own.
fn bit_of(line: u64) -> (usize, u64) {
    let bit = line ^ line >> 12;
    ((bit / 64) as usize % FILTER_WORDS, 1 << (bit % 64))
}

impl Scratch {
    /// Whether nothing was stored or reduced.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.reductions.is_empty()
    }

    /// Whether the CTA read or stored what it had reduced, so that what it did is of no use.
    #[must_use]
    pub fn is_spoilt(&self) -> bool {
        self.is_spoilt
    }

    /// Stored lines and reductions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lines.len() + self.reductions.len()
    }

    /// Moves everything out; the room of what is given is used again.
    pub fn take(&mut self, lines: &mut Vec<Line>, reductions: &mut Vec<Reduction>) {
        self.places.clear();
        self.reduced.clear();
        self.filter = [0; FILTER_WORDS];
        self.is_spoilt = false;
        lines.clear();
        reductions.clear();
        std::mem::swap(&mut self.lines, lines);
        std::mem::swap(&mut self.reductions, reductions);
    }

    /// Keeps a reduction of a word at `address`.
    fn reduce(&mut self, place: Place, op: &AtomicOp, address: u64, by: u64) {
        let line = line_of(place, place.offset);
        let (word, bit) = bit_of(line);
        self.filter[word] |= bit;
        self.reduced.insert(line);
        self.reductions.push(Reduction { op: *op, address, by });
    }

    /// Stores bytes of one allocation, which lie at `address`.
    pub fn store(&mut self, place: Place, address: u64, from: &[u8]) {
        let (mut offset, mut address, mut from) = (place.offset, address, from);
        while !from.is_empty() {
            let within = (offset % LINE_BYTES) as usize;
            let (piece, rest) = from.split_at(from.len().min(LINE - within));
            let number = line_of(place, offset);
            let lines = &mut self.lines;
            let at = *self.places.entry(number).or_insert_with(|| {
                let address = address - within as u64;
                lines.push(Line { address, mask: 0, bytes: [0; LINE] });
                lines.len() as u32 - 1
            });
            let (word, bit) = bit_of(number);
            self.is_spoilt |= self.filter[word] & bit != 0 && self.reduced.contains(&number);
            self.filter[word] |= bit;
            let line = &mut lines[at as usize];
            line.mask |= bits(within, piece.len());
            line.bytes[within..within + piece.len()].copy_from_slice(piece);
            (offset, address) = (offset + piece.len() as u64, address + piece.len() as u64);
            from = rest;
        }
    }

    /// Whether one of an allocation's bytes may have been stored.
    #[must_use]
    pub fn may_hold(&self, place: Place, bytes: u64) -> bool {
        let lines = line_of(place, place.offset)..=line_of(place, place.offset + bytes - 1);
        lines.into_iter().any(|line| {
            let (word, bit) = bit_of(line);
            self.filter[word] & bit != 0
        })
    }

    /// Puts the bytes that were stored over those of memory. True where there were any.
    pub fn overlay(&mut self, place: Place, into: &mut [u8]) -> bool {
        let mut any = false;
        self.is_spoilt |= self.reduced.contains(&line_of(place, place.offset));
        for (at, byte) in into.iter_mut().enumerate() {
            let offset = place.offset + at as u64;
            let Some(&found) = self.places.get(&line_of(place, offset)) else { continue };
            let (line, within) = (&self.lines[found as usize], (offset % LINE_BYTES) as usize);
            if line.mask >> within & 1 == 1 {
                *byte = line.bytes[within];
                any = true;
            }
        }
        any
    }
}

/// Puts what the CTA has stored over bytes that it has read from memory.
pub fn overlay(env: &mut Env<'_>, site: usize, address: u64, into: &mut [u8]) -> bool {
    let Some(ahead) = &mut env.ahead else { return false };
    if ahead.scratch.is_empty() {
        return false;
    }
    let end = address.wrapping_add(into.len() as u64);
    let place = env.grants.place(ahead.memory, site, address, end);
    place.is_some_and(|place| {
        ahead.scratch.may_hold(place, into.len() as u64) && ahead.scratch.overlay(place, into)
    })
}

/// Keeps a store of a CTA that runs ahead. False where the launch may not store there.
pub fn store(env: &mut Env<'_>, site: usize, address: u64, from: &[u8]) -> bool {
    let Some(ahead) = &mut env.ahead else { return false };
    let end = address.wrapping_add(from.len() as u64);
    match env.grants.place(ahead.memory, site, address, end) {
        Some(place) if !env.grants.is_read_only(address, end) => {
            ahead.scratch.store(place, address, from);
            true
        }
        _ => false,
    }
}

/// Keeps a reduction of a CTA that runs ahead. False where the launch may not store there.
pub fn reduce(env: &mut Env<'_>, site: usize, op: &AtomicOp, address: u64, by: u64) -> bool {
    let Some(ahead) = &mut env.ahead else { return false };
    let bytes = u64::from(op.ty.bytes());
    let end = address.wrapping_add(bytes);
    match env.grants.place(ahead.memory, site, address, end) {
        Some(place) if address.is_multiple_of(bytes) && !env.grants.is_read_only(address, end) => {
            ahead.scratch.reduce(place, op, address, by);
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cta_sees_the_bytes_that_it_has_stored() {
        let mut scratch = Scratch::default();
        let place = |slot, offset| Place { slot, offset };
        assert!(scratch.is_empty() && !scratch.may_hold(place(1, 0), 4));
        scratch.store(place(1, 126), 0x1000 + 126, &[1, 2, 3, 4]);
        scratch.store(place(1, 127), 0x1000 + 127, &[5]);
        assert_eq!((scratch.len(), scratch.may_hold(place(1, 100), 100)), (2, true));
        let mut read = [9; 6];
        assert!(scratch.overlay(place(1, 125), &mut read));
        assert_eq!(read, [9, 1, 5, 3, 4, 9]);
        assert!(!scratch.overlay(place(2, 125), &mut read), "another allocation");
        let mut lines = Vec::new();
        scratch.take(&mut lines, &mut Vec::new());
        assert_eq!((lines[0].address, lines[0].mask), (0x1000, 0b11 << 126));
        assert_eq!((lines[1].address, lines[1].mask), (0x1080, 0b11));
        assert!(scratch.is_empty() && !scratch.overlay(place(1, 125), &mut read));
    }

    #[test]
    fn runs_of_bits() {
        assert_eq!((bits(0, 128), bits(127, 1), bits(3, 2)), (u128::MAX, 1 << 127, 0b11000));
    }
}
