// Fields of the form. Each has a label, a hint where it needs one, and what the service says is wrong with it.
import { html, useId } from "../preact.js";
import { shortened, words } from "../format.js";

/** A field with its label around it; `children` is a function of the ids that the control points to. */
function Labelled({ label, hint, problem, children }) {
  const id = useId();
  const described = [hint && `${id}-hint`, problem && `${id}-problem`].filter(Boolean).join(" ") || undefined;
  return html`<div class="field">
    <label for=${id}>${label}</label>
    ${children({ id, "aria-describedby": described, "aria-invalid": problem ? "true" : undefined })}
    ${hint && html`<small id=${`${id}-hint`}>${hint}</small>`}
    ${problem && html`<small class="wrong" id=${`${id}-problem`}>${problem}</small>`}
  </div>`;
}

export function TextField({ value, onChange, list, placeholder, inputmode, ...rest }) {
  return html`<${Labelled} ...${rest}>
    ${(ids) => html`<input type="text" ...${ids} value=${value} list=${list} placeholder=${placeholder} inputmode=${inputmode}
      autocomplete="off" spellcheck="false" onInput=${(event) => onChange(event.target.value)} />`}
  <//>`;
}

export function LongField({ value, onChange, rows = 3, ...rest }) {
  return html`<${Labelled} ...${rest}>
    ${(ids) => html`<textarea ...${ids} rows=${rows} spellcheck="false" value=${value}
      onInput=${(event) => onChange(event.target.value)}></textarea>`}
  <//>`;
}

/** `choices` are pairs of a value and what is shown for it. */
export function Choice({ value, onChange, choices, ...rest }) {
  const known = choices.some(([choice]) => choice === value);
  const all = known || !value ? choices : [...choices, [value, value]];
  return html`<${Labelled} ...${rest}>
    ${(ids) => html`<select ...${ids} value=${value} onChange=${(event) => onChange(event.target.value)}>
      ${all.map(([choice, shown]) => html`<option value=${choice} selected=${choice === value}>${shown}</option>`)}
    </select>`}
  <//>`;
}

/** Any of several words; none of them is the service's default. */
export function Several({ label, hint, problem, value, choices, onChange }) {
  const id = useId();
  const toggle = (word) => {
    const chosen = value.includes(word) ? value.filter((other) => other !== word) : [...value, word];
    onChange(chosen);
  };
  const all = [...choices, ...value.filter((word) => !choices.includes(word))];
  return html`<fieldset class="several" aria-describedby=${hint ? `${id}-hint` : undefined}>
    <legend>${label}</legend>
    ${all.map(
      (word) => html`<label class="chip">
        <input type="checkbox" checked=${value.includes(word)} onChange=${() => toggle(word)} />
        <span>${shortened(words(word))}</span>
      </label>`,
    )}
    ${hint && html`<small id=${`${id}-hint`}>${hint}</small>`}
    ${problem && html`<small class="wrong">${problem}</small>`}
  </fieldset>`;
}

export function Check({ label, checked, onChange }) {
  return html`<label class="check">
    <input type="checkbox" checked=${checked} onChange=${(event) => onChange(event.target.checked)} />
    <span>${label}</span>
  </label>`;
}
