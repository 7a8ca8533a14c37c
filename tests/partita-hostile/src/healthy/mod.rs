//! A healthy program: a process that uploads data, runs kernels on them, downloads the results and
//! checks each word against the host's.
//!
//! Its parent writes orders to its stdin, one a line ([`Order`]). It answers with one JSON object a
//! line ([`Line`]). It computes round after round all the time, and between rounds it looks for an
//! order. Its end of file ends it.

mod expected;

use self::expected::{BINS, Round, THREADS, WORDS};
use crate::random::Random;
use partita_client::{CallError, EventHandle, Launch, LoadedModule, Session, StreamHandle, image};
use partita_model::{DeviceAddress, Dim3, Timekeeping};
use serde::{Deserialize, Serialize};
use std::io::{BufRead as _, Write as _};
use std::path::Path;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

const PTX: &str = include_str!("kernels.ptx");
const STREAM: StreamHandle = StreamHandle::LEGACY;
/// Rounds of a report, at least. The device's time of fewer says little.
const ENOUGH: u64 = 12;
/// Host time after which a report has fewer rounds.
const LATEST: Duration = Duration::from_secs(40);

/// What a parent says to a healthy program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Begin to count.
    Measure,
    /// Say what was counted since, as soon as that is enough.
    Report,
}

impl Order {
    /// The order's line.
    pub fn word(self) -> &'static str {
        match self {
            Order::Measure => "measure",
            Order::Report => "report",
        }
    }

    fn parse(word: &str) -> Option<Order> {
        [Order::Measure, Order::Report].into_iter().find(|order| order.word() == word.trim())
    }
}

/// What a healthy program says to its parent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Line {
    /// The first round is done and checked.
    Ready,
    /// The answer to [`Order::Report`].
    Counted(Counted),
    /// A call failed; the program ends.
    Failed(String),
}

/// What a healthy program did between two orders.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counted {
    /// Rounds that were computed and checked.
    pub rounds: u64,
    /// Host time in seconds.
    pub host_s: f64,
    /// Device time in seconds, where the device keeps time.
    pub device_s: Option<f64>,
    /// Processor time of the data plane's first thread in seconds. The parent fills it in.
    pub served_s: f64,
    /// Host time of the longest round in seconds.
    pub longest_s: f64,
    /// Rounds with a wrong result.
    pub wrong: u64,
    /// The first wrong word.
    pub first_wrong: Option<String>,
}

/// Computes until the parent has nothing more to say. Returns whether all went well.
pub fn serve(sockets: &Path, seed: u64) -> bool {
    match compute(sockets, seed) {
        Ok(()) => true,
        Err(error) => {
            say(&Line::Failed(error));
            false
        }
    }
}

fn say(line: &Line) {
    let text = serde_json::to_string(line).expect("a line is plain data");
    let mut out = std::io::stdout().lock();
    // The parent may have gone; then the end of stdin ends this process.
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

fn compute(sockets: &Path, seed: u64) -> Result<(), String> {
    let orders = orders();
    let session = Session::connect(sockets).map_err(|error| error.to_string())?;
    let mut program = Program::new(&session, seed)?;
    let said = |error: CallError| error.to_string();
    program.round().map_err(said)?;
    say(&Line::Ready);
    loop {
        match orders.try_recv() {
            Ok(Order::Measure) => program.measure().map_err(said)?,
            Ok(Order::Report) => {
                while program.counted.rounds < ENOUGH && program.begun.elapsed() < LATEST {
                    program.round().map_err(said)?;
                }
                say(&Line::Counted(program.counted().map_err(said)?));
            }
            Err(TryRecvError::Empty) => program.round().map_err(said)?,
            Err(TryRecvError::Disconnected) => return Ok(()),
        }
    }
}

/// The orders of the parent, as a thread reads them.
fn orders() -> Receiver<Order> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let known = Order::parse(&line).is_none_or(|order| sender.send(order).is_ok());
            if !known {
                return;
            }
        }
    });
    receiver
}

/// A session with its kernels, its memory, and what was counted.
struct Program<'a> {
    session: &'a Session,
    module: LoadedModule,
    data: DeviceAddress,
    sums: DeviceAddress,
    bins: DeviceAddress,
    events: [EventHandle; 2],
    random: Random,
    begun: Instant,
    counted: Counted,
}

impl<'a> Program<'a> {
    fn new(session: &'a Session, seed: u64) -> Result<Program<'a>, String> {
        let said = |error: CallError| error.to_string();
        let image = image::select(PTX.as_bytes(), session.facts().compute_capability)
            .map_err(|error| error.to_string())?;
        let alloc = |words: u64| session.mem_alloc(words * 4).map_err(said);
        Ok(Program {
            session,
            module: session.load_module(&image).map_err(said)?,
            data: alloc(WORDS.into())?,
            sums: alloc((WORDS / THREADS).into())?,
            bins: alloc(BINS as u64)?,
            events: [session.create_event().map_err(said)?, session.create_event().map_err(said)?],
            random: Random::new(seed),
            begun: Instant::now(),
            counted: Counted::default(),
        })
    }

    fn measure(&mut self) -> Result<(), CallError> {
        self.session.record_event(self.events[0], STREAM)?;
        self.session.synchronize(None)?;
        self.begun = Instant::now();
        self.counted = Counted::default();
        Ok(())
    }

    fn counted(&mut self) -> Result<Counted, CallError> {
        let session = self.session;
        session.record_event(self.events[1], STREAM)?;
        session.synchronize(None)?;
        let mut counted = std::mem::take(&mut self.counted);
        counted.host_s = self.begun.elapsed().as_secs_f64();
        if session.facts().timekeeping != Timekeeping::Off {
            let nanos = session.elapsed_ns(self.events[0], self.events[1])?;
            counted.device_s =
                Some(Duration::from_nanos(nanos.max(0).cast_unsigned()).as_secs_f64());
        }
        Ok(counted)
    }

    /// One round, checked.
    fn round(&mut self) -> Result<(), CallError> {
        let begun = Instant::now();
        let session = self.session;
        let round = Round::next(&mut self.random);
        let turned = session.mem_alloc(u64::from(WORDS) * 4)?;
        session.copy_to_device_async(STREAM, self.data, &bytes_of(&round.data))?;
        session.fill(STREAM, self.bins, 0, 4, BINS as u64)?;
        self.launch("mix", &[Value::Address(self.data), Value::Word(round.steps)])?;
        self.launch("sums", &[self.data, self.sums].map(Value::Address))?;
        let words = [Value::Address(self.data), Value::Address(turned), Value::Word(WORDS)];
        self.launch("turn", &words)?;
        self.launch("bins", &[self.data, self.bins].map(Value::Address))?;
        let results = [
            ("turned", turned, &round.turned),
            ("sums", self.sums, &round.sums),
            ("bins", self.bins, &round.bins),
        ];
        let mut wrong = None;
        for (what, at, expected) in results {
            let mut found = vec![0; expected.len() * 4];
            session.copy_to_host(STREAM, &mut found, at)?;
            wrong = wrong.or_else(|| expected::difference(what, &found, expected));
        }
        session.mem_free(turned)?;
        let counted = &mut self.counted;
        counted.rounds += 1;
        counted.wrong += u64::from(wrong.is_some());
        counted.first_wrong = counted.first_wrong.take().or(wrong);
        counted.longest_s = counted.longest_s.max(begun.elapsed().as_secs_f64());
        Ok(())
    }

    fn launch(&self, kernel: &str, values: &[Value]) -> Result<(), CallError> {
        let kernels = &self.module.contents.kernels;
        let index = kernels.iter().position(|known| known.name == kernel);
        let index = index.and_then(|index| u32::try_from(index).ok());
        let mut params = Vec::new();
        for value in values {
            match value {
                Value::Address(address) => params.extend(address.0.to_le_bytes()),
                Value::Word(word) => params.extend(word.to_le_bytes()),
            }
        }
        self.session.launch(Launch {
            module: self.module.module,
            kernel: index.expect("the module has its kernels"),
            grid: Dim3::linear(WORDS / THREADS),
            block: Dim3::linear(THREADS),
            dynamic_shared: 0,
            stream: STREAM,
            cooperative: false,
            cluster: Dim3::linear(1),
            params: &params,
        })
    }
}

/// A parameter of a kernel.
#[derive(Clone, Copy)]
enum Value {
    Address(DeviceAddress),
    Word(u32),
}

fn bytes_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}
