//! What a launch costs in the forms, by its shape; and what two programs on halves lose.
//!
//! Each launch goes through the engine, so the control block is the engine's. Each shape and form
//! has an engine and a device of its own: an engine learns how long CTAs of a shape take. The form
//! is asked for explicitly: a kernel has its form alone, without the original beside it. Beside
//! the forms stands what a daemon with its default configuration does.

use super::shapes::{Shape, halves, matrix};
use crate::live::stage::{Stage, image_of};
use partita_cli::failure::Failure;
use partita_cli::progress::Bar;
use partita_cli::report::Metric;
use partita_emu::{EmulatedGpu, Options, Spec};
use partita_engine::{EngineConfig, KernelForm, PrepareError, PreparedModule, Purpose};
use partita_gpu::prepare::{Target, prepare};
use partita_model::{DeviceAddress, Nanos, Originals, SessionId, Sharing};
use partita_ptx::{Ends, WorkerOptions, cancel_with};
use serde::Serialize;

const KERNELS: &str = include_str!("kernels.ptx");
/// Launches of a shape: the first, one that corrects what is known of the CTAs' time, and the one
/// that counts as settled.
const ROUNDS: usize = 3;
/// Launches of each program on a half.
const SHARED_LAUNCHES: usize = 20;
/// More time that a program may take on its half than in its original form on as many SMs, in
/// percent.
const SHARED_GOAL: f64 = 5.0;

/// The form in which a kernel is launched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// As it was written.
    Original,
    /// As workers.
    Worker,
    /// As tickets.
    Ticket,
    /// As a daemon with its default configuration runs the launch: as workers or as written.
    Default,
}

impl Form {
    const MEASURED: [Form; 3] = [Form::Worker, Form::Ticket, Form::Default];
    const SHARED: [Form; 2] = [Form::Worker, Form::Default];

    fn name(self) -> &'static str {
        match self {
            Form::Original => "original",
            Form::Worker => "worker",
            Form::Ticket => "ticket",
            Form::Default => "default",
        }
    }

    /// The cycles that a launch may cost more than an original of so many.
    fn allowance(self, original: f64) -> f64 {
        match self {
            Form::Original => 0.0,
            Form::Worker | Form::Default => f64::max(300.0, 0.05 * original),
            Form::Ticket => f64::max(600.0, 0.15 * original),
        }
    }
}

/// One shape in one form.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Cell {
    /// The shape.
    pub shape: Shape,
    /// The form.
    pub form: Form,
    /// Cycles as written, from the first CTA's start to the end of the grid.
    pub original: f64,
    /// Cycles in the form, once the shape is known.
    pub cycles: f64,
    /// Cycles of the first launch as written.
    pub first_original: f64,
    /// Cycles of the first launch in the form.
    pub first: f64,
    /// Cycles that the form may cost.
    pub allowance: f64,
}

impl Cell {
    fn more_percent(&self) -> f64 {
        (self.cycles / self.original - 1.0) * 100.0
    }

    /// The cost as a multiple of the allowance.
    fn against_goal(&self) -> f64 {
        (self.cycles - self.original) / self.allowance
    }
}

/// The cells, and the metrics of them.
pub struct Found {
    /// Each shape in each form.
    pub cells: Vec<Cell>,
    /// What they say.
    pub metrics: Vec<Metric>,
}

/// Measures the shapes of the matrix and of the halves with `only` in their names.
pub fn measure(spec: &Spec, quick: bool, only: Option<&str>, seed: u64) -> Result<Found, Failure> {
    let (shapes, halves) = (named(matrix(quick), only), named(halves(quick), only));
    if shapes.is_empty() && halves.is_empty() {
        let matrix = if quick { "the part of the matrix" } else { "the matrix" };
        let (only, example) = (only.unwrap_or_default(), matrix_example(quick));
        return Err(Failure::new(format!(
            "{matrix} has no shape with `{only}` in its name: names are like `{example}`, and \
             `--cells` lists them"
        ))
        .with_code(2));
    }
    let of = shapes.len() + halves.len();
    let mut bar = Bar::new("overhead", "shapes");
    let mut cells = Vec::new();
    for (index, shape) in shapes.iter().enumerate() {
        let original = launches(spec, Form::Original, shape, seed)?;
        for form in Form::MEASURED {
            let found = launches(spec, form, shape, seed)?;
            cells.push(Cell {
                shape: *shape,
                form,
                original: original[ROUNDS - 1],
                cycles: found[ROUNDS - 1],
                first_original: original[0],
                first: found[0],
                allowance: form.allowance(original[ROUNDS - 1]),
            });
        }
        bar.step(index + 1, of, &shape.to_string());
    }
    let mut metrics: Vec<Metric> =
        Form::MEASURED.iter().flat_map(|form| summary(*form, &cells)).collect();
    for (index, shape) in halves.iter().enumerate() {
        let alone = half(spec, shape, seed)?;
        for form in Form::SHARED {
            let [first, settled] = shared(spec, form, shape, seed)?;
            let more = |time: Nanos| (time.0 as f64 / alone.0 as f64 - 1.0) * 100.0;
            let name = format!("two on halves, {}, slower of both: {shape}", form.name());
            metrics.push(Metric::at_most(&*name, more(settled), "% more time", SHARED_GOAL));
            let name = format!("{name}, from the start");
            metrics.push(Metric::plain(name, more(first), "% more time"));
        }
        bar.step(shapes.len() + index + 1, of, &shape.to_string());
    }
    bar.end();
    Ok(Found { cells, metrics })
}

/// The shapes with this text in their names.
fn named(shapes: Vec<Shape>, text: Option<&str>) -> Vec<Shape> {
    let text = text.unwrap_or_default();
    shapes.into_iter().filter(|shape| shape.to_string().contains(text)).collect()
}

/// The name of a shape.
fn matrix_example(quick: bool) -> String {
    matrix(quick).last().map(Shape::to_string).unwrap_or_default()
}

/// What the cells of a form say.
fn summary(form: Form, cells: &[Cell]) -> Vec<Metric> {
    let own: Vec<&Cell> = cells.iter().filter(|cell| cell.form == form).collect();
    let Some(&worst) = own.iter().max_by(|a, b| a.against_goal().total_cmp(&b.against_goal()))
    else {
        return Vec::new();
    };
    let mut more: Vec<f64> = own.iter().map(|cell| cell.more_percent()).collect();
    more.sort_by(f64::total_cmp);
    let at = |percent: usize| more[(more.len() - 1) * percent / 100];
    let within = own.iter().filter(|cell| cell.against_goal() <= 1.0).count();
    let share = 100.0 * within as f64 / own.len() as f64;
    let name = form.name();
    let first = |cell: &&Cell| cell.first / cell.first_original;
    let first_worst = own.iter().max_by(|a, b| first(a).total_cmp(&first(b))).unwrap_or(&worst);
    vec![
        Metric::plain(format!("{name}: shapes"), own.len() as f64, ""),
        Metric::at_least(format!("{name}: shapes within the goal"), share, "%", 100.0),
        Metric::plain(format!("{name}: median"), at(50), "% more cycles"),
        Metric::plain(format!("{name}: P90"), at(90), "% more cycles"),
        Metric::at_most(
            format!("{name}: worst: {}", worst.shape),
            worst.against_goal(),
            "times the goal",
            1.0,
        ),
        Metric::plain(
            format!("{name}: worst first launch: {}", first_worst.shape),
            (first(first_worst) - 1.0) * 100.0,
            "% more cycles",
        ),
    ]
}

/// The module of [`KERNELS`] in a form.
fn module(form: Form, target: Target, purpose: &Purpose) -> Result<PreparedModule, PrepareError> {
    let mut module = prepare(&image_of(KERNELS), target, purpose)?.module;
    match form {
        Form::Original | Form::Default => {}
        Form::Worker => {
            for kernel in &mut module.kernels {
                if let KernelForm::Worker { fallback, .. } = &mut kernel.form {
                    *fallback = None;
                }
            }
        }
        Form::Ticket => {
            let original = partita_ptx::parse(KERNELS).expect("a part of this program");
            let tickets = partita_ptx::ticket(&original, &WorkerOptions::default());
            let text = cancel_with(tickets.module, &tickets.reports, Ends::Kept).module;
            module.ptx = partita_ptx::print(&text).into();
            module.lines = None;
            for (kernel, report) in module.kernels.iter_mut().zip(&tickets.reports) {
                let cta_values = report.rewritten().map(|rewrite| rewrite.cta_values.clone());
                let reason = "asked for".to_owned();
                kernel.form =
                    KernelForm::Ticket { cta_values, fallback: None, reason, clusters: false };
                kernel.counting = None;
            }
        }
    }
    Ok(module)
}

/// A stage on which kernels have this form.
fn stage(spec: Spec, form: Form) -> Result<Stage, Failure> {
    let sharing = if form == Form::Original { Sharing::Mps } else { Sharing::Spatial };
    let gpu = EmulatedGpu::new(spec, Options { sharing, ..Options::default() });
    let originals = match form {
        Form::Default => Originals::default(),
        Form::Original | Form::Worker | Form::Ticket => Originals::Never,
    };
    let config = EngineConfig { profiling: false, originals, ..EngineConfig::default() };
    let preparer = move |target: Target, purpose: &Purpose| module(form, target, purpose);
    Stage::with(Box::new(gpu), config, Box::new(preparer))
}

/// A program that launches one shape.
struct Program {
    session: SessionId,
    shape: Shape,
    params: Vec<u8>,
}

impl Program {
    fn new(stage: &mut Stage, id: u64, shape: &Shape, seed: u64) -> Result<Program, Failure> {
        let (session, _) = stage.application(id)?;
        let data = stage.buffer(session, u64::from(shape.ctas) * u64::from(shape.threads) * 4)?;
        let times = stage.buffer(session, u64::from(shape.ctas) * 4)?;
        let sleeps: Vec<u8> = shape.sleeps(seed).iter().flat_map(|ns| ns.to_le_bytes()).collect();
        stage.device.poke(times, &sleeps)?;
        let bytes = |address: DeviceAddress| address.0.to_le_bytes();
        let params = [bytes(data), bytes(times)].concat();
        Ok(Program { session, shape: *shape, params })
    }

    fn launch(&self, stage: &mut Stage) -> Result<(), Failure> {
        let Shape { ctas, threads, shared, .. } = self.shape;
        let kernel = u32::from(shared);
        stage.launch_blocks(self.session, kernel, (ctas, threads), self.params.clone())
    }
}

/// Cycles of launches of a shape, one after the other, without the latency of a launch.
fn launches(spec: &Spec, form: Form, shape: &Shape, seed: u64) -> Result<[f64; ROUNDS], Failure> {
    let mut stage = stage(spec.clone(), form)?;
    let program = Program::new(&mut stage, 1, shape, seed)?;
    let mut cycles = [0.0; ROUNDS];
    for cycles in &mut cycles {
        let start = stage.device.now();
        program.launch(&mut stage)?;
        stage.synchronize(program.session)?;
        let took = stage.last_end().saturating_sub(start).0.saturating_sub(spec.launch_nanoseconds);
        *cycles = took as f64 * f64::from(spec.sm_clock_khz) / 1e6;
    }
    Ok(cycles)
}

/// Device time of a program in original form on half of the SMs.
fn half(spec: &Spec, shape: &Shape, seed: u64) -> Result<Nanos, Failure> {
    let mut stage = stage(Spec { sms: spec.sms / 2, ..spec.clone() }, Form::Original)?;
    let program = Program::new(&mut stage, 1, shape, seed)?;
    Ok(together(&mut stage, &[program])?[0])
}

/// Device time of the slower one of two programs on halves: of its first launches, while the border
/// moves to its place, and of as many further launches.
fn shared(spec: &Spec, form: Form, shape: &Shape, seed: u64) -> Result<[Nanos; 2], Failure> {
    let mut stage = stage(spec.clone(), form)?;
    let first = Program::new(&mut stage, 1, shape, seed)?;
    let second = Program::new(&mut stage, 2, shape, seed + 1)?;
    let programs = [first, second];
    let mut slower = || -> Result<Nanos, Failure> {
        Ok(together(&mut stage, &programs)?.into_iter().max().unwrap_or_default())
    };
    Ok([slower()?, slower()?])
}

/// Device time of each program's launches, while the others do theirs.
fn together(stage: &mut Stage, programs: &[Program]) -> Result<Vec<Nanos>, Failure> {
    let start = stage.device.now();
    for _ in 0..SHARED_LAUNCHES {
        for program in programs {
            program.launch(stage)?;
        }
    }
    let sessions: Vec<SessionId> = programs.iter().map(|program| program.session).collect();
    let ends = stage.synchronize_all(&sessions)?;
    Ok(ends.into_iter().map(|end| end.saturating_sub(start)).collect())
}

#[cfg(test)]
mod tests {
    use super::super::shapes::Long;
    use super::*;

    #[test]
    fn each_form_is_the_one_that_was_asked_for() {
        let target = Target::from(Sharing::Spatial);
        for (form, name) in [(Form::Worker, "worker"), (Form::Ticket, "ticket")] {
            for kernel in module(form, target, &Purpose::Run).unwrap().kernels {
                let (found, fallback) = match &kernel.form {
                    KernelForm::Worker { fallback, .. } => ("worker", fallback),
                    KernelForm::Ticket { fallback, .. } => ("ticket", fallback),
                    other => panic!("{other:?}"),
                };
                assert_eq!((found, fallback.is_none()), (name, true), "{}", kernel.name);
            }
        }
    }

    #[test]
    fn a_launch_takes_as_long_as_its_ctas() {
        let spec = Spec::find("cd-search-24").unwrap();
        let shape =
            Shape { ctas: 24, threads: 64, sleep_ns: 10_000, long: Long::Nowhere, shared: true };
        let slept = 10.0 * f64::from(spec.sm_clock_khz) / 1e3;
        for form in [Form::Original, Form::Worker, Form::Ticket, Form::Default] {
            for cycles in launches(&spec, form, &shape, 0).unwrap() {
                assert!((slept..slept + 20_000.0).contains(&cycles), "{form:?}: {cycles}");
            }
        }
        let alone = half(&spec, &shape, 0).unwrap();
        let beside = shared(&spec, Form::Worker, &shape, 0).unwrap();
        let all = [&beside[..], &[alone]].concat();
        assert!(all.iter().all(|time| time.0 >= 200_000), "{alone:?}, {beside:?}");
    }
}
