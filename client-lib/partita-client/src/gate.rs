//! Gates: streams that wait for the program, and the functions that the program calls there.

use crate::inbox::{Slot, State};
use crate::session::Session;
use partita_model::request::{Request, Sequence, StreamHandle};
use partita_model::{AwaitedWord, DeviceAddress};
use partita_wire::{CallError, code};
use std::fmt;

/// The minor version of the protocol that has gates.
const GATES_SINCE: u16 = 1;
/// The minor version of the protocol that has waits for words.
const WORDS_SINCE: u16 = 3;

/// A function for which a stream waits. It gets the error of the work before it, if any.
pub(crate) struct HostCall(Box<dyn FnOnce(Result<(), CallError>) + Send>);

impl fmt::Debug for HostCall {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("HostCall")
    }
}

/// A gate that its stream has reached, or that it never reaches.
#[derive(Debug)]
pub(crate) struct Reached {
    pub(crate) gate: Sequence,
    pub(crate) call: HostCall,
    pub(crate) outcome: Result<(), CallError>,
}

/// A gate at which a stream waits until [`Session::open_gate`] opens it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClosedGate(Sequence);

impl Session {
    /// Makes later work of a stream wait until the gate is opened. Nobody learns when the stream
    /// reaches the gate, and the program does not count as working meanwhile.
    ///
    /// # Errors
    /// The session's own.
    pub fn close_gate(&self, stream: StreamHandle) -> Result<ClosedGate, CallError> {
        self.submit(&Request::<&[u8]>::Gate { stream }).map(ClosedGate)
    }

    /// Opens a closed gate. A gate opens once.
    ///
    /// # Errors
    /// The session's own.
    pub fn open_gate(&self, gate: ClosedGate) -> Result<(), CallError> {
        self.submit(&Request::<&[u8]>::OpenGate { gate: gate.0 }).map(drop)
    }

    /// Drops the pending functions of a session that is over.
    pub fn abandon_calls(&self) {
        // The destructors of the calls run without the lock.
        drop(self.inbox().with(State::take_calls));
    }

    /// Makes the next synchronisation fail, for work of the client itself.
    pub fn fail_next_synchronization(&self, error: CallError) {
        self.inbox().with(|state| state.fail_unclaimed(error));
    }

    /// `cuLaunchHostFunc`: `call` runs when earlier work of the stream is done, and later work
    /// waits until it returns. Returns at once. A thread must call [`Session::serve_gate`] once for
    /// it.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` by daemons that speak protocol 2.0; the session's own errors.
    pub fn call_host(
        &self,
        stream: StreamHandle,
        call: impl FnOnce(Result<(), CallError>) + Send + 'static,
    ) -> Result<(), CallError> {
        self.require(GATES_SINCE, "functions of the host")?;
        let call = HostCall(Box::new(call));
        self.submit_expecting(&Request::<&[u8]>::Gate { stream }, Some(Slot::Gate(call)))?;
        Ok(())
    }

    /// `cuStreamWaitValue32` and `64`: lets later work of the stream wait until a word is what is
    /// wanted. Returns at once.
    ///
    /// # Errors
    /// `INVALID_VALUE` where the word is outside the session's addresses or not aligned;
    /// `NOT_SUPPORTED` by daemons that speak an older protocol than 2.3; the session's own errors.
    pub fn wait_word(
        &self,
        stream: StreamHandle,
        address: DeviceAddress,
        word: AwaitedWord,
    ) -> Result<(), CallError> {
        self.require(WORDS_SINCE, "waits for words of memory")?;
        let width = u64::from(word.width);
        if !matches!(width, 4 | 8) || !address.0.is_multiple_of(width) {
            let text = format!("no word of {width} bytes is at {address}");
            return Err(CallError::new(code::INVALID_VALUE, text));
        }
        self.check_window(address, width)?;
        self.submit(&Request::<&[u8]>::WaitWord { stream, address, word })?;
        Ok(())
    }

    /// Checks that the daemon speaks this minor version of the protocol.
    pub(crate) fn require(&self, minor: u16, what: &str) -> Result<(), CallError> {
        if self.minor_version() >= minor {
            return Ok(());
        }
        let text =
            format!("the daemon is older than this library and has no {what}: restart partitad");
        Err(CallError::new(code::NOT_SUPPORTED, text))
    }

    /// Waits until a stream has reached a function, and calls it. A failed session reaches all its
    /// pending functions.
    ///
    /// # Errors
    /// `PEER_GONE` and other errors after which no stream goes on; no function is called.
    pub fn serve_gate(&self) -> Result<(), CallError> {
        let Reached { gate, call, outcome } = self.inbox().wait(|state| state.take_reached())?;
        let goes_on = outcome.is_ok();
        call.0(outcome);
        if goes_on {
            // A session that has failed meanwhile has no work behind the gate.
            let _ = self.submit(&Request::<&[u8]>::OpenGate { gate });
        }
        Ok(())
    }
}
