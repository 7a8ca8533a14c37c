//! The keeper sees to it that jobs get what schedulers have reserved for them.
//!
//! A reservation is a minimum of SMs for the application of a job: the job has it whenever it has
//! work, lends it while it has none, and may have more. The keeper tells each data plane the
//! reservations of its GPU, at the start, when they change or expire, and when a `partita-gpu` has
//! been restarted. The policy does the rest. Partitions that an administrator has pinned go before
//! reservations.

use crate::events::{Hub, Next, Reading};
use crate::gpus::{Gpu, Gpus};
use crate::link::AskError;
use crate::reservations::{Book, now, on};
use partita_model::{
    ApplicationAccount, ApplicationId, GpuNumber, Happening, MemoryAmount, PartitionReport,
    Reservation, SmAmount, Terms, TermsRule,
};
use partita_wire::supervise::{Answer, Ask};
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
    /// What each data plane was told.
    told: BTreeMap<GpuNumber, Vec<TermsRule>>,
}

/// What has happened to the applications of a GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Moved {
    /// An application has come or gone.
    Applications,
    /// A data plane may know nothing of what it was told.
    DataPlane,
}

impl Keeper {
    /// The keeper of a book.
    #[must_use]
    pub fn new(gpus: Gpus, book: Arc<Book>) -> Keeper {
        Keeper { gpus, book, told: BTreeMap::new() }
    }

    /// Keeps until it is dropped.
    pub async fn keep(mut self, hub: Arc<Hub>) {
        // A data plane that outlived a daemon may hold reservations that nobody has any more.
        let mut is_begun = false;
        loop {
            if std::mem::replace(&mut is_begun, true) && self.book.next_expiry().is_none() {
                self.book.changed().notified().await;
            }
            let mut reading = hub.read(None).await;
            loop {
                self.book.expire().await;
                let is_done = self.look().await;
                let next = self.book.next_expiry();
                if next.is_none() && is_done {
                    break;
                }
                let until = next.map_or(AGAIN, |next| {
                    Duration::from_secs(next.saturating_sub(now())).min(LONGEST)
                });
                let pause = if is_done { until } else { until.min(AGAIN) };
                tokio::select! {
                    () = self.book.changed().notified() => {}
                    what = moved(&mut reading) => {
                        if gather(&mut reading, what).await == Moved::DataPlane {
                            self.told.clear();
                        }
                    }
                    () = sleep(pause) => {}
                }
            }
        }
    }

    /// Tells every data plane what it does not know. Whether nothing stands in the way.
    async fn look(&mut self) -> bool {
        let all = self.book.all();
        let gpus = self.gpus.clone();
        let mut is_done = true;
        for gpu in gpus.all() {
            match self.look_at(gpu, &on(&all, gpu.number)).await {
                Ok(done) => is_done &= done,
                Err(error) => {
                    tracing::debug!(gpu = gpu.number.0, %error, "reservations have to wait");
                    self.told.remove(&gpu.number);
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
        let rules: Vec<TermsRule> = reservations.iter().map(|one| rule(one)).collect();
        if self.told.get(&gpu.number) != Some(&rules) {
            let Answer::Done = gpu.handle.ask(Ask::Reserve(rules.clone())).await? else {
                return Err(AskError::Gone);
            };
            self.told.insert(gpu.number, rules);
        }
        if reservations.is_empty() {
            return Ok(true);
        }
        let (Answer::Accounts(accounts), Answer::Status(status)) =
            (gpu.handle.ask(Ask::Accounts).await?, gpu.handle.ask(Ask::Status).await?)
        else {
            return Err(AskError::Gone);
        };
        let mut is_done = true;
        for one in reservations {
            let (application, why) = outcome(one, &accounts.applications, &status.partitions);
            is_done &= why.is_none();
            self.book.note(&one.id, application, why);
        }
        Ok(is_done)
    }
}

/// What a reservation gives to the application of its job.
fn rule(reservation: &Reservation) -> TermsRule {
    TermsRule {
        tenant: Some(reservation.tenant),
        tag: Some(reservation.job.clone()),
        terms: Terms {
            min: Some(SmAmount::Sms(reservation.sms)),
            max: reservation.max_sms.map(SmAmount::Sms),
            priority: reservation.priority,
            memory: MemoryAmount::of(reservation.memory_bytes),
            ..Terms::default()
        },
    }
}

/// The application of a reservation's job, or why it does not have its SMs.
fn outcome(
    reservation: &Reservation,
    applications: &[ApplicationAccount],
    partitions: &[PartitionReport],
) -> (Option<ApplicationId>, Option<String>) {
    let is_job = |account: &&ApplicationAccount| {
        account.tenant == reservation.tenant && account.tag.as_ref() == Some(&reservation.job)
    };
    let Some(job) = applications.iter().find(is_job).map(|account| account.id) else {
        return (None, None);
    };
    let pinned = partitions.iter().filter(|partition| partition.pinned);
    let own = pinned.clone().find(|partition| partition.application == job);
    if let Some(few) = own.filter(|own| own.sms.len() < reservation.sms) {
        let (has, asked) = (few.sms.len(), reservation.sms);
        return (None, Some(format!("an administrator has pinned {job} to {has} of {asked} SMs")));
    }
    (Some(job), None)
}

/// Takes the comings and goings that follow at once.
async fn gather(reading: &mut Reading, mut what: Moved) -> Moved {
    for _ in 0..MOST_AT_ONCE {
        // Programs of a new data plane may be there already.
        if what == Moved::DataPlane {
            break;
        }
        match timeout(GATHER, moved(reading)).await {
            Ok(next) => what = next,
            Err(_) => break,
        }
    }
    what
}

/// Waits until an application comes or goes, or a data plane is restarted.
async fn moved(reading: &mut Reading) -> Moved {
    loop {
        match reading.next().await {
            Some(Next::Event(told)) => match told.item.event.what {
                Happening::ApplicationCame { .. } | Happening::ApplicationLeft { .. } => {
                    return Moved::Applications;
                }
                Happening::Restarted { .. } => return Moved::DataPlane,
                _ => {}
            },
            Some(Next::Lagged(_)) => return Moved::DataPlane,
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_model::{Priority, ReservationRequest, TenantId, Usage};

    fn reservation(job: &str, sms: u16) -> Reservation {
        let request = ReservationRequest {
            tenant: TenantId(7),
            job: job.into(),
            gpu: GpuNumber(0),
            sms,
            memory_bytes: 0,
            expires: u64::MAX,
            max_sms: Some(20),
            priority: Some(Priority::Batch),
        };
        Reservation::new("id".into(), request)
    }

    fn application(id: u32, tenant: u32, tag: &str) -> ApplicationAccount {
        ApplicationAccount {
            id: ApplicationId(id),
            name: "program".into(),
            tag: Some(tag.into()),
            tenant: TenantId(tenant),
            sessions: 1,
            sms: 0,
            memory_used_bytes: 0,
            launches: 0,
            ctas: 0,
            stuck: false,
            entitlement: None,
            target: None,
            usage: Usage::default(),
        }
    }

    #[test]
    fn a_job_is_the_application_of_its_user_and_tag() {
        let applications =
            [application(1, 8, "one"), application(2, 7, "one"), application(3, 7, "two")];
        let of = |one: &Reservation| outcome(one, &applications, &[]);
        assert_eq!(of(&reservation("one", 6)), (Some(ApplicationId(2)), None));
        assert_eq!(of(&reservation("three", 6)), (None, None));
        let said = rule(&reservation("one", 6));
        assert!(said.matches(TenantId(7), Some("one")) && !said.matches(TenantId(8), Some("one")));
        assert_eq!(said.terms.min, Some(SmAmount::Sms(6)));
        assert_eq!(said.terms.max, Some(SmAmount::Sms(20)));
        assert_eq!(said.terms.priority, Some(Priority::Batch));
    }

    #[test]
    fn an_administrator_goes_before_reservations() {
        let applications = [application(1, 7, "one")];
        let pinned = |sms: &str| PartitionReport {
            application: ApplicationId(1),
            sms: sms.parse().unwrap(),
            pinned: true,
            part: None,
        };
        let one = reservation("one", 6);
        assert_eq!(outcome(&one, &applications, &[pinned("0-5")]).1, None);
        let why = outcome(&one, &applications, &[pinned("0-3")]).1.unwrap();
        assert!(why.contains("pinned application 1 to 4 of 6 SMs"), "{why}");
    }
}
