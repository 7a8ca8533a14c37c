//! Features that each PTX ISA version since 6.0 introduced (PTX ISA, "Release Notes" and the notes
//! of each instruction).

use super::OLDEST;
use crate::ir::{Mod, Names, Op, Version};

/// A version as the tables give it.
pub(super) const fn version(major: u32, minor: u32) -> Option<Version> {
    Some(Version { major, minor })
}

/// The version that knows a target; `None` where this table does not.
pub(super) fn target(text: &str) -> Option<Version> {
    Some(match text {
        "sm_100" | "sm_100a" | "sm_101" | "sm_101a" => Version { major: 8, minor: 6 },
        "sm_120" | "sm_120a" => Version { major: 8, minor: 7 },
        "sm_90a" => Version { major: 8, minor: 0 },
        "sm_89" | "sm_90" => Version { major: 7, minor: 8 },
        "sm_87" => Version { major: 7, minor: 4 },
        "sm_86" => Version { major: 7, minor: 1 },
        "sm_80" => Version { major: 7, minor: 0 },
        "sm_75" => Version { major: 6, minor: 3 },
        "sm_72" => Version { major: 6, minor: 1 },
        "sm_70" | "sm_60" | "sm_61" | "sm_62" | "sm_50" | "sm_52" | "sm_53" | "sm_30" | "sm_32"
        | "sm_35" | "sm_37" | "sm_20" => OLDEST,
        _ => match text {
            "sm_103" | "sm_103a" | "sm_121" | "sm_121a" | "sm_100f" | "sm_101f" | "sm_103f"
            | "sm_120f" | "sm_121f" => Version { major: 8, minor: 8 },
            "sm_88" | "sm_110" | "sm_110a" | "sm_110f" => Version { major: 9, minor: 0 },
            _ => return None,
        },
    })
}

/// A directive of a function's head.
pub(super) fn directive(word: &str) -> Option<Version> {
    match word {
        "maxntid" | "reqntid" | "minnctapersm" | "maxnctapersm" | "maxnreg" | "pragma" => {
            Some(OLDEST)
        }
        "noreturn" => version(6, 4),
        "reqnctapercluster" | "explicitcluster" | "maxclusterrank" => version(7, 8),
        "blocksareclusters" => version(9, 0),
        _ => None,
    }
}

/// The content of an `.attribute`.
pub(super) fn attribute(text: &str) -> Option<Version> {
    (text == ".managed").then_some(OLDEST)
}

/// A `.pragma`, with its quotes (PTX ISA, "Descriptions of .pragma Strings").
pub(super) fn pragma(text: &str) -> Option<Version> {
    match text.trim_matches('"').split_whitespace().next()? {
        "nounroll" => Some(OLDEST),
        "used_bytes_mask" => version(8, 3),
        _ => None,
    }
}

/// The version that knows an instruction with its modifiers; `None` where the tables do not.
pub(super) fn form(text: &str) -> Option<Version> {
    let words: Vec<&str> = text.split('.').collect();
    let op = words[0];
    let mut known = vec![false; words.len()];
    let mut least = OLDEST;
    for &(rule, major, minor) in RULES {
        let mut parts = rule.split('.');
        let first = parts.next().unwrap_or_default();
        if first != "*" && first != op {
            continue;
        }
        let places: Option<Vec<usize>> = parts
            .map(|part| words[1..].iter().position(|word| *word == part).map(|at| at + 1))
            .collect();
        let Some(places) = places else { continue };
        least = least.max(Version { major, minor });
        known[0] |= first == op;
        places.into_iter().for_each(|at| known[at] = true);
    }
    // A word of the front end's tables that no rule names is older than 6.0.
    let mut names = Names::default();
    known[0] |= Op::from_text(op).is_some();
    let all = words.iter().zip(known).skip(1).all(|(word, known)| {
        known
            || OLD_SHAPES.contains(word)
            || !matches!(Mod::from_text(word, &mut names), Mod::Other(_))
    });
    let known_op = Op::from_text(op).is_some() && !UNTABLED.contains(&op);
    (all && known_op).then_some(least)
}

/// Families whose versions this table does not keep.
const UNTABLED: [&str; 2] = ["tcgen05", "clusterlaunchcontrol"];

/// Words that are carried as text and older than 6.0.
const OLD_SHAPES: [&str; 13] =
    ["r", "g", "b", "a", "v", "h0", "h1", "b0", "b1", "b2", "b3", "array_size", "num_samples"];

/// An opcode, or `*`, with words that an instruction must all have, and the version that it then
/// needs.
#[rustfmt::skip]
const RULES: &[(&str, u32, u32)] = &[
    // Opcodes.
    ("activemask", 6, 2), ("alloca", 7, 3), ("stacksave", 7, 3), ("stackrestore", 7, 3),
    ("applypriority", 7, 4),
    ("discard", 7, 4), ("createpolicy", 7, 4), ("bmsk", 7, 6), ("szext", 7, 6), ("elect", 8, 0),
    ("getctarank", 7, 8),
    ("mapa", 7, 8), ("griddepcontrol", 7, 8), ("ldmatrix", 6, 5), ("stmatrix", 7, 8), ("movmatrix",
    7, 8),
    ("mbarrier", 7, 0), ("mma", 6, 4), ("multimem", 8, 1), ("nanosleep", 6, 3), ("redux", 7, 0),
    ("setmaxnreg", 8, 0),
    ("tanh", 7, 0), ("tensormap", 8, 3), ("wgmma", 8, 0), ("cp", 7, 0), ("wmma", 6, 0),
    // Scopes, order, caches.
    ("*.cluster", 7, 8), ("*.mmio", 8, 2), ("*.proxy", 7, 5), ("*.alias", 7, 5), ("fence.async", 8,
    0),
    ("fence.acquire", 8, 6), ("fence.release", 8, 6), ("fence.proxy.async", 8, 0),
    ("fence.async.global", 8, 0),
    ("fence.tensormap::generic", 8, 3), ("fence.mbarrier_init", 8, 0), ("fence.async::generic", 8,
    6),
    ("*.L1::evict_normal", 7, 4), ("*.L1::evict_unchanged", 7, 4), ("*.L1::evict_first", 7, 4),
    ("*.L1::evict_last", 7, 4), ("*.L1::no_allocate", 7, 4), ("*.L2::cache_hint", 7, 4),
    ("*.L2::evict_last", 7, 4),
    ("*.L2::evict_normal", 7, 4), ("*.L2::evict_first", 7, 4), ("*.L2::evict_unchanged", 7, 4),
    ("*.L2::64B", 7, 4),
    ("*.L2::128B", 7, 4), ("*.L2::256B", 7, 4), ("createpolicy.fractional", 7, 4),
    ("createpolicy.range", 7, 4),
    ("prefetch.tensormap", 8, 0),
    // Spaces and types.
    ("*.shared::cta", 7, 8), ("*.shared::cluster", 7, 8), ("*.param::entry", 8, 3),
    ("*.param::func", 8, 3),
    ("cvta.param", 7, 7), ("isspacep.param", 7, 7), ("*.b128", 8, 3), ("*.v8", 8, 8), ("*.bf16", 7,
    0),
    ("*.bf16x2", 7, 0), ("*.tf32", 7, 0), ("*.e4m3x2", 8, 1), ("*.e5m2x2", 8, 1), ("*.e4m3", 8, 4),
    ("*.e5m2", 8, 4),
    ("*.e4m3x4", 8, 7), ("*.e5m2x4", 8, 7), ("*.e3m2x2", 8, 6), ("*.e2m3x2", 8, 6), ("*.e2m1x2", 8,
    6),
    ("*.ue8m0x2", 8, 6), ("*.f32x2", 8, 6), ("*.u16x2", 8, 0), ("*.s16x2", 8, 0), ("*.u8x4", 9, 2),
    ("*.s8x4", 9, 2),
    ("*.e3m2", 8, 7), ("*.e2m3", 8, 7), ("*.e2m1", 8, 7), ("*.ue8m0", 8, 7), ("*.ue4m3", 8, 7),
    ("*.e3m2x4", 8, 7),
    ("*.e2m3x4", 8, 7), ("*.e2m1x4", 8, 7), ("*.b8x16", 8, 6), ("*.b4x16", 8, 6), ("*.b4x16_p64",
    8, 6),
    ("*.b6x16_p32", 8, 6), ("*.b4", 7, 0),
    // Arithmetic.
    ("add.bf16", 7, 8), ("sub.bf16", 7, 8), ("mul.bf16", 7, 8), ("add.bf16x2", 7, 8),
    ("sub.bf16x2", 7, 8),
    ("mul.bf16x2", 7, 8), ("set.bf16", 7, 8), ("setp.bf16", 7, 8), ("set.bf16x2", 7, 8),
    ("setp.bf16x2", 7, 8),
    ("cvt.bf16", 7, 8), ("ex2.bf16", 7, 8), ("ex2.bf16x2", 7, 8), ("ex2.f16", 7, 0), ("ex2.f16x2",
    7, 0),
    ("min.f16", 7, 0), ("max.f16", 7, 0), ("min.f16x2", 7, 0), ("max.f16x2", 7, 0), ("abs.f16", 6,
    5),
    ("abs.f16x2", 6, 5), ("*.relu", 7, 0), ("*.NaN", 7, 0), ("*.xorsign", 7, 2), ("*.oob", 8, 1),
    ("*.rna", 7, 0),
    ("*.rs", 8, 7), ("*.satfinite", 8, 1), ("cvt.pack", 6, 5), ("add.f32.f16", 8, 6),
    ("sub.f32.f16", 8, 6),
    ("fma.f32.f16", 8, 6), ("add.f32.bf16", 8, 6), ("sub.f32.bf16", 8, 6), ("fma.f32.bf16", 8, 6),
    ("redux.f32", 8, 6),
    ("lop3.or", 8, 2), ("lop3.and", 8, 2), ("min.relu.s32", 8, 0), ("max.relu.s32", 8, 0),
    // Atomics.
    ("atom.noftz", 6, 2), ("red.noftz", 6, 2), ("atom.cas.b16", 6, 3), ("atom.noftz.f16", 6, 3),
    ("red.noftz.f16", 6, 3),
    ("atom.bf16", 7, 8), ("red.bf16", 7, 8), ("atom.bf16x2", 7, 8), ("red.bf16x2", 7, 8),
    ("atom.v2", 8, 1),
    ("atom.v4", 8, 1), ("atom.v8", 8, 1), ("red.v2", 8, 1), ("red.v4", 8, 1), ("red.v8", 8, 1),
    ("red.async", 8, 1),
    ("*.mbarrier::complete_tx::bytes", 8, 0), ("st.async", 8, 1), ("st.bulk", 8, 6),
    // Barriers and asynchronous copies.
    ("barrier.cluster", 7, 8), ("barrier.cluster.release", 8, 0), ("barrier.cluster.acquire", 8, 0),
    ("barrier.cluster.relaxed", 8, 0), ("mbarrier.parity", 7, 1), ("mbarrier.try_wait", 7, 8),
    ("mbarrier.expect_tx", 8, 0),
    ("mbarrier.complete_tx", 8, 0), ("mbarrier.relaxed", 8, 0), ("mbarrier.noComplete", 7, 0),
    ("cp.bulk", 8, 0),
    ("cp.bulk_group", 8, 0), ("cp.reduce", 8, 0), ("cp.tensor", 8, 0), ("cp.multicast::cluster", 8,
    0),
    ("cp.cp_mask", 8, 6), ("cp.shared::cta.global", 7, 8), ("cp.ignore-src", 8, 3),
    ("cp.im2col_no_offs", 8, 0),
    ("cp.tile::gather4", 8, 6), ("cp.tile::scatter4", 8, 6),
    // Matrices.
    ("wmma.m16n16k16", 6, 0), ("wmma.m8n32k16", 6, 1), ("wmma.m32n8k16", 6, 1), ("wmma.m8n8k32", 6,
    3),
    ("wmma.m8n8k128", 6, 3), ("wmma.m16n16k8", 7, 0), ("wmma.m8n8k4", 7, 0), ("wmma.s8", 6, 3),
    ("wmma.u8", 6, 3),
    ("mma.m8n8k4", 6, 4), ("mma.m16n8k8", 6, 5), ("mma.m8n8k16", 6, 5), ("mma.m8n8k32", 6, 5),
    ("mma.m8n8k128", 7, 0),
    ("mma.m16n8k4", 7, 0), ("mma.m16n8k16", 7, 0), ("mma.m16n8k32", 7, 0), ("mma.m16n8k64", 7, 0),
    ("mma.m16n8k128", 7, 0), ("mma.m16n8k256", 7, 0), ("mma.sp", 7, 1),
    ("mma.sp::ordered_metadata", 8, 5),
    ("mma.f64.m16n8k4", 7, 8), ("mma.f64.m16n8k8", 7, 8), ("mma.f64.m16n8k16", 7, 8),
    ("mma.f64.m8n8k4", 7, 0),
    ("mma.block_scale", 8, 7), ("ldmatrix.m8n8", 6, 5), ("ldmatrix.m16n16", 8, 6),
    ("ldmatrix.m8n16", 8, 6),
    ("stmatrix.m8n8", 7, 8), ("stmatrix.m16n8", 8, 6), ("movmatrix.m8n8", 7, 8),
    ("wgmma.mma_async", 8, 0),
    ("wgmma.sp", 8, 2), ("wgmma.fence", 8, 0),
];
