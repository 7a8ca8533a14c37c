//! Modules of machine code: nothing is rewritten, so all that can be prepared is what the engine
//! must know of the kernels.
//!
//! They keep to their application's SMs only where the device keeps them there. It is not known
//! whether a module's variables exist once or once for each of the contexts that it launches in, so
//! kernels of a module that keeps anything from one launch to the next run alone, in the one
//! context that everything else is in. The variables lie where the driver has put them, outside of
//! the window: copies reach them by name, and no kernel that is fenced.

use crate::prepare::{KernelShape, Prepared, Target, refused};
use partita_cubin::Cubin;
use partita_engine::{
    Fence, KernelForm, PrepareError, PreparedKernel, PreparedModule, RegisterBound,
};
use partita_model::ParamLayout;
use partita_model::{CudaResult, Sharing};
use std::sync::Arc;

/// What a device does with machine code.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MachineCode {
    /// The device does not run machine code.
    #[default]
    Refused,
    /// The device runs machine code on all SMs.
    Alone,
    /// The device confines machine code to groups of SMs.
    OnGroups,
}

/// Reads an image and chooses the forms of its kernels.
pub(crate) fn prepare(image: &[u8], target: Target) -> Result<Prepared, PrepareError> {
    if target.machine_code == MachineCode::Refused {
        return Err(refused(
            CudaResult::ERROR_NO_BINARY_FOR_GPU,
            "this device runs no machine code: compile with PTX, for example \
             `nvcc -gencode arch=compute_75,code=compute_75`",
        ));
    }
    let invalid = |error: partita_cubin::CubinError| {
        refused(CudaResult::ERROR_INVALID_IMAGE, format!("machine code: {error}"))
    };
    let cubin = partita_cubin::read(image).map_err(invalid)?;
    let (form, word) = form(&cubin, target);
    let fence = match target.guards.cell_bits {
        Some(_) => Fence::None("it is machine code, to which no check can be added".to_owned()),
        None => Fence::Device,
    };
    let kernels: Vec<PreparedKernel> = cubin
        .kernels
        .iter()
        .map(|kernel| {
            let name: Arc<str> = kernel.name.as_str().into();
            PreparedKernel {
                entry: Arc::clone(&name),
                name,
                params: kernel
                    .params
                    .iter()
                    .map(|param| ParamLayout { offset: param.offset, bytes: param.size })
                    .collect(),
                param_bytes: kernel.param_bytes,
                form: form.clone(),
                registers: RegisterBound::Settled,
                fence: fence.clone(),
                hash: None,
                // Machine code is not analysed.
                awaits: false,
                follows: false,
                gives_up: false,
                hidden_shared: 0,
                handles: [].into(),
                loops: true,
                counting: None,
                slice: None,
                later: false,
            }
        })
        .collect();
    let shapes = vec![KernelShape { form: word, ..KernelShape::default() }; kernels.len()];
    let module = PreparedModule {
        ptx: "".into(),
        code: Some(image.into()),
        kernels,
        lines: None,
        later: None,
    };
    Ok(Prepared { module, shapes })
}

/// The form of the kernels, and its name in one word.
fn form(cubin: &Cubin, target: Target) -> (KernelForm, &'static str) {
    let alone = |reason: &str| {
        let reason = format!("machine code, {reason}");
        (KernelForm::Original { reason, workspace: false, abort: false }, "original")
    };
    if target.sharing != Sharing::Spatial {
        return alone("where nobody has SMs of its own");
    }
    if target.machine_code == MachineCode::Alone {
        return alone("and this GPU's driver parts no SMs: install driver 550 or newer");
    }
    if cubin.has_state || !cubin.variables.is_empty() {
        return alone("with variables of its module");
    }
    (KernelForm::MachineCode, "machine code")
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_device::Guards;

    /// A kernel `one` that uses variables.
    const WITH_STATE: &[u8] = include_bytes!("../../../kernels-ptx/partita-cubin/tests/one.cubin");
    /// A kernel `plain` that uses none.
    const PLAIN: &[u8] = include_bytes!("../../../kernels-ptx/partita-cubin/tests/plain.cubin");

    fn target(machine_code: MachineCode) -> Target {
        Target { machine_code, ..Target::from(Sharing::Spatial) }
    }

    #[test]
    fn kernels_have_the_layout_of_the_image() {
        let prepared = prepare(PLAIN, target(MachineCode::OnGroups)).unwrap();
        let [kernel] = &prepared.module.kernels[..] else { panic!("{prepared:?}") };
        assert_eq!((&*kernel.name, kernel.param_bytes), ("plain", 16));
        assert_eq!(
            kernel.params,
            [ParamLayout { offset: 0, bytes: 8 }, ParamLayout { offset: 8, bytes: 8 }]
        );
        assert_eq!((&kernel.form, &kernel.fence), (&KernelForm::MachineCode, &Fence::Device));
        assert_eq!(prepared.module.code.as_deref(), Some(PLAIN));
        let guards = Guards { cell_bits: Some(40), ends: true, prints: false, contains: false };
        let fenced = prepare(PLAIN, Target { guards, ..target(MachineCode::OnGroups) }).unwrap();
        assert!(matches!(&fenced.module.kernels[0].fence,
                Fence::None(why) if why.contains("machine code")));
    }

    #[test]
    fn what_cannot_be_kept_to_sms_runs_alone() {
        let check = |image: &[u8], target: Target, words: &str| {
            let prepared = prepare(image, target).unwrap();
            let KernelForm::Original { reason, .. } = &prepared.module.kernels[0].form else {
                panic!("{prepared:?}")
            };
            assert!(reason.starts_with("machine code") && reason.contains(words), "{reason}");
        };
        check(WITH_STATE, target(MachineCode::OnGroups), "variables");
        check(PLAIN, target(MachineCode::Alone), "driver 550");
        let others = Target { sharing: Sharing::Mps, ..target(MachineCode::OnGroups) };
        check(PLAIN, others, "nobody has SMs");
    }

    #[test]
    fn refusals_name_the_remedy_or_the_place() {
        let check = |image: &[u8], machine_code, code: CudaResult, words: &str| {
            let error = prepare(image, target(machine_code)).unwrap_err();
            assert_eq!(error.code, code);
            assert!(error.text.contains(words), "{error}");
        };
        check(PLAIN, MachineCode::Refused, CudaResult::ERROR_NO_BINARY_FOR_GPU, "-gencode");
        let cut = &PLAIN[..PLAIN.len() - 1];
        check(cut, MachineCode::OnGroups, CudaResult::ERROR_INVALID_IMAGE, "outside of an image");
    }
}
