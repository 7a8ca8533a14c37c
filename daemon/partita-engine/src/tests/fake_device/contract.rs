//! The contract of every device.

use super::{FakeDevice, Grid, Kernel, SPINS_FROM, Traits};
use partita_device::{
    Activity, AddressRange, Confinement, Confining, Counting, Device, DeviceError, Event, Gating,
    Horizon, KernelFacts, Lending, LentShape, MachineCode, ModuleFacts, Outcome, Phase, Relocation,
    ResidencyTrace, Textures, TrafficSampling, Work,
};
use partita_model::control::TOTAL;
use partita_model::texture::{ArrayShape, TextureSpec};
use partita_model::{
    Bytes, DeviceAddress, DeviceCounters, DeviceFacts, GridCounters, ModuleId, Nanos, OperationId,
    SmSet, StreamId, WindowId,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

impl Device for FakeDevice {
    fn calibration(&self) -> partita_model::Calibration {
        partita_model::Calibration {
            sms: self.facts.sm_count,
            sm_clock_khz: self.facts.sm_clock_khz,
            warp_instructions_per_cycle: 2.0,
            access_bytes: 32,
            noc_bytes_per_second: 200e9,
            llc_bytes_per_second: 200e9,
            dram_bytes_per_second: 100e9,
            dram_utilisation: 0.5,
        }
    }

    fn guards(&self) -> partita_device::Guards {
        partita_device::Guards { cell_bits: Some(24), ends: true, prints: false, contains: false }
    }

    fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    fn now(&self) -> Nanos {
        Nanos(self.now)
    }

    fn reserve(&mut self, window: WindowId, bytes: u64) -> Result<DeviceAddress, DeviceError> {
        let start = DeviceAddress(self.next_base);
        self.next_base += bytes.next_multiple_of(2 << 20);
        assert!(self.windows.insert(window, AddressRange { start, bytes }).is_none());
        Ok(start)
    }

    fn release(&mut self, window: WindowId) -> Result<(), DeviceError> {
        let range = self.windows.remove(&window).ok_or(DeviceError::BadId(window.to_string()))?;
        let uses = |grid: &Grid| grid.launch.access.contains(&range);
        assert!(!self.grids.iter().any(uses), "{window} is in use");
        self.memory.retain(|start, _| !range.contains(DeviceAddress(*start), 1));
        let (memory, arrays) = (&mut self.memory, &mut self.arrays);
        arrays.retain(|array, owner| *owner != window || memory.remove(array).is_none());
        self.textures.retain(|_, owner| *owner != window);
        Ok(())
    }

    fn allocate(&mut self, window: WindowId, range: AddressRange) -> Result<(), DeviceError> {
        assert!(self.windows[&window].contains(range.start, range.bytes));
        let used: usize = self.memory.values().map(Vec::len).sum();
        let available = self.facts.memory.0 - u64::try_from(used).unwrap();
        if range.bytes > available {
            return Err(DeviceError::OutOfMemory { wanted: range.bytes, available });
        }
        self.memory.insert(range.start.0, vec![0; usize::try_from(range.bytes).unwrap()]);
        Ok(())
    }

    fn allocate_words(
        &mut self,
        window: WindowId,
        range: AddressRange,
    ) -> Result<bool, DeviceError> {
        if self.has_words {
            self.allocate(window, range)?;
            self.words = Some(range);
        }
        Ok(self.has_words)
    }

    fn memory_slack(&self, window: WindowId) -> u64 {
        let live = self.live(window);
        let kept = self.pieces(&live).len() as u64 * self.piece;
        kept.saturating_sub(live.iter().map(|(at, end)| end - at).sum())
    }

    fn memory_needed(&self, window: WindowId, range: AddressRange) -> u64 {
        let mut live = self.live(window);
        let before = self.pieces(&live).len() as u64;
        live.push((range.start.0, range.end()));
        match self.piece {
            0 => range.bytes.next_multiple_of(512),
            piece => (self.pieces(&live).len() as u64 - before) * piece,
        }
    }

    fn free(&mut self, address: DeviceAddress) -> Result<(), DeviceError> {
        match self.memory.remove(&address.0) {
            Some(_) => Ok(()),
            None => Err(DeviceError::BadRange { address, bytes: 0 }),
        }
    }

    fn sm_groups(&self) -> &[SmSet] {
        &self.groups
    }

    fn load_module(
        &mut self,
        module: ModuleId,
        _: WindowId,
        ptx: Arc<str>,
    ) -> Result<(), DeviceError> {
        let mut kernels = BTreeMap::new();
        let mut facts = ModuleFacts { variables: self.variables.clone(), ..Default::default() };
        for line in ptx.lines() {
            let mut words = line.split_whitespace();
            let name = words.next().unwrap().to_owned();
            let Some(micros) = words.next().and_then(|word| word.parse::<u64>().ok()) else {
                self.events.push_back(Event::ModuleRefused {
                    module,
                    reason: "line 1: malformed".to_owned(),
                });
                return Ok(());
            };
            let registers = words.next().map_or(16, |word| word.parse().unwrap());
            facts.kernels.push(KernelFacts {
                name: name.clone(),
                registers,
                static_shared: Bytes(0),
                local: Bytes(0),
                max_threads: (65_536 / registers / 32 * 32).min(1024),
                required_cluster: None,
            });
            let traits = Traits {
                faults: name.starts_with("fault"),
                shares: name.starts_with("shared"),
                is_ticket: name.contains("ticket") && !name.ends_with("-original"),
                spins_from: name
                    .starts_with("spin")
                    .then(|| if name.starts_with("spin-some") { SPINS_FROM } else { 0 }),
            };
            kernels.insert(name, Kernel { nanos: micros * 1_000, registers, traits });
        }
        self.modules.insert(module, kernels);
        let loaded = Event::ModuleLoaded { module, facts };
        if self.loading_waits {
            self.held_loads.push(loaded)
        } else {
            self.events.push_back(loaded)
        }
        Ok(())
    }

    fn unload_module(&mut self, module: ModuleId) -> Result<(), DeviceError> {
        assert!(!self.grids.iter().any(|grid| grid.launch.module == module), "{module} is in use");
        self.modules.remove(&module).map(|_| ()).ok_or(DeviceError::BadId(module.to_string()))
    }

    fn create_stream(&mut self, stream: StreamId) -> Result<(), DeviceError> {
        assert!(self.streams.insert(stream, VecDeque::new()).is_none());
        Ok(())
    }

    fn destroy_stream(&mut self, stream: StreamId) -> Result<(), DeviceError> {
        match self.streams.get(&stream) {
            None => return Err(DeviceError::BadId(stream.to_string())),
            Some(queue) if queue.is_empty() => drop(self.streams.remove(&stream)),
            Some(_) => drop(self.closing.insert(stream)),
        }
        Ok(())
    }

    fn enqueue(
        &mut self,
        stream: StreamId,
        operation: OperationId,
        work: Work,
    ) -> Result<(), DeviceError> {
        self.messages.operations += 1;
        if let Work::Launch(launch) | Work::LaunchOn { launch, .. } = &work {
            let kernel = &self.modules[&launch.module][&*launch.kernel];
            if kernel.registers > 255 {
                return Err(DeviceError::BadLaunch("too many registers".to_owned()));
            }
            assert!(!launch.grid.is_empty());
        }
        self.streams
            .get_mut(&stream)
            .ok_or(DeviceError::BadId(stream.to_string()))?
            .push_back((operation, work));
        assert!(self.pending.insert(operation));
        Ok(())
    }

    fn cancel(&mut self, operation: OperationId) -> Result<(), DeviceError> {
        if !self.can_cancel {
            return Err(DeviceError::Unsupported("ending grids".to_owned()));
        }
        if let Some(i) =
            self.grids.iter().position(|grid| grid.operation == operation && !grid.cancelled)
        {
            self.end_grid(i, Outcome::Cancelled);
            self.grids.retain(|grid| !grid.cancelled);
            return Ok(());
        }
        for queue in self.streams.values_mut() {
            if let Some(at) = queue.iter().position(|(queued, _)| *queued == operation) {
                queue.remove(at);
                self.done(operation, Outcome::Cancelled);
                return Ok(());
            }
        }
        Ok(())
    }

    fn peek(&mut self, address: DeviceAddress, into: &mut [u8]) -> Result<(), DeviceError> {
        let bytes = into.len();
        let is_word = self.words.is_some_and(|words| words.contains(address, bytes as u64));
        self.messages.peeks += usize::from(!is_word);
        let error = DeviceError::BadRange { address, bytes: u64::try_from(bytes).unwrap() };
        into.copy_from_slice(self.span(address.0, bytes).ok_or(error)?);
        Ok(())
    }

    fn peek_lately(
        &mut self,
        address: DeviceAddress,
        into: &mut [u8],
    ) -> Result<bool, DeviceError> {
        let peeks = self.messages.peeks;
        let looked = self.look(address, into);
        // The owner waits for no look.
        self.messages.peeks = peeks;
        looked
    }

    fn poke(&mut self, address: DeviceAddress, bytes: &[u8]) -> Result<(), DeviceError> {
        self.messages.pokes += 1;
        // The longest look is at a control block.
        let near = address.0.saturating_sub(8192)..address.0 + u64::try_from(bytes.len()).unwrap();
        self.looks.retain(|at, _| !near.contains(at));
        let error = DeviceError::BadRange { address, bytes: u64::try_from(bytes.len()).unwrap() };
        self.span(address.0, bytes.len()).ok_or(error)?.copy_from_slice(bytes);
        if u64::try_from(bytes.len()).unwrap() > TOTAL {
            assert!(
                !self
                    .grids
                    .iter()
                    .any(|grid| grid.block.is_some_and(|(block, _)| block == address)),
                "a control block is reused while a grid uses it"
            );
            self.executed.remove(&address.0);
        }
        Ok(())
    }

    fn loading_waits_for_grids(&self) -> bool {
        self.loading_waits
    }

    fn launches_may_leave(&self) -> bool {
        self.may_leave
    }

    fn phase(&self) -> Phase {
        self.phase
    }

    fn lending(&mut self) -> Option<&mut dyn Lending> {
        Some(self)
    }

    fn relocation(&mut self) -> Option<&mut dyn Relocation> {
        Some(self)
    }

    fn machine_code(&mut self) -> Option<&mut dyn MachineCode> {
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
        self.counted.as_ref().map(|_| self as &dyn Counting)
    }

    fn traffic_sampling(&mut self) -> Option<&mut dyn TrafficSampling> {
        Some(self)
    }

    fn poll(&mut self, horizon: Horizon, events: &mut Vec<Event>) -> Activity {
        loop {
            if self.pending.is_empty() {
                self.events.extend(self.held_loads.drain(..));
            }
            let ready = self.events.iter().filter_map(|event| match event {
                Event::Confined { sms, result: Ok(()) } => Some(*sms),
                _ => None,
            });
            self.confined.extend(ready);
            if !self.events.is_empty() {
                events.extend(self.events.drain(..));
                return Activity::Busy;
            }
            if self.pending.is_empty() {
                return Activity::Idle;
            }
            if horizon.until.is_some_and(|until| self.now >= until.0) {
                return Activity::Busy;
            }
            self.advance();
        }
    }
}

impl Textures for FakeDevice {
    fn create_array(
        &mut self,
        window: WindowId,
        shape: &ArrayShape,
    ) -> Result<DeviceAddress, DeviceError> {
        assert!(self.windows.contains_key(&window));
        let start = self.next_array;
        self.next_array += shape.bytes() + 1;
        self.arrays.insert(start, window);
        self.memory.insert(start, vec![0; usize::try_from(shape.bytes()).unwrap()]);
        Ok(DeviceAddress(start))
    }

    fn destroy_array(&mut self, array: DeviceAddress) -> Result<(), DeviceError> {
        assert!(self.arrays.remove(&array.0).is_some(), "no array at {array}");
        self.free(array)
    }

    fn create_texture(&mut self, window: WindowId, _: &TextureSpec) -> Result<u64, DeviceError> {
        assert!(self.windows.contains_key(&window));
        let texture = u64::try_from(self.textures.len()).unwrap() + 1;
        self.textures.insert(texture, window);
        Ok(texture)
    }

    fn destroy_texture(&mut self, window: WindowId, texture: u64) -> Result<(), DeviceError> {
        assert_eq!(self.textures.remove(&texture), Some(window));
        Ok(())
    }
}

impl Relocation for FakeDevice {
    fn relocate(&mut self, from: DeviceAddress, to: DeviceAddress) -> Result<(), DeviceError> {
        let bad = DeviceError::BadRange { address: from, bytes: 0 };
        let bytes = self.memory.remove(&from.0).ok_or(bad)?;
        assert!(self.memory.insert(to.0, bytes).is_none(), "something lies in the way");
        Ok(())
    }
}

/// Each address has bytes of its own: the engine reads none of them.
impl Lending for FakeDevice {
    fn lent_shape(&self, home: DeviceAddress) -> Result<LentShape, DeviceError> {
        let bad = DeviceError::BadRange { address: home, bytes: 0 };
        let memory = self.memory.get(&home.0).ok_or(bad)?;
        Ok(LentShape { before: 1024, bytes: memory.len() as u64 + 2048, alignment: 4096 })
    }

    fn lend(&mut self, home: DeviceAddress, to: DeviceAddress) -> Result<(), DeviceError> {
        let LentShape { before, bytes, alignment } = self.lent_shape(home)?;
        let start = DeviceAddress(to.0 - before);
        assert!(start.0.is_multiple_of(alignment));
        let window = self.windows.values().find(|window| window.contains(start, bytes)).unwrap();
        assert!(!window.contains(home, 1), "the same window");
        let inside = self.memory.range(start.0..start.0 + bytes).next();
        assert!(inside.is_none(), "something lies in the way");
        let bytes = self.memory[&home.0].clone();
        self.memory.insert(to.0, bytes);
        Ok(())
    }
}

impl MachineCode for FakeDevice {
    fn load_code(
        &mut self,
        module: ModuleId,
        window: WindowId,
        image: Arc<[u8]>,
    ) -> Result<(), DeviceError> {
        self.load_module(module, window, std::str::from_utf8(&image).unwrap().into())
    }
}

impl Confining for FakeDevice {
    fn streams(&self) -> usize {
        self.confined_streams
    }

    fn is_ready(&self, sms: &SmSet) -> bool {
        self.confined.contains(sms)
    }

    fn confine(&mut self, sms: SmSet) -> Result<Confinement, DeviceError> {
        let whole = self.groups.iter().filter(|group| group.difference(&sms).is_empty());
        assert_eq!(
            whole.fold(SmSet::EMPTY, |all, group| all.union(group)),
            sms,
            "whole groups only"
        );
        if self.confined.contains(&sms) {
            return Ok(Confinement::Ready);
        }
        let result = self.confines_none.clone().map_or(Ok(()), Err);
        let ready = Event::Confined { sms, result };
        assert!(!self.held_loads.contains(&ready) && !self.events.contains(&ready), "asked once");
        if self.loading_waits {
            self.held_loads.push(ready)
        } else {
            self.events.push_back(ready)
        }
        Ok(Confinement::Pending)
    }
}

impl Gating for FakeDevice {
    fn gate(&mut self, sms: SmSet) -> Result<(), DeviceError> {
        self.gated = sms;
        Ok(())
    }
}

impl ResidencyTrace for FakeDevice {
    fn trace_residency(&mut self, on: bool) -> Result<(), DeviceError> {
        self.trace = on;
        Ok(())
    }
}

impl Counting for FakeDevice {
    fn grid_counters(&self, operation: OperationId) -> Option<GridCounters> {
        self.counted.as_ref()?.get(&operation).copied()
    }

    fn counters(&self) -> DeviceCounters {
        DeviceCounters::default()
    }
}

impl TrafficSampling for FakeDevice {
    fn begin_traffic(&mut self, window: u64) {
        self.traffic.0 = Some(window);
    }

    fn end_traffic(&mut self, window: u64) {
        assert_eq!(self.traffic.0.take(), Some(window), "only what is open ends");
        self.traffic.1.push(window);
    }

    fn hit_rates(&mut self) -> Vec<(u64, f64)> {
        let Some(rate) = self.hit_rate else { return Vec::new() };
        self.traffic.1.drain(..).map(|window| (window, rate)).collect()
    }
}
