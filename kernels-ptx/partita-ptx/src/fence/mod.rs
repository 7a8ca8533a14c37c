//! The `fence` pass: no global access of a kernel leaves the tenant's window and the margins around
//! it.
//!
//! The window lies in a *cell* of the address space ([`layout`](margin_bytes)): a power of two of
//! bytes, aligned to its size, with margins in which nothing lies. An address is forced into the
//! cell by putting the cell's first address in place of its upper bits, one instruction; a right
//! program's addresses stay what they are, and a wrong or hostile one's hit some place of its own
//! tenant, or a margin, where the device makes them a fault.
//!
//! Because of the margins, not each access needs that: one whose address is a bounded displacement
//! away from a fenced value is safe as it is. So pointers are fenced where they are loaded, or once
//! a round of the loop that moves them on (`roots` chooses), and whether an access is safe is then
//! decided over the code that came of it ([`crate::analysis::Ranges`]). What is not proved gets a
//! fence of its own. A generic address passes as it is where the hardware says that it is not of
//! global memory.
//!
//! The cell's first address is one more, last parameter of the kernel. It is not compiled in, so
//! that the text can be cached and shared, and it lies in no memory that a kernel can write; the
//! cell's size is ([`WorkerOptions::cell_bits`]), because an instruction with a constant is one
//! where one with a register would be many. Functions get the address as a parameter of their own
//! ([`crate::carry`]). Control stays within the module: indices of `brx.idx` are cut to their
//! table, calls through registers are refused.
//!
//! # What it takes for granted
//!
//! - The window holds the module's variables and whatever else the program may reach. Margins hold
//!   nothing.
//! - The hardware bounds constant, parameter, shared, tensor and local memory to the kernel, the
//!   CTA and the thread, and what `isspacep.global` denies is one of these.
//! - A thread cannot change its own registers by way of local memory. That does not hold of values
//!   which the assembler spills there: a kernel that writes beyond its own local arrays may reach
//!   them.
//! - Rows of a matrix of `wmma` lie at most 2^26 elements apart, in a small cell 2^22; a larger
//!   distance becomes that.
//!
//! The pass comes before those that surround the body: their accesses to the control block are not
//! fenced.

pub(crate) mod handles;
mod layout;
mod needs;
mod roots;
mod scopes;

use std::collections::{BTreeMap, BTreeSet};

use crate::analysis::cfg::Cfg;
use crate::analysis::ranges::{Cell, Range, Ranges};
use crate::carry::{self, Carry, declare, emit};
use crate::ir::{
    Base, Body, FuncId, FunctionKind, Inst, Module, Name, Op, Operand, Reg, Stmt, Symbol, Table,
    Type, VarId,
};
use crate::kernels::{Calls, Kernel, Param};
use crate::params;
use crate::report::{KernelReport, Outcome, Reason, Refusal};
use crate::worker::checks::parameter_limit;
use crate::worker::{Rewritten, WorkerOptions};

use handles::{Handles, Place};
use needs::{Access, most_stride, needs};
use roots::{Plan, is_replaced, passes_on, plan};

pub use layout::{
    LEAST_CELL_BITS, MARGIN_BYTES, SMALL_CELL_BITS, SMALL_WINDOW_BYTES, cell_bits, margin_bytes,
};

/// Fences every kernel that can be fenced. A kernel that refuses is as it was and must not run
/// beside other tenants.
#[must_use]
pub fn fence(module: &Module, options: &WorkerOptions) -> Rewritten {
    let mut out = module.clone();
    let mut reports = Vec::new();
    let mut state: Option<Fence> = None;
    let mut looked =
        Looked { calls: Calls::new(module), functions: BTreeMap::new(), budget: handles::BUDGET };
    for kernel in module.kernels() {
        let (functions, handles) = match check(module, &mut looked, &kernel) {
            Ok(checked) => checked,
            Err(refusals) => {
                reports.push(KernelReport::new(&kernel, Outcome::Refused(refusals)));
                continue;
            }
        };
        let state = state.get_or_insert_with(|| Fence::new(&mut out, options.cell_bits));
        let added = state.kernel(&mut out, &kernel, &functions);
        let report = KernelReport::new(&kernel, Outcome::Applied);
        reports.push(KernelReport { added, handles, ..report });
    }
    if let Some(state) = state {
        state.carry.place(&mut out);
    }
    crate::verify::check_pass(&out, || crate::verify(module).is_ok());
    Rewritten { module: out, reports }
}

/// The facts about a module's functions.
struct Looked<'m> {
    calls: Calls<'m>,
    functions: BTreeMap<FuncId, Look>,
    /// What is left of [`handles::BUDGET`].
    budget: usize,
}

/// The facts about a function.
#[derive(Default)]
struct Look {
    /// Whether it needs the window itself.
    is_needing: bool,
    /// The parameters that hold handles.
    handles: BTreeSet<Place>,
    /// Why it cannot be fenced.
    refusals: Vec<Refusal>,
}

fn look(module: &Module, id: FuncId, budget: &mut usize) -> Look {
    let (mut is_needing, mut refusals) = (false, Vec::new());
    let function = module.func(id);
    let Some(body) = &function.body else {
        let name = module.text(function.name).to_owned();
        // `__assertfail` ends the kernel, and shows what it reads only to its own program.
        if name != "__assertfail" {
            refusals.push(Refusal {
                pos: function.pos,
                reason: Reason::DriverFunction { function: name },
            });
        }
        return Look { refusals, ..Look::default() };
    };
    if let Some(name) = scopes::declared_again(module, body) {
        let register = module.text(name).to_owned();
        refusals.push(Refusal { pos: function.pos, reason: Reason::DeclaredAgain { register } });
    }
    for (_, inst) in body.insts() {
        match needs(module, body, inst) {
            Ok(needs) if needs.is_empty() && module.form(inst).op != Op::Brx => {}
            Ok(_) => is_needing = true,
            Err(reason) => refusals.push(Refusal { pos: inst.pos, reason }),
        }
    }
    let handles = named_handles(module, (id, body), budget, &mut refusals);
    Look { is_needing, handles, refusals }
}

/// The parameters that hold handles of the body's texture and surface instructions.
fn named_handles(
    module: &Module,
    (id, body): (FuncId, &Body),
    budget: &mut usize,
    refusals: &mut Vec<Refusal>,
) -> BTreeSet<Place> {
    let function = module.func(id);
    let params = match function.kind {
        FunctionKind::Entry => function.params.iter().copied().collect(),
        FunctionKind::Func => BTreeSet::new(),
    };
    let (mut places, mut known) = (BTreeSet::new(), None);
    for (stmt, inst) in body.insts() {
        let found = handles::registers(module, body, inst).and_then(|registers| {
            let mut places = |reg| {
                let known = known.get_or_insert_with(|| Handles::new(module, body));
                known.places(&params, (stmt, reg), budget)
            };
            registers.into_iter().map(&mut places).collect::<Option<Vec<Vec<Place>>>>()
        });
        match found {
            Some(found) => places.extend(found.into_iter().flatten()),
            None => {
                let instruction = module.text(module.form(inst).text).to_owned();
                refusals.push(Refusal { pos: inst.pos, reason: unknown_handle(instruction) });
            }
        }
    }
    places
}

fn unknown_handle(instruction: String) -> Reason {
    Reason::Unfenced { instruction, by: "a handle that is no parameter of the kernel" }
}

/// What a kernel must be given.
type Checked = (BTreeSet<FuncId>, Vec<u64>);

/// The functions that need the window and the parameters that hold handles, or the reason why the
/// module cannot be fenced.
fn check(
    module: &Module,
    looked: &mut Looked<'_>,
    kernel: &Kernel,
) -> Result<Checked, Vec<Refusal>> {
    let pos = module.func(kernel.func).pos;
    if module.stop.is_asked() {
        return Err(vec![Refusal { pos, reason: Reason::Stopped }]);
    }
    let mut refusals = Vec::new();
    if module.address_size != Some(64) || module.sm().is_none() {
        refusals.push(Refusal { pos, reason: Reason::Target });
    }
    let (bytes, limit) = (kernel.param_bytes, parameter_limit(module));
    if bytes.next_multiple_of(8) + 8 > limit {
        return Err(vec![Refusal { pos, reason: Reason::ParametersFull { bytes, limit } }]);
    }
    let Looked { calls, functions, budget } = looked;
    let reach = calls.reach(kernel.func);
    let (mut needing, mut handles) = (BTreeSet::new(), BTreeSet::new());
    let offsets = module.func(kernel.func).params.iter().copied().zip(&kernel.params);
    let offsets: BTreeMap<VarId, &Param> = offsets.collect();
    for &id in &reach.funcs {
        let found = functions.entry(id).or_insert_with(|| look(module, id, budget));
        if found.is_needing {
            needing.insert(id);
        }
        for place in &found.handles {
            match offsets.get(&place.param) {
                Some(param) => {
                    handles.insert(param.offset + place.at);
                }
                None => refusals.push(Refusal { pos, reason: unknown_handle(kernel.name.clone()) }),
            }
        }
        refusals.extend_from_slice(&found.refusals);
    }
    match carry::wanted(module, calls, &reach, &needing) {
        Ok(functions) if refusals.is_empty() => {
            return Ok((functions, handles.into_iter().collect()));
        }
        Ok(_) => {}
        Err(refusal) => refusals.push(refusal),
    }
    refusals.sort_by_key(|refusal| refusal.pos);
    Err(refusals)
}

/// The pass on one module.
struct Fence {
    carry: Carry,
    bits: u32,
    base: Name,
    temporaries: [(Name, Type); 4],
    /// Names for second registers; each body uses them from the first on.
    seconds: Vec<Name>,
}

/// Registers of one body.
#[derive(Clone, Copy)]
struct Regs {
    cell: Cell,
    address: Reg,
    fenced: Reg,
    narrow: Reg,
    global: Reg,
}

impl Fence {
    fn new(module: &mut Module, bits: u32) -> Self {
        let carry = Carry::new(module, &[("base", Type::B64)]);
        let mut name = |stem: &str, ty| (module.names.fresh(stem), ty);
        let temporaries = [
            name("%pw_to", Type::B64),
            name("%pw_fenced", Type::B64),
            name("%pw_size", Type::B32),
            name("%pw_global", Type::Pred),
        ];
        let base = module.names.fresh("pw_window_base");
        // More bits would exceed an address.
        let bits = bits.clamp(SMALL_CELL_BITS, 63);
        Self { carry, bits, base, temporaries, seconds: Vec::new() }
    }

    fn kernel(
        &mut self,
        module: &mut Module,
        kernel: &Kernel,
        functions: &BTreeSet<FuncId>,
    ) -> Vec<Param> {
        for (_, copy) in self.carry.copy(module, functions) {
            self.body(module, copy, None);
        }
        let param = params::append(module, kernel.func, self.base, Type::U64);
        self.body(module, kernel.func, Some(&[param]));
        let offset = kernel.param_bytes.next_multiple_of(8);
        vec![Param { name: module.text(self.base).to_owned(), offset, size: 8, align: 8 }]
    }

    fn body(&mut self, module: &mut Module, func: FuncId, params: Option<&[VarId]>) {
        let kind = module.func(func).kind;
        debug_assert_eq!(params.is_some(), kind == FunctionKind::Entry);
        let Some(mut body) = module.funcs[func.0 as usize].body.take() else { return };
        let plan = plan(module, &body, kind, margin(self.bits));
        let stmts = std::mem::take(&mut body.stmts);
        let mut out = Vec::with_capacity(stmts.len() + stmts.len() / 8 + 8);
        let base = self.carry.load(module, func, &mut body, params, &mut out);
        let [address, fenced, narrow, global] =
            self.temporaries.map(|(name, ty)| declare(&mut body, name, ty, &mut out));
        let cell = Cell { base: base[0], bits: self.bits };
        let regs = Regs { cell, address, fenced, narrow, global };
        let seconds = self.seconds(module, &mut body, &plan, &mut out);
        let last = last_indices(&body, &stmts);
        let roots = Roots { plan: &plan, seconds: &seconds, cell };
        for (index, stmt) in stmts.into_iter().enumerate() {
            match stmt {
                Stmt::Inst(inst) if module.form(&inst).op == Op::Call => {
                    self.carry.call(module, &mut body, inst, &base, &mut out);
                    roots.behind(module, &mut body, index, &mut out);
                }
                Stmt::Inst(inst) if module.form(&inst).op == Op::Brx => {
                    indexed(module, &mut body, inst, &last, narrow, &mut out);
                }
                Stmt::Inst(inst) => roots.inst(module, &mut body, index, inst, &mut out),
                other => out.push(other),
            }
        }
        body.stmts = out;
        let unsafe_ones = unproved(module, &body, cell);
        let stmts = std::mem::take(&mut body.stmts);
        let mut out = Vec::with_capacity(stmts.len() + 4 * unsafe_ones.len());
        for (index, stmt) in stmts.into_iter().enumerate() {
            match stmt {
                Stmt::Inst(inst) if unsafe_ones.contains(&index) => {
                    access(module, &mut body, inst, regs, &mut out);
                }
                other => out.push(other),
            }
        }
        body.stmts = out;
        module.funcs[func.0 as usize].body = Some(body);
    }

    /// Declares the second registers that a plan asks for.
    fn seconds(
        &mut self,
        module: &mut Module,
        body: &mut Body,
        plan: &Plan,
        out: &mut Vec<Stmt>,
    ) -> BTreeMap<Reg, Reg> {
        let mut seconds = BTreeMap::new();
        for (index, &reg) in plan.second.keys().enumerate() {
            if self.seconds.len() == index {
                self.seconds.push(module.names.fresh(&format!("%pw_second{index}")));
            }
            seconds.insert(reg, declare(body, self.seconds[index], Type::B64, out));
        }
        seconds
    }
}

/// A plan with the registers that carry it out.
struct Roots<'a> {
    plan: &'a Plan,
    seconds: &'a BTreeMap<Reg, Reg>,
    cell: Cell,
}

impl Roots<'_> {
    /// Appends an instruction with the registers and the fences of the plan.
    fn inst(
        &self,
        module: &mut Module,
        body: &mut Body,
        index: usize,
        mut inst: Inst,
        out: &mut Vec<Stmt>,
    ) {
        let operands = body.operands(inst.operands);
        let sites = self.plan.sites.get(&index);
        let fenced = |reg: &Reg| {
            sites.is_some_and(|sites| sites.contains(reg)) && !self.seconds.contains_key(reg)
        };
        if let &[Operand::Reg(to), from] = operands
            && fenced(&to)
            && is_replaced(&inst, module.form(&inst), operands)
        {
            force(module, body, self.cell, to, from, out);
            return;
        }
        let second = |reg: Reg| match self.plan.second.get(&reg) {
            Some(uses) if uses.contains(&index) => self.seconds[&reg],
            _ => reg,
        };
        let form = module.form(&inst);
        let addresses = needs(module, body, &inst).unwrap_or_default().addresses;
        let change = |(at, operand): (usize, &Operand)| match *operand {
            Operand::Reg(reg) if passes_on(form, at) => Operand::Reg(second(reg)),
            Operand::Mem(Base::Reg(reg), offset)
                if addresses.iter().any(|(index, _)| *index == at) =>
            {
                Operand::Mem(Base::Reg(second(reg)), offset)
            }
            other => other,
        };
        let changed: Vec<Operand> = operands.iter().enumerate().map(change).collect();
        if changed != operands {
            inst.operands = body.add_operands(&changed);
        }
        out.push(Stmt::Inst(inst));
        self.behind(module, body, index, out);
    }

    /// Appends the fences that follow a statement.
    fn behind(&self, module: &mut Module, body: &mut Body, index: usize, out: &mut Vec<Stmt>) {
        for &reg in self.plan.sites.get(&index).into_iter().flatten() {
            let to = self.seconds.get(&reg).copied().unwrap_or(reg);
            force(module, body, self.cell, to, Operand::Reg(reg), out);
        }
    }
}

/// Appends the instruction that forces an address into the cell.
fn force(
    module: &mut Module,
    body: &mut Body,
    cell: Cell,
    to: Reg,
    from: Operand,
    out: &mut Vec<Stmt>,
) {
    let (base, bits) = (Operand::Reg(cell.base), Operand::Int(cell.bits.into()));
    emit(module, body, out, "bfi.b64", &[Operand::Reg(to), from, base, Operand::Int(0), bits]);
}

/// The statements whose accesses are not proved to be safe.
fn unproved(module: &Module, body: &Body, cell: Cell) -> BTreeSet<usize> {
    let cfg = Cfg::new(module, body);
    let ranges = Ranges::new(module, body, &cfg, Some(cell));
    let margin = margin(cell.bits);
    let mut found = BTreeSet::new();
    ranges.each(module, body, &cfg, |stmt, inst, known| {
        let needs = needs(module, body, inst).unwrap_or_default();
        let is_safe = |&(index, _): &(usize, Access)| match body.operands(inst.operands)[index] {
            Operand::Mem(Base::Reg(reg), offset) => match known.reg(reg) {
                Range::Near(low, high) => {
                    let offset = i64::from(offset);
                    low + offset >= -margin && high + offset + needs.bytes <= margin
                }
                _ => false,
            },
            _ => false,
        };
        if needs.stride.is_some() || !needs.addresses.iter().all(is_safe) {
            found.insert(stmt);
        }
    });
    found
}

/// The margin of a cell of so many bits, in bytes.
const fn margin(bits: u32) -> i64 {
    margin_bytes(bits).cast_signed()
}

/// Appends an instruction with its own fence.
fn access(module: &mut Module, body: &mut Body, mut inst: Inst, regs: Regs, out: &mut Vec<Stmt>) {
    let needs = needs(module, body, &inst).unwrap_or_default();
    let margin = margin(regs.cell.bits);
    let reach = if needs.stride.is_some() { margin / 4 } else { needs.bytes };
    let mut operands = body.operands(inst.operands).to_vec();
    // No instruction has two addresses of global memory, so one set of registers suffices.
    for (index, kind) in needs.addresses {
        operands[index] = match kind {
            Access::Global => global(module, body, operands[index], (regs, margin - reach), out),
            Access::Generic => generic(module, body, operands[index], regs, out),
        };
    }
    if let Some(index) = needs.stride
        && let Some(&stride) = operands.get(index)
    {
        let narrow = Operand::Reg(regs.narrow);
        emit(module, body, out, "min.u32", &[narrow, stride, Operand::Int(most_stride(margin))]);
        operands[index] = narrow;
    }
    inst.operands = body.add_operands(&operands);
    out.push(Stmt::Inst(inst));
}

/// Forces an address into the cell. An offset within the bound stays.
fn global(
    module: &mut Module,
    body: &mut Body,
    operand: Operand,
    (regs, bound): (Regs, i64),
    out: &mut Vec<Stmt>,
) -> Operand {
    let (from, offset) = match operand {
        Operand::Mem(Base::Reg(reg), offset)
            if body.reg(reg).ty.bits() == 64 && i64::from(offset).abs() <= bound =>
        {
            (Operand::Reg(reg), offset)
        }
        other => {
            put_address(module, body, other, regs.address, out);
            (Operand::Reg(regs.address), 0)
        }
    };
    force(module, body, regs.cell, regs.fenced, from, out);
    Operand::Mem(Base::Reg(regs.fenced), offset)
}

/// Forces an address into the cell if it is one of global memory.
fn generic(
    module: &mut Module,
    body: &mut Body,
    operand: Operand,
    regs: Regs,
    out: &mut Vec<Stmt>,
) -> Operand {
    let address = match operand {
        Operand::Mem(Base::Reg(reg), 0) if body.reg(reg).ty.bits() == 64 => Operand::Reg(reg),
        other => {
            put_address(module, body, other, regs.address, out);
            Operand::Reg(regs.address)
        }
    };
    let fenced = Operand::Reg(regs.fenced);
    force(module, body, regs.cell, regs.fenced, address, out);
    emit(module, body, out, "isspacep.global", &[Operand::Reg(regs.global), address]);
    emit(module, body, out, "selp.b64", &[fenced, fenced, address, Operand::Reg(regs.global)]);
    Operand::Mem(Base::Reg(regs.fenced), 0)
}

/// Stores the address itself in its register.
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
            bytes => {
                emit(module, body, out, "add.s64", &[address, Operand::Reg(reg), offset(bytes)])
            }
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

/// For each label, the last index of the table that follows the label.
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

/// Appends an indexed branch, with its index bounded by the table.
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
