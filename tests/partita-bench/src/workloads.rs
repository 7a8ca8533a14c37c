//! Fourteen programs of our own with the algorithms of CD-search Table 1; each `.cu` says what it
//! does and how large it is.
//!
//! They are written as their algorithm demands. Which class each has is measured.

use crate::application::{Application, Buffer, Param, Step};
use Param::{Address, Float, Word};
use partita_model::Dim3;

/// The data of a workload, as its seed decides.
pub(crate) struct Random(crate::Random);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(crate::Random::new(seed))
    }

    pub(crate) fn next(&mut self) -> u32 {
        let [a, b, c, d, ..] = self.0.bits().to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    }

    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        self.next() % bound
    }

    /// Between 0 and 1.
    pub(crate) fn part(&mut self) -> f32 {
        let [a, b, ..] = self.next().to_le_bytes();
        f32::from(u16::from_le_bytes([a, b])) / 65_536.0
    }

    pub(crate) fn parts(&mut self, count: usize) -> Buffer {
        Buffer::floats((0..count).map(|_| self.part()))
    }

    fn words(&mut self, count: usize) -> Buffer {
        Buffer::words((0..count).map(|_| self.next()))
    }
}

/// One workload and what CD-search Table 1 says of it.
#[derive(Clone, Debug)]
pub struct Workload {
    /// What is run.
    pub application: Application,
    /// The table's type is "Memory".
    pub memory_in_paper: bool,
}

/// All fourteen, in the table's order. The seed decides their data.
#[must_use]
pub fn workloads(seed: u64) -> Vec<Workload> {
    let compute = [dxtc, tpacf, bino, leu, cp, merge, pathfinder];
    let memory = [lavamd, gaussian, lbm, dwt2d, gesummv, pvc, sc];
    let make = |memory_in_paper| {
        move |make: &fn(&mut Random) -> Application| Workload {
            application: make(&mut Random::new(seed)),
            memory_in_paper,
        }
    };
    compute.iter().map(make(false)).chain(memory.iter().map(make(true))).collect()
}

macro_rules! workload {
    ($name:literal, $buffers:expr, $pass:expr) => {
        Application {
            name: $name.to_owned(),
            modules: vec![include_str!(concat!("../workloads/", $name, ".ptx")).into()],
            variables: Vec::new(),
            buffers: $buffers,
            pass: $pass,
            streams: 0,
            restored: Vec::new(),
            answer: None,
        }
    };
}

pub(crate) use workload;

pub(crate) fn plane(x: u32, y: u32) -> Dim3 {
    Dim3 { x, y, z: 1 }
}

fn dxtc(random: &mut Random) -> Application {
    const SIDE: u32 = 1024;
    let ctas = Dim3::linear(SIDE / 4 * SIDE / 4);
    // Where an order of 16 pixels can be cut into four runs.
    let cuts = (0..=16_u32)
        .flat_map(|c| (0..=c).flat_map(move |b| (0..=b).map(move |a| a | b << 5 | c << 10)));
    let given = [Address(0), Address(1), Address(2), Word(SIDE)];
    let buffers = vec![random.words(1 << 20), Buffer::words(cuts), Buffer::zeros(8 << 16)];
    workload!("dxtc", buffers, vec![Step::new("dxtc", ctas, Dim3::linear(64), &given)])
}

fn tpacf(random: &mut Random) -> Application {
    const SETS: u32 = 201;
    let mut sphere = |count: usize| {
        let mut points: Vec<[f32; 3]> = Vec::new();
        while points.len() < count {
            let point = [0, 1, 2].map(|_| 2.0 * random.part() - 1.0);
            let length = point.iter().map(|x| x * x).sum::<f32>().sqrt();
            if (0.1..=1.0).contains(&length) {
                points.push(point.map(|x| x / length));
            }
        }
        points
    };
    let by_axis = |points: &[[f32; 3]]| {
        let axes: Vec<f32> =
            (0..3).flat_map(|axis| points.iter().map(move |point| point[axis])).collect();
        axes
    };
    let observed = by_axis(&sphere(256));
    let sets: Vec<f32> = (0..SETS).flat_map(|_| by_axis(&sphere(16))).collect();
    let buffers = vec![Buffer::floats(observed), Buffer::floats(sets), Buffer::zeros(201 * 20 * 4)];
    let given = [Address(0), Address(1), Address(2)];
    workload!(
        "tpacf",
        buffers,
        vec![Step::new("tpacf", Dim3::linear(SETS), Dim3::linear(256), &given)]
    )
}

fn bino(random: &mut Random) -> Application {
    const OPTIONS: u32 = 512;
    let options = (0..OPTIONS).flat_map(|_| {
        let spot = 5.0 + 25.0 * random.part();
        [spot, spot * (0.5 + random.part()), 0.25 + 9.0 * random.part(), 0.1 + 0.4 * random.part()]
    });
    let buffers = vec![Buffer::floats(options), Buffer::zeros(512 * 4)];
    let given = [Address(0), Address(1)];
    workload!(
        "bino",
        buffers,
        vec![Step::new("bino", Dim3::linear(OPTIONS), Dim3::linear(64), &given)]
    )
}

fn leu(random: &mut Random) -> Application {
    let pixels = 448 * 320;
    let buffers = vec![random.parts(pixels), random.parts(pixels), Buffer::zeros(596 * 192 * 4)];
    let given = [Address(0), Address(1), Address(2)];
    workload!("leu", buffers, vec![Step::new("leu", Dim3::linear(596), Dim3::linear(192), &given)])
}

fn cp(random: &mut Random) -> Application {
    let (grid, block) = (plane(32, 128), plane(16, 8));
    let buffers = vec![random.parts(32 * 4), Buffer::zeros(32 * 128 * 128 * 8 * 4)];
    let given = [Address(0), Address(1), Float(0.1)];
    workload!("cp", buffers, vec![Step::new("cp", grid, block, &given)])
}

fn merge(random: &mut Random) -> Application {
    const CTAS: u32 = 4096;
    let keys = 512 << 12;
    let bytes = 4 * (512 << 12);
    let values = Buffer::words(0..512 * CTAS);
    let buffers = vec![random.words(keys), values, Buffer::zeros(bytes), Buffer::zeros(bytes)];
    let given = [0, 1, 2, 3].map(Address);
    workload!(
        "merge",
        buffers,
        vec![Step::new("merge", Dim3::linear(CTAS), Dim3::linear(256), &given)]
    )
}

fn pathfinder(random: &mut Random) -> Application {
    const CTAS: u32 = 4630;
    const ROWS: u32 = 16;
    const LAUNCHES: u32 = 4;
    let width = CTAS * (256 - 2 * ROWS);
    let weights = (0..width * ROWS * LAUNCHES / 4).map(|_| random.next() & 0x0f0f_0f0f);
    let costs = Buffer::zeros(u64::from(width) * 4);
    let buffers = vec![Buffer::words(weights), costs.clone(), costs];
    let launch = |index: u32| {
        let (from, to) = if index.is_multiple_of(2) { (1, 2) } else { (2, 1) };
        let given = [Address(0), Address(from), Address(to), Word(width), Word(index * ROWS)];
        Step::new("pathfinder", Dim3::linear(CTAS), Dim3::linear(256), &given)
    };
    workload!("pathfinder", buffers, (0..LAUNCHES).map(launch).collect())
}

fn lavamd(random: &mut Random) -> Application {
    const PARTICLES: u32 = 16;
    let count = 1000 * 16;
    let forces = Buffer::zeros(1000 * 16 * 4 * 16);
    let buffers = vec![random.parts(4 * count), random.parts(count), forces];
    let given = [Address(0), Address(1), Address(2), Word(PARTICLES), Float(0.5)];
    workload!(
        "lavamd",
        buffers,
        vec![Step::new("lavamd", Dim3::linear(1000), Dim3::linear(64), &given)]
    )
}

pub(crate) fn gaussian(random: &mut Random) -> Application {
    const SIZE: u32 = 2048;
    const COLUMNS: u32 = 16;
    let mut matrix: Vec<f32> = (0..SIZE * SIZE).map(|_| random.part()).collect();
    // A heavy diagonal: elimination without pivoting is stable then.
    for diagonal in matrix.iter_mut().step_by(SIZE as usize + 1) {
        *diagonal += 2048.0;
    }
    let buffers = vec![Buffer::floats(matrix), random.parts(2048), Buffer::zeros(16 << 20)];
    let launches = (0..COLUMNS).flat_map(|column| {
        let below = SIZE - column - 1;
        let factors = [Address(0), Address(2), Word(SIZE), Word(column)];
        let eliminate = [Address(0), Address(1), Address(2), Word(SIZE), Word(column)];
        let grid = plane(below.div_ceil(4), (below + 1).div_ceil(4));
        [
            Step::new("factors", Dim3::linear(below.div_ceil(256)), Dim3::linear(256), &factors),
            Step::new("eliminate", grid, plane(4, 4), &eliminate),
        ]
    });
    workload!("gaussian", buffers, launches.collect())
}

fn lbm(random: &mut Random) -> Application {
    let cells = 120 * 40 * 20;
    let at_rest = |random: &mut Random, k: usize| {
        let weight = match k {
            0 => 1.0 / 3.0,
            1..7 => 1.0 / 18.0,
            _ => 1.0 / 36.0,
        };
        weight * (1.0 + 0.01 * random.part())
    };
    let first: Vec<f32> = (0..19 * cells).map(|i| at_rest(random, i / cells)).collect();
    let buffers = vec![Buffer::floats(first), Buffer::zeros(19 * 120 * 40 * 20 * 4)];
    let step = |from, to| {
        Step::new(
            "lbm",
            plane(40, 20),
            Dim3::linear(120),
            &[Address(from), Address(to), Float(1.2)],
        )
    };
    workload!("lbm", buffers, vec![step(0, 1), step(1, 0)])
}

fn dwt2d(random: &mut Random) -> Application {
    const CTAS: u32 = 1 << 13;
    const PIXELS: u32 = CTAS * 256;
    let plane = Buffer::zeros(4 * u64::from(PIXELS));
    let image = random.words(3 << 19);
    let buffers = vec![image, plane.clone(), plane.clone(), plane];
    let given = [0, 1, 2, 3].map(Address);
    workload!(
        "dwt2d",
        buffers,
        vec![Step::new("dwt2d", Dim3::linear(CTAS), Dim3::linear(256), &given)]
    )
}

fn gesummv(random: &mut Random) -> Application {
    const PITCH: u32 = 4096;
    const COLUMNS: u32 = 16;
    const LAUNCHES: u32 = 8;
    // The first rows have numbers: time does not depend on them.
    let matrix = |random: &mut Random| Buffer {
        bytes: 4 * u64::from(PITCH) * u64::from(PITCH),
        ..random.parts(1 << 16)
    };
    let (a, b) = (matrix(random), matrix(random));
    let buffers = vec![a, b, random.parts(PITCH as usize), Buffer::zeros(4 * 4096)];
    let launch = |index: u32| {
        let numbers = [Word(PITCH), Word(index * COLUMNS), Word(COLUMNS), Float(1.5), Float(0.5)];
        let given: Vec<Param> = (0..4).map(Address).chain(numbers).collect();
        Step::new("gesummv", Dim3::linear(128), Dim3::linear(32), &given)
    };
    workload!("gesummv", buffers, (0..LAUNCHES).map(launch).collect())
}

fn pvc(random: &mut Random) -> Application {
    const LINES: u32 = 1 << 19;
    let (mut log, mut starts) = (Vec::new(), Vec::new());
    for _ in 0..LINES {
        starts.push(u32::try_from(log.len()).unwrap_or(u32::MAX));
        // Few pages are seen often, many seldom.
        let page = random.below(1 << 14) >> random.below(14);
        log.extend(format!("/site/{:08x}/page", page.wrapping_mul(2_654_435_761)).into_bytes());
        log.extend((0..random.below(32)).map(|place| b"abcdefgh"[place as usize % 8]));
        log.extend([b' ', b'9', b'\n']);
    }
    let buffers = vec![
        Buffer::of(log),
        Buffer::words(starts),
        Buffer::zeros(4 << 17),
        Buffer::zeros(4 << 17),
    ];
    let given = [Address(0), Address(1), Address(2), Address(3), Word(LINES)];
    workload!(
        "pvc",
        buffers,
        vec![Step::new("pvc", Dim3::linear(LINES / 256), Dim3::linear(256), &given)]
    )
}

fn sc(random: &mut Random) -> Application {
    const POINTS: u32 = 1 << 17;
    const DIMENSIONS: u32 = 32;
    let points = random.parts((POINTS * DIMENSIONS) as usize);
    let costs = Buffer::floats((0..POINTS).map(|_| 8.0 * random.part()));
    let centres = Buffer::words((0..POINTS).map(|_| random.below(64)));
    let buffers = vec![points, costs, centres, Buffer::zeros(64 * 4), Buffer::zeros(1 << 17)];
    let candidates: Vec<u32> = (0..16).map(|_| random.below(POINTS)).collect();
    let launch = |candidate: &u32| {
        let numbers = [Word(POINTS), Word(DIMENSIONS), Word(*candidate)];
        let given: Vec<Param> = (0..5).map(Address).chain(numbers).collect();
        let step = Step::new("sc", Dim3::linear(POINTS / 256), Dim3::linear(256), &given);
        Step { dynamic_shared: DIMENSIONS * 4, ..step }
    };
    workload!("sc", buffers, candidates.iter().map(launch).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_those_of_the_table() {
        let all = workloads(1);
        let names: Vec<&str> =
            all.iter().map(|workload| workload.application.name.as_str()).collect();
        let expected = [
            "dxtc",
            "tpacf",
            "bino",
            "leu",
            "cp",
            "merge",
            "pathfinder",
            "lavamd",
            "gaussian",
            "lbm",
            "dwt2d",
            "gesummv",
            "pvc",
            "sc",
        ];
        assert_eq!(names, expected);
        assert_eq!(all.iter().filter(|workload| workload.memory_in_paper).count(), 7);
    }

    #[test]
    fn data_is_the_seeds() {
        let digest = |seed| tpacf(&mut Random::new(seed)).digest();
        assert_eq!(digest(1), digest(1));
        assert_ne!(digest(1), digest(2));
    }
}
