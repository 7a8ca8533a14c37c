//! What the emulated GPU refuses, and the remedy for the program.

use super::{Decoder, Result};
use partita_ptx::{Form, Mod, Op as P};

const TENSOR_MAP: &str = "wide columns are those of Blackwell; build the kernel for compute_90a or \
    compute_80";
const BLACKWELL: &str = "sparse products, shifted factors, masks of columns and packed sources are \
    not among what it knows of Blackwell's tensor cores; build the kernel for compute_90a or \
    compute_80, where the same library uses `wgmma` or `mma.sync`";
const MULTIMEM: &str = "it needs several GPUs; use the library's path for one GPU";
const OTHER: &str = "build the kernel without it, or run it on a GPU";

/// The advice for a program that uses an unsupported instruction.
fn remedy(form: &Form) -> &'static str {
    match form.op {
        P::Tcgen05 => BLACKWELL,
        P::Cp if form.has(Mod::Tensor) => TENSOR_MAP,
        P::Multimem => MULTIMEM,
        _ => OTHER,
    }
}

impl Decoder<'_> {
    /// Refuses the kernel because of an unsupported instruction.
    pub(super) fn unsupported<T>(&self, form: &Form) -> Result<T> {
        let text = self.module.text(form.text);
        self.refuse(format!("`{text}` is not supported by the emulated GPU; {}", remedy(form)))
    }

    /// Refuses the kernel because it calls a function without a definition.
    pub(super) fn unknown_function<T>(&self, name: &str) -> Result<T> {
        if name.starts_with("cuda") || name.starts_with("__cudaCDP") {
            return self.refuse(format!(
                "`call` of `{name}`: Partita has no such function for kernels; call it from the \
                 host"
            ));
        }
        self.refuse(format!(
            "`call` of `{name}`, which the module does not define; link the file that defines it \
             (`nvcc -rdc=true`, \
             or all functions in one file)"
        ))
    }
}
