//! Slices: a launch in consecutive ranges of its CTAs, each a grid of its own (Kernelet, TPDS '14,
//! section 4.1).
//!
//! Kernels run in slices that would run alone otherwise. A slice is alone on the device, as an
//! original is, and has the same turns and rests ([`super::turns`]). A turn ends with the slices in
//! flight when others wait, and these have their share of time before the next slice. Where there
//! are no rests, the launch takes a new ticket behind each slice, as if it had just come. So what
//! others have launched meanwhile goes between two slices.
//!
//! The launch stays at the head of its stream's queue until its last slice starts. Each slice has a
//! record of its own, so the limit of time for kernels that run alone holds for a slice.

use super::Launches;
use super::original::Original;
use super::params::Hidden;
use super::spec::{Form, Launch, Outlook, Pending, Place, Run, Start};
use super::watchdog::Watch;
use crate::observer::LONGEST_SLICE;
use crate::turn::{Bug, Turn};
use partita_device::{AddressRange, Fault, GridSpec, Work};
use partita_model::{Dim3, LaunchId, Nanos, OperationId};

/// The most CTAs of a grid of one dimension ("Technical Specifications per Compute Capability").
const MOST_CTAS: u64 = (1 << 31) - 1;

/// A slice that is to be submitted, and what is left of its launch.
pub(crate) struct Part {
    pub(crate) operation: OperationId,
    pub(crate) launch: LaunchId,
    pub(crate) work: Work,
    pub(crate) rest: Box<Pending>,
}

impl Launches {
    /// Whether a slice that is expected to take `time` has to wait for the end of what its session
    /// has in flight. Others wait for all of that: for two slices that take `longest`, one that
    /// runs and the next one behind it.
    pub(crate) fn is_ahead(
        &self,
        turn: &Turn<'_>,
        place: Place,
        (time, longest): (Option<Nanos>, Nanos),
    ) -> bool {
        let now = turn.now();
        let own = self.records.values().filter(|launch| {
            launch.place.session == place.session && !launch.is_confined() && !launch.main_done
        });
        let left = |launch: &Launch| {
            let time = launch.outlook.map_or(LONGEST_SLICE, |outlook| outlook.expected.time);
            time.saturating_sub(now.saturating_sub(launch.begun.unwrap_or(now)))
        };
        let add = |(count, sum), launch| (count + 1, sum + left(launch));
        let (count, sum) = own.map(Box::as_ref).fold((0, Nanos(0)), add);
        match (count, time) {
            (0, _) => false,
            (_, None) => true,
            (1, Some(time)) => sum + time > longest + longest,
            // So short that the device would wait for the host.
            (_, Some(time)) => sum + time > turn.config().ahead,
        }
    }

    /// Starts the next `ctas` CTAs of a launch. `place` is the launch's place in its stream, which
    /// the last slice takes.
    pub(crate) fn start_slice(
        &mut self,
        turn: &mut Turn<'_>,
        (place, window): (Place, AddressRange),
        mut rest: Box<Pending>,
        (ctas, outlook): (u64, Option<Outlook>),
    ) -> Start {
        let mut spec = rest.spec.clone();
        let ctas = ctas.min(spec.ctas()).min(MOST_CTAS);
        let ticket = rest.ticket(place.main);
        let Form::Slice(sliced) = &mut rest.form else {
            turn.bug(place.session, Bug::WrongForm(spec.id));
            return Start::Failed;
        };
        let workspace = match sliced.abort {
            true => match self.workspace(turn, place, &spec, false) {
                Some(block) => Some(block),
                None => return Start::Failed,
            },
            false => None,
        };
        spec.params.push_slice(spec.first, spec.grid);
        if let Some(block) = workspace {
            spec.params.push(Hidden::ControlBlock, block.0);
        }
        spec.end = spec.first + ctas;
        let is_last = spec.is_last();
        let mut own = place;
        if !is_last {
            spec.id = LaunchId(turn.next_id());
            own.main = OperationId(turn.next_id());
        }
        let access = workspace.map(|block| self.blocks.range(block));
        let grid = GridSpec {
            cooperative: false,
            cluster: Dim3::linear(1),
            module: spec.module,
            kernel: sliced.entry.clone(),
            grid: Dim3::new(u32::try_from(ctas).expect("bounded above"), 1, 1),
            block: spec.block,
            dynamic_shared: spec.dynamic_shared,
            params: spec.params.take(),
            access: std::iter::once(window).chain(access).collect(),
        };
        sliced.ticket = None;
        self.waiting.remove(ticket);
        self.took_off(turn, place.application, false);
        let (id, end, watch) = (spec.id, spec.end, Watch::new(turn.now()));
        let run = Run::Original(Original {
            workspace,
            is_blank: false,
            barrier: None,
            keeps_to: None,
            is_slice: true,
        });
        let launch =
            Launch { place: own, spec, main_done: false, begun: None, outlook, watch, run };
        self.records.insert(id, Box::new(launch));
        let work = Work::Launch(grid);
        if is_last {
            return Start::Submit(work);
        }
        rest.spec.first = end;
        Start::Part(Box::new(Part { operation: own.main, launch: id, work, rest }))
    }
}

impl Launch {
    /// A fault in terms of the program's grid, where the launch is a slice of it.
    pub(super) fn place_in_grid(&self, fault: &mut Fault) {
        if let (true, Some(position)) = (self.is_slice(), fault.position.as_mut()) {
            let at = self.spec.first + u64::from(position.cta.x);
            let (width, height) = (u64::from(self.spec.grid.x), u64::from(self.spec.grid.y));
            let [x, y, z] = [at % width, at / width % height, at / width / height]
                .map(|at| u32::try_from(at).unwrap_or(u32::MAX));
            position.cta = Dim3::new(x, y, z);
        }
    }
}
