//! Kernels that random changes have broken, contained as a device with strict guards wants them.
//!
//! Nothing that such a kernel does may reach the context: each mutant either ends, or is ended by
//! the code of the passes, and where it runs for long it ends after it was asked to. The emulated
//! GPU is exact about faults, and tells of one that the passes let through. Global memory is
//! another matter: an access in the tenant's cell or in a margin around it reaches nobody.
//!
//! The mutants come from the PTX files of [`FOLDERS`]: case files, and kernels that compilers
//! wrote. A seed decides the file, the changes, the kernel, its launch and its arguments.
//!
//! A run plays [`USUAL`] seeds. `PARTITA_MUTANTS=0-99999` plays these, and
//! `PARTITA_MUTANTS_OF=FOLDER` changes the PTX files there. Where `PARTITA_PTXAS` names an
//! assembler, an escape counts only if it takes the mutant.

mod mutate;

use mutate::{Random, Text};
use partita_emu::direct::{Argument, DirectError, Form, Run, prepare};
use partita_emu::{Options, Spec, Timing};
use partita_model::Dim3;
use partita_ptx::{Kernel, parse, print, verify};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Seeds of a usual run.
const USUAL: std::ops::Range<u64> = 0..3000;
/// Warp instructions after which a kernel is asked to end.
const PATIENCE: u64 = 100_000;
/// Warp instructions in which it must have ended then.
const MOST: u64 = 200_000_000;
/// Where texts to change lie, from the project's root.
const FOLDERS: [&str; 4] = [
    "kernels-ptx/corpus",
    "daemon/partita-emu/tests/ptx",
    "tests/partita-bench/workloads",
    "tests/partita-e2e/programs/triton",
];
/// Bytes of a buffer.
const BUFFER: usize = 8192;
/// Changes that are tried for one that is PTX.
const TRIES: usize = 8;

/// What became of a mutant.
enum Outcome {
    /// No change was PTX, or the kernel may not run in this form, or not at all.
    Nothing(&'static str),
    /// It ended by itself.
    Ended,
    /// The code of the passes ended it.
    Contained,
    /// It was asked to end, and did.
    Asked,
    /// It reached memory of its own tenant that is not there.
    OwnMemory,
    /// A fault reached the context, or it never ends.
    Escaped(String),
}

fn files() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut folders = match std::env::var_os("PARTITA_MUTANTS_OF") {
        Some(folder) => vec![PathBuf::from(folder)],
        None => FOLDERS.iter().map(|folder| root.join(folder)).collect(),
    };
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder)
            .unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        for entry in entries {
            let path = entry.expect("an entry of the folder").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "ptx") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

/// The texts that can be changed, as the printer writes them.
fn bases() -> Vec<(PathBuf, String)> {
    let base = |path: PathBuf| {
        let module = parse(&std::fs::read_to_string(&path).ok()?).ok()?;
        let is_right = verify(&module).is_ok() && !module.kernels().is_empty();
        is_right.then(|| (path, print(&module)))
    };
    files().into_iter().filter_map(base).collect()
}

/// A text that is still PTX after some changes.
fn mutant(text: &str, random: &mut Random) -> Option<String> {
    for _ in 0..TRIES {
        let mut changed = Text::new(text);
        for _ in 0..=random.below(4) {
            changed.change(random);
        }
        let changed = changed.joined();
        if parse(&changed).is_ok_and(|module| verify(&module).is_ok()) {
            return Some(changed);
        }
    }
    None
}

fn argument(bytes: u64, random: &mut Random) -> Argument {
    let bytes = usize::try_from(bytes).expect("a parameter is small");
    let number = match random.below(4) {
        0 => random.bits(),
        1 => random.bits() & 0xffff_ffff,
        _ => random.below(100) as u64,
    };
    match (bytes, random.below(8)) {
        (8, 1..) => {
            let bound = 1 << random.below(64);
            let words = (0..BUFFER / 8).map(|_| random.bits() % bound);
            Argument::Buffer(words.flat_map(u64::to_le_bytes).collect())
        }
        _ => Argument::Value(number.to_le_bytes().into_iter().cycle().take(bytes).collect()),
    }
}

fn launch(text: &str, kernel: &Kernel, random: &mut Random) -> Run {
    let few = [1, 2, 3];
    let blocks = [1, 31, 32, 33, 64, 96, 100, 128, 256];
    let block = match random.below(4) {
        0 => Dim3 { x: 8, y: 4, z: few[random.below(3)] },
        _ => Dim3::linear(blocks[random.below(blocks.len())]),
    };
    Run {
        ptx: text.into(),
        kernel: kernel.name.clone(),
        grid: Dim3::linear(few[random.below(3)]),
        block,
        dynamic_shared: [0, 0, 256, 4096][random.below(4)],
        arguments: kernel.params.iter().map(|param| argument(param.size, random)).collect(),
        form: Form::Contained,
        spec: Spec::named("h200").expect("a known GPU"),
        options: Options { timing: Timing::Off, seed: random.bits(), ..Options::default() },
    }
}

fn play(text: &str, random: &mut Random) -> Outcome {
    let module = parse(text).expect("it was parsed before");
    let kernels = module.kernels();
    let kernel = &kernels[random.below(kernels.len())];
    let job = launch(text, kernel, random);
    let prepared = match prepare(&job) {
        Ok(prepared) => prepared,
        Err(DirectError::NoForm { .. }) => return Outcome::Nothing("no form"),
        Err(_) => return Outcome::Nothing("not loaded"),
    };
    let reach = prepared.reach();
    let judge = |error: DirectError| match error {
        DirectError::Ended { .. } => Outcome::Contained,
        DirectError::Fault(fault)
            if fault.address.is_some_and(|address| reach.contains(address, 1)) =>
        {
            Outcome::OwnMemory
        }
        DirectError::Device(_) => Outcome::Nothing("refused"),
        error => Outcome::Escaped(error.to_string()),
    };
    match prepared.run_within(PATIENCE) {
        Ok(_) => Outcome::Ended,
        Err(DirectError::TooLong { .. }) => {
            let again = prepare(&job).and_then(|mut prepared| {
                prepared.ask_to_end()?;
                prepared.run_within(MOST)
            });
            again.map_or_else(judge, |_| Outcome::Asked)
        }
        Err(error) => judge(error),
    }
}

/// Whether an assembler that is at hand takes a text.
fn is_assembled(text: &str) -> bool {
    let Some(ptxas) = std::env::var_os("PARTITA_PTXAS") else { return true };
    let file = tempfile::Builder::new().suffix(".ptx").tempfile().expect("a temporary file");
    std::fs::write(file.path(), text).expect("a temporary file");
    let target = text.lines().find_map(|line| line.trim().strip_prefix(".target "));
    let target = target.and_then(|target| target.split(',').next()).unwrap_or("sm_90");
    let assembled = Command::new(ptxas)
        .arg(format!("-arch={}", target.trim()))
        .args(["-o", "/dev/null"])
        .arg(file.path())
        .output();
    assembled.is_ok_and(|output| output.status.success())
}

fn seeds() -> Vec<u64> {
    let Ok(asked) = std::env::var("PARTITA_MUTANTS") else { return USUAL.collect() };
    let number = |text: &str| text.trim().parse().expect("PARTITA_MUTANTS has seeds, as 0-99,7");
    let mut seeds = Vec::new();
    for part in asked.split(',') {
        match part.split_once('-') {
            Some((first, last)) => seeds.extend(number(first)..=number(last)),
            None => seeds.push(number(part)),
        }
    }
    seeds
}

#[test]
fn no_fault_reaches_the_context() {
    let bases = bases();
    assert!(bases.len() > 10 || std::env::var_os("PARTITA_MUTANTS_OF").is_some());
    let (mut counts, mut escaped) = (BTreeMap::<&str, u64>::new(), 0_u64);
    for seed in seeds() {
        let mut random = Random::new(seed);
        let (path, text) = &bases[random.below(bases.len())];
        let changed = mutant(text, &mut random);
        let outcome = match &changed {
            Some(changed) => play(changed, &mut random),
            None => Outcome::Nothing("no PTX"),
        };
        let name = match outcome {
            Outcome::Nothing(why) => why,
            Outcome::Ended => "ended",
            Outcome::Contained => "contained",
            Outcome::Asked => "asked to end",
            Outcome::OwnMemory => "own memory",
            Outcome::Escaped(why) => {
                let changed = changed.unwrap_or_default();
                if is_assembled(&changed) {
                    escaped += 1;
                    eprintln!("seed {seed}, {}: {why}\n{changed}", path.display());
                }
                "escaped"
            }
        };
        *counts.entry(name).or_default() += 1;
    }
    eprintln!("{counts:?}");
    assert_eq!(escaped, 0, "mutants whose faults reach the context");
    let contained = counts.get("contained").copied().unwrap_or(0);
    assert!(contained > 0 || counts.len() < 2, "no mutant was ended: {counts:?}");
}
