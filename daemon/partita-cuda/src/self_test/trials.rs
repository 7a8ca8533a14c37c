//! The trials themselves, on a context of their own.
//!
//! In most of them a kernel stays on the GPU, and a call is made meanwhile. When the call has
//! returned, the kernel is still there, or the call has waited for it. A thread of its own releases
//! the kernel after [`HOLD`], so a call that waits returns, too.

use super::{Check, Finding, Told};
use crate::OpenError;
use crate::code::Code;
use crate::driver::{
    Array, Context, Driver, Event, Failure, Function, MemoryBy, Pinned, Place, Stream,
};
use crate::green::STREAMS;
use crate::loader::{LOCAL, LOCAL_ROOM};
use crate::options::Options;
use partita_model::Dim3;
use partita_model::texture::{ArrayKind, ArrayShape, ChannelType, TexelFormat};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const PTX: &str = include_str!("../../../../kernels-ptx/device/self_test.ptx");

/// How long a kernel stays on the GPU.
const HOLD: Duration = Duration::from_millis(100);
/// How long a kernel has to begin.
const BEGIN: Duration = Duration::from_secs(2);

/// Streams that the backend makes first: one for upkeep, one for signals, one for loading, and the
/// lanes.
const FIRST: usize = 32;

/// Local memory of a kernel in bytes, above that of kernels before it.
const LOCAL_BYTES: u64 = 16 << 10;

const RELEASE: usize = 0;
const STARTED: usize = 8;
const ANSWER: usize = 16;
/// A word with the value 1, for signals by copies.
const ONE: usize = 24;
const WORDS: usize = 32;

/// The kernel's answer if the signal ended it.
const SIGNALLED: u64 = 1;

/// Makes trials on the GPU that the options name, and tells each before and after it. The trials
/// that follow one that ends the context find the context's error.
///
/// # Errors
/// [`OpenError`] where the GPU cannot be opened.
pub fn run(
    options: &Options,
    checks: &[Check],
    tell: &mut dyn FnMut(Told),
) -> Result<(), OpenError> {
    let driver = Driver::load(options.library.as_deref())?;
    let context = Context::open(driver, options.ordinal.unwrap_or(0))?;
    let bench = Bench::new(&context)?;
    for check in checks {
        tell(Told::Begins(*check));
        let found = bench.check(*check);
        tell(Told::Found(
            found.unwrap_or_else(|failure| Finding::failed(*check, failure.to_string())),
        ));
    }
    // Unloading code may wait for grids, and no grid is left.
    bench.code.unload()?;
    Ok(())
}

/// A context for trials.
struct Bench {
    context: Arc<Context>,
    code: Code,
    hold: Function,
    nothing: Function,
    /// As many as the backend makes, in the same order.
    streams: Vec<Stream>,
    words: Arc<Pinned>,
}

/// A kernel that is on the GPU.
struct Held<'a> {
    bench: &'a Bench,
    over: Event,
    release: Sender<()>,
    releasing: JoinHandle<()>,
}

impl Bench {
    fn new(context: &Arc<Context>) -> Result<Bench, OpenError> {
        let greatest = context.greatest_priority()?;
        let mut streams = vec![Stream::new(context, greatest)?, Stream::new(context, greatest)?];
        while streams.len() < FIRST {
            streams.push(Stream::new(context, 0)?);
        }
        let image = context.compile(PTX).map_err(|error| error.failure)?;
        let code = Code::load(context, &image)?;
        let words = Arc::new(Pinned::new(context, WORDS)?);
        words.write(ONE, &1_u64.to_le_bytes());
        Ok(Bench {
            context: Arc::clone(context),
            hold: code.function("partita_hold")?,
            nothing: code.function("partita_nothing")?,
            code,
            streams,
            words,
        })
    }

    fn check(&self, check: Check) -> Result<Finding, Failure> {
        match check {
            Check::Copies => self.signals(Place::Device),
            Check::Mapped => self.signals(Place::Host),
            Check::Streams => self.apart(),
            Check::Loading => self.loading(),
            Check::LocalMemory => self.local_memory(),
            Check::Locking => self.locking(),
            Check::Unmapping => self.unmapping(),
            Check::GreenContexts => self.green_contexts(),
            Check::Arrays => self.arrays(),
        }
    }

    fn word(&self, at: usize) -> u64 {
        let mut bytes = [0; 8];
        self.words.read(at, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// Puts a kernel on the GPU that stays, and returns when it runs.
    fn held(&self, stream: &Stream, signal: u64) -> Result<Held<'_>, Failure> {
        for at in [RELEASE, STARTED, ANSWER] {
            self.words.write(at, &[0; 8]);
        }
        let over = Event::new(&self.context)?;
        let mut params = [0; 16];
        params[..8].copy_from_slice(&self.words.device_address().to_le_bytes());
        params[8..].copy_from_slice(&signal.to_le_bytes());
        let one = Dim3::linear(1);
        stream.launch(self.hold, [one, one], 0, &mut params)?;
        stream.record(&over)?;
        let begun = Instant::now();
        while self.word(STARTED) == 0 {
            if begun.elapsed() >= BEGIN {
                // It ends should it begin.
                self.words.write(RELEASE, &1_u64.to_le_bytes());
                let name = "the kernel has not begun".into();
                return Err(Failure { function: "cuLaunchKernel", code: 0, name });
            }
            std::thread::yield_now();
        }
        let words = Arc::clone(&self.words);
        let (release, released) = channel();
        let releasing = std::thread::spawn(move || {
            // Told or not: the kernel ends now.
            let _ = released.recv_timeout(HOLD);
            words.write(RELEASE, &1_u64.to_le_bytes());
        });
        Ok(Held { bench: self, over, release, releasing })
    }

    /// Makes a call while a kernel is on the GPU.
    fn beside<T>(&self, call: impl FnOnce() -> Result<T, Failure>) -> Result<(Trial, T), Failure> {
        let held = self.held(&self.streams[2], 0)?;
        let begun = Instant::now();
        let result = call();
        let time = begun.elapsed();
        // The kernel answers as it ends; the driver may tell its end later.
        let stays = self.word(ANSWER) == 0;
        held.end()?;
        Ok((Trial { stays, time }, result?))
    }

    /// Signals a running kernel.
    fn signals(&self, place: Place) -> Result<Finding, Failure> {
        let check = if place == Place::Device { Check::Copies } else { Check::Mapped };
        let bytes = self.context.granularity()?;
        let address = self.context.reserve(bytes, 0, 0)?;
        self.context.map(address, bytes, place)?;
        let stream = &self.streams[1];
        match place {
            Place::Device => {
                stream.fill(address, 0, 4, 2)?;
                stream.synchronize()?;
            }
            Place::Host => self.context.write_mapped(address, &[0; 8]),
        }
        let held = self.held(&self.streams[2], address)?;
        let begun = Instant::now();
        match place {
            Place::Device => stream.copy_to_device(address, &self.words, ONE, 8)?,
            Place::Host => self.context.write_mapped(address, &1_u64.to_le_bytes()),
        }
        while self.word(ANSWER) == 0 && begun.elapsed() < HOLD {
            std::hint::spin_loop();
        }
        let time = begun.elapsed();
        let answer = held.end()?;
        stream.synchronize()?;
        self.context.unmap(address, bytes)?;
        self.context.unreserve(address, bytes)?;
        Ok(Finding {
            micros: (answer == SIGNALLED).then_some(time.as_secs_f64() * 1e6),
            ..Finding::new(check, answer == SIGNALLED)
        })
    }

    fn launch_nothing(&self, stream: &Stream) -> Result<(), Failure> {
        let one = Dim3::linear(1);
        stream.launch(self.nothing, [one, one], 0, &mut [0; 8])
    }

    /// Which streams hold up others: a kernel that cannot begin yet waits in each in turn.
    fn apart(&self) -> Result<Finding, Failure> {
        let groups = self.context.sm_groups(1, usize::MAX).unwrap_or_default();
        let green = match groups.first() {
            Some(group) if matches!(self.code, Code::Library(_)) => {
                Some(self.context.green_of(std::slice::from_ref(group), STREAMS)?)
            }
            _ => None,
        };
        let later = green.iter().flat_map(|green| &green.streams);
        let all: Vec<&Stream> = self.streams.iter().chain(later).collect();
        let apart = self.apart_among(&all);
        if let Some(green) = green {
            green.destroy()?;
        }
        let apart = apart?;
        Ok(Finding { apart, ..Finding::new(Check::Streams, apart.is_none()) })
    }

    fn apart_among(&self, all: &[&Stream]) -> Result<Option<u32>, Failure> {
        let events = all
            .iter()
            .map(|_| Event::new(&self.context))
            .collect::<Result<Vec<Event>, Failure>>()?;
        let everyone: Vec<usize> = (0..all.len()).collect();
        let mut apart = None;
        for blocked in 0..all.len() {
            let late = self.late_behind(blocked, &everyone, all, &events)?;
            // On a busy machine others may be late once.
            let late = match late.is_empty() {
                true => late,
                false => self.late_behind(blocked, &late, all, &events)?,
            };
            // Of two streams that share, the one that was made later has no connection of its own.
            let found = late.into_iter().map(|other| other.max(blocked)).min();
            apart = [apart, found].into_iter().flatten().min();
        }
        Ok(apart.map(|first| u32::try_from(first).unwrap_or(u32::MAX)))
    }

    /// Of these streams, those whose operations do not end while one of stream `blocked` waits for
    /// a kernel before it.
    fn late_behind(
        &self,
        blocked: usize,
        others: &[usize],
        all: &[&Stream],
        events: &[Event],
    ) -> Result<Vec<usize>, Failure> {
        let held = self.held(all[blocked], 0)?;
        self.launch_nothing(all[blocked])?;
        let others: Vec<usize> = others.iter().copied().filter(|at| *at != blocked).collect();
        for at in &others {
            self.launch_nothing(all[*at])?;
            all[*at].record(&events[*at])?;
        }
        let mut late = others.clone();
        while !late.is_empty() {
            let mut still = Vec::new();
            for at in &late {
                if !events[*at].is_reached()? {
                    still.push(*at);
                }
            }
            // What has ended after the kernel did may have waited for it.
            if self.word(ANSWER) != 0 {
                break;
            }
            late = still;
        }
        held.end()?;
        all[blocked].synchronize()?;
        others.iter().try_for_each(|at| events[*at].wait())?;
        Ok(late)
    }

    fn compile(&self, ptx: &str) -> Result<Vec<u8>, Failure> {
        self.context.compile(ptx).map_err(|error| error.failure)
    }

    fn loading(&self) -> Result<Finding, Failure> {
        let image = self.compile(PTX)?;
        let (loads, code) = self.beside(|| Code::load(&self.context, &image))?;
        let (unloads, ()) = self.beside(|| code.unload())?;
        Ok(finding(Check::Loading, &[loads, unloads]))
    }

    fn local_memory(&self) -> Result<Finding, Failure> {
        let ptx = LOCAL.replace(LOCAL_ROOM, &format!("room[{LOCAL_BYTES}]"));
        let code = Code::load(&self.context, &self.compile(&ptx)?)?;
        let kernel = code.function("partita_local")?;
        let one = Dim3::linear(1);
        let stream = &self.streams[3];
        let (launch, ()) = self.beside(|| stream.launch(kernel, [one, one], 0, &mut [0; 8]))?;
        stream.synchronize()?;
        code.unload()?;
        Ok(finding(Check::LocalMemory, &[launch]))
    }

    fn locking(&self) -> Result<Finding, Failure> {
        const PAGE: usize = 4096;
        // It holds a whole page that nothing else uses.
        let memory = vec![0_u8; 3 * PAGE];
        let start = memory.as_ptr().expose_provenance().next_multiple_of(PAGE) as u64;
        let (locks, ()) = self.beside(|| self.context.register(start, PAGE as u64))?;
        let (unlocks, ()) = self.beside(|| self.context.unregister(start))?;
        Ok(finding(Check::Locking, &[locks, unlocks]))
    }

    fn unmapping(&self) -> Result<Finding, Failure> {
        let bytes = self.context.granularity()?;
        let address = self.context.reserve(bytes, 0, 0)?;
        self.context.map(address, bytes, Place::Device)?;
        let (unmaps, ()) = self.beside(|| self.context.unmap(address, bytes))?;
        self.context.unreserve(address, bytes)?;
        Ok(finding(Check::Unmapping, &[unmaps]))
    }

    fn green_contexts(&self) -> Result<Finding, Failure> {
        let groups = self.context.sm_groups(1, usize::MAX)?;
        let first = groups.get(..1).ok_or_else(|| Failure::unsupported("groups of SMs"))?;
        let (makes, green) = self.beside(|| self.context.green_of(first, STREAMS))?;
        let (ends, ()) = self.beside(|| green.destroy())?;
        Ok(finding(Check::GreenContexts, &[makes, ends]))
    }

    fn arrays(&self) -> Result<Finding, Failure> {
        let shape = TexelFormat::new(ChannelType::F32, 1)
            .and_then(|format| ArrayShape::new(ArrayKind::Line, format, [1024, 1, 1], 1));
        let shape = shape.ok_or_else(|| Failure::unsupported("cuArray3DCreate"))?;
        let stream = &self.streams[3];
        let (makes, array) =
            self.beside(|| Array::new(&self.context, &shape, stream, MemoryBy::Driver))?;
        let (ends, ()) = self.beside(|| array.destroy(stream))?;
        Ok(finding(Check::Arrays, &[makes, ends]))
    }
}

/// A call that was made while a kernel was on the GPU.
struct Trial {
    /// Whether the call returned before the kernel ended.
    stays: bool,
    /// The time that the call took.
    time: Duration,
}

fn finding(check: Check, trials: &[Trial]) -> Finding {
    let time: Duration = trials.iter().map(|trial| trial.time).sum();
    Finding {
        micros: Some(time.as_secs_f64() * 1e6),
        ..Finding::new(check, trials.iter().all(|trial| trial.stays))
    }
}

impl Held<'_> {
    /// Lets the kernel end, and waits for that. What ended it.
    fn end(self) -> Result<u64, Failure> {
        // The thread may have released it already.
        let _ = self.release.send(());
        // It does nothing that can panic.
        let _ = self.releasing.join();
        self.over.wait()?;
        Ok(self.bench.word(ANSWER))
    }
}
