#!/usr/bin/env python3
"""Mutation testing of the crates without IO, in minutes.

`cargo mutants` builds all tests of a crate anew for each mutant, which takes a day for these. This takes its list
of mutants and builds them all at once: the body of a function with mutants becomes a `match` on a number that the
environment gives, with an arm for each. Then the tests of the crate run once for each number.

    .ci/mutants.py                     all mutants of mpa, ddp and rdmap
    .ci/mutants.py iwarp-ddp           those of one package
    .ci/mutants.py --only 'Record'     those whose name matches

A mutant is *caught* if a test fails, or *timed out* if one uses far more processor time than it should; it is
*unviable* if it does not compile; else it was *missed*, and this fails. What cannot be chosen at run time, constants
and functions that constants are made with, is left to `cargo mutants` itself: the command is printed at the end.

Needs cargo-mutants (`cargo install cargo-mutants --locked`), and works in `target/mutants`. It knows as much of the
syntax of Rust as it takes to find the end of a function.
"""
import argparse
import collections
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading

PACKAGES = ["iwarp-mpa", "iwarp-ddp", "iwarp-rdmap"]
REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
WORK = REPOSITORY / "target" / "mutants"
SOURCES = WORK / "sources"
TREE = WORK / "tree"

# The number of the mutant that is in force, and for the choice of tests which functions are reached.
SWITCH = """
#[allow(warnings, clippy::all)]
fn __mutant(function: usize) -> u32 {
    use std::sync::atomic::{AtomicBool, Ordering};
    static CHOICE: std::sync::LazyLock<(u32, Option<String>)> = std::sync::LazyLock::new(|| {
        let number = std::env::var("MUTANT").ok().and_then(|number| number.parse().ok());
        (number.unwrap_or(0), std::env::var("MUTANT_TRACE").ok())
    });
    if let Some(path) = &CHOICE.1 {
        static SEEN: [AtomicBool; 4096] = [const { AtomicBool::new(false) }; 4096];
        if !SEEN[function].swap(true, Ordering::Relaxed) {
            use std::io::Write;
            let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
            writeln!(file, "{function}").unwrap();
        }
    }
    CHOICE.0
}
"""


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("package", nargs="*", default=PACKAGES)
    arguments.add_argument("--only", default="", help="a regular expression for the names of mutants")
    arguments = arguments.parse_args()
    if shutil.which("cargo-mutants") is None:
        print("SKIPPED: no cargo-mutants here (cargo install cargo-mutants --locked)")
        return 77
    snapshot()
    mutants = [mutant for package in arguments.package for mutant in listed(package)]
    for number, mutant in enumerate(mutants, 1):
        mutant["number"] = number
    tree = Tree(mutants)
    binaries = tree.build()
    tests = [Test(*binary) for binary in binaries]
    outcomes = collections.defaultdict(collections.Counter)
    missed = []
    for mutant in mutants:
        if not re.search(arguments.only, mutant["name"]):
            continue
        outcome = tree.outcome(mutant, tests)
        outcomes[mutant["package"]][outcome] += 1
        if outcome in ("missed", "timed out"):
            print(f"{outcome}: {mutant['name']}", flush=True)
        if outcome == "missed":
            missed.append(mutant)
    for package, counts in outcomes.items():
        figures = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
        print(f"{package}: {counts.total()} mutants: {figures}")
    if tree.left:
        names = "|".join(re.escape(mutant["name"]) for mutant in tree.left)
        (WORK / "left.regex").write_text(f"^({names})$")
        print(f"{len(tree.left)} are left: cargo mutants -F \"$(cat {WORK / 'left.regex'})\"")
    return 1 if missed else 0


def snapshot():
    """Copies the sources: work on them may go on meanwhile."""
    shutil.rmtree(SOURCES, ignore_errors=True)
    files = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard"], cwd=REPOSITORY, text=True)
    for name in files.splitlines():
        (SOURCES / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(REPOSITORY / name, SOURCES / name)


def listed(package):
    command = ["cargo", "mutants", "--list", "--json", "--diff", "--package", package]
    return json.loads(subprocess.check_output(command, cwd=SOURCES))


class Tree:
    """A copy of the sources that holds all mutants that compile."""

    def __init__(self, mutants):
        self.mutants = mutants
        self.unviable = set()
        # Names of functions that constants are made with, which have to stay as they are.
        self.constant = set()
        # In the copy: (file, first line, last line, number of the mutant).
        self.places = []
        self.functions = {}
        self.left = []

    def build(self):
        """Builds the tests, without what does not compile. Gives (package, executable) of each."""
        while True:
            self.write()
            # The cheap ones first: each of them may find something to leave out.
            for what in (["check", "--lib", "--tests"], ["build"], ["test", "--no-run", "--lib", "--tests"]):
                messages, done = self.cargo(what)
                if not done:
                    break
            if done:
                return [(pathlib.Path(message["manifest_path"]).parent.name, message["executable"])
                        for message in messages if message.get("executable")]
            self.learn(messages)

    def cargo(self, what):
        packages = sorted({mutant["package"] for mutant in self.mutants})
        options = [option for package in packages for option in ("--package", package)]
        environment = dict(os.environ, CARGO_TARGET_DIR=str(WORK / "target"), CARGO_INCREMENTAL="0",
                           CARGO_PROFILE_DEV_DEBUG="0", CARGO_PROFILE_DEV_OPT_LEVEL="1")
        command = ["cargo", *what, *options, "--all-features", "--message-format=json"]
        run = subprocess.run(command, cwd=TREE, env=environment, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)
        messages = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
        self.errors = run.stderr
        return messages, run.returncode == 0

    def learn(self, messages):
        """Finds out from the errors of the compiler what to leave out next time."""
        before = len(self.unviable) + len(self.constant)
        errors = [message["message"] for message in messages
                  if message.get("reason") == "compiler-message" and message["message"]["level"] == "error"]
        for error in errors:
            hits = {number for span in error["spans"] if span["is_primary"]
                    for file, first, last, number in self.places
                    if span["file_name"].endswith(file) and first <= span["line_start"] <= last}
            self.unviable |= hits
            call = re.match(r"cannot call non-const .*`(?:.*::)?(\w+)`", error["message"])
            if call and not hits:
                self.constant.add(call.group(1))
        if len(self.unviable) + len(self.constant) == before:
            sys.exit("the copy does not compile:\n" + "\n".join(e["rendered"] for e in errors) + self.errors)

    def write(self):
        new = WORK / "new"
        shutil.rmtree(new, ignore_errors=True)
        shutil.copytree(SOURCES, new)
        self.places, self.functions, self.left = [], {}, []
        by_file = collections.defaultdict(list)
        for mutant in self.mutants:
            by_file[mutant["file"]].append(mutant)
        for file, mutants in by_file.items():
            text = (new / file).read_text()
            (new / file).write_text(self.with_mutants(file, text, mutants))
        for package in {mutant["file"].split("/")[0] for mutant in self.mutants}:
            for path in (new / package).rglob("*.rs"):
                # Functions that choose are not constant, nor is what calls them.
                text = re.sub(r"\bconst fn (\w+)", self.keyword, path.read_text())
                # A failure is that of a mutant, and nothing to be kept.
                path.write_text(re.sub(r"failure_persistence: Some\(.*\)", "failure_persistence: None", text))
            with open(new / package / "src" / "lib.rs", "a") as library:
                library.write(SWITCH)
        # Only what has changed is written, so that the rest is not built again.
        for path in new.rglob("*"):
            old = TREE / path.relative_to(new)
            if path.is_file() and not (old.exists() and old.read_bytes() == path.read_bytes()):
                old.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, old)

    def keyword(self, function):
        return function.group(0) if function.group(1) in self.constant else f"fn {function.group(1)}"

    def with_mutants(self, file, text, mutants):
        """The text of a file whose functions choose between their bodies."""
        lines = [0]
        for line in text.split("\n"):
            lines.append(lines[-1] + len(line) + 1)
        by_start = collections.defaultdict(list)
        for mutant in mutants:
            if mutant["number"] in self.unviable:
                continue
            if mutant["function"] is None:
                self.left.append(mutant)
                continue
            span = mutant["function"]["span"]["start"]
            start = lines[span["line"] - 1] + span["column"] - 1
            signature = re.search(r"\b(const )?fn (\w+)", text[start:])
            if signature.group(1) and signature.group(2) in self.constant:
                self.left.append(mutant)
                continue
            by_start[start].append(mutant)
        # A function inside of another one goes with it.
        outer = []
        for start in sorted(by_start):
            opening, end = body(text, start)
            if outer and start < outer[-1][2]:
                outer[-1][3].extend(by_start[start])
            else:
                outer.append((start, opening, end, by_start[start]))
        out, at = "", 0
        for start, opening, end, group in outer:
            function = len(set(self.functions.values())) + 1
            out += text[at:opening]
            out += "{ #[allow(warnings, clippy::all)] match crate::__mutant(%d) {\n" % function
            for mutant in group:
                mutated = patched(text, mutant["diff"])
                first, last = body(mutated, start)
                line = out.count("\n") + 1
                out += f"{mutant['number']} => {mutated[first:last]}\n"
                self.places.append((file, line, out.count("\n"), mutant["number"]))
                self.functions[mutant["number"]] = function
            out += f"_ => {text[opening:end]} }} }}"
            at = end
        return out + text[at:]

    def outcome(self, mutant, tests):
        number = mutant["number"]
        if number in self.unviable:
            return "unviable"
        if number not in self.functions:
            return "left"
        package = mutant["file"].split("/")[0]
        for test in sorted(tests, key=lambda test: test.time):
            if test.package == package and self.functions[number] in test.reached:
                result = test.run(number)
                if result != "passed":
                    return result
        return "missed"


class Test:
    """An executable with tests."""

    def __init__(self, package, executable):
        self.package, self.executable = package, executable
        self.limit, self.reached = 600, set()
        trace = WORK / "trace"
        trace.unlink(missing_ok=True)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        if self.run(0, {"MUTANT_TRACE": str(trace)}) != "passed":
            sys.exit(f"{executable} fails without a mutant")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.time = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        self.limit = max(4, int(5 * self.time))
        if trace.exists():
            self.reached = {int(line) for line in trace.read_text().split()}

    def run(self, number, environment=None):
        """Runs the tests until one fails. The limit is of processor time: others may need the machine too."""
        def limits():
            resource.setrlimit(resource.RLIMIT_CPU, (self.limit, self.limit + 1))
            resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        environment = dict(os.environ, MUTANT=str(number), RUST_TEST_THREADS="1", RUST_BACKTRACE="0",
                           PROPTEST_MAX_SHRINK_ITERS="0", CARGO_MANIFEST_DIR=str(TREE / self.package),
                           **(environment or {}))
        process = subprocess.Popen([self.executable], cwd=TREE / self.package, env=environment, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, preexec_fn=limits)
        # One that waits for something uses no time at all.
        timer = threading.Timer(600, process.kill)
        timer.start()
        for line in process.stdout:
            if re.match(r"test .* FAILED$", line):
                process.kill()
                process.wait()
                timer.cancel()
                return "caught"
        process.wait()
        timer.cancel()
        if process.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
            return "timed out"
        return "caught" if process.returncode else "passed"


TOKEN = re.compile(r"""//[^\n]* | b?r(\#*)".*?"\1 | b?"(?:\\.|[^"\\])*" | b?'(?:\\[^u]|\\u\{[^}]*\}|\\x..|[^'\\])'
                       | /\* | [(){}\[\];] """, re.VERBOSE | re.DOTALL)


def body(text, start):
    """Where the body of the function that starts there has its braces, the second one included."""
    opening, depth, at = None, 0, start
    while True:
        token = TOKEN.search(text, at)
        at = token.end()
        mark = token.group()
        if mark == "/*":
            at = text.index("*/", at) + 2
        elif mark == "{" and opening is None and depth == 0:
            opening, depth = token.start(), 1
        elif mark in ("(", "[", "{"):
            depth += 1
        elif mark in (")", "]", "}"):
            depth -= 1
            if depth == 0 and opening is not None:
                return opening, at


def patched(text, diff):
    """The text with the one change of a unified diff."""
    old, new, at = text.split("\n"), [], 0
    for hunk in re.split(r"(?m)^(?=@@ )", diff)[1:]:
        head, *rows = hunk.split("\n")
        first = int(re.match(r"@@ -(\d+)", head).group(1)) - 1
        new += old[at:first]
        at = first
        for row in rows:
            if row.startswith((" ", "-")):
                assert old[at] == row[1:], "the list is of other sources"
                at += 1
            if row.startswith((" ", "+")):
                new.append(row[1:])
    return "\n".join(new + old[at:])


if __name__ == "__main__":
    sys.exit(main())
