//! Where the nodes of a graph stand when it is drawn: callers to the left of whom they call.
//!
//! In: edges between numbered nodes. Out: for each node a column, and its place from the top in it. The same graph in
//! the same order gives the same picture. Refuses to know what a node is.

/// How often nodes are moved towards their neighbours.
const SWEEPS: usize = 6;

/// A node's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Place {
    pub(super) column: usize,
    pub(super) row: usize,
}

/// The places of `nodes` nodes.
pub(super) fn place(nodes: usize, edges: &[(usize, usize)]) -> Vec<Place> {
    let forward = without_circles(nodes, edges);
    let column = columns(nodes, &forward);
    let mut layers: Vec<Vec<usize>> = vec![Vec::new(); column.iter().max().map_or(0, |last| last + 1)];
    for (node, column) in column.iter().enumerate() {
        layers[*column].push(node);
    }
    let mut row = vec![0; nodes];
    for layer in &layers {
        number(layer, &mut row);
    }
    for sweep in 0..SWEEPS {
        let is_down = sweep % 2 == 0;
        let order: Vec<usize> =
            if is_down { (0..layers.len()).collect() } else { (0..layers.len()).rev().collect() };
        for at in order {
            let centre = |node: &usize| {
                let next = forward.iter().filter_map(|(from, to)| match is_down {
                    true => (to == node).then_some(*from),
                    false => (from == node).then_some(*to),
                });
                let rows: Vec<f64> = next.map(|other| row[other] as f64).collect();
                if rows.is_empty() { row[*node] as f64 } else { rows.iter().sum::<f64>() / rows.len() as f64 }
            };
            let mut sorted: Vec<(f64, usize)> = layers[at].iter().map(|node| (centre(node), *node)).collect();
            sorted.sort_by(|(a, one), (b, other)| a.total_cmp(b).then(row[*one].cmp(&row[*other])));
            layers[at] = sorted.into_iter().map(|(_, node)| node).collect();
            number(&layers[at], &mut row);
        }
    }
    column.into_iter().zip(row).map(|(column, row)| Place { column, row }).collect()
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
    // Whom nobody calls comes first: where it is free to choose, a graph is cut where it comes back to its beginning.
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
        let places: Vec<_> = place(nodes, edges).iter().map(|place| (place.column, place.row)).collect();
        assert_eq!(places, expected);
    }

    #[test]
    fn callers_stand_left_of_whom_they_call() {
        check(0, &[], &[]);
        check(1, &[(0, 0)], &[(0, 0)]);
        check(3, &[(0, 1), (1, 2)], &[(0, 0), (1, 0), (2, 0)]);
        // A way around makes room.
        check(3, &[(0, 1), (1, 2), (0, 2)], &[(0, 0), (1, 0), (2, 0)]);
        // A circle is cut where it begins.
        check(3, &[(0, 1), (1, 2), (2, 1)], &[(0, 0), (1, 0), (2, 0)]);
        // Nodes stand where their callers do: no edges cross.
        check(4, &[(0, 3), (1, 2)], &[(0, 0), (0, 1), (1, 1), (1, 0)]);
    }

    proptest::proptest! {
        #[test]
        fn no_two_nodes_share_a_place(edges in proptest::collection::vec((0_usize..20, 0_usize..20), 0..80)) {
            let places = place(20, &edges);
            let distinct: HashSet<_> = places.iter().map(|place| (place.column, place.row)).collect();
            assert_eq!((distinct.len(), places.clone()), (20, place(20, &edges)));
        }
    }
}
