//! The thread for calls that may wait for the whole device: loading and unloading modules, and
//! giving windows back. No other thread waits for it; its results ring the news.
//!
//! Unloading and giving back are postponed until a module is loaded or the device is idle.

use crate::OpenError;
use crate::arrays::Ended;
use crate::cache::Cache;
use crate::driver::{
    Context, Event, Failure, Function, FunctionAttribute, Green, Library, LinkError, Module,
    Pinned, Registered, SmGroup, Stream,
};
use crate::news::News;
use crate::windows::Remains;
use partita_device::{AddressRange, HostMemory, KernelFacts, ModuleFacts, VariableFacts};
use partita_model::{Bytes, DeviceAddress, ModuleId, SmSet};
use partita_ptx::Version;
use partita_ptx::settle::{Layout, Part, Settled};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Bytes a step when reading memory that the driver has placed.
const STAGING_BYTES: usize = 4096;

/// A job of the loading thread.
enum Job {
    Load {
        module: ModuleId,
        ptx: Arc<str>,
    },
    LoadCode {
        module: ModuleId,
        image: Arc<[u8]>,
    },
    Confine {
        sms: SmSet,
        groups: Vec<SmGroup>,
    },
    EndContext(Box<Green>),
    Unload(Box<Loaded>),
    GiveBack(Remains),
    Lock(Arc<dyn HostMemory>),
    Unlock(Registered),
    /// Destroys an object after an event.
    End(Ended, Option<Arc<Event>>),
    /// Does the deferred work.
    Idle,
}

/// A module on the device.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) code: Code,
    pub(crate) kernels: BTreeMap<Arc<str>, LoadedKernel>,
    /// The needs of the module's variables.
    pub(crate) variables: Variables,
    /// The variables of machine code, at the driver's addresses.
    pub(crate) own: Vec<VariableFacts>,
}

impl Loaded {
    /// Whether a range lies in a variable that the driver has placed.
    pub(crate) fn has(&self, address: DeviceAddress, bytes: u64) -> bool {
        self.own.iter().any(|variable| {
            AddressRange { start: variable.address, bytes: variable.size.0 }
                .contains(address, bytes)
        })
    }
}

/// The driver's object for the code.
#[derive(Debug)]
pub(crate) enum Code {
    /// A module of the primary context.
    Module(Module),
    /// Original machine code, which is valid in all contexts.
    Library(Library),
}

impl Code {
    fn unload(self) -> Result<(), Failure> {
        match self {
            Code::Module(module) => module.unload(),
            Code::Library(library) => library.unload(),
        }
    }

    fn function(&self, name: &str) -> Result<Function, Failure> {
        match self {
            Code::Module(module) => module.function(name),
            Code::Library(library) => library.kernel(name),
        }
    }

    /// The addresses of the variables of machine code. A variable without a name for the driver is
    /// out of programs' reach.
    fn variables(&self, named: &[partita_cubin::Variable]) -> Result<Vec<VariableFacts>, String> {
        let mut found = Vec::new();
        for variable in named {
            let place = match self {
                Code::Module(module) => module.variable(&variable.name),
                Code::Library(library) => library.variable(&variable.name),
            };
            match place {
                Ok((address, bytes)) => found.push(VariableFacts {
                    name: variable.name.clone(),
                    address: DeviceAddress(address),
                    size: Bytes(bytes),
                }),
                Err(failure) if failure.is_not_found() || failure.means_never() => {}
                Err(failure) => return Err(format!("variable `{}`: {failure}", variable.name)),
            }
        }
        Ok(found)
    }

    fn attribute(&self, function: Function, attribute: FunctionAttribute) -> Result<u32, Failure> {
        match self {
            Code::Module(module) => module.attribute(function, attribute),
            Code::Library(library) => library.attribute(function, attribute),
        }
    }

    pub(crate) fn allow_shared(&self, function: Function, bytes: u32) -> Result<(), Failure> {
        match self {
            Code::Module(module) => module.allow_shared(function, bytes),
            Code::Library(library) => library.allow_shared(function, bytes),
        }
    }
}

/// Variables of a module, which the owner thread places in the window
/// ([`mod@partita_ptx::settle`]).
#[derive(Debug, Default)]
pub(crate) struct Variables {
    pub(crate) layout: Layout,
    /// The driver's addresses of the header and of the array of constants.
    pub(crate) header: u64,
    pub(crate) constants: u64,
    /// Addresses of functions: the part, the offset in the part, and the address's bytes.
    pub(crate) functions: Vec<(Part, u64, Vec<u8>)>,
}

/// A kernel of a module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadedKernel {
    pub(crate) function: Function,
    pub(crate) max_threads: u32,
    /// Bytes of the kernel's parameter space.
    pub(crate) param_bytes: u64,
    /// Dynamic shared memory, in bytes, that the kernel may have without a further call.
    pub(crate) allowed_shared: u32,
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
    /// The result of page-locking the memory that begins at the address.
    Lock {
        start: usize,
        result: Result<Registered, Failure>,
    },
}

pub(crate) struct Loader {
    jobs: Sender<Job>,
    outcomes: Receiver<Outcome>,
    /// Loads whose outcome has not been taken.
    loading: usize,
    /// Whether work has been deferred since the last [`Loader::idle`].
    put_off: bool,
}

impl Loader {
    pub(crate) fn start(
        context: &Arc<Context>,
        cache: Option<Cache>,
        news: &Arc<News>,
    ) -> Result<Loader, OpenError> {
        let (jobs, received) = channel();
        let (answer, outcomes) = channel();
        let thread = Thread {
            context: Arc::clone(context),
            cache,
            put_off: Vec::new(),
            locked: Vec::new(),
            stream: Stream::new(context, 0)?,
            staging: Pinned::new(context, STAGING_BYTES)?,
        };
        let news = Arc::clone(news);
        std::thread::Builder::new()
            .name("load".into())
            .spawn(move || thread.run(received, &answer, &news))?;
        Ok(Loader { jobs, outcomes, loading: 0, put_off: false })
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
        self.loading += 1;
        self.send(Job::LoadCode { module, image });
    }

    pub(crate) fn confine(&mut self, sms: SmSet, groups: Vec<SmGroup>) {
        self.loading += 1;
        self.send(Job::Confine { sms, groups });
    }

    pub(crate) fn end_context(&mut self, green: Green) {
        self.put_off = true;
        self.send(Job::EndContext(Box::new(green)));
    }

    pub(crate) fn unload(&mut self, loaded: Loaded) {
        self.put_off = true;
        self.send(Job::Unload(Box::new(loaded)));
    }

    pub(crate) fn give_back(&mut self, remains: Remains) {
        self.put_off = true;
        self.send(Job::GiveBack(remains));
    }

    pub(crate) fn lock(&mut self, memory: Arc<dyn HostMemory>) {
        self.put_off = true;
        self.send(Job::Lock(memory));
    }

    pub(crate) fn unlock(&mut self, registered: Registered) {
        self.put_off = true;
        self.send(Job::Unlock(registered));
    }

    pub(crate) fn end(&mut self, ended: Ended, after: Option<Arc<Event>>) {
        self.put_off = true;
        self.send(Job::End(ended, after));
    }

    /// Starts the deferred work, because the device is idle.
    pub(crate) fn idle(&mut self) {
        if std::mem::take(&mut self.put_off) {
            self.send(Job::Idle);
        }
    }

    /// Outcomes of loads that have ended.
    pub(crate) fn take(&mut self) -> Vec<Outcome> {
        let outcomes: Vec<Outcome> = self.outcomes.try_iter().collect();
        self.loading -=
            outcomes.iter().filter(|outcome| !matches!(outcome, Outcome::Lock { .. })).count();
        outcomes
    }

    pub(crate) fn is_loading(&self) -> bool {
        self.loading > 0
    }
}

enum PutOff {
    Unload(Code),
    EndContext(Box<Green>),
    GiveBack(Remains),
    Lock(Arc<dyn HostMemory>),
    Unlock(Registered),
    End(Ended, Option<Arc<Event>>),
}

struct Thread {
    context: Arc<Context>,
    cache: Option<Cache>,
    put_off: Vec<PutOff>,
    /// Outcomes of page-locking that are not yet reported.
    locked: Vec<Outcome>,
    /// The stream that reads memory that the driver has placed.
    stream: Stream,
    staging: Pinned,
}

impl Thread {
    fn run(mut self, jobs: Receiver<Job>, answer: &Sender<Outcome>, news: &News) {
        if let Err(error) = self.context.make_current() {
            tracing::error!(%error, "the loading thread has no context");
        }
        for job in jobs {
            let outcome = match job {
                Job::Load { module, ptx } => {
                    Some(Outcome::Load { module, result: Box::new(self.load(&ptx)) })
                }
                Job::LoadCode { module, image } => {
                    Some(Outcome::Load { module, result: Box::new(self.load_code(&image)) })
                }
                Job::Confine { sms, groups } => {
                    // The call may wait for the device, so deferred work can run now as well.
                    self.catch_up();
                    Some(Outcome::Confine {
                        sms,
                        result: crate::green::make(&self.context, &groups),
                    })
                }
                Job::Unload(loaded) => {
                    self.put_off.push(PutOff::Unload(loaded.code));
                    continue;
                }
                Job::EndContext(green) => {
                    self.put_off.push(PutOff::EndContext(green));
                    continue;
                }
                Job::GiveBack(remains) => {
                    self.put_off.push(PutOff::GiveBack(remains));
                    continue;
                }
                Job::Lock(memory) => {
                    self.put_off.push(PutOff::Lock(memory));
                    continue;
                }
                Job::Unlock(registered) => {
                    self.put_off.push(PutOff::Unlock(registered));
                    continue;
                }
                Job::End(ended, after) => {
                    self.put_off.push(PutOff::End(ended, after));
                    continue;
                }
                Job::Idle => {
                    self.catch_up();
                    None
                }
            };
            for outcome in self.locked.drain(..).chain(outcome) {
                if answer.send(outcome).is_err() {
                    return;
                }
                news.ring();
            }
        }
    }

    fn catch_up(&mut self) {
        for thing in self.put_off.drain(..) {
            let result = match thing {
                PutOff::Unload(code) => code.unload(),
                PutOff::EndContext(green) => green.destroy(),
                PutOff::GiveBack(remains) => remains.give_back(&self.context),
                PutOff::Lock(memory) => {
                    let start = memory.kept().map_or(0, |(start, _)| start);
                    let result = Registered::new(&self.context, memory);
                    self.locked.push(Outcome::Lock { start, result });
                    Ok(())
                }
                PutOff::Unlock(registered) => registered.end(&self.context),
                PutOff::End(ended, after) => {
                    let waited = after.map_or(Ok(()), |after| after.wait());
                    waited.and_then(|()| ended.destroy(&self.stream))
                }
            };
            if let Err(error) = result {
                tracing::warn!(%error, "resources of an ended session stay on the GPU");
            }
        }
    }

    fn load(&mut self, ptx: &str) -> Result<(Loaded, ModuleFacts), String> {
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
        // The call may wait for the device, so deferred work can run now as well.
        self.catch_up();
        let loaded = Module::load(&self.context, &image).map_err(|error| error.to_string())?;
        self.facts(loaded, settled)
    }

    /// Loads original machine code. Its variables stay where the driver puts them.
    fn load_code(&mut self, image: &[u8]) -> Result<(Loaded, ModuleFacts), String> {
        let cubin = partita_cubin::read(image).map_err(|error| error.to_string())?;
        self.catch_up();
        let code = match Library::load(&self.context, image) {
            Ok(library) => Code::Library(library),
            // A driver without libraries has no green contexts. Its kernels run in the primary
            // context.
            Err(failure) if failure.means_never() => {
                Code::Module(Module::load(&self.context, image).map_err(|error| error.to_string())?)
            }
            Err(failure) => return Err(failure.to_string()),
        };
        let wanted =
            cubin.kernels.iter().map(|kernel| (kernel.name.as_str(), kernel.param_bytes.into()));
        let known = code.variables(&cubin.variables).and_then(|variables| {
            let (kernels, facts) = kernels(&code, wanted)?;
            Ok((variables, kernels, facts))
        });
        match known {
            Ok((variables, kernels, facts)) => Ok((
                Loaded { code, kernels, variables: Variables::default(), own: variables },
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
    fn facts(&self, loaded: Module, settled: Settled) -> Result<(Loaded, ModuleFacts), String> {
        let variables = self.variables(&loaded, settled.layout);
        let code = Code::Module(loaded);
        let own = settled.module.kernels();
        let wanted = own.iter().map(|kernel| (kernel.name.as_str(), kernel.param_bytes));
        match variables.and_then(|variables| Ok((variables, kernels(&code, wanted)?))) {
            Ok((variables, (kernels, facts))) => Ok((
                Loaded { code, kernels, variables, own: Vec::new() },
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

    fn variables(&self, loaded: &Module, layout: Layout) -> Result<Variables, String> {
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

/// The newest `.version` that a driver accepts. PTX ISA, "Release Notes": 8.5 came with CUDA 12.5,
/// 8.6 with 12.7, one with each later release, and 9.0 with 13.0.
fn newest_ptx(driver: u32) -> Version {
    match (driver / 1000, driver % 1000 / 10) {
        (..=12, minor @ ..=5) => Version { major: 8, minor },
        (..=12, minor) => Version { major: 8, minor: minor - 1 },
        (major, minor) => Version { major: major - 4, minor },
    }
}

fn too_new(features: &[partita_ptx::TooNew], newest: Version) -> String {
    let features: Vec<String> = features.iter().map(ToString::to_string).collect();
    format!(
        "this driver's compiler knows PTX {}.{} at most, install a newer one: {}",
        newest.major,
        newest.minor,
        features.join("; ")
    )
}

/// The kernels of a module, for launches and for the owner thread.
type Kernels = (BTreeMap<Arc<str>, LoadedKernel>, Vec<KernelFacts>);

/// The kernels of these names, with the sizes of their parameter spaces in bytes.
fn kernels<'a>(
    loaded: &Code,
    wanted: impl IntoIterator<Item = (&'a str, u64)>,
) -> Result<Kernels, String> {
    let mut facts = Vec::new();
    let mut kernels = BTreeMap::new();
    for (name, param_bytes) in wanted {
        let failed = |error: Failure| format!("kernel `{name}`: {error}");
        let function = loaded.function(name).map_err(failed)?;
        let attribute = |which| loaded.attribute(function, which).map_err(failed);
        let max_threads = attribute(FunctionAttribute::MaxThreadsPerBlock)?;
        let static_shared = attribute(FunctionAttribute::SharedSizeBytes)?;
        facts.push(KernelFacts {
            name: name.to_owned(),
            registers: attribute(FunctionAttribute::NumRegs)?,
            static_shared: Bytes(static_shared.into()),
            local: Bytes(attribute(FunctionAttribute::LocalSizeBytes)?.into()),
            max_threads,
        });
        let allowed_shared = DEFAULT_SHARED.saturating_sub(static_shared);
        let entry = LoadedKernel { function, max_threads, param_bytes, allowed_shared };
        kernels.insert(Arc::from(name), entry);
    }
    Ok((kernels, facts))
}

/// Static plus dynamic shared memory, in bytes, that a CTA may have without permission.
const DEFAULT_SHARED: u32 = 48 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_ptx_of_drivers() {
        let check = |driver, major, minor| assert_eq!(newest_ptx(driver), Version { major, minor });
        check(12_040, 8, 4);
        check(12_060, 8, 5);
        check(12_080, 8, 7);
        check(13_000, 9, 0);
        check(13_020, 9, 2);
    }
}
