//! Options of LuaJIT's build that move fields, and what each does to each known layout.
//!
//! They act independently of each other (`cargo xtask layouts` compiles them together to make sure), so that only
//! their single effects are written down: in `tables/options.tsv`.

use lj_trace_common::layout::{ABSENT, VmLayout};

use super::table::KnownLayout;

/// The option that leaves out the JIT compiler, and with it everything that the other options of the JIT compiler
/// would move.
pub const DISABLE_JIT: &str = "LUAJIT_DISABLE_JIT";

/// The options, as they are given to the compiler.
pub const OPTIONS: [&str; 6] = [
    "LUAJIT_DISABLE_FFI",
    "LUAJIT_NO_UNWIND",
    "LUAJIT_DISABLE_PROFILE",
    "LUAJIT_ENABLE_TABLE_BUMP",
    "LUAJIT_USE_GDBJIT",
    DISABLE_JIT,
];

/// The options that move nothing if there is no JIT compiler.
pub const OF_JIT: [&str; 3] = ["LUAJIT_DISABLE_PROFILE", "LUAJIT_ENABLE_TABLE_BUMP", "LUAJIT_USE_GDBJIT"];

/// What an option does to a layout.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LayoutChange {
    /// Whether the fields that describe the JIT compiler are gone.
    pub without_jit: bool,
    /// By how much fields move: their index in [`VmLayout::FIELDS`], and bytes.
    pub moves: Vec<(usize, i32)>,
}

/// An option's effect on some rows of the table: a line of `options.tsv`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionEffect {
    /// One of [`OPTIONS`].
    pub option: String,
    /// The rows' mode.
    pub mode: String,
    /// What moves.
    pub change: LayoutChange,
    /// The rows, by their builds.
    pub rows: Vec<String>,
}

/// Whether only a VM with a JIT compiler has the field.
pub fn is_of_jit(field: &str) -> bool {
    ["j_", "tr_", "snap_"].iter().any(|prefix| field.starts_with(prefix)) || ["g_to_j", "sizeof_snap"].contains(&field)
}

impl LayoutChange {
    /// What leads from `base` to `changed`; `None` if that is more than moves and the loss of the JIT compiler.
    pub fn between(base: &VmLayout, changed: &VmLayout) -> Option<Self> {
        let mut change = Self { without_jit: base.g_to_j != ABSENT && changed.g_to_j == ABSENT, moves: Vec::new() };
        let values = base.values().into_iter().zip(changed.values());
        for (index, (field, (from, to))) in VmLayout::FIELDS.iter().zip(values).enumerate() {
            if change.without_jit && is_of_jit(field) {
                (to == ABSENT).then_some(())?;
            } else if from != to {
                (from != ABSENT && to != ABSENT).then_some(())?;
                change.moves.push((index, i32::from(to) - i32::from(from)));
            }
        }
        Some(change)
    }

    /// Whether nothing changes.
    pub fn is_nothing(&self) -> bool {
        !self.without_jit && self.moves.is_empty()
    }

    /// Changes `layout`. `None` if a field would leave the range of offsets.
    pub fn apply(&self, layout: &VmLayout) -> Option<VmLayout> {
        let mut values = layout.values();
        for &(index, bytes) in &self.moves {
            let value = values.get_mut(index)?;
            if *value != ABSENT {
                *value = u16::try_from(i32::from(*value) + bytes).ok().filter(|value| *value != ABSENT)?;
            }
        }
        if self.without_jit {
            let fields = values.iter_mut().zip(VmLayout::FIELDS).filter(|(_, field)| is_of_jit(field));
            fields.for_each(|(value, _)| *value = ABSENT);
        }
        Some(VmLayout::from_values(&values))
    }

    fn parse(text: &str) -> Option<Self> {
        let mut change = Self::default();
        for word in text.split(' ') {
            if word == WITHOUT_JIT {
                change.without_jit = true;
                continue;
            }
            let (field, bytes) = word.split_at(word.find(['+', '-'])?);
            let index = VmLayout::FIELDS.iter().position(|name| *name == field)?;
            change.moves.push((index, bytes.parse().ok()?));
        }
        Some(change)
    }
}

/// How a table says that the JIT compiler is left out.
const WITHOUT_JIT: &str = "no-jit";

impl std::fmt::Display for LayoutChange {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let moves = self.moves.iter().map(|(index, bytes)| format!("{}{bytes:+}", VmLayout::FIELDS[*index]));
        let words: Vec<String> = self.without_jit.then(|| WITHOUT_JIT.to_owned()).into_iter().chain(moves).collect();
        formatter.write_str(&words.join(" "))
    }
}

/// The header of the table of effects.
pub const HEADER: &str = "option\tmode\tchange\trows";

/// What separates rows in a line of effects, since a row's builds are separated by commas.
const BETWEEN_ROWS: &str = "; ";

/// Parses the table of effects; `None` if it is malformed.
pub fn parse(text: &str) -> Option<Vec<OptionEffect>> {
    let mut lines = text.lines();
    (lines.next() == Some(HEADER)).then_some(())?;
    lines.map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<OptionEffect> {
    let mut cells = line.split('\t');
    let (option, mode) = (cells.next()?.to_owned(), cells.next()?.to_owned());
    OPTIONS.contains(&option.as_str()).then_some(())?;
    let change = LayoutChange::parse(cells.next()?)?;
    let rows = cells.next()?.split(BETWEEN_ROWS).map(str::to_owned).collect();
    cells.next().is_none().then_some(OptionEffect { option, mode, change, rows })
}

/// The line of an effect in the table.
pub fn format_line(effect: &OptionEffect) -> String {
    format!("{}\t{}\t{}\t{}", effect.option, effect.mode, effect.change, effect.rows.join(BETWEEN_ROWS))
}

/// The layouts of `row` built with any options, beginning with none of them.
pub fn variants(row: &KnownLayout, effects: &[OptionEffect]) -> Vec<KnownLayout> {
    let mut variants = vec![row.clone()];
    let of_row = effects.iter().filter(|effect| effect.mode == row.mode && effect.rows.contains(&row.builds));
    for effect in of_row {
        let apart = |variant: &&KnownLayout| {
            let has = |option: &str| variant.options.iter().any(|other| other == option);
            !(has(&effect.option) || effect.option == DISABLE_JIT && OF_JIT.iter().any(|option| has(option)))
        };
        let with = |variant: &KnownLayout| {
            let mut variant = variant.clone();
            variant.layout = effect.change.apply(&variant.layout)?;
            variant.options.push(effect.option.clone());
            Some(variant)
        };
        let more: Vec<_> = variants.iter().filter(apart).filter_map(with).collect();
        variants.extend(more);
    }
    variants
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_what_it_was_made_of() {
        let base = VmLayout { g_to_j: 100, j_l: 8, g_to_dispatch: 400, g_to_bcff: 500, ..VmLayout::default() };
        let moved = VmLayout { g_to_dispatch: 384, j_l: 16, ..base };
        let change = LayoutChange::between(&base, &moved).unwrap();
        assert_eq!(change.to_string(), "g_to_dispatch-16 j_l+8");
        assert_eq!(LayoutChange::parse(&change.to_string()).as_ref(), Some(&change));
        assert_eq!(change.apply(&base), Some(moved));
        assert_eq!(LayoutChange::between(&base, &base), Some(LayoutChange::default()));
        assert!(change.apply(&VmLayout { g_to_dispatch: 8, ..base }).is_none(), "nothing lies before its start");
    }

    #[test]
    fn without_the_jit_compiler_its_fields_are_gone() {
        let base = VmLayout { g_to_j: 100, g_to_dispatch: 400, ..VmLayout::default() };
        let change = LayoutChange { without_jit: true, moves: Vec::new() };
        let without = change.apply(&base).unwrap();
        assert_eq!(
            (without.g_to_j, without.j_trace, without.tr_ir, without.sizeof_snap),
            (ABSENT, ABSENT, ABSENT, ABSENT)
        );
        assert_eq!(without.g_to_dispatch, 400);
        assert_eq!(LayoutChange::between(&base, &without), Some(change));
        let lost = VmLayout { g_cur_l: ABSENT, ..base };
        assert_eq!(LayoutChange::between(&base, &lost), None, "no option takes anything else away");
    }

    #[test]
    fn options_combine_but_for_those_of_a_missing_jit_compiler() {
        let row = KnownLayout { builds: "b".into(), mode: "x64".into(), ..KnownLayout::default() };
        let effect = |option: &str, change: &str| OptionEffect {
            option: option.into(),
            mode: "x64".into(),
            change: LayoutChange::parse(change).unwrap(),
            rows: vec!["a".into(), "b".into()],
        };
        let effects = [
            effect("LUAJIT_DISABLE_FFI", "g_to_dispatch+8"),
            effect("LUAJIT_USE_GDBJIT", "j_l+8"),
            effect(DISABLE_JIT, "no-jit"),
        ];
        let variants = variants(&row, &effects);
        let options: Vec<_> = variants.iter().map(|variant| variant.options.join("+")).collect();
        let (ffi, gdbjit) = ("LUAJIT_DISABLE_FFI", "LUAJIT_USE_GDBJIT");
        let both = format!("{ffi}+{gdbjit}");
        let neither = format!("{ffi}+{DISABLE_JIT}");
        assert_eq!(options, ["", ffi, gdbjit, &both, DISABLE_JIT, &neither]);
        assert_eq!((variants[3].layout.g_to_dispatch, variants[3].layout.j_l), (8, 8));
    }

    #[test]
    fn refuses_malformed_tables() {
        let line = "LUAJIT_USE_GDBJIT\tx64\tj_l+8\ta; b";
        let parsed = parse(&format!("{HEADER}\n{line}")).unwrap();
        assert_eq!(format_line(&parsed[0]), line);
        for bad in
            ["LUAJIT_OTHER\tx64\tj_l+8\ta", "LUAJIT_USE_GDBJIT\tx64\tj_l\ta", "LUAJIT_USE_GDBJIT\tx64\tk+1\ta", "\t"]
        {
            assert_eq!(parse(&format!("{HEADER}\n{bad}")), None, "{bad}");
        }
        assert_eq!(parse(line), None);
    }
}
