// Where the page begins: the bar with the views' links, and the view that the address names.
import { html, render } from "./preact.js";

function App() {
  return html`<header class="bar"><strong>batchfit</strong></header>
    <main><h1>What is the largest batch that fits?</h1></main>`;
}

render(html`<${App} />`, document.getElementById("page"));
