//! Where the nodes of a graph stand when it is drawn: callers to the left of whom they call.
//!
//! In: edges between numbered nodes. Out: for each node a column, and its place from the top in it. The same graph in
//! the same order gives the same picture. Refuses to know what a node is.

use std::collections::BTreeMap;

/// How often nodes are moved towards their neighbours.
const SWEEPS: usize = 6;

/// A node's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Cell {
    pub(super) column: usize,
    pub(super) row: usize,
}

/// Places of nodes, and for each edge that leads past columns, where it passes them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Layout {
    pub(super) places: Vec<Cell>,
    pub(super) bends: BTreeMap<(usize, usize), Vec<Cell>>,
}

/// The places of `nodes` nodes.
pub(super) fn place(nodes: usize, edges: &[(usize, usize)]) -> Layout {
    let forward = without_circles(nodes, edges);
    let mut column = columns(nodes, &forward);
    // What passes a column has a place in it, so that lines go around nodes.
    let (mut parts, mut passing) = (Vec::new(), Vec::new());
    for (from, to) in &forward {
        let mut last = *from;
        let between = column[*from] + 1..column[*to];
        let first = column.len();
        for at in between {
            parts.push((last, column.len()));
            last = column.len();
            column.push(at);
        }
        parts.push((last, *to));
        passing.push(((*from, *to), first..column.len()));
    }
    let row = rows(&column, &parts);
    let places: Vec<Cell> = column.into_iter().zip(row).map(|(column, row)| Cell { column, row }).collect();
    let bends = passing.into_iter().map(|(edge, range)| (edge, places[range].to_vec()));
    Layout { bends: bends.collect(), places: places[..nodes].to_vec() }
}

/// Nodes stand near those that they are joined to.
fn rows(column: &[usize], edges: &[(usize, usize)]) -> Vec<usize> {
    let mut layers: Vec<Vec<usize>> = vec![Vec::new(); column.iter().max().map_or(0, |last| last + 1)];
    for (node, column) in column.iter().enumerate() {
        layers[*column].push(node);
    }
    let mut next = [vec![Vec::new(); column.len()], vec![Vec::new(); column.len()]];
    for (from, to) in edges {
        next[0][*to].push(*from);
        next[1][*from].push(*to);
    }
    let mut row = vec![0; column.len()];
    for layer in &layers {
        number(layer, &mut row);
    }
    for sweep in 0..SWEEPS {
        let mut order: Vec<usize> = (0..layers.len()).collect();
        if sweep % 2 == 1 {
            order.reverse();
        }
        for at in order {
            let centre = |node: usize| {
                let others = &next[sweep % 2][node];
                let sum: usize = others.iter().map(|other| row[*other]).sum();
                if others.is_empty() { row[node] as f64 } else { sum as f64 / others.len() as f64 }
            };
            let mut sorted: Vec<(f64, usize)> =
                layers[at].iter().map(|node| (centre(*node), *node)).collect();
            sorted.sort_by(|(a, one), (b, other)| a.total_cmp(b).then(row[*one].cmp(&row[*other])));
            layers[at] = sorted.into_iter().map(|(_, node)| node).collect();
            number(&layers[at], &mut row);
        }
    }
    row
}

fn number(layer: &[usize], row: &mut [usize]) {
    for (nth, node) in layer.iter().enumerate() {
        row[*node] = nth;
    }
}

/// Edges that lead onwards: those that close a circle are left out, and those of a node to itself.
fn without_circles(nodes: usize, edges: &[(usize, usize)]) -> Vec<(usize, usize)> {
    #[derive(Clone, Copy, PartialEq)]
    enum Seen {
        Never,
        Open,
        Done,
    }
    let mut next = vec![Vec::new(); nodes];
    for (from, to) in edges {
        next[*from].push(*to);
    }
    // Nodes without a caller come first: where it is free to choose, a graph is cut where it returns to its beginning.
    let mut roots: Vec<usize> = (0..nodes).collect();
    roots.sort_by_key(|node| edges.iter().filter(|(from, to)| to == node && from != node).count().min(1));
    let mut seen = vec![Seen::Never; nodes];
    let mut forward = Vec::new();
    for root in roots {
        let mut open = if seen[root] == Seen::Never { vec![(root, 0)] } else { Vec::new() };
        while let Some((node, nth)) = open.pop() {
            seen[node] = Seen::Open;
            let Some(to) = next[node].get(nth).copied() else {
                seen[node] = Seen::Done;
                continue;
            };
            open.push((node, nth + 1));
            if seen[to] != Seen::Open {
                forward.push((node, to));
            }
            if seen[to] == Seen::Never {
                open.push((to, 0));
            }
        }
    }
    forward.sort_unstable();
    forward.dedup();
    forward
}

/// The longest way to each node. Without circles it has at most as many steps as there are nodes.
fn columns(nodes: usize, forward: &[(usize, usize)]) -> Vec<usize> {
    let mut column = vec![0; nodes];
    for _ in 0..nodes {
        let mut is_changed = false;
        for (from, to) in forward {
            if column[*to] <= column[*from] {
                column[*to] = column[*from] + 1;
                is_changed = true;
            }
        }
        if !is_changed {
            break;
        }
    }
    column
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn check(nodes: usize, edges: &[(usize, usize)], expected: &[(usize, usize)]) {
        let layout = place(nodes, edges);
        let places: Vec<_> = layout.places.iter().map(|place| (place.column, place.row)).collect();
        assert_eq!(places, expected);
    }

    #[test]
    fn callers_stand_left_of_whom_they_call() {
        check(0, &[], &[]);
        check(1, &[(0, 0)], &[(0, 0)]);
        check(3, &[(0, 1), (1, 2)], &[(0, 0), (1, 0), (2, 0)]);
        // A way around has a place beside what it passes.
        check(3, &[(0, 1), (1, 2), (0, 2)], &[(0, 0), (1, 0), (2, 0)]);
        assert_eq!(place(3, &[(0, 1), (1, 2), (0, 2)]).bends[&(0, 2)], [Cell { column: 1, row: 1 }]);
        // A circle is cut where it begins.
        check(3, &[(0, 1), (1, 2), (2, 1)], &[(0, 0), (1, 0), (2, 0)]);
        // Nodes stand where their callers do: no edges cross.
        check(4, &[(0, 3), (1, 2)], &[(0, 0), (0, 1), (1, 1), (1, 0)]);
    }

    proptest::proptest! {
        #[test]
        fn no_two_nodes_share_a_place(edges in proptest::collection::vec((0_usize..20, 0_usize..20), 0..80)) {
            let layout = place(20, &edges);
            let bends: Vec<_> = layout.bends.values().flatten().collect();
            let distinct: HashSet<_> = layout.places.iter().chain(bends.iter().copied()).map(|it| (it.column, it.row)).collect();
            assert_eq!(distinct.len(), 20 + bends.len());
            assert_eq!(layout, place(20, &edges));
        }
    }
}
