//! `docs/verbs.md` agrees with the sources: each rule of the verbs contract names tests that exist, or a reason. The
//! threat model of `docs/security.md` names tests that exist.

use std::collections::BTreeMap;

use iwarp_tests::sources::{self, File, cells, quoted};

const MATRIX: &str = "docs/verbs.md";

#[test]
fn the_contract_names_tests_that_exist() {
    let offences = offences(&sources::read(MATRIX), &sources::all());
    assert!(offences.is_empty(), "{} offences:\n{}", offences.len(), offences.join("\n"));
}

/// Every kind of offence is found, so that a silent test means a contract in order.
#[test]
fn offences_are_found() {
    let matrix = "\
| Id | Rule | Shown by, or reason |
|---|---|---|
| V1.01 | shown | `verbs/src/a.rs::shown` |
| V1.02 | shown, and limited | `verbs/src/a.rs::shown`; for `u64` only |
| V1.03 | no such file | `verbs/src/b.rs::shown` |
| V1.04 | no such test | `verbs/src/a.rs::helper` |
| V1.05 | a reason | not on this wire |
| V1.06 | open | ? |
| V1.06 | twice | not on this wire |
| V1.07 | narrow |
";
    let text = "fn helper() {}\n#[cfg(test)]\nmod tests {\n    #[test]\n    fn shown() {}\n}\n";
    let files = [File { path: "verbs/src/a.rs".to_owned(), text: text.to_owned() }];
    assert_eq!(
        offences(matrix, &files),
        [
            "V1.03 names verbs/src/b.rs::shown, which does not exist",
            "V1.04 names verbs/src/a.rs::helper, which does not exist",
            "V1.06 has neither a test nor a reason",
            "V1.07 has 2 columns instead of 3",
            "V1.06 has 2 rows",
        ]
    );
    assert_eq!(offences("no table", &files), [format!("{MATRIX} has no rows")]);
}

#[test]
fn the_threat_model_names_tests_that_exist() {
    let files = sources::all();
    let text = sources::read("docs/security.md");
    let named: Vec<_> = text
        .lines()
        .filter(|line| line.starts_with('|'))
        .flat_map(quoted)
        .filter(|name| name.contains(".rs"))
        .collect();
    let missing: Vec<_> = named
        .iter()
        .filter(|name| match name.split_once("::") {
            Some((path, function)) => {
                !files.iter().any(|file| file.path == path && has_test(file, function))
            }
            None => !files.iter().any(|file| file.path == **name),
        })
        .collect();
    assert!(named.len() > 20, "{} tests are named", named.len());
    assert!(missing.is_empty(), "{missing:?}");
}

/// Everything that is wrong, in the order of the matrix, one line each.
fn offences(matrix: &str, files: &[File]) -> Vec<String> {
    let mut offences = Vec::new();
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for row in matrix.lines().filter_map(cells) {
        let Some(id) = row.first().copied().filter(|id| is_id(id)) else { continue };
        *seen.entry(id).or_default() += 1;
        let [_, _, shown] = row[..] else {
            offences.push(format!("{id} has {} columns instead of 3", row.len()));
            continue;
        };
        if !shown.contains(char::is_alphabetic) {
            offences.push(format!("{id} has neither a test nor a reason"));
        }
        let tests = quoted(shown).filter_map(|name| Some((name, name.split_once("::")?)));
        for (name, (path, function)) in tests {
            let exists = files.iter().any(|file| file.path == path && has_test(file, function));
            if !exists {
                offences.push(format!("{id} names {name}, which does not exist"));
            }
        }
    }
    if seen.is_empty() {
        offences.push(format!("{MATRIX} has no rows"));
    }
    let repeated = seen.iter().filter(|(_, count)| **count > 1);
    offences.extend(repeated.map(|(id, count)| format!("{id} has {count} rows")));
    offences
}

/// `V`, a section, a dot and a number.
fn is_id(cell: &str) -> bool {
    let parts = cell.strip_prefix('V').and_then(|rest| rest.split_once('.'));
    let number = |text: &str| !text.is_empty() && text.bytes().all(|octet| octet.is_ascii_digit());
    parts.is_some_and(|(section, row)| number(section) && number(row))
}

/// Whether the test part of a file defines a function of this name.
fn has_test(file: &File, function: &str) -> bool {
    file.text[file.tests_begin()..].match_indices("fn ").any(|(at, fn_)| {
        let rest = &file.text[file.tests_begin() + at + fn_.len()..];
        rest.strip_prefix(function).is_some_and(|rest| rest.starts_with(['(', '<']))
    })
}
