//! Lists the migrations, which the binary carries. Listed here, as sqlx's macros would compile both drivers once more to run them.

use std::collections::BTreeSet;
use std::env;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// SQLite's, with PostgreSQL's in a folder of their own.
const MIGRATIONS: &str = "../../migrations";

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed={MIGRATIONS}");
    let root = env::current_dir()?.join(MIGRATIONS);
    let mut files = BTreeSet::new();
    collect(&root, &mut files)?;
    let mut list = "pub(super) const FILES: &[(&str, &str)] = &[\n".to_owned();
    for file in files {
        let inside = file.strip_prefix(&root).expect("it was found there");
        let inside: Vec<_> = inside.iter().map(|part| part.to_string_lossy()).collect();
        let (name, path) = (inside.join("/"), file.to_string_lossy());
        writeln!(list, "    ({name:?}, include_str!({path:?})),").expect("text takes everything");
    }
    list += "];\n";
    let out = env::var_os("OUT_DIR").expect("cargo says where");
    fs::write(PathBuf::from(out).join("migrations.rs"), list)
}

/// All files below `folder`, but for notes.
fn collect(folder: &Path, files: &mut BTreeSet<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_none_or(|kind| kind != "md") {
            files.insert(path);
        }
    }
    Ok(())
}
