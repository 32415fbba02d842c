// Buttons that copy the answer for other programs. The texts are the service's own: what `batchfit fit --format` writes.
import { html, useRef, useState } from "../preact.js";
import { Problem, key, text } from "../client.js";

const FORMATS = [
  ["hf", "Hugging Face"],
  ["lightning", "Lightning"],
  ["accelerate", "Accelerate"],
  ["python", "PyTorch"],
  ["env", "Shell"],
];

/** A word of a shell, whatever is in it. */
const quoted = (word) => `'${word.replaceAll("'", "'\\''")}'`;

/** The command that asks the same. */
export function curl(request, origin = location.origin, needsKey = Boolean(key())) {
  const header = needsKey ? ` -H "Authorization: Bearer $KEY"` : "";
  return `curl -s ${quoted(`${origin}/v1/fits`)} -H 'Prefer: wait=60'${header} -d ${quoted(JSON.stringify(request))}\n`;
}

/** Puts text on the clipboard; where the browser allows it only to pages of https or localhost, the old way. */
async function copy(content, fallback) {
  if (navigator.clipboard && window.isSecureContext) {
    try {
      await navigator.clipboard.writeText(content);
      return true;
    } catch {
      // Not allowed: the old way may be.
    }
  }
  fallback.value = content;
  fallback.hidden = false;
  fallback.select();
  const done = document.execCommand("copy");
  fallback.hidden = true;
  return done;
}

export function Copy({ fit }) {
  const [shown, setShown] = useState(null);
  const [said, setSaid] = useState("");
  const area = useRef(null);
  const show = async (name, title) => {
    setSaid("");
    try {
      const content = name === "curl" ? curl(fit.request) : await text(`/v1/fits/${encodeURIComponent(fit.id)}/formats/${name}`);
      setShown({ title, content });
      setSaid((await copy(content, area.current)) ? `Copied for ${title}.` : "Select the text below to copy it.");
    } catch (error) {
      setShown(null);
      setSaid(error instanceof Problem ? error.message : String(error));
    }
  };
  const formats = fit.result.recommendation.micro_batch > 0 ? FORMATS : [];
  return html`<div class="copy">
    <div class="buttons" role="group" aria-label="Copy this answer for">
      <span aria-hidden="true">Copy for</span>
      ${formats.map(([name, title]) => html`<button type="button" onClick=${() => show(name, title)}>${title}</button>`)}
      <button type="button" onClick=${() => show("curl", "curl")}>curl</button>
    </div>
    <p role="status" class="said">${said}</p>
    ${shown && html`<pre tabindex="0" aria-label=${`For ${shown.title}`}>${shown.content}</pre>`}
    <textarea hidden ref=${area} aria-hidden="true" tabindex="-1"></textarea>
  </div>`;
}
