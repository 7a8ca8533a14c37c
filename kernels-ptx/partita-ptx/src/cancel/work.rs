//! The work of functions between two looks at the abort flag.
//!
//! Each body counts its rounds for itself. A loop that calls a function of many rounds, and a
//! function that calls another one many times, would therefore do far more between two looks than
//! any of them alone. The *work* of a function is the most statements that a call of it executes
//! without a look. A round with calls counts for their work, and a function of [`MOST`] or more
//! looks at its beginning.

use std::collections::{BTreeMap, BTreeSet};

use super::loops::{STATEMENTS, waits};
use super::{Ends, PERIOD};
use crate::analysis::hazard::callee;
use crate::ir::{FuncId, Function, FunctionKind, Module, Op};

/// The work of functions without a look at their beginning, in statements.
const MOST: u64 = 16 * PERIOD * STATEMENTS;

/// The work of a module's functions. Where grids can be ended, there is none.
#[derive(Default)]
pub(super) struct Works {
    by_function: BTreeMap<FuncId, u64>,
    /// Functions that may call themselves.
    recursive: BTreeSet<FuncId>,
}

impl Works {
    pub(super) fn of(module: &Module, ends: Ends) -> Works {
        let mut works = Works::default();
        let functions = || (0..).map(FuncId).zip(&module.funcs);
        let is_function = |function: &Function| function.kind == FunctionKind::Func;
        if ends != Ends::Always || !module.funcs.iter().any(is_function) {
            return works;
        }
        let mut callers: BTreeMap<FuncId, Vec<FuncId>> = BTreeMap::new();
        let mut left: BTreeMap<FuncId, usize> = BTreeMap::new();
        for (id, function) in functions().filter(|(_, function)| is_function(function)) {
            let callees = callees(module, function);
            callees.iter().for_each(|&callee| callers.entry(callee).or_default().push(id));
            left.insert(id, callees.len());
        }
        // A function is known when all that it calls are.
        let mut ready: Vec<FuncId> =
            left.iter().filter(|(_, count)| **count == 0).map(|(&id, _)| id).collect();
        while let Some(id) = ready.pop() {
            left.remove(&id);
            let body = module.func(id).body.as_ref();
            let work = body.map_or(0, |body| waits(module, body, ends, &works).work);
            works.by_function.insert(id, work);
            for caller in callers.get(&id).into_iter().flatten() {
                if let Some(count) = left.get_mut(caller) {
                    *count -= 1;
                    ready.extend((*count == 0).then_some(*caller));
                }
            }
        }
        works.recursive = left.into_keys().collect();
        works
    }

    /// Whether a function looks at the abort flag at its beginning.
    pub(super) fn looks(&self, id: FuncId) -> bool {
        self.recursive.contains(&id) || self.by_function.get(&id).is_some_and(|work| *work >= MOST)
    }

    /// The work of a call of the function, in statements.
    pub(super) fn of_call(&self, id: FuncId) -> u64 {
        match self.looks(id) {
            true => 1,
            false => self.by_function.get(&id).copied().unwrap_or(0).saturating_add(1),
        }
    }
}

fn callees(module: &Module, function: &Function) -> BTreeSet<FuncId> {
    let Some(body) = &function.body else { return BTreeSet::new() };
    let calls = body.insts().filter(|(_, inst)| module.form(inst).op == Op::Call);
    let named = calls.filter_map(|(_, inst)| callee(body.operands(inst.operands)));
    let defined = named.filter_map(|id| module.definition(id));
    defined.filter(|&id| module.func(id).kind == FunctionKind::Func).collect()
}

#[cfg(test)]
mod tests {
    use super::{MOST, Works};
    use crate::{Ends, cancel_with};

    /// A chain of functions, each of which calls the next one in the way of `calls`, and a kernel
    /// that calls the first.
    fn chain(length: usize, calls: impl Fn(&str) -> String) -> String {
        let mut text =
            ".version 8.4\n.target sm_90\n.address_size 64\n.func f0() { ret; }\n".to_owned();
        for index in 1..length {
            let calls = calls(&format!("f{}", index - 1));
            text +=
                &format!(".func f{index}() {{\n.reg .pred %p; .reg .b32 %i;\n{calls}\nret;\n}}\n");
        }
        text + &format!(".entry k() {{ call f{}; ret; }}\n", length - 1)
    }

    /// By function of a chain, its work and whether it looks at its beginning.
    fn works(text: &str, length: usize) -> Vec<(u64, bool)> {
        let module = crate::parse(text).unwrap();
        let works = Works::of(&module, Ends::Always);
        let function = |index: usize| module.function_named(&format!("f{index}")).unwrap();
        (0..length).map(function).map(|id| (works.by_function[&id], works.looks(id))).collect()
    }

    #[test]
    fn rounds_of_loops_that_call_are_multiplied() {
        let rounds = |function: &str| {
            format!(
                "mov.u32 %i, 0;\nA: call {function};\nadd.s32 %i, %i, 1;\nsetp.lt.s32 %p, %i, \
                 1000;\n@%p bra A;"
            )
        };
        let text = chain(4, rounds);
        let found = works(&text, 4);
        // A body with a look does 1,024 × 64 statements before it, and those of its text. The first
        // loop looks in each 1,024th round, and those around calls of it in each round.
        let statements = 1024 * 64;
        let expected =
            [1, statements + 8, 2 * statements + 15, 3 * statements + 22].map(|work| (work, false));
        assert_eq!(found, expected);
        let stopped = cancel_with(crate::parse(&text).unwrap(), &[], Ends::Always);
        let text = crate::print(&stopped.module);
        let looks = text.lines().filter(|line| line.contains("sub.s32 %pw_rounds"));
        let counts: Vec<&str> =
            looks.filter_map(|line| line.trim_end_matches(';').rsplit(' ').next()).collect();
        assert_eq!(counts, ["1", "1024", "1024"], "{text}");
    }

    #[test]
    fn calls_in_a_row_are_multiplied() {
        let text = chain(9, |function| format!("call {function};\n").repeat(30));
        let found = works(&text, 9);
        assert_eq!(found[..4], [1, 91, 2791, 83791].map(|work| (work, false)));
        assert!(found.iter().all(|(work, _)| *work < MOST), "{found:?}");
        // Where calls have too much work together, all but three of them look.
        let stopped = cancel_with(crate::parse(&text).unwrap(), &[], Ends::Always);
        let text = crate::print(&stopped.module);
        let looks = text.matches("sub.s32 %pw_rounds, %pw_rounds, 1024;").count();
        assert!(looks >= 27, "{text}");
    }

    #[test]
    fn short_loops_in_a_row_look() {
        // A loop that looks helps nothing where control goes past it.
        let skipped = |at: i32| {
            format!("@%p bra S{at};\nL{at}: setp.ne.u32 %p, %n, 5;\n@%p bra L{at};\nS{at}:\n")
        };
        for between in [&|_| String::new(), &skipped as &dyn Fn(i32) -> String] {
            let long = "add.u32 %n, %n, 1;\n".repeat(60);
            let one = |at: i32| {
                format!(
                    "mov.u32 %i, 0;\nA{at}: {long}add.s32 %i, %i, 1;\nsetp.lt.s32 %p, %i, \
                     1000;\n@%p bra A{at};\n{}",
                    between(at)
                )
            };
            let loops: String = (0..100).map(one).collect();
            let source = format!(
                ".version 8.4\n.target sm_90\n.address_size 64\n.entry k(.param .u32 n) {{\n.reg \
                 .pred %p; .reg .b32 %i, %n;\nld.param.u32 %n, [n];\n{loops}ret;\n}}\n"
            );
            let stopped = cancel_with(crate::parse(&source).unwrap(), &[], Ends::Always);
            let text = crate::print(&stopped.module);
            // Four loops of 63,000 statements need no look.
            let looks = 96 + text.matches("\nL").count();
            assert_eq!(text.matches("sub.s32 %pw_rounds").count(), looks, "{text}");
        }
    }

    #[test]
    fn nests_of_short_loops_and_long_rounds_look() {
        let count = |body: &str, ends: Ends| {
            let source = format!(
                ".version 8.4\n.target sm_90\n.address_size 64\n.entry k(.param .u32 n) {{\n.reg \
                 .pred %p; .reg .b32 %i, %j, %k, %n;\nld.param.u32 %n, [n];\n{body}\nret;\n}}\n"
            );
            let stopped = cancel_with(crate::parse(&source).unwrap(), &[], ends);
            let text = crate::print(&stopped.module);
            let looks = text.lines().filter(|line| line.contains("sub.s32 %pw_rounds"));
            let counts = looks.map(|line| line.trim_end_matches(';').rsplit(' ').next().unwrap());
            counts.map(|count| count.parse().unwrap()).collect::<Vec<u32>>()
        };
        let nest = |inside: &str| {
            let around = |body: &str, (label, reg): (&str, &str)| {
                format!(
                    "mov.u32 {reg}, 0;\n{label}: {body}\nadd.s32 {reg}, {reg}, 1;\nsetp.lt.s32 \
                     %p, {reg}, 1000;\n@%p bra {label};"
                )
            };
            let inner = around(inside, ("A", "%i"));
            around(&around(&inner, ("B", "%j")), ("C", "%k"))
        };
        // The inner loop is short; the outer ones count for its rounds.
        assert_eq!(count(&nest(""), Ends::Always), [48, 48]);
        assert_eq!(count(&nest(""), Ends::Launch), [0; 0]);
        assert_eq!(count(&nest("nanosleep.u32 1000;"), Ends::Always), [64, 63, 63]);
        let long = "add.u32 %n, %n, 1;\n".repeat(640);
        let spins = format!("A: {long}setp.ne.u32 %p, %n, 5;\n@%p bra A;");
        assert_eq!(count(&spins, Ends::Always), [11]);
    }

    #[test]
    fn functions_that_call_themselves_look() {
        let text = ".version 8.4\n.target sm_90\n.address_size 64\n.func f();\n.func g() { call f; \
                    ret; }\n.func f() { call g; ret; }\n.entry k() { call f; ret; }\n";
        let module = crate::parse(text).unwrap();
        let works = Works::of(&module, Ends::Always);
        let looks = |name: &str| works.looks(module.function_named(name).unwrap());
        assert!(looks("f") && looks("g"));
        assert!(!Works::of(&module, Ends::Launch).looks(module.function_named("f").unwrap()));
    }
}
