//! The session: requests, outcomes, and the calls that need nothing else.

use crate::connect::{self, ConnectError, Greeted};
use crate::events::Events;
use crate::host::HostArena;
use crate::image::Image;
use crate::inbox::{Inbox, OutputSink, Slot, daemon_gone, lock, peer_fault};
use crate::outside::Outside;
use crate::texture::Arrays;
use partita_model::request::{
    ImageId, Launch, ModuleHandle, Request, Sequence, StreamHandle, StreamKind,
};
use partita_model::{
    AddressRange, DeviceAddress, DeviceFacts, GpuNumber, ImagePart, MemoryAccess, SessionId,
};
use partita_wire::{
    CLUSTERS, CallError, ClientEnd, GpuOffer, GpuWish, MAX_CHUNK, MAX_MODULE, MAX_PARAMS,
    ModuleReply, Record, Reply, RequestWriter, Rung, SOCKET_NAME, Welcome, Window, code,
};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// A session with the daemon. The crate's page states its invariants.
#[derive(Debug)]
pub struct Session {
    welcome: Welcome,
    requests: Mutex<RequestWriter>,
    inbox: Inbox,
    events: Events,
    host: HostArena,
    arrays: Arrays,
    outside: Outside,
    last_stream: AtomicU64,
    last_module: AtomicU64,
}

/// The answer of a daemon to a client that named no GPU.
#[derive(Debug)]
pub enum Found {
    /// The daemon has one GPU: a session on it.
    Session(Box<Session>),
    /// The GPUs that this user may use, where the daemon has several.
    Offer(Vec<GpuOffer>),
}

/// The first minor version of the protocol whose hello names a GPU.
const GPUS_SINCE: u16 = 2;

/// A module that was loaded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoadedModule {
    /// Its handle in later calls.
    pub module: ModuleHandle,
    /// Its contents. A launch names a kernel by its index here.
    pub contents: ModuleReply,
}

/// A request whose variable part, if any, is borrowed.
pub(crate) type Plain = Request<&'static [u8]>;

/// The minor version of the protocol that has mappings.
const MAPPINGS_SINCE: u16 = 3;

impl Session {
    /// Connects to the daemon whose socket is in `dir` ([`crate::find_socket_dir`]). The output of
    /// kernels is dropped.
    ///
    /// # Errors
    /// Where there is no daemon, or it refuses; the message names the remedy.
    pub fn connect(dir: &Path) -> Result<Session, ConnectError> {
        Session::connect_with_output(dir, |_, _| {})
    }

    /// As [`Session::connect`]. Output of kernels goes to `sink` when a thread has waited for the
    /// device, as CUDA prints at synchronisation (CUDA C++ Programming Guide, "Formatted Output").
    ///
    /// # Errors
    /// As [`Session::connect`].
    pub fn connect_with_output(dir: &Path, sink: OutputSink) -> Result<Session, ConnectError> {
        Session::expected(dir, GpuWish::First, sink)
    }

    /// As [`Session::connect_with_output`], on one of the daemon's GPUs.
    ///
    /// # Errors
    /// As [`Session::connect`], and where there is no such GPU, or not for this user.
    pub fn connect_to(
        dir: &Path,
        gpu: GpuNumber,
        sink: OutputSink,
    ) -> Result<Session, ConnectError> {
        Session::expected(dir, GpuWish::Number(gpu), sink)
    }

    /// A session where this user may use one GPU only, else what there is to choose from.
    ///
    /// # Errors
    /// As [`Session::connect`].
    pub fn connect_to_only(dir: &Path, sink: OutputSink) -> Result<Found, ConnectError> {
        Ok(match connect::connect(dir, &connect::own_hello(GpuWish::Only)?)? {
            Greeted::Session(welcome, end) => {
                Found::Session(Box::new(Session::new(*welcome, *end, sink)))
            }
            Greeted::Offer(offers) => Found::Offer(offers),
        })
    }

    fn expected(dir: &Path, gpu: GpuWish, sink: OutputSink) -> Result<Session, ConnectError> {
        let hello = connect::own_hello(gpu)?;
        match connect::connect(dir, &hello)? {
            Greeted::Session(welcome, end)
                if gpu == GpuWish::First || welcome.protocol.minor >= GPUS_SINCE =>
            {
                Ok(Session::new(*welcome, *end, sink))
            }
            _ => Err(ConnectError::OtherGpu {
                path: dir.join(SOCKET_NAME),
                wanted: format!("{gpu:?}"),
            }),
        }
    }

    fn new(welcome: Welcome, end: ClientEnd, sink: OutputSink) -> Session {
        let layout = welcome.layout;
        let host_bytes = layout.host_bytes() - layout.variable_bytes();
        let (inbox, requests) = Inbox::new(end, sink);
        Session {
            welcome,
            requests: Mutex::new(requests),
            inbox,
            events: Events::default(),
            host: HostArena::new(layout.staging_bytes(), host_bytes),
            arrays: Arrays::default(),
            outside: Outside::default(),
            last_stream: AtomicU64::new(0),
            last_module: AtomicU64::new(0),
        }
    }

    /// The device.
    #[must_use]
    pub fn facts(&self) -> &DeviceFacts {
        &self.welcome.facts
    }

    /// The session's device addresses: every pointer to device memory that it gets lies inside.
    #[must_use]
    pub fn window(&self) -> Window {
        self.welcome.window
    }

    /// The addresses of host memory where kernels reach it under the program's own addresses;
    /// variables that modules declare managed are there, too.
    #[must_use]
    pub fn shared_window(&self) -> Option<Window> {
        let base = self.welcome.host.filter(|_| self.inbox.shared().arena().is_mapped())?;
        Some(Window { base, bytes: self.welcome.layout.host_bytes() })
    }

    /// The session's name in the daemon's reports.
    #[must_use]
    pub fn id(&self) -> SessionId {
        self.welcome.session
    }

    /// Whether the session can still be used: this is not a forked child, no asynchronous work has
    /// failed, and the daemon is not known to be gone.
    ///
    /// What a kernel said before it failed goes to the sink first: a program may end itself as soon
    /// as it knows. That also brings the words of a failure.
    ///
    /// # Errors
    /// What every call would fail with.
    pub fn check(&self) -> Result<(), CallError> {
        let verdict = self.verdict();
        if verdict.is_err() && self.inbox.shared().is_owner() {
            self.inbox.deliver_output();
            return self.verdict();
        }
        verdict
    }

    /// [`Session::check`] for a caller that holds the inbox.
    pub(crate) fn verdict(&self) -> Result<(), CallError> {
        if !self.inbox.shared().is_owner() {
            let text = "CUDA was initialised before this process was forked: initialise it in the \
                child only";
            return Err(CallError::new(code::NOT_INITIALIZED, text));
        }
        if let Some(error) = self.inbox.sticky() {
            return Err(error);
        }
        match self.inbox.gone() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// [`Session::check`], and a system call that detects the daemon's end.
    pub(crate) fn check_bell(&self) -> Result<(), CallError> {
        if self.inbox.shared().is_gone() {
            self.inbox.end(daemon_gone());
        }
        self.check()
    }

    /// The protocol's minor version that the daemon speaks.
    pub(crate) fn minor_version(&self) -> u16 {
        self.welcome.protocol.minor
    }

    pub(crate) fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    pub(crate) fn host(&self) -> &HostArena {
        &self.host
    }

    pub(crate) fn outside(&self) -> &Outside {
        &self.outside
    }

    pub(crate) fn arrays(&self) -> &Arrays {
        &self.arrays
    }

    pub(crate) fn events(&self) -> &Events {
        &self.events
    }

    /// Writes a request for which no thread waits.
    pub(crate) fn submit(&self, record: &impl Record) -> Result<Sequence, CallError> {
        self.submit_expecting(record, None)
    }

    /// Writes a request. Its outcome goes to `slot`; without a slot the request has no outcome.
    pub(crate) fn submit_expecting(
        &self,
        record: &impl Record,
        slot: Option<Slot>,
    ) -> Result<Sequence, CallError> {
        self.check()?;
        let mut requests = lock(&self.requests);
        let wants_reply = slot.is_some();
        if let Some(slot) = slot {
            self.inbox.expect(requests.next(), slot);
        }
        let mut push = || requests.push(record, wants_reply).transpose();
        let pushed = match push() {
            Some(pushed) => pushed,
            // Later requests wait behind this one for the lock, and so keep their order.
            None => self.inbox.wait_for_room(push)?,
        };
        drop(requests);
        let sequence = pushed.map_err(|fault| self.inbox.end(peer_fault(&fault)))?;
        if self.inbox.shared().requests_written() == Rung::Gone {
            return Err(self.inbox.end(daemon_gone()));
        }
        Ok(sequence)
    }

    /// Makes a request and waits for its outcome.
    pub(crate) fn call(&self, request: &Plain) -> Result<Reply, CallError> {
        let sequence = self.submit_expecting(request, Some(Slot::Waiting))?;
        self.inbox.wait(|state| state.take(sequence))?
    }

    pub(crate) fn call_done(&self, request: &Plain) -> Result<(), CallError> {
        match self.call(request)? {
            Reply::Done => Ok(()),
            other => Err(self.unexpected(&other)),
        }
    }

    pub(crate) fn unexpected(&self, reply: &Reply) -> CallError {
        self.inbox.end(CallError::new(
            code::PEER_GONE,
            format!("the session is over: the daemon answered another question ({reply:?})"),
        ))
    }

    /// `cuMemAlloc`.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`, `INVALID_VALUE` for 0 bytes; the session's own errors.
    pub fn mem_alloc(&self, bytes: u64) -> Result<DeviceAddress, CallError> {
        match self.call(&Request::MemAlloc { bytes })? {
            Reply::Address(address) => Ok(address),
            other => Err(self.unexpected(&other)),
        }
    }

    /// `cuMemFree`: waits for earlier work.
    ///
    /// # Errors
    /// `INVALID_VALUE` where nothing was allocated there; the session's own errors.
    pub fn mem_free(&self, address: DeviceAddress) -> Result<(), CallError> {
        self.call_done(&Request::MemFree { address })
    }

    /// `cuMemAddressReserve`: addresses for memory to come; `alignment` is a power of two.
    ///
    /// # Errors
    /// `INVALID_VALUE` for 0 bytes or an alignment that is none, `OUT_OF_MEMORY`; the session's own
    /// errors.
    pub fn reserve(&self, bytes: u64, alignment: u64) -> Result<DeviceAddress, CallError> {
        if !alignment.is_power_of_two() {
            return Err(CallError::new(
                code::INVALID_VALUE,
                format!("{alignment} is no alignment"),
            ));
        }
        match self.call(&Request::Reserve { bytes, alignment })? {
            Reply::Address(address) => Ok(address),
            other => Err(self.unexpected(&other)),
        }
    }

    /// `cuMemAddressFree`.
    ///
    /// # Errors
    /// `INVALID_VALUE` where nothing was reserved, or memory is there; the session's own errors.
    pub fn unreserve(&self, address: DeviceAddress) -> Result<(), CallError> {
        self.call_done(&Request::Unreserve { address })
    }

    /// `cuMemMap`: maps the first `bytes` of what [`Session::mem_alloc`] gave into reserved
    /// addresses, without access.
    ///
    /// # Errors
    /// `INVALID_VALUE` where that cannot be, `NOT_SUPPORTED` by devices that cannot map it twice or
    /// a part of it; the session's own errors.
    pub fn map(&self, home: DeviceAddress, to: DeviceAddress, bytes: u64) -> Result<(), CallError> {
        self.require(MAPPINGS_SINCE, "memory at several addresses")?;
        self.call_done(&Request::Map { home, range: AddressRange { start: to, bytes } })
    }

    /// `cuMemUnmap` of one mapping, when earlier work is done.
    ///
    /// # Errors
    /// `INVALID_VALUE` where none begins; the session's own errors.
    pub fn unmap(&self, address: DeviceAddress) -> Result<(), CallError> {
        self.call_done(&Request::Unmap { address })
    }

    /// `cuMemSetAccess` for whole mappings.
    ///
    /// # Errors
    /// `INVALID_VALUE` where the range is made of something else, `NOT_SUPPORTED` by devices that
    /// cannot keep kernels from writing; the session's own errors.
    pub fn set_access(
        &self,
        start: DeviceAddress,
        bytes: u64,
        access: MemoryAccess,
    ) -> Result<(), CallError> {
        self.call_done(&Request::SetAccess { range: AddressRange { start, bytes }, access })
    }

    /// `cuMemGetInfo`: bytes free and in all.
    ///
    /// # Errors
    /// The session's own errors.
    pub fn mem_info(&self) -> Result<(u64, u64), CallError> {
        match self.call(&Request::MemInfo)? {
            Reply::Memory { free, total } => Ok((free, total)),
            other => Err(self.unexpected(&other)),
        }
    }

    /// `cuModuleLoadData`.
    ///
    /// # Errors
    /// `INVALID_PTX` and the like with the compiler's words; the session's own errors.
    pub fn load_module(&self, image: &Image<'_>) -> Result<LoadedModule, CallError> {
        let bytes = image.bytes.len() as u64;
        for size in [bytes, image.unpacked_bytes] {
            if size == 0 || size > MAX_MODULE {
                let text =
                    format!("a module image of {size} bytes: at least 1 and at most {MAX_MODULE}");
                return Err(CallError::new(code::INVALID_IMAGE, text));
            }
        }
        let module = ModuleHandle(self.last_module.fetch_add(1, Ordering::Relaxed) + 1);
        let unpacked_bytes = image.unpacked_bytes;
        let id = ImageId(module.0);
        let begin =
            ImagePart::<&[u8]>::Begin { image: id, kind: image.kind, bytes, unpacked_bytes };
        self.submit(&begin)?;
        let mut offset = 0;
        for data in image.bytes.chunks(MAX_CHUNK) {
            self.submit(&ImagePart::Chunk { image: id, offset, data })?;
            offset += data.len() as u64;
        }
        match self.call(&Request::ModuleLoad { module, image: id })? {
            Reply::Module(contents) => {
                let variables = contents.variables.iter();
                self.outside.enter(
                    module,
                    variables
                        .map(|variable| (variable.address, variable.bytes))
                        .filter(|(address, bytes)| !self.window().contains_range(*address, *bytes)),
                );
                Ok(LoadedModule { module, contents })
            }
            other => Err(self.unexpected(&other)),
        }
    }

    /// `cuModuleUnload`: waits for the module's work.
    ///
    /// # Errors
    /// `INVALID_HANDLE`; the session's own errors.
    pub fn unload_module(&self, module: ModuleHandle) -> Result<(), CallError> {
        self.call_done(&Request::ModuleUnload { module })?;
        self.outside.remove(module);
        Ok(())
    }

    /// `cuStreamCreateWithPriority`.
    ///
    /// # Errors
    /// The session's own errors.
    pub fn create_stream(
        &self,
        non_blocking: bool,
        priority: i32,
    ) -> Result<StreamHandle, CallError> {
        let stream = StreamHandle(self.last_stream.fetch_add(1, Ordering::Relaxed) + 1);
        let kind = if non_blocking { StreamKind::NonBlocking } else { StreamKind::Blocking };
        self.submit(&Plain::StreamCreate { stream, kind, priority })?;
        Ok(stream)
    }

    /// `cuStreamDestroy`: returns at once; what is in the stream still runs.
    ///
    /// # Errors
    /// The session's own errors.
    pub fn destroy_stream(&self, stream: StreamHandle) -> Result<(), CallError> {
        self.submit(&Plain::StreamDestroy { stream })?;
        Ok(())
    }

    /// `cuStreamQuery`: whether all work of a stream is done.
    ///
    /// # Errors
    /// `INVALID_HANDLE`; the session's own errors.
    pub fn query_stream(&self, stream: StreamHandle) -> Result<bool, CallError> {
        match self.call_done(&Request::StreamQuery { stream }) {
            Ok(()) => Ok(true),
            Err(error) if error.code == code::NOT_READY => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether the daemon has an optional feature.
    pub(crate) fn has_feature(&self, feature: u64) -> bool {
        self.welcome.features & feature != 0
    }

    /// `cuLaunchKernel`: returns at once.
    ///
    /// # Errors
    /// `INVALID_VALUE` for a parameter space that is too large; the session's own errors. What the
    /// daemon finds wrong with the launch becomes the session's error.
    pub fn launch(&self, launch: Launch<&[u8]>) -> Result<(), CallError> {
        let bytes = launch.params.len();
        if bytes > MAX_PARAMS {
            let text = format!("{bytes} bytes of parameters: at most {MAX_PARAMS}");
            return Err(CallError::new(code::INVALID_VALUE, text));
        }
        if launch.cluster.count() > 1 && !self.has_feature(CLUSTERS) {
            let text = "the daemon is older than this library and has no clusters: restart it";
            return Err(CallError::new(code::NOT_SUPPORTED, text));
        }
        self.submit(&Request::Launch(launch))?;
        Ok(())
    }

    /// Waits until all earlier work of a stream, or of the session, is done.
    ///
    /// # Errors
    /// What that work failed with; `INVALID_HANDLE`; the session's own errors.
    pub fn synchronize(&self, stream: Option<StreamHandle>) -> Result<(), CallError> {
        self.call_done(&Request::Synchronize { stream })?;
        self.check()?;
        match self.inbox.with(|state| state.take_unclaimed()) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}
