//! Eight kernels with the kinds of Masola Table 2, in the order of its rows; each `.cu` says what
//! it does and how large it is.
//!
//! Blocks and shared memory are the paper's. Grids are the paper's divided by 8 at most, because
//! the emulated GPU runs 107 groups of them.

use crate::application::{Application, Buffer, Param, Step};
use crate::workloads::{Random, plane, workload};
use Param::{Address, Float, Word};
use partita_model::Dim3;

/// All eight. The seed decides their data.
#[must_use]
pub fn masola(seed: u64) -> Vec<Application> {
    let makers: [fn(&mut Random) -> Application; 8] =
        [vadd, saxpy, copy, raytrace, dxt1, conv, mvt, pf];
    makers.iter().map(|make| make(&mut Random::new(seed))).collect()
}

/// Elements of `vadd` and `saxpy`.
const ELEMENTS: u32 = 32_768 * 128;

fn vadd(random: &mut Random) -> Application {
    let bytes = 4 * u64::from(ELEMENTS);
    let count = ELEMENTS as usize;
    let buffers = vec![random.parts(count), random.parts(count), Buffer::zeros(bytes)];
    let given = [Address(0), Address(1), Address(2)];
    let (ctas, block) = (Dim3::linear(ELEMENTS / 128), Dim3::linear(128));
    workload!("vadd", buffers, vec![Step::new("vadd", ctas, block, &given)])
}

fn saxpy(random: &mut Random) -> Application {
    let bytes = 4 * u64::from(ELEMENTS);
    let count = ELEMENTS as usize;
    let buffers = vec![random.parts(count), random.parts(count), Buffer::zeros(bytes)];
    let given = [Address(0), Address(1), Address(2), Float(1.5)];
    let (ctas, block) = (Dim3::linear(ELEMENTS / 128), Dim3::linear(128));
    workload!("saxpy", buffers, vec![Step::new("saxpy", ctas, block, &given)])
}

fn copy(random: &mut Random) -> Application {
    const CTAS: u32 = 40_960;
    let from = random.parts(CTAS as usize * 128);
    let buffers = vec![from, Buffer::zeros(4 * 128 * u64::from(CTAS))];
    let given = [Address(0), Address(1)];
    workload!(
        "copy",
        buffers,
        vec![Step::new("copy", Dim3::linear(CTAS), Dim3::linear(128), &given)]
    )
}

fn raytrace(_: &mut Random) -> Application {
    const ACROSS: u32 = 104;
    const DOWN: u32 = 80;
    let (width, height) = (ACROSS * 8, DOWN * 8);
    let buffers = vec![Buffer::zeros(4 * u64::from(width) * u64::from(height))];
    let given = [Address(0), Word(width), Word(height)];
    let step = Step::new("raytrace", plane(ACROSS, DOWN), plane(8, 8), &given);
    workload!("raytrace", buffers, vec![step])
}

fn dxt1(random: &mut Random) -> Application {
    const CTAS: u32 = 46;
    const BLOCKS: u32 = 24;
    let blocks = CTAS * BLOCKS;
    let image = Buffer::words((0..blocks * 16).map(|_| random.next()));
    let buffers = vec![image, Buffer::zeros(8 * u64::from(blocks))];
    let given = [Address(0), Address(1), Word(BLOCKS)];
    workload!(
        "dxt1",
        buffers,
        vec![Step::new("dxt1", Dim3::linear(CTAS), Dim3::linear(512), &given)]
    )
}

fn conv(random: &mut Random) -> Application {
    const CTAS: u32 = 40_960;
    const WIDTH: u32 = 1_280;
    let pixels = CTAS * 32;
    let image = random.parts(pixels as usize);
    let buffers = vec![image, random.parts(9), Buffer::zeros(4 * u64::from(pixels))];
    let given = [Address(0), Address(1), Address(2), Word(WIDTH), Word(pixels / WIDTH)];
    workload!(
        "conv",
        buffers,
        vec![Step::new("conv", Dim3::linear(CTAS), Dim3::linear(32), &given)]
    )
}

fn mvt(random: &mut Random) -> Application {
    const SIZE: u32 = 4_096;
    const COLUMNS: u32 = 512;
    // The first rows have numbers: time does not depend on them.
    let bytes = 4 * u64::from(SIZE) * u64::from(SIZE);
    let matrix = Buffer { bytes, ..random.parts(1 << 16) };
    let buffers = vec![matrix, random.parts(SIZE as usize), Buffer::zeros(4 * u64::from(SIZE))];
    let given = [Address(0), Address(1), Address(2), Word(SIZE), Word(COLUMNS)];
    workload!("mvt", buffers, vec![Step::new("mvt", Dim3::linear(64), Dim3::linear(64), &given)])
}

fn pf(random: &mut Random) -> Application {
    const CTAS: u32 = 1_024;
    const ROWS: u32 = 32;
    const WIDTH: u32 = CTAS * (256 - 2 * ROWS);
    let weights = Buffer::words((0..WIDTH * ROWS).map(|_| random.below(10)));
    let first = Buffer::words((0..WIDTH).map(|_| random.below(10)));
    let buffers = vec![weights, first, Buffer::zeros(4 * u64::from(WIDTH))];
    let given = [Address(0), Address(1), Address(2), Word(WIDTH)];
    workload!("pf", buffers, vec![Step::new("pf", Dim3::linear(CTAS), Dim3::linear(256), &given)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_those_of_the_table() {
        let names: Vec<String> = masola(1).into_iter().map(|kernel| kernel.name).collect();
        assert_eq!(names, ["vadd", "saxpy", "copy", "raytrace", "dxt1", "conv", "mvt", "pf"]);
    }
}
