//! Pods that come, change, move and go.

use super::*;

fn uid(nth: u32) -> PodUid {
    PodUid::parse(&format!("00000000-0000-0000-0000-{nth:012x}")).unwrap()
}

fn pod(nth: u32, address: &str) -> Pod {
    let addresses = address.parse().into_iter().collect();
    let (uid, name) = (uid(nth).to_string().into(), format!("pod-{nth}").into());
    Pod { uid, name, is_whole: true, addresses, ..Pod::default() }
}

fn name_at(pods: &Pods, time: u64) -> Option<String> {
    pods.at("10.0.0.1".parse().unwrap(), time).map(|pod| pod.name.to_string())
}

#[track_caller]
fn check(pods: &Pods, times: &[(u64, &str)]) {
    for (time, name) in times {
        assert_eq!(name_at(pods, *time).as_deref().unwrap_or(""), *name, "at {time}");
    }
}

#[test]
fn an_address_that_moves_is_nobodys_in_between() {
    let pods = Pods::default();
    pods.begin();
    pods.put(pod(1, "10.0.0.1"), 10);
    pods.complete(11);
    check(&pods, &[(9, ""), (10, "pod-1"), (1000, "pod-1")]);
    pods.gone(&pod(1, ""), 20);
    pods.put(pod(2, "10.0.0.1"), 30);
    check(&pods, &[(19, "pod-1"), (20, ""), (29, ""), (30, "pod-2")]);
}

#[test]
fn news_that_comes_late_names_no_one_wrongly() {
    let pods = Pods::default();
    pods.complete(0);
    pods.put(pod(1, "10.0.0.1"), 10);
    pods.put(pod(1, "10.0.0.1"), 15);
    // The other one has it already; when the first one lost it is not known.
    pods.put(pod(2, "10.0.0.1"), 30);
    check(&pods, &[(14, "pod-1"), (15, ""), (29, ""), (30, "pod-2")]);
    // Late news of the first one's end does not take it from the second.
    pods.gone(&pod(1, ""), 40);
    check(&pods, &[(14, "pod-1"), (50, "pod-2")]);
}

#[test]
fn a_pod_that_is_about_to_end_has_no_address() {
    let pods = Pods::default();
    pods.complete(0);
    pods.put(pod(1, "10.0.0.1"), 10);
    pods.put(Pod { is_ending: true, ..pod(1, "10.0.0.1") }, 20);
    check(&pods, &[(19, "pod-1"), (20, "")]);
    assert!(pods.get(uid(1)).is_some());
}

#[test]
fn what_is_not_heard_is_not_claimed() {
    let pods = Pods::default();
    pods.put(pod(1, "10.0.0.1"), 10);
    check(&pods, &[(10, "")]);
    pods.complete(11);
    assert!(pods.is_live());
    pods.interrupt(20);
    pods.interrupt(30);
    assert!(!pods.is_live());
    check(&pods, &[(19, "pod-1"), (20, ""), (25, "")]);
    // The name stays: it goes by the UID.
    assert_eq!(&*pods.get(uid(1)).unwrap().name, "pod-1");
    // After a stream that sent all again, a pod that is no more has ended.
    pods.begin();
    pods.put(pod(2, "10.0.0.2"), 40);
    pods.complete(41);
    check(&pods, &[(42, "")]);
    assert_eq!((pods.view().pods, pods.view().ended), (1, 1));
    assert!(pods.get(uid(1)).is_some());
    pods.sweep(41 + GRACE - 1);
    assert!(pods.get(uid(1)).is_some());
    pods.sweep(41 + GRACE);
    assert!(pods.get(uid(1)).is_none() && pods.get(uid(2)).is_some());
}

#[test]
fn only_what_is_new_is_reported() {
    let pods = Pods::default();
    pods.put(pod(1, ""), 1);
    assert_eq!(pods.take_changed(), HashSet::from([uid(1)]));
    pods.put(pod(1, ""), 2);
    assert_eq!(pods.take_changed(), HashSet::new());
    // A name alone does not replace more, but more replaces it.
    pods.put(Pod { is_whole: false, ..pod(1, "") }, 3);
    assert!(pods.get(uid(1)).unwrap().is_whole && pods.take_changed().is_empty());
    pods.put(Pod { is_whole: false, ..pod(2, "") }, 3);
    pods.put(pod(2, ""), 4);
    assert!(pods.get(uid(2)).unwrap().is_whole);
}

#[test]
fn a_container_leads_to_its_pod() {
    let pods = Pods::default();
    let mut pod = pod(1, "");
    pod.add_container("app", "");
    pod.add_container("pending", "");
    pod.identify("app", "containerd://c0ffee");
    pods.put(pod, 1);
    assert_eq!(pods.of_container("c0ffee").map(|pod| pod.name.to_string()).as_deref(), Some("pod-1"));
    assert!(pods.of_container("other").is_none());
    assert!(pods.of_container("").is_none(), "a process outside of containers is in no pod");
}

#[test]
fn a_static_pod_goes_by_the_hash_of_its_manifest() {
    let hash = PodUid::parse("0123456789abcdef0123456789abcdef").unwrap();
    let pods = Pods::default();
    let copy = Pod { manifest: Some(hash), ..pod(1, "") };
    pods.put(copy.clone(), 1);
    assert_eq!(pods.get(hash).map(|pod| pod.name.to_string()).as_deref(), Some("pod-1"));
    assert!(pods.get(uid(1)).is_none());
    // The end of it may be reported by UID alone.
    pods.gone(&pod(1, ""), 2);
    assert_eq!(pods.view().ended, 1);
}

#[test]
fn too_many_are_refused_and_ended_ones_give_way() {
    let pods = Pods::default();
    let n = u32::try_from(PODS_MAX).unwrap();
    for nth in 0..n + 10 {
        pods.put(pod(nth, ""), 1);
    }
    assert_eq!((pods.view().pods, pods.view().refused), (PODS_MAX, 10));
    pods.gone(&pod(3, ""), 2);
    pods.put(pod(n + 20, ""), 3);
    assert!(pods.get(uid(3)).is_none() && pods.get(uid(n + 20)).is_some());
}

#[test]
fn a_pod_is_waited_for_only_while_it_may_come() {
    let pods = Pods::default();
    let begun = std::time::Instant::now();
    assert!(pods.wait_for(uid(1), Duration::from_secs(60)).is_none());
    assert!(begun.elapsed() < Duration::from_secs(30), "no stream is heard");
    pods.complete(0);
    assert!(pods.wait_for(uid(1), Duration::from_millis(5)).is_none());
    let teller = pods.clone();
    let telling = std::thread::spawn(move || teller.put(pod(1, ""), 1));
    assert!(pods.wait_for(uid(1), Duration::from_secs(60)).is_some());
    telling.join().unwrap();
    assert!(pods.wait_until_live(Duration::ZERO));
}
