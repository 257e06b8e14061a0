//! What the pages name must be there: tests, files, decisions. Diagrams are written one way. And what the pages say about
//! layers is read from the sources. Needs no database and no chain.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

/// Files of `tests/tests` whose tests are named by the file alone. All other modules are those of `e2e`.
const OTHER_FILES: [&str; 3] = ["model", "simulation", "documents"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn text(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every file below `dir` whose name ends so, without what is built or fetched.
fn files(dir: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if !name.starts_with('.') && !["target", "node_modules"].contains(&name.as_str()) {
                found.extend(files(&path, ending));
            }
        } else if name.ends_with(ending) {
            found.push(path);
        }
    }
    found
}

/// What stands between backticks, outside of code blocks.
fn quoted(page: &str) -> Vec<&str> {
    let prose = page.split("```").step_by(2);
    prose.flat_map(str::lines).flat_map(|line| line.split('`').skip(1).step_by(2)).collect()
}

/// `module::name`, or `path/of/file.rs::name`. Names of code have capitals or parentheses.
fn is_test(word: &str) -> bool {
    let spelled = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_:/.-".contains(c);
    word.contains("::") && word.chars().all(spelled) && !word.ends_with(':')
}

/// A file or directory of the repository.
fn is_path(word: &str) -> bool {
    let spelled = |c: char| c.is_ascii_alphanumeric() || "_/.-".contains(c);
    let page = [".md", ".toml", ".yaml"].iter().any(|ending| word.ends_with(ending));
    word.chars().all(spelled) && !word.starts_with('/') && (word.contains('/') || page)
}

fn file_of_test(place: &str) -> String {
    if place.ends_with(".rs") {
        place.to_owned()
    } else if OTHER_FILES.contains(&place) {
        format!("tests/tests/{place}.rs")
    } else {
        format!("tests/tests/e2e/{}.rs", place.replace("::", "/"))
    }
}

/// Whether the source has the function, with an attribute that makes it a test.
fn has_test(source: &str, name: &str) -> bool {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let begins = |line: &str| {
        let line = line.strip_prefix("async ").unwrap_or(line);
        line.strip_prefix("fn ")
            .and_then(|rest| rest.strip_prefix(name))
            .is_some_and(|rest| rest.starts_with('('))
    };
    let attributed = |at: usize| {
        let above =
            lines[..at].iter().rev().take_while(|line| line.starts_with("#[") || line.starts_with("//"));
        above.into_iter().any(|line| line.starts_with("#[test") || line.starts_with("#[tokio::test"))
    };
    (0..lines.len()).any(|at| begins(lines[at]) && attributed(at))
}

/// Targets of links, both `[…](target)` and `[…]: target`, that are files.
fn linked(page: &str) -> Vec<&str> {
    let inline = page.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let defined =
        page.lines().filter(|line| line.starts_with('[')).filter_map(|line| line.split("]: ").nth(1));
    let target = |link: &'_ str| link.find('#').unwrap_or(link.len());
    let all = inline.chain(defined).map(|link| &link[..target(link)]);
    all.filter(|link| !link.is_empty() && !link.contains("://")).collect()
}

/// What a page names and is not there. `home` is the page's directory.
fn missing(root: &Path, home: &Path, page: &str) -> Vec<String> {
    let mut missing = Vec::new();
    for word in quoted(page) {
        let there = match word.rsplit_once("::").filter(|_| is_test(word)) {
            Some((place, name)) => {
                fs::read_to_string(root.join(file_of_test(place))).is_ok_and(|source| has_test(&source, name))
            }
            None => !is_path(word) || root.join(word).exists(),
        };
        if !there {
            missing.push(word.to_owned());
        }
    }
    missing.extend(linked(page).into_iter().filter(|link| !home.join(link).exists()).map(str::to_owned));
    for (at, _) in page.match_indices("[ADR ") {
        let Some((name, rest)) = page[at..].split_once(']') else { continue };
        let used = !rest.starts_with(['(', ':']);
        if used && !page.contains(&format!("\n{name}]: ")) {
            missing.push(format!("{name}]"));
        }
    }
    missing.sort();
    missing.dedup();
    missing
}

/// Rows of requirements that lack a cell, or a test and the reason why there is none.
fn incomplete(page: &str) -> Vec<&str> {
    requirements(page)
        .filter(|row| {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            // An empty cell on either side of the row.
            let [_, section, requirement, place, test, deviation, _] = cells[..] else { return true };
            let tested =
                quoted(test).into_iter().any(is_test) || (test == "—" && deviation.starts_with("not "));
            section.is_empty() || requirement.is_empty() || place.is_empty() || !tested
        })
        .collect()
}

/// The rows of tables that begin with a section.
fn requirements(page: &str) -> impl Iterator<Item = &str> {
    let tables = page.split("\n\n").filter(|block| block.starts_with("| section |"));
    tables.flat_map(|table| table.lines().skip(2))
}

#[test]
fn every_test_and_every_file_that_a_page_names_exists() {
    let docs = root().join("docs");
    for name in ["source-documents.md", "scenarios.md"] {
        let page = text(docs.join(name));
        assert!(quoted(&page).into_iter().filter(|word| is_test(word)).count() > 100, "{name} was read");
        assert_eq!(missing(&root(), &docs, &page), Vec::<String>::new(), "named in docs/{name}");
    }
    let page = text(docs.join("source-documents.md"));
    assert!(requirements(&page).count() > 200, "the tables were read");
    assert_eq!(incomplete(&page), Vec::<&str>::new(), "rows of docs/source-documents.md");
}

#[test]
fn a_made_up_name_is_found_missing() {
    let right = "`documents::a_made_up_name_is_found_missing`, `tests/tests/documents.rs::every_mermaid_node_is_quoted`,
        `tests/tests/e2e`, `Cargo.toml`, `TxState::may_become`, `GET /api/v1/tx`, [a](scenarios.md#load), [ADR 1]

[ADR 1]: adr/README.md
";
    let home = root().join("docs");
    assert_eq!(missing(&root(), &home, right), Vec::<String>::new());
    for wrong in [
        "documents::nobody_wrote_this",
        "documents::missing", // A function, and no test.
        "documents::a_made_up_name_is_found",
        "no_such_module::a_made_up_name_is_found_missing",
        "tests/tests/no_such_file.rs::a_made_up_name_is_found_missing",
        "tests/tests/no_such_file.rs",
        "no-such-page.md",
    ] {
        assert_eq!(missing(&root(), &home, &format!("{right}`{wrong}`")), [wrong]);
    }
    assert_eq!(missing(&root(), &home, "[a](no-such-page.md)"), ["no-such-page.md"]);
    assert_eq!(missing(&root(), &home, "as [ADR 9999] says"), ["[ADR 9999]"]);
    let table = "| section | requirement | where | test | deviation |\n|---|---|---|---|---|\n";
    for (row, is_whole) in [
        ("| 1 | it works | `Cargo.toml` | `model::a` | |", true),
        ("| 1 | it works | `Cargo.toml` | — | not yet |", true),
        ("| 1 | it works | `Cargo.toml` | — | |", false),
        ("| 1 | it works | `Cargo.toml` | by hand | |", false),
        ("| 1 | it works | `Cargo.toml` | `model::a` |", false),
    ] {
        assert_eq!(incomplete(&format!("{table}{row}\n\n")).is_empty(), is_whole, "{row}");
    }
}

/// Lines of diagrams with a node that is not `id["…"]` or `id{"…"}`, or with parentheses that are not ASCII. The nodes of state and
/// sequence diagrams have no labels of their own.
fn unquoted(page: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for block in page.split("```mermaid").skip(1) {
        let block = block.split("```").next().unwrap();
        let kind = block.split_whitespace().next().unwrap_or_default();
        let has_nodes = kind == "flowchart" || kind == "graph";
        found.extend(
            block.lines().filter(|line| line.contains(['（', '）']) || (has_nodes && !is_quoted(line))),
        );
    }
    found
}

fn is_quoted(line: &str) -> bool {
    // Labels become a pair of marks, and labels of edges nothing.
    let labels = line.split('"').step_by(2).collect::<Vec<_>>().join("\"\"");
    let nodes = labels.split('|').step_by(2).collect::<String>();
    !nodes.replace("[\"\"]", "").replace("{\"\"}", "").contains(['[', ']', '(', ')', '{', '}'])
}

#[test]
fn every_mermaid_node_is_quoted() {
    let pages = files(&root(), ".md");
    let diagrams = pages.iter().map(|page| text(page).matches("```mermaid").count()).sum::<usize>();
    assert!(diagrams >= 2, "the diagrams were found");
    for page in pages {
        assert_eq!(unquoted(&text(&page)), Vec::<&str>::new(), "{}", page.display());
    }
    let diagram = |line: &str| format!("```mermaid\nflowchart LR\n{line}\n```\n");
    for right in ["a[\"A (one)\"] -->|asks (b)| b{\"B?\"}", "a --> b", "subgraph x[\"X\"]"] {
        assert_eq!(unquoted(&diagram(right)), Vec::<&str>::new());
    }
    for wrong in
        ["a[A] --> b", "a[\"A\"] --> b(B)", "a([\"A\"]) --> b", "a[(\"A\")]", "a{A?}", "a[\"A（one）\"]"]
    {
        assert_eq!(unquoted(&diagram(wrong)), [wrong]);
    }
}

/// Places in sources below these directories where one of the words stands.
fn places(directories: &[&str], words: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for path in directories.iter().flat_map(|directory| files(&root().join(directory), ".rs")) {
        let source = text(&path);
        let lines = source.lines().filter(|line| words.iter().any(|word| line.contains(word)));
        found.extend(lines.map(|line| format!("{}: {}", path.display(), line.trim())));
    }
    found
}

#[test]
fn the_domain_names_no_infrastructure() {
    let words = ["sqlx", "reqwest", "hyper", "tokio", "async ", ".await", "crate::store", "crate::chain"];
    assert_eq!(places(&["shared/src/domain"], &words), Vec::<String>::new());
    assert!(!places(&["shared/src/store"], &words).is_empty(), "the search finds what is there");
}

#[test]
fn sql_is_in_the_store_alone() {
    let words = ["sqlx::query(", "sqlx::query_", "sqlx::raw_sql", "use sqlx"];
    let store = root().join("shared/src/store").display().to_string();
    let mut found = places(&["shared/src", "api/src", "worker/src", "cli/src"], &words);
    assert!(!found.is_empty(), "the search finds what is there");
    found.retain(|place| !place.starts_with(&store));
    assert_eq!(found, Vec::<String>::new());
    for program in ["api", "worker", "cli"] {
        let manifest = text(root().join(program).join("Cargo.toml"));
        assert!(!manifest.contains("sqlx"), "{program} reaches the database through `gapless`");
    }
}

#[test]
fn steps_and_lanes_name_no_adapter_and_no_library_of_one() {
    let words = ["evm", "Evm", "reqwest", "hyper", "sqlx", "ethers_providers"];
    let core = ["worker/src/steps", "worker/src/lane", "worker/src/watcher"];
    assert_eq!(places(&core, &words), Vec::<String>::new());
    assert!(!places(&["worker/src"], &words).is_empty(), "somebody makes the adapter");
}
