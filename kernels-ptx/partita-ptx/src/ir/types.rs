//! Scalar types and state spaces (PTX ISA, "State Spaces, Types, and Variables").

use super::names::{Name, Names};

macro_rules! types {
    ($($variant:ident $text:literal $bits:literal;)*) => {
        /// A type as written after a dot. Alternate formats that only instructions use are here
        /// too.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[expect(missing_docs, reason = "each variant is the PTX type of the same spelling")]
        pub enum Type {
            $($variant,)*
        }

        impl Type {
            /// The type spelt `text` (without the dot).
            #[must_use]
            pub fn from_text(text: &str) -> Option<Self> {
                Some(match text { $($text => Self::$variant,)* _ => return None })
            }

            /// How PTX spells it, without the dot.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            /// Size of a value in bits; `pred` counts as 1, opaque types as 64.
            #[must_use]
            pub const fn bits(self) -> u32 {
                match self { $(Self::$variant => $bits,)* }
            }
        }
    };
}

types! {
    Pred "pred" 1;
    B1 "b1" 1; B4 "b4" 4; B4x16 "b4x16" 64; B4x16P64 "b4x16_p64" 128; B6x16P32 "b6x16_p32" 128;
    B8 "b8" 8; B16 "b16" 16; B32 "b32" 32; B64 "b64" 64; B128 "b128" 128; B8x16 "b8x16" 128;
    U4 "u4" 4; U8 "u8" 8; U16 "u16" 16; U32 "u32" 32; U64 "u64" 64;
    S4 "s4" 4; S8 "s8" 8; S16 "s16" 16; S32 "s32" 32; S64 "s64" 64;
    U8x4 "u8x4" 32; S8x4 "s8x4" 32; U16x2 "u16x2" 32; S16x2 "s16x2" 32;
    F16 "f16" 16; F16x2 "f16x2" 32; F32 "f32" 32; F32x2 "f32x2" 64; F64 "f64" 64;
    Bf16 "bf16" 16; Bf16x2 "bf16x2" 32; Tf32 "tf32" 32;
    E4m3 "e4m3" 8; E5m2 "e5m2" 8; E4m3x2 "e4m3x2" 16; E5m2x2 "e5m2x2" 16; E4m3x4 "e4m3x4" 32;
    E5m2x4 "e5m2x4" 32;
    E3m2 "e3m2" 6; E2m3 "e2m3" 6; E2m1 "e2m1" 4; E3m2x2 "e3m2x2" 16; E2m3x2 "e2m3x2" 16;
    E2m1x2 "e2m1x2" 8;
    E3m2x4 "e3m2x4" 32; E2m3x4 "e2m3x4" 32; E2m1x4 "e2m1x4" 16;
    Ue8m0 "ue8m0" 8; Ue8m0x2 "ue8m0x2" 16; Ue4m3 "ue4m3" 8;
    Texref "texref" 64; Samplerref "samplerref" 64; Surfref "surfref" 64;
}

impl Type {
    /// Size in bytes as a variable, at least 1.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        self.bits().div_ceil(8)
    }

    /// A signed or unsigned integer type (not `.bN`).
    #[must_use]
    pub const fn is_integer(self) -> bool {
        self.is_signed()
            || matches!(
                self,
                Self::U4 | Self::U8 | Self::U16 | Self::U32 | Self::U64 | Self::U16x2 | Self::U8x4
            )
    }

    /// A signed integer type.
    #[must_use]
    pub const fn is_signed(self) -> bool {
        matches!(
            self,
            Self::S4 | Self::S8 | Self::S16 | Self::S32 | Self::S64 | Self::S16x2 | Self::S8x4
        )
    }

    /// A floating-point type, packed and alternate formats included.
    #[must_use]
    pub const fn is_float(self) -> bool {
        !self.is_integer() && !self.is_untyped() && !self.is_opaque() && !matches!(self, Self::Pred)
    }

    /// A `.bN` type.
    #[must_use]
    pub const fn is_untyped(self) -> bool {
        matches!(
            self,
            Self::B1
                | Self::B4
                | Self::B4x16
                | Self::B4x16P64
                | Self::B6x16P32
                | Self::B8
                | Self::B16
                | Self::B32
                | Self::B64
                | Self::B128
                | Self::B8x16
        )
    }

    /// A texture, sampler or surface reference.
    #[must_use]
    pub const fn is_opaque(self) -> bool {
        matches!(self, Self::Texref | Self::Samplerref | Self::Surfref)
    }
}

macro_rules! spaces {
    ($($variant:ident $text:literal;)*) => {
        /// A state space as written. `.shared` and `.shared::cta` mean the same and are kept apart
        /// for the printer.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[expect(missing_docs, reason = "each variant is the PTX state space of the same spelling")]
        pub enum Space {
            $($variant,)*
        }

        impl Space {
            /// The space spelt `text` (without the dot).
            #[must_use]
            pub fn from_text(text: &str) -> Option<Self> {
                Some(match text { $($text => Self::$variant,)* _ => return None })
            }

            /// How PTX spells it, without the dot.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }
    };
}

spaces! {
    Reg "reg"; Sreg "sreg"; Const "const"; Global "global"; Local "local"; Tex "tex";
    Param "param"; ParamEntry "param::entry"; ParamFunc "param::func";
    Shared "shared"; SharedCta "shared::cta"; SharedCluster "shared::cluster";
}

impl Space {
    /// The CTA's own shared memory, however spelt.
    #[must_use]
    pub const fn is_shared(self) -> bool {
        matches!(self, Self::Shared | Self::SharedCta)
    }

    /// Any spelling of the parameter space.
    #[must_use]
    pub const fn is_param(self) -> bool {
        matches!(self, Self::Param | Self::ParamEntry | Self::ParamFunc)
    }
}

macro_rules! specials {
    ($($variant:ident $text:literal;)*) => {
        /// A special register (PTX ISA, "Special Registers"), without its component.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[expect(missing_docs, reason = "each variant is the PTX special register of the same \
            spelling")]
        pub enum Special {
            $($variant,)*
            /// `%envreg0` to `%envreg31`.
            Envreg(u8),
            /// `%pm0` to `%pm7`.
            Pm(u8),
            /// `%pm0_64` to `%pm7_64`.
            Pm64(u8),
            /// `%reserved_smem_offset_0` and `_1`.
            ReservedSmemOffset(u8),
        }

        impl Special {
            fn plain(text: &str) -> Option<Self> {
                Some(match text { $($text => Self::$variant,)* _ => return None })
            }

            /// Appends the register's spelling, `%` included.
            pub fn write(self, out: &mut String) {
                use std::fmt::Write as _;
                let result = match self {
                    $(Self::$variant => { out.push_str($text); Ok(()) })*
                    Self::Envreg(n) => write!(out, "%envreg{n}"),
                    Self::Pm(n) => write!(out, "%pm{n}"),
                    Self::Pm64(n) => write!(out, "%pm{n}_64"),
                    Self::ReservedSmemOffset(n) => write!(out, "%reserved_smem_offset_{n}"),
                };
                result.expect("writing to a string cannot fail");
            }
        }
    };
}

specials! {
    Tid "%tid"; Ntid "%ntid"; Laneid "%laneid"; Warpid "%warpid"; Nwarpid "%nwarpid";
    Ctaid "%ctaid"; Nctaid "%nctaid"; Smid "%smid"; Nsmid "%nsmid"; Gridid "%gridid";
    IsExplicitCluster "%is_explicit_cluster"; Clusterid "%clusterid"; Nclusterid "%nclusterid";
    ClusterCtaid "%cluster_ctaid"; ClusterNctaid "%cluster_nctaid";
    ClusterCtarank "%cluster_ctarank"; ClusterNctarank "%cluster_nctarank";
    LanemaskEq "%lanemask_eq"; LanemaskLe "%lanemask_le"; LanemaskLt "%lanemask_lt";
    LanemaskGe "%lanemask_ge"; LanemaskGt "%lanemask_gt";
    Clock "%clock"; ClockHi "%clock_hi"; Clock64 "%clock64";
    Globaltimer "%globaltimer"; GlobaltimerLo "%globaltimer_lo"; GlobaltimerHi "%globaltimer_hi";
    ReservedSmemOffsetBegin "%reserved_smem_offset_begin";
    ReservedSmemOffsetEnd "%reserved_smem_offset_end";
    ReservedSmemOffsetCap "%reserved_smem_offset_cap";
    TotalSmemSize "%total_smem_size"; AggrSmemSize "%aggr_smem_size";
    DynamicSmemSize "%dynamic_smem_size";
    CurrentGraphExec "%current_graph_exec";
}

impl Special {
    /// The special register spelt `text` (with `%`, without component).
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        if let Some(plain) = Self::plain(text) {
            return Some(plain);
        }
        let number = |rest: &str, limit: u8| {
            let canonical = rest == "0" || !rest.starts_with(['0', '+']);
            rest.parse::<u8>().ok().filter(|&n| canonical && n < limit)
        };
        if let Some(rest) = text.strip_prefix("%envreg") {
            return number(rest, 32).map(Self::Envreg);
        }
        if let Some(rest) = text.strip_prefix("%reserved_smem_offset_") {
            return number(rest, 2).map(Self::ReservedSmemOffset);
        }
        let rest = text.strip_prefix("%pm")?;
        match rest.strip_suffix("_64") {
            Some(digits) => number(digits, 8).map(Self::Pm64),
            None => number(rest, 8).map(Self::Pm),
        }
    }
}

/// A part of a register: a vector's element or the byte or half selection of the video
/// instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// The whole register.
    Whole,
    /// `.x`
    X,
    /// `.y`
    Y,
    /// `.z`
    Z,
    /// `.w`
    W,
    /// Any other, without the dot: `b0`, `h1`, `r`, `b3210` …
    Other(Name),
}

impl Part {
    /// The part spelt `text` (without the dot).
    pub fn from_text(text: &str, names: &mut Names) -> Self {
        match text {
            "x" => Self::X,
            "y" => Self::Y,
            "z" => Self::Z,
            "w" => Self::W,
            other => Self::Other(names.intern(other)),
        }
    }

    /// Which component of a vector it is: `.x .y .z .w`, or `.r .g .b .a`, from 0.
    #[must_use]
    pub fn component(self, names: &Names) -> Option<u8> {
        match self {
            Self::Whole => None,
            Self::X => Some(0),
            Self::Y => Some(1),
            Self::Z => Some(2),
            Self::W => Some(3),
            Self::Other(name) => match names.text(name) {
                "r" => Some(0),
                "g" => Some(1),
                "b" => Some(2),
                "a" => Some(3),
                _ => None,
            },
        }
    }
}
