//! Random changes of a PTX text: other registers, numbers, types, state spaces, guards and targets,
//! and instructions that are gone, doubled or elsewhere. What comes of it may be no PTX.

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};

/// Numbers at which checks and proofs have their borders.
const NUMBERS: [u64; 26] = [
    0,
    1,
    2,
    3,
    4,
    7,
    8,
    15,
    16,
    31,
    32,
    33,
    63,
    64,
    127,
    255,
    256,
    1024,
    4095,
    49152,
    65536,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_fff0,
    0xffff_ffff,
    0xffff_ffff_0000,
];
const TYPES: [&str; 12] =
    [".u8", ".u16", ".u32", ".u64", ".s8", ".s16", ".s32", ".s64", ".b16", ".b32", ".b64", ".b8"];
const SPACES: [&str; 5] = [".global", ".shared", ".local", ".const", ""];
/// Instructions that end something or wait for others.
const STRANGE: [&str; 10] = [
    "ret;",
    "exit;",
    "trap;",
    "bar.sync 0;",
    "bar.sync 1, 64;",
    "barrier.sync 2;",
    "bar.arrive 3, 96;",
    "bar.warp.sync 0xffffffff;",
    "nanosleep.u32 1000;",
    "membar.gl;",
];

/// A source of choices.
pub struct Random(SplitMix64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(SplitMix64::seed_from_u64(seed))
    }

    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    pub fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.bits() % (bound.max(1) as u64)).unwrap_or(0)
    }

    pub fn one_of<'a, T: ?Sized>(&mut self, things: &[&'a T]) -> Option<&'a T> {
        let at = self.below(things.len());
        things.get(at).copied()
    }
}

/// A text that is changed line by line, as the printer writes it: one statement a line.
pub struct Text {
    lines: Vec<String>,
}

impl Text {
    pub fn new(text: &str) -> Text {
        Text { lines: text.lines().map(str::to_owned).collect() }
    }

    pub fn joined(&self) -> String {
        let mut text = self.lines.join("\n");
        text.push('\n');
        text
    }

    /// Makes one change.
    pub fn change(&mut self, random: &mut Random) {
        let instructions: Vec<usize> =
            (0..self.lines.len()).filter(|&at| is_instruction(&self.lines[at])).collect();
        if instructions.is_empty() {
            return;
        }
        let at = instructions[random.below(instructions.len())];
        let other = instructions[random.below(instructions.len())];
        match random.below(12) {
            0 => drop(self.lines.remove(at)),
            1 => {
                let doubled = self.lines[other].clone();
                self.lines.insert(at, doubled);
            }
            2 => self.lines.swap(at, other),
            3 => {
                let strange = STRANGE[random.below(STRANGE.len())];
                self.lines.insert(at, format!("\t{strange}"));
            }
            4 => self.guard(at, random),
            5 => self.replace(at, &TYPES, random),
            6 => self.replace(at, &SPACES[..4], random),
            7 => self.target(at, random),
            8 | 9 => self.number(at, random),
            _ => self.register(at, random),
        }
    }

    /// The words of the text for which `wanted` holds.
    fn words(&self, wanted: impl Fn(&str) -> bool) -> Vec<&str> {
        let words = self.lines.iter().flat_map(|line| words(line)).map(|(_, word)| word);
        words.filter(|word| wanted(word)).collect()
    }

    /// Puts another register of the same stem in the place of one.
    fn register(&mut self, at: usize, random: &mut Random) {
        let here: Vec<_> =
            words(&self.lines[at]).filter(|(_, word)| word.starts_with('%')).collect();
        if here.is_empty() {
            return;
        }
        let (from, word) = here[random.below(here.len())];
        let others = self.words(|other| stem(other) == stem(word) && other != word);
        let Some(other) = random.one_of(&others).map(str::to_owned) else { return };
        let to = from + word.len();
        self.lines[at].replace_range(from..to, &other);
    }

    fn target(&mut self, at: usize, random: &mut Random) {
        let labels: Vec<&str> =
            self.lines.iter().filter_map(|line| line.trim().strip_suffix(':')).collect();
        let Some(label) = random.one_of(&labels).map(str::to_owned) else { return };
        let line = &self.lines[at];
        match line.find("bra") {
            Some(bra) => self.lines[at] = format!("{}bra {label};", &line[..bra]),
            None => self.lines.insert(at, format!("\tbra {label};")),
        }
    }

    fn number(&mut self, at: usize, random: &mut Random) {
        let line = &self.lines[at];
        let here: Vec<_> = words(line)
            .filter(|(from, word)| {
                let before = line[..*from].chars().next_back();
                word.starts_with(|first: char| first.is_ascii_digit()) && before != Some('.')
            })
            .collect();
        let chosen = here.get(random.below(here.len())).copied();
        let mut number = |old: u64| match random.below(6) {
            0 => old.wrapping_add(1),
            1 => old.wrapping_sub(1) & 0xffff_ffff,
            2 => old.wrapping_mul(2),
            3 => random.bits() >> random.below(64),
            _ => NUMBERS[random.below(NUMBERS.len())],
        };
        let changed = match (chosen, line.rfind(']')) {
            (Some((from, word)), _) => {
                let new = number(word.parse().unwrap_or(0));
                format!("{}{new}{}", &line[..from], &line[from + word.len()..])
            }
            (None, Some(end)) => format!("{}+{}{}", &line[..end], number(0), &line[end..]),
            (None, None) => return,
        };
        self.lines[at] = changed;
    }

    fn guard(&mut self, at: usize, random: &mut Random) {
        let predicates = self.words(|word| word.starts_with("%p"));
        let Some(predicate) = random.one_of(&predicates).map(str::to_owned) else { return };
        let line = self.lines[at].trim_start().to_owned();
        let bare = match line.strip_prefix('@') {
            Some(guarded) => guarded.split_once(' ').map_or("", |(_, bare)| bare).to_owned(),
            None => line,
        };
        self.lines[at] = match random.below(3) {
            0 => format!("\t{bare}"),
            1 => format!("\t@{predicate} {bare}"),
            _ => format!("\t@!{predicate} {bare}"),
        };
    }

    /// Puts one of these words in the place of another of them.
    fn replace(&mut self, at: usize, of: &[&str], random: &mut Random) {
        let line = &self.lines[at];
        let Some(found) =
            of.iter().filter(|word| !word.is_empty()).find(|word| line.contains(**word))
        else {
            return;
        };
        let Some(new) = random.one_of(of) else { return };
        self.lines[at] = line.replacen(found, new, 1);
    }
}

fn is_instruction(line: &str) -> bool {
    let line = line.trim();
    line.ends_with(';') && !line.starts_with(['.', '{', '}', '/'])
}

/// The part of a register's name before its number.
fn stem(word: &str) -> &str {
    word.trim_end_matches(|last: char| last.is_ascii_digit())
}

/// The words of a line with their places.
fn words(line: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_part = |part: char| part.is_ascii_alphanumeric() || matches!(part, '_' | '$' | '%');
    let mut at = 0;
    std::iter::from_fn(move || {
        let from = at + line[at..].find(is_part)?;
        let length = line[from..].find(|part| !is_part(part)).unwrap_or(line.len() - from);
        at = from + length;
        Some((from, &line[from..at]))
    })
}
