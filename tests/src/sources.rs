//! The sources of the workspace as text, for tests that compare documents with them.

use std::path::{Component, Path, PathBuf};
use std::{fs, io};

/// Kinds of files that [`all`] gives.
const EXTENSIONS: [&str; 5] = ["rs", "sh", "py", "c", "h"];

/// A file of the workspace.
#[derive(Debug)]
pub struct File {
    /// Relative to the root, with `/`.
    pub path: String,
    /// Its content.
    pub text: String,
}

/// Where the workspace is.
#[must_use]
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace is one up")
}

/// The text of one file, by its path from the root.
#[must_use]
pub fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// All source files and scripts.
#[must_use]
pub fn all() -> Vec<File> {
    let mut files = Vec::new();
    collect_files(root(), Path::new(""), &mut files).expect("the workspace is readable");
    files
}

/// The cells of a line of a Markdown table.
pub fn cells(line: &str) -> Option<Vec<&str>> {
    let row = line.strip_prefix('|')?.trim_end().strip_suffix('|')?;
    Some(row.split('|').map(str::trim).collect())
}

/// What stands between backticks.
pub fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

impl File {
    /// Where the tests in a file begin; its length if there are none.
    pub fn tests_begin(&self) -> usize {
        let mut parts = self.path.rsplit('/');
        if parts.next() == Some("tests.rs") || parts.any(|folder| folder == "tests") {
            return 0;
        }
        let mut at = 0;
        let mut lines = self.text.split_inclusive('\n');
        while let Some(line) = lines.next() {
            if is_test_attribute(line) {
                let item = lines.clone().map(str::trim_start).find(|line| {
                    !line.trim().is_empty() && !line.starts_with('#') && !line.starts_with("//")
                });
                if item.is_some_and(|item| item.starts_with("mod ") || item.contains(") mod ")) {
                    return at;
                }
            }
            at += line.len();
        }
        self.text.len()
    }
}

fn collect_files(root: &Path, folder: &Path, files: &mut Vec<File>) -> io::Result<()> {
    let mut entries: Vec<_> = fs::read_dir(root.join(folder))?.collect::<Result<_, _>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name();
        let path: PathBuf = folder.join(&name);
        let kind = entry.file_type()?;
        if kind.is_dir() {
            let hidden = name.to_string_lossy().starts_with('.');
            if !hidden && name != "target" {
                collect_files(root, &path, files)?;
            }
        } else if kind.is_file()
            && path.extension().is_some_and(|extension| EXTENSIONS.iter().any(|&e| extension == e))
        {
            let text = String::from_utf8_lossy(&fs::read(root.join(&path))?).into_owned();
            files.push(File { path: slashed(&path), text });
        }
    }
    Ok(())
}

fn slashed(path: &Path) -> String {
    let parts = path.components().filter_map(|part| match part {
        Component::Normal(part) => Some(part.to_string_lossy()),
        _ => None,
    });
    parts.collect::<Vec<_>>().join("/")
}

/// `#[cfg(test)]`, or one that names `test` or `loom` among others.
fn is_test_attribute(line: &str) -> bool {
    let Some(condition) = line.trim_start().strip_prefix("#[cfg(") else { return false };
    condition
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .any(|word| word == "test" || word == "loom")
}
