//! What the text of a program calls a function where it defines it.

/// The name of the first function that begins in a line of Lua; [`None`] if it is stored under no name there.
pub fn defined_as(line: &str) -> Option<String> {
    let keyword = "function";
    let (before, behind) = line.split_at(line.find(keyword)?);
    let named = behind[keyword.len()..].split('(').next()?.trim();
    if !named.is_empty() {
        return Some(named.to_owned());
    }
    let variable = before.trim_end().strip_suffix('=')?.trim_end();
    let is_part = |character: char| character.is_alphanumeric() || matches!(character, '_' | '.');
    let begin = variable.rfind(|character| !is_part(character)).map_or(0, |last| last + 1);
    // The table may be the result of a call: then it has no name.
    Some(variable[begin..].trim_start_matches('.').to_owned())
}

#[cfg(test)]
mod tests {
    use super::defined_as;

    #[test]
    fn variables_and_fields_name_functions() {
        let named = [
            ("local function f1(x)", "f1"),
            ("function T.f2(x)", "T.f2"),
            ("function O:m3(x)", "O:m3"),
            ("f4 = function(x, d)", "f4"),
            ("local f5 = function(x)", "f5"),
            ("getmetatable(o6).__len = function(o) local x = 1.5", "__len"),
            ("local o7 = setmetatable({}, {__index = function(t, k)", "__index"),
        ];
        for (line, name) in named {
            assert_eq!(defined_as(line).as_deref(), Some(name), "{line}");
        }
    }

    #[test]
    fn arguments_have_no_names() {
        for line in ["x = (function(x)", "local ok, r = pcall(function(x)", "for v in function() i1 = i1 + 1", "x = 1"]
        {
            assert_eq!(defined_as(line), None, "{line}");
        }
    }
}
