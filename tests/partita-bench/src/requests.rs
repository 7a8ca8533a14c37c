//! A server whose requests arrive while other programs run: how long each request takes.
//!
//! A request is a chain of small dependent launches, as inference has them: matrix products,
//! transpositions and element-wise kernels. Requests arrive whatever the server is doing (open
//! loop), so waiting counts. The server takes them one after the other: it launches a request's
//! kernels, waits until it has read back the result, and then begins the next. A latency goes from
//! the arrival of a request to the end of that wait. An arrival is noticed within 2 µs.

use crate::application::{Application, Buffer, Param, Step};
use crate::arrivals::{in_one_stream, poisson};
use crate::outcome::Share;
use crate::track::float;
use crate::workloads::{Random, plane, workload};
use Param::{Address, Float, Word};
use partita_model::Dim3;

/// Layers of a request; each is a product, an element-wise kernel and a transposition.
const LAYERS: u32 = 4;
/// Rows and columns of the products.
const SIZE: u32 = 64;

/// The server. One pass of it is one request.
#[must_use]
pub fn server(seed: u64) -> Application {
    let random = &mut Random::new(seed);
    let parts = [product(random), elementwise(random), transposition(random)];
    // Layer by layer, one kernel of each part.
    let order: Vec<Vec<u64>> = (0..3_u64)
        .map(|part| (0..u64::from(LAYERS)).map(|layer| 3 * layer + part).collect())
        .collect();
    let (request, _) = in_one_stream(&[&parts[0], &parts[1], &parts[2]], &order);
    // What the last transposition writes.
    let answer = request.buffers.len().checked_sub(1);
    Application { name: "server".to_owned(), answer, ..request }
}

fn product(random: &mut Random) -> Application {
    let count = (SIZE * SIZE) as usize;
    let result = Buffer::zeros(4 * u64::from(SIZE) * u64::from(SIZE));
    let buffers = vec![random.parts(count), random.parts(count), result];
    let given = [Address(0), Address(1), Address(2), Word(SIZE)];
    let grid = plane(SIZE / 32, SIZE / 32);
    workload!("sgemm", buffers, vec![Step::new("sgemm", grid, plane(32, 32), &given)])
}

fn elementwise(random: &mut Random) -> Application {
    const CTAS: u32 = 48;
    let count = CTAS * 128;
    let made = Buffer::zeros(4 * u64::from(count));
    let buffers = vec![random.parts(count as usize), random.parts(count as usize), made];
    let given = [Address(0), Address(1), Address(2), Float(1.5)];
    let step = Step::new("saxpy", Dim3::linear(CTAS), Dim3::linear(128), &given);
    workload!("saxpy", buffers, vec![step])
}

fn transposition(random: &mut Random) -> Application {
    let bytes = 4 * u64::from(SIZE) * u64::from(SIZE);
    let buffers = vec![random.parts((SIZE * SIZE) as usize), Buffer::zeros(bytes)];
    let given = [Address(0), Address(1), Word(SIZE)];
    let grid = plane(SIZE / 16, SIZE / 16);
    workload!("transpose", buffers, vec![Step::new("transpose", grid, plane(16, 16), &given)])
}

/// When requests of a server arrive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Traffic {
    /// In nanoseconds from the start, rising.
    arrivals: Vec<u64>,
}

/// How requests follow each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Process {
    /// Independent of each other.
    Poisson,
    /// All as far apart.
    Uniform,
    /// Bursts of this many requests, which are independent of each other.
    Bursts(usize),
}

impl Traffic {
    /// `requests` requests, which come `mean_nanos` nanoseconds after each other on the average.
    #[must_use]
    pub fn new(process: Process, requests: usize, mean_nanos: f64, seed: u64) -> Traffic {
        let poisson = |count, mean| poisson(1, count, mean, seed).pop().unwrap_or_default();
        let arrivals = match process {
            Process::Poisson => poisson(requests, mean_nanos),
            Process::Uniform => {
                // A request needs no part of a nanosecond.
                let at = |number| std::time::Duration::from_nanos(1).mul_f64(number * mean_nanos);
                let nanos =
                    |number| u64::try_from(at(float(number)).as_nanos()).unwrap_or(u64::MAX);
                (1..=requests as u64).map(nanos).collect()
            }
            Process::Bursts(size) => {
                let size = size.max(1);
                let bursts = poisson(requests.div_ceil(size), mean_nanos * float(size as u64));
                let all = bursts.into_iter().flat_map(|at| std::iter::repeat_n(at, size));
                all.take(requests).collect()
            }
        };
        Traffic { arrivals }
    }

    /// A burst of `requests` requests every `apart` nanoseconds: the first at 0, the last before
    /// `end` nanoseconds.
    #[must_use]
    pub fn bursts(requests: usize, apart: u64, end: u64) -> Traffic {
        let step = usize::try_from(apart.max(1)).unwrap_or(usize::MAX);
        let at = (0..end).step_by(step);
        Traffic { arrivals: at.flat_map(|at| std::iter::repeat_n(at, requests)).collect() }
    }

    /// When each launch of the server arrives ([`crate::Run::arrivals`]).
    #[must_use]
    pub fn launches(&self, server: &Application) -> Vec<u64> {
        let of_one = |&at: &u64| std::iter::repeat_n(at, server.pass.len());
        self.arrivals.iter().flat_map(of_one).collect()
    }

    /// The number of requests.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.arrivals.len()
    }

    /// The arrival of the last request, in nanoseconds.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.arrivals.last().copied().unwrap_or(0)
    }

    /// The latency of each request in nanoseconds, in the order of their arrival. A request that
    /// the run's end cut off has waited until then at least.
    #[must_use]
    pub fn latencies(&self, share: &Share) -> Vec<f64> {
        let ends = share.answered.iter().copied().chain(std::iter::repeat(share.track.end()));
        let latency = |(&arrival, end): (&u64, u64)| float(end.saturating_sub(arrival));
        self.arrivals.iter().zip(ends).map(latency).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Arrangement, Cell, Cells};
    use partita_emu::Spec;
    use partita_model::{LatencyTarget, Nanos, Priority, Terms};

    #[test]
    fn a_request_is_a_chain_of_layers() {
        let server = server(1);
        let kernels: Vec<&str> = server.pass.iter().map(|step| step.kernel.as_str()).collect();
        assert_eq!(kernels.len(), 12);
        assert_eq!(kernels[..4], ["sgemm", "saxpy", "transpose", "sgemm"]);
        assert_eq!(Traffic { arrivals: vec![5, 9] }.launches(&server).len(), 24);
    }

    #[test]
    fn a_latency_goes_from_arrival_to_the_answer() {
        let mut share = Share { answered: vec![150, 400], ..Share::default() };
        share.track.see(900, 1);
        let traffic = Traffic { arrivals: vec![100, 200, 300] };
        let found = traffic.latencies(&share);
        let expected = [50.0, 200.0, 600.0];
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-9), "{found:?}");
        assert_eq!((traffic.requests(), traffic.end()), (3, 300));
    }

    #[test]
    fn the_server_waits_for_each_answer_and_the_engine_tells_requests_apart() {
        let spec = Spec::named("gpgpu-sim-24").unwrap();
        let server = server(1);
        let traffic = Traffic { arrivals: vec![0; 5] };
        let target = LatencyTarget::of(Nanos(1_000_000));
        let terms = Terms { priority: Some(Priority::Latency), target, ..Terms::default() };
        let cell = Cell {
            applications: vec![&server],
            spec: &spec,
            arrangement: Arrangement::Terms(vec![terms]),
            cycles: 10_000_000,
            launches: vec![60],
            arrivals: vec![traffic.launches(&server)],
        };
        let shared = Cells::new(None, 7).unwrap().get(&cell).unwrap();
        let latencies = traffic.latencies(&shared.shares[0]);
        // The later ones wait for those before: none begins early.
        let apart = latencies.windows(2).map(|pair| pair[1] - pair[0]);
        assert!(apart.clone().all(|apart| apart > latencies[0] / 2.0), "{latencies:?}");
        let target = shared.shares[0].target.unwrap();
        assert_eq!((target.seen, target.missed), (5, 0));
    }

    #[test]
    fn all_processes_have_the_mean_that_was_asked_for() {
        for process in [Process::Poisson, Process::Uniform, Process::Bursts(8)] {
            let traffic = Traffic::new(process, 8_000, 500.0, 3);
            assert!(traffic.requests() == 8_000 && traffic.arrivals.is_sorted());
            let mean = float(traffic.end()) / 8_000.0;
            assert!((mean - 500.0).abs() < 50.0, "{process:?}: {mean}");
        }
        let uniform = Traffic::new(Process::Uniform, 3, 500.0, 3);
        assert_eq!(uniform.arrivals, [500, 1_000, 1_500]);
    }

    #[test]
    fn bursts_come_at_once() {
        assert_eq!(Traffic::bursts(2, 50, 101).arrivals, [0, 0, 50, 50, 100, 100]);
    }
}
