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

#[cfg(test)]
mod tests {
    use super::*;

    /// A byte, a text of three bytes, and a count of two things of four bytes each.
    fn message() -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut writer = Writer(&mut bytes);
        writer.u8(7);
        writer.text("abc", 3);
        writer.count(2);
        writer.u32(1);
        writer.u32(u32::MAX);
        bytes
    }

    #[test]
    fn every_length_up_to_its_bound_is_read() {
        let bytes = message();
        let mut reader = Reader::new(&bytes);
        assert_eq!(reader.u8("byte"), Ok(7));
        assert_eq!(reader.at(), 1);
        assert_eq!(reader.text(3, "text"), Ok("abc".to_owned()));
        assert_eq!(reader.count(4, "things"), Ok(2));
        assert_eq!((reader.u32("thing"), reader.u32("thing")), (Ok(1), Ok(u32::MAX)));
        assert_eq!(reader.at(), bytes.len());
        assert_eq!(reader.finish(), Ok(()));
    }

    #[test]
    fn errors_name_what_and_where() {
        let check = |before: usize, read: &dyn Fn(&mut Reader<'_>) -> BytesError, expected| {
            let bytes = message();
            let mut reader = Reader::new(&bytes);
            reader.take(before, "what comes before").unwrap();
            assert_eq!(read(&mut reader), expected);
        };
        let what = "part";
        let text =
            |limit: usize| move |reader: &mut Reader<'_>| reader.text(limit, what).unwrap_err();
        let count = |least| move |reader: &mut Reader<'_>| reader.count(least, what).unwrap_err();
        check(1, &text(2), BytesError::Long { at: 1, what, length: 3, limit: 2 });
        // The rest holds one thing of five bytes, or of eight.
        check(8, &count(5), BytesError::Long { at: 8, what, length: 2, limit: 1 });
        check(8, &count(8), BytesError::Long { at: 8, what, length: 2, limit: 1 });
        check(16, &|reader| reader.u64(what).unwrap_err(), BytesError::Short { at: 20, what });
        check(16, &text(u32::MAX as usize), BytesError::Short { at: 20, what });
        let not_text = [2, 0, 0, 0, 0xc3, 0x28];
        let error = Reader::new(&not_text).text(2, what).unwrap_err();
        assert_eq!(error, BytesError::Utf8 { at: 0, what });
        let mut reader = Reader::new(&not_text);
        reader.take(5, what).unwrap();
        assert_eq!(reader.finish(), Err(BytesError::Trailing { at: 5, extra: 1 }));
    }

    #[test]
    fn a_text_is_cut_between_characters() {
        for (limit, length) in [(4, 4), (3, 2), (2, 2), (1, 0), (0, 0), (9, 4)] {
            let mut bytes = Vec::new();
            Writer(&mut bytes).text("äö", limit);
            assert_eq!(bytes.len(), 4 + length, "cut at {limit}");
        }
    }
}
