//! `/map`: who calls whom on this machine, as a picture and as a table.
//!
//! In: edges of the service graph. Out: a page. Refuses to count, and to place nodes: that is [`layers`].

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};

use super::failure::Failure;
use super::frame::{Here, Page};
use super::layers::{self, Cell, Layout};
use super::parameter::{self, Order, Wanted};
use super::{link, table, text};
use crate::export::Metrics;
use crate::red::graph::DATABASE;
use crate::red::{Edge, Snapshot, Spread};
use crate::web::Command;

/// More nodes than this are not distinguished: peers that are no services of this machine become one.
const NODES: usize = 40;
/// Edges that are drawn, busiest first; the table has all.
const DRAWN: usize = 200;
/// Lines that have their share of errors beside them; among more they would hide each other.
const MARKED: usize = 40;
/// Rows of the table.
const LISTED: usize = 500;

/// Sizes of the picture.
const WIDTH: f64 = 168.0;
const HEIGHT: f64 = 44.0;
const ACROSS: f64 = 250.0;
const DOWN: f64 = 60.0;
const MARGIN: f64 = 8.0;
/// Letters that fit a node.
const LETTERS: usize = 21;

/// Parameters: `q`, `errors`, `sort`.
pub(super) async fn serve(
    State(state): State<super::Web>,
    pairs: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Result<Response, Failure> {
    let Query(pairs) = pairs?;
    let wanted = parameter::of_map(pairs)?;
    let make = move |metrics: Metrics| page(&metrics.red, &wanted).into_response();
    Ok(state.answer(Command::Metrics, make).await?)
}

/// An end of edges.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Node {
    name: String,
    namespace: String,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// Of this machine.
    Service,
    /// Not on this machine, or not watched.
    Elsewhere,
    Database,
}

/// Calls of one node to another.
#[derive(Debug, Clone, Default)]
struct Arrow {
    total: u64,
    failed: u64,
    spread: Spread,
}

pub(super) fn page(red: &Snapshot, wanted: &Wanted) -> Page {
    let chosen: Vec<_> = red.edges.iter().filter(|edge| is_wanted(edge, wanted)).cloned().collect();
    let body = html! {
        h1 { "Who calls whom" }
        @if !red.edges.is_empty() { (form(wanted)) }
        div data-live="map" {
            @if red.edges.is_empty() {
                div.empty { p { b { "No calls yet." } " A line appears when a watched program answers or calls another one." } }
            } @else if chosen.is_empty() {
                p.empty { b { "No call fits." } " " a href="/map" { "Show all" } }
            } @else {
                (picture(&chosen))
                (edges(&chosen, wanted))
            }
            @if red.unpaired > 0 {
                p.quiet { (text::counted(red.unpaired, "request is", "requests are")) " in no line: a header names their caller, which is on another machine." }
            }
        }
    };
    let json = Some("/api/v1/service-graph".to_owned());
    Page { here: Here::Map, title: "Map".to_owned(), crumbs: Vec::new(), json, body }
}

/// Whether a node's name fits, and there are errors where only those are wanted.
fn is_wanted(edge: &Edge, wanted: &Wanted) -> bool {
    [&edge.client, &edge.server].iter().any(|end| wanted.takes(&end[0], &end[1], edge.failed > 0))
}

fn form(wanted: &Wanted) -> Markup {
    html! {
        form.controls method="get" action="/map" role="search" {
            label.unseen for="filter" { "Filter" }
            input #filter type="search" name="q" value=(wanted.text) placeholder="Lines from and to  ( / )" autocomplete="off";
            label { input type="checkbox" name="errors" value="true" checked[wanted.errors]; " only with errors" }
            @if wanted.order != Order::Worst { input type="hidden" name="sort" value=(wanted.order.word()); }
            button { "Show" }
        }
    }
}

/// Both ends. An edge that leads away has one service of this machine.
fn ends(edge: &Edge) -> [Node; 2] {
    let own = |end: &[Arc<str>; 2]| *end[0] == *edge.service.name && *end[1] == *edge.service.namespace;
    let node =
        |end: &[Arc<str>; 2], kind| Node { name: end[0].to_string(), namespace: end[1].to_string(), kind };
    let kinds = match edge.connection_type {
        "" => [Kind::Service, Kind::Service],
        DATABASE => [Kind::Service, Kind::Database],
        _ if edge.called.buckets.count() == 0 && own(&edge.server) => [Kind::Elsewhere, Kind::Service],
        _ if own(&edge.client) => [Kind::Service, Kind::Elsewhere],
        _ if own(&edge.server) => [Kind::Elsewhere, Kind::Service],
        _ => [Kind::Elsewhere, Kind::Elsewhere],
    };
    [node(&edge.client, kinds[0]), node(&edge.server, kinds[1])]
}

/// Arrows between nodes; peers elsewhere are one node each way where there are too many.
fn arrows(edges: &[Arc<Edge>]) -> BTreeMap<(Node, Node), Arrow> {
    let mut names: Vec<Node> = edges.iter().flat_map(|edge| ends(edge)).collect();
    names.sort_unstable();
    names.dedup();
    let others = names.iter().filter(|node| node.kind == Kind::Elsewhere).count();
    let fold = |node: Node| match node.kind {
        Kind::Elsewhere if names.len() > NODES => {
            Node { name: text::counted(others as u64, "address", "addresses"), ..node }
        }
        _ => node,
    };
    let mut arrows = BTreeMap::<(Node, Node), Arrow>::new();
    for edge in edges {
        let [client, server] = ends(edge).map(fold);
        let arrow = arrows.entry((client, server)).or_default();
        arrow.total += edge.total;
        arrow.failed += edge.failed;
        arrow.spread.add(&spread(edge));
    }
    arrows
}

/// By its server where it is on this machine, else by its client.
fn spread(edge: &Edge) -> crate::red::Native {
    let of = if edge.served.buckets.count() > 0 { &edge.served } else { &edge.called };
    of.native.clone()
}

fn picture(edges: &[Arc<Edge>]) -> Markup {
    let mut arrows: Vec<_> = arrows(edges).into_iter().collect();
    let left_out = arrows.len().saturating_sub(DRAWN);
    if left_out > 0 {
        arrows.sort_by_key(|(_, arrow)| Reverse(arrow.total));
        arrows.truncate(DRAWN);
        arrows.sort_by(|(a, _), (b, _)| a.cmp(b));
    }
    let mut nodes: Vec<&Node> = arrows.iter().flat_map(|((from, to), _)| [from, to]).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let number = |node: &Node| nodes.binary_search(&node).unwrap_or(0);
    let edges: Vec<(usize, usize)> =
        arrows.iter().map(|((from, to), _)| (number(from), number(to))).collect();
    let Layout { places, bends } = layers::place(nodes.len(), &edges);
    let all = || places.iter().chain(bends.values().flatten());
    let columns = all().map(|place| place.column + 1).max().unwrap_or(0);
    let tall = |column: usize| {
        let rows = all().filter(|place| place.column == column).map(|place| place.row + 1);
        rows.max().unwrap_or(0)
    };
    let rows = (0..columns).map(tall).max().unwrap_or(0);
    let at = |place: &Cell| {
        // Columns with fewer nodes stand in the middle.
        let above = (rows - tall(place.column)) as f64 * DOWN / 2.0;
        (MARGIN + place.column as f64 * ACROSS, MARGIN + above + place.row as f64 * DOWN)
    };
    let width = 2.0 * MARGIN + WIDTH + columns.saturating_sub(1) as f64 * ACROSS;
    let height = 2.0 * MARGIN + HEIGHT + rows.saturating_sub(1) as f64 * DOWN + 16.0;
    html! {
        div.wide tabindex="0" {
            svg.map viewBox={ "0 0 " (width) " " (height) } width=(width) height=(height) role="group" aria-label="Map of services; the table below has the same" {
                @for (((_, arrow), edge), nth) in arrows.iter().zip(&edges).zip(0..) {
                    (line(arrow, &way(&places, &bends, *edge).map(at).collect::<Vec<_>>(), (arrows.len() <= MARKED).then_some(nth)))
                }
                @for (node, place) in nodes.iter().zip(&places) { (drawn(node, at(place))) }
            }
        }
        @if left_out > 0 { p.quiet { (text::counted(left_out as u64, "line is", "lines are")) " not drawn; the table has them." } }
    }
}

/// From a node to another by way of what it passes.
fn way<'a>(places: &'a [Cell], bends: &'a Bends, edge: (usize, usize)) -> impl Iterator<Item = &'a Cell> {
    let between = bends.get(&edge).into_iter().flatten();
    [&places[edge.0]].into_iter().chain(between).chain([&places[edge.1]])
}

type Bends = BTreeMap<(usize, usize), Vec<Cell>>;

fn line(arrow: &Arrow, way: &[(f64, f64)], marked: Option<usize>) -> Markup {
    let thick = 1.0 + (arrow.total as f64 + 1.0).log10() * 0.9;
    let (Some((ax, ay)), Some((bx, by))) = (way.first().copied(), way.last().copied()) else {
        return html! {};
    };
    let (x1, y1) = (ax + WIDTH, ay + HEIGHT / 2.0);
    let mut path = format!("M{x1:.0} {y1:.0}");
    if bx > ax {
        let mut from = (x1, y1);
        for (x, y) in way.iter().skip(1).map(|(x, y)| (*x, y + HEIGHT / 2.0)) {
            let bend = (x - from.0) / 2.0;
            let _ = write!(path, "C{:.0} {:.0} {:.0} {y:.0} {x:.0} {y:.0}", from.0 + bend, from.1, x - bend);
            if x < bx {
                let _ = write!(path, "H{:.0}", x + WIDTH);
            }
            from = (x + WIDTH, y);
        }
    } else {
        // Back, or to itself: around below.
        let low = ay.max(by) + HEIGHT + 14.0;
        let y = by + HEIGHT / 2.0;
        let _ = write!(path, "C{:.0} {low:.0} {:.0} {low:.0} {bx:.0} {y:.0}", x1 + 50.0, bx - 50.0);
    }
    let is_bad = arrow.failed > 0;
    // Labels of lines that run side by side do not stand above each other.
    let along: f64 = [0.6, 0.4, 0.75][marked.unwrap_or(0) % 3];
    let (x2, y2) = way.get(1).map_or((x1, y1), |(x, y)| (*x, y + HEIGHT / 2.0));
    // On the curve, whose handles are level and half as long as it is wide.
    let across = 1.5 * along * (1.0 - along) + along.powi(3);
    let (mx, my) = (x1 + (x2 - x1) * across, y1 + (y2 - y1) * along * along * (3.0 - 2.0 * along));
    html! {
        path.line.bad[is_bad] d=(path) stroke-width=(format!("{thick:.1}")) {
            title { (text::counted(arrow.total, "call", "calls")) ", " (text::count(arrow.failed)) " failed, p95 " (text::maybe_duration(arrow.spread.quantile(0.95))) }
        }
        @if is_bad && bx > ax && marked.is_some() {
            text.mark x=(format!("{mx:.0}")) y=(format!("{:.0}", my - 5.0)) text-anchor="middle" { "▲ " (text::share(arrow.failed, arrow.total)) }
        }
    }
}

fn drawn(node: &Node, (x, y): (f64, f64)) -> Markup {
    let class = match node.kind {
        Kind::Service => "own",
        Kind::Elsewhere => "away",
        Kind::Database => "base",
    };
    let what = match node.kind {
        Kind::Service => text::short_to(&node.namespace, LETTERS),
        Kind::Elsewhere => away(&node.name).to_owned(),
        Kind::Database => "database".to_owned(),
    };
    let inside = html! {
        rect class=(class) x=(x) y=(y) width=(WIDTH) height=(HEIGHT) rx=(if node.kind == Kind::Database { 16 } else { 5 }) {}
        @if what.is_empty() { text x=(x + 12.0) y=(y + 27.0) { (text::short_to(&node.name, LETTERS)) } }
        @else {
            text x=(x + 12.0) y=(y + 19.0) { (text::short_to(&node.name, LETTERS)) }
            text.of x=(x + 12.0) y=(y + 35.0) { (what) }
        }
        title { (text::plain(&node.name)) }
    };
    let address = link::service(&node.namespace, &node.name).filter(|_| node.kind == Kind::Service);
    html! {
        @match address {
            Some(address) => a href=(address) { (inside) },
            None => g { (inside) },
        }
    }
}

/// Of a peer that is no watched program: a loopback address is this machine's.
fn away(name: &str) -> &'static str {
    match name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback()) {
        true => "no watched program",
        false => "not seen on this machine",
    }
}

/// An end of an edge in a table.
pub(super) fn node(end: &[Arc<str>; 2], is_service: bool) -> Markup {
    html! {
        @if is_service { (table::service(&end[1], &end[0])) }
        @else { (text::name(&end[0])) " " span.of { (away(&end[0])) } }
    }
}

fn end(node: &Node) -> Markup {
    html! {
        @match node.kind {
            Kind::Service => (table::service(&node.namespace, &node.name)),
            Kind::Elsewhere => { (text::name(&node.name)) " " span.of { (away(&node.name)) } },
            Kind::Database => { (text::name(&node.name)) " " span.of { "database" } },
        }
    }
}

/// Edges in an order; the usual one is those with errors first, then the busiest.
pub(super) fn sorted(edges: &[Arc<Edge>], by: Order) -> Vec<&Arc<Edge>> {
    let mut sorted: Vec<&Arc<Edge>> = edges.iter().collect();
    let slow = |edge: &Edge| {
        let mut durations = Spread::default();
        durations.add(&spread(edge));
        let duration = by.ratio().and_then(|ratio| durations.quantile(ratio));
        duration.map_or(0, |seconds| (seconds * 1e9) as u64)
    };
    match by {
        Order::Worst => sorted.sort_by_key(|edge| Reverse((edge.failed > 0, edge.total))),
        Order::Name => sorted.sort_by(|a, b| (&a.client, &a.server).cmp(&(&b.client, &b.server))),
        Order::Requests => sorted.sort_by_key(|edge| Reverse(edge.total)),
        Order::Errors => {
            let share = |edge: &Edge| edge.failed as f64 / edge.total.max(1) as f64;
            sorted.sort_by(|a, b| share(b).total_cmp(&share(a)));
        }
        Order::Median | Order::Slow | Order::Slowest => {
            sorted.sort_by_cached_key(|edge| Reverse(slow(edge)));
        }
        // Known of services only.
        Order::Queue | Order::Cpu => {}
    }
    sorted
}

fn edges(edges: &[Arc<Edge>], wanted: &Wanted) -> Markup {
    let order = wanted.order;
    let sorted = sorted(edges, order);
    let errors = if wanted.errors { "true" } else { "" };
    let head = |by: Order, name: &str, class: &str| {
        table::sorted(
            &link::with("/map", &[("q", &wanted.text), ("errors", errors), ("sort", by.word())]),
            (order == by).then_some(by.direction()),
            name,
            class,
        )
    };
    html! {
        div.wide tabindex="0" { table.rows #rows {
            caption.unseen { "Calls" @if order == Order::Worst { ", those with errors first" } }
            thead { tr {
                (head(Order::Name, "From", "")) th scope="col" { "To" } (head(Order::Requests, "Calls", "n")) (head(Order::Errors, "Errors", "n")) (head(Order::Median, "p50", "n")) (head(Order::Slow, "p95", "n"))
            } }
            tbody { @for edge in sorted.iter().take(LISTED) { (row(edge)) } }
        } }
        @if sorted.len() > LISTED { p { (sorted.len() - LISTED) " more: " a href="/api/v1/service-graph" { "/api/v1/service-graph" } } }
    }
}

fn row(edge: &Edge) -> Markup {
    let [client, server] = ends(edge);
    let mut durations = Spread::default();
    durations.add(&spread(edge));
    html! {
        tr {
            th scope="row" { (end(&client)) }
            td { (end(&server)) }
            td.n data-is="calls" { (text::count(edge.total)) }
            td.n { (table::failed(edge.failed, edge.total)) }
            td.n { (text::maybe_duration(durations.quantile(0.5))) }
            td.n { (text::maybe_duration(durations.quantile(0.95))) }
        }
    }
}
