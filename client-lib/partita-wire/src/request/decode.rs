//! Reading of records.

use super::{
    ACCESSES, CLUSTER_BITS, CLUSTER_MASK, CLUSTER_SHIFT, CONDITIONS, COOPERATIVE, MAX_CHUNK,
    MAX_MODULE, MAX_PARAMS, Malformed, RawCopy, RawEventCreate, RawFill, RawLaunch, RawMap,
    RawModuleBegin, RawModuleChunk, RawOne, RawOpenEvent, RawSecret, RawSetAccess, RawStreamCreate,
    RawSynchronize, RawTwo, RawWaitWord, Received, WANTS_REPLY, kind, kind_name,
};
use crate::{tensor_map, texture};
use partita_model::cluster::MOST_CTAS;
use partita_model::request::{
    ArenaRange, EventHandle, ImageId, Launch, ModuleHandle, Request, Secret, Sequence,
    StreamHandle, StreamKind,
};
use partita_model::{AddressRange, AwaitedWord, DeviceAddress, Dim3, ImageKind, ImagePart};
use zerocopy::FromBytes;

/// The cluster of a launch's flags without [`COOPERATIVE`]. `None` where they mean nothing.
fn cluster(flags: u32) -> Option<Dim3> {
    let axis = |index: u32| flags >> (CLUSTER_SHIFT + index * CLUSTER_BITS) & CLUSTER_MASK;
    let cluster = Dim3::new(axis(0), axis(1), axis(2));
    let known = CLUSTER_SHIFT + 3 * CLUSTER_BITS;
    let is_clean = flags >> known == 0 && flags & ((1 << CLUSTER_SHIFT) - 1) == 0;
    (is_clean && (2..=u128::from(MOST_CTAS)).contains(&cluster.count())).then_some(cluster)
}

impl Received {
    /// Reads a record's body from a private copy.
    ///
    /// # Errors
    /// Where it does not parse.
    pub fn decode(number: u16, flags: u16, body: &[u8]) -> Result<Received, Malformed> {
        let name = kind_name(number).ok_or(Malformed::Kind(number))?;
        if flags & !WANTS_REPLY != 0 {
            return Err(Malformed::Flags { kind: name, flags });
        }
        let body = Body { name, bytes: body };
        match number {
            kind::MODULE_BEGIN => body.image_begin().map(Received::Image),
            kind::MODULE_CHUNK => body.image_chunk().map(Received::Image),
            _ => body.request(number).map(Received::Request),
        }
    }
}

/// A record's body while it is parsed.
#[derive(Clone, Copy)]
pub(crate) struct Body<'a> {
    name: &'static str,
    bytes: &'a [u8],
}

impl<'a> Body<'a> {
    /// A body that is exactly one raw structure.
    pub(crate) fn fixed<T: FromBytes>(self) -> Result<T, Malformed> {
        T::read_from_bytes(self.bytes).map_err(|_| self.length(size_of::<T>()))
    }

    /// A body that is a raw structure and a variable part of the length that `bytes` reads from it.
    fn variable<T: FromBytes>(self, bytes: impl Fn(&T) -> u32) -> Result<(T, &'a [u8]), Malformed> {
        let (raw, rest) =
            T::read_from_prefix(self.bytes).map_err(|_| self.length(size_of::<T>()))?;
        let announced = usize::try_from(bytes(&raw)).unwrap_or(usize::MAX);
        if rest.len() != announced {
            return Err(self.length(size_of::<T>().saturating_add(announced)));
        }
        Ok((raw, rest))
    }

    fn length(self, expected: usize) -> Malformed {
        Malformed::Length { kind: self.name, expected, got: self.bytes.len() }
    }

    pub(crate) fn field(self, field: &'static str, value: u64) -> Malformed {
        Malformed::Field { kind: self.name, field, value }
    }

    pub(crate) fn zero(self, field: &'static str, value: u32) -> Result<(), Malformed> {
        if value == 0 { Ok(()) } else { Err(self.field(field, u64::from(value))) }
    }

    pub(crate) fn truth(self, field: &'static str, value: u32) -> Result<bool, Malformed> {
        match value {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.field(field, u64::from(value))),
        }
    }

    /// A body that is one number.
    fn one(self) -> Result<u64, Malformed> {
        self.fixed::<RawOne>().map(|raw| raw.value)
    }

    fn address(self) -> Result<DeviceAddress, Malformed> {
        self.one().map(DeviceAddress)
    }

    fn stream(self) -> Result<StreamHandle, Malformed> {
        self.one().map(StreamHandle)
    }

    fn event_and_stream(self) -> Result<(EventHandle, StreamHandle), Malformed> {
        let RawTwo { first, second } = self.fixed()?;
        Ok((EventHandle(first), StreamHandle(second)))
    }

    fn request(self, number: u16) -> Result<Request, Malformed> {
        Ok(match number {
            kind::MEM_ALLOC => Request::MemAlloc { bytes: self.one()? },
            kind::MEM_FREE => Request::MemFree { address: self.address()? },
            kind::MEM_INFO => {
                self.fixed::<[u8; 0]>()?;
                Request::MemInfo
            }
            kind::RESERVE => self.reserve()?,
            kind::UNRESERVE => Request::Unreserve { address: self.address()? },
            kind::MAP => {
                let RawMap { home, to, bytes } = self.fixed()?;
                let range = AddressRange { start: DeviceAddress(to), bytes };
                Request::Map { home: DeviceAddress(home), range }
            }
            kind::UNMAP => Request::Unmap { address: self.address()? },
            kind::SET_ACCESS => self.set_access()?,
            kind::EXPORT_MEMORY => Request::ExportMemory { address: self.address()? },
            kind::OPEN_MEMORY => {
                let RawSecret { secret } = self.fixed()?;
                Request::OpenMemory { secret: Secret(u128::from_le_bytes(secret)) }
            }
            kind::CLOSE_MEMORY => Request::CloseMemory { address: self.address()? },
            kind::ARRAY_CREATE => Request::ArrayCreate { shape: texture::decode_array(self)? },
            kind::ARRAY_DESTROY => Request::ArrayDestroy { array: self.address()? },
            kind::TEXTURE_CREATE => Request::TextureCreate { spec: texture::decode_texture(self)? },
            kind::TEXTURE_DESTROY => Request::TextureDestroy { texture: self.one()? },
            kind::TENSOR_MAP => Request::TensorMap { spec: tensor_map::decode(self)? },
            kind::TENSOR_MAP_MOVE => {
                let (map, address) = tensor_map::decode_move(self)?;
                Request::TensorMapMove { map, address }
            }
            kind::MODULE_LOAD => {
                let number = self.one()?;
                Request::ModuleLoad { module: ModuleHandle(number), image: ImageId(number) }
            }
            kind::MODULE_UNLOAD => Request::ModuleUnload { module: ModuleHandle(self.one()?) },
            kind::STREAM_CREATE => self.stream_create()?,
            kind::STREAM_DESTROY => Request::StreamDestroy { stream: self.stream()? },
            kind::STREAM_QUERY => Request::StreamQuery { stream: self.stream()? },
            kind::EVENT_CREATE => {
                let raw = self.fixed::<RawEventCreate>()?;
                self.zero("reserved", raw.reserved)?;
                Request::EventCreate { event: EventHandle(raw.event), slot: raw.slot }
            }
            kind::EVENT_DESTROY => Request::EventDestroy { event: EventHandle(self.one()?) },
            kind::EVENT_RECORD => {
                let (event, stream) = self.event_and_stream()?;
                Request::EventRecord { event, stream }
            }
            kind::EXPORT_EVENT => Request::ExportEvent { event: EventHandle(self.one()?) },
            kind::OPEN_EVENT => {
                let RawOpenEvent { event, secret } = self.fixed()?;
                let secret = Secret(u128::from_le_bytes(secret));
                Request::OpenEvent { event: EventHandle(event), secret }
            }
            kind::EVENT_QUERY => Request::EventQuery { event: EventHandle(self.one()?) },
            kind::EVENT_SYNCHRONIZE => {
                Request::EventSynchronize { event: EventHandle(self.one()?) }
            }
            kind::STREAM_WAIT => {
                let (event, stream) = self.event_and_stream()?;
                Request::StreamWait { stream, event }
            }
            kind::LAUNCH => Request::Launch(self.launch()?),
            kind::COPY_TO_DEVICE => {
                let (stream, to, offset, bytes) = self.copy()?;
                let from = ArenaRange { offset, bytes };
                Request::CopyToDevice { stream, to: DeviceAddress(to), from }
            }
            kind::COPY_TO_HOST => {
                let (stream, offset, from, bytes) = self.copy()?;
                let to = ArenaRange { offset, bytes };
                Request::CopyToHost { stream, to, from: DeviceAddress(from) }
            }
            kind::COPY_ON_DEVICE => {
                let (stream, to, from, bytes) = self.copy()?;
                let (to, from) = (DeviceAddress(to), DeviceAddress(from));
                Request::CopyOnDevice { stream, to, from, bytes }
            }
            kind::FILL => self.fill()?,
            kind::WAIT_WORD => self.wait_word()?,
            kind::SYNCHRONIZE => self.synchronize()?,
            kind::GATE => Request::Gate { stream: self.stream()? },
            kind::OPEN_GATE => Request::OpenGate { gate: Sequence(self.one()?) },
            _ => return Err(Malformed::Kind(number)),
        })
    }

    fn reserve(self) -> Result<Request, Malformed> {
        let RawTwo { first: bytes, second: alignment } = self.fixed()?;
        if !alignment.is_power_of_two() {
            return Err(self.field("alignment", alignment));
        }
        Ok(Request::Reserve { bytes, alignment })
    }

    fn set_access(self) -> Result<Request, Malformed> {
        let raw = self.fixed::<RawSetAccess>()?;
        self.zero("reserved", raw.reserved)?;
        let access = ACCESSES.get(usize::try_from(raw.access).unwrap_or(usize::MAX)).copied();
        let access = access.ok_or_else(|| self.field("access", u64::from(raw.access)))?;
        let range = AddressRange { start: DeviceAddress(raw.start), bytes: raw.bytes };
        Ok(Request::SetAccess { range, access })
    }

    fn image_begin(self) -> Result<ImagePart, Malformed> {
        let raw = self.fixed::<RawModuleBegin>()?;
        self.zero("reserved", raw.reserved)?;
        let kind = ImageKind::from_raw(raw.kind);
        let kind = kind.ok_or_else(|| self.field("image kind", u64::from(raw.kind)))?;
        for (field, bytes) in [("size", raw.bytes), ("unpacked size", raw.unpacked_bytes)] {
            if bytes == 0 || bytes > MAX_MODULE {
                return Err(self.field(field, bytes));
            }
        }
        let RawModuleBegin { bytes, unpacked_bytes, .. } = raw;
        Ok(ImagePart::Begin { image: ImageId(raw.module), kind, bytes, unpacked_bytes })
    }

    fn image_chunk(self) -> Result<ImagePart, Malformed> {
        let (raw, data) = self.variable(|raw: &RawModuleChunk| raw.bytes)?;
        self.zero("reserved", raw.reserved)?;
        if data.is_empty() || data.len() > MAX_CHUNK {
            return Err(self.field("size", data.len() as u64));
        }
        if raw.offset > MAX_MODULE {
            return Err(self.field("offset", raw.offset));
        }
        let image = ImageId(raw.module);
        Ok(ImagePart::Chunk { image, offset: raw.offset, data: data.to_vec() })
    }

    fn stream_create(self) -> Result<Request, Malformed> {
        let raw = self.fixed::<RawStreamCreate>()?;
        let non_blocking = self.truth("non-blocking", raw.non_blocking)?;
        if raw.stream == StreamHandle::LEGACY.0 {
            return Err(self.field("stream", raw.stream));
        }
        Ok(Request::StreamCreate {
            stream: StreamHandle(raw.stream),
            kind: if non_blocking { StreamKind::NonBlocking } else { StreamKind::Blocking },
            priority: raw.priority,
        })
    }

    fn launch(self) -> Result<Launch, Malformed> {
        let (raw, params) = self.variable(|raw: &RawLaunch| raw.param_bytes)?;
        if params.len() > MAX_PARAMS {
            return Err(self.field("parameter size", params.len() as u64));
        }
        let flags = self.field("flags", u64::from(raw.flags));
        let cluster = match raw.flags & !COOPERATIVE {
            0 => Dim3::linear(1),
            rest => cluster(rest).ok_or(flags)?,
        };
        let dim = |[x, y, z]: [u32; 3]| Dim3::new(x, y, z);
        Ok(Launch {
            stream: StreamHandle(raw.stream),
            module: ModuleHandle(raw.module),
            kernel: raw.kernel,
            grid: dim(raw.grid),
            block: dim(raw.block),
            dynamic_shared: raw.dynamic_shared,
            cooperative: raw.flags & COOPERATIVE != 0,
            cluster,
            params: params.to_vec(),
        })
    }

    /// A stream, a destination, a source, a length.
    fn copy(self) -> Result<(StreamHandle, u64, u64, u64), Malformed> {
        let RawCopy { stream, to, from, bytes } = self.fixed()?;
        Ok((StreamHandle(stream), to, from, bytes))
    }

    fn fill(self) -> Result<Request, Malformed> {
        let raw = self.fixed::<RawFill>()?;
        let width = match raw.width {
            1 => 1,
            2 => 2,
            4 => 4,
            other => return Err(self.field("width", u64::from(other))),
        };
        let (stream, to) = (StreamHandle(raw.stream), DeviceAddress(raw.to));
        Ok(Request::Fill { stream, to, value: raw.value, width, count: raw.count })
    }

    fn wait_word(self) -> Result<Request, Malformed> {
        let raw = self.fixed::<RawWaitWord>()?;
        let width = match raw.width {
            4 => 4,
            8 => 8,
            other => return Err(self.field("width", u64::from(other))),
        };
        let condition =
            CONDITIONS.get(usize::try_from(raw.condition).unwrap_or(usize::MAX)).copied();
        let condition =
            condition.ok_or_else(|| self.field("condition", u64::from(raw.condition)))?;
        Ok(Request::WaitWord {
            stream: StreamHandle(raw.stream),
            address: DeviceAddress(raw.address),
            word: AwaitedWord { width, value: raw.value, condition },
        })
    }

    fn synchronize(self) -> Result<Request, Malformed> {
        let raw = self.fixed::<RawSynchronize>()?;
        self.zero("reserved", raw.reserved)?;
        let all = self.truth("all", raw.all)?;
        if all && raw.stream != 0 {
            return Err(self.field("stream", raw.stream));
        }
        Ok(Request::Synchronize { stream: (!all).then_some(StreamHandle(raw.stream)) })
    }
}
