//! A kernel in compact form, with all that a launch needs.

use super::asynchronous::AsyncOp;
use super::atomics::WideAtomicOp;
use super::call::{CallOp, Function};
use super::inst::{AtomicOp, BarrierOp, Inst, LaneOp, MemoryOp, SystemKind, SystemOp, WarpOp};
use super::tcgen05::TensorOp;
use super::tensor::MatrixOp;
use super::texture::TextureOp;
use crate::timing::segment::Segments;
use partita_model::Dim3;

/// The contents of a row that all warps of a CTA share.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[expect(missing_docs, reason = "the plain ones are the PTX special registers of that name")]
pub enum Constant {
    /// A value known when the module was loaded.
    Bits(u64),
    /// A piece of the parameters.
    Param {
        offset: u32,
        bytes: u8,
        signed: bool,
    },
    NtidX,
    NtidY,
    NtidZ,
    NctaidX,
    NctaidY,
    NctaidZ,
    /// One of a CTA's own values; [`super::registers::Registers::enter`] fills it in.
    OfCta(OfCta),
    NclusteridX,
    NclusteridY,
    NclusteridZ,
    ClusterNctaidX,
    ClusterNctaidY,
    ClusterNctaidZ,
    ClusterNctarank,
    IsExplicitCluster,
    Nwarpid,
    Nsmid,
    Gridid,
    DynamicShared,
    TotalShared,
    /// Where dynamic shared memory begins in the CTA's own shared memory.
    StaticShared,
    /// A place in the CTA's own shared memory.
    SharedAt(u64),
}

/// A value that is a CTA's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[expect(missing_docs, reason = "the PTX special registers of that name")]
pub enum OfCta {
    CtaidX,
    CtaidY,
    CtaidZ,
    ClusteridX,
    ClusteridY,
    ClusteridZ,
    ClusterCtaidX,
    ClusterCtaidY,
    ClusterCtaidZ,
    ClusterCtarank,
    /// No register: what the CTA's rank in its cluster adds to addresses of its shared memory.
    SharedWindow,
}

/// Values that are a CTA's own.
pub const OF_CTA: usize = OfCta::SharedWindow as usize + 1;

/// The facts of a launch for [`Constant::value`].
#[derive(Clone, Copy, Debug)]
pub struct LaunchShape<'a> {
    /// Parameters.
    pub params: &'a [u8],
    /// Extent of a CTA.
    pub block: Dim3,
    /// Extent of the grid.
    pub grid: Dim3,
    /// Extent of a cluster in CTAs.
    pub cluster: Dim3,
    /// Number of SMs.
    pub sm_count: u32,
    /// A number for the grid.
    pub grid_id: u64,
    /// Dynamic shared memory.
    pub dynamic_shared: u32,
    /// Static shared memory.
    pub static_shared: u32,
}

impl Constant {
    /// Its value in a launch.
    #[must_use]
    pub fn value(self, shape: &LaunchShape<'_>) -> u64 {
        match self {
            Constant::Bits(bits) => bits,
            Constant::Param { offset, bytes, signed } => {
                let start = offset as usize;
                let mut value = [0; 8];
                if let Some(from) = shape.params.get(start..start + usize::from(bytes)) {
                    value[..from.len()].copy_from_slice(from);
                }
                let value = u64::from_le_bytes(value);
                if signed { super::lane::sign_extend(value, u32::from(bytes) * 8) } else { value }
            }
            Constant::NtidX => u64::from(shape.block.x),
            Constant::NtidY => u64::from(shape.block.y),
            Constant::NtidZ => u64::from(shape.block.z),
            Constant::NctaidX => u64::from(shape.grid.x),
            Constant::NctaidY => u64::from(shape.grid.y),
            Constant::NctaidZ => u64::from(shape.grid.z),
            Constant::OfCta(_) => 0,
            Constant::NclusteridX => u64::from(shape.grid.x / shape.cluster.x),
            Constant::NclusteridY => u64::from(shape.grid.y / shape.cluster.y),
            Constant::NclusteridZ => u64::from(shape.grid.z / shape.cluster.z),
            Constant::ClusterNctaidX => u64::from(shape.cluster.x),
            Constant::ClusterNctaidY => u64::from(shape.cluster.y),
            Constant::ClusterNctaidZ => u64::from(shape.cluster.z),
            Constant::ClusterNctarank => shape.cluster.count() as u64,
            Constant::IsExplicitCluster => u64::from(shape.cluster.count() > 1),
            Constant::Nwarpid => u64::from((shape.block.count() as u32).div_ceil(32)),
            Constant::Nsmid => u64::from(shape.sm_count),
            Constant::Gridid => shape.grid_id,
            Constant::DynamicShared => u64::from(shape.dynamic_shared),
            Constant::StaticShared => u64::from(shape.static_shared),
            Constant::SharedAt(place) => place,
            Constant::TotalShared => u64::from(shape.dynamic_shared + shape.static_shared),
        }
    }
}

/// A register of the PTX text that holds an integer, and its row.
#[derive(Clone, Debug)]
pub struct NamedRegister {
    /// As spelt.
    pub name: String,
    /// As an operand.
    pub row: u32,
    /// Whether it is one of 64 bits.
    pub wide: bool,
}

/// A parameter of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parameter {
    /// Offset in the parameter space.
    pub offset: u32,
    /// Size in bytes.
    pub bytes: u32,
}

/// Rows of the warp's frame that hold what never changes for a warp.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FixedRows {
    /// `%tid.x`, `.y`, `.z`.
    pub tid: [Option<u32>; 3],
    /// `%laneid`.
    pub laneid: Option<u32>,
}

/// What a kernel's directives say of clusters (PTX ISA, "Cluster Dimension Directives").
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClusterRules {
    /// `.reqnctapercluster`: the extent of its clusters.
    pub required: Option<Dim3>,
    /// `.explicitcluster`: each launch must name an extent.
    pub explicit: bool,
    /// `.maxclusterrank`: the most CTAs.
    pub most: Option<u32>,
}

/// A kernel in compact form.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// Its name.
    pub name: String,
    /// The instructions.
    pub code: Vec<Inst>,
    /// Line of the PTX text, by instruction.
    pub lines: Vec<u32>,
    /// How many PTX instructions come before, by instruction; one longer than the code.
    pub weights: Vec<u32>,
    /// Rows of 32 bits per warp.
    pub frame32: usize,
    /// Rows of 64 bits per warp.
    pub frame64: usize,
    /// Predicates per warp.
    pub predicates: usize,
    /// Rows that all warps share, 32 bits wide.
    pub constants32: Vec<Constant>,
    /// Rows that all warps share, 64 bits wide.
    pub constants64: Vec<Constant>,
    /// The rows of [`Program::constants32`] that hold what is a CTA's own, by [`OfCta`].
    pub cta_rows: [Option<u32>; OF_CTA],
    /// Fixed rows.
    pub fixed: FixedRows,
    /// Side table.
    pub lane_ops: Vec<LaneOp>,
    /// Side table.
    pub memory_ops: Vec<MemoryOp>,
    /// Side table.
    pub atomic_ops: Vec<AtomicOp>,
    /// Side table.
    pub wide_atomics: Vec<WideAtomicOp>,
    /// Side table.
    pub async_ops: Vec<AsyncOp>,
    /// Side table.
    pub warp_ops: Vec<WarpOp>,
    /// Side table.
    pub barrier_ops: Vec<BarrierOp>,
    /// Side table.
    pub system_ops: Vec<SystemOp>,
    /// Side table.
    pub matrix_ops: Vec<MatrixOp>,
    /// Side table.
    pub tensor_ops: Vec<TensorOp>,
    /// Side table.
    pub texture_ops: Vec<TextureOp>,
    /// Side table.
    pub call_ops: Vec<CallOp>,
    /// Functions with code of their own.
    pub functions: Vec<Function>,
    /// Rows of the frame pointer and the stack pointer, where there are calls at run time.
    pub stack_rows: [u32; 2],
    /// Targets of indexed branches.
    pub branch_tables: Vec<Vec<u32>>,
    /// Where the ways of a branch meet, by instruction of the branch ([`super::inst::NOWHERE`]
    /// where never).
    pub meets: Vec<u32>,
    /// Integer registers by name.
    pub registers: Vec<NamedRegister>,
    /// Static shared variables, in order of address.
    pub shared_variables: Vec<SharedVariable>,
    /// Parameters.
    pub params: Vec<Parameter>,
    /// Bytes of static shared memory per CTA.
    pub static_shared: u32,
    /// Bytes of local memory per thread.
    pub local: u32,
    /// The largest CTA, in threads.
    pub max_threads: u32,
    /// The CTA's required extent.
    pub required_block: Option<Dim3>,
    /// Whether it reaches other CTAs of its cluster.
    pub uses_cluster: bool,
    /// Rows of [`Program::constants32`] and of [`Program::constants64`] that are addresses of
    /// shared memory, and where they lie in the CTA's own.
    pub shared_rows: [Vec<(u32, u64)>; 2],
    /// What it says of clusters.
    pub cluster: ClusterRules,
    /// 32-bit registers per thread by the rule that stands in for ptxas.
    pub registers_per_thread: u32,
    /// For timing: straight runs of instructions.
    pub segments: Segments,
}

/// A static shared variable.
#[derive(Clone, Debug)]
pub struct SharedVariable {
    /// Its name.
    pub name: String,
    /// Where it lies in the CTA's shared memory.
    pub start: u32,
    /// Its size.
    pub bytes: u32,
}

impl SharedVariable {
    /// The most words of a variable that a fault's message shows.
    const WORDS: u32 = 16;

    /// Its first 32-bit words, each with its name `variable+offset`.
    pub fn words<'a>(&'a self, shared: &'a [u8]) -> impl Iterator<Item = (String, u64)> + 'a {
        (0..self.bytes.min(4 * Self::WORDS) / 4).filter_map(move |index| {
            let at = (self.start + 4 * index) as usize;
            let word = shared.get(at..at + 4)?.try_into().expect("four bytes");
            Some((format!("{}+{}", self.name, 4 * index), u64::from(u32::from_le_bytes(word))))
        })
    }
}

impl Program {
    /// Notes which rows are addresses of shared memory, once it is known where the dynamic part
    /// begins.
    pub fn list_shared_rows(&mut self) {
        let list = |constants: &[Constant]| {
            let place = |(row, constant): (u32, &Constant)| match *constant {
                Constant::SharedAt(place) => Some((row, place)),
                Constant::StaticShared => Some((row, u64::from(self.static_shared))),
                _ => None,
            };
            (0..).zip(constants).filter_map(place).collect()
        };
        self.shared_rows = [list(&self.constants32), list(&self.constants64)];
    }

    /// Gives back the room in which tables grew: a module may have very many programs.
    pub fn shrink(&mut self) {
        self.code.shrink_to_fit();
        self.lines.shrink_to_fit();
        self.weights.shrink_to_fit();
        self.constants32.shrink_to_fit();
        self.constants64.shrink_to_fit();
        self.lane_ops.shrink_to_fit();
        self.memory_ops.shrink_to_fit();
        self.atomic_ops.shrink_to_fit();
        self.wide_atomics.shrink_to_fit();
        self.async_ops.shrink_to_fit();
        self.warp_ops.shrink_to_fit();
        self.barrier_ops.shrink_to_fit();
        self.system_ops.shrink_to_fit();
        self.matrix_ops.shrink_to_fit();
        self.tensor_ops.shrink_to_fit();
        self.texture_ops.shrink_to_fit();
        self.call_ops.shrink_to_fit();
        self.functions.shrink_to_fit();
        self.branch_tables.shrink_to_fit();
        self.meets.shrink_to_fit();
        self.registers.shrink_to_fit();
        self.shared_variables.shrink_to_fit();
        self.params.shrink_to_fit();
        self.segments.shrink();
    }

    /// Whether it calls `malloc`.
    #[must_use]
    pub fn allocates(&self) -> bool {
        self.system_ops.iter().any(|op| op.kind == SystemKind::Malloc)
    }

    /// Size of the parameter space.
    #[must_use]
    pub fn param_bytes(&self) -> u32 {
        self.params.last().map_or(0, |param| param.offset + param.bytes)
    }
}
