//! The thread for calls that may wait for the whole device and hold up all other calls: loading and
//! unloading code, page-locking, making and ending green contexts, arrays that the driver gives
//! memory, giving windows back.
//!
//! It makes such calls in phases only ([`partita_device::Phase`]). The owner begins a phase when
//! nothing is on the device, and makes no call of the driver until the phase is over. So the calls
//! have nothing to wait for, and nobody waits for them. Compiling needs no phase, and all that has
//! become due since the last phase is done in the next one.

use crate::OpenError;
use crate::arrays::Ended;
use crate::cache::Cache;
use crate::code::{Code, Loaded, Variables, kernels, newest_ptx, too_new};
use crate::driver::{
    Array, Context, Event, Failure, Green, LinkError, MemoryBy, Pinned, Registered, SmGroup, Stream,
};
use crate::news::News;
use crate::windows::Remains;
use partita_device::{HostMemory, ModuleFacts};
use partita_model::texture::ArrayShape;
use partita_model::{Dim3, ModuleId, SmSet, WindowId};
use partita_ptx::settle::{Layout, Settled};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// Bytes a step when reading memory that the driver has placed.
const STAGING_BYTES: usize = 4096;

/// Bytes of local memory for which each thread has room from the start (CUDA Driver API,
/// `CU_LIMIT_STACK_SIZE`).
const LOCAL_BYTES: u64 = 1 << 10;
pub(crate) const LOCAL: &str = include_str!("../../../kernels-ptx/device/local.ptx");
/// What the text of [`LOCAL`] says of the size.
pub(crate) const LOCAL_ROOM: &str = "room[1024]";

/// How long the remains of what has gone lie about on a device that is never idle.
const PATIENCE: Duration = Duration::from_secs(1);

/// A job of the loading thread.
enum Job {
    /// Prepares a text for the next phase.
    Load { module: ModuleId, ptx: Arc<str> },
    /// Something that may hold up others, for the next phase.
    Due(Due),
    /// Begins a phase: carries out all that is due.
    Phase,
}

/// A call that may wait for every grid on the device, and hold up others meanwhile.
enum Due {
    /// Loads a compiled text.
    Load {
        module: ModuleId,
        prepared: Box<Prepared>,
    },
    /// Loads original machine code.
    LoadCode {
        module: ModuleId,
        image: Arc<[u8]>,
    },
    /// Makes a green context.
    Confine {
        sms: SmSet,
        groups: Vec<SmGroup>,
    },
    EndContext(Box<Green>),
    /// Makes an array, whose memory the driver allocates.
    Array(WindowId, ArrayShape),
    /// The owner has something to do after an event.
    Nothing(Option<Arc<Event>>),
    Unload(Code),
    GiveBack(Remains),
    Lock(Arc<dyn HostMemory>),
    Unlock(Registered),
    /// Page-locks the host memory of a window: first address and bytes.
    LockWindow(WindowId, (u64, u64)),
    /// Destroys an object after an event.
    End(Ended, Option<Arc<Event>>),
}

/// A compiled text.
struct Prepared {
    image: Vec<u8>,
    settled: Settled,
}

/// The result of a job.
pub(crate) enum Outcome {
    Load {
        module: ModuleId,
        result: Box<Result<(Loaded, ModuleFacts), String>>,
    },
    Confine {
        sms: SmSet,
        result: Result<Green, Failure>,
    },
    Array {
        window: WindowId,
        shape: ArrayShape,
        result: Result<Array, Failure>,
    },
    /// The result of page-locking the memory that begins at the address.
    Lock {
        start: usize,
        result: Result<Registered, Failure>,
    },
    /// The result of page-locking a window's host memory.
    LockWindow {
        window: WindowId,
        result: Result<(), Failure>,
    },
    /// Everything that was due has been done.
    Over,
}

pub(crate) struct Loader {
    jobs: Sender<Job>,
    outcomes: Receiver<Outcome>,
    /// Loads whose outcome has not been taken.
    loading: usize,
    /// Loads that wait for the next phase.
    ready: Arc<AtomicUsize>,
    /// Since when the remains of something wait for the next phase.
    put_off: Option<Instant>,
}

impl Loader {
    pub(crate) fn start(
        context: &Arc<Context>,
        cache: Option<Cache>,
        news: &Arc<News>,
    ) -> Result<Loader, OpenError> {
        let (jobs, received) = channel();
        let (answer, outcomes) = channel();
        let ready = Arc::new(AtomicUsize::new(0));
        let thread = Thread {
            context: Arc::clone(context),
            cache,
            due: Vec::new(),
            local: LOCAL_BYTES,
            ready: Arc::clone(&ready),
            answer,
            news: Arc::clone(news),
            stream: Stream::new(context, 0)?,
            staging: Pinned::new(context, STAGING_BYTES)?,
        };
        std::thread::Builder::new().name("load".into()).spawn(move || thread.run(received))?;
        Ok(Loader { jobs, outcomes, loading: 0, ready, put_off: None })
    }

    fn send(&mut self, job: Job) {
        // The thread outlives the sender, so sending succeeds.
        let _ = self.jobs.send(job);
    }

    pub(crate) fn load(&mut self, module: ModuleId, ptx: Arc<str>) {
        self.loading += 1;
        self.send(Job::Load { module, ptx });
    }

    pub(crate) fn load_code(&mut self, module: ModuleId, image: Arc<[u8]>) {
        self.await_phase(Due::LoadCode { module, image });
    }

    pub(crate) fn confine(&mut self, sms: SmSet, groups: Vec<SmGroup>) {
        self.await_phase(Due::Confine { sms, groups });
    }

    pub(crate) fn make_array(&mut self, window: WindowId, shape: ArrayShape) {
        self.await_phase(Due::Array(window, shape));
    }

    pub(crate) fn end_context(&mut self, green: Green) {
        self.put_off(Due::EndContext(Box::new(green)));
    }

    pub(crate) fn unload(&mut self, loaded: Loaded) {
        self.put_off(Due::Unload(loaded.code));
    }

    pub(crate) fn give_back(&mut self, remains: Remains) {
        self.put_off(Due::GiveBack(remains));
    }

    pub(crate) fn lock(&mut self, memory: Arc<dyn HostMemory>) {
        self.put_off(Due::Lock(memory));
    }

    pub(crate) fn unlock(&mut self, registered: Registered) {
        self.put_off(Due::Unlock(registered));
    }

    /// Page-locks the host memory of a window, before any module is loaded that is asked for later.
    pub(crate) fn lock_window(&mut self, window: WindowId, range: (u64, u64)) {
        self.put_off(Due::LockWindow(window, range));
    }

    pub(crate) fn end(&mut self, ended: Ended, after: Option<Arc<Event>>) {
        self.put_off(Due::End(ended, after));
    }

    fn await_phase(&mut self, due: Due) {
        self.loading += 1;
        self.ready.fetch_add(1, Ordering::AcqRel);
        self.send(Job::Due(due));
    }

    /// Asks for a phase in which the owner itself does something.
    pub(crate) fn ask_for_phase(&mut self, after: Option<Arc<Event>>) {
        self.ready.fetch_add(1, Ordering::AcqRel);
        self.send(Job::Due(Due::Nothing(after)));
    }

    /// Asks for a phase, once the device is idle, in which the owner itself does something.
    pub(crate) fn await_idleness(&mut self) {
        self.put_off.get_or_insert_with(Instant::now);
    }

    fn put_off(&mut self, due: Due) {
        self.await_idleness();
        self.send(Job::Due(due));
    }

    /// Whether something is due that an idle device should do at once.
    pub(crate) fn is_due(&self) -> bool {
        self.put_off.is_some() || self.is_urgent()
    }

    /// Whether something is due for which a busy device should become idle.
    pub(crate) fn is_urgent(&self) -> bool {
        self.ready.load(Ordering::Acquire) > 0
            || self.put_off.is_some_and(|since| since.elapsed() >= PATIENCE)
    }

    /// Begins a phase. [`Outcome::Over`] ends it.
    pub(crate) fn begin_phase(&mut self) {
        self.put_off = None;
        self.send(Job::Phase);
    }

    /// Outcomes since the last call.
    pub(crate) fn take(&mut self) -> Vec<Outcome> {
        let outcomes: Vec<Outcome> = self.outcomes.try_iter().collect();
        let is_load = |outcome: &&Outcome| {
            use Outcome::{Array, Confine, Load};
            matches!(outcome, Load { .. } | Confine { .. } | Array { .. })
        };
        self.loading -= outcomes.iter().filter(is_load).count();
        outcomes
    }

    pub(crate) fn is_loading(&self) -> bool {
        self.loading > 0
    }
}

struct Thread {
    context: Arc<Context>,
    cache: Option<Cache>,
    due: Vec<Due>,
    /// Bytes of local memory for which a thread has room.
    local: u64,
    ready: Arc<AtomicUsize>,
    answer: Sender<Outcome>,
    news: Arc<News>,
    /// The stream that reads memory that the driver has placed.
    stream: Stream,
    staging: Pinned,
}

impl Thread {
    fn run(mut self, jobs: Receiver<Job>) {
        if let Err(error) = self.context.make_current() {
            tracing::error!(%error, "the loading thread has no context");
        }
        for job in jobs {
            match job {
                Job::Load { module, ptx } => match self.prepare(&ptx) {
                    Ok(prepared) => {
                        self.due.push(Due::Load { module, prepared: Box::new(prepared) });
                        self.ready.fetch_add(1, Ordering::AcqRel);
                        self.news.ring();
                    }
                    Err(reason) => {
                        self.tell(Outcome::Load { module, result: Box::new(Err(reason)) });
                    }
                },
                Job::Due(due) => self.due.push(due),
                Job::Phase => {
                    self.carry_out();
                    self.tell(Outcome::Over);
                }
            }
        }
    }

    fn tell(&self, outcome: Outcome) {
        // A device that is being closed wants no outcome.
        let _ = self.answer.send(outcome);
        self.news.ring();
    }

    /// Does all that is due. What has gone goes first, and makes room.
    fn carry_out(&mut self) {
        let (loads, remains): (Vec<Due>, Vec<Due>) = self.due.drain(..).partition(|due| {
            use Due::{Array, Confine, Load, LoadCode};
            matches!(due, Load { .. } | LoadCode { .. } | Confine { .. } | Array(..))
        });
        for due in remains.into_iter().chain(loads) {
            let result = match due {
                Due::Load { module, prepared } => {
                    self.ready.fetch_sub(1, Ordering::AcqRel);
                    let result = Box::new(self.load(*prepared));
                    self.make_room(&result);
                    self.tell(Outcome::Load { module, result });
                    Ok(())
                }
                Due::LoadCode { module, image } => {
                    self.ready.fetch_sub(1, Ordering::AcqRel);
                    let result = Box::new(self.load_code(&image));
                    self.make_room(&result);
                    self.tell(Outcome::Load { module, result });
                    Ok(())
                }
                Due::Confine { sms, groups } => {
                    self.ready.fetch_sub(1, Ordering::AcqRel);
                    let result = crate::green::make(&self.context, &groups);
                    self.tell(Outcome::Confine { sms, result });
                    Ok(())
                }
                Due::Array(window, shape) => {
                    self.ready.fetch_sub(1, Ordering::AcqRel);
                    let result = Array::new(&self.context, &shape, &self.stream, MemoryBy::Driver);
                    self.tell(Outcome::Array { window, shape, result });
                    Ok(())
                }
                Due::Unload(code) => code.unload(),
                Due::Nothing(after) => {
                    self.ready.fetch_sub(1, Ordering::AcqRel);
                    after.map_or(Ok(()), |after| after.wait())
                }
                Due::EndContext(green) => green.destroy(),
                Due::GiveBack(remains) => remains.give_back(&self.context),
                Due::Lock(memory) => {
                    let start = memory.kept().map_or(0, |(start, _)| start);
                    let result = Registered::new(&self.context, memory);
                    self.tell(Outcome::Lock { start, result });
                    Ok(())
                }
                Due::LockWindow(window, (start, bytes)) => {
                    let result = self.context.register(start, bytes);
                    self.tell(Outcome::LockWindow { window, result });
                    Ok(())
                }
                Due::Unlock(registered) => registered.end(&self.context),
                Due::End(ended, after) => {
                    let waited = after.map_or(Ok(()), |after| after.wait());
                    waited.and_then(|()| ended.destroy(&self.stream))
                }
            };
            if let Err(error) = result {
                tracing::warn!(%error, "resources of an ended session stay on the GPU");
            }
        }
    }

    /// Compiles a text, which touches nothing on the device.
    fn prepare(&self, ptx: &str) -> Result<Prepared, String> {
        let parsed = partita_ptx::parse(ptx).map_err(|errors| errors.to_string())?;
        let newest = newest_ptx(self.context.driver().version());
        let is_new = parsed.version > newest;
        let module = if is_new {
            partita_ptx::lower(&parsed, newest).map_err(|features| too_new(&features, newest))?
        } else {
            parsed
        };
        let settled = partita_ptx::settle(&module).map_err(|errors| errors.to_string())?;
        // An unchanged text keeps the line numbers in the compiler's messages.
        let is_changed = is_new || settled.layout.header.is_some();
        let text = if is_changed {
            Cow::Owned(partita_ptx::print(&settled.module))
        } else {
            Cow::Borrowed(ptx)
        };
        let image = self.compile(&text).map_err(|error| error.to_string())?;
        Ok(Prepared { image, settled })
    }

    /// Lets the driver make room for the local memory of loaded kernels. At a later launch it would
    /// wait for all grids.
    fn make_room(&mut self, loaded: &Result<(Loaded, ModuleFacts), String>) {
        let Ok((_, facts)) = loaded else { return };
        let most = facts.kernels.iter().map(|kernel| kernel.local.0).max().unwrap_or(0);
        if most <= self.local {
            return;
        }
        let bytes = most.next_power_of_two();
        match self.run_with_local(bytes) {
            Ok(()) => self.local = bytes,
            Err(reason) => tracing::warn!(
                bytes,
                reason,
                "no room for local memory ahead: the first launch of a kernel that needs it waits \
                 for all others"
            ),
        }
    }

    fn run_with_local(&self, bytes: u64) -> Result<(), String> {
        let text = LOCAL.replace(LOCAL_ROOM, &format!("room[{bytes}]"));
        let image = self.compile(&text).map_err(|error| error.to_string())?;
        let run = || {
            let code = Code::load(&self.context, &image)?;
            let one = Dim3::linear(1);
            let kernel = code.function("partita_local")?;
            let launched = self.stream.launch(kernel, [one, one], 0, &mut [0; 8]);
            launched.and_then(|()| self.stream.synchronize())?;
            code.unload()
        };
        run().map_err(|failure| failure.to_string())
    }

    fn load(&self, Prepared { image, settled }: Prepared) -> Result<(Loaded, ModuleFacts), String> {
        let code = Code::load(&self.context, &image).map_err(|error| error.to_string())?;
        self.facts(code, settled)
    }

    /// Loads original machine code. Its variables stay where the driver puts them.
    fn load_code(&self, image: &[u8]) -> Result<(Loaded, ModuleFacts), String> {
        let cubin = partita_cubin::read(image).map_err(|error| error.to_string())?;
        let code = Code::load(&self.context, image).map_err(|error| error.to_string())?;
        let wanted =
            cubin.kernels.iter().map(|kernel| (kernel.name.as_str(), kernel.param_bytes.into()));
        let known = code.variables(&cubin.variables).and_then(|variables| {
            let (kernels, facts) = kernels(&code, wanted)?;
            Ok((variables, kernels, facts))
        });
        match known {
            Ok((variables, kernels, facts)) => Ok((
                Loaded {
                    code,
                    kernels,
                    variables: Variables::default(),
                    own: variables,
                    printing: BTreeSet::new(),
                },
                ModuleFacts { kernels: facts, ..ModuleFacts::default() },
            )),
            Err(reason) => {
                if let Err(error) = code.unload() {
                    tracing::warn!(%error, "unused machine code stays on the GPU");
                }
                Err(reason)
            }
        }
    }

    /// The driver's facts about a module.
    fn facts(&self, code: Code, settled: Settled) -> Result<(Loaded, ModuleFacts), String> {
        let variables = self.variables(&code, settled.layout);
        let own = settled.module.kernels();
        let printing = partita_ptx::output::printing(&settled.module);
        let wanted = own.iter().map(|kernel| (kernel.name.as_str(), kernel.param_bytes));
        match variables.and_then(|variables| Ok((variables, kernels(&code, wanted)?))) {
            Ok((variables, (kernels, facts))) => Ok((
                Loaded { code, kernels, variables, own: Vec::new(), printing },
                ModuleFacts { kernels: facts, ..ModuleFacts::default() },
            )),
            Err(reason) => {
                if let Err(error) = code.unload() {
                    tracing::warn!(%error, "an unused module stays on the GPU");
                }
                Err(reason)
            }
        }
    }

    fn variables(&self, loaded: &Code, layout: Layout) -> Result<Variables, String> {
        let address = |name: &Option<String>| match name {
            None => Ok(0),
            Some(name) => match loaded.variable(name) {
                Ok((address, _)) => Ok(address),
                // No code uses the variable, so the machine code lacks it.
                Err(failure) if failure.is_not_found() => Ok(0),
                Err(failure) => Err(format!("variable `{name}`: {failure}")),
            },
        };
        let (header, constants) = (address(&layout.header)?, address(&layout.constants)?);
        let mut functions = Vec::new();
        for seed in &layout.seeds {
            let from = address(&Some(seed.name.clone()))?;
            for &(offset, part, to, bytes) in &seed.copies {
                let read = self.read(from + offset, bytes);
                functions.push((
                    part,
                    to,
                    read.map_err(|failure| format!("`{}`: {failure}", seed.name))?,
                ));
            }
        }
        Ok(Variables { layout, header, constants, functions })
    }

    /// Reads a few bytes of device memory. Waits only for this copy.
    fn read(&self, from: u64, bytes: u64) -> Result<Vec<u8>, Failure> {
        let mut into = vec![0; usize::try_from(bytes).unwrap_or(0).min(self.staging.bytes())];
        self.stream.copy_to_host(&self.staging, 0, from, into.len())?;
        self.stream.synchronize()?;
        self.staging.read(0, &mut into);
        Ok(into)
    }

    fn compile(&self, text: &str) -> Result<Vec<u8>, LinkError> {
        if let Some(image) = self.cache.as_ref().and_then(|cache| cache.find(text)) {
            return Ok(image);
        }
        let image = self.context.compile(text)?;
        if let Some(cache) = &self.cache {
            cache.keep(text, &image);
        }
        Ok(image)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_for_local_memory_has_a_size_to_replace() {
        assert_eq!(LOCAL.matches(LOCAL_ROOM).count(), 1);
    }
}
