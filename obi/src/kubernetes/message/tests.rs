//! Streams that were made by Kubernetes' own messages (`tests/kubernetes/record.go`), whole, cut and damaged.

use std::fmt::Write as _;

use proptest::prelude::*;

use super::service::{Service, Slice};
use super::*;
use crate::kubernetes::frame::{Frames, Prefix};

const INITIAL: &[u8] = include_bytes!("../../../tests/kubernetes/api_initial.bin");
const CHANGES: &[u8] = include_bytes!("../../../tests/kubernetes/api_changes.bin");
const GONE: &[u8] = include_bytes!("../../../tests/kubernetes/api_gone.bin");
const LIST: &[u8] = include_bytes!("../../../tests/kubernetes/api_list.bin");
const SERVICES: &[u8] = include_bytes!("../../../tests/kubernetes/api_services.bin");
const SLICES: &[u8] = include_bytes!("../../../tests/kubernetes/api_slices.bin");
const REPORTED: &[u8] = include_bytes!("../../../tests/kubernetes/kubelet_initial.bin");
const REPORTED_CHANGES: &[u8] = include_bytes!("../../../tests/kubernetes/kubelet_changes.bin");

fn shown(sent: &Sent<Pod>) -> String {
    let Pod { name, addresses, is_ending, .. } = &sent.object;
    format!("{name} {} {} {is_ending}", sent.resource_version, addresses.len())
}

/// One line for each event.
fn events(prefix: Prefix, pieces: &[&[u8]]) -> String {
    let mut frames = Frames::new(prefix);
    let mut lines = String::new();
    for piece in pieces {
        frames.push(piece);
        while let Some(bytes) = frames.message().unwrap() {
            let line = match prefix {
                Prefix::Length => match watched::<Pod>(bytes).unwrap() {
                    Watched::Put(sent) => format!("put {}", shown(&sent)),
                    Watched::Gone(sent) => format!("gone {}", shown(&sent)),
                    Watched::Bookmark { resource_version, is_initial_end } => {
                        format!("bookmark {resource_version} {is_initial_end}")
                    }
                    Watched::Refused { code, message } => format!("refused {code} {message}"),
                    Watched::Other => "other".to_owned(),
                },
                Prefix::Grpc => match pod_event(bytes).unwrap() {
                    PodEvent::Put(sent) => format!("put {}", shown(&sent)),
                    PodEvent::Gone(sent) => format!("gone {}", shown(&sent)),
                    PodEvent::Complete => "complete".to_owned(),
                    PodEvent::Other => "other".to_owned(),
                },
            };
            writeln!(lines, "{line}").unwrap();
        }
    }
    lines
}

#[test]
fn streams_tell_the_same_wherever_they_are_cut() {
    fn check(prefix: Prefix, bytes: &[u8], expected: &str) {
        assert_eq!(events(prefix, &[bytes]), expected);
        for at in 0..=bytes.len() {
            let (before, behind) = bytes.split_at(at);
            assert_eq!(events(prefix, &[before, behind]), expected, "cut at {at}");
            // One that broke gives the beginning, and nothing else.
            assert!(expected.starts_with(&events(prefix, &[before])), "broken at {at}");
        }
    }
    let initial = "put etcd-node-a 90 0 false\nput cart-5d4f8c7b9-x2x4z 101 0 false\nbookmark 102 true\n";
    check(Prefix::Length, INITIAL, initial);
    let changes = "put cart-5d4f8c7b9-x2x4z 103 2 false\nbookmark 103 false\n\
                   put cart-5d4f8c7b9-x2x4z 104 2 true\ngone cart-5d4f8c7b9-x2x4z 104 2 true\n";
    check(Prefix::Length, CHANGES, changes);
    check(Prefix::Length, GONE, "refused 410 too old resource version: 1 (2)\n");
    let reported = "put etcd-node-a 90 0 false\nput cart-5d4f8c7b9-x2x4z 101 0 false\ncomplete\n";
    check(Prefix::Grpc, REPORTED, reported);
    let changes = "put cart-5d4f8c7b9-x2x4z 103 2 false\ngone cart-5d4f8c7b9-x2x4z  0 false\n";
    check(Prefix::Grpc, REPORTED_CHANGES, changes);
}

fn objects<T: Object>(bytes: &[u8]) -> Vec<T> {
    let mut frames = Frames::new(Prefix::Length);
    frames.push(bytes);
    let mut found = Vec::new();
    loop {
        match watched::<T>(frames.message().unwrap().unwrap()).unwrap() {
            Watched::Put(sent) => found.push(sent.object),
            Watched::Bookmark { is_initial_end: true, .. } => return found,
            other => panic!("{:?}", std::mem::discriminant(&other)),
        }
    }
}

#[test]
fn services_have_their_own_addresses() {
    let lines = objects(SERVICES).into_iter().map(|service: Service| {
        format!("{} {}/{} {:?}", service.uid, service.name.namespace, service.name.name, service.addresses)
    });
    let expected = [
        "c1 shop/cart [10.96.0.7, 192.0.2.7, 198.51.100.7, fd00:96::7]",
        "c2 shop/cart-pods []",
        "c3 shop/elsewhere []",
    ];
    assert_eq!(lines.collect::<Vec<_>>(), expected);
}

#[test]
fn slices_have_addresses_and_ports_of_a_service() {
    let lines = objects(SLICES).into_iter().map(|slice: Slice| {
        let name = slice.name.map_or("none".to_owned(), |name| format!("{}/{}", name.namespace, name.name));
        format!("{} {name} {:?} {:?}", slice.uid, slice.addresses, slice.ports)
    });
    let expected = [
        "cart-1 shop/cart [10.244.3.7, 10.244.4.8] Some([8080, 9090])",
        "any-1 shop/any [fd00::9] None",
        "names-1 shop/names [] Some([])",
        "own none [10.244.9.9] Some([])",
    ];
    assert_eq!(lines.collect::<Vec<_>>(), expected);
}

#[test]
fn a_list_comes_item_by_item() {
    let mut names = Vec::new();
    let version = list(LIST, |pod: Pod| names.push(pod.name.to_string())).unwrap();
    assert_eq!(
        (version.as_str(), &names[..]),
        ("100", &["etcd-node-a", "cart-5d4f8c7b9-x2x4z"].map(String::from)[..])
    );
    for at in 0..LIST.len() {
        // Nothing of it is anything else.
        let _ = list(&LIST[..at], |_: Pod| ());
    }
    assert!(list(b"{\"kind\":\"PodList\"}", |_: Pod| ()).is_err());
}

fn running_cart() -> Pod {
    let mut frames = Frames::new(Prefix::Length);
    frames.push(CHANGES);
    match watched(frames.message().unwrap().unwrap()).unwrap() {
        Watched::Put(sent) => sent.object,
        other => panic!("{other:?}"),
    }
}

#[test]
fn of_a_pod_everything_is_taken_that_is_wanted_and_nothing_else() {
    let pod = running_cart();
    assert_eq!((&*pod.namespace, &*pod.node), ("shop", "node-a"));
    assert_eq!(pod.key().map(|uid| uid.to_string()).as_deref(), Some("4f4f5e6e-02ab-4c1d-9a0b-0123456789ab"));
    assert_eq!(pod.owner, Some(Owner { kind: "ReplicaSet".into(), name: "cart-5d4f8c7b9".into() }));
    assert_eq!(pod.annotations, [("deployment.environment.name".into(), "production".into())]);
    let labels = [&pod.labels.instance, &pod.labels.name, &pod.labels.version, &pod.labels.template_hash];
    assert_eq!(labels.map(|label| label.to_string()), ["shop-eu", "cart", "9.9", "5d4f8c7b9"]);
    assert_eq!(pod.created, 1_790_000_000);
    let containers = pod.containers.iter().map(|c| (&*c.name, &*c.image, &c.id[..1]));
    let expected = [
        ("app", "registry.example:5000/shop/cart:1.24.3", "a"),
        ("proxy", "envoy@sha256:0123", "b"),
        ("migrate", "registry.example:5000/shop/migrate:3", "c"),
        ("debug", "busybox", "d"),
    ];
    assert_eq!(containers.collect::<Vec<_>>(), expected);
    let addresses = pod.addresses.iter().map(ToString::to_string);
    assert_eq!(addresses.collect::<Vec<_>>(), ["10.244.0.7", "fd00::7"]);
    assert!(!format!("{pod:?}").contains("hunter2"));
}

#[test]
fn a_static_pod_is_the_nodes_and_has_no_address() {
    let mut found = Vec::new();
    list(LIST, |pod: Pod| found.push(pod)).unwrap();
    let pod = &found[0];
    assert_eq!(pod.key().map(|uid| uid.to_string()).as_deref(), Some("0123456789abcdef0123456789abcdef"));
    assert!(pod.addresses.is_empty(), "it uses the node's network");
    // Another pod that says so of itself is not believed.
    let metadata = |kind: &str| RawMetadata {
        annotations: [("kubernetes.io/config.mirror".to_owned(), "0".repeat(32))].into(),
        owners: vec![RawOwner { kind: kind.to_owned(), name: "n".to_owned(), controller: true }],
        ..RawMetadata::default()
    };
    assert!(manifest(&metadata("Node")).is_some());
    assert_eq!(manifest(&metadata("ReplicaSet")), None);
}

proptest! {
    #[test]
    fn any_bytes_are_read(bytes in any::<Vec<u8>>()) {
        let _ = (pod(&bytes), watched::<Pod>(&bytes), pod_event(&bytes), list(&bytes, |_: Pod| ()));
        let _ = (watched::<Service>(&bytes), watched::<Slice>(&bytes), Slice::decode(&bytes));
    }

    #[test]
    fn a_damaged_stream_is_read(at in 0..CHANGES.len(), with in any::<u8>()) {
        let mut bytes = CHANGES.to_vec();
        bytes[at] = with;
        let mut frames = Frames::new(Prefix::Length);
        frames.push(&bytes);
        while let Ok(Some(bytes)) = frames.message() {
            let _ = (watched::<Pod>(bytes), watched::<Slice>(bytes));
        }
    }
}
