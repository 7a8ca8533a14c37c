//! Hostile kernels: what they do unfenced, they cannot do fenced.

use crate::world::World;
use partita_emu::Timing;
use partita_model::Dim3;
use partita_ptx::passes;
use partita_ptx::{Pass, WorkerOptions};

const HOSTILE: &str = include_str!("../../../../kernels-ptx/corpus/fence/hostile.ptx");
const SECRET: u32 = 0x5e5e_5e5e;
/// The tenant's window is the upper half of the device's.
const HALF: u64 = 32 << 20;

/// Runs a kernel once and tells whether it reached the victim's memory: wrote there, or has the secret.
fn reaches(ptx: &str, wanted: &[Pass], kernel: &str) -> bool {
    let module = partita_ptx::parse(ptx).unwrap();
    let applied = passes::apply(&module, wanted, &WorkerOptions::default());
    let mut world = World::new(&applied, Timing::Off, 1);
    let victim = world.buffer(&SECRET.to_le_bytes().repeat(1 << 18));
    let own = world.live(world.base + HALF, 2 << 20);
    let mut params = vec![victim + (512 << 10), own];
    let fenced = wanted.contains(&Pass::Fence);
    if fenced {
        params.extend([world.base + HALF, HALF - 1]);
    }
    if wanted.contains(&Pass::Worker) || wanted.contains(&Pass::Ticket) {
        params.push(world.control(Dim3::linear(1), 1, 1));
    }
    world.launch(0, kernel, Dim3::linear(1), 1, &params);
    world.settle();
    let untouched = world.words(victim, 1 << 18).iter().all(|&word| word == SECRET);
    let leaked = world.words(own, 512 << 10).contains(&SECRET);
    if fenced {
        world.check_outcomes();
    }
    !untouched || leaked
}

#[test]
fn no_hostile_kernel_leaves_its_window() {
    let module = partita_ptx::parse(HOSTILE).unwrap();
    let kernels = module.kernels();
    assert!(kernels.len() >= 28, "only {} kernels", kernels.len());
    for kernel in kernels {
        let name = kernel.name.as_str();
        assert!(reaches(HOSTILE, &[], name), "{name} is harmless as it stands, so it shows nothing");
        assert!(!reaches(HOSTILE, &[Pass::Fence], name), "{name} leaves its window");
        for form in [Pass::Worker, Pass::Ticket] {
            assert!(!reaches(HOSTILE, &[Pass::Fence, form], name), "{name} leaves its window as {form:?}");
        }
    }
}
