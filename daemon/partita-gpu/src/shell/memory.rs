//! A look at the memory that sessions make this process hold, from time to time, and the end of the
//! session that holds too much ([`crate::host_memory`]).
//!
//! The session's client gets CUDA's error for memory and a sentence, everybody else nothing. What
//! its program touched of the shared memory goes once no kernel of it runs any more.

use super::{Shell, ShellError};
use crate::host_memory::{Held, Limits, Verdict, judge, machine_bytes};
use partita_engine::CloseReason;
use partita_model::{Console, CudaResult, HostMemoryLimits, SessionId};
use partita_wire::Arena;
use rustix::fs::fstat;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

/// The least time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The owner spends at most this part of its time on looks: one in this many.
const SHARE: u32 = 20;

/// How long the memory of one ended session is waited for before another is ended. A kernel that
/// cannot be stopped keeps its session's memory for as long as it runs.
const ENDING: Duration = Duration::from_secs(5);

/// Bytes of an estimate: one queued operation, one allocation, and one byte of a module's text.
const OPERATION_BYTES: u64 = 512;
const ALLOCATION_BYTES: u64 = 256;
const TEXT_FACTOR: u64 = 8;

/// Memory of the machine, where the system does not tell.
const UNKNOWN_MACHINE_BYTES: u64 = 8 << 30;

/// When the last look was, and what it led to.
pub(super) struct MemoryWatch {
    machine: u64,
    limits: Limits,
    next: Instant,
    /// Sessions that were ended and have not given everything back: since when, and their shared
    /// memory.
    ending: BTreeMap<SessionId, (Instant, Arena)>,
}

impl MemoryWatch {
    pub(super) fn new() -> MemoryWatch {
        let machine = machine_bytes().unwrap_or(UNKNOWN_MACHINE_BYTES);
        MemoryWatch {
            machine,
            limits: Limits::new(machine, &HostMemoryLimits::default()),
            next: Instant::now(),
            ending: BTreeMap::new(),
        }
    }

    pub(super) fn configure(&mut self, configured: &HostMemoryLimits) {
        self.limits = Limits::new(self.machine, configured);
    }

    /// Nothing of a session is left on the device.
    pub(super) fn released(&mut self, session: SessionId) {
        let Some((_, arena)) = self.ending.remove(&session) else { return };
        // The program may live on, and its pages with it. The system takes a quarter of a second
        // for 1 GiB, for which nobody else should wait.
        let discard = move || {
            if let Err(error) = arena.discard(0, arena.size()) {
                tracing::warn!(session = session.0, %error, "its memory stays until it exits");
            }
        };
        if let Err(error) = thread::Builder::new().name("discard".into()).spawn(discard) {
            tracing::warn!(session = session.0, %error, "its memory stays until it exits");
        }
    }
}

impl Shell {
    /// Looks, if it is time to, and ends a session that holds too much.
    pub(super) fn look_at_memory(&mut self, now: Instant) -> Result<(), ShellError> {
        // One at a time: what the last one held comes back first, unless it takes too long.
        let waits = |since: &Instant| now.duration_since(*since) < ENDING;
        if now < self.memory.next || self.memory.ending.values().any(|(since, _)| waits(since)) {
            return Ok(());
        }
        let verdict = self.verdict();
        let took = now.elapsed();
        self.memory.next = now + LOOK_EVERY.max(took * SHARE);
        match verdict {
            Some(verdict) => self.end_for_memory(&verdict),
            None => Ok(()),
        }
    }

    fn verdict(&mut self) -> Option<Verdict> {
        let shared: BTreeMap<SessionId, u64> = self
            .seats
            .iter_mut()
            .map(|(&id, seat)| (id, file_bytes(&seat.session.end().memory_file())))
            .collect();
        let process = private_bytes()?.saturating_add(shared.values().sum());
        if process <= self.memory.limits.least() {
            return None;
        }
        let held: Vec<Held> = self
            .engine
            .holdings()
            .map(|holding| {
                let id = holding.session;
                let seat = self.seats.get(&id);
                let text = seat.map_or(0, |seat| seat.session.module_bytes());
                Held {
                    session: id,
                    tenant: holding.tenant,
                    can_end: holding.can_end && seat.is_some(),
                    shared: shared.get(&id).copied().unwrap_or(0),
                    device: self.device.host_bytes(holding.window),
                    modules: text.saturating_mul(TEXT_FACTOR),
                    records: holding.operations as u64 * OPERATION_BYTES
                        + holding.allocations as u64 * ALLOCATION_BYTES,
                }
            })
            .collect();
        judge(&self.memory.limits, process, &held)
    }

    fn end_for_memory(&mut self, verdict: &Verdict) -> Result<(), ShellError> {
        let id = verdict.held.session;
        let code = CudaResult::ERROR_OUT_OF_MEMORY;
        self.engine.fail_session(self.device.as_mut(), id, code, verdict.to_string());
        let sentence = format!("partita: {verdict}\n");
        self.with_session(id, |client| client.output(Console::Error, sentence.as_bytes()));
        self.carry_out()?;
        if let Some(mut seat) = self.seats.remove(&id) {
            let arena = seat.session.end().arena();
            self.memory.ending.insert(id, (Instant::now(), arena));
            self.close(id, CloseReason::Died);
        }
        Ok(())
    }
}

/// Bytes of a file in memory that were touched.
fn file_bytes(file: &OwnedFd) -> u64 {
    let blocks = fstat(file).map_or(0, |facts| facts.st_blocks);
    u64::try_from(blocks).unwrap_or(0) * 512
}

/// Bytes of this process that it shares with nobody (Linux, `proc_pid_statm(5)`).
fn private_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let mut pages = text.split_whitespace().skip(1).map(|word| word.parse::<u64>().ok());
    let (resident, shared) = (pages.next()??, pages.next()??);
    Some(resident.saturating_sub(shared) * rustix::param::page_size() as u64)
}
