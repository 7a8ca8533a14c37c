//! Runs one launch in the form that a lane gives it, disturbed at random moments.

use super::lane::{Lane, Recorded, STREAMS};
use partita_bench::Random;
use partita_emu::direct::{control_block, open_gates};
use partita_model::control::{self, Gates};
use partita_model::{DeviceAddress, Dim3, SmId, SmSet};
use partita_ptx::{KernelForm, Pass, Rewrite};

/// Times that a partition changes while a launch runs.
const DISTURBANCES: u32 = 12;

/// Runs a launch. `task` is what a worker claims at once; beyond so many warp instructions it
/// counts as endless.
pub fn run(
    lane: &mut Lane,
    launch: &Recorded,
    task: u32,
    random: &mut Random,
    warp_instructions: u64,
) -> Result<(), String> {
    let mut params = launch.params.clone();
    for offset in lane.added(launch.module, &launch.kernel, Pass::Fence) {
        put(&mut params, offset, &lane.cell(launch.module).to_le_bytes());
    }
    if let [offset] = lane.added(launch.module, &launch.kernel, Pass::Count)[..] {
        // A block of zeros: no room for samples.
        lane.put_control(&[0; 4096])?;
        put(&mut params, offset, &lane.control.0.to_le_bytes());
    }
    let slice = lane.added(launch.module, &launch.kernel, Pass::Slice);
    let Some(rewrite) = lane.rewrite(launch.module, &launch.kernel) else {
        match slice[..] {
            [first, width, height, depth] => {
                let Dim3 { x, y, z } = launch.grid;
                for (offset, extent) in [(width, x), (height, y), (depth, z)] {
                    put(&mut params, offset, &extent.to_le_bytes());
                }
                slices(lane, launch, params, first, random)?;
            }
            _ => lane.launch(0, launch, params)?,
        }
        return lane.settle(warp_instructions);
    };
    let (form, offset, each) = (rewrite.form, rewrite.control_offset, claimed(launch, rewrite)?);
    let sms = lane.sms();
    let total = u64::try_from(launch.grid.count()).map_err(|error| error.to_string())?;
    let main = 1 + random.below(total.min(3 * u64::from(sms)));
    let main = u32::try_from(main).map_err(|error| error.to_string())?;
    // CTAs that may wait for others start in order.
    let in_order = lane.awaits(launch.module, &launch.kernel);
    let by_place = form == KernelForm::Worker && random.below(2) == 0 && !in_order;
    lane.put_control(&control_block((launch.grid, launch.cluster), task, main, sms, by_place))?;
    let gates = open_gates(launch.grid, task, main, sms, by_place);
    let mut grids = Grids { launch, params, offset, each, lane, gates };
    match form {
        KernelForm::Worker => grids.enqueue(0, main, false)?,
        KernelForm::Ticket => grids.enqueue(0, 1 + main / 2, false)?,
    }
    for _ in 0..DISTURBANCES {
        if grids.lane.control_word(control::COMPLETED) >= total {
            break;
        }
        let allowed = some_of(sms, || random.below(2) == 0);
        let stalled = some_of(sms, || random.below(4) == 0);
        grids.permit(&allowed, &stalled)?;
        let ctas = u32::try_from(1 + random.below(u64::from(sms) * 2))
            .map_err(|error| error.to_string())?;
        grids.enqueue(1 + random.below(STREAMS - 1), ctas, true)?;
        grids.lane.advance(200 + random.below(4000));
    }
    grids.permit(&SmSet::range(0, sms), &SmSet::EMPTY)?;
    for _ in 0..total + 1 {
        grids.enqueue(1, u32::from(sms), true)?;
        grids.lane.settle(warp_instructions)?;
        if grids.lane.control_word(control::COMPLETED) >= total {
            return check_telemetry(lane, total);
        }
    }
    Err("waves of tickets complete nothing more".to_owned())
}

/// The SMs for which `is_one` holds, in turn.
fn some_of(sms: u16, mut is_one: impl FnMut() -> bool) -> SmSet {
    let mut some = SmSet::EMPTY;
    for sm in (0..sms).map(SmId) {
        if is_one() {
            some.insert(sm);
        }
    }
    some
}

/// Enqueues a launch in consecutive slices of random sizes. `first` is the offset of the parameter
/// in which a slice finds its first CTA.
fn slices(
    lane: &mut Lane,
    launch: &Recorded,
    mut params: Vec<u8>,
    first: u64,
    random: &mut Random,
) -> Result<(), String> {
    let total = u64::try_from(launch.grid.count()).map_err(|error| error.to_string())?;
    let mut begin = 0;
    while begin < total {
        let ctas = (1 + random.below(total / 2 + 1)).min(total - begin);
        put(&mut params, first, &begin.to_le_bytes());
        let grid = Dim3::linear(u32::try_from(ctas).map_err(|error| error.to_string())?);
        lane.launch(0, &Recorded { grid, ..launch.clone() }, params.clone())?;
        begin += ctas;
    }
    Ok(())
}

/// Runs the CTAs of a launch one by one in this order, by tickets that find no other.
pub fn run_in_order(
    lane: &mut Lane,
    launch: &Recorded,
    ctas: &[u64],
    warp_instructions: u64,
) -> Result<(), String> {
    let Some(rewrite) = lane.rewrite(launch.module, &launch.kernel) else {
        return Err("it takes no tickets".to_owned());
    };
    let (offset, each) = (rewrite.control_offset, claimed(launch, rewrite)?);
    lane.put_control(&control_block((launch.grid, launch.cluster), 1, 1, lane.sms(), false))?;
    let gates = open_gates(launch.grid, 1, 1, lane.sms(), false);
    let mut grids = Grids { launch, params: launch.params.clone(), offset, each, lane, gates };
    // Whole clusters claim.
    for cta in ctas.iter().filter(|cta| cta.is_multiple_of(each.into())) {
        grids
            .lane
            .write(DeviceAddress(grids.lane.control.0 + control::NEXT), &cta.to_le_bytes())?;
        grids.enqueue(0, each, false)?;
        grids.lane.settle(warp_instructions)?;
    }
    Ok(())
}

/// Every CTA is complete, once, and whoever came has left.
fn check_telemetry(lane: &mut Lane, total: u64) -> Result<(), String> {
    let completed = lane.control_word(control::COMPLETED);
    let (mut came, mut left) = (0, 0);
    for sm in 0..u64::from(lane.sms()) {
        let slot = control::SLOTS + sm * control::SLOT_BYTES;
        came += lane.control_word(slot + control::SLOT_REGISTERED) & u64::from(u32::MAX);
        left += lane.control_word(slot + control::SLOT_LEFT) & u64::from(u32::MAX);
    }
    if completed == total && came == left {
        return Ok(());
    }
    Err(format!("{completed} of {total} CTAs are complete; {came} came and {left} left"))
}

/// CTAs that claim together: a whole cluster of a kernel that knows clusters.
fn claimed(launch: &Recorded, rewrite: &Rewrite) -> Result<u32, String> {
    match rewrite.clusters {
        true => u32::try_from(launch.cluster.count()).map_err(|error| error.to_string()),
        false => Ok(1),
    }
}

struct Grids<'a> {
    launch: &'a Recorded,
    params: Vec<u8>,
    /// Of the control block's address among the parameters.
    offset: u64,
    /// CTAs that claim together.
    each: u32,
    lane: &'a mut Lane,
    gates: Gates,
}

impl Grids<'_> {
    /// One grid of the form, a helper beside the main one where it is for workers.
    fn enqueue(&mut self, stream: u64, ctas: u32, helper: bool) -> Result<(), String> {
        let mut params = self.params.clone();
        let control = self.lane.control.0 | u64::from(helper);
        put(&mut params, self.offset, &control.to_le_bytes());
        let (grid, cluster) = (ctas.next_multiple_of(self.each), Dim3::linear(self.each));
        let grid = Recorded { grid: Dim3::linear(grid), cluster, ..self.launch.clone() };
        self.lane.launch(stream, &grid, params)
    }

    /// Where the launch may claim, and where it waits.
    fn permit(&mut self, allowed: &SmSet, stalled: &SmSet) -> Result<(), String> {
        for sm in self.gates.permit(allowed, stalled) {
            let gate = DeviceAddress(self.lane.control.0 + control::gate_at(sm));
            self.lane.write(gate, &self.gates.word(sm).to_le_bytes())?;
        }
        Ok(())
    }
}

/// Puts a value among parameters, which grow where they end before it.
fn put(params: &mut Vec<u8>, offset: u64, value: &[u8]) {
    let Ok(offset) = usize::try_from(offset) else { return };
    params.resize(params.len().max(offset + value.len()), 0);
    params[offset..offset + value.len()].copy_from_slice(value);
}
