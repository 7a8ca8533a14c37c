//! `partita events`: what happens on the GPUs, as it happens or as far as it is remembered.
//!
//! A connection that breaks is made again, and the events go on after the last one that was
//! printed. Where events are missing, a line says so.

mod stream;

use crate::api::{ApiError, OfGpu, Target};
use crate::clock;
use crate::failure::{Failure, complain};
use crate::table::{nanos, printable};
use clap::Args;
use http_body_util::BodyExt as _;
use partita_model::{EventItem, Happening, OthersItem};
use serde_json::{Value, json};
use std::io::{self, Write};
use std::time::Duration;
use stream::{Parser, Told};

/// The id before everything that the daemon remembers.
const BEGINNING: &str = "0";
/// A daemon that sends nothing for so long is gone: a comment comes every 15 s.
const SILENCE: Duration = Duration::from_secs(60);
/// Pauses before a connection is made again, in seconds: the first, and the longest.
const FIRST_PAUSE: u64 = 1;
const LONGEST_PAUSE: u64 = 10;

const EXAMPLES: &str = "\
Examples:
  partita events
      what the daemon remembers: comings, goings, borders, decisions, faults, stuck launches
  partita events --follow
      what happens from now on, until Ctrl-C; a restart of the daemon is no end
  partita events --follow --since 64bd1f0a2c3e4-17
      go on after an event; the first column has the ids
  partita events --follow --json | jq -c 'select(.kind == \"fault\") | .data'
      one line for each event: {id, kind, data}, with the data of GET /v1/events";

/// Show what happens: applications, borders, decisions, faults.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct EventsArgs {
    /// Show events as they happen, until Ctrl-C.
    #[arg(long, short)]
    follow: bool,

    /// Begin after the event with this id. [default: with --follow now, else with all that the
    /// daemon remembers]
    #[arg(long, value_name = "ID", value_parser = parse_id)]
    since: Option<String>,

    /// Print one line of JSON for each event.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    gpu: OfGpu,

    #[command(flatten)]
    target: Target,
}

/// Why reading ends.
enum End {
    /// Nobody reads what is printed, or all that was wanted is printed.
    Done,
    /// The connection has ended.
    Broken(String),
    /// What is printed gets lost.
    Unwritten(io::Error),
}

impl EventsArgs {
    /// Reads and prints.
    pub fn execute(self) -> Result<Vec<u8>, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.read())
    }

    async fn read(&self) -> Result<Vec<u8>, Failure> {
        let beginning = || (!self.follow).then(|| BEGINNING.to_owned());
        let mut last = self.since.clone().or_else(beginning);
        // The first failure is the user's: a wrong folder does not get better.
        let mut end = self.read_once(&mut last).await?;
        let mut pause = FIRST_PAUSE;
        loop {
            let reason = match end {
                End::Done => return Ok(Vec::new()),
                End::Broken(reason) => reason,
                End::Unwritten(error) => return Err(Failure::unwritten(&error)),
            };
            if !self.follow {
                return Err(Failure::new(format!("the events broke off: {reason}")));
            }
            complain(&format!("{reason}; trying again in {}", clock::span(pause)));
            tokio::time::sleep(Duration::from_secs(pause)).await;
            end = match self.read_once(&mut last).await {
                Ok(end) => {
                    pause = FIRST_PAUSE;
                    end
                }
                Err(error) => {
                    pause = (2 * pause).min(LONGEST_PAUSE);
                    End::Broken(error.to_string())
                }
            };
        }
    }

    /// Reads over one connection, after the event `last`.
    async fn read_once(&self, last: &mut Option<String>) -> Result<End, ApiError> {
        let goes_on = last.clone();
        let header = goes_on.as_deref().map(|id| ("last-event-id", id));
        let mut body = self.target.open(&self.gpu.path("/v1/events"), header).await?;
        let mut parser = Parser::default();
        loop {
            let frame = match tokio::time::timeout(SILENCE, body.frame()).await {
                Ok(Some(Ok(frame))) => frame,
                Ok(Some(Err(error))) => return Ok(End::Broken(error.to_string())),
                Ok(None) => return Ok(End::Broken("the daemon has ended the events".into())),
                Err(_) => return Ok(End::Broken("the daemon says nothing more".into())),
            };
            let Ok(bytes) = frame.into_data() else { continue };
            let told = match parser.push(&bytes) {
                Ok(told) => told,
                Err(reason) => return Ok(End::Broken(reason)),
            };
            for one in told {
                if one.kind == "up_to_date" && !self.follow {
                    return Ok(End::Done);
                }
                // Before what is remembered, `hello` has the id of its end.
                if one.kind != "hello" || goes_on.is_none() {
                    *last = Some(one.id.clone());
                }
                let line = self.line(&one);
                match line.map_or(Ok(()), |line| put(&line)) {
                    Ok(()) => {}
                    Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                        return Ok(End::Done);
                    }
                    Err(error) => return Ok(End::Unwritten(error)),
                }
            }
        }
    }

    fn line(&self, told: &Told) -> Option<String> {
        if ["hello", "up_to_date"].contains(&told.kind.as_str()) {
            return None;
        }
        let Told { id, kind, data } = told;
        Some(match self.json {
            true => {
                let data: Value = serde_json::from_str(data).unwrap_or_else(|_| json!(data));
                json!({"id": id, "kind": kind, "data": data}).to_string() + "\n"
            }
            false => sentence(told) + "\n",
        })
    }
}

fn parse_id(text: &str) -> Result<String, String> {
    let is_letter = |byte: u8| byte.is_ascii_hexdigit() || byte == b'-';
    match !text.is_empty() && text.bytes().all(is_letter) {
        true => Ok(text.to_owned()),
        false => Err("an id is as in the first column of `partita events`".into()),
    }
}

/// Prints at once: the reader may be a program that waits for the next event.
fn put(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(line.as_bytes())?;
    out.flush()
}

/// An event as a line for people.
fn sentence(Told { id, kind, data }: &Told) -> String {
    let id = printable(id);
    if let Ok(EventItem { gpu, event }) = serde_json::from_str(data) {
        let (time, what) = (nanos(event.time.0), happening(&event.what));
        return format!("{id}  {gpu}  {time}  {}", printable(&what));
    }
    let missed = serde_json::from_str(data).ok().and_then(|data: Value| data["missed"].as_u64());
    if let ("lagged", Some(missed)) = (kind.as_str(), missed) {
        let number = if missed == 0 { "some".into() } else { missed.to_string() };
        return format!("{id}  events that are missing: {number}; `partita status` has the state");
    }
    if let ("others", Ok(others)) = (kind.as_str(), serde_json::from_str(data)) {
        let OthersItem { gpu, applications, sms } = others;
        return format!("{id}  {gpu}  other users: {applications} applications, {sms} SMs");
    }
    // An event that this version does not know.
    format!("{id}  {}: {}", printable(kind), printable(data))
}

fn happening(what: &Happening) -> String {
    match what {
        Happening::ApplicationCame { application, name, tag } => {
            let tag = tag.as_ref().map(|tag| format!(", tag {tag}")).unwrap_or_default();
            format!("{application} came: {name}{tag}")
        }
        Happening::ApplicationLeft { application } => format!("{application} left"),
        Happening::SessionCame { session, application, pid: 0 } => {
            format!("{session} of {application} came, a process of another PID namespace")
        }
        Happening::SessionCame { session, application, pid } => {
            format!("{session} of {application} came, process {pid}")
        }
        Happening::SessionLeft { session, application } => {
            format!("{session} of {application} left")
        }
        Happening::Border { application, from, to } => {
            format!("{application}: SMs {from} -> {to}")
        }
        // The first sentence has the number.
        Happening::Decision { why, .. } if !why.is_empty() => why.join(" "),
        Happening::Decision { decision, .. } => format!("decision {decision}"),
        Happening::Fault { session, application, error, text } => {
            format!("{session} of {application} failed: {error}: {text}")
        }
        Happening::Stuck { session, application, text } => {
            format!("{session} of {application} makes no progress: {text}")
        }
        Happening::Restarted { reason } => {
            let reason = reason.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
            format!("partita-gpu serves anew{reason}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_sentences() {
        let check = |kind: &str, data: &str, expected: &str| {
            let told = Told { id: "e-7".into(), kind: kind.into(), data: data.into() };
            assert_eq!(sentence(&told), expected);
        };
        check(
            "border",
            r#"{"gpu":0,"sequence":17,"time":2732000,"tenant":1000,"event":"border",
                "application":1,"from":"0-11","to":"0-11,18-23"}"#,
            "e-7  GPU 0  2.7 ms  application 1: SMs 0-11 -> 0-11,18-23",
        );
        check(
            "fault",
            r#"{"gpu":1,"sequence":1,"time":1000,"event":"fault","session":3,"application":2,
                "error":"CUDA_ERROR_X","text":"line\u001b[2J"}"#,
            "e-7  GPU 1  1.0 us  session 3 of application 2 failed: CUDA_ERROR_X: line\\u{1b}[2J",
        );
        check(
            "decision",
            r#"{"gpu":0,"sequence":1,"time":6000,"event":"decision","decision":4,
                "cause":"membership","why":["Decision 4 of even.","So it is."]}"#,
            "e-7  GPU 0  6.0 us  Decision 4 of even. So it is.",
        );
        check(
            "others",
            r#"{"gpu":0,"applications":2,"sms":12}"#,
            "e-7  GPU 0  other users: 2 applications, 12 SMs",
        );
        let state = "`partita status` has the state";
        let lagged = format!("e-7  events that are missing: 9; {state}");
        check("lagged", r#"{"missed":9}"#, &lagged);
        check("lagged", r#"{"missed":0}"#, &lagged.replace('9', "some"));
        check("newer", r#"{"x":1}"#, r#"e-7  newer: {"x":1}"#);
    }
}
