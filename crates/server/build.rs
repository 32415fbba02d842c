//! Lists the files of the page in the browser, which the binary carries.

use std::collections::BTreeSet;
use std::env;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// What the page is made of, except for what says where it is from.
const PAGE: &str = "src/http/page";

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed={PAGE}");
    let root = env::current_dir()?.join(PAGE);
    let mut files = BTreeSet::new();
    collect(&root, &mut files)?;
    let mut list = "pub(super) const FILES: &[(&str, &[u8])] = &[\n".to_owned();
    for file in files {
        let inside = file.strip_prefix(&root).expect("it was found there");
        let inside: Vec<_> = inside.iter().map(|part| part.to_string_lossy()).collect();
        let (name, path) = (inside.join("/"), file.to_string_lossy());
        writeln!(list, "    ({name:?}, include_bytes!({path:?})),").expect("text takes everything");
    }
    list += "];\n";
    let out = env::var_os("OUT_DIR").expect("cargo says where");
    fs::write(PathBuf::from(out).join("page.rs"), list)
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
