//! Reads fields at places that an untrusted image names.

use crate::CubinError;

/// The range of an image, or the error with the place where it would be.
pub(crate) fn range<'a>(
    image: &'a [u8],
    what: &str,
    at: u64,
    bytes: u64,
) -> Result<&'a [u8], CubinError> {
    let outside = || CubinError::Outside { what: what.to_owned(), at, bytes, image: image.len() };
    let start = usize::try_from(at).map_err(|_| outside())?;
    let end = usize::try_from(bytes)
        .ok()
        .and_then(|bytes| start.checked_add(bytes))
        .ok_or_else(outside)?;
    image.get(start..end).ok_or_else(outside)
}

/// A little-endian number of a record whose length was checked; 0 where it would lie past the
/// record's end.
pub(crate) fn u16_at(record: &[u8], at: usize) -> u16 {
    record
        .get(at..)
        .and_then(|rest| rest.first_chunk())
        .map_or(0, |bytes| u16::from_le_bytes(*bytes))
}

/// As [`u16_at`].
pub(crate) fn u32_at(record: &[u8], at: usize) -> u32 {
    record
        .get(at..)
        .and_then(|rest| rest.first_chunk())
        .map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// As [`u16_at`].
pub(crate) fn u64_at(record: &[u8], at: usize) -> u64 {
    record
        .get(at..)
        .and_then(|rest| rest.first_chunk())
        .map_or(0, |bytes| u64::from_le_bytes(*bytes))
}
