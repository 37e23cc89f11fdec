//! The files of a recording in pieces (`--rotate`), each named after the time at which it begins.

use std::path::{Path, PathBuf};

use lj_trace_profile::formats::insert_before_ending;

/// The current time (UTC), formatted for file names: `20261123T094500Z`.
pub fn now_in_names() -> String {
    // SAFETY: time(2) may be given no place, and gmtime_r(3) fills in the structure, of which all zeros are a value.
    let now = unsafe {
        let (seconds, mut now) = (libc::time(std::ptr::null_mut()), std::mem::zeroed());
        libc::gmtime_r(&raw const seconds, &raw mut now);
        now
    };
    let libc::tm { tm_year, tm_mon, tm_mday, tm_hour, tm_min, tm_sec, .. } = now;
    format!("{}{:02}{tm_mday:02}T{tm_hour:02}{tm_min:02}{tm_sec:02}Z", tm_year + 1900, tm_mon + 1)
}

/// The name of a piece that begins at `begins`: `a/b.bin` becomes `a/b.20261123T094500Z.bin`. A recording in one piece has
/// names without a time.
pub fn of_piece(path: &Path, begins: Option<&str>) -> PathBuf {
    match begins {
        Some(begins) if path != Path::new("-") => insert_before_ending(path, &format!(".{begins}")),
        _ => path.to_owned(),
    }
}

/// The counts at the end of the previous piece.
#[derive(Clone, Debug, Default)]
pub struct SinceThen(Vec<(&'static str, u64)>);

impl SinceThen {
    /// The difference between `counts`, which only grow, and those of the previous call.
    pub fn take(&mut self, counts: &[(&'static str, u64)]) -> Vec<(&'static str, u64)> {
        let before = std::mem::replace(&mut self.0, counts.to_vec());
        let of = |reason: &str| before.iter().find(|(known, _)| *known == reason).map_or(0, |(_, count)| *count);
        let new = counts.iter().map(|&(reason, count)| (reason, count.saturating_sub(of(reason))));
        new.filter(|(_, count)| *count > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_have_their_beginning_before_the_ending() {
        let piece = |path: &str| of_piece(Path::new(path), Some("20261123T094500Z"));
        assert_eq!(piece("a/b.sysprof.bin"), Path::new("a/b.sysprof.20261123T094500Z.bin"));
        assert_eq!(piece("b-2.pb.gz"), Path::new("b-2.20261123T094500Z.pb.gz"));
        assert_eq!(of_piece(Path::new("b.bin"), None), Path::new("b.bin"));
        let now = now_in_names();
        assert!(now.len() == 16 && now.starts_with("20") && &now[8..9] == "T" && now.ends_with('Z'), "{now}");
    }

    #[test]
    fn each_loss_is_told_once() {
        let mut since = SinceThen::default();
        assert_eq!(since.take(&[("a", 3)]), [("a", 3)]);
        assert_eq!(since.take(&[("a", 3)]), []);
        assert_eq!(since.take(&[("b", 1), ("a", 5)]), [("b", 1), ("a", 2)]);
    }
}
