//! Parts of SMs: where another application has the rest of an SM, no more of a launch's workers or
//! tickets stay there than may, however many the hardware places. Every CTA runs once all the same.

use crate::trial::{ALL, Form, Outcome, SMS, Trial};

/// Odd ones never renew what a weak load has seen.
const SEEDS: std::ops::Range<u64> = 0..12;
/// Looks, a microsecond apart, after which every CTA without a place has left.
const LOOKS: u32 = 60;

/// The CTAs that stay on each SM.
fn live(trial: &mut Trial) -> Vec<u32> {
    trial.telemetry().into_iter().map(|[came, left]| came - left).collect()
}

/// CTAs come, three for each that may stay.
fn crowd(trial: &mut Trial, quota: u32) -> Outcome {
    trial.more(3 * quota * SMS);
    trial.world.advance(1_000);
    let mut here = Vec::new();
    for _ in 0..LOOKS {
        trial.world.advance(1_000);
        here = live(trial);
        if here.iter().all(|&count| count <= quota) && here.iter().sum::<u32>() > 0 {
            return Ok(());
        }
    }
    Err(format!("{here:?} where {quota} may stay"))
}

/// The part is one size, then another, then all of the SM.
pub fn parts(trial: &mut Trial) -> Outcome {
    let places: Vec<u16> = (0..SMS).map(|_| trial.below(4) as u16).collect();
    let by_place: u32 = places.iter().copied().map(u32::from).sum();
    let main_ctas = by_place.max(1) + trial.below(40) as u32;
    let ctas = 500 + trial.below(100) as u32;
    trial.prepare(ctas, 1_000, main_ctas, &places);
    let [first, second] = [1 + trial.below(4) as u32, 1 + trial.below(4) as u32];
    trial.share(Some(first));
    if trial.form != Form::Ticket {
        trial.enqueue(main_ctas);
    }
    crowd(trial, first)?;
    // The engine lets an SM drain before the part is another.
    trial.permit(0, 0);
    trial.until("they leave", |trial| live(trial).iter().all(|&count| count == 0))?;
    trial.share(Some(second));
    crowd(trial, second)?;
    crowd(trial, second)?;
    trial.permit(0, 0);
    trial.until("they leave again", |trial| live(trial).iter().all(|&count| count == 0))?;
    trial.share(None);
    if trial.form == Form::Ticket {
        trial.enqueue(main_ctas);
    }
    trial.more(2 * SMS);
    trial.finish()
}

#[test]
fn no_more_stay_than_the_part_of_an_sm_holds() {
    for form in [Form::Worker, Form::Together, Form::Ticket] {
        let text = form.text();
        for seed in SEEDS {
            let mut trial = Trial::new(form, &text, seed);
            parts(&mut trial).unwrap_or_else(|error| panic!("{form:?} {seed}: {error}"));
        }
    }
}

#[test]
fn a_gate_that_is_open_lets_more_stay() {
    let mut trial = Trial::new(Form::Worker, &Form::Worker.text(), 1);
    trial.prepare(2_000, 2_000, SMS, &[0; SMS as usize]);
    trial.permit(ALL, 0);
    trial.enqueue(SMS);
    let found = crowd(&mut trial, 1);
    assert!(found.is_err(), "the test above shows nothing");
}
