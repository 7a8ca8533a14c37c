//! The `output` pass: what kernels print goes to memory, where the device's owner finds it.
//!
//! NVIDIA's driver writes what `vprintf` prints to the standard output of its own process, which is
//! nobody's who runs a program. The pass gives `vprintf` a body (`frame.ptx`), which writes a
//! record to a ring in the module's variables. [`Records`] reads them.
//!
//! The host tells the ring's end: it sets the second word of [`STATE`] to what it has read plus
//! [`SLOTS`]. So a record never overwrites one that nobody has read; what finds no room is lost.

mod records;

pub use records::{Record, Records, Taken};

use crate::graft::{self, Graft};
use crate::ir::{Body, FuncId, Init, Item, Linkage, Module, Space, VarId};
use crate::kernels::Calls;
use crate::report::{KernelReport, Outcome};
use crate::worker::Rewritten;
use std::collections::BTreeSet;
use std::sync::LazyLock;

/// The variable with two words: the number of slots that kernels have taken, and the number at
/// which taking ends.
pub const STATE: &str = "pw_output_state";
/// The variable with the ring.
pub const RING: &str = "pw_output_slots";
/// Bytes of a slot.
pub const SLOT_BYTES: usize = 256;
/// Slots of the ring.
pub const SLOTS: u32 = 4096;

/// The system's function.
const VPRINTF: &str = "vprintf";
/// What it is called with a body.
const WRITER: &str = "pw_vprintf";

static FRAME: LazyLock<Module> = LazyLock::new(|| graft::frame(include_str!("frame.ptx")));

/// Lets kernels print to memory. Modules that do not print, or that declare `vprintf` in another
/// way, stay as they are.
#[must_use]
pub fn output(module: &Module) -> Rewritten {
    output_of(module.clone())
}

/// The same as [`output()`]. It changes the module in its place, which may be very large.
#[must_use]
pub fn output_of(mut module: Module) -> Rewritten {
    let reports =
        module.kernels().iter().map(|kernel| KernelReport::new(kernel, Outcome::Applied)).collect();
    let found: Vec<FuncId> =
        (0..).map(FuncId).take(module.funcs.len()).filter(|&id| is_vprintf(&module, id)).collect();
    let names = [STATE, RING, WRITER];
    if let Some((&first, others)) = found.split_first()
        && module.address_size == Some(64)
        && names.iter().all(|name| module.names.get(name).is_none())
    {
        define(&mut module, first);
        let name = module.func(first).name;
        for other in others {
            let function = &mut module.funcs[other.0 as usize];
            (function.name, function.linkage) = (name, Linkage::Private);
            function.definition = Some(first);
            module.funcs[first.0 as usize].prototypes.push(*other);
        }
    }
    Rewritten { module, reports }
}

/// The kernels that may print, by their names.
#[must_use]
pub fn printing(module: &Module) -> BTreeSet<String> {
    if module.function_named(WRITER).is_none() {
        return BTreeSet::new();
    }
    // Passes give functions copies with longer names.
    let is_writer = |id: FuncId| module.text(module.func(id).name).contains(WRITER);
    let mut calls = Calls::new(module);
    let kernels = module.kernels().into_iter();
    let prints = kernels.filter(|kernel| {
        let reach = calls.reach(kernel.func);
        reach.indirect || reach.funcs.iter().any(|&id| is_writer(id))
    });
    prints.map(|kernel| kernel.name).collect()
}

/// Whether a function is the system's, as it is declared everywhere.
fn is_vprintf(module: &Module, id: FuncId) -> bool {
    let function = module.func(id);
    let is = |id: VarId, bytes| {
        let variable = module.var(id);
        variable.space == Space::Param && variable.bytes() == Some(bytes)
    };
    module.text(function.name) == VPRINTF
        && function.body.is_none()
        && matches!(function.returns[..], [result] if is(result, 4))
        && matches!(function.params[..], [format, arguments] if is(format, 8) && is(arguments, 8))
}

/// Gives the declared function a body.
fn define(module: &mut Module, id: FuncId) {
    let graft = Graft::new(&FRAME, module);
    let state = variable(module, &graft, "state", STATE);
    module.vars[state.0 as usize].init =
        Some(Init::List(vec![Init::Int(0), Init::Int(SLOTS.into())]));
    let ring = variable(module, &graft, "slots", RING);
    let function = module.func(id);
    let (result, params) = (function.returns[0], function.params.clone());
    let outside = [
        ("state", state),
        ("slots", ring),
        ("result", result),
        ("format", params[0]),
        ("arguments", params[1]),
    ];
    let mut body = Body::default();
    let grafted = graft.put_into(module, &mut body, &outside);
    let stmts = graft.stmts(module, &mut body, &grafted, |_, _, _, _| {});
    body.stmts = stmts;
    let name = module.names.intern(WRITER);
    let function = &mut module.funcs[id.0 as usize];
    (function.name, function.linkage, function.body) = (name, Linkage::Private, Some(body));
    let first =
        module.items.iter().position(|item| matches!(item, Item::Variable(_) | Item::Function(_)));
    let at = first.unwrap_or(module.items.len());
    module.items.splice(at..at, [state, ring].map(Item::Variable));
}

/// A variable like the frame's.
fn variable(module: &mut Module, graft: &Graft, of: &str, name: &str) -> VarId {
    let id = graft.outside(module, of);
    let name = module.names.intern(name);
    let variable = &mut module.vars[id.0 as usize];
    (variable.name, variable.linkage) = (name, Linkage::Visible);
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTS: &str = "
.version 7.0
.target sm_75
.address_size 64
.extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);
.func helper()
{
	.reg .b32 %r;
	.reg .b64 %d;
	mov.u64 %d, 0;
	{
	.param .b64 p0;
	.param .b64 p1;
	.param .b32 q;
	st.param.b64 [p0], %d;
	st.param.b64 [p1], %d;
	call.uni (q), vprintf, (p0, p1);
	ld.param.b32 %r, [q];
	}
	ret;
}
.visible .entry loud() { call.uni helper; ret; }
.visible .entry silent() { ret; }
";

    #[test]
    fn kernels_that_print_write_to_memory() {
        let module = crate::parse(PRINTS).unwrap();
        assert!(printing(&module).is_empty(), "the system's function prints");
        let Rewritten { module, reports } = output(&module);
        crate::verify(&module).unwrap();
        assert_eq!(reports.len(), 2);
        assert_eq!(printing(&module), BTreeSet::from(["loud".to_owned()]));
        let text = crate::print(&module);
        assert!(!text.contains(" vprintf"), "{text}");
        assert_eq!(crate::print(&crate::parse(&text).unwrap()), text);
    }

    #[test]
    fn other_declarations_stay() {
        for (from, to) in
            [(".param .b64 b)", ".param .b64 b, .param .b64 c)"), ("r)", "pw_vprintf)")]
        {
            let text = PRINTS.replacen(from, to, 1);
            let Ok(module) = crate::parse(&text) else { continue };
            assert!(crate::print(&output(&module).module).contains(" vprintf"), "{text}");
        }
    }
}
