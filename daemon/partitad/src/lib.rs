//! The control plane's shell: the handshake with clients, the supervision of `partita-gpu`, and the
//! API.
//!
//! `partitad` never touches a GPU and decides nothing about sharing. It hands clients with their
//! sockets to `partita-gpu`, and passes questions of the API on. When `partita-gpu` dies,
//! `partitad` goes on answering and starts it again. The process has one thread.
//!
//! | module | what |
//! | --- | --- |
//! | [`options`] | the command line |
//! | [`sockets`] | the folder of the sockets, claimed by one daemon at a time |
//! | [`devices`] | the GPUs to serve |
//! | [`supervisor`] | the process `partita-gpu`, one for each GPU |
//! | [`gpu_program`] | starting it |
//! | [`calling`] | calling it, whoever started it |
//! | [`link`] | the control socket to one `partita-gpu` |
//! | [`gpus`] | the links to all GPUs |
//! | [`events`] | what the data planes tell, for all readers |
//! | [`front_desk`] | the handshake with clients |
//! | [`api`], [`problem`] | HTTP for administrators and schedulers |
//! | [`reservations`], [`keeper`] | what schedulers have asked for, and how jobs get it |
//! | `metrics` | the page of metrics |
//! | `places` | how many connections each user has |
//! | [`owners`] | the tenants to which users of containers are accounted |
//! | [`rights`] | who may change things |
//! | `view` | what a user sees of a status report |
//! | `connections` | the connections to the API, with limits for each user |
//! | [`config_files`] | the configuration file and its drop-ins |
//! | [`configuration`] | the `[policy]` section of the configuration file |
//! | [`policy`] | the policy that the data planes use |
//! | [`in_force`], `written` | the configuration in force, and where each key comes from |
//! | [`readiness`] | messages to systemd and to other starters |

pub mod api;
pub mod calling;
pub mod config_files;
pub mod configuration;
mod connections;
pub mod devices;
pub mod events;
pub mod front_desk;
pub mod gpu_program;
pub mod gpus;
pub mod in_force;
pub mod keeper;
mod ledger;
pub mod link;
mod metrics;
pub mod options;
pub mod owners;
mod patience;
mod places;
pub mod policy;
pub mod problem;
pub mod readiness;
pub mod recent;
pub mod reservations;
pub mod rights;
pub mod sockets;
pub mod supervisor;
mod view;
mod written;

use api::Api;
use gpu_program::GpuProgram;
use gpus::Gpus;
use in_force::InForce;
use link::GpuHandle;
use options::Options;
use owners::Owners;
use partita_model::{DeviceKind, GpuNumber};
use policy::{PolicyError, PolicySource};
use readiness::Readiness;
use reservations::Book;
use rights::Rights;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sockets::{Activated, SocketFolder};
use std::io;
use std::sync::Arc;
use supervisor::{Place, Starter, SupervisionError, Supervisor};
use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Why the daemon ended.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// No folder is known.
    #[error(transparent)]
    NoSocketDir(#[from] options::NoSocketDir),
    /// The folder cannot be served.
    #[error(transparent)]
    Sockets(#[from] sockets::SocketError),
    /// These GPUs cannot be served together.
    #[error(transparent)]
    Devices(#[from] devices::DevicesError),
    /// There is no data plane.
    #[error(transparent)]
    Supervision(#[from] SupervisionError),
    /// The policy cannot hold.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The system's word.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

impl DaemonError {
    /// The exit code of the process: 2 where the command line is at fault, else 1.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            DaemonError::NoSocketDir(_) | DaemonError::Policy(_) | DaemonError::Devices(_) => 2,
            DaemonError::Supervision(error) => error.exit_code(),
            DaemonError::Sockets(_) | DaemonError::Io { .. } => 1,
        }
    }
}

/// Checks the configuration and what `--device` says, without serving and without a GPU. Says which
/// files and devices were checked.
///
/// # Errors
/// [`DaemonError`] where the daemon would refuse the start, whatever GPUs there are.
pub fn check_config(options: &Options) -> Result<String, DaemonError> {
    let gpu_count = match devices::ask_for_all(&options.devices) {
        true => partita_wire::MAX_GPUS,
        false => options.devices.len(),
    };
    let source = PolicySource { file: options.config.clone(), named: options.policy };
    let files = source.check(u16::try_from(gpu_count).unwrap_or(u16::MAX))?;
    let read: String = files.iter().map(|file| format!("{}: fine\n", file.display())).collect();
    let read = if read.is_empty() { "no file: name one with --config\n".into() } else { read };
    Ok(read + &check_devices(options)?)
}

fn check_devices(options: &Options) -> Result<String, DaemonError> {
    let texts = devices::texts(&options.devices, options.sharing.as_deref(), &|| 0)?;
    let program = match GpuProgram::find(None, options.end_with_parent) {
        // systemd may know where the program is.
        Err(_) if options.gpu_sockets => return Ok(String::new()),
        // The files may be meant for another machine.
        Err(SupervisionError::NotFound) if options.devices == ["auto"] => {
            return Ok("devices: not checked, because partita-gpu is not here\n".to_owned());
        }
        found => found?,
    };
    for text in &texts {
        program.check(text)?;
    }
    let said = |device: &String| format!("--device {device}: fine\n");
    Ok(options.devices.iter().map(said).collect())
}

/// Serves until a signal asks for the end.
///
/// # Errors
/// [`DaemonError`] where it cannot start, or cannot go on.
pub async fn run(options: Options, readiness: Readiness) -> Result<(), DaemonError> {
    let mut terminate =
        signal(SignalKind::terminate()).map_err(io_error("cannot wait for SIGTERM"))?;
    let mut interrupt =
        signal(SignalKind::interrupt()).map_err(io_error("cannot wait for SIGINT"))?;
    let mut hangup = signal(SignalKind::hangup()).map_err(io_error("cannot wait for SIGHUP"))?;
    raise_descriptor_limit();

    let activated = Activated::take().map_err(io_error("cannot take systemd's sockets"))?;
    let folder = SocketFolder::claim(&options.socket_dir()?, options.socket_mode, activated)?;
    let (gpus, supervisors) = start_gpus(&options, &folder).await?;
    let Desks { source, in_force, clients, http, owners, metrics, api } =
        match Desks::open(&options, &folder, &gpus).await {
            Ok(desks) => desks,
            Err(error) => {
                give_up(supervisors).await;
                return Err(error);
            }
        };
    let names =
        gpus.all().iter().filter_map(|gpu| gpu.handle.state().facts).map(|facts| facts.name);
    let status =
        format!("serving {} in {}", names.collect::<Vec<_>>().join(", "), folder.path().display());
    tracing::info!("{status}");
    readiness.ready(&status);

    let (stop, stopped) = watch::channel(());
    let mut supervision = JoinSet::new();
    for supervisor in supervisors {
        let mut stopped = stopped.clone();
        supervision.spawn(supervisor.run(async move { drop(stopped.changed().await) }));
    }
    let result = tokio::select! {
        () = front_desk::serve(clients, gpus.clone(), owners.clone()) => Ok(()),
        () = owners.follow() => Ok(()),
        () = reload(&mut hangup, &source, &gpus, (&in_force, &readiness, &status)) => Ok(()),
        () = api::serve(http, api.clone()) => Ok(()),
        () = serve_metrics(metrics, api) => Ok(()),
        () = readiness.keep_alive() => Ok(()),
        // A GPU without supervision would never be served again.
        Some(ended) = supervision.join_next() => Err(DaemonError::Io {
            what: "supervision failed",
            source: ended.map_or_else(Into::into, |()| io::Error::other("it ended")),
        }),
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    };
    tracing::info!("ending");
    readiness.stopping();
    drop(folder);
    drop(stop);
    while let Some(ended) = supervision.join_next().await {
        ended.map_err(|error| DaemonError::Io {
            what: "supervision failed",
            source: error.into(),
        })?;
    }
    result
}

fn io_error(what: &'static str) -> impl FnOnce(io::Error) -> DaemonError {
    move |source| DaemonError::Io { what, source }
}

/// Everything at which others ask, and what the answers need.
struct Desks {
    source: PolicySource,
    in_force: Arc<InForce>,
    clients: UnixListener,
    http: UnixListener,
    owners: Owners,
    metrics: Option<TcpListener>,
    api: Api,
}

impl Desks {
    /// Puts the configuration in force on GPUs that are ready, and opens all desks.
    async fn open(
        options: &Options,
        folder: &SocketFolder,
        gpus: &Gpus,
    ) -> Result<Desks, DaemonError> {
        let source = PolicySource { file: options.config.clone(), named: options.policy };
        let in_force = Arc::new(InForce::new(options));
        source.apply(gpus, &in_force).await?;
        let clients = folder.listen_for_clients()?;
        let clients =
            UnixListener::from_std(clients).map_err(io_error("cannot wait for clients"))?;
        let http = folder.listen_for_http()?;
        let http =
            UnixListener::from_std(http).map_err(io_error("cannot wait for the API's callers"))?;

        let owners = Owners::system();
        owners.read_first().await;
        let own = rustix::process::geteuid().as_raw();
        let rights = Rights::new(own, Some(&options.admin_group), owners.clone());
        let metrics = listen_for_metrics(options).await?;
        let file = options.state_dir().map(|state| reservations::file_in(&state, folder.path()));
        let book = Book::open(gpus.clone(), file);
        let api = Api::new(gpus.clone(), rights, book, Arc::clone(&in_force));
        Ok(Desks { source, in_force, clients, http, owners, metrics, api })
    }
}

/// Ends the processes that were started, all at once, because nobody will be served.
async fn give_up(supervisors: impl IntoIterator<Item = Supervisor>) {
    let mut ending = JoinSet::new();
    for supervisor in supervisors {
        ending.spawn(supervisor.give_up());
    }
    while ending.join_next().await.is_some() {}
}

/// The listener of `--metrics-listen`, where it is given.
async fn listen_for_metrics(options: &Options) -> Result<Option<TcpListener>, DaemonError> {
    let Some(address) = options.metrics_listen else { return Ok(None) };
    let listener = TcpListener::bind(address).await.map_err(|source| DaemonError::Io {
        what: "cannot listen on the address of --metrics-listen",
        source,
    })?;
    // Port 0 is any free one.
    let address = listener.local_addr().unwrap_or(address);
    tracing::info!("metrics are at http://{address}/metrics");
    Ok(Some(listener))
}

async fn serve_metrics(listener: Option<TcpListener>, api: Api) {
    match listener {
        Some(listener) => api::serve_metrics(listener, api).await,
        None => std::future::pending().await,
    }
}

/// Finds or starts a `partita-gpu` for each GPU, all at once, and waits until they are ready. Where
/// one process cannot become ready, the processes that were started end.
async fn start_gpus(
    options: &Options,
    folder: &SocketFolder,
) -> Result<(Gpus, Vec<Supervisor>), DaemonError> {
    let (starter, texts) = starter_and_texts(options, folder).await?;
    let mut starting = JoinSet::new();
    let mut policies = Vec::new();
    for (number, text) in (0..).map(GpuNumber).zip(&texts) {
        let (chosen, policy) = watch::channel(None);
        policies.push(chosen);
        let place = Place { socket: folder.gpu_socket(number)?, starter: starter.clone() };
        let start = Supervisor::start(place, number, text.clone(), policy);
        starting.spawn(async move { (number, start.await) });
    }
    let mut started = Vec::new();
    while let Some(ended) = starting.join_next().await {
        let ended = ended.map_err(|error| io_error("supervision failed")(error.into()));
        match ended.and_then(|(number, result)| Ok((number, result?))) {
            Ok(one) => started.push(one),
            Err(error) => {
                starting.abort_all();
                while let Some(ended) = starting.join_next().await {
                    // One may have been ready at the same moment.
                    if let Ok((number, Ok(one))) = ended {
                        started.push((number, one));
                    }
                }
                give_up(started.into_iter().map(|(_, (supervisor, _))| supervisor)).await;
                return Err(error);
            }
        }
    }
    started.sort_by_key(|(number, _)| *number);
    let (supervisors, states): (Vec<_>, Vec<_>) =
        started.into_iter().map(|(_, started)| started).unzip();
    let handles = states.into_iter().map(GpuHandle::new);
    let gpus = Gpus::new(handles.zip(policies).collect());
    if let Some((first, second)) = same_gpu(&gpus) {
        give_up(supervisors).await;
        let (first, second) = (texts[first].clone(), texts[second].clone());
        return Err(devices::DevicesError::Twice { first, second }.into());
    }
    Ok((gpus, supervisors))
}

/// Two of the GPUs that are the same: the driver may list one under two numbers.
fn same_gpu(gpus: &Gpus) -> Option<(usize, usize)> {
    let identity = |gpu: &gpus::Gpu| {
        let facts = gpu.handle.state().facts.filter(|facts| facts.kind == DeviceKind::Cuda);
        facts.map(|facts| facts.uuid)
    };
    gpus.all().iter().enumerate().find_map(|(index, second)| {
        let is_same =
            |first: &gpus::Gpu| identity(first).is_some_and(|uuid| Some(uuid) == identity(second));
        let first = gpus.all()[..index].iter().position(is_same)?;
        Some((first, index))
    })
}

/// Who starts `partita-gpu`, and the text of each GPU.
async fn starter_and_texts(
    options: &Options,
    folder: &SocketFolder,
) -> Result<(Starter, Vec<String>), DaemonError> {
    let texts = |count| devices::texts(&options.devices, options.sharing.as_deref(), count);
    if !options.gpu_sockets {
        let program = GpuProgram::find(options.state_dir(), options.end_with_parent)?;
        let texts = texts(&|| program.count_gpus())?;
        return Ok((Starter::Partitad(program), texts));
    }
    let count = match devices::ask_for_all(&options.devices) {
        true => calling::count_gpus(&folder.gpu_socket(GpuNumber(0))?)
            .await
            .map_err(SupervisionError::Call)?,
        false => 0,
    };
    Ok((Starter::Systemd, texts(&|| count)?))
}

/// Reads the configuration again at every SIGHUP. The API, the log and systemd hear the result.
async fn reload(
    hangup: &mut Signal,
    source: &PolicySource,
    gpus: &Gpus,
    (in_force, readiness, status): (&InForce, &Readiness, &str),
) {
    while hangup.recv().await.is_some() {
        match source.apply(gpus, in_force).await {
            Ok(config) => {
                let policy = (config.policy.selector, config.policy.partitioner);
                tracing::info!(?policy, "the configuration was read again");
                readiness.status(status);
            }
            Err(error) => {
                tracing::error!("{error}; the policy in force stays");
                // Everybody may read it, and the reason may name users.
                readiness.status(&format!("{status}; the last reload was refused: see the log"));
            }
        }
    }
    std::future::pending().await
}

/// Every session needs file descriptors in this process and in `partita-gpu`, which inherits the
/// limit.
fn raise_descriptor_limit() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::debug!(%error, "the limit of file descriptors stays as it is");
    }
}
