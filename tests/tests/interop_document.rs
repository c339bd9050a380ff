//! `docs/interop.md` has the rows of the matrix that `tests/interop/run` runs, no more and no fewer.
#![allow(missing_docs, reason = "test code")]

use iwarp_tests::{
    interop::{BEGIN, DOCUMENT, END, rows},
    sources::{self, cells},
};

#[test]
fn the_table_has_the_cases_that_there_are() {
    let text = sources::read(DOCUMENT);
    let (_, rest) = text.split_once(BEGIN).expect("the line before the results");
    let (results, _) = rest.split_once(END).expect("the line behind them");
    let mut group = "";
    let mut found = Vec::new();
    let mut left_out = Vec::new();
    for line in results.lines() {
        match cells(line).as_deref() {
            Some([heading, "siw connects", "we connect"]) => group = heading,
            Some(["---", ..]) | None => {}
            Some([name, by_siw, by_us]) => {
                for cell in [by_siw, by_us] {
                    let ran = cell.starts_with("passed") || *cell == "—";
                    assert!(ran, "{group}: {name}: {cell}");
                    left_out.extend((*cell == "—").then(|| (*name).to_owned()));
                }
                found.push((group.to_owned(), (*name).to_owned()));
            }
            Some(other) => panic!("a row of {} cells: {line}", other.len()),
        }
    }
    // The one that siw's kernel does not survive.
    assert_eq!(left_out, ["no ready-to-receive message in common"]);
    let rows: Vec<_> = rows().into_iter().map(|(group, name)| (group.to_owned(), name)).collect();
    assert_eq!(found, rows, "tests/interop/run --document writes it anew");
}
