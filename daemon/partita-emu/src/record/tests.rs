use super::*;
use crate::{EmulatedGpu, Options, Spec};
use partita_device::{AddressRange, Device, Event, GridSpec, Horizon, HostMemory, HostSpan, Work};
use replay::{Comparison, replay};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A file for one test, deleted at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        Scratch(std::env::temp_dir().join(format!("partita-record-{name}-{}", std::process::id())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.0));
    }
}

fn recorder(path: &Path, options: Options) -> Recorder {
    Recorder::new(EmulatedGpu::new(Spec::named("cd-search-24").unwrap(), options), path).unwrap()
}

#[test]
fn what_was_asked_is_read_back() {
    let file = Scratch::new("asked");
    let mut recorder = recorder(&file.0, Options::default());
    let window = WindowId(7);
    let base = recorder.reserve(window, 1 << 21).unwrap();
    recorder.allocate(window, AddressRange { start: base, bytes: 64 }).unwrap();
    recorder.poke(base, b"\n{\0").unwrap();
    recorder.create_stream(StreamId(0)).unwrap();
    let fill = Work::Fill { to: base, value: 3, width: 4, count: 2 };
    recorder.enqueue(StreamId(0), OperationId(1), fill).unwrap();
    assert!(recorder.free(DeviceAddress(base.0 + 1)).is_err(), "what is refused is not recorded");
    recorder.free(base).unwrap();
    assert!(matches!(entries(&file.0), Err(RecordingError::Unfinished)));
    drop(recorder);
    let expected = [
        Entry::Reserve { window, bytes: 1 << 21, base },
        Entry::Allocate { window, start: base, bytes: 64 },
        Entry::Write { to: base, bytes: b"\n{\0".to_vec() },
        Entry::Fill { to: base, value: 3, width: 4, count: 2 },
        Entry::Free { start: base },
    ];
    assert_eq!(entries(&file.0).unwrap(), expected);
    let whole = std::fs::read(&file.0).unwrap();
    let end = b"{\"step\":{\"end\"";
    let end = whole.windows(end.len()).rposition(|part| part == end).expect("it has an end");
    for (kept, words) in [
        (end, &["has no end behind step 7 at byte ", "record again"][..]),
        (whole.len() - 1, &["cut off: step 8 at byte "]),
        (end - 2, &["cut off: step 7 at byte "]),
    ] {
        std::fs::write(&file.0, &whole[..kept]).unwrap();
        let error = entries(&file.0).unwrap_err().to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{kept}: {error}");
    }
}

#[test]
fn a_file_has_one_recorder() {
    let file = Scratch::new("one");
    let first = recorder(&file.0, Options::default());
    let begun = std::fs::read(&file.0).unwrap();
    let gpu = || EmulatedGpu::new(Spec::named("cd-search-24").unwrap(), Options::default());
    let error = Recorder::new(gpu(), &file.0).err().expect("the file is taken").to_string();
    assert!(error.contains("another device records") && error.contains("record="), "{error}");
    assert_eq!(std::fs::read(&file.0).unwrap(), begun, "nothing of the first is lost");
    // One that is about to end is waited for.
    let ending = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        drop(first);
    });
    drop(Recorder::new(gpu(), &file.0).expect("the first ends in time"));
    ending.join().unwrap();
    let whole = std::fs::read(&file.0).unwrap();
    drop(Recorder::new(gpu(), &file.0).unwrap());
    assert_eq!(std::fs::read(&file.0).unwrap(), whole, "the file was emptied before");
}

/// Host memory that its program may change at any time.
struct Page(Mutex<Vec<u8>>);

impl HostMemory for Page {
    fn size(&self) -> u64 {
        self.0.lock().unwrap().len() as u64
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        let start = offset as usize;
        into.copy_from_slice(&self.0.lock().unwrap()[start..start + into.len()]);
    }

    fn write(&self, offset: u64, from: &[u8]) {
        let start = offset as usize;
        self.0.lock().unwrap()[start..start + from.len()].copy_from_slice(from);
    }
}

/// Adds 1 to each word as often as the buffer's first word says, and counts the threads in the
/// second word.
const KERNEL: &str = "
.version 8.0
.target sm_80
.address_size 64
.visible .entry grow(.param .u64 at) {
    .reg .pred %p; .reg .b32 %r<9>; .reg .b64 %d<5>;
    ld.param.u64 %d0, [at];
    mov.u32 %r0, %ctaid.x; mov.u32 %r1, %ntid.x; mov.u32 %r2, %tid.x;
    mad.lo.u32 %r0, %r0, %r1, %r2;
    mad.wide.u32 %d1, %r0, 4, %d0;
    ld.volatile.global.u32 %r3, [%d0];
    ld.global.u32 %r4, [%d1+8];
$L: add.u32 %r4, %r4, 1;
    sub.u32 %r3, %r3, 1;
    setp.ne.u32 %p, %r3, 0;
    @%p bra $L;
    st.global.u32 [%d1+8], %r4;
    atom.global.add.u32 %r5, [%d0+4], 1;
    ret;
}";

/// Two streams with copies, grids and signals. Time advances by budget and by horizon, and host
/// memory changes under a copy.
fn play(device: &mut dyn Device) {
    let (window, module) = (WindowId(1), ModuleId(1));
    let base = device.reserve(window, 1 << 21).unwrap();
    let range = AddressRange { start: base, bytes: 1 << 16 };
    device.allocate(window, range).unwrap();
    device.load_module(module, window, KERNEL.into()).unwrap();
    device.residency_trace().unwrap().trace_residency(true).unwrap();
    let page = Arc::new(Page(Mutex::new(vec![7; 1 << 15])));
    let span = |bytes| HostSpan::new(Arc::clone(&page) as Arc<dyn HostMemory>, 0, bytes).unwrap();
    let mut events = Vec::new();
    for stream in 0..2 {
        device.create_stream(StreamId(stream)).unwrap();
    }
    device
        .enqueue(StreamId(0), OperationId(1), Work::CopyToDevice { to: base, from: span(1 << 15) })
        .unwrap();
    page.0.lock().unwrap()[..8].copy_from_slice(&[40, 0, 0, 0, 0, 0, 0, 0]);
    for operation in 2..12 {
        let launch = GridSpec {
            cooperative: false,
            cluster: Dim3::linear(1),
            module,
            kernel: "grow".into(),
            grid: Dim3::linear(20),
            block: Dim3::linear(128),
            dynamic_shared: 0,
            params: base.0.to_le_bytes().to_vec(),
            access: vec![range],
        };
        device
            .enqueue(StreamId(operation % 2), OperationId(operation), Work::Launch(launch))
            .unwrap();
        let until = (operation % 3 == 0).then(|| Nanos(device.now().0 + 700));
        device.poll(Horizon { until, warp_instructions: 100 + 90 * operation }, &mut events);
        device.poke(base, &(operation as u32 + 30).to_le_bytes()).unwrap();
        device.poll(Horizon { until: Some(device.now()), warp_instructions: 1 }, &mut events);
    }
    device.enqueue(StreamId(1), OperationId(20), Work::Wait { on: OperationId(10) }).unwrap();
    device
        .enqueue(StreamId(1), OperationId(21), Work::CopyToHost { to: span(1 << 15), from: base })
        .unwrap();
    let done = |events: &[Event]| {
        events.iter().filter(|event| matches!(event, Event::Done { .. })).count()
    };
    while done(&events) < 13 {
        device.poll(Horizon { until: None, warp_instructions: 5000 }, &mut events);
    }
    device.release(window).unwrap();
}

fn recorded(name: &str, options: Options) -> Scratch {
    let file = Scratch::new(name);
    play(&mut recorder(&file.0, options));
    file
}

#[test]
fn a_replay_gives_the_same_to_the_bit() {
    let weak = Options { memory: crate::MemoryOrder::Weak, seed: 9, ..Options::default() };
    let untimed = Options { timing: crate::Timing::Off, ..Options::default() };
    for (name, options) in [("timed", Options::default()), ("weak", weak), ("untimed", untimed)] {
        let file = recorded(name, options);
        let found = replay(&file.0).unwrap();
        let Comparison { launches, completions, memories, complete, different, .. } = found;
        assert_eq!(different, 0, "{name}: {:#?}", found.differences);
        assert_eq!((launches, completions, memories, complete), (10, 13, 2, true), "{name}");
        assert!(found.events > 400, "{name}: the coming and going of 200 CTAs");
    }
}

/// Replays a recording after a replacement in its text.
fn changed(file: &Scratch, from: &str, to: &str) -> Result<Comparison, RecordingError> {
    let bytes = std::fs::read(&file.0).unwrap();
    let at =
        bytes.windows(from.len()).position(|part| part == from.as_bytes()).expect("it is there");
    let changed = [&bytes[..at], to.as_bytes(), &bytes[at + from.len()..]].concat();
    let path = file.0.with_extension("changed");
    std::fs::write(&path, changed).unwrap();
    let found = replay(&path);
    std::fs::remove_file(path).unwrap();
    found
}

#[test]
fn what_is_different_is_told() {
    let file = recorded("different", Options::default());
    let check = |from: &str, to: &str, told: &str| {
        let found = changed(&file, from, to).unwrap();
        assert!(found.different > 0, "{from} to {to}");
        assert!(
            found.differences.iter().any(|line| line.contains(told)),
            "{told}: {:#?}",
            found.differences
        );
    };
    check("launch_nanoseconds = ", "launch_nanoseconds = 1", "came as far as");
    check(
        "add.u32 %r4, %r4, 1;",
        "add.u32 %r4, %r4, 2;",
        "the memory of window 1 holds something else",
    );
    check("add.u32 %r4, %r4, 1;", "add.u32 %r4, %r4, 2;", "copied");
    check("\"warp_instructions\":", "\"warp_instructions\":1", "and it was Done");
}

#[test]
fn what_is_no_whole_recording_is_refused() {
    let file = recorded("damaged", Options::default());
    let check = |result: Result<Comparison, RecordingError>, words: &[&str]| {
        let error = result.unwrap_err().to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    };
    check(
        changed(&file, "\"partita_recording\":2", "\"partita_recording\":1"),
        &["format 1", "record again"],
    );
    check(
        changed(&file, "\"partita_recording\"", "\"something\""),
        &["no recording", "record=FILE"],
    );
    check(
        changed(&file, "\"create_stream\"", "\"create_river\""),
        &["damaged", "step ", "create_river"],
    );
    check(changed(&file, "sms = 24", "sms = 0"), &["specification", "sms must be at least 1"]);
    let bytes = std::fs::read(&file.0).unwrap();
    for kept in [bytes.len() - 1, bytes.len() / 2] {
        std::fs::write(&file.0, &bytes[..kept]).unwrap();
        check(replay(&file.0), &["cut off", "step "]);
    }
    std::fs::write(&file.0, b"").unwrap();
    check(replay(&file.0), &["no recording"]);
    check(replay(Path::new("/nothing/at/all")), &["No such file"]);
}
