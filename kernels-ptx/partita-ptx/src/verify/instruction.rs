//! Checks operand counts, and widths where they are simple to state. Loads, stores and conversions
//! take wider registers, others do not (PTX ISA, "Instruction Operands" and "Operand Size Exceeding
//! Instruction-Type Size").

use super::{TableLabels, Verifier};
use crate::analysis::divergence::results;
use crate::ir::{
    Base, Body, Form, Guard, Inst, Mod, Op, Operand, Part, Reg, Slice, Space, Special, Symbol,
    Type, VarId,
};

/// The least and the greatest number of operands of an opcode; `None` when the table does not say.
fn counts(form: &Form) -> Option<(u32, u32)> {
    let sync = form.has(Mod::Sync);
    Some(match form.op {
        Op::Ret | Op::Exit | Op::Trap | Op::Brkpt | Op::Membar | Op::Griddepcontrol => (0, 0),
        Op::Bra | Op::Activemask | Op::Nanosleep => (1, 1),
        Op::Brx
        | Op::Abs
        | Op::Neg
        | Op::Not
        | Op::Cnot
        | Op::Popc
        | Op::Clz
        | Op::Brev
        | Op::Bfind
        | Op::Mov
        | Op::Cvta
        | Op::Rcp
        | Op::Sqrt
        | Op::Rsqrt
        | Op::Sin
        | Op::Cos
        | Op::Lg2
        | Op::Ex2
        | Op::Tanh
        | Op::Testp
        | Op::Isspacep => (2, 2),
        Op::Sub
        | Op::Addc
        | Op::Subc
        | Op::Mul
        | Op::Mul24
        | Op::Div
        | Op::Rem
        | Op::And
        | Op::Or
        | Op::Xor
        | Op::Shl
        | Op::Shr
        | Op::Copysign
        | Op::Szext
        | Op::Bmsk
        | Op::Match
        | Op::Redux
        | Op::Add => (3, 3),
        Op::Min | Op::Max | Op::Setp | Op::Set => (3, 4),
        Op::Mad
        | Op::Madc
        | Op::Mad24
        | Op::Fma
        | Op::Selp
        | Op::Slct
        | Op::Sad
        | Op::Dp2a
        | Op::Dp4a
        | Op::Shf
        | Op::Bfe
        | Op::Prmt
        | Op::Fns => (4, 4),
        Op::Bfi => (5, 5),
        Op::Lop3 => (5, 6),
        Op::Shfl if sync => (5, 5),
        Op::Shfl => (4, 4),
        Op::Vote if sync => (3, 3),
        Op::Vote => (2, 2),
        Op::Cvt => (2, 4),
        Op::Ld | Op::Ldu | Op::St | Op::Red => (2, 3),
        Op::Atom => (3, 5),
        _ => return None,
    })
}

/// How a register's width must relate to a type's.
#[derive(Clone, Copy)]
enum Fit {
    Exact,
    AtLeast,
}

/// Checks an instruction of a body. `is_kernel`: whether it is a kernel's.
pub(super) fn check(
    verifier: &mut Verifier<'_>,
    (body, is_kernel): (&Body, bool),
    tables: &TableLabels,
    inst: &Inst,
) {
    let module = verifier.module;
    let form = module.form(inst);
    let operands = body.operands(inst.operands);
    let spelling = module.text(form.text);
    if let Some(Guard { reg, .. }) = inst.guard
        && body.reg(reg).ty != Type::Pred
    {
        let name = module.text(body.reg(reg).name);
        verifier.error(inst.pos, spelling.len(), format!("the guard `{name}` is no predicate"));
    }
    // An unknown word may be a type of another size, or bring more operands.
    let known = !form.mods.iter().any(|word| matches!(word, Mod::Other(_)));
    if let Some((least, most)) = counts(form) {
        let given = inst.operands.len;
        if given < least || (given > most && known) {
            let wanted =
                if least == most { least.to_string() } else { format!("{least} to {most}") };
            let message = format!("`{spelling}` takes {wanted} operands, {given} are given");
            verifier.error(inst.pos, spelling.len(), message);
            return;
        }
    }
    let mut checker = Checker { verifier, body, inst, spelling };
    match form.op {
        Op::Bra => checker.branch(operands, tables),
        Op::Brx => checker.indexed_branch(operands, tables),
        _ => {
            checker.addresses(operands);
            checker.spaces(form, operands, is_kernel);
            checker.components(inst.operands);
            checker.barrier(form, operands);
            checker.result(form, operands);
            checker.mask(form, operands);
            if known {
                checker.widths(form, operands);
            }
        }
    }
}

struct Checker<'a, 'm> {
    verifier: &'a mut Verifier<'m>,
    body: &'a Body,
    inst: &'a Inst,
    spelling: &'a str,
}

impl Checker<'_, '_> {
    fn error(&mut self, message: String) {
        self.verifier.error(self.inst.pos, self.spelling.len(), message);
    }

    fn branch(&mut self, operands: &[Operand], tables: &TableLabels) {
        match operands[0] {
            Operand::Symbol(Symbol::Label(label), 0) if !tables.any[label.0 as usize] => {}
            // Reported as a name already.
            Operand::Symbol(Symbol::Unresolved(_), _) => {}
            _ => self.error("`bra` goes to a label of code".to_owned()),
        }
    }

    fn indexed_branch(&mut self, operands: &[Operand], tables: &TableLabels) {
        match operands[1] {
            Operand::Symbol(Symbol::Label(label), 0) if tables.branch[label.0 as usize] => {}
            Operand::Symbol(Symbol::Unresolved(_), _) => {}
            _ => self.error("`brx.idx` takes the label of a `.branchtargets`".to_owned()),
        }
    }

    /// A vector register has the components that are named.
    fn components(&mut self, slice: Slice) {
        for operand in self.body.operands(slice) {
            match *operand {
                Operand::Part { reg, part } if self.body.reg(reg).vector > 1 => {
                    let register = self.body.reg(reg);
                    let names = &self.verifier.module.names;
                    if part.component(names).is_none_or(|index| index >= register.vector) {
                        let (name, has) = (names.text(register.name), register.vector);
                        self.error(format!("`{name}` has {has} components, and this is none"));
                    }
                }
                Operand::Vector(slice)
                | Operand::List(slice)
                | Operand::Tuple(slice)
                | Operand::Pair(slice) => self.components(slice),
                _ => {}
            }
        }
    }

    /// Addresses are in registers of 32 or 64 bits.
    fn addresses(&mut self, operands: &[Operand]) {
        for operand in operands {
            if let Operand::Mem(Base::Symbol(Symbol::Var(var)), offset) = *operand {
                self.parameter(var, offset);
            }
            let Operand::Mem(Base::Reg(reg), _) = *operand else { continue };
            let register = self.body.reg(reg);
            if !matches!(register.ty.bits(), 32 | 64) || register.vector != 1 {
                let name = self.verifier.module.text(register.name);
                self.error(format!("`{name}` is no address: it needs 32 or 64 bits"));
            }
        }
    }

    /// Accesses at which the assembler fails, and not by an error.
    fn spaces(&mut self, form: &Form, operands: &[Operand], is_kernel: bool) {
        let module = self.verifier.module;
        let named = operands.iter().find_map(|operand| match *operand {
            Operand::Mem(Base::Symbol(Symbol::Var(var)), _) => Some(module.var(var)),
            _ => None,
        });
        if let Some(variable) = named {
            let is_wrong = match form.op {
                Op::Atom | Op::Red => variable.space == Space::Local,
                Op::Discard | Op::Applypriority => variable.space != Space::Global,
                _ => false,
            };
            if is_wrong {
                let name = module.text(variable.name);
                self.error(format!("`{}` reaches no memory of `{name}`'s space", self.spelling));
            }
        }
        let spaces = form.mods.iter().filter_map(|part| match part {
            Mod::Space(space) => Some(*space),
            _ => None,
        });
        let spaces: Vec<Space> = spaces.collect();
        // The other forms copy in bulk, or wait for copies.
        let is_copy = form.op == Op::Cp && (form.has(Mod::Ca) || form.has(Mod::Cg));
        let copies = matches!(spaces[..], [Space::Shared | Space::SharedCta, Space::Global]);
        if is_copy && !copies {
            self.error(format!("`{}` copies from global to shared memory only", self.spelling));
        }
        let by_register = operands.iter().any(|o| matches!(o, Operand::Mem(Base::Reg(_), _)));
        let is_stored = form.op == Op::St && form.space().is_some_and(Space::is_param);
        if is_kernel && is_stored && by_register {
            self.error("a kernel's parameters are read only".to_owned());
        }
    }

    /// A place far beyond a parameter lets the assembler fail, and not by an error.
    fn parameter(&mut self, var: VarId, offset: i32) {
        let module = self.verifier.module;
        let variable = module.var(var);
        let size = variable.bytes().filter(|size| variable.space.is_param() && *size > 0);
        if let Some(size) = size
            && u64::try_from(offset).ok().is_none_or(|at| at >= size)
        {
            let name = module.text(variable.name);
            self.error(format!("`{name}` has {size} bytes, and none at {offset}"));
        }
    }

    /// Special registers are read only.
    fn result(&mut self, form: &Form, operands: &[Operand]) {
        let count = results(form, operands).unwrap_or(0);
        if let [Operand::Special(special, _), ..] = operands[..count.min(operands.len())] {
            let mut name = String::new();
            special.write(&mut name);
            self.error(format!("`{}` cannot write the special register `{name}`", self.spelling));
        }
    }

    /// The lanes for which an instruction waits are 32 bits.
    fn mask(&mut self, form: &Form, operands: &[Operand]) {
        let waits = match form.op {
            Op::Shfl | Op::Vote | Op::Match | Op::Redux | Op::Elect => form.has(Mod::Sync),
            Op::Bar | Op::Barrier => form.has(Mod::Warp),
            _ => false,
        };
        if let Some(mask) = operands.last().filter(|_| waits) {
            self.bits(mask, 32, Fit::Exact);
        }
    }

    /// The number of a barrier of the CTA and the number of threads are numbers of 32 bits, also
    /// where the instruction has words that are not known: guards compare them.
    fn barrier(&mut self, form: &Form, operands: &[Operand]) {
        let [number, _] = form.barrier_operands(operands);
        if let Some(Operand::Int(number) | Operand::Uint(number)) = number
            && number > 15
        {
            self.error(format!("there is no barrier {number}: a CTA has 0 to 15"));
        }
        if let (true, Some(_), Some(vote)) = (form.has(Mod::Red), number, operands.last()) {
            let is_vote = match *vote {
                Operand::Reg(reg) | Operand::Not(reg) => self.body.reg(reg).ty == Type::Pred,
                Operand::Symbol(Symbol::Unresolved(_), _) => true,
                constant => matches!(constant, Operand::Int(_) | Operand::Uint(_)),
            };
            if !is_vote {
                self.error(format!("`{}` ends with a predicate", self.spelling));
            }
        }
        for operand in form.barrier_operands(operands).into_iter().flatten() {
            match operand {
                Operand::Reg(_) | Operand::Special(..) => self.bits(&operand, 32, Fit::Exact),
                Operand::Int(_) | Operand::Uint(_) | Operand::Symbol(Symbol::Unresolved(_), _) => {}
                _ => self.error(format!("`{}` takes a number here", self.spelling)),
            }
        }
    }

    fn widths(&mut self, form: &Form, operands: &[Operand]) {
        let Some(ty) = form.last_type() else { return };
        let one_type = form.types().count() == 1;
        match form.op {
            Op::Add
            | Op::Sub
            | Op::Min
            | Op::Max
            | Op::Abs
            | Op::Neg
            | Op::Rem
            | Op::Div
            | Op::Addc
            | Op::Subc
            | Op::And
            | Op::Or
            | Op::Xor
            | Op::Not
                if one_type =>
            {
                self.all(operands, ty, Fit::Exact);
            }
            Op::Mul | Op::Mad if one_type => {
                let sources = if form.has(Mod::Wide) { &operands[1..3] } else { operands };
                self.all(sources, ty, Fit::Exact);
                if form.has(Mod::Wide) {
                    self.bits(&operands[0], ty.bits() * 2, Fit::Exact);
                    if let Some(addend) = operands.get(3) {
                        self.bits(addend, ty.bits() * 2, Fit::Exact);
                    }
                }
            }
            Op::Fma if one_type => self.all(operands, ty, Fit::Exact),
            Op::Shl | Op::Shr => {
                self.all(&operands[..2], ty, Fit::Exact);
                self.bits(&operands[2], 32, Fit::Exact);
            }
            Op::Mov if form.vector() > 1 => self.vector_move(form.vector(), operands, ty),
            Op::Mov => self.all(operands, ty, Fit::Exact),
            Op::Setp if one_type => self.comparison(operands, ty),
            Op::Selp => {
                self.all(&operands[..3], ty, Fit::Exact);
                self.predicate(&operands[3]);
            }
            Op::Ld | Op::Ldu => self.memory(form, &operands[0], ty),
            Op::St => self.memory(form, &operands[1], ty),
            Op::Cvt if operands.len() == 2 => {
                let Some(to) = form.types().next() else { return };
                self.all(&operands[..1], to, Fit::AtLeast);
                self.all(&operands[1..], ty, Fit::AtLeast);
            }
            _ => {}
        }
    }

    /// `mov.v2` and `mov.v4`: lists and vector registers of as many elements. A register of all
    /// their bits stands for them, too; ptxas takes it in `mov.b64` only.
    fn vector_move(&mut self, count: u32, operands: &[Operand], ty: Type) {
        for operand in operands {
            match *operand {
                Operand::Vector(slice) => self.elements(count, slice, ty, Fit::Exact),
                Operand::Reg(_) => self.bits(operand, count * ty.bits(), Fit::Exact),
                Operand::Special(_, Part::X | Part::Y | Part::Z | Part::W)
                | Operand::Part { .. } => {
                    self.error(format!("`{}` moves {count} elements, one is given", self.spelling));
                }
                _ => {}
            }
        }
    }

    fn elements(&mut self, count: u32, slice: Slice, ty: Type, fit: Fit) {
        if slice.len != count {
            let message =
                format!("`{}` moves {count} elements, {} are given", self.spelling, slice.len);
            self.error(message);
            return;
        }
        self.all(self.body.operands(slice), ty, fit);
    }

    fn comparison(&mut self, operands: &[Operand], ty: Type) {
        match operands[0] {
            Operand::Pair(slice) => {
                for operand in self.body.operands(slice) {
                    self.predicate(operand);
                }
            }
            ref operand => self.predicate(operand),
        }
        self.all(&operands[1..3], ty, Fit::Exact);
        if let Some(operand) = operands.get(3) {
            self.predicate(operand);
        }
    }

    fn memory(&mut self, form: &Form, value: &Operand, ty: Type) {
        let count = form.vector();
        match *value {
            Operand::Vector(slice) => self.elements(count, slice, ty, Fit::AtLeast),
            // A vector register stands for all elements.
            Operand::Reg(reg) if u32::from(self.body.reg(reg).vector) != count => {
                let (name, has) = (self.body.reg(reg).name, self.body.reg(reg).vector);
                let name = self.verifier.module.text(name);
                self.error(format!(
                    "`{}` moves {count} elements, `{name}` has {has}",
                    self.spelling
                ));
            }
            _ if count == 1 => self.all(std::slice::from_ref(value), ty, Fit::AtLeast),
            _ => {}
        }
    }

    fn predicate(&mut self, operand: &Operand) {
        let reg = match *operand {
            Operand::Reg(reg) | Operand::Not(reg) => reg,
            Operand::Int(_)
            | Operand::Uint(_)
            | Operand::Sink
            | Operand::Symbol(Symbol::Unresolved(_), _) => return,
            _ => {
                self.error(format!("`{}` takes a predicate here", self.spelling));
                return;
            }
        };
        let register = self.body.reg(reg);
        if register.ty != Type::Pred {
            let name = self.verifier.module.text(register.name);
            self.error(format!("`{name}` is no predicate, and `{}` takes one here", self.spelling));
        }
    }

    fn all(&mut self, operands: &[Operand], ty: Type, fit: Fit) {
        for operand in operands {
            if ty == Type::Pred {
                if matches!(operand, Operand::Reg(_) | Operand::Not(_) | Operand::Special(..)) {
                    self.predicate(operand);
                }
            } else {
                self.bits(operand, ty.bits(), fit);
            }
        }
    }

    fn bits(&mut self, operand: &Operand, bits: u32, fit: Fit) {
        // The frame puts words in their places.
        if let Operand::Special(special, _) = *operand
            && bits == 64
            && matches!(special, Special::Tid | Special::Ntid | Special::Ctaid | Special::Nctaid)
        {
            let mut name = String::new();
            special.write(&mut name);
            self.error(format!("`{name}` has 32 bits, and `{}` takes 64 here", self.spelling));
        }
        let (reg, part) = match *operand {
            Operand::Reg(reg) => (reg, false),
            Operand::Part { reg, .. } if self.body.reg(reg).vector > 1 => (reg, true),
            _ => return,
        };
        let register = self.body.reg(reg);
        let name = self.verifier.module.text(register.name);
        if register.ty == Type::Pred {
            self.error(format!(
                "`{name}` is a predicate, and `{}` takes {bits} bits here",
                self.spelling
            ));
            return;
        }
        let has = if part { register.ty.bits() } else { self.width(reg) };
        let (fits, wanted) = match fit {
            Fit::Exact => (has == bits, "takes"),
            Fit::AtLeast => (has >= bits, "takes at least"),
        };
        if !fits {
            self.error(format!(
                "`{name}` has {has} bits, and `{}` {wanted} {bits} here",
                self.spelling
            ));
        }
    }

    fn width(&self, reg: Reg) -> u32 {
        let register = self.body.reg(reg);
        register.ty.bits() * u32::from(register.vector)
    }
}
