//! Agents as text.

use crate::jobs::AgentDocument;

use batchfit_report::style::Style;
use batchfit_report::table::{text, with_header};

/// A table of agents, one card a line.
pub fn agents(agents: &[AgentDocument], style: &Style) -> String {
    if agents.is_empty() {
        return "no agent is registered; `batchfit agent --server URL` on a machine with GPUs is one\n"
            .to_owned();
    }
    let header = [
        "agent",
        "state",
        "device",
        "card",
        "kind",
        "works on",
        "last seen",
    ];
    let mut table = with_header(&header, &[]);
    for agent in agents {
        for (line, card) in agent.cards.iter().enumerate() {
            let once = |text: String| if line == 0 { text } else { String::new() };
            let gpu = if card.simulated {
                format!("{} (simulated)", card.gpu)
            } else {
                card.gpu.clone()
            };
            let seen = jiff::Timestamp::from_millisecond(agent.seen_at.0);
            table.add_row([
                once(agent.name.clone()),
                once(agent.state.name().to_owned()),
                card.device.clone(),
                gpu,
                card.kind.clone().unwrap_or_else(|| "-".to_owned()),
                once(agent.works_on.join(" ")),
                once(seen.map_or_else(|_| "?".to_owned(), |seen| format!("{seen:.0}"))),
            ]);
        }
    }
    text(&table, style)
}
