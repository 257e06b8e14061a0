//! Lists the migrations, so that they are compiled in. A new file triggers that again.

use std::path::Path;
use std::{env, fs};

#[allow(clippy::print_stdout)] // how a build script speaks to cargo
fn main() {
    println!("cargo:rerun-if-changed=../../migrations");
    let manifest_dir = env::var("CARGO_MANIFEST_DIR").expect("set by cargo");
    let dir = fs::canonicalize(Path::new(&manifest_dir).join("../../migrations")).expect("the migrations");
    let mut files: Vec<String> = fs::read_dir(&dir)
        .expect("a directory")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("a UTF-8 name"))
        .filter(|name| name.ends_with(".sql"))
        .collect();
    files.sort();
    let rows = files.iter().map(|name| {
        let (version, description) =
            name.trim_end_matches(".sql").split_once('_').expect("a number, `_` and a description");
        let version: i64 = version.parse().expect("a number");
        let (description, path) = (description.replace('_', " "), dir.join(name));
        format!("    ({version}, {description:?}, include_str!({path:?})),\n")
    });
    let list = format!("&[\n{}]\n", rows.collect::<String>());
    let out = env::var("OUT_DIR").expect("set by cargo");
    fs::write(Path::new(&out).join("migrations.rs"), list).expect("writing the list");
}
