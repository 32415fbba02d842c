//! The table of agents: machines that work on fits for the service.

use crate::text::by_name;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::engine::query;
use super::fit::{Attempt, Claimed, Lease};
use super::text::named_in_text;
use super::{Db, FitState, JsonText, LeaseOwner, StoreError, Time};

/// How the lanes begin of fits that an agent is to take, and the holders that are agents.
pub const AGENT_LANE: &str = "agent ";

/// Most agents that are kept; the service knows where to look for more machines than this.
const MOST_AGENTS: i64 = 10_000;

/// What the cards of all agents of one key may take, in bytes: a thousand machines with eight cards each take three million.
const MOST_BYTES: i64 = 4 << 20;

batchfit_step::listed! {
    /// What an agent is to do.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum Assignment {
        /// To take what its cards can run.
        Ready = "ready",
        /// To finish what it works on, take no more, and end.
        Draining = "draining",
        /// To take no more, and stay.
        Cordoned = "cordoned",
    }
}

named_in_text!(Assignment);

/// An agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredAgent {
    /// Its name for programs: another one whenever another process registers.
    pub id: String,
    /// The machine.
    pub name: String,
    /// The process.
    pub instance: String,
    /// The API key under which it registered; empty where none is needed.
    pub owner: String,
    /// Its version.
    pub version: String,
    /// By which rules it answers; empty for one that an earlier version of the service registered.
    pub rules: String,
    /// What it is to do.
    pub duty: Assignment,
    /// Its cards, as JSON.
    pub cards: JsonText,
    /// When the process registered first.
    pub registered_at: Time,
    /// When it was last heard of.
    pub seen_at: Time,
}

by_name!(StoredAgent: id, name, instance, owner, version, rules, duty, cards, registered_at, seen_at);

impl StoredAgent {
    /// Under which name it works on fits.
    pub fn holder(&self) -> LeaseOwner {
        holder(&self.id)
    }
}

/// The name under which the agent of this id works on fits.
pub fn holder(id: &str) -> LeaseOwner {
    LeaseOwner::other(format!("{AGENT_LANE}{id}"))
}

/// What became of a registration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Registered {
    /// The agent as it is now.
    As(Box<StoredAgent>),
    /// Another process of this name was heard of not long ago, at this moment.
    NameTaken(Time),
    /// There are as many as may be.
    TooMany,
}

impl Db {
    /// Registers an agent, or notes that it is there: the same process keeps its id and what it was told to do. Another process
    /// takes a name over that was not heard of since `lost`, but not from another key that holds; a machine that was cordoned stays so.
    pub async fn register_agent(
        &self,
        new: &StoredAgent,
        lost: Time,
    ) -> Result<Registered, StoreError> {
        self.in_place()?;
        let registered = query!("register an agent": fetch_optional StoredAgent, self.pool.writing(),
            "INSERT INTO agent (id, name, instance, owner, version, duty, cards, registered_at, seen_at, rules)
               SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $13
                WHERE (EXISTS (SELECT 1 FROM agent WHERE name = $2)
                       OR (SELECT count(*) FROM agent) < $11 AND ($4 = '' OR (SELECT count(*) FROM agent WHERE owner = $4) < $11 / 10))
                  AND (SELECT coalesce(CAST(sum(length(CAST(cards AS TEXT))) AS BIGINT), 0) FROM agent WHERE owner = $4 AND name <> $2) + length(CAST($7 AS TEXT)) <= $12
                   ON CONFLICT (name) DO UPDATE
                  SET id = CASE WHEN agent.instance = excluded.instance THEN agent.id ELSE excluded.id END,
                      registered_at = CASE WHEN agent.instance = excluded.instance THEN agent.registered_at ELSE excluded.registered_at END,
                      duty = CASE WHEN agent.instance = excluded.instance AND excluded.duty <> 'draining' OR agent.duty = 'cordoned'
                                  THEN agent.duty ELSE excluded.duty END,
                      instance = excluded.instance, owner = excluded.owner, version = excluded.version, rules = excluded.rules, cards = excluded.cards,
                      seen_at = excluded.seen_at
                WHERE agent.instance = excluded.instance AND agent.owner = excluded.owner
                   OR agent.seen_at < $10
                      AND (agent.owner = excluded.owner OR NOT EXISTS (SELECT 1 FROM api_key WHERE id = agent.owner AND revoked_at IS NULL))
               RETURNING id, name, instance, owner, version, rules, duty, cards,
                         registered_at, seen_at",
            new.id, new.name, new.instance, new.owner, new.version, new.duty, new.cards, new.registered_at,
            new.seen_at, lost, MOST_AGENTS, MOST_BYTES, new.rules)?;
        if let Some(agent) = registered {
            return Ok(Registered::As(Box::new(agent)));
        }
        let seen = query!("look for an agent": fetch_optional scalar, self.pool.on(),
            "SELECT seen_at FROM agent WHERE name = $1", new.name)?;
        Ok(seen.map_or(Registered::TooMany, Registered::NameTaken))
    }

    /// Agents by name, from behind `after` on.
    pub async fn agents(&self, after: &str, limit: i64) -> Result<Vec<StoredAgent>, StoreError> {
        query!("list agents": fetch_all StoredAgent, self.pool.on(),
            "SELECT id, name, instance, owner, version, rules, duty, cards,
                      registered_at, seen_at
                 FROM agent WHERE name > $1 ORDER BY name LIMIT $2", after, limit)
    }

    /// The agent of this id.
    pub async fn agent(&self, id: &str) -> Result<Option<StoredAgent>, StoreError> {
        self.one_agent(id, true).await
    }

    /// The agent of this name.
    pub async fn agent_named(&self, name: &str) -> Result<Option<StoredAgent>, StoreError> {
        self.one_agent(name, false).await
    }

    async fn one_agent(&self, of: &str, by_id: bool) -> Result<Option<StoredAgent>, StoreError> {
        query!("read an agent": fetch_optional StoredAgent, self.pool.on(),
            "SELECT id, name, instance, owner, version, rules, duty, cards, registered_at, seen_at
                 FROM agent WHERE id = $1 AND $2 OR name = $1 AND NOT $2", of, by_id)
    }

    /// Whether an agent that was heard of since `lost`, and will take more some day, has so many cards of a kind.
    pub async fn has_cards(
        &self,
        kind: &str,
        is_simulated: bool,
        count: u64,
        lost: Time,
    ) -> Result<bool, StoreError> {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        query!("look for cards of agents": fetch_optional scalar, self.pool.on(),
            ["SELECT id FROM agent
              WHERE duty <> 'draining' AND seen_at >= $1 AND cards LIKE '%\"' || $2 || '\"%'
                AND (SELECT count(*) FROM json_each(cards) AS card
                      WHERE card.value ->> 'kind' = $2 AND card.value ->> 'simulated' = $3) >= $4 LIMIT 1", "SELECT id FROM agent
              WHERE duty <> 'draining' AND seen_at >= $1 AND CAST(cards AS TEXT) LIKE '%\"' || $2 || '\"%'
                AND (SELECT count(*) FROM json_array_elements(cards) AS card
                      WHERE card ->> 'kind' = $2 AND CAST(card ->> 'simulated' AS BOOLEAN) = $3) >= $4 LIMIT 1"],
            lost, kind, is_simulated, count).map(|found: Option<String>| found.is_some())
    }

    /// Notes that an agent is there.
    pub async fn agent_seen(&self, id: &str, now: Time) -> Result<(), StoreError> {
        query!("note that an agent is there": execute, self.pool.writing(),
            "UPDATE agent SET seen_at = $2 WHERE id = $1", id, now)
        .map(|_| ())
    }

    /// Says what an agent is to do. False where there is none.
    pub async fn set_duty(&self, id: &str, duty: Assignment) -> Result<bool, StoreError> {
        query!("change what an agent is to do": execute, self.pool.writing(),
            "UPDATE agent SET duty = $2 WHERE id = $1", id, duty)
        .map(|set| set == 1)
    }

    /// Forgets an agent, and puts what it works on back into the queue. False where there is none.
    pub async fn remove_agent(
        &self,
        id: &str,
        is_admin: bool,
        now: Time,
    ) -> Result<bool, StoreError> {
        let is_there = self.agent(id).await?.is_some();
        query!("forget an agent": execute, self.pool.writing(),
            "DELETE FROM agent WHERE id = $1 AND ($2 OR duty <> 'cordoned')", id, is_admin)?;
        self.give_back(&holder(id), None, now).await?;
        Ok(is_there)
    }

    /// Puts what an agent works on back into the queue, all or one attempt. What it took counts towards the time limit, to the end of its
    /// lease at most, whatever a clock says that was set. Says how many.
    pub async fn give_back(
        &self,
        holder: &LeaseOwner,
        attempt: Option<Attempt<'_>>,
        now: Time,
    ) -> Result<u64, StoreError> {
        let (id, number) = attempt.map(|one| (one.id, one.number)).unzip();
        query!("put the fits of an agent back": execute, self.pool.writing(),
            "UPDATE fit SET state = 'queued', started_at = NULL,
                    worked_ms = worked_ms + CASE WHEN started_at > $2 OR started_at > lease_until THEN 0
                                                 WHEN $2 > lease_until THEN lease_until - started_at ELSE $2 - started_at END
              WHERE state = 'running' AND holder = $1 AND ($3 IS NULL OR id = $3 AND attempts = $4)", holder, now, id, number)
    }

    /// Forgets agents that were not heard of since `oldest`. Says how many.
    pub async fn sweep_agents(&self, oldest: Time) -> Result<u64, StoreError> {
        query!("forget lost agents": execute, self.pool.writing(),
            "DELETE FROM agent WHERE seen_at < $1", oldest)
    }

    /// The fits of these lanes that wait for an agent, in the order in which they are handed out: see [`Db::claim`]. A comma is before
    /// and behind each lane.
    pub async fn waiting_for_agents(
        &self,
        lanes: &str,
        now: Time,
    ) -> Result<Vec<(String, String)>, StoreError> {
        query!("list what waits for agents": fetch_all (String, String), self.pool.on(),
            "SELECT id, lane FROM
                (SELECT id, lane, CASE owner WHEN '' THEN 0 ELSE row_number() OVER (PARTITION BY owner ORDER BY is_later, id)
                        + (SELECT count(*) FROM fit AS other WHERE other.state = 'running' AND other.owner = asks.owner AND $3 LIKE '%,' || other.lane || ',%') END AS turn,
                        CASE owner WHEN '' THEN 0 ELSE (SELECT coalesce(max(other.started_at), 0) FROM fit AS other WHERE other.owner = asks.owner) END AS served,
                        is_later
                   FROM (SELECT id, lane, owner, CASE WHEN priority = 'batch' AND created_at BETWEEN $1 - $2 AND $1 THEN 1 ELSE 0 END AS is_later
                           FROM fit WHERE state = 'queued' AND $3 LIKE '%,' || lane || ',%') AS asks) AS of_each
              ORDER BY turn, served, is_later, id", now, super::fit::PATIENCE_MS, lanes)
    }

    /// Hands out this fit, or nothing where another agent took it, it does not wait, or its holder works on more or fewer than `held` by now.
    pub async fn claim_one(
        &self,
        id: &str,
        lease: Lease<'_>,
        held: usize,
        now: Time,
    ) -> Result<Option<Claimed>, StoreError> {
        let claiming = "claim a fit for an agent";
        // Alone: of two claims of one agent at the same time, the second sees the first.
        let mut transaction = self.pool.begin_alone(claiming).await?;
        let held = i64::try_from(held).unwrap_or(i64::MAX);
        let claimed = query!(claiming: fetch_optional Claimed, transaction.on(),
            "UPDATE fit SET state = 'running', started_at = $2, attempts = attempts + 1, holder = $3, lease_until = $4
              WHERE id = $1 AND state = 'queued' AND (SELECT count(*) FROM fit AS own WHERE own.state = 'running' AND own.holder = $3) = $5
             RETURNING id, fingerprint, lane, attempts, holder, apart, timeout_seconds - worked_ms / 1000 AS timeout_seconds, taught,
                model_digest, CAST(1 AS BIGINT) AS of_key, TRUE AS is_alone,
                (SELECT text FROM request WHERE digest = request_digest) AS request",
            id, now, lease.holder, lease.until, held)?;
        transaction.commit(claiming).await?;
        Ok(claimed)
    }

    /// What an attempt works on, and where that stands; `None` where the attempt is overtaken.
    pub async fn attempted(
        &self,
        attempt: Attempt<'_>,
    ) -> Result<Option<(FitState, Claimed)>, StoreError> {
        let state = self.attempt_state(attempt).await?;
        let claimed = query!("read what an agent works on": fetch_optional Claimed, self.pool.on(),
            "SELECT id, fingerprint, lane, attempts, holder, apart, timeout_seconds, taught, model_digest, CAST(1 AS BIGINT) AS of_key, TRUE AS is_alone,
                      text AS request
                 FROM fit JOIN request ON digest = request_digest WHERE id = $1 AND attempts = $2 AND holder = $3",
            attempt.id, attempt.number, attempt.holder)?;
        Ok(state.zip(claimed))
    }

    /// Gives agents that could not reach a server time to say that they are there: their leases last until then, as if they had begun as much
    /// later, or earlier where a clock was set back. For a server that starts, perhaps after minutes without any.
    pub async fn spare_agents(&self, until: Time) -> Result<(), StoreError> {
        query!("renew the leases of agents": execute, self.pool.writing(),
            "UPDATE fit SET lease_until = $1, started_at = started_at + $1 - coalesce(lease_until, $1)
              WHERE state = 'running' AND holder LIKE 'agent %'", until).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenarios::new_agent;

    #[tokio::test]
    async fn a_key_has_a_tenth_of_the_names() {
        let db = Db::open("sqlite::memory:").await.unwrap();
        let register = async |owner: &str, number: i64| {
            let new = StoredAgent {
                owner: owner.to_owned(),
                ..new_agent(&format!("{owner}{number}"), "a")
            };
            db.register_agent(&new, Time(0)).await.unwrap()
        };
        for number in 0..MOST_AGENTS / 10 {
            assert!(matches!(register("k", number).await, Registered::As(_)));
        }
        assert_eq!(register("k", MOST_AGENTS).await, Registered::TooMany);
        for owner in ["k", "other"] {
            assert!(matches!(register(owner, 1).await, Registered::As(_)));
        }
    }
}
