//! Why a trace was aborted: the numbers of [`TraceError`] (`lj_traceerr.h`), which differ between builds.
//!
//! LuaJIT's sources: [`TraceError` of 2.0].
//!
//! [`TraceError`]: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_traceerr.h#L8-L55
//! [`TraceError` of 2.0]: https://github.com/LuaJIT/LuaJIT/blob/71797fa75ffa1ddbd9b41bbd55d6c2d4236164b0/src/lj_traceerr.h#L8-L55

use lj_trace_layouts::known_layouts;
use serde::{Serialize, Serializer};

use super::explain::{Explanation, explanation};
use crate::Vm;

/// An abort reason, with its name if that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AbortReason {
    /// Its number in this build.
    pub number: u16,
    /// Its name; [`None`] if the builds that fit disagree, or have no reason with that number.
    pub name: Option<&'static str>,
}

/// 2.1 since its second beta, in all three forks.
const V21: &[&str] = &[
    "RECERR", "TRACEUV", "TRACEOV", "STACKOV", "SNAPOV", "BLACKL", "RETRY", "NYIBC", "LLEAVE", "LINNER", "LUNROLL",
    "BADTYPE", "CJITOFF", "CUNROLL", "DOWNREC", "NYIFFU", "NYIRETL", "STORENN", "NOMM", "IDXLOOP", "NYITMIX",
    "NOCACHE", "NYICONV", "NYICALL", "GFAIL", "PHIOV", "TYPEINS", "MCODEAL", "MCODEOV", "MCODELM", "SPILLOV", "BADRA",
    "NYIIR", "NYIPHI", "NYICOAL",
];

/// Differences of older builds' lists: reasons that do not exist yet, and reasons that were removed later (before `NYIFFU`).
struct Older {
    builds: &'static [&'static str],
    without: &'static [&'static str],
    with: &'static [&'static str],
}

const OLDER: [Older; 3] = [
    Older { builds: &["2.0.1", "2.0.5", "2.0-head"], without: &["TRACEUV", "RETRY"], with: &["NYICF", "NYIFF"] },
    Older { builds: &["2.1b1", "or20150622"], without: &[], with: &["NYICF", "NYIFF"] },
    Older { builds: &["or20140330", "or20140513"], without: &["RETRY"], with: &[] },
];

/// The names of a build's reasons, in the order of their numbers.
fn names(build: &str) -> Vec<&'static str> {
    let Some(older) = OLDER.iter().find(|older| older.builds.contains(&build)) else { return V21.to_vec() };
    let mut names: Vec<&str> = V21.iter().copied().filter(|name| !older.without.contains(name)).collect();
    let at = names.iter().position(|name| *name == "NYIFFU").unwrap_or(names.len());
    names.splice(at..at, older.with.iter().copied());
    names
}

/// The reasons on which all builds of a VM agree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reasons(Vec<Option<&'static str>>);

impl Reasons {
    /// The reasons of the builds for which `vm` was proven. A build that the table does not know gets the list of the
    /// builds whose traces have the same layout.
    pub fn of(vm: &Vm) -> Self {
        let rows = known_layouts();
        let own: Vec<&str> = vm.builds.iter().flat_map(|builds| builds.split(", ")).collect();
        let is_known = |build: &&str| rows.iter().any(|row| row.builds.split(", ").any(|known| known == *build));
        if !own.is_empty() && own.iter().all(|build| is_known(&without_options(build))) {
            return Self::agreed(own.into_iter().map(without_options));
        }
        let form = |layout: &lj_trace_common::layout::VmLayout| {
            (layout.bytecode_set, layout.sizeof_snap, layout.snap_mcofs, layout.gc64)
        };
        let alike = rows.iter().filter(|row| form(&row.layout) == form(&vm.layout));
        Self::agreed(alike.flat_map(|row| row.builds.split(", ")))
    }

    fn agreed<'a>(builds: impl Iterator<Item = &'a str>) -> Self {
        let mut lists: Vec<Vec<&'static str>> = Vec::new();
        for list in builds.map(names) {
            if !lists.contains(&list) {
                lists.push(list);
            }
        }
        let most = lists.iter().map(Vec::len).max().unwrap_or(0);
        let agreed = |number: usize| {
            let first = *lists.first()?.get(number)?;
            lists.iter().all(|list| list.get(number) == Some(&first)).then_some(first)
        };
        Self((0..most).map(agreed).collect())
    }

    /// The reason with this number.
    pub fn get(&self, number: u16) -> AbortReason {
        AbortReason { number, name: self.0.get(usize::from(number)).copied().flatten() }
    }
}

/// A build's name without the options that were found to be set: `2021-03-23 with LUAJIT_DISABLE_FFI`.
fn without_options(build: &str) -> &str {
    build.split(" with ").next().unwrap_or(build)
}

impl AbortReason {
    /// The explanation of the reason.
    pub fn explanation(&self) -> Option<&'static Explanation> {
        explanation(self.name?)
    }

    /// LuaJIT's message; or why that is not known.
    pub fn text(&self) -> String {
        match self.explanation() {
            Some(explanation) => explanation.text.to_owned(),
            None => {
                format!("[unknown: reason {}, which the builds that fit name differently or not at all]", self.number)
            }
        }
    }
}

impl Serialize for AbortReason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Shown {
            number: u16,
            name: Option<&'static str>,
            text: String,
            meaning: Option<&'static str>,
            remedy: Option<&'static str>,
        }
        let explanation = self.explanation();
        Shown {
            number: self.number,
            name: self.name,
            text: self.text(),
            meaning: explanation.map(|explanation| explanation.meaning),
            remedy: explanation.map(|explanation| explanation.remedy),
        }
        .serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_headers() {
        let number = |build: &str, name: &str| names(build).iter().position(|known| *known == name);
        // The numbers in the headers of these commits.
        assert_eq!((number("2.0.1", "NYIBC"), number("2.0-head", "NYICOAL")), (Some(5), Some(34)));
        assert_eq!((number("2.1b1", "NYIFFU"), number("2.1b1", "NYICOAL")), (Some(17), Some(36)));
        assert_eq!((number("2.1b3", "NYIBC"), number("tt3.0", "NYICOAL")), (Some(7), Some(34)));
        assert_eq!((number("or20140330", "NYIBC"), number("or20140330", "NYICOAL")), (Some(6), Some(33)));
        assert!(V21.iter().chain(&["NYICF", "NYIFF"]).all(|name| explanation(name).is_some()));
    }

    #[test]
    fn what_builds_disagree_about_is_unknown() {
        let reasons = Reasons::agreed(["2.1b3", "2.1b1"].into_iter());
        assert_eq!((reasons.get(7).name, reasons.get(15).name, reasons.get(99).name), (Some("NYIBC"), None, None));
        assert_eq!(Reasons::agreed(["2.1b3", "or20230119"].into_iter()).get(15).name, Some("NYIFFU"));
        assert!(reasons.get(15).text().contains("unknown"));
    }

    #[test]
    fn every_older_build_is_one_of_the_table() {
        for build in OLDER.iter().flat_map(|older| older.builds) {
            assert!(known_layouts().iter().any(|row| row.builds.split(", ").any(|known| known == *build)), "{build}");
        }
    }
}
