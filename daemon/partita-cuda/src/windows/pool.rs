//! Cells that are ready before a session needs one.
//!
//! A cell takes some 4,000 mappings, and the owner's thread serves everybody. A thread of its own
//! makes cells ahead. Where none is ready, the owner makes one, and others wait.

use super::cells::{Cell, Cells};
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Cells that are ready, and the thread that makes more.
pub(super) struct Pool {
    ready: Option<Receiver<Cell>>,
    /// Tells that a cell was asked for.
    asked: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Pool {
    /// Starts the thread, which keeps `count` cells ready.
    pub(super) fn start(cells: Cells, count: usize) -> io::Result<Pool> {
        let (made, ready) = sync_channel(count);
        let (asked, heard) = sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("cells".into())
            .spawn(move || make_cells(&cells, &made, &heard))?;
        Ok(Pool { ready: Some(ready), asked: Some(asked), thread: Some(thread) })
    }

    /// Takes a cell that is ready.
    pub(super) fn take(&mut self) -> Option<Cell> {
        // Where it has been told already, that will do.
        let _ = self.asked.as_ref()?.try_send(());
        self.ready.as_ref()?.try_recv().ok()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // The thread ends when it can neither send nor hear.
        (self.ready, self.asked) = (None, None);
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported.
            let _ = thread.join();
        }
    }
}

fn make_cells(cells: &Cells, made: &SyncSender<Cell>, asked: &Receiver<()>) {
    if let Err(error) = cells.context.make_current() {
        tracing::error!(%error, "no cells are made ahead: sessions hold others up as they open");
        return;
    }
    loop {
        match cells.make(&|_| false) {
            Ok(cell) => {
                if made.send(cell).is_err() {
                    return;
                }
            }
            // Addresses or memory are used up: another session may have given some back later.
            Err(failure) => {
                tracing::debug!(%failure, "no cell is made ahead");
                if asked.recv().is_err() {
                    return;
                }
            }
        }
    }
}
