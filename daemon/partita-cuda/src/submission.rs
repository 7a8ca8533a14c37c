//! The submission of one operation to a stream of the driver.

use crate::arrays::{self, Part};
use crate::code::Loaded;
use crate::device::constants_in;
use crate::driver::{BoxEnd, Event, Failure, Pinned, Registered, Stream};
use crate::streams::{Portion, Rest};
use crate::tasks::{self, End, Task};
use partita_device::{AddressRange, Fault, FaultKind, GridSpec, HostSpan, Work};
use partita_model::cluster::PORTABLE_CTAS;
use partita_model::{ModuleId, OperationId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Page-locked memory of others, and the place in it.
type Direct = (Arc<Registered>, u64);

/// Submits a task, or a part of one, to the driver. `staging` or `direct` is the page-locked memory
/// of a copy.
pub(crate) fn submit(
    stream: &Stream,
    task: Task,
    part: &Portion,
    (staging, direct): (Option<&Arc<Pinned>>, Option<&Direct>),
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
        // The host has waited already.
        Task::HostWait { .. } => return Ok(()),
        Task::ArrayCopy { to, from, bytes } => {
            let written = match &to {
                End::Memory(address) => Some(AddressRange { start: *address, bytes }),
                _ => None,
            };
            copy_array(stream, to, from, bytes, (staging, part))?;
            return mirror_constants(stream, written.filter(|_| part.is_last), rest);
        }
    };
    let written = match &work {
        Work::CopyToDevice { to, from } => Some((*to, from.bytes())),
        Work::CopyOnDevice { to, bytes, .. } => Some((*to, *bytes)),
        Work::Fill { to, width, count, .. } => Some((*to, u64::from(*width) * count)),
        _ => None,
    };
    match (work, direct) {
        (Work::CopyToDevice { to, from }, Some((memory, at))) => {
            stream.copy_from_registered(to.0, memory, *at, from.bytes())?;
        }
        (Work::CopyToHost { to, from }, Some((memory, at))) => {
            stream.copy_to_registered(memory, *at, from.0, to.bytes())?;
        }
        (work, _) => submit_one(stream, work, (staging, part), on_device, rest.modules)?,
    }
    let written = written.filter(|_| part.is_last);
    mirror_constants(stream, written.map(|(start, bytes)| AddressRange { start, bytes }), rest)
}

/// Copies written constants to the driver's address, because kernels read them there.
fn mirror_constants(
    stream: &Stream,
    written: Option<AddressRange>,
    rest: &Rest<'_>,
) -> Result<(), Failure> {
    for (bank, from, bytes) in
        written.map_or_else(Vec::new, |range| constants_in(rest.placed, range))
    {
        stream.copy_on_device(bank, from, bytes)?;
    }
    Ok(())
}

fn submit_one(
    stream: &Stream,
    work: Work,
    (staging, part): (Option<&Arc<Pinned>>, &Portion),
    on_device: &BTreeMap<OperationId, Arc<Event>>,
    modules: &BTreeMap<ModuleId, Loaded>,
) -> Result<(), Failure> {
    match work {
        // The host has waited already.
        Work::Marker | Work::WaitValue { .. } => Ok(()),
        Work::Wait { on } => on_device.get(&on).map_or(Ok(()), |event| stream.wait_event(event)),
        Work::Launch(launch) | Work::LaunchOn { launch, .. } => run(stream, launch, modules),
        Work::CopyOnDevice { to, from, bytes } if to == from || bytes == 0 => Ok(()),
        Work::CopyOnDevice { to, from, bytes } => match staging {
            Some(staging) => move_on_device(stream, [to.0, from.0], bytes, (staging, part)),
            None => stream.copy_on_device(to.0, from.0, bytes),
        },
        Work::Fill { count: 0, .. } => Ok(()),
        Work::Fill { to, value, width, count } => stream.fill(to.0, value, width, count),
        Work::CopyToDevice { to, from } => match staging {
            Some(staging) => pieces(part, from.bytes(), staging.bytes(), |at, bytes| {
                let (from, memory) = (from.clone(), Arc::clone(staging));
                stream.run_on_host(move || memory.lend(0, bytes, |into| from.read(at, into)))?;
                stream.copy_to_device(to.0 + at, staging, 0, bytes)
            }),
            None => Ok(()),
        },
        Work::CopyToHost { to, from } => match staging {
            Some(staging) => pieces(part, to.bytes(), staging.bytes(), |at, bytes| {
                stream.copy_to_host(staging, 0, from.0 + at, bytes)?;
                let (to, memory): (HostSpan, _) = (to.clone(), Arc::clone(staging));
                stream.run_on_host(move || memory.lend(0, bytes, |from| to.write(at, from)))
            }),
            None => Ok(()),
        },
    }
}

/// Copies between overlapping ranges. Each piece is read completely before the copy overwrites it.
fn move_on_device(
    stream: &Stream,
    [to, from]: [u64; 2],
    bytes: u64,
    (staging, part): (&Arc<Pinned>, &Portion),
) -> Result<(), Failure> {
    let piece = staging.bytes() as u64;
    let all = bytes.div_ceil(piece);
    part.pieces.clone().try_for_each(|number| {
        // Backwards where the target is behind the source.
        let at = piece * if to > from { all - 1 - number } else { number };
        let length = usize::try_from((bytes - at).min(piece)).unwrap_or(0);
        stream.copy_to_host(staging, 0, from + at, length)?;
        stream.copy_to_device(to + at, staging, 0, length)
    })
}

/// Copies from or to an array.
fn copy_array(
    stream: &Stream,
    to: End,
    from: End,
    bytes: u64,
    (staging, part): (Option<&Arc<Pinned>>, &Portion),
) -> Result<(), Failure> {
    match (to, from, staging) {
        (End::Array(to), End::Host(from), Some(staging)) => {
            pieces(part, bytes, staging.bytes(), |at, length| {
                let (from, memory) = (from.clone(), Arc::clone(staging));
                stream.run_on_host(move || memory.lend(0, length, |into| from.read(at, into)))?;
                for part in to.boxes(at, length as u64) {
                    stream.copy_box(to.end(part.place), host(staging, part), part.extent)?;
                }
                Ok(())
            })
        }
        (End::Host(to), End::Array(from), Some(staging)) => {
            pieces(part, bytes, staging.bytes(), |at, length| {
                for part in from.boxes(at, length as u64) {
                    stream.copy_box(host(staging, part), from.end(part.place), part.extent)?;
                }
                let (to, memory) = (to.clone(), Arc::clone(staging));
                stream.run_on_host(move || memory.lend(0, length, |from| to.write(at, from)))
            })
        }
        (End::Array(to), End::Memory(from), _) => {
            to.boxes(0, bytes).into_iter().try_for_each(|part| {
                stream.copy_box(to.end(part.place), BoxEnd::Memory(from.0 + part.at), part.extent)
            })
        }
        (End::Memory(to), End::Array(from), _) => {
            from.boxes(0, bytes).into_iter().try_for_each(|part| {
                stream.copy_box(BoxEnd::Memory(to.0 + part.at), from.end(part.place), part.extent)
            })
        }
        (End::Array(to), End::Array(from), _) => {
            arrays::common_boxes(&to, &from, bytes).into_iter().try_for_each(|(there, here)| {
                stream.copy_box(to.end(there.place), from.end(here.place), here.extent)
            })
        }
        // Other tasks are no copies of arrays, and staging has its own memory.
        _ => Ok(()),
    }
}

fn host(staging: &Arc<Pinned>, part: Part) -> BoxEnd<'_> {
    BoxEnd::Host(staging, usize::try_from(part.at).unwrap_or(usize::MAX))
}

/// Calls a function with offset and length of each piece of a part; a piece has `most` bytes, the
/// last one of all maybe less.
fn pieces(
    part: &Portion,
    bytes: u64,
    most: usize,
    mut each: impl FnMut(u64, usize) -> Result<(), Failure>,
) -> Result<(), Failure> {
    part.pieces.clone().try_for_each(|number| {
        let at = number * most as u64;
        each(at, usize::try_from(bytes - at).map_or(most, |rest| rest.min(most)))
    })
}

fn run(
    stream: &Stream,
    mut launch: GridSpec,
    modules: &BTreeMap<ModuleId, Loaded>,
) -> Result<(), Failure> {
    let Some(loaded) = modules.get(&launch.module) else { return Ok(()) };
    let Some(kernel) = loaded.kernels.get(&launch.kernel) else { return Ok(()) };
    if launch.dynamic_shared > kernel.allowed_shared {
        loaded.code.allow_shared(kernel.function, launch.dynamic_shared)?;
    }
    let extent = [launch.grid, launch.block];
    if launch.cluster.count() > PORTABLE_CTAS.into() {
        loaded.code.allow_large_clusters(kernel.function)?;
    }
    if launch.cooperative || launch.cluster.count() > 1 {
        return stream.launch_together(
            kernel.function,
            extent,
            launch.dynamic_shared,
            &mut launch.params,
            (launch.cooperative, launch.cluster),
        );
    }
    stream.launch(kernel.function, extent, launch.dynamic_shared, &mut launch.params)
}

/// The fault of an operation that the driver refused to begin.
pub(crate) fn not_begun(kernel: Option<&(ModuleId, Arc<str>)>, failure: &Failure) -> Fault {
    crate::faults::fault(
        FaultKind::LaunchFailed,
        kernel.map_or("", |(_, name)| name),
        format!("the driver did not begin it: {failure}"),
    )
}
