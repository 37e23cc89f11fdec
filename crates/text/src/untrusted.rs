//! Text that the target controls: names of processes, threads, functions and files, and the content of strings. It may
//! contain anything: commands for a terminal, text that misleads a reader, the end marks of a format.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, Write};

/// A text of the target. It is displayed with everything escaped that is not plain text: control characters, including
/// line ends (`
/// `, `\x1b`, `\u{9b}`), and characters that change the direction of text (`\u{202e}`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Untrusted<'a>(pub &'a str);

/// Whether a character does more than display a sign: C0, DEL, C1, line and paragraph separators, and Unicode's
/// characters for the direction of text.
fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

impl<'a> Untrusted<'a> {
    /// The escaped text.
    pub fn text(self) -> Cow<'a, str> {
        if self.0.chars().any(is_harmful) { self.to_string().into() } else { self.0.into() }
    }
}

impl fmt::Display for Untrusted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        while let Some(at) = rest.find(is_harmful) {
            let (plain, harmful) = rest.split_at(at);
            f.write_str(plain)?;
            let mut characters = harmful.chars();
            if let Some(c) = characters.next() {
                escape(c, f)?;
            }
            rest = characters.as_str();
        }
        f.write_str(rest)
    }
}

fn escape(c: char, out: &mut impl fmt::Write) -> fmt::Result {
    match c {
        '\n' => out.write_str("\\n"),
        '\t' => out.write_str("\\t"),
        '\r' => out.write_str("\\r"),
        c if c.is_ascii() => write!(out, "\\x{:02x}", u32::from(c)),
        c => write!(out, "\\u{{{:x}}}", u32::from(c)),
    }
}

/// Displays bytes of the target. Bytes that are not UTF-8 become `\xff`.
pub fn bytes(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        text.push_str(&Untrusted(chunk.valid()).text());
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
    }
    text
}

/// The form of an output: which line ends are its own, and how it escapes forbidden characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Lines of text.
    Text,
    /// JSON, which has its own escapes.
    Json,
}

/// Writes text for people or programs, and lets nothing through that a terminal obeys. It is the safety net behind
/// [`Untrusted`], which names should have passed before.
pub struct PlainWriter<W> {
    out: W,
    form: Form,
    /// The first bytes of a character whose rest has not come yet.
    cut: Vec<u8>,
}

impl<W: Write> PlainWriter<W> {
    /// Writes to `out`.
    pub fn new(out: W, form: Form) -> Self {
        Self { out, form, cut: Vec::new() }
    }

    fn write_text(&mut self, text: &str) -> io::Result<()> {
        let mut rest = text;
        while let Some(at) = rest.find(|c| is_harmful(c) && c != '\n' && c != '\t') {
            let (plain, harmful) = rest.split_at(at);
            self.out.write_all(plain.as_bytes())?;
            let mut characters = harmful.chars();
            if let Some(c) = characters.next() {
                match self.form {
                    Form::Text => write!(self.out, "{}", Untrusted(c.encode_utf8(&mut [0; 4])))?,
                    Form::Json => write!(self.out, "\\u{:04x}", u32::from(c))?,
                }
            }
            rest = characters.as_str();
        }
        self.out.write_all(rest.as_bytes())
    }

    fn write_invalid(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self.form {
            Form::Text => bytes.iter().try_for_each(|byte| write!(self.out, "\\x{byte:02x}")),
            Form::Json if bytes.is_empty() => Ok(()),
            Form::Json => self.out.write_all(b"\\ufffd"),
        }
    }
}

impl<W: Write> Write for PlainWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let joined;
        let text = if self.cut.is_empty() {
            bytes
        } else {
            joined = [&*std::mem::take(&mut self.cut), bytes].concat();
            &*joined
        };
        let mut chunks = text.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            self.write_text(chunk.valid())?;
            let invalid = chunk.invalid();
            // Bytes at the very end may be the beginning of a character.
            let is_cut =
                chunks.peek().is_none() && std::str::from_utf8(invalid).is_err_and(|e| e.error_len().is_none());
            if is_cut {
                self.cut = invalid.to_vec();
            } else {
                self.write_invalid(invalid)?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let cut = std::mem::take(&mut self.cut);
        self.write_invalid(&cut)?;
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_shown() {
        assert_eq!(Untrusted("a\x1b[2Jb\n\x07\t\x7f").to_string(), "a\\x1b[2Jb\\n\\x07\\t\\x7f");
        assert_eq!(Untrusted("größe@x.lua:1").text(), "größe@x.lua:1");
        assert_eq!(Untrusted("\u{202e}cod\u{9b}2J\u{2028}").text(), "\\u{202e}cod\\u{9b}2J\\u{2028}");
        assert_eq!(bytes(b"a\xff\x1bb\xc3"), "a\\xff\\x1bb\\xc3");
    }

    fn written(form: Form, parts: &[&[u8]]) -> String {
        let mut out = Vec::new();
        let mut writer = PlainWriter::new(&mut out, form);
        parts.iter().for_each(|part| writer.write_all(part).unwrap());
        writer.flush().unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn lines_get_through_and_nothing_else_does() {
        assert_eq!(written(Form::Text, &[b"a\tb\n\x1b]0;x\x07\n"]), "a\tb\n\\x1b]0;x\\x07\n");
        assert_eq!(written(Form::Text, &["ö\u{202e}".as_bytes(), b"\xff"]), "ö\\u{202e}\\xff");
        assert_eq!(written(Form::Json, &["\"\u{9b}\u{202e}\u{7f}\"\n".as_bytes()]), "\"\\u009b\\u202e\\u007f\"\n");
        assert_eq!(written(Form::Json, &[b"\"\xff\""]), "\"\\ufffd\"");
    }

    #[test]
    fn characters_may_come_in_parts() {
        let text = "ä\u{202e}€\u{1f600}";
        for at in 0..text.len() {
            let (a, b) = text.as_bytes().split_at(at);
            assert_eq!(written(Form::Text, &[a, b]), "ä\\u{202e}€\u{1f600}", "cut at {at}");
        }
        let bytes: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
        assert_eq!(written(Form::Text, &bytes), "ä\\u{202e}€\u{1f600}");
        assert_eq!(written(Form::Text, &[b"\xe2\x80"]), "\\xe2\\x80");
    }
}
