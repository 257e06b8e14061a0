//! The migrations are compiled in; a new file must trigger that again.

#[allow(clippy::print_stdout)] // how a build script speaks to cargo
fn main() {
    println!("cargo:rerun-if-changed=../../migrations");
}
