// `#/step`: the step of a question with a batch (`#/step?model=…&batch=32`), of a stored fit (`#/step/fit/ID`), or of a file.

import { html } from "../preact.js";
import { hasModel, read, request } from "../question.js";
import StepView from "./view.js";

/** What an address asks about, as properties of `StepView`; throws where it cannot be read. */
function asked(parts, parameters) {
  if (parts[0] === "fit" && parts[1]) return { fitId: parts[1] };
  const question = read(parameters);
  const batch = Number(parameters.get("batch"));
  return hasModel(question) && batch > 0 ? { question: { ...request(question), batch } } : {};
}

export default function StepPage({ parts = [], parameters = new URLSearchParams() }) {
  let properties;
  try {
    properties = asked(parts, parameters);
  } catch {
    return html`<h1>The step</h1><p role="alert">The model in this address cannot be read.</p>`;
  }
  return html`<h1>${properties.fitId || properties.question ? "The step" : "What a run did with its memory"}</h1>
    <${StepView} ...${properties} />`;
}
