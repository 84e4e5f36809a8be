//! Tokens and join files: the address of the API server in them.
