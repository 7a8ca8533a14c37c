//! Streams: what is at their heads begins, and ends at once unless it is a grid or waits.

use super::{FakeDevice, Grid};
use partita_device::{GridSpec, Outcome, Work};
use partita_model::{DeviceAddress, OperationId, SmSet, StreamId};

impl FakeDevice {
    /// Starts what is at the head of a stream.
    pub(super) fn start_heads(&mut self) {
        let streams: Vec<StreamId> = self.streams.keys().copied().collect();
        for stream in streams {
            while let Some((operation, work)) =
                self.streams.get(&stream).and_then(|queue| queue.front()).cloned()
            {
                if self.grids.iter().any(|grid| grid.operation == operation) {
                    break;
                }
                match work {
                    Work::Launch(launch) => {
                        self.start_grid(stream, operation, launch, None);
                        break;
                    }
                    Work::LaunchOn { launch, sms } => {
                        self.kept_to.push(sms);
                        self.start_grid(stream, operation, launch, Some(sms));
                        break;
                    }
                    Work::Wait { on } if self.pending.contains(&on) => break,
                    Work::WaitValue { address, word }
                        if !word.holds(self.get(address.0, word.width.into())) =>
                    {
                        break;
                    }
                    Work::CopyOnDevice { to, from, bytes } => {
                        let bytes = usize::try_from(bytes).unwrap();
                        let data = self.span(from.0, bytes).expect("use after free").to_vec();
                        self.span(to.0, bytes).expect("use after free").copy_from_slice(&data);
                    }
                    Work::Fill { to, value, width, count } => {
                        let bytes = usize::try_from(u64::from(width) * count).unwrap();
                        let span = self.span(to.0, bytes).expect("use after free");
                        for element in span.chunks_exact_mut(width.into()) {
                            element.copy_from_slice(&value.to_le_bytes()[..width.into()]);
                        }
                    }
                    Work::CopyToDevice { to, from } => {
                        let mut data = vec![0; usize::try_from(from.bytes()).unwrap()];
                        from.read(0, &mut data);
                        self.copied.push((to.0, from.bytes()));
                        self.span(to.0, data.len()).expect("use after free").copy_from_slice(&data);
                    }
                    Work::CopyToHost { to, from } => {
                        let bytes = usize::try_from(to.bytes()).unwrap();
                        let data = self.span(from.0, bytes).expect("use after free").to_vec();
                        to.write(0, &data);
                        self.copied.push((from.0, to.bytes()));
                    }
                    Work::Marker | Work::Wait { .. } | Work::WaitValue { .. } => {}
                }
                self.pop(stream);
                self.done(operation, Outcome::Complete);
            }
        }
    }

    pub(super) fn pop(&mut self, stream: StreamId) {
        let queue = self.streams.get_mut(&stream).unwrap();
        queue.pop_front();
        if queue.is_empty() && self.closing.remove(&stream) {
            self.streams.remove(&stream);
        }
    }

    fn start_grid(
        &mut self,
        stream: StreamId,
        operation: OperationId,
        launch: GridSpec,
        sms: Option<SmSet>,
    ) {
        let kernel = &self.modules[&launch.module][&*launch.kernel];
        let pointer =
            || u64::from_le_bytes(launch.params[launch.params.len() - 8..].try_into().unwrap());
        let is_worker = launch.access.len() >= 2 && !launch.kernel.ends_with("alone");
        self.workspaces.extend((&*launch.kernel == "grid-alone").then(pointer));
        if launch.cluster.count() > 1 {
            self.clusters.push((launch.grid.count(), launch.cluster.count()));
        }
        let abort =
            (kernel.traits.spins_from.is_some() && !is_worker && sms.is_none()).then(pointer);
        let block = is_worker.then(|| {
            let pointer = pointer();
            (DeviceAddress(pointer & !31), u32::try_from(pointer & 31).unwrap())
        });
        if launch.kernel.contains("slice-") {
            let first = u64::from_le_bytes(launch.params[16..24].try_into().unwrap());
            self.slices.push((first, first + u64::from(launch.grid.x)));
        }
        self.grids_started += 1;
        self.launched.push(launch.kernel.clone());
        self.grids.push(Grid {
            operation,
            stream,
            nanos: kernel.nanos,
            traits: kernel.traits,
            block,
            sms,
            abort,
            next_cta: 0,
            ctas: Vec::new(),
            cancelled: false,
            launch,
        });
    }
}
