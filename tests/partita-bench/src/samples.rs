//! Five programs with the kinds of Slate's Table II, in the table's order; each `.cu` says what it
//! does and how large it is.
//!
//! Which levels each has is measured. Nothing of Partita was chosen on them.

use crate::application::{Application, Buffer, Param, Step, Variable};
use crate::workloads::{Random, gaussian, plane, workload};
use Param::{Address, Float, Word};
use partita_model::Dim3;

/// All five. The seed decides their data.
#[must_use]
pub fn samples(seed: u64) -> Vec<Application> {
    let makers: [fn(&mut Random) -> Application; 5] =
        [blackscholes, gaussian, sgemm, quasirandom, transpose];
    makers.iter().map(|make| make(&mut Random::new(seed))).collect()
}

fn blackscholes(random: &mut Random) -> Application {
    const OPTIONS: u32 = 1 << 20;
    let mut between = |low: f32, high: f32| {
        Buffer::floats((0..OPTIONS).map(|_| low + (high - low) * random.part()))
    };
    let given = [between(5.0, 30.0), between(1.0, 100.0), between(0.25, 10.0)];
    let made = Buffer::zeros(4 * u64::from(OPTIONS));
    let buffers = given.into_iter().chain([made.clone(), made]).collect();
    let rates = [Float(0.02), Float(0.3)];
    let given: Vec<Param> = (0..5).map(Address).chain(rates).collect();
    let (ctas, block) = (Dim3::linear(OPTIONS / 128), Dim3::linear(128));
    workload!("blackscholes", buffers, vec![Step::new("blackscholes", ctas, block, &given)])
}

fn sgemm(random: &mut Random) -> Application {
    const SIZE: u32 = 768;
    let matrix = || Buffer::zeros(4 * u64::from(SIZE) * u64::from(SIZE));
    let count = (SIZE * SIZE) as usize;
    let buffers = vec![random.parts(count), random.parts(count), matrix()];
    let given = [Address(0), Address(1), Address(2), Word(SIZE)];
    let grid = plane(SIZE / 32, SIZE / 32);
    workload!("sgemm", buffers, vec![Step::new("sgemm", grid, plane(32, 32), &given)])
}

fn quasirandom(random: &mut Random) -> Application {
    const COUNT: u32 = 1 << 18;
    let directions = (0..3 * 31).flat_map(|_| (random.next() >> 1).to_le_bytes());
    let directions =
        Variable { module: 0, name: "directions".to_owned(), contents: directions.collect() };
    let buffers = vec![Buffer::zeros(4 * 3 * u64::from(COUNT))];
    let given = [Address(0), Word(0), Word(COUNT)];
    let step = Step::new("quasirandom", Dim3::linear(128), plane(128, 3), &given);
    let application = workload!("quasirandom", buffers, vec![step]);
    Application { variables: vec![directions], ..application }
}

fn transpose(random: &mut Random) -> Application {
    const SIZE: u32 = 1536;
    let bytes = 4 * u64::from(SIZE) * u64::from(SIZE);
    let buffers = vec![random.parts((SIZE * SIZE) as usize), Buffer::zeros(bytes)];
    let given = [Address(0), Address(1), Word(SIZE)];
    let grid = plane(SIZE / 16, SIZE / 16);
    workload!("transpose", buffers, vec![Step::new("transpose", grid, plane(16, 16), &given)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_those_of_the_table() {
        let names: Vec<String> = samples(1).into_iter().map(|sample| sample.name).collect();
        assert_eq!(names, ["blackscholes", "gaussian", "sgemm", "quasirandom", "transpose"]);
    }
}
