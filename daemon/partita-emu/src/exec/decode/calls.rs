//! Functions with code of their own, and calls of them.
//!
//! A direct call is expanded in place as a rule. Two kinds of functions get code of their own, once
//! per kernel, behind the kernel's code: functions that may call themselves, and functions whose
//! address is taken where a kernel calls through pointers. [`Op::Call`] enters such a function. Its
//! variables and parameters lie on the thread's stack, which begins behind the kernel's own local
//! memory.

use super::{Decoder, Result, align};
use crate::exec::call::{CONTROL_BYTES, CallOp, Callee, Function, Piece, STACK_BYTES, SavedRows};
use crate::exec::inst::{Op, Source, SystemKind, SystemOp, Target};
use crate::exec::program::Constant;
use partita_ptx::{Body, Form, FuncId, Init, Module, Op as P, Operand, Symbol, Table, Type, VarId};
use std::collections::BTreeSet;

/// Functions have addresses from here on, outside every state space.
const FUNCTION_BASE: u64 = 0x0400_0000_0000;

/// The address of a function, as `mov` from its name gives it. The address is valid in all kernels
/// of the module, and in no other module.
pub(super) fn function_address(module: &Module, id: FuncId) -> u64 {
    let id = module.definition(id).unwrap_or(id);
    FUNCTION_BASE + 16 * (u64::from(id.0) + 1)
}

/// The call graph of a module.
#[derive(Debug, Default)]
pub(super) struct CallGraph {
    nodes: Vec<Node>,
    /// Functions whose address is taken.
    taken: BTreeSet<u32>,
}

#[derive(Clone, Debug, Default)]
struct Node {
    /// Functions that this one calls by name.
    callees: BTreeSet<u32>,
    /// Whether this function calls through pointers.
    indirect: bool,
    /// Whether this function moves the stack pointer itself.
    moves_stack: bool,
    /// Whether this function may call itself, directly or through others.
    looping: bool,
}

impl CallGraph {
    pub(super) fn of(module: &Module) -> Self {
        let mut graph =
            CallGraph { nodes: vec![Node::default(); module.funcs.len()], ..Self::default() };
        for variable in &module.vars {
            if let Some(init) = &variable.init {
                graph.take_initialiser(module, init);
            }
        }
        for index in 0..module.funcs.len() {
            if let Some(body) = &module.funcs[index].body {
                graph.read(module, index, body);
            }
        }
        graph.find_looping();
        graph
    }

    fn take(&mut self, module: &Module, id: FuncId) {
        if let Some(id) = module.definition(id) {
            self.taken.insert(id.0);
        }
    }

    fn take_initialiser(&mut self, module: &Module, init: &Init) {
        match init {
            Init::List(list) => list.iter().for_each(|init| self.take_initialiser(module, init)),
            Init::Symbol(Symbol::Func(id), _) | Init::Generic(Symbol::Func(id), _) => {
                self.take(module, *id)
            }
            Init::Mask(_, inner) => self.take_initialiser(module, inner),
            _ => {}
        }
    }

    fn read(&mut self, module: &Module, index: usize, body: &Body) {
        for (_, inst) in body.insts() {
            let operands = body.operands(inst.operands);
            match module.form(inst).op {
                P::Call => {
                    let callee =
                        operands.iter().find(|operand| !matches!(operand, Operand::List(_)));
                    match callee {
                        Some(Operand::Symbol(Symbol::Func(id), _)) => {
                            if let Some(id) = module.definition(*id) {
                                self.nodes[index].callees.insert(id.0);
                            }
                        }
                        _ => self.nodes[index].indirect = true,
                    }
                    continue;
                }
                P::Alloca | P::Stacksave | P::Stackrestore => self.nodes[index].moves_stack = true,
                _ => {}
            }
            for operand in operands {
                let parts = match operand {
                    Operand::Vector(parts) => body.operands(*parts),
                    other => std::slice::from_ref(other),
                };
                for part in parts {
                    if let Operand::Symbol(Symbol::Func(id), _) = part {
                        self.take(module, *id);
                    }
                }
            }
        }
        for table in &body.tables {
            if let Table::Call(symbols) = table {
                for symbol in symbols {
                    if let Symbol::Func(id) = symbol {
                        self.take(module, *id);
                    }
                }
            }
        }
    }

    fn callees(&self, index: u32) -> impl Iterator<Item = u32> + '_ {
        let node = &self.nodes[index as usize];
        let pointed = node.indirect.then_some(&self.taken).into_iter().flatten();
        node.callees.iter().chain(pointed).copied()
    }

    /// Removes functions without callees until none is left; the rest are on a cycle or lead to
    /// one. Then removes functions without callers likewise; the rest are on a cycle.
    fn find_looping(&mut self) {
        let mut left: Vec<bool> = vec![true; self.nodes.len()];
        for upwards in [false, true] {
            let mut edges: Vec<Vec<u32>> = vec![Vec::new(); left.len()];
            let mut count = vec![0_u32; left.len()];
            for from in (0..left.len() as u32).filter(|&from| left[from as usize]) {
                for to in self.callees(from).filter(|&to| left[to as usize]) {
                    let (waits, freed) = if upwards { (to, from) } else { (from, to) };
                    edges[freed as usize].push(waits);
                    count[waits as usize] += 1;
                }
            }
            let mut free: Vec<u32> = (0..left.len() as u32)
                .filter(|&id| left[id as usize] && count[id as usize] == 0)
                .collect();
            while let Some(id) = free.pop() {
                left[id as usize] = false;
                for &other in &edges[id as usize] {
                    count[other as usize] -= 1;
                    if count[other as usize] == 0 {
                        free.push(other);
                    }
                }
            }
        }
        for (node, left) in self.nodes.iter_mut().zip(left) {
            node.looping = left;
        }
    }

    fn is_looping(&self, id: FuncId) -> bool {
        self.nodes[id.0 as usize].looping
    }

    /// Whether a kernel needs a stack at run time.
    fn needs_stack(&self, kernel: FuncId) -> bool {
        let mut seen = BTreeSet::from([kernel.0]);
        let mut open = vec![kernel.0];
        while let Some(id) = open.pop() {
            let node = &self.nodes[id as usize];
            if node.indirect || node.moves_stack || node.looping {
                return true;
            }
            open.extend(node.callees.iter().copied().filter(|&callee| seen.insert(callee)));
        }
        false
    }
}

/// The decoder's rows for the thread's stack.
#[derive(Clone, Debug)]
pub(super) struct ThreadStack {
    /// Row of the frame pointer.
    pub(super) frame: u32,
    /// Row of the first free address.
    pub(super) top: u32,
    /// Row of the address at which the stack begins, filled in at the end.
    start: u32,
}

impl Decoder<'_> {
    /// Prepares the stack where the kernel needs one. This precedes all other code.
    pub(super) fn begin_stack(&mut self, kernel: FuncId) {
        if !self.calls.needs_stack(kernel) {
            return;
        }
        let start = self.program.constants64.len() as u32;
        self.program.constants64.push(Constant::Bits(0));
        let (frame, top) = (self.fresh64(), self.fresh64());
        self.emit(Op::Mov64, top, start, 0, 0, 0);
        self.program.stack_rows = [frame, top];
        self.thread_stack = Some(ThreadStack { frame, top, start });
    }

    /// Appends the functions that have their own code, and fixes the address at which the stack
    /// begins.
    pub(super) fn end_stack(&mut self) -> Result<()> {
        let mut next = 0;
        while let Some(&id) = self.outlined.get(next) {
            self.outline(next, id)?;
            next += 1;
        }
        if let Some(stack) = &self.thread_stack {
            let start = align(self.program.local, 16);
            self.program.constants64[stack.start as usize] = Constant::Bits(u64::from(start));
            self.program.local = start + STACK_BYTES;
        }
        Ok(())
    }

    fn outline(&mut self, index: usize, id: FuncId) -> Result<()> {
        let module = self.module;
        let function = module.func(id);
        self.line = function.pos.line;
        let first = [self.program.frame32, self.program.frame64, self.program.predicates];
        let entry = self.program.code.len() as u32;
        self.frame = Some(CONTROL_BYTES);
        let (mut params, mut pieces) = (std::collections::HashMap::new(), Vec::new());
        for &var in function.returns.iter().chain(&function.params) {
            let place = self.local_room(var)?;
            params.insert(var, place);
            pieces.push(self.piece(var, place));
        }
        let back = self.fresh_label();
        self.expand(id, Some(back), params)?;
        self.emit(Op::Return, 0, 0, 0, 0, index as i64);
        let mut saved = SavedRows::default();
        let mut frame = align(self.frame.take().unwrap_or(CONTROL_BYTES), 16);
        if self.calls.is_looping(id) {
            saved.r32 = first[0]..self.program.frame32;
            saved.r64 = first[1]..self.program.frame64;
            saved.predicates = first[2]..self.program.predicates;
            saved.place = frame;
            frame = align(frame + saved.bytes(), 16);
        }
        let arguments = pieces.split_off(function.returns.len());
        let name = module.text(function.name).to_owned();
        let address = function_address(module, id);
        let function = Function { name, address, entry, frame, saved, arguments, results: pieces };
        self.program.functions.push(function);
        Ok(())
    }

    pub(super) fn piece(&self, var: VarId, place: u32) -> Piece {
        Piece { place, bytes: self.module.var(var).bytes().unwrap_or(0) as u32 }
    }

    /// Whether a call of this function happens at run time.
    pub(super) fn is_outlined(&self, id: FuncId) -> bool {
        self.calls.is_looping(id)
    }

    /// Emits a call of a function that has its own code.
    pub(super) fn run_time_call(
        &mut self,
        callee: std::result::Result<FuncId, Operand>,
        results: Vec<Piece>,
        arguments: Vec<Piece>,
    ) -> Result<()> {
        let callee = match callee {
            Ok(id) => Callee::Direct(self.outlined_index(id)),
            Err(pointer) => {
                // The order of functions must not depend on where they are called first.
                for id in self.calls.taken.clone() {
                    self.outlined_index(FuncId(id));
                }
                Callee::Pointer(Source::R64(self.source64(pointer, Type::U64)?))
            }
        };
        let op = CallOp { callee, arguments, results, in_frame: self.frame.is_some(), back: 0 };
        self.program.call_ops.push(op);
        let index = self.program.call_ops.len() as i64 - 1;
        self.emit(Op::Call, 0, 0, 0, 0, index);
        Ok(())
    }

    fn outlined_index(&mut self, id: FuncId) -> u32 {
        let known = self.outlined.iter().position(|&other| other == id);
        known.unwrap_or_else(|| {
            self.outlined.push(id);
            self.outlined.len() - 1
        }) as u32
    }

    /// `alloca`, `stacksave`, `stackrestore` (PTX ISA, "Stack Manipulation Instructions"). Their
    /// addresses are of local memory.
    pub(super) fn stack_operation(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let Some(ThreadStack { top, .. }) = self.thread_stack else {
            return self.unsupported(form);
        };
        let ty = form.last_type().unwrap_or(Type::U64);
        match (form.op, operands) {
            (P::Alloca, [result, size, rest @ ..]) => {
                let alignment = match rest {
                    [Operand::Int(value) | Operand::Uint(value)] => (*value).clamp(1, 4096),
                    _ => 8,
                };
                let size = self.source64(*size, ty)?;
                let alignment = self.constant64(Constant::Bits(alignment.next_power_of_two()));
                let place = self.fresh64();
                let arguments =
                    [Source::R64(size), Source::R64(top), Source::R64(alignment), Source::None];
                let op =
                    SystemOp { kind: SystemKind::Alloca, arguments, target: Target::R64(place) };
                self.program.system_ops.push(op);
                let index = self.program.system_ops.len() as i64 - 1;
                self.emit(Op::System, 0, 0, 0, 0, index);
                self.emit(Op::Add64, top, place, size, 0, 0);
                let target = self.target(*result, ty)?;
                self.move_to(target, Source::R64(place))
            }
            (P::Stacksave, [result]) => {
                let target = self.target(*result, ty)?;
                self.move_to(target, Source::R64(top))
            }
            (P::Stackrestore, [from]) => {
                let from = self.source64(*from, ty)?;
                self.emit(Op::Mov64, top, from, 0, 0, 0);
                Ok(())
            }
            _ => self.unsupported(form),
        }
    }
}
