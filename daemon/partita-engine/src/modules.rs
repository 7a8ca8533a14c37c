//! Modules: from the image that the shell prepares to kernels that can be launched.

use crate::effects::Effect;
use crate::launching::may_run;
use crate::ledger::{WARP, warps_by_registers};
use crate::state::{Kernel, Load, LoadedInstance, Module, SessionState};
use crate::window::Window;
use crate::{
    Action, Engine, KernelForm, LoadedKernel, LoadedModule, LogLevel, ModuleHandle, Payload,
    PrepareError, PreparedKernel, PreparedModule, Purpose, RegisterBound,
};
use partita_device::{AddressRange, Device, KernelFacts, ModuleFacts, RefusedKernel};
use partita_model::{CudaResult, DeviceFacts, ModuleId, SessionId};
use std::collections::BTreeMap;
use std::sync::Arc;

impl Engine {
    /// Has the shell prepare a module.
    pub(crate) fn prepare_module(&mut self, session: SessionId, module: ModuleHandle, load: Load) {
        let Some(record) = self.sessions.get_mut(&session) else { return };
        let Load { sequence, image, purpose } = load.clone();
        record.modules.insert(module, Module::Preparing(load));
        self.actions.push_back(Action::Prepare { session, sequence, module, image, purpose });
    }

    /// Takes what became of [`crate::Action::Prepare`].
    pub fn handle_prepared(
        &mut self,
        device: &mut dyn Device,
        session: SessionId,
        module: ModuleHandle,
        result: Result<PreparedModule, PrepareError>,
    ) {
        let id = ModuleId(self.next_id());
        let Some(record) = self.sessions.get_mut(&session) else { return };
        let Some(Module::Preparing(load)) = record.modules.get(&module) else { return };
        let load = load.clone();
        let sequence = load.sequence;
        let failure = match (record.state, result) {
            (SessionState::Closing, _) => {
                record.modules.remove(&module);
                return;
            }
            (SessionState::Failed(code), _) => PrepareError { code, text: String::new() },
            (SessionState::Open, Err(error)) => error,
            // The driver itself reads such an image, in this process.
            (SessionState::Open, Ok(prepared))
                if prepared.code.is_some()
                    && self.guards.cell_bits.is_some()
                    && !may_run(&self.unfenced, record.identity.tenant) =>
            {
                let text = format!(
                    "it is machine code, which nothing holds to its program's memory, and {} may \
                     not run such: compile with \
                     PTX, or an administrator allows it by `[[policy.unfenced]]`",
                    record.identity.tenant
                );
                PrepareError { code: CudaResult::ERROR_NOT_PERMITTED, text }
            }
            (SessionState::Open, Ok(prepared)) => {
                let loading = match &prepared.code {
                    Some(code) => device.load_code(id, record.window_id, code.clone()),
                    None => device.load_module(id, record.window_id, prepared.ptx.clone()),
                };
                match loading {
                    Ok(()) => {
                        record.modules.insert(module, Module::Loading { load, prepared });
                        record.loading += 1;
                        self.loading.insert(id, (session, module));
                        self.apply_stalled(device);
                        return;
                    }
                    Err(error) => PrepareError {
                        code: CudaResult::ERROR_INVALID_IMAGE,
                        text: error.to_string(),
                    },
                }
            }
        };
        self.refuse_module(session, module, sequence, failure);
    }

    fn refuse_module(
        &mut self,
        session: SessionId,
        module: ModuleHandle,
        sequence: u64,
        error: PrepareError,
    ) {
        if let Some(record) = self.sessions.get_mut(&session) {
            record.modules.remove(&module);
        }
        let PrepareError { code, text } = error;
        self.log(
            LogLevel::Warning,
            Some(session),
            format!("{session}: {module} is refused: {code}: {text}"),
        );
        let payload = if text.is_empty() { Payload::None } else { Payload::Explanation(text) };
        self.reply(session, sequence, code, payload);
    }

    pub(crate) fn module_refused(&mut self, device: &mut dyn Device, id: ModuleId, reason: String) {
        let Some((session, module)) = self.loading.remove(&id) else { return };
        self.apply_stalled(device);
        let Some(record) = self.sessions.get_mut(&session) else { return };
        record.loading -= 1;
        let Some(Module::Loading { load, .. }) = record.modules.get(&module) else { return };
        let sequence = load.sequence;
        match record.state {
            SessionState::Closing => self.effects.push(Effect::Release(session)),
            SessionState::Failed(code) => {
                self.refuse_module(
                    session,
                    module,
                    sequence,
                    PrepareError { code, text: String::new() },
                );
            }
            SessionState::Open => {
                let error = PrepareError { code: CudaResult::ERROR_INVALID_PTX, text: reason };
                self.refuse_module(session, module, sequence, error);
            }
        }
    }

    pub(crate) fn module_loaded(
        &mut self,
        device: &mut dyn Device,
        id: ModuleId,
        facts: ModuleFacts,
    ) {
        let Some((session, module)) = self.loading.remove(&id) else { return };
        self.apply_stalled(device);
        let Some(record) = self.sessions.get_mut(&session) else { return };
        record.loading -= 1;
        let Some(Module::Loading { load, prepared }) = record.modules.remove(&module) else {
            return;
        };
        let sequence = load.sequence;
        let next = next_purpose(&load.purpose, &prepared, &facts, &self.facts);
        if let (SessionState::Open, Some(purpose)) = (record.state, next) {
            if let Err(error) = device.unload_module(id) {
                self.log(
                    LogLevel::Error,
                    Some(session),
                    format!("{id} could not be unloaded: {error}"),
                );
            }
            self.prepare_module(session, module, Load { purpose, ..load });
            return;
        }
        for variable in &facts.variables {
            // Managed variables are in host memory.
            if record.window.is_host(variable.address) {
                continue;
            }
            let range = AddressRange { start: variable.address, bytes: variable.size.0 };
            // What machine code has lies where the device's driver has put it.
            if record.window.occupy_outside(range) {
                continue;
            }
            record.window.occupy(range);
            record.memory_used += Window::footprint(variable.size.0).unwrap_or(0);
        }
        let instance = instance(id, prepared, facts);
        let loaded = instance.loaded.clone();
        record.modules.insert(module, Module::Loaded(instance));
        let state = record.state;
        for kernel in &loaded.kernels {
            if let Err(reason) = &kernel.facts {
                let text =
                    format!("{session}: kernel `{}` of {module} cannot run: {reason}", kernel.name);
                self.log(LogLevel::Warning, Some(session), text);
            }
        }
        match state {
            SessionState::Open => {
                self.reply(session, sequence, CudaResult::SUCCESS, Payload::Module(loaded))
            }
            SessionState::Failed(code) => self.reply(session, sequence, code, Payload::None),
            SessionState::Closing => self.effects.push(Effect::Release(session)),
        }
    }

    pub(crate) fn unload_instance(
        &mut self,
        device: &mut dyn Device,
        id: SessionId,
        instance: &LoadedInstance,
    ) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        for variable in &instance.loaded.variables {
            let is_elsewhere = session.window.is_host(variable.address)
                || session.window.free_outside(variable.address);
            if is_elsewhere {
                continue;
            }
            session.window.free(variable.address);
            session.memory_used -= Window::footprint(variable.size.0).unwrap_or(0);
        }
        if let Err(error) = device.unload_module(instance.id) {
            self.log(
                LogLevel::Error,
                Some(id),
                format!("{} could not be unloaded: {error}", instance.id),
            );
        }
    }
}

/// What a loaded module must be prepared for once more, if it must. The assembler may give a form
/// so many registers that some blocks do not fit an SM any more, or fewer of them; the original may
/// have fewer. The device tells by loading it as it was written, and then the form is bounded by
/// that.
fn next_purpose(
    purpose: &Purpose,
    prepared: &PreparedModule,
    facts: &ModuleFacts,
    device: &DeviceFacts,
) -> Option<Purpose> {
    let facts_of = |entry: &str| facts.kernels.iter().find(|kernel| kernel.name == entry);
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

fn instance(id: ModuleId, prepared: PreparedModule, facts: ModuleFacts) -> LoadedInstance {
    let lines = prepared.lines.as_deref();
    let is_machine_code = prepared.code.is_some();
    let kernels: Vec<Arc<Kernel>> = prepared
        .kernels
        .into_iter()
        .map(|kernel| {
            Arc::new(Kernel {
                facts: facts_of(&facts, &kernel.entry, &kernel.name, lines),
                fallback_facts: kernel
                    .form
                    .fallback()
                    .map(|fallback| facts_of(&facts, &fallback.entry, &kernel.name, lines)),
                counting_facts: kernel
                    .counting
                    .as_ref()
                    .map(|entry| facts_of(&facts, entry, &kernel.name, lines)),
                name: kernel.name,
                entry: kernel.entry,
                awaits: kernel.awaits,
                follows: kernel.follows,
                hash: kernel.hash,
                counting: kernel.counting,
                params: kernel.params,
                param_bytes: kernel.param_bytes,
                form: kernel.form,
                fence: kernel.fence,
                is_machine_code,
            })
        })
        .collect();
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
    LoadedInstance { id, loaded: Arc::new(loaded), kernels, lines: prepared.lines }
}

/// What the device says of an entry, under the name that the program knows.
fn facts_of(
    facts: &ModuleFacts,
    entry: &str,
    name: &str,
    lines: Option<&[u32]>,
) -> Result<KernelFacts, String> {
    if let Some(kernel) = facts.kernels.iter().find(|kernel| kernel.name == entry) {
        return Ok(KernelFacts { name: name.to_owned(), ..kernel.clone() });
    }
    match facts.refused.iter().find(|refused| refused.name == entry) {
        None => Err(format!("the device has no kernel `{entry}`")),
        Some(refused) => {
            let line = refused.line.and_then(|line| program_line(line, lines));
            Err(RefusedKernel { line, ..refused.clone() }.reason())
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
