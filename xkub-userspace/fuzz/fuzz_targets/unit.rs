//! Unit files, environment files and command lines: no panic; a line's words keep their values when they are written
//! again, and what is changed in an environment file changes nothing else and can be taken back.
#![no_main]

use std::net::{IpAddr, Ipv4Addr};

use libfuzzer_sys::fuzz_target;
use xkub_userspace::node::{
    command_line::{self, Word},
    distribution::{self, Distribution},
    environment,
    tree::Tree,
};

fuzz_target!(|text: &str| {
    if text.contains('\0') {
        return;
    }
    if let Ok(words) = command_line::split(text) {
        let again = command_line::split(&command_line::join(&words));
        let values = again.map(|words| words.into_iter().map(|word| word.value).collect::<Vec<_>>());
        assert_eq!(values, Ok(words.into_iter().map(|word| word.value).collect()));
    }
    assert_eq!(command_line::split(&command_line::quote(text)), Ok(vec![Word::new(text)]));

    if let Some(changed) = environment::set(text, "A", "x") {
        assert_eq!(environment::get(&changed, "B"), environment::get(text, "B"));
        let again = environment::set(&changed, "A", "x");
        assert_eq!(again.as_ref(), Some(&changed));
    }

    let address = IpAddr::from(Ipv4Addr::new(10, 244, 1, 226));
    for distribution in Distribution::ALL {
        let mut tree = Tree::default();
        tree.insert(format!("/etc/systemd/system/{}", distribution.unit()), text);
        tree.insert("/etc/default/kubelet", text);
        tree.insert("/etc/rancher/k3s/config.yaml", text);
        let Ok(Some(worker)) = distribution::find(&tree, Some(distribution)) else { continue };
        let Ok(plan) = worker.plan_node_ip(&tree, &[address]) else { continue };
        for change in plan.changes {
            let contents = change.contents.unwrap_or_default();
            tree.insert(change.path, String::from_utf8(contents).expect("what is written is text"));
        }
        let Ok(Some(worker)) = distribution::find(&tree, Some(distribution)) else {
            panic!("what we wrote made the unit unreadable");
        };
        let again = worker.plan_node_ip(&tree, &[address]).expect("it was possible before");
        assert_eq!(again.changes, [], "applying twice changes something");
    }
});
