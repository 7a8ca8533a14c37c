//! Puts code that Partita wrote in PTX into a program's function.
//!
//! A frame is PTX of Partita's own, parsed once in a process ([`frame`]). [`Graft::new`] finds
//! names for its registers, labels and variables that the program uses nowhere. [`Graft::put_into`]
//! then copies the frame into as many bodies as needed. The caller fills the frame's places
//! `.pragma "MARK";`.

use crate::ir::{
    Base, Body, FormId, Guard, Inst, Label, LabelId, Module, Name, Operand, Reg, RegDecl, RegNames,
    Register, Slice, Stmt, Symbol, VarId,
};

/// Parses a frame, which must consist of one function.
pub(crate) fn frame(source: &str) -> Module {
    crate::parse(source).expect("our own frames parse; a test holds it")
}

/// A frame, ready to be put into functions of one module.
#[derive(Debug)]
pub(crate) struct Graft {
    frame: &'static Module,
    regs: Vec<Name>,
    labels: Vec<Name>,
    vars: Vec<Name>,
    /// The module's form for each of the frame's.
    forms: Vec<FormId>,
}

/// Where the frame's things are in a body that it has been put into.
#[derive(Debug)]
pub(crate) struct Grafted {
    regs: u32,
    labels: u32,
    vars: Vec<VarId>,
    /// Variables among them that are declared elsewhere.
    outside: Vec<VarId>,
}

impl Graft {
    /// Finds names for a [`frame`]'s things in `module`.
    pub fn new(frame: &'static Module, module: &mut Module) -> Self {
        let body = frame.funcs[0].body.as_ref().expect("a frame has a body");
        let fresh = |names: &mut crate::ir::Names, name: Name| {
            let text = frame.names.text(name);
            names.fresh(&match text.strip_prefix('%') {
                Some(rest) => format!("%pw_{rest}"),
                None => format!("$pw_{text}"),
            })
        };
        let regs = body.regs.iter().map(|reg| fresh(&mut module.names, reg.name)).collect();
        let labels = body.labels.iter().map(|label| fresh(&mut module.names, label.name)).collect();
        let vars = frame.vars.iter().map(|var| fresh(&mut module.names, var.name)).collect();
        let forms = frame.forms.all().iter().map(|form| {
            let text = frame.names.text(form.text);
            module.forms.intern(text, &mut module.names)
        });
        let forms = forms.collect();
        Self { frame, regs, labels, vars, forms }
    }

    fn body(&self) -> &Body {
        self.frame.funcs[0].body.as_ref().expect("a frame has a body")
    }

    /// Adds the frame's registers, labels, operands and variables to the body; the statements come
    /// by [`Graft::stmts`]. `outside` are variables declared elsewhere that stand for the frame's
    /// own of those names.
    pub fn put_into(
        &self,
        module: &mut Module,
        body: &mut Body,
        outside: &[(&str, VarId)],
    ) -> Grafted {
        let count = |len: usize| u32::try_from(len).expect("pools are below 4 GiB");
        let mut base = Grafted {
            regs: count(body.regs.len()),
            labels: count(body.labels.len()),
            vars: self
                .frame
                .vars
                .iter()
                .zip(&self.vars)
                .map(|(variable, &name)| {
                    module.add_var(crate::ir::Variable { name, ..variable.clone() })
                })
                .collect(),
            outside: outside.iter().map(|&(_, id)| id).collect(),
        };
        for &(name, id) in outside {
            base.vars[self.var_index(name)] = id;
        }
        for (reg, &name) in self.body().regs.iter().zip(&self.regs) {
            body.regs.push(Register { name, depth: 0, ..*reg });
        }
        for (label, &name) in self.body().labels.iter().zip(&self.labels) {
            body.labels.push(Label { name, pos: label.pos });
        }
        base
    }

    /// The frame's statements for a body, with declarations. `fill` gives what stands for each
    /// mark.
    pub fn stmts(
        &self,
        module: &mut Module,
        body: &mut Body,
        grafted: &Grafted,
        fill: impl FnMut(&str, &mut Module, &mut Body, &mut Vec<Stmt>),
    ) -> Vec<Stmt> {
        let mut stmts = self.declarations(body, grafted);
        self.code(module, body, grafted, fill, &mut stmts);
        stmts
    }

    /// Appends the frame's statements without the declarations of registers. A frame without labels
    /// may stand several times in a body.
    pub fn code(
        &self,
        module: &mut Module,
        body: &mut Body,
        grafted: &Grafted,
        mut fill: impl FnMut(&str, &mut Module, &mut Body, &mut Vec<Stmt>),
        stmts: &mut Vec<Stmt>,
    ) {
        let pool = u32::try_from(body.operands.len()).expect("pools are below 4 GiB");
        for operand in &self.body().operands {
            body.operands.push(self.operand(*operand, grafted, pool));
        }
        for stmt in &self.body().stmts {
            match stmt {
                Stmt::Inst(inst) => {
                    let form = self.forms[inst.form.0 as usize];
                    stmts.push(Stmt::Inst(Inst {
                        guard: inst.guard.map(|g| Guard { reg: grafted.shift_reg(g.reg), ..g }),
                        form,
                        operands: shift(inst.operands, pool),
                        pos: crate::ir::Pos::default(),
                    }));
                }
                Stmt::Label(label) => stmts.push(Stmt::Label(grafted.shift_label(*label))),
                Stmt::Pragma(mark) => {
                    let mark = self.frame.names.text(*mark).trim_matches('"');
                    fill(mark, module, body, stmts);
                }
                Stmt::Var(id) => {
                    let id = grafted.vars[id.0 as usize];
                    if !grafted.outside.contains(&id) {
                        stmts.push(Stmt::Var(id));
                    }
                }
                _ => {}
            }
        }
    }

    /// The declarations of the frame's registers.
    pub fn declarations(&self, body: &mut Body, grafted: &Grafted) -> Vec<Stmt> {
        let mut decls: Vec<RegDecl> = Vec::new();
        for index in 0..self.body().regs.len() {
            let reg = body.regs[grafted.regs as usize + index];
            let names = RegNames { name: reg.name, count: None };
            match decls.iter_mut().find(|decl| decl.ty == reg.ty) {
                Some(decl) => decl.names.push(names),
                None => decls.push(RegDecl { ty: reg.ty, vector: 1, names: vec![names] }),
            }
        }
        let first = body.reg_decls.len();
        body.reg_decls.extend(decls);
        let index = |index: usize| u32::try_from(index).expect("pools are below 4 GiB");
        (first..body.reg_decls.len()).map(|decl| Stmt::Regs(index(decl))).collect()
    }

    fn operand(&self, operand: Operand, grafted: &Grafted, pool: u32) -> Operand {
        let symbol = |symbol: Symbol| match symbol {
            Symbol::Var(id) => Symbol::Var(grafted.vars[id.0 as usize]),
            Symbol::Label(label) => Symbol::Label(grafted.shift_label(label)),
            other => other,
        };
        match operand {
            Operand::Reg(reg) => Operand::Reg(grafted.shift_reg(reg)),
            Operand::Symbol(name, offset) => Operand::Symbol(symbol(name), offset),
            Operand::Mem(Base::Reg(reg), offset) => {
                Operand::Mem(Base::Reg(grafted.shift_reg(reg)), offset)
            }
            Operand::Mem(Base::Symbol(name), offset) => {
                Operand::Mem(Base::Symbol(symbol(name)), offset)
            }
            Operand::Vector(slice) => Operand::Vector(shift(slice, pool)),
            other => other,
        }
    }

    /// A variable of the frame as it is in the body.
    pub fn var(&self, grafted: &Grafted, name: &str) -> VarId {
        grafted.vars[self.var_index(name)]
    }

    /// A variable like the frame's, of another name, for the module itself to declare.
    pub fn outside(&self, module: &mut Module, name: &str) -> VarId {
        let variable = &self.frame.vars[self.var_index(name)];
        let fresh = module.names.fresh(&format!("pw_{name}"));
        module.add_var(crate::ir::Variable { name: fresh, ..variable.clone() })
    }

    /// A register of the frame as it is in the body.
    pub fn reg(&self, grafted: &Grafted, name: &str) -> Reg {
        grafted.shift_reg(Reg(u32::try_from(self.reg_index(name)).expect("few registers")))
    }

    /// What the frame's register is called in the module.
    pub fn reg_name(&self, name: &str) -> Name {
        self.regs[self.reg_index(name)]
    }

    fn var_index(&self, name: &str) -> usize {
        let index = self.frame.vars.iter().position(|var| self.frame.text(var.name) == name);
        index.expect("the frame has the variable")
    }

    fn reg_index(&self, name: &str) -> usize {
        let index = self.body().regs.iter().position(|reg| self.frame.text(reg.name) == name);
        index.expect("the frame has the register")
    }

    /// A label of the frame as it is in the body.
    pub fn label(&self, grafted: &Grafted, name: &str) -> LabelId {
        let index = self.body().labels.iter().position(|label| self.frame.text(label.name) == name);
        let index = u32::try_from(index.expect("the frame has the label")).expect("few labels");
        grafted.shift_label(LabelId(index))
    }
}

impl Grafted {
    const fn shift_reg(&self, reg: Reg) -> Reg {
        Reg(reg.0 + self.regs)
    }

    const fn shift_label(&self, label: LabelId) -> LabelId {
        LabelId(label.0 + self.labels)
    }
}

const fn shift(slice: Slice, pool: u32) -> Slice {
    Slice { start: slice.start + pool, len: slice.len }
}
