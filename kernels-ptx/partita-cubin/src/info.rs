//! Tables of attributes, `.nv.info` and `.nv.info.NAME`.

use crate::bytes::{u16_at, u32_at};
use crate::{CubinError, Param};
use std::collections::BTreeMap;

pub(crate) const MAX_BLOCK: u8 = 0x05;
pub(crate) const REQUIRED_BLOCK: u8 = 0x10;
pub(crate) const FRAME: u8 = 0x11;
pub(crate) const PARAM: u8 = 0x17;
/// A parameter of a kernel whose parameters take more than 4,096 bytes.
pub(crate) const LARGE_PARAM: u8 = 0x45;
pub(crate) const PARAM_BYTES: u8 = 0x19;
pub(crate) const REGISTERS: u8 = 0x2f;

/// A value of 16 bits follows in place.
const IN_PLACE: std::ops::RangeInclusive<u8> = 1..=3;
/// A size of 16 bits follows, and then as many bytes.
const SIZED: u8 = 4;

/// One attribute.
pub(crate) struct Attribute<'a> {
    pub(crate) name: u8,
    /// The value of a format with the value in place.
    value: u16,
    /// The bytes of the format with a size.
    payload: &'a [u8],
}

impl Attribute<'_> {
    /// Its first words.
    pub(crate) fn words<const N: usize>(&self, what: &str) -> Result<[u32; N], CubinError> {
        if self.payload.len() < 4 * N {
            return Err(CubinError::Value {
                what: format!("the size of {what}"),
                value: self.payload.len() as u64,
            });
        }
        Ok(std::array::from_fn(|at| u32_at(self.payload, 4 * at)))
    }
}

/// The attributes of a table, one after the other. After an error there is none.
pub(crate) fn attributes(
    mut table: &[u8],
) -> impl Iterator<Item = Result<Attribute<'_>, CubinError>> {
    std::iter::from_fn(move || {
        let (head, rest) = match table.split_first_chunk::<4>() {
            Some(split) => split,
            None if table.is_empty() => return None,
            None => {
                let value = table.len() as u64;
                table = &[];
                return Some(Err(CubinError::Value {
                    what: "the rest of a table of attributes".to_owned(),
                    value,
                }));
            }
        };
        let [format, name, ..] = *head;
        let value = u16_at(head, 2);
        let size = if format == SIZED { usize::from(value) } else { 0 };
        if (!IN_PLACE.contains(&format) && format != SIZED) || size > rest.len() {
            table = &[];
            let what = format!("the size of attribute {name:#x}, of format {format},");
            return Some(Err(CubinError::Value { what, value: value.into() }));
        }
        let (payload, after) = rest.split_at(size);
        table = after;
        Some(Ok(Attribute { name, value, payload }))
    })
}

/// The attributes of a kernel's table.
#[derive(Default)]
pub(crate) struct Attributes {
    /// The parameters by number.
    pub(crate) params: BTreeMap<u16, Param>,
    pub(crate) param_bytes: u32,
    pub(crate) max_block: Option<[u32; 3]>,
    pub(crate) required_block: Option<[u32; 3]>,
}

pub(crate) fn kernel(name: &str, table: &[u8]) -> Result<Attributes, CubinError> {
    let mut found = Attributes::default();
    for attribute in attributes(table) {
        let attribute = attribute?;
        let what = || format!("an attribute of kernel `{name}`");
        match attribute.name {
            PARAM | LARGE_PARAM => {
                let [_, place, kind] = attribute.words(&what())?;
                let [ordinal, offset] = [place & 0xffff, place >> 16]
                    .map(|half| u16::try_from(half).unwrap_or(u16::MAX));
                let size = if attribute.name == PARAM { kind >> 18 } else { kind & 0xffff };
                let param = Param { offset: offset.into(), size };
                if found.params.insert(ordinal, param).is_some() {
                    let what = format!("kernel `{name}`: the number of a second parameter");
                    return Err(CubinError::Value { what, value: ordinal.into() });
                }
            }
            PARAM_BYTES => found.param_bytes = attribute.value.into(),
            MAX_BLOCK => found.max_block = Some(attribute.words(&what())?),
            REQUIRED_BLOCK => found.required_block = Some(attribute.words(&what())?),
            _ => {}
        }
    }
    Ok(found)
}
