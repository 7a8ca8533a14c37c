//! Registers that an inner scope declares again, by a range. Passes name registers of the function
//! in inner scopes, where such a name would mean another one. The parser renames single ones.

use std::collections::HashMap;

use crate::ir::{Body, Module, Name, RegNames, Stmt, range_stems};

/// A register of the body whose name an inner scope may declare again.
pub(super) fn declared_again(module: &Module, body: &Body) -> Option<Name> {
    if !body.stmts.contains(&Stmt::Open) {
        return None;
    }
    let outermost = body.outermost();
    // By the stem of a range: the outermost register that may be an element of it.
    let mut elements: HashMap<&str, (u16, Name)> = HashMap::new();
    for (&name, &depth) in &outermost {
        for stem in range_stems(module.text(name)) {
            let element = elements.entry(stem).or_insert((depth, name));
            *element = (depth, name).min(*element);
        }
    }
    let mut depth = 0_u16;
    for stmt in &body.stmts {
        let decl = match *stmt {
            Stmt::Open => {
                depth += 1;
                continue;
            }
            Stmt::Close => {
                depth = depth.saturating_sub(1);
                continue;
            }
            Stmt::Regs(decl) if depth > 0 => &body.reg_decls[decl as usize],
            _ => continue,
        };
        for &RegNames { name, count } in &decl.names {
            let outer = match count {
                None => outermost.get(&name).map(|&outer| (outer, name)),
                Some(_) => elements.get(module.text(name)).copied(),
            };
            if let Some((_, hidden)) = outer.filter(|(outer, _)| *outer < depth) {
                return Some(hidden);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::declared_again;

    fn of(body: &str) -> Option<String> {
        let source = format!(
            ".version 8.0\n.target sm_80\n.address_size 64\n.entry k() {{\n.reg .b32 %r<9>, a;\n\
             {body}\nret;\n}}"
        );
        let module = crate::parse(&source).unwrap();
        let name = declared_again(&module, module.funcs[0].body.as_ref().unwrap());
        name.map(|name| module.text(name).to_owned())
    }

    #[test]
    fn a_scope_may_declare_its_own_registers() {
        let used = "mov.u32 a, 1; add.u32 %r3, a, 1;";
        assert_eq!(
            of(&format!("{used} {{ .reg .b32 b; mov.u32 b, 1; }} {{ .reg .f32 b; }}")),
            None
        );
        assert_eq!(of(&format!("{used} {{ .reg .b32 a; mov.u32 a, 1; }}")), None);
        // Declared, and not used.
        assert_eq!(of(&format!("{used} {{ .reg .b64 %r3, %x<2>; }}")), None);
        let many = "{ .reg .b32 t<3>; mov.u32 t1, 2; }\n".repeat(70);
        assert_eq!(of(&format!("{used} {many}")), None);
        // A range beside a single register: nobody tells whose name is whose.
        let both = "{ .reg .b64 %r3; } { .reg .b32 %r<5>; }";
        assert_eq!(of(&format!("{used} {both}")), Some("%r3".into()));
        assert_eq!(of(&format!("{used} {{ {{ .reg .b32 %r<5>; }} }}")), Some("%r3".into()));
        assert_eq!(of(&format!("{used} {{ .reg .b32 %rd<5>; }}")), None);
    }
}
