//! Kernels do the same with their module's variables in a block of memory that the launcher has
//! placed.

use crate::world::World;
use partita_device::{AddressRange, Device};
use partita_emu::{Options, Timing};
use partita_model::{DeviceAddress, Dim3, WindowId};
use partita_ptx::Pass;
use partita_ptx::settle::{Layout, Part, settle};

const VARIABLES: &str = include_str!("../../../../kernels-ptx/corpus/settle/variables.ptx");
const RESULTS: usize = 16;

/// Loads a text and runs its kernel; what it leaves, beside the block.
fn run(text: &str, layout: Option<&Layout>) -> Vec<u32> {
    let options = Options { timing: Timing::Off, ..Options::default() };
    let mut world = World::of(text, options);
    if let Some(layout) = layout {
        place(&mut world, layout);
    }
    let out = world.buffer(&[0; RESULTS * 4]);
    for _ in 0..2 {
        world.launch(0, "kernel", Dim3::linear(2), 32, &[out]);
        world.settle();
        world.check_outcomes();
    }
    world.words(out, RESULTS)
}

/// What a launcher does for a settled module.
fn place(world: &mut World, layout: &Layout) {
    let bytes = usize::try_from(layout.bytes).unwrap();
    let block = world.buffer(&vec![0; bytes]);
    assert!(block.is_multiple_of(layout.alignment.min(256)));
    for (part, at, contents) in layout.contents(block, 0) {
        assert_ne!(part, Part::Managed);
        world.gpu.poke(DeviceAddress(block + at), &contents).unwrap();
    }
    let address = |world: &World, name: &str| world.variable(name);
    for seed in &layout.seeds {
        let from = address(world, &seed.name);
        for &(offset, _, to, bytes) in &seed.copies {
            let function = world.bytes(from + offset, usize::try_from(bytes).unwrap());
            world.gpu.poke(DeviceAddress(block + to), &function).unwrap();
        }
    }
    let header = address(world, layout.header.as_deref().unwrap());
    world.gpu.poke(DeviceAddress(header), &block.to_le_bytes()).unwrap();
    let constants = address(world, layout.constants.as_deref().unwrap());
    let copied = world.bytes(block, usize::try_from(layout.constant_bytes).unwrap());
    world.gpu.poke(DeviceAddress(constants), &copied).unwrap();
}

fn settled(text: &str) -> (String, Layout) {
    let module = partita_ptx::parse(text).unwrap_or_else(|errors| panic!("{errors}"));
    partita_ptx::verify(&module).unwrap_or_else(|errors| panic!("{errors}"));
    let settled = settle(&module).unwrap_or_else(|errors| panic!("{errors}"));
    (partita_ptx::print(&settled.module), settled.layout)
}

#[test]
fn a_kernel_finds_its_variables_in_the_block() {
    let before = run(VARIABLES, None);
    let (text, layout) = settled(VARIABLES);
    let left = layout.variables.iter().map(|variable| variable.name.as_str());
    for name in left {
        assert!(
            !text.contains(&format!(" {name}[")) && !text.contains(&format!(" {name};")),
            "{name}: {text}"
        );
    }
    let after = run(&text, Some(&layout));
    assert_eq!(before, after);
    assert!(before[..13].iter().all(|word| *word != 0), "{before:?}");
}

/// Forms come before; what they make of the code names the same variables.
#[test]
fn forms_of_kernels_do_too() {
    let module = partita_ptx::parse(VARIABLES).unwrap();
    let forms =
        partita_ptx::passes::apply(&module, &[Pass::Count, Pass::Slice], &Default::default());
    let (text, layout) = settled(&partita_ptx::print(&forms.module));
    assert_eq!(layout.variables.len(), settled(VARIABLES).1.variables.len());
    assert!(text.contains("pw_header"));
    let window = WindowId(1);
    let mut world = World::of(&text, Options::default());
    let start = DeviceAddress(world.base + (32 << 20));
    world.gpu.allocate(window, AddressRange { start, bytes: layout.bytes }).unwrap();
}
