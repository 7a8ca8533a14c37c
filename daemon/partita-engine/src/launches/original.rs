//! Kernels in their original form: alone on the device, as they were written.
//!
//! Such a launch waits until no other application has grids on the device, and all others wait for
//! it. A short launch may keep to its partition instead, like any other: where its application
//! holds every SM, or where the device keeps the launch to the application's SMs
//! ([`crate::machines`], `as_written`).
//!
//! Nothing is seen of such a launch before its end. A kernel that looks at an abort flag gets a
//! control block for it. A cooperative launch gets eight zeroed bytes for its barrier: in that
//! block, or in the session's window where the kernel's own code keeps every access there.

use super::Launches;
use super::confinement::launch_on;
use super::params::Hidden;
use super::spec::{Barrier, Form, Launch, Pending, Place, Run, Spec, Start};
use super::watchdog::Watch;
use crate::Fence;
use crate::turn::{Bug, Turn};
use partita_device::AddressRange;
use partita_model::control::{Gates, Shape};
use partita_model::{CudaResult, DeviceAddress, SmSet};

/// Zeroed bytes of a barrier.
pub(crate) const BARRIER: [u8; 8] = [0; 8];

/// What a launch in its original form has.
pub(super) struct Original {
    /// A control block: its first bytes are the barrier of a cooperative launch, and the kernel may
    /// look at the abort flag.
    pub(super) workspace: Option<DeviceAddress>,
    /// Whether the launch has left the block as it got it.
    pub(super) is_blank: bool,
    /// The barrier, where it has to lie in the session's window.
    pub(super) barrier: Option<DeviceAddress>,
    /// The SMs that it keeps to. None of them changes hands before the launch is over.
    pub(super) keeps_to: Option<SmSet>,
    /// It is a slice of the program's launch ([`super::slice`]).
    pub(super) is_slice: bool,
}

impl Pending {
    /// Whether the launch needs a barrier in its session's window: its own code goes there, and
    /// nowhere but into the window.
    pub(crate) fn needs_barrier_in_window(&self) -> bool {
        let uses = |form: &Form| matches!(form, Form::Original(o) if o.barrier == Barrier::Used);
        matches!(self.spec.kernel.fence, Fence::Code | Fence::Uncontained(_)) && uses(&self.form)
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
            let needs_barrier = original.barrier == Barrier::Used;
            workspace = self.workspace(turn, place, &spec, needs_barrier);
            if workspace.is_none() {
                return Start::Failed;
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
        self.waiting.remove(place.main);
        let keeps_to = original.keeps_to;
        self.took_off(turn, place.application, keeps_to.is_some());
        let access = workspace.map(|block| self.blocks.range(block));
        let grid = partita_device::GridSpec {
            cooperative: spec.cooperative && spec.kernel.is_machine_code,
            cluster: spec.cluster,
            module: spec.module,
            kernel: original.entry,
            grid: spec.grid,
            block: spec.block,
            dynamic_shared: spec.dynamic_shared,
            // No other grid needs them.
            params: spec.params.take(),
            access: std::iter::once(window).chain(access).collect(),
        };
        let kept_to =
            keeps_to.filter(|sms| usize::from(sms.len()) < usize::from(turn.facts().sm_count));
        let work = launch_on(kept_to, grid);
        let (id, watch) = (spec.id, Watch::new(turn.now()));
        let run = Run::Original(Original {
            workspace,
            is_blank: false,
            barrier,
            keeps_to,
            is_slice: false,
        });
        let (begun, outlook) = (None, None);
        let launch = Launch { place, spec, main_done: false, begun, outlook, watch, run };
        self.records.insert(id, Box::new(launch));
        Start::Submit(work)
    }

    /// A control block of which only the barrier and the abort flag matter. `None`: there is none,
    /// and the session fails.
    pub(super) fn workspace(
        &mut self,
        turn: &mut Turn<'_>,
        place: Place,
        spec: &Spec,
        needs_barrier: bool,
    ) -> Option<DeviceAddress> {
        if !needs_barrier && let Some(blank) = self.blocks.take_blank(place.session) {
            return Some(blank);
        }
        // What the device adds to in a block is 0 at first, and the rest does not matter.
        let gates = Gates::default();
        let shape = Shape {
            grid: spec.grid,
            cluster: spec.cluster,
            first: 0,
            end: 0,
            main_ctas: 0,
            gates: &gates,
        };
        match self.blocks.acquire(turn.device, &shape) {
            Ok(block) => Some(block),
            Err(error) => {
                let text = format!("no workspace for kernel `{}`: {error}", spec.kernel.name);
                turn.fail(place.session, CudaResult::ERROR_OUT_OF_MEMORY, text);
                None
            }
        }
    }
}
