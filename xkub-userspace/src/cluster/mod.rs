//! The guest cluster's API as a node sees it: with the kubelet's credentials, and no more than a kubelet may.
//!
//! The Node authorizer lets `system:node:NAME` read and watch its own Node and read certificate signing requests;
//! the `NodeRestriction` admission plugin lets it change the annotations of its own Node and of no other
//! (<https://kubernetes.io/docs/reference/access-authn-authz/node/>). Nothing here asks for more.

pub mod client;
pub mod csr;
pub mod node;
pub mod token;
mod watch;

#[cfg(test)]
pub(crate) mod testing;

pub use watch::watch;
