//! Instructions of the fifth generation of tensor cores: `tcgen05`.

use super::{Decoder, Result};
use crate::exec::inst::{Op, Source, Target, WarpKind};
use crate::exec::program::Constant;
use crate::exec::tcgen05::TensorOp;
use crate::exec::tcgen05::copies::{CopyOp, MoveOp, Shape, Spread};
use crate::exec::tcgen05::descriptor::Kind;
use crate::exec::tcgen05::product::{Left, ProductOp};
use crate::exec::tcgen05::scale::ScaleOp;
use partita_ptx::{Base, Form, Operand, Type};

/// The most columns from one half of a `.16x32bx2` to the other.
const MOST_SPLIT: i128 = 512;

impl Decoder<'_> {
    pub(super) fn tensor_operation(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let text = self.module.text(form.text);
        let words: Vec<&str> = text.split('.').collect();
        let pair = words.contains(&"cta_group::2");
        self.program.uses_cluster |= pair;
        let op = match (&words[1..], operands) {
            // What they order is there at once.
            (["fence::before_thread_sync" | "fence::after_thread_sync"], []) => {
                self.emit(Op::Nop, 0, 0, 0, 0, 0);
                return Ok(());
            }
            (["wait::ld" | "wait::st", "sync", "aligned"], []) => {
                self.whole_warp();
                return Ok(());
            }
            (["alloc", _, "sync", "aligned", .., "b32"], &[to, columns]) => TensorOp::Alloc {
                space: self.space_at(form, to)?,
                to: self.whole_address(to)?,
                columns: self.source(columns, Type::U32)?,
                pair,
            },
            (["dealloc", _, "sync", "aligned", "b32"], &[address, columns]) => TensorOp::Dealloc {
                address: self.tensor_address(address)?,
                columns: self.source(columns, Type::U32)?,
            },
            (["relinquish_alloc_permit", _, "sync", "aligned"], []) => TensorOp::Relinquish,
            (["ld" | "st", "sync", "aligned", rest @ ..], _) => {
                self.tensor_move(form, rest, operands)?
            }
            (["cp", _, rest @ ..], &[to, from]) => {
                let Some((rows, pieces, spread)) = copied(rest) else {
                    return self.unsupported(form);
                };
                let address = self.tensor_address(to)?;
                let from = self.source(from, Type::B64)?;
                TensorOp::Copy(CopyOp { rows, pieces, spread, address, from, pair })
            }
            (["shift", _, "down"], &[address]) => {
                TensorOp::Shift { address: self.tensor_address(address)?, pair }
            }
            (["commit", _, "mbarrier::arrive::one", .., "b64"], &[mbarrier, ref rest @ ..]) => {
                let multicast = words.contains(&"multicast::cluster");
                let ctas = match (multicast, rest) {
                    (false, []) => Source::None,
                    (true, &[ctas]) => self.source(ctas, Type::U16)?,
                    _ => return self.unsupported(form),
                };
                let space = self.space_at(form, mbarrier)?;
                TensorOp::Commit { mbarrier: self.whole_address(mbarrier)?, space, ctas }
            }
            (["mma", rest @ ..], _) => self.tensor_product(form, rest, operands)?,
            _ => return self.unsupported(form),
        };
        if words.contains(&"aligned") {
            self.whole_warp();
        }
        self.program.tensor_ops.push(op);
        let index = self.program.tensor_ops.len() as i64 - 1;
        self.emit(Op::Tensor, 0, 0, 0, 0, index);
        Ok(())
    }

    /// `.aligned`: the whole warp executes the instruction together.
    fn whole_warp(&mut self) {
        let all = Source::R32(self.constant32(Constant::Bits(0xffff_ffff)));
        self.warp(WarpKind::BarWarp, [Source::None; 3], all, false, Target::None, Target::None);
    }

    /// An address in tensor memory, with or without brackets.
    fn tensor_address(&mut self, operand: Operand) -> Result<Source> {
        match operand {
            Operand::Mem(..) | Operand::Absolute(_) => self.whole_address(operand),
            Operand::RegPlus(reg, offset) => {
                self.whole_address(Operand::Mem(Base::Reg(reg), offset))
            }
            _ => self.source(operand, Type::B32),
        }
    }

    /// `ld` and `st`: `rest` begins with the shape.
    fn tensor_move(
        &mut self,
        form: &Form,
        rest: &[&str],
        operands: &[Operand],
    ) -> Result<TensorOp> {
        let [shape, number, rest @ ..] = rest else { return self.unsupported(form) };
        let loads = self.module.text(form.text).starts_with("tcgen05.ld");
        let packed = match (rest, loads) {
            (["b32"], _) => false,
            (["pack::16b", "b32"], true) | (["unpack::16b", "b32"], false) => true,
            _ => return self.unsupported(form),
        };
        let number = number.strip_prefix('x').and_then(|number| number.parse::<usize>().ok());
        let (Some((shape, each, most)), Some(number)) = (Shape::named(shape), number) else {
            return self.unsupported(form);
        };
        let (at, registers, split) = match (loads, operands) {
            (true, &[registers, at, ref split @ ..]) => (at, registers, split),
            (false, &[at, ref split @ .., registers]) => (at, registers, split),
            _ => return self.unsupported(form),
        };
        let shape = match (shape, split) {
            (Shape::Halves(_), &[Operand::Int(split)])
                if (0..=MOST_SPLIT).contains(&i128::from(split)) =>
            {
                Shape::Halves(split as usize)
            }
            (Shape::Halves(_), _) => return self.unsupported(form),
            (shape, []) => shape,
            _ => return self.unsupported(form),
        };
        let parts = self.elements(registers);
        if !number.is_power_of_two() || number > most || parts.len() != each * number {
            return self.unsupported(form);
        }
        let address = self.tensor_address(at)?;
        let (mut targets, mut sources) = (Vec::new(), Vec::new());
        for part in parts {
            if loads {
                targets.push(self.target(part, Type::B32)?);
            } else {
                sources.push(self.source(part, Type::B32)?);
            }
        }
        Ok(TensorOp::Move(Box::new(MoveOp { shape, address, packed, targets, sources })))
    }

    /// `mma`: `rest` is what follows it.
    fn tensor_product(
        &mut self,
        form: &Form,
        rest: &[&str],
        operands: &[Operand],
    ) -> Result<TensorOp> {
        let (stationary, rest) = match rest {
            ["ws", rest @ ..] => (true, rest),
            rest => (false, rest),
        };
        let [group, kind, rest @ ..] = rest else { return self.unsupported(form) };
        let pair = match (*group, stationary) {
            ("cta_group::1", _) => false,
            ("cta_group::2", false) => true,
            _ => return self.unsupported(form),
        };
        let Some(kind) = kind.strip_prefix("kind::").and_then(Kind::named) else {
            return self.unsupported(form);
        };
        // Which buffer a matrix may stay in has no effect.
        let rest: Vec<&str> =
            rest.iter().copied().filter(|word| !word.starts_with("collector::")).collect();
        let blocks = match (kind, &rest[..]) {
            (Kind::Mxf8f6f4, ["block_scale"] | ["block_scale", "scale_vec::1X" | "block32"]) => 1,
            (Kind::Mxf4, ["block_scale"] | ["block_scale", "scale_vec::2X" | "block32"])
            | (Kind::Mxf4nvf4, ["block_scale", "scale_vec::2X" | "block32"]) => 2,
            (Kind::Mxf4nvf4, ["block_scale", "scale_vec::4X" | "block16"]) => 4,
            (_, []) if !kind.is_scaled() => 0,
            _ => return self.unsupported(form),
        };
        if stationary && blocks > 0 {
            return self.unsupported(form);
        }
        let &[d, left, right, instruction, ref rest @ ..] = operands else {
            return self.unsupported(form);
        };
        let (scale, rest) = match rest {
            rest if blocks == 0 => (None, rest),
            &[a, b, ref rest @ ..] => {
                let addresses = [self.tensor_address(a)?, self.tensor_address(b)?];
                (Some(ScaleOp { addresses, blocks }), rest)
            }
            _ => return self.unsupported(form),
        };
        let (mut disabled, mut rest) = (Vec::new(), rest);
        if let &[masks @ Operand::Vector(_), ref after @ ..] = rest {
            for mask in self.elements(masks) {
                disabled.push(self.source(mask, Type::B32)?);
            }
            if scale.is_some() || stationary || disabled.len() != if pair { 8 } else { 4 } {
                return self.unsupported(form);
            }
            rest = after;
        }
        let (add, shift) = match *rest {
            [add] => (add, 0),
            [add, Operand::Int(shift)]
                if matches!(kind, Kind::F16 | Kind::Tf32)
                    && !stationary
                    && (0..=15).contains(&shift) =>
            {
                (add, shift as u32)
            }
            _ => return self.unsupported(form),
        };
        let left = match left {
            Operand::Mem(..) => Left::Tensor(self.tensor_address(left)?),
            _ => Left::Shared(self.source(left, Type::B64)?),
        };
        Ok(TensorOp::Product(Box::new(ProductOp {
            kind,
            pair,
            stationary,
            d: self.tensor_address(d)?,
            left,
            right: self.source(right, Type::B64)?,
            instruction: self.source(instruction, Type::B32)?,
            disabled,
            add: self.source(add, Type::Pred)?,
            shift,
            scale,
        })))
    }
}

/// Rows, pieces of 16 bytes in each, and where they go, of the shape of a `cp`.
fn copied(words: &[&str]) -> Option<(usize, usize, Spread)> {
    Some(match *words {
        ["128x256b"] => (128, 2, Spread::Plain),
        ["4x256b"] => (4, 2, Spread::Warps),
        ["128x128b"] => (128, 1, Spread::Plain),
        ["64x128b", "warpx2::02_13"] => (64, 1, Spread::Pairs02),
        ["64x128b", "warpx2::01_23"] => (64, 1, Spread::Pairs01),
        ["32x128b", "warpx4"] => (32, 1, Spread::Four),
        _ => return None,
    })
}
