//! Tests of the replay of caches, with launches whose hits and misses are counted by hand.

use super::*;

const L1: CacheShape = CacheShape::sectored(16 << 10, 4);
const LLC: u64 = 1 << 20;

fn record(kind: u64, sm: u64, sector: u64) -> u64 {
    kind | sector << SECTOR_SHIFT | sm << RECORD_SM_SHIFT
}

/// A launch whose CTAs are all recorded.
fn whole(records: &[u64]) -> Recorded<'_> {
    let past = records.iter().filter(|record| *record & RECORD_KIND != RECORD_LOAD).count() as u64;
    let sectors = records.len() as u64;
    let counts = Counts { ctas: 10, sectors, past_sectors: past, ..Counts::default() };
    Recorded { counts, records, launch_ctas: 10 }
}

#[test]
fn a_stream_misses_everything() {
    let records: Vec<u64> =
        (0..10_000).map(|sector| record(RECORD_LOAD, sector % 7, sector)).collect();
    let found = Replay::new(L1, LLC).launch(&whole(&records));
    assert_eq!((found.least, found.accesses, found.most), (10_000, 10_000, 10_000));
    assert_eq!((found.hits_least, found.hits, found.hits_most), (0, 0, 0));
}

#[test]
fn what_an_sm_reads_again_hits_in_its_l1() {
    // 1 KiB, read a hundred times by each of two SMs: 32 sectors each get through.
    let one = |sm: u64| (0..3200).map(move |at| record(RECORD_LOAD, sm, at % 32));
    let records: Vec<u64> = one(0).chain(one(1)).collect();
    let found = Replay::new(L1, LLC).launch(&whole(&records));
    assert_eq!((found.accesses, found.most, found.hits), (64, 64, 32));
    // At best both run on one SM.
    assert_eq!(found.least, 32);
}

/// Eight rounds over as many sectors.
fn rounds(kind: u64, sectors: u64) -> LlcUse {
    let records: Vec<u64> = (0..8 * sectors).map(|at| record(kind, 0, at % sectors)).collect();
    Replay::new(L1, LLC).launch(&whole(&records))
}

#[test]
fn bounds_are_those_of_a_smaller_and_a_larger_l1() {
    // Three quarters of the L1: half of an L1 would lose it each round.
    let fits = rounds(RECORD_LOAD, 384);
    assert!(fits.accesses < 2 * 384 && fits.most > 4 * 384, "{fits:?}");
    // One and a half of it.
    let exceeds = rounds(RECORD_LOAD, 768);
    assert!(exceeds.least < 2 * 768 && exceeds.accesses > 4 * 768, "{exceeds:?}");
}

#[test]
fn bounds_are_those_of_a_smaller_and_a_larger_llc() {
    let fits = rounds(1, 3 << 13);
    assert!(fits.hits > 6 * (3 << 13) && fits.hits_least < 3 << 13, "{fits:?}");
    let exceeds = rounds(1, 3 << 14);
    assert!(exceeds.hits < 3 << 14 && exceeds.hits_most > 6 * (3 << 14), "{exceeds:?}");
}

#[test]
fn an_l1_without_sectors_brings_in_lines_and_loses_them_to_stores() {
    let l1 = CacheShape { fills_lines: true, stores_evict: true, ..L1 };
    // One sector of each line: each miss brings in four.
    let scattered: Vec<u64> = (0..1000).map(|line| record(RECORD_LOAD, 0, 4 * line)).collect();
    let found = Replay::new(l1, LLC).launch(&whole(&scattered));
    assert_eq!((found.accesses, found.hits), (4000, 0));
    // A sum in memory: each store drops what the next load wants.
    let sum: Vec<u64> = (0..1000)
        .flat_map(|_| [RECORD_LOAD, RECORD_WRITES].map(|kind| record(kind, 0, 7)))
        .collect();
    assert_eq!(Replay::new(l1, LLC).launch(&whole(&sum)).accesses, 5000);
    assert_eq!(Replay::new(L1, LLC).launch(&whole(&sum)).accesses, 1001);
}

#[test]
fn past_l1_goes_to_the_llc() {
    for kind in 1..=3 {
        let records: Vec<u64> = (0..3200).map(|at| record(kind, 0, at % 32)).collect();
        let found = Replay::new(L1, LLC).launch(&whole(&records));
        assert_eq!((found.accesses, found.hits), (3200, 3168), "kind {kind}");
    }
}

#[test]
fn what_is_written_where_it_was_read_goes_to_dram_once() {
    // Read, written twice, sector after sector; the second launch finds all of it written.
    let kinds = [RECORD_LOAD, RECORD_WRITES, 3];
    let records: Vec<u64> =
        (0..8192).flat_map(|sector| kinds.map(|kind| record(kind, 0, sector))).collect();
    let mut replay = Replay::new(L1, LLC);
    let found = replay.launch(&whole(&records));
    assert_eq!((found.accesses, found.hits, found.dirtied), (24_576, 16_384, 8192));
    assert_eq!(replay.launch(&whole(&records)).dirtied, 0);
    // What misses goes there anyway.
    let records: Vec<u64> = (0..8192).map(|sector| record(RECORD_WRITES, 0, sector)).collect();
    let found = Replay::new(L1, LLC).launch(&whole(&records));
    assert_eq!((found.hits, found.dirtied), (0, 0));
    // A launch that is recorded in part, and does not fit.
    let records: Vec<u64> = (0..4096)
        .flat_map(|sector| [RECORD_LOAD, RECORD_WRITES].map(|kind| record(kind, 0, sector)))
        .collect();
    let counts = Counts { ctas: 10, sectors: 81_920, past_sectors: 40_960, ..Counts::default() };
    let found =
        Replay::new(L1, LLC).launch(&Recorded { counts, records: &records, launch_ctas: 1000 });
    assert_eq!((found.hits, found.dirtied), (40_960, 40_960));
}

#[test]
fn the_llc_remembers_the_launch_before() {
    let records: Vec<u64> = (0..16_384).map(|sector| record(RECORD_LOAD, 0, sector)).collect();
    let mut replay = Replay::new(L1, LLC);
    assert_eq!(replay.launch(&whole(&records)).hits, 0);
    let again = replay.launch(&whole(&records));
    assert!(again.hits > 16_000 && again.accesses == 16_384, "512 KiB are still there: {again:?}");
}

#[test]
fn a_launch_that_is_recorded_in_part_is_scaled() {
    // The first 4096 of 40,960 sectors, all of them new; the other CTAs sweep the LLC.
    let records: Vec<u64> = (0..4096).map(|sector| record(RECORD_LOAD, 0, sector)).collect();
    let counts = Counts { ctas: 10, sectors: 40_960, ..Counts::default() };
    let recorded = Recorded { counts, records: &records, launch_ctas: 1000 };
    let mut replay = Replay::new(L1, LLC);
    for _ in 0..2 {
        let found = replay.launch(&recorded);
        assert_eq!((found.accesses, found.hits, found.hits_most), (40_960, 0, 0), "{found:?}");
    }
    // All of it would fit: it may be there from before.
    let few = Counts { sectors: 8192, ..counts };
    let few = Recorded { launch_ctas: 10, counts: few, ..recorded };
    let found = Replay::new(L1, LLC).launch(&few);
    assert_eq!((found.hits, found.hits_most), (0, 8192));
    // What comes back to the same few is no larger for being long.
    let records: Vec<u64> = (0..4096).map(|at| record(1, 0, at % 512)).collect();
    let counts = Counts { past_sectors: 40_960, ..counts };
    let found = Replay::new(L1, LLC).launch(&Recorded { counts, records: &records, ..recorded });
    assert_eq!((found.accesses, found.hits_most), (40_960, 40_960));
    assert!(found.hits >= 40_950, "512 of 4,096,000 are new: {found:?}");
}

#[test]
fn the_rest_goes_by_the_best_the_last_and_the_worst_part() {
    // Sectors are new, then one comes back, then every second is new.
    let records: Vec<u64> = (0..4096)
        .map(|at| match at {
            2048..3072 => 2047,
            3072.. if at % 2 == 1 => 2047,
            new => new,
        })
        .map(|sector| record(RECORD_LOAD, 0, sector))
        .collect();
    let counts = Counts { ctas: 10, sectors: 11 * 4096, ..Counts::default() };
    let recorded = Recorded { counts, records: &records, launch_ctas: 10 };
    let found = Replay::new(L1, LLC).launch(&recorded);
    // A quarter of the second half misses, a half of the last quarter, five eighths of all.
    for (found, rate) in [(found.least, 0.25), (found.accesses, 0.5), (found.most, 0.625)] {
        let expected = 2560.0 + 40_960.0 * rate;
        assert!((found as f64 / expected - 1.0).abs() < 0.01, "{found}, not {expected}");
    }
}

#[test]
fn strides_of_a_power_of_two_spread_over_the_sets() {
    for shift in [0, 7, 15] {
        // Half as many lines as the L1 has, twice.
        let lines = (0..2).flat_map(|_| 0..64_u64).map(|line| line << shift);
        let records: Vec<u64> = lines.map(|line| record(RECORD_LOAD, 0, 4 * line)).collect();
        let found = Replay::new(L1, LLC).launch(&whole(&records));
        assert_eq!(found.accesses, 64, "a stride of 2^{shift} lines");
    }
}

#[test]
fn a_large_llc_is_modelled_in_part() {
    let llc = 50 << 20;
    let records: Vec<u64> = (0..200_000).map(|at| record(1, 0, (at * 4) % 400_000)).collect();
    let found = Replay::new(L1, llc).launch(&whole(&records));
    let rate = found.hits as f64 / found.accesses as f64;
    assert!((rate - 0.5).abs() < 0.05, "12.8 MB, twice: {rate}");
}

#[test]
fn bounds_are_in_order_whatever_is_recorded() {
    use proptest::prelude::*;
    let launch = (prop::collection::vec(any::<u64>(), 0..500), any::<u32>(), 0..20_u64, 0..40_u64);
    proptest!(|(launches in prop::collection::vec(launch, 1..4), l1 in 0..1_u64 << 16,
        llc in 0..1_u64 << 24)| {
        let mut replay = Replay::new(CacheShape::sectored(l1, 4), llc);
        for (records, sectors, ctas, launch_ctas) in &launches {
            let past_sectors = records.first().copied().unwrap_or(0);
            let sectors = u64::from(*sectors);
            let counts = Counts { ctas: *ctas, sectors, past_sectors, ..Counts::default() };
            let found = replay.launch(&Recorded { counts, records, launch_ctas: *launch_ctas });
            prop_assert!(found.least <= found.accesses && found.accesses <= found.most);
            prop_assert!(found.hits_least <= found.hits && found.hits <= found.hits_most);
            prop_assert!(found.hits_most <= found.accesses);
            prop_assert!(found.dirtied <= found.hits);
        }
    });
}

/// Half of the LLC is enough for 256 KiB, whatever the launch.
#[test]
fn what_fits_half_of_the_llc_hits_for_certain() {
    let fits = rounds(1, 1 << 13);
    assert_eq!((fits.hits_least, fits.hits, fits.hits_most), (7 << 13, 7 << 13, 7 << 13));
}

/// Each sector is read, written, written again: one access misses, one makes it dirty.
#[test]
fn what_is_not_recorded_is_made_dirty_as_often_as_the_last_records() {
    let kinds = [RECORD_LOAD, RECORD_WRITES, RECORD_WRITES];
    let records: Vec<u64> =
        (0..4096).flat_map(|sector| kinds.map(|kind| record(kind, 0, sector))).collect();
    let counts = Counts { ctas: 10, sectors: 122_880, past_sectors: 81_920, ..Counts::default() };
    let found =
        Replay::new(L1, LLC).launch(&Recorded { counts, records: &records, launch_ctas: 1000 });
    assert_eq!((found.accesses, found.hits, found.dirtied), (122_880, 81_920, 40_960));
}

/// Twice the ways, in as many sets: eight lines of one set have room, a ninth has none.
#[test]
fn the_larger_l1_has_twice_the_ways() {
    for (count, least) in [(8, 8), (9, 45)] {
        let round = (0..).filter(|line| (line ^ (line >> 7)) % 32 == 0).take(count);
        let lines: Vec<u64> = round.collect();
        let records: Vec<u64> =
            (0..5).flat_map(|_| &lines).map(|line| record(RECORD_LOAD, 0, 4 * line)).collect();
        assert_eq!(Replay::new(L1, LLC).launch(&whole(&records)).least, least);
    }
}

/// Two SMs read each sector, and the whole launch reads as many bytes as the LLC has.
#[test]
fn a_launch_that_just_fits_sweeps_nothing() {
    let records: Vec<u64> = (0..4096).map(|at| record(1, at % 2, at / 2)).collect();
    let counts = Counts { ctas: 10, sectors: 65_536, past_sectors: 65_536, ..Counts::default() };
    let recorded = Recorded { counts, records: &records, launch_ctas: 10 };
    assert_eq!(footprint(&recorded), LLC);
    let mut replay = Replay::new(L1, LLC);
    assert_eq!(replay.launch(&recorded).hits, 32_768);
    assert_eq!(replay.launch(&recorded).hits, 65_536, "it is there from before");
    let more = Counts { sectors: 65_538, past_sectors: 65_538, ..counts };
    assert!(footprint(&Recorded { counts: more, ..recorded }) > LLC);
    replay.launch(&Recorded { counts: more, ..recorded });
    assert_eq!(replay.launch(&recorded).hits, 32_768, "that was swept");
}

/// One misses, and one hits and writes. Half of the third counts for each.
#[test]
fn no_more_is_made_dirty_than_hits() {
    let records = [record(1, 0, 7), record(RECORD_WRITES, 0, 7)];
    let counts = Counts { ctas: 10, sectors: 3, past_sectors: 3, ..Counts::default() };
    let found =
        Replay::new(L1, LLC).launch(&Recorded { counts, records: &records, launch_ctas: 10 });
    assert_eq!((found.accesses, found.hits, found.dirtied), (3, 1, 1));
}

/// Each sector is read, written and read; then others are read through L1.
#[test]
fn where_the_last_quarter_has_none_of_a_kind_an_earlier_part_tells() {
    let kinds = [1, RECORD_WRITES, 1];
    let past = (0..960).flat_map(|sector| kinds.map(|kind| record(kind, 0, sector)));
    let loads = (0..960).map(|sector| record(RECORD_LOAD, 0, 4096 + sector));
    let records: Vec<u64> = past.chain(loads).collect();
    let counts = Counts { ctas: 10, sectors: 29_760, past_sectors: 28_800, ..Counts::default() };
    let found =
        Replay::new(L1, LLC).launch(&Recorded { counts, records: &records, launch_ctas: 10 });
    assert_eq!((found.accesses, found.hits, found.dirtied), (29_760, 19_200, 9600));
}

#[test]
fn a_line_that_an_l1_fills_has_all_its_sectors() {
    let l1 = CacheShape { fills_lines: true, ..L1 };
    let records: Vec<u64> = (0..4096).map(|sector| record(RECORD_LOAD, 0, sector)).collect();
    let found = Replay::new(l1, LLC).launch(&whole(&records));
    assert_eq!((found.accesses, found.hits), (4096, 0));
    // The last sectors of lines that other loads brought in.
    let records: Vec<u64> = (0..100)
        .flat_map(|line| [0, 3].map(|sector| record(RECORD_LOAD, 0, 4 * line + sector)))
        .collect();
    assert_eq!(Replay::new(l1, LLC).launch(&whole(&records)).accesses, 400);
}

#[test]
fn neighbours_at_high_addresses_lie_in_different_sets() {
    let lines = (0..2).flat_map(|_| 0..64_u64).map(|line| line | 0x7f << 15);
    let records: Vec<u64> = lines.map(|line| record(RECORD_LOAD, 0, 4 * line)).collect();
    assert_eq!(Replay::new(L1, LLC).launch(&whole(&records)).accesses, 64);
}

/// Every second line is modelled, with all its sectors: three quarters of the LLC fit.
#[test]
fn whole_lines_are_modelled() {
    let sectors = 3 << 15;
    let records: Vec<u64> = (0..2 * sectors).map(|at| record(1, 0, at % sectors)).collect();
    let found = Replay::new(L1, 4 << 20).launch(&whole(&records));
    let rate = found.hits as f64 / found.accesses as f64;
    assert!((rate - 0.5).abs() < 0.05, "{rate}");
}
