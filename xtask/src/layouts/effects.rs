//! How the options of a build change its layout.

use anyhow::{Context as _, Result, ensure};
use lj_trace_common::layout::VmLayout;
use lj_trace_layouts::KnownLayout;
use lj_trace_layouts::options::{DISABLE_JIT, LayoutChange, OF_JIT, OPTIONS, OptionEffect, format_line};

/// All changes, each with the rows that it applies to.
#[derive(Default)]
pub struct Effects(Vec<(&'static str, String, LayoutChange, Vec<VmLayout>)>);

impl Effects {
    /// Adds the changes that the options make to `layout`. `compile` returns the layout with some options.
    pub fn add(&mut self, mode: &str, layout: &VmLayout, compile: &dyn Fn(&[&str]) -> Result<VmLayout>) -> Result<()> {
        let mut changes = Vec::new();
        for option in OPTIONS {
            let changed = compile(&[option])?;
            let change =
                LayoutChange::between(layout, &changed).with_context(|| format!("{option} takes fields away"))?;
            if !change.is_nothing() {
                self.insert(option, mode, &change, layout);
                changes.push((option, change));
            }
        }
        // All options together, with and without the JIT compiler: they must not depend on each other.
        for jit in [true, false] {
            let apart = |option: &str| if jit { option == DISABLE_JIT } else { OF_JIT.contains(&option) };
            let together: Vec<_> = changes.iter().filter(|(option, _)| !apart(option)).collect();
            let names: Vec<&str> = together.iter().map(|(option, _)| *option).collect();
            let sum = together.iter().try_fold(*layout, |layout, (_, change)| change.apply(&layout));
            ensure!(sum == Some(compile(&names)?), "{} are not independent", names.join(" "));
        }
        Ok(())
    }

    fn insert(&mut self, option: &'static str, mode: &str, change: &LayoutChange, layout: &VmLayout) {
        let known = self.0.iter_mut().find(|(other, of, with, _)| *other == option && of == mode && with == change);
        match known {
            Some((.., rows)) if rows.contains(layout) => {}
            Some((.., rows)) => rows.push(*layout),
            None => self.0.push((option, mode.to_owned(), change.clone(), vec![*layout])),
        }
    }

    /// The lines of the table of effects.
    pub fn lines(&self, rows: &[KnownLayout]) -> Vec<String> {
        let line = |option: &str| {
            let of_option = self.0.iter().filter(move |(other, ..)| *other == option);
            let lines = of_option.map(|(option, mode, change, layouts)| {
                let affected = rows.iter().filter(|row| row.mode == *mode && layouts.contains(&row.layout));
                let rows = affected.map(|row| row.builds.clone()).collect();
                format_line(&OptionEffect {
                    option: (*option).to_owned(),
                    mode: mode.clone(),
                    change: change.clone(),
                    rows,
                })
            });
            lines.collect::<Vec<_>>()
        };
        OPTIONS.into_iter().flat_map(line).collect()
    }
}
