//! Decides whether the CTAs of a kernel may wait for each other.
//!
//! Waiting is a loop that looks at memory which another CTA writes. In a program without data races
//! such a look is a strong operation (PTX ISA, "Memory Consistency Model": strong operations;
//! `.volatile` counts as one), or an atomic whose result the program reads. A kernel without such
//! an instruction in a loop cannot tell whether its CTAs run at once.
//!
//! Loops are found by the text: every statement of a cycle lies between a branch and an earlier
//! label to which the branch may go. A statement there counts even where it is not on a cycle, and
//! so does every statement of a called function.

use crate::ir::{
    Base, Body, FuncId, Inst, Mod, Module, Op, Operand, Reg, Slice, Space, Stmt, Symbol, Table,
};
use crate::kernels::Reach;

/// What the loops of a kernel, and the functions that it calls, may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spins {
    /// CTAs of the kernel may wait for each other.
    pub waits: bool,
    /// CTAs of the kernel may wait until others have come as far as they themselves have, as in
    /// scans that look back: a loop loads what others write. A loop that only retries an atomic
    /// operation, as locks do, waits for no CTA's whole work.
    pub follows: bool,
    /// The kernel may execute an instruction more than once: it has a loop, or calls functions.
    pub loops: bool,
}

impl Spins {
    /// Looks at a kernel and its reach ([`Module::reach`]).
    #[must_use]
    pub fn of(module: &Module, kernel: FuncId, reach: &Reach) -> Spins {
        let follows =
            |looks: &Looks<'_>, inst: &Inst| module.form(inst).op == Op::Ld && looks.looks(inst);
        let body = reach.funcs.first().and_then(|&id| module.func(id).body.as_ref());
        Spins {
            waits: reaches(module, kernel, reach, |looks, inst| looks.looks(inst)),
            follows: reaches(module, kernel, reach, follows),
            loops: reach.indirect
                || reach.funcs.len() > 1
                || body.is_none_or(|body| in_loop(module, body, |_| true)),
        }
    }
}

/// Whether CTAs of this kernel may wait for each other.
#[must_use]
pub fn may_wait(module: &Module, kernel: FuncId) -> bool {
    Spins::of(module, kernel, &module.reach(kernel)).waits
}

fn reaches(
    module: &Module,
    kernel: FuncId,
    reach: &Reach,
    is_look: impl Fn(&Looks<'_>, &Inst) -> bool,
) -> bool {
    reach.funcs.iter().any(|&id| {
        let Some(body) = &module.func(id).body else { return false };
        let looks = Looks::of(module, body);
        if id == kernel {
            in_loop(module, body, |inst| is_look(&looks, inst))
        } else {
            body.insts().any(|(_, inst)| is_look(&looks, inst))
        }
    })
}

/// Whether a kernel looks in a loop at memory that other CTAs may write.
pub(crate) fn looks_in_loop(module: &Module, body: &Body) -> bool {
    let looks = Looks::of(module, body);
    in_loop(module, body, |inst| looks.looks(inst))
}

fn in_loop(module: &Module, body: &Body, is_look: impl Fn(&Inst) -> bool) -> bool {
    let mut place = vec![usize::MAX; body.labels.len()];
    for (index, stmt) in body.stmts.iter().enumerate() {
        if let Stmt::Label(label) = stmt {
            place[label.0 as usize] = index;
        }
    }
    let target = |symbol: &Symbol| match symbol {
        Symbol::Label(label) => Some(place[label.0 as usize]),
        _ => None,
    };
    let table_start = body.tables.iter().flat_map(|table| match table {
        Table::Branch(symbols) => symbols.as_slice(),
        _ => &[],
    });
    let table_start = table_start.filter_map(target).min();
    // The farthest that a branch from here or later goes back.
    let mut start = usize::MAX;
    body.stmts.iter().enumerate().rev().any(|(index, stmt)| {
        let Stmt::Inst(inst) = stmt else { return false };
        let to = match module.form(inst).op {
            Op::Bra => body.operands(inst.operands).iter().find_map(|operand| match operand {
                Operand::Symbol(symbol, _) => target(symbol),
                _ => None,
            }),
            Op::Brx => table_start,
            _ => None,
        };
        start = start.min(to.unwrap_or(usize::MAX));
        start < index && is_look(inst)
    })
}

/// The instructions of a body that look at memory which other CTAs may write.
pub(crate) struct Looks<'a> {
    module: &'a Module,
    body: &'a Body,
    /// The number of occurrences of each register, up to two.
    occurs: Vec<u8>,
}

impl<'a> Looks<'a> {
    pub(crate) fn of(module: &'a Module, body: &'a Body) -> Self {
        let mut looks = Looks { module, body, occurs: vec![0; body.regs.len()] };
        if body.insts().any(|(_, inst)| module.form(inst).op == Op::Atom) {
            for (_, inst) in body.insts() {
                if let Some(guard) = inst.guard {
                    looks.note(guard.reg);
                }
                looks.note_all(inst.operands);
            }
        }
        looks
    }

    fn note(&mut self, reg: Reg) {
        let occurs = &mut self.occurs[reg.index()];
        *occurs = occurs.saturating_add(1);
    }

    fn note_all(&mut self, operands: Slice) {
        for operand in self.body.operands(operands) {
            match *operand {
                Operand::Reg(reg)
                | Operand::Not(reg)
                | Operand::Neg(reg)
                | Operand::RegPlus(reg, _)
                | Operand::Part { reg, .. }
                | Operand::Mem(Base::Reg(reg), _) => self.note(reg),
                Operand::Vector(parts)
                | Operand::List(parts)
                | Operand::Tuple(parts)
                | Operand::Pair(parts) => {
                    self.note_all(parts);
                }
                _ => {}
            }
        }
    }

    /// Whether the instruction is such a look.
    pub(crate) fn looks(&self, inst: &Inst) -> bool {
        let form = self.module.form(inst);
        let own = self
            .module
            .access_space(self.body, inst)
            .is_some_and(|space| space.is_shared() || matches!(space, Space::Local | Space::Param));
        let strong = [Mod::Volatile, Mod::Relaxed, Mod::Acquire, Mod::Mmio, Mod::Cv];
        match form.op {
            Op::Atom => !own && !self.is_unread(inst),
            Op::Ld => !own && strong.iter().any(|&modifier| form.has(modifier)),
            _ => false,
        }
    }

    /// Whether the result has no register, or a register that nothing else names: compilers write
    /// reductions in both ways.
    fn is_unread(&self, inst: &Inst) -> bool {
        match self.body.operands(inst.operands).first() {
            Some(Operand::Reg(reg)) => self.occurs[reg.index()] == 1,
            Some(Operand::Sink) => true,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spins(module: &Module) -> Spins {
        let kernel = module.kernels()[0].func;
        Spins::of(module, kernel, &module.reach(kernel))
    }

    fn check(body: &str, expected: bool) {
        let source = format!(
            ".version 8.4\n.target sm_90\n.address_size 64\n.global .u32 g;\n.shared .u32 s;\n\
             .func f() {{ .reg .b32 %r<2>; atom.global.add.u32 %r1, [g], 1; st.shared.u32 [s], \
             %r1; ret; }}\n\
             .entry k() {{ .reg .pred %p; .reg .b32 %r<4>; {body} st.shared.u32 [s], %r1; ret; }}"
        );
        let module = crate::parse(&source).unwrap();
        let kernel = module.kernels()[0].func;
        assert_eq!(may_wait(&module, kernel), expected, "{body}");
    }

    #[test]
    fn retries_follow_nobody() {
        let follows = |body: &str| {
            let source = format!(
                ".version 8.4\n.target sm_90\n.address_size 64\n.global .u32 g;\n\
                 .entry k() {{ .reg .pred %p; .reg .b32 %r<4>; {body} ret; }}"
            );
            let module = crate::parse(&source).unwrap();
            spins(&module).follows
        };
        assert!(follows("A: ld.relaxed.gpu.global.u32 %r1, [g]; @%p bra A;"));
        assert!(!follows("A: atom.global.cas.b32 %r1, [g], 0, 1; @%p bra A;"));
        assert!(!follows("ld.relaxed.gpu.global.u32 %r1, [g]; A: @%p bra A;"));
    }

    #[test]
    fn code_without_loops_is_found() {
        let loops = |body: &str| {
            let source = format!(
                ".version 8.4\n.target sm_90\n.address_size 64\n\
                 .func f() {{ ret; }}\n\
                 .entry k() {{ .reg .pred %p; .reg .b32 %r<4>; {body} ret; }}"
            );
            let module = crate::parse(&source).unwrap();
            spins(&module).loops
        };
        assert!(!loops("mov.u32 %r1, 1;"));
        assert!(!loops("@%p bra A; mov.u32 %r1, 1; A:"));
        assert!(loops("A: mov.u32 %r1, 1; @%p bra A;"));
        assert!(!loops("brx.idx %r2, T; T: .branchtargets A, B; A: B:"));
        assert!(loops("A: brx.idx %r2, T; T: .branchtargets A, B; B:"));
        assert!(loops("call f;"));
    }

    #[test]
    fn looks_in_loops_are_found() {
        check("ld.volatile.global.u32 %r1, [g];", false);
        check("A: ld.global.u32 %r1, [g]; @%p bra A;", false);
        check("A: ld.volatile.global.u32 %r1, [g]; @%p bra A;", true);
        check("A: ld.acquire.gpu.global.u32 %r1, [g]; @%p bra A;", true);
        check("A: ld.volatile.shared.u32 %r1, [s]; @%p bra A;", false);
        check("atom.global.add.u32 %r1, [g], 1; A: @%p bra A;", false);
        check("A: @%p bra B; atom.global.add.u32 %r1, [g], 1; bra A; B:", true);
        check("A: @%p bra A; atom.global.add.u32 %r1, [g], 1; B: @%p bra B;", false);
        check("B: A: @%p bra A; atom.global.add.u32 %r1, [g], 1; @%p bra B;", true);
        check("bra B; A: atom.global.add.u32 %r1, [g], 1; bra C; B: @%p bra A; C:", true);
        check(
            "A: atom.global.add.u32 %r1, [g], 1; brx.idx %r2, T; T: .branchtargets A, B; B:",
            true,
        );
        check("call f;", true);
        // Only atomics with a result that some instruction reads.
        check("A: atom.global.add.u32 %r3, [g], 1; @%p bra A;", false);
        check("A: atom.global.add.u32 _, [g], 1; @%p bra A;", false);
        check("A: atom.global.add.u32 %r3, [g], 1; @%p bra A; st.shared.u32 [s], %r3;", true);
    }
}
