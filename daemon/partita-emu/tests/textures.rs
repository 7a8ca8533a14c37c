//! Textures and surfaces of every geometry against the formulas of the CUDA C++ Programming Guide
//! ("Texture Fetching"), written out for a texture that goes on for ever.
//!
//! Coordinates are multiples of 1/256 and sizes are powers of two, so filter weights and weighted
//! sums are exact.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up fails")]
#![expect(clippy::float_cmp, reason = "all sums are exact")]
#![expect(
    clippy::cast_possible_truncation,
    reason = "small whole numbers, and the low bits of words"
)]

use partita_device::{
    Activity, AddressRange, Device, Event, GridSpec, Horizon, Outcome, Textures, Work,
};
use partita_emu::{EmulatedGpu, Options, Spec, Timing};
use partita_model::texture::{
    AddressMode, ArrayKind, ArrayShape, ChannelType, FilterMode, Sampler, TexelFormat, TexelSource,
    TextureSpec,
};
use partita_model::{DeviceAddress, Dim3, ModuleId, OperationId, StreamId, WindowId};
use std::fmt::Write;

const FAR: Horizon = Horizon { until: None, warp_instructions: u64::MAX };
const POINTS: usize = 256;
/// Width, height, and depth or layers.
const SIZE: [u32; 3] = [16, 8, 4];

/// A geometry: its name in PTX, the array's kind, its dimensions, and the coordinates as PTX wants
/// them.
struct Geometry {
    name: &'static str,
    kind: ArrayKind,
    dimensions: usize,
    floats: &'static str,
    integers: &'static str,
}

const GEOMETRIES: [Geometry; 5] = [
    Geometry { name: "1d", kind: ArrayKind::Line, dimensions: 1, floats: "%f0", integers: "%r0" },
    Geometry {
        name: "2d",
        kind: ArrayKind::Plane,
        dimensions: 2,
        floats: "%f0, %f1",
        integers: "%r0, %r1",
    },
    Geometry {
        name: "3d",
        kind: ArrayKind::Volume,
        dimensions: 3,
        floats: "%f0, %f1, %f2, %f2",
        integers: "%r0, %r1, %r2, %r2",
    },
    Geometry {
        name: "a1d",
        kind: ArrayKind::LineLayers,
        dimensions: 1,
        floats: "%r3, %f0",
        integers: "%r3, %r0",
    },
    Geometry {
        name: "a2d",
        kind: ArrayKind::PlaneLayers,
        dimensions: 2,
        floats: "%r3, %f0, %f1, %f1",
        integers: "%r3, %r0, %r1, %r1",
    },
];

impl Geometry {
    fn layered(&self) -> bool {
        matches!(self.kind, ArrayKind::LineLayers | ArrayKind::PlaneLayers)
    }

    fn extent(&self) -> [u32; 3] {
        let [width, height, depth] = SIZE;
        let height = if self.dimensions > 1 { height } else { 1 };
        [width, height, if self.layered() || self.dimensions > 2 { depth } else { 1 }]
    }
}

/// One kernel for each instruction: a point of four words in, four words out.
fn module() -> String {
    let mut text = ".version 8.3\n.target sm_90\n.address_size 64\n".to_owned();
    let mut kernel = |name: &str, body: &str| {
        write!(
            text,
            ".visible .entry {name}(.param .u64 object, .param .u64 in, .param .u64 \
             out)\n{{\n.reg .b32 %r<8>, %f<8>, %v<4>;\n\
             .reg .b64 %t, %d<4>;\nld.param.u64 %t, [object]; ld.param.u64 %d0, [in]; \
             ld.param.u64 %d1, [out];\n\
             mov.u32 %r4, %tid.x; mul.wide.u32 %d2, %r4, 16; add.u64 %d0, %d0, %d2; add.u64 %d1, \
             %d1, %d2;\n\
             ld.global.v4.b32 {{%f0, %f1, %f2, %r3}}, [%d0];\nmov.b32 %r0, %f0; mov.b32 %r1, %f1; \
             mov.b32 %r2, %f2;\n\
             mov.b32 %v0, 0; mov.b32 %v1, 0; mov.b32 %v2, 0; mov.b32 %v3, 0;\n{body}\n\
             st.global.v4.b32 [%d1], {{%v0, %v1, %v2, %v3}};\nret;\n}}\n"
        )
        .unwrap();
    };
    for Geometry { name, floats, integers, .. } in &GEOMETRIES {
        kernel(
            &format!("sample_{name}"),
            &format!("tex.{name}.v4.f32.f32 {{%v0, %v1, %v2, %v3}}, [%t, {{{floats}}}];"),
        );
        kernel(
            &format!("fetch_{name}"),
            &format!("tex.{name}.v4.u32.s32 {{%v0, %v1, %v2, %v3}}, [%t, {{{integers}}}];"),
        );
        for boundary in ["clamp", "zero"] {
            // The first coordinate of a surface counts bytes.
            let bytes = "shl.b32 %r0, %r0, 2;";
            kernel(
                &format!("load_{name}_{boundary}"),
                &format!("{bytes}\nsuld.b.{name}.b32.{boundary} {{%v0}}, [%t, {{{integers}}}];"),
            );
            kernel(
                &format!("store_{name}_{boundary}"),
                &format!(
                    "add.u32 %r5, %r4, 1000;\n{bytes}\nsust.b.{name}.b32.{boundary} [%t, \
                     {{{integers}}}], {{%r5}};"
                ),
            );
        }
    }
    for (index, component) in ["r", "g", "b", "a"].into_iter().enumerate() {
        kernel(
            &format!("gather_{index}"),
            &format!("tld4.{component}.2d.v4.f32.f32 {{%v0, %v1, %v2, %v3}}, [%t, {{%f0, %f1}}];"),
        );
    }
    kernel("level", "tex.level.2d.v4.f32.f32 {%v0, %v1, %v2, %v3}, [%t, {%f0, %f1}], %f2;");
    for query in ["width", "height", "depth", "num_mipmap_levels", "normalized_coords"] {
        kernel(&format!("ask_{query}"), &format!("txq.{query}.b32 %v0, [%t];"));
    }
    text
}

struct World {
    gpu: EmulatedGpu,
    base: u64,
    operations: u64,
    random: u64,
    checks: usize,
}

impl World {
    fn new() -> Self {
        let options = Options { seed: 5, timing: Timing::Off, ..Options::default() };
        let mut gpu = EmulatedGpu::new(Spec::named("cd-search-24").unwrap(), options);
        let base = gpu.reserve(WindowId(1), 64 << 20).unwrap().0;
        gpu.load_module(ModuleId(1), WindowId(1), module().into()).unwrap();
        gpu.create_stream(StreamId(0)).unwrap();
        let mut events = Vec::new();
        gpu.poll(FAR, &mut events);
        let [Event::ModuleLoaded { facts, .. }] = &events[..] else { panic!("{events:?}") };
        assert_eq!(facts.refused, []);
        let range = AddressRange { start: DeviceAddress(base), bytes: 1 << 20 };
        gpu.allocate(WindowId(1), range).unwrap();
        World { gpu, base, operations: 0, random: 0x9e37_79b9_7f4a_7c15, checks: 0 }
    }

    /// Marsaglia's xorshift.
    fn below(&mut self, bound: u32) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 32) as u32 % bound
    }

    fn array(
        &mut self,
        kind: ArrayKind,
        format: TexelFormat,
        extent: [u32; 3],
        levels: u32,
        bytes: &[u8],
    ) -> DeviceAddress {
        let shape = ArrayShape::new(kind, format, extent, levels).unwrap();
        assert_eq!(shape.bytes(), bytes.len() as u64);
        let array = self.gpu.create_array(WindowId(1), &shape).unwrap();
        self.gpu.poke(array, bytes).unwrap();
        array
    }

    fn object(&mut self, array: DeviceAddress, levels: u32, sampler: Option<Sampler>) -> u64 {
        let source = TexelSource::Array { array, first_level: 0, levels };
        self.gpu.create_texture(WindowId(1), &TextureSpec { source, sampler }).unwrap()
    }

    fn run(&mut self, kernel: &str, object: u64, points: &[[u32; 4]]) -> Vec<[u32; 4]> {
        let bytes: Vec<u8> = points.iter().flatten().flat_map(|word| word.to_le_bytes()).collect();
        self.gpu.poke(DeviceAddress(self.base), &bytes).unwrap();
        let out = self.base + (512 << 10);
        self.operations += 1;
        let launch = GridSpec {
            cooperative: false,
            cluster: Dim3::linear(1),
            module: ModuleId(1),
            kernel: kernel.into(),
            grid: Dim3::linear(1),
            block: Dim3::linear(points.len() as u32),
            dynamic_shared: 0,
            params: [object, self.base, out].iter().flat_map(|word| word.to_le_bytes()).collect(),
            access: vec![AddressRange { start: DeviceAddress(self.base), bytes: 64 << 20 }],
        };
        self.gpu.enqueue(StreamId(0), OperationId(self.operations), Work::Launch(launch)).unwrap();
        let mut events = Vec::new();
        while self.gpu.poll(FAR, &mut events) != Activity::Idle {}
        for event in events {
            if let Event::Done { outcome, .. } = event {
                assert_eq!(outcome, Outcome::Complete, "{kernel}");
            }
        }
        let mut found = vec![0; 16 * points.len()];
        self.gpu.peek(DeviceAddress(out), &mut found).unwrap();
        let words: Vec<u32> =
            found.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
        words.as_chunks::<4>().0.to_vec()
    }
}

/// A texel's index in a texture that goes on for ever; `None` is the border.
fn wrapped(index: i64, size: u32, mode: AddressMode, normalized: bool) -> Option<u32> {
    let size = i64::from(size);
    let inside = (0..size).contains(&index);
    let place = match mode {
        AddressMode::Border => return inside.then_some(index as u32),
        AddressMode::Wrap if normalized => (index % size + size) % size,
        AddressMode::Mirror if normalized => {
            let folded = (index % (2 * size) + 2 * size) % (2 * size);
            folded.min(2 * size - 1 - folded)
        }
        _ => index.max(0).min(size - 1),
    };
    Some(place as u32)
}

const MODES: [AddressMode; 4] =
    [AddressMode::Wrap, AddressMode::Clamp, AddressMode::Mirror, AddressMode::Border];

/// The value of a channel: small whole numbers that differ.
fn value(at: [u32; 3], channel: u32) -> f32 {
    ((at[0] * 7 + at[1] * 31 + at[2] * 57 + channel * 101) % 251) as f32
}

fn texels(extent: [u32; 3]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for z in 0..extent[2] {
        for y in 0..extent[1] {
            for x in 0..extent[0] {
                for channel in 0..4 {
                    bytes.extend(value([x, y, z], channel).to_le_bytes());
                }
            }
        }
    }
    bytes
}

/// What sampling at `at` (in 256ths of a texel) gives for a channel.
fn sampled(geometry: &Geometry, sampler: &Sampler, at: [i64; 3], layer: u32, channel: u32) -> f32 {
    let extent = geometry.extent();
    let layer = layer.min(extent[2] - 1);
    let colour = |index: [i64; 3]| -> f64 {
        let mut place = [0, 0, if geometry.layered() { layer } else { 0 }];
        for axis in 0..geometry.dimensions {
            match wrapped(index[axis], extent[axis], sampler.address[axis], sampler.normalized) {
                Some(inside) => place[axis] = inside,
                None => return f64::from(sampler.border[channel as usize].get()),
            }
        }
        f64::from(value(place, channel))
    };
    if sampler.filter == FilterMode::Point {
        return colour(at.map(|at| at.div_euclid(256))) as f32;
    }
    let between =
        at.map(|at| ((at - 128).div_euclid(256), (at - 128).rem_euclid(256) as f64 / 256.0));
    let mut sum = 0.0;
    for corner in 0..1_usize << geometry.dimensions {
        let mut weight = 1.0;
        let mut index = [0; 3];
        for axis in 0..geometry.dimensions {
            let upper = corner >> axis & 1;
            index[axis] = between[axis].0 + upper as i64;
            weight *= if upper == 1 { between[axis].1 } else { 1.0 - between[axis].1 };
        }
        sum += weight * colour(index);
    }
    sum as f32
}

#[test]
fn sampling() {
    let mut world = World::new();
    let format = TexelFormat::new(ChannelType::F32, 4).unwrap();
    for geometry in &GEOMETRIES {
        let extent = geometry.extent();
        let array = world.array(geometry.kind, format, extent, 1, &texels(extent));
        for address in MODES {
            for filter in [FilterMode::Point, FilterMode::Linear] {
                for normalized in [false, true] {
                    let border = [3.0_f32, 5.0, 7.0, 9.0].map(Into::into);
                    let sampler = Sampler {
                        address: [address; 3],
                        filter,
                        normalized,
                        border,
                        ..Sampler::default()
                    };
                    let object = world.object(array, 1, Some(sampler));
                    let at: Vec<([i64; 3], u32)> = (0..POINTS)
                        .map(|_| {
                            let at = SIZE.map(|size| {
                                i64::from(world.below(3 * size * 256)) - i64::from(size) * 256
                            });
                            (at, world.below(SIZE[2] + 2))
                        })
                        .collect();
                    let points: Vec<[u32; 4]> = at
                        .iter()
                        .map(|(at, layer)| {
                            let size =
                                |axis: usize| if normalized { extent[axis] as f32 } else { 1.0 };
                            let bits =
                                |axis: usize| (at[axis] as f32 / 256.0 / size(axis)).to_bits();
                            [bits(0), bits(1), bits(2), *layer]
                        })
                        .collect();
                    let found = world.run(&format!("sample_{}", geometry.name), object, &points);
                    for ((at, layer), found) in at.iter().zip(found) {
                        for (channel, found) in (0..4).zip(found) {
                            let wanted = sampled(geometry, &sampler, *at, *layer, channel);
                            assert_eq!(
                                f32::from_bits(found),
                                wanted,
                                "{} {address:?} {filter:?} normalized: {normalized} at {at:?}, \
                                 layer {layer}, channel {channel}",
                                geometry.name
                            );
                            world.checks += 1;
                        }
                    }
                }
            }
        }
    }
    println!("textures: {} checks", world.checks);
    assert!(world.checks >= 2000);
}

#[test]
fn formats_and_integer_coordinates() {
    let mut world = World::new();
    type Read = fn(u32) -> f32;
    let formats: [(ChannelType, Read); 5] = [
        (ChannelType::U8, |x| x as f32 / 255.0),
        (ChannelType::S8, |x| (f32::from(x as u8 as i8) / 127.0).max(-1.0)),
        (ChannelType::U16, |x| x as f32 / 65_535.0),
        (ChannelType::S16, |x| (f32::from(x as u16 as i16) / 32_767.0).max(-1.0)),
        (ChannelType::F16, |x| half::f16::from_bits(x as u16).to_f32()),
    ];
    for geometry in &GEOMETRIES {
        let extent = geometry.extent();
        for (channel, read) in formats {
            for channels in [1, 2, 4] {
                let format = TexelFormat::new(channel, channels).unwrap();
                let count = extent.iter().product::<u32>() * format.bytes();
                let bytes: Vec<u8> = (0..count).map(|_| world.below(256) as u8).collect();
                let array = world.array(geometry.kind, format, extent, 1, &bytes);
                for integers in [true, false] {
                    let sampler = Sampler {
                        address: [AddressMode::Clamp; 3],
                        integers,
                        ..Sampler::default()
                    };
                    let object = world.object(array, 1, Some(sampler));
                    let points: Vec<[u32; 4]> = (0..64)
                        .map(|_| {
                            let [x, y, z] =
                                SIZE.map(|size| world.below(2 * size).wrapping_sub(size / 2));
                            [x, y, z, world.below(SIZE[2])]
                        })
                        .collect();
                    let found = world.run(&format!("fetch_{}", geometry.name), object, &points);
                    for (point, found) in points.iter().zip(found) {
                        let mut place = [0, 0, if geometry.layered() { point[3] } else { 0 }];
                        for axis in 0..geometry.dimensions {
                            place[axis] =
                                (point[axis] as i32).clamp(0, extent[axis] as i32 - 1) as u32;
                        }
                        let texel = (place[2] * extent[1] + place[1]) * extent[0] + place[0];
                        let size = channel.bytes() as usize;
                        let floats = !integers || channel.is_float();
                        for (index, found) in found.into_iter().enumerate() {
                            // A channel that is not there is 0, and alpha is 1.
                            let wanted = if index < channels as usize {
                                let start = (texel * format.bytes()) as usize + index * size;
                                let mut word = [0; 4];
                                word[..size].copy_from_slice(&bytes[start..start + size]);
                                let word = u32::from_le_bytes(word);
                                match channel {
                                    _ if floats => read(word).to_bits(),
                                    ChannelType::S8 => i32::from(word as u8 as i8).cast_unsigned(),
                                    ChannelType::S16 => {
                                        i32::from(word as u16 as i16).cast_unsigned()
                                    }
                                    _ => word,
                                }
                            } else {
                                let alpha = if floats { 1.0_f32.to_bits() } else { 1 };
                                if index == 3 { alpha } else { 0 }
                            };
                            let both_nan =
                                f32::from_bits(found).is_nan() && f32::from_bits(wanted).is_nan();
                            assert!(
                                found == wanted || floats && both_nan,
                                "{} {channel:?}x{channels} integers: {integers} at {point:?}: \
                                 {found:#x}, wanted {wanted:#x}",
                                geometry.name
                            );
                            world.checks += 1;
                        }
                    }
                }
            }
        }
    }
    println!("formats of textures: {} checks", world.checks);
    assert!(world.checks >= 2000);
}

#[test]
fn gathers_levels_and_queries() {
    let mut world = World::new();
    let format = TexelFormat::new(ChannelType::F32, 4).unwrap();
    let extent = [SIZE[0], SIZE[1], 1];
    let shape = ArrayShape::new(ArrayKind::Plane, format, extent, 4).unwrap();
    // Each level's texels tell the level.
    let bytes: Vec<u8> = (0..4)
        .flat_map(|level| {
            let count = shape.level_bytes(level) / 4;
            (0..count).flat_map(move |_| (level as f32 * 10.0).to_le_bytes()).collect::<Vec<u8>>()
        })
        .collect();
    let levels = world.array(ArrayKind::Plane, format, extent, 4, &bytes);
    for level_filter in [FilterMode::Point, FilterMode::Linear] {
        let sampler = Sampler {
            normalized: true,
            level_filter,
            level_max: 100.0.into(),
            ..Sampler::default()
        };
        let object = world.object(levels, 4, Some(sampler));
        let details: Vec<f32> = (0..512).map(|step| step as f32 / 64.0 - 2.0).collect();
        let points: Vec<[u32; 4]> =
            details.iter().map(|detail| [0, 0, detail.to_bits(), 0]).collect();
        for (detail, found) in details.iter().zip(world.run("level", object, &points)) {
            let inside = detail.clamp(0.0, 3.0);
            let nearest =
                if level_filter == FilterMode::Linear { inside } else { (inside + 0.5).floor() };
            assert_eq!(f32::from_bits(found[0]), nearest * 10.0, "{level_filter:?} {detail}");
            world.checks += 1;
        }
    }
    let plane = world.array(ArrayKind::Plane, format, extent, 1, &texels(extent));
    let sampler = Sampler { address: [AddressMode::Clamp; 3], ..Sampler::default() };
    let object = world.object(plane, 1, Some(sampler));
    let at: Vec<[i64; 2]> = (0..POINTS)
        .map(|_| {
            [0, 1].map(|axis| {
                i64::from(world.below(2 * SIZE[axis] * 256)) - i64::from(SIZE[axis]) * 128
            })
        })
        .collect();
    let points: Vec<[u32; 4]> = at
        .iter()
        .map(|at| [(at[0] as f32 / 256.0).to_bits(), (at[1] as f32 / 256.0).to_bits(), 0, 0])
        .collect();
    for channel in 0..4 {
        for (at, found) in at.iter().zip(world.run(&format!("gather_{channel}"), object, &points)) {
            let [i, j] = at.map(|at| (at - 128).div_euclid(256));
            // Counterclockwise from the lower left one (PTX ISA, `tld4`).
            for ((x, y), found) in
                [(i, j + 1), (i + 1, j + 1), (i + 1, j), (i, j)].into_iter().zip(found)
            {
                let inside = |at: i64, size: u32| at.clamp(0, i64::from(size) - 1) as u32;
                let wanted = value([inside(x, SIZE[0]), inside(y, SIZE[1]), 0], channel);
                assert_eq!(f32::from_bits(found), wanted, "gather {channel} at {at:?}");
                world.checks += 1;
            }
        }
    }
    let volume = world.array(ArrayKind::Volume, format, SIZE, 1, &texels(SIZE));
    let object = world.object(volume, 1, Some(Sampler { normalized: true, ..Sampler::default() }));
    for (query, wanted) in [
        ("width", 16),
        ("height", 8),
        ("depth", 4),
        ("num_mipmap_levels", 1),
        ("normalized_coords", 1),
    ] {
        assert_eq!(world.run(&format!("ask_{query}"), object, &[[0; 4]])[0][0], wanted, "{query}");
    }
    println!("gathers and levels: {} checks", world.checks);
    assert!(world.checks >= 2000);
}

#[test]
fn surfaces() {
    let mut world = World::new();
    let format = TexelFormat::new(ChannelType::U32, 1).unwrap();
    for geometry in &GEOMETRIES {
        let extent = geometry.extent();
        let count = extent.iter().product::<u32>() as usize;
        for boundary in ["clamp", "zero"] {
            let texels: Vec<u32> = (0..count as u32).map(|index| index + 1).collect();
            let bytes: Vec<u8> = texels.iter().flat_map(|texel| texel.to_le_bytes()).collect();
            let array = world.array(geometry.kind, format, extent, 1, &bytes);
            let object = world.object(array, 1, None);
            let points: Vec<[u32; 4]> = (0..POINTS)
                .map(|_| {
                    let [x, y, z] = SIZE.map(|size| world.below(2 * size).wrapping_sub(size / 2));
                    [x, y, z, world.below(SIZE[2])]
                })
                .collect();
            let place = |point: &[u32; 4]| {
                let third = if geometry.layered() { point[3] } else { point[2] };
                let mut at = [0; 3];
                for (axis, at) in at.iter_mut().enumerate() {
                    if extent[axis] == 1 {
                        continue;
                    }
                    let asked = [point[0], point[1], third][axis] as i32;
                    let inside = asked.clamp(0, extent[axis] as i32 - 1);
                    if asked != inside && boundary == "zero" {
                        return None;
                    }
                    *at = inside as u32;
                }
                Some(((at[2] * extent[1] + at[1]) * extent[0] + at[0]) as usize)
            };
            let found = world.run(&format!("load_{}_{boundary}", geometry.name), object, &points);
            for (point, found) in points.iter().zip(found) {
                let wanted = place(point).map_or(0, |place| texels[place]);
                assert_eq!(found[0], wanted, "{} {boundary} at {point:?}", geometry.name);
                world.checks += 1;
            }
            // Stores: of those that meet, one wins.
            world.run(&format!("store_{}_{boundary}", geometry.name), object, &points);
            let mut bytes = vec![0; 4 * count];
            world.gpu.peek(array, &mut bytes).unwrap();
            for (index, found) in bytes.as_chunks::<4>().0.iter().enumerate() {
                let found = u32::from_le_bytes(*found);
                let mut writers =
                    (0..POINTS).filter(|&writer| place(&points[writer]) == Some(index)).peekable();
                let wanted = if writers.peek().is_none() {
                    found == texels[index]
                } else {
                    writers.any(|writer| found == 1000 + writer as u32)
                };
                assert!(wanted, "{} {boundary}: texel {index} is {found}", geometry.name);
                world.checks += 1;
            }
        }
    }
    println!("surfaces: {} checks", world.checks);
    assert!(world.checks >= 2000);
}
