//! Copies by tensor maps against copies element by element, which know nothing of rows and pieces.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up fails")]
#![expect(clippy::cast_possible_truncation, reason = "small numbers")]

use partita_emu::direct::{Argument, DirectError, Form, Run, run};
use partita_emu::{Options, Spec, Timing};
use partita_model::tensor_map::{MAX_RANK, TensorMapSpec, TensorPart};
use partita_model::{DeviceAddress, Dim3};

/// Bytes of shared memory that a tile may take.
const ROOM: usize = 16 << 10;

#[derive(Clone, Debug)]
struct Case {
    spec: TensorMapSpec,
    first: Vec<i32>,
    /// Of columns.
    offsets: Vec<i32>,
    /// `first` has a column and four rows of a tensor of two dimensions.
    listed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Load,
    /// The second CTA of a cluster loads for both, and the first shows what it got.
    Multicast,
    /// The second CTA of a pair loads for both, and the first one's mbarrier counts both tiles.
    Pair,
    Store,
    Add,
}

impl Way {
    fn has_two_ctas(self) -> bool {
        matches!(self, Way::Multicast | Way::Pair)
    }
}

/// A tensor of `extents` without gaps but for the innermost dimension, which ends at 16 bytes.
fn case(data_type: u32, extents: &[u64], tile: &[u32], first: &[i32]) -> Case {
    let rank = extents.len();
    let mut spec = TensorMapSpec {
        data_type,
        rank: rank as u32,
        address: DeviceAddress(0),
        extents: [0; MAX_RANK],
        strides: [0; MAX_RANK - 1],
        element_strides: [1; MAX_RANK],
        part: TensorPart::Tiled { extents: [0; MAX_RANK] },
        interleave: 0,
        swizzle: 0,
        promotion: 0,
        fill: 0,
    };
    spec.extents[..rank].copy_from_slice(extents);
    let mut stride = (extents[0] * spec.element_bytes()).next_multiple_of(16);
    for (dimension, extent) in extents.iter().enumerate().skip(1) {
        spec.strides[dimension - 1] = stride;
        stride *= extent;
    }
    let mut whole = [0; MAX_RANK];
    whole[..rank].copy_from_slice(tile);
    spec.part = TensorPart::Tiled { extents: whole };
    Case { spec, first: first.to_vec(), offsets: Vec::new(), listed: false }
}

/// A copy of `pixels` pixels with `channels` channels each, from an image and the corners of its
/// box of pixels.
fn columns(
    whole: (u32, &[u64], &[i32]),
    corners: (&[i32], &[i32]),
    (channels, pixels): (u32, u32),
    offsets: &[i32],
) -> Case {
    let (data_type, extents, first) = whole;
    let mut case = case(data_type, extents, &vec![1; extents.len()], first);
    let padded = |corner: &[i32]| {
        let mut all = [0; MAX_RANK - 2];
        all[..corner.len()].copy_from_slice(corner);
        all
    };
    let (lower, upper) = (padded(corners.0), padded(corners.1));
    case.spec.part = TensorPart::Columns { lower, upper, channels, pixels };
    case.offsets = offsets.to_vec();
    case
}

impl Case {
    fn with(mut self, change: impl Fn(&mut TensorMapSpec)) -> Self {
        change(&mut self.spec);
        self
    }

    /// The same copy, of bytes where its elements have four bits.
    fn in_bytes(&self) -> Case {
        let mut case = self.clone();
        if case.spec.data_type == U4 {
            case.spec.data_type = U8;
            case.spec.extents[0] /= 2;
            case.first[0] /= 2;
            let TensorPart::Tiled { extents } = &mut case.spec.part else { panic!("a tile") };
            extents[0] /= 2;
        }
        case
    }

    /// A copy of bytes as one of pairs of four bits.
    fn of_fours(mut self) -> Case {
        self.spec.data_type = U4;
        self.spec.extents[0] *= 2;
        self.first[0] *= 2;
        let TensorPart::Tiled { extents } = &mut self.spec.part else { panic!("a tile") };
        extents[0] *= 2;
        self
    }

    fn rank(&self) -> usize {
        self.spec.rank as usize
    }

    fn tensor_bytes(&self) -> usize {
        let rank = self.rank();
        match rank {
            1 => (self.spec.extents[0] * self.spec.element_bytes()).next_multiple_of(16) as usize,
            _ => (self.spec.extents[rank - 1] * self.spec.strides[rank - 2]) as usize,
        }
    }

    /// The steps to each element of a column: from all pixels of the box, in their order, those
    /// from the first on.
    fn pixels(&self) -> Vec<Vec<i64>> {
        let TensorPart::Columns { lower, upper, channels, pixels } = self.spec.part else {
            panic!("columns")
        };
        let (rank, first) = (self.rank(), &self.first);
        let images = self.spec.extents[rank - 1].cast_signed() + i64::from(pixels);
        let mut places: Vec<Vec<i64>> = (0..images).map(|image| vec![image]).collect();
        for dimension in (1..rank - 1).rev() {
            let begin = i64::from(lower[dimension - 1]);
            let end = self.spec.extents[dimension].cast_signed() + i64::from(upper[dimension - 1]);
            let step = self.spec.element_strides[dimension] as usize;
            let along: Vec<i64> = (begin..end).step_by(step).collect();
            places = places
                .iter()
                .flat_map(|outer| along.iter().map(move |&at| [outer.as_slice(), &[at]].concat()))
                .collect();
        }
        let start: Vec<i64> = first[1..].iter().rev().map(|&at| i64::from(at)).collect();
        let from = places.iter().position(|place| *place == start).expect("a pixel of the box");
        let found = places[from..from + pixels as usize].iter();
        let elements = found.flat_map(|place| {
            (0..i64::from(channels)).map(move |channel| {
                let mut steps = place.clone();
                for (outer, step) in steps.iter_mut().enumerate() {
                    let dimension = rank - 1 - outer;
                    let offset = self.offsets.get(dimension - 1).copied().unwrap_or(0);
                    let offset = if dimension < rank - 1 { i64::from(offset) } else { 0 };
                    *step += offset - i64::from(first[dimension]);
                }
                steps.push(channel);
                steps
            })
        });
        elements.collect()
    }

    /// The steps to each element of a tile.
    fn steps(&self) -> Vec<Vec<i64>> {
        let TensorPart::Tiled { extents } = self.spec.part else { return self.pixels() };
        if let [_, rows @ ..] = self.first.as_slice()
            && self.listed
        {
            let inner = i64::from(extents[0]);
            let steps = rows.iter().map(|row| i64::from(row - rows[0]));
            return steps.flat_map(|row| (0..inner).map(move |at| vec![row, at])).collect();
        }
        let mut tile = vec![vec![]];
        for dimension in (0..self.rank()).rev() {
            let step = if dimension == 0 { 1 } else { self.spec.element_strides[dimension] };
            let steps: Vec<i64> =
                (0..i64::from(extents[dimension])).step_by(step as usize).collect();
            tile = tile
                .iter()
                .flat_map(|outer: &Vec<i64>| {
                    steps.iter().map(move |&at| [outer.as_slice(), &[at]].concat())
                })
                .collect();
        }
        tile
    }

    /// For each element of the tile: its place in shared memory, and in the tensor if it is inside.
    fn elements(&self) -> Vec<(usize, Option<usize>)> {
        let size = self.spec.element_bytes() as usize;
        let tile = self.steps();
        let places = tile.iter().enumerate().map(|(index, steps)| {
            let byte = index * size;
            let mixed = match self.spec.swizzle {
                1 => byte ^ (byte >> 7 & 1) << 4,
                2 => byte ^ (byte >> 7 & 3) << 4,
                3 => byte ^ (byte >> 7 & 7) << 4,
                // Chunks of 32 bytes go round in four rows; then halves of 16 bytes, too.
                4 | 5 => {
                    let chunk = byte >> 5 & 3 ^ byte >> 7 & 3;
                    let swapped = self.spec.swizzle == 5 && byte >> 7 & 1 == 1;
                    let half = (byte >> 3 & 1) ^ usize::from(swapped);
                    byte & !0x68 | chunk << 5 | half << 3
                }
                6 if byte >> 7 & 1 == 1 => byte ^ 64,
                _ => byte,
            };
            let mut place = Some(0);
            for (outer, &step) in steps.iter().enumerate() {
                let dimension = self.rank() - 1 - outer;
                let at = i64::from(self.first[dimension]) + step;
                let stride = match dimension {
                    0 => size as u64,
                    _ => self.spec.strides[dimension - 1],
                };
                let inside = (0..self.spec.extents[dimension].cast_signed()).contains(&at);
                place = place.filter(|_| inside).map(|place| place + at as usize * stride as usize);
            }
            (mixed, place)
        });
        places.collect()
    }

    fn kernel(&self, way: Way, bytes: usize) -> String {
        let list: Vec<String> = self.first.iter().map(|at| format!("{at}")).collect();
        let moves: Vec<String> =
            (0..list.len()).map(|at| format!("mov.b32 %c{at}, {};", list[at])).collect();
        let names: Vec<String> = (0..list.len()).map(|at| format!("%c{at}")).collect();
        let (rank, tensor) = (self.rank(), format!("[%x0, {{{}}}]", names.join(", ")));
        let of_columns = matches!(self.spec.part, TensorPart::Columns { .. });
        let names: Vec<String> = (0..self.offsets.len()).map(|at| format!("%o{at}")).collect();
        let offsets = match of_columns {
            true => format!(", {{{}}}", names.join(", ")),
            false => String::new(),
        };
        let given = names.iter().zip(&self.offsets);
        let moves = moves.into_iter().chain(given.map(|(to, at)| format!("mov.b16 {to}, {at};")));
        let moves: Vec<String> = moves.collect();
        let (load, store) = match of_columns {
            true => ("im2col", "im2col_no_offs"),
            false if self.listed => ("tile::gather4", "tile::scatter4"),
            false => ("tile", "tile"),
        };
        let copy = match way {
            Way::Load => format!(
                "mbarrier.arrive.expect_tx.shared.b64 _, [barrier], {bytes};\n\
                 cp.async.bulk.tensor.{rank}d.shared::cluster.global.{load}.mbarrier::complete_tx::\
                 bytes [room], {tensor}, [barrier]{offsets};"
            ),
            Way::Multicast => format!(
                "mbarrier.arrive.expect_tx.shared.b64 _, [barrier], {bytes};\n\
                 setp.ne.u32 %p3, %r5, 1; @%p3 bra over; mov.u16 %h0, 3;\n\
                 cp.async.bulk.tensor.{rank}d.shared::cluster.global.{load}.mbarrier::complete_tx::\
                 bytes.multicast::cluster [room], {tensor}, [barrier]{offsets}, %h0;"
            ),
            Way::Pair => format!(
                "setp.eq.u32 %p3, %r5, 0;\n\
                 @%p3 mbarrier.arrive.expect_tx.shared.b64 _, [barrier], {};\n@%p3 bra over;\n\
                 mov.u16 %h0, 3; mov.u32 %r7, barrier; and.b32 %r7, %r7, 0xfeffffff;\n\
                 cp.async.bulk.tensor.{rank}d.shared::cluster.global.{load}.mbarrier::complete_tx::\
                 bytes.multicast::cluster.cta_group::2 [room], {tensor}, [%r7]{offsets}, %h0;",
                2 * bytes
            ),
            Way::Store => format!(
                "cp.async.bulk.tensor.{rank}d.global.shared::cta.{store}.bulk_group {tensor}, \
                 [room];"
            ),
            Way::Add => format!(
                "cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.add.{store}.bulk_group \
                 {tensor}, [room];"
            ),
        };
        let end = match way {
            Way::Pair => {
                "bar.sync 0; setp.ne.u32 %p3, %r5, 0; @%p3 bra far;\n\
                 wait: mbarrier.try_wait.parity.shared.b64 %p1, [barrier], 0;\n\
                 @!%p1 bra wait;\nfar:"
            }
            Way::Load | Way::Multicast => {
                "bar.sync 0; wait: mbarrier.try_wait.parity.shared.b64 %p1, [barrier], 0;\n\
                 @!%p1 bra wait;"
            }
            _ => "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; bar.sync 0;",
        };
        let (directive, meet, leave) = if way.has_two_ctas() {
            let meet = "barrier.cluster.arrive; barrier.cluster.wait;\n";
            (".reqnctapercluster 2", meet, format!("{meet}setp.ne.u32 %p3, %r5, 0; @%p3 ret;"))
        } else {
            ("", "", String::new())
        };
        format!(
            ".version 8.6\n.target {target}\n.address_size 64\n.visible .entry test(\
             .param .align 64 .b8 map[128], .param .u64 p0, .param .u64 p1, .param .u64 p2)\n\
             {directive}\n{{\n\
             .reg .pred %p<4>; .reg .b16 %h<1>, %o<3>; .reg .b32 %r<8>, %c<5>; \
             .reg .b64 %d<4>, %x<4>;\n\
             .shared .align 8 .b64 barrier; .shared .align 128 .b64 copy[16];\n\
             .shared .align 1024 .b8 room[{ROOM}];\n\
             ld.param.u64 %x0, [p0]; ld.param.u64 %x1, [p1]; ld.param.u64 %x2, [p2];\n\
             mov.u32 %r5, %cluster_ctarank;\n\
             mov.u32 %r0, %tid.x; setp.ne.u32 %p0, %r0, 0; {moves}\n\
             // The map in shared memory gets the tensor's address, and goes to global memory.\n\
             mul.lo.u32 %r1, %r0, 8; mov.u32 %r2, copy; add.u32 %r2, %r2, %r1;\n\
             mov.u64 %d0, map; cvt.u64.u32 %d1, %r1; add.u64 %d0, %d0, %d1;\n\
             setp.lt.u32 %p2, %r0, 16;\n@%p2 ld.param.u64 %d2, [%d0];\n\
             @%p2 st.shared.u64 [%r2], %d2;\nbar.sync 0;\n\
             @%p0 bra around;\nmbarrier.init.shared.b64 [barrier], 1;\n\
             tensormap.replace.tile.global_address.shared::cta.b1024.b64 [copy], %x1;\naround:\n\
             bar.sync 0;\n\
             tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.\
             aligned \
             [%x0], [copy], 128;\n\
             fence.proxy.tensormap::generic.acquire.gpu [%x0], 128;\n\
             // Shared memory comes from the third buffer, and goes back there.\n\
             mov.u32 %r3, %r0;\nfill: mul.lo.u32 %r1, %r3, 4; mov.u32 %r2, room; add.u32 %r2, %r2, \
             %r1;\ncvt.u64.u32 %d1, %r1; add.u64 %d1, %d1, %x2; ld.global.u32 %r4, [%d1];\n\
             st.shared.u32 [%r2], %r4; add.u32 %r3, %r3, 32;\n\
             setp.lt.u32 %p1, %r3, {words}; @%p1 bra fill;\nfence.proxy.async; bar.sync 0;\n\
             {meet}@%p0 bra over;\n{copy}\nover:\n{end}\n{leave}\n\
             mov.u32 %r3, %r0;\nback: mul.lo.u32 %r1, %r3, 4; mov.u32 %r2, room; add.u32 %r2, %r2, \
             %r1;\ncvt.u64.u32 %d1, %r1; add.u64 %d1, %d1, %x2; ld.shared.u32 %r4, [%r2];\n\
             st.global.u32 [%d1], %r4; add.u32 %r3, %r3, 32;\n\
             setp.lt.u32 %p1, %r3, {words}; @%p1 bra back;\nret;\n}}\n",
            moves = moves.concat(),
            words = ROOM / 4,
            target = if way == Way::Pair { "sm_100a" } else { "sm_90a" },
        )
    }

    fn attempt(&self, way: Way, timing: Timing) -> Result<[Vec<u8>; 4], DirectError> {
        let whole = self.listed || self.first.len() == self.rank();
        let plain = self.in_bytes();
        let elements = if whole { plain.elements().len() } else { 0 };
        let bytes = elements * plain.spec.element_bytes() as usize;
        let pattern = |count: usize, factor: usize| -> Vec<u8> {
            (0..count).map(|at| (at * factor % 251) as u8 & 0x3f).collect()
        };
        let (tensor, room) = (pattern(self.tensor_bytes(), 7), pattern(ROOM, 11));
        let job = Run {
            ptx: self.kernel(way, bytes).into(),
            kernel: "test".to_owned(),
            grid: Dim3::linear(if way.has_two_ctas() { 2 } else { 1 }),
            block: Dim3::linear(32),
            dynamic_shared: 0,
            arguments: vec![
                Argument::Value(self.spec.packed().to_vec()),
                Argument::Buffer(vec![0; 128]),
                Argument::Buffer(tensor.clone()),
                Argument::Buffer(room.clone()),
            ],
            form: Form::Original,
            spec: Spec::named(if way == Way::Pair { "b200" } else { "h200" }).unwrap(),
            options: Options { timing, seed: 1, ..Options::default() },
        };
        let mut after = run(&job)?.buffers;
        let room_after = after.pop().unwrap();
        Ok([tensor, room, after.pop().unwrap(), room_after])
    }

    /// Copies, and returns the number of elements that were compared.
    fn check(&self, way: Way) -> usize {
        let plain = self.in_bytes();
        let size = plain.spec.element_bytes() as usize;
        self.spec.check().unwrap();
        let timing = if self.rank() == 2 { Timing::On } else { Timing::Off };
        let [tensor, room, tensor_after, room_after] =
            self.attempt(way, timing).unwrap_or_else(|error| panic!("{error}\n{self:?}"));
        let (mut wanted, mut wanted_room) = (tensor.clone(), room.clone());
        let elements = plain.elements();
        for &(there, place) in &elements {
            let value = &room[there..there + size];
            match (way, place) {
                (Way::Load | Way::Multicast | Way::Pair, Some(place)) => {
                    wanted_room[there..there + size].copy_from_slice(&tensor[place..place + size]);
                }
                (Way::Load | Way::Multicast | Way::Pair, None) => {
                    let mut outside = vec![0xff; size];
                    outside[size - 1] = 0x7f;
                    let fill = if self.spec.fill == 1 { outside } else { vec![0; size] };
                    wanted_room[there..there + size].copy_from_slice(&fill);
                }
                (Way::Store, Some(place)) => wanted[place..place + size].copy_from_slice(value),
                (Way::Add, Some(place)) => {
                    let word = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap());
                    let sum = word(value).wrapping_add(word(&tensor[place..place + size]));
                    wanted[place..place + size].copy_from_slice(&sum.to_le_bytes());
                }
                (_, None) => {}
            }
        }
        assert!(tensor_after == wanted, "{way:?}: the tensor differs: {self:?}");
        assert!(room_after == wanted_room, "{way:?}: shared memory differs: {self:?}");
        elements.len()
    }
}

const U8: u32 = 0;
/// `CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B`
const U4: u32 = 13;
const U32: u32 = 2;
const F16: u32 = 6;
const F64: u32 = 8;

fn cases() -> Vec<Case> {
    let mut cases = vec![
        case(U8, &[1000], &[256], &[0]),
        case(F16, &[100, 50], &[64, 16], &[0, 0]),
        case(F16, &[100, 50], &[64, 16], &[37, 45]),
        case(F16, &[100, 50], &[64, 16], &[-3, -2]).with(|spec| spec.fill = 1),
        case(F64, &[30, 20], &[8, 8], &[25, 15]).with(|spec| spec.fill = 1),
        case(U32, &[20, 9, 7], &[8, 4, 4], &[15, 7, 5]),
        case(U32, &[20, 9, 7], &[8, 4, 4], &[100, 0, 0]),
        case(U8, &[40, 6, 5, 4], &[32, 3, 2, 2], &[9, 1, 1, 3]),
        case(F16, &[24, 4, 3, 3, 2], &[16, 3, 2, 2, 2], &[3, 2, 1, -1, 1]),
    ];
    for swizzle in 1..=3 {
        let inner = 16 << swizzle;
        cases.push(
            case(F16, &[200, 64], &[inner / 2, 40], &[8, 5]).with(|spec| spec.swizzle = swizzle),
        );
        cases.push(
            case(U8, &[150, 20, 3], &[inner, 9, 2], &[0, 15, 1])
                .with(|spec| spec.swizzle = swizzle),
        );
    }
    for swizzle in 4..=6 {
        let mixed = |spec: &mut TensorMapSpec| spec.swizzle = swizzle;
        cases.push(case(U32, &[100, 70], &[32, 40], &[8, 5]).with(mixed));
        cases.push(case(F64, &[40, 9, 7], &[16, 5, 4], &[-2, 3, 1]).with(mixed));
    }
    // Every second row, and every third plane.
    cases.push(
        case(U32, &[16, 40, 12], &[8, 12, 7], &[4, 3, 1])
            .with(|spec| spec.element_strides = [1, 2, 3, 1, 1]),
    );
    cases
}

#[test]
fn tiles_come_into_shared_memory() {
    let compared: usize = cases().iter().map(|case| case.check(Way::Load)).sum();
    assert!(compared >= 2_000, "{compared} elements");
}

#[test]
fn tiles_come_to_all_ctas_of_a_cluster() {
    let compared: usize = cases().iter().map(|case| case.check(Way::Multicast)).sum();
    assert!(compared >= 2_000, "{compared} elements");
}

#[test]
fn the_first_mbarrier_of_a_pair_counts_the_tiles_of_both() {
    let compared: usize = cases().iter().map(|case| case.check(Way::Pair)).sum();
    assert!(compared >= 2_000, "{compared} elements");
}

#[test]
fn tiles_go_to_the_tensor() {
    let compared: usize = cases().iter().map(|case| case.check(Way::Store)).sum();
    assert!(compared >= 2_000, "{compared} elements");
}

#[test]
fn tiles_are_added_to_the_tensor() {
    let of_words = |case: &&Case| case.spec.data_type == U32;
    let mut all: Vec<Case> = cases().iter().filter(of_words).cloned().collect();
    all.push(case(U32, &[100, 90], &[32, 64], &[5, 70]).with(|spec| spec.swizzle = 3));
    let compared: usize = all.iter().map(|case| case.check(Way::Add)).sum();
    assert!(compared >= 2_000, "{compared} elements");
}

/// PTX ISA, ".tile::scatter4 and .tile::gather4 modes".
#[test]
fn rows_that_a_list_names() {
    let of_rows = |data_type, extents, inner, first: [i32; 5]| Case {
        listed: true,
        ..case(data_type, extents, &[inner, 1], &first)
    };
    let cases = [
        of_rows(F16, &[100, 50], 64, [0, 7, 3, 49, 0]),
        of_rows(F16, &[100, 50], 64, [37, 2, 2, 50, -1]).with(|spec| spec.fill = 1),
        of_rows(U32, &[90, 30], 32, [-8, 29, 11, 5, 4]).with(|spec| spec.swizzle = 3),
        of_rows(U8, &[300, 20], 128, [16, 1, 18, 3, 6]).with(|spec| spec.swizzle = 3),
        of_rows(F64, &[40, 9], 8, [3, 8, 0, 4, 2]).with(|spec| spec.swizzle = 2),
        of_rows(U8, &[64, 300], 32, [32, 299, 256, 255, 0]).with(|spec| spec.swizzle = 1),
    ];
    let mut compared = 0;
    for case in &cases {
        for way in [Way::Load, Way::Multicast] {
            compared += case.check(way);
        }
        // Two elements of the list at one place have no order.
        if case.first[1] != case.first[2] {
            compared += case.check(Way::Store);
        }
    }
    assert!(compared >= 2_000, "{compared} elements");
}

#[test]
fn numbers_of_four_bits() {
    let cases = [
        case(U8, &[256, 40], &[64, 16], &[0, 3]).of_fours(),
        case(U8, &[100, 50], &[64, 16], &[48, 45]).of_fours(),
        case(U8, &[200, 64], &[128, 20], &[-16, 5]).with(|spec| spec.swizzle = 3).of_fours(),
        case(U8, &[80, 9, 5], &[32, 4, 3], &[32, 7, 3]).with(|spec| spec.swizzle = 1).of_fours(),
    ];
    let compared: usize = cases
        .iter()
        .map(|case| {
            [Way::Load, Way::Multicast, Way::Store]
                .into_iter()
                .map(|way| case.check(way))
                .sum::<usize>()
        })
        .sum();
    assert!(compared >= 2_000, "{compared} bytes");
    let odd = Case { first: vec![3, 0], ..cases[0].clone() };
    let said = odd.attempt(Way::Load, Timing::Off).expect_err("a fault").to_string();
    assert!(said.contains("half a byte"), "{said}");
}

#[test]
fn columns_of_images() {
    let small = |spec: &mut TensorMapSpec| spec.element_strides = [1, 2, 1, 1, 1];
    let of_two = |spec: &mut TensorMapSpec| spec.element_strides = [1, 2, 3, 2, 1];
    // Channels, width, height, depth, images.
    let image = (F16, &[40, 9, 7, 3][..], &[8, -1, 0, 1][..]);
    let loads = [
        columns((U8, &[64, 20, 3], &[0, -2, 0]), (&[-2], &[1]), (32, 30), &[3]),
        columns((U8, &[64, 20, 3], &[16, -2, 2]), (&[-2], &[1]), (32, 40), &[0]).with(small),
        columns(image, (&[-1, -1], &[1, 1]), (16, 100), &[0, 0]).with(|spec| spec.fill = 1),
        columns(image, (&[-1, -1], &[-1, -1]), (32, 90), &[2, 2]).with(|spec| spec.swizzle = 2),
        columns(image, (&[-1, -2], &[0, 0]), (64, 20), &[1, 2]).with(|spec| spec.swizzle = 3),
        columns(
            (U32, &[12, 5, 4, 3, 2], &[4, 1, 0, -1, 0]),
            (&[-1, 0, -1], &[1, 0, 1]),
            (8, 150),
            &[1, 0, 1],
        )
        .with(of_two),
    ];
    let mut compared = 0;
    for case in &loads {
        compared += case.check(Way::Load) + case.check(Way::Multicast);
    }
    let stores = [
        columns((U32, &[12, 9, 7, 3], &[4, 1, 2, 0]), (&[0, 0], &[0, 0]), (8, 100), &[0, 0]),
        columns((U32, &[12, 9, 3], &[0, 1, 0]), (&[1], &[-1]), (12, 40), &[0]),
    ];
    for case in &stores {
        compared += case.check(Way::Store) + case.check(Way::Add);
    }
    assert!(compared >= 2_000, "{compared} elements");
}

#[test]
fn maps_that_do_not_fit_are_faults() {
    let fault = |case: &Case| {
        let error = case.attempt(Way::Load, Timing::Off).expect_err("a fault");
        error.to_string()
    };
    let fine = case(F16, &[100, 50], &[64, 16], &[0, 0]);
    let other = Case { first: vec![0], ..fine.clone() };
    let mut three = fine.clone();
    three.first = vec![0, 0, 0];
    for (case, part) in [
        (fine.clone().with(|spec| spec.strides[0] = 8), "stride is 8"),
        (fine.clone().with(|spec| spec.swizzle = 9), "swizzle is 9"),
        (three, "it has 2 dimensions and the instruction 3"),
        (other, "it has 2 dimensions and the instruction 1"),
        (Case { listed: true, first: vec![0; 5], ..fine.clone() }, "it is of another kind"),
    ] {
        let said = fault(&case);
        assert!(said.contains(part), "no `{part}` in: {said}");
    }
}
