//! Programs that only start another one, to the one they start: application servers, task runners, wrappers.
//!
//! In: the launcher's name and its arguments. Out: the application's name, if it is named there.

use super::program::stem;

/// Where a launcher's arguments name what to run.
#[derive(Debug, Clone, Copy)]
enum NamedBy {
    /// As `module:attribute` or a module anywhere among its options (WSGI and ASGI servers).
    Module,
    /// As the value of one of these options.
    Option(&'static [&'static str]),
    /// As a script behind one of these words, or as the first word.
    Script(&'static [&'static str]),
}

const LAUNCHERS: [(&str, NamedBy); 24] = [
    ("gunicorn", NamedBy::Module),
    ("uvicorn", NamedBy::Module),
    ("hypercorn", NamedBy::Module),
    ("daphne", NamedBy::Module),
    ("granian", NamedBy::Module),
    ("waitress-serve", NamedBy::Module),
    ("waitress", NamedBy::Module),
    ("sanic", NamedBy::Module),
    ("celery", NamedBy::Option(&["-A", "--app"])),
    ("flask", NamedBy::Option(&["-A", "--app"])),
    ("uwsgi", NamedBy::Option(&["-w", "--module", "--wsgi", "--wsgi-file", "--file"])),
    ("streamlit", NamedBy::Script(&["run"])),
    ("fastapi", NamedBy::Script(&["run", "dev"])),
    ("coverage", NamedBy::Script(&["run"])),
    ("bundle", NamedBy::Script(&["exec"])),
    ("ts-node", NamedBy::Script(&[])),
    ("tsx", NamedBy::Script(&[])),
    ("nodemon", NamedBy::Script(&[])),
    ("plackup", NamedBy::Script(&[])),
    ("starman", NamedBy::Script(&[])),
    ("hypnotoad", NamedBy::Script(&[])),
    ("morbo", NamedBy::Script(&["daemon"])),
    ("newrelic-admin", NamedBy::Script(&["run-program"])),
    ("uvicorn.main", NamedBy::Module),
];

/// The application that this launcher is to run; `None` when it is no launcher or its arguments name none.
pub(super) fn application(launcher: &str, arguments: &[String]) -> Option<String> {
    let (_, reported) = LAUNCHERS.iter().find(|(name, _)| *name == launcher)?;
    let name = match reported {
        NamedBy::Module => named_module(arguments)?,
        NamedBy::Option(options) => value_of(arguments, options)?,
        NamedBy::Script(words) => {
            let mut positional =
                arguments.iter().map(String::as_str).filter(|argument| !argument.starts_with('-'));
            let first = positional.next()?;
            let script = if words.contains(&first) { positional.next()? } else { first };
            return Some(stem(script).to_owned());
        }
    };
    let name = if name.contains('/') { stem(name) } else { module(name) };
    (!name.is_empty()).then(|| name.to_owned())
}

/// `shop.wsgi:application` is `shop`: what follows the colon is a variable, and `wsgi` names a protocol.
pub(super) fn module(name: &str) -> &str {
    let module = name.split(':').next().unwrap_or(name);
    let module = module.strip_suffix(".py").unwrap_or(module);
    module.strip_suffix(".wsgi").or_else(|| module.strip_suffix(".asgi")).unwrap_or(module)
}

fn named_module(arguments: &[String]) -> Option<&str> {
    let with_attribute = |argument: &&str| {
        argument.split_once(':').is_some_and(|(module, attribute)| {
            is_module(module) && attribute.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        })
    };
    let words = || arguments.iter().map(String::as_str);
    let first = || words().next().filter(|first| is_module(first));
    // Behind options: the last word, unless it may be the value of the option before it.
    let last = || match arguments {
        [.., before, last] if is_module(last) && (!before.starts_with('-') || before.contains('=')) => {
            Some(last.as_str())
        }
        _ => None,
    };
    words().find(with_attribute).or_else(first).or_else(last)
}

fn is_module(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'.')
}

fn value_of<'a>(arguments: &'a [String], options: &[&str]) -> Option<&'a str> {
    arguments.iter().enumerate().find_map(|(at, argument)| {
        if options.contains(&argument.as_str()) {
            return arguments.get(at + 1).map(String::as_str);
        }
        let (name, value) = argument.split_once('=')?;
        options.contains(&name).then_some(value)
    })
}
