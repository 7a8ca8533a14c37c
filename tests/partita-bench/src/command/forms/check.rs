//! One recording: each of its launches in every form, with several grids and partitions that
//! change, against the original.
//!
//! What a kernel leaves behind may depend on the order of its CTAs and warps. So the original runs
//! on devices that differ in SMs and time, and in other orders. Where they agree, a form must agree
//! with them. An allocation in which they do not (sums of floating-point numbers, queues) may be a
//! permutation of the original's words.

use super::drive;
use super::lane::{self, Lane, Memory, Recorded};
use partita_bench::Random;
use partita_device::Work;
use partita_emu::record::Entry;
use partita_emu::{MemoryOrder, Options, Spec, Timing};
use partita_model::cluster;
use partita_model::{Dim3, ModuleId};
use partita_ptx::{FuncId, Operand, Pass, Special};
use std::collections::{BTreeMap, BTreeSet};

/// Passes that each launch is tried with.
pub const LANES: [&[Pass]; 6] = [
    &[Pass::Worker],
    &[Pass::Ticket],
    &[Pass::Fence],
    &[Pass::Fence, Pass::Choose, Pass::Cancel],
    &[Pass::Slice],
    &[Pass::Count],
];
/// Which of them has tickets.
const TICKETS: usize = 1;
/// Grids of at most so many CTAs run in other orders, in so many.
const MOST_ORDERED: u128 = 1 << 11;
const ORDERS: u32 = 5;
/// Which of them says whether a kernel is a worker or a ticket.
const CHOICE: usize = 3;
/// The devices on which the original runs again: SMs, and by how much their caches and memory are
/// slower.
const REFERENCES: [(u16, u64); 6] = [(7, 1), (2, 5), (1, 2), (3, 9), (24, 1), (5, 20)];
/// SMs of the devices for the forms.
const FORM_SMS: u16 = 5;
/// References that every launch has; the others are asked where a form differs.
const FIRST_REFERENCES: usize = 2;
/// Launches of more warp instructions are run, but not tried.
const LARGEST: u64 = 1 << 21;
/// Live bytes beyond which launches are not tried.
const MOST_BYTES: usize = 64 << 20;
/// Special registers that another run, or another place, changes.
const OF_RUN: [Special; 8] = [
    Special::Clock,
    Special::ClockHi,
    Special::Clock64,
    Special::Globaltimer,
    Special::GlobaltimerLo,
    Special::GlobaltimerHi,
    Special::Smid,
    Special::Nsmid,
];
/// CTAs that a worker claims at once.
const TASKS: [u32; 3] = [1, 3, 10];

/// What is known of a kernel.
#[derive(Clone, Debug, Default)]
pub struct Kernel {
    /// The form that it gets: `worker`, `ticket`, or `original`.
    pub form: &'static str,
    /// Launches that were tried.
    pub launches: u64,
    /// Grids that they were tried with.
    pub grids: BTreeSet<[u32; 3]>,
    /// Runs in some form, by the index of [`LANES`].
    pub runs: [u64; LANES.len()],
    /// Why it does not take a form, by the same index.
    pub refusals: BTreeMap<usize, String>,
    /// Whether some of what it leaves depends on the order.
    pub depends_on_order: bool,
    /// Why launches were not tried.
    pub untried: BTreeSet<String>,
    /// What went wrong.
    pub failures: Vec<String>,
}

/// How much is tried.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Launches of a kernel, each with another grid or block.
    pub launches: u64,
    /// Runs of each launch and grid in each form.
    pub runs: u32,
    /// Decides tasks, partitions and moments.
    pub seed: u64,
    /// What order of memory the forms meet.
    pub memory: MemoryOrder,
}

/// A recording being followed.
pub struct Check {
    effort: Effort,
    original: Lane,
    references: Vec<Lane>,
    forms: Vec<Lane>,
    targets: BTreeMap<ModuleId, String>,
    /// Modules whose kernels allocate from the device's heap, which is no part of what is restored.
    with_heap: BTreeSet<ModuleId>,
    /// Kernels that look at a clock or at where they run.
    with_clock: BTreeSet<(ModuleId, String)>,
    /// Kernels that look at the size of their grid.
    with_size: BTreeSet<(ModuleId, String)>,
    seen: BTreeSet<(String, [u32; 3], [u32; 3])>,
    /// By name and target.
    pub kernels: BTreeMap<(String, String), Kernel>,
}

impl Check {
    /// Before the first entry.
    pub fn new(spec: &Spec, effort: Effort) -> Result<Check, String> {
        let on = |sms: u16, slower: u64| Spec {
            sms,
            l1_latency_cycles: spec.l1_latency_cycles * slower,
            llc_latency_cycles: spec.llc_latency_cycles * slower,
            ..spec.clone()
        };
        let timed = |seed| Options { seed, ..Options::default() };
        let of_forms = Options { memory: effort.memory, ..timed(effort.seed) };
        let original =
            Lane::new(spec.clone(), Options { timing: Timing::Off, ..Options::default() }, &[])?;
        let references = REFERENCES
            .iter()
            .zip(1..)
            .map(|(&(sms, slower), seed)| Lane::new(on(sms, slower), timed(seed), &[]));
        let forms = LANES.iter().map(|passes| Lane::new(on(FORM_SMS, 1), of_forms, passes));
        Ok(Check {
            effort,
            original,
            references: references.collect::<Result<_, _>>()?,
            forms: forms.collect::<Result<_, _>>()?,
            targets: BTreeMap::new(),
            with_heap: BTreeSet::new(),
            with_clock: BTreeSet::new(),
            with_size: BTreeSet::new(),
            seen: BTreeSet::new(),
            kernels: BTreeMap::new(),
        })
    }

    /// Follows one entry. An error ends the recording.
    pub fn entry(&mut self, entry: &Entry) -> Result<(), String> {
        match entry {
            Entry::Unsupported { what } => {
                return Err(format!("it has {what}, which recordings do not keep"));
            }
            Entry::Write { to, bytes } => self.original.write(*to, bytes)?,
            Entry::Copy { to, from, bytes } => {
                self.original.work(Work::CopyOnDevice { to: *to, from: *from, bytes: *bytes })?;
            }
            Entry::Fill { to, value, width, count } => {
                let (to, value, width, count) = (*to, *value, *width, *count);
                self.original.work(Work::Fill { to, value, width, count })?;
            }
            Entry::Launch {
                module, kernel, grid, cluster, block, dynamic_shared, params, ..
            } => {
                let launch = Recorded {
                    module: *module,
                    kernel: kernel.clone(),
                    grid: *grid,
                    cluster: self.original.cluster(*module, kernel, *cluster),
                    block: *block,
                    dynamic_shared: *dynamic_shared,
                    params: params.clone(),
                };
                self.launch(&launch)?;
            }
            _ => {}
        }
        for lane in
            std::iter::once(&mut self.original).chain(&mut self.references).chain(&mut self.forms)
        {
            lane.follow(entry)?;
        }
        if let Entry::Load { module, ptx, .. } = entry {
            self.note_module(*module, ptx);
        }
        Ok(())
    }

    fn note_module(&mut self, id: ModuleId, ptx: &str) {
        let Ok(module) = partita_ptx::parse(ptx) else { return };
        let target =
            module.target.first().map_or(String::new(), |name| module.text(*name).to_owned());
        self.targets.insert(id, target);
        if ["malloc", "free"]
            .iter()
            .any(|name| module.funcs.iter().any(|f| module.text(f.name) == *name))
        {
            self.with_heap.insert(id);
        }
        let reads = |func: FuncId, registers: &[Special]| {
            let is_read = |operand: &Operand| {
                matches!(operand, Operand::Special(special,
                _) if registers.contains(special))
            };
            let body = module.func(func).body.as_ref();
            body.is_some_and(|body| {
                body.insts().any(|(_, inst)| body.operands(inst.operands).iter().any(is_read))
            })
        };
        for kernel in module.kernels() {
            let functions = module.reach(kernel.func).funcs;
            if functions.iter().any(|&func| reads(func, &OF_RUN)) {
                self.with_clock.insert((id, kernel.name.clone()));
            }
            if functions.iter().any(|&func| reads(func, &[Special::Nctaid])) {
                self.with_size.insert((id, kernel.name));
            }
        }
    }

    fn launch(&mut self, launch: &Recorded) -> Result<(), String> {
        let target = self.targets.get(&launch.module).cloned().unwrap_or_default();
        let name = (launch.kernel.clone(), target);
        let tried = self.kernels.get(&name).map_or(0, |kernel| kernel.launches);
        let shape = (launch.kernel.clone(), axes(launch.grid), axes(launch.block));
        if tried >= self.effort.launches || !self.seen.insert(shape) {
            self.original.launch(0, launch, launch.params.clone())?;
            // A fault is the program's, as it was when it was recorded.
            drop(self.original.settle(u64::MAX));
            return Ok(());
        }
        let before = self.original.memory()?;
        self.original.launch(0, launch, launch.params.clone())?;
        let outcome = self.original.settle(u64::MAX);
        let instructions = self.original.instructions();
        let mut kernel = self.kernels.remove(&name).unwrap_or_default();
        kernel.form = match self.forms[CHOICE].rewrite(launch.module, &launch.kernel) {
            Some(rewrite) if rewrite.form == partita_ptx::KernelForm::Worker => "worker",
            Some(_) => "ticket",
            None => "original",
        };
        let bytes: usize = before.iter().map(|(_, contents)| contents.len()).sum();
        let untried = match outcome {
            Err(fault) => Some(format!("the original ends in a fault: {fault}")),
            Ok(()) if instructions > LARGEST => {
                Some(format!("more than {LARGEST} warp instructions"))
            }
            Ok(()) if bytes > MOST_BYTES => {
                Some(format!("more than {MOST_BYTES} B of live memory"))
            }
            Ok(()) if self.with_heap.contains(&launch.module) => {
                Some("its module allocates on the device".into())
            }
            Ok(()) if self.with_clock.contains(&(launch.module, launch.kernel.clone())) => {
                Some("it looks at a clock or at where it runs".into())
            }
            Ok(()) => None,
        };
        if let Some(reason) = untried {
            kernel.untried.insert(reason);
        } else {
            kernel.launches += 1;
            let key = (launch.module, launch.kernel.clone());
            for grid in grids(launch.grid, self.with_size.contains(&key)) {
                if !cluster::fills(launch.cluster, grid) {
                    continue;
                }
                let launch = Recorded { grid, ..launch.clone() };
                self.compare(&launch, &before, instructions, &mut kernel)?;
            }
        }
        self.kernels.insert(name, kernel);
        Ok(())
    }

    /// What the original leaves on the other references, and what it leaves where its CTAs run one
    /// by one in other orders.
    fn further_references(
        &mut self,
        launch: &Recorded,
        before: &Memory,
        random: &mut Random,
        limit: u64,
    ) -> Result<Vec<Memory>, String> {
        let mut memories = Vec::new();
        for lane in &mut self.references[FIRST_REFERENCES..] {
            lane.restore(before)?;
            drive::run(lane, launch, 1, random, limit)?;
            memories.push(lane.memory()?);
        }
        let tickets = &mut self.forms[TICKETS];
        if launch.grid.count() <= MOST_ORDERED
            && tickets.rewrite(launch.module, &launch.kernel).is_some()
        {
            for order in 0..ORDERS {
                let mut ctas: Vec<u64> =
                    (0..u64::try_from(launch.grid.count()).unwrap_or(0)).rev().collect();
                if order > 0 {
                    random.shuffle(&mut ctas);
                }
                tickets.restore(before)?;
                // A CTA that waits for lower ones ends in no time that is given here.
                if drive::run_in_order(tickets, launch, &ctas, limit).is_err() {
                    break;
                }
                memories.push(tickets.memory()?);
            }
        }
        Ok(memories)
    }

    /// Tries one launch in all forms. `before` is the memory that it finds.
    fn compare(
        &mut self,
        launch: &Recorded,
        before: &Memory,
        instructions: u64,
        kernel: &mut Kernel,
    ) -> Result<(), String> {
        let limit = instructions * 64 + (1 << 22);
        let mut random = Random::new(self.effort.seed ^ kernel.launches << 32);
        let mut expected = Vec::new();
        for lane in &mut self.references[..FIRST_REFERENCES] {
            lane.restore(before)?;
            if let Err(fault) = drive::run(lane, launch, 1, &mut random, limit) {
                kernel.untried.insert(format!("with grid {} the original: {fault}", launch.grid));
                return Ok(());
            }
            expected.push(lane.memory()?);
        }
        kernel.grids.insert(axes(launch.grid));
        let mut open = Open::of(&expected);
        for (form, passes) in LANES.iter().enumerate() {
            let lane = &mut self.forms[form];
            if let Some(refusal) = lane.refusal(launch.module, &launch.kernel) {
                kernel.refusals.insert(form, refusal);
                continue;
            }
            let rewrite = lane.rewrite(launch.module, &launch.kernel);
            if rewrite.is_some_and(|rewrite| !rewrite.blocks.fit(axes(launch.block))) {
                continue;
            }
            let varies = rewrite.is_some() || passes.contains(&Pass::Slice);
            for run in 0..if varies { self.effort.runs } else { 1 } {
                let task = TASKS[run as usize % TASKS.len()];
                let lane = &mut self.forms[form];
                lane.restore(before)?;
                let outcome = drive::run(lane, launch, task, &mut random, limit);
                let found = lane.memory()?;
                kernel.runs[form] += 1;
                let what = || {
                    format!(
                        "{:?}, grid {}, block {}, tasks of {task}",
                        passes, launch.grid, launch.block
                    )
                };
                if let Err(refusal) = &outcome
                    && refusal.starts_with(lane::REFUSED)
                {
                    kernel.refusals.insert(form, refusal.clone());
                    break;
                }
                if let Err(fault) = outcome {
                    kernel.failures.push(format!("{}: {fault}", what()));
                    return Ok(());
                }
                if open.difference(&expected[0], &found).is_some()
                    && expected.len() == FIRST_REFERENCES
                {
                    expected.extend(self.further_references(launch, before, &mut random, limit)?);
                    open = Open::of(&expected);
                }
                if let Some(difference) = open.difference(&expected[0], &found) {
                    kernel.failures.push(format!("{}: {difference}", what()));
                    return Ok(());
                }
            }
        }
        kernel.depends_on_order |= !open.0.is_empty();
        Ok(())
    }
}

/// Words in which the originals differ: index of the range, and of the word.
struct Open(BTreeSet<(usize, usize)>);

const WORD: usize = 8;

impl Open {
    fn of(memories: &[Memory]) -> Open {
        let (first, others) = memories.split_first().expect("there are references");
        let mut open = BTreeSet::new();
        for other in others {
            open.extend(differences(first, other));
        }
        Open(open)
    }

    /// The first word that should be the same and is not.
    fn difference(&self, expected: &Memory, found: &Memory) -> Option<String> {
        let is_open = |range: usize| self.0.range((range, 0)..(range + 1, 0)).next().is_some();
        let mut permuted = BTreeMap::new();
        let (range, word) = differences(expected, found).find(|&(range, word)| {
            let same = || is_open(range) && sorted(&expected[range].1) == sorted(&found[range].1);
            !self.0.contains(&(range, word)) && !*permuted.entry(range).or_insert_with(same)
        })?;
        let (start, contents) = &expected[range];
        let at = word * WORD;
        let end = (at + WORD).min(contents.len());
        Some(format!(
            "byte {at} of the {} at {start} begins {:02x?}, not {:02x?}",
            contents.len(),
            &found[range].1[at..end],
            &contents[at..end]
        ))
    }
}

fn differences<'a>(
    one: &'a Memory,
    other: &'a Memory,
) -> impl Iterator<Item = (usize, usize)> + 'a {
    one.iter().zip(other).enumerate().filter(|(_, (one, other))| one.1 != other.1).flat_map(
        |(range, (one, other))| {
            let words = one.1.chunks(WORD).zip(other.1.chunks(WORD)).enumerate();
            words.filter(|(_, (one, other))| one != other).map(move |(word, _)| (range, word))
        },
    )
}

/// Elements of queues have 4 bytes or more.
fn sorted(bytes: &[u8]) -> Vec<&[u8]> {
    let mut words: Vec<&[u8]> = bytes.chunks(4).collect();
    words.sort_unstable();
    words
}

const fn axes(dim: Dim3) -> [u32; 3] {
    [dim.x, dim.y, dim.z]
}

/// The grid of a launch, and parts of it, where the kernel does not see the difference: then they
/// do what is done anyway.
fn grids(grid: Dim3, sees_size: bool) -> Vec<Dim3> {
    if sees_size {
        return vec![grid];
    }
    let Dim3 { x, y, z } = grid;
    let part = |extent: u32, by: u32| extent.div_ceil(by);
    let mut grids =
        vec![grid, Dim3::new(part(x, 2), part(y, 3), z), Dim3::new(part(x, 5), y, part(z, 2))];
    grids.dedup();
    grids
}
