//! What the tables answer to one question after the other, as `NAME.txt` beside this tells it.
//!
//! `## what it shows` begins with an empty database. A line asks something, by words and `NAME=VALUE`s, of which `_` stands for a space; behind
//! `->` is what is answered. Where nothing is, it is `ok`, which is yes, or that it was added; `-` is nothing. Questions about several things
//! have several answers, or one where all are alike. Lines of `#` are comments.

mod agents;
mod leases;
mod outcomes;
mod queue;
mod recommendations;
mod searches;
mod uploads;

use std::collections::HashMap;
use std::fmt::Display;
use std::str::FromStr;

use crate::database::test_database::TestDatabase;
use crate::{Attempt, Db, LeaseOwner, Time, agent};
pub(crate) use agents::new_agent;
pub(crate) use recommendations::{row, store};

/// A line.
struct Question<'a> {
    words: Vec<&'a str>,
    named: HashMap<&'a str, &'a str>,
}

impl<'a> Question<'a> {
    fn read(line: &'a str) -> Question<'a> {
        let (words, named): (Vec<_>, Vec<_>) =
            line.split(' ').partition(|word| !word.contains('='));
        let named = named.into_iter().filter_map(|word| word.split_once('='));
        Question {
            words,
            named: named.collect(),
        }
    }

    /// What is said by a name, or else.
    fn or<T: FromStr>(&self, name: &str, otherwise: T) -> T {
        let said = self.named.get(name);
        said.map_or(otherwise, |said| read(said))
    }

    fn text(&self, name: &str) -> String {
        self.or(name, String::new())
    }

    /// What is said by a name, one behind the other; nothing where that is not there.
    fn all(&self, name: &str) -> Vec<String> {
        let said = self.named.get(name).into_iter();
        said.flat_map(|said| said.split(',')).map(spaced).collect()
    }

    /// A server, or whom `agent:NAME` and `other:NAME` are.
    fn owner(&self, name: &str) -> LeaseOwner {
        let said = self.or(name, "me".to_owned());
        match said.split_once(':') {
            Some(("agent", id)) => agent::holder(id),
            Some((_other, name)) => LeaseOwner::other(name.to_owned()),
            None => LeaseOwner::server(&said),
        }
    }
}

fn read<T: FromStr>(text: &str) -> T {
    text.parse().ok().unwrap_or_else(|| panic!("{text}"))
}

fn time(text: &str) -> Time {
    Time(read(text))
}

fn spaced(text: &str) -> String {
    text.replace('_', " ")
}

fn ok(is_done: bool) -> String {
    if is_done { "ok" } else { "no" }.to_owned()
}

fn maybe(found: Option<impl Display>) -> String {
    found.map_or_else(|| "-".to_owned(), |found| found.to_string())
}

fn list(found: impl IntoIterator<Item: Display>) -> String {
    let found = found.into_iter().map(|one| one.to_string());
    maybe(found.reduce(|all, one| all + " " + &one))
}

fn attempt<'a>(id: &'a str, number: &str, holder: &'a LeaseOwner) -> Attempt<'a> {
    Attempt {
        id,
        number: read(number),
        holder,
    }
}

/// Several answers, or one where all are alike.
fn together(mut answers: Vec<String>) -> String {
    if answers.iter().all(|answer| *answer == answers[0]) {
        answers.truncate(1);
    }
    answers.join(" ")
}

/// What is answered to a question; `None` of what is none.
pub(crate) async fn answer(db: &Db, asked: &str) -> Option<String> {
    let question = Question::read(asked);
    let answers = [
        queue::answer(db, &question).await,
        leases::answer(db, &question).await,
        uploads::answer(db, &question).await,
        searches::answer(db, &question).await,
        agents::answer(db, &question).await,
        outcomes::answer(db, &question).await,
        recommendations::answer(db, &question).await,
    ];
    answers.into_iter().flatten().next()
}

async fn play(text: &str) {
    let mut wrong = Vec::new();
    for scenario in text.split("## ").skip(1) {
        let (shows, lines) = scenario.split_once('\n').unwrap();
        let db = TestDatabase::new().await;
        for line in lines.lines().filter(|line| !line.trim().is_empty()) {
            if line.starts_with('#') {
                continue;
            }
            let (asked, expected) = line.split_once(" -> ").unwrap_or((line, "ok"));
            if let Some(statement) = asked.strip_prefix("sql ") {
                db.run(statement).await.unwrap();
                continue;
            }
            let answer = answer(&db, asked).await;
            if answer.as_deref() != Some(expected) {
                wrong.push(format!("{shows}: {asked} -> {answer:?}, not {expected}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn fits_are_queued_claimed_and_ended() {
    play(include_str!("queue.txt")).await;
}

#[tokio::test]
async fn agents_take_fits() {
    play(include_str!("agents.txt")).await;
}

#[tokio::test]
async fn uploads_are_kept_and_make_room() {
    play(include_str!("uploads.txt")).await;
}

#[tokio::test]
async fn searches_are_told_and_bounded() {
    play(include_str!("searches.txt")).await;
}

#[tokio::test]
async fn outcomes_teach_headroom() {
    play(include_str!("outcomes.txt")).await;
}

#[tokio::test]
async fn recommendations_in_memory_follow_the_table() {
    play(include_str!("recommendations.txt")).await;
}
