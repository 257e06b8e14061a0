//! What must not compile: an unfenced write, an unrecorded broadcast, a forged or copied lease.
//!
//! Each program in `compile_fail` names the error that the compiler must report, and has one wrong line with the right one
//! above it. With the right line it must compile: so it is that line that is refused, and nothing else. The compiler
//! reads the crate as this build made it; building it once more for these programs took minutes.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use serde_json::Value;

const RIGHT: &str = "// right: ";
/// The crates that the programs use.
const CRATES: [&str; 3] = ["gapless_domain", "gapless_store", "gapless_chain"];

#[test]
fn wrong_programs_do_not_compile_and_their_right_twins_do() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compile_fail");
    let mut programs: Vec<PathBuf> =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    programs.sort();
    assert_eq!(programs.len(), 6);
    let crates = CRATES.map(|name| (name, built_crate(name)));
    for path in programs {
        let name = path.file_stem().unwrap().to_str().unwrap();
        let wrong = std::fs::read_to_string(&path).unwrap();
        let wanted = wrong.lines().next().unwrap().strip_prefix("// error: ").unwrap();
        assert_eq!(errors(&crates, name, &wrong), [wanted], "{name}");
        assert_eq!(errors(&crates, name, &right_twin(&wrong)), [""; 0], "{name}, made right");
    }
}

/// The program with the line below each `// right:` replaced by what it says.
fn right_twin(wrong: &str) -> String {
    let mut lines = wrong.lines();
    let mut twin = Vec::new();
    let mut replaced = 0;
    while let Some(line) = lines.next() {
        match line.trim_start().strip_prefix(RIGHT) {
            Some(right) => {
                lines.next().unwrap();
                twin.push(right);
                replaced += 1;
            }
            None => twin.push(line),
        }
    }
    assert_eq!(replaced, 1, "one wrong line:\n{wrong}");
    twin.join("\n")
}

/// The library that this test is linked with lies beside it. After a change of features there are several; the last one
/// that was built is of this source.
fn built_crate(crate_name: &str) -> PathBuf {
    let here = std::env::current_exe().unwrap();
    let built = |entry: std::fs::DirEntry| -> Option<(SystemTime, PathBuf)> {
        let name = entry.file_name().into_string().ok()?;
        let hash = name.strip_prefix(&format!("lib{crate_name}-"))?.strip_suffix(".rlib")?;
        let of_ours = hash.chars().all(|digit| digit.is_ascii_hexdigit());
        of_ours.then(|| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))?
    };
    let all = std::fs::read_dir(here.parent().unwrap()).unwrap().filter_map(|entry| built(entry.unwrap()));
    all.max().expect("the library is built before its tests").1
}

/// The errors in a library of this source, each as its code, if it has one, and its message.
fn errors(crates: &[(&str, PathBuf)], name: &str, source: &str) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join(format!("{name}.rs"));
    std::fs::write(&file, source).unwrap();
    let run = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
        .args(["--edition", "2024", "--crate-type", "lib", "--emit", "metadata", "--error-format", "json"])
        .args(
            crates
                .iter()
                .flat_map(|(name, path)| ["--extern".to_owned(), format!("{name}={}", path.display())]),
        )
        .arg("-L")
        .arg(format!("dependency={}", crates[0].1.parent().unwrap().display()))
        .arg("--out-dir")
        .arg(dir.path())
        .arg(&file)
        .output()
        .unwrap();
    let said = String::from_utf8(run.stderr).unwrap();
    let parse = |line: &str| -> Value { serde_json::from_str(line).unwrap_or_else(|_| panic!("{said}")) };
    let found: Vec<String> = said
        .lines()
        .map(parse)
        .filter(|message| message["level"] == "error" && !message["spans"].as_array().unwrap().is_empty())
        .map(|message| {
            let text = message["message"].as_str().unwrap();
            message["code"]["code"].as_str().map_or_else(|| text.to_owned(), |code| format!("{code} {text}"))
        })
        .collect();
    // An error without a place, such as a library that is not found, must not pass for a program that compiles.
    assert_eq!(run.status.success(), found.is_empty(), "{name}: {said}");
    found
}
