//! Kernels in their original form: alone on the device, as they were written.
//!
//! Such a launch waits until no other application has grids on the device, and all others wait for
//! it. Only where its application holds every SM and has no company the launch keeps to its
//! partition like any other, and others wait for their SMs ([`crate::machines`], `alone`).
//!
//! Nothing is seen of such a launch before its end. A kernel that looks at an abort flag gets a
//! control block for it. A cooperative launch gets eight zeroed bytes for its barrier: in that
//! block, or in the session's window where the kernel's own code keeps every access there.

use super::Launches;
use super::params::Hidden;
use super::spec::{Barrier, Form, Launch, Pending, Place, Run, Start};
use super::watchdog::Watch;
use crate::Fence;
use crate::turn::{Bug, Turn};
use partita_device::{AddressRange, Work};
use partita_model::control::{Gates, Shape};
use partita_model::{CudaResult, DeviceAddress};

/// Zeroed bytes of a barrier.
pub(crate) const BARRIER: [u8; 8] = [0; 8];

/// What a launch in its original form has.
pub(super) struct Original {
    /// A control block: its first bytes are the barrier of a cooperative launch, and the kernel may
    /// look at the abort flag.
    pub(super) workspace: Option<DeviceAddress>,
    /// The barrier, where it has to lie in the session's window.
    pub(super) barrier: Option<DeviceAddress>,
    /// Its application holds every SM. No SM changes hands before the launch is over.
    pub(super) keeps_to_partition: bool,
}

impl Pending {
    /// Whether the launch needs a barrier in its session's window: its own code goes there, and
    /// nowhere but into the window.
    pub(crate) fn needs_barrier_in_window(&self) -> bool {
        let uses = |form: &Form| matches!(form, Form::Original(o) if o.barrier == Barrier::Used);
        self.spec.kernel.fence == Fence::Code && uses(&self.form)
    }
}

impl Launches {
    /// Starts a launch in its original form. `barrier` is memory of the session's window for it,
    /// where it needs some.
    pub(crate) fn start_original(
        &mut self,
        turn: &mut Turn<'_>,
        (place, window): (Place, AddressRange),
        pending: Box<Pending>,
        barrier: Option<DeviceAddress>,
    ) -> Start {
        let Pending { mut spec, form } = *pending;
        let Form::Original(original) = form else {
            turn.bug(place.session, Bug::WrongForm(spec.id));
            return Start::Failed;
        };
        let mut workspace = None;
        if original.abort || original.barrier == Barrier::Used {
            // What the device adds to in a block is 0 at first, and the rest does not matter.
            let gates = Gates::default();
            let shape = Shape { grid: spec.grid, first: 0, end: 0, main_ctas: 0, gates: &gates };
            match self.blocks.acquire(turn.device, &shape) {
                Ok(block) => workspace = Some(block),
                Err(error) => {
                    let text = format!("no workspace for kernel `{}`: {error}", spec.kernel.name);
                    turn.fail(place.session, CudaResult::ERROR_OUT_OF_MEMORY, text);
                    return Start::Failed;
                }
            }
        }
        let block = workspace.map_or(0, |block| block.0);
        match original.barrier {
            Barrier::None => {}
            Barrier::Unused => spec.params.push(Hidden::Barrier, 0),
            Barrier::Used => {
                spec.params.push(Hidden::Barrier, barrier.map_or(block, |barrier| barrier.0));
            }
        }
        if original.abort {
            spec.params.push(Hidden::ControlBlock, block);
        }
        self.waiting.remove(&place.main);
        let keeps_to_partition = original.keeps_to_partition;
        self.took_off(place.application, keeps_to_partition);
        let access = workspace.map(|block| self.blocks.range(block));
        let work = Work::Launch(partita_device::GridSpec {
            cooperative: spec.cooperative && spec.kernel.is_machine_code,
            module: spec.module,
            kernel: original.entry,
            grid: spec.grid,
            block: spec.block,
            dynamic_shared: spec.dynamic_shared,
            // No other grid needs them.
            params: spec.params.take(),
            access: std::iter::once(window).chain(access).collect(),
        });
        let (id, watch) = (spec.id, Watch::new(turn.now()));
        let run = Run::Original(Original { workspace, barrier, keeps_to_partition });
        let (begun, outlook) = (None, None);
        let launch = Launch { place, spec, main_done: false, begun, outlook, watch, run };
        self.records.insert(id, Box::new(launch));
        Start::Submit(work)
    }
}
