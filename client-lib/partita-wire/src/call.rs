//! How `partitad` calls a `partita-gpu`: one message each way, before the messages of
//! [`crate::supervise`].
//!
//! `partita-gpu` listens on a `SEQPACKET` socket, because it outlives a `partitad` that crashes or
//! is upgraded. A [`Call`] brings the two ends of a line as file descriptors, control first,
//! sessions second; a [`Want::Count`] brings none. The answer is a [`CallAnswer`] on the same
//! connection. A line that is connected opens with [`crate::supervise::FromGpu::Ready`].
//!
//! Invariant: a call's `control` and `version` keep their names and meaning in all versions, so
//! that two programs of any age can tell that they do not fit.
//!
//! There is no I/O in this module.

use crate::Protocol;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The version of this module's messages and of those in [`crate::supervise`].
pub const CONTROL: Protocol = Protocol { major: 1, minor: 0 };

/// The largest call or answer, in bytes.
pub const MAX_CALL_BYTES: usize = 8 << 10;

/// What `partitad` wants of a `partita-gpu`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Want {
    /// The number of GPUs that the driver shows, answered by [`CallAnswer::Count`].
    Count,
    /// A line to the data plane of a device, answered by [`CallAnswer::Connected`].
    Serve {
        /// The device, as `partitad --device` names it.
        device: String,
    },
}

/// The first message of `partitad`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Call {
    /// The version of the package of `partitad`, for messages to people.
    pub version: String,
    /// What it wants.
    pub want: Want,
}

/// The answer of `partita-gpu`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallAnswer {
    /// The line that the call brought is connected.
    Connected,
    /// The number of GPUs.
    Count(u32),
    /// Not now: sessions of another version or device have to end first.
    Later {
        /// The reason, for people.
        text: String,
    },
    /// The device cannot be served.
    Never {
        /// The reason and its remedy, for people.
        text: String,
    },
}

/// Why a call cannot be answered as it wishes.
#[derive(Debug, thiserror::Error)]
pub enum CallMismatch {
    /// The versions do not fit.
    #[error("partitad {version} speaks control version {theirs}, this partita-gpu {CONTROL}")]
    Version {
        /// The version of the package of `partitad`.
        version: String,
        /// The version of its control messages.
        theirs: Protocol,
    },
    /// The bytes are no call.
    #[error("the call does not parse: {0}")]
    Malformed(#[from] serde_json::Error),
}

#[derive(Serialize, Deserialize)]
struct RawCall {
    control: (u16, u16),
    version: String,
    want: Value,
}

impl Call {
    /// A call of this version.
    #[must_use]
    pub fn new(want: Want) -> Call {
        Call { version: env!("CARGO_PKG_VERSION").into(), want }
    }

    /// The message.
    ///
    /// # Errors
    /// Where the device's text cannot be written as JSON.
    pub fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(&RawCall {
            control: (CONTROL.major, CONTROL.minor),
            version: self.version.clone(),
            want: serde_json::to_value(&self.want)?,
        })
    }

    /// Reads a call. The version is judged before anything else is read.
    ///
    /// # Errors
    /// [`CallMismatch`].
    pub fn decode(bytes: &[u8]) -> Result<Call, CallMismatch> {
        let RawCall { control: (major, minor), version, want } = serde_json::from_slice(bytes)?;
        if major != CONTROL.major {
            return Err(CallMismatch::Version { version, theirs: Protocol { major, minor } });
        }
        Ok(Call { version, want: serde_json::from_value(want)? })
    }
}

impl CallAnswer {
    /// The message.
    ///
    /// # Errors
    /// Where the text cannot be written as JSON.
    pub fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(self)
    }

    /// Reads an answer.
    ///
    /// # Errors
    /// Where the bytes are no answer.
    pub fn decode(bytes: &[u8]) -> Result<CallAnswer, serde_json::Error> {
        serde_json::from_slice(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_answers_round_trip() {
        for want in [Want::Count, Want::Serve { device: "emu:h200,\"weak\"".into() }] {
            let call = Call::new(want);
            assert_eq!(Call::decode(&call.encode().unwrap()).unwrap(), call);
        }
        for answer in [
            CallAnswer::Connected,
            CallAnswer::Count(3),
            CallAnswer::Later { text: "2 sessions".into() },
            CallAnswer::Never { text: "no such GPU".into() },
        ] {
            assert_eq!(CallAnswer::decode(&answer.encode().unwrap()).unwrap(), answer);
        }
    }

    /// A call of another major version may want anything.
    #[test]
    fn another_major_version_is_told_apart_before_the_rest_is_read() {
        let text = br#"{"control":[2,7],"version":"9.1.0","want":{"new":1},"more":[]}"#;
        let error = Call::decode(text).unwrap_err().to_string();
        assert!(
            error.contains("9.1.0") && error.contains("2.7") && error.contains("1.0"),
            "{error}"
        );
        let newer = br#"{"control":[1,9],"version":"0.9.0","want":"count","more":[]}"#;
        assert_eq!(Call::decode(newer).unwrap().want, Want::Count);
        for bad in [&b""[..], b"{}", br#"{"control":[1,0],"version":"1","want":"all"}"#] {
            assert!(matches!(Call::decode(bad), Err(CallMismatch::Malformed(_))));
        }
    }
}
