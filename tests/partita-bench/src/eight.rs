//! Eight programs with the kinds of Kernelet's Table 2, in the order of its row ALL; each `.cu`
//! says what it does and how large it is.
//!
//! The paper's own sizes and the character of each of its programs are in a supplement that this
//! project does not have. What the paper's text has is a mean and a range
//! ([`PAPER_IPC`], [`PAPER_BANDWIDTH`]); which character each program has here is measured.

use crate::application::{Application, Buffer, Param, Step, Variable};
use crate::workloads::{Random, plane, workload};
use Param::{Address, Float, Word};
use partita_model::Dim3;

/// The mean IPC of the paper's programs alone on a C2050, whose peak is 1 (Kernelet §1).
pub const PAPER_IPC: f64 = 0.52;
/// The range of their use of memory bandwidth there, as parts of the peak (Kernelet §1).
pub const PAPER_BANDWIDTH: [f64; 2] = [0.0002, 0.14];

/// The mixes of Kernelet's Table 2: a name, and the names of its programs.
pub const MIXES: [(&str, &[&str]); 4] = [
    ("CI", &["bs", "mm", "tea", "mriq"]),
    ("MI", &["pc", "spmv", "st", "sad"]),
    ("MIX", &["pc", "bs", "tea", "sad"]),
    ("ALL", &["pc", "spmv", "st", "bs", "mm", "tea", "mriq", "sad"]),
];

/// All eight. The seed decides their data.
#[must_use]
pub fn eight(seed: u64) -> Vec<Application> {
    let makers: [fn(&mut Random) -> Application; 8] = [pc, spmv, st, bs, mm, tea, mriq, sad];
    makers.iter().map(|make| make(&mut Random::new(seed))).collect()
}

fn pc(random: &mut Random) -> Application {
    const NODES: u32 = 16_384;
    const CTAS: u32 = 448;
    // A circle through all nodes in random order.
    let mut order: Vec<u32> = (0..NODES).collect();
    for last in (1..order.len()).rev() {
        let bound = u32::try_from(last + 1).unwrap_or(NODES);
        order.swap(last, random.below(bound) as usize);
    }
    let mut words = vec![1_u32; NODES as usize * 32];
    for (at, node) in order.iter().enumerate() {
        words[*node as usize * 32] = order[(at + 1) % order.len()];
    }
    let buffers = vec![Buffer::words(words), Buffer::zeros(4 * 32 * u64::from(CTAS))];
    let given = [Address(0), Address(1), Word(NODES), Word(192)];
    workload!("pc", buffers, vec![Step::new("pc", Dim3::linear(CTAS), Dim3::linear(32), &given)])
}

fn spmv(random: &mut Random) -> Application {
    const ROWS: u32 = 53_760;
    let mut starts = vec![0];
    for row in 0..ROWS as usize {
        starts.push(starts[row] + 4 + random.below(9));
    }
    let entries = starts[ROWS as usize] as usize;
    let columns = Buffer::words((0..entries).map(|_| random.below(ROWS)));
    let values = random.parts(entries);
    let x = random.parts(ROWS as usize);
    let buffers =
        vec![Buffer::words(starts), columns, values, x, Buffer::zeros(4 * u64::from(ROWS))];
    let given = [Address(0), Address(1), Address(2), Address(3), Address(4)];
    let (ctas, block) = (Dim3::linear(ROWS / 4 / 32), Dim3::linear(256));
    workload!("spmv", buffers, vec![Step::new("spmv", ctas, block, &given)])
}

fn st(random: &mut Random) -> Application {
    const SIDE: u32 = 128;
    const PLANES: u32 = 130;
    let points = SIDE * SIDE * PLANES;
    let buffers = vec![random.parts(points as usize), Buffer::zeros(4 * u64::from(points))];
    let given = [Address(0), Address(1), Word(SIDE), Word(SIDE)];
    let grid = Dim3 { x: SIDE / 32, y: SIDE / 8, z: (PLANES - 2) / 32 };
    workload!("st", buffers, vec![Step::new("st", grid, plane(32, 8), &given)])
}

fn bs(random: &mut Random) -> Application {
    const OPTIONS: u32 = 86_016;
    let mut between = |low: f32, high: f32| {
        Buffer::floats((0..OPTIONS).map(|_| low + (high - low) * random.part()))
    };
    let given = [between(5.0, 30.0), between(1.0, 100.0)];
    let made = Buffer::zeros(4 * u64::from(OPTIONS));
    let buffers = given.into_iter().chain([made.clone(), made]).collect();
    let rates = [Float(0.02), Float(0.3)];
    let given: Vec<Param> = (0..4).map(Address).chain(rates).collect();
    let (ctas, block) = (Dim3::linear(OPTIONS / 256), Dim3::linear(256));
    workload!("bs", buffers, vec![Step::new("bs", ctas, block, &given)])
}

fn mm(random: &mut Random) -> Application {
    const SIDE: u32 = 256;
    const DEPTH: u32 = 384;
    let count = (SIDE * DEPTH) as usize;
    let buffers =
        vec![random.parts(count), random.parts(count), Buffer::zeros(4 * u64::from(SIDE * SIDE))];
    let given = [Address(0), Address(1), Address(2), Word(DEPTH), Word(SIDE)];
    let grid = plane(SIDE / 16, SIDE / 16);
    workload!("mm", buffers, vec![Step::new("mm", grid, plane(16, 16), &given)])
}

fn tea(random: &mut Random) -> Application {
    const BLOCKS: u32 = 258_048;
    let plain = Buffer::words((0..2 * BLOCKS).map(|_| random.next()));
    let buffers = vec![plain, Buffer::zeros(8 * u64::from(BLOCKS))];
    let key: Vec<Param> = (0..4).map(|_| Word(random.next())).collect();
    let given = [[Address(0), Address(1)].as_slice(), &key, &[Word(BLOCKS)]].concat();
    let (ctas, block) = (Dim3::linear(BLOCKS / 3 / 256), Dim3::linear(256));
    workload!("tea", buffers, vec![Step::new("tea", ctas, block, &given)])
}

fn mriq(random: &mut Random) -> Application {
    const VOXELS: u32 = 57_344;
    let samples = (0..4 * 256).flat_map(|_| random.part().to_le_bytes()).collect();
    let samples = Variable { module: 0, name: "samples".to_owned(), contents: samples };
    let mut places = || random.parts(VOXELS as usize);
    let sum = Buffer::zeros(4 * u64::from(VOXELS));
    let buffers = vec![places(), places(), places(), sum.clone(), sum];
    let given = [Address(0), Address(1), Address(2), Address(3), Address(4)];
    let (ctas, block) = (Dim3::linear(VOXELS / 128), Dim3::linear(128));
    let application = workload!("mriq", buffers, vec![Step::new("mriq", ctas, block, &given)]);
    Application { variables: vec![samples], ..application }
}

fn sad(random: &mut Random) -> Application {
    const PITCH: u32 = 304;
    const ROWS: u32 = 192;
    const ACROSS: u32 = 288 / 4;
    const BLOCKS: u32 = ACROSS * 176 / 4;
    let mut frame = || Buffer::words((0..PITCH * ROWS / 4).map(|_| random.next() & 0x3f3f_3f3f));
    let buffers = vec![frame(), frame(), Buffer::zeros(2 * 256 * u64::from(BLOCKS))];
    let given = [Address(0), Address(1), Address(2), Word(PITCH), Word(ACROSS), Word(BLOCKS)];
    let ctas = Dim3::linear(BLOCKS / 9);
    workload!("sad", buffers, vec![Step::new("sad", ctas, plane(16, 16), &given)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixes_are_of_the_eight() {
        let names: Vec<String> = eight(1).into_iter().map(|program| program.name).collect();
        let all = MIXES[3].1;
        assert_eq!(names, all);
        for (mix, programs) in MIXES {
            assert!(programs.iter().all(|program| all.contains(program)), "{mix}");
        }
    }
}
