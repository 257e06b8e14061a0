//! Parses human-readable signatures of functions and errors: `transfer(address,uint256)`, with or without names,
//! `function`, modifiers and `returns`.

use super::types::{AbiType, Function, MAX_DEPTH, Param, is_identifier};

/// Keywords allowed after a parameter list; none of them changes the encoding.
const MODIFIERS: [&str; 6] = ["external", "public", "payable", "nonpayable", "view", "pure"];
/// Keywords allowed between a parameter's type and its name.
const LOCATIONS: [&str; 4] = ["memory", "calldata", "storage", "payable"];

/// `Err` describes the problem.
pub(super) fn parse(text: &str) -> Result<Function, String> {
    let mut reader = Reader { rest: text.trim() };
    let function = reader
        .named("function")
        .ok_or_else(|| format!("`{text}` is not a signature such as transfer(address,uint256)"))??;
    reader.tail()?;
    Ok(function)
}

/// The same for an error: `InsufficientBalance(uint256 available, uint256 required)`.
pub(super) fn parse_error(text: &str) -> Result<Function, String> {
    let mut reader = Reader { rest: text.trim() };
    let error = reader.named("error").ok_or_else(|| {
        format!("`{text}` is not an error such as InsufficientBalance(uint256 available, uint256 required)")
    })??;
    reader.end()?;
    Ok(error)
}

struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    fn skip_blanks(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn take(&mut self, expected: char) -> bool {
        self.skip_blanks();
        match self.rest.strip_prefix(expected) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn word(&mut self) -> &'a str {
        let end = self
            .rest
            .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '$'))
            .unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }

    fn unexpected(&self, wanted: &str) -> String {
        match self.rest.chars().next() {
            Some(found) => format!("expected {wanted}, found `{found}`"),
            None => format!("expected {wanted} at the end"),
        }
    }

    /// A name and its parameters, optionally after `keyword`. `None`: it does not start with a name and `(`.
    fn named(&mut self, keyword: &str) -> Option<Result<Function, String>> {
        let mut name = self.word();
        if name == keyword && self.rest.starts_with(char::is_whitespace) {
            self.skip_blanks();
            name = self.word();
        }
        self.skip_blanks();
        let begins = is_identifier(name) && self.rest.starts_with('(');
        begins.then(|| Ok(Function { name: name.to_owned(), inputs: self.params(0)? }))
    }

    /// A parenthesised list, including the opening parenthesis.
    fn params(&mut self, depth: usize) -> Result<Vec<Param>, String> {
        if !self.take('(') {
            return Err(self.unexpected("`(`"));
        }
        let mut params = Vec::new();
        if self.take(')') {
            return Ok(params);
        }
        loop {
            params.push(self.param(depth)?);
            if self.take(')') {
                return Ok(params);
            }
            if !self.take(',') {
                return Err(self.unexpected("`,` or `)`"));
            }
        }
    }

    fn param(&mut self, depth: usize) -> Result<Param, String> {
        let kind = self.kind(depth)?;
        let mut name = "";
        loop {
            self.skip_blanks();
            match self.word() {
                "" => return Ok(Param { name: name.to_owned(), kind }),
                word if LOCATIONS.contains(&word) => {}
                word if name.is_empty() && is_identifier(word) => name = word,
                word => return Err(format!("unexpected `{word}`")),
            }
        }
    }

    fn kind(&mut self, depth: usize) -> Result<AbiType, String> {
        if depth > MAX_DEPTH {
            return Err("is nested too deeply".into());
        }
        self.skip_blanks();
        let word = self.word();
        let mut kind = if (word.is_empty() || word == "tuple") && self.rest.starts_with('(') {
            let parts = self.params(depth + 1)?;
            if parts.is_empty() {
                return Err("a tuple needs at least one component".into());
            }
            AbiType::Tuple(parts)
        } else if word.is_empty() {
            return Err(self.unexpected("a type"));
        } else {
            AbiType::elementary(word)?
        };
        let mut levels = depth;
        while let Some(rest) = self.rest.strip_prefix('[') {
            levels += 1;
            if levels > MAX_DEPTH {
                return Err("is nested too deeply".into());
            }
            let (digits, rest) = rest.split_once(']').ok_or("`]` is missing")?;
            kind = kind.array(Some(digits).filter(|digits| !digits.is_empty()))?;
            self.rest = rest;
        }
        Ok(kind)
    }

    /// Modifiers and the `returns` part: validated, so that typing errors are found, and then ignored.
    fn tail(&mut self) -> Result<(), String> {
        loop {
            self.skip_blanks();
            match self.word() {
                "" => break,
                "returns" => {
                    self.params(0)?;
                    break;
                }
                word if MODIFIERS.contains(&word) => {}
                word => return Err(format!("unexpected `{word}`")),
            }
        }
        self.end()
    }

    fn end(&mut self) -> Result<(), String> {
        self.take(';');
        self.skip_blanks();
        if self.rest.is_empty() { Ok(()) } else { Err(self.unexpected("the end")) }
    }
}
