//! The `settle` pass: a module's variables move out of the module, to the place that its launcher
//! chooses.
//!
//! A driver places the variables of a module wherever it likes, so no address check that keeps a
//! kernel inside its tenant's window holds for them. The pass makes them one *block* of memory (and
//! one of managed memory) with a layout of its own. The launcher allocates the block in the window
//! and fills it ([`Layout::contents`]). Code finds the blocks by the *header*: two addresses in
//! constant memory that the launcher writes once, and that no kernel can change.
//!
//! - **Global variables**: an access by name becomes an access by a register that was loaded from
//!   the header; an address that is taken becomes a sum.
//! - **Constant variables** stay in constant memory as one array, because loads from it are fast;
//!   the limit is 64 KiB. The block begins with a copy of the array. Programs write constants by
//!   their address in the block, and the launcher then writes the array. A generic address of a
//!   constant (`cvta.const`) is that of the copy, so that it lies in the window, too.
//! - **Initialisers** become contents. Addresses of variables in them are computed when the blocks
//!   have addresses. Only the driver knows addresses of functions: variables that hold some stay as
//!   *seeds*, from which the launcher copies them.
//! - Texture, sampler and surface references stay as they are, and so do declarations without a
//!   definition.
//!
//! The text does not depend on the blocks' addresses, so its machine code serves every instance.
//! The pass comes after all others.

mod contents;
mod layout;

use std::collections::BTreeMap;

use crate::carry::{declare, emit, emit_if};
use crate::error::{Diagnostic, Errors};
use crate::ir::{
    Base, Body, Dim, Init, Inst, Item, Linkage, Mod, Module, Name, Op, Operand, Pos, Reg, Slice,
    Space, Stmt, Symbol, Type, VarId, Variable,
};

pub use layout::{Layout, Part, Seed, SettledVariable};

use layout::{Address, Plan};

/// Bytes of the header: the address of the block, and that of the managed block.
pub const HEADER_BYTES: u64 = 16;

/// Constant memory of a module (CUDA C++ Programming Guide, "Technical Specifications").
const CONSTANT_BYTES: u64 = 64 << 10;

/// A module whose variables have moved.
#[derive(Clone, Debug)]
pub struct Settled {
    /// The module.
    pub module: Module,
    /// The layout for the launcher. Empty where nothing moved.
    pub layout: Layout,
}

/// Moves a module's variables.
///
/// # Errors
/// By line: a variable that is too large, an initialiser that is not understood, or a use that is
/// not.
pub fn settle(module: &Module) -> Result<Settled, Errors> {
    let plan = layout::plan(module)?;
    let mut out = module.clone();
    if plan.is_empty() {
        return Ok(Settled { module: out, layout: Layout::default() });
    }
    if module.address_size != Some(64) {
        return Err(wrong(
            Pos::default(),
            "variables can be moved in modules for 64-bit addresses only",
        ));
    }
    let mut contents = contents::collect(module, &plan)?;
    let mut own = Own::declare(&mut out, &plan);
    for seed in &mut contents.seeds {
        let name = own.seed(&mut out, seed.variable);
        seed.seed.name = name;
    }
    own.place(&mut out, &plan);
    let rewriter = Rewriter { plan: &plan, own: &own };
    let mut errors = Vec::new();
    for index in 0..out.funcs.len() {
        let Some(mut body) = out.funcs[index].body.take() else { continue };
        if let Err(mut found) = rewriter.body(&mut out, &mut body) {
            errors.append(&mut found);
        }
        out.funcs[index].body = Some(body);
    }
    Errors::check(errors)?;
    crate::verify::check_pass(&out, || crate::verify(module).is_ok());
    let text = |id: Option<VarId>| id.map(|id| out.text(out.var(id).name).to_owned());
    let layout = plan.layout(module, text(Some(own.header)), text(own.constants), contents);
    Ok(Settled { module: out, layout })
}

fn wrong(pos: Pos, message: impl Into<String>) -> Errors {
    match Errors::check(vec![finding(pos, message)]) {
        Err(errors) => errors,
        Ok(()) => unreachable!("one finding"),
    }
}

fn finding(pos: Pos, message: impl Into<String>) -> Diagnostic {
    Diagnostic { pos, len: 1, message: message.into(), excerpt: None }
}

/// The pass's own variables.
struct Own {
    header: VarId,
    /// Constant memory as one array.
    constants: Option<VarId>,
    seeds: Vec<VarId>,
    /// Names of registers.
    temporaries: Vec<Name>,
    flag: Name,
}

impl Own {
    fn declare(module: &mut Module, plan: &Plan) -> Self {
        let variable = |module: &mut Module, stem: &str, space, ty, count, align| {
            let name = module.names.fresh(stem);
            module.add_var(Variable {
                name,
                space,
                bank: None,
                linkage: Linkage::Visible,
                align: Some(align),
                vector: 1,
                ty,
                dims: vec![Dim::Count(count)],
                pointer: None,
                attribute: None,
                init: None,
                pos: Pos::default(),
            })
        };
        let taken = plan.constant_bytes;
        // Memory outside of every window serves as well, more slowly: no kernel can write there.
        let fits = taken.next_multiple_of(HEADER_BYTES) + HEADER_BYTES <= CONSTANT_BYTES;
        let space = if fits { Space::Const } else { Space::Global };
        let header = variable(module, "pw_header", space, Type::B64, HEADER_BYTES / 8, 16);
        let align = u32::try_from(plan.alignment).unwrap_or(256);
        let constants = (taken > 0)
            .then(|| variable(module, "pw_constants", Space::Const, Type::B8, taken, align));
        let temporaries =
            (0..3).map(|index| module.names.fresh(&format!("%pw_block{index}"))).collect();
        let flag = module.names.fresh("%pw_there");
        Own { header, constants, seeds: Vec::new(), temporaries, flag }
    }

    /// Keeps a variable's functions in a variable of another name; returns the name.
    fn seed(&mut self, module: &mut Module, variable: VarId) -> String {
        let original = module.var(variable).clone();
        let name = module.names.fresh("pw_seed");
        let init = original.init.as_ref().map(without_variables);
        let seed = Variable {
            name,
            space: Space::Global,
            linkage: Linkage::Visible,
            attribute: None,
            bank: None,
            init,
            ..original
        };
        let id = module.add_var(seed);
        self.seeds.push(id);
        module.text(name).to_owned()
    }

    /// Replaces the declarations of moved variables by the pass's own. Seeds name functions, so
    /// they come last.
    fn place(&mut self, module: &mut Module, plan: &Plan) {
        let first = module
            .items
            .iter()
            .position(|item| matches!(item, Item::Variable(_) | Item::Function(_)));
        let at = first.unwrap_or(module.items.len());
        let ours = self.constants.into_iter().chain([self.header]).map(Item::Variable);
        module.items.splice(at..at, ours);
        module
            .items
            .retain(|item| !matches!(item, Item::Variable(id) if plan.address(*id).is_some()));
        module.items.extend(self.seeds.iter().map(|id| Item::Variable(*id)));
    }
}

/// An initialiser with 0 for variables, and functions unchanged.
fn without_variables(init: &Init) -> Init {
    match init {
        Init::List(list) => Init::List(list.iter().map(without_variables).collect()),
        Init::Symbol(Symbol::Var(_), _) | Init::Generic(Symbol::Var(_), _) => Init::Int(0),
        Init::Mask(_, inner) if !contents::names_function(inner) => Init::Int(0),
        other => other.clone(),
    }
}

struct Rewriter<'a> {
    plan: &'a Plan,
    own: &'a Own,
}

/// The registers of one body.
#[derive(Clone, Copy)]
struct Regs {
    blocks: [Reg; 3],
    flag: Reg,
}

impl Rewriter<'_> {
    fn body(&self, module: &mut Module, body: &mut Body) -> Result<(), Vec<Diagnostic>> {
        let touches = |stmt: &Stmt| match stmt {
            Stmt::Inst(inst) => {
                self.names(body, inst.operands) || self.converts(module, inst) != Conversion::None
            }
            Stmt::Var(id) => self.plan.address(*id).is_some(),
            _ => false,
        };
        if !body.stmts.iter().any(touches) {
            return Ok(());
        }
        let stmts = std::mem::take(&mut body.stmts);
        let mut out = Vec::with_capacity(stmts.len() + stmts.len() / 4);
        let mut errors = Vec::new();
        let mut reg = |name: Name, ty, out: &mut Vec<Stmt>| declare(body, name, ty, out);
        let [a, b, c] =
            [0, 1, 2].map(|index| reg(self.own.temporaries[index], Type::B64, &mut out));
        let flag = reg(self.own.flag, Type::Pred, &mut out);
        let regs = Regs { blocks: [a, b, c], flag };
        for stmt in stmts {
            match stmt {
                Stmt::Inst(inst) => {
                    if let Err(error) = self.inst(module, body, inst, regs, &mut out) {
                        errors.push(error);
                    }
                }
                Stmt::Var(id) if self.plan.address(id).is_some() => {}
                other => out.push(other),
            }
        }
        body.stmts = out;
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }

    /// Whether operands name a variable that has moved.
    fn names(&self, body: &Body, operands: Slice) -> bool {
        body.operands(operands).iter().any(|operand| match *operand {
            Operand::Symbol(Symbol::Var(id), _)
            | Operand::Mem(Base::Symbol(Symbol::Var(id)), _) => self.plan.address(id).is_some(),
            Operand::Vector(inner)
            | Operand::List(inner)
            | Operand::Tuple(inner)
            | Operand::Pair(inner) => self.names(body, inner),
            _ => false,
        })
    }

    fn converts(&self, module: &Module, inst: &Inst) -> Conversion {
        let form = module.form(inst);
        if self.own.constants.is_none() || form.space() != Some(Space::Const) {
            return Conversion::None;
        }
        match form.op {
            Op::Cvta if form.has(Mod::To) => Conversion::FromGeneric,
            Op::Cvta => Conversion::ToGeneric,
            Op::Isspacep => Conversion::Asks,
            _ => Conversion::None,
        }
    }

    fn inst(
        &self,
        module: &mut Module,
        body: &mut Body,
        inst: Inst,
        regs: Regs,
        out: &mut Vec<Stmt>,
    ) -> Result<(), Diagnostic> {
        let conversion = self.converts(module, &inst);
        let mut free = regs.blocks.as_slice();
        if conversion != Conversion::None {
            // The last two are the conversion's own.
            free = &regs.blocks[..1];
        }
        let operands = body.operands(inst.operands).to_vec();
        let mut changed = Vec::with_capacity(operands.len());
        for operand in operands {
            changed.push(self.operand(module, body, operand, inst.pos, &mut free, out)?);
        }
        if conversion == Conversion::None {
            if changed == body.operands(inst.operands) {
                out.push(Stmt::Inst(inst));
            } else {
                let operands = body.add_operands(&changed);
                out.push(Stmt::Inst(Inst { operands, ..inst }));
            }
            return Ok(());
        }
        let &[to, from] = changed.as_slice() else {
            return Err(finding(inst.pos, "a conversion of addresses has two operands"));
        };
        self.convert(module, body, &inst, conversion, to, from, regs, out);
        Ok(())
    }

    /// `cvta` and `isspacep` of constant memory: a generic address there is an address of the
    /// block.
    #[expect(clippy::too_many_arguments, reason = "an instruction and where it goes")]
    fn convert(
        &self,
        module: &mut Module,
        body: &mut Body,
        inst: &Inst,
        conversion: Conversion,
        to: Operand,
        from: Operand,
        regs: Regs,
        out: &mut Vec<Stmt>,
    ) {
        let Some(constants) = self.own.constants else { return };
        let array = Operand::Symbol(Symbol::Var(constants), 0);
        let [_, block, other] = regs.blocks.map(Operand::Reg);
        let from = match from {
            Operand::Symbol(..) => {
                let reg = Operand::Reg(regs.blocks[0]);
                emit(module, body, out, "mov.u64", &[reg, from]);
                reg
            }
            other => other,
        };
        self.header(module, body, regs.blocks[1], Part::Block, out);
        match conversion {
            Conversion::ToGeneric => {
                emit(module, body, out, "mov.u64", &[other, array]);
                emit(module, body, out, "sub.u64", &[block, block, other]);
                emit_if(inst.guard, module, body, out, "add.u64", &[to, block, from]);
            }
            Conversion::FromGeneric => {
                emit(module, body, out, "mov.u64", &[other, array]);
                emit(module, body, out, "sub.u64", &[other, other, block]);
                emit_if(inst.guard, module, body, out, "add.u64", &[to, other, from]);
            }
            Conversion::Asks => {
                let bytes = Operand::Int(self.plan.constant_bytes);
                emit(module, body, out, "sub.u64", &[other, from, block]);
                let flag = Operand::Reg(regs.flag);
                emit(module, body, out, "setp.lt.u64", &[flag, other, bytes]);
                emit_if(inst.guard, module, body, out, "mov.pred", &[to, flag]);
            }
            Conversion::None => {}
        }
    }

    /// An operand without moved variables, and the statements that must come before it.
    fn operand(
        &self,
        module: &mut Module,
        body: &mut Body,
        operand: Operand,
        pos: Pos,
        free: &mut &[Reg],
        out: &mut Vec<Stmt>,
    ) -> Result<Operand, Diagnostic> {
        let take = |free: &mut &[Reg]| {
            let (first, rest) = free.split_first().ok_or_else(|| {
                finding(pos, "too many variables of the module in one instruction")
            })?;
            *free = rest;
            Ok(*first)
        };
        let far = || finding(pos, "an address too far from a variable of the module");
        match operand {
            Operand::Mem(Base::Symbol(Symbol::Var(id)), offset) => match self.plan.address(id) {
                None => Ok(operand),
                Some(Address { part: Part::Constant, at }) => {
                    let offset = displaced(at, offset).ok_or_else(far)?;
                    Ok(Operand::Mem(Base::Symbol(Symbol::Var(self.array(pos)?)), offset))
                }
                Some(Address { part, at }) => {
                    let reg = take(free)?;
                    self.header(module, body, reg, part, out);
                    match displaced(at, offset) {
                        Some(offset) => Ok(Operand::Mem(Base::Reg(reg), offset)),
                        None => {
                            let sum = [Operand::Reg(reg), Operand::Reg(reg), Operand::Int(at)];
                            emit(module, body, out, "add.u64", &sum);
                            Ok(Operand::Mem(Base::Reg(reg), offset))
                        }
                    }
                }
            },
            Operand::Symbol(Symbol::Var(id), offset) => match self.plan.address(id) {
                None => Ok(operand),
                Some(Address { part: Part::Constant, at }) => {
                    let offset = displaced(at, offset).ok_or_else(far)?;
                    Ok(Operand::Symbol(Symbol::Var(self.array(pos)?), offset))
                }
                Some(Address { part, at }) => {
                    let reg = take(free)?;
                    self.header(module, body, reg, part, out);
                    let at = at.wrapping_add_signed(offset.into());
                    if at != 0 {
                        let sum = [Operand::Reg(reg), Operand::Reg(reg), Operand::Int(at)];
                        emit(module, body, out, "add.u64", &sum);
                    }
                    Ok(Operand::Reg(reg))
                }
            },
            Operand::Vector(inner)
            | Operand::List(inner)
            | Operand::Tuple(inner)
            | Operand::Pair(inner)
                if self.names(body, inner) =>
            {
                let mut parts = Vec::new();
                for part in body.operands(inner).to_vec() {
                    parts.push(self.operand(module, body, part, pos, free, out)?);
                }
                let slice = body.add_operands(&parts);
                Ok(match operand {
                    Operand::Vector(_) => Operand::Vector(slice),
                    Operand::List(_) => Operand::List(slice),
                    Operand::Tuple(_) => Operand::Tuple(slice),
                    _ => Operand::Pair(slice),
                })
            }
            other => Ok(other),
        }
    }

    fn array(&self, pos: Pos) -> Result<VarId, Diagnostic> {
        self.own.constants.ok_or_else(|| finding(pos, "a constant without constant memory"))
    }

    /// Loads the address of a block.
    fn header(
        &self,
        module: &mut Module,
        body: &mut Body,
        to: Reg,
        part: Part,
        out: &mut Vec<Stmt>,
    ) {
        let at = if part == Part::Managed { 8 } else { 0 };
        let text = match module.var(self.own.header).space {
            Space::Const => "ld.const.u64",
            _ => "ld.global.u64",
        };
        let from = Operand::Mem(Base::Symbol(Symbol::Var(self.own.header)), at);
        emit(module, body, out, text, &[Operand::Reg(to), from]);
    }
}

/// The effect of an instruction on generic addresses of constants.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Conversion {
    None,
    ToGeneric,
    FromGeneric,
    Asks,
}

/// The sum of an offset in the block and one in the instruction, where it fits an instruction.
fn displaced(at: u64, offset: i32) -> Option<i32> {
    i32::try_from(i64::try_from(at).ok()?.checked_add(offset.into())?).ok()
}

/// The new place of each variable, also of variables that are declared in one place and defined in
/// another.
type Addresses = BTreeMap<VarId, Address>;
