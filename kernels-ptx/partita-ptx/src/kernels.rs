//! The facts of a kernel that a launcher needs: parameter layout, shared memory, launch bounds.
//!
//! Parameters are laid out in order, each at its alignment (CUDA Driver API, `cuLaunchKernel`; PTX
//! ISA, "Kernel Function Parameters"). Shared memory is the memory that the kernel and the
//! functions in its reach name.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::analysis::hazard::callee;
use crate::ir::{
    Base, Body, FuncId, Function, FunctionKind, Inst, Module, Op, Operand, Space, Stmt, Symbol,
    VarId, Variable,
};
use crate::worker::copies::keeps_state;

/// A kernel parameter in the parameter buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Param {
    /// Its name.
    pub name: String,
    /// Bytes from the buffer's start.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
    /// Alignment in bytes.
    pub align: u64,
}

/// A kernel that a module defines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The function.
    pub func: FuncId,
    /// Its name.
    pub name: String,
    /// Parameters in order.
    pub params: Vec<Param>,
    /// Size of the parameter buffer.
    pub param_bytes: u64,
    /// Static shared memory in bytes.
    pub static_shared: u64,
    /// Whether the kernel can use dynamic shared memory: an `.extern .shared` array is in its
    /// reach.
    pub dynamic_shared: bool,
    /// `.maxntid`: the product is the bound.
    pub max_threads: Option<[u32; 3]>,
    /// `.reqntid`
    pub required_threads: Option<[u32; 3]>,
    /// `.reqnctapercluster`
    pub required_cluster: Option<[u32; 3]>,
    /// `.minnctapersm`
    pub min_ctas_per_sm: Option<u32>,
    /// `.maxnreg`
    pub max_registers: Option<u32>,
}

impl Kernel {
    /// Whether the program itself bounds the registers, by blocks or by number.
    #[must_use]
    pub fn is_bounded(&self) -> bool {
        self.max_threads.or(self.required_threads).is_some() || self.max_registers.is_some()
    }
}

impl Module {
    /// The kernels that the module defines, in order.
    #[must_use]
    pub fn kernels(&self) -> Vec<Kernel> {
        let defined = |f: &&Function| f.kind == FunctionKind::Entry && f.body.is_some();
        let ids = (0..self.funcs.len())
            .map(|index| FuncId(u32::try_from(index).expect("counted by u32")));
        let mut calls = Calls::new(self);
        ids.filter(|&id| defined(&self.func(id)))
            .map(|id| self.kernel(id, &calls.reach(id)))
            .collect()
    }

    fn kernel(&self, id: FuncId, reach: &Reach) -> Kernel {
        let function = self.func(id);
        let (params, param_bytes) = self.layout(&function.params);
        let mut shared: Vec<&Variable> = reach
            .vars
            .iter()
            .map(|&var| self.var(var))
            .filter(|variable| variable.space.is_shared())
            .collect();
        // As in an assembler, the strictest alignment comes first and leaves no holes.
        shared.sort_by_key(|variable| std::cmp::Reverse(variable.alignment()));
        let mut static_shared = 0_u64;
        let mut dynamic_shared = false;
        for variable in shared {
            match variable.bytes() {
                Some(bytes) => {
                    let start = static_shared.next_multiple_of(variable.alignment());
                    static_shared = start.saturating_add(bytes);
                }
                None => dynamic_shared = true,
            }
        }
        Kernel {
            func: id,
            name: self.text(function.name).to_owned(),
            params,
            param_bytes,
            static_shared,
            dynamic_shared,
            max_threads: self.triple(function, "maxntid"),
            required_threads: self.triple(function, "reqntid"),
            required_cluster: self.triple(function, "reqnctapercluster"),
            min_ctas_per_sm: self
                .directive(function, "minnctapersm")
                .and_then(|values| values.first().copied()),
            max_registers: self
                .directive(function, "maxnreg")
                .and_then(|values| values.first().copied()),
        }
    }

    fn layout(&self, params: &[VarId]) -> (Vec<Param>, u64) {
        let mut end = 0_u64;
        let mut list = Vec::new();
        for &id in params {
            let variable = self.var(id);
            let (size, align) = (variable.bytes().unwrap_or(0), variable.parameter_alignment());
            let offset = end.checked_next_multiple_of(align).unwrap_or(end);
            end = offset.saturating_add(size);
            list.push(Param { name: self.text(variable.name).to_owned(), offset, size, align });
        }
        (list, end)
    }

    /// The numbers after a directive of the function's head.
    #[must_use]
    pub fn directive<'a>(&self, function: &'a Function, word: &str) -> Option<&'a [u32]> {
        let found =
            function.directives.iter().find(|directive| self.text(directive.name) == word)?;
        Some(&found.values)
    }

    fn triple(&self, function: &Function, word: &str) -> Option<[u32; 3]> {
        let values = self.directive(function, word)?;
        let mut triple = [1; 3];
        for (to, from) in triple.iter_mut().zip(values) {
            *to = *from;
        }
        Some(triple)
    }

    /// The functions that a function can reach by calls, and the names in their bodies.
    #[must_use]
    pub fn reach(&self, id: FuncId) -> Reach {
        Calls::new(self).reach(id)
    }

    /// Whether the body calls through a register.
    pub(crate) fn calls_indirectly(&self, body: &Body) -> bool {
        body.insts().any(|(_, inst)| {
            self.form(inst).op == Op::Call
                && body
                    .operands(inst.operands)
                    .iter()
                    .any(|operand| matches!(operand, Operand::Reg(_)))
        })
    }
}

/// The names in the functions of a module. Each function is looked at once, however many kernels
/// reach it.
#[derive(Debug)]
pub struct Calls<'m> {
    module: &'m Module,
    /// The names in each function that was looked at.
    named: HashMap<FuncId, Named>,
    /// For each function, the number of the search that found it last.
    seen: Vec<u32>,
    search: u32,
}

/// The names in one function.
#[derive(Debug, Default)]
struct Named {
    /// Functions, definitions where there are any.
    funcs: Vec<FuncId>,
    vars: Vec<VarId>,
    /// Functions that the function calls by name; the declaration for a function that the module
    /// does not define.
    called: Vec<FuncId>,
    /// Whether it calls through a register.
    indirect: bool,
    /// Whether a variable of its own outlives a CTA.
    keeps_state: bool,
}

impl<'m> Calls<'m> {
    /// Nothing is looked at yet.
    #[must_use]
    pub fn new(module: &'m Module) -> Self {
        Self { module, named: HashMap::new(), seen: vec![0; module.funcs.len()], search: 0 }
    }

    fn named(&mut self, id: FuncId) -> &Named {
        self.named.entry(id).or_insert_with(|| Named::of(self.module, id))
    }

    /// Whether a variable of the function outlives a CTA: a copy of the function would have another
    /// variable.
    pub(crate) fn keeps_state(&mut self, id: FuncId) -> bool {
        self.named(id).keeps_state
    }

    /// The functions among `reach` that lead to one of `readers`, these included.
    pub(crate) fn callers(
        &mut self,
        reach: &BTreeSet<FuncId>,
        readers: &BTreeSet<FuncId>,
    ) -> BTreeSet<FuncId> {
        let mut found = BTreeSet::new();
        if readers.is_empty() {
            return found;
        }
        let mut called_by: BTreeMap<FuncId, Vec<FuncId>> = BTreeMap::new();
        for &id in reach {
            for &called in &self.named(id).called {
                called_by.entry(called).or_default().push(id);
            }
        }
        let mut todo: Vec<FuncId> = readers.iter().copied().collect();
        while let Some(id) = todo.pop() {
            if self.module.func(id).kind == FunctionKind::Func && found.insert(id) {
                todo.extend(called_by.get(&id).into_iter().flatten().copied());
            }
        }
        found
    }

    /// See [`Module::reach`].
    pub fn reach(&mut self, id: FuncId) -> Reach {
        let module = self.module;
        self.search += 1;
        let (seen, search) = (&mut self.seen, self.search);
        let first = module.definition(id).unwrap_or(id);
        seen[first.0 as usize] = search;
        let mut funcs = vec![first];
        let mut next = 0;
        let mut vars = Vec::new();
        let mut indirect = false;
        while let Some(&id) = funcs.get(next) {
            next += 1;
            let named = self.named.entry(id).or_insert_with(|| Named::of(module, id));
            vars.extend_from_slice(&named.vars);
            let mut push = |id: FuncId| {
                if std::mem::replace(&mut seen[id.0 as usize], search) != search {
                    funcs.push(id);
                }
            };
            named.funcs.iter().copied().for_each(&mut push);
            if named.indirect && !indirect {
                indirect = true;
                let all =
                    module.funcs.iter().enumerate().filter(|(_, f)| f.kind == FunctionKind::Func);
                let ids =
                    all.map(|(index, _)| FuncId(u32::try_from(index).expect("counted by u32")));
                ids.map(|id| module.definition(id).unwrap_or(id)).for_each(push);
            }
        }
        Reach { funcs: funcs.into_iter().collect(), vars: vars.into_iter().collect(), indirect }
    }
}

impl Named {
    fn of(module: &Module, id: FuncId) -> Self {
        let mut named = Self::default();
        let Some(body) = &module.func(id).body else { return named };
        for operand in &body.operands {
            match operand {
                Operand::Symbol(Symbol::Func(func), _)
                | Operand::Mem(Base::Symbol(Symbol::Func(func)), _) => {
                    named.funcs.push(module.definition(*func).unwrap_or(*func));
                }
                Operand::Symbol(Symbol::Var(var), _)
                | Operand::Mem(Base::Symbol(Symbol::Var(var)), _) => {
                    named.vars.push(*var);
                }
                _ => {}
            }
        }
        named.vars.extend(body.stmts.iter().filter_map(|stmt| match stmt {
            Stmt::Var(var) if module.var(*var).space != Space::Param => Some(*var),
            _ => None,
        }));
        named.funcs.sort_unstable();
        named.funcs.dedup();
        named.vars.sort_unstable();
        named.vars.dedup();
        named.indirect = module.calls_indirectly(body);
        named.keeps_state = keeps_state(module, body).is_some();
        let calls = body.insts().filter(|(_, inst)| module.form(inst).op == Op::Call);
        let target =
            |inst: &Inst| callee(body.operands(inst.operands)).and_then(|id| module.definition(id));
        named.called = calls.map(|(_, inst)| target(inst).unwrap_or(id)).collect();
        named.called.sort_unstable();
        named.called.dedup();
        named
    }
}

/// Result of [`Module::reach`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// Functions, the first one included: definitions where there are any.
    pub funcs: BTreeSet<FuncId>,
    /// Variables that they name or declare.
    pub vars: BTreeSet<VarId>,
    /// Whether there is a call through a register; then every function of the module is in reach.
    pub indirect: bool,
}

#[cfg(test)]
mod tests {
    use crate::parse;

    #[test]
    fn layout_and_bounds() {
        let module = parse(
            ".version 8.4\n.target sm_90\n.address_size 64\n.extern .shared .align 16 .b8 dyn[];\n\
             .shared .align 4 .b8 one[6];\n.func f() { .shared .align 8 .b8 two[8]; .reg .b32 \
             %r<2>; \
             mov.u32 %r1, one; ret; }\n\
             .visible .entry k(.param .u8 a, .param .align 8 .b8 b[12], .param .u64 .ptr .global \
             .align 4 c)\n\
             .maxntid 128, 2\n.minnctapersm 3\n{ call f; ret; }\n.entry none() { ret; }",
        )
        .unwrap();
        let kernels = module.kernels();
        let layout: Vec<_> =
            kernels[0].params.iter().map(|p| (p.offset, p.size, p.align)).collect();
        assert_eq!(layout, [(0, 1, 1), (8, 12, 8), (24, 8, 8)]);
        assert_eq!(kernels[0].param_bytes, 32);
        assert_eq!(kernels[0].static_shared, 14);
        assert!(!kernels[0].dynamic_shared);
        assert_eq!(kernels[0].max_threads, Some([128, 2, 1]));
        assert_eq!(kernels[0].min_ctas_per_sm, Some(3));
        assert_eq!((kernels[1].name.as_str(), kernels[1].param_bytes), ("none", 0));
    }
}
