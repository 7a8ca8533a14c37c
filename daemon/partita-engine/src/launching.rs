//! Launches: what is checked, and when they may go. [`crate::layout`] has with how many workers,
//! [`crate::endings`] how they end.
//!
//! # Who may go
//!
//! Most kernels are workers, some tickets ([`crate::tickets`]); what is said of workers holds for
//! both. Some have their original beside it, and launches that the form cannot serve take that
//! ([`crate::Fallback`]).
//!
//! A kernel in its original form cannot be confined to a partition, so no other application may
//! have grids on the device while it runs. Every launch takes its turn by its ticket, the
//! operation's id: a worker launch waits while another application's original is in flight or waits
//! with a lower ticket; an original waits while anything of another application is in flight, or an
//! original of another application waits with a lower ticket. Lower tickets run out, so nobody
//! starves; whoever holds the lowest ticket waits only for what is in flight, so nobody deadlocks.
//! Inside an application, launches start in order of their tickets as room allows.

use crate::arrivals::Arrivals;
use crate::control_block::{Shape, Telemetry, signal_range};
use crate::engine::Waiting;
use crate::ledger::Usage;
use crate::requests::{Answer, Refusal};
use crate::state::{
    Kernel, Launch, LaunchForm, LaunchSpec, LoadedInstance, Module, Queued, Then, Worker,
};
use crate::watchdog::Watch;
use crate::window::Window;
use crate::{Action, Engine, Fence, KernelForm, LogLevel, Payload};
use partita_device::{Device, KernelFacts, Work};
use partita_model::control::COMPLETED;
use partita_model::request;
use partita_model::{
    ApplicationId, AwaitedWord, CudaResult, DeviceAddress, Dim3, KernelReport, LaunchId, Nanos,
    OperationId, SessionId, Sharing, SmSet, StreamId, TenantId,
};
use std::collections::BTreeSet;

/// Kernels that an application's report lists.
const MAX_KERNEL_REPORTS: usize = 1024;
/// Limits of CUDA's grids and blocks ("Technical Specifications per Compute Capability").
const MAX_GRID: Dim3 = Dim3::new((1 << 31) - 1, 65_535, 65_535);
const MAX_BLOCK: Dim3 = Dim3::new(1024, 1024, 64);

/// What becomes of a launch that may go: what to submit, or nothing where its session has failed;
/// given back where it has to wait.
pub(crate) type Started = Result<Option<Work>, Box<LaunchSpec>>;

/// What becomes of a launch at the head of its queue.
pub(crate) enum Start {
    /// This is submitted.
    Submit(Work),
    /// It has to wait.
    Wait,
    /// Its session fails.
    Failed,
}

impl Engine {
    /// Takes a launch request.
    pub(crate) fn launch(
        &mut self,
        device: &mut dyn Device,
        id: SessionId,
        request: request::Launch,
    ) -> Answer {
        let stream = self.stream_of(id, request.stream)?;
        let session = self.sessions.get(&id).ok_or(CudaResult::ERROR_INVALID_HANDLE)?;
        let application = session.application;
        let Some(Module::Loaded(instance)) = session.modules.get(&request.module) else {
            return Err(CudaResult::ERROR_INVALID_HANDLE.into());
        };
        let mut spec = self.check_launch(instance, request)?;
        spec.awaits_host = spec.kernel.awaits && session.window.names_host(&spec.params);
        let (tenant, base) = (session.identity.tenant, session.window.range().start);
        self.fence_launch(tenant, base, &mut spec)?;
        let before = self.cut_launch(id, &mut spec);
        self.count_launch(application, &spec);
        for mut spec in before.into_iter().map(Box::new).chain([spec]) {
            spec.launch = LaunchId(self.next_id());
            let then = Then::Main(spec.launch);
            if spec.form() == LaunchForm::MachineCode {
                self.needs_groups(application);
            }
            if spec.is_confined() {
                self.demand_began(device.now(), application);
            }
            self.append(id, stream, Queued::Launch(spec), then, None);
        }
        Ok(Payload::None)
    }

    /// Gives a kernel that keeps to its window by itself the window; refuses one that does not keep
    /// to it, unless its tenant may run such.
    fn fence_launch(
        &self,
        tenant: TenantId,
        window: DeviceAddress,
        spec: &mut LaunchSpec,
    ) -> Result<(), Refusal> {
        match (&spec.kernel.fence, self.guards.cell_bits) {
            (Fence::Code, Some(bits)) => {
                let cell = window.0 & !((1 << bits) - 1);
                spec.params.resize(spec.params.len().next_multiple_of(8), 0);
                spec.params.extend_from_slice(&cell.to_le_bytes());
                Ok(())
            }
            (Fence::None(why), _) if !self.may_run_unfenced(tenant) => {
                let text = format!(
                    "kernel `{}` cannot be held to its program's memory, and {tenant} may not run \
                     such kernels: {why}; an \
                     administrator may allow it by `[[policy.unfenced]]`",
                    spec.kernel.name
                );
                Err(Refusal::Explained(CudaResult::ERROR_NOT_PERMITTED, text))
            }
            _ => Ok(()),
        }
    }

    /// Whether kernels of a tenant may run that could reach other tenants' memory.
    fn may_run_unfenced(&self, tenant: TenantId) -> bool {
        may_run(&self.unfenced, tenant)
    }

    /// Says which tenants may run kernels that nothing holds to their own memory; `None`: all.
    pub fn set_unfenced(&mut self, tenants: impl IntoIterator<Item = Option<TenantId>>) {
        self.unfenced = tenants.into_iter().collect();
    }

    /// What CUDA checks at a launch, with CUDA's codes.
    fn check_launch(
        &self,
        instance: &LoadedInstance,
        request: request::Launch,
    ) -> Result<Box<LaunchSpec>, Refusal> {
        let invalid = |text: String| Refusal::Explained(CudaResult::ERROR_INVALID_VALUE, text);
        let kernel =
            usize::try_from(request.kernel).ok().and_then(|index| instance.kernels.get(index));
        let kernel = kernel.ok_or(CudaResult::ERROR_INVALID_HANDLE)?.clone();
        let (grid, block) = (request.grid, request.block);
        if grid.is_empty() || exceeds(grid, MAX_GRID) {
            return Err(invalid(format!("grid {grid} is outside 1,1,1 to {MAX_GRID}")));
        }
        if block.is_empty()
            || exceeds(block, MAX_BLOCK)
            || block.count() > self.facts.threads_per_cta.into()
        {
            let most = self.facts.threads_per_cta;
            return Err(invalid(format!("block {block} is empty or has more than {most} threads")));
        }
        if request.params.len() != usize::try_from(kernel.param_bytes).unwrap_or(usize::MAX) {
            let (has, wants) = (request.params.len(), kernel.param_bytes);
            return Err(invalid(format!(
                "kernel `{}` takes {wants} bytes of parameters, not {has}",
                kernel.name
            )));
        }
        let (cta, fallback) = self.choose_form(&kernel, &request)?;
        Ok(Box::new(LaunchSpec {
            launch: LaunchId(0),
            module: instance.id,
            kernel,
            lines: instance.lines.clone(),
            grid,
            first: 0,
            end: u64::try_from(grid.count()).unwrap_or(u64::MAX),
            block,
            dynamic_shared: request.dynamic_shared,
            params: request.params,
            awaits_host: false,
            count: None,
            profile: None,
            cta,
            cooperative: request.cooperative,
            fallback,
        }))
    }

    /// What a CTA takes up, and why the launch needs the fallback form, if it does.
    fn choose_form(
        &self,
        kernel: &Kernel,
        request: &request::Launch,
    ) -> Result<(Usage, Option<String>), Refusal> {
        let (block, dynamic_shared) = (request.block, request.dynamic_shared);
        let worker = known(&kernel.facts, &kernel.name)?;
        if kernel.is_machine_code && request.cooperative {
            let why = "machine code, launched cooperatively: all its CTAs must be resident at once"
                .to_owned();
            return Ok((self.check_resources(worker, block, dynamic_shared)?, Some(why)));
        }
        let as_worker = self.check_resources(worker, block, dynamic_shared);
        let (Some(fallback), Some(original)) = (kernel.form.fallback(), &kernel.fallback_facts)
        else {
            return Ok((as_worker?, None));
        };
        let why = if request.cooperative {
            "it is launched cooperatively, so all its CTAs must be resident at once".to_owned()
        } else if fallback.for_broken_rows && !rows_fill_warps(block) {
            format!(
                "its lanes synchronise after an exit, and the worker form is right only for \
                 blocks whose rows fill \
                 warps; one of {block} is launched (make x a multiple of 32)"
            )
        } else {
            match as_worker {
                Ok(cta) => return Ok((cta, None)),
                Err(_) => "with what its form adds, its CTA does not fit an SM".to_owned(),
            }
        };
        let original = known(original, &kernel.name)?;
        Ok((self.check_resources(original, block, dynamic_shared)?, Some(why)))
    }

    pub(crate) fn check_resources(
        &self,
        facts: &KernelFacts,
        block: Dim3,
        dynamic_shared: u32,
    ) -> Result<Usage, Refusal> {
        let threads = u32::try_from(block.count()).map_err(|_| CudaResult::ERROR_INVALID_VALUE)?;
        let shared = facts.static_shared.0 + u64::from(dynamic_shared);
        if shared > self.facts.shared_per_cta_optin.0 {
            let most = self.facts.shared_per_cta_optin;
            let text = format!("{shared} B of shared memory per CTA are more than {most}");
            return Err(Refusal::Explained(CudaResult::ERROR_INVALID_VALUE, text));
        }
        let cta = Usage::of_cta(&self.facts, facts, threads, dynamic_shared);
        if threads > facts.max_threads || self.ledger.occupancy(cta) == 0 {
            let text =
                format!("no SM can hold a CTA of {threads} threads of kernel `{}`", facts.name);
            return Err(Refusal::Explained(CudaResult::ERROR_LAUNCH_OUT_OF_RESOURCES, text));
        }
        Ok(cta)
    }

    fn count_launch(&mut self, application: ApplicationId, spec: &LaunchSpec) {
        let Some(application) = self.applications.get_mut(&application) else { return };
        let name = &spec.kernel.name;
        let form = spec.form();
        if let Some(key) = &spec.profile
            && application.profile_keys.get(name) != Some(key)
        {
            application.profile_keys.insert(name.clone(), key.clone());
        }
        let place = (name.clone(), form);
        if let Some(&index) = application.kernel_index.get(&place) {
            application.kernels[index].launches += 1;
            return;
        }
        if application.kernels.len() >= MAX_KERNEL_REPORTS {
            return;
        }
        let reason = spec.reason().cloned();
        let report = KernelReport {
            name: name.to_string(),
            form: form.name().to_owned(),
            reason,
            unfenced: match &spec.kernel.fence {
                Fence::None(why) => Some(why.clone()),
                Fence::Device | Fence::Code => None,
            },
            launches: 1,
            profile: None,
        };
        if let Some(reason) = &report.reason {
            let how = if form == LaunchForm::Ticket { "runs as tickets" } else { "runs alone" };
            let text = format!("kernel `{name}` of {} {how}: {reason}", application.name);
            self.actions.push_back(Action::Log { level: LogLevel::Info, session: None, text });
        }
        application.kernel_index.insert(place, application.kernels.len());
        application.kernels.push(report);
    }

    // When a launch may go.

    fn may_go(&self, id: OperationId, application: ApplicationId, is_confined: bool) -> bool {
        if self.sharing != Sharing::Spatial {
            // The hardware's scheduler decides.
            return true;
        }
        let own = self.applications.get(&application);
        let (own_workers, own_originals) =
            own.map_or((0, 0), |a| (a.workers_in_flight, a.originals_in_flight));
        let others_originals = self.originals_in_flight - own_originals;
        if self.waiting.range(..id).any(|(_, w)| !w.is_confined && w.application != application) {
            return false;
        }
        if is_confined {
            return others_originals == 0
                && !self.starved.values().any(|starved| *starved == application)
                && !self
                    .waiting
                    .range(..id)
                    .any(|(_, w)| w.is_confined && w.application == application);
        }
        others_originals + (self.workers_in_flight - own_workers) == 0
    }

    /// Makes a launch ready to be submitted.
    pub(crate) fn start_launch(
        &mut self,
        device: &mut dyn Device,
        id: OperationId,
        spec: Box<LaunchSpec>,
    ) -> Start {
        let Some(operation) = self.operations.get(&id) else { return Start::Wait };
        let (session, stream) = (operation.session, operation.stream);
        let Some(application) = self.sessions.get(&session).map(|s| s.application) else {
            return Start::Wait;
        };
        let is_confined = spec.is_confined();
        let started = if !self.may_go(id, application, is_confined) {
            Err(spec)
        } else if spec.form() == LaunchForm::MachineCode {
            self.start_on_groups(device, id, session, application, stream, spec)
        } else if is_confined {
            self.start_confined(device, id, session, application, stream, spec)
        } else {
            Ok(self.start_original(device, id, session, application, stream, spec))
        };
        match started {
            Ok(work) => {
                self.waiting.remove(&id);
                work.map_or(Start::Failed, Start::Submit)
            }
            Err(spec) => {
                let is_confined = spec.is_confined();
                if let Some(operation) = self.operations.get_mut(&id) {
                    operation.queued = Some(Queued::Launch(spec));
                }
                self.waiting.insert(id, Waiting { application, session, stream, is_confined });
                Start::Wait
            }
        }
    }

    /// `None`: the session has failed.
    fn start_original(
        &mut self,
        device: &mut dyn Device,
        main: OperationId,
        session: SessionId,
        application: ApplicationId,
        stream: StreamId,
        mut spec: Box<LaunchSpec>,
    ) -> Option<Work> {
        let window = self.sessions.get(&session)?.window.range();
        let (barrier, abort) = match &spec.kernel.form {
            KernelForm::Original { workspace, abort, .. } => (*workspace, *abort),
            KernelForm::MachineCode => (false, false),
            form @ (KernelForm::Worker { .. } | KernelForm::Ticket { .. }) => {
                (false, form.fallback().is_some_and(|fallback| fallback.abort))
            }
        };
        let mut workspace = None;
        if abort || (barrier && spec.cooperative) {
            // What the device adds to in a block is 0 at first, and the rest does not matter.
            let shape = Shape {
                grid: spec.grid,
                task: 1,
                main_ctas: 0,
                allowed: SmSet::EMPTY,
                stalled: SmSet::EMPTY,
            };
            match self.blocks.acquire(device, &shape) {
                Ok(block) => workspace = Some(block),
                Err(error) => {
                    let text = format!("no workspace for kernel `{}`: {error}", spec.kernel.name);
                    self.fail(session, CudaResult::ERROR_OUT_OF_MEMORY, text);
                    return None;
                }
            }
        }
        let block = workspace.map_or(0, |block| block.0);
        let mut barrier_in_window = None;
        let for_barrier = match (barrier, spec.cooperative, &spec.kernel.fence) {
            (false, ..) => None,
            (true, false, _) => Some(0),
            (true, true, Fence::Device | Fence::None(_)) => Some(block),
            // Its own code goes there, and nowhere but into the window.
            (true, true, Fence::Code) => {
                let Some(address) = self.barrier_in_window(device, session) else {
                    let text =
                        format!("no memory for the barrier of kernel `{}`", spec.kernel.name);
                    workspace.into_iter().for_each(|block| self.blocks.give_back(block));
                    self.fail(session, CudaResult::ERROR_OUT_OF_MEMORY, text);
                    return None;
                };
                barrier_in_window = Some(address);
                Some(address.0)
            }
        };
        for value in for_barrier.into_iter().chain(abort.then_some(block)) {
            spec.params.resize(spec.params.len().next_multiple_of(8), 0);
            spec.params.extend_from_slice(&value.to_le_bytes());
        }
        self.starts(device, application);
        self.applications.get_mut(&application)?.originals_in_flight += 1;
        self.originals_in_flight += 1;
        let work = Work::Launch(partita_device::Launch {
            cooperative: spec.cooperative && spec.kernel.is_machine_code,
            module: spec.module,
            kernel: spec.entry(),
            grid: spec.grid,
            block: spec.block,
            dynamic_shared: spec.dynamic_shared,
            // Its only grid; no other needs them.
            params: std::mem::take(&mut spec.params),
            access: std::iter::once(window)
                .chain(workspace.map(|block| self.blocks.range(block)))
                .collect(),
        });
        let (id, helpers) = (spec.launch, std::collections::BTreeMap::new());
        let launch = Launch {
            session,
            application,
            stream,
            main,
            main_done: false,
            spec,
            helpers,
            workspace,
            barrier: barrier_in_window,
            watch: Watch::new(device.now()),
            sms: SmSet::EMPTY,
            worker: None,
        };
        self.launches.insert(id, Box::new(launch));
        Some(work)
    }

    /// Zeroed memory of a session's window for the barrier of a cooperative launch.
    fn barrier_in_window(
        &mut self,
        device: &mut dyn Device,
        session: SessionId,
    ) -> Option<DeviceAddress> {
        const ZEROS: [u8; 8] = [0; 8];
        const BYTES: u64 = ZEROS.len() as u64;
        let session = self.sessions.get_mut(&session)?;
        let range = session.window.allocate(BYTES)?;
        let made = device.allocate(session.window_id, range);
        let zeroed = made.and_then(|()| device.poke(range.start, &ZEROS));
        if zeroed.is_err() {
            session.window.free(range.start);
            let _ = device.free(range.start);
            return None;
        }
        session.memory_used += Window::footprint(BYTES).unwrap_or(0);
        Some(range.start)
    }

    /// `Err` gives the launch back where it has to wait; `Ok(None)`: the session has failed.
    fn start_confined(
        &mut self,
        device: &mut dyn Device,
        main: OperationId,
        session: SessionId,
        application: ApplicationId,
        stream: StreamId,
        mut spec: Box<LaunchSpec>,
    ) -> Started {
        let (total, left) = (spec.total(), spec.total() - spec.first);
        let Some(granted) = self.applications.get(&application).map(|a| a.granted) else {
            return Ok(None);
        };
        // A worker that begins where workers wait would only wait. Where all SMs are stalled, it
        // shall.
        let own = Some(granted.difference(&self.stalled))
            .filter(|own| !own.is_empty())
            .unwrap_or(granted);
        let rooms = self.rooms(&own, stream, spec.cta);
        let room: u64 = rooms.iter().map(|(_, room)| u64::from(*room)).sum();
        if room == 0 {
            return Err(spec);
        }
        let is_ticket = spec.form() == LaunchForm::Ticket;
        let task = match is_ticket {
            true => 1,
            false => spec.task_size(left, room.min(left), self.cta_time(&spec)),
        };
        let layout = self.lay_out(&rooms, stream, spec.cta, &own, left.div_ceil(task));
        let shape = Shape {
            grid: spec.grid,
            task: u32::try_from(task).expect("a task has at most ten CTAs"),
            main_ctas: layout.ctas,
            allowed: own,
            stalled: self.stalled,
        };
        let block = match self.blocks.acquire(device, &shape) {
            Ok(block) => block,
            Err(error) => {
                self.demand_ended(application, device.now());
                let text = format!("no control block for kernel `{}`: {error}", spec.kernel.name);
                self.fail(session, CudaResult::ERROR_OUT_OF_MEMORY, text);
                return Ok(None);
            }
        };
        if let Err(error) = signal_range(device, block, spec.first, spec.end) {
            self.log(
                LogLevel::Error,
                Some(session),
                format!("{} has no range: {error}", spec.launch),
            );
        }
        let count_block = self.begin_counting(device, &mut spec);
        spec.params.resize(spec.params.len().next_multiple_of(8), 0);
        spec.params.extend_from_slice(&block.0.to_le_bytes());
        self.ledger.enter(stream, spec.launch, spec.cta, layout.workers);
        self.starts(device, application);
        if let Some(application) = self.applications.get_mut(&application) {
            application.workers_in_flight += 1;
            self.workers_in_flight += 1;
        }
        let worker = Worker {
            block,
            task: shape.task,
            seen: Telemetry::default(),
            counted: spec.first,
            count_block,
            begun: None,
            since: None,
            arrivals: Arrivals::default(),
            helper_sent: Nanos::default(),
            attempts: 0,
            next_wave: Nanos::default(),
            retired: 0,
            unsure_until: Nanos::default(),
        };
        let (id, helpers) = (spec.launch, std::collections::BTreeMap::new());
        let launch = Launch {
            session,
            application,
            stream,
            main,
            main_done: false,
            spec,
            helpers,
            workspace: None,
            barrier: None,
            watch: Watch::new(device.now()),
            sms: SmSet::EMPTY,
            worker: Some(worker),
        };
        let work = if is_ticket {
            Work::WaitValue {
                address: DeviceAddress(block.0 + COMPLETED),
                word: AwaitedWord::at_least(total),
            }
        } else {
            self.worker_grid(&launch, layout.ctas, block)
        };
        self.launches.insert(id, Box::new(launch));
        Ok(Some(work))
    }

    /// A grid of workers or tickets; `pointer` is its extra parameter.
    pub(crate) fn worker_grid(&self, launch: &Launch, ctas: u32, pointer: DeviceAddress) -> Work {
        let spec = &launch.spec;
        let mut params = spec.params.clone();
        let at = params.len() - 8;
        params[at..].copy_from_slice(&pointer.0.to_le_bytes());
        let window = self.sessions.get(&launch.session).map(|session| session.window.range());
        let worker = launch.worker.as_ref();
        let block = worker.map(|worker| self.blocks.range(worker.block));
        let counts = worker.and_then(|worker| worker.count_block).map(Engine::count_range);
        Work::Launch(partita_device::Launch {
            cooperative: false,
            module: spec.module,
            kernel: spec.entry(),
            grid: Dim3::linear(ctas),
            block: spec.block,
            dynamic_shared: spec.dynamic_shared,
            params,
            access: window.into_iter().chain(block).chain(counts).collect(),
        })
    }
}

/// Whether a tenant has the right to what nothing holds to its own memory.
pub(crate) fn may_run(unfenced: &BTreeSet<Option<TenantId>>, tenant: TenantId) -> bool {
    [Some(tenant), None].iter().any(|who| unfenced.contains(who))
}

/// What the device said of a kernel when it loaded it.
fn known<'f>(
    facts: &'f Result<KernelFacts, String>,
    name: &str,
) -> Result<&'f KernelFacts, Refusal> {
    facts.as_ref().map_err(|reason| {
        let text = format!("kernel `{name}` cannot run on this device: {reason}");
        Refusal::Explained(CudaResult::ERROR_NOT_SUPPORTED, text)
    })
}

/// Whether every warp of a block lies in one row, or the block is a row.
const fn rows_fill_warps(block: Dim3) -> bool {
    block.x.is_multiple_of(32) || (block.y == 1 && block.z == 1)
}

fn exceeds(extent: Dim3, limit: Dim3) -> bool {
    extent.x > limit.x || extent.y > limit.y || extent.z > limit.z
}
