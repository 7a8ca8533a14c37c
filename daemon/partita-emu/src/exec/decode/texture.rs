//! Texture and surface instructions in the unified mode, which CUDA's objects need: a 64-bit handle
//! names texture and sampler together.

use super::{Decoder, Result};
use crate::exec::inst::{AtomicKind, Op, Source, Target};
use crate::exec::texture::{Boundary, Detail, Geometry, Query, TextureKind, TextureOp};
use partita_ptx::{Base, Form, Mod, Op as P, Operand, Type};

fn geometry(form: &Form) -> Option<Geometry> {
    form.mods.iter().find_map(|word| {
        Some(match word {
            Mod::D1 => Geometry::D1,
            Mod::D2 => Geometry::D2,
            Mod::D3 => Geometry::D3,
            Mod::A1d => Geometry::A1d,
            Mod::A2d => Geometry::A2d,
            Mod::Cube => Geometry::Cube,
            Mod::Acube => Geometry::Acube,
            _ => return None,
        })
    })
}

fn boundary(form: &Form) -> Option<Boundary> {
    form.mods.iter().find_map(|word| {
        Some(match word {
            Mod::Trap => Boundary::Trap,
            Mod::Clamp => Boundary::Clamp,
            Mod::Zero => Boundary::Zero,
            _ => return None,
        })
    })
}

impl Decoder<'_> {
    pub(super) fn texture_operation(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let op = match form.op {
            P::Tex | P::Tld4 => self.sampling(form, operands)?,
            P::Suld => self.surface_load(form, operands)?,
            P::Sust | P::Sured => self.surface_write(form, operands)?,
            _ => self.texture_query(form, operands)?,
        };
        self.program.texture_ops.push(op);
        let index = self.program.texture_ops.len() as i64 - 1;
        self.emit(Op::Texture, 0, 0, 0, 0, index);
        Ok(())
    }

    /// Decodes an operation whose operand `place` is `[object, {coordinates}]`.
    fn located(
        &mut self,
        form: &Form,
        kind: TextureKind,
        place: Operand,
        coordinate: Type,
    ) -> Result<TextureOp> {
        let Operand::Tuple(parts) = place else { return self.unsupported(form) };
        let &[object, coordinates] = self.scope().body.operands(parts) else {
            return self
                .refuse("a sampler apart from its texture is not supported by the emulated GPU");
        };
        let Some(geometry) = geometry(form) else { return self.unsupported(form) };
        let handle = self.texture_handle(object)?;
        let coordinates = self.elements(coordinates);
        let (layer, rest) = match (geometry.has_layer(), coordinates.as_slice()) {
            (true, [layer, rest @ ..]) => (self.source(*layer, Type::U32)?, rest),
            (_, all) => (Source::None, all),
        };
        if rest.len() < geometry.coordinates() {
            return self.refuse("too few coordinates");
        }
        let mut sources = [Source::None; 3];
        for (source, &operand) in sources.iter_mut().zip(&rest[..geometry.coordinates()]) {
            *source = self.source(operand, coordinate)?;
        }
        Ok(TextureOp {
            kind,
            geometry,
            boundary: boundary(form).unwrap_or(Boundary::Trap),
            handle,
            layer,
            coordinates: sources,
            further: Vec::new(),
            targets: Vec::new(),
            resident: Target::None,
        })
    }

    fn texture_handle(&mut self, object: Operand) -> Result<Source> {
        match object {
            Operand::Reg(_) => self.source(object, Type::U64),
            _ => self.refuse(
                "a texture or surface that is bound by name is not supported by the emulated GPU: \
                 use an object",
            ),
        }
    }

    /// The registers of the results, and the predicate where the operand names one.
    fn results(&mut self, operand: Operand, ty: Type) -> Result<(Vec<Target>, Target)> {
        let (values, resident) = match operand {
            Operand::Pair(parts) => match self.scope().body.operands(parts) {
                &[values, resident] => (values, self.target(resident, Type::Pred)?),
                _ => return self.refuse("results of this kind"),
            },
            values => (values, Target::None),
        };
        let parts = self.elements(values);
        let targets = parts.into_iter().map(|part| self.target(part, ty)).collect::<Result<_>>()?;
        Ok((targets, resident))
    }

    fn sampling(&mut self, form: &Form, operands: &[Operand]) -> Result<TextureOp> {
        let [to, place, further @ ..] = operands else { return self.unsupported(form) };
        let mut types = form.types();
        let (Some(result), Some(coordinate)) = (types.next(), types.next()) else {
            return self.unsupported(form);
        };
        let packed = result == Type::F16x2;
        let whole = matches!((packed, form.vector()), (true, 2) | (false, 4));
        let known = matches!(result, Type::F32 | Type::U32 | Type::S32 | Type::F16x2)
            && matches!(coordinate, Type::F32 | Type::S32);
        if !known || !whole {
            return self.unsupported(form);
        }
        let kind = if form.op == P::Tld4 {
            let component = self.module.text(form.text).split('.').nth(1);
            let Some(component) =
                ["r", "g", "b", "a"].iter().position(|&word| component == Some(word))
            else {
                return self.unsupported(form);
            };
            TextureKind::Gather { component, packed }
        } else {
            let detail = if form.has(Mod::Level) {
                Detail::Level
            } else if form.has(Mod::Grad) {
                Detail::Gradients
            } else {
                Detail::Base
            };
            TextureKind::Sample { integer: coordinate == Type::S32, detail, packed }
        };
        let mut op = self.located(form, kind, *place, coordinate)?;
        (op.targets, op.resident) = self.results(*to, Type::B32)?;
        let detail = match kind {
            TextureKind::Sample { detail, .. } => detail,
            _ => Detail::Base,
        };
        let wanted = match detail {
            Detail::Base => 0,
            Detail::Level => 1,
            Detail::Gradients => 2,
        };
        // Texel offsets and depths to compare with would follow; they are not supported.
        if further.len() != wanted {
            return self.unsupported(form);
        }
        let number = if coordinate == Type::S32 { Type::S32 } else { Type::F32 };
        for &operand in further {
            let mut parts = self.elements(operand);
            if detail == Detail::Gradients {
                parts.truncate(op.geometry.coordinates());
            }
            for part in parts {
                let source = self.source(part, number)?;
                op.further.push(source);
            }
        }
        let least =
            if detail == Detail::Gradients { 2 * op.geometry.coordinates() } else { wanted };
        if op.further.len() != least {
            return self.unsupported(form);
        }
        Ok(op)
    }

    /// Type and size of a surface's elements.
    fn element(&self, form: &Form) -> Result<(Type, u32)> {
        match form.last_type() {
            Some(ty) if boundary(form).is_some() && form.has(Mod::B) => Ok((ty, ty.bytes())),
            // Formatted accesses (`.p`) are not supported.
            _ => self.unsupported(form),
        }
    }

    fn surface_load(&mut self, form: &Form, operands: &[Operand]) -> Result<TextureOp> {
        let (ty, bytes) = self.element(form)?;
        let &[to, place] = operands else { return self.unsupported(form) };
        let mut op = self.located(form, TextureKind::Load { bytes }, place, Type::S32)?;
        (op.targets, op.resident) = self.results(to, ty)?;
        Ok(op)
    }

    fn surface_write(&mut self, form: &Form, operands: &[Operand]) -> Result<TextureOp> {
        let (ty, bytes) = self.element(form)?;
        let &[place, value] = operands else { return self.unsupported(form) };
        let kind = if form.op == P::Sust {
            TextureKind::Store { bytes }
        } else {
            let kind = form.mods.iter().find_map(|word| {
                Some(match word {
                    Mod::Add => AtomicKind::Add,
                    Mod::Min => AtomicKind::Min,
                    Mod::Max => AtomicKind::Max,
                    Mod::And => AtomicKind::And,
                    Mod::Or => AtomicKind::Or,
                    _ => return None,
                })
            });
            let Some(kind) = kind else { return self.unsupported(form) };
            TextureKind::Reduce { bytes, kind, signed: ty.is_signed() }
        };
        let mut op = self.located(form, kind, place, Type::S32)?;
        for part in self.elements(value) {
            let source = self.source(part, ty)?;
            op.further.push(source);
        }
        Ok(op)
    }

    fn texture_query(&mut self, form: &Form, operands: &[Operand]) -> Result<TextureOp> {
        let text = self.module.text(form.text);
        let query = match text.split('.').nth(1) {
            Some("width") => Query::Width,
            Some("height") => Query::Height,
            Some("depth") => Query::Depth,
            Some("array_size") => Query::ArraySize,
            Some("num_mipmap_levels") => Query::Levels,
            Some("normalized_coords") => Query::Normalized,
            _ => return self.unsupported(form),
        };
        let &[to, Operand::Mem(Base::Reg(object), 0)] = operands else {
            return self.unsupported(form);
        };
        Ok(TextureOp {
            kind: TextureKind::Query(query),
            geometry: Geometry::D1,
            boundary: Boundary::Trap,
            handle: self.texture_handle(Operand::Reg(object))?,
            layer: Source::None,
            coordinates: [Source::None; 3],
            further: Vec::new(),
            targets: vec![self.target(to, Type::B32)?],
            resident: Target::None,
        })
    }
}
