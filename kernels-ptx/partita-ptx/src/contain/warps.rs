//! Instructions that wait for lanes of their warp (`shfl.sync`, `bar.warp.sync`, `mma.sync`).
//!
//! A lane that waits there reads no flag. Where the other lanes wait at a barrier or at another
//! such instruction, all of them wait for ever. A lane therefore waits in a loop until the
//! lanes have come for which the instruction waits ([`super::meetings`]), and
//! [`mod@crate::cancel`] looks at the abort flag there. Lanes that come together, as they nearly
//! always do, find that by a look at `activemask`.
//!
//! A kernel stays as it is where its lanes wait at the same instructions in the same order
//! ([`is_parted`]): a lane that does not come has exited, or is in a loop, where it looks at the
//! flag.
//!
//! The words of the lanes lie behind the program's shared memory ([`super::words`]): a program that
//! changed them could let a lane wait for ever.

use std::collections::{BTreeMap, BTreeSet};

use crate::analysis::Cfg;
use crate::analysis::cfg::{Block, BlockId};
use crate::analysis::divergence::region;
use crate::analysis::hazard::callee;
use crate::analysis::sync::{Masks, Sync, sync_of};
use crate::exits;
use crate::ir::{
    Body, FuncId, FunctionKind, Guard, Inst, Mod, Module, Op, Operand, Pos, Reg, Stmt, VarId,
};
use crate::kernels::{Calls, Kernel};

use super::alike::Alike;
use super::barriers;
use super::code::{Code, Tells};
use super::meetings::{Layout, MOST_SITES, Meeting, Regs, Site};
use super::values::{definitions, undefined};
use super::words::sharing;

/// Block visits that the search for parted ways may take.
const BUDGET: usize = 1 << 26;
/// The full mask of a warp.
const ALL: Operand = Operand::Int(0xffff_ffff);

/// The lanes for which instructions of a body wait.
struct Lanes<'a> {
    module: &'a Module,
    body: &'a Body,
    masks: Masks,
    /// Registers that may be read before they are defined.
    undefined: Vec<bool>,
}

impl<'a> Lanes<'a> {
    fn new(module: &'a Module, body: &'a Body) -> Self {
        let masks = Masks::new(module, body);
        let waits = body.insts().any(|(_, inst)| sync_of(module, body, inst).is_some());
        let undefined = match waits {
            true => undefined(body, &Cfg::new(module, body), &definitions(body)),
            false => Vec::new(),
        };
        Self { module, body, masks, undefined }
    }

    /// The lanes for which an instruction waits, as the operand of a mask.
    fn mask(&self, inst: &Inst) -> Option<Operand> {
        let last = || self.body.operands(inst.operands).last().copied();
        let form = self.module.form(inst);
        let has_mask = form.has(Mod::Warp)
            || matches!(form.op, Op::Shfl | Op::Vote | Op::Match | Op::Redux | Op::Elect);
        match self.masks.sync_of(self.module, self.body, inst)? {
            // A register has the constant only where it has got it.
            Sync::Warp => match last() {
                Some(Operand::Reg(reg)) if has_mask && self.undefined[reg.index()] => last(),
                _ => Some(ALL),
            },
            Sync::Lanes(reg) => Some(Operand::Reg(reg)),
            // The mask is the last operand, in a register or not.
            Sync::SomeLanes | Sync::Active => last(),
            Sync::Cta | Sync::Counted | Sync::Cluster => None,
        }
    }
}

/// What is known of one function.
#[derive(Clone, Copy)]
struct Known {
    /// Whether its own code waits for lanes of the warp.
    meets: bool,
    /// Whether its lanes may wait apart.
    is_parted: bool,
}

/// Which functions' lanes may wait for each other for ever.
pub(super) struct Parting<'m> {
    module: &'m Module,
    polled: Option<barriers::Plan>,
    known: BTreeMap<FuncId, Known>,
    /// Functions that wait for other threads, themselves or in what they call.
    waiting: BTreeSet<FuncId>,
}

impl<'m> Parting<'m> {
    pub(super) fn new(module: &'m Module) -> Self {
        let functions: BTreeSet<FuncId> = (0..).map(FuncId).take(module.funcs.len()).collect();
        let waits = |body: &Body| {
            let mut insts = body.insts();
            insts.any(|(_, inst)| sync_of(module, body, inst).is_some())
                || module.calls_indirectly(body)
        };
        let own = functions.iter().copied();
        let own = own.filter(|&id| module.func(id).body.as_ref().is_some_and(waits)).collect();
        let waiting = Calls::new(module).callers(&functions, &own);
        let polled = barriers::Plan::of_module(module);
        Self { module, polled, known: BTreeMap::new(), waiting }
    }

    /// Whether guards are needed in a kernel that reaches these functions.
    pub(super) fn is_among(&mut self, reached: &BTreeSet<FuncId>) -> bool {
        let (mut meets, mut is_parted) = (false, false);
        for &id in reached {
            let known = self.known(id);
            meets |= known.meets;
            is_parted |= known.is_parted;
        }
        meets && is_parted
    }

    /// A function of these that waits for lanes of the warp and is called from several places, if
    /// the lanes of a kernel that reaches them may wait apart.
    pub(super) fn met_from_several_places(&mut self, reached: &BTreeSet<FuncId>) -> Option<FuncId> {
        if !self.is_among(reached) {
            return None;
        }
        let module = self.module;
        let bodies = reached.iter().filter_map(|&id| Some((id, module.func(id).body.as_ref()?)));
        let mut calls: BTreeMap<FuncId, Vec<FuncId>> = BTreeMap::new();
        for (caller, body) in bodies {
            let called = body.insts().filter(|(_, inst)| module.form(inst).op == Op::Call);
            let called = called.filter_map(|(_, inst)| callee(body.operands(inst.operands)));
            for id in called.filter_map(|id| module.definition(id)) {
                calls.entry(id).or_default().push(caller);
            }
        }
        let mut calls_of: BTreeMap<FuncId, Vec<FuncId>> = BTreeMap::new();
        for (&id, callers) in &calls {
            callers.iter().for_each(|&caller| calls_of.entry(caller).or_default().push(id));
        }
        let mut several: BTreeSet<FuncId> =
            calls.iter().filter(|(_, callers)| callers.len() > 1).map(|(&id, _)| id).collect();
        // What a function with several callers calls has as many.
        let mut left: Vec<FuncId> = several.iter().copied().collect();
        while let Some(caller) = left.pop() {
            let called = calls_of.get(&caller).into_iter().flatten();
            left.extend(called.copied().filter(|&id| several.insert(id)));
        }
        several.into_iter().find(|&id| self.known(id).meets)
    }

    fn known(&mut self, id: FuncId) -> Known {
        if let Some(&known) = self.known.get(&id) {
            return known;
        }
        let module = self.module;
        let mut known = Known { meets: false, is_parted: false };
        if let Some(body) = &module.func(id).body {
            known.meets = self.meets(body);
            known.is_parted = self.is_parted(id, body);
        }
        self.known.insert(id, known);
        known
    }

    /// Whether a body has an instruction at which lanes of a warp wait for one another.
    fn meets(&self, body: &Body) -> bool {
        let lanes = Lanes::new(self.module, body);
        let comes = |inst: &Inst| {
            self.polled.as_ref().is_some_and(|plan| plan.comes(self.module, body, inst))
        };
        let mut insts = body.insts();
        insts.any(|(_, inst)| lanes.mask(inst).is_some() || comes(inst))
    }

    fn is_parted(&mut self, id: FuncId, body: &Body) -> bool {
        let module = self.module;
        let function = module.func(id);
        let is_kernel = function.kind == FunctionKind::Entry;
        let cfg = Cfg::new(module, body);
        let mut waiting = vec![false; cfg.blocks.len()];
        let mut any = false;
        for (stmt, inst) in body.insts() {
            let waits = match module.form(inst).op {
                Op::Call => callee(body.operands(inst.operands)).is_none_or(|id| {
                    let called = module.definition(id).unwrap_or(id);
                    self.waiting.contains(&called)
                }),
                _ => sync_of(module, body, inst).is_some(),
            };
            if waits && inst.guard.is_some() {
                return true;
            }
            any |= waits;
            waiting[cfg.block_of[stmt].index()] |= waits;
        }
        let exits = |block: &Block| match &body.stmts[block.stmts.end - 1] {
            Stmt::Inst(inst) => inst.guard.is_none() && module.form(inst).op == Op::Exit,
            _ => false,
        };
        // What calls a function may wait behind it.
        for (index, block) in cfg.blocks.iter().enumerate().filter(|_| !is_kernel) {
            waiting[index] |= cfg.leaves[index] && !exits(block);
        }
        let params = if is_kernel { function.params.as_slice() } else { &[] };
        any && is_parted(module, body, params, (&cfg, &waiting))
    }
}

/// Whether lanes of a warp may wait at different instructions, or for different lanes.
///
/// Where lanes part, they still wait in the same order if nothing waits before the ways meet again,
/// or if one of the ways leads to no waiting at all.
fn is_parted(
    module: &Module,
    body: &Body,
    params: &[VarId],
    (cfg, waiting): (&Cfg, &[bool]),
) -> bool {
    let lanes = Lanes::new(module, body);
    let Some(alike) = Alike::new(module, body, params, cfg) else { return true };
    // A lane that its own mask lacks may wait for lanes that did not wait for it.
    let lacks_lanes = |inst: &Inst| match lanes.mask(inst) {
        Some(Operand::Int(mask) | Operand::Uint(mask)) => mask & 0xffff_ffff != 0xffff_ffff,
        mask => mask.is_some(),
    };
    if body.insts().any(|(_, inst)| lacks_lanes(inst)) {
        return true;
    }
    let any = |blocks: &[bool]| blocks.iter().zip(waiting).any(|(here, waits)| *here && *waits);
    let mut budget = BUDGET;
    (0..cfg.blocks.len()).any(|index| {
        let block = BlockId(u32::try_from(index).expect("counted by u32"));
        if !alike.parts(body, cfg, block) {
            return false;
        }
        let succs = &cfg.blocks[index].succs;
        let Some(rest) = budget.checked_sub(cfg.blocks.len() * (succs.len() + 1)) else {
            return true;
        };
        budget = rest;
        // A guarded `ret` of a function goes on where the function was called.
        let returns = |succ: &BlockId| *succ == cfg.exit() && waiting[index];
        let waits = |succ: &&BlockId| returns(succ) || any(&cfg.reachable(&[**succ], |_| false));
        any(&region(cfg, block)) && succs.iter().filter(waits).count() > 1
    })
}

/// The first instruction that is one too many: sites have 16 bits, so they do not tell more
/// instructions apart that wait for lanes.
pub(super) fn crowd(module: &Module) -> Option<String> {
    let bodies = module.funcs.iter().filter_map(|func| func.body.as_ref());
    let waiting = bodies.flat_map(|body| {
        body.insts().filter(
            |(_, inst)| matches!(sync_of(module, body, inst), Some(sync) if sync != Sync::Cluster),
        )
    });
    // A check of a matrix may add another one before it.
    let last = waiting.map(|(_, inst)| inst).nth(MOST_SITES as usize / 2)?;
    Some(module.text(module.form(last).text).to_owned())
}

/// What becomes of a module.
pub(super) struct Plan {
    /// The kernels whose lanes may wait for each other for ever.
    kernels: Vec<Kernel>,
    /// The functions that they reach.
    reached: BTreeSet<FuncId>,
}

impl Plan {
    /// The plan for a module as it was written.
    pub(super) fn of(module: &Module) -> Plan {
        let mut plan = Plan { kernels: Vec::new(), reached: BTreeSet::new() };
        if !barriers::are_loops_possible(module) || crowd(module).is_some() {
            return plan;
        }
        let (mut parting, mut calls) = (Parting::new(module), Calls::new(module));
        let kernels = module.kernels();
        let reached: Vec<_> = kernels.iter().map(|kernel| calls.reach(kernel.func).funcs).collect();
        let guarded = reached.iter().filter(|reached| parting.is_among(reached)).flatten();
        let guarded = guarded.copied().collect();
        // Other kernels that call a function with guards need what the guards look at.
        for kernel in sharing(&guarded, &reached) {
            plan.kernels.push(kernels[kernel].clone());
            plan.reached.extend(&reached[kernel]);
        }
        plan
    }

    /// The functions that the kernels with guards reach.
    pub(super) fn reached(&self) -> &BTreeSet<FuncId> {
        &self.reached
    }

    /// What words the lanes have, if guards are needed.
    pub(super) fn layout(&self, module: &Module) -> Option<Layout> {
        if self.kernels.is_empty() {
            return None;
        }
        let has_masks = self.reached.iter().any(|id| {
            let body = module.func(*id).body.as_ref();
            body.is_some_and(|body| {
                let lanes = Lanes::new(module, body);
                let mut found = body.insts().filter_map(|(_, inst)| lanes.mask(inst));
                found.any(|mask| mask != ALL)
            })
        });
        Some(Layout { warps: self.warps(), has_masks })
    }

    /// Lets lanes come before they wait for each other. `comes`: whether a warp's lanes come
    /// together at a barrier.
    pub(super) fn apply(
        &self,
        module: &mut Module,
        mut meeting: Meeting,
        comes: impl Fn(&Module, &Body, &Inst) -> bool,
    ) {
        for &id in &self.reached {
            let index = id.0 as usize;
            let Some(mut body) = module.funcs[index].body.take() else { continue };
            let begins = self.kernels.iter().any(|kernel| kernel.func == id);
            guard(module, &mut body, &mut meeting, begins, &comes);
            module.funcs[index].body = Some(body);
        }
    }

    /// The warps of the largest CTA.
    fn warps(&self) -> u32 {
        let most = |kernel: &Kernel| {
            let [x, y, z] = kernel.required_threads.or(kernel.max_threads)?;
            Some(x.saturating_mul(y).saturating_mul(z).div_ceil(32))
        };
        let most = |kernel: &Kernel| most(kernel).unwrap_or(32).clamp(1, 32);
        self.kernels.iter().map(most).max().unwrap_or(32)
    }
}

/// Adds the guards of one body.
fn guard(
    module: &mut Module,
    body: &mut Body,
    meeting: &mut Meeting,
    begins: bool,
    comes: &impl Fn(&Module, &Body, &Inst) -> bool,
) {
    let ways = if begins { exits::OF_KERNELS } else { exits::OF_FUNCTIONS };
    let leaves = begins || body.insts().any(|(_, inst)| ways.contains(&module.form(inst).op));
    let lanes = Lanes::new(module, body);
    let needed = |inst: &Inst| match comes(module, body, inst) {
        true => Some(ALL),
        false => lanes.mask(inst),
    };
    let sites: BTreeMap<usize, Operand> =
        body.insts().filter_map(|(at, inst)| Some((at, needed(inst)?))).collect();
    if sites.is_empty() && !leaves {
        return;
    }
    let stmts = std::mem::take(&mut body.stmts);
    let mut out = Vec::with_capacity(stmts.len() + 60 * sites.len());
    let mut code = Code { module, body, out: &mut out };
    let regs = Regs::new(&mut code, meeting);
    if begins {
        regs.begin(&mut code);
    }
    // Guards have the places of what they stand before, so that `cancel` finds their loops.
    let mut places: Vec<Pos> = stmts.iter().rev().scan(Pos::default(), place_of).collect();
    places.reverse();
    // Lanes of this mask have met since the last place at which lanes part.
    let mut met: Option<Operand> = None;
    for (index, stmt) in stmts.into_iter().enumerate() {
        let Stmt::Inst(inst) = stmt else {
            met = met.filter(|_| !matches!(stmt, Stmt::Label(_)));
            code.out.push(stmt);
            continue;
        };
        if let Some(&mask) = sites.get(&index) {
            met = site(&mut code, (&regs, meeting), (inst, places[index]), (mask, met));
            continue;
        }
        let form = code.module.form(&inst);
        let parts = matches!(
            form.op,
            Op::Bra | Op::Brx | Op::Call | Op::Ret | Op::Exit | Op::Bar | Op::Barrier
        );
        let changes = |mask: &Operand| {
            let mut is = false;
            code.body.each_result(&inst, &mut |reg| is |= Operand::Reg(reg) == *mask);
            is
        };
        met = met.filter(|mask| !parts && !changes(mask));
        code.out.push(stmt);
    }
    body.stmts = match leaves {
        true => exits::split(
            module,
            body,
            (out, ways),
            &mut Tells { tell: &|code| regs.exit(code), ways },
        ),
        false => out,
    };
}

/// Lets lanes come before an instruction that waits for a mask; returns the mask of which it is
/// known afterwards that its lanes are here.
fn site(
    code: &mut Code<'_>,
    (regs, meeting): (&Regs, &mut Meeting),
    (inst, pos): (Inst, Pos),
    (mask, met): (Operand, Option<Operand>),
) -> Option<Operand> {
    let form = code.module.form(&inst);
    let is_barrier = form.has(Mod::Warp);
    let is_of_cta = matches!(form.op, Op::Bar | Op::Barrier) && !is_barrier;
    if inst.guard.is_none() && met == Some(mask) {
        code.out.push(Stmt::Inst(inst));
        return met.filter(|_| !is_of_cta && !changes(code.body, &inst, mask));
    }
    let past = inst.guard.map(|own| {
        let past = code.label();
        code.go_if(Guard { negated: !own.negated, ..own }, past);
        past
    });
    // Members of a mask may execute different instructions (PTX ISA, "bar.warp.sync"). Of others
    // they must execute the same one, as of an intrinsic in CUDA.
    let site = if is_barrier { Site::Barrier } else { meeting.next_site() };
    regs.meet(code, (mask, site), pos);
    let inst = Inst { guard: None, ..inst };
    let is_met = !is_barrier && !is_of_cta && !changes(code.body, &inst, mask);
    code.out.push(Stmt::Inst(inst));
    if let Some(past) = past {
        code.place(past);
        return None;
    }
    is_met.then_some(mask)
}

/// Where a statement stands in the program's text, or the next one that stands there.
#[expect(clippy::unnecessary_wraps, reason = "`scan` asks for it")]
fn place_of(next: &mut Pos, stmt: &Stmt) -> Option<Pos> {
    if let Stmt::Inst(inst) = stmt
        && inst.pos.line > 0
    {
        *next = inst.pos;
    }
    Some(*next)
}

fn changes(body: &Body, inst: &Inst, mask: Operand) -> bool {
    let mut is = false;
    body.each_result(inst, &mut |reg: Reg| is |= Operand::Reg(reg) == mask);
    is
}

#[cfg(test)]
mod tests {
    use crate::ir::{Op, Stmt};

    /// What `contain` makes of a kernel `k`, and of other functions.
    fn contained(functions: &str, body: &str) -> crate::Module {
        let source = format!(
            ".version 8.6\n.target sm_90a\n.address_size 64\n{functions}\n.visible .entry \
             k(.param .u64 out, .param .u32 n)\n{{\n.shared .align 16 .b8 tile[1024];\n.reg .b32 \
             %r<9>, %t, %n;\n.reg .b64 %d<9>;\n.reg .pred %p<9>;\nmov.u32 %t, %tid.x;\n\
             ld.param.u32 %n, [n];\nsetp.lt.u32 %p1, %t, 16;\n{body}\nEND:\nret;\n}}\n"
        );
        super::super::contain(&crate::parse(&source).unwrap()).module
    }

    fn check(functions: &str, body: &str, is_guarded: bool) {
        let text = crate::print(&contained(functions, body));
        assert_eq!(text.contains("pw_lanes"), is_guarded, "{text}");
    }

    const EITHER: &str = "bra A;\nshfl.sync.bfly.b32 %r2, %t, 1, 31, -1;\nbra B;\nA: \
                          vote.sync.ballot.b32 %r2, 1, -1;\nB:";

    #[test]
    fn lanes_that_wait_in_one_order_stay_as_they_are() {
        check("", "shfl.sync.bfly.b32 %r2, %t, 1, 31, -1;", false);
        check("", "@%p1 bra END;\nshfl.sync.bfly.b32 %r2, %t, 1, 31, -1;\nbar.sync 0;", false);
        check("", &format!("setp.eq.u32 %p2, %n, 1;\n@%p2 {EITHER}"), false);
        check("", "@%p1 bra A;\nadd.u32 %t, %t, 1;\nA:\nredux.sync.add.u32 %r2, %t, -1;", false);
    }

    #[test]
    fn lanes_that_may_wait_apart_come_together_first() {
        check("", &format!("@%p1 {EITHER}"), true);
        check("", "shfl.sync.bfly.b32 %r2, %t, 1, 31, 1;", true);
        check("", "mov.u32 %r1, 0xffff;\nbar.warp.sync %r1;", true);
        check("", "@%p1 shfl.sync.bfly.b32 %r2, %t, 1, 31, -1;\nbar.warp.sync -1;", true);
        check("", "shfl.sync.bfly.b32 %r2, %t, 1, 31, %t;", true);
        // A mask that is not there yet.
        check("", "redux.sync.add.u32 %r2, %t, %r1;\nmov.u32 %r1, -1;", true);
        check("", "mov.u32 %r1, -1;\nredux.sync.add.u32 %r2, %t, %r1;", false);
        check("", "L: bar.warp.sync -1;\n@%p1 bra L;\nbar.warp.sync 1;", true);
        // Barriers of the CTA that are polled bring the lanes of a warp together, too.
        check("", "@%p1 bra A;\nbar.sync 1;\nbra B;\nA: bar.sync 2;\nB:", true);
    }

    /// What a right program has alike in all lanes may differ in another one.
    #[test]
    fn no_program_can_make_lanes_seem_alike() {
        for differing in [
            "add.cc.u32 %r3, %t, -16;\naddc.u32 %r4, 0, 0;",
            "ld.shared.u32 %r4, [tile];",
            "@%p1 mov.u32 %r4, 3;",
            "mov.u32 %r4, 1;\n@%p1 bra C;\nmov.u32 %r4, 2;\nC:",
            "L: add.u32 %r4, %r4, 1;\nsetp.lt.u32 %p3, %r4, %t;\n@%p3 bra L;",
        ] {
            check("", &format!("{differing}\nsetp.eq.u32 %p2, %r4, 1;\n@%p2 {EITHER}"), true);
        }
    }

    #[test]
    fn lanes_that_return_from_a_function_may_wait_behind_it() {
        let function = ".func f(.reg .b32 %a) { .reg .pred %p; .reg .b32 %r; setp.lt.u32 %p, %a, \
                        16; @%p bra E; shfl.sync.bfly.b32 %r, %a, 1, 31, -1; E: ret; }";
        check(function, "call f, (%t);\nredux.sync.add.u32 %r2, %t, -1;", true);
    }

    /// A kernel whose lanes wait in one order, but in a function with guards, has their words, too.
    #[test]
    fn kernels_that_share_a_function_share_its_guards() {
        let other = ".func f(.reg .b32 %a) { .reg .b32 %r; shfl.sync.bfly.b32 %r, %a, 1, 31, -1; \
                     ret; }\n.visible .entry other() { .reg .b32 %t; mov.u32 %t, %tid.x; call f, \
                     (%t); ret; }";
        let text = crate::print(&contained(other, &format!("@%p1 {EITHER}\ncall f, (%t);")));
        let (_, other) = text.split_once(".entry other").unwrap();
        let (other, _) = other.split_once(".entry k").unwrap();
        assert!(other.contains("st.shared.u32 [%pw_lanes_own"), "{other}");
        assert!(other.contains("red.shared.or.b32 [%pw_lanes_own"), "{other}");
    }

    #[test]
    fn every_wait_has_a_place_in_the_text() {
        let matrix = "@%p1 bra A;\nmov.u32 %r1, %n;\nldmatrix.sync.aligned.m8n8.x1.shared.b16 \
                      {%r2}, [%r1];\nbra B;\nA: vote.sync.ballot.b32 %r2, 1, -1;\nB:";
        let module = contained("", matrix);
        let body = module.funcs[0].body.as_ref().unwrap();
        let (mut sleeps, mut waits) = (false, 0);
        for stmt in &body.stmts {
            let Stmt::Inst(inst) = stmt else { continue };
            if sleeps {
                assert!(inst.pos.line > 0, "{}", crate::print(&module));
                waits += 1;
            }
            sleeps = module.form(inst).op == Op::Nanosleep;
        }
        assert_eq!(waits, 4, "for the matrix, two checks of its lanes, and the vote");
    }
}
