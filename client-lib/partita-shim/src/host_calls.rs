//! Functions of the program that streams call: `cuLaunchHostFunc`, `cuStreamAddCallback`, host
//! nodes of graphs.
//!
//! One thread a device calls all of them, one after the other, as CUDA's own thread does. The
//! thread starts with the first such call. It waits for the device only while a function is due,
//! because a program counts as waiting while one of its threads waits. Signals are blocked in this
//! thread: their handlers belong on the program's threads.

use crate::devices;
use crate::error::{CuError, CuResult};
use crate::handles::DeviceIndex;
use partita_client::{CallError, Session, StreamHandle};
use std::io;
use std::mem::MaybeUninit;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};

/// Bytes of the thread's stack, enough for what programs do on their own threads.
const STACK_BYTES: usize = 8 << 20;

/// The thread that calls, once there is one.
pub struct HostCalls {
    device: DeviceIndex,
    thread: Mutex<Option<Sender<()>>>,
}

impl HostCalls {
    /// Without a thread.
    pub const fn new(device: DeviceIndex) -> Self {
        HostCalls { device, thread: Mutex::new(None) }
    }

    /// Has `call` called when a stream gets there; it learns of the failure of earlier work.
    pub fn add(
        &self,
        session: &Session,
        stream: StreamHandle,
        call: impl FnOnce(Result<(), CallError>) + Send + 'static,
    ) -> CuResult {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        let due = match &*thread {
            Some(due) => due,
            None => thread.insert(start(self.device).map_err(|_| CuError::OPERATING_SYSTEM)?),
        };
        session.call_host(stream, call)?;
        if due.send(()).is_err() {
            // The session ended, and the thread with it.
            session.abandon_calls();
        }
        Ok(())
    }
}

fn start(device: DeviceIndex) -> io::Result<Sender<()>> {
    let (due, calls) = channel();
    without_signals(|| {
        let thread =
            std::thread::Builder::new().name("partita-host".to_owned()).stack_size(STACK_BYTES);
        thread.spawn(move || serve(device, &calls)).map(drop)
    })?;
    Ok(due)
}

fn serve(device: DeviceIndex, calls: &Receiver<()>) {
    while calls.recv().is_ok() {
        let found = devices::get(device.ordinal()).ok().and_then(|device| device.opened());
        let Some(runtime) = found else { return };
        // After the session's end no further call is due.
        if runtime.session.serve_gate().is_err() {
            // Other devices' streams may wait for some of them to go.
            runtime.session.abandon_calls();
            return;
        }
    }
}

/// Does something with all signals blocked; threads that it starts keep them so.
pub fn without_signals<T>(work: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: it writes the set.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: the first set has just been written; this writes the second, because it cannot fail
    // with a valid `how`.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
    let done = work();
    // SAFETY: the set has been written by the call above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    done
}
