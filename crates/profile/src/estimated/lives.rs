//! How long objects live, as text. Objects that stay come first.

use std::io::{self, Write};

use lj_trace_estimate::life::rank;
use lj_trace_text::{Room, bytes};

use super::text::{figures, with_error};
use super::{EstimatedProfile, Figure, Seen};
use crate::memory::text::name;
use crate::model::Profile as _;

/// How many collection cycles to show.
const CYCLES: usize = 3;

/// The lines that keep the most, if objects were followed: the bytes still alive; the mean collection cycle after the
/// allocation in which dead objects were found dead; the shares that survive one cycle, two, and three.
///
/// # Errors
/// The output cannot take the bytes.
pub fn table(profile: &EstimatedProfile, top: usize, room: Room, out: &mut dyn Write) -> io::Result<()> {
    let followed: u64 = profile.lives.values().map(|life| life.followed).sum();
    if followed == 0 {
        if profile.polled && profile.about.cycles.is_some_and(|cycles| cycles.value > 0.0) {
            writeln!(
                out,
                "\nWhat stays of that is not known: no object was followed to a collection cycle. They are noticed by reading \
                 the collector's state every millisecond; of hundreds a second some are missed, and objects are lost sight of"
            )?;
        }
        return Ok(());
    }
    let whole = |size: f64| bytes(size.round() as u64);
    writeln!(
        out,
        "\nTop lines by what stays of that ({followed} objects were followed to their death, or up to the end)"
    )?;
    let mut table = figures(["still alive", "dies in cycle", "survive 1 2 3"], room);
    for kept in rank(profile.lives.values(), &profile.lines).iter().take(top) {
        let (Some(life), Some(seen)) = (profile.lives.get(&kept.source), profile.seen.get(kept.source.0 as usize))
        else {
            continue;
        };
        let alive = if profile.about.has_bytes() { with_error(kept.alive, whole) } else { "-".to_owned() };
        let cycles =
            life.cycles.map_or_else(|| "-".to_owned(), |cycles| with_error(cycles, |value| format!("{value:.1}")));
        let survival: Vec<String> =
            life.survival.iter().take(CYCLES).map(|share| format!("{:.2}", share.value)).collect();
        let stacks = profile.weighted();
        let name = stacks.row(seen.stack).map_or_else(String::new, |row| name(stacks, &row));
        table.row([alive, cycles, survival.join(" ")], name);
    }
    write!(out, "{table}")?;
    if profile.polled {
        writeln!(out, "  seen by polling, without a watchpoint: a few of the dead may count as having survived")?;
    }
    let unknown = unknown(profile);
    if unknown >= 0.001 {
        writeln!(
            out,
            "  {:.1}% of the bytes could not be followed: they are taken to live like the rest",
            unknown * 100.0
        )?;
    }
    Ok(())
}

/// How many of each source's bytes stay, if objects were followed.
pub fn staying(profile: &EstimatedProfile) -> Vec<(&Seen, Figure)> {
    let ranked = rank(profile.lives.values(), &profile.lines);
    ranked.iter().filter_map(|kept| Some((profile.seen.get(kept.source.0 as usize)?, kept.stays))).collect()
}

/// The share of all allocated bytes that was not followed: lost from sight, or not known to belong to an object.
fn unknown(profile: &EstimatedProfile) -> f64 {
    let lives = profile.lines.iter().filter_map(|line| Some((line.bytes.value, profile.lives.get(&line.source)?)));
    let (unknown, all) = lives.fold((0.0, 0.0), |(unknown, all), (bytes, life)| {
        // The lost share is a share of what could be followed.
        (unknown + bytes * (life.parts + (1.0 - life.parts) * life.lost), all + bytes)
    });
    if all > 0.0 { unknown / all } else { 0.0 }
}
