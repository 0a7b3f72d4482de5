//! Addresses that come, go, are shared and move.

use proptest::prelude::*;

use super::*;

fn name(name: &str) -> ServiceName {
    ServiceName { namespace: "shop".into(), name: name.into() }
}

fn service(uid: &str, called: &str, address: &str) -> Service {
    Service { uid: uid.into(), name: name(called), addresses: vec![address.parse().unwrap()] }
}

fn slice(uid: &str, called: &str, addresses: &[&str], ports: Option<&[u16]>) -> Slice {
    let mut addresses: Vec<IpAddr> = addresses.iter().map(|address| address.parse().unwrap()).collect();
    addresses.sort_unstable();
    Slice { uid: uid.into(), name: Some(name(called)), addresses, ports: ports.map(<[u16]>::to_vec) }
}

fn check(services: &Services, address: &str, time: u64, expected: Option<&str>) {
    let found = services.at(address.parse().unwrap(), time);
    assert_eq!(found.as_ref().map(|found| &*found.name), expected, "{address} at {time}");
}

#[test]
fn an_address_belongs_to_the_service_that_has_it_at_that_time() {
    let services = Services::default();
    services.begin(Kind::Service);
    services.put_service(service("1", "cart", "10.96.0.7"), 10);
    check(&services, "10.96.0.7:80", 12, None);
    services.complete(Kind::Service, 20);
    assert!(!services.is_live());
    check(&services, "10.96.0.7:80", 9, None);
    check(&services, "10.96.0.7:80", 12, Some("cart"));
    check(&services, "10.96.0.8:80", 12, None);
    services.gone(Kind::Service, "1", 30);
    services.put_service(service("2", "user", "10.96.0.7"), 40);
    check(&services, "10.96.0.7:80", 29, Some("cart"));
    check(&services, "10.96.0.7:80", 30, None);
    check(&services, "10.96.0.7:80", 41, Some("user"));
    // What is not seen again is no more; what came while no one was heard is not known.
    services.interrupt(Kind::Service, 50);
    check(&services, "10.96.0.7:80", 51, None);
    check(&services, "10.96.0.7:80", 49, Some("user"));
    services.begin(Kind::Service);
    services.complete(Kind::Service, 60);
    check(&services, "10.96.0.7:80", 61, None);
    services.sweep(70 + GRACE);
    assert_eq!((services.counts(), services.0.addresses.len()), ((0, 0, 0), 0));
}

#[test]
fn endpoints_answer_at_their_ports_and_shared_ones_have_no_name() {
    let services = Services::default();
    services.begin(Kind::Slice);
    services.complete(Kind::Slice, 0);
    services.put_slice(slice("1", "cart", &["10.0.0.1", "10.0.0.2"], Some(&[8080])), 10);
    services.put_slice(slice("2", "cart", &["10.0.0.1"], Some(&[8080, 9090])), 10);
    check(&services, "10.0.0.1:8080", 11, Some("cart"));
    check(&services, "10.0.0.1:9090", 11, Some("cart"));
    check(&services, "10.0.0.1:22", 11, None);
    services.put_slice(slice("3", "cart-canary", &["10.0.0.1"], Some(&[8080])), 20);
    check(&services, "10.0.0.1:8080", 21, None);
    check(&services, "10.0.0.1:8080", 19, Some("cart"));
    check(&services, "10.0.0.2:8080", 21, Some("cart"));
    // One endpoint goes, one comes, one stays.
    services.put_slice(slice("1", "cart", &["10.0.0.2", "10.0.0.3"], Some(&[8080])), 30);
    check(&services, "10.0.0.2:8080", 25, Some("cart"));
    check(&services, "10.0.0.2:8080", 31, Some("cart"));
    check(&services, "10.0.0.3:8080", 29, None);
    check(&services, "10.0.0.3:8080", 31, Some("cart"));
    services.put_slice(slice("4", "any", &["10.0.0.9"], None), 30);
    check(&services, "10.0.0.9:1", 31, Some("any"));
    services.put_slice(slice("4", "any", &["10.0.0.9"], Some(&[])), 40);
    check(&services, "10.0.0.9:1", 41, None);
    // A slice that lost its service names no one.
    services.put_slice(Slice { name: None, ..slice("1", "", &["10.0.0.2"], None) }, 50);
    check(&services, "10.0.0.2:8080", 51, None);
}

#[test]
fn room_is_bounded() {
    let services = Services::default();
    for nth in 0..70_u32 {
        let addresses: Vec<IpAddr> =
            (0..1000).map(|host| IpAddr::from((0x0a00_0000 + nth * 1000 + host).to_be_bytes())).collect();
        let of = Slice { uid: nth.to_string().into(), name: Some(name("cart")), addresses, ports: None };
        services.put_slice(of, 1);
    }
    assert_eq!(services.0.addresses.len(), ADDRESSES_MAX);
    assert_eq!(services.counts(), (0, 70, 70_000 - ADDRESSES_MAX as u64));
    for nth in 0..40 {
        services.put_service(service(&nth.to_string(), "cart", "10.0.0.1"), 2);
        services.gone(Kind::Service, &nth.to_string(), 3);
    }
    assert!(services.0.addresses.iter().all(|claims| claims.len() <= CLAIMS_MAX));
}

proptest! {
    /// Whatever comes, in any order: an address is that of the one slice that has it.
    #[test]
    fn the_table_says_what_the_slices_that_are_there_say(
        steps in proptest::collection::vec((0_u8..4, 0_u8..3, proptest::collection::btree_set(0_u8..6, 0..4)), 1..40),
    ) {
        let services = Services::default();
        services.begin(Kind::Slice);
        services.complete(Kind::Slice, 0);
        let mut model: HashMap<u8, (u8, Vec<u8>)> = HashMap::new();
        let mut now = 1;
        for (uid, called, hosts) in steps {
            let addresses: Vec<String> = hosts.iter().map(|host| format!("10.0.0.{host}")).collect();
            let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
            if hosts.is_empty() {
                services.gone(Kind::Slice, &uid.to_string(), now);
                model.remove(&uid);
            } else {
                services.put_slice(slice(&uid.to_string(), &called.to_string(), &addresses, Some(&[80])), now);
                model.insert(uid, (called, hosts.into_iter().collect()));
            }
            now += 1;
            for host in 0..6 {
                let mut names: Vec<u8> =
                    model.values().filter(|(_, hosts)| hosts.contains(&host)).map(|(called, _)| *called).collect();
                names.dedup();
                names.sort_unstable();
                names.dedup();
                let expected = (names.len() == 1).then(|| names[0].to_string());
                let found = services.at(SocketAddr::from(([10, 0, 0, host], 80)), now - 1);
                prop_assert_eq!(found.map(|found| found.name.to_string()), expected);
            }
        }
    }
}
