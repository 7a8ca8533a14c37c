//! The hub of events: it collects what the data planes have written down, and tells every reader.
//!
//! A `partita-gpu` keeps its last events in a ring, and nothing of that costs a launch. The hub
//! asks for them while somebody reads, at most once in [`PAUSE`] for each GPU, and gets a bounded
//! batch. Between two questions the process announces once that there is something. While nobody
//! reads, nothing crosses the link.
//!
//! Readers follow a bounded channel. A reader that is too slow loses the oldest events and is told
//! how many; nobody waits for it.
//!
//! Ids are `EPOCH-NUMBER`. The epoch is another after each start of the daemon, and the number
//! counts the events of all GPUs. The id `0` stands before everything that is remembered.

use crate::gpus::{Gpu, Gpus};
use crate::link::{AskError, Link};
use partita_model::{
    ApplicationId, EventBatch, EventItem, GpuEvent, GpuNumber, Happening, Nanos, OthersItem,
    TenantId,
};
use partita_wire::supervise::{Answer, Ask};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{broadcast, watch};

/// The pause between two questions to one GPU, in which events gather.
const PAUSE: Duration = Duration::from_millis(20);
/// The pause after a question that had no answer.
const AFTER_FAILURE: Duration = Duration::from_millis(200);
/// Events that a reader that comes again can be told.
const HISTORY: usize = 4096;
/// Events by which a reader may be behind.
const BEHIND: usize = 1024;
/// The id before everything that is remembered.
const BEGINNING: &str = "0";
/// Batches for which a new reader waits at most.
const BATCHES: usize = 16;

/// One event, for all readers.
#[derive(Debug)]
pub struct Told {
    /// Its number.
    pub number: u64,
    /// The event.
    pub item: EventItem,
    /// The event as JSON.
    pub text: String,
}

/// What is known of the applications that the events are about.
#[derive(Debug, Default)]
struct Known {
    /// The number of the last event.
    last: u64,
    history: VecDeque<Arc<Told>>,
    /// Whose each application is, and how many SMs it has.
    applications: BTreeMap<(GpuNumber, ApplicationId), (TenantId, u16)>,
}

/// How far a GPU's events have been read.
#[derive(Debug, Default)]
struct Progress {
    link: Option<Arc<Link>>,
    after: u64,
}

/// The hub.
#[derive(Debug)]
pub struct Hub {
    gpus: Gpus,
    epoch: u64,
    known: Mutex<Known>,
    progress: Vec<tokio::sync::Mutex<Progress>>,
    channel: broadcast::Sender<Arc<Told>>,
    readers: watch::Sender<usize>,
}

/// What a reader is told next.
#[derive(Debug)]
pub enum Next {
    /// An event.
    Event(Arc<Told>),
    /// The number of lost events: the reader has to read the state again.
    Lagged(u64),
}

/// The place of one reader in the events.
#[derive(Debug)]
pub struct Reading {
    hub: Arc<Hub>,
    /// Events from before the reader came.
    backlog: VecDeque<Next>,
    channel: broadcast::Receiver<Arc<Told>>,
    /// The number of the last event that is no longer to be told.
    last: u64,
}

impl Hub {
    /// The hub of these GPUs. It collects nothing before [`Hub::collect`].
    #[must_use]
    pub fn new(gpus: Gpus) -> Arc<Hub> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let progress = gpus.all().iter().map(|_| tokio::sync::Mutex::default()).collect();
        Arc::new(Hub {
            gpus,
            epoch: u64::try_from(since.as_micros()).unwrap_or(u64::MAX),
            known: Mutex::default(),
            progress,
            channel: broadcast::channel(BEHIND).0,
            readers: watch::channel(0).0,
        })
    }

    /// Collects events while somebody reads, until it is dropped.
    pub async fn collect(self: Arc<Self>) {
        let mut tasks = tokio::task::JoinSet::new();
        for index in 0..self.gpus.all().len() {
            let hub = Arc::clone(&self);
            tasks.spawn(async move { hub.collect_of(index).await });
        }
        while tasks.join_next().await.is_some() {}
    }

    async fn collect_of(&self, index: usize) {
        let mut readers = self.readers.subscribe();
        let gpu = &self.gpus.all()[index];
        while readers.wait_for(|readers| *readers > 0).await.is_ok() {
            let Some(link) = gpu.handle.link(Duration::MAX).await else { return };
            match self.pull(index, &link).await {
                Ok(true) => {}
                Ok(false) => {
                    tokio::select! {
                        () = link.news() => {}
                        () = gpu.handle.left(&link) => {}
                    }
                }
                Err(_) => tokio::time::sleep(AFTER_FAILURE).await,
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Reads one batch of a GPU's events. Whether more follow.
    async fn pull(&self, index: usize, link: &Arc<Link>) -> Result<bool, AskError> {
        let gpu = &self.gpus.all()[index];
        let mut progress = self.progress[index].lock().await;
        if !progress.link.as_ref().is_some_and(|known| Arc::ptr_eq(known, link)) {
            if progress.link.is_some() {
                self.restarted(gpu);
            } else {
                self.know(gpu, link).await?;
            }
            *progress = Progress { link: Some(Arc::clone(link)), after: 0 };
        }
        let batch = batch(link, progress.after).await?;
        progress.after = batch.events.last().map_or(progress.after, |event| event.sequence);
        let more = batch.more;
        self.tell(gpu.number, batch);
        Ok(more)
    }

    /// Takes in the applications that were there before the first reader.
    async fn know(&self, gpu: &Gpu, link: &Arc<Link>) -> Result<(), AskError> {
        if let Answer::Accounts(accounts) = link.ask(Ask::Accounts).await? {
            let mut known = self.lock();
            for one in accounts.applications {
                known.applications.insert((gpu.number, one.id), (one.tenant, one.sms));
            }
        }
        Ok(())
    }

    fn restarted(&self, gpu: &Gpu) {
        self.lock().applications.retain(|(number, _), _| *number != gpu.number);
        let reason = gpu.handle.state().last_restart;
        let what = Happening::Restarted { reason };
        let event = GpuEvent { sequence: 0, time: Nanos(0), tenant: None, what };
        self.tell(gpu.number, EventBatch { events: vec![event], ..EventBatch::default() });
    }

    fn tell(&self, gpu: GpuNumber, batch: EventBatch) {
        let mut known = self.lock();
        // Numbers that nobody gets: a reader that comes again sees that it has missed something.
        known.last += batch.lost;
        for event in batch.events {
            known.last += 1;
            known.follow(gpu, &event);
            let item = EventItem { gpu, event };
            let text = serde_json::to_string(&item).unwrap_or_default();
            let told = Arc::new(Told { number: known.last, item, text });
            if known.history.len() == HISTORY {
                known.history.pop_front();
            }
            known.history.push_back(Arc::clone(&told));
            // Nobody may be reading.
            drop(self.channel.send(told));
        }
    }

    /// The sums of the applications on a GPU that are not this tenant's.
    #[must_use]
    pub fn others(&self, gpu: GpuNumber, own: TenantId) -> OthersItem {
        let known = self.lock();
        let others =
            known.applications.iter().filter(|((on, _), (tenant, _))| *on == gpu && *tenant != own);
        let sms = others.clone().map(|(_, (_, sms))| u32::from(*sms)).sum();
        OthersItem { gpu, applications: others.count(), sms }
    }

    /// The applications of a tenant on a GPU.
    #[must_use]
    pub fn own(&self, gpu: GpuNumber, tenant: TenantId) -> BTreeSet<ApplicationId> {
        let known = self.lock();
        let own = known
            .applications
            .iter()
            .filter(|((on, _), (whose, _))| *on == gpu && *whose == tenant);
        own.map(|((_, id), _)| *id).collect()
    }

    /// The id of the event with this number.
    #[must_use]
    pub fn id(&self, number: u64) -> String {
        format!("{:x}-{number}", self.epoch)
    }

    /// Begins to read: from now on, or after the event with the id `after`.
    pub async fn read(self: &Arc<Self>, after: Option<&str>) -> Reading {
        let had_readers = *self.readers.borrow() > 0;
        self.readers.send_modify(|readers| *readers += 1);
        // From here on the reader counts, and its place gives that back however it ends.
        let (channel, last) = (self.channel.subscribe(), self.lock().last);
        let hub = Arc::clone(self);
        let mut reading = Reading { hub, backlog: VecDeque::new(), channel, last };
        if !had_readers {
            self.catch_up().await;
        }
        let known = self.lock();
        reading.channel = self.channel.subscribe();
        reading.last = known.last;
        let number = after.map(|id| self.number(id));
        reading.backlog = match number {
            None => VecDeque::new(),
            Some(number) => known.after(number),
        };
        drop(known);
        reading
    }

    async fn catch_up(&self) {
        for (index, gpu) in self.gpus.all().iter().enumerate() {
            let Some(link) = gpu.handle.state().link else { continue };
            for _ in 0..BATCHES {
                // The collector tries again.
                if !matches!(self.pull(index, &link).await, Ok(true)) {
                    break;
                }
            }
        }
    }

    /// The number of an id; `None` for an id of another epoch, or of none.
    fn number(&self, id: &str) -> Option<u64> {
        if id.trim() == BEGINNING {
            return Some(0);
        }
        let (epoch, number) = id.trim().split_once('-')?;
        let epoch = u64::from_str_radix(epoch, 16).ok()?;
        number.parse().ok().filter(|_| epoch == self.epoch)
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn batch(link: &Link, after: u64) -> Result<EventBatch, AskError> {
    match link.ask(Ask::Events { after }).await? {
        Answer::Events(batch) => Ok(batch),
        other => {
            tracing::error!(?other, "partita-gpu answered something else than events");
            Err(AskError::Gone)
        }
    }
}

impl Known {
    fn follow(&mut self, gpu: GpuNumber, event: &GpuEvent) {
        let Some(application) = event.what.application() else { return };
        let key = (gpu, application);
        match (&event.what, event.tenant) {
            (Happening::ApplicationLeft { .. }, _) => drop(self.applications.remove(&key)),
            (Happening::ApplicationCame { .. }, Some(tenant)) => {
                self.applications.insert(key, (tenant, 0));
            }
            (Happening::Border { to, .. }, Some(tenant)) => {
                self.applications.insert(key, (tenant, to.len()));
            }
            _ => {}
        }
    }

    /// What follows the event with this number, as far as it is remembered.
    fn after(&self, number: Option<u64>) -> VecDeque<Next> {
        // Of another epoch, nobody knows how much is missing.
        let Some(number) = number else { return VecDeque::from([Next::Lagged(0)]) };
        let rest = self.history.iter().filter(|told| told.number > number);
        let first = rest.clone().next().map_or(self.last + 1, |told| told.number);
        let missed = first.saturating_sub(number.saturating_add(1));
        let lagged = (missed > 0).then_some(Next::Lagged(missed));
        lagged.into_iter().chain(rest.cloned().map(Next::Event)).collect()
    }
}

impl Reading {
    /// What is told next; `None` where the hub is gone.
    pub async fn next(&mut self) -> Option<Next> {
        if let Some(next) = self.backlog.pop_front() {
            return Some(next);
        }
        match self.channel.recv().await {
            Ok(told) => {
                // Events that were lost in the data plane leave a gap.
                let missed = told.number.saturating_sub(self.last + 1);
                self.last = told.number;
                if missed == 0 {
                    return Some(Next::Event(told));
                }
                self.backlog.push_back(Next::Event(told));
                Some(Next::Lagged(missed))
            }
            Err(broadcast::error::RecvError::Lagged(missed)) => {
                // The next event follows the lost events.
                self.last += missed;
                Some(Next::Lagged(missed))
            }
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }

    /// Whether the reader has been told all that was remembered when it came.
    #[must_use]
    pub fn is_up_to_date(&self) -> bool {
        self.backlog.is_empty()
    }

    /// The number of the last event that was told, or came before the reader.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.last
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.hub.readers.send_modify(|readers| *readers -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::GpuHandle;

    fn hub() -> Arc<Hub> {
        let (_, state) = watch::channel(crate::link::GpuState::default());
        Hub::new(Gpus::new(vec![(GpuHandle::new(state), watch::channel(None).0)]))
    }

    fn tell(hub: &Hub, events: u64, lost: u64) {
        let what = || Happening::Restarted { reason: None };
        let event = |sequence| GpuEvent { sequence, time: Nanos(1), tenant: None, what: what() };
        let events = (0..events).map(event).collect();
        hub.tell(GpuNumber(0), EventBatch { events, lost, ..EventBatch::default() });
    }

    async fn numbers(reading: &mut Reading, most: usize) -> Vec<Result<u64, u64>> {
        let mut found = Vec::new();
        for _ in 0..most {
            found.push(match reading.next().await.unwrap() {
                Next::Event(told) => Ok(told.number),
                Next::Lagged(missed) => Err(missed),
            });
        }
        found
    }

    #[tokio::test]
    async fn a_reader_goes_on_after_its_last_event() {
        let hub = hub();
        tell(&hub, 3, 0);
        let mut from_now = hub.read(None).await;
        let mut again = hub.read(Some(&hub.id(1))).await;
        let mut stranger = hub.read(Some("7-1")).await;
        tell(&hub, 1, 2);
        assert_eq!(numbers(&mut from_now, 2).await, [Err(2), Ok(6)]);
        assert_eq!(numbers(&mut again, 4).await, [Ok(2), Ok(3), Err(2), Ok(6)]);
        assert_eq!(numbers(&mut stranger, 3).await, [Err(0), Err(2), Ok(6)]);
        let mut again = hub.read(Some(&hub.id(3))).await;
        assert_eq!(numbers(&mut again, 2).await, [Err(2), Ok(6)]);
        assert_eq!(*hub.readers.borrow(), 4);
        drop((from_now, again, stranger));
        assert_eq!(*hub.readers.borrow(), 1);
    }

    #[tokio::test]
    async fn a_slow_reader_loses_the_oldest_and_is_told() {
        let hub = hub();
        let mut slow = hub.read(None).await;
        tell(&hub, 5000, 0);
        let found = numbers(&mut slow, 1 + BEHIND).await;
        let missed = 5000 - BEHIND as u64;
        assert_eq!((found[0], found[1], found[BEHIND]), (Err(missed), Ok(missed + 1), Ok(5000)));
        assert_eq!(hub.lock().history.len(), HISTORY);
        let mut late = hub.read(Some(&hub.id(1))).await;
        let forgotten = 5000 - HISTORY as u64 - 1;
        assert_eq!(numbers(&mut late, 2).await, [Err(forgotten), Ok(forgotten + 2)]);
    }
}
