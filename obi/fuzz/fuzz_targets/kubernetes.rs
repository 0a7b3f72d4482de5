//! Kubernetes: control groups, streams of pods, names of workloads and images. No panic; what is kept is bounded.
#![no_main]

use libfuzzer_sys::fuzz_target;
use obi::capture::discover::container;
use obi::kubernetes::frame::{Frames, Prefix};
use obi::kubernetes::message::{self, PodEvent, Watched};
use obi::kubernetes::pod::image;
use obi::kubernetes::workload::workload;
use obi::kubernetes::{Pod, PodUid, Pods};

fn check(pod: Pod, pods: &Pods) {
    assert!(pod.annotations.len() <= 32 && pod.containers.len() <= 64 && pod.addresses.len() <= 8);
    assert!([&pod.name, &pod.namespace, &pod.uid, &pod.node].iter().all(|text| text.len() <= 255));
    if let Some(found) = workload(&pod) {
        assert!(
            pod.owner.as_ref().is_some_and(|owner| owner.name.starts_with(found.name))
                || pod.name.starts_with(found.name)
        );
    }
    for container in &pod.containers {
        let (name, _) = image(&container.image);
        assert!(container.image.starts_with(name));
    }
    pods.put(pod, 1);
}

fuzz_target!(|input: &[u8]| {
    let Some((first, rest)) = input.split_first() else { return };
    let found = container(rest);
    assert!([0, 64].contains(&found.id.len()));
    if let Some(uid) = found.pod {
        assert_eq!(PodUid::parse(&uid.to_string()), Some(uid));
    }
    let pods = Pods::default();
    let _ = message::list::<Pod>(rest, |pod| check(pod, &pods));
    let prefix = if first & 1 == 0 { Prefix::Length } else { Prefix::Grpc };
    let mut frames = Frames::new(prefix);
    for piece in rest.chunks(usize::from(*first) + 1) {
        frames.push(piece);
        loop {
            match frames.message() {
                Ok(Some(bytes)) => match prefix {
                    Prefix::Length => match message::watched(bytes) {
                        Ok(Watched::Put(sent)) => check(sent.object, &pods),
                        Ok(Watched::Gone(sent)) => pods.gone(&sent.object, 2),
                        _ => {}
                    },
                    Prefix::Grpc => match message::pod_event(bytes) {
                        Ok(PodEvent::Put(sent)) => check(sent.object, &pods),
                        Ok(PodEvent::Gone(sent)) => pods.gone(&sent.object, 2),
                        _ => {}
                    },
                },
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
});
