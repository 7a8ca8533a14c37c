//! Images of modules on their way to the daemon.

use crate::request::ImageId;

/// The packing of a module's image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ImageKind {
    /// PTX text.
    Ptx,
    /// PTX text in a zstd frame.
    PtxZstd,
    /// PTX text as one LZ4 block.
    PtxLz4,
    /// An ELF file of machine code.
    Cubin,
    /// An ELF file of machine code in a zstd frame.
    CubinZstd,
    /// An ELF file of machine code as one LZ4 block.
    CubinLz4,
    /// Several images that are to be linked, each behind a header: `u32` kind, `u32` zero, `u64`
    /// size in bytes, `u64` size in bytes after unpacking.
    Bundle,
}

impl ImageKind {
    const ALL: [ImageKind; 7] = [
        ImageKind::Ptx,
        ImageKind::PtxZstd,
        ImageKind::PtxLz4,
        ImageKind::Cubin,
        ImageKind::Bundle,
        ImageKind::CubinZstd,
        ImageKind::CubinLz4,
    ];

    /// Whether the image is machine code.
    #[must_use]
    pub fn is_machine_code(self) -> bool {
        matches!(self, ImageKind::Cubin | ImageKind::CubinZstd | ImageKind::CubinLz4)
    }

    /// The kind with a number, if there is one.
    #[must_use]
    pub fn from_raw(number: u32) -> Option<ImageKind> {
        ImageKind::ALL.into_iter().find(|kind| kind.to_raw() == number)
    }

    /// The kind's number in records and bundles.
    #[must_use]
    pub fn to_raw(self) -> u32 {
        match self {
            ImageKind::Ptx => 1,
            ImageKind::PtxZstd => 2,
            ImageKind::PtxLz4 => 3,
            ImageKind::Cubin => 4,
            ImageKind::Bundle => 5,
            ImageKind::CubinZstd => 6,
            ImageKind::CubinLz4 => 7,
        }
    }
}

/// A part of a module's image on its way. Whoever gathers images takes it; the engine never sees
/// it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ImagePart<B = Vec<u8>> {
    /// Announces an image, which follows in chunks.
    Begin {
        /// The image's new name.
        image: ImageId,
        /// The packing.
        kind: ImageKind,
        /// Bytes to come.
        bytes: u64,
        /// Bytes after unpacking; equal to `bytes` where the image is not packed.
        unpacked_bytes: u64,
    },
    /// The next bytes of an image.
    Chunk {
        /// The image.
        image: ImageId,
        /// Offset in the image in bytes.
        offset: u64,
        /// The bytes, at least one.
        data: B,
    },
}
