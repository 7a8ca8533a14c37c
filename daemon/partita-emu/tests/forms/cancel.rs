//! Launches that would never end, or would end everything, end when they are told to.

use crate::world::{World, rewritten};
use partita_emu::Timing;
use partita_model::{Dim3, control};
use partita_ptx::Pass;

const LOOPS: &str = include_str!("../../../../kernels-ptx/corpus/cancel/loops.ptx");

const FORMS: [&[Pass]; 3] =
    [&[Pass::Cancel], &[Pass::Worker, Pass::Cancel], &[Pass::Ticket, Pass::Cancel]];

fn launch(passes: &[Pass], kernel: &str, value: u64) -> (World, u64) {
    let mut world = World::new(&rewritten(LOOPS, passes), Timing::On, 1);
    let at = if value == 0 { 0 } else { world.buffer(&[0; 4]) };
    let block = match passes.contains(&Pass::Worker) {
        true => world.by_place(Dim3::linear(200), 4, 48, &[2; 24]),
        false => world.control(Dim3::linear(200), 4, 48),
    };
    world.launch(0, kernel, Dim3::linear(48), 96, &[at, block]);
    (world, block)
}

#[test]
fn a_launch_that_waits_for_ever_is_stopped() {
    for passes in FORMS {
        for kernel in ["spin", "in_function"] {
            let (mut world, block) = launch(passes, kernel, 1);
            for _ in 0..4 {
                world.advance(5_000);
            }
            assert!(world.done.is_empty(), "{kernel} ends by itself");
            world.abort(block);
            world.settle();
            world.check_outcomes();
            assert_eq!(world.done.len(), 1, "{passes:?} {kernel}");
        }
    }
}

#[test]
fn a_kernel_that_gives_up_stops_its_launch_only() {
    for passes in FORMS {
        for (kernel, fault) in [
            ("guarded_trap", control::FAULT_TRAP),
            ("asserts", control::FAULT_ASSERT),
            ("compute", 0),
        ] {
            let (mut world, block) = launch(passes, kernel, 0);
            world.settle();
            world.check_outcomes();
            assert_eq!(world.words(block + control::FAULT, 1), [fault], "{passes:?} {kernel}");
            assert_eq!(world.words(block + control::ABORT, 1), [u32::from(fault != 0)]);
        }
    }
}
