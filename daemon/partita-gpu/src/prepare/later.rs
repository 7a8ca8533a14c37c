//! Forms that are prepared when a kernel is first launched: what is kept of a module for that, and
//! the kernel as a module of its own.

use super::{Bounds, Prepared, Target, prepare_within, refused};
use crate::uploads::Image;
use partita_engine::{Later, LoadedModule, PrepareError, Purpose, Source};
use partita_model::{CudaResult, ImageKind};
use partita_ptx::{Bound, Excerpt, Excerpts, FuncId, Kernel, Module};
use std::sync::Arc;

/// What is kept of a module whose kernels get their forms later.
pub(super) struct Kept {
    excerpts: Excerpts,
    /// The module's kernels; why one has to stay as it was written.
    kernels: Vec<Result<FuncId, Bound>>,
}

/// Keeps what forms of a module's kernels are prepared from.
pub(super) fn later(original: &Module, text: &str, kernels: &[Kernel]) -> Kept {
    let excerpts = Excerpts::of(original, text.into());
    let mut calls = partita_ptx::Calls::new(original);
    let kernels = kernels
        .iter()
        .map(|kernel| excerpts.check(&calls.reach(kernel.func).funcs).map(|()| kernel.func))
        .collect();
    Kept { excerpts, kernels }
}

impl Kept {
    /// Whether a kernel can have a form later.
    pub(super) fn check(&self, index: usize) -> Result<(), Bound> {
        self.kernels[index].map(|_| ())
    }

    /// For the engine to keep.
    pub(super) fn keep(self, room_bytes: u64) -> Later {
        Later { source: Source(Arc::new(self)), room_bytes }
    }
}

/// Bytes that are kept for forms to come.
pub(crate) fn kept_bytes(source: &Source) -> usize {
    source.0.downcast_ref::<Kept>().map_or(0, |kept| kept.excerpts.bytes())
}

/// One kernel of a module as an image of its own, and what leads from its lines to the module's.
///
/// # Errors
/// Where the kernel cannot leave its module.
pub(crate) fn alone(
    source: &Source,
    kernel: u32,
    loaded: &LoadedModule,
) -> Result<(Image, Excerpt), PrepareError> {
    let gone = || refused(CudaResult::ERROR_NOT_FOUND, "nothing is kept of the module's text");
    let kept = source.0.downcast_ref::<Kept>().ok_or_else(gone)?;
    let index = usize::try_from(kernel).ok();
    let id = *index.and_then(|index| kept.kernels.get(index)).ok_or_else(gone)?;
    let address_of = |name: &str| {
        let named = loaded.variables.iter().find(|variable| variable.name == name);
        named.map(|variable| variable.address.0)
    };
    let bound = |bound: Bound| refused(CudaResult::ERROR_NOT_SUPPORTED, bound.to_string());
    let mut excerpt = id.and_then(|id| kept.excerpts.kernel(id, address_of)).map_err(bound)?;
    let bytes = std::mem::take(&mut excerpt.text).into_bytes();
    let image =
        Image { kind: ImageKind::Ptx, unpacked_bytes: bytes.len() as u64, bytes: bytes.into() };
    Ok((image, excerpt))
}

/// The forms of a kernel, with the lines of its module.
pub(crate) fn placed(excerpt: &Excerpt, prepared: &Prepared) -> Prepared {
    let mut placed = prepared.clone();
    let lines = placed.module.lines.as_deref().unwrap_or_default();
    placed.module.lines = Some(lines.iter().map(|line| excerpt.source_line(*line)).collect());
    placed
}

/// Prepares the forms of one kernel of a module that the device has loaded.
///
/// # Errors
/// As [`super::prepare`]; and where the kernel cannot leave its module.
pub fn prepare_forms(
    source: &Source,
    kernel: u32,
    loaded: &LoadedModule,
    target: impl Into<Target>,
    purpose: &Purpose,
) -> Result<Prepared, PrepareError> {
    let (image, excerpt) = alone(source, kernel, loaded)?;
    let prepared = prepare_within(&image, target.into(), purpose, &Bounds::default())?;
    Ok(placed(&excerpt, &prepared))
}
