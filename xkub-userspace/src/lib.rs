//! xkub
