//! Towers of Java methods that never mix, compiled here, and which of them a sample shows.
//!
//! In: a JDK, flags for it, chance. Out: a running program, and a judgement over samples of it. Each tower is a chain
//! of methods in a file of its own; the last one works. What calls the next is drawn: a static method, an object's, one
//! of an interface, a lambda, the JDK's sort, reflection. Refuses to know who takes the samples.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use fastrand::Rng;
use tempfile::TempDir;

use super::sampled::{Guest, Sampled};
use super::tower::{Judge, Verdict, judge};
use crate::process::{Program, READY, run};

/// It runs. Dropping it kills it.
#[derive(Debug)]
pub struct Towers {
    /// What its samples are called by.
    pub service: String,
    /// Process.
    pub program: Program,
    towers: Vec<Vec<Guest>>,
    _folder: TempDir,
}

/// How deep each tower is.
const DEPTHS: [usize; 3] = [5, 20, 60];
/// Methods of the program around its towers.
const AROUND: [&str; 3] = ["Main.main", "Main.spin", "Main.lambda$main$0"];
/// A method has so many lines at most.
const LINES: i64 = 5;
/// What of the JVM calls the outermost method.
const CALLER: &str = "libjvm.so";
const COMPILE: Duration = Duration::from_secs(120);

/// What calls the next method.
#[derive(Debug, Clone, Copy)]
enum Way {
    Static,
    Object,
    Interface,
    Lambda,
    Sorted,
    Reflected,
}

const WAYS: [Way; 8] = [
    Way::Static,
    Way::Static,
    Way::Object,
    Way::Object,
    Way::Interface,
    Way::Lambda,
    Way::Sorted,
    Way::Reflected,
];

impl Towers {
    /// Compiles it with a JDK's `javac`, or another one, and starts it with its `java`, and with these flags.
    ///
    /// # Errors
    /// When it does not compile, or does not start.
    pub fn start(home: &Path, flags: &[&str], rng: &mut Rng) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut towers = Vec::new();
        let mut files = Vec::new();
        let mut outermost = Vec::new();
        for depth in DEPTHS {
            let tower = Tower::draw(depth, rng);
            outermost.push(format!("{}.{}", tower.class, tower.first));
            let file = folder.path().join(&tower.file);
            fs::write(&file, &tower.text)?;
            files.push(file);
            towers.push(tower.truth);
        }
        let main = folder.path().join("Main.java");
        fs::write(&main, main_text(&outermost))?;
        // A runtime environment has no compiler.
        let compiler = Some(home.join("bin/javac")).filter(|compiler| compiler.exists());
        let mut compile = Command::new(compiler.unwrap_or_else(|| "javac".into()));
        compile.args(["--release", "11", "-d"]).arg(folder.path()).arg(&main).args(&files);
        run("javac", compile, COMPILE)?;
        let service = format!("towers-java-{}", rng.u32(..));
        let mut command = Command::new(home.join("bin/java"));
        command.args(flags).arg("-cp").arg(folder.path()).arg("Main").env("OTEL_SERVICE_NAME", &service);
        let mut program = Program::spawn(&service, command)?;
        program.await_line("ready", READY)?;
        Ok(Self { service, program, towers, _folder: folder })
    }

    /// What samples show.
    #[must_use]
    pub fn judge(&self, samples: &[Sampled]) -> Verdict {
        judge(self, samples)
    }

    /// The program's own methods of a sample, outermost first.
    fn own<'a>(&self, sample: &'a Sampled) -> Vec<&'a Guest> {
        let is_own = |guest: &&Guest| !is_of_the_jdk(guest);
        sample.guests.iter().rev().filter(is_own).collect()
    }
}

impl Judge for Towers {
    fn is_right(&self, sample: &Sampled) -> bool {
        let own = self.own(sample);
        let around = own.iter().take_while(|guest| is_around(guest)).count();
        let tower = &own[around..];
        around > 0
            && self.towers.iter().any(|known| {
                known.len() >= tower.len()
                    && known.iter().zip(tower).all(|(known, shown)| {
                        (&known.name, &known.file, known.start_line)
                            == (&shown.name, &shown.file, shown.start_line)
                    })
            })
    }

    fn has_lines(&self, sample: &Sampled) -> bool {
        let mut own = self.own(sample).into_iter().filter(|guest| !is_around(guest) && guest.line > 0);
        own.all(|guest| (guest.start_line..guest.start_line + LINES).contains(&guest.line))
    }

    /// The JVM's own function stands behind the outermost method, with nothing but its stub between.
    fn is_in_place(&self, sample: &Sampled) -> bool {
        let Some(outermost) = sample.guests.last() else { return false };
        let last = sample.frames.iter().rposition(|frame| frame.name == outermost.name);
        let behind = last.map(|last| &sample.frames[last + 1..]).unwrap_or_default();
        behind.iter().take(3).any(|frame| frame.file.ends_with(CALLER))
    }
}

fn is_around(guest: &Guest) -> bool {
    AROUND.contains(&&*guest.name) && guest.file == "Main.java"
}

/// Methods between those of towers: of the JDK, of classes that it makes for lambdas, and what calls by reflection.
fn is_of_the_jdk(guest: &Guest) -> bool {
    ["java.", "jdk.", "sun."].iter().any(|start| guest.name.starts_with(start))
        || guest.name.contains("$$Lambda")
        || guest.name == "Main.invoke"
}

struct Tower {
    class: String,
    file: String,
    first: String,
    text: String,
    /// Outermost first.
    truth: Vec<Guest>,
}

impl Tower {
    fn draw(depth: usize, rng: &mut Rng) -> Self {
        let class = capital(&name(rng));
        let file = format!("{class}.java");
        let names: Vec<String> = (0..depth).map(|_| name(rng)).collect();
        let mut tower = Self { first: names[0].clone(), class, file, text: String::new(), truth: Vec::new() };
        tower.line("import java.util.Arrays;");
        tower.line(&format!("class {} {{", tower.class));
        for pair in names.windows(2) {
            let way = WAYS[rng.usize(..WAYS.len())];
            tower.add(way, &pair[0], &pair[1]);
        }
        tower.leaf(&names[depth - 1]);
        tower.line("}");
        tower
    }

    fn add(&mut self, way: Way, own: &str, next: &str) {
        let class = self.class.clone();
        let inner = capital(own);
        match way {
            Way::Static => self.method(own, &format!("return {next}(n) + 1;")),
            Way::Object => {
                self.line(&format!("static {inner} {own}Object = new {inner}();"));
                self.method(own, &format!("return {own}Object.{own}(n) + 1;"));
                self.line(&format!("static class {inner} {{"));
                let body = format!("return {class}.{next}(n) - 1;");
                self.in_class(&inner, "int", own, &body);
                self.line("}");
            }
            Way::Interface => {
                self.line(&format!("interface Of{inner} {{ int {own}(int n); }}"));
                self.line(&format!("static Of{inner} {own}Object = new {inner}();"));
                self.method(own, &format!("return {own}Object.{own}(n) + 1;"));
                self.line(&format!("static class {inner} implements Of{inner} {{"));
                let body = format!("return {class}.{next}(n) - 1;");
                self.in_class(&inner, "public int", own, &body);
                self.line("}");
            }
            Way::Lambda => {
                self.method(own, &format!("return {inner}.made.applyAsInt(n) + 1;"));
                self.line(&format!("static class {inner} {{"));
                self.line("static java.util.function.IntUnaryOperator made = n ->");
                self.tell(&format!("{inner}.lambda$static$0"));
                self.line(&format!("{class}.{next}(n);"));
                self.line("}");
            }
            Way::Sorted => {
                self.line(&format!("static {inner} {own}Order = new {inner}();"));
                let sort = format!("Arrays.sort(new Integer[] {{ n, n + 1 }}, {own}Order); return n;");
                self.method(own, &sort);
                // What takes any objects is the compiler's, in the line of the class.
                self.tell(&format!("{inner}.compare"));
                self.line(&format!("static class {inner} implements java.util.Comparator<Integer> {{"));
                let body = format!("return {class}.{next}(a);");
                self.line("public int compare(Integer a, Integer b) {");
                self.tell(&format!("{inner}.compare"));
                self.line(&body);
                self.line("}");
                self.line("}");
            }
            Way::Reflected => {
                let field = format!(
                    "static java.lang.reflect.Method {own}Method = Main.method({class}.class, \"{next}\");"
                );
                self.line(&field);
                self.method(own, &format!("return (Integer) Main.invoke({own}Method, n);"));
            }
        }
    }

    fn method(&mut self, own: &str, body: &str) {
        self.line(&format!("static int {own}(int n) {{"));
        self.tell(own);
        self.line(body);
        self.line("}");
    }

    fn in_class(&mut self, inner: &str, kind: &str, own: &str, body: &str) {
        self.line(&format!("{kind} {own}(int n) {{"));
        self.tell(&format!("{inner}.{own}"));
        self.line(body);
        self.line("}");
    }

    fn leaf(&mut self, own: &str) {
        self.line(&format!("static int {own}(int n) {{"));
        self.tell(own);
        self.line("int sum = 0;");
        self.line("for (int i = 0; i < 300; i++)");
        self.line("sum += i ^ n;");
        self.line("return sum;");
        self.line("}");
    }

    /// The next line is a method's first. A class inside another has a dollar sign before its name.
    fn tell(&mut self, inside: &str) {
        let line = 1 + i64::try_from(self.text.lines().count()).unwrap_or_default();
        let sign = if inside.starts_with(|sign: char| sign.is_ascii_uppercase()) { '$' } else { '.' };
        let name = format!("{}{sign}{inside}", self.class);
        self.truth.push(Guest { name, file: self.file.clone(), line, start_line: line });
    }

    fn line(&mut self, text: &str) {
        // A text always has room.
        let _ = writeln!(self.text, "{text}");
    }
}

/// Runs all towers in turn, in two threads.
fn main_text(outermost: &[String]) -> String {
    let calls: String = outermost.iter().map(|call| format!("            sum += {call}(sum);\n")).collect();
    format!(
        "import java.lang.reflect.Method;
public class Main {{
    static Method method(Class<?> owner, String name) {{
        try {{
            return owner.getDeclaredMethod(name, int.class);
        }} catch (ReflectiveOperationException error) {{
            throw new IllegalStateException(error);
        }}
    }}
    static Object invoke(Method method, int n) {{
        try {{
            return method.invoke(null, n);
        }} catch (ReflectiveOperationException error) {{
            throw new IllegalStateException(error);
        }}
    }}
    static void spin() {{
        int sum = 0;
        while (true) {{
{calls}        }}
    }}
    public static void main(String[] arguments) {{
        System.out.println(\"ready\");
        new Thread(() -> spin()).start();
        spin();
    }}
}}
"
    )
}

fn name(rng: &mut Rng) -> String {
    // No word of the language has so many letters.
    (0..14).map(|_| rng.lowercase()).collect()
}

fn capital(name: &str) -> String {
    let mut letters = name.chars();
    letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters).collect()
}

/// The JDKs of this machine: the first; where `wanted` says so those whose path it is part of, or `all`, or the one in
/// that folder.
///
/// # Errors
/// When none is installed.
pub fn jdks(wanted: Option<&str>) -> anyhow::Result<Vec<PathBuf>> {
    if let Some(folder) = wanted.filter(|wanted| wanted.starts_with('/')) {
        return Ok(vec![folder.into()]);
    }
    let homes = fs::read_dir("/usr/lib/jvm").context("no JDK is installed")?;
    let mut homes: Vec<PathBuf> = homes
        .flatten()
        .filter_map(|entry| entry.path().canonicalize().ok())
        .filter(|home| home.join("bin/javac").exists() && home.join("lib/server/libjvm.so").exists())
        .collect();
    homes.sort();
    homes.dedup();
    match wanted {
        Some("all") => {}
        Some(part) => homes.retain(|home| home.to_string_lossy().contains(part)),
        None => homes.truncate(1),
    }
    anyhow::ensure!(!homes.is_empty(), "no JDK is installed");
    Ok(homes)
}
