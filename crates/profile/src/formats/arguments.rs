//! Formats as arguments of a command.

use clap::ValueEnum;
use clap::builder::PossibleValue;

use super::Format;

impl ValueEnum for Format {
    fn value_variants<'a>() -> &'a [Self] {
        &Self::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let (name, others) = self.names().split_first()?;
        Some(PossibleValue::new(*name).aliases(others.iter().copied()).help(self.describe()))
    }
}
