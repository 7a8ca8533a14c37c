//! Device time: nanoseconds since the device was opened, by the host's monotonic clock. Events of
//! the GPU are placed on this time line.
//!
//! The GPU reports the time between two of its events as a float of milliseconds, and its clock
//! drifts against the host's. A new reference event is therefore taken every half second. The event
//! before it places the reference, and the host's own observations bound the reference: it lies
//! after the host recorded it and before the host saw it reached.
//!
//! Where the device's time is the GPU's ([`ClockSource::Gpu`]), each poll records an event and
//! waits for it. Its stream has nothing else, so no kernel holds it up.

use crate::driver::{Context, Event, Failure, Stream};
use crate::options::ClockSource;
use partita_model::Nanos;
use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

const RENEWAL: Duration = Duration::from_millis(500);

struct Reference {
    event: Event,
    at: u64,
}

pub(crate) struct Clock {
    context: Arc<Context>,
    source: ClockSource,
    start: Instant,
    /// The latest time that the GPU has told.
    told: Cell<u64>,
    reference: Reference,
    renewed: Instant,
    /// The next reference, and the time of its recording.
    next: Option<(Event, u64)>,
}

impl Clock {
    /// Starts at zero. The stream must be empty and belong to the clock alone.
    pub(crate) fn start(
        context: &Arc<Context>,
        stream: &Stream,
        source: ClockSource,
    ) -> Result<Clock, Failure> {
        let start = Instant::now();
        let event = Event::new(context)?;
        stream.record(&event)?;
        event.wait()?;
        let at = nanos(start.elapsed());
        let reference = Reference { event, at };
        Ok(Clock {
            context: Arc::clone(context),
            source,
            start,
            told: Cell::new(at),
            reference,
            renewed: Instant::now(),
            next: None,
        })
    }

    pub(crate) fn now(&self) -> Nanos {
        Nanos(match self.source {
            ClockSource::Host => nanos(self.start.elapsed()),
            ClockSource::Gpu => self.told.get(),
        })
    }

    /// The time at which an event was reached, at most the present.
    pub(crate) fn time_of(&self, event: &Event) -> Nanos {
        let since = event.since(&self.reference.event).unwrap_or(i64::MAX);
        let time = self.reference.at.saturating_add_signed(since);
        Nanos(match self.source {
            ClockSource::Host => time.min(self.now().0),
            // The GPU has come so far. A time that cannot be told is none.
            ClockSource::Gpu if since == i64::MAX => self.told.get(),
            ClockSource::Gpu => {
                self.told.set(self.told.get().max(time));
                time
            }
        })
    }

    /// Renews the reference when it is due.
    pub(crate) fn tick(&mut self, stream: &Stream) -> Result<(), Failure> {
        if self.source == ClockSource::Gpu {
            return self.ask(stream);
        }
        if let Some((event, recorded)) = &self.next {
            if event.is_reached()? {
                let latest = self.now().0;
                let at = self.time_of(event).0.clamp(*recorded, latest);
                if let Some((event, _)) = self.next.take() {
                    self.reference = Reference { event, at };
                }
            }
        } else if self.renewed.elapsed() >= RENEWAL {
            let event = Event::new(&self.context)?;
            let recorded = self.now().0;
            stream.record(&event)?;
            self.renewed = Instant::now();
            self.next = Some((event, recorded));
        }
        Ok(())
    }

    /// Asks the GPU for its time.
    fn ask(&mut self, stream: &Stream) -> Result<(), Failure> {
        let event = Event::new(&self.context)?;
        stream.record(&event)?;
        event.wait()?;
        let at = self.time_of(&event).0;
        self.reference = Reference { event, at };
        Ok(())
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
