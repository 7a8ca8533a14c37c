//! Server-sent events, line by line: the form of `GET /v1/events`.

/// The longest line, in bytes: a decision with all its reasons is far shorter.
const LINE_BYTES: usize = 16 << 20;

/// One event.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Told {
    pub id: String,
    pub kind: String,
    pub data: String,
}

/// Cuts bytes into events, however they come.
#[derive(Default)]
pub struct Parser {
    rest: Vec<u8>,
    event: Told,
}

impl Parser {
    /// Takes bytes, and gives the events that are complete.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<Told>, String> {
        self.rest.extend(bytes);
        let mut found = Vec::new();
        while let Some(end) = self.rest.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            let line = line.trim_end_matches(['\r', '\n']);
            match line.split_once(':') {
                Some(("id", value)) => self.event.id = field(value),
                Some(("event", value)) => self.event.kind = field(value),
                Some(("data", value)) => {
                    if !self.event.data.is_empty() {
                        self.event.data.push('\n');
                    }
                    self.event.data += &field(value);
                }
                // An empty line ends an event; comments and other fields say nothing.
                None if line.is_empty() && !self.event.kind.is_empty() => {
                    found.push(std::mem::take(&mut self.event));
                }
                _ => {}
            }
        }
        if self.rest.len() > LINE_BYTES {
            return Err(format!("a line of more than {LINE_BYTES} bytes"));
        }
        Ok(found)
    }
}

fn field(value: &str) -> String {
    value.strip_prefix(' ').unwrap_or(value).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_any_pieces() {
        let text = "event: hello\nid: e-1\ndata: {}\n\n:\n\nevent:border\r\nid: e-2\r\ndata: \
            {\"a\":1}\r\n\r\nevent: cut";
        let told = |id: &str, kind: &str, data: &str| Told {
            id: id.into(),
            kind: kind.into(),
            data: data.into(),
        };
        let expected = [told("e-1", "hello", "{}"), told("e-2", "border", "{\"a\":1}")];
        for size in [1, 2, 7, text.len()] {
            let mut parser = Parser::default();
            let pieces = text.as_bytes().chunks(size);
            let found: Vec<Told> = pieces.flat_map(|piece| parser.push(piece).unwrap()).collect();
            assert_eq!(found, expected, "in pieces of {size}");
        }
        let endless = vec![b'a'; LINE_BYTES + 1];
        assert!(Parser::default().push(&endless).unwrap_err().contains("a line of more"));
    }
}
