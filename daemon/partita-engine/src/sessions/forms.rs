//! Forms that are prepared when a kernel is first launched.
//!
//! A form is many times as large as a small kernel. A module of very many kernels is therefore
//! loaded as it was written. At a kernel's first launch the shell prepares the kernel's forms as a
//! module of their own ([`crate::Action::PrepareForms`]), and the launch waits in its stream.
//! Where that fails, the kernel stays as it was written.

use super::Sessions;
use super::modules::{Home, Told, next_purpose, unload};
use super::record::{Forming, LoadedInstance, Loads, Module, SessionState};
use crate::effects::Effect;
use crate::kernel::Kernel;
use crate::turn::Turn;
use crate::{
    About, Action, FormsOf, KernelForm, Later, LogLevel, PrepareError, PreparedModule, Purpose,
    Source,
};
use partita_device::{Guards, ModuleFacts};
use partita_model::{ModuleId, SessionId, request};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The forms of a module that come later.
pub(crate) struct Forms {
    source: Source,
    /// What kernels must carry in the session's window.
    guards: Guards,
    /// Bytes of text that further forms may have.
    room_bytes: u64,
    /// Kernels whose forms are on their way.
    asked: BTreeMap<u32, Step>,
    /// What the device has.
    loaded: Vec<ModuleId>,
}

/// How far forms have come, and what they are prepared for.
enum Step {
    Preparing(Purpose),
    Loading(Purpose, PreparedModule),
}

impl Forms {
    pub(super) fn new(later: Later, guards: Guards) -> Self {
        let Later { source, room_bytes } = later;
        Forms { source, guards, room_bytes, asked: BTreeMap::new(), loaded: Vec::new() }
    }

    /// What the device has of them.
    pub(super) fn ids(&self) -> impl Iterator<Item = ModuleId> + '_ {
        self.loaded.iter().copied()
    }
}

impl LoadedInstance {
    /// Has forms of a kernel prepared; `false` where nothing is kept for that.
    fn prepare(
        &mut self,
        turn: &mut Turn<'_>,
        session: SessionId,
        kernel: u32,
        purpose: Purpose,
    ) -> bool {
        let Some(forms) = &mut self.forms else { return false };
        forms.asked.insert(kernel, Step::Preparing(purpose.clone()));
        let of = FormsOf { module: self.id, kernel };
        let (source, loaded) = (forms.source.clone(), Arc::clone(&self.loaded));
        let guards = forms.guards;
        turn.act(Action::PrepareForms { session, of, source, loaded, purpose, guards });
        true
    }

    fn kernel_mut(&mut self, index: u32) -> Option<&mut Arc<Kernel>> {
        self.kernels.get_mut(usize::try_from(index).ok()?)
    }

    /// From now on a kernel runs as it was written.
    fn leave_as_written(&mut self, index: u32, why: &str) {
        let Some(kernel) = self.kernel_mut(index) else { return };
        let mut own = Kernel::clone(kernel);
        own.later = false;
        if let KernelForm::Original { reason, .. } = &mut own.form {
            why.clone_into(reason);
        }
        *kernel = Arc::new(own);
    }
}

impl Sessions {
    /// Whether the form of a launch's kernel has still to be prepared.
    pub(crate) fn is_form_later(&self, session: SessionId, launch: &request::Launch) -> bool {
        let index = usize::try_from(launch.kernel).ok();
        let instance = self.loaded(session, launch.module);
        let kernel = instance.zip(index).and_then(|(instance, index)| instance.kernels.get(index));
        kernel.is_some_and(|kernel| kernel.later)
    }

    /// Has the form of a launch's kernel prepared, if it is not under way.
    pub(crate) fn ask_for_form(
        &mut self,
        turn: &mut Turn<'_>,
        session: SessionId,
        launch: &request::Launch,
    ) {
        let modules = self.records.get_mut(&session).map(|record| &mut record.modules);
        let module = modules.and_then(|modules| modules.get_mut(&launch.module));
        let Some(Module::Loaded(instance)) = module else { return };
        let is_asked = |forms: &Forms| forms.asked.contains_key(&launch.kernel);
        if !instance.forms.as_ref().is_some_and(is_asked)
            && !instance.prepare(turn, session, launch.kernel, Purpose::Run)
        {
            instance.leave_as_written(launch.kernel, "nothing is kept of its module's text");
        }
    }

    /// Whether a launch goes on waiting for its kernel's form. One whose module is being unloaded
    /// does not.
    pub(crate) fn waits_for_form(&self, session: SessionId, forming: &Forming) -> bool {
        let module = self.loaded(session, forming.request.module);
        module.is_some_and(|instance| instance.id == forming.as_written.spec.module)
            && self.is_form_later(session, &forming.request)
    }

    fn instance_mut(&mut self, session: SessionId, id: ModuleId) -> Option<&mut LoadedInstance> {
        let modules = self.records.get_mut(&session)?.modules.values_mut();
        modules.into_iter().find_map(|module| match module {
            Module::Loaded(instance) if instance.id == id => Some(instance),
            _ => None,
        })
    }

    /// Takes what became of [`Action::PrepareForms`].
    pub(crate) fn forms_prepared(
        &mut self,
        turn: &mut Turn<'_>,
        session: SessionId,
        of: FormsOf,
        result: Result<PreparedModule, PrepareError>,
    ) {
        // The session may have ended or failed meanwhile, and the module may have been unloaded.
        let Some(record) = self.records.get(&session).filter(|record| record.is_open()) else {
            return;
        };
        let window = record.window_id;
        let Some(instance) = self.instance_mut(session, of.module) else { return };
        let Some(forms) = &mut instance.forms else { return };
        let Some(Step::Preparing(purpose)) = forms.asked.remove(&of.kernel) else { return };
        let prepared = match result {
            Ok(prepared) if prepared.ptx.len() as u64 > forms.room_bytes => {
                let text = "its module's forms have no room for another one".to_owned();
                return self.no_form(turn, session, of, &text);
            }
            Ok(prepared) => prepared,
            Err(error) => return self.no_form(turn, session, of, &error.text),
        };
        let id = ModuleId(turn.next_id());
        if let Err(error) = turn.device.load_module(id, window, prepared.ptx.clone()) {
            return self.no_form(turn, session, of, &error.to_string());
        }
        forms.asked.insert(of.kernel, Step::Loading(purpose, prepared));
        self.session_mut(session).loading += 1;
        self.loading.insert(id, Loads::Forms(session, of));
        turn.push(Effect::Stall);
    }

    /// Strikes forms out of what the device loads. `None` where nobody waits for them any more.
    fn end_loading_forms(
        &mut self,
        turn: &mut Turn<'_>,
        id: ModuleId,
        (session, of): (SessionId, FormsOf),
    ) -> Option<(Purpose, PreparedModule)> {
        self.loading.remove(&id);
        turn.push(Effect::Stall);
        let record = self.records.get_mut(&session)?;
        record.loading -= 1;
        match record.state {
            SessionState::Closing => {
                turn.push(Effect::Release(session));
                return None;
            }
            SessionState::Failed(_) => return None,
            SessionState::Open => {}
        }
        match self.instance_mut(session, of.module)?.forms.as_mut()?.asked.remove(&of.kernel)? {
            Step::Loading(purpose, prepared) => Some((purpose, prepared)),
            Step::Preparing(_) => None,
        }
    }

    /// The device has refused forms.
    pub(super) fn forms_refused(
        &mut self,
        turn: &mut Turn<'_>,
        id: ModuleId,
        (session, of): (SessionId, FormsOf),
        reason: String,
    ) {
        if self.end_loading_forms(turn, id, (session, of)).is_some() {
            self.no_form(turn, session, of, &reason);
        }
    }

    /// The device has loaded forms.
    pub(super) fn forms_loaded(
        &mut self,
        turn: &mut Turn<'_>,
        id: ModuleId,
        (session, of): (SessionId, FormsOf),
        facts: ModuleFacts,
    ) {
        let Some((purpose, prepared)) = self.end_loading_forms(turn, id, (session, of)) else {
            return unload(turn, session, id);
        };
        let next = next_purpose(&purpose, &prepared, &facts, turn.facts());
        let Some(instance) = self.instance_mut(session, of.module) else { return };
        if let Some(purpose) = next {
            unload(turn, session, id);
            instance.prepare(turn, session, of.kernel, purpose);
            return;
        }
        match form(id, prepared, &facts, instance, of.kernel) {
            Ok(()) => turn.push(Effect::PumpSession(session)),
            Err(why) => {
                unload(turn, session, id);
                self.no_form(turn, session, of, &why);
            }
        }
    }

    /// A kernel gets no form: its launches go as they were written.
    fn no_form(&mut self, turn: &mut Turn<'_>, session: SessionId, of: FormsOf, why: &str) {
        turn.push(Effect::PumpSession(session));
        let Some(instance) = self.instance_mut(session, of.module) else { return };
        instance.leave_as_written(of.kernel, why);
        if let Some(kernel) = instance.kernel_mut(of.kernel) {
            let text = format!("{session}: kernel `{}` runs as it was written: {why}", kernel.name);
            turn.log(LogLevel::Info, About::from(session).kernel(&kernel.name), text);
        }
    }
}

/// Gives a kernel the form that the device has loaded.
fn form(
    id: ModuleId,
    prepared: PreparedModule,
    facts: &ModuleFacts,
    instance: &mut LoadedInstance,
    index: u32,
) -> Result<(), String> {
    let old = instance.kernel_mut(index).ok_or("the module has no such kernel")?;
    let PreparedModule { ptx, kernels, lines, .. } = prepared;
    let own = kernels.into_iter().find(|kernel| kernel.name == old.name);
    let told = Told::of(facts);
    let home = Home { id, told: &told, lines: lines.as_ref() };
    let kernel = home.kernel(own.ok_or("the forms are not those of the kernel")?, false);
    if let KernelForm::Original { reason, .. } = &kernel.form
        && kernel.slice.is_none()
    {
        return Err(reason.clone());
    }
    if let Err(reason) = &kernel.facts {
        return Err(reason.clone());
    }
    *old = Arc::new(Kernel { later: false, ..kernel });
    if let Some(forms) = &mut instance.forms {
        forms.loaded.push(id);
        forms.room_bytes = forms.room_bytes.saturating_sub(ptx.len() as u64);
    }
    Ok(())
}
