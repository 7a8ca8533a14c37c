//! Modules: from the image that the shell prepares to kernels that can be launched.

use super::forms::Forms;
use super::record::{Call, Load, LoadedInstance, Loads, Module, Session, SessionState, WaiterThen};
use super::window::Window;
use super::{Refusal, Sessions};
use crate::effects::Effect;
use crate::handover::ledger::{WARP, warps_by_registers};
use crate::kernel::Kernel;
use crate::turn::{Bug, Turn};
use crate::{
    About, Action, ImageId, KernelForm, LoadedKernel, LoadedModule, LogLevel, ModuleHandle,
    Payload, PrepareError, PreparedKernel, PreparedModule, Purpose, RegisterBound,
};
use partita_device::{AddressRange, DeviceError, Guards, KernelFacts, ModuleFacts, RefusedKernel};
use partita_model::{CudaResult, DeviceFacts, ModuleId, Nanos, SessionId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A prepared module that the device does not get yet.
pub(super) struct Held {
    result: Result<PreparedModule, PrepareError>,
    /// When it goes on at the latest.
    until: Nanos,
}

impl Sessions {
    pub(super) fn load_module(
        &mut self,
        turn: &mut Turn<'_>,
        call: Call,
        module: ModuleHandle,
        image: ImageId,
    ) -> Result<(), Refusal> {
        let Call { session, sequence } = call;
        self.check_room_for_object(session)?;
        if self.session_mut(session).modules.contains_key(&module) {
            return Err(Refusal::Violation(format!("{module} exists already")));
        }
        self.prepare(turn, session, module, Load { sequence, image, purpose: Purpose::Run });
        Ok(())
    }

    pub(super) fn unload_module(
        &mut self,
        turn: &mut Turn<'_>,
        call: Call,
        module: ModuleHandle,
    ) -> Result<(), Refusal> {
        let session = self.session_mut(call.session);
        match session.modules.remove(&module) {
            Some(Module::Loaded(instance)) => {
                // Launches that wait for a form go without it.
                turn.push(Effect::PumpSession(call.session));
                self.wait_for_all(turn, call, WaiterThen::Unload(instance));
                Ok(())
            }
            other => {
                session.modules.extend(other.map(|unfinished| (module, unfinished)));
                Err(CudaResult::ERROR_INVALID_HANDLE.into())
            }
        }
    }

    /// A loaded module of a session.
    pub(crate) fn loaded(
        &self,
        session: SessionId,
        module: ModuleHandle,
    ) -> Option<&LoadedInstance> {
        match self.records.get(&session)?.modules.get(&module)? {
            Module::Loaded(instance) => Some(instance),
            Module::Preparing(_) | Module::Loading { .. } => None,
        }
    }

    /// Has the shell prepare a module.
    fn prepare(
        &mut self,
        turn: &mut Turn<'_>,
        session: SessionId,
        module: ModuleHandle,
        load: Load,
    ) {
        let Load { sequence, image, purpose } = load.clone();
        let record = self.session_mut(session);
        record.modules.insert(module, Module::Preparing(load));
        let guards = record.guards;
        turn.act(Action::Prepare { session, sequence, module, image, purpose, guards });
    }

    /// Takes what became of [`Action::Prepare`].
    pub(crate) fn prepared(
        &mut self,
        turn: &mut Turn<'_>,
        session: SessionId,
        module: ModuleHandle,
        result: Result<PreparedModule, PrepareError>,
    ) {
        // The shell may be at work on an image when its session goes.
        let Some(record) = self.records.get_mut(&session) else { return };
        let Some(Module::Preparing(load)) = record.modules.get(&module) else { return };
        let load = load.clone();
        let call = Call { session, sequence: load.sequence };
        let failure = match (record.state, result) {
            (SessionState::Closing, _) => {
                record.modules.remove(&module);
                return;
            }
            (SessionState::Failed(code), _) => PrepareError { code, text: String::new() },
            (SessionState::Open, Err(error)) => error,
            (SessionState::Open, Ok(prepared)) => {
                match self.begin_loading(turn, session, (module, load), prepared) {
                    Ok(()) => return turn.push(Effect::Stall),
                    Err(error) => error,
                }
            }
        };
        self.refuse_module(turn, call, module, failure);
    }

    /// Keeps a prepared module from the device, until `until` at most.
    pub(crate) fn hold_module(
        &mut self,
        module: (SessionId, ModuleHandle),
        result: Result<PreparedModule, PrepareError>,
        until: Nanos,
    ) {
        self.held.insert(module, Held { result, until });
    }

    /// Whether a module of a session is kept from the device.
    pub(crate) fn holds_module(&self, id: SessionId) -> bool {
        self.held.keys().any(|(session, _)| *session == id)
    }

    /// A module that is kept from the device and may go on, by its session and the latest time.
    /// That of a session that has gone may.
    pub(crate) fn held_module(
        &self,
        may_go_on: impl Fn(&Session, Nanos) -> bool,
    ) -> Option<(SessionId, ModuleHandle)> {
        let may_go_on = |id: &SessionId, held: &Held| {
            self.records.get(id).is_none_or(|session| may_go_on(session, held.until))
        };
        self.held.iter().find(|((id, _), held)| may_go_on(id, held)).map(|(&module, _)| module)
    }

    /// Goes on with a module that was kept from the device.
    pub(crate) fn let_module_in(&mut self, turn: &mut Turn<'_>, of: (SessionId, ModuleHandle)) {
        if let Some(Held { result, .. }) = self.held.remove(&of) {
            self.prepared(turn, of.0, of.1, result);
        }
    }

    /// Gives a prepared module to the device.
    fn begin_loading(
        &mut self,
        turn: &mut Turn<'_>,
        session: SessionId,
        (module, load): (ModuleHandle, Load),
        prepared: PreparedModule,
    ) -> Result<(), PrepareError> {
        let tenant = self.session_mut(session).identity.tenant;
        let is_parted = turn.common.guards.cell_bits.is_some();
        // The driver itself reads an image of machine code, in this process.
        if prepared.code.is_some() && is_parted && !self.may_run_unfenced(tenant) {
            let text = format!(
                "it is machine code, which nothing holds to its program's memory, and {tenant} may \
                 not run such: compile with PTX, or an administrator allows it by \
                 `[[policy.unfenced]]`"
            );
            return Err(PrepareError { code: CudaResult::ERROR_NOT_PERMITTED, text });
        }
        let id = ModuleId(turn.next_id());
        let record = self.session_mut(session);
        match &prepared.code {
            Some(code) => match turn.device.machine_code() {
                Some(able) => able.load_code(id, record.window_id, code.clone()),
                None => Err(DeviceError::Unsupported("machine code: compile with PTX".to_owned())),
            },
            None => turn.device.load_module(id, record.window_id, prepared.ptx.clone()),
        }
        .map_err(|error| PrepareError {
            code: CudaResult::ERROR_INVALID_IMAGE,
            text: error.to_string(),
        })?;
        record.modules.insert(module, Module::Loading { load, prepared });
        record.loading += 1;
        self.loading.insert(id, Loads::Module(session, module));
        Ok(())
    }

    fn refuse_module(
        &mut self,
        turn: &mut Turn<'_>,
        call: Call,
        module: ModuleHandle,
        error: PrepareError,
    ) {
        let session = call.session;
        self.session_mut(session).modules.remove(&module);
        let PrepareError { code, text } = error;
        let line = format!("{session}: {module} is refused: {code}: {text}");
        turn.log(LogLevel::Warning, About::from(session).error(code), line);
        let payload = if text.is_empty() { Payload::None } else { Payload::Explanation(text) };
        turn.reply(call, code, payload);
    }

    /// Strikes a module out of those that the device loads.
    fn end_loading(
        &mut self,
        turn: &mut Turn<'_>,
        id: ModuleId,
    ) -> Option<(SessionId, ModuleHandle, Load, PreparedModule)> {
        // A device that is lost has taken the record along.
        let Loads::Module(session, module) = self.loading.remove(&id)? else { return None };
        turn.push(Effect::Stall);
        let record = self.session_mut(session);
        record.loading -= 1;
        match record.modules.remove(&module) {
            Some(Module::Loading { load, prepared }) => Some((session, module, load, prepared)),
            _ => {
                turn.bug(session, Bug::NoModule(id));
                None
            }
        }
    }

    /// The device has refused a module.
    pub(crate) fn module_refused(&mut self, turn: &mut Turn<'_>, id: ModuleId, reason: String) {
        if let Some(&Loads::Forms(session, of)) = self.loading.get(&id) {
            return self.forms_refused(turn, id, (session, of), reason);
        }
        let Some((session, module, load, _)) = self.end_loading(turn, id) else { return };
        let call = Call { session, sequence: load.sequence };
        let error = match self.session_mut(session).state {
            SessionState::Closing => return turn.push(Effect::Release(session)),
            SessionState::Failed(code) => PrepareError { code, text: String::new() },
            SessionState::Open => {
                PrepareError { code: CudaResult::ERROR_INVALID_PTX, text: reason }
            }
        };
        self.refuse_module(turn, call, module, error);
    }

    /// The device has loaded a module.
    pub(crate) fn module_loaded(&mut self, turn: &mut Turn<'_>, id: ModuleId, facts: ModuleFacts) {
        if let Some(&Loads::Forms(session, of)) = self.loading.get(&id) {
            return self.forms_loaded(turn, id, (session, of), facts);
        }
        let Some((session, module, load, prepared)) = self.end_loading(turn, id) else { return };
        let record = self.session_mut(session);
        let next = next_purpose(&load.purpose, &prepared, &facts, turn.facts());
        if let (true, Some(purpose)) = (record.is_open(), next) {
            unload(turn, session, id);
            return self.prepare(turn, session, module, Load { purpose, ..load });
        }
        let bytes = record.bytes_of_variables(&facts);
        let (free, _) = self.memory_of(turn, session);
        let record = self.session_mut(session);
        let before = record.memory_slack;
        record.settle_slack(turn);
        let bytes = (bytes + record.memory_slack).saturating_sub(before);
        if record.is_open() && bytes > free {
            unload(turn, session, id);
            self.session_mut(session).settle_slack(turn);
            let text = format!(
                "the module's variables take {bytes} bytes of device memory, and the program may \
                 have {free} more: free memory, or ask for more"
            );
            let error = PrepareError { code: CudaResult::ERROR_OUT_OF_MEMORY, text };
            let call = Call { session, sequence: load.sequence };
            return self.refuse_module(turn, call, module, error);
        }
        record.place_variables(&facts);
        let instance = instance(id, prepared, facts, record.guards());
        let loaded = instance.loaded.clone();
        record.modules.insert(module, Module::Loaded(instance));
        for kernel in &loaded.kernels {
            if let Err(reason) = &kernel.facts {
                let text =
                    format!("{session}: kernel `{}` of {module} cannot run: {reason}", kernel.name);
                turn.log(LogLevel::Warning, About::from(session).kernel(&kernel.name), text);
            }
        }
        let call = Call { session, sequence: load.sequence };
        match record.state {
            SessionState::Open => turn.reply(call, CudaResult::SUCCESS, Payload::Module(loaded)),
            SessionState::Failed(code) => turn.reply(call, code, Payload::None),
            SessionState::Closing => turn.push(Effect::Release(session)),
        }
    }

    pub(super) fn unload_instance(
        &mut self,
        turn: &mut Turn<'_>,
        id: SessionId,
        instance: &LoadedInstance,
    ) {
        let session = self.session_mut(id);
        for variable in &instance.loaded.variables {
            let is_elsewhere = session.window.is_host(variable.address)
                || session.window.free_outside(variable.address);
            if is_elsewhere {
                continue;
            }
            session.window.free(variable.address);
            session.memory_used -= Window::footprint(variable.size.0).unwrap_or(0);
        }
        for module in instance.ids() {
            unload(turn, id, module);
        }
        self.session_mut(id).settle_slack(turn);
    }
}

/// Has the device unload what nobody uses.
pub(super) fn unload(turn: &mut Turn<'_>, session: SessionId, module: ModuleId) {
    if let Err(error) = turn.device.unload_module(module) {
        turn.log_error(Some(session), format!("{module} could not be unloaded: {error}"));
    }
}

impl Session {
    /// Bytes of the window that the variables of a loaded module take.
    fn bytes_of_variables(&self, facts: &ModuleFacts) -> u64 {
        let is_inside = |address| self.window.range().contains(address, 1);
        let inside = facts.variables.iter().filter(|variable| {
            is_inside(variable.address) && !self.window.is_host(variable.address)
        });
        let bytes = inside.filter_map(|variable| Window::footprint(variable.size.0));
        bytes.fold(0, u64::saturating_add)
    }

    /// Enters the variables of a loaded module where the device has placed them.
    fn place_variables(&mut self, facts: &ModuleFacts) {
        for variable in &facts.variables {
            // Managed variables are in host memory.
            if self.window.is_host(variable.address) {
                continue;
            }
            let range = AddressRange { start: variable.address, bytes: variable.size.0 };
            // Variables of machine code lie where the device's driver has put them.
            if self.window.occupy_outside(range) {
                continue;
            }
            self.window.occupy(range);
            self.memory_used += Window::footprint(variable.size.0).unwrap_or(0);
        }
    }
}

/// What a loaded module must be prepared for once more, if it must. The assembler may give a form
/// so many registers that some blocks do not fit an SM any more, or fewer of them; the original may
/// have fewer. The device tells by loading it as it was written, and then the form is bounded by
/// that.
pub(super) fn next_purpose(
    purpose: &Purpose,
    prepared: &PreparedModule,
    facts: &ModuleFacts,
    device: &DeviceFacts,
) -> Option<Purpose> {
    let told = Told::of(facts);
    let facts_of = |entry: &str| told.kernels.get(entry).copied();
    match purpose {
        Purpose::Run => {
            let confined =
                |kernel: &&PreparedKernel| !matches!(kernel.form, KernelForm::Original { .. });
            let asked = |kernel: &PreparedKernel| {
                let facts = facts_of(&kernel.entry)?;
                let excludes_blocks = facts.max_threads < device.threads_per_cta;
                let takes_room =
                    warps_by_registers(device, facts.registers) < device.threads_per_sm / WARP;
                let doubtful = match kernel.registers {
                    RegisterBound::Nothing => excludes_blocks || takes_room,
                    RegisterBound::Blocks => takes_room,
                    RegisterBound::Settled => false,
                };
                doubtful.then(|| (kernel.name.clone(), facts.registers))
            };
            let of: BTreeMap<_, _> =
                prepared.kernels.iter().filter(confined).filter_map(asked).collect();
            (!of.is_empty()).then(|| Purpose::Registers(Arc::new(of)))
        }
        Purpose::Registers(of) => {
            let fewer = |(name, form): (&Arc<str>, &u32)| {
                let original = facts_of(name)?.registers;
                let loses =
                    warps_by_registers(device, *form) < warps_by_registers(device, original);
                loses.then(|| (name.clone(), original))
            };
            Some(Purpose::RunWithin(Arc::new(of.iter().filter_map(fewer).collect())))
        }
        Purpose::RunWithin(_) => None,
    }
}

fn instance(
    id: ModuleId,
    prepared: PreparedModule,
    facts: ModuleFacts,
    guards: Guards,
) -> LoadedInstance {
    let told = Told::of(&facts);
    let home = Home { id, told: &told, lines: prepared.lines.as_ref() };
    let is_machine_code = prepared.code.is_some();
    let kernels = prepared.kernels.into_iter();
    let kernels: Vec<_> =
        kernels.map(|kernel| Arc::new(home.kernel(kernel, is_machine_code))).collect();
    let loaded = LoadedModule {
        kernels: kernels
            .iter()
            .map(|kernel| LoadedKernel {
                name: kernel.name.clone(),
                params: kernel.params.clone(),
                param_bytes: kernel.param_bytes,
                // With a fallback every launch that the original allows is possible.
                facts: match &kernel.fallback_facts {
                    Some(Ok(facts)) => Ok(facts.clone()),
                    _ => kernel.facts.clone(),
                },
            })
            .collect(),
        variables: facts.variables,
    };
    let forms = prepared.later.map(|later| Forms::new(later, guards));
    LoadedInstance { id, loaded: Arc::new(loaded), kernels, forms }
}

/// A module that the device has, as far as its kernels need it.
pub(super) struct Home<'a> {
    pub(super) id: ModuleId,
    pub(super) told: &'a Told<'a>,
    pub(super) lines: Option<&'a Arc<[u32]>>,
}

impl Home<'_> {
    /// A prepared kernel with what the device says of it.
    pub(super) fn kernel(&self, kernel: PreparedKernel, is_machine_code: bool) -> Kernel {
        let lines = self.lines.map(|lines| &**lines);
        let told = |entry: &str| self.told.of_entry(entry, &kernel.name, lines);
        Kernel {
            module: self.id,
            lines: self.lines.cloned(),
            later: kernel.later,
            facts: told(&kernel.entry),
            fallback_facts: kernel.form.fallback().map(|fallback| told(&fallback.entry)),
            counting_facts: kernel.counting.as_ref().map(|entry| told(entry)),
            slice_facts: kernel.slice.as_ref().map(|slice| told(&slice.entry)),
            name: kernel.name,
            entry: kernel.entry,
            awaits: kernel.awaits,
            follows: kernel.follows,
            gives_up: kernel.gives_up,
            hidden_shared: kernel.hidden_shared,
            handles: kernel.handles,
            loops: kernel.loops,
            hash: kernel.hash,
            counting: kernel.counting,
            slice: kernel.slice,
            params: kernel.params,
            param_bytes: kernel.param_bytes,
            form: kernel.form,
            fence: kernel.fence,
            is_machine_code,
        }
    }
}

/// What the device says of a module's entries, by their names.
pub(super) struct Told<'a> {
    kernels: BTreeMap<&'a str, &'a KernelFacts>,
    refused: BTreeMap<&'a str, &'a RefusedKernel>,
}

impl<'a> Told<'a> {
    pub(super) fn of(facts: &'a ModuleFacts) -> Self {
        Told {
            kernels: facts.kernels.iter().map(|kernel| (&*kernel.name, kernel)).collect(),
            refused: facts.refused.iter().map(|kernel| (&*kernel.name, kernel)).collect(),
        }
    }

    /// What it says of an entry, under the name that the program knows.
    fn of_entry(
        &self,
        entry: &str,
        name: &str,
        lines: Option<&[u32]>,
    ) -> Result<KernelFacts, String> {
        if let Some(kernel) = self.kernels.get(entry) {
            return Ok(KernelFacts { name: name.to_owned(), ..(*kernel).clone() });
        }
        match self.refused.get(entry) {
            None => Err(format!("the device has no kernel `{entry}`")),
            Some(&refused) => {
                let line = refused.line.and_then(|line| program_line(line, lines));
                Err(RefusedKernel { line, ..refused.clone() }.reason())
            }
        }
    }
}

/// The line of the program's text from which a line of the loaded text came; `None` where it came
/// from none.
pub(crate) fn program_line(line: u32, lines: Option<&[u32]>) -> Option<u32> {
    let Some(lines) = lines else { return Some(line) };
    let index = usize::try_from(line).ok()?.checked_sub(1)?;
    lines.get(index).copied().filter(|line| *line != 0)
}
