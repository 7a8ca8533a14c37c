//! Checks of enqueued work: whether it can be carried out, and by which means.

use super::CudaDevice;
use crate::tasks::{End, Task};
use partita_device::{DeviceError, HostSpan, Work};
use partita_model::DeviceAddress;

impl CudaDevice {
    /// Splits work into tasks for host memory, device memory and arrays.
    pub(super) fn task(&self, work: Work) -> Result<Task, DeviceError> {
        let host = |address, bytes| self.windows.host_at(address, bytes);
        let copy = |to: &HostSpan, from: &HostSpan, backwards| Task::HostCopy {
            to: to.clone(),
            from: from.clone(),
            backwards,
        };
        if let Some(task) = self.array_task(&work) {
            return Ok(task);
        }
        Ok(match &work {
            Work::CopyToDevice { to, from } => match host(*to, from.bytes()) {
                Some(to) => copy(&to, from, false),
                None => Task::Work(work),
            },
            Work::CopyToHost { to, from } => match host(*from, to.bytes()) {
                Some(from) => copy(to, &from, false),
                None => Task::Work(work),
            },
            Work::CopyOnDevice { to, from, bytes } => {
                match (host(*to, *bytes), host(*from, *bytes)) {
                    (Some(there), Some(here)) => copy(&there, &here, to.0 > from.0),
                    (Some(there), None) => Task::Work(Work::CopyToHost { to: there, from: *from }),
                    (None, Some(here)) => Task::Work(Work::CopyToDevice { to: *to, from: here }),
                    (None, None) => Task::Work(work),
                }
            }
            Work::Fill { to, value, width, count } => {
                let bytes = u64::from(*width).saturating_mul(*count);
                match host(*to, bytes) {
                    Some(to) => Task::HostFill { to, value: *value, width: *width },
                    None => Task::Work(work),
                }
            }
            Work::WaitValue { address, word } => match host(*address, word.width.into()) {
                Some(at) => Task::HostWait { at, word: *word },
                None => Task::Work(work),
            },
            _ => Task::Work(work),
        })
    }

    /// The task of a copy with an array at one end; `None` for other work.
    fn array_task(&self, work: &Work) -> Option<Task> {
        let array = |address, bytes| self.arrays.at(address, bytes).map(End::Array);
        let memory = |address: DeviceAddress, bytes| {
            let host =
                || self.windows.host_at(address, bytes).map_or(End::Memory(address), End::Host);
            array(address, bytes).unwrap_or_else(host)
        };
        let (to, from, bytes) = match work {
            Work::CopyToDevice { to, from } => {
                (array(*to, from.bytes())?, End::Host(from.clone()), from.bytes())
            }
            Work::CopyToHost { to, from } => {
                (End::Host(to.clone()), array(*from, to.bytes())?, to.bytes())
            }
            Work::CopyOnDevice { to, from, bytes } => {
                (memory(*to, *bytes), memory(*from, *bytes), *bytes)
            }
            _ => return None,
        };
        let has_array = [&to, &from].iter().any(|end| matches!(end, End::Array(_)));
        has_array.then_some(Task::ArrayCopy { to, from, bytes })
    }

    /// Finds faults that show before the task runs.
    pub(super) fn check(&self, task: &Task) -> Result<(), DeviceError> {
        match task {
            Task::Work(work) => self.check_work(work),
            Task::ArrayCopy { to, from, bytes } => {
                [to, from].into_iter().try_for_each(|end| match end {
                    End::Memory(address) => self.place_of(*address, *bytes).map(|_| ()),
                    _ => Ok(()),
                })
            }
            Task::HostCopy { .. } | Task::HostFill { .. } | Task::HostWait { .. } => Ok(()),
        }
    }

    fn check_work(&self, work: &Work) -> Result<(), DeviceError> {
        let live = |address: DeviceAddress, bytes: u64| self.place_of(address, bytes).map(|_| ());
        match work {
            Work::LaunchOn { sms, .. } if !self.streams.has_context(sms) => {
                Err(DeviceError::BadLaunch(format!("SMs {sms} are not ready for launches")))
            }
            Work::Launch(launch) | Work::LaunchOn { launch, .. } => {
                let loaded = self.modules.get(&launch.module);
                let loaded = loaded.ok_or_else(|| DeviceError::BadId(launch.module.to_string()))?;
                let window = self.window_of_module.get(&launch.module);
                if let Some(failure) = window.and_then(|window| self.without_host.get(window)) {
                    return Err(DeviceError::BadLaunch(format!(
                        "the driver does not page-lock the program's host memory, and its kernels \
                         would end everybody's context: {failure}"
                    )));
                }
                let kernel = loaded.kernels.get(&launch.kernel);
                let kernel = kernel
                    .ok_or_else(|| DeviceError::BadId(format!("kernel `{}`", launch.kernel)))?;
                let bad = |what: String| {
                    Err(DeviceError::BadLaunch(format!("kernel `{}`: {what}", launch.kernel)))
                };
                if launch.params.len() as u64 != kernel.param_bytes {
                    return bad(format!(
                        "{} bytes of parameters where it has {}",
                        launch.params.len(),
                        kernel.param_bytes
                    ));
                }
                let threads = launch.block.count();
                if threads == 0 || launch.grid.count() == 0 {
                    return bad("an empty grid or block".to_owned());
                }
                if threads > kernel.max_threads.into() {
                    return bad(format!(
                        "{threads} threads a CTA where it can have {}",
                        kernel.max_threads
                    ));
                }
                if u64::from(launch.dynamic_shared) > self.facts.shared_per_cta_optin.0 {
                    return bad(format!(
                        "{} bytes of dynamic shared memory",
                        launch.dynamic_shared
                    ));
                }
                Ok(())
            }
            Work::CopyToDevice { to, from } => live(*to, from.bytes()),
            Work::CopyToHost { to, from } => live(*from, to.bytes()),
            Work::CopyOnDevice { to, from, bytes } => {
                live(*to, *bytes).and_then(|()| live(*from, *bytes))
            }
            Work::Fill { to, width, count, .. } => {
                live(*to, u64::from(*width).saturating_mul(*count))
            }
            Work::WaitValue { address, word } => live(*address, u64::from(word.width)),
            Work::Marker | Work::Wait { .. } => Ok(()),
        }
    }
}
