//! Packets shown while they go on, and not a moment longer.

use nix::sys::signal::Signal;
use xkub_tests::{
    masquerade::{Family, Masquerade, Overlay},
    traffic::Ping,
    wait::PATIENCE,
};

#[test]
fn packets_are_shown_as_they_go_on() {
    let lab = Masquerade::builder().build().unwrap();
    lab.add_overlay(&Overlay::V4).unwrap();
    lab.attach(&[]).unwrap();
    let node = lab.node(0);
    let binary = xkub_tests::xkub::binary().unwrap();
    let binary = binary.to_string_lossy();
    let arguments = ["datapath", "monitor", "--output", "json"];
    let mut monitor = node
        .guest
        .spawn([&[binary.as_ref()][..], &arguments].concat())
        .unwrap();
    let overlay = Overlay::V4.address(lab.node(1));
    // Until one is shown: the programs that show packets are swapped in while the first pings pass.
    let shown = xkub_tests::wait::wait_until("a packet to be shown", PATIENCE, || {
        Ping::to(overlay).run(&node.guest)?;
        Ok(monitor.stdout().contains(
            r#""place":"egress-first","event":"translated","family":"ipv4","class":"udp""#,
        ))
    });
    shown.unwrap();
    let text = monitor.stdout();
    assert!(text.contains(r#""destinationPort":8473"#), "{text}");
    // As it goes on: from the guest address.
    assert!(text.contains(r#""source":"10.0.2.2""#), "{text}");
    monitor.signal(Signal::SIGINT).unwrap();
    assert!(monitor.wait(PATIENCE).unwrap().success().is_ok());

    // Programs that show nothing are back, and translate.
    let before = node
        .packets("egress-first", Some(Family::V4), "translated")
        .unwrap();
    assert!(
        Ping::to(overlay)
            .count(3)
            .run(&node.guest)
            .unwrap()
            .complete()
    );
    let after = node
        .packets("egress-first", Some(Family::V4), "translated")
        .unwrap();
    assert!(after >= before + 3);
}

/// `xkub datapath monitor | head` ends it, too.
#[test]
fn it_ends_when_nobody_reads_any_more() {
    let lab = Masquerade::builder().build().unwrap();
    lab.add_overlay(&Overlay::V4).unwrap();
    lab.attach(&[]).unwrap();
    let node = lab.node(0);
    let binary = xkub_tests::xkub::binary().unwrap();
    let command = format!("{} datapath monitor | head -n 1", binary.display());
    let mut monitor = node.guest.spawn(["sh", "-c", &command]).unwrap();
    let overlay = Overlay::V4.address(lab.node(1));
    xkub_tests::wait::wait_until("the end of the monitor", PATIENCE, || {
        Ping::to(overlay).run(&node.guest)?;
        Ok(!monitor.is_running()?)
    })
    .unwrap();
    assert!(monitor.wait(PATIENCE).unwrap().success().is_ok());
    assert!(
        Ping::to(overlay)
            .count(3)
            .run(&node.guest)
            .unwrap()
            .complete()
    );
}
