//! Descriptors of matrices in shared memory (PTX ISA, "Shared memory descriptor", "Canonical
//! Layouts") and of products ("Instruction descriptor").

use super::{Outcome, Site, trouble};
use crate::exec::matrix::Element;
use crate::exec::narrow::{E2M1, E2M3, E3M2, Narrow};
use crate::exec::warpgroup::Descriptor;
use partita_device::FaultKind;

/// A matrix in shared memory.
#[derive(Clone, Copy, Debug)]
pub struct SharedMatrix {
    /// The fields that `wgmma` has, too.
    plain: Descriptor,
    /// Whether 32 bytes stay together in a pattern of 128.
    wide_atom: bool,
}

impl SharedMatrix {
    /// Reads a descriptor.
    ///
    /// # Errors
    /// A fault where a field has no meaning.
    pub fn unpack(bits: u64, site: Site) -> Outcome<Self> {
        let wrong = |detail: String| {
            let detail = format!("shared memory descriptor {bits:#018x}: {detail}");
            Err(trouble(FaultKind::IllegalInstruction, site, None, detail))
        };
        if bits >> 46 & 7 != 1 {
            return wrong(format!("bits 46 to 48 are {}, not 1", bits >> 46 & 7));
        }
        if bits >> 52 & 1 == 1 {
            return wrong("the emulated GPU knows no absolute address of the second part".into());
        }
        let width = match bits >> 61 {
            0 => 1,
            1 | 2 => 8,
            4 => 4,
            6 => 2,
            mode => return wrong(format!("swizzling mode {mode}")),
        };
        Ok(SharedMatrix {
            plain: Descriptor::unpack(bits).with_width(width),
            wide_atom: bits >> 61 == 1,
        })
    }

    /// The matrix in a CTA's window of shared memory.
    #[must_use]
    pub fn within(self, window: u64) -> Self {
        SharedMatrix { plain: self.plain.beyond(window), ..self }
    }

    /// Whether the layout has a meaning for matrices of these elements.
    #[must_use]
    pub fn fits(&self, by_k: bool, width: usize) -> bool {
        if by_k { !self.wide_atom } else { self.wide_atom == (width == 32) }
    }

    /// Where a piece of 16 bytes lies; see [`Descriptor::address`].
    #[must_use]
    pub fn address(&self, by_k: bool, across: u64, along: u64) -> u64 {
        if self.wide_atom {
            self.plain.address_of_wide(across, along)
        } else {
            self.plain.address(by_k, across, along)
        }
    }
}

/// The kind of a product.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "each is the PTX `.kind` of that name")]
pub enum Kind {
    F16,
    Tf32,
    F8f6f4,
    I8,
    Mxf8f6f4,
    Mxf4,
    Mxf4nvf4,
}

impl Kind {
    /// The kind of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "f16" => Kind::F16,
            "tf32" => Kind::Tf32,
            "f8f6f4" => Kind::F8f6f4,
            "i8" => Kind::I8,
            "mxf8f6f4" => Kind::Mxf8f6f4,
            "mxf4" => Kind::Mxf4,
            "mxf4nvf4" => Kind::Mxf4nvf4,
            _ => return None,
        })
    }

    /// Whether A and B have scale factors.
    #[must_use]
    pub const fn is_scaled(self) -> bool {
        matches!(self, Kind::Mxf8f6f4 | Kind::Mxf4 | Kind::Mxf4nvf4)
    }

    /// The length of the sums: 32 bytes of shared memory.
    #[must_use]
    pub const fn k(self) -> usize {
        match self {
            Kind::F16 => 16,
            Kind::Tf32 => 8,
            Kind::F8f6f4 | Kind::I8 | Kind::Mxf8f6f4 => 32,
            Kind::Mxf4 | Kind::Mxf4nvf4 => 64,
        }
    }

    /// The elements of A or B by their field.
    fn factor(self, field: u32) -> Option<Factor> {
        use Factor::{Small, Whole};
        Some(match (self, field) {
            (Kind::F16, 0) => Whole(Element::F16),
            (Kind::F16, 1) => Whole(Element::Bf16),
            (Kind::Tf32, 2) => Whole(Element::Tf32),
            (Kind::I8, 0) => Whole(Element::U8),
            (Kind::I8, 1) => Whole(Element::S8),
            (Kind::F8f6f4 | Kind::Mxf8f6f4, 0) => Whole(Element::E4m3),
            (Kind::F8f6f4 | Kind::Mxf8f6f4, 1) => Whole(Element::E5m2),
            (Kind::F8f6f4 | Kind::Mxf8f6f4, 3) => Small(E2M3, 16),
            (Kind::F8f6f4 | Kind::Mxf8f6f4, 4) => Small(E3M2, 16),
            (Kind::F8f6f4 | Kind::Mxf8f6f4, 5) => Small(E2M1, 16),
            (Kind::Mxf4 | Kind::Mxf4nvf4, 1) => Small(E2M1, 32),
            _ => return None,
        })
    }
}

/// The elements of a factor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Factor {
    /// Bytes or more.
    Whole(Element),
    /// Less than a byte, and how many lie in 16 bytes: all, or 16 and then padding.
    Small(Narrow, usize),
}

impl Factor {
    /// Bits of an element.
    #[must_use]
    pub const fn width(self) -> usize {
        match self {
            Factor::Whole(element) => element.width(),
            Factor::Small(narrow, _) => narrow.width() as usize,
        }
    }

    /// Elements of 16 bytes.
    #[must_use]
    pub const fn per_piece(self) -> usize {
        match self {
            Factor::Whole(element) => 128 / element.width(),
            Factor::Small(_, per) => per,
        }
    }
}

/// A product's shapes, types and signs.
#[derive(Clone, Copy, Debug)]
pub struct Instruction {
    /// Rows of A and D, of both CTAs of a pair.
    pub m: usize,
    /// Columns of B and D.
    pub n: usize,
    /// Elements of A and B.
    pub factors: [Factor; 2],
    /// Elements of D.
    pub of_d: Element,
    /// Whether M or N, not K, is contiguous in A and B.
    pub transposed: [bool; 2],
    /// Whether the product is subtracted.
    pub negated: bool,
    /// Whether sums of integers saturate.
    pub saturates: bool,
    /// Which byte of a word has the first scale factor of A and of B.
    pub scale_ids: [usize; 2],
    /// Whether scale factors are `ue8m0`, else `ue4m3`.
    pub powers: bool,
}

impl Instruction {
    /// Reads a descriptor for a product of CTAs in a `pair` or not.
    ///
    /// # Errors
    /// A fault where a field has no meaning.
    pub fn unpack(
        bits: u32,
        kind: Kind,
        (pair, stationary): (bool, bool),
        site: Site,
    ) -> Outcome<Self> {
        let wrong = |detail: String| {
            let detail = format!("instruction descriptor {bits:#010x}: {detail}");
            trouble(FaultKind::IllegalInstruction, site, None, detail)
        };
        let field = |from: u32, width: u32| bits >> from & ((1 << width) - 1);
        let flag = |at: u32| field(at, 1) == 1;
        if flag(2) {
            return Err(wrong("a sparse A, by an instruction without `.sp`".into()));
        }
        let factor = |at: u32, what: char| {
            let known = kind.factor(field(at, 3));
            known.ok_or_else(|| {
                wrong(format!("type {} of {what}, which {kind:?} does not have", field(at, 3)))
            })
        };
        let factors = [factor(7, 'A')?, factor(10, 'B')?];
        let of_d = match (kind, field(4, 2)) {
            (Kind::I8, 2) => Element::S32,
            (Kind::F16 | Kind::F8f6f4, 0) => Element::F16,
            (Kind::F16 | Kind::F8f6f4 | Kind::Tf32, 1) => Element::F32,
            _ if kind.is_scaled() => Element::F32,
            (_, of_d) => {
                return Err(wrong(format!("type {of_d} of D, which {kind:?} does not have")));
            }
        };
        let (m, n) = (16 * field(24, 5) as usize, 8 * field(17, 6) as usize);
        let step = if m == 64 { 8 } else { 16 };
        let allowed = match (pair, stationary) {
            (false, true) => matches!(m, 32 | 64 | 128) && matches!(n, 64 | 128 | 256),
            (false, false) if kind.is_scaled() => m == 128 && (8..=256).contains(&n),
            (false, false) => {
                matches!(m, 64 | 128) && n.is_multiple_of(step) && (8..=256).contains(&n)
            }
            (true, _) => matches!(m, 128 | 256) && n.is_multiple_of(16) && (16..=256).contains(&n),
        };
        if !allowed {
            let group = if pair { 2 } else { 1 };
            return Err(wrong(format!(
                "M of {m} and N of {n}, for {kind:?} of cta_group::{group}"
            )));
        }
        if kind.k() == 64 && (flag(31) || flag(15) || flag(16)) {
            return Err(wrong("K of 96 or a transposed matrix of 4 bits".into()));
        }
        Ok(Instruction {
            m,
            n,
            factors,
            of_d,
            transposed: [flag(15), flag(16)],
            negated: flag(13) != flag(14),
            saturates: kind == Kind::I8 && flag(3),
            scale_ids: [field(29, 2) as usize, field(4, 2) as usize],
            powers: flag(23),
        })
    }
}
