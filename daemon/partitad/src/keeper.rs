//! The keeper sees to it that jobs get what schedulers have reserved for them.
//!
//! A reservation is a minimum of SMs for the application of a job: the job has it whenever it has
//! work, lends it while it has none, and may have more. The keeper tells each data plane the
//! reservations of its GPU, at the start, when they change or expire, and when a `partita-gpu` has
//! been restarted. The policy does the rest. Partitions that an administrator has pinned go before
//! reservations.

use crate::gpus::{Gpu, Gpus};
use crate::link::Link;
use crate::reservations::{Book, now, on};
use futures_util::future::select_all;
use partita_model::{GpuNumber, MemoryAmount, Reservation, SmAmount, Terms, TermsRule};
use partita_wire::supervise::{Answer, Ask};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// The pause before another attempt, where something stands in the way.
const AGAIN: Duration = Duration::from_secs(2);
/// The longest pause. A reservation without an end is looked at all the same.
const LONGEST: Duration = Duration::from_secs(3600);

/// The keeper.
#[derive(Debug)]
pub struct Keeper {
    gpus: Gpus,
    book: Arc<Book>,
    /// The process of each GPU, and what it was told.
    told: BTreeMap<GpuNumber, (Arc<Link>, Vec<TermsRule>)>,
}

impl Keeper {
    /// The keeper of a book.
    #[must_use]
    pub fn new(gpus: Gpus, book: Arc<Book>) -> Keeper {
        Keeper { gpus, book, told: BTreeMap::new() }
    }

    /// Keeps until it is dropped.
    pub async fn keep(mut self) {
        loop {
            self.book.expire().await;
            let links: Vec<_> = self.gpus.all().iter().map(|gpu| gpu.handle.state().link).collect();
            let is_done = self.look(&links).await;
            let until = self.book.next_expiry().map_or(LONGEST, |next| {
                Duration::from_secs(next.saturating_sub(now())).min(LONGEST)
            });
            let others = self.gpus.all().iter().zip(&links);
            let others = others.map(|(gpu, link)| Box::pin(gpu.handle.after(link.as_ref())));
            tokio::select! {
                () = self.book.changed().notified() => {}
                _ = select_all(others) => {}
                () = sleep(if is_done { until } else { until.min(AGAIN) }) => {}
            }
        }
    }

    /// Tells every data plane what it does not know. Whether all know it; a process that is not
    /// there yet is told when it comes.
    async fn look(&mut self, links: &[Option<Arc<Link>>]) -> bool {
        let all = self.book.all();
        let gpus = self.gpus.clone();
        let mut is_done = true;
        for (gpu, link) in gpus.all().iter().zip(links) {
            if let Some(link) = link {
                is_done &= self.tell(gpu, link, &on(&all, gpu.number)).await;
            }
        }
        is_done
    }

    async fn tell(&mut self, gpu: &Gpu, link: &Arc<Link>, reservations: &[&Reservation]) -> bool {
        let rules: Vec<TermsRule> = reservations.iter().map(|one| rule(one)).collect();
        let is_told = |(to, told): &(Arc<Link>, _)| Arc::ptr_eq(to, link) && *told == rules;
        if self.told.get(&gpu.number).is_some_and(is_told) {
            return true;
        }
        self.told.remove(&gpu.number);
        match link.ask(Ask::Reserve(rules.clone())).await {
            Ok(Answer::Done) => {
                self.told.insert(gpu.number, (Arc::clone(link), rules));
                true
            }
            answer => {
                tracing::debug!(gpu = gpu.number.0, ?answer, "reservations have to wait");
                false
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use partita_model::{Priority, ReservationRequest, TenantId};

    #[test]
    fn a_reservation_is_a_minimum_for_the_job_of_a_user() {
        let request = ReservationRequest {
            tenant: TenantId(7),
            job: "one".into(),
            gpu: GpuNumber(0),
            sms: 6,
            memory_bytes: 0,
            expires: u64::MAX,
            max_sms: Some(20),
            priority: Some(Priority::Batch),
        };
        let said = rule(&Reservation::new("id".into(), request));
        assert!(said.matches(TenantId(7), Some("one")) && !said.matches(TenantId(8), Some("one")));
        assert_eq!(said.terms.min, Some(SmAmount::Sms(6)));
        assert_eq!(said.terms.max, Some(SmAmount::Sms(20)));
        assert_eq!(said.terms.priority, Some(Priority::Batch));
    }
}
