//! `partita reservation`: SMs and memory that a scheduler reserves for a job.
//!
//! The commands ask; the daemon decides what fits.

use crate::api::{ApiError, Target};
use crate::clock;
use crate::failure::Failure;
use crate::table::{Table, bytes, printable};
use clap::{Args, Subcommand};
use partita_model::{GpuNumber, MemoryAmount, Priority, Reservation, ReservationRequest, TenantId};

const MAKE_EXAMPLES: &str = "\
Examples:
  sudo partita reservation make job-42 --user alice --sms 24 --for 2h
      24 SMs of GPU 0 for the job job-42 of alice, for two hours
  sudo partita reservation make job-42 --user 1000 --sms 24 --memory 8GiB --until 1800000000
      until a time in seconds since 1970: the same command again changes nothing
  PARTITA_APP=job-42 partita run ./train
      the job: its application gets its SMs as soon as it comes

Exit codes: 0 the reservation holds, 1 it does not fit (the holders are listed) or you may not.";

const LIST_EXAMPLES: &str = "\
Examples:
  partita reservation list
      the reservations that you may see, and who has their SMs
  partita reservation list --json | jq '.[].id'
      the answer of GET /v1/reservations: [{id, tenant, job, gpu, sms, memory_bytes, expires, \
      max_sms?, priority?, application?, why?, used?}]";

const SHOW_EXAMPLES: &str = "\
Examples:
  partita reservation show job-42
      whether the job has its SMs, and what stands in the way
  partita reservation show job-42 --json | jq .application
      the answer of GET /v1/reservations/job-42";

const RELEASE_EXAMPLES: &str = "\
Examples:
  sudo partita reservation release job-42
      end the reservation; the job's application goes on with what the policy gives it
  sudo partita reservation release job-42 --if-there
      the same, and no error where there is none: for an epilog that may run twice
  sudo partita reservation release job-42 --if-until 1800000000
      the same, where it still has this end: one that was made anew meanwhile stays";

/// Reserve SMs and memory for jobs, as a scheduler does.
#[derive(Args, Debug)]
pub struct ReservationArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Make(MakeArgs),
    List(ListArgs),
    Show(ShowArgs),
    Release(ReleaseArgs),
}

/// Reserve SMs and memory for a job, or change a reservation.
#[derive(Args, Debug)]
#[command(after_help = MAKE_EXAMPLES)]
struct MakeArgs {
    /// The id of the reservation: letters, digits, `.`, `_` and `-`. You choose it.
    #[arg(value_parser = parse_id)]
    id: String,

    /// The user whose job it is, by name or number.
    #[arg(long, value_name = "USER", value_parser = parse_user)]
    user: TenantId,

    /// The job: what PARTITA_APP is in the job's environment. [default: the id]
    #[arg(long, value_name = "JOB")]
    job: Option<String>,

    /// The number of SMs.
    #[arg(long, value_name = "N")]
    sms: u16,

    /// The number of SMs that the job has at most, also where others are idle.
    #[arg(long, value_name = "N")]
    max_sms: Option<u16>,

    /// `latency`: batch applications leave their SMs to the job while it has work; `normal`;
    /// `batch`.
    #[arg(long, value_name = "PRIORITY")]
    priority: Option<Priority>,

    /// Device memory, as in 8GiB or 512MiB; a number alone counts bytes.
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = parse_bytes)]
    memory: u64,

    /// The number of the GPU.
    #[arg(long, value_name = "N", default_value_t = 0)]
    gpu: u16,

    /// How long the reservation holds from now on, as in 90s, 30m, 2h or 1d.
    #[arg(long = "for", value_name = "TIME", value_parser = clock::parse_span,
        required_unless_present = "until", conflicts_with = "until")]
    span: Option<u64>,

    /// The end of the reservation, in seconds since 1970.
    #[arg(long, value_name = "SECONDS")]
    until: Option<u64>,

    #[command(flatten)]
    target: Target,
}

/// List the reservations.
#[derive(Args, Debug)]
#[command(after_help = LIST_EXAMPLES)]
struct ListArgs {
    /// Print the API's answer as it is.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    target: Target,
}

/// Show one reservation.
#[derive(Args, Debug)]
#[command(after_help = SHOW_EXAMPLES)]
struct ShowArgs {
    /// The id of the reservation.
    #[arg(value_parser = parse_id)]
    id: String,

    /// Print the API's answer as it is.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    target: Target,
}

/// End a reservation.
#[derive(Args, Debug)]
#[command(after_help = RELEASE_EXAMPLES)]
struct ReleaseArgs {
    /// The id of the reservation.
    #[arg(value_parser = parse_id)]
    id: String,

    /// It is no error where there is no such reservation.
    #[arg(long)]
    if_there: bool,

    /// End it only where its end is this, in seconds since 1970 (`expires` of `list --json`).
    #[arg(long, value_name = "SECONDS")]
    if_until: Option<u64>,

    #[command(flatten)]
    target: Target,
}

impl ReservationArgs {
    /// Does it.
    pub fn execute(self) -> Result<Vec<u8>, Failure> {
        match self.command {
            Command::Make(args) => args.execute(),
            Command::List(args) => args.execute(),
            Command::Show(args) => args.execute(),
            Command::Release(args) => args.execute(),
        }
    }
}

impl MakeArgs {
    fn execute(self) -> Result<Vec<u8>, Failure> {
        let now = clock::now();
        let after = self.span.map(|span| now.saturating_add(span));
        let request = ReservationRequest {
            tenant: self.user,
            job: self.job.unwrap_or_else(|| self.id.clone()),
            gpu: GpuNumber(self.gpu),
            sms: self.sms,
            memory_bytes: self.memory,
            expires: self.until.or(after).unwrap_or_default(),
            max_sms: self.max_sms,
            priority: self.priority,
        };
        let is_new = self.target.put(&path(&self.id), &serde_json::to_value(&request)?)?;
        let what = if is_new { "is new" } else { "was there and holds" };
        let ReservationRequest { tenant, job, gpu, sms, memory_bytes, expires, .. } = request;
        let (id, memory) = (&self.id, bytes(memory_bytes));
        let rest = clock::span(expires.saturating_sub(now));
        let text = format!(
            "reservation {id} {what}: {sms} SMs and {memory} of {gpu} for job {} of user {}, for \
             {rest}\n",
            printable(&job),
            tenant.0
        );
        Ok(text.into_bytes())
    }
}

impl ListArgs {
    fn execute(self) -> Result<Vec<u8>, Failure> {
        if self.json {
            return Ok(self.target.get_line("/v1/reservations")?);
        }
        let all: Vec<Reservation> = self.target.get("/v1/reservations")?;
        Ok(render(&all, clock::now()).into_bytes())
    }
}

impl ShowArgs {
    fn execute(self) -> Result<Vec<u8>, Failure> {
        let path = path(&self.id);
        if self.json {
            return Ok(self.target.get_line(&path)?);
        }
        let one: Reservation = self.target.get(&path)?;
        Ok(render(&[one], clock::now()).into_bytes())
    }
}

impl ReleaseArgs {
    fn execute(self) -> Result<Vec<u8>, Failure> {
        let end = self.if_until.map(|end| format!("?expires={end}")).unwrap_or_default();
        match self.target.delete(&format!("{}{end}", path(&self.id))) {
            Err(ApiError::Missing(_)) if self.if_there => Ok(Vec::new()),
            done => Ok(done.map(|()| Vec::new())?),
        }
    }
}

fn path(id: &str) -> String {
    format!("/v1/reservations/{id}")
}

fn render(all: &[Reservation], now: u64) -> String {
    if all.is_empty() {
        return "No reservation of yours. Administrators make them: partita reservation make\n"
            .into();
    }
    let mut table = Table::new(&[
        "RESERVATION",
        "USER",
        "JOB",
        "GPU",
        "SMS",
        "MEMORY",
        "ENDS IN",
        "APP",
        "WHY NOT",
    ]);
    for one in all {
        table.row([
            one.id.clone(),
            one.tenant.0.to_string(),
            one.job.clone(),
            one.gpu.0.to_string(),
            one.sms.to_string(),
            bytes(one.memory_bytes),
            clock::span(one.expires.saturating_sub(now)),
            one.application.map_or_else(|| "none".into(), |id| id.0.to_string()),
            one.why.clone().unwrap_or_default(),
        ]);
    }
    table.render()
}

fn parse_id(text: &str) -> Result<String, String> {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let is_step = text.bytes().all(|byte| byte == b'.');
    match !is_step && text.bytes().all(is_letter) {
        true => Ok(text.to_owned()),
        false => Err("an id has letters, digits, `.`, `_` and `-`, and not dots alone".into()),
    }
}

fn parse_user(text: &str) -> Result<TenantId, String> {
    let by_name = || uzers::get_user_by_name(text).map(|user| user.uid());
    let found = text.parse().ok().or_else(by_name);
    found.map(TenantId).ok_or_else(|| format!("no user is named `{text}`"))
}

fn parse_bytes(text: &str) -> Result<u64, String> {
    // Schedulers give bytes.
    match text.parse() {
        Ok(bytes) => Ok(bytes),
        Err(_) => text.parse().map(MemoryAmount::bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(parse_bytes("8GiB"), Ok(8 << 30));
        assert_eq!(parse_bytes("1024"), Ok(1024));
        for wrong in ["", "GiB", "8GB", "8 GiB", "-1", "99999999TiB"] {
            assert!(parse_bytes(wrong).unwrap_err().contains("as in `8G`"), "{wrong}");
        }
        assert_eq!(parse_user("1000"), Ok(TenantId(1000)));
        assert_eq!(parse_user("root"), Ok(TenantId(0)));
        assert!(parse_user("no such user").unwrap_err().contains("no user is named"));
        for wrong in ["", "a/b", "a b", "../x", "?gpu=1", ".", ".."] {
            assert!(parse_id(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_reservation_says_what_stands_in_the_way() {
        let all = r#"[{"id": "a", "tenant": 1000, "job": "j", "gpu": 0, "sms": 8,
            "memory_bytes": 1048576, "expires": 3800, "application": 3},
            {"id": "b", "tenant": 1001, "job": "k", "gpu": 1, "sms": 2, "memory_bytes": 0,
            "expires": 260, "why": "SMs are pinned"}]"#;
        let all: Vec<Reservation> = serde_json::from_str(all).unwrap();
        let expected = "\
RESERVATION  USER  JOB  GPU  SMS  MEMORY   ENDS IN  APP   WHY NOT
a            1000  j    0    8    1.0 MiB  1 h      3
b            1001  k    1    2    0 B      1 min    none  SMs are pinned
";
        assert_eq!(render(&all, 200), expected);
        assert!(render(&[], 0).contains("partita reservation make"));
    }
}
