//! `partita top`: the GPU, its applications and the policy's decisions, live, with keys to steer.
//!
//! The state ([`state`]) and the screen ([`view`]) do no I/O. Here are the terminal and the
//! threads: one reads the API at an interval, one reads keys, one waits for signals, one carries
//! out what keys ask for. All of them report to one channel, so the screen waits for nobody. The
//! terminal gets its former state back when the command ends, at a signal, and at a panic.

mod state;
mod view;

use crate::api::{ApiError, OfGpu, Target};
use crate::failure::Failure;
use crate::watch::repeat::seconds;
use clap::Args;
use partita_model::StatusReport;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyEvent, KeyEventKind};
use serde_json::json;
use state::{Command, Top};
use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// The frame where there is no terminal, in characters: rows grow with the applications.
const FRAME: (u16, u16) = (100, 24);
/// Exit codes of a process that a signal ends begin here.
const SIGNALLED: u8 = 128;

const EXAMPLES: &str = "\
Examples:
  partita top
      SM map, speeds, memory and decisions, read every second; ? lists the keys
  partita top --interval 0.2 --gpu 1
      five times a second, of GPU 1 only
  partita top --once --no-colour
      print one frame as text; the same happens where stdout is no terminal

NO_COLOR in the environment turns colours off, too.";

/// Watch the GPU and its applications live, and steer them by keys.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct TopArgs {
    /// Seconds between two readings.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    interval: Duration,

    /// Print one frame as text, after two readings.
    #[arg(long)]
    once: bool,

    /// Use no colours.
    #[arg(long, alias = "no-color")]
    no_colour: bool,

    #[command(flatten)]
    gpu: OfGpu,

    #[command(flatten)]
    target: Target,
}

/// What reaches the screen.
enum Message {
    /// A reading of the API.
    Reading(Box<Result<StatusReport, String>>),
    /// A key.
    Key(KeyEvent),
    /// The terminal has another size.
    Resized,
    /// What a command for the daemon led to, in words.
    Done(String),
    /// A signal asks the process to end.
    Signal(u8),
    /// The terminal cannot be read any more.
    Deaf(String),
}

impl TopArgs {
    /// Shows until a key or a signal ends it.
    pub fn execute(self) -> Result<Vec<u8>, Failure> {
        let is_terminal = io::stdout().is_terminal() && io::stdin().is_terminal();
        let mut top = Top::new();
        // A first reading that fails is the user's: a wrong folder does not get better.
        top.absorb(Ok(self.target.get(&self.gpu.path("/v1/status"))?));
        if self.once || !is_terminal {
            thread::sleep(self.interval);
            top.absorb(Ok(self.target.get(&self.gpu.path("/v1/status"))?));
            return Ok(frame(&top)?.into_bytes());
        }
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let colour = !self.no_colour && !no_colour;
        let mut terminal = ratatui::try_init()?;
        let (messages, inbox) = mpsc::channel();
        let ended = self
            .listen(&messages)
            .and_then(|orders| run(&mut terminal, &mut top, colour, &inbox, &orders));
        ratatui::try_restore()?;
        match ended? {
            0 => Ok(Vec::new()),
            number => {
                let text = format!("signal {number} ended the view");
                Err(Failure::new(text).with_code(SIGNALLED + number))
            }
        }
    }

    /// Starts the threads; where to send commands for the daemon.
    fn listen(self, messages: &Sender<Message>) -> io::Result<Sender<Command>> {
        let target = Arc::new(self.target);
        let (orders, inbox) = mpsc::channel();
        let (ask, tell) = (Arc::clone(&target), messages.clone());
        let (path, interval) = (self.gpu.path("/v1/status"), self.interval);
        spawn("readings", move || {
            let read = || {
                thread::sleep(interval);
                ask.get(&path).map_err(|error| error.to_string())
            };
            while tell.send(Message::Reading(Box::new(read()))).is_ok() {}
        })?;
        let tell = messages.clone();
        spawn("keys", move || while tell.send(next_event()).is_ok() {})?;
        let tell = messages.clone();
        spawn("signals", move || drop(await_signal().map(|number| tell.send(number))))?;
        let tell = messages.clone();
        spawn("orders", move || {
            while let Ok(command) = inbox.recv() {
                let done = carry_out(&target, command).unwrap_or_else(|error| error.to_string());
                drop(tell.send(Message::Done(done)));
            }
        })?;
        Ok(orders)
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.into()).spawn(body).map(drop)
}

/// The next event of the terminal that means something.
fn next_event() -> Message {
    loop {
        match event::read() {
            Ok(Event::Key(key)) if key.kind != KeyEventKind::Release => return Message::Key(key),
            Ok(Event::Resize(..)) => return Message::Resized,
            Ok(_) => {}
            Err(error) => return Message::Deaf(error.to_string()),
        }
    }
}

/// Waits for a signal that ends the process.
fn await_signal() -> io::Result<Message> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hangup = signal(SignalKind::hangup())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        // The numbers of POSIX.
        Ok(Message::Signal(tokio::select! {
            _ = hangup.recv() => 1,
            _ = interrupt.recv() => 2,
            _ = terminate.recv() => 15,
        }))
    })
}

/// Draws and obeys until the end; the number of the signal that ended it, or 0.
fn run(
    terminal: &mut ratatui::DefaultTerminal,
    top: &mut Top,
    colour: bool,
    inbox: &Receiver<Message>,
    orders: &Sender<Command>,
) -> io::Result<u8> {
    loop {
        terminal.draw(|frame| view::draw(frame, top, colour))?;
        // This function's caller holds a sender: there is always another message.
        let Ok(message) = inbox.recv() else { return Ok(0) };
        match message {
            Message::Reading(reading) => top.absorb(*reading),
            Message::Resized => {}
            Message::Done(text) => top.message = text,
            Message::Signal(number) => return Ok(number),
            Message::Deaf(reason) => return Err(io::Error::other(reason)),
            Message::Key(key) => match top.key(key) {
                None => {}
                Some(Command::Quit) => return Ok(0),
                Some(command) => {
                    top.message = "asking the daemon".into();
                    drop(orders.send(command));
                }
            },
        }
    }
}

/// Asks the daemon for what a key means; what happened, in words.
fn carry_out(target: &Target, command: Command) -> Result<String, ApiError> {
    match command {
        Command::Quit => Ok(String::new()),
        Command::Plan(gpu, shares) if shares.is_empty() => {
            target.delete(&format!("/v1/plan?gpu={}", gpu.0))?;
            Ok("no application is pinned: the policy decides".into())
        }
        Command::Plan(gpu, shares) => {
            let partitions: Vec<_> = shares
                .iter()
                .map(|(application, sms)| json!({"application": application, "sms": sms}))
                .collect();
            target.put(&format!("/v1/plan?gpu={}", gpu.0), &json!({"partitions": partitions}))?;
            let shares: Vec<String> = shares
                .iter()
                .map(|(application, sms)| format!("{}={sms}", application.0))
                .collect();
            Ok(format!("pinned: {}", shares.join(" ")))
        }
        Command::Cancel(sessions) => {
            for session in &sessions {
                target.delete(&format!("/v1/sessions/{}/launches", session.0))?;
            }
            let sessions: Vec<String> = sessions.iter().map(ToString::to_string).collect();
            Ok(format!("cancelled: {}", sessions.join(", ")))
        }
    }
}

/// One frame for every GPU, as text.
fn frame(top: &Top) -> io::Result<String> {
    let mut top = top.clone();
    let gpus = top.gpu().map_or(1, |(_, gpus)| gpus);
    let mut text = String::new();
    for gpu in 0..gpus {
        let rows = u16::try_from(top.rows().len()).unwrap_or(u16::MAX / 2);
        let size = (FRAME.0, FRAME.1.saturating_add(rows));
        let mut terminal =
            Terminal::new(TestBackend::new(size.0, size.1)).map_err(io::Error::other)?;
        terminal.draw(|frame| view::draw(frame, &top, false)).map_err(io::Error::other)?;
        let mut lines = lines(terminal.backend().buffer());
        // The keys mean nothing on paper.
        lines.pop();
        if gpu > 0 {
            text.push('\n');
        }
        text.push_str(lines.join("\n").trim_end());
        text.push('\n');
        top.next_gpu();
    }
    Ok(text)
}

/// The characters of a screen, without spaces at the ends of lines.
fn lines(buffer: &Buffer) -> Vec<String> {
    let width = usize::from(buffer.area.width.max(1));
    let rows = buffer.content().chunks(width);
    rows.map(|row| {
        let line: String = row.iter().map(ratatui::buffer::Cell::symbol).collect();
        line.trim_end().to_owned()
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::samples;

    #[test]
    fn a_frame_as_text_has_every_gpu() {
        let mut report = samples::report();
        report.others.push(samples::gpu(1));
        let mut top = Top::new();
        top.absorb(Ok(report));
        let text = frame(&top).unwrap();
        assert!(text.contains("GPU 0 (one of 2)") && text.contains("\nGPU 1 (one of 2)"), "{text}");
        assert!(!text.contains("q quit") && !text.contains('\x1b'), "{text}");
    }
}
