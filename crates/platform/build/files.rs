//! For the build scripts of all crates: the files of a folder, and lists of them for what a binary carries.
#![allow(dead_code, reason = "no script needs all of it")]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// Adds all files below `folder`, but for notes.
pub fn collect(folder: &Path, files: &mut BTreeSet<PathBuf>) -> io::Result<()> {
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

/// Rust text: a list of files below a folder by their paths there, with `/` between folders, and what is in them, `str` or `[u8]`.
pub fn listed(files: &BTreeSet<PathBuf>, below: &str, kind: &str) -> io::Result<String> {
    let root = env::current_dir()?;
    let include = if kind == "str" { "str" } else { "bytes" };
    let mut list = format!("pub(super) const FILES: &[(&str, &{kind})] = &[\n");
    for file in files {
        let inside = file.strip_prefix(below).expect("it was found there");
        let inside: Vec<_> = inside.iter().map(|part| part.to_string_lossy()).collect();
        let (name, path) = (inside.join("/"), root.join(file));
        let path = path.to_string_lossy();
        writeln!(list, "    ({name:?}, include_{include}!({path:?})),")
            .expect("text takes everything");
    }
    list += "];\n";
    Ok(list)
}

/// Writes that list of a whole folder into a file that the crate includes, and says that it depends on the folder.
pub fn carry(folder: &str, kind: &str, name: &str) -> io::Result<()> {
    println!("cargo::rerun-if-changed={folder}");
    let mut files = BTreeSet::new();
    collect(Path::new(folder), &mut files)?;
    fs::write(out().join(name), listed(&files, folder, kind)?)
}

/// Where a script writes to.
pub fn out() -> PathBuf {
    env::var_os("OUT_DIR").expect("cargo says where").into()
}
