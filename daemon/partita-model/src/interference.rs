//! Contention classes (Punyala §3.2.1) and how much they slow each other down (§3.2.2).
//!
//! The matrix is what a measurement writes and what the selector `matching` reads. Its JSON has one
//! object for each ordered pair of classes. The matrix keeps counts, so later measurements refine
//! earlier ones.
//!
//! # Invariants
//!
//! - Every slowdown is finite and at least 1.
//! - The JSON form names every ordered pair of classes exactly once; [`InterferenceMatrix`] refuses
//!   everything else.

use serde::{Deserialize, Serialize};
use std::fmt;

/// What an application competes for (Punyala table 3.1).
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ContentionClass {
    /// M: DRAM.
    Memory,
    /// MC: DRAM and the LLC.
    MemoryCache,
    /// C: the LLC.
    Cache,
    /// A: the SMs.
    Compute,
}

impl ContentionClass {
    /// All classes, in the paper's order.
    pub const ALL: [ContentionClass; 4] = [
        ContentionClass::Memory,
        ContentionClass::MemoryCache,
        ContentionClass::Cache,
        ContentionClass::Compute,
    ];

    /// Its place in [`ContentionClass::ALL`].
    #[must_use]
    pub fn place(self) -> usize {
        match self {
            ContentionClass::Memory => 0,
            ContentionClass::MemoryCache => 1,
            ContentionClass::Cache => 2,
            ContentionClass::Compute => 3,
        }
    }
}

impl fmt::Display for ContentionClass {
    /// The paper's letters.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ContentionClass::Memory => "M",
            ContentionClass::MemoryCache => "MC",
            ContentionClass::Cache => "C",
            ContentionClass::Compute => "A",
        })
    }
}

/// The mean slowdown of one class beside another.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interference {
    /// The class that is slowed down.
    pub of: ContentionClass,
    /// The class beside it.
    pub beside: ContentionClass,
    /// Time beside it on even shares ÷ time alone on the whole GPU, at least 1.
    pub slowdown: f64,
    /// Measurements in the mean; 0 where the slowdown is an estimate.
    pub measured: u64,
}

/// Mean slowdowns by class (Punyala §3.2.2, figure 3.4).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(into = "Vec<Interference>", try_from = "Vec<Interference>")]
pub struct InterferenceMatrix([[Interference; 4]; 4]);

/// Why a table is no interference matrix.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum InterferenceError {
    /// A slowdown is below 1, or no number.
    #[error("the slowdown of {0} beside {1} is {2}; it is a time ÷ the time alone, at least 1")]
    Slowdown(ContentionClass, ContentionClass, f64),
    /// A pair is named twice.
    #[error("{0} beside {1} is named twice; name each pair of classes once")]
    Twice(ContentionClass, ContentionClass),
    /// A pair is not named.
    #[error("{0} beside {1} is missing; name all 16 ordered pairs of classes")]
    Missing(ContentionClass, ContentionClass),
}

/// Measurements that a mean remembers: later ones replace the oldest, so that a matrix follows
/// programs that change.
const MEMORY: u64 = 64;

impl InterferenceMatrix {
    /// A matrix with these slowdowns, none of them measured.
    ///
    /// # Errors
    /// Where a slowdown is below 1, or no number.
    pub fn estimated(
        slowdown: impl Fn(ContentionClass, ContentionClass) -> f64,
    ) -> Result<Self, InterferenceError> {
        let all = ContentionClass::ALL;
        let rows = all.iter().flat_map(|&of| all.iter().map(move |&beside| (of, beside)));
        let entry =
            |(of, beside)| Interference { of, beside, slowdown: slowdown(of, beside), measured: 0 };
        InterferenceMatrix::try_from(rows.map(entry).collect::<Vec<_>>())
    }

    /// What is known of a class beside another.
    #[must_use]
    pub fn of(&self, of: ContentionClass, beside: ContentionClass) -> &Interference {
        &self.0[of.place()][beside.place()]
    }

    /// All entries, in the order of the classes.
    pub fn iter(&self) -> impl Iterator<Item = &Interference> {
        self.0.iter().flatten()
    }

    /// Takes in a measured slowdown. The first measurement replaces an estimate. A slowdown below
    /// 1 counts as 1; what is no number is left out.
    pub fn measure(&mut self, of: ContentionClass, beside: ContentionClass, slowdown: f64) {
        if !slowdown.is_finite() {
            return;
        }
        let entry = &mut self.0[of.place()][beside.place()];
        entry.measured = entry.measured.saturating_add(1);
        let weight = u32::try_from(entry.measured.min(MEMORY)).unwrap_or(u32::MAX);
        entry.slowdown += (slowdown.max(1.0) - entry.slowdown) / f64::from(weight);
        entry.slowdown = entry.slowdown.max(1.0);
    }
}

impl Default for InterferenceMatrix {
    /// The estimate until something is measured, for two applications with half of the SMs each.
    ///
    /// - Classes C and A go on at half of their speed, because they are in proportion to the SMs.
    /// - MC takes 1.5 times as long, where CD-search's border of memory-intensive applications
    ///   lies. M takes 1.25 times as long, the middle of the range up to there.
    /// - An application takes the part of DRAM's bandwidth in the middle of its class' range: M
    ///   0.8, MC 0.44, C and A 0.14, ÷ its slowdown. Where two together take more than 1, each is
    ///   slowed down by their sum once more.
    fn default() -> Self {
        let (by_sms, dram) = ([1.25, 1.5, 2.0, 2.0], [0.8, 0.44, 0.14, 0.14]);
        let takes = |class: ContentionClass| dram[class.place()] / by_sms[class.place()];
        let slowdown = |of: ContentionClass, beside: ContentionClass| {
            by_sms[of.place()] * f64::max(1.0, takes(of) + takes(beside))
        };
        let entry =
            |of, beside| Interference { of, beside, slowdown: slowdown(of, beside), measured: 0 };
        let all = ContentionClass::ALL;
        InterferenceMatrix(all.map(|of| all.map(|beside| entry(of, beside))))
    }
}

impl From<InterferenceMatrix> for Vec<Interference> {
    fn from(matrix: InterferenceMatrix) -> Self {
        matrix.0.into_iter().flatten().collect()
    }
}

impl TryFrom<Vec<Interference>> for InterferenceMatrix {
    type Error = InterferenceError;

    fn try_from(entries: Vec<Interference>) -> Result<Self, InterferenceError> {
        let mut matrix = InterferenceMatrix::default();
        let mut named = [[false; 4]; 4];
        for entry in entries {
            let Interference { of, beside, slowdown, .. } = entry;
            if !slowdown.is_finite() || slowdown < 1.0 {
                return Err(InterferenceError::Slowdown(of, beside, slowdown));
            }
            if std::mem::replace(&mut named[of.place()][beside.place()], true) {
                return Err(InterferenceError::Twice(of, beside));
            }
            matrix.0[of.place()][beside.place()] = entry;
        }
        for of in ContentionClass::ALL {
            for beside in ContentionClass::ALL {
                if !named[of.place()][beside.place()] {
                    return Err(InterferenceError::Missing(of, beside));
                }
            }
        }
        Ok(matrix)
    }
}

#[cfg(test)]
mod tests {
    use super::ContentionClass::{Cache, Compute, Memory, MemoryCache};
    use super::*;

    #[test]
    fn json_and_back() {
        let mut matrix = InterferenceMatrix::default();
        matrix.measure(Memory, Cache, 1.75);
        let text = serde_json::to_string(&matrix).unwrap();
        assert!(
            text.contains(r#"{"of":"memory","beside":"cache","slowdown":1.75,"measured":1}"#),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<InterferenceMatrix>(&text).unwrap(), matrix);
    }

    #[test]
    fn what_is_no_matrix_is_refused() {
        let good: Vec<Interference> = InterferenceMatrix::default().into();
        let error = |entries: Vec<Interference>| {
            let text = serde_json::to_string(&entries).unwrap();
            serde_json::from_str::<InterferenceMatrix>(&text).unwrap_err().to_string()
        };
        assert!(error(good[..15].to_vec()).starts_with("A beside A is missing; name all 16"));
        let twice = [&good[..], &good[..1]].concat();
        assert!(error(twice).starts_with("M beside M is named twice"));
        let mut low = good;
        low[1].slowdown = 0.5;
        assert!(error(low).starts_with("the slowdown of M beside MC is 0.5"));
    }

    #[test]
    fn means_follow_what_is_measured() {
        let mut matrix = InterferenceMatrix::default();
        let slowdown = |matrix: &InterferenceMatrix| matrix.of(MemoryCache, Compute).slowdown;
        for measured in [3.0, 2.0] {
            matrix.measure(MemoryCache, Compute, measured);
        }
        assert!((slowdown(&matrix) - 2.5).abs() < 1e-12, "the estimate is replaced");
        matrix.measure(MemoryCache, Compute, f64::NAN);
        assert_eq!(matrix.of(MemoryCache, Compute).measured, 2);
        // Programs that have changed are followed.
        (0..400).for_each(|_| matrix.measure(MemoryCache, Compute, 0.5));
        assert!(slowdown(&matrix) >= 1.0 && slowdown(&matrix) < 1.01);
        assert_eq!(matrix.of(Compute, MemoryCache).measured, 0);
    }

    #[test]
    fn the_estimate_puts_memory_beside_compute() {
        let matrix = InterferenceMatrix::default();
        let sum = |one, other| {
            1.0 / matrix.of(one, other).slowdown + 1.0 / matrix.of(other, one).slowdown
        };
        let two_alike = sum(Memory, Memory) + sum(Compute, Compute);
        assert!(2.0 * sum(Memory, Compute) > two_alike + 0.3);
    }
}
