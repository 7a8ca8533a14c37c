//! What the policy has learnt of slowdowns, kept from one policy and one start to the next.
//!
//! # Invariants
//!
//! - A new calibration of the classes goes before what was learnt of the classes until then. What
//!   was learnt of pairs of programs stays.
//! - A file that is damaged, or of another version, counts as absent.
//! - At most one file is written in [`KEEP_EVERY`], besides those at a change of policy and at the
//!   end.

use super::Shell;
use crate::interference::Interference;
use partita_model::InterferenceMatrix;
use partita_policy::Slowdowns;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// The file that keeps it.
pub const FILE: &str = "slowdowns";
/// The shortest time between two files.
const KEEP_EVERY: Duration = Duration::from_secs(1);

/// What was learnt, and what it began with.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Learnt {
    calibrated: InterferenceMatrix,
    slowdowns: Slowdowns,
}

/// What is kept so far.
#[derive(Debug, Default)]
pub(super) struct Memory {
    learnt: Option<Learnt>,
    /// What the policy in force began with.
    calibrated: InterferenceMatrix,
    /// When the file was written last.
    written: Option<Instant>,
}

impl Shell {
    /// What a policy begins with: what was learnt before, and what `partita calibrate interference`
    /// has measured of this device, else the estimate.
    pub(super) fn slowdowns(&mut self) -> Slowdowns {
        let (store, memory) = (self.store.as_ref(), &mut self.memory_of_slowdowns);
        let interference = store.and_then(|store| store.read::<Interference>(Interference::FILE));
        memory.calibrated = interference.unwrap_or_default().matrix();
        if memory.learnt.is_none() {
            memory.learnt = store.and_then(|store| store.read(FILE));
        }
        begin(memory.learnt.as_ref(), memory.calibrated.clone())
    }

    /// Keeps what the policy has learnt since the last time. `at_once`: however short ago that was.
    pub(super) fn keep_slowdowns(&mut self, at_once: bool) {
        let Some(slowdowns) = self.engine.slowdowns() else { return };
        let memory = &mut self.memory_of_slowdowns;
        let is_soon = memory.written.is_some_and(|written| written.elapsed() < KEEP_EVERY);
        let is_new = memory.learnt.as_ref().is_none_or(|kept| kept.slowdowns != *slowdowns);
        if !is_new || (is_soon && !at_once) {
            return;
        }
        let calibrated = memory.calibrated.clone();
        let learnt = Learnt { calibrated, slowdowns: slowdowns.clone() };
        if let Some(store) = &self.store {
            store.write(FILE, &learnt);
        }
        memory.learnt = Some(learnt);
        memory.written = Some(Instant::now());
    }
}

/// What a policy begins with.
fn begin(learnt: Option<&Learnt>, calibrated: InterferenceMatrix) -> Slowdowns {
    match learnt {
        Some(learnt) if learnt.calibrated == calibrated => learnt.slowdowns.clone(),
        Some(learnt) => Slowdowns { classes: calibrated, pairs: learnt.slowdowns.pairs.clone() },
        None => Slowdowns { classes: calibrated, ..Slowdowns::default() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Store;
    use partita_model::ContentionClass::{Compute, Memory as DramBound};
    use partita_policy::{Kind, PairSlowdowns};

    fn learnt() -> Learnt {
        let mut slowdowns = Slowdowns::default();
        slowdowns.classes.measure(DramBound, Compute, 1.75);
        slowdowns.pairs.measure(Kind(1), Kind(u64::MAX), 1.1 + 0.2);
        Learnt { calibrated: InterferenceMatrix::default(), slowdowns }
    }

    #[test]
    fn a_new_calibration_goes_before_what_was_learnt_of_classes() {
        let learnt = learnt();
        let estimate = InterferenceMatrix::default();
        assert_eq!(begin(Some(&learnt), estimate.clone()), learnt.slowdowns);
        assert_eq!(begin(None, estimate.clone()), Slowdowns::default());
        let mut calibrated = estimate;
        calibrated.measure(Compute, Compute, 1.5);
        let begun = begin(Some(&learnt), calibrated.clone());
        assert_eq!((begun.classes, begun.pairs), (calibrated, learnt.slowdowns.pairs));
    }

    #[test]
    fn it_is_kept_whole_or_not_at_all() {
        let state = tempfile::tempdir().unwrap();
        let store = Store::open(state.path(), "a GPU").unwrap();
        assert!(store.read::<Learnt>(FILE).is_none());
        store.write(FILE, &learnt());
        assert_eq!(store.read::<Learnt>(FILE), Some(learnt()));
        let device = std::fs::read_dir(state.path().join("devices")).unwrap().next().unwrap();
        let path = device.unwrap().path().join(FILE);
        let good = std::fs::read(&path).unwrap();
        for at in (0..good.len()).step_by(7) {
            let mut bad = good.clone();
            bad[at] ^= 1;
            std::fs::write(&path, &bad).unwrap();
            assert!(store.read::<Learnt>(FILE).is_none(), "byte {at}");
        }
        // Whole, and no table.
        let entry = r#"{"of":1,"beside":2,"slowdown":0.5,"measured":1}"#;
        assert!(serde_json::from_str::<PairSlowdowns>(&format!("[{entry}]")).is_err());
    }

    #[test]
    fn the_largest_table_is_read_again() {
        let state = tempfile::tempdir().unwrap();
        let store = Store::open(state.path(), "a GPU").unwrap();
        let mut full = learnt();
        for kind in 0..PairSlowdowns::MOST as u64 {
            let of = Kind(u64::MAX - kind);
            full.slowdowns.pairs.measure(of, of, std::f64::consts::PI);
        }
        store.write(FILE, &full);
        let read = store.read::<Learnt>(FILE).unwrap();
        let told = |learnt: &Learnt| serde_json::to_string(learnt).unwrap();
        assert!(told(&read) == told(&full), "entries or their order have changed");
    }
}
