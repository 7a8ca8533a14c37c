//! A kernel of a loaded module: what the shell made of it and what the device says of it.

use crate::{Fence, KernelForm, ParamLayout, Slice};
use partita_device::KernelFacts;
use partita_model::{Dim3, ModuleId};
use std::sync::Arc;

/// One kernel of a loaded module.
#[derive(Clone)]
pub(crate) struct Kernel {
    /// The device's module that has its entries.
    pub(crate) module: ModuleId,
    /// The program's lines for those of that module's text.
    pub(crate) lines: Option<Arc<[u32]>>,
    /// Whether its form has still to be prepared ([`crate::PreparedKernel::later`]).
    pub(crate) later: bool,
    pub(crate) name: Arc<str>,
    pub(crate) entry: Arc<str>,
    pub(crate) params: Vec<ParamLayout>,
    pub(crate) param_bytes: u32,
    pub(crate) form: KernelForm,
    pub(crate) fence: Fence,
    /// Nobody has rewritten the kernel, whatever its form.
    pub(crate) is_machine_code: bool,
    pub(crate) facts: Result<KernelFacts, String>,
    /// Facts of the form's fallback, where it has one.
    pub(crate) fallback_facts: Option<Result<KernelFacts, String>>,
    /// Whether the kernel may wait for what others write.
    pub(crate) awaits: bool,
    /// Whether a task of the kernel is to be one CTA ([`crate::PreparedKernel::follows`]).
    pub(crate) follows: bool,
    /// Whether the control block may tell a fault ([`crate::PreparedKernel::gives_up`]).
    pub(crate) gives_up: bool,
    /// Dynamic shared memory of its guards ([`crate::PreparedKernel::hidden_shared`]).
    pub(crate) hidden_shared: u32,
    /// Where its parameters hold handles ([`crate::PreparedKernel::handles`]).
    pub(crate) handles: Arc<[u32]>,
    /// Whether the time of its CTAs has no bound that the code shows.
    pub(crate) loops: bool,
    /// A name for the kernel's code.
    pub(crate) hash: Option<Arc<str>>,
    /// The `slice` form beside its entries, and what the device says of it.
    pub(crate) slice: Option<Slice>,
    pub(crate) slice_facts: Option<Result<KernelFacts, String>>,
    /// The entry that counts, and what the device says of it.
    pub(crate) counting: Option<Arc<str>>,
    pub(crate) counting_facts: Option<Result<KernelFacts, String>>,
}

impl Kernel {
    /// The clusters that its code requires. Tickets that claim whole clusters have clusters of one
    /// dimension; the original beside them says which.
    pub(crate) fn required_cluster(&self) -> Option<Dim3> {
        let facts = match &self.form {
            KernelForm::Ticket { clusters: true, .. } => self.fallback_facts.as_ref()?,
            _ => &self.facts,
        };
        facts.as_ref().ok()?.required_cluster
    }
}
