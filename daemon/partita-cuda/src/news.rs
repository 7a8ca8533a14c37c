//! The wake-ups of the thread that owns the device, and the threads that wait for events on its
//! behalf.
//!
//! While the owner is awake, it looks for events itself. Before it sleeps, it asks one thread for
//! each stream with work to wait for that stream's next event. These threads sleep in the driver,
//! and ring. Neither side spins, and a busy owner costs no wake-ups.

use crate::driver::{Context, Event};
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};

/// A descriptor that is readable when there is news.
#[derive(Debug)]
pub(crate) struct News {
    bell: OwnedFd,
    /// Whether the descriptor may be readable. The owner asks at each poll, and a call of the
    /// kernel would cost more than the rest of a poll.
    rang: AtomicBool,
}

impl News {
    pub(crate) fn new() -> io::Result<Arc<News>> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(News { bell, rang: AtomicBool::new(false) }))
    }

    pub(crate) fn ring(&self) {
        // The write fails only if the counter is full, and a full counter is readable.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        // Behind the write: the owner would not hush what it takes for quiet.
        self.rang.store(true, Ordering::Release);
    }

    /// Makes the descriptor unreadable until the next news.
    pub(crate) fn hush(&self) {
        if self.rang.load(Ordering::Relaxed) && self.rang.swap(false, Ordering::AcqRel) {
            let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        }
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// A thread that waits for one event at a time.
pub(crate) struct Waiter {
    events: Sender<Arc<Event>>,
    armed: Arc<AtomicBool>,
}

impl Waiter {
    pub(crate) fn start(context: &Arc<Context>, news: &Arc<News>) -> io::Result<Waiter> {
        let (events, received) = channel::<Arc<Event>>();
        let armed = Arc::new(AtomicBool::new(false));
        let (context, news, flag) = (Arc::clone(context), Arc::clone(news), Arc::clone(&armed));
        std::thread::Builder::new().name("wait".into()).spawn(move || {
            // After the end of the context every wait fails at once, and the owner's own calls fail
            // alike.
            let _ = context.make_current();
            for event in received {
                // The owner finds errors when it queries the event.
                let _ = event.wait();
                drop(event);
                flag.store(false, Ordering::Release);
                news.ring();
            }
        })?;
        Ok(Waiter { events, armed })
    }

    /// Waits for an event, unless the thread is waiting already.
    pub(crate) fn arm(&self, event: &Arc<Event>) {
        if !self.armed.swap(true, Ordering::AcqRel) {
            // The thread outlives the sender, so sending succeeds.
            let _ = self.events.send(Arc::clone(event));
        }
    }
}
