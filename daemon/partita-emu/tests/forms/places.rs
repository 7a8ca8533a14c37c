//! Tasks by place: every CTA runs once wherever the hardware puts the workers, whoever finds the
//! gate shut, and whoever takes what is left. The main grid ends behind the last CTA, whoever runs
//! that one.

use crate::trial::{ALL, Form, Outcome, SMS, Trial};

/// Odd ones never renew what a weak load has seen.
const SEEDS: std::ops::Range<u64> = 0..24;

/// Launches of a few CTAs by which the moment of completion is looked at.
const QUICK_LAUNCHES: u32 = 12;

/// Tasks by place of each SM, which has one worker of the main grid in every round.
fn uneven(trial: &mut Trial) -> Vec<u16> {
    (0..SMS).map(|_| trial.below(4) as u16).collect()
}

/// Begins a launch whose tasks by place are not where its workers are.
fn prepare(trial: &mut Trial) -> u32 {
    let places = uneven(trial);
    let by_place = places.iter().copied().map(u32::from).sum::<u32>();
    let ctas = by_place + trial.below(120) as u32;
    let main_ctas = by_place.max(1) + trial.below(16) as u32;
    let delay = 1 + trial.below(60);
    trial.prepare(ctas.max(1), delay, main_ctas, &places);
    main_ctas
}

/// Some SMs have more workers than tasks by place, and some have fewer.
pub fn uneven_places(trial: &mut Trial) -> Outcome {
    for _ in 0..4 {
        let main_ctas = prepare(trial);
        trial.enqueue(main_ctas);
        if trial.below(2) == 0 {
            trial.more(16);
        }
        trial.finish()?;
    }
    Ok(())
}

/// Gates are shut before a worker comes. Workers give their tasks back, and others take them.
pub fn shut_before_the_start(trial: &mut Trial) -> Outcome {
    for _ in 0..4 {
        let main_ctas = prepare(trial);
        let allowed = trial.below(1 << SMS) as u32;
        let stalled = (trial.below(1 << SMS) & trial.below(1 << SMS)) as u32;
        trial.permit(allowed, stalled);
        trial.enqueue(main_ctas);
        trial.more(8);
        let pause = trial.below(8000);
        trial.world.advance(pause);
        if trial.below(2) == 0 {
            trial.permit(!allowed & ALL, 0);
            trial.more(16);
            let pause = trial.below(8000);
            trial.world.advance(pause);
        }
        trial.permit(ALL, 0);
        // As the engine sends helpers while a launch has CTAs and nobody there.
        trial.more(SMS);
        trial.finish()?;
    }
    Ok(())
}

/// The main grid has nothing left to do while helpers work on their last tasks. The operation
/// behind it finds all that they have done.
pub fn helpers_end_last(trial: &mut Trial) -> Outcome {
    for _ in 0..QUICK_LAUNCHES {
        let ctas = 8 + trial.below(40) as u32;
        let main_ctas = 1 + trial.below(4) as u32;
        let delay = 1 + trial.below(60);
        let mut places = vec![0; SMS as usize];
        if trial.below(2) == 0 {
            places[..main_ctas as usize].fill(1);
        }
        trial.late = 1 + trial.below(30);
        trial.begin_placed(ctas, delay, main_ctas, &places);
        let pause = trial.below(3000);
        trial.world.advance(pause);
        trial.more(SMS);
        trial.finish()?;
    }
    Ok(())
}

#[test]
fn every_task_by_place_is_done_once() {
    for form in [Form::Worker, Form::Together] {
        let text = form.text();
        for seed in SEEDS {
            for scenario in [uneven_places, shut_before_the_start] {
                let mut trial = Trial::new(form, &text, seed);
                scenario(&mut trial).unwrap_or_else(|error| panic!("{form:?} {seed}: {error}"));
            }
        }
    }
}

#[test]
fn the_main_grid_outlasts_helpers() {
    let text = Form::Worker.text();
    for seed in SEEDS {
        let mut trial = Trial::new(Form::Worker, &text, seed);
        helpers_end_last(&mut trial).unwrap_or_else(|error| panic!("{seed}: {error}"));
    }
}
