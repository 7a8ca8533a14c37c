//! How much programs slow each other down, pair by pair: what co-runs have shown.
//!
//! A program is known by its [`Kind`], which is the same in every run of the same kernels. The
//! table is what the selector `matching` learns beside the [`InterferenceMatrix`] of classes, and
//! what the daemon keeps from one start to the next.
//!
//! # Invariants
//!
//! - Every slowdown is a finite mean of at least one measurement, and at least 1.
//! - The table has [`PairSlowdowns::MOST`] entries at most; what was measured longest ago goes
//!   first.

use partita_model::{ContentionClass, InterferenceMatrix};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Measurements that a mean remembers: later ones replace the oldest.
const MEMORY: u64 = 16;
/// Measurements of a pair that weigh as much as the classes' slowdown: programs of a class differ
/// more from each other than two measurements of a pair.
const PRIOR: f64 = 0.25;

/// Which kernels a program launches: a hash of the code and the launch shape of the kernel in which
/// it spends most of its time.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Kind(pub u64);

impl Kind {
    /// The kind of these bytes (FNV-1a of 64 bits): the same on every machine and in every version.
    #[must_use]
    pub fn of(bytes: impl IntoIterator<Item = u8>) -> Kind {
        let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        Kind(bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, step))
    }
}

/// The mean slowdown of one program beside another.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PairSlowdown {
    /// The program that is slowed down.
    pub of: Kind,
    /// The program beside it.
    pub beside: Kind,
    /// Time beside it ÷ time alone on the whole GPU, at least 1.
    pub slowdown: f64,
    /// Measurements in the mean, at least 1.
    pub measured: u64,
}

/// Mean slowdowns by ordered pair of programs.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(into = "Vec<PairSlowdown>", try_from = "Vec<PairSlowdown>")]
pub struct PairSlowdowns {
    entries: BTreeMap<(Kind, Kind), (PairSlowdown, u64)>,
    /// All measurements so far: the time by which entries age.
    measurements: u64,
}

/// Why a table has no slowdowns of pairs.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum PairSlowdownsError {
    /// An entry is no mean of measurements.
    #[error("{0:?} is no mean: it needs a slowdown of at least 1, and at least 1 measurement")]
    Entry(PairSlowdown),
    /// A pair is named twice.
    #[error("{0:?} beside {1:?} is named twice; name each ordered pair once")]
    Twice(Kind, Kind),
    /// There are too many entries.
    #[error("{0} pairs are too many; the most is {most}", most = PairSlowdowns::MOST)]
    TooMany(usize),
}

impl PairSlowdowns {
    /// The most entries: 45 programs, each beside each.
    pub const MOST: usize = 2048;

    /// What was measured of a program beside another.
    #[must_use]
    pub fn of(&self, of: Kind, beside: Kind) -> Option<&PairSlowdown> {
        self.entries.get(&(of, beside)).map(|(entry, _)| entry)
    }

    /// The number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing was measured.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Takes in a measured slowdown. A slowdown below 1 counts as 1; what is no number is left out.
    pub fn measure(&mut self, of: Kind, beside: Kind, slowdown: f64) {
        if !slowdown.is_finite() {
            return;
        }
        self.measurements += 1;
        let new = PairSlowdown { of, beside, slowdown: 1.0, measured: 0 };
        let (entry, last) = self.entries.entry((of, beside)).or_insert((new, 0));
        *last = self.measurements;
        entry.measured = entry.measured.saturating_add(1);
        let weight = u32::try_from(entry.measured.min(MEMORY)).unwrap_or(u32::MAX);
        entry.slowdown += (slowdown.max(1.0) - entry.slowdown) / f64::from(weight);
        entry.slowdown = entry.slowdown.max(1.0);
        while self.entries.len() > Self::MOST {
            let oldest = self.entries.iter().min_by_key(|(_, (_, last))| *last);
            let Some(pair) = oldest.map(|(pair, _)| *pair) else { break };
            self.entries.remove(&pair);
        }
    }
}

impl From<PairSlowdowns> for Vec<PairSlowdown> {
    /// The one measured longest ago first.
    fn from(table: PairSlowdowns) -> Self {
        let mut entries: Vec<_> = table.entries.into_values().collect();
        entries.sort_by_key(|(_, last)| *last);
        entries.into_iter().map(|(entry, _)| entry).collect()
    }
}

impl TryFrom<Vec<PairSlowdown>> for PairSlowdowns {
    type Error = PairSlowdownsError;

    fn try_from(entries: Vec<PairSlowdown>) -> Result<Self, PairSlowdownsError> {
        if entries.len() > Self::MOST {
            return Err(PairSlowdownsError::TooMany(entries.len()));
        }
        let mut table = PairSlowdowns::default();
        for entry in entries {
            let PairSlowdown { of, beside, slowdown, measured } = entry;
            if !slowdown.is_finite() || slowdown < 1.0 || measured == 0 {
                return Err(PairSlowdownsError::Entry(entry));
            }
            table.measurements += 1;
            if table.entries.insert((of, beside), (entry, table.measurements)).is_some() {
                return Err(PairSlowdownsError::Twice(of, beside));
            }
        }
        Ok(table)
    }
}

/// What the selector `matching` knows of slowdowns.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slowdowns {
    /// By class.
    pub classes: InterferenceMatrix,
    /// By program.
    pub pairs: PairSlowdowns,
}

/// A program: its class, and its kind where that is known.
pub type Contender = (ContentionClass, Option<Kind>);

impl Slowdowns {
    /// The slowdown that is expected of a program beside another, and the number of measurements
    /// behind it. Where the pair was measured, the classes' mean weighs as much as [`PRIOR`]
    /// measurements of it.
    #[must_use]
    pub fn expected(&self, of: Contender, beside: Contender) -> (f64, u64) {
        let class = self.classes.of(of.0, beside.0);
        let pair = of.1.zip(beside.1);
        match pair.and_then(|(of, beside)| self.pairs.of(of, beside)) {
            Some(pair) => {
                let count = f64::from(u32::try_from(pair.measured).unwrap_or(u32::MAX));
                let mean = (PRIOR * class.slowdown + count * pair.slowdown) / (PRIOR + count);
                (mean, pair.measured)
            }
            None => (class.slowdown, class.measured),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_follow_what_is_measured() {
        let (one, other) = (Kind(1), Kind(2));
        let mut table = PairSlowdowns::default();
        assert_eq!(table.of(one, other), None);
        for slowdown in [3.0, 2.0, f64::NAN] {
            table.measure(one, other, slowdown);
        }
        let entry = *table.of(one, other).unwrap();
        assert!((entry.slowdown - 2.5).abs() < 1e-12 && entry.measured == 2, "{entry:?}");
        assert_eq!(table.of(other, one), None, "pairs are ordered");
        (0..200).for_each(|_| table.measure(one, other, 0.5));
        assert!((1.0..1.01).contains(&table.of(one, other).unwrap().slowdown));
    }

    #[test]
    fn the_oldest_entry_goes_first() {
        let mut table = PairSlowdowns::default();
        let most = u64::try_from(PairSlowdowns::MOST).unwrap();
        (0..most).for_each(|place| table.measure(Kind(place), Kind(0), 2.0));
        table.measure(Kind(0), Kind(0), 2.0);
        table.measure(Kind(most), Kind(0), 2.0);
        assert_eq!(table.len(), PairSlowdowns::MOST);
        assert_eq!(table.of(Kind(1), Kind(0)), None);
        assert!(table.of(Kind(0), Kind(0)).is_some(), "it was measured again");
    }

    #[test]
    fn json_and_back() {
        let mut table = PairSlowdowns::default();
        for (of, beside) in [(3, u64::MAX), (1, 2), (3, 3)] {
            table.measure(Kind(of), Kind(beside), 1.5);
        }
        let text = serde_json::to_string(&table).unwrap();
        assert!(text.starts_with(r#"[{"of":3,"beside":18446744073709551615,"#), "{text}");
        assert_eq!(serde_json::from_str::<PairSlowdowns>(&text).unwrap(), table);
    }

    #[test]
    fn what_is_no_table_is_refused() {
        let entry = PairSlowdown { of: Kind(1), beside: Kind(2), slowdown: 2.0, measured: 1 };
        let error =
            |entries: Vec<PairSlowdown>| PairSlowdowns::try_from(entries).unwrap_err().to_string();
        assert!(error(vec![entry, entry]).contains("named twice"));
        for bad in [
            PairSlowdown { slowdown: 0.5, ..entry },
            PairSlowdown { slowdown: f64::NAN, ..entry },
            PairSlowdown { measured: 0, ..entry },
        ] {
            assert!(error(vec![bad]).contains("is no mean"));
        }
        let many =
            (0..=PairSlowdowns::MOST as u64).map(|of| PairSlowdown { of: Kind(of), ..entry });
        assert!(error(many.collect()).contains("too many"));
    }

    /// Vectors of the algorithm's authors: <http://www.isthe.com/chongo/tech/comp/fnv/>.
    #[test]
    fn kinds_are_fnv_1a() {
        for (text, hash) in [
            ("", 0xcbf2_9ce4_8422_2325),
            ("a", 0xaf63_dc4c_8601_ec8c),
            ("foobar", 0x8594_4171_f739_67e8),
        ] {
            assert_eq!(Kind::of(text.bytes()), Kind(hash), "{text}");
        }
    }

    #[test]
    fn a_full_table_without_a_slowdown_is_one() {
        assert!(PairSlowdowns::default().is_empty());
        let entry = PairSlowdown { of: Kind(1), beside: Kind(2), slowdown: 1.0, measured: 1 };
        let most = u64::try_from(PairSlowdowns::MOST).unwrap();
        let entries: Vec<_> = (0..most).map(|of| PairSlowdown { of: Kind(of), ..entry }).collect();
        let table = PairSlowdowns::try_from(entries).unwrap();
        assert!(table.len() == PairSlowdowns::MOST && !table.is_empty());
    }
}
