//! Structs and enumerators of a program, out of its DWARF.

use std::borrow::Cow;
use std::collections::HashMap;

use gimli::{
    AttributeValue, DebugInfoOffset, Dwarf, EndianSlice, LittleEndian, Operation, Unit, UnitOffset, constants,
};
use object::{Object, ObjectSection as _};

use super::DwarfError;

type Bytes<'a> = EndianSlice<'a, LittleEndian>;
type Entry<'a> = gimli::DebuggingInformationEntry<Bytes<'a>>;

/// A struct as a compiler laid it out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Struct {
    /// Its size in bytes.
    pub size: u64,
    /// Its members by name. Those of a struct inside of it are there too, as `outer.inner`.
    pub members: HashMap<String, Member>,
}

/// A member of a struct.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// Offset in bytes.
    pub offset: u64,
    /// Size in bytes; 0 if the program does not say.
    pub size: u64,
}

/// The structs and enumerators that were asked for, as far as the program has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Types {
    /// Structs by tag.
    pub structs: HashMap<String, Struct>,
    /// Enumerators by name.
    pub enumerators: HashMap<String, i64>,
}

/// What to look for.
#[derive(Clone, Copy, Debug)]
pub struct WantedFields<'a> {
    /// Tags of structs.
    pub structs: &'a [&'a str],
    /// Tags of structs that there may be.
    pub optional_structs: &'a [&'a str],
    /// Names of enumerators.
    pub enumerators: &'a [&'a str],
}

/// Structs lie in each other at most so deep: `global_State.gc.total`.
const MAX_NESTING: usize = 2;

/// A chain of typedefs and qualifiers is not longer.
const MAX_TYPEDEFS: usize = 16;

/// The debug sections of real programs are smaller; those of a damaged file must not make us allocate more.
const MAX_SECTION: u64 = 2 << 30;

impl Types {
    /// Reads a file. Compilation units whose source's name satisfies `likely` are read first, the others only
    /// if those lack a struct.
    ///
    /// # Errors
    /// [`DwarfError::NoDebugInformation`] if the file has none, [`DwarfError::Malformed`] if it makes no sense.
    pub fn read<'data>(
        file: &impl Object<'data>,
        wanted: WantedFields<'_>,
        likely: impl Fn(&str) -> bool,
    ) -> Result<Self, DwarfError> {
        let section = |id: gimli::SectionId| {
            let Some(section) = file.section_by_name(id.name()).filter(|section| section.size() < MAX_SECTION) else {
                return Ok(Cow::Borrowed(&[][..]));
            };
            section.uncompressed_data()
        };
        let sections = gimli::DwarfSections::load(section).map_err(|_| DwarfError::Malformed)?;
        let dwarf = sections.borrow(|section| EndianSlice::new(section, LittleEndian));
        Reader::new(&dwarf)?.types(wanted, likely)
    }
}

/// The units of a file.
struct Reader<'a> {
    dwarf: &'a Dwarf<Bytes<'a>>,
    /// With the name of its source.
    units: Vec<(Unit<Bytes<'a>>, String)>,
}

/// A place in the debug information: a unit's number, and the offset in it.
type UnitPlace = (usize, UnitOffset);

impl<'a> Reader<'a> {
    fn new(dwarf: &'a Dwarf<Bytes<'a>>) -> Result<Self, DwarfError> {
        let mut units = Vec::new();
        let mut headers = dwarf.units();
        while let Some(header) = headers.next()? {
            let unit = dwarf.unit(header)?;
            let name = unit.name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            units.push((unit, name));
        }
        if units.is_empty() { Err(DwarfError::NoDebugInformation) } else { Ok(Self { dwarf, units }) }
    }

    fn types(&self, wanted: WantedFields<'_>, likely: impl Fn(&str) -> bool) -> Result<Types, DwarfError> {
        let mut types = Types::default();
        for first in [true, false] {
            if !first && wanted.structs.iter().all(|name| types.structs.contains_key(*name)) {
                break;
            }
            for (index, _) in self.units.iter().enumerate().filter(|(_, (_, name))| likely(name) == first) {
                self.read_unit(index, wanted, &mut types)?;
            }
        }
        Ok(types)
    }

    fn read_unit(&self, index: usize, wanted: WantedFields<'_>, types: &mut Types) -> Result<(), DwarfError> {
        let mut entries = self.units[index].0.entries();
        while let Some(entry) = entries.next_dfs()? {
            match entry.tag() {
                constants::DW_TAG_structure_type => {
                    let Some(name) = self.name(index, entry) else { continue };
                    if !wanted.structs.iter().chain(wanted.optional_structs).any(|wanted| *wanted == name)
                        || types.structs.contains_key(&name)
                        || entry.attr(constants::DW_AT_declaration).is_some()
                    {
                        continue;
                    }
                    let mut members = HashMap::new();
                    self.members((index, entry.offset()), "", 0, 0, &mut members)?;
                    let size = number(entry, constants::DW_AT_byte_size).unwrap_or(0);
                    types.structs.insert(name, Struct { size, members });
                }
                constants::DW_TAG_enumerator => {
                    let Some(name) = self.name(index, entry) else { continue };
                    if wanted.enumerators.contains(&name.as_str())
                        && let Some(value) = entry.attr_value(constants::DW_AT_const_value)
                        && let Some(value) = enumerator_value(&value)
                    {
                        types.enumerators.insert(name, value);
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Adds the members of the struct or union at `place`, which lies at `base` in the outermost struct.
    fn members(
        &self,
        place: UnitPlace,
        prefix: &str,
        base: u64,
        nesting: usize,
        found: &mut HashMap<String, Member>,
    ) -> Result<(), DwarfError> {
        let (unit, offset) = place;
        let mut tree = self.units[unit].0.entries_tree(Some(offset))?;
        let mut children = tree.root()?.children();
        while let Some(child) = children.next()? {
            let entry = child.entry();
            if entry.tag() != constants::DW_TAG_member {
                continue;
            }
            let Some(offset) = self.member_offset(unit, entry) else { continue };
            let offset = base.saturating_add(offset);
            let of_type = self.type_of(unit, entry)?;
            let name = self.name(unit, entry);
            if let Some(name) = &name {
                let size = of_type.map_or(Ok(0), |place| self.size(place, 0))?;
                found.entry(format!("{prefix}{name}")).or_insert(Member { offset, size });
            }
            let aggregate = [constants::DW_TAG_structure_type, constants::DW_TAG_union_type];
            if nesting < MAX_NESTING
                && let Some(place) = of_type
                && aggregate.contains(&self.entry(place)?.tag())
            {
                // What lies in a member without a name belongs to the struct itself.
                let prefix = name.map_or_else(|| prefix.to_owned(), |name| format!("{prefix}{name}."));
                self.members(place, &prefix, offset, nesting + 1, found)?;
            }
        }
        Ok(())
    }

    fn member_offset(&self, unit: usize, entry: &Entry<'a>) -> Option<u64> {
        match entry.attr_value(constants::DW_AT_data_member_location) {
            // Members of a union have none.
            None => Some(0),
            Some(AttributeValue::Exprloc(expression)) => {
                let mut operations = expression.operations(self.units[unit].0.encoding());
                match operations.next() {
                    Ok(Some(Operation::PlusConstant { value })) => Some(value),
                    _ => None,
                }
            }
            Some(value) => value.udata_value(),
        }
    }

    /// The type of an entry, behind typedefs and qualifiers.
    fn type_of(&self, unit: usize, entry: &Entry<'a>) -> Result<Option<UnitPlace>, DwarfError> {
        let mut next = self.reference(unit, entry);
        for _ in 0..MAX_TYPEDEFS {
            let Some(place) = next else { return Ok(None) };
            let entry = self.entry(place)?;
            match entry.tag() {
                constants::DW_TAG_typedef
                | constants::DW_TAG_const_type
                | constants::DW_TAG_volatile_type
                | constants::DW_TAG_atomic_type => next = self.reference(place.0, &entry),
                _ => return Ok(Some(place)),
            }
        }
        Ok(None)
    }

    fn reference(&self, unit: usize, entry: &Entry<'a>) -> Option<UnitPlace> {
        match entry.attr_value(constants::DW_AT_type)? {
            AttributeValue::UnitRef(offset) => Some((unit, offset)),
            // As `dwz` leaves them: shared types are moved into units of their own.
            AttributeValue::DebugInfoRef(offset) => self.place(offset),
            _ => None,
        }
    }

    fn place(&self, offset: DebugInfoOffset) -> Option<UnitPlace> {
        self.units.iter().enumerate().find_map(|(index, (unit, _))| Some((index, offset.to_unit_offset(unit)?)))
    }

    fn entry(&self, (unit, offset): UnitPlace) -> Result<Entry<'a>, DwarfError> {
        Ok(self.units[unit].0.entry(offset)?)
    }

    /// The size of the type at `place`; 0 if it is not said.
    fn size(&self, place: UnitPlace, nesting: usize) -> Result<u64, DwarfError> {
        let entry = self.entry(place)?;
        if let Some(size) = number(&entry, constants::DW_AT_byte_size) {
            return Ok(size);
        }
        if entry.tag() != constants::DW_TAG_array_type || nesting > MAX_NESTING {
            return Ok(0);
        }
        let Some(element) = self.type_of(place.0, &entry)? else { return Ok(0) };
        let element = self.size(element, nesting + 1)?;
        let mut tree = self.units[place.0].0.entries_tree(Some(place.1))?;
        let mut children = tree.root()?.children();
        let mut count = 1_u64;
        while let Some(child) = children.next()? {
            let range = child.entry();
            if range.tag() == constants::DW_TAG_subrange_type {
                let last = number(range, constants::DW_AT_upper_bound).map(|last| last.wrapping_add(1));
                count = count.wrapping_mul(number(range, constants::DW_AT_count).or(last).unwrap_or(0));
            }
        }
        Ok(count.wrapping_mul(element))
    }

    fn name(&self, unit: usize, entry: &Entry<'a>) -> Option<String> {
        let value = entry.attr_value(constants::DW_AT_name)?;
        Some(self.dwarf.attr_string(&self.units[unit].0, value).ok()?.to_string_lossy().into_owned())
    }
}

fn number(entry: &Entry<'_>, name: gimli::DwAt) -> Option<u64> {
    entry.attr_value(name)?.udata_value()
}

/// The value of an enumerator: signed only where the encoding says so.
fn enumerator_value(value: &AttributeValue<Bytes<'_>>) -> Option<i64> {
    match value {
        AttributeValue::Sdata(value) => Some(*value),
        other => other.udata_value()?.try_into().ok(),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const SOURCE: &str = r#"
        typedef struct Ref { unsigned int ref; } Ref;
        typedef const Ref CRef;
        enum Small { FIRST, SECOND = 200, NEGATIVE_NEIGHBOUR };
        enum Negative { MINUS = -3 };
        struct Inner { char tag; CRef root; };
        struct Outer {
          char start;
          union { unsigned long whole; struct { unsigned short low, high; }; };
          struct Inner gc;
          void (*dispatch[7])(void);
          volatile struct Other *pointer;
          int bits : 3;
        };
        struct Declared;
        struct Outer outer;
        struct Declared *declared;
        int used = SECOND + MINUS;
    "#;

    /// A shared library of [`SOURCE`].
    fn compile(flag: &str) -> Vec<u8> {
        let folder = tempfile::tempdir().unwrap();
        let (source, library) = (folder.path().join("a.c"), folder.path().join("a.so"));
        std::fs::write(&source, SOURCE).unwrap();
        let mut cc = Command::new("cc");
        cc.args([flag, "-shared", "-nostdlib", "-fPIC", "-o"]).arg(&library).arg(&source);
        assert!(cc.status().unwrap().success(), "{flag}");
        std::fs::read(library).unwrap()
    }

    const WANTED: WantedFields<'_> = WantedFields {
        structs: &["Outer", "Declared", "Missing"],
        optional_structs: &[],
        enumerators: &["SECOND", "MINUS", "MISSING"],
    };

    fn types(bytes: &[u8]) -> Result<Types, DwarfError> {
        let file = object::File::parse(bytes).map_err(|_| DwarfError::Malformed)?;
        Types::read(&file, WANTED, |_| true)
    }

    #[test]
    fn reads_structs_and_enumerators_of_every_version() {
        for version in ["-gdwarf-2", "-gdwarf-3", "-gdwarf-4", "-gdwarf-5", "-gz"] {
            let types = types(&compile(if version == "-gz" { "-g3" } else { version })).unwrap();
            let outer = &types.structs["Outer"];
            assert_eq!(outer.size, 96, "{version}");
            let member = |name: &str| outer.members.get(name).map(|member| (member.offset, member.size));
            assert_eq!(member("start"), Some((0, 1)), "{version}");
            assert_eq!(member("whole"), Some((8, 8)), "{version}");
            assert_eq!(member("high"), Some((10, 2)), "{version}");
            assert_eq!(member("gc"), Some((16, 8)), "{version}");
            assert_eq!(member("gc.root"), Some((20, 4)), "{version}");
            assert_eq!(member("dispatch"), Some((24, 56)), "{version}");
            assert_eq!(member("pointer"), Some((80, 8)), "{version}");
            assert_eq!(member("missing"), None, "{version}");
            assert_eq!(types.structs.len(), 1, "{version}: a declaration is no struct");
            assert_eq!((types.enumerators["SECOND"], types.enumerators["MINUS"]), (200, -3), "{version}");
        }
    }

    #[test]
    fn says_that_there_is_none() {
        assert_eq!(types(&compile("-g0")), Err(DwarfError::NoDebugInformation));
    }

    #[test]
    fn survives_damage() {
        let bytes = compile("-g");
        for length in (0..bytes.len()).step_by(97) {
            let _ = types(&bytes[..length]);
        }
        let mut seed = 1_u64;
        for _ in 0..2000 {
            let mut damaged = bytes.clone();
            for _ in 0..8 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let index = (seed >> 33) as usize % damaged.len();
                damaged[index] = seed as u8;
            }
            let _ = types(&damaged);
        }
    }
}
