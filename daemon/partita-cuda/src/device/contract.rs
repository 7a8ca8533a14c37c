//! The device contract, call by call.

use super::{ATTENTIVE, CudaDevice, HostAccess, PATIENT, refused};
use crate::arrays::Texels;
use crate::driver::{Failure, Place};
use crate::green::{MOST_CONTEXTS, STREAMS};
use crate::traffic::Traffic;
use crate::windows::Becomes;
use partita_device::{
    Activity, AddressRange, Aliasing, Confinement, Confining, Device, DeviceError, Event, Guards,
    Horizon, HostMapping, HostSpan, Lending, MachineCode, Phase, Relocation, TensorMaps, Textures,
    TrafficSampling, Work,
};
use partita_model::tensor_map::{TensorMap, TensorMapSpec};
use partita_model::texture::{ArrayShape, TextureSpec};
use partita_model::{
    Calibration, DeviceAddress, DeviceFacts, MemoryAccess, ModuleId, Nanos, OperationId, SmSet,
    StreamId, WindowId,
};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

/// Host memory of a window in bytes, where it is page-locked and so takes memory of the machine.
const LOCKED_BYTES: u64 = 64 << 20;

impl Device for CudaDevice {
    fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    fn calibration(&self) -> Calibration {
        self.calibration
    }

    fn identity(&self) -> String {
        self.identity.clone()
    }

    fn nanojoules(&self) -> Option<u64> {
        let now = self.monitor.as_ref()?.millijoules()?;
        Some(now.saturating_sub(self.millijoules_before?).saturating_mul(1_000_000))
    }

    fn guards(&self) -> Guards {
        self.guards
    }

    fn now(&self) -> Nanos {
        self.clock.now()
    }

    fn news(&self) -> Option<BorrowedFd<'_>> {
        Some(self.news.descriptor())
    }

    fn loading_waits_for_grids(&self) -> bool {
        self.habits.waits
    }

    fn launches_may_leave(&self) -> bool {
        self.habits.waits && !self.launches_stay
    }

    fn launches_leave(&mut self) {
        self.phases.launches_leave();
    }

    fn limits(&self) -> &[String] {
        &self.habits.limits
    }

    fn phase(&self) -> Phase {
        self.phases.phase()
    }

    fn reserve(&mut self, window: WindowId, bytes: u64) -> Result<DeviceAddress, DeviceError> {
        let base = self.windows.reserve(window, bytes)?;
        let scratch = self.windows.scratch(window).into_iter().collect();
        match self.zero(scratch, Place::Device) {
            Ok(()) => Ok(base),
            Err(error) => {
                self.release(window)?;
                Err(error)
            }
        }
    }

    fn release(&mut self, window: WindowId) -> Result<(), DeviceError> {
        // The released memory may still be the target of zeroing.
        let remains =
            self.windows.release(window)?.after(self.zeros.barrier().map(|(_, mark)| mark));
        self.loader.give_back(remains);
        self.without_host.remove(&window);
        for ended in self.arrays.release(window) {
            self.end(ended);
        }
        Ok(())
    }

    fn allocate(&mut self, window: WindowId, range: AddressRange) -> Result<(), DeviceError> {
        self.allocate_at(window, range, Place::Device)
    }

    fn allocate_signals(
        &mut self,
        window: WindowId,
        range: AddressRange,
    ) -> Result<(), DeviceError> {
        self.allocate_at(window, range, self.signals.place())
    }

    fn allocate_words(
        &mut self,
        window: WindowId,
        range: AddressRange,
    ) -> Result<bool, DeviceError> {
        if !self.habits.words {
            return Ok(false);
        }
        match self.allocate_at(window, range, Place::Host) {
            Err(error @ (DeviceError::Unsupported(_) | DeviceError::OutOfMemory { .. })) => {
                tracing::info!(%error, "no host memory for kernels: ends are read by copies");
                Ok(false)
            }
            made => made.map(|()| true),
        }
    }

    fn memory_slack(&self, window: WindowId) -> u64 {
        self.windows.slack(window)
    }

    fn memory_needed(&self, window: WindowId, range: AddressRange) -> u64 {
        self.windows.needed(window, range)
    }

    fn free(&mut self, address: DeviceAddress) -> Result<(), DeviceError> {
        let bytes = self.windows.size_of(address).unwrap_or(0);
        if let Some(remains) = self.windows.free(address)? {
            self.loader.give_back(remains.after(self.zeros.barrier().map(|(_, mark)| mark)));
        }
        self.end_loans(address, bytes);
        Ok(())
    }

    fn sm_groups(&self) -> &[SmSet] {
        self.groups.sms()
    }

    fn load_module(
        &mut self,
        module: ModuleId,
        window: WindowId,
        ptx: Arc<str>,
    ) -> Result<(), DeviceError> {
        self.begin_loading(module, window)?;
        self.loader.load(module, ptx);
        Ok(())
    }

    fn unload_module(&mut self, module: ModuleId) -> Result<(), DeviceError> {
        let loaded =
            self.modules.remove(&module).ok_or_else(|| DeviceError::BadId(module.to_string()))?;
        let window = self.window_of_module.remove(&module);
        self.printing.remove(&module);
        if let Some(placed) = self.placed.remove(&module) {
            // The window and its variables may have been released before.
            let _ = self.windows.free(placed.block.start);
            if let Some(host) = window.and_then(|window| self.windows.host_of(window)) {
                host.free(DeviceAddress(placed.managed));
            }
        }
        self.loader.unload(loaded);
        Ok(())
    }

    fn create_stream(&mut self, stream: StreamId) -> Result<(), DeviceError> {
        self.streams.create(stream)
    }

    fn destroy_stream(&mut self, stream: StreamId) -> Result<(), DeviceError> {
        self.streams.destroy(stream)
    }

    fn enqueue(
        &mut self,
        stream: StreamId,
        operation: OperationId,
        work: Work,
    ) -> Result<(), DeviceError> {
        if let Work::Launch(launch) | Work::LaunchOn { launch, .. } = &work
            && self.guards.contains
            && let Some(&window) = self.window_of_module.get(&launch.module)
        {
            self.windows.fill(window);
        }
        let task = self.task(work)?;
        self.check(&task)?;
        self.streams.enqueue(stream, operation, task)?;
        if !self.lost {
            let mut ended = std::mem::take(&mut self.ended);
            let result = self.submit(Some(stream), &mut ended);
            self.ended = ended;
            match result {
                Ok(()) => {}
                Err(failure) if failure.ends_the_device() => self.failure = Some(failure),
                // The next poll tries again.
                Err(failure) => tracing::debug!(%failure, "an operation was not submitted"),
            }
        }
        Ok(())
    }

    fn cancel(&mut self, operation: OperationId) -> Result<(), DeviceError> {
        if self.streams.cancel(operation) || !self.streams.is_known(operation) {
            return Ok(());
        }
        Err(DeviceError::Unsupported("ending a grid that is on the GPU".to_owned()))
    }

    fn peek(&mut self, address: DeviceAddress, into: &mut [u8]) -> Result<(), DeviceError> {
        if let Some(memory) = self.windows.host_at(address, into.len() as u64) {
            memory.read(0, into);
            return Ok(());
        }
        let place = self.reach(address, into.len() as u64)?;
        self.signals.peek(place, address.0, into).map_err(refused)
    }

    fn peek_lately(
        &mut self,
        address: DeviceAddress,
        into: &mut [u8],
    ) -> Result<bool, DeviceError> {
        if self.windows.host_at(address, into.len() as u64).is_some() {
            return self.peek(address, into).map(|()| true);
        }
        let place = self.reach(address, into.len() as u64)?;
        self.signals.look(place, address.0, into).map_err(refused)
    }

    fn poke(&mut self, address: DeviceAddress, bytes: &[u8]) -> Result<(), DeviceError> {
        if let Some(memory) = self.windows.host_at(address, bytes.len() as u64) {
            memory.write(0, bytes);
            return Ok(());
        }
        let place = self.reach(address, bytes.len() as u64)?;
        self.signals.poke(place, address.0, bytes).map_err(refused)?;
        for (bank, from, length) in
            self.constants_in(AddressRange { start: address, bytes: bytes.len() as u64 })
        {
            let at = usize::try_from(from - address.0).unwrap_or(0);
            let part = at..at + usize::try_from(length).unwrap_or(0);
            self.signals.poke(Place::Device, bank, &bytes[part]).map_err(refused)?;
        }
        Ok(())
    }

    fn relocation(&mut self) -> Option<&mut dyn Relocation> {
        Some(self)
    }

    fn aliasing(&mut self) -> Option<&mut dyn Aliasing> {
        Some(self)
    }

    fn lending(&mut self) -> Option<&mut dyn Lending> {
        Some(self)
    }

    fn host_mapping(&mut self) -> Option<&mut dyn HostMapping> {
        if self.host_access == HostAccess::None { None } else { Some(self) }
    }

    fn tensor_maps(&self) -> Option<&dyn TensorMaps> {
        Some(self)
    }

    fn machine_code(&mut self) -> Option<&mut dyn MachineCode> {
        Some(self)
    }

    fn confining(&mut self) -> Option<&mut dyn Confining> {
        Some(self)
    }

    fn traffic_sampling(&mut self) -> Option<&mut dyn TrafficSampling> {
        if self.traffic.is_some() { Some(self) } else { None }
    }

    fn poll(&mut self, _horizon: Horizon, events: &mut Vec<Event>) -> Activity {
        if self.lost {
            return Activity::Idle;
        }
        self.news.hush();
        let before = events.len();
        if self.is_closed(events) {
            return Activity::Waiting;
        }
        let failed = self.failure.take().map_or(Ok(()), Err);
        if let Err(failure) = failed.and_then(|()| self.advance(events)) {
            self.lose(&failure, events);
            return Activity::Busy;
        }
        if events.len() > before {
            self.last_event = Instant::now();
            return Activity::Busy;
        }
        if self.streams.device_is_idle() {
            for registered in self.locked.take_unused() {
                self.loader.unlock(registered);
            }
        }
        self.change_phase(events);
        if self.phase() == Phase::Closed {
            return Activity::Waiting;
        }
        if self.streams.is_idle() && !self.loader.is_loading() {
            return Activity::Idle;
        }
        let (looks, quiet) = (self.streams.looks_for_values(), self.last_event.elapsed());
        if self.streams.looks_at_host() && !looks && self.streams.device_is_idle() {
            return Activity::Watching;
        }
        let is_patient = quiet >= PATIENT && !self.streams.awaits_event();
        if quiet < ATTENTIVE || (looks && !is_patient) || self.streams.looks_at_host() {
            return Activity::Busy;
        }
        if self.awaits_phase() {
            return Activity::Watching;
        }
        self.streams.arm();
        if looks { Activity::Watching } else { Activity::Waiting }
    }
}

impl Textures for CudaDevice {
    fn create_array(
        &mut self,
        window: WindowId,
        shape: &ArrayShape,
    ) -> Result<DeviceAddress, DeviceError> {
        if !self.windows.knows(window) {
            return Err(DeviceError::BadId(window.to_string()));
        }
        if self.arrays.must_ask(window, shape) {
            self.loader.make_array(window, *shape);
        }
        let (address, stored) = self.arrays.create(window, shape, &self.upkeep)?;
        let texels = Texels { stored, offset: 0 };
        if let Err(failure) = self.zeros.zero_array(&self.upkeep, address.0, &texels) {
            // The array is not zeroed, so no program may ever read it.
            drop(texels);
            self.destroy_array(address)?;
            return Err(refused(failure));
        }
        Ok(address)
    }

    fn destroy_array(&mut self, array: DeviceAddress) -> Result<(), DeviceError> {
        let ended = self.arrays.destroy(array)?;
        self.end(ended);
        Ok(())
    }

    fn create_texture(&mut self, window: WindowId, spec: &TextureSpec) -> Result<u64, DeviceError> {
        if !self.windows.knows(window) {
            return Err(DeviceError::BadId(window.to_string()));
        }
        self.arrays.create_object(window, spec)
    }

    fn destroy_texture(&mut self, window: WindowId, texture: u64) -> Result<(), DeviceError> {
        let ended = self.arrays.destroy_object(window, texture)?;
        self.end(ended);
        Ok(())
    }
}

impl Relocation for CudaDevice {
    /// The data moves by a copy inside the device, for which only streams wait. Unmapping might
    /// wait for grids, and a page may hold several allocations.
    fn relocate(&mut self, from: DeviceAddress, to: DeviceAddress) -> Result<(), DeviceError> {
        let bad_range = DeviceError::BadRange { address: from, bytes: 0 };
        if self.windows.has_own(from) || self.windows.is_lent(from) {
            return Err(DeviceError::Unsupported(
                "moving memory that has several addresses".to_owned(),
            ));
        }
        let bytes = self.windows.size_of(from).ok_or_else(|| bad_range.clone())?;
        let window = self.windows.window_of(from.0).ok_or(bad_range)?;
        let range = AddressRange { start: to, bytes };
        self.allocate_at(window, range, Place::Device)?;
        if let Err(failure) = self.zeros.move_there(&self.upkeep, to.0, from.0, bytes) {
            self.windows.free(to)?;
            return Err(refused(failure));
        }
        self.windows.free(from).map(|_| ())
    }
}

impl Aliasing for CudaDevice {
    fn alias(&mut self, home: DeviceAddress, range: AddressRange) -> Result<(), DeviceError> {
        let window = self.windows.room_for_alias(home, range)?;
        self.make_room(window, (range, Becomes::Alias))?;
        if let Some(moved) = self.windows.make_own(home, &self.zeros)? {
            let (start, bytes) = moved.rest;
            let filled = self
                .zeros
                .move_there(&self.upkeep, moved.to, moved.from, moved.bytes)
                .and_then(|()| {
                    if bytes > 0 {
                        self.zeros.zero(&self.upkeep, Place::Device, start, bytes)
                    } else {
                        Ok(())
                    }
                });
            if let Err(failure) = filled {
                if let Some(remains) = self.windows.unmake_own(home) {
                    self.loader
                        .give_back(remains.after(self.zeros.barrier().map(|(_, mark)| mark)));
                }
                return Err(refused(failure));
            }
        }
        let view = self.windows.alias(home, range, &self.zeros)?;
        self.zeros.share(view, range.start.0, range.bytes);
        Ok(())
    }

    fn protect(&mut self, address: DeviceAddress, access: MemoryAccess) -> Result<(), DeviceError> {
        self.windows.protect(address, access)
    }
}

impl HostMapping for CudaDevice {
    fn most_bytes(&self) -> u64 {
        if self.host_access == HostAccess::Locked { LOCKED_BYTES } else { u64::MAX }
    }

    fn map_host(
        &mut self,
        window: WindowId,
        start: DeviceAddress,
        memory: HostSpan,
        variables: u64,
    ) -> Result<(), DeviceError> {
        self.windows.map_host(window, start, memory, variables)?;
        if self.host_access == HostAccess::Locked
            && let Some(host) = self.windows.host_of(window)
        {
            host.is_locked = true;
            self.loader.lock_window(window, host.range());
        }
        Ok(())
    }
}

impl TensorMaps for CudaDevice {
    fn tensor_map(&self, spec: &TensorMapSpec) -> Result<TensorMap, DeviceError> {
        self.driver.tensor_map(spec).map_err(bad_value)
    }

    fn moved_tensor_map(
        &self,
        map: &TensorMap,
        address: DeviceAddress,
    ) -> Result<TensorMap, DeviceError> {
        self.driver.moved_tensor_map(map, address).map_err(bad_value)
    }
}

/// The driver tells only that parameters do not fit each other.
fn bad_value(failure: Failure) -> DeviceError {
    match failure.is_invalid_value() {
        true => DeviceError::BadValue(failure.to_string()),
        false => DeviceError::Unsupported(failure.to_string()),
    }
}

impl MachineCode for CudaDevice {
    fn load_code(
        &mut self,
        module: ModuleId,
        window: WindowId,
        image: Arc<[u8]>,
    ) -> Result<(), DeviceError> {
        self.begin_loading(module, window)?;
        self.loader.load_code(module, image);
        Ok(())
    }
}

impl Confining for CudaDevice {
    fn is_ready(&self, sms: &SmSet) -> bool {
        self.streams.has_context(sms)
    }

    fn streams(&self) -> usize {
        STREAMS
    }

    fn confine(&mut self, sms: SmSet) -> Result<Confinement, DeviceError> {
        let Some(groups) = self.groups.of(&sms) else {
            return Err(DeviceError::Unsupported(format!("SMs {sms} are no whole groups")));
        };
        if self.streams.has_context(&sms) {
            return Ok(Confinement::Ready);
        }
        if self.confining.contains(&sms) {
            return Ok(Confinement::Pending);
        }
        if self.streams.contexts() + self.confining.len() >= MOST_CONTEXTS {
            match self.streams.take_idle_context() {
                Some(green) => self.loader.end_context(green),
                None => {
                    return Err(DeviceError::Unsupported(format!(
                        "more than {MOST_CONTEXTS} green contexts"
                    )));
                }
            }
        }
        self.confining.insert(sms);
        self.loader.confine(sms, groups);
        Ok(Confinement::Pending)
    }
}

impl TrafficSampling for CudaDevice {
    fn begin_traffic(&mut self, window: u64) {
        if let Some(traffic) = &self.traffic {
            traffic.begin(window);
        }
    }

    fn end_traffic(&mut self, window: u64) {
        if let Some(traffic) = &self.traffic {
            traffic.end(window);
        }
    }

    fn hit_rates(&mut self) -> Vec<(u64, f64)> {
        self.traffic.as_ref().map_or_else(Vec::new, Traffic::take)
    }
}
