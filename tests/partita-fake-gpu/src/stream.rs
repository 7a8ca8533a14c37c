//! Streams: each has a queue, and a thread that carries it out.

use crate::state::{CHANGED, NOT_READY, SUCCESS, State, lock, wait};
use crate::{kernels, memory};
use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::MutexGuard;
use std::time::{Instant, SystemTime};

/// An operation.
pub enum Op {
    Copy {
        to: u64,
        from: u64,
        bytes: u64,
    },
    /// Rows of a box: to, from, bytes.
    Rows(Vec<(u64, u64, u64)>),
    Set {
        to: u64,
        value: u32,
        width: u64,
        count: u64,
    },
    Kernel {
        name: String,
        params: Vec<u8>,
        ctas: u32,
        sms: Vec<u32>,
    },
    Record {
        event: u64,
        number: u64,
    },
    Wait {
        event: u64,
        number: u64,
    },
    WaitValue {
        address: u64,
        value: u64,
    },
    HostFunction {
        function: extern "C" fn(*mut c_void),
        data: usize,
    },
}

/// A stream's queue; an operation stays at the front until it has ended.
#[derive(Default)]
pub struct StreamState {
    pub queue: VecDeque<Op>,
    pub submitted: u64,
    pub ended: u64,
    pub destroyed: bool,
}

/// Makes a stream with a thread.
pub fn create(state: &mut State) -> u64 {
    let handle = state.handle();
    state.streams.insert(handle, StreamState::default());
    std::thread::spawn(move || carry_out(handle));
    handle
}

/// Appends an operation.
pub fn submit(mut state: MutexGuard<'_, State>, stream: u64, op: Op) -> u32 {
    let Some(queue) = state.streams.get_mut(&stream) else { return crate::state::INVALID_HANDLE };
    queue.queue.push_back(op);
    queue.submitted += 1;
    drop(state);
    CHANGED.notify_all();
    SUCCESS
}

/// `cuStreamQuery`.
pub fn query(state: &State, stream: u64) -> u32 {
    match state.streams.get(&stream) {
        Some(queue) if queue.ended == queue.submitted => SUCCESS,
        Some(_) => NOT_READY,
        None => crate::state::INVALID_HANDLE,
    }
}

fn carry_out(stream: u64) {
    loop {
        let mut state = lock();
        let op = loop {
            let Some(queue) = state.streams.get_mut(&stream) else { return };
            if let Some(op) = queue.queue.pop_front() {
                break op;
            }
            if queue.destroyed {
                state.streams.remove(&stream);
                return;
            }
            state = CHANGED.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
        };
        drop(state);
        carry_out_one(op);
        let mut state = lock();
        if let Some(queue) = state.streams.get_mut(&stream) {
            queue.ended += 1;
        }
        drop(state);
        CHANGED.notify_all();
    }
}

fn carry_out_one(op: Op) {
    if lock().sticky != 0 {
        return;
    }
    match op {
        Op::Copy { to, from, bytes } => memory::copy(to, from, bytes),
        Op::Rows(rows) => {
            rows.into_iter().for_each(|(to, from, bytes)| memory::copy(to, from, bytes))
        }
        Op::Set { to, value, width, count } => memory::set(to, value, width, count),
        Op::Kernel { name, params, ctas, sms } => kernels::run(&name, &params, ctas, &sms),
        Op::Record { event, number } => {
            let mut state = lock();
            if state.sticky != 0 {
                return;
            }
            if let Some(event) = state.events.get_mut(&event) {
                event.reached = number;
                event.time = now();
            }
        }
        Op::Wait { event, number } => {
            let reached = |state: &State| {
                state.events.get(&event).is_none_or(|event| event.reached >= number)
            };
            drop(wait(lock(), |state| reached(state) || state.sticky != 0));
        }
        Op::WaitValue { address, value } => {
            let end = Instant::now() + crate::state::PATIENCE;
            while kernels::read(address) < value && Instant::now() < end && lock().sticky == 0 {
                std::thread::sleep(std::time::Duration::from_micros(50));
            }
        }
        Op::HostFunction { function, data } => function(data as *mut c_void),
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
