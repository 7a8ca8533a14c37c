//! The emulated GPU as a [`Device`].

use super::grid::Grid;
use super::host_shares::HostShares;
use super::stream::{Front, Queued, Stream, Task};
use super::{Cancel, EmulatedGpu, QUANTUM_CYCLES, Timing, UNTIMED_QUANTUM_CYCLES};
use partita_device::{
    Activity, AddressRange, Aliasing, Confinement, Confining, Counting, Device, DeviceError, Event,
    Gating, Guards, Horizon, HostMapping, HostSpan, Lending, LentShape, Outcome, Reading,
    Relocation, ResidencyTrace, SmallWindow, TensorMaps, Textures, Work,
};
use partita_model::tensor_map::{TensorMap, TensorMapSpec, TensorPart};
use partita_model::texture::{ArrayShape, TextureSpec};
use partita_model::{
    DeviceAddress, DeviceCounters, DeviceFacts, GridCounters, HostTime, MemoryAccess, ModuleId,
    Nanos, OperationId, Sharing, SmSet, StreamId, WindowId,
};
use std::sync::Arc;
use std::time::Instant;

impl Device for EmulatedGpu {
    fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    fn calibration(&self) -> partita_model::Calibration {
        self.spec.calibration()
    }

    fn l1(&self) -> partita_model::CacheShape {
        partita_model::CacheShape {
            bytes: self.spec.l1_bytes,
            ways: crate::timing::memory::L1_WAYS as u32,
            fills_lines: self.spec.fill_bytes == crate::exec::trace::LINE_BYTES,
            stores_evict: self.spec.l1_stores_evict,
        }
    }

    fn identity(&self) -> String {
        // The numbers print with all digits, so that reading them gives the same values.
        toml::to_string(&self.spec).unwrap_or_else(|_| format!("{:?}", self.spec))
    }

    fn is_at_rest(&self) -> bool {
        self.rests()
    }

    fn sm_groups(&self) -> &[SmSet] {
        &self.groups
    }

    fn gpcs(&self) -> &[SmSet] {
        &self.gpcs
    }

    fn now(&self) -> Nanos {
        Nanos(self.now / 1000)
    }

    fn reserve(&mut self, window: WindowId, bytes: u64) -> Result<DeviceAddress, DeviceError> {
        self.memory.reserve(window, bytes)
    }

    fn full_windows(&self, bytes: u64) -> usize {
        self.memory.full_windows(bytes)
    }

    fn reserve_small(&mut self, window: WindowId) -> Result<SmallWindow, DeviceError> {
        let range = AddressRange {
            start: self.memory.reserve_small(window)?,
            bytes: partita_ptx::fence::SMALL_WINDOW_BYTES,
        };
        let guards = self.guards();
        let cell_bits = guards.cell_bits.map(|_| partita_ptx::fence::SMALL_CELL_BITS);
        Ok(SmallWindow { range, guards: Guards { cell_bits, ..guards } })
    }

    fn release(&mut self, window: WindowId) -> Result<(), DeviceError> {
        self.contexts.forget(window);
        if let Some(shares) = &mut self.shares {
            shares.forget(window);
        }
        self.memory.release(window)
    }

    fn allocate(&mut self, window: WindowId, range: AddressRange) -> Result<(), DeviceError> {
        let began = self.shares.is_some().then(Instant::now);
        let result = self.memory.allocate(window, range);
        self.charge(Some(window), began);
        result
    }

    fn free(&mut self, address: DeviceAddress) -> Result<(), DeviceError> {
        let payer = self.shares.as_ref().and_then(|_| self.memory.window_of(address));
        let began = payer.map(|_| Instant::now());
        let result = self.memory.free(address);
        self.charge(payer, began);
        result
    }

    fn load_module(
        &mut self,
        module: ModuleId,
        window: WindowId,
        ptx: Arc<str>,
    ) -> Result<(), DeviceError> {
        if self.modules.contains_key(&module) {
            return Err(DeviceError::BadId(module.to_string()));
        }
        let event = match self.load(window, &ptx) {
            Ok((loaded, facts)) => {
                self.modules.insert(module, loaded);
                Event::ModuleLoaded { module, facts }
            }
            Err(reason) => Event::ModuleRefused { module, reason },
        };
        self.events.push_back(event);
        Ok(())
    }

    fn reading(&self) -> Option<Arc<dyn Reading>> {
        Some(Arc::clone(&self.reader) as Arc<dyn Reading>)
    }

    fn unload_module(&mut self, module: ModuleId) -> Result<(), DeviceError> {
        let loaded =
            self.modules.remove(&module).ok_or_else(|| DeviceError::BadId(module.to_string()))?;
        if let Some(address) = loaded.variables {
            // The window and its variables may have been released before.
            let _ = (loaded.window, self.memory.free(address));
        }
        if let Some(address) = loaded.managed {
            self.memory.free_managed(address);
        }
        Ok(())
    }

    fn create_stream(&mut self, stream: StreamId) -> Result<(), DeviceError> {
        if self.streams.streams.contains_key(&stream) {
            return Err(DeviceError::BadId(stream.to_string()));
        }
        self.streams.streams.insert(stream, Stream::default());
        Ok(())
    }

    fn destroy_stream(&mut self, stream: StreamId) -> Result<(), DeviceError> {
        if self.streams.destroy(stream) {
            Ok(())
        } else {
            Err(DeviceError::BadId(stream.to_string()))
        }
    }

    fn enqueue(
        &mut self,
        stream: StreamId,
        operation: OperationId,
        work: Work,
    ) -> Result<(), DeviceError> {
        if self.streams.streams.get(&stream).is_none_or(|found| found.destroyed) {
            return Err(DeviceError::BadId(stream.to_string()));
        }
        if self.streams.pending.contains(&operation) {
            return Err(DeviceError::BadId(operation.to_string()));
        }
        self.check_work(&work)?;
        let what = match work {
            Work::LaunchOn { launch, sms } => {
                Confining::confine(self, sms)?;
                let grid = self.check_launch(operation, launch)?;
                self.grid_task(Grid { sms, ..grid })
            }
            Work::Launch(launch) => {
                let grid = self.check_launch(operation, launch)?;
                self.grid_task(grid)
            }
            work => Task::Work(work),
        };
        if self.streams.push(stream, Queued { operation, since: self.now, what }) {
            Ok(())
        } else {
            Err(DeviceError::BadId(stream.to_string()))
        }
    }

    fn cancel(&mut self, operation: OperationId) -> Result<(), DeviceError> {
        if self.options.cancel == Cancel::Never {
            return Err(DeviceError::Unsupported("ending a grid".to_owned()));
        }
        if self.grids.contains_key(&operation) {
            let mut news = Vec::new();
            self.evict(operation, self.now, &mut news);
            self.digest(news);
            let now = self.now;
            self.end_grid(operation, now, Outcome::Cancelled);
            return Ok(());
        }
        let queued = self.streams.streams.values_mut().any(|stream| {
            let position = stream
                .queue
                .iter()
                .position(|queued| queued.operation == operation && queued.what.can_be_cancelled());
            let waits = matches!(&stream.front, Some((id, Front::Value(..))) if *id == operation);
            if waits {
                stream.front = None;
            }
            waits || position.is_some_and(|position| stream.queue.remove(position).is_some())
        });
        if queued {
            let now = self.now;
            self.done(operation, now, Outcome::Cancelled);
        }
        Ok(())
    }

    fn peek(&mut self, address: DeviceAddress, into: &mut [u8]) -> Result<(), DeviceError> {
        self.memory.read(address, into)
    }

    fn poke(&mut self, address: DeviceAddress, bytes: &[u8]) -> Result<(), DeviceError> {
        if let Some(weak) = &mut self.weak {
            weak.poked(&self.memory, address.0, bytes.len());
        }
        self.memory.write(address, bytes)
    }

    fn host_time(&self) -> Option<HostTime> {
        self.options.host_time.filter(|_| self.options.timing == Timing::On)
    }

    fn sharing(&self) -> Sharing {
        self.options.sharing
    }

    fn guards(&self) -> Guards {
        super::guards(&self.spec, &self.options)
    }

    fn stray_accesses(&self) -> u64 {
        self.memory.strays()
    }

    fn host_bytes(&self, window: WindowId) -> u64 {
        self.memory.resident(window)
    }

    fn tensor_maps(&self) -> Option<&dyn TensorMaps> {
        Some(self)
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
        Some(self)
    }

    fn confining(&mut self) -> Option<&mut dyn Confining> {
        Some(self)
    }

    fn gating(&mut self) -> Option<&mut dyn Gating> {
        Some(self)
    }

    fn residency_trace(&mut self) -> Option<&mut dyn ResidencyTrace> {
        Some(self)
    }

    fn counting(&self) -> Option<&dyn Counting> {
        (self.options.timing == Timing::On).then_some(self as &dyn Counting)
    }

    fn poll(&mut self, horizon: Horizon, events: &mut Vec<Event>) -> Activity {
        let until = horizon.until.map_or(u64::MAX, |until| until.0.saturating_mul(1000));
        let cycles = match self.options.timing {
            Timing::Off if self.weak.is_none() => UNTIMED_QUANTUM_CYCLES,
            _ => QUANTUM_CYCLES,
        };
        let quantum = cycles * self.spec.cycle_ps();
        let mut left = horizon.warp_instructions;
        self.did_piece = false;
        if let Some(shares) = &mut self.shares {
            shares.begin_poll(Instant::now());
        }
        if let (Some(helpers), Some(shares)) = (&mut self.helpers, &self.shares) {
            helpers.end_at(shares.poll_ends());
        }
        loop {
            self.serve_streams();
            let mut news = Vec::new();
            self.take_turns(&mut news);
            self.place_ctas(&mut news);
            super::pay_for_batches(&mut self.helpers, self.shares.as_mut());
            if !self.events.is_empty() || self.did_piece {
                self.digest(news);
                break;
            }
            let Some(next) = self.next_time() else {
                self.digest(news);
                // No event will come by itself; the clock may advance.
                if self.events.is_empty() && until != u64::MAX {
                    self.now = self.now.max(until);
                }
                break;
            };
            if next >= until && next > self.now {
                self.digest(news);
                self.now = self.now.max(until);
                break;
            }
            if next > self.now {
                // A front may begin or end, and a grid may start, at that time, before the turn.
                self.now = next;
                self.digest(news);
                continue;
            }
            if self.now >= until {
                self.digest(news);
                break;
            }
            let quantum =
                self.shares.as_ref().map_or(quantum, |shares| shares.time_of_turn(quantum));
            let mut end = (self.now + quantum).min(until).min(self.slice_end());
            if self.options.timing == Timing::Off {
                // The host may wait for a copy while kernels use all of its time.
                end = self.streams.next_end_after(self.now).map_or(end, |next| end.min(next));
            }
            let executed = self.turn(end, &mut news);
            // Fronts that end inside the turn are served at the turn's end.
            self.now = end;
            self.digest(news);
            left = left.saturating_sub(executed.max(1));
            let is_over = self.shares.as_ref().is_some_and(HostShares::is_poll_over);
            if !self.events.is_empty() || left == 0 || self.now >= until || is_over {
                break;
            }
        }
        if let Some(shares) = &mut self.shares
            && !self.grids.is_empty()
        {
            shares.pause();
        }
        events.extend(self.events.drain(..));
        self.activity(horizon.until)
    }
}

impl Textures for EmulatedGpu {
    fn create_array(
        &mut self,
        window: WindowId,
        shape: &ArrayShape,
    ) -> Result<DeviceAddress, DeviceError> {
        self.memory.create_array(window, shape)
    }

    fn destroy_array(&mut self, array: DeviceAddress) -> Result<(), DeviceError> {
        self.memory.destroy_array(array)
    }

    fn create_texture(&mut self, window: WindowId, spec: &TextureSpec) -> Result<u64, DeviceError> {
        self.memory.create_texture(window, spec)
    }

    fn destroy_texture(&mut self, window: WindowId, texture: u64) -> Result<(), DeviceError> {
        self.memory.destroy_texture(window, texture)
    }
}

impl TensorMaps for EmulatedGpu {
    fn tensor_map(&self, spec: &TensorMapSpec) -> Result<TensorMap, DeviceError> {
        spec.check().map_err(|error| DeviceError::BadValue(error.to_string()))?;
        let unknown = match spec {
            _ if self.facts.compute_capability.major < 9 => "GPUs before capability 9.0",
            _ if spec.element_bytes() == 0 => "packed elements of 4 or 6 bits",
            _ if spec.interleave != 0 => "interleaved tensors",
            _ if matches!(spec.part, TensorPart::Wide { .. }) => "wide columns",
            _ => return Ok(spec.packed()),
        };
        Err(DeviceError::Unsupported(format!("tensor maps of {unknown} are not emulated")))
    }

    fn moved_tensor_map(
        &self,
        map: &TensorMap,
        address: DeviceAddress,
    ) -> Result<TensorMap, DeviceError> {
        let none = || DeviceError::BadValue("these bytes are no tensor map".to_owned());
        let spec = TensorMapSpec::unpacked(map).ok_or_else(none)?;
        self.tensor_map(&TensorMapSpec { address, ..spec })
    }
}

impl Relocation for EmulatedGpu {
    fn relocate(&mut self, from: DeviceAddress, to: DeviceAddress) -> Result<(), DeviceError> {
        self.memory.relocate(from, to)
    }
}

impl Aliasing for EmulatedGpu {
    fn alias(&mut self, home: DeviceAddress, range: AddressRange) -> Result<(), DeviceError> {
        self.memory.alias(home, range)
    }

    fn protect(&mut self, address: DeviceAddress, access: MemoryAccess) -> Result<(), DeviceError> {
        self.memory.protect(address, access)
    }
}

impl Lending for EmulatedGpu {
    fn lent_shape(&self, home: DeviceAddress) -> Result<LentShape, DeviceError> {
        self.memory.lent_shape(home)
    }

    fn lend(&mut self, home: DeviceAddress, to: DeviceAddress) -> Result<(), DeviceError> {
        self.memory.lend(home, to)
    }
}

impl HostMapping for EmulatedGpu {
    fn map_host(
        &mut self,
        window: WindowId,
        start: DeviceAddress,
        memory: HostSpan,
        variables: u64,
    ) -> Result<(), DeviceError> {
        self.memory.map_host(window, start, memory, variables)
    }
}

/// A grid is kept to its SMs by the block scheduler, so there is nothing to make ready.
impl Confining for EmulatedGpu {
    fn is_ready(&self, sms: &SmSet) -> bool {
        let inside = self.groups.iter().filter(|group| group.difference(sms).is_empty());
        inside.fold(SmSet::EMPTY, |all, group| all.union(group)) == *sms && !sms.is_empty()
    }

    fn confine(&mut self, sms: SmSet) -> Result<Confinement, DeviceError> {
        if !self.is_ready(&sms) {
            return Err(DeviceError::Unsupported(format!("SMs {sms} are no whole groups")));
        }
        Ok(Confinement::Ready)
    }

    fn streams(&self) -> usize {
        usize::MAX
    }
}

impl Gating for EmulatedGpu {
    fn gate(&mut self, sms: SmSet) -> Result<(), DeviceError> {
        self.set_gated(sms);
        Ok(())
    }
}

impl ResidencyTrace for EmulatedGpu {
    fn trace_residency(&mut self, on: bool) -> Result<(), DeviceError> {
        self.residency = on;
        Ok(())
    }
}

impl Counting for EmulatedGpu {
    fn grid_counters(&self, operation: OperationId) -> Option<GridCounters> {
        (self.options.timing == Timing::On).then(|| self.counters_of(operation)).flatten()
    }

    fn counters(&self) -> DeviceCounters {
        self.totals()
    }
}
