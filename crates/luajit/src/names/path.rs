//! Names of variables and fields, as programs write them.

/// A variable, or a field of something, as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    text: String,
    /// Position of the `.` before the last field, if the path ends with a field and something comes before it.
    dot: Option<usize>,
}

/// The most bytes of a key.
const MAX_KEY: usize = 60;

/// The most bytes of a path: a longer one begins with its last field.
const MAX_PATH: usize = 200;

impl Path {
    /// A variable.
    pub fn variable(name: &str) -> Self {
        Self { text: cut(name), dot: None }
    }

    /// Whether it is the variable with this name.
    pub fn is_variable(&self, name: &str) -> bool {
        self.text == name
    }

    /// The field `key` of `table`: `table.key`, or `table["the key"]` if `key` is no valid name.
    pub fn field(table: Option<Self>, key: &str) -> Self {
        if !is_name(key) {
            return Self::element(table, &format!("\"{}\"", cut(key).escape_debug()));
        }
        match table.filter(|table| table.text.len() < MAX_PATH) {
            Some(table) => Self { dot: Some(table.text.len()), text: format!("{}.{}", table.text, cut(key)) },
            None => Self::variable(key),
        }
    }

    /// The element of `table` with a key written like this: `table[3]`.
    pub fn element(table: Option<Self>, key: &str) -> Self {
        let table = table.filter(|table| table.text.len() < MAX_PATH).map_or_else(String::new, |table| table.text);
        Self { text: format!("{table}[{key}]"), dot: None }
    }

    /// The path as programs write it.
    pub fn into_text(self) -> String {
        self.text
    }

    /// The path as programs write it for methods: `table:key`.
    pub fn of_method(mut self) -> String {
        if let Some(dot) = self.dot {
            self.text.replace_range(dot..=dot, ":");
        }
        self.text
    }
}

fn cut(text: &str) -> String {
    if text.len() <= MAX_KEY { text.to_owned() } else { format!("{}...", &text[..text.floor_char_boundary(MAX_KEY)]) }
}

fn is_name(key: &str) -> bool {
    let mut characters = key.chars();
    characters.next().is_some_and(|first| first == '_' || first.is_ascii_alphabetic())
        && characters.all(|character| character == '_' || character.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_written_as_in_programs() {
        let table = || Some(Path::variable("handlers"));
        let field = Path::field(table(), "get");
        assert_eq!((field.clone().into_text(), field.of_method()), ("handlers.get".into(), "handlers:get".into()));
        let quoted = Path::field(table(), "a-\"b\"\n");
        assert_eq!(
            (quoted.clone().into_text(), quoted.of_method().contains(':')),
            (r#"handlers["a-\"b\"\n"]"#.into(), false)
        );
        assert_eq!(Path::element(table(), "3").into_text(), "handlers[3]");
        assert_eq!(Path::field(None, "alone").of_method(), "alone");
        assert_eq!(Path::element(None, "3").into_text(), "[3]");
    }

    #[test]
    fn no_path_gets_long() {
        let mut path = Path::variable(&"é".repeat(500));
        for key in 0..100 {
            path = Path::field(Some(path), &format!("key{key}"));
            assert!(path.text.len() < MAX_PATH + MAX_KEY + 20, "{path:?}");
        }
        assert!(Path::field(None, &"long key ".repeat(100)).text.len() < 100);
    }
}
