//! Shares by demand: Slate's partitioner (IPDPS '19 §III-C).
//!
//! The paper gives each kernel an SM range by its demand, moves the border when a kernel comes or
//! goes, and does not say how the demand is found. Here an application's demand is the number of
//! SMs beyond which it would get no faster:
//!
//! - all of them times supply ÷ demand of bandwidth (CD-search Eq. 1 and 2), where it asks for more
//!   than there is;
//! - its launch's CTAs ÷ those that an SM holds, where that is fewer.
//!
//! SMs go to applications in proportion to that; who is not known yet demands all of them. Nothing
//! is measured, so the plan stays until applications come or go.

use super::even::holders;
use crate::plans::{allot, at_least_one};
use crate::{ApplicationSample, Character, Decision, Partitioner, Sample, demand, supply};
use partita_model::{Calibration, Note, SmSet, SupplyModel};

/// The partitioner by demand.
#[derive(Clone, Copy, Debug)]
pub struct Demand {
    hardware: Calibration,
}

impl Demand {
    /// Shares on a GPU with these numbers.
    #[must_use]
    pub fn new(hardware: Calibration) -> Self {
        Demand { hardware }
    }

    /// The SMs, of so many, beyond which an application would get no faster.
    fn useful(&self, application: &ApplicationSample, sms: u16) -> u16 {
        let Some(character) = application.character.as_ref().filter(|_| sms > 0) else {
            return sms;
        };
        let part = self.part(character) * f64::from(sms);
        let by_grid = character.ctas_per_launch / character.ctas_per_sm.max(1.0);
        let useful = part.min(by_grid).ceil().clamp(1.0, f64::from(sms));
        // Between 1 and the number of SMs.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
        let useful = useful as u16;
        useful
    }

    /// The part of all SMs with which an application would ask for the bandwidth that there is.
    fn part(&self, character: &Character) -> f64 {
        if character.warp_instructions <= 0.0 || character.llc_sectors <= 0.0 {
            return 1.0;
        }
        let apki = character.llc_sectors / character.warp_instructions * 1000.0;
        let misses = (character.dram_sectors / character.llc_sectors).clamp(0.0, 1.0);
        let supply = supply(&self.hardware, 1.0 - misses, SupplyModel::Bottleneck);
        (supply / demand(&self.hardware, apki)).min(1.0)
    }
}

impl Partitioner for Demand {
    fn name(&self) -> &'static str {
        "demand"
    }

    fn step(&mut self, sample: &Sample) -> Decision {
        let holders = holders(sample);
        let sms = sample.sms.len();
        let useful: Vec<u16> = sample.applications.iter().map(|a| self.useful(a, sms)).collect();
        let mut counts = in_proportion(sms, &useful);
        at_least_one(&mut counts);
        let notes = match &*holders {
            [(application, _)] => vec![Note::Alone { application: *application }],
            _ => holders
                .iter()
                .zip(useful.iter().zip(&counts))
                .map(|(&(application, _), (&useful, &gets))| Note::Demand {
                    application,
                    useful,
                    gets,
                })
                .collect(),
        };
        Decision {
            plan: allot(sample.sms, &holders, &counts),
            stalled: SmSet::EMPTY,
            gated: SmSet::EMPTY,
            stage: "demand",
            notes,
            next: None,
        }
    }
}

/// `total` in proportion to the weights, each positive; the largest remainders are rounded up, ties
/// to the first.
fn in_proportion(total: u16, weights: &[u16]) -> Vec<u16> {
    let sum: u32 = weights.iter().map(|&weight| u32::from(weight)).sum();
    let Some(sum) = std::num::NonZeroU32::new(sum) else { return vec![0; weights.len()] };
    let share = |weight: u16| u32::from(total) * u32::from(weight);
    let mut counts: Vec<u16> =
        weights.iter().map(|&weight| u16::try_from(share(weight) / sum).unwrap_or(total)).collect();
    let mut by_remainder: Vec<usize> = (0..weights.len()).collect();
    by_remainder.sort_by_key(|&index| std::cmp::Reverse(share(weights[index]) % sum));
    let left = total.saturating_sub(counts.iter().sum());
    for &index in by_remainder.iter().take(left.into()) {
        counts[index] += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_model::{ApplicationId, Cause, Nanos};
    use proptest::prelude::*;

    /// 16 SMs that issue an instruction a cycle of 1 GHz, and 16 GB/s of everything.
    fn hardware() -> Calibration {
        Calibration {
            sms: 16,
            sm_clock_khz: 1_000_000,
            warp_instructions_per_cycle: 1.0,
            access_bytes: 32,
            noc_bytes_per_second: 16e9,
            llc_bytes_per_second: 16e9,
            dram_bytes_per_second: 16e9,
            dram_utilisation: 1.0,
        }
    }

    /// An application that asks for so much bandwidth in bytes a warp instruction, in launches of
    /// so many CTAs, of which an SM holds four.
    fn application(id: u32, known: Option<(f64, f64)>) -> ApplicationSample {
        ApplicationSample {
            profiled: true,
            character: known.map(|(bytes, ctas)| Character {
                warp_instructions: 1000.0,
                llc_sectors: bytes * 1000.0 / 32.0,
                dram_sectors: bytes * 1000.0 / 32.0,
                ctas_per_sm: 4.0,
                ctas_per_launch: ctas,
                ..Character::default()
            }),
            ..ApplicationSample::unseen(id)
        }
    }

    fn counts(applications: Vec<ApplicationSample>) -> Vec<u16> {
        let ids: Vec<ApplicationId> = applications.iter().map(|a| a.application).collect();
        let sample = Sample {
            now: Nanos(0),
            cause: Cause::Membership,
            interval: None,
            sms: SmSet::range(0, 16),
            applications,
        };
        let plan = Demand::new(hardware()).step(&sample).plan;
        ids.iter().map(|&id| plan.sms(id).len()).collect()
    }

    #[test]
    fn sms_go_where_they_make_faster() {
        // All SMs would ask for 64 of 16 GB/s: a quarter of them is enough.
        let memory = application(1, Some((4.0, 1e6)));
        let compute = application(2, Some((0.1, 1e6)));
        assert_eq!(counts(vec![memory.clone(), compute.clone()]), [3, 13]);
        assert_eq!(counts(vec![compute.clone(), application(3, None)]), [8, 8]);
        // Eight CTAs fill two SMs.
        assert_eq!(counts(vec![application(1, Some((0.1, 8.0))), compute]), [2, 14]);
        assert_eq!(counts(vec![memory]), [16]);
    }

    proptest! {
        #[test]
        fn every_sm_is_given_and_nobody_gets_none(
            weights in prop::collection::vec((0.0..10.0_f64, 0.0..1e6_f64), 1..16)
        ) {
            let applications =
                (0..).zip(&weights).map(|(id, known)| application(id, Some(*known))).collect();
            let counts = counts(applications);
            prop_assert_eq!(counts.iter().sum::<u16>(), 16);
            prop_assert!(counts.iter().all(|count| *count > 0), "{:?}", counts);
        }
    }

    #[test]
    fn demand_is_supply_by_the_hit_rate_at_most_all_sms() {
        // All SMs ask for 64 GB/s, as much as the LLC delivers.
        let hardware =
            Calibration { noc_bytes_per_second: 64e9, llc_bytes_per_second: 64e9, ..hardware() };
        let useful = |change: fn(&mut Character)| {
            let mut application = application(1, Some((4.0, 1e6)));
            application.character.as_mut().map(change);
            Demand::new(hardware).useful(&application, 16)
        };
        // DRAM's 16 GB/s are all that there is where all accesses miss, half of what there is where
        // a half misses, and no limit where a quarter does.
        assert_eq!(useful(|_| {}), 4);
        assert_eq!(useful(|of| of.dram_sectors /= 2.0), 8);
        assert_eq!(useful(|of| of.dram_sectors /= 4.0), 16);
        // Of what was not counted nothing is known.
        assert_eq!(useful(|of| of.warp_instructions = 0.0), 16);
        assert_eq!(useful(|of| of.llc_sectors = 0.0), 16);
    }

    #[test]
    fn notes_are_about_shares_where_there_are_some() {
        let notes = |sms, applications: Vec<ApplicationSample>| {
            let sms = SmSet::range(0, sms);
            let (now, cause, interval) = (Nanos(0), Cause::Membership, None);
            Demand::new(hardware()).step(&Sample { now, cause, interval, sms, applications }).notes
        };
        let (memory, compute) =
            (application(1, Some((4.0, 1e6))), application(2, Some((0.1, 1e6))));
        let alone = Note::Alone { application: ApplicationId(1) };
        assert_eq!(notes(16, vec![memory.clone()]), [alone]);
        let demand =
            |id, useful, gets| Note::Demand { application: ApplicationId(id), useful, gets };
        assert_eq!(notes(16, vec![memory, compute.clone()]), [demand(1, 4, 3), demand(2, 16, 13)]);
        // Without SMs there are no shares.
        let other = application(1, None);
        assert_eq!(notes(0, vec![other, compute]), [demand(1, 0, 0), demand(2, 0, 0)]);
    }
}
