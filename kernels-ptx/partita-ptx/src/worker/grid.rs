//! Grid registers: how a body reads the original's `%ctaid` and `%nctaid`.
//!
//! The kernel has `%ctaid.x` in a register of the frame, and all other values in the slot. A
//! function that the kernel calls reads all values from the slot. Each thread of the kernel writes
//! `%ctaid.x` there before a CTA begins.

use crate::graft::{Graft, Grafted};
use crate::ir::{
    Base, Body, Inst, Module, Name, Op, Operand, Part, Pos, Reg, RegDecl, RegNames, Register,
    Slice, Special, Stmt, Symbol, Type, VarId,
};

/// Offset of `%ctaid.x` in the slot, for functions.
const CTA_X: i32 = 44;
/// Offsets in the slot; each has its register in [`Grid::spares`]. Those behind the sixth are in
/// the slot of a kernel that knows clusters.
const PLACES: [i32; 18] =
    [CTA_X, 8, 12, 16, 20, 24, 48, 52, 56, 64, 68, 72, 80, 84, 88, 96, 100, 104];

/// Replaces the grid registers of one body.
pub(crate) struct Grid {
    slot: VarId,
    /// Holds `%ctaid.x`, in a kernel.
    x: Option<Reg>,
    /// Registers to load into, free from one instruction to the next. Registers of clusters are
    /// replaced where they have a spare one.
    spares: Vec<Reg>,
}

impl Grid {
    /// For a kernel in the frame.
    pub fn of_kernel(graft: &Graft, grafted: &Grafted) -> Self {
        let reg = |name| graft.reg(grafted, name);
        Self {
            slot: graft.var(grafted, "slot"),
            x: Some(reg("%x")),
            // The frame needs these between CTAs only.
            spares: ["%x", "%a", "%b", "%c", "%d", "%q"].map(reg).to_vec(),
        }
    }

    /// For a kernel in the frame that knows clusters.
    pub fn of_clusters(graft: &Graft, grafted: &Grafted) -> Self {
        const MORE: [&str; 12] =
            ["%e0", "%e1", "%e2", "%e3", "%e4", "%e5", "%e6", "%e7", "%e8", "%e9", "%e10", "%e11"];
        let mut grid = Self::of_kernel(graft, grafted);
        grid.spares.extend(MORE.map(|name| graft.reg(grafted, name)));
        grid
    }

    /// For a function, which gets registers of these names.
    pub fn of_function(body: &mut Body, slot: VarId, names: [Name; 6]) -> Self {
        let spares = names.map(|name| {
            body.regs.push(Register { name, ty: Type::B32, vector: 1, depth: 0 });
            Reg(u32::try_from(body.regs.len() - 1).expect("pools are below 4 GiB"))
        });
        let names = names.map(|name| RegNames { name, count: None }).to_vec();
        body.reg_decls.push(RegDecl { ty: Type::B32, vector: 1, names });
        let decl = u32::try_from(body.reg_decls.len() - 1).expect("pools are below 4 GiB");
        body.stmts.insert(0, Stmt::Regs(decl));
        Self { slot, x: None, spares: spares.to_vec() }
    }

    /// Writes `%ctaid.x` to the place where functions read it. All threads write the same value,
    /// and each reads it after its own write.
    pub fn publish(&self, module: &mut Module, body: &mut Body, out: &mut Vec<Stmt>) {
        let form = module.forms.intern("st.shared.u32", &mut module.names);
        let operands = body.add_operands(&[self.slot_at(CTA_X), Operand::Reg(self.spares[0])]);
        out.push(Stmt::Inst(Inst { guard: None, form, operands, pos: Pos::default() }));
    }

    /// Replaces registers that hold the original's `%ctaid.x` and nothing else by the frame's
    /// register, and drops the copies. Each copy would cost every thread an instruction a CTA.
    /// Where such a register is read before the copy, any value is right.
    pub fn absorb(&self, module: &Module, body: &mut Body, stmts: &mut Vec<Stmt>) {
        let Some(x) = self.x else { return };
        let copied_to = |body: &Body, inst: &Inst| match *body.operands(inst.operands) {
            [Operand::Reg(to), Operand::Special(Special::Ctaid, Part::X)]
                if inst.guard.is_none() =>
            {
                let form = module.form(inst);
                let register = body.reg(to);
                let integer = register.ty.is_integer() || register.ty.is_untyped();
                let is_word = |ty: Type| ty.bits() == 32;
                (form.op == Op::Mov
                    && form.last_type().is_some_and(is_word)
                    && is_word(register.ty)
                    && integer
                    && register.vector == 1)
                    .then_some(to)
            }
            _ => None,
        };
        let copy = |(index, stmt): (usize, &Stmt)| match stmt {
            Stmt::Inst(inst) => copied_to(body, inst).map(|to| (index, to)),
            _ => None,
        };
        let copies: Vec<(usize, Reg)> = stmts.iter().enumerate().filter_map(copy).collect();
        if copies.is_empty() {
            return;
        }
        let mut definitions = vec![0_u8; body.regs.len()];
        for stmt in stmts.iter() {
            if let Stmt::Inst(inst) = stmt {
                body.each_result(inst, &mut |reg| {
                    let count = &mut definitions[reg.index()];
                    *count = count.saturating_add(1);
                });
            }
        }
        let mut absorbed = vec![false; body.regs.len()];
        let mut dropped: Vec<usize> = Vec::new();
        for (index, reg) in copies.into_iter().filter(|(_, reg)| definitions[reg.index()] == 1) {
            absorbed[reg.index()] = true;
            dropped.push(index);
            if let Stmt::Inst(inst) = &stmts[index] {
                // No later search finds the grid register in the pool.
                body.operands[inst.operands.range()].fill(Operand::Sink);
            }
        }
        let mut dropped = dropped.into_iter().peekable();
        let mut index = 0;
        stmts.retain(|_| {
            let keep = dropped.next_if_eq(&index).is_none();
            index += 1;
            keep
        });
        for operand in &mut body.operands {
            match operand {
                Operand::Reg(reg)
                | Operand::Part { reg, .. }
                | Operand::Neg(reg)
                | Operand::RegPlus(reg, _)
                | Operand::Mem(Base::Reg(reg), _)
                    if absorbed[reg.index()] =>
                {
                    *reg = x;
                }
                _ => {}
            }
        }
    }

    /// Whether any instruction may read a grid register.
    pub fn is_read(body: &Body) -> bool {
        let is_grid = |operand: &Operand| match *operand {
            Operand::Special(special, part) => place(special, part).is_some_and(|at| at < OF_GRID),
            _ => false,
        };
        body.operands.iter().any(is_grid)
    }

    /// Appends an instruction with its grid registers replaced.
    pub fn instruction(
        &self,
        module: &mut Module,
        body: &mut Body,
        inst: Inst,
        out: &mut Vec<Stmt>,
    ) {
        if self.direct(module, body, &inst, out) {
            return;
        }
        self.operands(module, body, inst.operands, out);
        out.push(Stmt::Inst(inst));
    }

    /// `mov.u32 %r1, %ctaid.y` becomes the load itself.
    fn direct(
        &self,
        module: &mut Module,
        body: &mut Body,
        inst: &Inst,
        out: &mut Vec<Stmt>,
    ) -> bool {
        let form = module.form(inst);
        if form.op != Op::Mov {
            return false;
        }
        let bits = form.last_type().map_or(0, Type::bits);
        let &[result, Operand::Special(special, part)] = body.operands(inst.operands) else {
            return false;
        };
        let Some(place) = self.place(special, part) else { return false };
        let (text, source) = match (bits, self.x) {
            (32, Some(_)) if place == 0 => return false,
            // The old 16-bit views of the grid registers.
            (_, Some(x)) if place == 0 => ("cvt.u16.u32", Operand::Reg(x)),
            (32, _) => ("ld.shared.b32", self.slot_at(PLACES[place])),
            _ => ("ld.shared.u16", self.slot_at(PLACES[place])),
        };
        let form = module.forms.intern(text, &mut module.names);
        let operands = body.add_operands(&[result, source]);
        out.push(Stmt::Inst(Inst { form, operands, ..*inst }));
        true
    }

    /// The place of a register that this body's slot holds.
    fn place(&self, special: Special, part: Part) -> Option<usize> {
        place(special, part).filter(|place| *place < self.spares.len())
    }

    fn slot_at(&self, offset: i32) -> Operand {
        Operand::Mem(Base::Symbol(Symbol::Var(self.slot)), offset)
    }

    /// Replaces grid registers among the operands; loads go in front.
    fn operands(&self, module: &mut Module, body: &mut Body, slice: Slice, out: &mut Vec<Stmt>) {
        for index in slice.range() {
            match body.operands[index] {
                Operand::Special(special, part) => {
                    let Some(place) = self.place(special, part) else { continue };
                    let spare = self.spares[place];
                    body.operands[index] = Operand::Reg(spare);
                    if self.x != Some(spare) {
                        let form = module.forms.intern("ld.shared.u32", &mut module.names);
                        let from = self.slot_at(PLACES[place]);
                        let operands = body.add_operands(&[Operand::Reg(spare), from]);
                        out.push(Stmt::Inst(Inst {
                            guard: None,
                            form,
                            operands,
                            pos: Pos::default(),
                        }));
                    }
                }
                Operand::Vector(slice)
                | Operand::List(slice)
                | Operand::Tuple(slice)
                | Operand::Pair(slice) => {
                    self.operands(module, body, slice, out);
                }
                _ => {}
            }
        }
    }
}

/// Places of grid registers; those of clusters come behind them.
pub(crate) const OF_GRID: usize = 6;

/// Which of [`PLACES`] has a register's value: x, y, z of `%ctaid`, then of `%nctaid`,
/// `%clusterid`, `%nclusterid`, `%cluster_ctaid` and `%cluster_nctaid`.
pub(crate) const fn place(special: Special, part: Part) -> Option<usize> {
    let first = match special {
        Special::Ctaid => 0,
        Special::Nctaid => 3,
        Special::Clusterid => 6,
        Special::Nclusterid => 9,
        Special::ClusterCtaid => 12,
        Special::ClusterNctaid => 15,
        _ => return None,
    };
    match part {
        Part::X => Some(first),
        Part::Y => Some(first + 1),
        Part::Z => Some(first + 2),
        _ => None,
    }
}
