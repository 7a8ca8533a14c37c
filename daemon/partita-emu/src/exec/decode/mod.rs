//! From PTX's typed representation to the compact form.
//!
//! Decoding works kernel by kernel. Device functions are expanded where they are called; those that call themselves or
//! are called through pointers have code of their own and a stack ([`calls`]). Each PTX instruction becomes one or a few compact ones; an
//! instruction that this device does not know refuses the kernel, by line and spelling, and no other kernel.

mod arith;
mod asynchronous;
mod calls;
mod cfg;
mod control;
mod matrix;
mod memory;
mod refuse;
mod texture;
mod variables;
mod wide;

use super::inst::{FRAME, Inst, LaneOp, NOWHERE, Op, Source, Target};
use super::lane::LaneFn;
use super::program::{Constant, FixedRows, NamedRegister, Parameter, Program, SharedVariable};
use crate::timing::segment::Segments;
use partita_model::Dim3;
use partita_ptx::{
    Base, Body, FuncId, FunctionKind, Guard, Inst as PtxInst, LabelId, Module, Operand, Part, Reg,
    Space as PtxSpace, Special, Stmt, Symbol, Type, VarId,
};
use std::collections::HashMap;

use calls::{CallGraph, ThreadStack};
pub use variables::{Image, Placed, place_variables};

/// Most compact instructions of a kernel after expansion of its calls.
const MAX_CODE: usize = 4 << 20;
/// Deepest nesting of calls.
const MAX_CALL_DEPTH: usize = 64;

/// Why a kernel cannot run on this device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct Refusal {
    /// Line of the PTX text.
    pub line: u32,
    /// What is not supported.
    pub what: String,
}

type Result<T> = std::result::Result<T, Refusal>;

/// The kernels of a module, and those that cannot run with the reason.
#[derive(Debug, Default)]
pub struct Kernels {
    /// In source order.
    pub programs: Vec<Program>,
    /// Name and reason.
    pub refused: Vec<(String, Refusal)>,
}

/// Decodes every kernel of a module whose variables have been placed.
#[must_use]
pub fn decode(module: &Module, image: &Image) -> Kernels {
    let mut kernels = Kernels::default();
    let calls = CallGraph::of(module);
    for (index, function) in module.funcs.iter().enumerate() {
        if function.kind != FunctionKind::Entry || function.body.is_none() {
            continue;
        }
        let id = FuncId(index as u32);
        match Decoder::new(module, image, &calls).kernel(id) {
            Ok(program) => kernels.programs.push(program),
            Err(refusal) => kernels.refused.push((module.text(function.name).to_owned(), refusal)),
        }
    }
    kernels
}

/// One expansion of a function's body.
struct Scope<'m> {
    body: &'m Body,
    /// Rows of its registers.
    regs: Vec<Option<Source>>,
    /// Rows of its registers of 128 bits.
    wide: HashMap<Reg, [u32; 2]>,
    /// Its labels among the decoder's.
    labels: Vec<Option<usize>>,
    /// Where `ret` goes; `None` in a kernel.
    returns_to: Option<usize>,
    /// Where its parameters and results lie in local memory, and those of calls that it makes.
    params: HashMap<VarId, u32>,
    /// Its local variables' places.
    locals: HashMap<VarId, u32>,
}

struct Decoder<'m> {
    module: &'m Module,
    image: &'m Image,
    calls: &'m CallGraph,
    program: Program,
    constants32: HashMap<Constant, u32>,
    constants64: HashMap<Constant, u32>,
    /// Kernel parameters by variable.
    kernel_params: HashMap<VarId, Parameter>,
    shared: HashMap<VarId, u32>,
    scopes: Vec<Scope<'m>>,
    stack: Vec<FuncId>,
    /// Instruction that a label stands before.
    labels: Vec<Option<usize>>,
    /// Instructions whose `imm` is a label.
    jumps: Vec<usize>,
    /// `(PTX instruction, ...)` count at each compact instruction.
    weight: u32,
    guard: u32,
    line: u32,
    carry: Option<u32>,
    thread_stack: Option<ThreadStack>,
    /// Bytes so far of the frame of the function that gets code of its own; `None` in the kernel.
    frame: Option<u32>,
    /// Functions that have code of their own.
    outlined: Vec<FuncId>,
}

fn align(value: u32, to: u32) -> u32 {
    value.next_multiple_of(to.max(1))
}

impl<'m> Decoder<'m> {
    fn new(module: &'m Module, image: &'m Image, calls: &'m CallGraph) -> Self {
        Decoder {
            module,
            image,
            calls,
            program: Program::default(),
            constants32: HashMap::new(),
            constants64: HashMap::new(),
            kernel_params: HashMap::new(),
            shared: HashMap::new(),
            scopes: Vec::new(),
            stack: Vec::new(),
            labels: Vec::new(),
            jumps: Vec::new(),
            weight: 0,
            guard: 0,
            line: 0,
            carry: None,
            thread_stack: None,
            frame: None,
            outlined: Vec::new(),
        }
    }

    fn refuse<T>(&self, what: impl Into<String>) -> Result<T> {
        Err(Refusal { line: self.line, what: what.into() })
    }

    fn kernel(mut self, id: FuncId) -> Result<Program> {
        let function = self.module.func(id);
        self.line = function.pos.line;
        self.program.name = self.module.text(function.name).to_owned();
        let mut offset = 0_u32;
        for &var in &function.params {
            let variable = self.module.var(var);
            let bytes =
                variable.bytes().and_then(|bytes| u32::try_from(bytes).ok()).filter(|&bytes| bytes <= 32_764);
            let Some(bytes) = bytes else {
                return self.refuse("a parameter is too large");
            };
            offset = align(offset, variable.alignment() as u32);
            let parameter = Parameter { offset, bytes };
            offset += bytes;
            self.kernel_params.insert(var, parameter);
            self.program.params.push(parameter);
        }
        self.check_cluster(id)?;
        self.directives(id);
        self.program.fixed = FixedRows::default();
        self.begin_stack(id);
        self.expand(id, None, HashMap::new())?;
        self.emit(Op::Exit, 0, 0, 0, 0, 0);
        self.end_stack()?;
        self.finish()
    }

    fn directives(&mut self, id: FuncId) {
        self.program.max_threads = 1024;
        for directive in &self.module.func(id).directives {
            let values = &directive.values;
            let get = |index: usize| values.get(index).copied().unwrap_or(1).max(1);
            let product = get(0).saturating_mul(get(1)).saturating_mul(get(2));
            match self.module.text(directive.name) {
                "maxntid" => self.program.max_threads = self.program.max_threads.min(product),
                "reqntid" => {
                    self.program.max_threads = self.program.max_threads.min(product);
                    self.program.required_block = Some(Dim3::new(get(0), get(1), get(2)));
                }
                _ => {}
            }
        }
    }

    /// Appends a function's body; `ret` goes to `returns_to`.
    fn expand(&mut self, id: FuncId, returns_to: Option<usize>, params: HashMap<VarId, u32>) -> Result<()> {
        let module = self.module;
        let function = module.func(id);
        let Some(body) = &function.body else {
            return self.unknown_function(module.text(function.name));
        };
        if self.stack.contains(&id) {
            return self.refuse(format!("recursive call of `{}`", module.text(function.name)));
        }
        if self.stack.len() == MAX_CALL_DEPTH {
            return self.refuse("calls are nested too deeply");
        }
        self.stack.push(id);
        self.scopes.push(Scope {
            body,
            regs: vec![None; body.regs.len()],
            wide: HashMap::new(),
            labels: vec![None; body.labels.len()],
            returns_to,
            params,
            locals: HashMap::new(),
        });
        for stmt in &body.stmts {
            self.statement(stmt)?;
        }
        let scope = self.scopes.pop().expect("pushed above");
        if returns_to.is_none() {
            self.name_registers(&scope);
        }
        self.stack.pop();
        Ok(())
    }

    fn name_registers(&mut self, scope: &Scope<'_>) {
        for (register, row) in scope.body.regs.iter().zip(&scope.regs) {
            let float = register.ty.is_float();
            let (row, wide) = match row {
                Some(Source::R32(row)) if !float => (*row, false),
                Some(Source::R64(row)) if !float => (*row, true),
                _ => continue,
            };
            let name = self.module.text(register.name).to_owned();
            self.program.registers.push(NamedRegister { name, row, wide });
        }
    }

    fn scope(&self) -> &Scope<'m> {
        self.scopes.last().expect("a body is being expanded")
    }

    fn scope_mut(&mut self) -> &mut Scope<'m> {
        self.scopes.last_mut().expect("a body is being expanded")
    }

    fn statement(&mut self, stmt: &Stmt) -> Result<()> {
        match stmt {
            Stmt::Inst(inst) => self.instruction(inst),
            Stmt::Label(label) => {
                let label = self.label(*label);
                self.labels[label] = Some(self.program.code.len());
                Ok(())
            }
            Stmt::Var(var) => self.declare(*var),
            Stmt::Open | Stmt::Close | Stmt::Regs(_) | Stmt::Loc(_) | Stmt::Table(_) | Stmt::Pragma(_) => {
                Ok(())
            }
        }
    }

    /// A local or call-parameter variable gets its place in the thread's local memory.
    fn declare(&mut self, var: VarId) -> Result<()> {
        let variable = self.module.var(var);
        match variable.space {
            PtxSpace::Local => {
                let place = self.local_room(var)?;
                self.scope_mut().locals.insert(var, place);
            }
            space if space.is_param() => {
                let place = self.local_room(var)?;
                self.scope_mut().params.insert(var, place);
            }
            _ => {}
        }
        Ok(())
    }

    fn local_room(&mut self, var: VarId) -> Result<u32> {
        let variable = self.module.var(var);
        let bytes = variable.bytes().filter(|&bytes| bytes <= 512 << 10);
        let Some(bytes) = bytes else {
            return self.refuse("a local variable is too large");
        };
        let start = align(self.frame.unwrap_or(self.program.local), variable.alignment() as u32);
        let end = u64::from(start) + bytes;
        if end > 512 << 10 {
            return self.refuse("more than 512 KiB of local memory per thread");
        }
        match &mut self.frame {
            Some(frame) => *frame = end as u32,
            None => self.program.local = end as u32,
        }
        Ok(start)
    }

    fn label(&mut self, label: LabelId) -> usize {
        if let Some(known) = self.scope().labels[label.0 as usize] {
            return known;
        }
        let fresh = self.fresh_label();
        self.scope_mut().labels[label.0 as usize] = Some(fresh);
        fresh
    }

    fn fresh_label(&mut self) -> usize {
        self.labels.push(None);
        self.labels.len() - 1
    }

    fn here(&mut self, label: usize) {
        self.labels[label] = Some(self.program.code.len());
    }

    fn emit(&mut self, op: Op, d: u32, a: u32, b: u32, c: u32, imm: i64) {
        let inst = Inst { op, aux: 0, guard: self.guard, d, a, b, c, imm };
        self.program.code.push(inst);
        self.program.lines.push(self.line);
        self.program.weights.push(self.weight);
    }

    fn emit_aux(&mut self, op: Op, aux: u16, d: u32, a: u32, b: u32, imm: i64) {
        self.emit(op, d, a, b, 0, imm);
        self.program.code.last_mut().expect("emitted above").aux = aux;
    }

    fn jump(&mut self, label: usize) {
        self.jumps.push(self.program.code.len());
        self.emit(Op::Bra, 0, 0, 0, 0, label as i64);
    }

    fn emit_lane(&mut self, function: LaneFn, how: u32, sources: [Source; 3], target: Target) {
        self.program.lane_ops.push(LaneOp { function, how, sources, target });
        let index = self.program.lane_ops.len() as i64 - 1;
        self.emit(Op::Lane, 0, 0, 0, 0, index);
    }

    fn instruction(&mut self, inst: &PtxInst) -> Result<()> {
        if self.program.code.len() > MAX_CODE {
            return self.refuse("the kernel is too large after expansion of its calls");
        }
        if inst.pos.line != 0 {
            self.line = inst.pos.line;
        }
        self.weight += 1;
        let module = self.module;
        let form = module.form(inst);
        let body = self.scope().body;
        let operands = body.operands(inst.operands);
        self.guard = 0;
        if let Some(guard) = inst.guard {
            self.guard = self.guard_of(guard)?;
            if operands.iter().take(1).any(|operand| Self::names_register(body, operand, guard.reg)) {
                // The instruction may become several, of which an early one must not change the guard of the rest.
                let copy = self.fresh_p();
                let own = self.register(guard.reg)?;
                let guard_code = std::mem::take(&mut self.guard);
                let Source::P(own) = own else { return self.refuse("the guard is no predicate") };
                self.emit(Op::PMov, copy, copy, own, 0, 0);
                self.guard = ((copy & !FRAME) + 1) << 1 | guard_code & 1;
            }
        }
        let result = self.operation(form, operands);
        self.guard = 0;
        result
    }

    fn names_register(body: &Body, operand: &Operand, reg: Reg) -> bool {
        match operand {
            Operand::Reg(own) => *own == reg,
            Operand::Pair(slice) => {
                body.operands(*slice).iter().any(|part| Self::names_register(body, part, reg))
            }
            _ => false,
        }
    }

    fn guard_of(&mut self, guard: Guard) -> Result<u32> {
        match self.register(guard.reg)? {
            Source::P(row) => Ok(((row & !FRAME) + 1) << 1 | u32::from(guard.negated)),
            _ => self.refuse("the guard is no predicate"),
        }
    }

    fn fresh32(&mut self) -> u32 {
        self.program.frame32 += 1;
        (self.program.frame32 as u32 - 1) | FRAME
    }

    fn fresh64(&mut self) -> u32 {
        self.program.frame64 += 1;
        (self.program.frame64 as u32 - 1) | FRAME
    }

    fn fresh_p(&mut self) -> u32 {
        self.program.predicates += 1;
        (self.program.predicates as u32 - 1) | FRAME
    }

    /// The row of a register.
    fn register(&mut self, reg: Reg) -> Result<Source> {
        if let Some(known) = self.scope().regs[reg.index()] {
            return Ok(known);
        }
        let register = *self.scope().body.reg(reg);
        if register.vector != 1 {
            return self.refuse("vector registers");
        }
        let row = match register.ty.bits() {
            _ if register.ty == Type::Pred => Source::P(self.fresh_p()),
            0..=32 => Source::R32(self.fresh32()),
            64 => Source::R64(self.fresh64()),
            bits => return self.refuse(format!("registers of {bits} bits")),
        };
        self.scope_mut().regs[reg.index()] = Some(row);
        Ok(row)
    }

    fn constant32(&mut self, constant: Constant) -> u32 {
        let next = self.constants32.len() as u32;
        *self.constants32.entry(constant).or_insert_with(|| {
            self.program.constants32.push(constant);
            next
        })
    }

    fn constant64(&mut self, constant: Constant) -> u32 {
        let next = self.program.constants64.len() as u32;
        *self.constants64.entry(constant).or_insert_with(|| {
            self.program.constants64.push(constant);
            next
        })
    }

    fn constant(&mut self, constant: Constant, bits: u32) -> Source {
        if bits == 64 {
            Source::R64(self.constant64(constant))
        } else {
            Source::R32(self.constant32(constant))
        }
    }

    /// A source in the width that it has: a register's own, or `ty`'s for everything else.
    fn source(&mut self, operand: Operand, ty: Type) -> Result<Source> {
        let bits = if ty.bits() == 64 { 64 } else { 32 };
        match operand {
            Operand::Reg(reg) => self.register(reg),
            Operand::Not(reg) => {
                let Source::P(p) = self.register(reg)? else { return self.refuse("`!` on no predicate") };
                let temp = self.fresh_p();
                self.emit(Op::PNot, temp, p, p, 0, 0);
                Ok(Source::P(temp))
            }
            Operand::Int(_) | Operand::Uint(_) | Operand::F32(_) | Operand::F64(_) => {
                let value = literal(operand, ty);
                if ty == Type::Pred {
                    let truth =
                        if value & 1 == 1 { super::registers::P_TRUE } else { super::registers::P_FALSE };
                    return Ok(Source::P(truth));
                }
                Ok(self.constant(Constant::Bits(value), bits))
            }
            Operand::Special(special, part) => self.special(special, part, bits),
            Operand::Symbol(symbol, offset) => self.symbol(symbol, offset, bits),
            _ => self.refuse("an operand of this kind"),
        }
    }

    /// A source as a row of 32 bits.
    fn source32(&mut self, operand: Operand, ty: Type) -> Result<u32> {
        match self.source(operand, ty)? {
            Source::R32(row) => Ok(row),
            Source::R64(row) => {
                let temp = self.fresh32();
                self.emit(Op::Low32, temp, row, 0, 0, 0);
                Ok(temp)
            }
            _ => self.refuse("a predicate where a number is expected"),
        }
    }

    /// A source as a row of 64 bits.
    fn source64(&mut self, operand: Operand, ty: Type) -> Result<u32> {
        match self.source(operand, ty)? {
            Source::R64(row) => Ok(row),
            Source::R32(row) => {
                let temp = self.fresh64();
                self.emit(Op::U64FromU32, temp, row, 0, 0, 0);
                Ok(temp)
            }
            _ => self.refuse("a predicate where a number is expected"),
        }
    }

    /// A source as a predicate.
    fn source_p(&mut self, operand: Operand) -> Result<u32> {
        match self.source(operand, Type::Pred)? {
            Source::P(row) => Ok(row),
            _ => self.refuse("a number where a predicate is expected"),
        }
    }

    /// Where a result goes. `_` gives a row that nobody reads.
    fn target(&mut self, operand: Operand, ty: Type) -> Result<Target> {
        Ok(match operand {
            Operand::Sink => match ty {
                Type::Pred => Target::P(self.fresh_p()),
                _ if ty.bits() == 64 => Target::R64(self.fresh64()),
                _ => Target::R32(self.fresh32()),
            },
            Operand::Reg(reg) => {
                let bits = self.scope().body.reg(reg).ty.bits();
                match self.register(reg)? {
                    Source::P(row) => Target::P(row),
                    Source::R64(row) => Target::R64(row),
                    Source::R32(row) if bits == 8 => Target::R8(row),
                    Source::R32(row) if bits == 16 => Target::R16(row),
                    Source::R32(row) => Target::R32(row),
                    Source::None => Target::None,
                }
            }
            _ => return self.refuse("a result that is no register"),
        })
    }

    fn target32(&mut self, operand: Operand) -> Result<u32> {
        match self.target(operand, Type::B32)? {
            Target::R32(row) | Target::R16(row) | Target::R8(row) => Ok(row),
            _ => self.refuse("a result that is no register of 32 bits"),
        }
    }

    fn target64(&mut self, operand: Operand) -> Result<u32> {
        match self.target(operand, Type::B64)? {
            Target::R64(row) => Ok(row),
            _ => self.refuse("a result that is no register of 64 bits"),
        }
    }

    fn target_p(&mut self, operand: Operand) -> Result<u32> {
        match self.target(operand, Type::Pred)? {
            Target::P(row) => Ok(row),
            _ => self.refuse("a result that is no predicate"),
        }
    }

    /// Moves a value to where a result goes, narrowing or widening with zeros.
    fn move_to(&mut self, target: Target, source: Source) -> Result<()> {
        match (target, source) {
            (Target::R32(d) | Target::R16(d) | Target::R8(d), Source::R32(a)) => {
                self.emit(Op::Mov32, d, a, 0, 0, 0)
            }
            (Target::R64(d), Source::R64(a)) => self.emit(Op::Mov64, d, a, 0, 0, 0),
            (Target::R32(d), Source::R64(a)) => self.emit(Op::Low32, d, a, 0, 0, 0),
            (Target::R64(d), Source::R32(a)) => self.emit(Op::U64FromU32, d, a, 0, 0, 0),
            (Target::P(d), Source::P(a)) => self.emit(Op::PMov, d, a, a, 0, 0),
            (Target::None, _) => {}
            (target, source) => {
                self.emit_lane(super::lane::piece, 0, [source, Source::None, Source::None], target)
            }
        }
        Ok(())
    }

    /// The row of a special register.
    fn special(&mut self, special: Special, part: Part, bits: u32) -> Result<Source> {
        use super::inst::Hardware as H;
        let component = match part {
            Part::X | Part::Whole => 0,
            Part::Y => 1,
            Part::Z => 2,
            _ => 3,
        };
        let pick = |all: [Constant; 3]| all.get(component).copied().unwrap_or(Constant::Bits(0));
        let constant = match special {
            Special::Ntid => Some(pick([Constant::NtidX, Constant::NtidY, Constant::NtidZ])),
            Special::Nctaid | Special::Nclusterid => {
                Some(pick([Constant::NctaidX, Constant::NctaidY, Constant::NctaidZ]))
            }
            Special::Nwarpid => Some(Constant::Nwarpid),
            Special::Nsmid => Some(Constant::Nsmid),
            Special::Gridid => Some(Constant::Gridid),
            Special::DynamicSmemSize => Some(Constant::DynamicShared),
            Special::TotalSmemSize | Special::AggrSmemSize => Some(Constant::TotalShared),
            // Without clusters each CTA is one of its own.
            Special::IsExplicitCluster | Special::ClusterCtarank | Special::ClusterCtaid => {
                Some(Constant::Bits(0))
            }
            Special::ClusterNctarank | Special::ClusterNctaid => Some(Constant::Bits(1)),
            Special::Envreg(_) | Special::Pm(_) | Special::Pm64(_) | Special::CurrentGraphExec => {
                Some(Constant::Bits(0))
            }
            Special::ReservedSmemOffsetBegin
            | Special::ReservedSmemOffsetEnd
            | Special::ReservedSmemOffsetCap
            | Special::ReservedSmemOffset(_) => Some(Constant::Bits(0)),
            Special::Tid if component == 3 => Some(Constant::Bits(0)),
            Special::Ctaid | Special::Clusterid if component == 3 => Some(Constant::Bits(0)),
            _ => None,
        };
        if let Some(constant) = constant {
            return Ok(self.constant(constant, bits));
        }
        let narrow = match special {
            Special::Tid => {
                let row = match self.program.fixed.tid[component] {
                    Some(row) => row | FRAME,
                    None => {
                        let row = self.fresh32();
                        self.program.fixed.tid[component] = Some(row & !FRAME);
                        row
                    }
                };
                Some(row)
            }
            Special::Laneid => Some(self.laneid()),
            Special::LanemaskEq
            | Special::LanemaskLe
            | Special::LanemaskLt
            | Special::LanemaskGe
            | Special::LanemaskGt => {
                let row = self.fresh32();
                let lane = self.laneid();
                let how = match special {
                    Special::LanemaskEq => 0,
                    Special::LanemaskLe => 1,
                    Special::LanemaskLt => 2,
                    Special::LanemaskGe => 3,
                    _ => 4,
                };
                self.emit_lane(
                    lanemask,
                    how,
                    [Source::R32(lane), Source::None, Source::None],
                    Target::R32(row),
                );
                Some(row)
            }
            _ => None,
        };
        let row = match narrow {
            Some(row) => row,
            None => {
                let hardware = match special {
                    Special::Ctaid | Special::Clusterid => {
                        [H::CtaidX, H::CtaidY, H::CtaidZ][component.min(2)]
                    }
                    Special::Smid => H::Smid,
                    Special::Warpid => H::Warpid,
                    Special::Clock => H::Clock,
                    Special::ClockHi => H::ClockHi,
                    Special::Clock64 => H::Clock64,
                    Special::Globaltimer => H::Globaltimer,
                    Special::GlobaltimerLo => H::GlobaltimerLo,
                    Special::GlobaltimerHi => H::GlobaltimerHi,
                    other => {
                        let mut name = String::new();
                        other.write(&mut name);
                        return self.refuse(format!("special register {name}"));
                    }
                };
                if bits == 64 {
                    let row = self.fresh64();
                    self.emit_aux(Op::Special64, hardware as u16, row, 0, 0, 0);
                    return Ok(Source::R64(row));
                }
                let row = self.fresh32();
                self.emit_aux(Op::Special32, hardware as u16, row, 0, 0, 0);
                row
            }
        };
        if bits == 64 {
            let wide = self.fresh64();
            self.emit(Op::U64FromU32, wide, row, 0, 0, 0);
            return Ok(Source::R64(wide));
        }
        Ok(Source::R32(row))
    }

    fn laneid(&mut self) -> u32 {
        if let Some(row) = self.program.fixed.laneid {
            return row | FRAME;
        }
        let row = self.fresh32();
        self.program.fixed.laneid = Some(row & !FRAME);
        row
    }

    /// The address of a symbol in its own space.
    fn symbol(&mut self, symbol: Symbol, offset: i32, bits: u32) -> Result<Source> {
        if let Symbol::Func(id) = symbol {
            let address = calls::function_address(self.module, id).wrapping_add(i64::from(offset) as u64);
            return Ok(self.constant(Constant::Bits(address), bits));
        }
        let Symbol::Var(var) = symbol else {
            return self.refuse(match symbol {
                Symbol::Label(_) => "the address of a label",
                _ => "a name that is not declared",
            });
        };
        if let Some((base, place)) = self.place_in_frame(var) {
            let plus =
                self.constant64(Constant::Bits(u64::from(place).wrapping_add(i64::from(offset) as u64)));
            let wide = self.fresh64();
            self.emit(Op::Add64, wide, base, plus, 0, 0);
            if bits == 64 {
                return Ok(Source::R64(wide));
            }
            let narrow = self.fresh32();
            self.emit(Op::Low32, narrow, wide, 0, 0, 0);
            return Ok(Source::R32(narrow));
        }
        let (constant, plain) = self.address_of(var)?;
        match constant {
            Some(constant) if offset == 0 => Ok(self.constant(constant, bits)),
            Some(constant) => {
                let base = self.constant(constant, bits);
                let plus = self.constant(Constant::Bits(i64::from(offset) as u64), bits);
                match (base, plus) {
                    (Source::R64(a), Source::R64(b)) => {
                        let d = self.fresh64();
                        self.emit(Op::Add64, d, a, b, 0, 0);
                        Ok(Source::R64(d))
                    }
                    (Source::R32(a), Source::R32(b)) => {
                        let d = self.fresh32();
                        self.emit(Op::Add32, d, a, b, 0, 0);
                        Ok(Source::R32(d))
                    }
                    _ => self.refuse("an address of this width"),
                }
            }
            None => Ok(self.constant(Constant::Bits(plain.wrapping_add(i64::from(offset) as u64)), bits)),
        }
    }

    /// Where a local variable or parameter lies in the frame of a function with code of its own: the row of the frame
    /// pointer, and the place.
    fn place_in_frame(&self, var: VarId) -> Option<(u32, u32)> {
        let stack = self.thread_stack.as_ref().filter(|_| self.frame.is_some())?;
        let scope = self.scope();
        let place = scope.locals.get(&var).or_else(|| scope.params.get(&var))?;
        Some((stack.frame, *place))
    }

    /// Where a variable lies in its own space: a constant of the launch, or a number.
    fn address_of(&mut self, var: VarId) -> Result<(Option<Constant>, u64)> {
        let variable = self.module.var(var);
        match variable.space {
            PtxSpace::Global | PtxSpace::Const => match self.image.address(self.module, var) {
                Some(address) => Ok((None, address)),
                None => {
                    self.refuse(format!("`{}` is declared but not defined", self.module.text(variable.name)))
                }
            },
            space if space.is_shared() => match variable.bytes() {
                None => {
                    let end = align(self.program.static_shared, variable.alignment().max(16) as u32);
                    self.program.static_shared = end;
                    Ok((Some(Constant::StaticShared), 0))
                }
                Some(_) => Ok((None, u64::from(self.shared_place(var)?))),
            },
            PtxSpace::Local => match self.scope().locals.get(&var) {
                Some(&place) => Ok((None, u64::from(place))),
                None => self.refuse("a local variable of module scope"),
            },
            space if space.is_param() => {
                if let Some(&place) = self.scope().params.get(&var) {
                    return Ok((None, u64::from(place)));
                }
                match self.kernel_params.get(&var) {
                    Some(parameter) => Ok((None, u64::from(parameter.offset))),
                    None => self.refuse("a parameter that is not in scope"),
                }
            }
            other => self.refuse(format!("a variable in the space .{}", other.text())),
        }
    }

    fn shared_place(&mut self, var: VarId) -> Result<u32> {
        if let Some(&place) = self.shared.get(&var) {
            return Ok(place);
        }
        let variable = self.module.var(var);
        let bytes =
            variable.bytes().and_then(|bytes| u32::try_from(bytes).ok()).filter(|&bytes| bytes <= 1 << 20);
        let Some(bytes) = bytes else {
            return self.refuse("a shared variable is too large");
        };
        let start = align(self.program.static_shared, variable.alignment() as u32);
        self.program.static_shared = start + bytes;
        self.shared.insert(var, start);
        let name = self.module.text(variable.name).to_owned();
        self.program.shared_variables.push(SharedVariable { name, start, bytes });
        Ok(start)
    }

    fn finish(mut self) -> Result<Program> {
        for &jump in &self.jumps {
            let label = self.program.code[jump].imm as usize;
            match self.labels[label] {
                Some(at) => self.program.code[jump].imm = at as i64,
                None => return self.refuse("a branch to a label that stands nowhere"),
            }
        }
        for table in &mut self.program.branch_tables {
            for target in table {
                match self.labels[*target as usize] {
                    Some(at) => *target = at as u32,
                    None => {
                        return Err(Refusal {
                            line: self.line,
                            what: "a branch to a label that stands nowhere".into(),
                        });
                    }
                }
            }
        }
        let mut program = self.program;
        program.static_shared = align(program.static_shared, 16);
        program.weights.push(self.weight);
        // The weight of an instruction is what comes before it, and counting includes its own.
        for index in (0..program.code.len()).rev() {
            program.weights[index] = program.weights[index].saturating_sub(1);
        }
        cfg::mark_reconvergence(&mut program);
        program.registers_per_thread = cfg::registers_per_thread(&program);
        program.segments = Segments::of(&program);
        Ok(program)
    }
}

/// A literal's bits in a type.
fn literal(operand: Operand, ty: Type) -> u64 {
    match (operand, ty) {
        (Operand::F64(bits), Type::F32) => u64::from((f64::from_bits(bits) as f32).to_bits()),
        (Operand::F64(bits), Type::F16) => u64::from(half::f16::from_f64(f64::from_bits(bits)).to_bits()),
        (Operand::F32(bits), Type::F64) => f64::from(f32::from_bits(bits)).to_bits(),
        (Operand::F32(bits), _) => u64::from(bits),
        (Operand::F64(bits), _) => bits,
        (Operand::Int(value) | Operand::Uint(value), _) => match ty.bits() {
            8 => value & 0xff,
            16 => value & 0xffff,
            _ => value,
        },
        _ => 0,
    }
}

/// `%lanemask_*` from `%laneid`.
fn lanemask(x: [u64; 3], how: u32) -> u64 {
    let bit = 1_u64 << (x[0] & 31);
    let all = 0xffff_ffff;
    match how {
        0 => bit,
        1 => bit | (bit - 1),
        2 => bit - 1,
        3 => all & !(bit - 1),
        _ => all & !(bit | (bit - 1)),
    }
}

const _: () = assert!(NOWHERE == u32::MAX);
