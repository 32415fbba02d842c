//! Keeping the database: copies, checks, and what becomes of old rows.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _};
use std::path::Path;

use batchfit_platform::{OpenOptionsExt as _, mode, open_to_sync, private_folder, with_mode};
use sqlx::migrate::Migrator;
use sqlx::sqlite::SqliteConnection;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _, Row as _};

use crate::engine::{Pool, is_postgres, open_postgres, query};
use crate::error::Fault;
use crate::virtual_run::drop_old_runs;
use crate::{Db, StoreError, Time, existing, with_context};

/// Who may read and write the database: requests and keys are private.
const MODE: u32 = 0o600;

/// How each database of SQLite begins: <https://sqlite.org/fileformat.html>.
const HEADER: &[u8] = b"SQLite format 3\0";

/// Most lines of damage that are told.
const MOST_FINDINGS: usize = 20;

/// What was dropped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Fits, with their recommendations.
    pub fits: u64,
    /// Probes.
    pub probes: u64,
    /// Requests that nothing asks any more.
    pub requests: u64,
    /// Scripts that ran on a virtual GPU.
    pub runs: u64,
}

/// The state of a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    /// What is wrong, a sentence each; empty when nothing is.
    pub damage: Vec<String>,
    /// How many migrations its tables are behind this version; less than 0 where a later one has written it.
    pub behind: isize,
    /// How many fits, probes, recommendations and runs there are.
    pub rows: [i64; 4],
}

/// Fails where something is there that is no file: to open a pipe waits for who writes to it.
pub(crate) fn only_a_file(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(there) if !there.is_file() => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "a folder, pipe, socket or device has that name, and a database is a file",
        )),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Makes a file where there is none, and has it be its owner's alone. SQLite gives its other files the same mode.
pub(crate) fn make_private(path: &Path) -> io::Result<()> {
    only_a_file(path)?;
    // Through whatever symbolic links lead to it.
    OpenOptions::new()
        .create(true)
        .append(true)
        .mode(MODE)
        .open(path)
        .map(drop)
        .or_else(|failed| match failed.kind() {
            // One that can only be read is not made private by us.
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
                if path.exists() =>
            {
                Ok(())
            }
            _ => Err(failed),
        })?;
    if !is_ours(path)? {
        return Ok(());
    }
    for suffix in ["", "-wal", "-shm"] {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        // Beside the database, a link to some other file is followed by nobody.
        let metadata = if suffix.is_empty() {
            fs::metadata(&name)
        } else {
            fs::symlink_metadata(&name)
        };
        let Ok(metadata) = metadata else {
            continue;
        };
        if metadata.is_file() && mode(&metadata) & 0o077 != 0 {
            // A file of another user stays as it is: its writers need not own it.
            let _ = fs::set_permissions(&name, with_mode(metadata.permissions(), MODE));
        }
    }
    Ok(())
}

/// Whether a file is empty or a database of SQLite: any other stays as it is, and is refused when it is read.
fn is_ours(path: &Path) -> io::Result<bool> {
    let mut header = Vec::new();
    match File::open(path) {
        Ok(file) => file.take(HEADER.len() as u64).read_to_end(&mut header)?,
        Err(_) => return Ok(false),
    };
    Ok(header.is_empty() || header == HEADER)
}

impl Db {
    /// Drops what ended or was asked before `oldest`, `most` rows of each table at a time: others wait for it to write. Says
    /// how much; nothing when there is no more. It is `now`.
    ///
    /// What was stored after something that is young is young itself, whatever a clock that was set back said of it.
    pub async fn prune(&self, oldest: Time, now: Time, most: i64) -> Result<Pruned, StoreError> {
        let mut transaction = self.pool.begin_alone("begin to drop old fits").await?;
        let first_young: Option<i64> = query!("look for old fits": fetch_one scalar, transaction.on(),
            "SELECT min(rowid) AS first FROM fit WHERE finished_at BETWEEN $1 AND $2", oldest, now)?;
        let first_young = first_young.unwrap_or(i64::MAX);
        // Rows that refer to a fit go first.
        query!("drop old recommendations": execute, transaction.on(),
            "DELETE FROM recommendation WHERE fit_id IN
                (SELECT id FROM fit WHERE finished_at < $1 AND rowid < $3 ORDER BY finished_at, id LIMIT $2)",
            oldest, most, first_young)?;
        query!("drop what old fits refer to": execute, transaction.on(),
            "DELETE FROM upload_reference WHERE what = 'fit' AND id IN
                (SELECT id FROM fit WHERE finished_at < $1 AND rowid < $3 ORDER BY finished_at, id LIMIT $2)",
            oldest, most, first_young)?;
        let fits = query!("drop old fits": execute, transaction.on(),
            "DELETE FROM fit WHERE id IN
                (SELECT id FROM fit WHERE finished_at < $1 AND rowid < $3 ORDER BY finished_at, id LIMIT $2)",
            oldest, most, first_young)?;
        let first_young_probe: Option<i64> = query!("look for old probes": fetch_one scalar, transaction.on(),
            "SELECT min(rowid) AS first FROM probe WHERE created_at BETWEEN $1 AND $2", oldest, now)?;
        let first_young_probe = first_young_probe.unwrap_or(i64::MAX);
        query!("drop what old probes refer to": execute, transaction.on(),
            "DELETE FROM upload_reference WHERE what = 'probe' AND id IN
                (SELECT id FROM probe WHERE created_at < $1 AND rowid < $3 ORDER BY created_at, id LIMIT $2)",
            oldest, most, first_young_probe)?;
        let probes = query!("drop old probes": execute, transaction.on(),
            "DELETE FROM probe WHERE id IN
                (SELECT id FROM probe WHERE created_at < $1 AND rowid < $3 ORDER BY created_at, id LIMIT $2)",
            oldest, most, first_young_probe)?;
        let gone = fits + probes;
        let mut pruned = Pruned {
            fits,
            probes,
            requests: 0,
            runs: drop_old_runs(&mut transaction, (oldest, now), most).await?,
        };
        if gone > 0 {
            let requests = query!("drop old requests": execute, transaction.on(),
                "DELETE FROM request
                  WHERE NOT EXISTS (SELECT 1 FROM fit WHERE request_digest = digest)
                    AND NOT EXISTS (SELECT 1 FROM probe WHERE request_digest = digest)")?;
            pruned.requests = requests;
        }
        transaction
            .commit("commit that old fits are dropped")
            .await?;
        Ok(pruned)
    }

    /// Writes a whole copy to a file that is not there yet, while others go on reading and writing.
    ///
    /// A database of PostgreSQL is copied by `pg_dump`.
    pub async fn back_up(&self, to: &Path) -> Result<(), StoreError> {
        let Pool::Sqlite(pool, _) = &self.pool else {
            return Err(StoreError::NotHere {
                what: "backup",
                instead: "`pg_dump --format=custom --file=FILE DATABASE` of PostgreSQL makes a whole copy while it runs, and `pg_restore` \
                          puts it back; `batchfit db copy` writes one into a file of SQLite",
            });
        };
        let failed = |source| StoreError::Backup {
            file: to.to_owned(),
            source,
        };
        if to.exists() {
            return Err(failed(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "there is a file of that name; nothing was changed",
            )));
        }
        // Whole or not there at all, whatever happens meanwhile.
        let folder = match to.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            Some(_) | None => Path::new("."),
        };
        let mut name = OsString::from(".");
        name.push(to.file_name().unwrap_or_default());
        name.push(".batchfit-backup");
        remove_abandoned(&folder.join(&name)).map_err(failed)?;
        let apart = private_folder()
            .prefix(&name)
            .rand_bytes(0)
            .tempdir_in(folder)
            .map_err(failed)?;
        let _lock = locked(apart.path()).map_err(failed)?;
        let copy = apart.path().join("copy.db");
        let text = copy.to_str().ok_or_else(|| {
            let not_text = "its folder has a name that is not UTF-8";
            failed(io::Error::new(io::ErrorKind::InvalidInput, not_text))
        })?;
        sqlx::query("VACUUM INTO $1")
            .bind(text)
            .execute(pool)
            .await
            .map_err(with_context("copy the database"))?;
        fs::metadata(&copy)
            .and_then(|there| fs::set_permissions(&copy, with_mode(there.permissions(), MODE)))
            .and_then(|()| open_to_sync(&copy)?.sync_all())
            .map_err(failed)?;
        // Fails where a file has come in between: a backup is never written over.
        fs::hard_link(&copy, to)
            .and_then(|()| open_to_sync(folder)?.sync_all())
            .map_err(failed)
    }

    /// Gives room that nothing takes any more back to the file system. In PostgreSQL, to later rows: its `VACUUM FULL` locks the
    /// tables for long.
    pub async fn vacuum(&self) -> Result<(), StoreError> {
        let give_back = with_context("give room back");
        let pool = match &self.pool {
            Pool::Sqlite(_, pool) => pool,
            Pool::Postgres(pool) => {
                let vacuum = "VACUUM (ANALYZE) fit, recommendation, probe, request, upload, upload_reference, observation, outcome, virtual_run";
                let vacuumed = sqlx::query(vacuum).execute(pool).await;
                return vacuumed.map(|_| ()).map_err(give_back);
            }
        };
        sqlx::query("VACUUM")
            .execute(pool)
            .await
            .map_err(give_back)?;
        let shorten = with_context("shorten the database");
        sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)")
            .execute(pool)
            .await
            .map(|_| ())
            .map_err(shorten)
    }

    /// Looks at every page and every row of a database, without changing anything. Of PostgreSQL, at the tables: its pages are
    /// looked at by `pg_amcheck`.
    pub async fn check(database: &str) -> Result<Checked, StoreError> {
        if is_postgres(database) {
            return check_server(database).await;
        }
        let open = |source| StoreError::Open {
            database: database.to_owned(),
            source,
        };
        let options = existing(database)?;
        let mut connection = options.read_only(true).connect().await.map_err(open)?;
        let checked = check_on(&mut connection).await;
        let _ = connection.close().await;
        checked
    }
}

/// Removes what a backup to the same file left that was killed. One that still runs holds the lock.
fn remove_abandoned(apart: &Path) -> io::Result<()> {
    if !apart.is_dir() {
        return Ok(());
    }
    let _lock = locked(apart)?;
    fs::remove_dir_all(apart)
}

/// Holds a folder for one backup.
fn locked(apart: &Path) -> io::Result<File> {
    let folder = open_to_sync(apart)?;
    folder.try_lock().map_err(|failed| match failed {
        TryLockError::WouldBlock => {
            io::Error::new(io::ErrorKind::ResourceBusy, "another backup is writing it")
        }
        TryLockError::Error(source) => source,
    })?;
    Ok(folder)
}

/// What is counted.
const COUNTS: [&str; 4] = [
    "SELECT count(*) FROM fit",
    "SELECT count(*) FROM probe",
    "SELECT count(*) FROM recommendation",
    "SELECT count(*) FROM virtual_run",
];

/// Which migrations were applied, whether all of each was, and of which text.
const APPLIED: &str = "SELECT version, success, checksum FROM _sqlx_migrations ORDER BY version";

/// What is wrong with the migrations that were applied, as a start would say, and how many they are behind these.
fn compared(applied: &[(i64, bool, Vec<u8>)], ours: &Migrator) -> (Vec<String>, isize) {
    let last = applied.last().map_or(0, |(version, ..)| *version);
    let wrong = ours
        .iter()
        .filter(|own| own.version <= last)
        .filter_map(|own| {
            let is = match applied.iter().find(|(version, ..)| *version == own.version) {
                None => "was never applied, and later ones were",
                Some((_, false, _)) => "was applied in part",
                Some((.., checksum)) if **checksum != *own.checksum => {
                    "is another than this version's"
                }
                Some(_) => return None,
            };
            Some(format!("migration {} {is}", own.version))
        });
    let behind = ours.iter().count().cast_signed() - applied.len().cast_signed();
    (wrong.collect(), behind)
}

/// Whether the tables are there, can be read, and are those of this version.
async fn check_server(database: &str) -> Result<Checked, StoreError> {
    let pool = open_postgres(database, 1).await?;
    let count = async |question: &'static str| {
        sqlx::query_scalar::<_, i64>(question)
            .fetch_one(&pool)
            .await
    };
    let there = "SELECT count(*) FROM information_schema.tables
                  WHERE table_schema = current_schema() AND table_name = '_sqlx_migrations'";
    let checked = async {
        let mut checked = Checked {
            damage: Vec::new(),
            behind: crate::POSTGRES.migrations.len().cast_signed(),
            rows: [0; 4],
        };
        if count(there).await? == 0 {
            return Ok(checked);
        }
        let applied = sqlx::query_as(APPLIED).fetch_all(&pool).await?;
        (checked.damage, checked.behind) = compared(&applied, &crate::POSTGRES);
        for (rows, question) in checked.rows.iter_mut().zip(COUNTS) {
            match count(question).await {
                Ok(counted) => *rows = counted,
                Err(error) => checked.damage.push(damage_of(error)?),
            }
        }
        Ok(checked)
    };
    let checked = checked.await.map_err(with_context("check the database"));
    pool.close().await;
    checked
}

/// The first column of each row.
async fn texts(
    connection: &mut SqliteConnection,
    question: &'static str,
) -> Result<Vec<String>, sqlx::Error> {
    sqlx::query_scalar(question).fetch_all(connection).await
}

/// What is not as this version makes it: tables and indexes that are missing or others, and tables with a row that their constraints refuse.
/// Of a file that is opened to be read alone, `integrity_check` passes over those.
async fn unlike_this_version(
    connection: &mut SqliteConnection,
) -> Result<Vec<String>, sqlx::Error> {
    let mut fresh = SqliteConnection::connect("sqlite::memory:").await?;
    let migrated = crate::SQLITE.run(&mut fresh).await;
    migrated.map_err(|error| sqlx::Error::Migrate(Box::new(error)))?;
    // A copy of one table refers to none.
    connection.execute("PRAGMA foreign_keys = OFF").await?;
    let made = "SELECT type || ' ' || name || ' ' || sql FROM sqlite_master
                 WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'";
    let words = |text: &String| {
        let lines = text.lines().filter_map(|line| line.split("--").next());
        let words: Vec<&str> = lines.flat_map(str::split_whitespace).collect();
        words.join(" ").replace('"', "")
    };
    let there = texts(connection, made).await?;
    let there: HashSet<String> = there.iter().map(words).collect();
    let mut unlike = Vec::new();
    for wanted in &texts(&mut fresh, made).await? {
        let Some((kind, (name, sql))) = wanted
            .split_once(' ')
            .and_then(|(kind, rest)| Some((kind, rest.split_once(' ')?)))
        else {
            continue;
        };
        if !there.contains(&words(wanted)) {
            unlike.push(format!(
                "the {kind} {name} is not there as this version makes it"
            ));
        } else if let Some(table) = sql.strip_prefix("CREATE TABLE") {
            // Each row is put into a copy, and deleted at once.
            let copied = format!(
                "CREATE TEMP TABLE {table}; CREATE TEMP TRIGGER gone AFTER INSERT ON temp.{name} BEGIN DELETE FROM {name}; END;
                 INSERT INTO temp.{name} SELECT * FROM main.{name}; DROP TABLE temp.{name}"
            );
            match connection.execute(AssertSqlSafe(copied)).await {
                Ok(_) => {}
                Err(sqlx::Error::Database(ref refused)) if is_refused(refused.code()) => {
                    unlike.push(format!("a row of {name}: {}", refused.message()));
                    let drop = format!("DROP TABLE IF EXISTS temp.{name}");
                    connection.execute(AssertSqlSafe(drop)).await?;
                }
                Err(other) => return Err(other),
            }
        }
    }
    Ok(unlike)
}

/// Whether the table does not take a row: `SQLITE_ERROR` (it has other columns), `SQLITE_CONSTRAINT`, `SQLITE_MISMATCH`
/// (<https://sqlite.org/rescode.html>). All else says only that the row could not be put there.
fn is_refused(code: Option<Cow<'_, str>>) -> bool {
    let code = code.and_then(|code| code.parse::<u32>().ok());
    code.is_some_and(|code| matches!(code & 0xff, 1 | 19 | 20))
}

/// What is damaged, as the database says it; any other error says only that it could not be looked at.
fn damage_of(error: sqlx::Error) -> Result<String, sqlx::Error> {
    match error {
        sqlx::Error::Database(ref damage) if Fault::of(&error) == Fault::Damaged => {
            Ok(damage.message().to_owned())
        }
        other => Err(other),
    }
}

async fn check_on(connection: &mut SqliteConnection) -> Result<Checked, StoreError> {
    let mut damage = Vec::new();
    match texts(connection, "PRAGMA integrity_check(20)").await {
        Ok(found) => damage.extend(found.into_iter().filter(|line| line != "ok")),
        // Too damaged to be looked at.
        Err(error) => damage.push(damage_of(error).map_err(with_context("check the database"))?),
    }
    // None where its tables are not there yet, or cannot be read.
    let applied = sqlx::query_as(APPLIED).fetch_all(&mut *connection).await;
    let (unlike, behind) = compared(&applied.unwrap_or_default(), &crate::SQLITE);
    damage.extend(unlike);
    let mut rows = [0; 4];
    for (count, question) in rows.iter_mut().zip(COUNTS) {
        let counted = sqlx::query(question).fetch_one(&mut *connection).await;
        // Tables that are not there yet, or cannot be read.
        *count = counted.and_then(|row| row.try_get(0)).unwrap_or(0);
    }
    if damage.is_empty() && behind == 0 {
        let unlike = unlike_this_version(connection).await;
        damage.extend(unlike.map_err(with_context(
            "compare the tables with those of this version",
        ))?);
    }
    let dangling =
        "SELECT DISTINCT \"table\" || ' refers to rows of ' || parent || ' that are not there'
                      FROM pragma_foreign_key_check";
    if damage.is_empty() {
        let dangling = texts(connection, dangling).await;
        damage.extend(dangling.map_err(with_context("check what refers to what"))?);
    }
    damage.truncate(MOST_FINDINGS);
    Ok(Checked {
        damage,
        behind,
        rows,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_could_not_be_looked_at_is_not_damaged() {
        let mut connection = SqliteConnection::connect("sqlite::memory:").await.unwrap();
        let mut handle = connection.lock_handle().await.unwrap();
        handle.set_progress_handler(1, || false);
        drop(handle);

        let checked = check_on(&mut connection)
            .await
            .map(|checked| checked.damage);
        assert!(checked.is_err(), "{checked:?}");

        let refuses = |code: &'static str| is_refused(Some(code.into()));
        assert_eq!(
            ["1", "20", "2067", "10", "14", "7"].map(refuses),
            [true, true, true, false, false, false]
        );
    }
}
