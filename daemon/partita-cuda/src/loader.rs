//! The thread that does what may wait for the whole device: loading and unloading modules, giving windows back. Nobody
//! waits for it; what it has done rings the news.
//!
//! Unloading and giving back are put off until a module is loaded anyway or the device is idle.

use crate::cache::Cache;
use crate::driver::{Context, Function, FunctionAttribute, LinkError, Module};
use crate::news::News;
use crate::windows::Remains;
use partita_device::{AddressRange, KernelFacts, ModuleFacts, VariableFacts};
use partita_model::{Bytes, DeviceAddress, ModuleId};
use partita_ptx::{Item, Space, Version};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// What is to be done.
enum Job {
    Load {
        module: ModuleId,
        ptx: Arc<str>,
    },
    Unload(Box<Loaded>),
    GiveBack(Remains),
    /// Does what was put off.
    Idle,
}

/// A module on the device.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) module: Module,
    pub(crate) kernels: BTreeMap<Arc<str>, LoadedKernel>,
    /// Where its variables lie.
    pub(crate) variables: Vec<AddressRange>,
}

/// A kernel of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadedKernel {
    pub(crate) function: Function,
    pub(crate) max_threads: u32,
    /// Bytes of its parameter space.
    pub(crate) param_bytes: u64,
    /// Dynamic shared memory that it may have as it is.
    pub(crate) allowed_shared: u32,
}

/// What became of a load.
pub(crate) struct Outcome {
    pub(crate) module: ModuleId,
    pub(crate) result: Result<(Loaded, ModuleFacts), String>,
}

pub(crate) struct Loader {
    jobs: Sender<Job>,
    outcomes: Receiver<Outcome>,
    /// Loads that have not been taken.
    loading: usize,
    /// Whether something has been put off since the last [`Loader::idle`].
    put_off: bool,
}

impl Loader {
    pub(crate) fn start(
        context: &Arc<Context>,
        cache: Option<Cache>,
        news: &Arc<News>,
    ) -> io::Result<Loader> {
        let (jobs, received) = channel();
        let (answer, outcomes) = channel();
        let thread = Thread { context: Arc::clone(context), cache, put_off: Vec::new() };
        let news = Arc::clone(news);
        std::thread::Builder::new()
            .name("load".into())
            .spawn(move || thread.run(received, &answer, &news))?;
        Ok(Loader { jobs, outcomes, loading: 0, put_off: false })
    }

    fn send(&mut self, job: Job) {
        // The thread lives as long as the sender.
        let _ = self.jobs.send(job);
    }

    pub(crate) fn load(&mut self, module: ModuleId, ptx: Arc<str>) {
        self.loading += 1;
        self.send(Job::Load { module, ptx });
    }

    pub(crate) fn unload(&mut self, loaded: Loaded) {
        self.put_off = true;
        self.send(Job::Unload(Box::new(loaded)));
    }

    pub(crate) fn give_back(&mut self, remains: Remains) {
        self.put_off = true;
        self.send(Job::GiveBack(remains));
    }

    /// Nothing runs: what was put off is done now.
    pub(crate) fn idle(&mut self) {
        if std::mem::take(&mut self.put_off) {
            self.send(Job::Idle);
        }
    }

    /// Loads that have come to an end.
    pub(crate) fn take(&mut self) -> Vec<Outcome> {
        let outcomes: Vec<Outcome> = self.outcomes.try_iter().collect();
        self.loading -= outcomes.len();
        outcomes
    }

    pub(crate) fn is_loading(&self) -> bool {
        self.loading > 0
    }
}

enum PutOff {
    Unload(Module),
    GiveBack(Remains),
}

struct Thread {
    context: Arc<Context>,
    cache: Option<Cache>,
    put_off: Vec<PutOff>,
}

impl Thread {
    fn run(mut self, jobs: Receiver<Job>, answer: &Sender<Outcome>, news: &News) {
        if let Err(error) = self.context.make_current() {
            tracing::error!(%error, "the loading thread has no context");
        }
        for job in jobs {
            match job {
                Job::Load { module, ptx } => {
                    let result = self.load(&ptx);
                    if answer.send(Outcome { module, result }).is_err() {
                        return;
                    }
                    news.ring();
                }
                Job::Unload(loaded) => self.put_off.push(PutOff::Unload(loaded.module)),
                Job::GiveBack(remains) => self.put_off.push(PutOff::GiveBack(remains)),
                Job::Idle => self.catch_up(),
            }
        }
    }

    fn catch_up(&mut self) {
        for thing in self.put_off.drain(..) {
            let result = match thing {
                PutOff::Unload(module) => module.unload(),
                PutOff::GiveBack(remains) => remains.give_back(&self.context),
            };
            if let Err(error) = result {
                tracing::warn!(%error, "something of a session that has ended stays on the GPU");
            }
        }
    }

    fn load(&mut self, ptx: &str) -> Result<(Loaded, ModuleFacts), String> {
        let parsed = partita_ptx::parse(ptx).map_err(|errors| errors.to_string())?;
        let newest = newest_ptx(self.context.driver().version());
        let lowered;
        let (module, text) = if parsed.version > newest {
            lowered = partita_ptx::lower(&parsed, newest).map_err(|features| too_new(&features, newest))?;
            (&lowered, partita_ptx::print(&lowered))
        } else {
            (&parsed, ptx.to_owned())
        };
        let image = self.compile(&text).map_err(|error| error.to_string())?;
        // It may wait for the device: so does what was put off.
        self.catch_up();
        let loaded = Module::load(&self.context, &image).map_err(|error| error.to_string())?;
        facts(loaded, module)
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

/// The newest `.version` that a driver takes (PTX ISA, "Release Notes": 8.5 came with CUDA 12.5, 8.6 with 12.7, and one with
/// each release since; 9.0 with 13.0).
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

/// What the driver knows of a module.
fn facts(loaded: Module, ptx: &partita_ptx::Module) -> Result<(Loaded, ModuleFacts), String> {
    let mut facts = ModuleFacts::default();
    let mut kernels = BTreeMap::new();
    for kernel in ptx.kernels() {
        let failed = |error: crate::driver::Failure| format!("kernel `{}`: {error}", kernel.name);
        let function = loaded.function(&kernel.name).map_err(failed)?;
        let attribute = |which| loaded.attribute(function, which).map_err(failed);
        let max_threads = attribute(FunctionAttribute::MaxThreadsPerBlock)?;
        let found = KernelFacts {
            name: kernel.name.clone(),
            registers: attribute(FunctionAttribute::NumRegs)?,
            static_shared: Bytes(attribute(FunctionAttribute::SharedSizeBytes)?.into()),
            local: Bytes(attribute(FunctionAttribute::LocalSizeBytes)?.into()),
            max_threads,
        };
        let allowed_shared = DEFAULT_SHARED.saturating_sub(attribute(FunctionAttribute::SharedSizeBytes)?);
        let entry = LoadedKernel { function, max_threads, param_bytes: kernel.param_bytes, allowed_shared };
        kernels.insert(Arc::from(kernel.name.as_str()), entry);
        facts.kernels.push(found);
    }
    for item in &ptx.items {
        let Item::Variable(id) = item else { continue };
        let variable = ptx.var(*id);
        if !matches!(variable.space, Space::Global | Space::Const) {
            continue;
        }
        // Variables that nothing uses are not in the machine code.
        if let Ok((address, size)) = loaded.variable(ptx.names.text(variable.name)) {
            let name = ptx.names.text(variable.name).to_owned();
            facts.variables.push(VariableFacts { name, address: DeviceAddress(address), size: Bytes(size) });
        }
    }
    let range = |variable: &VariableFacts| AddressRange { start: variable.address, bytes: variable.size.0 };
    let variables = facts.variables.iter().map(range).collect();
    Ok((Loaded { module: loaded, kernels, variables }, facts))
}

/// Shared memory, static and dynamic, that a CTA may have without being allowed more.
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
