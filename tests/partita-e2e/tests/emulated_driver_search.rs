//! CD-search on the real backend, over the driver that executes.
//!
//! CD-search compares speeds. The emulated GPU needs much more of the host's time than of its own,
//! so the backend takes the GPU's time (`clock=gpu`), and the GPU's clock stands nearly still while
//! nothing runs (`idle`). No figure then depends on the host's speed.
//!
//! Code is loaded beside running kernels (`context-lock=off`), or the second program would wait for
//! the end of the first one's launch.

use partita_e2e::binaries;
use partita_e2e::daemon::Daemon;
use partita_e2e::held::Held;
use partita_e2e::toolchain;
use partita_model::{ApplicationId, Class, Note, StatusReport};
use std::process::{Command, Output};

const DEVICE: &str = "cuda,clock=gpu";
const HABITS: &str = "idle=1000,cuda=13050,context-lock=off,unmap-waits=off,local-resize=off,\
                      no-pageable-access=off";
const SEARCHING: &str =
    "[policy]\npartitioner = \"cd-search\"\nno_progress_ms = 600000\nalone_ms = 600000\n";
/// SMs of the small GPU.
const SMS: u16 = 8;
/// A third of the paper's GPU.
const SMALLER: [(&str, &str); 7] = [
    ("sms", "8"),
    ("memory_bus_bits", "128"),
    ("llc_bytes", "524_288"),
    ("llc_slices", "4"),
    ("llc_gigabytes_per_second", "89.6"),
    ("dram_channels", "2"),
    ("dram_gigabytes_per_second", "59.1"),
];

/// The specification of the GPU of CD-search's paper, a third of it.
fn small_gpu() -> String {
    let mut specs = Command::new(binaries::binary("partita"));
    let specs = specs.args(["emu", "specs", "cd-search-24"]).output();
    let text = String::from_utf8(specs.expect("partita can be started").stdout);
    let text = text.expect("it is text");
    let lines = text.lines().map(|line| {
        let key = line.split(" = ").next().unwrap_or_default();
        let smaller = SMALLER.iter().find(|(name, _)| *name == key);
        smaller.map_or_else(|| line.to_owned(), |(name, value)| format!("{name} = {value}"))
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Whether a program has found its results right, and ended well.
fn has_passed(output: &Output) -> bool {
    output.status.success() && String::from_utf8_lossy(&output.stdout).ends_with("PASSED\n")
}

fn has_work(status: &StatusReport) -> bool {
    let applications = &status.applications;
    applications.len() == 2 && applications.iter().all(|of| of.ctas_completed > 0)
}

/// What the search takes an application for.
fn class(status: &StatusReport, of: ApplicationId) -> Option<Class> {
    let notes = status.policy.decisions.iter().flat_map(|decision| &decision.notes);
    let mut classes = notes.filter_map(|note| match note {
        Note::Classified { application, class, .. } if *application == of => Some(*class),
        _ => None,
    });
    classes.next_back()
}

#[test]
fn a_search_finds_another_border_than_the_even_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let spec = folder.path().join("small.toml");
    std::fs::write(&spec, small_gpu()).expect("it can be written");
    let switches = format!("gpu={},memory={},{HABITS}", spec.display(), 4_u64 << 30);
    let daemon = Daemon::with_emulated_driver(&[DEVICE], &switches, SEARCHING);
    let program = toolchain::program("rival");
    let compute = Held::start(&daemon, &program, &["compute"]);
    let status = daemon.wait_for("the first program", |status| status.applications.len() == 1);
    let first = status.applications[0].id;
    let memory = Held::start(&daemon, &program, &["memory"]);
    let status = daemon.wait_for("two programs with work", has_work);
    let ids = status.applications.iter().map(|application| application.id);
    let mut others = ids.filter(|id| *id != first);
    let second = others.next().expect("there are two");
    let status = daemon.wait_for("the end of a search", |status| {
        let is_over = status.policy.stage == "watch";
        is_over && [first, second].iter().all(|of| class(status, *of).is_some())
    });
    let why = status.policy.why.join("\n");
    println!("{why}");
    assert_eq!(class(&status, first), Some(Class::Compute), "{why}");
    assert_eq!(class(&status, second), Some(Class::Memory), "{why}");
    let sms = |of| -> u16 {
        let own = status.partitions.iter().filter(|part| part.application == of);
        own.map(|part| part.sms.len()).sum()
    };
    let [of_compute, of_memory] = [sms(first), sms(second)];
    assert!(of_compute > of_memory && of_compute + of_memory == SMS, "{why}");
    for program in [compute, memory] {
        let output = program.release();
        assert!(has_passed(&output), "{output:?}\n{}", daemon.log());
    }
}
