//! Matrix instructions of a warp group: `wgmma`.

use super::matrix::{element, is_sparse, shape};
use super::{Decoder, Result};
use crate::exec::inst::Op;
use crate::exec::matrix::{Element, Fragment, Layout, Role};
use crate::exec::product::Rule;
use crate::exec::tensor::MatrixOp;
use crate::exec::warpgroup::{GroupOp, Left, ROWS};
use partita_ptx::{Form, Mod, Operand, Type};

/// The length of the sums by the elements of A (PTX ISA, "wgmma.mma_async": all shapes have 32
/// bytes of K, and sparse ones twice as many).
const fn length(element: Element) -> usize {
    256 / element.width()
}

impl Decoder<'_> {
    pub(super) fn warpgroup_operation(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let text = self.module.text(form.text);
        let words: Vec<&str> = text.split('.').collect();
        // The product is there at once, so nothing is ordered and nothing waits.
        if let ["wgmma", "fence" | "commit_group" | "wait_group", "sync", "aligned"] = words[..] {
            self.emit(Op::Nop, 0, 0, 0, 0, 0);
            return Ok(());
        }
        if words.get(1) != Some(&"mma_async") {
            return self.unsupported(form);
        }
        let op = self.group_product(form, operands)?;
        self.emit_matrix(MatrixOp::Group(Box::new(op)));
        Ok(())
    }

    fn group_product(&mut self, form: &Form, operands: &[Operand]) -> Result<GroupOp> {
        let types: Vec<Element> = form.types().filter_map(element).collect();
        let (&[sum, a, b], 3, Some([64, n, k])) =
            (types.as_slice(), form.types().count(), shape(self.module.text(form.text)))
        else {
            return self.unsupported(form);
        };
        let is_sparse = is_sparse(self.module.text(form.text));
        let tiny = |element| matches!(element, Element::E4m3 | Element::E5m2);
        let half = matches!(a, Element::F16 | Element::Bf16);
        let (known, sums): (bool, &[Element]) = match a {
            Element::F16 => (a == b, &[Element::F16, Element::F32]),
            Element::Bf16 | Element::Tf32 => (a == b, &[Element::F32]),
            Element::E4m3 | Element::E5m2 => (tiny(b), &[Element::F16, Element::F32]),
            Element::S8 | Element::U8 => (b.is_integer() && b.width() == 8, &[Element::S32]),
            Element::B1 => (a == b && form.has(Mod::And) && !is_sparse, &[Element::S32]),
            _ => (false, &[]),
        };
        let columns = n.is_multiple_of(8) && (8..=256).contains(&n);
        let [to, left, right, rest @ ..] = operands else { return self.unsupported(form) };
        let (of_sparse, rest) = rest.split_at(if is_sparse { rest.len().min(2) } else { 0 });
        let sparse = self.sparse(form, of_sparse, (a, k))?;
        let [scale, rest @ ..] = rest else { return self.unsupported(form) };
        let stored = length(a);
        let whole = if is_sparse { 2 * stored } else { stored };
        let in_registers = matches!(left, Operand::Vector(_));
        let immediates = match (a.is_integer(), half, in_registers) {
            (true, ..) => 0,
            (false, false, _) => 2,
            (false, true, true) => 3,
            (false, true, false) => 4,
        };
        if !known || !sums.contains(&sum) || !columns || k != whole || rest.len() != immediates {
            return self.unsupported(form);
        }
        let mut numbers = [1_i64, 1, 0, 0];
        for (number, operand) in numbers.iter_mut().zip(rest) {
            let Operand::Int(value) = *operand else { return self.unsupported(form) };
            *number = value as i64;
        }
        // Where A is in registers, the last number is of B.
        let [transposed_a, transposed_b] =
            if in_registers { [0, numbers[2]] } else { [numbers[2], numbers[3]] };
        let sign = |number: i64| matches!(number, 1 | -1);
        let flag = |number: i64| matches!(number, 0 | 1);
        if !sign(numbers[0]) || !sign(numbers[1]) || !flag(transposed_a) || !flag(transposed_b) {
            return self.unsupported(form);
        }
        let left = if in_registers {
            let of_a = Fragment { role: Role::A, rows: ROWS, columns: stored, element: a };
            Left::Registers(self.fragment_sources(form, *left, &of_a)?, Layout::new(of_a))
        } else {
            Left::Shared(self.source(*left, Type::B64)?, transposed_a == 1)
        };
        let of_d = Fragment { role: Role::C, rows: ROWS, columns: n, element: sum };
        Ok(GroupOp {
            nk: [n, k],
            elements: [a, b],
            left,
            right: (self.source(*right, Type::B64)?, transposed_b == 1),
            sources: self.fragment_sources(form, *to, &of_d)?,
            targets: self.fragment_targets(form, *to, &of_d)?,
            sum: Layout::new(of_d),
            add: self.source(*scale, Type::Pred)?,
            negated: [numbers[0] == -1, numbers[1] == -1],
            rule: if form.has(Mod::Satfinite) { Rule::Saturate } else { Rule::Plain },
            sparse,
        })
    }
}
