//! Whether a thread's other work may be for other requests as well.

use super::*;

/// Read by a thread that waits for many things at once.
fn in_loop(number: u64, started: u64) -> Begun<'static> {
    Begun { cause: Cause { waits_many: true, ..Cause::default() }, ..served(number, 11, started) }
}

#[test]
fn requests_of_a_loop_are_shared_when_others_were_open() {
    let check = |steps: &[Step], number: u64, expected: bool| {
        let mut causes = causes();
        places(&mut causes, steps);
        assert_eq!(causes.is_shared(number), expected, "{number}");
    };
    let [one, two, three] = [in_loop(1, 10), in_loop(200, 20), in_loop(300, 30)];
    let alone = [Begin(one), End(end(one, 15)), Begin(two), End(end(two, 25))];
    check(&alone, 1, false);
    check(&alone, 200, false);
    // The second begins during the first, the third when the second is over and the first is not.
    let long =
        [Begin(one), Begin(two), End(end(two, 25)), Begin(three), End(end(three, 35)), End(end(one, 40))];
    [1, 200, 300].into_iter().for_each(|number| check(&long, number, true));
    let behind = in_loop(400, 50);
    // Heard of in another order.
    let swapped = [Begin(two), Begin(one), End(end(one, 22)), End(end(two, 25))];
    [1, 200].into_iter().for_each(|number| check(&swapped, number, true));
    let later = [&long[..], &[Begin(behind), End(end(behind, 60))]].concat();
    check(&later, 400, false);
    // What is not known is not believed.
    check(&[], 1, true);
}

#[test]
fn threads_that_serve_one_request_share_nothing() {
    let mut causes = causes();
    let (one, two) = (served(1, 11, 10), served(200, 12, 20));
    places(&mut causes, &[Begin(one), Begin(two), End(end(two, 25)), End(end(one, 40))]);
    assert!(!causes.is_shared(1) && !causes.is_shared(200));
}

#[test]
fn a_call_of_a_loop_is_shared_and_continues_its_request() {
    let mut causes = causes();
    let request = in_loop(1, 10);
    let made = |candidate, behind| {
        let cause = Cause { candidate, by_runtime: true, behind, ..Cause::default() };
        Begun { cause, ..call(500, 11, 12, candidate) }
    };
    let asked = made(1, None);
    places(&mut causes, &[Begin(request), Begin(asked), End(end(asked, 14)), End(end(request, 20))]);
    assert!(causes.is_shared(500) && !causes.is_shared(1));
    assert_eq!((causes.continued(500), causes.continued(1)), (Some(1), None));
    let unknown = made(0, None);
    places(&mut causes, &[Begin(unknown), End(end(unknown, 30))]);
    assert_eq!(causes.continued(500), None);
    // A thread says nothing of what goes on with an answer.
    let by_thread = call(600, 11, 40, 1);
    places(&mut causes, &[Begin(by_thread), End(end(by_thread, 50))]);
    assert_eq!(causes.continued(600), None);
}
