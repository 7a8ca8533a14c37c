//! Several images that are to be linked, as one: a header and the image for each, one after the
//! other.
//!
//! | offset | field |
//! | --- | --- |
//! | 0 | `u32` how it is packed, as in a module's announcement |
//! | 4 | `u32` zero |
//! | 8 | `u64` size |
//! | 16 | `u64` size when unpacked |
//!
//! The image follows. The daemon checks all of it again.

use super::Image;

/// The images as one, and the size of all when unpacked.
#[must_use]
pub fn bundle(images: &[Image<'_>]) -> (Vec<u8>, u64) {
    let mut bytes = Vec::new();
    for image in images {
        bytes.extend_from_slice(&image.kind.to_raw().to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&(image.bytes.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&image.unpacked_bytes.to_le_bytes());
        bytes.extend_from_slice(image.bytes);
    }
    let unpacked_bytes = images.iter().map(|image| image.unpacked_bytes);
    (bytes, unpacked_bytes.fold(0, u64::saturating_add))
}
