//! Circles of files: each of them names something that the next one defines.
//!
//! This module owns the resolution of paths to the file that defines what they name, and the search
//! for circles. A re-export counts as a use of nothing: who names it uses the file behind it. Files
//! of tests and test items do not count.

use std::collections::{BTreeMap, BTreeSet};

use crate::lexer::{blank_text, without_tests};
use crate::paths::{Origin, Path, paths_in};
use crate::walls::is_test_file;

/// The crates and the directories of their sources.
const CRATES: [(&str, &str); 6] = [
    ("bkfs", "src/"),
    ("bkfs_bench", "bench/src/"),
    ("bkfs_chunker", "chunker/src/"),
    ("bkfs_fuse", "fuse/src/"),
    ("bkfs_store", "chunker/store/src/"),
    ("bkfs_testing", "tests/testing/src/"),
];

/// How many re-exports a path may pass.
const REEXPORTS_MAX: usize = 8;

/// The path of a module from its crate: `["bkfs", "root", "state"]`.
type Name = Vec<String>;

/// One file.
struct Module {
    file: String,
    code: String,
    paths: Vec<Path>,
}

impl Module {
    /// Returns the paths that the module imports, with the names that it gives them.
    fn imports(&self) -> impl Iterator<Item = (&Path, &str)> {
        self.paths.iter().filter_map(|path| match &path.origin {
            Origin::Import { name, .. } => Some((path, name.as_str())),
            Origin::Body => None,
        })
    }

    /// Returns whether the code, imports aside, has this word.
    fn uses(&self, word: &str) -> bool {
        self.paths.iter().any(|path| {
            path.origin == Origin::Body && path.segments.iter().any(|segment| segment == word)
        })
    }

    /// Returns whether the module defines an item of this name.
    fn defines(&self, name: &str) -> bool {
        let keywords = ["struct", "enum", "trait", "fn", "const", "static", "type"];
        let words: Vec<&str> = self
            .code
            .split(|character: char| !character.is_alphanumeric() && character != '_')
            .filter(|word| !word.is_empty())
            .collect();
        let mut pairs = words.windows(2);
        pairs.any(|pair| pair[1] == name && keywords.contains(&pair[0]))
    }
}

/// Returns one line per circle: its files, and an example of what each takes from the next.
pub fn violations(files: &[(String, String)]) -> Vec<String> {
    let modules = modules(files);
    let graph = graph(&modules);
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for start in graph.keys() {
        if seen.contains(start) {
            continue;
        }
        if let Some(circle) = shortest_circle(&graph, start) {
            found.push(told(&modules, &graph, &circle));
            seen.extend(circle);
        }
    }
    found
}

fn modules(files: &[(String, String)]) -> BTreeMap<Name, Module> {
    let own = files.iter().filter(|(file, _)| !is_test_file(file));
    own.filter_map(|(file, text)| {
        let name = name_of(file)?;
        let (code, _) = without_tests(&blank_text(text));
        let (file, paths) = (file.clone(), paths_in(&code));
        Some((name, Module { file, code, paths }))
    })
    .collect()
}

/// Returns the name of the module in a file, or `None` if the file is in none of the crates. The
/// program is apart from its library.
fn name_of(file: &str) -> Option<Name> {
    let (crate_name, path) = CRATES
        .iter()
        .find_map(|(name, directory)| Some((*name, file.strip_prefix(directory)?)))?;
    let path = path.strip_suffix(".rs")?;
    if path == "main" {
        return Some(vec![format!("{crate_name} (program)")]);
    }
    let path = path.strip_suffix("/mod").unwrap_or(path);
    let mut name = vec![crate_name.to_owned()];
    name.extend(
        path.split('/')
            .filter(|part| *part != "lib")
            .map(str::to_owned),
    );
    Some(name)
}

type Graph = BTreeMap<Name, BTreeMap<Name, String>>;

/// Returns for each module those that it takes something from, with an example.
fn graph(modules: &BTreeMap<Name, Module>) -> Graph {
    let mut graph = Graph::new();
    for (name, module) in modules {
        let imports = module.imports().collect::<Vec<_>>();
        let needed = module.paths.iter().filter(|path| match &path.origin {
            Origin::Import {
                name,
                is_public: true,
            } => module.uses(name),
            _ => true,
        });
        for path in needed {
            let Some(absolute) = absolute(modules, name, &imports, path) else {
                continue;
            };
            let Some((target, item)) = resolve(modules, &absolute, REEXPORTS_MAX) else {
                continue;
            };
            if target != *name {
                graph.entry(name.clone()).or_default().insert(target, item);
            }
        }
    }
    graph
}

/// Returns a path from the root of its crate; `None` if it leads out of the workspace.
fn absolute(
    modules: &BTreeMap<Name, Module>,
    from: &Name,
    imports: &[(&Path, &str)],
    path: &Path,
) -> Option<Name> {
    let segments = &path.segments;
    let first = segments.first()?.as_str();
    let crate_name = from[0].split(' ').next().unwrap_or_default();
    if first == "crate" {
        return Some([&[crate_name.to_owned()], &segments[1..]].concat());
    }
    if first == "super" {
        let up = segments.iter().take_while(|part| *part == "super").count();
        let above = from.get(..from.len().checked_sub(up)?)?;
        return Some([above, &segments[up..]].concat());
    }
    if first == "self" {
        return Some([from.as_slice(), &segments[1..]].concat());
    }
    let child = [from.as_slice(), &segments[..1]].concat();
    if modules.keys().any(|name| name.starts_with(&child)) {
        return Some([from.as_slice(), segments].concat());
    }
    if CRATES.iter().any(|(name, _)| *name == first) {
        return Some(segments.clone());
    }
    // A bare word is the imported name itself, which the import stands for.
    let is_chain = path.origin == Origin::Body && segments.len() > 1;
    let (import, _) = imports
        .iter()
        .find(|(_, name)| is_chain && *name == first)?;
    let above = absolute(modules, from, &[], import)?;
    Some([above.as_slice(), &segments[1..]].concat())
}

/// Returns the module that defines what an absolute path names, and the name that it has there.
/// `None` if the path is that of a module.
fn resolve(
    modules: &BTreeMap<Name, Module>,
    path: &[String],
    reexports_left: usize,
) -> Option<(Name, String)> {
    let is_module = |name: &[String]| modules.keys().any(|known| known.starts_with(name));
    let depth = (1..=path.len())
        .take_while(|&depth| is_module(&path[..depth]))
        .last()?;
    let (module, item) = (path[..depth].to_vec(), path.get(depth)?);
    let code = modules.get(&module)?;
    let imports = code.imports().collect::<Vec<_>>();
    let next = reexports_left.checked_sub(1);
    for (import, name) in &imports {
        let Some(target) = absolute(modules, &module, &[], import).filter(|_| name == item) else {
            continue;
        };
        let target = [target.as_slice(), &path[depth + 1..]].concat();
        if target != path
            && let Some(found) = next.and_then(|left| resolve(modules, &target, left))
        {
            return Some(found);
        }
    }
    let globs = imports.iter().filter(|(_, name)| *name == "*");
    for (import, _) in globs {
        let mut target = absolute(modules, &module, &[], import).unwrap_or_default();
        target.pop();
        if modules.get(&target).is_some_and(|glob| glob.defines(item)) {
            return Some((target, item.clone()));
        }
    }
    Some((module, item.clone()))
}

/// Returns the shortest way from `start` back to itself.
fn shortest_circle(graph: &Graph, start: &Name) -> Option<Vec<Name>> {
    let mut before: BTreeMap<&Name, &Name> = BTreeMap::new();
    let mut reached = vec![start];
    let mut next = 0;
    while let Some(&name) = reached.get(next) {
        next += 1;
        for target in graph.get(name).into_iter().flat_map(BTreeMap::keys) {
            if target == start {
                let mut circle = vec![name.clone()];
                let mut at = name;
                while at != start {
                    at = before[at];
                    circle.push(at.clone());
                }
                circle.reverse();
                return Some(circle);
            }
            if !before.contains_key(target) {
                before.insert(target, name);
                reached.push(target);
            }
        }
    }
    None
}

fn told(modules: &BTreeMap<Name, Module>, graph: &Graph, circle: &[Name]) -> String {
    let file = |name: &Name| modules[name].file.as_str();
    let steps = circle.iter().zip(circle.iter().cycle().skip(1));
    let steps = steps.map(|(from, to)| {
        let item = &graph[from][to];
        format!("{} takes {item} of {}", file(from), file(to))
    });
    format!(
        "a circle of files: {}",
        steps.collect::<Vec<_>>().join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let files = files
            .iter()
            .map(|(file, text)| ((*file).to_owned(), (*text).to_owned()));
        violations(&files.collect::<Vec<_>>())
    }

    #[test]
    fn a_circle_is_found_however_its_arrows_are_written() {
        for (there, back) in [
            ("use crate::b::B;", "use crate::a::A;"),
            ("use super::b::{B as Other, C};", "fn f() { crate::a::g() }"),
            (
                "use crate::b; fn f() { b::g() }",
                "use crate::{a::A, c::C};",
            ),
            ("use crate::room::B;", "use crate::a::*; fn f(a: A) {}"),
        ] {
            let circle = found(&[
                ("src/lib.rs", "pub mod a; pub mod b; pub mod room;"),
                (
                    "src/a.rs",
                    &format!("{there} pub struct A; pub fn g() {{}}"),
                ),
                (
                    "src/b.rs",
                    &format!("{back} pub struct B; pub struct C; pub fn g() {{}}"),
                ),
                ("src/room/mod.rs", "pub use crate::b::B;"),
            ]);
            assert_eq!(circle.len(), 1, "{there} {back}: {circle:?}");
            assert!(circle[0].contains("src/a.rs takes"), "{circle:?}");
        }
    }

    #[test]
    fn a_circle_of_three_is_found_across_rooms() {
        let circle = found(&[
            ("chunker/src/lib.rs", ""),
            (
                "chunker/src/a/mod.rs",
                "mod inner; pub use inner::I; use crate::b::B;",
            ),
            (
                "chunker/src/a/inner.rs",
                "pub struct I; fn f(x: super::X) {}",
            ),
            ("chunker/src/b.rs", "use crate::a::I; pub struct B;"),
        ]);
        assert_eq!(circle.len(), 1, "{circle:?}");
        assert!(circle[0].contains("chunker/src/b.rs takes I of chunker/src/a/inner.rs"));
    }

    #[test]
    fn what_is_no_circle_passes() {
        let none = found(&[
            // A re-export is no use, nor is a declaration.
            ("src/a/mod.rs", "mod inner; pub use inner::I; pub struct A;"),
            ("src/a/inner.rs", "pub struct I; fn f(a: super::A) {}"),
            // Nor is what only tests name.
            (
                "src/b.rs",
                "pub struct B; #[cfg(test)] mod tests { use crate::c::C; }",
            ),
            ("src/c.rs", "use crate::b::B; pub struct C;"),
            ("src/c/tests.rs", "use crate::c::C;"),
            // The program may name the library, and each of two crates an `a`.
            ("src/main.rs", "use bkfs::b::B;"),
            ("chunker/src/a.rs", "use crate::b::B;"),
        ]);
        assert_eq!(none, Vec::<String>::new());
    }
}
