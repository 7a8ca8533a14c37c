//! What a kernel counts of itself is what the GPU counted.

use crate::world::{World, rewritten};
use partita_emu::Timing;
use partita_model::{Dim3, GridCounters};
use partita_ptx::{Pass, count};

const BUSY: &str = include_str!("../../../../kernels-ptx/corpus/count/busy.ptx");
const GRID: Dim3 = Dim3 { x: 37, y: 1, z: 1 };
const BLOCK: u32 = 112;
const RECORDS: u64 = 1 << 16;

fn input() -> Vec<u8> {
    (0..(1_u32 << 13)).flat_map(|index| (index % 7).to_le_bytes()).collect()
}

fn original() -> GridCounters {
    let mut world = World::new(&rewritten(BUSY, &[]), Timing::On, 1);
    let (from, to) = (world.buffer(&input()), world.buffer(&[0; 1 << 15]));
    let operation = world.launch(0, "busy", GRID, BLOCK, &[from, to]);
    world.settle();
    world.check_outcomes();
    world.gpu.take_counters(operation).unwrap()
}

struct Counted {
    counters: [u64; 6],
    past: u64,
    records: Vec<u64>,
    wanted: u64,
}

/// Runs the kernel and reads what it has counted, sampling CTAs whose index has none of the bits of
/// `period`.
fn counted(passes: &[Pass], period: u32, capacity: u64) -> Counted {
    let mut world = World::new(&rewritten(BUSY, passes), Timing::On, 1);
    let (from, to) = (world.buffer(&input()), world.buffer(&[0; 1 << 15]));
    let block = world.buffer(&vec![0; (count::RECORDS + 8 * RECORDS) as usize]);
    world.poke(block + count::PERIOD, period);
    world.poke(block + count::CAPACITY, capacity as u32);
    let mut params = vec![from, to];
    if passes.contains(&Pass::Fence) {
        params.push(world.cell());
    }
    params.push(block);
    if passes.contains(&Pass::Worker) || passes.contains(&Pass::Ticket) {
        params.push(world.control(GRID, 3, 11));
    }
    let workers = if passes.contains(&Pass::Worker) { Dim3::linear(11) } else { GRID };
    world.launch(0, "busy", workers, BLOCK, &params);
    world.settle();
    world.check_outcomes();
    let offsets = [
        count::WARP_INSTRUCTIONS,
        count::THREAD_INSTRUCTIONS,
        count::GLOBAL_LOADS,
        count::GLOBAL_STORES,
        count::ATOMICS,
        count::GLOBAL_SECTORS,
    ];
    let counters = offsets.map(|offset| world.long(block + offset));
    let wanted = world.long(block + count::RECORDED);
    let records =
        (0..wanted.min(capacity)).map(|at| world.long(block + count::RECORDS + 8 * at)).collect();
    Counted { counters, past: world.long(block + count::PAST_SECTORS), records, wanted }
}

#[test]
fn the_counts_are_the_gpus() {
    let true_ones = original();
    let wanted = [
        true_ones.warp_instructions,
        true_ones.thread_instructions,
        true_ones.global_loads,
        true_ones.global_stores,
        true_ones.atomics,
        true_ones.global_sectors,
    ];
    assert!(wanted.iter().all(|&count| count > 100), "{wanted:?}");
    assert!(
        true_ones.llc_accesses <= true_ones.global_sectors,
        "sectors bound what goes to the LLC"
    );
    for passes in [
        &[Pass::Count][..],
        &[Pass::Fence, Pass::Count],
        &[Pass::Count, Pass::Worker],
        &[Pass::Count, Pass::Ticket],
        &[Pass::Fence, Pass::Count, Pass::Ticket],
    ] {
        let mut found = counted(passes, 0, 0).counters;
        if passes.contains(&Pass::Worker) {
            // How often parts of a warp execute a block together depends on what their turns are
            // made of.
            let (found, wanted) = (&mut found[0], wanted[0]);
            assert!(found.abs_diff(wanted) < wanted / 200, "{found} {wanted}");
            *found = wanted;
        }
        assert_eq!(found, wanted, "{passes:?}");
    }
}

#[test]
fn every_sector_of_a_sampled_cta_is_recorded() {
    let all = counted(&[Pass::Count], 0, RECORDS);
    assert_eq!(all.wanted, all.counters[5], "every sector has a record");
    assert!(
        all.records.iter().all(|record| record & 0x1c == 0 && record & 0x1_ffff_ffff_ffe0 != 0)
    );
    let of_kind = |kind: count::Access| {
        all.records.iter().filter(|&record| record & 3 == kind as u64).count()
    };
    assert_eq!(of_kind(count::Access::Load) as u64, all.wanted - all.past);
    assert!(of_kind(count::Access::Load) > 0 && of_kind(count::Access::LoadPastL1) > 0);
    assert!(of_kind(count::Access::Store) > 0 && of_kind(count::Access::Atomic) > 0);

    let some = counted(&[Pass::Count], 7, RECORDS);
    assert!(0 < some.wanted && some.wanted < all.wanted / 4, "CTAs 0, 8, 16, 24 and 32 of 37");
    let full = counted(&[Pass::Count], 0, 100);
    assert_eq!(full.records.len(), 100);
    assert!(full.records.iter().all(|&record| record != 0));
    assert!(full.wanted > 100, "what found no room is known");
}
