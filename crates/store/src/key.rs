//! API keys: who may query, and for what.

use crate::text::by_name;
use std::fmt::{self, Write as _};
use std::hint::black_box;

use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::engine::query;
use super::text::named_in_text;
use super::{Db, StoreError, Time};

/// What every key begins with, so that it is recognized where it is found.
const PREFIX: &str = "batchfit";

/// Longest name, in characters.
const LONGEST_NAME: usize = 64;

batchfit_step::listed! {
    /// What a key is for: see [`Scope::includes`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Scope {
        /// To look at what there is.
        Read = "read",
        /// To ask for fits, probes, searches and replays, to send files, and to cancel.
        Fit = "fit",
        /// To register as an agent, take fits and bring their answers, and nothing else.
        Agent = "agent",
        /// To do all of that, to delete files, which others may use, and to drain and cordon agents.
        Admin = "admin",
    }
}

impl Scope {
    /// Whether a key of this scope may do what needs one of the other.
    pub const fn includes(self, needed: Scope) -> bool {
        match (self, needed) {
            (Scope::Admin, _)
            | (Scope::Fit, Scope::Fit | Scope::Read)
            | (Scope::Read, Scope::Read)
            | (Scope::Agent, Scope::Agent) => true,
            (Scope::Fit | Scope::Read | Scope::Agent, _) => false,
        }
    }
}

named_in_text!(Scope);

/// A key as it is stored: without what it takes to use it.
#[derive(Clone, PartialEq, Eq, Serialize)]
pub struct ApiKey {
    /// Its name for programs; part of the key.
    pub id: String,
    /// Its name for people.
    pub name: String,
    /// What it is for.
    pub scope: Scope,
    /// When it was made.
    pub created_at: Time,
    /// When it was revoked.
    pub revoked_at: Option<Time>,
    #[serde(skip)]
    digest: Vec<u8>,
}

by_name!(ApiKey: id, name, scope, created_at, revoked_at, digest);

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key {} ({}, {})", self.id, self.name, self.scope.name())
    }
}

/// A name that no key can have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{given:?} cannot be the name of a key: a name has 1 to {LONGEST_NAME} letters, digits, dots, dashes and underscores of \
     ASCII, such as `ci` or `launcher-2`"
)]
pub struct NotAKeyName {
    given: String,
}

impl ApiKey {
    /// A new key, and the text of it, which is nowhere else. `chance` is random.
    pub fn issue(
        id: String,
        name: &str,
        scope: Scope,
        chance: &[u8; 32],
        now: Time,
    ) -> Result<(ApiKey, String), NotAKeyName> {
        let is_ordinary = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        // One that begins with a dash would be taken for a flag.
        let is_name = (1..=LONGEST_NAME).contains(&name.len())
            && name.chars().all(is_ordinary)
            && !name.starts_with('-');
        if !is_name {
            return Err(NotAKeyName {
                given: crate::limits::shorten(name),
            });
        }
        let mut text = format!("{PREFIX}_{id}_");
        for byte in chance {
            write!(text, "{byte:02x}").expect("text grows");
        }
        let key = ApiKey {
            id,
            name: name.to_owned(),
            scope,
            created_at: now,
            revoked_at: None,
            digest: Sha256::digest(text.as_bytes()).to_vec(),
        };
        Ok((key, text))
    }

    /// The id in the text of a key; `None` where it is none.
    pub fn id_in(text: &str) -> Option<&str> {
        let rest = text.strip_prefix(PREFIX)?.strip_prefix('_')?;
        let (id, secret) = rest.split_once('_')?;
        (secret.len() == 64).then_some(id)
    }

    /// Whether this is the text of the key. Takes as long whatever is wrong with it.
    pub fn is(&self, text: &str) -> bool {
        let given = Sha256::digest(text.as_bytes());
        let pairs = self.digest.iter().zip(given.iter());
        let different = pairs.fold(0, |different, (ours, theirs)| {
            black_box(different | (ours ^ theirs))
        });
        self.digest.len() == given.len() && different == 0
    }
}

impl Db {
    /// Keeps a new key. False when there is one of that name.
    pub async fn add_key(&self, key: &ApiKey) -> Result<bool, StoreError> {
        query!("keep a key": execute, self.pool.writing(),
            "INSERT INTO api_key (id, name, scope, digest, created_at) VALUES ($1, $2, $3, $4, $5)
                 ON CONFLICT DO NOTHING", key.id, key.name, key.scope, key.digest, key.created_at)
        .map(|added| added == 1)
    }

    /// All keys, also those that were revoked, in the order in which they were made.
    pub async fn keys(&self) -> Result<Vec<ApiKey>, StoreError> {
        query!("list keys": fetch_all ApiKey, self.pool.on(),
            "SELECT id, name, scope, digest, created_at,
                      revoked_at
                 FROM api_key ORDER BY created_at, id")
    }

    /// Revokes the key of this name or id. False when there is none that was not revoked before.
    pub async fn revoke_key(&self, name_or_id: &str, now: Time) -> Result<bool, StoreError> {
        query!("revoke a key": execute, self.pool.writing(),
            "UPDATE api_key SET revoked_at = $2 WHERE (name = $1 OR id = $1) AND revoked_at IS NULL", name_or_id, now).map(|revoked| revoked > 0)
    }

    /// Drops a key that could not be shown.
    pub async fn forget_key(&self, id: &str) -> Result<(), StoreError> {
        query!("drop a key": execute, self.pool.writing(), "DELETE FROM api_key WHERE id = $1", id)
            .map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::database::test_database::TestDatabase;

    fn issue(name: &str) -> Result<(ApiKey, String), NotAKeyName> {
        ApiKey::issue("id".to_owned(), name, Scope::Fit, &[7; 32], Time(1))
    }

    #[test]
    fn a_key_is_known_by_its_text_alone() {
        let (key, text) = issue("ci").unwrap();

        assert_eq!(ApiKey::id_in(&text), Some("id"));
        assert!(key.is(&text));
        let mut other = text.clone();
        other.replace_range(text.len() - 1.., "f");
        assert!(!key.is(&other));
        assert!(!key.is(""));
        // Nothing of it is shown or stored.
        let shown = format!("{key:?} {}", serde_json::to_string(&key).unwrap());
        assert!(!shown.contains(&text[12..]), "{shown}");
    }

    #[test]
    fn odd_names_are_refused() {
        let long = "a".repeat(65);
        for odd in [
            "", "a b", "-f", "né", "a\n", "'; --", "\u{202e}", "..\u{0}", &long,
        ] {
            assert!(issue(odd).is_err(), "{odd:?}");
        }
        for name in ["a", "..", "CI_2.launcher-b", &long[1..]] {
            issue(name).unwrap();
        }
    }

    #[tokio::test]
    async fn a_name_is_free_again_when_its_key_was_revoked() {
        let db = TestDatabase::new().await;
        let (first, _) = issue("ci").unwrap();
        let second = ApiKey {
            id: "id2".to_owned(),
            ..first.clone()
        };
        assert!(db.add_key(&first).await.unwrap());
        assert!(!db.add_key(&second).await.unwrap());

        assert!(db.revoke_key("ci", Time(5)).await.unwrap());
        assert!(!db.revoke_key("ci", Time(6)).await.unwrap());
        assert!(db.add_key(&second).await.unwrap());

        let keys = db.keys().await.unwrap();
        assert_eq!(keys[0].revoked_at, Some(Time(5)));
        assert_eq!(keys[1], second);
    }
}
