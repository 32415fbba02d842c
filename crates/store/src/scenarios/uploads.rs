//! Questions about uploads, whose contents are their names.

use super::{Question, maybe, ok, read, spaced, time, together};
use crate::model::{Digest, UploadKind};
use crate::{Db, Dropped, JsonText, NewUpload, Time, UploadSpace, UploadStatus};

pub(super) async fn answer(db: &Db, question: &Question<'_>) -> Option<String> {
    let digest = |name: &str| Digest::of(spaced(name).as_bytes());
    let owner = question.text("owner");
    Some(match question.words[..] {
        // Each time by another of these names.
        ["keep", contents, at] => {
            let mut names = question.all("names");
            let contents = spaced(contents);
            if names.is_empty() {
                names.push(contents.clone());
            }
            let mut answers = Vec::new();
            for name in names {
                let new = NewUpload {
                    names: vec![Digest::of(name.as_bytes())],
                    owner: owner.clone(),
                    ..new_upload(&contents, read(at))
                };
                let kept = db.keep_upload(&new, space(question)).await;
                answers.push(match kept.unwrap() {
                    UploadStatus::Added => ok(true),
                    UploadStatus::There => "there".to_owned(),
                    UploadStatus::Full { taken, limit } => format!("{taken} of {limit} taken"),
                });
            }
            together(answers)
        }
        ["upload", name] => {
            let found = db.upload(&digest(name)).await.unwrap();
            maybe(found.map(|found| {
                let flags = [
                    (found.is_referred, ", referred"),
                    (found.is_in_use, ", in use"),
                ];
                let said = flags.into_iter().filter(|(is_so, _)| *is_so);
                said.fold(ok(true), |all, (_, flag)| all + flag)
            }))
        }
        ["is", name, contents] => {
            let found = db.upload(&digest(name)).await.unwrap();
            ok(found.unwrap().digest == digest(contents))
        }
        ["count", ref names @ ..] => {
            let mut count = 0;
            for name in names {
                count += usize::from(db.upload(&digest(name)).await.unwrap().is_some());
            }
            count.to_string()
        }
        ["used", name] => {
            let found = db.upload(&digest(name)).await.unwrap();
            maybe(found.map(|found| found.used_at.0))
        }
        ["use", name, now] => {
            let used = db.use_upload(&digest(name), &owner, time(now)).await;
            ok(used.is_ok())
        }
        ["drop", name] => match db.drop_upload(&digest(name)).await.unwrap() {
            Dropped::Yes => ok(true),
            Dropped::InUse => "in use".to_owned(),
            Dropped::Unknown => "-".to_owned(),
        },
        ["sweep", oldest, most] => {
            let swept = db.sweep_uploads(time(oldest), read(most)).await;
            swept.unwrap().to_string()
        }
        _ => return None,
    })
}

/// One takes 4,196 bytes.
pub(super) fn new_upload(contents: &str, created_at: i64) -> NewUpload {
    NewUpload {
        digest: Digest::of(contents.as_bytes()),
        names: Vec::new(),
        owner: String::new(),
        kind: UploadKind::Exported,
        bytes: contents.len(),
        about: JsonText::from("{}"),
        gzip: vec![0; 100],
        created_at: Time(created_at),
    }
}

/// Room for all, unless it is said.
pub(super) fn space(question: &Question<'_>) -> UploadSpace {
    UploadSpace {
        bytes: question.or("room", 1 << 20),
        oldest: Time(question.or("oldest", 1_000)),
    }
}

/// Which of the uploads in a question this is.
pub(super) fn said(question: &Question<'_>, digest: &Digest) -> String {
    let mut uploads = question.all("uploads").into_iter();
    maybe(uploads.find(|contents| Digest::of(contents.as_bytes()) == *digest))
}
