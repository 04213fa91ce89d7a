// Keeps the parts of a page current, runs actions, and filters; log.js shows logs.
import { LogPane } from "./log.js";
import { PageStream } from "./stream.js";

const $ = (selector, from = document) => from.querySelector(selector);
const badge = $("#connection");
const message = $("#message");
const main = $("#main");

// -- live parts ---------------------------------------------------------------------------------

// With the lines of the log after the last one that was received.
function makeLiveUrl(lastId) {
    const query = new URLSearchParams(location.search);
    // What the page was loaded with need not be sent again.
    if (main.dataset.seen) query.set("seen", main.dataset.seen);
    delete main.dataset.seen;
    if (pane) {
        query.set("log", pane.name);
        query.set("replica", pane.replica.value);
        query.set("from", lastId);
    }
    return `/-/live${location.pathname}?${query}`;
}

function showFailure({ message, hint, retry }) {
    showMessage([message, hint].filter(Boolean).join("; "));
    if (retry) return live.retryLater("reconnecting");
    live.end();
    showConnection("ended");
}

function showConnection(state) {
    badge.textContent = state;
    badge.dataset.state = state;
    if (state === "signed out") showMessage("open the address that danlu ui printed last");
}

function patchPart(id, html) {
    const part = document.getElementById(id);
    if (!part) return;
    const template = document.createElement("template");
    template.innerHTML = html;
    patchChildren(part, template.content);
}

// Changes only what differs, so that focus, selection and scroll positions stay.
function patchChildren(from, to) {
    const keyed = new Map();
    for (const child of from.children) if (child.dataset.key) keyed.set(child.dataset.key, child);
    let at = from.firstChild;
    for (const wanted of [...to.childNodes]) {
        const key = wanted.dataset?.key;
        const known = key ? keyed.get(key) : at;
        if (known && known.nodeName === wanted.nodeName && known.dataset?.key === key) {
            if (known === at) at = at.nextSibling;
            else from.insertBefore(known, at);
            patchNode(known, wanted);
        } else {
            from.insertBefore(wanted, at);
        }
    }
    while (at) {
        const next = at.nextSibling;
        at.remove();
        at = next;
    }
}

function patchNode(known, wanted) {
    if (known.nodeType !== Node.ELEMENT_NODE) {
        if (known.nodeValue !== wanted.nodeValue) known.nodeValue = wanted.nodeValue;
        return;
    }
    // What the user is typing, what log.js fills, and the link to marked jobs.
    if (known.dataset.comparison !== undefined) return;
    if (known.dataset.log || (known.dataset.filter && known.contains(document.activeElement))) return;
    for (const { name } of [...known.attributes]) {
        if (!wanted.hasAttribute(name) && name !== "open") known.removeAttribute(name);
    }
    for (const { name, value } of wanted.attributes) {
        if (known.getAttribute(name) !== value) known.setAttribute(name, value);
    }
    patchChildren(known, wanted);
}

// -- actions and filters ------------------------------------------------------------------------

const MESSAGE_MILLISECONDS = 15_000;
const FILTER_MILLISECONDS = 150;

function showMessage(text) {
    message.textContent = text;
    message.hidden = !text;
    clearTimeout(message.timer);
    message.timer = setTimeout(() => { message.hidden = true; }, MESSAGE_MILLISECONDS);
}

function askUser(question) {
    const dialog = document.createElement("dialog");
    dialog.innerHTML = '<form method="dialog"><p></p><button value="yes">Yes</button> <button value="" autofocus>No</button></form>';
    $("p", dialog).textContent = question;
    document.body.append(dialog);
    return new Promise(resolve => {
        dialog.onclose = () => {
            dialog.remove();
            resolve(dialog.returnValue === "yes");
        };
        dialog.showModal();
    });
}

async function runAction(button) {
    const { action, confirm, leave } = button.dataset;
    if (confirm && !(await askUser(confirm))) return;
    button.disabled = true;
    showMessage("…");
    try {
        const response = await fetch(action, { method: "POST" });
        const answer = await response.json();
        showMessage([answer.message, answer.hint].filter(Boolean).join("; "));
        if (response.ok && leave && location.pathname !== leave) location.assign(leave);
        else if (response.ok && leave && pane) location.reload();
    } catch {
        showMessage("danlu ui cannot be reached");
    }
    button.disabled = false;
}

document.addEventListener("click", event => {
    const button = event.target.closest("[data-action]");
    if (button) runAction(button);
    const copied = event.target.closest("[data-copy]");
    if (copied) navigator.clipboard.writeText(copied.dataset.copy).then(() => showMessage("copied"));
});

function applyFilters(form) {
    const query = new URLSearchParams();
    for (const [name, value] of new FormData(form)) if (value) query.set(name, value);
    history.replaceState(null, "", query.size ? `?${query}` : location.pathname);
    // Not for each letter that is typed.
    clearTimeout(form.timer);
    form.timer = setTimeout(() => live.restart(), FILTER_MILLISECONDS);
}

// The link to compare the jobs that are marked, of all pages of the table that were seen.
const compared = new Set();

function updateComparison(box) {
    if (box.checked) compared.add(box.dataset.compare);
    else compared.delete(box.dataset.compare);
    const link = $("[data-comparison]");
    link.hidden = compared.size < 2;
    link.textContent = `Compare ${compared.size} jobs`;
    link.href = `/compare?jobs=${[...compared].map(encodeURIComponent)}`;
}

document.addEventListener("change", event => {
    if (event.target.dataset.compare) updateComparison(event.target);
});

for (const kind of ["input", "submit"]) {
    document.addEventListener(kind, event => {
        const form = event.target.closest("[data-filter]");
        if (!form || event.target.dataset.compare) return;
        event.preventDefault();
        applyFilters(form);
    });
}

document.addEventListener("keydown", event => {
    if (event.key !== "/" || event.target.closest("input, select, textarea")) return;
    const field = $("input[type=search]");
    if (field) {
        event.preventDefault();
        field.focus();
    }
});

// The token of an address that was opened again is of no more use.
if (location.hash.startsWith("#token=")) history.replaceState(null, "", location.pathname + location.search);
const section = $("[data-log]");
const pane = section && new LogPane(section, showMessage);
const live = new PageStream(
    makeLiveUrl,
    {
        parts: parts => Object.entries(parts).forEach(([id, html]) => patchPart(id, html)),
        lines: batch => pane.addLines(batch),
        end: () => { pane.isOver = true; },
        "log-failure": failure => showMessage(failure.message),
        failure: showFailure,
        final: () => live.retryLater("finished"),
    },
    showConnection,
);
if (pane) pane.stream = live;
