//! The neighbours beside which a program is measured: one that is built in, or a program of the
//! user's.
//!
//! The built-in neighbour is this program in another process. It keeps all SMs that it may use
//! busy with CTAs that sleep: they hold places and use neither instructions nor bandwidth. What a
//! program loses beside it, sharing itself costs.

use partita_cli::api::Target as Api;
use partita_cli::failure::Failure;
use partita_cli::run::child::{self, ChildDaemon};
use partita_cli::run::locate::SELF;
use partita_client::image::{Image, ImageKind};
use partita_client::{CallError, EventHandle, Launch, Session, StreamHandle};
use partita_model::{DeviceAddress, Dim3, StatusReport};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// The option of `partita bench overhead` with which the built-in neighbour is started.
pub const OPTION: &str = "--be-neighbour";

/// How long a neighbour may take until it has connected.
const PATIENCE: Duration = Duration::from_secs(60);

const KERNELS: &str = include_str!("kernels.ptx");
/// CTAs of a launch of the built-in neighbour: several waves on the largest GPU.
const CTAS: u32 = 4_224;
/// Threads of each: eight CTAs fill an SM.
const THREADS: u32 = 256;
/// Sleep of each in nanoseconds.
const SLEEP_NS: u32 = 10_000;
/// Launches between two events. One batch runs while the next one is queued.
const BATCH: usize = 4;

/// What runs beside a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Neighbour {
    /// Busy until it is ended.
    BuiltIn,
    /// A program with its arguments.
    Program(Vec<String>),
}

impl Neighbour {
    /// Reads the value of `--beside`, which is empty for the built-in neighbour.
    pub fn parse(text: &str) -> Result<Neighbour, String> {
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        match (text.is_empty(), words.is_empty()) {
            (true, _) => Ok(Neighbour::BuiltIn),
            (false, true) => Err("no program is named: leave the value away for the built-in \
                                  neighbour, or give `--beside 'PROGRAM ARGS'`"
                .to_owned()),
            (false, false) => Ok(Neighbour::Program(words)),
        }
    }

    /// Its name in messages.
    pub fn name(&self) -> String {
        match self {
            Neighbour::BuiltIn => "the built-in neighbour".to_owned(),
            Neighbour::Program(words) => format!("the neighbour `{}`", words.join(" ")),
        }
    }

    /// Starts it, and waits until the daemon serves it.
    pub fn start(&self, daemon: &ChildDaemon) -> Result<Child, String> {
        let name = self.name();
        let mut command = match self {
            Neighbour::BuiltIn => {
                let mut command = daemon.program(Path::new(SELF));
                command.args(["overhead", OPTION]).arg(daemon.folder());
                command
            }
            Neighbour::Program(words) => {
                let (path, arguments) = words.split_first().ok_or("no neighbour is named")?;
                let mut command = daemon.program(Path::new(path));
                command.args(arguments);
                command
            }
        };
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|error| {
            format!("{name} cannot be started: {error}; give the path of a program to --beside")
        })?;
        let api = Api::folder(daemon.folder());
        let begin = Instant::now();
        loop {
            let status =
                api.get::<StatusReport>("/v1/status").map_err(|error| error.to_string())?;
            if !status.applications.is_empty() {
                return Ok(child);
            }
            let ended = child.try_wait().map_err(|error| format!("{name}: {error}"))?;
            if ended.is_some() || begin.elapsed() > PATIENCE {
                child::end(&mut child);
                let how = ended.map_or("not connected in a minute".to_owned(), |status| {
                    format!("ended with {status} before it used the GPU")
                });
                return Err(format!("{name} has {how}: try it alone with `partita run`"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Is the built-in neighbour of a daemon, until the daemon ends.
pub fn run(folder: &Path) -> Result<Vec<u8>, Failure> {
    let session = Session::connect(folder)?;
    let bytes = KERNELS.as_bytes();
    let image = Image { kind: ImageKind::Ptx, bytes, unpacked_bytes: bytes.len() as u64 };
    let module = session.load_module(&image)?.module;
    let stream = StreamHandle::LEGACY;
    let data = session.mem_alloc(u64::from(CTAS * THREADS) * 4)?;
    let times = session.mem_alloc(u64::from(CTAS) * 4)?;
    session.fill(stream, times, SLEEP_NS, 4, CTAS.into())?;
    let params = [data, times].map(|DeviceAddress(address)| address.to_le_bytes()).concat();
    let launch = || {
        session.launch(Launch {
            stream,
            module,
            kernel: 0,
            grid: Dim3::linear(CTAS),
            block: Dim3::linear(THREADS),
            dynamic_shared: 0,
            cooperative: false,
            cluster: Dim3::linear(1),
            params: params.as_slice(),
        })
    };
    let mut pair = [session.create_event()?, session.create_event()?];
    batch(&session, pair[0], launch)?;
    loop {
        batch(&session, pair[1], launch)?;
        session.synchronize_event(pair[0])?;
        pair.reverse();
    }
}

/// Launches a batch, with an event behind it.
fn batch(
    session: &Session,
    event: EventHandle,
    launch: impl Fn() -> Result<(), CallError>,
) -> Result<(), CallError> {
    for _ in 0..BATCH {
        launch()?;
    }
    session.record_event(event, StreamHandle::LEGACY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_beside() {
        assert_eq!(Neighbour::parse(""), Ok(Neighbour::BuiltIn));
        let words = ["./a", "1"].map(str::to_owned).to_vec();
        assert_eq!(Neighbour::parse(" ./a  1 "), Ok(Neighbour::Program(words)));
        assert!(Neighbour::parse("  ").unwrap_err().contains("--beside 'PROGRAM ARGS'"));
    }
}
