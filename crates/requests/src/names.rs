//! Limits the number of different names: labels are columns in tables, and profile servers make a series of each.

use std::collections::BTreeSet;
use std::sync::Arc;

/// The most different names of a kind.
pub const MOST_NAMES: usize = 256;

/// The name that replaces all further names.
pub const OTHER: &str = "[other]";

/// Names of one kind: [`MOST_NAMES`], unless another bound is given.
#[derive(Debug)]
pub struct BoundedNames {
    known: BTreeSet<Arc<str>>,
    most: usize,
    others: u64,
}

impl Default for BoundedNames {
    fn default() -> Self {
        Self::up_to(MOST_NAMES)
    }
}

impl BoundedNames {
    /// At most so many names.
    pub fn up_to(most: usize) -> Self {
        Self { known: BTreeSet::new(), most, others: 0 }
    }

    /// The name itself if it is one of the first, else [`OTHER`].
    pub fn bounded(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.known.get(name) {
            return Arc::clone(known);
        }
        if self.known.len() < self.most {
            let name: Arc<str> = name.into();
            self.known.insert(Arc::clone(&name));
            return name;
        }
        self.others += 1;
        OTHER.into()
    }

    /// How often [`OTHER`] has replaced a name.
    pub fn others(&self) -> u64 {
        self.others
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_beyond_the_bound_are_others_and_counted() {
        let mut names = BoundedNames::default();
        let all: Vec<Arc<str>> = (0..MOST_NAMES + 10).map(|number| format!("/{number}").into()).collect();
        for _ in 0..2 {
            for (index, name) in all.iter().enumerate() {
                let shown = names.bounded(name);
                assert_eq!(&*shown, if index < MOST_NAMES { &**name } else { OTHER });
            }
        }
        assert_eq!(names.others(), 20);
        let mut few = BoundedNames::up_to(1);
        assert_eq!(["/1", "/2", "/1"].map(|name| few.bounded(name)), ["/1", OTHER, "/1"].map(Arc::from));
        assert_eq!(few.others(), 1);
    }
}
