//! Each text of a query is one that the database understands, with the tables as the migrations leave them.

use std::path::Path;

use sqlx::{AssertSqlSafe, Executor as _, SqlSafeStr as _};

use crate::Db;

/// Every literal of a source file, without its quotes. Lines of comments are passed over.
fn literals(source: &str) -> Vec<String> {
    let lines = source
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    let source = lines.collect::<Vec<_>>().join("\n").replace("'\"'", "");
    let mut rest = source.as_str();
    let mut found = Vec::new();
    while let Some(start) = rest.find('"') {
        let end = if rest[..start].ends_with("r#") {
            "\"#"
        } else {
            "\""
        };
        let inner = &rest[start + 1..];
        let mut at = inner.find(end).unwrap();
        while end == "\"" && inner[..at].ends_with('\\') {
            at += 1 + inner[at + 1..].find(end).unwrap();
        }
        found.push(inner[..at].replace("\\\n", "\n").replace("\\\"", "\""));
        rest = &inner[at + end.len()..];
    }
    found
}

/// What is written for PostgreSQL alone.
fn is_of_postgres(text: &str) -> bool {
    let own = [
        "pg_",
        "FOR UPDATE",
        "current_schema",
        "::",
        "json_array_elements",
    ];
    own.iter().any(|word| text.contains(word))
}

/// Each file's source, without its tests.
fn sources_below(folder: &Path, sources: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources_below(&path, sources);
        } else if path.extension().is_some_and(|extension| extension != "txt") {
            let source = std::fs::read_to_string(&path).unwrap();
            let product = source.split("#[cfg(test)]\nmod tests {").next().unwrap();
            sources.push((path.display().to_string(), product.to_owned()));
        }
    }
}

fn is_query(text: &str) -> bool {
    ["SELECT ", "INSERT ", "UPDATE ", "DELETE ", "WITH "]
        .iter()
        .any(|verb| text.starts_with(verb) && text.len() > verb.len())
}

#[tokio::test]
async fn sqlite_can_prepare_each_text() {
    let db = Db::open("sqlite::memory:").await.unwrap();
    let mut sources = Vec::new();
    sources_below(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
        &mut sources,
    );
    let mut texts = Vec::new();
    for (path, source) in &sources {
        let queries = literals(source).into_iter().filter(|text| is_query(text));
        texts.extend(queries.map(|text| (path.clone(), text)));
    }
    texts.retain(|(_, text)| !is_of_postgres(text) && !text.contains('{'));
    assert!(texts.len() > 100, "{} texts were found", texts.len());
    let mut wrong = Vec::new();
    for (path, text) in texts {
        let sqlx::Either::Left(pool) = db.pool.on() else {
            unreachable!()
        };
        if let Err(error) = pool
            .prepare(AssertSqlSafe(text.clone()).into_sql_str())
            .await
        {
            wrong.push(format!("{path}: {text}: {error}"));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

/// A text that only reads is asked of the connections that read, and every other one of the one that writes.
#[test]
fn what_writes_waits_for_its_turn() {
    let mut sources = Vec::new();
    sources_below(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
        &mut sources,
    );
    let mut wrong = Vec::new();
    let mut asked = 0;
    for (path, source) in &sources {
        for (on, reads) in [("on", true), ("writing", false)] {
            for after in source.split(&format!("self.pool.{on}(),")).skip(1) {
                let text =
                    after.trim_start_matches(|c: char| c.is_whitespace() || "[\"".contains(c));
                asked += 1;
                if text.starts_with("SELECT ") != reads {
                    wrong.push(format!("{path}: {on}{}", &text[..40]));
                }
            }
        }
    }
    assert!(asked > 60, "{asked} queries were found");
    assert_eq!(wrong, Vec::<String>::new());
}
