//! The node address: where it can be learnt, and which answer counts.
