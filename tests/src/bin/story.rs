//! Tells the stories of the guide: `story FOLDER SECONDS [NAME...]`. `cargo xtask story` runs it.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use lj_trace_tests::stories::{STORIES, Teller};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().context("where to?")?);
    let seconds = arguments.next().context("how long?")?.parse()?;
    let wanted: Vec<String> = arguments.collect();
    std::fs::create_dir_all(&folder)?;
    let teller = Teller { folder, seconds };
    if let Some(unknown) = wanted.iter().find(|wanted| STORIES.iter().all(|(name, _)| name != wanted)) {
        bail!("there is no story {unknown}; there are {}", STORIES.map(|(name, _)| name).join(", "));
    }
    for (name, tell) in STORIES {
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
            tell(&teller)?.with_context(|| format!("this system does not have what the story {name} is about"))?;
        }
    }
    Ok(())
}
