//! Code on the device: what is loaded, its kernels and its variables, and which PTX the driver
//! takes.
//!
//! Code is loaded as a library, which belongs to no context: its kernels run in green contexts as
//! in the primary one. A driver without libraries (before CUDA 12.0) has no green contexts either,
//! and loads modules.

use crate::driver::{Context, Failure, Function, FunctionAttribute, Library, Module};
use partita_device::{AddressRange, KernelFacts, VariableFacts};
use partita_model::cluster::PORTABLE_CTAS;
use partita_model::{Bytes, DeviceAddress, Dim3};
use partita_ptx::Version;
use partita_ptx::settle::{Layout, Part};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A module on the device.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) code: Code,
    pub(crate) kernels: BTreeMap<Arc<str>, LoadedKernel>,
    /// The needs of the module's variables.
    pub(crate) variables: Variables,
    /// The variables of machine code, at the driver's addresses.
    pub(crate) own: Vec<VariableFacts>,
    /// The kernels that may print.
    pub(crate) printing: BTreeSet<String>,
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
    /// A library, whose kernels every context runs.
    Library(Library),
}

impl Code {
    /// Loads machine code. May wait for every grid on the device.
    pub(crate) fn load(context: &Arc<Context>, image: &[u8]) -> Result<Code, Failure> {
        match Library::load(context, image) {
            Ok(library) => Ok(Code::Library(library)),
            Err(failure) if failure.means_never() => Module::load(context, image).map(Code::Module),
            Err(failure) => Err(failure),
        }
    }

    /// Ends it. May wait for every grid on the device.
    pub(crate) fn unload(self) -> Result<(), Failure> {
        match self {
            Code::Module(module) => module.unload(),
            Code::Library(library) => library.unload(),
        }
    }

    pub(crate) fn function(&self, name: &str) -> Result<Function, Failure> {
        match self {
            Code::Module(module) => module.function(name),
            Code::Library(library) => library.kernel(name),
        }
    }

    /// Address and size of a variable.
    pub(crate) fn variable(&self, name: &str) -> Result<(u64, u64), Failure> {
        match self {
            Code::Module(module) => module.variable(name),
            Code::Library(library) => library.variable(name),
        }
    }

    /// The addresses of the variables of machine code. A variable without a name for the driver is
    /// out of programs' reach.
    pub(crate) fn variables(
        &self,
        named: &[partita_cubin::Variable],
    ) -> Result<Vec<VariableFacts>, String> {
        let mut found = Vec::new();
        for variable in named {
            match self.variable(&variable.name) {
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

    /// Lets a kernel be launched with clusters that not every GPU takes.
    pub(crate) fn allow_large_clusters(&self, function: Function) -> Result<(), Failure> {
        match self {
            Code::Module(module) => module.allow_large_clusters(function),
            Code::Library(library) => library.allow_large_clusters(function),
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

/// The newest `.version` that a driver accepts. PTX ISA, "Release Notes": 8.5 came with CUDA 12.5,
/// 8.6 with 12.7, one with each later release, and 9.0 with 13.0.
pub(crate) fn newest_ptx(driver: u32) -> Version {
    match (driver / 1000, driver % 1000 / 10) {
        (..=12, minor @ ..=5) => Version { major: 8, minor },
        (..=12, minor) => Version { major: 8, minor: minor - 1 },
        (major, minor) => Version { major: major - 4, minor },
    }
}

pub(crate) fn too_new(features: &[partita_ptx::TooNew], newest: Version) -> String {
    let features: Vec<String> = features.iter().map(ToString::to_string).collect();
    format!(
        "this driver's compiler knows PTX {}.{} at most, install a newer one: {}",
        newest.major,
        newest.minor,
        features.join("; ")
    )
}

/// The kernels of a module, for launches and for the owner thread.
pub(crate) type Kernels = (BTreeMap<Arc<str>, LoadedKernel>, Vec<KernelFacts>);

/// The kernels of these names, with the sizes of their parameter spaces in bytes.
pub(crate) fn kernels<'a>(
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
        let required_cluster = required_cluster(loaded, function);
        if required_cluster.is_some_and(|cluster| cluster.count() > PORTABLE_CTAS.into()) {
            loaded.allow_large_clusters(function).map_err(failed)?;
        }
        facts.push(KernelFacts {
            name: name.to_owned(),
            registers: attribute(FunctionAttribute::NumRegs)?,
            static_shared: Bytes(static_shared.into()),
            local: Bytes(attribute(FunctionAttribute::LocalSizeBytes)?.into()),
            max_threads,
            required_cluster,
        });
        let allowed_shared = DEFAULT_SHARED.saturating_sub(static_shared);
        let entry = LoadedKernel { function, max_threads, param_bytes, allowed_shared };
        kernels.insert(Arc::from(name), entry);
    }
    Ok((kernels, facts))
}

/// The extent of clusters that a kernel's code fixes. A driver or GPU without clusters knows none.
fn required_cluster(loaded: &Code, function: Function) -> Option<Dim3> {
    use FunctionAttribute as A;
    let axis = |which| loaded.attribute(function, which).ok();
    let cluster = Dim3::new(
        axis(A::RequiredClusterWidth)?,
        axis(A::RequiredClusterHeight)?,
        axis(A::RequiredClusterDepth)?,
    );
    (!cluster.is_empty()).then_some(cluster)
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
