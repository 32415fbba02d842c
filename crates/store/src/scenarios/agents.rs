//! Questions about agents, whose ids are their names and processes.

use super::{Question, maybe, ok, time};
use crate::{Assignment, Db, JsonText, Registered, StoredAgent};

pub(super) async fn answer(db: &Db, question: &Question<'_>) -> Option<String> {
    Some(match question.words[..] {
        ["register", name, instance, now] => {
            let duty = question.or("duty", "ready".to_owned());
            let new = StoredAgent {
                owner: question.text("owner"),
                duty: Assignment::named(&duty).unwrap(),
                registered_at: time(now),
                seen_at: time(now),
                ..new_agent(name, instance)
            };
            let lost = question.or("lost", "0".to_owned());
            match db.register_agent(&new, time(&lost)).await.unwrap() {
                Registered::As(agent) => format!(
                    "{} since {} seen {} {}",
                    agent.id,
                    agent.registered_at.0,
                    agent.seen_at.0,
                    agent.duty.name()
                ),
                Registered::NameTaken(_) => "taken".to_owned(),
                Registered::TooMany => "too many".to_owned(),
            }
        }
        ["agent", id] => maybe(db.agent(id).await.unwrap().map(|agent| agent.name)),
        ["duty", id, duty] => {
            let duty = Assignment::named(duty).unwrap();
            ok(db.set_duty(id, duty).await.unwrap())
        }
        ["remove", id, now] => {
            let is_admin = question.or("admin", false);
            ok(db.remove_agent(id, is_admin, time(now)).await.unwrap())
        }
        _ => return None,
    })
}

pub(crate) fn new_agent(name: &str, instance: &str) -> StoredAgent {
    StoredAgent {
        id: format!("{name}-{instance}"),
        name: name.to_owned(),
        instance: instance.to_owned(),
        owner: String::new(),
        version: "1".to_owned(),
        rules: "1".to_owned(),
        duty: Assignment::Ready,
        cards: JsonText::from("[]"),
        registered_at: crate::Time(10),
        seen_at: crate::Time(10),
    }
}
