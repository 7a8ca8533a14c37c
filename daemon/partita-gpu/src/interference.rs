//! Measures how much programs of Punyala's four classes slow each other down (§3.2.2).
//!
//! | class | program | what it uses |
//! | --- | --- | --- |
//! | M | `partita_stream` | all of DRAM's bandwidth |
//! | MC | `partita_stream` and `partita_read_llc` in turns | half of either |
//! | C | `partita_read_llc` | all of the LLC's bandwidth |
//! | A | `partita_arithmetic` | all issue slots |
//!
//! Each program is a session of the engine that launches without end. It runs alone, and beside
//! every class with half of the SMs each, as the policy `even` shares them. Its speed is counted in
//! completed CTAs, once nothing changes hands any more.
//!
//! [`Rig`] needs only the contract of a device, and owns it: nobody else may be served meanwhile.
//! Which class a user's program has is the selector's question.

use crate::device::sleep;
use crate::prepare::{Target, prepare, prepare_forms};
use crate::uploads::Image;
use partita_device::{Activity, Device, DeviceError, Horizon};
use partita_engine::{Action, CloseReason, Engine, EngineConfig, Payload, SessionIdentity};
use partita_model::request::{ImageId, Launch, ModuleHandle, Request, StreamHandle};
use partita_model::{
    ApplicationId, ContentionClass, CudaResult, Dim3, ImageKind, InterferenceMatrix, Nanos,
    PartitionerKind, PolicyConfig, SelectorKind, SessionId, TenantId, Terms,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

const PTX: &str = include_str!("../../../kernels-ptx/device/calibrate.ptx");
/// The classes, in the order of [`Rig::alone`]'s and [`Rig::pair`]'s numbers.
const CLASSES: [ContentionClass; 4] = ContentionClass::ALL;
/// Before a speed is counted: workers have come, and borders have moved.
const WARM_UP: Nanos = Nanos(150_000);
/// A speed is counted for so long, and longer until each program has completed [`FEWEST_CTAS`].
const COUNTED: Nanos = Nanos(400_000);
const FEWEST_CTAS: u64 = 1_000;
/// A program that completes less than [`FEWEST_CTAS`] in this time does not run.
const PATIENCE: Nanos = Nanos(200_000_000);
/// Launches that a program has enqueued ahead of the device.
const AHEAD: usize = 4;
/// CTAs of a launch, as multiples of what the GPU holds at a time.
const ROUNDS: u32 = 8;
/// Threads of a CTA.
const THREADS: u32 = 256;
/// Bytes of one read by a thread.
const PIECE: u64 = 16;
/// Rounds of a thread in `partita_read_llc` and `partita_arithmetic`: a CTA lasts for some 10 µs.
const ROUNDS_OF_READS: u32 = 32;
const ROUNDS_OF_ADDITIONS: u32 = 16;

/// What was measured so far, as [`crate::store::Store`] keeps it.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Interference {
    /// The speed of each class alone, in CTAs for each nanosecond.
    pub alone: [Option<f64>; 4],
    /// The speed of each class beside each other class.
    pub beside: [[Option<f64>; 4]; 4],
}

/// One measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Measurement {
    /// A class alone.
    Alone(usize),
    /// Two classes together.
    Pair([usize; 2]),
}

impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Measurement::Alone(class) => write!(f, "{} alone", CLASSES[*class]),
            Measurement::Pair([one, other]) => {
                write!(f, "{} beside {}", CLASSES[*one], CLASSES[*other])
            }
        }
    }
}

impl Interference {
    /// The file that keeps it.
    pub const FILE: &'static str = "interference";

    /// All measurements: each class alone, then each pair.
    #[must_use]
    pub fn all() -> Vec<Measurement> {
        let classes = 0..CLASSES.len();
        let pairs = classes.clone().flat_map(|one| (one..CLASSES.len()).map(move |o| [one, o]));
        classes.map(Measurement::Alone).chain(pairs.map(Measurement::Pair)).collect()
    }

    /// Whether a measurement is there.
    #[must_use]
    pub fn has(&self, measurement: Measurement) -> bool {
        match measurement {
            Measurement::Alone(class) => self.alone[class].is_some(),
            Measurement::Pair([one, other]) => self.beside[one][other].is_some(),
        }
    }

    /// Measures, and notes what was found.
    ///
    /// # Errors
    /// Where a program does not run.
    pub fn measure(
        &mut self,
        rig: &mut Rig,
        measurement: Measurement,
    ) -> Result<(), InterferenceError> {
        match measurement {
            Measurement::Alone(class) => self.alone[class] = Some(rig.alone(class)?),
            Measurement::Pair([one, other]) => {
                let [first, second] = rig.pair([one, other])?;
                // Two programs of one class are as fast as each other.
                let [first, second] =
                    if one == other { [(first + second) / 2.0; 2] } else { [first, second] };
                self.beside[one][other] = Some(first);
                self.beside[other][one] = Some(second);
            }
        }
        Ok(())
    }

    /// How many times slower each class (row) is beside each class (column) than alone; `None`
    /// before everything was measured.
    #[must_use]
    pub fn slowdowns(&self) -> Option<[[f64; 4]; 4]> {
        let mut slowdowns = [[1.0; 4]; 4];
        for (row, (alone, beside)) in slowdowns.iter_mut().zip(self.alone.iter().zip(&self.beside))
        {
            for (slowdown, speed) in row.iter_mut().zip(beside) {
                let found = (*alone)? / (*speed)?;
                *slowdown = found.is_finite().then_some(found)?;
            }
        }
        Some(slowdowns)
    }

    /// The same as the selector `matching` takes it, one measurement for each pair; the estimate
    /// before everything was measured.
    #[must_use]
    pub fn matrix(&self) -> InterferenceMatrix {
        let mut matrix = InterferenceMatrix::default();
        for (of, row) in
            ContentionClass::ALL.into_iter().zip(self.slowdowns().into_iter().flatten())
        {
            for (beside, slowdown) in ContentionClass::ALL.into_iter().zip(row) {
                matrix.measure(of, beside, slowdown);
            }
        }
        matrix
    }
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum InterferenceError {
    /// The device refused a call.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The policy cannot be built.
    #[error(transparent)]
    Policy(#[from] partita_policy::BuildError),
    /// A program does not run on this device.
    #[error("the program of class {class} does not run: {reason}")]
    Program {
        /// The program's class.
        class: ContentionClass,
        /// The reason.
        reason: String,
    },
}

/// The device with an engine, for measuring.
pub struct Rig {
    device: Box<dyn Device>,
    engine: Engine,
    replies: BTreeMap<u64, (CudaResult, Payload)>,
    sequence: u64,
    sessions: u64,
    trouble: Option<String>,
}

/// A session that launches without end.
struct Program {
    class: usize,
    session: SessionId,
    application: ApplicationId,
    /// The index of each kernel in the module, and its parameters; they take turns.
    kernels: Vec<(u32, Vec<u8>)>,
    next: usize,
    ctas: u32,
    /// Sequence numbers of the ends of launches that were enqueued.
    awaited: Vec<u64>,
}

impl Rig {
    /// An engine on a device that serves nobody.
    ///
    /// # Errors
    /// Where the device refuses.
    pub fn new(mut device: Box<dyn Device>) -> Result<Rig, InterferenceError> {
        let config = EngineConfig { trace_entries: 0, profiling: false, ..EngineConfig::default() };
        let mut engine = Engine::new(config, device.as_mut())?;
        let policy = PolicyConfig {
            selector: SelectorKind::Everyone,
            partitioner: PartitionerKind::Even,
            ..PolicyConfig::default()
        };
        let deciders = partita_policy::build(&policy, &device.calibration())?;
        engine.set_policy(device.as_mut(), deciders);
        let (replies, sequence, sessions) = (BTreeMap::new(), 0, 0);
        Ok(Rig { device, engine, replies, sequence, sessions, trouble: None })
    }

    /// The speed of a class's program with the whole GPU, in CTAs for each nanosecond.
    ///
    /// # Errors
    /// Where the program does not run.
    pub fn alone(&mut self, class: usize) -> Result<f64, InterferenceError> {
        let mut programs = vec![self.enter(class)?];
        let speeds = self.speeds(&mut programs)?;
        Ok(speeds[0])
    }

    /// The speeds of two programs that share the GPU evenly, in CTAs for each nanosecond.
    ///
    /// # Errors
    /// Where a program does not run.
    pub fn pair(&mut self, classes: [usize; 2]) -> Result<[f64; 2], InterferenceError> {
        let mut programs = Vec::new();
        for class in classes {
            programs.push(self.enter(class)?);
        }
        let speeds = self.speeds(&mut programs)?;
        Ok([speeds[0], speeds[1]])
    }

    /// Counts the programs' speeds, and ends them.
    fn speeds(&mut self, programs: &mut [Program]) -> Result<Vec<f64>, InterferenceError> {
        let begin = self.device.now();
        self.play(programs, begin + WARM_UP)?;
        let from = self.device.now();
        let before = self.completed(programs);
        let mut until = from + COUNTED;
        let counted = loop {
            self.play(programs, until)?;
            let now = self.completed(programs);
            let counted: Vec<u64> = now.iter().zip(&before).map(|(now, then)| now - then).collect();
            let Some(slow) = counted.iter().position(|&ctas| ctas < FEWEST_CTAS) else {
                break counted;
            };
            if until >= from + PATIENCE {
                let reason = format!("it completes {} CTAs in {PATIENCE}", counted[slow]);
                return Err(program_error(programs[slow].class, reason));
            }
            until += COUNTED;
        };
        let nanos = as_float(self.device.now().saturating_sub(from).0.max(1));
        for program in programs {
            self.engine.close_session(self.device.as_mut(), program.session, CloseReason::Goodbye);
        }
        self.settle();
        Ok(counted.into_iter().map(|ctas| as_float(ctas) / nanos).collect())
    }

    fn completed(&mut self, programs: &[Program]) -> Vec<u64> {
        let Rig { device, engine, .. } = self;
        let ids = programs.iter().map(|program| program.application);
        ids.map(|id| engine.ctas_completed_now(device.as_mut(), id)).collect()
    }

    /// Lets the programs launch until a moment of device time.
    fn play(&mut self, programs: &mut [Program], until: Nanos) -> Result<(), InterferenceError> {
        while self.device.now() < until {
            for program in programs.iter_mut() {
                self.feed(program);
            }
            self.advance(Some(until));
            if let Some(reason) = self.trouble.take() {
                return Err(program_error(programs[0].class, reason));
            }
        }
        Ok(())
    }

    fn feed(&mut self, program: &mut Program) {
        program.awaited.retain(|sequence| self.replies.remove(sequence).is_none());
        while program.awaited.len() < AHEAD {
            let (kernel, params) = program.kernels[program.next].clone();
            program.next = (program.next + 1) % program.kernels.len();
            let launch = Launch {
                stream: StreamHandle::LEGACY,
                module: ModuleHandle(1),
                kernel,
                grid: Dim3::linear(program.ctas),
                block: Dim3::linear(THREADS),
                dynamic_shared: 0,
                cooperative: false,
                cluster: Dim3::linear(1),
                params,
            };
            let launched = self.send(program.session, Request::Launch(launch));
            self.replies.remove(&launched);
            let stream = Some(StreamHandle::LEGACY);
            let end = self.send(program.session, Request::Synchronize { stream });
            program.awaited.push(end);
        }
    }

    /// Opens the session of a class's program.
    fn enter(&mut self, class: usize) -> Result<Program, InterferenceError> {
        self.sessions += 1;
        let session = SessionId(self.sessions);
        let identity = SessionIdentity {
            session,
            tenant: TenantId(0),
            pid: 0,
            program: format!("class {}", CLASSES[class]),
            tag: None,
            asked: Terms::default(),
        };
        let failed = |reason: String| program_error(class, reason);
        let opened = self.engine.open_session(self.device.as_mut(), identity);
        let application = opened.map_err(|error| failed(error.to_string()))?.application;
        let facts = self.device.facts().clone();
        let set = 1_u64 << (facts.llc.0 / 2).clamp(64 << 10, 1 << 20).ilog2();
        let stream = (2 * facts.llc.0).next_multiple_of(4096).max(8 << 20);
        let module = Request::ModuleLoad { module: ModuleHandle(1), image: ImageId(session.0) };
        let module = match self.ask(session, module).map_err(&failed)? {
            Payload::Module(module) => module,
            other => return Err(failed(format!("a module came as {other:?}"))),
        };
        let bytes = 4096 + set + stream;
        let base = match self.ask(session, Request::MemAlloc { bytes }).map_err(&failed)? {
            Payload::Address(address) => address.0,
            other => return Err(failed(format!("memory came as {other:?}"))),
        };
        let (sink, set_at, stream_at) = (base, base + 4096, base + 4096 + set);
        let mask = u32::try_from(set - 1).unwrap_or(u32::MAX);
        let streams = ("partita_stream", words(&[stream_at, sink, stream / PIECE], &[]));
        let reads = ("partita_read_llc", words(&[set_at, sink], &[mask, ROUNDS_OF_READS]));
        let adds = ("partita_arithmetic", words(&[sink], &[ROUNDS_OF_ADDITIONS]));
        let wanted = match class {
            0 => vec![streams],
            1 => vec![streams, reads],
            2 => vec![reads],
            _ => vec![adds],
        };
        let mut kernels = Vec::new();
        for (name, params) in wanted {
            let index = module.kernels.iter().position(|kernel| *kernel.name == *name);
            let index = index.and_then(|index| u32::try_from(index).ok());
            kernels.push((index.ok_or_else(|| failed(format!("no kernel `{name}`")))?, params));
        }
        let held = u32::from(facts.sm_count) * (facts.threads_per_sm / THREADS).max(1);
        let ctas = held * ROUNDS;
        let awaited = Vec::new();
        Ok(Program { class, session, application, kernels, next: 0, ctas, awaited })
    }

    fn send(&mut self, session: SessionId, request: Request) -> u64 {
        self.sequence += 1;
        self.engine.handle_request(self.device.as_mut(), session, self.sequence, request);
        self.carry_out();
        self.sequence
    }

    /// Sends a request and waits for its answer.
    fn ask(&mut self, session: SessionId, request: Request) -> Result<Payload, String> {
        let sequence = self.send(session, request);
        loop {
            match self.replies.remove(&sequence) {
                Some((CudaResult::SUCCESS, payload)) => return Ok(payload),
                Some((code, Payload::Explanation(text))) => return Err(format!("{code}: {text}")),
                Some((code, _)) => return Err(code.to_string()),
                None => {}
            }
            if self.advance(None) == Activity::Idle && !self.replies.contains_key(&sequence) {
                return Err("a request is never answered".to_owned());
            }
        }
    }

    /// Waits until nothing is under way: the next programs find the GPU empty.
    fn settle(&mut self) {
        while self.advance(None) != Activity::Idle {}
        self.replies.clear();
    }

    /// Lets the device go on, no further than `until`, and the engine follow it.
    fn advance(&mut self, until: Option<Nanos>) -> Activity {
        let timer = self.engine.next_timer();
        let horizon = Horizon {
            until: [until, timer].into_iter().flatten().min(),
            warp_instructions: u64::MAX,
        };
        let mut events = Vec::new();
        let mut activity = self.device.poll(horizon, &mut events);
        if matches!(activity, Activity::Waiting | Activity::Watching) {
            sleep(self.device.as_ref());
        }
        for event in events {
            self.engine.handle_event(self.device.as_mut(), event);
            activity = Activity::Busy;
        }
        if self.engine.next_timer().is_some_and(|timer| timer <= self.device.now()) {
            self.engine.handle_timer(self.device.as_mut());
            activity = Activity::Busy;
        }
        self.carry_out();
        activity
    }

    fn carry_out(&mut self) {
        while let Some(action) = self.engine.poll_action() {
            match action {
                Action::Reply { sequence, code, payload, .. } => {
                    self.replies.insert(sequence, (code, payload));
                }
                Action::Prepare { session, module, purpose, guards, .. } => {
                    let image = Image {
                        kind: ImageKind::Ptx,
                        unpacked_bytes: PTX.len() as u64,
                        bytes: PTX.as_bytes().into(),
                    };
                    let target = Target { guards, ..Target::of(self.device.as_mut()) };
                    let prepared = prepare(&image, target, &purpose).map(|found| found.module);
                    self.engine.handle_prepared(self.device.as_mut(), session, module, prepared);
                }
                Action::PrepareForms { session, of, source, loaded, purpose, guards } => {
                    let target = Target { guards, ..Target::of(self.device.as_mut()) };
                    let prepared = prepare_forms(&source, of.kernel, &loaded, target, &purpose)
                        .map(|prepared| prepared.module);
                    self.engine.handle_forms(self.device.as_mut(), session, of, prepared);
                }
                Action::Sticky { code, text, .. } => {
                    self.trouble.get_or_insert(format!("{code}: {text}"));
                }
                Action::EndSession { reason, .. } | Action::DeviceLost { reason } => {
                    self.trouble.get_or_insert(reason);
                }
                Action::Profiled { .. }
                | Action::EventRecorded { .. }
                | Action::Output { .. }
                | Action::Released { .. }
                | Action::Log { .. } => {}
            }
        }
    }
}

fn program_error(class: usize, reason: String) -> InterferenceError {
    InterferenceError::Program { class: CLASSES[class], reason }
}

/// Parameters: words of 64 bits, then words of 32 bits.
fn words(long: &[u64], short: &[u32]) -> Vec<u8> {
    let long = long.iter().flat_map(|word| word.to_le_bytes());
    long.chain(short.iter().flat_map(|word| word.to_le_bytes())).collect()
}

#[expect(clippy::cast_precision_loss, reason = "times and counts here are far below 2^53")]
fn as_float(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_emu::Setup;

    #[test]
    fn classes_slow_each_other_down_as_their_resources_say() {
        let setup = Setup::parse("emu:gpgpu-sim-24").unwrap();
        let mut rig = Rig::new(Box::new(setup.open().unwrap())).unwrap();
        let mut found = Interference::default();
        for measurement in Interference::all() {
            assert!(!found.has(measurement), "{measurement}");
            assert_eq!(found.slowdowns(), None, "before {measurement}");
            match measurement {
                Measurement::Alone(class @ (1 | 2)) => found.alone[class] = Some(1.0),
                Measurement::Pair([1 | 2, _] | [_, 1 | 2]) => continue,
                wanted => found.measure(&mut rig, wanted).unwrap(),
            }
        }
        found.beside = found.beside.map(|row| row.map(|one| one.or(Some(0.5))));
        let slowdowns = found.slowdowns().unwrap();
        let (m, a) = (ContentionClass::Memory, ContentionClass::Compute);
        let entry = *found.matrix().of(m, a);
        assert_eq!((entry.slowdown, entry.measured), (slowdowns[0][3].max(1.0), 1));
        assert_eq!(Interference::default().matrix(), InterferenceMatrix::default());
        let [m, .., a] = slowdowns;
        // Half of the SMs are half of the issue slots, whatever runs on the other SMs.
        for slowdown in [a[0], a[3]] {
            assert!((1.7..2.3).contains(&slowdown), "{slowdowns:?}");
        }
        // Half of the SMs draw most of DRAM's bandwidth where nobody else wants it, and half of it
        // beside a program that does.
        assert!(m[3] < 1.4 && m[0] > 1.6, "{slowdowns:?}");
    }
}
