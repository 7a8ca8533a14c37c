//! The control socket: questions in, answers out.
//!
//! The owner thread reads questions without waiting. A thread of its own encodes and writes the
//! answers: a long trace, or a `partitad` that reads slowly, must not hold up sessions.

use partita_wire::supervise::{
    ANSWERING_THREAD, Answer, FrameError, FrameReader, FromGpu, RefusalKind, ToGpu, encode,
};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use serde::Deserialize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::{io, thread};

/// The most answers that await writing.
const OUTBOX: usize = 256;

/// The reason why the control socket is of no more use.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// `partitad` is gone.
    #[error("partitad is gone")]
    Closed,
    /// `partitad` does not read its answers.
    #[error("partitad asks but does not read")]
    Stuck,
    /// A message of `partitad` does not parse.
    #[error("partitad speaks another version: {0}")]
    Frame(#[from] FrameError),
    /// The system's error.
    #[error("the control socket failed: {0}")]
    Io(#[from] io::Error),
}

/// The control socket.
pub struct Control {
    socket: Arc<OwnedFd>,
    frames: FrameReader,
    outbox: SyncSender<FromGpu>,
}

impl Control {
    /// Takes the socket and makes its writes wait: an answer may be larger than the socket's
    /// buffer.
    ///
    /// # Errors
    /// Where the system has no thread.
    pub fn new(socket: OwnedFd) -> io::Result<Control> {
        rustix::io::ioctl_fionbio(&socket, false)?;
        let socket = Arc::new(socket);
        let (outbox, messages) = sync_channel(OUTBOX);
        let to = Arc::clone(&socket);
        thread::Builder::new()
            .name(ANSWERING_THREAD.into())
            .spawn(move || write_answers(&to, &messages))?;
        Ok(Control { socket, frames: FrameReader::default(), outbox })
    }

    /// Readable while there is something to read.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Queues a message for sending.
    ///
    /// # Errors
    /// Where nobody will ever read it.
    pub fn send(&self, message: FromGpu) -> Result<(), ControlError> {
        self.outbox.try_send(message).map_err(|error| match error {
            TrySendError::Full(_) => ControlError::Stuck,
            TrySendError::Disconnected(_) => ControlError::Closed,
        })
    }

    /// Answers a question.
    ///
    /// # Errors
    /// As [`Control::send`].
    pub fn answer(&self, id: u64, answer: Answer) -> Result<(), ControlError> {
        self.send(FromGpu::Answer { id, answer })
    }

    /// Reads the bytes that have arrived, once.
    ///
    /// # Errors
    /// Where the socket is of no more use.
    pub fn read(&mut self) -> Result<(), ControlError> {
        let mut buffer = [0; 16 << 10];
        match recv(&*self.socket, &mut buffer, RecvFlags::DONTWAIT) {
            Ok((_, 0)) | Err(Errno::CONNRESET) => Err(ControlError::Closed),
            Ok((_, bytes)) => {
                self.frames.push(&buffer[..bytes]);
                Ok(())
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(error) => Err(io::Error::from(error).into()),
        }
    }

    /// The next question that was read. One that only a newer `partitad` knows is refused here, and
    /// the line goes on: sessions of this process outlive an upgrade of the package.
    ///
    /// # Errors
    /// Where the bytes are no question, or the refusal is not read.
    pub fn next_question(&mut self) -> Result<Option<ToGpu>, ControlError> {
        loop {
            match self.frames.next_message()? {
                Some(Heard::Known(question)) => return Ok(Some(*question)),
                Some(Heard::Unknown { id }) => {
                    let detail = format!(
                        "this partita-gpu has version {} and does not know the request; the \
                         installed version serves the GPU once the programs on it have ended",
                        env!("CARGO_PKG_VERSION")
                    );
                    self.answer(id, Answer::Refused { kind: RefusalKind::Invalid, detail })?;
                }
                None => return Ok(None),
            }
        }
    }
}

/// A message of a `partitad`, which may be newer than this process.
#[derive(Deserialize)]
#[serde(untagged)]
enum Heard {
    Known(Box<ToGpu>),
    Unknown { id: u64 },
}

fn write_answers(socket: &OwnedFd, messages: &Receiver<FromGpu>) {
    while let Ok(message) = messages.recv() {
        let frame = match encode(&message) {
            Ok(frame) => frame,
            Err(error) => {
                tracing::error!(%error, "an answer cannot be sent");
                continue;
            }
        };
        let mut rest = &frame[..];
        while !rest.is_empty() {
            match send(socket, rest, SendFlags::NOSIGNAL) {
                Ok(bytes) => rest = &rest[bytes..],
                Err(Errno::INTR) => {}
                // The owner thread sees the end of the socket itself.
                Err(_) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_wire::supervise::Ask;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use serde_json::json;

    /// A line, and `partitad`'s end of it.
    fn line() -> (Control, OwnedFd) {
        // The flags are those that partitad uses.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        (Control::new(ours).unwrap(), theirs)
    }

    #[test]
    fn questions_of_a_newer_partitad_are_refused_and_the_line_goes_on() {
        let (mut control, theirs) = line();
        for message in [
            json!({"id": 1, "ask": {"teleport": {"to": 3}}}),
            json!({"id": 2, "ask": {"reserve": [{"tag": "job", "terms": {"colour": "red"}}]}}),
            json!({"id": 3, "ask": {"events": {"after": 7, "colour": "red"}}, "colour": "red"}),
        ] {
            send(&theirs, &encode(&message).unwrap(), SendFlags::NOSIGNAL).unwrap();
        }
        control.read().unwrap();
        let known = ToGpu { id: 3, ask: Ask::Events { after: 7 } };
        assert_eq!(control.next_question().unwrap(), Some(known), "new fields say nothing to it");
        assert_eq!(control.next_question().unwrap(), None);

        rustix::io::ioctl_fionbio(&theirs, false).unwrap();
        let (mut frames, mut buffer, mut refused) = (FrameReader::default(), [0; 4096], Vec::new());
        while refused.len() < 2 {
            let (_, bytes) = recv(&theirs, &mut buffer[..], RecvFlags::empty()).unwrap();
            frames.push(&buffer[..bytes]);
            while let Some(message) = frames.next_message::<FromGpu>().unwrap() {
                match message {
                    FromGpu::Answer { id, answer: Answer::Refused { .. } } => refused.push(id),
                    other => panic!("{other:?}"),
                }
            }
        }
        assert_eq!(refused, [1, 2]);

        send(&theirs, &encode(&json!("no question")).unwrap(), SendFlags::NOSIGNAL).unwrap();
        control.read().unwrap();
        assert!(matches!(control.next_question(), Err(ControlError::Frame(_))));
    }

    #[test]
    fn answers_larger_than_the_socket_arrive() {
        let (control, theirs) = line();
        let detail = "x".repeat(4 << 20);
        let answer = Answer::Refused { kind: RefusalKind::Invalid, detail };
        control.answer(1, answer.clone()).unwrap();
        rustix::io::ioctl_fionbio(&theirs, false).unwrap();
        let mut frames = FrameReader::default();
        let mut buffer = vec![0; 64 << 10];
        let arrived = loop {
            if let Some(message) = frames.next_message::<FromGpu>().unwrap() {
                break message;
            }
            let (_, bytes) = recv(&theirs, &mut buffer[..], RecvFlags::empty()).unwrap();
            assert!(bytes > 0, "the socket ended in the middle of an answer");
            frames.push(&buffer[..bytes]);
        };
        assert_eq!(arrived, FromGpu::Answer { id: 1, answer });
    }
}
