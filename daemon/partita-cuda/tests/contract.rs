//! The contract's promises, on the stand-in for the driver.

mod fake;

use fake::{Fake, WINDOW, buffer, launch, module_of};
use partita_cuda_device::{CudaDevice, Options};
use partita_device::{
    Activity, AddressRange, Device, DeviceError, FaultKind, Guards, Outcome, Relocation, Work,
};
use partita_model::{
    AwaitedWord, DeviceAddress, DeviceKind, ModuleId, OperationId, StreamId, Timekeeping, WindowId,
};
use std::time::{Duration, Instant};

#[test]
fn the_gpu_says_what_it_is() {
    let fake = Fake::new();
    let world = fake.world();
    let facts = world.device.facts();
    assert_eq!((facts.kind, facts.timekeeping), (DeviceKind::Cuda, Timekeeping::Real));
    assert_eq!((facts.name.as_str(), facts.sm_count), ("Fake GPU", 132));
    assert_eq!(&facts.uuid, b"fake-gpu-uuid-00");
    assert_eq!(facts.compute_capability.to_string(), "9.0");
    assert!(facts.memory.0 > 512 << 20 && facts.memory.0 < 1 << 30);
    assert!(world.device.identity().contains("driver CUDA 12040"));
}

#[test]
fn every_launch_has_its_parameters() {
    let fake = Fake::new();
    let mut world = fake.world();
    let facts = world.load(1, &module_of(&["first", "second"])).unwrap();
    assert_eq!(facts.kernels.len(), 2);
    assert_eq!((facts.kernels[1].name.as_str(), facts.kernels[1].registers), ("second", 32));
    fake.tell("clear");
    let launched = world.launch(0, "second", [0x0102, 0xff00_0000_0000_0000]);
    world.finish(&[launched]);
    assert_eq!(
        fake.logged("cuLaunchKernel"),
        ["cuLaunchKernel(second, grid 3 2 1, block 64 1 1, shared 256, \
          params 020100000000000000000000000000ff)"]
    );
    assert_eq!(*world.outcome(launched), Outcome::Complete);
    // Nothing may meet the legacy stream.
    assert_eq!(fake.logged("a stream that meets"), Vec::<String>::new());
    assert_eq!(world.poll(), Activity::Idle);
}

#[test]
fn bad_calls_are_refused_and_change_nothing() {
    let fake = Fake::new();
    let mut world = fake.world();
    world.load(1, &module_of(&["kernel"])).unwrap();
    fake.tell("clear");
    let base = world.base;
    let mut refused =
        |work: Work| world.device.enqueue(StreamId(0), OperationId(99), work).unwrap_err();
    let long = partita_device::GridSpec { params: vec![0; 17], ..launch("kernel", [0; 2]) };
    assert!(matches!(refused(Work::Launch(long)),
            DeviceError::BadLaunch(text) if text.contains("17 bytes")));
    let mut wide = launch("kernel", [0; 2]);
    wide.block.x = 2048;
    assert!(matches!(refused(Work::Launch(wide)),
            DeviceError::BadLaunch(text) if text.contains("2048 threads")));
    assert!(matches!(refused(Work::Launch(launch("other", [0; 2]))), DeviceError::BadId(_)));
    let dead = Work::Fill { to: base, value: 0, width: 4, count: 4 };
    assert!(matches!(refused(dead), DeviceError::BadRange { .. }));
    assert!(matches!(
        world.device.enqueue(StreamId(77), OperationId(99), Work::Marker),
        Err(DeviceError::BadId(_))
    ));
    assert!(matches!(world.device.create_stream(StreamId(3)), Err(DeviceError::BadId(_))));
    assert!(matches!(world.device.reserve(WINDOW, 4096), Err(DeviceError::BadId(_))));
    assert!(matches!(world.device.unload_module(ModuleId(4)), Err(DeviceError::BadId(_))));
    assert_eq!(fake.calls("cuLaunchKernel"), 0);
    assert_eq!(world.poll(), Activity::Idle);
}

#[test]
fn windows_lie_in_cells_with_margins() {
    const GIB: u64 = 1 << 30;
    let fake = Fake::new();
    let mut world = fake.world();
    // Every cell has the size that code is written for.
    let large = world.device.reserve(WindowId(2), 200 * GIB);
    assert!(matches!(large, Err(DeviceError::OutOfMemory { .. })), "{large:?}");
    let second = world.device.reserve(WindowId(2), 100 * GIB).unwrap();
    for base in [world.base.0, second.0] {
        let cell = base & !((1 << 38) - 1);
        assert_eq!(base - cell, 64 * GIB, "{base:#x}");
    }
    assert_ne!(world.base.0 >> 38, second.0 >> 38);
    world.device.release(WindowId(2)).unwrap();
    // Given back when nothing runs, by the thread that may wait.
    let end = Instant::now() + Duration::from_secs(60);
    while fake.calls("cuMemAddressFree") == 0 {
        world.poll();
        assert!(Instant::now() < end, "{:#?}", fake.log());
    }
}

#[test]
fn windows_open_by_few_calls_where_cells_are_ready() {
    let fake = Fake::new();
    let ready = Options { prepared_windows: 2, ..fake.options() };
    let mut world = fake.world_with(&ready);
    let end = Instant::now() + Duration::from_secs(60);
    // Mappings of one cell's margins, 64 GiB each.
    let mappings = usize::try_from((128_u64 << 30) / (32 << 20)).unwrap();
    while fake.calls("cuMemMap") < 4 * mappings {
        assert!(Instant::now() < end, "{} mappings", fake.calls("cuMemMap"));
    }
    fake.tell("clear");
    fake.tell("only-this-thread");
    let bases = [2, 3].map(|id| world.device.reserve(WindowId(id), 1 << 30).unwrap());
    assert!(fake.log().len() < 100, "{:#?}", fake.log());
    assert_eq!(fake.calls("cuMemMap"), 0);
    assert!(bases[0] != bases[1] && !bases.contains(&world.base));
    let range = AddressRange { start: bases[0], bytes: 4096 };
    world.device.allocate(WindowId(2), range).unwrap();
    assert_eq!(world.peek(bases[0]), 0);
    world.device.release(WindowId(2)).unwrap();
    world.device.release(WindowId(3)).unwrap();
}

/// What a small allocation keeps of a large one that was freed is bounded, and told.
#[test]
fn allocations_keep_whole_pieces() {
    let fake = Fake::new();
    let mut world = fake.world();
    let page = 2 << 20;
    let small = world.allocate(0, 1000);
    assert_eq!(world.device.memory_slack(WINDOW), page - 1024);
    let other = world.allocate(1024, 512);
    assert_eq!(world.device.memory_slack(WINDOW), page - 1536);
    world.device.free(small).unwrap();
    assert_eq!(world.device.memory_slack(WINDOW), page - 512);
    world.device.free(other).unwrap();
    assert_eq!(world.device.memory_slack(WINDOW), 0, "it can be given back");
    let id = WindowId(2);
    let start = world.device.reserve(id, 1 << 30).unwrap();
    let device = &mut world.device;
    fake.tell("clear");
    device.allocate(id, AddressRange { start, bytes: 300 << 20 }).unwrap();
    assert_eq!((fake.calls("cuMemCreate"), device.memory_slack(id)), (5, 0));
    device.free(start).unwrap();
    let inside = DeviceAddress(start.0 + (200 << 20));
    let range = AddressRange { start: inside, bytes: 512 };
    assert_eq!(device.memory_needed(id, range), 64 << 20);
    device.allocate(id, range).unwrap();
    assert_eq!(device.memory_slack(id), (64 << 20) - 512);
    let beside = AddressRange { start: DeviceAddress(inside.0 + 512), bytes: 512 };
    assert_eq!(device.memory_needed(id, beside), 0);
}

/// Where memory is short, unused pieces go, but none that the allocation itself is to have.
#[test]
fn an_allocation_has_no_hole_where_memory_is_short() {
    let fake = Fake::new();
    let mut world = fake.world();
    let page = 2 << 20;
    for offset in [0, 16 * page] {
        let start = world.allocate(offset, page);
        world.peek(start);
        world.device.free(start).unwrap();
    }
    // The device learns that the zeros are written.
    world.poll();
    fake.tell("fail cuMemCreate 2 1");
    fake.tell("clear");
    let start = world.allocate(0, 2 * page);
    assert_eq!(fake.calls("cuMemUnmap"), 1);
    for offset in [0, page] {
        let at = DeviceAddress(start.0 + offset);
        assert_eq!(world.peek(at), 0, "{offset} bytes behind the beginning");
    }
}

#[test]
fn cells_are_aligned_where_the_driver_does_not() {
    let fake = Fake::new();
    fake.tell("fail cuMemAddressReserve 1 1");
    let mut world = fake.world();
    assert_eq!(world.base.0 & ((1 << 38) - 1), 64 << 30);
    let start = world.allocate(0, 4096);
    assert_eq!(world.peek(start), 0);
    // Twice as much at the second attempt.
    let reserved = fake.logged("cuMemAddressReserve(");
    assert!(reserved[1].contains(&format!(", {}, 0, 0, 0)", 2_u64 << 38)), "{reserved:?}");
}

/// A wait of the driver's stream would hold up other streams, and calls that wait for the device.
#[test]
fn values_are_waited_for_by_looks() {
    let fake = Fake::new();
    let mut world = fake.world();
    let word = world.allocate(0, 8);
    let waits = world.enqueue(0, Work::WaitValue { address: word, word: AwaitedWord::at_least(1) });
    world.load(1, &module_of(&["kernel"])).unwrap();
    assert!(!world.is_done(waits));
    world.device.poke(word, &1_u64.to_le_bytes()).unwrap();
    world.finish(&[waits]);
    assert_eq!(fake.calls("cuStreamWaitValue64_v2"), 0);
}

#[test]
fn memory_is_mapped_by_pages_and_is_zero() {
    const PAGE: u64 = 2 << 20;
    let fake = Fake::new();
    let mut world = fake.world();
    fake.tell("clear");
    let first = world.allocate(512, 1024);
    let second = world.allocate(2048, 512);
    assert_eq!(fake.calls("cuMemCreate"), 1, "both lie in one page");
    let across = world.allocate(PAGE - 512, 2 * PAGE);
    assert_eq!(fake.calls("cuMemCreate"), 2, "one piece for the pages that are new");
    world.device.poke(first, &7_u64.to_le_bytes()).unwrap();
    assert_eq!((world.peek(first), world.peek(second)), (7, 0));
    let last = DeviceAddress(across.0 + 2 * PAGE - 8);
    assert_eq!(world.peek(last), 0);
    let overlapping = AddressRange { start: DeviceAddress(first.0 + 512), bytes: 16 };
    assert!(matches!(
        world.device.allocate(WINDOW, overlapping),
        Err(DeviceError::BadRange { .. })
    ));
    for address in [first, second, across] {
        world.device.free(address).unwrap();
    }
    assert!(matches!(world.device.free(first), Err(DeviceError::BadRange { .. })));
    // Kept for the next allocation there, and given to others when memory is short.
    assert_eq!((world.allocate(512, 1024), fake.calls("cuMemCreate")), (first, 2));
    // What is being zeroed stays mapped.
    world.peek(last);
    world.poll();
    fake.tell("fail cuMemCreate 2");
    world.allocate(20 * PAGE, PAGE);
    assert_eq!(fake.calls("cuMemUnmap"), 1, "the piece that nobody uses");
    fake.tell("fail cuMemCreate 2 9");
    let range = AddressRange { start: DeviceAddress(world.base.0 + 24 * PAGE), bytes: 512 };
    assert!(matches!(world.device.allocate(WINDOW, range), Err(DeviceError::OutOfMemory { .. })));
}

#[test]
fn copies_and_fills_move_bytes() {
    let fake = Fake::new();
    let mut world = fake.world();
    // More than the staging memory takes at once.
    let bytes: Vec<u8> = (0..9_000_000_u32).map(|at| (at % 251) as u8).collect();
    let (_, from) = buffer(bytes.clone());
    let (back, to) = buffer(vec![0; bytes.len()]);
    let start = world.allocate(4096, 10 << 20);
    let other = world.allocate(20 << 20, 10 << 20);
    let length = bytes.len() as u64;
    let work = [
        Work::CopyToDevice { to: start, from },
        Work::CopyOnDevice { to: other, from: start, bytes: length },
        Work::Fill { to: other, value: 0xabcd_1234, width: 4, count: 2 },
        Work::Fill { to: DeviceAddress(other.0 + 8), value: 0xabcd_1234, width: 2, count: 1 },
        Work::Fill { to: DeviceAddress(other.0 + 10), value: 0xabcd_1234, width: 1, count: 3 },
        Work::CopyToHost { to, from: other },
    ];
    let operations: Vec<_> = work.into_iter().map(|work| world.enqueue(0, work)).collect();
    world.finish(&operations);
    let found = back.0.lock().unwrap().clone();
    let start = [0x34, 0x12, 0xcd, 0xab, 0x34, 0x12, 0xcd, 0xab, 0x34, 0x12, 0x34, 0x34, 0x34];
    assert_eq!(found[..13], start);
    assert_eq!(found[13..], bytes[13..]);
    // In the order of the stream, and never in the future.
    let times: Vec<_> = world.done.iter().map(|(.., time)| *time).collect();
    assert!(
        times.is_sorted() && times.last().is_some_and(|last| *last <= world.device.now()),
        "{times:?}"
    );
}

#[test]
fn running_kernels_see_pokes_and_streams_see_values() {
    for signals in [partita_cuda_device::SignalPath::Copy, partita_cuda_device::SignalPath::Mapped]
    {
        let fake = Fake::new();
        let mut world = fake.world_with(&Options { signals, ..fake.options() });
        world.load(1, &module_of(&["await_it", "store_it"])).unwrap();
        let start = DeviceAddress(world.base.0);
        world.device.allocate_signals(WINDOW, AddressRange { start, bytes: 4096 }).unwrap();
        let word = |index: u64| DeviceAddress(start.0 + index * 8);
        world.device.poke(word(0), &0_u64.to_le_bytes()).unwrap();
        let waits = world.launch(0, "await_it", [word(0).0, 5]);
        let behind =
            world.enqueue(1, Work::WaitValue { address: word(1), word: AwaitedWord::at_least(9) });
        let after = world.launch(1, "store_it", [word(2).0, 77]);
        world.until_logged("runs: await_it");
        assert!(!world.is_done(waits) && !world.is_done(behind) && !world.is_done(after));
        world.device.poke(word(0), &5_u64.to_le_bytes()).unwrap();
        world.finish(&[waits]);
        assert!(!world.is_done(after));
        let release = world.launch(2, "store_it", [word(1).0, 9]);
        world.finish(&[release, behind, after]);
        assert_eq!(world.peek(word(2)), 77);
        assert_eq!(fake.logged("blocked"), Vec::<String>::new(), "{signals:?}");
    }
}

/// A copy to the host would wait behind the programs' copies.
#[test]
fn words_that_kernels_write_are_read_without_a_call() {
    let fake = Fake::new();
    let signals = partita_cuda_device::SignalPath::Mapped;
    let mut world = fake.world_with(&Options { signals, ..fake.options() });
    world.load(1, &module_of(&["store_it"])).unwrap();
    let start = DeviceAddress(world.base.0);
    let made = world.device.allocate_words(WINDOW, AddressRange { start, bytes: 4096 });
    assert_eq!(made, Ok(true));
    let word = DeviceAddress(start.0 + 8);
    let stored = world.launch(0, "store_it", [word.0, 9]);
    world.finish(&[stored]);
    let calls = || {
        let names = ["cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2", "cuStreamSynchronize"];
        names.map(|name| fake.calls(name))
    };
    let before = calls();
    assert_eq!(world.peek(word), 9);
    world.device.poke(word, &4_u64.to_le_bytes()).unwrap();
    assert_eq!(world.peek(word), 4);
    assert_eq!(calls(), before);
}

#[test]
fn a_launch_sees_what_was_poked_before_it() {
    let fake = Fake::new();
    let mut world = fake.world();
    world.load(1, &module_of(&["await_it"])).unwrap();
    let word = world.allocate(0, 8);
    for round in 1..200 {
        world.device.poke(word, &round_bytes(round)).unwrap();
        let launched = world.launch(round % 7, "await_it", [word.0, round]);
        world.finish(&[launched]);
    }
    let waits = fake.calls("cuStreamWaitEvent");
    assert!(waits > 0, "launches are put behind pokes by events");
}

fn round_bytes(round: u64) -> [u8; 8] {
    round.to_le_bytes()
}

#[test]
fn streams_wait_for_operations_of_others() {
    let fake = Fake::new();
    let mut world = fake.world();
    world.load(1, &module_of(&["spin", "kernel"])).unwrap();
    let spins = world.launch(0, "spin", [0; 2]);
    let waits = world.enqueue(1, Work::Wait { on: spins });
    let after = world.launch(1, "kernel", [0; 2]);
    let unknown = world.enqueue(2, Work::Wait { on: OperationId(12_345) });
    let beside = world.launch(2, "kernel", [0; 2]);
    world.finish(&[unknown, beside]);
    assert!(!world.is_done(waits) && !world.is_done(after));
    fake.tell("release spin");
    world.finish(&[spins, waits, after]);
    let order: Vec<_> = world
        .done
        .iter()
        .map(|(id, ..)| *id)
        .filter(|id| [spins, waits, after].contains(id))
        .collect();
    assert_eq!(order, [spins, waits, after]);
}

#[test]
fn more_streams_than_the_gpu_has_share_it() {
    let fake = Fake::new();
    let mut world = fake.world();
    world.load(1, &module_of(&["spin", "kernel", "store_it"])).unwrap();
    let word = world.allocate(0, 4096);
    for stream in 10..200 {
        world.device.create_stream(StreamId(stream)).unwrap();
    }
    // All but a few lanes are taken by kernels, all other streams by waits for a value that a
    // stream behind them brings.
    let spins: Vec<_> = (0..20).map(|stream| world.launch(stream, "spin", [0; 2])).collect();
    let waits: Vec<_> = (20..150)
        .map(|stream| {
            world
                .enqueue(stream, Work::WaitValue { address: word, word: AwaitedWord::at_least(3) });
            world.launch(stream, "kernel", [0; 2])
        })
        .collect();
    let busy: Vec<_> = (0..300).map(|at| world.launch(150 + at % 40, "kernel", [0; 2])).collect();
    world.finish(&busy);
    assert!(waits.iter().all(|operation| !world.is_done(*operation)));
    let brings = world.launch(199, "store_it", [word.0, 3]);
    world.finish(&[brings]);
    world.finish(&waits);
    fake.tell("release spin");
    world.finish(&spins);
    assert_eq!(fake.calls("cuStreamCreateWithPriority"), 32);
    assert_eq!(world.poll(), Activity::Idle);
}

#[test]
fn what_is_not_on_the_gpu_can_be_cancelled() {
    let fake = Fake::new();
    let mut world = fake.world();
    world.load(1, &module_of(&["spin", "kernel"])).unwrap();
    let held = world.allocate(0, 8);
    for stream in 10..60 {
        world.device.create_stream(StreamId(stream)).unwrap();
    }
    let spins: Vec<_> = (0..30).map(|stream| world.launch(stream, "spin", [0; 2])).collect();
    let late = world.launch(40, "kernel", [0; 2]);
    let waits =
        world.enqueue(41, Work::WaitValue { address: held, word: AwaitedWord::at_least(1) });
    assert!(matches!(world.device.cancel(spins[0]), Err(DeviceError::Unsupported(_))));
    world.device.cancel(late).unwrap();
    world.device.cancel(waits).unwrap();
    world.finish(&[late, waits]);
    assert_eq!(
        (world.outcome(late), world.outcome(waits)),
        (&Outcome::Cancelled, &Outcome::Cancelled)
    );
    assert_eq!(fake.logged("cuLaunchKernel(kernel").len(), 0);
    fake.tell("release spin");
    world.finish(&spins);
    world.device.cancel(late).unwrap();
}

#[test]
fn refused_texts_and_broken_calls_say_why() {
    let fake = Fake::new();
    let mut world = fake.world();
    let text = module_of(&["kernel"]).replace("\tret;", "\t// refused_by_ptxas\n\tret;");
    let reason = world.load(1, &text).unwrap_err();
    assert!(reason.contains("line 7") && reason.contains("CUDA_ERROR_INVALID_PTX"), "{reason}");
    let reason = world.load(2, "no PTX at all").unwrap_err();
    assert!(!reason.is_empty());
    fake.tell("fail cuLibraryLoadData 2");
    let reason = world.load(3, &module_of(&["kernel"])).unwrap_err();
    assert!(reason.contains("CUDA_ERROR_OUT_OF_MEMORY"), "{reason}");
    world.load(1, &module_of(&["kernel"])).unwrap();
    fake.tell("fail cuLaunchKernel 701");
    let failed = world.launch(0, "kernel", [0; 2]);
    let next = world.launch(0, "kernel", [0; 2]);
    world.finish(&[failed, next]);
    let Outcome::Fault(fault) = world.outcome(failed) else {
        panic!("{:?}", world.outcome(failed))
    };
    assert_eq!(fault.kind, FaultKind::LaunchFailed);
    assert!(fault.detail.contains("701"), "{fault}");
    assert_eq!(*world.outcome(next), Outcome::Complete);
    assert_eq!(world.lost, None);
}

#[test]
fn texts_newer_than_the_driver_are_lowered_or_refused() {
    let fake = Fake::new();
    let mut world = fake.world();
    let text = module_of(&["kernel"]).replace(".version 7.0", ".version 8.8");
    world.load(1, &text).unwrap();
    let newer =
        ".version 8.8\n.target sm_100\n.address_size 64\n.visible .entry kernel()\n{\n\tret;\n}\n";
    let reason = world.load(2, newer).unwrap_err();
    assert!(reason.contains("8.4 at most") && reason.contains("sm_100"), "{reason}");
}

#[test]
fn machine_code_is_compiled_once() {
    let fake = Fake::new();
    let folder = tempfile::tempdir().unwrap();
    let options = Options { cache: Some(folder.path().into()), ..fake.options() };
    for _ in 0..2 {
        let mut world = fake.world_with(&options);
        world.load(1, &module_of(&["kernel"])).unwrap();
        let done = world.launch(0, "kernel", [0; 2]);
        world.finish(&[done]);
    }
    // The module's, and the device's own, which looks twice where SMs are.
    assert_eq!((fake.calls("cuLinkCreate_v2"), fake.calls("cuLibraryLoadData")), (2, 6));
    // Another driver's machine code is another.
    fake.tell("set driver 12080");
    fake.world_with(&options).load(1, &module_of(&["kernel"])).unwrap();
    assert_eq!(fake.calls("cuLinkCreate_v2"), 4);
}

#[test]
fn faults_end_the_device_and_name_the_guilty() {
    let fake = Fake::new();
    let mut world = fake.world();
    world.load(1, &module_of(&["fault_here", "kernel"])).unwrap();
    let bad = world.launch(0, "fault_here", [0; 2]);
    world.until(|world| world.lost.is_some());
    let Outcome::Fault(fault) = world.outcome(bad) else { panic!("{:?}", world.outcome(bad)) };
    assert_eq!((fault.kind, fault.kernel.as_str()), (FaultKind::IllegalAddress, "fault_here"));
    let reason = world.lost.clone().unwrap();
    assert!(
        reason.contains("CUDA_ERROR_ILLEGAL_ADDRESS") && reason.contains("fault_here"),
        "{reason}"
    );
    assert_eq!(world.poll(), Activity::Idle);
}

/// Variables lie in the window, hold what the text says, and are where the code looks.
#[test]
fn variables_lie_in_the_window() {
    let fake = Fake::new();
    let mut world = fake.world();
    let text = module_of(&["kernel"]).replace(
        ".address_size 64\n",
        ".address_size 64\n.visible .global .align 8 .b8 table[64] = {1, 2, 3};\n.visible .global \
         .u64 to_table = table;\n\
         .const .align 4 .u32 limits[2] = {5, 6};\n",
    );
    let facts = world.load(1, &text).unwrap();
    let found: Vec<_> = facts.variables.iter().map(|v| (v.name.as_str(), v.size.0)).collect();
    assert_eq!(found, [("limits", 8), ("table", 64), ("to_table", 8)]);
    let window = AddressRange { start: world.base, bytes: 64 << 20 };
    let [limits, table, to_table] = [0, 1, 2].map(|at: usize| facts.variables[at].address);
    assert!(
        facts.variables.iter().all(|variable| window.contains(variable.address, variable.size.0))
    );
    assert_eq!((world.peek(table), world.peek(to_table)), (0x03_02_01, table.0));
    assert_eq!(world.peek(limits), 0x6_0000_0005);
    // The driver's own: addresses of the blocks, and the constants.
    let own = |name: &str| fake.variable(name);
    let limits_of_code =
        || u64::from_le_bytes(fake.memory(own("pw_constants"), 8).try_into().unwrap());
    assert_eq!(fake.memory(own("pw_header"), 8), limits.0.to_le_bytes());
    assert_eq!(limits_of_code(), 0x6_0000_0005);
    // What programs write to constants, kernels read where the driver has them.
    world.device.poke(DeviceAddress(limits.0 + 4), &7_u32.to_le_bytes()).unwrap();
    world.peek(limits);
    assert_eq!(limits_of_code(), 0x7_0000_0005);
    let (_, from) = buffer(vec![9, 0, 0, 0]);
    let copy = world.enqueue(0, Work::CopyToDevice { to: limits, from });
    let fill = world
        .enqueue(0, Work::Fill { to: DeviceAddress(limits.0 + 5), value: 1, width: 1, count: 1 });
    world.finish(&[copy, fill]);
    assert_eq!(limits_of_code(), 0x107_0000_0009);
    // Another instance has its own; the first one's place is used again when it has gone.
    let second = world.load(2, &text).unwrap();
    assert_ne!(second.variables[1].address, table);
    world.device.unload_module(ModuleId(2)).unwrap();
    let third = world.load(3, &text).unwrap();
    assert_eq!(third.variables, second.variables);
    assert_eq!(world.peek(third.variables[0].address), 0x6_0000_0005);
}

/// An address that a fence has forced into the cell is one that the GPU can reach, also where there
/// is no memory of the program's.
#[test]
fn margins_are_mapped() {
    const GIB: u64 = 1 << 30;
    let fake = Fake::new();
    let world = fake.world();
    assert_eq!(
        world.device.guards(),
        Guards { cell_bits: Some(38), ends: true, prints: true, contains: false }
    );
    let cell = world.base.0 - 64 * GIB;
    for at in [0, 64 * GIB - 8, 192 * GIB, 256 * GIB - 8] {
        assert_eq!(fake.memory(cell + at, 8), [0; 8]);
    }
    // One piece of memory for all of it.
    assert_eq!(fake.calls("cuMemCreate"), 1);
    let open = Options { guards: partita_cuda_device::Guarding::Off, ..fake.options() };
    assert_eq!(
        CudaDevice::open(&open).unwrap().guards(),
        Guards { prints: true, ..Guards::default() }
    );
}

/// A window's margins alone are thousands of mappings, and each call may wait for the device.
#[test]
fn a_window_is_unmapped_in_a_few_calls() {
    for is_refused in [false, true] {
        let fake = Fake::new();
        let mut world = fake.world();
        world.allocate(0, 2 << 20);
        world.allocate(6 << 20, 2 << 20);
        let mapped = fake.calls("cuMemMap");
        assert!(mapped > 1000, "{mapped}");
        if is_refused {
            fake.tell("fail cuMemUnmap 1");
        }
        let freed = fake.calls("cuMemAddressFree");
        world.device.release(WINDOW).unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        while fake.calls("cuMemAddressFree") == freed {
            world.poll();
            assert!(Instant::now() < end, "the addresses stay reserved");
        }
        let unmapped = fake.calls("cuMemUnmap");
        // Where the driver refuses many at once, they go one by one.
        let fits = if is_refused { unmapped > 1000 } else { unmapped < 10 };
        assert!(fits, "{unmapped} calls for {mapped} mappings");
    }
}

/// What moves to other addresses keeps its contents, and whatever comes later finds them there.
#[test]
fn allocations_move_with_their_contents() {
    let fake = Fake::new();
    let mut world = fake.world();
    world.load(1, &module_of(&["store_it"])).unwrap();
    let (home, beside) = (world.allocate(512, 4096), world.allocate(8192, 64));
    let to = DeviceAddress(world.base.0 + (20 << 20));
    let wrote =
        [world.launch(0, "store_it", [home.0 + 8, 5]), world.launch(0, "store_it", [beside.0, 6])];
    world.finish(&wrote);
    world.device.relocate(home, to).unwrap();
    assert_eq!((world.peek(DeviceAddress(to.0 + 8)), world.peek(beside)), (5, 6));
    assert!(matches!(world.device.relocate(home, to), Err(DeviceError::BadRange { .. })));
    assert!(matches!(world.device.relocate(to, beside), Err(DeviceError::BadRange { .. })));
    let (back, span) = buffer(vec![0; 8]);
    let copied = world.enqueue(1, Work::CopyToHost { to: span, from: DeviceAddress(to.0 + 8) });
    world.finish(&[copied]);
    assert_eq!(*back.0.lock().unwrap(), 5_u64.to_le_bytes());
    world.device.relocate(to, home).unwrap();
    assert_eq!(world.peek(DeviceAddress(home.0 + 8)), 5);
    world.device.free(home).unwrap();
}

/// Memory that cannot be zeroed is nobody's, and another allocation there begins anew.
#[test]
fn memory_that_cannot_be_zeroed_is_refused() {
    let fake = Fake::new();
    let mut world = fake.world();
    fake.tell("clear");
    fake.tell("fail cuMemcpyHtoDAsync_v2 999");
    let range = AddressRange { start: world.base, bytes: 4096 };
    let refused = world.device.allocate(WINDOW, range);
    assert!(matches!(&refused,
            Err(DeviceError::Unsupported(what)) if what.contains("cuMemcpyHtoDAsync_v2")));
    assert_eq!((fake.calls("cuMemMap"), fake.calls("cuMemUnmap")), (1, 1));
    world.device.allocate(WINDOW, range).unwrap();
    assert_eq!((fake.calls("cuMemMap"), world.peek(world.base)), (2, 0));
}

/// A call that fails for want of memory is made again; nothing is lost by it.
#[test]
fn work_is_submitted_again_where_the_driver_had_no_memory() {
    let fake = Fake::new();
    let mut world = fake.world();
    let start = world.allocate(0, 4096);
    world.peek(start);
    fake.tell("fail cuEventCreate 2 5");
    let copies: Vec<_> = (0..200_u64)
        .map(|at| {
            let (_, from) = buffer(at.to_le_bytes().to_vec());
            world.enqueue(at % 10, Work::CopyToDevice { to: DeviceAddress(start.0 + at * 8), from })
        })
        .collect();
    world.finish(&copies);
    assert_eq!(world.peek(DeviceAddress(start.0 + 199 * 8)), 199);
    assert!(world.lost.is_none() && fake.logged("cuEventCreate fails").len() == 5);
    // An end that nobody could see is another matter.
    fake.tell("fail cuEventRecord 2");
    world.enqueue(0, Work::Fill { to: start, value: 0, width: 1, count: 8 });
    world.until(|world| world.lost.is_some());
}

/// The driver copies nothing that overlaps, and the contract does.
#[test]
fn copies_may_overlap() {
    let fake = Fake::new();
    let mut world = fake.world();
    let bytes: Vec<u8> = (0..3_000_000_u32).flat_map(|at| at.to_le_bytes()).collect();
    let length = bytes.len() as u64;
    let start = world.allocate(0, length + 8192);
    let fill = |world: &mut fake::World<'_>, to| {
        let (_, from) = buffer(bytes.clone());
        let copied = world.enqueue(0, Work::CopyToDevice { to, from });
        world.finish(&[copied]);
    };
    let high = DeviceAddress(start.0 + 4100);
    for (to, from) in [(high, start), (start, high), (start, start)] {
        fill(&mut world, from);
        let moved = world.enqueue(0, Work::CopyOnDevice { to, from, bytes: length });
        let (found, span) = buffer(vec![0; bytes.len()]);
        let back = world.enqueue(0, Work::CopyToHost { to: span, from: to });
        world.finish(&[moved, back]);
        assert_eq!(*world.outcome(moved), Outcome::Complete);
        assert!(*found.0.lock().unwrap() == bytes, "{to} {from}");
    }
    assert_eq!(fake.calls("cuMemcpyDtoDAsync_v2"), 0);
}
