//! One operation, given to a stream of the driver.

use crate::device::constants_in;
use crate::driver::{Event, Failure, Pinned, Stream};
use crate::loader::Loaded;
use crate::streams::Rest;
use crate::tasks::{self, Task};
use partita_device::{AddressRange, Fault, FaultKind, HostSpan, Launch, Work};
use partita_model::{ModuleId, OperationId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Gives a task to the driver.
pub(crate) fn submit(
    stream: &Stream,
    task: Task,
    staging: Option<&Arc<Pinned>>,
    on_device: &BTreeMap<OperationId, Arc<Event>>,
    rest: &Rest<'_>,
) -> Result<(), Failure> {
    let work = match task {
        Task::Work(work) => work,
        Task::HostCopy { to, from, backwards } => {
            return stream.run_on_host(move || tasks::copy(&to, &from, backwards));
        }
        Task::HostFill { to, value, width } => {
            return stream.run_on_host(move || tasks::fill(&to, value, width));
        }
        // It has been waited for.
        Task::HostWait { .. } => return Ok(()),
    };
    let written = match &work {
        Work::CopyToDevice { to, from } => Some((*to, from.bytes())),
        Work::CopyOnDevice { to, bytes, .. } => Some((*to, *bytes)),
        Work::Fill { to, width, count, .. } => Some((*to, u64::from(*width) * count)),
        _ => None,
    };
    submit_one(stream, work, staging, on_device, rest.modules)?;
    // Constants are read where the driver has put them.
    let written = written.map(|(start, bytes)| AddressRange { start, bytes });
    for (bank, from, bytes) in written.map_or_else(Vec::new, |range| constants_in(rest.placed, range)) {
        stream.copy_on_device(bank, from, bytes)?;
    }
    Ok(())
}

fn submit_one(
    stream: &Stream,
    work: Work,
    staging: Option<&Arc<Pinned>>,
    on_device: &BTreeMap<OperationId, Arc<Event>>,
    modules: &BTreeMap<ModuleId, Loaded>,
) -> Result<(), Failure> {
    match work {
        Work::Marker => Ok(()),
        Work::Wait { on } => on_device.get(&on).map_or(Ok(()), |event| stream.wait_event(event)),
        Work::WaitValue { address, word } => stream.wait_value(address.0, word.value),
        Work::Launch(launch) | Work::LaunchOn { launch, .. } => run(stream, launch, modules),
        Work::CopyOnDevice { to, from, bytes } => stream.copy_on_device(to.0, from.0, bytes),
        Work::Fill { to, value, width, count } => stream.fill(to.0, value, width, count),
        Work::CopyToDevice { to, from } => match staging {
            Some(staging) => pieces(from.bytes(), staging.bytes(), |at, bytes| {
                let (from, memory) = (from.clone(), Arc::clone(staging));
                stream.run_on_host(move || memory.lend(0, bytes, |into| from.read(at, into)))?;
                stream.copy_to_device(to.0 + at, staging, 0, bytes)
            }),
            None => Ok(()),
        },
        Work::CopyToHost { to, from } => match staging {
            Some(staging) => pieces(to.bytes(), staging.bytes(), |at, bytes| {
                stream.copy_to_host(staging, 0, from.0 + at, bytes)?;
                let (to, memory): (HostSpan, _) = (to.clone(), Arc::clone(staging));
                stream.run_on_host(move || memory.lend(0, bytes, |from| to.write(at, from)))
            }),
            None => Ok(()),
        },
    }
}

/// Calls for each piece of at most `most` bytes: where it begins, and how long it is.
fn pieces(
    bytes: u64,
    most: usize,
    mut each: impl FnMut(u64, usize) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut at = 0;
    while at < bytes {
        let length = usize::try_from(bytes - at).map_or(most, |rest| rest.min(most));
        each(at, length)?;
        at += length as u64;
    }
    Ok(())
}

fn run(stream: &Stream, mut launch: Launch, modules: &BTreeMap<ModuleId, Loaded>) -> Result<(), Failure> {
    let Some(loaded) = modules.get(&launch.module) else { return Ok(()) };
    let Some(kernel) = loaded.kernels.get(&launch.kernel) else { return Ok(()) };
    if launch.dynamic_shared > kernel.allowed_shared {
        loaded.code.allow_shared(kernel.function, launch.dynamic_shared)?;
    }
    stream.launch(kernel.function, [launch.grid, launch.block], launch.dynamic_shared, &mut launch.params)
}

/// The fault of an operation that the driver did not begin.
pub(crate) fn not_begun(kernel: Option<&(ModuleId, Arc<str>)>, failure: &Failure) -> Fault {
    crate::faults::fault(
        FaultKind::LaunchFailed,
        kernel.map_or("", |(_, name)| name),
        format!("the driver did not begin it: {failure}"),
    )
}
