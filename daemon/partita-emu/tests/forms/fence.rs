//! Hostile kernels: what they do unfenced, they cannot do fenced.

use crate::world::World;
use partita_emu::Timing;
use partita_model::Dim3;
use partita_ptx::passes;
use partita_ptx::{Pass, WorkerOptions};

const HOSTILE: [&str; 2] = [
    include_str!("../../../../kernels-ptx/corpus/fence/hostile.ptx"),
    include_str!("../../../../kernels-ptx/corpus/fence/hostile-displaced.ptx"),
];
const SECRET: u32 = 0x5e5e_5e5e;
/// Bytes of the victim's, all live: whoever comes near finds them.
const VICTIM_BYTES: u32 = 8 << 20;

/// Runs a kernel once and tells whether it reached the victim's memory: wrote there, or has the
/// secret. The victim's window lies behind the kernel's own.
fn reaches(ptx: &str, wanted: &[Pass], kernel: &str) -> bool {
    let module = partita_ptx::parse(ptx).unwrap();
    let applied = passes::apply(&module, wanted, &WorkerOptions::default());
    let mut world = World::new(&applied, Timing::Off, 1);
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

#[test]
fn no_hostile_kernel_leaves_its_window() {
    let mut kernels = 0;
    for hostile in HOSTILE {
        let module = partita_ptx::parse(hostile).unwrap();
        for kernel in module.kernels() {
            let name = kernel.name.as_str();
            assert!(
                reaches(hostile, &[], name),
                "{name} is harmless as it stands, so it shows nothing"
            );
            assert!(!reaches(hostile, &[Pass::Fence], name), "{name} leaves its window");
            for form in [Pass::Worker, Pass::Ticket] {
                assert!(
                    !reaches(hostile, &[Pass::Fence, form], name),
                    "{name} leaves its window as {form:?}"
                );
            }
            kernels += 1;
        }
    }
    assert!(kernels >= 60, "only {kernels} kernels");
}
