//! Ways out of a body, each with code of its own before it.
//!
//! Where lanes of a warp part and one side leaves, the compiler and the hardware let the lanes meet
//! again at the place that all ways lead to. A bare `ret` at a body's end is no such place: lanes
//! exit where they are. Code before that `ret` would make it one. Lanes that leave early would then
//! wait there for lanes that wait for their exit. Every branch to a `ret` therefore gets a copy of
//! the code, and no two ways out share one.

use crate::carry::emit;
use crate::ir::{Body, Inst, Label, LabelId, Module, Op, Operand, Pos, Slice, Stmt, Symbol, Table};

/// The code before a way out, and the way out itself.
pub(crate) trait Leave {
    /// Appends the code.
    fn leave(&mut self, module: &mut Module, body: &mut Body, out: &mut Vec<Stmt>);
}

/// The ways out of a kernel.
pub(crate) const OF_KERNELS: &[Op] = &[Op::Ret, Op::Exit];
/// The ways of a function that lead out of its kernel.
pub(crate) const OF_FUNCTIONS: &[Op] = &[Op::Exit];

/// Returns the statements with every one of the ways out replaced by what `leave` appends.
pub(crate) fn split(
    module: &mut Module,
    body: &mut Body,
    (stmts, ways): (Vec<Stmt>, &'static [Op]),
    leave: &mut dyn Leave,
) -> Vec<Stmt> {
    let returning = returning(module, body, &stmts, ways);
    let indexed = indexed(body);
    let mut split = Split { leave, ways, out: Vec::with_capacity(stmts.len()), behind: Vec::new() };
    let mut falls = true;
    for stmt in stmts {
        match stmt {
            Stmt::Inst(inst) => falls = split.inst(module, body, inst, &returning),
            Stmt::Label(label) => {
                if falls && returning[label.0 as usize] && indexed[label.0 as usize] {
                    split.leave.leave(module, body, &mut split.out);
                }
                falls = true;
                split.out.push(stmt);
            }
            _ => split.out.push(stmt),
        }
    }
    if falls {
        match ways == OF_KERNELS {
            true => split.leave.leave(module, body, &mut split.out),
            // Nothing may come behind a function's end but what is branched to.
            false => emit(module, body, &mut split.out, "ret", &[]),
        }
    }
    for label in std::mem::take(&mut split.behind) {
        split.out.push(Stmt::Label(label));
        split.leave.leave(module, body, &mut split.out);
    }
    split.out
}

/// Labels after which the code only leaves.
fn returning(module: &Module, body: &Body, stmts: &[Stmt], ways: &[Op]) -> Vec<bool> {
    let mut returning = vec![false; body.labels.len()];
    let mut leaves = ways.contains(&Op::Ret);
    for stmt in stmts.iter().rev() {
        match stmt {
            Stmt::Inst(inst) => {
                leaves = inst.guard.is_none() && ways.contains(&module.form(inst).op);
            }
            Stmt::Label(label) => returning[label.0 as usize] = leaves,
            Stmt::Table(_) => leaves = false,
            _ => {}
        }
    }
    returning
}

/// Labels of branch tables.
fn indexed(body: &Body) -> Vec<bool> {
    let mut indexed = vec![false; body.labels.len()];
    for table in &body.tables {
        if let Table::Branch(symbols) = table {
            for symbol in symbols {
                if let Symbol::Label(label) = symbol {
                    indexed[label.0 as usize] = true;
                }
            }
        }
    }
    indexed
}

struct Split<'a> {
    leave: &'a mut dyn Leave,
    ways: &'static [Op],
    out: Vec<Stmt>,
    /// Labels of blocks that come last.
    behind: Vec<LabelId>,
}

impl Split<'_> {
    /// Whether control may go on after the instruction.
    fn inst(
        &mut self,
        module: &mut Module,
        body: &mut Body,
        inst: Inst,
        returning: &[bool],
    ) -> bool {
        let guarded = inst.guard.is_some();
        match module.form(&inst).op {
            op if self.ways.contains(&op) && !guarded => {
                self.leave.leave(module, body, &mut self.out);
            }
            op if self.ways.contains(&op) => {
                let form = module.forms.intern("bra", &mut module.names);
                let operands = self.way_out(module, body);
                self.out.push(Stmt::Inst(Inst { form, operands, ..inst }));
            }
            Op::Bra if target(body, &inst).is_some_and(|label| returning[label.0 as usize]) => {
                let operands = self.way_out(module, body);
                self.out.push(Stmt::Inst(Inst { operands, ..inst }));
            }
            Op::Bra | Op::Brx | Op::Trap | Op::Ret => self.out.push(Stmt::Inst(inst)),
            _ => {
                self.out.push(Stmt::Inst(inst));
                return true;
            }
        }
        guarded
    }

    /// A block of its own, to branch to.
    fn way_out(&mut self, module: &mut Module, body: &mut Body) -> Slice {
        let index = u32::try_from(body.labels.len()).expect("fewer labels than source bytes");
        let name = module.names.fresh(&format!("$pw_out{index}"));
        body.labels.push(Label { name, pos: Pos::default() });
        self.behind.push(LabelId(index));
        body.add_operands(&[Operand::Symbol(Symbol::Label(LabelId(index)), 0)])
    }
}

fn target(body: &Body, inst: &Inst) -> Option<LabelId> {
    body.operands(inst.operands).iter().find_map(|operand| match operand {
        Operand::Symbol(Symbol::Label(label), _) => Some(*label),
        _ => None,
    })
}
