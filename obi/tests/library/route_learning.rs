//! Routes learned from generated traffic, scored against the routes that it was generated from.
//!
//! In: interfaces that are random per seed: words, numbers, UUIDs, slugs, hashes, mixed keys, names, dates, versions;
//! random popularity of routes and of values; noise of scanners. Out: precision, recall and accuracy, printed, with a
//! floor; failure when the order of requests, a restart or hostile paths change what must not change.
//!
//! Precision: of the routes shown in the second half, how many stand for one true route and are all of it. Recall: of
//! the true routes asked for in the second half, how many have one route of their own. Accuracy: requests of the second
//! half whose route groups exactly the requests of their true route.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt::Write;
use std::sync::Arc;

use obi::span::route::{Request, Routes};
use obi::span::{Service, SpanKind};

const SEEDS: u64 = 40;
const REQUESTS: usize = 20_000;
const LIMIT: usize = 1_000;

/// What a variable's values look like.
#[derive(Debug, Clone, Copy)]
enum Values {
    Number,
    Uuid,
    Hex,
    Slug,
    Mixed,
    Name,
    Date,
}

#[derive(Debug, Clone)]
enum Part {
    Word(String),
    Variable { values: Values, population: u64, zipf: bool, seed: u64 },
}

#[derive(Debug)]
struct Route {
    method: &'static str,
    parts: Vec<Part>,
}

struct Interface {
    routes: Vec<Route>,
    /// Cumulated popularity.
    popularity: Vec<f64>,
}

/// A request and the number of its true route; `None` for noise.
struct Sent {
    method: &'static str,
    path: String,
    truth: Option<usize>,
}

fn word(rng: &mut fastrand::Rng) -> String {
    const ONSETS: [&str; 18] =
        ["b", "c", "d", "f", "g", "h", "l", "m", "n", "p", "r", "s", "t", "v", "st", "tr", "pl", "ch"];
    const VOWELS: [&str; 7] = ["a", "e", "i", "o", "u", "ea", "ou"];
    (0..rng.usize(2..4)).fold(String::new(), |mut text, _| {
        text.push_str(ONSETS[rng.usize(..ONSETS.len())]);
        text.push_str(VOWELS[rng.usize(..VOWELS.len())]);
        text
    })
}

fn resource(rng: &mut fastrand::Rng) -> String {
    match rng.u8(..10) {
        0..6 => format!("{}s", word(rng)),
        6 => format!("{}-{}s", word(rng), word(rng)),
        7 => format!("{}_{}", word(rng), word(rng)),
        _ => word(rng),
    }
}

impl Values {
    fn any(rng: &mut fastrand::Rng) -> Self {
        [Self::Number, Self::Number, Self::Uuid, Self::Hex, Self::Slug, Self::Mixed, Self::Name, Self::Date]
            [rng.usize(..8)]
    }

    /// The `nth` value: always the same one.
    fn write(self, nth: u64, seed: u64, out: &mut String) {
        let mut rng = fastrand::Rng::with_seed(seed.wrapping_mul(0x9e37_79b9).wrapping_add(nth));
        rng.u64(..);
        match self {
            Self::Number => write!(out, "{}", nth * 7 + seed % 1000),
            Self::Uuid => {
                let n = rng.u128(..);
                write!(
                    out,
                    "{:08x}-{:04x}-4{:03x}-a{:03x}-{:012x}",
                    n >> 96,
                    (n >> 80) & 0xffff,
                    (n >> 64) & 0xfff,
                    (n >> 48) & 0xfff,
                    n & 0xffff_ffff_ffff
                )
            }
            Self::Hex => write!(
                out,
                "{:0width$x}",
                rng.u64(..) >> (64 - 4 * (8 + seed % 8)),
                width = 8 + (seed % 8) as usize
            ),
            Self::Slug => {
                let words: Vec<_> = (0..rng.usize(1..5)).map(|_| word(&mut rng)).collect();
                write!(out, "{}", words.join("-"))
            }
            Self::Mixed => {
                let prefix = ["", "", "ord_", "SKU-"][(seed % 4) as usize];
                out.push_str(prefix);
                (0..6 + seed % 5).for_each(|_| out.push(rng.alphanumeric().to_ascii_lowercase()));
                Ok(())
            }
            Self::Name => write!(out, "{}", word(&mut rng) + &word(&mut rng)),
            Self::Date => write!(out, "20{:02}-{:02}-{:02}", rng.u8(10..30), rng.u8(1..13), rng.u8(1..29)),
        }
        .expect("writing to a string cannot fail");
    }
}

impl Interface {
    fn new(rng: &mut fastrand::Rng) -> Self {
        let bases: [&[&str]; 6] =
            [&[], &["api"], &["api", "v1"], &["v2"], &["rest", "v1beta1"], &["api", "v3", "admin"]];
        let base: Vec<Part> =
            bases[rng.usize(..6)].iter().map(|word| Part::Word((*word).to_owned())).collect();
        let mut routes = Vec::new();
        let n_resources = rng.usize(3..25);
        let names: BTreeSet<String> = (0..n_resources).map(|_| resource(rng)).collect();
        for name in names {
            let mut path = base.clone();
            path.push(Part::Word(name));
            Self::collection(&path, 0, rng, &mut routes);
        }
        for health in ["/healthz", "/metrics"] {
            routes.push(Route { method: "GET", parts: vec![Part::Word(health[1..].to_owned())] });
        }
        let mut sum = 0.0;
        let steep = rng.f64() * 1.2;
        let mut ranks: Vec<usize> = (0..routes.len()).collect();
        rng.shuffle(&mut ranks);
        let popularity = ranks.iter().map(|rank| {
            sum += 1.0 / ((rank + 1) as f64).powf(steep);
            sum
        });
        Self { popularity: popularity.collect(), routes }
    }

    /// `/things`, `/things/{id}`, actions, and perhaps collections below.
    fn collection(path: &[Part], depth: usize, rng: &mut fastrand::Rng, routes: &mut Vec<Route>) {
        let with = |path: &[Part], part: Part| path.iter().cloned().chain([part]).collect::<Vec<_>>();
        let mut add = |method, parts: &[Part]| routes.push(Route { method, parts: parts.to_vec() });
        add("GET", path);
        if rng.bool() {
            add("POST", path);
        }
        let population = 10f64.powf(1.7 + 3.0 * rng.f64()) as u64;
        let variable = Part::Variable {
            values: Values::any(rng),
            population,
            zipf: rng.bool(),
            seed: rng.u64(..1 << 40),
        };
        let item = with(path, variable);
        add("GET", &item);
        for method in ["PUT", "DELETE"] {
            if rng.u8(..3) == 0 {
                add(method, &item);
            }
        }
        if rng.u8(..3) == 0 {
            let name = if rng.bool() { "search".to_owned() } else { word(rng) };
            add("GET", &with(path, Part::Word(name)));
        }
        let mut used = HashSet::new();
        for _ in 0..rng.usize(..3) {
            let name = word(rng);
            if used.insert(name.clone()) {
                add("POST", &with(&item, Part::Word(name)));
            }
        }
        if depth < 2 && rng.u8(..3) == 0 {
            let name = resource(rng);
            if used.insert(name.clone()) {
                Self::collection(&with(&item, Part::Word(name)), depth + 1, rng, routes);
            }
        }
    }

    fn send(&self, rng: &mut fastrand::Rng) -> Sent {
        if rng.u8(..50) == 0 {
            return Sent { method: "GET", path: format!("/{}/{}.php", word(rng), word(rng)), truth: None };
        }
        let total = self.popularity.last().copied().unwrap_or(0.0);
        let at = rng.f64() * total;
        let truth = self.popularity.partition_point(|sum| *sum <= at).min(self.routes.len() - 1);
        let route = &self.routes[truth];
        let mut path = String::new();
        for part in &route.parts {
            path.push('/');
            match part {
                Part::Word(word) => path.push_str(word),
                Part::Variable { values, population, zipf, seed } => {
                    // Popularity that falls with the rank, or none.
                    let nth = if *zipf {
                        (*population as f64).powf(rng.f64()) as u64 - 1
                    } else {
                        rng.u64(..*population)
                    };
                    values.write(nth, *seed, &mut path);
                }
            }
        }
        Sent { method: route.method, path, truth: Some(truth) }
    }
}

fn service(id: u32) -> Service {
    Service { name: format!("service-{id}"), id, ..Service::default() }
}

fn ask(routes: &mut Routes, service: &Service, sent: &Sent) -> Arc<str> {
    let status = Some(if sent.truth.is_some() { 200 } else { 404 });
    let request = Request { service, side: SpanKind::Server, method: sent.method, path: &sent.path, status };
    let mut route = Arc::from("");
    routes.assign(request, &mut route);
    route
}

#[derive(Debug, Default, Clone, Copy)]
struct Score {
    precision: f64,
    recall: f64,
    accuracy: f64,
    n_true: usize,
    n_shown: usize,
}

fn score(interface: &Interface, requests: &[Sent]) -> (Score, Vec<String>) {
    let (mut routes, service) = (Routes::new(LIMIT), service(1));
    let (first, second) = requests.split_at(requests.len() / 2);
    first.iter().for_each(|sent| drop(ask(&mut routes, &service, sent)));
    let mut shown = BTreeMap::<(&str, Arc<str>), BTreeMap<usize, usize>>::new();
    let mut truths = BTreeMap::<usize, BTreeMap<Arc<str>, usize>>::new();
    for sent in second {
        let route = ask(&mut routes, &service, sent);
        let Some(truth) = sent.truth else {
            assert!(route.is_empty() || !route.contains(".php"), "noise made the route {route}");
            continue;
        };
        *shown.entry((sent.method, Arc::clone(&route))).or_default().entry(truth).or_default() += 1;
        *truths.entry(truth).or_default().entry(route).or_default() += 1;
    }
    let exact = |truth: &usize| {
        let routes = &truths[truth];
        let key =
            (interface.routes[*truth].method, Arc::clone(routes.keys().next().expect("it was asked for")));
        routes.len() == 1 && shown[&key].len() == 1
    };
    let right: Vec<&usize> = truths.keys().filter(|truth| exact(truth)).collect();
    let n_right: usize = right.iter().flat_map(|truth| truths[truth].values()).sum();
    let n_requests: usize = truths.values().flat_map(BTreeMap::values).sum();
    let wrong = truths.iter().filter(|(truth, _)| !exact(truth)).map(|(truth, routes)| {
        let route = &interface.routes[*truth];
        format!("{} {:?}: {:?}", route.method, route.parts, routes.iter().take(4).collect::<Vec<_>>())
    });
    let score = Score {
        precision: right.len() as f64 / shown.len() as f64,
        recall: right.len() as f64 / truths.len() as f64,
        accuracy: n_right as f64 / n_requests as f64,
        n_true: truths.len(),
        n_shown: shown.len(),
    };
    (score, wrong.collect())
}

fn traffic(seed: u64) -> (Interface, Vec<Sent>) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let interface = Interface::new(&mut rng);
    let requests = (0..REQUESTS).map(|_| interface.send(&mut rng)).collect();
    (interface, requests)
}

#[test]
fn learned_routes_are_the_true_ones() {
    let verbose = std::env::var_os("ROUTES_WRONG").is_some();
    let mut sum = Score::default();
    let mut worst = (1.0f64, 1.0f64, 1.0f64);
    for seed in 0..SEEDS {
        let (interface, requests) = traffic(seed);
        let (score, wrong) = score(&interface, &requests);
        let Score { precision, recall, accuracy, n_true, n_shown } = score;
        println!(
            "seed {seed:2}: {n_true:3} true routes, {n_shown:3} shown: precision {precision:.3} recall {recall:.3} accuracy {accuracy:.3}"
        );
        if verbose {
            wrong.iter().for_each(|line| println!("    {line}"));
        }
        sum.precision += precision / SEEDS as f64;
        sum.recall += recall / SEEDS as f64;
        sum.accuracy += accuracy / SEEDS as f64;
        worst = (worst.0.min(precision), worst.1.min(recall), worst.2.min(accuracy));
    }
    println!(
        "mean of {SEEDS}: precision {:.3} recall {:.3} accuracy {:.3}; worst {:.3} {:.3} {:.3}",
        sum.precision, sum.recall, sum.accuracy, worst.0, worst.1, worst.2
    );
    assert!(sum.precision >= 0.93 && sum.recall >= 0.96 && sum.accuracy >= 0.96);
    assert!(worst.0 >= 0.5 && worst.1 >= 0.85 && worst.2 >= 0.85);
}

/// Routes of all requests once everything has been learned; asked for in a way that teaches nothing.
fn learned(requests: &[Sent], routes: &mut Routes, order: &[usize]) -> Vec<Arc<str>> {
    let service = service(1);
    order.iter().for_each(|index| drop(ask(routes, &service, &requests[*index])));
    known(requests, routes)
}

fn known(requests: &[Sent], routes: &mut Routes) -> Vec<Arc<str>> {
    let service = service(1);
    let look = |sent: &Sent| {
        let request = Request {
            service: &service,
            side: SpanKind::Server,
            method: sent.method,
            path: &sent.path,
            status: Some(404),
        };
        let mut route = Arc::from("");
        routes.assign(request, &mut route);
        route
    };
    requests.iter().map(look).collect()
}

#[test]
fn the_order_of_requests_hardly_matters() {
    const ORDERS: usize = 4;
    let (mut n_equal, mut n_all, mut n_equal_sorted) = (0, 0, 0);
    for seed in 100..110 {
        let (_, requests) = traffic(seed);
        let mut order: Vec<usize> = (0..requests.len()).collect();
        let learn = |order: &[usize]| learned(&requests, &mut Routes::new(LIMIT), order);
        let first = learn(&order);
        let equal = |other: &[Arc<str>]| first.iter().zip(other).filter(|(a, b)| a == b).count();
        for shuffle in 1..ORDERS {
            fastrand::Rng::with_seed(shuffle as u64).shuffle(&mut order);
            n_equal += equal(&learn(&order));
            n_all += requests.len();
        }
        order.sort_by_key(|index| &requests[*index].path);
        n_equal_sorted += equal(&learn(&order));
    }
    let share = |n: usize, all: usize| n as f64 / all as f64;
    let (shuffled, sorted) = (share(n_equal, n_all), share(n_equal_sorted, n_all / (ORDERS - 1)));
    println!("requests with the same route: shuffled {shuffled:.4}, sorted {sorted:.4}");
    assert!(shuffled >= 0.97 && sorted >= 0.9);
}

#[test]
fn a_restart_changes_nothing() {
    for seed in 200..210 {
        let (_, requests) = traffic(seed);
        let order: Vec<usize> = (0..requests.len()).collect();
        let mut before = Routes::new(LIMIT);
        let expected = learned(&requests, &mut before, &order);
        let state = before.state();
        let mut after = Routes::new(LIMIT);
        assert_eq!(after.restore(&state).unwrap(), 1);
        assert_eq!(after.state().len(), state.len() + ",\"unseen_runs\":1".len(), "what waits is kept too");
        // One request makes the tree come into use; it teaches nothing.
        assert_eq!(known(&requests, &mut after), expected);
        assert_eq!(after.state(), state);
        assert_eq!(after.nodes(), before.nodes());
    }
}

/// Resident memory of this process, bytes.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("this is Linux");
    let pages: usize = text.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("statm has pages");
    pages * 4096
}

#[test]
fn a_million_paths_of_fifty_services_stay_bounded() {
    const ROUTE_LIMIT: usize = 200;
    let mut rng = fastrand::Rng::with_seed(7);
    let mut routes = Routes::new(ROUTE_LIMIT);
    let services: Vec<_> = (1..=50).map(service).collect();
    let mut shown = vec![HashSet::<Arc<str>>::new(); 50];
    // Words that nothing distinguishes from true ones.
    let mut letters = |out: &mut String| {
        let mut bits = rng.u64(..) | 1 << 40;
        while bits > 0 {
            out.push(char::from(b'a' + (bits % 26) as u8));
            bits >>= 6;
        }
    };
    let before = resident();
    let started = std::time::Instant::now();
    for nth in 0..1_000_000_u64 {
        let index = (nth % 50) as usize;
        let mut path = String::new();
        let (words, end) = match index % 5 {
            0 => (1, format!("/{nth}")),
            1 => (3, "/orders".to_owned()),
            2 => (nth % 14, String::new()),
            3 => (1, "-x".to_owned()),
            _ => (1, "x".repeat(300)),
        };
        for _ in 0..words {
            path.push('/');
            letters(&mut path);
        }
        path.push_str(&end);
        let sent = Sent { method: ["GET", "POST"][(nth / 50 % 2) as usize], path, truth: Some(0) };
        let route = ask(&mut routes, &services[index], &sent);
        shown[index].insert(route);
    }
    let grown = resident().saturating_sub(before);
    let most = shown.iter().map(HashSet::len).max().unwrap_or(0);
    let held = services.iter().map(|service| routes.count(service.id, SpanKind::Server)).max();
    println!(
        "1,000,000 paths in {:?}: {} nodes, at most {held:?} routes held and {most} ever shown per service, {grown} bytes more",
        started.elapsed(),
        routes.nodes()
    );
    assert!(held <= Some(ROUTE_LIMIT) && most <= 4 * ROUTE_LIMIT);
    assert!(routes.nodes() <= 32_768 && grown <= 20 << 20);
    assert!(routes.state().len() <= 4 << 20);
}
