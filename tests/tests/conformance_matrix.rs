//! `docs/conformance.md` agrees with the sources: what is cited is in it, and what it calls done is shown.
//!
//! Code and tests cite requirements by their id, as in a comment at the line that enforces one. Files are
//! read as text; a citation belongs to a test if it stands in a `tests` folder, in a `tests.rs`, or below
//! the `#[cfg(test)]` of a source file.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use iwarp_tests::sources::{self, File, cells, quoted};

/// Families of requirements; an id is a family, a hyphen and digits.
const FAMILIES: [&str; 8] = ["MPA", "DDP", "RDMAP", "ORD", "SEC", "CONN", "EXT", "REG"];

const MATRIX: &str = "docs/conformance.md";

#[test]
fn matrix_agrees_with_the_sources() {
    let matrix = sources::read(MATRIX);
    let offences = offences(&matrix, &sources::all(), |path| sources::root().join(path).is_file());
    assert!(offences.is_empty(), "{} offences:\n{}", offences.len(), offences.join("\n"));
}

/// Every kind of offence is found, so that a silent test means a matrix in order.
#[test]
fn offences_are_found() {
    // Put together here, because this file is searched as well.
    let id = |family: &str, number: u32| format!("{family}-{number:03}");
    let row = |id: &str, columns: &str| format!("| {id} | 4.1 | MUST | something | {columns} |\n");
    let file = |path: &str, text: String| File { path: path.to_owned(), text };
    let [shown, untested, unknown, bare, gone, twice] =
        [1, 2, 3, 4, 5, 6].map(|number| id("MPA", number));

    let matrix = [
        "| ID | § | Level | Requirement | Status | Enforced in | Test or reason |\n".to_owned(),
        row(&shown, "done | `mpa/src/a.rs` | `mpa/src/a.rs`"),
        row(&untested, "done | `mpa/src/a.rs` | `mpa/tests/b.rs`"),
        row(&bare, "later | — | —"),
        row(&gone, "done | `mpa/src/gone.rs` | `mpa/tests/b.rs`"),
        row(&twice, "n/a | — | the host's matter"),
        row(&twice, "perhaps | — | the host's matter"),
    ]
    .concat();
    let files = [
        file(
            "mpa/src/a.rs",
            format!(
                "// {shown} {untested}, {unknown}\n// Not ids: N{shown}, {}x, MPA-aware\n\
                 #[cfg(test)]\nfn helper() {{}} // {untested}\n\
                 #[cfg(test)]\nmod tests {{ // {shown}\n}}\n",
                id("MPA", 9)
            ),
        ),
        file("mpa/tests/b.rs", format!("// {gone}")),
    ];
    let found = offences(&matrix, &files, |path| path != "mpa/src/gone.rs");
    assert_eq!(
        found,
        [
            format!("{unknown} is cited, but not in {MATRIX}: mpa/src/a.rs:1"),
            format!("{untested} is done, but no test cites it"),
            format!("{untested} names mpa/tests/b.rs as its test, which does not cite it"),
            format!("{bare} is later, without a test or a reason"),
            format!("{gone} is enforced in mpa/src/gone.rs, which does not exist"),
            format!("{twice} has the status \"perhaps\""),
            format!("{twice} has 2 rows"),
        ]
    );
}

/// One requirement of the matrix.
struct Row<'a> {
    id: &'a str,
    status: &'a str,
    enforced_in: &'a str,
    test_or_reason: &'a str,
}

impl<'a> Row<'a> {
    /// The row in a line of the matrix, if there is one; a requirement without seven columns is an `Err`.
    fn parse(line: &'a str) -> Option<Result<Self, String>> {
        let cells = cells(line)?;
        let id = *cells.first()?;
        if ids(id).next().is_none_or(|(_, found)| found != id) {
            return None;
        }
        Some(match cells[..] {
            [_, _, _, _, status, enforced_in, test_or_reason] => {
                Ok(Self { id, status, enforced_in, test_or_reason })
            }
            _ => Err(format!("{id} has {} columns instead of 7", cells.len())),
        })
    }
}

/// The ids in a text, and where.
fn ids(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let joins = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    text.match_indices('-').filter_map(move |(hyphen, _)| {
        let before = &text[..hyphen];
        let start = before
            .rfind(|c: char| !joins(c))
            .map_or(0, |at| at + before[at..].chars().next().map_or(0, char::len_utf8));
        let after = &text[hyphen + 1..];
        let digits = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
        let ends = !after[digits..].starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        let is_id = FAMILIES.contains(&&text[start..hyphen]) && digits > 0 && ends;
        is_id.then(|| (start, &text[start..=hyphen + digits]))
    })
}

/// Where an id is cited: file and line.
#[derive(Default)]
struct Citations<'a> {
    places: Vec<(&'a str, usize)>,
    tests: Vec<&'a str>,
}

fn citations(files: &[File]) -> BTreeMap<&str, Citations<'_>> {
    let mut citations: BTreeMap<&str, Citations<'_>> = BTreeMap::new();
    for file in files {
        let tests = file.tests_begin();
        for (at, id) in ids(&file.text) {
            let cited = citations.entry(id).or_default();
            cited.places.push((&file.path, file.text[..at].matches('\n').count() + 1));
            if at >= tests {
                cited.tests.push(&file.path);
            }
        }
    }
    citations
}

/// Everything that is wrong, in the order of the matrix, one line each.
fn offences(matrix: &str, files: &[File], exists: impl Fn(&str) -> bool) -> Vec<String> {
    let mut offences = Vec::new();
    let mut rows = Vec::new();
    for row in matrix.lines().filter_map(Row::parse) {
        match row {
            Ok(row) => rows.push(row),
            Err(offence) => offences.push(offence),
        }
    }
    if rows.is_empty() {
        offences.push(format!("{MATRIX} has no rows"));
    }

    let citations = citations(files);
    for (id, cited) in &citations {
        if !rows.iter().any(|row| row.id == *id) {
            let mut offence = format!("{id} is cited, but not in {MATRIX}:");
            for (path, line) in &cited.places {
                write!(offence, " {path}:{line}").expect("a String takes everything");
            }
            offences.push(offence);
        }
    }

    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for row in &rows {
        *seen.entry(row.id).or_default() += 1;
        let id = row.id;
        let tests = citations.get(id).map_or(&[][..], |cited| &cited.tests);
        match row.status {
            "done" => {
                if tests.is_empty() {
                    offences.push(format!("{id} is done, but no test cites it"));
                }
                if quoted(row.enforced_in).next().is_none() {
                    offences.push(format!("{id} is done, but names no file that enforces it"));
                }
                for path in quoted(row.test_or_reason).filter(|path| !tests.contains(path)) {
                    offences.push(format!("{id} names {path} as its test, which does not cite it"));
                }
            }
            "later" | "n/a" => {
                if !row.test_or_reason.contains(char::is_alphabetic) {
                    let status = row.status;
                    offences.push(format!("{id} is {status}, without a test or a reason"));
                }
            }
            other => offences.push(format!("{id} has the status {other:?}")),
        }
        for path in quoted(row.enforced_in).filter(|path| !exists(path)) {
            offences.push(format!("{id} is enforced in {path}, which does not exist"));
        }
    }
    let repeated = seen.iter().filter(|(_, count)| **count > 1);
    offences.extend(repeated.map(|(id, count)| format!("{id} has {count} rows")));
    offences
}
