//! Matrices in memory: what `wmma.load` and `wmma.store` ask of their lines.

use super::accesses::Access;
use super::{Check, Regs};
use crate::carry::emit;
use crate::ir::{Base, Body, Form, Mod, Module, Operand, Stmt};

/// The largest access that the hardware makes of a matrix, in bytes.
const LARGEST_PIECE: u32 = 16;
/// Lanes of a warp.
const LANES: u32 = 32;

/// A matrix of `wmma.load` or `wmma.store`.
pub(super) struct Matrix {
    /// Rows, or columns where these are contiguous.
    lines: u32,
    /// Elements of a line.
    along: u32,
    /// Bits of an element.
    bits: u32,
}

impl Matrix {
    /// The matrix that a form names, such as `wmma.load.a.sync.aligned.row.m16n16k16.f16`.
    pub(super) fn of(module: &Module, form: &Form) -> Option<Matrix> {
        let shape = module.text(form.text).split('.').find_map(|word| {
            let (m, rest) = word.strip_prefix('m')?.split_once('n')?;
            let (n, k) = rest.split_once('k')?;
            Some([m.parse().ok()?, n.parse().ok()?, k.parse().ok()?])
        });
        let [m, n, k]: [u32; 3] = shape?;
        let (rows, columns) = if form.has(Mod::A) {
            (m, k)
        } else if form.has(Mod::B) {
            (k, n)
        } else {
            (m, n)
        };
        let (lines, along) = if form.has(Mod::Col) { (columns, rows) } else { (rows, columns) };
        Some(Matrix { lines, along, bits: form.last_type()?.bits() })
    }

    /// The access of the whole matrix, or of its first line where a register has the lines'
    /// distance.
    ///
    /// PTX ISA, "Matrix Fragments for WMMA": each line begins at a multiple of a lane's share of
    /// the matrix.
    pub(super) fn access(&self, at: Access, operands: &[Operand]) -> Access {
        let &Matrix { lines, along, bits } = self;
        let align = (lines * along * bits / 8 / LANES).clamp(1, LARGEST_PIECE);
        let (line, further) = (along * bits / 8, lines.saturating_sub(1));
        let stride = operands.get(2).copied();
        let bytes = match stride {
            None => lines * line,
            Some(Operand::Int(stride) | Operand::Uint(stride)) => {
                let step = stride.saturating_mul(bits.into()) / 8;
                let span = step.saturating_mul(further.into()).saturating_add(line.into());
                u32::try_from(span).unwrap_or(u32::MAX)
            }
            Some(_) => line,
        };
        let lines = stride.map(|stride| Lines { stride, bits, further });
        Access { bytes, align, lines, ..at }
    }
}

/// The distance of a matrix's lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lines {
    /// Elements from one line to the next.
    pub stride: Operand,
    /// Bits of an element.
    bits: u32,
    /// Lines after the first.
    further: u32,
}

impl Lines {
    /// The check of the distance: each line must begin at a multiple of `align` bytes.
    pub(super) fn distance(&self, align: u32) -> Option<Check> {
        let of = (align * 8 / self.bits).max(1);
        match self.stride {
            Operand::Int(stride) | Operand::Uint(stride) => {
                let is_right = stride.is_multiple_of(of.into());
                (!is_right).then_some(Check::Never { aligned: true })
            }
            stride => (of > 1).then_some(Check::Stride { stride, of }),
        }
    }

    /// Whether the distance is a number of the text.
    pub(super) fn is_constant(&self) -> bool {
        matches!(self.stride, Operand::Int(_) | Operand::Uint(_))
    }

    /// Appends the check that the last line ends in shared memory. It follows the check of the
    /// first line, after which `end` is the first address at which no line fits.
    pub(super) fn beyond(
        &self,
        module: &mut Module,
        body: &mut Body,
        regs: Regs,
        (base, plus): (Base, i32),
        out: &mut Vec<Stmt>,
    ) {
        let [end, far, wide] = [regs.end, regs.far, regs.wide].map(Operand::Reg);
        let [bad, low] = [regs.bad, regs.low].map(Operand::Reg);
        let too = Operand::Reg(regs.some);
        match base {
            Base::Reg(reg) if body.reg(reg).ty.bits() == 32 => {
                emit(module, body, out, "cvt.u64.u32", &[wide, Operand::Reg(reg)]);
            }
            Base::Reg(reg) => emit(module, body, out, "mov.u64", &[wide, Operand::Reg(reg)]),
            Base::Symbol(symbol) => {
                emit(module, body, out, "mov.u32", &[low, Operand::Symbol(symbol, 0)]);
                emit(module, body, out, "cvt.u64.u32", &[wide, low]);
            }
        }
        let offset = Operand::Int(i64::from(plus).cast_unsigned());
        emit(module, body, out, "add.s64", &[wide, wide, offset]);
        let bits = u64::from(self.further) * u64::from(self.bits);
        emit(module, body, out, "mul.wide.u32", &[far, self.stride, Operand::Int(bits)]);
        emit(module, body, out, "shr.u64", &[far, far, Operand::Int(3)]);
        emit(module, body, out, "add.s64", &[far, far, wide]);
        emit(module, body, out, "cvt.u64.u32", &[wide, end]);
        emit(module, body, out, "setp.ge.u64", &[too, far, wide]);
        emit(module, body, out, "or.pred", &[bad, bad, too]);
    }
}

#[cfg(test)]
mod tests {
    /// The checks that a matrix gets: of alignment, and of the end of shared memory.
    fn check(access: &str, expected: [bool; 2]) {
        let source = format!(
            ".version 8.0\n.target sm_80\n.address_size 64\n.entry k(.param .u32 n) {{\n.shared \
             .align 32 .b8 tile[992];\n.reg .b32 %r<9>, %s, %n;\n.reg .f32 %f<8>;\n\
             ld.param.u32 %n, [n];\nmov.u32 %s, tile;\n{access};\nret;\n}}"
        );
        let out = super::super::contain(&crate::parse(&source).unwrap());
        let text = crate::print(&out.module);
        let found = ["$pw_misaligned", "$pw_beyond"].map(|trap| text.contains(trap));
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn lines_are_aligned_and_lie_in_shared_memory() {
        let load = |place: &str, stride: &str| {
            format!(
                "wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 {{%r0, %r1, %r2, %r3, %r4, \
                 %r5, %r6, %r7}}, [{place}]{stride}"
            )
        };
        check(&load("%s", ", 16"), [false, false]);
        check(&load("tile+32", ", 16"), [false, false]);
        check(&load("%s", ""), [false, false]);
        // The last line ends at byte 992, and behind it.
        check(&load("%s", ", 32"), [false, false]);
        check(&load("%s", ", 40"), [false, true]);
        check(&load("%s+16", ", 32"), [false, true]);
        // Lines of 30 bytes do not begin at multiples of 16.
        check(&load("%s", ", 15"), [true, false]);
        check(&load("%s+8", ", 16"), [true, false]);
        check(&load("%s", ", %n"), [true, true]);
        check(&load("%n", ", 16"), [true, true]);
    }

    #[test]
    fn a_lane_may_hold_less_than_16_bytes_of_a_matrix() {
        let load = |place: &str| {
            format!("wmma.load.b.sync.aligned.col.m32n8k16.shared.u8 {{%r0}}, [{place}], 20")
        };
        check(&load("%s+4"), [false, false]);
        check(&load("%s+2"), [true, false]);
    }
}
