//! Texture and surface instructions (PTX ISA, "Texture Instructions", "Surface Instructions").
//!
//! [`sample`] is what a texture means, [`surface`] what a surface means, [`mod@format`] what a
//! texel's bytes mean. Objects are looked up by the launch's window, so that a number of another
//! session is as good as none. Every thread's texels lie inside the object's range, and the range
//! in one live allocation: that is looked up once per warp and object.
//!
//! # What it leaves alone
//!
//! - Textures bound by name (`.texref`) and samplers apart from textures: `decode` refuses them.
//! - Texels without a resident page: there are none, so every access is resident.

mod format;
mod sample;
mod surface;

use super::inst::{AtomicKind, Inst, Source, Target};
use super::rows::{LANES, lanes};
use super::state::Core;
use super::step::{Env, Trouble};
use super::trace::AccessKind;
use crate::memory::{Memory, TextureObject};
use partita_device::FaultKind;
use partita_model::WindowId;

/// The geometry that an instruction names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "each is the PTX geometry of that name")]
pub enum Geometry {
    D1,
    D2,
    D3,
    A1d,
    A2d,
    Cube,
    Acube,
}

impl Geometry {
    /// Coordinates beside the layer.
    #[must_use]
    pub const fn coordinates(self) -> usize {
        match self {
            Geometry::D1 | Geometry::A1d => 1,
            Geometry::D2 | Geometry::A2d => 2,
            Geometry::D3 | Geometry::Cube | Geometry::Acube => 3,
        }
    }

    /// Whether the first coordinate is a layer's index.
    #[must_use]
    pub const fn has_layer(self) -> bool {
        matches!(self, Geometry::A1d | Geometry::A2d | Geometry::Acube)
    }

    const fn is_cube(self) -> bool {
        matches!(self, Geometry::Cube | Geometry::Acube)
    }
}

/// Which level of detail a texture instruction reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Detail {
    /// The base level. A lane has no neighbours whose coordinates would give a level.
    Base,
    /// The level in the first further operand.
    Level,
    /// The level from the gradients: one in x for each coordinate, then one in y for each.
    Gradients,
}

/// What happens outside of a surface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Boundary {
    /// A fault.
    Trap,
    /// The nearest texel inside.
    Clamp,
    /// Zeros are read, nothing is written.
    Zero,
}

/// The attribute that a query reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "each is the PTX query of that name")]
pub enum Query {
    Width,
    Height,
    Depth,
    ArraySize,
    Levels,
    Normalized,
}

/// The operation of an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TextureKind {
    /// `tex`. Coordinates are 32-bit integers or `f32`. The result has four components, as words or
    /// as pairs of `f16`.
    Sample {
        /// Coordinates are integers.
        integer: bool,
        /// The level.
        detail: Detail,
        /// Results in pairs of `f16`.
        packed: bool,
    },
    /// `tld4` gathers one component.
    Gather {
        /// The component, 0 to 3.
        component: usize,
        /// Results in pairs of `f16`.
        packed: bool,
    },
    /// `suld.b`.
    Load {
        /// Bytes of an element.
        bytes: u32,
    },
    /// `sust.b`.
    Store {
        /// Bytes of an element.
        bytes: u32,
    },
    /// `sured.b`.
    Reduce {
        /// Bytes of the element.
        bytes: u32,
        /// The operation.
        kind: AtomicKind,
        /// Whether the element is signed.
        signed: bool,
    },
    /// `txq`, `suq`.
    Query(Query),
}

/// Side table of [`super::inst::Op::Texture`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TextureOp {
    /// The operation.
    pub kind: TextureKind,
    /// Its geometry.
    pub geometry: Geometry,
    /// Outside of a surface.
    pub boundary: Boundary,
    /// The object.
    pub handle: Source,
    /// The layer, where the geometry has layers.
    pub layer: Source,
    /// The other coordinates.
    pub coordinates: [Source; 3],
    /// Level, gradients, or the values to store.
    pub further: Vec<Source>,
    /// Results.
    pub targets: Vec<Target>,
    /// A predicate that says whether the texels are resident.
    pub resident: Target,
}

impl TextureOp {
    /// Tells the sources (`false`) and targets (`true`) of the operation, for the timing model.
    pub fn rows(&self, mut tell: impl FnMut(Source, bool), of: impl Fn(Target) -> Source) {
        let sources = [self.handle, self.layer].into_iter().chain(self.coordinates);
        sources.chain(self.further.iter().copied()).for_each(|source| tell(source, false));
        self.targets.iter().chain([&self.resident]).for_each(|&target| tell(of(target), true));
    }
}

/// The request of one thread.
struct Ask<'a> {
    op: &'a TextureOp,
    layer: u32,
    coordinates: [u32; 3],
    further: &'a [u64],
}

/// The reason why a thread's access fails.
struct Wrong {
    kind: FaultKind,
    address: Option<u64>,
    detail: String,
}

impl Wrong {
    fn new(kind: FaultKind, detail: String) -> Self {
        Wrong { kind, address: None, detail }
    }
}

type Outcome = Result<(), Box<Trouble>>;

/// Executes the instruction for every warp.
#[inline(never)]
pub fn execute(core: &mut Core<'_>, i: &Inst, env: &mut Env<'_>, pc: usize) -> Outcome {
    let program = env.program;
    let op = &program.texture_ops[i.imm as usize];
    let kind = match op.kind {
        TextureKind::Store { .. } => AccessKind::Store,
        TextureKind::Reduce { .. } => AccessKind::Atomic,
        _ => AccessKind::Load,
    };
    let mut touched = Vec::new();
    for w in 0..core.warps {
        let mask = core.mask(i, w);
        if mask == 0 {
            continue;
        }
        match kind {
            AccessKind::Store => env.trace.counts.global_stores += 1,
            AccessKind::Atomic => env.trace.counts.atomics += 1,
            AccessKind::Load | AccessKind::LoadPastL1 => env.trace.counts.global_loads += 1,
        }
        let mut results = vec![[0_u64; LANES]; op.targets.len()];
        let mut further = vec![0; op.further.len()];
        for lane in lanes(mask) {
            for (value, &source) in further.iter_mut().zip(&op.further) {
                *value = core.get(source, w, lane);
            }
            let ask = Ask {
                op,
                layer: core.get(op.layer, w, lane) as u32,
                coordinates: op.coordinates.map(|source| core.get(source, w, lane) as u32),
                further: &further,
            };
            let handle = core.get(op.handle, w, lane);
            let answer = answer(env.memory, env.window, handle, &ask, &mut touched);
            let values = answer.map_err(|wrong| {
                let Wrong { kind, address, detail } = wrong;
                Box::new(Trouble { kind, warp: w + core.first_warp, lane, pc, address, detail })
            })?;
            for (result, value) in results.iter_mut().zip(values) {
                result[lane] = u64::from_le_bytes(value);
            }
        }
        for (&target, result) in op.targets.iter().zip(&results) {
            core.put_all(target, w, mask, result);
        }
        core.put_all(op.resident, w, mask, &[1; LANES]);
        env.trace.places(kind, &touched, pc);
        touched.clear();
    }
    Ok(())
}

/// One thread's result, element by element. The function appends the accessed places to `touched`.
fn answer(
    memory: &mut Memory,
    window: WindowId,
    handle: u64,
    ask: &Ask<'_>,
    touched: &mut Vec<(u64, u32)>,
) -> Result<[[u8; 8]; 4], Wrong> {
    let object = memory.texture(window, handle).ok_or_else(|| unknown(handle))?;
    let words = |words: [u32; 4]| words.map(|word| u64::from(word).to_le_bytes());
    let outcome = match ask.op.kind {
        TextureKind::Query(query) => return Ok(words([queried(object, query), 0, 0, 0])),
        TextureKind::Sample { packed, .. } | TextureKind::Gather { packed, .. } => {
            let Some(sampler) = &object.sampler else {
                let detail = format!("object {handle:#x} is a surface, which cannot be sampled");
                return Err(Wrong::new(FaultKind::InvalidAddressSpace, detail));
            };
            let bytes = memory.bytes(object.range).ok_or_else(|| gone(memory, object, handle))?;
            let texels = sample::Texels { object, sampler, bytes };
            let colour = match ask.op.kind {
                TextureKind::Gather { component, .. } => texels.gather(ask, component, touched),
                _ => texels.sample(ask, touched),
            };
            if packed { words(format::pack(colour)) } else { words(colour) }
        }
        TextureKind::Load { .. } | TextureKind::Store { .. } | TextureKind::Reduce { .. } => {
            if object.sampler.is_some() {
                let detail = format!("object {handle:#x} is a texture, not a surface");
                return Err(Wrong::new(FaultKind::InvalidAddressSpace, detail));
            }
            let Some(at) = surface::place(object, ask)? else { return Ok([[0; 8]; 4]) };
            let range = object.range;
            if memory.bytes(range).is_none() {
                return Err(gone(memory, object, handle));
            }
            let bytes = memory.bytes_mut(range).expect("looked up above");
            surface::access(bytes, range.start.0, at, ask, touched)
        }
    };
    Ok(outcome)
}

fn queried(object: &TextureObject, query: Query) -> u32 {
    let [width, height, depth] = object.levels[0].extent;
    match query {
        Query::Width => width,
        Query::Height => height,
        Query::Depth | Query::ArraySize => depth,
        Query::Levels => object.levels.len() as u32,
        Query::Normalized => u32::from(object.sampler.is_some_and(|sampler| sampler.normalized)),
    }
}

fn unknown(handle: u64) -> Wrong {
    let detail = format!(
        "the session has no texture or surface object {handle:#x}: it was destroyed, or is no \
         handle"
    );
    Wrong::new(FaultKind::IllegalAddress, detail)
}

fn gone(memory: &Memory, object: &TextureObject, handle: u64) -> Wrong {
    let start = object.range.start.0;
    let detail = format!(
        "the {} bytes of texels of object {handle:#x} are not all live: {}",
        object.range.bytes,
        memory.describe(start)
    );
    Wrong { kind: FaultKind::IllegalAddress, address: Some(start), detail }
}
