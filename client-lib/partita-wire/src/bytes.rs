//! Reading and writing of variable-length messages: little-endian, every length bounded before it
//! is believed.

/// Where and why a message does not parse.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum BytesError {
    #[error("ends at byte {at}, in the middle of {what}")]
    Short { at: usize, what: &'static str },
    #[error("{what} at byte {at} has length {length}, more than {limit}")]
    Long { at: usize, what: &'static str, length: u64, limit: u64 },
    #[error("{what} at byte {at} is not UTF-8")]
    Utf8 { at: usize, what: &'static str },
    #[error("{what} at byte {at} has the value {value}, which means nothing")]
    Value { at: usize, what: &'static str, value: u64 },
    #[error("{extra} bytes follow its end at byte {at}")]
    Trailing { at: usize, extra: usize },
}

/// Reads from the front of a message.
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Reader { bytes, at: 0 }
    }

    pub(crate) fn at(&self) -> usize {
        self.at
    }

    pub(crate) fn take(
        &mut self,
        count: usize,
        what: &'static str,
    ) -> Result<&'a [u8], BytesError> {
        let rest = &self.bytes[self.at..];
        let taken = rest.get(..count).ok_or(BytesError::Short { at: self.bytes.len(), what })?;
        self.at += count;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], BytesError> {
        let taken = self.take(N, what)?;
        Ok(taken.try_into().expect("take returns as many bytes as asked for"))
    }

    pub(crate) fn u8(&mut self, what: &'static str) -> Result<u8, BytesError> {
        self.array::<1>(what).map(|bytes| bytes[0])
    }

    pub(crate) fn u16(&mut self, what: &'static str) -> Result<u16, BytesError> {
        self.array(what).map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self, what: &'static str) -> Result<u32, BytesError> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self, what: &'static str) -> Result<u64, BytesError> {
        self.array(what).map(u64::from_le_bytes)
    }

    pub(crate) fn uuid(&mut self) -> Result<[u8; 16], BytesError> {
        self.array("uuid")
    }

    /// A count of things that take at least `least` bytes each: more than the rest can hold is
    /// refused, so that what is reserved for them is bounded by the message.
    pub(crate) fn count(&mut self, least: usize, what: &'static str) -> Result<usize, BytesError> {
        let at = self.at;
        let count = u64::from(self.u32(what)?);
        let limit = ((self.bytes.len() - self.at) / least) as u64;
        if count > limit {
            return Err(BytesError::Long { at, what, length: count, limit });
        }
        usize::try_from(count).map_err(|_| BytesError::Long { at, what, length: count, limit })
    }

    pub(crate) fn text(&mut self, limit: usize, what: &'static str) -> Result<String, BytesError> {
        let at = self.at;
        let length = self.u32(what)?;
        let count = usize::try_from(length).unwrap_or(usize::MAX);
        if count > limit {
            return Err(BytesError::Long {
                at,
                what,
                length: u64::from(length),
                limit: limit as u64,
            });
        }
        let bytes = self.take(count, what)?;
        let text = std::str::from_utf8(bytes).map_err(|_| BytesError::Utf8 { at, what })?;
        Ok(text.to_owned())
    }

    pub(crate) fn finish(self) -> Result<(), BytesError> {
        match self.bytes.len() - self.at {
            0 => Ok(()),
            extra => Err(BytesError::Trailing { at: self.at, extra }),
        }
    }
}

/// Appends to a message.
pub(crate) struct Writer<'a>(pub(crate) &'a mut Vec<u8>);

impl Writer<'_> {
    pub(crate) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(crate) fn u16(&mut self, value: u16) {
        self.0.extend(value.to_le_bytes());
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    pub(crate) fn count(&mut self, count: usize) {
        self.u32(u32::try_from(count).expect("counts are bounded far below 2^32"));
    }

    /// A text, cut at `limit` bytes on a character's border: its reader refuses longer ones.
    pub(crate) fn text(&mut self, text: &str, limit: usize) {
        let mut end = limit.min(text.len());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let cut = &text[..end];
        self.count(cut.len());
        self.bytes(cut.as_bytes());
    }
}
