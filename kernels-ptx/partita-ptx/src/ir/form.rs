//! Opcodes, modifiers, and the *form* of an instruction: its opcode with all modifiers, interned as
//! one.
//!
//! A module uses a few hundred forms in millions of instructions. Everything that depends only on
//! the form (decoding, operand tables, divergence of the result) is therefore computed once per
//! [`FormId`]. A word that the tables do not know is carried as text, in its place among the
//! modifiers, and printed as it was.

use super::names::{Name, Names};
use super::operand::Operand;
use super::types::{Space, Type};

/// An opcode with its modifiers, of one [`crate::Module`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FormId(pub u32);

/// The opcode and modifiers of a [`FormId`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Form {
    /// The word before the first dot.
    pub op: Op,
    /// The dotted words after it, in order.
    pub mods: Vec<Mod>,
    /// The whole spelling, `ld.global.nc.v4.f32`.
    pub text: Name,
}

impl Form {
    /// Whether the modifier is present.
    #[must_use]
    pub fn has(&self, modifier: Mod) -> bool {
        self.mods.contains(&modifier)
    }

    /// The number of the CTA's barrier and of its threads among the operands of a `bar` or
    /// `barrier` (PTX ISA, "bar, barrier").
    #[must_use]
    pub fn barrier_operands(&self, operands: &[Operand]) -> [Option<Operand>; 2] {
        if !matches!(self.op, Op::Bar | Op::Barrier)
            || self.has(Mod::Warp)
            || self.has(Mod::Cluster)
        {
            return [None; 2];
        }
        // A reduction begins with its result and ends with its predicate.
        let (first, predicates) = if self.has(Mod::Red) { (1, 1) } else { (0, 0) };
        let numbers = operands.get(first..).unwrap_or(&[]);
        let count = numbers.get(1).filter(|_| numbers.len() > 1 + predicates);
        [numbers.first().copied(), count.copied()]
    }

    /// The types in order: `cvt.f32.s32` has two.
    pub fn types(&self) -> impl DoubleEndedIterator<Item = Type> + '_ {
        self.mods.iter().filter_map(|&modifier| match modifier {
            Mod::Type(ty) => Some(ty),
            _ => None,
        })
    }

    /// The last type, which is the operation's type for nearly all instructions.
    #[must_use]
    pub fn last_type(&self) -> Option<Type> {
        self.types().next_back()
    }

    /// The first state space; `None` for a generic access.
    #[must_use]
    pub fn space(&self) -> Option<Space> {
        self.mods.iter().find_map(|&modifier| match modifier {
            Mod::Space(space) => Some(space),
            _ => None,
        })
    }

    /// Elements of the vector that the instruction moves: 1, 2, 4 or 8.
    #[must_use]
    pub fn vector(&self) -> u32 {
        self.mods
            .iter()
            .find_map(|modifier| match modifier {
                Mod::V2 => Some(2),
                Mod::V4 => Some(4),
                Mod::V8 => Some(8),
                _ => None,
            })
            .unwrap_or(1)
    }
}

/// The forms of one module.
#[derive(Clone, Debug, Default)]
pub struct Forms {
    forms: Vec<Form>,
    /// By [`Name`] of the spelling: the form's id + 1, or 0.
    by_name: Vec<u32>,
}

impl Forms {
    /// The form spelt `text`, such as `add.s32`, added when new.
    pub fn intern(&mut self, text: &str, names: &mut Names) -> FormId {
        let name = names.intern(text);
        self.intern_name(name, names)
    }

    /// As [`Forms::intern`] for a spelling that is interned already.
    pub fn intern_name(&mut self, text: Name, names: &mut Names) -> FormId {
        match self.by_name.get(text.index()) {
            Some(&id) if id != 0 => FormId(id - 1),
            _ => self.insert(text, names),
        }
    }

    fn insert(&mut self, text: Name, names: &mut Names) -> FormId {
        let spelling = names.text(text).to_owned();
        let mut words = spelling.split('.');
        let first = words.next().unwrap_or_default();
        let op = Op::from_text(first).unwrap_or_else(|| Op::Other(names.intern(first)));
        let mods = words.map(|word| Mod::from_text(word, names)).collect();
        self.forms.push(Form { op, mods, text });
        let count = u32::try_from(self.forms.len()).expect("fewer forms than source bytes");
        if self.by_name.len() <= text.index() {
            self.by_name.resize(text.index() + 1, 0);
        }
        self.by_name[text.index()] = count;
        FormId(count - 1)
    }

    /// All forms, indexed by [`FormId`].
    #[must_use]
    pub fn all(&self) -> &[Form] {
        &self.forms
    }
}

impl std::ops::Index<FormId> for Forms {
    type Output = Form;
    fn index(&self, id: FormId) -> &Form {
        &self.forms[id.0 as usize]
    }
}

macro_rules! ops {
    ($($variant:ident $text:literal)*) => {
        /// An opcode: the word before the first dot. `bar.sync` is `Bar` with the modifier `Sync`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[expect(missing_docs, reason = "each variant is the PTX opcode of the same spelling")]
        pub enum Op {
            $($variant,)*
            /// An opcode that the tables do not know.
            Other(Name),
        }

        impl Op {
            /// The known opcode spelt `text`.
            #[must_use]
            pub fn from_text(text: &str) -> Option<Self> {
                Some(match text { $($text => Self::$variant,)* _ => return None })
            }
        }
    };
}

ops! {
    Abs "abs" Activemask "activemask" Add "add" Addc "addc" Alloca "alloca" And "and"
    Applypriority "applypriority" Atom "atom" Bar "bar" Barrier "barrier" Bfe "bfe" Bfi "bfi"
    Bfind "bfind"
    Bmsk "bmsk" Bra "bra" Brev "brev" Brkpt "brkpt" Brx "brx" Call "call"
    Clusterlaunchcontrol "clusterlaunchcontrol" Clz "clz" Cnot "cnot" Copysign "copysign" Cos "cos"
    Cp "cp"
    Createpolicy "createpolicy" Cvt "cvt" Cvta "cvta" Discard "discard" Div "div" Dp2a "dp2a"
    Dp4a "dp4a"
    Elect "elect" Ex2 "ex2" Exit "exit" Fence "fence" Fma "fma" Fns "fns" Getctarank "getctarank"
    Griddepcontrol "griddepcontrol" Isspacep "isspacep" Istypep "istypep" Ld "ld"
    Ldmatrix "ldmatrix" Ldu "ldu"
    Lg2 "lg2" Lop3 "lop3" Mad "mad" Mad24 "mad24" Madc "madc" Mapa "mapa" Match "match" Max "max"
    Mbarrier "mbarrier" Membar "membar" Min "min" Mma "mma" Mov "mov" Movmatrix "movmatrix"
    Mul "mul"
    Mul24 "mul24" Multimem "multimem" Nanosleep "nanosleep" Neg "neg" Not "not" Or "or"
    Pmevent "pmevent"
    Popc "popc" Prefetch "prefetch" Prefetchu "prefetchu" Prmt "prmt" Rcp "rcp" Red "red"
    Redux "redux"
    Rem "rem" Ret "ret" Rsqrt "rsqrt" Sad "sad" Selp "selp" Set "set" Setmaxnreg "setmaxnreg"
    Setp "setp"
    Shf "shf" Shfl "shfl" Shl "shl" Shr "shr" Sin "sin" Slct "slct" Sqrt "sqrt" St "st"
    Stackrestore "stackrestore" Stacksave "stacksave" Stmatrix "stmatrix" Sub "sub" Subc "subc"
    Suld "suld"
    Suq "suq" Sured "sured" Sust "sust" Szext "szext" Tanh "tanh" Tcgen05 "tcgen05"
    Tensormap "tensormap"
    Testp "testp" Tex "tex" Tld4 "tld4" Trap "trap" Txq "txq"
    Vabsdiff "vabsdiff" Vabsdiff2 "vabsdiff2" Vabsdiff4 "vabsdiff4" Vadd "vadd" Vadd2 "vadd2"
    Vadd4 "vadd4"
    Vavrg2 "vavrg2" Vavrg4 "vavrg4" Vmad "vmad" Vmax "vmax" Vmax2 "vmax2" Vmax4 "vmax4" Vmin "vmin"
    Vmin2 "vmin2" Vmin4 "vmin4" Vote "vote" Vset "vset" Vset2 "vset2" Vset4 "vset4" Vshl "vshl"
    Vshr "vshr"
    Vsub "vsub" Vsub2 "vsub2" Vsub4 "vsub4" Wgmma "wgmma" Wmma "wmma" Xor "xor"
}

macro_rules! mods {
    ($($variant:ident $text:literal)*) => {
        /// A dotted word after the opcode. `::` does not split a word: `.L2::128B` is one.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[expect(missing_docs, reason = "each variant is the PTX modifier of the same spelling")]
        pub enum Mod {
            /// A type: `.u32`.
            Type(Type),
            /// A state space: `.global`.
            Space(Space),
            $($variant,)*
            /// A word that the tables do not know.
            Other(Name),
        }

        impl Mod {
            fn plain(text: &str) -> Option<Self> {
                Some(match text { $($text => Self::$variant,)* _ => return None })
            }
        }
    };
}

mods! {
    // Comparisons; `lo` and `hi` are also halves of a product, `cg` also a cache operator.
    Eq "eq" Ne "ne" Lt "lt" Le "le" Gt "gt" Ge "ge" Lo "lo" Ls "ls" Hi "hi" Hs "hs"
    Equ "equ" Neu "neu" Ltu "ltu" Leu "leu" Gtu "gtu" Geu "geu" Num "num" Nan "nan"
    // Rounding and arithmetic.
    Rn "rn" Rna "rna" Rz "rz" Rm "rm" Rp "rp" Rs "rs" Rni "rni" Rzi "rzi" Rmi "rmi" Rpi "rpi"
    Ftz "ftz" Sat "sat"
    Satfinite "satfinite" Relu "relu" Oob "oob" Approx "approx" Full "full" Wide "wide" Cc "cc"
    NaN "NaN"
    Xorsign "xorsign" Abs "abs" Noftz "noftz" Shiftamt "shiftamt" L "l" R "r" Wrap "wrap"
    Clamp "clamp"
    F4e "f4e" B4e "b4e" Rc8 "rc8" Rc16 "rc16" Ecl "ecl" Ecr "ecr" Po "po" Shr7 "shr7" Shr15 "shr15"
    Finite "finite" Infinite "infinite" Number "number" Notanumber "notanumber" Normal "normal"
    Subnormal "subnormal"

    // Logic and reductions.
    And "and" Or "or" Xor "xor" Popc "popc" Not "not" Add "add" Min "min" Max "max" Inc "inc"
    Dec "dec"
    Cas "cas" Exch "exch"
    // Vectors and cache operators.
    V2 "v2" V4 "v4" V8 "v8" Ca "ca" Cg "cg" Cs "cs" Lu "lu" Cv "cv" Wb "wb" Wt "wt" Nc "nc"
    L1EvictNormal "L1::evict_normal" L1EvictUnchanged "L1::evict_unchanged"
    L1EvictFirst "L1::evict_first"
    L1EvictLast "L1::evict_last" L1NoAllocate "L1::no_allocate" L2CacheHint "L2::cache_hint"
    L2EvictLast "L2::evict_last" L2EvictNormal "L2::evict_normal" L2EvictFirst "L2::evict_first"
    L2Prefetch64 "L2::64B" L2Prefetch128 "L2::128B" L2Prefetch256 "L2::256B" L1 "L1" L2 "L2"
    // Memory order and scope.
    Weak "weak" Volatile "volatile" Relaxed "relaxed" Acquire "acquire" Release "release"
    AcqRel "acq_rel" Sc "sc"
    Mmio "mmio" Cta "cta" Cluster "cluster" Gpu "gpu" Sys "sys" Gl "gl" Proxy "proxy" Alias "alias"
    Unified "unified" Noinc "noinc"
    // Control, barriers, warps.
    Uni "uni" Idx "idx" Sync "sync" Red "red" Arrive "arrive" Wait "wait" Aligned "aligned"
    Warp "warp"
    Noreturn "noreturn" All "all" Any "any" Ballot "ballot" Up "up" Down "down" Bfly "bfly"
    Launch "launch_dependents" MbarInit "init" Inval "inval" ExpectTx "expect_tx"
    CompleteTx "complete_tx"
    ArriveDrop "arrive_drop" TestWait "test_wait" TryWait "try_wait" Parity "parity"
    PendingCount "pending_count"
    NoComplete "noComplete"
    // Asynchronous copies and tensors.
    Async "async" Bulk "bulk" Commit "commit" CommitGroup "commit_group" WaitGroup "wait_group"
    WaitAll "wait_all"
    Group "group" Tensor "tensor" Prefetch "prefetch" Reduce "reduce" Tile "tile" Im2col "im2col"
    Read "read"
    To "to" Tensormap "tensormap" Multicast "multicast::cluster" Mbarrier "mbarrier"
    // Textures and surfaces.
    D1 "1d" D2 "2d" D3 "3d" A1d "a1d" A2d "a2d" Cube "cube" Acube "acube" Level "level" Grad "grad"
    Base "base"
    Trap "trap" Zero "zero" Width "width" Height "height" Depth "depth"
    // Matrices.
    Load "load" Store "store" Mma "mma" A "a" C "c" B "b" D "d" Row "row" Col "col" Trans "trans"
    X1 "x1" X2 "x2"
    X4 "x4" M8n8 "m8n8"
}

impl Mod {
    /// The modifier spelt `text` (without the dot); unknown words are interned.
    pub fn from_text(text: &str, names: &mut Names) -> Self {
        if let Some(ty) = Type::from_text(text) {
            return Self::Type(ty);
        }
        if let Some(space) = Space::from_text(text) {
            return Self::Space(space);
        }
        Self::plain(text).unwrap_or_else(|| Self::Other(names.intern(text)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_knows_its_words() {
        let (mut names, mut forms) = (Names::default(), Forms::default());
        let id = forms.intern("ld.global.nc.L2::128B.v4.f32", &mut names);
        assert_eq!(id, forms.intern("ld.global.nc.L2::128B.v4.f32", &mut names));
        let form = &forms[id];
        assert_eq!(form.op, Op::Ld);
        assert_eq!(form.space(), Some(Space::Global));
        assert_eq!(form.vector(), 4);
        assert_eq!(form.last_type(), Some(Type::F32));
        assert!(form.has(Mod::Nc) && form.has(Mod::L2Prefetch128));
        assert_ne!(id, forms.intern("ld.global.f32", &mut names));
    }

    #[test]
    fn unknown_words_are_kept() {
        let (mut names, mut forms) = (Names::default(), Forms::default());
        let id = forms.intern("frob.m16n8k16.u32", &mut names);
        let Op::Other(op) = forms[id].op else { panic!("frob is no opcode") };
        assert_eq!(names.text(op), "frob");
        let Mod::Other(shape) = forms[id].mods[0] else { panic!("a shape is carried as text") };
        assert_eq!(names.text(shape), "m16n8k16");
    }
}
