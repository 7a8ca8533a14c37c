//! A value that is written whole at each change, where changes that wait together share one write.
//!
//! A change that finds no write in progress is applied and written at once. Changes that come
//! meanwhile wait, are applied in the order in which they came, and are written together. A disk
//! that takes long to write so takes changes in larger groups, not later and later.
//!
//! Invariants: a change is written before it is answered. Readers see only what is written. A
//! failed write refuses every change in it, with all that was decided in view of such a change.
//! One write is in progress at a time, and none holds up the thread that serves requests.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fmt, io};
use tokio::sync::{Notify, oneshot};

/// What a change has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// The value is another one, and has to be written.
    Changed,
    /// Nothing: the request was refused, or asked for what is there.
    None,
}

/// Answers a change, once it is written or not.
type Answer = Box<dyn FnOnce(Result<(), Arc<io::Error>>) + Send>;
/// Applies a change.
type Apply<T> = Box<dyn FnOnce(&mut T) -> (Effect, Answer) + Send>;
/// Writes a value.
type Write<T> = Box<dyn Fn(&T) -> io::Result<()> + Send + Sync>;

/// The value.
pub struct Ledger<T> {
    state: Mutex<State<T>>,
    write: Write<T>,
    /// Told at every change that is written.
    pub changed: Notify,
}

impl<T: fmt::Debug> fmt::Debug for Ledger<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        f.debug_struct("Ledger").field("value", &state.value).finish_non_exhaustive()
    }
}

struct State<T> {
    value: T,
    waiting: Vec<Apply<T>>,
    is_writing: bool,
}

impl<T: Clone + Send + Sync + 'static> Ledger<T> {
    /// A value that is written by `write`.
    pub fn new(
        value: T,
        write: impl Fn(&T) -> io::Result<()> + Send + Sync + 'static,
    ) -> Arc<Ledger<T>> {
        let state = State { value, waiting: Vec::new(), is_writing: false };
        let (write, changed) = (Box::new(write), Notify::new());
        Arc::new(Ledger { state: Mutex::new(state), write, changed })
    }

    /// Looks at the value, or changes in it what is never written.
    pub fn look<R>(&self, look: impl FnOnce(&mut T) -> R) -> R {
        look(&mut self.state().value)
    }

    /// Changes the value, and answers once that is written. The change is made also where the
    /// caller does not wait for the answer.
    ///
    /// # Errors
    /// Where it cannot be written; nothing has changed then.
    pub async fn change<R: Send + 'static>(
        self: &Arc<Self>,
        change: impl FnOnce(&mut T) -> (R, Effect) + Send + 'static,
    ) -> Result<R, Arc<io::Error>> {
        let (answer, answered) = oneshot::channel();
        let apply = move |value: &mut T| -> (Effect, Answer) {
            let (result, effect) = change(value);
            // The caller may have gone.
            let tell = |written: Result<(), _>| drop(answer.send(written.map(|()| result)));
            (effect, Box::new(tell))
        };
        if self.queue(Box::new(apply)) {
            tokio::spawn(Arc::clone(self).write_all());
        }
        let gone = |_| Arc::new(io::Error::other("the daemon is ending"));
        answered.await.unwrap_or_else(|error| Err(gone(error)))
    }

    /// Queues a change. Whether nobody writes yet.
    fn queue(&self, apply: Apply<T>) -> bool {
        let mut state = self.state();
        state.waiting.push(apply);
        !std::mem::replace(&mut state.is_writing, true)
    }

    /// Writes until no change waits.
    async fn write_all(self: Arc<Self>) {
        while let Some(group) = self.next_group() {
            let ledger = Arc::clone(&self);
            let Group { early, late, after } = group;
            early.into_iter().for_each(|answer| answer(Ok(())));
            if late.is_empty() {
                continue;
            }
            let write = move || (ledger.write)(&after).map(|()| after);
            let written = match tokio::task::spawn_blocking(write).await {
                Ok(written) => written.map_err(Arc::new),
                Err(error) => Err(Arc::new(io::Error::other(error))),
            };
            let written = written.map(|after| self.state().value = after);
            if written.is_ok() {
                self.changed.notify_one();
            }
            late.into_iter().for_each(|answer| answer(written.clone()));
        }
    }

    /// Applies the changes that wait to a copy. `None` where none waits: the writer is done.
    fn next_group(&self) -> Option<Group<T>> {
        let mut state = self.state();
        let waiting = std::mem::take(&mut state.waiting);
        if waiting.is_empty() {
            state.is_writing = false;
            return None;
        }
        let mut after = state.value.clone();
        drop(state);
        let (mut early, mut late) = (Vec::new(), Vec::new());
        for apply in waiting {
            let (effect, answer) = apply(&mut after);
            // What follows a change was decided in view of it.
            if effect == Effect::None && late.is_empty() {
                early.push(answer);
            } else {
                late.push(answer);
            }
        }
        Some(Group { early, late, after })
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Changes that are written together.
struct Group<T> {
    /// Those before the first that changed the value: nothing of them is written.
    early: Vec<Answer>,
    late: Vec<Answer>,
    /// The value after all of them.
    after: T,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use tokio::task::JoinHandle;

    type Numbers = Vec<u32>;

    /// A disk whose writes end when the test says how.
    struct Disk {
        /// What each write has tried to write.
        tried: Receiver<Numbers>,
        end: Sender<io::Result<()>>,
    }

    fn ledger() -> (Arc<Ledger<Numbers>>, Disk) {
        let (tell, tried) = channel();
        let (end, ends) = channel();
        let (tell, ends) = (Mutex::new(tell), Mutex::new(ends));
        let write = move |value: &Numbers| {
            tell.lock().unwrap().send(value.clone()).unwrap();
            ends.lock().unwrap().recv().unwrap()
        };
        (Ledger::new(Vec::new(), write), Disk { tried, end })
    }

    /// Adds a number, or says where it is already.
    fn add(
        ledger: &Arc<Ledger<Numbers>>,
        number: u32,
    ) -> JoinHandle<Result<Option<usize>, String>> {
        let ledger = Arc::clone(ledger);
        let change = move |numbers: &mut Numbers| {
            if let Some(at) = numbers.iter().position(|known| *known == number) {
                return (Some(at), Effect::None);
            }
            numbers.push(number);
            (None, Effect::Changed)
        };
        tokio::spawn(async move { ledger.change(change).await.map_err(|error| error.to_string()) })
    }

    async fn attempt(disk: &Disk) -> Numbers {
        loop {
            match disk.tried.try_recv() {
                Ok(numbers) => return numbers,
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(1)).await,
            }
        }
    }

    /// Lets the changes that were made reach the ledger.
    async fn settle() {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn changes_that_wait_together_share_a_write_in_their_order() {
        let (ledger, disk) = ledger();
        let first = add(&ledger, 1);
        assert_eq!(attempt(&disk).await, [1]);
        let waiting: Vec<_> = [2, 3, 2, 4].map(|number| add(&ledger, number)).into();
        settle().await;
        assert!(!first.is_finished(), "a change is written before it is answered");
        assert_eq!(ledger.look(|numbers| numbers.clone()), [0; 0]);
        disk.end.send(Ok(())).unwrap();
        assert_eq!(first.await.unwrap(), Ok(None));
        assert_eq!(attempt(&disk).await, [1, 2, 3, 4], "one write for four changes");
        assert!(waiting.iter().all(|change| !change.is_finished()));
        disk.end.send(Ok(())).unwrap();
        let mut answers = Vec::new();
        for change in waiting {
            answers.push(change.await.unwrap());
        }
        assert_eq!(answers, [Ok(None), Ok(None), Ok(Some(1)), Ok(None)]);
        assert_eq!(ledger.look(|numbers| numbers.clone()), [1, 2, 3, 4]);
        // What changes nothing is not written.
        assert_eq!(add(&ledger, 3).await.unwrap(), Ok(Some(2)));
        assert!(disk.tried.try_recv().is_err());
    }

    #[tokio::test]
    async fn a_failed_write_refuses_every_change_in_it_and_no_later_one() {
        let (ledger, disk) = ledger();
        let first = add(&ledger, 1);
        assert_eq!(attempt(&disk).await, [1]);
        let waiting: Vec<_> = [1, 2, 2, 3].map(|number| add(&ledger, number)).into();
        settle().await;
        disk.end.send(Ok(())).unwrap();
        assert_eq!(first.await.unwrap(), Ok(None));
        assert_eq!(attempt(&disk).await, [1, 2, 3]);
        let later = add(&ledger, 2);
        settle().await;
        disk.end.send(Err(io::Error::other("full"))).unwrap();
        let mut answers = Vec::new();
        for change in waiting {
            answers.push(change.await.unwrap());
        }
        let full = || Err("full".to_owned());
        assert_eq!(answers, [Ok(Some(0)), full(), full(), full()], "1 was there before");
        assert_eq!(attempt(&disk).await, [1, 2]);
        disk.end.send(Ok(())).unwrap();
        assert_eq!(later.await.unwrap(), Ok(None), "the 2 that was not written is no hindrance");
        assert_eq!(ledger.look(|numbers| numbers.clone()), [1, 2]);
    }

    #[tokio::test]
    async fn a_change_is_made_also_where_its_caller_goes_away() {
        let (ledger, disk) = ledger();
        let gone = add(&ledger, 1);
        assert_eq!(attempt(&disk).await, [1]);
        gone.abort();
        disk.end.send(Ok(())).unwrap();
        ledger.changed.notified().await;
        assert_eq!(ledger.look(|numbers| numbers.clone()), [1]);
    }
}
