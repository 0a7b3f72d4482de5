//! The picture's text: what is in it, in which place, and that hostile names stay text.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::*;
use crate::profile::{Fidelity, Frame, Line, Mapping, Origin, Runtime, Sample, SampleKind, Stack, Symbol};
use crate::span::Service;

fn frame(names: &[&str], runtime: Runtime, fidelity: Fidelity) -> Frame {
    let lines = names.iter().map(|name| Line { function: (*name).into(), ..Line::default() }).collect();
    let mapping = Mapping { path: "/usr/lib/libshop.so".into(), ..Mapping::default() };
    Frame {
        address: 1,
        is_return: true,
        mapping: (runtime != Runtime::Kernel).then(|| Arc::new(mapping)),
        symbol: Arc::new(Symbol { lines, fidelity, runtime }),
    }
}

fn graph(title: &str, selection: &Selection) -> String {
    super::graph(title, selection, Look::default())
}

fn difference(title: &str, before: (&str, &Selection), now: (&str, &Selection)) -> String {
    super::difference(title, before, now, Look::default())
}

fn native(name: &str) -> Frame {
    frame(&[name], Runtime::Native, Fidelity::Function)
}

/// Stacks leaf first, with the periods of each.
fn selection(stacks: &[(&[Frame], u32)]) -> Selection {
    let service = Arc::new(Service { name: "shop".to_owned(), ..Service::default() });
    let origin = Arc::new(Origin { pid: 7, service, executable: "shop".into(), ..Origin::default() });
    let cpu = SampleType { kind: SampleKind::Cpu, period: 10_000_000 };
    let sample = |(index, (frames, periods)): (usize, &(&[Frame], u32))| Sample {
        kind: cpu.kind,
        value: cpu.value((*periods).into()),
        time: index as u64,
        origin: Arc::clone(&origin),
        stack: Arc::new(Stack { frames: frames.to_vec() }),
        tid: 7,
        thread: "shop".into(),
        cpu: 0,
        link: None,
    };
    let samples = stacks.iter().enumerate().map(sample).collect();
    Selection { start: 0, end: 100, types: vec![cpu], samples, lost: 0 }
}

/// (name, x, y from the top, width) of each bar, in the order of the text.
fn bars(svg: &str) -> Vec<(String, f64, f64, f64)> {
    let inside = |text: &str, before: &str, after: &str| {
        text.split_once(before)
            .and_then(|(_, rest)| rest.split_once(after))
            .map(|(found, _)| found.to_owned())
    };
    let groups = svg.lines().collect::<Vec<_>>().join("\u{1}");
    let groups = groups.split("<g").skip(2).filter(|group| group.contains("<title>"));
    let bar = |group: &str| {
        let number =
            |name: &str| inside(group, &format!(" {name}=\""), "\"").unwrap().parse::<f64>().unwrap();
        let title = inside(group, "<title>", "</title>").unwrap();
        let name = title.split('\u{1}').next().unwrap().to_owned();
        (name, number("x"), number("y"), number("width"))
    };
    groups.map(bar).collect()
}

fn example() -> Selection {
    let kernel = frame(&["tcp_sendmsg"], Runtime::Kernel, Fidelity::Function);
    let inlined = frame(&["copy", "reply"], Runtime::Rust, Fidelity::Lines);
    let unnamed = frame(&[], Runtime::Native, Fidelity::Address);
    selection(&[
        (&[kernel, native("send"), native("main")], 1),
        (&[inlined, native("main")], 2),
        (&[unnamed, native("main")], 1),
    ])
}

#[test]
fn bars_stand_on_their_callers_and_are_as_wide_as_their_share() {
    let svg = graph("shop", &example());
    let bars = bars(&svg);
    let names: Vec<_> = bars.iter().map(|(name, ..)| name.as_str()).collect();
    assert_eq!(
        names,
        ["all", "shop", "main", "[libshop.so]", "reply", "copy", "send", "tcp_sendmsg"],
        "roots first, then in the order of names"
    );
    let share =
        |name: &str| bars.iter().find(|bar| bar.0 == name).map(|bar| (bar.3 / 1180.0 * 100.0).round());
    assert_eq!(
        ["main", "reply", "copy", "send", "tcp_sendmsg"].map(|name| share(name).unwrap()),
        [100.0, 50.0, 50.0, 25.0, 25.0]
    );
    let row = |name: &str| bars.iter().find(|bar| bar.0 == name).map(|bar| bar.2).unwrap();
    assert!(row("all") > row("main") && row("main") > row("reply") && row("reply") > row("copy"));
    for text in [
        "3 samples",
        "40.0 ms of CPU time ± 24.5 ms",
        "Rust, named by debug information, inlined, in libshop.so",
        "kernel, named by a symbol table",
        "nothing names it on this machine",
        "50.00 %, 20.0 ms of CPU time",
    ] {
        assert!(svg.contains(text), "{text}: {svg}");
    }
}

/// A picture in a view of the usual frames.
fn view(selection: &Selection, view: View) -> String {
    super::graph("shop", selection, Look { view, ..Look::default() })
}

/// Bars whose rows are `depth` away from the root's, by name, with how many of a thousand they take.
fn row(svg: &str, depth: usize) -> Vec<(String, u32)> {
    let bars = bars(svg);
    let root = bars[0].2;
    let is_there = |y: f64| ((y - root).abs() / 17.0).round() as usize == depth;
    let row = bars.iter().filter(|bar| is_there(bar.2));
    row.map(|(name, _, _, width)| (name.clone(), (width / 1.18).round() as u32)).collect()
}

#[test]
fn views_are_of_the_same_samples_and_differ_in_what_stands_where() {
    let selection = example();
    for (wanted, grows_down, roots, deepest) in [
        (View::Flame, false, vec![("shop", 1000)], vec!["copy", "tcp_sendmsg"]),
        (View::Icicle, true, vec![("shop", 1000)], vec!["copy", "tcp_sendmsg"]),
        // What takes the time itself, and at the end whose it is.
        (
            View::Callers,
            true,
            vec![("[libshop.so]", 250), ("copy", 500), ("tcp_sendmsg", 250)],
            vec!["shop", "shop"],
        ),
    ] {
        let svg = view(&selection, wanted);
        let bars = bars(&svg);
        let total = "<title>all\nall\n100.00 %, 40.0 ms of CPU time";
        assert!(svg.contains("3 samples, 40.0 ms of CPU time") && svg.contains(total), "{wanted:?}: {svg}");
        let root = bars[0].2;
        assert!(bars[1..].iter().all(|bar| (bar.2 > root) == grows_down && bar.2 != root), "{wanted:?}");
        let named = |row: Vec<(String, u32)>| row.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        let expected: Vec<_> = roots.into_iter().map(|(name, share)| (name.to_owned(), share)).collect();
        assert_eq!(row(&svg, 1), expected, "{wanted:?}");
        assert_eq!(named(row(&svg, 4)), deepest, "{wanted:?}");
    }
}

#[test]
fn a_hot_function_is_one_bar_whoever_calls_it() {
    let of = |caller: &str| [native("memcpy"), native(caller), native("main")];
    let (read, write, own) = (of("read"), of("write"), [native("main")]);
    let selection = selection(&[(&read, 3), (&write, 1), (&own, 1)]);
    let callers = view(&selection, View::Callers);
    let owned =
        |bars: &[(&str, u32)]| bars.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect::<Vec<_>>();
    assert_eq!(row(&callers, 1), owned(&[("main", 200), ("memcpy", 800)]));
    assert_eq!(row(&callers, 2), owned(&[("shop", 200), ("read", 600), ("write", 200)]));
    assert!(callers.contains("below it what called it") && !callers.contains("of it in itself"), "{callers}");
    // Elsewhere it is where it was called.
    assert_eq!(row(&view(&selection, View::Icicle), 4), owned(&[("memcpy", 600), ("memcpy", 200)]));
    let base = super::tests::selection(&[(&own, 1)]);
    let look = Look { view: View::Callers, ..Look::default() };
    let compared = super::difference("change", ("before", &base), ("now", &selection), look);
    assert_eq!(row(&compared, 1), owned(&[("main", 600), ("memcpy", 400)]));
}

#[test]
fn bars_are_one_stop_of_the_tab_key_however_many_there_are() {
    let names: Vec<_> = (0..5_000).map(|index| [native(&format!("f{index}")), native("main")]).collect();
    let stacks: Vec<(&[Frame], u32)> = names.iter().map(|frames| (frames.as_slice(), 1)).collect();
    for wanted in View::ALL {
        let svg = view(&selection(&stacks), wanted);
        let graph = svg.split_once("id=\"graph\"").unwrap().1.split_once("<script>").unwrap().0;
        assert!(graph.matches("<title>").count() > 5_000);
        let stop = "<g tabindex=\"0\" role=\"button\"><title>all\n";
        assert_eq!((graph.matches("tabindex").count(), graph.matches(stop).count()), (1, 1), "{wanted:?}");
        // A field and a button of their own kind, which need no other key.
        assert!(svg.contains("<input id=\"search\" type=\"search\"") && svg.contains("<button id=\"reset\""));
        assert!(svg.contains("aria-label=\"Functions to search for"));
    }
    for key in [
        "\"Enter\"",
        "\" \"",
        "\"ArrowLeft\"",
        "\"ArrowDown\"",
        "\"Home\"",
        "\"Escape\"",
        "\"tabindex\", \"0\"",
    ] {
        assert!(SCRIPT.contains(key), "{key}");
    }
    assert!(SCRIPT.len() < 6_144 && !SCRIPT.contains("]]>"), "{}", SCRIPT.len());
}

/// Relative luminance of `#rrggbb` or `hsl(…)` as WCAG 2 defines it.
fn luminance(colour: &str) -> f64 {
    let channels: Vec<f64> = match colour.strip_prefix('#') {
        Some(digits) => {
            let wide = if digits.len() == 3 {
                digits.chars().flat_map(|digit| [digit; 2]).collect()
            } else {
                digits.to_owned()
            };
            (0..3)
                .map(|nth| f64::from(u8::from_str_radix(&wide[2 * nth..2 * nth + 2], 16).unwrap()) / 255.0)
                .collect()
        }
        None => {
            let inner = colour.strip_prefix("hsl(").unwrap().strip_suffix(')').unwrap();
            let parts: Vec<f64> =
                inner.split(',').map(|part| part.trim_end_matches('%').parse().unwrap()).collect();
            let (hue, saturation, lightness) = (parts[0], parts[1] / 100.0, parts[2] / 100.0);
            let channel = |offset: f64| {
                let turn = (offset + hue / 30.0) % 12.0;
                lightness
                    - saturation
                        * lightness.min(1.0 - lightness)
                        * (turn - 3.0).min(9.0 - turn).clamp(-1.0, 1.0)
            };
            [0.0, 8.0, 4.0].map(channel).to_vec()
        }
    };
    let linear =
        |value: f64| if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) };
    0.2126 * linear(channels[0]) + 0.7152 * linear(channels[1]) + 0.0722 * linear(channels[2])
}

fn contrast(one: &str, other: &str) -> f64 {
    let (one, other) = (luminance(one), luminance(other));
    (one.max(other) + 0.05) / (one.min(other) + 0.05)
}

/// Bars of every kind, of every reason to wait, in every shade; and both sides of a difference.
fn colourful() -> [String; 2] {
    let kinds =
        Runtime::ALL.into_iter().flat_map(|runtime| Fidelity::ALL.map(|fidelity| (runtime, fidelity)));
    let mut stacks: Vec<Vec<Frame>> = Vec::new();
    for (runtime, fidelity) in kinds {
        stacks.extend((0..40).map(|nth| vec![frame(&[&format!("f{nth}")], runtime, fidelity)]));
    }
    for reason in 0..u32::try_from(crate::protocol::WAIT_REASON_NAMES.len()).unwrap() {
        let waiting = crate::profile::waits::waiting(reason);
        stacks.extend((0..40).map(|nth| vec![native(&format!("f{nth}")), waiting.clone()]));
    }
    let weighed = |weight: fn(u32) -> u32| {
        let weights = (0..).map(weight);
        let stacks: Vec<(&[Frame], u32)> = stacks.iter().map(|stack| &**stack).zip(weights).collect();
        let many = stacks.into_iter().flat_map(|(frames, n)| std::iter::repeat_n((frames, 1), n as usize));
        selection(&many.collect::<Vec<_>>())
    };
    let (one, other) = (weighed(|nth| 1 + nth % 83), weighed(|nth| 1 + 7 * nth % 89));
    [graph("kinds", &one), difference("change", ("before", &one), ("now", &other))]
}

#[test]
fn names_can_be_read_on_every_colour_on_light_and_on_dark_ground() {
    for svg in colourful() {
        let (light, dark) = svg.split_once("@media (prefers-color-scheme: dark) {").unwrap();
        assert!(light.ends_with("<style id=\"dark\">\n"), "the script finds it, and lets the page choose");
        let (dark, _) = dark.split_once("</style>").unwrap();
        let rule = |rules: &str, selector: &str| {
            let found = rules.split(&format!("\n{selector} {{ fill: ")).nth(1);
            found.and_then(|rule| rule.split(';').next()).map(str::to_owned)
        };
        let [on_light, on_dark] = [light, dark].map(|rules| rule(rules, "text").unwrap());
        let marked = rule(light, "#graph .dark:not(.found) text").unwrap();
        let graph = light.split_once("id=\"graph\"").unwrap().1;
        let mut colours = BTreeSet::new();
        for bar in graph.split("<g").filter(|bar| bar.contains("<title>")) {
            let colour = bar.split_once("fill=\"").unwrap().1.split('"').next().unwrap();
            colours.insert((colour, bar.starts_with(" class=\"dark\"")));
        }
        assert!(colours.len() > 30, "{}", colours.len());
        for (colour, is_marker) in colours {
            let like = rule(dark, &format!("rect[fill=\"{colour}\"]"));
            let like = like.unwrap_or_else(|| panic!("{colour} stays as it is on a dark ground"));
            let [light, dark] = if is_marker { [&marked, &marked] } else { [&on_light, &on_dark] };
            for (text, ground) in [(light, colour), (dark, like.as_str())] {
                assert!(contrast(text, ground) >= 4.5, "{text} on {ground}: {}", contrast(text, ground));
            }
        }
        for (rules, text) in [(light, &on_light), (dark, &on_dark)] {
            let [page, note, found] =
                [".page", ".note", "#graph .found rect"].map(|name| rule(rules, name).unwrap());
            for (text, ground) in [(text, &page), (&note, &page), (text, &found)] {
                assert!(contrast(text, ground) >= 4.5, "{text} on {ground}: {}", contrast(text, ground));
            }
        }
    }
}

#[test]
fn the_same_samples_in_another_order_give_the_same_picture() {
    let selection = example();
    let mut turned = selection.clone();
    turned.samples.reverse();
    // Stacks of their own, not shared ones.
    for sample in &mut turned.samples {
        sample.stack = Arc::new((*sample.stack).clone());
    }
    assert_eq!(graph("a", &selection), graph("a", &turned));
}

#[test]
fn a_difference_shows_both_by_their_shares() {
    let (old, new, both) = ([native("old")], [native("new")], [native("both")]);
    let of = |stacks: [(&[Frame], usize); 2]| {
        let single = stacks.iter().flat_map(|(frames, n)| std::iter::repeat_n((*frames, 1), *n));
        selection(&single.collect::<Vec<_>>())
    };
    let before = of([(&old, 10), (&both, 10)]);
    // Twice as long: only shares count.
    let now = of([(&new, 10), (&both, 30)]);
    let svg = difference("change", ("before", &before), ("now", &now));
    let bars = bars(&svg);
    let width =
        |name: &str| bars.iter().find(|bar| bar.0 == name).map(|bar| (bar.3 / 1180.0 * 1000.0).round());
    assert_eq!(["all", "both", "new", "old"].map(|name| width(name).unwrap()), [1000.0, 625.0, 125.0, 250.0]);
    assert!(svg.contains("50.00 % before, 75.00 % now (+25.00)"), "{svg}");
    assert!(svg.contains("50.00 % before, 0.00 % now (-50.00)"), "{svg}");
    let colour = |name: &str| {
        let group = svg.split("<g").find(|group| group.contains(&format!("<title>{name}\n"))).unwrap();
        group.split_once("fill=\"").unwrap().1.split('"').next().unwrap().to_owned()
    };
    // Twenty samples against forty say nothing of a half against three quarters.
    assert_eq!(["old", "new", "both"].map(colour), ["hsl(215,85%,62%)", "hsl(8,85%,62%)", "hsl(8,0%,96%)"]);
    assert!(svg.contains("(+25.00), within the standard error"), "{svg}");
    let same = difference("none", ("before", &before), ("now", &before));
    assert!(same.contains("hsl(8,0%,96%)") && same.contains("(+0.00)"), "{same}");
}

#[test]
fn hostile_names_stay_text_and_empty_selections_are_pictures() {
    let hostile = "</title><script>alert(1)</script>]]>&\u{1}\u{ffff}\"";
    let svg = graph(hostile, &selection(&[(&[native(hostile)], 1)]));
    assert_eq!((svg.matches("<script>").count(), svg.matches("]]>").count()), (1, 1), "{svg}");
    assert!(
        svg.contains("&lt;/title&gt;&lt;script&gt;alert(1)&lt;/script&gt;]]&gt;&amp;\u{fffd}\u{fffd}&quot;")
    );
    assert!(graph("nothing", &selection(&[])).contains("no samples"));
    let one_sided = difference("d", ("a", &selection(&[])), ("b", &example()));
    assert_eq!(bars(&one_sided)[0].3, 1180.0);
}

#[test]
fn the_widest_frames_are_drawn_when_there_are_too_many() {
    let names: Vec<_> = (0..30_000).map(|index| [native(&format!("f{index}")), native("main")]).collect();
    let stacks: Vec<_> = names
        .iter()
        .enumerate()
        .map(|(index, frames)| (frames.as_slice(), if index < 100 { 100 } else { 1 }))
        .collect();
    let svg = graph("many", &selection(&stacks));
    assert!(svg.contains(">29900 frames too narrow to be drawn<"));
    assert_eq!(bars(&svg).len(), 103);
}

/// More frames than a tree may hold, each stack's its own: what takes most is there, on both sides.
#[test]
fn a_tree_is_bounded_and_keeps_what_takes_most() {
    let stacks = |side: &str| {
        let rare = (0..2_000).map(|stack| {
            let frames: Vec<Frame> =
                (0..100).map(|depth| native(&format!("{side}{stack}_{depth}"))).collect();
            (frames, 1)
        });
        rare.chain([(vec![native(&format!("hot_{side}")), native("main")], 1_000)]).collect::<Vec<_>>()
    };
    let [before, now] = ["a", "b"].map(|side| {
        let stacks = stacks(side);
        selection(&stacks.iter().map(|(frames, weight)| (&**frames, *weight)).collect::<Vec<_>>())
    });
    for (svg, hot) in [
        (graph("x", &before), vec!["hot_a"]),
        (difference("x", ("before", &before), ("now", &now)), vec!["hot_a", "hot_b"]),
    ] {
        let bars = bars(&svg);
        assert!(bars.len() <= 20_001, "{}", bars.len());
        for name in hot {
            assert!(bars.iter().any(|(found, ..)| found == name), "{name}");
        }
        assert!(svg.contains("frames too narrow to be drawn"));
    }
}

/// Two samples against three, as a short recording of a small service has them.
#[test]
fn few_samples_are_said_and_differences_within_their_error_have_no_colour() {
    let before = selection(&[(&[native("old")], 1), (&[native("old")], 1)]);
    let now = selection(&[(&[native("new")], 1), (&[native("new")], 1), (&[native("both")], 1)]);
    let svg = difference("change", ("before", &before), ("now", &now));
    assert_eq!(svg.matches("few samples (").count(), 2, "{svg}");
    let graph_part = svg.split_once("id=\"graph\"").unwrap().1.split_once("</g>\n</g>").unwrap().0;
    assert!(!graph_part.contains("85%"), "{graph_part}");
    assert!(graph("few", &now).contains("few samples (3): shares may be 57 % off"));
    let frame = [native("f")];
    let many = vec![(frame.as_slice(), 1); 100];
    assert!(!graph("many", &selection(&many)).contains("few samples"));
}

/// The widest of the fonts that are asked for has letters of 7.42 pixels.
#[test]
fn no_name_is_wider_than_its_bar() {
    let names = ["a_rather_long_name_of_a_function".repeat(3), "名前".repeat(30), "x".repeat(20)];
    let frames: Vec<[Frame; 1]> = names.iter().map(|name| [native(name)]).collect();
    let stacks: Vec<(&[Frame], u32)> =
        frames.iter().zip([1, 7, 60]).map(|(frame, weight)| (frame.as_slice(), weight)).collect();
    let svg = graph("names", &selection(&stacks));
    let columns =
        |text: &str| text.chars().map(|letter| if letter < '\u{1100}' { 1.0 } else { 2.0 }).sum::<f64>();
    let mut n_texts = 0;
    for group in svg.split("<g>").chain(svg.split("<g class")).filter(|group| group.contains("<title>")) {
        let width: f64 = group.split_once("width=\"").unwrap().1.split('"').next().unwrap().parse().unwrap();
        let Some((_, text)) = group.split_once("<text ") else { continue };
        let text = text.split_once('>').unwrap().1.split('<').next().unwrap();
        assert!(3.0 + 7.42 * columns(text) <= width, "{text} in {width}");
        n_texts += 1;
    }
    assert!(n_texts >= 3, "{svg}");
}
