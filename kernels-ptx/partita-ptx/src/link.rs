//! Links several translation units into one module: in PTX, as `nvlink` does with machine code.
//!
//! An exported name (`.visible`, `.weak`, `.common`) means the same thing in all units. A private
//! name that another module also uses gets a new name. The linked text has all prototypes first,
//! then all variables, then all functions, because PTX declares before it uses.
//!
//! Of several weak definitions the first stays. A declaration without a definition stays once; its
//! user decides what it means (`vprintf`, `malloc` …). Debug information goes, because its numbers
//! belong to one file.

use crate::error::Errors;
use crate::ir::{Function, FunctionKind, Init, Item, Linkage, Module, Name, Stmt, Symbol, Version};
use crate::stop::Stop;
use crate::{parse_until, print};
use std::collections::{BTreeMap, BTreeSet};

/// Why modules cannot be linked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// A translation unit does not parse.
    #[error("translation unit {unit}: {errors}")]
    Unit {
        /// The number of the unit, from 1.
        unit: usize,
        /// The errors of the unit.
        errors: Errors,
    },
    /// Two units define the same name.
    #[error(
        "`{name}` is defined by the translation units {first} and {second}: make one of them \
         `static` or `extern`"
    )]
    Twice {
        /// Its name.
        name: String,
        /// The first unit that defines it.
        first: usize,
        /// The second unit that defines it.
        second: usize,
    },
    /// No unit was given.
    #[error("there is no translation unit to link")]
    Nothing,
}

/// The definition of a name.
#[derive(Clone, Copy)]
struct Definition {
    unit: usize,
    linkage: Linkage,
}

/// Links modules into the text of one.
///
/// # Errors
/// [`LinkError`].
pub fn link(texts: &[&str]) -> Result<String, LinkError> {
    link_until(texts, &Stop::default())
}

/// As [`link`], unless it is told to stop.
///
/// # Errors
/// [`LinkError`]; a translation unit does not parse once it was stopped.
pub fn link_until(texts: &[&str], stop: &Stop) -> Result<String, LinkError> {
    let mut units = Vec::with_capacity(texts.len());
    for (text, unit) in texts.iter().zip(1..) {
        units.push(parse_until(text, stop).map_err(|errors| LinkError::Unit { unit, errors })?);
    }
    let definitions = definitions(&units)?;
    rename_private(&mut units);
    let mut used = prototyped_kernels(&units);
    units.iter().for_each(|unit| kernels_of_variables(unit, &mut used));
    let mut declared = BTreeSet::new();
    let parts: Vec<Parts> = (0..)
        .zip(&mut units)
        .map(|(unit, module)| Parts::of(module, unit, &definitions, &used, &mut declared))
        .collect();
    let mut text = header(&units)?;
    for part in [Parts::prototypes, Parts::plain, Parts::pointing, Parts::functions] {
        for (module, parts) in units.iter_mut().zip(&parts) {
            module.items = part(parts).to_vec();
            text.push_str(body_of(&print(module)));
        }
    }
    Ok(text)
}

/// The items of one module by where they go.
struct Parts {
    prototypes: Vec<Item>,
    plain: Vec<Item>,
    pointing: Vec<Item>,
    functions: Vec<Item>,
}

impl Parts {
    fn prototypes(&self) -> &[Item] {
        &self.prototypes
    }

    fn plain(&self) -> &[Item] {
        &self.plain
    }

    /// Variables that begin with the address of something.
    fn pointing(&self) -> &[Item] {
        &self.pointing
    }

    fn functions(&self) -> &[Item] {
        &self.functions
    }

    /// Sorts a module's items, without those that another module defines or has declared.
    fn of(
        module: &mut Module,
        unit: usize,
        definitions: &BTreeMap<String, Definition>,
        used: &BTreeSet<String>,
        declared: &mut BTreeSet<String>,
    ) -> Parts {
        let (mut prototypes, mut plain, mut pointing, mut functions) =
            (vec![], vec![], vec![], vec![]);
        for item in std::mem::take(&mut module.items) {
            match item {
                Item::Function(id) => {
                    let function = module.func(id);
                    let name = module.text(function.name).to_owned();
                    let defined = definitions.get(&name);
                    if function.body.is_none() {
                        // A private prototype has its definition in the same module.
                        if defined.is_none()
                            && function.linkage != Linkage::Private
                            && declared.insert(name)
                        {
                            prototypes.push(item);
                        }
                        continue;
                    }
                    if defined.is_some_and(|definition| definition.unit != unit) {
                        continue;
                    }
                    if function.kind == FunctionKind::Func || used.contains(&name) {
                        let prototype = Function { body: None, ..function.clone() };
                        prototypes.push(Item::Function(add_function(module, prototype)));
                    }
                    functions.push(item);
                }
                Item::Variable(id) => {
                    let variable = module.var(id);
                    let name = module.text(variable.name).to_owned();
                    let is_declaration =
                        variable.linkage == Linkage::Extern && variable.init.is_none();
                    let stays = match definitions.get(&name) {
                        Some(definition) => definition.unit == unit && !is_declaration,
                        None => !is_declaration || declared.insert(name),
                    };
                    if !stays {
                        continue;
                    }
                    if variable.init.as_ref().is_some_and(points) {
                        pointing.push(item)
                    } else {
                        plain.push(item)
                    }
                }
                Item::Alias { .. } | Item::Pragma(_) => functions.push(item),
                Item::File(_) | Item::Section(_) | Item::Dwarf(_) => {}
            }
        }
        for function in &mut module.funcs {
            if let Some(body) = &mut function.body {
                body.stmts.retain(|stmt| !matches!(stmt, Stmt::Loc(_)));
            }
        }
        Parts { prototypes, plain, pointing, functions }
    }
}

/// Kernels that a module declares without a body, because it takes their addresses.
fn prototyped_kernels(units: &[Module]) -> BTreeSet<String> {
    let prototype = |module: &Module, item: &Item| match *item {
        Item::Function(id) => {
            let function = module.func(id);
            (function.kind == FunctionKind::Entry && function.body.is_none())
                .then(|| module.text(function.name).to_owned())
        }
        _ => None,
    };
    units
        .iter()
        .flat_map(|unit| unit.items.iter().filter_map(|item| prototype(unit, item)))
        .collect()
}

/// Adds the kernels whose addresses a module's variables contain from the beginning: variables come
/// before functions.
fn kernels_of_variables(unit: &Module, used: &mut BTreeSet<String>) {
    let mut todo: Vec<&Init> =
        unit.vars.iter().filter_map(|variable| variable.init.as_ref()).collect();
    while let Some(init) = todo.pop() {
        match init {
            Init::List(list) => todo.extend(list),
            Init::Mask(_, inner) => todo.push(inner),
            Init::Symbol(Symbol::Func(id), _) | Init::Generic(Symbol::Func(id), _)
                if unit.func(*id).kind == FunctionKind::Entry =>
            {
                used.insert(unit.text(unit.func(*id).name).to_owned());
            }
            _ => {}
        }
    }
}

fn add_function(module: &mut Module, function: Function) -> crate::FuncId {
    module.funcs.push(function);
    crate::FuncId(u32::try_from(module.funcs.len() - 1).expect("fewer functions than source bytes"))
}

/// Whether an initial value contains an address.
fn points(init: &Init) -> bool {
    match init {
        Init::Symbol(..) | Init::Generic(..) | Init::Mask(..) => true,
        Init::List(list) => list.iter().any(points),
        _ => false,
    }
}

/// Name and linkage of each definition of a module; the linkage says whether other modules see the
/// name.
fn defined_names(module: &Module) -> Vec<(Name, Linkage)> {
    let named = |item: &Item| match *item {
        Item::Function(id) => {
            let function = module.func(id);
            function.body.is_some().then_some((function.name, function.linkage))
        }
        Item::Variable(id) => {
            let variable = module.var(id);
            let is_declaration = variable.linkage == Linkage::Extern && variable.init.is_none();
            (!is_declaration).then_some((variable.name, variable.linkage))
        }
        _ => None,
    };
    module.items.iter().filter_map(named).collect()
}

/// The definition of each name that all modules see.
fn definitions(units: &[Module]) -> Result<BTreeMap<String, Definition>, LinkError> {
    let yields = |linkage: Linkage| matches!(linkage, Linkage::Weak | Linkage::Common);
    let mut found: BTreeMap<String, Definition> = BTreeMap::new();
    for (unit, module) in units.iter().enumerate() {
        for (name, linkage) in defined_names(module) {
            if linkage == Linkage::Private {
                continue;
            }
            let name = module.text(name);
            match found.get(name) {
                Some(other) if other.unit == unit => {}
                Some(_) if yields(linkage) => {}
                Some(other) if !yields(other.linkage) => {
                    let (first, second) = (other.unit + 1, unit + 1);
                    return Err(LinkError::Twice { name: name.to_owned(), first, second });
                }
                _ => {
                    found.insert(name.to_owned(), Definition { unit, linkage });
                }
            }
        }
    }
    Ok(found)
}

/// Renames private items whose name another module also uses.
fn rename_private(units: &mut [Module]) {
    let mut users: BTreeMap<String, usize> = BTreeMap::new();
    for module in units.iter() {
        for name in top_names(module) {
            *users.entry(name).or_default() += 1;
        }
    }
    for (unit, module) in (1..).zip(units) {
        let own: BTreeSet<Name> = defined_names(module)
            .into_iter()
            .filter(|(name, linkage)| *linkage == Linkage::Private && users[module.text(*name)] > 1)
            .map(|(name, _)| name)
            .collect();
        for old in own {
            let stem = format!("{}__{unit}", module.text(old));
            let mut new = stem.clone();
            while users.contains_key(&new) {
                new.push('_');
            }
            users.insert(new.clone(), 1);
            let new = module.names.intern(&new);
            // Only a private item at module level has this name; locals are in scopes of their own.
            for item in module.items.clone() {
                match item {
                    Item::Function(id) => {
                        let function = &mut module.funcs[id.0 as usize];
                        if function.name == old {
                            function.name = new;
                        }
                    }
                    Item::Variable(id) => {
                        let variable = &mut module.vars[id.0 as usize];
                        if variable.name == old {
                            variable.name = new;
                        }
                    }
                    _ => {}
                }
            }
        }
    }
}

/// All names at module level, each once.
fn top_names(module: &Module) -> BTreeSet<String> {
    let name = |item: &Item| match *item {
        Item::Function(id) => Some(module.text(module.func(id).name).to_owned()),
        Item::Variable(id) => Some(module.text(module.var(id).name).to_owned()),
        _ => None,
    };
    module.items.iter().filter_map(name).collect()
}

/// The newest version, and the target that asks for most.
fn header(units: &[Module]) -> Result<String, LinkError> {
    let version: Version = units.iter().map(|unit| unit.version).max().ok_or(LinkError::Nothing)?;
    let most = units.iter().max_by_key(|unit| unit.sm()).ok_or(LinkError::Nothing)?;
    let target: Vec<&str> = most.target.iter().map(|name| most.text(*name)).collect();
    let bits = units.iter().filter_map(|unit| unit.address_size).max().unwrap_or(64);
    let Version { major, minor } = version;
    Ok(format!(".version {major}.{minor}\n.target {}\n.address_size {bits}\n", target.join(", ")))
}

/// A printed module without its first directives.
fn body_of(text: &str) -> &str {
    let mut rest = text;
    loop {
        let trimmed = rest.trim_start();
        let first =
            [".version", ".target", ".address_size"].iter().any(|word| trimmed.starts_with(word));
        match trimmed.split_once('\n') {
            Some((_, after)) if first => rest = after,
            None if first => return "",
            _ => return rest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{parse, verify};

    const HEAD: &str = ".version 8.0\n.target sm_75\n.address_size 64\n";

    fn linked(units: &[&str]) -> Module {
        let texts: Vec<String> = units.iter().map(|unit| format!("{HEAD}{unit}")).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let text = link(&texts).unwrap_or_else(|error| panic!("{error}"));
        let module = parse(&text).unwrap_or_else(|errors| panic!("{errors}\n{text}"));
        verify(&module).unwrap_or_else(|errors| panic!("{errors}\n{text}"));
        module
    }

    const CALLER: &str = "
        .extern .func (.param .b32 r) twice (.param .b32 x);
        .extern .global .align 4 .u32 shared_word;
        .global .align 4 .u32 counter = 1;
        .visible .entry first(.param .u64 out) {
            .reg .b32 %r<3>; .reg .b64 %rd<2>;
            ld.param.u64 %rd1, [out];
            ld.global.u32 %r1, [shared_word];
            ld.global.u32 %r2, [counter];
            { .param .b32 a; st.param.b32 [a], %r1; .param .b32 b;
              call.uni (b), twice, (a); ld.param.b32 %r1, [b]; }
            st.global.u32 [%rd1], %r1;
            ret;
        }";

    const CALLEE: &str = "
        .global .align 4 .u32 counter = 2;
        .visible .global .align 4 .u32 shared_word = 7;
        .visible .global .align 8 .u64 where[1] = {shared_word};
        .visible .func (.param .b32 r) twice (.param .b32 x) {
            .reg .b32 %r<3>;
            ld.param.b32 %r1, [x];
            ld.global.u32 %r2, [counter];
            add.s32 %r1, %r1, %r2;
            st.param.b32 [r], %r1;
            ret;
        }";

    #[test]
    fn extern_things_are_those_that_others_define() {
        for units in [[CALLER, CALLEE], [CALLEE, CALLER]] {
            let module = linked(&units);
            let twice = module.function_named("twice").unwrap();
            assert!(module.func(twice).body.is_some());
            let words: Vec<&str> =
                module.vars.iter().map(|variable| module.text(variable.name)).collect();
            assert_eq!(words.iter().filter(|name| **name == "shared_word").count(), 1, "{words:?}");
            assert!(words.contains(&"counter__1") && words.contains(&"counter__2"), "{words:?}");
        }
    }

    #[test]
    fn kernels_whose_address_another_unit_takes_are_declared_first() {
        let user = ".extern .entry child(.param .u64 p);\n\
                    .visible .entry parent(.param .u64 out) {
                        .reg .b64 %rd<3>;
                        ld.param.u64 %rd1, [out];
                        mov.u64 %rd2, child;
                        st.global.u64 [%rd1], %rd2;
                        ret;
                    }";
        let definer = ".visible .entry child(.param .u64 p) { ret; }\n";
        for units in [[user, definer], [definer, user]] {
            let module = linked(&units);
            let child = module.function_named("child").unwrap();
            assert!(module.func(child).body.is_some());
            let kernels = module.kernels();
            let names: Vec<&str> = kernels.iter().map(|kernel| kernel.name.as_str()).collect();
            assert_eq!(names.iter().filter(|name| **name == "child").count(), 1, "{names:?}");
        }
    }

    #[test]
    fn two_definitions_are_one_too_many_unless_weak() {
        let strong = format!("{HEAD}.visible .global .u32 x = 1;\n");
        let error = link(&[&strong, &strong]).unwrap_err();
        assert_eq!(error, LinkError::Twice { name: "x".into(), first: 1, second: 2 });
        let module = linked(&[
            ".weak .global .u32 x = 1;\n",
            ".visible .global .u32 x = 2;\n",
            ".weak .global .u32 x = 3;\n",
        ]);
        assert_eq!(module.vars.len(), 1);
        assert_eq!(module.vars[0].init, Some(Init::Int(2)));
    }

    #[test]
    fn declarations_of_nobodys_stay_once() {
        let unit = ".extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);\n\
                    .extern .shared .align 16 .b8 buffer[];\n";
        let module = linked(&[unit, unit]);
        assert_eq!(
            (
                module.funcs.len(),
                module.vars.iter().filter(|v| v.linkage == Linkage::Extern).count()
            ),
            (1, 1)
        );
    }

    #[test]
    fn the_unit_at_fault_is_named() {
        let good = format!("{HEAD}.visible .global .u32 x;\n");
        let error = link(&[&good, "nonsense"]).unwrap_err().to_string();
        assert!(error.starts_with("translation unit 2: "), "{error}");
        assert_eq!(link(&[]), Err(LinkError::Nothing));
    }
}
