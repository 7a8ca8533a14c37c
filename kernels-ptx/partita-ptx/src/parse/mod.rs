//! Parses text into a [`Module`], by recursive descent with one token of lookahead.
//!
//! - After an error the parser goes on after the next `;` or at the next directive, so that one run
//!   shows several errors.
//! - Names are resolved while parsing, by the scopes of the PTX ISA. A name that cannot be resolved
//!   stays [`crate::ir::Symbol::Unresolved`]; the verifier refuses it, because a missing name is no
//!   error of form.
//! - Nothing recurses without bound: expressions, initialisers and operands carry a depth, and
//!   scopes do not recurse.
//! - Memory is a small multiple of the source: `%r<1000000>` costs nothing until a register is
//!   used.

mod constant;
mod distinct;
mod function;
mod header;
pub(crate) mod lexer;
mod numbered;
mod operand;
mod scope;
mod variable;

use crate::error::{Diagnostic, Errors, MAX_ERRORS};
use crate::ir::{Body, Module, Operand, Pos};
use crate::stop::Stop;

use lexer::{Kind, Lexer, Token};
use scope::Scopes;

/// Deepest nesting of expressions, initialisers and operands.
const MAX_DEPTH: u32 = 64;

/// Parses a PTX source.
///
/// # Errors
///
/// Every finding with its place, the line and what was expected; at most [`MAX_ERRORS`] of them.
pub fn parse(source: &str) -> Result<Module, Errors> {
    parse_until(source, &Stop::default())
}

/// Parses a PTX source unless it is told to stop. The module keeps `stop` for what comes after.
///
/// # Errors
///
/// As [`parse`]; and where it was stopped.
pub fn parse_until(source: &str, stop: &Stop) -> Result<Module, Errors> {
    let mut parser = Parser::new(source);
    parser.module.stop = stop.clone();
    if source.len() >= u32::MAX as usize / 4 {
        parser.error(parser.token, "source is larger than 1 GiB; split it into modules");
    } else {
        parser.module();
    }
    let Parser { errors, mut module, .. } = parser;
    Errors::check(errors).map_err(|errors| errors.with_source(source))?;
    module.find_definitions();
    Ok(module)
}

/// An error is recorded, and the caller recovers.
#[derive(Debug)]
struct Failed;

type Parsed<T> = Result<T, Failed>;

struct Parser<'s> {
    lexer: Lexer<'s>,
    token: Token,
    module: Module,
    errors: Vec<Diagnostic>,
    scopes: Scopes,
    /// The body being parsed; empty outside functions.
    body: Body,
    /// Operands collected before they go to the pool as one run.
    scratch: Vec<Operand>,
}

impl<'s> Parser<'s> {
    fn new(source: &'s str) -> Self {
        let mut lexer = Lexer::new(source);
        let token = lexer.next();
        Self {
            lexer,
            token,
            module: Module::default(),
            errors: Vec::new(),
            scopes: Scopes::new(source.len()),
            body: Body::default(),
            scratch: Vec::new(),
        }
    }

    #[inline]
    fn advance(&mut self) -> Token {
        std::mem::replace(&mut self.token, self.lexer.next())
    }

    fn text(&self, token: Token) -> &'s str {
        self.lexer.text(token)
    }

    /// The current token's text.
    fn current(&self) -> &'s str {
        self.lexer.text(self.token)
    }

    #[inline]
    fn at(&self, punct: u8) -> bool {
        self.token.kind == Kind::Punct(punct)
    }

    /// Takes the punctuation if it is there.
    #[inline]
    fn eat(&mut self, punct: u8) -> bool {
        let found = self.at(punct);
        if found {
            self.advance();
        }
        found
    }

    #[inline]
    fn expect(&mut self, punct: u8, after: &str) -> Parsed<()> {
        if self.eat(punct) {
            return Ok(());
        }
        Err(self.expected(&format!("`{}` {after}", char::from(punct))))
    }

    /// Takes the dotted word if it is the current token.
    fn eat_word(&mut self, word: &str) -> bool {
        let found = self.token.kind == Kind::Dotted && self.current() == word;
        if found {
            self.advance();
        }
        found
    }

    fn error(&mut self, token: Token, message: impl Into<String>) -> Failed {
        self.error_at(token.pos, token.end.saturating_sub(token.start), message)
    }

    fn error_at(&mut self, pos: Pos, len: u32, message: impl Into<String>) -> Failed {
        if self.errors.len() < MAX_ERRORS {
            self.errors.push(Diagnostic {
                pos,
                len: len.max(1),
                message: message.into(),
                excerpt: None,
            });
        }
        Failed
    }

    /// Records that the current token is not what was expected.
    fn expected(&mut self, what: &str) -> Failed {
        let token = self.token;
        let found = match token.kind {
            Kind::End => "the end of the source".to_owned(),
            Kind::Bad if self.current().starts_with('"') => {
                "a string that does not end on its line".to_owned()
            }
            Kind::Bad if self.current().starts_with("/*") => {
                "a comment that does not end".to_owned()
            }
            _ => {
                let text: String = self.current().chars().take(40).collect();
                format!("`{}`", text.escape_debug())
            }
        };
        self.error(token, format!("expected {what}, found {found}"))
    }

    /// Whether to stop instead of recovering once more.
    fn exhausted(&self) -> bool {
        self.errors.len() >= MAX_ERRORS || self.token.kind == Kind::End
    }

    /// Skips past the next `;`, or up to a brace or a directive at the beginning of a
    /// line.
    fn skip_statement(&mut self) {
        let line = self.token.pos.line;
        loop {
            match self.token.kind {
                Kind::End | Kind::Punct(b'}' | b'{') => return,
                Kind::Punct(b';') => {
                    self.advance();
                    return;
                }
                Kind::Dotted if self.token.pos.line > line && is_directive(self.current()) => {
                    return;
                }
                _ => {
                    self.advance();
                }
            }
        }
    }
}

/// Whether the word begins a statement: a place to go on after an error.
fn is_directive(word: &str) -> bool {
    matches!(
        word,
        ".entry"
            | ".func"
            | ".visible"
            | ".extern"
            | ".weak"
            | ".common"
            | ".global"
            | ".const"
            | ".shared"
            | ".local"
            | ".reg"
            | ".param"
            | ".loc"
            | ".pragma"
            | ".file"
            | ".section"
    )
}
