//! The keeper gives the applications of reserved jobs their SMs, by pinning them.
//!
//! It looks when a reservation changes or expires, when applications come or go, and when a
//! `partita-gpu` has been restarted. Partitions that an administrator has pinned go before
//! reservations. The engine gives all pins up when a pinned application leaves; the keeper then
//! pins the others again, and in between the policy decides.
//!
//! Pins outlive a `partitad`. At its first look at a GPU the keeper takes a pin for its own where
//! the pin gives the application of a job as many SMs as the job has reserved.

use crate::events::{Hub, Next, Reading};
use crate::gpus::{Gpu, Gpus};
use crate::link::AskError;
use crate::reservations::{Book, now, on};
use partita_model::{
    ApplicationAccount, ApplicationId, GpuNumber, Happening, PartitionReport, Reservation, SmSet,
};
use partita_wire::supervise::{Answer, Ask, PlanRequest, PlannedPartition};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// How long comings and goings gather.
const GATHER: Duration = Duration::from_millis(5);
/// Comings and goings that gather at most.
const MOST_AT_ONCE: usize = 64;
/// The pause before another attempt, where something stands in the way.
const AGAIN: Duration = Duration::from_secs(2);
/// The longest pause. A reservation without an end is looked at all the same.
const LONGEST: Duration = Duration::from_secs(3600);

/// The keeper.
#[derive(Debug)]
pub struct Keeper {
    gpus: Gpus,
    book: Arc<Book>,
    /// What it has pinned, on the GPUs that it has looked at.
    pinned: BTreeMap<GpuNumber, Pins>,
}

type Pins = BTreeMap<ApplicationId, SmSet>;

/// What is to be pinned on a GPU.
#[derive(PartialEq, Eq, Debug)]
struct Wanted {
    pins: Pins,
    /// For each reservation the application that gets its SMs, or why none does.
    notes: Vec<(String, Result<Option<ApplicationId>, String>)>,
}

impl Keeper {
    /// The keeper of a book.
    #[must_use]
    pub fn new(gpus: Gpus, book: Arc<Book>) -> Keeper {
        Keeper { gpus, book, pinned: BTreeMap::new() }
    }

    /// Keeps until it is dropped.
    pub async fn keep(mut self, hub: Arc<Hub>) {
        loop {
            if self.book.next_expiry().is_none() {
                self.book.changed.notified().await;
            }
            let mut reading = hub.read(None).await;
            loop {
                self.book.expire();
                let is_done = self.look().await;
                let Some(next) = self.book.next_expiry() else { break };
                let until = Duration::from_secs(next.saturating_sub(now())).min(LONGEST);
                let pause = if is_done { until } else { until.min(AGAIN) };
                tokio::select! {
                    () = self.book.changed.notified() => {}
                    () = moved(&mut reading) => gather(&mut reading).await,
                    () = sleep(pause) => {}
                }
            }
        }
    }

    /// Pins what is to be pinned. Whether nothing stands in the way.
    async fn look(&mut self) -> bool {
        let all = self.book.all();
        let gpus = self.gpus.clone();
        let mut is_done = true;
        for gpu in gpus.all() {
            let reservations = on(&all, gpu.number);
            let has_none = self.pinned.get(&gpu.number).is_none_or(Pins::is_empty);
            if reservations.is_empty() && has_none {
                continue;
            }
            match self.look_at(gpu, &reservations).await {
                Ok(done) => is_done &= done,
                Err(error) => {
                    tracing::debug!(gpu = gpu.number.0, %error, "reservations have to wait");
                    is_done = false;
                }
            }
        }
        is_done
    }

    async fn look_at(
        &mut self,
        gpu: &Gpu,
        reservations: &[&Reservation],
    ) -> Result<bool, AskError> {
        let (Answer::Accounts(accounts), Answer::Status(status)) =
            (gpu.handle.ask(Ask::Accounts).await?, gpu.handle.ask(Ask::Status).await?)
        else {
            return Err(AskError::Gone);
        };
        let (applications, partitions) = (&accounts.applications, &status.partitions);
        let in_force: Pins = partitions
            .iter()
            .filter(|partition| partition.pinned)
            .map(|partition| (partition.application, partition.sms))
            .collect();
        // What somebody else has replaced is the keeper's no longer.
        let known = self.pinned.get(&gpu.number).cloned();
        let mut own = known.unwrap_or_else(|| adopted(reservations, applications, &in_force));
        own.retain(|id, sms| in_force.get(id) == Some(sms));
        let Wanted { pins, notes } =
            wanted(status.gpu.sms, reservations, applications, (partitions, &own));
        let foreign = in_force.iter().filter(|(id, sms)| own.get(id) != Some(sms));
        let all: Pins = foreign.chain(&pins).map(|(id, sms)| (*id, *sms)).collect();
        let refused = if all == in_force { None } else { pin(gpu, &all).await? };
        let mut is_done = refused.is_none();
        for (id, outcome) in notes {
            let (application, why) = match (outcome, &refused) {
                (Ok(None), _) => (None, None),
                (Ok(_), Some(detail)) => (None, Some(detail.clone())),
                (Ok(application), None) => (application, None),
                (Err(why), _) => (None, Some(why)),
            };
            is_done &= why.is_none();
            self.book.note(&id, application, why);
        }
        self.pinned.insert(gpu.number, if refused.is_some() { own } else { pins });
        Ok(is_done)
    }
}

/// Pins that an earlier keeper has left.
fn adopted(
    reservations: &[&Reservation],
    applications: &[ApplicationAccount],
    in_force: &Pins,
) -> Pins {
    let left = |one: &&Reservation| {
        let job = applications.iter().find(|account| is_job(one, account))?;
        let sms = in_force.get(&job.id).filter(|sms| sms.len() == one.sms)?;
        Some((job.id, *sms))
    };
    reservations.iter().filter_map(left).collect()
}

/// Whether an application is that of a reserved job.
fn is_job(reservation: &Reservation, account: &ApplicationAccount) -> bool {
    account.tenant == reservation.tenant && account.tag.as_ref() == Some(&reservation.job)
}

/// Takes the comings and goings that follow at once.
async fn gather(reading: &mut Reading) {
    for _ in 0..MOST_AT_ONCE {
        if timeout(GATHER, moved(reading)).await.is_err() {
            return;
        }
    }
}

/// Waits until an application comes or goes.
async fn moved(reading: &mut Reading) {
    loop {
        match reading.next().await {
            Some(Next::Event(told)) => {
                if let Happening::ApplicationCame { .. }
                | Happening::ApplicationLeft { .. }
                | Happening::Restarted { .. } = told.item.event.what
                {
                    return;
                }
            }
            Some(Next::Lagged(_)) => return,
            None => std::future::pending().await,
        }
    }
}

/// Pins exactly these partitions. The reason where the data plane refuses.
async fn pin(gpu: &Gpu, pins: &Pins) -> Result<Option<String>, AskError> {
    let partition =
        |(&application, &sms): (&ApplicationId, &SmSet)| PlannedPartition { application, sms };
    let ask = match pins.is_empty() {
        true => Ask::ClearPlan,
        false => Ask::SetPlan(PlanRequest { partitions: pins.iter().map(partition).collect() }),
    };
    match gpu.handle.ask(ask).await? {
        Answer::Done => Ok(None),
        Answer::Refused { detail, .. } => Ok(Some(detail)),
        _ => Err(AskError::Gone),
    }
}

/// The pins of the reservations: SMs that the application has go first, then those that no other
/// reservation had. `own` are the pins so far; all others are an administrator's.
fn wanted(
    sm_count: u16,
    reservations: &[&Reservation],
    applications: &[ApplicationAccount],
    (partitions, own): (&[PartitionReport], &Pins),
) -> Wanted {
    let foreign = |partition: &&PartitionReport| {
        partition.pinned && own.get(&partition.application) != Some(&partition.sms)
    };
    let mut free = SmSet::range(0, sm_count);
    for partition in partitions.iter().filter(foreign) {
        free = free.difference(&partition.sms);
    }
    let has = |id: ApplicationId| partitions.iter().find(|one| one.application == id);
    let mut result = Wanted { pins: Pins::new(), notes: Vec::new() };
    for one in reservations {
        let mut note = |outcome| result.notes.push((one.id.clone(), outcome));
        let Some(job) = applications.iter().find(|account| is_job(one, account)) else {
            note(Ok(None));
            continue;
        };
        if has(job.id).filter(foreign).is_some() {
            note(Err(format!("an administrator has pinned {}", job.id)));
            continue;
        }
        let had = has(job.id).map_or(SmSet::EMPTY, |one| one.sms);
        let others = own.iter().filter(|(id, _)| **id != job.id);
        let theirs = others.fold(SmSet::EMPTY, |all, (_, sms)| all.union(sms));
        let order = [had.difference(&theirs), free.difference(&theirs), free];
        let mut sms = SmSet::EMPTY;
        for sm in order.iter().flat_map(SmSet::iter) {
            if sms.len() < one.sms && free.contains(sm) {
                sms.insert(sm);
            }
        }
        if sms.len() < one.sms {
            let (found, asked) = (sms.len(), one.sms);
            let why =
                format!("{found} of {asked} SMs are left: an administrator has pinned others");
            note(Err(why));
            continue;
        }
        free = free.difference(&sms);
        note(Ok(Some(job.id)));
        result.pins.insert(job.id, sms);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_model::{ReservationRequest, TenantId, Usage};

    fn reservation(id: &str, job: &str, sms: u16) -> Reservation {
        let request = ReservationRequest {
            tenant: TenantId(7),
            job: job.into(),
            gpu: GpuNumber(0),
            sms,
            memory_bytes: 0,
            expires: u64::MAX,
        };
        Reservation::new(id.into(), request)
    }

    fn application(id: u32, tag: &str) -> ApplicationAccount {
        ApplicationAccount {
            id: ApplicationId(id),
            name: "program".into(),
            tag: Some(tag.into()),
            tenant: TenantId(7),
            sessions: 1,
            sms: 0,
            memory_used_bytes: 0,
            launches: 0,
            ctas: 0,
            stuck: false,
            usage: Usage::default(),
        }
    }

    fn partition(id: u32, sms: &str, pinned: bool) -> PartitionReport {
        let sms = sms.parse().unwrap();
        PartitionReport { application: ApplicationId(id), sms, pinned, part: None }
    }

    fn pins(of: &[(u32, &str)]) -> Pins {
        of.iter().map(|(id, sms)| (ApplicationId(*id), sms.parse().unwrap())).collect()
    }

    #[test]
    fn jobs_keep_what_they_have_and_get_what_is_free() {
        let (a, b) = (reservation("a", "one", 6), reservation("b", "two", 4));
        let applications = [application(1, "one"), application(2, "two"), application(3, "three")];
        let partitions =
            [partition(1, "0-3", false), partition(2, "4-11", false), partition(3, "12-23", false)];
        let first = wanted(24, &[&a, &b], &applications, (&partitions, &Pins::new()));
        assert_eq!(first.pins, pins(&[(1, "0-5"), (2, "6-9")]));
        // What is pinned stays where it is, also where another reservation comes before it.
        let partitions = [partition(1, "10-23", false), partition(2, "6-9", true)];
        let again = wanted(24, &[&a, &b], &applications, (&partitions, &pins(&[(2, "6-9")])));
        assert_eq!(again.pins, pins(&[(1, "10-15"), (2, "6-9")]));
    }

    /// A new `partitad` finds the pins of the one before it.
    #[test]
    fn pins_of_an_earlier_keeper_are_its_own() {
        let (a, b) = (reservation("a", "one", 6), reservation("b", "two", 4));
        let applications = [application(1, "one"), application(2, "two"), application(3, "three")];
        let in_force = pins(&[(1, "0-5"), (2, "6-10"), (3, "11-14")]);
        // An administrator has given the second another number of SMs.
        let own = adopted(&[&a, &b], &applications, &in_force);
        assert_eq!(own, pins(&[(1, "0-5")]));
        let partitions =
            [partition(1, "0-5", true), partition(2, "6-10", true), partition(3, "11-14", true)];
        let found = wanted(24, &[&a], &applications, (&partitions, &own));
        assert_eq!(found.pins, pins(&[(1, "0-5")]), "it stays where it is");
        assert_eq!(found.notes, [("a".to_owned(), Ok(Some(ApplicationId(1))))]);
    }

    #[test]
    fn an_administrator_goes_before_reservations() {
        let (a, b, c) =
            (reservation("a", "one", 6), reservation("b", "two", 12), reservation("c", "none", 1));
        let applications = [application(1, "one"), application(2, "two")];
        let partitions = [partition(1, "0-1", true), partition(3, "2-13", true)];
        let found = wanted(24, &[&a, &b, &c], &applications, (&partitions, &Pins::new()));
        assert!(found.pins.is_empty());
        let [one, two, none] = &found.notes[..] else { panic!("{found:?}") };
        assert!(one.1.as_ref().unwrap_err().contains("has pinned application 1"));
        assert!(two.1.as_ref().unwrap_err().contains("10 of 12 SMs are left"));
        assert_eq!(none.1, Ok(None));
    }
}
