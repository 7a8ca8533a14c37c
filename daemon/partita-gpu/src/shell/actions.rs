//! What the engine wants done: answers, errors that stick, modules to prepare, lines of the log.
//!
//! Invariant: a session may be gone by the time of an action for it, and may end through it; either
//! ends nothing else.

use super::{Attention, Shell, ShellError};
use crate::pool::{How, Of, Outcome, Owner, Wanted};
use crate::session::ClientSession;
use partita_device::{Activity, Guards};
use partita_engine::{About, Action, LogLevel, Purpose};
use partita_model::request::{ImageId, ModuleHandle};
use partita_model::{CudaResult, SessionId, TenantId};
use std::panic::Location;
use std::time::Instant;

impl Shell {
    /// Carries out the engine's actions.
    pub(super) fn carry_out(&mut self) -> Result<(), ShellError> {
        while let Some(action) = self.engine.poll_action() {
            match action {
                Action::Reply { session, sequence, code, payload } => {
                    let mut failed = None;
                    self.with_session(session, |client| {
                        failed = client.finish(sequence, code, payload)?;
                        Ok(())
                    });
                    if let Some(error) = failed {
                        self.log_refusal(session, code, &error.text);
                    }
                }
                Action::Sticky { session, code, text } => {
                    self.with_session(session, |client| client.fail(code, text));
                }
                Action::EventRecorded { session, event, sequence, time } => {
                    self.with_session(session, |client| {
                        client.event_reached(event, sequence, time);
                        Ok(())
                    });
                }
                Action::Prepare { session, module, image, purpose, guards, sequence: _ } => {
                    self.prepare((session, module), image, purpose, guards);
                }
                Action::PrepareForms { session, of, source, loaded, purpose, guards } => {
                    self.submit(session, Wanted::Forms(of, source, loaded), purpose, guards);
                }
                Action::Output { session, console, text } => {
                    self.with_session(session, |client| client.output(console, &text));
                }
                Action::Profiled { hash, profiles } => {
                    if let Some(store) = &self.store {
                        store.keep_kernel(&hash, &profiles);
                    }
                }
                Action::EndSession { session, reason: _ } => {
                    self.seats.remove(&session);
                    self.pool.forget(session);
                }
                Action::Released { session } => {
                    self.memory.released(session);
                    self.keep_slowdowns(false);
                    tracing::debug!(session = session.0, "nothing is left of it");
                }
                Action::DeviceLost { reason } => return Err(ShellError::Lost(reason)),
                Action::Log { level, about, text, at } => self.log(level, about, &text, at),
            }
        }
        Ok(())
    }

    /// Calls a function with a session. The session may be gone already, or end through the call.
    pub(super) fn with_session(
        &mut self,
        id: SessionId,
        act: impl FnOnce(&mut ClientSession) -> Result<(), partita_wire::Violation>,
    ) {
        let Some(seat) = self.seats.get_mut(&id) else { return };
        if seat.attention == Attention::Asleep {
            seat.attention = Attention::Answered;
        }
        let waited = seat.session.waits() || seat.session.loads();
        let news = seat.session.end().news();
        let result = act(&mut seat.session);
        // Whether it sleeps again by now says nothing.
        if waited && seat.session.end().news() != news {
            self.pacer.answered(&mut seat.pace, self.device.now(), Instant::now());
        }
        if let Err(violation) = result {
            self.end_session(id, &violation);
        }
    }

    fn prepare(
        &mut self,
        (id, module): (SessionId, ModuleHandle),
        image: ImageId,
        purpose: Purpose,
        guards: Guards,
    ) {
        // A session that is gone needs no module.
        let Some(seat) = self.seats.get_mut(&id) else { return };
        let image = seat.session.image(image).expect("the engine asks before it answers");
        self.submit(id, Wanted::Module(module, image), purpose, guards);
    }

    fn submit(&mut self, id: SessionId, wanted: Wanted, purpose: Purpose, guards: Guards) {
        let Some(seat) = self.seats.get(&id) else { return };
        let owner = Owner { tenant: seat.tenant, session: id };
        let how = How { originals: self.engine.originals(), guards };
        self.pool.submit(owner, wanted, purpose, how);
    }

    /// Gives prepared modules to the sessions that asked for them, except sessions that are gone.
    pub(super) fn take_prepared(&mut self) {
        let outcomes: Vec<_> = self.pool.take().collect();
        for outcome in outcomes {
            let Some(seat) = self.seats.get_mut(&outcome.session) else { continue };
            seat.prepared.push_back(outcome);
            if seat.attention == Attention::Asleep {
                seat.attention = Attention::Answered;
            }
        }
    }

    pub(super) fn module_prepared(&mut self, outcome: Outcome) {
        self.device_activity = Activity::Busy;
        for (hash, shapes) in &outcome.kept {
            self.engine.learn(hash, shapes);
        }
        let Outcome { session, of, result, .. } = outcome;
        if let (Of::Module(module), Ok(prepared)) = (of, &result) {
            let shapes = prepared.shapes.clone();
            self.with_session(session, |client| {
                client.prepared(module, shapes);
                Ok(())
            });
        }
        let result = result.map(|prepared| prepared.module.clone());
        let device = self.device.as_mut();
        match of {
            Of::Module(module) => self.engine.handle_prepared(device, session, module, result),
            Of::Forms(of) => self.engine.handle_forms(device, session, of, result),
        }
    }

    /// A request for which nobody waits was refused: its program learns only that it failed.
    fn log_refusal(&self, session: SessionId, code: CudaResult, text: &str) {
        let Some((identity, application)) = self.engine.identity(session) else { return };
        let (program, pid) = (&identity.program, identity.pid);
        let line = format!("{session} ({program}, process {pid}): {code}: {text}");
        let (tenant, application) = (Some(identity.tenant), Some(application));
        let about = About { tenant, application, ..session.into() }.error(code);
        self.log(LogLevel::Warning, about, &line, Location::caller());
    }

    /// Writes a line to the log, with whatever is known of what it is about.
    fn log(&self, level: LogLevel, about: About, text: &str, at: &Location<'_>) {
        let About { tenant, session, application, kernel, error } = about;
        // The engine may have forgotten the session meanwhile.
        let seat = session.and_then(|session| self.seats.get(&session));
        let tenant = tenant.or_else(|| seat.map(|seat| seat.tenant)).map(|TenantId(uid)| uid);
        let (session, application) = (session.map(|id| id.0), application.map(|id| id.0));
        let error = error.map(|error| error.to_string());
        let (kernel, error) = (kernel.as_deref(), error.as_deref());
        // All lines of the engine are written here; the journal's limit must tell them apart.
        let at = format!("{}:{}", at.file(), at.line());
        match level {
            LogLevel::Debug => {
                tracing::debug!(tenant, session, application, kernel, error, at, "{text}");
            }
            LogLevel::Info => {
                tracing::info!(tenant, session, application, kernel, error, at, "{text}")
            }
            LogLevel::Warning => {
                tracing::warn!(tenant, session, application, kernel, error, at, "{text}");
            }
            LogLevel::Error => {
                tracing::error!(tenant, session, application, kernel, error, at, "{text}");
            }
        }
    }
}
