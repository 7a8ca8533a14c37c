//! What happens at each hook: options at the start, a reservation from prolog to epilog, the
//! environment of each task.
//!
//! Invariants: a hook returns nothing, because nothing of Partita may fail a job or drain a node.
//! What goes wrong is told: in the log of `slurmd` and, where it costs the job its SMs, to its
//! user.

use crate::account;
use crate::api::{self, ApiError};
use crate::environment::{changes, name_of};
use crate::options::{OPTIONS, Place, Wishes, from_environment, given};
use crate::settings::Settings;
use crate::spank::{self, Spank};
use partita_model::{GpuNumber, JobUsage, Reservation, ReservationRequest, TenantId};
use std::num::NonZeroU16;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long a question is repeated while no daemon answers, and the pause between two: a restart of
/// the daemon takes less.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(250);

/// The library is loaded.
pub(crate) fn init(spank: &Spank<'_>, settings: Settings) {
    let place = spank::place();
    // Users can do nothing about the administrator's mistakes.
    if place == Place::Node {
        settings.complaints.iter().for_each(|why| spank::error(why));
        return;
    }
    spank.register_options();
    if place == Place::Submission {
        for (name, value) in from_environment(|name| std::env::var(name).ok()) {
            spank::set_own_variable(name, &value);
        }
    }
}

/// A step begins, with the rights of its user.
pub(crate) fn user_init(spank: &Spank<'_>, settings: Settings) {
    let Some(job) = spank.job().filter(|_| !given().is_empty()) else { return };
    if let Err(why) = api::ask(&settings.socket_dir, "GET", &path_of(job), None) {
        let why = match why {
            ApiError::Refused { status: 404, .. } => {
                "its node's log of slurmd says why, or the options were given to a step only".into()
            }
            why => why.to_string(),
        };
        spank::tell(&format!("no SMs are promised to job {job}: {why}"));
    }
}

/// A task is about to become its program.
pub(crate) fn task_init(spank: &Spank<'_>, settings: Settings) {
    let wishes = given();
    let Some(job) = spank.job().filter(|_| !wishes.is_empty()) else { return };
    for (name, value) in changes(&settings, &wishes, job, |name| spank.variable(name)) {
        spank.set_variable(name, &value);
    }
}

/// A step has ended, or a command of Slurm ends.
pub(crate) fn exit(spank: &Spank<'_>, settings: Settings) {
    if spank::place() != Place::Step || !settings.comment || given().is_empty() {
        return;
    }
    // Slurm says so in the environment of a script, and steps inside the script inherit it.
    let is_inside = spank.variable("ENVIRONMENT").as_deref() == Some("BATCH");
    let Some(job) = spank.job().filter(|_| spank.is_script() || !is_inside) else { return };
    let Some(used) = usage_of(&settings, job) else { return };
    if let Err(why) = account::comment(job, &account::line(&used)) {
        spank::info(&format!("job {job} gets no comment: {why}"));
    }
}

/// What a job with a reservation has had so far.
fn usage_of(settings: &Settings, job: u32) -> Option<JobUsage> {
    let reservation = api::ask(&settings.socket_dir, "GET", &path_of(job), None).ok()?;
    serde_json::from_value::<Reservation>(reservation).ok()?.used
}

/// The node prepares for a job.
pub(crate) fn prolog(spank: &Spank<'_>, settings: Settings) {
    let wishes = wishes_of(spank);
    let (Some(job), Some(user)) = (spank.job(), spank.user()) else { return };
    if wishes.is_empty() {
        return;
    }
    let name = name_of(job);
    let body = serde_json::to_value(request(&settings, &wishes, &name, user));
    let body = body.unwrap_or_default();
    match patiently(|| api::ask(&settings.socket_dir, "PUT", &path_of(job), Some(&body))) {
        Ok(_) => spank::info(&format!("job {job} has its reservation")),
        Err(why) => spank::error(&format!("job {job} has no reservation: {why}")),
    }
}

/// The node cleans up after a job.
pub(crate) fn epilog(spank: &Spank<'_>, settings: Settings) {
    let Some(job) = spank.job() else { return };
    let is_ours = !wishes_of(spank).is_empty();
    if let Some(used) = usage_of(&settings, job).filter(|_| is_ours) {
        spank::info(&format!("job {job} has ended; {}", account::line(&used)));
    }
    let ask = || api::ask(&settings.socket_dir, "DELETE", &path_of(job), None);
    // A job without the options is not waited for: its node may have no daemon.
    let done = if is_ours { patiently(ask) } else { ask() };
    match done {
        Ok(_) => spank::info(&format!("the reservation of job {job} has ended")),
        Err(ApiError::Refused { status: 404, .. }) => {}
        Err(_) if !is_ours => {}
        Err(why) => spank::error(&format!("the reservation of job {job} stays: {why}")),
    }
}

/// What a prolog or an epilog is told of the job's options.
fn wishes_of(spank: &Spank<'_>) -> Wishes {
    let mut wishes = Wishes::default();
    for number in 0..OPTIONS.len() {
        if let Some(value) = spank.option(number)
            && let Err(why) = wishes.take(number, &value)
        {
            spank::error(&why);
        }
    }
    wishes
}

fn path_of(job: u32) -> String {
    format!("/v1/reservations/{}", name_of(job))
}

fn request(settings: &Settings, wishes: &Wishes, name: &str, user: u32) -> ReservationRequest {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    ReservationRequest {
        tenant: TenantId(user),
        job: name.to_owned(),
        gpu: GpuNumber(settings.gpu),
        sms: wishes.sms.map_or(1, |sms| sms.min.get()),
        memory_bytes: wishes.memory.map_or(0, |memory| memory.bytes()),
        expires: now + u64::from(settings.days) * 24 * 60 * 60,
        max_sms: wishes.sms.and_then(|sms| sms.max).map(NonZeroU16::get),
        priority: wishes.priority,
    }
}

/// Asks again while no daemon answers.
fn patiently<T>(ask: impl Fn() -> Result<T, ApiError>) -> Result<T, ApiError> {
    let begun = Instant::now();
    loop {
        match ask() {
            Err(ApiError::Silent { .. }) if begun.elapsed() < PATIENCE => std::thread::sleep(PAUSE),
            done => return done,
        }
    }
}
