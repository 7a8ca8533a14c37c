//! Kernels that launch kernels (CUDA C++ Programming Guide, "CUDA Dynamic Parallelism").
//!
//! NVIDIA's driver links such modules with a device runtime of its own. Here they are linked with
//! [`runtime`], in PTX, and [`nested`] completes the result: each kernel that reaches the runtime
//! gets a last parameter, the address of the memory into which its launches are written, and keeps
//! it in shared memory. The address of a kernel becomes a number ([`number`]), because the
//! program's side launches by numbers, and the kernel runs in another form at another address.
//!
//! What the records mean is `partita_model::nested`'s business. The pass knows nothing of it but
//! the parameter.

use crate::ir::{
    Base, FuncId, FunctionKind, Init, Inst, Module, Operand, Pos, Reg, RegDecl, RegNames, Register,
    Stmt, Symbol, Type, VarId,
};
use crate::kernels::Calls;
use crate::params;
use std::collections::BTreeMap;

/// The parameter of kernels that may launch others.
pub const PARAM: &str = "pw_nested";
/// Static shared memory that they have for it.
pub const SHARED_BYTES: u64 = 16;
/// The shared variable in which they keep it.
const QUEUE: &str = "pw_nested_queue";
/// Bits 48 to 63 of a kernel's number.
const MARK: u64 = 0x5057;

/// The runtime's functions, without those that no program names.
const RUNTIME: &str = include_str!("runtime.ptx");
/// Where a function with a prefix begins.
const WITH_PREFIX: &str = "PREFIX";
/// The prefixes: of CUDA 12 and later, and of older toolkits.
const PREFIXES: [&str; 2] = ["__cudaCDP2", "cuda"];
/// Functions that also exist for programs with a default stream for each thread.
const WITH_STREAM: [&str; 7] = [
    "LaunchDevice",
    "LaunchDeviceV2",
    "EventRecord",
    "EventRecordWithFlags",
    "StreamWaitEvent",
    "MemcpyAsync",
    "MemsetAsync",
];
/// Any of these is in each text that uses the runtime.
const SIGNS: [&str; 3] = ["__cudaCDP2", "cudaLaunchDevice", "cudaGetParameterBuffer"];

/// The translation unit with the device runtime's functions that the texts of a program name; none
/// where no kernel launches another.
#[must_use]
pub fn runtime(texts: &[&str]) -> Option<String> {
    let is_named = |word: &str| texts.iter().any(|text| text.contains(word));
    if !SIGNS.iter().any(|sign| is_named(sign)) {
        return None;
    }
    let (with_prefix, common): (Vec<&str>, Vec<&str>) =
        RUNTIME.split("\n\n").partition(|piece| piece.contains(WITH_PREFIX));
    let mut unit: Vec<String> = common.into_iter().map(str::to_owned).collect();
    let without = unit.len();
    for prefix in PREFIXES {
        // A function calls only functions before it, so the last come first.
        let mut wanted: Vec<String> = Vec::new();
        for piece in with_prefix.iter().rev() {
            let Some(name) = name_of(piece) else { continue };
            let own = format!("{prefix}{name}");
            let called = format!("{WITH_PREFIX}{name},");
            let is_called = wanted.iter().any(|other| other.contains(&called));
            let apart = format!("{own}_ptsz");
            if WITH_STREAM.contains(&name) && is_named(&apart) {
                let from = format!("{WITH_PREFIX}{name}(");
                wanted.push(piece.replace(&from, &format!("{apart}(")));
            }
            if is_called || is_named(&own) {
                wanted.push((*piece).to_owned());
            }
        }
        unit.extend(wanted.iter().rev().map(|piece| piece.replace(WITH_PREFIX, prefix)));
    }
    (unit.len() > without).then(|| unit.join("\n\n"))
}

/// The name of the runtime's function in a piece, without its prefix.
fn name_of(piece: &str) -> Option<&str> {
    let (_, name) = piece.split_once(WITH_PREFIX)?;
    name.split_once('(').map(|(name, _)| name)
}

/// The number that stands for a kernel's address: its place among the module's kernels, and the
/// bytes of its parameters. `None` where these do not fit.
fn number(place: usize, param_bytes: u64) -> Option<u64> {
    let (place, bytes) = (u32::try_from(place).ok()?, u16::try_from(param_bytes).ok()?);
    Some(MARK << 48 | u64::from(bytes) << 32 | u64::from(place))
}

/// Completes a module that was linked with [`runtime`]; others stay as they are.
#[must_use]
pub fn nested(mut module: Module) -> Module {
    let Some(queue) = queue_of(&module) else { return module };
    let numbers = numbers(&module);
    let kernels = launching(&module, queue);
    for body in module.funcs.iter_mut().filter_map(|function| function.body.as_mut()) {
        for operand in &mut body.operands {
            if let Operand::Symbol(Symbol::Func(id), 0) = operand
                && let Some(&number) = numbers.get(id)
            {
                *operand = Operand::Int(number);
            }
        }
    }
    for variable in &mut module.vars {
        if let Some(init) = &mut variable.init {
            fix(init, &numbers);
        }
    }
    for kernel in kernels {
        keep_queue(&mut module, kernel, queue);
    }
    module
}

/// Whether a kernel of a completed module may launch others.
#[must_use]
pub fn launches(kernel: &crate::Kernel) -> bool {
    kernel.params.last().is_some_and(|param| param.name == PARAM)
}

fn queue_of(module: &Module) -> Option<VarId> {
    let is_queue = |variable: &crate::Variable| {
        variable.space.is_shared() && module.text(variable.name) == QUEUE
    };
    let place = module.vars.iter().position(is_queue)?;
    u32::try_from(place).ok().map(VarId)
}

/// The number of each kernel, by its definition and its prototypes.
fn numbers(module: &Module) -> BTreeMap<FuncId, u64> {
    let mut numbers = BTreeMap::new();
    for (place, kernel) in module.kernels().iter().enumerate() {
        let Some(number) = number(place, kernel.param_bytes) else { continue };
        let prototypes = module.func(kernel.func).prototypes.iter();
        numbers.extend(prototypes.chain([&kernel.func]).map(|id| (*id, number)));
    }
    numbers
}

/// Kernels whose code reaches the queue.
fn launching(module: &Module, queue: VarId) -> Vec<FuncId> {
    let is_kernel = |id: &FuncId| {
        let function = module.func(*id);
        function.kind == FunctionKind::Entry && function.body.is_some()
    };
    let mut calls = Calls::new(module);
    let all = (0..).map(FuncId).take(module.funcs.len());
    all.filter(is_kernel).filter(|id| calls.reach(*id).vars.contains(&queue)).collect()
}

/// Puts numbers for the kernels' addresses in an initial value.
fn fix(init: &mut Init, numbers: &BTreeMap<FuncId, u64>) {
    match init {
        Init::Symbol(Symbol::Func(id), 0) | Init::Generic(Symbol::Func(id), 0) => {
            if let Some(&number) = numbers.get(id) {
                *init = Init::Int(number);
            }
        }
        Init::List(list) => list.iter_mut().for_each(|init| fix(init, numbers)),
        Init::Mask(mask, inner) => {
            fix(inner, numbers);
            if let Init::Int(number) = **inner {
                *init = Init::Int((number & *mask) >> mask.trailing_zeros().min(63));
            }
        }
        _ => {}
    }
}

/// Gives a kernel the parameter, and stores it before anything else.
fn keep_queue(module: &mut Module, kernel: FuncId, queue: VarId) {
    let name = module.names.intern(PARAM);
    let param = params::append(module, kernel, name, Type::U64);
    let register = module.names.fresh("%pw_nested");
    let forms =
        ["ld.param.u64", "st.shared.u64"].map(|text| module.forms.intern(text, &mut module.names));
    let Some(body) = module.funcs[kernel.0 as usize].body.as_mut() else { return };
    let reg = Reg(u32::try_from(body.regs.len()).expect("fewer registers than source bytes"));
    body.regs.push(Register { name: register, ty: Type::B64, vector: 1, depth: 0 });
    let names = vec![RegNames { name: register, count: None }];
    body.reg_decls.push(RegDecl { ty: Type::B64, vector: 1, names });
    let decl = u32::try_from(body.reg_decls.len() - 1).expect("fewer than source bytes");
    let memory = |id| Operand::Mem(Base::Symbol(Symbol::Var(id)), 0);
    let operands = [[Operand::Reg(reg), memory(param)], [memory(queue), Operand::Reg(reg)]];
    let insts = [0, 1].map(|at: usize| {
        let operands = body.add_operands(&operands[at]);
        Stmt::Inst(Inst { guard: None, form: forms[at], operands, pos: Pos::default() })
    });
    body.stmts.splice(0..0, [Stmt::Regs(decl)].into_iter().chain(insts));
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = ".version 8.0\n.target sm_90\n.address_size 64\n";
    const PROGRAM: &str = "
.extern .func (.param .b64 r) __cudaCDP2GetParameterBufferV2
(.param .b64 a, .param .align 4 .b8 b[12], .param .align 4 .b8 c[12], .param .b32 d);
.extern .func (.param .b32 r) __cudaCDP2LaunchDeviceV2_ptsz(.param .b64 a, .param .b64 b);
.visible .entry child(.param .u64 a, .param .u32 b) { ret; }
.global .align 8 .u64 table[2] = {child, 0};
.func start() {
	.reg .b64 %d<3>;
	.reg .b32 %r;
	mov.u64 %d0, child;
	mov.b32 %r, 1;
	{
	.param .b64 a;
	.param .align 4 .b8 b[12];
	.param .align 4 .b8 c[12];
	.param .b32 d;
	.param .b64 r;
	st.param.b64 [a], %d0;
	st.param.b32 [b], %r;
	st.param.b32 [b+4], %r;
	st.param.b32 [b+8], %r;
	st.param.b32 [c], %r;
	st.param.b32 [c+4], %r;
	st.param.b32 [c+8], %r;
	st.param.b32 [d], %r;
	call.uni (r), __cudaCDP2GetParameterBufferV2, (a, b, c, d);
	ld.param.b64 %d1, [r];
	}
	ret;
}
.visible .entry parent(.param .u32 p) { call.uni start; ret; }
";

    fn completed(text: &str) -> Option<Module> {
        let unit = runtime(&[text])?;
        let linked = crate::link(&[text, &unit]).unwrap();
        let module = nested(crate::parse(&linked).unwrap());
        crate::verify(&module).unwrap();
        Some(module)
    }

    #[test]
    fn a_kernel_that_launches_gets_a_parameter_and_addresses_are_numbers() {
        let module = completed(&format!("{HEAD}{PROGRAM}")).unwrap();
        let kernels = module.kernels();
        let found: Vec<_> = kernels
            .iter()
            .map(|kernel| (kernel.name.as_str(), launches(kernel), kernel.param_bytes))
            .collect();
        assert_eq!(found, [("child", false, 12), ("parent", true, 16)]);
        let text = crate::print(&module);
        let number = 0x5057_000c_0000_0000_u64;
        assert!(text.contains(&format!("mov.u64 %d0, {number};")), "{text}");
        assert!(text.contains(&format!("{{{number}, 0}}")), "{text}");
        // A function that the program does not name is not there.
        assert!(text.contains("__cudaCDP2LaunchDeviceV2_ptsz(") && !text.contains("Memset"));
    }

    #[test]
    fn all_functions_of_the_runtime_are_good_under_each_name() {
        let functions = RUNTIME.split("\n\n").filter_map(name_of);
        let names: Vec<&str> = functions.collect();
        assert!(names.len() > 20 && WITH_STREAM.iter().all(|name| names.contains(name)));
        let mut all: Vec<String> = PREFIXES
            .iter()
            .flat_map(|prefix| names.iter().map(move |name| format!("{prefix}{name}")))
            .collect();
        all.extend(WITH_STREAM.map(|name| format!("__cudaCDP2{name}_ptsz")));
        let unit = runtime(&[&all.join(" ")]).unwrap();
        let module = crate::parse(&unit).unwrap();
        crate::verify(&module).unwrap();
        let is_there = |name: &String| module.function_named(name).is_some();
        assert_eq!(all.iter().find(|name| !is_there(name)), None);
        // One that another calls comes with it.
        let unit = runtime(&["__cudaCDP2EventRecordWithFlags_ptsz"]).unwrap();
        let module = crate::parse(&unit).unwrap();
        crate::verify(&module).unwrap();
        assert!(module.function_named("__cudaCDP2EventRecord").is_some());
    }

    #[test]
    fn other_modules_stay_as_they_are() {
        assert_eq!(runtime(&["cudaMalloc", "call cudaGraphSetConditional"]), None);
        let text = format!("{HEAD}.visible .entry k() {{ ret; }}\n");
        let module = crate::parse(&text).unwrap();
        assert_eq!(crate::print(&nested(module.clone())), crate::print(&module));
    }
}
