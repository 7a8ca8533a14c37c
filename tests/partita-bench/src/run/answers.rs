//! What a program reads back at the end of each pass ([`crate::Application::answer`]).

use crate::application::Application;
use crate::player::Player;
use partita_device::HostMemory;
use partita_model::DeviceAddress;
use partita_model::request::{ArenaRange, Request};
use std::sync::{Mutex, PoisonError};

/// The host memory of a program, which its answers go to.
pub(super) struct Inbox(Mutex<Vec<u8>>);

impl Inbox {
    /// Room for the answer of an application, if it has one.
    pub(super) fn of(application: &Application) -> Option<Inbox> {
        let bytes = application.buffers.get(application.answer?)?.bytes;
        Some(Inbox(Mutex::new(vec![0; usize::try_from(bytes).ok()?])))
    }

    fn bytes<T>(&self, offset: u64, count: usize, with: impl FnOnce(&mut [u8]) -> T) -> T {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        with(&mut all[from..from + count])
    }
}

impl HostMemory for Inbox {
    fn size(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len() as u64
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        self.bytes(offset, into.len(), |bytes| into.copy_from_slice(bytes));
    }

    fn write(&self, offset: u64, from: &[u8]) {
        self.bytes(offset, from.len(), |bytes| bytes.copy_from_slice(from));
    }
}

impl Player<'_> {
    /// What ends a batch: the copy of the answer to the host, or a wait for the launches.
    pub(super) fn end_of_batch(&self) -> Request {
        let only = self.streams.first().filter(|_| self.streams.len() == 1).copied();
        let answer = self.application.answer.and_then(|buffer| {
            let bytes = self.application.buffers.get(buffer)?.bytes;
            Some((DeviceAddress(*self.places.get(buffer)?), ArenaRange { offset: 0, bytes }))
        });
        match (only, answer) {
            (Some(stream), Some((from, to))) => Request::CopyToHost { stream, to, from },
            _ => Request::Synchronize { stream: only },
        }
    }
}
