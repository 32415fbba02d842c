//! Both schemas say the same.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Db, POSTGRES};

/// What a table consists of, column by column and constraint by constraint, and all indexes.
#[derive(Debug, Default, PartialEq, Eq)]
struct Schema {
    tables: BTreeMap<String, BTreeSet<String>>,
    indexes: BTreeSet<String>,
}

impl Schema {
    /// Reads statements that make tables, columns and indexes.
    fn read(text: &str, in_postgres: bool) -> Schema {
        let lines = text.lines().map(|line| line.split("--").next().unwrap());
        let text = lines.collect::<Vec<_>>().join(" ");
        let mut schema = Schema::default();
        for statement in parts(&text, ';') {
            let words: Vec<&str> = statement.split_whitespace().collect();
            let alike = |item: &str| {
                if in_postgres {
                    of_postgres(item)
                } else {
                    Some(of_sqlite(item))
                }
            };
            match words[..] {
                ["CREATE", "TABLE", name, ..] => {
                    let inner = statement.find('(').unwrap() + 1..statement.rfind(')').unwrap();
                    let items = parts(&statement[inner], ',').into_iter();
                    let items = items.filter_map(|item| alike(&item)).collect();
                    schema
                        .tables
                        .insert(name.trim_matches('"').to_owned(), items);
                }
                ["ALTER", "TABLE", name, "ADD", "COLUMN", ..] => {
                    let column = statement.split_once("COLUMN").unwrap().1;
                    let table = schema.tables.get_mut(name).unwrap();
                    table.extend(alike(&words_of(column)));
                }
                ["ALTER", "TABLE", name, "DROP", "COLUMN", column] => {
                    let table = schema.tables.get_mut(name).unwrap();
                    table.retain(|item| item.split(' ').next() != Some(column));
                }
                // PostgreSQL names the check of a column by its table and its name.
                ["ALTER", "TABLE", name, "ADD", "CONSTRAINT", constraint, ..] => {
                    let check = words_of(statement.split_once(constraint).unwrap().1);
                    let table = schema.tables.get_mut(name).unwrap();
                    let of_it = |item: &&String| {
                        let column = item.split(' ').next().unwrap_or_default();
                        constraint == format!("{name}_{column}_check")
                    };
                    let old = table.iter().find(of_it).unwrap().clone();
                    table.remove(&old);
                    table.insert(format!("{}{check}", &old[..old.find("CHECK").unwrap()]));
                }
                ["DROP", "TABLE", name] => {
                    schema.tables.remove(name);
                }
                ["DROP", "INDEX", name] => {
                    let is_it = |index: &String| index.split(' ').any(|word| word == name);
                    schema.indexes.retain(|index| !is_it(index));
                }
                ["CREATE", "INDEX", ..] | ["CREATE", "UNIQUE", "INDEX", ..] => {
                    schema.indexes.insert(words_of(&statement));
                }
                _ => {}
            }
        }
        schema
    }
}

fn words_of(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What is between these characters, outside of parentheses and strings.
fn parts(text: &str, between: char) -> Vec<String> {
    let (mut depth, mut is_text) = (0, false);
    let parts = text.split(|character| {
        match character {
            '\'' => is_text = !is_text,
            '(' if !is_text => depth += 1,
            ')' if !is_text => depth -= 1,
            _ => {}
        }
        character == between && depth == 0 && !is_text
    });
    parts
        .map(words_of)
        .filter(|part| !part.is_empty())
        .collect()
}

/// A column or a constraint of SQLite, as it is to be in PostgreSQL; see migrations/postgres.
fn of_sqlite(item: &str) -> String {
    let Some((name, rest)) = item
        .split_once(' ')
        .filter(|(name, _)| name.starts_with(|first: char| first.is_lowercase()))
    else {
        return item.to_owned();
    };
    let (stored, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    let json = [
        format!("CHECK (json_valid({name}))"),
        format!("CHECK ({name} IS NULL OR json_valid({name}))"),
    ];
    let flag = format!("CHECK ({name} IN (0, 1))");
    let (stored, rest) = match (stored, rest) {
        ("TEXT", rest) if json.iter().any(|check| rest.contains(check)) => (
            "JSON",
            json.iter()
                .fold(rest.to_owned(), |rest, check| rest.replace(check, "")),
        ),
        ("INTEGER", rest) if rest.contains(&flag) => (
            "BOOLEAN",
            rest.replace(&flag, "")
                .replace("DEFAULT 0", "DEFAULT FALSE"),
        ),
        ("INTEGER", rest) if rest.contains("AUTOINCREMENT") => (
            "BIGINT",
            "GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY".to_owned(),
        ),
        ("INTEGER", rest) => ("BIGINT", rest.to_owned()),
        ("REAL", rest) => ("DOUBLE PRECISION", rest.to_owned()),
        ("BLOB", rest) => ("BYTEA", rest.to_owned()),
        (other, rest) => (other, rest.to_owned()),
    };
    words_of(&format!("{name} {stored} {rest}"))
}

/// A column or a constraint of PostgreSQL; `None` of what SQLite has without saying so.
fn of_postgres(item: &str) -> Option<String> {
    let rowid = [
        "number BIGINT GENERATED BY DEFAULT AS IDENTITY",
        "UNIQUE (number)",
    ];
    (!rowid.contains(&item)).then(|| item.replace(" COLLATE \"C\"", ""))
}

#[tokio::test]
async fn both_schemas_have_the_same_tables_columns_checks_and_indexes() {
    let db = Db::open("sqlite::memory:").await.unwrap();
    let made = "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL AND type IN ('table', 'index')
                   AND name NOT LIKE 'sqlite_%' AND name <> '_sqlx_migrations'";
    let sqlite = Schema::read(&db.texts(made).await.join(";\n"), false);
    let postgres = POSTGRES.migrations.iter();
    let postgres: Vec<&str> = postgres.map(|migration| migration.sql.as_str()).collect();
    let postgres = Schema::read(&postgres.join("\n"), true);

    assert!(sqlite.tables.len() > 10, "{sqlite:?}");
    for (table, columns) in &sqlite.tables {
        assert_eq!(postgres.tables.get(table), Some(columns), "{table}");
    }
    assert_eq!(postgres, sqlite);
}
