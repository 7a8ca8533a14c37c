//! The time beside others, by one wait that all share: ours, beside Masola Eq. 5–16.
//!
//! Launches on different SMs share DRAM and LLC. Each of the two serves at most the norm of what
//! is asked for and what it can serve ([`super::bottleneck`]). What is asked for beyond that waits,
//! and an access waits the same time whoever makes it. A launch whose warps wait often is slowed
//! more:
//!
//! ```text
//! speed_k = 1 ÷ (1 + often_k × wait)
//! ```
//!
//! `often_k` is how often a warp of the launch waits in a nanosecond; the wait is the least with
//! which the launches together ask for no more than is served. Speeds hold until the first launch
//! ends; then the others' are computed anew.

use super::Fitted;
use super::bottleneck::{norm, rest};

/// Steps in which a wait is halved upon.
const STEPS: u32 = 60;
/// Rounds in which the waits for two resources are made to agree.
const ROUNDS: u32 = 6;
/// The longest wait, in nanoseconds.
const LONGEST: f64 = 1e7;

/// A launch on its SMs, of which nothing but what it shares is left open.
struct Part {
    /// Nanoseconds alone, and nanoseconds that neither DRAM nor LLC are part of.
    alone: f64,
    own: f64,
    /// Nanoseconds that DRAM and LLC need.
    needs: [f64; 2],
    /// How often a warp waits for each in a nanosecond.
    often: [f64; 2],
}

/// Nanoseconds of each launch beside the others, all of which begin at once: `launches` has each
/// with its SMs and its time alone on them.
#[must_use]
pub fn together(launches: &[(Fitted, u16, f64)]) -> Vec<f64> {
    let parts: Vec<Part> = launches.iter().map(Part::new).collect();
    let mut left = vec![1.0; parts.len()];
    let mut ended = vec![0.0; parts.len()];
    let mut now = 0.0;
    while left.iter().any(|&left| left > 0.0) {
        let running: Vec<usize> = (0..parts.len()).filter(|&index| left[index] > 0.0).collect();
        let among: Vec<&Part> = running.iter().map(|&index| &parts[index]).collect();
        let speeds = speeds(&among);
        let until = |(&index, speed): (&usize, &f64)| left[index] * parts[index].alone / speed;
        let ends: Vec<f64> = running.iter().zip(&speeds).map(until).collect();
        let next = ends.iter().copied().fold(f64::INFINITY, f64::min);
        now += next;
        for ((&index, speed), end) in running.iter().zip(&speeds).zip(&ends) {
            left[index] -= next * speed / parts[index].alone;
            if *end <= next * (1.0 + 1e-9) {
                (left[index], ended[index]) = (0.0, now);
            }
        }
    }
    ended
}

/// The speed of each of several launches beside the others while all of them run, as a part of its
/// speed alone on its SMs.
#[must_use]
pub fn side_by_side(launches: &[(Fitted, u16, f64)]) -> Vec<f64> {
    let parts: Vec<Part> = launches.iter().map(Part::new).collect();
    speeds(&parts.iter().collect::<Vec<_>>())
}

impl Part {
    fn new(&(fitted, sms, alone): &(Fitted, u16, f64)) -> Part {
        let alone = alone.max(1.0);
        // A launch moves no more than is served.
        let most = |needs: f64| needs.min(alone * (1.0 - 1e-3));
        let needs = [most(fitted.dram()), most(fitted.llc())];
        let own = rest(alone, &needs);
        Part { alone, own, needs, often: [fitted.waits(sms, own), fitted.visits(sms, own)] }
    }

    /// The speed without bandwidth limits as a part of the speed alone.
    fn free(&self) -> f64 {
        self.alone / self.own
    }
}

/// The speed of each of several launches, as a part of its speed alone.
fn speeds(parts: &[&Part]) -> Vec<f64> {
    if parts.len() == 1 {
        return vec![1.0];
    }
    let mut waits = [0.0; 2];
    for _ in 0..ROUNDS {
        for resource in 0..2 {
            waits[resource] = wait(parts, resource, waits);
        }
    }
    // No launch is faster beside others than alone.
    parts.iter().map(|part| part.slowed(waits).min(1.0)).collect()
}

impl Part {
    /// The speed as a part of the speed alone, with waits for DRAM and LLC.
    fn slowed(&self, waits: [f64; 2]) -> f64 {
        self.free() / (1.0 + self.often[0] * waits[0] + self.often[1] * waits[1])
    }
}

/// The least wait for a resource with which no more is asked for than is served.
fn wait(parts: &[&Part], resource: usize, waits: [f64; 2]) -> f64 {
    let asked = |wait: f64| {
        let mut waits = waits;
        waits[resource] = wait;
        parts.iter().map(|part| part.needs[resource] / part.alone * part.slowed(waits)).sum::<f64>()
    };
    let free = asked(0.0);
    if free <= 0.0 {
        return 0.0;
    }
    // What is served of it: the norm of the time that asking takes and of the time of serving.
    let served = 1.0 / norm(&[1.0 / free, 1.0]);
    let (mut least, mut most) = (0.0_f64, LONGEST.ln_1p());
    for _ in 0..STEPS {
        let middle = f64::midpoint(least, most);
        let enough = asked(middle.exp_m1()) <= served;
        (least, most) = if enough { (least, middle) } else { (middle, most) };
    }
    most.exp_m1()
}
