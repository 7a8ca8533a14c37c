//! Surfaces: bytes at integer coordinates. The first coordinate counts bytes (PTX ISA, `suld`,
//! `sust`, `sured`).

use super::{Ask, Boundary, TextureKind, Wrong};
use crate::exec::access::combine;
use crate::exec::inst::{AtomicOp, AtomicType, Source, Space, Target};
use crate::memory::TextureObject;
use partita_device::FaultKind;

/// Bytes of an element, and the number of elements that an operation moves.
fn width(ask: &Ask<'_>) -> (u32, u32) {
    let op = ask.op;
    match op.kind {
        TextureKind::Load { bytes } => (bytes, op.targets.len() as u32),
        TextureKind::Store { bytes } => (bytes, op.further.len() as u32),
        TextureKind::Reduce { bytes, .. } => (bytes, 1),
        TextureKind::Sample { .. } | TextureKind::Gather { .. } | TextureKind::Query(_) => (0, 0),
    }
}

/// The address of the first byte; `None` where it lies outside and that means zero.
pub fn place(object: &TextureObject, ask: &Ask<'_>) -> Result<Option<u64>, Wrong> {
    let level = &object.levels[0];
    let (size, count) = width(ask);
    let bytes = size * count;
    let [x, y, z] = ask.coordinates.map(|coordinate| i64::from(coordinate.cast_signed()));
    let geometry = ask.op.geometry;
    let (y, z) = match geometry.coordinates() {
        1 => (0, 0),
        2 => (y, 0),
        _ => (y, z),
    };
    let z = if geometry.has_layer() { i64::from(ask.layer.cast_signed()) } else { z };
    if x % i64::from(bytes.max(1)) != 0 {
        let detail = format!("byte {x} of a surface's row is not a multiple of {bytes}");
        return Err(Wrong::new(FaultKind::MisalignedAddress, detail));
    }
    let row = i64::from(level.extent[0]) * i64::from(object.format.bytes());
    let most =
        [row - i64::from(bytes), i64::from(level.extent[1]) - 1, i64::from(level.extent[2]) - 1];
    let asked = [x, y, z];
    let mut at = asked;
    if asked.iter().zip(most).any(|(&at, most)| at < 0 || at > most) {
        match ask.op.boundary {
            Boundary::Zero => return Ok(None),
            Boundary::Clamp if most[0] >= 0 => {
                for (at, most) in at.iter_mut().zip(most) {
                    *at = (*at).clamp(0, most);
                }
            }
            Boundary::Clamp | Boundary::Trap => {
                let [_, height, depth] = level.extent;
                let detail = format!(
                    "({x}, {y}, {z}) and {bytes} bytes lie outside of a surface of {row} bytes, \
                     {height} rows, \
                     {depth} layers"
                );
                return Err(Wrong::new(FaultKind::LaunchFailed, detail));
            }
        }
    }
    let [x, y, z] = at.map(i64::cast_unsigned);
    Ok(Some(level.start + x + y * level.row + z * level.plane))
}

/// Carries an operation out on the bytes of the surface's range, of which the first is at `start`.
pub fn access(
    surface: &mut [u8],
    start: u64,
    at: u64,
    ask: &Ask<'_>,
    touched: &mut Vec<(u64, u32)>,
) -> [[u8; 8]; 4] {
    let (size, count) = width(ask);
    touched.push((at, size * count));
    let offset = (at - start) as usize;
    let mut loaded = [[0; 8]; 4];
    let Some(bytes) = surface.get_mut(offset..offset + (size * count) as usize) else {
        return loaded;
    };
    let elements = bytes.chunks_exact_mut(size as usize);
    match ask.op.kind {
        TextureKind::Load { .. } => {
            for (into, element) in loaded.iter_mut().zip(elements) {
                into[..element.len()].copy_from_slice(element);
            }
        }
        TextureKind::Store { .. } => {
            for (element, value) in elements.zip(ask.further) {
                element.copy_from_slice(&value.to_le_bytes()[..size as usize]);
            }
        }
        TextureKind::Reduce { kind, signed, .. } => {
            let ty = match (size, signed) {
                (8, false) => AtomicType::U64,
                (8, true) => AtomicType::S64,
                (_, false) => AtomicType::U32,
                (_, true) => AtomicType::S32,
            };
            let op = AtomicOp {
                kind,
                ty,
                space: Space::Global,
                address: Source::None,
                offset: 0,
                b: Source::None,
                c: Source::None,
                target: Target::None,
            };
            for (element, &value) in elements.zip(ask.further) {
                let mut old = [0; 8];
                old[..element.len()].copy_from_slice(element);
                let new = combine(&op, u64::from_le_bytes(old), value, 0);
                element.copy_from_slice(&new.to_le_bytes()[..size as usize]);
            }
        }
        TextureKind::Sample { .. } | TextureKind::Gather { .. } | TextureKind::Query(_) => {}
    }
    loaded
}
