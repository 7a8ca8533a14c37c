//! The `contain` pass: an access that the hardware would refuse ends its launch, and not the GPU's
//! context.
//!
//! The [fence](mod@crate::fence) decides which memory a kernel reaches. These faults remain:
//!
//! - an address that is no multiple of the access's size;
//! - an address beyond the CTA's shared memory, the thread's local arrays, a constant array, or the
//!   kernel's parameters, and an atomic operation on local memory;
//! - a barrier that does not exist, or that waits for more threads than there are;
//! - a counted barrier that is never passed ([`barriers`] makes a loop of it);
//! - an instruction that waits for lanes that never come ([`warps`]).
//!
//! A kernel that does what no guard bounds needs a right ([`rights`]).
//!
//! The pass proves each access right ([`values`]), or guards it: the thread goes to a `trap` that
//! [`fault_of`] tells from the program's own, and [`mod@crate::cancel`] makes of it the end of the
//! launch. Checks of one register stand where they decide for as many accesses as possible
//! ([`places`]): a pointer parameter is checked once, before the loop that walks from it, if the
//! walk certainly accesses memory.
//!
//! The pass comes after the fence, whose instructions keep the low bits of addresses.
//!
//! # What it takes for granted
//!
//! - Shared memory of a program ends where dynamic shared memory ends, less what a launch has more
//!   for the pass ([`KernelReport::hidden_shared`]). Below its first variable lies what the
//!   hardware reserves, which is readable.
//! - A variable has the alignment of its declaration.

mod accesses;
mod alike;
mod arrays;
mod barriers;
mod code;
mod emitter;
mod frames;
mod lines;
mod meetings;
mod names;
mod openings;
mod places;
mod rights;
mod shared;
mod stack;
mod values;
mod warps;
mod words;

pub use rights::Rights;

use crate::analysis::Cfg;
use crate::control;
use crate::fence::handles;
use crate::ir::{
    Base, Body, FuncId, Function, FunctionKind, Inst, Module, Operand, Pos, Reg, Space, Stmt,
    Symbol, VarId,
};
use crate::report::{KernelReport, Outcome};
use crate::worker::Rewritten;

use accesses::{Access, accesses, barrier, is_absolute, named};
use arrays::Locals;
use emitter::{Emitter, Regs, emit_traps};
use lines::Lines;
use meetings::{Layout, Meeting};
use places::{Key, Places};
use shared::Apart;
use values::Values;
use words::Words;

/// How the labels of the pass's traps begin, and what each tells.
const TRAPS: [(&str, u32); 3] = [
    ("$pw_misaligned", control::FAULT_MISALIGNED),
    ("$pw_beyond", control::FAULT_BEYOND),
    ("$pw_illegal", control::FAULT_ILLEGAL),
];

/// The fault for which the pass made this trap; `None` for a trap of the program. `label`: the name
/// of the label right before it.
pub(crate) fn fault_of(inst: &Inst, label: Option<&str>) -> Option<u32> {
    let label = label.filter(|_| inst.pos == Pos::default())?;
    TRAPS.into_iter().find_map(|(stem, fault)| label.starts_with(stem).then_some(fault))
}

/// Whether the pass has added a guard to one of the functions.
#[must_use]
pub fn is_guarded(module: &Module, functions: impl IntoIterator<Item = FuncId>) -> bool {
    functions.into_iter().filter_map(|id| module.func(id).body.as_ref()).any(|body| {
        let own = |name: &str| TRAPS.iter().any(|(stem, _)| name.starts_with(stem));
        body.labels.iter().any(|label| label.pos == Pos::default() && own(module.text(label.name)))
    })
}

/// Guards every access of the module that is not proved right.
#[must_use]
pub fn contain(module: &Module) -> Rewritten {
    let mut out = module.clone();
    let frames = frames::pass_down(&mut out);
    let meetings = warps::Plan::of(&out);
    let polled = barriers::Plan::of_module(&out);
    let mut state = State { shared_end: None, has_no_locals: arrays::are_none(module) };
    let layout = meetings.layout(&out);
    let mut users = meetings.reached().clone();
    users.extend(polled.iter().flat_map(|plan| plan.polling(&out)));
    let sizes = [layout.map_or(0, Layout::bytes), polled.as_ref().map_or(0, barriers::Plan::bytes)];
    let words = Words::of(&mut out, &users, sizes, &mut state.shared_end);
    if let Some(words) = &words {
        words.hide(&mut out);
    }
    let (apart, foreign) = (Apart::of(module), shared::foreign(&out));
    let constants = arrays::Constants::of(&out);
    for index in 0..out.funcs.len() {
        if module.stop.is_asked() {
            break;
        }
        if let Some(body) = out.funcs[index].body.take() {
            let is_kernel = out.funcs[index].kind == FunctionKind::Entry;
            let id = FuncId(u32::try_from(index).expect("fewer than source bytes"));
            let frame = frames.get(&id);
            let apart = if foreign.contains(&id) { Apart::Own } else { apart };
            let locals = match frame {
                Some(&frame) => Locals::Within(frame),
                None if is_kernel => arrays::of_kernel(&out, &body),
                None if state.has_no_locals => Locals::Own,
                None => Locals::Unknown,
            };
            let hidden = words.as_ref().map_or(0, |words| words.hidden_in(id));
            let known = (locals, apart, hidden);
            let body = state.body(&mut out, body, known, constants.before(id));
            out.funcs[index].body = Some(body);
        }
    }
    let comes = |module: &Module, body: &Body, inst: &Inst| {
        polled.as_ref().is_some_and(|plan| plan.comes(module, body, inst))
    };
    if let Some((layout, words)) = layout.zip(words.as_ref()) {
        let meeting = Meeting { words: words.of_lanes(), layout, sites: 0 };
        meetings.apply(&mut out, meeting, comes);
    }
    if let Some((plan, words)) = polled.as_ref().zip(words.as_ref()) {
        barriers::poll(&mut out, plan, words.of_barriers());
    }
    crate::verify::check_pass(&out, || crate::verify(module).is_ok());
    let kernels = module.kernels();
    let reports = kernels.iter().map(|kernel| KernelReport {
        hidden_shared: words.as_ref().map_or(0, |words| words.hidden_in(kernel.func)),
        ..KernelReport::new(kernel, Outcome::Applied)
    });
    Rewritten { reports: reports.collect(), module: out }
}

/// What is checked of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    /// The register plus a number is a multiple of `bytes`.
    Aligned { reg: Reg, plus: u32, bytes: u32 },
    /// The same for the address of a variable.
    AlignedName { var: VarId, plus: u32, bytes: u32 },
    /// The register plus a number lies in shared memory, and `bytes` bytes from there on.
    Shared { base: Base, plus: i32, bytes: u32, how: Names },
    /// The same for a variable.
    Variable { reg: Reg, plus: i32, bytes: u32, var: VarId, is_generic: bool },
    /// The generic address plus a number is none of local memory.
    NotLocal { reg: Reg, plus: i32 },
    /// The address plus a number lies among the body's local arrays or in its frame, and `bytes`
    /// bytes from there on, or a generic one is none of local memory.
    OwnLocal { reg: Reg, plus: i32, bytes: u32, is_generic: bool },
    /// The address plus a number lies in one of the module's constants.
    Constant { reg: Reg, plus: i32, bytes: u32 },
    /// The lines of a matrix lie in shared memory.
    Lines { base: Base, plus: i32, bytes: u32, lines: Lines },
    /// The number of elements from one line to the next is a multiple.
    Stride { stride: Operand, of: u32 },
    /// The barrier exists.
    Barrier { number: Operand },
    /// As many threads are there, in whole warps.
    Threads { count: Operand },
    /// The handle is not 0.
    Handle { reg: Reg },
    /// It never holds: the address is misaligned, or beyond.
    Never { aligned: bool },
}

/// How an address may name shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Names {
    /// It is an address of shared memory.
    Own,
    /// It is a generic address, perhaps of other memory.
    Perhaps,
    /// It is a generic address that the hardware takes for one of shared memory.
    Generic,
}

/// The checks of one instruction that no other place decides.
struct Guards {
    stmt: usize,
    checks: Vec<Held>,
}

/// A check before an instruction.
#[derive(Clone, Copy)]
struct Held {
    check: Check,
    /// The check is for as many of the warp's first lanes.
    lanes: Option<u32>,
    /// The check is for threads of which the instruction's guard holds.
    is_guarded: bool,
}

struct State {
    shared_end: Option<VarId>,
    /// Whether no pointer of the module may name local memory.
    has_no_locals: bool,
}

impl State {
    fn body(
        &mut self,
        module: &mut Module,
        mut body: Body,
        (locals, apart, hidden): (Locals, Apart, u32),
        mut constants: Vec<VarId>,
    ) -> Body {
        let (places, guards) = look(module, &body, locals);
        if places.is_empty() && guards.is_empty() {
            return body;
        }
        let arrays = arrays::arrays(module, &body).unwrap_or_default();
        let own = arrays::in_space(module, &body, Space::Const);
        constants.extend(&own);
        let first = [arrays.as_slice(), &own].concat();
        let stmts = std::mem::take(&mut body.stmts);
        let mut out = Vec::with_capacity(stmts.len() + 6 * guards.len());
        // A check may stand before the place of their declarations.
        out.extend(first.iter().map(|&array| Stmt::Var(array)));
        let regs = Regs::new(module, &mut body, &mut out);
        let traps = [None; TRAPS.len()];
        let mut emitter =
            Emitter { state: self, regs, arrays, constants, locals, apart, hidden, traps };
        let mut guards = guards.into_iter().peekable();
        let is_first = |stmt: &Stmt| matches!(stmt, Stmt::Var(id) if first.contains(id));
        for (index, stmt) in stmts.into_iter().enumerate() {
            let before = guards.next_if(|guards| guards.stmt == index);
            if let (Some(before), Stmt::Inst(inst)) = (before, stmt) {
                for Held { check, lanes, is_guarded } in before.checks {
                    let guard = inst.guard.filter(|_| is_guarded);
                    emitter.check(module, &mut body, check, (guard, lanes), &mut out);
                }
            }
            // A label comes before what is checked at a block's beginning.
            out.extend((!is_first(&stmt)).then_some(stmt));
            for check in places.behind(index) {
                emitter.check(module, &mut body, check, (None, None), &mut out);
            }
        }
        let traps = emitter.traps;
        emit_traps(module, &mut body, traps, &mut out);
        body.stmts = out;
        body
    }
}

/// Finds the checks of a body and where they stand.
fn look(module: &Module, body: &Body, locals: Locals) -> (Places, Vec<Guards>) {
    let has_any = body.insts().any(|(_, inst)| {
        !accesses(module, body, inst).is_empty()
            || barrier(module, body, inst) != [None; 2]
            || is_absolute(module, body, inst)
            || handles::registers(module, body, inst) != Some(Vec::new())
    });
    if !has_any {
        return (Places::default(), Vec::new());
    }
    let cfg = Cfg::new(module, body);
    let values = Values::new(module, body, &cfg);
    let mut keys = places::Keys::default();
    let mut guards: Vec<Guards> = Vec::new();
    for (stmt, inst) in body.insts() {
        let [number, count] = barrier(module, body, inst);
        let number = number.map(|number| Check::Barrier { number });
        let count = count.map(|count| Check::Threads { count });
        let own = |check, lanes| Held { check, lanes, is_guarded: true };
        let barrier = number.into_iter().chain(count).map(|check| own(check, None)).collect();
        let mut here = Guards { stmt, checks: barrier };
        let handles = handles::registers(module, body, inst).unwrap_or_default();
        here.checks.extend(handles.into_iter().map(|reg| own(Check::Handle { reg }, None)));
        if is_absolute(module, body, inst) {
            here.checks.push(own(Check::Never { aligned: false }, None));
        }
        for access in accesses(module, body, inst) {
            let sure = inst.guard.is_none() && access.lanes.is_none();
            let local = arrays::own_local((module, body), (&values, &cfg), stmt, (&access, locals));
            for check in checks(module, (&values, &cfg), stmt, &access).into_iter().chain(local) {
                match key(&values, check, locals).filter(|_| sure) {
                    Some(key) if keys.use_at(stmt, key) => {}
                    _ => here.checks.push(own(check, access.lanes)),
                }
            }
        }
        if !here.checks.is_empty() {
            guards.push(here);
        }
    }
    let places = Places::new(module, body, &cfg, &values, keys);
    for (stmt, check) in places.at_uses() {
        // The instruction may be another one, at the beginning of a block.
        let held = Held { check, lanes: None, is_guarded: false };
        match guards.binary_search_by_key(&stmt, |guards| guards.stmt) {
            Ok(at) => guards[at].checks.push(held),
            Err(at) => guards.insert(at, Guards { stmt, checks: vec![held] }),
        }
    }
    (places, guards)
}

/// A check that may stand elsewhere.
fn key(values: &Values<'_>, check: Check, locals: Locals) -> Option<Key> {
    match check {
        // At a function's beginning its frame is not known.
        Check::OwnLocal { reg, .. }
            if locals != Locals::Own && values.definition(reg).is_none() =>
        {
            None
        }
        Check::Aligned { reg, .. } if values.is_stable(reg) => Some(Key { reg, check }),
        Check::Shared { base: Base::Reg(reg), .. }
        | Check::Variable { reg, .. }
        | Check::OwnLocal { reg, .. }
            if values.is_stable(reg) =>
        {
            Some(Key { reg, check })
        }
        _ => None,
    }
}

/// The checks that an access needs, after what is proved of it.
fn checks(
    module: &Module,
    (values, cfg): (&Values<'_>, &Cfg),
    stmt: usize,
    access: &Access,
) -> Vec<Check> {
    let &Access { base, offset, align, space, .. } = access;
    let mut checks = Vec::new();
    let plus = offset.cast_unsigned();
    if align > 1 {
        match base {
            Base::Reg(reg) => {
                let bytes = align;
                let value = values.at(cfg, stmt, reg);
                let low = value.plus.wrapping_add(plus) & (bytes - 1);
                checks.extend(match value.atom {
                    _ if 1 << value.bits < bytes => Some(Check::Aligned { reg, plus, bytes }),
                    None => (low != 0).then_some(Check::Never { aligned: true }),
                    Some(atom) => Some(Check::Aligned { reg: atom, plus: low, bytes }),
                });
            }
            Base::Symbol(Symbol::Var(var)) => {
                let variable = module.var(var);
                let bytes = align;
                let is_known = variable.alignment() >= align.into();
                let at = match is_known {
                    true => Some(0),
                    // What a call passes is laid out by the assembler.
                    false if variable.space.is_param() => {
                        Some(parameter_offset(module, var).unwrap_or(0))
                    }
                    false => None,
                };
                checks.extend(match at {
                    Some(at) => {
                        let is_right = (at + u64::from(plus)).is_multiple_of(align.into());
                        (!is_right).then_some(Check::Never { aligned: true })
                    }
                    None => Some(Check::AlignedName { var, plus, bytes }),
                });
            }
            Base::Symbol(_) => {}
        }
    }
    checks.extend(access.lines.and_then(|lines| lines.distance(align)));
    checks.extend(bound(module, (values, cfg), stmt, access));
    if let (None, Base::Reg(reg), true) = (space, base, access.is_atomic) {
        checks.push(Check::NotLocal { reg, plus: offset });
    }
    checks
}

/// Where a kernel's parameter lies among all of them; `None` for other variables. Their first one
/// is aligned for every access.
fn parameter_offset(module: &Module, var: VarId) -> Option<u64> {
    let is_kernel = |function: &&Function| {
        function.kind == FunctionKind::Entry && function.params.contains(&var)
    };
    let kernel = module.funcs.iter().find(is_kernel)?;
    let mut at = 0_u64;
    for &param in &kernel.params {
        let variable = module.var(param);
        at = at.next_multiple_of(variable.parameter_alignment().max(1));
        if param == var {
            break;
        }
        at += variable.bytes().unwrap_or(0);
    }
    Some(at)
}

/// The check of an address that may lie beyond its space.
fn bound(
    module: &Module,
    (values, cfg): (&Values<'_>, &Cfg),
    stmt: usize,
    access: &Access,
) -> Option<Check> {
    let &Access { base, offset, bytes, space, .. } = access;
    let is_such = |var: VarId| !access.is_shared || module.var(var).space.is_shared();
    if named(access).is_some_and(|var| !is_such(var)) {
        return Some(Check::Never { aligned: false });
    }
    let origin = match base {
        Base::Reg(reg) => {
            let origin = values.origin_at(cfg, stmt, reg);
            origin.filter(|origin| origin.fits(module, space) && is_such(origin.var))
        }
        Base::Symbol(_) => {
            let is_generic = space.is_none();
            named(access).map(|var| values::Origin { var, offset: Some(0), is_generic })
        }
    };
    let size = |var: VarId| module.var(var).bytes().and_then(|bytes| i64::try_from(bytes).ok());
    let inside = origin.and_then(|origin| {
        let from = origin.offset?.checked_add(offset.into())?;
        let is_space = space.is_none_or(|space| same(module.var(origin.var).space, space));
        Some(is_space && from >= 0 && from.checked_add(bytes.into())? <= size(origin.var)?)
    });
    if let Some(lines) = access.lines.filter(|lines| !lines.is_constant()) {
        let is_shared = space.is_some_and(Space::is_shared);
        return is_shared.then_some(Check::Lines { base, plus: offset, bytes, lines });
    }
    if inside == Some(true) {
        return None;
    }
    let beyond = Check::Never { aligned: false };
    let of = origin.map(|origin| module.var(origin.var).space);
    let in_variable = |reg: Reg| {
        let var = origin.map(|origin| origin.var).filter(|&var| {
            size(var).is_some() && space.is_none_or(|space| of.is_some_and(|of| same(space, of)))
        });
        let is_generic = space.is_none();
        let inside = |var| Check::Variable { reg, plus: offset, bytes, var, is_generic };
        Some(var.map_or(beyond, inside))
    };
    match (space, base) {
        (Some(space), _) if space.is_shared() => {
            Some(Check::Shared { base, plus: offset, bytes, how: Names::Own })
        }
        (None, Base::Reg(reg)) if of == Some(Space::Local) => in_variable(reg),
        (None, Base::Reg(_)) => {
            let how = if access.is_shared { Names::Generic } else { Names::Perhaps };
            Some(Check::Shared { base, plus: offset, bytes, how })
        }
        (Some(Space::Const), Base::Reg(reg)) if of != Some(Space::Const) => {
            Some(Check::Constant { reg, plus: offset, bytes })
        }
        // Other addresses of local memory may lie in any array.
        (Some(Space::Local), Base::Reg(_)) if of != Some(Space::Local) => None,
        (Some(Space::Local | Space::Const), Base::Reg(reg)) => in_variable(reg),
        (Some(space), Base::Reg(reg)) if space.is_param() => in_variable(reg),
        (Some(space), Base::Symbol(_)) if inside == Some(false) => {
            let is_bounded = matches!(space, Space::Local | Space::Const) || space.is_param();
            is_bounded.then_some(beyond)
        }
        _ => None,
    }
}

fn same(one: Space, two: Space) -> bool {
    one == two || one.is_param() && two.is_param() || one.is_shared() && two.is_shared()
}
