//! The `slice` form: a launch can be cut into consecutive ranges of its CTAs (Kernelet, section
//! 4.1).
//!
//! A slice is a one-dimensional grid of the original's block. Four more, last parameters give the
//! linear index of the slice's first CTA (`u64`) and the size of the original's grid (three `u32`).
//! `frame.ptx` computes the CTA's place from them in every thread, without memory or barriers. The
//! body reads this place instead of `%ctaid` and `%nctaid`, and functions get it as parameters of
//! their own ([`crate::carry`]). Everything else stays as it is: exits are exits, and barriers are
//! the hardware's.
//!
//! # Assumptions
//!
//! Slices cover the grid, each CTA once, and start in their order: a CTA may wait for lower ones,
//! never for higher ones.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use crate::carry::Carry;
use crate::graft::{self, Graft, Grafted};
use crate::ir::{Body, FuncId, Inst, Module, Name, Op, Operand, Reg, Slice, Stmt, Type, VarId};
use crate::kernels::{Kernel, Param};
use crate::params;
use crate::report::{KernelReport, Outcome};
use crate::worker::checks::{Checker, Kind};
use crate::worker::copies::{Additions, keeps_state};
use crate::worker::grid::{OF_GRID, place};
use crate::worker::{Rewritten, WorkerOptions};

/// Bytes of a slice's parameters: the first CTA, then width, height and depth of the original's
/// grid.
pub const PARAM_BYTES: u64 = 20;

/// The parameters, as the frame calls them.
const PARAMS: [(&str, Type); 4] =
    [("first", Type::U64), ("width", Type::U32), ("height", Type::U32), ("depth", Type::U32)];

/// The frame's registers with x, y, z of the CTA and of the grid.
const VALUES: [&str; 6] = ["%x", "%y", "%z", "%width", "%height", "%depth"];

/// Makes every kernel that can take the form launchable in slices.
#[must_use]
pub fn slice(module: &Module, options: &WorkerOptions) -> Rewritten {
    rewrite(module, options, &|_| true)
}

/// As [`slice()`], for kernels for which `wanted` holds; only these have reports.
pub(crate) fn rewrite(
    module: &Module,
    options: &WorkerOptions,
    wanted: &dyn Fn(FuncId) -> bool,
) -> Rewritten {
    let mut out = module.clone();
    let mut reports = Vec::new();
    let mut checker = Checker::new(module, Kind::Slice);
    let mut state: Option<Slicer> = None;
    for kernel in module.kernels().into_iter().filter(|kernel| wanted(kernel.func)) {
        let report = match checker.check(&kernel, options) {
            Ok(facts) => {
                let state = state.get_or_insert_with(|| Slicer::new(&mut out));
                let added = state.kernel(&mut out, &kernel, &facts.grid_functions);
                KernelReport { added, ..KernelReport::new(&kernel, Outcome::Applied) }
            }
            Err(refusals) => KernelReport::new(&kernel, Outcome::Refused(refusals)),
        };
        reports.push(report);
    }
    if let Some(state) = state {
        state.carry.place(&mut out);
    }
    crate::verify::check_pass(&out, || crate::verify(module).is_ok());
    Rewritten { module: out, reports }
}

/// A module with slices beside kernels.
#[derive(Clone, Debug)]
pub struct Beside {
    /// The module. Every kernel is there as it was.
    pub module: Module,
    /// The entry in the `slice` form of each wanted kernel that can take it, by the kernel's name.
    pub entries: BTreeMap<String, String>,
}

/// Adds an entry in the `slice` form beside each wanted kernel that can take the form. A kernel
/// that keeps state in variables of its own body gets none: the entry would have other variables.
#[must_use]
pub fn beside(module: Module, options: &WorkerOptions, wanted: &dyn Fn(&Kernel) -> bool) -> Beside {
    let was_valid = !cfg!(debug_assertions) || crate::verify(&module).is_ok();
    let mut checker = Checker::new(&module, Kind::Slice);
    let keeps = |kernel: &Kernel| {
        let body = module.func(kernel.func).body.as_ref();
        body.is_some_and(|body| keeps_state(&module, body).is_some())
    };
    let kernels = module.kernels().into_iter();
    let able: Vec<_> = kernels
        .filter(|kernel| wanted(kernel) && !keeps(kernel))
        .filter_map(|kernel| Some((checker.check(&kernel, options).ok()?, kernel)))
        .collect();
    drop(checker);
    let mut out = module;
    let mut entries = BTreeMap::new();
    if able.is_empty() {
        return Beside { module: out, entries };
    }
    let mut additions = Additions::default();
    let mut state = Slicer::new(&mut out);
    for (facts, kernel) in able {
        let func = additions.kernel(&mut out, kernel.func, "pw_slice");
        let name = kernel.name.clone();
        state.kernel(&mut out, &Kernel { func, ..kernel }, &facts.grid_functions);
        entries.insert(name, out.text(out.func(func).name).to_owned());
    }
    additions.place(&mut out);
    state.carry.place(&mut out);
    crate::verify::check_pass(&out, || was_valid);
    Beside { module: out, entries }
}

static FRAME: LazyLock<Module> = LazyLock::new(|| graft::frame(include_str!("frame.ptx")));

/// The pass on one module.
struct Slicer {
    graft: Graft,
    carry: Carry,
    params: [Name; 4],
}

impl Slicer {
    fn new(module: &mut Module) -> Self {
        let graft = Graft::new(&FRAME, module);
        let values = VALUES.map(|name| (&name[1..], Type::B32));
        let carry = Carry::new(module, &values);
        let params = PARAMS.map(|(name, _)| module.names.fresh(&format!("pw_slice_{name}")));
        Self { graft, carry, params }
    }

    fn kernel(
        &mut self,
        module: &mut Module,
        kernel: &Kernel,
        functions: &BTreeSet<FuncId>,
    ) -> Vec<Param> {
        for (_, copy) in self.carry.copy(module, functions) {
            let Some(mut body) = module.funcs[copy.0 as usize].body.take() else { continue };
            let stmts = std::mem::take(&mut body.stmts);
            let mut out = Vec::with_capacity(stmts.len());
            let regs = self.carry.load(module, copy, &mut body, None, &mut out);
            self.statements(module, &mut body, stmts, &regs, &mut out);
            body.stmts = out;
            module.funcs[copy.0 as usize].body = Some(body);
        }
        let mut offset = kernel.param_bytes;
        let mut added = Vec::new();
        let mut outside: Vec<(&str, VarId)> = Vec::new();
        for ((name, ty), param) in PARAMS.into_iter().zip(self.params) {
            let size = u64::from(ty.bytes());
            offset = offset.next_multiple_of(size);
            added.push(Param { name: module.text(param).to_owned(), offset, size, align: size });
            offset += size;
            outside.push((name, params::append(module, kernel.func, param, ty)));
        }
        let mut body = module.funcs[kernel.func.0 as usize].body.take().unwrap_or_default();
        let mut stmts = Some(std::mem::take(&mut body.stmts));
        let grafted = self.graft.put_into(module, &mut body, &outside);
        let regs = self.registers(&grafted);
        let fill =
            |mark: &str, module: &mut Module, body: &mut Body, out: &mut Vec<Stmt>| match mark {
                "NOUNROLL" => out.push(Stmt::Pragma(module.names.intern("\"nounroll\""))),
                _ => self.statements(module, body, stmts.take().unwrap_or_default(), &regs, out),
            };
        body.stmts = self.graft.stmts(module, &mut body, &grafted, fill);
        module.funcs[kernel.func.0 as usize].body = Some(body);
        added
    }

    fn registers(&self, grafted: &Grafted) -> Vec<Reg> {
        VALUES.iter().map(|name| self.graft.reg(grafted, name)).collect()
    }

    /// Appends a body's own statements with the grid registers replaced.
    fn statements(
        &self,
        module: &mut Module,
        body: &mut Body,
        stmts: Vec<Stmt>,
        regs: &[Reg],
        out: &mut Vec<Stmt>,
    ) {
        for stmt in stmts {
            let Stmt::Inst(inst) = stmt else {
                out.push(stmt);
                continue;
            };
            match module.form(&inst).op {
                // Slices are grids of their own; their launches do not overlap by attribute.
                Op::Griddepcontrol => continue,
                Op::Call => self.carry.call(module, body, inst, regs, out),
                _ => read(module, body, inst, regs, out),
            }
        }
    }
}

/// Appends an instruction that reads the original's grid.
fn read(module: &mut Module, body: &mut Body, mut inst: Inst, regs: &[Reg], out: &mut Vec<Stmt>) {
    let form = module.form(&inst);
    // The old 16-bit views of the grid registers.
    if form.op == Op::Mov
        && form.last_type().is_some_and(|ty| ty.bits() == 16)
        && let &[_, Operand::Special(special, part)] = body.operands(inst.operands)
        && place(special, part).is_some_and(|at| at < OF_GRID)
    {
        inst.form = module.forms.intern("cvt.u16.u32", &mut module.names);
    }
    replace(body, inst.operands, regs);
    out.push(Stmt::Inst(inst));
}

fn replace(body: &mut Body, slice: Slice, regs: &[Reg]) {
    for index in slice.range() {
        match body.operands[index] {
            Operand::Special(special, part) => {
                if let Some(place) = place(special, part).filter(|at| *at < OF_GRID) {
                    body.operands[index] = Operand::Reg(regs[place]);
                }
            }
            Operand::Vector(slice)
            | Operand::List(slice)
            | Operand::Tuple(slice)
            | Operand::Pair(slice) => {
                replace(body, slice, regs);
            }
            _ => {}
        }
    }
}
