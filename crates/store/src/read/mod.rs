//! Makes profiles from files.

mod columns;
mod error;
mod file;
mod find;
mod merged;
mod query;
mod rows;

use std::path::Path;

pub use error::{ReadError, RefusedFile};
use merged::Merged;
pub use merged::Selection;
pub use query::Query;

use crate::folder::Folder;

/// Reads the profiles in a folder that match a query. Files that cannot be read are left out, and listed in
/// [`Selection::refused`].
///
/// # Errors
/// The folder cannot be read.
pub fn read(folder: &Path, query: &Query) -> Result<Selection, ReadError> {
    let failed = |error| ReadError { folder: folder.to_owned(), error };
    let root = Folder::open(folder).map_err(failed)?;
    let mut merged = Merged::default();
    find::each(&root, query, &mut |file| match file {
        Ok((name, file)) => {
            if let Err(why) = file::read(&file, query, &mut merged) {
                merged.refuse(name, why);
            }
        }
        Err((name, why)) => merged.refuse(name, why),
    })
    .map_err(failed)?;
    Ok(merged.selection(query))
}
