//! Finds the files of a folder that may match a query.

use std::fs::File;
use std::io;

use super::error::RefusedFile;
use super::query::Query;
use crate::folder::Folder;

/// A file with its name within the folder, or the reason why it was not opened.
type Found = Result<(String, File), (String, RefusedFile)>;

/// Passes all files to `take`, by date and service.
pub fn each(root: &Folder, query: &Query, take: &mut dyn FnMut(Found)) -> io::Result<()> {
    for entry in root.entries()? {
        if !entry.is_folder {
            hand_out(root, "", &entry.name, take);
        } else if entry.name.starts_with("date=") && query.has_date(&entry.name) {
            // A folder that disappears meanwhile was too old, so the store has removed it.
            let Ok(date) = root.inside(&entry.name) else { continue };
            of_date(&date, &entry.name, query, take)?;
        }
    }
    Ok(())
}

fn of_date(date: &Folder, path: &str, query: &Query, take: &mut dyn FnMut(Found)) -> io::Result<()> {
    for entry in date.entries()? {
        if !(entry.is_folder && entry.name.starts_with("service=") && query.has_service(&entry.name)) {
            continue;
        }
        let Ok(service) = date.inside(&entry.name) else { continue };
        let path = format!("{path}/{}/", entry.name);
        for file in service.entries()?.into_iter().filter(|file| !file.is_folder) {
            hand_out(&service, &path, &file.name, take);
        }
    }
    Ok(())
}

/// Ignores names that begin with a dot or an underscore, as query engines do.
fn hand_out(folder: &Folder, path: &str, name: &str, take: &mut dyn FnMut(Found)) {
    if name.starts_with(['.', '_']) || !name.ends_with(".parquet") {
        return;
    }
    let whole = format!("{path}{name}");
    match folder.file(name) {
        Ok(file) => take(Ok((whole, file))),
        // The store removes the oldest files while others read.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => take(Err((whole, RefusedFile::NotOpened(error.to_string())))),
    }
}
