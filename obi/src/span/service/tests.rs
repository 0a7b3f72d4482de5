//! Processes as they are found, and the names they must get.

use proptest::prelude::*;

use super::*;

fn facts(executable: &str, command: &str) -> Facts {
    Facts {
        executable: executable.to_owned(),
        command: command.split('|').map(str::to_owned).collect(),
        directory: "/srv/shop".to_owned(),
        ..Facts::default()
    }
}

fn node() -> Host {
    Host { name: "node-1".to_owned(), ..Host::default() }
}

fn name_of(facts: &Facts) -> String {
    Services::new(node()).service(facts, None).name.clone()
}

#[test]
fn programs() {
    /// Arguments are separated by `|`.
    fn check(executable: &str, command: &str, expected: &str) {
        assert_eq!(name_of(&facts(executable, command)), expected, "{executable} {command}");
    }
    let python = "/usr/bin/python3.11";
    check(python, "python3|app.py", "app");
    check(python, "python3|/srv/shop/cart.py|--port|80", "cart");
    check(python, "python3|-m|http.server|8000", "http.server");
    check(python, "python3|-m|pkg.mod", "pkg.mod");
    check(python, "python3|-m|pkg.__main__", "pkg");
    check(python, "python3|-mpkg.mod", "pkg.mod");
    check(python, "python3|-Im|pkg.mod", "pkg.mod");
    check(python, "python3|-W|ignore|-X|dev|app.py", "app");
    check(python, "python3|-Wignore|-bXdev|-u|app.py", "app");
    check(python, "python3|--check-hash-based-pycs|never|app.py", "app");
    check(python, "python3|-OO|--|-odd.py", "-odd");
    check(python, "python3|-c|import x|app.py", "unknown_service:python");
    check(python, "python3|-uc|import x", "unknown_service:python");
    check(python, "python3|-", "unknown_service:python");
    check(python, "python3", "unknown_service:python");
    check(python, "python3|/srv/shop/__main__.py", "shop");
    check(python, "python3|.", "shop");
    check(python, "python|manage.py|runserver", "manage");
    check("/usr/bin/python3.13t", "python3|app.py", "app");
    check("/opt/pypy/bin/pypy3", "pypy3|app.pyz", "app");
    check(python, "/usr/bin/python3|/usr/bin/gunicorn|-w|4|-b|0.0.0.0:80|shop.wsgi:application", "shop");
    check(python, "python3|/usr/bin/gunicorn|cart:app|-b|localhost:8000", "cart");
    check(python, "python3|/usr/bin/gunicorn|--bind|localhost:8000|cart.asgi", "cart");
    check(python, "python3|/usr/bin/gunicorn|--bind|localhost:8000", "gunicorn");
    check(python, "python3|-m|uvicorn|shop.main:app|--port|80", "shop.main");
    check(python, "python3|/usr/bin/uvicorn|--factory|cart:make_app", "cart");
    check(python, "python3|/usr/bin/celery|-A|orders|worker", "orders");
    check(python, "python3|-m|celery|--app=orders.celery:app|worker", "orders.celery");
    check(python, "python3|/usr/bin/flask|--app|cart|run", "cart");
    check(python, "python3|/usr/bin/streamlit|run|board.py", "board");
    check(python, "gunicorn: worker [shop.wsgi:application]", "shop");
    check("/usr/bin/uwsgi", "uwsgi|--http|:80|--module|shop.wsgi", "shop");
    check("/usr/bin/uwsgi", "uwsgi|--ini|x.ini", "uwsgi");

    let node = "/usr/bin/node";
    check(node, "node|server.js", "server");
    check(node, "node|--require|./x.js|app.js", "app");
    check(node, "node|--require=./x.js|--max-old-space-size=100|app.mjs|x", "app");
    check(node, "node|-r|./a.js|--import|./b.mjs|--inspect|cart.ts", "cart");
    check(node, "node|/srv/cart/index.js", "cart");
    check(node, "node|/srv/cart/dist/src/index.js", "cart");
    check(node, "node|index.js", "shop");
    check(node, "node|.", "shop");
    check(node, "node|/srv/cart", "cart");
    check(node, "node|/app/node_modules/.bin/tsx|--watch|orders.ts", "orders");
    check(node, "node|-e|1", "unknown_service:nodejs");
    check(node, "node /srv/orders.js", "orders");
    check(node, "next-server (v14.1.0)", "next-server");
    check(node, "npm run start", "npm");

    let java = "/usr/lib/jvm/java-17/bin/java";
    check(java, "java|-jar|/opt/x-1.2.3.jar", "x");
    check(java, "java|-Xmx1g|-javaagent:/a.jar|-jar|shop-cart-2.0-SNAPSHOT.jar|--port|1", "shop-cart");
    check(java, "java|-jar|log4j-2-relay-1.0.jar", "log4j-2-relay");
    check(java, "java|-jar|shop-7.jar", "shop");
    check(java, "java|-jar|shop-SNAPSHOT.jar", "shop");
    check(java, "java|-jar|shop.jar", "shop");
    check(java, "java|-jar|jenkins.war", "jenkins");
    check(java, "java|-cp|a:b|-Dx=y|Main", "Main");
    check(java, "java|-classpath|a|@options|com.example.Shop|a", "com.example.Shop");
    check(java, "java|--add-opens|java.base/java.lang=ALL-UNNAMED|com.example.Shop", "com.example.Shop");
    check(java, "java|-p|mods|-m|shop.web/com.example.Web", "com.example.Web");
    check(java, "java|--module=shop.web/com.example.Web", "com.example.Web");
    check(java, "java|Server.java|80", "Server");
    check(java, "java|-version", "unknown_service:java");

    check("/usr/bin/ruby3.1", "ruby|-I|lib|-rjson|cart.rb", "cart");
    check("/usr/bin/ruby3.1", "ruby|-e|puts 1", "unknown_service:ruby");
    check("/usr/bin/ruby3.1", "ruby|/usr/bin/bundle|exec|orders.rb", "orders");
    check("/usr/bin/ruby3.1", "puma 6.4.0 (tcp://0.0.0.0:3000) [storefront]", "storefront");
    check("/usr/bin/perl", "perl|-wT|-I|lib|-MCarp|mail.pl", "mail");
    check("/usr/bin/perl", "perl|-d:Devel|mail.pl", "mail");
    check("/usr/bin/perl", "perl|/usr/bin/plackup|shop.psgi", "shop");
    check("/usr/bin/php8.2", "php|-d|a=b|-S|0.0.0.0:80|-t|public|router.php", "router");
    check("/usr/bin/php8.2", "php|-f|cart.php", "cart");
    check("/usr/bin/php8.2", "php|artisan|serve", "artisan");
    check("/usr/bin/dash", "sh|script.sh", "script");
    check("/usr/bin/bash", "/bin/bash|-eu|-o|pipefail|/opt/run-shop", "run-shop");
    check("/usr/bin/bash", "-bash", "unknown_service:bash");
    check("/usr/bin/bash", "bash|-c|curl x", "unknown_service:bash");
    check("/bin/busybox", "sh|script.sh", "script");
    check("/bin/busybox", "busybox|httpd|-f", "httpd");
    check("/usr/bin/deno", "deno|run|--allow-net|--config|d.json|shop.ts", "shop");
    check("/usr/bin/bun", "bun|run|shop.ts", "shop");
    check("/usr/bin/bun", "bun|--watch|-r|./x.ts|cart.ts", "cart");
    check("/usr/bin/dotnet", "dotnet|/app/Shop.Web.dll|--urls|x", "Shop.Web");
    check("/usr/bin/dotnet", "dotnet|exec|--depsfile|d|Shop.dll", "Shop");
    check("/usr/lib/erlang/bin/beam.smp", "beam.smp|--|-root|/x|-sname|rabbit@host|-noshell", "rabbit");
    check("/usr/lib/R/bin/exec/R", "R|--no-echo|--file=model.R|--args", "model");
    check("/usr/lib/ld-linux-x86-64.so.2", "ld.so|--library-path|/x|/opt/shop", "shop");

    check("/usr/sbin/nginx", "nginx: worker process", "nginx");
    check("/srv/bin/checkout", "./checkout|-c|x", "checkout");
    check("/nix/store/x/bin/.caddy-wrapped", "caddy", "caddy");
    check("/usr/bin/node_exporter", "node_exporter", "node_exporter");
    check("/opt/my app/the server", "x", "the server");
    check("", "", "unknown_service");
}

#[test]
fn a_better_source_wins() {
    let base = facts("/usr/bin/python3.11", "python3|app.py");
    let check = |change: &dyn Fn(&mut Facts), name: &str, namespace: &str| {
        let mut facts = base.clone();
        change(&mut facts);
        let service = Services::new(node()).service(&facts, None);
        assert_eq!((service.name.as_str(), service.namespace.as_str()), (name, namespace), "{facts:?}");
    };
    check(&|_| {}, "app", "");
    check(&|facts| facts.cgroup = "/system.slice/shop.service".to_owned(), "shop", "");
    check(&|facts| facts.cgroup = "/system.slice/ssh.service".to_owned(), "app", "");
    let pod = |facts: &mut Facts| {
        facts.cgroup = "/system.slice/kubelet.service/kubepods/pod1/2".to_owned();
        facts.kubernetes = true;
        facts.host_name = "cart-5d4f8c7b9-x2x4z".to_owned();
        facts.pod_namespace = "prod".to_owned();
    };
    check(&pod, "cart", "prod");
    let on_node_network = |facts: &mut Facts| {
        pod(facts);
        facts.host_name = "node-1".to_owned();
    };
    check(&on_node_network, "app", "prod");
    let with_attributes = |facts: &mut Facts| {
        pod(facts);
        facts.otel_resource_attributes = "service.name=basket,service.namespace=eu".to_owned();
    };
    check(&with_attributes, "basket", "eu");
    let with_name = |facts: &mut Facts| {
        with_attributes(facts);
        facts.otel_service_name = "trolley".to_owned();
    };
    check(&with_name, "trolley", "eu");
    check(&|facts| facts.otel_service_name = "  ".to_owned(), "app", "");
    check(&|facts| facts.otel_service_name = "a\nb".to_owned(), "a\u{fffd}b", "");
    check(&|facts| facts.otel_service_name = "é".repeat(1000), &"é".repeat(127), "");
}

fn texts(resource: &crate::span::Resource) -> Vec<(String, String)> {
    resource.iter().map(|(name, value)| (name.to_owned(), value.to_string())).collect()
}

fn pairs<const N: usize>(expected: [(&str, &str); N]) -> Vec<(String, String)> {
    expected.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec()
}

/// A machine that is always the same.
fn machine() -> Host {
    Host {
        name: "node-1".to_owned(),
        id: "fdbf79e8af94cb7f9e8df36789187052".to_owned(),
        arch: "amd64",
        booted: 1_700_000_000_000_000_000,
        booted_id: "b".to_owned(),
    }
}

#[test]
fn attributes_describe_the_service() {
    let mut facts = facts("/usr/bin/python3.11", "python3|app.py");
    facts.otel_resource_attributes = "team=pay%20ments,service.version=1.2,service.name=x,host.name=h,\
        telemetry.sdk.name=mine,service.instance.id=i,k8s.pod.name=p,deployment.environment.name=prod"
        .to_owned();
    let service = Services::new(machine()).service(&facts, None);
    let expected = [
        // Its own word comes first, in the order of names.
        ("deployment.environment.name", "prod"),
        ("host.name", "h"),
        ("service.version", "1.2"),
        ("team", "pay ments"),
        ("process.executable.name", "python3.11"),
        ("process.runtime.name", "cpython"),
        ("process.runtime.version", "3.11"),
        ("telemetry.sdk.language", "python"),
        ("telemetry.sdk.name", "obi"),
        ("telemetry.sdk.version", env!("CARGO_PKG_VERSION")),
        ("host.id", "fdbf79e8af94cb7f9e8df36789187052"),
        ("host.arch", "amd64"),
        ("os.type", "linux"),
        ("service.instance.id", "ID"),
    ];
    let mut found = texts(&service.attributes);
    let id = std::mem::replace(&mut found.last_mut().unwrap().1, "ID".to_owned());
    assert_eq!(found, pairs(expected));
    assert_eq!(uuid::Uuid::parse_str(&id).unwrap().get_version_num(), 5);
}

#[test]
fn attributes_describe_the_instance() {
    let mut services = Services::new(machine());
    let mut particulars = Particulars {
        executable: "/srv/cart".into(),
        container: crate::capture::discover::Container {
            id: "c0ffee".to_owned(),
            runtime: "docker",
            pod: None,
        },
        otel_resource_attributes: "team=x,process.pid=7,k8s.container.name=main".to_owned(),
        host_name: "cart-5d4f8c7b9-x2x4z".to_owned(),
        pod_namespace: "shop".to_owned(),
    };
    let id = |instance: &Instance| instance.attributes.get("service.instance.id").unwrap().to_owned();
    let instance = services.instance(42, Some(12_345), &particulars);
    let expected = [
        ("process.pid", "42"),
        ("k8s.container.name", "main"),
        ("service.instance.id", &id(&instance)),
        ("process.creation.time", "2023-11-14T22:15:23.450Z"),
        ("process.executable.path", "/srv/cart"),
        ("container.id", "c0ffee"),
        ("container.runtime.name", "docker"),
        ("k8s.pod.name", "cart-5d4f8c7b9-x2x4z"),
    ];
    assert_eq!(texts(&instance.attributes), pairs(expected));
    // The id is that of the process and stays; every process has its own.
    assert_eq!(id(&services.instance(42, Some(12_345), &particulars)), id(&instance));
    assert_ne!(id(&services.instance(42, Some(12_346), &particulars)), id(&instance));
    assert_ne!(id(&services.instance(43, Some(12_345), &particulars)), id(&instance));
    // Unless the process says which it is.
    particulars.otel_resource_attributes = "service.instance.id=mine".to_owned();
    assert_eq!(id(&services.instance(42, None, &particulars)), "mine");
}

#[test]
fn nothing_of_an_environment_but_what_is_named_is_kept() {
    let service = Services::new(machine()).service(&facts("/srv/cart", "cart|--password=hunter2"), None);
    assert!(!format!("{service:?}").contains("hunter2"));
}

#[test]
fn values_that_are_always_new_do_not_use_up_the_services() {
    let mut services = Services::with_limit(Host::default(), 100);
    let mut last = None;
    for nth in 0..200 {
        let mut facts = facts("/bin/job", "job");
        facts.otel_resource_attributes = format!("run.id={nth}");
        last = Some(services.service(&facts, None));
    }
    let last = last.unwrap();
    assert_eq!((last.name.as_str(), last.id), ("job", 2));
    assert_eq!(last.attributes.get("run.id"), Some("15"), "those of the last variant");
    assert_eq!(services.service(&facts("/bin/other", "other"), None).name, "other");
}

#[test]
fn a_pods_owner_is_an_attribute_once() {
    let mut facts = facts("/srv/cart", "cart");
    facts.kubernetes = true;
    facts.host_name = "cart-5d4f8c7b9-x2x4z".to_owned();
    for (attributes, expected) in [("", "cart"), ("k8s.deployment.name=basket", "basket")] {
        facts.otel_resource_attributes = attributes.to_owned();
        let service = Services::new(Host::default()).service(&facts, None);
        let found = service.attributes.iter().filter(|(key, _)| *key == "k8s.deployment.name");
        assert_eq!(found.map(|(_, value)| value.to_string()).collect::<Vec<_>>(), [expected]);
    }
}

#[test]
fn an_interpreter_without_a_script_is_its_parents_worker() {
    let mut services = Services::new(Host::default());
    let python = "/usr/bin/python3.11";
    let parent = services.service(&facts(python, "python3|cart.py"), None);
    let worker = facts(python, "python3|-c|from multiprocessing.spawn import spawn_main");
    assert_eq!(services.service(&worker, Some(&parent)).name, "cart");
    assert_eq!(services.service(&worker, None).name, "unknown_service:python");
    let named = facts(python, "python3|orders.py");
    assert_eq!(services.service(&named, Some(&parent)).name, "orders");
}

#[test]
fn equal_services_are_shared_and_numbers_are_dense() {
    let mut services = Services::with_limit(Host::default(), 3);
    let a = services.service(&facts("/bin/a", "a"), None);
    assert!(Arc::ptr_eq(&a, &services.service(&facts("/bin/a", "a|other"), None)));
    let mut versioned = facts("/bin/a", "a");
    versioned.otel_resource_attributes = "service.version=2".to_owned();
    let other_version = services.service(&versioned, None);
    assert!(!Arc::ptr_eq(&a, &other_version));
    let b = services.service(&facts("/bin/b", "b"), None);
    assert_eq!([a.id, other_version.id, b.id], [2, 2, 3]);
    for late in ["c", "d"] {
        let service = services.service(&facts(late, late), None);
        assert_eq!((service.name.as_str(), service.id), ("_OTHER", 0));
    }
    assert!(Arc::ptr_eq(&a, &services.service(&facts("/bin/a", "a"), None)), "known ones stay");
    assert_eq!(services.count(), 4);
}

proptest! {
    #[test]
    fn anything_has_a_name_and_nobody_is_called_python(
        executable in "(/usr/bin/)?(python3|java|node|ruby|perl|php|bash|busybox|deno|dotnet|beam\\.smp|[a-zé. ]{0,9})",
        command in proptest::collection::vec("-{0,2}[a-zA-Z=:./@\\[\\] é-]{0,12}", 0..8),
    ) {
        let found = Facts { executable, command, directory: "/".to_owned(), ..Facts::default() };
        let name = name_of(&found);
        prop_assert!(!name.is_empty() && name.len() <= NAME_BYTES);
        let reported = found.command.iter().any(|argument| argument.contains(&name));
        prop_assert!(reported || !["python3", "java", "node"].contains(&name.as_str()), "{found:?}");
    }
}

/// A pod of a Deployment with everything that may name it.
fn named_pod() -> Pod {
    use crate::kubernetes::pod::{Container, Labels, Owner};
    Pod {
        uid: "4f4f5e6e-02ab-4c1d-9a0b-0123456789ab".into(),
        name: "cart-5d4f8c7b9-x2x4z".into(),
        namespace: "shop".into(),
        node: "node-7".into(),
        owner: Some(Owner { kind: "ReplicaSet".into(), name: "cart-5d4f8c7b9".into() }),
        is_whole: true,
        labels: Labels {
            instance: "release".into(),
            name: "basket".into(),
            version: "9".into(),
            template_hash: "5d4f8c7b9".into(),
            ..Labels::default()
        },
        containers: vec![Container {
            name: "app".into(),
            image: "r.example:5000/cart:1.2@sha256:ab".into(),
            id: "c0ffee".into(),
        }],
        ..Pod::default()
    }
}

fn in_pod(facts: Facts) -> Facts {
    let pod = crate::kubernetes::PodUid::parse(&named_pod().uid);
    let container = crate::capture::discover::Container { id: "c0ffee".to_owned(), runtime: "", pod };
    Facts { container, kubernetes: true, host_name: "other-name-0".to_owned(), ..facts }
}

fn services_with(pod: Pod, config: &config::Kubernetes) -> Services {
    let pods = Pods::default();
    pods.complete(0);
    pods.put(pod, 1);
    Services::new(machine()).with_pods(pods, config)
}

#[test]
fn a_pod_names_its_processes_in_the_order_of_the_conventions() {
    #[track_caller]
    fn check(
        change: impl FnOnce(&mut Facts, &mut Pod, &mut config::Kubernetes),
        name: &str,
        namespace: &str,
    ) {
        let (mut facts, mut pod) = (in_pod(facts("/srv/app", "app")), named_pod());
        let mut config = config::Kubernetes::default();
        change(&mut facts, &mut pod, &mut config);
        let service = services_with(pod, &config).service(&facts, None);
        assert_eq!((service.name.as_str(), service.namespace.as_str()), (name, namespace));
    }
    fn annotate(pod: &mut Pod, pairs: &[(&str, &str)]) {
        pod.annotations = pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
    }
    check(|_, _, _| {}, "cart", "shop");
    check(|_, pod, _| pod.labels.template_hash = "".into(), "cart-5d4f8c7b9", "shop");
    check(|_, pod, _| pod.owner = None, "cart-5d4f8c7b9-x2x4z", "shop");
    check(|_, _, config| config.use_labels = true, "release", "shop");
    check(
        |_, pod, config| {
            config.use_labels = true;
            pod.labels.instance = "".into();
        },
        "basket",
        "shop",
    );
    check(
        |_, pod, config| {
            config.use_labels = true;
            annotate(pod, &[("service.name", "trolley"), ("service.namespace", "eu")]);
        },
        "trolley",
        "eu",
    );
    check(
        |facts, pod, _| {
            annotate(pod, &[("service.name", "trolley")]);
            facts.otel_resource_attributes = "service.name=own,service.namespace=mine".to_owned();
        },
        "own",
        "mine",
    );
    check(|facts, _, _| facts.otel_service_name = "env".to_owned(), "env", "shop");
    // Of a pod that is known by name only, the shape of the name decides.
    check(|_, pod, _| (pod.is_whole, pod.owner) = (false, None), "cart", "shop");
    // What a user has written is bounded, and markup stays what it is: text.
    check(|_, pod, _| annotate(pod, &[("service.name", "<b>\u{7}x</b>")]), "<b>\u{fffd}x</b>", "shop");
    check(|_, pod, _| annotate(pod, &[("service.name", " ")]), "cart", "shop");
    check(|_, pod, _| annotate(pod, &[("service.name", &"x".repeat(64 << 10))]), &"x".repeat(255), "shop");
}

#[test]
fn a_pod_describes_its_services_and_instances() {
    let mut pod = named_pod();
    pod.annotations = vec![
        ("deployment.environment.name".into(), "prod".into()),
        ("k8s.pod.uid".into(), "lie".into()),
        ("service.name".into(), "trolley".into()),
        ("telemetry.sdk.name".into(), "lie".into()),
    ];
    let config = config::Kubernetes { cluster: "eu-1".to_owned(), ..config::Kubernetes::default() };
    let mut services = services_with(pod, &config);
    let found = in_pod(facts("/srv/app", "app"));
    let service = services.service(&found, None);
    let particulars = Particulars { container: found.container.clone(), ..Particulars::default() };
    let instance = services.instance(42, Some(1), &particulars);
    #[track_caller]
    fn check(resource: &crate::span::Resource, expected: &[(&str, &str)]) {
        for (name, value) in expected {
            assert_eq!(
                resource.get(name),
                Some(*value).filter(|value| !value.is_empty()),
                "{name}: {resource:?}"
            );
        }
    }
    let of_service = [
        ("k8s.namespace.name", "shop"),
        ("k8s.deployment.name", "cart"),
        ("k8s.node.name", "node-7"),
        ("k8s.cluster.name", "eu-1"),
        ("deployment.environment.name", "prod"),
        ("telemetry.sdk.name", "obi"),
        // They would make a service of every rollout.
        ("k8s.replicaset.name", ""),
        ("k8s.pod.name", ""),
        ("k8s.pod.uid", ""),
        ("service.version", ""),
    ];
    check(&service.attributes, &of_service);
    let of_instance = [
        ("k8s.pod.name", "cart-5d4f8c7b9-x2x4z"),
        ("k8s.pod.uid", "4f4f5e6e-02ab-4c1d-9a0b-0123456789ab"),
        ("k8s.replicaset.name", "cart-5d4f8c7b9"),
        ("k8s.container.name", "app"),
        ("container.id", "c0ffee"),
        ("container.image.name", "r.example:5000/cart"),
        ("service.version", "1.2@sha256:ab"),
        ("service.instance.id", "shop.cart-5d4f8c7b9-x2x4z.app"),
    ];
    check(&instance.attributes, &of_instance);
    // A pod that no source has sent is counted, and waited for once.
    let unknown = services.service(&Facts { container: Default::default(), ..found.clone() }, None);
    assert_eq!(unknown.name, "other-name", "by its host name");
}

/// Annotations may say which service a pod is of, so its spans may join the series of another one. They never say which
/// pod it is, and never what the other one is.
#[test]
fn a_pod_that_claims_the_name_of_another_keeps_its_own_place_and_the_other_its_name() {
    let mut impostor = named_pod();
    impostor.uid = "99999999-02ab-4c1d-9a0b-0123456789ab".into();
    impostor.name = "miner-7f9c6d5b4-abcde".into();
    impostor.namespace = "attic".into();
    impostor.owner =
        Some(crate::kubernetes::pod::Owner { kind: "ReplicaSet".into(), name: "miner-7f9c6d5b4".into() });
    impostor.labels.template_hash = "7f9c6d5b4".into();
    impostor.containers[0].id = "beef".into();
    let claims = [
        ("service.name", "cart"),
        ("service.namespace", "shop"),
        ("k8s.namespace.name", "shop"),
        ("k8s.deployment.name", "cart"),
        ("k8s.pod.name", "cart-5d4f8c7b9-x2x4z"),
        ("k8s.pod.uid", "4f4f5e6e-02ab-4c1d-9a0b-0123456789ab"),
        ("container.id", "c0ffee"),
        ("host.name", "lie"),
    ];
    impostor.annotations = claims.map(|(key, value)| (key.into(), value.into())).to_vec();
    let (uid, pods) = (crate::kubernetes::PodUid::parse(&impostor.uid), Pods::default());
    pods.complete(0);
    pods.put(named_pod(), 1);
    let mut services = Services::new(machine()).with_pods(pods.clone(), &config::Kubernetes::default());
    let own = in_pod(facts("/srv/app", "app"));
    let before = services.service(&own, None);
    pods.put(impostor, 2);
    let mut foreign = own.clone();
    foreign.container = crate::capture::discover::Container { id: "beef".to_owned(), runtime: "", pod: uid };
    let claimed = services.service(&foreign, None);
    let after = services.service(&own, None);
    assert_eq!((claimed.name.as_str(), claimed.namespace.as_str()), ("cart", "shop"), "that is its to say");
    assert!(Arc::ptr_eq(&before, &after), "{after:?}");
    let mut instance = |pid, facts: &Facts| {
        let container = facts.container.clone();
        services.instance(pid, Some(1), &Particulars { container, ..Particulars::default() })
    };
    let (instance_of_claimed, instance_of_own) = (instance(1, &foreign), instance(2, &own));
    let check = |resource: &crate::span::Resource, name: &str, expected: &str| {
        assert_eq!(resource.get(name), Some(expected), "{name}: {resource:?}");
    };
    for (resource, [namespace, deployment]) in
        [(&claimed.attributes, ["attic", "miner"]), (&after.attributes, ["shop", "cart"])]
    {
        check(resource, "k8s.namespace.name", namespace);
        check(resource, "k8s.deployment.name", deployment);
        check(resource, "host.name", &machine().name);
    }
    for (resource, [pod, uid, container]) in [
        (
            &instance_of_claimed.attributes,
            ["miner-7f9c6d5b4-abcde", "99999999-02ab-4c1d-9a0b-0123456789ab", "beef"],
        ),
        (
            &instance_of_own.attributes,
            ["cart-5d4f8c7b9-x2x4z", "4f4f5e6e-02ab-4c1d-9a0b-0123456789ab", "c0ffee"],
        ),
    ] {
        check(resource, "k8s.pod.name", pod);
        check(resource, "k8s.pod.uid", uid);
        check(resource, "container.id", container);
    }
}

#[test]
fn a_container_without_a_uid_is_found_by_its_id() {
    let mut found = in_pod(facts("/srv/app", "app"));
    found.container.pod = None;
    let service = services_with(named_pod(), &config::Kubernetes::default()).service(&found, None);
    assert_eq!(service.name, "cart");
}
