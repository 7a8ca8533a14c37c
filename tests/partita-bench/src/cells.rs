//! Cells: runs whose results are kept on disk. An interrupted study continues from them.
//!
//! The name of a cell is a hash of everything that decides its result: the applications with their
//! memory, the modelled GPU, the arrangement, the seed, the length, and this program's executable.
//! A result is therefore never older than the code.

use crate::application::Application;
use crate::arrangement::Arrangement;
use crate::outcome::{Profiles, RunError, Shared};
use crate::run::{Run, run};
use crate::track::float;
use partita_cli::run::locate::SELF;
use partita_emu::Spec;
use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, mpsc};
use std::time::Instant;

/// The longest run that counts an application's kernels, in cycles. It ends as soon as nothing more
/// can be learnt ([`Arrangement::Count`]).
pub(crate) const COUNT_CYCLES: u64 = 20_000_000;

/// One run of a study.
#[derive(Clone, Debug)]
pub struct Cell<'a> {
    /// Who runs.
    pub applications: Vec<&'a Application>,
    /// On what.
    pub spec: &'a Spec,
    /// How.
    pub arrangement: Arrangement,
    /// How long, in cycles.
    pub cycles: u64,
    /// The launches of each application ([`Run::launches`]).
    pub launches: Vec<u64>,
    /// When they arrive ([`Run::arrivals`]).
    pub arrivals: Vec<Vec<u64>>,
}

impl<'a> Cell<'a> {
    /// Cycles of all SMs that take part: what its emulation costs, roughly.
    #[must_use]
    pub fn work(&self) -> u64 {
        let sms = match &self.arrangement {
            Arrangement::Original(sms) => *sms,
            Arrangement::Static(counts) => counts.iter().sum(),
            _ => self.spec.sms,
        };
        self.cycles * u64::from(sms)
    }

    /// What runs before it, each application alone, because it begins with what that has kept.
    fn earlier_runs(&self) -> Vec<Cell<'a>> {
        let knows = matches!(
            self.arrangement,
            Arrangement::CdSearch
                | Arrangement::CdSearchPaper
                | Arrangement::Even
                | Arrangement::Policy(..)
                | Arrangement::Terms(_)
                | Arrangement::ChangingTerms(_)
                | Arrangement::Static(_)
        );
        let known = self.applications.iter().filter(|_| knows);
        let (spec, arrangement, cycles) = (self.spec, Arrangement::Count, COUNT_CYCLES);
        let alone = known.map(|&application| vec![application]);
        alone
            .map(|applications| Cell {
                applications,
                spec,
                arrangement: arrangement.clone(),
                cycles,
                launches: Vec::new(),
                arrivals: Vec::new(),
            })
            .collect()
    }

    /// What is run, for people.
    #[must_use]
    pub fn title(&self) -> String {
        let names: Vec<&str> =
            self.applications.iter().map(|application| &*application.name).collect();
        format!("{} {:?}", names.join("+"), self.arrangement)
    }
}

/// Computes cells, or finds them where they were kept.
#[derive(Debug)]
pub struct Cells {
    folder: Option<PathBuf>,
    program: u64,
    seed: u64,
    /// Whether runs tell what applications leave in their memory.
    outputs: bool,
    known: BTreeMap<u64, Shared>,
    /// Cells that were computed.
    pub computed: u64,
    /// Cells that were found.
    pub found: u64,
    work: u64,
    seconds: f64,
}

/// How far the computing of several cells has got.
#[derive(Clone, PartialEq, Debug)]
pub struct Progress {
    /// Cells that are there.
    pub done: usize,
    /// Of so many.
    pub of: usize,
    /// The cell that came last.
    pub title: String,
    /// About how many seconds the others will take.
    pub left: Option<f64>,
}

impl Cells {
    /// Keeps cells in a folder, which is made; without one only as long as this lives.
    ///
    /// # Errors
    /// Where the folder cannot be made, or this program's file cannot be read.
    pub fn new(folder: Option<&Path>, seed: u64) -> io::Result<Cells> {
        let mut hasher = DefaultHasher::new();
        if let Some(folder) = folder {
            fs::create_dir_all(folder)?;
            fs::read(SELF)?.hash(&mut hasher);
        }
        Ok(Cells {
            folder: folder.map(Path::to_owned),
            program: hasher.finish(),
            seed,
            outputs: false,
            known: BTreeMap::new(),
            computed: 0,
            found: 0,
            work: 0,
            seconds: 0.0,
        })
    }

    /// The same, whose runs tell what applications leave in their memory ([`Run::outputs`]).
    #[must_use]
    pub fn with_outputs(self) -> Cells {
        Cells { outputs: true, ..self }
    }

    /// Whether a cell tells what applications leave. Runs that only count do not.
    fn tells_outputs(&self, cell: &Cell<'_>) -> bool {
        self.outputs && cell.arrangement != Arrangement::Count
    }

    fn key(&self, cell: &Cell<'_>) -> u64 {
        let mut hasher = DefaultHasher::new();
        if self.tells_outputs(cell) {
            hasher.write(b"outputs");
        }
        let Cell { applications, spec, arrangement, cycles, launches, arrivals } = cell;
        (self.program, self.seed, arrangement, cycles, launches, arrivals).hash(&mut hasher);
        applications.iter().for_each(|application| application.digest().hash(&mut hasher));
        format!("{spec:?}").hash(&mut hasher);
        hasher.finish()
    }

    fn path(&self, key: u64) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.join(format!("{key:016x}.json")))
    }

    /// Computes those of the cells that are not there yet, so many at a time. `tell` hears of each
    /// that comes.
    ///
    /// # Errors
    /// The first application that cannot run. What was computed before is kept.
    pub fn compute(
        &mut self,
        cells: &[Cell<'_>],
        threads: usize,
        tell: &mut dyn FnMut(&Progress),
    ) -> Result<(), RunError> {
        let mut missing = BTreeMap::new();
        for cell in cells {
            let key = self.key(cell);
            if self.known.contains_key(&key) {
                continue;
            }
            let kept = self.path(key).and_then(|path| fs::read(path).ok());
            match kept.and_then(|bytes| serde_json::from_slice(&bytes).ok()) {
                Some(shared) => {
                    self.known.insert(key, shared);
                    self.found += 1;
                }
                None => drop(missing.insert(key, cell)),
            }
        }
        let earlier: Vec<Cell<'_>> =
            missing.values().flat_map(|cell| cell.earlier_runs()).collect();
        if !earlier.is_empty() {
            self.compute(&earlier, threads, tell)?;
        }
        let missing: Vec<_> =
            missing.into_iter().map(|(key, cell)| (key, cell, self.begins(cell))).collect();
        let of = missing.len();
        let mut left: u64 = missing.iter().map(|(_, cell, _)| cell.work()).sum();
        let queue = Mutex::new(missing.into_iter());
        let seed = self.seed;
        let (sender, results) = mpsc::channel();
        std::thread::scope(|scope| {
            for _ in 0..threads.max(1).min(of) {
                let (queue, sender) = (&queue, sender.clone());
                scope.spawn(move || {
                    loop {
                        let next = queue.lock().ok().and_then(|mut queue| queue.next());
                        let Some((key, cell, begins)) = next else { return };
                        let start = Instant::now();
                        let result = compute_one(cell, seed, begins);
                        let failed = result.is_err();
                        let done = (key, cell, result, start.elapsed().as_secs_f64());
                        if sender.send(done).is_err() || failed {
                            return;
                        }
                    }
                });
            }
            drop(sender);
            for (done, (key, cell, result, seconds)) in (1..).zip(results) {
                let shared = result.inspect_err(|_| {
                    // The other threads find nothing more to do.
                    if let Ok(mut queue) = queue.lock() {
                        queue.by_ref().for_each(drop);
                    }
                })?;
                self.keep(key, &shared);
                self.known.insert(key, shared);
                self.computed += 1;
                self.work += cell.work();
                self.seconds += seconds;
                left -= cell.work();
                let left =
                    self.estimate(left).map(|seconds| seconds / float(threads.max(1) as u64));
                tell(&Progress { done, of, title: cell.title(), left });
            }
            Ok(())
        })
    }

    /// What earlier runs keep of a cell's applications: the profiles with which the cell begins.
    ///
    /// # Errors
    /// Where an application cannot run.
    pub fn profiles(&mut self, cell: &Cell<'_>) -> Result<Profiles, RunError> {
        self.compute(&cell.earlier_runs(), 1, &mut |_| ())?;
        Ok(self.kept_for(cell))
    }

    /// With what a cell's run begins: earlier profiles, and whether it tells outputs.
    fn begins(&self, cell: &Cell<'_>) -> (Profiles, bool) {
        (self.kept_for(cell), self.tells_outputs(cell))
    }

    /// What earlier runs have kept of a cell's applications, where these runs are there.
    fn kept_for(&self, cell: &Cell<'_>) -> Profiles {
        let earlier =
            cell.earlier_runs().into_iter().filter_map(|cell| self.known.get(&self.key(&cell)));
        earlier.flat_map(|shared| shared.profiles.clone()).collect()
    }

    /// A cell's result, computed if it is not there.
    ///
    /// # Errors
    /// Where an application cannot run.
    pub fn get(&mut self, cell: &Cell<'_>) -> Result<Shared, RunError> {
        self.compute(std::slice::from_ref(cell), 1, &mut |_| ())?;
        Ok(self.known[&self.key(cell)].clone())
    }

    /// A result that cannot be kept is computed again next time: that is no error.
    fn keep(&self, key: u64, shared: &Shared) {
        let Some(path) = self.path(key) else { return };
        let unfinished = path.with_extension(std::process::id().to_string());
        let bytes = serde_json::to_vec(shared).unwrap_or_default();
        if fs::write(&unfinished, bytes).and_then(|()| fs::rename(&unfinished, &path)).is_err() {
            // Whatever is left of it is in nobody's way.
            drop(fs::remove_file(&unfinished));
        }
    }

    /// Processor seconds that so much work ([`Cell::work`]) will take, by what was computed so far;
    /// `None` before the first.
    #[must_use]
    pub fn estimate(&self, work: u64) -> Option<f64> {
        (self.work > 0).then(|| self.seconds * float(work) / float(self.work))
    }
}

fn compute_one(
    cell: &Cell<'_>,
    seed: u64,
    (profiles, outputs): (Profiles, bool),
) -> Result<Shared, RunError> {
    let Cell { applications, spec, arrangement, cycles, launches, arrivals } = cell;
    run(
        applications,
        &Run {
            spec,
            arrangement: arrangement.clone(),
            seed,
            cycles: *cycles,
            launches: launches.clone(),
            arrivals: arrivals.clone(),
            profiles,
            outputs,
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Buffer, Param, Step};
    use partita_model::Dim3;

    fn small(name: &str, rounds: u32) -> Application {
        let ptx = "
.version 8.0
.target sm_75
.address_size 64
.visible .entry spin(.param .u64 data, .param .u32 rounds)
{
    .reg .b32 %r<4>;
    .reg .b64 %d<3>;
    .reg .pred %p;
    ld.param.u64 %d1, [data];
    ld.param.u32 %r1, [rounds];
    mov.u32 %r2, %tid.x;
    mul.wide.u32 %d2, %r2, 4;
    add.u64 %d1, %d1, %d2;
LOOP:
    mad.lo.u32 %r2, %r2, %r2, 7;
    sub.u32 %r1, %r1, 1;
    setp.ne.u32 %p, %r1, 0;
    @%p bra LOOP;
    st.global.u32 [%d1], %r2;
    ret;
}
";
        let given = [Param::Address(0), Param::Word(rounds)];
        Application {
            name: name.to_owned(),
            modules: vec![ptx.into()],
            variables: Vec::new(),
            buffers: vec![Buffer::zeros(4 * 64)],
            pass: vec![Step::new("spin", Dim3::linear(500), Dim3::linear(64), &given)],
            streams: 0,
            restored: Vec::new(),
            answer: None,
        }
    }

    #[test]
    fn what_was_computed_is_found_again_and_is_the_same() {
        let spec = Spec::named("cd-search-24").unwrap();
        let (one, other) = (small("one", 100), small("other", 50));
        let arrangements =
            [Arrangement::Even, Arrangement::Mps, Arrangement::TimeSlice, Arrangement::CdSearch];
        let cells: Vec<Cell<'_>> = arrangements
            .into_iter()
            .map(|arrangement| Cell {
                applications: vec![&one, &other],
                spec: &spec,
                arrangement,
                cycles: 60_000,
                launches: Vec::new(),
                arrivals: Vec::new(),
            })
            .collect();
        let folder = std::env::temp_dir().join(format!("partita-cells-{}", std::process::id()));
        let results = |folder: Option<&Path>, threads| {
            let mut kept = Cells::new(folder, 7).unwrap();
            let mut told = 0;
            kept.compute(&cells, threads, &mut |progress| told = progress.done).unwrap();
            let shared: Vec<Shared> = cells.iter().map(|cell| kept.get(cell).unwrap()).collect();
            // What ran before them was told of, too.
            assert_eq!(told as u64, kept.computed.min(4));
            (shared, kept.computed, kept.found)
        };
        let (first, ..) = results(None, 2);
        assert!(
            first.iter().all(|shared| shared.shares.iter().any(|share| share.track.ctas() > 0))
        );
        assert_eq!(
            results(Some(&folder), 1),
            (first.clone(), 4 + 2, 0),
            "to the bit; each application has been counted"
        );
        assert_eq!(results(Some(&folder), 1), (first, 0, 4));
        fs::remove_dir_all(&folder).unwrap();
    }

    /// When the last of some launches of a small application had ended, in nanoseconds.
    fn ended(application: &Application, launches: u64, arrivals: Vec<Vec<u64>>) -> u64 {
        let spec = Spec::named("cd-search-24").unwrap();
        let cell = Cell {
            applications: vec![application],
            spec: &spec,
            arrangement: Arrangement::Mps,
            cycles: 10_000_000,
            launches: vec![launches],
            arrivals,
        };
        Cells::new(None, 7).unwrap().get(&cell).unwrap().shares[0].track.last_growth()
    }

    #[test]
    fn launches_wait_until_they_arrive() {
        let application = small("one", 100);
        let at_once = ended(&application, 3, Vec::new());
        let late = ended(&application, 3, vec![vec![0, 2_000_000]]);
        assert!(at_once < 1_000_000, "{at_once}");
        assert!((2_000_000..2_000_000 + at_once).contains(&late), "{late}");
    }

    /// A small launch beside one that fills the GPU many times over.
    #[test]
    fn priorities_decide_whose_ctas_are_placed_first() {
        let spec = Spec::named("cd-search-24").unwrap();
        let (mut small, mut large) = (small("small", 100), small("large", 300));
        small.pass[0].grid = Dim3::linear(1);
        large.pass[0].grid = Dim3::linear(3_000);
        let latency = |arrangement| {
            let cell = Cell {
                applications: vec![&small, &large],
                spec: &spec,
                arrangement,
                cycles: 4_000_000,
                launches: vec![1, 1],
                arrivals: vec![vec![20_000]],
            };
            let shared = Cells::new(None, 7).unwrap().get(&cell).unwrap();
            shared.shares[0].track.last_growth() - 20_000
        };
        let first = latency(Arrangement::MpsPriorities(vec![0, 1]));
        for other in [Arrangement::Mps, Arrangement::MpsPriorities(vec![1, 0])] {
            let later = latency(other.clone());
            assert!(2 * first < later, "{other:?}: {first}, {later}");
        }
    }

    #[test]
    fn launches_of_several_streams_share_the_gpu() {
        // A quarter of the SMs has a CTA.
        let mut application = small("one", 2_000);
        application.pass[0].grid = Dim3::linear(6);
        let in_turn = ended(&application, 8, Vec::new());
        application.streams = 4;
        let at_once = ended(&application, 8, Vec::new());
        assert!((3 * at_once..5 * at_once).contains(&in_turn), "{in_turn}, {at_once}");
    }

    #[test]
    fn who_cannot_run_is_named() {
        let spec = Spec::named("cd-search-24").unwrap();
        let mut broken = small("broken", 1);
        broken.pass[0].kernel = "nothing".to_owned();
        let arrangement = Arrangement::Even;
        let cell = Cell {
            applications: vec![&broken],
            spec: &spec,
            arrangement,
            cycles: 1000,
            launches: Vec::new(),
            arrivals: Vec::new(),
        };
        let error = Cells::new(None, 0).unwrap().get(&cell).unwrap_err();
        assert_eq!(error.to_string(), "broken: no kernel `nothing`");
    }
}
