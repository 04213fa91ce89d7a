// An event stream that is open while its page is visible: a browser opens at most six connections
// to a server, for all pages together.

const HIDDEN_MILLISECONDS = 5000;
const RETRY_MILLISECONDS = { reconnecting: 5000, finished: 30_000 };

export class PageStream {
    // makeUrl(id) returns the address from the last event's id on; listeners get the data of events.
    constructor(makeUrl, listeners, showState = () => {}) {
        Object.assign(this, { makeUrl, listeners, showState });
        document.addEventListener("visibilitychange", () => this.handleVisibility());
        addEventListener("pagehide", () => this.close());
        addEventListener("pageshow", event => event.persisted && this.resume());
        this.restart();
    }

    restart() {
        this.lastId = "";
        this.isOver = false;
        this.open();
    }

    open() {
        this.close();
        this.source = new EventSource(this.makeUrl(this.lastId));
        this.source.onopen = () => this.showState("live");
        this.source.onerror = () => this.handleError();
        for (const [name, handle] of Object.entries(this.listeners)) {
            this.source.addEventListener(name, event => {
                this.lastId = event.lastEventId;
                handle(JSON.parse(event.data));
            });
        }
    }

    close() {
        clearTimeout(this.timer);
        this.source?.close();
    }

    end() {
        this.isOver = true;
        this.close();
    }

    resume() {
        if (!this.isOver) this.open();
    }

    handleVisibility() {
        clearTimeout(this.timer);
        if (document.hidden) this.timer = setTimeout(() => this.close(), HIDDEN_MILLISECONDS);
        else if (this.source.readyState === EventSource.CLOSED) this.resume();
    }

    retryLater(state) {
        this.close();
        this.showState(state);
        this.timer = setTimeout(() => this.open(), RETRY_MILLISECONDS[state]);
    }

    async handleError() {
        this.showState("reconnecting");
        // Otherwise the browser tries again by itself.
        if (this.source.readyState !== EventSource.CLOSED) return;
        const answer = await fetch(location.pathname, { method: "HEAD" }).catch(() => undefined);
        if (answer?.status === 401) this.showState("signed out");
        else this.retryLater("reconnecting");
    }
}
