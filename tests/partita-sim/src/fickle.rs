//! A selector without reasons: now everyone runs on SMs of their own, now two share all SMs.

use crate::random::Random;
use partita_model::{ApplicationId, Nanos, SmPart};
use partita_policy::{Sample, Selected, Selector};
use std::collections::BTreeMap;

/// Chooses anew every 20 to 100 µs. Where nobody shares, as many run as there are SMs.
#[derive(Debug)]
pub struct Fickle {
    random: Random,
    again: Nanos,
}

impl Fickle {
    /// The selector of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Fickle { random: Random::new(seed), again: Nanos(0) }
    }

    /// So many of these, or all.
    fn some(&mut self, mut ids: Vec<ApplicationId>, most: usize) -> Vec<ApplicationId> {
        while ids.len() > most {
            let gone = usize::try_from(self.random.below(ids.len() as u64)).unwrap_or(0);
            ids.remove(gone);
        }
        ids
    }

    /// Two of these, with their parts.
    fn couple(&mut self, ids: Vec<ApplicationId>) -> BTreeMap<ApplicationId, SmPart> {
        let ids = self.some(ids, 2);
        // A CTA that does not fit into its part ends the sharing, so small parts come rarely.
        let most = if self.random.once_in(8) { 32 } else { 4 };
        let of = u16::try_from(self.random.between(2, most)).unwrap_or(2);
        let first = u16::try_from(self.random.between(1, u32::from(of) - 1)).unwrap_or(1);
        let parts = [SmPart::new(first, of), SmPart::new(of - first, of)];
        ids.into_iter().zip(parts).filter_map(|(id, part)| Some((id, part?))).collect()
    }
}

impl Selector for Fickle {
    fn name(&self) -> &'static str {
        "fickle"
    }

    fn step(&mut self, sample: &Sample) -> Selected {
        self.again = Nanos(sample.now.0.saturating_add(20_000 + self.random.below(80_000)));
        let ids: Vec<ApplicationId> = sample.applications.iter().map(|a| a.application).collect();
        let roomy = sample.applications.iter().filter(|a| !a.cramped).map(|a| a.application);
        let roomy: Vec<ApplicationId> = roomy.collect();
        if roomy.len() < 2 || self.random.once_in(3) {
            let ids = self.some(ids, sample.sms.len().into());
            return Selected { together: ids.into_iter().collect(), ..Selected::default() };
        }
        let parts = self.couple(roomy);
        Selected { together: parts.keys().copied().collect(), parts, ..Selected::default() }
    }

    fn again_at(&self) -> Option<Nanos> {
        Some(self.again)
    }
}
