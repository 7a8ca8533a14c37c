//! Resolves names (PTX ISA, "Identifiers", and the scoping of `{ }`).
//!
//! Module and function level are dense tables by name, because nearly every lookup ends there.
//! Inner scopes are small, and are maps. A function's entries carry its number, so a new function
//! forgets the last one's at no cost.
//!
//! A label may be used before it is defined, and an inner block's label hides an outer one even
//! then. A use of an unknown name therefore makes a *tentative* label in the scope of the use. When
//! the scope ends without a definition, the label becomes the nearest one of that name around it
//! that is defined so far, or else the enclosing scope's.

use std::collections::HashMap;

use super::numbered::{Element, Numbered, Stem};
use crate::ir::{FuncId, LabelId, Name, Names, Reg, Type, VarId};

/// The meaning of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bound {
    Reg(Reg),
    Var(VarId),
    Func(FuncId),
    Label(LabelId),
}

/// `%r<count>`
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub ty: Type,
    pub vector: u8,
    pub count: u32,
    pub depth: u16,
}

#[derive(Debug, Default)]
struct Inner {
    /// Whether a name of the scope could hide an element of a function's range.
    hides: bool,
    bound: HashMap<Name, Bound>,
    ranges: HashMap<Name, Range>,
    /// Labels used here and not defined here so far.
    tentative: Vec<(Name, LabelId)>,
}

/// All scopes that are open.
#[derive(Debug)]
pub(super) struct Scopes {
    module: Vec<Option<Bound>>,
    function: Vec<(u32, Option<Bound>)>,
    ranges: Vec<(u32, Option<Range>)>,
    inner: Vec<Inner>,
    numbered: Numbered,
    /// The number of inner scopes that hide something.
    hiding: usize,
    /// Number of the function being parsed, or of the last one.
    epoch: u32,
    is_inside: bool,
    tentative: Vec<(Name, LabelId)>,
    /// For a tentative label that became an outer one, the outer label.
    aliases: Vec<Option<LabelId>>,
    aliased: bool,
    defined: Vec<bool>,
    /// In how many open inner scopes a label of the name is defined.
    defining: HashMap<Name, u32>,
}

fn put<T: Clone>(table: &mut Vec<T>, name: Name, empty: &T, value: T) {
    if table.len() <= name.index() {
        table.resize(name.index() + 1, empty.clone());
    }
    table[name.index()] = value;
}

impl Scopes {
    pub fn new(source_bytes: usize) -> Self {
        Self {
            module: Vec::new(),
            function: Vec::new(),
            ranges: Vec::new(),
            inner: Vec::new(),
            numbered: Numbered::new(source_bytes / 8),
            hiding: 0,
            epoch: 0,
            is_inside: false,
            tentative: Vec::new(),
            aliases: Vec::new(),
            aliased: false,
            defined: Vec::new(),
            defining: HashMap::new(),
        }
    }

    pub fn leave_function(&mut self) {
        self.is_inside = false;
    }

    pub fn enter_function(&mut self) {
        self.epoch += 1;
        self.is_inside = true;
        self.inner.clear();
        self.hiding = 0;
        self.tentative.clear();
        self.aliases.clear();
        self.defined.clear();
        self.defining.clear();
        self.aliased = false;
    }

    pub fn depth(&self) -> u16 {
        u16::try_from(self.inner.len()).unwrap_or(u16::MAX)
    }

    pub fn open(&mut self) {
        self.inner.push(Inner::default());
    }

    /// Closes the innermost scope; its undefined labels become those of the scope around it.
    pub fn close(&mut self) {
        let Some(closed) = self.inner.pop() else { return };
        self.hiding -= usize::from(closed.hides);
        for (name, bound) in &closed.bound {
            if let Bound::Label(label) = *bound
                && self.defined[label.0 as usize]
                && let Some(count) = self.defining.get_mut(name)
            {
                *count -= 1;
            }
        }
        for (name, label) in closed.tentative {
            if self.defined[label.0 as usize] {
                continue;
            }
            if let Some(outer) = self.outer_label(name) {
                self.aliases[label.0 as usize] = Some(outer);
                self.aliased = true;
            } else {
                self.bind_label(name, label);
            }
        }
    }

    /// The label that a name means where the scope inside ends: the nearest one that is defined so
    /// far, also beyond scopes that use the name and define it later (as `ptxas` 13.5 binds it), or
    /// one that the enclosing scope uses.
    fn outer_label(&self, name: Name) -> Option<LabelId> {
        let label = |bound: Option<Bound>| match bound {
            Some(Bound::Label(label)) => Some(label),
            _ => None,
        };
        let is_defined = |label: &LabelId| self.defined[label.0 as usize];
        let of = |inner: &Inner| label(inner.bound.get(&name).copied());
        // All scopes are searched only where one of them has it: a label then goes no further.
        if self.defining.get(&name).is_some_and(|count| *count > 0)
            && let Some(label) = self.inner.iter().rev().filter_map(of).find(is_defined)
        {
            return Some(label);
        }
        let function = label(self.in_function(name));
        let enclosing = self.inner.last().map_or(function, of);
        function.filter(is_defined).or(enclosing)
    }

    fn bind_label(&mut self, name: Name, label: LabelId) {
        self.bind(name, Bound::Label(label));
        match self.inner.last_mut() {
            Some(inner) => inner.tentative.push((name, label)),
            None => self.tentative.push((name, label)),
        }
    }

    /// Binds in the innermost scope. Returns the name's meaning in that very scope before.
    pub fn bind(&mut self, name: Name, bound: Bound) -> Option<Bound> {
        if let Some(inner) = self.inner.last_mut() {
            return inner.bound.insert(name, bound);
        }
        let before = self.in_function(name);
        put(&mut self.function, name, &(0, None), (self.epoch, Some(bound)));
        before
    }

    pub fn bind_module(&mut self, name: Name, bound: Bound) {
        put(&mut self.module, name, &None, Some(bound));
    }

    /// Notes that a name is about to be bound that may spell an element of a range.
    pub fn hide(&mut self, text: &str) {
        let Some(stem) = Stem::of(text) else { return };
        if !self.numbered.is_declared(self.epoch, stem) {
            return;
        }
        match self.inner.last_mut() {
            Some(inner) => {
                self.hiding += usize::from(!inner.hides);
                inner.hides = true;
            }
            None => self.numbered.forget(stem),
        }
    }

    /// The element of a range of the function that the name spells, where nothing can hide it; with
    /// what notes its register.
    #[inline]
    pub fn element(&self, text: &str) -> Option<(Element, (Stem, u32))> {
        if self.hiding > 0 {
            return None;
        }
        let (stem, number) = Stem::split(text.as_bytes())?;
        Some((self.numbered.find(self.epoch, stem, number)?, (stem, number)))
    }

    /// Notes the register of an element that [`Scopes::element`] gave as new.
    pub fn note_element(&mut self, (stem, number): (Stem, u32), reg: Reg) {
        self.numbered.put(self.epoch, stem, number, reg);
    }

    pub fn bind_range(&mut self, stem: Name, text: &str, range: Range) {
        self.hide(text);
        if self.inner.is_empty()
            && !text.ends_with(|c: char| c.is_ascii_digit())
            && let Some(stem) = Stem::of(text)
        {
            self.numbered.declare(self.epoch, stem, range);
        }
        match self.inner.last_mut() {
            Some(inner) => {
                inner.ranges.insert(stem, range);
            }
            None => put(&mut self.ranges, stem, &(0, None), (self.epoch, Some(range))),
        }
    }

    #[inline]
    pub fn in_function(&self, name: Name) -> Option<Bound> {
        match self.function.get(name.index()) {
            Some(&(epoch, bound)) if epoch == self.epoch => bound,
            _ => None,
        }
    }

    #[inline]
    pub fn in_module(&self, name: Name) -> Option<Bound> {
        self.module.get(name.index()).copied().flatten()
    }

    /// The variable or function that the name means in an initialiser.
    pub fn symbol(&self, name: Name) -> Option<Bound> {
        let inner = self.inner.iter().rev().filter_map(|inner| inner.bound.get(&name).copied());
        let function = self.in_function(name).filter(|_| self.is_inside);
        let mut all = inner.chain(function).chain(self.in_module(name));
        all.find(|bound| matches!(bound, Bound::Var(_) | Bound::Func(_)))
    }

    /// The meaning of the name, if it is a plain name and not an element of a range that is new.
    #[inline]
    pub fn find(&self, name: Name, names: &Names) -> Found {
        if self.inner.is_empty() {
            return match self.in_function(name) {
                Some(bound) => Found::Bound(bound),
                None => self.find_slowly(name, names),
            };
        }
        self.find_inner(name, names)
    }

    fn find_inner(&self, name: Name, names: &Names) -> Found {
        for (height, inner) in self.inner.iter().rev().enumerate() {
            match inner.bound.get(&name) {
                // An outer scope's label may be hidden by one that this scope defines later.
                Some(Bound::Label(_)) if height > 0 => return Found::Nothing,
                Some(&bound) => return Found::Bound(bound),
                None => {}
            }
            if !inner.ranges.is_empty()
                && let Some(range) = in_range(name, names, |stem| inner.ranges.get(&stem).copied())
            {
                return Found::Element(range);
            }
        }
        match self.in_function(name) {
            Some(Bound::Label(_)) => Found::Nothing,
            Some(bound) => Found::Bound(bound),
            None => self.find_slowly(name, names),
        }
    }

    fn find_slowly(&self, name: Name, names: &Names) -> Found {
        let range = |stem: Name| match self.ranges.get(stem.index()) {
            Some(&(epoch, range)) if epoch == self.epoch => range,
            _ => None,
        };
        if let Some(range) = in_range(name, names, range) {
            return Found::Element(range);
        }
        self.in_module(name).map_or(Found::Nothing, Found::Bound)
    }

    /// Binds an element of a range in the scope that declares the range.
    pub fn bind_element(&mut self, name: Name, range: Range, reg: Reg) {
        match range.depth.checked_sub(1).and_then(|index| self.inner.get_mut(index as usize)) {
            Some(inner) => {
                inner.bound.insert(name, Bound::Reg(reg));
            }
            None => put(&mut self.function, name, &(0, None), (self.epoch, Some(Bound::Reg(reg)))),
        }
    }

    /// A use of an unknown name: a label that may come.
    pub fn tentative_label(&mut self, name: Name, label: LabelId) {
        self.new_label(label, false);
        self.bind_label(name, label);
    }

    fn new_label(&mut self, label: LabelId, defined: bool) {
        debug_assert_eq!(self.defined.len(), label.0 as usize, "labels are made in order");
        self.defined.push(defined);
        self.aliases.push(None);
    }

    /// The effect of a label definition of that name in the innermost scope.
    pub fn define_label(&mut self, name: Name, next: LabelId) -> Defined {
        let here = match self.inner.last() {
            Some(inner) => inner.bound.get(&name).copied(),
            None => self.in_function(name),
        };
        match here {
            Some(Bound::Label(label)) if self.defined[label.0 as usize] => Defined::Twice(label),
            Some(Bound::Label(label)) => {
                self.defined[label.0 as usize] = true;
                self.note_definition(name);
                Defined::Known(label)
            }
            _ => {
                self.new_label(next, true);
                self.bind(name, Bound::Label(next));
                self.note_definition(name);
                Defined::New
            }
        }
    }

    fn note_definition(&mut self, name: Name) {
        if !self.inner.is_empty() {
            *self.defining.entry(name).or_default() += 1;
        }
    }

    /// At the end of a function, the meaning of each label. `None` when every label is what it was
    /// made as.
    pub fn settle_labels(&self) -> Option<Vec<Settled>> {
        if !self.aliased && self.defined.iter().all(|&defined| defined) {
            return None;
        }
        let settle = |index: usize| {
            let mut label = LabelId(u32::try_from(index).expect("counted by u32"));
            // Each step goes one scope outwards.
            while let Some(outer) = self.aliases[label.0 as usize] {
                label = outer;
            }
            if self.defined[label.0 as usize] { Settled::Label(label) } else { Settled::Unresolved }
        };
        Some((0..self.defined.len()).map(settle).collect())
    }
}

/// Result of [`Scopes::find`].
#[derive(Clone, Copy, Debug)]
pub(super) enum Found {
    Bound(Bound),
    /// A register of a range, met for the first time.
    Element(Range),
    Nothing,
}

/// Result of [`Scopes::define_label`].
#[derive(Clone, Copy, Debug)]
pub(super) enum Defined {
    /// The name has no use so far: the label made for it is its own.
    New,
    /// The name was used before; its label is now defined.
    Known(LabelId),
    /// The name was defined before in this scope.
    Twice(LabelId),
}

/// The meaning of a label at a function's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settled {
    Label(LabelId),
    Unresolved,
}

/// Whether the name is stem + number of a range. The stem may end in digits itself, so every split
/// is tried, the shortest stem first, which is nearly always the right one.
fn in_range(name: Name, names: &Names, range: impl Fn(Name) -> Option<Range>) -> Option<Range> {
    let text = names.text(name);
    let stem_bytes = text.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    // A count is a `u32`: no more than ten digits.
    let first = stem_bytes.max(text.len().saturating_sub(10)).max(1);
    for at in first..text.len() {
        let (stem, digits) = text.split_at(at);
        let canonical = digits.len() == 1 || !digits.starts_with('0');
        if canonical
            && let Some(range) = names.get(stem).and_then(&range)
            && digits.parse::<u64>().is_ok_and(|number| number < u64::from(range.count))
        {
            return Some(range);
        }
    }
    None
}
