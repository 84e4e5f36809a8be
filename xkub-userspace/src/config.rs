//! The configuration file: its keys, defaults and validation.
