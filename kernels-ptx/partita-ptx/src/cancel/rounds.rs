//! Bounds the rounds of loops that count by numbers of the program's text.

use crate::ir::{Body, Guard, Inst, Mod, Module, Op, Operand, Reg, Stmt, Symbol, Table, Type};

/// For each label the first and the last statement that branches to it.
pub(super) struct Branches(Vec<(usize, usize)>);

impl Branches {
    pub(super) fn of(module: &Module, body: &Body) -> Branches {
        let mut to = vec![(usize::MAX, 0); body.labels.len()];
        let mut note = |stmt: usize, symbol: &Symbol| {
            if let Symbol::Label(label) = symbol {
                let (first, last) = &mut to[label.0 as usize];
                (*first, *last) = ((*first).min(stmt), (*last).max(stmt));
            }
        };
        for (stmt, inst) in body.insts() {
            if module.form(inst).op == Op::Bra {
                for operand in body.operands(inst.operands) {
                    if let Operand::Symbol(symbol, _) = operand {
                        note(stmt, symbol);
                    }
                }
            }
        }
        // A table may be used from anywhere.
        for table in &body.tables {
            if let Table::Branch(symbols) = table {
                for symbol in symbols {
                    note(0, symbol);
                    note(usize::MAX, symbol);
                }
            }
        }
        Branches(to)
    }

    /// Whether only branches of the range go to labels of the range.
    fn are_within(&self, body: &Body, (start, end): (usize, usize)) -> bool {
        body.stmts[start..=end].iter().all(|stmt| match stmt {
            Stmt::Label(label) => {
                let (first, last) = self.0[label.0 as usize];
                first >= start && last <= end
            }
            _ => true,
        })
    }
}

/// The most rounds of a loop, from a label to the branch back to it; `None` where no number of the
/// text bounds them.
///
/// The loop is `add i, i, step; setp p, i, limit; @p bra`, in one block at the loop's end, and `i`
/// gets a number right before the loop, by the only way into it.
pub(super) fn most(
    module: &Module,
    body: &Body,
    branches: &Branches,
    (start, end): (usize, usize),
) -> Option<u64> {
    let inst = |stmt: usize| match &body.stmts[stmt] {
        Stmt::Inst(inst) => Some(inst),
        _ => None,
    };
    let Guard { reg: goes, negated } = inst(end)?.guard?;
    let last = (start..end).rev().take_while(|&stmt| !matches!(body.stmts[stmt], Stmt::Label(_)));
    let last: Vec<usize> = last.collect();
    let defines = |inst: &Inst, reg: Reg| {
        let mut found = false;
        body.each_result(inst, &mut |result| found |= result == reg);
        found
    };
    let only = |reg: Reg| {
        let mut all = (start..end).filter(|&stmt| inst(stmt).is_some_and(|i| defines(i, reg)));
        let one = all.next().filter(|one| last.contains(one) && all.next().is_none())?;
        let inst = inst(one)?;
        // No branch of the block may pass it by.
        inst.guard.is_none().then_some((one, inst))
    };
    let leaves = |inst: &Inst| matches!(module.form(inst).op, Op::Bra | Op::Brx);
    let (compared, test) = only(goes)?;
    let form = module.form(test);
    let &[tested, Operand::Reg(counter), limit] = body.operands(test.operands) else {
        return None;
    };
    let (added, step) = only(counter)?;
    let first = compared.min(added);
    let is_test = form.op == Op::Setp && tested == Operand::Reg(goes);
    if (first..end).filter_map(inst).any(leaves) || !is_test {
        return None;
    }
    let mut types = form.types();
    let (ty, None) = (types.next()?, types.next()) else { return None };
    let is_plain = |ty: Type| matches!(ty, Type::U32 | Type::S32 | Type::U64 | Type::S64);
    let limit = number(limit, ty).filter(|_| form.mods.len() == 2 && is_plain(ty))?;
    let &[to, Operand::Reg(from), by] = body.operands(step.operands) else { return None };
    let adds = module.form(step);
    let fits = |added: Type| is_plain(added) && added.bits() == ty.bits();
    let is_own = from == counter && to == Operand::Reg(counter);
    if adds.op != Op::Add || !is_own || adds.mods.len() != 1 || !adds.types().all(fits) {
        return None;
    }
    let by = number(by, signed(ty))?;
    let before = (0..start).rev().take_while(|&stmt| !matches!(body.stmts[stmt], Stmt::Label(_)));
    let begins = before.filter_map(inst).find(|inst| defines(inst, counter))?;
    let &[set, value] = body.operands(begins.operands) else { return None };
    let is_set = module.form(begins).op == Op::Mov && set == Operand::Reg(counter);
    let value = number(value, ty).filter(|_| is_set)?;
    if begins.guard.is_some() || !branches.are_within(body, (start, end)) {
        return None;
    }
    count((value, by, limit), (*form.mods.first()?, negated), ty.is_signed())
}

/// The rounds from a value in steps until a comparison with the limit fails.
fn count(
    (value, by, limit): (i64, i64, i64),
    (compares, negated): (Mod, bool),
    is_signed: bool,
) -> Option<u64> {
    // Nothing wraps between numbers that are so small.
    const SMALL: i64 = 1 << 30;
    if [value, by, limit].iter().any(|number| number.abs() >= SMALL) || by == 0 {
        return None;
    }
    let goes_on = match (compares, negated) {
        (Mod::Lt, false) | (Mod::Ge, true) => Mod::Lt,
        (Mod::Le, false) | (Mod::Gt, true) => Mod::Le,
        (Mod::Gt, false) | (Mod::Le, true) => Mod::Gt,
        (Mod::Ge, false) | (Mod::Lt, true) => Mod::Ge,
        (Mod::Ne, false) | (Mod::Eq, true) => Mod::Ne,
        _ => return None,
    };
    // A step down must not go below zero where no number is negative.
    if !is_signed && goes_on != Mod::Ne && value.min(limit) + by < 0 {
        return None;
    }
    let (way, step) = if by > 0 { (limit - value, by) } else { (value - limit, -by) };
    let counts = match goes_on {
        Mod::Lt | Mod::Le => by > 0,
        Mod::Gt | Mod::Ge => by < 0,
        // The limit is hit.
        _ => way > 0 && way % step == 0,
    };
    counts.then_some((way.max(0) / step + 1).cast_unsigned())
}

/// The number of an operand as the type reads it.
fn number(operand: Operand, ty: Type) -> Option<i64> {
    let (Operand::Int(value) | Operand::Uint(value)) = operand else { return None };
    let beyond = 64 - ty.bits();
    let value = value << beyond;
    Some(match ty.is_signed() {
        true => value.cast_signed() >> beyond,
        false => i64::try_from(value >> beyond).ok()?,
    })
}

/// The signed type of the same size: a step may go down.
fn signed(ty: Type) -> Type {
    if ty.bits() == 64 { Type::S64 } else { Type::S32 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Ends, cancel_with};

    fn check(code: &str, expected: Option<u64>) {
        let source = format!(
            ".version 8.4\n.target sm_90\n.address_size 64\n.entry k(.param .u32 n) {{\n.reg .pred \
             %p, %q;\n.reg .b32 %i, %n;\nld.param.u32 %n, [n];\n{code}\nret;\n}}"
        );
        let module = crate::parse(&source).unwrap();
        let body = module.funcs[0].body.as_ref().unwrap();
        let at = |wanted: fn(&Stmt, &Module) -> bool| {
            body.stmts.iter().position(|stmt| wanted(stmt, &module)).unwrap()
        };
        let start = at(|stmt, _| matches!(stmt, Stmt::Label(_)));
        let is_branch =
            |stmt: &&Stmt| matches!(stmt, Stmt::Inst(i) if module.form(i).op == Op::Bra);
        let end = body.stmts.iter().rposition(|stmt| is_branch(&stmt)).unwrap();
        let branches = Branches::of(&module, body);
        assert_eq!(most(&module, body, &branches, (start, end)), expected, "{code}");
    }

    #[test]
    fn loops_that_count_to_a_number_are_bounded() {
        let up =
            |limit: &str| format!("mov.u32 %i, 0; A: add.s32 %i, %i, 4; setp.{limit}; @%p bra A;");
        check(&up("lt.s32 %p, %i, 100"), Some(26));
        check(&up("ne.s32 %p, %i, 100"), Some(26));
        check(&up("ne.s32 %p, %i, 101"), None);
        check(&up("gt.s32 %p, %i, 100"), None);
        check(&up("lt.s32 %p, %i, %n"), None);
        check(&up("lt.u32 %p, %i, 4294967295"), None);
        check("mov.u32 %i, 64; A: add.s32 %i, %i, -1; setp.ne.s32 %p, %i, 0; @%p bra A;", Some(65));
        let down = |from: u32, step: i32, test: &str| {
            format!("mov.u32 %i, {from}; A: add.s32 %i, %i, {step}; setp.{test}; @%p bra A;")
        };
        // The counter has no value below zero, passes zero by, or goes past the largest number.
        check(&down(10, -1, "ge.u32 %p, %i, 0"), None);
        check(&down(5, -4, "gt.u32 %p, %i, 0"), None);
        check(&down(2, -4, "gt.u32 %p, %i, 5"), None);
        check(&down(10, -1, "gt.u32 %p, %i, 1"), Some(10));
        check(&down(10, -1, "ne.u32 %p, %i, 0"), Some(11));
        check(&down(10, -1, "gt.s32 %p, %i, 0"), Some(11));
        check(
            "mov.u32 %i, 0; A: add.s32 %i, %i, 1073741824; setp.le.s32 %p, %i, 1073741824; @%p bra \
             A;",
            None,
        );
        // The second result of a pair is the opposite.
        check(
            "mov.u32 %i, 200; A: add.s32 %i, %i, 1; setp.lt.s32 %q|%p, %i, 100; @%p bra A;",
            None,
        );
        check(
            "mov.b64 {%n, %i}, 0x8000000000000000; A: add.s32 %i, %i, 1; setp.lt.s32 %p, %i, 100; \
             @%p bra A;",
            None,
        );
        check("mov.u32 %i, 0; A: add.s16x2 %i, %i, 1; setp.lt.s32 %p, %i, 100; @%p bra A;", None);
        check("mov.u32 %i, %n; A: add.s32 %i, %i, 1; setp.lt.s32 %p, %i, 9; @%p bra A;", None);
        check("A: add.s32 %i, %i, 1; setp.lt.s32 %p, %i, 9; @%p bra A;", None);
        check(
            "bra A; mov.u32 %i, 0; A: add.s32 %i, %i, 1; setp.lt.s32 %p, %i, 9; @%p bra A;",
            None,
        );
        // Its step may be passed by.
        check(
            "mov.u32 %i, 0; A: @%q bra B; add.s32 %i, %i, 1; B: setp.lt.s32 %p, %i, 9; @%p bra A;",
            None,
        );
        check("mov.u32 %i, 0; A: @%q add.s32 %i, %i, 1; setp.lt.s32 %p, %i, 9; @%p bra A;", None);
    }

    #[test]
    fn loops_without_a_bound_look_where_grids_cannot_be_ended() {
        let cases =
            [("%n", Ends::Always, true), ("%n", Ends::Launch, false), ("100", Ends::Always, false)];
        for (limit, ends, looks) in cases {
            let source = format!(
                ".version 8.4\n.target sm_90\n.address_size 64\n.entry k(.param .u32 n) {{\n.reg \
                 .pred %p;\n.reg .b32 %i, %n;\nld.param.u32 %n, [n];\nmov.u32 %i, 0;\nA: add.s32 \
                 %i, %i, 1;\nsetp.lt.s32 %p, %i, {limit};\n@%p bra A;\nret;\n}}"
            );
            let stopped = cancel_with(crate::parse(&source).unwrap(), &[], ends);
            let text = crate::print(&stopped.module);
            assert_eq!(text.contains("+256]"), looks, "{limit} {ends:?}: {text}");
        }
    }

    /// Thousands of threads that try one lock make their atomics one after the other.
    #[test]
    fn loops_that_try_a_word_look_in_every_128th_round() {
        let tries = "atom.global.cas.b32 %w, [%d], 0, 1;";
        let reads = "ld.volatile.global.u32 %w, [%d];";
        for (asks, counts) in [(tries, 8), (reads, 1)] {
            let source = format!(
                ".version 8.4\n.target sm_90\n.address_size 64\n.entry k(.param .u64 p) {{\n.reg \
                 .pred %p;\n.reg .b32 %w;\n.reg .b64 %d;\nld.param.u64 %d, [p];\nA: {asks}\n\
                 setp.ne.u32 %p, %w, 0;\n@%p bra A;\nret;\n}}"
            );
            let stopped = cancel_with(crate::parse(&source).unwrap(), &[], Ends::Launch);
            let text = crate::print(&stopped.module);
            let expected = format!("sub.s32 %pw_rounds, %pw_rounds, {counts};");
            assert!(text.contains(&expected), "{text}");
        }
    }
}
