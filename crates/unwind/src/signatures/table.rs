//! The known signatures: what each function of LuaJIT refers to in the examined builds.
//!
//! The text has a line for each name: the name, and separated by tabs its lists of calls, of addresses and of
//! constants, one for each build (separated by `;`, equal lists once). A number in a list is the line of a function,
//! from 0 on; `-` is a function that does not belong to LuaJIT. A `!` before the name says that some build has several
//! functions of this name. A `~` before that says that functions of other names look the same in some build.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::sync::OnceLock;

use crate::arch::SIGNATURES;

/// A name: the number of its line in the table.
pub type NameId = u16;

/// A function in a list of references: one of LuaJIT's, or another one.
pub type Element = Option<NameId>;

/// The name of the interpreter's code, which has no symbol of its own.
pub const INTERPRETER: &str = "lj_vm_asm_begin";

/// The signatures of one name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signature {
    /// The lists of calls, one for each build.
    pub calls: BTreeSet<Vec<Element>>,
    /// The lists of addresses, one for each build.
    pub addresses: BTreeSet<Vec<Element>>,
    /// The lists of constants, one for each build.
    pub constants: BTreeSet<Vec<u32>>,
    /// How many builds have a function of this name.
    pub builds: u16,
    /// Whether some build has several functions of this name: then no function can be given this name.
    pub is_ambiguous: bool,
}

/// All signatures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SignatureTable {
    names: Vec<String>,
    by_name: HashMap<String, NameId>,
    /// Names whose functions look the same in some builds.
    alike: BTreeSet<NameId>,
    signatures: Vec<Signature>,
}

impl SignatureTable {
    /// The table that is built into the program.
    pub fn built_in() -> &'static Self {
        static TABLE: OnceLock<SignatureTable> = OnceLock::new();
        TABLE.get_or_init(|| Self::parse(SIGNATURES).unwrap_or_default())
    }

    /// How many names there are.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether there are no names.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The number of a name.
    pub fn id(&self, name: &str) -> Option<NameId> {
        self.by_name.get(name).copied()
    }

    /// The name with this number.
    pub fn name(&self, id: NameId) -> &str {
        self.names.get(usize::from(id)).map_or("", String::as_str)
    }

    /// What is known about a name.
    pub fn signature(&self, id: NameId) -> Option<&Signature> {
        self.signatures.get(usize::from(id))
    }

    /// The number of a name, which gets one if it has none; [`None`] if all numbers are in use.
    pub fn intern(&mut self, name: &str) -> Option<NameId> {
        if let Some(id) = self.id(name) {
            return Some(id);
        }
        let id = NameId::try_from(self.names.len()).ok()?;
        self.names.push(name.to_owned());
        self.signatures.push(Signature::default());
        self.by_name.insert(name.to_owned(), id);
        Some(id)
    }

    /// Whether functions may be given this name.
    ///
    /// A name of several functions identifies none of them. A function that is not called from other files may have
    /// been inlined into its caller, which then looks like it: so such a function must have existed in every build.
    pub fn may_be_given(&self, id: NameId) -> bool {
        let Some(signature) = self.signature(id) else { return false };
        let builds = self.id(INTERPRETER).and_then(|id| self.signature(id)).map_or(0, |signature| signature.builds);
        !signature.is_ambiguous && !self.alike.contains(&id) && (self.is_shared(id) || signature.builds >= builds)
    }

    /// Whether functions of this name are called from other files of LuaJIT: then they exist in every build.
    pub fn is_shared(&self, id: NameId) -> bool {
        ["lj_", "lua_", "luaL_", "luaJIT_", "luaopen_"].iter().any(|prefix| self.name(id).starts_with(prefix))
    }

    /// The names whose functions look the same: if some build has inlined one function into the other, the same code
    /// has one name in this build and the other name in that one.
    fn look_alike(&self) -> BTreeSet<NameId> {
        let mut owners: HashMap<(&[Element], &[u32]), BTreeSet<NameId>> = HashMap::new();
        for (id, signature) in (0..).zip(&self.signatures) {
            for calls in &signature.calls {
                for constants in signature.constants.iter().filter(|constants| calls.len() + constants.len() >= 2) {
                    owners.entry((calls, constants)).or_default().insert(id);
                }
            }
        }
        owners.into_values().filter(|owners| owners.len() > 1).flatten().collect()
    }

    /// The signature of a name, for changes.
    pub fn signature_mut(&mut self, id: NameId) -> Option<&mut Signature> {
        self.signatures.get_mut(usize::from(id))
    }

    /// Parses the text; [`None`] if it is no valid table.
    pub fn parse(text: &str) -> Option<Self> {
        let mut table = Self::default();
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        for line in &lines {
            table.intern(line.split('\t').next()?.trim_start_matches(['~', '!']))?;
        }
        let count = table.names.len();
        for line in lines {
            let mut fields = line.split('\t');
            let name = fields.next()?;
            let (is_alike, name) = name.strip_prefix('~').map_or((false, name), |name| (true, name));
            let (is_ambiguous, name) = name.strip_prefix('!').map_or((false, name), |name| (true, name));
            let id = table.id(name)?;
            if is_alike {
                table.alike.insert(id);
            }
            let element = |word: &str| match word {
                "-" => Some(None),
                number => number.parse().ok().filter(|&id: &NameId| usize::from(id) < count).map(Some),
            };
            let calls = lists(fields.next()?, element)?;
            let addresses = lists(fields.next()?, element)?;
            let constants = lists(fields.next()?, |word| u32::from_str_radix(word, 16).ok())?;
            let builds = fields.next()?.parse().ok()?;
            *table.signature_mut(id)? = Signature { calls, addresses, constants, builds, is_ambiguous };
        }
        Some(table)
    }

    /// The table as text, sorted by name.
    pub fn text(&self) -> String {
        let sorted: BTreeMap<&str, NameId> = self.by_name.iter().map(|(name, id)| (name.as_str(), *id)).collect();
        let line: HashMap<NameId, usize> = sorted.values().enumerate().map(|(line, id)| (*id, line)).collect();
        let element = |element: &Element| match element.and_then(|id| line.get(&id)) {
            Some(line) => line.to_string(),
            None => "-".to_owned(),
        };
        let (mut text, alike) = (String::new(), self.look_alike());
        for (name, id) in &sorted {
            let Some(signature) = self.signature(*id) else { continue };
            let mark = match (alike.contains(id), signature.is_ambiguous) {
                (true, true) => "~!",
                (true, false) => "~",
                (false, true) => "!",
                (false, false) => "",
            };
            let calls = join(&signature.calls, element);
            let addresses = join(&signature.addresses, element);
            let constants = join(&signature.constants, |constant| format!("{constant:x}"));
            let _ = writeln!(text, "{mark}{name}\t{calls}\t{addresses}\t{constants}\t{}", signature.builds);
        }
        text
    }
}

/// Parses a list of lists: `.` is an empty list, and an empty field has no lists.
fn lists<T: Ord>(field: &str, element: impl Fn(&str) -> Option<T>) -> Option<BTreeSet<Vec<T>>> {
    let list = |list: &str| match list {
        "." => Some(Vec::new()),
        list => list.split(' ').map(&element).collect(),
    };
    if field.is_empty() { Some(BTreeSet::new()) } else { field.split(';').map(list).collect() }
}

fn join<T>(lists: &BTreeSet<Vec<T>>, element: impl Fn(&T) -> String) -> String {
    let list = |list: &Vec<T>| match list.as_slice() {
        [] => ".".to_owned(),
        list => list.iter().map(&element).collect::<Vec<_>>().join(" "),
    };
    lists.iter().map(list).collect::<Vec<_>>().join(";")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_table_is_one() {
        let table = SignatureTable::built_in();
        for name in ["lj_gc_step", "lj_str_new", "lj_tab_resize", "lua_pcall", INTERPRETER] {
            let signature = table.id(name).and_then(|id| table.signature(id)).unwrap_or_else(|| panic!("no {name}"));
            assert!(!signature.calls.is_empty() && !signature.is_ambiguous, "{name}: {signature:?}");
        }
        assert_eq!(SignatureTable::parse(&table.text()).as_ref(), Some(table));
        assert_eq!(table.alike, table.look_alike());
    }

    #[test]
    fn only_tables_are_parsed() {
        for text in ["a", "a\t\t", "a\t1\t\t", "a\tx\t\t", "a\t0;\t\t", "a\t\t\tg\t1", "a\t\t\t\tx"] {
            assert_eq!(SignatureTable::parse(text), None, "{text:?}");
        }
        let table = SignatureTable::parse("# a comment\n!a\t1 -;.\t.\t1f\t2\nb\t\t\t\t1\n").unwrap();
        assert_eq!(table.text(), "!a\t.;1 -\t.\t1f\t2\nb\t\t\t\t1\n");
    }
}
