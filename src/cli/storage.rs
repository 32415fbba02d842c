//! Where a user's programs keep their files, by the XDG base directory specification or, on Windows, in its local folder, and answers among them.

use std::env;
use std::fs::DirBuilder;
use std::path::PathBuf;

use anyhow::Context as _;
use batchfit_platform::DirBuilderExt as _;
use tokio::runtime::{Builder, Runtime};

use super::arguments::DatabaseFlags;
use crate::store::Db;

/// The database that a flag or the environment names, or else the one in the user's data folder, which is made when it
/// is missing. An error where there is no home to keep anything in.
pub(super) fn database(kept: &DatabaseFlags) -> anyhow::Result<String> {
    if let Some(named) = kept.database.as_ref().filter(|named| !named.is_empty()) {
        return Ok(named.clone());
    }
    let folder = data().context(
        "there is no home folder to keep answers in; --database or BATCHFIT_DATABASE names a place",
    )?;
    let folder: PathBuf = folder.join("batchfit");
    // As the XDG base directory specification has it.
    let mut builder = DirBuilder::new();
    let builder = builder.recursive(true).mode(0o700);
    builder
        .create(&folder)
        .with_context(|| format!("could not make the folder {}", folder.display()))?;
    let file = folder.join("batchfit.db");
    let text = file.to_str().with_context(|| {
        format!(
            "{} is not UTF-8; --database names another place",
            file.display()
        )
    })?;
    Ok(text.to_owned())
}

/// What a command asks its database on.
pub(super) fn runtime() -> anyhow::Result<Runtime> {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.context("could not start the runtime")
}

/// Asks the database that answers are kept in.
pub(super) fn with_database<T>(
    kept: &DatabaseFlags,
    question: impl AsyncFnOnce(&Db) -> T,
) -> anyhow::Result<T> {
    let database = database(kept)?;
    runtime()?.block_on(async {
        let db = Db::open_for_one(&database).await?;
        let found = question(&db).await;
        db.close().await;
        Ok(found)
    })
}

/// A folder that the environment names; relative ones are ignored, as the specification says.
pub(super) fn named(variable: &str) -> Option<PathBuf> {
    let folder = PathBuf::from(env::var_os(variable)?);
    folder.is_absolute().then_some(folder)
}

/// What can be made again.
pub(super) fn cache() -> Option<PathBuf> {
    let ours = named("XDG_CACHE_HOME").or_else(|| named("LOCALAPPDATA"));
    ours.or_else(|| Some(named("HOME")?.join(".cache")))
}

/// Where calibrations of cards are kept, unless a folder is named.
pub(super) fn calibrations() -> Option<PathBuf> {
    let named = env::var_os("BATCHFIT_CALIBRATIONS").map(PathBuf::from);
    named.or_else(|| Some(data()?.join("batchfit/calibrations")))
}

/// What is to last.
pub(super) fn data() -> Option<PathBuf> {
    let ours = named("XDG_DATA_HOME").or_else(|| named("LOCALAPPDATA"));
    ours.or_else(|| Some(named("HOME")?.join(".local/share")))
}
