//! A grid cut into consecutive ranges leaves what the whole leaves.

use crate::world::{World, mix, rewritten};
use partita_emu::Timing;
use partita_model::{Dim3, control};
use partita_ptx::Pass;

const PLACE: &str = include_str!("../../../../kernels-ptx/corpus/slice/place.ptx");
const BLOCK: u32 = 48;

fn whole(grid: Dim3) -> Vec<u32> {
    let mut world = World::new(&rewritten(PLACE, &[]), Timing::Off, 1);
    let count = grid.count() as usize * BLOCK as usize;
    let out = world.buffer(&vec![0; count * 4]);
    world.launch(0, "place", grid, BLOCK, &[out]);
    world.settle();
    world.check_outcomes();
    world.words(out, count)
}

/// Slices of random sizes on several streams; with the window's parameters where the kernel is
/// fenced.
fn sliced(passes: &[Pass], grid: Dim3, seed: u64) -> Vec<u32> {
    let mut world = World::new(&rewritten(PLACE, passes), Timing::On, seed);
    let count = grid.count() as usize * BLOCK as usize;
    let out = world.buffer(&vec![0; count * 4]);
    let counts = world.buffer(&[0; 4096]);
    let control = world.control(grid, 1, 0);
    let mut random = seed;
    let (mut first, mut stream) = (0, 0);
    while first < grid.count() as u64 {
        let size = (1 + mix(&mut random) % 97).min(grid.count() as u64 - first);
        let mut params = vec![out];
        if passes.contains(&Pass::Fence) {
            params.push(world.cell());
        }
        if passes.contains(&Pass::Count) {
            params.push(counts);
        }
        let extents = [u64::from(grid.x) | u64::from(grid.y) << 32, u64::from(grid.z)];
        params.extend([&[first], &extents[..]].concat());
        if passes.contains(&Pass::Cancel) {
            params.push(control);
        }
        world.launch(stream % 4, "place", Dim3::linear(size as u32), BLOCK, &params);
        first += size;
        stream += 1;
    }
    world.settle();
    world.check_outcomes();
    world.words(out, count)
}

#[test]
fn slices_do_what_the_whole_does() {
    for grid in [Dim3::linear(211), Dim3 { x: 7, y: 11, z: 5 }, Dim3 { x: 1, y: 300, z: 1 }] {
        let wanted = whole(grid);
        assert!(wanted.iter().filter(|&&word| word != 0).count() > 200);
        for (seed, passes) in [
            &[Pass::Slice][..],
            &[Pass::Fence, Pass::Slice],
            &[Pass::Count, Pass::Slice, Pass::Cancel],
        ]
        .into_iter()
        .enumerate()
        {
            assert!(sliced(passes, grid, seed as u64) == wanted, "{passes:?} {grid:?}");
        }
    }
}

#[test]
fn a_slice_far_out_in_a_huge_grid_knows_its_place() {
    // 70,000 × 70,000 × 3 CTAs: linear indices pass 2^32, and so does the 64-bit division's
    // quotient's dividend.
    const KERNEL: &str = "\
.version 7.0
.target sm_70
.address_size 64
.visible .entry k(.param .u64 p_out)
{
    .reg .b32 %r<5>;
    .reg .b64 %d;
    ld.param.u64 %d, [p_out];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ctaid.y;
    mov.u32 %r3, %ctaid.z;
    st.global.u32 [%d], %r1;
    st.global.u32 [%d+4], %r2;
    st.global.u32 [%d+8], %r3;
    ret;
}
";
    let width = 70_000_u64;
    for (x, y, z) in [(69_999, 69_999, 2), (0, 61_357, 0), (5, 0, 1), (69_999, 0, 0)] {
        let mut world = World::new(&rewritten(KERNEL, &[Pass::Slice]), Timing::Off, 1);
        let out = world.buffer(&[0; 12]);
        let first = (z * width + y) * width + x;
        world.launch(0, "k", Dim3::linear(1), 1, &[out, first, width | width << 32, 3]);
        world.settle();
        world.check_outcomes();
        assert_eq!(world.words(out, 3), [x as u32, y as u32, z as u32]);
    }
}

/// Counts how often each CTA runs.
const MARKS: &str = "\
.version 8.0
.target sm_80
.address_size 64
.visible .entry marks(.param .u64 runs) {
    .reg .b32 %r1;
    .reg .b64 %d<3>;
    ld.param.u64 %d1, [runs];
    mov.u32 %r1, %ctaid.x;
    mul.wide.u32 %d2, %r1, 4;
    add.u64 %d1, %d1, %d2;
    red.global.add.u32 [%d1], 1;
    ret;
}
";

/// A launch that is run in parts: workers end where their part does, in the middle of a row and of
/// a task.
#[test]
fn workers_end_within_a_row() {
    const CTAS: u32 = 1000;
    for (end, task) in [(1, 10), (103, 10), (997, 4), (CTAS, 7)] {
        let mut world = World::new(&rewritten(MARKS, &[Pass::Worker]), Timing::On, 1);
        let runs = world.buffer(&[0; 4 * CTAS as usize]);
        let block = world.control(Dim3::linear(CTAS), task, 24);
        world.poke(block + control::TOTAL, end);
        world.launch(0, "marks", Dim3::linear(24), 1, &[runs, block]);
        world.settle();
        world.check_outcomes();
        let expected: Vec<u32> = (0..CTAS).map(|cta| u32::from(cta < end)).collect();
        assert_eq!(world.words(runs, CTAS as usize), expected, "{end} CTAs, {task} a task");
        assert_eq!(world.long(block + control::COMPLETED), u64::from(end));
    }
}
