//! The compact form of an instruction, and its side tables.
//!
//! A PTX instruction becomes one or a few compact instructions. An operand is the index of a row.
//! The operand's top bit says where the row lies: in the warp's own frame, or in the part that all
//! warps of a CTA share (immediates, parameters, addresses of symbols). So both kinds of rows are
//! fetched by the same few instructions without a branch.

use super::lane::LaneFn;
use crate::memory::{LOCAL_BASE, PARAM_BASE, SHARED_BASE};

/// Set in an operand that is relative to the warp's frame.
pub const FRAME: u32 = 1 << 31;

/// No program counter: a branch whose ways never meet again.
pub const NOWHERE: u32 = u32::MAX;

/// One instruction of the compact form. 32 bytes.
#[derive(Clone, Copy, Debug)]
pub struct Inst {
    /// The operation.
    pub op: Op,
    /// Operation-specific.
    pub aux: u16,
    /// 0 for none, else `(index of the predicate in the frame + 1) << 1 | negated`.
    pub guard: u32,
    /// Destination.
    pub d: u32,
    /// First source.
    pub a: u32,
    /// Second source.
    pub b: u32,
    /// Third source.
    pub c: u32,
    /// Offset of an address, target of a branch, or index of a side table.
    pub imm: i64,
}

/// Comparisons of `setp`, unordered ones included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "each is the PTX comparison of that name")]
pub enum Compare {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    Equ,
    Neu,
    Ltu,
    Leu,
    Gtu,
    Geu,
    Num,
    Nan,
}

/// What the interpreter's loop knows to do over all lanes at once, and the few things that are not
/// lane by lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
#[expect(missing_docs, reason = "each is the PTX operation of that name; the suffix is the type")]
pub enum Op {
    // 32 bits
    Mov32,
    Add32,
    Sub32,
    Mul32,
    Mad32,
    And32,
    Or32,
    Xor32,
    Not32,
    Shl32,
    ShrU32,
    ShrS32,
    MinS32,
    MinU32,
    MaxS32,
    MaxU32,
    Neg32,
    Abs32,
    Selp32,
    Zext8,
    Zext16,
    Sext8,
    Sext16,
    MulHiU32,
    MulHiS32,
    // 64 bits
    Mov64,
    Add64,
    Sub64,
    Mul64,
    Mad64,
    And64,
    Or64,
    Xor64,
    Not64,
    Shl64,
    ShrU64,
    ShrS64,
    Neg64,
    Selp64,
    MulWideS32,
    MulWideU32,
    MadWideS32,
    MadWideU32,
    S64FromS32,
    U64FromU32,
    Low32,
    // f32
    AddF32,
    SubF32,
    MulF32,
    FmaF32,
    DivF32,
    SqrtF32,
    RcpF32,
    MinF32,
    MaxF32,
    NegF32,
    AbsF32,
    F32FromS32,
    F32FromU32,
    S32FromF32Rz,
    // f64
    AddF64,
    SubF64,
    MulF64,
    FmaF64,
    DivF64,
    SqrtF64,
    NegF64,
    AbsF64,
    F64FromF32,
    F32FromF64,
    F64FromS32,
    // predicates from comparisons
    EqB32,
    NeB32,
    LtS32,
    LeS32,
    GtS32,
    GeS32,
    LtU32,
    LeU32,
    GtU32,
    GeU32,
    EqB64,
    NeB64,
    LtS64,
    LeS64,
    GtS64,
    GeS64,
    LtU64,
    LeU64,
    GtU64,
    GeU64,
    EqF32,
    NeF32,
    LtF32,
    LeF32,
    GtF32,
    GeF32,
    NeuF32,
    LtuF32,
    LeuF32,
    GtuF32,
    GeuF32,
    LtF64,
    LeF64,
    GtF64,
    GeF64,
    // predicates from predicates; `aux` bit 0 negates b
    PMov,
    PAnd,
    POr,
    PXor,
    PNot,
    // lane by lane through a function of the side table
    Lane,
    // memory: `imm` is the offset, `aux` a width code
    LdGlobal,
    LdShared,
    StGlobal,
    StShared,
    /// Any other load or store, through the side table.
    Memory,
    /// An atomic or reduction, through the side table.
    Atomic,
    /// An atomic or reduction of several registers, through the side table.
    AtomicWide,
    /// An mbarrier or a bulk copy, through the side table.
    Async,
    /// An asynchronous copy, done at once: `a` to shared memory from `b` in global memory.
    AsyncCopy,
    // registers that the hardware provides; `aux` says which
    Special32,
    Special64,
    // control
    Bra,
    Brx,
    /// A call at run time, through the side table.
    Call,
    /// The end of a function that has code of its own; `imm` is its index.
    Return,
    /// The point at which diverged threads reconverge.
    Sync,
    Exit,
    Trap,
    Barrier,
    Nanosleep,
    /// Counts instructions and has no other effect.
    Nop,
    /// Orders memory; `aux` is the scope. It has an effect only in weak memory.
    Fence,
    /// `barrier.cluster.arrive`
    ClusterArrive,
    /// `barrier.cluster.wait`
    ClusterWait,
    /// `.sync` operations of a warp, through the side table.
    Warp,
    /// A matrix operation of a warp, through the side table.
    Matrix,
    /// An operation of tensor memory, through the side table.
    Tensor,
    /// A texture or surface operation, through the side table.
    Texture,
    /// A call of the system: `vprintf`, `__assertfail`, `malloc`, `free`.
    System,
}

/// Special registers whose value no constant row holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
#[expect(missing_docs, reason = "each is the PTX special register of that name")]
pub enum Hardware {
    Smid,
    Warpid,
    Clock,
    ClockHi,
    Clock64,
    Globaltimer,
    GlobaltimerLo,
    GlobaltimerHi,
    Activemask,
}

/// Where a lane-by-lane operation reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// No operand; reads as zero.
    None,
    /// A 32-bit row.
    R32(u32),
    /// A 64-bit row.
    R64(u32),
    /// A predicate.
    P(u32),
}

impl Source {
    /// Whether it is the same for all threads because they share its row.
    #[must_use]
    pub fn is_shared(self) -> bool {
        match self {
            Source::None => true,
            Source::R32(row) | Source::R64(row) | Source::P(row) => row & FRAME == 0,
        }
    }
}

/// Where a lane-by-lane operation writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// No result.
    None,
    /// The low 8 bits into a 32-bit row.
    R8(u32),
    /// The low 16 bits into a 32-bit row.
    R16(u32),
    /// A 32-bit row.
    R32(u32),
    /// A 64-bit row.
    R64(u32),
    /// A predicate, from bit 0.
    P(u32),
}

impl Target {
    /// The row that it writes, as a source.
    #[must_use]
    pub const fn source(self) -> Source {
        match self {
            Target::None => Source::None,
            Target::R8(row) | Target::R16(row) | Target::R32(row) => Source::R32(row),
            Target::R64(row) => Source::R64(row),
            Target::P(row) => Source::P(row),
        }
    }
}

/// Side table of [`Op::Lane`].
#[derive(Clone, Copy, Debug)]
pub struct LaneOp {
    /// The function.
    pub function: LaneFn,
    /// Its parameter.
    pub how: u32,
    /// Its sources.
    pub sources: [Source; 3],
    /// Its result.
    pub target: Target,
    /// Whether its result is there as soon as that of a plain operation.
    pub plain: bool,
}

/// A state space as the executor knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Space {
    /// The address decides.
    Generic,
    /// Global and constant memory.
    Global,
    /// The CTA's shared memory.
    Shared,
    /// The thread's local memory.
    Local,
    /// The kernel's parameters.
    Param,
}

impl Space {
    /// An address of this space as a generic one.
    #[must_use]
    pub const fn generic(self, address: u64) -> u64 {
        match self {
            Space::Shared => SHARED_BASE + (address & 0xffff_ffff),
            Space::Local => LOCAL_BASE + (address & 0xffff_ffff),
            Space::Param => PARAM_BASE + (address & 0xffff_ffff),
            Space::Generic | Space::Global => address,
        }
    }
}

/// Side table of [`Op::Memory`].
#[derive(Clone, Debug)]
pub struct MemoryOp {
    /// Load or store.
    pub store: bool,
    /// The space.
    pub space: Space,
    /// Address: a row of 32 or 64 bits.
    pub address: Source,
    /// Added to it.
    pub offset: i64,
    /// Bytes of an element: 1, 2, 4 or 8.
    pub bytes: u32,
    /// Whether a narrower element is sign-extended.
    pub signed: bool,
    /// Rows of the elements; `None` for an element that is dropped (`_`).
    pub elements: Vec<Option<Source>>,
    /// Whether it is a store to constant memory or parameters, which faults.
    pub read_only: bool,
}

/// The operation of an atomic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "each is the PTX operation of that name")]
pub enum AtomicKind {
    Add,
    Min,
    Max,
    Inc,
    Dec,
    And,
    Or,
    Xor,
    Exch,
    Cas,
}

/// How an atomic reads its operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "each is the PTX type of that name")]
pub enum AtomicType {
    U16,
    U32,
    S32,
    U64,
    S64,
    F32,
    F64,
    F16,
    F16x2,
    Bf16,
    Bf16x2,
}

impl AtomicType {
    /// Size in bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        match self {
            AtomicType::U16 | AtomicType::F16 | AtomicType::Bf16 => 2,
            AtomicType::U64 | AtomicType::S64 | AtomicType::F64 => 8,
            _ => 4,
        }
    }
}

/// Side table of [`Op::Atomic`].
#[derive(Clone, Copy, Debug)]
pub struct AtomicOp {
    /// The operation.
    pub kind: AtomicKind,
    /// On what.
    pub ty: AtomicType,
    /// Where.
    pub space: Space,
    /// Address row.
    pub address: Source,
    /// Added to it.
    pub offset: i64,
    /// Operand.
    pub b: Source,
    /// Second operand of `cas`.
    pub c: Source,
    /// Old value; `None` for `red`.
    pub target: Target,
}

/// A collective operation of a warp.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "each is the PTX operation of that name")]
pub enum WarpKind {
    ShflUp,
    ShflDown,
    ShflBfly,
    ShflIdx,
    VoteAll,
    VoteAny,
    VoteUni,
    VoteBallot,
    MatchAny,
    MatchAll,
    ReduxAdd,
    ReduxMinU,
    ReduxMaxU,
    ReduxMinS,
    ReduxMaxS,
    ReduxAnd,
    ReduxOr,
    ReduxXor,
    /// `redux.sync.min.f32` and `max`; NaNs do not count unless `.NaN`.
    ReduxF32 {
        maximum: bool,
        absolute: bool,
        nan: bool,
    },
    BarWarp,
    Elect,
}

/// Side table of [`Op::Warp`].
#[derive(Clone, Copy, Debug)]
pub struct WarpOp {
    /// The operation.
    pub kind: WarpKind,
    /// First source.
    pub a: Source,
    /// Lane, offset or mask of `shfl`.
    pub b: Source,
    /// Clamp and segment mask of `shfl`.
    pub c: Source,
    /// The lanes that take part; `None` for the old forms without `.sync`.
    pub members: Source,
    /// Whether a predicate source is negated.
    pub negated: bool,
    /// Result.
    pub target: Target,
    /// Second result, a predicate.
    pub predicate: Target,
}

/// The work of a barrier beside counting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "each is the PTX operation of that name")]
pub enum BarrierKind {
    Sync,
    Arrive,
    RedPopc,
    RedAnd,
    RedOr,
}

/// Side table of [`Op::Barrier`].
#[derive(Clone, Copy, Debug)]
pub struct BarrierOp {
    /// The operation.
    pub kind: BarrierKind,
    /// Which barrier: a row.
    pub id: Source,
    /// How many threads take part: a row, or `None` for all of the CTA.
    pub threads: Source,
    /// Predicate of a reduction.
    pub value: Source,
    /// Whether it is negated.
    pub negated: bool,
    /// Result of a reduction.
    pub target: Target,
}

/// A system call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SystemKind {
    /// `vprintf(format, arguments)`.
    Vprintf,
    /// `__assertfail(message, file, line, function, charSize)`.
    AssertFail,
    /// `malloc(size)`.
    Malloc,
    /// `free(pointer)`.
    Free,
    /// `alloca(size, stack pointer, alignment)`.
    Alloca,
}

/// Side table of [`Op::System`].
#[derive(Clone, Copy, Debug)]
pub struct SystemOp {
    /// Which.
    pub kind: SystemKind,
    /// Arguments: rows.
    pub arguments: [Source; 4],
    /// Result.
    pub target: Target,
}
