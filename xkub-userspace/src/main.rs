//! xkub
fn main() {}
