//! What a launch of a form needs, which a daemon looks at in its place.

use super::{DirectError, MODULE, Run};
use crate::gpu::EmulatedGpu;

/// Refuses a launch that has no room for the words of its guards. Only here they are told from the
/// program's own shared memory.
pub(super) fn guards(gpu: &EmulatedGpu, run: &Run, hidden: u32) -> Result<(), DirectError> {
    let program = gpu.program(MODULE, &run.kernel);
    let fixed = program.map_or(0, |program| u64::from(program.static_shared));
    let shared = fixed + u64::from(run.dynamic_shared) + u64::from(hidden);
    let most = gpu.spec().shared_per_cta_optin_bytes;
    if hidden == 0 || shared <= most {
        return Ok(());
    }
    let reason = format!(
        "{shared} bytes of shared memory per CTA, {hidden} of them for its guards; this GPU has \
         {most}"
    );
    Err(DirectError::Refused { name: run.kernel.clone(), reason })
}

/// Refuses handles of texture and surface objects: a kernel that is run by itself has none.
pub(super) fn handles(run: &Run, places: &[u64], params: &[u8]) -> Result<(), DirectError> {
    let bytes = |at: u64| params.get(usize::try_from(at).ok()?..)?.first_chunk::<8>();
    let is_none = |at: &&u64| bytes(**at).is_none_or(|bytes| *bytes != [0; 8]);
    let Some(at) = places.iter().find(is_none) else { return Ok(()) };
    let reason = format!(
        "byte {at} of its parameters begins the handle of a texture or surface object, and a \
         kernel that is run by itself has none"
    );
    Err(DirectError::Refused { name: run.kernel.clone(), reason })
}
