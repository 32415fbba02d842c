//! Lists the migrations, which the binary carries: SQLite's, with PostgreSQL's in a folder of their own. Listed here, as sqlx's macros would
//! compile both drivers once more to run them.

#[path = "../platform/build/files.rs"]
mod files;

fn main() -> std::io::Result<()> {
    files::carry("../../migrations", "str", "migrations.rs")
}
