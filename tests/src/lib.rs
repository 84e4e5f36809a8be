//! labs
