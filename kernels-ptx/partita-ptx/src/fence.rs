//! The `fence` pass: no global access of a kernel leaves the tenant's window.
//!
//! The window has a power of two of bytes and is aligned to its size. Each access of global memory goes to
//! `base | (address & mask)`, where `mask` is the size less one; so a right program's accesses stay what they are, and a
//! wrong or hostile one's hit some place of its own tenant. A generic address passes as it is where the hardware says that
//! it is in the CTA's shared or the thread's local memory. Accesses are aligned to their size (others fault), so none
//! reaches over the window's end; bulk copies are cut there.
//!
//! Base and mask are two more, last parameters of the kernel. They are not compiled in, so that the text can be cached
//! and shared; and they lie in no memory that a kernel can write. Functions get them as parameters of their own
//! ([`crate::carry`]). Control stays within the module: indices of `brx.idx` are cut to their table, calls through
//! registers are refused.
//!
//! # What it takes for granted
//!
//! - The window holds the module's variables and whatever else the program may reach.
//! - The hardware bounds constant, parameter, shared and local memory to the kernel, the CTA and the thread.
//! - A thread cannot change its own registers by way of local memory. That does not hold of values which the assembler
//!   spills there: a kernel that writes beyond its own local arrays may reach them.
//!
//! The pass comes before those that surround the body: their accesses to the control block are not fenced.

use std::collections::BTreeSet;

use crate::carry::{self, Carry, declare, emit};
use crate::ir::{
    Base, Body, Form, FuncId, FunctionKind, Inst, Linkage, Mod, Module, Name, Op, Operand, Reg, Space, Stmt,
    Symbol, Table, Type,
};
use crate::kernels::{Kernel, Param};
use crate::params;
use crate::report::{KernelReport, Outcome, Reason, Refusal};
use crate::worker::Rewritten;
use crate::worker::checks::parameter_limit;

/// Fences every kernel that can be fenced. A kernel that refuses is as it was and must not run beside other tenants.
#[must_use]
pub fn fence(module: &Module) -> Rewritten {
    let mut out = module.clone();
    let mut reports = Vec::new();
    let mut state: Option<Fence> = None;
    for kernel in module.kernels() {
        let functions = match check(module, &kernel) {
            Ok(functions) => functions,
            Err(refusals) => {
                reports.push(KernelReport::new(&kernel, Outcome::Refused(refusals)));
                continue;
            }
        };
        let state = state.get_or_insert_with(|| Fence::new(&mut out));
        let added = state.kernel(&mut out, &kernel, &functions);
        reports.push(KernelReport { added, ..KernelReport::new(&kernel, Outcome::Applied) });
    }
    if let Some(state) = state {
        state.carry.place(&mut out);
    }
    debug_assert!(crate::verify(module).is_err() || crate::verify(&out).is_ok(), "the pass broke the module");
    Rewritten { module: out, reports }
}

/// How an operand is forced into the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// It is an address of global memory.
    Global,
    /// It may be of shared or local memory.
    Generic,
}

/// What an instruction needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Needs {
    /// Operands that are addresses.
    addresses: Vec<(usize, Access)>,
    /// The operand that says how many bytes from the address on.
    bytes: Option<usize>,
}

/// The functions that need the window; or why it cannot be done.
fn check(module: &Module, kernel: &Kernel) -> Result<BTreeSet<FuncId>, Vec<Refusal>> {
    let mut refusals = Vec::new();
    let pos = module.func(kernel.func).pos;
    if module.address_size != Some(64) || module.sm().is_none() {
        refusals.push(Refusal { pos, reason: Reason::Target });
    }
    let (bytes, limit) = (kernel.param_bytes, parameter_limit(module));
    if bytes.next_multiple_of(8) + 16 > limit {
        refusals.push(Refusal { pos, reason: Reason::ParametersFull { bytes, limit } });
    }
    let reach = module.reach(kernel.func);
    let mut needing = BTreeSet::new();
    for &id in &reach.funcs {
        let function = module.func(id);
        let Some(body) = &function.body else {
            let name = module.text(function.name).to_owned();
            refusals.push(Refusal { pos: function.pos, reason: Reason::DriverFunction { function: name } });
            continue;
        };
        for (_, inst) in body.insts() {
            match needs(module, body, inst) {
                Ok(needs) if needs == Needs::default() && module.form(inst).op != Op::Brx => {}
                Ok(_) => {
                    needing.insert(id);
                }
                Err(reason) => refusals.push(Refusal { pos: inst.pos, reason }),
            }
        }
    }
    match carry::wanted(module, &reach, &needing) {
        Ok(functions) if refusals.is_empty() => return Ok(functions),
        Ok(_) => {}
        Err(refusal) => refusals.push(refusal),
    }
    refusals.sort_by_key(|refusal| refusal.pos);
    Err(refusals)
}

/// Looks at an instruction.
fn needs(module: &Module, body: &Body, inst: &Inst) -> Result<Needs, Reason> {
    let form = module.form(inst);
    let operands = body.operands(inst.operands);
    let unfenced = |by| Err(Reason::Unfenced { instruction: module.text(form.text).to_owned(), by });
    let is_address = |operand: &Operand| matches!(operand, Operand::Mem(..) | Operand::Absolute(_));
    let address = operands.iter().position(is_address);
    match form.op {
        Op::Ld
        | Op::Ldu
        | Op::St
        | Op::Atom
        | Op::Red
        | Op::Prefetch
        | Op::Prefetchu
        | Op::Applypriority
        | Op::Discard
        | Op::Createpolicy
        | Op::Wmma => Ok(Needs { addresses: by_space(module, form, operands, address)?, bytes: None }),
        Op::Cp if form.has(Mod::Tensor) => unfenced("a tensor map"),
        Op::Cp => Ok(copy(form, operands)),
        // Shared memory only, and bounded by the hardware.
        Op::Mbarrier | Op::Ldmatrix | Op::Stmatrix | Op::Movmatrix | Op::Wgmma | Op::Mma => {
            Ok(Needs::default())
        }
        Op::Tex | Op::Tld4 | Op::Txq | Op::Suld | Op::Sust | Op::Sured | Op::Suq | Op::Istypep => {
            if names_its_object(body, operands) {
                Ok(Needs::default())
            } else {
                unfenced("a handle in a register")
            }
        }
        Op::Stackrestore => unfenced("the stack pointer"),
        Op::Tensormap | Op::Tcgen05 | Op::Multimem | Op::Clusterlaunchcontrol => unfenced("descriptors"),
        Op::Call => match operands.iter().any(|operand| matches!(operand, Operand::Reg(_))) {
            true => Err(Reason::CallThroughRegister),
            false => Ok(Needs::default()),
        },
        Op::Other(_) => unfenced("ways that the pass does not know"),
        _ if address.is_some() => unfenced("an address that the pass does not know"),
        _ => Ok(Needs::default()),
    }
}

/// An access whose space its form says.
fn by_space(
    module: &Module,
    form: &Form,
    operands: &[Operand],
    address: Option<usize>,
) -> Result<Vec<(usize, Access)>, Reason> {
    let Some(address) = address else { return Ok(Vec::new()) };
    let access = match form.space() {
        None => Access::Generic,
        Some(Space::Global) => Access::Global,
        Some(Space::Tex | Space::Reg | Space::Sreg) => {
            let instruction = module.text(form.text).to_owned();
            return Err(Reason::Unfenced { instruction, by: "a texture" });
        }
        Some(_) => return Ok(Vec::new()),
    };
    let inside = is_inside(module, form, operands[address]);
    Ok(if inside { Vec::new() } else { vec![(address, access)] })
}

/// A place inside a variable of the module, at a constant offset.
fn is_inside(module: &Module, form: &Form, operand: Operand) -> bool {
    let Operand::Mem(Base::Symbol(Symbol::Var(id)), offset) = operand else { return false };
    let variable = module.var(id);
    let wanted = u64::from(form.last_type().map_or(128, Type::bits).max(8) / 8) * u64::from(form.vector());
    let fixed = matches!(variable.linkage, Linkage::Private | Linkage::Visible);
    match (variable.bytes(), u64::try_from(offset)) {
        (Some(bytes), Ok(offset)) if variable.space == Space::Global && fixed && form.op != Op::Wmma => {
            offset.checked_add(wanted).is_some_and(|end| end <= bytes)
        }
        _ => false,
    }
}

/// `cp.async` and `cp.async.bulk`: the spaces stand in the form, destination first.
fn copy(form: &Form, operands: &[Operand]) -> Needs {
    let spaces: Vec<Space> = form
        .mods
        .iter()
        .filter_map(|modifier| match modifier {
            Mod::Space(space) => Some(*space),
            _ => None,
        })
        .collect();
    let addresses: Vec<(usize, Access)> = spaces
        .iter()
        .enumerate()
        .filter(|&(index, space)| {
            *space == Space::Global
                && matches!(operands.get(index), Some(Operand::Mem(..) | Operand::Absolute(_)))
        })
        .map(|(index, _)| (index, Access::Global))
        .collect();
    let bulk = form.has(Mod::Bulk) && !addresses.is_empty();
    // The size stands behind the addresses.
    Needs { bytes: bulk.then_some(spaces.len()), addresses }
}

/// Whether a texture or surface is a variable of the module, which the host has bound.
fn names_its_object(body: &Body, operands: &[Operand]) -> bool {
    operands.iter().all(|operand| match *operand {
        Operand::Tuple(parts) => {
            let objects = body.operands(parts).iter().take_while(|part| !matches!(part, Operand::Vector(_)));
            let mut objects = objects.peekable();
            objects.peek().is_some() && objects.all(|part| matches!(part, Operand::Symbol(..)))
        }
        Operand::Mem(Base::Reg(_), _) | Operand::Absolute(_) => false,
        _ => true,
    })
}

/// The pass on one module.
struct Fence {
    carry: Carry,
    base: Name,
    mask: Name,
    temporaries: [(Name, Type); 5],
}

/// Registers of one body.
#[derive(Clone, Copy)]
struct Regs {
    base: Reg,
    mask: Reg,
    address: Reg,
    fenced: Reg,
    narrow: Reg,
    inside: Reg,
    other: Reg,
}

impl Fence {
    fn new(module: &mut Module) -> Self {
        let carry = Carry::new(module, &[("base", Type::B64), ("mask", Type::B64)]);
        let mut name = |stem: &str, ty| (module.names.fresh(stem), ty);
        let temporaries = [
            name("%pw_to", Type::B64),
            name("%pw_fenced", Type::B64),
            name("%pw_size", Type::B32),
            name("%pw_own", Type::Pred),
            name("%pw_too", Type::Pred),
        ];
        let (base, mask) = (module.names.fresh("pw_window_base"), module.names.fresh("pw_window_mask"));
        Self { carry, base, mask, temporaries }
    }

    fn kernel(&mut self, module: &mut Module, kernel: &Kernel, functions: &BTreeSet<FuncId>) -> Vec<Param> {
        for copy in self.carry.copy(module, functions) {
            self.body(module, copy, None);
        }
        let params = [self.base, self.mask].map(|name| params::append(module, kernel.func, name, Type::U64));
        self.body(module, kernel.func, Some(&params));
        let first = kernel.param_bytes.next_multiple_of(8);
        let param = |(index, name): (u64, Name)| Param {
            name: module.text(name).to_owned(),
            offset: first + 8 * index,
            size: 8,
            align: 8,
        };
        [(0, self.base), (1, self.mask)].map(param).to_vec()
    }

    fn body(&self, module: &mut Module, func: FuncId, params: Option<&[crate::ir::VarId]>) {
        debug_assert_eq!(params.is_some(), module.func(func).kind == FunctionKind::Entry);
        let Some(mut body) = module.funcs[func.0 as usize].body.take() else { return };
        let stmts = std::mem::take(&mut body.stmts);
        let mut out = Vec::with_capacity(stmts.len() * 2);
        let window = self.carry.load(module, func, &mut body, params, &mut out);
        let [address, fenced, narrow, inside, other] =
            self.temporaries.map(|(name, ty)| declare(&mut body, name, ty, &mut out));
        let regs = Regs { base: window[0], mask: window[1], address, fenced, narrow, inside, other };
        let last = last_indices(&body, &stmts);
        for stmt in stmts {
            match stmt {
                Stmt::Inst(inst) if module.form(&inst).op == Op::Call => {
                    self.carry.call(module, &mut body, inst, &window, &mut out);
                }
                Stmt::Inst(inst) if module.form(&inst).op == Op::Brx => {
                    indexed(module, &mut body, inst, &last, regs.narrow, &mut out);
                }
                Stmt::Inst(inst) => access(module, &mut body, inst, regs, &mut out),
                other => out.push(other),
            }
        }
        body.stmts = out;
        module.funcs[func.0 as usize].body = Some(body);
    }
}

/// Appends an instruction with its addresses forced into the window.
fn access(module: &mut Module, body: &mut Body, mut inst: Inst, regs: Regs, out: &mut Vec<Stmt>) {
    let needs = needs(module, body, &inst).unwrap_or_default();
    if needs.addresses.is_empty() {
        out.push(Stmt::Inst(inst));
        return;
    }
    let mut operands = body.operands(inst.operands).to_vec();
    // No instruction has two addresses of global memory: one set of registers serves.
    for (index, kind) in needs.addresses {
        let fenced = Operand::Reg(regs.fenced);
        // An address that is in a register as it is needs no copy.
        let address = match operands[index] {
            Operand::Mem(Base::Reg(reg), 0) if body.reg(reg).ty.bits() == 64 => Operand::Reg(reg),
            other => {
                put_address(module, body, other, regs.address, out);
                Operand::Reg(regs.address)
            }
        };
        emit(module, body, out, "and.b64", &[fenced, address, Operand::Reg(regs.mask)]);
        emit(module, body, out, "or.b64", &[fenced, fenced, Operand::Reg(regs.base)]);
        if kind == Access::Generic {
            let (inside, other) = (Operand::Reg(regs.inside), Operand::Reg(regs.other));
            emit(module, body, out, "isspacep.shared", &[inside, address]);
            emit(module, body, out, "isspacep.local", &[other, address]);
            emit(module, body, out, "or.pred", &[inside, inside, other]);
            emit(module, body, out, "selp.b64", &[fenced, address, fenced, inside]);
        }
        operands[index] = Operand::Mem(Base::Reg(regs.fenced), 0);
    }
    if let Some(index) = needs.bytes
        && let Some(&size) = operands.get(index)
    {
        operands[index] = cut(module, body, size, regs, out);
    }
    inst.operands = body.add_operands(&operands);
    out.push(Stmt::Inst(inst));
}

/// Puts the address itself into its register.
pub(crate) fn put_address(
    module: &mut Module,
    body: &mut Body,
    operand: Operand,
    address: Reg,
    out: &mut Vec<Stmt>,
) {
    let address = Operand::Reg(address);
    let offset = |offset: i32| Operand::Int(i64::from(offset).cast_unsigned());
    match operand {
        Operand::Mem(Base::Reg(reg), bytes) if body.reg(reg).ty.bits() == 64 => match bytes {
            0 => emit(module, body, out, "mov.b64", &[address, Operand::Reg(reg)]),
            bytes => emit(module, body, out, "add.s64", &[address, Operand::Reg(reg), offset(bytes)]),
        },
        Operand::Mem(Base::Reg(reg), bytes) => {
            emit(module, body, out, "cvt.u64.u32", &[address, Operand::Reg(reg)]);
            emit(module, body, out, "add.s64", &[address, address, offset(bytes)]);
        }
        Operand::Mem(Base::Symbol(symbol), bytes) => {
            emit(module, body, out, "mov.b64", &[address, Operand::Symbol(symbol, 0)]);
            emit(module, body, out, "add.s64", &[address, address, offset(bytes)]);
        }
        Operand::Absolute(at) => emit(module, body, out, "mov.b64", &[address, Operand::Int(at)]),
        _ => {}
    }
}

/// The smaller of a bulk copy's size and the bytes from its address to the window's end. Sizes are multiples of 16, and
/// so are addresses.
fn cut(module: &mut Module, body: &mut Body, size: Operand, regs: Regs, out: &mut Vec<Stmt>) -> Operand {
    let [room, base, mask] = [regs.address, regs.base, regs.mask].map(Operand::Reg);
    emit(module, body, out, "add.s64", &[room, base, mask]);
    emit(module, body, out, "sub.s64", &[room, room, Operand::Reg(regs.fenced)]);
    emit(module, body, out, "add.s64", &[room, room, Operand::Int(1)]);
    emit(module, body, out, "min.u64", &[room, room, Operand::Int(u64::from(u32::MAX) & !15)]);
    let narrow = Operand::Reg(regs.narrow);
    emit(module, body, out, "cvt.u32.u64", &[narrow, room]);
    emit(module, body, out, "min.u32", &[narrow, narrow, size]);
    narrow
}

/// For each label the last index of the table behind it.
fn last_indices(body: &Body, stmts: &[Stmt]) -> Vec<u64> {
    let mut last = vec![0; body.labels.len()];
    for pair in stmts.windows(2) {
        if let [Stmt::Label(label), Stmt::Table(table)] = pair
            && let Table::Branch(targets) = &body.tables[*table as usize]
        {
            last[label.0 as usize] = (targets.len() as u64).saturating_sub(1);
        }
    }
    last
}

/// Appends an indexed branch whose index is inside its table.
fn indexed(
    module: &mut Module,
    body: &mut Body,
    mut inst: Inst,
    last: &[u64],
    narrow: Reg,
    out: &mut Vec<Stmt>,
) {
    let operands = body.operands(inst.operands).to_vec();
    if let [index, Operand::Symbol(Symbol::Label(label), _), ..] = *operands.as_slice() {
        let narrow = Operand::Reg(narrow);
        let last = Operand::Int(last[label.0 as usize]);
        emit(module, body, out, "min.u32", &[narrow, index, last]);
        inst.operands = body.add_operands(&[&[narrow], &operands[1..]].concat());
    }
    out.push(Stmt::Inst(inst));
}
