//! Module images while they arrive, chunk by chunk.
//!
//! Chunks come in order and without gaps. Memory is taken as bytes arrive, never because a client
//! announces them, and all that a session has on the way is bounded.

use partita_model::request::ImageId;
use partita_model::{ImageKind, ImagePart};
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// The most bytes of a session's incomplete images.
const SESSION_BYTES: usize = 512 << 20;

/// The most incomplete images of a session.
const SESSION_IMAGES: usize = 64;

/// A module's image as the client sent it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Image {
    /// How it is packed.
    pub kind: ImageKind,
    /// Bytes after unpacking, as the client says.
    pub unpacked_bytes: u64,
    /// The image.
    pub bytes: Arc<[u8]>,
}

impl Hash for Image {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Images that differ only in `kind` are rare, so they may share a hash bucket.
        (self.unpacked_bytes, &self.bytes).hash(state);
    }
}

/// What is wrong with what a client sends.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UploadError {
    /// The handle is in use.
    #[error("{0} is announced a second time")]
    Taken(ImageId),
    /// The handle was not announced.
    #[error("{0} was not announced")]
    Unknown(ImageId),
    /// The chunk is out of order or exceeds the image.
    #[error("a chunk of {image} is at {offset} where {expected} was due, of {total} bytes in all")]
    Place {
        /// The image.
        image: ImageId,
        /// The chunk's offset in bytes.
        offset: u64,
        /// The expected offset in bytes.
        expected: u64,
        /// The image's size in bytes.
        total: u64,
    },
    /// The load came before the end of the image.
    #[error("{image} is to be loaded with {received} of {total} bytes")]
    Incomplete {
        /// The image.
        image: ImageId,
        /// Bytes received.
        received: u64,
        /// Bytes announced.
        total: u64,
    },
    /// The session exceeds a limit on incomplete images.
    #[error("more than {SESSION_IMAGES} images or {SESSION_BYTES} bytes of them are on the way")]
    TooMuch,
}

struct Upload {
    kind: ImageKind,
    total: u64,
    unpacked_bytes: u64,
    bytes: Vec<u8>,
}

/// The images of one session that are on the way.
#[derive(Default)]
pub struct Uploads {
    images: HashMap<ImageId, Upload>,
    bytes: usize,
}

impl Uploads {
    /// Bytes that have arrived of incomplete images.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Takes a part of an image.
    ///
    /// # Errors
    /// [`UploadError`].
    pub fn take(&mut self, part: ImagePart) -> Result<(), UploadError> {
        match part {
            ImagePart::Begin { image, kind, bytes, unpacked_bytes } => {
                self.begin(image, kind, bytes, unpacked_bytes)
            }
            ImagePart::Chunk { image, offset, data } => self.append(image, offset, &data),
        }
    }

    /// Announces an image.
    ///
    /// # Errors
    /// [`UploadError`].
    fn begin(
        &mut self,
        image: ImageId,
        kind: ImageKind,
        total: u64,
        unpacked_bytes: u64,
    ) -> Result<(), UploadError> {
        if self.images.contains_key(&image) {
            return Err(UploadError::Taken(image));
        }
        if self.images.len() >= SESSION_IMAGES {
            return Err(UploadError::TooMuch);
        }
        self.images.insert(image, Upload { kind, total, unpacked_bytes, bytes: Vec::new() });
        Ok(())
    }

    /// Takes a chunk.
    ///
    /// # Errors
    /// [`UploadError`].
    fn append(&mut self, image: ImageId, offset: u64, data: &[u8]) -> Result<(), UploadError> {
        let upload = self.images.get_mut(&image).ok_or(UploadError::Unknown(image))?;
        let expected = upload.bytes.len() as u64;
        let total = upload.total;
        if offset != expected || data.len() as u64 > total - expected {
            return Err(UploadError::Place { image, offset, expected, total });
        }
        if data.len() > SESSION_BYTES - self.bytes {
            return Err(UploadError::TooMuch);
        }
        self.bytes += data.len();
        upload.bytes.extend_from_slice(data);
        Ok(())
    }

    /// Takes a complete image out.
    ///
    /// # Errors
    /// [`UploadError`].
    pub fn finish(&mut self, image: ImageId) -> Result<Image, UploadError> {
        let upload = self.images.remove(&image).ok_or(UploadError::Unknown(image))?;
        self.bytes -= upload.bytes.len();
        let received = upload.bytes.len() as u64;
        if received != upload.total {
            return Err(UploadError::Incomplete { image, received, total: upload.total });
        }
        let Upload { kind, unpacked_bytes, bytes, .. } = upload;
        Ok(Image { kind, unpacked_bytes, bytes: bytes.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ImageId = ImageId(1);
    const B: ImageId = ImageId(2);

    #[test]
    fn chunks_make_an_image() {
        let mut uploads = Uploads::default();
        uploads.begin(A, ImageKind::PtxZstd, 5, 9).unwrap();
        uploads.begin(B, ImageKind::Ptx, 1, 1).unwrap();
        uploads.append(A, 0, b"abc").unwrap();
        uploads.append(B, 0, b"x").unwrap();
        uploads.append(A, 3, b"de").unwrap();
        let image = uploads.finish(A).unwrap();
        assert_eq!(
            (image.kind, image.unpacked_bytes, &image.bytes[..]),
            (ImageKind::PtxZstd, 9, &b"abcde"[..])
        );
        uploads.finish(B).unwrap();
        assert_eq!(uploads.bytes, 0);
    }

    #[test]
    fn lies_are_refused() {
        let mut uploads = Uploads::default();
        assert_eq!(uploads.append(A, 0, b"x"), Err(UploadError::Unknown(A)));
        assert_eq!(uploads.finish(A), Err(UploadError::Unknown(A)));
        uploads.begin(A, ImageKind::Ptx, 4, 4).unwrap();
        assert_eq!(uploads.begin(A, ImageKind::Ptx, 4, 4), Err(UploadError::Taken(A)));
        uploads.append(A, 0, b"ab").unwrap();
        for (offset, data) in [(0, &b"c"[..]), (3, b"c"), (2, b"cde"), (u64::MAX, b"c")] {
            let error = uploads.append(A, offset, data).unwrap_err();
            assert!(matches!(error, UploadError::Place { expected: 2, .. }), "{error}");
        }
        assert_eq!(
            uploads.finish(A),
            Err(UploadError::Incomplete { image: A, received: 2, total: 4 })
        );
        for handle in 0..SESSION_IMAGES as u64 {
            uploads.begin(ImageId(handle), ImageKind::Ptx, 1, 1).unwrap();
        }
        assert_eq!(uploads.begin(ImageId(99), ImageKind::Ptx, 1, 1), Err(UploadError::TooMuch));
    }
}
