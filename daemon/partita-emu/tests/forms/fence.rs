//! Hostile kernels: what they do unfenced, they cannot do fenced.

use crate::world::World;
use partita_emu::Timing;
use partita_model::Dim3;
use partita_ptx::fence::{LEAST_CELL_BITS, SMALL_CELL_BITS};
use partita_ptx::passes;
use partita_ptx::{Pass, WorkerOptions};

const HOSTILE: [&str; 2] = [
    include_str!("../../../../kernels-ptx/corpus/fence/hostile.ptx"),
    include_str!("../../../../kernels-ptx/corpus/fence/hostile-displaced.ptx"),
];
/// Attacks that go one small cell further. They stay within the margins of a full one.
const NEAR: &str = include_str!("../../../../kernels-ptx/corpus/fence/hostile-near.ptx");
const SECRET: u32 = 0x5e5e_5e5e;
/// Bytes of the victim's, all live: whoever comes near finds them.
const VICTIM_BYTES: u32 = 8 << 20;

/// Where the victim is.
#[derive(Clone, Copy)]
enum Victim {
    /// In the next full cell.
    Next,
    /// In a small cell; the number is the distance in small cells.
    SmallCells(u64),
}

/// Runs a kernel once and tells whether it reached the victim's memory: wrote there, or has the
/// secret. The victim's window lies behind the kernel's own.
fn reaches(ptx: &str, wanted: &[Pass], kernel: &str, victim: Victim) -> bool {
    let module = partita_ptx::parse(ptx).unwrap();
    let mut options = WorkerOptions::default();
    let mut world = match victim {
        Victim::Next => World::new(&passes::apply(&module, wanted, &options), Timing::Off, 1),
        Victim::SmallCells(distance) => {
            options.cell_bits = SMALL_CELL_BITS;
            World::in_small_cell(&passes::apply(&module, wanted, &options), distance)
        }
    };
    let victim = world.others(&SECRET.to_le_bytes().repeat(VICTIM_BYTES as usize / 4));
    let own = world.buffer(&vec![0; 2 << 20]);
    let mut params = vec![victim + u64::from(VICTIM_BYTES) / 2, own];
    if wanted.contains(&Pass::Fence) {
        params.push(world.cell());
    }
    if wanted.contains(&Pass::Worker) || wanted.contains(&Pass::Ticket) {
        params.push(world.control(Dim3::linear(1), 1, 1));
    }
    world.launch(0, kernel, Dim3::linear(1), 32, &params);
    world.settle();
    let untouched =
        world.words(victim, VICTIM_BYTES as usize / 4).iter().all(|&word| word == SECRET);
    let leaked = world.words(own, 512 << 10).contains(&SECRET);
    !untouched || leaked
}

/// Tries every kernel of a text. Returns the kernels that are harmless without rewriting: these
/// kernels show nothing.
fn none_reaches(hostile: &str, victim: Victim) -> Vec<String> {
    let module = partita_ptx::parse(hostile).unwrap();
    let mut harmless = Vec::new();
    for kernel in module.kernels() {
        let name = kernel.name.as_str();
        if !reaches(hostile, &[], name, victim) {
            harmless.push(kernel.name.clone());
        }
        assert!(!reaches(hostile, &[Pass::Fence], name, victim), "{name} leaves its window");
        for form in [Pass::Worker, Pass::Ticket] {
            assert!(
                !reaches(hostile, &[Pass::Fence, form], name, victim),
                "{name} leaves its window as {form:?}"
            );
        }
    }
    harmless
}

#[test]
fn no_hostile_kernel_leaves_its_window() {
    for text in HOSTILE {
        assert_eq!(none_reaches(text, Victim::Next), [""; 0]);
    }
}

#[test]
fn no_hostile_kernel_leaves_its_small_window() {
    // As far away as the next full cell would be.
    let far = Victim::SmallCells(1 << (LEAST_CELL_BITS - SMALL_CELL_BITS));
    let harmless: Vec<String> =
        HOSTILE.into_iter().flat_map(|text| none_reaches(text, far)).collect();
    // Its variable lies elsewhere in a window of another size.
    assert_eq!(harmless, ["symbol_and_distance"]);
    assert_eq!(none_reaches(NEAR, Victim::SmallCells(1)), [""; 0]);
}
