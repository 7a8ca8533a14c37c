//! The control socket: questions in, answers out.
//!
//! The owner thread reads questions without waiting. A thread of its own encodes and writes the
//! answers: a long trace, or a `partitad` that reads slowly, must not hold up sessions.

use partita_wire::supervise::{
    ANSWERING_THREAD, Answer, FrameError, FrameReader, FromGpu, ToGpu, encode,
};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
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

    /// The next question that was read.
    ///
    /// # Errors
    /// Where the question does not parse.
    pub fn next_question(&mut self) -> Result<Option<ToGpu>, ControlError> {
        Ok(self.frames.next_message()?)
    }
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
    use partita_wire::supervise::RefusalKind;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    #[test]
    fn answers_larger_than_the_socket_arrive() {
        // The flags are those that partitad uses.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        let control = Control::new(ours).unwrap();
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
