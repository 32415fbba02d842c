//! `batchfit search --ask-tell`: leads a search whose batches another program runs, line by line.
//!
//! Each line that comes in is answered by one line. A line that is wrong is answered with what is wrong, and is then as if it
//! had never been said. See docs/use/search.md.

use std::io::{self, BufRead, Read as _};
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use serde::Serialize;
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::cli::arguments::DatabaseFlags;
use crate::cli::engine;
use crate::cli::error::CliError;
use crate::cli::question::files::read_bytes;
use crate::cli::terminal::output;
use crate::cli::{Outcome, storage};
use crate::http::{Code, Problem};
use crate::jobs::{Jobs, Limits, ObservationReply, SearchDocument, examine, new_upload};
use crate::limits::{AnyValue, clause, shorten, with_budget};
use crate::model::{Digest, RECORDING_BOUNDS, RequestError, UploadKind};
use crate::recorded::GZIP;
use crate::replay;
use crate::search::ask_tell::{Observation, SearchRequest};
use crate::store::Db;
use crate::worker::Deadlines;

/// Longest line: as long as a body over HTTP.
const LONGEST: usize = 64 << 10;

/// What a line may take in memory.
const MEMORY: usize = 1 << 20;

/// A database that only this process sees.
const IN_MEMORY: &str = "sqlite::memory:";

/// Answers lines until there are no more.
pub(super) fn run(kept: &DatabaseFlags) -> Result<Outcome, CliError> {
    let engine = engine(Deadlines::USUAL)?;
    let runtime = storage::runtime()?;
    let opened = runtime.block_on(async {
        let db = opened(kept).await?;
        let limits = Limits::default();
        let jobs =
            Jobs::without_runner(db, Arc::new(engine), limits, CancellationToken::new()).await;
        Ok(jobs?)
    });
    let jobs = opened.map_err(CliError::Broken)?;
    let mut talk = Session {
        runtime,
        jobs,
        search: None,
    };
    let said = talk.answer_all(&mut io::stdin().lock());
    talk.runtime.block_on(async {
        if let Err(error) = talk.jobs.drop_expired().await {
            info!("recordings that have expired are still there: {error}");
        }
        talk.jobs.db().close().await;
    });
    said.map(|()| Outcome::Answered)
}

/// The database where answers are kept, where one can be written; else one that ends with this process.
async fn opened(kept: &DatabaseFlags) -> anyhow::Result<Db> {
    let usual = async {
        let db = Db::open_for_one(&storage::database(kept)?).await?;
        db.write_readiness(db.now()).await?;
        anyhow::Ok(db)
    };
    match usual.await {
        Ok(db) => Ok(db),
        Err(error) => {
            output::warning(&format!("the search is not stored: {error:#}"));
            Ok(Db::open_for_one(IN_MEMORY).await?)
        }
    }
}

/// A conversation.
struct Session {
    runtime: Runtime,
    jobs: Jobs,
    /// Once there is one.
    search: Option<String>,
}

/// What is wrong with a line.
#[derive(Serialize)]
struct LineError {
    error: Problem,
}

impl Session {
    fn answer_all(&mut self, lines: &mut impl BufRead) -> Result<(), CliError> {
        loop {
            let Some(line) = next_line(lines).context("could not read stdin")? else {
                return Ok(());
            };
            match line.and_then(|line| self.answer(&line)) {
                Ok(document) => output::json_line(&document)?,
                Err(error) => output::json_line(&LineError { error })?,
            };
        }
    }

    fn answer(&mut self, line: &[u8]) -> Result<SearchDocument, Problem> {
        let document = read(line)?;
        let Some(id) = &self.search else {
            let terms = SearchRequest::parse(&document)?;
            let begun = self.runtime.block_on(self.jobs.create_search(terms, ""))?;
            self.search = Some(begun.id.clone());
            return Ok(begun);
        };
        let (observation, recorded) = observation_of(document)?;
        let telling = async {
            let mut observation = observation;
            if let Some(path) = recorded {
                observation.recorded = Some(self.keep(&path, observation.batch).await?);
            }
            Ok::<_, Problem>(self.jobs.tell_search(id, None, &observation).await?)
        };
        match self.runtime.block_on(telling)? {
            ObservationReply::New(search) | ObservationReply::Again(search) => Ok(*search),
            ObservationReply::Full(most) => Err(Problem::new(
                Code::SearchFull,
                format!("this search was told {most} observations; begin another"),
            )),
            ObservationReply::Cancelled => {
                Err(Problem::new(Code::SearchEnded, "the search was cancelled"))
            }
            ObservationReply::Unknown => Err(Problem::no_such("search", id)),
        }
    }

    /// Keeps a recording as if it had been uploaded; gives its digest.
    async fn keep(&self, path: &str, batch: u64) -> Result<String, Problem> {
        let wrong = |problem: String| {
            let given = Value::from(shorten(path));
            Problem::from(RequestError::at("/recorded", problem).with_value(&given))
        };
        let file = read_bytes(Path::new(path));
        let file = file.map_err(|trouble| wrong(trouble.into_problem().detail))?;
        let contents = if file.starts_with(&GZIP) {
            let contents = replay::decompress(&file, RECORDING_BOUNDS.mib);
            contents.map_err(|error| wrong(format!("{}: {error}", shorten(path))))?
        } else {
            file
        };
        let (kind, about) = examine(&contents)
            .map_err(|invalid| wrong(format!("{}: {}", shorten(path), invalid.problem)))?;
        if kind != UploadKind::Recorded {
            return Err(wrong(format!("{} is no recording", shorten(path))));
        }
        if let Some(recorded) = about.batch.filter(|recorded| *recorded != batch) {
            let problem = format!("{} is of batch {recorded}, not {batch}", shorten(path));
            return Err(wrong(problem));
        }
        let digest = Digest::of(&contents);
        let now = self.jobs.db().now();
        let new = new_upload(&contents, Vec::new(), (kind, &about), now);
        self.jobs.keep_upload(&new, &digest).await?;
        Ok(digest.to_string())
    }
}

/// An observation, and the path of its recording.
fn observation_of(mut document: Value) -> Result<(Observation, Option<String>), Problem> {
    let recorded = match document.get_mut("recorded").map(Value::take) {
        None | Some(Value::Null) => None,
        Some(Value::String(path)) => Some(path),
        Some(other) => {
            let problem = "recorded must be the path of a recording";
            return Err(RequestError::at("/recorded", problem)
                .with_value(&other)
                .into());
        }
    };
    Ok((Observation::parse(&document)?, recorded))
}

/// The next line, without its end; nothing at the end of the input. Of one that is too long, nothing is kept.
fn next_line(lines: &mut impl BufRead) -> io::Result<Option<Result<Vec<u8>, Problem>>> {
    let mut line = Vec::new();
    let most = LONGEST as u64 + 1;
    if lines.by_ref().take(most).read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
        return Ok(Some(Ok(line)));
    }
    if line.len() <= LONGEST {
        // Nothing ends the last line.
        return Ok(Some(Ok(line)));
    }
    skip_line(lines)?;
    let detail = format!("the line is longer than {} KiB", LONGEST >> 10);
    Ok(Some(Err(Problem::new(Code::BodyTooLarge, detail))))
}

/// Reads to the end of a line, and keeps nothing.
fn skip_line(lines: &mut impl BufRead) -> io::Result<()> {
    loop {
        let there = lines.fill_buf()?;
        if there.is_empty() {
            return Ok(());
        }
        let end = there.iter().position(|byte| *byte == b'\n');
        let read = end.map_or(there.len(), |end| end + 1);
        lines.consume(read);
        if end.is_some() {
            return Ok(());
        }
    }
}

/// Reads a line, within bounds.
fn read(line: &[u8]) -> Result<Value, Problem> {
    let malformed = |detail: String| Problem::of_body(Code::BodyMalformed, detail);
    let (read, excess) = with_budget(MEMORY, || serde_json::from_slice::<AnyValue>(line));
    if excess.is_some() {
        let detail = format!(
            "the line would take more than {} MiB of memory",
            MEMORY >> 20
        );
        return Err(malformed(detail));
    }
    let AnyValue(document) = read.map_err(|error| {
        let column = error.column();
        malformed(format!(
            "the line is not valid JSON at column {column}: {}",
            clause(&error)
        ))
    })?;
    Ok(document)
}

/// Reads every line as the first one and as a later one.
#[cfg(fuzzing)]
pub(super) fn read_lines(lines: &mut impl BufRead) {
    while let Ok(Some(line)) = next_line(lines) {
        if let Ok(document) = line.and_then(|line| read(&line)) {
            let _ = (SearchRequest::parse(&document), observation_of(document));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &[u8]) -> Vec<Result<String, u16>> {
        let mut input = io::BufReader::with_capacity(7, text);
        let mut all = Vec::new();
        while let Some(line) = next_line(&mut input).unwrap() {
            let line = line.map(|line| String::from_utf8(line).unwrap());
            all.push(line.map_err(|problem| problem.status));
        }
        all
    }

    #[test]
    fn long_lines_are_skipped_and_the_last_needs_no_end() {
        let long = "x".repeat(10 << 20);
        let longest = "y".repeat(LONGEST);
        let text = format!("a\n\n{long}\nb\n{longest}\n{long}\r\nc");

        let read = lines(text.as_bytes());

        let expected = [
            Ok("a".to_owned()),
            Ok(String::new()),
            Err(413),
            Ok("b".to_owned()),
            Ok(longest),
            Err(413),
            Ok("c".to_owned()),
        ];
        assert_eq!(read, expected);
        assert_eq!(lines(b""), []);
        assert_eq!(lines(long.as_bytes()), [Err(413)]);
    }

    #[test]
    fn what_is_no_json_is_said_with_its_column() {
        for line in [
            "",
            "{",
            "[1,",
            "\u{feff}{}",
            "{\"a\": 1, \"a\": 2}",
            "{} {}",
        ] {
            let refused = read(line.as_bytes()).unwrap_err();
            assert!(
                refused.detail.contains("column"),
                "{line}: {}",
                refused.detail
            );
        }
        assert!(read(&[0xff, 0xfe]).is_err());
        let wide = format!("[{}1]", "1,".repeat(32_000));
        assert!(read(wide.as_bytes()).unwrap_err().detail.contains("memory"));
    }
}
