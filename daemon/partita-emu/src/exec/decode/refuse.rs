//! What the emulated GPU refuses, and the remedy for the program.

use super::{Decoder, Refusal, Result};
use partita_ptx::{Form, FuncId, Mod, Op as P, Space as PtxSpace};

const CLUSTER: &str = "it needs a thread-block cluster, which the emulated GPU does not have; \
    launch without one, or \
                       build the kernel for compute_80";
const TENSOR_MAP: &str = "tensor maps are emulated for tiles only; copy tiles, or build the kernel \
    for compute_80";
const BLACKWELL: &str = "its tensor cores are those of Blackwell; build the kernel for compute_90a \
    or compute_80, where the same library uses `wgmma` or `mma.sync`";
const SPARSE: &str = "sparse matrices are not emulated; use the dense instruction";
const MULTIMEM: &str = "it needs several GPUs; use the library's path for one GPU";
const OTHER: &str = "build the kernel without it, or run it on a GPU";

/// The advice for a program that uses an unsupported instruction.
fn remedy(form: &Form, text: &str) -> &'static str {
    let cluster = form.has(Mod::Cluster) || form.has(Mod::Multicast);
    match form.op {
        P::Wgmma if text.contains(".sp.") => SPARSE,
        P::Tcgen05 => BLACKWELL,
        P::Tensormap => TENSOR_MAP,
        P::Cp if form.has(Mod::Tensor) => TENSOR_MAP,
        P::Mapa | P::Getctarank | P::Clusterlaunchcontrol => CLUSTER,
        P::Barrier if cluster => CLUSTER,
        P::Multimem => MULTIMEM,
        P::Mma | P::Wmma if text.contains(".sp.") || text.contains(".sp::") => SPARSE,
        _ if cluster || text.contains(PtxSpace::SharedCluster.text()) => CLUSTER,
        P::St | P::Red if form.has(Mod::Async) => CLUSTER,
        _ => OTHER,
    }
}

impl Decoder<'_> {
    /// Refuses the kernel because of an unsupported instruction.
    pub(super) fn unsupported<T>(&self, form: &Form) -> Result<T> {
        let text = self.module.text(form.text);
        self.refuse(format!(
            "`{text}` is not supported by the emulated GPU; {}",
            remedy(form, text)
        ))
    }

    /// Refuses the kernel because it calls a function without a definition.
    pub(super) fn unknown_function<T>(&self, name: &str) -> Result<T> {
        if name.starts_with("cuda") || name.starts_with("__cudaCDP") {
            return self.refuse(format!(
                "`call` of `{name}`: kernels cannot launch kernels or call the CUDA runtime on \
                 the emulated GPU; launch \
                 from the host"
            ));
        }
        self.refuse(format!(
            "`call` of `{name}`, which the module does not define; link the file that defines it \
             (`nvcc -rdc=true`, \
             or all functions in one file)"
        ))
    }

    /// Refuses a kernel that asks for a cluster of more than one CTA.
    pub(super) fn check_cluster(&self, id: FuncId) -> Result<()> {
        for directive in &self.module.func(id).directives {
            let name = self.module.text(directive.name);
            let wants = match name {
                "explicitcluster" => true,
                "reqnctapercluster" => directive.values.iter().any(|&extent| extent > 1),
                _ => false,
            };
            if wants {
                return Err(Refusal { line: self.line, what: format!("`.{name}`: {CLUSTER}") });
            }
        }
        Ok(())
    }
}
