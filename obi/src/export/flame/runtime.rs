//! Frames of an interpreter or a virtual machine that only lead from one function of the program to the next.
//!
//! In: a stack. Out: those of its frames that a picture shows. What a runtime does for the innermost function of the
//! program stays: that is where its time goes. Refuses to know runtimes by name: one is the file that calls functions
//! of the program.

use std::collections::BTreeSet;

use super::look::{Frames, Look, View};
use crate::profile::waits::{own_begin, own_frames};
use crate::profile::{Fidelity, Frame, Runtime, Stack};

/// Leaf first, as in the stack. Where callers are looked for, without who has ended a wait: that is no caller.
pub(super) fn shown(stack: &Stack, look: Look) -> impl DoubleEndedIterator<Item = &Frame> {
    let all = &stack.frames;
    let files = match look.frames {
        Frames::Program => runtimes(stack),
        Frames::All => BTreeSet::new(),
    };
    // Before it: who has ended the wait.
    let own = own_begin(all);
    let innermost = all[own..].iter().position(is_of_program).map_or(all.len(), |position| own + position);
    let first = if look.view == View::Callers { own } else { 0 };
    let leads = move |index: usize| index < own || index > innermost;
    let is_shown = move |(index, frame): &(usize, &Frame)| {
        let is_runtime = file(frame).is_some_and(|file| files.contains(file));
        *index >= first && (is_of_program(frame) || !is_runtime || !leads(*index))
    };
    all.iter().enumerate().filter(is_shown).map(|(_, frame)| frame)
}

/// Files that call functions of the program, in the stack of the thread itself. Code without a file may stand between.
fn runtimes(stack: &Stack) -> BTreeSet<&str> {
    let mut files = BTreeSet::new();
    let mut callee_is_of_program = false;
    for frame in own_frames(&stack.frames) {
        if is_of_program(frame) {
            callee_is_of_program = true;
        } else if let Some(file) = file(frame) {
            files.extend(callee_is_of_program.then_some(file));
            callee_is_of_program = false;
        }
    }
    files
}

fn is_of_program(frame: &Frame) -> bool {
    let is_guest =
        matches!(frame.symbol.runtime, Runtime::Cpython | Runtime::V8 | Runtime::Jvm | Runtime::Dotnet);
    is_guest && frame.symbol.fidelity != Fidelity::Marker
}

/// What a native frame lies in, if that is a file.
fn file(frame: &Frame) -> Option<&str> {
    let path = frame.mapping.as_ref().map(|mapping| &*mapping.path);
    path.filter(|path| !path.is_empty() && !path.starts_with('['))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::profile::waits::released;
    use crate::profile::{Line, Mapping, Symbol};

    /// `name`, `name@file`; `PYTHON` functions have upper-case names.
    fn frame(text: &str) -> Frame {
        if text == "RELEASED" {
            return released(Some("/report"), "");
        }
        let (name, file) = text.split_once('@').unwrap_or((text, ""));
        let is_python = name.chars().all(|c| c.is_ascii_uppercase());
        let runtime = if is_python { Runtime::Cpython } else { Runtime::Native };
        let mapping = (!file.is_empty())
            .then(|| Arc::new(Mapping { path: format!("/{file}").into(), ..Mapping::default() }));
        let lines = vec![Line { function: name.into(), ..Line::default() }];
        let symbol = Arc::new(Symbol { lines, fidelity: Fidelity::Function, runtime });
        Frame { address: 1, is_return: true, mapping, symbol }
    }

    fn names(stack: &Stack, view: View) -> String {
        let shown = shown(stack, Look { frames: Frames::Program, view }).rev();
        shown.map(|frame| &*frame.symbol.lines[0].function).collect::<Vec<_>>().join(" ")
    }

    /// Stacks root first, as pictures have them.
    fn check(stack: &str, expected: &str) {
        let frames: Vec<Frame> = stack.split(' ').rev().map(frame).collect();
        let stack = Stack { frames };
        assert_eq!(names(&stack, View::Flame), expected);
        let all = Look { frames: Frames::All, view: View::Flame };
        assert_eq!(shown(&stack, all).count(), stack.frames.len());
    }

    #[test]
    fn a_runtime_between_functions_of_the_program_is_left_out() {
        check("start@libc run@py eval@py A B call@py eval@py C", "start A B C");
        // What it does for the innermost one stays, and what it asks others to do.
        check("run@py A eval@py B sort@py compare@py memcmp@libc", "A B sort compare memcmp");
        // An extension that calls back is no part of it.
        check("eval@py A call@py map@numpy eval@py B", "A map B");
        // Code without a file stands between the Java machine and methods.
        check("main@java call@jvm stub A B native@jvm", "main stub A B native");
        // A program without functions of a runtime keeps all.
        check("start@libc main@shop find@shop", "start main find");
        check("start@libc main@py", "start main");
    }

    #[test]
    fn a_thread_that_has_ended_a_wait_shows_functions_of_the_program_too() {
        let own = "run@py eval@py A acquire@py wait@libc";
        let whole = format!("{own} RELEASED post@libc release@py B");
        let stack = Stack { frames: whole.split(' ').rev().map(frame).collect() };
        assert_eq!(names(&stack, View::Callers), "A acquire wait", "who has ended it has not called it");
        // Its stack goes on innermost first.
        check(
            &format!("{own} RELEASED post@libc release@py B call@py C run@py"),
            "A acquire wait [released by /report] post B C",
        );
    }
}
