//! From PTX's typed representation to the compact form.
//!
//! Decoding works kernel by kernel. A device function is expanded where it is called. A function
//! that calls itself or is called through pointers has code of its own and a stack ([`calls`]).
//! Each PTX instruction becomes one or a few compact instructions. An unknown instruction refuses
//! its kernel, by line and spelling; the other kernels of the module run.

mod arguments;
mod arith;
mod asynchronous;
mod calls;
mod cfg;
mod cluster;
mod control;
mod launch_control;
mod matrix;
mod memory;
mod names;
mod narrow_matrix;
mod operands;
mod pressure;
mod refuse;
mod tcgen05;
mod texture;
mod variables;
mod warpgroup;
mod wide;

use crate::exec::inst::{FRAME, Inst, LaneOp, NOWHERE, Op, Source, Target};
use crate::exec::lane::LaneFn;
use crate::exec::program::{Constant, FixedRows, NamedRegister, Parameter, Program};
use crate::timing::segment::Segments;
use partita_model::Dim3;
use partita_ptx::{
    Body, FuncId, FunctionKind, Inst as PtxInst, LabelId, Module, Reg, Space as PtxSpace, Stmt,
    VarId,
};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use calls::{CallGraph, ThreadStack};
use operands::written_once;
pub use variables::{Image, Placed, place_variables};

/// The most compact instructions of a kernel after expansion of its calls.
const MAX_CODE: usize = 4 << 20;
/// The deepest nesting of calls.
const MAX_CALL_DEPTH: usize = 64;

/// Why a kernel cannot run on this device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct Refusal {
    /// Line of the PTX text.
    pub line: u32,
    /// The unsupported part, and the remedy.
    pub what: String,
}

type Result<T> = std::result::Result<T, Refusal>;

/// The kernels of a module that can run, and the refused kernels with their reasons.
#[derive(Debug, Default)]
pub struct Kernels {
    /// In source order. A program is large, and a module may have very many.
    pub programs: Vec<Arc<Program>>,
    /// Name and reason.
    pub refused: Vec<(String, Refusal)>,
}

/// Decodes every kernel of a module whose variables have been placed. The body of a kernel goes
/// once it is decoded: nothing calls a kernel.
#[must_use]
pub fn decode(mut module: Module, image: &Image) -> Kernels {
    let mut kernels = Kernels::default();
    let calls = CallGraph::of(&module);
    for index in 0..module.funcs.len() {
        let function = &module.funcs[index];
        if function.kind != FunctionKind::Entry || function.body.is_none() {
            continue;
        }
        let id = FuncId(index as u32);
        match Decoder::new(&module, image, &calls).kernel(id) {
            Ok(mut program) => {
                program.shrink();
                kernels.programs.push(Arc::new(program));
            }
            Err(refusal) => kernels.refused.push((module.text(function.name).to_owned(), refusal)),
        }
        module.funcs[index].body = None;
    }
    kernels
}

/// One expansion of a function's body.
struct Scope<'m> {
    body: &'m Body,
    /// Rows of the body's registers.
    regs: Vec<Option<Source>>,
    /// Whether exactly one instruction writes the register.
    once: Vec<bool>,
    /// Registers that alias a row that never changes.
    fixed: HashSet<Reg>,
    /// Rows of the body's 128-bit registers.
    wide: HashMap<Reg, [u32; 2]>,
    /// Rows of the body's vector registers, by component.
    vectors: HashMap<Reg, Vec<Source>>,
    /// The body's labels, as indices of the decoder's.
    labels: Vec<Option<usize>>,
    /// The label that `ret` branches to; `None` in a kernel.
    returns_to: Option<usize>,
    /// Places in local memory of the body's parameters and results, and of those of its calls.
    params: HashMap<VarId, u32>,
    /// Places in local memory of the body's variables.
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
    /// The instruction that follows each label.
    labels: Vec<Option<usize>>,
    /// The place of the last label.
    last_label: Option<usize>,
    /// Instructions whose `imm` is a label.
    jumps: Vec<usize>,
    /// PTX instructions counted at the next compact instruction.
    weight: u32,
    guard: u32,
    line: u32,
    carry: Option<u32>,
    thread_stack: Option<ThreadStack>,
    /// Bytes so far of the frame of a function with its own code; `None` in the kernel.
    frame: Option<u32>,
    /// Functions that have their own code.
    outlined: Vec<FuncId>,
    /// Registers a thread that the directives allow.
    register_limit: u32,
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
            last_label: None,
            jumps: Vec::new(),
            weight: 0,
            guard: 0,
            line: 0,
            carry: None,
            thread_stack: None,
            frame: None,
            outlined: Vec::new(),
            register_limit: pressure::MOST,
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
            let bytes = variable
                .bytes()
                .and_then(|bytes| u32::try_from(bytes).ok())
                .filter(|&bytes| bytes <= 32_764);
            let Some(bytes) = bytes else {
                return self.refuse("a parameter is too large");
            };
            offset = align(offset, variable.alignment() as u32);
            let parameter = Parameter { offset, bytes };
            offset += bytes;
            self.kernel_params.insert(var, parameter);
            self.program.params.push(parameter);
        }
        self.cluster_rules(id);
        self.directives(id);
        self.program.fixed = FixedRows::default();
        self.begin_stack(id);
        self.expand(id, None, HashMap::new())?;
        if self.reaches_end() {
            // The machine code ends with an exit that the text leaves out.
            self.weight += 1;
        }
        self.emit(Op::Exit, 0, 0, 0, 0, 0);
        self.end_stack()?;
        self.finish()
    }

    fn directives(&mut self, id: FuncId) {
        self.program.max_threads = 1024;
        let (mut ctas, mut declared) = (1, false);
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
                "minnctapersm" => ctas = get(0),
                "maxnreg" => self.register_limit = self.register_limit.min(get(0)),
                _ => continue,
            }
            declared |= self.module.text(directive.name).ends_with("ntid");
        }
        if declared {
            // ptxas spills registers so that the kernel can be launched as its directives say.
            let by_size = pressure::that_fit(self.program.max_threads, ctas);
            self.register_limit = self.register_limit.min(by_size);
        }
    }

    /// Appends a function's body. `ret` goes to `returns_to`, which then stands behind the body.
    fn expand(
        &mut self,
        id: FuncId,
        returns_to: Option<usize>,
        params: HashMap<VarId, u32>,
    ) -> Result<()> {
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
            once: written_once(module, body),
            fixed: HashSet::new(),
            wide: HashMap::new(),
            vectors: HashMap::new(),
            labels: vec![None; body.labels.len()],
            returns_to,
            params,
            locals: HashMap::new(),
        });
        self.load_formals(function)?;
        for stmt in &body.stmts {
            self.statement(stmt)?;
        }
        if let Some(end) = returns_to {
            self.here(end);
            self.store_formals(function)?;
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
                self.here(label);
                Ok(())
            }
            Stmt::Var(var) => self.declare(*var),
            Stmt::Open
            | Stmt::Close
            | Stmt::Regs(_)
            | Stmt::Loc(_)
            | Stmt::Table(_)
            | Stmt::Pragma(_) => Ok(()),
        }
    }

    /// Gives a local or call-parameter variable its place in the thread's local memory.
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

    /// Whether control can reach the end of the emitted code.
    fn reaches_end(&self) -> bool {
        let code = &self.program.code;
        let leaves = |inst: &Inst| {
            inst.guard == 0
                && matches!(inst.op, Op::Exit | Op::Bra | Op::Brx | Op::Return | Op::Trap)
        };
        self.last_label == Some(code.len()) || code.last().is_none_or(|last| !leaves(last))
    }

    fn here(&mut self, label: usize) {
        if self.program.code.is_empty() && self.weight > 0 {
            // The preceding PTX instructions must count only once, not with each turn of a loop.
            self.emit(Op::Nop, 0, 0, 0, 0, 0);
        }
        self.labels[label] = Some(self.program.code.len());
        self.last_label = Some(self.program.code.len());
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
        let plain = false;
        self.program.lane_ops.push(LaneOp { function, how, sources, target, plain });
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
            if operands.iter().take(1).any(|operand| Self::names_register(body, operand, guard.reg))
            {
                // The PTX instruction may become several, and an early one must not change the
                // guard of the rest. So they use a copy of the guard.
                let copy = self.fresh_p();
                let own = self.register(guard.reg)?;
                let guard_code = std::mem::take(&mut self.guard);
                let Source::P(own) = own else { return self.refuse("the guard is no predicate") };
                self.emit(Op::PMov, copy, copy, own, 0, 0);
                self.guard = ((copy & !FRAME) + 1) << 1 | guard_code & 1;
            }
        }
        self.note_cluster(form);
        let result = self.operation(form, operands);
        self.guard = 0;
        result
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
        program.list_shared_rows();
        program.weights.push(self.weight);
        // A weight counts the PTX instructions before an instruction; the counter adds the
        // instruction itself.
        for index in (0..program.code.len()).rev() {
            program.weights[index] = program.weights[index].saturating_sub(1);
        }
        // Leading PTX instructions without code of their own count with the first that has code.
        program.weights[0] = 0;
        cfg::mark_reconvergence(&mut program);
        program.registers_per_thread =
            pressure::registers_per_thread(&program, self.register_limit);
        program.segments = Segments::of(&program);
        Ok(program)
    }
}

const _: () = assert!(NOWHERE == u32::MAX);
