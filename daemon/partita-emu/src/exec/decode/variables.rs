//! A module's global and constant variables: their places and initial contents.

use partita_ptx::{
    FunctionKind, Init, Item, Linkage, Module, Space as PtxSpace, Symbol, Type, VarId, Variable,
};
use std::collections::HashMap;

/// One variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Its name.
    pub name: String,
    /// Offset in the image.
    pub offset: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// Whether it is in constant memory.
    pub constant: bool,
    /// Whether its name is known outside.
    pub visible: bool,
    /// Whether it is in memory that the host shares: its offset counts from there.
    pub managed: bool,
}

/// All variables of a module, laid out one after the other: constants first, so that one range is
/// read-only.
#[derive(Clone, Debug, Default)]
pub struct Image {
    /// Size in bytes.
    pub bytes: u64,
    /// How many of them are constants.
    pub constant_bytes: u64,
    /// Largest alignment.
    pub alignment: u64,
    /// The variables in order.
    pub variables: Vec<Placed>,
    /// The image's address, once it has one.
    pub base: u64,
    /// Size of the managed variables.
    pub managed_bytes: u64,
    /// Where they begin, once that is known.
    pub managed_base: u64,
    offsets: HashMap<VarId, Offset>,
    by_name: HashMap<u32, Offset>,
}

/// A variable's place: whether it is managed, and its offset in bytes.
type Offset = (bool, u64);

/// A run of initial bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Whether it belongs to the managed variables.
    pub managed: bool,
    /// Offset in the image, or among the managed variables.
    pub offset: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// The initial values of a variable, as runs without gaps.
struct Values {
    managed: bool,
    /// Offset of the next value.
    at: u64,
    /// Offset of the variable's end.
    end: u64,
    pieces: Vec<Piece>,
}

impl Values {
    fn put(&mut self, value: u64, size: u64) -> Result<(), String> {
        let end = self.at.checked_add(size).filter(|end| *end <= self.end);
        let end = end.ok_or("the initialiser is longer than the variable")?;
        let follows = |piece: &&mut Piece| piece.offset + piece.bytes.len() as u64 == self.at;
        let bytes = match self.pieces.last_mut().filter(follows) {
            Some(piece) => &mut piece.bytes,
            None => {
                let (managed, offset) = (self.managed, self.at);
                self.pieces.push(Piece { managed, offset, bytes: Vec::new() });
                &mut self.pieces.last_mut().expect("just pushed").bytes
            }
        };
        let value = value.to_le_bytes();
        let whole = usize::try_from(size).map_err(|_| "a value too large")?;
        bytes.extend_from_slice(&value[..whole.min(8)]);
        bytes.resize(bytes.len() + whole.saturating_sub(8), 0);
        self.at = end;
        Ok(())
    }
}

/// The largest image, in bytes.
const MAX_IMAGE: u64 = 4 << 30;

/// Lays a module's variables out.
///
/// # Errors
/// In words, where one is too large.
pub fn place_variables(module: &Module) -> Result<Image, String> {
    let mut image = Image { alignment: 256, ..Image::default() };
    for constant in [true, false] {
        for item in &module.items {
            let Item::Variable(id) = *item else { continue };
            let variable = module.var(id);
            let here = match variable.space {
                PtxSpace::Const => constant,
                PtxSpace::Global => !constant,
                _ => continue,
            };
            if !here
                || (variable.linkage == Linkage::Extern && variable.init.is_none())
                || variable.ty.is_opaque()
            {
                continue;
            }
            place(module, &mut image, id, variable, constant)?;
        }
        if constant {
            image.bytes = image.bytes.next_multiple_of(256);
            image.constant_bytes = image.bytes;
        }
    }
    for function in module.funcs.iter().filter(|function| function.kind == FunctionKind::Entry) {
        let Some(body) = &function.body else { continue };
        for stmt in &body.stmts {
            // A kernel may declare variables of global space.
            if let partita_ptx::Stmt::Var(id) = *stmt
                && module.var(id).space == PtxSpace::Global
            {
                place(module, &mut image, id, module.var(id), false)?;
            }
        }
    }
    Ok(image)
}

fn place(
    module: &Module,
    image: &mut Image,
    id: VarId,
    variable: &Variable,
    constant: bool,
) -> Result<(), String> {
    let name = module.text(variable.name);
    let bytes = variable.bytes().filter(|&bytes| bytes <= MAX_IMAGE);
    let Some(bytes) = bytes else {
        return Err(format!(
            "line {}: variable `{name}` has no size or is too large",
            variable.pos.line
        ));
    };
    let alignment = variable.alignment().max(1);
    let managed =
        !constant && variable.attribute.is_some_and(|text| module.text(text).trim() == ".managed");
    let end = if managed { &mut image.managed_bytes } else { &mut image.bytes };
    let offset = end.next_multiple_of(alignment);
    *end = offset + bytes;
    image.alignment = image.alignment.max(alignment);
    if image.bytes.max(image.managed_bytes) > MAX_IMAGE {
        return Err(format!(
            "line {}: the module's variables exceed {MAX_IMAGE} bytes",
            variable.pos.line
        ));
    }
    let visible = variable.linkage != Linkage::Private;
    image.variables.push(Placed {
        name: name.to_owned(),
        offset,
        bytes,
        constant,
        visible,
        managed,
    });
    image.offsets.insert(id, (managed, offset));
    image.by_name.insert(variable.name.0, (managed, offset));
    Ok(())
}

impl Image {
    /// The address of a variable; a declaration stands for the definition of the same name.
    #[must_use]
    pub fn address(&self, module: &Module, var: VarId) -> Option<u64> {
        let offset = self
            .offsets
            .get(&var)
            .or_else(|| self.by_name.get(&module.var(var).name.0))
            .copied()?;
        Some(self.at(offset))
    }

    fn at(&self, (managed, offset): Offset) -> u64 {
        offset + if managed { self.managed_base } else { self.base }
    }

    /// The address of one of its variables.
    #[must_use]
    pub fn place(&self, variable: &Placed) -> u64 {
        self.at((variable.managed, variable.offset))
    }

    /// The first contents, once there are addresses: pieces that are not zero throughout. They take
    /// as much memory as the initialisers have values, however large the variables are.
    ///
    /// # Errors
    /// In words, where an initialiser does not fit or names something without an address.
    pub fn contents(&self, module: &Module) -> Result<Vec<Piece>, String> {
        let mut pieces = Vec::new();
        for (&id, &(managed, offset)) in &self.offsets {
            let variable = module.var(id);
            let Some(init) = &variable.init else { continue };
            let end = offset + variable.bytes().unwrap_or(0);
            let mut values = Values { managed, at: offset, end, pieces: Vec::new() };
            let inner: Vec<u64> = inner_sizes(variable);
            self.write(module, init, variable.ty, &inner, &mut values).map_err(|error| {
                format!(
                    "line {}: variable `{}`: {error}",
                    variable.pos.line,
                    module.text(variable.name)
                )
            })?;
            pieces.append(&mut values.pieces);
        }
        Ok(pieces)
    }

    fn write(
        &self,
        module: &Module,
        init: &Init,
        ty: Type,
        inner: &[u64],
        values: &mut Values,
    ) -> Result<(), String> {
        let size = u64::from(ty.bytes());
        let mut put = |value: u64| values.put(value, size);
        match init {
            Init::List(list) => {
                // A nested list fills one element of the outer dimension, even where it leaves
                // elements out.
                let (step, rest) =
                    inner.split_first().map_or((size, inner), |(step, rest)| (*step, rest));
                let start = values.at;
                for (index, element) in list.iter().enumerate() {
                    if matches!(element, Init::List(_)) {
                        values.at = (index as u64).saturating_mul(step).saturating_add(start);
                    }
                    self.write(module, element, ty, rest, values)?;
                }
                Ok(())
            }
            Init::Int(value) | Init::Uint(value) => put(*value),
            Init::F32(bits) if ty == Type::F64 => put(f64::from(f32::from_bits(*bits)).to_bits()),
            Init::F32(bits) => put(u64::from(*bits)),
            Init::F64(bits) if ty == Type::F32 => {
                put(u64::from((f64::from_bits(*bits) as f32).to_bits()))
            }
            Init::F64(bits) => put(*bits),
            Init::Symbol(..) | Init::Generic(..) | Init::Mask(..) => put(self.value(module, init)?),
            _ => Err("an initialiser of this kind".to_owned()),
        }
    }

    fn value(&self, module: &Module, init: &Init) -> Result<u64, String> {
        match init {
            Init::Symbol(Symbol::Var(var), offset) | Init::Generic(Symbol::Var(var), offset) => {
                match self.address(module, *var) {
                    Some(address) => Ok(address.wrapping_add(*offset as u64)),
                    None => {
                        Err("initialised by the address of a variable that has none".to_owned())
                    }
                }
            }
            Init::Symbol(Symbol::Func(id), offset) | Init::Generic(Symbol::Func(id), offset) => {
                Ok(super::calls::function_address(module, *id).wrapping_add(*offset as u64))
            }
            Init::Mask(mask, inner) => {
                Ok((self.value(module, inner)? & mask) >> mask.trailing_zeros().min(63))
            }
            Init::Int(value) | Init::Uint(value) => Ok(*value),
            _ => Err("an initialiser of this kind".to_owned()),
        }
    }
}

/// Bytes of one element of each dimension, outermost first.
fn inner_sizes(variable: &Variable) -> Vec<u64> {
    let mut sizes = Vec::new();
    for position in 0..variable.dims.len() {
        let inner: u64 = variable.dims[position + 1..]
            .iter()
            .map(|dim| match dim {
                partita_ptx::Dim::Count(count) => *count,
                partita_ptx::Dim::Open => 1,
            })
            .product();
        sizes.push(inner * variable.element_bytes());
    }
    sizes
}
