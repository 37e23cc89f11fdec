//! `cargo xtask pictures`: redraws the picture of the README: a terminal in which lj-trace finds out why a program is
//! busy. It shows lj-trace's output for the shop of the guide. (`cargo xtask story` draws the flame graphs.)

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::run::{Guarded, is_root};
use crate::{build, paths, programs, setup};

/// Options of `cargo xtask pictures`.
#[derive(clap::Args)]
pub struct Options {
    /// How long to record, in seconds
    #[arg(long, default_value_t = 5)]
    seconds: u32,
}

/// Creates slow pages for ever.
const SHOP: &str = "local shop = require('stories.shop') while true do shop.slow() end";
/// Lines of the picture, and characters in each line.
const MOST: usize = 34;
const COLUMNS: usize = 110;
/// The size of a character.
const WIDTH: f64 = 7.25;
const HEIGHT: f64 = 17.0;

/// Records the shop, and draws the output.
pub fn pictures(options: &Options) -> Result<()> {
    let binary = match env::var_os("LJ_TRACE_BIN") {
        Some(binary) => PathBuf::from(binary),
        None => {
            setup::setup()?;
            build::build(&build::Options::default())?
        }
    };
    if !is_root() {
        bail!("profiling needs privileges: draw pictures as root");
    }
    let mut shop = Command::new(programs::LUAJIT);
    shop.args(["-e", SHOP]).current_dir(paths::lua()).stdin(Stdio::null()).stdout(Stdio::null());
    let shop = Guarded(shop.spawn().context("cannot start luajit")?);
    std::thread::sleep(Duration::from_millis(300));
    let folder = tempfile::tempdir()?;
    let command = format!("--pid {} --duration {}s", shop.0.id(), options.seconds);
    let output = Command::new(&binary).args(command.split(' ')).current_dir(folder.path()).output()?;
    if !output.status.success() {
        bail!("`lj-trace {command}` failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    let said = [output.stderr, output.stdout].concat();
    let mut lines = vec![format!("$ sudo lj-trace {command}")];
    lines.extend(String::from_utf8_lossy(&said).lines().map(str::to_owned));
    let picture = paths::root().join("docs/pictures/answer.svg");
    fs::write(&picture, terminal(&lines)).with_context(|| format!("cannot write {}", picture.display()))?;
    println!("{}", picture.display());
    Ok(())
}

/// A terminal with these lines. Lines that begin with `$` look as if somebody had typed them.
fn terminal(lines: &[String]) -> String {
    let shown = lines.len().min(MOST);
    let (width, height) = (COLUMNS as f64 * WIDTH + 32.0, (shown + 1) as f64 * HEIGHT + 40.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         font-family=\"ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#1e2128\"/>\n"
    );
    for (index, color) in ["#ff5f57", "#febc2e", "#28c840"].into_iter().enumerate() {
        let _ = writeln!(svg, "<circle cx=\"{}\" cy=\"16\" r=\"5\" fill=\"{color}\"/>", 18 + index * 18);
    }
    let rest = (lines.len() > MOST).then(|| "...".to_owned());
    for (index, line) in lines.iter().take(MOST).chain(&rest).enumerate() {
        let color = if line.starts_with("$ ") { "#8bd17c" } else { "#e6e6e6" };
        let text: String = line.chars().take(COLUMNS).collect();
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        let y = 46.0 + index as f64 * HEIGHT;
        let _ = writeln!(svg, "<text x=\"16\" y=\"{y}\" fill=\"{color}\" xml:space=\"preserve\">{text}</text>");
    }
    svg.push_str("</svg>\n");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_escaped_and_bounded() {
        let lines: Vec<String> = (0..40).map(|number| format!("<{number}> & {}", "x".repeat(200))).collect();
        let svg = terminal(&lines);
        assert!(svg.contains("&lt;0> &amp; xx") && !svg.contains(&format!("&lt;{MOST}>")), "{svg}");
        assert_eq!(svg.matches("<text").count(), MOST + 1);
        assert!(svg.lines().all(|line| line.len() < 300));
    }
}
