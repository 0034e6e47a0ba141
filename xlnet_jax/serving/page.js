"use strict";
// Text from the user, the model or the server enters the page only as textContent or as a value.
const MOST_NATS = 9; // of a piece with the strongest colour
const PATIENCE_MS = 800;
const PASS_MS = 110, FILL_MS = 5000; // a pass is shown for at least so long, unless all would take longer than FILL_MS
const EXAMPLES = {
  fill: "It was a ___ morning, and she ___ to the window to look at the ___.",
  fillOn: "It was a fine morning, and",
  score: "She opened the door and walked into the purple refrigerator of the night.",
  first: "The weather was very fine.",
  second: "It was a beautiful day.",
};
const FORMS = {
  classification: [["text", "text"], ["second", "second text, for tasks of pairs (else empty)"]],
  multilabel: [["text", "text"], ["second", "second text, for tasks of pairs (else empty)"]],
  regression: [["text", "text"], ["second", "second text, for tasks of pairs (else empty)"]],
  token_classification: [["words", "words, with spaces between them"]],
  question_answering: [["question", "question"], ["context", "text that has the answer"]],
  multiple_choice: [["context", "text"], ["question", "question"], ["options", "options, one per line"]],
};
const TITLES = { fill: "Fill", score: "Score", predict: "Predict", embed: "Compare" };
const find = (where, what) => where.querySelector(what);
const section = kind => document.getElementById(kind);
const percent = logProb => {
  const p = 100 * Math.exp(logProb);
  return p >= 9.95 ? `${p.toFixed(0)}%` : p >= 0.1 ? `${p.toFixed(1)}%` : "<0.1%";
};
let about = {};

function make(tag, text = "", className = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  made.className = className;
  return made;
}

// ---- requests -------------------------------------------------------------------------------------------------------
async function ask(kind, body, onLine = null, signal = undefined) {
  const request = JSON.stringify(onLine ? { ...body, stream: true } : body);
  document.getElementById("curl").textContent =
    `curl ${location.origin}/${kind} -H 'Content-Type: application/json' \\\n  -d '${JSON.stringify(body).replaceAll("'", "'\\''")}'`;
  find(document, "details").hidden = false;
  const answer = await fetch(`/${kind}`, {
    method: "POST", headers: { "Content-Type": "application/json" }, body: request, signal,
  });
  if (!answer.ok) throw new Error((await answer.json()).error);
  if (!onLine) return answer.json();
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "", last = null;
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      last = JSON.parse(line);
      if (last.error) throw new Error(last.error);
      await onLine(last);
      signal?.throwIfAborted();
    }
  }
  if (!last || last.text === undefined) throw new Error("the server stopped before the text was complete");
  return last;
}

function onSubmit(kind, act) {
  const part = section(kind), form = find(part, "form"), message = find(part, ".message"), progress = find(part, ".progress");
  const button = find(form, "[type=submit]");
  form.addEventListener("submit", async event => {
    event.preventDefault();
    if (button.disabled) return;
    message.hidden = true;
    button.disabled = true;
    const waits = setTimeout(() => {
      progress.textContent ||= "compiling for these settings; the next answer comes sooner";
    }, PATIENCE_MS);
    try {
      await act(part, new FormData(form), progress);
    } catch (error) {
      message.textContent = error instanceof TypeError ? "the server does not answer: is xlnet-jax play still running?" : named(form, error.message);
      message.hidden = error.name === "AbortError";
      if (!message.hidden) find(part, ".output").hidden = true;
    }
    clearTimeout(waits);
    button.disabled = false;
    progress.textContent = "";
  });
  form.addEventListener("keydown", event => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
}

// The server names the settings of a request; a reader of the page knows their labels.
function named(form, line) {
  return line.replace(/`(\w+)`/g, (_, name) => form.elements[name]?.closest?.("label")?.firstChild.data.trim() ?? name);
}

function show(part) {
  const output = find(part, ".output");
  output.hidden = false;
  return output;
}

function tell(list, facts) {
  list.replaceChildren(...facts.map(([name, value]) => {
    const fact = document.createElement("div");
    fact.append(make("dt", name), make("dd", value));
    return fact;
  }));
}

// ---- fill -----------------------------------------------------------------------------------------------------------
const asShown = piece => piece.replaceAll("\u2581", " ").trim().replaceAll("<eop>", "\u00b6") || "\u2423";
const beginsWord = piece => piece.startsWith("\u2581");
const endsWithSpace = node => node?.nodeType === Node.TEXT_NODE && /\s$/.test(node.data);
const rest = milliseconds => new Promise(resolve => setTimeout(resolve, milliseconds));
let running = null, drawn = [];

function textOf(form, kind) {
  if (!about.fields.length) return form.get("text");
  const values = about.fields.map((_, i) => form.get(`field${i}`).trim());
  const isGiven = values.some(value => value);
  if (kind === "fill" && about.fills_gaps && isGiven) return values.map(value => value || "___").join("\t");
  return kind === "fill" ? values.join("\t").replace(/\t+$/, "") : values.join("\t");
}

function drawFrame(where, parts, gaps) {
  const slots = [];
  let field = 0;
  where.replaceChildren();
  const name = () => about.fields.length > 1 && field < about.fields.length && where.append(make("span", about.fields[field++], "field"));
  name();
  parts.forEach((part, i) => {
    part.split("\t").forEach((text, j) => {
      if (j) name();
      where.append(text);
    });
    for (let n = 0; n < (gaps[i] ?? 0); n++) {
      slots.push(make("span", "", "slot"));
      where.append(slots.at(-1));
    }
  });
  return slots;
}

async function fill(part, form, progress) {
  const body = { text: textOf(form, "fill"), temperature: Number(form.get("temperature")), top_p: Number(form.get("top_p")), repetition_penalty: Number(form.get("repetition_penalty")), seed: Number(form.get("seed")) };
  const hasGaps = /_{3,}/.test(body.text), pieces = form.get("gap_pieces").trim();
  if (about.fills_gaps) Object.assign(body, { order: form.get("order"), parallel: Number(form.get("parallel")) });
  if (hasGaps && pieces && !about.fields.length) body.gap_pieces = pieces.split(/[\s,]+/).map(Number);
  if (!hasGaps) body.max_new_tokens = Number(form.get("max_new_tokens"));
  const stop = find(part, "[data-stop]");
  let slots = [], output = null;
  drawn = [];
  running = new AbortController();
  stop.disabled = false;
  const replay = document.getElementById("replay");
  let passes = 1;
  try {
    const answer = await ask("fill", body, async line => {
      if (line.parts) {
        output = show(part);
        tell(find(output, "dl"), []);
        slots = drawFrame(find(output, ".text"), line.parts, line.gaps);
        passes = Math.ceil(slots.length / (body.parallel || (body.parallel === 0 ? slots.length : 1)));
        replay.max = passes - 1;
        replay.value = replay.max;
      }
      for (const { number, piece, log_prob } of line.pieces && line.pass !== undefined ? line.pieces : []) {
        const chip = make("span", asShown(piece), "piece drawn");
        chip.append(make("small", percent(log_prob)));
        chip.title = `pass ${line.pass + 1}: ${piece}, ${percent(log_prob)}`;
        if (beginsWord(piece) && !endsWithSpace(slots[number].previousSibling)) slots[number].before(" ");
        slots[number].replaceWith(chip);
        chip.style.setProperty("--share", passes > 1 ? line.pass / (passes - 1) : 0);
        drawn.push({ chip, number, pass: line.pass });
      }
      if (line.pass !== undefined) {
        progress.textContent = `pass ${line.pass + 1}: ${drawn.length} of ${slots.length} pieces`;
        await rest(Math.min(PASS_MS, FILL_MS / slots.length));
      }
    }, running.signal);
    for (const { chip, number } of drawn) if (number >= answer.pieces.length) chip.remove(); // <eod>, and what follows it
    for (const slot of slots.slice(answer.pieces.length)) slot.remove();
    const nats = -answer.log_probs.reduce((sum, p) => sum + p, 0) / answer.log_probs.length;
    const facts = [["pieces", answer.pieces.length], ["passes", new Set(answer.passes).size], ["nats per piece", nats.toFixed(2)]];
    if (!hasGaps) facts.push(["ended", answer.ended ? "by the model" : "by the number of pieces"]);
    tell(find(output, "dl"), facts);
  } finally {
    stop.disabled = true;
  }
}

// ---- score ----------------------------------------------------------------------------------------------------------
async function score(part, form) {
  const { scores: [found] } = await ask("score", { texts: [textOf(form, "score")], orders: [about.fills_gaps ? form.get("orders") : about.score_order] });
  if (!found.pieces.length) throw new Error("the text is empty: write something to score");
  const output = show(part), text = find(output, ".text"), detail = find(output, ".detail"), words = [];
  text.replaceChildren(...found.pieces.flatMap((piece, i) => {
    const nats = -found.log_probs[i], chip = make("span", asShown(piece), "piece scored");
    chip.style.setProperty("--share", Math.min(1, nats / MOST_NATS));
    chip.title = `${piece}: ${percent(-nats)}, ${nats.toFixed(2)} nats`;
    chip.tabIndex = 0;
    for (const event of ["pointerenter", "focus"]) chip.addEventListener(event, () => { detail.textContent = chip.title; });
    if (beginsWord(piece) || !words.length) words.push({ word: "", nats: 0 });
    words.at(-1).word += asShown(piece);
    words.at(-1).nats += nats;
    return beginsWord(piece) && i ? [" ", chip] : [chip];
  }));
  const most = words.sort((a, b) => b.nats - a.nats).slice(0, 3).map(({ word, nats }) => `${word} (${nats.toFixed(1)})`);
  const sum = found.log_likelihood ?? found.pseudo_log_likelihood;
  const facts = [["nats per piece", found.nats_per_piece.toFixed(3)], ["bits per character", found.bits_per_character.toFixed(3)], ["perplexity per piece", found.perplexity.toFixed(1)], ["log-likelihood, nats", sum.toFixed(2)]];
  for (const [field, logProb] of Object.entries(found.log_likelihood_by_field ?? {})) facts.push([field, logProb.toFixed(2)]);
  if (!about.fields.length) facts.push(["most surprising words, nats", most.join(", ")]);
  tell(find(output, "dl"), facts);
}

// ---- predict, compare -----------------------------------------------------------------------------------------------
function inputOf(form) {
  const get = name => (form.get(name) ?? "").trim();
  if (about.task === "token_classification") return get("words").split(/\s+/);
  if (about.task === "question_answering") return { question: get("question"), context: get("context") };
  if (about.task === "multiple_choice") return { context: get("context"), question: get("question"), options: get("options").split("\n").filter(line => line.trim()) };
  return get("second") ? [get("text"), get("second")] : get("text");
}

async function predict(part, form) {
  const input = inputOf(form), { predictions: [found] } = await ask("predict", { inputs: [input] }), output = show(part);
  const value = Array.isArray(found.value) ? found.value.join(", ") : typeof found.value === "number" ? found.value.toFixed(3) : found.value;
  if (about.task === "token_classification") {
    const words = make("div", "", "words");
    found.value.forEach((label, i) => {
      const word = make("span", input[i]);
      word.append(make("small", label));
      words.append(word);
    });
    return output.replaceChildren(words);
  }
  const bars = make("div", "", "bars"), sorted = Object.entries(found.probabilities).sort((a, b) => b[1] - a[1]).slice(0, 12);
  for (const [label, p] of sorted) {
    const meter = document.createElement("meter");
    meter.value = p;
    bars.append(make("span", label || "(no answer)"), meter, make("b", `${(100 * p).toFixed(1)}%`));
  }
  output.replaceChildren(make("p", value || "(none)", "answer"), bars);
}

async function compare(part, form) {
  const { vectors: [a, b] } = await ask("embed", { texts: [form.get("first"), form.get("second")], normalize: true });
  const cosine = a.reduce((sum, x, i) => sum + x * b[i], 0);
  const facts = document.createElement("dl");
  tell(facts, [["cosine", cosine.toFixed(4)], ["width", a.length]]);
  show(part).replaceChildren(facts);
}

// ---- the page -------------------------------------------------------------------------------------------------------
function select(kind) {
  for (const tab of document.querySelectorAll("nav button")) {
    tab.setAttribute("aria-selected", tab.dataset.kind === kind);
    section(tab.dataset.kind).hidden = tab.dataset.kind !== kind;
  }
}

function field(name, label, value = "", rows = 2) {
  const box = make("label", label), area = document.createElement("textarea");
  Object.assign(area, { name, value, rows, spellcheck: false });
  area.style.minHeight = "0";
  box.append(area);
  return box;
}

function build() {
  document.getElementById("name").textContent = document.title = about.checkpoint;
  document.getElementById("about").textContent =
    `${about.objective}, ${about.layers} layers × ${about.width}, ${about.pieces.toLocaleString("en")} pieces, ${about.parameters.toLocaleString("en", { maximumSignificantDigits: 3, notation: "compact", compactDisplay: "long" })} parameters`;
  const isOfRecords = about.fields.length > 0, form = find(section("fill"), "form");
  for (const [name, value] of Object.entries(about.defaults)) if (form.elements[name]) form.elements[name].value = value;
  for (const label of document.querySelectorAll("[data-gaps]")) label.hidden = !about.fills_gaps;
  form.elements.text.value = isOfRecords ? "" : about.fills_gaps ? EXAMPLES.fill : EXAMPLES.fillOn;
  find(section("score"), "textarea").value = isOfRecords ? "" : EXAMPLES.score;
  if (!isOfRecords) for (const name of ["first", "second"]) find(section("embed"), "form").elements[name].value = EXAMPLES[name];
  find(section("fill"), "[data-hint]").textContent = isOfRecords
    ? "An empty field is drawn whole; ___ leaves a gap in a field. If all are empty, a whole record is drawn."
    : about.fills_gaps ? "Three underscores leave a gap. A text without gaps is continued." : "This model reads from left to right: it continues a text, and cannot fill gaps.";
  if (isOfRecords) for (const kind of ["fill", "score"])
    find(section(kind), ".fields").replaceChildren(...about.fields.map((name, i) => field(`field${i}`, name, "", 1)));
  if (isOfRecords) find(form, "[name=gap_pieces]").closest("label").hidden = true;
  const inputs = FORMS[about.task] ?? [];
  find(section("predict"), ".fields").replaceChildren(...inputs.map(([name, label]) => field(name, label)));
  find(section("predict"), "[data-hint]").textContent = `What does the finetuned model say? (${(about.task ?? "").replaceAll("_", " ")})`;
  const kinds = (about.can.predict === null ? ["predict", "fill", "score", "embed"] : ["fill", "score", "embed"]).filter(kind => about.can[kind] === null);
  for (const kind of kinds) {
    const tab = make("button", TITLES[kind]);
    Object.assign(tab, { type: "button", role: "tab" });
    tab.dataset.kind = kind;
    tab.addEventListener("click", () => select(kind));
    find(document, "nav").append(tab);
  }
  select(kinds[0]);
}

async function look() {
  const state = document.getElementById("state");
  try {
    const isFirst = about.status === undefined;
    about = await (await fetch("/health")).json();
    if (isFirst) build();
    state.textContent = about.status;
    state.className = about.status;
  } catch {
    state.textContent = "no answer";
    state.className = "";
  }
  setTimeout(look, about.status === "ready" && state.className ? 10000 : 1000);
}

onSubmit("fill", fill);
onSubmit("score", score);
onSubmit("predict", predict);
onSubmit("embed", compare);
find(document, "[data-stop]").addEventListener("click", () => running?.abort());
find(document, "[data-again]").addEventListener("click", event => {
  const form = event.target.form;
  form.elements.seed.value = Number(form.elements.seed.value) + 1;
  form.requestSubmit();
});
document.getElementById("replay").addEventListener("input", event => {
  for (const { chip, pass } of drawn) chip.classList.toggle("later", pass > Number(event.target.value));
});
look();
