//! Checks the pages: every link, heading, test, file and ADR that a page or a source names exists, docs/SUMMARY.md lists
//! every page, and diagrams have quoted labels. Checks the sources: which layer may use which crate, that retired words do not come back, and that migrations do not change.
//! Needs no database and no chain.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

/// Files of `tests/tests` whose tests are named by the file alone. All other modules belong to `e2e`.
const OTHER_FILES: [&str; 3] = ["model", "simulation", "documents"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn text(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All files below `dir` with this ending, without build output and downloaded packages.
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

/// The text between backticks, outside of code blocks.
fn quoted(page: &str) -> Vec<&str> {
    let prose = page.split("```").step_by(2);
    prose.flat_map(str::lines).flat_map(|line| line.split('`').skip(1).step_by(2)).collect()
}

/// `module::name`, or `path/of/file.rs::name`. Other code names have capitals or parentheses.
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

/// Whether the source has a function of this name with a test attribute.
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

/// File targets of links, both `[…](target)` and `[…]: target`.
fn linked(page: &str) -> Vec<&str> {
    let inline = page.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let defined =
        page.lines().filter(|line| line.starts_with('[')).filter_map(|line| line.split("]: ").nth(1));
    inline.chain(defined).filter(|link| !link.is_empty() && !link.contains("://")).collect()
}

/// The text of the page without its code blocks.
fn prose(page: &str) -> String {
    page.split("```").step_by(2).collect()
}

/// The anchors that GitHub and mdBook give to the headings of a page.
fn anchors(page: &str) -> Vec<String> {
    let mut anchors: Vec<String> = Vec::new();
    let text = prose(page);
    for heading in text.lines().filter(|line| line.starts_with('#')) {
        let name = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        let name: String = name.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect();
        let earlier = anchors.iter().filter(|anchor| **anchor == name).count();
        anchors.push(if earlier == 0 { name } else { format!("{name}-{earlier}") });
    }
    anchors
}

/// Whether the link leads to a file, and to a heading of it if it names one. `page` has the link, `home` is its directory.
fn leads_somewhere(home: &Path, page: &str, link: &str) -> bool {
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = home.join(file);
    let has = |page: &str| anchors(page).iter().any(|name| name == anchor);
    if file.is_empty() {
        has(page)
    } else {
        target.exists() && (anchor.is_empty() || fs::read_to_string(target).is_ok_and(|page| has(&page)))
    }
}

/// `docs/…` in prose, comments and messages: a page, a heading of one, or the number of an ADR.
fn pages_named(source: &str) -> Vec<&str> {
    let of_path = |c: char| c.is_ascii_alphanumeric() || "_/.#-".contains(c);
    let starts = source.match_indices("docs/").filter(|(at, _)| !source[..*at].ends_with(of_path));
    let words = starts.map(|(at, _)| {
        let rest = &source[at..];
        rest[..rest.find(|c| !of_path(c)).unwrap_or(rest.len())].trim_end_matches(['.', '/'])
    });
    words.collect()
}

fn is_page(root: &Path, name: &str) -> bool {
    let adr = name.strip_prefix("docs/adr/").filter(|number| number.len() == 4);
    let numbered = |number: &str| {
        let mut records = fs::read_dir(root.join("docs/adr")).unwrap();
        records.any(|file| file.unwrap().file_name().to_string_lossy().starts_with(number))
    };
    adr.map_or_else(|| leads_somewhere(root, "", name), numbered)
}

/// Names on a page that do not exist. `home` is the page's directory.
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
    let dead = linked(page).into_iter().filter(|link| !leads_somewhere(home, page, link));
    missing.extend(dead.map(str::to_owned));
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

/// Requirement rows with a missing cell, or with neither a test nor the reason why there is none.
fn incomplete(page: &str) -> Vec<&str> {
    requirements(page)
        .filter(|row| {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            let is_tested = |test: &str| quoted(test).into_iter().any(is_test);
            // A row begins and ends with a separator. An entry of a list is met as its test says.
            match cells[..] {
                [entry] => !is_tested(entry),
                [_, section, requirement, test, deviation, _] => {
                    let is_open = test == "—" && deviation.starts_with("not ");
                    [section, requirement, deviation].contains(&"") || !(is_tested(test) || is_open)
                }
                _ => true,
            }
        })
        .collect()
}

/// The rows of the tables whose first column is the section, and the entries of lists that begin with a document's number.
fn requirements(page: &str) -> impl Iterator<Item = &str> {
    let tables = page.split("\n\n").filter(|block| block.starts_with("| section |"));
    let rows = tables.flat_map(|table| table.lines().skip(2));
    rows.chain(page.lines().filter(|line| line.starts_with("- 00")))
}

#[test]
fn every_test_and_every_file_that_a_page_names_exists() {
    let internals = root().join("docs/internals");
    for name in ["source-documents.md", "scenarios.md"] {
        let page = text(internals.join(name));
        assert!(quoted(&page).into_iter().filter(|word| is_test(word)).count() > 100, "{name} was read");
        assert_eq!(missing(&root(), &internals, &page), Vec::<String>::new(), "named in {name}");
    }
    let reliability = text(internals.join("reliability.md"));
    assert_eq!(missing(&root(), &internals, &reliability), Vec::<String>::new(), "named in reliability.md");
    let chinese = text(root().join("README.zh-CN.md"));
    assert_eq!(missing(&root(), &root(), &chinese), Vec::<String>::new(), "named in README.zh-CN.md");
    let page = text(internals.join("source-documents.md"));
    assert!(requirements(&page).count() > 150, "the tables were read");
    assert_eq!(incomplete(&page), Vec::<&str>::new(), "rows of docs/internals/source-documents.md");
}

#[test]
fn every_link_leads_to_a_page_and_a_heading() {
    let pages = files(&root(), ".md");
    assert!(pages.len() > 60, "the pages were read");
    for path in pages {
        let page = text(&path);
        let home = path.parent().unwrap();
        let mut dead = linked(&page);
        assert!(!page.contains("](#") || dead.iter().any(|link| link.starts_with('#')), "links were read");
        dead.retain(|link| !leads_somewhere(home, &page, link));
        assert_eq!(dead, Vec::<&str>::new(), "links in {}", path.display());
    }
}

/// Differences between the entries of the book and the pages, both by path below docs/.
fn not_in_both(summary: &str, pages: &[String]) -> Vec<String> {
    let entries = linked(summary);
    let unlisted = pages.iter().filter(|page| !entries.contains(&page.as_str()));
    let mut differences: Vec<String> = unlisted.map(|page| format!("{page} is not listed")).collect();
    for (at, entry) in entries.iter().enumerate() {
        if !pages.iter().any(|page| page == entry) {
            differences.push(format!("{entry} does not exist"));
        }
        if entries[..at].contains(entry) {
            differences.push(format!("{entry} is listed twice"));
        }
    }
    differences
}

#[test]
fn the_book_lists_every_page_once() {
    let docs = root().join("docs");
    let mut pages: Vec<String> = files(&docs, ".md")
        .iter()
        .map(|path| path.strip_prefix(&docs).unwrap().display().to_string())
        .collect();
    pages.retain(|page| page != "SUMMARY.md");
    assert_eq!(not_in_both(&text(docs.join("SUMMARY.md")), &pages), Vec::<String>::new(), "docs/SUMMARY.md");
    let made_up = ["a.md".to_owned(), "b/c.md".to_owned()];
    assert_eq!(not_in_both("- [A](a.md)\n  - [C](b/c.md)", &made_up), Vec::<String>::new());
    assert_eq!(
        not_in_both("- [A](a.md)\n- [D](d.md)\n- [A](a.md)", &made_up),
        ["b/c.md is not listed", "d.md does not exist", "a.md is listed twice"]
    );
}

/// Migrations never change, so that their comments keep the names that the pages had when they were written.
#[test]
fn every_page_that_a_source_or_a_message_names_exists() {
    let endings = [".rs", ".toml", ".md", ".yaml", ".yml", "Makefile"];
    let mut found = 0;
    for path in endings.iter().flat_map(|ending| files(&root(), ending)) {
        let source = text(&path);
        let names = pages_named(&source);
        found += names.len();
        let dead: Vec<&str> = names.into_iter().filter(|name| !is_page(&root(), name)).collect();
        assert_eq!(dead, Vec::<&str>::new(), "named in {}", path.display());
    }
    assert!(found > 50, "the sources were read");
    let right =
        "docs/adr, docs/adr/0002, docs/adr/README.md. (docs/adr/README.md#architecture-decision-records)";
    assert_eq!(pages_named(right).len(), 4);
    assert!(pages_named(right).into_iter().all(|name| is_page(&root(), name)));
    // In two parts, because this file is one of the sources.
    for wrong in ["adr/9999", "no-such-page.md", "adr/README.md#no-such-heading"] {
        assert!(!is_page(&root(), &format!("docs/{wrong}")), "{wrong}");
    }
}

#[test]
fn a_made_up_name_is_found_missing() {
    let right = "`documents::a_made_up_name_is_found_missing`, `tests/tests/documents.rs::every_mermaid_node_is_quoted`,
        `tests/tests/e2e`, `Cargo.toml`, `TxState::may_become`, `GET /api/v1/tx`, [a](scenarios.md#load), [ADR 1], [here](#a-b_c)

[ADR 1]: ../adr/README.md

## A `b_c`?
";
    let home = root().join("docs/internals");
    assert_eq!(missing(&root(), &home, right), Vec::<String>::new());
    for wrong in [
        "documents::nobody_wrote_this",
        "documents::missing", // A function without a test attribute.
        "documents::a_made_up_name_is_found",
        "no_such_module::a_made_up_name_is_found_missing",
        "tests/tests/no_such_file.rs::a_made_up_name_is_found_missing",
        "tests/tests/no_such_file.rs",
        "no-such-page.md",
    ] {
        assert_eq!(missing(&root(), &home, &format!("{right}`{wrong}`")), [wrong]);
    }
    for wrong in ["no-such-page.md", "scenarios.md#no-such-heading", "#no-such-heading"] {
        assert_eq!(missing(&root(), &home, &format!("[a]({wrong})")), [wrong]);
    }
    assert_eq!(missing(&root(), &home, "as [ADR 9999] says"), ["[ADR 9999]"]);
    let table = "| section | requirement | test | deviation |\n|---|---|---|---|\n";
    for (row, is_whole) in [
        ("- 000 §1: `model::a`", true),
        ("| 1 | it works | `model::a` | differently |", true),
        ("| 1 | it works | — | not yet |", true),
        ("| 1 | it works | — | later |", false),
        ("- 000 §1: by hand", false),
        ("| 1 | it works | by hand | |", false),
        ("| 1 | it works | `model::a` | |", false),
        ("| 1 | it works |", false),
        ("| 1 | it works | `model::a` |", false),
    ] {
        assert_eq!(incomplete(&format!("{table}{row}\n\n")).is_empty(), is_whole, "{row}");
    }
}

/// Lines of diagrams with a node that is not `id["…"]` or `id{"…"}`, or with parentheses that are not ASCII. Nodes of state
/// and sequence diagrams have no labels.
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
    // Node labels become a pair of quotation marks; edge labels are removed.
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

/// Lines in sources below these directories that contain one of the words.
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
    assert_eq!(places(&["shared/domain/src"], &words), Vec::<String>::new());
    assert!(!places(&["shared/store/src"], &words).is_empty(), "the search works");
}

/// The packages that a crate of this workspace links, directly or not. Without those for tests and build scripts.
fn linked_packages(package: &str) -> Vec<String> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .args([
            "tree",
            "--offline",
            "--locked",
            "-e",
            "normal,no-proc-macro",
            "--prefix",
            "none",
            "-p",
            package,
        ])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tree = String::from_utf8(output.stdout).unwrap();
    tree.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

#[test]
fn the_domain_and_embedding_programs_link_no_http_client() {
    let network = ["gapless-http-client", "gapless-remote-signer", "gapless-telemetry", "reqwest", "hyper"];
    let metrics = ["metrics", "metrics-exporter-prometheus"];
    let both = [&network[..], &metrics].concat();
    let domain = [&both[..], &["tokio", "sqlx", "rustls", "ring"]].concat();
    for (package, forbidden) in [("gapless-domain", &domain), ("gapless-embed", &both)] {
        let mut found = linked_packages(package);
        assert!(found.iter().any(|name| name == "ethers-core"), "{package}: the tree was read");
        found.retain(|name| forbidden.contains(&name.as_str()));
        assert_eq!(found, Vec::<String>::new(), "linked by {package}");
    }
    let worker = linked_packages("gapless-worker");
    assert!(both.iter().all(|name| worker.iter().any(|linked| linked == name)), "the search works");
}

/// They are optional, so that only the manifests of our crates show who uses them.
#[test]
fn embedding_programs_link_no_libraries_of_cloud_services() {
    let names = |manifest: &Path| -> Vec<String> {
        let manifest: toml::Table = text(manifest).parse().unwrap();
        let direct = manifest["dependencies"].as_table().unwrap();
        direct
            .keys()
            .filter(|name| name.starts_with("aws-") || name.starts_with("google-cloud-"))
            .cloned()
            .collect()
    };
    let manifest_of =
        |package: &str| root().join("shared").join(package.trim_start_matches("gapless-")).join("Cargo.toml");
    let ours: Vec<String> =
        linked_packages("gapless-embed").into_iter().filter(|name| name.starts_with("gapless-")).collect();
    assert!(ours.iter().any(|name| name == "gapless-signer"), "the tree was read");
    for package in ours {
        assert_eq!(names(&manifest_of(&package)), Vec::<String>::new(), "{package}");
    }
    assert!(!names(&manifest_of("gapless-remote-signer")).is_empty(), "the search works");
}

#[test]
fn sql_is_in_the_store_alone() {
    let words = ["sqlx::query(", "sqlx::query_", "sqlx::raw_sql", "use sqlx"];
    let store = root().join("shared/store/src").display().to_string();
    let mut found = places(&["shared", "api/src", "worker/src", "cli/src"], &words);
    assert!(!found.is_empty(), "the search works");
    found.retain(|place| !place.starts_with(&store));
    assert_eq!(found, Vec::<String>::new());
    for program in ["api", "worker", "cli"] {
        let manifest = text(root().join(program).join("Cargo.toml"));
        assert!(!manifest.contains("sqlx"), "{program} reaches the database through `gapless-store`");
    }
}

#[test]
fn steps_and_lanes_name_no_adapter_and_no_library_of_one() {
    let words = ["evm", "Evm", "reqwest", "hyper", "sqlx", "ethers_providers"];
    let core = ["worker/src/steps", "worker/src/lane", "worker/src/watcher"];
    assert_eq!(places(&core, &words), Vec::<String>::new());
    assert!(!places(&["worker/src"], &words).is_empty(), "the search works");
}

/// Words that were replaced by common terms (docs/reference/glossary.md). The last three are two words in a row.
const RETIRED: &str = "bell door stranger strangers keyring visits unstalled funnel keeper policed pulse bury complain \
    vanish obey hostile remarks foreign taker seats nemesis by_hand whole_body put_off";

/// The retired words in a name, which is split at underscores and capitals.
fn retired(name: &str) -> Vec<&'static str> {
    let chars: Vec<char> = name.chars().collect();
    let mut words = String::from("_");
    for (at, c) in chars.iter().enumerate() {
        let after_small = at > 0 && chars[at - 1].is_lowercase();
        let before_small = chars.get(at + 1).is_some_and(|next| next.is_lowercase());
        if c.is_uppercase() && (after_small || before_small) {
            words.push('_');
        }
        words.extend(c.to_lowercase());
    }
    words.push('_');
    RETIRED.split_whitespace().filter(|word| words.contains(&format!("_{word}_"))).collect()
}

/// The length of the comment, string or character literal at the start of `rest`; 0 if there is none. Nested block
/// comments are not supported.
fn literal_length(rest: &str) -> usize {
    let until =
        |from: usize, end: &str| rest[from..].find(end).map_or(rest.len(), |at| from + at + end.len());
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return until(2, "*/");
    }
    if let Some(raw) = rest.strip_prefix('r') {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if raw[hashes..].starts_with('"') {
            return until(hashes + 2, &format!("\"{}", "#".repeat(hashes)));
        }
    }
    if let Some(inner) = rest.strip_prefix('"') {
        let mut escaped = false;
        let end = inner.find(|c: char| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        });
        return end.map_or(rest.len(), |at| at + 2);
    }
    if rest.starts_with("'\\") {
        return until(3, "'");
    }
    // Not a lifetime: the second character closes the literal.
    let mut chars = rest.strip_prefix('\'').unwrap_or_default().chars();
    match (chars.next(), chars.next()) {
        (Some(c), Some('\'')) => c.len_utf8() + 2,
        _ => 0,
    }
}

/// The source without comments and literals. Line numbers stay the same.
fn code_only(source: &str) -> String {
    let mut code = String::new();
    let mut rest = source;
    while let Some(next) = rest.chars().next() {
        let length = literal_length(rest);
        if length == 0 {
            code.push(next);
        } else {
            code.push(' ');
            code.extend(rest[..length].chars().filter(|c| *c == '\n'));
        }
        rest = &rest[length.max(next.len_utf8())..];
    }
    code
}

/// `file:line: word` for every retired word in an identifier.
fn retired_identifiers(file: &str, source: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, line) in code_only(source).lines().enumerate() {
        let names = line.split(|c: char| !c.is_alphanumeric() && c != '_');
        found.extend(names.flat_map(retired).map(|word| format!("{file}:{}: {word}", at + 1)));
    }
    found
}

#[test]
fn retired_words_are_not_used_in_identifiers_and_file_names() {
    let crates = ["api", "worker", "shared", "cli", "tests", "bench", "fuzz"];
    let sources: Vec<PathBuf> = crates.iter().flat_map(|name| files(&root().join(name), ".rs")).collect();
    assert!(sources.len() > 300, "the sources were read");
    let mut found = Vec::new();
    for path in sources {
        let file = path.strip_prefix(root()).unwrap().display().to_string();
        let names = file.trim_end_matches(".rs").split('/');
        found.extend(names.flat_map(retired).map(|word| format!("{file}: {word}")));
        found.extend(retired_identifiers(&file, &text(&path)));
    }
    assert_eq!(found, Vec::<String>::new());
}

#[test]
fn a_retired_word_is_reported_in_an_identifier_but_not_in_a_comment_or_literal() {
    for (source, word) in [
        ("fn ring_bell() {}", "bell"),
        ("struct DoorKey;", "door"),
        ("struct HTTPFunnel;", "funnel"),
        ("const PULSE_SECONDS: u64 = 1;", "pulse"),
        ("/* one */ let c = '\"'; let s: &'a str = \"\\\"\"; whole_body(s)", "whole_body"),
        ("let s = br#\"a \"quoted\" word\"#; s.put_off()", "put_off"),
    ] {
        assert_eq!(retired_identifiers("a.rs", &format!("// one\n{source}\n")), [format!("a.rs:2: {word}")]);
    }
    for source in [
        "/// A bell.\nfn notify() {} // by_hand",
        "/* a door\n */",
        "let s = \"bell \\\" door\"; let r = r#\"FOREIGN \" KEY\"#; let c = ['\\'', '\"'];",
        "struct Doorway; fn bellow(label: &'static str) {}",
    ] {
        assert_eq!(retired_identifiers("a.rs", source), Vec::<String>::new());
    }
    assert_eq!(retired("ringing_the_bell"), ["bell"]);
}

/// What differs between the migrations and the list of their checksums, which is in the format of sha256sum.
fn changed_migrations(list: &str, files: &[(String, Vec<u8>)]) -> Vec<String> {
    let listed: Vec<(&str, &str)> = list.lines().filter_map(|line| line.split_once("  ")).collect();
    let mut problems = Vec::new();
    for (name, content) in files {
        let sum = hex::encode(Sha256::digest(content));
        match listed.iter().find(|(_, file)| file == name) {
            None => problems.push(format!("{name} is not listed; add `{sum}  {name}`")),
            Some((expected, _)) if *expected != sum => {
                problems.push(format!("{name} was changed; add another migration instead"));
            }
            Some(_) => {}
        }
    }
    let is_file = |name: &str| files.iter().any(|(file, _)| file == name);
    problems.extend(
        listed.iter().filter(|(_, name)| !is_file(name)).map(|(_, name)| format!("{name} is missing")),
    );
    problems
}

/// A migration that was applied somewhere must not change: sqlx refuses a database with another checksum.
#[test]
fn migrations_do_not_change() {
    let directory = root().join("migrations");
    let migrations: Vec<(String, Vec<u8>)> = files(&directory, ".sql")
        .into_iter()
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), fs::read(&path).unwrap()))
        .collect();
    assert!(!migrations.is_empty());
    let problems = changed_migrations(&text(directory.join("checksums.txt")), &migrations);
    assert!(problems.is_empty(), "migrations/checksums.txt: {problems:#?}");
}

#[test]
fn a_changed_a_new_and_a_deleted_migration_are_reported() {
    let file = |name: &str, content: &str| (name.to_owned(), content.as_bytes().to_vec());
    let list = format!("{}  1_one.sql\n", hex::encode(Sha256::digest("one")));
    assert!(changed_migrations(&list, &[file("1_one.sql", "one")]).is_empty());
    let changed = changed_migrations(&list, &[file("1_one.sql", "One")]);
    assert!(changed.len() == 1 && changed[0].contains("was changed"), "{changed:?}");
    let added = changed_migrations(&list, &[file("1_one.sql", "one"), file("2_two.sql", "two")]);
    assert!(added.len() == 1 && added[0].contains("not listed"), "{added:?}");
    assert_eq!(changed_migrations(&list, &[]), ["1_one.sql is missing"]);
}
