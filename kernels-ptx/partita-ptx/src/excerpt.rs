//! The text of one kernel of a module: a module of its own that runs the same code.
//!
//! Passes multiply the text of a small kernel. A module of very many kernels is therefore rewritten
//! kernel by kernel, and only where the kernel is launched. [`Excerpts`] keeps where each function
//! stands in the source and what it needs, in proportion to the module.
//!
//! Variables in global memory are named by the addresses at which the module has them. A kernel
//! that shares something else with its module has no excerpt ([`Bound`]).

use crate::analysis::hazard::callee;
use crate::ir::{
    Base, Body, FuncId, Function, Item, Module, Op, Operand, Space, Stmt, Symbol, Table, VarId,
};
use crate::parse::lexer::{Kind, Lexer};
use crate::print::{linkage_text, print_head, print_variable};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Why a kernel cannot leave its module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Bound {
    /// It names something that only its module has.
    #[error("it names a constant, a texture or a surface of its module")]
    Variable,
    /// The module's variable has no address.
    #[error("it names a variable without an address")]
    NoAddress,
    /// A function of it keeps a variable from launch to launch.
    #[error("it keeps a variable from launch to launch")]
    State,
    /// Functions have other addresses in another module.
    #[error("it takes the address of a function")]
    FunctionAddress,
    /// It may call any function of the module.
    #[error("it calls through a register")]
    IndirectCall,
    /// It names an alias, whose function stands elsewhere.
    #[error("it names a function that another one stands for")]
    Alias,
}

/// What a function needs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Need {
    Function(FuncId),
    /// Shared memory that is declared outside of functions.
    Shared(VarId),
    /// A variable in global memory.
    Global(VarId),
}

/// A function in the source.
#[derive(Debug)]
struct Place {
    /// Its bytes.
    span: (u32, u32),
    /// The line of the first byte, from 1.
    line: u32,
    linkage: &'static str,
    /// Its needs among [`Excerpts::needs`].
    needs: (u32, u32),
    bound: Option<Bound>,
}

/// The functions of a module and what each needs, with the module's source.
#[derive(Debug)]
pub struct Excerpts {
    source: Arc<str>,
    head: String,
    functions: Vec<Place>,
    needs: Vec<Need>,
    /// Declarations of shared memory.
    shared: BTreeMap<VarId, String>,
    /// Names of variables in global memory.
    globals: BTreeMap<VarId, String>,
}

/// A kernel as a module of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excerpt {
    /// The text.
    pub text: String,
    /// Pieces of the source: the first line in the text, the line in the source, and the number of
    /// lines.
    pieces: Vec<(u32, u32, u32)>,
}

impl Excerpt {
    /// The source's line for a line of the text, both from 1; 0 where it came from none.
    #[must_use]
    pub fn source_line(&self, line: u32) -> u32 {
        let after = self.pieces.partition_point(|(first, ..)| *first <= line);
        let piece = after.checked_sub(1).map(|index| self.pieces[index]);
        piece.map_or(0, |(first, from, lines)| {
            let at = line - first;
            if at < lines { from + at } else { 0 }
        })
    }
}

impl Excerpts {
    /// The functions of a module that was parsed from `source` and not changed since.
    #[must_use]
    pub fn of(module: &Module, source: Arc<str>) -> Self {
        let outside: BTreeSet<VarId> = module
            .items
            .iter()
            .filter_map(|item| match item {
                Item::Variable(id) => Some(*id),
                _ => None,
            })
            .collect();
        let aliases: BTreeSet<FuncId> = module
            .items
            .iter()
            .filter_map(|item| match item {
                Item::Alias { alias, .. } => Some(*alias),
                _ => None,
            })
            .collect();
        let mut excerpts = Excerpts {
            head: print_head(module),
            functions: Vec::with_capacity(module.funcs.len()),
            needs: Vec::new(),
            shared: BTreeMap::new(),
            globals: BTreeMap::new(),
            source,
        };
        let (mut line, mut counted) = (1, 0);
        for (index, function) in module.funcs.iter().enumerate() {
            let id = FuncId(u32::try_from(index).expect("counted by u32"));
            let start = function.span.0 as usize;
            // Functions come in the order of the source.
            line += lines(excerpts.source.get(counted..start).unwrap_or_default());
            counted = start.max(counted);
            let mut found = Found::default();
            if let Some(body) = &function.body {
                found.look(module, function, body, &outside);
            }
            found.needs.extend(function.prototypes.iter().copied().map(Need::Function));
            found.needs.sort_unstable();
            found.needs.dedup();
            let is_in_source = function.span.0 < function.span.1 && !aliases.contains(&id);
            let first = u32::try_from(excerpts.needs.len()).expect("fewer than source bytes");
            for need in &found.needs {
                match need {
                    Need::Function(_) => {}
                    Need::Shared(id) => {
                        let declaration = || print_variable(module, module.var(*id));
                        excerpts.shared.entry(*id).or_insert_with(declaration);
                    }
                    Need::Global(id) => {
                        let name = || module.text(module.var(*id).name).to_owned();
                        excerpts.globals.entry(*id).or_insert_with(name);
                    }
                }
            }
            excerpts.needs.append(&mut found.needs);
            let end = u32::try_from(excerpts.needs.len()).expect("fewer than source bytes");
            excerpts.functions.push(Place {
                span: function.span,
                line,
                linkage: linkage_text(function.linkage),
                needs: (first, end),
                bound: if is_in_source { found.bound } else { Some(Bound::Alias) },
            });
        }
        excerpts.functions.shrink_to_fit();
        excerpts.needs.shrink_to_fit();
        excerpts
    }

    /// Bytes of memory that are kept.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.source.len()
            + self.functions.len() * size_of::<Place>()
            + self.needs.len() * size_of::<Need>()
    }

    /// A kernel as a module of its own. `address_of` tells the address of a variable in global
    /// memory by its name.
    ///
    /// # Errors
    /// Where the kernel shares something else with its module.
    pub fn kernel(
        &self,
        kernel: FuncId,
        address_of: impl Fn(&str) -> Option<u64>,
    ) -> Result<Excerpt, Bound> {
        let (mut functions, mut shared) = (BTreeSet::from([kernel]), BTreeSet::new());
        let mut addresses = BTreeMap::new();
        let mut todo = vec![kernel];
        while let Some(id) = todo.pop() {
            let place = self.functions.get(id.0 as usize).ok_or(Bound::Alias)?;
            if let Some(bound) = place.bound {
                return Err(bound);
            }
            for need in &self.needs[place.needs.0 as usize..place.needs.1 as usize] {
                match *need {
                    Need::Function(id) if functions.insert(id) => todo.push(id),
                    Need::Function(_) => {}
                    Need::Shared(id) => {
                        shared.insert(id);
                    }
                    Need::Global(id) => {
                        let name = self.globals[&id].as_str();
                        addresses.insert(name, address_of(name).ok_or(Bound::NoAddress)?);
                    }
                }
            }
        }
        let mut text = self.head.clone();
        for id in shared {
            text.push_str(&self.shared[&id]);
        }
        let mut next = lines(&text) + 1;
        let mut pieces = Vec::with_capacity(functions.len());
        for id in functions {
            let place = &self.functions[id.0 as usize];
            let piece = &self.source[place.span.0 as usize..place.span.1 as usize];
            text.push_str(place.linkage);
            push_with_addresses(&mut text, piece, &addresses);
            text.push('\n');
            let count = lines(piece) + 1;
            pieces.push((next, place.line, count));
            next += count;
        }
        Ok(Excerpt { text, pieces })
    }

    /// Whether a kernel has an excerpt. `reach` has the functions in the kernel's reach.
    ///
    /// # Errors
    /// As [`Excerpts::kernel`].
    pub fn check(&self, reach: &BTreeSet<FuncId>) -> Result<(), Bound> {
        let bounds = reach.iter().filter_map(|id| self.functions.get(id.0 as usize)?.bound);
        bounds.min_by_key(|bound| *bound as u8).map_or(Ok(()), Err)
    }
}

/// Appends a function with addresses in place of the names of variables. The function has no name
/// of its own that is one of these.
fn push_with_addresses(text: &mut String, piece: &str, addresses: &BTreeMap<&str, u64>) {
    let mut copied = 0;
    if !addresses.is_empty() {
        let mut lexer = Lexer::new(piece);
        loop {
            let token = lexer.next();
            if matches!(token.kind, Kind::End | Kind::Bad) {
                break;
            }
            let address = addresses.get(lexer.text(token));
            if let Some(address) = address.filter(|_| token.kind == Kind::Ident) {
                text.push_str(lexer.between(copied, token.start));
                text.push_str(&address.to_string());
                copied = token.end;
            }
        }
    }
    text.push_str(&piece[copied as usize..]);
}

fn lines(text: &str) -> u32 {
    let count = text.bytes().filter(|byte| *byte == b'\n').count();
    u32::try_from(count).expect("fewer lines than source bytes")
}

/// What was found in a body.
#[derive(Default)]
struct Found {
    needs: Vec<Need>,
    bound: Option<Bound>,
}

impl Found {
    fn look(
        &mut self,
        module: &Module,
        function: &Function,
        body: &Body,
        outside: &BTreeSet<VarId>,
    ) {
        let mut named = 0;
        let mut globals = BTreeSet::new();
        for operand in &body.operands {
            let (Operand::Symbol(symbol, _) | Operand::Mem(Base::Symbol(symbol), _)) = *operand
            else {
                continue;
            };
            match symbol {
                Symbol::Func(id) => {
                    named += 1;
                    let definition = module.definition(id);
                    self.needs.push(Need::Function(definition.unwrap_or(id)));
                }
                Symbol::Var(id) if outside.contains(&id) => match module.var(id).space {
                    Space::Global => {
                        self.needs.push(Need::Global(id));
                        globals.insert(module.var(id).name);
                    }
                    space if space.is_shared() => self.needs.push(Need::Shared(id)),
                    _ => self.bound = Some(Bound::Variable),
                },
                Symbol::Var(_) | Symbol::Label(_) | Symbol::Unresolved(_) => {}
            }
        }
        let own = body.stmts.iter().filter_map(|stmt| match stmt {
            Stmt::Var(id) => Some(*id),
            _ => None,
        });
        let own = own.chain(function.params.iter().chain(&function.returns).copied());
        let mut names = own
            .map(|id| module.var(id).name)
            .chain(body.labels.iter().map(|label| label.name))
            .chain(body.regs.iter().map(|reg| reg.name));
        if !globals.is_empty() && names.any(|name| globals.contains(&name)) {
            self.bound = Some(Bound::Variable);
        }
        let calls = body.insts().filter(|(_, inst)| module.form(inst).op == Op::Call);
        let by_name =
            calls.filter(|(_, inst)| callee(body.operands(inst.operands)).is_some()).count();
        let is_state = |stmt: &Stmt| {
            matches!(stmt, Stmt::Var(id)
                if matches!(module.var(*id).space, Space::Global | Space::Const))
        };
        if body.stmts.iter().any(is_state) {
            self.bound = Some(Bound::State);
        } else if named > by_name {
            self.bound = Some(Bound::FunctionAddress);
        } else if module.calls_indirectly(body)
            || body.tables.iter().any(|table| matches!(table, Table::Call(_)))
        {
            self.bound = Some(Bound::IndirectCall);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{parse, verify};

    const SOURCE: &str = "\
.version 8.0
.target sm_75
.address_size 64
.global .u32 counter;
.const .u64 limit = 3;
.shared .align 4 .b8 tile[16];
.func twice(.param .u32 x);
.visible .entry first(.param .u64 p)
{
    .reg .b64 %d<2>;
    ld.param.u64 %d1, [p];
    st.global.u64 [%d1], 1;
    ret;
}
// A comment between.
.func twice(.param .u32 x)
{
    .reg .b32 %r<2>;
    mov.u32 %r1, tile;
    ret;
}
.visible .entry second()
.maxntid 32
{
    call twice, (1);
    ret;
}
.visible .entry third() { .reg .b64 %d<2>; ld.const.u64 %d1, [limit]; ret; }
.visible .entry fourth() { .reg .b64 %d<2>; mov.u64 %d1, twice; ret; }
.visible .entry fifth() { .global .u32 own; .reg .b64 %d<2>; mov.u64 %d1, own; ret; }
.visible .entry hides(.param .u32 counter) { .reg .b32 %r<2>; ld.param.u32 %r1, [counter]; ret; }
.visible .entry counts()
{
    .reg .b64 %d<2>; .reg .b32 %r<2>;
    mov.u64 %d1, counter; // counter
    atom.global.add.u32 %r1, [counter+4], 1;
    ret;
}
.visible .entry sixth() { .reg .b64 %d<2>; shape: .callprototype _ (); call %d1, shape; ret; }
";

    fn excerpts() -> (Module, Excerpts) {
        let module = parse(SOURCE).unwrap();
        let excerpts = Excerpts::of(&module, SOURCE.into());
        (module, excerpts)
    }

    #[test]
    fn an_excerpt_is_the_same_kernel() {
        let (module, excerpts) = excerpts();
        for (name, functions) in [("first", 1), ("second", 3)] {
            let id = module.function_named(name).unwrap();
            assert_eq!(excerpts.check(&module.reach(id).funcs), Ok(()), "{name}");
            let excerpt = excerpts.kernel(id, |_| None).unwrap();
            let alone = parse(&excerpt.text).unwrap_or_else(|e| panic!("{}\n{e}", excerpt.text));
            verify(&alone).unwrap();
            assert_eq!(alone.funcs.len(), functions, "{}", excerpt.text);
            let print = |module: &Module| {
                let id = module.function_named(name).unwrap();
                crate::print_kernel(module, &module.reach(id))
            };
            assert_eq!(print(&alone), print(&module));
            let kernel = |module: &Module| {
                let mut kernels = module.kernels().into_iter();
                let found = kernels.find(|kernel| kernel.name == name).unwrap();
                crate::Kernel { func: FuncId(0), ..found }
            };
            assert_eq!(kernel(&alone), kernel(&module));
        }
    }

    #[test]
    fn variables_become_addresses() {
        let (module, excerpts) = excerpts();
        let counts = module.function_named("counts").unwrap();
        let excerpt = excerpts.kernel(counts, |name| (name == "counter").then_some(4096)).unwrap();
        for words in ["mov.u64 %d1, 4096; // counter", "atom.global.add.u32 %r1, [4096+4], 1;"] {
            assert!(excerpt.text.contains(words), "{}", excerpt.text);
        }
        let alone = parse(&excerpt.text).unwrap();
        verify(&alone).unwrap();
        assert!(crate::print(&alone).contains("[4100]"));
        assert_eq!(excerpts.kernel(counts, |_| None).unwrap_err(), Bound::NoAddress);
        let hides = module.function_named("hides").unwrap();
        assert!(excerpts.kernel(hides, |_| Some(1)).unwrap().text.contains("[counter]"));
    }

    #[test]
    fn lines_lead_back() {
        let (module, excerpts) = excerpts();
        let excerpt = excerpts.kernel(module.function_named("second").unwrap(), |_| None).unwrap();
        let mut found = 0;
        for (text, line) in excerpt.text.lines().zip(1..) {
            let source = excerpt.source_line(line);
            if source > 0 {
                assert_eq!(SOURCE.lines().nth(source as usize - 1).unwrap(), text);
                found += 1;
            }
        }
        assert_eq!((found, excerpt.source_line(1), excerpt.source_line(99)), (13, 0, 0));
    }

    #[test]
    fn what_shares_more_than_code_stays() {
        let (module, excerpts) = excerpts();
        for (name, why) in [
            ("third", Bound::Variable),
            ("fourth", Bound::FunctionAddress),
            ("fifth", Bound::State),
            ("sixth", Bound::IndirectCall),
        ] {
            let id = module.function_named(name).unwrap();
            assert_eq!(excerpts.kernel(id, |_| None).unwrap_err(), why, "{name}");
            assert!(excerpts.check(&module.reach(id).funcs).is_err(), "{name}");
        }
    }
}
