//! Launches that arrive while others run (Kernelet, TPDS '14, §5.1), and the same launches one
//! after the other.

use crate::application::{Application, Pointer, Restored, Step, Variable};
use crate::random::Random;

/// When so many launches of each of several applications arrive, in nanoseconds from the start:
/// Poisson processes with the same mean time between two launches of an application.
#[must_use]
pub fn poisson(applications: usize, launches: usize, mean_nanos: f64, seed: u64) -> Vec<Vec<u64>> {
    let mut random = Random::new(seed);
    let of_one = |_| {
        let mut at = 0.0;
        let next = |_| {
            at += mean_nanos * exponential(&mut random);
            whole(at)
        };
        (0..launches).map(next).collect()
    };
    (0..applications).map(of_one).collect()
}

/// All launches of several applications in the order of their arrival, as one application whose
/// launches run one after the other, and when they arrive. Where two arrive at once the first
/// application's comes first. Launch `n` of an application is step `n` of its passes.
#[must_use]
pub fn in_one_stream(
    applications: &[&Application],
    arrivals: &[Vec<u64>],
) -> (Application, Vec<u64>) {
    let mut all = Application::default();
    let mut launches: Vec<(u64, usize, usize)> = Vec::new();
    let mut steps = Vec::new();
    for (index, (application, arrivals)) in applications.iter().zip(arrivals).enumerate() {
        steps.push(steps_of(application, all.modules.len(), all.buffers.len()));
        add(&mut all, application);
        launches.extend(arrivals.iter().enumerate().map(|(launch, at)| (*at, index, launch)));
    }
    launches.sort_unstable();
    let steps_of = |(_, index, launch): &(u64, usize, usize)| {
        let steps: &Vec<Step> = &steps[*index];
        steps.get(launch % steps.len().max(1)).cloned()
    };
    all.pass = launches.iter().filter_map(steps_of).collect();
    all.name = applications.iter().map(|one| one.name.as_str()).collect::<Vec<_>>().join("+");
    (all, launches.into_iter().map(|(at, ..)| at).collect())
}

/// The launches of an application behind others' modules and buffers.
fn steps_of(application: &Application, modules: usize, buffers: usize) -> Vec<Step> {
    let moved = |step: &Step| {
        let pointers = step.pointers.iter().map(|pointer| behind(pointer, buffers)).collect();
        Step { module: step.module + modules, pointers, ..step.clone() }
    };
    application.pass.iter().map(moved).collect()
}

/// Adds modules, variables and memory of an application to those of others.
fn add(all: &mut Application, application: &Application) {
    let (modules, buffers) = (all.modules.len(), all.buffers.len());
    all.modules.extend(application.modules.iter().cloned());
    let variables = application.variables.iter().cloned();
    all.variables.extend(
        variables.map(|variable| Variable { module: variable.module + modules, ..variable }),
    );
    let memory = application.buffers.iter().cloned().map(|mut buffer| {
        buffer.pointers = buffer.pointers.iter().map(|pointer| behind(pointer, buffers)).collect();
        buffer
    });
    all.buffers.extend(memory);
    let restored = application.restored.iter().cloned();
    all.restored.extend(
        restored.map(|restored| Restored { buffer: restored.buffer + buffers, ..restored }),
    );
}

fn behind(pointer: &Pointer, buffers: usize) -> Pointer {
    Pointer { buffer: pointer.buffer + buffers, ..*pointer }
}

/// A number of an exponential distribution with the mean 1.
fn exponential(random: &mut Random) -> f64 {
    // 53 bits, and never 0.
    let bits = (random.bits() >> 11) + 1;
    -(crate::track::float(bits) / crate::track::float(1 << 53)).ln()
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "nanoseconds of a run are above 0 and far below 2^63"
)]
fn whole(nanos: f64) -> u64 {
    nanos as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eight::eight;

    #[test]
    fn arrivals_have_the_mean_that_was_asked_for() {
        let arrivals = poisson(2, 4_000, 500.0, 7);
        for of_one in &arrivals {
            assert!(of_one.is_sorted());
            let mean = crate::track::float(of_one[3_999]) / 4_000.0;
            assert!((mean - 500.0).abs() < 25.0, "{mean}");
        }
        assert_ne!(arrivals[0], arrivals[1]);
        assert_eq!(arrivals, poisson(2, 4_000, 500.0, 7));
    }

    #[test]
    fn one_stream_has_all_launches_in_order() {
        let programs = eight(1);
        let (one, other) = (&programs[0], &programs[6]);
        let (all, arrivals) = in_one_stream(&[one, other], &[vec![5, 9], vec![5, 7]]);
        assert_eq!(arrivals, [5, 5, 7, 9]);
        let kernels: Vec<&str> = all.pass.iter().map(|step| step.kernel.as_str()).collect();
        assert_eq!(kernels, ["pc", "mriq", "mriq", "pc"]);
        assert_eq!(all.pass[1].module, 1);
        assert_eq!(all.pass[1].pointers[0].buffer, one.buffers.len());
        assert_eq!(all.variables[0].module, 1);
        assert_eq!(all.buffers.len(), one.buffers.len() + other.buffers.len());
    }
}
