//! Requests of a server: when they arrive and what they ask, and a client that paces them by the
//! GPU's clock.

use super::client::{Answer, Client};
use crate::demo::screen::Screen;
use crate::demo::stage::{Stage, StageError};
use crate::demo::toolkit::SERVE;
use crate::demo::track::Track;
use crate::progress::Bar;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};
use std::time::{Duration, Instant};

/// The pause between two looks at the GPU's clock, in host time. The emulated GPU gets through a
/// microsecond or less meanwhile, where it is busy.
pub const PAUSE: Duration = Duration::from_millis(1);
/// The longest time of the host between two answers, while requests wait.
const PATIENCE: Duration = Duration::from_secs(300);
/// The numbers of a request.
const NUMBERS: usize = 8;

/// Requests in the order of their arrival.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Traffic {
    /// Arrivals in nanoseconds from the start, rising.
    arrivals: Vec<u64>,
    /// Bodies.
    bodies: Vec<String>,
}

impl Traffic {
    /// Requests far apart: each finds an idle server.
    pub fn sparse(requests: usize, seed: u64) -> Traffic {
        Traffic::new((1..=requests as u64).map(|number| number * 1_000_000_000).collect(), seed)
    }

    /// A Poisson process: requests arrive independently of each other, at `load` times the rate of
    /// one each `service_nanos` nanoseconds.
    pub fn poisson(requests: usize, service_nanos: u64, load: f64, seed: u64) -> Traffic {
        let mean = Duration::from_nanos(service_nanos).div_f64(load);
        let mut random = SplitMix64::seed_from_u64(seed);
        let mut at = Duration::ZERO;
        let next = |_| {
            at += mean.mul_f64(-(1.0 - part(&mut random)).ln());
            u64::try_from(at.as_nanos()).unwrap_or(u64::MAX)
        };
        Traffic::new((0..requests).map(next).collect(), seed)
    }

    fn new(arrivals: Vec<u64>, seed: u64) -> Traffic {
        // Not the numbers that the arrivals come from.
        let mut random = SplitMix64::seed_from_u64(!seed);
        let body = |_: &u64| {
            let number = |_| format!("{:.4}", part(&mut random) * 8.0 - 4.0);
            (0..NUMBERS).map(number).collect::<Vec<_>>().join(" ")
        };
        let bodies = arrivals.iter().map(body).collect();
        Traffic { arrivals, bodies }
    }

    /// The number of requests.
    pub fn len(&self) -> usize {
        self.arrivals.len()
    }
}

/// A number from 0 to 1, without 1.
fn part(random: &mut SplitMix64) -> f64 {
    f64::from(random.next_u32()) / (f64::from(u32::MAX) + 1.0)
}

/// What the GPU does while the server has no request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pacing {
    /// Nothing: its clock stands still, so pauses between requests are skipped.
    Alone,
    /// It runs the program that started after the server.
    Beside,
}

/// What became of some traffic.
#[derive(Default)]
pub struct Seen {
    /// Latencies in nanoseconds, in the order of arrival.
    pub latencies: Vec<u64>,
    /// Device time of each request without waiting for earlier ones, in nanoseconds.
    pub took: Vec<u64>,
    /// The words of each result, in hexadecimal.
    pub results: Vec<String>,
    /// The longest delay of the client, in nanoseconds: from an arrival to the GPU's clock when the
    /// client noticed it.
    pub latest: u64,
    /// CTAs of the program beside the server.
    pub batch: Track,
    /// The device time of the start, in nanoseconds.
    pub from: u64,
    /// The device time when the last answer was there, in nanoseconds.
    pub to: u64,
}

impl Seen {
    /// Takes the figures of requests that are all answered.
    fn take(&mut self, sent: &[Sent]) -> Result<(), StageError> {
        for (number, Sent { arrival, answer }) in sent.iter().enumerate() {
            let answer = answer.as_ref().ok_or(StageError::Unmeasured)?;
            let latency = u64::try_from(i128::from(answer.ready_ns) - arrival);
            // Both clocks are one, or all of this means nothing.
            let (Ok(latency), true) = (latency, answer.ready_ns <= self.to) else {
                return Err(StageError::Server {
                    program: SERVE.name,
                    number,
                    reason: format!(
                        "it was ready at {} ns of the GPU's timer, arrived at {arrival} ns, and \
                         the daemon's clock is at {} ns",
                        answer.ready_ns, self.to
                    ),
                });
            };
            self.latencies.push(latency);
            self.took.push(answer.took_ns);
            self.results.push(answer.result.clone());
        }
        Ok(())
    }

    /// The median latency in nanoseconds.
    pub fn median_latency(&self) -> u64 {
        percentile(&self.latencies, 50)
    }
}

/// The nearest-rank percentile: the smallest value that at least `percent` of a hundred values do
/// not exceed. 0 where there is no value.
pub fn percentile(values: &[u64], percent: usize) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or(0)
}

/// A request that was sent.
struct Sent {
    /// Its arrival by the GPU's clock, in nanoseconds. Negative where skipped pauses are longer
    /// than the clock is old.
    arrival: i128,
    answer: Option<Answer>,
}

/// Sends all requests at their time, and waits for all answers.
pub fn run(
    stage: &mut Stage,
    client: &Client,
    traffic: &Traffic,
    pacing: Pacing,
    screen: &Screen,
) -> Result<Seen, StageError> {
    let mut bar = Bar::new("requests", "answered");
    let mut batch = Track::default();
    let mut sent: Vec<Sent> = Vec::new();
    let (mut answered, mut latest, mut from) = (0, 0, None);
    // By how much the schedule is ahead of the clock, in nanoseconds.
    let mut skipped: u64 = 0;
    let mut heard = Instant::now();
    loop {
        for (number, answer) in client.answered() {
            let answer = answer.map_err(|reason| refused(stage, number, &reason))?;
            sent[number].answer = Some(answer);
            answered += 1;
            heard = Instant::now();
            if !screen.is_silent() {
                bar.step(answered, traffic.len(), "");
            }
        }
        let status = stage.look_after(PAUSE)?;
        let clock = status.gpu.device_time_ns;
        let from = *from.get_or_insert(clock);
        let beside = stage.members(&status).get(1).copied().flatten();
        if let Some(beside) = beside {
            batch.add(clock, vec![beside.ctas_completed]);
        }
        if answered == sent.len() {
            heard = Instant::now();
        } else if heard.elapsed() > PATIENCE {
            let seconds = PATIENCE.as_secs();
            let reason = format!("no answer for {seconds} s: try again on a less busy machine");
            return Err(refused(stage, answered, &reason));
        }
        if answered == traffic.len() {
            bar.end();
            let mut seen = Seen { latest, batch, from, to: clock, ..Seen::default() };
            seen.take(&sent)?;
            return Ok(seen);
        }
        let now = clock - from;
        while let Some(arrival) = traffic.arrivals.get(sent.len()) {
            let ahead = arrival.saturating_sub(now + skipped);
            if ahead > 0 && pacing == Pacing::Alone && answered == sent.len() {
                skipped += ahead;
            } else if ahead > 0 {
                break;
            }
            let number = sent.len();
            let at = i128::from(from) + i128::from(*arrival) - i128::from(skipped);
            latest = latest.max(now + skipped - arrival);
            let went = client.send(number, &traffic.bodies[number]);
            went.map_err(|error| refused(stage, number, &error.to_string()))?;
            sent.push(Sent { arrival: at, answer: None });
        }
    }
}

/// Why a request has no answer: the server's end, where it has ended.
fn refused(stage: &mut Stage, number: usize, reason: &str) -> StageError {
    match stage.look() {
        Err(error @ StageError::Program { .. }) => error,
        _ => StageError::Server { program: SERVE.name, number, reason: reason.to_owned() },
    }
}

/// The number of words in which results differ from those of the run alone. Where one result is
/// longer, each of its further words differs.
pub fn different_words(results: &[String], alone: &[String]) -> usize {
    let words = |text: &str| text.as_bytes().chunks(8).map(<[u8]>::to_vec).collect::<Vec<_>>();
    let of_one = |(result, alone): (&String, &String)| {
        let (result, alone) = (words(result), words(alone));
        let both = result.iter().zip(&alone).filter(|(one, other)| one != other).count();
        both + result.len().abs_diff(alone.len())
    };
    results.iter().zip(alone).map(of_one).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_are_those_of_the_seed_and_the_load() {
        let traffic = Traffic::poisson(2_000, 100_000, 0.5, 7);
        assert_eq!(traffic, Traffic::poisson(2_000, 100_000, 0.5, 7));
        assert_ne!(traffic, Traffic::poisson(2_000, 100_000, 0.5, 8));
        assert!(traffic.arrivals.is_sorted());
        // The mean of 2,000 pauses is within 10 % of 200 us for all but 1 of 10^5 seeds.
        let mean = traffic.arrivals[1_999] / 2_000;
        assert!((180_000..220_000).contains(&mean), "{mean}");
        let numbers: Vec<f32> =
            traffic.bodies[3].split(' ').map(|number| number.parse().unwrap()).collect();
        assert_eq!(numbers.len(), NUMBERS);
    }

    #[test]
    fn percentiles_are_values_that_occurred() {
        let values: Vec<u64> = (1..=60).rev().collect();
        assert_eq!(percentile(&values, 50), 30);
        assert_eq!(percentile(&values, 99), 60);
        assert_eq!(percentile(&[7], 1), 7);
        assert_eq!(percentile(&[], 99), 0);
    }

    #[test]
    fn words_are_compared_one_by_one() {
        let alone = ["0000000011111111".to_owned(), "22222222".to_owned()];
        assert_eq!(different_words(&alone, &alone), 0);
        let other = ["0000000011111112".to_owned(), "2222222233333333".to_owned()];
        assert_eq!(different_words(&other, &alone), 2);
    }

    #[test]
    fn a_latency_goes_from_the_arrival_to_the_result() {
        let answer = Answer { result: "00000000".into(), took_ns: 40, ready_ns: 150 };
        let sent = |arrival| [Sent { arrival, answer: Some(answer.clone()) }];
        let seen = |arrival, to| {
            let mut seen = Seen { to, ..Seen::default() };
            seen.take(&sent(arrival)).map(|()| (seen.latencies, seen.took))
        };
        assert_eq!(seen(-20, 150).unwrap(), (vec![170], vec![40]));
        assert!(seen(160, 200).is_err(), "ready before its arrival");
        assert!(seen(100, 149).is_err(), "ready in the future");
    }
}
