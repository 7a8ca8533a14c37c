//! Splits bytes into tokens, without copying (PTX ISA, "Lexical Elements": source format, comments,
//! identifiers, constants).
//!
//! A token is a span and a kind; the parser asks for its text. Dotted words (`.global`) are tokens
//! of their own, with `::` inside them. [`Lexer::opcode_tail`] takes an opcode's dotted words
//! together, so that one lookup per instruction suffices. A NUL byte counts as white space: NVRTC's
//! texts end with one.

use crate::ir::Pos;

/// The kind of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `foo`, `%r1`, `$L__BB0_2`, `_`
    Ident,
    /// `.global`; the text includes the dot.
    Dotted,
    /// Any number.
    Number,
    /// `"…"`, with its quotes.
    Text,
    /// A punctuation character.
    Punct(u8),
    /// A two-character operator; the first character, doubled or followed by `=`.
    Operator(u8, u8),
    /// End of the source.
    End,
    /// A byte that begins no token, or a string or comment that does not end.
    Bad,
}

/// A token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token {
    pub kind: Kind,
    pub start: u32,
    pub end: u32,
    pub pos: Pos,
}

const IDENT_START: u8 = 1;
const IDENT: u8 = 2;
const DIGIT: u8 = 4;
const SPACE: u8 = 8;

static CLASS: [u8; 256] = {
    let mut table = [0_u8; 256];
    let mut byte = 0_usize;
    while byte < 256 {
        #[expect(clippy::cast_possible_truncation, reason = "below 256")]
        let c = byte as u8;
        if c.is_ascii_alphabetic() || c == b'_' || c == b'$' {
            table[byte] = IDENT_START | IDENT;
        } else if c == b'%' {
            table[byte] = IDENT_START;
        } else if c.is_ascii_digit() {
            table[byte] = IDENT | DIGIT;
        } else if c == b' ' || c == b'\t' || c == b'\r' || c == 0 || c == 0x0b || c == 0x0c {
            table[byte] = SPACE;
        }
        byte += 1;
    }
    table
};

/// The lexer's place in a source.
#[derive(Clone, Debug)]
pub(crate) struct Lexer<'s> {
    source: &'s str,
    bytes: &'s [u8],
    at: usize,
    line: u32,
    line_start: usize,
}

impl<'s> Lexer<'s> {
    pub fn new(source: &'s str) -> Self {
        Self { source, bytes: source.as_bytes(), at: 0, line: 1, line_start: 0 }
    }

    pub fn text(&self, token: Token) -> &'s str {
        &self.source[token.start as usize..token.end as usize]
    }

    /// The text from one offset to another; both are token borders.
    pub fn between(&self, start: u32, end: u32) -> &'s str {
        &self.source[start as usize..end as usize]
    }

    #[inline]
    fn byte(&self, ahead: usize) -> u8 {
        self.bytes.get(self.at + ahead).copied().unwrap_or(0)
    }

    #[inline]
    fn class(&self, ahead: usize) -> u8 {
        CLASS[self.byte(ahead) as usize]
    }

    #[expect(clippy::cast_possible_truncation, reason = "the parser refuses sources beyond 4 GiB")]
    fn pos(&self, at: usize) -> Pos {
        Pos { line: self.line, col: (at - self.line_start) as u32 + 1 }
    }

    /// The next token.
    pub fn next(&mut self) -> Token {
        if let Err(bad) = self.skip_space() {
            return bad;
        }
        let start = self.at;
        let pos = self.pos(start);
        let byte = self.byte(0);
        let class = CLASS[byte as usize];
        let kind = if class & IDENT_START != 0 {
            self.at += 1;
            self.skip_ident();
            // A lone `%` is the remainder operator.
            if byte == b'%' && self.at == start + 1 { Kind::Punct(b'%') } else { Kind::Ident }
        } else if class & DIGIT != 0 {
            self.number();
            Kind::Number
        } else if byte == b'.' && self.class(1) & IDENT != 0 {
            self.dotted();
            Kind::Dotted
        } else if start >= self.bytes.len() {
            Kind::End
        } else {
            self.punctuation(byte)
        };
        self.token(kind, start, pos)
    }

    #[expect(clippy::cast_possible_truncation, reason = "the parser refuses sources beyond 4 GiB")]
    fn token(&self, kind: Kind, start: usize, pos: Pos) -> Token {
        Token { kind, start: start as u32, end: self.at as u32, pos }
    }

    #[inline]
    fn skip_ident(&mut self) {
        self.skip_while(IDENT);
    }

    #[inline]
    fn skip_while(&mut self, class: u8) {
        let mut at = self.at;
        while let Some(&byte) = self.bytes.get(at)
            && CLASS[byte as usize] & class != 0
        {
            at += 1;
        }
        self.at = at;
    }

    /// Extends an opcode token by the dotted words that follow it at once: `ld` to `ld.global.f32`.
    pub fn opcode_tail(&mut self, token: Token) -> Token {
        while self.byte(0) == b'.' && self.class(1) & IDENT != 0 {
            self.dotted();
        }
        self.token(token.kind, token.start as usize, token.pos)
    }

    fn dotted(&mut self) {
        self.at += 1;
        self.skip_ident();
        while self.byte(0) == b':' && self.byte(1) == b':' && self.class(2) & IDENT != 0 {
            self.at += 2;
            self.skip_ident();
        }
    }

    fn number(&mut self) {
        // 0f and 0d forms are hexadecimal digits and end like any word; so do suffixes and bad
        // digits, which the parser reports with the whole word underlined.
        let prefixed = self.byte(0) == b'0' && self.class(1) & IDENT_START != 0;
        self.skip_ident();
        if prefixed {
            return;
        }
        if self.byte(0) == b'.' && (self.class(1) & DIGIT != 0 || self.class(1) & IDENT == 0) {
            self.at += 1;
            self.skip_ident();
        }
        let exponent = self.bytes[self.at - 1].eq_ignore_ascii_case(&b'e');
        if exponent && matches!(self.byte(0), b'+' | b'-') && self.class(1) & DIGIT != 0 {
            self.at += 1;
            self.skip_ident();
        }
    }

    fn punctuation(&mut self, byte: u8) -> Kind {
        let next = self.byte(1);
        let doubled = matches!(byte, b'<' | b'>' | b'&' | b'|' | b'=') && next == byte;
        let compared = matches!(byte, b'<' | b'>' | b'!') && next == b'=';
        if doubled || compared {
            self.at += 2;
            return Kind::Operator(byte, next);
        }
        match byte {
            b'"' => self.string(),
            b';' | b',' | b':' | b'{' | b'}' | b'(' | b')' | b'[' | b']' | b'<' | b'>' | b'='
            | b'+' | b'-' | b'*' | b'/' | b'!' | b'~' | b'&' | b'|' | b'^' | b'?' | b'@' => {
                self.at += 1;
                Kind::Punct(byte)
            }
            _ => {
                // A whole character, so that the next token starts at a boundary.
                self.at += self.source[self.at..].chars().next().map_or(1, char::len_utf8);
                Kind::Bad
            }
        }
    }

    fn string(&mut self) -> Kind {
        self.at += 1;
        loop {
            match self.bytes.get(self.at) {
                None | Some(b'\n') => return Kind::Bad,
                Some(b'"') => {
                    self.at += 1;
                    return Kind::Text;
                }
                Some(b'\\') if self.bytes.get(self.at + 1).is_some_and(|&c| c != b'\n') => {
                    self.at += 2
                }
                Some(_) => self.at += 1,
            }
            while !self.source.is_char_boundary(self.at) {
                self.at += 1;
            }
        }
    }

    fn skip_space(&mut self) -> Result<(), Token> {
        loop {
            self.skip_while(SPACE);
            let Some(&byte) = self.bytes.get(self.at) else { return Ok(()) };
            if byte == b'\n' {
                self.at += 1;
                self.line += 1;
                self.line_start = self.at;
            } else if byte == b'/' && self.byte(1) == b'/' {
                while self.bytes.get(self.at).is_some_and(|&c| c != b'\n') {
                    self.at += 1;
                }
            } else if byte == b'/' && self.byte(1) == b'*' {
                self.block_comment()?;
            } else {
                return Ok(());
            }
        }
    }

    fn block_comment(&mut self) -> Result<(), Token> {
        let (start, pos) = (self.at, self.pos(self.at));
        self.at += 2;
        while let Some(&byte) = self.bytes.get(self.at) {
            self.at += 1;
            if byte == b'*' && self.byte(0) == b'/' {
                self.at += 1;
                return Ok(());
            }
            if byte == b'\n' {
                self.line += 1;
                self.line_start = self.at;
            }
        }
        // The rest of the source is the comment; report its start.
        let mut token = self.token(Kind::Bad, start, pos);
        token.end = token.start + 2;
        Err(token)
    }

    /// Skips to the end of the line and returns the offset there.
    #[expect(clippy::cast_possible_truncation, reason = "the parser refuses sources beyond 4 GiB")]
    pub fn rest_of_line(&mut self) -> u32 {
        while self.bytes.get(self.at).is_some_and(|&c| c != b'\n') {
            self.at += 1;
        }
        self.at as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(source: &str, expected: &[&str]) {
        let mut lexer = Lexer::new(source);
        let mut texts = Vec::new();
        loop {
            let token = lexer.next();
            if token.kind == Kind::End {
                break;
            }
            texts.push(lexer.text(token));
        }
        assert_eq!(texts, expected, "{source}");
    }

    #[test]
    fn tokens() {
        check("add.s32 %r1,%r2;", &["add", ".s32", "%r1", ",", "%r2", ";"]);
        check(".L2::128B.v4", &[".L2::128B", ".v4"]);
        check(
            "1.5e-3 1e+9 0f3F800000 0x1fU 12. 7",
            &["1.5e-3", "1e+9", "0f3F800000", "0x1fU", "12.", "7"],
        );
        check("$L__BB0_2: // c\n/* d\n*/ a", &["$L__BB0_2", ":", "a"]);
        check("5 % 3<<1>=2", &["5", "%", "3", "<<", "1", ">=", "2"]);
        check(r#""a\"b" c"#, &[r#""a\"b""#, "c"]);
        check("%tid.x.b0\0", &["%tid", ".x", ".b0"]);
        check("ä\"é", &["ä", "\"é"]);
    }

    #[test]
    fn an_opcode_is_one_span() {
        let mut lexer = Lexer::new("ld.global.L2::128B.f32 %f1;");
        let first = lexer.next();
        let whole = lexer.opcode_tail(first);
        assert_eq!(lexer.text(whole), "ld.global.L2::128B.f32");
        assert_eq!(lexer.next().pos, Pos { line: 1, col: 24 });
    }

    #[test]
    fn lines_count_through_comments() {
        let mut lexer = Lexer::new("/* a\n b */ x\n  y");
        assert_eq!(lexer.next().pos, Pos { line: 2, col: 7 });
        assert_eq!(lexer.next().pos, Pos { line: 3, col: 3 });
    }
}
