//! A stand-in for the driver, with a GPU of its own for each test, and the device on it.

#![expect(unsafe_code, reason = "the stand-in is a C library")]
#![expect(clippy::unwrap_used, reason = "only tests use it")]

use partita_cuda_device::{CudaDevice, OpenError, Options};
use partita_device::{
    Activity, Confinement, Confining, Device, Event, GridSpec, Horizon, HostMemory, HostSpan,
    MachineCode, ModuleFacts, Outcome, Work,
};
use partita_model::{DeviceAddress, Dim3, ModuleId, Nanos, OperationId, SmSet, StreamId, WindowId};
use std::ffi::{CString, c_char, c_int};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tempfile::TempDir;

use partita_fake_gpu as _;

/// Far above what anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// The right to have a stand-in, which one test has at a time. The device releases a window's
/// addresses and reserves them again in parts; the stand-in of another test would take them.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The stand-in, loaded from a file of its own. A process has one at a time.
pub struct Fake {
    library: libloading::Library,
    folder: TempDir,
    _turn: MutexGuard<'static, ()>,
}

#[allow(dead_code, reason = "each test uses some of it")]
impl Fake {
    pub fn new() -> Fake {
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = tempfile::tempdir().unwrap();
        let built =
            std::env::current_exe().unwrap().parent().unwrap().join("libpartita_fake_gpu.so");
        let path = folder.path().join("libcuda.so.1");
        std::fs::copy(&built, &path).unwrap_or_else(|error| panic!("{}: {error}", built.display()));
        // SAFETY: our own library, without constructors.
        let library = unsafe { libloading::Library::new(&path) }.unwrap();
        Fake { library, folder, _turn: turn }
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().join("libcuda.so.1")
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn tell(&self, command: &str) {
        let text = CString::new(command).unwrap();
        // SAFETY: the library's own function.
        let control: libloading::Symbol<'_, unsafe extern "C" fn(*const c_char) -> c_int> =
            unsafe { self.library.get("fake_gpu_control") }.unwrap();
        // SAFETY: a string.
        assert_eq!(unsafe { control(text.as_ptr()) }, 0, "{command}");
    }

    pub fn log(&self) -> Vec<String> {
        // SAFETY: the library's own function.
        let log: libloading::Symbol<'_, unsafe extern "C" fn(*mut u8, usize) -> usize> =
            unsafe { self.library.get("fake_gpu_log") }.unwrap();
        // SAFETY: room for no byte; the length is the answer.
        let length = unsafe { log(std::ptr::null_mut(), 0) };
        let mut bytes = vec![0; length];
        // SAFETY: room for so many bytes; lines that have come meanwhile do not fit.
        unsafe { log(bytes.as_mut_ptr(), bytes.len()) };
        String::from_utf8(bytes).unwrap().lines().map(str::to_owned).collect()
    }

    /// Where the driver has put a variable of the module that was loaded last.
    pub fn variable(&self, name: &str) -> u64 {
        let name = CString::new(name).unwrap();
        // SAFETY: the library's own function.
        let find: libloading::Symbol<'_, unsafe extern "C" fn(*const c_char) -> u64> =
            unsafe { self.library.get("fake_gpu_variable") }.unwrap();
        // SAFETY: a string.
        unsafe { find(name.as_ptr()) }
    }

    /// What is in device memory.
    pub fn memory(&self, address: u64, bytes: usize) -> Vec<u8> {
        let mut into = vec![0; bytes];
        // SAFETY: the library's own function.
        let read: libloading::Symbol<'_, unsafe extern "C" fn(u64, *mut u8, usize) -> c_int> =
            unsafe { self.library.get("fake_gpu_read") }.unwrap();
        // SAFETY: `into` has room for `bytes` bytes.
        let status = unsafe { read(address, into.as_mut_ptr(), bytes) };
        assert_eq!(status, 0, "{address:#x} is not mapped");
        into
    }

    /// The lines that begin so.
    pub fn logged(&self, start: &str) -> Vec<String> {
        self.log().into_iter().filter(|line| line.starts_with(start)).collect()
    }

    /// How often a function was called.
    pub fn calls(&self, function: &str) -> usize {
        self.logged(&format!("{function}(")).len()
    }

    pub fn options(&self) -> Options {
        Options { library: Some(self.path()), ..Options::default() }
    }

    pub fn open(&self) -> Result<CudaDevice, OpenError> {
        CudaDevice::open(&self.options())
    }

    /// An open device with a window and streams 0 to 9.
    pub fn world(&self) -> World<'_> {
        self.world_with(&self.options())
    }

    pub fn world_with(&self, options: &Options) -> World<'_> {
        let mut device = CudaDevice::open(options).unwrap();
        let base = device.reserve(WINDOW, 64 << 20).unwrap();
        for stream in 0..10 {
            device.create_stream(StreamId(stream)).unwrap();
        }
        World {
            fake: self,
            device,
            base,
            next: 0,
            done: Vec::new(),
            lost: None,
            modules: Vec::new(),
            confined: Vec::new(),
        }
    }
}

pub const WINDOW: WindowId = WindowId(1);

/// A device at work.
pub struct World<'a> {
    pub fake: &'a Fake,
    pub device: CudaDevice,
    pub base: DeviceAddress,
    next: u64,
    pub done: Vec<(OperationId, Outcome, Nanos)>,
    pub lost: Option<String>,
    pub modules: Vec<(ModuleId, Result<ModuleFacts, String>)>,
    pub confined: Vec<(SmSet, Result<(), String>)>,
}

/// Machine code of `ptxas`, with kernels `plain`, `spin`, `await_it`, `store_it` and `fault_it` of
/// two parameters of 8 bytes.
#[allow(dead_code, reason = "each test uses some of it")]
pub const CUBIN: &[u8] = include_bytes!("kernels.cubin");

#[allow(dead_code, reason = "each test uses some of it")]
/// Kernels of these names, with two parameters of 8 bytes each.
pub fn module_of(names: &[&str]) -> Arc<str> {
    let mut text = String::from(".version 7.0\n.target sm_75\n.address_size 64\n");
    for name in names {
        text += &format!(".visible .entry {name}(.param .u64 a, .param .u64 b)\n{{\n\tret;\n}}\n");
    }
    text.into()
}

#[allow(dead_code, reason = "each test uses some of it")]
impl World<'_> {
    /// Memory at `offset` of the window.
    pub fn allocate(&mut self, offset: u64, bytes: u64) -> DeviceAddress {
        let start = DeviceAddress(self.base.0 + offset);
        self.device.allocate(WINDOW, partita_device::AddressRange { start, bytes }).unwrap();
        start
    }

    pub fn load(&mut self, module: u64, text: &str) -> Result<ModuleFacts, String> {
        let module = ModuleId(module);
        self.device.load_module(module, WINDOW, text.into()).unwrap();
        self.until(|world| world.modules.iter().any(|(id, _)| *id == module));
        let at = self.modules.iter().position(|(id, _)| *id == module).unwrap();
        self.modules.remove(at).1
    }

    /// As [`World::load`], from machine code.
    pub fn load_code(&mut self, module: u64, image: &[u8]) -> Result<ModuleFacts, String> {
        let module = ModuleId(module);
        self.device.load_code(module, WINDOW, image.into()).unwrap();
        self.until(|world| world.modules.iter().any(|(id, _)| *id == module));
        let at = self.modules.iter().position(|(id, _)| *id == module).unwrap();
        self.modules.remove(at).1
    }

    /// Until the device can keep grids to these SMs.
    pub fn confine(&mut self, sms: SmSet) -> Result<(), String> {
        match self.device.confine(sms).map_err(|error| error.to_string())? {
            Confinement::Ready => return Ok(()),
            Confinement::Pending => {}
        }
        self.until(|world| world.confined.iter().any(|(of, _)| *of == sms));
        let at = self.confined.iter().position(|(of, _)| *of == sms).unwrap();
        self.confined.remove(at).1
    }

    pub fn launch_on(
        &mut self,
        stream: u64,
        kernel: &str,
        params: [u64; 2],
        sms: SmSet,
    ) -> OperationId {
        self.enqueue(stream, Work::LaunchOn { launch: launch(kernel, params), sms })
    }

    pub fn enqueue(&mut self, stream: u64, work: Work) -> OperationId {
        self.next += 1;
        let operation = OperationId(self.next);
        self.device.enqueue(StreamId(stream), operation, work).unwrap();
        operation
    }

    pub fn launch(&mut self, stream: u64, kernel: &str, params: [u64; 2]) -> OperationId {
        self.enqueue(stream, Work::Launch(launch(kernel, params)))
    }

    /// Lets the device go on until then.
    pub fn until(&mut self, mut reached: impl FnMut(&Self) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !reached(self) {
            assert!(Instant::now() < end, "it never came; the log ends: {:#?}", self.tail());
            if self.poll() == Activity::Idle {
                assert!(reached(self), "idle, and it has not come: {:#?}", self.tail());
            }
        }
    }

    fn tail(&self) -> Vec<String> {
        let log = self.fake.log();
        log[log.len().saturating_sub(20)..].to_vec()
    }

    pub fn poll(&mut self) -> Activity {
        let mut events = Vec::new();
        let activity = self.device.poll(Horizon { until: None, warp_instructions: 0 }, &mut events);
        for event in events {
            match event {
                Event::Done { operation, time, outcome } => {
                    self.done.push((operation, outcome, time))
                }
                Event::ModuleLoaded { module, facts } => self.modules.push((module, Ok(facts))),
                Event::ModuleRefused { module, reason } => self.modules.push((module, Err(reason))),
                Event::Confined { sms, result } => self.confined.push((sms, result)),
                Event::Lost { reason } => self.lost = Some(reason),
                Event::Reopened => {}
                Event::Residency(_) | Event::Notice { .. } | Event::Output { .. } => {
                    panic!("{event:?}")
                }
            }
        }
        activity
    }

    pub fn is_done(&self, operation: OperationId) -> bool {
        self.done.iter().any(|(id, ..)| *id == operation)
    }

    pub fn outcome(&self, operation: OperationId) -> &Outcome {
        &self.done.iter().find(|(id, ..)| *id == operation).unwrap().1
    }

    /// Until all of these have ended.
    pub fn finish(&mut self, operations: &[OperationId]) {
        self.until(|world| operations.iter().all(|operation| world.is_done(*operation)));
    }

    /// Until the stand-in has logged that.
    pub fn until_logged(&mut self, start: &str) {
        self.until(|world| !world.fake.logged(start).is_empty());
    }

    pub fn peek(&mut self, address: DeviceAddress) -> u64 {
        let mut word = [0; 8];
        self.device.peek(address, &mut word).unwrap();
        u64::from_le_bytes(word)
    }
}

pub fn launch(kernel: &str, params: [u64; 2]) -> GridSpec {
    GridSpec {
        cooperative: false,
        cluster: Dim3::linear(1),
        module: ModuleId(1),
        kernel: kernel.into(),
        grid: Dim3 { x: 3, y: 2, z: 1 },
        block: Dim3 { x: 64, y: 1, z: 1 },
        dynamic_shared: 256,
        params: params.iter().flat_map(|word| word.to_le_bytes()).collect(),
        access: Vec::new(),
    }
}

/// Memory of a program.
#[allow(dead_code, reason = "each test uses some of it")]
pub struct Buffer(pub Mutex<Vec<u8>>);

impl HostMemory for Buffer {
    fn size(&self) -> u64 {
        self.0.lock().unwrap().len() as u64
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        let at = usize::try_from(offset).unwrap();
        into.copy_from_slice(&self.0.lock().unwrap()[at..at + into.len()]);
    }

    fn write(&self, offset: u64, from: &[u8]) {
        let at = usize::try_from(offset).unwrap();
        self.0.lock().unwrap()[at..at + from.len()].copy_from_slice(from);
    }
}

/// Memory with these contents, and all of it as a span.
#[allow(dead_code, reason = "each test uses some of it")]
pub fn buffer(bytes: Vec<u8>) -> (Arc<Buffer>, HostSpan) {
    let buffer = Arc::new(Buffer(Mutex::new(bytes)));
    let span = HostSpan::new(buffer.clone(), 0, buffer.size()).unwrap();
    (buffer, span)
}
