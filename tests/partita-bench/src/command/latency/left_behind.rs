//! What programs left in their memory after a run, against what they leave alone.

use partita_bench::outputs::{alone, depends_on_order, name_of};
use partita_bench::{Application, Cell, Cells, RunError, Shared};
use partita_emu::Spec;
use std::collections::{BTreeMap, BTreeSet};

/// What programs leave after their launches alone, by the program's digest and the launches.
pub struct Alone(BTreeMap<(u64, u64), Vec<u64>>);

/// What the programs of a run left behind.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LeftBehind {
    /// Buffers that differ from those of the run alone, by name.
    pub different: Vec<String>,
    /// Programs that were not compared: what they leave depends on the order of their CTAs.
    pub left_out: Vec<String>,
}

impl LeftBehind {
    /// As a table has it.
    pub fn told(&self) -> String {
        match (self.different.len(), &*self.left_out) {
            (0, []) => "same".to_owned(),
            (0, left_out) => format!("same but {}", left_out.join(", ")),
            (1, _) => "1 buffer differs".to_owned(),
            (count, _) => format!("{count} buffers differ"),
        }
    }
}

impl Alone {
    /// Runs the programs of all these cells alone, for as many launches as they had there.
    ///
    /// # Errors
    /// Where one cannot run.
    pub fn new(spec: &Spec, cells: &mut Cells, runs: &[Cell<'_>]) -> Result<Alone, RunError> {
        let mut wanted: BTreeMap<u64, (&Application, BTreeSet<u64>)> = BTreeMap::new();
        for run in runs {
            let shared = cells.get(run)?;
            for (application, share) in run.applications.iter().zip(&shared.shares) {
                let launches = share.outputs.as_ref().map(|outputs| outputs.launches);
                let entry = wanted.entry(application.digest());
                entry.or_insert((application, BTreeSet::new())).1.extend(launches);
            }
        }
        let mut all = BTreeMap::new();
        for (digest, (application, counts)) in wanted {
            if !depends_on_order(application) {
                let found = alone(application, spec, &counts)?.into_iter();
                all.extend(found.map(|(launches, buffers)| ((digest, launches), buffers)));
            }
        }
        Ok(Alone(all))
    }

    /// What the programs of a run left behind.
    pub fn compare(&self, applications: &[&Application], shared: &Shared) -> LeftBehind {
        let mut found = LeftBehind::default();
        for (application, share) in applications.iter().zip(&shared.shares) {
            let Some(outputs) = &share.outputs else { continue };
            match self.0.get(&(application.digest(), outputs.launches)) {
                Some(expected) => {
                    let different = outputs.differences(expected).into_iter();
                    let names = different.map(|buffer| name_of(application, buffer));
                    found.different.extend(names);
                }
                None => found.left_out.push(application.name.clone()),
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_bench::outputs::Outputs;
    use partita_bench::{Share, requests::server};

    #[test]
    fn a_word_that_differs_names_its_buffer() {
        let spec = Spec::named("gpgpu-sim-24").unwrap();
        let server = server(1);
        let digest = server.digest();
        let counts = BTreeSet::from([1]);
        let expected = alone(&server, &spec, &counts).unwrap();
        let known = Alone(BTreeMap::from([((digest, 1), expected[&1].clone())]));
        let mut digests = expected[&1].clone();
        let told = |digests: &[u64], launches| {
            let outputs = Some(Outputs { launches, digests: digests.to_vec() });
            let shares = vec![Share { outputs, ..Share::default() }];
            known.compare(&[&server], &Shared { shares, ..Shared::default() })
        };
        assert_eq!(told(&digests, 1), LeftBehind::default());
        digests[2] ^= 1;
        let found = told(&digests, 1);
        assert_eq!(found.different, ["buffer 2 of server, pointer 2 of kernel `sgemm`"]);
        assert_eq!(found.told(), "1 buffer differs");
        assert_eq!(told(&digests, 2).told(), "same but server");
    }
}
