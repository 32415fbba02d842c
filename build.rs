//! Names the rules that this build answers by: `BATCHFIT_RULES` is a digest of all sources that an answer
//! can depend on. A number that people have to raise would be forgotten, and old answers served for new ones.
//! It also lists the files of the page in the browser, which the binary carries.

use std::collections::BTreeSet;
use std::env;
use std::fmt::Write as _;
use std::fs;
use std::hash::{DefaultHasher, Hasher as _};
use std::io;
use std::path::{Path, PathBuf};

/// Modules that answers pass through unchanged, and the Python package, which a source distribution puts there.
const WITHOUT_RULES: [&str; 6] = [
    "src/agent",
    "src/batchfit",
    "src/cli",
    "src/http",
    "src/report",
    "src/store",
];

/// What the page in the browser is made of, except for what says where it is from.
const PAGE: &str = "src/http/page";

fn main() -> io::Result<()> {
    let sources = ["crates", "src"];
    for folder in sources {
        println!("cargo::rerun-if-changed={folder}");
    }
    // Not a rule, but read by `sqlx::migrate!`, which cannot say so itself.
    println!("cargo::rerun-if-changed=migrations");
    let mut files = BTreeSet::new();
    for folder in sources {
        collect(Path::new(folder), &mut files)?;
    }
    // No secret and no defence: an accident in 2^64 is good enough.
    let mut rules = DefaultHasher::new();
    for file in files {
        rules.write(file.to_string_lossy().as_bytes());
        let text = fs::read(&file)?;
        rules.write_usize(text.len());
        rules.write(&text);
    }
    println!("cargo::rustc-env=BATCHFIT_RULES={:016x}", rules.finish());
    embed_page()
}

/// Writes the list of the page's files, by their paths below its folder, with `/` between folders.
fn embed_page() -> io::Result<()> {
    let mut files = BTreeSet::new();
    collect(Path::new(PAGE), &mut files)?;
    let root = env::current_dir()?;
    let mut list = "pub(super) const FILES: &[(&str, &[u8])] = &[\n".to_owned();
    for file in files {
        let inside = file.strip_prefix(PAGE).expect("it was found there");
        let inside: Vec<_> = inside.iter().map(|part| part.to_string_lossy()).collect();
        writeln!(
            list,
            "    ({:?}, include_bytes!({:?})),",
            inside.join("/"),
            root.join(&file).to_string_lossy()
        )
        .expect("text takes everything");
    }
    list += "];\n";
    let out = env::var_os("OUT_DIR").expect("cargo says where");
    fs::write(Path::new(&out).join("page.rs"), list)
}

/// All files below `folder`, but for folders without rules and for notes.
fn collect(folder: &Path, files: &mut BTreeSet<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            if WITHOUT_RULES.iter().all(|other| path != Path::new(other)) {
                collect(&path, files)?;
            }
        } else if path.extension().is_none_or(|kind| kind != "md") {
            files.insert(path);
        }
    }
    Ok(())
}
