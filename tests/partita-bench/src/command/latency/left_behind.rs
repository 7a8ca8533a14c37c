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
    /// Runs the programs of all these cells alone, for as many launches as they had there. `tell`
    /// hears of each launch that has ended: how many have, of how many, and of which program.
    ///
    /// # Errors
    /// Where one cannot run.
    pub fn new(
        spec: &Spec,
        cells: &mut Cells,
        runs: &[Cell<'_>],
        tell: &mut dyn FnMut(usize, usize, &str),
    ) -> Result<Alone, RunError> {
        let mut wanted: BTreeMap<u64, (&Application, BTreeSet<u64>)> = BTreeMap::new();
        for run in runs {
            let shared = cells.get(run)?;
            for (application, share) in run.applications.iter().zip(&shared.shares) {
                let launches = share.outputs.as_ref().map(|outputs| outputs.launches);
                let entry = wanted.entry(application.digest());
                entry.or_insert((application, BTreeSet::new())).1.extend(launches);
            }
        }
        wanted.retain(|_, (application, _)| !depends_on_order(application));
        let longest = wanted.values().filter_map(|(_, counts)| counts.last());
        let of = usize::try_from(longest.sum::<u64>()).unwrap_or(usize::MAX);
        let (mut all, mut done) = (BTreeMap::new(), 0);
        for (digest, (application, counts)) in wanted {
            let mut ended = || {
                done += 1;
                tell(done, of, &application.name);
            };
            let found = alone(application, spec, &counts, &mut ended)?.into_iter();
            all.extend(found.map(|(launches, buffers)| ((digest, launches), buffers)));
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
    use partita_bench::{Arrangement, Share, requests::server};

    #[test]
    fn launches_alone_are_told_of() {
        let spec = Spec::named("gpgpu-sim-24").unwrap();
        let server = server(1);
        let launches = server.pass.len() as u64;
        let cell = Cell {
            applications: vec![&server],
            spec: &spec,
            arrangement: Arrangement::Mps,
            cycles: 1_000_000,
            launches: vec![launches],
            arrivals: Vec::new(),
        };
        let mut cells = Cells::new(None, 1).unwrap().with_outputs();
        let mut told = Vec::new();
        let mut tell = |done, of, name: &str| told.push((done, of, name.to_owned()));
        Alone::new(&spec, &mut cells, &[cell], &mut tell).unwrap();
        let expected: Vec<_> = (1..=12).map(|done| (done, 12, "server".to_owned())).collect();
        assert_eq!(told, expected);
    }

    #[test]
    fn a_word_that_differs_names_its_buffer() {
        let spec = Spec::named("gpgpu-sim-24").unwrap();
        let server = server(1);
        let digest = server.digest();
        let counts = BTreeSet::from([1]);
        let expected = alone(&server, &spec, &counts, &mut || ()).unwrap();
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
