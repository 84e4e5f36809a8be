//! What a CNI advertises as this node's address, and how that is kept right.
