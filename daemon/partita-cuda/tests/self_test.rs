//! The self-test finds out a driver's habits, and the device follows them
//! (`tests/emulated-driver`).

#![expect(unsafe_code, reason = "the driver is a C library")]
#![expect(clippy::unwrap_used, reason = "only tests use it")]

use partita_cuda_device::self_test::{Check, Finding, Told, run};
use partita_cuda_device::{CudaDevice, Options, Tester};
use partita_device::{
    AddressRange, Device, DeviceError, Event, GridSpec, Horizon, Outcome, Phase, Textures, Work,
};
use partita_model::texture::{ArrayKind, ArrayShape, ChannelType, TexelFormat};
use partita_model::{DeviceAddress, Dim3, ModuleId, OperationId, StreamId, WindowId};
use std::ffi::{CString, c_char, c_int};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use partita_emulated_driver as _;

const PATIENCE: Duration = Duration::from_secs(60);

/// What a driver must not do where nothing is to wait.
const PROMPT: &str = "timing=off,lazy-loading=off,context-lock=off,unmap-waits=off,\
                      local-resize=off,channels=off";

/// `await` waits for a word to become 1.
const PTX: &str = "
.version 7.0
.target sm_75
.address_size 64
.visible .entry await(.param .u64 at)
{
	.reg .pred %more;
	.reg .b64 %at, %found;
	ld.param.u64 %at, [at];
$AGAIN:
	ld.volatile.global.u64 %found, [%at];
	setp.ne.u64 %more, %found, 1;
	@%more bra $AGAIN;
	ret;
}
";

/// A driver of its own, with these switches.
struct Library {
    path: PathBuf,
    _library: libloading::Library,
    folder: tempfile::TempDir,
}

impl Library {
    fn new(switches: &str) -> Library {
        let folder = tempfile::tempdir().unwrap();
        let built = std::env::current_exe().unwrap();
        let built = built.parent().unwrap().join("libpartita_emulated_driver.so");
        let path = folder.path().join("libcuda.so.1");
        std::fs::copy(&built, &path).unwrap_or_else(|error| panic!("{}: {error}", built.display()));
        // SAFETY: our own library, without constructors.
        let library = unsafe { libloading::Library::new(&path) }.unwrap();
        let choose: libloading::Symbol<'_, unsafe extern "C" fn(*const c_char) -> c_int> =
            // SAFETY: the library's own function.
            unsafe { library.get("emulated_driver_switches") }.unwrap();
        let switches = CString::new(switches).unwrap();
        // SAFETY: a string.
        assert_eq!(unsafe { choose(switches.as_ptr()) }, 0);
        Library { path, _library: library, folder }
    }

    fn options(&self) -> Options {
        Options {
            library: Some(self.path.clone()),
            nvml: Some(self.path.clone()),
            ..Options::default()
        }
    }

    fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut tell = |told| match told {
            Told::Found(finding) => findings.push(finding),
            Told::Begins(_) => {}
        };
        run(&self.options(), &Check::ALL, &mut tell).unwrap();
        findings
    }

    /// A device that has been told what the self-test finds.
    fn device(&self) -> CudaDevice {
        let found = self.folder.path().join("found");
        let lines = self.findings().into_iter().map(|finding| {
            assert_eq!(finding.obstacle, None, "{finding:?}");
            serde_json::to_string(&Told::Found(finding)).unwrap() + "\n"
        });
        std::fs::write(&found, lines.collect::<String>()).unwrap();
        let script = format!("cat {}", found.display());
        let arguments = vec!["-c".to_owned(), script];
        let tester = Some(Tester { program: "/bin/sh".into(), arguments });
        CudaDevice::open(&Options { tester, ..self.options() }).unwrap()
    }
}

fn holding(findings: &[Finding]) -> Vec<Check> {
    findings.iter().filter(|finding| finding.holds).map(|finding| finding.check).collect()
}

#[test]
fn each_habit_of_the_driver_is_found() {
    let usual = Library::new("timing=off,lazy-loading=off").findings();
    assert_eq!(holding(&usual), [Check::Copies, Check::Mapped], "{usual:?}");
    let apart = |findings: &[Finding]| findings[2].apart;
    assert_eq!((usual[2].check, apart(&usual)), (Check::Streams, Some(32)));
    assert!(usual[0].micros.is_some_and(|micros| micros > 0.0));

    let prompt = Library::new(PROMPT).findings();
    assert_eq!(holding(&prompt), Check::ALL, "{prompt:?}");
    assert_eq!(apart(&prompt), None);

    for (switch, wanted) in [
        ("unmap-waits=on", &[Check::Unmapping, Check::Arrays][..]),
        ("local-resize=on", &[Check::LocalMemory]),
        ("channels=on", &[Check::Streams]),
        ("context-lock=on", &[Check::Loading, Check::Locking, Check::GreenContexts]),
    ] {
        let found = Library::new(&format!("{PROMPT},{switch}")).findings();
        let failing = found.iter().filter(|finding| !finding.holds).map(|finding| finding.check);
        assert_eq!(failing.collect::<Vec<_>>(), wanted, "{switch}: {found:?}");
    }
}

/// Polls until something has come.
fn until<T>(device: &mut CudaDevice, mut wanted: impl FnMut(&Event) -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        let mut events = Vec::new();
        device.poll(Horizon { until: None, warp_instructions: 0 }, &mut events);
        if let Some(found) = events.iter().find_map(&mut wanted) {
            return found;
        }
        assert!(Instant::now() < end, "it never came");
    }
}

fn loaded(module: ModuleId) -> impl FnMut(&Event) -> Option<()> {
    move |event| match event {
        Event::ModuleLoaded { module: this, .. } => (*this == module).then_some(()),
        Event::ModuleRefused { reason, .. } => panic!("{reason}"),
        _ => None,
    }
}

#[test]
fn code_is_loaded_beside_kernels_where_nothing_waits() {
    let library = Library::new(PROMPT);
    let mut device = library.device();
    assert_eq!(device.limits(), [] as [String; 0]);
    assert!(!device.loading_waits_for_grids());
    let window = WindowId(1);
    let base = device.reserve(window, 64 << 20).unwrap();
    device.create_stream(StreamId(1)).unwrap();
    device.allocate(window, AddressRange { start: base, bytes: 4096 }).unwrap();
    let word = DeviceAddress(base.0);
    device.poke(word, &[0; 8]).unwrap();
    let first = ModuleId(1);
    device.load_module(first, window, PTX.into()).unwrap();
    until(&mut device, loaded(first));
    let waiting = OperationId(1);
    let launch = Work::Launch(GridSpec {
        cooperative: false,
        cluster: Dim3::linear(1),
        module: first,
        kernel: "await".into(),
        grid: Dim3::linear(1),
        block: Dim3::linear(1),
        dynamic_shared: 0,
        params: word.0.to_le_bytes().to_vec(),
        access: Vec::new(),
    });
    device.enqueue(StreamId(1), waiting, launch).unwrap();
    // A second module comes and goes, and the kernel still waits.
    let second = ModuleId(2);
    device.load_module(second, window, PTX.into()).unwrap();
    let mut has_ended = false;
    let mut is_loaded = loaded(second);
    until(&mut device, |event| {
        has_ended |= matches!(event, Event::Done { .. });
        is_loaded(event)
    });
    assert!(!has_ended && device.phase() == Phase::Open);
    device.unload_module(second).unwrap();
    // So does an array whose memory is the driver's.
    let format = TexelFormat::new(ChannelType::U8, 4).unwrap();
    let shape = ArrayShape::new(ArrayKind::Line, format, [64, 1, 1], 1).unwrap();
    while device.create_array(window, &shape) == Err(DeviceError::Busy) {
        until(&mut device, |event| matches!(event, Event::Reopened).then_some(()));
    }
    device.poke(word, &1_u64.to_le_bytes()).unwrap();
    let outcome = until(&mut device, |event| match event {
        Event::Done { operation, outcome, .. } if *operation == waiting => Some(outcome.clone()),
        _ => None,
    });
    assert_eq!(outcome, Outcome::Complete);
}

#[test]
fn a_device_with_habits_names_its_limits() {
    let device = Library::new("timing=off,lazy-loading=off").device();
    let limits = device.limits().join("\n");
    for words in ["after the 32 first", "loading code", "page-locking", "green contexts"] {
        assert!(limits.contains(words), "{limits}");
    }
    assert!(device.loading_waits_for_grids());
}
