//! Lists the files of the page in the browser, which the binary carries.

#[path = "../platform/build/files.rs"]
mod files;

fn main() -> std::io::Result<()> {
    files::carry("src/http/page", "[u8]", "page.rs")
}
