//! `partita ptx explain` of an image of machine code: nothing of it is rewritten, so there is only
//! how its kernels run on a real GPU.

use crate::failure::Failure;
use partita_cubin::Cubin;
use partita_engine::{KernelForm, Purpose};
use partita_gpu::machine_code::MachineCode;
use partita_gpu::prepare::{Target, prepare};
use partita_gpu::uploads::Image;
use partita_model::ImageKind;
use partita_model::Sharing;
use serde::Serialize;
use std::fmt::Write;

/// How such an image begins.
pub const START: &[u8] = b"\x7fELF";

/// What is said of an image. The field names are those of the JSON.
#[derive(Serialize)]
struct Explanation {
    file: String,
    architecture: u32,
    kernels: Vec<KernelExplanation>,
}

#[derive(Serialize)]
struct KernelExplanation {
    name: String,
    /// `machine code, green context`, or `original` where it runs alone.
    form: &'static str,
    /// Why it runs alone, where it does.
    reason: Option<String>,
    parameters: usize,
    parameter_bytes: u32,
    static_shared_bytes: u64,
    registers: u32,
    /// The largest CTA that its directives allow, where they say one.
    max_threads: Option<u64>,
}

/// Explains an image.
pub fn explain(file: &str, image: &[u8], json: bool) -> Result<Vec<u8>, Failure> {
    let cubin =
        partita_cubin::read(image).map_err(|error| Failure::new(format!("{file}: {error}")))?;
    let target = Target { machine_code: MachineCode::OnGroups, ..Target::from(Sharing::Spatial) };
    let whole =
        Image { kind: ImageKind::Cubin, unpacked_bytes: image.len() as u64, bytes: image.into() };
    let prepared = prepare(&whole, target, &Purpose::Run)
        .map_err(|error| Failure::new(format!("{file}: {error}")))?;
    let forms = prepared.module.kernels.iter().map(|kernel| match &kernel.form {
        KernelForm::Original { reason, .. } => ("original", Some(reason.clone())),
        _ => ("machine code, green context", None),
    });
    let explanation = describe(file, &cubin, forms);
    if json {
        let mut text = serde_json::to_string_pretty(&explanation)?;
        text.push('\n');
        return Ok(text.into_bytes());
    }
    Ok(render(&explanation).into_bytes())
}

fn describe(
    file: &str,
    cubin: &Cubin,
    forms: impl Iterator<Item = (&'static str, Option<String>)>,
) -> Explanation {
    let kernels =
        cubin.kernels.iter().zip(forms).map(|(kernel, (form, reason))| KernelExplanation {
            name: kernel.name.clone(),
            form,
            reason,
            parameters: kernel.params.len(),
            parameter_bytes: kernel.param_bytes,
            static_shared_bytes: kernel.shared_bytes,
            registers: kernel.registers,
            max_threads: kernel.max_threads(),
        });
    Explanation {
        file: file.to_owned(),
        architecture: cubin.architecture,
        kernels: kernels.collect(),
    }
}

fn render(explanation: &Explanation) -> String {
    let Explanation { file, architecture, kernels } = explanation;
    let plural = if kernels.len() == 1 { "" } else { "s" };
    let mut text =
        format!("{file}: machine code for sm_{architecture}, {} kernel{plural}\n", kernels.len());
    for kernel in kernels {
        let KernelExplanation { name, form, reason, parameters, parameter_bytes, .. } = kernel;
        let _ = write!(text, "\n{name}\n  form        {form}\n");
        if let Some(reason) = reason {
            let _ = writeln!(text, "              runs alone: {reason}");
        }
        let _ = writeln!(text, "  parameters  {parameters}, {parameter_bytes} B");
        let _ = writeln!(text, "  registers   {}", kernel.registers);
        let _ = writeln!(text, "  shared      {} B", kernel.static_shared_bytes);
        if let Some(threads) = kernel.max_threads {
            let _ = writeln!(text, "  CTA         at most {threads} threads");
        }
    }
    text.push_str(
        "\nOn a real GPU it needs `[[policy.unfenced]]` where tenants are parted; the emulated \
         GPU runs no machine code.\n",
    );
    text
}
