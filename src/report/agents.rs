//! Agents as text.

use crate::jobs::{AgentCard, AgentDocument};

use batchfit_report::style::{Style, lines, or_dash};

/// A table of agents, one card a line.
pub fn agents(agents: &[AgentDocument], style: &Style) -> String {
    if agents.is_empty() {
        return "no agent is registered; `batchfit agent --server URL` on a machine with GPUs is one\n"
            .to_owned();
    }
    let cards = agents.iter().flat_map(|agent| {
        let cards = agent.cards.iter().enumerate();
        cards.map(move |(line, card)| (agent, card, line == 0))
    });
    let cards: Vec<(&AgentDocument, &AgentCard, bool)> = cards.collect();
    let once = |text: fn(&AgentDocument) -> String| {
        move |(agent, _, is_first): &(&AgentDocument, &AgentCard, bool)| {
            is_first.then(|| text(agent)).unwrap_or_default()
        }
    };
    lines(&cards, style)
        .words("agent", once(|agent| agent.name.clone()))
        .words("state", once(|agent| agent.state.name().to_owned()))
        .words("device", |(_, card, _)| card.device.clone())
        .words("card", |(_, card, _)| {
            let simulated = if card.simulated { " (simulated)" } else { "" };
            format!("{}{simulated}", card.gpu)
        })
        .words("kind", |(_, card, _)| or_dash(card.kind.as_ref()))
        .words("works on", once(|agent| agent.works_on.join(" ")))
        .words(
            "last seen",
            once(|agent| {
                let seen = jiff::Timestamp::from_millisecond(agent.seen_at.0);
                seen.map_or_else(|_| "?".to_owned(), |seen| format!("{seen:.0}"))
            }),
        )
        .text()
}
