// A log of any length: only the lines that are visible are in the document, and only those near
// them in memory. A line is found by its index in the whole log.

const WINDOW = 500;
const MAX_LINES = 20_000;
// Browsers limit the height of an element; a longer log is scrolled in larger steps.
const MAX_HEIGHT = 8_000_000;
const OVERSCAN = 20;

export class LogPane {
    constructor(section, showMessage) {
        this.name = section.dataset.log;
        this.base = `/-/logs/${encodeURIComponent(section.dataset.log)}`;
        this.pane = section.querySelector(".log");
        this.sizer = section.querySelector(".sizer");
        this.rows = section.querySelector(".rows");
        this.count = section.querySelector("[data-count]");
        this.follow = section.querySelector("[data-follow]");
        this.replica = section.querySelector("[data-replica]");
        this.search = section.querySelector("[data-search]");
        this.showMessage = showMessage;
        this.rowHeight = this.measureRow();
        this.replica.value = new URLSearchParams(location.search).get("replica") ?? "";
        if (!this.replica.value) this.replica.value = "";
        this.sources = [...this.replica.options].map(option => option.text).slice(1);
        section.logPane = this;

        this.pane.addEventListener("scroll", () => this.handleScroll());
        this.replica.addEventListener("change", () => this.changeReplica());
        this.follow.addEventListener("change", () => this.draw());
        this.search.addEventListener("keydown", event => event.key === "Enter" && this.findNext());
        section.querySelector("[data-failure]").addEventListener("click", () => this.showFailure());
        new ResizeObserver(() => this.draw()).observe(this.pane);
        addEventListener("hashchange", () => this.readHash());
        this.clear();
        this.readHash();
    }

    measureRow() {
        const row = this.rows.appendChild(document.createElement("div"));
        row.className = "line";
        row.textContent = "M";
        const { height } = row.getBoundingClientRect();
        row.remove();
        return height || 18;
    }

    clear() {
        this.lines = new Map();
        this.waiting = new Set();
        this.begin = this.end = 0;
        this.isOver = false;
        this.hit = -1;
        this.followedTop = 0;
    }

    selection(values = {}) {
        const query = new URLSearchParams(values);
        if (this.replica.value) query.set("replica", this.replica.value);
        return query;
    }

    changeReplica() {
        const query = new URLSearchParams(location.search);
        if (this.replica.value) query.set("replica", this.replica.value);
        else query.delete("replica");
        history.replaceState(null, "", `${location.pathname}${query.size ? `?${query}` : ""}`);
        this.follow.checked = true;
        this.clear();
        this.stream.restart();
    }

    // -- lines ----------------------------------------------------------------------------------

    addLines({ job, first, begin, end, lines }) {
        if (job !== this.job) this.clear(); // another job of this name has begun
        this.job = job;
        lines.forEach((line, number) => this.lines.set(first + number, line));
        this.begin = begin;
        this.end = Math.max(this.end, end);
        this.count.textContent = `${(this.end - this.begin).toLocaleString("en")} lines`;
        this.draw();
    }

    async fetchWindow(index) {
        const first = Math.max(this.begin, index - (index % WINDOW));
        if (this.waiting.has(first)) return;
        this.waiting.add(first);
        try {
            const query = this.selection({ first, count: WINDOW });
            const response = await fetch(`${this.base}/lines?${query}`);
            if (response.ok) this.addLines(await response.json());
        } finally {
            this.waiting.delete(first);
        }
    }

    forgetDistant(from, to) {
        if (this.lines.size <= MAX_LINES) return;
        for (const index of this.lines.keys()) {
            if (index < from - MAX_LINES / 4 || index > to + MAX_LINES / 4) this.lines.delete(index);
        }
    }

    // -- drawing --------------------------------------------------------------------------------

    get height() {
        return Math.min(MAX_HEIGHT, (this.end - this.begin) * this.rowHeight);
    }

    // How many pixels a line takes: less than its height if the whole log would be too high.
    get step() {
        const hidden = Math.max(1, this.end - this.begin - this.visibleCount);
        const range = this.height - this.pane.clientHeight;
        return this.height < MAX_HEIGHT ? this.rowHeight : range / hidden;
    }

    get firstVisible() {
        const { scrollTop } = this.pane;
        // Positions are rounded to pixels.
        if (this.anchor && Math.abs(scrollTop - this.anchor.top) < 1) return this.anchor.index;
        return this.begin + Math.floor(scrollTop / this.step + 0.01);
    }

    get visibleCount() {
        return Math.floor(this.pane.clientHeight / this.rowHeight);
    }

    scrollToLine(wanted) {
        const index = Math.max(this.begin, Math.min(wanted, this.end - this.visibleCount));
        this.pane.scrollTop = (index - this.begin) * this.step;
        this.anchor = { index, top: this.pane.scrollTop };
    }

    handleScroll() {
        const { scrollTop, clientHeight } = this.pane;
        const atEnd = scrollTop + clientHeight >= this.sizer.offsetHeight - this.rowHeight;
        // Not if it was drawNow that scrolled.
        if (Math.abs(scrollTop - this.followedTop) > 1) this.follow.checked = atEnd;
        this.draw();
        clearTimeout(this.hashTimer);
        this.hashTimer = setTimeout(() => this.writeHash(), 200);
    }

    draw() {
        if (this.drawing) return;
        this.drawing = requestAnimationFrame(() => {
            this.drawing = 0;
            this.drawNow();
        });
    }

    drawNow() {
        this.sizer.style.height = `${this.height}px`;
        if (this.target !== undefined && this.end > this.target) {
            this.scrollToLine(this.target);
            this.target = undefined;
        } else if (this.follow.checked) {
            this.followedTop = Math.max(0, this.sizer.offsetHeight - this.pane.clientHeight);
            this.pane.scrollTop = this.followedTop;
            this.anchor = undefined;
        }
        const first = Math.max(this.begin, this.firstVisible - OVERSCAN);
        const last = Math.min(this.end, this.firstVisible + this.visibleCount + OVERSCAN);
        const nodes = [];
        let missing = -1;
        for (let index = first; index < last; index++) {
            const line = this.lines.get(index);
            if (!line && missing < 0) missing = index;
            nodes.push(this.renderLine(index, line));
        }
        this.rows.replaceChildren(...nodes);
        const above = (this.firstVisible - first) * this.rowHeight;
        this.rows.style.transform = `translateY(${Math.max(0, this.pane.scrollTop - above)}px)`;
        if (missing >= 0) this.fetchWindow(missing);
        this.forgetDistant(first, last);
    }

    renderLine(index, line) {
        const row = document.createElement("div");
        row.className = index === this.hit ? "line hit" : "line";
        row.dataset.index = index;
        if (!line) return row;
        const [source, attempt, time, text, isTransient] = line;
        if (isTransient) row.classList.add("dim"); // a state of a progress bar
        const prefix = document.createElement("span");
        prefix.className = `source r${this.sources.indexOf(source) % 6}`;
        prefix.textContent = `${source}${attempt ? `·${attempt}` : ""} │ `;
        prefix.title = time;
        row.append(prefix, ...this.markMatches(text));
        return row;
    }

    markMatches(text) {
        const wanted = this.search.value.toLowerCase();
        const found = wanted ? text.toLowerCase().indexOf(wanted) : -1;
        if (found < 0) return [text];
        const mark = document.createElement("mark");
        mark.textContent = text.slice(found, found + wanted.length);
        return [text.slice(0, found), mark, text.slice(found + wanted.length)];
    }

    // -- jumps ----------------------------------------------------------------------------------

    jumpTo(index) {
        this.follow.checked = false;
        this.hit = index;
        this.target = Math.max(this.begin, index - Math.floor(this.visibleCount / 3));
        this.draw();
    }

    async findNext() {
        const first = this.hit >= 0 ? this.hit + 1 : this.firstVisible;
        await this.jumpToAnswer(`find?${this.selection({ text: this.search.value, first })}`, "not found");
    }

    async showFailure() {
        await this.jumpToAnswer(`failure?${this.selection()}`, "no failure found in the log");
    }

    async jumpToAnswer(path, otherwise) {
        const response = await fetch(`${this.base}/${path}`);
        const { index, message } = await response.json();
        if (typeof index === "number") this.jumpTo(index);
        this.showMessage(typeof index === "number" ? "" : message ?? otherwise);
    }

    // The position is in the address, so that it survives a reload and can be sent to others.
    writeHash() {
        const hash = this.follow.checked ? "" : `#L${this.firstVisible}`;
        history.replaceState(null, "", `${location.pathname}${location.search}${hash}`);
    }

    readHash() {
        const found = /^#L(\d+)$/.exec(location.hash);
        if (!found) return;
        this.follow.checked = false;
        this.target = Number(found[1]);
        this.draw();
    }
}
