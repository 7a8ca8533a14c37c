//! What programs leave in their memory, and whether it is what they leave alone.
//!
//! [`alone`] runs an application's launches one after the other, as they were written, without
//! time. A run of [`crate::Run`] with `outputs` ends its launches and digests the same buffers
//! ([`Outputs`]). A buffer whose digest differs holds other words.
//!
//! Sums of floating-point numbers by atomics depend on the order of CTAs, alone too:
//! [`depends_on_order`] tells such programs, whose buffers say nothing. Variables of modules are
//! not compared.

use crate::application::Application;
use crate::outcome::RunError;
use partita_device::{AddressRange, Device, DeviceError, Event, GridSpec, Horizon, Outcome, Work};
use partita_emu::{EmulatedGpu, Options, Spec, Timing};
use partita_model::{DeviceAddress, ModuleId, OperationId, StreamId, WindowId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;

/// The alignment of buffers, in bytes.
const ALIGNMENT: u64 = 1 << 16;
const WINDOW: WindowId = WindowId(1);
const STREAM: StreamId = StreamId(1);

/// What an application left after some launches.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Outputs {
    /// Its launches, all of which have ended.
    pub launches: u64,
    /// The digest of each buffer.
    pub digests: Vec<u64>,
}

impl Outputs {
    /// The buffers that differ from `expected`, by their place.
    #[must_use]
    pub fn differences(&self, expected: &[u64]) -> Vec<usize> {
        let pairs = self.digests.iter().zip(expected).enumerate();
        pairs.filter(|(_, (one, other))| one != other).map(|(place, _)| place).collect()
    }
}

/// A buffer of an application, for people: its place, and the parameter through which a kernel
/// gets it.
#[must_use]
pub fn name_of(application: &Application, buffer: usize) -> String {
    let uses = application.pass.iter().find_map(|step| {
        let pointer = step.pointers.iter().position(|pointer| pointer.buffer == buffer)?;
        Some(format!(", pointer {pointer} of kernel `{}`", step.kernel))
    });
    format!("buffer {buffer} of {}{}", application.name, uses.unwrap_or_default())
}

/// Whether what an application leaves depends on the order of its CTAs: its modules add
/// floating-point numbers by atomics.
#[must_use]
pub fn depends_on_order(application: &Application) -> bool {
    let is_sum = |word: &str| {
        let parts: Vec<&str> = word.split('.').collect();
        let is_atomic = parts.first().is_some_and(|op| ["atom", "red"].contains(op));
        let is_float =
            |part: &&str| ["f16", "f32", "f64", "bf16"].iter().any(|kind| part.starts_with(kind));
        is_atomic && parts.contains(&"add") && parts.iter().any(is_float)
    };
    application.modules.iter().any(|text| text.split_whitespace().any(is_sum))
}

/// The digest of each buffer of an application that lies at these places. Addresses in a buffer
/// count as the same wherever buffers lie.
pub(crate) fn digests(
    device: &mut EmulatedGpu,
    application: &Application,
    places: &[u64],
) -> Result<Vec<u64>, DeviceError> {
    let digest = |(buffer, &place): (&crate::Buffer, &u64)| {
        let mut bytes = vec![0; usize::try_from(buffer.bytes).unwrap_or(usize::MAX)];
        device.peek(DeviceAddress(place), &mut bytes)?;
        for pointer in &buffer.pointers {
            let at = usize::try_from(pointer.at).unwrap_or(usize::MAX);
            let address = places.get(pointer.buffer).map_or(0, |place| place + pointer.offset);
            let found = bytes.get_mut(at..at.saturating_add(8));
            if let Some(word) = found.filter(|word| **word == address.to_le_bytes()) {
                word.fill(0);
            }
        }
        let mut hasher = DefaultHasher::new();
        hasher.write(&bytes);
        Ok(hasher.finish())
    };
    application.buffers.iter().zip(places).map(digest).collect()
}

/// What an application leaves after each of these numbers of launches, alone. `tell` hears of each
/// launch that has ended.
///
/// # Errors
/// Where it cannot be loaded or launched, or faults.
pub fn alone(
    application: &Application,
    spec: &Spec,
    counts: &BTreeSet<u64>,
    tell: &mut dyn FnMut(),
) -> Result<BTreeMap<u64, Vec<u64>>, RunError> {
    let mut found = BTreeMap::new();
    let failed = |reason: String| RunError { application: application.name.clone(), reason };
    let mut program = Program::new(application, spec).map_err(failed)?;
    for &count in counts {
        while program.ended < count {
            program.launch_up_to(program.ended + 1).map_err(failed)?;
            tell();
        }
        let digests = digests(&mut program.gpu, application, &program.places);
        found.insert(count, digests.map_err(|error| failed(error.to_string()))?);
    }
    Ok(found)
}

/// An application on a device of its own.
pub(crate) struct Program<'a> {
    pub(crate) gpu: EmulatedGpu,
    application: &'a Application,
    /// Where its buffers lie.
    pub(crate) places: Vec<u64>,
    window: AddressRange,
    /// Launches that have ended.
    ended: u64,
}

impl<'a> Program<'a> {
    /// Loads modules and makes memory.
    pub(crate) fn new(application: &'a Application, spec: &Spec) -> Result<Self, String> {
        if !application.variables.is_empty() {
            return Err("variables of modules are not set here".to_owned());
        }
        let text = |error: DeviceError| error.to_string();
        let options = Options { timing: Timing::Off, ..Options::default() };
        let mut gpu = EmulatedGpu::new(spec.clone(), options);
        let room = |bytes: u64| bytes.max(1).next_multiple_of(ALIGNMENT);
        let bytes: u64 = application.buffers.iter().map(|buffer| room(buffer.bytes)).sum();
        // Variables of modules lie in the window, too.
        let bytes = (bytes + (16 << 20)).next_power_of_two();
        let start = gpu.reserve(WINDOW, bytes).map_err(text)?;
        gpu.create_stream(STREAM).map_err(text)?;
        let mut places = Vec::new();
        let mut next = start.0;
        for buffer in &application.buffers {
            let range = AddressRange { start: DeviceAddress(next), bytes: buffer.bytes.max(1) };
            gpu.allocate(WINDOW, range).map_err(text)?;
            places.push(next);
            next += room(buffer.bytes);
        }
        for (buffer, place) in application.buffers.iter().zip(&places) {
            let mut contents = buffer.placed(&places);
            let bytes = usize::try_from(buffer.bytes).map_err(|error| error.to_string())?;
            contents.resize(bytes, 0);
            gpu.poke(DeviceAddress(*place), &contents).map_err(text)?;
        }
        for (id, module) in (0..).zip(&application.modules) {
            gpu.load_module(ModuleId(id), WINDOW, Arc::clone(module)).map_err(text)?;
        }
        let window = AddressRange { start, bytes };
        Ok(Program { gpu, application, places, window, ended: 0 })
    }

    /// Runs launches, in order, until `count` have ended.
    pub(crate) fn launch_up_to(&mut self, count: u64) -> Result<(), String> {
        let pass = &self.application.pass;
        while self.ended < count {
            let step = usize::try_from(self.ended % pass.len().max(1) as u64).unwrap_or(0);
            let step = pass.get(step).ok_or("no launches")?;
            if self.ended.is_multiple_of(pass.len() as u64) {
                self.restore()?;
            }
            let launch = GridSpec {
                cooperative: false,
                cluster: partita_model::Dim3::linear(1),
                module: ModuleId(step.module as u64),
                kernel: step.kernel.as_str().into(),
                grid: step.grid,
                block: step.block,
                dynamic_shared: step.dynamic_shared,
                params: step.placed(&self.places),
                access: vec![self.window],
            };
            self.gpu
                .enqueue(STREAM, OperationId(self.ended), Work::Launch(launch))
                .map_err(|error| error.to_string())?;
            self.wait()?;
            self.ended += 1;
        }
        Ok(())
    }

    /// Puts back what a pass must find as it was.
    fn restore(&mut self) -> Result<(), String> {
        for restored in &self.application.restored {
            let bytes = restored.of(self.application, &self.places);
            let bytes = bytes.ok_or("what is restored is not in its buffer")?;
            let to = DeviceAddress(self.places[restored.buffer] + restored.offset);
            self.gpu.poke(to, &bytes).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Waits for the end of the launch under way.
    fn wait(&mut self) -> Result<(), String> {
        loop {
            let mut events = Vec::new();
            self.gpu.poll(Horizon { until: None, warp_instructions: u64::MAX }, &mut events);
            if events.is_empty() {
                return Err("a launch never ends".to_owned());
            }
            for event in events {
                match event {
                    Event::Done { outcome: Outcome::Complete, .. } => return Ok(()),
                    Event::Done { outcome, .. } => return Err(format!("{outcome:?}")),
                    _ => {}
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Buffer, Param, Step};
    use partita_model::Dim3;

    /// A kernel whose each launch adds 1 to every word, by `add`.
    fn counter(add: &str) -> Application {
        let ptx = format!(
            "
.version 8.0
.target sm_75
.address_size 64
.visible .entry count(.param .u64 data)
{{
    .reg .b32 %r<4>;
    .reg .f32 %f1;
    .reg .b64 %d<3>;
    ld.param.u64 %d1, [data];
    mov.u32 %r2, %tid.x;
    mul.wide.u32 %d2, %r2, 4;
    add.u64 %d1, %d1, %d2;
    mov.f32 %f1, 0f3F800000;
    {add}
    ret;
}}
"
        );
        let step = Step::new("count", Dim3::linear(3), Dim3::linear(32), &[Param::Address(1)]);
        Application {
            name: "counter".to_owned(),
            modules: vec![ptx.into()],
            buffers: vec![Buffer::words([7]), Buffer::zeros(128)],
            pass: vec![step],
            ..Application::default()
        }
    }

    #[test]
    fn digests_tell_what_launches_left_and_buffers_have_names() {
        let spec = Spec::named("gpgpu-sim-24").unwrap();
        let application = counter("red.global.add.u32 [%d1], 1;");
        let found = {
            let mut told = 0;
            let found = alone(&application, &spec, &BTreeSet::from([1, 2]), &mut || told += 1);
            assert_eq!(told, 2, "each launch is told of once");
            found.unwrap()
        };
        let two = Outputs { launches: 2, digests: found[&2].clone() };
        assert_eq!(two.differences(&found[&2]), [0_usize; 0]);
        assert_eq!(two.differences(&found[&1]), [1]);
        assert_eq!(name_of(&application, 1), "buffer 1 of counter, pointer 0 of kernel `count`");
        assert_eq!(name_of(&application, 0), "buffer 0 of counter");
    }

    #[test]
    fn sums_of_floats_by_atomics_depend_on_the_order() {
        let check = |add: &str, expected| {
            assert_eq!(depends_on_order(&counter(add)), expected, "{add}");
        };
        check("red.global.add.u32 [%d1], 1;", false);
        check("red.global.add.f32 [%d1], %f1;", true);
        check("atom.relaxed.gpu.global.add.noftz.f16x2 %r1, [%d1], %r2;", true);
        check("ld.shared.f32 %f1, [%r1];", false);
    }
}
