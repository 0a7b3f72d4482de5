//! Real children, and a thread that hangs.

use std::process::{Child, Command};
use std::thread;

use super::*;
use crate::span::service::Host;

/// A child that ends with the test.
struct Sleeper(Child);

impl Sleeper {
    fn start() -> Self {
        Self(Command::new("/bin/sleep").arg("60").env("OTEL_SERVICE_NAME", "sleep").spawn().unwrap())
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn prepared(rules: &str) -> (Directory, Prepared) {
    let rules = serde_saphyr::from_str(rules).unwrap();
    let services = Services::new(Host::read());
    prepare(Processes::new(rules, std::process::id(), services, Default::default()), None, None)
}

fn name(directory: &mut Directory, tgid: u32) -> String {
    directory.identity(tgid).service.name.clone()
}

#[test]
fn who_is_asked_about_has_a_name_and_an_instance() {
    let (mut directory, thread) = prepared("{}");
    thread.start().unwrap();
    let sleeper = Sleeper::start();
    let tgid = sleeper.0.id();
    directory.exec(tgid, 1, *b"sleep\0\0\0\0\0\0\0\0\0\0\0", ExecArguments::default());
    assert_eq!(name(&mut directory, tgid), "sleep");
    assert!(directory.news().into_iter().any(|news| news == News::Began(tgid)));
    assert!(directory.table().with(tgid, Process::is_settled).unwrap());
    let sent = directory.sent;
    assert_eq!((name(&mut directory, tgid).as_str(), directory.sent), ("sleep", sent), "asked once");
    // A fork is who its parent is, until it runs another program.
    directory.fork(u32::MAX, 1, tgid);
    assert_eq!(name(&mut directory, u32::MAX), "sleep");
    directory.exec(
        u32::MAX,
        3,
        *b"curl\0\0\0\0\0\0\0\0\0\0\0\0",
        ExecArguments::new(b"curl\0", (5, 0), true),
    );
    assert_eq!(name(&mut directory, u32::MAX), "curl");
    // No one has spoken of it, and it is not there.
    assert_eq!(name(&mut directory, u32::MAX - 1), "unknown_service");
    assert_eq!(directory.take_counts(), Counts::default());
    directory.tick();
    assert!(directory.pending.is_empty());
}

#[test]
fn what_is_asked_without_waiting_is_answered_in_turn() {
    let (mut directory, thread) = prepared("{}");
    let sleeper = Sleeper::start();
    let begun = Instant::now();
    // No one takes notices yet: a hundred processes that were waited for would take as many times the patience.
    (0..100).for_each(|_| directory.ask(sleeper.0.id()));
    assert!(directory.answered().is_none() || begun.elapsed() > PATIENCE, "nothing can be known");
    thread.start().unwrap();
    directory.await_answers();
    let answers: Vec<_> = std::iter::from_fn(|| directory.answered()).collect();
    assert!(begun.elapsed() < 100 * PATIENCE, "{:?}", begun.elapsed());
    assert_eq!(answers.len(), 100);
    // A machine may be too busy for an answer in time; then that is counted.
    let n_named = answers.iter().filter(|(_, identity)| identity.service.name == "sleep").count() as u64;
    let Counts { dropped, late } = directory.take_counts();
    assert!(dropped == 0 && n_named + late >= 100, "{n_named} named, {late} late");
    while directory.identity(sleeper.0.id()).service.name != "sleep" {
        assert!(begun.elapsed() < 100 * PATIENCE, "it is never known");
    }
    // One that is known needs no notice.
    let sent = directory.sent;
    directory.ask(sleeper.0.id());
    assert_eq!(directory.answered().unwrap().1.service.name, "sleep");
    assert_eq!(directory.sent, sent);
}

#[test]
fn a_thread_that_hangs_is_not_waited_for_longer_than_that() {
    let (mut directory, _thread) = prepared("{}");
    let begun = Instant::now();
    (0..50).for_each(|tgid| directory.ask(u32::MAX - tgid));
    let mut n_answers = 0;
    while n_answers < 50 {
        match directory.answered() {
            Some(_) => n_answers += 1,
            None => thread::sleep(Duration::from_millis(5)),
        }
    }
    assert!(begun.elapsed() >= PATIENCE, "{:?}", begun.elapsed());
    assert_eq!(directory.take_counts(), Counts { dropped: 0, late: 50 });
}

#[test]
fn new_rules_hold_when_they_have_been_set() {
    let (mut directory, thread) = prepared("{}");
    thread.start().unwrap();
    let sleeper = Sleeper::start();
    assert!(directory.identity(sleeper.0.id()).is_watched);
    directory.set_rules(serde_saphyr::from_str("{exclude: [{service: sleep}]}").unwrap());
    assert!(!directory.identity(sleeper.0.id()).is_watched);
    let excluded = Change { tgid: sleeper.0.id(), verdict: Some(Verdict::Excluded) };
    assert!(directory.news().into_iter().any(|news| news == News::Verdict(excluded)));
}

/// The kernel is asked to ignore a process when nothing more is to be found out about it.
#[test]
fn a_verdict_waits_for_the_program_that_follows() {
    const WATCHED: News = News::Verdict(Change { tgid: u32::MAX, verdict: Some(Verdict::Watch) });
    const IGNORED: News = News::Verdict(Change { tgid: u32::MAX, verdict: Some(Verdict::NotIncluded) });
    let curl = || ExecArguments::new(b"curl\0", (5, 0), true);
    let (mut directory, Prepared(mut work)) = prepared("{include: [{service: curl}]}");
    let mut take = |directory: &mut Directory, n| {
        for _ in 0..n {
            let (number, notice) = work.received.recv().unwrap();
            work.take(notice);
            work.publish();
            work.progress.reach(number);
        }
        let mut news = directory.news();
        news.retain(|news| matches!(news, News::Verdict(change) if change.tgid == u32::MAX));
        news
    };
    // A shell forks and runs what is watched: fork and exec come together, and one is read before the other.
    directory.fork(u32::MAX, 1, std::process::id() + 1);
    directory.exec(
        u32::MAX,
        2,
        *b"sh\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
        ExecArguments::new(b"sh\0", (3, 0), true),
    );
    directory.exec(u32::MAX, 3, *b"curl\0\0\0\0\0\0\0\0\0\0\0\0", curl());
    assert_eq!(take(&mut directory, 2), [], "it may be another program by now");
    assert_eq!(take(&mut directory, 1).last(), Some(&WATCHED), "the kernel has it in this order");
    assert_eq!(take(&mut directory, 0), [], "nothing stays back");
    // The kernel forgets its verdict at each exec, so it is given again.
    for _ in 0..2 {
        directory.exec(
            u32::MAX,
            2,
            *b"sh\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
            ExecArguments::new(b"sh\0", (3, 0), true),
        );
        assert_eq!(take(&mut directory, 1), [IGNORED]);
        let ignored_program { exec_id, any } = directory.program(u32::MAX);
        assert_eq!((exec_id, any), (2, 0));
    }
    directory.exit(u32::MAX, 0);
    assert_eq!(directory.program(u32::MAX).any, 1, "no record said which program it runs");
}

/// The thread is not started: as if a process kept it waiting for good.
#[test]
fn no_one_is_waited_for_twice() {
    let (mut directory, thread) = prepared("{}");
    for asked in 1..=100 {
        let Identity { service, is_watched, .. } = Identity::clone(&directory.identity(asked));
        assert_eq!((service.name.as_str(), is_watched), ("unknown_service", true));
        assert_eq!(directory.overdue, 1, "the first one is all that is waited for");
    }
    assert_eq!(directory.take_counts(), Counts { dropped: 0, late: 100 });
    // Notices have their bound.
    for tgid in 0..2 * u32::try_from(NOTICES).unwrap() {
        directory.exit(tgid, 0);
    }
    assert_eq!(directory.take_counts().dropped, NOTICES as u64 + 100);
    // It goes on: who was late is known, and others are waited for again.
    thread.start().unwrap();
    let begun = Instant::now();
    let sleeper = Sleeper::start();
    while name(&mut directory, sleeper.0.id()) != "sleep" {
        assert!(begun.elapsed() < Duration::from_secs(60));
        thread::yield_now();
    }
}
