//! The first words of a session, on a `SEQPACKET` socket: one message each way.
//!
//! The first eight bytes of a [`Hello`] (magic, major, minor) keep their place and meaning in all
//! versions. So a daemon can tell a client of any age that their versions do not fit, with the
//! remedy.

use crate::bytes::{BytesError, Reader, Writer};
use crate::facts::{self, GpuOffer};
use crate::layout::{Layout, RawLayout};
use partita_model::{
    DeviceAddress, DeviceFacts, GpuNumber, LatencyTarget, MemoryAmount, Nanos, Priority, SessionId,
    SmAmount, Terms, Weight,
};
use std::fmt;
use zerocopy::{FromBytes, IntoBytes};

/// Name of the socket in the daemon's socket directory.
pub const SOCKET_NAME: &str = "partitad.sock";
/// The version that this crate speaks.
pub const PROTOCOL: Protocol = Protocol { major: 2, minor: 5 };
/// Optional features of this crate, one bit each. A session uses those that both sides have.
pub const FEATURES: u64 = CLUSTERS | TENSOR_MAPS | PROCESSES | NESTED | HIDDEN_SHARED;
/// The feature of launches with clusters.
pub const CLUSTERS: u64 = 1;
/// The feature of tensor maps.
pub const TENSOR_MAPS: u64 = 2;
/// The feature of memory and events that several processes share.
pub const PROCESSES: u64 = 4;
/// The feature of kernels that launch kernels.
pub const NESTED: u64 = 8;
/// The feature of kernels whose launches have more shared memory than the program asks for.
pub const HIDDEN_SHARED: u64 = 16;

const HELLO_MAGIC: u32 = u32::from_le_bytes(*b"PTHi");
const ANSWER_MAGIC: u32 = u32::from_le_bytes(*b"PTAn");
const WELCOME: u32 = 1;
const REFUSED: u32 = 2;
const OFFER: u32 = 3;
/// The first minor version whose hello names a GPU.
const GPUS_SINCE: u16 = 2;
/// The first minor version whose hello has terms.
const TERMS_SINCE: u16 = 4;
/// The first minor version whose terms have memory and a latency target.
const LIMITS_SINCE: u16 = 5;
const SAYS_NOTHING: u16 = 0;
const SAYS: u16 = 1;
const SAYS_PER_CENT: u16 = 2;
/// Priorities by their number in a hello.
const PRIORITIES: [Priority; 3] = [Priority::Batch, Priority::Normal, Priority::Latency];
pub(crate) const MAX_NAME: usize = 255;
const MAX_TEXT: usize = 1024;
/// The longest message of the handshake, in bytes.
pub const MAX_MESSAGE: usize = 8192;

/// A version of the protocol. Two sides with the same major number understand each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Protocol {
    /// Rises with a change that older sides cannot follow.
    pub major: u16,
    /// Rises with an addition.
    pub minor: u16,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The reason why a message of the handshake cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The message does not parse.
    #[error("the {message} does not parse: it {reason}")]
    Malformed {
        /// The message.
        message: &'static str,
        /// The place and the reason.
        reason: String,
    },
    /// The bytes are no message of this protocol.
    #[error("the {message} does not begin as Partita's do: this is another program's socket")]
    Magic {
        /// The message.
        message: &'static str,
    },
    /// The versions do not fit.
    #[error(
        "the client library speaks protocol {client}, the daemon {daemon}: \
         use the libpartita_cuda.so that was installed with the daemon, and restart the program"
    )]
    Version {
        /// The client's version.
        client: Protocol,
        /// The daemon's version.
        daemon: Protocol,
    },
}

fn malformed(message: &'static str) -> impl Fn(BytesError) -> HandshakeError {
    move |error| HandshakeError::Malformed { message, reason: error.to_string() }
}

/// The GPU that a client wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum GpuWish {
    /// The first GPU that the tenant may use. Clients of protocol 2.1 get it.
    #[default]
    First,
    /// The only GPU that the tenant may use. Where there are several, the answer is an
    /// [`Answer::Offer`] instead of a session.
    Only,
    /// The GPU of this number.
    Number(GpuNumber),
}

impl GpuWish {
    fn write(self, writer: &mut Writer<'_>) {
        let (kind, number) = match self {
            GpuWish::First => (0, 0),
            GpuWish::Only => (1, 0),
            GpuWish::Number(number) => (2, number.0),
        };
        writer.u16(kind);
        writer.u16(number);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, BytesError> {
        let at = reader.at();
        let kind = reader.u16("GPU")?;
        let number = GpuNumber(reader.u16("GPU")?);
        match kind {
            0 => Ok(GpuWish::First),
            1 => Ok(GpuWish::Only),
            2 => Ok(GpuWish::Number(number)),
            other => Err(BytesError::Value { at, what: "GPU", value: u64::from(other) }),
        }
    }
}

/// A client's first message. It proves nothing: the socket's credentials say who the client is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    /// The client's version.
    pub protocol: Protocol,
    /// The client's features.
    pub features: u64,
    /// The client's process id in its own namespace.
    pub pid: u32,
    /// The program's name.
    pub program: String,
    /// `PARTITA_APP`: sessions of one tenant that share a tag are one application. Empty for none.
    pub application: String,
    /// The wanted GPU; absent before protocol 2.2.
    pub gpu: GpuWish,
    /// What the program asks for itself; absent before protocol 2.4. Memory and latency target are
    /// absent before 2.5.
    pub terms: Terms,
}

impl Hello {
    /// The message's bytes. Names are cut at 255 bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut writer = Writer(&mut bytes);
        writer.u32(HELLO_MAGIC);
        writer.u16(self.protocol.major);
        writer.u16(self.protocol.minor);
        writer.u64(self.features);
        writer.u32(self.pid);
        writer.text(&self.program, MAX_NAME);
        writer.text(&self.application, MAX_NAME);
        if self.protocol.minor >= GPUS_SINCE {
            self.gpu.write(&mut writer);
        }
        if self.protocol.minor >= TERMS_SINCE {
            write_terms(&self.terms, &mut writer);
        }
        if self.protocol.minor >= LIMITS_SINCE {
            writer.u64(self.terms.memory.map_or(0, MemoryAmount::bytes));
            writer.u64(self.terms.target.map_or(0, |target| target.nanos().0));
        }
        bytes
    }

    /// Reads the message.
    ///
    /// # Errors
    /// Where it does not parse, or the versions do not fit.
    pub fn decode(bytes: &[u8]) -> Result<Hello, HandshakeError> {
        let error = malformed("client's hello");
        let mut reader = Reader::new(bytes);
        if reader.u32("magic").map_err(&error)? != HELLO_MAGIC {
            return Err(HandshakeError::Magic { message: "client's hello" });
        }
        let major = reader.u16("version").map_err(&error)?;
        let client = Protocol { major, minor: reader.u16("version").map_err(&error)? };
        if client.major != PROTOCOL.major {
            return Err(HandshakeError::Version { client, daemon: PROTOCOL });
        }
        Hello::read(client, reader).map_err(error)
    }

    fn read(protocol: Protocol, mut reader: Reader<'_>) -> Result<Hello, BytesError> {
        let mut hello = Hello {
            protocol,
            features: reader.u64("features")?,
            pid: reader.u32("process id")?,
            program: reader.text(MAX_NAME, "program name")?,
            application: reader.text(MAX_NAME, "application tag")?,
            gpu: if protocol.minor >= GPUS_SINCE {
                GpuWish::read(&mut reader)?
            } else {
                GpuWish::First
            },
            terms: if protocol.minor >= TERMS_SINCE {
                read_terms(&mut reader)?
            } else {
                Terms::default()
            },
        };
        if protocol.minor >= LIMITS_SINCE {
            hello.terms.memory = MemoryAmount::of(reader.u64("limit of memory")?);
            hello.terms.target = read_target(&mut reader)?;
        }
        // A later minor version may say more.
        if protocol.minor > PROTOCOL.minor {
            return Ok(hello);
        }
        reader.finish()?;
        Ok(hello)
    }
}

/// Terms as four pairs of numbers: whether and how something is said, and what.
fn write_terms(terms: &Terms, writer: &mut Writer<'_>) {
    let amount = |amount: Option<SmAmount>| match amount {
        None => (SAYS_NOTHING, 0),
        Some(SmAmount::Sms(sms)) => (SAYS, sms),
        Some(SmAmount::PerCent(part)) => (SAYS_PER_CENT, part.into()),
    };
    let said = |value: Option<u16>| value.map_or((SAYS_NOTHING, 0), |value| (SAYS, value));
    let place = |priority| PRIORITIES.iter().position(|one| *one == priority);
    let priority = terms.priority.and_then(place).and_then(|place| u16::try_from(place).ok());
    let weight = terms.weight.map(Weight::get);
    for (how, value) in [amount(terms.min), amount(terms.max), said(weight), said(priority)] {
        writer.u16(how);
        writer.u16(value);
    }
}

fn read_terms(reader: &mut Reader<'_>) -> Result<Terms, BytesError> {
    Ok(Terms {
        min: read_amount(reader)?,
        max: read_amount(reader)?,
        weight: read_said(reader, "weight", |weight| Weight::try_from(i64::from(weight)).ok())?,
        priority: read_said(reader, "priority", |place| {
            PRIORITIES.get(usize::from(place)).copied()
        })?,
        ..Terms::default()
    })
}

fn read_target(reader: &mut Reader<'_>) -> Result<Option<LatencyTarget>, BytesError> {
    let at = reader.at();
    match reader.u64("latency target")? {
        0 => Ok(None),
        value => {
            let target = LatencyTarget::of(Nanos(value));
            target.map(Some).ok_or(BytesError::Value { at, what: "latency target", value })
        }
    }
}

fn read_amount(reader: &mut Reader<'_>) -> Result<Option<SmAmount>, BytesError> {
    let at = reader.at();
    match (reader.u16("number of SMs")?, reader.u16("number of SMs")?) {
        (SAYS_NOTHING, _) => Ok(None),
        (SAYS, sms) => Ok(Some(SmAmount::Sms(sms))),
        (SAYS_PER_CENT, part @ 1..=100) => Ok(u8::try_from(part).ok().map(SmAmount::PerCent)),
        (_, value) => Err(BytesError::Value { at, what: "number of SMs", value: value.into() }),
    }
}

fn read_said<T>(
    reader: &mut Reader<'_>,
    what: &'static str,
    meaning: impl Fn(u16) -> Option<T>,
) -> Result<Option<T>, BytesError> {
    let at = reader.at();
    let (how, value) = (reader.u16(what)?, reader.u16(what)?);
    match how {
        SAYS_NOTHING => Ok(None),
        _ => {
            let said = meaning(value).filter(|_| how == SAYS);
            said.map(Some).ok_or(BytesError::Value { at, what, value: value.into() })
        }
    }
}

/// The session's range of device addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// First address.
    pub base: DeviceAddress,
    /// Length in bytes.
    pub bytes: u64,
}

impl Window {
    /// Whether `address` lies in the session's window.
    #[must_use]
    pub fn contains(&self, address: DeviceAddress) -> bool {
        address.0.wrapping_sub(self.base.0) < self.bytes
    }

    /// Whether `bytes` bytes at `address` lie inside.
    #[must_use]
    pub fn contains_range(&self, address: DeviceAddress, bytes: u64) -> bool {
        let offset = address.0.wrapping_sub(self.base.0);
        offset <= self.bytes && bytes <= self.bytes - offset
    }
}

/// The daemon's consent. Its two descriptors are [`crate::ServerSession::client_fds`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Welcome {
    /// The daemon's version.
    pub protocol: Protocol,
    /// Features that both sides have.
    pub features: u64,
    /// The session's id, as reports name it.
    pub session: SessionId,
    /// The device.
    pub facts: DeviceFacts,
    /// The session's device addresses.
    pub window: Window,
    /// The layout of the session's memory.
    pub layout: Layout,
    /// The address at which kernels reach the session's host memory; the client maps the memory
    /// there, too. `None` where kernels do not reach it.
    pub host: Option<DeviceAddress>,
}

/// The reason for a refusal, as a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RefusalCode {
    /// The versions do not fit.
    Version,
    /// The hello does not parse.
    Malformed,
    /// The user has no right.
    Forbidden,
    /// The daemon has no room: sessions, addresses or memory.
    Full,
    /// The data plane does not run at the moment.
    Unavailable,
}

impl RefusalCode {
    const ALL: [(RefusalCode, u32); 5] = [
        (RefusalCode::Version, 1),
        (RefusalCode::Malformed, 2),
        (RefusalCode::Forbidden, 3),
        (RefusalCode::Full, 4),
        (RefusalCode::Unavailable, 5),
    ];
}

/// The daemon's refusal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The reason for programs.
    pub code: RefusalCode,
    /// The reason and its remedy for people.
    pub text: String,
}

impl From<HandshakeError> for Refusal {
    fn from(error: HandshakeError) -> Self {
        let code = match error {
            HandshakeError::Version { .. } => RefusalCode::Version,
            HandshakeError::Malformed { .. } | HandshakeError::Magic { .. } => {
                RefusalCode::Malformed
            }
        };
        Refusal { code, text: error.to_string() }
    }
}

/// The daemon's answer to a [`Hello`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The session begins. Boxed because it is large.
    Welcome(Box<Welcome>),
    /// There is no session.
    Refused(Refusal),
    /// The answer to [`GpuWish::Only`] where there are several GPUs: those that the tenant may use,
    /// in order of their numbers. The connection ends.
    Offer(Vec<GpuOffer>),
}

impl Answer {
    /// The message's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut writer = Writer(&mut bytes);
        writer.u32(ANSWER_MAGIC);
        let protocol = match self {
            Answer::Welcome(welcome) => welcome.protocol,
            Answer::Refused(_) | Answer::Offer(_) => PROTOCOL,
        };
        writer.u16(protocol.major);
        writer.u16(protocol.minor);
        match self {
            Answer::Welcome(welcome) => {
                writer.u32(WELCOME);
                welcome.write(&mut writer);
            }
            Answer::Refused(refusal) => {
                writer.u32(REFUSED);
                let number = RefusalCode::ALL.iter().find(|(code, _)| *code == refusal.code);
                writer.u32(number.map_or(0, |(_, number)| *number));
                writer.text(&refusal.text, MAX_TEXT);
            }
            Answer::Offer(offers) => {
                writer.u32(OFFER);
                facts::write_offers(offers, &mut writer);
            }
        }
        bytes
    }

    /// Reads the message. A refusal is understood from every version of the daemon.
    ///
    /// # Errors
    /// Where it does not parse, or the versions do not fit.
    pub fn decode(bytes: &[u8]) -> Result<Answer, HandshakeError> {
        let error = malformed("daemon's answer");
        let mut reader = Reader::new(bytes);
        if reader.u32("magic").map_err(&error)? != ANSWER_MAGIC {
            return Err(HandshakeError::Magic { message: "daemon's answer" });
        }
        let major = reader.u16("version").map_err(&error)?;
        let daemon = Protocol { major, minor: reader.u16("version").map_err(&error)? };
        let at = reader.at();
        match reader.u32("kind of answer").map_err(&error)? {
            REFUSED => Refusal::read(&mut reader).map(Answer::Refused).map_err(error),
            WELCOME if daemon.major == PROTOCOL.major => {
                let welcome = Welcome::read(daemon, &mut reader)?;
                Ok(Answer::Welcome(Box::new(welcome)))
            }
            OFFER if daemon.major == PROTOCOL.major => {
                facts::read_offers(&mut reader).map(Answer::Offer).map_err(error)
            }
            WELCOME | OFFER => Err(HandshakeError::Version { client: PROTOCOL, daemon }),
            other => Err(error(BytesError::Value {
                at,
                what: "kind of answer",
                value: u64::from(other),
            })),
        }
    }
}

impl Refusal {
    fn read(reader: &mut Reader<'_>) -> Result<Refusal, BytesError> {
        let number = reader.u32("refusal")?;
        let known = RefusalCode::ALL.iter().find(|(_, known)| *known == number);
        let code = known.map_or(RefusalCode::Unavailable, |(code, _)| *code);
        Ok(Refusal { code, text: reader.text(MAX_TEXT, "refusal's text")? })
    }
}

impl Welcome {
    fn write(&self, writer: &mut Writer<'_>) {
        writer.u64(self.features);
        writer.u64(self.session.0);
        writer.u64(self.window.base.0);
        writer.u64(self.window.bytes);
        writer.bytes(self.layout.raw().as_bytes());
        writer.u64(self.host.map_or(0, |host| host.0));
        facts::write(&self.facts, writer);
    }

    fn read(protocol: Protocol, reader: &mut Reader<'_>) -> Result<Welcome, HandshakeError> {
        let error = malformed("daemon's welcome");
        let features = reader.u64("features").map_err(&error)?;
        let session = SessionId(reader.u64("session").map_err(&error)?);
        let base = DeviceAddress(reader.u64("window").map_err(&error)?);
        let window = Window { base, bytes: reader.u64("window").map_err(&error)? };
        let layout = reader.take(size_of::<RawLayout>(), "layout").map_err(&error)?;
        let layout = RawLayout::read_from_bytes(layout).expect("as many bytes were taken");
        let layout = Layout::try_from(layout).map_err(|error| HandshakeError::Malformed {
            message: "daemon's welcome",
            reason: format!("has a bad layout: {error}"),
        })?;
        let host = match reader.u64("host memory").map_err(&error)? {
            0 => None,
            address => Some(DeviceAddress(address)),
        };
        let inside =
            |host| window.contains_range(host, layout.host_bytes()) && host.0.is_multiple_of(4096);
        if !host.is_none_or(inside) {
            let reason = "has host memory outside its window".to_owned();
            return Err(HandshakeError::Malformed { message: "daemon's welcome", reason });
        }
        let facts = facts::read(reader).map_err(error)?;
        Ok(Welcome { protocol, features, session, facts, window, layout, host })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_feature_has_a_bit() {
        assert_eq!(FEATURES.count_ones(), 5);
        assert_eq!(FEATURES & CLUSTERS & TENSOR_MAPS, 0);
    }

    fn hello() -> Hello {
        Hello {
            protocol: PROTOCOL,
            features: 5,
            pid: 77,
            program: "vecAdd".to_owned(),
            application: "größe".to_owned(),
            gpu: GpuWish::Number(GpuNumber(3)),
            terms: Terms {
                min: Some(SmAmount::Sms(8)),
                max: Some(SmAmount::PerCent(50)),
                weight: None,
                priority: Some(Priority::Latency),
                memory: MemoryAmount::of(8 << 30),
                target: LatencyTarget::of(Nanos(5_000_000)),
            },
        }
    }

    #[test]
    fn hello_survives_the_way_and_no_part_of_it_does() {
        let bytes = hello().encode();
        assert_eq!(Hello::decode(&bytes), Ok(hello()));
        for cut in 0..bytes.len() {
            assert!(Hello::decode(&bytes[..cut]).is_err(), "cut to {cut}");
        }
        let longer = [bytes.as_slice(), &[0]].concat();
        assert!(Hello::decode(&longer).is_err(), "a byte too many");
    }

    #[test]
    fn every_wish_survives_and_older_clients_get_the_first_gpu() {
        for gpu in [GpuWish::First, GpuWish::Only, GpuWish::Number(GpuNumber(u16::MAX))] {
            let hello = Hello { gpu, ..hello() };
            assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
        }
        let of = |minor| Protocol { major: PROTOCOL.major, minor };
        let old = Hello { protocol: of(4), ..hello() };
        let terms = Terms { memory: None, target: None, ..old.terms };
        assert_eq!(Hello::decode(&old.encode()), Ok(Hello { terms, ..old }));
        let mut bytes = hello().encode();
        let at = bytes.len() - 8;
        bytes[at..].copy_from_slice(&9_999_u64.to_le_bytes());
        let error = Hello::decode(&bytes).unwrap_err().to_string();
        assert!(error.contains(&format!("latency target at byte {at} has the value")), "{error}");
        let older = Hello { protocol: of(3), ..hello() };
        let found = Hello::decode(&older.encode()).unwrap();
        assert_eq!(found, Hello { terms: Terms::default(), ..older.clone() });
        let oldest = Hello { protocol: of(1), ..hello() };
        assert_eq!(oldest.encode().len() + 4, older.encode().len());
        let found = Hello::decode(&oldest.encode()).unwrap();
        let nothing = Terms::default();
        assert_eq!(found, Hello { gpu: GpuWish::First, terms: nothing, ..oldest });
        let mut bytes = older.encode();
        let at = bytes.len() - 4;
        bytes[at] = 9;
        let error = Hello::decode(&bytes).unwrap_err().to_string();
        assert!(error.contains(&format!("GPU at byte {at} has the value 9")), "{error}");
    }

    #[test]
    fn long_names_are_cut_on_a_characters_border() {
        let mut long = hello();
        long.program = format!("{}ä", "x".repeat(254));
        assert_eq!(Hello::decode(&long.encode()).unwrap().program, "x".repeat(254));
    }

    #[test]
    fn a_length_that_lies_is_refused() {
        let mut bytes = hello().encode();
        bytes[20..24].copy_from_slice(&u32::MAX.to_le_bytes());
        let error = Hello::decode(&bytes).unwrap_err().to_string();
        assert!(
            error.contains("program name at byte 20 has length 4294967295, more than 255"),
            "{error}"
        );
    }

    #[test]
    fn other_versions_are_told_both_and_the_remedy() {
        let mut old = hello();
        old.protocol = Protocol { major: 7, minor: 3 };
        let error = Hello::decode(&old.encode()).unwrap_err();
        let refusal = Refusal::from(error);
        assert_eq!(refusal.code, RefusalCode::Version);
        for part in ["7.3", &PROTOCOL.to_string(), "restart the program"] {
            assert!(refusal.text.contains(part), "{}", refusal.text);
        }
        let answer = Answer::Refused(refusal);
        assert_eq!(Answer::decode(&answer.encode()), Ok(answer));
    }

    #[test]
    fn of_another_version_only_a_refusal_is_understood() {
        let daemon = Protocol { major: PROTOCOL.major + 1, ..PROTOCOL };
        let of_daemon = |kind: u32, answer: &Answer| {
            let mut bytes = answer.encode();
            bytes[4..6].copy_from_slice(&daemon.major.to_le_bytes());
            bytes[8..12].copy_from_slice(&kind.to_le_bytes());
            Answer::decode(&bytes)
        };
        let refused =
            Answer::Refused(Refusal { code: RefusalCode::Full, text: "no room".to_owned() });
        assert_eq!(of_daemon(REFUSED, &refused), Ok(refused.clone()));
        for kind in [WELCOME, OFFER] {
            let error = Err(HandshakeError::Version { client: PROTOCOL, daemon });
            assert_eq!(of_daemon(kind, &Answer::Offer(Vec::new())), error);
        }
        let error = of_daemon(9, &refused).unwrap_err().to_string();
        assert!(error.contains("kind of answer at byte 8 has the value 9"), "{error}");
    }

    #[test]
    fn a_later_minor_version_may_say_more() {
        let mut newer = hello();
        newer.protocol.minor += 1;
        let bytes = [newer.encode(), vec![1, 2, 3]].concat();
        assert_eq!(Hello::decode(&bytes), Ok(newer));
    }

    #[test]
    fn other_programs_sockets_are_recognised() {
        let error = Answer::decode(b"HTTP/1.1 400 Bad Request").unwrap_err();
        assert_eq!(error, HandshakeError::Magic { message: "daemon's answer" });
    }

    #[test]
    fn window_borders() {
        let window = Window { base: DeviceAddress(0x1000), bytes: 0x1000 };
        let check = |address, bytes, expect| {
            assert_eq!(
                window.contains_range(DeviceAddress(address), bytes),
                expect,
                "{address:#x} {bytes}"
            );
        };
        check(0x1000, 0x1000, true);
        check(0x1000, 0x1001, false);
        check(0x2000, 0, true);
        check(0x2000, 1, false);
        check(0xfff, 1, false);
        check(0x1fff, u64::MAX, false);
        assert!(!window.contains(DeviceAddress(0x2000)) && window.contains(DeviceAddress(0x1fff)));
    }
}
