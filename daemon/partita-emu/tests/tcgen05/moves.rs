//! `tcgen05.ld` and `tcgen05.st` of all shapes, `tcgen05.cp` and `tcgen05.shift`.

use super::numbers::{F16, Layout};
use super::{COLUMNS, Case, ROWS, compare};
use std::fmt::Write;

/// How a shape spreads bits over threads and registers: extents and strides, in bits of the matrix,
/// of the thread and of the register (CUTLASS writes them so, too); then the matrix's rows and the
/// bits of a row for each repetition.
struct Shape {
    name: &'static str,
    threads: &'static [(usize, Stride)],
    registers: &'static [(usize, Stride)],
    rows: usize,
    bits: usize,
}

/// A stride: rows and bits.
type Stride = (usize, usize);

const SHAPES: [Shape; 4] = [
    Shape { name: "32x32b", threads: &[(32, (1, 0))], registers: &[], rows: 32, bits: 32 },
    Shape {
        name: "16x64b",
        threads: &[(2, (8, 0)), (2, (0, 32)), (8, (1, 0))],
        registers: &[],
        rows: 16,
        bits: 64,
    },
    Shape {
        name: "16x128b",
        threads: &[(4, (0, 32)), (8, (1, 0))],
        registers: &[(2, (8, 0))],
        rows: 16,
        bits: 128,
    },
    Shape {
        name: "16x256b",
        threads: &[(4, (0, 64)), (8, (1, 0))],
        registers: &[(2, (0, 32)), (2, (8, 0))],
        rows: 16,
        bits: 256,
    },
];

fn sum(parts: &[(usize, Stride)], mut index: usize) -> (Stride, usize) {
    let mut all = (0, 0);
    for &(extent, (rows, bits)) in parts {
        all.0 += index % extent * rows;
        all.1 += index % extent * bits;
        index /= extent;
    }
    (all, index)
}

impl Shape {
    /// Row and 32-bit column of a thread's register.
    fn place(&self, thread: usize, register: usize) -> (usize, usize) {
        let (of_thread, _) = sum(self.threads, thread);
        let (of_register, repetition) = sum(self.registers, register);
        let bits = of_thread.1 + of_register.1 + repetition * self.bits;
        (of_thread.0 + of_register.0, bits / 32)
    }

    fn registers(&self, number: usize) -> usize {
        self.rows * self.bits * number / 1024
    }
}

/// The registers of a move.
fn list(count: usize) -> String {
    (0..count).map(|at| format!("%c{at}")).collect::<Vec<_>>().join(", ")
}

/// Loads from columns 0 on and what `ld` found goes to columns 300 on, a register each.
fn check_load(
    name: &str,
    count: usize,
    first: usize,
    tail: &str,
    place: impl Fn(usize, usize) -> Vec<(usize, usize)>,
) -> usize {
    let mut body = String::new();
    let (all, lane) = (list(count), first << 16);
    writeln!(body, "tcgen05.ld.sync.aligned.{name}.b32 {{{all}}}, [%r7+{lane}]{tail};").unwrap();
    body += "tcgen05.wait::ld.sync.aligned;\n";
    writeln!(body, "tcgen05.st.sync.aligned.32x32b.x{count}.b32 [%r7+300], {{{all}}};").unwrap();
    body += "tcgen05.wait::st.sync.aligned;\n";
    let case = Case { by_all: true, ..Case::new(1, body) };
    let mut wanted = case.before.clone();
    for (thread, register) in (0..ROWS).flat_map(|at| (0..count).map(move |i| (at, i))) {
        let own = 32 * (thread / 32) + first;
        let mut word = 0;
        let cells = place(thread % 32, register);
        let width = 32 / cells.len();
        for (part, (row, column)) in cells.into_iter().enumerate() {
            let found = case.before[0][(own + row) * COLUMNS + column];
            word |= (found & (u32::MAX >> (32 - width))) << (part * width);
        }
        wanted[0][thread * COLUMNS + 300 + register] = word;
    }
    compare(&name, &case.run(), &wanted)
}

/// Stores what columns 300 on have to columns 0 on.
fn check_store(
    name: &str,
    count: usize,
    first: usize,
    tail: &str,
    place: impl Fn(usize, usize) -> Vec<(usize, usize)>,
) -> usize {
    let mut body = String::new();
    let (all, lane) = (list(count), first << 16);
    writeln!(body, "tcgen05.ld.sync.aligned.32x32b.x{count}.b32 {{{all}}}, [%r7+300];").unwrap();
    body += "tcgen05.wait::ld.sync.aligned;\n";
    writeln!(body, "tcgen05.st.sync.aligned.{name}.b32 [%r7+{lane}]{tail}, {{{all}}};").unwrap();
    body += "tcgen05.wait::st.sync.aligned;\n";
    let case = Case { by_all: true, ..Case::new(1, body) };
    let mut wanted = case.before.clone();
    for (thread, register) in (0..ROWS).flat_map(|at| (0..count).map(move |i| (at, i))) {
        let own = 32 * (thread / 32) + first;
        let word = case.before[0][thread * COLUMNS + 300 + register];
        let cells = place(thread % 32, register);
        let width = 32 / cells.len();
        for (part, (row, column)) in cells.into_iter().enumerate() {
            let part = word >> (part * width) & (u32::MAX >> (32 - width));
            wanted[0][(own + row) * COLUMNS + column] = part;
        }
    }
    compare(&name, &case.run(), &wanted)
}

#[test]
fn shapes_of_loads_and_stores() {
    let mut compared = 0;
    for shape in &SHAPES {
        for power in 0..8 {
            let number = 1 << power;
            let count = shape.registers(number);
            if count > 128 {
                continue;
            }
            let first = if shape.rows == 16 && power % 2 == 1 { 16 } else { 0 };
            let name = format!("{}.x{number}", shape.name);
            let place = |thread, register| vec![shape.place(thread, register)];
            compared += check_load(&name, count, first, "", place);
            compared += check_store(&name, count, first, "", place);
            let halves = |thread, register| {
                let (row, column) = shape.place(thread, register);
                vec![(row, 2 * column), (row, 2 * column + 1)]
            };
            compared += check_load(&format!("{name}.pack::16b"), count, first, "", halves);
            compared += check_store(&format!("{name}.unpack::16b"), count, first, "", halves);
        }
    }
    assert!(compared >= 2_000);
}

#[test]
fn halves_of_a_warp_have_columns_of_their_own() {
    for (power, split) in [(0, 1), (1, 2), (3, 64), (5, 40)] {
        let number = 1 << power;
        let place = |thread: usize, register| vec![(thread % 16, register + thread / 16 * split)];
        let tail = format!(", {split}");
        let name = format!("16x32bx2.x{number}");
        let compared = check_load(&name, number, 16, &tail, place)
            + check_store(&name, number, 0, &tail, place);
        assert!(compared >= 2_000);
    }
}

/// A matrix of rows of 16-bit numbers by a layout, whose rows go to lanes.
fn check_copy(
    name: &str,
    (rows, bits): (usize, usize),
    layout: Layout,
    pair: bool,
    lanes: impl Fn(usize) -> Vec<usize>,
) -> usize {
    let (group, k) = (if pair { 2 } else { 1 }, bits / 16);
    let mut body = String::new();
    let descriptor = layout.descriptor((rows, k)).cast_signed();
    writeln!(body, "mov.b64 %d6, {descriptor}; mov.u32 %r20, rows; shr.u32 %r20, %r20, 4;")
        .unwrap();
    body += "cvt.u64.u32 %d9, %r20; or.b64 %d6, %d6, %d9;\n";
    writeln!(body, "tcgen05.cp.cta_group::{group}.{name} [%r5+40], %d6;").unwrap();
    let mut case = Case::new(group, body);
    let mut wanted = case.before.clone();
    for (cta, wanted) in wanted.iter_mut().enumerate() {
        let value = |row: usize, at: usize| ((row * 17 + at * 5 + cta) % 1024) as f64;
        layout.fill(&mut case.images[cta], F16, (rows, k), 0, value);
        for row in 0..rows {
            for lane in lanes(row) {
                for column in 0..bits / 32 {
                    let half = |at| F16.encode(value(row, 2 * column + at));
                    wanted[lane * COLUMNS + 40 + column] = half(0) | half(1) << 16;
                }
            }
        }
    }
    compare(&name, &case.run(), &wanted)
}

#[test]
fn copies_from_shared_memory() {
    let mut compared = 0;
    for (index, width) in [1, 2, 4, 8].into_iter().enumerate() {
        let layout = Layout::new(width, false);
        let pair = index % 2 == 1;
        let mut check = |name: &str, shape, lanes: &dyn Fn(usize) -> Vec<usize>| {
            compared += check_copy(name, shape, layout, pair, lanes);
        };
        check("128x256b", (128, 256), &|row| vec![row]);
        check("128x128b", (128, 128), &|row| vec![row]);
        check("4x256b", (8, 256), &|row| if row < 4 { vec![32 * row] } else { vec![] });
        check("32x128b.warpx4", (32, 128), &|row| (0..4).map(|warp| 32 * warp + row).collect());
        check("64x128b.warpx2::02_13", (64, 128), &|row| vec![row, row + 64]);
        check("64x128b.warpx2::01_23", (64, 128), &|row| {
            let first = 64 * (row / 32) + row % 32;
            vec![first, first + 32]
        });
    }
    assert!(compared >= 2_000);
}

#[test]
fn rows_shift_down() {
    let case = Case::new(1, "tcgen05.shift.cta_group::1.down [%r5+4194316];\n".to_owned());
    let mut wanted = case.before.clone();
    // Lane 64 and column 12.
    for (row, column) in (65..96).flat_map(|row| (12..20).map(move |column| (row, column))) {
        wanted[0][row * COLUMNS + column] = case.before[0][(row - 1) * COLUMNS + column];
    }
    assert!(compare(&"shift", &case.run(), &wanted) >= 2_000);
}

#[test]
fn accesses_outside_fault() {
    let load = |at: &str| format!("tcgen05.ld.sync.aligned.32x32b.x2.b32 {{%c0, %c1}}, [{at}];\n");
    for (body, by_all, expected) in [
        (load("%r7+511"), true, "lane 0, column 512 of tensor memory"),
        (load("%r5"), true, "warp 1 may access lanes 32 to 63"),
        (load("%r7+1048576"), true, "lanes 16 to 47 of tensor memory; warp 0"),
        ("tcgen05.shift.cta_group::1.down [%r5+65536];\n".to_owned(), false, "from lane 1,"),
        ("tcgen05.cp.cta_group::1.128x128b [%r5], %d9;\n".to_owned(), false, "bits 46 to 48"),
    ] {
        let error = Case { by_all, ..Case::new(1, body) }.error();
        assert!(error.contains(expected), "{expected}: {error}");
    }
}
