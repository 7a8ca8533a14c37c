//! Parses the module level: the three leading directives, then functions, variables and texts that
//! are carried verbatim.

use super::lexer::{Kind, Token};
use super::variable::Level;
use super::{Failed, Parsed, Parser};
use crate::ir::{Item, Linkage, Name, Symbol, Version};

impl Parser<'_> {
    /// Parses everything.
    pub(super) fn module(&mut self) {
        if self.version().is_err() {
            self.skip_header_line();
        }
        while !self.exhausted() {
            if self.module.stop.is_asked() {
                self.error(self.token, "stopped here");
                return;
            }
            let before = self.token.start;
            if self.item().is_err() {
                self.skip_item(before);
            }
        }
    }

    fn version(&mut self) -> Parsed<()> {
        if !self.eat_word(".version") {
            return Err(self.expected("`.version` (a PTX source begins with it)"));
        }
        let token = self.token;
        let parsed = self.current().split_once('.').and_then(|(major, minor)| {
            Some(Version { major: major.parse().ok()?, minor: minor.parse().ok()? })
        });
        let Some(version) = parsed.filter(|_| token.kind == Kind::Number) else {
            return Err(self.expected("a version such as `8.4`"));
        };
        self.advance();
        self.module.version = version;
        Ok(())
    }

    fn skip_header_line(&mut self) {
        let line = self.token.pos.line;
        while self.token.pos.line == line && self.token.kind != Kind::End {
            self.advance();
        }
    }

    /// After a failed item: forward to the next one, over whole braces; always past `before`.
    fn skip_item(&mut self, before: u32) {
        if self.token.start == before {
            self.advance();
        }
        let mut depth = 0_u32;
        loop {
            match self.token.kind {
                Kind::End => return,
                Kind::Punct(b'{') => depth += 1,
                Kind::Punct(b'}') => {
                    depth = depth.saturating_sub(1);
                    if depth == 0 {
                        self.advance();
                        return;
                    }
                }
                Kind::Punct(b';') if depth == 0 => {
                    self.advance();
                    return;
                }
                // `.param` and `.reg` also stand inside a parameter list.
                Kind::Dotted
                    if depth == 0
                        && super::is_directive(self.current())
                        && !matches!(self.current(), ".param" | ".reg") =>
                {
                    return;
                }
                _ => {}
            }
            self.advance();
        }
    }

    fn item(&mut self) -> Parsed<()> {
        if self.eat(b';') {
            return Ok(());
        }
        if self.at(b'@') {
            return self.dwarf_line();
        }
        if self.token.kind != Kind::Dotted {
            return Err(
                self.expected("a directive such as `.visible .entry`, `.func` or `.global`")
            );
        }
        let first = self.token;
        match self.current() {
            ".target" => self.target(),
            ".address_size" => self.address_size(),
            ".file" => {
                self.advance();
                self.file_directive(first)
            }
            ".section" => self.section(),
            ".alias" => self.alias(),
            ".pragma" => {
                self.advance();
                let text = self.pragma_text()?;
                self.module.items.push(Item::Pragma(text));
                Ok(())
            }
            ".version" => Err(self.error(first, "`.version` may stand only at the beginning")),
            _ => {
                let linkage = self.linkage();
                match self.current() {
                    ".entry" | ".func" => self.function(linkage),
                    _ => {
                        let prefix = self.prefix()?;
                        for id in self.variables(&prefix, linkage, Level::Module)? {
                            self.module.items.push(Item::Variable(id));
                        }
                        Ok(())
                    }
                }
            }
        }
    }

    pub(super) fn linkage(&mut self) -> Linkage {
        for (word, linkage) in [
            (".visible", Linkage::Visible),
            (".extern", Linkage::Extern),
            (".weak", Linkage::Weak),
            (".common", Linkage::Common),
        ] {
            if self.eat_word(word) {
                return linkage;
            }
        }
        Linkage::Private
    }

    fn target(&mut self) -> Parsed<()> {
        let directive = self.advance();
        let mut target = Vec::new();
        loop {
            if self.token.kind != Kind::Ident {
                return Err(self.expected("an architecture such as `sm_90`"));
            }
            let token = self.advance();
            target.push(self.intern(token));
            if !self.eat(b',') {
                break;
            }
        }
        if !self.module.target.is_empty() && self.module.target != target {
            return Err(self.error(directive, "a second `.target` that differs from the first"));
        }
        self.module.target = target;
        Ok(())
    }

    fn address_size(&mut self) -> Parsed<()> {
        self.advance();
        let token = self.token;
        match self.current() {
            "32" => self.module.address_size = Some(32),
            "64" => self.module.address_size = Some(64),
            _ => return Err(self.error(token, "expected an address size of `32` or `64`")),
        }
        self.advance();
        Ok(())
    }

    /// `.file 1 "a.cu"`, optionally with a time stamp and a size; the directive's word is taken
    /// already.
    pub(super) fn file_directive(&mut self, first: Token) -> Parsed<()> {
        if self.token.kind != Kind::Number {
            return Err(self.expected("the number of the file"));
        }
        self.advance();
        if self.token.kind != Kind::Text {
            return Err(self.expected("the file's name in quotes"));
        }
        let mut end = self.advance().end;
        while self.eat(b',') {
            if self.token.kind != Kind::Number {
                return Err(self.expected("a number (time stamp or size of the file)"));
            }
            end = self.advance().end;
        }
        let text = self.lexer.between(first.start, end);
        let name = self.module.names.intern(text);
        self.module.items.push(Item::File(name));
        Ok(())
    }

    fn section(&mut self) -> Parsed<()> {
        let start = self.advance().start;
        // The section's name: `.debug_str`, or a word.
        if !matches!(self.token.kind, Kind::Dotted | Kind::Ident) {
            return Err(self.expected("the name of the section"));
        }
        self.advance();
        if !self.at(b'{') {
            return Err(self.expected("`{` before the section's contents"));
        }
        loop {
            let token = self.advance();
            match token.kind {
                Kind::Punct(b'}') => {
                    let text = self.lexer.between(start, token.end);
                    let name = self.module.names.intern(text);
                    self.module.items.push(Item::Section(name));
                    return Ok(());
                }
                Kind::End => {
                    return Err(self.error(token, "expected `}` after the section's contents"));
                }
                _ => {}
            }
        }
    }

    fn alias(&mut self) -> Parsed<()> {
        self.advance();
        let alias_token = self.token;
        let Symbol::Func(alias) = self.module_symbol()? else {
            return Err(self.error(alias_token, "expected the name of a function declared above"));
        };
        self.expect(b',', "between the alias and its function")?;
        let target = self.module_symbol()?;
        self.expect(b';', "after `.alias`")?;
        self.module.items.push(Item::Alias { alias, target });
        Ok(())
    }

    /// `"a", "b";` as written.
    pub(super) fn pragma_text(&mut self) -> Parsed<Name> {
        let start = self.token.start;
        loop {
            if self.token.kind != Kind::Text {
                return Err(self.expected("a string"));
            }
            let end = self.advance().end;
            if !self.eat(b',') {
                self.expect(b';', "after `.pragma`")?;
                let text = self.lexer.between(start, end);
                return Ok(self.module.names.intern(text));
            }
        }
    }

    /// `@@DWARF …`: debug data of PTX before version 2, a line at a time.
    fn dwarf_line(&mut self) -> Result<(), Failed> {
        let start = self.token.start;
        self.advance();
        if !self.at(b'@') {
            return Err(self.expected("`@@DWARF` or a directive"));
        }
        let end = self.lexer.rest_of_line();
        self.advance();
        let text = self.lexer.between(start, end);
        let name = self.module.names.intern(text.trim_end());
        self.module.items.push(Item::Dwarf(name));
        Ok(())
    }

    pub(super) fn intern(&mut self, token: Token) -> Name {
        let text = self.lexer.text(token);
        self.module.names.intern(text)
    }
}
