//! Tokens, kubeconfigs, `JoinConfiguration`s and the files of k3s. The first byte chooses.
#![no_main]

#[path = "join/mod.rs"]
mod join;

use libfuzzer_sys::fuzz_target;
use xkub_userspace::join::{Kind, discovery_file};

fuzz_target!(|input: &[u8]| {
    let Some((first, input)) = input.split_first() else { return };
    let kinds = [Kind::K0s, Kind::Kubeconfig, Kind::Kubeadm, Kind::K3sConfig, Kind::K3sEnv];
    let _ = discovery_file(input);
    if let Some(kind) = kinds.get(usize::from(*first) % kinds.len()) {
        join::check(*kind, input);
    }
});
