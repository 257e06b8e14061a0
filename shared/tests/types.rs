//! What must not compile: an unfenced write, an unrecorded broadcast, a forged or copied lease.

#[test]
fn wrong_programs_do_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}
